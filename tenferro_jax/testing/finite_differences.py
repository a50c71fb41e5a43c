"""What is checked as a function of its differentiable inputs, and finite differences of it.

Central differences at h, h/2, h/4 are extrapolated to an error of order h^6, one-sided ones to h^3.
If the one-sided derivatives of both sides differ at every h, there is a kink (or noise) and no
derivative. Otherwise the error is estimated from the differences of the three estimates and the
last step of the extrapolation, and from the rounding of the values; the h with the smallest error
counts. For functions that are smooth on the scale of 1 the error is 1e-9 or better.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..both_modes import replaced
from ..errors import BackendFailure
from ..extension.execution import host_errors
from ..jax_seam import failed_inside
from ..shapes import ArrayFunction, PyTree, is_inexact, meta_of
from .examples import (
    FLOATS,
    Array,
    Arrays,
    Inputs,
    cast,
    differ,
    largest,
    listed,
    resized,
    sizes_of,
)
from .functions import MOST_ALONE, Subject
from .report import NotApplicable, NotedCases, failure

STEPS = (2.0**-5, 2.0**-8, 2.0**-11, 2.0**-14)
SMOOTH = 1e-5
"""Relative difference of the two one-sided derivatives below which an entry counts as smooth."""

ENOUGH = 1e-8
"""Relative error at which no smaller step is tried."""


class Derivative(NamedTuple):
    """The derivative of one output along a direction.

    Attributes:
      value: the estimate, entry by entry; 0 where there is none.
      error: its estimated error, likewise.
      smooth: where it exists.
    """

    value: np.ndarray
    error: np.ndarray
    smooth: np.ndarray


def directional(
    fn: Callable[..., Arrays],
    at: Sequence[np.ndarray],
    direction: Sequence[np.ndarray],
    grain: float = 0.0,
    terms: float = 0.0,
) -> list[Derivative]:
    """The derivatives of all outputs of `fn`, floating or complex arrays, along a direction.
    `grain` is the eps of the coarsest arithmetic in it, if that is not the one of the outputs;
    `terms` is the size of the terms of the outputs, if entries may be zero up to their rounding.

    Example:
      >>> (found,) = directional(lambda x: [abs(x) ** 3 + abs(x[::-1])], [np.array([0.5, 0.0])],
      ...     [np.array([1.0, 1.0])])
      >>> found.value.round(6).tolist(), found.smooth.tolist()
      ([0.0, 1.0], [False, True])
    """

    def values(t: float) -> list[np.ndarray]:
        moved = [x + t * v for x, v in zip(at, direction, strict=True)]
        return list(map(np.asarray, fn(*moved)))

    centre = values(0.0)
    found = [
        Derivative(np.zeros_like(y), np.zeros(y.shape), np.zeros(y.shape, bool)) for y in centre
    ]
    for h in STEPS:
        ends = {t: values(t) for s in (h, h / 2, h / 4) for t in (s, -s)}
        for i, y in enumerate(centre):
            of_output = {t: outputs[i] for t, outputs in ends.items()}
            found[i] = _merged(found[i], _at_step(of_output, y, h, grain, terms))
        if all((d.smooth & (d.error <= ENOUGH * abs(d.value))).all() for d in found):
            break
    return [
        Derivative(np.where(d.smooth, d.value, 0), np.where(d.smooth, d.error, 0), d.smooth)
        for d in found
    ]


def _at_step(
    ends: dict[float, np.ndarray], centre: np.ndarray, h: float, grain: float, size: float
) -> Derivative:
    """The derivative of one output from its values at h, h/2, h/4 to both sides, and between."""
    with np.errstate(all="ignore"):
        slopes = [(ends[s] - ends[-s]) / (2 * s) for s in (h, h / 2, h / 4)]
        central, before = _extrapolated(slopes, (4, 16)), _extrapolated(slopes[1:], (4,))
        ahead = _extrapolated([(ends[s] - centre) / s for s in (h, h / 2, h / 4)], (2, 4))
        behind = _extrapolated([(centre - ends[-s]) / s for s in (h, h / 2, h / 4)], (2, 4))
        eps = max(grain, float(jnp.finfo(centre.dtype).eps))
        noise = 64 * eps * np.maximum(np.maximum(abs(ends[h]), abs(ends[-h])), size) / h
        gap = abs(ahead - behind)
        smooth = gap <= SMOOTH * abs(central) + 4 * noise
        error = np.maximum.reduce(
            [noise, abs(central - before), abs(central - ahead), abs(central - behind)]
        )
    smooth &= np.isfinite(central) & np.isfinite(gap)
    return Derivative(central, error, smooth)


def _extrapolated(estimates: Sequence[np.ndarray], factors: Sequence[int]) -> np.ndarray:
    """Richardson: the error of the k-th column falls by factors[k] whenever the step is halved."""
    row = list(estimates)
    for factor in factors:
        row = [(factor * fine - coarse) / (factor - 1) for coarse, fine in itertools.pairwise(row)]
    return row[0]


def _merged(old: Derivative, new: Derivative) -> Derivative:
    """For each entry the step with the smaller error, among the steps at which it is smooth."""
    keep = old.smooth & ~(new.smooth & (new.error < old.error))
    value, error = (
        np.where(keep, a, b) for a, b in ((old.value, new.value), (old.error, new.error))
    )
    return Derivative(value, error, old.smooth | new.smooth)


WITHIN = 1e-6
"""The relative error that a derivative may have, in addition to 8 times the error of the finite
difference.
"""

# How many eps of its terms a derivative that is zero up to rounding may be; and the least size of
# an input by which values are divided for the size of these terms.
ROUNDINGS, SHORTEST = 16, 2.0**-6

Mask = tuple[int, ...]
"""Numbers of the inputs that are differentiated."""

DECLARED = "X10.5"
"""The clause of an ADRuleError where a rule said NOT_DIFFERENTIABLE."""


class Smooth(NamedTuple):
    """The op as a function of some inputs, with only its floating outputs.

    Attributes:
      inputs: all inputs.
      active: which of them have derivatives.
      outputs: which outputs have derivatives.
    """

    subject: Subject
    inputs: Inputs
    active: Mask
    outputs: tuple[int, ...]

    def function(
        self,
        mask: Mask,
        others: Arrays | None = None,
        call: Callable[..., Sequence[Any]] | None = None,
    ) -> Callable[..., tuple[Any, ...]]:
        """A function of the inputs in `mask`, with the others fixed (to those in `others`): of
        the op, or what `call` gives in its place.
        """
        full = self.inputs if others is None else others

        def run(*moving: Array) -> tuple[Any, ...]:
            outs = (call or self.subject.call)(*replaced(full, mask, moving))
            return tuple(outs[i] for i in self.outputs)

        return run

    def at(self, mask: Mask) -> tuple[np.ndarray, ...]:
        """The inputs in `mask`."""
        return tuple(self.inputs[i] for i in mask)

    def moved(self, mask: Mask, values: Arrays) -> Smooth:
        """The same with other values of the inputs in `mask`."""
        return self._replace(inputs=tuple(replaced(self.inputs, mask, values)))

    def differences(self, mask: Mask, v: Sequence[np.ndarray]) -> list[Derivative]:
        """Finite differences of the values by the inputs in `mask`, v being along all active."""
        at, along = self.at(mask), self.those(mask, v)
        return directional(values_of(self, mask), at, along, self.subject.grain)

    def masks(self) -> Iterator[Mask]:
        """All active inputs together, and each alone; of many some alone."""
        yield self.active
        if len(self.active) > 1:
            yield from ((i,) for i in self.active[:: -(-len(self.active) // MOST_ALONE)])

    def program(self, *, reverse: bool, whole: bool = False) -> tuple[list[Any], Any]:
        """Every mask and, in reverse, every part of the outputs, or all of them together; and a
        compiled function of all inputs and directions, which all checks share, that gives the
        outputs and the derivatives of each.
        """
        parts = self.parts() if reverse else [self]
        cases = [(mask, part) for mask in self.masks() for part in parts][: 1 if whole else None]

        def run(inputs: Sequence[jax.Array], directions: Sequence[jax.Array]) -> list[Any]:
            found: list[Any] = []
            for mask, part in cases:
                f, at = part.function(mask, inputs), tuple(inputs[i] for i in mask)
                given = tuple(self.those(part if reverse else mask, directions))
                if reverse:
                    outs, pull = jax.vjp(f, *at)
                    found.append((outs, pull(given)))
                else:
                    found.append(jax.jvp(f, at, given))
            return found

        key = self.active, self.outputs, reverse, whole
        return cases, self.subject.programs.setdefault(key, jax.jit(run))

    def those(self, of: Mask | Smooth, arrays: Sequence[Any]) -> list[Any]:
        """Of arrays for all active inputs those of a mask, or of arrays for all outputs those of a
        part.
        """
        full, few = (self.outputs, of.outputs) if isinstance(of, Smooth) else (self.active, of)
        return [arrays[full.index(i)] for i in few]

    def derivatives(
        self, directions: Arrays, *, reverse: bool = False, whole: bool = False
    ) -> list[Any]:
        """For each case of the program (mask, part, outputs, tangents or cotangents)."""
        cases, program = self.program(reverse=reverse, whole=whole)
        found = jax.block_until_ready(program(self.inputs, tuple(directions)))
        return [(*case, *each) for case, each in zip(cases, found, strict=True)]

    def parts(self) -> list[Smooth]:
        """All outputs together, then each alone."""
        if len(self.outputs) < 2:
            return [self]
        return [self, *(self._replace(outputs=(i,)) for i in self.outputs)]

    @property
    def output_names(self) -> str:
        """The outputs in words."""
        return "output " + ", ".join(map(str, self.outputs))

    def terms(self, directions: Arrays) -> float:
        """The size of the terms of derivatives along these tangents or cotangents: of the values,
        for relative changes of the inputs.
        """
        top = max(largest(self.subject.expected(self.inputs)[i]) for i in self.outputs)
        near = max(map(largest, self.at(self.active)))
        if top <= 64 * self.eps() * near:  # nothing but rounding, as x - x: its terms are not known
            top = max(near, 1.0)
        sizes = np.concatenate([np.ravel(abs(x)) for x in self.at(self.active)])
        shortest = max(np.min(sizes, where=sizes != 0, initial=1.0), SHORTEST)
        return top / float(shortest) * sum(map(largest, directions))

    def missing(self, *, reverse: bool) -> str:
        """Why there is no derivative by the active inputs in this mode; "" if there is one, or if
        what is raised is for the checks to say.
        """
        known, key = self.subject.missing, (reverse, self.active, tuple(map(meta_of, self.inputs)))
        if key not in known:
            directions = self.cotangents(self.subject.rng) if reverse else self.at(self.active)
            _, program = self.program(reverse=reverse)
            error = failure(program.lower, self.inputs, directions)
            known[key] = self.subject.limit(error)
        return known[key]

    def eps(self) -> float:
        """Of the narrowest dtype among inputs and outputs."""
        metas = self.subject.metas(self.inputs) or ()
        met = [
            *(self.inputs[i].dtype for i in self.active),
            *(metas[i].dtype for i in self.outputs),
        ]
        return max(self.subject.grain, *(float(jnp.finfo(dtype).eps) for dtype in met))

    def rounding(self) -> float:
        """Relative error of a sum of products of derivatives."""
        return max(1e-9, self.eps() ** 0.75)

    def within(self) -> float:
        """The relative error that a derivative may have beside that of finite differences."""
        return max(WITHIN, self.subject.grain**0.75)

    def require_finite(self, derivatives: PyTree) -> None:
        """Raise NotApplicable if derivatives are not finite."""
        if not all(np.isfinite(np.asarray(d)).all() for d in jax.tree.leaves(derivatives)):
            raise NotApplicable(
                "the derivative is not finite at the example; jvp and vjp judge it",
                "Choose another example, with finite outputs and derivatives.",
            )

    def random(
        self,
        arrays: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, ...]:
        """Random directions like these arrays."""
        made = []
        for x in arrays:
            direction = rng.normal(size=x.shape)
            if np.iscomplexobj(x):
                direction = direction + 1j * rng.normal(size=x.shape)
            made.append(np.asarray(direction, x.dtype))
        return tuple(made)

    def cotangents(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Random cotangents of the floating outputs."""
        metas = self.subject.metas(self.inputs) or ()
        return self.random([np.empty(metas[i].shape, metas[i].dtype) for i in self.outputs], rng)


