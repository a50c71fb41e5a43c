"""Boxes and arrows as text for Graphviz, for Mermaid and for Google's Model Explorer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import shortened
from ..extension.carrier import Extension
from ..extension.registry import MissingExtension
from ..ops.op import StdTensorOp
from ..ops.vocabulary import ROOMS
from .printing import plain

_DARK = "#1c2430"
LOOKS = {
    "input": ("#dbeafe", "#2563eb", _DARK),
    "output": ("#334155", "#94a3b8", "#ffffff"),
    "constant": ("#f8fafc", "#94a3b8", "#475569"),
    "elementwise": ("#dcf3e3", "#4aa36b", _DARK),
    "structural": ("#e9edf2", "#8593a6", _DARK),
    "contraction": ("#ffe3c4", "#e08a2c", _DARK),
    "reduction": ("#fdf0b3", "#c9a227", _DARK),
    "indexing": ("#d3f1f4", "#3a9aa6", _DARK),
    "control": ("#ece4fb", "#8b5cd6", _DARK),
    "extension": ("#d6246e", "#86103f", "#ffffff"),
    "other": ("#f3e8e2", "#a1806f", _DARK),
}
"""Fill, border and text of each kind of box."""
_KINDS = {
    "Sources, gradient, compiler": "constant",
    "Structural": "structural",
    "Contraction": "contraction",
    "Linear algebra": "contraction",
    "Reduction": "reduction",
    "Window": "reduction",
    "Sorting": "indexing",
    "Indexing": "indexing",
    "Random bits": "other",
    "Control flow": "control",
}
_KIND_OF = {op: _KINDS.get(title, "elementwise") for title, ops in ROOMS.items() for op in ops}


def kind_of(op: StdTensorOp) -> str:
    """The kind of box for an op."""
    if isinstance(op, Extension | MissingExtension):
        return "extension"
    return _KIND_OF.get(type(op), "other")


class Box(NamedTuple):
    """The box of an input, a node or an output of a graph.

    Attributes:
      kind: "input", "output", or a kind of op; it decides the colours.
      name: of the argument, the op or the result.
      text: all that there is to say, in one line.
      reads: the numbers of the values that it reads.
      gives: the type of each value that it makes, by number.
      fields: the payload of the op, as text, without defaults.
      bodies: the boxes of each body of control flow, by the name of its place in the op.
    """

    kind: str
    name: str
    text: str
    reads: Sequence[int]
    gives: Mapping[int, str]
    fields: Mapping[str, str] = {}
    bodies: Mapping[str, Sequence[Box]] = {}


@dataclasses.dataclass(frozen=True)
class _Language:
    """How a box, an arrow and the first and last line of a group are written."""

    box: Callable[[str, Box], str]
    arrow: str
    begin: Callable[[str, str], str]
    end: str

    def lines(self, boxes: Sequence[Box], prefix: str = "n", indent: str = "  ") -> Iterator[str]:
        """Every box after those that it reads; the bodies of an op are groups beside its box."""
        made: dict[int, str] = {}
        for number, box in enumerate(boxes):
            name = f"{prefix}{number}"
            made.update(dict.fromkeys(box.gives, name))
            yield indent + self.box(name, box)
            yield from (indent + self.arrow.format(made[value], name) for value in box.reads)
            for k, (place, body) in enumerate(box.bodies.items()):
                yield indent + self.begin(f"{name}_{k}", f"{box.name}, {place}")
                yield from self.lines(body, f"{name}_{k}_", indent + "  ")
                yield indent + self.end


def _label(box: Box) -> str:
    """The name of a box and its types; the payload too where it says what the box is."""
    told = box.fields.items() if box.kind in ("constant", "extension") else ()
    payload = shortened(", ".join(f"{name}={value}" for name, value in told))
    return "\n".join(filter(None, [box.name, payload, ", ".join(box.gives.values())]))


def dot(boxes: Sequence[Box]) -> str:
    """The boxes in the DOT language of Graphviz; bodies are clusters."""

    def quoted(text: str) -> str:
        escaped = plain(text, kept="\n").replace("\\", "\\\\").replace('"', '\\"')
        return '"' + escaped.replace("\n", "\\n") + '"'

    def drawn(name: str, box: Box) -> str:
        fill, border, colour = LOOKS[box.kind]
        colours = f'fillcolor="{fill}" color="{border}" fontcolor="{colour}"'
        return f"{name} [label={quoted(_label(box))} tooltip={quoted(box.text)} {colours}]"

    language = _Language(
        drawn,
        "{} -> {}",
        lambda name, title: f"subgraph cluster_{name} {{ label={quoted(title)}",
        "}",
    )
    head = ['  node [shape=box style="rounded,filled" fontname="Helvetica"]']
    return "\n".join(["digraph {", *head, *language.lines(boxes), "}"]) + "\n"


def mermaid(boxes: Sequence[Box]) -> str:
    """The boxes as a flowchart of Mermaid; bodies are subgraphs."""

    def quoted(text: str) -> str:
        # Mermaid reads marks of HTML and Markdown in labels, and codes of characters after #.
        escaped = "".join(
            c if c.isalnum() or c in " \n.,_-=>[]()':%" else f"#{ord(c)};"
            for c in plain(text, kept="\n")
        )
        return '"' + escaped.replace("\n", "<br/>") + '"'

    language = _Language(
        lambda name, box: f"{name}[{quoted(_label(box))}]:::{box.kind}",
        "{} --> {}",
        lambda name, title: f"subgraph {name}[{quoted(title)}]",
        "end",
    )
    drawn = "\n".join(["flowchart TD", *language.lines(boxes)])
    looks = [
        f"  classDef {kind} fill:{fill},stroke:{border},color:{colour}"
        for kind, (fill, border, colour) in LOOKS.items()
        if f":::{kind}" in drawn
    ]
    return "\n".join([drawn, *looks]) + "\n"


def model_explorer(boxes: Sequence[Box]) -> dict[str, Any]:
    """The boxes as a GraphCollection of Model Explorer; each body is a separate graph.

    Its schema is that of `model_explorer.graph_builder`, in the package ai-edge-model-explorer.
    """
    return {"label": "tenferro_jax", "graphs": list(_explored(boxes, "main"))}


def _explored(boxes: Sequence[Box], name: str) -> Iterator[dict[str, Any]]:
    made: dict[int, tuple[str, str]] = {}  # value -> its box, and its place among the box's outputs
    nodes, inner = [], []
    for number, box in enumerate(boxes):
        made.update({value: (str(number), str(k)) for k, value in enumerate(box.gives)})
        bodies = [(f"{name}/{number} {place}", body) for place, body in box.bodies.items()]
        inner += bodies
        attributes = {"text": box.text, **box.fields}
        nodes.append(
            {
                "id": str(number),
                "label": box.name,
                "namespace": "",
                "subgraphIds": [place for place, _ in bodies],
                "attrs": [{"key": key, "value": value} for key, value in attributes.items()],
                "incomingEdges": [
                    {
                        "sourceNodeId": made[value][0],
                        "sourceNodeOutputId": made[value][1],
                        "targetNodeInputId": str(k),
                    }
                    for k, value in enumerate(box.reads)
                ],
                "outputsMetadata": [
                    {"id": str(k), "attrs": [{"key": "tensor_shape", "value": shown}]}
                    for k, shown in enumerate(box.gives.values())
                ],
            }
        )
    yield {"id": name, "nodes": nodes}
    for place, body in inner:
        yield from _explored(body, place)
