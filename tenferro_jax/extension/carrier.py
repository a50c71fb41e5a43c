"""The carrier of an extension op in graphs and JAX programs, with its levels of vmap.

vmap of an extension op is the same op with one more batch level: its identity and its AD rule stay
the same.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..dimensions import SymDim
from ..errors import InvalidConfig, MalformedFamilyId, ShapeError, TenferroError, counted, reason_of
from ..identity import map_leaves
from ..jax_seam import graph_assumptions, is_symbolic_dim
from ..ops.op import StdTensorOp
from ..payload_text import payload_json
from ..shapes import TensorMeta, canonical_dtype, is_jax_dtype
from .contract import (
    LOWERING,
    Assume,
    Can,
    Computes,
    ExtensionOp,
    checked_sequence,
    closed_over,
    in_method,
    inherited,
    lowered,
    own_family,
    require_arrays,
    require_not_traced,
    running,
)
from .kernels import ExtensionRuntimeSet, Kernel, require_runtimes


@dataclasses.dataclass(frozen=True)
class BatchLevel:
    """One vmap around an op. Outputs carry the batch axis first; its size is read from the input
    shapes.

    Attributes:
      in_axes: for each input the mapped axis, or None.
      axis_name: name for collectives inside the op's lowering, or None.
      spmd_axis_name: mesh axis (or axes) of the batch axis, or None.
    """

    in_axes: tuple[int | None, ...]
    axis_name: Any = None
    spmd_axis_name: Any = None

    def size(self, shapes: Sequence[Sequence[SymDim]]) -> SymDim:
        """The batch size, from the shapes of the mapped inputs."""
        return next(
            shape[axis]
            for shape, axis in zip(shapes, self.in_axes, strict=True)
            if axis is not None
        )

    def inner(self, metas: Sequence[TensorMeta]) -> list[TensorMeta]:
        """Metas of one element of the batch."""
        return [
            m if axis is None else TensorMeta(m.dtype, (*m.shape[:axis], *m.shape[axis + 1 :]))
            for m, axis in zip(metas, self.in_axes, strict=True)
        ]

    def vmap(
        self,
        fn: Callable[..., object],
        in_axes: tuple[object, ...] | None = None,
    ) -> Callable[..., Any]:
        """jax.vmap of fn over this level; `in_axes` if fn takes other arguments than the op's
        inputs.
        """
        return jax.vmap(
            fn,
            in_axes=self.in_axes if in_axes is None else in_axes,
            axis_name=self.axis_name,
            spmd_axis_name=self.spmd_axis_name,
        )


Levels = tuple[BatchLevel, ...]
"""Batch levels, outermost first."""


def over(levels: Levels, fn: Computes) -> Computes:
    """A JAX function of arrays mapped over these levels."""
    for level in reversed(levels):
        fn = level.vmap(lambda *arrays, fn=fn: tuple(fn(*arrays)))
    return fn


def _meta_pair(
    pair: tuple[jax.typing.DTypeLike, Sequence[SymDim]],
    where: str,
    i: int,
) -> TensorMeta:
    """The result of infer_output_meta for one output, as a TensorMeta."""
    try:
        dtype, shape = pair
        if not is_jax_dtype(dtype):
            raise TypeError(f"{dtype} is not a dtype of JAX")
        meta = TensorMeta(canonical_dtype(dtype), tuple(shape))
        for size in meta.shape:
            if not is_symbolic_dim(size) and operator.index(size) < 0:
                raise ValueError(f"the size {size}")
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            where=f"{where}, output {i}",
            given=f"{pair!r}: {error}",
            needed="a TensorMeta or a (dtype, shape) pair, with sizes that are non-negative "
            "integers or symbolic",
        ) from error
    return meta


_own_family = functools.lru_cache(maxsize=1024)(own_family)


def _require_constants(op: ExtensionOp) -> None:
    """Refuse a family_id that does not belong to the class, and counts that are not non-negative
    integers.
    """
    cls: Any = type(op)
    family_id = _own_family(cls)
    if op.family_id != family_id:
        raise MalformedFamilyId(
            op.family_id, problem=f"its class {cls.__name__} says {family_id!r}"
        )
    for name in ("input_count", "output_count"):
        count = getattr(op, name)
        if type(count) is not int or count < 0:
            raise InvalidConfig(
                where=f"extension {family_id}",
                given=f"{name}={count!r}",
                needed="a non-negative int",
            )


class Extension(StdTensorOp):
    """The carrier: an extension op with its batch levels and runtimes, in the form of a standard
    op.

    Graphs and JAX equations hold carriers. Two carriers are equal if the ops have the same class,
    family_id and typed payload, and the carriers have the same levels and runtimes. An `__eq__` of
    the op is never called.

    Args:
      op: the extension op.
      batching: the batch levels, outermost first.
      runtimes: the kernels and routes for the op, by default those of its class.

    Attributes:
      family_id: the family of the op.
      at_once: whether a kernel may compute concrete arrays without compiling.

    Example:
      >>> from ext_tropical import max_plus
      >>> from ext_tropical import TropicalEinsum
      >>> Extension.of(TropicalEinsum(max_plus,
      ...     "ij,jk->ik")) == Extension.of(TropicalEinsum(max_plus, "ij,jk->ik"))
      True
    """

    op: ExtensionOp
    batching: Levels
    runtimes: ExtensionRuntimeSet

    family_id: str
    at_once: bool

    def __init__(
        self, op: ExtensionOp, batching: Levels = (), runtimes: ExtensionRuntimeSet | None = None
    ):
        if not isinstance(op, ExtensionOp):
            name = getattr(op, "__name__", "")
            is_class = isinstance(op, type)
            raise InvalidConfig(
                where="apply",
                given=f"the class {name}" if is_class else f"{op!r:.200}",
                needed="an op, which is an object of a class that derives from ExtensionOp",
                fix=f"Make one: apply({name}(...), ...)." if is_class else "",
            )
        _require_constants(op)
        runtimes = op.runtimes if runtimes is None else runtimes
        if type(runtimes) is not ExtensionRuntimeSet:
            require_runtimes(runtimes, f"extension {op.family_id}", ExtensionRuntimeSet)
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "batching", batching)
        object.__setattr__(self, "runtimes", runtimes)
        object.__setattr__(self, "family_id", op.family_id)
        eager = any(kernel.eager for kernel in runtimes.kernels(op.family_id, "cpu"))
        object.__setattr__(self, "at_once", eager and not batching)

    def _seal(self) -> None:
        levels = tuple(
            (level.in_axes, level.axis_name, level.spmd_axis_name) for level in self.batching
        )
        self._set_key((Extension, self.op.family_id, self.op.typed_key, levels, self.runtimes))

    @staticmethod
    def of(op: ExtensionOp | Extension, runtimes: ExtensionRuntimeSet | None = None) -> Extension:
        """The carrier of an op without batch levels; the last one is kept with the op object."""
        if isinstance(op, Extension):
            return op if runtimes is None else op.with_runtimes(runtimes)
        carrier: Extension | None = getattr(op, "_carrier", None)
        if carrier is not None and op.is_of_another_class():
            op._seal()
            carrier = None
        wanted = runtimes if runtimes is not None or carrier is None else op.runtimes
        if carrier is None or carrier.runtimes is not wanted:
            carrier = Extension(op, (), runtimes)
            require_not_traced(op, closed_over(type(op).lower_to_standard_ops))
            object.__setattr__(op, "_carrier", carrier)
        return carrier

    def with_op(self, op: ExtensionOp) -> Extension:
        """Another op of the family under the same batch levels and runtimes."""
        return self if op is self.op else Extension(op, self.batching, self.runtimes)

    def with_runtimes(self, runtimes: ExtensionRuntimeSet) -> Extension:
        """The same op under other runtimes."""
        return Extension(self.op, self.batching, runtimes)

    @property
    def given(self) -> ExtensionRuntimeSet | None:
        """The runtimes that were given to the call; None if they are those of the class."""
        return None if self.runtimes == self.op.runtimes else self.runtimes

    @property
    def input_count(self) -> int:
        """Number of inputs of the op."""
        return self.op.input_count

    @property
    def output_count(self) -> int:
        """Number of outputs of the op."""
        return self.op.output_count

    def infer(self, *metas: TensorMeta, assume: Assume | None = None) -> tuple[TensorMeta, ...]:
        """dtype and shape of each output, checked against the op's counts; equalities of dimensions
        that JAX cannot decide are passed to `assume` if it is given.
        """
        if len(metas) != self.op.input_count:
            needed = counted(self.op.input_count, "input")
            raise InvalidConfig(
                where=f"extension, family_id={self.family_id}",
                given=f"a call that does not fit: expected {needed}, got {len(metas)}",
                needed=needed,
                clause="X6.2",
            )
        sizes: list[SymDim] = []
        for level in self.batching:
            for meta, axis in zip(metas, level.in_axes, strict=True):
                if axis is not None and axis >= len(meta.shape):
                    raise ShapeError(
                        where=f"extension, family_id={self.family_id}",
                        given=f"a batch level over axis {axis} of {meta}",
                        needed="an axis of the input",
                    )
            sizes.append(level.size([m.shape for m in metas]))
            metas = tuple(level.inner(metas))
        around = running.get()  # of an op that calls this one
        # A graph that reads a traced call infers again, and notes equalities then.
        later = None if graph_assumptions.value is None else lambda *_: None
        outs = self._infer_one(list(metas), assume or (around and around.assume) or later)
        return tuple(TensorMeta(m.dtype, (*sizes, *m.shape)) for m in outs)

    def _infer_one(self, metas: list[TensorMeta], assume: Assume | None) -> list[TensorMeta]:
        """Of one element of all batch levels."""
        derived = not self.op.can(Can.INFER)
        name = f"{LOWERING}, from which metas are inferred," if derived else "infer_output_meta"
        where = self.op.place_of(name)
        try:
            with in_method(self.op, name, assume):
                outs = self.op.infer_output_meta(metas)
        except TenferroError:
            raise
        except Exception as error:
            raise InvalidConfig(
                where=where,
                given=f"{', '.join(map(str, metas))}: {reason_of(error)}",
                needed="inputs that the op accepts, and inference that works for symbolic shapes",
                fix="The cause is the error of the op's inference.",
            ) from error
        pairs = checked_sequence(outs, self.op, "infer_output_meta", self.op.output_count)
        return [_meta_pair(pair, where, i) for i, pair in enumerate(pairs)]

    def of_one(self, metas: Sequence[TensorMeta], levels: int | None = None) -> list[TensorMeta]:
        """The metas of one element of all batch levels, or of so many outer ones."""
        for level in self.batching[:levels]:
            metas = level.inner(metas)
        return list(metas)

    def batch(self, level: BatchLevel) -> Extension:
        """The carrier under one more vmap, the outermost one."""
        return Extension(self.op, (level, *self.batching), self.runtimes)

    def map_leaves(self, change: Callable[[Any], Any]) -> Extension:
        """The carrier with every payload leaf of its op replaced through `change`."""
        return self.with_op(map_leaves(self.op, change))

    def attributes(self) -> dict[str, str]:
        """Identity as text, for exported programs: family_id, payload, batching."""
        levels = [[list(v.in_axes), v.axis_name, v.spmd_axis_name] for v in self.batching]
        return {
            "family_id": self.family_id,
            "payload": payload_json(self.op),
            "batching": json.dumps(levels, default=str),
        }

    def __repr__(self) -> str:
        levels = "".join(f" vmap{list(level.in_axes)}" for level in self.batching)
        return f"{self.op!r}{levels}{'' if self.given is None else f' {self.given}'}"


def what_runs(kernel: Kernel) -> str:
    """A kernel as errors name it."""
    return f"{kernel.platform} kernel {kernel.title}".rstrip()


def kernel_body(
    carrier: Extension, kernel: Kernel, arrays: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """The kernel's outputs, mapped over the batch levels."""
    op, what = carrier.op, what_runs(kernel)

    def one(*element: jax.Array) -> tuple[jax.Array, ...]:
        with in_method(op, what), inherited(None):
            outs = kernel.run(op, *element)
        return require_arrays(checked_sequence(outs, op, what, op.output_count), op, what)

    return tuple(over(carrier.batching, one)(*arrays))


