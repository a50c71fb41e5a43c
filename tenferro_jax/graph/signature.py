"""dtype and shape of the outputs of a node; for control flow they follow from its bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dimensions import Guard
from ..errors import DTypeError, InvalidConfig, ShapeError, counted
from ..extension.carrier import Extension
from ..jax_seam import is_symbolic_dim
from ..ops.control import Cond, CustomJvp, CustomVjp, LinearSolve, Scan, While
from ..ops.op import StdTensorOp, require_fields, require_inputs
from ..ops.reduction import Reduce
from ..ops.vocabulary import WITH_BODIES
from ..ops.window import ReduceWindow
from ..shapes import TensorMeta, is_inexact
from .graph import Graph, bodies

Metas = Sequence[TensorMeta]
Signature = tuple[TensorMeta, ...]


def infer(
    op: StdTensorOp, metas: Signature, known: Sequence[TensorMeta] | None = None
) -> tuple[Sequence[TensorMeta], tuple[Guard, ...]]:
    """dtype and shape of each output of a node, and the guards under which they are correct.

    Args:
      op: the op of the node.
      metas: of its inputs.
      known: the outputs, if the caller knows them and the op cannot assume anything. The inputs are
        still checked.

    Raises:
      InvalidConfig: as `StdTensorOp.infer`.
    """
    if isinstance(op, Extension):
        guards: list[Guard] = []
        found = op.infer(
            *metas, assume=lambda lhs, rhs, where: guards.append(Guard(lhs, rhs, where))
        )
        return found, tuple(guards)
    if type(op) in WITH_BODIES:
        require_fields(op)
        guards = [guard for body in bodies(op) for guard in body.guards]
        return _SIGNATURES[type(op)](op, metas), tuple(guards)
    if known is None:
        return op.infer(*metas), ()
    require_inputs(op, metas)
    return known, ()


def _scan(op: Scan, inputs: Metas) -> Signature:
    for name, value, least in (("length", op.length, 0), ("unroll", op.unroll, 1)):
        if not is_symbolic_dim(value) and value < least:
            raise _payload("Scan", f"{name}={value}", f"{least} or more")
    constants, carry, scanned = _split(
        "Scan", inputs, constant_count=op.constant_count, carry_count=op.carry_count
    )
    for i, meta in enumerate(scanned):
        if not meta.shape or meta.shape[0] != op.length:
            raise ShapeError(
                where=f"Scan, scanned input {i}",
                given=str(meta),
                needed=f"a first axis of {op.length}",
                fix="Scan arrays whose first axis is the length.",
            )
    slices = [TensorMeta(meta.dtype, meta.shape[1:]) for meta in scanned]
    outs = _outputs("Scan, body", op.body, (*constants, *carry, *slices))
    _carries(outs[: len(carry)], carry, "Scan, body")
    return (
        *carry,
        *(TensorMeta(meta.dtype, (op.length, *meta.shape)) for meta in outs[len(carry) :]),
    )


def _while(op: While, inputs: Metas) -> Signature:
    tested, used, carry = _split(
        "While",
        inputs,
        condition_constant_count=op.condition_constant_count,
        body_constant_count=op.body_constant_count,
    )
    predicate = _outputs("While, condition", op.condition, (*tested, *carry))
    _agree(
        predicate, [TensorMeta(np.dtype(bool), ())], "While, condition", "output", "the predicate"
    )
    _carries(_outputs("While, body", op.body, (*used, *carry)), carry, "While, body")
    return carry


def _cond(op: Cond, inputs: Metas) -> Signature:
    if not op.branches:
        raise _payload("Cond", "branches=()", "one graph or more")
    if tuple(inputs[:1]) != (TensorMeta(np.dtype(bool), ()),) or len(op.branches) != 2:
        _agree(
            inputs[:1],
            [TensorMeta(np.dtype("int32"), ())],
            "Cond",
            "index",
            "the choice of a branch",
        )
    outputs = [
        _outputs(f"Cond, branch {i}", branch, inputs[1:]) for i, branch in enumerate(op.branches)
    ]
    for i, outs in enumerate(outputs):
        _agree(outs, outputs[0], f"Cond, branch {i}", "output", "as branch 0 gives")
    return outputs[0]


def _reduce(op: Reduce | ReduceWindow, inputs: Metas) -> Signature:
    scalars = [TensorMeta(meta.dtype, ()) for meta in inputs[: len(inputs) // 2]]
    where = type(op).__name__
    _agree(inputs[len(scalars) :], scalars, where, "initial value", "a scalar for each input")
    _agree(
        _outputs(f"{where}, body", op.body, (*scalars, *scalars)),
        scalars,
        f"{where}, body",
        "output",
        "as it goes in",
    )
    return op.infer(*inputs)


def _linear_solve(op: LinearSolve, inputs: Metas) -> Signature:
    names = ("matvec", "solve", "transpose_solve")
    if op.transpose_solve is None and op.constant_counts[2]:
        counts = f"constant_counts={op.constant_counts}"
        raise _payload("LinearSolve", counts, "0 constants of transpose_solve, which is None")
    *constants, b = _split(
        "LinearSolve", inputs, **dict(zip(names, op.constant_counts, strict=True))
    )
    for name, given in zip(names, constants, strict=True):
        graph = getattr(op, name)
        if graph is not None or name != "transpose_solve":
            _carries(
                _outputs(f"LinearSolve, {name}", graph, (*given, *b)), b, f"LinearSolve, {name}"
            )
    return b


def _custom_jvp(op: CustomJvp, inputs: Metas) -> Signature:
    outs = _outputs("CustomJvp, body", op.body, inputs)
    results = _outputs("CustomJvp, jvp", op.jvp, (*inputs, *_moving(inputs)))
    _agree(
        results,
        (*outs, *_moving(outs)),
        "CustomJvp, jvp",
        "output",
        "the body's outputs and their tangents",
    )
    return outs


def _custom_vjp(op: CustomVjp, inputs: Metas) -> Signature:
    outs = _outputs("CustomVjp, body", op.body, inputs)
    results = _outputs("CustomVjp, forward", op.forward, inputs)
    _agree(
        results[: len(outs)],
        outs,
        "CustomVjp, forward",
        "output",
        "as the body gives, then residuals",
    )
    cotangents = _outputs(
        "CustomVjp, backward", op.backward, (*results[len(outs) :], *_moving(outs))
    )
    _agree(
        cotangents,
        _moving(inputs),
        "CustomVjp, backward",
        "output",
        "a cotangent for each floating input",
    )
    return outs


def _moving(metas: Metas) -> Signature:
    return tuple(filter(is_inexact, metas))


_SIGNATURES: Mapping[type[StdTensorOp], Callable[[Any, Metas], Signature]] = {
    Scan: _scan,
    While: _while,
    Cond: _cond,
    LinearSolve: _linear_solve,
    CustomJvp: _custom_jvp,
    CustomVjp: _custom_vjp,
    Reduce: _reduce,
    ReduceWindow: _reduce,
}


def _split(where: str, inputs: Metas, **counts: int) -> tuple[Signature, ...]:
    """The inputs in groups whose sizes the payload gives, and the rest, the carried values."""
    groups, start = [], 0
    for name, count in counts.items():
        if not 0 <= count <= len(inputs) - start:
            raise _payload(
                where,
                f"{name}={count} with {counted(len(inputs), 'input')}",
                f"a number from 0 to {len(inputs) - start}",
            )
        groups.append(tuple(inputs[start : start + count]))
        start += count
    return (*groups, tuple(inputs[start:]))


def _outputs(where: str, body: Graph, inputs: Metas) -> Signature:
    """The output metas of a body graph for these inputs."""
    inputs = tuple(inputs)
    if inputs != body.input_metas and body.is_symbolic and len(inputs) == body.input_count:
        return body.bound_metas(inputs).output_metas
    _agree(inputs, body.input_metas, where, "input", "as the body declares")
    return body.output_metas


def _carries(outputs: Metas, carry: Metas, where: str) -> None:
    _agree(outputs, carry, where, "carry", "as it goes in")


def _agree(given: Metas, needed: Metas, where: str, noun: str, reason: str) -> None:
    if len(given) != len(needed):
        raise InvalidConfig(
            where=where,
            given=f"{len(given)} of {noun}: {', '.join(map(str, given)) or 'none'}",
            needed=f"{len(needed)}, {reason}: {', '.join(map(str, needed)) or 'none'}",
        )
    for i, (have, want) in enumerate(zip(given, needed, strict=True)):
        if have != want:
            kind = DTypeError if have.dtype != want.dtype else ShapeError
            raise kind(where=f"{where}, {noun} {i}", given=str(have), needed=f"{want}, {reason}")


def _payload(where: str, given: str, needed: str) -> InvalidConfig:
    return InvalidConfig(where=where, given=given, needed=needed, fix="See docs/spec/ops.md.")
