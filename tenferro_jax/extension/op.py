"""The contract: what an author writes (`ExtensionOp`), and what enters graphs and JAX programs (`Extension`)."""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax

from ..errors import ArityError, InvalidConfig, MalformedFamilyId, TenferroError
from ..jax_seam import graph_assumptions, is_symbolic_dim
from ..meta import TensorMeta, are_equal, canonical_dtype, is_jax_dtype, meta_of, require_equal, struct
from ..ops.builder import Builder, JaxBuilder
from ..ops.op import StdTensorOp
from ..payload import Sealed, map_leaves, payload_json
from .batching import BatchLevel, Levels
from .family import parse_family_id
from .runtimes import NO_RUNTIMES, ExtensionRuntimeSet

Assume = Callable[[Any, Any, str], None]
"""What takes note of two dimensions that inference assumed to be equal, and where it did."""


class ShapeContext:
    """Given to `infer_output_meta`: how inference compares dimensions that may be symbolic."""

    def __init__(self, where: str, assume: Assume | None = None):
        self._where, self._assume = where, assume

    def require_equal(self, a: Any, b: Any) -> None:
        """Demand that two dimensions are equal.

        Raises:
          ShapeError: they differ.
          UndecidedDimensionError: they are symbolic and JAX cannot tell; the text names the constraint to add. A graph
            that is being recorded keeps the equality as a guard instead, checked when the graph is bound to sizes.
        """
        if self._assume is not None and are_equal(a, b) is None:
            self._assume(a, b, self._where)
        else:
            require_equal(a, b, self._where)


class ExtensionOp(Sealed):
    """An operation that its author publishes outside this project.

    A subclass is a `@dataclass(frozen=True)`; its fields are the payload. It states `family_id`, `input_count`,
    `output_count`, and overrides `lower_to_standard_ops` or `eager_execute` or both. Ops are pure: JAX may run, merge,
    repeat or drop a call.

    Example:
      >>> from dataclasses import dataclass
      >>> import jax, jax.numpy as jnp
      >>> @dataclass(frozen=True)
      ... class Scale(ExtensionOp):
      ...     family_id = "docs-example.scale.v1"
      ...     factor: float
      ...     def lower_to_standard_ops(self, builder, x):
      ...         return (builder.inline(lambda x: self.factor * x, x),)
      >>> from tenferro_jax.extension import apply
      >>> print(jax.jit(jax.vmap(lambda x: apply(Scale(3.0), x)[0]))(jnp.arange(3.0)))
      [0. 3. 6.]
    """

    family_id: ClassVar[str]
    input_count: Any = 1
    output_count: Any = 1

    def infer_output_meta(self, inputs: Sequence[TensorMeta], context: ShapeContext) -> Sequence[TensorMeta]:
        """dtype and shape of every output, total over concrete and symbolic shapes.

        May be left out when a lowering exists: it is derived from the lowering then.

        Args:
          inputs: a TensorMeta for each input.
          context: `context.require_equal(a, b)` compares dimensions.

        Returns:
          For each output a TensorMeta, or a plain (dtype, shape) pair.
        """
        del context
        outs = jax.eval_shape(lambda *arrays: lowered(self, arrays), *map(struct, inputs))
        if outs is None:
            raise InvalidConfig(
                where=f"extension {self.family_id}",
                given=f"no infer_output_meta and no lowering for inputs {', '.join(map(str, inputs))}",
                needed="one of the two",
                fix="Override infer_output_meta, or lower_to_standard_ops from which it is derived.",
            )
        return [meta_of(out) for out in outs]

    def eager_execute(self, *arrays: Any) -> Sequence[Any]:
        """Reference execution: NumPy arrays in (read-only), a sequence of NumPy arrays of the inferred metas out."""
        raise NotImplementedError

    def lower_to_standard_ops(self, builder: Builder, *inputs: Any) -> Sequence[Any] | None:
        """Expand into standard ops through `builder`; a sequence of output values, or None if there is no expansion.

        Raises:
          ExtensionLoweringError: for the author to raise when payload or metadata cannot be lowered.
        """
        del builder, inputs
        return None

    def batched(self, in_axes: tuple[int | None, ...]) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        """An op of the same family that computes the vmap of this one, with the batch axis of each output; or None.

        Without it, vmap wraps the op in a batch level and maps its lowering. With it, the op chooses a better form.
        """
        del in_axes
        return None

    def prune_outputs(self, live: tuple[bool, ...]) -> ExtensionOp | None:
        """An op of the same family and inputs with exactly the live outputs, in order; None keeps all of them.

        Asked when a graph is compiled and some outputs are used by nothing, with one bool for each output.
        """
        del live
        return None

    def infer_output_sharding(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Where the outputs are on a mesh with explicit axes, from ShapeDtypeStructs with shardings.

        Returns:
          For each output a jax.P or a NamedSharding; None: as the lowering has it.
        """
        del inputs
        return None

    def __repr__(self) -> str:  # of a class without fields; a dataclass writes its own
        return f"{type(self).__name__}()"

    def example_inputs(self) -> Sequence[Sequence[Any]]:
        """Inputs that show the op at work, a sequence of arrays each: what `check_extension` takes when none are given."""
        return ()


def has_host_form(op: ExtensionOp) -> bool:
    """Whether the author wrote eager_execute."""
    return type(op).eager_execute is not ExtensionOp.eager_execute


def has_lowering(op: ExtensionOp) -> bool:
    """Whether the author wrote lower_to_standard_ops."""
    return type(op).lower_to_standard_ops is not ExtensionOp.lower_to_standard_ops


class LoweringBuilder(JaxBuilder):
    """Emits a lowering into JAX; extensions are refused, because a lowering ends in standard ops."""

    def __init__(self, family_id: str):
        self._family_id = family_id

    def add(self, op: Any, *values: Any) -> tuple[Any, ...]:
        """Apply one standard op."""
        if isinstance(op, StdTensorOp) and not isinstance(op, Extension):
            return super().add(op, *values)
        raise nested_extension(self._family_id, str(getattr(op, "family_id", op)))


def nested_extension(family_id: str, inner: str) -> InvalidConfig:
    """The refusal of an extension inside a lowering."""
    return InvalidConfig(
        where=f"lower_to_standard_ops of extension {family_id}",
        given=f"an extension op {inner} emitted",
        needed="standard ops only",
        fix="Emit what the inner extension lowers to, or emit it from an AD rule instead.",
    )


def lowered(op: ExtensionOp, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
    """The outputs of an op's lowering on JAX values, as a tuple; None when it has none."""
    with authored(op.family_id, "lower_to_standard_ops"):
        outs = op.lower_to_standard_ops(LoweringBuilder(op.family_id), *arrays)
    if outs is None:
        return None
    return require_arrays(checked_sequence(outs, op, "lower_to_standard_ops", op.output_count), op, "lower_to_standard_ops")


@contextlib.contextmanager
def authored(family_id: str, method: str) -> Iterator[None]:
    """Runs the author's code: an exception passes as it is, with a note that names the method and the family."""
    try:
        yield
    except Exception as error:
        note = f"in {method} of extension {family_id}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def checked_sequence(outs: Any, op: ExtensionOp, method: str, count: int) -> tuple[Any, ...]:
    """What an author's method returned, as a tuple of the right length."""
    slot = "input" if method == "transpose_rule" else "output"
    if not isinstance(outs, tuple | list):
        raise InvalidConfig(
            where=f"{method} of extension {op.family_id}",
            given=f"a {type(outs).__name__}",
            needed=f"a tuple or list with one entry for each {slot}",
            fix="Return (value,) for a single one.",
        )
    if len(outs) != count:
        raise ArityError(
            where=f"{method} of extension, family_id={op.family_id}",
            given=f"{len(outs)} entries",
            needed=f"{count}, one for each {slot}",
            fix=f"Correct what {method} returns, or the count.",
        )
    return tuple(outs)


def require_arrays(outs: Sequence[Any], op: ExtensionOp, method: str) -> tuple[Any, ...]:
    """Refuse outputs of an author's method that are no arrays: numbers, None, lists."""
    for i, out in enumerate(outs):
        if not hasattr(out, "dtype") or not hasattr(out, "shape"):
            raise InvalidConfig(
                where=f"{method} of extension {op.family_id}, entry {i}",
                given=f"{out!r}",
                needed="an array",
                fix="Convert it with jax.numpy.asarray and the dtype that you mean.",
            )
    return tuple(outs)


def _forget(a: Any, b: Any, where: str) -> None:
    del a, b, where


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
            fix="Correct what it returns.",
        ) from error
    return meta


