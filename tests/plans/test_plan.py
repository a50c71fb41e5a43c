"""Equations against NumPy's own reading; plans against a count by hand and exhaustive search; their
refusals.
"""

import collections
import itertools
import math

import jax.export
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opt_einsum import get_symbol
from scipy.spatial import Delaunay

from tenferro_jax import plan_einsum
from tenferro_jax.errors import InvalidConfig, ShapeError
from tenferro_jax.plans import parse_equation
from tenferro_jax.plans import plan as plan_module

from ..helpers import each_ends_in, ends_in, python

CHAIN = "ab,bc,cd,de->ae"
SHAPES = [(2, 30), (30, 4), (4, 50), (50, 3)]


COSTS = {  # of the five ways to put brackets those with small factors
    2 * 30 * 4 + 4 * 50 * 3 + 2 * 4 * 3: ["optimal", "dp", "auto", "branch-all"],  # the least
    2 * 30 * 4 + 2 * 4 * 50 + 2 * 50 * 3: [False, [(0, 1, 2, 3)]],
    4 * 50 * 3 + 30 * 4 * 3 + 2 * 30 * 3: [
        [(2, 3), (1, 2), (0, 1)],
        ["einsum_path", (2, 3), (1, 2), (0, 1)],
        np.array([(2, 3), (1, 2), (0, 1)]),
    ],
}


@pytest.mark.parametrize(("cost", "ways"), list(COSTS.items()))
def test_costs_counted_by_hand(cost, ways):
    assert [plan_einsum(CHAIN, SHAPES, way).cost for way in ways] == [cost] * len(ways)


def test_true_is_auto_and_false_goes_from_left_to_right():
    assert plan_einsum(CHAIN, SHAPES, True) == plan_einsum(CHAIN, SHAPES, "auto")
    assert [sorted(step.operands) for step in plan_einsum(CHAIN, SHAPES, False).steps] == [
        [0, 1],
        [2, 4],
        [3, 5],
    ]
    assert plan_einsum("ab->ba", SHAPES[:1], False).steps == plan_einsum("ab->ba", SHAPES[:1]).steps


def test_labels_of_one_operand_are_reduced_first():
    plan = plan_einsum("iij,jkl,k->i", [(3, 3, 4), (4, 5, 6), (5,)])
    assert [(s.equation, s.cost, s.size) for s in plan.steps[:2]] == [
        ("iij->ij", 12, 12),
        ("jkl->jk", 120, 20),
    ]
    assert plan.largest_intermediate == 20
    assert set(plan.steps[-1].result) == {"i"}


def test_each_step_reads_what_is_there_and_sizes_are_products():
    plan = plan_einsum("abx,bcd,da,ce->e", [(2, 3, 1), (3, 4, 5), (5, 2), (4, 6)])
    labels, sizes = list(plan.terms), dict(plan.sizes)
    for step in plan.steps:
        assert [labels[i] for i in step.operands] == list(step.terms)
        assert step.size == math.prod(sizes[label] for label in step.result)
        assert step.cost == math.prod(sizes[label] for label in set("".join(step.terms)))
        labels.append(step.result)
    assert labels[-1] == "e"


