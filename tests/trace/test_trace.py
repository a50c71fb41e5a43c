"""Tracing: what jit accepts as arguments, what comes back, what is refused and how. Extensions
written out: no family is left in the jaxpr, wherever the calls are, and the values stay.
"""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import best_assignment, closure, tropical_einsum, viterbi
from tenferro_jax import trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.graph.graph import bodies
from tenferro_jax.jax_seam import inner_jaxprs, open_jaxpr
from tenferro_jax.ops.control import CustomJvp

from ..extension_ops import RULES, HostCumulate, ScaledSquare
from ..helpers import close, each_ends_in, ends_in, equal

X = np.arange(6.0).reshape(2, 3)


def affine(x, p, power, *, scale, shift=0.0, flip=False):
    y = (x @ p["w"]) ** power * scale + shift
    return {"y": y[::-1] if flip else y, "none": None}


def test_keyword_arguments_as_jit_has_them():
    p = {"w": np.ones((3, 2))}
    fixed = functools.partial(affine, power=3, flip=True)
    graph = trace(fixed, X, p, scale=np.float64(2))
    want = jax.jit(fixed)(X, p, scale=np.float64(2))
    for run in (
        graph.to_jax(),
        jax.jit(graph.to_jax()),
        functools.partial(Engine().eval, graph),
        Engine().compile(graph),
    ):
        got = run(X, p, scale=np.float64(2))
        assert got["none"] is None
        np.testing.assert_array_equal(got["y"], want["y"])
    assert graph.input_names == ("args[0]", "args[1]['w']", "args[2]['scale']")
    each_ends_in(
        (lambda: graph.to_jax()(X, p), InvalidConfig, r"args\[2\]\['scale'\]"),
        (lambda: Engine().eval(graph, X, p, scale=X), ShapeError, r"args\[2\]\['scale'\]"),
    )
    scalar = trace(
        lambda x, p, scale: fixed(x, p, scale=scale)["y"].sum(), X, p, scale=np.float64(2)
    )
    gradient = jax.grad(lambda x: fixed(x, p, scale=2.0)["y"].sum())
    np.testing.assert_array_equal(tj.grad(scalar).to_jax()(X, p, scale=np.float64(2)), gradient(X))


def test_every_primitive_that_is_refused_names_itself_its_line_and_a_way_out():
    def with_callback(x):
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def with_schur(x):
        return jax.jit(lambda a: jax.lax.linalg.schur(a @ a.T))(x)

    for fn, name in ((with_callback, "pure_callback"), (with_schur, "schur")):
        ends_in(
            lambda: trace(fn, X.T @ X),
            Unsupported,
            rf"primitive '{name}'.*test_trace\.py:\d+; needed .*docs/spec/ops\.md.*keep it outside",
        )


def test_a_function_of_jax_alone_is_refused_at_the_line_that_traces_it():
    call = lambda: trace(jax.scipy.linalg.hessenberg, X.T @ X)
    refused = ends_in(call, Unsupported).value
    assert f"hessenberg at {__file__}:{call.__code__.co_firstlineno};" in str(refused)


def test_branches_for_pallas_kernels_are_left_out():
    """jnp.diagonal has one, and with it diag, det, slogdet and every Gaussian likelihood."""

    def likelihood(a):
        rows = jax.lax.scan(lambda c, x: (c + jnp.diag(a) * x, None), jnp.zeros(3), a)[0]
        return jnp.linalg.slogdet(a)[1] + rows.sum() + jnp.diagonal(jnp.linalg.cholesky(a)).sum()

    a = X.T @ X + 3 * np.eye(3)
    graph = trace(likelihood, a)
    inside = [graph, *(body for node in graph.nodes for body in bodies(node.op))]
    assert "Cond" not in {type(node.op).__name__ for g in inside for node in g.nodes}
    chex.assert_trees_all_close(
        *jax.jit(lambda a: (tj.grad(graph).to_jax()(a), jax.grad(likelihood)(a)))(a), rtol=1e-12
    )


