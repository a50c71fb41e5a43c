"""The route of an extension: how it is chosen and why, and the routes of a whole function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from ..errors import InvalidConfig, Unsupported
from ..jax_seam import (
    ClosedJaxpr,
    Eqn,
    Site,
    inner_jaxprs,
    is_literal,
    manual_inside,
    open_jaxpr,
    require_platforms,
    spreads,
)
from ..shapes import PyTree, TensorMeta, struct
from .carrier import Extension, over_levels
from .contract import has_host_form, has_lowering, lowered
from .runtimes import Kernel, RouteKind
from .scope import authored

__all__ = ["Route", "RouteKind", "routes"]

ANY_PLATFORM = (
    "any"  # the platform of a function that is written out in standard ops and does not run
)


class Route(NamedTuple):
    """The chosen route of one extension node.

    Attributes:
      family_id: the extension.
      platform: "cpu", "cuda", "rocm", "tpu", or "default".
      kind: kernel, lowering or host.
      reason: why this route was chosen, in a few words.
    """

    family_id: str
    platform: str
    kind: RouteKind
    reason: str

    def __str__(self) -> str:
        return f"{self.family_id} on {self.platform}: {self.kind.value} ({self.reason})"


def choose_route(
    carrier: Extension, site: Site, metas: Sequence[TensorMeta], *, lowering_declined: bool = False
) -> Route:
    """The first route that exists and is selected: a kernel for the platform that accepts the call,
    the lowering, the host form.

    Args:
      carrier: the extension, with its runtimes.
      metas: of the inputs.
      site: the platform, whether this is an export, whether XLA partitions over several devices.
      lowering_declined: lower_to_standard_ops was called and returned None.

    Raises:
      Unsupported: nothing can run the op there.
    """
    op, selected = carrier.op, carrier.runtimes.routes

    def route(kind: RouteKind, reason: str) -> Route:
        return Route(op.family_id, site.platform, kind, reason)

    passed_over = ""
    kernel = carrier.runtimes.lookup_kernel(op.family_id, site.platform)
    if kernel is not None:
        if RouteKind.KERNEL not in selected:
            passed_over = "; its kernel is not selected"
        elif site.exporting:
            passed_over = "; its kernel is not portable"
        elif site.partitioned:
            passed_over = "; its kernel cannot be partitioned, use jax.shard_map"
        elif why := _declined(kernel, carrier, metas):
            passed_over = f"; its kernel declines: {why}"
        else:
            return route(RouteKind.KERNEL, f"a kernel for {site.platform} is there")
    if has_lowering(op) and not lowering_declined and RouteKind.LOWERING in selected:
        return route(RouteKind.LOWERING, "standard ops, compiled by XLA" + passed_over)
    if has_host_form(op) and not site.exporting and RouteKind.HOST in selected:
        return route(RouteKind.HOST, "eager_execute on the host" + passed_over)
    if lowering_declined:
        passed_over += "; its lower_to_standard_ops returned None for these inputs"
    elsewhere = sorted(
        known.platform
        for known in carrier.runtimes
        if known.family_id == op.family_id and known.platform != site.platform
    )
    if elsewhere:
        passed_over += f"; its kernels are for {', '.join(elsewhere)}"
    lower = "Lower these inputs too" if lowering_declined else "Override lower_to_standard_ops"
    if len(selected) < len(RouteKind):
        needed, fix = f"{carrier.runtimes}", "Select more routes."
    elif site.platform == ANY_PLATFORM:
        needed, fix = "a lowering to standard ops, not kernels or host code", f"{lower}."
    elif site.exporting:
        needed, fix = (
            "a lowering to standard ops, because kernels and host code cannot be exported",
            f"{lower}.",
        )
    else:
        needed = f"a kernel for {site.platform}, a lowering to standard ops, or eager_execute"
        fix = f"{lower}, or override eager_execute."
    place = f"platform {site.platform}" + (" in an export" if site.exporting else "")
    raise Unsupported(
        where=f"extension {op.family_id}",
        given=("no lowering to write out" if site.platform == ANY_PLATFORM else place)
        + passed_over,
        needed=needed,
        fix=fix,
    )


def _declined(kernel: Kernel, carrier: Extension, metas: Sequence[TensorMeta]) -> str:
    """Why a kernel declines the call, or ""."""
    if kernel.declines is None:
        return ""
    for level in carrier.batching:
        metas = level.inner(metas)
    what = f"{kernel.platform} kernel, declines"
    with authored(carrier.family_id, what):
        why = kernel.declines(carrier.op, *metas)
    if not isinstance(why, str):
        raise InvalidConfig(
            where=f"{what}, of extension {carrier.family_id}",
            given=repr(why),
            needed='text: the reason why the kernel declines the call, or "" if it does',
        )
    return why


def lowering_body(carrier: Extension, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...] | None:
    """The lowering's outputs, mapped over the batch levels; None when it declines."""
    declined = False

    def one(*element: jax.Array) -> tuple[jax.Array, ...]:
        nonlocal declined
        outs = lowered(carrier.op, element)
        declined = outs is None
        return () if outs is None else outs

    outs = over_levels(carrier.batching, one)(*arrays)
    return None if declined else tuple(outs)


