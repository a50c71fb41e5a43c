"""How arguments and results are nested, as JSON: 0 for a value, null for None, ["tuple", ...], ["list", ...], ["dict", [key, ...], ...]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..errors import Unsupported

_LEAF = object()


def tree_json(tree: Any, where: str) -> Any:
    """A PyTreeDef as JSON.

    Raises:
      Unsupported: a node other than tuple, list, None and dict with keys that are text or integers.
    """
    return _plain(jax.tree.unflatten(tree, [_LEAF] * tree.num_leaves), where)


def _plain(value: Any, where: str) -> Any:
    kind = type(value)
    if value is _LEAF:
        return 0
    if value is None:
        return None
    if kind in (tuple, list):
        return [kind.__name__, *(_plain(item, where) for item in value)]
    if kind is dict and all(type(key) in (str, int) for key in value):
        return ["dict", list(value), *(_plain(item, where) for item in value.values())]
    raise Unsupported(
        where=f"to_wire, {where}",
        given=f"a pytree node of type {kind.__module__}.{kind.__qualname__}",
        needed="tuples, lists, None and dicts with text or integers as keys",
        fix="Trace a function that takes and returns those.",
    )


def tree_of(plain: Any, word: Callable[[str], str]) -> Any:
    """The PyTreeDef that `tree_json` wrote, each text among its keys through `word`; ValueError for other JSON."""
    return jax.tree.structure(_nested(plain, word))


def _nested(plain: Any, word: Callable[[str], str]) -> Any:
    match plain:
        case None:
            return None
        case 0 if type(plain) is int:
            return 0
        case ["tuple", *items]:
            return tuple(_nested(item, word) for item in items)
        case ["list", *items]:
            return [_nested(item, word) for item in items]
        case ["dict", [*keys], *items] if len(keys) == len(items) and all(type(key) in (str, int) for key in keys):
            return {word(key) if type(key) is str else key: _nested(item, word) for key, item in zip(keys, items, strict=True)}
    raise ValueError(f"{plain!r:.100} where a tree is needed")
