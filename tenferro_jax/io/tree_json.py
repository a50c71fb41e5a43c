"""How arguments and results are nested, as JSON: 0 for a value, null for None, ["tuple", ...], ["list", ...], ["dict", [key, ...], ...],
["class", name, fields, static data, ...]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..errors import Unsupported
from .pytree_nodes import named_node, node_of


def tree_json(tree: Any, where: str) -> Any:
    """A PyTreeDef as JSON.

    Raises:
      Unsupported: a node other than tuple, list, None, dict with keys that are text or integers, and classes with a name.
      PayloadError: static data of a class outside the closed list.
    """
    if tree.node_data() is None:
        return 0
    kind, aux = tree.node_data()
    items = [tree_json(child, where) for child in tree.children()]
    if kind is type(None):
        return None
    if kind in (tuple, list):
        return [kind.__name__, *items]
    if kind is dict and all(type(key) in (str, int) for key in aux):
        return ["dict", list(aux), *items]
    if kind is dict:
        needed, fix = "text and integers as keys", "Name the keys with text."
        raise Unsupported(where=where, given=f"a dict with the keys {list(aux)!r:.100}", needed=needed, fix=fix)
    return ["class", *named_node(kind, aux, len(items), where), *items]


def require_lasting(tree: Any, where: str) -> None:
    """Refuse a tree whose classes flatten what they were given back in another way: no reader could use it.

    Raises:
      Unsupported: the text has both trees.
    """
    cause: Exception | None = None
    try:
        back = jax.tree.structure(jax.tree.unflatten(tree, range(tree.num_leaves)))
        if back == tree:
            return
        became = f"becomes {back}"
    except Exception as error:  # the author's code
        became, cause = f"cannot be made again: {type(error).__name__}: {error}", error
    raise Unsupported(
        where=where,
        given=f"{tree}, which {became}",
        needed="pytree classes that flatten what they unflatten as it was",
        fix="Let tree_unflatten take any leaves, and change nothing.",
    ) from cause


def has_classes(plain: Any) -> bool:
    """Whether a tree as JSON has a class in it, which version 1 of the format does not know."""
    if not isinstance(plain, list):
        return False
    first, *items = plain
    return first == "class" or any(map(has_classes, items[1:] if first == "dict" else items))


def tree_of(plain: Any, word: Callable[[str], str], skip_missing: bool = False) -> Any:
    """The PyTreeDef that `tree_json` wrote, each text among its keys through `word`; unknown classes as placeholders if wanted.

    Raises:
      Unsupported: a class of which the name is not registered.
      ValueError: other JSON.
    """
    return jax.tree.structure(_nested(plain, word, skip_missing))


def _nested(plain: Any, word: Callable[[str], str], skip_missing: bool) -> Any:
    match plain:
        case None:
            return None
        case 0 if type(plain) is int:
            return 0
        case ["tuple", *items]:
            return tuple(_nested(item, word, skip_missing) for item in items)
        case ["list", *items]:
            return [_nested(item, word, skip_missing) for item in items]
        case ["dict", [*keys], *items] if len(keys) == len(items) and all(type(key) in (str, int) for key in keys):
            return {
                word(key) if type(key) is str else key: _nested(item, word, skip_missing) for key, item in zip(keys, items, strict=True)
            }
        case ["class", str(name), fields, static, *items]:
            return node_of(word(name), fields, static, [_nested(item, word, skip_missing) for item in items], skip_missing)
    raise ValueError(f"{plain!r:.100} where a tree is needed")
