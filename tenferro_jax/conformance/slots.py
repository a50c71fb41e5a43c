"""L3: the treatment of slots that are None, read from the traced rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..extension.carrier import Extension
from ..extension.contract import inherited
from ..extension.rules import absent, linearize, present
from ..jax_seam import Atom, ClosedJaxpr, inner_jaxprs, is_literal, open_jaxpr
from ..shapes import meta_of, struct
from .breaches import Broken, NotApplicable
from .examples import Array, Inputs
from .op_subject import OpSubject
from .smooth import Mask, Smooth, smooth

MULTIPLIES = ("mul", "dot_general", "div")
CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")
ADDS = ("add", "add_any", "sub")


class Traced(NamedTuple):
    """The inputs from which a value in a rule is computed."""

    zero: bool = False
    tangent: bool = False
    primal: bool = False


def inactive_slots(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """An output that no given tangent reaches gets None, and the rule computes no term from zeros
    that it made for an inactive input.
    """
    if subject.plain_subject() is not None:
        raise NotApplicable("JAX differentiates the function")
    if getattr(subject.op, "takes_zeros", False):
        raise NotApplicable(
            "the rule takes zeros for missing tangents, as that of jax.custom_jvp",
            "Use defjvp(rule, symbolic_zeros=True), and leave out terms whose tangent is None.",
        )
    view = smooth(subject, inputs, reverse=False)
    _, _, most = _emitted(subject, view, view.active)
    for mask in view.masks():
        outputs, made_from, terms = _emitted(subject, view, mask)
        for i, traced in zip(outputs, made_from, strict=True):
            if not traced.tangent:
                text = (
                    f"derivative by {subject.names(mask)}: the tangent of output {i} is made from "
                    f"no tangent that was given"
                )
                raise Broken("X10.4", text, "Return None for it.")
        if terms > most:
            text = (
                f"derivative by {subject.names(mask)}: zeros are made for an inactive input, and "
                f"multiplied or added"
            )
            raise Broken("X10.4", text, "Leave out the term of an input whose tangent is None.")
        yield


def _emitted(subject: OpSubject, view: Smooth, mask: Mask) -> tuple[list[int], list[Traced], int]:
    """The traced rule for some active inputs: the outputs that get a tangent, the inputs of each,
    and the number of sums with a term, and of products with a factor, of zeros that the rule made.
    """
    rule = subject.rule()
    metas = [meta_of(x) for x in view.inputs]
    form = subject.carrier.with_op(rule.form_for(subject.op, metas))
    numbers: list[int] = []

    def run(
        primals: Sequence[jax.Array],
        outs: Sequence[jax.Array],
        given: Sequence[jax.Array],
    ) -> Any:
        tangents = [dict(zip(mask, given, strict=True)).get(i) for i in range(len(metas))]
        with inherited((subject.rules, subject.carrier.given)):
            results = linearize(rule, form.op, (), primals, outs, tangents)
        numbers[:] = [i for i, result in enumerate(results) if not absent(result)]
        return present(results)

    primals, outs, given = (
        [struct(m) for m in metas],
        [struct(m) for m in form.infer(*metas)],
        [struct(metas[i]) for i in mask],
    )
    closed = jax.make_jaxpr(run)(primals, outs, given)
    arguments = [Traced(primal=True)] * (len(primals) + len(outs)) + [Traced(tangent=True)] * len(
        given
    )
    return numbers, *_walk(closed, arguments)


def _walk(closed: ClosedJaxpr, arguments: Sequence[Traced]) -> tuple[list[Traced], int]:
    jaxpr, constants = open_jaxpr(closed)
    known = dict(zip(jaxpr.invars, arguments, strict=True))
    known |= {v: Traced(zero=_is_zero(c)) for v, c in zip(jaxpr.constvars, constants, strict=True)}
    terms = 0

    def look(atom: Atom) -> Traced:
        return Traced(zero=_is_zero(atom.val)) if is_literal(atom) else known[atom]

    for eqn in jaxpr.eqns:
        given = [look(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            outs, more = _walk(inner_jaxprs(eqn)[0], given)
            terms += more
        else:
            tangent, primal = any(t.tangent for t in given), any(t.primal for t in given)
            has_zero = any(
                t.zero and atom.aval.shape for t, atom in zip(given, eqn.invars, strict=True)
            )  # a number is not a tensor
            multiplies = eqn.primitive.name in MULTIPLIES or isinstance(
                eqn.params.get("op"), Extension
            )
            terms += has_zero and (
                eqn.primitive.name in ADDS or (multiplies and primal and not tangent)
            )
            zero = bool(given) and all(t.zero for t in given) and len(given) == 1
            outs = [Traced(zero, tangent, primal)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, outs, strict=True))
    return [look(atom) for atom in jaxpr.outvars], terms


def _is_zero(value: Array) -> bool:
    return not np.any(np.asarray(value))
