"""What a standard op is: a frozen value with one definition in lax. Everything else is derived from it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax

from ..errors import ArityError, DTypeError, InvalidConfig, ShapeError, TenferroError
from ..meta import TensorMeta, meta_of, require_equal, struct, x64_enabled
from ..payload import Sealed

Op = TypeVar("Op", bound="StdTensorOp")


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: type[Op]) -> type[Op]:
    """Class decorator: a frozen dataclass that keeps the typed equality of `Sealed`."""
    return dataclasses.dataclass(frozen=True, eq=False)(cls)


class StdTensorOp(Sealed):
    """One operation of the vocabulary.

    A subclass is decorated with `@op`, states `input_count` (None: any number) and `output_count`, and defines
    `apply`. Its fields are its payload; two ops are equal when type and typed payload are equal.
    """

    input_count: ClassVar[Any] = 1
    output_count: ClassVar[Any] = 1
    apply: ClassVar[Any]
    """The definition, a method or a function of lax: arrays or tracers in, one array (or a sequence of them) out."""

    def check(self, *operands: Any) -> None:
        """Constraints that lax does not make by itself; operands have dtype and shape."""

    def infer(self, *metas: TensorMeta) -> tuple[TensorMeta, ...]:
        """dtype and shape of each output, for concrete and symbolic shapes.

        Raises:
          ArityError: a wrong number of inputs.
          InvalidConfig: dtypes or shapes that the definition refuses; JAX's own text is inside.
        """
        return _infer(self, metas, x64_enabled())


def call(op: StdTensorOp, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Apply an op and return its outputs as a tuple, after the arity check."""
    if op.input_count is not None and len(arrays) != op.input_count:
        raise ArityError(
            where=str(op), given=f"{len(arrays)} inputs", needed=f"{op.input_count} inputs", fix="Pass one array for each input."
        )
    op.check(*arrays)
    outs = op.apply(*arrays)
    return tuple(outs) if isinstance(outs, tuple | list) else (outs,)


class Unary(StdTensorOp):
    """One input; one output of its shape."""


class Binary(StdTensorOp):
    """Two inputs, one output.

    C1: both inputs have one dtype and one shape, which is the output's.
    """

    input_count = 2
    equal_dtypes: ClassVar[bool] = True

    def check(self, *operands: Any) -> None:
        """C1."""
        x, y = operands
        if self.equal_dtypes and x.dtype != y.dtype:
            raise DTypeError(where=str(self), given=f"{x.dtype} and {y.dtype}", needed="one dtype", fix="Convert one of them.")
        if x.shape != y.shape:
            if len(x.shape) != len(y.shape):
                given = f"shapes {x.shape} and {y.shape}"
                raise ShapeError(where=str(self), given=given, needed="one shape", fix="Broadcast with BroadcastInDim first.")
            for a, b in zip(x.shape, y.shape, strict=True):
                require_equal(a, b, str(self))


@functools.lru_cache(maxsize=4096)
def _infer(op: StdTensorOp, metas: tuple[TensorMeta, ...], x64: bool) -> tuple[TensorMeta, ...]:
    del x64  # part of the key: it changes what JAX infers
    try:
        outs = jax.eval_shape(lambda *arrays: call(op, arrays), *map(struct, metas))
    except TenferroError:
        raise
    except (TypeError, ValueError, NotImplementedError, IndexError) as error:
        raise InvalidConfig(
            where=str(op),
            given=f"inputs {', '.join(map(str, metas))}: {error}",
            needed="inputs that the op takes",
            fix="See docs/spec/ops.md.",
        ) from error
    return tuple(meta_of(out) for out in outs)
