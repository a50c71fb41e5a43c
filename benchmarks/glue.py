"""Hypothesis: an op takes at most two lines more around its formulas than a jax.custom_vjp or a
jax.custom_jvp of them.

Eight ops, each written twice around the same formulas, which are functions of this module. The
functions `plain_*` and `op_*` hold everything else, and nothing else: their lines, as formatted by
ruff, are counted, without blank lines, docstring, their own def and their own return. A formula is
passed as it is where the interface allows it.

python -m benchmarks.glue
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from scipy.special import wrightomega

import tenferro_jax as tj

from .measure import header

RAYS = np.random.default_rng(0).integers(0, 2, (5, 3)).astype("float32")


def logdet_inverse(a):
    """The logarithm of the determinant's magnitude, and the inverse."""
    return jnp.linalg.slogdet(a)[1], jnp.linalg.inv(a)


def logdet_inverse_back(inverse, g_log, g_inverse):
    """Its reverse rule."""
    return inverse.T * g_log - inverse.T @ g_inverse @ inverse.T


def attention_forward(q, k, v, block):
    """Attention a block of keys at a time, and the logarithms of the sums of weights."""

    def turn(state, part):
        top, total, out = state
        scores = q @ part[0].T
        new = jnp.maximum(top, scores.max(-1))
        weights, old = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
        total, out = old * total + weights.sum(-1), old[:, None] * out + weights @ part[1]
        return (new, total, out), ()

    start = (jnp.full_like(q[:, 0], -jnp.inf), jnp.zeros_like(q[:, 0]), jnp.zeros_like(q))
    parts = k.reshape(-1, block, k.shape[-1]), v.reshape(-1, block, v.shape[-1])
    (top, total, out), _ = jax.lax.scan(turn, start, parts)
    return out / total[:, None], top + jnp.log(total)


def attention_back(q, k, v, out, logs, g, block):
    """Its reverse rule, which makes the weights again."""

    def turn(dq, part):
        weights = jnp.exp(q @ part[0].T - logs[:, None])
        ds = weights * (g @ part[1].T - (g * out).sum(-1)[:, None])
        return dq + ds @ part[0], (ds.T @ q, weights.T @ g)

    parts = k.reshape(-1, block, k.shape[-1]), v.reshape(-1, block, v.shape[-1])
    dq, (dk, dv) = jax.lax.scan(turn, jnp.zeros_like(q), parts)
    return dq, dk.reshape(k.shape), dv.reshape(v.shape)


def soft_value(x, t):
    """A softplus of temperature t."""
    return t * jnp.logaddexp(x / t, 0.0)


def normalized_forward(x, scale, eps):
    """Rows divided by their root mean square, and one over that."""
    over = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
    return scale[None] * x * over, over


def normalized_back(x, scale, over, g):
    """Its reverse rule."""
    unit, gs = x * over, g * scale[None]
    return over * (gs - unit * jnp.mean(gs * unit, -1, keepdims=True)), (g * unit).sum(0)


def gate_value(x, y):
    """A gated unit."""
    return jax.nn.silu(x) * y


def gate_kernel(x, y):
    """The same as a Pallas kernel, interpreted."""

    def kernel(x, y, out):
        out[...] = x[...] * jax.nn.sigmoid(x[...]) * y[...]

    return pl.pallas_call(kernel, out_shape=x, interpret=True)(x, y)


def gate_back(x, y, g):
    """Its reverse rule."""
    s = jax.nn.sigmoid(x)
    return g * y * s * (1 + x * (1 - s)), g * x * s


def root_value(a, b):
    """The root z of z + a tanh(z) = b by 40 steps of Newton's method."""

    def turn(_, z):
        return z - (z + a * jnp.tanh(z) - b) / (1 + a * (1 - jnp.tanh(z) ** 2))

    return jax.lax.fori_loop(0, 40, turn, b)


def root_tangent(a, z, ta, tb):
    """Its tangent, by the theorem of the implicit function."""
    return (tb - jnp.tanh(z) * ta) / (1 + a * (1 - jnp.tanh(z) ** 2))


def plain_log_determinant() -> Any:
    """Two results, and a reverse rule that keeps one of them."""
    f = jax.custom_vjp(logdet_inverse)

    def fwd(a):
        log, inverse = f(a)
        return (log, inverse), inverse

    f.defvjp(fwd, lambda inverse, g: (logdet_inverse_back(inverse, *g),))
    return f


def op_log_determinant() -> Any:
    """Two results, and a reverse rule that keeps one of them."""
    f = tj.op("benchmarks.logdet_inverse.v1")(logdet_inverse)

    def fwd(a):
        log, inverse = f(a)
        return (log, inverse), inverse

    f.defvjp(fwd, lambda inverse, g: (logdet_inverse_back(inverse, *g),))
    return f


