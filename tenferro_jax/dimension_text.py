"""Symbolic dimensions and their scopes as text and back; text of unknown origin costs no more than its length."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.export

from .errors import Unsupported
from .jax_seam import is_symbolic_dim, max_dim, min_dim, scope_constraints

_LONGEST = 1000  # characters of an expression
_CONSTRAINTS = 64  # in a scope
_HIGHEST = 99  # power
_GREATEST = 2**63 - 1  # number
_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max_dim,
    "min": min_dim,
}
_COMPARISON = re.compile("==|>=|<=")


def read_dimension(text: str, scope: Any) -> Any:
    """The symbolic dimension that JAX prints as `text`, with symbols of the scope; ValueError where none prints so.

    JAX multiplies sums out, so that a short text may stand for millions of terms: here a factor is one term, as in what
    JAX prints.

    Example:
      >>> read_dimension("2*b + 1", jax.export.SymbolicScope())
      2*b + 1
    """
    dimension = _expression(text, scope)
    if not is_symbolic_dim(dimension) or str(dimension) != text:
        raise ValueError(f"{text!r:.100} where a symbolic dimension as JAX prints it is needed")
    return dimension


def constraint_texts(scope: Any) -> tuple[str, ...]:
    """The constraints of a scope from which `read_scope` makes one with the same constraints."""
    everything = scope_constraints(scope)
    kept = list(everything)
    for text in everything:  # of mod(b, 2) == 0 JAX says 2*floordiv(b, 2) == b too
        rest = [other for other in kept if other != text]
        if "floordiv" in text and scope_constraints(jax.export.SymbolicScope(rest)) == everything:
            kept = rest
    return tuple(kept)


def read_scope(constraints: Sequence[str]) -> Any:
    """A scope with these constraints, such as "b >= 8"; ValueError where they are none."""
    if len(constraints) > _CONSTRAINTS:
        raise ValueError(f"{len(constraints)} constraints where {_CONSTRAINTS} are the most")
    scope = jax.export.SymbolicScope()
    for i, constraint in enumerate(constraints):
        sides = _COMPARISON.split(constraint)
        if len(sides) != 2:
            raise ValueError(f"{constraint!r:.100} where two sides of ==, >= or <= are needed")
        for side in sides:  # before JAX multiplies them out
            _expression(side.strip(), scope)
        scope = jax.export.SymbolicScope(constraints[: i + 1])
    return scope


class Pickled:
    """Stands for a value in a pickle: what is called where the pickle is read, and with what."""

    def __init__(self, make: Callable[..., Any], *given: Any):
        self._made = (make, given)

    def __reduce__(self) -> Any:
        return self._made


class _PickledScope(Pickled):
    """A scope by its constraints, with those of its dimensions that a reader is known to take; a pickle holds it once."""

    def __init__(self, scope: Any):
        constraints = constraint_texts(scope)
        super().__init__(read_scope, constraints)
        self._trial = read_scope(constraints)
        self._dimensions: dict[str, Pickled] = {}

    def dimension(self, text: str) -> Pickled:
        """What stands for the dimension with this text."""
        if text not in self._dimensions:
            read_dimension(text, self._trial)
            self._dimensions[text] = Pickled(read_dimension, text, self)
        return self._dimensions[text]


_PICKLED: weakref.WeakKeyDictionary[Any, _PickledScope] = weakref.WeakKeyDictionary()


def pickled_dimension(dimension: Any, where: str = "pickle") -> Pickled:
    """What stands for a symbolic dimension in a pickle; those of one scope are read into one new scope.

    JAX's own object cannot be read back once its hash or its bounds were asked for.

    Raises:
      Unsupported: the text of the dimension or the constraints of its scope, in a pickle or in a file, would not be read back.
    """
    try:
        scope = _PICKLED.get(dimension.scope)
        if scope is None:
            scope = _PICKLED.setdefault(dimension.scope, _PickledScope(dimension.scope))
        return scope.dimension(str(dimension))
    except Exception as error:  # the reader's, and those of JAX and of Python's parser
        raise Unsupported(
            where=where,
            given=f"symbols that no reader takes: {type(error).__name__}: {error}",
            needed="dimensions and constraints within the bounds of docs/spec/wire_format.md",
            fix="Name large expressions by symbols of their own, or keep fewer constraints.",
        ) from error


def _expression(text: str, scope: Any) -> Any:
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters where {_LONGEST} are the most for a dimension")
    return _value(ast.parse(text.replace("^", "**"), mode="eval").body, scope)


def _value(node: ast.AST, scope: Any) -> Any:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            if value > _GREATEST:
                raise ValueError(f"the number {value} in a dimension, where 2**63 - 1 is the greatest")
            return value
        case ast.Name(id=name):
            (symbol,) = jax.export.symbolic_shape(name, scope=scope)
            return symbol
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, scope)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, scope) + _value(right, scope)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left, scope) - _value(right, scope)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _term(_value(left, scope)) * _term(_value(right, scope))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            if power > _HIGHEST:
                raise ValueError(f"the power {power} in a dimension, where {_HIGHEST} is the highest")
            return _term(_value(left, scope), least=2) ** power
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(left, scope), _value(right, scope))
    raise ValueError(f"{ast.unparse(node)[:100]!r} in a dimension")


def _term(value: Any, least: int = 1) -> Any:
    """A factor, which is one term; and for a power one of a symbol."""
    if is_symbolic_dim(value):
        outermost = ast.parse(str(value).replace("^", "**"), mode="eval").body
        if isinstance(outermost, ast.BinOp) and isinstance(outermost.op, ast.Add | ast.Sub):
            raise ValueError(f"a product with the sum {value!s:.100}")
    elif least > 1:
        raise ValueError(f"a power of {value}")
    return value
