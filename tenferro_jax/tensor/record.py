"""What a lazy tensor stands on: an input, or an output of a recorded op; from there to a graph and back.

Nothing here recurses: a chain of any length is walked with a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np

from ..errors import DTypeError, InvalidConfig
from ..extension import NO_RULES, Extension, ExtensionOp, ExtensionRuleSet
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph, infer
from ..graph.guards import Guard
from ..ops.op import StdTensorOp
from ..ops.source import Constant
from ..ops.vocabulary import WITH_BODIES
from ..shapes import Described, TensorMeta, as_operand, meta_of


class Leaf:
    """An input of a program: a name to bind, or an array that is attached. Inputs of one name and meta are one."""

    __slots__ = ("array", "meta", "name")

    def __init__(self, name: str | None, meta: TensorMeta, array: Any = None):
        self.name, self.meta, self.array = name, meta, array

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Leaf) and self.array is None is other.array and (self.name, self.meta) == (other.name, other.meta)

    def __hash__(self) -> int:
        return hash((self.name, self.meta))

    @property
    def label(self) -> str:
        """What errors call it."""
        return "an unnamed array" if self.name is None else repr(self.name)

    def __repr__(self) -> str:
        return f"input {self.label}"


class Terms(NamedTuple):
    """What an op brings along beside itself: AD rules, names of lost ones, equalities of sizes that were assumed."""

    rules: ExtensionRuleSet = NO_RULES
    lost_rules: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()


NO_TERMS = Terms()


class Record:
    """One application of an op; `op` None is the identity that marks a checkpoint."""

    __slots__ = ("inputs", "op", "terms")

    def __init__(self, op: StdTensorOp | None, inputs: tuple[Handle, ...], terms: Terms):
        self.op, self.inputs, self.terms = op, inputs, terms


Source: TypeAlias = Leaf | Record
Key: TypeAlias = tuple[Source, int]


class Handle(Described):
    """One tensor: output `index` of a record, or a leaf."""

    __slots__ = ("index", "meta", "program", "source")

    def __init__(self, source: Source, index: int, meta: TensorMeta):
        self.source, self.index, self.meta = source, index, meta
        self.program: Any = None  # what the last evaluation recorded; see evaluation.py

    @property
    def key(self) -> Key:
        """What is equal for handles to one tensor."""
        return self.source, self.index


H = TypeVar("H", bound=Handle)


class Recorder(Generic[H]):
    """The builder whose values are handles: lowerings, AD rules and einsum plans run on lazy tensors through it."""

    def __init__(self, kind: Callable[[Source, int, TensorMeta], H]):
        self._kind = kind

    def handle(self, source: Source, index: int, meta: TensorMeta) -> H:
        """A handle of the recorder's kind."""
        return self._kind(source, index, meta)

    def constant(self, array: Any) -> H:
        """A concrete array, held in the program."""
        return self.add(Constant(np.asarray(concrete(array, "a constant"))))[0]

    def add(self, op: StdTensorOp | ExtensionOp, *values: Any, rules: ExtensionRuleSet = NO_RULES) -> tuple[H, ...]:
        """Record one op on handles; concrete arrays among the values become constants.

        Raises:
          InvalidConfig: dtypes or shapes that the op refuses.
          UndecidedDimensionError: it compares symbolic dimensions and JAX cannot tell.
        """
        carrier = Extension.of(op) if isinstance(op, ExtensionOp) else op
        if not isinstance(carrier, StdTensorOp):
            needed = "a standard op or an extension op, as an instance"
            raise InvalidConfig(where="a lazy tensor", given=repr(op), needed=needed, fix="Pass Add() rather than Add.")
        inputs = tuple([v if isinstance(v, Handle) else self.constant(v) for v in values])
        metas, _ = infer(carrier, tuple([v.meta for v in inputs]))
        record = Record(carrier, inputs, NO_TERMS if rules is NO_RULES else Terms(rules))
        return tuple([self._kind(record, i, meta) for i, meta in enumerate(metas)])

    def inline(self, fn: Callable[..., Any], *values: Any) -> Any:
        """Record what a JAX function of arrays does."""
        inputs = [v if isinstance(v, Handle) else self.constant(v) for v in values]
        builder = GraphBuilder()
        outs, tree = jax.tree.flatten(builder.inline(fn, *(builder.input(v.meta) for v in inputs)))
        return jax.tree.unflatten(tree, self.spliced(builder.build(outs), inputs))

    def spliced(self, graph: Graph, inputs: Sequence[Handle]) -> list[H]:
        """The outputs of a graph whose inputs are these tensors: its nodes become records."""
        plain = Terms(NO_RULES, graph.lost_rules, graph.guards)
        plain, ruled = plain if plain != NO_TERMS else NO_TERMS, Terms(graph.rules, graph.lost_rules, graph.guards)
        values: list[Any] = list(inputs)
        for node, outs in graph.steps():
            terms = ruled if isinstance(node.op, (Extension, *WITH_BODIES)) else plain
            record = Record(node.op, tuple([values[i] for i in node.inputs]), terms)
            values += [self._kind(record, i, graph.metas[out]) for i, out in enumerate(outs)]
        return [values[i] for i in graph.outputs]


