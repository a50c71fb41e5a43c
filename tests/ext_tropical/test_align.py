"""align against every alignment."""

import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import align, log_sum_exp
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..oracles import ALGEBRAS
from .judges import check_derivatives, refusals

PAIR, FIRST, SECOND = range(3)
MOVES = {PAIR: (1, 1), FIRST: (1, 0), SECOND: (0, 1)}


def lists_of_kinds(m, n, band, warps):
    """The kinds of the columns of every way from (0, 0) to (m, n)."""
    if (m, n) == (0, 0):
        yield ()
    for kind, (i, j) in MOVES.items():
        before = m - i, n - j
        outside = min(before) < 0 or abs(m - n) > band
        if outside or (warps and 0 in before and (before != (0, 0) or kind != PAIR)):
            continue
        for kinds in lists_of_kinds(*before, band, warps):
            yield (*kinds, kind)


def columns_of(kinds, start, warps):
    """The columns as `align` returns them."""
    i, j = start
    for kind in kinds:
        i, j = i + MOVES[kind][0], j + MOVES[kind][1]
        yield (i - 1 if warps or kind != SECOND else -1, j - 1 if warps or kind != FIRST else -1)


def score_of(times, columns, scores, gap, gap_open):
    """The product of the columns' scores, None for no columns."""
    kinds = [SECOND if i < 0 else FIRST if j < 0 else PAIR for i, j in columns]
    total = None
    for before, kind, place in zip([PAIR, *kinds], kinds, columns):
        entry = scores[place] if kind == PAIR else gap if kind == before else gap_open
        total = entry if total is None else times(total, entry)
    return total


def every_alignment(scores, gap, mode, band):
    """(order among equally good ones, columns) of all."""
    (m, n), warps = scores.shape, gap is None
    band = m + n if band is None else band
    if mode == "global":
        for kinds in lists_of_kinds(m, n, band, warps):
            yield kinds[::-1], list(columns_of(kinds, (0, 0), warps))
        return
    yield (), []
    for a, b in np.ndindex(m, n):
        for c, d in itertools.product(range(a + 1, m + 1), range(b + 1, n + 1)):
            for kinds in lists_of_kinds(c - a, d - b, m + n, warps):
                columns = list(columns_of(kinds, (a, b), warps))
                nodes = np.cumsum([(a, b), *(MOVES[kind] for kind in kinds)], 0)
                if abs(nodes[:, 0] - nodes[:, 1]).max() <= band and kinds[0] == kinds[-1] == PAIR:
                    yield (c + d, c, kinds[::-1]), columns


def best_of(name, scores, gap=None, gap_open=None, mode="global", band=None):
    """(score, columns) of the best alignment, the first of equally good ones."""
    algebra, one = ALGEBRAS[name], {"max_mul": 1.0, "min_max": -np.inf}.get(name, 0.0)
    best, found, first = (one, [], ()) if mode == "local" else (algebra.zero, [], None)
    for order, columns in every_alignment(scores, gap, mode, band):
        score = score_of(algebra.times, columns, scores, gap, gap if gap_open is None else gap_open)
        if score is not None and (
            algebra.better(score, best) or (score == best != algebra.zero and order < first)
        ):
            best, found, first = score, columns, order
    return best, found


VALUES = {
    "max_plus": ([-2.0, -1.0, 1.0, 2.0] * 2 + [-np.inf], -1.0, -2.0),
    "min_plus": ([2.0, 1.0, -1.0, -2.0] * 2 + [np.inf], 1.0, 2.0),
    "max_mul": ([0.5, 1.0, 2.0] * 3 + [0.0], 0.5, 0.25),
    "min_max": ([3.0, 2.0, 1.0, 0.0] * 2 + [np.inf], 2.0, 1.0),
}
OPTIONS = {
    "gaps": {"gap": True},
    "affine": {"gap": True, "gap_open": True},
    "local": {"gap": True, "mode": "local"},
    "local affine": {"gap": True, "gap_open": True, "mode": "local"},
    "warping": {},
}


def with_scores(options, gap, gap_open):
    given = {"gap": gap, "gap_open": gap_open}
    return {name: given.get(name, value) for name, value in options.items()}


