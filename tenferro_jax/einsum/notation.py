"""einsum text -> labels, without sizes or arrays."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from opt_einsum import get_symbol

from ..dimensions import SymDim, are_equal, require_equal
from ..errors import InvalidConfig, ShapeError, counted, require_kind, shortened


@dataclasses.dataclass(frozen=True)
class Equation:
    """A parsed einsum equation.

    Attributes:
      text: as it was written; the interleaved form as "0 1,1 2->0 2".
      inputs: the labels of each operand.
      output: the labels of the output; without "->" those that appear once, in the order of their
        code points, as in NumPy.
    """

    text: str
    inputs: tuple[str, ...]
    output: str

    @property
    def explicit(self) -> str:
        """The equation with its output and without spaces."""
        return f"{','.join(self.inputs)}->{self.output}"

    @property
    def integers(self) -> dict[str, int]:
        """The integer of each label, if it was written in the interleaved form."""
        if any(map(str.isalpha, self.text)):
            return {}
        numbers = sorted(set(map(int, re.findall(r"\d+", self.text))))
        return {get_symbol(i): number for i, number in enumerate(numbers)}

    def shown(self, text: str) -> str:
        """An equation of some of its labels, with integers if it was written with integers."""
        names = self.integers
        if not names:
            return text
        terms = [
            " ".join(str(names.get(label, label)) for label in re.findall(r"\.\.\.|.", term))
            for term in re.split(",|->", text)
        ]
        return f"{','.join(terms[:-1])}->{terms[-1]}"

    def sizes(
        self,
        shapes: Sequence[Sequence[SymDim]],
        where: str,
        compare: Callable[[SymDim, SymDim], None] | None = None,
    ) -> Mapping[str, SymDim]:
        """The size of every label.

        Args:
          shapes: the shape of each operand.
          where: the text before the equation in errors.
          compare: raises if two sizes of a label differ, such as the `require_equal` of extensions,
            which may keep a guard.

        Raises:
          InvalidConfig: a wrong number of operands.
          ShapeError: an operand's rank differs from its labels, or a label has two sizes; or a
            label has two symbolic sizes that may differ.
        """
        where = f"{where} {shortened(self.text)!r}"
        if len(shapes) != len(self.inputs):
            raise _other_count(where, len(shapes), len(self.inputs))
        same = compare or functools.partial(require_equal, where=where)
        sizes: dict[str, Any] = {}
        for i, (labels, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            if len(labels) != len(shape):
                raise ShapeError(
                    where=f"{where}, operand {i}",
                    given=f"shape {tuple(shape)} of rank {len(shape)}",
                    needed=f"rank {len(labels)} for labels {labels!r}",
                )
            for axis, (label, size) in enumerate(zip(labels, shape, strict=True)):
                if label in sizes:
                    try:
                        same(sizes[label], size)
                    except ShapeError:
                        if are_equal(sizes[label], size) is None:
                            raise  # undecided: the text has the constraint to add
                        first = next(j for j, term in enumerate(self.inputs) if label in term)
                        raise ShapeError(
                            where=f"{where}, operand {i}, axis {axis}",
                            given=f"label {label!r} of size {size}, and of size {sizes[label]} "
                            f"before, in operand {first}",
                            needed="one size for each label",
                        ) from None
                sizes[label] = size
        return sizes


def _wrong(text: str, column: int, problem: str, fix: str) -> NoReturn:
    shown, place = text, column
    if len(text) > 80:  # the part around the character
        start = max(column - 40, 0)
        shown, place = f"...{text[start : column + 40]}...", column - start + 3
    raise InvalidConfig(
        where=f"einsum equation, character {column}",
        given=problem,
        needed="terms of letters separated by commas, and optionally '->' with the output labels, "
        "as in 'bij,bjk->bik'",
        fix=f"{fix}\n  {shown}\n  {' ' * place}^",
    )


def parse_equation(text: str, ranks: tuple[int, ...] | None = None) -> Equation:
    """Read an equation; spaces are ignored.

    A label is one character: a letter of any alphabet, or any character of `opt_einsum.get_symbol`,
    from U+00C0.

    Args:
      text: the equation.
      ranks: of the operands, which tell how many axes an ellipsis stands for: it becomes labels,
        with `axis_label(0)` for the last axis. Without "->" these come first in the output, as in
        NumPy. None refuses an ellipsis.

    Raises:
      InvalidConfig: pointing at the first wrong character; or the numbers of terms and ranks
        differ, and a term has an ellipsis.
      ShapeError: the rank of an operand is smaller than the number of labels beside the ellipsis of
        its term.

    Example:
      >>> parse_equation("ij, jk").explicit
      'ij,jk->ik'
      >>> parse_equation("...ij,...jk", (4, 3)).explicit
      '10ij,0jk->10ik'
    """
    needed = "a string such as 'ij,jk->ik'"
    return _parse(
        require_kind(text, str, "einsum equation", needed, "Pass the equation first."), ranks
    )


def parse_interleaved(arguments: Sequence[object]) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of einsum's interleaved form.

    Args:
      arguments: operand, labels, operand, labels, ..., and optionally the labels of the output.
        Labels are a sequence of integers >= 0, possibly with an Ellipsis. Without output labels the
        output has the axes of the ellipsis, then the labels that appear once in ascending order, as
        in NumPy.

    Returns:
      The equation, in which the n-th smallest integer is the n-th symbol of opt_einsum, and the
      operands unchanged.

    Raises:
      InvalidConfig: no operand, or invalid labels.

    Example:
      >>> parse_interleaved(["x", [0, 1], "y", [1, 7]])
      ('ab,bc->ac', ('x', 'y'))
      >>> parse_interleaved(["x", [..., 3, 2], [..., 2]])
      ('...ba->...a', ('x',))
    """
    *pairs, output = arguments if len(arguments) % 2 else (*arguments, None)
    operands = tuple(pairs[::2])
    if not operands:
        raise InvalidConfig(
            where="einsum",
            given=f"{len(arguments)} arguments; the first is not text",
            needed="an equation first, or operands with their labels: einsum(a, [0, 1], b, [1, "
            "2], [0, 2])",
            fix="Pass the equation first.",
        )
    terms = [_integers(labels, f"operand {i}") for i, labels in enumerate(pairs[1::2])]
    count = collections.Counter(itertools.chain(*terms))
    if output is None:
        result = sorted(label for label, times in count.items() if times == 1 or label == _DOTS)
    else:
        result = _integers(output, "the output")
    labels = sorted({*count, *result} - {_DOTS})
    symbols = {_DOTS: "..."} | {label: get_symbol(i) for i, label in enumerate(labels)}
    *inputs, last = ("".join(map(symbols.__getitem__, term)) for term in (*terms, result))
    return f"{','.join(inputs)}->{last}", operands


