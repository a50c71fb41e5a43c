"""Whether bounds of a network hold, in fractions: nothing is rounded, and nothing of the search is
used. `certificate_problem` is plain Python, to be read by whoever doubts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from fractions import Fraction

import numpy as np

from .bounds import Bounds

Cell = tuple[int, ...]
Table = dict[Cell, Fraction]
"""The possible entries of a table, those above -inf."""


def certificate_problem(bounds: Bounds) -> str:
    """Why bounds do not hold of their network, or "" if they do.

    The messages give each table's numbers to its variables, so that each assignment keeps its
    score; then the largest entries must not add up to more than `upper`. The labels must have the
    score `lower`, rounded once. `proved` follows from the two; `uppers` is not judged.

    Cost: some microseconds for each entry of the tables.

    Example:
      >>> import dataclasses
      >>> from ext_tropical import Network
      >>> from ext_tropical.models import certificate_problem
      >>> bounds = Network("ab,b->", [[0.0, 1.0], [2.0, 0.0]], [0.0, 0.5]).bounds()
      >>> certificate_problem(bounds), certificate_problem(dataclasses.replace(bounds, upper=1.0))
      ('', 'an upper bound of 2.0, not of 1.0')
    """
    try:
        return _problem(bounds)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return "messages or labels that do not fit the network"


def _problem(bounds: Bounds) -> str:
    """See `certificate_problem`; an error where something does not fit."""
    scopes = bounds.network.scopes
    tables = [_possible(x) for x in bounds.network.tables]
    sizes = {name: range(size) for name, size in bounds.network.variables.items()}
    allowed = _allowed(scopes, tables, sizes)
    upper = _upper(bounds, tables, allowed)
    if upper is not None and not upper <= _number(bounds.upper):
        return f"an upper bound of {float(upper)}, not of {bounds.upper}"
    labels = dict(zip(bounds.labels.names, np.asarray(bounds.labels.array).tolist(), strict=True))
    if bounds.lower != -math.inf:
        lower = Fraction(0)
        for scope, table in zip(scopes, tables, strict=True):
            cell = tuple(labels[name] for name in scope)
            if cell not in table:
                return "labels that are impossible"
            lower += table[cell]
        if float(lower) != bounds.lower:
            return f"labels whose score is {float(lower)}, not {bounds.lower}"
    return ""


def _number(x: float) -> Fraction | float:
    """A float as a fraction, if it is finite."""
    return Fraction(x) if math.isfinite(x) else x


def _possible(table: object) -> Table:
    """The entries above -inf."""
    entries = np.ndenumerate(np.asarray(table))
    return {cell: Fraction(float(x)) for cell, x in entries if x > -math.inf}


def _allowed(
    scopes: Sequence[Sequence[Hashable]], tables: list[Table], sizes: dict[Hashable, range]
) -> dict[Hashable, set[int]]:
    """The values of each variable that some entry of each of its tables has; entries that have
    another value are left out of the tables, until nothing changes.
    """
    allowed = {name: set(values) for name, values in sizes.items()}
    changed = True
    while changed:
        changed = False
        for i, (scope, table) in enumerate(zip(scopes, tables, strict=True)):
            sets = [allowed[name] for name in scope]
            kept = {cell: x for cell, x in table.items() if all(map(set.__contains__, sets, cell))}
            changed |= len(kept) < len(table)
            tables[i] = kept
            for axis, name in enumerate(scope):
                held = allowed[name] & {cell[axis] for cell in kept}
                changed |= len(held) < len(allowed[name])
                allowed[name] = held
    return allowed


def _upper(
    bounds: Bounds, tables: list[Table], allowed: dict[Hashable, set[int]]
) -> Fraction | None:
    """The sum of the largest entries; None if no assignment is possible."""
    own = {name: dict.fromkeys(values, Fraction(0)) for name, values in allowed.items()}
    total = Fraction(0)
    for scope, table, messages in zip(bounds.network.scopes, tables, bounds.messages, strict=True):
        if not table:
            return None
        given = [list(map(Fraction, x.tolist())) for x in messages]
        rest = [x - sum(map(list.__getitem__, given, cell)) for cell, x in table.items()]
        if len(scope) == 1:
            for (a,), x in table.items():
                own[scope[0]][a] += x
            continue
        for name, message in zip(scope, given, strict=True):
            for a in allowed[name]:
                own[name][a] += message[a]
        total += max(rest)
    return total + sum(max(values.values()) for values in own.values())
