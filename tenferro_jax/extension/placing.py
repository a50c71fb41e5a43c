"""The output shardings of an op on a mesh with explicit axes."""

from __future__ import annotations

from typing import Any

import jax

from ..errors import InvalidConfig, TenferroError, Unsupported
from ..shapes import meta_of
from .bodies import lowering_body
from .carrier import Extension
from .contract import has_lowering
from .sharding import Split, specs_of, split_of


def output_shardings(
    carrier: Extension,
    inputs: list[jax.ShapeDtypeStruct],
) -> list[jax.NamedSharding]:
    """The sharding of each output, from ShapeDtypeStructs of the inputs.

    Raises:
      InvalidConfig: neither the op's rule nor its lowering determines it.
    """
    split = split_of(carrier, list(map(meta_of, inputs)))
    if split is not None:
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
                return places
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
