"""Ops that state how they split over devices: values, derivatives and collectives on automatic and
explicit meshes, judged by one device and by the same function without an op.
"""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import tenferro_jax as tj
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import ExtensionOp, ExtensionRuntimeSet, Kernel, ShardingRule, apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..helpers import collectives, ends_in, mesh, near

pytestmark = pytest.mark.cpu
P = jax.P
SPLITS = {
    "rows": ((8,), P("d"), P()),
    "columns": ((8,), P(), P(None, "d")),
    "summed": ((8,), P(None, "d"), P("d")),
    "summed on the left": ((8,), P(None, "d"), P()),
    "rows and columns": ((2, 4), P("d"), P(None, "e")),
    "rows and summed": ((2, 4), P("d", "e"), P("e")),
    "rows by two axes": ((2, 4), P(("d", "e")), P()),
    "no factor": ((8,), P(), P()),
}
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(2, 16, 16)).astype(np.float32)
X = X[:, :16]


@tj.op("test-package.product.v1")
def product(x, y):
    return jnp.matmul(x, y)


product.def_sharding("i k, k j -> i j", merge="sum")


def placed(split, arrays, kind=AxisType.Auto):
    shape, *specs = SPLITS[split]
    on = mesh(shape, kind)
    return [
        jax.device_put(x, jax.NamedSharding(on, s)) for x, s in zip(arrays, specs, strict=False)
    ]


@pytest.mark.clause("X13.10")
@pytest.mark.parametrize("split", SPLITS)
def test_a_product_has_the_collectives_of_jax(split):
    x, y = placed(split, (X, Y))
    near(jax.jit(product)(x, y), X @ Y)
    if split != "summed on the left":  # a sum of pieces in place of gathering the left operand
        assert collectives(product, x, y) == collectives(jnp.matmul, x, y)
    assert "all-gather" not in collectives(product, x, y)


@pytest.mark.clause("X13.10")
@pytest.mark.parametrize("split", SPLITS)
def test_derivatives_and_maps_are_split_too(split):
    """A vmap adds its axis to the rule; of a derivative each op follows its own."""
    x, y = placed(split, (X, Y))

    def all_of(f):
        def run(x, y):
            gradient = jax.grad(lambda x, y: (f(x, y) ** 2).sum(), (0, 1))(x, y)
            stacked = jax.vmap(f, (0, None))(jnp.stack([x, 2 * x]), y)
            nested = jax.vmap(jax.vmap(f, (None, 1)), (1, None))(x[:, None], y[:, None])
            return gradient, stacked, nested, jax.jvp(f, (x, y), (y, x))

        return jax.jit(run)

    near(all_of(product)(x, y), all_of(jnp.matmul)(X, Y), 1e-4)


@pytest.mark.parametrize("map_", [jax.vmap(product), jax.vmap(product, spmd_axis_name="d")])
def test_a_mapped_axis_over_the_mesh_needs_no_collective(map_):
    xs, ys = rng.normal(size=(2, 8, 4, 4)).astype(np.float32)
    xs, ys = jax.device_put((xs, ys), jax.NamedSharding(mesh(), P("d")))
    near(jax.jit(map_)(xs, ys), xs @ ys)
    assert collectives(map_, xs, ys) == {}


@pytest.mark.clause("X13.12")
@pytest.mark.parametrize("split", SPLITS)
def test_an_explicit_mesh_has_the_shardings_of_the_rule(split):
    """A summed factor is split no more; its results are the same on all devices."""
    x, y = placed(split, (X, Y), AxisType.Explicit)
    rows, columns = (jax.typeof(v).sharding.spec for v in (x, y))
    with jax.set_mesh(x.sharding.mesh):
        out = jax.jit(product)(x, y)
        near(out, X @ Y)
        assert out.sharding.spec == P(rows[0], columns[1])
        near(jax.jit(jax.grad(lambda x, y: product(x, y).sum(), (0, 1)))(x, y), (
            np.broadcast_to(Y.sum(1), X.shape), np.broadcast_to(X.sum(0)[:, None], Y.shape),
        ), 1e-4)  # fmt: skip


@tj.op("test-package.doubled.v1")
def doubled(x):
    return 2 * x


doubled.def_transpose(lambda g, x: (2 * g,))


