"""soft_plus: a smooth maximum of x and 0."""

import jax
import jax.numpy as jnp

from tenferro_jax.extension import (
    ExtensionOp,
    apply,
    extension_op,
    lookup_extension_factory,
    register_extension,
)

__all__ = ["SoftPlus", "register", "soft_plus"]


@extension_op(package="my-extension", name="soft_plus", version=1)
class SoftPlus(ExtensionOp):
    """t * log(1 + exp(x / t)), element by element, for floating x.

    Attributes:
      t: how soft; a positive number.
    """

    t: float = 1.0

    def lower_to_standard_ops(self, x):
        """What the op computes; dtype and shape are inferred from it too."""
        return (self.t * jnp.logaddexp(x / self.t, 0.0),)

    def linearize(self, primals, outputs, tangents):
        """The derivative is the logistic function. The one input has a tangent, or nobody would ask."""
        return (jax.nn.sigmoid(primals[0] / self.t) * tangents[0],)

    def example_inputs(self):
        """What the op is checked on when nothing else is given."""
        return (([-1.0, 0.0, 0.5, 2.0],),)


def soft_plus(x, t=1.0):
    """t * log(1 + exp(x / t)).

    Args:
      x: a floating array of any shape.
      t: how soft; a Python number.

    Returns:
      An array of the shape and dtype of x.
    """
    return apply(SoftPlus(float(t)), x)[0]


def register():
    """Make the family known to this process, so that ops can be read back from files.

    The entry point in pyproject.toml, named as the package part of the family_id, leads readers here.
    """
    if lookup_extension_factory(SoftPlus.family_id) is None:
        register_extension(SoftPlus)