def body_of(
    carrier: Extension, kernel: Kernel | None, *arrays: jax.Array
) -> tuple[jax.Array, ...] | None:
    """The outputs of a kernel, or of the lowering, which is None when it declines."""
    return (
        lowering_body(carrier, arrays) if kernel is None else kernel_body(carrier, kernel, arrays)
    )


def lowering_body(carrier: Extension, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...] | None:
    """The lowering's outputs, mapped over the batch levels; None when it declines."""
    declined = False

    def one(*element: jax.Array) -> tuple[jax.Array, ...]:
        nonlocal declined
        with inherited(None if carrier.given is None else (None, carrier.given)):
            outs = lowered(carrier.op, element)
        declined = outs is None
        return () if outs is None else outs

    outs = over(carrier.batching, one)(*arrays)
    return None if declined else tuple(outs)


def checked_form(
    op: Extension,
    own: tuple[ExtensionOp, Sequence[int]],
    mapped: Extension,
    metas: list[TensorMeta],
) -> tuple[Extension, Sequence[int]]:
    """The result of the op's `batched`, which must be of the same family and have the dtypes and
    shapes of the vmap.
    """
    where = f"batched() of extension {op.family_id}"
    needed = f"(an op of family {op.family_id}, a non-negative batch axis for each output), or None"
    try:
        form, out_axes = own
        out_axes = [int(axis) for axis in out_axes]
        if (
            form.family_id != op.family_id
            or len(out_axes) != op.output_count
            or any(axis < 0 for axis in out_axes)
        ):
            raise ValueError("another family, count or axis")
        carrier = Extension.of(form, op.runtimes)
        have = carrier.infer(*metas)
        moved = tuple(
            TensorMeta(m.dtype, (m.shape[i], *m.shape[:i], *m.shape[i + 1 :]))
            for m, i in zip(have, out_axes, strict=True)
        )
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidConfig(
            where=where,
            given=f"{own!r}: {error}",
            needed=needed,
            fix="Return None to use the vmap of the op.",
        ) from error
    want = mapped.infer(*metas)
    if moved != want:
        raise InvalidConfig(
            where=where,
            given=f"outputs {', '.join(map(str, moved))}, batch axis first",
            needed=f"{', '.join(map(str, want))}, the outputs of the vmap of the op",
            fix="Return None to use the vmap of the op.",
            clause="X13.2",
        )
    return carrier, out_axes
