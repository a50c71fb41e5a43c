"""The ways in which an einsum runs: which is taken, the same answers in all, and the page that has
them.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import best_assignment, max_plus, tropical_einsum
from ext_tropical.einsums.ways import Way, checked_call

PAGE = pathlib.Path(__file__).parents[2] / "docs/design/calls.md"
RNG = np.random.default_rng(0)
A, B, C = (RNG.normal(size=(6, 6)) for _ in range(3))
CASES = {
    Way.STEP: ("ij,jk->ik", (A, B), {}),
    Way.NETWORK: ("ij,jk,kl->il", (A, B, C), {}),
    Way.STEPS: ("ij,jk,kl->il", (A, B, C), {"ties": "split"}),
    Way.SLICES: ("ij,jk,kl->il", (np.tile(A, (20, 20)),) * 3, {"memory_limit": 600_000}),
}
DEFAULTS = {"ties": "first", "optimize": "auto", "memory_limit": None, "over": None}


@pytest.mark.parametrize("way", Way)
def test_which_way_is_taken_and_what_it_answers(way):
    """Against NumPy, which looks at all candidates."""
    equation, operands, options = CASES[way]
    call = checked_call(equation, operands, max_plus, None, **(DEFAULTS | options))
    assert call.way()[0] is way
    want = operands[0]
    for x in operands[1:]:
        want = (want[:, :, None] + x[None]).max(1)
    found = tropical_einsum(equation, *operands, **options)
    np.testing.assert_allclose(found, want, rtol=1e-12)
    labels = best_assignment(equation, *operands, **options).labels
    assert {x.shape for x in labels.values()} == {want.shape}
    kept = operands[0][np.arange(len(want))[:, None], labels["j"]]
    for x, (before, after) in zip(operands[1:], ["jk", "kl"], strict=False):
        ends = labels[after] if after in labels else np.arange(len(want))[None]
        kept = kept + x[labels[before], ends]
    np.testing.assert_allclose(kept, want, rtol=1e-12)


def test_options_and_sizes_of_one_take_a_plan():
    """A label of size 1 may be longer elsewhere; a given order is planned."""
    for operands, options in (
        ((A[:, :1], B), {}),
        ((A, B), {"optimize": [(0, 1)]}),
    ):
        call = checked_call("ij,jk->ik", operands, max_plus, None, **(DEFAULTS | options))
        assert call.way()[0] is Way.STEPS


def test_symbolic_sizes_run_step_by_step():
    (n,) = jax.export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((n, n), jnp.float32)
    ways = []

    def ask(x):
        call = checked_call("ij,jk,kl->il", (x, x, x), max_plus, None, **DEFAULTS)
        ways.append(call.way()[0])
        return call.answer().value

    jax.export.export(jax.jit(ask))(shape)
    assert ways == [Way.STEPS]


def test_the_page_of_calls_has_them():
    text = PAGE.read_text()
    for way in Way:
        assert f"| {way.value} |" in text
