"""Graphs to be written as bytes: one of each op, and one of each feature of graphs."""

import dataclasses
import functools
import typing
from collections import namedtuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import ext_tropical
import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import TensorMeta, trace
from tenferro_jax.extension import apply, register_extension
from tenferro_jax.extension import registry as registry_module
from tenferro_jax.extension.carrier import BatchLevel, Extension
from tenferro_jax.extension.registry import ExtensionFactory, lookup_extension_factory
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops import linalg, random
from tenferro_jax.ops.analytic import Sin
from tenferro_jax.ops.control import Scan
from tenferro_jax.ops.source import Constant
from tenferro_jax.shapes import meta_of

from ..cases import CASES as EXTENSION_CASES
from ..ext_tropical import sums  # noqa: F401 (registers the semiring of a golden file)
from ..extension.payload_ops import Color, Holder
from ..graph.test_guards import Together
from ..ops.op_cases import CASES as OP_CASES

Pair = namedtuple("Pair", "first second")
F64 = np.dtype("float64")
DTYPES = [
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16",
    "uint32", "uint64",
    "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float16", "float32", "float64", "complex64",
    "complex128",
]  # fmt: skip


class Moments(typing.NamedTuple):
    mean: typing.Any
    square: typing.Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: typing.Any
    bias: typing.Any = None
    name: typing.Any = dataclasses.field(default="layer", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Scaled:
    """Not a dataclass; its own code flattens it, and refuses what it does not like."""

    def __init__(self, value, by):
        if not isinstance(by, int):
            raise TypeError(f"scaled by {by!r}")
        self.value, self.by = value, by

    def tree_flatten(self):
        return (self.value,), self.by

    @classmethod
    def tree_unflatten(cls, by, children):
        return cls(*children, by)


NAMES = {
    Moments: "test-package.Moments",
    Layer: "test-package.Layer",
    Scaled: "test-package.Scaled",
}


def op_of(case):
    """The extension op of a case, without its carrier."""
    return case.op.op if isinstance(case.op, Extension) else case.op


def register_families():
    """Make known every family that occurs here."""
    ext_tropical.register()
    for cls in (Holder, Together, *(type(op_of(case)) for case in EXTENSION_CASES)):
        if lookup_extension_factory(cls.family_id) is None:
            register_extension(ExtensionFactory(cls))
    for cls, name in NAMES.items():
        tj.io.register_pytree_name(cls, name)


def families_known(monkeypatch):
    """The families of this bank, and no others, for one test."""
    monkeypatch.setattr(registry_module, "_factories", {})
    register_families()


def applied(*applications):
    """A graph of ops, each on inputs of its own: (op, arrays)."""
    builder = GraphBuilder()
    outputs = []
    for op, arrays in applications:
        outputs += builder.add(op, *(builder.input(meta_of(jnp.asarray(a))) for a in arrays))
    return builder.build(outputs)


KEY = jax.random.key(7)
KEYED_CASES = [
    (random.RandomSeed("threefry2x32"), (np.int32(3),)),
    (random.RandomWrap("rbg"), (np.arange(4, dtype=np.uint32),)),
    (random.RandomUnwrap(), (KEY,)),
    (random.RandomBits(16, (5,)), (KEY,)),
    (random.RandomSplit((4,)), (KEY,)),
    (random.RandomFoldIn(), (KEY, np.uint32(9))),
    (random.RandomGamma(), (KEY, np.float64(2))),
    (random.RngBitGenerator((3,), np.dtype("uint32"), "RNG_PHILOX"), (np.uint64([1, 2]),)),
    (linalg.Svd(), (np.eye(3),)),
    (linalg.Eigh(), (np.eye(3),)),
    (linalg.ValidateNonsingular(), (np.eye(3),)),
]
SINGLE = [*((op, inputs) for op, inputs, _ in OP_CASES), *KEYED_CASES]


def constants(array):
    """A graph that gives one array."""
    builder = GraphBuilder()
    return builder.build(builder.add(Constant(array)))


def all_bits(name):
    """An array with every byte in it: all NaN payloads of small floats, some of large ones; of
    small integers all values.
    """
    dtype = np.dtype(name)
    if dtype.kind == "b":
        return np.array([True, False])
    if dtype.itemsize == 1 and np.dtype(name).kind != "f":
        return np.arange(-128, 128).astype(dtype)
    return np.frombuffer(np.random.default_rng(0).bytes(64 * dtype.itemsize), np.uint8).view(dtype)


def nested(depth):
    """Graphs in graphs."""
    x = TensorMeta(F64, ())
    graph = None
    for _ in range(depth):
        builder = GraphBuilder()
        value = builder.input(x)
        (value,) = (
            builder.add(Sin(), value) if graph is None else builder.add(Scan(graph, 2, 0, 1), value)
        )
        graph = builder.build([value])
    return graph


def symbolic():
    b, c = jax.export.symbolic_shape("b, c", constraints=["b >= 8", "mod(b, 2) == 0", "c <= 4*b"])
    spec = jax.ShapeDtypeStruct((b, c), F64)
    return trace(
        lambda x: (
            x[4:],
            jnp.ones((x.shape[0] // 2, x.shape[1] * 3 + 1)),
            x.shape[0] * jnp.ones(()),
        ),
        spec,
    )


def guarded():
    b, c = jax.export.symbolic_shape("b, c")
    x, y = (jax.ShapeDtypeStruct((d,), F64) for d in (b, c))
    return trace(lambda x, y: apply(Together(), x, y)[0], x, y)


def batched():
    x = np.ones((2, 3, 4, 5))
    mapped = jax.vmap(jax.vmap(EXTENSION_CASES[4], in_axes=1), in_axes=2, axis_name="i")
    return trace(lambda x: mapped(x), x)


def batched_by_hand():
    carrier = Extension.of(op_of(EXTENSION_CASES[4])).batch(BatchLevel((1,), "i", ("a", "b")))
    return applied((carrier, (np.ones((2, 3, 4)),)))


def dense(p, x, *, k):
    return {"a": (x @ p["w"] + p["b"][0][None], [k]), "z": None, "b": {}}


def thrice(x):
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * 2, x))
    return [step(x + i) for i in range(3)]


def flow(x, n):
    x = jax.lax.fori_loop(0, 4, lambda i, x: x * 2 + i, x)
    x = jax.lax.while_loop(lambda x: x.sum() < 100.0, lambda x: x + 1, x)
    return jax.lax.cond(n > 0, lambda x: jax.nn.relu(x) + n, lambda x: -x, x)


def lost():
    """A graph whose derivative is refused, because a custom derivative in it could not be kept: in
    one of two loops that are equal but for that.
    """

    @jax.custom_jvp
    def schur_at_heart(x):
        return 2 * x

    schur_at_heart.defjvp(lambda p, t: (2 * p[0], jax.lax.linalg.schur(jnp.diag(t[0]))[0][0]))
    looped = lambda f, x: jax.lax.fori_loop(0, 3, lambda _, y: f(y), x).sum()
    return trace(lambda x: looped(schur_at_heart, x) + looped(lambda y: 2 * y, -x), np.ones(3))


def everything():
    """An extension whose payload holds a leaf of every kind."""
    array, text = np.array([[1.5, -0.0]]), 'ü"\n\ud800'
    return payload_graph(
        (
            float("nan"),
            complex(-0.0, 1.5),
            b"\x00\xff",
            np.dtype("bfloat16"),
            array,
            (),
            Color.RED,
            None,
            10**3000,
            text,
        )
    )


def in_symbols(op_of_dimension):
    (b,) = jax.export.symbolic_shape("b")
    builder = GraphBuilder()
    return builder.build(
        builder.add(op_of_dimension(b), builder.input(jax.ShapeDtypeStruct((b,), F64)))
    )


def payload_graph(value):
    """A graph whose extension holds a value."""
    builder = GraphBuilder()
    return builder.build(builder.add(Holder(value), builder.input(np.ones(2))))


def used(layer, pair):
    return {"out": Moments(layer.weight * pair[0].value, [layer.bias]), "again": Scaled(pair[1], 7)}


LAYERS = (
    Layer(np.arange(3.0), np.ones(3), ("first", 0.5, True, None, b"z", 2j)),
    (Scaled(np.arange(3.0), 3), np.ones(3)),
)

MLP = {"w": np.ones((3, 2)), "b": [np.zeros(2), None]}
FEATURES = {
    "no node": lambda: trace(lambda x: x, np.ones(2)),
    "no output": lambda: trace(lambda x: (), np.ones(2)),
    "no input": lambda: trace(lambda: jnp.ones(2)),
    "pytrees": lambda: trace(dense, MLP, np.ones((4, 3)), k=np.ones(2)),
    "classes": lambda: trace(used, *LAYERS),
    "integer keys": lambda: trace(lambda d: {1: d[0], -2: d[5]}, {0: np.ones(2), 5: np.ones(3)}),
    "control flow": lambda: trace(flow, np.ones(2), np.float64(1)),
    "gradient of control flow": lambda: tj.grad(trace(lambda x: jax.lax.fori_loop(0, 4, lambda i,
    x: jnp.sin(x), x).sum(), np.ones(2))),
    "nested": lambda: nested(20),
    "symbolic": symbolic,
    "guarded": guarded,
    "batched": batched,
    "batched by hand": batched_by_hand,
    "lost derivative": lost,
    "keys": lambda: trace(lambda k: (jax.random.normal(k, (3,)), jax.random.split(KEY, 2),
    jax.random.key(1, impl="unsafe_rbg")), KEY),
    "shared bodies": lambda: trace(thrice, np.ones(2)),
    "tropical": lambda: trace(lambda x: tropical_einsum("ij,jk->ik", x, x), np.ones((2, 2))),
    "every leaf": everything,
    "symbol in a payload": lambda: in_symbols(Holder),
    "symbols in a payload": lambda: in_symbols(lambda b: Holder((2 * b, (b, 1)))),
    "bfloat16 network": lambda: trace(lambda w, x: jax.nn.softmax(x @ w), np.ones((2, 2),
    "bfloat16"), np.ones((1, 2), "bfloat16")),
    "zero sizes": lambda: trace(lambda x: (x.sum(), jnp.zeros((0, 5)), np.zeros((3, 0), np.int8)),
    np.ones((0, 2))),
}  # fmt: skip


@functools.cache
def feature(name):
    """A graph of FEATURES, made once."""
    return FEATURES[name]()