def chosen(x):
    return jax.lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos, default=jnp.tan)


@tj.extension.extension_op(package="test-package", name="chosen", version=1)
class Chosen(tj.extension.ExtensionOp):
    def lower_to_standard_ops(self, x):
        return (chosen(x),)


@pytest.mark.cpu
def test_branches_for_platforms_belong_into_an_extension():
    ends_in(
        lambda: trace(chosen, X),
        Unsupported,
        r"a branch for cpu, cuda at .*test_trace\.py:\d+; needed the same computation.*an "
        r"extension op",
    )
    graph = trace(lambda x: tj.extension.apply(Chosen(), x)[0], X)
    program = tj.export(graph)
    assert {"stablehlo.sine", "stablehlo.cosine", "stablehlo.tan"} <= set(
        program.stablehlo().split()
    )
    for run in (graph.to_jax(), jax.jit(graph.to_jax()), program.call):
        np.testing.assert_allclose(run(X), np.sin(X), rtol=1e-12)


@pytest.mark.cpu
def test_what_jax_prints_is_left_out(capsys):
    def printing(x):
        jax.debug.print("x is {}", x)
        return jax.lax.scan(lambda c, r: (c + r, jax.debug.print("r is {}", r)), x[0], x)[0]

    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()  # an earlier test's failure is not this one's
    capsys.readouterr()
    graph = trace(printing, X)
    equal(
        (graph.to_jax()(X), X[0] + X.sum(0)),
        (tj.export(graph, platforms=("cpu",)).call(X), X[0] + X.sum(0)),
    )
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: jax.lax.argmax(x, i(1), np.int32),
        lambda x, i: jax.lax.argmin(x, i(1), np.int32),
        lambda x, i: jax.lax.cumsum(x, i(1)),
        lambda x, i: jax.lax.sort(x, dimension=i(1)),
        lambda x, i: jax.lax.concatenate([x, x], i(1)),
        lambda x, i: jax.lax.broadcasted_iota(np.int32, (i(2), i(3)), i(1)),
        lambda x, i: jax.lax.rev(x, (i(0),)),
        lambda x, i: jax.lax.top_k(x, i(2)),
        lambda x, i: jax.lax.approx_max_k(x, i(2), reduction_dimension=i(1)),
        lambda x, i: jax.lax.reduce_sum(x, (i(0),)),
        lambda x, i: jax.lax.transpose(x, (i(1), i(0))),
        lambda x, i: jax.lax.slice_in_dim(x, i(0), i(2), i(1), i(1)),
        lambda x, i: jax.lax.pad(x, 0.0, [(i(0), i(1), i(2)), (i(0), i(0), i(0))]),
        lambda x, i: jax.lax.split(x, (i(1), i(2)), axis=i(1)),
        lambda x, i: jax.lax.reduce_window(
            x, 0.0, jax.lax.add, (i(1), i(2)), (i(1), i(1)), "VALID"
        ),
        lambda x, i: jax.lax.integer_pow(x, i(2)),
        lambda x, i: jax.lax.reduce_precision(x, i(8), i(7)),
        lambda x, i: jax.lax.scan(lambda c, _: (c + x, None), x, length=i(3), unroll=int(i(1)))[0],
    ],
)
def test_numpy_integers_are_integers(fn):
    """Whatever of them jnp or a user hands to lax."""
    assert trace(lambda x: fn(x, np.int64), X) == trace(lambda x: fn(x, int), X)


