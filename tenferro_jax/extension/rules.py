"""AD rules of extensions: frozen values in explicit rule sets that travel with each call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from ..dimensions import are_equal, require_equal
from ..errors import ADRuleError, DuplicateRule, InvalidConfig
from ..identity import Sealed
from ..jax_seam import graph_assumptions
from ..ops.builder import Builder
from ..shapes import Described, TensorMeta, meta_of
from .family import family_of
from .op import ExtensionOp


class _NotDifferentiable:
    def __repr__(self) -> str:
        return "NOT_DIFFERENTIABLE"


NOT_DIFFERENTIABLE: Final = _NotDifferentiable()
"""Returned by a rule in place of a tangent or cotangent that does not exist; None, by contrast, is a zero."""


@dataclasses.dataclass(frozen=True)
class LinearInput(Described):
    """Stands in `inputs` of a transpose rule for an input that the program is linear in; it has metadata, no value."""

    meta: TensorMeta


@dataclasses.dataclass(frozen=True)
class LinearMode:
    """How a transpose rule is called.

    Attributes:
      active_mask: for each input, whether its cotangent is wanted; `inputs[i]` is a LinearInput exactly there.
    """

    active_mask: tuple[bool, ...]


class RuleContext:
    """The only way for a rule to ask about values: metadata and guards."""

    def __init__(self, family_id: str):
        self._family_id = family_id

    def shape_of(self, value: Any) -> tuple[Any, ...]:
        """Shape of a value or LinearInput; dimensions may be symbolic."""
        return tuple(value.shape)

    def dtype_of(self, value: Any) -> Any:
        """dtype of a value or LinearInput."""
        return value.dtype

    def metadata_of(self, value: Any) -> TensorMeta:
        """dtype and shape of a value or LinearInput."""
        return meta_of(value)

    def require_equal(self, a: Any, b: Any) -> None:
        """Demand that two dimensions are equal.

        Raises:
          ShapeError: they differ.
          UndecidedDimensionError: they are symbolic and JAX cannot tell. Where the derivative is recorded as a graph, the
            equality is a guard of that graph instead.
        """
        where = f"AD rule of extension {self._family_id}"
        if graph_assumptions.value is not None and are_equal(a, b) is None:
            graph_assumptions.value.append((a, b, where))
        else:
            require_equal(a, b, where)


class ExtensionAdRule(Sealed):
    """AD of one family. A frozen value: a `@dataclass(frozen=True)`, or a class without state."""

    family_id: ClassVar[str]

    def differentiable_form(self, op: ExtensionOp) -> ExtensionOp:
        """The op of the same family to run in place of `op` when it is differentiated.

        Its first outputs are those of `op`; the further ones are residuals for `linearize`, which then receives this
        op and all its outputs. By default `op` itself.
        """
        return op

    def linearize(
        self,
        op: Any,
        builder: Builder,
        primal_in: Sequence[Any],
        primal_out: Sequence[Any],
        tangent_in: Sequence[Any],
        context: RuleContext,
    ) -> Sequence[Any]:
        """Emit the tangents of the outputs, linear in the tangents of the inputs.

        Args:
          op: the extension op (its differentiable form).
          builder: where to emit; `builder.add(op, *values)`, `builder.inline(fn, *values)`. Extensions may be emitted
            too; they are called with the rule set of the outer call.
          primal_in: inputs.
          primal_out: outputs of the differentiable form.
          tangent_in: for each input its tangent, None where inactive (a zero must not be made).
          context: metadata and guards.

        Returns:
          For each output of the differentiable form a tangent, None for zero, or NOT_DIFFERENTIABLE.
        """
        raise ADRuleError(op.family_id, "jvp", fix=f"Override {type(self).__name__}.linearize.")

    def transpose_rule(
        self,
        op: Any,
        builder: Builder,
        cotangent_out: Sequence[Any],
        inputs: Sequence[Any],
        mode: LinearMode,
        context: RuleContext,
    ) -> Sequence[Any]:
        """Emit the cotangents of the inputs that the op is linear in.

        Args:
          op: the extension op.
          builder: where to emit.
          cotangent_out: for each output its cotangent, None where zero.
          inputs: for each input its value, or LinearInput where `mode.active_mask` is True.
          mode: which inputs are linear.
          context: metadata and guards.

        Returns:
          For each input a cotangent, None for zero or where the mask is False, or NOT_DIFFERENTIABLE.
        """
        raise ADRuleError(op.family_id, "transpose", fix=f"Override {type(self).__name__}.transpose_rule.")


class ExtensionRuleSet(Sealed):
    """An immutable set of AD rules, at most one a family, equal and hashed by content.

    Example:
      >>> from ext_tropical import TROPICAL_RULES
      >>> TROPICAL_RULES
      ExtensionRuleSet(tenferro-ext-tropical.einsum.v1, tenferro-ext-tropical.log_einsum.v1, tenferro-ext-tropical.weighted_sum.v1)
    """

    def __init__(self, *rules: ExtensionAdRule):
        by_family: dict[str, ExtensionAdRule] = {}
        for rule in rules:
            if not isinstance(rule, ExtensionAdRule):
                given, fix = repr(rule), "Pass instances, ExtensionRuleSet(YourRule())."
                raise InvalidConfig(where="ExtensionRuleSet", given=given, needed="instances of ExtensionAdRule subclasses", fix=fix)
            family_of(type(rule))
            if rule.family_id in by_family:
                raise DuplicateRule(
                    where="ExtensionRuleSet",
                    given=f"a second rule for family_id {rule.family_id}",
                    needed="at most one rule a family",
                    fix="Drop one of the two.",
                )
            by_family[rule.family_id] = rule
        object.__setattr__(self, "_by_family", by_family)
        self._seal()

    _by_family: dict[str, ExtensionAdRule]

    def _seal(self) -> None:
        self._set_key((ExtensionRuleSet, frozenset((f, r.typed_key) for f, r in self._by_family.items())))

    def lookup_rule(self, family_id: str) -> ExtensionAdRule | None:
        """The rule of a family, or None."""
        return self._by_family.get(family_id)

    def is_rule_registered(self, family_id: str) -> bool:
        """Whether the set has a rule for the family."""
        return family_id in self._by_family

    def with_rule(self, rule: ExtensionAdRule) -> ExtensionRuleSet:
        """A new set with one more rule; DuplicateRule if its family is there."""
        return ExtensionRuleSet(*self, rule)

    def merge(self, other: ExtensionRuleSet) -> ExtensionRuleSet:
        """A new set with the rules of both; DuplicateRule, and nothing changed, if they share a family."""
        if not isinstance(other, ExtensionRuleSet):
            raise not_a_rule_set(other, "ExtensionRuleSet.merge")
        return ExtensionRuleSet(*self, *other)

    def united(self, other: ExtensionRuleSet) -> ExtensionRuleSet:
        """Like merge, but an equal rule on both sides is no conflict: for graphs that meet one rule many times."""
        return ExtensionRuleSet(*self, *(r for r in other if self._by_family.get(r.family_id) != r))

    def __iter__(self) -> Iterator[ExtensionAdRule]:
        return iter(self._by_family.values())

    def __len__(self) -> int:
        return len(self._by_family)

    def __repr__(self) -> str:
        return f"ExtensionRuleSet({', '.join(sorted(self._by_family))})"


NO_RULES: Final = ExtensionRuleSet()
"""The empty rule set."""


def require_rules(rules: Any, where: str) -> None:
    """Refuse what is neither None nor an ExtensionRuleSet."""
    if rules is not None and not isinstance(rules, ExtensionRuleSet):
        raise not_a_rule_set(rules, where)


def not_a_rule_set(value: Any, where: str) -> InvalidConfig:
    """The refusal of something else than a rule set."""
    fix = "Wrap the rules: ExtensionRuleSet(rule, ...)."
    return InvalidConfig(where=where, given=f"rules={value!r}", needed="an ExtensionRuleSet", fix=fix)
