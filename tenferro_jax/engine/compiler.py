"""Graph -> ExecProgram: order the nodes into few segments, find last uses, compile.

A host-only node needs its inputs' values, so it stands between segments. Each node gets a level: how many host calls
lie on the longest way to it. Nodes of one level are one segment, whatever order the graph has them in, and the host
nodes of that level follow it. What depends on no input (constants) is made anew in each segment that needs it.
"""

from __future__ import annotations

import collections
import copyreg
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..errors import InvalidConfig
from ..extension.carrier import Extension
from ..extension.routes import Route, here, route_of
from ..extension.runtimes import RouteKind
from ..graph.graph import Graph, Node, bodies, require_graph
from ..jax_seam import Site
from ..shapes import TensorMeta
from .instruction import HostStep, Instruction, Segment
from .program import ExecProgram, Step, require_x64_values
from .progress import Progress, ProgressCallback


def compile_std_to_exec(graph: Graph, *, progress: ProgressCallback | None = None) -> ExecProgram:
    """Compile a graph with concrete shapes for the platform where JAX runs now.

    Args:
      graph: a Graph.
      progress: called after each segment is lowered and compiled, and by the program after each of several steps.

    Raises:
      InvalidConfig: no graph, or an input with a symbolic dimension.
      X64Error: the graph holds 64-bit values and 64-bit types are off.
      Unsupported: an extension has no route on this platform.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> program = compile_std_to_exec(trace(lambda x: x + 1, jax.ShapeDtypeStruct((2,), jnp.float32)))
      >>> [type(i.op).__name__ for i in program.instructions], program.instructions[-1].last_use
      (['Constant', 'BroadcastInDim', 'Add'], (True, True))
    """
    require_graph(graph, "compile_std_to_exec")
    if graph.is_symbolic:
        raise InvalidConfig(
            where="compile_std_to_exec",
            given=f"symbolic inputs {', '.join(map(str, graph.input_metas))}",
            needed="concrete shapes",
            fix="Bind the sizes with graph.bound_to(*args), or use Engine.eval, which does.",
        )
    require_x64_values(graph)
    site = here()
    chosen: dict[Any, Route] = {}
    routes = list(_routes(graph, site, chosen))
    steps = _steps(graph, [_is_host(node, graph, chosen) for node in graph.nodes])
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


copyreg.pickle(ExecProgram, lambda program: (compile_std_to_exec, (program.graph,)))  # compiled anew where the pickle is read


# --- who runs what -------------------------------------------------------------------------------


def _routes(graph: Graph, site: Site, chosen: dict[Any, Route]) -> Iterator[Route]:
    """The route of every extension, control-flow bodies included; equal extensions on equal metas are asked once."""
    for node in graph.nodes:
        if isinstance(node.op, Extension):
            key = _application(node, graph)
            if key not in chosen:
                chosen[key] = route_of(*key, site)
            yield chosen[key]
        for body in bodies(node.op):
            yield from _routes(body, site, chosen)


def _is_host(node: Node, graph: Graph, chosen: dict[Any, Route]) -> bool:
    if isinstance(node.op, Extension):
        return chosen[_application(node, graph)].kind is RouteKind.HOST
    return hasattr(node.op, "check_on_host")


def _application(node: Node, graph: Graph) -> tuple[Any, tuple[TensorMeta, ...]]:
    return node.op, tuple(graph.metas[i] for i in node.inputs)


# --- schedule ------------------------------------------------------------------------------------------------------


def _steps(graph: Graph, on_host: Sequence[bool]) -> list[Step]:
    nodes = [_instruction(node, outs, graph) for node, outs in graph.steps()]
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
        inputs = range(graph.input_count) if alone else sorted({i for n in instructions for i in n.inputs} - written)
        through = [] if steps else [i for i in dict.fromkeys(graph.outputs) if i < graph.input_count]
        outputs = graph.outputs if alone else [*through, *sorted(written & after)]
        steps.append(Segment(f"segment_{len(steps)}", instructions, sorted({*inputs, *through}), outputs))
    return steps


def _instruction(node: Node, outs: range, graph: Graph) -> Instruction:
    """The instruction of a node, whose last uses are not known yet."""
    return Instruction(node.op, node.inputs, tuple(outs), tuple(graph.metas[i] for i in outs), ())


def _groups(graph: Graph, nodes: Sequence[Instruction], on_host: Sequence[bool]) -> list[tuple[list[Instruction], bool]]:
    """The nodes of each step, and whether it is a host call."""
    level: dict[int, int | None] = dict.fromkeys(range(graph.input_count), 0)  # None: depends on no input
    maker: dict[int, int] = {}
    device: dict[int, set[int]] = collections.defaultdict(set)
    hosts: dict[int, list[int]] = collections.defaultdict(list)

    def need(at: int, values: Iterable[int]) -> None:
        """Have a segment make those of the values that depend on no input."""
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
        device.setdefault(0, set())  # an input that is an output passes through a segment, and becomes a jax array there
    groups: list[tuple[list[Instruction], bool]] = []
    for at in sorted({*device, *hosts}):
        if at in device:
            groups.append(([nodes[i] for i in sorted(device[at])], False))
        groups += [([nodes[i]], True) for i in hosts[at]]
    return groups
