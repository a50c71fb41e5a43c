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
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import PyTreeDef

from . import jax_seam
from .errors import InvalidConfig, Unsupported, require_kind
from .jax_seam import Aval, Axis, Calls, ClosedJaxpr, Eqn, Jaxpr, Tangent
from .linear import (
    NotTransposed,
    holds_an_inner_tracer,
    instead_of,
    linear_transpose,
    transpose_of_bwd,
)
from .shapes import ArrayFunction, Arrays, PyTree, is_inexact

Result = TypeVar("Result")  # what a function returns
OPAQUE = ("refuse", "differentiate")

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
        "differentiate" cannot differentiate the function; in both modes, if a `fwd` closes over
        an array that a transform inside `f` traces. The text names the function and its line.

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
        traced = {i: x for i, x in enumerate(leaves) if _is_traced(x)}

        made = []

        def of_traced(*xs: jax.Array) -> Arrays:
            args, kwargs = jax.tree.unflatten(tree, replaced(leaves, list(traced), xs))
            found, form = jax.tree.flatten(f(*args, **kwargs))
            # What is no array, as a text beside a loss, is handed back as it is.
            kept = [() if isinstance(x, Number) or hasattr(x, "dtype") else (x,) for x in found]
            made.append((form, kept))
            return [x for x, other in zip(found, kept, strict=True) if not other]

        avals = list(map(jax.typeof, traced.values()))
        jaxpr = jax_seam.without_refs(jax_seam.jaxpr_of(of_traced, avals))
        outs, (form, kept) = iter(_arrays(_run(jaxpr, [*traced.values()], opaque))), made[0]
        return jax.tree.unflatten(form, [x[0] if x else next(outs) for x in kept])

    return run


# --- a call and its tangents ----------------------------------------------------------------------


def replaced(all_: Sequence[object], places: Sequence[int], some: Sequence[object]) -> list[Any]:
    """A list with other entries at some places."""
    given = dict(zip(places, some, strict=True))
    return [given.get(i, x) for i, x in enumerate(all_)]


def _arrays(values: Sequence[Any], dtypes: Sequence[np.dtype] = ()) -> list[jax.Array]:
    """Values as arrays, of their own or other dtypes: a literal of a jaxpr is none. Python numbers
    stay weak: beside float16, one that a rule holds must not make it float32.
    """
    weak = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in values]
    dtypes = dtypes or [jax.typeof(x).dtype for x in values]
    return [  # what is cast is not weak any more
        x if x.dtype == d else x.astype(d) for x, d in zip(weak, dtypes, strict=True)
    ]


def _moving(tangents: Sequence[Tangent]) -> list[int]:
    """The places of tangents that may differ from zero."""
    places = []
    for i, t in enumerate(tangents):
        is_zero = jax_seam.none_if_zero(t) is None or isinstance(t, SymbolicZero)
        # jax.jvp hands on Python numbers.
        if not is_zero and getattr(t, "dtype", None) != jax.dtypes.float0:
            places.append(i)
    return places


def _of(
    fn: ArrayFunction, primals: Arrays, places: Sequence[int]
) -> Callable[..., tuple[jax.Array, ...]]:
    """`fn` as a function of some of its arguments."""
    return lambda *some: tuple(fn(*replaced(primals, places, some)))


