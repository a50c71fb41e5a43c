"""The output shardings of an op on a mesh with explicit axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..errors import InvalidConfig, TenferroError, Unsupported
from ..shapes import meta_of
from .bodies import lowering_body
from .carrier import Extension, Levels
from .contract import ExtensionOp, has_lowering
from .scope import authored
from .sharding import Split, specs_of, split_of


def _own_shardings(
    op: ExtensionOp,
    inputs: list[jax.ShapeDtypeStruct],
) -> list[Any] | None:
    """The op's infer_output_sharding, checked; a PartitionSpec refers to the inputs' mesh. None is
    the sharding of the lowering.
    """
    given = op.infer_output_sharding(inputs)
    if given is None:
        return None
    mesh = next(x.sharding.mesh for x in inputs if not x.sharding.mesh.empty)
    places = (
        [jax.NamedSharding(mesh, p) if isinstance(p, jax.P) else p for p in given]
        if isinstance(given, tuple | list)
        else []
    )
    if len(places) != op.output_count or not all(
        isinstance(place, jax.NamedSharding | None) for place in places
    ):
        raise InvalidConfig(
            where=op.place_of("infer_output_sharding"),
            given=repr(given),
            needed=f"a list with a PartitionSpec or a NamedSharding for each of {op.output_count} "
            f"outputs, or None",
            fix="Return [jax.P(...)] with one entry for each output.",
        )
    return places


def output_shardings(
    carrier: Extension,
    inputs: list[jax.ShapeDtypeStruct],
) -> list[jax.NamedSharding]:
    """The sharding of each output, from ShapeDtypeStructs of the inputs.

    Raises:
      InvalidConfig: neither the op nor its lowering determines it.
    """
    with authored(carrier.op, "infer_output_sharding"):
        given = _shardings_over_levels(
            carrier.batching, functools.partial(_own_shardings, carrier.op), inputs
        )
    if given is not None and None not in given:
        return given
    if given is None and (split := split_of(carrier, list(map(meta_of, inputs)))) is not None:
        return _split_shardings(carrier, split, inputs)
    problem, cause = "an op without lowering", None
    if has_lowering(carrier.op):
        places: list[Any] = []

        # eval_shape gives no shardings if some axes of the mesh are automatic
        def body(*xs: jax.Array) -> tuple[jax.Array, ...] | None:
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
                return [p if own is None else own for p, own in zip(places, given or places)]
            problem = "a lowering that declines"
    raise InvalidConfig(
        where=f"{carrier.op.place_of()} on an explicit mesh",
        given=f"{problem}, and no {carrier.op.advice.sharding}",
        needed="known output shardings",
        fix=f"Write {carrier.op.advice.sharding}, or call inside jax.shard_map or "
        f"jax.sharding.auto_axes.",
    ) from cause


def _split_shardings(
    carrier: Extension, split: Split, inputs: list[jax.ShapeDtypeStruct]
) -> list[jax.NamedSharding]:
    """Those of a rule: a factor of the outputs has the mesh axes of the inputs."""
    mesh = next(x.sharding.mesh for x in inputs if not x.sharding.mesh.empty)
    axes: dict[str, Any] = {}
    for term, x in zip(split.inputs, inputs, strict=True):
        for factor, entry in zip(term, x.sharding.spec, strict=False):
            axes[factor] = axes.get(factor) or entry
    for term in split.outputs:
        used = [n for f in term if axes.get(f) for n in jax.tree.leaves(axes[f])]
        if len(set(used)) < len(used):
            given = {factor: entry for factor, entry in axes.items() if entry}
            raise Unsupported(
                where=f"{carrier.op.place_of()} on an explicit mesh",
                given=f"two axes of an output split over one mesh axis: {given}",
                needed="each mesh axis used once in the output",
                fix="Reshard one operand with jax.sharding.reshard.",
            )
    axes = {f: entry for f, entry in axes.items() if f not in split.kept}
    return [jax.NamedSharding(mesh, spec) for spec in specs_of(split.outputs, axes)]


def _shardings_over_levels(
    levels: Levels,
    fn: Callable[..., list[Any] | None],
    structs: Sequence[jax.ShapeDtypeStruct],
) -> list[Any] | None:
    """The op's infer_output_sharding, with the batch axes first and sharded as those of the inputs;
    or None.
    """
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
    inner = _shardings_over_levels(levels[1:], fn, element)
    place = next(
        (
            p
            for s, axis in zip(structs, axes, strict=True)
            if axis is not None and (p := s.sharding.spec[axis])
        ),
        None,
    )
    return (
        None
        if inner is None
        else [s and jax.NamedSharding(s.mesh, jax.P(place, *s.spec)) for s in inner]
    )


def _without(sharding: jax.NamedSharding, axis: int) -> jax.NamedSharding:
    return jax.NamedSharding(
        sharding.mesh, jax.P(*sharding.spec[:axis], *sharding.spec[axis + 1 :])
    )
