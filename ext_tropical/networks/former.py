"""An op that files of earlier versions hold."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from tenferro_jax.extension import ExtensionOp, extension_op


@extension_op(package="tenferro-ext-tropical", name="rows", version=1)
class Rows(ExtensionOp):
    """The rows of an int32 array, an output for each: labels, before `Labels` held them as one
    array.

    Attributes:
      count: the number of rows.
    """

    count: int

    @property
    def output_count(self) -> int:
        """One for each row."""
        return self.count

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        (labels,) = inputs
        return list(labels)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Rows of three labels."""
        return [[np.arange(3 * self.count, dtype=np.int32).reshape(self.count, 3)]]
