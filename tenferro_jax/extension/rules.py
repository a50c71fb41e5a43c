"""AD rules of extensions: frozen values in explicit rule sets that travel with each call, and how a
rule is run.

The results of a rule are checked. The rule of a mapped op is the mapped rule.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, TypeAlias

import jax
import jax.numpy as jnp

from ..dimensions import SymDim
from ..errors import ADRuleError, DuplicateRule, InvalidConfig, require_kind
from ..identity import Sealed
from ..jax_seam import graph_assumptions
from ..shapes import TensorMeta, meta_of
from .carrier import Levels, over
from .contract import (
    NOT_DIFFERENTIABLE,
    Can,
    ExtensionOp,
    LinearInput,
    LinearInputs,
    Slot,
    Tangents,
    checked_sequence,
    in_method,
)
from .family import family_of


class ExtensionAdRule(Sealed):
    """The AD rule of one family, for an op of another author. It is a frozen value: a
    `@dataclass(frozen=True)`, or without state.

    Its methods are plain JAX. If they call an extension, `apply(op, ...)` uses the rules and
    kernels of the call that is differentiated. `require_equal(a, b)` compares sizes, symbolic ones
    too.
    """

    family_id: ClassVar[str]

    def differentiable_form(self, op: ExtensionOp) -> ExtensionOp:
        """The op of the same family that runs instead of `op` when it is differentiated: by default
        `op` itself.

        Its first outputs are those of `op`; the others are residuals for `linearize`, which then
        receives this op and all its outputs.
        """
        return op

    def form_for(self, op: ExtensionOp, inputs: Sequence[TensorMeta]) -> ExtensionOp:
        """The differentiable form for these inputs."""
        return self.differentiable_form(op)

    def linearize(
        self,
        op: Any,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Slot]:
        """The tangents of the outputs, linear in the tangents of the inputs.

        Args:
          op: the extension op (its differentiable form).
          primals: the inputs.
          outputs: of the differentiable form.
          tangents: for each input its tangent, or None if it has none (do not make a zero for it).

        Returns:
          For each output of the differentiable form a tangent, None for zero, or
          NOT_DIFFERENTIABLE.
        """
        raise ADRuleError(op.family_id, "jvp", fix=f"Override {type(self).__name__}.linearize.")

    def transpose_rule(
        self,
        op: Any,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Slot]:
        """The cotangents of the inputs that the op is linear in.

        Args:
          op: the extension op.
          cotangents: for each output its cotangent, None for zero.
          inputs: for each input its value, or a LinearInput if its cotangent is wanted.

        Returns:
          For each input a cotangent, NOT_DIFFERENTIABLE, or None for zero and for inputs with a
          value.
        """
        raise ADRuleError(
            op.family_id, "transpose", fix=f"Override {type(self).__name__}.transpose_rule."
        )


AnyRule: TypeAlias = ExtensionAdRule | type[ExtensionOp]
"""A rule of a set, or the class of an op that has a rule: its methods take the op first as well."""


def is_stated(rule: AnyRule, op: ExtensionOp, what: Can) -> bool:
    """Whether a rule of an op overrides the method for it."""
    if isinstance(rule, type):
        return op.can(what)
    return getattr(type(rule), what.value) is not getattr(ExtensionAdRule, what.value)


class ExtensionRuleSet(Sealed):
    """An immutable set of AD rules, at most one for each family, compared and hashed by content.

    Example:
      >>> class SquareRule(ExtensionAdRule):
      ...     family_id = "docs-example.square.v1"
      ...     def linearize(self, op, primals, outputs, tangents):
      ...         return (2 * primals[0] * tangents[0],)
      >>> ExtensionRuleSet(SquareRule())
      ExtensionRuleSet(docs-example.square.v1)
    """

    def __init__(self, *rules: ExtensionAdRule):
        by_family: dict[str, ExtensionAdRule] = {}
        for rule in rules:
            fix = "Pass instances, ExtensionRuleSet(YourRule())."
            require_kind(
                rule,
                ExtensionAdRule,
                "ExtensionRuleSet",
                "instances of ExtensionAdRule subclasses",
                fix,
            )
            family_of(type(rule))
            if rule.family_id in by_family:
                raise DuplicateRule(
                    where="ExtensionRuleSet",
                    given=f"a second rule for family_id {rule.family_id}",
                    needed="at most one rule for each family",
                )
            by_family[rule.family_id] = rule
        object.__setattr__(self, "_by_family", by_family)

    _by_family: dict[str, ExtensionAdRule]

    def _seal(self) -> None:
        self._set_key(
            (ExtensionRuleSet, frozenset((f, r.typed_key) for f, r in self._by_family.items()))
        )

    def lookup_rule(self, family_id: str) -> ExtensionAdRule | None:
        """The rule of a family, or None."""
        return self._by_family.get(family_id)

    def rule_of(self, op: ExtensionOp) -> AnyRule | None:
        """Its class where that has a rule, else the rule of its family in this set, or None.

        Raises:
          DuplicateRule: there are both.
        """
        rule = self._by_family.get(op.family_id)
        if not (op.can(Can.LINEARIZE) or op.can(Can.TRANSPOSE)):
            return rule
        if rule is not None:
            raise DuplicateRule(
                where=f"derivative of extension {op.family_id}",
                given=f"{type(rule).__name__} in the rule set, and a rule in the class "
                f"{type(op).__name__}",
                needed="one rule for each family",
                fix="Leave the family out of the rule set.",
            )
        return type(op)

    def is_rule_registered(self, family_id: str) -> bool:
        """Whether the set has a rule for the family."""
        return family_id in self._by_family

    def with_rule(self, rule: ExtensionAdRule) -> ExtensionRuleSet:
        """A new set with one more rule; DuplicateRule if the set has a rule for its family."""
        return ExtensionRuleSet(*self, rule)

    def merge(self, other: ExtensionRuleSet) -> ExtensionRuleSet:
        """A new set with the rules of both; DuplicateRule, and nothing changed, if they share a
        family.
        """
        require_rules(other, "ExtensionRuleSet.merge", ExtensionRuleSet)
        return ExtensionRuleSet(*self, *other)

    def united(self, other: ExtensionRuleSet) -> ExtensionRuleSet:
        """Like merge, but equal rules on both sides are no conflict: for graphs with many calls
        that carry the same rule.
        """
        return ExtensionRuleSet(*self, *(r for r in other if self._by_family.get(r.family_id) != r))

    def __iter__(self) -> Iterator[ExtensionAdRule]:
        return iter(self._by_family.values())

    def __len__(self) -> int:
        return len(self._by_family)

    def __repr__(self) -> str:
        return f"ExtensionRuleSet({', '.join(sorted(self._by_family))})"


NO_RULES: Final = ExtensionRuleSet()
"""The empty rule set."""


def require_rules(rules: object, where: str, kind: Any = ExtensionRuleSet | None) -> None:
    """Refuse a value that is neither None nor an ExtensionRuleSet."""
    require_kind(
        rules,
        kind,
        where,
        "an ExtensionRuleSet",
        "Wrap the rules: ExtensionRuleSet(rule, ...).",
        "rules",
    )


def absent(slot: object) -> bool:
    """Whether a slot holds no value."""
    return slot is None or slot is NOT_DIFFERENTIABLE


def present(slots: Sequence[object]) -> tuple[Any, ...]:
    """The slots that hold a value."""
    return tuple(slot for slot in slots if not absent(slot))


def require_slots(
    op: ExtensionOp,
    method: str,
    results: Sequence[Any],
    wanted: Sequence[tuple[object, tuple[SymDim, ...]] | None],
    needed: int,
) -> None:
    """Refuse a tangent or cotangent whose dtype and shape differ from those of its primal, None
    means that no value is allowed; and NOT_DIFFERENTIABLE among the first `needed`.
    """
    where = op.place_of(method)
    for i, (result, want) in enumerate(zip(results, wanted, strict=True)):
        if result is NOT_DIFFERENTIABLE and i < needed:
            kind, slot = _SLOTS[method]
            raise ADRuleError(
                op.family_id,
                kind,
                given=f"family_id {op.family_id}: the rule says NOT_DIFFERENTIABLE for {slot} {i}",
                needed="a slot that has a derivative",
                fix="Differentiate with respect to other inputs, or stop the gradient of its "
                "inputs with jax.lax.stop_gradient.",
                clause="X10.5",
            )
        if absent(result):
            continue
        if not hasattr(result, "dtype"):
            raise InvalidConfig(
                where=f"{where}, entry {i}",
                given=f"{result!r}",
                needed="an array, None or NOT_DIFFERENTIABLE",
            )
        if want is None or (result.dtype, tuple(result.shape)) != tuple(want):
            raise InvalidConfig(
                where=f"{where}, entry {i}",
                given=str(TensorMeta(result.dtype, tuple(result.shape))),
                needed="None, because its primal has no tangents"
                if want is None
                else f"{TensorMeta(*want)}, as its primal",
                clause="X10.8",
            )


_SLOTS = {"linearize": ("jvp", "output"), "transpose_rule": ("transpose", "input")}


def _rule(op: ExtensionOp, name: str) -> AbstractContextManager[None]:
    """Runs a method of an AD rule; a graph that is recorded keeps the equalities that the rule
    requires.
    """
    graph = graph_assumptions.value
    return in_method(op, name, None if graph is None else lambda *assumed: graph.append(assumed))


def linearize(
    rule: AnyRule,
    op: ExtensionOp,
    levels: Levels,
    primals: Sequence[jax.Array],
    outs: Sequence[jax.Array],
    tangents: Tangents,
) -> list[Any]:
    """The rule's tangents, with the rule itself mapped over the batch levels."""
    if not levels:
        with _rule(op, "linearize"):
            results = rule.linearize(op, tuple(primals), tuple(outs), tuple(tangents))
        return list(checked_sequence(results, op, "linearize", op.output_count))
    if isinstance(rule, type):
        with _rule(op, "linearize"):
            own = op.mapped_tangents(functools.partial(over, levels), primals, tangents)
        if own is not None:
            return list(own)
    # None and NOT_DIFFERENTIABLE have no leaves, so that vmap hands them through.
    level, rest = levels[0], levels[1:]
    one = functools.partial(linearize, rule, op, rest)
    mapped = level.vmap(
        lambda *slots: tuple(one(*slots)), in_axes=(level.in_axes, 0, level.in_axes)
    )
    return list(mapped(tuple(primals), tuple(outs), tuple(tangents)))


