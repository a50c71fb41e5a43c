"""Records back to a graph. Every number, name and size is checked before it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import PyTreeDef

from ..dimensions import Guard, read_dimension, read_scope
from ..errors import InvalidConfig, TenferroError, Unsupported
from ..extension.carrier import BatchLevel, Extension, Levels
from ..extension.contract import ExtensionOp
from ..extension.family import parse_family_id
from ..extension.registry import (
    MissingExtension,
    lookup_extension_factory,
    register_installed,
    require_extension_factory,
    require_known_version,
)
from ..extension.rules import NO_RULES
from ..graph.graph import Graph, Node
from ..graph.verify import verify
from ..identity import map_leaves
from ..jax_seam import is_symbolic_dim
from ..ops.fields import wrong_field
from ..ops.op import StdTensorOp
from ..payload_leaves import is_normal, named_dtype
from ..shapes import TensorMeta, require_x64, x64_enabled
from .container import Content, Limits, aligned, damaged
from .field_json import (
    OPS,
    as_list,
    depth_of,
    field_value,
    index_among,
    natural,
    no_float,
    value_dtype,
)
from .graph_writer import GraphWriter
from .trees import structure_of


class _Size(NamedTuple):
    """The number of nodes in a graph, with each body counted each time it is used, and the depth of
    graphs in graphs.
    """

    nodes: int
    depth: int


class _Open:
    """A graph whose records are being read."""

    def __init__(self, metas: list[TensorMeta], in_tree: PyTreeDef):
        self.metas, self.input_count, self.in_tree = metas, len(metas), in_tree
        self.nodes: list[Node] = []
        self.size = _Size(0, 1)


class GraphReader:
    """Reads the records of one file.

    Args:
      content: content that passed the checks of the header.
      limits: the limits.
      skip_missing: whether extensions of unknown families become placeholders.
      trusted: whether installed packages may register their families.
      where: the first words of errors.
    """

    def __init__(
        self, content: Content, limits: Limits, skip_missing: bool, trusted: bool, where: str
    ):
        self._content, self._limits, self._where = content, limits, where
        self._skip_missing, self._trusted = skip_missing, trusted
        self._line = 0
        self._types: list[TensorMeta] = []
        self._tensors: list[np.ndarray] = []
        self._ops: list[tuple[StdTensorOp, _Size]] = []  # with the size of its graphs
        self._graphs: list[tuple[Graph, _Size]] = []
        self._open: _Open | None = None
        self._place = content.text.stop
        self._scope: Any = None
        self._dimensions: dict[str, Any] = {}
        self._payloads: dict[int, str] = {}
        self._nodes = self._values = self._records = 0
        self._inside = _Size(0, 0)
        self._rules = NO_RULES
        self._asked: set[str] = set()  # packages that have registered their families

    def read(self) -> Graph:
        """The graph, verified.

        Raises:
          ArtifactError: a writer would not write these records; or the records exceed the limits.
          InvalidConfig: the graph breaks a rule.
          MalformedFamilyId, Unsupported, InvalidConfig: an extension cannot be read.
          DTypeError: the graph has 64-bit values and 64-bit types are off.
        """
        try:
            for line in self._lines():
                self._record(line)
            self._line = 0
            graph = self._root()
            self._require_canonical(graph)
            verify(graph)
            return graph.with_rules(self._rules) if self._rules else graph
        except TenferroError:
            raise
        except Exception as error:  # any exception of damaged content
            where = f"{self._where}, line {self._line}" if self._line else self._where
            raise damaged(where, f"{type(error).__name__}: {error}") from error

    def _lines(self) -> Iterator[str]:
        text = bytes(self._content.everything[self._content.text])
        start = 0
        while start < len(text):
            self._line += 1
            end = text.find(b"\n", start)
            if end < 0:
                raise ValueError("a line without end")
            self._require("record_bytes", end - start)
            yield text[start:end].decode("ascii")
            start = end + 1

    def _record(self, line: str) -> None:
        kind, *parts = json.loads(line, parse_float=no_float, parse_constant=no_float)
        if kind != "node":
            self._require("nesting", depth_of(parts))
            self._records += 1
            self._require("records", self._records)
        _RECORDS[kind](self, *parts)

    def _require(self, limit: str, size: int) -> None:
        self._limits.require(limit, size, f"{self._where}, line {self._line}")

    # --- definitions ---

    def _constraints(self, *constraints: object) -> None:
        if self._line != 1:
            raise ValueError("constraints after the first line")
        self._scope = read_scope([self._word(constraint) for constraint in constraints])

    def _type(self, dtype: object, shape: object) -> None:
        sizes = as_list(shape)
        self._require("rank", len(sizes))
        meta = TensorMeta(value_dtype(dtype), tuple(map(self._size, sizes)))
        self._require("elements", math.prod(size for size in meta.shape if isinstance(size, int)))
        if not x64_enabled():
            require_x64(meta, f"{self._where}, line {self._line}")
        self._types.append(meta)

    def _tensor(self, name: object, shape: object) -> None:
        sizes = as_list(shape)
        self._require("rank", len(sizes))
        dtype = named_dtype(name)
        count = math.prod(map(natural, sizes))
        self._require("elements", count)
        everything = self._content.everything
        start = aligned(self._place)
        stop = start + count * dtype.itemsize
        if stop > len(everything) or any(everything[self._place : start]):
            raise ValueError(
                f"a tensor that ends at byte {stop} of {len(everything)}, or does not begin where "
                f"it should"
            )
        self._place = stop
        array: np.ndarray = np.ndarray(tuple(sizes), dtype, everything, start)
        if not is_normal(array.reshape(-1)):
            raise ValueError(f"a tensor with bytes that no {name} has")
        self._tensors.append(array)

    def _op(self, name: object, fields: dict[str, object]) -> None:
        if not isinstance(name, str) or name not in OPS:
            raise Unsupported(
                where=f"{self._where}, line {self._line}",
                given=f"an op {name!r:.100}",
                needed=f"one of the {len(OPS)} standard ops of this release",
                fix="Use the release that wrote the file, or a later one.",
            )
        cls: Any = OPS[name]
        self._inside = _Size(0, 0)
        values = {
            field: field_value(plain, self._numbered_tensor, self._body, self._symbolic)
            for field, plain in fields.items()
        }
        op = cls(**values)
        if wrong := wrong_field(op):
            raise ValueError(f"{name} with {wrong[0]}, which needs {wrong[1]}")
        self._ops.append((op, self._inside))

    def _numbered_tensor(self, number: object) -> np.ndarray:
        return self._tensors[index_among(number, self._tensors)]

    def _body(self, number: object) -> Graph:
        graph, size = self._graphs[index_among(number, self._graphs)]
        self._inside = _Size(self._inside.nodes + size.nodes, max(self._inside.depth, size.depth))
        return graph

    def _extension(
        self, family_id: object, payload: object, levels: object, outputs: object
    ) -> None:
        family_id = self._word(family_id)
        package = parse_family_id(family_id).package
        if self._trusted and package not in self._asked:
            self._asked.add(package)
            self._rules = self._rules.united(register_installed(family_id))
        if not isinstance(payload, str):
            raise ValueError(f"a payload of type {type(payload).__name__}")
        self._require("payload_bytes", len(payload))
        batching = self._levels(levels)
        if self._skip_missing and lookup_extension_factory(family_id) is None:
            require_known_version(family_id)
            text, count = json.dumps(levels, separators=(",", ":")), natural(outputs)
            self._require("values", count)
            self._ops.append((MissingExtension(family_id, payload, text, count), _Size(0, 0)))
            return
        op = map_leaves(self._decoded(family_id, payload), self._in_scope)
        for level in batching:
            if len(level.in_axes) != op.input_count:
                raise ValueError(f"a batch level {level.in_axes} for {op.input_count} inputs")
        carrier = Extension(op, batching)
        self._payloads[id(carrier)] = payload
        self._ops.append((carrier, _Size(0, 0)))

    def _decoded(self, family_id: str, payload: str) -> ExtensionOp:
        """The op that the factory of a family makes from a payload; the factory may be an author's
        code.
        """
        factory = require_extension_factory(family_id)
        cause: Exception | None = None
        try:
            op = factory.decode(payload)
            if isinstance(op, ExtensionOp) and op.family_id == family_id:
                return op
            given = f"{op!r:.100} from the factory of {family_id}"
        except TenferroError:
            raise
        except Exception as error:
            given, cause = f"{payload!r:.100}: {type(error).__name__}: {error}", error
        raise InvalidConfig(
            where=f"{self._where}, line {self._line}",
            given=given,
            needed=f"the payload of an op of {family_id}",
            fix="Pass what was written of this family.",
        ) from cause

    def _levels(self, levels: object) -> Levels:
        read = []
        for in_axes, axis, place in as_list(levels):
            axes = tuple(None if a is None else natural(a) for a in as_list(in_axes))
            if set(axes) <= {None} or max(a for a in axes if a is not None) >= self._limits.rank:
                raise ValueError(f"a batch level {axes}")
            name = None if axis is None else self._word(axis)
            places = (
                tuple(map(self._word, place))
                if isinstance(place, list)
                else None
                if place is None
                else self._word(place)
            )
            read.append(BatchLevel(axes, name, places))
        return tuple(read)

    # --- graphs ---

    def _graph(self, inputs: object, tree: object) -> None:
        if self._open is not None:
            raise ValueError("a graph in a graph")
        self._open = _Open(
            [self._numbered_type(number) for number in self._counted(inputs)],
            structure_of(tree, self._word, self._skip_missing),
        )

    def _node(self, op: object, inputs: object, outputs: object) -> None:
        graph = self._opened()
        self._nodes += 1
        self._require("nodes", self._nodes)
        first = len(graph.metas)
        read = self._counted(inputs)
        for value in read:
            index_among(value, graph.metas)
        made, inside = self._ops[index_among(op, self._ops)]
        graph.size = _Size(
            graph.size.nodes + 1 + inside.nodes, max(graph.size.depth, inside.depth + 1)
        )
        self._require("nodes", graph.size.nodes)
        self._require("nesting", graph.size.depth)
        graph.metas.extend([self._numbered_type(number) for number in self._counted(outputs)])
        graph.nodes.append(Node(made, tuple(read), first))

    def _return(self, outputs: object, tree: object, guards: object, lost_rules: object) -> None:
        graph = self._opened()
        given = self._counted(outputs)
        for value in given:
            index_among(value, graph.metas)
        made = Graph(
            tuple(graph.metas),
            graph.input_count,
            tuple(graph.nodes),
            tuple(given),
            graph.in_tree,
            structure_of(tree, self._word, self._skip_missing),
            NO_RULES,
            tuple(self._word(name) for name in as_list(lost_rules)),
            tuple(
                Guard(self._size(lhs), self._size(rhs), "a graph that was read")
                for lhs, rhs in as_list(guards)
            ),
        )
        self._graphs.append((made, graph.size))
        self._open = None

    def _root(self) -> Graph:
        if self._open is not None or not self._graphs:
            raise ValueError("no graph at the end")
        if self._place != len(self._content.everything):
            raise ValueError(f"bytes after the last tensor, which ends at {self._place}")
        return self._graphs[-1][0]

    def _require_canonical(self, graph: Graph) -> None:
        """Refuse records that a writer would write differently, because equal graphs have equal
        bytes.
        """
        writer = GraphWriter(self._payloads).write(graph)
        if writer.version != self._content.version:
            given_version = (
                f"version {self._content.version} where a writer writes {writer.version}"
            )
            raise damaged(self._where, given_version)
        written = writer.text.encode()
        given = self._content.everything[self._content.text]
        if written != given:
            lines = zip(written.split(b"\n"), bytes(given).split(b"\n"), strict=False)
            number, (want, have) = next(
                ((i, pair) for i, pair in enumerate(lines, 1) if pair[0] != pair[1]),
                (0, (b"", b"more lines")),
            )
            raise damaged(
                f"{self._where}, line {number}",
                f"{have[:100]!r} where a writer writes {want[:100]!r}",
            )

    # --- parts of records ---

    def _opened(self) -> _Open:
        if self._open is None:
            raise ValueError("outside of a graph")
        return self._open

    def _counted(self, values: object) -> list[Any]:
        found = as_list(values)
        self._values += len(found)
        self._require("values", self._values)
        return found

    def _numbered_type(self, number: object) -> TensorMeta:
        return self._types[index_among(number, self._types)]

    def _word(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.100} instead of text")
        self._require("text_bytes", len(value))
        return value

    def _size(self, size: object) -> Any:
        return self._symbolic(size) if isinstance(size, str) else natural(size)

    def _symbolic(self, text: object) -> Any:
        word = self._word(text)
        if word not in self._dimensions:
            self._scope = self._scope or read_scope(())
            self._dimensions[word] = read_dimension(word, self._scope)
        return self._dimensions[word]

    def _in_scope(self, leaf: object) -> Any:
        return self._symbolic(str(leaf)) if is_symbolic_dim(leaf) else leaf


_RECORDS: Mapping[str, Callable[..., None]] = {
    "constraints": GraphReader._constraints,
    "type": GraphReader._type,
    "tensor": GraphReader._tensor,
    "op": GraphReader._op,
    "extension": GraphReader._extension,
    "graph": GraphReader._graph,
    "node": GraphReader._node,
    "return": GraphReader._return,
}
