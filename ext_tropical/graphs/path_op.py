"""Shortest paths from sources as an extension op, and the sums along their trees that its
derivative consists of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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

from ..arguments import inside, one_dtype, work_dtype
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring, lowest
from ..semirings.shipped import min_max, min_plus

INT32 = np.dtype("int32")

State = Any  # a pytree of arrays


def _vectors(where: str, inputs: Sequence[TensorMeta], ranks: Sequence[int], of_ints: str) -> None:
    """Refuse other ranks, and where `of_ints` has an i other numbers than int32."""
    given = ", ".join(map(str, inputs))
    if [len(m.shape) for m in inputs] != [*ranks]:
        raise ShapeError(where=where, given=given, needed=f"arrays of {ranks} axes")
    if any(m.dtype != INT32 for m, kind in zip(inputs, of_ints, strict=True) if kind == "i"):
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

    call: ClassVar = "shortest_paths"
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
        where = f"extension {self.family_id}"
        _vectors(where, inputs, [1] * 5, "iifii")
        senders, receivers, weights, sources, _ = inputs
        one_dtype(where, self.algebra, [weights.dtype])
        for other in (receivers, weights):
            require_equal(senders.shape[0], other.shape[0])
        shape = sources.shape[0], self.nodes
        return [TensorMeta(weights.dtype, shape), TensorMeta(INT32, shape)]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        senders, receivers, weights, sources, targets = inputs
        if not self.nodes:
            return [jnp.zeros((sources.shape[0], 0), dtype) for dtype in (weights.dtype, INT32)]
        if weights.shape == (0,):  # with an edge that leads nowhere
            senders = receivers = jnp.full(1, -1, INT32)
            weights = jnp.zeros(1, weights.dtype)
        return jax.vmap(functools.partial(_searched, self, senders, receivers, weights, targets))(
            sources
        )

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of tangents along each path; under min_max that of the first greatest weight."""
        senders, (values, last) = primals[0], outputs
        moved: Any = tangents[2]
        if self.algebra == min_plus:
            return *apply(TreeSums(), last, senders, moved), None
        if senders.shape == (0,):
            return jnp.zeros_like(values), None
        edge = jax.vmap(functools.partial(_greatest, senders))(last, values)
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

    call: ClassVar = "tree_sums"
    input_count = 3

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where, (last, senders, x) = f"extension {self.family_id}", inputs
        _vectors(where, inputs, [2, 1, 1 + self.onto], "iif")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise DTypeError(where=where, given=str(x), needed="floats to sum")
        for a, b in zip(x.shape, last.shape if self.onto else senders.shape, strict=True):
            require_equal(a, b)
        return [TensorMeta(x.dtype, senders.shape if self.onto else last.shape)]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        last, senders, x = inputs
        if senders.shape == (0,):
            return (jnp.zeros((0,) if self.onto else last.shape, x.dtype),)
        if self.onto:
            return (jnp.sum(jax.vmap(functools.partial(_onto, senders))(last, x), 0),)
        return (jax.vmap(functools.partial(_along, senders, x))(last),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Linear in x."""
        moved: Any = tangents[2]
        return apply(self, *primals[:2], moved)

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        """The transpose, which is of this family."""
        given: Any = (*inputs[:2], cotangents[0])
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


# --- in standard ops: sweeps over all edges until nothing changes ---------------------------------


def _joined(semiring: SelectiveSemiring, values: jax.Array, weights: jax.Array) -> jax.Array:
    """The value of a path and one more edge; integers beyond the type stop at its ends."""
    none, least = (jnp.asarray(f(values.dtype)) for f in (semiring.zero, lowest))
    total = semiring.times(values, weights)
    if semiring == min_plus and not jnp.issubdtype(values.dtype, jnp.floating):
        total = jnp.where((weights > 0) & (total < values), none, total)
        total = jnp.where((values == least) | ((weights < 0) & (total > values)), least, total)
    return jnp.where((values == none) | (weights == none), none, total)


def _into(heads: jax.Array, count: int, x: jax.Array, none: jax.typing.ArrayLike) -> jax.Array:
    """The least entry of the edges into each node."""
    return jnp.full(count, none, x.dtype).at[heads].min(x, mode="drop")


class Edges(NamedTuple):
    """Edges of a graph: those that lead nowhere have a head beyond the nodes, and no edge has the
    weight NaN.
    """

    senders: jax.Array
    heads: jax.Array
    weights: jax.Array

    def tree(
        self, is_tight: jax.Array, start: jax.Array, count: int
    ) -> tuple[jax.Array, jax.Array]:
        """For each node the number of edges of its shortest way along tight edges, and the last one
        of these; -1 where there is no way.
        """
        senders, heads, _ = self
        number, most = jnp.arange(heads.shape[0], dtype=INT32), np.int32(2**31 - 1)
        is_tight = is_tight & (heads < count)
        into = functools.partial(_into, heads, count, none=most)

        def ring(state: State) -> State:
            """The nodes that are one edge farther."""
            last, hops, turn, _ = state
            is_next = is_tight & (hops[senders] == turn) & (hops[heads] < 0)
            is_next &= senders == into(jnp.where(is_next, senders, most))[heads]
            first = into(jnp.where(is_next, number, most))
            found = first < most
            last, hops = jnp.where(found, first, last), jnp.where(found, turn + 1, hops)
            return last, hops, turn + 1, jnp.any(found)

        unknown = jnp.full(count, -1, INT32)
        state = unknown, unknown.at[start].set(0, mode="drop"), jnp.int32(0), jnp.asarray(True)
        last, hops, *_ = lax.while_loop(lambda s: s[3], ring, state)
        return hops, last

    def settled(
        self, start: jax.Array, values: jax.Array, hops: jax.Array, last: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Values and last edges, all values sums along paths. Where rounding alone made a cycle
        better, the value of its nodes and of what they lead to is that of no path yet: these are
        searched again.
        """
        count = values.shape[0]
        is_start = jnp.arange(count, dtype=INT32) == start
        odd = jnp.where(is_start, values != 0, (values != jnp.inf) & (hops < 0))
        some = jnp.any(odd)

        def flood(state: State) -> State:
            marked, _ = state
            leads = marked[self.senders] & (self.weights != jnp.inf)
            new = marked | ~_into(self.heads, count, ~leads, True)
            return new, jnp.any(new != marked)

        searched, _ = lax.while_loop(lambda s: s[1], flood, (odd, some))
        sums, is_tight = self.wide_sums(start, count, some)
        _, own = self.tree(is_tight & some, start, count)
        last = jnp.where(searched, own, last)
        begin = jnp.where(searched & (sums < jnp.inf), -jnp.inf, values).astype(values.dtype)
        begin = jnp.where(searched & is_start & (sums > -jnp.inf), 0, begin)
        edge, follows = jnp.maximum(last, 0), searched & (last >= 0)

        def follow(state: State) -> State:
            held, _ = state
            after = _joined(min_plus, held[self.senders[edge]], self.weights[edge])
            new = jnp.where(follows, after, held)
            return new, jnp.any(new != held)

        return lax.while_loop(lambda s: s[1], follow, (begin, some))[0], last

    def wide_sums(
        self, start: jax.Array, count: int, is_wanted: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The least sums from a node, -inf where there is none, and which edges are on best paths.
        Sums have twice the digits, and an allowance for each weight, for the rounding of whoever
        computed it: cycles of weight 0 up to rounding are positive then.
        """
        into = functools.partial(_into, self.heads, count, none=jnp.inf)
        eps = float(jnp.finfo(self.weights.dtype).eps)
        weights = self.weights.astype(work_dtype(self.weights.dtype))
        is_edge = jnp.isfinite(weights) & (self.heads < count)
        size = jnp.where(is_edge, jnp.abs(weights), 0)
        floor = jnp.minimum(jnp.max(size), 1)  # 1 is the size of errors of logarithms
        allowance = 2 * eps * jnp.maximum(size, floor)

        def arriving(sums: Sums) -> Sums:
            """Those of the edges."""
            value, rest = (x[self.senders] for x in sums)
            total = value + weights
            part = total - value
            lost = (value - (total - part)) + (weights - part)
            small = (rest + lost) + allowance
            whole = total + small
            is_none, is_sum = (value == jnp.inf) | (weights == jnp.inf), jnp.isfinite(whole)
            rest = jnp.where(is_sum & ~is_none, small - (whole - total), 0)
            return jnp.where(is_none, jnp.inf, jnp.where(is_sum, whole, total)), rest

        def sweep(state: State) -> State:
            (value, rest), turn, _ = state
            whole, small = arriving((value, rest))
            top = into(whole)
            least = into(jnp.where(whole == top[self.heads], small, jnp.inf))
            is_less = (top < value) | ((top == value) & (least < rest))
            is_endless = is_less & (turn >= count)  # as in the search
            top, least = jnp.where(is_endless, -jnp.inf, top), jnp.where(is_endless, 0, least)
            new = jnp.where(is_less, top, value), jnp.where(is_less, least, rest)
            return new, turn + 1, jnp.any(is_less)

        begin = jnp.full(count, jnp.inf, weights.dtype).at[start].set(0, mode="drop")
        state = (begin, jnp.zeros_like(begin)), jnp.int32(0), is_wanted
        (value, rest), _, _ = lax.while_loop(lambda s: s[2], sweep, state)
        whole, small = arriving((value, rest))
        is_tight = (whole == value[self.heads]) & (small == rest[self.heads])
        return value, is_tight & jnp.isfinite(whole) & jnp.isfinite(value[self.senders])


Sums = tuple[jax.Array, jax.Array]
"""Values, and what they lost by rounding."""


def _searched(
    op: PathSearch,
    senders: jax.Array,
    receivers: jax.Array,
    given: jax.Array,
    targets: jax.Array,
    source: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Values and last edges of one source."""
    semiring = op.algebra
    count, dtype = op.nodes, given.dtype
    zero, one, least = (jnp.asarray(f(dtype)) for f in (semiring.zero, semiring.one, lowest))

    start, heads, tails = (inside(x, count, count) for x in (source, receivers, senders))
    heads, senders = jnp.where(tails < count, heads, count), jnp.minimum(tails, count - 1)
    wrong, weights = given != given, jnp.where(given != given, zero, given)
    into = functools.partial(_into, heads, count)

    def sweep(state: State) -> State:
        values, turn, _ = state
        new = jnp.minimum(values, into(_joined(semiring, values[senders], weights), none=zero))
        # Paths of more edges than there are nodes have a cycle, which makes them better.
        new = jnp.where((turn >= count) & (new < values) & (semiring == min_plus), least, new)
        return new, turn + 1, jnp.any(new != values)

    begin = jnp.full(count, zero).at[start].set(one, mode="drop")
    values, _, _ = lax.while_loop(lambda s: s[2], sweep, (begin, jnp.int32(0), jnp.asarray(True)))
    edges = Edges(senders, heads, weights)
    is_known = (values != zero) & ((values != least) | (semiring != min_plus))
    is_best = _joined(semiring, values[senders], weights) == values[heads]
    hops, last = edges.tree(is_best & is_known[senders] & is_known[heads], start, count)
    if semiring == min_plus and jnp.issubdtype(dtype, jnp.floating):
        values, last = edges.settled(start, values, hops, last)

    if targets.shape[0] != 0:
        places = inside(targets, count, count)
        farthest = jnp.max(values.at[places].get(mode="fill", fill_value=lowest(dtype).item()))
        is_odd = wrong | ((given < 0) & (semiring == min_plus))
        is_far = jnp.any(places < count) & (farthest != zero) & ~jnp.any(is_odd)
        is_far &= values > farthest
        values, last = jnp.where(is_far, zero, values), jnp.where(is_far, -1, last)

    def flood(state: State) -> State:
        marked, _ = state
        new = marked | ~into(~(marked[senders] & (wrong | (weights != zero))), none=True)
        return new, jnp.any(new != marked)

    if not jnp.issubdtype(dtype, jnp.floating):
        return values, last
    first = ~into(~(wrong & (values[senders] != zero)), none=True)
    marked, _ = lax.while_loop(lambda s: s[1], flood, (first, jnp.any(first)))
    return jnp.where(marked, jnp.asarray(jnp.nan, dtype), values), jnp.where(marked, -1, last)


def _before(senders: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The numbers of nodes, and the node before each; itself where a tree begins."""
    node = jnp.arange(last.shape[0], dtype=INT32)
    return node, jnp.where(last >= 0, senders[jnp.maximum(last, 0)], node)


def _doubled(
    step: Callable[[State, jax.Array], State], held: State, before: jax.Array
) -> tuple[State, jax.Array]:
    """Steps of twice as many nodes until every way has come to its beginning; and this node. A way
    in a circle is given up.
    """

    def turn(state: State) -> State:
        held, before, left, _ = state
        after = before[before]
        return step(held, before), after, left - 1, jnp.any(after[after] != after)

    state = held, before, jnp.int32(32), jnp.any(before[before] != before)
    return lax.while_loop(lambda s: s[3] & (s[2] > 0), turn, state)[:2]


def _along(senders: jax.Array, x: jax.Array, last: jax.Array) -> jax.Array:
    node, before = _before(senders, last)

    def step(sums: jax.Array, before: jax.Array) -> jax.Array:
        return sums + jnp.where(before == node, 0, sums[before])

    own = jnp.where(last >= 0, x[jnp.maximum(last, 0)], 0)
    sums, begin = _doubled(step, own, before)
    return jnp.where(last[begin] < 0, sums, 0)  # else they turn in a circle


def _onto(senders: jax.Array, last: jax.Array, x: jax.Array) -> jax.Array:
    node, before = _before(senders, last)
    _, begin = _doubled(lambda held, _: held, (), before)

    def step(sums: jax.Array, before: jax.Array) -> jax.Array:
        return sums.at[jnp.where(before == node, node.shape[0], before)].add(sums, mode="drop")

    sums, _ = _doubled(step, jnp.where(last[begin] < 0, x, 0), before)
    edges = jnp.where(last >= 0, last, senders.shape[0])
    return jnp.zeros(senders.shape, x.dtype).at[edges].add(sums, mode="drop")


def _greatest(senders: jax.Array, last: jax.Array, values: jax.Array) -> jax.Array:
    """The first edge of the greatest weight on each path."""
    node, before = _before(senders, last)
    is_new = (last < 0) | (values[before] != values)
    _, at = _doubled(lambda held, _: held, (), jnp.where(is_new, node, before))
    return last[at]


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


def _run(op: PathSearch | TreeSums, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    numbers = jax.tree.map(np.int64, _numbers(op))
    return in_program(op.call, outputs_of(op, arrays), arrays, "expand_dims", **numbers)


def _eager(op: PathSearch | TreeSums, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    last, edges, *_ = given
    searches = (len(edges), *(len(x) for x in given[3:]))
    sizes = searches if isinstance(op, PathSearch) else (last.shape[1], len(edges), len(last))
    now(op.call, TYPES[outs[0].dtype.name], *_numbers(op).values(), *sizes, given, outs)
    return outs


for family in (PathSearch, TreeSums):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", _run, _declines, "native", _eager)
    )
