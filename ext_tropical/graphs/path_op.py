"""Shortest paths from sources as an extension op, and the sums along their trees that its
derivative consists of.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    ShardingRule,
    apply,
    extension_op,
    require_equal,
)
from tenferro_jax.shapes import Shaped

from ..arguments import one_dtype
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.shipped import min_max, min_plus
from .path_inputs import PathInputs, PathOutputs, TreeInputs
from .path_search import INT32, searched
from .path_trees import greatest, sums_along, sums_onto


class PathAsked(enum.Enum):
    """The questions of paths.h, with the name of each call, and what it takes and gives."""

    PATHS = "shortest_paths", PathInputs._fields, PathOutputs._fields
    TREE_SUMS = "tree_sums", TreeInputs._fields, ("result",)

    def __init__(self, call: str, takes: tuple[str, ...], gives: tuple[str, ...]) -> None:
        self.call, self.takes, self.gives = call, takes, gives


def require_arrays(
    where: str, metas: Sequence[TensorMeta], ranks: Sequence[int], integers: Sequence[Shaped]
) -> None:
    """Refuse other ranks, and other integers than int32."""
    given = ", ".join(map(str, metas))
    if [len(m.shape) for m in metas] != [*ranks]:
        raise ShapeError(where=where, given=given, needed=f"arrays of {ranks} axes")
    if any(m.dtype != INT32 for m in integers):
        raise DTypeError(where=where, given=given, needed="int32 for all but weights and sums")


@extension_op(package="tenferro-ext-tropical", name="shortest_paths", version=1)
class PathSearch(OfSemiring, ExtensionOp):
    """For each source the values of best paths to all nodes, and the last edge of each, -1 if there
    is none.

    Inputs are senders (E,), receivers (E,), weights (E,), sources (S,) and targets (K,); all but
    weights are int32. Outputs are (S, n). Edges need not be sorted by sender, which is faster.
    Edges, sources and targets that are no nodes lead nowhere. Where there are targets, and no
    weight is NaN or, under min_plus, negative, what is farther than all targets has no path.

    Attributes:
      semiring: min_plus or min_max.
      nodes: n.
    """

    semiring: SemiringKey
    nodes: int

    asked: ClassVar = PathAsked.PATHS
    input_count = 5
    output_count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        is_size = type(self.nodes) is int and 0 <= self.nodes < 2**31 - 1
        if self.algebra not in (min_plus, min_max) or not is_size:
            raise InvalidConfig(
                where=f"{self.family_id}, payload",
                given=repr(self),
                needed="min_plus or min_max, and a number of nodes below 2**31 - 1",
            )

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where, given = f"extension {self.family_id}", self.inputs(*inputs)
        integers = [given.senders, given.receivers, given.sources, given.targets]
        require_arrays(where, inputs, [1] * 5, integers)
        one_dtype(where, self.algebra, [given.weights.dtype])
        for other in (given.receivers, given.weights):
            require_equal(given.senders.shape[0], other.shape[0])
        shape = given.sources.shape[0], self.nodes
        return [TensorMeta(given.weights.dtype, shape), TensorMeta(INT32, shape)]

    def inputs(self, *given: Any) -> PathInputs:
        """The inputs of a call by their names: arrays, or what describes them."""
        return PathInputs(*given)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        given = self.inputs(*inputs)
        dtype = given.weights.dtype
        if not self.nodes:
            shape = given.sources.shape[0], 0
            return jnp.zeros(shape, dtype), jnp.zeros(shape, INT32)
        if given.weights.shape == (0,):  # with an edge that leads nowhere
            nowhere = jnp.full(1, -1, INT32)
            given = given._replace(senders=nowhere, receivers=nowhere, weights=jnp.zeros(1, dtype))

        def from_one(source: jax.Array) -> PathOutputs:
            return searched(self.algebra, self.nodes, given._replace(sources=source))

        return jax.vmap(from_one)(given.sources)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of tangents along each path; under min_max that of the first greatest weight."""
        senders, found = self.inputs(*primals).senders, PathOutputs(*outputs)
        moved = self.inputs(*tangents).weights
        if self.algebra == min_plus:
            (sums,) = apply(TreeSums(), found.last, senders, moved)
            return sums, None
        if senders.shape == (0,):
            return jnp.zeros_like(found.values), None
        edge = jax.vmap(functools.partial(greatest, senders))(found.last, found.values)
        return jnp.where(edge >= 0, moved[jnp.maximum(edge, 0)], 0), None

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        factors = "edge, edge, edge, source, target -> source node, source node"
        return ShardingRule(factors, whole=("edge", "target", "node"))

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Six edges of the first four nodes; not all can be reached."""
        edges = np.asarray([[0, 1, 3, 0, 2, 1], [1, 2, 0, 2, 1, 2]], np.int32)
        weights = np.random.default_rng(0).uniform(1, 2, 6)
        return [[*edges, weights, np.asarray([0, 2], np.int32), np.zeros(0, np.int32)]]


@extension_op(package="tenferro-ext-tropical", name="tree_sums", version=1)
class TreeSums(ExtensionOp):
    """For each node of a tree the sum of x over the edges of its path; or the transpose: for each
    edge the sum of x over the nodes whose path takes it.

    Inputs: last (S, n), the last edge of each node in S trees, -1 where there is none; senders
    (E,), the node where an edge begins; x, (E,), or in the transpose (S, n). The output is (S, n),
    or in the transpose (E,). What takes no edge has 0. Nodes whose edges turn in a
    circle have 0, and count nowhere.

    Attributes:
      onto: whether it is the transpose.
    """

    onto: bool = False

    asked: ClassVar = PathAsked.TREE_SUMS
    input_count = 3

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where, (last, senders, x) = f"extension {self.family_id}", self.inputs(*inputs)
        ranks = [2, 1, 2 if self.onto else 1]
        require_arrays(where, inputs, ranks, [last, senders])
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise DTypeError(where=where, given=str(x), needed="floats to sum")
        for a, b in zip(x.shape, last.shape if self.onto else senders.shape, strict=True):
            require_equal(a, b)
        return [TensorMeta(x.dtype, senders.shape if self.onto else last.shape)]

    def inputs(self, *given: Any) -> TreeInputs:
        """The inputs of a call by their names, as `PathSearch.inputs`."""
        return TreeInputs(*given)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        last, senders, x = self.inputs(*inputs)
        if senders.shape == (0,):
            return (jnp.zeros((0,) if self.onto else last.shape, x.dtype),)
        if self.onto:
            of_each = jax.vmap(functools.partial(sums_onto, senders))(x, last)
            return (jnp.sum(of_each, 0),)
        return (jax.vmap(functools.partial(sums_along, senders, x))(last),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Linear in x."""
        return apply(self, *self.inputs(*primals[:2], tangents[2]))

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        """The transpose, which is of this family."""
        given = self.inputs(*inputs[:2], cotangents[0])
        return None, None, *apply(TreeSums(not self.onto), *given)

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        if self.onto:
            return ShardingRule("s node, edge, s node -> edge", "sum", ("node", "edge"))
        return ShardingRule("s node, edge, edge -> s node", whole=("node", "edge"))

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Two trees of four nodes and five edges."""
        rng, last = np.random.default_rng(0), [[-1, 0, 1, 4], [2, -1, 1, -1]]
        trees = np.asarray(last, np.int32), np.asarray([0, 1, 2, 3, 0], np.int32)
        return [[*trees, rng.normal(size=(2, 4) if self.onto else 5)]]


# --- the native CPU kernel ------------------------------------------------------------------------


def _declines(op: PathSearch | TreeSums, *metas: TensorMeta) -> str:
    """Why XLA computes the op, or "" if the library does."""
    problem = unserved(metas, metas[2].dtype, ("float32", "float64", "int32"))
    if not problem and max(max(m.shape) for m in metas) >= 2**31 - 1:
        return "sizes are below 2**31 - 1"
    return problem or native().problem


def _numbers(op: PathSearch | TreeSums) -> dict[str, int]:
    """The attributes of a call."""
    if isinstance(op, TreeSums):
        return {"onto": int(op.onto)}
    return {"algebra": op.algebra.native_number or 0, "nodes": op.nodes}


def _sizes(op: PathSearch | TreeSums, arrays: Sequence[np.ndarray]) -> list[int]:
    """The sizes that a direct call takes."""
    if isinstance(op, TreeSums):
        last, senders, _ = arrays
        sources, nodes = last.shape
        return [nodes, len(senders), sources]
    given = op.inputs(*arrays)
    return [len(given.senders), len(given.sources), len(given.targets)]


def _run(op: PathSearch | TreeSums, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    numbers = jax.tree.map(np.int64, _numbers(op))
    return in_program(op.asked.call, outputs_of(op, arrays), arrays, "expand_dims", **numbers)


def _eager(op: PathSearch | TreeSums, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    numbers, sizes = _numbers(op).values(), _sizes(op, given)
    now(op.asked.call, TYPES[outs[0].dtype.name], *numbers, *sizes, given, outs)
    return outs


for family in (PathSearch, TreeSums):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", run=_run, declines=_declines, name="native", eager=_eager)
    )
