"""The flags that JAX marks as upgrades: what JAX itself does with those that are left out, and that
custom rules and checkpoints keep their meaning with the others.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import trace
from tenferro_jax.errors import Unsupported
from tenferro_jax.ops.control import CustomJvp, CustomVjp

from .helpers import close, ends_in, passes
from .upgrades import LEFT_OUT, main, upgrades

X = np.array([0.3, 1.2, -0.7])
W = np.arange(1.0, 4.0)


@pytest.fixture
def with_flags():
    """All flags are on; results of JAX that a test compares with are computed before."""
    if "jax_custom_jvp3" not in upgrades():
        pytest.skip("JAX has all of these flags from 0.12 on")
    before = {name: jax.config.values[name] for name in upgrades() if name not in LEFT_OUT}
    for name in before:
        jax.config.update(name, True)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


# --- the list -------------------------------------------------------------------------------------


def test_the_variables_turn_on_every_flag_that_is_not_left_out(capsys):
    main()
    printed = capsys.readouterr().out.split()
    assert "JAX_CUSTOM_VJP3=1" in printed
    assert "JAX_MUTABLE_ARRAY_CHECKS=1" in printed
    assert "JAX_ENABLE_X64=1" not in printed
    assert not {f"{name.upper()}=1" for name in LEFT_OUT} & set(printed)


@pytest.mark.parametrize("name", ["grad", "vmap", "reverse"])
def test_a_scan_fails_in_plain_jax_with_the_flag_that_is_left_out(name):
    def last(x, reverse=False):
        return jax.lax.scan(lambda c, y: (2.0 * c + y, c), 1.0, x, reverse=reverse)[0]

    x = jnp.asarray(X)
    jax.config.update("jax_scan3", True)
    try:
        if name == "reverse":
            assert float(last(x)) == float(last(x, reverse=True))
        else:
            run, given = (jax.grad(last), x) if name == "grad" else (jax.vmap(last), x[None])
            ends_in(lambda: run(given), NotImplementedError)
    finally:
        jax.config.update("jax_scan3", False)


# --- graphs ---------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# The function, its value and its derivative in NumPy.
OF_JAX = {
    "relu": (jax.nn.relu, lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "softplus": (jax.nn.softplus, lambda x: np.log1p(np.exp(x)), sigmoid),
    "logaddexp": (
        lambda x: jnp.logaddexp(x, 2.0 * x),
        lambda x: np.logaddexp(x, 2 * x),
        lambda x: 1 + sigmoid(x),
    ),
    "xlogy": (
        lambda x: jax.scipy.special.xlogy(x, x + 2.0),
        lambda x: x * np.log(x + 2),
        lambda x: np.log(x + 2) + x / (x + 2),
    ),
}


def steeper(rate):
    """The sine with a reverse rule that is not its derivative."""
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (rate * g * x,))
    return f


def slanted(rate):
    """The same by a rule for forward mode."""
    f = jax.custom_jvp(jnp.sin)
    f.defjvp(lambda primals, tangents: (jnp.sin(*primals), rate * tangents[0] * primals[0]))
    return f


steep = steeper(7.0)


def named(x):
    return steep(jax.ad_checkpoint.checkpoint_name(x, "kept"))


KEPT = jax.checkpoint_policies.save_only_these_names("kept")
OF_AUTHORS = {
    "custom_vjp": steep,
    "custom_jvp": slanted(7.0),
    "jitted": jax.jit(steep),
    "checkpoint": jax.checkpoint(steep),
    "with a policy": jax.checkpoint(named, policy=KEPT),
    "of jvp": jax.checkpoint(slanted(7.0), prevent_cse=False),
    "vmap": jax.vmap(jax.checkpoint(steep)),
    "scan": lambda x: jax.lax.scan(lambda c, y: (c, jax.checkpoint(steep)(y)), 0.0, x)[1],
}
CALLS = OF_JAX | {name: (f, np.sin, lambda x: 7 * x) for name, f in OF_AUTHORS.items()}


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_has_the_values_and_the_derivative_of_the_rule(name, with_flags):
    function, value, derivative = CALLS[name]
    graph = trace(function, X)
    assert not graph.lost_rules
    again = tj.from_wire(tj.to_wire(graph))
    assert again == graph
    for f in (function, graph.to_jax(), again.to_jax(), graph.lowered().to_jax()):
        weighed = lambda x, f=f: jnp.vdot(f(x), W)
        close((f(X), value(X)), (jax.grad(weighed)(X), derivative(X) * W), rtol=1e-12)
        both = tj.both_modes(weighed)
        close((jax.jacfwd(both)(X), derivative(X) * W), rtol=1e-12)
    of_derivative = trace(jax.grad(lambda x: jnp.vdot(function(x), W)), X)
    close((of_derivative.to_jax()(X), derivative(X) * W), rtol=1e-12)


def test_functions_with_one_body_keep_their_own_rules(with_flags):
    for rule in (steeper, slanted):
        first, second = rule(2.0), rule(3.0)
        graph = trace(lambda x, f=first, g=second: jnp.vdot(f(x) + g(x), W), X)
        close((jax.grad(graph.to_jax())(X), (2 * X + 3 * X) * W))


def test_a_custom_rule_is_one_op(with_flags):
    for function, op in (
        (slanted(7.0), CustomJvp),
        (steep, CustomVjp),
        (jax.checkpoint(steep), CustomVjp),
    ):
        (node,) = trace(function, X).nodes
        assert isinstance(node.op, op)


def test_forward_mode_without_a_rule_is_refused(with_flags):
    pushed = lambda x: jax.jvp(steep, (x,), (x,))[1]
    ends_in(lambda: trace(pushed, X), Unsupported, "forward-mode derivative of a custom_vjp")
    for f in (pushed, jax.jit(tj.both_modes(pushed)), tj.lowered(pushed)):
        ends_in(lambda f=f: f(X), TypeError, "can't apply forward-mode")
    close((trace(lambda x: jax.jvp(tj.both_modes(steep), (x,), (x,))[1], X).to_jax()(X), 7 * X * X))


# --- ops inside custom rules ----------------------------------------------------------------------


@jax.custom_vjp
def most(x):
    """The largest 2 * x[i], with an op in the rule too."""
    return tropical_einsum("i,i->", x, x)


most.defvjp(lambda x: (most(x), x), lambda x, g: (g * tropical_einsum("i,i->i", x, x),))


@jax.custom_jvp
def most_twice(x):
    return 2.0 * most(x)


@most_twice.defjvp
def _rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return 2.0 * most(x), 2.0 * jax.jvp(tj.both_modes(most), (x,), (t,))[1]


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp", "checkpoint"])
def test_ops_inside_are_written_out_with_their_derivatives(kind, with_flags):
    times, function = {
        "custom_vjp": (1, most),
        "custom_jvp": (2, most_twice),
        "checkpoint": (1, jax.checkpoint(jax.jit(most))),
    }[kind]
    plain = tj.lowered(function)
    assert trace(function, X).extensions
    assert trace(plain, X).extensions == trace(jax.grad(plain), X).extensions == ()
    close((plain(X), 2.4 * times), (jax.grad(plain)(X), 2 * X * times))


def test_a_rule_for_forward_mode_that_calls_one_for_reverse_mode_has_both(with_flags):
    function = jax.custom_jvp(lambda x: jnp.cos(x))
    function.defjvp(lambda p, t: (jnp.cos(*p), t[0] * steep(*p)))

    def slope(f):
        return lambda x: jax.jvp(f, (x,), (W,))[1]

    ends_in(lambda: jax.jvp(slope(function), (X,), (W,)), TypeError)
    for f in (function, jax.jit(function), jax.checkpoint(function)):
        close((jax.jvp(slope(tj.both_modes(f)), (X,), (W,))[1], W * 7 * X * W))


def test_a_bwd_with_a_checkpoint_has_forward_mode(with_flags):
    function = jax.custom_vjp(jnp.sin)
    again = jax.checkpoint(lambda x, g: 7.0 * g * x)
    function.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (again(x, g),))
    for f in (function, jax.jit(function)):
        close((jax.jvp(tj.both_modes(f), (X,), (W,))[1], 7 * X * W))
    close((jax.hessian(lambda x: tj.both_modes(function)(x).sum())(X), 7 * np.eye(3)))


def test_slices_of_a_network_have_a_derivative(with_flags):
    a, b = np.random.default_rng(0).normal(size=(2, 300, 300))

    def total(a):
        return tropical_einsum("ij,jk->", a, b, semiring="log_sum_exp", memory_limit=2**20)

    shares = np.exp(a[:, :, None] + b[None])
    close((jax.grad(total)(a), shares.sum(2) / shares.sum()), rtol=1e-9)


def test_ops_and_checks_take_functions_with_new_rules(with_flags):
    for name, function in {"vjp": steep, "jvp": slanted(7.0)}.items():
        f = tj.op(f"test-upgrades.{name}.v1")(jax.jit(function))
        close((jax.jvp(f, (X,), (W,))[1], 7 * X * W), (jax.jacrev(f)(X), np.diag(7 * X)))
    passes(jax.nn.softplus, X)
    assert [failure.check for failure in tj.check(steep, X).failures] == ["vjp"]
