"""L3: the op that a rule runs in place of another one, when that is differentiated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ..errors import NotDifferentiableError
from ..extension.carrier import Extension
from ..extension.primitive import apply
from ..shapes import meta_of
from .examples import FLOATS, Inputs, cast
from .subject import Broken, NotApplicable, Subject, breaking

FIX = "Let differentiable_form give an op of the same family and inputs, whose first outputs are those of the op."


def differentiable_form(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Its first outputs are those of the op, in every precision."""
    rule = subject.rule()
    with breaking("X10.12", "differentiable_form", FIX):
        try:
            form = rule.differentiable_form(subject.op)
        except NotDifferentiableError:
            form = subject.op
        carrier = Extension(form, (), subject.runtimes)
    if carrier == subject.carrier:
        raise NotApplicable("the rule differentiates the op itself", "Nothing is to be done.")
    if form.family_id != subject.op.family_id:
        raise Broken("X10.12", f"differentiable_form gives an op of family {form.family_id}", FIX)
    casts = {tuple(map(meta_of, made)): made for made in (inputs, *(cast(inputs, dtype) for dtype in FLOATS))}
    taken = [made for made in casts.values() if subject.metas(made) is not None]

    def both(examples: Sequence[Inputs]) -> Any:
        return [(apply(form, *made, runtimes=subject.runtimes)[: subject.op.output_count], subject.call(*made)) for made in examples]

    with breaking("X10.12", f"{form!r}", FIX):
        found = jax.block_until_ready(jax.jit(both)(taken))
    for made, (got, want) in zip(taken, found, strict=True):
        what = f"the first outputs of {form!r} for {', '.join(str(meta_of(x)) for x in made)}"
        subject.require_equal(what, got, want, "X10.12", FIX)
        yield
