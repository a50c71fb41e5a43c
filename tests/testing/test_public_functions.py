"""check of public functions of other libraries, as they are and as ops: no false alarm, also where
ops call ops and while a mesh is set; and the same with a mistake in a rule: it is found.
"""

import functools
import importlib

import equinox
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from jax.experimental import pallas

import tenferro_jax as tj
from tenferro_jax.testing import Verdict

from ..helpers import fresh, passes
from ..helpers import mesh as mesh_of

pytestmark = pytest.mark.usefixtures("as_users_have_it")

RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(2, 2, 3)).astype(np.float32)
V, W = RNG.normal(size=(2, 3)).astype(np.float32)
P, Q = RNG.uniform(0.6, 2.5, size=(2, 2, 3)).astype(np.float32)
UNIT = RNG.uniform(0.15, 0.85, size=(2, 3)).astype(np.float32)
A = (RNG.normal(size=(3, 3)) + 3 * np.eye(3)).astype(np.float32)
SPD = (A @ A.T).astype(np.float32)
IMAGE = RNG.normal(size=(1, 2, 5)).astype(np.float32)
KERNEL = RNG.normal(size=(3, 2, 2)).astype(np.float32)

NAMED = [
    ("jax.numpy", (X,), "sin tanh exp square sinc mean std ptp flip roll:1 cumsum trapezoid"),
    ("jax.numpy", (P,), "log sqrt cbrt reciprocal nanmax prod average"),
    ("jax.numpy", (X, Y), "multiply subtract logaddexp copysign vdot kron heaviside"),
    ("jax.numpy", (P, Q), "power fmod remainder float_power"),
    ("jax.numpy", (V, W), "outer inner convolve cross interp:3"),
    ("jax.numpy", (X, A), "matmul dot"),
    ("jax.nn", (X,), "silu gelu softplus log_softmax logsumexp mish celu"),
    ("jax.lax", (X,), "erf logistic tan asinh expm1 cumlogsumexp integer_pow:3"),
    ("jax.lax", (P,), "rsqrt lgamma digamma log1p"),
    ("jax.lax", (P, Q), "atan2 div igamma"),
    ("jax.lax", (IMAGE, KERNEL, (1,), "VALID"), "conv"),
    ("jax.scipy.special", (P, Q), "xlogy betaln rel_entr"),
    ("jax.scipy.special", (UNIT,), "logit ndtri erfinv"),
    ("jax.scipy.linalg", (A, V), "solve"),
    ("jax.numpy.linalg", (A,), "inv det"),
    ("jax.scipy.stats.norm", (X, Y, P), "logpdf cdf"),
    ("jax.scipy.signal", (V, W), "convolve"),
    ("optax.losses", (X, UNIT), "sigmoid_binary_cross_entropy"),
    ("optax.losses", (X, Y), "huber_loss log_cosh cosine_similarity"),
    ("optax", (X,), "global_norm"),
]


def named():
    """(name, function of arrays, arrays), of a name with ":" followed by a further argument."""
    for module, args, names in NAMED:
        for text in names.split():
            name, _, further = text.partition(":")
            f = getattr(importlib.import_module(module), name)
            arrays = tuple(x for x in args if isinstance(x, np.ndarray))
            others = [x for x in args if not isinstance(x, np.ndarray)]
            if name == "interp":
                yield f"{module}.{name}", lambda x, y: jnp.interp(x, jnp.sort(y), y), (V / 4, W)
            else:
                others += [int(further)] if further else []
                run = functools.partial(_with, f, others) if others else f
                yield f"{module}.{name}", run, arrays


def _with(f, others, *arrays):
    return f(*arrays, *others)


def solved(solver, *tags):
    def run(a, b):
        a = (a + a.T) / 2 if tags else a
        return lineax.linear_solve(lineax.MatrixLinearOperator(a, tags), b, solver).value

    return run


def of_module(module):
    """An equinox module as a function of its arrays too."""
    arrays, static = equinox.partition(module, equinox.is_array)
    leaves, tree = jax.tree.flatten(arrays)

    def run(x, *leaves):
        return equinox.combine(jax.tree.unflatten(tree, leaves), static)(x)

    return run, tuple(map(np.asarray, leaves))


