"""What enters graphs and JAX programs for an extension op: its carrier with the levels of vmap, or a placeholder.

vmap of an extension op is the same op with a batch level: its identity and its AD rule stay.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ArityError, InvalidConfig, MalformedFamilyId, ShapeError, TenferroError, Unsupported
from ..identity import map_leaves
from ..jax_seam import graph_assumptions, is_symbolic_dim
from ..ops.op import StdTensorOp, op
from ..payload_text import payload_json
from ..shapes import TensorMeta, canonical_dtype, is_jax_dtype
from .contract import ExtensionOp, checked_sequence, require_own_family
from .family import family_of
from .runtimes import NO_RUNTIMES, ExtensionRuntimeSet
from .scope import LOWERING, Assume, Method, running


@dataclasses.dataclass(frozen=True)
class BatchLevel:
    """One vmap around an op. Outputs carry the batch axis first; its size is read from the input shapes.

    Attributes:
      in_axes: for each input the mapped axis, or None.
      axis_name: name for collectives inside the op's lowering, or None.
      spmd_axis_name: mesh axis (or axes) that the batch axis lives on, or None.
    """

    in_axes: tuple[int | None, ...]
    axis_name: Any = None
    spmd_axis_name: Any = None

    def size(self, shapes: Sequence[Sequence[Any]]) -> Any:
        """The batch size that the shapes of the mapped inputs state."""
        return next(shape[axis] for shape, axis in zip(shapes, self.in_axes, strict=True) if axis is not None)

    def inner(self, metas: Sequence[TensorMeta]) -> list[TensorMeta]:
        """Metas of one element of the batch."""
        return [
            m if axis is None else TensorMeta(m.dtype, (*m.shape[:axis], *m.shape[axis + 1 :]))
            for m, axis in zip(metas, self.in_axes, strict=True)
        ]

    def vmap(self, fn: Callable[..., Any], in_axes: Any = None) -> Callable[..., Any]:
        """jax.vmap of fn over this level; `in_axes` where fn takes something else than the op's inputs."""
        names = {} if self.axis_name is None else {"axis_name": self.axis_name}
        if self.spmd_axis_name is not None:
            names["spmd_axis_name"] = self.spmd_axis_name
        return jax.vmap(fn, in_axes=self.in_axes if in_axes is None else in_axes, **names)


Levels = tuple[BatchLevel, ...]
"""Batch levels, outermost first."""


