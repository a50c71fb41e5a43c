"""Hypothesis: the first answer of a network takes at most twice a loop in NumPy, the next a fifth
of it.

Networks of 60 to 2,000 small tables: grids, trees, chains, 3-regular graphs (a ring and, within 12
neighbours, a random matching) and noisy-or networks (findings of one to four of 9 neighbouring
diseases), float32, max_plus. This process has imported everything, started JAX's backend and
answered one other small network; every figure is of a network that is new to it. The loop plans
each time. First calls are the least of three, each of another network of that kind, ours and the
loop's in turn; `again` the least of several calls in turn; jit is lowering and compiling. toulbar2
(pip install pytoulbar2) builds the problem and proves the optimum. "nothing" is what JAX takes for
the gradient of a custom_vjp that computes nothing, and for a program of two calls with as many
tables. Exported programs show the route without native kernels, as GPUs have it.

    python -m benchmarks.networks [--quick] [--tables 60 200] [--kinds grid tree]
    [--asked value gradient] [--exports value] [--many 500]
"""

from __future__ import annotations

import argparse
import functools
import gc
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

from ext_tropical import best_assignment, log_sum_exp, tropical_einsum
from ext_tropical.native.library import target

from .measure import alternating, header
from .network_peers import LOOP, chains, solved, toulbar2, value, widest

COUNTS = (60, 200, 600, 2000)
FRESH = 3
"""Networks of which each is asked for the first time."""

SECONDS = 20
"""toulbar2 may search so long."""

GOALS = {
    "value": (2, 0.2),
    "assignment": (3, None),
    "gradient": (4, None),
    "log_sum_exp": (2, 0.2),
    "its gradient": (4, None),
}
"""The first call and the next, as multiples of the loop's first and next."""

COMPILE = 1.5
"""Seconds that lowering and compiling may take."""

BEFORE = {("value", 60): 85_317, ("value", 200): 266_807, ("assignment", 60): 148_079}
BEFORE |= {("assignment", 200): 428_488}
"""Characters of the StableHLO of grids when every step was ops of its own, at commit a502771."""

WALK_BACK = 2
"""An assignment, again, as a multiple of a value, again."""


class Network(NamedTuple):
    """An equation without output, and its tables."""

    equation: str
    tables: tuple[np.ndarray, ...]


def network(kind: str, count: int, seed: int) -> Network:
    """A network of about so many tables: another seed is another order of tables and names."""
    rng = np.random.default_rng(seed)
    scopes, sizes = KINDS[kind](count, rng)
    names = [opt_einsum.get_symbol(int(i)) for i in rng.permutation(len(sizes))]
    scopes = [scopes[i] for i in rng.permutation(len(scopes))]
    tables = [
        (
            _noisy_or(rng, len(scope))
            if kind == "noisy-or" and len(scope) > 1
            else rng.normal(size=[sizes[i] for i in scope])
        ).astype(np.float32)
        for scope in scopes
    ]
    terms = ("".join(names[i] for i in scope) for scope in scopes)
    return Network(f"{','.join(terms)}->", tuple(tables))


Scopes = tuple[list[tuple[int, ...]], Sequence[int]]
"""The variables of each table, and the sizes of all variables."""


def _grid(count: int, rng: np.random.Generator) -> Scopes:
    """Two-valued, at most 8 wide."""
    width = {60: 4, 200: 6, 600: 8, 2000: 8}.get(count, 3)
    height = round((count + width) / (3 * width - 1))
    cells = np.arange(width * height).reshape(height, width)
    pairs = [*zip(cells[:, :-1].flat, cells[:, 1:].flat), *zip(cells[:-1].flat, cells[1:].flat)]
    return [(int(i),) for i in cells.flat] + [(int(i), int(j)) for i, j in pairs], [2] * cells.size


def _tree(count: int, rng: np.random.Generator) -> Scopes:
    """Two- to four-valued."""
    nodes = (count + 1) // 2
    edges = [(i, int(rng.integers(i))) for i in range(1, nodes)]
    return [(i,) for i in range(nodes)] + edges, [int(n) for n in rng.integers(2, 5, nodes)]


def _chain(count: int, rng: np.random.Generator) -> Scopes:
    """Eight-valued."""
    nodes = (count + 1) // 2
    return [(i,) for i in range(nodes)] + [(i - 1, i) for i in range(1, nodes)], [8] * nodes


