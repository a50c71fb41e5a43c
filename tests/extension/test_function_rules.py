"""What functions as ops take from their authors: shardings, kernels in training, opaque linear maps,
hijax primitives, residuals of any kind; and what they refuse.
"""

import collections
import copy
import itertools
import pickle

import chex
import jax
import jax.experimental.hijax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import ADRuleError, InvalidConfig, Unsupported
from tenferro_jax.extension import ExtensionOp, apply, require_equal

from ..helpers import close, each_ends_in, ends_in, equal, fresh

X = np.array([0.3, -1.2, 2.0])


Y = np.array([1.5, 0.5, -0.7])


XS = np.stack([X, Y, X * Y, Y - 2])


CPU = jax.default_backend() if jax.default_backend() != "gpu" else "cuda"


def test_a_batch_is_computed_as_the_function_says():
    body, sizes = jax.custom_batching.custom_vmap(jnp.sin), []
    body.def_vmap(lambda size, in_batched, x: sizes.append(size) or (jnp.sin(x), True))
    f = fresh(body)
    f.defjvp(lambda primals, outputs, tangents: jnp.cos(primals[0]) * tangents[0])
    close(
        (jax.vmap(f)(XS), np.sin(XS)),
        (jax.grad(lambda x: jax.vmap(f)(x).sum())(XS), np.cos(XS)),
    )
    assert set(sizes) == {4}


@pytest.mark.cpu
def test_shardings_of_the_results_on_an_explicit_mesh():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    split = jax.sharding.auto_axes(lambda x: x.reshape(-1), out_sharding=jax.P("d"))
    flat = fresh(lambda x: {"flat": x.reshape(-1), "sum": x.sum()})
    flat.defvjp(
        lambda x: ({"flat": split(x), "sum": x.sum()}, x),
        lambda x, g: (g["flat"].reshape(x.shape) + g["sum"],),
    )
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(8.0).reshape(2, 4), jax.P(None, "d"))
        ends_in(lambda: jax.jit(flat)(x), InvalidConfig, "def_sharding")
        flat.def_sharding("i j -> ij, ")
        np.testing.assert_array_equal(jax.jit(flat)(x)["flat"], np.arange(8.0))
        slope = jax.jit(jax.grad(lambda x: (flat(x)["flat"] ** 2).sum()))(x)
        equal(
            (slope, 2 * np.arange(8.0).reshape(2, 4)),
            (jax.jit(fresh(lambda x: split(x)))(x), np.arange(8.0)),
        )
    ends_in(lambda: fresh(jnp.ravel).def_sharding(jnp.ravel), InvalidConfig, "text such as")


def test_sizes_that_must_be_equal():
    @fresh
    def checked(x, y):
        require_equal(x.shape[0], y.shape[0])
        return x

    n, m = jax.export.symbolic_shape("n, m")
    graph = tj.trace(checked, *[jax.ShapeDtypeStruct((size,), np.float64) for size in (n, m)])
    assert len(graph.guards) == 1
    np.testing.assert_array_equal(graph.to_jax()(X, Y), X)
    specs = [jax.ShapeDtypeStruct((size,), np.float64) for size in (n, m)]
    for outer in (
        fresh(lambda x, y: 2 * checked(x, y)),
        jax.jit(fresh(lambda x, y: checked(x, y))),
    ):
        assert [str(guard) for guard in tj.trace(outer, *specs).guards] == ["m == n"]
    ends_in(lambda: checked(X, Y[:2]), InvalidConfig, r"in checked|of checked")


def test_the_kernels_of_a_pair_run_in_training():
    """Values and cotangents by kernels on this platform, by plain JAX elsewhere and in exports."""
    runs = collections.Counter()

    def counted(name, function, like):
        def run(*xs):
            host = lambda *xs: runs.update([name]) or jax.tree.map(np.asarray, function(*xs))
            return jax.pure_callback(host, like(xs[-1]), *xs, vmap_method="sequential")

        return run

    reference = lambda x: (jnp.tanh(x), 1 - jnp.tanh(x) ** 2)
    run_fwd, run_bwd = fresh(reference), fresh(lambda slope, g: slope * g)
    two = lambda x: (np.tanh(x), 1 - np.tanh(x) ** 2)
    run_fwd.def_kernel(CPU)(counted("fwd", two, lambda x: (x, x)))
    run_bwd.def_kernel(CPU)(counted("bwd", np.multiply, lambda x: x))
    run_bwd.def_transpose(lambda y, slope, g: (None, run_bwd(slope, y)), argnums=1)
    layer = fresh(lambda x: run_fwd(x)[0])
    layer.defvjp(run_fwd, lambda slope, g: (run_bwd(slope, g),))

    slope = 1 - np.tanh(X) ** 2
    for run in (lambda f: f, jax.jit):
        np.testing.assert_allclose(run(jax.grad(lambda x: layer(x).sum()))(X), slope, rtol=1e-12)
    assert runs["fwd"] >= 2
    assert runs["bwd"] >= 2
    np.testing.assert_allclose(jax.jvp(layer, (X,), (Y,))[1], slope * Y, rtol=1e-12)
    runs.clear()
    spec = jax.ShapeDtypeStruct((3,), np.float64)
    program = tj.export(layer, spec, vjp_order=1, platforms=("cpu",))
    np.testing.assert_allclose(jax.grad(lambda x: program.call(x).sum())(X), slope, rtol=1e-12)
    assert not runs


