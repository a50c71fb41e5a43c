"""A call of a function op: the op that it runs, and its arrays. Inside other code of an author it
is no op, but its function, with its rules and kernels.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..errors import DTypeError, InvalidConfig, counted
from ..identity import payload_of
from ..shapes import as_array, is_plain, meta_of
from .bodies import kernel_body
from .carrier import Extension
from .function_extension import FunctionExtension
from .function_rules import batchable, filled, results_of
from .nesting import PyTree, nesting_text
from .routes import choose_route, chosen
from .scope import closed_over, lowering_at, require_not_traced

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
        raise authored.error(
            f"the keyword {', '.join(sorted(wrong))}",
            f"one of {_keywords(f)}" if authored.payload else "no keyword",
            "Pass arrays by position.",
        )
    if authored.arity >= 0 and len(args) != authored.arity:
        raise authored.error(
            f"{counted(len(args), 'argument')} by position",
            f"{authored.arity}, each an array or a pytree",
            f"Pass {_keywords(f)} by keyword."
            if len(args) > authored.arity and authored.payload
            else "",
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


def inlined(f: FunctionOp, args: tuple[PyTree, ...], payload: dict[str, Any]) -> PyTree:
    """The value of a function op as a part of another op: plain JAX, with the rules it has; with
    its kernel where the other op is lowered for a platform that has one.
    """
    function = f.functions
    payload = {name: p for name, (_, p) in function.payload.items()} | payload

    def body(*xs: PyTree) -> PyTree:
        made = function.body(*xs, **payload)
        if made is None and function.host is not None and function.infer is not None:
            structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), xs)
            host = functools.partial(function.host, **payload)
            like = function.infer(*structs, **payload)
            return jax.pure_callback(
                lambda *xs: host(*jax.tree.map(np.asarray, xs)), like, *xs, vmap_method="sequential"
            )
        return made

    def computed(*xs: PyTree) -> PyTree:
        site = lowering_at.value
        if site is None or not f.op.runtimes.kernels(f.op.family_id, site.platform):
            return body(*xs)
        op, arrays = bound(f, xs, payload)
        carrier = Extension.of(op)
        kernel = chosen(carrier, choose_route(carrier, site, tuple(map(meta_of, arrays))))
        if kernel is None:
            return body(*xs)
        return op.results.unflatten(kernel_body(carrier, kernel, arrays))

    def moved(primals: PyTree, tangents: PyTree) -> tuple[PyTree, PyTree]:
        if function.derives or function.transpose is not None:
            return jax.jvp(body, primals, tangents)
        if function.jvp is None:
            raise f.op().missing_rule("jvp")
        out = computed(*primals)
        made = function.jvp(primals, out, tangents, **payload)
        nesting: Any = jax.tree.structure(out)
        given = function.flat(nesting, made, "defjvp, which returned")
        return out, nesting.unflatten(filled(jax.tree.leaves(out), given))

    value = batchable(function, computed, payload)
    if function.fwd is not None:
        backward: Any = jax.custom_vjp(value)
        backward.defvjp(
            functools.partial(function.fwd, **payload), functools.partial(function.bwd, **payload)
        )
        return backward(*args)
    opaque = function.vmap is not None or len(f.op.runtimes) > 0
    if (function.derives or function.transpose is not None) and not opaque:
        return body(*args)
    forward: Any = jax.custom_jvp(value)
    forward.defjvp(moved)
    return forward(*args)
