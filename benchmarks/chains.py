"""Hypothesis: best paths of chains, partition functions and their gradients take less time than by
any peer.

Chains of S states and T steps, float32, by `Chain`, by the part of it that XLA compiles where there
is no native kernel, and by the peers that are installed (pip install
'tenferro-jax[bench]'), in one process and in turn. `scan` and `scaled` are what one writes by
lax.scan: maxima, argmax and a scan back; logsumexp; sums of numbers that are scaled to 1. dynamax
and the C functions of hmmlearn take probabilities, hmmlearn in float64, which are made before and
not timed. A best path is the score and the states; a gradient is the value with the derivatives to
all inputs, where dynamax smooths (or JAX differentiates its filter: `by grad`) and hmmlearn makes
the sums of its M step. Answers are compared before they are timed. The ratio is the fastest peer's
time over ours.

Also batches, chains of which half the moves are impossible, left-to-right models, first calls,
calls outside jit, five best paths, and the CTC loss beside optax's.

    python -m benchmarks.chains [--all] [--states 8 32] [--steps 1000] [--seconds 0.1]
    [--only best partition gradient batches masked first five ctc]
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import itertools
import math
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from ext_tropical import Chain, log_sum_exp, max_plus
from ext_tropical.native.library import native
from ext_tropical.sequences import chain_op
from ext_tropical.sequences.chain_op import ChainScore
from ext_tropical.sequences.ctc import ctc_loss
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from .measure import header, installed, load, lowest

STATES = (2, 4, 8, 16, 24, 32, 40, 48, 64, 128, 512)
STEPS = (1000, 10_000, 100_000, 1_000_000)
FEW = {1000: STATES, 10_000: (2, 8, 32, 128), 100_000: (8, 32), 1_000_000: (8,)}
"""By steps, the states of a run without --all."""
BYTES = 2**30
"""What the largest array of a way may take: one that needs more is left out."""
MISSING = types.SimpleNamespace(problem="it is not asked")
"""Instead of the native library."""
Way = Callable[..., Any]


class Model(NamedTuple):
    """Log probabilities of a chain; emissions may have an axis of a batch before."""

    initial: jax.Array
    transition: jax.Array
    emission: jax.Array

    @property
    def probabilities(self) -> Model:
        """What dynamax takes."""
        return Model(jnp.exp(self.initial), jnp.exp(self.transition), self.emission)

    def score(self, states: Any) -> float:
        """Of a path, in float64."""
        initial, transition, emission = (np.asarray(x, np.float64) for x in self)
        at = np.asarray(states)
        return (
            initial[at[0]]
            + transition[at[:-1], at[1:]].sum()
            + emission[np.arange(len(at)), at].sum()
        )


def model(states: int, steps: int, *batch: int, impossible: float | None = 0.0) -> Model:
    """Random probabilities; so many of the moves to other states are impossible, or if None all to
    states before.
    """
    rng = np.random.default_rng(0)
    shapes = (states,), (states, states), (*batch, steps, states)
    initial, transition, emission = (rng.standard_normal(shape, np.float32) for shape in shapes)
    others = ~np.eye(states, dtype=bool)
    some = np.tri(states) if impossible is None else rng.random(transition.shape) < impossible
    transition[(some != 0) & others] = -np.inf
    logs = (jax.nn.log_softmax(jnp.asarray(x)) for x in (initial, transition))
    return Model(*logs, jnp.asarray(emission))


def best_by_scan(initial: jax.Array, transition: jax.Array, emission: jax.Array) -> Any:
    """Score and states."""

    def forward(before: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates = before[:, None] + transition
        return candidates.max(0) + seen, candidates.argmax(0)

    last, winners = lax.scan(forward, initial + emission[0], emission[1:])

    def back(state: jax.Array, winner: jax.Array) -> tuple[jax.Array, jax.Array]:
        return winner[state], winner[state]

    end = last.argmax()
    _, states = lax.scan(back, end, winners, reverse=True)
    return last.max(), jnp.append(states, end)


def partition_by_scan(initial: jax.Array, transition: jax.Array, emission: jax.Array) -> jax.Array:
    """By logsumexp."""

    def forward(before: jax.Array, seen: jax.Array) -> tuple[jax.Array, None]:
        return logsumexp(before[:, None] + transition, 0) + seen, None

    return logsumexp(lax.scan(forward, initial + emission[0], emission[1:])[0])


def partition_scaled(initial: jax.Array, transition: jax.Array, emission: jax.Array) -> jax.Array:
    """By products of probabilities that are scaled to a sum of 1 at each time."""
    top = lax.stop_gradient(emission.max(1))
    weights, moves = jnp.exp(emission - top[:, None]), jnp.exp(transition)

    def forward(before: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = before @ moves * weight
        total = new.sum()
        return new / total, total

    start = jnp.exp(initial) * weights[0]
    _, totals = lax.scan(forward, start / start.sum(), weights[1:])
    return jnp.log(start.sum()) + jnp.log(totals).sum() + top.sum()


def derived(partition: Way) -> Way:
    """Value and derivatives."""
    return jax.value_and_grad(partition, (0, 1, 2))


def partition(*logs: jax.Array) -> jax.Array:
    """By this package."""
    return Chain(*logs).log_partition()


def by_xla(op: ChainScore, initial: jax.Array, transition: jax.Array, emission: jax.Array) -> Any:
    """An op without its kernels."""
    only = op.runtimes.only(RouteKind.LOWERING)
    value, *more = apply(op, initial, transition[None], emission, runtimes=only)
    if len(more) == 3:
        return value, (more[0], more[1][0], more[2])
    return (value, *more) if more else value


OURS: dict[str, dict[str, Way]] = {
    "best": {
        "ours": lambda *logs: Chain(*logs).best(),
        "xla": functools.partial(by_xla, ChainScore(max_plus, detailed=True)),
    },
    "partition": {
        "ours": partition,
        "xla": functools.partial(by_xla, ChainScore(log_sum_exp())),
    },
    "gradient": {
        "ours": derived(partition),
        "xla": functools.partial(by_xla, ChainScore(log_sum_exp(), detailed=True)),
    },
}


def by_dynamax(question: str) -> dict[str, Way]:
    """Functions of probabilities; none if it is not installed."""
    peer = installed("dynamax.hidden_markov_model.inference")
    if peer is None:
        return {}

    def filtered(*given: jax.Array) -> jax.Array:
        return peer.hmm_filter(*given).marginal_loglik

    def smoothed(*given: jax.Array) -> Any:
        found = peer.hmm_smoother(*given)
        shares = found.smoothed_probs
        return found.marginal_loglik, (shares[0], found.trans_probs, shares)

    return {
        "best": {"dynamax": lambda *given: (None, peer.hmm_posterior_mode(*given))},
        "partition": {"dynamax": filtered},
        "gradient": {"dynamax": smoothed, "by grad": derived(filtered)},
    }[question]


def by_hmmlearn(question: str, chain: Model) -> dict[str, Callable[[], Any]]:
    """Calls of its C functions; none if it is not installed."""
    peer = installed("hmmlearn._hmmc")
    if peer is None:
        return {}
    initial, transition, emission = (np.asarray(x, np.float64) for x in chain.probabilities)
    if question == "best":
        return {"hmmlearn": lambda: peer.viterbi(initial, transition, emission)}
    top = emission.max(1)
    given = initial, transition, np.exp(emission - top[:, None])

    def partition() -> float:
        return peer.forward_scaling(*given)[0] + top.sum()

    def gradient() -> Any:
        value, forward, scales = peer.forward_scaling(*given)
        backward = peer.backward_scaling(*given, scales)
        shares = forward * backward
        shares /= shares.sum(1, keepdims=True)
        moves = peer.compute_scaling_xi_sum(forward, given[1], backward, given[2])
        return value + top.sum(), (shares[0], moves, shares)

    return {"hmmlearn": {"partition": partition, "gradient": gradient}[question]}


BY_SCAN: dict[str, dict[str, Way]] = {
    "best": {"scan": best_by_scan},
    "partition": {"scan": partition_by_scan, "scaled": partition_scaled},
    "gradient": {"scan": derived(partition_by_scan), "scaled": derived(partition_scaled)},
}
WAYS = ("ours", "xla", "scan", "scaled", "dynamax", "by grad", "hmmlearn")


def functions(question: str, chain: Model) -> dict[str, tuple[Way, Model]]:
    """Each way that JAX runs, with what it takes."""
    found = {name: (way, chain) for name, way in (OURS[question] | BY_SCAN[question]).items()}
    given = chain.probabilities
    return found | {name: (way, given) for name, way in by_dynamax(question).items()}


def calls(question: str, chain: Model) -> dict[str, Callable[[], Any]]:
    """Each way, jitted, or a C function."""
    found = {
        name: functools.partial(jax.jit(way), *given)
        for name, (way, given) in functions(question, chain).items()
    }
    return found | by_hmmlearn(question, chain)


def fits(question: str, name: str, states: int, steps: int, batch: int = 1) -> bool:
    """Whether the largest array of a way does: derivatives keep a matrix for each time."""
    matrices = question == "gradient" and name in ("scan", "dynamax")
    size = 8 if name == "hmmlearn" else 4
    return batch * steps * states * (states if matrices else 1) * size <= BYTES


def compared(question: str, chain: Model, answers: dict[str, Any]) -> None:
    """Whether all answers are the same, up to the rounding of sums of T numbers.

    Raises:
      AssertionError: they are not.
    """
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4 + 1e-7 * len(chain.emission))
    if question == "best":
        paths = {name: chain.score(_states(answer)) for name, answer in answers.items()}
        for name, score in paths.items():
            close(score, max(paths.values()), err_msg=name)
            claimed = _value(answers[name])
            close(score if claimed is None else claimed, score, err_msg=name)
        return
    known = answers.get("hmmlearn", next(iter(answers.values())))  # hmmlearn's are float64
    for name, answer in answers.items():
        close(_value(answer), _value(known), err_msg=name)
        if question == "gradient":
            _uses_close(chain, answer[1], known[1], name)


def _uses_close(chain: Model, found: Any, known: Any, name: str) -> None:
    """Expected uses; of dynamax's filter, derivatives to probabilities."""
    scales = (*chain.probabilities[:2], 1) if name == "by grad" else (1, 1, 1)
    steps = len(chain.emission)
    allowed = 2e-3 + 1e-7 * steps
    for x, y, scale, most in zip(found, known, scales, (1, steps / 20, 1), strict=True):
        x = np.asarray(x, np.float64) * scale
        np.testing.assert_allclose(x, y, rtol=0, atol=allowed * most, err_msg=name)


