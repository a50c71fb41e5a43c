"""`Graph.lowered` and `lowered` write out every extension, whatever it stands in: containers of JAX
in each other, custom rules, and ops that call ops. The same containers around plain JAX judge.
"""

import itertools
import random

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ext_tropical
import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import jax_seam

from ..helpers import fresh
from ..sweep import times

# No two paths of two steps have the same length, so that the winner is the derivative.
X = np.array([[0.1, 0.9, -0.4], [0.75, -0.3, 0.55], [-0.2, 0.35, 0.6]])


def smooth(x):
    return jnp.sin(x) * x


def product(x):
    return tropical_einsum("ij,jk->ik", x, x)


def plain_product(x):
    return (x[:, :, None] + x[None]).max(1)


LEAVES = {"op": (fresh(smooth), smooth), "tropical": (product, plain_product)}


def in_custom_jvp(g):
    call = jax.custom_jvp(g)

    @call.defjvp
    def _rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return call(x), t * g(x) + 2 * t

    return call


def in_custom_vjp(g):
    call = jax.custom_vjp(g)
    call.defvjp(lambda x: (g(x), (x, g(x))), lambda kept, c: (c * g(kept[0]) + c * kept[1],))
    return call


def in_op_with_rule(g):
    """An op that calls an op; its rule, the derivative of `g`, calls one more."""
    call = fresh(g)
    call.defjvp(lambda t, out, x: jax.jvp(g, (x,), (t,))[1] + 0 * t * g(x))
    return call


def in_while(g):
    def run(x):
        done = jax.lax.while_loop(
            lambda carry: carry[0] < 2, lambda carry: (carry[0] + 1, g(carry[1]) / 2), (0, x)
        )
        return done[1]

    return run


def in_root(g):
    def run(x):
        return jax.lax.custom_root(
            lambda y: y - g(x),
            x,
            lambda f, y: y - f(y),
            lambda f, y: y / f(jnp.ones_like(y)),
        )

    return run


def in_linear_solve(g):
    def run(x):
        return jax.lax.custom_linear_solve(
            lambda v: v * (3 + g(x)), x, lambda _, b: b / (3 + g(x)), symmetric=True
        )

    return run


CONTAINERS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda g: lambda x: jax.vmap(g)(jnp.stack([x, 0.5 * x])).sum(0),
    "scan": lambda g: lambda x: jax.lax.scan(lambda c, y: (g(c) / 2, y * c.sum()), x, x[0])[0],
    "while": in_while,
    "cond": lambda g: lambda x: jax.lax.cond(x[0, 0] > 0, g, lambda y: 2 * y, x),
    "switch": lambda g: lambda x: jax.lax.switch(jnp.int32(x[1, 0] * 2), [jnp.sin, g, jnp.cos], x),
    "custom_jvp": in_custom_jvp,
    "custom_vjp": in_custom_vjp,
    "both_modes": lambda g: tj.both_modes(in_custom_vjp(g)),
    "root": in_root,
    "linear solve": in_linear_solve,
    "gradient": lambda g: lambda x: jax.grad(lambda y: g(y).sum())(x),
    "op": fresh,
    "op with a rule": in_op_with_rule,
}
OPS = ("op", "op with a rule")
RULES = ("custom_jvp", "custom_vjp", "both_modes")
PLAIN = CONTAINERS | dict.fromkeys(OPS, lambda g: g)


def drawn(count):
    """Leaves, and containers from the innermost to the outermost: each alone, and `count` more."""
    found = [(leaf, (name,)) for leaf in LEAVES for name in CONTAINERS]
    source = random.Random(7)
    while len(found) < count + len(LEAVES) * len(CONTAINERS):
        names = source.choices(list(CONTAINERS), k=source.choice((2, 3)))
        found.append((source.choice(list(LEAVES)), tuple(names)))
    return list(filter(is_taken, found))


