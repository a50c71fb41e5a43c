"""Sums in any semiring against NumPy on object arrays, brute force and published counts; the same
bits by every route; what is refused.
"""

import dataclasses
import functools
import zlib

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import (
    Semiring,
    TropicalEinsum,
    best_assignment,
    closure,
    max_plus,
    plan_tropical_einsum,
    register,
    register_semiring,
    tropical_einsum,
    tropical_einsum_with_argmax,
    tropical_reduce_sum,
    viterbi,
)
from ext_tropical.einsums.slice_lengths import SCRATCH
from ext_tropical.networks.value import TropicalNetwork
from ext_tropical.semirings.laws import broken_laws
from ext_tropical.semirings.registered import SemiringKey
from ext_tropical.steps.sum_einsum import SumEinsum
from ext_tropical.steps.weighted_sum import WeightedSum
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.payload_text import payload_json

from ..helpers import ends_in, equal, passes
from ..sweep import some
from .bank import OPT_EINSUM, sized
from .judges import refusals, temporary_bytes
from .sums import ByMatmul, Counting, Modulo, Parity

N = 7


def residues(rng, shape):
    return rng.integers(0, N, shape).astype(np.int32)


def modulo(equation, *xs):
    return np.einsum(equation, *(x.astype(object) for x in xs), optimize=False) % N


def bits(rng, shape):
    return rng.random(shape) < 0.5


def parity(equation, *xs):
    return np.einsum(equation, *(x.astype(object) * 1 for x in xs), optimize=False) % 2 == 1


JUDGED = {
    "modulo": (Modulo(N), residues, modulo),
    "by matmul": (ByMatmul(N), residues, modulo),
    "parity": (Parity(), bits, parity),
}


def data(kind, case):
    rng = np.random.default_rng(zlib.crc32(f"{kind} {case.equation}".encode()))
    return [JUDGED[kind][1](rng, shape) for shape in case.shapes]


CASES = [sized(equation) for equation in OPT_EINSUM if len(set(equation)) < 12]


@pytest.mark.parametrize("case", some(CASES, 6), ids=lambda case: case.equation)
@pytest.mark.parametrize("kind", JUDGED)
def test_equations_of_opt_einsum(kind, case):
    semiring, _, judge = JUDGED[kind]
    operands = data(kind, case)
    got = tropical_einsum(case.equation, *operands, semiring=semiring)
    np.testing.assert_array_equal(got, judge(case.equation, *operands))
    assert got.dtype == operands[0].dtype


CHAIN = "ij,jk,kl->il"


def chain(kind, long):
    rng = np.random.default_rng(1)
    return [JUDGED[kind][1](rng, shape) for shape in ((4, long), (long, 6), (6, 3))]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", JUDGED)
def test_every_route_gives_the_same_bits(kind):
    semiring, _, judge = JUDGED[kind]
    operands = chain(kind, 1100)
    solve = functools.partial(tropical_einsum, CHAIN, semiring=semiring)
    value = solve(*operands)
    np.testing.assert_array_equal(value, judge(CHAIN, *operands))
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    sliced = plan_tropical_einsum(CHAIN, *specs, semiring=semiring, memory_limit=SCRATCH + 20_000)
    assert sliced.slices > 1
    routes = {
        "jit": jax.jit(solve)(*operands),
        "export": tj.load_exported(tj.export(solve, *specs).to_bytes()).call(*operands),
        "slices": jax.jit(functools.partial(solve, memory_limit=SCRATCH + 20_000))(*operands),
        "no plan": solve(*operands, optimize=False),
        "vmap": jax.vmap(solve)(*(jnp.stack([x, x]) for x in operands))[1],
        "vmap of one": jax.vmap(solve, (None, -1, None))(
            operands[0], jnp.stack([operands[1]] * 2, -1), operands[2]
        )[1],
    }
    for name, got in routes.items():
        np.testing.assert_array_equal(got, value, name)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", JUDGED)
