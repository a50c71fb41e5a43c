"""What programs of a function hold: NumPy arrays and dtypes.

While a program lives, JAX keeps each NumPy array that the function closes over in the dtype that
the setting of 64-bit types gave it, and hands that to programs of the other setting too, which are
then wrong or do not compile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..extension.carrier import kernel_body, lowering_body
from ..extension.routes import current_platform, equations, extensions_in
from ..jax_seam import CONFIG, ClosedJaxpr, inner_jaxprs, is_literal, open_jaxpr
from ..shapes import PyTree, Shaped, is_inexact, struct, x64_enabled
from .examples import Array, Inputs

Outputs = Sequence[jax.Array]

HELD = (
    "in float32 alone, because it closes over NumPy arrays and 64-bit types are off; "
    'jax.config.update("jax_enable_x64", True) at the start of the program checks it in float64'
)


def holds_numpy(call: Callable[..., Outputs], inputs: Inputs) -> bool:
    """Whether programs of the function, or of its derivatives and vmap, hold NumPy arrays that may
    have another dtype under the other setting of 64-bit types.

    Two traces share what the author made; what JAX makes for a trace is new in each, if the second
    has another setting, for which JAX has no trace in its caches.
    """
    first = [*_traces(call, inputs)]
    other = "high" if CONFIG.jax_default_matmul_precision == "highest" else "highest"
    with jax.default_matmul_precision(other):
        again = [*_traces(call, inputs)]
    known = set(map(id, _arrays(first)))
    return any(id(x) in known for x in _arrays(again))


def _traces(call: Callable[..., Outputs], inputs: Inputs) -> Iterator[ClosedJaxpr]:
    """The programs that can be traced."""
    pulled = functools.partial(_cotangents, call)
    for fn in (
        call,
        lambda *full: jax.vmap(call)(*(jnp.asarray(x)[None] for x in full)),
        pulled,
        functools.partial(_cotangents, pulled),
    ):
        yield from _traced(fn, inputs)


def _cotangents(fn: Callable[..., Outputs], *xs: Array) -> Outputs:
    """Those of the floating inputs."""
    outs, pull = jax.vjp(lambda *xs: [y for y in fn(*xs) if is_inexact(y)], *xs)
    return [c for x, c in zip(xs, pull(outs), strict=True) if is_inexact(x)]


def _traced(fn: Callable[..., PyTree], args: Sequence[PyTree]) -> Iterator[ClosedJaxpr]:
    """The program, and those of the ops in it; none if it cannot be traced."""
    try:
        traced = jax.make_jaxpr(lambda *xs: fn(*xs) or ())(*args)
    except Exception:  # of the author's code, or what JAX lacks: the checks tell
        return
    yield traced
    for carrier, metas, _ in extensions_in(traced):
        structs = [struct(meta) for meta in metas]
        yield from _traced(lambda *xs, c=carrier: lowering_body(c, xs), structs)
        for kernel in carrier.runtimes.kernels(carrier.op.family_id, current_platform()):
            yield from _traced(lambda *xs, c=carrier, k=kernel: kernel_body(c, k, xs), structs)


def _arrays(traces: Sequence[ClosedJaxpr]) -> Iterator[np.ndarray]:
    """The NumPy arrays of a dtype that depends on the setting, also those written as numbers."""
    real = 8 if x64_enabled() else 4
    for traced in traces:
        for x in _constants(traced):
            if isinstance(x, np.ndarray):
                size = 2 * real if jnp.issubdtype(x.dtype, jnp.complexfloating) else real
                if x.dtype.itemsize == size:
                    yield x


def _constants(traced: ClosedJaxpr) -> Iterator[Any]:
    yield from open_jaxpr(traced)[1]
    for eqn in equations(traced):
        yield from (atom.val for atom in eqn.invars if is_literal(atom))
        for inner in inner_jaxprs(eqn):
            yield from open_jaxpr(inner)[1]


def all_wide(arrays: Iterable[Shaped]) -> bool:
    """Whether all floating arrays have 64 bits, complex ones 128."""
    return all(jnp.finfo(x.dtype).bits >= 64 for x in arrays if is_inexact(x))


def coarsest(traced: ClosedJaxpr, wide: str) -> float:
    """The eps of the coarsest floating arithmetic in a program, float32 at most."""
    dtypes = [jnp.dtype("float64"), jnp.dtype(wide)]
    dtypes += [v.aval.dtype for e in equations(traced) for v in e.outvars if is_inexact(v.aval)]
    widths = {min(max(jnp.finfo(dtype).bits, 32), 64) for dtype in dtypes}
    return float(jnp.finfo(f"float{min(widths)}").eps)