LINEAR, WEIGHTS = of_module(equinox.nn.Linear(3, 2, key=jax.random.key(0)))
NORM, SCALES = of_module(equinox.nn.LayerNorm(3))
OTHERS = [
    # of a matrix that is not symmetric it reads one half, and its rule both
    ("jax.scipy.linalg.cholesky", lambda a: jax.scipy.linalg.cholesky((a + a.T) / 2), (SPD,)),
    ("lineax.LU", solved(lineax.LU()), (A, V)),
    ("lineax.QR", solved(lineax.QR()), (A, V)),
    ("lineax.Cholesky", solved(lineax.Cholesky(), lineax.positive_semidefinite_tag), (SPD, V)),
    ("equinox.nn.Linear", LINEAR, (V, *WEIGHTS)),
    ("equinox.nn.LayerNorm", NORM, (V, *SCALES)),
]
FUNCTIONS = {name: (f, arrays) for name, f, arrays in [*named(), *OTHERS]}


def as_op(f):
    return fresh(lambda *xs: f(*xs), derive=True)


def as_op_of_an_op(f):
    inner = as_op(f)
    return fresh(lambda *xs: inner(*xs), derive=True)


def as_reverse_rule(f):
    """The function as an op with the rule that JAX finds."""
    op = fresh(lambda *xs: f(*xs))
    op.defvjp(lambda *xs: (f(*xs), xs), lambda xs, g: jax.vjp(f, *xs)[1](g))
    return op


def as_pair(f):
    """As the guide's pair of kernels: an op whose fwd and bwd are ops."""
    fwd = fresh(lambda *xs: f(*xs))
    bwd = fresh(lambda g, *xs: jax.vjp(f, *xs)[1](g))
    op = fresh(lambda *xs: fwd(*xs))
    op.defvjp(lambda *xs: (fwd(*xs), xs), lambda xs, g: bwd(g, *xs))
    return op


KINDS = {
    "function": lambda f: f,
    "op": as_op,
    "op of an op": as_op_of_an_op,
    "reverse rule": as_reverse_rule,
    "pair": as_pair,
}


def test_there_are_more_than_fifty():
    assert len(FUNCTIONS) >= 60
    assert {name.split(".")[0] for name in FUNCTIONS} == {"jax", "optax", "equinox", "lineax"}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_no_false_alarm(name, kind):
    f, arrays = FUNCTIONS[name]
    passes(KINDS[kind](f), *arrays)


# --- what plain JAX refuses does not apply ---------------------------------------------------------


def kernel(body, *arrays):
    """An interpreted Pallas kernel of arrays of one shape."""

    def run(*refs):
        *given, out = refs
        out[...] = body(*(ref[...] for ref in given))

    like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return pallas.pallas_call(run, out_shape=like, interpret=True)(*arrays)


def by_kernels(factor=1.0):
    """A jax.custom_vjp with two kernels; the slope is multiplied by a factor."""

    def slope(x, g):
        return (jnp.cos(x) * g * factor).astype(x.dtype)

    f = jax.custom_vjp(lambda x: kernel(jnp.sin, x))
    f.defvjp(lambda x: (kernel(jnp.sin, x), x), lambda x, g: (kernel(slope, x, g),))
    return f


KERNELS = {"function": by_kernels, "op": lambda *factor: fresh(lambda x: by_kernels(*factor)(x))}
KERNELS["adopted"] = lambda *factor: fresh(by_kernels(*factor))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KERNELS)
def test_interpreted_kernels_have_no_false_alarm(kind):
    found = {f.check: f for f in passes(KERNELS[kind](), V).findings}
    assert found["second_order"].verdict is Verdict.NOT_APPLICABLE
    assert "JAX does not differentiate pallas_call" in found["second_order"].problem
    if kind != "function":
        assert "JAX itself cannot run shard_map" in found["shard_map"].problem
        assert found["explicit_mesh"].verdict is Verdict.PASSED


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_of_a_slope_that_is_off_by_a_thousandth_is_found(kind):
    (failed,) = tj.check(KERNELS[kind](1.001), V).failures
    assert failed.check == "vjp"


def test_a_rule_that_raises_is_no_limit_of_jax():
    inner = jax.custom_vjp(jnp.sin)
    inner.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g, g, g))
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * inner(x + np.pi / 2),))
    (failed,) = tj.check(f, V).failures
    assert failed.check == "second_order"


# --- a mesh is set ---------------------------------------------------------------------------------

