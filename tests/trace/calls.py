"""A call of every public function of arrays in jax.numpy, jax.nn, jax.scipy and jax.random, by
name: what tests/trace/sweep.py sweeps.

Arrays among the arguments are traced, all else is given as it is. A name without an entry is called
with the array X alone.
"""

import importlib
import types

import jax
import numpy as np

X = np.array([[0.75, 0.25, 0.5, 0.125], [0.375, 0.875, 0.625, 0.25], [0.5, 0.125, 0.9375, 0.0625]])
Y = X[::-1, ::-1].copy()
V, W = X[0], X[1]
T = np.stack([X, Y])
A = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
N = np.array([[6, 4, 9], [3, 8, 10]])
M = np.array([[2, 5, 3], [4, 2, 1]])
BYTES = np.arange(8, dtype=np.uint8)
ORDER = np.array([2, 0, 1, 2])
YES = X > 0.4
C = X + 1j * Y
S = np.sin(np.arange(32.0))
KEY = jax.random.key(0)

MODULES = (
    "jax.numpy",
    "jax.numpy.linalg",
    "jax.numpy.fft",
    "jax.nn",
    "jax.scipy.linalg",
    "jax.scipy.special",
    "jax.scipy.signal",
    "jax.scipy.fft",
    "jax.scipy.ndimage",
    "jax.scipy.integrate",
    "jax.scipy.optimize",
    "jax.scipy.cluster.vq",
    "jax.scipy.stats",
    "jax.random",
)

# Functions that neither take nor give arrays, or read and write files and buffers, or that JAX
# refuses to trace (trim_zeros).
NO_ARRAYS = {
    "jax.numpy": """array_repr array_str can_cast isdtype issubdtype iterable ndim shape size isscalar iscomplexobj isrealobj result_type
        promote_types get_printoptions printoptions set_printoptions load save savez frombuffer fromfile fromiter from_dlpack fromstring
        broadcast_shapes einsum_path trim_zeros""",
    "jax.nn": "get_scaled_dot_general_config",
    "jax.random": "key_dtype key_impl",
}


def each(names, *args, **kwargs):
    """The same arguments for many names."""
    return dict.fromkeys(names.split(), (args, kwargs))


