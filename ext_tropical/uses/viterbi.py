"""The best state sequence of a hidden Markov model: a chain of vector-matrix steps, whose winners
are read backwards.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.errors import ShapeError
from tenferro_jax.shapes import as_array

from ..algebra.semiring import SelectiveSemiring, as_selective
from ..algebra.shipped import max_plus
from ..network.tropical_einsum import tropical_einsum_with_argmax
from ..step.einsum_op import one_dtype


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ViterbiResult:
    """The best state sequence, as a pytree.

    Attributes:
      score: its score, a scalar in the dtype of the inputs; the semiring's zero if no sequence is
        possible.
      states: int32 (T,), the states from first to last; -1 if no sequence is possible.
      feasible: a boolean scalar, whether any sequence is possible.
    """

    score: jax.Array
    states: jax.Array
    feasible: jax.Array


def viterbi(
    log_initial: jax.typing.ArrayLike,
    log_transition: jax.typing.ArrayLike,
    log_emission: jax.typing.ArrayLike,
    *,
    semiring: SelectiveSemiring | str = max_plus,
) -> ViterbiResult:
    """The best of all sequences of T states among S.

    The score of a sequence s is log_initial[s0] + log_emission[0, s0] + log_transition[s0, s1] +
    log_emission[1, s1] + ..., with the semiring's times for +. Log probabilities under max_plus,
    costs under min_plus, probabilities under max_mul.

    Args:
      log_initial: (S,), of the first state.
      log_transition: (S, S), from the row's state to the column's.
      log_emission: (T, S), of the observation at each time, given each state. S and T are at least
        1. All have one dtype, which the semiring takes. Scores are added in this dtype: convert
        16-bit floats for long sequences.
      semiring: a selective semiring, or its name.

    Returns:
      A ViterbiResult: score, int32 states (T,), feasible. Of equally good last states the smallest
      is taken; then, going back, the smallest of the equally good states before each state.

    Raises:
      ShapeError, DTypeError: the inputs do not fit.
      InvalidConfig: no selective semiring.

    Gradient: of the score, one at each entry that the sequence uses, as often as it uses it (under
    max_plus and min_plus).

    Cost: T S**2 time; memory for T S winners. Many sequences at once: jax.vmap.

    Example:
      >>> import jax.numpy as jnp
      >>> stay, move = -0.1, -2.4
      >>> result = viterbi(
      ...     jnp.array([-0.7, -0.7]),
      ...     jnp.array([[stay, move], [move, stay]]),
      ...     jnp.array([[-0.1, -3.0], [-0.1, -2.0], [-3.0, -0.1], [-3.0, -0.1]]),
      ... )
      >>> result.states.tolist(), round(float(result.score), 2)
      ([0, 0, 1, 1], -3.7)
    """
    algebra = as_selective(semiring, "viterbi")
    named = {
        "log_initial": log_initial,
        "log_transition": log_transition,
        "log_emission": log_emission,
    }
    initial, transition, emission = (
        jnp.asarray(as_array(x, f"viterbi, {name}")) for name, x in named.items()
    )
    _require_shapes(initial.shape, transition.shape, emission.shape)
    one_dtype(
        "viterbi", algebra, [x.dtype for x in (initial, transition, emission)], [*named.values()]
    )
    return ViterbiResult(*_decode(initial, transition, emission, algebra))


@functools.partial(jax.jit, static_argnums=3)
def _decode(
    initial: jax.Array, transition: jax.Array, emission: jax.Array, semiring: SelectiveSemiring
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def forward(
        carry: tuple[jax.Array, jax.Array],
        seen: jax.Array,
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        best = semiring.times(carry[0], seen)
        arrived = tropical_einsum_with_argmax("i,ij->j", best, transition, semiring=semiring)
        return (arrived.value, best), arrived.winner

    (_, best), winners = lax.scan(forward, (initial, initial), emission)
    last = tropical_einsum_with_argmax("i->", best, semiring=semiring)

    def back(state: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        before = winners[t, state]
        return before, before

    winners = winners.at[-1].set(last.winner)  # the additional last step has no next state
    # Over descending times instead of reverse=True, because converters of jaxprs support only
    # forward scans.
    _, backwards = lax.scan(back, last.winner, jnp.arange(emission.shape[0])[::-1])
    return last.value, jnp.where(last.feasible, backwards[::-1], -1), last.feasible


def _require_shapes(
    initial: tuple[int, ...],
    transition: tuple[int, ...],
    emission: tuple[int, ...],
) -> None:
    count = initial[0] if len(initial) == 1 else 0
    if (
        count == 0
        or transition != (count, count)
        or len(emission) != 2
        or emission[0] == 0
        or emission[1] != count
    ):
        raise ShapeError(
            where="viterbi",
            given=f"log_initial of shape {initial}, log_transition of shape {transition}, "
            f"log_emission of shape {emission}",
            needed="shapes (S,), (S, S) and (T, S), S and T at least 1",
            fix="One row of log_emission for each time, one column for each state; for many "
            "sequences use jax.vmap.",
        )
