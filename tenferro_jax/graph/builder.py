"""Building graphs: values, interning, canonical order, and the reader of jaxprs; primitives.py has
the ops for each JAX primitive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from .. import jax_seam
from ..dimensions import Guard
from ..errors import InvalidConfig, ShapeError, Unsupported, require_kind
from ..extension.carrier import Extension
from ..extension.contract import ExtensionOp
from ..extension.rules import NO_RULES, ExtensionRuleSet
from ..jax_seam import Atom, ClosedJaxpr, Eqn
from ..ops.op import StdTensorOp
from ..ops.random import RandomWrap
from ..ops.source import Constant
from ..shapes import (
    Described,
    PyTree,
    Shaped,
    TensorMeta,
    as_operand,
    is_jax_dtype,
    is_key,
    meta_of,
    require_x64,
    struct,
)
from .graph import Graph, LostRule, Node
from .signature import infer
from .verify import depth_first

RULE_DEPTH = 3
"""How many orders of custom derivatives are read: calls of functions with rules inside rules, and
so on.
"""

Values: TypeAlias = "Sequence[Value]"
Row: TypeAlias = "Callable[[Reader, Eqn, Values], Values]"
"""How a primitive is recorded: (reader, equation, inputs) -> outputs."""

PLAIN_PARAMS: dict[str, Any] = {
    "out_sharding": None,
    "sharding": None,
    "implementation": None,
    "enable_eigvec_derivs": False,
    "algorithm": None,
    "subset_by_index": None,
    "use_magma": None,
    "perturb_singular": False,
    "update_consts": (),
    "_split_transpose": False,
}
"""Params that no standard op has a field for, each with the value that needs no field; other values
are refused.
"""

ROWS: dict[str, Row] = {}
"""The row of each primitive; primitives.py fills the table."""


class Value(Described):
    """A handle to a tensor in a GraphBuilder."""

    __slots__ = ("_builder", "index", "meta")

    def __init__(self, builder: GraphBuilder, index: int, meta: TensorMeta):
        self._builder, self.index, self.meta = builder, index, meta

    def __repr__(self) -> str:
        return f"Value(%{self.index}: {self.meta})"


class GraphBuilder:
    """Records ops into a graph; equal ops on equal inputs become one node.

    Example:
      >>> import numpy as np
      >>> from tenferro_jax import TensorMeta
      >>> from tenferro_jax import GraphBuilder
      >>> from tenferro_jax.ops.arithmetic import Add
      >>> builder = GraphBuilder()
      >>> x = builder.input(TensorMeta(np.dtype("float32"), (3,)))
      >>> (twice,) = builder.add(Add(), x, x)
      >>> print(builder.build([twice]))
      graph(%0: float32[3]) {
        %1 = Add(%0, %0) : float32[3]
        return %1
      }
    """

    def __init__(self) -> None:
        self.rules = NO_RULES
        self.lost_rules: tuple[LostRule, ...] = ()
        self._metas: list[TensorMeta] = []
        self._nodes: list[Node] = []
        self._producer: list[int | None] = []  # value number -> node number, None for inputs
        self._seen: dict[tuple[StdTensorOp, tuple[int, ...]], tuple[Value, ...]] = {}
        self._inputs: list[int] = []
        self._guards: dict[int, tuple[Guard, ...]] = {}  # node number -> guards of its inference
        self._assumed: list[Guard] = []  # by AD rules and inlined graphs

    def input(self, spec: Shaped) -> Value:
        """A new input.

        Args:
          spec: a TensorMeta, or an object with dtype and shape.

        Raises:
          ShapeError: a size that is neither symbolic nor a non-negative integer.
          DTypeError: a 64-bit array or spec while 64-bit types are off.
        """
        if not hasattr(spec, "dtype") or not hasattr(spec, "shape") or not is_jax_dtype(spec.dtype):
            raise InvalidConfig(
                where="GraphBuilder.input",
                given=repr(spec),
                needed="a TensorMeta, or an object with a dtype and a shape",
                fix="Pass a jax.ShapeDtypeStruct.",
            )
        require_x64(spec, f"graph input {len(self._inputs)}")
        meta = meta_of(spec)
        for size in meta.shape:
            if not (
                jax_seam.is_symbolic_dim(size)
                or (isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0)
            ):
                raise ShapeError(
                    where=f"graph input {len(self._inputs)}",
                    given=str(meta),
                    needed="sizes that are symbolic or non-negative integers",
                )
        value = self._new(meta, None)
        self._inputs.append(value.index)
        return value

    def constant(self, array: object) -> Value:
        """A concrete array as a value; equal arrays become one value. Random keys are kept as their
        data and wrapped at use.
        """
        operand = as_operand(array, "graph constant")
        if is_key(operand.dtype):
            return self.add(
                RandomWrap(str(jax.random.key_impl(operand))),
                np.asarray(jax.random.key_data(operand)),
            )[0]
        array = np.asarray(operand)
        return self.add(Constant(array), metas=[TensorMeta(array.dtype, array.shape)])[0]

    def add(
        self,
        op: StdTensorOp | ExtensionOp,
        *values: Value | jax.typing.ArrayLike,
        rules: ExtensionRuleSet = NO_RULES,
        metas: Sequence[TensorMeta] | None = None,
    ) -> tuple[Value, ...]:
        """Record one op; concrete arrays among the values become constants.

        Args:
          op: a standard op, an extension op or its carrier.
          *values: Values of this builder, or concrete arrays.
          rules: AD rules for an extension.
          metas: dtype and shape of each output, if the caller knows them; None: they are inferred.
            An extension or an op with graphs in its payload is inferred in any case, because it may
            assume equal sizes.

        Raises:
          InvalidConfig: dtypes or shapes that the op refuses, or a value of another builder.
        """
        carrier = Extension.of(op) if isinstance(op, ExtensionOp) else op
        if not isinstance(carrier, StdTensorOp):
            raise InvalidConfig(
                where="GraphBuilder.add",
                given=repr(op),
                needed="an instance of a standard op or an extension op",
                fix="Pass Add() rather than Add; the ops are in tenferro_jax.ops.",
            )
        inputs = [v if isinstance(v, Value) else self.constant(v) for v in values]
        for v in inputs:
            if v._builder is not self:
                self._require_own(inputs, f"GraphBuilder.add({op})")
        if rules is not NO_RULES:
            self.rules = self.rules.united(rules)
        key = (carrier, tuple([v.index for v in inputs]))
        outputs = self._seen.get(key)
        if outputs is None:
            metas, guards = infer(carrier, tuple([v.meta for v in inputs]), metas)
            node = len(self._nodes)
            if guards:
                self._guards[node] = guards
            self._nodes.append(Node(carrier, key[1], len(self._metas)))
            outputs = self._seen[key] = tuple([self._new(meta, node) for meta in metas])
        return outputs

    def maker(self, value: Value) -> tuple[StdTensorOp | None, tuple[Value, ...]]:
        """The op that made a value, and its inputs; (None, ()) for an input."""
        number = self._producer[value.index]
        if number is None:
            return None, ()
        node = self._nodes[number]
        return node.op, tuple(Value(self, i, self._metas[i]) for i in node.inputs)

    def _require_own(self, values: Sequence[object], where: str) -> None:
        for v in values:
            if not isinstance(v, Value) or v._builder is not self:
                raise InvalidConfig(
                    where=where,
                    given=f"{v!r}" + (" of another builder" if isinstance(v, Value) else ""),
                    needed="values of this builder",
                    fix="Make the value an input of this builder, or inline the other graph.",
                )

    def _new(self, meta: TensorMeta, producer: int | None) -> Value:
        value = Value(self, len(self._metas), meta)
        self._metas.append(meta)
        self._producer.append(producer)
        return value

    def inline(self, fn: Callable[..., PyTree], *values: Value | jax.typing.ArrayLike) -> Any:
        """Record a JAX function of arrays.

        Raises:
          Unsupported: the function uses a primitive that no standard op covers; the text names the
            primitive and its source line.
        """
        require_kind(
            fn, Callable, "GraphBuilder.inline", "a function of arrays", "Pass the function first."
        )
        inputs = [v if isinstance(v, Value) else self.constant(v) for v in values]
        symbolic = any(jax_seam.is_symbolic_dim(d) for v in inputs for d in v.meta.shape)
        assumed = jax_seam.Assumptions()
        with jax_seam.graph_assumptions(assumed) if symbolic else contextlib.nullcontext():
            closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(
                *(struct(v.meta) for v in inputs)
            )
        self._assumed.extend(itertools.starmap(Guard, assumed))
        return jax.tree.unflatten(jax.tree.structure(out_shape), Reader(self).read(closed, inputs))

    def splice(
        self,
        graph: Graph,
        inputs: Values,
        change: Callable[[StdTensorOp], StdTensorOp] = lambda op: op,
    ) -> list[Value]:
        """Record the nodes of a graph on these inputs, with its rules and guards, each op replaced
        through `change`; returns the values of its outputs.
        """
        values = list(inputs)
        for node, outs in graph.steps():
            metas = [graph.metas[i] for i in outs]
            values += self.add(change(node.op), *[values[i] for i in node.inputs], metas=metas)
        self.absorb(graph)
        self._assumed.extend(graph.guards)
        return [values[i] for i in graph.outputs]

    def absorb(self, body: Graph) -> None:
        """Add the AD rules of a body, and its lost rules."""
        if body.rules:
            self.rules = self.rules.united(body.rules)
        self.lose_rules(body.lost_rules)

    def lose_rules(self, lost: Sequence[LostRule]) -> None:
        """Note that custom derivatives of these functions were inlined, each name once."""
        noted: dict[str, LostRule] = {}
        for rule in (*self.lost_rules, *lost):
            noted.setdefault(rule.name, rule)
        self.lost_rules = tuple(noted.values())

    def build(
        self,
        outputs: Values,
        in_tree: jax.tree_util.PyTreeDef | None = None,
        out_tree: jax.tree_util.PyTreeDef | None = None,
    ) -> Graph:
        """The graph that computes `outputs` from the inputs, in canonical form; dead nodes are left
        out.
        """
        self._require_own(outputs, "GraphBuilder.build")
        if in_tree is None:
            in_tree = jax.tree.structure(tuple(self._inputs))
        if out_tree is None:
            out_tree = jax.tree.structure(tuple(v.index for v in outputs))
        for tree, values in ((in_tree, self._inputs), (out_tree, outputs)):
            if getattr(tree, "num_leaves", None) != len(values):
                raise InvalidConfig(
                    where="GraphBuilder.build",
                    given=f"the tree {tree!r:.200}",
                    needed=f"a tree of {len(values)} leaves",
                )
        number = {old: new for new, old in enumerate(self._inputs)}
        metas = [self._metas[i] for i in self._inputs]
        nodes: list[Node] = []
        producer = self._producer
        order = depth_first(self._nodes, producer, [v.index for v in outputs])
        for index in order:
            op, inputs, first = self._nodes[index]
            nodes.append(Node(op, tuple([number[i] for i in inputs]), len(metas)))
            while first < len(producer) and producer[first] == index:
                number[first] = len(metas)
                metas.append(self._metas[first])
                first += 1
        guards = list(self._assumed)
        for index in sorted(order):
            guards += self._guards.get(index, ())
        numbers = tuple(number[v.index] for v in outputs)
        return Graph(
            metas=tuple(metas),
            input_count=len(self._inputs),
            nodes=tuple(nodes),
            outputs=numbers,
            in_tree=in_tree,
            out_tree=out_tree,
            rules=self.rules,
            lost_rules=self.lost_rules,
            guards=tuple(guards),
        )


@dataclasses.dataclass(frozen=True)
class Reader:
    """Records jaxprs through one builder.

    Attributes:
      builder: a GraphBuilder.
      rule_depth: how many more orders of custom derivatives are read.
      is_derivative_free: whether this is the body of a function with a custom derivative, which
        replaces those inside.
      made: the results of `once`, shared with the readers of bodies.
      callers: the equations whose bodies are being read, outermost first.
    """

    builder: GraphBuilder
    rule_depth: int = RULE_DEPTH
    is_derivative_free: bool = False
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)
    callers: tuple[Eqn, ...] = ()

    def once(self, key: tuple[object, ...], make: Callable[[], object]) -> Any:
        """The result of `make`, made once for each key; its first entry is an equation, and JAX
        keeps its equations for each jitted function.
        """
        number = (id(key[0]), *key[1:], self.rule_depth)
        if number not in self.made:
            self.made[number] = (
                key[0],
                make(),
            )  # keeps the equation alive, so that no other object gets its id
        return self.made[number][1]

    def read(
        self,
        closed: ClosedJaxpr,
        inputs: Values,
        caller: Eqn | None = None,
    ) -> list[Value]:
        """Record every equation of a jaxpr; returns the values of its outputs.

        Args:
          closed: the jaxpr with its constants.
          inputs: a value for each of its inputs.
          caller: the equation that calls this jaxpr; errors name its source line if an inner
            equation has none.
        """
        callers = self.callers if caller is None else (*self.callers, caller)
        reader = dataclasses.replace(self, callers=callers)
        jaxpr, constants = jax_seam.open_jaxpr(closed)
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def value_of(atom: Atom) -> Value:
            if jax_seam.is_literal(atom):
                return self.builder.constant(np.asarray(atom.val, atom.aval.dtype))
            value = values[atom]
            return value if hasattr(value, "meta") else self.builder.constant(value)

        for eqn in jaxpr.eqns:
            row = reader._row(eqn)
            outs = row(reader, eqn, [value_of(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, outs, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def sub_graph(self, closed: ClosedJaxpr, derivative_free: bool = False) -> Graph:
        """A jaxpr as a graph of its own: the body of an op."""
        sub = GraphBuilder()
        jaxpr, _ = jax_seam.open_jaxpr(closed)
        free = self.is_derivative_free or derivative_free
        inner = dataclasses.replace(self, builder=sub, is_derivative_free=free)
        graph = sub.build(inner.read(closed, [sub.input(described(v)) for v in jaxpr.invars]))
        self.builder.absorb(graph)
        return graph

    def rule_graph(self, fn: Callable[..., PyTree], metas: Sequence[TensorMeta]) -> Graph:
        """The graph of a function that belongs to a custom derivative, one order deeper."""
        sub = GraphBuilder()
        closed = jax.make_jaxpr(fn)(*map(struct, metas))
        inner = dataclasses.replace(self, builder=sub, rule_depth=self.rule_depth - 1)
        graph = sub.build(inner.read(closed, [sub.input(m) for m in metas]))
        # A rule that is lost here is refused only when this order is differentiated.
        self.builder.rules = self.builder.rules.united(graph.rules)
        return graph

    def source(self, eqn: Eqn) -> str:
        """The user's line that made an equation: its own, that of a caller, or the line that
        traces, because JAX records no line for its own functions.
        """
        tracebacks = [
            caller.source_info.traceback
            for caller in (eqn, *reversed(self.callers))
            if caller.source_info.traceback is not None
        ]
        recorded = ((f.file_name, f.line_num) for each in tracebacks for f in each.frames)
        running = ((f.f_code.co_filename, number) for f, number in traceback.walk_stack(None))
        for name, number in itertools.chain(recorded, running):
            if not name.startswith((*_LIBRARIES, "<frozen ")):
                return f"{name}:{number}"
        return "an unknown line"

    def _row(self, eqn: Eqn) -> Row:
        if isinstance(eqn.params.get("op"), Extension):
            return _extension
        name = jax_seam.name_of(eqn)
        row = ROWS.get(name)
        if row is None:
            raise refuse(
                name,
                f"{name} at {self.source(eqn)}",
                "a primitive that one of the standard ops covers; docs/spec/ops.md lists them",
                "Write this part with standard ops, or keep it outside the graph.",
            )
        for param, plain in PLAIN_PARAMS.items():
            value = eqn.params.get(param, plain)
            is_plain = value == plain or (isinstance(value, jax.NamedSharding) and value.mesh.empty)
            if not is_plain and not (name == "rng_bit_generator" and param == "algorithm"):
                raise refuse(
                    name,
                    f"{param}={value} at {self.source(eqn)}",
                    f"{param}={plain}",
                    "Leave this parameter out, or keep this part outside the graph.",
                )
        return row


def described(variable: Atom) -> TensorMeta:
    """dtype and shape of a variable of a jaxpr."""
    return TensorMeta(variable.aval.dtype, tuple(variable.aval.shape))


def refuse(primitive: str, given: str, needed: str, fix: str) -> Unsupported:
    """The error for an equation."""
    return Unsupported(
        where=f"reading JAX primitive {primitive!r} into a graph",
        given=given,
        needed=needed,
        fix=fix,
    )


_LIBRARIES = tuple(str(pathlib.Path(str(module.__file__)).parent) for module in (jax, jax_seam))


def _extension(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    return reader.builder.add(eqn.params["op"], *inputs, rules=eqn.params["rules"])
