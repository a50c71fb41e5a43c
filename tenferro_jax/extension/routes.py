"""Ask a JAX function which route each of its extensions takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from ..jax_seam import Site, inner_jaxprs, is_literal, manual_inside, open_jaxpr, require_platforms, spreads
from ..shapes import TensorMeta
from .carrier import Extension
from .choice import Route
from .execution import here, route_of


def routes(fn: Callable[..., Any], *args: Any, platform: str | None = None, exporting: bool = False) -> list[Route]:
    """The route of every extension that `fn(*args)` calls, in program order; nothing is run.

    Args:
      fn: a JAX-traceable function; wrap it in jax.grad and the like to see what the derivative calls.
      *args: arrays or ShapeDtypeStructs, as fn takes them; their shardings count.
      platform: "cpu", "cuda", "rocm" or "tpu"; by default where JAX runs now.
      exporting: as an exported program would do it.

    Raises:
      Unsupported: an extension has no route there.
      InvalidConfig: an unknown platform.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from ext_tropical import tropical_einsum
      >>> x = jnp.zeros((2, 2))
      >>> for route in routes(lambda a, b: tropical_einsum("ij,jk->ik", a, b), x, x, platform="cpu"):
      ...     print(route)
      tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its kernel declines: one reduction does it)
    """
    if platform is not None:
        require_platforms((platform,), "routes")
    closed = jax.make_jaxpr(fn)(*args)
    jaxpr, _ = open_jaxpr(closed)
    used = {v for v in (*jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.invars)) if not is_literal(v)}  # jit drops the others
    spread = any(spreads(leaf) for leaf, var in zip(jax.tree.leaves(args), jaxpr.invars, strict=True) if var in used)
    at = here()
    site = Site(platform or at.platform, exporting, at.partitioned or spread or any(map(spreads, _equations(closed))))
    return [
        route_of(carrier, metas, site._replace(partitioned=site.partitioned and not manual))
        for carrier, metas, manual in _calls(closed, manual=False)
    ]


def extensions_in(closed: Any) -> Iterator[tuple[Extension, tuple[TensorMeta, ...]]]:
    """Every extension of a jaxpr with the metas of its inputs, inner jaxprs included, in program order."""
    return ((carrier, metas) for carrier, metas, _ in _calls(closed, manual=False))


def _calls(closed: Any, manual: bool) -> Iterator[tuple[Extension, tuple[TensorMeta, ...], bool]]:
    """Every extension, the metas of its inputs, and whether it stands where all mesh axes are manual."""
    for eqn in open_jaxpr(closed)[0].eqns:
        carrier = eqn.params.get("op")
        if isinstance(carrier, Extension):
            yield carrier, tuple(TensorMeta(v.aval.dtype, tuple(v.aval.shape)) for v in eqn.invars), manual
        inside = manual_inside(eqn)
        for inner in inner_jaxprs(eqn):
            yield from _calls(inner, manual if inside is None else inside)


def _equations(closed: Any) -> Iterator[Any]:
    for eqn in open_jaxpr(closed)[0].eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from _equations(inner)
