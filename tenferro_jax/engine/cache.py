"""A bounded cache of compiled programs: least recently used goes first, and no program is compiled twice at once."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

from ..errors import InvalidConfig
from .program import ExecProgram

_CALLS_PER_PROGRAM = 4


class CacheStats(NamedTuple):
    """What an engine's cache did."""

    hits: int
    misses: int
    size: int


class ProgramCache:
    """key -> program, and call -> key, so that a repeated call finds its program without making the key again."""

    def __init__(self, capacity: int):
        self._lock = threading.Lock()
        self._programs: collections.OrderedDict[Hashable, ExecProgram] = collections.OrderedDict()
        self._calls: collections.OrderedDict[Hashable, Hashable] = collections.OrderedDict()
        self._pending: dict[Hashable, concurrent.futures.Future[ExecProgram]] = {}
        self._hits = self._misses = 0
        self._capacity = _require_capacity(capacity)

    @property
    def capacity(self) -> int:
        """How many programs are kept."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        with self._lock:
            self._capacity = _require_capacity(capacity)
            self._evict()

    def find(self, call: Hashable) -> ExecProgram | None:
        """The program of a call that was remembered."""
        with self._lock:
            key = self._calls.get(call)
            program = None if key is None else self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                self._hits += 1
            return program

    def remember(self, call: Hashable, key: Hashable) -> None:
        """From now on `find(call)` gives the program of the key, as long as it is kept."""
        with self._lock:
            self._calls[call] = key
            self._evict()

    def get(self, key: Hashable, make: Callable[[], ExecProgram]) -> ExecProgram:
        """The program of a key, made if it is not there; who asks while another thread makes it waits for that one."""
        with self._lock:
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                self._hits += 1
                return program
            waiting = self._pending.get(key)
            if waiting is None:
                self._misses += 1
                mine = self._pending[key] = concurrent.futures.Future()
            else:
                self._hits += 1
        if waiting is not None:
            return waiting.result()
        try:
            program = make()
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._pending[key]
            self._programs[key] = program
            self._evict()
        mine.set_result(program)
        return program

    def _evict(self) -> None:
        while len(self._programs) > self._capacity:
            self._programs.popitem(last=False)
        while len(self._calls) > self._capacity * _CALLS_PER_PROGRAM:
            self._calls.popitem(last=False)

    def stats(self) -> CacheStats:
        """Hits, misses and size."""
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._programs))

    def clear(self) -> None:
        """Forget all programs; the counts stay."""
        with self._lock:
            self._programs.clear()
            self._calls.clear()


def _require_capacity(capacity: int) -> int:
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise InvalidConfig(where="Engine", given=f"capacity={capacity!r}", needed="a positive integer", fix="Leave it out for 128.")
    return capacity
