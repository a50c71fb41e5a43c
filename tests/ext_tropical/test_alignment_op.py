"""The ops of alignments: the library against the recurrence over anti-diagonals, on generated
cases, and the contract.
"""

import functools
import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import align, log_sum_exp
from ext_tropical.native import library
from ext_tropical.native.library import native, target
from ext_tropical.semirings.registered import SemiringKey
from ext_tropical.sequences.alignment_inputs import FreeEnd, Gaps, Move
from ext_tropical.sequences.alignment_op import (
    Alignment,
    AlignmentAsked,
    AlignmentCounts,
    Rules,
    SemiglobalAlignment,
    SemiglobalCounts,
)
from ext_tropical.sequences.alignment_recurrence import COUNTS, ENDINGS, ENDS, Ends
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..sweep import some
from .judges import OWN, nothing_compiled, refusals

pytestmark = pytest.mark.cpu
needs_library = pytest.mark.skipif(bool(native().problem), reason=native().problem)

FORMS = (  # warps, affine, local
    (False, False, False),
    (False, True, False),
    (False, False, True),
    (False, True, True),
    (True, False, False),
)
NAMES = [str(end) for end in FreeEnd]
FREE = [*itertools.chain.from_iterable(itertools.combinations(NAMES, k) for k in range(1, 5))]
FORMS_AND_ENDS = [(form, ()) for form in FORMS]
FORMS_AND_ENDS += itertools.product([form for form in FORMS if not form[2]], FREE)
SHAPES = ((1, 1), (1, 70), (70, 1), (15, 16), (64, 63), (63, 130), (129, 64), (140, 200))
BANDS = (-1, 0, 3, 70)
KINDS = ("numbers", "ties", "forbidden", "nan", "infinite")


def op_of(semiring, form, band, has_lengths=False, ends=()):
    family = functools.partial(SemiglobalAlignment, ends=ends) if ends else Alignment
    return family(SemiringKey.of(semiring), *form, band, isinstance(semiring, str), has_lengths)


def entries(kind, shape, dtype, seed=0):
    rng = np.random.default_rng([seed, *shape, KINDS.index(kind)])
    scores = rng.normal(size=shape)
    if kind == "ties":
        scores = rng.integers(-2, 3, shape).astype(float)
    if kind in ("forbidden", "infinite"):
        scores[rng.random(shape) < 0.3] = -np.inf
    if kind == "infinite":
        scores[rng.random(shape) < 0.02 + 0.2 / scores.size] = np.inf
    if kind == "nan":
        scores[rng.random(shape) < 2 / scores.size] = np.nan
    return tuple(np.asarray(x, dtype) for x in (scores, -0.7, -1.1))


@functools.partial(jax.jit, static_argnums=0)
def lowered(op, *arrays):
    return op.lower_to_standard_ops(*arrays)


CASES = list(itertools.product(FORMS_AND_ENDS, SHAPES, BANDS, KINDS, ("float32", "float64")))


@pytest.mark.few(4)
@needs_library
@pytest.mark.parametrize("semiring", ["max_plus", "min_plus"])
@pytest.mark.parametrize(("form", "shape", "band", "kind", "dtype"), some(CASES, 60))
def test_scores_and_paths_are_those_of_the_recurrence(semiring, form, shape, band, kind, dtype):
    """Bit for bit, by the direct call and inside a program; a path says nothing beside NaN."""
    form, ends = form
    op = op_of(semiring, form, band, ends=ends)
    sign = -1 if semiring == "min_plus" else 1
    given = [sign * x for x in entries(kind, shape, dtype)]
    score, path = lowered(op, *given)
    for found in (apply(op, *given), jax.jit(functools.partial(apply, op))(*given)):
        np.testing.assert_array_equal(found[0], score)
        if not np.isnan(score):
            np.testing.assert_array_equal(found[1], path)


