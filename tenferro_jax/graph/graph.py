"""The graph: flat, immutable, in canonical order. It does not know how it runs.

Values are numbered: first the inputs, then the outputs of each node in turn. Nodes are in depth-first order from the
outputs and every node is reachable, so that equality, hash and text depend on what is computed and not on how the
graph was written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import ArityError, InvalidConfig, Unsupported
from ..extension import Extension, ExtensionRuleSet, apply
from ..jax_seam import is_symbolic_dim
from ..meta import TensorMeta, as_operand, bind_dim, meta_of, require_x64, require_x64_leaves, solve_sizes, struct, x64_enabled
from ..ops.op import StdTensorOp, call
from ..ops.vocabulary import CONTROL
from ..payload import Sealed, map_leaves
from .printing import graph_text


class Node(NamedTuple):
    """One op of a graph: which values it reads, and the number of its first output."""

    op: StdTensorOp
    inputs: tuple[int, ...]
    first_output: int


class Graph(Sealed):
    """An immutable program of standard ops and extensions on a pytree of inputs.

    Attributes:
      metas: TensorMeta of every value, inputs first.
      input_count: how many of the values are inputs.
      nodes: the ops in canonical order.
      outputs: value numbers of the outputs.
      in_tree, out_tree: how inputs and outputs are nested; the input tree is that of a tuple of arguments.
      rules: AD rules of the extensions inside. No part of equality, hash or text.
      lost_rules: names of functions whose custom_jvp or custom_vjp was inlined: differentiating the graph is refused.
        No part of equality, hash or text.
    """

    metas: tuple[TensorMeta, ...]
    input_count: int
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    in_tree: Any
    out_tree: Any
    rules: ExtensionRuleSet
    lost_rules: tuple[str, ...]

    def __init__(
        self,
        metas: Sequence[TensorMeta],
        input_count: int,
        nodes: Sequence[Node],
        outputs: Sequence[int],
        in_tree: Any,
        out_tree: Any,
        rules: ExtensionRuleSet,
        lost_rules: Sequence[str] = (),
    ):
        for name, value in [
            ("metas", tuple(metas)),
            ("input_count", input_count),
            ("nodes", tuple(nodes)),
            ("outputs", tuple(outputs)),
            ("in_tree", in_tree),
            ("out_tree", out_tree),
            ("rules", rules),
            ("lost_rules", tuple(lost_rules)),
        ]:
            object.__setattr__(self, name, value)
        self._set_key((Graph, self.metas[:input_count], self.nodes, self.outputs, in_tree, out_tree))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Graph is immutable; cannot set {name}")

    @property
    def input_metas(self) -> tuple[TensorMeta, ...]:
        """TensorMeta of each input, flat."""
        return self.metas[: self.input_count]

    @property
    def output_metas(self) -> tuple[TensorMeta, ...]:
        """TensorMeta of each output, flat."""
        return tuple(self.metas[i] for i in self.outputs)

    @property
    def input_specs(self) -> tuple[Any, ...]:
        """The arguments as pytrees of ShapeDtypeStruct."""
        return jax.tree.unflatten(self.in_tree, [struct(m) for m in self.input_metas])

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Every extension of the graph and of its control-flow bodies, in order."""
        found: list[Extension] = []
        for node in self.nodes:
            if isinstance(node.op, Extension):
                found.append(node.op)
            else:
                for body in bodies(node.op):
                    found.extend(body.extensions)
        return tuple(found)

    def map_ops(self, change: Callable[[StdTensorOp], StdTensorOp], metas: Sequence[TensorMeta], rules: ExtensionRuleSet) -> Graph:
        """The same wiring with other ops, metas and rules."""
        nodes = [Node(change(n.op), n.inputs, n.first_output) for n in self.nodes]
        return Graph(metas, self.input_count, nodes, self.outputs, self.in_tree, self.out_tree, rules, self.lost_rules)

    def map_leaves(self, change: Callable[[Any], Any]) -> Graph:
        """The graph with every payload leaf and every dimension replaced through `change`."""
        metas = [TensorMeta(m.dtype, tuple(map(change, m.shape))) for m in self.metas]
        return self.map_ops(lambda op: map_leaves(op, change), metas, self.rules)

    def with_rules(self, rules: ExtensionRuleSet) -> Graph:
        """The same graph under other AD rules, control-flow bodies included."""
        return self.map_ops(lambda op: map_bodies(op, lambda body: body.with_rules(rules)), self.metas, rules)

    def __str__(self) -> str:
        return graph_text(self)

    __repr__ = __str__

    # --- running it as JAX ---

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """The flat outputs for flat inputs: one loop over the nodes, under any JAX transform.

        Raises:
          ArityError, ShapeError, DTypeError: the arrays are not what the graph declares.
          X64Error: the graph holds 64-bit values and 64-bit types are off.
          Unsupported: later, where an input has a tangent and a custom derivative was inlined (`lost_rules`).
        """
        if len(arrays) != self.input_count:
            raise ArityError(where="Graph", given=f"{len(arrays)} inputs", needed=f"{self.input_count}", fix="Pass one array an input.")
        arrays = tuple(as_operand(a, f"graph input {i}") for i, a in enumerate(arrays))
        graph = self._bound([meta_of(a) for a in arrays])
        if not x64_enabled():
            for meta in self.metas:
                require_x64(meta, "a value of a graph that was made with 64-bit types")
        values = list(map(_not_to_be_differentiated(self.lost_rules), arrays)) if self.lost_rules else list(arrays)
        for node in graph.nodes:
            inputs = [values[i] for i in node.inputs]
            values.extend(apply(node.op, *inputs, rules=self.rules) if isinstance(node.op, Extension) else call(node.op, inputs))
        return tuple(values[i] for i in self.outputs)

    def _bound(self, given: Sequence[TensorMeta]) -> Graph:
        """The graph with its symbols replaced by the sizes in `given`, which are checked against the declared inputs."""
        sizes = solve_sizes(self.input_metas, given, "Graph")
        return self.map_leaves(lambda leaf: bind_dim(leaf, sizes)) if self.is_symbolic else self

    def bound_to(self, *args: Any) -> Graph:
        """The graph for the shapes of these arguments (arrays or ShapeDtypeStructs, pytrees as traced).

        Raises:
          ArityError, ShapeError, DTypeError, X64Error: the arguments are not what the graph declares.
        """
        leaves = self._leaves(args, "Graph.bound_to()")
        require_x64_leaves(leaves, "Graph.bound_to()")
        return self._bound([meta_of(leaf if hasattr(leaf, "dtype") else as_operand(leaf, "graph input")) for leaf in leaves])

    def _leaves(self, args: Any, where: str) -> list[Any]:
        leaves, tree = jax.tree.flatten(args)
        if tree != self.in_tree:
            fix = "Pass arguments nested as those that were traced."
            raise ArityError(where=where, given=str(tree), needed=str(self.in_tree), fix=fix)
        return leaves

    def to_jax(self) -> Callable[..., Any]:
        """The graph as a plain JAX function of the traced function's arguments, pytrees as they were."""

        def run(*args: Any) -> Any:
            return jax.tree.unflatten(self.out_tree, self(*self._leaves(args, "Graph.to_jax()")))

        return run

    @property
    def is_symbolic(self) -> bool:
        """Whether an input has a symbolic dimension."""
        return any(is_symbolic_dim(d) for m in self.input_metas for d in m.shape)


