"""Boxes and arrows for Mermaid and for Google's Model Explorer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from ..errors import shortened
from ..extension.carrier import Extension
from ..extension.registry import MissingExtension
from ..ops.op import StdTensorOp
from ..ops.vocabulary import ROOMS
from .printing import plain

_DARK = "#1c2430"
# Fill, border and text of each kind of box.
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
      name: unique in a picture.
      kind: "input", "output", or a kind of op; it decides the colours.
      title: of the argument, the op or the result.
      fields: the payload of the op, as text, without defaults.
      types: of the values that it makes.
      reads: what it reads: names of boxes, and the place among the values that each makes.
      bodies: the boxes of each body of control flow, by its place in the op.
    """

    name: str
    kind: str
    title: str
    fields: Mapping[str, str]
    types: Sequence[str]
    reads: Sequence[tuple[str, int]]
    bodies: Mapping[str, Sequence[Box]] = {}

    @property
    def label(self) -> str:
        """Its title and types; the payload too where it says what the op is."""
        told = self.fields.items() if self.kind in ("constant", "extension") else ()
        payload = shortened(", ".join(f"{name}={value}" for name, value in told))
        return "\n".join(filter(None, [self.title, payload, ", ".join(self.types)]))


def mermaid(boxes: Sequence[Box]) -> str:
    """The boxes as a flowchart of Mermaid; bodies are subgraphs."""
    lines = ["flowchart TD", *_lines(boxes)]
    drawn = "\n".join(lines)
    for kind, (fill, border, colour) in LOOKS.items():
        if f":::{kind}" in drawn:
            lines.append(f"  classDef {kind} fill:{fill},stroke:{border},color:{colour}")
    return "\n".join(lines) + "\n"


def _lines(boxes: Sequence[Box], indent: str = "  ") -> Iterator[str]:
    """Every box after those that it reads; the bodies of an op are groups beside its box."""
    for box in boxes:
        yield f"{indent}{box.name}[{_quoted(box.label)}]:::{box.kind}"
        for name, _ in box.reads:
            yield f"{indent}{name} --> {box.name}"
        for k, (place, body) in enumerate(box.bodies.items()):
            yield f"{indent}subgraph {box.name}_{k}[{_quoted(f'{box.title}, {place}')}]"
            yield from _lines(body, indent + "  ")
            yield f"{indent}end"


def _quoted(text: str) -> str:
    # Mermaid reads marks of HTML and Markdown in labels, and codes of characters after #.
    marks = " \n.,_-=>[]()':%"
    told = plain(text, kept="\n")
    escaped = "".join(c if c.isalnum() or c in marks else f"#{ord(c)};" for c in told)
    return '"' + escaped.replace("\n", "<br/>") + '"'


def model_explorer(boxes: Sequence[Box], namespace: str = "") -> Iterator[dict[str, Any]]:
    """The boxes as nodes of Model Explorer; a body is a layer, which opens by a click. The keys are
    those of `model_explorer.graph_builder`, in the package ai-edge-model-explorer.
    """

    def attribute(name: str, value: str) -> dict[str, str]:
        return {"key": name, "value": value}

    for box in boxes:
        edges = [
            {"sourceNodeId": name, "sourceNodeOutputId": str(k), "targetNodeInputId": str(i)}
            for i, (name, k) in enumerate(box.reads)
        ]
        outputs = [
            {"id": str(k), "attrs": [attribute("tensor_shape", shown)]}
            for k, shown in enumerate(box.types)
        ]
        yield {
            "id": box.name,
            "label": box.title,
            "namespace": namespace,
            "attrs": list(starmap(attribute, box.fields.items())),
            "incomingEdges": edges,
            "outputsMetadata": outputs,
        }
        for place, body in box.bodies.items():
            layer = f"{box.title} {box.name}, {place}"
            yield from model_explorer(body, f"{namespace}/{layer}".lstrip("/"))
