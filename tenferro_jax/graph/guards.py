"""Guards: equalities of symbolic sizes that a graph assumes, decided as soon as the sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..dimensions import SymDim, are_equal
from ..errors import ShapeConstraintViolation


class Guard(NamedTuple):
    """Two dimensions that must turn out equal, and where that was assumed.

    Example:
      >>> import jax.export
      >>> b, c = jax.export.symbolic_shape("b, c")
      >>> print(Guard(b, c, "an op"))
      b == c
    """

    lhs: SymDim
    rhs: SymDim
    where: str

    def __str__(self) -> str:
        return f"{self.lhs} == {self.rhs}"


def canonical_guards(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """The guards that are still undecided, each once, in the order of their text.

    Raises:
      ShapeConstraintViolation: one does not hold.
    """
    kept: dict[str, Guard] = {}
    for lhs, rhs, where in guards:
        first, second = sorted((lhs, rhs), key=str)
        guard = Guard(first, second, where)
        equal = are_equal(lhs, rhs)
        if equal is None:
            kept.setdefault(str(guard), guard)
        elif not equal:
            raise _violation(guard, guard)
    return tuple(guard for _, guard in sorted(kept.items()))


def bound_guards(guards: Iterable[Guard], bind: Callable[[Any], Any]) -> tuple[Guard, ...]:
    """The guards under sizes for their symbols; those that hold then are gone.

    Raises:
      ShapeConstraintViolation: one does not hold; the text has its dimensions and their sizes.
    """
    bound = []
    for guard in guards:
        found = Guard(bind(guard.lhs), bind(guard.rhs), guard.where)
        if are_equal(found.lhs, found.rhs) is False:
            raise _violation(guard, found)
        bound.append(found)
    return canonical_guards(bound)


def _violation(guard: Guard, found: Guard) -> ShapeConstraintViolation:
    return ShapeConstraintViolation(
        where=guard.where,
        given=f"{found.lhs} for dimension {guard.lhs} and {found.rhs} for dimension {guard.rhs}",
        needed=f"{guard}, which the graph assumes",
    )
