"""Run an extension: its body where JAX lowers it, or its host form on concrete arrays. Results are
checked against infer_output_meta.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import BackendFailure, InvalidConfig, TenferroError
from ..jax_seam import Site, failed_inside
from ..shapes import TensorMeta, meta_of, struct
from .carrier import Extension, Levels, body_of, what_runs
from .contract import LOWERING, checked_sequence, in_method, require_arrays
from .definitions import kept
from .kernels import Kernel, RouteKind
from .routes import choose_route, chosen, here, is_on_host

_FAMILY = re.compile(r"extension[, ]+(?:family_id=)?([!-~]+\.v\d+)")


def forward(carrier: Extension, site: Site, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """The traced body of an extension where JAX lowers it, checked against infer_output_meta."""
    metas = tuple(map(meta_of, arrays))
    route = choose_route(carrier, site, metas)
    if route.kind is not RouteKind.HOST:
        kernel = chosen(carrier, route)
        outs = body_of(carrier, kernel, *arrays)
        if outs is not None:
            # A lowering may call the host too.
            if site.partitioned and is_on_host(carrier, metas, site):
                outs = jax.lax.optimization_barrier(outs)  # as in _callback
            have, want = tuple(map(meta_of, outs)), carrier.infer(*metas)
            if have != want:
                raise _mismatch(carrier, what_runs(kernel) if kernel else LOWERING, have, want)
            return outs
        choose_route(carrier, site, metas, lowering_declined=True)  # the host, or an error
    return _callback(carrier, arrays)


def _mismatch(
    carrier: Extension, what: str, have: Sequence[TensorMeta], want: Sequence[TensorMeta]
) -> InvalidConfig:
    inference, _, _ = carrier.op.place_of("infer_output_meta").partition(" of ")
    return InvalidConfig(
        where=carrier.op.place_of(what),
        given=f"outputs {', '.join(map(str, have)) or 'none'}",
        needed=f"{', '.join(map(str, want))}, as {inference} says",
        clause="X7.1",
    )


def host_over_levels(
    levels: Levels, fn: Callable[..., Sequence[np.ndarray]], out_metas: Sequence[TensorMeta]
) -> Callable[..., Sequence[np.ndarray]]:
    """A NumPy function mapped over all levels by a loop; an empty batch gives empty outputs."""
    if not levels:
        return fn
    level, rest = levels[0], levels[1:]
    inner = host_over_levels(rest, fn, [TensorMeta(m.dtype, m.shape[1:]) for m in out_metas])

    def mapped(*arrays: np.ndarray) -> list[np.ndarray]:
        outs = [np.empty(m.shape, m.dtype) for m in out_metas]
        for i in range(level.size([a.shape for a in arrays])):
            element = [
                a if axis is None else np.take(a, i, axis=axis)
                for a, axis in zip(arrays, level.in_axes, strict=True)
            ]
            for out, value in zip(outs, inner(*element), strict=True):
                out[i] = value
        return outs

    return mapped


def run_host(carrier: Extension, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Run eager_execute on concrete arrays now; an exception of the author is kept as the cause."""
    metas = carrier.infer(*map(meta_of, arrays))
    outs = _host_outputs(carrier, metas, arrays)
    # Beside the first committed, replicated input; without one on the default device.
    placed = (
        a.sharding
        for a in arrays
        if isinstance(a, jax.Array) and a.committed and a.sharding.is_fully_replicated
    )
    placement = _of_any_rank(next(placed, None))
    return [jax.device_put(out, placement) for out in outs]


def _of_any_rank(place: jax.sharding.Sharding | None) -> jax.sharding.Sharding | None:
    """Where arrays of any rank are whole on the devices of an array that is."""
    if isinstance(place, jax.NamedSharding):
        return jax.NamedSharding(place.mesh, jax.P(), memory_kind=place.memory_kind)
    return place


def run_at_once(
    carrier: Extension, arrays: Sequence[jax.Array], tuned: int
) -> list[jax.Array] | None:
    """The outputs of a kernel that computes concrete arrays without compiling; None if the call
    needs another route, or its arrays are not all on one CPU device.
    """
    places = {x.sharding for x in arrays if isinstance(x, jax.Array)}
    place, site = next(iter(places), None), here()
    if len(places) > 1 or site.platform != "cpu":
        return None
    devices: Any = () if place is None else place.device_set
    if place is not None and [device.platform for device in devices] != ["cpu"]:
        return None
    found = _eager_kernel(carrier, tuple((x.dtype, x.shape) for x in arrays), site, tuned)
    if found is None:
        return None
    kernel, metas = found
    what = what_runs(kernel)
    with in_method(carrier.op, what):
        views = [np.asarray(x) if isinstance(x, jax.Array) else read_only(x) for x in arrays]
        given = kernel.eager(carrier.op, *views)  # type: ignore[misc]
    outs = checked_sequence(given, carrier.op, what, carrier.output_count)
    require_arrays(outs, carrier.op, what)
    have = tuple(TensorMeta(out.dtype, tuple(out.shape)) for out in outs)
    if have != metas:
        raise _mismatch(carrier, what, have, metas)
    beside = place if any(getattr(x, "committed", False) for x in arrays) else None
    return jax.device_put(list(outs), _of_any_rank(beside))


