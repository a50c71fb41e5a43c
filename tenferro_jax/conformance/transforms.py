"""L4: vmap equals the stack of the op on each element. L5: the same values and derivatives inside
JAX's other transforms.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..extension.contract import ExtensionOp
from ..extension.primitive import save_families
from ..shapes import PyTree
from .examples import Array, Inputs, cast, replaced
from .smooth import smooth
from .subject import Broken, Claim, NotApplicable, Subject, breaking

IN_PROGRAMS = "Keep to traceable code in lowerings and kernels, and to NumPy in host forms."


def control_flow(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Runs inside scan, while, cond and switch."""
    elements = subject.rows(inputs, 2)
    want = subject.expected(inputs)
    stacked = tuple(np.stack(column) for column in zip(*elements, strict=True))
    both = tuple(
        np.stack(column) for column in zip(*(subject.expected(e) for e in elements), strict=True)
    )
    call = subject.call

    def scanned(*xs: Array) -> PyTree:
        return jax.lax.scan(lambda carry, x: (carry, call(*x)), 0, xs, length=2)[1]

    def counted(n: Array, *xs: Array) -> PyTree:
        start = tuple(jnp.zeros(y.shape, y.dtype) for y in want)
        return jax.lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, call(*xs)), (jnp.int32(0), start)
        )[1]

    def chosen(flag: Array, *xs: Array) -> PyTree:
        return jax.lax.cond(flag, call, lambda *xs: tuple(map(jnp.zeros_like, call(*xs))), *xs)

    def switched(n: Array, *xs: Array) -> PyTree:
        return jax.lax.switch(
            n, [lambda *xs: tuple(map(jnp.zeros_like, call(*xs))), call, call], *xs
        )

    claims = [
        Claim("while", counted, (np.int32(2), *inputs), want),
        Claim("cond", chosen, (np.True_, *inputs), want),
        Claim("switch", switched, (np.int32(1), *inputs), want),
    ]
    if inputs:
        claims.append(Claim("scan", scanned, stacked, both))
    yield from subject.hold(claims, "X13.3", IN_PROGRAMS)