def _states(answer: Any) -> Any:
    return answer.states if hasattr(answer, "states") else answer[1]


def _value(answer: Any) -> float | None:
    if hasattr(answer, "score"):
        return float(answer.score)
    value = answer[0] if isinstance(answer, tuple) else answer
    return None if value is None else float(value)


class Row(NamedTuple):
    """Seconds of each way, of one question to chains of one size."""

    question: str
    states: int
    steps: int
    batch: int
    seconds: dict[str, float]

    @property
    def ratio(self) -> float:
        """The fastest peer's time over ours; NaN without one of them."""
        peers = [low for name, low in self.seconds.items() if name not in ("ours", "xla")]
        return min(peers, default=math.nan) / self.seconds.get("ours", math.nan)

    @property
    def of_xla(self) -> float:
        """The scan's time over that of our part that XLA compiles; NaN without one of them."""
        return self.seconds.get("scan", math.nan) / self.seconds.get("xla", math.nan)

    def __str__(self) -> str:
        cells = "".join(
            f"{self.seconds[name] * 1e6:>11,.0f}" if name in self.seconds else f"{'-':>11}"
            for name in WAYS
        )
        step = self.seconds.get("ours", math.nan) * 1e9 / self.steps / self.batch
        size = f"{self.batch} x {self.steps:,}" if self.batch > 1 else f"{self.steps:,}"
        return (
            f"{self.question:>9} {self.states:>4} {size:>11} |{cells} |{step:>11,.1f} "
            f"{self.ratio:>6.2f} {self.of_xla:>9.2f}"
        )


