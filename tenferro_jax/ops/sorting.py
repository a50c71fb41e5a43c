"""Sorting and the k largest."""

from __future__ import annotations

import jax
from jax import lax

from ..errors import InvalidConfig
from ..shapes import Shaped
from .op import FLOATING, StdTensorOp, op


@op
class Sort(StdTensorOp):
    """Sort all inputs together along an axis, ascending by the first num_keys of them; NaN last, -0
    equals 0.

    C1: one shape. C2: 0 <= axis < rank. C3: 1 <= num_keys <= number of inputs.
    Gradient: linear; tangents move with the elements.
    Example: Sort(0).apply(np.array([3.0, 1.0, 2.0])) = [[1.0, 2.0, 3.0]]
    """

    input_count = None
    output_count = None
    axis: int
    is_stable: bool = True
    num_keys: int = 1

    def apply(self, *xs: jax.Array) -> tuple[jax.Array, ...]:
        return lax.sort(xs, dimension=self.axis, is_stable=self.is_stable, num_keys=self.num_keys)


@op
class TopK(StdTensorOp):
    """The k largest along an axis, descending, and their int32 positions; of equal entries the
    earlier comes first.

    C1: 0 <= axis < rank. C2: 0 <= k <= size of the axis. C3: not complex.
    Gradient: linear; tangents move with the elements; none for the positions.
    Example: TopK(2, 0).apply(np.array([3, 1, 2])) = [[3, 2], [0, 2]]
    """

    output_count = 2
    k: int
    axis: int

    def apply(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.top_k(x, self.k, axis=self.axis)


@op
class ApproxTopK(StdTensorOp, takes=FLOATING):
    """The k largest (or smallest) along an axis, each found with a stated probability, and their
    positions.

    C1: as TopK. C2: floating. C3: 0 < recall_target <= 1.
    Gradient: linear; tangents move with the elements; none for the positions.
    Example: ApproxTopK(1, 0, 0.95).apply(np.array([3.0, 1.0, 2.0])) = [[3.0], [0]]
    """

    output_count = 2
    k: int
    axis: int
    recall_target: float
    largest: bool = True
    input_size_override: int = -1
    aggregate: bool = True

    def check(self, *operands: Shaped) -> None:
        """C3."""
        if not 0 < self.recall_target <= 1:
            raise InvalidConfig(
                where="ApproxTopK",
                given=f"recall_target={self.recall_target}",
                needed="a probability above 0",
                fix="Use 0.95, for example.",
            )

    def apply(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        find = lax.approx_max_k if self.largest else lax.approx_min_k
        return find(
            x,
            self.k,
            reduction_dimension=self.axis,
            recall_target=self.recall_target,
            reduction_input_size_override=self.input_size_override,
            aggregate_to_topk=self.aggregate,
        )
