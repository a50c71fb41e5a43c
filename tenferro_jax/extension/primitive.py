"""A call of an extension op; and an extension family as a JAX primitive, made once, with its rules
in one fixed order.

A call runs in one of four ways:

- Where arrays are traced it is an equation (`bind`), which `_lower` writes into the program.
- Concrete arrays go to a program of their own, traced once for dtypes and shapes (`compiled`);
- or, where the op has a kernel that computes NumPy arrays, to that at once (`_impl`);
- or to `eager_execute`, where no other route is there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import jax_seam
from ..errors import InvalidConfig
from ..jax_seam import Aval, IrValue, LoweringContext
from ..shapes import TensorMeta, as_operand, is_inexact, is_plain, meta_of
from .carrier import BatchLevel, Extension, checked_form
from .contract import LOWERING, Can, ExtensionOp, LinearInput, in_method, inherited, running
from .definitions import kept
from .execution import forward, run_at_once, run_host
from .family import parse_family_id
from .kernels import NO_RUNTIMES, ExtensionRuntimeSet, RouteKind
from .routes import TUNED, here, route_of, splits
from .rules import (
    NO_RULES,
    AnyRule,
    ExtensionRuleSet,
    linearize,
    require_rules,
    require_slots,
    transposed,
)
from .sharding import output_shardings, split_call


def apply(
    op: ExtensionOp | Extension,
    *arrays: jax.typing.ArrayLike,
    rules: ExtensionRuleSet | None = None,
    runtimes: ExtensionRuntimeSet | None = None,
) -> tuple[jax.Array, ...]:
    """Run an extension op on arrays, under any JAX transform.

    Args:
      op: the op.
      *arrays: one array for each input: jax or NumPy arrays, tracers; Python numbers and lists are
        converted.
      rules: AD rules to use if this call is differentiated, for families whose class has none; they
        are captured now.
      runtimes: the kernels and routes that may be used, instead of those of the op's class.

    If a call in an AD rule leaves out `rules` or `runtimes`, it uses those that were given to the
    call that is differentiated.

    Returns:
      A tuple with one array for each output.

    Raises:
      InvalidConfig: a wrong number of arrays; a route returned another dtype or shape than
        infer_output_meta; or a call in the lowering of an extension.
      DTypeError: a 64-bit NumPy array while 64-bit types are off.
      ADRuleError: later, if the call is differentiated and neither the op's class nor `rules` has a
        rule.
      DuplicateRule: later, if the call is differentiated and both have a rule.
      BackendFailure: eager_execute raised; inside a user's jit this is a JaxRuntimeError, see
        `host_errors`.

    Cost: on concrete arrays about 2 us more than a call of an equal jitted function, and 5 us to
    make a new op object;
      nothing at run time inside jit.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import max_plus
      >>> from ext_tropical import TropicalEinsum
      >>> a = np.float32([[0, 1], [2, 0]])
      >>> apply(TropicalEinsum(max_plus, "ij,jk->ik"), a, a)[0].tolist()
      [[3.0, 1.0], [2.0, 3.0]]
    """
    method = running.get()
    if method is not None:
        if method.name == LOWERING and not getattr(op, "is_part", False):
            raise InvalidConfig(
                where=method.where,
                given=f"a call of extension {getattr(op, 'family_id', repr(op))}",
                needed="standard ops only",
                fix="Write out the computation of the inner extension; only AD rules may call "
                "extensions.",
                clause="X8.5",
            )
        if inherited.value is not None:
            outer_rules, outer_runtimes = inherited.value
            rules = outer_rules if rules is None else rules
            runtimes = (
                outer_runtimes if runtimes is None and isinstance(op, ExtensionOp) else runtimes
            )
            with inherited(None):
                return apply(op, *arrays, rules=rules, runtimes=runtimes)
    if rules is not None and type(rules) is not ExtensionRuleSet:
        require_rules(rules, "apply of an extension")
    carrier = Extension.of(op, runtimes)
    if all(map(is_plain, arrays)):
        operands: Any = arrays
    else:
        where = f"extension {carrier.family_id}, input"
        operands = [as_operand(a, f"{where} {i}") for i, a in enumerate(arrays)]
        if any(isinstance(a, jax.core.Tracer) for a in operands):
            return bind(carrier, rules or NO_RULES, jax_seam.vary_together(operands))
    if carrier.at_once:  # through JAX, so that a trace around a call of concrete arrays sees it
        return bind(carrier, rules or NO_RULES, operands)
    return compiled(carrier, len(TUNED))(*operands)


def bind(
    carrier: Extension, rules: ExtensionRuleSet, arrays: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """A call as an equation of the trace around it; concrete arrays go to `_impl`."""
    mark = jax_seam.splittable() if carrier.op.can(Can.SHARD) else None
    primitive = family_primitive(carrier.family_id)
    return tuple(primitive.bind(*arrays, op=carrier, rules=rules, splittable=mark))


def save_families(*family_ids: str) -> Any:
    """A policy for jax.checkpoint: keep the outputs of these extension families, recompute the
    rest.

    It affects only calls that are differentiated, because outputs get their names when an AD rule
    is applied. With the flag `jax_remat3` JAX 0.10.2 and 0.12.0.1 recompute named values.

    Example:
      >>> policy = save_families("tenferro-ext-tropical.einsum.v1")
      >>> f = jax.checkpoint(lambda x: x * 2, policy=policy)
    """
    for family_id in family_ids:
        parse_family_id(family_id)
    return jax.checkpoint_policies.save_only_these_names(*family_ids)


@kept(1024)
def compiled(carrier: Extension, tuned: int) -> Callable[..., tuple[jax.Array, ...]]:
    """The function that runs a carrier on concrete arrays, made again when a route was tuned since,
    because it may take that route. Rules are not part of the key: they do not change the result.
    """
    op = carrier.op
    hosted = op.can(Can.RUN_ON_HOST)
    if hosted and not op.can(Can.LOWER) and carrier.runtimes == NO_RUNTIMES:  # no other route
        return lambda *arrays: tuple(run_host(carrier, arrays))

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...] | None:
        """The outputs; None if the host computes them: outside jit, so that the author's exception
        arrives unchanged.
        """
        if jax_seam.is_eager():  # under jax_debug_nans JAX looks for the step that made NaN
            return forward(carrier, here(), arrays)
        if hosted:
            metas = tuple(map(meta_of, arrays))
            carrier.infer(*metas)  # refuses wrong inputs before the lowering gets them
            if route_of(carrier, metas, here()).kind is RouteKind.HOST:
                return None
        return bind(carrier, NO_RULES, arrays)

    run.__name__ = run.__qualname__ = carrier.family_id
    jitted = jax.jit(run)

    def call(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        outs = jitted(*arrays)
        return tuple(run_host(carrier, arrays)) if outs is None else outs

    return call if hosted else jitted


# --- the primitive --------------------------------------------------------------------------------

_primitives: dict[str, Any] = {}
_lock = threading.Lock()


def family_primitive(family_id: str) -> Any:
    """The JAX primitive of a family, made at first use."""
    with _lock:
        if family_id not in _primitives:
            _primitives[family_id] = jax_seam.make_primitive(
                family_id,
                abstract_eval=_abstract_eval,
                impl=_impl,
                jvp=_jvp,
                transpose=_transpose,
                batch=_batch,
                lowering=_lower,
            )
        return _primitives[family_id]


def _abstract_eval(*avals: Aval, op: Extension, **_: object) -> list[Aval]:
    metas = op.infer(*(TensorMeta(a.dtype, tuple(a.shape)) for a in avals))
    return jax_seam.output_avals(metas, avals, functools.partial(output_shardings, op))


def _impl(*arrays: jax.Array, op: Extension, **_: object) -> list[jax.Array]:
    with jax.disable_jit(False), inherited(None):
        tuned = len(TUNED)
        outs = run_at_once(op, arrays, tuned) if op.at_once else None
        return list(compiled(op, tuned)(*map(_jax_value, arrays))) if outs is None else outs


def _lower(ctx: LoweringContext, *args: IrValue, op: Extension, **_: object) -> Any:
    site = jax_seam.site_of(ctx)

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        split = splits(op, tuple(map(meta_of, arrays)), site)
        if split is None:
            return forward(op, site._replace(splits=False), arrays)
        return split_call(op, split, lambda *xs: bind(op, NO_RULES, xs), apply)(*arrays)

    return jax_seam.lower_as_call(ctx, args, op.family_id, run, op.attributes)


# --- JVP ------------------------------------------------------------------------------------------


def _inheriting(rules: ExtensionRuleSet, op: Extension) -> Any:
    """The scope of an AD rule; if there is nothing to inherit, it shares jit's caches with the code
    around it.
    """
    return inherited((rules, op.given) if rules != NO_RULES or op.given is not None else None)


def _jax_value(value: object) -> Any:
    """A value for a rule: NumPy arrays and Python numbers become JAX arrays, so that all of
    jax.numpy works on them.
    """
    return (
        jnp.asarray(value)
        if isinstance(value, np.ndarray | np.generic | int | float | complex)
        else value
    )


def _differentiable_form(rule: AnyRule, op: Extension, metas: Sequence[TensorMeta]) -> Extension:
    """The carrier of the rule's differentiable form, whose first outputs have the metas of the op's
    own.
    """
    where = op.op.place_of("differentiable_form")
    with in_method(op.op, "differentiable_form"):
        form = rule.form_for(op.op, op.of_one(metas))
    if form is op.op:
        return op
    if not isinstance(form, ExtensionOp) or form.family_id != op.family_id:
        raise InvalidConfig(
            where=where,
            given=repr(form),
            needed=f"an op of family {op.family_id}",
            fix="Return the op itself, or an op of its family with more outputs.",
        )
    carrier = op.with_op(form)
    have, want = carrier.infer(*metas)[: op.op.output_count], op.infer(*metas)
    if have != want:
        raise InvalidConfig(
            where=where,
            given=f"an op with outputs {', '.join(map(str, have)) or 'none'}",
            needed=f"one whose first outputs are {', '.join(map(str, want))}, the outputs of the "
            f"op itself",
            clause="X10.12",
        )
    return carrier


def _jvp(
    primals: Sequence[jax.Array],
    tangents: Sequence[object],
    *,
    op: Extension,
    rules: ExtensionRuleSet,
    **_: object,
) -> tuple[list[jax.Array], list[jax.Array]]:
    rule = rules.rule_of(op.op)
    primals = list(map(_jax_value, primals))
    metas = [meta_of(x) for x in primals]
    if not any(map(is_inexact, op.infer(*metas))):  # no tangents, so no rule is needed
        outs = list(bind(op, rules, primals))
        return outs, list(map(jax_seam.zero_tangent, outs))
    if rule is None:
        raise op.op.missing_rule("jvp")
    form = _differentiable_form(rule, op, metas)
    # Named by family, so that a checkpoint policy can save them. Only here, because JAX cannot
    # transpose a name.
    outs = [jax_seam.checkpoint_name(out, op.family_id) for out in bind(form, rules, primals)]
    given = [_jax_value(jax_seam.none_if_zero(t)) for t in tangents]
    with _inheriting(rules, op):
        results = jax_seam.run_on_automatic_axes(
            lambda *values: linearize(rule, form.op, form.batching, *values),
            (primals, outs, given),
            lambda _: [jax.typeof(out).sharding for out in outs],
        )
    count = op.op.output_count  # what follows are residuals
    require_slots(op.op, "linearize", results, list(map(jax_seam.tangent_meta, outs)), count)
    return outs[:count], [
        jax_seam.zero_tangent(out) if t is None else jax_seam.vary_as(t, jax.typeof(out))
        for out, t in zip(outs[:count], results[:count], strict=True)
    ]


# --- transpose ------------------------------------------------------------------------------------


def _transpose(
    cotangents: Sequence[object],
    *args: Any,
    op: Extension,
    rules: ExtensionRuleSet,
    **_: object,
) -> list[jax.Array | None]:
    rule = rules.rule_of(op.op)
    if rule is None:
        raise op.op.missing_rule("transpose")
    mask = tuple(jax_seam.is_linear_input(a) for a in args)
    given = [_jax_value(jax_seam.none_if_zero(c)) for c in cotangents]
    inputs = [
        LinearInput(TensorMeta(a.aval.dtype, tuple(a.aval.shape))) if m else _jax_value(a)
        for a, m in zip(args, mask, strict=True)
    ]
    results: list[Any] = [None] * len(args)
    if any(c is not None for c in given):
        with _inheriting(rules, op):
            results = jax_seam.run_on_automatic_axes(
                lambda *values: transposed(rule, op.op, op.batching, *values),
                (given, inputs),
                lambda _: [a.aval.sharding if m else None for a, m in zip(args, mask)],
            )
    wanted = [x.meta if isinstance(x, LinearInput) else None for x in inputs]
    require_slots(op.op, "transpose_rule", results, wanted, len(args))
    return [
        None if not m else jax_seam.zero_cotangent(a) if r is None else jax_seam.vary_as(r, a.aval)
        for a, m, r in zip(args, mask, results, strict=True)
    ]


# --- batching -------------------------------------------------------------------------------------


def _batch(
    axis: Any,  # JAX's data of the axis of a vmap
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    op: Extension,
    rules: ExtensionRuleSet,
    **_: object,
) -> tuple[Sequence[jax.Array], Sequence[int | None]]:
    if all(d is None for d in dims):
        return bind(op, rules, args), [None] * op.output_count
    in_axes = tuple(None if d is None else int(d) for d in dims)
    name = axis.name if isinstance(axis.name, str | tuple) else None
    level = BatchLevel(in_axes, name, jax_seam.batch_place(axis))
    is_empty = isinstance(axis.size, int) and axis.size == 0  # which a form may refuse
    with in_method(op.op, "batched()"):
        own = None if op.batching or is_empty else op.op.batched(in_axes)
    if own is None:
        return bind(op.batch(level), rules, args), [0] * op.output_count
    form, out_axes = checked_form(op, own, op.batch(level), [meta_of(a) for a in args])
    return bind(form, rules, args), out_axes