def over_levels(levels: Levels, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function of arrays mapped over all levels."""
    for level in reversed(levels):
        fn = level.vmap(lambda *arrays, fn=fn: tuple(fn(*arrays)))
    return fn


def host_over_levels(levels: Levels, fn: Callable[..., Any], out_metas: Sequence[TensorMeta]) -> Callable[..., Any]:
    """A NumPy function mapped over all levels by a loop; an empty batch gives empty outputs."""
    if not levels:
        return fn
    level, rest = levels[0], levels[1:]
    inner = host_over_levels(rest, fn, [TensorMeta(m.dtype, m.shape[1:]) for m in out_metas])

    def mapped(*arrays: np.ndarray) -> list[np.ndarray]:
        outs = [np.empty(m.shape, m.dtype) for m in out_metas]
        for i in range(level.size([a.shape for a in arrays])):
            element = [a if axis is None else np.take(a, i, axis=axis) for a, axis in zip(arrays, level.in_axes, strict=True)]
            for out, value in zip(outs, inner(*element), strict=True):
                out[i] = value
        return outs

    return mapped


def _meta_pair(pair: Any, where: str, i: int) -> TensorMeta:
    """What infer_output_meta returned for one output, as a TensorMeta."""
    try:
        dtype, shape = pair
        if not is_jax_dtype(dtype):
            raise TypeError(f"{dtype} is no dtype of JAX")
        meta = TensorMeta(canonical_dtype(dtype), tuple(shape))
        for size in meta.shape:
            if not is_symbolic_dim(size) and operator.index(size) < 0:
                raise ValueError(f"the size {size}")
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            where=f"{where}, output {i}",
            given=f"{pair!r}: {error}",
            needed="a TensorMeta or a (dtype, shape) pair, sizes non-negative integers or symbolic",
        ) from error
    return meta


_require_own_family = functools.lru_cache(maxsize=1024)(require_own_family)


def _require_constants(op: ExtensionOp) -> None:
    """Refuse a family_id that is not the class's, and counts that are no counts."""
    cls: Any = type(op)
    family_id = family_of(cls)
    _require_own_family(cls)
    if op.family_id != family_id:
        raise MalformedFamilyId(op.family_id, problem=f"its class {cls.__name__} says {family_id!r}")
    for name in ("input_count", "output_count"):
        count = getattr(op, name)
        if type(count) is not int or count < 0:
            raise InvalidConfig(
                where=f"extension {family_id}",
                given=f"{name}={count!r}",
                needed="an int from 0",
            )


class Extension(StdTensorOp):
    """The carrier: an extension op with its batch levels and runtimes, as a member of the vocabulary.

    It is what graphs and JAX equations hold, and it owns identity: two carriers are equal when the ops have the same
    class, family_id and typed payload, and the same levels and runtimes. An op's own `__eq__` is never asked.

    Args:
      op: the extension op.
      batching: the batch levels, outermost first.
      runtimes: who may execute it, and what its AD rules emit.

    Example:
      >>> from ext_tropical import max_plus
      >>> from ext_tropical import TropicalEinsum
      >>> Extension.of(TropicalEinsum(max_plus, "ij,jk->ik")) == Extension.of(TropicalEinsum(max_plus, "ij,jk->ik"))
      True
    """

    op: ExtensionOp
    batching: Levels
    runtimes: ExtensionRuntimeSet

    def __init__(self, op: ExtensionOp, batching: Levels = (), runtimes: ExtensionRuntimeSet = NO_RUNTIMES):
        if not isinstance(op, ExtensionOp):
            raise InvalidConfig(
                where="apply",
                given=f"{op!r} of type {type(op).__name__}",
                needed="an instance of an ExtensionOp subclass",
                fix="Derive the op's class from tenferro_jax.extension.ExtensionOp and pass an instance.",
            )
        _require_constants(op)
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "batching", batching)
        object.__setattr__(self, "runtimes", runtimes)
        self._seal()

    def _seal(self) -> None:
        levels = tuple((level.in_axes, level.axis_name, level.spmd_axis_name) for level in self.batching)
        self._set_key((Extension, self.op.family_id, self.op.typed_key, levels, self.runtimes))

    @staticmethod
    def of(op: ExtensionOp | Extension, runtimes: ExtensionRuntimeSet = NO_RUNTIMES) -> Extension:
        """The carrier of an op without batch levels; the last one made is kept with the op object."""
        if isinstance(op, Extension):
            return op if runtimes is NO_RUNTIMES else op.with_runtimes(runtimes)
        carrier: Extension | None = getattr(op, "_carrier", None)
        if carrier is None or carrier.runtimes is not runtimes:
            carrier = Extension(op, (), runtimes)
            object.__setattr__(op, "_carrier", carrier)
        return carrier

    def with_op(self, op: ExtensionOp) -> Extension:
        """Another op of the family under the same batch levels and runtimes."""
        return self if op is self.op else Extension(op, self.batching, self.runtimes)

    def with_runtimes(self, runtimes: ExtensionRuntimeSet) -> Extension:
        """The same op under other runtimes."""
        return Extension(self.op, self.batching, runtimes)

    @property
    def family_id(self) -> str:
        """The family of the op."""
        return self.op.family_id

    @property
    def input_count(self) -> int:
        """Number of inputs of the op."""
        return self.op.input_count

    @property
    def output_count(self) -> int:
        """Number of outputs of the op."""
        return self.op.output_count

    def infer(self, *metas: TensorMeta) -> tuple[TensorMeta, ...]:
        """dtype and shape of each output, checked against the op's counts."""
        # What is traced for a graph is inferred once more where the graph reads it: there the equalities are noted.
        return self.infer_assuming(metas, None if graph_assumptions.value is None else lambda *_: None)

    def infer_assuming(self, metas: Sequence[TensorMeta], assume: Assume | None) -> tuple[TensorMeta, ...]:
        """As `infer`; equalities of dimensions that JAX cannot decide go to `assume`, where there is one."""
        if len(metas) != self.input_count:
            raise ArityError(
                where=f"extension, family_id={self.family_id}",
                given=f"a call that does not fit: expected {self.input_count} inputs, got {len(metas)}",
                needed=f"{self.input_count} inputs",
            )
        return tuple(self._infer(self.batching, list(metas), assume))

    def _infer(self, levels: Levels, metas: list[TensorMeta], assume: Assume | None) -> list[TensorMeta]:
        if levels:
            for meta, axis in zip(metas, levels[0].in_axes, strict=True):
                if axis is not None and axis >= len(meta.shape):
                    raise ShapeError(
                        where=f"extension, family_id={self.family_id}",
                        given=f"a batch level over axis {axis} of {meta}",
                        needed="an axis of the input",
                    )
            size = levels[0].size([m.shape for m in metas])
            return [TensorMeta(m.dtype, (size, *m.shape)) for m in self._infer(levels[1:], levels[0].inner(metas), assume)]
        derived = type(self.op).infer_output_meta is ExtensionOp.infer_output_meta
        method = Method(self.family_id, f"{LOWERING}, from which metas are inferred," if derived else "infer_output_meta", assume)
        where = str(method)
        token = running.set(method)
        try:
            outs = self.op.infer_output_meta(metas)
        except TenferroError:
            raise
        except Exception as error:
            raise InvalidConfig(
                where=where,
                given=f"{', '.join(map(str, metas))}: {type(error).__name__}: {error}",
                needed="inputs that the op takes, and inference that is total over symbolic shapes",
                fix="Correct the inputs, or the op's inference; the author's error is the cause.",
            ) from error
        finally:
            running.reset(token)
        if isinstance(outs, TensorMeta) or (type(outs) is tuple and len(outs) == 2 and isinstance(outs[0], np.dtype | type | str)):
            raise InvalidConfig(
                where=where,
                given=f"{TensorMeta(*outs)}, one output by itself",
                needed="a tuple or list with one entry for each output",
                fix="Return (meta,) for a single one.",
            )
        pairs = checked_sequence(outs, self.op, "infer_output_meta", self.output_count)
        return [_meta_pair(pair, where, i) for i, pair in enumerate(pairs)]

    def batch(self, level: BatchLevel) -> Extension:
        """The carrier under one more vmap, which is the outermost."""
        return Extension(self.op, (level, *self.batching), self.runtimes)

    def map_leaves(self, change: Callable[[Any], Any]) -> Extension:
        """The carrier with every payload leaf of its op replaced through `change`."""
        return self.with_op(map_leaves(self.op, change))

    def attributes(self) -> dict[str, str]:
        """Identity as text, for exported programs: family_id, payload, batching."""
        levels = [[list(v.in_axes), v.axis_name, v.spmd_axis_name] for v in self.batching]
        return {"family_id": self.family_id, "payload": payload_json(self.op), "batching": json.dumps(levels, default=str)}

    def __repr__(self) -> str:
        levels = "".join(f" vmap{list(level.in_axes)}" for level in self.batching)
        return f"{self.op!r}{levels}{f' {self.runtimes}' if self.runtimes != NO_RUNTIMES else ''}"


