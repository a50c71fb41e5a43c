"""Cases of the vocabulary: each standard op with its inputs and NumPy as its judge."""

import jax
import numpy as np
import scipy.linalg
import scipy.signal
import scipy.special

from tenferro_jax import TensorMeta
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops import (
    analytic,
    arithmetic,
    contraction,
    control,
    conversion,
    indexing,
    linalg,
    logic,
    reduction,
    sorting,
    source,
    special,
    structural,
    window,
)
from tenferro_jax.ops.logic import Direction

RNG = np.random.default_rng(0)


X, Y = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))


POSITIVE = np.abs(X) + 0.5


I, J = RNG.integers(-9, 9, (3, 4)), RNG.integers(1, 5, (3, 4))


B, C = X > 0, Y > 0


def graph_of(fn, *metas):
    builder = GraphBuilder()
    return builder.build(builder.inline(fn, *[builder.input(m) for m in metas]))


def scalar_meta(dtype="float64"):
    return TensorMeta(np.dtype(dtype), ())


HALVE = graph_of(lambda k, x: (x * k,), scalar_meta(), scalar_meta())


BELOW = graph_of(lambda x: (x < 100.0,), scalar_meta())


DOUBLE = graph_of(lambda x: (x * 2,), scalar_meta())


PRODUCT = graph_of(lambda x, y: (x * y,), scalar_meta(), scalar_meta())


SUM_AND_PRODUCT = graph_of(lambda a, b, c, d: (a + c, b * d), *[scalar_meta()] * 4)


TWICE = graph_of(lambda x: (x * 2,), TensorMeta(np.dtype("float64"), (3, 4)))


HALF = graph_of(lambda x: (x / 2,), TensorMeta(np.dtype("float64"), (3, 4)))


DOUBLE_AND_RULE = graph_of(lambda x, t: (x * 2, t * 7), scalar_meta(), scalar_meta())


RUNNING = graph_of(
    lambda k, c, row: (c + k * row.sum(), row + c),
    scalar_meta(),
    scalar_meta(),
    TensorMeta(np.dtype("float64"), (4,)),
)


NEGATE = graph_of(lambda x: (-x,), scalar_meta())


UNARY = {
    arithmetic.Neg: np.negative,
    arithmetic.Abs: np.abs,
    arithmetic.Sign: np.sign,
    analytic.Exp: np.exp,
    analytic.Expm1: np.expm1,
    analytic.Sin: np.sin,
    analytic.Cos: np.cos,
    analytic.Tanh: np.tanh,
    analytic.Logistic: lambda x: 1 / (1 + np.exp(-x)),
}


INSIDE = np.tanh(X)


SMALL = {
    analytic.Asin: np.arcsin,
    analytic.Acos: np.arccos,
    analytic.Atanh: np.arctanh,
    special.ErfInv: scipy.special.erfinv,
}


MORE = {
    arithmetic.Floor: np.floor,
    arithmetic.Ceil: np.ceil,
    arithmetic.Round: np.round,
    analytic.Exp2: np.exp2,
    analytic.Tan: np.tan,
    analytic.Sinh: np.sinh,
    analytic.Cosh: np.cosh,
    analytic.Asinh: np.arcsinh,
    analytic.Atan: np.arctan,
    analytic.Cbrt: np.cbrt,
    analytic.OneMinusSquare: lambda x: 1 - x * x,
    special.Erf: scipy.special.erf,
    special.Erfc: scipy.special.erfc,
    special.Lgamma: scipy.special.gammaln,
    special.Digamma: scipy.special.digamma,
    special.BesselI0e: scipy.special.i0e,
    special.BesselI1e: scipy.special.i1e,
    conversion.Conj: np.conj,
}


BITS = {
    logic.Xor: np.bitwise_xor,
    logic.ShiftLeft: np.left_shift,
    logic.ShiftRightArithmetic: np.right_shift,
    logic.ShiftRightLogical: lambda x, y: (x.astype(np.uint64) >> y.astype(np.uint64)).astype(
        np.int64
    ),
}


CUMULATIVE = {
    reduction.CumSum: np.cumsum,
    reduction.CumProd: np.cumprod,
    reduction.CumMax: np.maximum.accumulate,
    reduction.CumMin: np.minimum.accumulate,
    reduction.CumLogSumExp: np.logaddexp.accumulate,
}


SQUARE = X[:, :3] @ X[:, :3].T + 3 * np.eye(3)


GENERAL = X[:3, :3] + 2 * np.eye(3)


Z = X + 1j * Y


