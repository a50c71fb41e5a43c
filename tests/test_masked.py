"""A masked array of NumPy is refused wherever arrays go in or come out: its mask would be lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax.errors import BackendFailure, DTypeError
from tenferro_jax.extension import ExtensionOp, apply

from .helpers import ends_in, fresh

MASKED = np.ma.masked_array(np.arange(3.0), [False, True, False])
PLAIN = np.arange(3.0)


def on_host(result, shape):
    f = fresh(lambda x: None)
    f.def_host(result)
    f.def_infer(shape)
    return f


def masked(x):
    return np.ma.masked_array(x, x > 1)


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


class ClassOp(ExtensionOp):
    family_id = "test-package.masked.v1"

    def infer_output_meta(self, inputs):
        return inputs

    def eager_execute(self, x):
        return (masked(x),)


ON_HOST = {
    "one": on_host(masked, like),
    "tuple": on_host(lambda x: (x, masked(x)), lambda x: (like(x), like(x))),
    "dict": on_host(lambda x: {"a": masked(x)}, lambda x: {"a": like(x)}),
    "class": lambda x: apply(ClassOp(), x),
}


@pytest.mark.parametrize("kind", ON_HOST)
def test_results_of_the_host(kind):
    f = ON_HOST[kind]
    calls = [lambda: f(PLAIN), lambda: jax.vmap(f)(PLAIN[None])]
    ends_in(calls, BackendFailure, r"given a masked array float64\[3\]; .*the mask would be lost")

    def compiled():
        with tj.host_errors():
            jax.block_until_ready(jax.jit(f)(PLAIN))

    ends_in(compiled, BackendFailure, "masked array")
    if kind != "class":
        assert not tj.check(f, PLAIN, only=("value",)).ok


DOORS = {
    "an op": lambda x: fresh(jnp.sin)(x),
    "check of a function": lambda x: tj.check(jnp.sin, x, only=("value",)),
    "check of a tree": lambda x: tj.check(lambda t: t["a"], {"a": x}, only=("value",)),
    "an example": lambda x: tj.check(jnp.sin, examples=[(PLAIN,), (x,)], only=("value",)),
    "check of an op": lambda x: tj.check(fresh(jnp.sin), x, only=("value",)),
    "check of a partial": lambda x: tj.check(jax.tree_util.Partial(jnp.add, x), PLAIN),
    "a graph": lambda x: tj.trace(jnp.sin, PLAIN)(x),
    "einsum": lambda x: tj.einsum("i->", x),
    "einsum of a list": lambda x: tj.einsum("ij->", [x, x]),
    "a list with one": lambda x: tj.einsum("i->", [1.0, x[1]]),
    "a tropical einsum": lambda x: tropical_einsum("ij->i", (x, PLAIN)),
}


@pytest.mark.parametrize("door", DOORS)
def test_arguments(door):
    ends_in(lambda: DOORS[door](MASKED), DTypeError, "given a Masked.* Fill masked entries")
    if door != "check of a partial":
        DOORS[door](PLAIN)


def test_an_oracle():
    oracle = {"oracle": lambda x: np.ma.masked_array(np.sin(x), x > 1), "only": ("routes",)}
    (failed,) = tj.check(fresh(jnp.sin), PLAIN, **oracle).failures
    assert "the oracle returns a masked array" in failed.problem
