"""Base classes of standard ops: frozen values with one definition in lax, from which everything
else is derived.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import numpy as np

from ..dimensions import require_equal
from ..errors import DTypeError, InvalidConfig, ShapeError, TenferroError, counted
from ..identity import Sealed
from ..shapes import Shaped, TensorMeta, meta_of, require_x64, struct, x64_enabled
from .fields import wrong_field

Op = TypeVar("Op", bound="StdTensorOp")


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: type[Op]) -> type[Op]:
    """Class decorator: a frozen dataclass that keeps the typed equality of `Sealed`."""
    # Most ops have no fields of their own and inherit all that dataclass would write for them,
    # which would be half of the time of importing the ops.
    if "__annotations__" not in vars(cls):
        return cls
    return dataclasses.dataclass(frozen=True, eq=False)(cls)


@dataclasses.dataclass(frozen=True, eq=False)
class StdTensorOp(Sealed):
    """Base class of standard ops.

    A subclass is decorated with `@op`, has `input_count` (None: any number) and `output_count`, and
    a `function` or its own `apply`. Its fields are its payload; two ops are equal if type and typed
    payload are equal.

    Keywords of the class statement:

    - `function`: a function of lax, the definition: of the inputs, then the fields. A base class
      may define `apply` otherwise, which calls it as `_function`.
    - `keywords`: whether the function takes the fields by their names.
    - `takes`: names of the dtypes that the inputs may have; None: lax decides.
    """

    input_count: ClassVar[Any] = 1
    output_count: ClassVar[Any] = 1
    keywords: ClassVar[bool] = False
    takes: ClassVar[frozenset[str] | None] = None
    _function: ClassVar[Any]

    def __init_subclass__(
        cls,
        function: Callable[..., object] | None = None,
        keywords: bool = False,
        takes: frozenset[str] | None = None,
        **kwargs: object,
    ):
        super().__init_subclass__(**kwargs)
        cls.keywords, cls.takes = keywords or cls.keywords, takes or cls.takes
        if function is not None:
            cls._function = staticmethod(function)

    def _of_fields(self, *arrays: jax.Array) -> Any:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.keywords:
            return self._function(*arrays, **fields)
        return self._function(*arrays, *fields.values())

    apply: ClassVar[Any] = _of_fields
    """The definition: arrays or tracers in, one array (or a sequence of them) out."""

    def check(self, *operands: Shaped) -> None:
        """Constraints that lax does not check itself; operands have dtype and shape."""

    def infer(self, *metas: TensorMeta) -> tuple[TensorMeta, ...]:
        """dtype and shape of each output, for concrete and symbolic shapes.

        Raises:
          InvalidConfig: a wrong number of inputs; or dtypes or shapes that the definition
            refuses; the text includes JAX's own.
        """
        return _infer(self, metas, x64_enabled())


def call(op: StdTensorOp, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Apply an op and return its outputs as a tuple, after the arity check."""
    _require_constraints(op, arrays)
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

    def check(self, *operands: Shaped) -> None:
        """C1."""
        x, y = operands
        if self.equal_dtypes and x.dtype != y.dtype:
            raise DTypeError(where=str(self), given=f"{x.dtype} and {y.dtype}", needed="one dtype")
        if x.shape != y.shape:
            if len(x.shape) != len(y.shape):
                raise ShapeError(
                    where=str(self),
                    given=f"shapes {x.shape} and {y.shape}",
                    needed="one shape",
                    fix="Broadcast with BroadcastInDim first.",
                )
            for a, b in zip(x.shape, y.shape, strict=True):
                require_equal(a, b, str(self))


class OfBody(StdTensorOp):
    """Any number of inputs; an output for each one of the graph `body`."""

    input_count = None

    @property
    def output_count(self) -> int:
        """One output for each output of the body."""
        return len(self.body.outputs)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _infer(op: StdTensorOp, metas: tuple[TensorMeta, ...], x64: bool) -> tuple[TensorMeta, ...]:
    try:
        require_inputs(op, metas)
        outs = jax.eval_shape(lambda *arrays: call(op, arrays), *map(struct, metas))
        if any(isinstance(size, int) and size < 0 for out in outs for size in out.shape):
            raise ValueError("a negative size")
    except TenferroError:
        raise
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ShapeError(
            where=str(op),
            given=f"inputs {', '.join(map(str, metas))}: {str(error).splitlines()[0]}",
            needed="sizes that JAX can compare",
            fix="Use concrete sizes, or symbols of jax.export.symbolic_shape with constraints.",
            clause="X7.3",
        ) from error
    except Exception as error:  # JAX raises many types
        raise InvalidConfig(
            where=str(op),
            given=f"inputs {', '.join(map(str, metas))}: {error}",
            needed="inputs that the op takes",
            fix="See docs/spec/ops.md.",
        ) from error
    return tuple(meta_of(out) for out in outs)


INTEGER = frozenset(
    {"int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64"}
)
FLOATING = frozenset({"bfloat16", "float16", "float32", "float64"})
INEXACT = FLOATING | {"complex64", "complex128"}


def require_fields(op: StdTensorOp) -> None:
    """Refuse a field that does not fit its annotation.

    Raises:
      InvalidConfig: the text names the field.
    """
    if wrong := wrong_field(op):
        raise InvalidConfig(
            where=type(op).__name__, given=wrong[0], needed=wrong[1], fix="See docs/spec/ops.md."
        )


def require_inputs(op: StdTensorOp, metas: tuple[TensorMeta, ...]) -> None:
    """Refuse what lax would accept: wrong fields, dtypes and axes, and breaches of the op's own
    constraints.

    Raises:
      InvalidConfig, DTypeError, ShapeError: the text names the op.
      DTypeError: a field is a 64-bit dtype or array while JAX would narrow it.
    """
    require_fields(op)
    held = vars(op)
    for name, value in held.items() if not x64_enabled() else ():
        if isinstance(value, np.dtype | np.ndarray):
            require_x64(
                np.empty(0, value) if isinstance(value, np.dtype) else value,
                f"{type(op).__name__}, field {name}",
            )
    takes = op.takes or frozenset()
    for meta in metas if takes else ():
        if str(meta.dtype) not in takes:
            needed = f"one of {', '.join(sorted(takes))}"
            raise DTypeError(where=str(op), given=str(meta), needed=needed, fix="Convert first.")
    axes: tuple[int, ...] = held.get("axes", (held["axis"],) if "axis" in held else ())
    if metas and (
        len(set(axes)) < len(axes) or not all(0 <= axis < len(metas[0].shape) for axis in axes)
    ):
        raise InvalidConfig(
            where=str(op),
            given=f"axes {axes} of {metas[0]}",
            needed="different axes from 0 to rank - 1",
        )
    _require_constraints(op, metas)


def _require_constraints(op: StdTensorOp, operands: Sequence[Shaped]) -> None:
    """Check the number of operands, and what lax does not check itself."""
    if op.input_count is not None and len(operands) != op.input_count:
        raise InvalidConfig(
            where=str(op),
            given=counted(len(operands), "input"),
            needed=counted(op.input_count, "input"),
        )
    op.check(*operands)
