"""The doors of the packages: `check` comes late, and other names are missing as in any module."""

import importlib
import pkgutil

import pytest

import ext_tropical
import tenferro_jax
import tenferro_jax.extension

from .helpers import ends_in, python


@pytest.mark.parametrize("door", [tenferro_jax, tenferro_jax.extension, ext_tropical])
def test_other_names_are_missing_as_in_any_module(door):
    ends_in(lambda: door.no, AttributeError, f"^module '{door.__name__}' has no attribute 'no'$")
    ends_in(
        lambda: exec(f"from {door.__name__} import no", {}), ImportError, "cannot import name 'no'"
    )
    assert "no" not in dir(door)
    assert pkgutil.resolve_name(f"{door.__name__}.{door.__all__[0]}") is not None


@pytest.mark.parametrize(
    ("door", "place"),
    [
        ("tenferro_jax", "tenferro_jax.engine.Engine"),
        ("tenferro_jax", "tenferro_jax.engine.compile_std_to_exec"),
        ("tenferro_jax", "tenferro_jax.tensor.TracedTensor"),
        ("tenferro_jax", "tenferro_jax.tensor.eval_all"),
        ("tenferro_jax", "tenferro_jax.graph.GraphBuilder"),
        ("tenferro_jax", "tenferro_jax.graph.Node"),
        ("tenferro_jax", "tenferro_jax.ad.AdContext"),
        ("tenferro_jax", "tenferro_jax.errors.InvalidConfig"),
        ("tenferro_jax", "tenferro_jax.io.register_pytree_name"),
        ("tenferro_jax", "tenferro_jax.einsum.Plan"),
        ("tenferro_jax", "tenferro_jax.extension.ExtensionOp"),
        ("tenferro_jax", "tenferro_jax.extension.register_extension"),
        ("tenferro_jax", "tenferro_jax.conformance.conformance_tests"),
        ("tenferro_jax.extension", "tenferro_jax.extension.registry.ExtensionFactory"),
        ("tenferro_jax.extension", "tenferro_jax.extension.registry.lookup_extension_factory"),
        ("tenferro_jax.extension", "tenferro_jax.extension.sharding.Shard"),
        ("tenferro_jax.extension", "tenferro_jax.extension.carrier.Extension"),
        ("tenferro_jax.extension", "tenferro_jax.extension.primitive.save_families"),
        ("ext_tropical", "ext_tropical.algebra.laws.broken_laws"),
        ("ext_tropical", "ext_tropical.uses.ctc.ctc_loss"),
        ("ext_tropical", "ext_tropical.uses.paths.EdgeGraph"),
        ("ext_tropical", "ext_tropical.uses.paths.shortest_paths"),
        ("ext_tropical", "ext_tropical.uses.segments.segment_max"),
    ],
)
def test_a_name_that_moved_has_its_place_in_the_error(door, place):
    """Both as an attribute and in `from ... import ...`, whose own error drops the text."""
    name = place.rpartition(".")[2]
    assert pkgutil.resolve_name(place) is not None
    module = importlib.import_module(door)
    ends_in(
        lambda: getattr(module, name),
        AttributeError,
        f"^module '{door}' has no attribute '{name}'; use {place}$",
    )
    ends_in(
        lambda: exec(f"from {door} import {name}", {}),
        ImportError,
        f"^cannot import name '{name}' from '{door}'; use {place}$",
    )
    assert not hasattr(module, name)


IMPORT = """
import jax, sys, time
before, start = set(sys.modules), time.process_time()
import tenferro_jax, ext_tropical
print(time.process_time() - start, *sorted(set(sys.modules) - before))
assert "check" in dir(tenferro_jax)
from tenferro_jax import check
assert check is tenferro_jax.check is sys.modules["tenferro_jax.conformance"].check
"""


def test_importing_both_packages_takes_little_time_and_leaves_the_kit_alone():
    """It takes 0.15 s of a quiet processor; what must not come back would take several seconds."""
    seconds, *loaded = python("-c", IMPORT).split()
    assert float(seconds) < 1
    packages = {module.split(".")[0] for module in loaded}
    assert packages <= {"tenferro_jax", "ext_tropical", "jax", "concurrent", "opt_einsum"}
    rooms = {module.split(".")[1] for module in loaded if module.startswith("tenferro_jax.")}
    assert not rooms & {"conformance", "command"}
