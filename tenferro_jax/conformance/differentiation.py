"""What the derivative checks share: the op as a function of the inputs that have derivatives, in double precision."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BackendFailure, NotDifferentiableError
from ..extension.rules import is_stated
from ..shapes import meta_of
from .examples import Inputs, cast, is_float, resized, sizes_of
from .subject import NotApplicable, Subject

Mask = tuple[int, ...]
"""Numbers of the inputs that are differentiated."""


class Smooth(NamedTuple):
    """The op as a function of some inputs, with its floating outputs alone.

    Attributes:
      inputs: all inputs.
      active: which of them have derivatives.
      outputs: which outputs have derivatives.
      undeclared: what the rule declares NOT_DIFFERENTIABLE, in words.
    """

    subject: Subject
    inputs: Inputs
    active: Mask
    outputs: tuple[int, ...]
    undeclared: str

    def function(self, mask: Mask, others: Sequence[Any] | None = None) -> Callable[..., tuple[Any, ...]]:
        """A function of the inputs in `mask`, the others held (as they are in `others`)."""

        def run(*moving: Any) -> tuple[Any, ...]:
            full = list(self.inputs if others is None else others)
            for i, x in zip(mask, moving, strict=True):
                full[i] = x
            outs = self.subject.call(*full)
            return tuple(outs[i] for i in self.outputs)

        return run

    def at(self, mask: Mask) -> tuple[np.ndarray, ...]:
        """The inputs in `mask`."""
        return tuple(self.inputs[i] for i in mask)

    def masks(self) -> Iterator[Mask]:
        """Every subset of the active inputs but the empty one, all of them first."""
        for count in range(len(self.active), 0, -1):
            yield from itertools.combinations(self.active, count)

    def rounding(self) -> float:
        """Relative error of a sum of products of derivatives: of the narrowest dtype among inputs and outputs."""
        metas = self.subject.metas(self.inputs) or ()
        met = [*(self.inputs[i].dtype for i in self.active), *(metas[i].dtype for i in self.outputs)]
        return max(1e-9, *(float(jnp.finfo(dtype).eps) ** 0.75 for dtype in met))

    def require_finite(self, derivatives: Any) -> None:
        """NotApplicable where derivatives are not finite and neither are the values."""
        if all(np.isfinite(np.asarray(d)).all() for d in jax.tree.leaves(derivatives)):
            return
        if not all(np.isfinite(y).all() for y in self.function(())()):
            raise NotApplicable("an output is NaN or infinite at the example", "Choose another example, with finite outputs.")

    def random(self, arrays: Sequence[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Random directions like these arrays."""
        return tuple(_random(x, rng) for x in arrays)

    def cotangents(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Random cotangents of the floating outputs."""
        metas = self.subject.metas(self.inputs) or ()
        return self.random([np.empty(metas[i].shape, metas[i].dtype) for i in self.outputs], rng)


def _random(x: Any, rng: np.random.Generator) -> np.ndarray:
    made = rng.normal(size=x.shape)
    if np.iscomplexobj(x):
        made = made + 1j * rng.normal(size=x.shape)
    return np.asarray(made, x.dtype)


def smooth(subject: Subject, inputs: Inputs, dtype: str = "float64", *, reverse: bool = True, linearized: bool = True) -> Smooth:
    """The derivative view of an example, of the inputs that have derivatives in that mode; NotApplicable where there is none."""
    rule = subject.rule()
    if linearized and not is_stated(rule, subject.op, "linearize"):
        raise NotApplicable("the rule has transpose_rule alone", "Override linearize, if the op is to be differentiated.")
    wide = cast(inputs, dtype)
    metas = subject.metas(wide)
    if metas is None:
        raise NotApplicable(f"the op takes no {dtype} inputs", "Accept them, if the op is to be differentiated.")
    outputs = tuple(i for i, m in enumerate(metas) if is_float(m))
    floating = tuple(i for i, x in enumerate(wide) if is_float(x))
    if not outputs or not floating:
        raise NotApplicable(f"no {'output' if floating else 'input'} is floating or complex", "Nothing is to be done.")
    whole = Smooth(subject, wide, floating, outputs, "")
    declared = [i for i in floating if _is_declared(whole, i, reverse)]
    if len(declared) == len(floating):
        raise NotApplicable("the rule declares NOT_DIFFERENTIABLE", "Nothing is to be done, if there is no derivative.")
    note = f"declared NOT_DIFFERENTIABLE: {names(declared)}" if declared else ""
    return whole._replace(active=tuple(i for i in floating if i not in declared), undeclared=note)


def _is_declared(view: Smooth, i: int, reverse: bool) -> bool:
    """Whether the rule says NOT_DIFFERENTIABLE for an input."""
    f, at, w = view.function((i,)), view.at((i,)), view.cotangents(view.subject.rng)
    try:
        jax.eval_shape(lambda x: jax.vjp(f, x)[1](w) if reverse else jax.jvp(f, (x,), (x,)), *at)
    except NotDifferentiableError:
        return True
    except Exception:  # the checks will say so
        return False
    return False


def values_of(view: Smooth, mask: Mask, others: Sequence[Any] | None = None) -> Callable[..., list[np.ndarray]]:
    """The floating outputs by NumPy, the oracle's where there is one, as a function of the inputs in `mask`."""

    def run(*moving: Any) -> list[np.ndarray]:
        full = list(view.inputs if others is None else others)
        for i, x in zip(mask, moving, strict=True):
            full[i] = x
        answer = view.subject.oracle or view.subject.call
        try:
            outs = answer(*full)
        except BackendFailure as error:
            text = f"the op refuses values near the example ({error.__cause__})"
            raise NotApplicable(text, "Compare its derivative with one that you know: finite differences need values around it.") from error
        return [np.asarray(outs[i]) for i in view.outputs]

    return run


def names(mask: Sequence[int]) -> str:
    """The inputs of a mask, in words."""
    return ("input " if len(mask) == 1 else "inputs ") + ", ".join(map(str, mask))


def at_two_sizes(subject: Subject, inputs: Inputs, check: Callable[[Subject, Inputs, str], Iterator[str | None]]) -> Iterator[str | None]:
    """A check at the example, and at other sizes if the op takes any; there its third argument names them."""
    yield from check(subject, inputs, "")
    other = _of_another_size(subject, inputs)
    if other is not None:
        with contextlib.suppress(NotApplicable):  # the example itself was judged
            yield from check(subject, other, f" at {', '.join(str(meta_of(x)) for x in other)}")


def _of_another_size(subject: Subject, inputs: Inputs) -> Inputs | None:
    """The inputs cut by one along every axis, or along those of one size; only inputs at which the op has finite values.

    They are cut, because repeated values are ties and repeated rows singular matrices; sizes of 1 grow where there are no others.
    """
    sizes = [size for size in sizes_of(inputs) if size > 1]
    everywhere = inputs
    for size in reversed(sizes):
        everywhere = resized(everywhere, size, size - 1)
    grown = tuple((x * (1 + np.arange(x.size).reshape(x.shape) / 16)).astype(x.dtype) if is_float(x) else x for x in resized(inputs, 1, 2))
    for made in [everywhere, *(resized(inputs, size, size - 1) for size in sizes)] if sizes else [grown]:
        if [x.shape for x in made] != [x.shape for x in inputs] and subject.metas(made) is not None:
            try:
                outs = subject.expected(made)
            except Exception:  # the op need not take values that nobody gave
                continue
            if all(np.isfinite(y).all() for y in outs if is_float(y)):
                return made
    return None


def inner(a: Any, b: Any) -> float:
    """Sum of products over all arrays: JAX's pairing, without conjugates. Of complex numbers the real part: a derivative of abs(z)**2
    is linear over the reals alone."""
    return float(sum(np.sum(_wide(x) * _wide(y)).real for x, y in zip(a, b, strict=True)))


def _wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