def smooth(
    subject: Subject,
    inputs: Inputs,
    *,
    reverse: bool = True,
    linearized: bool = True,
) -> Smooth:
    """The derivative view of an example, for the inputs with derivatives in that mode;
    NotApplicable if there are none.
    """
    subject.require_derivatives(linearized=linearized)
    wide = cast(inputs, subject.wide)
    metas = subject.metas(wide)
    if metas is None:
        raise NotApplicable(
            f"{subject.wide} inputs are refused", "Accept them, if there is to be a derivative."
        )
    outputs = tuple(i for i, m in enumerate(metas) if is_inexact(m))
    floating = tuple(i for i, x in enumerate(wide) if is_inexact(x))
    if not outputs or not floating:
        raise NotApplicable(
            f"no {'output' if floating else 'input'} is floating or complex",
        )
    whole = Smooth(subject, wide, floating, outputs)
    if not (reason := whole.missing(reverse=reverse)):
        return whole
    alone = {i: whole._replace(active=(i,)).missing(reverse=reverse) for i in floating}
    refused = [i for i in floating if alone[i]]
    if len(refused) in (0, len(floating)):
        raise NotApplicable(f"no {'reverse' if reverse else 'forward'} mode: {reason}")
    compared = tuple(i for i in floating if i not in refused)
    by, but = subject.each(compared), subject.each(refused)
    note = f"compared by {by} alone, not by {but}: {alone[refused[0]]}"
    subject.partly[note] = None
    return whole._replace(active=compared)


