"""L5: one value, whoever computes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import jax
import numpy as np

from ..engine.engine import Engine
from ..extension import ExtensionOp, RouteKind, apply
from ..extension.op import has_host_form
from ..graph.builder import GraphBuilder
from ..io.export import export, load
from ..meta import meta_of
from .examples import Inputs, of_other_sizes, rows
from .inference import run_host_form, symbolic_graph
from .subject import Broken, NotApplicable, Subject, breaking

PURE = "Compute from inputs and payload alone; seed what is random by the payload."
SAME = "Let every route compute the same; state a tolerance where rounding may differ."


def value(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """A plain call, against the oracle where there is one."""
    with breaking("X8.1", "a plain call", "See the error."):
        got = subject.call(*inputs)
    subject.require_equal("a plain call" + (" against the oracle" if subject.oracle else ""), got, subject.expected(inputs), "X8.10", SAME)
    yield


def routes(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Each route alone, eagerly, against the expected value."""
    kinds = subject.routes(inputs)
    if len(kinds) < 2 and not subject.oracle:
        reason = f"one route, {kinds[0].value}, and no oracle" if kinds else "no route"
        raise NotApplicable(reason, "Pass oracle=, a NumPy function of the inputs.")
    for kind in kinds:
        only = subject.runtimes.only(kind)
        with breaking("X8.3", f"route {kind.value}", "See the error."):
            got = apply(subject.op, *inputs, runtimes=only)
        subject.require_equal(f"route {kind.value}", got, subject.expected(inputs), "X8.10", SAME)
        yield


def host_form(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """eager_execute itself: NumPy arrays, inputs left as they are, equal answers at every call."""
    op = subject.op
    if not has_host_form(op):
        raise NotApplicable("the op has no host form", "Override eager_execute.")
    with breaking("X8.8", "eager_execute", "See the error."):
        first = tuple(np.array(out) for out in run_host_form(op, inputs))
    yield
    for look in ("second", "third"):
        with breaking("X8.8", "eager_execute", "See the error."):
            again = run_host_form(op, inputs)
        if any(np.asarray(a).tobytes() != b.tobytes() for a, b in zip(again, first, strict=True)):
            raise Broken("X4.3", f"eager_execute gives other values at the {look} call", PURE)
        yield


def repeated(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Called again with other inputs between, and compiled anew; the inputs stay as they are."""
    private = tuple(x.copy() for x in inputs)
    first = subject.call(*private)
    subject.call(*rows(private, 2)[1])
    subject.require_equal("called again after other inputs", subject.call(*private), first, "X4.3", PURE)
    yield
    subject.require_equal("compiled anew", jax.jit(lambda *xs: subject.call(*xs))(*private), first, "X13.3", SAME)
    yield
    if any(a.tobytes() != b.tobytes() for a, b in zip(private, inputs, strict=True)):
        raise Broken("X8.7", "a call wrote into its inputs", "Never write into an input: make a new array.")
    yield


def engine(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The graph compiled by an Engine, with symbolic sizes bound to the example's and to others."""
    graph = symbolic_graph(subject, inputs)
    runner = Engine()
    for made in _two_sizes(subject, inputs):
        what = f"Engine at {', '.join(str(meta_of(x)) for x in made)}"
        with breaking("X8.9", what, "See the error."):
            got = runner.eval(graph, *made)
        subject.require_equal(what, got, subject.expected(made), "X8.10", SAME)
        yield


def pruned_outputs(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """A graph that uses one output alone, compiled: what prune_outputs leaves gives the same."""
    if type(subject.op).prune_outputs is ExtensionOp.prune_outputs:
        raise NotApplicable("the op prunes no outputs", "Override prune_outputs, if that saves work.")
    for i, want in enumerate(subject.expected(inputs)):
        builder = GraphBuilder()
        outs = builder.add(subject.carrier, *[builder.input(meta_of(x)) for x in inputs])
        fix = "Give the live outputs, in order."
        with breaking("X8.11", f"output {i} alone", fix):
            (got,) = jax.tree.leaves(Engine().eval(builder.build([outs[i]]), *inputs))
        subject.require_equal(f"output {i} alone", got, want, "X8.11", fix)
        yield


def _two_sizes(subject: Subject, inputs: Inputs) -> list[Inputs]:
    return [inputs, *subject.accepted(of_other_sizes(inputs, (2, 1)))[:1]]


def exported(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Exported for several platforms, reloaded from its bytes, and run; its attribute names the family."""
    _require_exportable(subject, inputs)
    only = subject.runtimes.only(RouteKind.LOWERING)
    fix = "Lower to what exports: no host code, no kernel, no callback."
    with breaking("X13.7", "export", fix):
        program = load(export(lambda *xs: apply(subject.op, *xs, runtimes=only), *inputs).to_bytes())
    if list(program.extensions) != [subject.carrier.attributes()]:
        raise Broken("X11.1", f"the exported program holds {program.extensions}", "Keep family_id and payload as the class states them.")
    yield
    subject.require_equal("exported and reloaded", program(*inputs), subject.expected(inputs), "X13.7", SAME)
    yield


def exported_sizes(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Exported with symbolic sizes, reloaded, and run at two sizes."""
    _require_exportable(subject, inputs)
    graph = symbolic_graph(subject, inputs).with_runtimes(subject.runtimes.only(RouteKind.LOWERING))
    if not graph.is_symbolic:
        raise NotApplicable("no input has a size that can change", "Give an example with sizes from 1.")
    fix = "Write the lowering in functions that take symbolic sizes, or lower by scan and gather instead."
    with breaking("X13.7", "export with symbolic sizes", fix):
        program = load(export(graph, platforms=("cpu",)).to_bytes())
    for made in _two_sizes(subject, inputs):
        what = f"exported with symbolic sizes, at {', '.join(str(meta_of(x)) for x in made)}"
        with breaking("X13.7", what, fix):
            got = program(*made)
        subject.require_equal(what, got, subject.expected(made), "X13.7", SAME)
        yield


def _require_exportable(subject: Subject, inputs: Inputs) -> None:
    if RouteKind.LOWERING not in subject.routes(inputs):
        raise NotApplicable("the op has no lowering", "Override lower_to_standard_ops.")
    if importlib.util.find_spec("flatbuffers") is None:
        raise NotApplicable("flatbuffers is not installed", "pip install 'tenferro-jax[export]'.")
