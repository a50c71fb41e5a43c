"""Log-sum-exp and its weighted sums by products of matrices, where nothing is lost by it.

exp((a + b - v) / T) = exp((a - A) / T) exp((b - B) / T) exp((A + B - v) / T), where A and B are the
largest entries of a row and a column: factors of the sizes of operands and result, and sums of
their products are matrix products. A term that underflows in them was less than the least normal
number. So a cell counts if its sum is so much larger that all its terms together could lose no more
than rounding does. The other cells are computed from all candidates, in tiles, so that an extreme
row costs only its own tiles.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...semirings.shipped import are_finite
from ..layout import MatmulLayout, grouped
from .selection import UNROLLED_ENTRIES, fits_one_reduction

EQUATION = "bkm,bkn->bmn"
"""A step of matrices, of batch b, contracted k, rows m, columns n; and so the places of arrays."""
PLACES = ("bkm", "bkn", "bmn")

TILE_SIDE = 32
"""The most rows and columns of a tile."""

TURN_TILES = 16
"""Tiles in each turn."""

LEAST_CANDIDATES = 1 << 12
"""The least candidates that are multiplied."""

PART_TERMS, MOST_PARTS = 64, 4
"""The terms that a product adds one after another, for little rounding, and the most such parts."""


class Form(NamedTuple):
    """A sum over the candidates of a step.

    Attributes:
      layout, temperature: of the step.
      places: of the inputs.
      output: the place of the result.
      exact, exact_tiles: the sum from all candidates, of the inputs and of inputs as matrices.
    """

    layout: MatmulLayout
    temperature: float
    places: Sequence[str]
    output: str
    exact: Callable[..., Any]
    exact_tiles: Callable[..., Any]

    def sizes(self, inputs: Sequence[jax.Array]) -> Mapping[str, int]:
        """Of the labels."""
        return self.layout.equation.sizes([x.shape for x in inputs[:2]], "")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of arrays in each place."""
        return dict(
            zip(PLACES, (*self.layout.equation.inputs, self.layout.equation.output), strict=True)
        )

    def shifted(self, inputs: Sequence[jax.Array]) -> tuple[list[jax.Array], jax.Array, jax.Array]:
        """exp((x - X) / T) of both operands, X the largest entry of a row or a column, 0 where all
        are -inf; and the sum of both X for each cell, with what its rounding lost.
        """
        tops, weights = [], []
        for labels, x in zip(self.layout.equation.inputs, inputs, strict=False):
            axes = [labels.index(label) for label in self.layout.contracted]
            top = jnp.max(x, axes, keepdims=True)
            tops.append(jnp.where(top == -jnp.inf, 0, top))
            weights.append(jnp.exp((x - tops[-1]) / self.temperature))
        rows, columns = self.layout.matrices(*tops)
        rows = jnp.swapaxes(rows, 1, 2)
        # The sum of two floats and exactly what its rounding lost (Knuth's two-sum), which exp
        # would see where scores are large.
        total = rows + columns
        part = total - rows
        lost = (rows - (total - part)) + (columns - part)
        top, lost = (self.layout.tensor(x, self.sizes(inputs)) for x in (total, lost))
        return weights, top, lost

    def floor(self, inputs: Sequence[jax.Array]) -> jax.Array:
        """The least sum that counts: its terms lose less than a quarter of its rounding."""
        _, count, *_ = self.layout.extents(self.sizes(inputs))
        info = np.finfo(inputs[0].dtype)
        return jnp.asarray(count, info.dtype) * np.asarray(4 * info.tiny / info.eps, info.dtype)

    def product(self, sides: Mapping[str, jax.Array]) -> jax.Array:
        """The matrix product of arrays in two places, in the place that is left."""
        labels = self.labels
        (output,) = set(PLACES) - set(sides)
        last = labels[output][-1:]  # in the second array, if in one: so nothing is transposed
        order = sorted(sides, key=lambda place: last in labels[place])
        terms, arrays = [labels[place] for place in order], [sides[place] for place in order]
        sizes = dict(zip(terms[0], arrays[0].shape, strict=True))
        summed = {c: sizes[c] for c in terms[0] if c in terms[1] and c not in labels[output]}
        contract = functools.partial(
            jnp.einsum, f"{','.join(terms)}->{labels[output]}", precision=lax.Precision.HIGHEST
        )
        count = math.prod(summed.values())
        if not isinstance(count, int) or count <= PART_TERMS:
            return contract(*arrays)
        # XLA adds the terms of a product one after another. Parts of the longest summed label,
        # added in a loop, round less; padding with zeros makes them equal.
        label = max(summed, key=lambda c: summed[c])
        parts = min(-(-count // PART_TERMS), MOST_PARTS, summed[label])
        width = -(-summed[label] // parts)
        axes = [term.index(label) for term in terms]
        padded = [
            jnp.pad(x, [(0, (parts * width - n) * (i == axis)) for i, n in enumerate(x.shape)])
            for x, axis in zip(arrays, axes, strict=True)
        ]

        def turn(i: jax.Array, total: jax.Array) -> jax.Array:
            cut = [
                lax.dynamic_slice_in_dim(x, i * width, width, axis)
                for x, axis in zip(padded, axes, strict=True)
            ]
            return total + contract(*cut)

        return lax.fori_loop(0, parts, turn, jnp.zeros_like(jax.eval_shape(contract, *arrays)))

    def repaired(
        self,
        inputs: Sequence[jax.Array],
        start: Any,
        bad: jax.Array,
        added: Callable[..., Any],
    ) -> Any:
        """The result, an array or several: start, to which added(bad cells, *inputs) is added for
        each tile with a bad cell; or, if many tiles have one, the sum from all candidates.
        """
        sizes, layout = self.sizes(inputs), self.layout
        extents = dict(zip("bkmn", layout.extents(sizes), strict=True))
        groups = {"b": layout.batch, "k": layout.contracted, "m": layout.rows, "n": layout.columns}
        if not all(isinstance(size, int) for size in extents.values()):
            return self.exact(*inputs)
        grid = {c: -(-extents[c] // TILE_SIDE) for c in "mn"} | {"b": extents["b"]}
        tile = {c: -(-extents[c] // grid[c]) for c in "mn"}
        number = math.prod(grid.values())
        # One turn of the loop below would take all tiles.
        if number <= TURN_TILES:
            return self.exact(*inputs)

        def blocks(x: jax.Array, place: str, fill: float = 0) -> jax.Array:
            matrix = grouped(self.labels[place], x, [groups[c] for c in place])
            # Each place is cut along the labels it has: an operand into rows or columns of tiles, a
            # result into tiles. The numbers of tiles come first, then what is inside one.
            padded = jnp.pad(
                matrix,
                [(0, grid[c] * tile[c] - extents[c]) if c in tile else (0, 0) for c in place],
                constant_values=fill,
            )
            outer = [grid.get(c, 1) for c in place]
            inner = [1, *(tile.get(c, extents[c]) for c in place[1:])]  # a batch is no tile's
            shape = itertools.chain(*zip(outer, inner, strict=True))
            cut = jnp.transpose(padded.reshape([*shape]), [0, 2, 4, 1, 3, 5])
            return cut.reshape(-1, *inner[1:])

        cut = [blocks(bad, "bmn")] + [
            blocks(x, place, -jnp.inf if i < 2 else 0)
            for i, (x, place) in enumerate(zip(inputs, self.places, strict=True))
        ]
        flags = jnp.any(cut[0], (1, 2))
        count = jnp.sum(flags)

        def by_tiles() -> jax.Array:
            rounded = -(-number // TURN_TILES) * TURN_TILES
            # The bad tiles first; the loop ends after them, because its length is computed.
            (order,) = jnp.nonzero(flags, size=rounded, fill_value=number)

            def turn(i: jax.Array, sums: Any) -> Any:
                at_tile = lax.dynamic_slice_in_dim(order, i * TURN_TILES, TURN_TILES)
                row, column = jnp.divmod(at_tile, grid["n"])
                at = {"bkm": row, "bkn": row // grid["m"] * grid["n"] + column, "bmn": at_tile}
                given = [
                    jnp.take(x, at[place], 0, mode="clip")
                    for x, place in zip(cut, ("bmn", *self.places), strict=True)
                ]
                return jax.tree.map(
                    lambda sum, new: sum.at[at[self.output]].add(new, mode="drop"),
                    sums,
                    added(*given),
                )

            whole = functools.partial(blocks, place=self.output)
            zeros = jax.tree.map(lambda x: jnp.zeros_like(jax.eval_shape(whole, x)), start)
            sums = lax.fori_loop(0, -(-count // TURN_TILES), turn, zeros)
            # Cutting is linear, so its transpose puts tiles back where they were cut.
            return jax.tree.map(lambda x, y: x + jax.linear_transpose(whole, x)(y)[0], start, sums)

        return lax.cond(4 * count > number, lambda: self.exact(*inputs), by_tiles)


def _pays(*extents: int) -> bool:
    """Whether matrices of so few candidates that one reduction could take them are products: as
    quick from LEAST_CANDIDATES on, and quicker soon after.
    """
    if not all(isinstance(size, int) for size in extents):
        return False
    _, count, rows, columns = extents
    return (
        count > UNROLLED_ENTRIES
        and min(rows, columns) > 1
        and math.prod(extents) >= LEAST_CANDIDATES
    )


def lowered(
    op: Any,
    total: Callable[..., Any],
    inputs: Sequence[jax.Array],
    places: Sequence[str],
) -> Any:
    """A sum of an op in its cheapest form.

    Args:
      op: LogEinsum or WeightedSum under log_sum_exp.
      total: `value` or `weighted`.
      inputs: of the op.
      places: of inputs and result.
    """
    layout, algebra = op.layout, op.algebra
    sizes = layout.equation.sizes([x.shape for x in inputs[: op.operand_count]], op.family_id)
    extents = layout.extents(sizes)
    if op.operand_count == 1 or (fits_one_reduction(*extents) and not _pays(*extents)):
        return op.from_candidates(*inputs)
    tiles = dataclasses.replace(op, equation=EQUATION).from_candidates
    *places, output = places
    form = Form(
        layout=layout,
        temperature=algebra.temperature,
        places=places,
        output=output,
        exact=op.from_candidates,
        exact_tiles=tiles,
    )
    return total(form, *inputs)


def value(with_sums: bool, form: Form, *inputs: jax.Array) -> tuple[jax.Array, ...]:
    """T log of the sum of exp((lhs + rhs) / T); with_sums also a reference, which is this value or,
    in a bad cell, the largest candidate, and the sum of exp((lhs + rhs - reference) / T).
    """
    weights, top, lost = form.shifted(inputs)
    total = form.product(dict(zip(PLACES, weights, strict=False)))
    found = top + (form.temperature * jnp.log(total) + lost)
    outs: tuple[jax.Array, ...] = (found,)
    if with_sums:  # as `weighted` has the gap, so that its error is in shares and sum alike
        outs = found, found, total * jnp.exp(((top - found) + lost) / form.temperature)

    def bad() -> jax.Array:
        return ~(jnp.isfinite(found) & (total >= form.floor(inputs)))

    def repaired() -> tuple[jax.Array, ...]:
        counted = [(x != -jnp.inf).astype(x.dtype) for x in inputs]
        are_none = (total == 0) & (form.product(dict(zip(PLACES, counted, strict=False))) == 0)
        of_none = (-jnp.inf, -jnp.inf, 1)
        return form.repaired(
            inputs,
            tuple(
                jnp.where(bad(), jnp.where(are_none, none, 0), x)
                for none, x in zip(of_none, outs, strict=False)
            ),
            bad() & ~are_none,
            lambda bad, *tiles: tuple(jnp.where(bad, x, 0) for x in form.exact_tiles(*tiles)),
        )

    return lax.cond(_any(bad()), repaired, lambda: outs)


def weighted(form: Form, *inputs: jax.Array) -> jax.Array:
    """The sum of exp((lhs + rhs - value) / T) times the factors, which are the inputs after value.

    The value may be another number near it. If it is -inf, all candidates of its cell are.
    """
    lhs, rhs, value, *factors = inputs
    most = -jnp.log(form.floor(inputs))

    def shifted() -> tuple[list[jax.Array], jax.Array]:
        weights, top, lost = form.shifted(inputs)
        return weights, ((top - value) + lost) / form.temperature

    weights, gap = shifted()
    # exp((lhs + rhs - value) / T) is the product of three arrays, one in each place. Factors
    # multiply the array of their place; that in the place of the result is constant in the sum.
    sides = dict(zip(PLACES, [*weights, jnp.exp(gap)], strict=True))
    counts = dict(zip(PLACES, (lhs != -jnp.inf, rhs != -jnp.inf, gap <= most), strict=True))
    for place, x in zip(form.places[3:], factors, strict=True):
        sides[place] = sides[place] * x
    for place in {"bmn", *form.places[3:]}:  # what does not count is 0 whatever its factors are
        sides[place] = jnp.where(counts[place], sides[place], 0)
    after = sides.pop(form.output)
    found = form.product(sides) * after
    sound = are_finite(found)

    def bad(gap: jax.Array) -> jax.Array:
        return ~(gap <= most) & (value != -jnp.inf)

    def repaired() -> jax.Array:
        return form.repaired(
            inputs,
            found,
            bad(shifted()[1]) | ~sound,
            # A weight at the value inf is 0, so that good cells of a tile add nothing twice.
            lambda bad, lhs, rhs, value, *factors: form.exact_tiles(
                lhs, rhs, jnp.where(bad, value, jnp.inf), *factors
            ),
        )

    return lax.cond(_any(bad(gap)) | ~sound, repaired, lambda: found)


def _any(bad: jax.Array) -> jax.Array:
    """jnp.any, as a sum of floats, which is faster; found again in the branch, so that it is no
    array here.
    """
    return jnp.sum(bad.astype(jnp.float32)) > 0
