"""L5: the same values and derivatives if arrays are spread over devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..extension.contract import ExtensionOp
from ..extension.runtimes import RouteKind
from ..shapes import PyTree
from .examples import Array, Inputs, replaced
from .smooth import smooth
from .subject import Broken, Claim, NotApplicable, Subject

FIX = "Keep lowerings free of what only works on one device; rules too."


def _mesh(kind: jax.sharding.AxisType = jax.sharding.AxisType.Auto) -> jax.sharding.Mesh:
    """Two devices, or one if there is no second: more devices add no new case."""
    devices = jax.devices()[:2]
    return jax.make_mesh((len(devices),), ("d",), axis_types=(kind,), devices=devices)


def _batches(
    subject: Subject,
    inputs: Inputs,
    mesh: jax.sharding.Mesh,
) -> tuple[list[Inputs], tuple[np.ndarray, ...]]:
    if not inputs:
        raise NotApplicable("the op has no inputs", "Nothing is to be done.")
    elements = subject.rows(inputs, mesh.size)
    return elements, tuple(np.stack(column) for column in zip(*elements, strict=True))


def shard_map(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """shard_map with one element on each device, checked and unchecked; and with one input spread
    and the others replicated.
    """
    mesh = _mesh()
    elements, args = _batches(subject, inputs, mesh)
    want = tuple(
        np.stack(column) for column in zip(*(subject.expected(e) for e in elements), strict=True)
    )
    claims = []
    for checked in (True, False):
        fn = jax.shard_map(
            jax.vmap(subject.call),
            mesh=mesh,
            in_specs=jax.P("d"),
            out_specs=jax.P("d"),
            check_vma=checked,
        )
        claims.append(Claim(f"shard_map, check_vma={checked}", fn, args, want))
    if len(inputs) > 1:
        mixed = tuple(
            np.stack(column)
            for column in zip(
                *(subject.expected((e[0], *inputs[1:])) for e in elements), strict=True
            )
        )
        axes = (0, *[None] * (len(inputs) - 1))
        specs = (jax.P("d"), *[jax.P()] * (len(inputs) - 1))
        fn = jax.shard_map(
            jax.vmap(subject.call, in_axes=axes), mesh=mesh, in_specs=specs, out_specs=jax.P("d")
        )
        claims.append(
            Claim(
                "shard_map, input 0 spread and the others replicated",
                fn,
                (args[0], *inputs[1:]),
                mixed,
            )
        )
    yield from subject.hold(claims, "X13.4", FIX)


def shard_map_derivative(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The derivative through shard_map is that of each element, summed for replicated inputs."""
    view = smooth(subject, inputs)
    mesh = _mesh()
    elements, args = _batches(subject, view.inputs, mesh)
    w = view.cotangents(subject.rng)
    first, *rest = view.active

    def pulled(mask: tuple[int, ...], held: Sequence[Array]) -> Sequence[jax.Array]:
        return jax.vjp(view.function(mask, held), *[held[i] for i in mask])[1](w)

    each = [jax.jit(lambda *xs: pulled(view.active, xs))(*e) for e in elements]
    spread = tuple(np.stack([np.asarray(e[n]) for e in each]) for n in range(len(view.active)))
    cotangents = tuple(np.stack([c] * mesh.size) for c in w)

    def whole(*xs: jax.Array) -> tuple[jax.Array, ...]:
        outs = jax.shard_map(
            jax.vmap(subject.call), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")
        )(*xs)
        return tuple(outs[i] for i in view.outputs)

    def by_active(
        fn: Callable[..., Sequence[jax.Array]],
        full: Sequence[Array],
    ) -> Sequence[jax.Array]:
        return jax.vjp(
            lambda *moving: fn(*replaced(full, view.active, moving)),
            *[full[i] for i in view.active],
        )[1](cotangents)

    claims = [Claim("vjp of shard_map", lambda *xs: by_active(whole, xs), args, spread)]
    if rest:
        mixed = [
            tuple(e[i] if i == first else x for i, x in enumerate(view.inputs)) for e in elements
        ]
        each = [jax.jit(lambda *xs: pulled(view.active, xs))(*e) for e in mixed]
        want = [
            np.stack([np.asarray(e[n]) for e in each])
            if i == first
            else sum(np.asarray(e[n]) for e in each)
            for n, i in enumerate(view.active)
        ]
        axes = tuple(0 if i == first else None for i in range(len(inputs)))
        specs = tuple(jax.P("d") if i == first else jax.P() for i in range(len(inputs)))

        def replicated(*xs: jax.Array) -> tuple[jax.Array, ...]:
            fn = jax.shard_map(
                jax.vmap(subject.call, in_axes=axes),
                mesh=mesh,
                in_specs=specs,
                out_specs=jax.P("d"),
            )
            outs = fn(*xs)
            return tuple(outs[i] for i in view.outputs)

        given = tuple(args[i] if i == first else x for i, x in enumerate(view.inputs))
        claims.append(
            Claim(
                f"vjp of shard_map, input {first} spread and the others replicated",
                lambda *xs: by_active(replicated, xs),
                given,
                want,
            )
        )
    yield from subject.hold(claims, "X13.4", FIX)


