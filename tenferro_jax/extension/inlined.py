"""A function op inside other code of an author, where it is no op: its function, with its rules and
kernels.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from ..shapes import meta_of
from .adopted import PyTree, filled
from .bound import bound
from .carrier import Extension
from .function_results import batchable
from .routes import choose_route, chosen, kernel_body
from .runtimes import RouteKind
from .scope import lowering_at

if TYPE_CHECKING:
    from .function_op import FunctionOp


def inlined(f: FunctionOp, args: tuple[PyTree, ...], payload: dict[str, Any]) -> PyTree:
    """The value of a function op as a part of another op: plain JAX, with the rules it has; with
    its kernel where the other op is lowered for a platform that has one.
    """
    function = f.functions
    payload = {name: p for name, (_, p) in function.payload.items()} | payload

    def body(*xs: PyTree) -> PyTree:
        made = function.body(*xs, **payload)
        if made is None and function.host is not None and function.infer is not None:
            structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), xs)
            host = functools.partial(function.host, **payload)
            like = function.infer(*structs, **payload)
            return jax.pure_callback(host, like, *xs, vmap_method="sequential")
        return made

    def computed(*xs: PyTree) -> PyTree:
        site = lowering_at.value
        if site is None or not f.op.runtimes.kernels(f.op.family_id, site.platform):
            return body(*xs)
        op, arrays = bound(f, xs, payload)
        carrier = Extension.of(op)
        route = choose_route(carrier, site, tuple(map(meta_of, arrays)))
        if route.kind is not RouteKind.KERNEL:
            return body(*xs)
        return op.results.unflatten(kernel_body(carrier, chosen(carrier, route), arrays))

    def moved(primals: PyTree, tangents: PyTree) -> tuple[PyTree, PyTree]:
        if function.derive or function.transpose is not None:
            return jax.jvp(body, primals, tangents)
        if function.jvp is None:
            raise f.op().missing_rule("jvp")
        out = computed(*primals)
        made = function.jvp(primals, out, tangents, **payload)
        nesting: Any = jax.tree.structure(out)
        given = function.flat(nesting, made, "defjvp, which returned")
        return out, nesting.unflatten(filled(jax.tree.leaves(out), given))

    value = batchable(function, computed, payload)
    if function.fwd is not None:
        backward: Any = jax.custom_vjp(value)
        backward.defvjp(
            functools.partial(function.fwd, **payload), functools.partial(function.bwd, **payload)
        )
        return backward(*args)
    opaque = function.vmap is not None or len(f.op.runtimes) > 0
    if (function.derive or function.transpose is not None) and not opaque:
        return body(*args)
    forward: Any = jax.custom_jvp(value)
    forward.defjvp(moved)
    return forward(*args)
