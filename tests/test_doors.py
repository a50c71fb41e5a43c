"""Names that were public once answer with their new place, which is there."""

import inspect
import pkgutil
import re

import pytest

import ext_tropical
import tenferro_jax
import tenferro_jax.extension

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
    with pytest.raises(AttributeError, match=f"{door.__name__}.*{name}.*; use ") as error:
        getattr(door, name)
    place = re.search(r"; use (\S+)$", str(error.value))[1]
    pkgutil.resolve_name(place)
    with pytest.raises(ImportError, match=f"; use {re.escape(place)}$"):
        exec(f"from {door.__name__} import {name}", {})


def test_the_names_that_newcomers_wrote():
    for name, place in (
        ("check_extension", "tenferro_jax.check"),
        ("Limits", "tenferro_jax.io.Limits"),
        ("register_pytree_name", "tenferro_jax.io.register_pytree_name"),
    ):
        with pytest.raises(AttributeError, match=f"use {place}$"):
            getattr(tenferro_jax, name)
    with pytest.raises(ImportError, match=r"use tenferro_jax.extension.routes.RouteKind$"):
        exec("from tenferro_jax.extension import RouteKind", {})
    assert len(OLD) > 70


@pytest.mark.parametrize("door", DOORS)
def test_other_names_are_missing_as_in_any_module(door):
    with pytest.raises(AttributeError, match=f"^module '{door.__name__}' has no attribute 'no'$"):
        door.no  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'no'"):
        exec(f"from {door.__name__} import no", {})
    assert "no" not in dir(door)
    assert pkgutil.resolve_name(f"{door.__name__}.{door.__all__[0]}") is not None