def graph(kind, rng):
    """The edges of a graph."""
    if kind == "chain":
        return [(i, i + 1) for i in range(60)]
    if kind == "random":
        return sorted(nx.random_regular_graph(3, 40, seed=int(rng.integers(99))).edges)
    if kind == "triangulation":
        corners = Delaunay(rng.random((60, 2))).simplices
        return sorted({tuple(sorted(e)) for c in corners for e in itertools.combinations(c, 2)})
    sites = list(itertools.product(range(8), repeat=2))
    near = {1, 2} if kind == "8 neighbours" else {1}  # squares of distances
    pairs = itertools.combinations(range(64), 2)
    return [p for p in pairs if math.dist(*(sites[i] for i in p)) ** 2 // 1 in near]


def equation_of(scopes):
    return ",".join("".join(map(get_symbol, scope)) for scope in scopes) + "->"


@pytest.mark.parametrize(
    "kind", ["8 neighbours", "4 neighbours", "triangulation", "chain", "random"]
)
@pytest.mark.parametrize("place", ["before", "behind", "between"])
def test_small_tables_do_not_spoil_a_plan(kind, place):
    """Tables of one variable cost no more than half of what the larger tables cost without them.
    Where there are also two of a variable, of a pair, and pairs inside triples, the products of
    entries that join them count beside.
    """
    rng = np.random.default_rng(len(kind + place))
    pairs = [tuple(map(int, e)) for e in graph(kind, rng)]
    if kind == "triangulation":
        pairs += [(*pairs[i], int(rng.integers(60))) for i in range(0, len(pairs), 40)]
    larger = [s for s in pairs if not any(set(s) < set(other) for other in pairs)]
    unary = [(i,) for i in sorted(set(itertools.chain(*pairs)))]
    inner = [s for s in pairs if s not in larger]
    more = [*unary[::3], *pairs[::5]]
    for small, values, algorithm in (
        ([*unary, *inner], 2, "auto"),
        ([*unary, *inner, *more], 3, "greedy"),
    ):
        every = {"before": [*small, *larger], "behind": [*larger, *small]}.get(place)
        if every is None:
            every = [(*larger, *small)[i] for i in rng.permutation(len(larger) + len(small))]
        found = plan_einsum(equation_of(every), [(values,) * len(s) for s in every], algorithm)
        kept = [s for s in dict.fromkeys(every) if s in larger]
        alone = plan_einsum(equation_of(kept), [(values,) * len(s) for s in kept], algorithm)
        joining = sum(values ** max(2, len(s)) for s in small) if small[-1] in more else 0
        assert found.cost <= 1.5 * (alone.cost + joining)
        assert found.largest_intermediate <= max(alone.largest_intermediate, values**3)


@pytest.mark.parametrize("kind", ["8 neighbours", "4 neighbours", "triangulation", "random"])
def test_auto_plans_of_graphs(kind):
    """At most opt_einsum's greedy path; and in a grid what it costs by hand to sum site after site,
    four products for each, with the sites of a column and one or two more.
    """
    scopes = graph(kind, np.random.default_rng(0))
    equation, shapes = equation_of(scopes), [(3, 3)] * len(scopes)
    plan = plan_einsum(equation, shapes)
    assert plan.cost <= plan_einsum(equation, shapes, "greedy").cost
    if "neighbours" in kind:
        assert plan.cost <= 4 * 64 * 3 ** (10 if kind == "8 neighbours" else 9)
    seen = collections.Counter(label for term in plan.terms for label in set(term))
    for step in plan.steps:  # each label is summed when the last term that has it is read
        for label in set("".join(step.terms)):
            seen[label] += (label in step.result) - sum(label in term for term in step.terms)
            assert bool(seen[label]) == (label in step.result)


@pytest.mark.slow
def test_plans_do_not_depend_on_the_hashes_of_a_process():
    code = (
        "from tests.plans.test_plan import *;"
        "s = graph('8 neighbours', None);"
        "print(plan_einsum(equation_of(s), [(2, 2)] * len(s)).steps)"
    )
    assert len({python("-c", code, PYTHONHASHSEED=str(seed)) for seed in range(3)}) == 1


def test_symbolic_sizes_count_as_the_nominal_one():
    (n,) = jax.export.symbolic_shape("n")
    plan = plan_einsum("ij,jk->ik", [(n, 3), (3, 2)])
    assert plan.cost == plan_module.NOMINAL_SIZE * 6
    assert dict(plan.sizes)["i"] == n


def test_plans_are_values():
    assert plan_einsum(CHAIN, SHAPES) == plan_einsum(CHAIN, SHAPES)
    assert hash(plan_einsum(CHAIN, SHAPES)) == hash(plan_einsum(CHAIN, SHAPES))
    lines = str(plan_einsum("ij,jk->ik", [(2, 3), (3, 4)])).splitlines()
    assert lines[1].split() == ["2", "0,", "1", "ij,jk->ik", "24", "8"]
    assert lines[2] == "24 multiplications, at most 8 entries at once, equation ij,jk->ik"


@pytest.mark.parametrize(
    "path",
    [
        [(0, 1)],
        [(0, 4)],
        [(0, 0), (0, 1), (0, 1)],
        [(0, 1), (0, 1), (0, 1), (0, 1)],
        [0, 1],
        3,
        [("a", 1)],
        "quick",
    ],
)
def test_paths_that_do_not_fit_and_unknown_algorithms_are_refused(path):
    text = "given 'quick'" if path == "quick" else "contract all terms to one"
    ends_in(lambda: plan_einsum(CHAIN, SHAPES, path), InvalidConfig, text)


# The equation parser


@given(st.lists(st.text("abcdA", max_size=4), min_size=1, max_size=3))
def test_implicit_output_is_numpys(terms):
    equation = ",".join(terms)
    parsed = parse_equation(equation)
    shape = np.einsum(equation, *(np.ones([ord(c) % 5 + 1 for c in term]) for term in terms)).shape
    assert tuple(ord(c) % 5 + 1 for c in parsed.output) == shape


def test_every_symbol_of_opt_einsum_is_a_label_up_to_surrogates():
    symbols = [get_symbol(i) for i in (*range(55_156), *range(55_296, 60_000), 1_046_527)]
    assert len(set(symbols)) == len(symbols)
    parsed = parse_equation(",".join(symbols))
    assert parsed.inputs == tuple(symbols)
    assert parsed.output == "".join(sorted(symbols))


@pytest.mark.parametrize("character", "0_;\t\n\x00\x7f\x85\xa0\xb2\ud800")
def test_what_is_no_label(character):
    ends_in(lambda: parse_equation(f"i{character}->i"), InvalidConfig, "given the character")


def test_axes_of_an_ellipsis_have_labels_of_their_own():
    many = "".join(get_symbol(i) for i in range(64))
    assert len(set(parse_equation(f"...{many}->...", (128,)).inputs[0])) == 128


@given(st.text("ab,->. 1", max_size=8))
def test_any_text_is_read_or_refused(text):
    try:
        parsed = parse_equation(text)
    except InvalidConfig:
        return
    assert set(parsed.output) <= set("".join(parsed.inputs))


def test_sizes():
    equation = parse_equation("ij,jk")
    assert dict(equation.sizes([(2, 3), (3, 4)], "here")) == {"i": 2, "j": 3, "k": 4}
    each_ends_in(
        (lambda: equation.sizes([(2, 3)], "here"), InvalidConfig, "given 1 operand; needed 2"),
        (lambda: equation.sizes([(2, 3), (4, 4)], "here"), ShapeError, "of size 4, and of size 3"),
        (lambda: equation.sizes([(2, 3, 3), (4, 4)], "here"), ShapeError, "rank 3"),
    )
