"""Records back to a graph: each is decoded within limits, then `verify` checks the graph, and then
a writer must write the same records.

So a decoder checks only what takes memory or time, and what the two later checks cannot see.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from ..dimensions import Guard, read_dimension, read_scope
from ..errors import ArtifactError, InvalidConfig, TenferroError, Unsupported
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
from ..graph.graph import Graph, LostRule, Node, bodies
from ..graph.verify import verify
from ..identity import map_leaves
from ..jax_seam import is_symbolic_dim
from ..ops.op import StdTensorOp
from ..payload_leaves import is_normal, named_dtype, read_value
from ..shapes import TensorMeta, require_x64, x64_enabled
from .container import Content, Limits, aligned
from .graph_writer import ENUMS, OPS, GraphWriter, value_dtype
from .trees import structure_of


class _Size(NamedTuple):
    """The number of nodes in a graph, with each body counted each time it is used, and the depth of
    graphs in graphs.
    """

    nodes: int = 0
    depth: int = 0


_EMPTY = _Size(nodes=0, depth=1)


@dataclasses.dataclass
class _Open:
    """A graph whose records are being read."""

    metas: list[TensorMeta]
    input_count: int
    in_tree: PyTreeDef
    nodes: list[Node] = dataclasses.field(default_factory=list)
    size: _Size = _EMPTY


class GraphReader:
    """Reads the records of one file.

    Args:
      content: content that passed the checks of the header.
      limits: the limits.
      where: the first words of errors.
      skip_missing: whether extensions of unknown families become placeholders.
      trusted: whether installed packages may register their families.
    """

    _open: _Open

    def __init__(
        self, content: Content, limits: Limits, where: str, *, skip_missing: bool, trusted: bool
    ):
        self._content, self._limits, self._where = content, limits, where
        self._skip_missing, self._trusted = skip_missing, trusted
        self._text = bytes(content.everything[content.text])
        self._line = 0
        self._types: list[TensorMeta] = []
        self._tensors: list[np.ndarray] = []
        self._ops: list[StdTensorOp] = []
        self._graphs: list[Graph] = []
        self._sizes: dict[int, _Size] = {}  # of each graph, by its id
        self._place = content.text.stop
        self._scope: jax.export.SymbolicScope | None = None
        self._dimensions: dict[str, Any] = {}
        self._payloads: dict[int, str] = {}
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
        self._limits.require("text_bytes", len(self._text), self._where)
        try:
            for number, line in enumerate(self._text.decode("ascii").splitlines(), 1):
                self._line = number
                kind, *parts = json.loads(line)
                _RECORDS[kind](self, *parts)
            self._line = 0
            if self._place != len(self._content.everything):
                raise ValueError(f"bytes after the last tensor, which ends at {self._place}")
            graph = verify(self._graphs[-1])
            self._require_canonical(graph)
        except TenferroError:
            raise
        except Exception as error:  # any exception of damaged content
            raise ArtifactError(
                where=self._here(), given=f"{type(error).__name__}: {error}"
            ) from error
        return graph.with_rules(self._rules) if self._rules else graph

    def _require_canonical(self, graph: Graph) -> None:
        """Refuse records that a writer would write differently, because equal graphs have equal
        bytes.
        """
        writer = GraphWriter(self._payloads).write(graph)
        texts = (text.split(b"\n") for text in (self._text, writer.text.encode()))
        pairs = [
            (b"version %d" % self._content.version, b"version %d" % writer.version),
            *itertools.zip_longest(*texts, fillvalue=b"nothing"),
        ]
        for number, (have, want) in enumerate(pairs):
            if have != want:
                self._line = number
                raise ValueError(f"{have[:100]!r} where a writer writes {want[:100]!r}")

    def _here(self) -> str:
        return f"{self._where}, line {self._line}" if self._line else self._where

    # --- definitions ---

    def _constraints(self, *constraints: object) -> None:
        if self._line != 1:  # each line of them takes time
            raise ValueError("constraints after the first line")
        self._scope = read_scope(list(map(_word, constraints)))

    def _type(self, dtype: object, shape: list[object]) -> None:
        meta = TensorMeta(value_dtype(dtype), tuple(map(self._size, shape)))
        if not x64_enabled():
            require_x64(meta, self._here())
        self._types.append(meta)

    def _tensor(self, name: object, shape: list[object]) -> None:
        dtype, sizes = named_dtype(name), tuple(map(_natural, shape))
        everything = self._content.everything
        start = aligned(self._place)
        stop = start + math.prod(sizes) * dtype.itemsize
        if stop > len(everything) or any(everything[self._place : start]):
            raise ValueError(
                f"a tensor that ends at byte {stop} of {len(everything)}, or does not begin where "
                f"it should"
            )
        self._place = stop
        array: np.ndarray = np.ndarray(sizes, dtype, everything, start)
        if not is_normal(array.reshape(-1)):
            raise ValueError(f"a tensor with bytes that no {name} has")
        self._tensors.append(array)

    def _op(self, name: object, fields: dict[str, object]) -> None:
        if not isinstance(name, str) or name not in OPS:
            raise Unsupported(
                where=self._here(),
                given=f"an op {name!r:.100}",
                needed=f"one of the {len(OPS)} standard ops of this release",
                fix="Use the release that wrote the file, or a later one.",
            )
        tags: Mapping[str, Callable[[Any], Any]] = {
            "tensor": self._tensors.__getitem__,
            "graph": self._graphs.__getitem__,
            "dimension": self._symbolic,
            "enum": _member,
        }
        values = {field: read_value(plain, tags) for field, plain in fields.items()}
        self._ops.append(OPS[name](**values))

    def _extension(
        self, family_id: str, payload: str, levels: list[list[object]], outputs: object
    ) -> None:
        package = parse_family_id(family_id).package
        if self._trusted and package not in self._asked:
            self._asked.add(package)
            self._rules = self._rules.united(register_installed(family_id))
        batching = self._levels(levels)
        if self._skip_missing and lookup_extension_factory(family_id) is None:
            require_known_version(family_id)
            text = json.dumps(levels, separators=(",", ":"))
            self._ops.append(MissingExtension(family_id, payload, text, _natural(outputs)))
            return
        op = map_leaves(
            self._decoded(family_id, payload),
            lambda leaf: self._symbolic(str(leaf)) if is_symbolic_dim(leaf) else leaf,
        )
        carrier = Extension(op, batching)
        self._payloads[id(carrier)] = payload
        self._ops.append(carrier)

    def _decoded(self, family_id: str, payload: str) -> ExtensionOp:
        """The op that the factory of a family makes from a payload; the factory may be an author's
        code.
        """
        factory = require_extension_factory(family_id, trusted=self._trusted)
        found: object
        cause: Exception | None = None
        try:
            found = factory.decode(payload)
        except TenferroError:
            raise
        except Exception as error:
            found = cause = error
        if isinstance(found, ExtensionOp) and found.family_id == family_id:
            return found
        raise InvalidConfig(
            where=self._here(),
            given=f"{found!r:.100} from the factory of {family_id} for {payload!r:.100}",
            needed=f"the payload of an op of {family_id}",
            fix="Pass what was written of this family.",
        ) from cause

    def _levels(self, levels: list[Any]) -> Levels:
        read = []
        for in_axes, axis, places in levels:
            axes = tuple(None if a is None else _natural(a) for a in in_axes)
            names = tuple(places) if isinstance(places, list) else places
            read.append(BatchLevel(axes, axis, names))
        return tuple(read)

    # --- graphs ---

    def _graph(self, inputs: list[int], tree: object) -> None:
        metas = [self._types[number] for number in inputs]
        self._open = _Open(metas, len(metas), structure_of(tree))

    def _node(self, op: int, inputs: list[int], outputs: list[int]) -> None:
        graph, applied = self._open, self._ops[op]
        inside = [self._sizes[id(body)] for body in bodies(applied)]
        nodes = graph.size.nodes + 1 + sum(size.nodes for size in inside)
        depth = max([graph.size.depth, *(size.depth + 1 for size in inside)])
        self._limits.require("nodes", nodes, self._here())
        self._limits.require("nesting", depth, self._here())
        graph.size = _Size(nodes, depth)
        graph.nodes.append(Node(applied, tuple(inputs), len(graph.metas)))
        graph.metas.extend([self._types[number] for number in outputs])

    def _return(
        self, outputs: list[int], tree: object, guards: list[list[object]], lost_rules: list[str]
    ) -> None:
        graph, assumed = self._open, []
        for lhs, rhs in guards:
            assumed.append(Guard(self._size(lhs), self._size(rhs), "a graph that was read"))
        lost = tuple(LostRule(_word(name)) for name in lost_rules)
        metas, nodes = tuple(graph.metas), tuple(graph.nodes)
        made = Graph(
            metas=metas,
            input_count=graph.input_count,
            nodes=nodes,
            outputs=tuple(outputs),
            in_tree=graph.in_tree,
            out_tree=structure_of(tree),
            rules=NO_RULES,
            lost_rules=lost,
            guards=tuple(assumed),
        )
        self._graphs.append(made)
        self._sizes[id(made)] = graph.size

    # --- parts of records ---

    def _size(self, size: object) -> Any:
        return self._symbolic(size) if isinstance(size, str) else _natural(size)

    def _symbolic(self, text: object) -> Any:
        word = _word(text)
        if word not in self._dimensions:
            self._scope = self._scope or read_scope(())
            self._dimensions[word] = read_dimension(word, self._scope)
        return self._dimensions[word]


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


def _member(said: list[str]) -> Any:
    """The enum member of the names of its class and its own."""
    kind, name = said
    return ENUMS[kind].__members__[name]


def _natural(value: object) -> int:
    """The value, which must be a non-negative number."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.100} instead of a non-negative number")
    return value


def _word(value: object) -> str:
    """The value, which must be text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.100} instead of text")
    return value
