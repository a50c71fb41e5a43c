"""THE list: extension calls of every kind, that every transform is swept over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ext_tropical
from ext_tropical import TropicalEinsum
from ext_tropical.steps.einsum_op import Outputs
from tenferro_jax.extension import ExtensionOp, ExtensionRuleSet, ExtensionRuntimeSet, apply
from tenferro_jax.extension.carrier import BatchLevel, Extension
from tenferro_jax.extension.rules import NO_RULES

from .extension_ops import (
    ALL_RUNTIMES,
    RULES,
    Bilinear,
    CumulativeProduct,
    Difference,
    HostCumulate,
    HostProduct,
    HostTanh,
    KernelCosine,
    KernelSine,
    MaxAndIndex,
    PlacedTanh,
    Ranks,
    ScaledSquare,
    SineAndCosine,
    Softplus,
)
from .oracles import brute_force, central_difference


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One extension call with an independent oracle.

    Attributes:
      kind: what sort of op it is; refusals are stated by kind.
      name: shown by pytest.
      op: the extension, or a carrier with batch levels.
      inputs: float64 arrays without ties.
      oracle: NumPy function of the inputs -> tuple of outputs.
      rules: AD rules.
      runtimes: kernels.
    """

    kind: str
    name: str
    op: ExtensionOp | Extension
    inputs: tuple[np.ndarray, ...]
    oracle: Callable[..., tuple[np.ndarray, ...]]
    rules: ExtensionRuleSet = RULES
    runtimes: ExtensionRuntimeSet = ALL_RUNTIMES

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        return apply(self.op, *arrays, rules=self.rules, runtimes=self.runtimes)

    @property
    def argnums(self) -> tuple[int, ...]:
        """The positions of all inputs."""
        return tuple(range(len(self.inputs)))

    def scalar(self, *arrays: Any) -> Any:
        """A smooth scalar of the floating outputs, for gradients; of the integer ones where there
        are no others.
        """
        return _scalar(self(*arrays))

    def scalar_oracle(self, *arrays: Any) -> Any:
        """The same scalar, in NumPy."""
        return _scalar(self.oracle(*arrays))

    def gradient(self, *arrays: Any, argnum: int = 0) -> np.ndarray:
        """The gradient of the scalar, by finite differences of the oracle."""
        key = (self.name, argnum, *(a.tobytes() for a in arrays))
        if key not in _gradients:
            _gradients[key] = central_difference(self.scalar_oracle, list(arrays), argnum)
        return _gradients[key]

    def gradients(self, *arrays: Any) -> list[np.ndarray]:
        """The gradients with respect to every input."""
        return [self.gradient(*arrays, argnum=i) for i in self.argnums]

    def batch(self, size: int) -> tuple[np.ndarray, ...]:
        """The inputs with a leading batch axis, every element another."""
        return tuple(
            np.stack([x * (1 + 0.2 * i) + 0.1 * i for i in range(size)]) for x in self.inputs
        )

    def stacked(self, *batch: Any) -> tuple[np.ndarray, ...]:
        """The oracle's outputs for every element of a batch."""
        return tuple(
            np.stack(column) for column in zip(*(self.oracle(*element) for element in zip(*batch)))
        )

    def stacked_gradients(self, *batch: Any) -> list[np.ndarray]:
        """The oracle's gradients for every element of a batch."""
        return [
            np.stack(column)
            for column in zip(*(self.gradients(*element) for element in zip(*batch)))
        ]


_gradients: dict[Any, np.ndarray] = {}


def _scalar(outs: Any) -> Any:
    floating = [out for out in outs if out.dtype.kind == "f"]
    if not floating:
        return sum(out.sum() for out in outs)
    weights = (np.cos(np.arange(out.size)).reshape(out.shape).astype(out.dtype) for out in floating)
    return sum((out * out * w).sum() for out, w in zip(floating, weights))


def _data(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    return tuple(rng.normal(size=shape) for shape in shapes)


def _tropical(name: str, equation: str, *shapes: tuple[int, ...]) -> Case:
    op = TropicalEinsum(getattr(ext_tropical, name), equation, Outputs.VALUE_AND_WINNER)
    return Case(
        "tropical einsum",
        f"{name} {equation}",
        op,
        _data(*shapes),
        lambda a, b: brute_force(name, equation, a, b),
        NO_RULES,
    )


X = _data((3, 4))
CASES = (
    Case("lowered", "scaled square", ScaledSquare(1.5), X, lambda x: (1.5 * x * x,)),
    Case("linear", "difference", Difference(), X, lambda x: (np.diff(x, axis=-1),)),
    Case("two inputs", "bilinear", Bilinear(), _data((3, 4), (4, 2)), lambda x, w: (x @ w,)),
    Case("two outputs", "sine and cosine", SineAndCosine(), X, lambda x: (np.sin(x), np.cos(x))),
    Case(
        "one integer output",
        "max and index",
        MaxAndIndex(),
        X,
        lambda x: (x.max(-1), x.argmax(-1).astype(np.int32)),
    ),
    Case(
        "integer outputs",
        "ranks",
        Ranks(),
        X,
        lambda x: (x.argsort(-1).argsort(-1).astype(np.int32),),
    ),
    Case(
        "own batched form",
        "cumulative product",
        CumulativeProduct(),
        X,
        lambda x: (np.cumprod(x, 0),),
    ),
    Case(
        "batch level",
        "mapped max and index",
        Extension.of(MaxAndIndex()).batch(BatchLevel((1,))),
        X,
        lambda x: (x.max(0), x.argmax(0).astype(np.int32)),
    ),
    Case("kernel and lowering", "kernel sine", KernelSine(), X, lambda x: (np.sin(x),)),
    Case("kernel only", "kernel cosine", KernelCosine(), X, lambda x: (np.cos(x),)),
    Case("declined lowering", "softplus", Softplus(), X, lambda x: (np.logaddexp(x, 0),)),
    Case("host only", "host tanh", HostTanh(), X, lambda x: (np.tanh(x),)),
    Case("host only, sharding rule", "placed tanh", PlacedTanh(), X, lambda x: (np.tanh(x),)),
    Case("host only, linear", "host cumulate", HostCumulate(), X, lambda x: (np.cumsum(x, -1),)),
    Case(
        "host only, two inputs",
        "host product",
        HostProduct(),
        _data((3, 4), (3, 4)),
        lambda x, y: (x * y,),
    ),
    # min_plus is max_plus of what is negated; tests/ext_tropical has it.
    _tropical("max_plus", "bij,bjk->kbi", (2, 3, 2), (2, 2, 2)),
    _tropical("max_mul", "kji,ljk->il", (2, 2, 2), (3, 2, 2)),
)
KINDS = tuple(dict.fromkeys(case.kind for case in CASES))


def ids(cases: Sequence[Case]) -> list[str]:
    """Names for pytest."""
    return [c.name for c in cases]