def test_primitives_that_no_op_is_like():
    def branch(x):
        return jax.lax.cond(x.sum() > 0, lambda x: jnp.sin(x).sum(), lambda x: (x**3).sum(), x)

    def f(x):
        made = jnp.tile(x, (2, 2)), jnp.stack([x, -x], 1), jnp.unstack(x), jnp.polyval(x[1], x)
        return *made, jax.grad(branch)(x)

    want = np.tile(X, (2, 2)), np.stack([X, -X], 1), tuple(X), np.polyval(X[1], X), np.cos(X)
    chex.assert_trees_all_close(jax.jit(trace(f, X).to_jax())(X), want, rtol=1e-12)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jax.lax.scan(lambda c, _: (jax.nn.relu(c), None), x, length=2)[0],
        lambda x: jax.lax.while_loop(lambda x: x.sum() > 9, jax.nn.relu, x),
        lambda x: jax.lax.cond(x.sum() > 9, jax.nn.relu, jnp.sin, x),
    ],
)
def test_a_custom_derivative_stays_inside_control_flow(fn):
    inside = [body for node in trace(fn, X).nodes for body in bodies(node.op)]
    assert CustomJvp in {type(node.op) for body in inside for node in body.nodes}


def test_a_rule_with_optimize_remat_stays():
    fn = jax.custom_vjp(lambda x: jnp.sign(x))
    fn.defvjp(lambda x: (jnp.sign(x), jnp.exp(x)), lambda r, g: (r * g,), optimize_remat=True)
    graph = trace(lambda x: fn(x).sum(), X)
    assert not graph.lost_rules
    close(
        (jax.grad(graph.to_jax())(X), np.exp(X)),
        (trace(jax.grad(lambda x: fn(x).sum()), X).to_jax()(X), np.exp(X)),
    )


# --- extensions written out -----------------------------------------------------------------------


A = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)


def product(a, b):
    return tropical_einsum("ij,jk->ik", a, b)


def squared(x):
    return apply(ScaledSquare(0.5), x, rules=RULES)[0]


@jax.custom_jvp
def with_jvp(a):
    return product(a, a)


@with_jvp.defjvp
def _with_jvp(primals, tangents):
    return with_jvp(*primals), product(*primals, *primals) * tangents[0]


@jax.custom_jvp
def in_rule_alone(a):
    return a * 2


@in_rule_alone.defjvp
def _in_rule_alone(primals, tangents):
    return in_rule_alone(*primals), product(*primals, *primals) * tangents[0]


@jax.custom_vjp
def with_vjp(a, n):
    return product(a, a) * n, n


with_vjp.defvjp(
    lambda a, n: (with_vjp(a, n), a), lambda a, cotangents: (product(a, a) * cotangents[0], None)
)

MESH = jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2])
SMOOTH = {  # differentiated too
    "alone": lambda a: product(a, a),
    "jit": lambda a: jax.jit(product)(a, a),
    "scan": lambda a: jax.lax.scan(
        lambda c, x: (product(c, a) + x, c.sum()), a, jnp.ones((2, 3, 3), np.float32)
    ),
    "cond": lambda a: jax.lax.cond(a.sum() > 0, lambda a: product(a, a), jnp.sin, a),
    "checkpoint": lambda a: jax.checkpoint(lambda a: jnp.sin(product(a, a)))(a),
    "vmap": lambda a: jax.vmap(lambda b: product(a, b))(jnp.stack([a, a + 1])),
    "custom_jvp": lambda a: jax.jit(with_jvp)(a),
    "the rule of a custom_jvp": lambda a: jax.jit(in_rule_alone)(a),
    "custom_vjp": lambda a: jax.jit(lambda a: with_vjp(a, 3)[0])(a),
    "functions of JAX": lambda a: jax.nn.relu(product(a, a)) + jax.nn.logsumexp(a),
    "log_sum_exp": lambda a: tropical_einsum("ij,jk->ik", a, a, semiring="log_sum_exp"),
    "shard_map": lambda a: jax.shard_map(
        lambda a: product(a, a.T), mesh=MESH, in_specs=jax.P("d"), out_specs=jax.P("d")
    )(jnp.concatenate([a, a + 1])),
}
OTHERS = {
    "while": lambda a: jax.lax.while_loop(
        lambda s: product(s[1], a).sum() < 99, lambda s: (s[0] + 1, product(s[1], a) + 1), (0, a)
    ),
    "gradient": lambda a: jax.grad(lambda a: squared(product(a, a)).sum())(a),
    "second derivative": lambda a: jax.vmap(jax.grad(jax.grad(squared)))(a[0]),
    "winners": lambda a: best_assignment("ij,jk,ki->", a, a, a).labels,
    "closure": lambda a: closure(jnp.abs(a)).value,
    "viterbi": lambda a: viterbi(a[0], a, a),
}


