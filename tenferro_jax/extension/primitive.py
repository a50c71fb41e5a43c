"""An extension family as a JAX primitive: family_id -> Primitive, made once, with its rules in one fixed order."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import jax_seam
from ..errors import ADRuleError, BackendFailure, InvalidConfig, MetaMismatchError, NotDifferentiableError, TenferroError
from ..jax_seam import Site
from ..meta import TensorMeta, as_operand, meta_of, struct
from ..ops.builder import JaxBuilder
from .batching import BatchLevel, Levels, host_over_levels, over_levels
from .op import Extension, ExtensionOp, checked_sequence, has_host_form, has_lowering, lowered, nested_extension
from .rules import NO_RULES, NOT_DIFFERENTIABLE, ExtensionAdRule, ExtensionRuleSet, LinearInput, LinearMode, RuleContext
from .runtimes import Route, RouteKind, choose_route

_lowering_family: contextvars.ContextVar[str | None] = contextvars.ContextVar("family whose lowering is being traced", default=None)


# --- the entry point -----------------------------------------------------------------------------------------------


def apply(op: ExtensionOp | Extension, *arrays: Any, rules: ExtensionRuleSet = NO_RULES) -> tuple[Any, ...]:
    """Run an extension op on arrays, under any JAX transform.

    Args:
      op: the op.
      *arrays: one array for each input: jax or NumPy arrays, tracers; Python numbers and lists are converted.
      rules: the AD rules to use if this call is differentiated; they are captured now.

    Returns:
      A tuple with one array for each output.

    Raises:
      ArityError: a wrong number of arrays.
      X64Error: a 64-bit NumPy array while 64-bit types are off.
      MetaMismatchError: a route returned something else than infer_output_meta promised.
      ADRuleError: later, if the call is differentiated and `rules` has no rule for the family.
      BackendFailure: eager_execute raised; inside a user's jit this is a JaxRuntimeError, see `host_errors`.

    Cost: about 4 us over the op itself on concrete arrays; nothing at run time inside jit.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import max_plus
      >>> from ext_tropical.einsum_op import TropicalEinsum
      >>> a = np.float32([[0, 1], [2, 0]])
      >>> apply(TropicalEinsum(max_plus, "ij,jk->ik"), a, a)[0].tolist()
      [[3.0, 1.0], [2.0, 3.0]]
    """
    carrier = Extension.of(op)
    outer = _lowering_family.get()
    if outer is not None:
        raise nested_extension(outer, carrier.family_id)
    if not isinstance(rules, ExtensionRuleSet):
        raise InvalidConfig(
            where=f"apply of extension {carrier.family_id}",
            given=f"rules={rules!r}",
            needed="an ExtensionRuleSet",
            fix="Wrap the rules: ExtensionRuleSet(rule, ...).",
        )
    if any(isinstance(a, jax.core.Tracer) for a in arrays):
        operands = [as_operand(a, _operand(carrier, i)) for i, a in enumerate(arrays)]
        return tuple(_bind(carrier, rules, jax_seam.vary_together(operands)))
    operands = [a if isinstance(a, jax.Array) else as_operand(a, _operand(carrier, i)) for i, a in enumerate(arrays)]
    return _eager(carrier)(*operands)


def _operand(carrier: Extension, i: int) -> str:
    return f"extension {carrier.family_id}, input {i}"


def _bind(carrier: Extension, rules: ExtensionRuleSet, arrays: Sequence[Any]) -> list[Any]:
    if len(arrays) != carrier.input_count:
        carrier.infer(*map(meta_of, arrays))  # raises the ArityError
    return family_primitive(carrier.family_id).bind(*arrays, op=carrier, rules=rules)


def save_families(*family_ids: str) -> Any:
    """A policy for jax.checkpoint: keep the outputs of these extension families, recompute the rest.

    It concerns calls that are differentiated: outputs get their name where an AD rule is applied.

    Example:
      >>> policy = save_families("tenferro-ext-tropical.einsum.v1")
      >>> f = jax.checkpoint(lambda x: x * 2, policy=policy)
    """
    return jax.checkpoint_policies.save_only_these_names(*family_ids)


@functools.lru_cache(maxsize=1024)
def _eager(carrier: Extension) -> Callable[..., tuple[Any, ...]]:
    """What runs a carrier on concrete arrays. Rules are no part of the key: they do not change what is computed."""
    op = carrier.op
    if has_host_form(op) and not has_lowering(op) and not op.kernels:
        return lambda *arrays: tuple(_run_host(carrier, arrays))
    primitive = family_primitive(carrier.family_id)

    def run(*arrays: Any) -> tuple[Any, ...]:
        if len(arrays) != carrier.input_count:
            carrier.infer(*map(meta_of, arrays))
        return tuple(primitive.bind(*arrays, op=carrier, rules=NO_RULES))

    run.__name__ = run.__qualname__ = carrier.family_id
    return jax.jit(run)


# --- the primitive -------------------------------------------------------------------------------------------------

_primitives: dict[str, Any] = {}
_lock = threading.Lock()


def family_primitive(family_id: str) -> Any:
    """The JAX primitive of a family, made at first use."""
    with _lock:
        if family_id not in _primitives:
            _primitives[family_id] = jax_seam.make_primitive(
                family_id,
                jax_seam.Rules(
                    abstract_eval=_abstract_eval,
                    impl=_impl,
                    jvp=_jvp,
                    transpose=_transpose,
                    batch=_batch,
                    lowering=_lower,
                ),
            )
        return _primitives[family_id]


def _abstract_eval(*avals: Any, op: Extension, rules: ExtensionRuleSet) -> list[Any]:
    del rules
    metas = op.infer(*(TensorMeta(a.dtype, tuple(a.shape)) for a in avals))
    return jax_seam.output_avals(metas, avals, functools.partial(_output_shardings, op))


def _output_shardings(carrier: Extension, inputs: list[Any]) -> list[Any]:
    given = None if carrier.batching else carrier.op.infer_output_sharding(inputs)
    if given is not None:
        return list(given)
    if not has_lowering(carrier.op):
        raise InvalidConfig(
            where=f"extension {carrier.family_id} on an explicit mesh",
            given="an op without lowering and without infer_output_sharding",
            needed="a way to know the output shardings",
            fix="Override infer_output_sharding, or call inside jax.shard_map or jax.sharding.auto_axes.",
        )
    return [out.sharding for out in jax.eval_shape(lambda *xs: _lowering_body(carrier, xs), *inputs)]


def _impl(*arrays: Any, op: Extension, rules: ExtensionRuleSet) -> list[Any]:
    del rules  # they never key an executable
    if has_host_form(op.op) and not has_lowering(op.op) and not op.op.kernels:
        return _run_host(op, arrays)
    return jax_seam.compile_and_run(family_primitive(op.family_id), *arrays, op=op, rules=NO_RULES)


def _lower(ctx: Any, *args: Any, op: Extension, rules: ExtensionRuleSet) -> Any:
    del rules
    site = jax_seam.site_of(ctx)
    return jax_seam.lower_as_call(ctx, args, op.family_id, lambda *arrays: _forward(op, site, arrays), op.attributes)


# --- forward -------------------------------------------------------------------------------------------------------


def _forward(carrier: Extension, site: Site, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The traced body of an extension at a lowering site, checked against infer_output_meta."""
    route = choose_route(carrier.op, site)
    if route.kind is RouteKind.KERNEL:
        what, kernel = f"{site.platform} kernel", carrier.op.kernels[site.platform]

        def one(*element: Any) -> tuple[Any, ...]:
            return checked_sequence(kernel(carrier.op, *element), carrier.op, what, carrier.output_count)

        return _checked(carrier, over_levels(carrier.batching, one)(*arrays), arrays, what)
    if route.kind is RouteKind.LOWERING:
        body = _lowering_body(carrier, arrays)
        if body is not None:
            return _checked(carrier, body, arrays, "lower_to_standard_ops")
        choose_route(carrier.op, site, lowering_declined=True)
    return _callback(carrier, arrays)


