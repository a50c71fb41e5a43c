"""Rewrites of graphs compute what the graph computes."""

import itertools

import jax
import jax.export
import numpy as np
import pytest
from jax import lax

from tenferro_jax import trace
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.graph.passes import sort_dot_dimensions

from ..helpers import ends_in

RNG = np.random.default_rng(5)
LHS, RHS = (
    RNG.integers(-9, 9, (2, 3, 4, 5)).astype(float),
    RNG.integers(-9, 9, (5, 4, 3, 2)).astype(float),
)


@pytest.mark.few(3)
@pytest.mark.parametrize("order", [*itertools.permutations(((1, 2), (2, 1), (3, 0)))], ids=str)
def test_contracted_axes_ascend_where_one_order_suits_both(order):
    for pairs in (order, order[:2], order[:1], ()):
        lhs, rhs = zip(*pairs) if pairs else ((), ())
        mirrored = tuple(
            3 - axis for axis in rhs
        )  # for RHS reversed: the same pairs, ascending together
        for b, axes in ((RHS, rhs), (RHS.transpose(), mirrored)):
            graph = trace(
                lambda a, b, axes=axes: lax.dot_general(a, b, ((lhs, axes), ((), ()))), LHS, b
            )
            done = sort_dot_dimensions(graph)
            # integers: no sum is rounded in any order
            np.testing.assert_array_equal(done.to_jax()(LHS, b), np.tensordot(LHS, b, (lhs, axes)))
            op = done.nodes[-1].op
            assert sorted(zip(op.lhs_contracting, op.rhs_contracting)) == sorted(zip(lhs, axes))
            ascending = b is not RHS or len(pairs) < 2
            assert (
                list(op.rhs_contracting) == sorted(axes) and list(op.lhs_contracting) == sorted(lhs)
            ) == ascending
            if not ascending:
                assert done == graph


def test_bodies_are_rewritten_and_the_rest_stays():
    x = RNG.integers(-2, 2, (3, 3)).astype(float)

    def fn(x):
        return lax.fori_loop(
            0, 2, lambda i, c: c * 0.5 + lax.dot_general(c, x, (((1, 0), (1, 0)), ((), ()))), x
        )

    graph = trace(fn, x)
    done = sort_dot_dimensions(graph)
    assert done != graph
    np.testing.assert_array_equal(done.to_jax()(x), fn(x))
    both = trace(
        lambda a, b: [lax.dot_general(a, b, ((p, p), ((), ()))) for p in ((1, 2), (2, 1))],
        LHS,
        RHS.transpose(),
    )
    assert (len(both.nodes), len(sort_dot_dimensions(both).nodes)) == (2, 1)
    plain = trace(lambda x: jax.numpy.sin(x) @ x, x)
    assert sort_dot_dimensions(plain) == plain
    ends_in(lambda: sort_dot_dimensions(fn), InvalidConfig, "a Graph")
