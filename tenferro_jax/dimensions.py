"""Symbolic dimensions: comparison, evaluation, text and pickles; and guards, the equalities that
graphs assume.

JAX prints a dimension in the grammar of `jax.export.symbolic_shape`; this module reads and
evaluates that text. Reading text of unknown origin takes no more than its length.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from .errors import InvalidConfig, ShapeError, Unsupported
from .jax_seam import is_symbolic_dim, max_dim, min_dim, scope_constraints

SymDim: TypeAlias = Any
"""An int or a symbolic dimension of `jax.export.symbolic_shape`."""

_LONGEST = 1000  # characters of an expression
_CONSTRAINTS = 64  # in a scope
_HIGHEST = 99  # power
_GREATEST = 2**63 - 1  # number
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max_dim,
    "min": min_dim,
}
_COMPARISON = re.compile("(==|>=|<=)")
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
}


def are_equal(a: SymDim, b: SymDim) -> bool | None:
    """Whether two dimensions are equal; None if they are symbolic and JAX cannot decide.

    Example:
      >>> import jax.export
      >>> b, c = jax.export.symbolic_shape("b, c")
      >>> are_equal(b, b), are_equal(b, b + 1), are_equal(b, c)
      (True, False, None)
    """
    if a == b:
        return True
    try:
        return False if bool(a < b) or bool(a > b) else None
    except Exception:  # JAX raises InconclusiveDimensionOperation, across scopes a ValueError
        return None


def require_equal(a: SymDim, b: SymDim, where: str) -> None:
    """Require that two dimensions are equal.

    Raises:
      ShapeError: they are known to differ; or they are symbolic and JAX cannot decide; the text
        names the constraint to add.
    """
    equal = are_equal(a, b)
    if equal is None:
        raise undecided(a, b, where)
    if not equal:
        raise ShapeError(
            where=where,
            given=f"dimensions {a} and {b}",
            needed="equal dimensions",
        )


def undecided(a: SymDim, b: SymDim, where: str) -> ShapeError:
    """The error for two symbolic dimensions that may or may not be equal; it names the constraint
    to add.
    """
    if not is_symbolic_dim(a):
        a, b = b, a  # the form that JAX takes
    return ShapeError(
        where=where,
        given=f"dimensions {a} and {b}, which may or may not be equal",
        needed="equal dimensions",
        fix=f"Use one symbol for both, or add constraints=('{a} == {b}',) to "
        f"jax.export.symbolic_shape.",
        clause="X7.3",
    )


def bind_dim(dim: SymDim, sizes: Mapping[str, SymDim]) -> SymDim:
    """The value of a dimension expression for given sizes of its symbols.

    Example:
      >>> import jax.export
      >>> (d,) = jax.export.symbolic_shape("2*b + 1")
      >>> bind_dim(d, {"b": 5})
      11
    """
    if not is_symbolic_dim(dim):
        return dim
    try:
        return _evaluate(_parsed(str(dim)), sizes.__getitem__)
    except KeyError as error:
        raise InvalidConfig(
            where="a symbolic dimension",
            given=str(dim),
            needed=f"an expression over the symbols {sorted(sizes)}",
            fix="Every symbol of a graph must be the size of some axis of an input.",
        ) from error


def symbols_of(text: str) -> set[str]:
    """The symbols in a dimension or a constraint."""
    return {
        node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)
    } - _FUNCTIONS.keys()


def require_constraints(constraints: Sequence[str], sizes: Mapping[str, SymDim]) -> None:
    """Refuse sizes of symbols that JAX or a constraint excludes, as far as the sizes are known.

    Raises:
      ShapeError: a size below 1; or a constraint does not hold.
    """
    sizes = {name: size for name, size in sizes.items() if not is_symbolic_dim(size)}
    for name, size in sizes.items():
        if size < 1:
            raise ShapeError(
                where=f"symbol {name}",
                given=f"size {size}",
                needed="1 or more, because JAX assumes this of every symbol",
                fix="Trace the function separately for that size.",
            )
    for constraint in constraints if sizes else ():
        names = symbols_of(constraint)
        if names <= sizes.keys():
            left, comparison, right = _COMPARISON.split(constraint)
            a, b = (_evaluate(_parsed(side.strip()), sizes.__getitem__) for side in (left, right))
            if not _COMPARISONS[comparison](a, b):
                raise ShapeError(
                    where="symbols of the input shapes",
                    given=", ".join(f"{name} = {sizes[name]}" for name in sorted(names)),
                    needed=f"{constraint}, a constraint of the symbols",
                )


def read_dimension(text: str, scope: jax.export.SymbolicScope) -> SymDim:
    """The symbolic dimension that JAX prints as `text`, with symbols of the scope; ValueError if
    there is none.

    JAX expands products of sums, so a short text could become millions of terms. Here a factor must
    be one term, as in the text that JAX prints.

    Example:
      >>> read_dimension("2*b + 1", jax.export.SymbolicScope())
      2*b + 1
    """
    dimension = _expression(text, scope)
    if not is_symbolic_dim(dimension) or str(dimension) != text:
        raise ValueError(f"{text!r:.100} instead of a symbolic dimension as JAX prints it")
    return dimension


def constraint_texts(scope: jax.export.SymbolicScope) -> tuple[str, ...]:
    """The constraints of a scope from which `read_scope` makes one with the same constraints."""
    everything = scope_constraints(scope)
    kept = list(everything)
    for text in everything:  # of mod(b, 2) == 0 JAX says 2*floordiv(b, 2) == b too
        rest = [other for other in kept if other != text]
        if "floordiv" in text and scope_constraints(jax.export.SymbolicScope(rest)) == everything:
            kept = rest
    return tuple(kept)


def read_scope(constraints: Sequence[str]) -> jax.export.SymbolicScope:
    """A scope with these constraints, such as "b >= 8"; ValueError for invalid ones."""
    if len(constraints) > _CONSTRAINTS:
        raise ValueError(f"{len(constraints)} constraints, at most {_CONSTRAINTS} are allowed")
    scope = jax.export.SymbolicScope()
    for i, constraint in enumerate(constraints):
        left, *others = _COMPARISON.split(constraint)
        if len(others) != 2:
            raise ValueError(f"{constraint!r:.100} instead of two sides of ==, >= or <=")
        for side in (left, others[1]):  # before JAX expands them
            _expression(side.strip(), scope)
        scope = jax.export.SymbolicScope(constraints[: i + 1])
    return scope


@functools.lru_cache(maxsize=64)
def _read_again(scope: jax.export.SymbolicScope) -> jax.export.SymbolicScope:
    """The scope that a reader makes."""
    return read_scope(constraint_texts(scope))


def readable_text(dimension: SymDim, where: str) -> str:
    """The text of a symbolic dimension.

    Raises:
      Unsupported: a reader of pickles or files would refuse the text of the dimension or the
        constraints of its scope.
    """
    text = str(dimension)
    try:
        read_dimension(text, _read_again(dimension.scope))
    except Exception as error:  # the reader's, and those of JAX and of Python's parser
        raise Unsupported(
            where=where,
            given=f"symbols that no reader accepts: {type(error).__name__}: {error}",
            needed="dimensions and constraints within the bounds of docs/spec/wire_format.md",
            fix="Use separate symbols for large expressions, or fewer constraints.",
        ) from error
    return text


def _reduced(dimension: SymDim) -> Any:
    return read_dimension, (readable_text(dimension, "pickle"), dimension.scope)


# JAX's own pickles of dimensions cannot be read back after their hash or their bounds were
# computed. A pickle holds a scope once, so its dimensions are read into one new scope.
copyreg.pickle(type(jax.export.symbolic_shape("d")[0]), _reduced)
copyreg.pickle(jax.export.SymbolicScope, lambda scope: (read_scope, (constraint_texts(scope),)))


def _expression(text: str, scope: jax.export.SymbolicScope) -> SymDim:
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters in a dimension, at most {_LONGEST} are allowed")

    def symbol(name: str) -> SymDim:
        (made,) = jax.export.symbolic_shape(name, scope=scope)
        return made

    return _evaluate(_parsed(text), symbol, bounded=True)


def _parsed(text: str) -> ast.expr:
    """A dimension or a constraint as JAX prints it."""
    return ast.parse(text.replace("^", "**"), mode="eval").body


def _evaluate(node: ast.AST, symbol: Callable[[str], SymDim], *, bounded: bool = False) -> SymDim:
    """The value of an expression, with symbols from a function; if `bounded`, ValueError for
    products that JAX would expand for long.
    """

    def value(node: ast.AST) -> SymDim:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                if bounded and number > _GREATEST:
                    raise ValueError(
                        f"the number {number} in a dimension, at most 2**63 - 1 is allowed"
                    )
                return number
            case ast.Name(id=name):
                return symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                a, b = value(left), value(right)
                if bounded:
                    _require_one_term(op, a, b)
                return _OPERATORS[type(op)](a, b)
            case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if (
                name in _FUNCTIONS
            ):
                return _FUNCTIONS[name](value(left), value(right))
        raise ValueError(f"{ast.unparse(node)[:100]!r} in a dimension")

    return value(node)


def _require_one_term(op: ast.operator, a: SymDim, b: SymDim) -> None:
    """Refuse products and powers of sums, powers of numbers, and exponents that are high or not
    numbers.
    """
    if isinstance(op, ast.Pow) and not (
        is_symbolic_dim(a) and isinstance(b, int) and 0 <= b <= _HIGHEST
    ):
        raise ValueError(
            f"the power {b} of {a!s:.100} in a dimension, where only symbols may have powers, up "
            f"to {_HIGHEST}"
        )
    for factor in (a, b) if isinstance(op, ast.Mult | ast.Pow) else ():
        if is_symbolic_dim(factor):
            outermost = _parsed(str(factor))
            if isinstance(outermost, ast.BinOp) and isinstance(outermost.op, ast.Add | ast.Sub):
                raise ValueError(f"a product with the sum {factor!s:.100}")


class Guard(NamedTuple):
    """Two dimensions that are assumed to be equal, and where they were assumed.

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


def canonical_guards(
    guards: Iterable[Guard], bind: Callable[[SymDim], SymDim] = lambda size: size
) -> tuple[Guard, ...]:
    """The undecided guards, each once, in the order of their text; for other sizes of their symbols
    if `bind` gives them.

    Raises:
      ShapeError: a guard does not hold; the text has its dimensions and their sizes.
    """
    kept: dict[str, Guard] = {}
    for guard in guards:
        lhs, rhs = bind(guard.lhs), bind(guard.rhs)
        equal = are_equal(lhs, rhs)
        if equal is None:
            first, second = sorted((lhs, rhs), key=str)
            found = Guard(first, second, guard.where)
            kept.setdefault(str(found), found)
        elif not equal:
            raise ShapeError(
                where=guard.where,
                given=f"{lhs} for dimension {guard.lhs} and {rhs} for dimension {guard.rhs}",
                needed=f"{guard}, which the graph assumes",
            )
    return tuple(guard for _, guard in sorted(kept.items()))
