"""Value and winner of batched matrices on a GPU of the Hopper generation or newer, in Pallas for
Mosaic GPU.

One program, a warpgroup of 128 threads, holds a tile of the result in registers. The copy engine
loads blocks of both operands, one contracted entry after another, into shared memory while earlier
blocks are searched. A thread combines the loaded entries of its rows and columns into all its
cells: for 8 x 16 cells 24 loads give 128 candidates. The maximum that keeps NaN is one instruction
there, so NaN needs no separate search, unlike on CPU.

Winners: a cell keeps the number of the last block that improved it. This takes two comparisons and
a selection for each block; an index beside the value would take a comparison and two selections for
each candidate. XLA then searches the winner in the block.

Sizes that are not a multiple of a tile are padded by repeating the last entry: a candidate seen
twice changes neither value nor first winner in any semiring.

Whether Mosaic GPU is there and the cards can run the kernel is checked at first use: loading it
takes a third of a second, also without a card.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...semirings.semiring import SelectiveSemiring

HOPPER = 9.0
"""The first compute capability whose copy engine fills shared memory in blocks of several axes,
which the kernel needs.
"""


class Backend(NamedTuple):
    """The state of the backend.

    Attributes:
      pallas: jax.experimental.pallas, or None.
      module: its mosaic_gpu, or None.
      problem: why the kernel cannot be compiled, or "".
    """

    pallas: Any
    module: Any
    problem: str


@functools.cache
def backend() -> Backend:
    """Load the backend, once.

    Example:
      >>> (backend().module is None) == bool(backend().problem)
      True
    """
    if jax.__version_info__ < (
        0,
        11,
    ):  # 0.10 has no public way to run such a kernel without a card, so none to test it
        return Backend(None, None, f"it needs JAX 0.11 or newer, and this is {jax.__version__}")
    try:
        pallas, module = map(
            importlib.import_module,
            ("jax.experimental.pallas", "jax.experimental.pallas.mosaic_gpu"),
        )
    except ImportError as error:
        return Backend(None, None, f"Mosaic GPU is missing: {error}")
    return Backend(pallas, module, "")


def problem_of_cards(devices: list[Any]) -> str:
    """Why a card cannot run the kernel, or "".

    Example:
      >>> problem_of_cards([])
      ''
    """
    old = [
        d.device_kind for d in devices if float(getattr(d, "compute_capability", HOPPER)) < HOPPER
    ]
    return f"it needs compute capability {HOPPER} or newer, and {old[0]} has less" if old else ""


@functools.cache
def cards() -> list[Any]:
    """The CUDA devices of this process; none if JAX does not have the platform."""
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


def problem() -> str:
    """Why the kernel is not used here, or ""."""
    return backend().problem or problem_of_cards(cards())


def doctor() -> str:
    """One line for `python -m tenferro_jax doctor`."""
    why = problem() or ("" if cards() else "JAX has no CUDA device here")
    return f"GPU kernel: off ({why})" if why else "GPU kernel: on"


BLOCK_ENTRIES = 16
"""Contracted entries of a block, among which the winner is searched afterwards."""

TURN_ENTRIES = 4
"""Contracted entries in each turn of the innermost loop: the loop of the largest tile is 18 KB of
instructions.
"""

BLOCKS_IN_FLIGHT = 4
"""Blocks that are copied or waited for while one is searched."""

LEAST_PROGRAMS = 264
"""The least number of programs for a tile size: two for each multiprocessor of an H200."""


class Tile(NamedTuple):
    """Cells of one program."""

    rows: int
    columns: int


TILES_WITH_WINNERS = (Tile(128, 64), Tile(128, 32))
TILES = (Tile(256, 64), *TILES_WITH_WINNERS)
"""Tiles, the largest first: a cell takes one register, with winners three, of at most 255 for each
thread.
"""


def tile_for(batch: int, rows: int, columns: int, *, with_winner: bool) -> Tile:
    """The largest tile with enough programs, or the smallest tile.

    Example:
      >>> tile_for(1, 8192, 8192, with_winner=False), tile_for(1, 256, 256, with_winner=False)
      (Tile(rows=256, columns=64), Tile(rows=128, columns=32))
    """
    tiles = TILES_WITH_WINNERS if with_winner else TILES
    enough = (
        t for t in tiles if batch * -(-rows // t.rows) * -(-columns // t.columns) >= LEAST_PROGRAMS
    )
    return next(enough, tiles[-1])


def contract(
    semiring: SelectiveSemiring,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    with_winner: bool,
    interpret: object = None,
) -> tuple[jax.Array, ...]:
    """Best candidate of each cell, and which it is.

    Args:
      semiring: one with a reduction, whose times is elementwise arithmetic.
      lhs: (batch, contracted, rows), float32 or int32; no size is 0 or symbolic.
      rhs: (batch, contracted, columns) of the same dtype.
      with_winner: whether winners are wanted.
      interpret: parameters of Mosaic GPU's interpreter, which runs the kernel on CPU; None: compile
        it.

    Returns:
      (value,) or (value, winner): (batch, rows, columns) in the operands' dtype and int32.

    Cost: time b m n k; memory of both padded operands, twice with winners, and of the padded
    results.
    """
    batch, _, rows = lhs.shape
    columns = rhs.shape[2]
    tile = tile_for(batch, rows, columns, with_winner=with_winner)
    filled = (_filled(lhs, tile.rows), _filled(rhs, tile.columns))
    # both searches use the same rounded operands; otherwise XLA may compute them twice with
    # different rounding
    operands = lax.optimization_barrier(filled) if with_winner else filled
    found = _searched(semiring, *operands, tile=tile, with_winner=with_winner, interpret=interpret)
    value, *block = (x[:, :rows, :columns] for x in found)
    return (value, *(_resolved(semiring, *operands, block=x) for x in block))


def _filled(x: jax.Array, width: int) -> jax.Array:
    """A matrix whose contracted and own sizes are multiples of a block and of a tile."""
    _, contracted, own = x.shape
    missing = [(0, 0), (0, -contracted % BLOCK_ENTRIES), (0, -own % width)]
    return jnp.pad(x, missing, mode="edge") if any(after for _, after in missing) else x


def _searched(
    semiring: SelectiveSemiring,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    tile: Tile,
    with_winner: bool,
    interpret: object,
) -> Sequence[jax.Array]:
    """The kernel: values, and with winners the number of the block that has the first best
    candidate.
    """
    gpu, dslice = backend().module, backend().pallas.dslice
    better = jnp.maximum if semiring.reduction == "max" else jnp.minimum  # NaN if one is
    batch, contracted, rows = lhs.shape
    columns, dtype = rhs.shape[2], lhs.dtype
    down, across = rows // tile.rows, columns // tile.columns
    of_cells = (
        gpu.Layout.WGMMA
    )  # rows and columns of a tile both have a layout that broadcasts into it without moving data

    def program(lhs: jax.Array, rhs: jax.Array, *results: jax.Array) -> None:
        number = lax.axis_index("program")
        at_column, above = lax.rem(number, jnp.int32(across)), lax.div(number, jnp.int32(across))
        at_row, at_batch = lax.rem(above, jnp.int32(down)), lax.div(above, jnp.int32(down))

        def candidates(left: jax.Array, right: jax.Array, k: jax.Array) -> jax.Array:
            row = gpu.load(left.at[0, k], layout=of_cells.reduce(1), optimized=False)
            column = gpu.load(right.at[0, k], layout=of_cells.reduce(0), optimized=False)
            return semiring.times(
                lax.broadcast_in_dim(row, tile, (0,)), lax.broadcast_in_dim(column, tile, (1,))
            )

        def block(
            index: Sequence[jax.Array],
            left: jax.Array,
            right: jax.Array,
            state: Sequence[jax.Array],
        ) -> tuple[jax.Array, ...]:
            def turn(i: jax.Array, value: jax.Array) -> jax.Array:
                for t in range(TURN_ENTRIES):
                    value = better(value, candidates(left, right, i * TURN_ENTRIES + t))
                return value

            before, *last = state
            value = lax.fori_loop(
                jnp.int32(0), jnp.int32(BLOCK_ENTRIES // TURN_ENTRIES), turn, before
            )
            if not with_winner:
                return (value,)
            improved = (value != before) & (before == before)  # it never gets worse, and NaN stays
            return value, jnp.where(improved, index[0], last[0])

        def splat(number: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike) -> jax.Array:
            return gpu.layout_cast(jnp.full(tile, number, dtype), of_cells)

        value = splat(semiring.identity(dtype), dtype)
        start = (value, splat(0, jnp.int32)) if with_winner else (value,)
        search = gpu.emit_pipeline(
            block,
            grid=(contracted // BLOCK_ENTRIES,),
            in_specs=[
                gpu.BlockSpec((1, BLOCK_ENTRIES, width), lambda i, at=at: (at_batch, i, at))
                for width, at in zip(tile, (at_row, at_column), strict=True)
            ],
            max_concurrent_steps=min(BLOCKS_IN_FLIGHT, contracted // BLOCK_ENTRIES),
            init_carry=start,
        )
        for result, cells in zip(results, search(lhs, rhs), strict=True):
            result[
                at_batch,
                dslice(at_row * tile.rows, tile.rows),
                dslice(at_column * tile.columns, tile.columns),
            ] = cells

    dtypes = (dtype, jnp.dtype("int32")) if with_winner else (dtype,)
    types = [jax.ShapeDtypeStruct((batch, rows, columns), t) for t in dtypes]
    return gpu.kernel(
        program,
        out_type=types,
        grid=(batch * down * across,),
        grid_names=("program",),
        interpret=interpret,
    )(lhs, rhs)


def _resolved(
    semiring: SelectiveSemiring,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    block: jax.Array,
) -> jax.Array:
    """The first best candidate of each cell's block, in plain JAX; the candidates of a block are
    adjacent.
    """
    batch, row, column = (
        lax.broadcasted_iota(jnp.int32, [n if i == j else 1 for j, n in enumerate(block.shape)], i)
        for i in range(3)
    )
    left, right = jnp.swapaxes(lhs, 1, 2), jnp.swapaxes(rhs, 1, 2)

    def candidate(t: int) -> jax.Array:
        k = block * BLOCK_ENTRIES + t
        entries = (
            x.at[batch, own, k].get(mode="promise_in_bounds")
            for x, own in ((left, row), (right, column))
        )
        return semiring.times(*entries)

    best, winner = candidate(0), block * BLOCK_ENTRIES
    for t in range(1, BLOCK_ENTRIES):
        # otherwise XLA keeps the candidates of the whole block, 64 bytes a cell, and is slower
        best, winner = lax.optimization_barrier((best, winner))
        other = candidate(t)
        takes = (semiring.better(other, best) | (other != other)) & (best == best)
        best, winner = (
            jnp.where(takes, other, best),
            jnp.where(takes, block * BLOCK_ENTRIES + t, winner),
        )
    return winner
