"""Layered placement of boxes: arrows go down layer by layer and pass between the boxes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

GAP, LAYER_GAP, LANE = 18.0, 30.0, 10.0
SWEEPS = 24

Point = tuple[float, float]


def place(
    sizes: Sequence[Point], reads: Sequence[Sequence[int]]
) -> tuple[list[Point], dict[tuple[int, int], list[Point]], float, float]:
    """Place boxes of these (width, height); `reads` gives for each box the earlier boxes whose
    arrows lead to it.

    Returns:
      For each box the x of its centre and the y of its top; the points of each arrow, by the
      numbers of the boxes that it joins; width and height of the whole.

    Example:
      >>> place([(10, 10), (10, 10)], [[], [0]])[0]
      [(5.0, 0.0), (5.0, 40.0)]
    """
    rank = _ranks(reads)
    widths = [width for width, _ in sizes]
    paths: dict[tuple[int, int], list[int]] = {}
    for target, sources in enumerate(reads):
        for source in dict.fromkeys(
            sources
        ):  # a long arrow has a lane in each layer between its ends
            crossed = range(rank[source] + 1, rank[target])
            paths[source, target] = [
                source,
                *range(len(widths), len(widths) + len(crossed)),
                target,
            ]
            widths += [LANE] * len(crossed)
            rank += crossed
    x = _columns(rank, widths, paths, len(sizes))
    left = min((at - width / 2 for at, width in zip(x, widths, strict=True)), default=0.0)
    x = [at - left for at in x]
    heights = [0.0] * (max(rank, default=-1) + 1)
    for (_, height), layer in zip(sizes, rank, strict=False):
        heights[layer] = max(heights[layer], height)
    tops = list(itertools.accumulate((height + LAYER_GAP for height in heights), initial=0.0))
    boxes = [
        (x[i], tops[rank[i]] + (heights[rank[i]] - sizes[i][1]) / 2) for i in range(len(sizes))
    ]
    routes = {}
    for (source, target), (_, *passed, _) in paths.items():
        lanes = [(x[i], tops[rank[i]] + part) for i in passed for part in (0.0, heights[rank[i]])]
        start = boxes[source][0], boxes[source][1] + sizes[source][1]
        routes[source, target] = [start, *lanes, boxes[target]]
    width = max((at + width / 2 for at, width in zip(x, widths, strict=True)), default=0.0)
    return boxes, routes, width, tops[-1] - LAYER_GAP if heights else 0.0


def _ranks(reads: Sequence[Sequence[int]]) -> list[int]:
    """The layer of each box: below all boxes that it reads; a box that reads nothing is just above
    its first reader.
    """
    rank = [0] * len(reads)
    first = [len(reads)] * len(reads)
    for box, sources in enumerate(reads):
        rank[box] = max((rank[source] + 1 for source in sources), default=0)
        for source in sources:
            first[source] = min(first[source], rank[box])
    alone = (not sources and first[box] < len(reads) for box, sources in enumerate(reads))
    return [first[box] - 1 if above else rank[box] for box, above in enumerate(alone)]


def _columns(
    rank: Sequence[int],
    widths: Sequence[float],
    paths: Mapping[tuple[int, int], Sequence[int]],
    boxes: int,
) -> list[float]:
    """x of every box and lane: as near to its neighbours as the other boxes of its layer allow."""
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for path in paths.values():
        for upper, lower in itertools.pairwise(path):
            above[lower].append(upper)
            below[upper].append(lower)
    layers: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for item, layer in enumerate(rank):
        layers[layer].append(item)
    x = [0.0] * len(widths)
    for items in layers:
        _settle(items, widths, x)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for items in layers if down else layers[::-1]:
            # first by one side, which orders the layers; then by both sides, which straightens
            # arrows
            for item in items:
                one = above[item] if down else below[item]
                near = one if sweep < SWEEPS // 2 else above[item] + below[item]
                if item >= boxes:  # lanes follow one another: a long arrow is straight
                    near = [other for other in near if other >= boxes] or near
                x[item] = sum(x[other] for other in near) / len(near) if near else x[item]
            if sweep < SWEEPS // 2:
                items.sort(key=x.__getitem__)
            _settle(items, widths, x)
    return x


def _settle(items: Sequence[int], widths: Sequence[float], x: list[float]) -> None:
    """Move the items of a layer apart, in their order: halfway between all to the right and all to
    the left.
    """
    right, left = [x[item] for item in items], [x[item] for item in items]
    for i in range(1, len(items)):
        apart = (widths[items[i - 1]] + widths[items[i]]) / 2 + GAP
        right[i] = max(right[i], right[i - 1] + apart)
        apart = (widths[items[-i]] + widths[items[-i - 1]]) / 2 + GAP
        left[-i - 1] = min(left[-i - 1], left[-i] - apart)
    for item, a, b in zip(items, right, left, strict=True):
        x[item] = (a + b) / 2
