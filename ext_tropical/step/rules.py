"""AD of the tropical einsum: the derivative follows the winner.

out = times(lhs[winner], rhs[winner]), or lhs[winner] of an only operand, so the tangent is the tangent of times at the
winner: gather the operands and their tangents there. Its transpose is a scatter-add, which JAX makes from the gather;
both are standard ops and smooth in the tangents, so every order works. docs/maths/tropical.md derives it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.extension import Builder, ExtensionAdRule, ExtensionOp, ExtensionRuleSet, RuleContext

from .einsum_op import Outputs, Ties, TropicalEinsum, widened
from .log_einsum import LogEinsumRule
from .split import split_tangent
from .weighted_sum import WeightedSumRule


@dataclasses.dataclass(frozen=True)
class TropicalEinsumRule(ExtensionAdRule):
    """JVP by gather at the winner. At a tie the first winner takes the whole derivative, or all have equal shares."""

    family_id = TropicalEinsum.family_id

    def differentiable_form(self, op: Any) -> ExtensionOp:
        return op if op.ties is Ties.SPLIT else dataclasses.replace(op, outputs=Outputs.VALUE_AND_WINNER)

    def linearize(
        self,
        op: TropicalEinsum,
        builder: Builder,
        primal_in: Sequence[Any],
        primal_out: Sequence[Any],
        tangent_in: Sequence[Any],
        context: RuleContext,
    ) -> Sequence[Any]:
        sizes = op.layout.equation.sizes([context.shape_of(x) for x in primal_in], op.family_id, context.require_equal)
        if any(isinstance(sizes[label], int) and sizes[label] == 0 for label in op.layout.contracted):
            return (None,) * op.output_count  # no winner, no derivative
        if op.ties is Ties.SPLIT:
            return (split_tangent(op, builder, primal_in, primal_out[0], tangent_in), None)[: op.output_count]
        active, count = [i for i, t in enumerate(tangent_in) if t is not None], len(primal_in)

        def tangent(*values: Any) -> Any:
            operands, winner, given = values[:count], values[count], values[count + 1 :]
            at = op.layout.matrix(winner)

            def chosen_entries(arrays: Sequence[Any]) -> list[Any]:
                matrices = op.layout.matrices(*map(widened, arrays))  # the transpose adds up so: 16 bits would saturate
                return [_at_winner(m, at, axis) for m, axis in zip(matrices, (1, 2)[:count], strict=True)]

            full = [jnp.zeros_like(x) for x in operands]
            for i, t in zip(active, given, strict=True):
                full[i] = t
            entries, directions = chosen_entries(operands), chosen_entries(full)

            def product(*chosen: Any) -> Any:
                every = list(entries)
                for i, x in zip(active, chosen, strict=True):
                    every[i] = x
                return functools.reduce(op.algebra.times, every)

            _, out = jax.jvp(product, tuple(entries[i] for i in active), tuple(directions[i] for i in active))
            return op.layout.tensor(out.astype(context.dtype_of(primal_out[0])), sizes)

        return builder.inline(tangent, *primal_in, primal_out[1], *(tangent_in[i] for i in active)), None


def _at_winner(matrix: Any, winner: Any, own_axis: int) -> Any:
    """matrix[b, winner[b, i, j], own] for own = i (own_axis 1) or j (own_axis 2): (batch, rows, columns)."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0, 2),
        start_indices_batching_dims=(0, own_axis),
    )
    return lax.gather(matrix, winner[..., None], numbers, (1, 1, 1), mode="promise_in_bounds")


TROPICAL_RULES = ExtensionRuleSet(TropicalEinsumRule(), LogEinsumRule(), WeightedSumRule())
"""The AD rules of this package."""
