"""Public functions of released libraries, in which `check` should find no fault; for
`python -m benchmarks.check_power`. A library that is not installed is left out, and said so.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 3)).astype(np.float32)
Y = RNG.normal(size=(2, 3)).astype(np.float32)
V = RNG.normal(size=(3,)).astype(np.float32)
UNIT = RNG.uniform(0.1, 0.9, size=(2, 3)).astype(np.float32)
P = RNG.uniform(0.5, 3.0, size=(2, 3)).astype(np.float32)
Q = RNG.uniform(0.5, 3.0, size=(2, 3)).astype(np.float32)
A = (RNG.normal(size=(3, 3)) + 3 * np.eye(3)).astype(np.float32)
SPD = (A @ A.T).astype(np.float32)
SIMPLEX = (UNIT / UNIT.sum(-1, keepdims=True)).astype(np.float32)
INDEX = np.array([2, 0])
HEADS = RNG.normal(size=(3, 4, 2, 3)).astype(np.float32)
KEY = jax.random.key(0)

QKV = (HEADS[0][None], HEADS[1][None], HEADS[2][None])
PLAIN: list[tuple[str, tuple[Any, ...], str]] = [
    (
        "jax.nn",
        (X,),
        "relu relu6 sigmoid softplus soft_sign sparse_plus silu mish log_sigmoid leaky_relu "
        "hard_sigmoid hard_silu hard_tanh elu celu selu gelu squareplus softmax log_softmax "
        "logsumexp standardize identity",
    ),
    ("jax.nn", QKV, "dot_product_attention"),
    ("jax.nn", (INDEX, 3), "one_hot"),
    ("jax.nn", (P,), "log1mexp"),
    ("jax.scipy.special", (X,), "erf erfc expit i0 i0e i1 i1e ndtr log_ndtr"),
    ("jax.scipy.special", (P,), "gammaln digamma entr exp1 expi"),
    ("jax.scipy.special", (UNIT,), "erfinv logit ndtri"),
    (
        "jax.scipy.special",
        (P, Q),
        "xlogy xlog1py betaln rel_entr kl_div gammainc gammaincc beta",
    ),
    ("jax.scipy.special", (P, Q, UNIT), "betainc"),
    ("jax.scipy.special", (P + 1, 2), "multigammaln"),
    ("jax.scipy.stats.norm", (X, Y, P), "logpdf cdf logcdf"),
    ("jax.scipy.stats.gamma", (P, Q), "logpdf"),
    ("jax.scipy.stats.multivariate_normal", (V, X[0], SPD), "logpdf"),
    ("jax.scipy.linalg", (A,), "expm"),
    ("jax.numpy.linalg", (A,), "norm det slogdet inv pinv qr svdvals"),
    ("jax.numpy.linalg", (SPD,), "cholesky eigvalsh"),
    ("jax.numpy.linalg", (A, V), "solve"),
    ("jax.numpy.linalg", (A, 3), "matrix_power"),
    ("jax.numpy", (X,), "max sort cumsum cumprod var median"),
    ("jax.numpy", (X, Y), "arctan2 hypot maximum"),
    (
        "optax.losses",
        (X, SIMPLEX),
        "softmax_cross_entropy poly_loss_cross_entropy convex_kl_divergence",
    ),
    ("optax.losses", (X, INDEX), "softmax_cross_entropy_with_integer_labels"),
    ("optax.losses", (X, UNIT), "sigmoid_binary_cross_entropy sigmoid_focal_loss"),
    (
        "optax.losses",
        (X, Y),
        "huber_loss l2_loss squared_error log_cosh cosine_similarity cosine_distance hinge_loss",
    ),
    ("optax.losses", (np.log(SIMPLEX), SIMPLEX), "kl_divergence"),
    ("optax.projections", (V,), "projection_simplex projection_l2_ball"),
    ("optax.projections", (X,), "projection_non_negative"),
    ("optax", (X,), "global_norm"),
    ("optax", (X, 0.1), "safe_norm"),
]


def _lineax(lineax: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    def solved(solver: Any, *tags: Any) -> Callable[..., Any]:
        def run(a: Any, b: Any) -> Any:
            # A tag says of all matrices, also of those nearby, that they are symmetric.
            a = (a + a.T) / 2 if tags else a
            return lineax.linear_solve(lineax.MatrixLinearOperator(a, tags), b, solver).value

        return run

    yield "linear_solve LU", solved(lineax.LU()), (A, V)
    yield "linear_solve QR", solved(lineax.QR()), (A, V)
    yield "linear_solve SVD", solved(lineax.SVD()), (A, V)
    yield (
        "linear_solve Cholesky",
        solved(lineax.Cholesky(), lineax.positive_semidefinite_tag),
        (SPD, V),
    )
    yield (
        "linear_solve Tridiagonal",
        lambda d, e, f, b: lineax.linear_solve(lineax.TridiagonalLinearOperator(d, e, f), b).value,
        (P[0] + 3, X[0, :2], Y[0, :2], V),
    )


def _equinox(equinox: Any) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    nn = equinox.nn
    yield "nn.Linear", nn.Linear(3, 2, key=KEY), (V,)
    yield "nn.MLP", nn.MLP(3, 2, 4, 1, activation=jax.nn.tanh, key=KEY), (V,)
    yield "nn.LayerNorm", nn.LayerNorm(3), (V,)
    yield "nn.RMSNorm", nn.RMSNorm(3), (V,)
    yield "nn.GRUCell", nn.GRUCell(3, 2, key=KEY), (V, X[0, :2])
    yield "nn.LSTMCell", nn.LSTMCell(3, 2, key=KEY), (V, (X[0, :2], Y[0, :2]))
    yield "nn.Conv1d", nn.Conv1d(2, 1, 2, key=KEY), (X,)


TRUE_FAULTS = ("jax.scipy.special.exp1", "optax.projections.projection_simplex")
"""What `check` finds in these is so: docs/check_power.md tells it."""

OTHERS = {"lineax": _lineax, "equinox": _equinox}


def functions(missing: list[str]) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Name, function and arguments; what is not there is added to `missing`."""
    for module, args, names in PLAIN:
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{module}: {error}")
            continue
        for name in names.split():
            if hasattr(found, name):
                yield f"{module}.{name}", getattr(found, name), args
            else:
                missing.append(f"{module}.{name}: not there")
    for module, listed in OTHERS.items():
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{module}: {error}")
            continue
        for name, fn, args in listed(found):
            yield f"{module}.{name}", fn, args
