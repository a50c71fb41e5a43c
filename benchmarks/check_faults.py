"""40 faults in eight public functions, for `python -m benchmarks.check_power`.

Each function is made again with a rule of its own, and one mistake in it. The rules come from JAX's
own derivative of the function, so that nothing is wrong but the mistake.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(11)
X = RNG.normal(size=(3,))
M = RNG.normal(size=(2, 3))
N = RNG.normal(size=(2, 3))
POSITIVE = RNG.uniform(0.5, 2.0, size=(2, 3))
LABELS = np.full((2, 3), 1 / 3)
SQUARE = RNG.normal(size=(3, 3)) + 3 * np.eye(3)
COMPLEX = RNG.normal(size=(3,)) + 1j * RNG.normal(size=(3,))


def silu(x):
    """jax.nn.silu."""
    return x * jax.nn.sigmoid(x)


def logsumexp(x):
    """jax.nn.logsumexp over the last axis."""
    return jax.nn.logsumexp(x, axis=-1)


def xlogy(x, y):
    """jax.scipy.special.xlogy where both are positive."""
    return x * jnp.log(y)


def softmax_cross_entropy(logits, labels):
    """optax.losses.softmax_cross_entropy."""
    return -(labels * jax.nn.log_softmax(logits)).sum(-1)


def log_cosh(a, b):
    """optax.losses.log_cosh."""
    return jnp.logaddexp(a - b, b - a) - jnp.log(2.0).astype(a.dtype)


def solve(a, b):
    """jnp.linalg.solve."""
    return jnp.linalg.solve(a, b)


def standardize(x, scale):
    """jax.nn.standardize over the last axis, with a scale for each column."""
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def power(z):
    """jnp.abs of complex numbers, squared, and their square."""
    return (z * z.conj()).real.astype(z.real.dtype), z * z


ARGUMENTS = {
    silu: (X,),
    logsumexp: (M,),
    xlogy: (POSITIVE, POSITIVE[::-1]),
    softmax_cross_entropy: (M, LABELS),
    log_cosh: (M, N),
    solve: (SQUARE, X),
    standardize: (M, X),
    power: (COMPLEX,),
}


class Fault(NamedTuple):
    """A function of the table, with a mistake."""

    function: Callable[..., Any]
    mistake: str
    made: Callable[..., Any]


def in_bwd(f, spoiled: Callable[..., Sequence[Any]], kept=lambda *xs: xs, value=None):
    """A custom_vjp of f: spoiled(cotangents of the arguments, arguments, cotangent)."""
    made = jax.custom_vjp(value or (lambda *xs: f(*xs)))

    def fwd(*xs):
        return f(*xs), kept(*xs)

    def bwd(xs, g):
        return tuple(spoiled(jax.vjp(f, *xs)[1](g), xs, g))

    made.defvjp(fwd, bwd)
    return made


def in_cotangent(f, spoil):
    """A custom_vjp whose bwd changes the cotangent first."""
    return in_bwd(f, lambda _, xs, g: jax.vjp(f, *xs)[1](jax.tree.map(spoil, g)))


def in_jvp(f, spoiled):
    """A custom_jvp of f: spoiled(its tangent, tangents, primals)."""
    made = jax.custom_jvp(lambda *xs: f(*xs))

    @made.defjvp
    def _(primals, tangents):
        out, tangent = jax.jvp(f, primals, tangents)
        return out, spoiled(tangent, tangents, primals)

    return made


def in_vmap(f, rule):
    """A custom_vmap of f: rule(batched f, in_batched, arguments)."""
    made = jax.custom_batching.custom_vmap(lambda *xs: f(*xs))

    @made.def_vmap
    def _(size, batched, *xs):
        axes = [0 if b else None for b in batched]
        return rule(jax.vmap(f, axes), batched, xs, size)

    return made


def rounded(x, dtype=jnp.bfloat16):
    """x rounded to a narrow dtype."""
    return x.astype(dtype).astype(x.dtype)


def only_in(dtype, factor):
    """A factor that is wrong for one dtype."""
    return lambda x: x * factor if x.dtype == dtype else x


def counting(f):
    """A function that counts its calls."""
    calls = []

    def run(*xs):
        calls.append(0)
        return f(*xs) * (1 + 1e-3 * len(calls))

    return run


def remembering(f):
    """A function that keeps the first value for a shape, if it is not traced."""
    kept = {}

    def run(*xs):
        if any(isinstance(x, jax.core.Tracer) for x in xs):
            return f(*xs)
        return kept.setdefault(tuple(x.shape for x in xs), f(*xs))

    return run


def when_traced(f):
    """A function that computes something else while it is traced."""
    return lambda *xs: f(*xs) * (1.001 if isinstance(xs[0], jax.core.Tracer) else 1.0)


def random_rule(f):
    """A bwd with noise from NumPy, drawn when it is traced."""
    return in_bwd(f, lambda back, *_: [c * (1 + 1e-4 * np.random.rand()) for c in back])


def frozen(f, argument=0):
    """A bwd in which an argument counts as a constant: the second derivative is wrong."""

    def kept(*xs):
        return tuple(jax.lax.stop_gradient(x) if i == argument else x for i, x in enumerate(xs))

    return in_bwd(f, lambda back, *_: back, kept)


def of_mapped_bwd(f):
    """A bwd whose custom_vmap rule gives every element the derivative of the first."""

    @jax.custom_batching.custom_vmap
    def pulled(x, g):
        return jax.vjp(f, x)[1](g)[0]

    @pulled.def_vmap
    def _(size, batched, x, g):
        first = [v[0] if b else v for v, b in zip((x, g), batched, strict=True)]
        return jnp.broadcast_to(pulled(*first), (size, *first[0].shape)), True

    return in_bwd(f, lambda _, xs, g: (pulled(*xs, g),))


def _wrong_last(back, *_):
    return [back[0].at[..., -1].multiply(1.01), *back[1:]]


FAULTS = [
    Fault(silu, "bwd: factor 1.001", in_bwd(silu, lambda b, *_: [1.001 * b[0]])),
    Fault(
        silu, "bwd: not linear, clips the cotangent", in_cotangent(silu, lambda g: g.clip(-4, 4))
    ),
    Fault(silu, "bwd: rounds to bfloat16", in_bwd(silu, lambda b, *_: [rounded(b[0])])),
    Fault(
        silu,
        "jvp: stop_gradient around the slope",
        in_jvp(
            silu,
            lambda _, t, p: jax.lax.stop_gradient(jax.grad(lambda x: silu(x).sum())(p[0])) * t[0],
        ),
    ),
    Fault(
        silu,
        "vmap: every element gets the first value",
        in_vmap(
            silu,
            lambda run, b, xs, n: (jnp.broadcast_to(run(*xs)[:1], (n, *run(*xs).shape[1:])), True),
        ),
    ),
    Fault(silu, "wrong only in float16", lambda x: only_in(jnp.float16, 1.02)(silu(x))),
    Fault(logsumexp, "bwd: wrong at the last entry", in_bwd(logsumexp, _wrong_last)),
    Fault(logsumexp, "bwd: adds 0.001", in_bwd(logsumexp, lambda b, *_: [b[0] + 1e-3])),
    Fault(logsumexp, "jvp: factor 0.999", in_jvp(logsumexp, lambda t, *_: 0.999 * t)),
    Fault(logsumexp, "value: rounded to bfloat16", lambda x: rounded(logsumexp(x))),
    Fault(logsumexp, "bwd: custom_vmap takes the first element", of_mapped_bwd(logsumexp)),
    Fault(logsumexp, "Python state: counts its calls", counting(logsumexp)),
    Fault(xlogy, "bwd: cotangents swapped", in_bwd(xlogy, lambda b, *_: b[::-1])),
    Fault(xlogy, "bwd: zero for y", in_bwd(xlogy, lambda b, *_: (b[0], jnp.zeros_like(b[1])))),
    Fault(xlogy, "bwd: None for x", in_bwd(xlogy, lambda b, *_: (None, b[1]))),
    Fault(xlogy, "bwd: x is a constant in the second derivative", frozen(xlogy)),
    Fault(
        xlogy,
        "jvp: the tangent of y counts only with that of x",
        in_jvp(xlogy, lambda t, ts, ps: t * jnp.any(ts[0] != 0)),
    ),
    Fault(
        softmax_cross_entropy,
        "bwd: mean over the columns",
        in_bwd(softmax_cross_entropy, lambda b, *_: (b[0] / 3, b[1])),
    ),
    Fault(
        softmax_cross_entropy,
        "bwd: logits minus labels, though labels need not add up to 1",
        in_bwd(
            softmax_cross_entropy,
            lambda b, xs, g: (g[..., None] * (jax.nn.softmax(xs[0]) - 1.1 * xs[1]), b[1]),
        ),
    ),
    Fault(
        softmax_cross_entropy,
        "bwd: labels have no derivative, returns zeros",
        in_bwd(softmax_cross_entropy, lambda b, *_: (b[0], jnp.zeros_like(b[1]))),
    ),
    Fault(
        softmax_cross_entropy,
        "bwd: saves the logits in bfloat16",
        in_bwd(softmax_cross_entropy, lambda b, *_: b, lambda x, y: (rounded(x), y)),
    ),
    Fault(
        softmax_cross_entropy,
        "fwd: another value than the function",
        in_bwd(
            softmax_cross_entropy,
            lambda b, *_: b,
            value=lambda x, y: 1.0001 * softmax_cross_entropy(x, y),
        ),
    ),
    Fault(
        log_cosh, "bwd: sign of the second argument", in_bwd(log_cosh, lambda b, *_: (b[0], b[0]))
    ),
    Fault(log_cosh, "bwd: squares the cotangent", in_cotangent(log_cosh, lambda g: g * jnp.abs(g))),
    Fault(
        log_cosh,
        "jvp: adds the square of the tangent",
        in_jvp(log_cosh, lambda t, *_: t + 0.01 * t * t),
    ),
    Fault(log_cosh, "keeps the first value of a shape", remembering(log_cosh)),
    Fault(
        log_cosh,
        "vmap: ignores the axis of the second argument",
        in_vmap(
            log_cosh,
            lambda run, b, xs, n: (run(xs[0], xs[1][:1].repeat(n, 0) if b[1] else xs[1]), True),
        ),
    ),
    Fault(
        log_cosh,
        "wrong only in bfloat16 by 1.1",
        lambda a, b: only_in(jnp.bfloat16, 1.1)(log_cosh(a, b)),
    ),
    Fault(
        solve,
        "bwd: the matrix is not transposed",
        in_bwd(solve, lambda b, xs, g: (b[0], jnp.linalg.solve(xs[0], g))),
    ),
    Fault(
        solve, "bwd: zero for the matrix", in_bwd(solve, lambda b, *_: (jnp.zeros_like(b[0]), b[1]))
    ),
    Fault(solve, "bwd: the matrix is a constant in the second derivative", frozen(solve)),
    Fault(solve, "computes something else while it is traced", when_traced(solve)),
    Fault(
        standardize,
        "bwd: the scale gets the mean, not the sum, over the rows",
        in_bwd(standardize, lambda b, *_: (b[0], b[1] / 2)),
    ),
    Fault(
        standardize,
        "bwd: leaves out the derivative of the mean",
        in_bwd(standardize, lambda b, xs, g: (b[0] + 0.01 * g.sum(-1, keepdims=True), b[1])),
    ),
    Fault(
        standardize,
        "bwd: rounds to float16",
        in_bwd(standardize, lambda b, *_: [rounded(c, jnp.float16) for c in b]),
    ),
    Fault(standardize, "bwd: noise of a random number", random_rule(standardize)),
    Fault(
        standardize,
        "jvp: only in float32 wrong by 0.1 %",
        in_jvp(standardize, lambda t, *_: only_in(jnp.float32, 1.001)(t)),
    ),
    Fault(power, "bwd: drops the conjugate", in_bwd(power, lambda b, *_: [b[0].conj()])),
    Fault(
        power,
        "bwd: ignores the cotangent of the second output",
        in_bwd(power, lambda _, xs, g: jax.vjp(power, *xs)[1]((g[0], jnp.zeros_like(g[1])))),
    ),
    Fault(
        power,
        "jvp: real part only in the second output",
        in_jvp(power, lambda t, *_: (t[0], t[1].real.astype(t[1].dtype))),
    ),
]