@op
class MissingExtension(StdTensorOp):
    """An extension that was read with `skip_missing_extensions=True`: it keeps what was written of it, and does nothing else.

    Attributes:
      family_id: the family, which was not registered.
      payload: its payload, as it was written.
      levels: its batch levels, as canonical JSON text.
      outputs: how many outputs it has.

    Example:
      >>> MissingExtension("my-package.gone.v1", "{}", "[]", 1).infer()
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.Unsupported: extension: given my-package.gone.v1: not registered; needed the factory of its family \
in this process. Import the package that publishes it, register it, and read the graph again.
    """

    input_count = None
    family_id: str
    payload: str
    levels: str
    outputs: int

    @property
    def output_count(self) -> int:
        """As many as were written."""
        return self.outputs

    def infer(self, *metas: TensorMeta) -> tuple[TensorMeta, ...]:
        """Refuses.

        Raises:
          Unsupported: always.
        """
        raise self._unsupported()

    def apply(self, *inputs: Any) -> Any:
        """Refuses.

        Raises:
          Unsupported: always.
        """
        raise self._unsupported()

    def _unsupported(self) -> Unsupported:
        return Unsupported(
            where="extension",
            given=f"{self.family_id}: not registered",
            needed="the factory of its family in this process",
            fix="Import the package that publishes it, register it, and read the graph again.",
        )