@pytest.mark.few(2)
@needs_library
@pytest.mark.parametrize(("form", "shape", "band", "kind", "dtype"), some(CASES, 60))
def test_all_alignments_count_as_in_the_recurrence(form, shape, band, kind, dtype):
    form, ends = form
    op = op_of(log_sum_exp(0.8), form, band, ends=ends)
    given = entries(kind, shape, dtype)
    tolerance = {"float32": 2e-5, "float64": 1e-12}[dtype]
    (score,) = lowered(op, *given)
    for found in (apply(op, *given), jax.jit(functools.partial(apply, op))(*given)):
        np.testing.assert_allclose(found[0], score, rtol=tolerance, atol=tolerance)
    if not np.isfinite(score):
        return
    counts = op.counts()
    for got, want in zip(apply(counts, *given), lowered(counts, *given), strict=True):
        np.testing.assert_allclose(got, want, rtol=50 * tolerance, atol=50 * tolerance)


@needs_library
@pytest.mark.few(3)
@pytest.mark.parametrize(("form", "ends"), FORMS_AND_ENDS)
@pytest.mark.parametrize("semiring", ["max_plus", log_sum_exp(0.8)])
def test_batches_and_lengths(semiring, form, ends):
    """One call for a batch, of lengths inside, empty and outside."""
    op = op_of(semiring, form, 9, has_lengths=True, ends=ends)
    lengths = np.array([[70, 66], [0, 0], [1, 5], [64, 70], [71, 3], [5, -1]], np.int32)
    scores = np.stack([entries("ties", (70, 70), np.float64, i)[0] for i in range(len(lengths))])
    gaps = np.linspace(-1.0, -0.5, len(lengths))
    ask = jax.vmap(functools.partial(apply, op), in_axes=(0, 0, None, 0))
    (route,) = routes(ask, scores, gaps, -1.5, lengths)
    assert (route.kind, route.kernel) == (RouteKind.KERNEL, "native")
    text = jax.jit(ask).lower(scores, gaps, -1.5, lengths).as_text()
    assert sum("custom_call" in line and target("align") in line for line in text.splitlines()) == 1
    found = jax.jit(ask)(scores, gaps, -1.5, lengths)
    for i, (table, gap, known) in enumerate(zip(scores, gaps, lengths, strict=True)):
        want = lowered(op, table, gap, np.float64(-1.5), known)
        np.testing.assert_allclose(found[0][i], want[0], rtol=1e-12)
        if len(want) > 1:
            np.testing.assert_array_equal(found[1][i], want[1])


@needs_library
def test_the_first_answer_compiles_nothing():
    """Outside jit the score and its path come by a direct call, whatever the sizes."""
    scores, lengths = jnp.ones((9, 7)), jnp.array([3, 4], jnp.int32)
    align(jnp.ones((2, 2)), gap=-1.0)
    with nothing_compiled():
        align(scores, gap=-1.0)
        align(scores, gap=-1.0, semiring=log_sum_exp(), lengths=lengths)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("semiring", ["max_plus", log_sum_exp(0.8)])
def test_check(semiring):
    only = OWN if semiring == "max_plus" else ()
    report = tj.check(op_of(semiring, FORMS[3], 2, has_lengths=True), order=1, only=only)
    assert report.ok, report


@pytest.mark.slow
def test_check_of_counts():
    """The derivative of counts, a second derivative, is a scan that shard_map refuses
    (docs/limits.md), in plain JAX too: then that check does not apply.
    """
    counts = op_of(log_sum_exp(0.8), FORMS[0], 2, has_lengths=True).counts()
    report = tj.check(counts, order=1, only=(*OWN, "shard_map_derivative"))
    assert report.ok, report


@pytest.mark.slow
@pytest.mark.parametrize("op", [SemiglobalAlignment, SemiglobalCounts])
def test_check_of_free_ends(op):
    first = "max_plus" if op is SemiglobalAlignment else 0.8
    only = OWN if op is SemiglobalAlignment else (*OWN, "shard_map_derivative")
    given = op(first, *FORMS[1], band=2, has_lengths=True, ends=("first begin", "second end"))
    report = tj.check(given, order=1, only=only)
    assert report.ok, report


