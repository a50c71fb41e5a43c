"""The rows of an array of labels, each as an array of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    ShardingRule,
    apply,
    extension_op,
    require_equal,
)

from ..step.native.library import ROWS, native
from .loops import cut_all

WORTH_THE_OP = 8
"""The number of rows from which the op is used. XLA fuses a few slices with what takes them."""


@extension_op(package="tenferro-ext-tropical", name="rows", version=1)
class Rows(ExtensionOp):
    """The rows of an int32 array, an output for each.

    XLA CPU compiles a function for every slice that a program returns, 2 ms each, and a network
    has a row for each label. The kernel copies them in one call. The op has no derivative.

    Attributes:
      count: the number of rows, at least 1.
    """

    count: int

    input_count = 1

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise InvalidConfig(
                where=f"{self.family_id}, field count",
                given=repr(self.count),
                needed="an integer of at least 1",
            )

    @property
    def output_count(self) -> int:
        """One for each row."""
        return self.count

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        (labels,) = inputs
        if labels.dtype != np.int32:
            raise DTypeError(where=self.family_id, given=str(labels), needed="int32")
        if not labels.shape:
            raise ShapeError(where=self.family_id, given=str(labels), needed="an axis of rows")
        require_equal(labels.shape[0], self.count)
        return [TensorMeta(labels.dtype, labels.shape[1:])] * self.count

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return ShardingRule(f"row ... -> {', '.join(['...'] * self.count)}", whole=("row",))

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        (labels,) = inputs
        shape = labels.shape[1:]
        starts = [i * math.prod(shape) for i in range(self.count)]
        return cut_all(labels.reshape(-1), starts, [shape] * self.count)

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        (axis,) = in_axes
        return (self, (axis - 1,) * self.count) if axis else None

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Rows of three labels."""
        return [[np.arange(3 * self.count, dtype=np.int32).reshape(self.count, 3)]]


def _declines(op: Rows, labels: TensorMeta) -> str:
    """Why XLA cuts the rows, or "" if the library does."""
    if not all(isinstance(size, int) for size in labels.shape):
        return "sizes are symbolic"
    return native().problem


def _run(op: Rows, labels: jax.Array) -> tuple[jax.Array, ...]:
    rows = [jax.ShapeDtypeStruct(labels.shape[1:], labels.dtype)] * op.count
    return tuple(jax.ffi.ffi_call(ROWS, rows, vmap_method="sequential")(labels))


Rows.runtimes = ExtensionRuntimeSet(Kernel(Rows.family_id, "cpu", _run, _declines, "native"))


def rows_of(labels: jax.Array) -> Sequence[jax.Array]:
    """The rows of an array; of a concrete one without a program for each."""
    if not isinstance(labels, jax.core.Tracer):
        place = labels.sharding if labels.committed else None
        if isinstance(place, jax.NamedSharding):
            place = jax.NamedSharding(place.mesh, jax.P(*place.spec[1:]))
        return jax.device_put(list(np.asarray(labels)), place)
    if len(labels) < WORTH_THE_OP:
        return list(labels)
    return apply(Rows(len(labels)), labels)
