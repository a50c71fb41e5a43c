"""Forward mode for functions that call a jax.custom_vjp: `tenferro_jax.both_modes`.

The jaxpr of the function is run with two primitives in place of each call of a jax.custom_vjp:

- "both_modes_call" computes the value. Its derivative runs the author's `fwd`, as JAX does, and
  binds the other one.
- "both_modes_tangent" takes residuals and tangents, and is linear in the tangents. Its transpose is
  the author's `bwd`: reverse mode computes what it computes without this module. Its value, for
  which forward mode alone asks, is the transpose of `bwd`.

What has no jax.custom_vjp inside is run as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import jax_seam
from .errors import InvalidConfig, Unsupported, first_line, reason_of, require_kind
from .jax_seam import Aval, Axis, ClosedJaxpr, Eqn, Jaxpr, Tangent
from .shapes import PyTree, is_inexact

Arrays: TypeAlias = Sequence[jax.Array]
Result = TypeVar("Result")  # what a function returns
OPAQUE = ("refuse", "differentiate")

# What an error needs where a reverse rule alone is there.
FORWARD_MODE = "a rule for forward mode"
UNTRANSPOSED = (
    NotImplementedError, ValueError, AssertionError, TypeError, KeyError, RuntimeError
)  # fmt: skip

_FIX = (
    'Pass opaque="differentiate" to both_modes, which differentiates the function itself. If the '
    "function is yours, publish it by tenferro_jax.op with @f.defjvp, or with @f.def_transpose for "
    "what its bwd calls."
)


def both_modes(f: Callable[..., Result], *, opaque: str = "refuse") -> Callable[..., Result]:
    """`f` with forward mode, for jax.jvp, jax.jacfwd, jax.hessian and jax.linearize, where
    it calls a jax.custom_vjp: anywhere, also in other packages, under jit, scan, while, cond,
    checkpoint, vmap, shard_map and inside other custom rules.

    Each such call has the forward mode that belongs to its reverse rule: the transpose of `bwd`.
    Reverse mode is that of `f`. To publish a jax.custom_vjp of your own, use `op` instead.

    Args:
      f: any function. Under a transform it is traced, as jax.jit does: it must not branch on
        traced values. What is not traced among its arguments it gets as it is.
      opaque: what forward mode does where JAX cannot transpose a `bwd`, because it calls a kernel,
        loops until something holds, or is not linear. "refuse": it raises. "differentiate": it
        differentiates the function in place of its rule. Reverse mode keeps `bwd`.

    Returns:
      A function of the same arguments, for every transform and any order. Where no transform is
      at work it calls `f`.

    Raises:
      InvalidConfig: not a function, or another `opaque`.
      Unsupported: later, in forward mode, if JAX cannot transpose a `bwd`, or with
        "differentiate" cannot differentiate the function; the text names it and its line.

    Gradient: where a rule is not the derivative on purpose, as in clipped or straight-through
      gradients, both modes follow the rule. In a second derivative JAX differentiates `fwd`, as it
      does in `f`. `check` compares rules with finite differences.

    Cost: forward mode keeps the residuals of `fwd`. A function is traced once more than without
      both_modes; compiled programs of value and reverse mode are the same.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import tenferro_jax as tj
      >>> @jax.custom_vjp
      ... def cube(x):
      ...     return x**3
      >>> cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
      >>> loss = lambda x: jax.jit(cube)(x).sum()  # jax.jacfwd(loss) raises TypeError
      >>> jax.hessian(tj.both_modes(loss))(jnp.array([1.0, 2.0])).tolist()
      [[6.0, 0.0], [0.0, 12.0]]
    """
    require_kind(f, Callable, "both_modes", "a function")
    if opaque not in OPAQUE:
        raise InvalidConfig(
            where="both_modes",
            given=f"opaque={opaque!r}",
            needed=" or ".join(map(repr, OPAQUE)),
        )

    @functools.wraps(f, updated=())
    def g(*args: PyTree, **kwargs: PyTree) -> Result:
        return _in_both(f, opaque)(*args, **kwargs)

    return g


def _in_both(f: Callable[..., Result], opaque: str) -> Callable[..., Result]:
    """`both_modes` of a function, which need not have a name."""

    def run(*args: PyTree, **kwargs: PyTree) -> Result:
        if jax_seam.is_eager():
            return f(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)}

        made = []

        def of_traced(*xs: jax.Array) -> Sequence[jax.Array]:
            args, kwargs = jax.tree.unflatten(tree, replaced(leaves, list(traced), xs))
            found, form = jax.tree.flatten(f(*args, **kwargs))
            # What is no array, as a text beside a loss, is handed back as it is.
            kept = [() if isinstance(x, Number) or hasattr(x, "dtype") else (x,) for x in found]
            made.append((form, kept))
            return [x for x, other in zip(found, kept, strict=True) if not other]

        jaxpr = jax_seam.without_refs(jax_seam.jaxpr_of(of_traced, list(traced.values())))
        outs, (form, kept) = iter(_arrays(_run(jaxpr, [*traced.values()], opaque))), made[0]
        return jax.tree.unflatten(form, [x[0] if x else next(outs) for x in kept])

    return run


def transposed(
    pull: Callable[..., Sequence[jax.Array]],
    like: Sequence[jax.ShapeDtypeStruct],
    tangents: Arrays,
    place: str,
    fix: str,
) -> list[jax.Array]:
    """The tangents of the results of a function whose reverse rule is `pull`, which is linear.

    Args:
      pull: the cotangents of the results -> those of the arguments, as many as `tangents`.
      like: the cotangents of the results.
      tangents: of the arguments.
      place: the name and the line of the function.
      fix: the advice of the error.

    Raises:
      Unsupported: JAX cannot transpose it.
    """
    jax.eval_shape(pull, *like)  # first, so that the author's own errors arrive as they are
    try:
        return turned(pull, like, tangents)
    except UNTRANSPOSED as error:
        raise Unsupported(
            where=f"forward mode of {place}",
            given=f"bwd, which JAX cannot transpose: {reason_of(error)}",
            needed=FORWARD_MODE,
            fix=fix,
        ) from error


# --- the transpose of what is linear --------------------------------------------------------------


def turned(
    fn: Callable[..., Sequence[jax.Array]],
    like: Sequence[jax.ShapeDtypeStruct],
    cotangents: Arrays,
) -> list[jax.Array]:
    """`jax.linear_transpose`, which takes the linear part of what is not linear if the rest is a
    term, a case or an integer.

    Raises:
      ValueError: the function may differ from zero where its arguments are zero.
      UNTRANSPOSED: JAX cannot transpose it.
    """
    linear = jax_seam.without_refs(jax.make_jaxpr(lambda *xs: list(fn(*xs)))(*like))
    made = list(jax.linear_transpose(jax_seam.function_of(linear), *like)(list(cotangents)))
    if not all(_vanishing(linear, [True] * len(like))):
        raise ValueError("it is not linear: it may differ from zero where cotangents are zero")
    return made


# Zero if all floating inputs are; others are zero if one of them is, as a product. Calls of ops and
# of both_modes are transposed by `turned` in their turn.
TERMS = {
    "add", "add_any", "sub", "concatenate", "pad", "select_n", "dynamic_update_slice", "scatter",
    "scatter-add", "scatter-sub", "clamp", "max", "min", "complex", "while",
}  # fmt: skip


def _is_zero(value: Any) -> bool:
    """Of what is known of a value, a bool, or of a constant."""
    if isinstance(value, bool):
        return value
    return not isinstance(value, jax.core.Tracer) and not np.any(value)


def _vanishing(jaxpr: ClosedJaxpr, zeros: Sequence[bool]) -> list[bool]:
    """Whether each output is certainly zero, where these inputs are."""
    return list(map(_is_zero, jax_seam.run_jaxpr(jaxpr, zeros, _vanishing_of)))


def _vanishing_of(eqn: Eqn) -> Callable[..., Any]:
    name, inner = eqn.primitive.name, jax_seam.inner_jaxprs(eqn)
    taken = len(jax_seam.open_jaxpr(inner[0])[0].invars) if len(inner) == 1 else -1

    def known(*values: Any) -> Any:
        zeros = list(map(_is_zero, values))
        if name == "cond":
            return list(map(all, zip(*(_vanishing(x, zeros[1:]) for x in inner), strict=True)))
        if name == "scan":
            first, carried, _ = jax_seam.scan_counts(eqn)
            for _ in range(carried):  # at most so often what is carried becomes another
                outs = _vanishing(inner[0], zeros)
                kept = [*map(min, zeros[first:], outs[:carried])]
                if kept == zeros[first : first + carried]:
                    break
                zeros[first : first + carried] = kept
        if taken == len(values):
            return _vanishing(inner[0], zeros)
        floating = [zero for v, zero in zip(eqn.invars, zeros, strict=True) if is_inexact(v.aval)]
        gone = (all if name in TERMS else any)(floating or zeros)
        # Of floats integers and booleans are no linear function.
        outs = [gone and (not floating or is_inexact(v.aval)) for v in eqn.outvars]
        return outs if eqn.primitive.multiple_results else outs[0]

    return known


# --- a call and its tangents ----------------------------------------------------------------------


def replaced(all_: Sequence[object], places: Sequence[int], some: Sequence[object]) -> list[Any]:
    """A list with other entries at some places."""
    given = dict(zip(places, some, strict=True))
    return [given.get(i, x) for i, x in enumerate(all_)]


def _arrays(values: Sequence[Any]) -> list[jax.Array]:
    """Values as arrays: a literal of a jaxpr is none."""
    return [
        x if isinstance(x, jax.Array) else jnp.asarray(x, getattr(x, "dtype", None)) for x in values
    ]


def _moving(tangents: Sequence[Tangent]) -> list[int]:
    """The places of tangents that may differ from zero."""
    return [
        i
        for i, t in enumerate(tangents)
        if jax_seam.none_if_zero(t) is not None
        and not isinstance(t, SymbolicZero)
        and getattr(t, "dtype", None) != jax.dtypes.float0  # jax.jvp hands on Python numbers
    ]


def _of(
    fn: Callable[..., Sequence[jax.Array]], primals: Arrays, places: Sequence[int]
) -> Callable[..., tuple[jax.Array, ...]]:
    """`fn` as a function of some of its arguments."""
    return lambda *some: tuple(fn(*replaced(primals, places, some)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call of a jax.custom_vjp.

    Attributes:
      fn: the call with the rules of its author.
      body: the function without them.
      rule: the jaxpr of `fwd` by the places of moving arguments, where JAX keeps it, or None.
      place: its name and line.
      opaque: as in `both_modes`.
      avals: of the results.
      effects: of the call.
    """

    fn: Callable[..., Sequence[jax.Array]]
    body: Callable[..., Sequence[jax.Array]]
    rule: Callable[[Sequence[int]], Jaxpr | None]
    place: str
    opaque: str
    avals: Sequence[Aval]
    effects: Any

    def jvp(self, primals: Arrays, tangents: Sequence[Tangent]) -> tuple[Arrays, list[Any]]:
        """The results of `fwd`, and their tangents."""
        places, primals = _moving(tangents), _arrays(primals)
        moving = [jnp.asarray(tangents[i], primals[i].dtype) for i in places]
        if not moving:
            outs = _call.bind(*primals, call=self)
            return outs, list(map(jax_seam.zero_tangent, outs))

        def forward(primals: Arrays) -> tuple[Arrays, PyTree]:
            outs, pull = jax.vjp(_of(self.fn, primals, places), *(primals[i] for i in places))
            return outs, (pull, primals if self.opaque == "differentiate" else ())

        known = self.rule(places)
        is_plain = known is not None and not _changes_inside(known)
        found, kept = (forward if is_plain else _in_both(forward, self.opaque))(list(primals))
        leaves, tree = jax.tree.flatten(kept)
        outs, residuals = _arrays(found), _arrays(leaves)
        smooth = [i for i, x in enumerate(outs) if is_inexact(x)]
        zeros = [
            jax_seam.zero_like(x) if i in smooth else np.zeros(x.shape, jax.dtypes.float0)
            for i, x in enumerate(outs)
        ]

        def pull(residuals: Arrays, cotangents: Sequence[jax.Array | None]) -> Arrays:
            given = zip(zeros, replaced(zeros, smooth, cotangents), strict=True)
            filled = (zero if c is None else c for zero, c in given)
            return list(jax.tree.unflatten(tree, residuals)[0](tuple(filled)))

        def push(residuals: Arrays, tangents: Arrays) -> Arrays:
            primals = jax.tree.unflatten(tree, residuals)[1]
            function = _of(_in_both(self.body, self.opaque), primals, places)
            made = jax.jvp(function, [primals[i] for i in places], list(tangents))[1]
            return [made[i] for i in smooth]

        avals = [jax.typeof(outs[i]).to_tangent_aval() for i in smooth]
        rule = _Rule(self, pull, push, len(residuals), avals)
        made = iter(_tangent.bind(*residuals, *moving, rule=rule))
        return outs, [next(made) if is_inexact(x) else jax_seam.zero_tangent(x) for x in outs]


