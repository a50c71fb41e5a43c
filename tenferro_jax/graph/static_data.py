"""What a tree of arguments or results holds beside its leaves, compared by type and bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import PayloadError
from ..payload import typed_key


def static_keys(tree: Any) -> Iterator[Any]:
    """Of a tree's keys and static data what is equal where types and bits are: JAX finds 1 equal to True."""
    kind, static = tree.node_data() or (None, None)
    if kind is dict:
        static = tuple(key for key in (static or ()) if type(key) not in (str, int)) or None
    if static is not None:
        try:
            yield typed_key(static)
        except PayloadError:  # beyond the closed list: as JAX compares it
            yield type(static)
    for child in tree.children():
        yield from static_keys(child)
