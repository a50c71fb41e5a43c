"""The slices of a plan, one after another or spread over the devices of a mesh."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType

from tenferro_jax.errors import InvalidConfig, Unsupported
from tenferro_jax.extension.transforms import recomputed
from tenferro_jax.plans.plan import Plan

from .slice_lengths import SlicedPlan

State: TypeAlias = Any
"""A pytree of arrays."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """The devices of some axes of a mesh. Each has whole operands, and runs as many slices as any
    other, or one less: the first device the first slices, and so on.
    """

    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
    axes: tuple[str, ...]

    @property
    def devices(self) -> int:
        """How many devices share the slices."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    def most(self, slices: int) -> int:
        """Slices of the device that has most."""
        return -(-slices // self.devices)

    def own(self, slices: int) -> tuple[jax.Array, jax.Array]:
        """Inside `everywhere`: the first slice of this device, and the first of the next."""
        here = lax.axis_index(self.axes)
        each, more = divmod(slices, self.devices)
        first = here * each + jnp.minimum(here, more)
        return first, first + each + (here < more).astype(jnp.int32)

    def everywhere(
        self, run: Callable[..., Any], *arrays: jax.Array, is_checked: bool = False
    ) -> Any:
        """The result of a function of whole arrays, which is the same on every device.

        With `is_checked` JAX proves that, which derivatives need: otherwise they are divided by the
        number of devices, and added up.
        """
        if AxisType.Explicit in self.mesh.axis_types:
            whole = jax.NamedSharding(self.mesh, jax.P())
            arrays = tuple(jax.sharding.reshard(x, whole) for x in arrays)
        return jax.shard_map(
            run, mesh=self.mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=is_checked
        )(*arrays)

    def merged(self, join: Callable[[State, State], State], state: State) -> State:
        """Inside `everywhere`: the states of all devices, joined from the first to the last.

        Each device joins a part of the entries and sends it to all: twice the bytes of a state
        between devices, and as much memory.

        Args:
          join: of two states, entry by entry.
          state: of this device: arrays of one size.
        """
        count = self.devices

        def scattered(x: jax.Array) -> jax.Array:
            """(devices, entries of this device)."""
            own = -(-x.size // count)
            split = jnp.pad(x.reshape(-1), (0, own * count - x.size)).reshape(count, own)
            return lax.all_to_all(split, self.axes, 0, 0)

        parts = jax.tree.map(scattered, state)

        def of(device: jax.Array | int) -> State:
            return jax.tree.map(
                lambda x: lax.dynamic_index_in_dim(x, device, keepdims=False), parts
            )

        own = lax.fori_loop(1, count, lambda d, before: join(before, of(d)), of(0))

        def gathered(x: jax.Array, like: jax.Array) -> jax.Array:
            return lax.all_gather(x, self.axes, tiled=True)[: like.size].reshape(like.shape)

        return jax.tree.map(gathered, own, state)


def spread_over(where: str, over: object, operands: Sequence[object]) -> Spread | None:
    """The devices of a mesh axis, or of some, by name; None if an operand is empty.

    The mesh is that of `jax.set_mesh`, or else that of the first operand with a NamedSharding.

    Raises:
      InvalidConfig: no name of an axis of that mesh, or no mesh.
      Unsupported: inside a shard_map over the mesh.
    """
    axes = (over,) if isinstance(over, str) else over
    where = f"{where}, over"
    if not isinstance(axes, tuple) or not axes or not all(isinstance(a, str) for a in axes):
        raise InvalidConfig(
            where=where, given=repr(over), needed="the name of a mesh axis, or a tuple of names"
        )
    mesh: Any = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        concrete = (x for x in operands if not isinstance(x, jax.core.Tracer))
        shardings = (getattr(x, "sharding", None) for x in concrete)
        mesh = next((s.mesh for s in shardings if isinstance(s, jax.NamedSharding)), None)
    if mesh is None:
        raise InvalidConfig(
            where=where,
            given=f"{over!r} and no mesh",
            needed="a mesh",
            fix="Call it under jax.set_mesh(mesh).",
        )
    unknown = [axis for axis in axes if axis not in mesh.shape]
    if unknown or len(set(axes)) < len(axes):
        raise InvalidConfig(
            where=where, given=repr(over), needed=f"one of {', '.join(map(repr, mesh.axis_names))}"
        )
    if AxisType.Manual in mesh.axis_types:
        raise Unsupported(
            where=where,
            given="a call inside jax.shard_map",
            needed="a call outside, because the slices are spread by a shard_map",
            fix="Leave over out; each device then runs all slices of its own operands.",
        )
    return None if any(0 in getattr(x, "shape", ()) for x in operands) else Spread(mesh, axes)


def spec_of(plan: Plan, *operands: jax.Array) -> jax.P:
    """Of the result of a plan on explicit axes: a label is split as in the first operand that
    splits it, each mesh axis once.
    """
    axes: dict[str, Any] = {}
    used: set[str] = set()
    for term, x in zip(plan.terms, operands, strict=True):
        entries = jax.typeof(x).sharding.spec if len(term) == x.ndim else ()
        for label, entry in zip(term, entries, strict=False):
            names = set(jax.tree.leaves(entry))
            if label in plan.equation.output and label not in axes and names and not names & used:
                axes[label] = entry
                used |= names
    return jax.P(*map(axes.get, plan.equation.output))


def sum_of_slices(
    plan: SlicedPlan,
    spread: Spread | None,
    block: Callable[..., jax.Array],
    result: jax.ShapeDtypeStruct,
    *arrays: jax.Array,
) -> jax.Array:
    """The sum of the blocks of all slices, in the order of the slices.

    Differentiable slice by slice: in reverse mode, too, one slice's intermediate results are held
    at a time.

    Args:
      plan: the slices.
      spread: the devices that share them.
      block: of (start of a slice, *arrays): the slice's part of the result.
      result: the shape and dtype of the result.
      *arrays: what `block` reads.
    """

    def total(
        first: jax.Array | int, last: jax.Array | int, count: int, arrays: Sequence[jax.Array]
    ) -> jax.Array:
        def step(found: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            start = plan.start(jnp.minimum(i, plan.slices - 1))
            new = recomputed(block)(start, *arrays)
            if spread is not None:
                new = jnp.where(i < last, new, jnp.zeros_like(new))
            return plan.added(found, new, start), None

        zeros = jnp.zeros(result.shape, result.dtype)
        if spread is not None:
            zeros = lax.pcast(zeros, spread.axes, to="varying")
        return lax.scan(step, zeros, first + jnp.arange(count, dtype=jnp.int32))[0]

    if spread is None:
        return total(0, plan.slices, plan.slices, arrays)

    def here(*arrays: jax.Array) -> jax.Array:
        first, last = spread.own(plan.slices)
        found = total(first, last, spread.most(plan.slices), arrays)
        return lax.psum(found, spread.axes)

    return spread.everywhere(here, *arrays, is_checked=True)
