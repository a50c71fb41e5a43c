"""Hypothesis: sums of products of a whole network take no longer than what a user would write: a
loop in jnp, or opt_einsum with NumPy.

A tree of 200 leaves, whose likelihood at 500 sites is one batch (float32), beside a loop over its
branches in jnp; also from the logs of its tables, as `log_partition`. Detectors of a noisy
repetition code, whose syndromes are a batch (float64), beside opt_einsum with NumPy, one syndrome
after another. Random graphs, lattices and a tree of tensors, beside opt_einsum with NumPy, and its
first call under jit.

    python -m benchmarks.sum_product [--leaves 200] [--sites 500] [--rounds 40] [--vertices 60]
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

from ext_tropical import Network, sum_product, tropical_einsum

from .measure import header, lowest


class Row(NamedTuple):
    """Seconds: of a first and of a later call, of a later one of the peer, and of the first one of
    the peer under jit, where it was asked for.
    """

    kind: str
    first: float
    later: float
    peer: float
    compiled: float | None = None


def timed(kind: str, ours: Callable[[], Any], peer: Callable[[], Any], per: int = 1) -> Row:
    """Both, whose answers are compared; times are divided by how many answers a call has."""
    start = time.perf_counter()
    found = jax.block_until_ready(ours())
    first = time.perf_counter() - start
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(peer()), strict=True):
        if not np.allclose(x, y, rtol=1e-3, atol=1e-4 * np.abs(y).max()):
            raise AssertionError(f"{kind}: {x} and {y}")
    runs = [lambda: jax.block_until_ready(ours()), lambda: jax.block_until_ready(peer())]
    later, theirs = lowest(runs, 3.0, 20)
    return Row(kind, first / per, later / per, theirs / per)


# --- a tree ---------------------------------------------------------------------------------------


def tree(leaves: int, sites: int) -> list[Row]:
    """The log-likelihood of all sites, and its gradient by all steps along branches."""
    rng = np.random.default_rng(0)
    nodes, branches = list(range(leaves)), []
    while len(nodes) > 1:
        parent = leaves + len(branches) // 2
        for child in rng.choice(nodes, 2, replace=False).tolist():
            nodes.remove(child)
            branches.append((parent, child))
        nodes.append(parent)
    root = nodes[0]
    steps = [jnp.asarray(rng.dirichlet(np.ones(4), 4), jnp.float32) for _ in branches]
    tips = np.eye(4, dtype=np.float32)[rng.integers(0, 4, (leaves, sites))]
    prior = jnp.full(4, 0.25, jnp.float32)

    def of_a_site(steps: Sequence[jax.Array], tips: jax.Array) -> jax.Array:
        tables = [*zip(branches, steps, strict=True), *(((i,), x) for i, x in enumerate(tips))]
        return Network.from_factors([*tables, ((root,), prior)]).slog_sum_product().logabs

    def by_network(steps: Sequence[jax.Array]) -> jax.Array:
        return jax.vmap(of_a_site, (None, 1))(steps, tips).sum()

    def scores_of_a_site(steps: Sequence[jax.Array], tips: jax.Array) -> jax.Array:
        tables = [*zip(branches, steps, strict=True), *(((i,), x) for i, x in enumerate(tips))]
        return Network.from_factors([*tables, ((root,), jnp.log(prior))]).log_partition()

    def by_scores(steps: Sequence[jax.Array]) -> jax.Array:
        logs = [jnp.log(x) for x in steps]
        return jax.vmap(scores_of_a_site, (None, 1))(logs, jnp.log(tips)).sum()

    def by_loop(steps: Sequence[jax.Array]) -> jax.Array:
        below, log = dict(enumerate(tips)), jnp.zeros(sites, jnp.float32)
        for (parent, child), step in zip(branches, steps, strict=True):
            known = below.pop(child) @ step.T
            if parent not in below:
                below[parent] = known
                continue
            both = below[parent] * known
            most = both.max(1, keepdims=True)
            below[parent], log = both / most, log + jnp.log(most[:, 0])
        return (jnp.log(below[root] @ prior) + log).sum()

    rows = []
    for name, of in (("value", lambda f: f), ("value and gradient", jax.value_and_grad)):
        peer = functools.partial(jax.jit(of(by_loop)), steps)
        for kind, run in (("tree", by_network), ("scores of it", by_scores)):
            ours = functools.partial(jax.jit(of(run)), steps)
            rows.append(timed(f"{kind}, {leaves} leaves, {sites} sites, {name}", ours, peer))
    return rows


# --- detectors ------------------------------------------------------------------------------------


def detectors(rounds: int) -> list[Row]:
    """Log-probabilities of 16 syndromes of a repetition code of distance 7."""
    rng, width, count = np.random.default_rng(1), 6, 16
    place = np.arange(rounds * width).reshape(rounds, width)
    flips = [(int(i),) for i in (*place[:, 0], *place[:, -1])]
    for one, other in (
        (place[:, :-1], place[:, 1:]),
        (place[:-1], place[1:]),
        (place[:-1, :-1], place[1:, 1:]),
    ):
        flips += [*zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)]
    chances = rng.uniform(0.01, 0.1, len(flips))
    tables = []
    for p, members in zip(chances, flips, strict=True):
        is_odd = np.indices((2,) * len(members)).sum(0) % 2 == 1
        tables.append(np.where(is_odd, 1 - 2 * p, 1.0))
    fired = (rng.random((count, len(flips))) < chances).astype(float)
    effect = np.zeros((len(flips), place.size))
    for i, members in enumerate(flips):
        effect[i, list(members)] = 1
    signs = 1 - 2 * (fired @ effect % 2)
    names = [opt_einsum.get_symbol(i) for i in range(place.size)]
    terms = ["".join(names[i] for i in members) for members in flips]
    equation = ",".join([*terms, *names]) + "->"
    path = opt_einsum.contract_path(
        equation, *tables, *np.ones((len(names), 2)), optimize="greedy"
    )[0]
    rest = [np.stack([np.ones(count), signs[:, j]], 1) / 2 for j in range(place.size)]

    def one(*singles: jax.Array) -> jax.Array:
        return Network(equation, *tables, *singles, optimize=path).slog_sum_product().logabs

    ours = functools.partial(jax.jit(jax.vmap(one)), *rest)

    def peer() -> np.ndarray:
        found = []
        for k in range(count):
            found.append(
                opt_einsum.contract(equation, *tables, *(x[k] for x in rest), optimize=path)
            )
        return np.log(np.array(found))

    return [timed(f"{len(flips)} mechanisms, {rounds} rounds, a syndrome", ours, peer, count)]


# --- networks of tensors --------------------------------------------------------------------------

Bonds = list[tuple[int, int]]


def random_graph(vertices: int, degree: int, seed: int) -> Bonds:
    """Bonds between vertices, of which each has so many; without those of a vertex with itself."""
    ends = np.random.default_rng(seed).permutation(np.repeat(np.arange(vertices), degree))
    return [(one, other) for one, other in ends.reshape(-1, 2).tolist() if one != other]


def lattice(*sides: int) -> Bonds:
    """Bonds between neighbours of a square or cubic lattice."""
    place = np.arange(np.prod(sides)).reshape(sides)
    bonds = []
    for axis in range(len(sides)):
        along = np.moveaxis(place, axis, 0)
        bonds += zip(along[:-1].ravel().tolist(), along[1:].ravel().tolist(), strict=True)
    return bonds


def random_tree(vertices: int) -> Bonds:
    """Bonds of each vertex but the first one with an earlier one."""
    rng = np.random.default_rng(3)
    return [(int(rng.integers(i)), i) for i in range(1, vertices)]


def contraction(name: str, bonds: Bonds, size: int) -> Row:
    """The value of a network that has a tensor at each vertex."""
    terms: dict[int, str] = {}
    for number, bond in enumerate(bonds):
        for vertex in bond:
            terms[vertex] = terms.get(vertex, "") + opt_einsum.get_symbol(number)
    rng = np.random.default_rng(4)
    tables = [rng.normal(size=(size,) * len(x)) / 2 for x in terms.values()]
    equation = ",".join(terms.values()) + "->"
    path = opt_einsum.contract_path(equation, *tables, optimize="random-greedy")[0]

    def ours() -> jax.Array:
        return tropical_einsum(equation, *tables, semiring=sum_product, optimize=path)

    def peer() -> np.ndarray:
        return np.asarray(opt_einsum.contract(equation, *tables, optimize=path))

    row = timed(f"{name}, {size} values", ours, peer)
    whole = jax.jit(lambda *x: opt_einsum.contract(equation, *x, optimize=path, backend="jax"))
    start = time.perf_counter()
    jax.block_until_ready(whole(*tables))
    return row._replace(compiled=time.perf_counter() - start)


def networks(vertices: int) -> list[Row]:
    """Random graphs, lattices and a tree, as cotengra's generators make them."""
    side, edge = round(vertices ** (1 / 2)), round(vertices ** (1 / 3))
    few = vertices // 4 * 2
    return [
        contraction(f"graph of {vertices} vertices, degree 3", random_graph(vertices, 3, 2), 3),
        contraction(f"graph of {vertices} vertices, degree 4", random_graph(vertices, 4, 5), 2),
        contraction(f"graph of {few} vertices, degree 5", random_graph(few, 5, 6), 2),
        contraction(f"lattice {side} x {side}", lattice(side, side), 3),
        contraction(f"lattice {side} x {side}", lattice(side, side), 2),
        contraction(f"lattice {edge} x {edge} x {edge}", lattice(edge, edge, edge), 2),
        contraction(f"tree of {3 * vertices} vertices", random_tree(3 * vertices), 2),
    ]


def main(leaves: int = 200, sites: int = 500, rounds: int = 40, vertices: int = 60) -> list[Row]:
    """Measure, and print a line for each."""
    jax.config.update("jax_enable_x64", True)
    print(header(__doc__))
    print(f"{'ms':58}{'first':>10}{'later':>9}{'peer':>9}{'ratio':>7}{'jit first':>11}")
    rows = [*tree(leaves, sites), *detectors(rounds), *networks(vertices)]
    for row in rows:
        told = [f"{1e3 * x:.2f}" for x in (row.first, row.later, row.peer)]
        compiled = "" if row.compiled is None else f"{1e3 * row.compiled:.0f}"
        ratio = f"{row.later / row.peer:.2f}"
        print(f"{row.kind:58}{told[0]:>10}{told[1]:>9}{told[2]:>9}{ratio:>7}{compiled:>11}")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("leaves", 200), ("sites", 500), ("rounds", 40), ("vertices", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    main(**vars(parser.parse_args()))
