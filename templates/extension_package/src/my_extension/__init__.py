"""soft_plus: a smooth maximum of x and 0."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionFactory,
    ExtensionOp,
    ExtensionRuleSet,
    apply,
    extension_op,
    lookup_extension_factory,
    register_extension,
)

__all__ = ["RULES", "SoftPlus", "register", "soft_plus"]


@extension_op(package="my-extension", name="soft_plus", version=1)
class SoftPlus(ExtensionOp):
    """t * log(1 + exp(x / t)), element by element, for floating x.

    Attributes:
      t: how soft; a positive number.
    """

    t: float = 1.0

    def lower_to_standard_ops(self, builder, x):
        """Standard ops, from which dtype and shape are inferred too."""
        return (builder.inline(lambda x: self.t * jnp.logaddexp(x / self.t, 0.0), x),)

    def example_inputs(self):
        """What the op is checked on when nothing else is given."""
        return (([-1.0, 0.0, 0.5, 2.0],),)


@dataclass(frozen=True)
class SoftPlusRule(ExtensionAdRule):
    """The derivative is the logistic function."""

    family_id = SoftPlus.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        """One output, one input: a tangent is there, or the rule would not be asked."""
        return (builder.inline(lambda x, dx: jax.nn.sigmoid(x / op.t) * dx, primal_in[0], tangent_in[0]),)


RULES = ExtensionRuleSet(SoftPlusRule())


def soft_plus(x, t=1.0):
    """t * log(1 + exp(x / t)).

    Args:
      x: a floating array of any shape.
      t: how soft; a Python number.

    Returns:
      An array of the shape and dtype of x.
    """
    return apply(SoftPlus(float(t)), x, rules=RULES)[0]


def register():
    """Make the family known to this process, so that ops can be read back from files; returns its AD rules.

    The entry point in pyproject.toml, named as the package part of the family_id, leads readers here.
    """
    if lookup_extension_factory(SoftPlus.family_id) is None:
        register_extension(ExtensionFactory(SoftPlus))
    return RULES