@dataclasses.dataclass(frozen=True, eq=False)
class _Rule:
    """The linear map of a call.

    Attributes:
      call: the call.
      pull: residuals, cotangents or None for zero -> cotangents of the arguments, by `bwd`.
      push: residuals, tangents -> tangents of the results, by the derivative of the function.
      count: how many residuals there are.
      avals: of the tangents of the results.
    """

    call: _Call
    pull: Callable[..., Arrays]
    push: Callable[..., Arrays]
    count: int
    avals: Sequence[Aval]

    def pulled(self, residuals: Arrays, cotangents: Sequence[jax.Array | None]) -> Arrays:
        """`bwd`, in both modes itself."""
        return _in_both(self.pull, self.call.opaque)(list(residuals), list(cotangents))

    def pushed(self, *arrays: jax.Array) -> list[jax.Array]:
        """The tangents of the results."""
        residuals, tangents = list(arrays[: self.count]), list(arrays[self.count :])
        like = [jax_seam.struct_of(aval.to_ct_aval()) for aval in self.avals]

        def pull(*cotangents: jax.Array) -> Arrays:
            return self.pulled(residuals, cotangents)

        try:
            return transposed(pull, like, tangents, self.call.place, _FIX)
        except Unsupported as refusal:
            if self.call.opaque == "refuse":
                raise
            try:
                return list(self.push(residuals, tangents))
            except (NotImplementedError, TypeError, ValueError) as error:
                if not jax_seam.lacks_derivative(error):
                    raise
                raise Unsupported(
                    where=refusal.where,
                    given=f"{refusal.given}; and a function that JAX cannot differentiate: "
                    f"{first_line(error)}",
                    needed=FORWARD_MODE,
                    fix="Publish what it calls by tenferro_jax.op, with a rule.",
                ) from error