MESHES = [jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_the_mesh_of_the_caller_changes_nothing(axes, kind):
    f = KINDS[kind](jnp.tanh)
    alone = passes(f, V)
    with jax.set_mesh(mesh_of((1,), axes)):
        before = jax.sharding.get_abstract_mesh()
        report = passes(f, V)
        assert jax.sharding.get_abstract_mesh() == before
    assert [x.verdict for x in report.findings] == [x.verdict for x in alone.findings]


@pytest.mark.parametrize("take", [lambda f: f, as_op], ids=["function", "op"])
def test_what_needs_the_mesh_of_the_caller_has_it(take):
    spread = jax.jit(jax.shard_map(jnp.sin, in_specs=jax.P(), out_specs=jax.P()))
    with jax.set_mesh(mesh_of((1,), MESHES[1])):
        report = passes(take(lambda x: spread(x)), V, only=("value", "vjp", "vmap"))
    assert {f.verdict for f in report.findings} == {Verdict.PASSED}


# --- mistakes are found in the same places ---------------------------------------------------------


def off(tree):
    return jax.tree.map(lambda x: (x * 1.001).astype(x.dtype), tree)


def wrong_reverse_rule(f):
    op = fresh(lambda *xs: f(*xs))
    op.defvjp(lambda *xs: (f(*xs), xs), lambda xs, g: off(jax.vjp(f, *xs)[1](g)))
    return op


def wrong_pair(f):
    bwd = fresh(lambda g, *xs: off(jax.vjp(f, *xs)[1](g)))
    op = fresh(lambda *xs: f(*xs))
    op.defvjp(lambda *xs: (f(*xs), xs), lambda xs, g: bwd(g, *xs))
    return op


def wrong_inside(f):
    inner = wrong_reverse_rule(f)
    return fresh(lambda *xs: inner(*xs), derive=True)


def wrong_forward_rule(f):
    op = fresh(lambda *xs: f(*xs))
    op.defjvp(lambda xs, out, ts: off(jax.jvp(f, xs, ts)[1]))
    return op


def wrong_batching(f):
    mapped = jax.custom_batching.custom_vmap(lambda *xs: f(*xs))

    @mapped.def_vmap
    def _rule(size, is_mapped, *xs):
        out = jax.vmap(f, [0 if mapped else None for mapped in is_mapped])(*xs)
        return off(out), jax.tree.map(lambda _: True, out)

    return mapped


MISTAKES = {
    "reverse rule": (wrong_reverse_rule, "jvp"),  # its transpose; vjp is not judged after that
    "pair": (wrong_pair, "jvp"),
    "rule of an op inside": (wrong_inside, "jvp"),
    "forward rule": (wrong_forward_rule, "jvp"),
    "batching": (wrong_batching, "vmap"),
    "batching of an op": (lambda f: as_op(wrong_batching(f)), "vmap"),
}
SMOOTH = ("jax.numpy.tanh", "jax.numpy.power", "jax.nn.silu", "optax.losses.log_cosh", "lineax.LU")


@pytest.mark.few(2)
@pytest.mark.parametrize("has_mesh", [False, True], ids=["", "with a mesh"])
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", SMOOTH)
def test_a_thousandth_too_much_is_found(name, mistake, has_mesh):
    f, arrays = FUNCTIONS[name]
    wrong, check = MISTAKES[mistake]
    with jax.set_mesh(mesh_of((1,), MESHES[0]) if has_mesh else mesh_of((1,), MESHES[1])):
        report = tj.check(wrong(f), *arrays)
    assert check in [finding.check for finding in report.failures], str(report)


def test_an_input_that_was_not_compared_is_named_and_not_passed():
    """Of seven inputs five have no forward mode."""

    @functools.partial(jax.custom_jvp)
    def f(*xs):
        return xs[0] * xs[3] + sum(xs)

    def rule(primals, tangents):
        refused = (1, 2, 4, 5, 6)
        moved = [not isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents]
        if any(moved[i] for i in refused):
            raise NotImplementedError("no rule by these")
        x, y, dx, dy = primals[0], primals[3], tangents[0], tangents[3]
        out = jnp.zeros_like(x)
        out = out + (dx * (y + 1) if moved[0] else 0) + (dy * (x + 1) if moved[3] else 0)
        return f(*primals), out

    f.defjvp(rule, symbolic_zeros=True)
    report = tj.check(f, *(V + i for i in range(7)), only=("value", "jvp"))
    jvp = {finding.check: finding for finding in report.findings}["jvp"]
    assert jvp.verdict is Verdict.PARTLY
    assert jvp.problem.startswith(
        "compared by argument 0, argument 3 alone, not by argument 1, argument 2, argument 4, "
    )
    assert "1 passed, 1 partly passed" in str(report)
    report.raise_if_failed()
