"""THE list: extension calls that every transform is swept over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import ext_tropical
from ext_tropical import TROPICAL_RULES, Outputs, TropicalEinsum
from tenferro_jax.extension import ExtensionOp, ExtensionRuleSet, ExtensionRuntimeSet, apply

from .extension_ops import RULES, RUNTIMES, Bilinear, HostCumulate, KernelSine, MaxAndIndex, ScaledSquare
from .oracles import brute_force


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One extension call with an independent oracle.

    Attributes:
      name: shown by pytest.
      op: the extension.
      inputs: float64 arrays without ties.
      oracle: NumPy function of the inputs -> tuple of outputs.
      rules: AD rules.
      runtimes: kernels.
      host_only: no lowering: not exportable, not for explicit meshes.
    """

    name: str
    op: ExtensionOp
    inputs: tuple[np.ndarray, ...]
    oracle: Callable[..., tuple[np.ndarray, ...]]
    rules: ExtensionRuleSet = RULES
    runtimes: ExtensionRuntimeSet = RUNTIMES
    host_only: bool = False

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        return apply(self.op, *arrays, rules=self.rules, runtimes=self.runtimes)

    def scalar(self, *arrays: Any) -> Any:
        """A smooth scalar of the first output, for gradients."""
        value = self(*arrays)[0]
        weights = np.cos(np.arange(np.prod(value.shape, dtype=int), dtype=np.float64)).reshape(value.shape)
        return (value * value * weights).sum()

    def scalar_oracle(self, *arrays: Any) -> float:
        """The same scalar, in NumPy."""
        value = self.oracle(*arrays)[0]
        weights = np.cos(np.arange(value.size, dtype=np.float64)).reshape(value.shape)
        return float((value * value * weights).sum())


def _data(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    return tuple(rng.normal(size=shape) for shape in shapes)


def _tropical(name: str, equation: str, *shapes: tuple[int, ...]) -> Case:
    op = TropicalEinsum(getattr(ext_tropical, name), equation, Outputs.VALUE_AND_WINNER)
    return Case(f"{name} {equation}", op, _data(*shapes), lambda a, b: brute_force(name, equation, a, b), TROPICAL_RULES)


CASES = (
    Case("lowered", ScaledSquare(1.5), _data((3, 4)), lambda x: (1.5 * x * x,)),
    Case("host-only linear", HostCumulate(), _data((3, 4)), lambda x: (np.cumsum(x, -1),), host_only=True),
    Case("linear in two inputs", Bilinear(), _data((3, 4), (4, 2)), lambda x, w: (x @ w,)),
    Case("two outputs, one integer", MaxAndIndex(), _data((3, 4)), lambda x: (x.max(-1), x.argmax(-1).astype(np.int32))),
    Case("kernel-backed", KernelSine(), _data((3, 4)), lambda x: (np.sin(x),)),
    _tropical("max_plus", "ij,jk->ik", (3, 5), (5, 4)),
    _tropical("min_plus", "bij,bjk->kbi", (2, 3, 5), (2, 5, 4)),
    _tropical("max_mul", "kji,ljk->il", (2, 3, 4), (5, 3, 2)),
)
LOWERED = tuple(c for c in CASES if not c.host_only)


def ids(cases: tuple[Case, ...]) -> list[str]:
    """Names for pytest."""
    return [c.name for c in cases]
