"""What a lazy tensor is made of: an input, or the traced graph of a JAX function of other tensors;
how these become one graph, which an engine runs; and how they become JAX functions of other lazy
tensors, which JAX can differentiate.

There is no recursion: chains of any length are read with a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..dimensions import SymDim
from ..engine.engine import Engine
from ..errors import DTypeError, InvalidConfig, ShapeError, require_kind
from ..graph.builder import GraphBuilder, Value
from ..graph.graph import Graph
from ..shapes import Arrays, Described, TensorMeta, as_operand, meta_of, solve_sizes

Array: TypeAlias = jax.Array | np.ndarray
Size: TypeAlias = int | str | SymDim
Number: TypeAlias = bool | int | float | complex
NUMBERS = (bool, int, float, complex)
_SYMBOLS = jax.export.SymbolicScope()


class Leaf:
    """An input of a program: a name to bind, or an attached array.

    Two inputs with the same name, meta and array are one input.
    """

    __slots__ = ("_key", "array", "meta", "name")

    def __init__(self, name: str | None, meta: TensorMeta, array: Array | None = None):
        self.name, self.meta, self.array = name, meta, array
        self._key = name, meta, id(array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def label(self) -> str:
        """Its name in errors."""
        return "an unnamed array" if self.name is None else f"input {self.name!r}"

    def __repr__(self) -> str:
        return f"{self.label}: {self.meta}{'' if self.array is None else ', attached'}"


class Record:
    """A graph applied to tensors."""

    __slots__ = ("graph", "inputs")

    def __init__(self, graph: Graph, inputs: Sequence[Handle]):
        self.graph, self.inputs = graph, tuple(inputs)


Key: TypeAlias = tuple[Leaf | Record, int]


class Handle(Described):
    """One tensor: a leaf, or output `index` of a record."""

    __slots__ = ("index", "meta", "program", "source")

    def __init__(self, source: Leaf | Record, index: int, meta: TensorMeta):
        self.source, self.index, self.meta = source, index, meta
        self.program: tuple[object, Graph, list[Leaf]] | None = None
        """The graph of the last evaluation, kept for the next one."""

    @property
    def key(self) -> Key:
        """A key that is equal for handles of the same tensor."""
        return self.source, self.index


def concrete(value: object, where: str) -> Array:
    """A concrete array, of any kind that JAX accepts.

    Raises:
      DTypeError: not an array, or a tracer; or a 64-bit array while 64-bit types are off.
    """
    if isinstance(value, jax.core.Tracer | Handle):
        lazy = isinstance(value, Handle)
        raise DTypeError(
            where=where,
            given="a lazy tensor" if lazy else "an array that JAX is tracing",
            needed="a concrete array",
            fix="Make it an input, and pass its array with eval(bindings=...).",
        )
    return as_operand(value, where)


def declared(shape: Sequence[Size], dtype: jax.typing.DTypeLike, where: str) -> TensorMeta:
    """The dtype and shape of an input; names of sizes become symbols."""
    sizes: list[SymDim] = []
    for size in shape:
        try:
            if isinstance(size, str):
                (size,) = jax.export.symbolic_shape(size, scope=_SYMBOLS)
        except ValueError as error:
            raise ShapeError(
                where=where,
                given=f"the size {size!r}",
                needed="a non-negative integer, text such as 'n' or '2*n+1', or a symbolic "
                "dimension",
            ) from error
        sizes.append(size)
    if isinstance(dtype, type) and dtype in NUMBERS:
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return GraphBuilder().input(jax.ShapeDtypeStruct(tuple(sizes), dtype)).meta


def is_number(value: object) -> TypeGuard[Number]:
    """Whether a value is a Python number. A NumPy scalar is none, though it may be an instance of
    float.
    """
    return type(value) in NUMBERS


def number(value: Number, dtype: np.dtype, where: str) -> Array:
    """A Python number as a scalar array of a dtype.

    Raises:
      DTypeError: the dtype cannot hold it.
    """
    try:
        return jnp.asarray(value, dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise DTypeError(
            where=where,
            given=f"the number {value}",
            needed=f"a number that fits into {dtype}",
        ) from error


def walk(outputs: Sequence[Handle], cuts: Set[Key] = frozenset()) -> Iterator[Handle]:
    """Every tensor that the outputs need, each after those that it needs.

    Tensors that are needed only by a cut are left out.
    """
    done: set[Key] = set()
    pending = list(reversed(outputs))
    while pending:
        handle = pending[-1]
        inputs = inputs_of(handle) if handle.key not in cuts else ()
        waiting = [x for x in inputs if x.key not in done] if handle.key not in done else ()
        pending.extend(reversed(waiting))
        if not waiting:
            pending.pop()
            if handle.key not in done:
                done.add(handle.key)
                yield handle


def inputs_of(handle: Handle) -> tuple[Handle, ...]:
    """The tensors on which a tensor was recorded; none for a leaf."""
    return handle.source.inputs if isinstance(handle.source, Record) else ()


def to_graph(
    outputs: Sequence[Handle],
    cuts: Set[Key] = frozenset(),
    out_tree: jax.tree_util.PyTreeDef | None = None,
) -> tuple[Graph, list[Handle]]:
    """The graph of some tensors, and its inputs: leaves and cuts, in the order of a walk.

    Raises:
      InvalidConfig: two different inputs of one name.
      DuplicateRule: two different AD rules for one family.
    """
    builder = GraphBuilder()
    values: dict[Key, Value] = {}
    inputs: list[Handle] = []
    for handle in walk(outputs, cuts):
        source = handle.source
        if handle.key in cuts or isinstance(source, Leaf):
            values[handle.key] = builder.input(handle.meta)
            inputs.append(handle)
        elif handle.key not in values:
            made = builder.splice(source.graph, [values[x.key] for x in source.inputs])
            values.update(((source, i), value) for i, value in enumerate(made))
    _require_one_input_a_name([x.source for x in inputs if isinstance(x.source, Leaf)])
    return builder.build([values[x.key] for x in outputs], out_tree=out_tree), inputs


def _require_one_input_a_name(leaves: Sequence[Leaf]) -> None:
    named: dict[str, Leaf] = {}
    for leaf in leaves:
        if leaf.name is not None and named.setdefault(leaf.name, leaf) != leaf:
            raise InvalidConfig(
                where="a program of lazy tensors",
                given=f"{named[leaf.name]}, and {leaf}",
                needed="one input for each name",
                fix="Rename one of them, or use the same tensor.",
            )


# --- evaluation -----------------------------------------------------------------------------------

Bindings: TypeAlias = Mapping[Handle | str, ArrayLike] | Iterable[tuple[Handle | str, ArrayLike]]
"""An array for each input or its name: a mapping, or pairs that `dict` takes."""

_DEFAULT = Engine()


def eval_all(
    tensors: Iterable[Handle], engine: Engine | None = None, bindings: Bindings = ()
) -> list[jax.Array]:
    """The arrays of several lazy tensors, computed by one program.

    Shared parts are computed once.

    Args:
      tensors: lazy tensors.
      engine: compiles and keeps the program; None uses a default engine of the process.
      bindings: an array for each input without attached data: a mapping, or pairs, from the
        input or its name. A symbolic dimension takes the size of the array.

    Returns:
      A JAX array for each tensor. If a binding is a tracer, the results are tracers: `eval`
      works under every transform.

    Raises:
      InvalidConfig: an input without an array, an array
        for an unknown input or one with attached data, two arrays for one input.
      DTypeError, ShapeError: an array does
        not fit its input.
      ShapeError: a guard does not hold at these sizes.
      DTypeError: not a concrete array.
    All of these are raised before anything is compiled or uploaded.

    Example:
      >>> import numpy as np
      >>> from tenferro_jax import TracedTensor, eval_all
      >>> x = TracedTensor.input("x", np.float32, ("n",))
      >>> loss = (x * x).sum()
      >>> [a.tolist() for a in eval_all([loss, loss.grad(x)], bindings={"x": np.float32([1, 2])})]
      [5.0, [2.0, 4.0]]
    """
    tensors = [tensors] if isinstance(tensors, Handle) else list(tensors)
    if not all(isinstance(t, Handle) for t in tensors):
        raise InvalidConfig(
            where="eval_all",
            given=f"{[type(t).__name__ for t in tensors]}",
            needed="TracedTensors",
        )
    require_kind(engine, Engine | None, "eval", "an Engine, or None", name="engine")
    if not tensors:
        return []
    graph, leaves = _program(tensors)
    return list((engine or _DEFAULT).eval(graph, *_bound(leaves, bindings)))


def _program(tensors: Sequence[Handle]) -> tuple[Graph, list[Leaf]]:
    """The graph and its leaves; the first tensor keeps them for the next equal request."""
    keys = tuple([t.key for t in tensors])
    held = tensors[0].program
    if held is None or held[0] != keys:
        graph, inputs = to_graph(tensors)
        leaves = [x.source for x in inputs if isinstance(x.source, Leaf)]
        held = tensors[0].program = keys, graph, leaves
    return held[1], held[2]


def _bound(leaves: Sequence[Leaf], bindings: Bindings) -> list[Array]:
    """The array of each leaf."""
    by_name = {leaf.name: leaf for leaf in leaves if leaf.name is not None}
    found = {leaf: leaf.array for leaf in leaves if leaf.array is not None}
    try:
        wanted = dict(bindings)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            where="eval, bindings",
            given=type(bindings).__name__,
            needed="a mapping from inputs or names to arrays, as {'x': array}",
        ) from error
    for key, value in wanted.items():
        leaf = key.source if isinstance(key, Handle) else by_name.get(key)
        if not isinstance(leaf, Leaf) or leaf not in leaves:
            raise InvalidConfig(
                where="eval",
                given=f"an array for {key!r}",
                needed=f"inputs of this program: {', '.join(map(repr, by_name)) or 'none'}",
            )
        if leaf in found:
            is_attached = leaf.array is not None
            raise InvalidConfig(
                where=leaf.label,
                given="an array for an input with attached data"
                if is_attached
                else "a second array",
                needed="one array for each input",
            )
        found[leaf] = _array(leaf, value)
    if missing := [leaf for leaf in leaves if leaf not in found]:
        raise InvalidConfig(
            where="eval",
            given=f"no array for {', '.join(f'{leaf.name!r}: {leaf.meta}' for leaf in missing)}",
            needed="an array for each input",
            fix="Pass bindings={name: array}.",
        )
    arrays = [found[leaf] for leaf in leaves]
    metas, labels = [leaf.meta for leaf in leaves], [leaf.label for leaf in leaves]
    solve_sizes(metas, [meta_of(a) for a in arrays], labels)
    return arrays


def _array(leaf: Leaf, value: ArrayLike) -> Array:
    """The array bound to a leaf; a Python number takes the dtype of the leaf if it can."""
    if isinstance(value, jax.core.Tracer):
        return value
    if is_number(value):
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(value, leaf.meta.dtype)
        if dtype != leaf.meta.dtype:
            raise DTypeError(
                where=leaf.label,
                given=f"the number {value}",
                needed=str(leaf.meta),
            )
        return number(value, dtype, leaf.label)
    return concrete(value, leaf.label)


Function: TypeAlias = Callable[[Arrays, Arrays], jax.Array]


def as_function(y: Handle, wrt: Sequence[Handle]) -> tuple[Function, list[Handle]]:
    """y as a function of the tensors of `wrt` and of the other inputs; and those other inputs.

    If one tensor of `wrt` is computed from another, it also depends on that one. The program is cut
    at the tensors of `wrt`; what only computes a single one is ignored.
    """
    wanted = {x.key for x in wrt}
    alone = wanted if len(wanted) == 1 else set()
    parts = []
    for x in walk([y], alone):
        is_cut = x.key in wanted and isinstance(x.source, Record)
        if x.key not in alone and (x.key == y.key or is_cut):
            parts.append((x.key, *to_graph([x], wanted - {x.key})))
    met = {x.key: x for _, _, inputs in parts for x in inputs}
    others = [x for key, x in met.items() if key not in wanted]

    def run(moving: Arrays, rest: Arrays) -> jax.Array:
        given: dict[object, jax.Array] = {}
        for x, value in zip(wrt, moving, strict=True):
            given[x.key] = _moved_by_both(value, given[x.key]) if x.key in given else value
        values = given | {x.key: value for x, value in zip(others, rest, strict=True)}
        for key, part, inputs in parts:
            (out,) = part(*[values[x.key] for x in inputs])
            values[key] = _moved_by_both(given[key], out) if key in given else out
        return values[y.key]

    return run, others


@jax.custom_jvp
def _moved_by_both(x: jax.Array, same: jax.Array) -> jax.Array:
    """x, with the sum of the tangents of two equal arrays."""
    return x


@_moved_by_both.defjvp
def _sum_of_tangents(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[0] + tangents[1]


def tensors_of(wrt: object, where: str) -> tuple[list[Handle], jax.tree_util.PyTreeDef]:
    """The tensors of `wrt`, and their nesting.

    Raises:
      InvalidConfig: a value that is not a tensor.
      DTypeError: a tensor that is neither floating nor complex.
    """
    tensors, tree = jax.tree.flatten(wrt)
    if not tensors or not all(isinstance(x, Handle) for x in tensors):
        raise InvalidConfig(
            where=where,
            given=f"wrt={wrt!r}",
            needed="a TracedTensor, or a list or dict of them",
        )
    for x in tensors:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise DTypeError(
                where=where,
                given=f"wrt of dtype {x.dtype}",
                needed="floating or complex tensors",
            )
    return tensors, tree
