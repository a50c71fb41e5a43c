"""The route of an extension: how it is chosen and why, and the routes of a whole function."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from ..errors import InvalidConfig, Unsupported, require_kind
from ..jax_seam import (
    ClosedJaxpr,
    Eqn,
    Site,
    calls_back,
    inner_jaxprs,
    is_literal,
    manual_inside,
    open_jaxpr,
    require_platforms,
    spreads,
)
from ..shapes import PyTree, TensorMeta, is_inexact, struct
from .carrier import Extension, body_of, kernel_body, lowering_body, what_runs
from .contract import Can, in_method
from .kernels import Kernel, RouteKind
from .sharding import Split, on_device, split_of

__all__ = ["Route", "RouteKind", "routes"]

ANY_PLATFORM = "any"
"""The platform of a function that is written out in standard ops and does not run."""


class Route(NamedTuple):
    """The chosen route of one extension node.

    Attributes:
      family_id: the extension.
      platform: "cpu", "cuda", "rocm", "tpu", or "default".
      kind: kernel, lowering or host.
      reason: why this route was chosen, in a few words.
      kernel: the name of the kernel; "" if it has none, or for another route.
    """

    family_id: str
    platform: str
    kind: RouteKind
    reason: str
    kernel: str = ""

    def __str__(self) -> str:
        way = f"{self.kind.value} {self.kernel}".rstrip()
        return f"{self.family_id} on {self.platform}: {way} ({self.reason})"


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
    if TUNED and not (site.exporting or site.partitioned):
        timed = TUNED.get((carrier, site.platform, tuple(metas)))
        if timed is not None:
            return timed

    refusals: list[str] = []
    family, platform = op.family_id, site.platform
    for kernel in _accepting(carrier, site, metas, refusals):
        reason = "; ".join([f"a kernel for {platform} is there", *refusals])
        return Route(family, platform, RouteKind.KERNEL, reason, kernel=kernel.title)
    passed_over = "".join(f"; {refusal}" for refusal in refusals)
    if op.can(Can.LOWER) and not lowering_declined and RouteKind.LOWERING in selected:
        reason = "standard ops, compiled by XLA" + passed_over
        return Route(family, platform, RouteKind.LOWERING, reason)
    if op.can(Can.RUN_ON_HOST) and not site.exporting and RouteKind.HOST in selected:
        reason = "eager_execute on the host" + passed_over
        return Route(family, platform, RouteKind.HOST, reason)
    if lowering_declined:
        passed_over += f"; its lowering returned None for {', '.join(map(str, metas))}"
    elsewhere = sorted(
        known.platform
        for known in carrier.runtimes
        if known.family_id == op.family_id and known.platform != site.platform
    )
    if elsewhere:
        passed_over += f"; its kernels are for {', '.join(elsewhere)}"
    place = f"platform {site.platform}" + (" in an export" if site.exporting else "")
    needed, fix = f"a kernel for {site.platform}, a lowering or host code", op.advice
    if len(selected) < len(RouteKind):
        needed, fix = f"{carrier.runtimes}", "Select more routes."
    elif site.exporting:
        needed, fix = "a lowering to standard ops: kernels and host code are not portable", ""
    raise Unsupported(
        where=op.place_of(),
        given=("no lowering to write out" if site.platform == ANY_PLATFORM else place)
        + passed_over,
        needed=needed,
        fix=fix,
    )


def _accepting(
    carrier: Extension, site: Site, metas: Sequence[TensorMeta], refusals: list[str]
) -> Iterator[Kernel]:
    """The kernels that accept a call, in their order; why others do not is added to `refusals`."""
    offered = carrier.runtimes.kernels(carrier.family_id, site.platform)
    one = len(offered) == 1
    its, are = ("its kernel", "is") if one else ("its kernels", "are")
    if not offered:
        return
    if RouteKind.KERNEL not in carrier.runtimes.routes:
        refusals.append(f"{its} {are} not selected")
    elif site.exporting:
        refusals.append(f"{its} {are} not portable")
    elif site.partitioned:
        refusals.append(f"{its} cannot be partitioned, use jax.shard_map")
    else:
        for kernel in offered:
            why: object = ""
            what = f"{what_runs(kernel)}, declines"
            if kernel.declines is not None:
                with in_method(carrier.op, what):
                    why = kernel.declines(carrier.op, *carrier.of_one(metas))
            if not isinstance(why, str):
                raise InvalidConfig(
                    where=carrier.op.place_of(what),
                    given=repr(why),
                    needed='text: the reason why the kernel declines the call, or "" if it does '
                    "not",
                )
            if not why:
                yield kernel
            else:
                name = its if one else f"kernel {kernel.title}".rstrip()
                refusals.append(f"{name} declines: {why}")


def chosen(carrier: Extension, route: Route) -> Kernel | None:
    """The kernel of a route. A route has its name alone, so that it is text to be kept and sent."""
    if route.kind is not RouteKind.KERNEL:
        return None
    offered = carrier.runtimes.kernels(carrier.family_id, route.platform)
    return next(kernel for kernel in offered if kernel.title == route.kernel)


def splits(carrier: Extension, metas: Sequence[TensorMeta], site: Site) -> Split | None:
    """The rule by which XLA's partitioner splits a call; None if it splits the lowering, as it does
    where the host would compute something of the pieces.
    """
    split = split_of(carrier, metas) if site.splits else None
    if split is None or is_on_host(carrier, metas, on_one(site)):
        return None
    if split.rule.on_device is not None:
        axes = {f: (f"factor {i}",) for i, f in enumerate(split.sizes) if f not in split.kept}
        pieces = on_device(carrier, split, lambda *_, **__: (), axes)
        traced = jax.make_jaxpr(pieces, axis_env=[(name, 1) for (name,) in axes.values()])
        with contextlib.suppress(Exception):  # an error is for the partitioner's pieces to say
            if _calls_host(traced(*map(struct, metas)), on_one(site)):
                return None
    return split


def is_on_host(carrier: Extension, metas: Sequence[TensorMeta], site: Site) -> bool:
    """Whether the host computes a call or a part of it. JAX drops the callbacks of a program that
    the partitioner asks for, and the process dies when it calls them.
    """
    route = route_of(carrier, metas, site)
    if route.kind is RouteKind.HOST:
        return True
    body = jax.make_jaxpr(functools.partial(body_of, carrier, chosen(carrier, route)))
    return _calls_host(body(*map(struct, metas)), site)


def _calls_host(closed: ClosedJaxpr, site: Site) -> bool:
    return any(map(calls_back, equations(closed))) or any(
        is_on_host(carrier, metas, site) for carrier, metas, _ in extensions_in(closed)
    )


def on_one(site: Site) -> Site:
    """The site of each device."""
    return site._replace(partitioned=False, splits=False)


def route_of(carrier: Extension, metas: Sequence[TensorMeta], site: Site) -> Route:
    """The route that a carrier takes at a site, found without running anything."""
    split = splits(carrier, metas, site)
    if split is not None:
        route = route_of(carrier, metas, on_one(site))
        return route._replace(reason=f"{route.reason}; on each device, split by {split}")
    route = choose_route(carrier, site, metas)
    if route.kind is not RouteKind.LOWERING:
        return route
    declined = jax.eval_shape(lambda *xs: lowering_body(carrier, xs), *map(struct, metas)) is None
    return choose_route(carrier, site, metas, lowering_declined=declined)


def here() -> Site:
    """The site of a call outside any program: JAX's current platform, on one device or on the mesh
    of jax.set_mesh.
    """
    spread = spreads(jax.sharding.get_abstract_mesh())
    return Site(current_platform(), exporting=False, partitioned=spread, splits=spread)


def current_platform() -> str:
    """JAX's current platform, with the name that extensions use."""
    backend = jax.default_backend()
    return "cuda" if backend == "gpu" else backend