HEAD = (
    f"{'':>9} {'S':>4} {'T':>11} |"
    + "".join(f"{name:>11}" for name in WAYS)
    + f" us |{'ours, ns/T':>11} {'ratio':>6} scan/xla"
)


def measured(
    questions: Iterable[str],
    sizes: Iterable[tuple[int, int]],
    seconds: float,
    longest: float,
    impossible: float | None = 0.0,
) -> Iterator[Row]:
    """Rows, of growing steps. A way is left out where a call would take longer than `longest`, as
    shorter chains say.
    """
    rates: dict[tuple[str, str, int], float] = {}
    for states, steps in sizes:
        if 4 * states * steps > BYTES:
            continue
        chain = model(states, steps, impossible=impossible)
        for question in questions:
            ways = {
                name: call
                for name, call in calls(question, chain).items()
                if rates.get((question, name, states), 0) * steps <= longest
                and fits(question, name, states, steps)
            }
            answers = {name: jax.block_until_ready(call()) for name, call in ways.items()}
            compared(question, chain, answers)
            del answers
            lows = dict(zip(ways, lowest([*ways.values()], seconds), strict=True))
            rates |= {(question, name, states): low / steps for name, low in lows.items()}
            yield Row(question, states, steps, 1, lows)


def batches(
    questions: Iterable[str], sizes: Iterable[tuple[int, int, int]], seconds: float
) -> Iterator[Row]:
    """Chains with one model, by vmap; hmmlearn's in a loop."""
    for batch, steps, states in sizes:
        chain = model(states, steps, batch)
        each = [chain._replace(emission=x) for x in chain.emission]
        for question in questions:
            ways = {
                name: functools.partial(jax.jit(jax.vmap(way, (None, None, 0))), *given)
                for name, (way, given) in functions(question, chain).items()
                if fits(question, name, states, steps, batch)
            }
            loops = [by_hmmlearn(question, one) for one in each]
            if loops[0]:
                ways["hmmlearn"] = lambda loops=loops: [loop["hmmlearn"]() for loop in loops]
            first, last = {}, {}
            for name, call in ways.items():
                found = jax.block_until_ready(call())
                for at, answers in ((0, first), (-1, last)):
                    answers[name] = (
                        found[at]
                        if isinstance(found, list)
                        else jax.tree.map(lambda x, at=at: x[at], found)
                    )
            compared(question, each[0], first)
            compared(question, each[-1], last)
            lows = lowest([*ways.values()], seconds)
            yield Row(question, states, steps, batch, dict(zip(ways, lows, strict=True)))


