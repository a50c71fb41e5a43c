"""The transpose of a function that is linear.

`jax.linear_transpose` says nothing where a function is not linear because of a term that does not
depend on its arguments: it transposes the rest. `linear_transpose` here refuses it. What is traced,
here as everywhere, is what the author wrote, so the author's own errors arrive as they are; only
what JAX says about the steps of the traced function is a refusal.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from . import jax_seam
from .errors import Unsupported, first_line, reason_of
from .jax_seam import Atom, ClosedJaxpr, Eqn
from .shapes import ArrayFunction, Arrays, is_inexact

FORWARD_MODE = "a rule for forward mode"
"""What an error needs where a reverse rule alone is there."""

_REFUSALS = (
    NotImplementedError, ValueError, AssertionError, TypeError, KeyError, RuntimeError
)  # fmt: skip
"""What JAX raises where a step has no transpose, or is not linear."""


class NotTransposed(Exception):
    """Why a function has no transpose. Callers turn it into an error that names the function."""


def linear_transpose(
    fn: ArrayFunction,
    like: Sequence[jax.ShapeDtypeStruct],
    cotangents: Arrays,
) -> list[jax.Array]:
    """The cotangents of the arguments of a function that is linear.

    Args:
      fn: the function of arrays, which returns a list.
      like: its arguments.
      cotangents: of its results.

    Raises:
      NotTransposed: JAX cannot transpose it, or it may differ from zero where its arguments are
        zero.
    """
    jaxpr = jax_seam.without_refs(jax.make_jaxpr(lambda *xs: list(fn(*xs)))(*like))
    if _stops(jaxpr):
        moving = [False] * len(like)
        jaxpr = jax.make_jaxpr(lambda *xs: _run_without_stops(jaxpr, moving, xs))(*like)
    traced = jax_seam.function_of(jaxpr)
    try:
        made = list(jax.linear_transpose(traced, *like)(list(cotangents)))
    except Unsupported as error:  # an op or a call of both_modes in it has none
        raise NotTransposed(first_line(error)) from error
    except _REFUSALS as error:
        if _raised_by_a_rule_of_ours(error) or jax_seam.failed_inside(error):
            raise
        raise NotTransposed(_said(error)) from error
    if not _all(_outputs(ZERO, jaxpr, [True] * len(like))):
        raise NotTransposed("it may differ from zero where its arguments are zero")
    return made


def transpose_of_bwd(
    bwd: ArrayFunction,
    like: Sequence[jax.ShapeDtypeStruct],
    tangents: Arrays,
    place: str,
    fix: str,
) -> list[jax.Array]:
    """The tangents of the results of a function, from its reverse rule.

    Args:
      bwd: the cotangents of the results -> those of the arguments, as many as `tangents`.
      like: the cotangents of the results.
      tangents: of the arguments.
      place: the name and the line of the function.
      fix: the advice of the error.

    Raises:
      Unsupported: JAX cannot transpose `bwd`.
    """
    try:
        return linear_transpose(bwd, like, tangents)
    except NotTransposed as error:
        raise Unsupported(
            where=f"forward mode of {place}",
            given=f"bwd, which JAX cannot transpose: {error}",
            needed=FORWARD_MODE,
            fix=fix,
        ) from error


def instead_of(refusal: Unsupported, push: Callable[[], Arrays]) -> Arrays:
    """The tangents by the derivative of the function, where `bwd` has no transpose."""
    try:
        return push()
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


def holds_an_inner_tracer(place: str) -> Unsupported:
    """The error about a jax.custom_vjp, at this name and line, whose rule closes over a value of a
    trace that has ended.
    """
    return Unsupported(
        where=place,
        given="a fwd that closes over an array which a transform inside traces, as vmap or scan",
        needed="a fwd of its arguments and of concrete arrays: both_modes traces a function "
        "before it differentiates it, as jax.jit does",
        fix="Pass the array to the jax.custom_vjp as an argument.",
    )


def _raised_by_a_rule_of_ours(error: BaseException) -> bool:
    """Whether code of this package stands between the call of jax.linear_transpose and what raised:
    then an author's rule or a fault of ours has failed, and JAX has said nothing.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = __name__.partition(".")[0]
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames[1:]]
    return any(name.partition(".")[0] == package for name in names)