def test_symbolic_sizes(kind):
    semiring, _, judge = JUDGED[kind]
    solve = functools.partial(tropical_einsum, "ij,jk->ki", semiring=semiring)
    sizes = jax.export.symbolic_shape("i, j, k")
    dtype = chain(kind, 1)[0].dtype
    specs = [jax.ShapeDtypeStruct(sizes[at : at + 2], dtype) for at in (0, 1)]
    program = tj.export(solve, *specs)
    rng = np.random.default_rng(0)
    for i, j, k in ((3, 1100 if kind == "modulo" else 40, 2), (2, 5, 1), (1, 33, 4)):
        operands = [JUDGED[kind][1](rng, shape) for shape in ((i, j), (j, k))]
        got = program.call(*operands)
        equal((got, judge("ij,jk->ki", *operands)), (got, solve(*operands)))


@pytest.mark.few(3)
@pytest.mark.parametrize("count", [1, 3, 16, 17, 1024, 1025, 5000])
def test_the_order_depends_on_the_number_of_contracted_entries_alone(count):
    """Sums of floats round, and agree in all bits whatever else is computed."""
    rng = np.random.default_rng(count)
    x, y = rng.normal(size=(40, count)), rng.normal(size=(count, 50))
    solve = jax.jit(functools.partial(tropical_einsum, "ij,jk->ik", semiring=Counting()))
    whole = solve(x, y)
    np.testing.assert_allclose(whole, x @ y, rtol=1e-9, atol=1e-11)
    products = x[:, :, None] * y[None]
    entries = jax.jit(functools.partial(tropical_einsum, "ijk->ik", semiring=Counting()))(products)
    equal(
        (solve(x[3:5], y[:, 7:9]), whole[3:5, 7:9]),
        (jax.vmap(solve, (0, None))(x[:, None], y)[:, 0], whole),
    )
    np.testing.assert_allclose(entries, whole, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", JUDGED)
def test_nothing_contracted_and_empty_axes(kind):
    semiring, made, _ = JUDGED[kind]
    rng = np.random.default_rng(0)
    solve = functools.partial(tropical_einsum, semiring=semiring)
    empty = solve("ij,jk->ik", made(rng, (2, 0)), made(rng, (0, 3)))
    zero = np.asarray(semiring.zero(np.dtype(empty.dtype)))
    equal(
        (empty, np.full((2, 3), zero)),
        (solve("i->", made(rng, (0,))), zero),
        (solve("i,ij,j->", made(rng, (2,)), made(rng, (2, 0)), made(rng, (0,))), zero),
    )
    assert solve("ij,jk->ik", made(rng, (0, 2)), made(rng, (2, 3))).shape == (0, 3)
    x = made(rng, (2, 3))
    equal((solve("ij->ij", x), x), (solve("ij->ji", x), x.T))


@pytest.mark.few(5)
@pytest.mark.parametrize("kind", JUDGED)
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 2)]),
        ("...ij,jk", [(2, 3, 4), (4, 2)]),
        ("...->...", [(2, 3)]),
        ("...i,...i", [(2, 3), (2, 3)]),
        ("ij,jk", [(1, 3), (3, 1)]),
        ("ij,jk->", [(2, 1), (3, 2)]),
    ],
)
def test_ellipses_and_sizes_of_one(kind, equation, shapes):
    semiring, made, judge = JUDGED[kind]
    rng = np.random.default_rng(0)
    operands = [made(rng, shape) for shape in shapes]
    got = tropical_einsum(equation, *operands, semiring=semiring)
    if equation == "ij,jk->":  # NumPy's einsum repeats entries only where the label is elsewhere
        operands[0] = np.repeat(operands[0], 3, -1)
    np.testing.assert_array_equal(got, judge(equation, *operands))


# --- memory, plans, bytes -------------------------------------------------------------------------


@pytest.mark.cpu
def test_not_all_candidates_are_held():
    spec = jax.ShapeDtypeStruct((256, 256), np.int32)
    solve = functools.partial(tropical_einsum, "ij,jk->ik", semiring=Modulo(N))
    # All candidates are 256 times an operand.
    assert temporary_bytes(solve, spec, spec) < 20 * 4 * 256**2