def listed(path):
    """The rows of a path up to its padding."""
    rows = [tuple(row) for row in np.asarray(path).tolist()]
    used = [row for row in rows if row != (-1, -1)]
    assert rows == used + [(-1, -1)] * (len(rows) - len(used))
    return used


@pytest.mark.few(10)
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (4, 2), (3, 3), (3, 4)])
@pytest.mark.parametrize("band", [None, 2, 3])
def test_brute_force(name, options, shape, band):
    """Few distinct values, so that equal alignments are many."""
    rng = np.random.default_rng(shape[0] * 10 + shape[1])
    values, *gaps = VALUES[name]
    given = with_scores(OPTIONS[options], *gaps) | {"band": band}
    for _ in range(5):
        scores = rng.choice(values, shape)
        score, columns = best_of(name, scores, **given)
        result = align(scores, semiring=name, **given)
        assert (result.path.dtype, result.path.shape) == (np.int32, (sum(shape), 2))
        np.testing.assert_array_equal(result.score, score)
        if name == "min_max" and columns:  # a worse beginning may be part of a best alignment
            chosen, (gap, first) = listed(result.path), gaps
            first = first if "gap_open" in given else gap
            assert score_of(np.maximum, chosen, scores, gap, first) == score
        else:
            assert listed(result.path) == columns


