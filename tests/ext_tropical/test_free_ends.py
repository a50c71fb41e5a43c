"""align with free ends against every alignment, parasail, Biopython and loops."""

import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import align, log_sum_exp
from ext_tropical.sequences.alignment_inputs import FreeEnd
from tenferro_jax.errors import InvalidConfig

from ..oracles import ALGEBRAS
from .judges import check_derivatives
from .test_align import (
    FIRST,
    MOVES,
    SECOND,
    VALUES,
    columns_of,
    listed,
    lists_of_kinds,
    score_of,
    with_scores,
)

NAMES = tuple(map(str, FreeEnd))
COMBINATIONS = [ends for count in range(5) for ends in itertools.combinations(NAMES, count)]
OPTIONS = {"gaps": {"gap": True}, "affine": {"gap": True, "gap_open": True}, "warping": {}}


def with_gaps(m, n, ends):
    """(start, kinds) of every alignment of all elements, less the gaps at free ends: at each end a
    run of columns of one kind, of which the alignment of one kind alone has one.
    """
    at_begin, at_end = (
        {kind for kind, name in ((FIRST, "first"), (SECOND, "second")) if f"{name} {end}" in ends}
        for end in ("begin", "end")
    )
    for kinds in lists_of_kinds(m, n, m + n, False):
        start, runs = np.zeros(2, int), [[*run] for _, run in itertools.groupby(kinds)]
        if runs and runs[-1][0] in at_end:
            runs.pop()
        if runs and runs[0][0] in at_begin:
            start = np.sum([MOVES[kind] for kind in runs.pop(0)], 0)
        yield tuple(start.tolist()), tuple(itertools.chain.from_iterable(runs))


def by_warping(m, n, ends):
    """The same of every stretch, of which those are warped whole."""
    starts = {(0, 0)} | {(0, j) for j in range(n + 1) if "second begin" in ends}
    starts |= {(i, 0) for i in range(m + 1) if "first begin" in ends}
    stops = {(m, n)} | {(m, j) for j in range(n + 1) if "second end" in ends}
    stops |= {(i, n) for i in range(m + 1) if "first end" in ends}
    if 0 in (m, n):  # nothing is aligned, in one way
        yield from [(start, ()) for start in sorted(starts & stops)[:1]]
        return
    for (i, j), (k, l) in itertools.product(starts, stops):
        if k >= i and l >= j:
            for kinds in lists_of_kinds(k - i, l - j, m + n, True):
                yield (i, j), kinds


def every_alignment(shape, ends, warps, band):
    """(order among equally good ones, columns) of all."""
    for start, kinds in (by_warping if warps else with_gaps)(*shape, ends):
        nodes = np.cumsum([start, *(MOVES[kind] for kind in kinds)], 0)
        if band is None or abs(nodes[:, 0] - nodes[:, 1]).max() <= band:
            i, j = nodes[-1].tolist()
            yield (i + j, i, kinds[::-1]), [*columns_of(kinds, start, warps)]


def best_of(name, scores, ends, gap=None, gap_open=None, band=None):
    """(score, columns) of the best alignment, the first of equally good ones."""
    algebra, one = ALGEBRAS[name], {"max_mul": 1.0, "min_max": -np.inf}.get(name, 0.0)
    best, found, first = algebra.zero, [], None
    first_gap = gap if gap_open is None else gap_open
    for order, columns in every_alignment(scores.shape, ends, gap is None, band):
        score = score_of(algebra.times, columns, scores, gap, first_gap) if columns else one
        is_first = score == best != algebra.zero and order < first
        if algebra.better(score, best) or is_first:
            best, found, first = score, columns, order
    return best, found


LENGTHS = np.array([(1, 1), (1, 4), (3, 1), (3, 4), (4, 3), (0, 2), (2, 0), (0, 0)], np.int32)


def padded(draw):
    """A table of each of these lengths, in one array."""
    tables = np.full((len(LENGTHS), 4, 4), np.nan)
    for table, (m, n) in zip(tables, LENGTHS):
        table[:m, :n] = draw((m, n))
    return tables


