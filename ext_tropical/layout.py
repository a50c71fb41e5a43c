"""Any matmul-shaped equation -> batched matrices and back.

Both operands take the same form (batch, contracted, own): the left one's own labels are the rows, the right one's the
columns, of the result (batch, rows, columns).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from tenferro_jax import Equation, EquationError, parse_equation


@dataclasses.dataclass(frozen=True)
class MatmulLayout:
    """The roles of an equation's labels, each a string of labels in a fixed order.

    Attributes:
      equation: the parsed equation.
      batch: in both operands and the output.
      rows: in the left operand and the output only.
      columns: in the right operand and the output only.
      contracted: in both operands and not in the output, in order of first appearance: the winner's row-major order.
    """

    equation: Equation
    batch: str
    rows: str
    columns: str
    contracted: str

    def matrices(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """The operands as (batch, contracted, rows) and (batch, contracted, columns)."""
        left, right = self.equation.inputs
        return self._matrix(left, lhs, self.rows), self._matrix(right, rhs, self.columns)

    def _matrix(self, labels: str, x: Any, own: str) -> Any:
        size = dict(zip(labels, x.shape, strict=True))
        groups = (self.batch, self.contracted, own)
        return jnp.transpose(x, [labels.index(label) for label in "".join(groups)]).reshape([product(size, g) for g in groups])

    def tensor(self, matrix: Any, sizes: Mapping[str, Any]) -> Any:
        """A (batch, rows, columns) array in the shape and order of the equation's output."""
        labels = self.batch + self.rows + self.columns
        return jnp.transpose(matrix.reshape([sizes[label] for label in labels]), [labels.index(label) for label in self.equation.output])

    def matrix(self, tensor: Any) -> Any:
        """The inverse of `tensor`."""
        output = self.equation.output
        size = dict(zip(output, tensor.shape, strict=True))
        groups = (self.batch, self.rows, self.columns)
        return jnp.transpose(tensor, [output.index(label) for label in "".join(groups)]).reshape([product(size, g) for g in groups])


def product(sizes: Mapping[str, Any], labels: Sequence[str]) -> Any:
    """The product of some labels' sizes; 1 for none."""
    return math.prod((sizes[label] for label in labels), start=1)


def matmul_layout(text: str) -> MatmulLayout:
    """Sort the labels of a two-operand equation into batch, rows, columns and contracted.

    Raises:
      EquationError: the equation cannot be read, has not two operands, repeats a label inside an operand, or has a
        label that neither the other operand nor the output has.

    Example:
      >>> layout = matmul_layout("bij,bjk->bik")
      >>> layout.batch, layout.rows, layout.columns, layout.contracted
      ('b', 'i', 'k', 'j')
    """
    return _sorted(parse_equation(text))


@functools.lru_cache(maxsize=1024)
def _sorted(equation: Equation) -> MatmulLayout:
    text = equation.text
    if len(equation.inputs) != 2:
        raise _refusal(text, 0, f"{len(equation.inputs)} operands", "Contract two operands at a time.")
    left, right = equation.inputs
    for term, other, name in ((left, right, 0), (right, left, 1)):
        for label in term:
            if term.count(label) > 1:
                raise _refusal(
                    text, text.index(label), f"label {label!r} twice in operand {name}", "Take the diagonal first: jnp.diagonal."
                )
            if label not in other and label not in equation.output:
                raise _refusal(text, text.index(label), f"label {label!r} in operand {name} alone", "Reduce that operand over it first.")
    batch = "".join(label for label in equation.output if label in left and label in right)
    rows = "".join(label for label in equation.output if label not in right)
    columns = "".join(label for label in equation.output if label not in left)
    contracted = "".join(label for label in left if label not in equation.output)
    return MatmulLayout(equation, batch, rows, columns, contracted)


def _refusal(text: str, column: int, problem: str, fix: str) -> EquationError:
    return EquationError(
        where=f"tropical einsum equation, character {column}",
        given=f"{problem}\n  {text}\n  {' ' * column}^\n",
        needed="a matmul-shaped equation: two operands, every label in at least two of lhs, rhs and output",
        fix=fix,
    )