def _require_constants(op: ExtensionOp) -> None:
    """Refuse a family_id that is not the class's, and counts that are no counts."""
    family_id = getattr(type(op), "family_id", None)
    parse_family_id(family_id)
    if op.family_id != family_id:
        raise MalformedFamilyId(op.family_id, problem=f"its class {type(op).__name__} says {family_id!r}")
    for name in ("input_count", "output_count"):
        count = getattr(op, name)
        if type(count) is not int or count < 0:
            where, given = f"extension {family_id}", f"{name}={count!r}"
            raise InvalidConfig(where=where, given=given, needed="an int from 0", fix="Correct the class attribute or the property.")


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
      >>> from ext_tropical.einsum_op import TropicalEinsum
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
        levels = tuple((level.in_axes, level.axis_name, level.spmd_axis_name) for level in batching)
        self._set_key((Extension, op.family_id, op.typed_key, levels, self.runtimes))

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
        return self.infer_assuming(metas, None if graph_assumptions.value is None else _forget)

    def infer_assuming(self, metas: Sequence[TensorMeta], assume: Assume | None) -> tuple[TensorMeta, ...]:
        """As `infer`; equalities of dimensions that JAX cannot decide go to `assume`, where there is one."""
        if len(metas) != self.input_count:
            raise ArityError(
                where=f"extension, family_id={self.family_id}",
                given=f"a call that does not fit: expected {self.input_count} inputs, got {len(metas)}",
                needed=f"{self.input_count} inputs",
                fix="Pass one array for each input of the op.",
            )
        return tuple(self._infer(self.batching, list(metas), assume))

    def _infer(self, levels: Levels, metas: list[TensorMeta], assume: Assume | None) -> list[TensorMeta]:
        if levels:
            size = levels[0].size([m.shape for m in metas])
            return [TensorMeta(m.dtype, (size, *m.shape)) for m in self._infer(levels[1:], levels[0].inner(metas), assume)]
        derived = type(self.op).infer_output_meta is ExtensionOp.infer_output_meta
        method = "lower_to_standard_ops, from which metas are inferred," if derived else "infer_output_meta"
        where = f"{method} of extension {self.family_id}"
        try:
            outs = self.op.infer_output_meta(metas, ShapeContext(where, assume))
        except TenferroError:
            raise
        except Exception as error:
            raise InvalidConfig(
                where=where,
                given=f"{', '.join(map(str, metas))}: {type(error).__name__}: {error}",
                needed="inputs that the op takes, and inference that is total over symbolic shapes",
                fix="Correct the inputs, or the op's inference; the author's error is the cause.",
            ) from error
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