WINDOW = ((1, 2), (1, 2), ((0, 0), (0, 0)), (1, 1), (1, 1))


PAIRS = X.reshape(3, 2, 2)


def scattered(combine):
    def oracle(x, i, u):
        out = x.copy()
        for row, update in zip(i[:, 0], u):
            out[row] = combine(out[row], update)
        return out

    return oracle


def at_largest(x, y):
    """Each window of two: y where x is the larger, by a mask."""
    first = (PAIRS[..., 0] >= PAIRS[..., 1])[..., None]
    return np.where(
        np.concatenate([first, ~first], -1),
        y.reshape(3, 2, 2) if y.shape == x.shape else y[..., None],
        0,
    )


BINARY = {
    arithmetic.Add: np.add,
    arithmetic.Sub: np.subtract,
    arithmetic.Mul: np.multiply,
    arithmetic.Div: np.divide,
    arithmetic.Rem: np.fmod,
    arithmetic.Maximum: np.maximum,
    arithmetic.Minimum: np.minimum,
}


SPECIAL_ORDER = np.array([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan])


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


REDUCTIONS = {
    reduction.ReduceSum: np.sum,
    reduction.ReduceProd: np.prod,
    reduction.ReduceMax: np.max,
    reduction.ReduceMin: np.min,
}


def running(k, carry, rows):
    """A reversed scan, by a loop."""
    stacked = np.empty_like(rows)
    for i in reversed(range(3)):
        stacked[i] = rows[i] + carry
        carry = carry + k * rows[i].sum()
    return carry, stacked


def permutation(a):
    return np.argmax(scipy.linalg.lu(a)[0].T, 1).astype(np.int32)


def pivots(a):
    return scipy.linalg.qr(a, pivoting=True)[2].astype(np.int32)