def routes(
    fn: Callable[..., object],
    *args: PyTree,
    platform: str | None = None,
    exporting: bool = False,
    tune: bool = False,
) -> list[Route]:
    """The route of every extension that `fn(*args)` calls, in program order; `fn` does not run.

    Args:
      fn: a JAX-traceable function; wrap it in jax.grad and the like to see the routes of the
        derivative.
      *args: arrays or ShapeDtypeStructs as arguments of fn; their shardings count.
      platform: "cpu", "cuda", "rocm" or "tpu"; by default JAX's current platform.
      exporting: whether to show the routes in an exported program.
      tune: whether to run and time the kernels that accept each call, and its lowering, once for
        these dtypes and shapes on this machine, on random numbers. From then on this process
        takes the fastest in every program that it traces; a program that is compiled already
        keeps its route. Results may differ by the rounding in which the routes of the op differ.

    Raises:
      Unsupported: an extension has no route there.
      InvalidConfig: an unknown platform; or `tune` for another platform, for an export, or for
        inputs that cannot be made from dtype and shape.

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
    require_kind(fn, Callable, "routes", "a function of arrays", "Pass the function first.")
    if platform is not None:
        require_platforms((platform,), "routes")
    if tune and (exporting or platform not in (None, current_platform())):
        raise InvalidConfig(
            where="routes",
            given="tune=True for an export" if exporting else f"tune=True on {platform}",
            needed=f"the platform of this process, {current_platform()}",
        )
    closed = jax.make_jaxpr(fn)(*args)
    jaxpr, _ = open_jaxpr(closed)
    read = [*jaxpr.outvars]
    for eqn in jaxpr.eqns:
        read += eqn.invars
    used = {v for v in read if not is_literal(v)}  # jit drops the others
    leaves = zip(jax.tree.leaves(args), jaxpr.invars, strict=True)
    spread = any(spreads(leaf) for leaf, var in leaves if var in used)
    at = here()
    partitioned = at.partitioned or spread or any(map(spreads, equations(closed)))
    everywhere = Site(
        platform or at.platform, exporting, partitioned, partitioned and not exporting
    )
    found = []
    for carrier, metas, manual in extensions_in(closed):
        there = on_one(everywhere) if manual else everywhere
        if tune and not manual:
            _tune(carrier, metas, there)
        found.append(route_of(carrier, metas, there))
    return found


TUNED: dict[tuple[Extension, str, tuple[TensorMeta, ...]], Route] = {}
"""The fastest route of a call on a platform, of those that were timed in this process."""


def _tune(carrier: Extension, metas: tuple[TensorMeta, ...], site: Site) -> None:
    """Time the kernels that accept a call, and its lowering; keep the fastest."""
    key = (carrier, site.platform, metas)
    ways: dict[Kernel | None, Callable[..., tuple[jax.Array, ...] | None]] = {
        kernel: functools.partial(kernel_body, carrier, kernel)
        for kernel in _accepting(carrier, site, metas, [])
    }
    structs = tuple(map(struct, metas))
    if key in TUNED or not ways:
        return
    lowering = functools.partial(lowering_body, carrier)
    if (
        carrier.op.can(Can.LOWER)
        and RouteKind.LOWERING in carrier.runtimes.routes
        and jax.eval_shape(lowering, structs) is not None
    ):
        ways[None] = lowering
    if len(ways) < 2:
        return
    best = dict.fromkeys(ways, math.inf)
    with jax.ensure_compile_time_eval():
        arrays = tuple(jax.device_put(_sample(carrier.family_id, meta)) for meta in metas)
        compiled = {way: jax.jit(body).lower(structs).compile() for way, body in ways.items()}
        start, rounds = time.perf_counter(), 0
        while rounds < 3 or (rounds < 100 and time.perf_counter() - start < 0.2):
            for way, run in compiled.items():
                at = time.perf_counter()
                jax.block_until_ready(run(arrays))
                best[way] = min(best[way], time.perf_counter() - at)
            rounds += 1
    figures = []
    for kernel, seconds in best.items():
        name = (kernel and kernel.title) or _kind(kernel).value
        figures.append(f"{name} {1e3 * seconds:.3g} ms")
    fastest = min(best, key=lambda kernel: best[kernel])
    TUNED[key] = Route(
        family_id=carrier.family_id,
        platform=site.platform,
        kind=_kind(fastest),
        reason=f"the fastest here: {', '.join(figures)}",
        kernel="" if fastest is None else fastest.title,
    )


def _kind(kernel: Kernel | None) -> RouteKind:
    return RouteKind.LOWERING if kernel is None else RouteKind.KERNEL


def _sample(family_id: str, meta: TensorMeta) -> np.ndarray:
    """An input to time on: normal numbers; zeros of other kinds, which are also indices."""
    try:
        if is_inexact(meta):
            return np.random.default_rng(0).standard_normal(meta.shape).astype(meta.dtype)
        return np.zeros(meta.shape, meta.dtype)
    except TypeError as error:  # symbolic sizes, random keys
        raise InvalidConfig(
            where=f"routes of extension {family_id}",
            given=f"tune=True for an input {meta}",
            needed="numbers or booleans, of sizes that are numbers",
        ) from error


def extensions_in(
    closed: ClosedJaxpr,
    manual: bool = False,
) -> Iterator[tuple[Extension, tuple[TensorMeta, ...], bool]]:
    """Every extension of a jaxpr, inner jaxprs included, in program order; the dtypes and shapes of
    its inputs; and whether all mesh axes are manual there.
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
            yield from extensions_in(inner, manual if inside is None else inside)


def equations(closed: ClosedJaxpr) -> Iterator[Eqn]:
    """The equations of a jaxpr and of the jaxprs in it."""
    for eqn in open_jaxpr(closed)[0].eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)
