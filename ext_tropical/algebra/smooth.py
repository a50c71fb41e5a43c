"""Log-sum-exp: the smooth neighbour of max_plus, whose plus adds up instead of choosing."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import jax.numpy as jnp
import numpy as np

from tenferro_jax import InvalidConfig

from .semiring import FLOATS, Semiring, lowest, register_semiring


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class LogSumExp(Semiring):
    """plus is T log(exp(x / T) + exp(y / T)), times is +, zero -inf, one 0.

    Attributes:
      temperature: T, positive and finite. As it falls, plus tends to the maximum.

    Raises:
      InvalidConfig: another temperature.

    Example:
      >>> round(float(log_sum_exp(0.5).plus(1.0, 2.0)), 4)
      2.0635
    """

    id = "tenferro-ext-tropical.log_sum_exp.v1"
    dtypes = FLOATS
    temperature: float = 1.0

    def __post_init__(self) -> None:
        given: Any = self.temperature
        try:
            temperature = float(given) if isinstance(given, numbers.Real) and not isinstance(given, bool) else math.nan
        except OverflowError:
            temperature = math.inf
        if not 0 < temperature < math.inf:
            raise InvalidConfig(
                where="log_sum_exp, temperature",
                given=repr(given),
                needed="a positive finite number",
                fix="Pass one; for the limit at 0 take max_plus, for a minimum negate the operands.",
            )
        object.__setattr__(self, "temperature", temperature)

    def times(self, x: Any, y: Any) -> Any:
        return x + y

    def plus(self, x: Any, y: Any) -> Any:
        gap = jnp.where(x == y, 0.0, abs(x - y))  # infinities too
        return jnp.maximum(x, y) + self.temperature * jnp.log1p(jnp.exp(-gap / self.temperature))

    def share(self, x: Any, total: Any) -> Any:
        """exp((x - total) / T), what x contributes to a total; 0 of -inf."""
        return jnp.where(x == -jnp.inf, 0.0, jnp.exp((x - total) / self.temperature)).astype(x.dtype)

    def zero(self, dtype: Any) -> Any:
        return lowest(dtype)

    def one(self, dtype: Any) -> Any:
        return np.zeros((), dtype)


log_sum_exp = LogSumExp
"""Makes the semiring (log-sum-exp, +) of a temperature, 1 by default: sums of probabilities in log space. Its gradient is the
softmax of the candidates: marginals."""