def in_each_dtype(
    subject: Subject, inputs: Inputs, *, reverse: bool = True, linearized: bool = True
) -> Iterator[tuple[str, Smooth]]:
    """The derivative view of an example in float64, and in each other precision that the op
    takes.
    """
    wide = smooth(subject, inputs, reverse=reverse, linearized=linearized)
    yield subject.wide, wide
    for dtype in FLOATS[FLOATS.index(subject.wide) + 1 :]:
        narrow = wide._replace(inputs=cast(inputs, dtype))
        if differ(narrow.inputs, wide.inputs) and subject.metas(narrow.inputs) is not None:
            yield dtype, narrow


def pulled(f: ArrayFunction, w: Arrays) -> ArrayFunction:
    """The cotangents of what a function takes, for these of its outputs."""
    return lambda *xs: jax.vjp(f, *xs)[1](w)


def values_of(
    view: Smooth,
    mask: Mask,
    others: Arrays | None = None,
) -> Callable[..., list[np.ndarray]]:
    """The floating outputs in NumPy as a function of the inputs in `mask`."""
    judged = view.function(mask, others, view.subject.judged)

    def run(*moving: Array) -> list[np.ndarray]:
        with near_the_example():
            return list(map(np.asarray, judged(*moving)))

    return run


@contextlib.contextmanager
def near_the_example() -> Iterator[None]:
    """Where a host op refuses values near the example, finite differences do not apply."""
    try:
        with host_errors():
            yield
    except BackendFailure as error:
        inside = isinstance(error.__cause__, Exception) and failed_inside(error.__cause__)
        why = error.given if inside else str(error.__cause__)
        raise NotApplicable(
            f"the op refuses values near the example ({why})",
            "Compare its derivative with one that you know: finite differences need values "
            "around it.",
        ) from error