def _call_transpose(
    cotangents: Sequence[Tangent], *args: jax.Array, call: _Call
) -> list[jax.Array | None]:
    """Of a call in a place where it must be linear, as in a `bwd`: the transpose of its body."""
    places = [i for i, x in enumerate(args) if jax_seam.is_linear_input(x)]
    like = [jax_seam.struct_of(args[i].aval) for i in places]
    body = _of(_in_both(call.body, call.opaque), args, places)
    full = tuple(map(jax_seam.full_tangent, cotangents))
    return replaced([None] * len(args), places, turned(body, like, full))


def _unbatched(axis: Axis, dims: Sequence[int | None]) -> bool:
    """Whether a vmap changes nothing: it maps no input, and has no name that could be asked for."""
    return all(d is None for d in dims) and not isinstance(axis.name, str)


def _call_batch(axis: Axis, args: Arrays, dims: Sequence[int | None], *, call: _Call) -> Any:
    if _unbatched(axis, dims):
        outs = _call.bind(*args, call=call)
        return outs, [None] * len(outs)
    many = dataclasses.replace(
        call,
        fn=jax_seam.mapped(call.fn, axis, tuple(dims)),
        body=jax_seam.mapped(call.body, axis, tuple(dims)),
        avals=[jax_seam.mapped_aval(aval, axis) for aval in call.avals],
    )
    outs = _call.bind(*args, call=many)
    return outs, [0] * len(outs)


