"""L5: the same values and derivatives inside JAX's transforms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..extension.primitive import save_families
from ..shapes import PyTree
from .batches import columns
from .examples import Array, Inputs, cast
from .smooth import smooth
from .subject import Broken, Claim, NotApplicable, Subject, breaking

Outputs = tuple[jax.Array, ...]
Call = Callable[..., Outputs]

IN_PROGRAMS = "Keep to traceable code in lowerings and kernels, and to NumPy in host forms."


def _chosen(call: Call, flag: Array, *xs: Array) -> Outputs:
    """The call behind a branch that gives zeros."""
    return jax.lax.cond(flag, call, functools.partial(_zeros, call), *xs)


def _zeros(call: Call, *xs: Array) -> Outputs:
    return tuple(map(jnp.zeros_like, call(*xs)))


def control_flow(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Runs inside scan, while, cond and switch."""
    elements = subject.rows(inputs, 2)
    want = subject.expected(inputs)
    call = subject.call

    def scanned(*xs: Array) -> PyTree:
        return jax.lax.scan(lambda carry, x: (carry, call(*x)), 0, xs, length=2)[1]

    def counted(n: Array, *xs: Array) -> PyTree:
        start = tuple(jnp.zeros(y.shape, y.dtype) for y in want)
        return jax.lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, call(*xs)), (jnp.int32(0), start)
        )[1]

    def switched(n: Array, *xs: Array) -> PyTree:
        return jax.lax.switch(n, [functools.partial(_zeros, call), call, call], *xs)

    chosen = functools.partial(_chosen, call)
    claims = [
        Claim("while", counted, (np.int32(2), *inputs), want),
        Claim("cond", chosen, (np.True_, *inputs), want),
        Claim("switch", switched, (np.int32(1), *inputs), want),
    ]
    if inputs:
        both = columns(map(subject.expected, elements))
        claims.append(Claim("scan", scanned, columns(elements), both))
    yield from subject.hold(claims, "X13.3", IN_PROGRAMS)


def derivatives_inside(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Compares the derivative through scan, cond, checkpoint and a custom_vjp with that of a plain
    call.
    """
    view = smooth(subject, inputs)
    at, w, f = view.at(view.active), view.cotangents(subject.rng), view.function(view.active)

    def scanned(*xs: Array) -> Outputs:
        outs = jax.lax.scan(lambda c, _: (c, f(*xs)), 0, None, length=1)[1]
        return tuple(y[0] for y in outs)

    by_hand = jax.custom_vjp(lambda *xs: f(*xs))
    by_hand.defvjp(lambda *xs: jax.vjp(f, *xs), lambda pull, cotangents: pull(cotangents))
    policy = save_families(subject.op.family_id)
    places: dict[str, Call] = {
        "scan": scanned,
        "cond": functools.partial(_chosen, f, jnp.isfinite(w[0]).all()),
        "checkpoint": jax.checkpoint(f),
        "checkpoint with save_families": jax.checkpoint(f, policy=policy),
        "custom_vjp": by_hand,
    }
    want = jax.jit(functools.partial(_pulled, f, w))(*at)
    claims = [
        Claim(f"derivative inside {name}", functools.partial(_pulled, g, w), at, want)
        for name, g in places.items()
    ]
    yield from subject.hold(
        claims, "X13.3", "Let the rule be traceable: no branch on values, no state."
    )


def _pulled(f: Call, cotangents: Sequence[Array], *xs: Array) -> Sequence[jax.Array]:
    return jax.vjp(f, *xs)[1](cotangents)


def checked_tracing(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Traces under jax.checking_leaks and jax.enable_checks: no tracer leaks, and no check of JAX
    fails.
    """
    _trace_checked(subject.call, inputs)
    yield


def checked_derivative(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Traces the derivative in the same way."""
    view = smooth(subject, inputs)
    pulled = functools.partial(_pulled, view.function(view.active), view.cotangents(subject.rng))
    _trace_checked(pulled, view.at(view.active))
    yield


def _trace_checked(fn: Callable[..., PyTree], inputs: Inputs) -> None:
    fix = "Do not keep a traced value after the call that received it."
    with jax.checking_leaks(), jax.enable_checks(True), breaking("X4.1", "tracing", fix):
        jax.jit(lambda *xs: fn(*xs)).trace(*inputs)


def single_precision(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Runs in float32 while 64-bit types are off: the values are those of float32 while they are
    on.
    """
    single = tuple(
        x.astype(f"{x.dtype.kind}4") if x.dtype.kind in "iu" and x.dtype.itemsize == 8 else x
        for x in cast(inputs, "float32")
    )
    if not subject.accepted([single]):
        raise NotApplicable("the op takes no inputs of 32 bits", "Accept float32.")
    want = tuple(y.astype(np.int32) if y.dtype == np.int64 else y for y in subject.expected(single))
    fix = "Give dtypes explicitly."
    with jax.enable_x64(False), breaking("X7.1", "64-bit types off", fix):
        got = jax.block_until_ready(jax.jit(lambda *xs: subject.call(*xs))(*single))
    if any(g.dtype.itemsize > 4 and g.dtype.kind in "fiu" for g in map(np.asarray, got)):
        raise Broken("X7.7", "a 64-bit output while 64-bit types are off", fix)
    subject.require_equal("64-bit types off", got, want, "X7.1", fix)
    yield
