"""Who executes an extension: the one place that chooses, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InvalidConfig, Unsupported
from ..jax_seam import Site
from ..shapes import TensorMeta
from .carrier import Extension
from .op import authored, has_host_form, has_lowering
from .runtimes import Kernel, RouteKind

ANY_PLATFORM = "any"  # the platform of a function that is written out in standard ops, with no place where it runs


class Route(NamedTuple):
    """The chosen route of one extension node.

    Attributes:
      family_id: the extension.
      platform: "cpu", "cuda", "rocm", "tpu", or "default".
      kind: kernel, lowering or host.
      reason: why this one, in a few words.
    """

    family_id: str
    platform: str
    kind: RouteKind
    reason: str

    def __str__(self) -> str:
        return f"{self.family_id} on {self.platform}: {self.kind.value} ({self.reason})"


def has_host_route_alone(carrier: Extension) -> bool:
    """Whether the host form is the one route of the selected, whatever the platform, the mesh and the sizes."""
    op, selected = carrier.op, carrier.runtimes.routes
    lowers = has_lowering(op) and RouteKind.LOWERING in selected
    kernels = RouteKind.KERNEL in selected and any(kernel.family_id == op.family_id for kernel in carrier.runtimes)
    return has_host_form(op) and RouteKind.HOST in selected and not lowers and not kernels


def choose_route(carrier: Extension, site: Site, metas: Sequence[TensorMeta], *, lowering_declined: bool = False) -> Route:
    """The first that exists and is selected: a kernel for the platform that serves the call, the lowering, the host form.

    Args:
      carrier: the extension, with its runtimes.
      metas: of the inputs.
      site: platform, whether this is an export, whether XLA partitions over several devices.
      lowering_declined: lower_to_standard_ops was asked and returned None.

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
    elsewhere = sorted(known.platform for known in carrier.runtimes if known.family_id == op.family_id and known.platform != site.platform)
    if elsewhere:
        passed_over += f"; its kernels are for {', '.join(elsewhere)}"
    lower = "Lower these inputs too" if lowering_declined else "Override lower_to_standard_ops"
    if len(selected) < len(RouteKind):
        needed, fix = f"{carrier.runtimes}", "Select more routes."
    elif site.platform == ANY_PLATFORM:
        needed, fix = "a lowering to standard ops: kernels and host code are none", f"{lower}."
    elif site.exporting:
        needed, fix = "a lowering to standard ops: kernels and host code cannot be exported", f"{lower}."
    else:
        needed = f"a kernel for {site.platform}, a lowering to standard ops, or eager_execute"
        fix = f"{lower}, or override eager_execute."
    place = f"platform {site.platform}" + (" in an export" if site.exporting else "")
    given = ("no lowering to write out" if site.platform == ANY_PLATFORM else place) + passed_over
    raise Unsupported(where=f"extension {op.family_id}", given=given, needed=needed, fix=fix)


def _declined(kernel: Kernel, carrier: Extension, metas: Sequence[TensorMeta]) -> str:
    """Why a kernel does not serve the call, or nothing."""
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
            needed='why the kernel does not serve the call, in words, or "" if it does',
        )
    return why
