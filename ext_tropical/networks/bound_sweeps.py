"""The upper bound of a network in standard ops, by loops whose program does not grow with the
network; and its derivative, by the same loops back. `bound_turns` has the rows that they read.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .bound_turns import CANDIDATES, Lanes, Turns
from .loops import at_places


class Folded(NamedTuple):
    """Of each value of each place of a turn, (W, D, A).

    Attributes:
      best: the greatest entry less the messages to the other variables; -inf where there is none.
      entry: the first one that is, among all entries.
    """

    best: jax.Array
    entry: jax.Array


class Chosen(NamedTuple):
    """What a pass of a turn chose.

    Attributes:
      entry: (W, D, A), that behind each message, -1 behind those that are inf.
      value: (W,), the best value of each variable.
    """

    entry: jax.Array
    value: jax.Array


class Derivatives(NamedTuple):
    """Of the bound.

    Attributes:
      entries: by those of all tables of two variables and more.
      own: by the sums of tables of one variable, (turns, W, A).
      messages: by the messages, flat, with one more for nothing.
    """

    entries: jax.Array
    own: jax.Array
    messages: jax.Array


class Sweeps:
    """Sweeps over a network.

    Attributes:
      turns: the network.
      entries: of all tables.
      own: for each value the sum of the tables of this variable alone, (turns, W, A).
    """

    turns: Turns
    entries: jax.Array
    own: jax.Array

    def __init__(self, turns: Turns, entries: jax.Array) -> None:
        self.turns, self.entries = turns, entries
        count, width, _, widest = turns.shape
        has_value = np.arange(widest) < turns.lanes.sizes[:, :, None]
        own = np.where(has_value, 0, -np.inf).astype(entries.dtype)
        singles = at_places(entries, jnp.asarray(turns.singles))
        added = jnp.asarray(own).reshape(-1).at[turns.values].add(singles)
        self.own = added.reshape(count, width, widest)

    def lanes(self, turn: jax.Array) -> Lanes:
        """The lanes of a turn."""
        return Lanes(*(jnp.asarray(x)[turn] for x in self.turns.lanes))

    def start(self, turn: jax.Array) -> jax.Array:
        """Where the messages of a turn begin."""
        _, width, depth, widest = self.turns.shape
        return turn * np.int32(width * depth * widest)

    def messages_of(self, turn: jax.Array, messages: jax.Array) -> jax.Array:
        """Those of a turn, (W, D, A)."""
        shape = self.turns.shape[1:]
        size = shape[0] * shape[1] * shape[2]
        return lax.dynamic_slice_in_dim(messages, self.start(turn), size).reshape(shape)

    def written(self, turn: jax.Array, messages: jax.Array, new: jax.Array) -> jax.Array:
        """All messages, with new ones of a turn."""
        return lax.dynamic_update_slice_in_dim(messages, new.reshape(-1), self.start(turn), 0)

    def folded(self, lanes: Lanes, messages: jax.Array) -> Folded:
        """What the tables hold of each value of a turn."""
        count = min(self.turns.candidates, CANDIDATES)
        chunks = (jnp.max(lanes.counts) + np.int32(count - 1)) // np.int32(count)
        shape = self.turns.shape[1:]
        nothing = Folded(jnp.full(shape, -jnp.inf, messages.dtype), jnp.zeros(shape, jnp.int32))

        def of_chunk(chunk: jax.Array, before: Folded) -> Folded:
            candidate = chunk * np.int32(count) + lax.iota(jnp.int32, count)
            found = self._of_candidates(lanes, messages, candidate)
            takes = found.best > before.best
            return Folded(*(jnp.where(takes, x, y) for x, y in zip(found, before, strict=True)))

        if count == self.turns.candidates:
            return of_chunk(jnp.int32(0), nothing)
        return lax.fori_loop(jnp.int32(0), chunks, of_chunk, nothing)

    def _of_candidates(self, lanes: Lanes, messages: jax.Array, candidate: jax.Array) -> Folded:
        """As `folded`, of some candidates."""
        number = candidate[None, None, None]
        digits = number // lanes.divisors[..., None] % lanes.extents[..., None]  # (W, D, K, C)
        moved = jnp.sum(digits * lanes.others[..., None], 2, dtype=jnp.int32)
        sent = jnp.sum(at_places(messages, lanes.messages[..., None] + digits), 2)
        value = lax.broadcasted_iota(jnp.int32, (1, 1, self.turns.shape[3]), 2)
        rows = lanes.starts[..., None] + value * lanes.strides[..., None]
        has_value = value < lanes.sizes[:, None, None]
        has_candidate = number[0] < lanes.counts[..., None]
        exists = has_value[..., None] & has_candidate[:, :, None]
        places = jnp.where(exists, rows[..., None] + moved[:, :, None], 0)  # (W, D, A, C)
        scores = at_places(self.entries, places) - sent[:, :, None]
        scores = jnp.where(exists, scores, -jnp.inf)
        first = jnp.argmax(scores, 3)[..., None]
        best = jnp.take_along_axis(scores, first, 3)
        return Folded(best[..., 0], jnp.take_along_axis(places, first, 3)[..., 0])

    def step(
        self, messages: jax.Array, turn: jax.Array, way: jax.Array
    ) -> tuple[jax.Array, Chosen]:
        """The messages after the variables of a turn took from their tables what these hold of
        them, and gave a share to each that has variables still to come. A value that has no
        possible assignment has messages inf.
        """
        lanes = self.lanes(turn)
        best, entry = self.folded(lanes, messages)
        exists = (lanes.counts > 0)[..., None]
        total = self.own[turn] + jnp.sum(jnp.where(exists, best, 0), 1)
        value = jnp.argmax(total, 1)
        is_possible = (total > -jnp.inf)[:, None]
        below = jnp.where(total > -jnp.inf, total - jnp.max(total, 1, keepdims=True), 0)
        given = self._given(lanes, way, below[:, None])
        new = jnp.where(is_possible, best - given, jnp.inf)
        new = jnp.where(exists, new, 0)
        chosen = Chosen(jnp.where(is_possible & exists, entry, -1), value.astype(jnp.int32))
        return self.written(turn, messages, new), chosen

    def _given(self, lanes: Lanes, way: jax.Array, x: jax.Array) -> jax.Array:
        """The share of what each place has, (W, D, A), that its table is given."""
        most = jnp.max(jnp.sum(lanes.gives, 1), 1)
        weights = 1 / jnp.maximum(most, 1).astype(x.dtype)
        return jnp.where(lanes.gives[..., way, None] > 0, weights[:, None, None] * x, 0)

    def swept(self, sweeps: int, keeps: bool) -> tuple[jax.Array, Chosen | None]:
        """The messages after some sweeps; and what each pass of each sweep chose."""
        shape = self.turns.shape
        start = jnp.zeros(shape[0] * shape[1] * shape[2] * shape[3] + 1, self.entries.dtype)

        def sweep(messages: jax.Array, _: None) -> tuple[jax.Array, Chosen | None]:
            return lax.scan(one, messages, self._order())

        def one(
            messages: jax.Array, at: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, Chosen | None]:
            messages, chosen = self.step(messages, *at)
            return messages, chosen if keeps else None

        return lax.scan(sweep, start, None, sweeps)

    def _order(self) -> tuple[jax.Array, jax.Array]:
        """The turn and the way of each step of a sweep."""
        turns = np.arange(self.turns.shape[0], dtype=np.int32)
        there = np.zeros_like(turns)
        return (
            jnp.asarray(np.concatenate([turns, turns[::-1]])),
            jnp.asarray(np.concatenate([there, there + 1])),
        )

    def ended(self, messages: jax.Array) -> tuple[jax.Array, Derivatives]:
        """The bound of some messages, and its derivatives with these."""
        shape = self.turns.shape
        of = Derivatives(
            jnp.zeros_like(self.entries), jnp.zeros_like(self.own), jnp.zeros_like(messages)
        )

        def one(of: Derivatives, turn: jax.Array) -> tuple[Derivatives, jax.Array]:
            lanes, sent = self.lanes(turn), self.messages_of(turn, messages)
            folded = self.folded(lanes, messages)
            scores = folded.best - sent
            best = jax.nn.one_hot(jnp.argmax(scores, 2), shape[3], dtype=scores.dtype)
            is_first = (lanes.is_first > 0)[..., None]
            best = jnp.where(is_first, best, 0)
            of = self.spread(lanes, of, folded.entry, best)
            is_possible = ~jnp.any(sent == jnp.inf, 1)
            total = jnp.where(is_possible, self.own[turn] + jnp.sum(sent, 1), -jnp.inf)
            has_values = lanes.sizes > 0
            top = jax.nn.one_hot(jnp.argmax(total, 1), shape[3], dtype=scores.dtype)
            top = jnp.where(has_values[:, None], top, 0)
            own = self.messages_of(turn, of.messages) + top[:, None] - best
            tables = jnp.where(is_first[..., 0], jnp.max(scores, 2), 0)
            variables = jnp.where(has_values, jnp.max(total, 1), 0)
            of = of._replace(
                own=of.own.at[turn].add(top), messages=self.written(turn, of.messages, own)
            )
            return of, jnp.sum(tables) + jnp.sum(variables)

        turns = jnp.arange(shape[0], dtype=jnp.int32)
        of, parts = lax.scan(one, of, turns)
        scalars = at_places(self.entries, jnp.asarray(self.turns.scalars))
        return jnp.sum(parts) + jnp.sum(scalars), of

    def spread(self, lanes: Lanes, of: Derivatives, entry: jax.Array, x: jax.Array) -> Derivatives:
        """Add to the derivatives by some entries, and by the messages that each of these lacked."""
        inside = jnp.maximum(entry, 0) - lanes.starts[..., None]
        strides = jnp.maximum(lanes.others, 1)[:, :, None]
        digits = inside[..., None] // strides % lanes.extents[:, :, None]  # (W, D, A, K)
        places = lanes.messages[:, :, None] + digits
        given = jnp.broadcast_to(x[..., None], places.shape)
        entries = of.entries.at[jnp.maximum(entry, 0)].add(x, mode="promise_in_bounds")
        messages = of.messages.at[places].add(-given, mode="promise_in_bounds")
        return of._replace(entries=entries, messages=messages)

    def back(self, of: Derivatives, chosen: Chosen) -> Derivatives:
        """The derivatives before all sweeps, from those after them."""

        def sweep(of: Derivatives, chosen: Chosen) -> tuple[Derivatives, None]:
            return lax.scan(one, of, (*self._order(), chosen), reverse=True)

        def one(
            of: Derivatives, at: tuple[jax.Array, jax.Array, Chosen]
        ) -> tuple[Derivatives, None]:
            return self.step_back(of, *at), None

        return lax.scan(sweep, of, chosen, reverse=True)[0]

    def step_back(
        self, of: Derivatives, turn: jax.Array, way: jax.Array, chosen: Chosen
    ) -> Derivatives:
        """From the derivatives by what a step wrote to those by what it read."""
        lanes, is_chosen = self.lanes(turn), chosen.entry >= 0
        sent = jnp.where(is_chosen, self.messages_of(turn, of.messages), 0)
        given = self._given(lanes, way, sent)
        top = jax.nn.one_hot(chosen.value, self.turns.shape[3], dtype=sent.dtype)
        total = top * jnp.sum(given, (1, 2))[:, None] - jnp.sum(given, 1)
        messages = self.written(turn, of.messages, jnp.zeros_like(sent))
        of = of._replace(own=of.own.at[turn].add(total), messages=messages)
        folded = jnp.where(is_chosen, sent + total[:, None], 0)
        return self.spread(lanes, of, chosen.entry, folded)

    def shares(self, of: Derivatives) -> jax.Array:
        """The derivative by the entries of all tables."""
        turns = self.turns
        singles = at_places(of.own.reshape(-1), jnp.asarray(turns.values))
        return of.entries.at[turns.singles].set(singles).at[turns.scalars].set(1)


def bounded(
    turns: Turns, entries: jax.Array, sweeps: int, with_shares: bool
) -> tuple[jax.Array, ...]:
    """The upper bound, NaN where an entry is NaN or inf; and its derivative by the entries, 0 where
    it is not finite.
    """
    network = Sweeps(turns, entries)
    messages, chosen = network.swept(sweeps, keeps=with_shares)
    bound, of = network.ended(messages)
    bound = jnp.where(jnp.all(entries < jnp.inf), bound, jnp.nan)
    if chosen is None:
        return (bound,)
    shares = network.shares(network.back(of, chosen))
    return bound, jnp.where(jnp.isfinite(bound), shares, 0)
