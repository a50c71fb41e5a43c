"""The functions that users call."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax.extension import apply

from .einsum_op import Outputs, TropicalEinsum
from .rules import TROPICAL_RULES
from .semiring import Semiring, max_plus


def tropical_einsum(equation: str, lhs: Any, rhs: Any, *, semiring: Semiring = max_plus, accumulate: str | None = None) -> Any:
    """Tensor contraction in a tropical semiring.

    out[batch, rows, columns] = best over contracted labels of times(lhs[...], rhs[...]): under max_plus the maximum of
    sums, under min_plus the minimum of sums, under max_mul the maximum of products.

    Args:
      equation: like np.einsum for two operands, each label in at least two of lhs, rhs and output: "ij,jk->ik",
        "bij,bjk->bik", "ijk,jkl->li". Without "->" the labels that appear once, in alphabetical order.
      lhs, rhs: arrays of one dtype: float64, float32, bfloat16, float16, int32 or int64.
      semiring: max_plus, min_plus or max_mul.
      accumulate: "float32" returns float32 values for 16-bit operands, which are added and compared in float32 anyway.

    Returns:
      An array with the output's labels, in the operands' dtype. NaN exactly where a candidate is NaN; the semiring's
      zero where the contraction is empty.

    Raises:
      EquationError: the equation cannot be read or is not matmul-shaped.
      ShapeError, DTypeError, X64Error: the operands do not fit.

    Gradient: follows the winner, the first of equal candidates (smallest row-major index over the contracted labels in
    their order of first appearance); any order, forward and reverse. Integers have none.

    Cost: time b m n k, twice that when differentiated; memory O(b (m n + k (m + n))), never b m n k.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from ext_tropical import tropical_einsum
      >>> a = jnp.array([[0.0, 1.0], [2.0, 0.0]])
      >>> print(tropical_einsum("ij,jk->ik", a, a))
      [[3. 1.]
       [2. 3.]]
      >>> print(jax.grad(lambda a, b: tropical_einsum("ij,jk->ik", a, b).sum())(a, a))
      [[1. 1.]
       [2. 0.]]
    """
    op = _op(semiring, equation, Outputs.VALUE, accumulate)
    return apply(op, lhs, rhs, rules=TROPICAL_RULES)[0]


def _op(*payload: Any) -> TropicalEinsum:
    """The op, made once for each payload. What cannot be hashed is wrong anyway, and the op says how."""
    try:
        hash(payload)
    except TypeError:
        return TropicalEinsum(*payload)
    return _cached_op(*payload)


@functools.lru_cache(maxsize=1024)
def _cached_op(*payload: Any) -> TropicalEinsum:
    return TropicalEinsum(*payload)


def tropical_einsum_with_argmax(
    equation: str, lhs: Any, rhs: Any, *, semiring: Semiring = max_plus, accumulate: str | None = None
) -> TropicalResult:
    """`tropical_einsum` with the winner of every output entry.

    Args, Raises, Gradient, Cost: as `tropical_einsum`; the winners have no gradient.

    Returns:
      A TropicalResult: value, and one step with the int32 winners.

    Example:
      >>> import jax.numpy as jnp
      >>> from ext_tropical import min_plus, tropical_einsum_with_argmax
      >>> w = jnp.array([[0.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
      >>> result = tropical_einsum_with_argmax("ij,jk->ik", w, w, semiring=min_plus)
      >>> float(result.value[0, 1]), int(result.coordinates()["j"][0, 1])
      (3.0, 2)
    """
    op = _op(semiring, equation, Outputs.VALUE_AND_WINNER, accumulate)
    value, winner = apply(op, lhs, rhs, rules=TROPICAL_RULES)
    labels = op.layout.contracted
    shapes = [x.shape if hasattr(x, "shape") else jnp.asarray(x).shape for x in (lhs, rhs)]
    sizes = op.layout.equation.sizes(shapes, op.family_id)
    step = TropicalStep(labels, tuple(sizes[label] for label in labels), winner)
    return TropicalResult(value, (step,), semiring)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TropicalStep:
    """The winners of one contraction step.

    Attributes:
      labels: the contracted labels, in order of first appearance.
      shape: their sizes.
      winner: int32, shape of the step's output; row-major index over `shape`, from 0; -1 where a
        contracted size is 0.
    """

    labels: str = dataclasses.field(metadata={"static": True})
    shape: tuple[Any, ...] = dataclasses.field(metadata={"static": True})
    winner: Any

    def coordinates(self) -> Mapping[str, Any]:
        """For each contracted label its index at the winner: int32, shape of the step's output; -1 where a contracted size is 0."""
        rest, found = self.winner, {}
        for label, size in reversed(list(zip(self.labels, self.shape, strict=True))):
            extent = jnp.maximum(jnp.asarray(size, jnp.int32), 1)
            found[label] = jnp.where(self.winner < 0, -1, rest % extent)
            rest = rest // extent
        return {label: found[label] for label in self.labels}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TropicalResult:
    """Value and winners of a tropical einsum; a pytree.

    Attributes:
      value: the result.
      steps: one TropicalStep for each contraction step, here one.
      semiring: the algebra.
    """

    value: Any
    steps: tuple[TropicalStep, ...]
    semiring: Semiring = dataclasses.field(metadata={"static": True})

    @property
    def winner(self) -> Any:
        """The winners of the last step."""
        return self.steps[-1].winner

    @property
    def feasible(self) -> Any:
        """Boolean, shape of the value: False where the value is the semiring's zero, that is where no candidate counts."""
        return self.value != jnp.asarray(self.semiring.zero(self.value.dtype))

    def coordinates(self) -> Mapping[str, Any]:
        """For each contracted label its index at the winner: int32, shape of the value."""
        return self.steps[-1].coordinates()
