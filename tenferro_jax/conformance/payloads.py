"""L2: identity and equality of ops. L6: payloads as text, and refusals by typed errors that name
the family.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..errors import TenferroError
from ..extension.carrier import Extension
from ..extension.contract import ExtensionOp
from ..extension.family import parse_family_id
from ..extension.registry import ExtensionFactory, lookup_extension_factory
from ..extension.runtimes import RouteKind
from ..payload_text import payload_json
from ..shapes import meta_of
from .breaches import Broken, NotApplicable, as_broken, breaking
from .examples import Inputs, listed
from .op_subject import OpSubject


def family_id(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """The family_id is well-formed and belongs to the class."""
    op = subject.op
    of_class = getattr(type(op), "family_id", None)
    fix = (
        "Write family_id as a class attribute, or use @extension_op; make another family for an "
        "op with another id."
    )
    if not isinstance(of_class, str) or of_class != op.family_id:
        raise Broken("X5.3", f"the class says {of_class!r}, the op {op.family_id!r}", fix)
    yield
    with breaking("X5.1", "family_id", "Correct it."):
        parse_family_id(op.family_id)
    yield


def arity(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """input_count and output_count are integers that do not change, also after the op has run."""
    op = subject.op
    first = {name: getattr(op, name) for name in ("input_count", "output_count")}
    for _ in range(3):
        for name, was in first.items():
            count = getattr(op, name)
            if type(count) is not int or count < 0 or count != was:
                raise Broken(
                    "X6.1",
                    f"{name} is {count!r}, at the first look {was!r}",
                    "Compute it from the payload alone.",
                )
            yield
        with contextlib.suppress(TenferroError):  # the check of metas reports it
            subject.carrier.infer(*map(meta_of, inputs))


def identity(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
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


def others(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """The ops of `others` are not equal to the op."""
    if not subject.others:
        raise NotApplicable(
            "no other ops were given", "Pass others=(op, ...), ops with other payloads."
        )
    for other in subject.others:
        if Extension.of(other) == Extension.of(subject.op):
            raise Broken(
                "X5.8",
                f"{other!r} counts as equal to {subject.op!r}",
                "Make every difference a field of the dataclass.",
            )
        yield


def immutable(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
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


def payload_text(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """Writes the payload as text and reads it back with the factory of the family."""
    op = subject.op
    factory = lookup_extension_factory(op.family_id) or ExtensionFactory(type(op))
    fix = "Let decode and __post_init__ accept what payload_json writes."
    if not dataclasses.is_dataclass(op) and type(factory).decode is ExtensionFactory.decode:
        if Extension.of(type(op)()) != Extension.of(op):
            raise Broken(
                "X5.9", f"{type(op).__name__}() is another op", "Make the class a frozen dataclass."
            )
        yield
        return
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


def _near(value: Any) -> list[Any]:
    kind = type(value)
    if kind is bool:
        return [not value, int(value), float(value)]
    if kind is int:
        return [float(value), value + 1, *([bool(value)] if value in (0, 1) else [])]
    if kind is float:
        found: list[Any] = [-value, math.nextafter(value, math.inf), np.float64(value)]
        return found + ([int(value)] if value.is_integer() else [])
    if kind is complex:
        return [value.conjugate(), complex(value.real, -0.0)]
    if kind is str:
        return [value + " ", value.encode()]
    if kind is tuple:
        return [
            (*value, 0),
            *(
                (*value[:i], near, *value[i + 1 :])
                for i, item in enumerate(value)
                for near in _near(item)[:2]
            ),
        ]
    return []


def wrong_inputs(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """Changes the dtype, rank and sizes of one input at a time: the op accepts the inputs, or a
    typed error names the family.
    """
    fix = "Raise a typed error of tenferro_jax for what the op does not take, in infer_output_meta."
    for made in (
        (*inputs[:i], other, *inputs[i + 1 :]) for i, x in enumerate(inputs) for other in _unlike(x)
    ):
        what = listed(made)
        try:
            _run_as_far(subject, made)
        except TenferroError as error:
            if subject.op.family_id not in str(error):
                raise Broken(
                    "X7.6", f"{what}: refused without naming the family: {error}", fix
                ) from error
        except Exception as error:
            what += ": inference takes these, and the implementation fails"
            raise as_broken(error, "X7.1", what, fix) from error
        yield


def _run_as_far(subject: OpSubject, inputs: Inputs) -> None:
    """Use an op far enough to see mistakes: run host code, or trace the lowering unless inference
    has done so.
    """
    subject.carrier.infer(*map(meta_of, inputs))
    if subject.op.has_own("infer_output_meta"):
        if subject.routes(inputs) == (RouteKind.HOST,):
            subject.call(*inputs)
        else:
            jax.jit(lambda *xs: subject.call(*xs)).lower(*inputs)


def _unlike(x: np.ndarray) -> Iterator[np.ndarray]:
    for dtype in (np.bool_, np.int32, np.float32, np.complex64):
        if x.dtype != dtype:
            yield x.real.astype(dtype) if x.dtype.kind == "c" else x.astype(dtype)
    yield x[None]
    if x.ndim:
        yield x.reshape(-1)[:1].reshape(()) if x.size else np.zeros((), x.dtype)
        yield np.repeat(x, 2, axis=x.ndim - 1)
        yield np.repeat(x, 2, axis=0)
