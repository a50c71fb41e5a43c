"""Layered placement of boxes: arrows go down, layer by layer, with few crossings and long arrows kept straight."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

_GAP, _LAYER_GAP, _LANE = 18.0, 30.0, 10.0
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 30
_PORT = 1e-3  # a port decides only between arrows to one box


class Arrow(NamedTuple):
    """From the bottom of one box to the top of another; the ports are x offsets from the boxes' centres."""

    source: int
    target: int
    out_port: float
    in_port: float


class Placement(NamedTuple):
    """Where everything goes.

    Attributes:
      boxes: for each box the x of its centre and the y of its top.
      routes: for each arrow the points that it passes.
      width, height: of the whole.
    """

    boxes: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


class _Link(NamedTuple):
    """A piece of an arrow between two neighbouring layers."""

    upper: int
    lower: int
    out_port: float
    in_port: float
    weight: float


def place(sizes: Sequence[tuple[float, float]], arrows: Sequence[Arrow]) -> Placement:
    """Place boxes of these (width, height); every arrow leads from a box to a later one.

    Example:
      >>> place([(10, 10), (10, 10)], [Arrow(0, 1, 0.0, 0.0)]).boxes
      [(5.0, 0.0), (5.0, 40.0)]
    """
    rank = _ranks(len(sizes), arrows)
    widths = [w for w, _ in sizes]
    links: list[_Link] = []
    lanes: list[list[int]] = []  # for each arrow the lane points that it passes between its boxes
    for source, target, out_port, in_port in arrows:
        passed = list(range(len(widths), len(widths) + rank[target] - rank[source] - 1))
        widths.extend([_LANE] * len(passed))
        rank.extend(range(rank[source] + 1, rank[target]))
        stops = [source, *passed, target]
        for upper, lower in itertools.pairwise(stops):
            ends = (upper == source) + (lower == target)
            weight = (30.0, 3.0, 1.0)[ends]
            links.append(_Link(upper, lower, out_port if upper == source else 0.0, in_port if lower == target else 0.0, weight))
        lanes.append(passed)
    layers: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for item, r in enumerate(rank):
        layers[r].append(item)
    above: list[list[_Link]] = [[] for _ in widths]
    below: list[list[_Link]] = [[] for _ in widths]
    for link in links:
        above[link.lower].append(link)
        below[link.upper].append(link)
    layers = _ordered(layers, above, below)
    x = _columns(layers, widths, above, below)
    left = min((x[i] - widths[i] / 2 for i in range(len(widths))), default=0.0)
    x = [value - left for value in x]
    heights = [max([sizes[i][1] for i in layer if i < len(sizes)], default=0.0) for layer in layers]
    tops = [0.0]
    for height in heights:
        tops.append(tops[-1] + height + _LAYER_GAP)
    boxes = [(x[i], tops[rank[i]] + (heights[rank[i]] - sizes[i][1]) / 2) for i in range(len(sizes))]
    routes = []
    for arrow, passed in zip(arrows, lanes, strict=True):
        start = (boxes[arrow.source][0] + arrow.out_port, boxes[arrow.source][1] + sizes[arrow.source][1])
        end = (boxes[arrow.target][0] + arrow.in_port, boxes[arrow.target][1])
        middle = [(x[i], y) for i in passed for y in (tops[rank[i]], tops[rank[i]] + heights[rank[i]])]
        routes.append([start, *middle, end])
    width = max((x[i] + widths[i] / 2 for i in range(len(widths))), default=0.0)
    return Placement(boxes, routes, width, tops[-1] - _LAYER_GAP if heights else 0.0)


def _ranks(count: int, arrows: Sequence[Arrow]) -> list[int]:
    """The layer of each box: below all that it reads; a box that reads nothing is just above the first that reads it."""
    readers: list[list[int]] = [[] for _ in range(count)]
    reads = [False] * count
    for source, target, *_ in arrows:
        readers[source].append(target)
        reads[target] = True
    rank = [0] * count
    for box in range(count):
        for reader in readers[box]:
            rank[reader] = max(rank[reader], rank[box] + 1)
    for box in range(count):
        if readers[box] and not reads[box]:
            rank[box] = min(rank[reader] for reader in readers[box]) - 1
    return rank


def _ordered(layers: list[list[int]], above: list[list[_Link]], below: list[list[_Link]]) -> list[list[int]]:
    """Each layer sorted by the mean place of its neighbours, down and up in turns; the order with fewest crossings."""
    best, fewest = layers, _crossings(layers, below)
    current = [list(layer) for layer in layers]
    for sweep in range(_ORDER_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        place = {item: float(i) for layer in current for i, item in enumerate(layer)}
        for layer in current if down else reversed(current):
            keys = {}
            for i, item in enumerate(layer):
                if down:
                    near = [place[link.upper] for link in above[item]]
                else:
                    near = [place[link.lower] + link.in_port * _PORT for link in below[item]]
                keys[item] = sum(near) / len(near) if near else float(i)
            layer.sort(key=keys.__getitem__)
            place.update((item, float(i)) for i, item in enumerate(layer))
        crossings = _crossings(current, below)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in current], crossings
    return best


def _crossings(layers: list[list[int]], below: list[list[_Link]]) -> int:
    """How many pairs of links cross."""
    count = 0
    place = {item: i for layer in layers for i, item in enumerate(layer)}
    for layer in layers:
        seen: list[float] = []
        for item in layer:
            ends = sorted(place[link.lower] + link.in_port * _PORT for link in below[item])
            count += sum(len(seen) - bisect.bisect_right(seen, end) for end in ends)
            for end in ends:
                bisect.insort(seen, end)
    return count


def _columns(layers: list[list[int]], widths: list[float], above: list[list[_Link]], below: list[list[_Link]]) -> list[float]:
    """x of every item: as near to its neighbours as the others of its layer allow."""
    x = [0.0] * len(widths)
    for layer in layers:
        for item, place in zip(layer, _spread([0.0] * len(layer), [widths[i] for i in layer], [1.0] * len(layer)), strict=True):
            x[item] = place
    for sweep in range(_PLACE_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted, weights = [], []
            for item in layer:
                total = weight = 0.0
                for link in above[item]:
                    total += link.weight * (x[link.upper] + link.out_port - link.in_port)
                    weight += link.weight
                for link in below[item]:
                    total += link.weight * (x[link.lower] + link.in_port - link.out_port)
                    weight += link.weight
                wanted.append(total / weight if weight else x[item])
                weights.append(weight or 0.1)
            for item, place in zip(layer, _spread(wanted, [widths[i] for i in layer], weights), strict=True):
                x[item] = place
    return x


def _spread(wanted: list[float], widths: list[float], weights: list[float]) -> list[float]:
    """The places nearest to the wanted ones, by weighted squares, at which neighbours do not overlap: pooled blocks."""
    offsets, end = [], 0.0
    for width in widths:
        offsets.append(end + width / 2)
        end += width + _GAP
    blocks: list[list[float]] = []  # mean, weight, how many items
    for want, offset, weight in zip(wanted, offsets, weights, strict=True):
        blocks.append([want - offset, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, more, count = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * more) / (last[1] + more)
            last[1] += more
            last[2] += count
    means = [mean for mean, _, count in blocks for _ in range(int(count))]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