@pytest.mark.few(6)
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ends", COMBINATIONS)
@pytest.mark.parametrize("band", [None, 1, 3])
@pytest.mark.parametrize("is_better", [False, True])
def test_brute_force(name, options, ends, band, is_better):
    """Few distinct values, so that equal alignments are many; also where a gap is better than
    none.
    """
    rng = np.random.default_rng(len(ends))
    values, *gaps = VALUES[name]
    gaps = [values[0 if name == "min_plus" else 3] if is_better else x for x in gaps]
    given = with_scores(OPTIONS[options], *map(jnp.float64, gaps)) | {"band": band}
    tables = padded(lambda shape: rng.choice(values, shape))
    ask = jax.vmap(lambda x, k: align(x, lengths=k, semiring=name, ends=ends, **given))
    found = jax.jit(ask)(tables, LENGTHS)
    for table, (m, n), got, path in zip(tables, LENGTHS, found.score, found.path):
        scores = table[:m, :n]
        score, columns = best_of(name, scores, ends, **given)
        np.testing.assert_array_equal(got, score)
        if name == "min_max":  # a worse beginning may be part of a best alignment
            chosen, first = listed(path), given.get("gap_open", given.get("gap"))
            assert not chosen or score_of(np.maximum, chosen, scores, gaps[0], first) == score
        else:
            assert listed(path) == columns


