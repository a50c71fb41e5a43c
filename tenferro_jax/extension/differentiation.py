"""An author's AD rule, checked and mapped over the batch levels: the rule of a mapped op is the mapped rule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax.numpy as jnp

from ..errors import InvalidConfig, MetaMismatchError, NotDifferentiableError
from ..jax_seam import graph_assumptions
from ..shapes import TensorMeta, meta_of
from .batching import Levels
from .op import ExtensionOp, checked_sequence
from .rules import NOT_DIFFERENTIABLE, ExtensionAdRule, LinearInput
from .scope import authored


def not_differentiable(family_id: str, kind: str, slot: str, results: Sequence[Any]) -> NotDifferentiableError:
    """The error for a slot whose derivative is needed and does not exist."""
    index = next(i for i, r in enumerate(results) if r is NOT_DIFFERENTIABLE)
    return NotDifferentiableError(
        family_id,
        kind,
        given=f"family_id {family_id}: the rule says NOT_DIFFERENTIABLE for {slot} {index}",
        needed="a slot that has a derivative",
        fix="Differentiate with respect to other inputs, or stop the gradient of its inputs with jax.lax.stop_gradient.",
    )


def absent(slot: Any) -> bool:
    """Whether a slot holds no value."""
    return slot is None or slot is NOT_DIFFERENTIABLE


def present(slots: Sequence[Any]) -> tuple[Any, ...]:
    """The slots that hold a value."""
    return tuple(slot for slot in slots if not absent(slot))


def _pattern(slots: Sequence[Any]) -> list[Any]:
    """Which slots hold a value, without the values: those of a mapped rule must not outlive its trace."""
    return [slot if absent(slot) else ... for slot in slots]


def _restored(pattern: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """`pattern` with every present slot replaced, in order, by `values`."""
    source = iter(values)
    return [slot if absent(slot) else next(source) for slot in pattern]


def require_metas(results: Sequence[Any], wanted: Sequence[tuple[Any, Any] | None], where: str) -> None:
    """Refuse a tangent or cotangent that has not the dtype and shape of its primal; None where there can be no value."""
    for i, (result, want) in enumerate(zip(results, wanted, strict=True)):
        if not absent(result) and not hasattr(result, "dtype"):
            raise InvalidConfig(where=f"{where}, entry {i}", given=f"{result!r}", needed="an array, None or NOT_DIFFERENTIABLE")
        if not absent(result) and (want is None or (result.dtype, tuple(result.shape)) != tuple(want)):
            raise MetaMismatchError(
                where=f"{where}, entry {i}",
                given=str(TensorMeta(result.dtype, tuple(result.shape))),
                needed="None, since its primal has no tangents" if want is None else f"{TensorMeta(*want)}, as its primal",
            )


def _assume(a: Any, b: Any, where: str) -> None:
    """Have the graph that is recorded keep an equality that a rule demands."""
    graph_assumptions.value.append((a, b, where))


def _rule(family_id: str, name: str) -> AbstractContextManager[None]:
    """Runs a method of an AD rule."""
    return authored(family_id, name, None if graph_assumptions.value is None else _assume)


def linearize(
    rule: ExtensionAdRule,
    op: ExtensionOp,
    levels: Levels,
    primals: Sequence[Any],
    outs: Sequence[Any],
    tangents: Sequence[Any],
) -> list[Any]:
    """The rule's tangents, with the rule itself mapped over the batch levels."""
    if not levels:
        with _rule(op.family_id, "linearize"):
            results = rule.linearize(op, tuple(primals), tuple(outs), tuple(tangents))
        return list(checked_sequence(results, op, "linearize", op.output_count))
    level, rest = levels[0], levels[1:]
    pattern: list[Any] = []

    def one(primals: Any, outs: Any, given: Any) -> tuple[Any, ...]:
        results = linearize(rule, op, rest, primals, outs, _restored(tangents, given))
        pattern[:] = _pattern(results)
        return present(results)

    axes = tuple(axis for axis, t in zip(level.in_axes, tangents, strict=True) if t is not None)
    mapped = level.vmap(one, in_axes=(level.in_axes, 0, axes))(tuple(primals), tuple(outs), present(tangents))
    return _restored(pattern, mapped)


def transposed(
    rule: ExtensionAdRule,
    op: ExtensionOp,
    levels: Levels,
    cotangents: Sequence[Any],
    inputs: Sequence[Any],
) -> list[Any]:
    """The rule's cotangents, mapped over the batch levels; an input that a level does not map sums over it."""
    mask = tuple(isinstance(x, LinearInput) for x in inputs)
    if not levels:
        with _rule(op.family_id, "transpose_rule"):
            results = rule.transpose_rule(op, tuple(cotangents), tuple(inputs))
        results = checked_sequence(results, op, "transpose_rule", op.input_count)
        return [r if m else None for r, m in zip(results, mask, strict=True)]
    level, rest = levels[0], levels[1:]
    metas = level.inner([meta_of(x) for x in inputs])
    pattern: list[Any] = []

    def one(given: Any, known: Any) -> tuple[Any, ...]:
        values = iter(known)
        element = [LinearInput(meta) if m else next(values) for meta, m in zip(metas, mask, strict=True)]
        results = transposed(rule, op, rest, _restored(cotangents, given), element)
        pattern[:] = _pattern(results)
        return present(results)

    known = [(x, axis) for x, axis, m in zip(inputs, level.in_axes, mask, strict=True) if not m]
    mapped = level.vmap(one, in_axes=(0, tuple(axis for _, axis in known)))(present(cotangents), tuple(x for x, _ in known))
    return [
        r if absent(r) else r.sum(0) if axis is None else jnp.moveaxis(r, 0, axis)
        for r, axis in zip(_restored(pattern, mapped), level.in_axes, strict=True)
    ]
