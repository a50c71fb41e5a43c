"""Well-formedness of graphs, as a table of rules.

Graphs of a builder obey the rules by construction; `verify` checks graphs that are made by hand or
read from bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import jax

from ..dimensions import Guard, canonical_guards
from ..errors import InvalidConfig, TenferroError
from ..extension.carrier import Extension
from ..extension.registry import MissingExtension
from ..ops.fields import wrong_field
from ..ops.op import StdTensorOp, call, require_inputs
from ..ops.vocabulary import WITH_BODIES
from ..shapes import TensorMeta, canonical_dtype, meta_of, struct
from .graph import Graph, Node, bodies, require_graph
from .printing import op_text
from .signature import infer

Application: TypeAlias = tuple[StdTensorOp, tuple[TensorMeta, ...]]
Inferred: TypeAlias = tuple[Sequence[TensorMeta], tuple[Guard, ...]]


class Rule(NamedTuple):
    """One rule of well-formedness.

    Attributes:
      name: its name in errors.
      says: its text.
      broken: finds the breaches in a graph, one text for each. A rule may rely on the rules before
        it.
    """

    name: str
    says: str
    broken: Callable[[Graph], Iterator[str]]


def verify(graph: Graph) -> Graph:
    """Check a graph, and the bodies of its control flow, against every rule of `RULES`; returns it.

    Raises:
      InvalidConfig: a rule is broken; the text names the rule and the place.

    Example:
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> len(verify(trace(jnp.sin, jnp.zeros(2))).nodes)
      1
    """
    pending = [(require_graph(graph, "verify"), "graph")]
    done: set[int] = set()
    while pending:
        current, where = pending.pop()
        if id(current) in done:
            continue
        done.add(id(current))
        for rule in RULES:
            for breach in rule.broken(current):
                raise InvalidConfig(
                    where=f"{where}, rule {rule.name!r}",
                    given=breach,
                    needed=rule.says,
                    fix="Build the graph with GraphBuilder, which keeps the rules.",
                )
        for i, node in enumerate(current.nodes):
            pending.extend(
                (body, f"{where}, node {i}, body {k}") for k, body in enumerate(bodies(node.op))
            )
    return graph


def _name(i: int, node: Node) -> str:
    return f"node {i}, {op_text(node.op)}"


def _ops(graph: Graph) -> Iterator[str]:
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.op, StdTensorOp):
            yield f"node {i}, {node.op!r}"
        elif type(node.op) in (Extension, MissingExtension):
            continue
        elif wrong := wrong_field(node.op):
            yield f"node {i}, {type(node.op).__name__} with {wrong[0]}, which needs {wrong[1]}"
        elif type(node.op) in WITH_BODIES and not bodies(node.op):
            yield f"node {i}, {type(node.op).__name__} without a graph"


def _counts(graph: Graph) -> Iterator[str]:
    if not 0 <= graph.input_count <= len(graph.metas):
        yield f"{graph.input_count} inputs among {len(graph.metas)} values"


def _dense(graph: Graph) -> Iterator[str]:
    expected = graph.input_count
    for i, node in enumerate(graph.nodes):
        if node.first_output != expected:
            yield f"{_name(i, node)}: its first output is %{node.first_output}, not %{expected}"
            return
        count = node.op.output_count
        expected += (
            len(node.inputs) if count is None else count
        )  # Sort, OptimizationBarrier: an output for each input
    if expected != len(graph.metas):
        yield f"{len(graph.metas)} values, of which {expected} are inputs or outputs of nodes"


def _precede(graph: Graph) -> Iterator[str]:
    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            if type(value) is not int or not 0 <= value < node.first_output:
                yield f"{_name(i, node)} reads %{value}, which no earlier node gives"


def _outputs(graph: Graph) -> Iterator[str]:
    for value in graph.outputs:
        if type(value) is not int or not 0 <= value < len(graph.metas):
            yield f"the output %{value} of {len(graph.metas)} values"


def _trees(graph: Graph) -> Iterator[str]:
    for name, tree, count in [
        ("in_tree", graph.in_tree, graph.input_count),
        ("out_tree", graph.out_tree, len(graph.outputs)),
    ]:
        if tree.num_leaves != count:
            yield f"{name} {tree} for {count} values"
    if not isinstance(jax.tree.unflatten(graph.in_tree, range(graph.in_tree.num_leaves)), tuple):
        yield f"in_tree {graph.in_tree}, which is no tuple of arguments"


def _interned(graph: Graph) -> Iterator[str]:
    seen: dict[tuple[StdTensorOp, tuple[int, ...]], int] = {}
    for i, node in enumerate(graph.nodes):
        first = seen.setdefault((node.op, node.inputs), i)
        if first != i:
            yield f"{_name(i, node)} repeats node {first}"


def depth_first(
    nodes: Sequence[Node], producer: Sequence[int | None], outputs: Iterable[int]
) -> list[int]:
    """The numbers of the nodes that the outputs need, each after those that it needs: the canonical
    order.

    Args:
      nodes: all of them.
      producer: for each value the number of the node that gives it, None for an input.
      outputs: numbers of values.
    """
    order: list[int] = []
    done = [False] * len(nodes)
    pending = [producer[value] for value in outputs][::-1]
    while pending:
        index = pending[-1]
        if index is None or done[index]:
            pending.pop()
            continue
        waiting = [p for i in nodes[index].inputs if (p := producer[i]) is not None and not done[p]]
        if waiting:
            pending.extend(reversed(waiting))
            continue
        pending.pop()
        done[index] = True
        order.append(index)
    return order


def _canonical(graph: Graph) -> Iterator[str]:
    producer: list[int | None] = [None] * graph.input_count
    for i, (_, outs) in enumerate(graph.steps()):
        producer.extend([i] * len(outs))
    order = depth_first(graph.nodes, producer, graph.outputs)
    for i, node in enumerate(graph.nodes):
        if order[i : i + 1] != [i]:
            yield f"{_name(i, node)}, which belongs elsewhere or which no output needs"
            return


def _inference(graph: Graph) -> Iterator[str]:
    guards = set(map(str, graph.guards))
    applications = []
    for node in graph.nodes:
        applications.append((node.op, tuple([graph.metas[i] for i in node.inputs])))
    known = _inferred_together(applications)
    for i, (node, outs) in enumerate(graph.steps()):
        if isinstance(node.op, MissingExtension):
            continue  # its dtypes and shapes cannot be checked, and it cannot run
        application = applications[i]
        try:
            if application not in known:
                known[application] = infer(*application)
            inferred, assumed = known[application]
        except TenferroError as error:
            yield f"{_name(i, node)}: {error}"
            continue
        stored = graph.metas[outs.start : outs.stop]
        if stored != tuple(inferred):
            yield (
                f"{_name(i, node)} with outputs {', '.join(map(str, stored))}; inference says "
                f"{', '.join(map(str, inferred))}"
            )
        yield from (
            f"{_name(i, node)} assumes {guard}"
            for guard in (canonical_guards(assumed) if assumed else ())
            if str(guard) not in guards
        )


def _inferred_together(applications: Iterable[Application]) -> dict[Application, Inferred]:
    """JAX's inference for all standard ops in one trace, three times as fast as one by one.

    Empty if JAX refuses one of them: the caller then infers them one by one and names the wrong
    one.
    """
    others = (Extension, MissingExtension, *WITH_BODIES)
    asked = [(op, metas) for op, metas in dict.fromkeys(applications) if type(op) not in others]
    try:
        for op, metas in asked:
            require_inputs(op, metas)
        structs = [list(map(struct, metas)) for _, metas in asked]
        found = jax.eval_shape(
            lambda inputs: [call(op, xs) for (op, _), xs in zip(asked, inputs, strict=True)],
            structs,
        )
    except Exception:
        return {}
    return {key: (tuple(map(meta_of, outs)), ()) for key, outs in zip(asked, found, strict=True)}


def _wide(graph: Graph) -> Iterator[str]:
    for i, meta in enumerate(graph.metas):
        if canonical_dtype(meta.dtype) != meta.dtype:
            yield f"%{i} of {meta} while 64-bit types are off"


RULES: tuple[Rule, ...] = (
    Rule(
        "ops",
        "every node holds a standard op or an extension, fields have their declared types, and "
        "the bodies of control flow are graphs",
        _ops,
    ),
    Rule("inputs first", "the inputs are the first values", _counts),
    Rule(
        "dense numbering",
        "values are numbered without gaps: inputs, then the outputs of each node in turn",
        _dense,
    ),
    Rule(
        "use after definition",
        "a node reads values that are inputs or outputs of earlier nodes",
        _precede,
    ),
    Rule("outputs in range", "an output is a value of the graph", _outputs),
    Rule(
        "trees",
        "the input tree is a tuple of arguments, and both trees have a leaf for each value",
        _trees,
    ),
    Rule("interned", "no two nodes apply equal ops to equal inputs", _interned),
    Rule(
        "canonical order",
        "nodes are those that the outputs need, in depth-first order from the outputs",
        _canonical,
    ),
    Rule("64-bit types", "64-bit values exist only while 64-bit types are on", _wide),
    Rule(
        "inference",
        "dtype and shape of every value agree with inference, and every assumption on symbolic "
        "sizes is a guard",
        _inference,
    ),
)
"""Every rule, in the order in which they are checked."""