def plain_attention() -> Any:
    """A payload, and a reverse rule with residuals of its own."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
    def f(q, k, v, block):
        return attention_forward(q, k, v, block)[0]

    def fwd(q, k, v, block):
        out, logs = attention_forward(q, k, v, block)
        return out, (q, k, v, out, logs)

    f.defvjp(fwd, lambda block, kept, g: attention_back(*kept, g, block))
    return lambda q, k, v: f(q, k, v, 2)


def op_attention() -> Any:
    """A payload, and a reverse rule with residuals of its own."""

    @tj.op("benchmarks.attention.v1")
    def f(q, k, v, *, block: int):
        return attention_forward(q, k, v, block)[0]

    def fwd(q, k, v, *, block):
        out, logs = attention_forward(q, k, v, block)
        return out, (q, k, v, out, logs)

    f.defvjp(fwd, lambda kept, g, *, block: attention_back(*kept, g, block))
    return lambda q, k, v: f(q, k, v, block=2)


def plain_soft() -> Any:
    """A payload, and a rule of tangents."""
    f = jax.custom_jvp(soft_value, nondiff_argnums=(1,))

    @f.defjvp
    def _(t, primals, tangents):
        return f(*primals, t), jax.nn.sigmoid(primals[0] / t) * tangents[0]

    return lambda x: f(x, 0.5)


def op_soft() -> Any:
    """A payload, and a rule of tangents."""

    @tj.op("benchmarks.soft.v1")
    def f(x, *, t: float):
        return soft_value(x, t)

    @f.defjvp
    def _(primals, out, tangents, *, t):
        return jax.nn.sigmoid(primals[0] / t) * tangents[0]

    return lambda x: f(x, t=0.5)


def plain_normalized() -> Any:
    """Two arguments, a payload, and a reverse rule."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
    def f(x, scale, eps):
        return normalized_forward(x, scale, eps)[0]

    def fwd(x, scale, eps):
        out, over = normalized_forward(x, scale, eps)
        return out, (x, scale, over)

    f.defvjp(fwd, lambda eps, kept, g: normalized_back(*kept, g))
    return lambda x, scale: f(x, scale, 1e-6)


def op_normalized() -> Any:
    """Two arguments, a payload, and a reverse rule."""

    @tj.op("benchmarks.normalized.v1")
    def f(x, scale, *, eps: float):
        return normalized_forward(x, scale, eps)[0]

    def fwd(x, scale, *, eps):
        out, over = normalized_forward(x, scale, eps)
        return out, (x, scale, over)

    f.defvjp(fwd, lambda kept, g, *, eps: normalized_back(*kept, g))
    return lambda x, scale: f(x, scale, eps=1e-6)


def plain_gate() -> Any:
    """A kernel for one platform, plain JAX elsewhere, and a reverse rule."""

    @jax.custom_vjp
    def f(x, y):
        return jax.lax.platform_dependent(x, y, cpu=gate_kernel, default=gate_value)

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda kept, g: gate_back(*kept, g))
    return f


def op_gate() -> Any:
    """A kernel for one platform, plain JAX elsewhere, and a reverse rule."""
    f = tj.op("benchmarks.gate.v1")(gate_value)
    f.def_kernel("cpu")(gate_kernel)
    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda kept, g: gate_back(*kept, g))
    return f


def plain_omega() -> Any:
    """A SciPy routine, and a rule of tangents."""
    f = jax.custom_jvp(lambda x: jax.pure_callback(wrightomega, x, x, vmap_method="sequential"))

    @f.defjvp
    def _(primals, tangents):
        w = f(*primals)
        return w, w / (1 + w) * tangents[0]

    return f


def op_omega() -> Any:
    """A SciPy routine, and a rule of tangents."""
    f = tj.op("benchmarks.omega.v1")(lambda x: None)
    f.def_infer(lambda x: x)
    f.def_host(wrightomega)
    f.defjvp(lambda primals, w, tangents: w / (1 + w) * tangents[0])
    return f


def plain_root() -> Any:
    """A solver, differentiated by the theorem of the implicit function."""
    f = jax.custom_jvp(root_value)

    @f.defjvp
    def _(primals, tangents):
        z = f(*primals)
        return z, root_tangent(primals[0], z, *tangents)

    return f


def op_root() -> Any:
    """A solver, differentiated by the theorem of the implicit function."""
    f = tj.op("benchmarks.root.v1")(root_value)

    @f.defjvp
    def _(primals, z, tangents):
        return root_tangent(primals[0], z, *tangents)

    return f


