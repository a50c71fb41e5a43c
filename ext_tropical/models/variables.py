"""The variables of tables: names, letters in an einsum, values, and the order of a chain."""

from __future__ import annotations

import collections
import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol
from opt_einsum.paths import ssa_to_linear

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, shortened
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, as_index, shown

from ..native.library import is_on_host

Variable: TypeAlias = str | int | enum.Enum
"""The name of a variable."""
Scopes: TypeAlias = Sequence[tuple[Variable, ...]]
"""The variables of each table."""
Index: TypeAlias = int | np.integer | jax.Array
"""A value of a variable."""


def checked(scopes: Sequence[Sequence[Variable]], tables: Sequence[Any]) -> tuple[Any, ...]:
    """The tables as arrays.

    Raises:
      InvalidConfig: a table has a variable twice.
      ShapeError: a table does not fit its variables.
      DTypeError: not an array, or several dtypes.
    """
    if not tables:
        raise InvalidConfig(where="Network", given="no table", needed="at least one")
    arrays = tuple(as_array(x, f"Network, table {i}") for i, x in enumerate(tables))
    sizes: dict[Variable, int] = {}
    for i, (scope, x) in enumerate(zip(scopes, arrays, strict=True)):
        names = ", ".join(map(str, scope)) or "no variable"
        _require_fit(f"Network, table {i} of {names}", scope, x.shape, sizes)
    dtypes = sorted({str(x.dtype) for x in arrays})
    if len(dtypes) > 1:
        raise DTypeError(
            where="Network, tables", given=", ".join(dtypes), needed="one dtype for all"
        )
    return arrays


def _require_fit(
    where: str, scope: Sequence[Variable], shape: Sequence[int], sizes: dict[Variable, int]
) -> None:
    """Refuse a table that does not fit its variables; adds their sizes to those known so far."""
    if len(set(scope)) < len(scope):
        raise InvalidConfig(
            where=where, given="a variable twice", needed="each variable at most once"
        )
    if len(scope) != len(shape):
        raise ShapeError(
            where=where,
            given=f"shape {shape}",
            needed="an axis for each of its variables",
            fix=_several(scope, len(shape)),
        )
    for name, size in zip(scope, shape, strict=True):
        if sizes.setdefault(name, size) != size or size == 0:
            raise ShapeError(
                where=f"{where}, variable {name!r}",
                given=f"{size} values",
                needed=f"{sizes[name]}, as before" if size else "at least one value",
            )


def _several(scope: Sequence[Variable], axes: int) -> str:
    """Advice where one name may be a word of several letters that stand for variables."""
    name = scope[0] if len(scope) == 1 else ""
    return f"For {axes} variables write {tuple(str(name))}." if len(str(name)) == axes else ""


def distinct(scopes: Sequence[Sequence[Variable]]) -> list[Variable]:
    """The variables of tables in the order of first appearance."""
    return list(dict.fromkeys(name for scope in scopes for name in scope))


def holders(
    scopes: Sequence[Sequence[Variable]], tables: Sequence[np.ndarray | jax.Array]
) -> dict[Variable, int]:
    """For each variable the number of the smallest table that has it, the first of several; a
    symbolic size counts as the smallest.
    """
    found: dict[Variable, int] = {}
    sizes = [table.size if isinstance(table.size, int) else 0 for table in tables]
    for i in sorted(range(len(tables)), key=sizes.__getitem__):
        for name in scopes[i]:
            found.setdefault(name, i)
    return found


def equation(scopes: Sequence[Sequence[Variable]], output: Sequence[Variable]) -> str:
    """The einsum of tables, a letter for each variable in the order of first appearance."""
    label = {name: get_symbol(i) for i, name in enumerate(distinct(scopes))}
    *inputs, result = ("".join(map(label.__getitem__, scope)) for scope in (*scopes, output))
    return f"{','.join(inputs)}->{result}"


def groups(
    scopes: Sequence[Sequence[Variable]], names: frozenset[Variable]
) -> Iterator[tuple[int, ...]]:
    """The tables that some of these variables connect; the others each by itself."""
    left = dict.fromkeys(range(len(scopes)))
    while left:
        group = [next(iter(left))]
        left.pop(group[0])
        for i in group:  # which grows
            shared = names.intersection(scopes[i])
            for j in [j for j in left if not shared.isdisjoint(scopes[j])]:
                group.append(j)
                left.pop(j)
        yield tuple(sorted(group))


