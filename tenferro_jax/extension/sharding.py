"""How an op splits over devices: the rule that its author states, and what follows from it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import jax_seam
from ..errors import InvalidConfig, TenferroError, Unsupported
from ..jax_seam import is_symbolic_dim
from ..shapes import TensorMeta, meta_of
from .carrier import Extension, lowering_body, over
from .contract import (
    MERGES,
    Can,
    ExtensionOp,
    ShardingRule,
    checked_sequence,
    in_method,
    inherited,
    require_arrays,
)

_VMAP = "vmap "
"""How the factor of a level of vmap begins: no factor of the author's has a space."""

Axes = Mapping[str, tuple[str, ...]]
"""For each factor that is split, the mesh axes over which it is."""


class Shard(NamedTuple):
    """What a device has.

    Attributes:
      axes: for each factor that is split, the names of the mesh axes over which it is.
      sizes: of each factor, on this device.
    """

    axes: Axes
    sizes: Mapping[str, int]

    def start(self, factor: str) -> jax.Array:
        """The index, int32, of this device's first entry of a factor; 0 if it is not split.

        Raises:
          InvalidConfig: no factor of the rule.
        """
        self._require([factor], "start")
        if factor not in self.axes:
            return jnp.int32(0)
        return lax.axis_index(self.axes[factor]).astype(jnp.int32) * self.sizes[factor]

    def whole(self, factor: str) -> int:
        """The size of a factor on all devices together.

        Raises:
          InvalidConfig: no factor of the rule.
        """
        self._require([factor], "whole")
        devices = math.prod(lax.axis_size(name) for name in self.axes.get(factor, ()))
        return self.sizes[factor] * devices

    def merged(self, how: str, x: jax.Array, factors: Sequence[str]) -> jax.Array:
        """The "sum", "max" or "min" of an array of all devices that have different parts of some
        factors, such as ("i", "k"); NaN if one is NaN. A sum of booleans is their number.

        Raises:
          InvalidConfig: no such merge, or no factor of the rule.
        """
        if how not in MERGES[1:]:
            raise _wrong("merged", repr(how), f"one of {', '.join(map(repr, MERGES[1:]))}")
        self._require(factors, "merged")
        axes = tuple(name for factor in factors for name in self.axes.get(factor, ()))
        if not axes:
            return x.astype(jnp.int32) if how == "sum" and x.dtype == bool else x
        if how == "sum":
            return lax.psum(x, axes)
        return _extreme(x, axes, how == "max")

    def _require(self, factors: Sequence[str], method: str) -> None:
        if unknown := [factor for factor in factors if factor not in self.sizes]:
            raise _wrong(
                method,
                f"{unknown[0]!r} of {factors!r}",
                f"a sequence of names of the rule: "
                f"{', '.join(name for name in self.sizes if not name.startswith(_VMAP))}",
            )


def _wrong(method: str, given: str, needed: str) -> InvalidConfig:
    return InvalidConfig(where=f"Shard.{method}", given=given, needed=needed, clause="X13.9")


def _extreme(x: jax.Array, axes: tuple[str, ...], is_max: bool) -> jax.Array:
    """The greatest or least over mesh axes. XLA's reduction between CPUs leaves out NaN, so that
    floats are compared as integers of the same order, in which NaN is the last one.
    """
    reduce: Callable[..., jax.Array] = lax.pmax if is_max else lax.pmin
    if x.dtype == bool:
        return reduce(x.astype(jnp.int32), axes).astype(bool)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return reduce(x, axes)
    wide = x if x.dtype.itemsize > 2 else x.astype(jnp.float32)
    kind = jnp.int64 if wide.dtype.itemsize == 8 else jnp.int32
    last = jnp.iinfo(kind).max

    def turned(bits: jax.Array) -> jax.Array:
        return bits ^ ((bits >> (8 * wide.dtype.itemsize - 1)) & last)

    ordered = turned(lax.bitcast_convert_type(wide, kind))
    ordered = jnp.where(wide != wide, last if is_max else -last - 1, ordered)
    found = lax.bitcast_convert_type(turned(reduce(ordered, axes)), wide.dtype)
    return found.astype(x.dtype)