def test_the_functions_that_a_rule_calls_have_derivatives_of_any_order():
    both, slopes = fresh(lambda x: (jnp.sin(x), jnp.cos(x))), fresh(lambda slope, g: (slope * g,))
    sine = fresh(lambda x: both(x)[0])
    sine.defvjp(both, slopes)
    for first, second in itertools.product((jax.jacfwd, jax.jacrev), repeat=2):
        np.testing.assert_allclose(first(second(sine))(0.5), -np.sin(0.5))
        np.testing.assert_allclose(jax.jit(second(first(second(sine))))(0.5), -np.cos(0.5))
    ends_in(
        lambda: jax.linear_transpose(lambda x: both(x)[0], 0.5)(1.0), ADRuleError, "no transpose"
    )


def hi_sine(**rules):
    """A hijax primitive, under the name that it has in this JAX."""
    base = getattr(jax.experimental.hijax, "HiPrim", None) or jax.experimental.hijax.VJPHiPrimitive

    def init(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        base.__init__(self)

    return type("HiSine", (base,), {"__init__": init, "expand": lambda self, x: jnp.sin(x)} | rules)


REVERSE = {
    "vjp_fwd": lambda self, nonzero, x: (self(x), x),
    "vjp_bwd_retval": lambda self, x, g: (jnp.cos(x) * g,),
}


FORWARD = {"jvp": lambda self, p, t: (self(*p), jnp.cos(p[0]) * t[0])}


@pytest.mark.parametrize("rules", [REVERSE, REVERSE | FORWARD], ids=["reverse", "both"])
def test_a_hijax_primitive_is_derived(rules):
    """With a reverse rule alone it gets forward mode too."""
    primitive = hi_sine(**rules)
    f = fresh(lambda x: primitive(jax.typeof(x))(x) ** 2)
    want = lambda x: jnp.sin(x) ** 2
    x = jnp.asarray(X)
    for change in (
        lambda f: f,
        lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
        lambda f: lambda x: jax.jvp(f, (x,), (2 * x,)),
    ):
        chex.assert_trees_all_close(change(f)(x), change(want)(x), rtol=1e-12)
    wanted = "given .*HiSine.*needed a function"
    ends_in(lambda: fresh(primitive(jax.typeof(x))), InvalidConfig, wanted)


Kept = collections.namedtuple("Kept", "x y")


def test_residuals_of_any_pytree_class():
    f = fresh(lambda x, y: jnp.sin(x) * y)
    f.defvjp(
        lambda x, y: (jnp.sin(x) * y, {1: Kept(x, [y]), 2: jax.tree_util.Partial(jnp.sin, x)}),
        lambda r, g: (jnp.cos(r[1].x) * r[1].y[0] * g, r[2]() * g),
    )
    want = lambda x, y: jnp.sin(x) * y
    for change in (
        lambda f: jax.jit(jax.grad(lambda x, y: f(x, y).sum(), (0, 1))),
        lambda f: jax.jit(jax.hessian(lambda x, y: f(x, y).sum())),
        lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    ):
        chex.assert_trees_all_close(change(f)(X, Y), change(want)(X, Y), rtol=1e-12, atol=1e-15)
    tangent = tj.trace(lambda x, d: jax.jvp(lambda x: f(x, Y), (x,), (d,))[1], X, X)
    ends_in(lambda: tj.to_wire(tangent), Unsupported, "residuals in a pytree class")


def test_a_result_may_be_a_random_key():
    drawn = lambda key, x: (x * jax.random.normal(key, x.shape), jax.random.split(key)[0])
    f, key = fresh(drawn), jax.random.key(0)
    f.defvjp(lambda key, x: (drawn(key, x), key), lambda key, g: (None, drawn(key, g[0])[0]))
    for change in (jax.grad, jax.hessian):
        found, want = (change(lambda x: (f(key, x)[0] ** 2).sum())(X) for f in (f, drawn))
        chex.assert_trees_all_close(found, want, rtol=1e-12)


def test_a_cotangent_takes_the_dtype_of_its_argument():
    f = fresh(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), lambda x, g: ((2 * x * g).astype(jnp.bfloat16),))
    x = jnp.float32([1.0, 2.0])
    assert jax.grad(lambda x: f(x).sum())(x).dtype == jnp.float32
    assert jax.jvp(f, (x,), (x,))[1].dtype == jnp.float32
    narrow = fresh(lambda x: x * x)
    narrow.defvjp(lambda x: (x * x, x), lambda x, g: ((x * g).astype(jnp.complex64),))
    ends_in(
        lambda: jax.grad(lambda x: narrow(x).sum())(x),
        InvalidConfig,
        r"bwd, which returned complex64\[2\] as cotangent 0; needed float32\[2\]",
    )


