"""Ops with a sharding rule whose body, kernel or on_device calls Python code on the host, on two
devices. JAX dies where the partitioner asks for such a program.
"""

import contextlib

import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import AxisType

import tenferro_jax as tj

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def printed(x):
    jax.debug.print("sum {}", x.sum())
    return 2 * x


def called(x):
    jax.debug.callback(lambda x: None, x)
    return 2 * x


def by_numpy(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: 2 * np.asarray(x), like, x, vmap_method="sequential")


def by_io(x):
    return io_callback(lambda x: 2 * np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def in_jit(x):
    return jax.jit(printed)(x)


def in_scan(x):
    return jax.lax.scan(lambda c, _: (c, by_numpy(c)), x, length=1)[1][0]


def in_cond(x):
    return jax.lax.cond(x.sum() > -1, by_numpy, lambda x: x, x)


def plain(x):
    return 2 * x


inner = tj.op("host-calls.inner.v1")(lambda x: None)
inner.def_infer(lambda x: x)
inner.def_host(lambda x: 2 * x)
ON_DEVICE = {
    "on_device printed": lambda shard, x: printed(x),
    "on_device in scan": lambda shard, x: in_scan(x),
    "on_device by an op of the host": lambda shard, x: inner(x),
}
BODIES = {f.__name__: f for f in (printed, called, by_numpy, by_io, in_jit, in_scan, in_cond)}
KERNELS = {"kernel printed": printed, "kernel by_numpy": by_numpy}
MESHES = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}
TRANSFORMS = {
    "eager": (lambda f: f, 2 * X),
    "jit": (jax.jit, 2 * X),
    "grad": (lambda f: jax.grad(lambda x: (f(x) ** 2).sum()), 8 * X),
    "jit of grad": (lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum())), 8 * X),
    "vmap": (lambda f: jax.vmap(f, 2, 2), 2 * X),
}


def made(name):
    """An op that doubles, with a rule for derivatives and one for devices."""
    f = tj.op(f"host-calls.{name.replace(' ', '-')}.v1")(BODIES.get(name, plain))
    f.def_transpose(lambda y, x: (f(y),))
    if name in KERNELS:
        f.def_kernel("cpu")(KERNELS[name])
    f.def_sharding("b n -> b n", on_device=ON_DEVICE.get(name))
    return f


def case(name, mesh, transform):
    on = jax.make_mesh((2,), ("d",), axis_types=(MESHES[mesh],), devices=jax.devices()[:2])
    x, (change, want) = X, TRANSFORMS[transform]
    f, batch = made(name), "vmap" in transform
    with jax.set_mesh(on) if mesh == "explicit" else contextlib.nullcontext():
        x = jax.device_put(X[..., None] if batch else X, jax.NamedSharding(on, jax.P("d")))
        got = change(f)(x)
        np.testing.assert_array_equal(got, want[..., None] if batch else want)
        np.testing.assert_array_equal(got + 1, (want[..., None] if batch else want) + 1)
