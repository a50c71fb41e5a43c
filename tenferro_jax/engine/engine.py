"""Compile a graph once for each set of sizes, run it many times.

Graph -> ExecProgram: cut the nodes into segments at host calls, find last uses, compile. A
host-only node needs the values of its inputs, so it stands between segments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from ..errors import InvalidConfig
from ..extension.carrier import Extension
from ..extension.kernels import ExtensionRuntimeSet, RouteKind, require_runtimes
from ..extension.routes import Route, here, route_of
from ..graph.graph import Graph, Node, bodies, require_graph
from ..jax_seam import Site
from ..ops.op import StdTensorOp
from ..shapes import PyTree, TensorMeta, x64_enabled
from .exec_program import ExecProgram, HostStep, Instruction, Metas, Segment, Step, operands


def compile_std_to_exec(graph: Graph) -> ExecProgram:
    """Compile a graph with concrete shapes for JAX's current platform.

    Args:
      graph: a Graph.

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
    graph.require_x64_values()
    site = here()
    chosen: dict[Any, Route] = {}
    routes = list(_routes(graph, site, chosen))
    on_host = []
    for node in graph.nodes:
        if isinstance(node.op, Extension):
            on_host.append(chosen[_application(node, graph)].kind is RouteKind.HOST)
        else:
            on_host.append(hasattr(node.op, "check_on_host"))
    return ExecProgram(graph, _steps(graph, on_host), routes)


# --- routes --------------------------------------------------------------------------------------


def _routes(graph: Graph, site: Site, chosen: dict[Any, Route]) -> Iterator[Route]:
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
    """The compiled steps, found from the last to the first, so that it is known which values later
    ones read.
    """
    nodes = []
    for node, outs in graph.steps():
        metas = graph.metas[outs.start : outs.stop]
        made = Instruction(node.op, node.inputs, outputs=tuple(outs), metas=metas, last_use=())
        nodes.append(made)
    groups = _groups(graph, nodes, on_host)
    live, backwards = set(graph.outputs), list[Step]()
    for number, (group, host) in reversed([*enumerate(groups)]):
        after, instructions = set(live), list[Instruction]()
        for node in reversed(group):
            live.difference_update(node.outputs)
            instructions.append(node._replace(last_use=tuple(i not in live for i in node.inputs)))
            live.update(node.inputs)
        instructions.reverse()
        if host:
            backwards.append(HostStep(instructions[0]))
            continue
        inputs: Iterable[int] = range(graph.input_count)
        outputs: Sequence[int] = graph.outputs
        if len(groups) > 1:
            written = {i for instruction in instructions for i in instruction.outputs}
            through = [i for i in dict.fromkeys(outputs) if i < graph.input_count and not number]
            inputs = {i for n in instructions for i in n.inputs}.union(through) - written
            outputs = [*through, *sorted(written & after)]
        name = f"segment_{number}"
        segment = Segment(name, instructions, sorted(inputs), outputs, metas=graph.metas)
        backwards.append(segment)
    return backwards[::-1]


def _groups(
    graph: Graph, nodes: Sequence[Instruction], on_host: Sequence[bool]
) -> list[tuple[list[Instruction], bool]]:
    """The nodes of each step, in the order of the graph, and whether it is a host call."""
    groups: list[tuple[list[Instruction], bool]] = [([], False)]
    for node, is_host in zip(nodes, on_host, strict=True):
        if is_host or groups[-1][1]:
            groups.append(([], is_host))
        groups[-1][0].append(node)
    # An input that is an output passes through the first segment, and becomes a jax array there.
    passes = any(i < graph.input_count for i in graph.outputs)
    return groups if groups[0][0] or passes or len(groups) == 1 else groups[1:]


def _compiled(
    runtimes: ExtensionRuntimeSet | None, graph: Graph, metas: Metas, x64: bool
) -> ExecProgram:
    """The program of a graph for inputs of these metas, made under this width of types."""
    bound = graph.bound_metas([TensorMeta(*meta) for meta in metas])
    return compile_std_to_exec(_under(runtimes, bound))


def _under(runtimes: ExtensionRuntimeSet | None, graph: Graph) -> Graph:
    return graph if runtimes is None else graph.with_runtimes(runtimes)


class Engine:
    """Compiles graphs and keeps the programs in a bounded cache. Equal graphs share a program; one
    symbolic graph serves many sizes.

    Threads may share an engine.

    Args:
      capacity: how many programs are kept; the least recently used one is dropped first.
      runtimes: kernels and selected routes for the extensions of every graph, instead of those of
        each call.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> from tenferro_jax import Engine
      >>> engine = Engine()
      >>> spec = jax.ShapeDtypeStruct((2,), jnp.float32)
      >>> engine.eval(trace(lambda x: x + x, spec), jnp.ones(2)).tolist()
      [2.0, 2.0]
      >>> engine.eval(trace(lambda y: y + y, spec), jnp.ones(2)).tolist(), engine.stats()
      ([2.0, 2.0], CacheInfo(hits=1, misses=1, maxsize=128, currsize=1))
    """

    def __init__(
        self,
        *,
        capacity: int = 128,
        runtimes: ExtensionRuntimeSet | None = None,
    ):
        require_runtimes(runtimes, "Engine")
        self._runtimes = runtimes
        # Not of a method, so that programs are freed with their engine.
        self._programs = functools.lru_cache(capacity)(functools.partial(_compiled, runtimes))

    def compile(self, graph: Graph) -> ExecProgram:
        """The compiled program of a graph with concrete shapes.

        Raises:
          InvalidConfig: an input has a symbolic dimension; bind the sizes with graph.bound_to.
          DTypeError: the graph has 64-bit values while 64-bit types are off.
          Unsupported: an extension has no route on this platform.
        """
        require_graph(graph, "Engine.compile")
        return self._programs(graph, graph.input_metas, x64_enabled())

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
            graph = _under(self._runtimes, graph)
            return jax.tree.unflatten(graph.out_tree, graph(*arrays))
        return self._programs(graph, metas, x64_enabled()).run(arrays)

    def stats(self) -> Any:
        """Hits, misses, capacity and size of the cache, as `functools.lru_cache` tells them."""
        return self._programs.cache_info()
