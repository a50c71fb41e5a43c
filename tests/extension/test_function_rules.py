"""What functions as ops take from their authors: shardings, kernels in training,
opaque linear maps, hijax primitives, residuals of any kind; and what they refuse. Which derivative
an op has: that of its body without a word, that of a rule, or an error that names it.
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
from jax.experimental import io_callback

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


# --- which derivative an op has; integers, which have none ----------------------------------------


AT = np.array([0.3, 1.2, -0.7])


# --- functions without a rule ---------------------------------------------------------------------


WEIGHTS = np.array([1.0, 2.0, 3.0])
PLAIN = {
    "elementwise": lambda x: jnp.sin(x) * WEIGHTS,
    "jit": jax.jit(lambda x: x**3),
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, length=3)[0],
    "custom_vjp inside": lambda x: reverse_sine(x) ** 2,
}


@jax.custom_vjp
def reverse_sine(x):
    return jnp.sin(x)


reverse_sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))


@pytest.mark.parametrize("name", PLAIN)
def test_jax_differentiates_a_function_without_a_rule(name):
    function = PLAIN[name]
    f = fresh(function)
    total = lambda f: lambda x: f(x).sum()
    want = function if name != "custom_vjp inside" else lambda x: jnp.sin(x) ** 2
    for change, x in (
        (jax.grad, AT),
        (lambda f: jax.jit(jax.vmap(jax.grad(f))), AT[:, None]),
        (jax.hessian, AT),
    ):
        got = change(total(f))(x)
        np.testing.assert_allclose(got, change(total(want))(x), rtol=1e-12, atol=1e-12)
    graph = tj.grad(tj.trace(total(f), AT))
    np.testing.assert_allclose(graph.to_jax()(AT), jax.grad(total(function))(AT), rtol=1e-12)


def test_a_rule_wins_over_the_body():
    square = lambda x: x * x
    seven = lambda p, o, t: 7 * t[0]
    forward = fresh(square)
    forward.defjvp(seven)
    reverse = fresh(square)
    reverse.defvjp(lambda x: (x * x, None), lambda r, g: (7 * g,))
    custom = jax.custom_jvp(square)
    custom.defjvp(lambda p, t: (square(*p), 7 * t[0]))
    for f in (forward, reverse, fresh(custom), fresh(jax.jit(jax.jit(custom)))):
        assert jax.grad(f)(3.0) == 7.0
    late = fresh(square)
    assert jax.grad(late)(3.0) == 6.0
    late.defjvp(seven)
    assert jax.grad(late)(3.0) == 7.0


def by_host(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.sin, like, x, vmap_method="sequential")


def nothing(**rules):
    f = fresh(lambda x: None)
    f.def_infer(lambda x: x)
    for name, given in rules.items():
        getattr(f, name)(given) if name == "def_host" else f.def_kernel("cpu")(given)
    return f


WITHOUT = {
    "derive=False": (lambda: fresh(jnp.sin, derive=False), "no jvp rule"),
    "def_host": (lambda: nothing(def_host=np.sin), "no jvp rule"),
    "kernel alone": (lambda: nothing(def_kernel=jnp.sin), "no jvp rule"),
    "pure_callback": (lambda: fresh(by_host), "code that JAX cannot differentiate"),
    "pure_callback in scan": (
        lambda: fresh(lambda x: jax.lax.scan(lambda c, _: (by_host(c), 0), x, length=1)[0]),
        "code that JAX cannot differentiate",
    ),
    "io_callback": (
        lambda: fresh(lambda x: io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)),
        "code that JAX cannot differentiate",
    ),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_jax_cannot_differentiate_asks_for_a_rule(name):
    make, given = WITHOUT[name]
    f = make()
    np.testing.assert_allclose(f(AT), np.sin(AT))
    for run in (
        lambda: jax.grad(lambda x: f(x).sum())(AT),
        lambda: jax.jit(jax.grad(lambda x: f(x).sum()))(AT),
        lambda: jax.jvp(f, (AT,), (AT,)),
        lambda: tj.grad(tj.trace(lambda x: f(x).sum(), AT)),
    ):
        error = ends_in(run, ADRuleError, given).value
        assert f.op.family_id in str(error)
        assert "@f.defjvp" in error.fix
    f.defjvp(lambda p, o, t: jnp.cos(p[0]) * t[0])
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(AT), np.cos(AT))


# --- rules that JAX cannot transpose --------------------------------------------------------------


@jax.custom_vjp
def twice(t):
    return 2 * t


twice.defvjp(lambda t: (2 * t, None), lambda _, g: (2 * g,))


def loop(t):
    return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, 2 * c[1]), (0, t))[1]


def function_with(rule):
    f = fresh(lambda x: 2 * x)
    f.defjvp(lambda p, o, t: rule(t[0]))
    return f


def class_with(rule):
    class Doubles(ExtensionOp):
        family_id = "test-derivatives.doubles.v1"

        def lower_to_standard_ops(self, x):
            return (2 * x,)

        def linearize(self, primals, outputs, tangents):
            return (rule(tangents[0]),)

    return lambda x: apply(Doubles(), x)[0]


def test_a_rule_that_calls_a_reverse_rule_has_both_modes():
    """Not only that rule: `bwd` and the transpose of a linear function may call one too."""
    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (jnp.cos(x) * g,))
    forward = fresh(lambda x: jnp.round(x))
    forward.defjvp(lambda p, o, t: sine(p[0]) * twice(t[0]))
    reverse = fresh(lambda x: jnp.round(x))
    reverse.defvjp(lambda x: (reverse(x), x), lambda x, g: (sine(x) * twice(g),))
    scaled = fresh(lambda x, y: jnp.sin(x) * 2 * y)
    scaled.def_transpose(lambda g, x, y: (None, sine(x) * twice(g)), argnums=1)
    for f in (forward, reverse):
        for order in (
            jax.hessian,
            lambda f: jax.jacfwd(jax.jacfwd(f)),
            lambda f: jax.jacrev(jax.grad(f)),
        ):
            found = jax.jit(order(lambda x: f(x).sum()))(AT)
            np.testing.assert_allclose(found, np.diag(2 * np.cos(AT)), rtol=1e-12)
    found = jax.hessian(lambda y: (scaled(AT, y) ** 2).sum())(AT)
    np.testing.assert_allclose(found, np.diag(8 * np.sin(AT) ** 2), rtol=1e-12)


@pytest.mark.parametrize(
    ("author", "rule"), [(function_with, loop), (class_with, loop), (class_with, twice)]
)
def test_a_rule_that_jax_cannot_transpose_has_forward_mode_alone(author, rule):
    f = author(rule)
    ends_in(
        (lambda: jax.grad(wrap(lambda x: f(x).sum()))(AT) for wrap in (jax.jit, lambda f: f)),
        (ValueError, NotImplementedError),
        "(?i)reverse-mode differentiation|must implement `transpose`",
    )
    close(
        (jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[1])(AT), 2 * AT),
        (jax.linearize(f, AT)[1](AT), 2 * AT),
        (jax.jacfwd(f)(AT), 2 * np.eye(3)),
    )


def test_a_forward_derivative_that_has_no_transpose_is_written_and_read():
    graph = tj.from_wire(tj.to_wire(tj.jvp(tj.trace(function_with(twice), AT))))
    np.testing.assert_allclose(graph.to_jax()(AT, AT)[1], 2 * AT)


def test_a_loop_of_unknown_length_has_forward_mode_alone():
    f = fresh(lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: 2 * y, x))
    x = np.array([1.0, 0.5])
    np.testing.assert_allclose(jax.jvp(f, (x,), (x,))[1], 8 * x)
    ends_in(lambda: jax.grad(lambda x: f(x).sum())(x), ValueError, "while_loop")


# --- integers -------------------------------------------------------------------------------------


def nearest_of_class():
    class Near(ExtensionOp):
        family_id = "test-derivatives.near.v1"

        def lower_to_standard_ops(self, q):
            return (jnp.argmin(q).astype("int32"),)

    return lambda q: apply(Near(), q)[0]


def nearest_of_host():
    near = fresh(lambda q: None)
    near.def_infer(lambda q: jax.ShapeDtypeStruct((), "int32"))
    near.def_host(lambda q: np.argmin(q).astype("int32"))
    return near


NEAREST = {
    "function": lambda: fresh(lambda q: jnp.argmin(q).astype("int32")),
    "function without derivative": lambda: fresh(
        lambda q: jnp.argmin(q).astype("int32"), derive=False
    ),
    "class": nearest_of_class,
    "host": nearest_of_host,
}
Q = np.array([2.0, 0.5, 1.0])


@pytest.mark.parametrize("name", NEAREST)
def test_integers_need_no_rule(name):
    near = NEAREST[name]()
    f = lambda q: q[near(q)] ** 2
    want = np.array([0.0, 1.0, 0.0])
    for run in (
        lambda: jax.grad(f)(Q),
        lambda: jax.jit(jax.grad(f))(Q),
        lambda: jax.vmap(jax.grad(f))(Q[None])[0],
        lambda: jax.grad(lambda q: jax.vmap(f)(q[None])[0])(Q),
        lambda: jax.grad(lambda q: jax.lax.scan(lambda c, _: (c, f(c)), q, length=1)[1][0])(Q),
        lambda: jax.grad(jax.checkpoint(f))(Q),
        lambda: tj.grad(tj.trace(f, Q)).to_jax()(Q),
        lambda: jax.linear_transpose(jax.linearize(f, Q)[1], Q)(1.0)[0],
    ):
        np.testing.assert_array_equal(run(), want)
    assert jax.jvp(f, (Q,), (Q,))[1] == 2 * 0.5 * 0.5
    out, tangent = jax.jvp(near, (Q,), (Q,))
    assert out == 1
    assert tangent.dtype == jax.dtypes.float0
    out, pull = jax.vjp(near, Q)
    (back,) = pull(np.zeros((), jax.dtypes.float0))
    equal((back, np.zeros(3)), (tj.jvp(tj.trace(f, Q)).to_jax()(Q, Q)[1], 0.5))


def mixed_rules():
    body = lambda x: (3 * x, (x > 0).sum(), x > 0)
    forward, reverse, linear = fresh(body), fresh(body), fresh(body)
    forward.defjvp(lambda p, o, t: (3 * t[0], None, None))
    reverse.defvjp(lambda x: (body(x), None), lambda _, g: (3 * g[0],))
    linear.def_transpose(lambda y, x: (3 * y[0],))
    return {"derived": fresh(body), "defjvp": forward, "defvjp": reverse, "def_transpose": linear}


@pytest.mark.parametrize("name", ["derived", "defjvp", "defvjp", "def_transpose"])
def test_integers_beside_floats(name):
    f = mixed_rules()[name]
    loss = lambda x: jnp.where(f(x)[2], f(x)[0] * 2, 0.0).sum()
    want = 2 * 3.0 * (AT > 0)
    close(
        *((run(loss)(AT), want) for run in (jax.grad, lambda f: jax.jit(jax.grad(f)))),
        (jax.vmap(jax.grad(loss))(AT[None])[0], want),
        (tj.grad(tj.trace(loss, AT)).to_jax()(AT), want),
    )
    tangents = jax.jvp(f, (AT,), (AT,))[1]
    np.testing.assert_allclose(tangents[0], 3 * AT)
    chex.assert_trees_all_equal([t.dtype for t in tangents[1:]], [jax.dtypes.float0] * 2)
    np.testing.assert_allclose(jax.linearize(f, AT)[1](AT)[0], 3 * AT)
