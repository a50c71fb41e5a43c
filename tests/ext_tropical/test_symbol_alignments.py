"""align_symbols against align for the scores of all pairs, every alignment, parasail and Biopython."""

import dataclasses
import functools
import resource
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import align, align_symbols, log_sum_exp, min_plus
from ext_tropical.native.library import in_program, native, outputs_of
from ext_tropical.sequences.alignment_inputs import FreeEnd
from ext_tropical.sequences.alignment_op import attributes
from ext_tropical.sequences.symbol_alignment_op import SymbolAlignment
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..sweep import times
from .judges import OWN, nothing_compiled, refusals
from .test_align import best_of, listed, score_of
from .test_free_ends import as_parasail

pytestmark = pytest.mark.cpu
needs_library = pytest.mark.skipif(bool(native().problem), reason=native().problem)
NAMES = tuple(map(str, FreeEnd))


# --- the law: align of the scores of all pairs ----------------------------------------------------


SIZES = (1, 2, 3, 5, 17, 33, 64, 65, 130, 300, 450)
SCALES = {"small": 1, "some leave 16 bits": 60, "none fits 16 bits": 4000}


class Case(NamedTuple):
    """The inputs of an alignment, whose scores are the better the larger."""

    first: np.ndarray
    second: np.ndarray
    substitution: np.ndarray
    gap: np.ndarray
    gap_open: np.ndarray
    lengths: np.ndarray


