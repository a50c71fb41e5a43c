"""Boxes and arrows as a flowchart of Mermaid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import shortened
from ..extension.carrier import Extension
from ..extension.registry import MissingExtension
from ..ops.op import StdTensorOp
from ..ops.vocabulary import ROOMS
from .printing import op_name, payload_texts, plain

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
      label: what is written in it.
      reads: the numbers of the values that it reads.
      gives: the numbers of the values that it makes.
      bodies: the boxes of each body of control flow, by its title.
    """

    kind: str
    label: str
    reads: Sequence[int]
    gives: Sequence[int]
    bodies: Mapping[str, Sequence[Box]] = {}


def label_of(op: StdTensorOp, types: Sequence[str]) -> str:
    """The name of an op and its types; the payload too where it says what the op is."""
    is_told = kind_of(op) in ("constant", "extension")
    told = payload_texts(op).items() if is_told else ()
    payload = shortened(", ".join(f"{name}={value}" for name, value in told))
    return "\n".join(filter(None, [op_name(op), payload, ", ".join(types)]))


def mermaid(boxes: Sequence[Box]) -> str:
    """The boxes as a flowchart; bodies are subgraphs."""
    drawn = "\n".join(["flowchart TD", *_lines(boxes, "n", "  ")])
    looks = [
        f"  classDef {kind} fill:{fill},stroke:{border},color:{colour}"
        for kind, (fill, border, colour) in LOOKS.items()
        if f":::{kind}" in drawn
    ]
    return "\n".join([drawn, *looks]) + "\n"


def _lines(boxes: Sequence[Box], prefix: str, indent: str) -> Iterator[str]:
    """Every box after those that it reads; the bodies of an op are groups beside its box."""
    made: dict[int, str] = {}
    for number, box in enumerate(boxes):
        name = f"{prefix}{number}"
        made.update(dict.fromkeys(box.gives, name))
        yield f"{indent}{name}[{_quoted(box.label)}]:::{box.kind}"
        yield from (f"{indent}{made[value]} --> {name}" for value in box.reads)
        for k, (title, body) in enumerate(box.bodies.items()):
            yield f"{indent}subgraph {name}_{k}[{_quoted(title)}]"
            yield from _lines(body, f"{name}_{k}_", indent + "  ")
            yield f"{indent}end"


def _quoted(text: str) -> str:
    # Mermaid reads marks of HTML and Markdown in labels, and codes of characters after #.
    escaped = "".join(
        c if c.isalnum() or c in " \n.,_-=>[]()':%" else f"#{ord(c)};"
        for c in plain(text, kept="\n")
    )
    return '"' + escaped.replace("\n", "<br/>") + '"'
