"""Networks whose tables form a chain: the order of their contractions, and their `Chain`.

Both go from the last variable to the first, add the same numbers in the same order, and walk back
alike. So both give the same best assignment: of equally good ones the first by the order of the
chain. The `Chain` answers faster, but takes one array: under jit XLA needs seconds to compile the
stacking of 2,000 tables, so traced tables stay in their plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from tenferro_jax.shapes import canonical_dtype

from ..native.library import is_on_host
from ..semirings.shipped import LogSumExp
from ..sequences.chain import Chain
from ..steps.evaluate import Assignment
from ..steps.labels import Labels
from .factors import Factors
from .relative import have_small_sums, without_shared
from .variables import Variable, by_variable, chain_order, chain_places, is_finite

WORTH_A_CHAIN = 16  # variables, from which a `Chain` is faster at later calls than a plan


class ChainForm(NamedTuple):
    """The scores of a chain, in NumPy.

    Attributes:
      order: the variables.
      own: (variables, values), the sums of the tables that each variable has alone, or 0.
      moves: (variables - 1, values, values), the tables of each variable and the next.
      has_first: whether the first variable has a table alone.
    """

    order: Sequence[Variable]
    own: np.ndarray
    moves: np.ndarray
    has_first: bool

    def chain(self, temperature: float = 1.0) -> Chain:
        """Of scores / temperature; its times are the variables from last to first. Where they are
        beyond floats its answers are not finite.
        """
        t = self.own.dtype.type(LogSumExp(temperature).temperature)
        with np.errstate(over="ignore"):
            own, moves = self.own[::-1] / t, self.moves[::-1].swapaxes(1, 2) / t
        return Chain(np.zeros_like(own[0]), moves, own)

    def best(self) -> Assignment | None:
        """As that of the plan; None inside a transform, or if all assignments are impossible."""
        own, moves, ends = self.own, self.moves, []
        if not self.has_first:  # the plan sums it before all others, so it is chosen at the end
            own = np.concatenate([own[1:2] + moves[0].max(0), own[2:]])
            moves, ends = moves[1:], [moves[0].argmax(0)]
        found = ChainForm((), own, moves, True).chain().best()
        if isinstance(found.score, jax.core.Tracer):
            return None
        states = np.asarray(found.states)[::-1]
        if states[0] < 0:
            return None
        labels = np.array([*(choice[states[0]] for choice in ends), *states], np.int32)
        named = Labels(self.order, jax.device_put(labels))
        return Assignment(found.score, named, jax.device_put(np.True_))

    def entropy(self, temperature: float) -> jax.Array | None:
        """In NumPy, which compiles nothing; None inside a transform, or if it is not finite."""
        found = self.chain(temperature).marginals()
        if not is_finite(found.log_partition):
            return None

        def entropy(chances: jax.Array) -> np.float64:
            p = np.asarray(chances, np.float64)
            return -np.sum(p * np.log(np.where(p > 0, p, 1)))

        # Of the first state, and of each next one if that before it is known. Scores are not in it,
        # whose digits a large one would cost.
        states, pairs = found.states, found.transitions
        total = entropy(states[0]) + entropy(pairs) - entropy(states[:-1])
        return jax.device_put(self.own.dtype.type(max(total, 0)))

    def named(self, values: np.ndarray) -> dict[Variable, jax.Array]:
        """Values for each variable, from first to last."""
        return by_variable(self.order, jax.device_put(list(values)))


def chain_form(net: Factors, temperature: float | None = None) -> ChainForm | None:
    """That of a network of a chain, if its tables are concrete, on the host, floats of 32 or 64
    bits and of one size, and nothing is said of their plan; else None.

    Args:
      net: the network.
      temperature: of the probabilities that are asked for, whose tables are less what their
        entries share where that is large. Without one scores stay as they are, and so do ties of
        rounded sums.
    """
    dtype = canonical_dtype(net.tables[0].dtype)
    sizes = {size for x in net.tables for size in x.shape}
    if (
        len(sizes) > 1
        or dtype not in (np.float32, np.float64)
        or (net.optimize, net.memory_limit) != ("auto", None)
        or len(order := chain_order(net.scopes)) < WORTH_A_CHAIN
        or not is_on_host(*net.tables)
    ):
        return None
    tables = list(map(np.asarray, net.tables))
    if temperature is not None and not have_small_sums(tables, temperature):
        tables = without_shared(tables)[0]
    alone, pairs = chain_places(net.scopes, order)
    own = np.zeros((len(order), *sizes), dtype)
    with np.errstate(invalid="ignore"):  # inf - inf
        for row, numbers in zip(own, alone, strict=True):
            for i in numbers:
                row += tables[i]
    moves = np.empty((len(pairs), *sizes, *sizes), dtype)
    for x, i, name in zip(moves, pairs, order, strict=False):
        x[...] = tables[i] if net.scopes[i][0] == name else tables[i].T
    return ChainForm(order, own, moves, bool(alone[0]))