def plain_projection() -> Any:
    """A linear map and its transpose, both of NumPy."""

    def routine(matrix):
        host = functools.partial(np.matmul, matrix)
        like = jax.ShapeDtypeStruct(matrix.shape[:1], matrix.dtype)
        return jax.custom_vjp(lambda x: jax.pure_callback(host, like, x, vmap_method="sequential"))

    f, adjoint = routine(RAYS), routine(RAYS.T)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (adjoint(g),))
    adjoint.defvjp(lambda y: (adjoint(y), None), lambda _, g: (f(g),))
    return f


def op_projection() -> Any:
    """A linear map and its transpose, both of NumPy."""

    def routine(name, matrix):
        f = tj.op(f"benchmarks.{name}.v1")(lambda x: None)
        f.def_infer(lambda x: jax.ShapeDtypeStruct(matrix.shape[:1], x.dtype))
        f.def_host(functools.partial(np.matmul, matrix))
        return f

    f, adjoint = routine("rays", RAYS), routine("adjoint", RAYS.T)
    f.def_transpose(lambda g, _: (adjoint(g),))
    adjoint.def_transpose(lambda g, _: (f(g),))
    return f


CASES: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "log-determinant and inverse": (plain_log_determinant, op_log_determinant, ((3, 3),)),
    "attention, blockwise": (plain_attention, op_attention, ((4, 2), (6, 2), (6, 2))),
    "softplus with a temperature": (plain_soft, op_soft, ((4,),)),
    "root mean square norm": (plain_normalized, op_normalized, ((2, 3), (3,))),
    "gate, Pallas kernel": (plain_gate, op_gate, ((4,), (4,))),
    "Wright omega by SciPy": (plain_omega, op_omega, ((4,),)),
    "implicit root": (plain_root, op_root, ((4,), (4,))),
    "projection and its adjoint": (plain_projection, op_projection, ((3,),)),
}
"""For each op plain JAX, this library, and the shapes of its arguments."""
MODES = ("value", "jvp", "grad", "hessian", "vmap of grad")
made = functools.cache(lambda build: build())  # an id is taken once


def lines(build: Callable[[], Any]) -> int:
    """How many lines of a function are glue."""
    body = [line.strip() for line in inspect.getsource(build).splitlines()[2:]]
    return sum(bool(line) and not line.startswith("#") for line in body) - 1


def results(f: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """What each use of a function gives; an error where it is refused."""

    def loss(*xs):
        return sum((jnp.cos(y) * y).sum() for y in jax.tree.leaves(f(*xs)))

    slots = tuple(range(len(args)))
    grad = jax.grad(loss, slots)
    uses = (
        lambda: f(*args),
        lambda: jax.jvp(f, args, args)[1],
        lambda: grad(*args),
        lambda: jax.hessian(loss, slots)(*args),
        lambda: jax.vmap(grad)(*(jnp.stack([x, x + 0.1]) for x in args)),
    )
    found: dict[str, Any] = {}
    for mode, use in zip(MODES, uses, strict=True):
        try:
            found[mode] = jax.jit(use)()
        except (TypeError, ValueError, tj.TenferroError) as error:
            found[mode] = error
    return found


def compare(plain: Any, op: Any) -> str:
    """Whether two results are equal but for rounding, or that plain JAX refuses."""
    if isinstance(op, Exception):
        return "op refuses"
    if isinstance(plain, Exception):
        return "plain refuses"
    pairs = zip(jax.tree.leaves(plain), jax.tree.leaves(op), strict=True)
    close = all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)
    return "equal" if close else "different"


def main() -> dict[str, tuple[int, int, dict[str, str]]]:
    """Print the table; returns for each op the lines of both ways, and how their results compare:
    equal, different, or who refuses.
    """
    print(header(__doc__))
    modes = " ".join(f"{mode:15}" for mode in MODES)
    print(f"{'lines of glue':28} | plain   op | {modes}".rstrip())
    table = {}
    for name, (plain, op, shapes) in CASES.items():
        rng = np.random.default_rng(1)
        args = tuple(jnp.asarray(rng.uniform(0.5, 2.0, shape), "float32") for shape in shapes)
        before, now = (results(made(build), args) for build in (plain, op))
        compared = {mode: compare(before[mode], now[mode]) for mode in MODES}
        table[name] = lines(plain), lines(op), compared
        said = " ".join(f"{word:15}" for word in compared.values())
        print(f"{name:28} | {table[name][0]:5} {table[name][1]:4} | {said}".rstrip())
    return table


if __name__ == "__main__":
    main()
