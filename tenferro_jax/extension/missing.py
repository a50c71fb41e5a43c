"""What stands in a graph for an extension whose family this process does not know."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from ..ops.op import StdTensorOp, op
from ..shapes import TensorMeta


@op
class MissingExtension(StdTensorOp):
    """An extension that was read with `skip_missing_extensions=True`: it keeps what was written of it, and does nothing else.

    Attributes:
      family_id: the family, which was not registered.
      payload: its payload, as it was written.
      levels: its batch levels, as canonical JSON text.
      outputs: how many outputs it has.

    Example:
      >>> MissingExtension("my-package.gone.v1", "{}", "[]", 1).infer()
      Traceback (most recent call last):
      ...
      tenferro_jax.errors.Unsupported: extension: given my-package.gone.v1: not registered; needed the factory of its family \
in this process. Import the package that publishes it, register it, and read the graph again.
    """

    input_count = None
    family_id: str
    payload: str
    levels: str
    outputs: int

    @property
    def output_count(self) -> int:
        """As many as were written."""
        return self.outputs

    def infer(self, *metas: TensorMeta) -> tuple[TensorMeta, ...]:
        """Refuses.

        Raises:
          Unsupported: always.
        """
        raise self._unsupported()

    def apply(self, *inputs: Any) -> Any:
        """Refuses.

        Raises:
          Unsupported: always.
        """
        raise self._unsupported()

    def _unsupported(self) -> Unsupported:
        return Unsupported(
            where="extension",
            given=f"{self.family_id}: not registered",
            needed="the factory of its family in this process",
            fix="Import the package that publishes it, register it, and read the graph again.",
        )