def _lowering_body(carrier: Extension, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
    token = _lowering_family.set(carrier.family_id)
    declined = False

    def one(*element: Any) -> tuple[Any, ...]:
        nonlocal declined
        outs = lowered(carrier.op, element)
        declined = outs is None
        return () if outs is None else outs

    try:
        outs = over_levels(carrier.batching, one)(*arrays)
    finally:
        _lowering_family.reset(token)
    return None if declined else tuple(outs)


def route_of(carrier: Extension, metas: Sequence[TensorMeta], site: Site) -> Route:
    """The route that a carrier takes at a site, found without running anything."""
    route = choose_route(carrier.op, site)
    if route.kind is not RouteKind.LOWERING:
        return route
    structs = [jax.ShapeDtypeStruct(m.shape, m.dtype) for m in metas]
    declined = jax.eval_shape(lambda *xs: _lowering_body(carrier, xs), *structs) is None
    return choose_route(carrier.op, site, lowering_declined=declined)


def _checked(carrier: Extension, outs: Sequence[Any], arrays: Sequence[Any], what: str) -> tuple[Any, ...]:
    want = carrier.infer(*map(meta_of, arrays))
    have = tuple(meta_of(out) for out in outs)
    if have != want:
        raise _mismatch(carrier, what, have, want)
    return tuple(outs)


def _mismatch(carrier: Extension, what: str, have: Sequence[TensorMeta], want: Sequence[TensorMeta]) -> MetaMismatchError:
    return MetaMismatchError(
        where=f"{what} of extension, family_id={carrier.family_id}",
        given=f"outputs {', '.join(map(str, have)) or 'none'}",
        needed=f"{', '.join(map(str, want))}, as infer_output_meta says",
        fix="Make the two agree.",
    )


def _run_host(carrier: Extension, arrays: Sequence[Any]) -> list[Any]:
    """Run eager_execute on concrete arrays now; an exception of the author is kept as the cause."""
    metas = carrier.infer(*map(meta_of, arrays))
    outs = _host_outputs(carrier, metas, [np.asarray(a) for a in arrays])
    placement = jax_seam.replicated_placement(arrays)
    return [jnp.asarray(out) if placement is None else jax.device_put(out, placement) for out in outs]


def _callback(carrier: Extension, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Call eager_execute from inside a compiled program."""
    metas = carrier.infer(*map(meta_of, arrays))
    structs = tuple(map(struct, metas))

    def on_host(*xs: Any) -> tuple[np.ndarray, ...]:
        # Sizes are concrete here even where the trace had symbols.
        return tuple(_host_outputs(carrier, metas, [np.asarray(x) for x in xs]))

    return tuple(jax.pure_callback(on_host, structs, *arrays, vmap_method="sequential"))


def _host_outputs(carrier: Extension, metas: Sequence[TensorMeta], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [array.view() for array in arrays]  # the author reads, the caller's own array stays as it is
    for array in arrays:
        array.setflags(write=False)
    depth = len(carrier.batching)
    want = tuple(TensorMeta(m.dtype, m.shape[depth:]) for m in metas)

    def one(*element: np.ndarray) -> list[np.ndarray]:
        returned = checked_sequence(carrier.op.eager_execute(*element), carrier.op, "eager_execute", carrier.output_count)
        outs = [np.asarray(out) for out in returned]
        have = tuple(TensorMeta(out.dtype, out.shape) for out in outs)
        if have != want:
            raise _mismatch(carrier, "eager_execute", have, want)
        return outs

    try:
        return list(host_over_levels(carrier.batching, one, metas)(*arrays))
    except TenferroError:
        raise
    except Exception as error:
        raise BackendFailure(
            where=f"eager_execute of extension {carrier.family_id}",
            given=f"{type(error).__name__}: {error}",
            needed="an execution without an exception",
            fix="See the cause; it is the author's own exception.",
        ) from error


# --- JVP -----------------------------------------------------------------------------------------------------------


class RuleBuilder(JaxBuilder):
    """Emits an AD rule into JAX; an extension that the rule emits is called with the outer call's rule set."""

    def __init__(self, rules: ExtensionRuleSet):
        self._rules = rules

    def add(self, op: Any, *values: Any) -> tuple[Any, ...]:
        """Apply a standard op or an extension."""
        if isinstance(op, ExtensionOp | Extension):
            return apply(op, *values, rules=self._rules)
        return super().add(op, *values)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, op: Extension, rules: ExtensionRuleSet) -> tuple[list[Any], list[Any]]:
    rule = rules.lookup_rule(op.family_id)
    if rule is None:
        raise ADRuleError(op.family_id, "jvp")
    form = Extension(rule.differentiable_form(op.op), op.batching)
    # Named by family, so that a checkpoint policy can save them. Only here: JAX cannot transpose a name.
    outs = [jax_seam.checkpoint_name(out, op.family_id) for out in _bind(form, rules, primals)]
    given = [jax_seam.none_if_zero(t) for t in tangents]
    results = _linearize(rule, form.op, form.batching, rules, primals, outs, given)
    if any(t is NOT_DIFFERENTIABLE for t in results[: op.output_count]):
        raise _not_differentiable(op.family_id, "jvp", "output", results)
    kept = list(zip(outs, results, strict=True))[: op.output_count]
    return [out for out, _ in kept], [jax_seam.zero_tangent(out) if t is None else t for out, t in kept]


def _not_differentiable(family_id: str, kind: str, slot: str, results: Sequence[Any]) -> NotDifferentiableError:
    index = next(i for i, r in enumerate(results) if r is NOT_DIFFERENTIABLE)
    return NotDifferentiableError(
        family_id,
        kind,
        given=f"family_id {family_id}: the rule says NOT_DIFFERENTIABLE for {slot} {index}",
        needed="a slot that has a derivative",
        fix="Differentiate with respect to other inputs, or stop the gradient with jax.lax.stop_gradient.",
    )


def _present(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(v for v in values if v is not None and v is not NOT_DIFFERENTIABLE)


def _restored(slots: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """`slots` with every present entry replaced, in order, by `values`; None and NOT_DIFFERENTIABLE stay."""
    source = iter(values)
    return [s if s is None or s is NOT_DIFFERENTIABLE else next(source) for s in slots]


def _linearize(
    rule: ExtensionAdRule,
    op: ExtensionOp,
    levels: Levels,
    rules: ExtensionRuleSet,
    primals: Sequence[Any],
    outs: Sequence[Any],
    tangents: Sequence[Any],
) -> list[Any]:
    """The rule's tangents, with the rule itself mapped over the batch levels."""
    if not levels:
        results = rule.linearize(op, RuleBuilder(rules), tuple(primals), tuple(outs), tuple(tangents), RuleContext(op.family_id))
        return list(checked_sequence(results, op, "linearize", op.output_count))
    level, rest = levels[0], levels[1:]
    slots: list[Any] = []

    def one(primals: Any, outs: Any, given: Any) -> tuple[Any, ...]:
        slots[:] = _linearize(rule, op, rest, rules, primals, outs, _restored(tangents, given))
        return _present(slots)

    axes = tuple(axis for axis, t in zip(level.in_axes, tangents, strict=True) if t is not None)
    mapped = level.vmap(one, in_axes=(level.in_axes, 0, axes))(tuple(primals), tuple(outs), _present(tangents))
    return _restored(slots, mapped)


# --- transpose -----------------------------------------------------------------------------------------------------


def _transpose(cotangents: Sequence[Any], *args: Any, op: Extension, rules: ExtensionRuleSet) -> list[Any]:
    rule = rules.lookup_rule(op.family_id)
    if rule is None:
        raise ADRuleError(op.family_id, "transpose")
    mask = tuple(jax_seam.is_linear_input(a) for a in args)
    given = [jax_seam.none_if_zero(c) for c in cotangents]
    inputs = [LinearInput(TensorMeta(a.aval.dtype, tuple(a.aval.shape))) if m else a for a, m in zip(args, mask, strict=True)]
    results = [None] * len(args) if not _present(given) else _transposed(rule, op.op, op.batching, rules, given, inputs)
    if any(m and r is NOT_DIFFERENTIABLE for m, r in zip(mask, results, strict=True)):
        raise _not_differentiable(op.family_id, "transpose", "input", results)
    return [None if not m else jax_seam.zero_cotangent(a) if r is None else r for a, m, r in zip(args, mask, results, strict=True)]


def _transposed(
    rule: ExtensionAdRule,
    op: ExtensionOp,
    levels: Levels,
    rules: ExtensionRuleSet,
    cotangents: Sequence[Any],
    inputs: Sequence[Any],
) -> list[Any]:
    """The rule's cotangents, mapped over the batch levels; an input that a level does not map sums over it."""
    mask = tuple(isinstance(x, LinearInput) for x in inputs)
    if not levels:
        results = rule.transpose_rule(op, RuleBuilder(rules), tuple(cotangents), tuple(inputs), LinearMode(mask), RuleContext(op.family_id))
        results = checked_sequence(results, op, "transpose_rule", op.input_count)
        return [r if m else None for r, m in zip(results, mask, strict=True)]
    level, rest = levels[0], levels[1:]
    metas = level.inner([meta_of(x) for x in inputs])
    slots: list[Any] = []

    def one(given: Any, known: Any) -> tuple[Any, ...]:
        values = iter(known)
        element = [LinearInput(meta) if m else next(values) for meta, m in zip(metas, mask, strict=True)]
        slots[:] = _transposed(rule, op, rest, rules, _restored(cotangents, given), element)
        return _present(slots)

    known = [(x, axis) for x, axis, m in zip(inputs, level.in_axes, mask, strict=True) if not m]
    mapped = level.vmap(one, in_axes=(0, tuple(axis for _, axis in known)))(_present(cotangents), tuple(x for x, _ in known))
    return [
        r if r is None or r is NOT_DIFFERENTIABLE else r.sum(0) if axis is None else jnp.moveaxis(r, 0, axis)
        for r, axis in zip(_restored(slots, mapped), level.in_axes, strict=True)
    ]


# --- batching ------------------------------------------------------------------------------------------------------


def _batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], *, op: Extension, rules: ExtensionRuleSet) -> tuple[list[Any], list[Any]]:
    primitive = family_primitive(op.family_id)
    if all(d is None for d in dims):
        return primitive.bind(*args, op=op, rules=rules), [None] * op.output_count
    in_axes = tuple(None if d is None else int(d) for d in dims)
    own = None if op.batching else op.op.batched(in_axes)
    if own is not None:
        form, out_axes = own
        if form.family_id != op.family_id:
            raise InvalidConfig(
                where=f"batched() of extension {op.family_id}",
                given=f"an op of family {form.family_id}",
                needed="an op of the same family, so that its AD rule stays",
                fix="Return an op of the same family, or None.",
            )
        return primitive.bind(*args, op=Extension.of(form), rules=rules), list(out_axes)
    name = axis.name if isinstance(axis.name, str | tuple) else None
    level = BatchLevel(in_axes, name, axis.spmd_name or axis.explicit_mesh_axis)
    return primitive.bind(*args, op=op.batch(level), rules=rules), [0] * op.output_count
