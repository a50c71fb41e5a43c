"""One contraction step of log-sum-exp as an extension op: two operands, or the reduction of one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from tenferro_jax import TensorMeta
from tenferro_jax.extension import ExtensionOp, apply, extension_op, require_equal
from tenferro_jax.extension.sharding import Shard

from ..semirings.shipped import OfTemperature, max_plus
from .einsum_op import TropicalEinsum
from .kernels import products
from .layout import EinsumOp, matmul_layout, step_op
from .weighted_sum import WeightedSum, work_of


@extension_op(package="tenferro-ext-tropical", name="log_einsum", version=3)
class LogEinsum(OfTemperature, EinsumOp):
    """out[batch, rows, columns] = T log sum over contracted of exp((lhs[...] + rhs[...]) / T), or
    of the entries of a single operand.

    NaN if a candidate is NaN, else inf if one is inf; -inf if all are -inf or nothing is
    contracted. Products of matrices of exponentials, where their sums prove that nothing is lost;
    two passes over all candidates for the other cells.

    Gradient: each candidate's share exp((candidate - value) / T), the softmax: marginals. The
    shares of a cell sum to 1 within rounding, however large the scores are. Any order, forward and
    reverse. 0 for candidates -inf, also if all are; NaN if the value is NaN or inf, but 0 for
    finite candidates of a value inf.

    Attributes:
      temperature: T, positive and finite.
      equation: one or two operands, no label twice in one; with two operands every label is in at
        least two of lhs, rhs, output.
      with_sums: whether two more outputs follow, of which the derivative takes the shares: for each
        cell a reference r, the value itself or the largest candidate, and the sum of exp((candidate
        - r) / T), 1 where r is not finite. The value alone does not tell the shares: it is rounded,
        by more the larger it is.
    """

    temperature: float
    equation: str
    with_sums: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        matmul_layout(self.equation)

    @property
    def share(self) -> WeightedSum:
        """The sum of the weights of the candidates: exp((candidate - reference) / T)."""
        return WeightedSum(self.algebra, self.equation)  # type: ignore[arg-type]

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype = work_of(f"{self.family_id} {self.equation!r}", self.algebra, inputs)
        sizes = self.layout.equation.sizes([m.shape for m in inputs], self.family_id, require_equal)
        shape = tuple(map(sizes.__getitem__, self.layout.equation.output))
        return [TensorMeta(dtype, shape)] * self.output_count

    @property
    def output_count(self) -> int:
        """1, or 3 with the sums."""
        return 3 if self.with_sums else 1

    def on_device(self, shard: Shard, *pieces: jax.Array) -> Sequence[jax.Array]:
        value, *sums = apply(self, *pieces)
        reference, total = sums or (value, jnp.ones_like(value))
        contracted = self.layout.contracted
        largest = shard.merged("max", reference, contracted)
        total = shard.merged("sum", self.algebra.share(reference, largest) * total, contracted)
        return self._outputs(largest, total)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        total = functools.partial(products.value, self.with_sums)
        return products.lowered(self, total, inputs, products.PLACES)

    def from_candidates(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        """The outputs in two passes over all candidates."""
        (largest,) = step_op(TropicalEinsum, max_plus, self.equation).lower_to_standard_ops(*inputs)
        (total,) = self.share.lower_to_standard_ops(*inputs, largest)
        return self._outputs(largest, total)

    def differentiable_form(self) -> ExtensionOp:
        """This op with the sums."""
        return dataclasses.replace(self, with_sums=True)

    def _sums(
        self, primals: Sequence[jax.Array], outputs: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        """A reference and the sum for each cell."""
        return outputs[1:]

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The mean of the candidates' tangents under their softmax. The reference is a constant, on
        which no share depends.
        """
        reference, total = self._sums(primals, outputs)
        mean = self.share.of_tangents([*primals, reference], tangents) / total
        return (mean, None, mean * (total / self.temperature))[: self.output_count]

    def _outputs(self, largest: jax.Array, total: jax.Array) -> Sequence[jax.Array]:
        known = jnp.isfinite(largest)
        value = jnp.where(known, largest + self.temperature * jnp.log(total), largest)
        return (value, largest, jnp.where(known, total, 1))[: self.output_count]


@extension_op(package="tenferro-ext-tropical", name="log_einsum", version=2)
class LogEinsumV2(LogEinsum):
    """LogEinsum of files from before `with_sums`: its derivative sums over all candidates once
    more.
    """

    with_sums: ClassVar[bool] = False  # type: ignore[misc]

    def differentiable_form(self) -> ExtensionOp:
        """This op."""
        return self

    def _sums(
        self, primals: Sequence[jax.Array], outputs: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        reference = jax.lax.stop_gradient(outputs[0])
        (total,) = apply(self.share, *primals, reference)
        return reference, jnp.where(jnp.isfinite(reference), total, 1)


@extension_op(package="tenferro-ext-tropical", name="log_einsum", version=1)
class LogEinsumV1(LogEinsumV2):
    """LogEinsum of files from before products of matrices."""