def drawn(rng, dtype, scale, sizes, kinds):
    """A case with few distinct scores, so that equal alignments are many."""
    (m, n), (k, l) = sizes, kinds
    first, second = rng.integers(0, k, m), rng.integers(0, l, n)
    if k == l and rng.random() < 0.4:
        second = np.resize(first, n)
    scores = rng.integers(-3, 5, (k, l)) * SCALES[scale]
    gap = -rng.integers(0, 3) * rng.choice([max(SCALES[scale] // 20, 1), SCALES[scale]])
    gap_open = gap - rng.integers(0, 5)
    if rng.random() < 0.1:  # a gap's first element is the best one
        gap, gap_open = gap_open, gap
    is_forbidden = rng.random((k, l)) < rng.choice([0, 0, 0.3])
    forbidden = np.iinfo(np.int32).min
    if dtype != "int32":
        forbidden, scores = -np.inf, scores + rng.choice([0, 0, 0, 0.25])
    lengths = [rng.integers(0, size + 1) if rng.random() < 0.3 else size for size in sizes]
    numbers = (np.asarray(x, dtype) for x in (np.where(is_forbidden, forbidden, scores), gap))
    return Case(
        np.int32(first), np.int32(second), *numbers, np.asarray(gap_open, dtype), np.int32(lengths)
    )


def as_costs(x):
    """The negative; of the integer that forbids a pair the one that does so under min_plus."""
    if np.issubdtype(x.dtype, np.floating):
        return -x
    return np.where(x == np.iinfo(x.dtype).min, np.iinfo(x.dtype).max, -x)


def under(semiring, case):
    """The case whose best alignment under a semiring is that of the case under max_plus."""
    if semiring == "max_plus":
        return case
    names = "substitution", "gap", "gap_open"
    return case._replace(**{name: as_costs(getattr(case, name)) for name in names})


def by_all_pairs(op, first, second, substitution, gap, gap_open, lengths, xp=np):
    """In float64, which has all whole numbers here."""
    zero = op.algebra.zero(substitution.dtype)
    infinite = op.algebra.zero(np.dtype("float64"))
    table = xp.where(substitution == zero, infinite, substitution.astype(np.float64))
    return align(
        table[first[:, None], second],
        gap=jnp.asarray(gap.astype(np.float64)),
        gap_open=jnp.asarray(gap_open.astype(np.float64)) if op.affine else None,
        mode="local" if op.local else "global",
        ends=op.ends,
        lengths=lengths,
        semiring=op.algebra,
    )


def same(op, found, want):
    """Bit for bit; where there is no alignment the score is the zero of its dtype."""
    score, path = map(np.asarray, found)
    told = np.asarray(want.score)
    zero = np.broadcast_to(op.algebra.zero(score.dtype), told.shape)
    np.testing.assert_array_equal(score, np.where(np.isfinite(told), told, zero), str(op))
    np.testing.assert_array_equal(path, want.path, str(op))


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("semiring", ["max_plus", "min_plus"])
def test_it_is_align_of_all_pairs(dtype, scale, semiring):
    rng = np.random.default_rng([len(dtype), len(scale), len(semiring)])
    for _ in range(times(40)):
        is_local, affine = rng.random(2) < (0.3, 0.6)
        ends = tuple(name for name in NAMES if rng.random() < 0.4 and not is_local)
        op = SymbolAlignment(semiring, bool(affine), bool(is_local), ends, with_path=True)
        sizes, kinds = rng.choice(SIZES, 2), rng.integers(1, 7, 2)
        case = under(semiring, drawn(rng, dtype, scale, sizes, kinds))
        want = by_all_pairs(op, *case)
        same(op, apply(op, *case), want)
        (score,) = apply(dataclasses.replace(op, with_path=False), *case)
        assert np.isinf(want.score) or float(score) == float(want.score)


@functools.partial(jax.jit, static_argnums=0)
def in_every_way(op, *arrays):
    """By the kernels of each instruction set of this machine, in standard ops, and of all pairs."""

    def kernels(*arrays):
        call = "align_symbols", outputs_of(op, arrays), arrays, "expand_dims"
        numbers = attributes(op)
        return [in_program(*call, instructions=name, **numbers) for name in native().instructions]

    def all_ways(*arrays):
        lowered = op.lower_to_standard_ops(*arrays)
        return [*kernels(*arrays), tuple(lowered)], by_all_pairs(op, *arrays, xp=jnp)

    axes = 0, 0, None, None, 0, 0
    return jax.vmap(all_ways, axes)(*arrays)


RULES = [(affine, False, ()) for affine in (False, True)]
RULES += [(affine, True, ()) for affine in (False, True)]
RULES += [(True, False, NAMES[:1]), (True, False, NAMES[2:]), (False, False, NAMES[1:3])]
RULES += [(True, False, NAMES)]


@needs_library
@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("semiring", ["max_plus", "min_plus"])
def test_batches_on_each_instruction_set(dtype, rules, scale, semiring):
    """One call for a batch that shares the substitution and the score of gaps."""
    rng = np.random.default_rng(len(dtype))
    op = SymbolAlignment(semiring, *rules, with_path=True)
    cases = [under(semiring, drawn(rng, dtype, scale, (130, 70), (4, 4))) for _ in range(30)]
    first, second, _, _, gap_open, lengths = map(np.stack, zip(*cases, strict=True))
    for shared in cases[:3]:
        given = first, second, shared.substitution, shared.gap, gap_open, lengths
        ways, want = in_every_way(op, *given)
        for found in ways:
            same(op, found, want)


# --- judges of others -----------------------------------------------------------------------------


@pytest.mark.few(8)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", ["global", "local"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 2), (3, 4)])
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_brute_force(affine, mode, shape, dtype):
    rng = np.random.default_rng(sum(shape))
    options = {"gap": -1, "mode": mode} | ({"gap_open": -2} if affine else {})
    for _ in range(10):
        first, second = (rng.integers(0, 3, size) for size in shape)
        substitution = rng.integers(-3, 4, (3, 3)).astype(dtype)
        score, columns = best_of("max_plus", substitution[first[:, None], second], **options)
        found = align_symbols(first, second, substitution, **options)
        assert (float(found.score), listed(found.path)) == (score, columns)


LETTERS = "ARNDCQEGHILKMFPSTWYV"


def proteins(rng, sizes, changed):
    """Two texts; the second is the first one with some letters changed, lost and put in."""
    first = rng.choice([*LETTERS], sizes[0])
    kept = np.resize(first, sizes[1])
    second = np.where(rng.random(sizes[1]) < changed, rng.choice([*LETTERS], sizes[1]), kept)
    cut = rng.integers(sizes[1])
    second = np.concatenate([second[:cut], second[cut + 7 :], rng.choice([*LETTERS], 7)])
    return "".join(first), "".join(second)


@pytest.mark.few(10)
@pytest.mark.parametrize("ends", [None, (), NAMES[:2], NAMES[2:], NAMES])
@pytest.mark.parametrize(("gap", "gap_open"), [(-1, -1), (-1, -11), (-5, -6)])
@pytest.mark.parametrize("changed", [0.05, 0.6, 1.0])
@pytest.mark.parametrize("shape", [(60, 50), (700, 900), (1500, 1400)])
def test_proteins_against_parasail_and_biopython(ends, gap, gap_open, changed, shape):
    """The path has the score; None is local."""
    parasail = pytest.importorskip("parasail", reason="pip install parasail (extra test)")
    judge = pytest.importorskip("Bio.Align", reason="pip install biopython (extra test)")
    texts = proteins(np.random.default_rng(sum(shape)), shape, changed)
    number = parasail.blosum62.mapper
    first, second = (np.array([number[ord(letter)] for letter in text]) for text in texts)
    substitution = parasail.blosum62.matrix
    options = {"mode": "local"} if ends is None else {"ends": ends}
    found = align_symbols(first, second, substitution, gap=gap, gap_open=gap_open, **options)
    path = listed(found.path)
    own = score_of(np.add, path, substitution[first[:, None], second], gap, gap_open) or 0
    kind = "local" if ends is None else "global"
    aligner = judge.PairwiseAligner(mode=kind, open_gap_score=gap_open, extend_gap_score=gap)
    aligner.substitution_matrix = judge.substitution_matrices.load("BLOSUM62")
    places = ("left_deletion", "right_deletion", "left_insertion", "right_insertion")
    for end, place in zip(NAMES, places, strict=True):
        if end in (ends or ()):
            setattr(aligner, f"{place}_score", 0)
    assert int(found.score) == own == aligner.score(*texts)
    name = "sw" if ends is None else as_parasail(ends)
    run = getattr(parasail, f"{name}_scan_32", None)
    if run:
        assert int(found.score) == run(*texts, -gap_open, -gap, parasail.blosum62).score


@needs_library
def test_scores_that_leave_16_bits_on_their_way():
    """Equal sequences: the score is the sum of the diagonal, also where each cell is far from 0."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 20, 9000)
    substitution = np.where(np.eye(20), 11, -4).astype(np.int32)
    for mode in ("global", "local"):
        found = align_symbols(first, first, substitution, gap=-1, gap_open=-11, mode=mode)
        assert found.score == 11 * len(first)
        np.testing.assert_array_equal(found.path[: len(first)], np.arange(9000)[:, None] + [0, 0])
    sums = align_symbols(first[:1], first, substitution, gap=-50, gap_open=-300, with_path=False)
    assert sums.score == 11 - 300 - 50 * 8998 - (0 if first[0] in (first[0], first[-1]) else 15)
    assert sums.path is None
    skewed = align_symbols(first[:40], np.resize(first, 30_000), substitution, gap=-1, gap_open=-2)
    assert skewed.score == 11 * 40 - 2 - (30_000 - 40 - 1)


@pytest.mark.parametrize("ends", [(), NAMES[:1], NAMES[1:2], NAMES[2:3], NAMES[1:3]])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("size", [300, 450])
def test_values_that_rise_far_above_those_of_the_first_row(ends, affine, size):
    """The first row falls to -18,000 and more, and the best value rises to 65,000 and more."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 4, size).astype(np.int32)
    second = np.where(rng.random(size) < 0.1, rng.integers(0, 4, size), first).astype(np.int32)
    substitution = np.where(np.eye(4), 240, -180).astype(np.float32)
    op = SymbolAlignment("max_plus", affine, False, ends, with_path=True)
    sizes = np.array([size, size], np.int32)
    for gap in (np.float32(-60), np.float32(-70)):
        given = first, second, substitution, gap, np.float32(-63), sizes
        same(op, apply(op, *given), by_all_pairs(op, *given))


@pytest.mark.slow
@needs_library
def test_memory_of_a_path():
    """A byte a cell would be 900 MB."""
    first = np.random.default_rng(0).integers(0, 4, 30_000)
    substitution = np.where(np.eye(4), 2, -3).astype(np.int32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = align_symbols(first, first[::-1], substitution, gap=-1, gap_open=-4)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 200_000  # kB
    place = np.asarray(found.path)
    place = place[place.max(1) >= 0]
    kind = np.where(place[:, 0] < 0, 2, np.where(place[:, 1] < 0, 1, 0))
    is_first = kind != np.append(0, kind[:-1])
    pairs = substitution[first[place[:, 0]], first[::-1][place[:, 1]]]
    assert int(found.score) == np.where(kind == 0, pairs, np.where(is_first, -4, -1)).sum()


# --- derivatives and transforms -------------------------------------------------------------------

FIRST, SECOND = np.array([0, 2, 2, 1, 0, 2, 0]), np.array([0, 1, 2, 0, 0])
TABLE = np.array([[2.0, -1.0, -1.0], [-1.0, 3.0, -2.0], [-1.0, -2.0, 1.0]])
OPTIONS = {
    "gaps": {},
    "local": {"mode": "local"},
    "free": {"ends": NAMES[2:]},
    "band": {"band": 3},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("semiring", ["max_plus", "min_max", log_sum_exp(0.7)])
@pytest.mark.parametrize("affine", [False, True])
def test_derivatives_are_those_of_all_pairs(options, semiring, affine):
    given = OPTIONS[options] | {"semiring": semiring}
    inputs = [TABLE, np.array(-0.5), *([np.array(-1.25)] if affine else [])]

    def score(of, *inputs):
        gaps = dict(zip(("gap", "gap_open"), inputs[1:]))
        return of(inputs[0], **gaps, **given).score

    def by_symbols(table, **how):
        return align_symbols(FIRST, SECOND, table, **how)

    def by_pairs(table, **how):
        return align(table[FIRST[:, None], SECOND], **how)

    every = tuple(range(len(inputs)))
    ours, theirs = (functools.partial(score, of) for of in (by_symbols, by_pairs))
    for derivative in (jax.grad, jax.hessian):
        found, want = (jax.jit(derivative(f, every))(*inputs) for f in (ours, theirs))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), found, want)
    if semiring == "max_plus" and options == "gaps":
        uses = jax.grad(ours, every)(*inputs)
        assert 2 * uses[0].sum() + sum(uses[1:]) == len(FIRST) + len(SECOND)


def test_an_exported_program():
    def ask(first, table):
        found = align_symbols(first, SECOND, table, gap=-1.0, ends=NAMES[:2])
        return found.score, found.path

    want = ask(FIRST, TABLE)
    run = jax.jit(ask)
    written = jax.export.export(run)(FIRST, TABLE).serialize()
    for found in (run(FIRST, TABLE), jax.export.deserialize(written).call(FIRST, TABLE)):
        jax.tree.map(np.testing.assert_array_equal, found, want)


@needs_library
def test_a_batch_is_one_native_call():
    ask = jax.vmap(lambda first, n: align_symbols(first, SECOND, TABLE, gap=-1.0, lengths=n).score)
    firsts, lengths = np.stack([FIRST, FIRST[::-1]]), np.array([[7, 5], [4, 2]])
    (route,) = routes(ask, firsts, lengths)
    assert (route.kind, route.kernel) == (RouteKind.KERNEL, "native")
    text = jax.jit(ask).lower(firsts, lengths).as_text()
    assert sum("custom_call" in line and "align_symbols" in line for line in text.splitlines()) == 1


@needs_library
def test_the_first_answer_compiles_nothing():
    table, lengths, few = jnp.asarray(TABLE), jnp.array([3, 2], jnp.int32), jnp.asarray(SECOND[1:])
    align_symbols(FIRST, SECOND, table, gap=-1.0)
    with nothing_compiled():
        align_symbols(FIRST[:6], few, table, gap=-1.0, lengths=lengths)
        align_symbols(FIRST[:5], SECOND[2:], table, gap=-2.0, mode="local", with_path=False)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int64", "uint64"])
def test_dtypes_of_symbols(dtype):
    want = align_symbols(FIRST, SECOND, TABLE, gap=-1.0)
    ask = functools.partial(align_symbols, gap=-1.0)
    for run in (ask, jax.jit(ask)):
        found = run(FIRST.astype(dtype), jnp.asarray(SECOND.astype(dtype)), TABLE)
        np.testing.assert_array_equal(found.path, want.path)
        assert found.score == want.score


@pytest.mark.parametrize("options", [{"gap": -1.0}, {"gap": -1.0, "band": 3}, {}])
def test_symbols_of_no_kind(options):
    """Behind the lengths they have no influence; before, where they are traced, there is no
    alignment.
    """
    padded = np.array([0, 2, 1, 300, -1])
    ask = functools.partial(align_symbols, **options)
    want = ask(padded[:3], SECOND, TABLE)
    for run in (ask, jax.jit(ask)):
        found = run(padded, SECOND, TABLE, lengths=(3, 5))
        assert found.score == want.score
        assert listed(found.path) == listed(want.path)
    for length in ((4, 5), (5, 5)):
        found = jax.jit(ask)(padded, SECOND, TABLE, lengths=length)
        assert (found.score, listed(found.path)) == (-np.inf, [])
    with pytest.raises(InvalidConfig, match="first: given 300 at place 3; needed symbols from 0"):
        ask(padded, SECOND, TABLE, lengths=(4, 5))
    found = jax.jit(functools.partial(ask, with_path=False))(padded, SECOND, TABLE)
    assert (found.score, found.path) == (-np.inf, None)


ask = functools.partial(align_symbols, FIRST, SECOND)
test_refusals = refusals(
    (InvalidConfig, "given 2 at place 1; needed symbols from 0 to 1", lambda: ask(TABLE[:2])),
    (InvalidConfig, "second: given 2 at place 2", lambda: ask(TABLE[:, :2])),
    (DTypeError, "first: given 'GATTACA'", lambda: align_symbols("GATTACA", SECOND, TABLE)),
    (DTypeError, "first: given float64", lambda: align_symbols(FIRST / 1.0, SECOND, TABLE)),
    (ShapeError, r"first: given shape \(7, 1\)", lambda: align_symbols(FIRST[:, None], [0], TABLE)),
    (ShapeError, "n at least 1", lambda: align_symbols(FIRST, SECOND[:0], TABLE)),
    (ShapeError, r"substitution: given shape \(3,\)", lambda: ask(TABLE[0])),
    (DTypeError, "complex128", lambda: ask(TABLE + 0j)),
    (DTypeError, "a number of int32", lambda: ask(np.int32(TABLE), gap=-0.5)),
    (InvalidConfig, "align_symbols: given gap_open without", lambda: ask(TABLE, gap_open=-1.0)),
    (InvalidConfig, "align_symbols, mode", lambda: ask(TABLE, gap=-1.0, mode="semi")),
    (InvalidConfig, "align_symbols, ends", lambda: ask(TABLE, gap=-1.0, ends="begin")),
    (InvalidConfig, "align_symbols, band", lambda: ask(TABLE, gap=-1.0, band=1)),
    (InvalidConfig, "align_symbols, lengths", lambda: ask(TABLE, gap=-1.0, lengths=(8, 1))),
    (InvalidConfig, "with_path: given 'no'", lambda: ask(TABLE, gap=-1.0, with_path="no")),
    (InvalidConfig, "align_symbols, semiring: given 'plus'", lambda: ask(TABLE, semiring="plus")),
    (InvalidConfig, "needed max_plus or min_plus", lambda: SymbolAlignment("max_mul", True, False)),
    (InvalidConfig, "none if local", lambda: SymbolAlignment("max_plus", True, True, NAMES)),
)


def test_it_warns_of_a_gap_that_is_better_than_none():
    with pytest.warns(UserWarning, match="align_symbols, gap: 8 makes a gap better") as told:
        ask(TABLE, gap=8)
    assert told[0].filename == __file__


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES[1::2])
def test_check(rules):
    report = tj.check(SymbolAlignment("max_plus", *rules), order=1, only=OWN)
    assert report.ok, report


@pytest.mark.parametrize("mode", ["global", "local"])
def test_a_score_beyond_int32_is_the_end_of_the_range(mode):
    """The path is that of the same scores in float64."""
    symbols, large = [0, 0, 0], np.full((1, 1), 2**30, np.int32)
    found = align_symbols(symbols, symbols, large, gap=-1, mode=mode)
    wanted = align_symbols(symbols, symbols, large.astype(float), gap=-1.0, mode=mode)
    assert wanted.score == 3 * 2**30
    assert found.score == np.iinfo(np.int32).max
    np.testing.assert_array_equal(found.path, wanted.path)
    costs = align_symbols(symbols, symbols, -large, gap=1, mode=mode, semiring=min_plus)
    assert costs.score == np.iinfo(np.int32).min