class Split(NamedTuple):
    """A rule for inputs of known shapes, with a factor for each level of vmap.

    Attributes:
      rule: of the op.
      inputs: for each input the factor of each axis.
      outputs: for each output.
      sizes: of each factor.
      kept: the factors that stay whole.
    """

    rule: ShardingRule
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    kept: frozenset[str]

    @property
    def reduced(self) -> tuple[str, ...]:
        """The factors that no output has."""
        return tuple(f for f in self.sizes if not any(f in term for term in self.outputs))

    def placed(
        self,
        shape: Mapping[str, int],
        given: Sequence[Sequence[Any]],
        wanted: Sequence[Sequence[Any]] = (),
    ) -> Axes:
        """The mesh axes of each factor: those of the inputs, then those that are wanted of the
        outputs. Where two factors have one mesh axis, a factor of the outputs goes before a reduced
        one; a size that the axes do not divide is split over fewer.

        Args:
          shape: the size of each mesh axis.
          given: the spec of each input.
          wanted: the spec of each output.
        """
        axes: dict[str, tuple[str, ...]] = {}
        used: set[str] = set()
        stays = set(self.reduced)
        # In turns: an axis that an output needs must not be taken by a factor that is summed, and
        # what is wanted of the outputs comes last, because moving inputs costs more.
        for terms, specs, turn in (
            (self.inputs, given, set(self.sizes) - stays),
            (self.inputs, given, stays),
            (self.outputs, wanted, set(self.sizes)),
        ):
            for term, spec in zip(terms, specs, strict=False):
                for factor, entry in zip(term, spec, strict=False):
                    if not entry or factor in axes or factor in self.kept or factor not in turn:
                        continue
                    names = entry if isinstance(entry, tuple) else (entry,)
                    names = tuple(name for name in names if name not in used)
                    while self.sizes[factor] % math.prod(shape[name] for name in names):
                        names = names[:-1]
                    if names:
                        axes[factor] = names
                        used.update(names)
        return axes

    def __str__(self) -> str:
        text = self.rule.factors
        gone = [f for f in self.reduced if f not in self.kept]
        how = self.rule.merge or "its own merge"
        return f"{text}, {' '.join(gone)} merged by {how}" if gone else text


def metas_of(
    terms: Sequence[Sequence[str]], sizes: Mapping[str, int], dtypes: Sequence[np.dtype]
) -> list[TensorMeta]:
    """The metas of arrays of an op that is not mapped."""
    shapes = [tuple(sizes[f] for f in term if not f.startswith(_VMAP)) for term in terms]
    return list(map(TensorMeta, dtypes, shapes))


def split_of(carrier: Extension, metas: Sequence[TensorMeta]) -> Split | None:
    """The rule of an op for these inputs; None if it has none, or a size is symbolic.

    Raises:
      InvalidConfig: the rule cannot be read, or does not fit the inputs and outputs.
    """
    op = carrier.op
    if not op.can(Can.SHARD):
        return None
    if any(is_symbolic_dim(size) for meta in metas for size in meta.shape):
        return None
    inner = carrier.of_one(metas)
    with in_method(op, "sharding_rule"):
        rule = op.sharding_rule(inner)
    if rule is None:
        return None
    outs = Extension(op, (), carrier.runtimes).infer(*inner)
    inputs, outputs, sizes = _read(op, rule, inner, outs)
    # Inner levels first: the axes of a level are counted where those inside are gone.
    for number, level in reversed(list(enumerate(carrier.batching))):
        name = f"{_VMAP}{number}"
        sizes[name] = int(level.size([m.shape for m in carrier.of_one(metas, number)]))
        inputs = [
            term if axis is None else (*term[:axis], name, *term[axis:])
            for term, axis in zip(inputs, level.in_axes, strict=True)
        ]
        outputs = [(name, *term) for term in outputs]
    kept = frozenset(factor for factor in sizes if _stays(rule, factor, inputs, outputs))
    return Split(rule=rule, inputs=tuple(inputs), outputs=tuple(outputs), sizes=sizes, kept=kept)


def _stays(
    rule: ShardingRule,
    factor: str,
    inputs: Sequence[Sequence[str]],
    outputs: Sequence[Sequence[str]],
) -> bool:
    """Whether a factor is never split."""
    held = [factor in term for term in outputs]
    if factor in rule.whole or len(set(held)) > 1:
        return True
    if rule.on_device is not None:  # it merges by itself
        return False
    if not any(held):  # devices with different parts of it need a merge
        return not rule.merge
    return not any(factor in term for term in inputs)  # no device has a part to begin with


