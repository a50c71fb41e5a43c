"""A syntax highlighter that is learned: a conditional random field tags the characters of lines of
Python.

Each line is a chain: its log_prob is what training maximises, its best sequence tags a new line,
and its marginals are the chances of all tags. The right tags are those of Python's own tokenizer.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import graphlib
import heapq
import inspect
import io
import keyword
import pathlib
import textwrap
import tokenize
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

from ext_tropical import Chain

TAGS = ["space", "comment", "keyword", "name", "number", "operator", "string"]
COLORS = ["k", "tab:gray", "tab:purple", "k", "tab:orange", "tab:blue", "tab:green"]
NEAR = range(-3, 4)  # a tag sees so many characters around its own
CHARACTERS = 97  # those of ASCII from the blank on; the last stands for all others


class Lines(NamedTuple):
    """Lines as arrays (lines, longest): characters around each place, (..., len(NEAR)), tags, and
    which places are inside the line.
    """

    seen: np.ndarray
    tags: np.ndarray
    inside: np.ndarray


class Model(NamedTuple):
    """Scores of tags by the characters around, and of pairs of tags that follow each other."""

    seen: jax.Array
    follows: jax.Array


def lines(*modules: ModuleType) -> Lines:
    """The lines of modules, without blank ones and those of texts of several lines."""
    text: list[str] = []
    tags: list[np.ndarray] = []
    for source in map(inspect.getsource, modules):
        rows = source.splitlines()
        found = [np.zeros(len(row), int) for row in rows]
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            (first, start), (last, end) = token.start, token.end
            kind = tokenize.tok_name[token.type].lower().replace("op", "operator")
            if first != last:
                rows[first - 1 : last] = [""] * (last - first + 1)
            elif kind in TAGS:
                kind = "keyword" if keyword.iskeyword(token.string) else kind
                found[first - 1][start:end] = TAGS.index(kind)
        text += filter(str.strip, rows)
        tags += [tag for row, tag in zip(rows, found, strict=True) if row.strip()]
    size, edge = max(map(len, text)), len(NEAR) // 2
    codes = np.full((len(text), size + 2 * edge), CHARACTERS - 1)
    right, inside = np.zeros((2, len(text), size), int)
    for i, (row, tag) in enumerate(zip(text, tags, strict=True)):
        code = np.array([ord(character) - 32 for character in row])
        codes[i, edge : edge + len(row)] = np.where(code < CHARACTERS, code, CHARACTERS - 1)
        right[i, : len(row)], inside[i, : len(row)] = tag, 1
    seen = np.stack([codes[:, i : i + size] for i in range(len(NEAR))], -1)
    return Lines(seen, right, inside == 1)


def chains(model: Model, given: Lines) -> Chain:
    """Of each line, its places are times and its tags are states."""
    scores = sum(model.seen[i, given.seen[..., i]] for i in range(len(NEAR)))
    return Chain(jnp.zeros(len(TAGS)), model.follows, scores, given.inside.sum(1))


def loss(model: Model, given: Lines) -> jax.Array:
    """CRFsuite's: less log likelihood, and the sum of squares of the weights."""
    squares = sum(jnp.sum(weights**2) for weights in model)
    return squares - chains(model, given).log_prob(given.tags).sum()


def train(given: Lines, most_steps: int, chain: bool = True) -> Model:
    """The weights of least loss; without chain, all pairs of tags score 0."""
    tags = len(TAGS)
    zero = Model(jnp.zeros((len(NEAR), CHARACTERS, tags)), jnp.zeros((tags, tags)))
    start, weights = ravel_pytree(zero)
    keep = lambda flat: weights(flat)._replace(follows=weights(flat).follows * chain)  # noqa: E731
    objective = jax.jit(jax.value_and_grad(lambda flat, given: loss(keep(flat), given)))
    limit = {"maxiter": most_steps}
    found = scipy.optimize.minimize(objective, start, (given,), "L-BFGS-B", True, options=limit)
    return keep(jnp.asarray(found.x, start.dtype))


def draw(path: pathlib.Path, given: Lines, best: np.ndarray) -> None:
    """Lines in the colours of their tags; a red line is below each wrong one."""
    count = len(best)
    figure = Figure((7.2, 0.19 * count + 0.1))
    place = functools.partial(figure.text, family="monospace", fontsize=9, va="top")
    for row, column in np.argwhere(given.seen[..., len(NEAR) // 2] * given.inside):
        across, down = 0.01 + 0.0118 * column, 1 - (row + 0.4) / (count + 0.5)
        code, tag = given.seen[row, column, len(NEAR) // 2], best[row, column]
        place(across, down, chr(code + 32), color=COLORS[tag])
        if tag != given.tags[row, column]:
            place(across, down - 0.004, "_", color="red")
    figure.savefig(path, dpi=80)


def main() -> None:
    """Train with and without scores of pairs; tag two other modules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="the most of training")
    parser.add_argument("--picture", type=pathlib.Path, help="the PNG file to write")
    options = parser.parse_args()
    known, new = lines(textwrap, heapq), lines(fnmatch, graphlib)
    print(f"{len(known.tags)} lines to learn from, {len(new.tags)} to tag")
    written = new.inside & (new.tags > 0)  # without blanks
    for name, chain in (("each character alone", False), ("lines as chains", True)):
        model = train(known, options.steps, chain)
        best = np.asarray(chains(model, new).best().states)
        print(f"{name}: {(best == new.tags)[written].mean():.1%} of the characters are right")
    chance = np.asarray(chains(model, new).marginals().states.max(-1))
    wrong = best != new.tags
    print(
        f"the model gives its tags the chance {chance[written & ~wrong].mean():.2f} where they are "
        f"right, {chance[written & wrong].mean():.2f} where they are wrong"
    )
    if options.picture:
        some = slice(60, 84)
        draw(options.picture, Lines(*(part[some] for part in new)), best[some])


if __name__ == "__main__":
    main()