CASES = [
    *((op(), (X,), fn) for op, fn in UNARY.items()),
    *(
        (op(), (POSITIVE,), fn)
        for op, fn in [(analytic.Log, np.log), (analytic.Log1p, np.log1p), (analytic.Sqrt, np.sqrt)]
    ),
    (analytic.Rsqrt(), (POSITIVE,), lambda x: 1 / np.sqrt(x)),
    (analytic.Pow(), (POSITIVE, Y), np.power),
    (analytic.IntegerPow(3), (X,), lambda x: x**3),
    (analytic.IntegerPow(-2), (X,), lambda x: 1 / x**2),
    *((op(), (X, Y), fn) for op, fn in BINARY.items()),
    (arithmetic.Div(), (I, J), lambda x, y: np.trunc(x / y).astype(np.int64)),
    (arithmetic.Rem(), (I, J), np.fmod),
    *(
        (logic.Compare(d), (I, J), getattr(np, name))
        for d, name in zip(Direction, COMPARISONS, strict=False)
    ),
    (
        logic.Compare(Direction.LtTotal),
        (SPECIAL_ORDER[:-1], SPECIAL_ORDER[1:]),
        lambda x, y: np.ones(6, bool),
    ),
    (
        logic.Compare(Direction.LeTotal),
        (SPECIAL_ORDER, SPECIAL_ORDER),
        lambda x, y: np.ones(7, bool),
    ),
    (
        logic.Compare(Direction.EqTotal),
        (SPECIAL_ORDER, SPECIAL_ORDER[::-1]),
        lambda x, y: np.arange(7) == 3,
    ),
    (logic.And(), (B, C), np.logical_and),
    (logic.Or(), (I, J), np.bitwise_or),
    (logic.Not(), (B,), np.logical_not),
    (logic.Select(), (B, X, Y), np.where),
    (logic.Clamp(), (X, np.float64(-0.5), np.float64(0.5)), np.clip),
    (conversion.Convert(np.dtype("int32")), (X,), lambda x: x.astype(np.int32)),
    (logic.IsFinite(), (np.array([1.0, np.inf, np.nan]),), np.isfinite),
    (source.StopGradient(), (X,), lambda x: x),
    (source.Constant(X), (), lambda: X),
    (source.DimensionValue(7, np.dtype("int32")), (), lambda: np.int32(7)),
    (
        source.Iota(np.dtype("int32"), (2, 3), 1),
        (),
        lambda: np.broadcast_to(np.arange(3, dtype=np.int32), (2, 3)),
    ),
    (structural.Transpose((1, 0)), (X,), np.transpose),
    (structural.Reshape((2, 6)), (X,), lambda x: x.reshape(2, 6)),
    (structural.BroadcastInDim((2, 3, 4), (1, 2)), (X,), lambda x: np.broadcast_to(x, (2, 3, 4))),
    (structural.Slice((0, 1), (3, 4), (2, 1)), (X,), lambda x: x[0:3:2, 1:4]),
    (
        structural.Pad((1, 0), (0, 2), (0, 0)),
        (X, np.float64(9)),
        lambda x, f: np.pad(x, ((1, 0), (0, 2)), constant_values=f),
    ),
    (structural.Reverse((1,)), (X,), lambda x: x[:, ::-1]),
    (structural.Concatenate(0), (X, Y), lambda x, y: np.concatenate([x, y])),
    (contraction.DotGeneral((1,), (1,)), (X, Y), lambda x, y: x @ y.T),
    (
        contraction.DotGeneral((1,), (1,), (0,), (0,)),
        (X, Y),
        lambda x, y: np.einsum("ij,ij->i", x, y),
    ),
    *((op((1,)), (X,), lambda x, fn=fn: fn(x, axis=1)) for op, fn in REDUCTIONS.items()),
    (reduction.ReduceAnd((0,)), (B,), lambda x: np.all(x, axis=0)),
    (reduction.ReduceOr((0, 1)), (B,), np.any),
    (reduction.ArgMax(1, np.dtype("int32")), (X,), lambda x: x.argmax(1).astype(np.int32)),
    (reduction.ArgMin(0, np.dtype("int64")), (X,), lambda x: x.argmin(0)),
    (
        indexing.Gather((1,), (0,), (0,), (1, 4)),
        (X, np.array([[2], [0], [2]])),
        lambda x, i: x[i[:, 0]],
    ),
    (
        indexing.Scatter((1,), (0,), (0,)),
        (X, np.array([[2], [0], [2]]), Y),
        lambda x, i, y: np.stack([x[0] + y[1], x[1], x[2] + y[0] + y[2]]),
    ),
    (indexing.DynamicSlice((2, 2)), (X, np.int32(1), np.int32(7)), lambda x, i, j: x[1:3, 2:4]),
    (indexing.DynamicSlice((2, 2)), (X, np.int32(-1), np.int32(1)), lambda x, i, j: x[:2, 1:3]),
    (
        indexing.DynamicUpdateSlice(),
        (X[0], Y[0, :1], np.int32(-2)),
        lambda x, u, i: np.concatenate([u, x[1:]]),
    ),
    (
        indexing.DynamicUpdateSlice(),
        (X, Y[:1, :2], np.int32(2), np.int32(1)),
        lambda x, u, i, j: np.concatenate([x[:2], np.concatenate([x[2:, :1], u, x[2:, 3:]], 1)]),
    ),
    *((op(), (X,), fn) for op, fn in MORE.items()),
    *((op(), (INSIDE,), fn) for op, fn in SMALL.items()),
    (analytic.Acosh(), (POSITIVE + 1,), np.arccosh),
    (analytic.Log2(), (POSITIVE,), np.log2),
    (analytic.Atan2(), (X, Y), np.arctan2),
    (analytic.Exp(jax.lax.AccuracyMode.HIGHEST), (X,), np.exp),
    (analytic.Pow(), (X, J.astype(np.int32)), np.power),
    (
        arithmetic.Round(to_even=False),
        (np.array([0.5, 1.5, -2.5]),),
        lambda x: np.array([1.0, 2.0, -3.0]),
    ),
    (arithmetic.NextAfter(), (X, Y), np.nextafter),
    *((op(), (I, J), fn) for op, fn in BITS.items()),
    (
        logic.PopulationCount(),
        (J,),
        lambda x: np.array([[bin(v).count("1") for v in row] for row in x]),
    ),
    (logic.CountLeadingZeros(), (J,), lambda x: 63 - np.floor(np.log2(x)).astype(np.int64)),
    (
        special.Polygamma(),
        (np.floor(POSITIVE), POSITIVE),
        lambda n, x: scipy.special.polygamma(n.astype(int), x),
    ),
    (special.Zeta(), (POSITIVE + 1, POSITIVE), scipy.special.zeta),
    (special.Igamma(), (POSITIVE, POSITIVE[::-1]), scipy.special.gammainc),
    (special.Igammac(), (POSITIVE, POSITIVE[::-1]), scipy.special.gammaincc),
    (
        special.IgammaGradA(),
        (POSITIVE, POSITIVE[::-1]),
        lambda a, x: (
            (scipy.special.gammainc(a + 1e-6, x) - scipy.special.gammainc(a - 1e-6, x)) / 2e-6
        ),
    ),
    (
        special.RandomGammaGrad(),
        (POSITIVE, POSITIVE[::-1]),
        lambda a, x: (
            -(scipy.special.gammainc(a + 1e-6, x) - scipy.special.gammainc(a - 1e-6, x))
            / (scipy.special.gammainc(a, x + 1e-6) - scipy.special.gammainc(a, x - 1e-6))
        ),
    ),
    (
        special.RegularizedIncompleteBeta(),
        (POSITIVE, POSITIVE[::-1], np.abs(INSIDE)),
        scipy.special.betainc,
    ),
    (conversion.BitcastConvert(np.dtype("int64")), (X,), lambda x: x.view(np.int64)),
    (conversion.ReducePrecision(8, 23), (X,), lambda x: x.astype(np.float32).astype(np.float64)),
    (conversion.Real(), (Z,), np.real),
    (conversion.Imag(), (Z,), np.imag),
    (conversion.Conj(), (Z,), np.conj),
    (conversion.Complex(), (X, Y), lambda x, y: x + 1j * y),
    (source.ShapeOf(1), (X,), lambda x: np.int32(4)),
    (source.OptimizationBarrier(), (X,), lambda x: x),
    (
        structural.ExtractDiag(0, 2),
        (np.arange(18.0).reshape(3, 2, 3),),
        lambda x: np.einsum("iji->ij", x),
    ),
    (
        structural.ExtractDiag(2, 0),
        (np.arange(18.0).reshape(3, 2, 3),),
        lambda x: np.einsum("iji->ji", x),
    ),
    (structural.EmbedDiag(0, 2), (X,), lambda x: np.einsum("ij,ik->ijk", x, np.eye(3))),
    (structural.EmbedDiag(2, 0), (X,), lambda x: np.einsum("ij,jk->kij", x, np.eye(4))),
    (structural.Tril(-1), (X,), lambda x: np.tril(x, -1)),
    (structural.Triu(1), (X,), lambda x: np.triu(x, 1)),
    (structural.PadToMatch(1), (X, np.zeros((2, 6))), lambda x, y: np.pad(x, ((0, 0), (0, 2)))),
    (structural.PadToMatch(1), (X, np.zeros((2, 3))), lambda x, y: x),
    (
        contraction.Convolution((1,), ((1, 1),), (1,), (1,), (0, 1, 2), (0, 1, 2), (0, 1, 2)),
        (X[:, None], Y[:1, None, :3]),
        lambda x, k: np.stack([[np.correlate(np.pad(row[0], 1), k[0, 0], "valid")] for row in x]),
    ),
    (contraction.Fft("RFFT", (4,)), (X,), np.fft.rfft),
    (contraction.Fft("IFFT", (3, 4)), (Z,), np.fft.ifft2),
    (reduction.ReduceXor((0,)), (J,), lambda x: np.bitwise_xor.reduce(x, 0)),
    (reduction.ReduceSumSquares((1,)), (X,), lambda x: (x * x).sum(1)),
    (reduction.Reduce(PRODUCT, (1,)), (X, np.float64(1)), lambda x, one: x.prod(1)),
    *((op(1), (POSITIVE,), lambda x, fn=fn: fn(x, axis=1)) for op, fn in CUMULATIVE.items()),
    *(
        (op(0, reverse=True), (POSITIVE,), lambda x, fn=fn: fn(x[::-1], axis=0)[::-1])
        for op, fn in CUMULATIVE.items()
    ),
    (window.ReduceWindowSum(*WINDOW), (X,), lambda x: PAIRS.sum(-1)),
    (window.ReduceWindowMax(*WINDOW), (X,), lambda x: PAIRS.max(-1)),
    (window.ReduceWindowMin(*WINDOW), (X,), lambda x: PAIRS.min(-1)),
    (window.ReduceWindow(*WINDOW, PRODUCT), (X, np.float64(1)), lambda x, one: PAIRS.prod(-1)),
    (
        window.ReduceWindow(*WINDOW, SUM_AND_PRODUCT),
        (X, Y, np.float64(0), np.float64(1)),
        lambda x, y, zero, one: (PAIRS.sum(-1), Y.reshape(3, 2, 2).prod(-1)),
    ),
    (
        window.SelectAndScatterAdd(True, *WINDOW[:3]),
        (Y[:, :2], X),
        lambda y, x: at_largest(x, y).reshape(3, 4),
    ),
    (window.SelectAndGatherAdd(*WINDOW, True), (Y, X), lambda y, x: at_largest(x, y).sum(-1)),
    (sorting.Sort(1), (X,), np.sort),
    (
        sorting.ApproxTopK(4, 1, 1.0, largest=False, input_size_override=4),
        (X,),
        lambda x: (np.sort(x), np.argsort(x).astype(np.int32)),
    ),
    (
        sorting.TopK(2, 0),
        (X,),
        lambda x: (-np.sort(-x, 0)[:2], np.argsort(-x, 0)[:2].astype(np.int32)),
    ),
    (
        indexing.ScatterSub((1,), (0,), (0,)),
        (X, np.array([[2], [0], [2]]), Y),
        scattered(np.subtract),
    ),
    (
        indexing.ScatterMul((1,), (0,), (0,)),
        (X, np.array([[2], [0], [2]]), Y),
        scattered(np.multiply),
    ),
    (
        indexing.ScatterMin((1,), (0,), (0,)),
        (X, np.array([[2], [0], [2]]), Y),
        scattered(np.minimum),
    ),
    (
        indexing.ScatterMax((1,), (0,), (0,)),
        (X, np.array([[2], [0], [2]]), Y),
        scattered(np.maximum),
    ),
    (
        indexing.ScatterUpdate((1,), (0,), (0,)),
        (X, np.array([[2], [0]]), Y[:2]),
        scattered(lambda old, new: new),
    ),
    (
        indexing.Gather(
            (1,), (0,), (0,), (1, 4), out_of_bounds=indexing.OutOfBounds.FillOrDrop, fill_value=7.0
        ),
        (X, np.array([[2], [5]])),
        lambda x, i: np.stack([x[2], np.full(4, 7.0)]),
    ),
    (linalg.Cholesky(), (SQUARE,), np.linalg.cholesky),
    (
        linalg.Lu(),
        (GENERAL,),
        lambda a: (
            *scipy.linalg.lu_factor(a)[:1],
            scipy.linalg.lu_factor(a)[1].astype(np.int32),
            permutation(a),
        ),
    ),
    (linalg.LuPivotsToPermutation(3), (np.int32([2, 2, 2]),), lambda p: np.int32([2, 0, 1])),
    (linalg.Qr(), (X.T,), lambda a: scipy.linalg.qr(a, mode="economic")),
    (
        linalg.Qr(full_matrices=True, pivoting=True),
        (X.T,),
        lambda a: (*scipy.linalg.qr(a, pivoting=True)[:2], pivots(a)),
    ),
    (
        linalg.HouseholderProduct(),
        scipy.linalg.qr(GENERAL, mode="raw")[0],
        lambda h, tau: scipy.linalg.qr(GENERAL)[0],
    ),
    (linalg.Svd(compute_uv=False), (X,), lambda a: np.linalg.svd(a, compute_uv=False)),
    (linalg.Eig(left=False, right=False), (GENERAL,), np.linalg.eigvals),
    (
        linalg.TriangularSolve(transpose_a=True),
        (GENERAL, X),
        lambda a, b: scipy.linalg.solve_triangular(a, b, trans=1, lower=True),
    ),
    (
        linalg.TridiagonalSolve(),
        (Y[0], POSITIVE[0] + 3, Y[1], X.T),
        lambda low, d, up, b: np.linalg.solve(
            np.diag(low[1:], -1) + np.diag(d) + np.diag(up[:-1], 1), b
        ),
    ),
    (linalg.Solve(), (GENERAL, X), np.linalg.solve),
    (control.Scan(RUNNING, 3, 1, 1, reverse=True), (np.float64(2), np.float64(0), X), running),
    (control.LinearSolve(TWICE, HALF, HALF, (0, 0, 0)), (X,), lambda x: x / 2),
    (control.CustomJvp("double", DOUBLE, DOUBLE_AND_RULE), (np.float64(3),), lambda x: 2 * x),
    (control.CustomVjp("double", DOUBLE, DOUBLE, NEGATE), (np.float64(3),), lambda x: 2 * x),
    (control.Scan(HALVE, 5, 1, 1), (np.float64(0.5), np.float64(64.0)), lambda k, x: x * k**5),
    (control.While(BELOW, DOUBLE), (np.float64(3.0),), lambda x: np.float64(192.0)),
    (control.Cond((NEGATE, DOUBLE)), (np.int32(1), np.float64(3.0)), lambda i, x: np.float64(6.0)),
    (
        control.Cond((NEGATE, DOUBLE)),
        (np.bool_(True), np.float64(3.0)),
        lambda i, x: np.float64(6.0),
    ),
    (
        control.Cond((NEGATE, DOUBLE)),
        (np.int32(-4), np.float64(3.0)),
        lambda i, x: np.float64(-3.0),
    ),
]
