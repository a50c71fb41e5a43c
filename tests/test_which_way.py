"""The table of docs/guides/which_way.md: JAX's own ways to write an operation, tried."""

import contextlib
import re

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.experimental import hijax
from jax.experimental import pallas as pl

import tenferro_jax as tj

from .house import ROOT


def value(x):
    return jnp.log1p(jnp.exp(x))


slope = jax.nn.sigmoid

with_jvp = jax.custom_jvp(value)
with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), slope(*primals) * tangents[0]))

with_vjp = jax.custom_vjp(value)
with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, g: (slope(x) * g,))


class Soft(getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive):  # the name of JAX 0.10
    def __init__(self, of, **params):
        self.in_avals, self.out_aval, self.params = (of,), of, params
        super().__init__()

    def expand(self, x):
        return value(x)

    def jvp(self, primals, tangents):
        return self(*primals), slope(*primals) * tangents[0]

    def vjp_fwd(self, nonzero, x):
        return self(x), x

    def vjp_bwd_retval(self, x, g):
        return (slope(x) * g,)


def kernel(x, out):
    out[...] = value(x[...])


WAYS = {
    "jax.custom_jvp": with_jvp,
    "jax.custom_vjp": with_vjp,
    "hijax": lambda x: Soft(jax.typeof(x))(x),
    "jax.ffi": lambda x: jax.ffi.ffi_call("soft", x, vmap_method="broadcast_all")(x),
    "Pallas": lambda x: pl.pallas_call(kernel, out_shape=x, interpret=True)(x),
    "tenferro_jax.op": tj.op("guide.softplus.v1")(with_vjp),
}
TRIES = {
    "jvp": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,))).lower,
    "grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())).lower,
    "hessian": lambda f: jax.jit(jax.hessian(lambda x: f(x).sum())).lower,
    "vmap": lambda f: jax.jit(jax.vmap(f)).lower,
    "export": lambda f: jax.export.export(jax.jit(f)),
}


@pytest.mark.cpu
@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_as_the_page_says(way):
    page = (ROOT / "docs/guides/which_way.md").read_text()
    (said,) = re.findall(rf"^\| {re.escape(way)} \| (.*) \|$", page, re.MULTILINE)
    found = dict.fromkeys(TRIES, "refused")
    for use, make in TRIES.items():
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            make(WAYS[way])(jnp.ones((2, 3), jnp.float32))
            found[use] = "yes"
    assert found == dict(zip(TRIES, said.split(" | "), strict=True))


def test_parameters_of_hijax_are_compared_by_equality():
    of = jax.typeof(jnp.float32(1))
    assert Soft(of, k=1) == Soft(of, k=True)
