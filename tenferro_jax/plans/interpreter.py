"""A plan on arrays, step by step. The algebra comes from outside: how to contract, and how to
multiply entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from ..dimensions import SymDim
from ..ops.indexing import Gather
from ..shapes import Arrays
from .plan import Plan, Step

Contract: TypeAlias = Callable[[Arrays, Sequence[str], str], jax.Array]
"""(one or two operands, their labels without repetition, the labels of the result) -> the result;
at least one label is contracted.
"""


def run_plan(
    plan: Plan, operands: Arrays, evaluate: Callable[[Step, list[jax.Array]], jax.Array]
) -> jax.Array:
    """The result of a plan, with the axes of its output.

    Args:
      plan: from `plan_einsum`.
      operands: with the shapes of the plan.
      evaluate: a step of the plan on its operands, a list of its own.
    """
    values: list[jax.Array | None] = [
        *without_repeated_axes(operands, plan.terms, dict(plan.sizes))
    ]
    labels = plan.terms[-1]
    for step in plan.steps:
        inputs = [values[i] for i in step.operands]
        for i in step.operands:
            values[i] = None  # read once, so that outside jit its memory is free again
        values.append(evaluate(step, inputs))  # type: ignore[arg-type]
        labels = step.result
    return transposed(values[-1], labels, plan.equation.output)  # type: ignore[arg-type]


def run_step(
    inputs: list[jax.Array],
    terms: Sequence[str],
    result: str,
    contract: Contract,
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """One step of a plan: diagonals of repeated labels, then a contraction, a transpose or a
    product.

    Args:
      inputs: one or two arrays; the list may be changed.
      terms: their labels.
      result: the labels of the result.
      contract: for a step that contracts labels.
      multiply: of two arrays that broadcast, for a step that contracts none.
    """
    if len(inputs) == 1:  # a plan takes diagonals before it joins two operands
        inputs[0], term = diagonal(inputs[0], terms[0])
        terms = (term,)
    if any(label not in result for label in terms[0]):
        return contract(inputs, terms, result)
    if len(inputs) == 1:
        return transposed(inputs[0], terms[0], result)
    return multiply(*(_spread(x, term, result) for x, term in zip(inputs, terms, strict=True)))


def without_repeated_axes(
    operands: Arrays, terms: Sequence[str], sizes: Mapping[str, SymDim]
) -> list[jax.Array]:
    """The operands without axes of size 1 that are longer in another one.

    NumPy arrays stay what they are: outside jit native kernels read them, and JAX converts them
    where it computes.
    """
    kept = []
    for x, term in zip(operands, terms, strict=True):
        shape = tuple(sizes[label] for label in term)
        kept.append(x.reshape(shape) if len(term) < x.ndim else x)
    return kept


def transposed(x: jax.Array, labels: str, wanted: str) -> jax.Array:
    """x with its axes in another order; untouched if the order is the same."""
    return x if labels == wanted else jnp.transpose(x, tuple(map(labels.index, wanted)))


def _spread(x: jax.Array, term: str, result: str) -> jax.Array:
    """x with the axes of the result in order; axes that x lacks have size 1."""
    x = transposed(x, term, "".join(label for label in result if label in term))
    return jnp.expand_dims(x, [i for i, label in enumerate(result) if label not in term])


def diagonal(x: jax.Array, term: str) -> tuple[jax.Array, str]:
    """The entries whose indices agree on all axes of a label, for every label; each label once, in
    order of first appearance.
    """
    labels = "".join(dict.fromkeys(term))
    repeated = "".join(label for label in labels if term.count(label) > 1)
    if not repeated:
        return x, term
    # One gather of these entries alone: its indices run over the repeated labels, its windows over
    # the others.
    axes = tuple(i for i, label in enumerate(term) if label in repeated)
    shape = tuple(x.shape[term.index(label)] for label in repeated)
    index = [lax.broadcasted_iota(jnp.int32, shape, repeated.index(term[i])) for i in axes]
    windows = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    offsets = tuple(i for i, label in enumerate(labels) if label not in repeated)
    return Gather(offsets, axes, axes, windows).apply(x, jnp.stack(index, -1)), labels