@pytest.mark.few(6)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ends", COMBINATIONS)
@pytest.mark.parametrize("band", [None, 1])
@pytest.mark.parametrize("gap", [-0.3, 0.4])
def test_log_sum_exp_counts_each_alignment_once(options, ends, band, gap):
    """Also where a gap is better than none; the gradient is the mean of uses."""
    rng, temperature = np.random.default_rng(len(ends)), 0.7
    given = with_scores(OPTIONS[options], jnp.float64(gap), jnp.float64(-0.8))
    first = given.get("gap_open", given.get("gap"))
    tables = padded(lambda shape: rng.normal(size=shape))

    def ask(table, lengths):
        more = {"ends": ends, "band": band, **given}
        return align(table, lengths=lengths, semiring=log_sum_exp(temperature), **more).score

    found = jax.jit(jax.vmap(jax.value_and_grad(ask)))(tables, LENGTHS)
    for table, (m, n), score, slope in zip(tables, LENGTHS, *found):
        scores, uses = table[:m, :n], np.zeros((4, 4))
        every = [x for _, x in every_alignment((m, n), ends, options == "warping", band)]
        totals = [score_of(np.add, x, scores, given.get("gap"), first) or 0.0 for x in every]
        weights = np.exp(np.divide(totals, temperature))
        for weight, columns in zip(weights, every):
            for i, j in columns:
                uses[i, j] += weight * (min(i, j) >= 0) / weights.sum()
        with np.errstate(divide="ignore"):
            want = temperature * np.log(weights.sum())
        np.testing.assert_allclose(score, want, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(slope, uses, rtol=1e-9, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ends", COMBINATIONS[1:])
def test_derivatives_of_log_sum_exp(options, ends):
    """By scores and gaps, first and second, with a forbidden pair."""
    scores = np.random.default_rng(3).normal(size=(3, 4))
    given = with_scores(OPTIONS[options], -0.5, -0.9)

    def score(table, *gaps):
        table = jnp.pad(table, ((0, 1), (0, 0)), constant_values=-1.0).at[3, 2].set(-jnp.inf)
        more = dict(zip(given, gaps, strict=True))
        return align(table, semiring=log_sum_exp(0.8), ends=ends, **more).score

    check_derivatives(score, [scores, *map(np.array, given.values())])


def test_the_gradient_counts_what_the_path_uses():
    """What is left out counts nothing; also through an export."""
    scores = np.array([[1.0, -9.0, -9.0, 1.0], [-9.0, -9.0, -9.0, 2.0]])

    def ask(scores, gap):
        return align(scores.T, gap=gap, gap_open=-0.5, ends=NAMES[:2]).score

    run = jax.jit(jax.grad(ask, (0, 1)))
    written = jax.export.export(run)(scores, -0.25).serialize()
    for found in (run(scores, -0.25), jax.export.deserialize(written).call(scores, -0.25)):
        np.testing.assert_array_equal(found[0], [[1, 0, 0, 0], [0, 0, 0, 1]])
        assert found[1] == 1  # the second of the two in the gap between


def test_refused_ends_and_band():
    table = np.zeros((2, 5))
    assert align(table, gap=-1.0, band=0, ends="second end").score == 0
    with pytest.raises(InvalidConfig, match="at least 3, their difference"):
        align(table, gap=-1.0, band=0, ends=["second begin", "first end"])
    for ends, mode in ((["second"], "global"), (["second end"], "local"), ("begin", "global")):
        with pytest.raises(
            InvalidConfig, match=r"align, ends: .* 'second begin', 'second end', in"
        ):
            align(table, gap=-1.0, ends=ends, mode=mode)


# --- judges of others -----------------------------------------------------------------------------


def as_parasail(ends):
    """The name of its function: its query is the first sequence."""
    parts = []
    for letter, sequence in (("q", "first"), ("d", "second")):
        begin, end = f"{sequence} begin" in ends, f"{sequence} end" in ends
        if begin or end:
            parts.append(letter + ("x" if begin and end else "b" if begin else "e"))
    name = "_".join(["sg", *parts])
    return {"sg": "nw", "sg_qx_dx": "sg"}.get(name, name)


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("ends", COMBINATIONS)
@pytest.mark.parametrize(("gap", "gap_open"), [(-1, -1), (-1, -11), (-5, -6)])
@pytest.mark.parametrize("shape", [(9, 20), (7, 30), (70, 70), (150, 130), (40, 300)])
def test_proteins_against_parasail_and_biopython(dtype, ends, gap, gap_open, shape):
    """parasail has no function for some; Biopython has a score for each end. parasail does not leave out
    all of both sequences.
    """
    parasail = pytest.importorskip("parasail", reason="pip install parasail (extra test)")
    judge = pytest.importorskip("Bio.Align", reason="pip install biopython (extra test)")
    rng, letters = np.random.default_rng(sum(shape)), "ARNDCQEGHILKMFPSTWYV"
    first, second = ("".join(rng.choice(list(letters), size)) for size in shape)
    number = parasail.blosum62.mapper
    rows, columns = ([number[ord(letter)] for letter in word] for word in (first, second))
    scores = parasail.blosum62.matrix[np.ix_(rows, columns)].astype(dtype)
    result = align(scores, gap=gap, gap_open=gap_open, ends=ends)
    path = listed(result.path)
    assert int(result.score) == (score_of(np.add, path, scores, gap, gap_open) or 0)
    aligner = judge.PairwiseAligner(mode="global", open_gap_score=gap_open, extend_gap_score=gap)
    aligner.substitution_matrix = judge.substitution_matrices.load("BLOSUM62")
    places = ("left_deletion", "right_deletion", "left_insertion", "right_insertion")
    for end, place in zip(NAMES, places, strict=True):
        if end in ends:
            setattr(aligner, f"{place}_score", 0)
    assert int(result.score) == aligner.score(first, second)
    run = getattr(parasail, f"{as_parasail(ends)}_trace_scan_32", None)
    if run:
        judged = run(first, second, -gap_open, -gap, parasail.blosum62).score
        is_overlap = {"first begin", "second end"} <= {*ends} or {*NAMES[1:3]} <= {*ends}
        assert int(result.score) == (max(judged, 0) if is_overlap else judged)


def subsequence_warping(costs):
    """(cost, the last element) of a loop in which the first row begins anywhere, as in M. Mueller's
    book of 2007: with costs of at least 0 repeating the first element there is never better.
    """
    total = costs[0].copy()
    for row in costs[1:]:
        before, total = total, row + total
        for j in range(1, len(row)):
            total[j] = row[j] + min(before[j], before[j - 1], total[j - 1])
    return total.min(), int(total.argmin())


def test_subsequence_warping_against_a_loop():
    ask = jax.jit(lambda costs: align(costs, semiring="min_plus", ends=NAMES[2:]))
    rng = np.random.default_rng(0)
    for costs in rng.integers(0, 9, (100, 5, 12)).astype(np.float32):
        cost, last = subsequence_warping(costs)
        found = ask(costs)
        path = listed(found.path)
        assert (float(found.score), path[-1]) == (cost, (4, last))
        assert sum(costs[place] for place in path) == cost
