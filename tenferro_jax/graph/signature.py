"""What control flow asks of its bodies: what goes in, what comes out, what is carried. It also gives the op's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArityError, DTypeError, InvalidConfig, ShapeError
from ..jax_seam import is_symbolic_dim
from ..meta import TensorMeta
from ..ops.control import Cond, CountedLoop, While
from ..ops.op import StdTensorOp

Metas = Sequence[TensorMeta]


def control_outputs(op: StdTensorOp, inputs: Metas) -> tuple[TensorMeta, ...] | None:
    """dtype and shape of each output of a control-flow op, once its bodies fit; None for an op of another kind.

    Raises:
      InvalidConfig: a payload that is none, or a body that is no graph.
      ArityError: a body takes or gives another number of values.
      ShapeError, DTypeError: a body takes or gives another shape or dtype; the text says which value.
    """
    check = _SIGNATURES.get(type(op))
    return None if check is None else check(op, inputs)


def _counted_loop(op: Any, inputs: Metas) -> tuple[TensorMeta, ...]:
    if isinstance(op.trip_count, bool) or not (is_symbolic_dim(op.trip_count) or (isinstance(op.trip_count, int) and op.trip_count >= 0)):
        raise _payload("CountedLoop", f"trip_count={op.trip_count!r}", "a number of turns, 0 or more, or a symbolic dimension")
    _, carry = _split("CountedLoop", inputs, constant_count=op.constant_count)
    _carries(_outputs("CountedLoop, body", op.body, inputs), carry, "CountedLoop, body")
    return carry


def _while(op: Any, inputs: Metas) -> tuple[TensorMeta, ...]:
    tested, used, carry = _split(
        "While", inputs, condition_constant_count=op.condition_constant_count, body_constant_count=op.body_constant_count
    )
    predicate = _outputs("While, condition", op.condition, (*tested, *carry))
    _agree(predicate, [TensorMeta(np.dtype(bool), ())], "While, condition", "output", "the predicate")
    _carries(_outputs("While, body", op.body, (*used, *carry)), carry, "While, body")
    return carry


def _cond(op: Any, inputs: Metas) -> tuple[TensorMeta, ...]:
    if type(op.branches) is not tuple or not op.branches:
        raise _payload("Cond", f"branches={op.branches!r}", "a tuple of one graph or more")
    _agree(inputs[:1], [TensorMeta(np.dtype("int32"), ())], "Cond", "index", "the choice of a branch")
    outputs = [_outputs(f"Cond, branch {i}", branch, inputs[1:]) for i, branch in enumerate(op.branches)]
    for i, outs in enumerate(outputs):
        _agree(outs, outputs[0], f"Cond, branch {i}", "output", "as branch 0 gives")
    return outputs[0]


_SIGNATURES: Mapping[type[StdTensorOp], Callable[[Any, Metas], tuple[TensorMeta, ...]]] = {
    CountedLoop: _counted_loop,
    While: _while,
    Cond: _cond,
}


def _split(where: str, inputs: Metas, **counts: int) -> tuple[tuple[TensorMeta, ...], ...]:
    """The inputs in groups of the counts that the payload names, and the rest, which is carried."""
    groups, start = [], 0
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= len(inputs) - start:
            raise _payload(where, f"{name}={count!r} with {len(inputs)} inputs", f"a number from 0 to {len(inputs) - start}")
        groups.append(tuple(inputs[start : start + count]))
        start += count
    return (*groups, tuple(inputs[start:]))


def _outputs(where: str, body: Any, inputs: Metas) -> tuple[TensorMeta, ...]:
    """The output metas of a body graph for these inputs."""
    if not hasattr(body, "input_metas"):
        raise _payload(where, repr(body), "a Graph")
    inputs = tuple(inputs)
    if inputs != body.input_metas and body.is_symbolic and len(inputs) == body.input_count:
        return body.bound_metas(inputs).output_metas
    _agree(inputs, body.input_metas, where, "input", "as the body declares")
    return body.output_metas


def _carries(outputs: Metas, carry: Metas, where: str) -> None:
    _agree(outputs, carry, where, "carry", "as it goes in")


def _agree(given: Metas, needed: Metas, where: str, noun: str, reason: str) -> None:
    if len(given) != len(needed):
        raise ArityError(
            where=where,
            given=f"{len(given)} of {noun}: {', '.join(map(str, given)) or 'none'}",
            needed=f"{len(needed)}, {reason}: {', '.join(map(str, needed)) or 'none'}",
            fix="Make the body's signature fit.",
        )
    for i, (have, want) in enumerate(zip(given, needed, strict=True)):
        if have != want:
            kind = DTypeError if have.dtype != want.dtype else ShapeError
            raise kind(where=f"{where}, {noun} {i}", given=str(have), needed=f"{want}, {reason}", fix="Make the body's signature fit.")


def _payload(where: str, given: str, needed: str) -> InvalidConfig:
    return InvalidConfig(where=where, given=given, needed=needed, fix="See docs/spec/ops.md.")
