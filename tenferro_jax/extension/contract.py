"""The contract of extension ops: the methods that an author writes, what is known while one of them
runs, and the checks of their results.

Errors need the name of the method that runs, guards the sizes that it compared; calls inside it
inherit its rules and kernels; and it may not close over arrays.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, TypeAlias

import jax
import numpy as np

from ..dimensions import SymDim, are_equal
from ..dimensions import require_equal as require_equal_sizes
from ..errors import ADRuleError, InvalidConfig, Unsupported
from ..identity import Sealed, Writer
from ..payload_text import PayloadWriter, payload_json
from ..shapes import Described, TensorMeta, meta_of, struct
from .family import family_of
from .kernels import NO_RUNTIMES, ExtensionRuntimeSet

LOWERING = "lower_to_standard_ops"


class Can(enum.Enum):
    """What an op can do if its author wrote a method for it; each value is the method's name."""

    INFER = "infer_output_meta"
    LOWER = LOWERING
    RUN_ON_HOST = "eager_execute"
    LINEARIZE = "linearize"
    TRANSPOSE = "transpose_rule"
    SHARD = "sharding_rule"


@jax.tree_util.register_static  # so that vmap hands it through
class _NotDifferentiable:
    def __repr__(self) -> str:
        return "NOT_DIFFERENTIABLE"


NOT_DIFFERENTIABLE: Final = _NotDifferentiable()
"""A rule returns this for a tangent or cotangent that does not exist.

None, in contrast, means zero.
"""


@dataclasses.dataclass(frozen=True)
class LinearInput(Described):
    """In `inputs` of a transpose rule, an input that the program is linear in.

    It has dtype and shape, but no value.
    """

    meta: TensorMeta

    def __jax_array__(self) -> NoReturn:
        """JAX asks for the value.

        Raises:
          InvalidConfig: always.
        """
        method = running.get()
        raise InvalidConfig(
            where="a transpose rule" if method is None else method.where,
            given=f"a computation with the value of an argument {self.meta}",
            needed="the other arguments and the cotangents: in this one the op is linear, and it "
            "has dtype and shape alone",
            fix="Leave it out of argnums of def_transpose if the op is not linear in it.",
        )


Slot: TypeAlias = jax.Array | _NotDifferentiable | None
"""What a rule gives for an input or an output."""


Tangents: TypeAlias = Sequence[jax.Array | None]
"""Tangents or cotangents; None is zero."""

LinearInputs: TypeAlias = Sequence[jax.Array | LinearInput]
"""The inputs of a transpose rule."""


Computes: TypeAlias = Callable[..., Sequence[jax.Array]]
MapsOver: TypeAlias = Callable[[Computes], Computes]


MERGES = ("", "sum", "max", "min")
"""How the results of devices become one."""


@dataclasses.dataclass(frozen=True)
class ShardingRule:
    """How an op may be split over devices, as in the sharding rules of Shardy.

    Attributes:
      factors: "b i k, b k j -> b i j": for each input and output a name for each axis. Axes of one
        name have one size and are split alike. A name may be any text without space and comma;
        "..." stands for any number of axes.
      merge: what makes one result of the results of devices that have different parts of a factor
        which no output has: "sum", "max" or "min". "": such factors stay whole.
      whole: factors that are never split.
      on_device: function(shard, *pieces) -> the outputs' pieces: what a device computes, in place
        of the op itself followed by `merge`. It may call `apply` with an op that fits the pieces,
        `shard.merged`, and JAX's collectives over `shard.axes`.
    """

    factors: str
    merge: str = ""
    whole: tuple[str, ...] = ()
    on_device: Callable[..., Sequence[jax.Array]] | None = None


