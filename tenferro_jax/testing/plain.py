"""What JAX itself cannot do: the same in plain JAX, without an extension, and equations that JAX
does not differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..both_modes import replaced
from ..extension.authored import is_float0
from ..extension.carrier import Extension, lowering_body
from ..extension.contract import ExtensionOp, lowered
from ..extension.function_extension import FunctionExtension
from ..extension.function_parts import VALUE
from ..extension.routes import equations
from ..extension.rules import AnyRule, absent, linearize
from ..jax_seam import ClosedJaxpr, Eqn, as_function, inner_jaxprs, name_of, open_jaxpr
from ..shapes import PyTree, is_inexact, meta_of, struct
from .report import failure, one_line

Outputs = tuple[jax.Array, ...]
Plain = Callable[..., Outputs]


def plain_form(op: ExtensionOp, rule: AnyRule | None) -> Plain:
    """The op as a function of plain JAX: its lowering, with a reverse rule a jax.custom_vjp, with
    another rule a jax.custom_jvp.
    """

    def body(*xs: jax.Array) -> Outputs:
        return tuple(lowered(op, xs) or ())

    function = op.function if isinstance(op, FunctionExtension) else None
    if function is not None and function.fwd is not None:
        return _with_reverse_rule(op, body)
    if rule is None or (function is not None and function.jvp is None):
        return body
    return _with_forward_rule(op, rule, body)


def _with_reverse_rule(op: Any, body: Plain) -> Plain:
    """The function of an op with the author's fwd and bwd."""
    form = jax.custom_vjp(body)
    fwd, bwd = op.reverse
    places = op.arguments.unflatten(range(op.input_count))

    def forward(*xs: jax.Array) -> tuple[Outputs, PyTree]:
        results, residuals = fwd(*op.arguments.unflatten(xs))
        return tuple(jax.tree.leaves(results)), residuals

    def backward(residuals: PyTree, cotangents: Outputs) -> tuple[Any, ...]:
        made = bwd(residuals, op.results.unflatten(cotangents))
        return tuple(op.function.cotangents(made, places, "bwd"))

    form.defvjp(forward, backward)
    return lambda *xs: tuple(form(*xs))


def _with_forward_rule(op: ExtensionOp, rule: AnyRule, body: Plain) -> Plain:
    """The lowering of an op with the rule of its family."""

    def tangents_of(primals: Outputs, tangents: Outputs) -> tuple[Outputs, tuple[Any, ...]]:
        more = rule.form_for(op, [meta_of(x) for x in primals])
        outs = tuple(lowered(more, primals) or ())
        given = [None if is_float0(t) else t for t in tangents]
        made = linearize(rule, more, (), primals, outs, given)
        moved = [_zero(y) if absent(t) else t for y, t in zip(outs, made, strict=True)]
        return outs[: op.output_count], tuple(moved[: op.output_count])

    form = jax.custom_jvp(body)
    form.defjvp(tangents_of)
    return lambda *xs: tuple(form(*xs))


def _zero(y: jax.Array) -> Any:
    return jnp.zeros_like(y) if is_inexact(y) else np.zeros(y.shape, jax.dtypes.float0)


# --- what JAX does not differentiate --------------------------------------------------------------

RULED = ("custom_jvp_call", "custom_vjp_call", "both_modes_call", "both_modes_tangent")


def undifferentiated(fn: Callable[..., PyTree], *args: Any) -> str:
    """The first equation of a program that JAX does not differentiate where it stands alone, and
    what JAX says; "" if there is none. Equations with a rule of an author are not tried.
    """
    for eqn in _leaves(jax.make_jaxpr(fn)(*args)):
        inputs = [v.aval for v in eqn.invars]
        moving = [i for i, aval in enumerate(inputs) if is_inexact(aval)]
        if not moving or not any(is_inexact(v.aval) for v in eqn.outvars):
            continue
        structs = [struct(meta_of(aval)) for aval in inputs]
        for mask in (moving, *([i] for i in moving)):  # JAX has other code for missing tangents
            if error := failure(jax.jit(_tangents(eqn, mask)).lower, *structs):
                return f"JAX does not differentiate {eqn.primitive.name}: {one_line(error)}"
    return ""


def _tangents(eqn: Eqn, moving: Sequence[int]) -> Callable[..., PyTree]:
    """The tangents of an equation by these inputs."""

    def run(*inputs: jax.Array) -> PyTree:
        def some(*moved: jax.Array) -> PyTree:
            return as_function(eqn)(*replaced(inputs, moving, moved))

        at = tuple(inputs[i] for i in moving)
        return jax.jvp(some, at, at)[1]

    return run


def _leaves(traced: ClosedJaxpr) -> Iterator[Eqn]:
    """The equations of JAX alone: those with a rule of an author inside are opened."""
    for eqn in open_jaxpr(traced)[0].eqns:
        carrier = eqn.params.get("op")
        if isinstance(carrier, Extension):
            if _is_differentiated(carrier.op):
                structs = [struct(meta_of(v.aval)) for v in eqn.invars]
                yield from _leaves(
                    jax.make_jaxpr(lambda *xs, c=carrier: lowering_body(c, xs))(*structs)
                )
        elif name_of(eqn) in RULED:
            pass
        elif any(map(_has_rule, inner_jaxprs(eqn))):
            for inner in inner_jaxprs(eqn):
                yield from _leaves(inner)
        else:
            yield eqn


def _has_rule(traced: ClosedJaxpr) -> bool:
    return any(
        eqn.primitive.name in RULED or isinstance(eqn.params.get("op"), Extension)
        for eqn in equations(traced)
    )


def _is_differentiated(op: ExtensionOp) -> bool:
    """Whether JAX differentiates what the op runs."""
    return isinstance(op, FunctionExtension) and (op.stage != VALUE or op.function.derives)