@tj.op("test-rules.doubled.v1")
def doubled(x):
    return 2 * x


def test_a_function_op_is_pickled_and_copied_as_a_function():
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled


def set_rule(**rules):
    def made(f):
        for name, rule in rules.items():
            getattr(f, name)(*rule if isinstance(rule, tuple) else (rule,))
        return f

    return made


SQUARE = lambda x: (x * x, 2 * x)


SLOPE = lambda f: jax.grad(lambda x: f(x).sum())(X)


@pytest.mark.parametrize(
    ("body", "rules", "call", "given"),
    [
        (lambda x: None, {}, lambda f: f(X), "no result; needed arrays. Return the result"),
        (lambda x: "abc", {}, lambda f: f(X), "the function, which returned 'abc'"),
        (jnp.sin, {"defjvp": lambda p, o, t: None}, SLOPE, "defjvp, which returned None"),
        (jnp.sin, {"defvjp": (lambda x: x, lambda r, g: (g,))}, SLOPE, "fwd, which returned float"),
        (
            jnp.sin,
            {"defvjp": (lambda x: (x.sum(), x), lambda r, g: (g,))},
            SLOPE,
            r"fwd of .*float64\[\]; needed one whose first outputs are float64\[3\]",
        ),
        (
            jnp.sin,
            {"defvjp": (lambda x: (x, object()), lambda r, g: (g,))},
            SLOPE,
            "fwd, .*returned <object object",
        ),
        (jnp.sin, {"defvjp": (SQUARE, lambda r, g: (g[0],))}, SLOPE, r"bwd, .*float64\[\] as"),
        (jnp.sin, {"defvjp": (SQUARE, lambda r, g: ("a",))}, SLOPE, "bwd, which returned 'a'"),
        (jnp.sin, {"defvjp": (SQUARE, lambda r, g: r * g)}, SLOPE, "bwd, which returned"),
        (jnp.sin, {"defvjp": (SQUARE, lambda r, g: (r * g, r))}, SLOPE, "bwd, which returned"),
        (
            jnp.sin,
            {"defvjp": (SQUARE, lambda r, g: ([r * g],))},
            SLOPE,
            "bwd, which returned for argument 0 ",
        ),
        (jnp.sin, {"def_infer": lambda x: None}, lambda f: f(X), "def_infer, which returned None"),
        (jnp.sin, {"def_infer": lambda x: (x.dtype, 3)}, lambda f: f(X), "def_infer, which ret"),
    ],
)
def test_mistakes_are_named_with_the_function_and_its_line(body, rules, call, given):
    def function(x):
        return body(x)

    f = set_rule(**rules)(fresh(function))
    error = ends_in(lambda: call(f), (InvalidConfig, ADRuleError), given)
    assert "function (test_function_rules.py:" in str(error.value)
    assert "lower_to_standard_ops" not in str(error.value)


def test_other_mistakes():
    @fresh
    def function(x, *, t: float = 1.0):
        return t * x

    each_ends_in(
        (
            lambda: jax.jit(function)(X, t=2.0),
            InvalidConfig,
            r"function \(.*given a traced value as t; .*op\(id\)\(lambda x, t: f\(x, t\)\)\. Under jax.jit static_argnames",
        ),
        (lambda: function(X, t=[1.0]), InvalidConfig, "function payload .*field t: "),
    )
    two = lambda a, x: a @ x
    transpose = lambda y, a, x: (None, y)
    ends_in(
        (
            lambda: fresh(two).def_transpose(transpose, argnums=argnums)
            for argnums in (2, -3, "x", (0, 5))
        ),
        InvalidConfig,
        "of def_transpose; needed numbers of 2 arguments",
    )
    last = fresh(two)
    last.def_transpose(lambda y, a, x: (None, a.T @ y), argnums=-1)
    np.testing.assert_allclose(jax.grad(lambda x: last(XS, x).sum())(X), XS.sum(0), rtol=1e-12)

    one = lambda self, x: (x,)

    class Inner(ExtensionOp):
        family_id = "test-rules.inner.v1"
        lower_to_standard_ops = one

    inside = fresh(lambda x: apply(Inner(), x)[0])
    ends_in(
        lambda: inside(X), InvalidConfig, r"<lambda> \(test_function_rules.py.*test-rules.inner"
    )


