"""Where the outputs of an extension are on a mesh with explicit axes: as the op says, else as its lowering has it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..errors import InvalidConfig, TenferroError
from .batching import Levels
from .carrier import Extension
from .execution import lowering_body
from .op import ExtensionOp, has_lowering
from .scope import authored


def _own(op: ExtensionOp, inputs: list[Any]) -> list[Any] | None:
    """What the op says of its output shardings, checked; a PartitionSpec is one on the inputs' mesh."""
    given = op.infer_output_sharding(inputs)
    if given is None:
        return None
    mesh = next(x.sharding.mesh for x in inputs if not x.sharding.mesh.empty)
    places = [jax.NamedSharding(mesh, p) if isinstance(p, jax.P) else p for p in given] if isinstance(given, tuple | list) else []
    if len(places) != op.output_count or not all(isinstance(place, jax.NamedSharding) for place in places):
        raise InvalidConfig(
            where=f"infer_output_sharding of extension {op.family_id}",
            given=repr(given),
            needed=f"a list of {op.output_count}, a PartitionSpec or a NamedSharding for each output, or None",
            fix="Return [jax.P(...)] with one entry for each output.",
        )
    return places


def output_shardings(carrier: Extension, inputs: list[Any]) -> list[Any]:
    """The sharding of each output, from ShapeDtypeStructs of the inputs.

    Raises:
      InvalidConfig: neither the op nor its lowering says it.
    """
    with authored(carrier.family_id, "infer_output_sharding"):
        given = _over_levels(carrier.batching, functools.partial(_own, carrier.op), inputs)
    if given is not None:
        return given
    problem, cause = "an op without lowering", None
    if has_lowering(carrier.op):
        places: list[Any] = []

        def body(*xs: Any) -> Any:  # eval_shape itself tells no shardings where some axes of the mesh are automatic
            outs = lowering_body(carrier, xs)
            places.extend(jax.typeof(out).sharding for out in outs or ())
            return outs

        try:
            outs = jax.eval_shape(body, *inputs)
        except TenferroError:
            raise
        except Exception as error:
            problem, cause = f"a lowering that JAX cannot place: {error}", error
        else:
            if outs is not None:
                return places
            problem = "a lowering that declines"
    raise InvalidConfig(
        where=f"extension {carrier.family_id} on an explicit mesh",
        given=f"{problem}, and no infer_output_sharding",
        needed="a way to know the output shardings",
        fix="Override infer_output_sharding, or call inside jax.shard_map or jax.sharding.auto_axes.",
    ) from cause


def _over_levels(levels: Levels, fn: Callable[..., Any], structs: Sequence[Any]) -> list[Any] | None:
    """What an op says of its output shardings, each with the batch axes first, placed as those of its inputs; or None."""
    if not levels:
        given = fn(structs)
        return None if given is None else list(given)
    axes = levels[0].in_axes
    element = [
        struct
        if axis is None
        else jax.ShapeDtypeStruct(
            (*struct.shape[:axis], *struct.shape[axis + 1 :]),
            struct.dtype,
            sharding=_without(struct.sharding, axis),
            manual_axis_type=struct.manual_axis_type,
        )
        for struct, axis in zip(structs, axes, strict=True)
    ]
    inner = _over_levels(levels[1:], fn, element)
    place = next((p for s, axis in zip(structs, axes, strict=True) if axis is not None and (p := s.sharding.spec[axis])), None)
    return None if inner is None else [jax.NamedSharding(s.mesh, jax.P(place, *s.spec)) for s in inner]


def _without(sharding: Any, axis: int) -> Any:
    return jax.NamedSharding(sharding.mesh, jax.P(*sharding.spec[:axis], *sharding.spec[axis + 1 :]))
