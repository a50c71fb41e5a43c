"""Contraction in the ring of numbers."""

from __future__ import annotations

from typing import Any

from jax import lax

from .op import StdTensorOp, op


@op
class DotGeneral(StdTensorOp):
    """Sum of products over the contracting axes; output axes are batch, lhs free, rhs free."""

    input_count = 2
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    precision: tuple[str, str] | None = None
    accumulation_dtype: Any = None

    def apply(self, lhs: Any, rhs: Any) -> Any:
        return lax.dot_general(
            lhs,
            rhs,
            ((self.lhs_contracting, self.rhs_contracting), (self.lhs_batch, self.rhs_batch)),
            precision=None if self.precision is None else (lax.Precision[self.precision[0]], lax.Precision[self.precision[1]]),
            preferred_element_type=self.accumulation_dtype,
        )
