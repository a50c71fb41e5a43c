"""How a function op is placed and split: what `def_sharding` set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from .nesting import forward_of
from .sharding import Shard, ShardingRule

if TYPE_CHECKING:
    from .function_extension import FunctionExtension


def placed(op: FunctionExtension, inputs: Sequence[jax.ShapeDtypeStruct]) -> Sequence[Any] | None:
    """The shardings that the author's function gives; None for residuals, whose shardings are those
    of `fwd`, and if there is no such function.
    """
    function = op.function
    if not op.has_own("infer_output_sharding"):
        return None
    given = function.sharding(*op.arguments.unflatten(inputs), **op.payload)
    forward = forward_of(op.out_tree) if op.stage else None
    nesting = op.results if forward is None else forward.results
    try:
        given = list(nesting.flatten_up_to(given))
    except (TypeError, ValueError):
        given = [None]
    if not all(isinstance(place, jax.P | jax.NamedSharding) for place in given):
        raise function.error(
            f"def_sharding, which returned {given!r}",
            "a jax.P or a NamedSharding for each array of the result, in its nesting",
        )
    return given if forward is None else [*given, *(None for _ in forward.kept)]


def rule_of(op: FunctionExtension) -> ShardingRule:
    """The author's rule, whose `on_device` takes and returns nests with the payload."""
    rule: ShardingRule = op.function.sharding
    if rule.on_device is None:
        return rule
    own = rule.on_device

    def on_device(shard: Shard, *pieces: jax.Array) -> list[Any]:
        made = own(shard, *op.arguments.unflatten(pieces), **op.payload)
        return op.function.flat(op.results, made, "on_device, which returned")

    return dataclasses.replace(rule, on_device=on_device)
