"""A graph as records: lines of JSON, defined before they are used, without repetition."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from ..dimensions import SymDim, constraint_texts, readable_text
from ..errors import InvalidConfig, Unsupported
from ..extension.carrier import Extension
from ..extension.nesting import has_classes
from ..extension.registry import MissingExtension, require_current
from ..graph.graph import Graph, bodies
from ..identity import Sealed, Writer, map_leaves
from ..jax_seam import is_symbolic_dim
from ..ops.fields import wrong_field
from ..ops.indexing import OutOfBounds
from ..ops.logic import Direction
from ..ops.op import StdTensorOp
from ..ops.vocabulary import VOCABULARY
from ..payload_leaves import array_bytes, array_digest, dtype_name, named_dtype
from ..shapes import TensorMeta
from .trees import structure_json

OPS: Mapping[str, type[StdTensorOp]] = {cls.__name__: cls for cls in VOCABULARY}
ENUMS: Mapping[str, Any] = {
    cls.__name__: cls for cls in (Direction, OutOfBounds, jax.lax.AccuracyMode)
}
_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


@functools.cache
def _key_dtypes() -> dict[str, Any]:
    """The dtypes of random keys by the names of their generators."""
    return {
        f"key<{name}>": jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype
        for name in _GENERATORS
    }


def value_dtype_name(meta: TensorMeta) -> str:
    """The name of the dtype of a value in a graph, keys included.

    Raises:
      Unsupported: a key generator that is not one of JAX's own.
    """
    if isinstance(meta.dtype, np.dtype):
        return dtype_name(meta.dtype)
    for name, known in _key_dtypes().items():
        if known == meta.dtype:
            return name
    raise Unsupported(
        where=f"to_wire, {meta}",
        given=str(meta.dtype),
        needed=f"a key of {', '.join(_GENERATORS)}",
    )


def value_dtype(name: object) -> Any:
    """The dtype of a name; ValueError for other text."""
    if str(name).startswith("key<") and name in _key_dtypes():
        return _key_dtypes()[str(name)]
    return named_dtype(name)


class GraphWriter:
    """The records of one graph, after those of its inner graphs.

    Args:
      payloads: payload text of extensions, by the id of the carrier, that is written unchanged.

    Attributes:
      lines: the records as text.
      tensors: the elements of each tensor, in the order of their records.
      version: the lowest version of the format that supports these records.
    """

    def __init__(self, payloads: Mapping[int, str] | None = None) -> None:
        self.lines: list[str] = []
        self.tensors: list[Any] = []
        self.version = 1
        self._payloads = payloads or {}
        self._numbers: dict[Any, int] = {}  # for a record's text (and digest), by kind
        self._counts: dict[str, int] = {}
        self._types: dict[TensorMeta, int] = {}
        self._ops: dict[StdTensorOp, int] = {}
        self._graphs: dict[Sealed, int] = {}  # an equal one once
        self._scope: jax.export.SymbolicScope | None = None

    def write(self, root: Graph) -> GraphWriter:
        """Record a graph: bodies first, to any depth.

        Raises:
          Unsupported: what the format cannot express: symbols of two scopes, a pytree class or a
            batch axis without a plain name; or what no reader accepts.
          InvalidConfig: two nodes that differ only in their runtimes; or an extension's payload
            or a pytree class's static data has no text.
        """
        pending = [root]
        while pending:
            graph = pending[-1]
            # From the last body of an op to its first: the order of records is part of the format.
            inner = [
                body
                for node in graph.nodes
                for body in bodies(node.op)[::-1]
                if body not in self._graphs
            ]
            if inner:
                pending.extend(reversed(inner))
                continue
            pending.pop()
            if graph not in self._graphs:
                self._graphs[graph] = self._graph(graph)
        if self._scope is not None and (constraints := constraint_texts(self._scope)):
            self.lines.insert(0, _text(["constraints", *constraints]))
        return self

    @property
    def text(self) -> str:
        """All records."""
        return "".join(f"{line}\n" for line in self.lines)

    def _graph(self, graph: Graph) -> int:
        inputs = list(map(self._type, graph.input_metas))
        lines = [_text(["graph", inputs, self._tree(graph.in_tree, "arguments")])]
        seen: dict[tuple[int, tuple[int, ...]], StdTensorOp] = {}
        for node, outputs in graph.steps():
            op = self._op(node.op)
            # If they are equal, the graph breaks a rule of `verify`.
            if seen.setdefault((op, node.inputs), node.op) != node.op:
                raise InvalidConfig(
                    where="to_wire",
                    given=f"{node.op} twice on the same values, with two runtime sets",
                    needed="one of them, because bytes hold no runtimes",
                    fix="Choose one with graph.with_runtimes(...), then trace graph.to_jax() "
                    "again.",
                )
            types = [self._type(graph.metas[i]) for i in outputs]
            lines.append(_text(["node", op, list(node.inputs), types]))
        guards = [list(map(self._dimension, (guard.lhs, guard.rhs))) for guard in graph.guards]
        lost = [rule.name for rule in graph.lost_rules]
        tree = self._tree(graph.out_tree, "results")
        lines.append(_text(["return", list(graph.outputs), tree, guards, lost]))
        return self._define("graph", "\n".join(lines))

    def _tree(self, tree: PyTreeDef, where: str) -> Any:
        plain = structure_json(tree, f"to_wire, {where}")
        if has_classes(plain):
            self.version = max(self.version, 2)
        return plain

    def _define(self, kind: str, text: str, digest: bytes = b"") -> int:
        """The number of a record among those of its kind; a new record is written."""
        key = (kind, text, digest)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._counts.get(kind, 0)
            self._counts[kind] = number + 1
            self.lines.append(text)
        return number

    def _type(self, meta: TensorMeta) -> int:
        number = self._types.get(meta)
        if number is None:
            shape = [self._dimension(size) for size in meta.shape]
            number = self._types[meta] = self._define(
                "type", _text(["type", value_dtype_name(meta), shape])
            )
        return number

    def _dimension(self, size: SymDim) -> Any:
        if not is_symbolic_dim(size):
            return int(size)
        if self._scope is None:
            self._scope = size.scope
        if self._scope is not size.scope:
            raise Unsupported(
                where="to_wire",
                given=f"the symbols of {size}, and symbols of another scope",
                needed="symbols of one scope",
                fix="Make all symbols in one call of jax.export.symbolic_shape, or pass scope= to "
                "it.",
            )
        return readable_text(size, "to_wire")

    def _tensor(self, array: np.ndarray | np.generic) -> str:
        before = self._counts.get("tensor", 0)
        text = _text(["tensor", dtype_name(array.dtype), list(array.shape)])
        number = self._define("tensor", text, array_digest(array))
        if number == before:
            self.tensors.append(array_bytes(array))
        return f'{{"tensor":{number}}}'

    def _op(self, op: StdTensorOp) -> int:
        number = self._ops.get(op)
        if number is None:
            number = self._ops[op] = self._define("op", self._op_record(op))
        return number

    def _op_record(self, op: StdTensorOp) -> str:
        if isinstance(op, MissingExtension):
            levels = json.loads(op.levels)
            return _text(["extension", op.family_id, op.payload, levels, op.output_count])
        if isinstance(op, Extension):
            require_current(type(op.op), "to_wire")
            map_leaves(op.op, self._noted)
            payload = self._payloads.get(id(op))
            payload = op.op.payload_text() if payload is None else payload
            return _text(["extension", op.family_id, payload, _levels(op), op.output_count])
        name = type(op).__name__
        if OPS.get(name) is not type(op) or wrong_field(op):
            raise Unsupported(
                where="to_wire",
                given=f"{op!r}",
                needed="ops of the vocabulary and extensions",
                fix="Make it an extension op.",
            )
        writer = _FieldWriter(self._tensor, self._graphs)
        fields = writer.fields(op, name)
        for held in writer.held:
            self._noted(held)
        return f'["op",{json.dumps(name)},{fields}]'

    def _noted(self, leaf: object) -> Any:
        """The leaf; if it is a symbolic dimension, its scope is noted."""
        if is_symbolic_dim(leaf):
            self._dimension(leaf)
        return leaf


class _FieldWriter(Writer):
    """Writes fields of standard ops; tensors and graphs are numbered."""

    def __init__(self, tensor: Callable[[np.ndarray], str], graphs: Mapping[Sealed, int]):
        super().__init__(tensor)
        self._graphs = graphs

    def sealed(self, value: Sealed, where: str) -> str:
        """A body of control flow by its number."""
        return f'{{"graph":{self._graphs[value]}}}'


def _text(record: list[object]) -> str:
    return json.dumps(record, separators=(",", ":"), sort_keys=True)


def _levels(carrier: Extension) -> list[Any]:
    levels = [
        [list(level.in_axes), level.axis_name, level.spmd_axis_name] for level in carrier.batching
    ]
    for _, axis, places in levels:
        names = [axis, *(places if isinstance(places, tuple) else (places,))]
        if not all(name is None or isinstance(name, str) for name in names):
            raise Unsupported(
                where="to_wire",
                given=f"a batch level of {carrier.family_id} with the axis names {names}",
                needed="names that are text",
            )
    return levels