def _read(
    op: ExtensionOp, rule: object, metas: Sequence[TensorMeta], outs: Sequence[TensorMeta]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], dict[str, int]]:
    """The factors of a rule, and their sizes."""

    def wrong(given: str, needed: str) -> InvalidConfig:
        return InvalidConfig(
            where=op.place_of("sharding_rule"), given=given, needed=needed, clause="X13.9"
        )

    if not isinstance(rule, ShardingRule):
        raise wrong(repr(rule), "a ShardingRule, or None")
    if rule.merge not in MERGES:
        raise wrong(f"merge={rule.merge!r}", f"one of {', '.join(map(repr, MERGES))}")
    if rule.on_device is not None and (rule.merge or not callable(rule.on_device)):
        raise wrong(
            f"on_device={rule.on_device!r:.100} with merge={rule.merge!r}",
            "a function, which merges by itself, or a merge",
        )
    sides = rule.factors.split("->") if isinstance(rule.factors, str) else []
    if len(sides) != 2:
        raise wrong(repr(rule.factors), 'text such as "i k, k j -> i j"')
    read: list[list[tuple[str, ...]]] = []
    sizes: dict[str, int] = {}
    for side, have, what in zip(sides, (metas, outs), ("input", "output"), strict=True):
        terms = [tuple(term.split()) for term in side.split(",")] if have or side.strip() else []
        if len(terms) != len(have):
            raise wrong(repr(rule.factors), f"a term for each of {len(have)} {what}s")
        terms = [_dots(term, len(m.shape)) for term, m in zip(terms, have, strict=True)]
        for i, (term, meta) in enumerate(zip(terms, have, strict=True)):
            if len(term) != len(meta.shape) or len(set(term)) < len(term):
                raise wrong(
                    f"{rule.factors!r} for {what} {i}, {meta}", "a name for each axis, none twice"
                )
            for factor, size in zip(term, meta.shape, strict=True):
                if sizes.setdefault(factor, size) != size:
                    raise wrong(
                        f"{rule.factors!r} with {factor} of sizes {sizes[factor]} and {size}",
                        "one size for all axes of a name",
                    )
        read.append(terms)
    if unknown := [factor for factor in rule.whole if factor not in sizes]:
        names = ", ".join(map(str, unknown))
        raise wrong(f"whole={rule.whole}", f"names of {rule.factors!r}, not {names}")
    if rule.merge == "sum" and any(meta.dtype == bool for meta in outs):
        raise wrong("merge='sum' of a result of dtype bool", 'merge="max", which is "or"')
    return read[0], read[1], sizes


def _dots(term: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """A term with a name for each axis that "..." stands for."""
    if term.count("...") != 1:
        return term
    at = term.index("...")
    return (*term[:at], *(f"... {i}" for i in range(rank + 1 - len(term))), *term[at + 1 :])


def split_call(
    carrier: Extension,
    split: Split,
    whole: Callable[..., tuple[jax.Array, ...]],
    run: Callable[..., Sequence[jax.Array]],
) -> Callable[..., tuple[jax.Array, ...]]:
    """The call of an op that XLA's partitioner splits by its rule.

    Args:
      carrier: the op under its batch levels.
      split: its rule.
      whole: the same call.
      run: `apply`.
    """
    kinds = dict.fromkeys(split.sizes, "pass")
    kinds |= dict.fromkeys(split.reduced, "reduction") | dict.fromkeys(split.kept, "whole")
    pieces = functools.partial(on_device, carrier, split, run)
    return jax_seam.split_call(whole, split.inputs, split.outputs, kinds, split.placed, pieces)


def on_device(
    carrier: Extension, split: Split, run: Callable[..., Sequence[jax.Array]], axes: Axes
) -> Callable[..., Sequence[jax.Array]]:
    """What a device computes from its pieces.

    Args:
      carrier: the op under its batch levels.
      split: its rule.
      run: `apply`.
      axes: of the split factors.
    """
    rule, op = split.rule, carrier.op
    local = tuple(dataclasses.replace(level, spmd_axis_name=None) for level in carrier.batching)

    def one(sizes: Mapping[str, int], *pieces: jax.Array) -> tuple[jax.Array, ...]:
        shard = Shard(axes, sizes)
        if rule.on_device is not None and axes:
            what = "on_device of sharding_rule"
            with in_method(op, what), inherited((None, carrier.runtimes)):
                outs = rule.on_device(shard, *pieces)
            outs = require_arrays(checked_sequence(outs, op, what, op.output_count), op, what)
            whole = metas_of(split.inputs, split.sizes, [x.dtype for x in pieces])
            dtypes = [meta.dtype for meta in Extension(op, (), carrier.runtimes).infer(*whole)]
            for i, want in enumerate(metas_of(split.outputs, sizes, dtypes)):
                if (have := meta_of(outs[i])) != want:
                    raise InvalidConfig(
                        where=f"{op.place_of(what)}, output {i}",
                        given=str(have),
                        needed=f"{want}, the piece of a device",
                        clause="X13.9",
                    )
            return outs
        outs = run(op, *pieces, runtimes=carrier.runtimes)
        gone = split.reduced if rule.merge else ()
        return tuple(shard.merged(rule.merge, x, gone) if gone else x for x in outs)

    def fn(*pieces: jax.Array) -> Sequence[jax.Array]:
        sizes = {
            factor: size // math.prod(lax.axis_size(name) for name in axes.get(factor, ()))
            for factor, size in split.sizes.items()
        }
        return over(local, functools.partial(one, sizes))(*pieces)

    return fn


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
    if carrier.op.can(Can.LOWER):
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
        given=f"{problem}, and no sharding_rule (of a function def_sharding)",
        needed="known output shardings",
        fix="Write it, or call inside jax.shard_map or jax.sharding.auto_axes.",
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
    return [jax.NamedSharding(mesh, jax.P(*map(axes.get, term))) for term in split.outputs]
