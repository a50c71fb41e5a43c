"""L4: vmap is the stack of the op on each element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..extension.op import ExtensionOp
from .differentiation import smooth
from .examples import Inputs
from .subject import Claim, NotApplicable, Subject

Axes = tuple[int | None, ...]
SAMPLED = {True: 8, False: 2}
"""How many mixed places of the batch axis are drawn, for an op with and without its own batched(): without, JAX moves the axes."""


def choices(inputs: Inputs, rng: np.random.Generator, sampled: int) -> list[Axes]:
    """Every place of the batch axis in every subset of inputs; where these are many, each place alone, all in front, and a sample."""
    options: list[Axes] = [(None, *range(x.ndim + 1)) for x in inputs]
    nothing: Axes = (None,) * len(inputs)
    if math.prod(map(len, options)) <= 2 * sampled:
        found = list(itertools.product(*options))
    else:
        found = [(*nothing[:i], axis, *nothing[i + 1 :]) for i, places in enumerate(options) for axis in places]
        found.append((0,) * len(inputs))
        found += [tuple(places[rng.integers(len(places))] for places in options) for _ in range(sampled)]
    return [axes for axes in dict.fromkeys(found) if axes != nothing]


def _stacked(elements: Sequence[Inputs], axes: Axes) -> tuple[np.ndarray, ...]:
    return tuple(elements[0][i] if axis is None else np.stack([e[i] for e in elements], axis) for i, axis in enumerate(axes))


def _element(stacked: Sequence[np.ndarray], axes: Axes, k: int) -> Inputs:
    return tuple(x if axis is None else np.take(x, k, axis) for x, axis in zip(stacked, axes, strict=True))


def _fix(op: ExtensionOp) -> tuple[str, str]:
    if type(op).batched is not ExtensionOp.batched:
        return "X13.2", "Correct batched(in_axes), or leave it out: vmap then maps the lowering."
    return "X13.1", "Write the lowering in functions that vmap can map, or give a form of your own by batched()."


def vmap(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The batch at every axis of every input, mixed over the inputs; outputs stacked in front and behind."""
    _require_inputs(inputs)
    elements = subject.rows(inputs, 3)
    has_own = type(subject.op).batched is not ExtensionOp.batched
    claims = []
    for number, axes in enumerate(choices(inputs, subject.rng, SAMPLED[has_own])):
        args = _stacked(elements, axes)
        each = [subject.expected(_element(args, axes, k)) for k in range(3)]
        out = -(number % 2)
        want = tuple(np.stack(column, out) for column in zip(*each, strict=True))
        claims.append(Claim(f"vmap in_axes={axes}, out_axes={out}", jax.vmap(subject.call, in_axes=axes, out_axes=out), args, want))
    yield from subject.hold(claims, *_fix(subject.op))


def nested_vmap(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Two levels, of one input each and of all at once."""
    _require_inputs(inputs)
    elements = subject.rows(inputs, 4)
    over_all = jax.vmap(jax.vmap(subject.call), axis_name="outer")
    pairs = [[elements[2 * i + j] for j in range(2)] for i in range(2)]
    claims = [Claim("vmap of vmap", over_all, _grid(pairs), _grid([[subject.expected(e) for e in row] for row in pairs]))]
    if len(inputs) > 1:
        first, rest = (0, *[None] * (len(inputs) - 1)), (None, *[0] * (len(inputs) - 1))
        args = _stacked(elements[:2], (0,) * len(inputs))
        want = _grid([[subject.expected((outer[0], *inner[1:])) for inner in elements[:2]] for outer in elements[:2]])
        claims.append(Claim("vmap over input 0 of vmap over the others", jax.vmap(jax.vmap(subject.call, rest), first), args, want))
    yield from subject.hold(claims, *_fix(subject.op))


def _grid(cells: Sequence[Sequence[Sequence[np.ndarray]]]) -> tuple[np.ndarray, ...]:
    """Arrays by row and column, stacked over both."""
    stacked = [[np.stack(column) for column in zip(*row, strict=True)] for row in cells]
    return tuple(np.stack(column) for column in zip(*stacked, strict=True))


def vmap_of_grad(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The derivative of each element: by vmap of the derivative, and by the derivative of vmap, where unmapped inputs add up."""
    view = smooth(subject, inputs)
    elements = subject.rows(view.inputs, 2)
    w = view.cotangents(subject.rng)
    number = len(view.active)

    def pulled(*xs: Any) -> Any:
        held = list(xs)
        f = view.function(view.active, held)
        return jax.vjp(f, *[held[i] for i in view.active])[1](w)

    choices: list[Axes] = [(0,) * len(inputs)]
    if len(inputs) > 1:
        choices += [tuple(0 if i == n else None for i in range(len(inputs))) for n in range(len(inputs))]
    claims = []
    one = jax.jit(pulled)
    for axes in choices:
        args = _stacked(elements, axes)
        each = [[np.asarray(c) for c in one(*_element(args, axes, k))] for k in range(2)]
        want = [np.stack([e[n] for e in each]) for n in range(number)]

        def through(*xs: Any, axes: Axes = axes) -> Any:
            def mapped(*moving: Any) -> Any:
                full = list(xs)
                for i, x in zip(view.active, moving, strict=True):
                    full[i] = x
                outs = jax.vmap(subject.call, in_axes=axes)(*full)
                return tuple(outs[i] for i in view.outputs)

            cotangents = tuple(np.stack([c, c]) for c in w)
            return jax.vjp(mapped, *[xs[i] for i in view.active])[1](cotangents)

        summed = [total if axes[i] is not None else total.sum(0) for i, total in zip(view.active, want, strict=True)]
        claims.append(Claim(f"vmap of vjp, in_axes={axes}", jax.vmap(pulled, in_axes=axes), args, want))
        claims.append(Claim(f"vjp of vmap, in_axes={axes}", through, args, summed))
    yield from subject.hold(claims, "X13.1", "Let the rule work under vmap: it is mapped as it stands.")


def _require_inputs(inputs: Inputs) -> None:
    if not inputs:
        raise NotApplicable("the op has no inputs", "Nothing is to be done.")
