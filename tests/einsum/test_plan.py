"""Plans: their figures against a count by hand, their choice against exhaustive search, their refusals."""

import itertools
import math
import sys

import jax.export
import pytest
from opt_einsum import get_symbol

from tenferro_jax import plan_einsum
from tenferro_jax.einsum import einsum_plan as plan_module
from tenferro_jax.errors import InvalidConfig, Unsupported

from ..helpers import ends_in

CHAIN = "ab,bc,cd,de->ae"
SHAPES = [(2, 30), (30, 4), (4, 50), (50, 3)]


def cost_of_chain(order):
    """Multiplications of a matrix chain when its inner labels are summed in this order."""
    sizes = [2, 30, 4, 50, 3]
    spans = [(i, i + 1) for i in range(4)]
    total = 0
    for inner in order:
        left = next(s for s in spans if s[1] == inner)
        right = next(s for s in spans if s[0] == inner)
        total += sizes[left[0]] * sizes[inner] * sizes[right[1]]
        spans = [s for s in spans if s not in (left, right)] + [(left[0], right[1])]
    return total


def test_the_optimal_plan_costs_what_an_exhaustive_search_finds():
    best = min(map(cost_of_chain, itertools.permutations([1, 2, 3])))
    for name in ("optimal", "dp", "auto", "branch-all"):
        assert plan_einsum(CHAIN, SHAPES, name).cost == best
    assert plan_einsum(CHAIN, SHAPES, [(2, 3), (1, 2), (0, 1)]).cost == cost_of_chain([3, 2, 1])
    assert plan_einsum(CHAIN, SHAPES, ["einsum_path", (2, 3), (1, 2), (0, 1)]).cost == cost_of_chain([3, 2, 1])


def test_true_is_auto_and_false_goes_from_left_to_right():
    assert plan_einsum(CHAIN, SHAPES, True) == plan_einsum(CHAIN, SHAPES, "auto")
    assert [sorted(step.operands) for step in plan_einsum(CHAIN, SHAPES, False).steps] == [[0, 1], [2, 4], [3, 5]]
    assert plan_einsum("ab->ba", SHAPES[:1], False).steps == plan_einsum("ab->ba", SHAPES[:1]).steps


def test_labels_of_one_operand_are_reduced_first():
    plan = plan_einsum("iij,jkl,k->i", [(3, 3, 4), (4, 5, 6), (5,)])
    assert [(s.equation, s.cost, s.size) for s in plan.steps[:2]] == [("iij->ij", 12, 12), ("jkl->jk", 120, 20)]
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
    assert lines[2] == "24 multiplications, at most 8 entries at once, order ij,jk->ik"


def test_cotengra_plans_and_is_named_where_it_is_missing(monkeypatch):
    assert plan_einsum(CHAIN, SHAPES, "cotengra").cost == plan_einsum(CHAIN, SHAPES, "optimal").cost
    monkeypatch.setitem(sys.modules, "cotengra", None)
    ends_in(lambda: plan_einsum(CHAIN, SHAPES, "cotengra"), Unsupported, r"pip install 'tenferro-jax\[cotengra\]'")


@pytest.mark.parametrize("path", [[(0, 1)], [(0, 4)], [(0, 0), (0, 1), (0, 1)], [(0, 1), (0, 1), (0, 1), (0, 1)], [0, 1], 3, [("a", 1)]])
def test_paths_that_do_not_fit_are_refused(path):
    ends_in(lambda: plan_einsum(CHAIN, SHAPES, path), InvalidConfig, "contract 4 terms to one")


def test_unknown_algorithms_are_refused():
    ends_in(lambda: plan_einsum("ij,jk->ik", [(2, 3), (3, 4)], "quick"), InvalidConfig, "'quick'")


def test_a_plan_of_a_thousand_operands_reads_each_of_them_once():
    n = 1000
    terms = [get_symbol(i) + get_symbol(i + 1) for i in range(n)]
    plan = plan_einsum(",".join(terms), [(2, 2)] * n, "greedy")
    assert sorted(i for step in plan.steps for i in step.operands) == list(range(2 * n - 2))
    assert plan.cost == (n - 1) * 8
    assert plan.largest_intermediate == 4
