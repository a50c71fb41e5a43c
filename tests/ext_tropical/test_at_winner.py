"""Entries at winners and the sums that transpose them, against loops of NumPy: by XLA, by the
kernel, in derivatives of any order, mapped.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import max_mul, max_plus, tropical_einsum
from ext_tropical.step import at_winner
from ext_tropical.step.at_winner import AtWinner, add_native
from ext_tropical.step.native import library
from ext_tropical.step.native.library import native
from ext_tropical.step.weighted_sum import Place
from tenferro_jax.errors import InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, extensions_in

from ..oracles import brute_force
from .judges import check_derivatives, refusals

BUILT = pytest.mark.skipif(bool(native().problem), reason=str(native()))
LHS, RHS, OUT = Place


def added(op, cells, winner):
    """The sum, cell by cell."""
    sizes, layout = op.sizes([cells.shape, winner.shape]), op.layout
    term = layout.equation.inputs[op.axis]
    total = np.zeros([sizes[label] for label in term], cells.dtype)
    counts = [sizes[label] for label in layout.contracted]
    for at in np.ndindex(cells.shape):
        if 0 <= winner[at] < np.prod(counts):
            known = dict(zip(layout.equation.output, at))
            known |= zip(layout.contracted, np.unravel_index(winner[at], counts))
            total[tuple(known[label] for label in term)] += cells[at]
    return total


@pytest.mark.few(2)
@BUILT
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("equation", "cells", "summed"),
    [
        ("ij,jk->ik", (19, 37), (11,)),
        ("ji,kj->ki", (33, 18), (11,)),
        ("bij,jbk->kib", (17, 20, 3), (5,)),
        ("iajb,bka->jik", (4, 5, 6), (3, 2)),
        ("ij,jk->ik", (2, 40), (20000,)),  # entries that no scratch holds
        ("ij->i", (50,), (9,)),
        ("i,j->ij", (20, 30), ()),
    ],
)
def test_sums_are_those_of_a_loop(equation, cells, summed):
    """Integers, so that every order of adding is exact; winners outside are left out."""
    rng, calls, wanted = np.random.default_rng(0), [], []
    count = np.prod(summed, dtype=int)
    for place in (LHS, RHS)[: equation.count(",") + 1]:
        for dtype in (np.float32, np.float64):
            winner = rng.integers(-2, count + 2, cells, np.int32)
            given = rng.integers(-9, 9, cells).astype(dtype)
            calls.append((AtWinner(equation, place, summed), given, winner))
            wanted += [added(*calls[-1])] * 2
    by_xla = functools.partial(apply, runtimes=AtWinner.runtimes.only(RouteKind.LOWERING))
    got = jax.jit(lambda: [fn(*call)[0] for call in calls for fn in (add_native, by_xla)])()
    for x, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(x, want, strict=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("semiring", [max_mul, max_plus])
def test_derivatives_of_every_order_go_by_the_op(semiring, monkeypatch):
    monkeypatch.setattr(at_winner, "LEAST_CELLS", 1)
    rng = np.random.default_rng(1)

    def f(a, b):
        return tropical_einsum("bij,bjk->kbi", a, b, semiring=semiring)

    a, b = rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 8, 3))
    check_derivatives(f, (a, b), lambda a, b: brute_force(semiring.name, "bij,bjk->kbi", a, b)[0])
    found = extensions_in(jax.make_jaxpr(jax.grad(lambda a: f(a, b).sum()))(a))
    assert {op.family_id.split(".")[1] for op, _ in found} == {"einsum", "at_winner"}


@BUILT
@pytest.mark.cpu
def test_malformed_calls_are_refused_by_the_handler():
    def call(result=(4, 5), winner=(4, 4), **changed):
        attributes = {
            "to_rows": True,
            "sizes": np.array([1, 5, 4, 4]),
            "strides": np.array([0, 1, 5]),
        }
        fn = jax.ffi.ffi_call(
            library.target("at_winner"), jax.ShapeDtypeStruct(result, jnp.float32)
        )
        run = jax.jit(lambda x, w: fn(x, w, **(attributes | changed)))
        return run(jnp.ones((4, 4), jnp.float32), jnp.zeros(winner, jnp.int32))

    np.testing.assert_array_equal(call()[:, 0], [4, 4, 4, 4])
    for text, changed in {
        "malformed attributes": {"sizes": np.array([1, 5, 4])},
        "malformed operands": {"strides": np.array([0, 1, 6])},
        "at_winner: malformed operands": {"winner": (4, 3)},
        "tropical at_winner: malformed": {"result": (4, 6)},
    }.items():
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(call(**changed))


test_refusals = refusals(
    (InvalidConfig, "place", lambda: AtWinner("ij->i", RHS)),
    (InvalidConfig, "place", lambda: AtWinner("ij,jk->ik", OUT)),
    (InvalidConfig, "summed", lambda: AtWinner("ij,jk->ik", LHS, (2, 3))),
    (InvalidConfig, "summed", lambda: AtWinner("ij,jk->ik", LHS, (0,))),
    (
        ShapeError,
        "",
        lambda: apply(AtWinner("ij,jk->ik"), np.ones((2, 3)), np.ones((3, 4), np.int32)),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("op", [AtWinner("bij,bjk->kbi", RHS), AtWinner("ij,jk->ik", LHS, (3,))])
def test_the_family_conforms(op):
    report = tj.check(op, order=1)
    assert report.ok, report
