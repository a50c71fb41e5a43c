"""The doors of the packages: `check` comes late, and other names are missing as in any module."""

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


def test_names_that_have_a_room_of_their_own():
    for room, name in (
        (room, name) for room, names in tenferro_jax.ROOMS.items() for name in names
    ):
        assert pkgutil.resolve_name(f"tenferro_jax.{room}.{name}") is not None
        ends_in(lambda: getattr(tenferro_jax, name), AttributeError, f"; use .*{room}.{name}$")


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