def named_sharding(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Runs under jit on arrays whose first axis is spread by a NamedSharding."""
    if subject.routes(inputs) == (RouteKind.KERNEL,):
        raise NotApplicable("a kernel alone runs on one device", "Override lower_to_standard_ops.")
    mesh = _mesh()
    elements, args = _batches(subject, inputs, mesh)
    want = tuple(
        np.stack(column) for column in zip(*(subject.expected(e) for e in elements), strict=True)
    )
    placed = tuple(jax.device_put(x, jax.NamedSharding(mesh, jax.P("d"))) for x in args)
    yield from subject.hold(
        [Claim("jit of vmap on spread arrays", jax.vmap(subject.call), placed, want)], "X13.3", FIX
    )


def explicit_mesh(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Runs on a mesh with explicit axes, which needs the output shardings: with a batch spread over
    it, and with replicated inputs.
    """
    lowered = RouteKind.LOWERING in subject.routes(inputs)
    if not lowered and type(subject.op).infer_output_sharding is ExtensionOp.infer_output_sharding:
        raise NotApplicable(
            "the op has no lowering", "Override lower_to_standard_ops or infer_output_sharding."
        )
    mesh = _mesh(jax.sharding.AxisType.Explicit)
    elements, args = _batches(subject, inputs, mesh)
    fix = "Correct infer_output_sharding, or leave it out to use the sharding of the lowering."
    with jax.set_mesh(mesh):
        whole, spread = (
            [jax.device_put(x, place) for x in xs]
            for xs, place in ((inputs, jax.P()), (args, jax.P("d")))
        )
        wants = (
            subject.expected(inputs),
            [np.stack(column) for column in zip(*map(subject.expected, elements), strict=True)],
        )
        map_: Callable[[Any], Any]
        for what, map_, placed, want in (
            ("replicated inputs", lambda fn: fn, whole, wants[0]),
            ("vmap", jax.vmap, spread, wants[1]),
        ):
            if map_ is jax.vmap and not lowered:
                continue
            try:
                yield from subject.hold(
                    [Claim(f"{what} on an explicit mesh", map_(subject.call), tuple(placed), want)],
                    "X13.5",
                    fix,
                )
            except Broken:
                if type(subject.op).infer_output_sharding is ExtensionOp.infer_output_sharding:
                    subject.require_plain(
                        f"place {what} on an explicit mesh",
                        functools.partial(_jitted, map_),
                        placed,
                    )
                raise


def _jitted(map_: Callable[[Any], Any], fn: Callable[..., PyTree]) -> Any:
    return jax.jit(map_(fn))