def derivatives_inside(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Compares the derivative through scan, cond, checkpoint and a custom_vjp with that of a plain
    call.
    """
    view = smooth(subject, inputs)
    at, w = view.at(view.active), view.cotangents(subject.rng)
    f = view.function(view.active)
    want = jax.jit(functools.partial(_pulled, f, w))(*at)

    def scanned(*xs: Array) -> Sequence[jax.Array]:
        return jax.tree.map(
            lambda y: y[0], jax.lax.scan(lambda c, _: (c, f(*xs)), 0, None, length=1)[1]
        )

    def chosen(*xs: Array) -> Sequence[jax.Array]:
        return jax.lax.cond(
            jnp.isfinite(w[0]).all(), f, lambda *xs: tuple(map(jnp.zeros_like, f(*xs))), *xs
        )

    policy = save_families(subject.op.family_id)
    places = {
        "scan": scanned,
        "cond": chosen,
        "checkpoint": jax.checkpoint(f),
        "checkpoint with save_families": jax.checkpoint(f, policy=policy),
        "custom_vjp": _by_hand(f),
    }
    claims = [
        Claim(f"derivative inside {name}", functools.partial(_pulled, g, w), at, want)
        for name, g in places.items()
    ]
    yield from subject.hold(
        claims, "X13.3", "Let the rule be traceable: no branch on values, no state."
    )


def _pulled(
    f: Callable[..., Sequence[jax.Array]],
    cotangents: Sequence[Array],
    *xs: Array,
) -> Sequence[jax.Array]:
    return jax.vjp(f, *xs)[1](cotangents)


def _by_hand(f: Callable[..., Sequence[jax.Array]]) -> Callable[..., Sequence[jax.Array]]:
    """f inside a custom_vjp with f's own derivative."""

    @jax.custom_vjp
    def wrapped(*xs: Array) -> Sequence[jax.Array]:
        return f(*xs)

    wrapped.defvjp(lambda *xs: jax.vjp(f, *xs), lambda pull, ct: pull(ct))
    return wrapped


def ahead_of_time(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Lowers and compiles ahead of time, with donated inputs."""
    want = subject.expected(inputs)
    free = [(y.dtype, y.shape) for y in want]
    donated = []
    for i, x in enumerate(inputs):  # JAX warns of a donated input whose memory no output can reuse
        if (x.dtype, x.shape) in free:
            free.remove((x.dtype, x.shape))
            donated.append(i)
    jitted = jax.jit(lambda *xs: subject.call(*xs), donate_argnums=donated)
    with breaking("X13.3", "ahead of time", IN_PROGRAMS):
        compiled = jitted.lower(*inputs).compile()
    subject.require_equal(
        "ahead of time, inputs donated",
        compiled(*map(jnp.array, inputs)),
        want,
        "X13.3",
        IN_PROGRAMS,
    )
    yield


def checked_tracing(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Traces under jax.checking_leaks and jax.enable_checks: no tracer leaks, and no check of JAX
    fails.
    """
    _trace_checked(subject.call, inputs)
    yield


def checked_derivative(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Traces the derivative in the same way."""
    view = smooth(subject, inputs)
    _trace_checked(
        functools.partial(_pulled, view.function(view.active), view.cotangents(subject.rng)),
        view.at(view.active),
    )
    yield


def _trace_checked(fn: Callable[..., PyTree], inputs: Inputs) -> None:
    fix = "Do not keep a traced value after the call that received it."
    with jax.checking_leaks(), jax.enable_checks(True), breaking("X4.1", "tracing", fix):
        jax.jit(lambda *xs: fn(*xs)).trace(*inputs)


def single_precision(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Runs in float32 while 64-bit types are off: the values are those of float32 while they are
    on.
    """
    single = cast(inputs, "float32")
    if any(x.dtype.itemsize >= 8 and x.dtype != np.complex64 for x in single):
        single = tuple(
            x.astype(np.int32) if x.dtype.kind in "iu" and x.dtype.itemsize == 8 else x
            for x in single
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


Axes = tuple[int | None, ...]
SAMPLED = {True: 8, False: 2}
"""How many mixed positions of the batch axis are drawn, for an op with its own batched() and
without, where JAX moves the axes.
"""


def choices(inputs: Inputs, rng: np.random.Generator, sampled: int) -> list[Axes]:
    """Every position of the batch axis in every subset of inputs; if these are many, each position
    alone, all in front, and a sample.
    """
    options: list[Axes] = [(None, *range(x.ndim + 1)) for x in inputs]
    nothing: Axes = (None,) * len(inputs)
    if math.prod(map(len, options)) <= 2 * sampled:
        found = list(itertools.product(*options))
    else:
        found = [
            (*nothing[:i], axis, *nothing[i + 1 :])
            for i, places in enumerate(options)
            for axis in places
        ]
        found.append((0,) * len(inputs))
        found += [
            tuple(places[rng.integers(len(places))] for places in options) for _ in range(sampled)
        ]
    return [axes for axes in dict.fromkeys(found) if axes != nothing]


def _stacked(elements: Sequence[Inputs], axes: Axes) -> tuple[np.ndarray, ...]:
    return tuple(
        elements[0][i] if axis is None else np.stack([e[i] for e in elements], axis)
        for i, axis in enumerate(axes)
    )


def _element(stacked: Sequence[np.ndarray], axes: Axes, k: int) -> Inputs:
    return tuple(
        x if axis is None else np.take(x, k, axis) for x, axis in zip(stacked, axes, strict=True)
    )


def _fix(op: ExtensionOp) -> tuple[str, str]:
    if type(op).batched is not ExtensionOp.batched:
        return "X13.2", "Correct batched(in_axes), or leave it out: vmap then maps the lowering."
    return (
        "X13.1",
        "Write the lowering in functions that vmap can map, or give a form of your own by "
        "batched().",
    )


def vmap(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Maps every axis of every input, also mixed over the inputs; outputs are stacked as first and
    as last axis.
    """
    _require_inputs(inputs)
    elements = subject.rows(inputs, 3)
    has_own = type(subject.op).batched is not ExtensionOp.batched
    claims = []
    for number, axes in enumerate(choices(inputs, subject.rng, SAMPLED[has_own])):
        args = _stacked(elements, axes)
        each = [subject.expected(_element(args, axes, k)) for k in range(3)]
        out = -(number % 2)
        want = tuple(np.stack(column, out) for column in zip(*each, strict=True))
        claims.append(
            Claim(
                f"vmap in_axes={axes}, out_axes={out}",
                jax.vmap(subject.call, in_axes=axes, out_axes=out),
                args,
                want,
            )
        )
    yield from subject.hold(claims, *_fix(subject.op))


def nested_vmap(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Maps twice, over one input each and over all at once."""
    _require_inputs(inputs)
    elements = subject.rows(inputs, 4)
    over_all = jax.vmap(jax.vmap(subject.call), axis_name="outer")
    pairs = [[elements[2 * i + j] for j in range(2)] for i in range(2)]
    claims = [
        Claim(
            "vmap of vmap",
            over_all,
            _grid(pairs),
            _grid([[subject.expected(e) for e in row] for row in pairs]),
        )
    ]
    if len(inputs) > 1:
        first, rest = (0, *[None] * (len(inputs) - 1)), (None, *[0] * (len(inputs) - 1))
        args = _stacked(elements[:2], (0,) * len(inputs))
        want = _grid(
            [
                [subject.expected((outer[0], *inner[1:])) for inner in elements[:2]]
                for outer in elements[:2]
            ]
        )
        claims.append(
            Claim(
                "vmap over input 0 of vmap over the others",
                jax.vmap(jax.vmap(subject.call, rest), first),
                args,
                want,
            )
        )
    yield from subject.hold(claims, *_fix(subject.op))


def _grid(cells: Sequence[Sequence[Sequence[np.ndarray]]]) -> tuple[np.ndarray, ...]:
    """Arrays by row and column, stacked over both."""
    stacked = [[np.stack(column) for column in zip(*row, strict=True)] for row in cells]
    return tuple(np.stack(column) for column in zip(*stacked, strict=True))


def vmap_of_grad(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Compares the derivative of each element with vmap of the derivative and the derivative of
    vmap, which sums over unmapped inputs.
    """
    view = smooth(subject, inputs)
    elements = subject.rows(view.inputs, 2)
    w = view.cotangents(subject.rng)
    number = len(view.active)

    def pulled(*xs: jax.Array) -> PyTree:
        return jax.vjp(view.function(view.active, xs), *[xs[i] for i in view.active])[1](w)

    choices: list[Axes] = [(0,) * len(inputs)]
    if len(inputs) > 1:
        choices += [
            tuple(0 if i == n else None for i in range(len(inputs))) for n in range(len(inputs))
        ]
    claims = []
    one = jax.jit(pulled)
    for axes in choices:
        args = _stacked(elements, axes)
        each = [[np.asarray(c) for c in one(*_element(args, axes, k))] for k in range(2)]
        want = [np.stack([e[n] for e in each]) for n in range(number)]

        def through(*xs: jax.Array, axes: Axes = axes) -> PyTree:
            def mapped(*moving: jax.Array) -> PyTree:
                outs = jax.vmap(subject.call, in_axes=axes)(*replaced(xs, view.active, moving))
                return tuple(outs[i] for i in view.outputs)

            cotangents = tuple(np.stack([c, c]) for c in w)
            return jax.vjp(mapped, *[xs[i] for i in view.active])[1](cotangents)

        summed = [
            total if axes[i] is not None else total.sum(0)
            for i, total in zip(view.active, want, strict=True)
        ]
        claims.append(
            Claim(f"vmap of vjp, in_axes={axes}", jax.vmap(pulled, in_axes=axes), args, want)
        )
        claims.append(Claim(f"vjp of vmap, in_axes={axes}", through, args, summed))
    yield from subject.hold(
        claims, "X13.1", "Let the rule work under vmap: it is mapped as it stands."
    )


def _require_inputs(inputs: Inputs) -> None:
    if not inputs:
        raise NotApplicable("the op has no inputs", "Nothing is to be done.")
