"""L5: the same values and derivatives inside JAX's control flow and its other transforms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..extension.primitive import save_families
from .differentiation import smooth
from .examples import Inputs, cast
from .subject import Broken, Claim, NotApplicable, Subject, breaking

IN_PROGRAMS = "Keep to traceable code in lowerings and kernels, and to NumPy in host forms."


def control_flow(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """scan, while, cond and switch."""
    elements = subject.rows(inputs, 2)
    want = subject.expected(inputs)
    stacked = tuple(np.stack(column) for column in zip(*elements, strict=True))
    both = tuple(np.stack(column) for column in zip(*(subject.expected(e) for e in elements), strict=True))
    call = subject.call

    def scanned(*xs: Any) -> Any:
        return jax.lax.scan(lambda carry, x: (carry, call(*x)), 0, xs, length=2)[1]

    def counted(n: Any, *xs: Any) -> Any:
        start = tuple(jnp.zeros(y.shape, y.dtype) for y in want)
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, call(*xs)), (jnp.int32(0), start))[1]

    def chosen(flag: Any, *xs: Any) -> Any:
        return jax.lax.cond(flag, call, lambda *xs: tuple(map(jnp.zeros_like, call(*xs))), *xs)

    def switched(n: Any, *xs: Any) -> Any:
        return jax.lax.switch(n, [lambda *xs: tuple(map(jnp.zeros_like, call(*xs))), call, call], *xs)

    claims = [
        Claim("while", counted, (np.int32(2), *inputs), want),
        Claim("cond", chosen, (np.True_, *inputs), want),
        Claim("switch", switched, (np.int32(1), *inputs), want),
    ]
    if inputs:
        claims.append(Claim("scan", scanned, stacked, both))
    yield from subject.hold(claims, "X13.3", IN_PROGRAMS)


def derivatives_inside(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The derivative through scan, cond, checkpoint and a custom_vjp, against that of a plain call."""
    view = smooth(subject, inputs)
    at, w = view.at(view.active), view.cotangents(subject.rng)
    f = view.function(view.active)
    want = jax.jit(functools.partial(_pulled, f, w))(*at)

    def scanned(*xs: Any) -> Any:
        return jax.tree.map(lambda y: y[0], jax.lax.scan(lambda c, _: (c, f(*xs)), 0, None, length=1)[1])

    def chosen(*xs: Any) -> Any:
        return jax.lax.cond(jnp.isfinite(w[0]).all(), f, lambda *xs: tuple(map(jnp.zeros_like, f(*xs))), *xs)

    policy = save_families(subject.op.family_id)
    places = {
        "scan": scanned,
        "cond": chosen,
        "checkpoint": jax.checkpoint(f),
        "checkpoint with save_families": jax.checkpoint(f, policy=policy),
        "custom_vjp": _by_hand(f),
    }
    claims = [Claim(f"derivative inside {name}", functools.partial(_pulled, g, w), at, want) for name, g in places.items()]
    yield from subject.hold(claims, "X13.3", "Let the rule be traceable: no branch on values, no state.")


def _pulled(f: Callable[..., Any], cotangents: Any, *xs: Any) -> Any:
    return jax.vjp(f, *xs)[1](cotangents)


def _by_hand(f: Callable[..., Any]) -> Callable[..., Any]:
    """f with its own derivative written as a custom_vjp around it."""

    @jax.custom_vjp
    def wrapped(*xs: Any) -> Any:
        return f(*xs)

    wrapped.defvjp(lambda *xs: jax.vjp(f, *xs), lambda pull, ct: pull(ct))
    return wrapped


def ahead_of_time(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Lowered and compiled ahead of time, with inputs donated."""
    want = subject.expected(inputs)
    free = [(y.dtype, y.shape) for y in want]
    donated = []
    for i, x in enumerate(inputs):  # JAX warns of a donated input that no output can take the place of
        if (x.dtype, x.shape) in free:
            free.remove((x.dtype, x.shape))
            donated.append(i)
    jitted = jax.jit(lambda *xs: subject.call(*xs), donate_argnums=donated)
    with breaking("X13.3", "ahead of time", IN_PROGRAMS):
        compiled = jitted.lower(*inputs).compile()
    subject.require_equal("ahead of time, inputs donated", compiled(*map(jnp.array, inputs)), want, "X13.3", IN_PROGRAMS)
    yield


def checked_tracing(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Traced under jax.checking_leaks and jax.enable_checks: no tracer is kept, no rule of JAX is broken."""
    _trace_checked(subject.call, inputs)
    yield


def checked_derivative(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The derivative traced in the same way."""
    view = smooth(subject, inputs)
    _trace_checked(functools.partial(_pulled, view.function(view.active), view.cotangents(subject.rng)), view.at(view.active))
    yield


def _trace_checked(fn: Callable[..., Any], inputs: Inputs) -> None:
    fix = "Keep no traced value beyond the call that was given it."
    with jax.checking_leaks(), jax.enable_checks(True), breaking("X4.1", "tracing", fix):
        jax.jit(lambda *xs: fn(*xs)).trace(*inputs)


def single_precision(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """float32 while 64-bit types are off: the same values as float32 while they are on."""
    single = cast(inputs, "float32")
    if any(x.dtype.itemsize >= 8 and x.dtype != np.complex64 for x in single):
        single = tuple(x.astype(np.int32) if x.dtype.kind in "iu" and x.dtype.itemsize == 8 else x for x in single)
    if not subject.accepted([single]):
        raise NotApplicable("the op takes no inputs of 32 bits", "Accept float32.")
    want = tuple(y.astype(np.int32) if y.dtype == np.int64 else y for y in subject.expected(single))
    fix = "Name the dtypes you mean."
    with jax.enable_x64(False), breaking("X7.1", "64-bit types off", fix):
        got = jax.block_until_ready(jax.jit(lambda *xs: subject.call(*xs))(*single))
    if any(g.dtype.itemsize > 4 and g.dtype.kind in "fiu" for g in map(np.asarray, got)):
        raise Broken("X7.7", "a 64-bit output while 64-bit types are off", fix)
    subject.require_equal("64-bit types off", got, want, "X7.1", fix)
    yield
