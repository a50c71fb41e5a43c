"""Read a graphical model in UAI format: a stream of words; line ends mean nothing, a line that
begins with c is a comment.

BAYES or MARKOV; how many variables; their numbers of values; how many factors; for each factor how
many variables and which; then for each factor how many entries its table has and the entries, the
last variable running fastest.
"""

from __future__ import annotations

import math
import pathlib
from typing import NamedTuple

import numpy as np


class UaiError(ValueError):
    """The text is not a model in UAI format; the message says where, what is needed there and what
    there is.
    """


class Network(NamedTuple):
    """A graphical model: for each variable its number of values, for each factor its variables and
    its table, float64.

    In a Bayesian network each variable is the last one of one factor, its probabilities given the
    others.
    """

    kind: str
    sizes: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    tables: tuple[np.ndarray, ...]


def read(path: pathlib.Path) -> Network:
    """The model in a file. Raises UaiError where it is broken, OSError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UaiError(
            f"{path.name}: needed text, found byte {error.object[error.start]:#04x} at "
            f"{error.start}"
        ) from error
    return parse(text, path.name)


def parse(text: str, name: str = "text") -> Network:
    """The model that a text describes; `name` is for messages. Raises UaiError."""
    words = _Words(text, name)
    kind = words.next("BAYES or MARKOV")
    if kind not in ("BAYES", "MARKOV"):
        raise words.error("BAYES or MARKOV", kind)
    sizes = tuple(
        words.integer("a number of values", 1)
        for _ in range(words.integer("the number of variables", 0))
    )
    scopes = tuple(
        _scope(words, len(sizes)) for _ in range(words.integer("the number of factors", 0))
    )
    if kind == "BAYES" and sorted(scope[-1:] for scope in scopes) != [
        (variable,) for variable in range(len(sizes))
    ]:
        raise words.error(
            "each variable as the last of one factor", f"{[scope[-1:] for scope in scopes]}"
        )
    tables = tuple(_table(words, [sizes[variable] for variable in scope]) for scope in scopes)
    words.end()
    return Network(kind, sizes, scopes, tables)


MOST_AXES = 64  # of a NumPy array


def _scope(words: _Words, variables: int) -> tuple[int, ...]:
    scope: list[int] = []
    for _ in range(
        words.integer("the number of variables of a factor", 0, min(variables, MOST_AXES))
    ):
        scope.append(words.integer("a variable", 0, variables - 1))
        if scope[-1] in scope[:-1]:
            raise words.error("a variable that the factor does not have yet", str(scope[-1]))
    return tuple(scope)


def _table(words: _Words, shape: list[int]) -> np.ndarray:
    count = math.prod(shape)
    if (found := words.integer("the number of entries of a table", 0)) != count:
        raise words.error(f"{count} entries for {shape} values", str(found))
    return np.asarray([words.weight() for _ in range(count)], np.float64).reshape(shape)


class _Words:
    """The words of a text, one after another, with their lines."""

    def __init__(self, text: str, name: str) -> None:
        self.name, self.line = name, 1
        lines = [
            (number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if not line.startswith("c")
        ]
        self.rest = ((word, number) for number, line in lines for word in line.split())

    def error(self, needed: str, found: str) -> UaiError:
        return UaiError(f"{self.name}, line {self.line}: needed {needed}, found {found[:40]}")

    def next(self, needed: str) -> str:
        word, self.line = next(self.rest, ("", self.line))
        if not word:
            raise self.error(needed, "the end")
        return word

    def end(self) -> None:
        word, self.line = next(self.rest, ("", self.line))
        if word:
            raise self.error("the end", word)

    def integer(self, needed: str, least: int, most: int = 2**31 - 1) -> int:
        word = self.next(needed)
        if word.isascii() and word.isdigit() and len(word) < 20 and least <= int(word) <= most:
            return int(word)
        raise self.error(f"{needed}, {least} ... {most}", word)

    def weight(self) -> float:
        word = self.next("an entry")
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if 0 <= value < math.inf and "_" not in word:
            return value
        raise self.error("a finite number of at least 0", word)
