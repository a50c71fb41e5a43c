"""The graph: flat, immutable, in canonical order, and independent of how it runs.

Values are numbered: first the inputs, then the outputs of each node in turn. Nodes are in
depth-first order from the outputs, and every node is reachable, so that equality, hash and text
depend on the computation and not on how the graph was made.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

import jax

from ..dimensions import Guard, bind_dim, canonical_guards, undecided
from ..errors import InvalidConfig, Unsupported, counted, require_kind
from ..extension.carrier import Extension
from ..extension.kernels import ExtensionRuntimeSet
from ..extension.primitive import apply
from ..extension.rules import ExtensionRuleSet
from ..identity import Sealed, map_leaves, static_keys
from ..jax_seam import graph_assumptions, is_symbolic_dim
from ..ops.op import StdTensorOp, call
from ..ops.vocabulary import WITH_BODIES
from ..shapes import (
    PyTree,
    TensorMeta,
    as_operand,
    is_inexact,
    meta_of,
    require_x64,
    require_x64_leaves,
    solve_sizes,
    struct,
    x64_enabled,
)
from . import pictures
from .printing import leaf_names, op_name, op_text, payload_texts

# How many nodes `repr` shows at the start and at the end of a large graph.
HEAD, TAIL = 20, 10
DRAWN = 60
"""The most nodes of a graph that a notebook draws; it shows the text of larger ones."""


class Node(NamedTuple):
    """One op of a graph, with the values that it reads and the number of its first output."""

    op: StdTensorOp
    inputs: tuple[int, ...]
    first_output: int


class LostRule(NamedTuple):
    """The name of a function whose custom derivative was inlined, and where and why.

    Example:
      >>> print(LostRule("relu", "at model.py:7 (a higher derivative)"))
      relu at model.py:7 (a higher derivative)
    """

    name: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.where}".rstrip()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Graph(Sealed):
    """An immutable program of standard ops and extensions on a pytree of inputs.

    Attributes:
      metas: TensorMeta of every value, inputs first.
      input_count: how many of the values are inputs.
      nodes: the ops in canonical order.
      outputs: value numbers of the outputs.
      in_tree, out_tree: the nesting of inputs and outputs; the input tree is a tuple of
        arguments, the last of which is the dict of the keyword arguments, if there are any.
      rules: AD rules of the extensions in the graph. Not part of equality, hash or text.
      lost_rules: functions whose custom_jvp or custom_vjp was inlined: differentiating the graph is
        refused. Their names are part of equality and hash, because a body of a loop that lost one
        is another op. Where and why they were inlined is not, as it names files and lines.
      guards: equalities of symbolic sizes that inference assumed, checked when sizes are known and
        before anything runs. Part of equality and hash, except for the text about their origin.
    """

    metas: tuple[TensorMeta, ...]
    input_count: int
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    in_tree: jax.tree_util.PyTreeDef
    out_tree: jax.tree_util.PyTreeDef
    rules: ExtensionRuleSet
    lost_rules: tuple[LostRule, ...] = ()
    guards: tuple[Guard, ...] = ()
    # A method that tracing.py adds, because tracing is a higher layer.
    lowered: ClassVar[Callable[[Graph], Graph]]

    def __post_init__(self) -> None:
        for name in ("metas", "nodes", "outputs", "lost_rules", "guards"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.guards:
            object.__setattr__(self, "guards", canonical_guards(self.guards))

    def _seal(self) -> None:
        static = itertools.chain(static_keys(self.in_tree), static_keys(self.out_tree))
        guarded = tuple(map(str, self.guards))
        lost = tuple(rule.name for rule in self.lost_rules)
        self._set_key(
            (
                Graph,
                self.input_metas,
                self.nodes,
                self.outputs,
                self.in_tree,
                self.out_tree,
                lost,
                guarded,
                *static,
            )
        )

    @property
    def input_metas(self) -> tuple[TensorMeta, ...]:
        """TensorMeta of each input, flat."""
        return self.metas[: self.input_count]

    @property
    def input_names(self) -> tuple[str, ...]:
        """The name of each input in errors and pictures: its path in the arguments, such as
        `args[0]['w']`.
        """
        return tuple(leaf_names(self.in_tree, "args"))

    @property
    def output_metas(self) -> tuple[TensorMeta, ...]:
        """TensorMeta of each output, flat."""
        return tuple(self.metas[i] for i in self.outputs)

    @property
    def input_specs(self) -> tuple[Any, ...]:
        """The arguments as pytrees of ShapeDtypeStruct."""
        return jax.tree.unflatten(self.in_tree, [struct(m) for m in self.input_metas])

    @property
    def output_specs(self) -> Any:
        """The result as a pytree of ShapeDtypeStruct."""
        return jax.tree.unflatten(self.out_tree, [struct(m) for m in self.output_metas])

    def steps(self) -> Iterator[tuple[Node, range]]:
        """Every node with the numbers of its outputs."""
        ends = (*(n.first_output for n in self.nodes), len(self.metas))
        return (
            (node, range(node.first_output, end))
            for node, end in zip(self.nodes, ends[1:], strict=False)
        )

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

    def map_ops(
        self,
        change: Callable[[StdTensorOp], StdTensorOp],
        metas: Sequence[TensorMeta],
        rules: ExtensionRuleSet,
    ) -> Graph:
        """The same wiring with other ops, metas and rules."""
        nodes = tuple(n._replace(op=change(n.op)) for n in self.nodes)
        return dataclasses.replace(self, metas=tuple(metas), nodes=nodes, rules=rules)

    def map_leaves(self, change: Callable[[object], object]) -> Graph:
        """The graph with every payload leaf and every dimension replaced through `change`."""
        metas = [TensorMeta(m.dtype, tuple(map(change, m.shape))) for m in self.metas]
        graph = self.map_ops(lambda op: map_leaves(op, change), metas, self.rules)
        return graph.with_guards(canonical_guards(self.guards, change)) if self.guards else graph

    def with_rules(self, rules: ExtensionRuleSet) -> Graph:
        """The same graph with other AD rules, control-flow bodies included."""
        return self.map_ops(
            lambda op: map_bodies(op, lambda body: body.with_rules(rules)), self.metas, rules
        )

    def with_runtimes(self, runtimes: ExtensionRuntimeSet) -> Graph:
        """The same graph with other runtimes for its extensions, control-flow bodies included."""

        def changed(op: StdTensorOp) -> StdTensorOp:
            return (
                op.with_runtimes(runtimes)
                if isinstance(op, Extension)
                else map_bodies(op, lambda body: body.with_runtimes(runtimes))
            )

        return self.map_ops(changed, self.metas, self.rules)

    def with_guards(self, guards: Iterable[Guard]) -> Graph:
        """The same graph with other guards."""
        return dataclasses.replace(self, guards=tuple(guards))

    # --- what it looks like, and what it is ---

    def __str__(self) -> str:
        """One line for each node, stable across processes; large constants are shown by dtype and
        shape only. The bodies of control flow are graphs, with texts of their own.
        """
        return self._text(range(0))

    def __repr__(self) -> str:
        return self._text(range(HEAD, len(self.nodes) - TAIL))

    def _text(self, hidden: range) -> str:
        inputs = ", ".join(f"%{i}: {m}" for i, m in enumerate(self.input_metas))
        lines = [f"graph({inputs}) {{", *(f"  guard {guard}" for guard in self.guards)]
        for i, (node, outs) in enumerate(self.steps()):
            if i not in hidden:
                types = ", ".join(str(self.metas[i]) for i in outs)
                made = f"{op_text(node.op)}({_values(node.inputs)})"
                lines.append(f"  {_values(outs)} = {made} : {types}")
            elif i == HEAD:
                lines.append(f"  ... {len(hidden)} more nodes ...")
        lines.append(f"  return {_values(self.outputs)}".rstrip())
        return "\n".join([*lines, "}"])

    def mermaid(self) -> str:
        """The graph as a flowchart of Mermaid, which GitHub, Jupyter and many sites draw. A box has
        the colour of its kind of op. A notebook draws a graph of up to 60 nodes by itself.
        """
        return pictures.mermaid(self._boxes())

    def model_explorer(self, path: str | os.PathLike[str]) -> None:
        """Write the graph into a JSON file for Google's Model Explorer: `model-explorer PATH`."""
        drawn = {"id": "graph", "nodes": list(pictures.model_explorer(self._boxes()))}
        pathlib.Path(path).write_text(json.dumps({"label": "tenferro_jax", "graphs": [drawn]}))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        drawn = {"text/vnd.mermaid": self.mermaid()} if len(self.nodes) <= DRAWN else {}
        return {"text/plain": repr(self), **drawn}

    def _boxes(self, prefix: str = "n") -> list[pictures.Box]:
        """A box for each input, node and output, each after those that it reads."""
        boxes: list[pictures.Box] = []
        made: list[tuple[str, int]] = []  # of each value: its box, its place among the box's values
        for title, meta in zip(self.input_names, self.input_metas, strict=True):
            name = f"{prefix}{len(boxes)}"
            boxes.append(pictures.Box(name, "input", title, {}, [str(meta)], []))
            made.append((name, 0))
        for node, outs in self.steps():
            op, name = node.op, f"{prefix}{len(boxes)}"
            types, inside = [str(self.metas[i]) for i in outs], {}
            for k, (place, body) in enumerate(named_bodies(op)):
                inside[place] = body._boxes(f"{name}_{k}_")
            box = pictures.Box(
                name=name,
                kind=pictures.kind_of(op),
                title=op_name(op),
                fields=payload_texts(op),
                types=types,
                reads=[made[i] for i in node.inputs],
                bodies=inside,
            )
            boxes.append(box)
            made.extend((name, k) for k in range(len(outs)))
        for place, value in zip(leaf_names(self.out_tree), self.outputs, strict=True):
            name, title = f"{prefix}{len(boxes)}", f"return {place}".rstrip()
            boxes.append(pictures.Box(name, "output", title, {}, [], [made[value]]))
        return boxes

    # --- running it as JAX ---

    def __call__(self, *arrays: jax.typing.ArrayLike) -> tuple[jax.Array, ...]:
        """The flat outputs for flat inputs: one loop over the nodes, under any JAX transform.

        Raises:
          InvalidConfig: too few or too many arrays.
          ShapeError, DTypeError: an array does not fit its input.
          ShapeError: a guard does not hold at these sizes; or the sizes are symbolic and a guard
            cannot be decided.
          DTypeError: the graph has 64-bit values while 64-bit types are off.
          Unsupported: later, if an input has a tangent and a custom derivative was inlined
            (`lost_rules`).
        """
        if len(arrays) != self.input_count:
            raise InvalidConfig(
                where="Graph",
                given=counted(len(arrays), "input"),
                needed=f"{self.input_count}: {', '.join(self.input_names)}",
            )
        values = [as_operand(a, f"graph input {i}") for i, a in enumerate(arrays)]
        bound = self.bound_metas([meta_of(value) for value in values])
        # An undecided guard goes to the graph that is being recorded.
        for guard in bound.guards:
            if graph_assumptions.value is None:
                raise undecided(guard.lhs, guard.rhs, f"Graph, from {guard.where}")
            graph_assumptions.value.append(guard)
        self.require_x64_values()
        for rule in self.lost_rules:
            refusing = _not_to_be_differentiated(rule.name, self.lost_rules)
            values = [refusing(x) if is_inexact(x) else x for x in values]
        for node in bound.nodes:
            inputs = [values[i] for i in node.inputs]
            values.extend(
                apply(node.op, *inputs, rules=self.rules)
                if isinstance(node.op, Extension)
                else call(node.op, inputs)
            )
        return tuple(values[i] for i in self.outputs)

    def require_x64_values(self) -> None:
        """Refuse a graph with 64-bit values while 64-bit types are off."""
        if not x64_enabled():
            for meta in self.metas:
                require_x64(meta, "a value of a graph that was made with 64-bit types")

    def bound_metas(self, given: Sequence[TensorMeta]) -> Graph:
        """The graph with its symbols replaced by the sizes in `given`, which are checked against
        the declared inputs.
        """
        if self.input_metas == tuple(given):
            return self
        sizes = solve_sizes(
            self.input_metas, given, [f"graph input {name}" for name in self.input_names]
        )
        return self.map_leaves(lambda leaf: bind_dim(leaf, sizes)) if self.is_symbolic else self

    def bound_to(self, *args: PyTree, **kwargs: PyTree) -> Graph:
        """The graph for the shapes of these arguments (arrays or ShapeDtypeStructs, pytrees as
        traced).

        Raises:
          InvalidConfig: the arguments have another nesting.
          ShapeError, DTypeError: an argument does not fit its
            input.
          ShapeError: a guard does not hold at these sizes.
        """
        leaves = self.leaves(args, kwargs, "Graph.bound_to()")
        require_x64_leaves(leaves, "Graph.bound_to()")
        return self.bound_metas(
            [
                meta_of(leaf if hasattr(leaf, "dtype") else as_operand(leaf, "graph input"))
                for leaf in leaves
            ]
        )

    def leaves(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], where: str) -> list[Any]:
        """The arguments of a call, flat.

        Raises:
          InvalidConfig: they have another nesting than the traced arguments.
        """
        leaves, tree = jax.tree_util.tree_flatten(arguments(args, kwargs))
        if tree != self.in_tree:
            declared, given = self.input_names, leaf_names(tree, "args")
            missing = [name for name in declared if name not in given]
            extra = [name for name in given if name not in declared]
            found = (
                f"nothing for {', '.join(missing)}"
                if missing
                else f"an array too many, {', '.join(extra)}"
                if extra
                else "another nesting"
            )
            raise InvalidConfig(
                where=where,
                given=f"{found}: {tree}",
                needed=str(self.in_tree),
                fix="Nest the arguments as in the traced call.",
            )
        return leaves

    def to_jax(self) -> Callable[..., Any]:
        """The graph as a plain JAX function with the arguments and pytrees of the traced
        function.
        """

        def run(*args: PyTree, **kwargs: PyTree) -> Any:
            return jax.tree.unflatten(
                self.out_tree, self(*self.leaves(args, kwargs, "Graph.to_jax()"))
            )

        return run

    @property
    def is_symbolic(self) -> bool:
        """Whether an input has a symbolic dimension."""
        return any(is_symbolic_dim(d) for m in self.input_metas for d in m.shape)


