"""A graph as a picture: SVG without a dependency, for a notebook or a page, legible on light and on dark ground."""

from __future__ import annotations

import collections
import dataclasses
import enum
import html
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import InvalidConfig
from ..extension import Extension
from ..extension.missing import MissingExtension
from ..ops.contraction import DotGeneral
from ..ops.op import StdTensorOp
from ..ops.source import Constant
from ..ops.structural import BroadcastInDim
from ..ops.vocabulary import (
    CONTRACTION,
    CONTROL,
    CUMULATIVE,
    DIAGONAL,
    ELEMENTWISE,
    INDEXING,
    LINALG,
    RANDOM,
    REDUCTION,
    SORTING,
    SOURCES,
    STRUCTURAL,
    WINDOW,
)
from .layout import Arrow, Placement, place
from .printing import named_bodies, op_text, plain, value_text


class _Look(NamedTuple):
    """fill, border and text of a kind of box."""

    fill: str
    border: str
    text: str = "#1c2430"


_LOOKS = {
    "input": _Look("#dbeafe", "#2563eb"),
    "output": _Look("#334155", "#94a3b8", "#ffffff"),
    "constant": _Look("#f8fafc", "#94a3b8", "#475569"),
    "elementwise": _Look("#dcf3e3", "#4aa36b"),
    "structural": _Look("#e9edf2", "#8593a6"),
    "contraction": _Look("#ffe3c4", "#e08a2c"),
    "reduction": _Look("#fdf0b3", "#c9a227"),
    "indexing": _Look("#d3f1f4", "#3a9aa6"),
    "control": _Look("#ece4fb", "#8b5cd6"),
    "extension": _Look("#d6246e", "#86103f", "#ffffff"),
    "other": _Look("#f3e8e2", "#a1806f"),
    "folded": _Look("#f1f5f9", "#64748b"),
}
_KINDS: dict[type[StdTensorOp], str] = {
    **dict.fromkeys(ELEMENTWISE, "elementwise"),
    **dict.fromkeys((*STRUCTURAL, *DIAGONAL), "structural"),
    **dict.fromkeys((*CONTRACTION, *LINALG), "contraction"),
    **dict.fromkeys((*REDUCTION, *CUMULATIVE, *WINDOW), "reduction"),
    **dict.fromkeys((*INDEXING, *SORTING), "indexing"),
    **dict.fromkeys(RANDOM, "other"),
    **dict.fromkeys(CONTROL, "control"),
    **dict.fromkeys(SOURCES, "constant"),
}
_SEEN = ("shape", "dtype", "value", "accumulation_dtype", "index_dtype")  # fields that the output's type or the chip shows
_FOLDABLE = ("elementwise", "structural")
_LINE, _TITLE_SIZE, _DETAIL_SIZE, _CHIP_SIZE = "#7c8796", 13.0, 11.0, 10.5
_NESTED_NODES, _NESTED_DEPTH = 16, 2
_MARGIN, _PADDING = 12.0, 10.0


@dataclasses.dataclass
class _Box:
    """What is drawn for one node, input or output, or for several nodes together."""

    kind: str
    title: str
    details: list[str]
    tooltip: str
    count: int = 1  # how many nodes it stands for
    inner: list[tuple[str, _Picture]] = dataclasses.field(default_factory=list)
    names: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # of the ops that were folded

    @property
    def lines(self) -> list[tuple[str, float, str]]:
        """(text, size, weight) of each line."""
        if self.kind == "constant":
            return [(line, _CHIP_SIZE, "400") for line in [self.title, *self.details]]
        return [(self.title, _TITLE_SIZE, "600"), *((line, _DETAIL_SIZE, "400") for line in self.details)]

    @property
    def text_height(self) -> float:
        """Height of the lines with their padding."""
        return sum(size * 1.35 for _, size, _ in self.lines) + (6.0 if self.kind == "constant" else 12.0)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        width = max(_text_width(line, size, weight) for line, size, weight in self.lines) + 2 * _PADDING
        height = self.text_height
        if self.inner:
            width = max(width, sum(p.placement.width + 2 * _PADDING for _, p in self.inner) + _PADDING * (len(self.inner) + 1))
            height += max(p.placement.height for _, p in self.inner) + 20.0 + 2 * _PADDING
        return width, height