def _said(error: Exception) -> str:
    """What JAX says. Its rules for linear steps assert that a step is linear, without a text."""
    if isinstance(error, AssertionError) and not str(error):
        return "one of its steps is not linear"
    return reason_of(error)


# --- what is known of the values of a traced function ---------------------------------------------

TERMS = {
    "add", "add_any", "sub", "concatenate", "pad", "select_n", "dynamic_update_slice", "scatter",
    "scatter-add", "scatter-sub", "clamp", "max", "min", "complex", "while",
}  # fmt: skip
"""Zero if all floating inputs are; the results of other steps are zero if one input is, as those of
a product. Calls of ops and of both_modes are judged where they are transposed in their turn.
"""


class _Constant:
    """A value that a traced function closes over. It is read only if the answer depends on it,
    because it may lie on another device.
    """

    def __init__(self, value: object):
        self.value = value

    def __bool__(self) -> bool:
        """Whether it is zero everywhere, as far as this process can read it. It is read by NumPy:
        an operation of JAX would be traced.
        """
        value = self.value
        aval = jax.typeof(value)
        if isinstance(value, jax.core.Tracer) or not isinstance(aval, jax.core.ShapedArray):
            return False
        if not (jnp.issubdtype(aval.dtype, jnp.number) or aval.dtype == bool):  # such as keys
            return False
        if isinstance(value, jax.Array) and (value.is_deleted() or not value.is_fully_addressable):
            return False
        return not np.asarray(value).any()


Fact: TypeAlias = bool | _Constant
"""Something that holds of a value, or the constant of which it is to be found out."""


def _all(facts: Iterable[Fact]) -> bool:
    return all(_constants_last(facts))


def _any(facts: Iterable[Fact]) -> bool:
    return any(_constants_last(facts))


def _constants_last(facts: Iterable[Fact]) -> list[Fact]:
    """So that they are read only where the others do not decide."""
    known: list[Fact] = []
    constants: list[Fact] = []
    for fact in facts:
        (constants if isinstance(fact, _Constant) else known).append(fact)
    return known + constants


class Question(NamedTuple):
    """Something that is asked of each value in a traced function.

    Attributes:
      of_constant: the fact of a constant.
      of_step: (equation, facts of its inputs) -> facts of its results; of one without a jaxpr.
    """

    of_constant: Callable[[object], Fact]
    of_step: Callable[[Eqn, list[Fact]], list[Fact]]


def facts_in(
    question: Question, jaxpr: ClosedJaxpr, facts: Sequence[Fact]
) -> Callable[[Atom], Fact]:
    """The fact of each value of a jaxpr, where these are the facts of its inputs."""
    inner, constants = jax_seam.open_jaxpr(jaxpr)
    known: dict[Any, Fact] = {}
    known.update(zip(inner.constvars, map(question.of_constant, constants), strict=True))
    known.update(zip(inner.invars, facts, strict=True))

    def fact(atom: Atom) -> Fact:
        return question.of_constant(atom.val) if jax_seam.is_literal(atom) else known[atom]

    for eqn in inner.eqns:
        outs = _results(question, eqn, list(map(fact, eqn.invars)))
        known.update(zip(eqn.outvars, outs, strict=True))
    return fact


def _outputs(question: Question, jaxpr: ClosedJaxpr, facts: Sequence[Fact]) -> list[Fact]:
    fact = facts_in(question, jaxpr, facts)
    return list(map(fact, jax_seam.open_jaxpr(jaxpr)[0].outvars))


