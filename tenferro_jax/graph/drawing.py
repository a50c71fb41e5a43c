"""A graph as an SVG picture, made without other packages; readable on light and dark
backgrounds.
"""

from __future__ import annotations

import dataclasses
import enum
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import InvalidConfig, counted
from ..extension.carrier import Extension
from ..extension.registry import MissingExtension
from ..ops.contraction import DotGeneral
from ..ops.op import StdTensorOp
from ..ops.source import Constant
from ..ops.structural import BroadcastInDim
from ..ops.vocabulary import ROOMS
from ..shapes import TensorMeta
from .placement import Point, place
from .printing import named_bodies, op_name, op_text, plain, value_text

if TYPE_CHECKING:
    from .graph import Graph, Node

LIMIT = 60
"""The most ops that a picture shows; larger graphs are not drawn."""


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
_SEEN = (
    "shape",
    "dtype",
    "value",
    "accumulation_dtype",
    "index_dtype",
)  # fields that the output's type or the chip shows
_LINE, _TITLE_SIZE, _DETAIL_SIZE, _CHIP_SIZE = "#7c8796", 13.0, 11.0, 10.5
_MARGIN, _PADDING = 12.0, 10.0


class Box(NamedTuple):
    """The box of an input, an op or an output.

    Attributes:
      kind: "input", "output", "constant", "extension", or another kind of op; it decides the
        colours.
      texts: the lines, the name first.
      tooltip: the full text.
      reads: the numbers of the earlier boxes whose arrows lead here.
    """

    kind: str
    texts: Sequence[str]
    tooltip: str
    reads: Sequence[int] = ()

    @property
    def lines(self) -> list[tuple[str, float, str]]:
        """(text, size, weight) of each line."""
        if self.kind == "constant":
            return [(text, _CHIP_SIZE, "400") for text in self.texts]
        title, *details = self.texts
        return [(title, _TITLE_SIZE, "600"), *((text, _DETAIL_SIZE, "400") for text in details)]

    @property
    def size(self) -> Point:
        """Width and height."""
        width = max(_text_width(*line) for line in self.lines) + 2 * _PADDING
        return width, sum(size * 1.35 for _, size, _ in self.lines) + (
            6.0 if self.kind == "constant" else 12.0
        )


def graph_svg(graph: Graph) -> str:
    """The graph as an SVG document.

    Raises:
      InvalidConfig: it has more than 60 nodes.
    """
    fix = "Use graph.model_explorer('graph.json'), graph.dot() or graph.text()."
    _require_small("Graph.svg", len(graph.nodes), fix)
    return _document(_boxes(graph), len(graph.nodes))


def program_svg(drawn: Iterable[Box]) -> str:
    """A program other than a Graph as an SVG document.

    Raises:
      InvalidConfig: it has more than 60 ops.
    """
    boxes = list(drawn)
    count = sum(box.kind not in ("input", "output") for box in boxes)
    _require_small("the picture of a program", count, "Read the StableHLO text of the program.")
    return _document(boxes, count)


def _require_small(where: str, count: int, fix: str) -> None:
    if count > LIMIT:
        raise InvalidConfig(
            where=where,
            given=f"{count:,} nodes",
            needed=f"at most {LIMIT}",
            fix=fix,
        )


# --- which boxes there are -----------------------------------------------------------------------


