"""What the derivative checks share: the op as a function of the inputs that have derivatives, in double precision."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import NotDifferentiableError
from .examples import Inputs, cast, is_float
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


def smooth(subject: Subject, inputs: Inputs, dtype: str = "float64", *, reverse: bool = True) -> Smooth:
    """The derivative view of an example, of the inputs that have derivatives in that mode; NotApplicable where there is none."""
    if not subject.rules.is_rule_registered(subject.op.family_id):
        raise NotApplicable("no AD rule for the family", "Pass rules=ExtensionRuleSet(...).")
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


def names(mask: Sequence[int]) -> str:
    """The inputs of a mask, in words."""
    return ("input " if len(mask) == 1 else "inputs ") + ", ".join(map(str, mask))
