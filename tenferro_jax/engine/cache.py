"""The programs of an engine: by graph, and by call, so that a repeated call finds its program without binding the graph anew."""

from __future__ import annotations

import collections
from collections.abc import Hashable
from typing import Any

from ..bounded_cache import BoundedCache

_CALLS_PER_PROGRAM = 4


class ProgramCache(BoundedCache):
    """key -> program, and call -> key."""

    def __init__(self, capacity: int):
        super().__init__(capacity, "Engine")
        self._calls: collections.OrderedDict[Hashable, Hashable] = collections.OrderedDict()

    def find_call(self, call: Hashable) -> Any:
        """The program of a call that was remembered, or None."""
        key = self._calls.get(call)
        return None if key is None else self.find(key)

    def remember(self, call: Hashable, key: Hashable) -> None:
        """From now on `find_call(call)` gives the program of the key, as long as it is kept."""
        with self._lock:
            self._calls[call] = key
            while len(self._calls) > self._capacity * _CALLS_PER_PROGRAM:
                self._calls.popitem(last=False)

    def clear(self) -> None:
        """Forget all programs; the counts stay."""
        with self._lock:
            self._values.clear()
            self._calls.clear()
