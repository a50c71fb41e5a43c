"""Tropical functions on meshes with automatic and explicit axes: the bits and winners of one device,
and for a step the collectives of a product of matrices.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ext_tropical import (
    Chain,
    Network,
    align,
    align_symbols,
    best_assignment,
    closure,
    log_sum_exp,
    tropical_dot_general,
    tropical_einsum,
    tropical_einsum_with_argmax,
    tropical_reduce_sum,
    viterbi,
)
from ext_tropical.networks.log_derivatives import NetworkShares
from ext_tropical.networks.many import NetworkSamples
from ext_tropical.networks.value import TropicalNetwork
from ext_tropical.networks.walk import NetworkEntries
from ext_tropical.semirings.semiring import SelectiveSemiring
from ext_tropical.semirings.shipped import max_plus
from ext_tropical.steps.at_winner import AtWinner
from ext_tropical.steps.einsum_op import Outputs, TropicalEinsum
from ext_tropical.steps.log_einsum import LogEinsum
from ext_tropical.steps.sum_einsum import SumEinsum
from ext_tropical.steps.weighted_sum import Place, WeightedSum
from tenferro_jax.extension.routes import routes
from tenferro_jax.testing import check

from ..helpers import collectives, mesh, near
from .sums import Counting, Modulo
from .test_semirings import made as made_semiring

pytestmark = pytest.mark.cpu
P = jax.P
MATRICES = "ij,jk->ik"
SPLITS = {
    "rows": ((8,), P("d"), P()),
    "columns": ((8,), P(), P(None, "d")),
    "contracted": ((8,), P(None, "d"), P("d")),
    "contracted, left alone": ((8,), P(None, "d"), P()),
    "rows and columns": ((2, 4), P("d"), P(None, "e")),
    "rows and contracted": ((2, 4), P("d", "e"), P("e")),
    "contracted by two axes": ((2, 4), P(None, ("d", "e")), P(("d", "e"))),
}
WHOLE = ("rows", "columns", "rows and columns")  # the contracted label is on each device
rng = np.random.default_rng(0)
X, Y, WEIGHTS = rng.normal(size=(3, 64, 64)).astype(np.float32)


def placed(split, *arrays, kind=AxisType.Auto):
    shape, *specs = SPLITS[split]
    on = mesh(shape, kind)
    return [jax.device_put(x, jax.NamedSharding(on, s)) for x, s in zip(arrays, specs, strict=True)]


def value(x, y, semiring="max_plus"):
    return tropical_einsum(MATRICES, x, y, semiring=semiring)


def winners(x, y, semiring="max_plus"):
    result = tropical_einsum_with_argmax(MATRICES, x, y, semiring=semiring)
    return result.value, result.winner


def gradient(fn):
    return jax.grad(lambda x, y: (fn(x, y) * WEIGHTS).sum(), (0, 1))


CASES = [*((name, "float32") for name in ("max_plus", "min_plus", "max_mul", "min_max"))]
CASES += [(name, dtype) for name in ("max_plus",) for dtype in ("float64", "int32", "bfloat16")]
CASES += [("or_and", "bool")]


@functools.partial(jax.jit, static_argnums=2)
def value_and_winners(x, y, semiring):
    return value(x, y, semiring), *winners(x, y, semiring)


@pytest.mark.few(7)
@pytest.mark.parametrize(("semiring", "dtype"), CASES)
@pytest.mark.parametrize("split", SPLITS)
def test_bits_and_winners_are_those_of_one_device(split, semiring, dtype):
    """With few distinct entries, so that many candidates are equal, infinities and NaN."""
    table = np.random.default_rng(1).integers(0 if dtype == "bool" else 1, 5, (2, 64, 64))
    x, y = (np.array(side, jnp.dtype(dtype)) for side in table)
    if dtype == "float32":
        x[3, 17] = y[40, 5] = np.nan
        x[5], y[:, 9] = -np.inf, np.inf
        x[8] = x[11, ::3] = {"max_plus": -np.inf, "min_plus": np.inf}.get(semiring, 0.0)
    chex.assert_trees_all_equal(
        value_and_winners(*placed(split, x, y), semiring), value_and_winners(x, y, semiring)
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("split", SPLITS)
def test_collectives_are_those_of_a_product(split):
    """A winner needs a second reduction: the value, then the first entry among those that have it.
    log_sum_exp needs two: the largest value, then the sum. A derivative follows the winners, which
    that of a product does not need.
    """
    x, y = placed(split, X, Y)
    product = collectives(jnp.matmul, x, y)
    if split == "contracted, left alone":  # a reduction in place of gathering the left operand
        product = {"all-reduce": 1}
    twice = {kind: 2 * n for kind, n in product.items()}
    soft = functools.partial(value, semiring=log_sum_exp(0.5))
    assert collectives(value, x, y) == product
    assert collectives(winners, x, y) == twice
    assert collectives(functools.partial(best_assignment, MATRICES), x, y) == twice
    assert collectives(soft, x, y) == twice
    slope = collectives(gradient(jnp.matmul), x, y)
    want = slope.get("all-reduce", 0) + (0 if split in WHOLE else 2)
    for fn in (value, soft):
        assert collectives(gradient(fn), x, y) == ({"all-reduce": want} if want else {})


@jax.jit
def derivatives(x, y):
    """Along the winners; under log_sum_exp the gradient, and its own."""
    soft = functools.partial(value, semiring=log_sum_exp(0.5))
    second = jax.grad(lambda x, y: (gradient(soft)(x, y)[0] ** 2).sum(), (0, 1))
    return gradient(value)(x, y), gradient(soft)(x, y), second(x, y)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("split", SPLITS)
def test_derivatives(split):
    near(derivatives(*placed(split, X, Y)), derivatives(X, Y), 1e-4)


# max_plus of an author, whose values of devices are gathered.
LATER = {
    "id": "tests.later.v1",
    "times": lambda self, x, y: x + y,
    "better": lambda self, y, x: y > x,
    "zero": lambda self, dtype: max_plus.zero(dtype),
    "one": lambda self, dtype: max_plus.one(dtype),
}
Later = made_semiring(SelectiveSemiring, LATER)


@pytest.mark.few(1)
@pytest.mark.parametrize("split", ["contracted by two axes", "rows and contracted", "columns"])
def test_semirings_of_authors(split):
    """One that selects, and sums, whose contracted labels are gathered."""
    x, y = placed(split, X, Y)
    chex.assert_trees_all_equal(
        jax.jit(functools.partial(winners, semiring=Later()))(x, y), winners(X, Y)
    )
    table = np.random.default_rng(4).integers(0, 7, (2, 64, 64)).astype(np.int32)
    run = functools.partial(tropical_einsum, MATRICES, semiring=Modulo(7))
    chex.assert_trees_all_equal(jax.jit(run)(*placed(split, *table)), table[0] @ table[1] % 7)


@pytest.mark.parametrize(
    ("ask", "semiring", "most"),
    [(value, max_plus, 0.6), (winners, max_plus, 1.1), (winners, Later(), 2.6)],
    ids=["reduced", "with winners", "gathered"],
)
def test_large_results_are_merged_in_blocks(ask, semiring, most):
    """Of sizes that blocks do not divide; so many times the memory of the value at most."""
    x, y = np.random.default_rng(5).integers(0, 3, (2, 517, 8)).astype(np.float32)
    x[7, 3] = y[9, 5] = np.nan
    run, on_mesh = functools.partial(ask, semiring=semiring), placed("contracted", x, y.T)
    compiled = jax.jit(run).lower(*on_mesh).compile()
    chex.assert_trees_all_equal(compiled(*on_mesh), jax.jit(run)(x, y.T))
    assert compiled.memory_analysis().temp_size_in_bytes < most * 4 * 517 * 517


def test_16_bit_values_are_merged_before_they_are_rounded():
    """Or the first device would win where only rounded values are equal."""
    x, y = (np.array(side, jnp.bfloat16) for side in ([[256] * 8], [[0.5]] * 7 + [[0.75]]))
    assert winners(x, y)[1] == jax.jit(winners)(*placed("contracted", x, y))[1] == 7


PLAN = "ab,bc,c->a|1,2:b|0,3:a"
SIZES = (("a", 2), ("b", 3))
OPS = {
    "value": TropicalEinsum(max_plus, "bij,bjk->bik"),
    "winner": TropicalEinsum(max_plus, MATRICES, Outputs.VALUE_AND_WINNER),
    "one operand": TropicalEinsum(max_plus, "ijk->ki", Outputs.VALUE_AND_WINNER),
    "sum of exponentials": LogEinsum(0.5, MATRICES),
    "gather": AtWinner(MATRICES, Place.RHS),
    "scatter": AtWinner(MATRICES, Place.LHS, (3,)),
    "weighted": WeightedSum(log_sum_exp(0.5), MATRICES, (Place.LHS, Place.OUT), Place.RHS),
    "best": WeightedSum(max_plus, MATRICES, (Place.OUT,), Place.LHS),
    "own sums": SumEinsum(Counting(), MATRICES),
    "network": TropicalNetwork("min_plus", PLAN, True),
    "network of exponentials": TropicalNetwork(log_sum_exp(0.5), PLAN),
    "entries": NetworkEntries("ab,b", "a", SIZES),
    "sum of entries": NetworkEntries("ab,bb", "a", SIZES, is_sum=True),
    "added entries": NetworkEntries("ab,a", "a", SIZES, True, True),
    "shares": NetworkShares(0.5, PLAN, (0,)),
    "cotangents": NetworkShares(0.5, PLAN, (0,), True),
    "samples": NetworkSamples(0.7, "ab,bc,c->|1,2:b|0,3:"),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPS)
def test_the_rule_of_each_op(name):
    report = check(OPS[name], only=["sharding_rule"])
    (finding,) = report.findings
    assert not report.failures, report
    assert finding.cases


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("semiring", ["max_plus", "max_mul", "log_sum_exp"])
def test_a_batch_of_small_networks_is_one_op_on_each_device(semiring, kind):
    algebra = log_sum_exp() if semiring == "log_sum_exp" else semiring
    tables = np.random.default_rng(8).uniform(1, 2, (3, 8, 3, 3)).astype(np.float32)
    value = functools.partial(tropical_einsum, "ab,bc,cd->a", semiring=algebra)
    gradient = jax.grad(lambda *xs: value(*xs).sum(), (0, 1, 2))
    best = functools.partial(best_assignment, "ab,bc,cd->a", semiring=algebra)
    asked = [value, gradient, *([] if semiring == "log_sum_exp" else [best])]
    placed = [jax.device_put(x, jax.NamedSharding(mesh((8,), kind), P("d"))) for x in tables]
    with jax.set_mesh(mesh((8,), kind)):
        for fn in map(jax.vmap, asked):
            for pair in zip(*(jax.tree.leaves(jax.jit(fn)(*xs)) for xs in (placed, tables))):
                np.testing.assert_allclose(*pair, rtol=1e-6 if semiring == "log_sum_exp" else 0)
            assert collectives(fn, *placed) == {}
            assert all(
                "network" in r.family_id or "rows" in r.family_id for r in routes(fn, *placed)
            )


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("label", "xabz")
def test_small_networks_are_those_of_one_device_whichever_label_is_split(label, kind):
    """Batch labels of all tables and of one, a contracted label, and one in a diagonal."""
    terms = ["xab", "zbx", "aax", "xa"]
    tables = [
        np.random.default_rng(9 + i).normal(size=(8,) * len(term)).astype(np.float32)
        for i, term in enumerate(terms)
    ]
    firsts = [term.find(label) for term in terms]  # of a diagonal one axis is split
    specs = [P(*[None] * at, "d") if at >= 0 else P() for at in firsts]
    with jax.set_mesh(mesh((8,), kind)):
        given = [jax.device_put(table, spec) for table, spec in zip(tables, specs)]
        for algebra in ("max_plus", log_sum_exp()):
            value = functools.partial(tropical_einsum, f"{','.join(terms)}->xz", semiring=algebra)
            gradient = jax.grad(lambda *xs, value=value: (value(*xs) ** 2).sum(), (0, 1, 2, 3))
            assert "network" in routes(value, *given)[0].family_id
            both = jax.jit(lambda *xs: (value(*xs), gradient(*xs)))
            near(both(*given), both(*tables))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("specs", [(P(), P(None, None)), (P(None), P("d")), (P("d"), P("d"))])
def test_questions_outside_jit(specs, kind):
    """Whatever the specs of the tables: their labels are rows of one array."""
    rng = np.random.default_rng(11)
    first, *rest = rng.normal(size=(1, 8)), *rng.normal(size=(20, 8, 8))
    tables = [x.astype(np.float32) for x in (*first, *rest)]
    terms = ",".join(["a", *["ab", "bc", "cd", "da"] * 5])
    with jax.set_mesh(mesh((8,), kind)):
        given = [jax.device_put(x, specs[x.ndim - 1]) for x in tables]
        for output in ("", "a"):
            ask = functools.partial(best_assignment, f"{terms}->{output}")
            chex.assert_trees_all_equal(ask(*given), ask(*tables))
        ours, alone = (Network(f"{terms}->", *xs) for xs in (given, tables))
        for ask in (lambda n: n.best(), lambda n: n.best(k=3), lambda n: list(n.all_best())):
            chex.assert_trees_all_equal(ask(ours), ask(alone))
        chex.assert_trees_all_equal(
            ours.sample(jax.random.key(0), (5,)), alone.sample(jax.random.key(0), (5,))
        )


# --- every public function ------------------------------------------------------------------------

CHAIN, LOOP = "ij,jk,kl->il", "ij,jk,kl,li->i"
# Bytes of working memory, for which a chain of matrices of 64 x 64 is sliced.
SLICED = 80_000


def table(*shape):
    """Few distinct numbers, so that many candidates are equal."""
    return rng.integers(0, 9, shape).astype(np.float32)


SMALL = [table(8, 8) for _ in range(3)]
LARGE = [table(64, 64) for _ in range(4)]


def walks(costs):
    found = closure(costs + 1)
    return found.value, found.converged, found.on_cycle, found.predecessors()


def last_winners(*tables):
    found = tropical_einsum_with_argmax(CHAIN, *tables)
    return found.value, found.winner, found.coordinates(), found.feasible


def decoded(k, *tables):
    found = viterbi(*tables, k=k)
    return found.score, found.states, found.feasible


def aligned(*scores, **how):
    found = align(*scores, **how)
    return found.score, found.path


def aligned_symbols(substitution):
    found = align_symbols([0, 7, 3, 3, 1], [9, 15, 0, 2], substitution, gap=-1.0)
    return found.score, found.path


def asked(question, *tables, **how):
    return question(Network("ab,bc,cd->", *tables, **how))


QUESTIONS = {
    "value": Network.value,
    "best": Network.best,
    "the 3 best": lambda net: net.best(k=3),
    "log_partition": Network.log_partition,
    "marginals": Network.marginals,
    "entropy": Network.entropy,
    "given": lambda net: net.given(a=1, d=2).best(),
    "sum_out": lambda net: net.sum_out("b").best(),
    "sample": lambda net: net.sample(jax.random.key(0), (5,)),
}
HIDDEN = [table(8), table(8, 8), table(16, 8)]
PAIRS = [table(8, 16)]
FUNCTIONS = {
    "closure": (walks, SMALL[:1]),
    "one step": (functools.partial(tropical_einsum, "ij,jk->ik"), SMALL[:2]),
    "small plan": (functools.partial(tropical_einsum, CHAIN), SMALL),
    "large plan": (functools.partial(tropical_einsum, LOOP), LARGE),
    "log_sum_exp": (functools.partial(tropical_einsum, LOOP, semiring=log_sum_exp()), LARGE),
    "equal shares": (functools.partial(tropical_einsum, CHAIN, ties="split"), SMALL),
    "slices": (functools.partial(tropical_einsum, "ij,jk,kl->l", memory_limit=SLICED), LARGE[:3]),
    "best of slices": (
        functools.partial(best_assignment, "ij,jk,kl->l", memory_limit=SLICED + 20_000),
        LARGE[:3],
    ),
    "diagonals": (functools.partial(tropical_einsum, "iij,jk->ik"), [table(8, 8, 8), SMALL[0]]),
    "outer product": (functools.partial(tropical_einsum, "i,j"), [table(8), table(8)]),
    "best of a step": (functools.partial(best_assignment, "ij,jk->ik"), SMALL[:2]),
    "best of a plan": (functools.partial(best_assignment, LOOP), LARGE),
    "winners": (last_winners, SMALL),
    "viterbi": (functools.partial(decoded, None), HIDDEN),
    "viterbi, 3 best": (functools.partial(decoded, 3), HIDDEN),
    "chain, posterior": (
        lambda *xs: ((chain := Chain(*xs)).marginals(), chain.entropy(), chain.log_prob([3] * 16)),
        HIDDEN,
    ),
    "chain, lengths": (lambda *xs: Chain(*xs, 5, final=xs[0]).best(), HIDDEN),
    "chain, samples": (lambda *xs: Chain(*xs).sample(jax.random.key(0), (4,)), HIDDEN),
    "align": (functools.partial(aligned, gap=-1.0), PAIRS),
    "align, local": (functools.partial(aligned, gap=-1.0, gap_open=-2.0, mode="local"), PAIRS),
    "align, soft": (functools.partial(aligned, gap=-1.0, semiring="log_sum_exp"), PAIRS),
    "align, free ends": (functools.partial(aligned, gap=-1.0, ends="second end"), PAIRS),
    "align, lengths": (functools.partial(aligned, lengths=(5, 7), semiring="min_plus"), PAIRS),
    "align_symbols": (aligned_symbols, PAIRS),
    "dot_general": (tropical_dot_general, SMALL[:2]),
    "reduce_sum": (functools.partial(tropical_reduce_sum, axis=0), SMALL[:1]),
    **{
        f"small network, {name}": (functools.partial(asked, question), SMALL)
        for name, question in QUESTIONS.items()
    },
    "large network": (functools.partial(asked, Network.best), LARGE[:3]),
    "network in slices": (
        functools.partial(asked, Network.marginals, memory_limit=SLICED + 20_000),
        LARGE[:3],
    ),
}


FIRST = P("d")


def placed_on(kind, arrays, spec=FIRST):
    return [jax.device_put(x, jax.NamedSharding(mesh((8,), kind), spec)) for x in arrays]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_one_device(name, kind):
    """Outside jit without a mesh that is set, and inside with one."""
    fn, arrays = FUNCTIONS[name]
    given, want = placed_on(kind, arrays), fn(*arrays)
    near(fn(*given), want)
    with jax.set_mesh(mesh((8,), kind)):
        near(jax.jit(fn)(*given), want)


DIFFERENTIATED = ["closure", "large plan", "slices", "viterbi, 3 best", "align", "small plan"]


@pytest.mark.few(1)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_and_batches(name, mapped):
    fn, arrays = FUNCTIONS[name]

    def loss(*xs):
        return (jax.tree.leaves(fn(*xs))[0] ** 2).sum()

    run = jax.jit(jax.vmap(jax.grad(loss)) if mapped else jax.grad(loss))
    if mapped:
        arrays = [np.stack([x] * 8) for x in arrays]
    want = run(*arrays)
    with jax.set_mesh(mesh((8,), AxisType.Explicit)):
        near(run(*placed_on(AxisType.Explicit, arrays)), want)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("semiring", ["log_sum_exp", "max_plus"])
def test_slices_over_devices(semiring, kind):
    fn = functools.partial(tropical_einsum, "ij,jk->ik", semiring=semiring)

    def slopes(fn, *xs):
        return jax.grad(lambda *xs: (fn(*xs) ** 2).sum(), (0, 1))(*xs)

    given, over = placed_on(kind, SMALL[:2]), functools.partial(fn, over="d")
    with jax.set_mesh(mesh((8,), kind)):
        near(over(*given), fn(*SMALL[:2]))
        near(slopes(over, *given), slopes(fn, *SMALL[:2]))