CALLS = {
    "jax.numpy": {
        **each(
            """add append arctan2 atan2 copysign divide divmod equal array_equal array_equiv allclose isclose float_power floor_divide fmax
            fmin fmod greater greater_equal heaviside hypot less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor
            maximum minimum mod multiply nextafter not_equal outer pow power remainder subtract true_divide vdot vecdot""",
            X,
            Y,
        ),
        **each("bitwise_and bitwise_or bitwise_xor gcd lcm", N, M),
        **each("bitwise_left_shift bitwise_right_shift left_shift right_shift", N, M),
        **each("bitwise_count bitwise_invert bitwise_not invert", N),
        **each("apply_along_axis", lambda row: row.sum(), 0, X),
        **each("apply_over_axes", lambda x, axis: x.sum(axis, keepdims=True), X, [0]),
        **each("argpartition partition", X, 2),
        **each("argwhere flatnonzero nonzero", YES, size=8),
        **each("arange bartlett blackman hamming hanning identity eye tri diag_indices", 4),
        **each("array_split split", X, 2, axis=1),
        **each("hsplit", X, 2),
        **each("vsplit dsplit", np.stack([X[:2]] * 2), 2),
        **each("bincount", ORDER, length=4),
        **each(
            "concat concatenate column_stack dstack hstack stack vstack broadcast_arrays block",
            [X, Y],
        ),
        **each("broadcast_arrays meshgrid ix_", V, W),
        **each("choose", ORDER, [V, W, V + 1], mode="clip"),
        **each("clip", X, 0.25, 0.75),
        **each("compress", np.array([True, False, True]), X, axis=0, size=2),
        **each("convolve correlate", V, W),
        **each("cross", A[0], A[1]),
        **each("cumulative_prod cumulative_sum", X, axis=1),
        **each("delete", X, 1, axis=0),
        **each("diag_indices_from tril_indices_from triu_indices_from", A),
        **each("diagflat", V),
        **each("digitize searchsorted", np.sort(V), W),
        **each("dot matmul inner", A, A),
        **each("einsum", "ij,kj->ik", X, Y),
        **each("empty ones zeros", (2, 3)),
        **each("full", (2, 3), 0.5),
        **each("full_like", X, 0.5),
        **each("expand_dims", X, 0),
        **each("extract", YES, X, size=5),
        **each("ravel_multi_index", (ORDER, ORDER), (3, 3), mode="clip"),
        **each("fill_diagonal", A, 7.0, inplace=False),
        **each("fromfunction", lambda i, j: i + j, (2, 3)),
        **each("frompyfunc", lambda x, y: x + y, 2, 1),
        **each("geomspace linspace logspace", 1.0, 8.0, 4),
        **each("histogram histogram_bin_edges", V, 3),
        **each("histogram2d", V, W, 3),
        **each("histogramdd", X, 3),
        **each("indices", (2, 3)),
        **each("insert", X, 1, 7.0, axis=0),
        **each("interp", V, np.arange(4.0) / 4, W),
        **each("intersect1d union1d", ORDER, np.array([1, 2, 3]), size=4),
        **each("isin setdiff1d", ORDER, np.array([1, 3])),
        **each("setdiff1d setxor1d", ORDER, np.array([1, 3]), size=4),
        **each("kaiser", 4, 2.0),
        **each("kron", A, A),
        **each("ldexp", X, ORDER),
        **each("lexsort", [ORDER, V]),
        **each("mask_indices", 3, jax.numpy.triu, size=6),
        **each("matvec", A, A[0]),
        **each("vecmat", A[0], A),
        **each("moveaxis rollaxis swapaxes", X, 0, 1),
        **each("nan_to_num", np.array([np.nan, np.inf, 1.0])),
        **each("packbits unpackbits", BYTES),
        **each("pad", X, 1),
        **each("percentile nanpercentile", X, 40.0),
        **each("quantile nanquantile", X, 0.4),
        **each("permute_dims transpose", X, (1, 0)),
        **each("piecewise", V, [V < 0.3, V > 0.6], [0.0, 1.0, lambda x: 2 * x]),
        **each("place", X, YES, V, inplace=False),
        **each("poly", V),
        **each("polyadd polydiv polymul polysub polyval", V, W),
        **each("polyder polyint", V),
        **each("roots", V, strip_zeros=False),
        **each("polyfit", V, W, 2),
        **each("put", X, ORDER, V, inplace=False),
        **each("put_along_axis", X, ORDER[None], 7.0, 0, inplace=False),
        **each("repeat", X, 2, axis=0),
        **each("reshape", X, (4, 3)),
        **each("resize", X, (2, 3)),
        **each("roll", X, 1),
        **each("select", [X < 0.3, X > 0.6], [X, Y], 0.5),
        **each("take", X, ORDER, axis=1),
        **each("take_along_axis", X, ORDER[None], 0),
        **each("tensordot", A, A),
        **each("tile", X, (2, 1)),
        **each("top_k", X, 2),
        **each("tril_indices triu_indices", 3),
        **each("unique unique_inverse unique_counts unique_all unique_values", ORDER, size=3),
        **each("unravel_index", ORDER, (2, 2)),
        **each("unstack", X),
        **each("vander", V),
        **each("vectorize", lambda x: x + 1),
        **each("where", YES, X, Y),
        **each("broadcast_to", V, (3, 4)),
        **each("angle conj conjugate imag real iscomplex isreal sort_complex", C),
        **each("astype", X, np.dtype(np.int32)),
    },
    "jax.numpy.linalg": {
        **each("cholesky cond det eig eigh eigvals eigvalsh inv slogdet matrix_rank", A),
        **each("cross", A[0], A[1]),
        **each("matmul tensordot outer", A, A),
        **each("outer vecdot", V, W),
        **each("lstsq", X.T, X[0]),
        **each("solve", A, A[0]),
        **each("matrix_power", A, 3),
        **each("multi_dot", [X, X.T, X]),
        **each("tensorinv", np.eye(4).reshape(2, 2, 2, 2) + 1 / 8, ind=2),
        **each("tensorsolve", np.eye(4).reshape(2, 2, 4) + 1 / 8, A[:2, :2]),
    },
    "jax.numpy.fft": {
        **each("fftfreq rfftfreq", 5),
        **each("fft2 fftn ifft2 ifftn ifft irfft irfft2 irfftn hfft", C),
    },
    "jax.nn": {
        **each("dot_product_attention", T[:, :, None, :], T[:, :, None, :], T[:, :, None, :]),
        **each("log1mexp", X),
        **each("one_hot", ORDER, 3),
        **each(
            "scaled_matmul",
            *(np.ones((1, 4, 32), "float32"),) * 2,
            *(np.ones((1, 4, 1), "float32"),) * 2,
        ),
        **each(
            "scaled_dot_general",
            np.ones((4, 32), "float32"),
            np.ones((4, 32), "float32"),
            (((1,), (1,)), ((), ())),
        ),
    },
    "jax.scipy.linalg": {
        **each(
            """cho_factor cholesky det eigh expm hessenberg inv lu lu_factor polar qr schur sqrtm fiedler_companion""",
            A,
        ),
        **each("block_diag", A, X),
        **each("cho_solve", (np.linalg.cholesky(A), True), A[0]),
        **each("circulant companion fiedler fiedler_companion", V + 1),
        **each("convolution_matrix", V, 3),
        **each("dft hadamard helmert hilbert invhilbert invpascal pascal", 4),
        **each("eigh_tridiagonal", A[0], A[1, :2], eigvals_only=True),
        **each("expm_frechet", A, A),
        **each("funm", A, lambda x: x**2),
        **each("hankel toeplitz", V, W),
        **each("leslie", V, W[:3]),
        **each("lu_solve", (A, np.int32([0, 1, 2])), A[0]),
        **each("qr_multiply", A, A),
        **each("rsf2csf", A, A),
        **each("solve solve_triangular", A, A[0]),
        **each("solve_sylvester", A, A, A),
    },
    "jax.scipy.special": {
        **each("bernoulli", 4),
        **each("bessel_jn", V, v=2),
        **each(
            "beta betaln gammainc gammaincc boxcox boxcox1p comb kl_div owens_t poch rel_entr "
            "xlog1py xlogy",
            X,
            Y,
        ),
        **each("betainc hyp1f1", X, Y, X),
        **each("hyp2f1", X, Y, Y + 1, X),
        **each("expn", np.int32([1, 2, 3, 4]), V),
        **each("factorial", ORDER),
        **each("multigammaln", X + 3, 2),
        **each("polygamma", np.int32([1, 2, 3, 4]), V),
        **each("zeta", X + 2, Y),
        **each("sph_harm_y", np.int32([1]), np.int32([1]), V[:1], W[:1], n_max=2),
        **each("wofz", C),
    },
    "jax.scipy.signal": {
        **each("convolve correlate fftconvolve convolve2d correlate2d", X, Y),
        **each("csd", S, S + 1, nperseg=8),
        **each("stft welch", S, nperseg=8),
        **each("istft", np.fft.rfft(S.reshape(4, 8)).T, nperseg=8),
    },
    "jax.scipy.ndimage": each("map_coordinates", X, [V, W], order=1),
    "jax.scipy.optimize": each("minimize", lambda x: ((x - 1) ** 2).sum(), V, method="BFGS"),
    "jax.scipy.cluster.vq": each("vq", X, Y),
    "jax.scipy.stats": {
        **each("bernoulli.ppf", X, 0.3),
        **each("bernoulli.logpmf bernoulli.pmf bernoulli.cdf", ORDER, 0.3),
        **each("beta.cdf beta.logcdf beta.logpdf beta.logsf beta.pdf beta.sf", X, 2.0, 3.0),
        **each("betabinom.logpmf betabinom.pmf", ORDER, 4, 2.0, 3.0),
        **each("binom.logpmf binom.pmf", ORDER, 4, 0.3),
        **each("chi2.cdf chi2.logcdf chi2.logpdf chi2.logsf chi2.pdf chi2.sf", X, 3.0),
        **each("dirichlet.logpdf dirichlet.pdf", V[:3] / V[:3].sum(), A[0]),
        **each("gamma.cdf gamma.logcdf gamma.logpdf gamma.logsf gamma.pdf gamma.sf", X, 3.0),
        **each("gennorm.cdf gennorm.logpdf gennorm.pdf", X, 3.0),
        **each("geom.logpmf geom.pmf", ORDER, 0.3),
        **each("multinomial.logpmf multinomial.pmf", ORDER[:3], 5, np.array([0.2, 0.3, 0.5])),
        **each("multivariate_normal.logpdf multivariate_normal.pdf", A[0], A[1], A),
        **each("nbinom.logpmf nbinom.pmf", ORDER, 4, 0.3),
        **each(
            "pareto.cdf pareto.logcdf pareto.logpdf pareto.logsf pareto.pdf pareto.ppf pareto.sf",
            X,
            3.0,
        ),
        **each("poisson.cdf poisson.logpmf poisson.pmf", ORDER, 2.0),
        **each("poisson.entropy", V),
        **each("t.logpdf t.pdf vonmises.logpdf vonmises.pdf", X, 3.0),
        **each("wrapcauchy.logpdf wrapcauchy.pdf", X, 0.3),
        **each(
            "truncnorm.cdf truncnorm.logcdf truncnorm.logpdf truncnorm.logsf truncnorm.pdf "
            "truncnorm.sf",
            X,
            -1.0,
            1.0,
        ),
    },
    "jax.random": {
        **each("key PRNGKey Key", 7),
        **each(
            """ball bernoulli bits cauchy clone exponential geometric gumbel key_data laplace logistic maxwell normal
            rademacher rayleigh split uniform""",
            KEY,
        ),
        **each("ball", KEY, 3),
        **each("beta f", KEY, V, W),
        **each("binomial", KEY, 5.0, V),
        **each("categorical", KEY, X),
        **each("chisquare gamma loggamma generalized_normal t pareto poisson", KEY, 2.0, (3,)),
        **each("choice permutation", KEY, X),
        **each("double_sided_maxwell", KEY, 0.0, 1.0),
        **each("dirichlet", KEY, V),
        **each("fold_in", KEY, 3),
        **each("geometric", KEY, V),
        **each("lognormal", KEY, V),
        **each("multinomial", KEY, 5.0, V / V.sum()),
        **each("multivariate_normal", KEY, A[0], A),
        **each("orthogonal", KEY, 3),
        **each("randint", KEY, (3,), 0, 9),
        **each("rayleigh", KEY, V),
        **each("triangular", KEY, 0.0, 0.5, 1.0),
        **each("truncated_normal", KEY, -1.0, 1.0, (3,)),
        **each("wald", KEY, V),
        **each("weibull_min", KEY, V, W),
        **each("wrap_key_data", np.uint32([0, 7])),
    },
}


