"""L5: every route and every transform gives the same value and derivative."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..errors import ShapeError
from ..extension.contract import Can, lowered
from ..extension.kernels import ExtensionRuntimeSet, RouteKind
from ..extension.primitive import apply
from ..extension.routes import current_platform
from ..io.export import export
from ..io.exported import load_exported
from ..shapes import is_inexact, struct
from .declared import run_host_form, symbolic_graph
from .examples import Inputs, grown, in_other_dtypes, is_half, listed, of_other_sizes
from .functions import Claim, FunctionSubject, in_terms_of
from .ops_given import OpSubject
from .report import Broken, Cases, NotApplicable, NotedCases, breaking, failure, one_line

PURE = "Compute from inputs and payload alone; seed what is random by the payload."

Outputs = tuple[jax.Array, ...]


def value(subject: OpSubject, inputs: Inputs) -> Iterator[str]:
    """Makes a plain call: its values are those of the function traced anew. If they differ, the
    compiled program kept Python state.
    """
    with breaking("X8.1", "a plain call", "See the error."):
        got = subject.call(*inputs)
    want = subject.expected(inputs)
    if [*subject.ways(inputs)] == [RouteKind.LOWERING.value]:
        with breaking("X8.1", "the lowering", "See the error."):
            want = jax.jit(lambda *xs: lowered(subject.op, xs))(*inputs)
    subject.require_equal("a plain call, against the lowering now", got, want, "X4.3", PURE)
    yield subject.tied


def value_of_function(subject: FunctionSubject, inputs: Inputs) -> NotedCases:
    """Calls the function, compiled too, at two inputs and again: the values are those of the first
    call, and the function keeps nothing from an earlier call.
    """
    if (error := subject.untraced) is not None:
        raise error
    if subject.first is not None:
        with breaking("", "called again", ""):
            again = subject.plain(anew=True)
        terms = in_terms_of(inputs)
        subject.require_equal("called again", again, subject.first, "", "", terms)
        yield subject.tied
    examples = subject.rows(inputs, 2)
    first = [list(map(np.asarray, subject.call(*xs))) for xs in examples]
    for what, call in (("called again", subject.call), ("jit", subject.compiled)):
        for xs, want in zip(examples, first, strict=True):
            with breaking("", what, ""):
                got = call(*xs)
            subject.require_equal(what, got, want, "", "", in_terms_of(xs))
            yield None


def host_form(subject: OpSubject, inputs: Inputs) -> Cases:
    """Calls eager_execute directly: it returns NumPy arrays, does not change its inputs, and gives
    equal answers at every call.
    """
    op = subject.op
    if not op.can(Can.RUN_ON_HOST):
        raise NotApplicable("the op has no host form", "Override eager_execute, or use def_host.")

    def run(where: str, given: Inputs) -> Inputs:
        with breaking("X8.8", where, "See the error."):
            return tuple(np.array(out) for out in run_host_form(op, given))

    first = run("eager_execute", inputs)
    yield
    again = run("eager_execute", inputs)
    if any(a.tobytes() != b.tobytes() for a, b in zip(again, first, strict=True)):
        raise Broken("X4.3", "eager_execute gives other values at the second call", PURE)
    yield
    if any(x.ndim > 1 for x in inputs):
        where = "eager_execute on arrays in Fortran order"
        again = run(where, tuple(x.copy("F") for x in inputs))
        fix = "Read arrays by index: their memory may lie in any order."
        subject.require_equal(where, again, first, "X8.10", fix)
        yield


def exported(subject: OpSubject, inputs: Inputs) -> Cases:
    """Exports for several platforms, reloads the bytes, and runs them; an attribute of the call
    names the family.
    """
    _require_exportable(subject, inputs)
    only = subject.runtimes.only(RouteKind.LOWERING)
    fix = "Write the lowering without host code, kernels and callbacks, so that it can be exported."
    try:
        with breaking("X13.7", "export", fix):
            program = load_exported(
                export(lambda *xs: apply(subject.op, *xs, runtimes=only), *inputs).to_bytes()
            )
    except Broken:
        by_jax = functools.partial(jax.export.export, platforms=("cpu", "cuda", "tpu"))
        subject.require_plain("export this", by_jax, inputs)
        raise
    if subject.carrier.attributes() not in program.extensions:  # beside those that it calls
        raise Broken(
            "X11.1",
            f"the exported program holds {program.extensions}",
            "Keep family_id and payload as the class states them.",
        )
    yield
    subject.require_equal(
        "exported and reloaded", program.call(*inputs), subject.expected(inputs), "X13.7", SAME
    )
    yield


def exported_of_function(subject: FunctionSubject, inputs: Inputs) -> Cases:
    """Exports with jax.export, reloads the bytes and runs them."""
    try:
        data = jax.export.export(subject.compiled)(*inputs).serialize()
        program = jax.export.deserialize(data)
    except Exception as error:
        raise NotApplicable(f"JAX cannot export it: {one_line(error)}") from error
    with breaking("", "the exported program", ""):
        got = program.call(*inputs)
    subject.require_equal("exported and reloaded", got, subject.expected(inputs), "", "")
    yield


def exported_sizes(subject: OpSubject, inputs: Inputs) -> Cases:
    """Exports with symbolic sizes, reloads, and runs at two sizes."""
    _require_exportable(subject, inputs)
    graph = symbolic_graph(subject, inputs).with_runtimes(subject.runtimes.only(RouteKind.LOWERING))
    if not graph.is_symbolic:
        raise NotApplicable(
            "no input has a size that can change", "Give an example with sizes from 1."
        )
    fix = "Write the lowering in functions that accept symbolic sizes, or in scan and gather."
    try:
        with breaking("X13.7", "export with symbolic sizes", fix):
            program = load_exported(export(graph, platforms=(current_platform(),)).to_bytes())
    except Broken as broken:
        cause = broken.__cause__
        undecided = jax.errors.InconclusiveDimensionOperation
        is_tied = isinstance(cause, ShapeError) and cause.clause == "X7.3"
        if is_tied or isinstance(getattr(cause, "__cause__", None), undecided):
            reason = (
                f"the op ties sizes in a way that a symbol for each axis does not state: "
                f"{getattr(cause, 'given', cause)}"
            )
            raise NotApplicable(
                reason, "Export it with constraints=(...) of jax.export.symbolic_shape."
            ) from broken
        # It counts only if JAX exports the lowering as a plain function, or if the author's code
        # cannot even be traced.
        structs = [struct(m) for m in graph.input_metas]
        if not failure(jax.eval_shape, lambda *xs: lowered(subject.op, xs), *structs):
            by_jax = functools.partial(jax.export.export, platforms=("cpu",))
            subject.require_plain("export this with symbolic sizes", by_jax, structs)
        raise
    for made in [inputs, *subject.accepted(of_other_sizes(inputs, (2, 1)))[:1]]:
        what = f"exported with symbolic sizes, at {listed(made)}"
        with breaking("X13.7", what, "See the error."):
            got = program.call(*made)
        subject.require_equal(what, got, subject.expected(made), "X13.7", SAME)
        yield


def _require_exportable(subject: OpSubject, inputs: Inputs) -> None:
    if RouteKind.LOWERING not in subject.routes(inputs):
        raise NotApplicable("the op has no lowering", "Override lower_to_standard_ops.")
    if not subject.op.output_count:
        raise NotApplicable("the op has no outputs, so no program holds it")
    if importlib.util.find_spec("flatbuffers") is None:
        raise NotApplicable("flatbuffers is not installed", "pip install 'tenferro-jax[export]'.")


SAME = "Let every route compute the same; state a tolerance where rounding may differ."


def routes(subject: OpSubject, inputs: Inputs) -> NotedCases:
    """Runs each route alone, in every precision and at other sizes; compares it with the oracle, or
    else with the lowering or the host form.
    """
    elsewhere = [
        k.platform
        for k in subject.runtimes
        if k.family_id == subject.op.family_id and k.platform != current_platform()
    ]
    unchecked = (
        f"the kernel for {' and '.join(sorted(elsewhere))} was not run: this is "
        f"{current_platform()}"
        if elsewhere
        else ""
    )
    ways = _in_order(subject, inputs)
    if len(ways) < 2 and not subject.oracle:
        reason = f"one route, {ways[0][0]}, and no oracle" if ways else "no route"
        raise NotApplicable(
            "; ".join(filter(None, (reason, unchecked))),
            "Pass oracle=, a NumPy function of the inputs.",
        )
    made = [
        inputs,
        *subject.accepted(itertools.chain(in_other_dtypes(inputs), of_other_sizes(inputs, (1,)))),
    ]
    made += subject.accepted([grown(inputs)]) or subject.accepted(of_other_sizes(inputs, (2, 3)))
    answers = [_answer(subject, xs, i == 0) for i, xs in enumerate(made)]
    against = "the oracle" if subject.oracle else ways[0][0]
    claims = []
    for i, xs in enumerate(made):
        for way, alone in _in_order(subject, xs):
            what = f"route {way} for {listed(xs)}, against {against}"
            claims.append(Claim(what, functools.partial(apply, subject.op, runtimes=alone), xs, i))
    results = subject.results(claims, "X8.3", "See the error.")
    for (what, _, xs, i, _), got in zip(claims, results, strict=True):
        want = answers[i]
        if want is None:
            want = answers[i] = got
        elif any(is_half(x.dtype) for x in xs) and len(got) == len(want):
            # An integer output that depends on rounded values, such as the index of the largest,
            # may differ by the rounding.
            judged = [is_inexact(y) for y in got]
            got, want = (list(itertools.compress(outs, judged)) for outs in (got, want))
        fix = "Correct what computes this, or the oracle." if subject.oracle else SAME
        subject.require_equal(what, got, want, "X8.10", fix)
        yield unchecked or None


def _in_order(subject: OpSubject, inputs: Inputs) -> list[tuple[str, ExtensionRuntimeSet]]:
    """The routes that can run these inputs, kernels last."""
    return sorted(subject.ways(inputs).items(), key=lambda way: way[0].startswith("kernel"))


def _answer(subject: OpSubject, inputs: Inputs, is_example: bool) -> Any:
    """The oracle's outputs; None without an oracle, or if it does not take inputs made from the
    example.
    """
    if not subject.oracle:
        return None
    try:
        return subject.of_oracle(subject.oracle, inputs)
    except Broken:
        raise
    except Exception as error:
        if is_example:
            text = f"the oracle for the example: {one_line(error)}"
            raise Broken("X8.10", text, "Correct the oracle.") from error
        note = f"no oracle there: it raises {type(error).__name__} for {listed(inputs)}"
        subject.notes.update({note: None})
        return None
