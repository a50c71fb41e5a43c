"""L1: every route returns the dtypes and shapes of infer_output_meta, for concrete and for symbolic
sizes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from ..errors import TenferroError
from ..extension.carrier import kernel_body, lowering_body
from ..extension.contract import (
    ExtensionOp,
    checked_sequence,
    require_arrays,
)
from ..extension.execution import read_only
from ..extension.function_extension import FunctionExtension
from ..extension.routes import current_platform, extensions_in
from ..extension.runtimes import Kernel, RouteKind
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph
from ..shapes import TensorMeta, meta_of, struct
from .breaches import Broken, NotApplicable, as_broken, breaking, causes, one_line
from .examples import Inputs, listed, of_other_sizes, sizes_of, variants
from .op_subject import OpSubject

COMPARE = "Compare sizes with require_equal: == is False for symbols that may be equal."
AGREE = "Make infer_output_meta and the implementation agree."


def meta(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """Compares the dtypes and shapes of every route with inference, in every precision and size
    that inference takes.
    """
    with breaking("X7.6", "inference", "Let it take the example, or give another example."):
        subject.carrier.infer(*map(meta_of, inputs))
    for made in variants(inputs):
        metas = subject.metas(made)
        if metas is None:
            continue
        # The host form may refuse values only in the dtypes of the example, not a dtype that
        # inference takes.
        refused = made is not inputs and subject.refuses(
            tuple(x.astype(like.dtype) for x, like in zip(made, inputs, strict=True))
        )
        if metas != subject.metas(made):
            raise Broken(
                "X4.3",
                "infer_output_meta says something else at the second look",
                "Compute it from payload and inputs alone.",
            )
        for route, outputs in _bodies(subject, made):
            if refused and route == RouteKind.HOST.value:
                continue
            what = f"{route} for {listed(made)}"
            with breaking("X7.1", what, AGREE):
                outs = outputs()
            if outs is None:
                continue
            have = tuple(map(meta_of, outs))
            if have != metas:
                raise Broken(
                    "X7.1",
                    f"{what}: returns {_text(have)} where infer_output_meta says {_text(metas)}",
                    AGREE,
                )
            yield


def _text(metas: Sequence[TensorMeta] | None) -> str:
    return ", ".join(map(str, metas or ())) or "nothing"


def _bodies(subject: OpSubject, inputs: Inputs) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each route with a function that returns its outputs as arrays or structs, or None if it
    declines.
    """
    op, carrier, metas = subject.op, subject.carrier, list(map(meta_of, inputs))
    structs = [struct(meta) for meta in metas]

    def of_kernel(kernel: Kernel) -> Any:
        if kernel.declines is not None and kernel.declines(op, *metas):
            return None
        return jax.eval_shape(functools.partial(kernel_body, carrier, kernel), structs)

    for kernel in subject.runtimes.kernels(op.family_id, current_platform()):
        yield f"kernel {kernel.title}".rstrip(), functools.partial(of_kernel, kernel)
    if op.has_own("lower_to_standard_ops"):
        lowering = functools.partial(lowering_body, carrier)
        yield RouteKind.LOWERING.value, functools.partial(jax.eval_shape, lowering, structs)
    if op.has_own("eager_execute"):
        yield RouteKind.HOST.value, functools.partial(run_host_form, op, inputs)


def run_host_form(op: ExtensionOp, inputs: Inputs) -> tuple[Any, ...]:
    """The outputs of eager_execute for read-only arrays; checks that they are NumPy arrays and that
    the inputs did not change.
    """
    private = [x.copy("K") for x in inputs]
    fix = "Do not write into an input; make a new array."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # NumPy on values such as the mean of nothing
            returned = op.eager_execute(*map(read_only, private))
    except ValueError as error:
        if "read-only" in str(error):
            raise Broken("X8.7", f"eager_execute writes into an input: {error}", fix) from error
        raise
    for i, (after, before) in enumerate(zip(private, inputs, strict=True)):
        if after.tobytes() != before.tobytes():
            raise Broken("X8.7", f"eager_execute wrote into input {i}", fix)
    outs = require_arrays(
        checked_sequence(returned, op, "eager_execute", op.output_count), op, "eager_execute"
    )
    for i, out in enumerate(outs):
        if not isinstance(out, np.ndarray | np.generic):
            kind = f"{type(out).__module__}.{type(out).__qualname__}"
            raise Broken(
                "X8.7",
                f"eager_execute returns a {kind} for output {i}",
                "Compute with NumPy, or return numpy.asarray(value).",
            )
    return outs


