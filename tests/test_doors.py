"""Names that were public once answer with their new place, which is there."""

import inspect
import pkgutil
import re

import pytest

import ext_tropical
import tenferro_jax
import tenferro_jax.extension

from .helpers import ends_in, python

DOORS = [tenferro_jax, tenferro_jax.extension, ext_tropical]
OLD = [
    (door, name)
    for door in DOORS
    for name in inspect.getclosurevars(door.__getattr__).nonlocals["known"]
]


@pytest.mark.parametrize(("door", "name"), OLD, ids=lambda x: getattr(x, "__name__", x))
def test_an_old_name_says_where_it_is(door, name):
    assert not hasattr(door, name)
    assert name not in door.__all__
    error = ends_in(lambda: getattr(door, name), AttributeError, f"{door.__name__}.*{name}.*; use ")
    place = re.search(r"; use (\S+)$", str(error.value))[1]
    pkgutil.resolve_name(place)
    ends_in(
        lambda: exec(f"from {door.__name__} import {name}", {}),
        ImportError,
        f"; use {re.escape(place)}$",
    )


def test_the_names_that_newcomers_wrote():
    for name, place in (
        ("check_extension", "tenferro_jax.check"),
        ("Limits", "tenferro_jax.io.Limits"),
        ("register_pytree_name", "tenferro_jax.io.register_pytree_name"),
    ):
        ends_in(lambda: getattr(tenferro_jax, name), AttributeError, f"use {place}$")
    ends_in(
        lambda: exec("from tenferro_jax.extension import RouteKind", {}),
        ImportError,
        r"use tenferro_jax.extension.routes.RouteKind$",
    )
    assert len(OLD) > 70


@pytest.mark.parametrize("door", DOORS)
def test_other_names_are_missing_as_in_any_module(door):
    ends_in(lambda: door.no, AttributeError, f"^module '{door.__name__}' has no attribute 'no'$")
    ends_in(
        lambda: exec(f"from {door.__name__} import no", {}), ImportError, "cannot import name 'no'"
    )
    assert "no" not in dir(door)
    assert pkgutil.resolve_name(f"{door.__name__}.{door.__all__[0]}") is not None


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
