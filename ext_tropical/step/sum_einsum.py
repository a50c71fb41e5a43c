"""One contraction step in any semiring as an extension op: two operands, or the reduction of
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import ADRuleError, InvalidConfig
from tenferro_jax.extension import extension_op, require_equal

from ..algebra.semiring import OfSemiring, SelectiveSemiring, Semiring, SemiringKey, whole_plus
from ..algebra.shipped import LogSumExp
from .einsum_op import one_dtype, widened
from .kernels import summed
from .layout import EinsumOp, grouped, matmul_layout


@extension_op(package="tenferro-ext-tropical", name="sum_einsum", version=1)
class SumEinsum(OfSemiring, EinsumOp):
    """out[batch, rows, columns] = plus over contracted of times(lhs[...], rhs[...]), or of the
    entries of a single operand; the zero if nothing is contracted.

    Attributes:
      semiring: a registered semiring that is neither selective nor log_sum_exp, or its key.
      equation: one or two operands, no label twice in one; with two operands every label is in at
        least two of lhs, rhs, output. If entries have components, their label comes first in the
        output, and every operand has it.
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
        inputs = matmul_layout(self.equation).equation.inputs
        if self.algebra.components and not all(self.axis and self.axis in term for term in inputs):
            raise InvalidConfig(
                where=f"{self.family_id}, field equation",
                given=repr(self.equation),
                needed=f"a label of the components of {self.algebra!r}, first in the output and in "
                f"every operand",
            )

    @property
    def axis(self) -> str:
        """The label of the components; "" if an entry is a number."""
        return self.layout.equation.output[:1] if self.algebra.components else ""

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype = one_dtype(
            f"{self.family_id} {self.equation!r}", self.algebra, [m.dtype for m in inputs]
        )
        sizes = dict(self.counted_sizes(inputs))
        if self.axis:
            require_equal(sizes[self.axis], self.algebra.components)
            sizes[self.axis] = self.algebra.components
        return [TensorMeta(dtype, tuple(sizes[label] for label in self.layout.equation.output))]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        return (self._contracted(summed.contract, inputs),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """There is none, which is an error."""
        raise no_derivative(self.algebra)

    def eager_execute(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        return [np.asarray(self._contracted(summed.reference, list(map(jnp.asarray, arrays))))]

    def _contracted(
        self, kernel: Callable[..., jax.typing.ArrayLike], operands: Sequence[jax.Array]
    ) -> jax.Array:
        layout, axis = self.layout, self.axis
        batch, rows = layout.batch.replace(axis, ""), layout.rows.replace(axis, "")
        lead = [axis] if axis else []
        matrices = [
            grouped(term, x, [*lead, batch, layout.contracted, own])
            for term, x, own in zip(
                layout.equation.inputs, map(widened, operands), (rows, layout.columns), strict=False
            )
        ]
        out = kernel(self.algebra, matrices)
        sizes = dict(layout.equation.sizes([x.shape for x in operands], self.family_id))
        if axis:
            sizes[axis] = self.algebra.components  # a symbol was compared with it
        labels = axis + batch + rows + layout.columns
        tensor = jnp.reshape(out, [sizes[label] for label in labels])
        order = [labels.index(label) for label in layout.equation.output]
        return jnp.transpose(tensor, order).astype(operands[0].dtype)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Operands of zero, one and one plus one, where these are finite, of 2, 3, 4, ... for the
        labels in their order.
        """
        dtype, rng = np.dtype(self.algebra.dtypes[0]), np.random.default_rng(0)
        zero, one = (np.asarray(f(dtype), dtype) for f in (self.algebra.zero, self.algebra.one))
        every = (zero, one, np.asarray(whole_plus(self.algebra, one, one)))
        entries = np.stack([x for x in every if np.isfinite(x).all()], -1)
        shapes = [
            [self.example_sizes[label] for label in term if label != self.axis]
            for term in self.layout.equation.inputs
        ]
        arrays = [entries[..., rng.integers(entries.shape[-1], size=shape)] for shape in shapes]
        return [
            [
                np.moveaxis(x, 0, term.index(self.axis)) if self.axis else x
                for term, x in zip(self.layout.equation.inputs, arrays, strict=True)
            ]
        ]


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