class ExtensionOp(Sealed):
    """Base class of extension ops: operations that are published outside this project.

    A subclass is a `@dataclass(frozen=True)`; its fields are the payload. It has `family_id`,
    `input_count` and `output_count`, and overrides `lower_to_standard_ops` or `eager_execute` or
    both; for derivatives also `linearize`, and `transpose_rule` if the op is linear. Ops are pure:
    JAX may run, merge, repeat or drop a call.

    Attributes:
      runtimes: the kernels of the family, which a call uses that is given no other runtimes.

    Example:
      >>> from dataclasses import dataclass
      >>> import jax, jax.numpy as jnp
      >>> @dataclass(frozen=True)
      ... class Scale(ExtensionOp):
      ...     family_id = "docs-example.scale.v1"
      ...     factor: float
      ...     def lower_to_standard_ops(self, x):
      ...         return (self.factor * x,)
      >>> from tenferro_jax.extension import apply
      >>> print(jax.jit(jax.vmap(lambda x: apply(Scale(3.0), x)[0]))(jnp.arange(3.0)))
      [0. 3. 6.]
    """

    family_id: ClassVar[str]
    input_count: Any = 1
    output_count: Any = 1
    runtimes: ClassVar[ExtensionRuntimeSet] = NO_RUNTIMES
    is_part: ClassVar[bool] = False  # whether the lowering of another op may call it
    advice: ClassVar[str] = "Override lower_to_standard_ops, or eager_execute."

    def _writer(self) -> Writer:
        has_family = isinstance(getattr(type(self), "family_id", None), str)
        return PayloadWriter() if has_family else Writer()

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        """dtype and shape of every output, for concrete and symbolic shapes.

        An op with a lowering may leave this method out: the result is then derived from the
        lowering.

        Args:
          inputs: a TensorMeta for each input; `require_equal(a, b)` compares their sizes.

        Returns:
          For each output a TensorMeta, or a plain (dtype, shape) pair.
        """
        traced, outs = jax.make_jaxpr(lambda *xs: lowered(self, xs), return_shape=True)(
            *map(struct, inputs)
        )
        require_not_traced(self, traced.consts)
        if outs is None:
            where = f"extension {self.family_id}"
            given = ", ".join(map(str, inputs))
            if self.can(Can.LOWER):
                raise Unsupported(
                    where=where,
                    given=f"inputs {given}, for which lower_to_standard_ops returned None",
                    needed="infer_output_meta, which another way to run them needs",
                )
            raise InvalidConfig(
                where=where,
                given=f"no infer_output_meta and no lowering for inputs {given}",
                needed="one of the two",
                fix="Write infer_output_meta, or write lower_to_standard_ops, from which it is "
                "derived.",
            )
        return [meta_of(out) for out in outs]

    def eager_execute(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        """Compute on the host: takes read-only NumPy arrays, returns a sequence of NumPy arrays
        with the inferred dtypes and shapes.
        """
        raise NotImplementedError

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        """Compute the outputs with standard ops: plain jax.numpy on JAX arrays, without extensions.

        Returns:
          A sequence of arrays, one for each output; None if there is no lowering for these inputs.

        Raises:
          ExtensionLoweringError: raised by the author if the payload, a dtype or a shape cannot be
            lowered.
        """
        return None

    def differentiable_form(self) -> ExtensionOp:
        """The op of the same family that runs instead of this one when it is differentiated: by
        default this op.

        Its first outputs are those of this op; the others are residuals for its `linearize`.
        """
        return self

    def can(self, what: Can) -> bool:
        """Whether the author wrote the method for it."""
        return getattr(type(self), what.value) is not getattr(ExtensionOp, what.value)

    def place_of(self, method: str = "") -> str:
        """What errors call the op, or a method of it."""
        return (
            f"{method} of extension {self.family_id}" if method else f"extension {self.family_id}"
        )

    def payload_text(self) -> str:
        """The payload as text for files."""
        return payload_json(self)

    def missing_rule(self, kind: str) -> ADRuleError:
        """The error if the author wrote no rule of a kind, "jvp" or "transpose"."""
        return ADRuleError(self.family_id, kind)

    def form_for(self, inputs: Sequence[TensorMeta]) -> ExtensionOp:
        """The differentiable form for these inputs; functions as ops choose it by them."""
        return self.differentiable_form()

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Slot]:
        """The tangents of the outputs, linear in the tangents of the inputs: see
        `ExtensionAdRule.linearize`.
        """
        raise ADRuleError(self.family_id, "jvp", fix=f"Override {type(self).__name__}.linearize.")

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Slot]:
        """The cotangents of the inputs that this op is linear in: see
        `ExtensionAdRule.transpose_rule`.
        """
        raise ADRuleError(
            self.family_id, "transpose", fix=f"Override {type(self).__name__}.transpose_rule."
        )

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        """An op of the same family that computes the vmap of this one, and the batch axis of each
        output; or None.

        By default vmap wraps the op in a batch level and maps its lowering. Override this method
        for a better form.
        """
        return None

    def mapped_tangents(
        self, map_: MapsOver, primals: Sequence[jax.Array], tangents: Sequence[jax.Array | None]
    ) -> Sequence[Any] | None:
        """The tangents of the op mapped by `map_`; None where those of an element are mapped."""
        return None

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule | None:
        """How this op may be split over devices, for inputs of these dtypes and shapes; None to
        leave it to XLA, which splits the lowering.

        From a rule follow the call that XLA's partitioner splits, with kernels on each device, and
        the output shardings on a mesh with explicit axes.
        """
        return None

    def __repr__(self) -> str:  # of a class without fields; a dataclass writes its own
        return f"{type(self).__name__}()"

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Example inputs, each a sequence of arrays; `check` uses them if the caller
        gives none.
        """
        return ()


def own_family(cls: type[ExtensionOp]) -> str:
    """The family_id of an op class. Refuse a class whose annotated attributes are no fields,
    because it is no dataclass; and one that has the family_id of a base but is another op: it
    overrides part of the base or has other fields.

    Python's special methods count only if they change the value or the reading of a field;
    @dataclass writes none of them.

    Raises:
      InvalidConfig: the text names the attributes, or both classes.
      MalformedFamilyId: it has none, or a malformed one.
    """
    bases = [base for base in cls.__mro__ if issubclass(base, ExtensionOp)]
    written = {*getattr(cls, "__dataclass_fields__", ()), *ExtensionOp.__annotations__}
    found = [pair for base in bases for pair in inspect.get_annotations(base).items()]
    if names := sorted(
        {n for n, hint in found if n not in written and "ClassVar" not in str(hint)}
    ):
        raise InvalidConfig(
            where=f"class {cls.__qualname__}",
            given=f"annotated {', '.join(names)} in a class that is no dataclass",
            needed="a frozen dataclass, whose fields are the payload",
            fix=f"Write @dataclass(frozen=True) above {cls.__name__}; a constant needs no "
            f"annotation.",
        )
    family_id = family_of(cls)
    owner = [base for base in bases if getattr(base, "family_id", None) == family_id][-1]
    fields, known = (set(getattr(kind, "__dataclass_fields__", ())) for kind in (cls, owner))
    own = {name for base in cls.__mro__ if not issubclass(owner, base) for name in vars(base)}
    free = known | {"family_id", "example_inputs", "_abc_impl"}
    overridden = {name for name in own & set(dir(owner)) - free if not name.startswith("__")}
    changed = sorted(
        overridden | own & {"__post_init__", "__getattr__", "__getattribute__"} | fields ^ known
    )
    if changed:
        raise InvalidConfig(
            where=f"class {cls.__qualname__}",
            given=f"family_id {family_id}, which is that of its base {owner.__qualname__}, with "
            f"another {', '.join(changed)}",
            needed="a family_id of its own, because AD rules, kernels and files identify an op by "
            "it",
            fix=f"Write family_id in {cls.__name__}, or use @extension_op.",
        )
    return family_id


# --- while a method of an author runs -------------------------------------------------------------

Assume = Callable[[Any, Any, str], None]
"""A function that records two dimensions that are assumed to be equal, and where."""


class Method(NamedTuple):
    """A method of an author.

    Attributes:
      name: of the method.
      where: the method, its op and what its author wrote, for errors.
      assume: a function that takes equalities of sizes that JAX cannot decide; None refuses them.
    """

    name: str
    where: str
    assume: Assume | None = None


running: contextvars.ContextVar[Method | None] = contextvars.ContextVar(
    "method of an author", default=None
)

inherited = jax.make_user_context(None)
"""In an AD rule, the rules and runtimes that were given to the call that it differentiates, as a
pair. They are part of the key of jit's caches, so that a function traced in one rule is not reused
in another."""


def require_equal(a: SymDim, b: SymDim) -> None:
    """Require that two dimensions are equal, in `infer_output_meta` and in AD rules; they may be
    symbolic.

    If JAX cannot decide whether they are equal, a graph that is being recorded keeps the equality
    as a guard, which is checked when the graph is bound to sizes.

    Args:
      a: a size, an int or a symbolic dimension.
      b: another.

    Raises:
      ShapeError: they differ; or they are symbolic, JAX cannot decide, and no graph is recorded;
        the text names the constraint to add.

    Example:
      >>> require_equal(3, 2 + 1)
      >>> require_equal(3, 4)
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.ShapeError: require_equal: given dimensions 3 and 4; needed equal \
dimensions.
    """
    method = running.get()
    where = "require_equal" if method is None else method.where
    if method is not None and method.assume is not None and are_equal(a, b) is None:
        method.assume(a, b, where)
    else:
        require_equal_sizes(a, b, where)


@contextlib.contextmanager
def in_method(op: ExtensionOp, name: str, assume: Assume | None = None) -> Iterator[None]:
    """Runs the author's code: an exception passes as it is, with a note that names the method and
    the family.
    """
    method = Method(name, op.place_of(name), assume)
    token = running.set(method)
    try:
        yield
    except Exception as error:
        note = f"in {method.where}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    finally:
        running.reset(token)


def closed_over(function: object) -> Iterator[object]:
    """The leaves of the pytrees that a function closes over."""
    for cell in getattr(function, "__closure__", None) or ():
        # A cell that has no value yet, or a value that JAX cannot flatten and so holds no weights.
        with contextlib.suppress(ValueError, TypeError):
            yield from jax.tree.leaves(cell.cell_contents)


def require_not_traced(op: ExtensionOp, values: Iterable[object]) -> None:
    """Refuse a lowering that closes over a traced value, which would have no derivative, or over a
    ref.
    """
    held = list(values)
    if any(isinstance(value, jax.Ref) for value in held):
        raise InvalidConfig(
            where=op.place_of(LOWERING),
            given="code that closes over a jax.Ref",
            needed="a result of the inputs alone, because programs keep what an op closes over",
            fix="Make the ref inside, or pass its value, ref[...], and write what the op returns.",
        )
    if any(isinstance(value, jax.core.Tracer) for value in held):
        raise InvalidConfig(
            where=op.place_of(LOWERING),
            given="code that closes over a traced value",
            needed="traced values as inputs: a value that is closed over has no derivative",
            fix="Make the value an input.",
        )


def lowered(op: ExtensionOp, arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...] | None:
    """The outputs of an op's lowering on JAX values, as a tuple; None when it has none."""
    around = running.get()
    with in_method(op, LOWERING, around and around.assume):
        outs = op.lower_to_standard_ops(*arrays)
    if outs is None:
        return None
    return require_arrays(checked_sequence(outs, op, LOWERING, op.output_count), op, LOWERING)