class _Picture(NamedTuple):
    """Boxes with their places."""

    boxes: list[_Box]
    placement: Placement
    folded: int


def graph_svg(graph: Any, *, limit: int = 80) -> str:
    """The graph as an SVG document.

    Args:
      graph: the graph.
      limit: how many nodes are drawn one by one. In a larger graph, chains of elementwise and structural ops become one
        box; if still more boxes than that are left, so does the middle of the graph. The picture says how many nodes it folded.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidConfig(where="Graph.svg", given=f"limit={limit!r}", needed="an integer from 0", fix="Leave it out.")
    return _document(_picture(graph, limit, 0), len(graph.nodes))


class Step(NamedTuple):
    """One op of a program that is no Graph.

    Attributes:
      kind: "input", "output", "extension", or another kind of box.
      title: the name on the box.
      details: further lines, the type of what it gives last.
      text: the tooltip.
      reads: the numbers of the steps whose results it reads.
    """

    kind: str
    title: str
    details: list[str]
    text: str
    reads: list[int]


def steps_svg(steps: Sequence[Step], *, limit: int = 80) -> str:
    """A program as an SVG document, from its steps in an order in which each reads earlier ones; its middle is folded beyond `limit`."""
    boxes = [_Box(s.kind, _short(s.title, 40), list(map(_short, s.details)), s.text, s.kind not in ("input", "output")) for s in steps]
    count = sum(box.count for box in boxes)
    return _document(_placed(boxes, [step.reads for step in steps], limit), count)


def _document(picture: _Picture, count: int) -> str:
    _, placement, folded = picture
    caption = f"{count:,} node{'s' * (count != 1)}" + (f", {folded:,} of them folded" if folded else "")
    width = max(placement.width, _text_width(caption, _DETAIL_SIZE, "400")) + 2 * _MARGIN
    height = placement.height + 2 * _MARGIN + 22
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        'font-family="Inter, Helvetica Neue, Helvetica, Arial, sans-serif" role="img">',
        f"<title>graph of {_escaped(caption)}</title>",
        f'<g transform="translate({(width - placement.width) / 2:.1f} {_MARGIN:.1f})">',
        *_drawn(picture),
        "</g>",
        f'<text x="{width / 2:.1f}" y="{height - 10:.1f}" font-size="{_DETAIL_SIZE}" text-anchor="middle" fill="{_LINE}">{caption}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


# --- which boxes there are -----------------------------------------------------------------------------------------


def _picture(graph: Any, limit: int, depth: int) -> _Picture:
    return _placed(*_boxes(graph, depth, fold=len(graph.nodes) > limit), limit)


def _placed(boxes: list[_Box], reads: list[list[int]], limit: int) -> _Picture:
    if len(boxes) > 2 * limit:
        boxes, reads = _without_middle(boxes, reads, limit)
    sizes = [box.size for box in boxes]
    fan_out: dict[int, list[int]] = {}
    for target, sources in enumerate(reads):
        for source in dict.fromkeys(sources):
            fan_out.setdefault(source, []).append(target)
    arrows = []
    for target, sources in enumerate(reads):
        distinct = list(dict.fromkeys(sources))
        for i, source in enumerate(distinct):
            arrows.append(Arrow(source, target, 0.0, _port(i, len(distinct), sizes[target][0])))
    return _Picture(boxes, place(sizes, arrows), sum(box.count for box in boxes if box.count > 1))


def _port(i: int, count: int, width: float) -> float:
    """Where along the top of a box its i-th arrow ends, from the middle."""
    return 0.0 if count == 1 else ((i + 0.5) / count - 0.5) * width * 0.8


def _boxes(graph: Any, depth: int, *, fold: bool) -> tuple[list[_Box], list[list[int]]]:
    """The boxes in an order in which arrows lead to later ones, and which boxes each reads."""
    boxes: list[_Box] = []
    reads: list[list[int]] = []
    made: dict[int, int] = {}  # value number -> its box
    chips: dict[int, _Box] = {}  # value number -> the constant, drawn anew beside each reader

    def new(box: _Box, values: Sequence[int]) -> int:
        found = []
        for value in values:
            if value in chips:
                boxes.append(chips[value])
                reads.append([])
                found.append(len(boxes) - 1)
            elif value in made:  # not what is inside of the same box
                found.append(made[value])
        boxes.append(box)
        reads.append(found)
        return len(boxes) - 1

    for i, (name, meta) in enumerate(zip(graph.input_names, graph.input_metas, strict=True)):
        label = name.removeprefix("args") if depth == 0 else f"%{i}"
        made[i] = new(_Box("input", _short(label), [str(meta)], f"%{i} = {name} : {meta}", 0), ())
    ends = [*(node.first_output for node in graph.nodes), len(graph.metas)][1:]
    for chain in _chains(graph) if fold else [[i] for i in range(len(graph.nodes))]:
        nodes = [graph.nodes[i] for i in chain]
        outs = range(nodes[-1].first_output, ends[chain[-1]])
        members = [_box(node, graph.metas[node.first_output : ends[i]], depth) for i, node in zip(chain, nodes, strict=True)]
        values = list(dict.fromkeys(value for node in nodes for value in node.inputs))
        if len(chain) > 1:
            box = _together(members)
            values = [value for value in values if value not in chips]
        elif (chip := _chip(nodes[0], members[0], chips)) is not None:
            chips[outs[0]] = chip
            continue
        else:
            (box,) = members
        made.update(dict.fromkeys(outs, new(box, values)))
    for name, value in zip(_output_names(graph) if depth == 0 else [""] * len(graph.outputs), graph.outputs, strict=True):
        new(_Box("output", _short(f"return {name}".rstrip()), [], f"return {name} = %{value} : {graph.metas[value]}", 0), [value])
    return boxes, reads


def _chains(graph: Any) -> list[list[int]]:
    """The nodes in groups, ordered by their last: elementwise and structural ops whose result only the next one reads."""
    readers = collections.Counter(value for node in graph.nodes for value in set(node.inputs))
    readers.update(graph.outputs)
    tails: dict[int, list[int]] = {}  # value number -> the chain that ends with it
    chains: list[list[int]] = []
    for i, node in enumerate(graph.nodes):
        chain: list[int] = []
        if _kind(node.op) in _FOLDABLE:
            chain = next((tails.pop(v) for v in node.inputs if v in tails and readers[v] == 1), chain)
            tails[node.first_output] = chain
        chain.append(i)
        if len(chain) == 1:
            chains.append(chain)
    return sorted(chains, key=lambda chain: chain[-1])


def _without_middle(boxes: list[_Box], reads: list[list[int]], limit: int) -> tuple[list[_Box], list[list[int]]]:
    """The same with all but the first and the last ops as one box."""
    ops = [i for i, box in enumerate(boxes) if box.count and reads[i]]
    hidden = ops[limit // 2 : len(ops) - limit // 2]
    if not hidden:
        return boxes, reads
    inside = set(hidden)
    readers: dict[int, set[bool]] = {}
    for i, sources in enumerate(reads):
        for source in sources:
            readers.setdefault(source, set()).add(i in inside)
    dropped = {i for i, box in enumerate(boxes) if box.kind == "constant" and readers.get(i) == {True}}
    kept: list[_Box] = []
    kept_reads: list[list[int]] = []
    number: dict[int, int] = {}
    for i, box in enumerate(boxes):
        if i in dropped or (i in inside and i != hidden[-1]):
            continue
        if i == hidden[-1]:
            sources = [s for h in hidden for s in reads[h] if s not in inside and s not in dropped]
            box = _together([boxes[h] for h in hidden])
            number.update(dict.fromkeys(hidden, len(kept)))
        else:
            sources = reads[i]
            number[i] = len(kept)
        kept.append(box)
        kept_reads.append(list(dict.fromkeys(number[s] for s in sources)))
    return kept, kept_reads


def _together(members: list[_Box]) -> _Box:
    """Several boxes as one: how many nodes they are, of which ops, and what the last one gives."""
    count = sum(box.count for box in members)
    names: collections.Counter[str] = collections.Counter()
    for box in members:
        names.update(box.names or {box.title: box.count})
    listed = [name if n == 1 else f"{n:,} {name}" for name, n in names.most_common()]
    text = ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
    lines = [line for box in members[:20] for line in box.tooltip.splitlines()[:20]]
    tooltip = "\n".join([*lines[:20], *(["..."] if len(members) > 20 or len(lines) > 20 else [])])
    return _Box("folded", f"{count:,} ops", [text, members[-1].details[-1]], tooltip, count, names=names)


# --- one box -------------------------------------------------------------------------------------------------------


def _kind(op: StdTensorOp) -> str:
    if isinstance(op, Extension | MissingExtension):
        return "extension"
    return _KINDS.get(type(op), "other")


def _box(node: Any, metas: Sequence[Any], depth: int) -> _Box:
    op = node.op
    types = ", ".join(map(str, metas))
    outs = ", ".join(f"%{i}" for i in range(node.first_output, node.first_output + len(metas)))
    tooltip = f"{outs} = {op_text(op)}({', '.join(f'%{i}' for i in node.inputs)}) : {types}"
    payload: Any = op.op if isinstance(op, Extension) else op
    title = op.family_id if isinstance(op, Extension | MissingExtension) else type(op).__name__
    if isinstance(op, Extension) and op.batching:
        title += ".vmap" * len(op.batching)
    details = [line for line in ["not registered" if isinstance(op, MissingExtension) else _payload(payload)] if line]
    inner = []
    for name, body in named_bodies(op):
        if depth < _NESTED_DEPTH and len(body.nodes) <= _NESTED_NODES:
            inner.append((name, _picture(body, _NESTED_NODES, depth + 1)))
        else:
            details.append(f"{name}: {len(body.nodes):,} nodes")
    shown = types if len(metas) <= 3 else f"{', '.join(map(str, metas[:2]))}, ... ({len(metas)})"
    return _Box(_kind(op), title, [*details, shown], tooltip, 1, inner)


def _payload(op: Any) -> str:
    """What tells this op from others of its class: fields that are not their default and not seen in the output's type."""
    if isinstance(op, DotGeneral):
        batch = f", batch {_axes(op.lhs_batch)} \u00b7 {_axes(op.rhs_batch)}" if op.lhs_batch else ""
        return f"contract {_axes(op.lhs_contracting)} \u00b7 {_axes(op.rhs_contracting)}{batch}"
    if not dataclasses.is_dataclass(op):
        return ""
    shown = []
    fields = [field for field in dataclasses.fields(op) if type(op) not in INDEXING or field.name in ("sizes", "slice_sizes")]
    for field in fields:
        value = getattr(op, field.name)
        plain = field.name not in _SEEN and not hasattr(value, "input_metas") and not (type(value) is tuple and not value)
        if plain and value is not field.default:
            text = value_text(value)
            shown.append(text if isinstance(value, enum.Enum | str) or len(fields) == 1 else f"{field.name} {text}")
    return _short(", ".join(shown), 40)