def _tangent_jvp(primals: Arrays, tangents: Sequence[Tangent], *, rule: _Rule) -> Any:
    """By tangents it is linear; by residuals the transpose of `bwd` is differentiated."""
    primals, parts = _arrays(primals), []
    outs = _tangent.bind(*primals, rule=rule)
    by_residuals = [i for i in _moving(tangents) if i < rule.count]
    if by_residuals:
        at, given = ([values[i] for i in by_residuals] for values in (primals, tangents))
        parts.append(jax.jvp(_of(rule.pushed, primals, by_residuals), at, given)[1])
    if any(i >= rule.count for i in _moving(tangents)):
        moved = map(jax_seam.full_tangent, tangents[rule.count :])
        parts.append(_tangent.bind(*primals[: rule.count], *moved, rule=rule))
    return outs, [functools.reduce(jnp.add, each) for each in zip(*parts, strict=True)]


def _tangent_transpose(
    cotangents: Sequence[Tangent], *args: jax.Array, rule: _Rule
) -> list[jax.Array | None]:
    given = list(map(jax_seam.none_if_zero, cotangents))
    made = rule.pulled(args[: rule.count], given)
    wanted = map(jax_seam.is_linear_input, args[rule.count :])
    return [None] * rule.count + [c if w else None for c, w in zip(made, wanted, strict=True)]


