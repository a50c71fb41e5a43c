"""What JAX refuses behind our doors has our four parts: functions of symbolic sizes that are traced
or exported, calls without arguments, and transforms of a loaded program.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import InvalidConfig, ShapeError, Unsupported

from ..helpers import ends_in

N, M = jax.export.symbolic_shape("n,m")
DOORS = {"trace": tj.trace, "export": tj.export}


def of_size(*sizes):
    return jax.ShapeDtypeStruct(sizes, np.float32)


SYMBOLIC = {
    "searchsorted": (jnp.searchsorted, (of_size(N), of_size(M)), ShapeError, "sizes n, m"),
    "top_k": (lambda x: jax.lax.top_k(x, 3), (of_size(N),), ShapeError, "'n' < '3'"),
    "linspace": (lambda x: jnp.linspace(0, 1, x.shape[0]), (of_size(N),), ShapeError, "'n' > '1'"),
    "associative_scan": (
        lambda x: jax.lax.associative_scan(jnp.add, x),
        (of_size(N),),
        Unsupported,
        "non-constant size",
    ),
    "reshape": (lambda x: x.reshape(3, -1), (of_size(N),), ShapeError, "divide evenly"),
    "an if": (lambda x: x if x.shape[0] > 3 else -x, (of_size(N),), ShapeError, "'n' > '3'"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", SYMBOLIC)
def test_what_jax_cannot_do_with_symbolic_sizes(name, door):
    fn, specs, kind, said = SYMBOLIC[name]
    error = ends_in(lambda: DOORS[door](fn, *specs), kind, said).value
    assert error.where == door
    assert "symbolic sizes n" in error.given
    assert "concrete sizes" in error.fix
    assert error.__cause__ is not None


@pytest.mark.parametrize("door", DOORS)
def test_an_error_of_the_author_stays_and_a_note_names_the_sizes(door):
    error = ends_in(
        lambda: DOORS[door](lambda x, y: x + y, of_size(N), of_size(M)),
        TypeError,
        r"incompatible shapes for broadcasting: \(n,\), \(m,\)",
    ).value
    assert any(f"{door}: the sizes n, m are symbolic" in note for note in error.__notes__)


@pytest.mark.parametrize("door", DOORS)
def test_a_function_without_its_arguments(door):
    def add(a, b):
        return a + b

    x = np.ones(2)
    ends_in(lambda: DOORS[door](add), InvalidConfig, rf"{door} of add: given 0 specs: .*: a, b\.")
    ends_in(lambda: DOORS[door](add, x), InvalidConfig, "given 1 spec: missing .*'b'")
    ends_in(lambda: DOORS[door](add, x, x, x), InvalidConfig, "3 specs: too many")
    ends_in(lambda: DOORS[door](lambda x: add(x), x), TypeError, "missing 1 required")


def test_a_loaded_program_refuses_vmap_and_forward_mode():
    program = tj.load_exported(
        tj.export(lambda x: (x * x).sum(), np.ones(3), vjp_order=1).to_bytes()
    )
    x, many = np.arange(3.0), np.ones((2, 3))
    for call in (
        lambda: jax.vmap(program.call)(many),
        lambda: jax.jit(jax.vmap(program.call))(many),
        lambda: jax.vmap(jax.grad(program.call))(many),
    ):
        ends_in(call, Unsupported, "a call under vmap; needed jit, or reverse mode")
    for call in (
        lambda: jax.hessian(program.call)(x),
        lambda: jax.jacfwd(program.call)(x),
        lambda: jax.jvp(program.call, (x,), (x,)),
    ):
        ends_in(call, Unsupported, r"a call under forward mode \(jvp, jacfwd, hessian\)")
    np.testing.assert_array_equal(jax.jit(jax.grad(program.call))(x), 2 * x)


def test_without_flatbuffers(monkeypatch):
    program = tj.export(jnp.tanh, np.ones(3))
    content = program.to_bytes()
    for name in list(sys.modules):
        if name.startswith("flatbuffers"):
            monkeypatch.setitem(sys.modules, name, None)
        if name.startswith("jax.") and name.endswith(".serialization"):  # is imported again
            monkeypatch.delitem(sys.modules, name)
    for call in (program.to_bytes, lambda: tj.load_exported(content)):
        ends_in(call, Unsupported, "without flatbuffers; needed the package flatbuffers")
