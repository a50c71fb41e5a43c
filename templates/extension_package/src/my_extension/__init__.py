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
      t: the softness, a positive number.
    """

    t: float = 1.0

    def lower_to_standard_ops(self, x):
        """The computation of the op; dtype and shape of the output are derived from it."""
        return (self.t * jnp.logaddexp(x / self.t, 0.0),)

    def linearize(self, primals, outputs, tangents):
        """The derivative is the logistic function. The only input always has a tangent here."""
        return (jax.nn.sigmoid(primals[0] / self.t) * tangents[0],)

    def example_inputs(self):
        """Default inputs for check."""
        return (([-1.0, 0.0, 0.5, 2.0],),)


def soft_plus(x, t=1.0):
    """t * log(1 + exp(x / t)).

    Args:
      x: a floating array of any shape.
      t: the softness, a Python number.

    Returns:
      An array of the shape and dtype of x.
    """
    return apply(SoftPlus(float(t)), x)[0]


def register():
    """Register the family, so that this process can read ops from files.

    The entry point in pyproject.toml has the package part of the family_id as its name, and names
    this function.
    """
    if lookup_extension_factory(SoftPlus.family_id) is None:
        register_extension(SoftPlus)