@functools.lru_cache(maxsize=64)
def chain_order(scopes: tuple[tuple[Variable, ...], ...]) -> tuple[Variable, ...]:
    """The variables of tables that form a chain, from the end that is named first; none of others.
    A chain has one table of each variable and the next, and any number of tables of one variable.
    """
    beside: dict[Variable, list[Variable]] = {name: [] for scope in scopes for name in scope}
    for scope in scopes:
        if not 1 <= len(scope) <= 2:
            return ()
        if len(scope) == 2:
            beside[scope[0]].append(scope[1])
            beside[scope[1]].append(scope[0])
    ends = [name for name, others in beside.items() if len(others) == 1]
    if len(ends) != 2 or any(len(others) > 2 for others in beside.values()):
        return ()
    order = ends[:1]
    while following := [x for x in beside[order[-1]] if x not in order[-2:]]:
        order += following
    return tuple(order) if len(order) == len(beside) else ()


def chain_places(scopes: Scopes, order: Sequence[Variable]) -> tuple[list[list[int]], list[int]]:
    """For each variable of a chain the numbers of the tables that it has alone; for each but the
    last that of the table with the next.
    """
    at = {name: i for i, name in enumerate(order)}
    own: list[list[int]] = [[] for _ in order]
    pairs = [0] * (len(order) - 1)
    for number, scope in enumerate(scopes):
        if len(scope) == 1:
            own[at[scope[0]]].append(number)
        else:
            pairs[min(at[name] for name in scope)] = number
    return own, pairs


def chain_path(scopes: Scopes) -> list[tuple[int, ...]] | None:
    """The contractions of a chain from its last variable to its first; None for other tables."""
    if not (order := chain_order(scopes)):
        return None
    own, pairs = chain_places(scopes, order)
    first, last = 0, len(order) - 1
    # A plan first sums the labels that one table alone has; such an end leaves its neighbour a
    # table more.
    if not own[first]:
        own[1].append(pairs[0])
        first = 1
    if not own[last]:
        last -= 1
        own[last].append(pairs[last])
    steps: list[tuple[int, ...]] = []

    def joined(*parts: int) -> int:
        steps.append(parts)
        return len(scopes) + len(steps) - 1

    held: list[int] = []
    for i in range(last, first - 1, -1):
        if own[i]:
            held.append(functools.reduce(joined, own[i]))
        held = [functools.reduce(joined, held), *pairs[max(i - 1, 0) : i]]
    return [*ssa_to_linear(steps)]


def name_of(given: object) -> Variable | None:
    """The name of a variable as it is kept, those of NumPy as Python's; None for what is no name.

    Example:
      >>> name_of(np.str_("a")), name_of(np.int64(2)), name_of(("a", "b")), name_of(True)
      ('a', 2, None, None)
    """
    if isinstance(given, enum.Enum):
        return given
    return str(given) if isinstance(given, str) else as_index(given)


def names_of(given: object) -> tuple[Variable, ...]:
    """The variables of a table: one name, or some.

    Raises:
      InvalidConfig: something else.
    """
    name = name_of(given)
    parts = [given] if name is not None or not isinstance(given, Iterable) else [*given]
    names = [*map(name_of, parts)]
    for part, known in zip(parts, names, strict=True):
        if known is None:
            raise _no_names(f"{shown(part)} of type {type(part).__name__}")
    return tuple(x for x in names if x is not None)


def require_names(names: Sequence[Variable]) -> None:
    """Refuse names of several kinds, which have no order."""
    kinds = {_kind(name) for name in names}
    if len(kinds) > 1:
        raise _no_names(f"names of type {', '.join(sorted(kind.__name__ for kind in kinds))}")


def _no_names(given: str) -> InvalidConfig:
    return InvalidConfig(
        where="Network.from_factors, names",
        given=given,
        needed="variables that are all text, all integers, or all members of an Enum",
    )


def _kind(name: Variable) -> type:
    return next(kind for kind in (str, int, enum.Enum) if isinstance(name, kind))


_Value = TypeVar("_Value")


def by_variable(names: Iterable[Variable], values: Iterable[_Value]) -> dict[Variable, _Value]:
    """A dict that JAX takes as a pytree: it sorts the keys of a dict, but for an OrderedDict, and
    members of an Enum have no order.
    """
    named = dict(zip(names, values, strict=True))
    is_sorted = all(isinstance(name, str | int) for name in named)
    return named if is_sorted else collections.OrderedDict(named)


