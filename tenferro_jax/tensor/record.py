"""What a lazy tensor is made of: an input, or the traced graph of a JAX function of other tensors;
and how these become one graph.

There is no recursion: chains of any length are read with a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import TypeAlias, TypeGuard

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from ..dimensions import SymDim
from ..errors import DTypeError, InvalidConfig, ShapeError
from ..graph.builder import GraphBuilder, Value
from ..graph.graph import Graph, Node
from ..jax_seam import is_symbolic_dim
from ..shapes import Described, TensorMeta, as_operand

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
    """A graph applied to tensors; without a graph it marks a checkpoint of one tensor."""

    __slots__ = ("graph", "inputs")

    def __init__(self, graph: Graph | None, inputs: Sequence[Handle]):
        self.graph, self.inputs = graph, tuple(inputs)


Key: TypeAlias = tuple[Leaf | Record, int]


class Handle(Described):
    """One tensor: a leaf, or output `index` of a record."""

    __slots__ = ("index", "meta", "program", "source")

    def __init__(self, source: Leaf | Record, index: int, meta: TensorMeta):
        self.source, self.index, self.meta = source, index, meta
        self.program: tuple[object, Graph, list[Leaf]] | None = None
        """The graph of the last evaluation, kept for the next one; see evaluation.py."""

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
    parts: dict[int, Graph] = {}
    for handle in walk(outputs, cuts):
        source = handle.source
        if handle.key in cuts or isinstance(source, Leaf):
            values[handle.key] = builder.input(handle.meta)
            inputs.append(handle)
        elif source.graph is None:
            values[handle.key] = values[source.inputs[0].key]
        elif handle.key not in values:
            parts[id(source.graph)] = source.graph
            made = [values[x.key] for x in source.inputs]  # all values of the part's graph
            for node, outs in source.graph.steps():
                metas = [source.graph.metas[i] for i in outs]
                made += builder.add(node.op, *[made[i] for i in node.inputs], metas=metas)
            values.update(((source, i), made[k]) for i, k in enumerate(source.graph.outputs))
    _require_one_input_a_name([x.source for x in inputs if isinstance(x.source, Leaf)])
    for part in parts.values():
        builder.absorb(part)
    graph = builder.build([values[x.key] for x in outputs], out_tree=out_tree)
    guards = [guard for part in parts.values() for guard in part.guards]
    if guards:
        graph = graph.with_guards((*graph.guards, *guards))
    return _without_unused_inputs(graph, inputs)


def _without_unused_inputs(graph: Graph, inputs: list[Handle]) -> tuple[Graph, list[Handle]]:
    """A graph without unused inputs, so that they need not be bound.

    An input with a symbolic shape stays, because it determines the size.
    """
    used = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
    kept = [i for i, x in enumerate(inputs) if i in used or any(map(is_symbolic_dim, x.shape))]
    if len(kept) == len(inputs):
        return graph, inputs
    old = [*kept, *range(len(inputs), len(graph.metas))]
    new = {value: i for i, value in enumerate(old)}
    nodes = tuple(
        Node(n.op, tuple([new[i] for i in n.inputs]), new[n.first_output]) for n in graph.nodes
    )
    metas, outputs = (graph.metas[i] for i in old), (new[i] for i in graph.outputs)
    in_tree = jax.tree.structure(tuple(kept))
    trees_and_terms = in_tree, graph.out_tree, graph.rules, graph.lost_rules, graph.guards
    trimmed = Graph(tuple(metas), len(kept), nodes, tuple(outputs), *trees_and_terms)
    return trimmed, [inputs[i] for i in kept]


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
