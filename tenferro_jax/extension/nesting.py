"""How arrays are nested, as JSON; and as text in the arguments and results of a function."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.tree_util import PyTreeDef

from ..errors import InvalidConfig

PyTree: TypeAlias = Any


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Held:
    """A Python number or text among residuals, which stays what it is in bwd; equal by type and
    digits.
    """

    value: bool | int | float | str = dataclasses.field(compare=False)
    text: str


def held(residuals: PyTree) -> PyTree:
    """Residuals with their numbers and texts held."""
    kinds = (bool, int, float, str)
    return jax.tree.map(lambda x: Held(x, repr(x)) if type(x) in kinds else x, residuals)


def released(residuals: PyTree) -> PyTree:
    """Residuals as fwd returned them."""
    return jax.tree.map(
        lambda x: x.value if isinstance(x, Held) else x,
        residuals,
        is_leaf=lambda x: isinstance(x, Held),
    )


# The structures of pytree classes among residuals; texts have their numbers here, which no other
# process knows.
_structures: list[PyTreeDef] = []
_lock = threading.Lock()


def _number(structure: PyTreeDef) -> int:
    with _lock:
        if structure not in _structures:
            _structures.append(structure)
        return _structures.index(structure)


def tree_json(tree: PyTreeDef, other: Callable[[PyTreeDef], PyTree]) -> PyTree:
    """A structure as JSON: 0 for a leaf, null for None, ["tuple", tree, ...], ["list", tree, ...],
    ["dict", [key, ...], tree, ...] with keys that are text or integers; and what `other` gives for
    any other node.
    """
    node = tree.node_data()
    if node is None or node[0] is type(None):
        return 0 if node is None else None
    kind, static = node
    if kind in (tuple, list):
        head = [kind.__name__]
    elif kind is dict and all(type(key) in (str, int) for key in static):
        head = ["dict", list(static)]
    else:
        return other(tree)
    return [*head, *(tree_json(child, other) for child in tree.children())]


def tree_of(plain: object, other: Callable[[list[PyTree]], PyTree]) -> PyTree:
    """A tree with the structure that `tree_json` wrote, and zeros as leaves; other lists are passed
    through `other`.

    Raises:
      ValueError: other JSON.
    """
    match plain:
        case None:
            return None
        case 0 if type(plain) is int:
            return 0
        case ["tuple" | "list" as kind, *items]:
            made = [tree_of(item, other) for item in items]
            return made if kind == "list" else tuple(made)
        case ["dict", [*keys], *items] if all(type(key) in (str, int) for key in keys):
            return dict(zip(keys, (tree_of(item, other) for item in items), strict=True))
        case [*parts]:
            return other(parts)
    raise ValueError(f"{plain!r:.100} instead of a tree")


def has_classes(plain: object) -> bool:
    """Whether a tree as JSON has a class."""
    if not isinstance(plain, list) or not plain:
        return False
    first, *items = plain
    return first == "class" or (
        first != "held" and any(map(has_classes, items[1:] if first == "dict" else items))
    )


def _nesting(tree: PyTree, where: str, any_class: bool = False) -> Any:
    """A pytree of arrays as JSON; of residuals also ["held", a number or text], and with
    `any_class` ["class", the number of a structure].
    """

    def other(node: PyTreeDef) -> list[Any]:
        of_node: Any = node.node_data()
        kind, static = of_node
        if kind is Held:
            return ["held", static.value]
        if any_class:
            return ["class", _number(node)]
        raise InvalidConfig(
            where=where,
            given=f"a {kind.__qualname__} among the arrays",
            needed="arrays, or tuples, lists and dicts with text as keys of them",
            fix="Pass the arrays of the object, such as w[...] of a flax.nnx.Param, and make the "
            "object of the results.",
        )

    return tree_json(jax.tree.structure(tree), other)


def _structure(plain: PyTree) -> PyTreeDef:
    """The structure that `_nesting` wrote."""

    def other(parts: list[PyTree]) -> PyTree:
        kind, part = parts
        known = _structures[part] if kind == "class" else None
        return known.unflatten([0] * known.num_leaves) if known else Held(part, repr(part))

    return jax.tree.structure(tree_of(plain, other))


@functools.lru_cache(maxsize=4096)
def treedef_of(text: str) -> PyTreeDef:
    """The nesting that a text says."""
    return _structure(json.loads(text))


def nesting_text(tree: PyTree, where: str, any_class: bool = False) -> str:
    """How arrays are nested in a tree, as JSON text."""
    return json.dumps(_nesting(tree, where, any_class), separators=(",", ":"))


def missing(x: object) -> bool:
    """Whether a leaf is None."""
    return x is None


class Forward(NamedTuple):
    """What `fwd` gives.

    Attributes:
      results: the nesting of the results.
      residuals: the nesting of the residuals.
      inputs: of each residual the number of the input that it is, or -1.
      kept: the numbers of the residuals that are no inputs.
    """

    results: PyTreeDef
    residuals: PyTreeDef
    inputs: list[int]
    kept: list[int]


@functools.lru_cache(maxsize=4096)
def forward_of(text: str) -> Forward:
    """The nesting that a text of `forward_text` says."""
    results, residuals, inputs = json.loads(text)
    return Forward(
        results=_structure(results),
        residuals=_structure(residuals),
        inputs=inputs,
        kept=[j for j, i in enumerate(inputs) if i < 0],
    )


def forward_text(results: PyTree, residuals: PyTree, inputs: list[int], where: str) -> str:
    """What `fwd` gives, as text."""
    both = [_nesting(results, where), _nesting(residuals, where, any_class=True), inputs]
    return json.dumps(both, separators=(",", ":"))