def _axes(axes: Sequence[int]) -> str:
    return ",".join(map(str, axes)) or "none"


def _chip(node: Any, box: _Box, chips: dict[int, _Box]) -> _Box | None:
    """A constant, or a constant repeated into a shape, as a small box; None for anything else."""
    value = chips.get(node.inputs[0]) if len(node.inputs) == 1 else None
    if value is not None and isinstance(node.op, BroadcastInDim):
        return _Box("constant", value.title, box.details[-1:], f"{value.tooltip}\n{box.tooltip}")
    if node.inputs or len(box.details) > 2 or box.kind != "constant":
        return None
    if isinstance(node.op, Constant):
        small = isinstance(node.op.value, np.ndarray) and node.op.value.size == 1
        return _Box("constant", _short(str(node.op.value.reshape(())[()])) if small else "constant", box.details[-1:], box.tooltip)
    return _Box("constant", box.title.lower() if box.title == "Iota" else box.details[0], box.details[-1:], box.tooltip)


def _output_names(graph: Any) -> list[str]:
    tree = jax.tree.unflatten(graph.out_tree, range(len(graph.outputs)))
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _short(text: str, most: int = 28) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"


# --- how it is written ---------------------------------------------------------------------------------------------


def _text_width(text: str, size: float, weight: str) -> float:
    """A little more than the text takes in the fonts that are asked for."""
    narrow = sum(c in "ijltf.,:;'|()[]! " for c in text)
    wide = sum(c.isupper() or c in "mwMW%@" for c in text)
    return size * (0.6 * (len(text) - narrow - wide) + 0.36 * narrow + 0.78 * wide) * (1.06 if weight == "600" else 1.0)