def lowering(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """The lowering ends in standard ops, and is the same each time it is traced."""
    if not subject.op.has_own("lower_to_standard_ops"):
        raise NotApplicable("the op has no lowering", "Override lower_to_standard_ops.")
    structs = [struct(meta_of(x)) for x in inputs]
    fix = "Write out the computation of the inner extension; only AD rules may call extensions."
    looks = []
    for _ in range(2):
        # A new function each time, because JAX would take the second result from its cache.
        with breaking("X8.6", "the lowering", "Return None to decline, or correct it."):
            looks.append(
                jax.make_jaxpr(lambda *xs: lowering_body(subject.carrier, xs) or ())(*structs)
            )
    inner = [carrier.family_id for carrier, _ in extensions_in(looks[0])]
    if inner:
        raise Broken("X8.5", f"the lowering holds the extensions {', '.join(inner)}", fix)
    yield
    if str(looks[0]) != str(looks[1]):
        raise Broken(
            "X4.3",
            "the lowering is another program at the second look",
            "Compute it from payload and inputs alone.",
        )
    yield


def symbolic_sizes(subject: OpSubject, inputs: Inputs) -> Iterator[str | None]:
    """Gives each axis a symbol of its own. After binding the symbols to sizes, dtypes and shapes
    are those of concrete inference.
    """
    graph = symbolic_graph(subject, inputs)
    # Sizes that all differ come first: an error there does not come from a comparison of sizes.
    for made in sorted(
        [inputs, *of_other_sizes(inputs, (1, 2, 3, 5)), *_one_axis_changed(inputs)],
        key=_has_equal_sizes,
    ):
        metas = subject.metas(made)
        if metas is None:
            continue
        try:
            bound = graph.bound_metas([meta_of(x) for x in made]).output_metas
        except TenferroError as error:
            if made is inputs:
                raise as_broken(
                    error,
                    "X7.4",
                    "guards at the sizes of the example",
                    "Assume no more than the op needs.",
                ) from error
            continue
        if bound != metas:
            clause, fix = (
                ("X7.3", COMPARE)
                if _has_equal_sizes(made)
                else ("X7.2", "Compute sizes from input shapes, without constants in their place.")
            )
            raise Broken(
                clause,
                f"{listed(made)}: {_text(metas)}, but symbolic sizes bound to these give "
                f"{_text(bound)}",
                fix,
            )
        yield None


def _has_equal_sizes(inputs: Inputs) -> bool:
    return len(sizes_of(inputs)) < sum(x.ndim for x in inputs)


def _one_axis_changed(inputs: Inputs) -> Iterator[Inputs]:
    for i, x in enumerate(inputs):
        for axis, size in enumerate(x.shape):
            for new in (size + 1, size + 2) if size else ():
                yield (*inputs[:i], np.take(x, np.arange(new) % size, axis=axis), *inputs[i + 1 :])


def symbolic_graph(subject: OpSubject, inputs: Inputs) -> Graph:
    """The op in a graph with a symbol for every axis; if only JAX compares sizes, equal sizes share
    a symbol. A function that is its own inference need not take symbols.
    """
    derived = not subject.op.has_own("infer_output_meta")
    try:
        return graph_of(subject, _symbolic_metas(inputs, shared=False))
    except Exception as error:
        failed = error
    if derived and _has_equal_sizes(inputs):
        try:
            return graph_of(subject, _symbolic_metas(inputs, shared=True))
        except Exception as error:
            failed = error
    if derived and isinstance(subject.op, FunctionExtension):
        reason = f"the function needs sizes that are numbers: {one_line([*causes(failed)][-1])}"
        raise NotApplicable(reason) from failed
    if derived and _has_equal_sizes(inputs):
        fix = (
            "Write infer_output_meta: inference from the lowering works only for sizes that its "
            "JAX functions accept."
        )
        raise as_broken(failed, "X7.2", "symbolic sizes", fix) from failed
    raise _symbolic_failure(failed, derived) from failed


def _symbolic_failure(error: Exception, derived: bool) -> Broken:
    if derived or any(
        isinstance(e, jax.errors.InconclusiveDimensionOperation | TypeError)
        and not isinstance(e, TenferroError)
        for e in causes(error)
    ):
        fix = "Use arithmetic of dimensions and require_equal, not int(), < or range() of a size."
        return as_broken(error, "X7.2", "different symbols that may be equal", fix)
    return as_broken(error, "X7.3", "different symbols that may be equal are refused", COMPARE)


def _symbolic_metas(inputs: Inputs, *, shared: bool) -> list[TensorMeta]:
    """Metas with a symbol for each axis, or for each size; axes of size 0 stay."""
    names = {
        (i, axis): f"s{size}" if shared else f"d{i}_{axis}"
        for i, x in enumerate(inputs)
        for axis, size in enumerate(x.shape)
        if size
    }
    different = sorted(set(names.values()))
    if not different:
        return [meta_of(x) for x in inputs]
    symbols = dict(zip(different, jax.export.symbolic_shape(", ".join(different)), strict=True))
    return [
        TensorMeta(
            x.dtype,
            tuple(symbols[names[i, axis]] if size else 0 for axis, size in enumerate(x.shape)),
        )
        for i, x in enumerate(inputs)
    ]


def graph_of(subject: OpSubject, metas: Sequence[TensorMeta]) -> Graph:
    """The op in a graph."""
    builder = GraphBuilder()
    outs = builder.add(subject.carrier, *[builder.input(m) for m in metas], rules=subject.rules)
    return builder.build(list(outs))