def least_calls(questions: Iterable[str], seconds: float) -> dict[str, float]:
    """Lowest seconds of a call of 2 states and 2 times: what a jitted call costs, whatever it
    computes.
    """
    runs = {q: functools.partial(jax.jit(OURS[q]["ours"]), *model(2, 2)) for q in questions}
    for run in runs.values():
        jax.block_until_ready(run())
    return dict(zip(runs, lowest([*runs.values()], seconds), strict=True))


def goals(rows: Iterable[Row]) -> Iterator[str]:
    """The least ratio of every question, and where."""
    told = {
        "fastest peer / ours": lambda row: row.ratio,
        "scan / xla": lambda row: row.of_xla,
    }
    for (name, ratio), question in itertools.product(told.items(), QUESTIONS):
        known = [row for row in rows if row.question == question and ratio(row) > 0]
        if known:
            worst = min(known, key=ratio)
            met = sum(ratio(row) >= 1 for row in known)
            yield (
                f"{question}, {name}: at least 1; least {ratio(worst):.2f}, S = {worst.states}, "
                f"T = {worst.steps:,}, {worst.batch} at once; met by {met} of {len(known)}"
            )


def first_calls(
    questions: Iterable[str], states: int, steps: int, seconds: float
) -> dict[str, dict[str, tuple[float, ...]]]:
    """By question and way: seconds of the first call under jit, with compiling; of the first call
    outside jit, and the lowest of the next ones.
    """
    chain = model(states, steps)
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for question in questions:
        rows = found[question] = {}
        for name, (way, given) in functions(question, chain).items():
            row = []
            for call in (jax.jit(lambda *x, way=way: way(*x)), way):
                jax.clear_caches()
                start = time.perf_counter()
                jax.block_until_ready(call(*given))
                row.append(time.perf_counter() - start)
            rows[name] = *row, *lowest([functools.partial(way, *given)], seconds)
    return found