_DOTS = -1
"""Stands for an Ellipsis among integers, before all of them."""


def _integers(labels: Any, whose: str) -> list[int]:
    try:
        term = [_DOTS if label is ... else operator.index(label) for label in labels]
        if any(number < 0 and label is not ... for number, label in zip(term, labels, strict=True)):
            raise ValueError("negative labels")
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            where=f"einsum, labels of {whose}",
            given=f"{type(labels).__name__}: {error}",
            needed="an equation as text first, or after each operand a sequence of non-negative "
            "integers, possibly with an Ellipsis",
            fix="Pass the equation first, or alternate operands and labels: einsum(a, [0, 1], b, "
            "[1, 2], [0, 2]).",
        ) from error
    return term


def axis_label(axis: int) -> str:
    """The label of an ellipsis axis, counted from the last one; never a character that a user can
    write.

    Example:
      >>> axis_label(0), axis_label(9), axis_label(10).isascii()
      ('0', '9', False)
    """
    return str(axis) if axis < 10 else chr(ord(_FIRST_PRIVATE) + axis)


_FIRST_PRIVATE = "\U00100000"
"""Plane 16, the last one, is private: get_symbol reaches it after a million labels."""


def _is_label(character: str) -> bool:
    """A letter, or from U+00C0 on, as in `get_symbol`, any character that is not private and not a
    surrogate.
    """
    return (
        character.isalpha()
        or "\u00c0" <= character < "\ud800"
        or "\ue000" <= character < _FIRST_PRIVATE
    )