@dataclasses.dataclass(frozen=True, eq=False)
class _CustomVjp:
    """A call of a jax.custom_vjp as its author wrote it.

    Attributes:
      fn: the call with the rules of its author.
      body: the function without them.
      rule: the jaxpr of `fwd` by the places of moving arguments, where JAX keeps it, or None.
      place: its name and line.
      opaque: as in `both_modes`.
    """

    fn: ArrayFunction
    body: ArrayFunction
    rule: Callable[[Sequence[int]], Jaxpr | None]
    place: str
    opaque: str

    def moved(
        self, primals: Arrays, places: Sequence[int], moving: Arrays
    ) -> tuple[Arrays, list[jax.Array | None]]:
        """The results of `fwd`, and their tangents by those of the arguments at some places; None
        for results that have none.
        """

        def forward(primals: Arrays) -> tuple[Arrays, PyTree]:
            outs, pull = jax.vjp(_of(self.fn, primals, places), *(primals[i] for i in places))
            return outs, (pull, primals if self.opaque == "differentiate" else ())

        try:
            known = self.rule(places)
            is_plain = known is not None and not needs_both_modes(known)
            found, kept = (forward if is_plain else _in_both(forward, self.opaque))(list(primals))
        except jax.errors.UnexpectedTracerError as error:
            raise holds_an_inner_tracer(self.place) from error
        leaves, tree = jax.tree.flatten(kept)
        outs, residuals = _arrays(found), _arrays(leaves)
        rule, held = self._tangents(outs, residuals, tree, places)
        made = iter(_tangent.bind(*residuals, *held, *moving, rule=rule))
        return outs, [next(made) if is_inexact(x) else None for x in outs]

    def _tangents(
        self, outs: Arrays, residuals: Arrays, tree: PyTreeDef, places: Sequence[int]
    ) -> tuple[_Tangents, Arrays]:
        """The linear map from the tangents of arguments at some places to those of the results, and
        the traced values that `bwd` closes over, which are further residuals.
        """
        smooth = [i for i, x in enumerate(outs) if is_inexact(x)]
        avals = [jax.typeof(outs[i]).to_tangent_aval() for i in smooth]
        of_cotangents = [aval.to_ct_aval() for aval in avals]
        zeros = [
            jax_seam.zero_like(x) if i in smooth else np.zeros(x.shape, jax.dtypes.float0)
            for i, x in enumerate(outs)
        ]

        def pull(residuals: Arrays, cotangents: Sequence[jax.Array | None]) -> Arrays:
            given = zip(zeros, replaced(zeros, smooth, cotangents), strict=True)
            filled = (zero if c is None else c for zero, c in given)
            return list(jax.tree.unflatten(tree, residuals)[0](tuple(filled)))

        def push(residuals: Arrays, tangents: Arrays) -> Arrays:
            """By the derivative of the function."""
            primals = jax.tree.unflatten(tree, residuals)[1]
            function = _of(_in_both(self.body, self.opaque), primals, places)
            made = jax.jvp(function, [primals[i] for i in places], list(tangents))[1]
            return [made[i] for i in smooth]

        of_residuals = list(map(jax.typeof, residuals))
        bwd = _Bwd.of(pull, of_residuals, of_cotangents, self.opaque)
        like = list(map(jax_seam.struct_of, of_cotangents))
        count = len(residuals) + len(bwd.held)

        def pushed(*arrays: jax.Array) -> Arrays:
            known, tangents = list(arrays[:count]), list(arrays[count:])

            def pull(*cotangents: jax.Array) -> Arrays:
                return bwd(known, cotangents)

            try:
                return transpose_of_bwd(pull, like, tangents, self.place, _FIX)
            except Unsupported as refusal:
                if self.opaque == "refuse":
                    raise
                return instead_of(
                    refusal, functools.partial(push, known[: len(residuals)], tangents)
                )

        return _Tangents(pulled=bwd, pushed=pushed, count=count, avals=avals), bwd.held


@dataclasses.dataclass(frozen=True, eq=False)
class _Bwd:
    """`bwd` of a call, in both modes itself.

    Attributes:
      pull: residuals, cotangents or None for zero -> cotangents of the arguments.
      opaque: as in `both_modes`.
      count: how many residuals `fwd` returned.
      traced: the jaxpr of `pull` for cotangents that are all there; None where nothing is traced.
      held: the traced values that it closes over. They are residuals too, after those of `fwd`:
        what is run later, under another trace, cannot close over them.
    """

    pull: ArrayFunction
    opaque: str
    count: int
    traced: ClosedJaxpr | None = None
    held: Arrays = ()

    @staticmethod
    def of(
        pull: ArrayFunction,
        residuals: Sequence[Aval],
        cotangents: Sequence[Aval],
        opaque: str,
    ) -> _Bwd:
        """`bwd` for residuals and cotangents with these avals."""
        count = len(residuals)
        if jax_seam.is_eager():
            return _Bwd(pull, opaque, count)
        flat = functools.partial(_pulled, pull, count)
        traced = jax_seam.without_refs(jax_seam.jaxpr_of(flat, [*residuals, *cotangents]))
        held = list(filter(_is_traced, jax_seam.open_jaxpr(traced)[1]))
        return _Bwd(pull, opaque, count, traced=traced, held=held)

    def __call__(self, known: Arrays, cotangents: Sequence[jax.Array | None]) -> Arrays:
        """The cotangents of the arguments, from the residuals and what else is held."""
        residuals, held = list(known[: self.count]), iter(known[self.count :])
        is_whole = all(c is not None for c in cotangents)
        if self.traced is None or not is_whole:
            return _in_both(self.pull, self.opaque)(residuals, list(cotangents))
        constants = [
            next(held) if _is_traced(x) else x for x in jax_seam.open_jaxpr(self.traced)[1]
        ]
        jaxpr = jax_seam.closed(self.traced, constants)
        return _arrays(_run(jaxpr, [*residuals, *cotangents], self.opaque))


