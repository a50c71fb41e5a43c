"""Compile a graph once, run it many times."""

from __future__ import annotations

import collections
import threading
from typing import Any, NamedTuple

import jax

from ..errors import InvalidConfig
from ..extension import Route
from ..extension.routes import routes
from ..graph.graph import Graph, require_graph
from ..meta import x64_enabled


class Program(NamedTuple):
    """A compiled graph.

    Attributes:
      graph: what was compiled.
      compiled: the ahead-of-time compiled function, on pytrees as they were traced.
      routes: the route of each extension node, in program order.
    """

    graph: Graph
    compiled: Any
    routes: tuple[Route, ...]

    def __call__(self, *args: Any) -> Any:
        """Run on arrays of exactly the compiled shapes and dtypes.

        Raises:
          ArityError, ShapeError, DTypeError, X64Error: the arguments are not those.
        """
        self.graph.bound_to(*args)
        return self.compiled(*args)

    def __repr__(self) -> str:
        chosen = "; ".join(map(str, self.routes)) or "no extensions"
        return f"Program({len(self.graph.nodes)} nodes; {chosen})"


class CacheStats(NamedTuple):
    """What an engine's cache did."""

    hits: int
    misses: int
    size: int


class Engine:
    """Owns a bounded cache of compiled programs; any equal graph hits.

    Args:
      cache_size: how many programs are kept; the least recently used goes first.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import Engine, trace
      >>> engine = Engine()
      >>> spec = jax.ShapeDtypeStruct((2,), jnp.float32)
      >>> engine.eval(trace(lambda x: x + x, spec), jnp.ones(2)).tolist()
      [2.0, 2.0]
      >>> engine.eval(trace(lambda y: y + y, spec), jnp.ones(2)).tolist(), engine.stats()
      ([2.0, 2.0], CacheStats(hits=1, misses=1, size=1))
    """

    def __init__(self, cache_size: int = 128):
        if not isinstance(cache_size, int) or cache_size < 1:
            raise InvalidConfig(
                where="Engine", given=f"cache_size={cache_size!r}", needed="a positive integer", fix="Leave it out for 128."
            )
        self._programs: collections.OrderedDict[Any, Program] = collections.OrderedDict()
        self._cache_size, self._hits, self._misses = cache_size, 0, 0
        self._lock = threading.Lock()

    def compile(self, graph: Graph) -> Program:
        """The compiled program of a graph with concrete shapes.

        Raises:
          InvalidConfig: an input has a symbolic dimension; trace with the sizes that will run.
          Unsupported: an extension has no route on this platform.
        """
        require_graph(graph, "Engine.compile")
        if graph.is_symbolic:
            raise InvalidConfig(
                where="Engine.compile",
                given=f"symbolic inputs {', '.join(map(str, graph.input_metas))}",
                needed="concrete shapes",
                fix="Use eval, which binds the sizes of its arguments, or trace with concrete specs.",
            )
        key = (graph, x64_enabled())
        with self._lock:
            program = self._programs.get(key)
            if program is not None:
                self._hits += 1
                self._programs.move_to_end(key)
                return program
            self._misses += 1
        fn = graph.to_jax()
        compiled = jax.jit(fn).lower(*graph.input_specs).compile()
        program = Program(graph, compiled, tuple(routes(fn, *graph.input_specs)))
        with self._lock:
            self._programs[key] = program
            while len(self._programs) > self._cache_size:
                self._programs.popitem(last=False)
        return program

    def eval(self, graph: Graph, *args: Any) -> Any:
        """Compile if needed and run; symbolic dimensions take the sizes of the arguments."""
        require_graph(graph, "Engine.eval")
        return self.compile(graph.bound_to(*args))(*args)

    def stats(self) -> CacheStats:
        """Hits, misses and size of the cache."""
        return CacheStats(self._hits, self._misses, len(self._programs))

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._programs.clear()