_MISTAKES = (
    (r"(-)(?!>)", "'-' without '>'", "Write '->'."),
    (r"(?<!-)(>)", "'>' without '-'", "Write '->'."),
    (r"->.*(->)", "a second '->'", "Keep one."),
    (r"->.*(,)", "a comma in the output", "An einsum has one output."),
    (r"(?<!\.)(?:\.{3})*(\.{1,2})(?!\.)", "a dot that is not part of '...'", "Write three dots."),
    (r"\.{3}[^,>]*?(\.{3})", "a second ellipsis in one term", "Keep one."),
)
"""(pattern, what its first group is, what to do)."""


def _require_readable(text: str, may_have_ellipsis: bool) -> None:
    """Refuse what no equation has, at the first such character."""
    found = [
        (match.start(1), problem, fix)
        for pattern, problem, fix in _MISTAKES
        if (match := re.search(pattern, text))
    ]
    found += [
        (column, f"the character {character!r}", "Remove it.")
        for column, character in enumerate(text)
        if not _is_label(character) and character not in " ,->."
    ]
    if "." in text and not may_have_ellipsis:
        fix = "Name the batch axes with letters; the ellipsis is not supported."
        found.append((text.index("."), "an ellipsis", fix))
    if found:
        _wrong(text, *min(found))


@functools.lru_cache(maxsize=1024)
def _parse(text: str, ranks: tuple[int, ...] | None) -> Equation:
    _require_readable(text, ranks is not None)
    left, arrow, output = text.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = collections.Counter(left.replace(".", "").replace(",", ""))
    inputs, axes = (
        _expanded(text, terms, ranks) if ranks is not None and "." in text else (tuple(terms), "")
    )
    if not arrow:
        free = sorted(label for label, count in letters.items() if count == 1)
        return Equation(text, inputs, axes + "".join(free))
    start = text.index("->") + 2
    for column, label in enumerate(text[start:], start):
        if label in " .":
            continue
        if label not in letters:
            problem = f"output label {label!r} that no operand has"
            _wrong(text, column, problem, "Use a label of an operand.")
        if label in text[start:column]:
            _wrong(text, column, f"output label {label!r} twice", "Name each output label once.")
    if axes and "." not in output:
        _wrong(
            text,
            text.index("..."),
            "an ellipsis in the operands but not in the output",
            "Write '...' in the output, or name the axes to sum.",
        )
    return Equation(text, inputs, output.replace("...", axes))


def _expanded(
    text: str, terms: Sequence[str], ranks: tuple[int, ...]
) -> tuple[tuple[str, ...], str]:
    """The terms with labels for their ellipsis, and the labels of the longest one."""
    if len(terms) != len(ranks):
        raise _other_count(f"einsum {shortened(text)!r}", len(ranks), len(terms))
    inputs, axes = [], ""
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        if "..." in term:
            count = rank - len(term) + 3
            if count < 0:
                raise ShapeError(
                    where=f"einsum {shortened(text)!r}, operand {i}",
                    given=f"rank {rank}",
                    needed=f"at least rank {len(term) - 3} for {term!r}",
                )
            own = "".join(map(axis_label, reversed(range(count))))
            axes = max(axes, own, key=len)
            term = term.replace("...", own)
        inputs.append(term)
    return tuple(inputs), axes


def _other_count(where: str, given: int, needed: int) -> InvalidConfig:
    return InvalidConfig(
        where=where,
        given=counted(given, "operand"),
        needed=f"{needed}, one for each comma-separated term",
    )
