"""Steps on several devices: winners among the entries of one device and among all, and the best of
all devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Equation
from tenferro_jax.extension.sharding import Shard

from ..algebra.semiring import SelectiveSemiring


def factors_of(terms: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]]) -> str:
    """The factors of a sharding rule: the labels, or names, of each axis."""
    return " -> ".join(", ".join(map(" ".join, side)) for side in (terms, outputs))


MERGED_BLOCKS = 4
"""The number of blocks, or a little more, in which devices merge a large result. Few, because each
is a reduction of its own between devices.
"""

LARGE_BYTES = 1 << 20
"""The bytes of a large result of a device."""


def in_blocks(
    fn: Callable[..., Sequence[jax.Array]],
    equation: Equation,
    outs: Sequence[TensorMeta],
    pieces: Sequence[jax.Array],
) -> Sequence[jax.Array]:
    """fn(*pieces), whose results devices merge, block by block along an output label: beside the
    merged result a device then holds what a block needs, and not all of its own result too.

    Args:
      fn: a function of operands.
      equation: of the pieces, and of each result.
      outs: of the whole results.
      pieces: of this device.
    """
    shape, size = outs[0].shape, sum(math.prod(m.shape) * m.dtype.itemsize for m in outs)
    counts = [
        next((d for d in range(MERGED_BLOCKS, 2 * MERGED_BLOCKS) if n % d == 0), 0) for n in shape
    ]
    count, axis = min(((d, i) for i, d in enumerate(counts) if d), default=(1, 0))
    if size < LARGE_BYTES or count == 1:
        return fn(*pieces)
    label, length = equation.output[axis], shape[axis] // count

    def joined(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        own = [
            lax.dynamic_slice_in_dim(x, i * length, length, term.index(label))
            if label in term
            else x
            for x, term in zip(pieces, equation.inputs, strict=True)
        ]
        return tuple(
            lax.dynamic_update_slice_in_dim(x, new, i * length, axis)
            for x, new in zip(found, fn(*own), strict=True)
        )

    return lax.fori_loop(0, count, joined, tuple(jnp.zeros(m.shape, m.dtype) for m in outs))


def best_of_devices(
    semiring: SelectiveSemiring, shard: Shard, outs: Sequence[jax.Array], contracted: str
) -> tuple[jax.Array, ...]:
    """The best value of all devices; with winners the first entry among all that has it.

    Args:
      semiring: the algebra.
      shard: of this device.
      outs: this device's values, and perhaps winners.
      contracted: the contracted labels.

    Cost: a reduction between devices for values, and one for winners; without a
      `reduction` the values are gathered.
    """
    value, *winner = outs
    axes = tuple(name for label in contracted for name in shard.axes.get(label, ()))
    if not axes:
        return tuple(outs)
    if semiring.reduction:
        best = shard.merged(semiring.reduction, value, contracted)
    else:
        best = semiring.best(lax.all_gather(value, axes), 0)
    if not winner:
        return (best,)
    (own,) = winner
    none = jnp.iinfo(jnp.int32).max
    wins = (value == best) | (value != value)
    first = jnp.where(wins, among_all(own, contracted, shard), none)
    return best, shard.merged("min", first, contracted)


def among_all(winner: jax.Array, labels: str, shard: Shard) -> jax.Array:
    """The row-major index over all entries of a device's winners."""
    index, stride = jnp.zeros_like(winner), 1
    for label in reversed(labels):
        size = shard.sizes[label]
        index = index + (winner % size + shard.start(label)) * stride
        winner, stride = winner // size, stride * shard.whole(label)
    return index


def among_own(winner: jax.Array, labels: str, shard: Shard) -> jax.Array:
    """The row-major index over this device's entries of winners among all; -1 where another device
    has the entry.
    """
    index, stride, here = jnp.zeros_like(winner), 1, winner >= 0
    for label in reversed(labels):
        own, whole = shard.sizes[label], shard.whole(label)
        at = winner % whole - shard.start(label)
        here &= (at >= 0) & (at < own)
        index = index + at * stride
        winner, stride = winner // whole, stride * own
    return jnp.where(here, index, -1)
