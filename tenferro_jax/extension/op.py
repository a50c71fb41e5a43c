"""The contract: what an author writes, and how what the author's methods return is read."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax

from ..dimensions import are_equal, require_equal
from ..errors import ArityError, InvalidConfig
from ..identity import Sealed
from ..ops.builder import Builder, JaxBuilder
from ..ops.op import StdTensorOp
from ..payload_text import require_annotated
from ..shapes import TensorMeta, meta_of, struct

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not DECLARING:
            require_own_family(cls)

    def _seal(self) -> None:
        super()._seal()
        if isinstance(getattr(type(self), "family_id", None), str):  # its payload is written as text
            require_annotated(self)

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


DECLARING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Decorators `@extension_op(...)` that still wait for their class: they are made before it, and give it its family_id after."""


def require_own_family(cls: Any) -> None:
    """Refuse an op class that has the family_id of a base and is another op: something of the base overridden, other fields.

    Of Python's own methods those count that change what a field is or what is read of it; @dataclass writes none of them.

    Raises:
      InvalidConfig: the text names both classes.
    """
    family_id = getattr(cls, "family_id", None)
    bases = [base for base in cls.__mro__[1:] if issubclass(base, ExtensionOp) and getattr(base, "family_id", None) == family_id]
    if family_id is None or not bases:
        return
    owner = bases[-1]
    fields, known = (set(getattr(kind, "__dataclass_fields__", ())) for kind in (cls, owner))
    own = {name for base in cls.__mro__ if not issubclass(owner, base) for name in vars(base)}
    free = known | {"family_id", "example_inputs", "_abc_impl"}
    overridden = {name for name in own & set(dir(owner)) - free if not name.startswith("__")}
    changed = sorted(overridden | own & {"__post_init__", "__getattr__", "__getattribute__"} | fields ^ known)
    if changed:
        raise InvalidConfig(
            where=f"class {cls.__qualname__}",
            given=f"family_id {family_id}, which is that of its base {owner.__qualname__}, with another {', '.join(changed)}",
            needed="a family_id of its own: AD rules, kernels and files know an op by it",
            fix=f"State one in {cls.__name__}, or declare it with @extension_op.",
        )


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
        if isinstance(op, StdTensorOp) and not hasattr(op, "family_id"):
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
