"""einsum text -> labels. Knows neither sizes nor arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..errors import ArityError, EquationError, ShapeError, UndecidedDimensionError
from ..meta import require_equal


@dataclasses.dataclass(frozen=True)
class Equation:
    """A parsed einsum equation.

    Attributes:
      text: as it was written.
      inputs: the labels of each operand.
      output: the labels of the output; without "->" those that appear once, in alphabetical order, as NumPy has it.
    """

    text: str
    inputs: tuple[str, ...]
    output: str

    @property
    def explicit(self) -> str:
        """The equation with its output and without spaces."""
        return f"{','.join(self.inputs)}->{self.output}"

    def sizes(self, shapes: Sequence[Sequence[Any]], where: str) -> Mapping[str, Any]:
        """The size of every label.

        Raises:
          ArityError: a wrong number of operands.
          ShapeError: an operand's rank differs from its labels, or a label has two sizes.
          UndecidedDimensionError: a label has two symbolic sizes that may differ.
        """
        if len(shapes) != len(self.inputs):
            raise ArityError(
                where=f"{where} {self.text!r}",
                given=f"{len(shapes)} operands",
                needed=f"{len(self.inputs)}, one for each comma-separated term",
                fix="Pass one array for each term.",
            )
        sizes: dict[str, Any] = {}
        for i, (labels, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            if len(labels) != len(shape):
                raise ShapeError(
                    where=f"{where} {self.text!r}, operand {i}",
                    given=f"shape {tuple(shape)} of rank {len(shape)}",
                    needed=f"rank {len(labels)} for labels {labels!r}",
                    fix="Correct the term or the operand.",
                )
            for axis, (label, size) in enumerate(zip(labels, shape, strict=True)):
                if label in sizes:
                    try:
                        require_equal(sizes[label], size, f"{where} {self.text!r}")
                    except UndecidedDimensionError:
                        raise
                    except ShapeError:
                        raise ShapeError(
                            where=f"{where} {self.text!r}, operand {i}, axis {axis}",
                            given=f"label {label!r} of size {size}, and of size {sizes[label]} before",
                            needed="one size for each label",
                            fix="Pass operands whose sizes agree.",
                        ) from None
                sizes[label] = size
        return sizes


def _wrong(text: str, column: int, problem: str, fix: str) -> NoReturn:
    raise EquationError(
        where=f"einsum equation, character {column}",
        given=f"{problem}\n  {text}\n  {' ' * column}^\n",
        needed="terms of letters separated by commas, and optionally '->' with the output labels, as in 'bij,bjk->bik'",
        fix=fix,
    )


def parse_equation(text: str) -> Equation:
    """Read an equation of single-letter labels; spaces are ignored.

    Raises:
      EquationError: pointing at the first wrong character.

    Example:
      >>> parse_equation("ij, jk").explicit
      'ij,jk->ik'
    """
    if not isinstance(text, str):
        needed = "a string such as 'ij,jk->ik'"
        raise EquationError(where="einsum equation", given=f"{text!r}", needed=needed, fix="Pass the equation first.")
    return _parse(text)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Equation:
    for column, character in enumerate(text):
        if character == ".":
            _wrong(text, column, "an ellipsis", "Name the batch axes with letters; the ellipsis is not supported.")
        if not (character.isalpha() and character.isascii()) and character not in " ,->":
            _wrong(text, column, f"the character {character!r}", "Remove it.")
        if character == "-" and text[column + 1 : column + 2] != ">":
            _wrong(text, column, "'-' without '>'", "Write '->'.")
        if character == ">" and text[column - 1 : column] != "-":
            _wrong(text, column, "'>' without '-'", "Write '->'.")
    left, arrow, right = text.partition("->")
    if "->" in right:
        _wrong(text, len(left) + 2 + right.index("->"), "a second '->'", "Keep one.")
    if "," in right:
        _wrong(text, len(left) + 2 + right.index(","), "a comma in the output", "An einsum has one output.")
    inputs = tuple(term.replace(" ", "") for term in left.split(","))
    known = "".join(inputs)
    if not arrow:
        output = "".join(sorted(label for label in set(known) if known.count(label) == 1))
        return Equation(text, inputs, output)
    output = right.replace(" ", "")
    for offset, label in enumerate(right):
        if label == " ":
            continue
        if label not in known:
            _wrong(text, len(left) + 2 + offset, f"output label {label!r}, which no operand has", "Use a label of an operand.")
        if label in right[:offset]:
            _wrong(text, len(left) + 2 + offset, f"output label {label!r} twice", "Name each output label once.")
    return Equation(text, inputs, output)
