"""A bounded cache: it drops the least recently used value first, and never makes a value twice at
the same time.
"""

from __future__ import annotations

import concurrent.futures
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
        self._values: dict[Hashable, concurrent.futures.Future[Any]] = {}
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
            value = self._values.pop(key, None)
            found = value is not None
            if value is None:
                value = concurrent.futures.Future()
                self._misses += 1
            else:
                self._hits += 1
            self._values[key] = value  # the order is that of the last uses
            if len(self._values) > self._capacity:
                del self._values[next(iter(self._values))]
        if not found:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) is value:
                        del self._values[key]
                value.set_exception(error)
                raise
        return value.result()

    def stats(self) -> CacheStats:
        """Hits, misses, size, capacity."""
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._values), self._capacity)

    def clear(self) -> None:
        """Drop all values; the counts stay."""
        with self._lock:
            self._values.clear()