def _boxes(graph: Graph) -> list[Box]:
    """Inputs, nodes and outputs in an order in which all arrows point to later boxes."""
    boxes = [
        Box("input", (_short(name), str(meta)), f"%{i} = {name} : {meta}")
        for i, (name, meta) in enumerate(zip(graph.input_names, graph.input_metas, strict=True))
    ]
    made = dict(enumerate(range(len(boxes))))  # value number -> its box
    chips: dict[int, Box] = {}  # value number -> the constant, drawn beside each op that reads it

    def reads(values: Sequence[int]) -> list[int]:
        found = []
        for value in dict.fromkeys(values):
            if value in chips:
                boxes.append(chips[value])
            found.append(len(boxes) - 1 if value in chips else made[value])
        return found

    for node, outs in graph.steps():
        box = _box(node, graph.metas, outs)
        chip = _chip(node, box, chips)
        if chip is not None:
            chips[outs[0]] = chip
            continue
        sources = reads(node.inputs)
        made.update(dict.fromkeys(outs, len(boxes)))
        boxes.append(box._replace(reads=sources))
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        tooltip = f"return {name} = %{value} : {graph.metas[value]}"
        sources = reads([value])
        boxes.append(Box("output", (_short(f"return {name}".rstrip()),), tooltip, sources))
    return boxes


def kind_of(op: StdTensorOp) -> str:
    """The kind of box for an op."""
    return (
        "extension"
        if isinstance(op, Extension | MissingExtension)
        else _KIND_OF.get(type(op), "other")
    )


def title_of(op: StdTensorOp) -> str:
    """The name of an op: its class, or the family of an extension."""
    return op_name(op) + (".vmap" * len(op.batching) if isinstance(op, Extension) else "")


def _box(node: Node, metas: Sequence[TensorMeta], outs: Sequence[int]) -> Box:
    types = [str(metas[i]) for i in outs]
    left, right = (", ".join(f"%{i}" for i in values) for values in (outs, node.inputs))
    tooltip = f"{left} = {op_text(node.op)}({right}) : {', '.join(types)}"
    payload = (
        "not registered"
        if isinstance(node.op, MissingExtension)
        else _payload(getattr(node.op, "op", node.op))
    )
    sizes = [f"{name}: {len(body.nodes):,} nodes" for name, body in named_bodies(node.op)]
    shown = ", ".join(types if len(types) <= 3 else [*types[:2], f"... ({len(types)})"])
    return Box(
        kind_of(node.op), [title_of(node.op), *filter(None, [payload]), *sizes, shown], tooltip
    )


def _payload(op: StdTensorOp) -> str:
    """The fields that distinguish this op from others of its class: not the default, and not
    visible in the output's type.
    """
    if isinstance(op, DotGeneral):
        batch = (
            f", batch {_axes(op.lhs_batch)} \u00b7 {_axes(op.rhs_batch)}" if op.lhs_batch else ""
        )
        return f"contract {_axes(op.lhs_contracting)} \u00b7 {_axes(op.rhs_contracting)}{batch}"
    if not dataclasses.is_dataclass(op):
        return ""
    shown = []
    fields = [
        field
        for field in dataclasses.fields(op)
        if type(op) not in ROOMS["Indexing"] or field.name in ("sizes", "slice_sizes")
    ]
    for field in fields:
        value = getattr(op, field.name)
        plain = (
            field.name not in _SEEN
            and not hasattr(value, "input_metas")
            and not (type(value) is tuple and not value)
        )
        if plain and value is not field.default:
            text = value_text(value)
            shown.append(
                text
                if isinstance(value, enum.Enum | str) or len(fields) == 1
                else f"{field.name} {text}"
            )
    return _short(", ".join(shown), 40)


def _axes(axes: Sequence[int]) -> str:
    return ",".join(map(str, axes)) or "none"


def _chip(node: Node, box: Box, chips: dict[int, Box]) -> Box | None:
    """A constant, or a constant repeated into a shape, as a small box; None for anything else."""
    title, *_, shown = box.texts
    value = chips.get(node.inputs[0]) if len(node.inputs) == 1 else None
    if value is not None and isinstance(node.op, BroadcastInDim):
        return Box("constant", (value.texts[0], shown), f"{value.tooltip}\n{box.tooltip}")
    if node.inputs or box.kind != "constant":
        return None
    if isinstance(node.op, Constant):
        small = isinstance(node.op.value, np.ndarray) and node.op.value.size == 1
        title = _short(str(node.op.value.reshape(())[()])) if small else "constant"
    return Box("constant", (title, shown), box.tooltip)