def _pulled(pull: ArrayFunction, count: int, *arrays: jax.Array) -> Arrays:
    """`pull` of arrays, of which the first are residuals."""
    return pull(arrays[:count], arrays[count:])


def _is_traced(value: object) -> bool:
    return isinstance(value, jax.core.Tracer)


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """What "both_modes_call" runs: a call of a jax.custom_vjp, or that under vmap.

    Attributes:
      fn: the call with the rules of its author, which graphs keep.
      body: the function without its rule.
      moved: (primals, places, moving) -> results and tangents, as `_CustomVjp.moved`.
      place: its name and line.
      opaque: as in `both_modes`.
      avals: of the results.
      effects: of the call.
    """

    fn: ArrayFunction
    body: ArrayFunction
    moved: Callable[..., tuple[Arrays, list[jax.Array | None]]]
    place: str
    opaque: str
    avals: Sequence[Aval]
    effects: Any

    def jvp(self, primals: Arrays, tangents: Sequence[Tangent]) -> tuple[Arrays, list[Any]]:
        """The results of `fwd`, and their tangents."""
        places, primals = _moving(tangents), _arrays(primals)
        moving = _arrays([tangents[i] for i in places], [primals[i].dtype for i in places])
        if not moving:
            outs = _call.bind(*primals, call=self)
            return outs, list(map(jax_seam.zero_tangent, outs))
        outs, made = self.moved(primals, places, moving)
        return outs, [
            jax_seam.zero_tangent(x) if t is None else t for x, t in zip(outs, made, strict=True)
        ]

    def mapped(self, axis: Axis, dims: Sequence[int | None]) -> _Call:
        """The call under vmap. Its rule is mapped after it was transposed: vmap turns a cond into
        a choice between values, which has no transpose.
        """

        def moved(primals: Arrays, places: Sequence[int], moving: Arrays) -> Any:
            one = functools.partial(self.moved, places=places)
            of_moving = [dims[i] for i in places]
            over = jax_seam.mapped(lambda xs, ts: one(xs, moving=ts), axis, (list(dims), of_moving))
            return over(list(primals), list(moving))

        fn, body = (jax_seam.mapped(f, axis, tuple(dims)) for f in (self.fn, self.body))
        avals = [jax_seam.mapped_aval(aval, axis) for aval in self.avals]
        return dataclasses.replace(self, fn=fn, body=body, moved=moved, avals=avals)


@dataclasses.dataclass(frozen=True, eq=False)
class _Tangents:
    """What "both_modes_tangent" runs: the linear map of a call.

    Attributes:
      pulled: residuals, cotangents or None for zero -> cotangents of the arguments: `bwd`, in both
        modes itself.
      pushed: residuals and tangents, one after the other -> tangents of the results.
      count: how many residuals there are.
      avals: of the tangents of the results.
    """

    pulled: ArrayFunction
    pushed: ArrayFunction
    count: int
    avals: Sequence[Aval]

    def mapped(self, axis: Axis, dims: Sequence[int | None]) -> _Tangents:
        """The map under vmap: tangents have the batch first, residuals where it is."""
        residuals = list(dims[: self.count])
        each = (*residuals, *(0 for _ in dims[self.count :]))
        pulled = jax_seam.mapped(self.pulled, axis, (residuals, 0))
        pushed = jax_seam.mapped(self.pushed, axis, each)
        avals = [jax_seam.mapped_aval(aval, axis) for aval in self.avals]
        return dataclasses.replace(self, pulled=pulled, pushed=pushed, avals=avals)


def _call_transpose(
    cotangents: Sequence[Tangent], *args: jax.Array, call: _Call
) -> list[jax.Array | None]:
    """Of a call in a place where it must be linear, as in a `bwd`: the transpose of its body."""
    places = [i for i, x in enumerate(args) if jax_seam.is_linear_input(x)]
    like = [jax_seam.struct_of(args[i].aval) for i in places]
    body = _of(_in_both(call.body, call.opaque), args, places)
    full = tuple(map(jax_seam.full_tangent, cotangents))
    try:
        made = linear_transpose(body, like, full)
    except NotTransposed as error:
        raise Unsupported(
            where=f"the transpose of {call.place}",
            given=f"a function that JAX cannot transpose: {error}",
            needed="a linear function, because the call is a step of a function that is transposed",
        ) from error
    return replaced([None] * len(args), places, made)


