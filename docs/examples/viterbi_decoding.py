"""The dishonest casino: which of 300 rolls were made with a loaded die? Viterbi decoding of a
hidden Markov model.

The best path by a scan over the rolls, and the same by one einsum over the whole chain of 300
unknown dice.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import numpy as np

from ext_tropical import best_assignment, viterbi

# R. Durbin, S. Eddy, A. Krogh and G. Mitchison, Biological Sequence Analysis, 1998, section 3.2:
# model and rolls.
ROLLS = (
    "315116246446644245311321631164152133625144543631656626566666651166453132651245636664631636663162326455236266666625151631"
    "222555441666566563564324364131513465146353411126414626253356366163666466232534413661661163252562462255265252266435353336"
    "233121625364414432335163243633665562466662632666612355245242"
)
INITIAL = np.array([2 / 3, 1 / 3])
TRANSITION = np.array([[0.95, 0.05], [0.1, 0.9]])
FACES = np.array([[1 / 6] * 6, [0.1] * 5 + [0.5]])


class Chain(NamedTuple):
    """A hidden Markov model of one sequence, in logs: (S,), (S, S) and (T, S)."""

    initial: np.ndarray
    transition: np.ndarray
    emission: np.ndarray


def casino(rolls: str) -> Chain:
    """State 0 is the fair die, state 1 the loaded one; the first die is drawn from the stationary
    distribution.
    """
    return Chain(
        np.log(INITIAL), np.log(TRANSITION), np.log(FACES[:, [int(roll) - 1 for roll in rolls]].T)
    )


def by_scan(chain: Chain) -> tuple[float, list[int]]:
    """The greatest log probability of a path of states, and the path."""
    best = viterbi(*chain)
    return float(best.score), best.states.tolist()


def by_one_einsum(chain: Chain) -> tuple[float, list[int]]:
    """The same: label t is the state at roll t; there is an operand for each roll and for each pair
    of rolls.
    """
    rolls = [(scores, [t]) for t, scores in enumerate(chain.emission)]
    pairs = [(chain.transition, [t, t + 1]) for t in range(len(chain.emission) - 1)]
    best = best_assignment(chain.initial, [0], *itertools.chain.from_iterable(rolls + pairs), [])
    return float(best.value), [*best.labels.tolist().values()]


def main() -> None:
    """The score and the decoded dice below the rolls."""
    with jax.enable_x64(True):
        chain = casino(ROLLS)
        score, states = by_scan(chain)
        again, _ = by_one_einsum(chain)
    print(f"log probability of the best path: {score:.6f} by a scan, {again:.6f} by one einsum")
    print(f"{sum(states)} of {len(ROLLS)} rolls are decoded as loaded (L):")
    for start in range(0, len(ROLLS), 60):
        print("  " + ROLLS[start : start + 60])
        print("  " + "".join("FL"[state] for state in states[start : start + 60]))


if __name__ == "__main__":
    main()