@pytest.mark.clause("X13.5")
def test_the_gradient_by_an_array_on_no_mesh_while_an_explicit_one_is_set():
    with jax.set_mesh(mesh(kind=AxisType.Explicit)):
        got = jax.jit(jax.grad(lambda w: doubled(w).sum()))(Y)
    near(got, np.full_like(Y, 2))


@pytest.mark.clause("X13.10")
def test_sizes_that_the_mesh_does_not_divide_stay_whole():
    x = jax.jit(lambda: jnp.arange(30.0).reshape(10, 3))()
    place = jax.NamedSharding(mesh(), P("d"))

    def run(x):
        return product(
            jax.lax.with_sharding_constraint(jnp.pad(x, ((0, 6), (0, 0))), place)[:10], y
        )

    y = np.ones((3, 2))
    near(jax.jit(run)(x), np.asarray(x) @ y)


@pytest.mark.clause("X13.13")
def test_exports_have_the_plain_lowering():
    x, y = placed("summed", (X, Y))
    exported = jax.export.export(jax.jit(product))(x, y)
    assert "custom_call" not in exported.mlir_module().replace("custom_call @Sharding", "")
    near(jax.jit(exported.call)(x, y), X @ Y)


SHAPES = []


def kernel(op, x):
    SHAPES.append(x.shape)
    return (jnp.sin(x),)


class Sine(ExtensionOp):
    """An op without a lowering: a kernel of its own and a rule."""

    family_id = "test-package.split_sine.v1"
    runtimes = ExtensionRuntimeSet(Kernel("test-package.split_sine.v1", "cpu", kernel))

    def infer_output_meta(self, inputs):
        return [inputs[0]]

    def sharding_rule(self, inputs):
        return ShardingRule("... -> ...")


@pytest.mark.clause("X13.11", "X8.4")
def test_a_kernel_runs_on_each_device():
    (x,) = placed("rows and summed", [X])
    (route,) = routes(lambda x: apply(Sine(), x)[0], x)
    assert route.kind is RouteKind.KERNEL
    assert "on each device, split by ... -> ..." in route.reason
    SHAPES.clear()
    near(jax.jit(lambda x: apply(Sine(), x)[0])(x), np.sin(X))
    assert (8, 4) in SHAPES


@pytest.mark.clause("X13.11")
def test_routes_name_the_merge():
    x, y = placed("summed", (X, Y))
    (route,) = routes(product, x, y)
    assert "on each device, split by i k, k j -> i j, k merged by sum" in str(route)
    (route,) = routes(product, X, Y)
    assert "split" not in str(route)


@pytest.mark.clause("X13.10")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "bool"])
@pytest.mark.parametrize("how", ["max", "min"])
def test_extremes_of_all_devices_keep_nan_and_infinities(dtype, how):
    """XLA's own reduction between CPUs forgets NaN. Each column has another set of entries."""
    table = np.random.default_rng(1).normal(size=(16, 12)) * 4
    table = (table > 0 if dtype == "bool" else table).astype(jnp.dtype(dtype))
    if jnp.issubdtype(dtype, jnp.floating):
        table[3, 0] = table[:, 1] = np.nan
        table[:, 2], table[5, 3], table[:, 4] = np.inf, np.inf, -np.inf
        table[7, 5], table[:, 6] = -np.inf, -0.0
        table[9, 7], table[2, 7] = np.nan, -np.nan

    @tj.op(f"test-package.{how}_of_{dtype}.v1")
    def extreme(x):
        return getattr(jnp, how)(x, 0)

    extreme.def_sharding("i j -> j", merge=how)
    x = jax.device_put(table, jax.NamedSharding(mesh(), P("d")))
    got = np.asarray(jax.jit(extreme)(x)).astype(float)
    np.testing.assert_array_equal(got, getattr(np, how)(table.astype(float), 0))
    assert collectives(extreme, x) == {"all-reduce": 1}


def test_a_scope_with_64_bit_types_is_not_split():
    """XLA asks for the programs of devices in another thread, where the scope does not hold."""
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            x, y = placed("summed", (X.astype(float), Y.astype(float)))
            out = jax.jit(product)(x, y)
        assert out.dtype == np.float64
        np.testing.assert_allclose(out, X.astype(float) @ Y.astype(float), rtol=1e-12)
    finally:
        jax.config.update("jax_enable_x64", True)


