"""One contraction step as an extension op: two operands, or the reduction of one."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import (
    ExtensionOp,
    ShardingRule,
    apply,
    extension_op,
    require_equal,
)
from tenferro_jax.extension.sharding import Shard

from ..algebra.semiring import (
    OURS,
    SelectiveSemiring,
    Semiring,
    SemiringKey,
    as_selective,
    require_methods,
)
from .at_winner import entries_at
from .kernels import selection
from .layout import StepOp, matmul_layout
from .shards import best_of_devices, factors_of, in_blocks
from .weighted_sum import Place, WeightedSum

SIXTEEN_BITS = ("bfloat16", "float16")


class Outputs(enum.Enum):
    """The outputs of the op."""

    VALUE = "value"
    VALUE_AND_WINNER = "value_and_winner"


class Ties(enum.Enum):
    """How the derivative is shared if several candidates are best."""

    FIRST = "first"
    SPLIT = "split"


@extension_op(package="tenferro-ext-tropical", name="einsum", version=1)
class TropicalEinsum(StepOp):
    """out[batch, rows, columns] = best over contracted of times(lhs[...], rhs[...]), or of the
    entries of a single operand.

    Attributes:
      semiring: a registered selective semiring, or its key.
      equation: one or two operands, no label twice in one; with two operands every label is in at
        least two of lhs, rhs, output.
      outputs: the value, or value and winner.
      ties: whether the first winner takes the whole derivative or all winners of a cell have equal
        shares.
    """

    semiring: SemiringKey
    equation: str
    outputs: Outputs = Outputs.VALUE
    ties: Ties = Ties.FIRST

    def __post_init__(self) -> None:
        object.__setattr__(self, "semiring", SemiringKey.of(self.semiring))
        as_selective(self.algebra, f"{self.family_id}, field semiring")
        for name, kind in (("outputs", Outputs), ("ties", Ties)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidConfig(
                    where=f"{self.family_id}, field {name}",
                    given=repr(getattr(self, name)),
                    needed=f"a member of {kind.__name__}",
                    fix=f"Pass one of {', '.join(map(str, kind))}.",
                )
        matmul_layout(self.equation)

    @property
    def algebra(self) -> SelectiveSemiring:
        """The semiring itself."""
        return self.semiring.semiring  # type: ignore[return-value]

    @property
    def output_count(self) -> int:
        """1, or 2 with the winner."""
        return 2 if self.outputs is Outputs.VALUE_AND_WINNER else 1

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype = one_dtype(
            f"{self.family_id} {self.equation!r}", self.algebra, [m.dtype for m in inputs]
        )
        sizes = self.counted_sizes(inputs)
        shape = tuple(sizes[label] for label in self.layout.equation.output)
        return (TensorMeta(dtype, shape), TensorMeta(np.dtype("int32"), shape))[: self.output_count]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        equation = self.layout.equation
        factors = factors_of(equation.inputs, [equation.output] * self.output_count)
        return ShardingRule(factors, on_device=self._on_device)

    def _on_device(self, shard: Shard, *pieces: jax.Array) -> Sequence[jax.Array]:
        contracted, equation = self.layout.contracted, self.layout.equation

        def best(*own: jax.Array) -> Sequence[jax.Array]:
            return best_of_devices(self.algebra, shard, apply(self, *own), contracted)

        if not set(contracted) & set(shard.axes):
            return best(*pieces)
        outs = self.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in pieces])
        return in_blocks(best, equation, outs, pieces)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        with_winner, last = self.output_count == 2, self.layout.contracted_last
        matrices = self._matrices(inputs)
        outs = selection.contract(
            self.algebra, matrices, with_winner=with_winner, contracted_last=last
        )
        return self._tensors(inputs, outs)

    def differentiable_form(self) -> ExtensionOp:
        """This op with the winner as second output, if the derivative follows the winner."""
        if self.ties is Ties.SPLIT:
            return self
        return dataclasses.replace(self, outputs=Outputs.VALUE_AND_WINNER)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The tangent of times at the winner, whose operands and tangents are gathered there.

        JAX transposes the gather to a scatter-add. Both are standard ops and linear in the
        tangents, so every order works. docs/maths/tropical.md derives it.
        """
        shapes = [x.shape for x in primals]
        sizes = self.layout.equation.sizes(shapes, self.family_id, require_equal)
        contracted = [sizes[label] for label in self.layout.contracted]
        if any(isinstance(size, int) and size == 0 for size in contracted):
            return (None,) * self.output_count  # no winner, no derivative
        if self.ties is Ties.SPLIT:
            return (self._shared(primals, outputs[0], tangents), None)[: self.output_count]
        active = [i for i, t in enumerate(tangents) if t is not None]

        def entry(i: int, x: Any) -> jax.Array:
            # the transpose adds in the wide dtype, because 16 bits would saturate
            return entries_at(self.equation, tuple(Place)[i], widened(x), outputs[1])

        entries = list(itertools.starmap(entry, enumerate(primals)))

        def product(*chosen: jax.Array) -> jax.Array:
            every = list(entries)
            for i, x in zip(active, chosen, strict=True):
                every[i] = x
            return functools.reduce(self.algebra.times, every)

        moving = tuple(entries[i] for i in active)
        _, out = jax.jvp(product, moving, tuple(entry(i, tangents[i]) for i in active))
        return out.astype(outputs[0].dtype), None

    def _shared(
        self,
        operands: Sequence[jax.Array],
        value: jax.Array,
        tangents: Sequence[jax.Array | None],
    ) -> jax.Array:
        """The mean of the tangents of all winners of each cell.

        This takes two sums over all candidates for one active operand, and one more for another;
        each searches the best candidate.
        """
        inputs = [*map(widened, operands), widened(value)]
        count = WeightedSum(self.semiring, self.equation)
        (total,) = apply(count, *inputs)
        moved: list[Any] = []
        for place, tangent in zip(Place, tangents, strict=False):
            if tangent is not None:
                partial = place.value[0] if len(operands) == 2 else ""
                op = dataclasses.replace(count, places=(place,), partial=partial)
                moved += apply(op, *inputs, widened(tangent))
        return (functools.reduce(jnp.add, moved) / total).astype(value.dtype)

    def eager_execute(self, *arrays: Any) -> Sequence[np.ndarray]:
        outs = selection.reference(self.algebra, list(map(np.asarray, self._matrices(arrays))))
        return [np.asarray(out) for out in self._tensors(arrays, outs[: self.output_count])]

    def _matrices(self, operands: Sequence[jax.Array]) -> list[jax.Array]:
        return self.layout.matrices(*map(widened, operands))

    def _tensors(
        self,
        operands: Sequence[jax.Array],
        matrices: Sequence[Any],
    ) -> tuple[jax.Array, ...]:
        sizes = self.layout.equation.sizes([x.shape for x in operands], self.family_id)
        value, *winner = (self.layout.tensor(matrix, sizes) for matrix in matrices)
        return value.astype(operands[0].dtype), *winner

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        form = dataclasses.replace(self, equation=self.mapped(in_axes, 0))
        return form, (0,) * self.output_count

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Operands without ties, of 2, 3, 4, ... for the labels in their order."""
        sizes = self.example_sizes
        rng = np.random.default_rng(0)
        arrays = [
            rng.normal(size=[sizes[label] for label in term])
            for term in self.layout.equation.inputs
        ]
        return [[x > 0 for x in arrays] if self.algebra.dtypes == ("bool",) else arrays]


def one_dtype(
    where: str, semiring: Semiring, dtypes: Sequence[Any], given: Sequence[Any] = ()
) -> Any:
    """The dtype of all operands; `given` are the user's arguments, whose dtypes may be wider while
    64-bit types are off.

    Raises:
      DTypeError: they differ, or the semiring does not take it.
      InvalidConfig: a method of an author's semiring returns something else in this dtype.
    """
    if len(set(dtypes)) == 1 and dtypes[0].name in semiring.dtypes:
        if not semiring.id.startswith(f"{OURS}."):
            require_methods(semiring, work_dtype(dtypes[0]))
        return dtypes[0]
    names = [dtype.name for dtype in dtypes]
    told = {name: name for name in names}
    for name, x in zip(names, given, strict=False):
        if (passed := str(getattr(x, "dtype", name))) != name:
            told[name] = f"{name} (from {passed}, while 64-bit types are off)"
    for name in names:
        if name != names[0]:
            raise DTypeError(
                where=where,
                given=f"operands of dtype {told[names[0]]} and {told[name]}",
                needed="one dtype for all",
                fix="Convert with .astype; there is no promotion, also not of Python numbers.",
            )
    raise DTypeError(
        where=where,
        given=f"dtype {told[names[0]]} under {semiring!r}",
        needed=f"one of {', '.join(semiring.dtypes)}",
        fix="Convert the operands.",
    )


def work_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which candidates are made and compared, and cotangents added."""
    return np.dtype("float32") if dtype.name in SIXTEEN_BITS else dtype


def widened(x: jax.Array) -> jax.Array:
    """An array in the dtype that steps compute in.

    A computed 16-bit array was rounded. XLA omits that rounding if widening follows at once, and
    the search would then use other operands than the caller's. The barrier prevents this.
    """
    work = work_dtype(x.dtype)
    return x if work == x.dtype else lax.optimization_barrier(x).astype(work)
