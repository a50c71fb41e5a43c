"""A call of an einsum whose arguments are checked, and the four ways in which it may run."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tenferro_jax.errors import InvalidConfig, Unsupported, shortened
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.plans.plan import hashable
from tenferro_jax.shapes import as_array

from ..arguments import one_dtype
from ..networks.value import is_network, solved_as_network
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..steps.einsum_op import Ties
from ..steps.evaluate import Mode, TropicalStep, Winners, contract, evaluate, found_of
from ..steps.labels import NO_LABELS, Labels
from ..steps.layout import is_step, matmul_layout
from .devices import Spread, spec_of, spread_over
from .planning import Operand, Optimize, cached_plan, read
from .slice_lengths import byte_count
from .slices import TropicalPlan, whole


class Way(enum.Enum):
    """How a call runs. Values, winners and gradients are the same in all ways."""

    STEP = "the equation is one step: its op"
    NETWORK = "many small steps: one op for the whole plan"
    STEPS = "an op for each step of the plan, in one program"
    SLICES = "a loop over slices of the plan, on one device or on several"


class Answer(NamedTuple):
    """What a call gives.

    Attributes:
      value: the result.
      output: the labels of its axes.
      steps: the winners of each contraction step, if they are asked for.
      labels: the index of each contracted label, if they are asked for.
    """

    value: jax.Array
    output: str
    steps: tuple[TropicalStep, ...] = ()
    labels: Labels = NO_LABELS


class Call(NamedTuple):
    """A call whose arguments are checked.

    Attributes:
      equation: as it was written, without interleaved labels.
      operands: arrays.
      mode: semiring, ties, and which winners are wanted.
      optimize: the order of contractions.
      memory_limit: bytes, or None.
      spread: the devices that share slices, or None.
      written: for each letter of the interleaved form the label that was written.
    """

    equation: str
    operands: Sequence[jax.Array]
    mode: Mode
    optimize: Optimize
    memory_limit: int | None
    spread: Spread | None
    written: Mapping[str, Any]

    def way(self) -> tuple[Way, TropicalPlan | None]:
        """The way in which the call runs; and its plan, which one step does not need."""
        shapes = tuple(tuple(x.shape) for x in self.operands)
        is_free = self.memory_limit is None and self.spread is None and self.optimize == "auto"
        has_ones = any(1 in shape for shape in shapes)  # the label may be longer elsewhere
        if is_free and is_step(self.equation) and not has_ones:
            return Way.STEP, None
        devices = self.spread.devices if self.spread else 1
        dtype = self.operands[0].dtype if self.operands else jnp.dtype("float32")
        plan = cached_plan(
            self.equation,
            shapes,
            dtype,
            self.optimize,
            self.memory_limit,
            self.mode.semiring,
            slices=devices,
            devices=devices,
        )
        if plan.slices > 1:
            return Way.SLICES, plan
        is_small = is_network(plan.plan, self.operands, self.mode)
        return (Way.NETWORK if is_small else Way.STEPS), plan

    def answer(self) -> Answer:
        """Value and winners."""
        way, plan = self.way()
        return _RUN[way](self, plan)


def checked_call(
    equation: str | Operand,
    operands: Sequence[Operand],
    semiring: Semiring,
    winners: Winners | None,
    *,
    ties: str,
    optimize: Optimize,
    memory_limit: int | None,
    over: str | tuple[str, ...] | None,
) -> Call:
    """A call of `tropical_einsum` with these arguments, checked.

    Raises:
      InvalidConfig, ShapeError, DTypeError, Unsupported: as `tropical_einsum`.
    """
    equation, operands, written = read("tropical_einsum", equation, operands)
    where = f"tropical_einsum {shortened(equation)!r}"
    if ties not in ("first", "split", *Ties):
        raise InvalidConfig(
            where=f"{where}, ties",
            given=repr(ties),
            needed="'first' or 'split'",
        )
    if Ties(ties) is Ties.SPLIT and not isinstance(semiring, SelectiveSemiring):
        raise InvalidConfig(
            where=f"{where}, ties",
            given=f"'split' under {semiring!r}",
            needed="a selective semiring, because others have no ties",
            fix="Leave ties out.",
        )
    for i, x in enumerate(operands):
        if isinstance(x, Semiring):
            raise InvalidConfig(
                where=f"{where}, operand {i}",
                given=repr(x),
                needed="an array",
                fix=f"Write semiring={x!r}.",
            )
    arrays = [as_array(x, f"{where}, operand {i}") for i, x in enumerate(operands)]
    if arrays:  # if there are none, the plan gives the number that it needs
        one_dtype(where, semiring, [x.dtype for x in arrays], operands)
    return Call(
        equation=equation,
        operands=arrays,
        mode=Mode(semiring, Ties(ties), winners),
        memory_limit=None if memory_limit is None else byte_count(where, memory_limit),
        spread=None if over is None else spread_over(where, over, arrays),
        optimize=hashable(optimize),
        written=written,
    )


# --- the ways -------------------------------------------------------------------------------------


def _as_step(call: Call, plan: None) -> Answer:
    layout = matmul_layout(call.equation).equation
    if len(layout.inputs) != len(call.operands):
        layout.sizes([x.shape for x in call.operands], "tropical_einsum")  # which refuses them
    value, steps = contract(call.operands, layout.inputs, layout.output, call.mode)
    return _answer(value, layout.output, found_of(call.mode, value, steps, layout.output))


def _as_network(call: Call, plan: TropicalPlan) -> Answer:
    """Concrete arrays at once, without a program to compile."""
    value, labels = solved_as_network(plan.plan, call.operands, call.mode)
    return Answer(value, plan.output, labels=NO_LABELS if labels is None else labels)


def _in_steps(call: Call, plan: TropicalPlan) -> Answer:
    value, found = _program(plan, call.mode)(*call.operands)
    return _answer(value, plan.output, found)


def _in_slices(call: Call, plan: TropicalPlan) -> Answer:
    if call.mode.ties is Ties.SPLIT:
        raise Unsupported(
            where="tropical_einsum",
            given="ties='split' in slices",
            needed="all slices at once, because the winners are counted",
            fix="Leave out memory_limit and over, or ties.",
        )
    value, found = _program(plan, call.mode, call.spread)(*call.operands)
    if call.mode.winners is not Winners.STEPS:
        return _answer(value, plan.output, found)
    sizes = dict(plan.whole)
    steps = (TropicalStep(c, (sizes[c],), plan.output, index) for c, index in found.items())
    return _answer(value, plan.output, tuple(steps))


_RUN: dict[Way, Any] = {
    Way.STEP: _as_step,
    Way.NETWORK: _as_network,
    Way.STEPS: _in_steps,
    Way.SLICES: _in_slices,
}


def _answer(value: jax.Array, output: str, found: tuple[TropicalStep, ...] | Labels) -> Answer:
    if isinstance(found, Labels):
        return Answer(value, output, labels=found)
    return Answer(value, output, steps=found)


@functools.lru_cache(maxsize=1024)
def _program(plan: TropicalPlan, mode: Mode, spread: Spread | None = None) -> Any:
    """The value, and the winners that the mode asks for, as a function of arrays that is compiled
    once for each dtype.
    """

    def run(*operands: jax.Array) -> Any:
        if plan.slices == 1:
            return evaluate(plan.plan, operands, mode)
        value, labels = whole(plan, mode, spread, operands)
        if mode.winners is Winners.LABELS:
            return value, Labels.joined(labels, value.shape)
        return value, labels if mode.winners else ()

    run.__name__ = run.__qualname__ = "tropical_einsum"
    if spread is None:
        run = on_automatic_axes(run, functools.partial(spec_of, plan.plan))
    # Symbolic sizes are traced in the scope of the caller.
    return run if plan.memory is None else jax.jit(run)
