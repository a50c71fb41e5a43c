"""How arrays are nested in the arguments and results of a function, as text."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
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


_structures: list[PyTreeDef] = []
"""The structures of pytree classes among residuals; texts have their numbers here, which no other
process knows."""
_lock = threading.Lock()


def _number(structure: PyTreeDef) -> int:
    with _lock:
        if structure not in _structures:
            _structures.append(structure)
        return _structures.index(structure)


def _nesting(tree: PyTree, where: str, any_class: bool = False) -> Any:
    """A pytree as JSON: 0 for an array, null, ["tuple", ...], ["list", ...],
    ["dict", keys, ...]; of residuals also ["held", a number or text], and with `any_class`
    ["class", the number of a structure].
    """
    if isinstance(tree, Held):
        return ["held", tree.value]
    if tree is None or jax.tree_util.all_leaves([tree]):
        return None if tree is None else 0
    if type(tree) in (tuple, list):
        return [type(tree).__name__, *(_nesting(x, where, any_class) for x in tree)]
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        parts = (_nesting(tree[key], where, any_class) for key in sorted(tree))
        return ["dict", sorted(tree), *parts]
    if any_class:
        return ["class", _number(jax.tree.structure(tree))]
    raise InvalidConfig(
        where=where,
        given=f"a {type(tree).__qualname__} among the arrays",
        needed="arrays, or tuples, lists and dicts with text as keys of them",
        fix="Pass the arrays of the object, and make the object of the results.",
    )


def blank(nesting: Any) -> PyTree:
    """A tree with this nesting and zeros for arrays."""
    if not isinstance(nesting, list):
        return nesting
    kind, *parts = nesting
    if kind == "dict":
        return dict(zip(parts[0], map(blank, parts[1:]), strict=True))
    if kind == "held":
        return Held(parts[0], repr(parts[0]))
    if kind == "class":
        known: Any = _structures[parts[0]]
        return known.unflatten([0] * known.num_leaves)
    return {"tuple": tuple, "list": list}[kind](map(blank, parts))


@functools.lru_cache(maxsize=4096)
def treedef_of(text: str) -> PyTreeDef:
    """The nesting that a text says."""
    return jax.tree.structure(blank(json.loads(text)))


def nesting_text(tree: PyTree, where: str, any_class: bool = False) -> str:
    """How arrays are nested in a tree, as JSON text."""
    return json.dumps(_nesting(tree, where, any_class), separators=(",", ":"))


def has_class(text: str) -> bool:
    """Whether a text names a pytree class, which no other process can read."""

    def found(nesting: Any) -> bool:
        if not isinstance(nesting, list):
            return False
        kind, *parts = nesting or [0]
        return kind == "class" or (
            kind != "held" and any(map(found, parts[1:] if kind == "dict" else [kind, *parts]))
        )

    return bool(text) and found(json.loads(text))


def missing(x: object) -> bool:
    """Whether a leaf is None."""
    return x is None


def structure_of(tree: PyTree) -> Any:
    """The nesting of a tree, in which None stands for an array."""
    return jax.tree.structure(tree, is_leaf=missing)


class Forward(NamedTuple):
    """What `fwd` gives: the nesting of results and residuals, and of each residual the number of
    the input that it is, or -1.
    """

    results: PyTreeDef
    residuals: PyTreeDef
    inputs: tuple[int, ...]

    @property
    def kept(self) -> list[int]:
        """The numbers of the residuals that are no inputs."""
        return [j for j, i in enumerate(self.inputs) if i < 0]


@functools.lru_cache(maxsize=4096)
def forward_of(text: str) -> Forward:
    """The nesting that a text of `forward_text` says."""
    results, residuals, inputs = json.loads(text)
    return Forward(
        jax.tree.structure(blank(results)), jax.tree.structure(blank(residuals)), tuple(inputs)
    )


def forward_text(results: PyTree, residuals: PyTree, inputs: list[int], where: str) -> str:
    """What `fwd` gives, as text."""
    both = [_nesting(results, where), _nesting(residuals, where, any_class=True), inputs]
    return json.dumps(both, separators=(",", ":"))