def checked_sequence(outs: object, op: ExtensionOp, method: str, count: int) -> tuple[Any, ...]:
    """The result of an author's method as a tuple of the right length."""
    slot = "input" if method == "transpose_rule" else "output"
    clauses = {"infer_output_meta": "X6.3", "linearize": "X6.5", "transpose_rule": "X6.5"}
    clause = clauses.get(method, "X6.4")
    if not isinstance(outs, tuple | list) or (len(outs) == 2 and _is_one_meta(outs)):
        raise InvalidConfig(
            where=op.place_of(method),
            given=_shown_alone(outs),
            needed=f"a tuple or list with one entry for each {slot}",
            fix="Return (value,) for a single value.",
            clause=clause,
        )
    if len(outs) != count:
        raise InvalidConfig(
            where=op.place_of(method),
            given="1 entry" if len(outs) == 1 else f"{len(outs)} entries",
            needed=f"{count}, one for each {slot}",
            fix=f"Correct what {method} returns, or the count.",
            clause=clause,
        )
    return tuple(outs)


def _is_one_meta(outs: Sequence[object]) -> bool:
    """Whether a sequence is the dtype and the shape of one output, without a list around it."""
    if isinstance(outs, TensorMeta):
        return True
    match outs:
        case (str() | type() | np.dtype(), tuple()):
            return True
    return False


def _shown_alone(outs: object) -> str:
    """What an author's method returned in place of a sequence, as text."""
    if isinstance(outs, TensorMeta):
        return f"{outs} alone"
    if isinstance(outs, tuple | list):
        return "a pair (dtype, shape) alone"
    if hasattr(outs, "dtype") and hasattr(outs, "shape"):
        return f"{meta_of(outs)} alone"
    return f"a {type(outs).__name__}"


def require_arrays(outs: Sequence[object], op: ExtensionOp, method: str) -> tuple[Any, ...]:
    """Refuse outputs of an author's method that are not arrays, such as numbers, None or lists."""
    for i, out in enumerate(outs):
        if not hasattr(out, "dtype") or not hasattr(out, "shape"):
            raise InvalidConfig(
                where=f"{op.place_of(method)}, entry {i}",
                given=f"{out!r}",
                needed="an array",
                fix="Convert the value with jax.numpy.asarray(value, dtype).",
            )
    return tuple(outs)