def five_best(states: int, steps: int, seconds: float) -> dict[str, float]:
    """Lowest seconds of the best path and of the five best."""
    runs = [
        functools.partial(jax.jit(lambda *logs, k=k: Chain(*logs).best(k)), *model(states, steps))
        for k in (None, 5)
    ]
    one, five = (jax.block_until_ready(run()) for run in runs)
    np.testing.assert_allclose(five.score[0], one.score, rtol=1e-4)
    return dict(zip(("best", "k=5"), lowest(runs, seconds), strict=True))


def ctc(batch: int, steps: int, labels: int, classes: int, seconds: float) -> dict[str, Any]:
    """Lowest seconds of the loss, and with its gradient to the logits; `xla` without kernels."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((batch, steps, classes), np.float32))
    text = jnp.asarray(rng.integers(1, classes, (batch, labels)), jnp.int32)
    sizes = jnp.asarray(rng.integers(3 * steps // 4, steps + 1, batch), jnp.int32)
    lengths = jnp.asarray(rng.integers(labels // 2, labels + 1, batch), jnp.int32)

    def loss(logits: jax.Array) -> jax.Array:
        return ctc_loss(logits, text, logit_lengths=sizes, label_lengths=lengths)

    ways: dict[str, Way] = {"ours": loss, "xla": lambda logits: loss(logits)}
    if (peer := installed("optax")) is not None:
        padding = [
            jnp.asarray(jnp.arange(longest) >= length[:, None], jnp.float32)
            for longest, length in ((steps, sizes), (labels, lengths))
        ]
        ways["optax"] = lambda logits: peer.ctc_loss(logits, padding[0], text, padding[1])
    found: dict[str, Any] = {}
    for question, made in (
        ("loss", lambda way: way),
        ("gradient", lambda way: jax.grad(lambda x: way(x).sum())),
    ):
        runs = {name: functools.partial(jax.jit(made(way)), logits) for name, way in ways.items()}
        with mock.patch.object(chain_op, "native", return_value=MISSING):
            jax.block_until_ready(runs["xla"]())
        answers = [jax.block_until_ready(run()) for run in runs.values()]
        for answer in answers[1:]:  # optax's gradients in float32 are 0.02 from those in float64
            np.testing.assert_allclose(answer, answers[0], rtol=1e-3, atol=5e-2)
        found[question] = dict(zip(runs, lowest([*runs.values()], seconds), strict=True))
    return found


def peers() -> Iterator[str]:
    """Each package that has a peer, with its version."""
    for name in ("dynamax", "hmmlearn", "optax"):
        there = installed(name) is not None
        yield f"{name} {importlib.metadata.version(name) if there else 'is not installed'}"


QUESTIONS = ("best", "partition", "gradient")
BLOCKS = ("batches", "masked", "first", "five", "ctc")


def main(
    sizes: Sequence[tuple[int, int]] = tuple((s, t) for t, few in FEW.items() for s in few),
    asked: Sequence[str] = QUESTIONS + BLOCKS,
    seconds: float = 0.1,
    longest: float = 2,
    of: Sequence[tuple[int, int, int]] = ((64, 1000, 8), (64, 1000, 32)),
    masked: Sequence[tuple[int, int]] = ((2, 1000), (8, 1000), (8, 10_000), (32, 1000)),
    five: Sequence[int] = (8, 32, 128),
    texts: Sequence[tuple[int, int, int, int]] = ((32, 400, 60, 32), (8, 2000, 300, 64)),
) -> list[Row]:
    """Print the figures, and return the rows of single chains and batches; `of` are batches, as
    many chains, steps and states; `masked` states and steps of chains with impossible moves;
    `five` the states of five best paths; `texts` of CTC, as many
    texts, times, labels and classes.
    """
    print(header(__doc__))
    print(native())
    print("; ".join(peers()))
    questions = [name for name in QUESTIONS if name in asked] or QUESTIONS
    print(HEAD)
    rows = []
    single = measured(questions, sizes, seconds, longest)
    several = batches(questions, of if "batches" in asked else (), seconds)
    for row in itertools.chain(single, several):
        print(row, flush=True)
        rows.append(row)
    if "masked" in asked:
        for what, share in (("other states", 0.5), ("states before", None)):
            print(f"{'half of' if share else 'all'} the moves to {what} are impossible")
            for row in measured(questions, masked, seconds, longest, share):
                print(row, flush=True)
                rows.append(row)
    print("\n".join(goals(rows)))
    least = (f"{q} {low * 1e6:.1f}" for q, low in least_calls(questions, seconds).items())
    print("of these times a jitted call takes, whatever it computes: us", *least)
    if "five" in asked:
        for states in five:
            row = five_best(states, of[0][1], seconds)
            print(
                f"five best, S = {states}, T = {of[0][1]:,}: us best {row['best'] * 1e6:,.1f}, "
                f"k=5 {row['k=5'] * 1e6:,.1f} ({row['k=5'] / row['best']:.1f} x)",
                flush=True,
            )
    if "ctc" in asked:
        for text in texts:
            print("CTC, {} texts, T = {:,}, {} labels of {} classes".format(*text))
            for question, ways in ctc(*text, seconds).items():
                row = "  ".join(f"{name} {low * 1e6:,.1f}" for name, low in ways.items())
                ratios = (
                    f"{ways['optax'] / ways[x]:.2f}" for x in ("ours", "xla") if "optax" in ways
                )
                print(f"{question:>9}: us {row}  optax / ours, xla:", *ratios, flush=True)
    if "first" in asked:
        for states in sorted({states for *_, states in of}):
            print(f"S = {states}, T = {of[0][1]:,}: ms first jitted, first eager, next eager")
            for question, ways in first_calls(questions, states, of[0][1], seconds).items():
                for name, row in ways.items():
                    cells = "".join(f"{took * 1e3:10.2f}" for took in row)
                    print(f"{question:>9} {name:>8} {cells}", flush=True)
    print(load())
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="all sizes; takes half an hour")
    parser.add_argument("--states", nargs="*", type=int, help="instead of the sizes there are")
    parser.add_argument("--steps", nargs="*", type=int, default=STEPS[:1], help="with --states")
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="of each way; 1 on a busy machine"
    )
    parser.add_argument("--only", nargs="*", choices=QUESTIONS + BLOCKS)
    given = parser.parse_args()
    chosen = [(s, t) for t, few in FEW.items() for s in few]
    if given.all or given.states is not None:
        states, steps = (STATES, STEPS) if given.all else (given.states, given.steps)
        chosen = [(s, t) for t in steps for s in states]
    asked = given.only or QUESTIONS + BLOCKS
    main(
        chosen if set(asked) & set(QUESTIONS) else (),
        asked,
        given.seconds,
        10 if given.all else 2,
    )
