"""Compile a graph once for each set of sizes, run it many times."""

from __future__ import annotations

import functools
from typing import Any

import jax

from ..bounded_cache import BoundedCache, CacheStats
from ..errors import InvalidConfig
from ..extension.rules import ExtensionRuleSet, require_rules
from ..extension.runtimes import ExtensionRuntimeSet, require_runtimes
from ..graph.graph import Graph, require_graph
from ..shapes import TensorMeta, x64_enabled
from .compiler import compile_std_to_exec
from .program import ExecProgram, operands
from .progress import ProgressCallback


class Engine:
    """Owns a bounded cache of compiled programs; any equal graph hits, one symbolic graph serves many sizes.

    Threads may share an engine; two that ask for one program compile it once. A copy, or what a pickle gives back, has the
    settings and no programs yet.

    Args:
      capacity: how many programs are kept; the least recently used goes first.
      rules: AD rules for `eval` under a JAX transform, in place of those that each graph carries. They key no program.
      runtimes: kernels and selected routes for the extensions of every graph, in place of those that came with each call.
      progress: called with a Progress after each step of a compilation, and of a run that has several.

    Raises:
      InvalidConfig: capacity is no positive integer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import Engine, trace
      >>> engine = Engine()
      >>> spec = jax.ShapeDtypeStruct((2,), jnp.float32)
      >>> engine.eval(trace(lambda x: x + x, spec), jnp.ones(2)).tolist()
      [2.0, 2.0]
      >>> engine.eval(trace(lambda y: y + y, spec), jnp.ones(2)).tolist(), engine.stats()
      ([2.0, 2.0], CacheStats(hits=1, misses=1, size=1, capacity=128))
    """

    def __init__(
        self,
        *,
        capacity: int = 128,
        rules: ExtensionRuleSet | None = None,
        runtimes: ExtensionRuntimeSet | None = None,
        progress: ProgressCallback | None = None,
    ):
        require_rules(rules, "Engine")
        require_runtimes(runtimes, "Engine")
        if progress is not None and not callable(progress):
            raise InvalidConfig(where="Engine", given=f"progress={progress!r}", needed="a function of a Progress", fix="Leave it out.")
        self._cache, self._rules, self._runtimes, self._progress = BoundedCache(capacity, "Engine"), rules, runtimes, progress

    @property
    def capacity(self) -> int:
        """How many programs are kept; set it lower and the least recently used go at once."""
        return self._cache.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._cache.capacity = capacity

    def compile(self, graph: Graph) -> ExecProgram:
        """The compiled program of a graph with concrete shapes.

        Raises:
          InvalidConfig: an input has a symbolic dimension; bind the sizes with graph.bound_to.
          X64Error: the graph holds 64-bit values and 64-bit types are off.
          Unsupported: an extension has no route on this platform.
        """
        return self._program(require_graph(graph, "Engine.compile"), graph.input_metas)

    def eval(self, graph: Graph, *args: Any, **kwargs: Any) -> Any:
        """Compile if needed and run; symbolic dimensions take the sizes of the arguments.

        Raises:
          ArityError, ShapeError, DTypeError, X64Error: the arguments are not what the graph declares; nothing was run.
          BackendFailure: a host step failed.
        """
        arrays, metas, traced = operands(require_graph(graph, "Engine.eval").leaves(args, kwargs, "Engine.eval"))
        if traced:
            graph = self._under_runtimes(graph if self._rules is None else graph.with_rules(self._rules))
            return jax.tree.unflatten(graph.out_tree, graph(*arrays))
        return self._program(graph, metas).run(arrays)

    def _program(self, graph: Graph, metas: tuple[Any, ...]) -> ExecProgram:
        """The program of a graph for inputs of these metas."""
        return self._cache.get((graph, metas, x64_enabled()), lambda: self._compiled(graph, metas))

    def _compiled(self, graph: Graph, metas: tuple[Any, ...]) -> ExecProgram:
        bound = graph.bound_metas([TensorMeta(*meta) for meta in metas])
        return compile_std_to_exec(self._under_runtimes(bound), progress=self._progress)

    def _under_runtimes(self, graph: Graph) -> Graph:
        return graph if self._runtimes is None else graph.with_runtimes(self._runtimes)

    def stats(self) -> CacheStats:
        """Hits, misses, size and capacity of the cache."""
        return self._cache.stats()

    def clear(self) -> None:
        """Forget all programs."""
        self._cache.clear()

    def __reduce__(self) -> Any:
        made = functools.partial(type(self), capacity=self.capacity, rules=self._rules, runtimes=self._runtimes, progress=self._progress)
        return made, ()

    def __repr__(self) -> str:
        stats = self.stats()
        return f"Engine({stats.size} of {self.capacity} programs, {stats.hits} hits, {stats.misses} misses)"