def _regular(count: int, rng: np.random.Generator) -> Scopes:
    """Two- or three-valued."""
    nodes = max(round(count / 30), 1) * 12
    edges = [(i, (i + 1) % nodes) for i in range(nodes)]
    for block in range(0, nodes, 12):
        pairs = [(0, 1)]
        while any(abs(i - j) in (1, 11) for i, j in pairs):
            pairs = rng.permutation(12).reshape(6, 2).tolist()
        edges += [(block + i, block + j) for i, j in pairs]
    return [(i,) for i in range(nodes)] + edges, [int(n) for n in rng.integers(2, 4, nodes)]


def _diagnosis(count: int, rng: np.random.Generator) -> Scopes:
    """Two-valued: diseases, findings, and what was seen of each."""
    diseases = count // 3
    scopes: list[tuple[int, ...]] = [(i,) for i in range(2 * diseases)]
    for finding in range(diseases):
        near = min(9, diseases)
        causes = rng.choice(near, min(int(rng.integers(1, 5)), near), replace=False)
        causes += min(finding, diseases - near)
        scopes.append((*map(int, causes), diseases + finding))
    return scopes, [2] * (2 * diseases)


def _noisy_or(rng: np.random.Generator, labels: int) -> np.ndarray:
    """The logarithm of how likely the last label is, given its causes."""
    missed = np.ones((2,) * (labels - 1)) * 0.99
    for axis in range(labels - 1):
        shape = [1] * (labels - 1)
        shape[axis] = 2
        missed = missed * np.array([1, rng.uniform(0.1, 0.9)]).reshape(shape)
    return np.log(np.stack([missed, 1 - missed], -1))


KINDS: dict[str, Callable[[int, np.random.Generator], Scopes]] = {
    "grid": _grid,
    "tree": _tree,
    "chain": _chain,
    "3-regular": _regular,
    "noisy-or": _diagnosis,
}


def question(what: str, equation: str) -> Callable[..., Any]:
    """What is asked, as a function of the tables."""
    if what == "assignment":
        return lambda *xs: best_assignment(equation, *xs)
    semiring = log_sum_exp() if what in ("log_sum_exp", "its gradient") else "max_plus"
    ask = functools.partial(tropical_einsum, equation, semiring=semiring)
    if "gradient" not in what:
        return ask
    return lambda *xs: jax.grad(ask, tuple(range(len(xs))))(*xs)


class Figures(NamedTuple):
    """Seconds of one question to one network; the value's next call beside an assignment's."""

    first: float
    again: float
    loop_first: float
    loop_again: float
    jit_lower: float
    jit_compile: float
    jit_again: float
    value_again: float
    toulbar2: float | None


def measured(what: str, kind: str, count: int, seed: int, repeats: int = 5) -> Figures:
    """The figures of one question; the answers are compared.

    Raises:
      AssertionError: ours, the loop's and toulbar2's are not the same.
    """
    *fresh, jitted = (network(kind, count, seed + i) for i in range(FRESH + 1))
    firsts, loop_firsts = [], []
    for eager in fresh:
        ask, loop = question(what, eager.equation), functools.partial(LOOP[what], *eager)
        arrays = [jnp.asarray(x) for x in eager.tables]
        jax.block_until_ready(arrays)
        gc.collect()
        first, answer = timed(functools.partial(ask, *arrays))
        loop_first, expected = timed(loop)
        total = value(*eager)
        compare(what, eager, answer, expected, total)
        firsts.append(first)
        loop_firsts.append(loop_first)
    (_, again), (_, loop_again) = alternating([lambda: ask(*arrays), loop], repeats)
    value_again = again
    if what == "assignment":
        plain = question("value", eager.equation)
        ((_, value_again),) = alternating([lambda: plain(*arrays)], repeats)
    own = [jnp.asarray(x) for x in jitted.tables]
    jax.block_until_ready(own)
    lower, lowered = timed(lambda: jax.jit(question(what, jitted.equation)).lower(*own))
    compiling, compiled = timed(lowered.compile)
    ((_, jit_again),), proof = alternating([lambda: compiled(*own)], repeats), None
    if what == "assignment" and toulbar2() is not None:
        seconds, best = timed(lambda: solved(*eager, SECONDS))
        proof = np.inf if best is None else seconds
        np.testing.assert_allclose(total if best is None else best, total, rtol=1e-4, atol=1e-3)
    return Figures(
        min(firsts),
        again,
        min(loop_firsts),
        loop_again,
        lower,
        compiling,
        jit_again,
        value_again,
        proof,
    )