def _values(numbers: Iterable[int]) -> str:
    return ", ".join(f"%{i}" for i in numbers)


def _not_to_be_differentiated(
    name: str, lost: tuple[LostRule, ...]
) -> Callable[[jax.Array], jax.Array]:
    """The identity, which refuses to be differentiated: no derivative is better than another one
    than the author's. It has the name of a lost rule, which is lost under this name again where the
    graph is traced.
    """

    def identity(x: jax.Array) -> jax.Array:
        return x

    identity.__name__ = name
    refusing = jax.custom_jvp(identity)

    @refusing.defjvp
    def _refuse(primals: object, tangents: object) -> NoReturn:
        raise Unsupported(
            where="differentiating a graph",
            given=f"custom derivatives that tracing inlined: {', '.join(map(str, lost))}",
            needed="a graph without them",
            fix="Differentiate first and trace the result: trace(jax.grad(fn), ...).",
        )

    return refusing


def arguments(args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> tuple[PyTree, ...]:
    """The arguments of a call in the nesting of a graph: keyword arguments are one dict, the last
    argument.
    """
    return (*args, kwargs) if kwargs else args


def require_graph(value: object, where: str) -> Graph:
    """Refuse a value that is not a graph; most often it is the function that should have been
    traced.
    """
    return require_kind(
        value, Graph, where, "a Graph", "Make one with tenferro_jax.trace(fn, *specs)."
    )


def map_bodies(op: StdTensorOp, change: Callable[[Graph], Graph]) -> StdTensorOp:
    """A control-flow op with every body graph replaced through `change`; other ops stay as they
    are.
    """
    if type(op) not in WITH_BODIES:
        return op

    def changed(value: object) -> object:
        if type(value) is tuple:
            return tuple(map(changed, value))
        return change(value) if isinstance(value, Graph) else value

    fields = {f.name: changed(getattr(op, f.name)) for f in dataclasses.fields(op)}
    return dataclasses.replace(op, **fields)


def named_bodies(op: StdTensorOp) -> list[tuple[str, Graph]]:
    """The graphs in an op's payload, each with the name of its field and its position there."""
    found: list[tuple[str, Graph]] = []
    for field in dataclasses.fields(op) if type(op) in WITH_BODIES else ():
        value = getattr(op, field.name)
        several = type(value) is tuple
        for i, item in enumerate(value if several else (value,)):
            if isinstance(item, Graph):
                found.append((f"{field.name}[{i}]" if several else field.name, item))
    return found


def bodies(op: StdTensorOp) -> tuple[Graph, ...]:
    """The bodies of a control-flow op."""
    if type(op) not in WITH_BODIES:
        return ()
    return tuple(body for _, body in named_bodies(op))