def route_of(carrier: Extension, metas: Sequence[TensorMeta], site: Site) -> Route:
    """The route that a carrier takes at a site, found without running anything."""
    route = choose_route(carrier, site, metas)
    if route.kind is not RouteKind.LOWERING:
        return route
    declined = jax.eval_shape(lambda *xs: lowering_body(carrier, xs), *map(struct, metas)) is None
    return choose_route(carrier, site, metas, lowering_declined=declined)


def here() -> Site:
    """The site of a call outside any program: JAX's current platform, on one device or on the mesh
    of jax.set_mesh.
    """
    return Site(
        current_platform(), exporting=False, partitioned=spreads(jax.sharding.get_abstract_mesh())
    )


def current_platform() -> str:
    """JAX's current platform, with the name that extensions use."""
    backend = jax.default_backend()
    return "cuda" if backend == "gpu" else backend


def routes(
    fn: Callable[..., object],
    *args: PyTree,
    platform: str | None = None,
    exporting: bool = False,
) -> list[Route]:
    """The route of every extension that `fn(*args)` calls, in program order, without running it.

    Args:
      fn: a JAX-traceable function; wrap it in jax.grad and the like to see the routes of the
        derivative.
      *args: arrays or ShapeDtypeStructs as arguments of fn; their shardings count.
      platform: "cpu", "cuda", "rocm" or "tpu"; by default JAX's current platform.
      exporting: whether to show the routes in an exported program.

    Raises:
      Unsupported: an extension has no route there.
      InvalidConfig: an unknown platform.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from ext_tropical import tropical_einsum
      >>> x = jnp.zeros((2, 2))
      >>> for route in routes(lambda a, b: tropical_einsum("ij,jk->ik", a, b), x, x,
      ...     platform="cpu"):
      ...     print(route)
      tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its kernel \
declines: one reduction does it)
    """
    if platform is not None:
        require_platforms((platform,), "routes")
    closed = jax.make_jaxpr(fn)(*args)
    jaxpr, _ = open_jaxpr(closed)
    used = {
        v
        for v in (*jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.invars))
        if not is_literal(v)
    }  # jit drops the others
    spread = any(
        spreads(leaf)
        for leaf, var in zip(jax.tree.leaves(args), jaxpr.invars, strict=True)
        if var in used
    )
    at = here()
    site = Site(
        platform or at.platform,
        exporting,
        at.partitioned or spread or any(map(spreads, _equations(closed))),
    )
    return [
        route_of(carrier, metas, site._replace(partitioned=site.partitioned and not manual))
        for carrier, metas, manual in _calls(closed)
    ]


def extensions_in(closed: ClosedJaxpr) -> Iterator[tuple[Extension, tuple[TensorMeta, ...]]]:
    """Every extension of a jaxpr with the metas of its inputs, inner jaxprs included, in program
    order.
    """
    return ((carrier, metas) for carrier, metas, _ in _calls(closed))


def _calls(
    closed: ClosedJaxpr,
    manual: bool = False,
) -> Iterator[tuple[Extension, tuple[TensorMeta, ...], bool]]:
    """Every extension, the dtypes and shapes of its inputs, and whether all mesh axes are manual
    there.
    """
    for eqn in open_jaxpr(closed)[0].eqns:
        carrier = eqn.params.get("op")
        if isinstance(carrier, Extension):
            yield (
                carrier,
                tuple(TensorMeta(v.aval.dtype, tuple(v.aval.shape)) for v in eqn.invars),
                manual,
            )
        inside = manual_inside(eqn)
        for inner in inner_jaxprs(eqn):
            yield from _calls(inner, manual if inside is None else inside)


def _equations(closed: ClosedJaxpr) -> Iterator[Eqn]:
    for eqn in open_jaxpr(closed)[0].eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from _equations(inner)