def nothing(count: int, seed: int, repeats: int = 5) -> tuple[float, float, float]:
    """Seconds of jax.grad of a function of a tree's tables that computes nothing, and of lowering
    and compiling a program that hands those tables to one call and gets as many from another; it is
    not run.
    """

    @jax.custom_vjp
    def idle(*tables: jax.Array) -> jax.Array:
        return jnp.float32(0)

    idle.defvjp(lambda *tables: (jnp.float32(0), tables), lambda tables, _: tables)
    tables = [jnp.asarray(x) for x in network("tree", count, seed).tables]
    every = tuple(range(len(tables)))
    ((_, seconds),) = alternating([lambda: jax.grad(idle, every)(*tables)], repeats)
    scalar = jax.ShapeDtypeStruct((), np.float32)
    first = jax.ffi.ffi_call(target("network"), scalar)
    second = jax.ffi.ffi_call(
        target("network"), [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tables]
    )
    lower, lowered = timed(lambda: jax.jit(lambda *xs: second(first(*xs))).lower(*tables))
    return seconds, lower, timed(lowered.compile)[0]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds until the result is there, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return time.perf_counter() - start, result


def compare(what: str, asked: Network, answer: Any, expected: Any, total: np.ndarray) -> None:
    """The answer is the loop's; an assignment has the best total.

    Raises:
      AssertionError: it is not.
    """
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    if what == "assignment":
        terms = asked.equation.split("->")[0].split(",")
        at = {label: int(i) for label, i in answer.labels.items()}
        close(
            sum(x[tuple(at[k] for k in term)] for x, term in zip(asked.tables, terms, strict=True)),
            total,
        )
        answer, expected = answer.value, total
    for ours, theirs in zip(jax.tree.leaves(answer), jax.tree.leaves(expected), strict=True):
        close(ours, theirs)


def xla(count: int, seed: int, what: str) -> tuple[int, float, float, float]:
    """Characters of the StableHLO of an exported question to a grid, which no native kernel serves,
    and the seconds of exporting, of compiling it and of a call.
    """
    grid = network("grid", count, seed)
    ask = question(what, grid.equation)
    exporting, exported = timed(lambda: jax.export.export(jax.jit(ask))(*grid.tables))
    compiling, compiled = timed(lambda: jax.jit(exported.call).lower(*grid.tables).compile())
    ((_, again),) = alternating([lambda: compiled(*grid.tables)], 3)
    return len(exported.mlir_module()), exporting, compiling, again


HEAD = (
    f"{'ms':>17} {'2^':>3} {'':>12} |{'ours:first':>11}{'again':>9} |{'loop:first':>11}"
    f"{'again':>9} |{'first/loop':>11}{'goal':>5}{'again/loop':>11}{'goal':>5} |"
    f"{'jit:lower':>10}{'compile':>8}{'run':>8} | toulbar2"
)


def row(kind: str, tables: int, wide: int, what: str, found: Figures) -> str:
    """A row of the table."""
    ms = [x * 1e3 for x in found[:8]]
    goal = [f"{x:5}" if x else f"{'':5}" for x in GOALS[what]]
    proof = "" if found.toulbar2 is None else f"{found.toulbar2 * 1e3:.0f}"
    return (
        f"{tables:5} {kind:>11} {wide:3} {what:>12} |{ms[0]:11.1f}{ms[1]:9.2f} |"
        f"{ms[2]:11.1f}{ms[3]:9.2f} |{ms[0] / ms[2]:11.2f}{goal[0]}{ms[1] / ms[3]:11.3f}{goal[1]} |"
        f"{ms[4]:10.0f}{ms[5]:8.0f}{ms[6]:8.2f} | {proof if proof != 'inf' else f'> {SECONDS} s'}"
    )


