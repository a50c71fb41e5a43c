"""jaxpr -> graph: reads the equations one by one; rows.py has the ops for each primitive."""

from __future__ import annotations

import dataclasses
import pathlib
import traceback as traceback_module
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import jax_seam
from ..errors import Unsupported
from ..extension.carrier import Extension
from ..jax_seam import Atom, ClosedJaxpr, Eqn
from ..shapes import PyTree, TensorMeta, struct
from .graph import Graph
from .rows import PLAIN_PARAMS, ROWS, Row, described, refuse

if TYPE_CHECKING:
    from .builder import GraphBuilder, Value

RULE_DEPTH = 3
"""How many orders of custom derivatives are read: calls of functions with rules inside rules, and
so on.
"""


@dataclasses.dataclass(frozen=True)
class Reader:
    """Records jaxprs through one builder.

    Attributes:
      builder: a GraphBuilder.
      rule_depth: how many more orders of custom derivatives are read.
      is_derivative_free: whether this is the body of a function with a custom derivative, which
        replaces those inside.
      made: the results of `once`, shared with the readers of bodies.
      callers: the equations whose bodies are being read, outermost first; also shared.
    """

    builder: GraphBuilder
    rule_depth: int = RULE_DEPTH
    is_derivative_free: bool = False
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)
    callers: list[Eqn | None] = dataclasses.field(default_factory=list)

    def once(self, key: tuple[object, ...], make: Callable[[], object]) -> Any:
        """The result of `make`, made once for each key; its first entry is a jaxpr, and JAX keeps
        one for each jitted function.
        """
        number = (id(key[0]), *key[1:], self.rule_depth)
        if number not in self.made:
            self.made[number] = (
                key[0],
                make(),
            )  # keeps the jaxpr alive, so that no other object gets its id
        return self.made[number][1]

    def read(
        self,
        closed: ClosedJaxpr,
        inputs: Sequence[Value],
        caller: Eqn | None = None,
    ) -> list[Value]:
        """Record every equation of a jaxpr; returns the values of its outputs.

        Args:
          closed: the jaxpr with its constants.
          inputs: a value for each of its inputs.
          caller: the equation that calls this jaxpr; errors name its source line if an inner
            equation has none.
        """
        self.callers.append(caller)
        try:
            return self._read(closed, inputs)
        finally:
            self.callers.pop()

    def _read(self, closed: ClosedJaxpr, inputs: Sequence[Value]) -> list[Value]:
        jaxpr, constants = jax_seam.open_jaxpr(closed)
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def value_of(atom: Atom) -> Value:
            if jax_seam.is_literal(atom):
                return self.builder.constant(np.asarray(atom.val, atom.aval.dtype))
            value = values[atom]
            return value if hasattr(value, "meta") else self.builder.constant(value)

        for eqn in jaxpr.eqns:
            row = self._row(eqn)
            outs = row(self, eqn, [value_of(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, outs, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def within(self, builder: GraphBuilder, **changes: Any) -> Reader:
        """A reader into another builder."""
        return dataclasses.replace(self, builder=builder, **changes)

    def sub_graph(self, closed: ClosedJaxpr, derivative_free: bool = False) -> Graph:
        """A jaxpr as a graph of its own: the body of an op."""
        sub = self.builder.fresh()
        jaxpr, _ = jax_seam.open_jaxpr(closed)
        inner = self.within(sub, is_derivative_free=self.is_derivative_free or derivative_free)
        graph = sub.build(inner.read(closed, [sub.input(described(v)) for v in jaxpr.invars]))
        self.builder.absorb(graph)
        return graph

    def rule_graph(self, fn: Callable[..., PyTree], metas: Sequence[TensorMeta]) -> Graph:
        """The graph of a function that belongs to a custom derivative, one order deeper."""
        sub = self.builder.fresh()
        closed = jax.make_jaxpr(fn)(*map(struct, metas))
        graph = sub.build(
            self.within(sub, rule_depth=self.rule_depth - 1).read(
                closed, [sub.input(m) for m in metas]
            )
        )
        self.builder.absorb_rules(
            graph
        )  # a rule that is lost here is refused only when this order is differentiated
        return graph

    def recorded_line(self, *eqns: Eqn | None) -> str:
        """The user's source line of the first equation, or of the first calling equation, that has
        one.
        """
        for eqn in (*eqns, *reversed(self.callers)):
            traceback = None if eqn is None else eqn.source_info.traceback
            for frame in [] if traceback is None else traceback.frames:
                if not frame.file_name.startswith((*_LIBRARIES, "<")):
                    return f"{frame.file_name}:{frame.line_num}"
        return _UNKNOWN

    def source(self, *eqns: Eqn | None) -> str:
        """The recorded source line, or else the user's line that traces, because JAX records no
        line for its own functions.
        """
        line = self.recorded_line(*eqns)
        outside = traceback_module.walk_stack(None) if line == _UNKNOWN else ()
        found = ((frame.f_code.co_filename, number) for frame, number in outside)
        return next(
            (
                f"{name}:{number}"
                for name, number in found
                if not name.startswith((*_LIBRARIES, "<frozen "))
            ),
            line,
        )

    def _row(self, eqn: Eqn) -> Row:
        if isinstance(eqn.params.get("op"), Extension):
            return _extension
        name = eqn.primitive.name
        row = ROWS.get(name)
        if row is None:
            raise Unsupported(
                where=f"reading JAX primitive {name!r} into a graph",
                given=f"{name} at {self.source(eqn)}",
                needed="a primitive that one of the standard ops covers; docs/spec/ops.md lists "
                "them",
                fix="Write this part with standard ops, or keep it outside the graph.",
            )
        for param, plain in PLAIN_PARAMS.items():
            value = eqn.params.get(param, plain)
            is_plain = value == plain or (isinstance(value, jax.NamedSharding) and value.mesh.empty)
            if not is_plain and not (name == "rng_bit_generator" and param == "algorithm"):
                given = f"{param}={eqn.params[param]} at {self.source(eqn)}"
                raise refuse(
                    name,
                    given,
                    f"{param}={plain}",
                    "Leave this parameter out, or keep this part outside the graph.",
                )
        return row


_UNKNOWN = "an unknown line"
_LIBRARIES = tuple(str(pathlib.Path(str(module.__file__)).parent) for module in (jax, jax_seam))


def _extension(reader: Reader, eqn: Eqn, inputs: Sequence[Value]) -> Sequence[Value]:
    return reader.builder.add(eqn.params["op"], *inputs, rules=eqn.params["rules"])