def at_two_sizes(
    check: Callable[[Subject, Inputs, str], NotedCases],
) -> Callable[[Subject, Inputs], NotedCases]:
    """A check at the example, and of an op at other sizes, if it takes any; its third argument
    names these sizes.
    """

    @functools.wraps(check)
    def both(subject: Subject, inputs: Inputs) -> NotedCases:
        yield from check(subject, inputs, "")
        other = _of_another_size(subject, inputs) if subject.text else None
        if other is not None:
            with contextlib.suppress(NotApplicable):  # the example itself was checked
                yield from check(subject, other, f" at {listed(other)}")

    return both


def _of_another_size(subject: Subject, inputs: Inputs) -> Inputs | None:
    """The inputs cut by one along every axis, or along those of one size; only inputs at which the
    op has finite values. They are cut, because repeated values are ties and repeated rows are
    singular matrices.
    """
    sizes = [size for size in sizes_of(inputs) if size > 1]
    everywhere = inputs
    for size in reversed(sizes):
        everywhere = resized(everywhere, size, size - 1)
    for made in (everywhere, *(resized(inputs, size, size - 1) for size in sizes)):
        if sizes and subject.metas(made) is not None:
            # The op need not take these values.
            with contextlib.suppress(Exception):
                if all(np.isfinite(y).all() for y in subject.expected(made) if is_inexact(y)):
                    return made
    return None
