"""What an op declares of itself. L1: dtypes and shapes of every route, for concrete and symbolic
sizes. L2: identity and equality. L6: payloads as text, and refusals by errors that name the family.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import TenferroError
from ..extension.carrier import Extension, kernel_body, lowering_body
from ..extension.contract import Can, ExtensionOp, checked_sequence, require_arrays
from ..extension.execution import read_only
from ..extension.kernels import Kernel, RouteKind
from ..extension.registry import ExtensionFactory, lookup_extension_factory
from ..extension.routes import current_platform
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph
from ..payload_text import payload_json
from ..shapes import TensorMeta, meta_of, struct
from .examples import Inputs, in_other_dtypes, listed, of_other_sizes, sizes_of
from .ops_given import OpSubject
from .report import Broken, Cases, NotApplicable, NotedCases, as_broken, breaking, causes, one_line

COMPARE = "Compare sizes with require_equal: == is False for symbols that may be equal."
AGREE = "Make infer_output_meta, of a function def_infer, and the implementation agree."


def meta(subject: OpSubject, inputs: Inputs) -> Cases:
    """Compares the dtypes and shapes of every route with inference, in every precision and size
    that inference takes.
    """
    with breaking("X7.6", "inference", "Let it take the example, or give another example."):
        subject.carrier.infer(*map(meta_of, inputs))
    for made in (inputs, *in_other_dtypes(inputs), *of_other_sizes(inputs, (1, 0))):
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
                    f"{what}: returns {listed(have)} where infer_output_meta says {listed(metas)}",
                    AGREE,
                )
            yield


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
    if op.can(Can.LOWER):
        lowering = functools.partial(lowering_body, carrier)
        yield RouteKind.LOWERING.value, functools.partial(jax.eval_shape, lowering, structs)
    if op.can(Can.RUN_ON_HOST):
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


def symbolic_sizes(subject: OpSubject, inputs: Inputs) -> NotedCases:
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
                f"{listed(made)}: {listed(metas)}, but symbolic sizes bound to these give "
                f"{listed(bound)}",
                fix,
            )
        yield None


def _has_equal_sizes(inputs: Inputs) -> bool:
    return len(sizes_of(inputs)) < sum(x.ndim for x in inputs)


def _one_axis_changed(inputs: Inputs) -> Iterator[Inputs]:
    for i, x in enumerate(inputs):
        for axis, size in enumerate(x.shape):
            for new in (size + 1, size + 2) if size else ():
                yield _with(inputs, i, np.take(x, np.arange(new) % size, axis=axis))


def _with(values: tuple[Any, ...], i: int, value: object) -> tuple[Any, ...]:
    """Values with another one at place i."""
    return (*values[:i], value, *values[i + 1 :])


def symbolic_graph(subject: OpSubject, inputs: Inputs) -> Graph:
    """The op in a graph with a symbol for every axis; if only JAX compares sizes, equal sizes share
    a symbol. Without inference of its own an op need not take symbols.
    """
    own = subject.op.can(Can.INFER)
    try:
        return graph_of(subject, _symbolic_metas(inputs, shared=False))
    except Exception as error:
        failed = error
    if own:
        raise _symbolic_failure(failed) from failed
    try:
        return graph_of(subject, _symbolic_metas(inputs, shared=True))
    except Exception as error:
        reason = f"it needs sizes that are numbers: {one_line([*causes(error)][-1])}"
        raise NotApplicable(reason, "Override infer_output_meta, or use def_infer.") from error


def _symbolic_failure(error: Exception) -> Broken:
    """Of inference that cannot compute with symbols, or refuses them."""
    if any(
        isinstance(e, jax.errors.InconclusiveDimensionOperation | TypeError)
        and not isinstance(e, TenferroError)
        for e in causes(error)
    ):
        fix = "Use arithmetic of dimensions and require_equal, not int(), < or range() of a size."
        return as_broken(error, "X7.2", "different symbols that may be equal", fix)
    return as_broken(error, "X7.3", "different symbols that may be equal are refused", COMPARE)


def _symbolic_metas(inputs: Inputs, *, shared: bool) -> list[TensorMeta]:
    """Metas with a symbol for each axis, or for each size; axes of size 0 stay."""
    names: list[list[str]] = []  # of each axis of each input; "" of one without elements
    for i, x in enumerate(inputs):
        of_axes = [f"s{size}" if shared else f"d{i}_{axis}" for axis, size in enumerate(x.shape)]
        names.append([name if size else "" for name, size in zip(of_axes, x.shape, strict=True)])
    different = sorted(set(itertools.chain.from_iterable(names)) - {""})
    if not different:
        return [meta_of(x) for x in inputs]
    symbols = dict(zip(different, jax.export.symbolic_shape(", ".join(different)), strict=True))
    metas = []
    for x, of_axes in zip(inputs, names, strict=True):
        shape = tuple(symbols[name] if name else 0 for name in of_axes)
        metas.append(TensorMeta(x.dtype, shape))
    return metas


def graph_of(subject: OpSubject, metas: Sequence[TensorMeta]) -> Graph:
    """The op in a graph."""
    builder = GraphBuilder()
    outs = builder.add(subject.carrier, *[builder.input(m) for m in metas], rules=subject.rules)
    return builder.build(list(outs))


def family_id(subject: OpSubject, inputs: Inputs) -> Cases:
    """The family_id is well-formed and belongs to the class."""
    fix = (
        "Write family_id as a class attribute, or use @extension_op; make another family for an "
        "op with another id."
    )
    with breaking("X5.3", "the carrier of the op", fix):
        Extension(subject.op)
    yield


def identity(subject: OpSubject, inputs: Inputs) -> Cases:
    """Equal payloads make equal carriers with equal hashes; payloads of other types or bits make
    unequal carriers.
    """
    op = subject.op
    fix = "Leave typed_key, equality and hash to the base class."
    with breaking("X4.1", "a copy of the op", "Let __post_init__ accept its own fields."):
        same = Extension.of(dataclasses.replace(op) if dataclasses.is_dataclass(op) else type(op)())
    if same != Extension.of(op) or hash(same) != hash(Extension.of(op)):
        raise Broken("X5.8", f"{op!r} made twice gives two different ops", fix)
    yield
    for near in neighbours(op):
        if Extension.of(near) == Extension.of(op):
            raise Broken("X5.6", f"{near!r} counts as equal to {op!r}", fix)
        yield


def immutable(subject: OpSubject, inputs: Inputs) -> Cases:
    """After inference and a run the op has no attributes besides its fields."""
    op = subject.op
    fields = set(_fields(op))
    before = payload_json(op)
    for _ in range(2):
        subject.call(*inputs)
        state = {
            name
            for name in vars(op)
            if name not in fields and not name.startswith(("_key", "_hash", "_carrier"))
        }
        if state:
            raise Broken(
                "X4.1",
                f"state outside the fields: {', '.join(sorted(state))}",
                "Keep no state on an op; compute anew, or cache by payload.",
            )
        if payload_json(op) != before:
            raise Broken(
                "X4.1",
                f"the payload was {before} and is {payload_json(op)}",
                "Never change an op; make another.",
            )
        yield


def payload_text(subject: OpSubject, inputs: Inputs) -> Cases:
    """Writes the payload as text and reads it back with the factory of the family."""
    op = subject.op
    factory = lookup_extension_factory(op.family_id) or ExtensionFactory(type(op))
    fix = "Let decode and __post_init__ accept what payload_json writes."
    for each in (op, *neighbours(op)):
        text = payload_json(each)
        try:
            with breaking("X5.9", f"decode({text})", fix):
                back = factory.decode(text)
        except Broken:
            if each is op:
                raise
            continue  # a changed payload that the family does not take
        if Extension.of(back) != Extension.of(each):
            raise Broken("X5.9", f"{each!r}, written as {text}, is read as {back!r}", fix)
        yield


def _fields(op: object) -> list[str]:
    return [f.name for f in dataclasses.fields(op)] if dataclasses.is_dataclass(op) else []


def neighbours(op: ExtensionOp) -> Iterator[Any]:
    """Ops whose payload differs in the type or the bits of one field, if the op accepts that."""
    for name in _fields(op):
        for value in _near(getattr(op, name)):
            try:
                near = dataclasses.replace(op, **{name: value})  # type: ignore[type-var]
                Extension.of(near)
            except Exception:  # the op may refuse such a payload
                continue
            if payload_json(near) != payload_json(op):
                yield near


def _near(value: object) -> list[Any]:
    """Values that differ from this one in type or in bits, and are like it."""
    if isinstance(value, tuple):
        longer = (*value, 0)
        others = (_with(value, i, near) for i, x in enumerate(value) for near in _near(x)[:2])
        return [longer, *others]
    if isinstance(value, str):
        return [value + " ", value.encode()]
    if isinstance(value, complex):
        return [value.conjugate(), complex(value.real, -0.0)]
    if not isinstance(value, int | float):
        return []
    found: list[Any] = []
    with contextlib.suppress(ValueError, OverflowError):  # of values that are not finite
        found += [kind(value) for kind in (bool, int, float) if kind(value) == value]
    found += [value + 1, -value]
    if isinstance(value, float):
        found += [math.nextafter(value, math.inf), np.float64(value)]
    return [near for near in found if (type(near), repr(near)) != (type(value), repr(value))]


def wrong_inputs(subject: OpSubject, inputs: Inputs) -> Cases:
    """Changes the dtype, rank and sizes of one input at a time: the op accepts the inputs, or a
    typed error names the family.
    """
    fix = "Raise a typed error of tenferro_jax for what the op does not take, in infer_output_meta."
    for made in (_with(inputs, i, other) for i, x in enumerate(inputs) for other in _unlike(x)):
        what = listed(made)
        try:
            subject.carrier.infer(*map(meta_of, made))
            # Inference from the lowering has traced it.
            if subject.op.can(Can.INFER):
                if subject.routes(made) == (RouteKind.HOST,):
                    subject.call(*made)
                else:
                    jax.jit(lambda *xs: subject.call(*xs)).lower(*made)
        except TenferroError as error:
            if subject.op.family_id not in str(error):
                raise Broken(
                    "X7.6", f"{what}: refused without naming the family: {error}", fix
                ) from error
        except Exception as error:
            what += ": inference takes these, and the implementation fails"
            raise as_broken(error, "X7.1", what, fix) from error
        yield


def _unlike(x: np.ndarray) -> Iterator[np.ndarray]:
    for dtype in (np.bool_, np.int32, np.float32, np.complex64):
        if x.dtype != dtype:
            yield x.real.astype(dtype) if x.dtype.kind == "c" else x.astype(dtype)
    yield x[None]
    if x.ndim:
        yield x.reshape(-1)[:1].reshape(()) if x.size else np.zeros((), x.dtype)
        yield np.repeat(x, 2, axis=x.ndim - 1)
        yield np.repeat(x, 2, axis=0)
