"""The op that a call of a function op runs, and its arrays."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef

from ..errors import DTypeError, InvalidConfig
from ..identity import payload_of
from ..shapes import as_array, meta_of
from .adopted import PyTree
from .function_extension import FunctionExtension
from .function_results import results_of
from .nesting import nesting_text
from .primitive import is_plain
from .scope import closed_over, require_not_traced

if TYPE_CHECKING:
    from .function_op import FunctionOp


def bound(
    f: FunctionOp, args: tuple[PyTree, ...], payload: dict[str, Any]
) -> tuple[FunctionExtension, list[jax.Array]]:
    """The op that a call with these arguments runs, and its arrays.

    Raises:
      InvalidConfig: the arguments do not fit the function; the text names it and its line.
    """
    authored = f.functions
    leaves, nesting = jax.tree.flatten(args)
    key = _key(leaves, nesting, payload)
    if key in f.known:
        return f.known[key], leaves
    if wrong := payload.keys() - authored.payload.keys():
        raise authored.error(f"the keyword {', '.join(sorted(wrong))}", f"one of {_keywords(f)}")
    if authored.arity >= 0 and len(args) != authored.arity:
        raise authored.error(
            f"{len(args)} arguments by position",
            f"{authored.arity}, each an array or a pytree",
            f"Pass {_keywords(f)} by keyword." if len(args) > authored.arity else "",
        )
    if absent := [
        name
        for name, (_, default) in authored.payload.items()
        if name not in payload and default is inspect.Parameter.empty
    ]:
        raise authored.error(f"no {', '.join(absent)}", "a value by keyword")
    given = [as_array(x, f"{authored.place}, array {i}") for i, x in enumerate(leaves)]
    arrays = [
        _number(f, leaf, x, given, leaves) if _is_weak(leaf) else x
        for x, leaf in zip(given, leaves, strict=True)
    ]
    plain = nesting == authored.plain
    in_tree = "" if plain else nesting_text(args, f"arguments of {authored.place}")
    if traced := [n for n, v in payload.items() if isinstance(v, jax.core.Tracer)]:
        raise authored.error(
            f"a traced value as {', '.join(traced)}",
            "a Python value: the payload is a part of the op",
            f"Keep it out of the traced arguments, as jax.jit(..., static_argnames="
            f"{traced[0]!r}) does, or make it an array by position.",
        )
    try:
        op = f.op(in_tree=in_tree, **payload)
    except InvalidConfig as error:
        where = error.where.replace(payload_of(f.op), f"payload of {authored.place}")
        raise InvalidConfig(
            where=where, given=error.given, needed=error.needed, fix=error.fix
        ) from error
    for function in authored.rules:
        require_not_traced(op, closed_over(function))
    out_tree = results_of(op, "", tuple(map(meta_of, arrays)))
    op = op.changed(out_tree=out_tree) if out_tree else op
    if key and not any(getattr(function, "__closure__", None) for function in authored.rules):
        if len(f.known) > 1000:
            f.known.clear()
        f.known[key] = op
    return op, arrays


def _number(
    f: FunctionOp,
    number: complex | jax.Array,
    array: jax.Array,
    arrays: Sequence[jax.Array],
    leaves: Sequence[object],
) -> jax.Array:
    """A Python number, or an array of weak type, in the dtype that it takes beside arrays of its
    kind in jax.numpy.
    """
    kind = jnp.integer if jnp.issubdtype(array.dtype, jnp.integer) else jnp.inexact
    others = [
        x.dtype
        for x, leaf in zip(arrays, leaves, strict=True)
        if not _is_weak(leaf) and jnp.issubdtype(x.dtype, kind)
    ]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*others) if others else array.dtype
    narrowed = jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    )
    if narrowed or (isinstance(number, jax.Array) and dtype == array.dtype):
        return array
    if isinstance(number, jax.Array) and (number.ndim or isinstance(number, jax.core.Tracer)):
        return jax.lax.convert_element_type(number, dtype)
    value = number.item() if isinstance(number, jax.Array) else number
    try:
        return jnp.asarray(value, dtype)
    except OverflowError as error:
        raise DTypeError(
            where=f.functions.place,
            given=f"{value} beside arrays of {dtype}",
            needed="a number that fits",
            fix="Convert it to an array of the dtype that is meant.",
        ) from error


def _is_weak(leaf: object) -> bool:
    return type(leaf) in (int, float, complex) or (
        isinstance(leaf, jax.Array) and jax.typeof(leaf).weak_type
    )


def _keywords(f: FunctionOp) -> str:
    return ", ".join(f.functions.payload) or "no keyword"


def _key(
    leaves: Sequence[Any], nesting: PyTreeDef, payload: dict[str, Any]
) -> tuple[Any, ...] | None:
    """What the op of a call on concrete arrays depends on; None for other calls."""
    parts: list[Any] = [nesting]
    for x in leaves:
        if not is_plain(x) or getattr(x, "weak_type", False):
            return None
        parts += (x.dtype, x.shape)
    for name, value in payload.items():
        kind = type(value)
        if kind not in (bool, int, float, str, NoneType):
            return None
        parts += (name, kind, value.hex() if kind is float else value)
    return tuple(parts)