def is_taken(case):
    """An op takes functions of standard ops and of other functions' ops. What it is given with a
    rule becomes its own rule, which `lowered` leaves out. JAX has no gradient of a while.
    """
    leaf, names = case
    if leaf == "tropical" and set(OPS) & set(names):
        return False
    if "while" in names and "gradient" in names[names.index("while") :]:
        return False
    pairs = set(itertools.pairwise(names))
    return not any((rule, op) in pairs for rule in RULES for op in OPS)


def pair(case):
    """The function of a case, with ops and without."""
    leaf, names = case
    function, judge = LEAVES[leaf]
    for name in names:
        function, judge = CONTAINERS[name](function), PLAIN[name](judge)
    return function, judge


def derivatives(f):
    """The value and the derivatives, by name."""

    def total(x):
        return (f(x) * jnp.arange(1.0, 10).reshape(3, 3)).sum()

    def first(x):
        return (jax.grad(total)(x) * jnp.sin(x)).sum()

    def forward(x):
        return jax.jvp(tj.both_modes(total), (x,), (jnp.cos(x),))[1]

    return {"value": f, "first": jax.grad(total), "forward": forward, "second": jax.grad(first)}


def known(function):
    """What a function of plain JAX gives, or None where it has no such derivative."""
    try:
        return jax.jit(function)(X)
    except (TypeError, ValueError, NotImplementedError):
        return None


FUNCTIONS = {
    "closure": lambda x: ext_tropical.closure(jnp.abs(x)).value,
    "gradient of a closure": jax.grad(lambda x: ext_tropical.closure(jnp.abs(x)).value.sum()),
    "viterbi": lambda x: ext_tropical.viterbi(x[0], x, x),
}


def primitives(closed):
    """The names of the primitives of a jaxpr and of those inside."""
    for eqn in jax_seam.open_jaxpr(closed)[0].eqns:
        yield eqn.primitive.name
        for inner in jax_seam.inner_jaxprs(eqn):
            yield from primitives(inner)


def require_no_ops(function):
    """What is left are primitives of JAX."""
    for name in primitives(jax.make_jaxpr(function)(X)):
        assert ".v" not in name
        assert "both_modes" not in name


CASES = drawn(times(40))


@pytest.mark.few(5)
@pytest.mark.parametrize("case", CASES, ids=lambda case: " in ".join((case[0], *case[1])))
def test_no_extension_is_left_and_values_and_derivatives_stay(case):
    function, judge = pair(case)
    graph = tj.trace(function, X)
    plain = tj.verify(graph.lowered())
    assert plain.extensions == ()
    require_no_ops(tj.lowered(function))
    want = {name: known(f) for name, f in derivatives(judge).items()}
    for found in (plain.to_jax(), tj.lowered(function)):
        got = derivatives(found)
        for name, value in want.items():
            if value is not None:
                np.testing.assert_allclose(
                    jax.jit(got[name])(X), value, rtol=1e-9, atol=1e-9, err_msg=name
                )


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_extension_of_a_tropical_function_is_left(name):
    function = FUNCTIONS[name]
    graph = tj.trace(function, X)
    assert graph.extensions
    plain = graph.lowered()
    assert plain.extensions == ()
    chex.assert_trees_all_close(plain.to_jax()(X), function(X), rtol=1e-12)
    require_no_ops(plain.to_jax())
    assert tj.export(plain).families == ()


def test_a_rule_is_found_again_only_for_the_program_that_has_it():
    """JAX drops outputs of a function with a rule that nothing reads, and keeps its name."""

    @jax.custom_vjp
    def two(x):
        return product(x), x + 1

    two.defvjp(lambda x: (two(x), x), lambda x, g: (7 * g[0] + g[1],))
    graph = tj.trace(two, X)
    half = jax_seam.only_needed(lambda x: graph.to_jax()(x)[0], X)
    again = tj.trace(lambda x: half(x)[0], X)
    np.testing.assert_array_equal(again.to_jax()(X), plain_product(X))
    np.testing.assert_array_equal(
        jax.grad(lambda x: again.to_jax()(x).sum())(X), np.full((3, 3), 7)
    )
    names = [node.op.name for node in again.nodes]
    assert names == ["two"]
