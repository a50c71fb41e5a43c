"""The doors of the packages: `check` comes late, and other names are missing as in any module."""

import importlib
import os
import pkgutil

import pytest

import ext_tropical
import tenferro_jax
import tenferro_jax.extension
import tenferro_jax.ops
from tenferro_jax.ops.vocabulary import VOCABULARY

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
        ("tenferro_jax", "tenferro_jax.graph.Node"),
        ("tenferro_jax", "tenferro_jax.io.register_pytree_name"),
        ("tenferro_jax", "tenferro_jax.plans.Plan"),
        ("tenferro_jax", "tenferro_jax.extension.Kernel"),
        ("tenferro_jax", "tenferro_jax.testing.conformance_tests"),
        ("tenferro_jax.extension", "tenferro_jax.extension.registry.lookup_extension_factory"),
        ("tenferro_jax.extension", "tenferro_jax.extension.carrier.Extension"),
        ("tenferro_jax.extension", "tenferro_jax.extension.primitive.save_families"),
        ("ext_tropical", "ext_tropical.einsums.TropicalPlan"),
        ("ext_tropical", "ext_tropical.sequences.ctc_chain"),
        ("ext_tropical", "ext_tropical.graphs.sparse_matvec"),
        ("ext_tropical", "ext_tropical.semirings.SemiringKey"),
        ("ext_tropical", "ext_tropical.steps.LogEinsum"),
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


# What the source documents name, in their spelling.
SOURCE = """
ExtensionOp ExtensionAdRule ExtensionRuleSet ExtensionRuntimeSet ExtensionFactory extension_op apply
register_extension StdTensorOp TracedTensor Engine ExecProgram GraphBuilder AdContext
compile_std_to_exec eval_all SymDim TensorMeta ADRuleError ExtensionLoweringError
ExtensionRegistryError RegistrationError
"""


@pytest.mark.parametrize("name", SOURCE.split())
def test_every_name_of_the_source_documents_is_at_the_door(name):
    assert name in tenferro_jax.__all__
    assert getattr(tenferro_jax, name) is not None


def test_every_error_is_at_the_door():
    errors = vars(importlib.import_module("tenferro_jax.errors")).values()
    classes = {x.__name__ for x in errors if isinstance(x, type) and issubclass(x, Exception)}
    assert classes - {"Exception"} <= set(tenferro_jax.__all__)


@pytest.mark.parametrize("room", ext_tropical.ROOMS)
def test_a_room_and_the_door_have_the_same_functions(room):
    names = importlib.import_module(f"ext_tropical.{room}")
    shared = set(names.__all__) & set(ext_tropical.__all__)
    assert shared
    assert all(getattr(names, name) is getattr(ext_tropical, name) for name in shared)


def test_every_standard_op_is_at_the_door_of_the_ops():
    assert all(getattr(tenferro_jax.ops, op.__name__) is op for op in VOCABULARY)
    ends_in(lambda: tenferro_jax.ops.Nothing, AttributeError, "has no attribute 'Nothing'$")


FORMER = """
ext_tropical.uses.paths.EdgeGraph ext_tropical.uses.paths.shortest_paths
ext_tropical.uses.paths.sparse_matvec ext_tropical.uses.ctc.ctc_loss
ext_tropical.uses.segments.segment_max ext_tropical.uses.closure.ClosureResult
ext_tropical.algebra.laws.broken_laws tenferro_jax.conformance.check
tenferro_jax.conformance.conformance_tests tenferro_jax.einsum.Plan
"""


ONE_AFTER_ANOTHER = """
import importlib, os, sys, warnings
import jax
warnings.simplefilter("ignore")  # JAX's about forks: it has started nothing yet
failed = []
for place in sys.argv[1:]:
    if child := os.fork():
        failed += [place] * (os.waitpid(child, 0)[1] != 0)
        continue
    module, _, name = place.rpartition(".")
    getattr(importlib.import_module(module), name)
    import tenferro_jax
    tenferro_jax.einsum("i->", [1.0])
    os._exit(0)
print(failed)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it needs os.fork")
def test_a_former_place_answers_for_one_release():
    """Each in a process of its own: what another one imported would answer, too."""
    assert python("-c", ONE_AFTER_ANOTHER, *FORMER.split()).strip() == "[]"


IMPORT = """
import jax, sys, time
before, start = set(sys.modules), time.process_time()
import tenferro_jax, ext_tropical
print(time.process_time() - start, *sorted(set(sys.modules) - before))
assert "check" in dir(tenferro_jax)
from tenferro_jax import check
assert check is tenferro_jax.check is sys.modules["tenferro_jax.testing"].check
"""


def test_importing_both_packages_takes_little_time_and_leaves_the_kit_alone():
    """It takes 0.15 s of a quiet processor; what must not come back would take several seconds."""
    seconds, *loaded = python("-c", IMPORT).split()
    assert float(seconds) < 1
    packages = {module.split(".")[0] for module in loaded}
    assert packages <= {
        "tenferro_jax",
        "ext_tropical",
        "jax",
        "concurrent",
        "fractions",
        "opt_einsum",
    }
    rooms = {module.split(".")[1] for module in loaded if module.startswith("tenferro_jax.")}
    assert not rooms & {"testing", "command"}