def test_graphs_keep_the_semiring():
    op = SumEinsum(Modulo(5), "ij,jk->ik")
    assert ExtensionFactory(SumEinsum).decode(payload_json(op)) == op
    assert op.algebra == Modulo(5)
    x, y = np.arange(4, dtype=np.int32).reshape(2, 2), np.eye(2, dtype=np.int32)
    solve = functools.partial(tropical_einsum, "ij,jk->ik", semiring=Modulo(5))
    register()
    (value,) = tj.from_wire(tj.to_wire(tj.trace(solve, x, y)))(x, y)
    np.testing.assert_array_equal(value, x)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [
        SumEinsum(Modulo(5), "ij,jk->ik"),
        SumEinsum(ByMatmul(5), "bij,bj->ib"),
        SumEinsum(Counting(), "ijk->ki"),
    ],
    ids=repr,
)
def test_steps_conform(op):
    passes(op)


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("semiring", "values"),
    [
        (Modulo(5), np.arange(5, dtype=np.int32)),
        (ByMatmul(4), np.arange(4, dtype=np.int64)),
        (Parity(), np.array([False, True])),
        (Counting(), np.array([0, 1, -2, 5], np.int32)),
    ],
    ids=repr,
)
def test_laws(semiring, values):
    assert broken_laws(semiring, values) == {}


def changed(base, name, **parts):
    """A registered semiring like another, with other methods."""
    parts = {"id": f"tests.{name}.v1", **parts}
    made = type(name, (base,), parts)
    return register_semiring(dataclasses.dataclass(frozen=True, repr=False)(made))