def families(closed):
    """The primitives of a jaxpr and of those inside that are named by a family."""
    for eqn in open_jaxpr(closed)[0].eqns:
        if ".v" in eqn.primitive.name:
            yield eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            yield from families(inner)


def total(f):
    """A number of which every output is a part."""
    return lambda a: sum(
        jnp.sum(x * jnp.arange(1, 1 + x.size, dtype=x.dtype).reshape(x.shape))
        for x in jax.tree.leaves(f(a))
    )


@pytest.mark.slow
def test_no_family_is_left_and_the_values_stay():
    programs = SMOOTH | OTHERS
    for name, f in programs.items():
        assert list(families(jax.make_jaxpr(f)(A))) or name == "the rule of a custom_jvp", name
        assert not list(families(jax.make_jaxpr(tj.lowered(f))(A))), name
        assert not list(families(jax.make_jaxpr(jax.jit(tj.lowered(f)))(A))), name
    want, got = jax.jit(
        lambda a: [
            {name: g(f)(a) for name, f in programs.items()} for g in (lambda f: f, tj.lowered)
        ]
    )(A)
    chex.assert_trees_all_close(got, want, rtol=1e-6)
    np.testing.assert_allclose(got["alone"], (A[:, :, None] + A[None]).max(1), rtol=1e-6)


@pytest.mark.slow
def test_derivatives_are_those_of_plain_jax():
    def gradients(of):
        return {name: jax.grad(total(jax.jit(of(f)))) for name, f in SMOOTH.items()}

    for name, g in gradients(tj.lowered).items():
        assert not list(families(jax.make_jaxpr(g)(A))), name
    want, got = jax.jit(
        lambda a: [{n: g(a) for n, g in gradients(of).items()} for of in (lambda f: f, tj.lowered)]
    )(A)
    # no ties in A: the winner alone has a derivative, by the rule and by JAX
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(jax.grad(tj.lowered(squared))(np.float32(3)), 3)
    marked = tj.lowered(lambda x: apply(ScaledSquare(0.5), x)[0])  # no rule at all
    np.testing.assert_array_equal(jax.grad(marked)(np.float32(3)), 3)


def test_a_graph_is_written_out():
    graph = tj.trace(
        lambda tree, *, b: {"y": SMOOTH["scan"](tree["a"]), "z": product(tree["a"], b)},
        {"a": A},
        b=A,
    )
    plain = graph.lowered()
    assert len(graph.extensions) == 2
    assert plain.extensions == ()
    assert (plain.in_tree, plain.out_tree, plain.output_metas) == (
        graph.in_tree,
        graph.out_tree,
        graph.output_metas,
    )
    tj.verify(plain)
    want, got = jax.jit(lambda a: (graph.to_jax()({"a": a}, b=a), plain.to_jax()({"a": a}, b=a)))(A)
    chex.assert_trees_all_equal(got, want)
    (n,) = jax.export.symbolic_shape("n")
    symbolic = tj.trace(product, *[jax.ShapeDtypeStruct((n, n), np.float32)] * 2)
    assert symbolic.lowered().extensions == ()
    assert symbolic.lowered().input_metas == symbolic.input_metas


def test_what_cannot_be_written_out():
    error = ends_in(
        lambda: tj.lowered(lambda x: apply(HostCumulate(), x)[0])(np.ones(3)),
        Unsupported,
        r"test-package\.host_cumulate\.v1: given no lowering to write out; needed a lowering",
    )
    assert "export" not in str(error.value)
    ends_in(lambda: tj.lowered(3), InvalidConfig, "lowered: given 3")
