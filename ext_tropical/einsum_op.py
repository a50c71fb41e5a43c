"""One binary contraction step as an extension op."""

from __future__ import annotations

import dataclasses
import enum
import string
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tenferro_jax import DTypeError, PayloadError, ShapeError, Unsupported
from tenferro_jax.extension import Builder, ExtensionFactory, ExtensionOp, ShapeContext, TensorMeta, extension_op

from .kernels import blocked, reference
from .layout import MatmulLayout, matmul_layout, product
from .semiring import SEMIRINGS, Semiring

DTYPES = ("float64", "float32", "bfloat16", "float16", "int32", "int64")
"""dtypes of operands; the integers are forward only."""

_WIDENED = ("bfloat16", "float16")
MOST_CONTRACTED = 2**31 - 1


class Outputs(enum.Enum):
    """What the op returns."""

    VALUE = "value"
    VALUE_AND_WINNER = "value_and_winner"


@extension_op(package="tenferro-ext-tropical", name="einsum", version=1)
class TropicalEinsum(ExtensionOp):
    """out[batch, rows, columns] = best over contracted of times(lhs[...], rhs[...]).

    Attributes:
      semiring: max_plus, min_plus or max_mul.
      equation: two operands, every label in at least two of lhs, rhs and output.
      outputs: the value, or value and winner.
      accumulate: None for values in the operands' dtype; "float32" keeps 16-bit operands' values in float32.
    """

    semiring: Semiring
    equation: str
    outputs: Outputs = Outputs.VALUE
    accumulate: str | None = None

    input_count = 2

    def __post_init__(self) -> None:
        known = next((s for s in SEMIRINGS if s.id == getattr(self.semiring, "id", None)), None)
        if known is None:
            raise PayloadError(
                where=f"{self.family_id}, field semiring",
                given=repr(self.semiring),
                needed=f"one of {', '.join(map(repr, SEMIRINGS))}",
                fix="Pass one of them; they are in ext_tropical.",
            )
        object.__setattr__(self, "semiring", known)  # what was read from bytes has the id alone
        if not isinstance(self.outputs, Outputs):
            where = f"{self.family_id}, field outputs"
            raise PayloadError(where=where, given=repr(self.outputs), needed="a member of Outputs", fix="Pass Outputs.VALUE.")
        if self.accumulate not in (None, "float32"):
            where = f"{self.family_id}, field accumulate"
            raise PayloadError(where=where, given=repr(self.accumulate), needed="None or 'float32'", fix="Pass one of them.")
        matmul_layout(self.equation)
        super().__post_init__()

    @property
    def output_count(self) -> int:
        """1, or 2 with the winner."""
        return 2 if self.outputs is Outputs.VALUE_AND_WINNER else 1

    @property
    def layout(self) -> MatmulLayout:
        """The roles of the labels."""
        return matmul_layout(self.equation)

    def infer_output_meta(self, inputs: Sequence[TensorMeta], context: ShapeContext) -> Sequence[TensorMeta]:
        left, right = (m.dtype.name for m in inputs)
        if left != right:
            raise DTypeError(
                where=f"{self.family_id} {self.equation!r}",
                given=f"operands of dtype {left} and {right}",
                needed="one dtype for both",
                fix="Convert both to the dtype you mean with .astype; no promotion is done, not of Python numbers either.",
            )
        if left not in DTYPES:
            raise DTypeError(
                where=f"{self.family_id} {self.equation!r}",
                given=f"dtype {left}",
                needed=f"one of {', '.join(DTYPES)}",
                fix="Convert the operands.",
            )
        if self.accumulate and left not in (*_WIDENED, self.accumulate):
            raise DTypeError(
                where=f"{self.family_id} {self.equation!r}",
                given=f"accumulate={self.accumulate!r} with {left} operands",
                needed=f"operands of {', '.join(_WIDENED)} or {self.accumulate}",
                fix="Leave accumulate out: these operands are added in their own dtype.",
            )
        sizes = self.layout.equation.sizes([m.shape for m in inputs], self.family_id, context.require_equal)
        contracted = product(sizes, self.layout.contracted)
        if isinstance(contracted, int) and contracted > MOST_CONTRACTED:
            raise ShapeError(
                where=f"{self.family_id} {self.equation!r}",
                given=f"{contracted} contracted entries",
                needed=f"at most {MOST_CONTRACTED}, the range of an int32 winner",
                fix="Split the contraction.",
            )
        shape = tuple(sizes[label] for label in self.layout.equation.output)
        value = TensorMeta(np.dtype(self._value_dtype(inputs[0].dtype)), shape)
        return (value, TensorMeta(np.dtype("int32"), shape))[: self.output_count]

    @staticmethod
    def work_dtype(dtype: Any) -> Any:
        """The dtype in which candidates are made and compared, and cotangents added."""
        return np.dtype("float32") if dtype.name in _WIDENED else dtype

    def _value_dtype(self, dtype: Any) -> Any:
        return self.accumulate if self.accumulate and dtype.name in _WIDENED else dtype

    def infer_output_sharding(self, inputs: Sequence[Any]) -> Sequence[Any]:
        placed: dict[str, Any] = {}
        for labels, struct in zip(self.layout.equation.inputs, inputs, strict=True):
            for label, axes in zip(labels, struct.sharding.spec, strict=True):
                placed[label] = placed.get(label) or axes
        if any(placed[label] for label in self.layout.contracted):
            raise Unsupported(
                where=f"{self.family_id} {self.equation!r} on an explicit mesh",
                given=f"contracted labels split over the mesh: {placed}",
                needed="contracted labels on one device each",
                fix="Reshard the operands with jax.sharding.reshard, or contract inside jax.shard_map.",
            )
        axes = [placed[label] for label in self.layout.equation.output]
        named = [name for entry in axes if entry for name in (entry if isinstance(entry, tuple) else (entry,))]
        if len(set(named)) < len(named):
            raise Unsupported(
                where=f"{self.family_id} {self.equation!r} on an explicit mesh",
                given=f"two output labels split over one mesh axis: {placed}",
                needed="each mesh axis used once in the output",
                fix="Reshard one operand with jax.sharding.reshard, or contract inside jax.shard_map.",
            )
        spec = jax.P(*axes)
        return [jax.NamedSharding(inputs[0].sharding.mesh, spec)] * self.output_count

    def lower_to_standard_ops(self, builder: Builder, *inputs: Any) -> Sequence[Any]:
        return builder.inline(self._blocked, *inputs)

    def _blocked(self, lhs: Any, rhs: Any) -> tuple[Any, ...]:
        work = self.work_dtype(lhs.dtype)
        left, right = self.layout.matrices(lhs.astype(work), rhs.astype(work))
        value, *winner = blocked.contract(self.semiring, left, right, with_winner=self.output_count == 2)
        return self._tensors(lhs, rhs, value.astype(self._value_dtype(lhs.dtype)), *winner)

    def eager_execute(self, *arrays: Any) -> Sequence[Any]:
        lhs, rhs = arrays
        work = self.work_dtype(lhs.dtype)
        left, right = self.layout.matrices(lhs.astype(work), rhs.astype(work))
        value, winner = reference.contract(self.semiring, np.asarray(left), np.asarray(right))
        outs = self._tensors(lhs, rhs, value.astype(self._value_dtype(lhs.dtype)), winner)
        return [np.asarray(out) for out in outs[: self.output_count]]

    def _tensors(self, lhs: Any, rhs: Any, *matrices: Any) -> tuple[Any, ...]:
        sizes = self.layout.equation.sizes([lhs.shape, rhs.shape], self.family_id)
        return tuple(self.layout.tensor(matrix, sizes) for matrix in matrices)

    def prune_outputs(self, live: tuple[bool, ...]) -> ExtensionOp | None:
        return dataclasses.replace(self, outputs=Outputs.VALUE) if live == (True, False) else None

    def batched(self, in_axes: tuple[int | None, ...]) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        label = next((c for c in string.ascii_letters if c not in self.equation), None)
        if label is None:
            return None
        equation = self.layout.equation
        terms = [t if axis is None else t[:axis] + label + t[axis:] for t, axis in zip(equation.inputs, in_axes, strict=True)]
        form = dataclasses.replace(self, equation=f"{','.join(terms)}->{label}{equation.output}")
        return form, (0,) * self.output_count

    def example_inputs(self) -> Sequence[Sequence[Any]]:
        """Operands without ties, of 2, 3, 4, ... for the labels in their order."""
        labels = dict.fromkeys("".join(self.layout.equation.inputs))
        sizes = dict(zip(labels, range(2, 2 + len(labels)), strict=True))
        rng = np.random.default_rng(0)
        return [[rng.normal(size=[sizes[label] for label in term]) for term in self.layout.equation.inputs]]


class TropicalEinsumFactory(ExtensionFactory):
    """Rebuilds TropicalEinsum from its payload."""

    def __init__(self) -> None:
        super().__init__(TropicalEinsum)

    def instantiate_default(self) -> ExtensionOp:
        return TropicalEinsum(SEMIRINGS[0], "ij,jk->ik")
