"""Models in the UAI format of the inference competitions: a stream of words, in which line ends
mean nothing and a line that begins with c is a comment.

BAYES or MARKOV; how many variables; their numbers of values; how many factors; for each factor how
many variables and which; then for each factor how many entries its table has and the entries, the
last variable running fastest. A file of evidence has the number of observed variables, then each of
them with its value; files of 2008 have the number of samples, 1, before that.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import ArtifactError

from .variables import as_floats

MOST_AXES = 64
"""Of a NumPy array."""


def read(
    path: str | os.PathLike[str],
) -> tuple[tuple[tuple[int, ...], ...], list[np.ndarray]]:
    """The variables of each factor in a file, and the natural logarithms of its entries, float64; a
    variable that no factor has gets a factor of ones.

    Raises:
      ArtifactError: the text is no model; with line and column.
      OSError: the file cannot be read.
    """
    words = _Words(path)
    kind = words.next("BAYES or MARKOV")
    if kind not in ("BAYES", "MARKOV"):
        raise words.error("BAYES or MARKOV")
    sizes = [
        words.integer("a number of values", 1)
        for _ in range(words.integer("the number of variables", 0))
    ]
    scopes = [_scope(words, len(sizes)) for _ in range(words.integer("the number of factors", 0))]
    if kind == "BAYES" and sorted(s[-1:] for s in scopes) != [(x,) for x in range(len(sizes))]:
        raise words.error("each variable as the last of one factor of a Bayesian network")
    tables = [_table(words, [*map(sizes.__getitem__, scope)]) for scope in scopes]
    words.end()
    for variable in sorted(set(range(len(sizes))) - {x for scope in scopes for x in scope}):
        scopes.append((variable,))
        tables.append(np.ones(sizes[variable]))
    with np.errstate(divide="ignore"):
        return tuple(scopes), [np.log(table) for table in tables]


def read_evidence(path: str | os.PathLike[str]) -> dict[str | int, int]:
    """The value of each observed variable in a file.

    Raises:
      ArtifactError: the text is no evidence; with line and column.
      OSError: the file cannot be read.
    """
    words = _Words(path)
    count = words.integer("the number of observed variables", 0)
    if count == 1 and len(words.found) % 2 == 1:  # with the end
        count = words.integer("the number of observed variables", 0)
    observed: dict[str | int, int] = {}
    for _ in range(count):
        variable = words.integer("a variable", 0)
        if variable in observed:
            raise words.error("a variable that was not named before")
        observed[variable] = words.integer("a value", 0)
    words.end()
    return observed


def write(
    path: str | os.PathLike[str], scopes: Sequence[Sequence[int]], scores: Sequence[ArrayLike]
) -> None:
    """Write a model, MARKOV, whose entries are exp(score) in as many digits as they need; of the
    least integer 0.

    Raises:
      ArtifactError: an entry is not finite, or 0 though its score is finite.
      OSError: the file cannot be written.
    """
    logs = [as_floats(np.asarray(x)).astype(np.float64) for x in scores]
    with np.errstate(over="ignore"):
        tables = [np.exp(x) for x in logs]
    for i, (table, given) in enumerate(zip(tables, logs, strict=True)):
        lost = (table == 0) & (given > -np.inf)
        if not np.isfinite(table).all() or lost.any():
            raise ArtifactError(
                where=f"{os.fspath(path)}, table {i}",
                given=f"scores of {np.min(given)} to {np.max(given)}",
                needed="scores whose exp is finite, and above 0 where they are above -inf",
                fix="Subtract the largest score of the table from all its entries.",
            )
    sizes = {
        variable: size
        for scope, table in zip(scopes, tables, strict=True)
        for variable, size in zip(scope, table.shape, strict=True)
    }
    lines = ["MARKOV", str(len(sizes)), " ".join(str(sizes[x]) for x in sorted(sizes))]
    lines += [str(len(scopes)), *(" ".join(map(str, (len(scope), *scope))) for scope in scopes)]
    for table in tables:
        lines += ["", str(table.size), " ".join(repr(float(x)) for x in table.ravel())]
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _scope(words: _Words, variables: int) -> tuple[int, ...]:
    scope: list[int] = []
    most = min(variables, MOST_AXES)
    for _ in range(words.integer("the number of variables of a factor", 0, most)):
        scope.append(words.integer("a variable", 0, variables - 1))
        if scope[-1] in scope[:-1]:
            raise words.error("a variable that the factor does not have yet")
    return tuple(scope)


def _table(words: _Words, shape: list[int]) -> np.ndarray:
    count = math.prod(shape)
    words.integer(f"{count} entries for {shape} values", count, count)
    return np.asarray([words.weight() for _ in range(count)], np.float64).reshape(shape)


class _Words:
    """The words of a file, one after another, with their places.

    Attributes:
      found: (word, line, column), from 1; then the end.
      at: how many were read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.at = pathlib.Path(path), 0
        self.found: list[tuple[str, int, int]] = []
        lines = self.path.read_text("utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            words = [] if line.startswith("c") else re.finditer(r"\S+", line)
            self.found += [(word.group(), number, word.start() + 1) for word in words]
        self.found.append(("the end", len(lines), 1))

    def error(self, needed: str) -> ArtifactError:
        """The error for the word that was read last."""
        word, line, column = self.found[self.at - 1]
        where = f"{self.path}, line {line}, column {column}"
        return ArtifactError(where=where, given=word[:40], needed=needed)

    def next(self, needed: str) -> str:
        self.at += 1
        if self.at == len(self.found):
            raise self.error(needed)
        return self.found[self.at - 1][0]

    def end(self) -> None:
        self.at += 1
        if self.at < len(self.found):
            raise self.error("the end")

    def integer(self, needed: str, least: int, most: int = 2**31 - 1) -> int:
        word = self.next(needed)
        if word.isascii() and word.isdigit() and len(word) < 20 and least <= int(word) <= most:
            return int(word)
        raise self.error(needed if least == most else f"{needed}, {least} to {most}")

    def weight(self) -> float:
        word = self.next("an entry")
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if 0 <= value < math.inf and "_" not in word:
            return value
        raise self.error("a finite number of at least 0")