@pytest.mark.parametrize(
    ("name", "parts", "law"),
    [
        ("differs", {"plus": lambda s, x, y: (x - y) % s.n}, "plus commutes"),
        ("halves", {"plus": lambda s, x, y: (x + y) // 2 % s.n}, "plus associates"),
        ("leans", {"times": lambda s, x, y: x * y * y % s.n}, "times commutes"),
        ("adds", {"times": lambda s, x, y: (x * y + 1) % s.n}, "times associates"),
        ("joins", {"times": lambda s, x, y: (x + y) % s.n}, "times distributes over plus"),
        ("wraps", {"matmul": lambda s, x, y: x @ y}, "matmul is plus of times"),
    ],
)
def test_broken_laws_are_named(name, parts, law):
    found = broken_laws(changed(Modulo, f"broken_{name}", **parts)(5), np.arange(5, dtype=np.int32))
    assert law in found
    assert broken_laws(Modulo(5), np.arange(5, dtype=np.int32)) == {}


NOT_NEUTRAL = {
    "zero": (lambda s, dtype: np.ones((), dtype), "zero is not neutral for plus: plus"),
    "one": (lambda s, dtype: np.asarray(2, dtype), "one is not neutral for times: times"),
    "times": (
        lambda s, x, y: jnp.where((x == 2) | (y == 2), 2, x * y),
        "zero does not absorb: times",
    ),
}


@pytest.mark.parametrize("name", NOT_NEUTRAL)
def test_a_zero_or_one_that_breaks_a_law_is_refused_when_it_is_used(name):
    wrong, text = NOT_NEUTRAL[name]
    semiring = changed(Modulo, f"wrong_{name}", **{name: wrong})(7)
    x = np.ones((2, 2), np.int32)
    calls = (
        lambda: tropical_einsum("ij,jk->ik", x, x, semiring=semiring),
        lambda: jax.jit(lambda x: tropical_einsum("ij,jk->ik", x, x, semiring=semiring))(x),
        lambda: plan_tropical_einsum("ij->", (2, 2), semiring=semiring),
        lambda: SumEinsum(semiring, "ij->i"),
        lambda: SemiringKey.of(semiring),
    )
    ends_in(calls, InvalidConfig, f"tests.wrong_{name}.v1: given {text}")
    assert broken_laws(semiring, np.arange(7, dtype=np.int32))


MISTAKES = {
    "times": (
        lambda s, x, y: x.astype(jnp.float32) * y.astype(jnp.float32),
        "times returns float32",
    ),
    "plus": (lambda s, x, y: (x + y) / 1, "plus returns float"),
    "zero": (
        lambda s, dtype: np.zeros(2, dtype),
        r"zero.* returns float32\[2\], where float32\[\] is needed",
    ),
    "matmul": (
        lambda s, x, y: jnp.swapaxes(x @ y, -1, -2),
        r"matmul returns float32\[1, 4, 2\], where float32\[1, 2, 4\] is needed",
    ),
    "matmul ": (
        lambda s, x, y: jnp.matmul(x, y).reshape(7),
        "matmul raises TypeError",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_dtype_that_is_used_is_named(name):
    """Also if the class takes floats, where it returns what it should."""
    wrong, text = MISTAKES[name]
    dtypes = ("int32", "float32")
    parts = {"dtypes": dtypes, "times": lambda s, x, y: x * y, "plus": lambda s, x, y: x + y}
    number = list(MISTAKES).index(name)
    semiring = changed(Modulo, f"mistake_{number}_of_integers", **(parts | {name.strip(): wrong}))(
        7
    )
    x, y = np.ones((3, 4), np.int32), np.ones((4, 2), np.int32)
    ends_in(lambda: tropical_einsum("ij,jk->ik", x, y, semiring=semiring), InvalidConfig, text)


# --- refusals -------------------------------------------------------------------------------------

X = np.ones((3, 3))
PLAIN = np.ones((3, 3), np.int32)
NO_DERIVATIVE = r"sum_einsum.v1: given counting, whose plus does not select.*jax.lax.stop_gradient"


def total(equation, *xs, **how):
    return tropical_einsum(equation, *xs, semiring=Counting(), **how).sum()


test_refusals = refusals(
    (ADRuleError, NO_DERIVATIVE, lambda: jax.grad(lambda x: total("ij,jk->ik", x, X))(X)),
    (ADRuleError, NO_DERIVATIVE, lambda: jax.grad(lambda x: total("ij,jk,kl->", x, X, X))(X)),
    (
        ADRuleError,
        NO_DERIVATIVE,
        lambda: jax.grad(lambda x: total("ij,jk->i", x, X, memory_limit=SCRATCH + 1000))(X),
    ),
    (ADRuleError, NO_DERIVATIVE, lambda: jax.jvp(lambda x: total("ij->", x), [X], [X])),
    (
        TypeError,
        "grad requires",
        lambda: jax.grad(lambda x: tropical_einsum("ij->", x, semiring=Modulo(5)))(PLAIN),
    ),
    *(
        (
            InvalidConfig,
            "given modulo.n=5.; needed a selective semiring.*There are no winners",
            functools.partial(call, *args, semiring=Modulo(5)),
        )
        for call, *args in (
            (best_assignment, "ij,jk->ik", PLAIN, PLAIN),
            (tropical_einsum_with_argmax, "ij,jk->ik", PLAIN, PLAIN),
            (closure, PLAIN),
            (viterbi, PLAIN[0], PLAIN, PLAIN),
        )
    ),
    (
        InvalidConfig,
        "ties: given 'split' under modulo",
        lambda: tropical_einsum("ij->", PLAIN, semiring=Modulo(5), ties="split"),
    ),
    *(
        (InvalidConfig, text, functools.partial(op, Modulo(5), equation))
        for op, equation, text in (
            (TropicalEinsum, "ij->i", "needed a selective semiring"),
            (WeightedSum, "ij->i", "needed a selective semiring or log_sum_exp"),
            (TropicalNetwork, "a->|0:", "needed a selective semiring, or log_sum_exp"),
        )
    ),
    (InvalidConfig, "given max_plus; needed a semiring that", lambda: SumEinsum(max_plus, "ij->i")),
    (
        DTypeError,
        "given dtype float64 under modulo.n=5.; needed one of int32, int64",
        lambda: tropical_einsum("ij->", np.ones((3, 3)), semiring=Modulo(5)),
    ),
    (
        InvalidConfig,
        "broken_laws, values: given .*needed shape .n,., no NaN",
        lambda: broken_laws(Counting(), np.ones((2, 3))),
    ),
    (
        InvalidConfig,
        "a class that writes plus",
        lambda: changed(Semiring, "no_plus", **dict.fromkeys(("times", "zero", "one"))),
    ),
)


def test_reductions():
    x = np.arange(9, dtype=np.int32).reshape(3, 3)
    np.testing.assert_array_equal(tropical_reduce_sum(x, 1, semiring=Modulo(5)), x.sum(1) % 5)