def _tangent_batch(axis: Axis, args: Arrays, dims: Sequence[int | None], *, rule: _Rule) -> Any:
    """Residuals that are the same in the batch are kept once."""
    if _unbatched(axis, dims):
        outs = _tangent.bind(*args, rule=rule)
        return outs, [None] * len(outs)
    moved = jax_seam.mapped(lambda *xs: xs[rule.count :], axis, tuple(dims))(*args)
    places = list(dims[: rule.count]), 0
    many = dataclasses.replace(
        rule,
        pull=jax_seam.mapped(rule.pull, axis, places),
        push=jax_seam.mapped(rule.push, axis, places),
        avals=[jax_seam.mapped_aval(aval, axis) for aval in rule.avals],
    )
    outs = _tangent.bind(*args[: rule.count], *moved, rule=many)
    return outs, [0] * len(outs)


_call = jax_seam.make_primitive(
    "both_modes_call",
    abstract_eval=lambda *_, call: list(call.avals),
    impl=lambda *xs, call: list(call.body(*xs)),
    jvp=lambda primals, tangents, call: call.jvp(primals, tangents),
    transpose=_call_transpose,
    batch=_call_batch,
    effects=lambda call: call.effects,
    series=lambda call: call.body,
)
_tangent = jax_seam.make_primitive(
    "both_modes_tangent",
    abstract_eval=lambda *_, rule: list(rule.avals),
    impl=lambda *xs, rule: rule.pushed(*xs),
    jvp=_tangent_jvp,
    transpose=_tangent_transpose,
    batch=_tangent_batch,
)


# --- what replaces an equation --------------------------------------------------------------------