def _drawn(picture: _Picture) -> list[str]:
    boxes, placement, _ = picture
    parts = [f'<g fill="none" stroke="{_LINE}" stroke-width="1.3">']
    parts += [f'<path d="{_curve(route)}"/>' for route in placement.routes]
    parts += ["</g>", f'<path fill="{_LINE}" d="{"".join(_head(*route[-1]) for route in placement.routes)}"/>' if placement.routes else ""]
    for box, (x, y) in zip(boxes, placement.boxes, strict=True):
        parts += _drawn_box(box, x, y)
    return [part for part in parts if part]


def _drawn_box(box: _Box, x: float, y: float) -> list[str]:
    look, (width, height) = _LOOKS[box.kind], box.size
    stroke = 2.2 if box.kind == "extension" else 1.2
    dash = ' stroke-dasharray="5 3"' if box.kind == "folded" else ""
    radius = height / 2 if box.kind in ("input", "output") and height < 30 else 7
    rect = f'x="{x - width / 2:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:.0f}"'
    parts = ["<g>", f"<title>{_escaped(box.tooltip)}</title>"]
    parts.append(f'<rect {rect} y="{y:.1f}" fill="{look.fill}" stroke="{look.border}" stroke-width="{stroke}"{dash}/>')
    baseline = y + (2.0 if box.kind == "constant" else 5.0)
    for line, size, weight in box.lines:
        baseline += size * 1.35
        style = f'font-size="{size}" font-weight="{weight}" fill="{look.text}" text-anchor="middle"'
        parts.append(f'<text x="{x:.1f}" y="{baseline - size * 0.25:.1f}" {style}>{_escaped(line)}</text>')
    if box.inner:
        total = sum(p.placement.width + 2 * _PADDING for _, p in box.inner) + _PADDING * (len(box.inner) - 1)
        left, top, tall = x - total / 2, y + box.text_height + 2, max(p.placement.height for _, p in box.inner)
        for name, picture in box.inner:
            wide = picture.placement.width + 2 * _PADDING
            frame = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall + 18 + 2 * _PADDING - 10:.1f}" rx="5"'
            parts.append(f'<rect {frame} fill="#ffffff" stroke="{look.border}" stroke-width="0.8"/>')
            label = f'font-size="{_CHIP_SIZE}" fill="{look.border}" font-weight="600"'
            parts.append(f'<text x="{left + 7:.1f}" y="{top + 13:.1f}" {label}>{_escaped(name)}</text>')
            parts.append(f'<g transform="translate({left + _PADDING:.1f} {top + 20:.1f})">')
            parts += [*_drawn(picture), "</g>"]
            left += wide + _PADDING
    return [*parts, "</g>"]


def _curve(route: Sequence[tuple[float, float]]) -> str:
    """Through the points, leaving and reaching each vertically; it stops where the arrow head begins."""
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


def _head(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 0.5:.1f}l-3.6 -7h7.2z"


def _escaped(text: str) -> str:
    """As XML, which has no control characters."""
    return html.escape(plain(text, kept="\n"))