def require_graph(value: Any, where: str) -> Graph:
    """Refuse what is no graph: most often the function that should have been traced."""
    if not isinstance(value, Graph):
        raise InvalidConfig(where=where, given=repr(value), needed="a Graph", fix="Make one with tenferro_jax.trace(fn, *specs).")
    return value


def _not_to_be_differentiated(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """The identity, refusing to be differentiated: better no derivative than another one than the author gave."""

    @jax.custom_jvp
    def identity(x: Any) -> Any:
        return x

    @identity.defjvp
    def _refuse(primals: Any, tangents: Any) -> Any:
        raise Unsupported(
            where="differentiating a graph",
            given=f"custom derivatives that tracing inlined: {', '.join(names)}",
            needed="a graph without them",
            fix="Differentiate first and trace the result: trace(jax.grad(fn), ...).",
        )

    return identity


def map_bodies(op: StdTensorOp, change: Callable[[Graph], Graph]) -> StdTensorOp:
    """A control-flow op with every body graph replaced through `change`; other ops stay as they are."""
    if not isinstance(op, CONTROL):
        return op

    def changed(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(changed, value))
        return change(value) if isinstance(value, Graph) else value

    control: Any = op  # a dataclass, which the base class does not say
    return dataclasses.replace(control, **{f.name: changed(getattr(op, f.name)) for f in dataclasses.fields(control)})


def bodies(op: StdTensorOp) -> tuple[Graph, ...]:
    """The graphs inside a control-flow op."""
    found: list[Graph] = []

    def keep(body: Graph) -> Graph:
        found.append(body)
        return body

    map_bodies(op, keep)
    return tuple(found)