def concrete(value: Any, where: str) -> Any:
    """An array with values, of any kind that JAX takes.

    Raises:
      DTypeError: no array, or one that JAX is tracing.
      X64Error: a 64-bit array while 64-bit types are off.
    """
    if isinstance(value, jax.core.Tracer | Handle):
        kind = "an array that JAX is tracing" if isinstance(value, jax.core.Tracer) else "a lazy tensor"
        needed = "a concrete array"
        raise DTypeError(where=where, given=kind, needed=needed, fix="Make it an input and bind it: eval(bindings=...).")
    return as_operand(value, where)


def walk(outputs: Sequence[Handle], cuts: frozenset[Key] = frozenset()) -> Iterator[Handle]:
    """One handle for every record, leaf and cut that the outputs need, each after its inputs; cuts hide what is behind."""
    done: set[Any] = set()
    pending = list(reversed(outputs))
    while pending:
        handle = pending[-1]
        stop = bool(cuts) and handle.key in cuts
        node = handle.key if stop else handle.source
        if node in done:
            pending.pop()
            continue
        inputs = handle.source.inputs if not stop and isinstance(handle.source, Record) else ()
        waiting = [x for x in inputs if (x.key if cuts and x.key in cuts else x.source) not in done]
        if waiting:
            pending.extend(reversed(waiting))
            continue
        pending.pop()
        done.add(node)
        yield handle


def to_graph(outputs: Sequence[Handle], cuts: frozenset[Key] = frozenset(), out_tree: Any = None) -> tuple[Graph, list[Handle]]:
    """The graph of some tensors, and the tensors that are its inputs: cuts and leaves in the order they are met.

    Raises:
      InvalidConfig: two different inputs of one name.
      DuplicateRule: two different AD rules for one family.
    """
    builder = GraphBuilder()
    values: dict[Key, Any] = {}
    inputs: list[Handle] = []
    names: dict[str, Leaf] = {}
    terms: dict[int, Terms] = {}
    for handle in walk(outputs, cuts):
        source = handle.source
        if isinstance(source, Leaf) or handle.key in cuts:
            values[handle.key] = builder.input(handle.meta)
            inputs.append(handle)
            if isinstance(source, Leaf) and source.name is not None and names.setdefault(source.name, source) != source:
                raise InvalidConfig(
                    where=f"input {source.name!r}",
                    given=f"{_described(names[source.name])} and {_described(source)} of this name",
                    needed="one input a name",
                    fix="Rename one of them, or use the same tensor.",
                )
            continue
        found = tuple([values[x.key] for x in source.inputs])
        if source.terms is not NO_TERMS and id(source.terms) not in terms:
            terms[id(source.terms)] = source.terms
            builder.rules = builder.rules.united(source.terms.rules)
            builder.lose_rules(source.terms.lost_rules)
        outs = found if source.op is None else builder.add(source.op, *found)
        for i, out in enumerate(outs):
            values.setdefault((source, i), out)
    graph = builder.build([values[h.key] for h in outputs], out_tree=out_tree)
    guards = [guard for t in terms.values() for guard in t.guards]
    return graph.with_guards((*graph.guards, *guards)) if guards else graph, inputs


def _described(leaf: Leaf) -> str:
    return f"{leaf.meta}{' with an array' if leaf.array is not None else ''}"


def array_meta(value: Any, where: str) -> tuple[Any, TensorMeta]:
    """A concrete array that cannot change, and its meta."""
    array = concrete(value, where)
    if isinstance(array, np.ndarray | np.generic):
        array = np.array(array)
        array.flags.writeable = False
    return array, meta_of(array)
