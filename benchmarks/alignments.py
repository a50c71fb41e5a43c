"""Hypothesis: an alignment takes at most a fifth of what a scan over cells takes; one of symbols at
most 1.5 times what parasail takes for the score, and no more for the path.

Alignments of random sequences with one score for gaps, float32. The cells are those of two nested
lax.scan, one cell a step, differentiated by JAX; the loop is NumPy's, one row a step and one cell a
step within. Biopython and parasail are judges of the score where they are installed. Symbols are
amino acids with BLOSUM62 and affine gaps, int32; `align` is given the scores of all pairs. parasail
takes the quicker of two functions.

    python -m benchmarks.alignments [--sizes 128 512 2048] [--symbols 2000 8000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ext_tropical import align, align_symbols, log_sum_exp

from .measure import alternating, header, installed

GAP, BATCH, LOOP = -8.0, 32, 128
"""The score of a gap, how many pairs a batch has, and up to which size the loop runs."""
LETTERS = "ARNDCQEGHILKMFPSTWYV"
GAPS = {"gap": -1, "gap_open": -11}
TABLES = 4096
"""Up to which size the scores of all pairs are made."""
PEERS = {
    ("score", "global"): ("nw_striped_16", "nw_scan_16"),
    ("score", "local"): ("sw_striped_sat", "sw_striped_16"),
    ("path", "global"): ("nw_trace_striped_16", "nw_trace_scan_16"),
    ("path", "local"): ("sw_trace_striped_sat", "sw_trace_scan_16"),
}
"""parasail's functions for each question and mode."""