def functions():
    """'module.name' -> function, of every public one that is here."""
    found = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        rooms = [("", module)]
        if module_name == "jax.scipy.stats":
            rooms += [
                (f"{n}.", r)
                for n, r in vars(module).items()
                if isinstance(r, types.ModuleType) and not n.startswith("_")
            ]
        left_out = NO_ARRAYS.get(module_name, "").split()
        for prefix, room in rooms:
            for name in dir(room):
                value = getattr(room, name)
                if (
                    name[0] != "_"
                    and callable(value)
                    and not isinstance(value, type)
                    and name not in left_out
                ):
                    found[f"{module_name}.{prefix}{name}"] = value
    return found


def call_of(full_name, fn):
    """(function of the traced arguments alone, those arguments)."""
    module_name = next(
        m for m in sorted(MODULES, key=len, reverse=True) if full_name.startswith(f"{m}.")
    )
    args, kwargs = CALLS.get(module_name, {}).get(
        full_name.removeprefix(f"{module_name}."), ((X,), {})
    )
    leaves, tree = jax.tree.flatten((args, kwargs))
    moving = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray | jax.Array)]

    def of_arrays(*arrays):
        values = list(leaves)
        for i, array in zip(moving, arrays, strict=True):
            values[i] = array
        positional, named = jax.tree.unflatten(tree, values)
        out = fn(*positional, **named)
        return (
            out(X, *([Y] if full_name.endswith("frompyfunc") else []))
            if callable(out) and not hasattr(out, "shape")
            else out
        )

    return of_arrays, [leaves[i] for i in moving]
