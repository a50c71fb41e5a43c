"""`both_modes`: every case is judged by the same function without jax.custom_vjp, and reverse mode by
that of the function itself, to the bit.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from jax.custom_derivatives import SymbolicZero
from jax.experimental import jet

import tenferro_jax as tj
from tenferro_jax import both_modes
from tenferro_jax.errors import InvalidConfig, Unsupported
from tests.helpers import ends_in

X = jnp.array([0.3, 0.7, 1.1])


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_vjp
def product(x, y):
    return x * y * y


product.defvjp(
    lambda x, y: (product(x, y), (x, y)),
    lambda r, g: (double(g) * r[1] ** 2 / 2, 2 * g * r[0] * r[1]),
)


@jax.custom_vjp
def double(x):
    return 2 * x


double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


def by_rule(sine, product):
    """A jax.custom_jvp whose rule calls them."""
    f = jax.custom_jvp(lambda x: sine(x))
    f.defjvp(lambda p, t: (f(p[0]), jnp.cos(p[0]) * t[0] + 0 * product(p[0], p[0])))
    return f


PLACES = {
    "plain": lambda s, p: lambda x: (s(x) * p(x, x)).sum(),
    "jit": lambda s, p: lambda x: jax.jit(lambda x: s(x) * jax.nn.softplus(s(x)))(x).sum(),
    "scan": lambda s, p: lambda x: jax.lax.scan(lambda c, a: (s(c) * a, p(c, c)), x, X[:2])[0].sum(),
    "fori": lambda s, p: lambda x: jax.lax.fori_loop(0, 3, lambda i, c: p(c, s(x)) + 0.1, x).sum(),
    "cond": lambda s, p: lambda x: jax.lax.cond(x[0] > 0, lambda x: p(x, x), s, x).sum(),
    "checkpoint": lambda s, p: lambda x: jax.checkpoint(lambda x: p(s(x), x))(x).sum(),
    "vmap": lambda s, p: lambda x: jax.vmap(p, in_axes=(0, None))(x, s(x[1])).sum(),
    "named vmap": lambda s, p: lambda x: jax.vmap(
        lambda a: s(a) * jax.lax.psum(p(a, a), "i"), axis_name="i"
    )(x).sum(),
    "solve": lambda s, p: lambda x: jax.lax.custom_linear_solve(
        lambda v: v * (2 + s(x)), x, lambda mv, b: b / (2 + jnp.sin(x)), symmetric=True
    ).sum(),
    "custom_jvp": lambda s, p: lambda x: by_rule(s, p)(x).sum() + s(x).sum(),
    "grad inside": lambda s, p: lambda x: jax.grad(lambda x: p(s(x), x).sum())(x).sum(),
    "closed over": lambda s, p: lambda x: jax.vmap(lambda a: s(a * x).sum())(x).sum(),
}  # fmt: skip
ASKED = {
    "value": lambda f: f,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "hessian": jax.hessian,
    "jacfwd twice": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "grad of jvp": lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (x,))[1]),
    "third": lambda f: jax.jacfwd(jax.hessian(f)),
    "vmap of hessian": lambda f: lambda x: jax.vmap(jax.hessian(f))(jnp.stack([x, 2 * x])),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("place", PLACES)
def test_forward_mode_is_that_of_the_function_without_the_rule(place, asked):
    f, plain = PLACES[place](sine, product), PLACES[place](jnp.sin, lambda x, y: x * y * y)
    found, wanted = (jax.jit(ASKED[asked](g))(X) for g in (both_modes(f), plain))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), found, wanted)


@pytest.mark.few(6)
@pytest.mark.parametrize("place", PLACES)
def test_reverse_mode_is_that_of_the_function_to_the_bit(place):
    f = PLACES[place](sine, product)
    for way in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        assert way(both_modes(f))(X).tobytes() == way(f)(X).tobytes()


def test_the_jvp_of_the_function_itself_is_still_refused():
    both_modes(sine)(X)
    with pytest.raises(TypeError, match="jvp"):
        jax.jvp(sine, (X,), (X,))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def nested(fn, d, n, k):
    return {"a": fn(d["u"]) * d["v"] * k, "n": n + 1}


nested.defvjp(
    lambda fn, d, n, k: (nested(fn, d, n, k), d),
    lambda fn, k, d, g: (
        {"u": g["a"] * jnp.cos(d["u"]) * d["v"] * k, "v": g["a"] * fn(d["u"]) * k},
        None,
    ),
)


def test_trees_integers_and_what_is_no_array():
    d, n = {"u": X, "v": 2 * X}, jnp.arange(3)
    zeros = np.zeros(3, jax.dtypes.float0)
    g = both_modes(lambda d, n, k=1.0: nested(jnp.sin, d, n, k))
    plain = lambda d, n: {"a": jnp.sin(d["u"]) * d["v"] * 2, "n": n + 1}
    found = jax.jvp(lambda d, n: g(d, n, k=2.0), (d, n), (d, zeros))
    wanted = jax.jvp(plain, (d, n), (d, zeros))
    np.testing.assert_allclose(found[1]["a"], wanted[1]["a"], rtol=1e-6)
    assert (found[0]["n"].tolist(), found[1]["n"].dtype) == ([1, 2, 3], jax.dtypes.float0)
    assert jax.grad(both_modes(lambda x: (sine(x), "text")), has_aux=True)(0.0) == (1, "text")
    for f in (sine, by_rule(sine, product)):  # JAX hands Python numbers on to their rules
        once = lambda x, f=f: jax.jvp(both_modes(f), (x,), (1.0,))[1]
        np.testing.assert_allclose(
            [once(0.3), jax.jit(once)(0.3), *jax.jvp(once, (0.3,), (1.0,))],
            [np.cos(0.3)] * 3 + [-np.sin(0.3)],
            rtol=1e-6,
        )


@pytest.mark.parametrize("number", [2, 2.5])
def test_a_python_number_stays_weak_in_the_rules(number):
    """Beside float16, a strong number of 64 bits would be computed in another dtype: strict
    promotion refuses it.
    """
    f = jax.custom_vjp(lambda x, w: x * w)
    f.defvjp(lambda x, w: (f(x, w), (x, w)), lambda kept, g: (g * kept[1], None))
    x = jnp.asarray([0.5, 3.0], jnp.float16)
    both = both_modes(f)
    for wrap in [jax.jit, lambda g: g]:
        slopes = wrap(jax.grad(lambda x: both(x, number).sum()))(x)
        moved = wrap(lambda x: jax.jvp(lambda x: both(x, number), [x], [x]))(x)[1]
        expected = jax.grad(lambda x: f(x, number).sum())(x)
        assert slopes.dtype == moved.dtype == jnp.float16
        np.testing.assert_array_equal(slopes, expected)
        np.testing.assert_array_equal(moved, np.float16(number) * np.asarray(x))


def test_a_tangent_that_is_a_python_number_stays_weak():
    f = jax.custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), lambda x, g: (2 * x * g,))
    _, moved = jax.jvp(both_modes(f), (3.0,), (1.0,))
    assert (moved * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("mode", ["grad", "jvp"])
def test_a_rule_that_closes_over_what_an_inner_vmap_traces_is_named(mode):
    """jax.grad(jax.jit(loss)) is refused too, but names nothing."""

    def weighted(x, w):
        by_w = jax.custom_vjp(lambda x: jnp.sin(x) * w)
        by_w.defvjp(lambda x: (jnp.sin(x) * w, x), lambda x, g: (jnp.cos(x) * g,))
        return by_w(x)

    w = np.array([3.0, 4.0])
    loss = both_modes(lambda x: jax.vmap(weighted)(x, w).sum())
    x = np.array([1.0, 2.0])
    call = {"grad": lambda: jax.grad(loss)(x), "jvp": lambda: jax.jvp(loss, (x,), (x,))}[mode]
    ends_in(call, Unsupported, r"test_both_modes\.py:\d+.*closes over.*as an argument")


def test_symbolic_zeros_reach_the_rules():
    seen = []

    @jax.custom_vjp
    def f(x, y):
        return x * y, jnp.sin(y)

    def fwd(x, y):
        return (x.value * y.value, jnp.sin(y.value)), (x.value, y.value, y.perturbed)

    def bwd(residuals, g):
        x, y, perturbed = residuals
        seen.append((perturbed, [isinstance(c, SymbolicZero) for c in g]))
        a, b = (jnp.zeros_like(x) if isinstance(c, SymbolicZero) else c for c in g)
        return a * y, a * x + b * jnp.cos(y)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    loss = lambda x: f(x, X)[0].sum()
    for reverse in (jax.grad(both_modes(loss)), jax.grad(loss)):
        assert reverse(X).tobytes() == X.tobytes()
        assert seen[-1] == (False, [False, True])
    np.testing.assert_allclose(jax.jvp(both_modes(loss), (X,), (X,))[1], (X * X).sum(), rtol=1e-6)


def test_tracers_of_outer_transforms_may_be_closed_over():
    outer = lambda s, both: lambda y: jax.jvp(both(lambda x: s(x * y).sum()), (X,), (X,))[1]
    wanted = jax.hessian(outer(jnp.sin, lambda f: f))(2.0)
    np.testing.assert_allclose(
        jax.hessian(both_modes(outer(sine, both_modes)))(2.0), wanted, rtol=1e-5
    )
    alone = lambda y: both_modes(lambda: sine(y).sum())()
    np.testing.assert_allclose(jax.hessian(alone)(X), jnp.diag(-jnp.sin(X)), rtol=1e-5)


def test_a_signature_is_traced_once_and_arrays_may_be_donated():
    traced = []

    def f(x):
        traced.append(x)
        return sine(x).sum()

    g = jax.jit(jax.hessian(both_modes(f)))
    for x in (X, 2 * X):
        np.testing.assert_allclose(g(x), jnp.diag(-jnp.sin(x)), rtol=1e-5, atol=1e-9)
    assert len(traced) == 1
    given = X + 0
    jax.jit(lambda x: jax.jvp(both_modes(sine), (x,), (x,))[1], donate_argnums=0)(given)
    assert given.is_deleted()


def test_what_is_not_traced_is_called_as_it_is():
    f = lambda x, y: sine(x) if y > 0 else x
    assert both_modes(f)(X, 1.0).tobytes() == sine(X).tobytes()
    slopes = jax.jacfwd(both_modes(f))(X, np.float32(1))
    np.testing.assert_allclose(slopes, jnp.diag(jnp.cos(X)), rtol=1e-6)


def test_effects_stay(capfd):
    @jax.custom_vjp
    def f(x):
        jax.debug.print("value")
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    jax.jit(lambda x: both_modes(f)(x) * 0)(X).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out == "value\n"


def test_series():
    f = lambda s: lambda x: s(x) * x
    series = ((X, X, X),)
    found, wanted = (jet.jet(g, (X,), series) for g in (both_modes(f(sine)), f(jnp.sin)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(check_vma):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    make = lambda s: lambda x: jax.shard_map(
        lambda x, y: jax.lax.psum((s(x) * s(y)).sum(), "d"),
        mesh=mesh, in_specs=(jax.P("d"), jax.P()), out_specs=jax.P(), check_vma=check_vma,
    )(x, x)  # fmt: skip
    found, wanted = (jax.jit(jax.hessian(f))(X) for f in (both_modes(make(sine)), make(jnp.sin)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# --- rules that JAX cannot transpose --------------------------------------------------------------


@jax.custom_vjp
def clipped(x):
    return x * x


clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))


@jax.custom_vjp
def on_host(x):
    return jax.pure_callback(np.sin, x, x, vmap_method="sequential")


on_host.defvjp(
    lambda x: (on_host(x), x),
    lambda x, g: (
        jax.pure_callback(lambda x, g: g * np.cos(x), x, x, g, vmap_method="sequential"),
    ),
)


@pytest.mark.parametrize("way", [lambda f: f, jax.jit])
def test_a_rule_that_is_not_linear_is_named_with_its_line(way):
    with pytest.raises(
        Unsupported, match=r"forward mode of clipped \(test_both_modes.py:\d+\)"
    ) as e:
        way(lambda x: jax.jvp(both_modes(clipped), (x,), (x,)))(X)
    assert "opaque=" in e.value.fix
    assert "def_transpose" in e.value.fix


def of_rule(bwd):
    """x, whose derivative says something else."""
    f = jax.custom_vjp(lambda x: x * 1)
    f.defvjp(lambda x: (x * 1, x), lambda x, g: (bwd(x, g),))
    return f


TERM = of_rule(lambda x, g: g)  # in a bwd, a function with a rule of its own
SHIFT = tj.op("tests.shift.v1")(lambda x: x + 1)
BWDS = {  # whether it is linear -> of x and a cotangent
    False: [
        lambda x, g: g + 0.1 * x,
        lambda x, g: jax.jit(jnp.add)(g, x),
        lambda x, g: x.at[:].add(g),
        lambda x, g: TERM(g + x),
        lambda x, g: SHIFT(g) * x,
        lambda x, g: x,
        lambda x, g: jnp.ones_like(g),
        lambda x, g: (8 * g).astype(jnp.int8).astype(g.dtype),
        lambda x, g: (g > 0).astype(g.dtype),
        lambda x, g: g / jnp.maximum(1, jnp.linalg.norm(g)),
        lambda x, g: jnp.where(x > 0, g, 1),
        lambda x, g: g.at[0].set(5),
        lambda x, g: jnp.append(g[:2], 1),
        lambda x, g: jnp.pad(g[:2], (0, 1), constant_values=1),
        lambda x, g: jax.lax.fori_loop(0, 3, lambda i, c: 2 * c + x, g),
        lambda x, g: jax.lax.scan(lambda c, y: ((c[1], y), c[0]), (0.0, 1.0), g)[1],
        lambda x, g: jax.lax.cond(x[0] > 0, lambda g: g, lambda g: g + 1, g),
    ],
    True: [
        lambda x, g: jnp.zeros_like(g),
        lambda x, g: g + np.zeros(3),
        lambda x, g: TERM(g * x),
        lambda x, g: jnp.select([x > 0, x < -1], [g, 2 * g], 0),
        lambda x, g: g.at[0].set(0),
        lambda x, g: jnp.zeros(3).at[jnp.array([0, 1, 1])].add(g),
        lambda x, g: jnp.pad(g[:2], (0, 1)),
        lambda x, g: jax.lax.fori_loop(0, 3, lambda i, c: 2 * c * x, g),
        lambda x, g: jax.lax.scan(lambda c, y: (0.5 * c + y, c), 0.0, g)[1],
        lambda x, g: jax.lax.cond(x[0] > 0, lambda g: g, lambda g: 2 * g, g),
        lambda x, g: jax.vmap(
            lambda x, g: jax.lax.cond(x > 0.5, lambda g: jnp.sin(x) * g, lambda g: 3 * g, g)
        )(x, g),
        lambda x, g: jax.lax.stop_gradient(g * x) * x,
        lambda x, g: jnp.linalg.solve(jnp.diag(x), g),
        lambda x, g: jax.checkpoint(lambda g: g * jnp.sin(x))(g),
        lambda x, g: g.astype(jnp.float32).astype(g.dtype),
    ],
}


WAYS = {
    "both_modes": lambda f: jax.jvp(both_modes(f), (X,), (X,))[1],
    "op": lambda f: jax.jvp(tj.op("tests.of-a-rule.v1")(f), (X,), (X,))[1],
    "graph": lambda f: tj.jvp(tj.trace(f, X)).to_jax()(X, X)[1],
}


@pytest.mark.few(3)
@pytest.mark.parametrize("is_linear", BWDS)
@pytest.mark.parametrize("way", WAYS)
def test_forward_mode_has_all_of_a_rule_or_none(is_linear, way):
    """JAX alone transposes the linear part of what is not linear."""
    for bwd in BWDS[is_linear]:
        f = of_rule(bwd)
        if is_linear:
            want = jax.jacrev(f)(X) @ X
            np.testing.assert_allclose(WAYS[way](f), want, rtol=1e-5, atol=1e-6)
        else:
            with pytest.raises(Unsupported, match=r"forward mode of .* JAX cannot transpose"):
                WAYS[way](f)
        g = both_modes(f, opaque="differentiate")
        assert np.isfinite(jax.jvp(g, (X,), (X,))[1]).all()


def test_or_the_function_is_differentiated_in_its_place():
    g = both_modes(clipped, opaque="differentiate")
    np.testing.assert_allclose(jax.jvp(g, (X,), (X,))[1], 2 * X * X, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.jacfwd(jax.jacfwd(lambda x: g(x).sum())))(X), 2 * jnp.eye(3)
    )
    loss = lambda f: lambda x: f(x).sum()
    assert jax.grad(loss(g))(X).tobytes() == jax.grad(loss(clipped))(X).tobytes()
    assert jax.grad(loss(g))(X)[2] == 1


def test_a_function_on_the_host_has_reverse_mode_alone():
    for opaque in ("refuse", "differentiate"):
        g = both_modes(on_host, opaque=opaque)
        with pytest.raises(Unsupported, match=r"on_host .*callbacks"):
            jax.jvp(g, (X,), (X,))
        np.testing.assert_allclose(jax.grad(lambda x: g(x).sum())(X), jnp.cos(X), rtol=1e-6)


def test_an_error_of_the_author_arrives_as_it_is():
    @jax.custom_vjp
    def f(x):
        return x

    def bwd(_, g):
        raise KeyError("mine")

    f.defvjp(lambda x: (x, None), bwd)
    with pytest.raises(KeyError, match="mine"):
        jax.jvp(both_modes(f), (X,), (X,))

    # A rule that fails while JAX transposes is no reason to differentiate something else.
    double = tj.op("tests.double.v1")(lambda x: 2 * x)
    double.def_transpose(lambda g, x: bwd(None, g))
    g = of_rule(lambda x, g: double(g))
    for opaque in ("refuse", "differentiate"):
        with pytest.raises(KeyError, match="mine"):
            jax.jvp(both_modes(g, opaque=opaque), (X,), (X,))


def test_wrong_arguments():
    ends_in(lambda: both_modes(3), InvalidConfig, "a function")
    ends_in(lambda: both_modes(sine, opaque="maybe"), InvalidConfig, "'refuse' or 'differentiate'")


# --- ops, graphs and packages ---------------------------------------------------------------------


def test_graphs_have_forward_mode_of_reverse_rules():
    graph = tj.trace(lambda x: sine(x).sum(), X)
    np.testing.assert_allclose(tj.jvp(graph).to_jax()(X, X)[1], (jnp.cos(X) * X).sum(), rtol=1e-6)
    graph = tj.trace(lambda x: jax.jvp(both_modes(sine), (x,), (x,))[1], X)
    np.testing.assert_allclose(graph.to_jax()(X), jnp.cos(X) * X, rtol=1e-6)


def backward(x):
    return eqx.debug.backward_nan(jnp.sin(x), terminate=False)


def solved(x, both=lambda f: f):
    operator = lineax.FunctionLinearOperator(
        both(lambda v: (2 + sine(x)) * v),
        jax.eval_shape(lambda: x),
        lineax.positive_semidefinite_tag,
    )
    return lineax.linear_solve(operator, jnp.cos(x), lineax.CG(rtol=1e-9, atol=1e-9)).value


def test_a_function_of_a_package():
    ends_in(lambda: jax.jvp(backward, (X,), (X,)), TypeError, "jvp")
    np.testing.assert_allclose(
        jax.jvp(both_modes(backward), (X,), (X,))[1], jnp.cos(X) * X, rtol=1e-5
    )


def test_a_primitive_of_a_package_keeps_the_function_that_it_was_given():
    """JAX's error is still there; the function that is given to it may be in both modes."""
    ends_in(lambda: jax.jvp(both_modes(solved), (X,), (X,)), TypeError, "jvp")
    g = both_modes(functools.partial(solved, both=both_modes))
    slope = jax.vmap(jax.grad(lambda x: jnp.cos(x) / (2 + jnp.sin(x))))(X)
    np.testing.assert_allclose(jax.jvp(g, (X,), (X,))[1], slope * X, rtol=1e-5)