def by_cells(plus: Callable[[jax.Array, jax.Array], jax.Array], scores: jax.Array) -> jax.Array:
    """The score by one step of a scan for each cell."""
    gap = jnp.float32(GAP)

    def row(before: jax.Array, pairs: jax.Array) -> tuple[jax.Array, None]:
        def cell(left: jax.Array, given: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            diagonal, up, pair = given
            best = plus(plus(diagonal + pair, up + gap), left + gap)
            return best, best

        first = before[0] + gap
        _, rest = lax.scan(cell, first, (before[:-1], before[1:], pairs))
        return jnp.concatenate([first[None], rest]), None

    start = jnp.arange(scores.shape[1] + 1, dtype=jnp.float32) * gap
    return lax.scan(row, start, scores)[0][-1]


def by_loop(scores: np.ndarray) -> float:
    """The same in NumPy."""
    before = np.arange(scores.shape[1] + 1) * GAP
    for pairs in scores:
        ahead = np.maximum(before[:-1] + pairs, before[1:] + GAP)
        row = [before[0] + GAP]
        for best in ahead.tolist():
            row.append(max(best, row[-1] + GAP))
        before = np.array(row)
    return float(before[-1])


def peers(first: str, second: str) -> dict[str, Callable[[], float]]:
    """The score by libraries that are installed."""
    found: dict[str, Callable[[], float]] = {}
    if judge := installed("Bio.Align"):
        aligner = judge.PairwiseAligner(mode="global", match_score=5, mismatch_score=-4)
        aligner.gap_score = GAP
        found["Biopython"] = lambda: aligner.score(first, second)
    if parasail := installed("parasail"):
        matrix = parasail.matrix_create(LETTERS, 5, -4)
        gap = int(-GAP)
        found["parasail"] = lambda: parasail.nw_striped_32(first, second, gap, gap, matrix).score
    return found


def alignments(size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Lowest seconds by question and by way."""
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list(LETTERS), size)) for _ in range(2)]
    codes = [np.array([*map(ord, text)]) for text in texts]
    table = np.where(codes[0][:, None] == codes[1], 5, -4).astype(np.float32)
    scores = jnp.array(table)
    many = jnp.stack([scores] * BATCH)
    hard = functools.partial(by_cells, jnp.maximum)
    soft = functools.partial(by_cells, jnp.logaddexp)

    def ours(scores: jax.Array, semiring: Any = "max_plus") -> jax.Array:
        return align(scores, gap=GAP, semiring=semiring).score

    def smooth(scores: jax.Array) -> jax.Array:
        return ours(scores, log_sum_exp())

    asked: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, ways, given in (
        ("score", (ours, hard), scores),
        ("gradient", (jax.grad(ours), jax.grad(hard)), scores),
        ("log_sum_exp", (smooth, soft), scores),
        ("its gradient", (jax.grad(smooth), jax.grad(soft)), scores),
        (f"{BATCH} pairs", (jax.vmap(ours), jax.vmap(hard)), many),
    ):
        if given.size > 2**23:
            continue
        asked[name] = {
            way: functools.partial(jax.jit(f), given)
            for way, f in zip(("align", "cells"), ways, strict=True)
        }
    path = jax.jit(lambda scores: align(scores, gap=GAP).path)
    asked["path"] = {"align": lambda: path(scores)}
    asked["score"] |= peers(*texts)
    if size <= LOOP:
        asked["score"]["NumPy loop"] = lambda: by_loop(table)
    answers = {way: float(run()) for way, run in asked["score"].items()}
    if len(set(answers.values())) > 1:
        raise AssertionError(f"the scores differ: {answers}")
    runs = [run for ways in asked.values() for run in ways.values()]
    lows = iter(low for _, low in alternating(runs, repeats))
    return {name: {way: next(lows) for way in ways} for name, ways in asked.items()}


def of_symbols(size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Lowest seconds by question and by way, of symbols; nothing without parasail, which has the
    substitution matrix.
    """
    parasail = installed("parasail")
    if not parasail:
        return {}
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list(LETTERS), size)) for _ in range(2)]
    number = parasail.blosum62.mapper
    first, second = (np.array([number[ord(x)] for x in text], np.int32) for text in texts)
    matrix = parasail.blosum62.matrix.astype(np.int32)
    scores = jnp.array(matrix[first[:, None], second], jnp.float32) if size <= TABLES else None
    given = [jnp.array(x) for x in (first, second, matrix)]

    def symbols(with_path: bool, mode: str) -> Callable[[], Any]:
        how = {"mode": mode, "with_path": with_path, **GAPS}
        ask = jax.jit(lambda *xs: jax.tree.leaves(align_symbols(*xs, **how)))
        return lambda: ask(*given)

    def pairs(mode: str) -> Callable[[], Any]:
        ask = jax.jit(lambda scores: align(scores, mode=mode, **GAPS).score)
        return lambda: ask(scores)

    def peer(name: str) -> Callable[[], Any]:
        run = getattr(parasail, name)
        return lambda: run(*texts, -GAPS["gap_open"], -GAPS["gap"], parasail.blosum62)

    asked: dict[str, dict[str, Callable[[], Any]]] = {}
    for (question, mode), names in PEERS.items():
        ways = {"align_symbols": symbols(question == "path", mode)}
        if scores is not None:
            ways["align"] = pairs(mode)
        asked[f"{mode} {question}"] = ways | {name: peer(name) for name in names}
        answers = {int(ways["align_symbols"]()[0]), *(peer(name)().score for name in names)}
        if len(answers) > 1:
            raise AssertionError(f"the scores differ: {answers}")
    runs = [run for ways in asked.values() for run in ways.values()]
    lows = iter(low for _, low in alternating(runs, repeats))
    found = {name: {way: next(lows) for way in ways} for name, ways in asked.items()}
    for ways in found.values():
        peers = [way for way in ways if not way.startswith("align")]
        ways["parasail"] = min(ways.pop(way) for way in peers)
    return found


def told(name: str, ways: dict[str, float], over: str, ours: str) -> None:
    """Print a row, with the ratio of two of its ways if both are there."""
    row = "  ".join(f"{way} {low * 1e3:.2f}" for way, low in ways.items())
    ratio = f"  ({ways[over] / ways[ours]:.1f})" if over in ways else ""
    print(f"  {name:>12}: {row}{ratio}")


def main(
    sizes: Sequence[int] = (128, 512, 2048),
    repeats: int = 5,
    symbols: Sequence[int] = (2000, 8000),
) -> dict[int, dict[str, dict[str, float]]]:
    """Print and return the figures by size; of symbols under their size too."""
    print(header(__doc__))
    found = {}
    for size in sizes:
        print(f"{size} x {size}: ms; cells / align")
        found[size] = alignments(size, repeats)
        for name, ways in found[size].items():
            told(name, ways, "cells", "align")
    for size in symbols:
        print(f"{size} x {size} symbols: ms; parasail / align_symbols")
        rows = of_symbols(size, repeats)
        for name, ways in rows.items():
            told(name, ways, "parasail", "align_symbols")
        found[size] = found.get(size, {}) | {f"symbols, {name}": x for name, x in rows.items()}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=(128, 512, 2048))
    parser.add_argument("--symbols", nargs="*", type=int, default=(2000, 8000))
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    main(given.sizes, repeats=given.repeats, symbols=given.symbols)
