"""Building graphs: values, interning, canonical order."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import jax_seam
from ..dimensions import Guard
from ..errors import InvalidConfig, ShapeError, require_kind
from ..extension.carrier import Extension
from ..extension.contract import ExtensionOp
from ..extension.rules import NO_RULES, ExtensionRuleSet
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
from .graph import Graph, Node
from .read_jaxpr import Reader
from .signature import infer
from .verify import depth_first


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
      >>> from tenferro_jax.graph import GraphBuilder
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
        self.lost_rules: tuple[str, ...] = ()
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

    def fresh(self) -> GraphBuilder:
        """A new, empty builder for the body of a control-flow op."""
        return GraphBuilder()

    def absorb(self, body: Graph) -> None:
        """Add the AD rules of a body, and the names of its lost rules."""
        self.absorb_rules(body)
        self.lose_rules(body.lost_rules)

    def absorb_rules(self, body: Graph) -> None:
        """Add the AD rules of a body."""
        self.rules = self.rules.united(body.rules)

    def lose_rules(self, names: Sequence[str]) -> None:
        """Note that custom derivatives of these functions were inlined."""
        self.lost_rules = tuple(dict.fromkeys((*self.lost_rules, *names)))

    def build(
        self,
        outputs: Sequence[Value],
        in_tree: jax.tree_util.PyTreeDef | None = None,
        out_tree: jax.tree_util.PyTreeDef | None = None,
    ) -> Graph:
        """The graph that computes `outputs` from the inputs, in canonical form; dead nodes are left
        out.
        """
        if isinstance(outputs, Value):
            raise InvalidConfig(
                where="GraphBuilder.build",
                given=repr(outputs),
                needed="a list of values",
                fix="Write build([value]).",
            )
        self._require_own(outputs, "GraphBuilder.build")
        for name, tree, count in (
            ("in_tree", in_tree, len(self._inputs)),
            ("out_tree", out_tree, len(outputs)),
        ):
            if tree is not None and getattr(tree, "num_leaves", None) != count:
                raise InvalidConfig(
                    where=f"GraphBuilder.build, {name}",
                    given=repr(tree),
                    needed=f"a tree of {count} leaves",
                )
        if in_tree is None:
            in_tree = jax.tree.structure(tuple(self._inputs))
        if out_tree is None:
            out_tree = jax.tree.structure(tuple(v.index for v in outputs))
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
        guards = [
            *self._assumed,
            *(guard for index in sorted(order) for guard in self._guards.get(index, ())),
        ]
        return Graph(
            metas,
            len(self._inputs),
            nodes,
            [number[v.index] for v in outputs],
            in_tree,
            out_tree,
            self.rules,
            self.lost_rules,
            guards,
        )