def _results(question: Question, eqn: Eqn, facts: list[Fact]) -> list[Fact]:
    """The facts of the results of an equation, where these are the facts of its inputs."""
    inside = _inputs_inside(question, eqn, facts)
    if inside is None:
        return question.of_step(eqn, facts)
    outs = [_outputs(question, inner, inside) for inner in jax_seam.inner_jaxprs(eqn)]
    return [_all(each) for each in zip(*outs, strict=True)]


def _inputs_inside(question: Question, eqn: Eqn, facts: list[Fact]) -> list[Fact] | None:
    """The facts of the inputs of the jaxprs inside an equation; None where it has none, or where
    they take something else.
    """
    inner = jax_seam.inner_jaxprs(eqn)
    if eqn.primitive.name == "cond":
        return facts[1:]
    if eqn.primitive.name == "scan":
        return _inputs_of_scan(question, eqn, facts)
    is_call = len(inner) == 1 and len(jax_seam.open_jaxpr(inner[0])[0].invars) == len(facts)
    return facts if is_call else None


def _inputs_of_scan(question: Question, eqn: Eqn, facts: list[Fact]) -> list[Fact]:
    """The facts that hold in every step: what is carried may lose a fact on its way."""
    [body] = jax_seam.inner_jaxprs(eqn)
    first, carried, _ = jax_seam.scan_counts(eqn)
    places = range(first, first + carried)
    held = list(facts)
    for _ in places:  # at most so often one of them loses it
        outs = _outputs(question, body, held)
        lost = [i for i, out in zip(places, outs) if held[i] and not out]
        if not lost:
            break
        for i in lost:
            held[i] = False
    return held


def _zero_results(eqn: Eqn, zeros: list[Fact]) -> list[Fact]:
    """Whether each result of a step is certainly zero, where these inputs are."""
    floating = [zero for v, zero in zip(eqn.invars, zeros, strict=True) if is_inexact(v.aval)]
    is_zero = (_all if eqn.primitive.name in TERMS else _any)(floating or zeros)
    # Of floats integers and booleans are no linear function.
    return [is_zero and (not floating or is_inexact(v.aval)) for v in eqn.outvars]


ZERO = Question(of_constant=_Constant, of_step=_zero_results)


# --- stop_gradient of what must be linear ---------------------------------------------------------


def _fixed_results(eqn: Eqn, fixed: list[Fact]) -> list[Fact]:
    """Whether each result depends on no argument, where these inputs do not."""
    return [_all(fixed) for _ in eqn.outvars]


FIXED = Question(of_constant=lambda _: True, of_step=_fixed_results)


def _stops(jaxpr: ClosedJaxpr) -> bool:
    """Whether there is a stop_gradient in it."""
    return any(map(_stops_in, jax_seam.open_jaxpr(jaxpr)[0].eqns))


def _stops_in(eqn: Eqn) -> bool:
    return eqn.primitive.name == "stop_gradient" or any(map(_stops, jax_seam.inner_jaxprs(eqn)))


def _run_without_stops(
    jaxpr: ClosedJaxpr, fixed: Sequence[Fact], values: Sequence[object]
) -> list[Any]:
    """The outputs of a jaxpr, without each stop_gradient of what depends on its arguments. It
    changes no value, and has no transpose. A vmap of a cond makes such steps. Those of other values
    stay: they count where the transpose is differentiated by what it closes over.
    """
    fact = facts_in(FIXED, jaxpr, fixed)

    def called(eqn: Eqn) -> Callable[..., Any]:
        of_inputs = list(map(fact, eqn.invars))
        if _all(of_inputs) or not _stops_in(eqn):
            return jax_seam.as_function(eqn)
        if eqn.primitive.name == "stop_gradient":
            return lambda x: x
        inside = _inputs_inside(FIXED, eqn, of_inputs)
        if inside is None:
            return jax_seam.as_function(eqn)
        return jax_seam.with_inner(
            eqn, lambda inner, values: _run_without_stops(inner, inside, values)
        )

    return jax_seam.run_jaxpr(jaxpr, values, called)