def transposed(
    rule: AnyRule,
    op: ExtensionOp,
    levels: Levels,
    cotangents: Tangents,
    inputs: LinearInputs,
) -> list[Any]:
    """The rule's cotangents, mapped over the batch levels; an input that a level does not map sums
    over it.
    """
    mask = tuple(isinstance(x, LinearInput) for x in inputs)
    if not levels:
        with _rule(op, "transpose_rule"):
            results = rule.transpose_rule(op, tuple(cotangents), tuple(inputs))
        results = checked_sequence(results, op, "transpose_rule", op.input_count)
        return [r if m else None for r, m in zip(results, mask, strict=True)]
    level, rest = levels[0], levels[1:]
    metas = level.inner([meta_of(x) for x in inputs])

    def one(given: Tangents, known: Tangents) -> tuple[Any, ...]:
        element: list[Any] = [
            LinearInput(meta) if m else x for x, meta, m in zip(known, metas, mask, strict=True)
        ]
        return tuple(transposed(rule, op, rest, given, element))

    known = tuple(None if m else x for x, m in zip(inputs, mask, strict=True))
    mapped = level.vmap(one, in_axes=(0, level.in_axes))(tuple(cotangents), known)
    return [
        r if absent(r) else r.sum(0) if axis is None else jnp.moveaxis(r, 0, axis)
        for r, axis in zip(mapped, level.in_axes, strict=True)
    ]
