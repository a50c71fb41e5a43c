"""Compile a graph once for each set of sizes, run it many times.

Graph -> ExecProgram: order the nodes into few segments, find last uses, compile. A host-only node
needs the values of its inputs, so it stands between segments. The level of a node is the number of
host calls on the longest path to it. The nodes of one level are one segment, in whatever order the
graph has them, and the host nodes of that level follow the segment. Values that depend on no input
(constants) are made again in each segment that needs them.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from ..bounded_cache import BoundedCache, CacheStats
from ..errors import InvalidConfig, require_kind
from ..extension.carrier import Extension
from ..extension.routes import Route, here, route_of
from ..extension.rules import ExtensionRuleSet, require_rules
from ..extension.runtimes import ExtensionRuntimeSet, RouteKind, require_runtimes
from ..graph.calling import require_x64_values
from ..graph.graph import Graph, Node, bodies, require_graph
from ..jax_seam import Site
from ..ops.op import StdTensorOp
from ..shapes import PyTree, TensorMeta, x64_enabled
from .exec_program import (
    ExecProgram,
    Metas,
    Progress,
    ProgressCallback,
    Step,
    operands,
)
from .instruction import HostStep, Instruction, Segment

Applications = dict[tuple[StdTensorOp, tuple[TensorMeta, ...]], Route]
"""The route of each op on inputs of these metas."""


def compile_std_to_exec(graph: Graph, *, progress: ProgressCallback | None = None) -> ExecProgram:
    """Compile a graph with concrete shapes for JAX's current platform.

    Args:
      graph: a Graph.
      progress: called after each segment is lowered and compiled, and by the program after each of
        several steps.

    Raises:
      InvalidConfig: not a graph, or an input with a symbolic dimension.
      DTypeError: the graph has 64-bit values while 64-bit types are off.
      Unsupported: an extension has no route on this platform.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> program = compile_std_to_exec(trace(lambda x: x + 1, jax.ShapeDtypeStruct((2,),
      ...     jnp.float32)))
      >>> [type(i.op).__name__ for i in program.instructions], program.instructions[-1].last_use
      (['Constant', 'BroadcastInDim', 'Add'], (True, True))
    """
    require_graph(graph, "compile_std_to_exec")
    if graph.is_symbolic:
        raise InvalidConfig(
            where="compile_std_to_exec",
            given=f"symbolic inputs {', '.join(map(str, graph.input_metas))}",
            needed="concrete shapes",
            fix="Bind the sizes with graph.bound_to(*args), or use Engine.eval, which does this.",
        )
    require_x64_values(graph)
    site = here()
    chosen: dict[Any, Route] = {}
    routes = list(_routes(graph, site, chosen))
    on_host = [
        chosen[_application(node, graph)].kind is RouteKind.HOST
        if isinstance(node.op, Extension)
        else hasattr(node.op, "check_on_host")
        for node in graph.nodes
    ]
    steps = _steps(graph, on_host)
    segments = [s for s in steps if isinstance(s, Segment)]
    for number, segment in enumerate(segments):
        start = time.perf_counter()
        lowered = segment.lower([graph.metas[i] for i in segment.inputs])
        middle = time.perf_counter()
        if progress is not None:
            progress(Progress("lower", number, len(segments), middle - start))
        segment.finish(lowered)
        if progress is not None:
            progress(Progress("compile", number, len(segments), time.perf_counter() - middle))
    return ExecProgram(graph, steps, routes, progress)


copyreg.pickle(
    ExecProgram, lambda program: (compile_std_to_exec, (program.graph,))
)  # compiled again when the pickle is read


# --- routes --------------------------------------------------------------------------------------


def _routes(graph: Graph, site: Site, chosen: Applications) -> Iterator[Route]:
    """The route of every extension, control-flow bodies included; equal extensions on equal metas
    are looked up once.
    """
    for node in graph.nodes:
        if isinstance(node.op, Extension):
            key = _application(node, graph)
            if key not in chosen:
                chosen[key] = route_of(node.op, key[1], site)
            yield chosen[key]
        for body in bodies(node.op):
            yield from _routes(body, site, chosen)


def _application(node: Node, graph: Graph) -> tuple[StdTensorOp, tuple[TensorMeta, ...]]:
    return node.op, tuple(graph.metas[i] for i in node.inputs)


# --- schedule -------------------------------------------------------------------------------------


def _steps(graph: Graph, on_host: Sequence[bool]) -> list[Step]:
    # Their last uses are not known yet.
    nodes = [
        Instruction(node.op, node.inputs, tuple(outs), tuple(graph.metas[i] for i in outs), ())
        for node, outs in graph.steps()
    ]
    groups = _groups(graph, nodes, on_host)
    live, backwards = set(graph.outputs), []
    for group, host in reversed(groups):
        after = set(live)
        instructions = []
        for node in reversed(group):
            live.difference_update(node.outputs)
            instructions.append(node._replace(last_use=tuple(i not in live for i in node.inputs)))
            live.update(node.inputs)
        backwards.append((instructions[::-1], host, after))
    steps: list[Step] = []
    for instructions, host, after in reversed(backwards):
        written = {i for instruction in instructions for i in instruction.outputs}
        if host:
            steps.append(HostStep(instructions[0]))
            continue
        alone = len(groups) == 1
        inputs = (
            range(graph.input_count)
            if alone
            else sorted({i for n in instructions for i in n.inputs} - written)
        )
        through = (
            [] if steps else [i for i in dict.fromkeys(graph.outputs) if i < graph.input_count]
        )
        outputs = graph.outputs if alone else [*through, *sorted(written & after)]
        steps.append(
            Segment(f"segment_{len(steps)}", instructions, sorted({*inputs, *through}), outputs)
        )
    return steps


def _groups(
    graph: Graph, nodes: Sequence[Instruction], on_host: Sequence[bool]
) -> list[tuple[list[Instruction], bool]]:
    """The nodes of each step, and whether it is a host call."""
    level: dict[int, int | None] = dict.fromkeys(
        range(graph.input_count), 0
    )  # None: depends on no input
    maker: dict[int, int] = {}
    device: dict[int, set[int]] = collections.defaultdict(set)
    hosts: dict[int, list[int]] = collections.defaultdict(list)

    def need(at: int, values: Iterable[int]) -> None:
        """Let a segment compute those of the values that depend on no input."""
        pending = [maker[i] for i in values if level[i] is None]
        while pending:
            number = pending.pop()
            if number not in device[at]:
                device[at].add(number)
                pending.extend(maker[i] for i in nodes[number].inputs)

    for number, (node, host) in enumerate(zip(nodes, on_host, strict=True)):
        known = [at for at in (level[i] for i in node.inputs) if at is not None]
        maker.update(dict.fromkeys(node.outputs, number))
        if not known and not host:
            level.update(dict.fromkeys(node.outputs, None))
            continue
        at = max(known, default=0)
        (hosts[at].append if host else device[at].add)(number)
        need(at, node.inputs)
        level.update(dict.fromkeys(node.outputs, at + host))
    need(max(device, default=0), graph.outputs)
    if not hosts or any(i < graph.input_count for i in graph.outputs):
        device.setdefault(
            0, set()
        )  # an input that is an output passes through a segment, and becomes a jax array there
    groups: list[tuple[list[Instruction], bool]] = []
    for at in sorted({*device, *hosts}):
        if at in device:
            groups.append(([nodes[i] for i in sorted(device[at])], False))
        groups += [([nodes[i]], True) for i in hosts[at]]
    return groups


class Engine:
    """Compiles graphs and keeps the programs in a bounded cache. Equal graphs share a program; one
    symbolic graph serves many sizes.

    Threads may share an engine; if two of them ask for the same program, it is compiled once. A
    copy, or an engine from a pickle, has the settings but no programs.

    Args:
      capacity: how many programs are kept; the least recently used one is dropped first.
      rules: AD rules for `eval` under a JAX transform, instead of those of each graph. They are not
        part of the cache key.
      runtimes: kernels and selected routes for the extensions of every graph, instead of those of
        each call.
      progress: called with a Progress after each step of a compilation, and of a run that has
        several.

    Raises:
      InvalidConfig: capacity is not a positive integer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> from tenferro_jax.engine import Engine
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
        require_kind(
            progress, Callable | None, "Engine", "a function that takes a Progress", name="progress"
        )
        self._cache, self._rules, self._runtimes, self._progress = (
            BoundedCache(capacity, "Engine"),
            rules,
            runtimes,
            progress,
        )

    @property
    def capacity(self) -> int:
        """How many programs are kept; a lower value drops the least recently used ones at once."""
        return self._cache.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._cache.capacity = capacity

    def compile(self, graph: Graph) -> ExecProgram:
        """The compiled program of a graph with concrete shapes.

        Raises:
          InvalidConfig: an input has a symbolic dimension; bind the sizes with graph.bound_to.
          DTypeError: the graph has 64-bit values while 64-bit types are off.
          Unsupported: an extension has no route on this platform.
        """
        return self._program(require_graph(graph, "Engine.compile"), graph.input_metas)

    def eval(self, graph: Graph, *args: PyTree, **kwargs: PyTree) -> Any:
        """Run a graph, compiled if necessary; symbolic dimensions take the sizes of the arguments.

        Raises:
          InvalidConfig, ShapeError, DTypeError: the arguments do not fit the graph; nothing was
            run.
          BackendFailure: a host step failed.
        """
        arrays, metas, traced = operands(
            require_graph(graph, "Engine.eval").leaves(args, kwargs, "Engine.eval")
        )
        if traced:
            graph = self._under_runtimes(
                graph if self._rules is None else graph.with_rules(self._rules)
            )
            return jax.tree.unflatten(graph.out_tree, graph(*arrays))
        return self._program(graph, metas).run(arrays)

    def _program(self, graph: Graph, metas: Metas) -> ExecProgram:
        """The program of a graph for inputs of these metas."""
        return self._cache.get((graph, metas, x64_enabled()), lambda: self._compiled(graph, metas))

    def _compiled(self, graph: Graph, metas: Metas) -> ExecProgram:
        bound = graph.bound_metas([TensorMeta(*meta) for meta in metas])
        return compile_std_to_exec(self._under_runtimes(bound), progress=self._progress)

    def _under_runtimes(self, graph: Graph) -> Graph:
        return graph if self._runtimes is None else graph.with_runtimes(self._runtimes)

    def stats(self) -> CacheStats:
        """Hits, misses, size and capacity of the cache."""
        return self._cache.stats()

    def clear(self) -> None:
        """Drop all programs."""
        self._cache.clear()

    def __reduce__(self) -> Any:
        made = functools.partial(
            type(self),
            capacity=self.capacity,
            rules=self._rules,
            runtimes=self._runtimes,
            progress=self._progress,
        )
        return made, ()

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"Engine({stats.size} of {self.capacity} programs, {stats.hits} hits, "
            f"{stats.misses} misses)"
        )
