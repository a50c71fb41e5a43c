"""What a route runs: a kernel or the lowering, mapped over the batch levels."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from ..jax_seam import Site
from .carrier import Extension, over_levels
from .contract import checked_sequence, lowered, require_arrays
from .runtimes import Kernel, RouteKind
from .scope import authored, inherited, lowering_at


def what_runs(kernel: Kernel) -> str:
    """A kernel as errors name it."""
    return f"{kernel.platform} kernel {kernel.title}".rstrip()


def kernel_body(
    carrier: Extension, kernel: Kernel, arrays: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """The kernel's outputs, mapped over the batch levels."""
    op, what = carrier.op, what_runs(kernel)

    def one(*element: jax.Array) -> tuple[jax.Array, ...]:
        with authored(op, what), inherited(None):
            outs = kernel.run(op, *element)
        return require_arrays(checked_sequence(outs, op, what, op.output_count), op, what)

    return tuple(over_levels(carrier, one)(*arrays))


def body_of(
    carrier: Extension, kernel: Kernel | None, site: Site, *arrays: jax.Array
) -> tuple[jax.Array, ...] | None:
    """The outputs of a kernel, or of the lowering, which is None when it declines."""
    if kernel is not None:
        return kernel_body(carrier, kernel, arrays)
    kernels = RouteKind.KERNEL in carrier.runtimes.routes
    with lowering_at(None if site.exporting or site.partitioned or not kernels else site):
        return lowering_body(carrier, arrays)


def lowering_body(carrier: Extension, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...] | None:
    """The lowering's outputs, mapped over the batch levels; None when it declines."""
    declined = False

    def one(*element: jax.Array) -> tuple[jax.Array, ...]:
        nonlocal declined
        outs = lowered(carrier.op, element)
        declined = outs is None
        return () if outs is None else outs

    outs = over_levels(carrier, one)(*arrays)
    return None if declined else tuple(outs)