def goals(found: dict[tuple[str, int, str], Figures]) -> Iterator[str]:
    """The worst figure of every goal, and where."""

    def worst(name: str, goal: float, of: dict[str, float]) -> str:
        where = max(of, key=of.__getitem__)
        met = "met" if of[where] <= goal else "not met"
        return f"{name}: at most {goal:g}; worst {of[where]:.2f}, {where}: {met}"

    def those(what: str, measure: Callable[[Figures], float]) -> dict[str, float]:
        return {
            f"{kind} of {count}": measure(figures)
            for (kind, count, asked), figures in found.items()
            if asked == what
        }

    asked = {what for _, _, what in found}
    for what, (first, again) in GOALS.items():
        if what not in asked:
            continue
        yield worst(f"{what}, first / loop", first, those(what, lambda x: x.first / x.loop_first))
        if again:
            yield worst(
                f"{what}, again / loop", again, those(what, lambda x: x.again / x.loop_again)
            )
        yield worst(
            f"{what}, jit, lower and compile, s",
            COMPILE,
            those(what, lambda x: x.jit_lower + x.jit_compile),
        )
        yield worst(f"{what}, jit / eager, again", 1, those(what, lambda x: x.jit_again / x.again))
    if "assignment" in asked:
        yield worst(
            "assignment / value, again",
            WALK_BACK,
            those("assignment", lambda x: x.again / x.value_again),
        )


def many(count: int, tables: int = 200) -> dict[int, tuple[int, float]]:
    """Memory maps and MiB held after 1, 100, ... of so many networks, all different: every question
    to each, eagerly.
    """
    found = {}
    for i in range(count):
        asked = network(list(KINDS)[i % len(KINDS)], tables, 10_000 + i)
        for what in GOALS:
            jax.block_until_ready(tuple(jax.tree.leaves(question(what, *asked[:1])(*asked.tables))))
        if i + 1 in (1, 10, 100, count):
            found[i + 1] = held()
            maps, mib = found[i + 1]
            print(
                f"after {i + 1} networks of {tables} tables: {maps} maps, {mib:.0f} MiB", flush=True
            )
    return found


def held() -> tuple[int, float]:
    """Memory maps of this process, and the MiB that it holds; zeros where Linux does not say."""
    try:
        maps = pathlib.Path("/proc/self/maps").read_text().count("\n")
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0, 0.0
    return maps, pages * resource.getpagesize() / 2**20


def main(
    kinds: Sequence[str] = tuple(KINDS),
    counts: Sequence[int] = COUNTS,
    repeats: int = 5,
    asked: Sequence[str] = tuple(GOALS),
    exports: Sequence[str] = ("value", "assignment", "its gradient"),
) -> dict[tuple[str, int, str], Figures]:
    """Print the tables; returns the figures of the first."""
    print(header(__doc__))
    warm = network("tree", 10, 0)
    jax.block_until_ready(tuple(question("assignment", warm.equation)(*warm.tables)))
    found, seed = {}, 1
    if asked:
        print(HEAD)
    for count in counts:
        for kind in kinds:
            for what in asked:
                found[kind, count, what] = measured(what, kind, count, seed, repeats)
                first = network(kind, count, seed)
                wide = widest(*first)
                print(
                    row(kind, len(first.tables), wide, what, found[kind, count, what]), flush=True
                )
                seed += FRESH + 1
    if found:
        print("\n".join(goals(found)))
    for count in counts:
        seconds, lower, compiling = nothing(count, seed, repeats)
        print(
            f"nothing, of {count:4} tables: a gradient {seconds * 1e3:.1f} ms; under jit lower "
            f"{lower * 1e3:.0f}, compile {compiling * 1e3:.0f} ms",
            flush=True,
        )
        for what in exports:
            size, exporting, compiling, again = xla(count, seed, what)
            print(
                f"exported {what:>12} of a grid of {count:4}: {size:9} characters (before: "
                f"{BEFORE.get((what, count), '-')}), exporting {exporting:.2f} s, compiling "
                f"{compiling:.2f} s, run {again * 1e3:.2f} ms",
                flush=True,
            )
            seed += 1
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small networks")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tables", nargs="*", type=int, default=COUNTS)
    parser.add_argument("--asked", nargs="*", default=list(GOALS), choices=list(GOALS))
    parser.add_argument("--exports", nargs="*", default=["value", "assignment", "its gradient"])
    parser.add_argument("--many", type=int, help="only count maps and memory of so many networks")
    given = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    if given.many:
        many(given.many)
    elif given.quick:
        main(["grid", "noisy-or"], [20], 2)
    else:
        main(given.kinds, given.tables, asked=given.asked, exports=given.exports)
        print("\n".join(chains()), flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.networks", "--many", "500"], check=True)