def _unbatched(axis: Axis, dims: Sequence[int | None]) -> bool:
    """Whether a vmap changes nothing: it maps no input, and has no name that could be asked for."""
    return all(d is None for d in dims) and not isinstance(axis.name, str)


def _call_batch(axis: Axis, args: Arrays, dims: Sequence[int | None], *, call: _Call) -> Any:
    if _unbatched(axis, dims):
        outs = _call.bind(*args, call=call)
        return outs, [None] * len(outs)
    outs = _call.bind(*args, call=call.mapped(axis, dims))
    return outs, [0] * len(outs)


def _tangent_jvp(primals: Arrays, tangents: Sequence[Tangent], *, rule: _Tangents) -> Any:
    """By tangents it is linear; by residuals the transpose of `bwd` is differentiated."""
    primals, parts = _arrays(primals), []
    outs = _tangent.bind(*primals, rule=rule)
    by_residuals = [i for i in _moving(tangents) if i < rule.count]
    if by_residuals:
        at = [primals[i] for i in by_residuals]
        given = [tangents[i] for i in by_residuals]
        parts.append(jax.jvp(_of(rule.pushed, primals, by_residuals), at, given)[1])
    if any(i >= rule.count for i in _moving(tangents)):
        moved = map(jax_seam.full_tangent, tangents[rule.count :])
        parts.append(_tangent.bind(*primals[: rule.count], *moved, rule=rule))
    return outs, [functools.reduce(jnp.add, each) for each in zip(*parts, strict=True)]


def _tangent_transpose(
    cotangents: Sequence[Tangent], *args: jax.Array, rule: _Tangents
) -> list[jax.Array | None]:
    residuals = list(args[: rule.count])
    if any(map(jax_seam.is_linear_input, residuals)):
        raise Unsupported(
            where="the transpose of a derivative by a reverse rule",
            given="a call whose residuals depend on what must be linear",
            needed="a function that is linear",
        )
    given = list(map(jax_seam.none_if_zero, cotangents))
    made = rule.pulled(residuals, given)
    wanted = map(jax_seam.is_linear_input, args[rule.count :])
    return [None] * rule.count + [c if w else None for c, w in zip(made, wanted, strict=True)]


def _tangent_batch(axis: Axis, args: Arrays, dims: Sequence[int | None], *, rule: _Tangents) -> Any:
    """Residuals that are the same in the batch are kept once."""
    if _unbatched(axis, dims):
        outs = _tangent.bind(*args, rule=rule)
        return outs, [None] * len(outs)
    moved = jax_seam.mapped(lambda *xs: xs[rule.count :], axis, tuple(dims))(*args)
    outs = _tangent.bind(*args[: rule.count], *moved, rule=rule.mapped(axis, dims))
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
    calls = jax_seam.calls_of(eqn)
    if not _changes(eqn):
        return jax_seam.as_function(eqn)
    if calls is Calls.REVERSE_RULE:
        return _as_call(eqn, opaque)
    if calls is Calls.FORWARD_RULE:
        return _as_custom_jvp(eqn, opaque)
    if calls is Calls.SEVERAL_MOVES:
        return jax_seam.one_by_one(eqn)
    run = functools.partial(_run, opaque=opaque)
    return jax_seam.with_inner(eqn, run, _known[opaque])


def _changes(eqn: Eqn) -> bool:
    """Whether something else runs in the place of an equation."""
    if jax_seam.calls_of(eqn) is not Calls.NOTHING_SPECIAL:
        return True
    is_container = jax_seam.name_of(eqn) in CONTAINERS
    return is_container and any(map(needs_both_modes, jax_seam.inner_jaxprs(eqn)))


def needs_both_modes(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    """Whether a traced function has something inside that runs otherwise in both modes."""
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
    place = f"{name} ({at.name})"
    custom = _CustomVjp(fn=fn, body=body, rule=rule, place=place, opaque=opaque)
    call = _Call(
        fn=fn,
        body=body,
        moved=custom.moved,
        place=place,
        opaque=opaque,
        avals=avals,
        effects=eqn.effects,
    )

    return lambda *xs: _call.bind(*_arrays(xs), call=call)


def _as_custom_jvp(eqn: Eqn, opaque: str) -> Callable[..., PyTree]:
    """A call of a jax.custom_jvp, whose rule may call a jax.custom_vjp."""
    fn = jax_seam.as_function(eqn)
    call = jax.custom_jvp(jax_seam.function_of(jax_seam.inner_jaxprs(eqn)[0]))

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
