"""One contraction step in any semiring as an extension op: two operands, or the reduction of
one.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import ADRuleError, InvalidConfig
from tenferro_jax.extension import extension_op

from ..arguments import one_dtype, widened
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp
from .kernels import summed
from .layout import EinsumOp, matmul_layout


@extension_op(package="tenferro-ext-tropical", name="sum_einsum", version=1)
class SumEinsum(OfSemiring, EinsumOp):
    """out[batch, rows, columns] = plus over contracted of times(lhs[...], rhs[...]), or of the
    entries of a single operand; the zero if nothing is contracted.

    Attributes:
      semiring: a registered semiring that is neither selective nor log_sum_exp, or its key.
      equation: one or two operands, no label twice in one; with two operands every label is in at
        least two of lhs, rhs, output.
    """

    semiring: SemiringKey
    equation: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.algebra, SelectiveSemiring | LogSumExp):
            raise InvalidConfig(
                where=f"{self.family_id}, field semiring",
                given=repr(self.algebra),
                needed="a semiring that is neither selective nor log_sum_exp",
                fix="Use TropicalEinsum or LogEinsum.",
            )
        matmul_layout(self.equation)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where = f"{self.family_id} {self.equation!r}"
        dtype = one_dtype(where, self.algebra, [m.dtype for m in inputs])
        return [TensorMeta(dtype, self.counted_shape(inputs))]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        layout = self.layout
        sizes = layout.equation.sizes([x.shape for x in inputs], self.family_id)
        matrices = layout.matrices(*map(widened, inputs))
        found = summed.contract(self.algebra, matrices, layout.extents(sizes))
        return (layout.tensor(found, sizes).astype(inputs[0].dtype),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """There is none, which is an error."""
        raise no_derivative(self.algebra)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Operands of zero, one and one plus one, where these are finite, of 2, 3, 4, ... for the
        labels in their order.
        """
        dtype, rng = np.dtype(self.algebra.dtypes[0]), np.random.default_rng(0)
        zero, one = (np.asarray(f(dtype), dtype) for f in (self.algebra.zero, self.algebra.one))
        every = np.stack([zero, one, np.asarray(self.algebra.plus(one, one))])
        entries = every[np.isfinite(every)]
        shapes = self.example_shapes(self.layout.equation.inputs)
        return [[rng.choice(entries, shape) for shape in shapes]]


def no_derivative(semiring: Semiring) -> ADRuleError:
    """The error for a derivative of sums in a semiring."""
    return ADRuleError(
        SumEinsum.family_id,
        "jvp",
        given=f"{semiring!r}, whose plus does not select",
        needed="a selective semiring, or log_sum_exp",
        fix="Stop the gradient of the operands with jax.lax.stop_gradient; sums of products of "
        "numbers have derivatives in jnp.einsum.",
        clause="X10.5",
    )
