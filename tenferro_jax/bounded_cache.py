"""A bounded cache: it drops the least recently used value first, and never makes a value twice at
the same time.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from .errors import InvalidConfig

Value = TypeVar("Value")


class CacheStats(NamedTuple):
    """Hits and misses of a cache, its size and its capacity."""

    hits: int
    misses: int
    size: int
    capacity: int


class BoundedCache:
    """key -> value; errors name the `owner`. Threads may share a cache.

    Example:
      >>> cache = BoundedCache(1, "docs")
      >>> cache.get("a", lambda: 3), cache.get("a", lambda: 4), cache.get("b",
      ...     lambda: 5), cache.get("a", lambda: 6)
      (3, 3, 5, 6)
      >>> cache.stats()
      CacheStats(hits=1, misses=3, size=1, capacity=1)
    """

    def __init__(self, capacity: int, owner: str):
        self._lock = threading.Lock()
        # A value and the time of its last use, which can be updated without a second lookup.
        self._values: dict[Hashable, list[Any]] = {}
        self._clock = itertools.count()
        self._pending: dict[Hashable, concurrent.futures.Future[Any]] = {}
        self._hits = self._misses = 0
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise InvalidConfig(
                where=owner,
                given=f"capacity={capacity!r}",
                needed="a positive integer",
                fix="The default is 128.",
            )
        self._capacity = capacity

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is missing; if another thread is making it, this one
        waits.
        """
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                found[1] = next(self._clock)
                self._hits += 1
                return found[0]
            waiting = self._pending.get(key)
            if waiting is None:
                self._misses += 1
                mine: concurrent.futures.Future[Value] = concurrent.futures.Future()
                self._pending[key] = mine
            else:
                self._hits += 1
        if waiting is not None:
            return waiting.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._pending[key]
            self._values[key] = [value, next(self._clock)]
            if len(self._values) > self._capacity:
                del self._values[min(self._values, key=lambda key: self._values[key][1])]
        mine.set_result(value)
        return value

    def stats(self) -> CacheStats:
        """Hits, misses, size, capacity."""
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._values), self._capacity)

    def clear(self) -> None:
        """Drop all values; the counts stay."""
        with self._lock:
            self._values.clear()