def pairs_of(where: str, given: object, needed: str) -> list[tuple[Any, Any]]:
    """The items of a mapping, or pairs as they are.

    Raises:
      InvalidConfig: neither.
    """
    items = given.items() if isinstance(given, Mapping) else given
    try:
        return [(key, value) for key, value in cast(Iterable[Any], items)]
    except (TypeError, ValueError) as error:
        raise InvalidConfig(where=where, given=shown(given), needed=needed) from error


def require_known(name: object, known: Mapping[Variable, int], where: str) -> Variable:
    """The name of a variable.

    Raises:
      InvalidConfig: there is none of this name.
    """
    found = name_of(name)
    if found is None or found not in known:
        raise InvalidConfig(
            where=f"Network.{where}",
            given=shown(name),
            needed=f"one of {shortened(', '.join(map(repr, known)))}",
            fix="Pass several names one by one." if isinstance(name, list | tuple) else "",
        )
    return found


def index(name: Variable, value: Any, size: int) -> Any:
    """A value of a variable; a tracer as it is."""
    if isinstance(value, jax.core.Tracer):
        if value.shape == () and jnp.issubdtype(value.dtype, jnp.integer):
            return value
    else:
        at = as_index(value)
        is_below = not isinstance(size, int) or at is None or at < size
        if at is not None and at >= 0 and is_below:  # beyond a symbolic size is NaN
            return at
    raise InvalidConfig(
        where=f"Network.given, variable {name!r}",
        given=shown(value),
        needed=f"an integer, 0 to {size - 1}",
        fix="Values of variables are numbered from 0.",
    )


def taken(table: np.ndarray | jax.Array, index: Index, axis: int) -> Any:
    """The part of a table at an index of an axis; NaN, or the least integer, outside of it."""
    if isinstance(table, np.ndarray) and isinstance(index, int):
        return table.take(index, axis)

    def part(table: jax.Array, index: Index) -> jax.Array:
        index = jnp.asarray(index, jnp.int32)
        index = jnp.where(index < 0, table.shape[axis], index)  # `take` counts them from the end
        return jnp.take(table, index, axis, mode="fill")

    def spec(table: jax.Array, _: Index) -> jax.P:
        return jax.P(*np.delete(np.array(jax.typeof(table).sharding.spec, object), axis))

    return on_automatic_axes(part, spec)(jnp.asarray(table), index)


def summed_to(name: Variable, scope: Sequence[Variable], table: jax.Array) -> Any:
    """The shares of a variable's values, which sum to 1, from those of a table's entries."""
    rest = tuple(i for i, other in enumerate(scope) if other != name)
    # On the host in NumPy: JAX would run two programs a table.
    total = (np.asarray(table) if is_on_host(table) else table).sum(rest)
    with np.errstate(invalid="ignore"):  # 0 / 0 where all assignments are impossible
        return total / total.sum()


def as_floats(table: np.ndarray) -> np.ndarray:
    """Scores of integers in float64, the least integer as -inf: it is impossible; floats as they
    are.
    """
    if not np.issubdtype(table.dtype, np.integer):
        return table
    return np.where(table == np.iinfo(table.dtype).min, -np.inf, table.astype(np.float64))


def is_finite(value: jax.Array) -> bool:
    """Whether a number is known and finite."""
    return not isinstance(value, jax.core.Tracer) and bool(np.isfinite(np.asarray(value)).all())


def require_finite(question: str, value: jax.Array) -> None:
    """Refuse a network without a possible assignment, or with a score of NaN or inf, by the log of
    its partition function; not inside a transform.
    """
    if not isinstance(value, jax.core.Tracer) and not np.isfinite(np.asarray(value)):
        raise InvalidConfig(
            where=f"Network.{question}",
            given="a network whose assignments all have the score -inf"
            if value == -jnp.inf
            else "a score of NaN or inf",
            needed="tables and evidence that allow an assignment, and scores below inf",
        )


def spread(x: np.ndarray, term: Sequence[Variable], order: Sequence[Variable]) -> np.ndarray:
    """An array with an axis for each label in an order, of size 1 for those it lacks."""
    axes = [term.index(label) for label in order if label in term]
    shape = [x.shape[term.index(label)] if label in term else 1 for label in order]
    return x.transpose(axes).reshape(shape)
