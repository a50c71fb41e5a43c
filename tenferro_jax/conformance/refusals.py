"""L6: what does not fit is refused with a typed error that names the family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..errors import ArityError, TenferroError
from ..extension.op import ExtensionOp
from ..extension.runtimes import RouteKind
from ..shapes import meta_of
from .examples import Inputs
from .subject import Broken, Subject, as_broken

FIX = "Raise a typed error of tenferro_jax for what the op does not take, in infer_output_meta."


def wrong_arity(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """One array too few, one too many."""
    extra = inputs[-1] if inputs else np.zeros(())
    for given in ([] if not inputs else [inputs[:-1]]) + [(*inputs, extra)]:
        try:
            jax.eval_shape(subject.call, *given)
        except ArityError as error:
            if subject.op.family_id in str(error):
                yield
                continue
        raise Broken(
            "X6.2", f"{len(given)} inputs were not refused by an ArityError that names the family", "Leave input_count a plain number."
        )


def wrong_inputs(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Other dtypes, ranks and sizes one input at a time: taken, or refused with a typed error that names the family."""
    for made in _altered(inputs):
        what = ", ".join(str(meta_of(x)) for x in made)
        try:
            _run(subject, made)
        except TenferroError as error:
            if subject.op.family_id not in str(error):
                raise Broken("X7.6", f"{what}: refused without naming the family: {error}", FIX) from error
        except Exception as error:
            raise as_broken(error, "X7.1", f"{what}: inference takes these, and the implementation fails", FIX) from error
        yield


def _run(subject: Subject, inputs: Inputs) -> Any:
    """As far as a mistake shows: host code is run, a lowering is traced, unless inference has done that already."""
    subject.carrier.infer(*map(meta_of, inputs))
    if type(subject.op).infer_output_meta is ExtensionOp.infer_output_meta:
        return None
    if subject.routes(inputs) == (RouteKind.HOST,):
        return subject.call(*inputs)
    return jax.jit(lambda *xs: subject.call(*xs)).lower(*inputs)


def _altered(inputs: Inputs) -> Iterator[Inputs]:
    for i, x in enumerate(inputs):
        for other in _others(x):
            yield (*inputs[:i], other, *inputs[i + 1 :])


def _others(x: np.ndarray) -> Iterator[np.ndarray]:
    for dtype in (np.bool_, np.int32, np.float32, np.complex64):
        if x.dtype != dtype:
            yield x.real.astype(dtype) if x.dtype.kind == "c" else x.astype(dtype)
    yield x[None]
    if x.ndim:
        yield x.reshape(-1)[:1].reshape(()) if x.size else np.zeros((), x.dtype)
        yield np.repeat(x, 2, axis=x.ndim - 1)
        yield np.repeat(x, 2, axis=0)