def _short(text: str, most: int = 28) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"


# --- how it is written ---------------------------------------------------------------------------


def _document(boxes: Sequence[Box], count: int) -> str:
    places, routes, wide, tall = place([box.size for box in boxes], [box.reads for box in boxes])
    caption = counted(count, "node")
    width = max(wide, _text_width(caption, _DETAIL_SIZE, "400")) + 2 * _MARGIN
    height = tall + 2 * _MARGIN + 22
    arrows = []
    for (source, target), (
        *points,
        (x, y),
    ) in routes.items():  # an arrow for each argument, in their order
        sources = boxes[target].reads
        port = ((sources.index(source) + 0.5) / len(sources) - 0.5) * boxes[target].size[0] * 0.8
        arrows.append([*points, (x + port, y)])
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    note = f'x="{width / 2:.1f}" y="{height - 10:.1f}" font-size="{_DETAIL_SIZE}" fill="{_LINE}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Inter, Helvetica '
        f'Neue, Helvetica, Arial, sans-serif">',
        f"<title>graph of {caption}</title>",
        f'<g transform="translate({(width - wide) / 2:.1f} {_MARGIN:.1f})">',
        f'<g fill="none" stroke="{_LINE}" stroke-width="1.3">',
        *(f'<path d="{_curve(arrow)}"/>' for arrow in arrows),
        "</g>",
        f'<path fill="{_LINE}" '
        f'd="{"".join(f"M{x:.1f} {y - 0.5:.1f}l-3.6 -7h7.2z" for *_, (x, y) in arrows)}"/>',
        *(part for box, at in zip(boxes, places, strict=True) for part in _drawn(box, *at)),
        "</g>",
        f'<text {note} text-anchor="middle">{caption}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


def _text_width(text: str, size: float, weight: str) -> float:
    """A little more than the width of the text in the requested fonts."""
    narrow = sum(c in "ijltf.,:;'|()[]! " for c in text)
    wide = sum(c.isupper() or c in "mwMW%@" for c in text)
    return (
        size
        * (0.6 * (len(text) - narrow - wide) + 0.36 * narrow + 0.78 * wide)
        * (1.06 if weight == "600" else 1.0)
    )


def _drawn(box: Box, x: float, y: float) -> list[str]:
    (fill, border, colour), (width, height) = LOOKS[box.kind], box.size
    stroke = 2.2 if box.kind == "extension" else 1.2
    radius = height / 2 if box.kind in ("input", "output") and height < 30 else 7
    rect = (
        f'x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{radius:.0f}"'
    )
    colours = f'fill="{fill}" stroke="{border}" stroke-width="{stroke}"'
    parts = ["<g>", f"<title>{_escaped(box.tooltip)}</title>", f"<rect {rect} {colours}/>"]
    baseline = y + (2.0 if box.kind == "constant" else 5.0)
    for line, size, weight in box.lines:
        baseline += size * 1.35
        style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="middle"'
        parts.append(
            f'<text x="{x:.1f}" y="{baseline - size * 0.25:.1f}" {style}>{_escaped(line)}</text>'
        )
    return [*parts, "</g>"]


def _curve(route: Sequence[tuple[float, float]]) -> str:
    """A line through the points, vertical at each of them; it ends where the arrow head begins."""
    (x, y), *rest = route
    path = [f"M{x:.1f} {y:.1f}"]
    for i, (end_x, end_y) in enumerate(rest):
        end_y -= 5.0 if i == len(rest) - 1 else 0.0
        if abs(end_x - x) < 0.5:
            path.append(f"L{end_x:.1f} {end_y:.1f}")
        else:
            bend = (y + end_y) / 2
            path.append(f"C{x:.1f} {bend:.1f} {end_x:.1f} {bend:.1f} {end_x:.1f} {end_y:.1f}")
        x, y = end_x, end_y
    return "".join(path)


def _escaped(text: str) -> str:
    """Text for XML, which allows no control characters."""
    return html.escape(plain(text, kept="\n"))
