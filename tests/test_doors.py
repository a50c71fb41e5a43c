"""The doors: what they export, and that each public name is documented in the house's form."""

import inspect

import pytest

import ext_tropical
import tenferro_jax
import tenferro_jax.conformance
import tenferro_jax.extension

DOORS = (tenferro_jax, tenferro_jax.extension, tenferro_jax.conformance, ext_tropical)
PUBLIC = sorted(
    {(f"{door.__name__}.{name}", getattr(door, name)) for door in DOORS for name in door.__all__ if callable(getattr(door, name))},
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
        if not m.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)) and not inspect.getdoc(getattr(cls, m))
    ]
    assert not missing