@pytest.mark.few(4)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (3, 4)])
@pytest.mark.parametrize("band", [None, 2])
def test_log_sum_exp_is_of_all_alignments(options, shape, band):
    rng, temperature = np.random.default_rng(0), 0.7
    given = with_scores(OPTIONS[options], -0.3, -0.8) | {"band": band}
    scores = rng.normal(size=shape)
    first = given.get("gap_open", given.get("gap"))
    every = [
        score_of(np.add, columns, scores, given.get("gap"), first) or 0.0
        for _, columns in every_alignment(
            scores, given.get("gap"), given.get("mode", "global"), band
        )
    ]
    result = align(scores, semiring=log_sum_exp(temperature), **given)
    assert result.path is None
    np.testing.assert_allclose(
        result.score,
        temperature * np.log(np.sum(np.exp(np.divide(every, temperature)))),
        rtol=1e-12,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("options", OPTIONS)
def test_derivatives_of_log_sum_exp(options):
    """By scores and gaps, first and second, with a forbidden pair."""
    scores = np.random.default_rng(3).normal(size=(3, 4))
    given = with_scores(OPTIONS[options], -0.5, -0.9)
    names = [name for name in given if name != "mode"]
    rest = {name: value for name, value in given.items() if name == "mode"}

    def score(table, *gaps):
        table = jnp.pad(table, ((0, 1), (0, 0)), constant_values=-1.0).at[3, 2].set(-jnp.inf)
        return align(
            table, semiring=log_sum_exp(0.8), **rest, **dict(zip(names, gaps, strict=True))
        ).score

    check_derivatives(score, [scores, *(np.array(given[name]) for name in names)])


@pytest.mark.few(5)
@pytest.mark.parametrize("name", ["max_plus", "min_plus"])
@pytest.mark.parametrize("options", OPTIONS)
def test_gradient_counts_what_the_path_uses(name, options):
    values, *gaps = VALUES[name]
    scores = np.random.default_rng(4).choice(values[:-1], (6, 5))
    given = with_scores(OPTIONS[options], *map(np.float64, gaps))
    traced = {k: v for k, v in given.items() if k != "mode"}
    rest = {k: v for k, v in given.items() if k == "mode"}

    def score(scores, traced):
        result = align(scores, semiring=name, **traced, **rest)
        return result.score, result.path

    (by_scores, by_gaps), path = jax.jit(jax.grad(score, (0, 1), has_aux=True))(scores, traced)
    path, want = listed(path), np.zeros(scores.shape)
    used = {"gap": 0, "gap_open": 0}
    before = PAIR
    for i, j in path:
        kind = SECOND if i < 0 else FIRST if j < 0 else PAIR
        if kind == PAIR:
            want[i, j] += 1
        else:
            used["gap" if kind == before or "gap_open" not in given else "gap_open"] += 1
        before = kind
    np.testing.assert_array_equal(by_scores, want)
    assert by_gaps == {k: used[k] for k in traced}
    assert want.sum() > 1


def test_derivatives_where_times_multiplies():
    """The product of the entries of a path, differentiated twice."""
    scores = np.random.default_rng(5).uniform(0.5, 1.5, (4, 3))
    check_derivatives(
        lambda s, g: align(s, gap=g, semiring="max_mul").score, [scores, np.array(0.7)]
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("semiring", ["max_plus", log_sum_exp()])
def test_a_padded_batch_is_exact(options, semiring):
    """Whatever stands after the sequences, NaN too, changes neither score, path nor gradient."""
    rng = np.random.default_rng(6)
    given = with_scores(OPTIONS[options], -1.0, -2.0)
    lengths = np.array([[5, 6], [1, 6], [3, 3]])
    scores = np.full((len(lengths), 5, 6), np.nan)
    for table, (m, n) in zip(scores, lengths):
        table[:m, :n] = rng.integers(-3, 5, (m, n))

    def score(scores, **more):
        result = align(scores, semiring=semiring, **given, **more)
        return result.score, result.path

    one = jax.value_and_grad(score, has_aux=True)
    many = jax.jit(jax.vmap(lambda s, k: one(s, lengths=k)))(scores, lengths)
    for i, (m, n) in enumerate(lengths):
        (value, path), slope = one(scores[i, :m, :n])
        np.testing.assert_allclose(many[0][0][i], value, rtol=1e-12)
        np.testing.assert_allclose(many[1][i, :m, :n], slope, rtol=1e-9)
        assert not np.asarray(many[1][i])[m:].any()
        assert not np.asarray(many[1][i])[:, n:].any()
        if path is not None:
            assert listed(many[0][1][i]) == listed(path)


@pytest.mark.parametrize("band", [None, 2])
def test_a_local_alignment_may_be_empty(band):
    result = align(-np.ones((4, 5)), gap=-1.0, mode="local", band=band)
    assert (result.score, listed(result.path)) == (0, [])


def test_lengths_of_zero_and_outside():
    scores = np.ones((2, 3))
    every = jax.jit(lambda k: align(scores, gap=-1.0, lengths=k))
    for lengths, score, rows in (
        ((0, 0), 0, []),
        ((0, 2), -2, [(-1, 0), (-1, 1)]),
        ((1, 0), -1, [(0, -1)]),
        ((3, 1), -np.inf, []),
        ((1, 4), -np.inf, []),
        ((-1, 2), -np.inf, []),
    ):
        result = every(jnp.array(lengths))
        assert (result.score, listed(result.path)) == (score, rows)
    local = jax.jit(lambda k: align(scores, gap=-1.0, mode="local", lengths=k).score)
    assert [local(jnp.array(k)) for k in ((0, 2), (2, 2), (3, 3))] == [0, 2, -np.inf]
    assert align(scores, lengths=(0, 0)).score == 0
    assert align(scores, lengths=(0, 1)).score == -np.inf
    assert align(scores, band=1, lengths=(1, 3)).score == -np.inf


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_dtypes(dtype):
    scores = np.random.default_rng(7).integers(-3, 5, (6, 4)).astype(dtype)
    want = align(scores.astype(float), gap=-2, gap_open=-3)
    result = align(scores, gap=-2, gap_open=np.array(-3, dtype))
    assert result.score.dtype == dtype
    assert float(result.score) == want.score
    np.testing.assert_array_equal(result.path, want.path)


def test_an_integer_infinity_forbids_a_pair():
    scores = np.array([[np.iinfo(np.int32).min, 0], [0, 5]], np.int32)
    result = align(scores, gap=-1)
    assert (result.score, listed(result.path)[-1]) == (3, (1, 1))
    assert align(scores).score == np.iinfo(np.int32).min


def test_nan_is_never_hidden():
    scores = np.zeros((3, 4))
    scores[1, 1] = np.nan
    one = jnp.array(1.0)  # of a number align would warn
    for name in ("max_plus", "min_plus", "min_max", log_sum_exp()):
        for given in ({"gap": one}, {"gap": one, "gap_open": one}, {}):
            assert jnp.isnan(align(scores, semiring=name, **given).score)
    assert jnp.isnan(align(scores, gap=-1.0, mode="local").score)
    assert jnp.isnan(align(scores.T, gap=-1.0, band=1).score)


TABLE = np.zeros((2, 3))


def symbolic():
    (m,) = jax.export.symbolic_shape("m")
    jax.eval_shape(align, jax.ShapeDtypeStruct((m, 3), np.float32))


@pytest.mark.parametrize("band", [np.int64(2), 10**30])
def test_a_band_wider_than_the_table_is_no_band(band):
    want = align(TABLE, gap=-1.0)
    got = align(TABLE, gap=-1.0, band=band)
    assert float(got.score) == float(want.score)
    np.testing.assert_array_equal(got.path, want.path)


test_refusals = refusals(
    (ShapeError, r"scores: given shape \(3,\)", functools.partial(align, np.zeros(3))),
    (ShapeError, "at least 1", functools.partial(align, np.zeros((0, 3)))),
    (ShapeError, "use jax.vmap", functools.partial(align, np.zeros((2, 2, 2)))),
    (ShapeError, "gap: given shape", functools.partial(align, TABLE, gap=np.zeros(2))),
    (ShapeError, "lengths: given shape", functools.partial(align, TABLE, lengths=(1, 2, 3))),
    (DTypeError, "complex128", functools.partial(align, TABLE + 0j)),
    (DTypeError, "dtype int32 under log", lambda: align(np.int32(TABLE), semiring=log_sum_exp())),
    (DTypeError, "float64 and float32", functools.partial(align, TABLE, gap=jnp.float32(1))),
    (DTypeError, "a number of int32", functools.partial(align, np.int32(TABLE), gap=0.5)),
    (DTypeError, "a number of int32", functools.partial(align, np.int32(TABLE), gap=-(2**40))),
    (
        InvalidConfig,
        "mode: given 'glocal'",
        functools.partial(align, TABLE, gap=1.0, mode="glocal"),
    ),
    (InvalidConfig, "gap_open without gap", functools.partial(align, TABLE, gap_open=1.0)),
    (InvalidConfig, "mode='local' without gap", functools.partial(align, TABLE, mode="local")),
    (InvalidConfig, "band: given -1", functools.partial(align, TABLE, band=-1)),
    (InvalidConfig, "band: given 1.0", functools.partial(align, TABLE, band=1.0)),
    (InvalidConfig, "band: given True", functools.partial(align, TABLE, band=True)),
    (InvalidConfig, "at least 1, their difference", functools.partial(align, TABLE, band=0)),
    (InvalidConfig, r"lengths: given \[3, 3\]", functools.partial(align, TABLE, lengths=(3, 3))),
    (
        InvalidConfig,
        r"lengths: given \[1.0, 1.0\]",
        functools.partial(align, TABLE, lengths=np.ones(2)),
    ),
    (InvalidConfig, "semiring", functools.partial(align, TABLE, semiring="plus")),
    (Unsupported, "symbolic shape", symbolic),
)


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("mode", ["global", "local"])
@pytest.mark.parametrize(("gap", "gap_open"), [(-1, -1), (-1, -11), (-2, -10), (-5, -6)])
@pytest.mark.parametrize("shape", [(1, 1), (7, 30), (70, 70), (150, 130), (40, 300)])
def test_proteins_against_parasail(dtype, mode, gap, gap_open, shape):
    """float32 and float64 natively, where the library is built; int32 by XLA. Its first entry of a
    gap is worth `open`, each later one `extend`, as ours.
    """
    parasail = pytest.importorskip("parasail", reason="pip install parasail (extra test)")
    run = {"global": parasail.nw_trace_scan_32, "local": parasail.sw_trace_scan_32}[mode]
    rng, letters = np.random.default_rng(sum(shape)), "ARNDCQEGHILKMFPSTWYV"
    first, second = ("".join(rng.choice(list(letters), size)) for size in shape)
    judge = run(first, second, -gap_open, -gap, parasail.blosum62)
    place = parasail.blosum62.mapper
    rows, columns = ([place[ord(letter)] for letter in word] for word in (first, second))
    scores = parasail.blosum62.matrix[np.ix_(rows, columns)].astype(dtype)
    result = align(scores, gap=gap, gap_open=gap_open, mode=mode)
    assert int(result.score) == judge.score
    path = listed(result.path)
    assert score_of(np.add, path, scores, gap, gap_open) == (judge.score if path else None)
    if mode == "local" and path:  # it may end elsewhere where another end is as good
        assert path[-1][0] + path[-1][1] <= judge.end_query + judge.end_ref
