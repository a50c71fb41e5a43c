"""The tangents of a rule that JAX cannot transpose: forward mode has them, reverse mode is an error
that names the op and the rule.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import ADRuleError, TenferroError, first_line
from ..jax_seam import Assumptions, graph_assumptions, lacks_derivative
from ..shapes import TensorMeta, is_inexact, struct
from .carrier import Extension
from .contract import CANNOT, ExtensionOp, LinearInput, Slot
from .registry import register_extension
from .rules import ExtensionAdRule, ExtensionRuleSet, absent, linearize
from .runtimes import ExtensionRuntimeSet
from .scope import inherited


@dataclasses.dataclass(frozen=True)
class ForwardOnly(ExtensionOp):
    """The identity of a tangent. Its transpose is the error."""

    family_id = "tenferro-jax.forward_only.v1"
    family: str
    place: str
    given: str
    fix: str

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        """The tangent."""
        return inputs

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Slot]:
        """The tangent of the tangent, which may have a transpose."""
        return tangents

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Slot]:
        """An error."""
        raise ADRuleError(
            self.family,
            "transpose",
            place=self.place,
            given=self.given,
            needed="tangents by code that JAX can transpose",
            fix=self.fix,
        )


register_extension(ForwardOnly)


@functools.lru_cache(maxsize=4096)
def forward_only(
    rule: ExtensionAdRule,
    op: ExtensionOp,
    runtimes: ExtensionRuntimeSet | None,
    rules: ExtensionRuleSet,
    metas: tuple[TensorMeta, ...],
    moving: tuple[bool, ...],
) -> Extension | None:
    """What marks the tangents of a rule that JAX cannot transpose; None if it can.

    Args:
      rule: of the op.
      op: the differentiable form.
      runtimes: that the rule inherits.
      rules: that it inherits.
      metas: of the inputs.
      moving: which inputs have a tangent.
    """
    outs = [struct(meta) for meta in Extension(op, (), runtimes).infer(*metas)]
    smooth = [x for x in outs if is_inexact(x)]
    inputs = [struct(meta) for meta in metas]
    tangents = [x for x, moves in zip(inputs, moving, strict=True) if moves]

    def pulled(
        primals: Sequence[jax.Array], outs: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> Any:
        def pushed(*given: jax.Array) -> list[jax.Array]:
            source = iter(given)
            slots = [next(source) if moves else None for moves in moving]
            made = linearize(rule, op, (), primals, outs, slots)
            return [
                jnp.zeros_like(x) if absent(t) else t
                for x, t in zip(outs, made, strict=True)
                if is_inexact(x)
            ]

        return jax.linear_transpose(pushed, *tangents)(cotangents)

    try:
        with graph_assumptions(Assumptions()), inherited((rules, runtimes)):
            jax.eval_shape(pulled, inputs, outs, smooth)
    except TenferroError:  # the rule's own, or of an op that it calls
        return None
    except (NotImplementedError, ValueError, TypeError, AssertionError) as error:
        if not lacks_derivative(error):
            return None
        what = op.place_of("linearize").split(" of ")[0]
        given = f"{what}, {CANNOT} transpose: {first_line(error)}"
        fix = f"Use forward mode, or {op.advice.reverse}."
        return Extension(ForwardOnly(op.family_id, op.place_of(), given, fix))
    return None
