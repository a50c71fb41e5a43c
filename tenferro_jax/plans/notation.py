"""einsum text -> labels, without sizes or arrays."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opt_einsum.parser import gen_unused_symbols

from ..dimensions import SymDim, are_equal, require_equal
from ..errors import InvalidConfig, ShapeError, counted, require_kind, shortened


@dataclasses.dataclass(frozen=True)
class Equation:
    """A parsed einsum equation.

    Attributes:
      text: as it was written.
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


def parse_equation(text: str, ranks: tuple[int, ...] | None = None) -> Equation:
    """Read an equation; spaces are ignored.

    A label is one character: a letter of any alphabet, or any character of `opt_einsum.get_symbol`,
    from U+00C0.

    Args:
      text: the equation.
      ranks: of the operands, which tell how many axes an ellipsis stands for: it becomes labels
        that the equation lacks. Without "->" these come first in the output, as in NumPy. None
        refuses an ellipsis.

    Raises:
      InvalidConfig: naming the first wrong character or label; or the numbers of terms and ranks
        differ.
      ShapeError: the rank of an operand is smaller than the number of labels beside the ellipsis of
        its term.

    Example:
      >>> parse_equation("ij, jk").explicit
      'ij,jk->ik'
      >>> parse_equation("...ij,...jk", (4, 3)).explicit
      'abij,bjk->abik'
    """
    needed = "a string such as 'ij,jk->ik'"
    return _parse(
        require_kind(text, str, "einsum equation", needed, "Pass the equation first."), ranks
    )


def _is_label(character: str) -> bool:
    """A letter, or from U+00C0 on, as in `get_symbol`, any character that is no surrogate."""
    return character.isalpha() or "\u00c0" <= character < "\ud800" or character >= "\ue000"


@functools.lru_cache(maxsize=1024)
def _parse(text: str, ranks: tuple[int, ...] | None) -> Equation:
    left, arrow, output = text.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, output):
        labels = term if ranks is None else term.replace("...", "", 1)
        if wrong := [c for c in labels if not _is_label(c)]:
            raise _wrong(text, f"the character {wrong[0]!r} in {term!r}")
    inputs, axes = (tuple(terms), "") if ranks is None else _expanded(text, terms, ranks)
    letters = collections.Counter("".join(terms).replace(".", ""))
    if not arrow:
        free = sorted(label for label, count in letters.items() if count == 1)
        return Equation(text, inputs, axes + "".join(free))
    for label in output.replace(".", ""):
        if label not in letters:
            raise _wrong(text, f"output label {label!r} that no operand has")
        if output.count(label) > 1:
            raise _wrong(text, f"output label {label!r} twice")
    if axes and "..." not in output:
        raise _wrong(text, "an ellipsis in the operands but not in the output")
    return Equation(text, inputs, output.replace("...", axes))


def _expanded(
    text: str, terms: Sequence[str], ranks: tuple[int, ...]
) -> tuple[tuple[str, ...], str]:
    """The terms with labels for their ellipsis, and the labels of the longest one."""
    if len(terms) != len(ranks):
        raise _other_count(f"einsum {shortened(text)!r}", len(ranks), len(terms))
    counts = []
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        counts.append(rank - len(term) + 3 if "..." in term else 0)
        if counts[-1] < 0:
            raise ShapeError(
                where=f"einsum {shortened(text)!r}, operand {i}",
                given=f"rank {rank}",
                needed=f"at least rank {len(term) - 3} for {term!r}",
            )
    axes = "".join(gen_unused_symbols(text, max(counts)))
    inputs = [
        term.replace("...", axes[len(axes) - count :])
        for term, count in zip(terms, counts, strict=True)
    ]
    return tuple(inputs), axes


def _wrong(text: str, problem: str) -> InvalidConfig:
    return InvalidConfig(
        where=f"einsum {shortened(text)!r}",
        given=problem,
        needed="terms of letters separated by commas, and optionally '->' with each output label "
        "once, as in 'bij,bjk->bik'",
    )


def _other_count(where: str, given: int, needed: int) -> InvalidConfig:
    return InvalidConfig(
        where=where,
        given=counted(given, "operand"),
        needed=f"{needed}, one for each comma-separated term",
    )
