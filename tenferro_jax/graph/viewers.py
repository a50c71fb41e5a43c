"""Graphs of any size as text for Graphviz and Google's Model Explorer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..extension.carrier import Extension
from .drawing import LOOKS, kind_of, title_of
from .printing import named_bodies, op_text, plain, value_text

if TYPE_CHECKING:
    from .graph import Graph


class _Item(NamedTuple):
    """An input, a node or an output: its name, the values that it reads and the values that it
    makes.
    """

    kind: str
    label: str
    text: str
    reads: Sequence[int]
    gives: Sequence[int]
    op: Any = None


def _items(graph: Graph) -> Iterator[_Item]:
    for i, name in enumerate(graph.input_names):
        yield _Item("input", name, f"%{i} = {name}", (), (i,))
    for node, outs in graph.steps():
        label = title_of(node.op)
        yield _Item(kind_of(node.op), label, op_text(node.op), node.inputs, outs, node.op)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        label = f"return {name}".rstrip()
        yield _Item("output", label, f"{label} = %{value}", (value,), ())


def graph_dot(graph: Graph) -> str:
    """The graph in the DOT language; bodies of control flow are clusters beside their op."""
    head = ['  node [shape=box style="rounded,filled" fontname="Helvetica"]']
    return "\n".join(["digraph {", *head, *_dot_lines(graph, "", "  "), "}"]) + "\n"


def _dot_lines(graph: Graph, prefix: str, indent: str) -> Iterator[str]:
    made: dict[int, str] = {}
    for number, item in enumerate(_items(graph)):
        name = f'"{prefix}{number}"'
        made.update(dict.fromkeys(item.gives, name))
        types = ", ".join(str(graph.metas[i]) for i in item.gives)
        fill, border, colour = LOOKS[item.kind]
        label = _quoted("\n".join(filter(None, [item.label, types])))
        text = f"label={label} tooltip={_quoted(item.text)}"
        yield f'{indent}{name} [{text} fillcolor="{fill}" color="{border}" fontcolor="{colour}"]'
        yield from (f"{indent}{made[value]} -> {name}" for value in item.reads)
        for place, body in named_bodies(item.op):
            inner = f"{prefix}{number}/{place}/"
            yield f'{indent}subgraph "cluster {inner}" {{'
            yield f"{indent}  label={_quoted(f'{item.label}, {place}')}"
            yield from _dot_lines(body, inner, indent + "  ")
            yield f"{indent}}}"


def _quoted(text: str) -> str:
    escaped = plain(text, kept="\n").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n") + '"'


def model_explorer_collection(graph: Graph) -> dict[str, Any]:
    """The graph as a GraphCollection of Model Explorer; each body of control flow is a separate
    graph.

    Its schema is that of `model_explorer.graph_builder`, in the package ai-edge-model-explorer.
    """
    return {"label": "tenferro_jax", "graphs": list(_explored(graph, "main"))}


def _explored(graph: Graph, name: str) -> Iterator[dict[str, Any]]:
    made: dict[int, tuple[str, int]] = {}
    nodes, inner = [], []
    for number, item in enumerate(_items(graph)):
        made.update({value: (str(number), place) for place, value in enumerate(item.gives)})
        bodies = [(f"{name}/{number} {place}", body) for place, body in named_bodies(item.op)]
        inner += bodies
        nodes.append(
            {
                "id": str(number),
                "label": item.label,
                "namespace": "",
                "subgraphIds": [place for place, _ in bodies],
                "attrs": [{"key": key, "value": value} for key, value in _attributes(item)],
                "incomingEdges": [
                    {
                        "sourceNodeId": made[value][0],
                        "sourceNodeOutputId": str(made[value][1]),
                        "targetNodeInputId": str(place),
                    }
                    for place, value in enumerate(item.reads)
                ],
                "outputsMetadata": [
                    {
                        "id": str(place),
                        "attrs": [{"key": "tensor_shape", "value": str(graph.metas[value])}],
                    }
                    for place, value in enumerate(item.gives)
                ],
            }
        )
    yield {"id": name, "nodes": nodes}
    for place, body in inner:
        yield from _explored(body, place)


def _attributes(item: _Item) -> Iterator[tuple[str, str]]:
    yield "text", item.text
    op = item.op.op if isinstance(item.op, Extension) else item.op
    for field in dataclasses.fields(op) if dataclasses.is_dataclass(op) else ():
        value = getattr(op, field.name)
        if not hasattr(value, "input_metas"):
            yield field.name, value_text(value)
