"""The doors: what they export, and that each public name is documented in the house's form."""

import importlib
import inspect

import pytest

from tenferro_jax import errors

PACKAGES = ("", ".extension", ".conformance", ".engine", ".graph", ".io", ".einsum")
DOORS = [
    importlib.import_module(name)
    for name in (*(f"tenferro_jax{package}" for package in PACKAGES), "ext_tropical")
]
LISTS = [*DOORS, importlib.import_module("tenferro_jax.extension.routes")]
PUBLIC = sorted(
    {
        (f"{room.__name__}.{name}", getattr(room, name))
        for room in LISTS
        for name in room.__all__
        if callable(getattr(room, name))
    }
    | {
        (f"errors.{name}", c)
        for name, c in vars(errors).items()
        if inspect.isclass(c) and issubclass(c, errors.TenferroError)
    },
    key=lambda p: p[0],
)
FUNCTIONS = [(name, f) for name, f in PUBLIC if inspect.isfunction(f)]
CLASSES = [(name, c) for name, c in PUBLIC if inspect.isclass(c)]


@pytest.mark.parametrize("door", DOORS, ids=lambda d: d.__name__)
def test_doors_export_what_they_list(door):
    assert len(set(door.__all__)) == len(door.__all__)
    for name in door.__all__:
        assert getattr(door, name) is not None
    submodules = {n for n, v in vars(door).items() if inspect.ismodule(v)}
    public = {n for n in vars(door) if not n.startswith("_")} - submodules
    assert public - {"annotations"} == set(door.__all__) - submodules


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[n for n, _ in FUNCTIONS])
def test_functions_say_what_they_take_give_and_raise_with_an_example(name, function):
    doc = inspect.getdoc(function) or ""
    assert "Example:" in doc, name
    assert ">>>" in doc
    if inspect.signature(function).parameters:
        assert "Args" in doc or len(inspect.signature(function).parameters) == 1
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=[n for n, _ in CLASSES])
def test_classes_and_their_public_methods_are_documented(name, cls):
    assert inspect.getdoc(cls)
    missing = [
        m
        for m, value in vars(cls).items()
        if not m.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not inspect.getdoc(getattr(cls, m))
    ]
    assert not missing