PLAIN = Alignment("max_plus", *FORMS[0])
TABLE, GAP = np.zeros((2, 3)), np.float64(-1)


test_refusals = refusals(
    (InvalidConfig, "no warping with affine", lambda: Alignment("max_plus", True, True, False)),
    (InvalidConfig, "a band of at least -1", lambda: Alignment("max_plus", *FORMS[0], -2)),
    (InvalidConfig, "field semiring", lambda: Alignment(log_sum_exp(), *FORMS[0], -1, True)),
    (InvalidConfig, "temperature", lambda: AlignmentCounts(0.0, *FORMS[0])),
    (
        InvalidConfig,
        "some of first begin, first end, second begin, second end, in this order",
        lambda: SemiglobalAlignment("max_plus", *FORMS[0], ends=("second end", "first end")),
    ),
    (
        InvalidConfig,
        "none if local",
        lambda: SemiglobalCounts(1.0, *FORMS[2], ends=("second end",)),
    ),
    (ShapeError, r"\(m, n\) and two scalars", lambda: apply(PLAIN, TABLE[0], GAP, GAP)),
    (ShapeError, r"\(m, n\) and two scalars", lambda: apply(PLAIN, TABLE[:0], GAP, GAP)),
    (DTypeError, "float32", lambda: apply(PLAIN, TABLE, np.float32(1), GAP)),
    (
        DTypeError,
        "int32",
        lambda: apply(Alignment("max_plus", *FORMS[0], has_lengths=True), TABLE, GAP, GAP, GAP),
    ),
)


@needs_library
@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_counts_are_those_of_whole_alignments_whatever_is_added_to_all_scores(affine, local, dtype):
    """Under log_sum_exp. A global alignment has every element once, in a pair or a gap; a local one
    of one element has one pair, where none has a score far below.
    """
    shape = (1, 50) if local else (30, 40)
    op = AlignmentCounts(0.5, False, affine, local)
    for shift in (1e2, 1e3, 1e4):
        scores, gap, gap_open = entries("numbers", shape, dtype)
        shifted = scores + 2 * shift * (1 if local else -1), gap - shift, gap_open - shift
        counts = apply(op, *(np.asarray(x, dtype) for x in shifted))
        pairs, gaps, opens = (float(np.asarray(x, float).sum()) for x in counts)
        found, want = (pairs, 1) if local else (2 * pairs + gaps + opens, sum(shape))
        assert found == pytest.approx(want, rel=4 * sum(shape) * float(np.finfo(dtype).eps))


# --- tables ---------------------------------------------------------------------------------------


def native_text(name):
    """A file of the library; a comment of several lines as one."""
    text = (pathlib.Path(library.__file__).parent / name).read_text()
    return re.sub(r"\n *// ", " ", text)


def test_questions_are_those_of_the_native_library():
    """In its order, which is that of the number of results."""
    (text,) = re.findall(
        r"What is asked follows from the results: ([^.]*)\.", native_text("alignments.h")
    )
    theirs = [re.findall(r"score|path|gap_open|gap", part) for part in text.split(";")]
    ours = [[name.removesuffix("s") for name in asked.gives] for asked in AlignmentAsked]
    assert ours == theirs
    assert [len(names) for names in theirs] == [1, 2, 3]


def test_rules_and_moves_have_the_numbers_of_the_native_library():
    (names,) = re.findall(r"Bits of `rules`: ([\w, ]*)\.", native_text("alignments.h"))
    assert {rule.name.lower(): rule.value for rule in Rules} == {
        name: 1 << i for i, name in enumerate(names.split(", "))
    }
    (line,) = re.findall(r"constexpr int64_t (kPair [^;]*);", native_text("alignments.cc"))
    theirs = {name.upper(): int(number) for name, number in re.findall(r"k(\w+) = (\d)", line)}
    assert {move.name: move.value for move in Move} == theirs


def test_each_kind_of_gaps_and_of_ends_has_a_way():
    assert (set(COUNTS), set(ENDINGS), set(ENDS)) == (set(Gaps), set(Ends), set(Ends))