@kept(1024)
def _eager_kernel(
    carrier: Extension,
    described: tuple[tuple[np.dtype, tuple[int, ...]], ...],
    site: Site,
    tuned: int,
) -> tuple[Kernel, tuple[TensorMeta, ...]] | None:
    """The kernel of a call, if it has a function for concrete arrays, and the metas of the
    outputs.
    """
    metas = tuple(TensorMeta(dtype, shape) for dtype, shape in described)
    outs = carrier.infer(*metas)
    kernel = chosen(carrier, choose_route(carrier, site, metas))
    return None if kernel is None or kernel.eager is None else (kernel, outs)


def _callback(carrier: Extension, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Call eager_execute from inside a compiled program."""
    metas = carrier.infer(*map(meta_of, arrays))
    structs = tuple(map(struct, metas))

    given = [meta_of(x).dtype for x in arrays]

    def on_host(*xs: jax.Array) -> tuple[np.ndarray, ...]:
        if any(x.dtype != dtype for x, dtype in zip(xs, given, strict=True)):
            raise BackendFailure(
                where=carrier.op.place_of("eager_execute"),
                given=f"{', '.join(str(x.dtype) for x in xs)} in place of "
                f"{', '.join(map(str, given))}: JAX ran the callback in a thread where 64-bit "
                f"types are off",
                needed="64-bit types on in the whole process",
                fix="Call jax.config.update('jax_enable_x64', True) in place of jax.enable_x64.",
            )
        return tuple(_host_outputs(carrier, metas, xs))

    outs = jax.pure_callback(on_host, structs, *arrays, vmap_method="sequential")
    # If XLA partitions, JAX gives the result a sharding that its next jit refuses; behind a barrier
    # it does not.
    return tuple(jax.lax.optimization_barrier(outs))


def _on_host(out: object, carrier: Extension, i: int) -> np.ndarray:
    """An output of eager_execute. Refuses arrays on a device, masked arrays and other byte orders,
    which would be moved or changed.
    """
    where = f"{carrier.op.place_of('eager_execute')}, output {i}"
    if isinstance(out, jax.Array):
        raise BackendFailure(
            where=where,
            given=f"a jax.Array {TensorMeta(out.dtype, out.shape)}, a tensor on a device",
            needed="a NumPy array on the host",
            fix="Compute with NumPy, or write lower_to_standard_ops; JAX code in a host callback "
            "can deadlock.",
        )
    if isinstance(out, np.ma.MaskedArray):
        raise BackendFailure(
            where=where,
            given=f"a masked array {TensorMeta(out.dtype, out.shape)}",
            needed="a plain NumPy array, because the mask would be lost",
            fix="Return out.filled(value).",
        )
    out = np.asarray(out)
    if not out.dtype.isnative:
        raise InvalidConfig(
            where=where,
            given=f"{TensorMeta(out.dtype, out.shape)} of the dtype {out.dtype.str!r}, in the "
            f"other byte order",
            needed="this machine's byte order",
            fix='Return out.astype(out.dtype.newbyteorder("=")).',
            clause="X7.1",
        )
    return out


def read_only(array: jax.typing.ArrayLike) -> np.ndarray:
    """A read-only NumPy view of an array for the author, so that the caller's array
    cannot change.
    """
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view


def _host_outputs(
    carrier: Extension,
    metas: Sequence[TensorMeta],
    arrays: Sequence[jax.Array],
) -> list[np.ndarray]:
    depth = len(carrier.batching)
    want = tuple(TensorMeta(m.dtype, m.shape[depth:]) for m in metas)
    where = carrier.op.place_of("eager_execute")

    def one(*element: np.ndarray) -> list[np.ndarray]:
        try:
            returned: Any = carrier.op.eager_execute(*element)
            if isinstance(returned, tuple | list):  # numbers and lists are arrays here
                returned = [x if isinstance(x, jax.Array) else np.asanyarray(x) for x in returned]
        except Exception as error:
            if isinstance(error, TenferroError) and carrier.family_id in str(error):
                raise  # of our checks, or the author's text about the machine
            raise _failed(error, where) from error
        returned = checked_sequence(returned, carrier.op, "eager_execute", carrier.output_count)
        outs = [_on_host(out, carrier, i) for i, out in enumerate(returned)]
        have = tuple(TensorMeta(out.dtype, out.shape) for out in outs)
        if have != want:
            raise _mismatch(carrier, "eager_execute", have, want)
        return outs

    return list(host_over_levels(carrier.batching, one, metas)(*map(read_only, arrays)))


def _failed(error: Exception, where: str) -> BackendFailure:
    """The failure of an author's host code."""
    if isinstance(error, BackendFailure):
        place, parts = f"{where}, {error.where}", (error.given, error.needed, error.fix)
    else:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        place = where
        parts = said, "a run without an exception", "The cause is the author's exception."
    given, needed, fix = parts
    return BackendFailure(where=place, given=given, needed=needed, fix=fix)


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Turn the error of a failed host op inside a jitted function into BackendFailure. JAX raises
    JaxRuntimeError, and where the function is called again ValueError.

    Wait for the results inside the block (`jax.block_until_ready`), because JAX runs
    asynchronously.

    Raises:
      BackendFailure: with the family_id and the author's error text; the error of JAX is
        the cause.

    Example:
      >>> with host_errors():
      ...     total = jax.block_until_ready(jax.numpy.ones(3).sum())
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        found = _FAMILY.search(str(error)) if failed_inside(error) else None
        if found is None:
            raise
        lines = [line for line in str(error).splitlines() if found[1] in line]
        raise BackendFailure(
            where=f"extension {found[1]} inside a compiled program",
            given=lines[-1].strip(),
            needed="a run without an exception",
            fix="Call the op outside jit to get the author's exception.",
        ) from error
