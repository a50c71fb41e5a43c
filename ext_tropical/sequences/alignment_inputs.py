"""What functions about alignments take: the arrays of one alignment by name, and what they read of
the op that asks.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np


class Move(enum.IntEnum):
    """A column of an alignment, as a move from node to node; alignments.cc has the same numbers. At
    node (i, j) i elements of the first sequence and j of the second are behind.

    Attributes:
      PAIR: from (i - 1, j - 1).
      FIRST: from (i - 1, j).
      SECOND: from (i, j - 1).
      START: none, because the alignment begins at the node.
    """

    PAIR = 0
    FIRST = 1
    SECOND = 2
    START = 3


class Gaps(enum.Enum):
    """What a column without a pair counts."""

    WARPED = "it is a pair too, which repeats an element of one sequence"
    LINEAR = "gap, each"
    AFFINE = "gap_open the first of a gap, gap the others"


class FreeEnd(enum.StrEnum):
    """An end of a sequence whose elements may be left out of an alignment, for no score."""

    FIRST_BEGIN = "first begin"
    FIRST_END = "first end"
    SECOND_BEGIN = "second begin"
    SECOND_END = "second end"


class AlignmentOpLike(Protocol):
    """What functions about alignments read of their op, which is one of `alignment_op`: a protocol,
    because that module imports this one.
    """

    @property
    def family_id(self) -> str:
        """The op."""

    @property
    def algebra(self) -> Any:
        """The semiring."""

    @property
    def warps(self) -> bool:
        """Whether every column is a pair or repeats one of its elements."""

    @property
    def affine(self) -> bool:
        """Whether a gap's first element has a score of its own."""

    @property
    def gaps(self) -> Gaps:
        """What a column without a pair counts."""

    @property
    def local(self) -> bool:
        """Whether stretches of the sequences are aligned."""

    @property
    def free(self) -> Sequence[str]:
        """The free ends, by the values of `FreeEnd`."""

    @property
    def band(self) -> int:
        """The greatest |i - j|; -1 for none."""


class AlignmentInputs(NamedTuple):
    """The arrays of one alignment of sequences of m and n elements.

    Attributes:
      scores: (m, n), of the pairs.
      gap: a scalar, of an element in a gap.
      gap_open: a scalar, of the first element of a gap.
      lengths: int32 (2,), how many elements of each sequence count; None if all do.
    """

    scores: jax.Array
    gap: jax.Array
    gap_open: jax.Array
    lengths: jax.Array | None = None


class SymbolInputs(NamedTuple):
    """The arrays of one alignment of sequences of m and n symbols, of k and l kinds.

    Attributes:
      first: int32 (m,), the symbols of the first sequence, from 0 to k - 1.
      second: int32 (n,), those of the second sequence, from 0 to l - 1.
      substitution: (k, l), the score of each pair of symbols.
      gap: a scalar, of an element in a gap.
      gap_open: a scalar, of the first element of a gap.
      lengths: int32 (2,), how many elements of each sequence count.
    """

    first: jax.Array | np.ndarray
    second: jax.Array | np.ndarray
    substitution: jax.Array
    gap: jax.Array
    gap_open: jax.Array
    lengths: jax.Array | np.ndarray