CONTAINERS = {
    "jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "checkpoint", "remat", "remat2",
    "scan", "while", "cond", "shard_map", "custom_linear_solve", "custom_vmap_call",
}  # fmt: skip
"""The equations of JAX that run the jaxprs among their params. Others, such as kernels, are left
alone.
"""

_known: dict[str, weakref.WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr]] = {
    opaque: weakref.WeakKeyDictionary() for opaque in OPAQUE
}
_known_changes: weakref.WeakKeyDictionary[ClosedJaxpr | Jaxpr, bool] = weakref.WeakKeyDictionary()


def _run(jaxpr: ClosedJaxpr, inputs: Sequence[object], opaque: str) -> list[Any]:
    """The outputs of a jaxpr, in both modes."""
    return jax_seam.run_jaxpr(jaxpr, inputs, functools.partial(_replacement, opaque))


def _replacement(opaque: str, eqn: Eqn) -> Callable[..., PyTree]:
    """The function of an equation's inputs that is run in its place."""
    if not _changes(eqn):
        return jax_seam.as_function(eqn)
    if jax_seam.reverse_alone(eqn):
        return _as_call(eqn, opaque)
    if jax_seam.custom_jvp(eqn):
        return _as_custom_jvp(eqn, opaque)
    if jax_seam.moves_several(eqn):
        return jax_seam.one_by_one(eqn)
    run = functools.partial(_run, opaque=opaque)
    return jax_seam.with_inner(eqn, run, _known[opaque])


def _changes(eqn: Eqn) -> bool:
    """Whether something else runs in the place of an equation."""
    return (
        jax_seam.custom_jvp(eqn)
        or jax_seam.lacks_transpose(eqn)
        or jax_seam.reverse_alone(eqn)
        or (
            jax_seam.name_of(eqn) in CONTAINERS
            and any(map(_changes_inside, jax_seam.inner_jaxprs(eqn)))
        )
    )


def _changes_inside(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    if jaxpr not in _known_changes:
        _known_changes[jaxpr] = any(map(_changes, jax_seam.open_jaxpr(jaxpr)[0].eqns))
    return _known_changes[jaxpr]


def _as_call(eqn: Eqn, opaque: str) -> Callable[..., PyTree]:
    """A call of a jax.custom_vjp."""
    inner = jax_seam.inner_jaxprs(eqn)
    body = jax_seam.function_of(inner[0]) if inner else jax_seam.expansion(eqn)
    avals = [v.aval for v in eqn.outvars]
    fn = jax_seam.as_function(eqn)
    name, at = jax_seam.source_of(eqn)
    rule = functools.partial(jax_seam.forward_rule, eqn)
    call = _Call(fn, body, rule, f"{name} ({at.name})", opaque, avals, eqn.effects)

    return lambda *xs: _call.bind(*_arrays(xs), call=call)


def _as_custom_jvp(eqn: Eqn, opaque: str) -> Callable[..., PyTree]:
    """A call of a jax.custom_jvp, whose rule may call a jax.custom_vjp."""
    fn = jax_seam.as_function(eqn)
    call: Any = jax.custom_jvp(jax_seam.function_of(jax_seam.inner_jaxprs(eqn)[0]))

    @functools.partial(call.defjvp, symbolic_zeros=True)
    def _rule(primals: Arrays, tangents: Sequence[Tangent]) -> Any:
        places = _moving(tangents)

        def moved(primals: Arrays, moving: Arrays) -> tuple[Arrays, Arrays]:
            outs, made = jax.jvp(_of(fn, primals, places), [primals[i] for i in places], moving)
            return outs, [t for x, t in zip(outs, made, strict=True) if is_inexact(x)]

        outs, made = _in_both(moved, opaque)(list(primals), [tangents[i] for i in places])
        source = iter(made)
        return list(outs), [
            next(source) if is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0) for x in outs
        ]

    return lambda *xs: call(*_arrays(xs))