TEXTS = [
    ("i k -> i j", "a term for each of 2 inputs"),
    ("i k, k j", "text such as"),
    (("i", "i"), "text such as"),
    ("i k, k -> i j", "a name for each axis, none twice"),
    ("i i, k j -> i j", "a name for each axis, none twice"),
    ("i k, k j -> i i", "a name for each axis, none twice"),
    ("i k, j k -> i j", "one size for all axes of a name"),
    ("..., ... -> ...", "one size for all axes of a name"),
]
FITTING = "i k, k j -> i j"
MISTAKEN = [(ShardingRule(factors, merge="sum"), text) for factors, text in TEXTS] + [
    (ShardingRule(FITTING, merge="mean"), "merge='mean'; needed one of"),
    (ShardingRule(FITTING, whole=("l",)), "not l"),
    (ShardingRule(FITTING, whole=(0,)), "not 0"),
    (FITTING, "a ShardingRule, or None"),
    (ShardingRule(FITTING, "sum", on_device=lambda s, x, y: (x,)), "merges by itself"),
    (ShardingRule(FITTING, on_device=3), "on_device=3 with merge=''"),
]


@pytest.mark.clause("X13.9")
@pytest.mark.parametrize(("rule", "text"), MISTAKEN)
def test_a_mistake_in_a_rule_is_named(rule, text):
    """Where it is first needed: on several devices."""

    class Mistaken(ExtensionOp):
        family_id = "test-package.mistaken.v1"
        input_count = 2

        def lower_to_standard_ops(self, x, y):
            return (x @ y,)

        def sharding_rule(self, inputs):
            return rule

    times = Mistaken()
    x, y = placed("rows", (np.ones((8, 4), np.float32), np.ones((4, 2), np.float32)))
    ends_in(lambda: jax.jit(lambda *xs: apply(times, *xs))(x, y), InvalidConfig, re.escape(text))
    assert apply(times, np.ones((8, 4)), np.ones((4, 2)))[0].shape == (8, 2)


@pytest.mark.clause("X13.9")
def test_a_sum_of_booleans_is_refused_and_their_maximum_is_or():
    (x,) = placed("summed", [X > 2])
    some = tj.op("test-package.some.v1")(lambda x: x.any(1))
    some.def_sharding("i j -> i", merge="sum")
    ends_in(lambda: jax.jit(some)(x), InvalidConfig, 'needed merge="max", which is "or"')
    some.def_sharding("i j -> i", merge="max")
    np.testing.assert_array_equal(jax.jit(some)(x), (X > 2).any(1))


MISTAKES = {
    "a name of several letters": (lambda s, x: s.merged("sum", x.sum(1), "cols"), "'c' of 'cols'"),
    "an unknown name": (lambda s, x: s.merged("sum", x.sum(1), ("z",)), "of the rule: rows, cols"),
    "an unknown merge": (lambda s, x: s.merged("mean", x.sum(1), ("cols",)), "given 'mean'"),
    "an unknown start": (lambda s, x: x.sum(1) + s.start("z"), "Shard.start: given 'z'"),
    "an unknown size": (lambda s, x: x.sum(1) * s.whole("z"), "Shard.whole: given 'z'"),
    "a result of another shape": (lambda s, x: x.sum(0), "on_device.*needed float32"),
    "a result of another dtype": (lambda s, x: x.sum(1).astype(int), "on_device.*needed float32"),
}


@pytest.mark.clause("X13.9")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_on_a_device_is_named(name):
    """XLA asks for the program of a device: its exception is JAX's own, with this text."""
    on_device, text = MISTAKES[name]
    (x,) = placed("rows and summed", [X])
    ends_in(lambda: jax.jit(total(on_device))(x), jax.errors.JaxRuntimeError, f"(?s){text}")


def test_a_device_may_merge_by_itself():
    (x,) = placed("rows and summed", [X])
    op = total(lambda s, x: s.merged("sum", x.sum(1), ("cols",)))
    near(jax.jit(op)(x), X.sum(1))
    near(jax.jit(jax.vmap(op))(jnp.stack([x, x])), np.stack([X.sum(1)] * 2))


def total(on_device):
    op = tj.op("test-package.total.v1")(lambda x: x.sum(1))
    op.def_sharding("rows cols -> rows", on_device=on_device)
    return op