def test_a_bwd_without_derivatives_says_so():
    @fresh
    def opaque(x):
        return jnp.sin(x)

    cosine = lambda x, g: jax.pure_callback(
        lambda x, g: np.cos(x) * g, x, x, g, vmap_method="sequential"
    )
    opaque.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (cosine(x, g),))
    np.testing.assert_allclose(SLOPE(opaque), np.cos(X))
    loss = lambda x: opaque(x).sum()
    ends_in(lambda: jax.hessian(loss)(X), Unsupported, r"forward mode of opaque \(test_function")
    refused = ends_in(lambda: jax.jacrev(jax.grad(loss))(X), ValueError, "do not support JVP")
    assert any("bwd of opaque (test_function_rules.py" in n for n in refused.value.__notes__)


def test_an_op_is_found_again_by_its_values_and_not_by_their_numbers():
    """Eager calls keep the ops they made."""

    def over(x, *, t: float | int):
        return x / t

    f = fresh(over)
    x = jnp.ones(2)
    for t, want in ((0.0, np.inf), (-0.0, -np.inf), (1, 1.0), (1.0, 1.0)):
        equal(*((f(x, t=t), [want, want]) for _ in range(2)))
    times = fresh(lambda x: x * 2)
    assert times(jnp.ones(2, "int32")).dtype == jnp.int32
    assert times(jnp.ones(2, "float32")).dtype == jnp.float32
    times.def_kernel(CPU)(lambda x: x * 3)
    np.testing.assert_array_equal(times(jnp.ones(2)), [3.0, 3.0])


def huber(width_first=False):
    """A jax.custom_vjp with a width that is no array, whose fwd calls it by name."""

    def value(x, width):
        return jnp.where(abs(x) < width, x * x / 2, width * (abs(x) - width / 2))

    swapped = (lambda width, x: value(x, width)) if width_first else value
    f = jax.custom_vjp(swapped, nondiff_argnums=(0 if width_first else 1,))
    name = {"f": f}
    at = (lambda x, w: (w, x)) if width_first else (lambda x, w: (x, w))

    def fwd(*args):
        x, width = args[::-1] if width_first else args
        return name["f"](*at(x, width)), jnp.clip(x, -width, width)

    f.defvjp(fwd, lambda width, slope, g: (slope * g,))
    return name, at


@pytest.mark.parametrize("width_first", [False, True])
def test_payload_in_its_old_place(width_first):
    """So that a fwd which calls its function by name still fits when that name is the op."""
    name, at = huber(width_first)
    name["f"] = f = tj.op(f"test-functions.huber_{width_first}.v1")(name["f"])
    for x in (0.3, 3.0):
        assert f(*at(x, 1.0)) == f(x, width=1.0)
        for order, want in ((jax.grad, np.clip(x, -1, 1)), (jax.hessian, float(x < 1))):
            assert order(lambda x: f(*at(x, 1.0)))(x) == pytest.approx(want)
            assert order(lambda x: f(x, width=1.0))(x) == pytest.approx(want)
    for args, payload, said in (
        (at(0.3, 1.0), {"width": 2.0}, "by position and by keyword"),
        ((0.3, 1.0, 2.0), {}, "given 3 arguments by position"),
        ((), {"x": 0.3, "width": 1.0}, "Pass arrays by position"),
    ):
        ends_in(lambda: f(*args, **payload), InvalidConfig, said)
    ends_in(lambda: jax.jit(f)(*at(0.3, 1.0)), InvalidConfig, "given a traced value as width")


def test_a_result_among_the_residuals_under_another_name():
    """fwd calls the jax.custom_vjp itself, which has no forward mode."""
    f = jax.custom_vjp(lambda x, n: (jnp.exp(x), n + 1))

    def fwd(x, n):
        y, m = f(x, n)
        return (y, m), (y, m)

    f.defvjp(fwd, lambda kept, g: (kept[0] * g[0], None))
    op = tj.op("test-functions.exp_kept.v1")(f)

    def value(x):
        return op(x, 3)[0]

    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(outer(inner(value))(0.5), np.exp(0.5), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.hessian(value))(X), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize(("calls", "plain"), [(True, 18), (False, -6)])
def test_a_second_derivative_applies_the_rule_again(calls, plain):
    """As docs/guides/reverse_rule.md says; JAX does so where fwd calls the function."""
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (f(x) if calls else x, None), lambda _, g: (-3.0 * g,))
    slopes = [jax.grad(jax.grad(lambda x, h=h: h(x) ** 2))(2.0) for h in (f, fresh(f))]
    assert slopes == [plain, 18]
