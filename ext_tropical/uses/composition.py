"""The tropical functions composed of plain JAX: broadcast, times, reduce. Definitions to read and
to compare with.

These functions hold the array of all candidates, so a matrix product takes O(m n k) memory, and at
a tie JAX shares the gradient equally among the winners (like `ties="split"`). If an einsum is one
contraction step, the values equal those of `ext_tropical`, except for NaN, which XLA CPU's own
maximum loses for some shapes. An einsum of several steps reduces after each step, so infinities of
both signs, or 16 bits, may give other values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from tenferro_jax import plan_einsum
from tenferro_jax.einsum import parse_interleaved
from tenferro_jax.einsum.spread import on_automatic_axes, spec_of
from tenferro_jax.errors import ShapeError, Unsupported, shortened
from tenferro_jax.shapes import as_array

from ..algebra.semiring import Semiring, as_semiring
from ..algebra.shipped import max_mul, max_plus, min_max, min_plus, or_and
from ..network.eager import names_itself
from ..network.slicing import MOST_ENTRIES
from ..network.tropical_plan import Operand, no_semiring_among
from ..step.einsum_op import one_dtype, widened
from .dot_general import DotDimensionNumbers, dot_general_equation, reduction_equation

_REDUCE = {
    max_plus: jnp.max,
    min_plus: jnp.min,
    max_mul: jnp.max,
    min_max: jnp.min,
    or_and: jnp.any,
}


@names_itself
def tropical_einsum(
    equation: str | Operand,
    *operands: Operand,
    semiring: Semiring | str = max_plus,
) -> jax.Array:
    """`ext_tropical.tropical_einsum` as one broadcast product of all operands and one reduction.

    Args:
      equation: any equation of np.einsum, also interleaved.
      *operands: arrays, or nested lists of numbers.
      semiring: max_plus, min_plus, max_mul, min_max or or_and, or its name.

    Returns:
      An array with the output's labels, in the operands' dtype.

    Raises:
      InvalidConfig, ShapeError, DTypeError: the equation cannot be read, the operands do not fit,
        or there are more than 2**48 candidates.
      Unsupported: another semiring, for which JAX has no reduction.

    Cost: time and memory of the product of all labels' sizes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> a = jnp.array([[1.0, 1.0]])
      >>> print(jax.grad(lambda a: tropical_einsum("ij,kj->ik", a, jnp.zeros((1, 2))).sum())(a))
      [[0.5 0.5]]
    """
    no_semiring_among("tropical_einsum", operands)
    if not isinstance(equation, str):
        equation, operands = parse_interleaved((equation, *operands))
    semiring = as_semiring(semiring)
    if semiring not in _REDUCE:
        raise Unsupported(
            where="composition",
            given=f"semiring {semiring!r}",
            needed=f"one of {', '.join(map(repr, _REDUCE))}",
            fix="Use ext_tropical.tropical_einsum.",
        )
    where = f"tropical_einsum {shortened(equation)!r}"
    arrays = [jnp.asarray(as_array(x, f"{where}, operand {i}")) for i, x in enumerate(operands)]
    plan = plan_einsum(equation, [x.shape for x in arrays])
    dtype = one_dtype(where, semiring, [x.dtype for x in arrays], operands)
    sizes, output = dict(plan.sizes), plan.equation.output
    contracted = [label for label in sizes if label not in output]
    candidates = math.prod(size for size in sizes.values() if isinstance(size, int) and size)
    if candidates > MOST_ENTRIES:
        raise ShapeError(
            where=where,
            given=f"{candidates} candidates, the product of the sizes of {len(sizes)} labels",
            needed=f"at most {MOST_ENTRIES}: all are held at once",
            fix="Use ext_tropical.tropical_einsum, which contracts two operands at a time.",
        )
    shape = [sizes[label] for label in output]
    if 0 in (sizes[label] for label in contracted):
        return jnp.full(shape, semiring.zero(dtype))

    def composed(*arrays: jax.Array) -> jax.Array:
        spread = [
            _spread(widened(x), term, [*output, *contracted], sizes)
            for x, term in zip(arrays, plan.terms, strict=True)
        ]
        products = functools.reduce(semiring.times, spread)
        axes = tuple(range(len(output), products.ndim))
        return (_REDUCE[semiring](products, axis=axes) if axes else products).astype(dtype)

    return on_automatic_axes(composed, functools.partial(spec_of, plan))(*arrays)


def _spread(x: jax.Array, term: str, labels: Sequence[str], sizes: Mapping[str, int]) -> jax.Array:
    """x with an axis for every label, of size 1 where its term has none; the diagonal where its
    term has a label twice.
    """
    x = x.reshape(
        [sizes[label] for label in term]
    )  # without axes of size 1 that an ellipsis repeats
    for label in labels:
        while term.count(label) > 1:
            first, second = term.index(label), term.rindex(label)
            x = jnp.diagonal(x, axis1=first, axis2=second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + label
    own = [label for label in labels if label in term]
    x = jnp.transpose(x, [term.index(label) for label in own])
    return jnp.expand_dims(x, [i for i, label in enumerate(labels) if label not in term])


def tropical_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers | None = None,
    *,
    semiring: Semiring | str = max_plus,
) -> jax.Array:
    """`ext_tropical.tropical_dot_general`, composed.

    Args, Returns, Raises: as there, and Unsupported for semirings of other packages.

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.array([[1.0, 3.0], [2.0, 4.0]])
      >>> print(tropical_dot_general(a, 10 * a))
      [[23. 43.]
       [24. 44.]]
    """
    lhs, rhs = (
        as_array(x, f"tropical_dot_general, {name}") for name, x in (("lhs", lhs), ("rhs", rhs))
    )
    return tropical_einsum(
        dot_general_equation((jnp.shape(lhs), jnp.shape(rhs)), dimension_numbers),
        lhs,
        rhs,
        semiring=semiring,
    )


def min_plus_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers | None = None,
) -> jax.Array:
    """`tropical_dot_general` under min_plus.

    Args, Returns, Raises: as there.

    Example:
      >>> import jax.numpy as jnp
      >>> print(min_plus_dot_general(jnp.array([[1.0, 3.0]]), jnp.array([[10.0], [0.0]])))
      [[3.]]
    """
    return tropical_dot_general(lhs, rhs, dimension_numbers, semiring=min_plus)


def tropical_reduce_sum(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    semiring: Semiring | str = max_plus,
) -> jax.Array:
    """`ext_tropical.tropical_reduce_sum`, composed.

    Args, Returns, Raises: as there, and Unsupported for semirings of other packages.

    Example:
      >>> import jax.numpy as jnp
      >>> float(tropical_reduce_sum(jnp.array([1.0, 5.0, 2.0, 3.0])))
      5.0
    """
    array = as_array(x, "tropical_reduce_sum")
    equation, axes = reduction_equation(array.ndim, axis)
    result = tropical_einsum(equation, array, semiring=semiring)
    return jnp.expand_dims(result, axes) if keepdims else result
