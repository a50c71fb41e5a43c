"""Extension ops of every kind, written as an outside author would write them, with rules."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.errors import DTypeError
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    ShardingRule,
    apply,
    require_equal,
)


@dataclasses.dataclass(frozen=True)
class ScaledSquare(ExtensionOp):
    """factor * x**2, lowered; its rule differs from JAX's derivative by `mark`."""

    family_id = "test-package.scaled_square.v1"

    factor: float = 1.0

    def lower_to_standard_ops(self, x):
        return (jnp.asarray(self.factor, x.dtype) * x * x,)


@dataclass(frozen=True)
class ScaledSquareRule(ExtensionAdRule):
    family_id = ScaledSquare.family_id
    mark: float = 1.0

    def linearize(self, op, primals, outputs, tangents):
        x, t = primals[0], tangents[0]
        return [jnp.asarray(2 * op.factor * self.mark, x.dtype) * x * t]


@dataclass(frozen=True)
class HostCumulate(ExtensionOp):
    """Running sum along the last axis in NumPy only: a linear host op."""

    family_id = "test-package.host_cumulate.v1"
    reverse: bool = False

    def infer_output_meta(self, inputs):
        return [inputs[0]]

    def eager_execute(self, x):
        assert isinstance(x, np.ndarray)
        return [np.flip(np.cumsum(np.flip(x, -1), -1), -1) if self.reverse else np.cumsum(x, -1)]


@dataclass(frozen=True)
class HostCumulateRule(ExtensionAdRule):
    family_id = HostCumulate.family_id

    def linearize(self, op, primals, outputs, tangents):
        return apply(op, tangents[0])

    def transpose_rule(self, op, cotangents, inputs):
        assert isinstance(inputs[0], LinearInput)
        return apply(HostCumulate(reverse=not op.reverse), cotangents[0])


@dataclass(frozen=True)
class Bilinear(ExtensionOp):
    """x @ w, lowered, with two inputs, linear in each."""

    family_id = "test-package.bilinear.v1"
    input_count = 2

    def infer_output_meta(self, inputs):
        x, w = inputs
        if x.dtype != w.dtype:
            raise DTypeError(
                where=self.family_id,
                given=f"{x} and {w}",
                needed="one dtype",
                fix="Convert one of them.",
            )
        require_equal(x.shape[-1], w.shape[0])
        return [(x.dtype, (*x.shape[:-1], *w.shape[1:]))]

    def lower_to_standard_ops(self, x, w):
        return (jnp.tensordot(x, w, axes=1),)


@dataclass(frozen=True)
class BilinearRule(ExtensionAdRule):
    family_id = Bilinear.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x, w), (tx, tw) = primals, tangents
        parts = ([] if tx is None else [apply(op, tx, w)[0]]) + (
            [] if tw is None else [apply(op, x, tw)[0]]
        )
        return [sum(parts[1:], parts[0])]

    def transpose_rule(self, op, cotangents, inputs):
        x, w = inputs
        ct = cotangents[0]
        if isinstance(x, LinearInput):
            return [jnp.tensordot(ct, w, axes=[[-1], [-1]]), None]
        return [None, jnp.tensordot(x, ct, axes=[[-2], [-2]])]


class MaxAndIndex(ExtensionOp):
    """Maximum over the last axis and its index: two outputs, one of them an integer."""

    family_id = "test-package.max_and_index.v1"
    output_count = 2

    def lower_to_standard_ops(self, x):
        return (jnp.max(x, -1), jnp.argmax(x, -1).astype(jnp.int32))


@dataclass(frozen=True)
class MaxAndIndexRule(ExtensionAdRule):
    family_id = MaxAndIndex.family_id

    def linearize(self, op, primals, outputs, tangents):
        def pick(t: Any, index: Any) -> Any:
            return jnp.take_along_axis(t, index[..., None], -1)[..., 0]

        return [pick(tangents[0], outputs[1]), None]


@dataclasses.dataclass(frozen=True)
class KernelSine(ExtensionOp):
    """sin, with a kernel for cpu that adds `offset`, so that the result shows the route."""

    family_id = "test-package.kernel_sine.v1"

    offset: float = 0.0

    def lower_to_standard_ops(self, x):
        return [jnp.sin(x)]

    def linearize(self, primals, outputs, tangents):
        return [jnp.cos(primals[0]) * tangents[0]]


def sine_kernel(op, x):
    """The sine, plus the offset."""
    return [jnp.sin(x) + jnp.asarray(op.offset, x.dtype)]


class KernelCosine(ExtensionOp):
    """cos, with only kernels."""

    family_id = "test-package.kernel_cosine.v1"

    def infer_output_meta(self, inputs):
        return inputs

    def linearize(self, primals, outputs, tangents):
        return [-jnp.sin(primals[0]) * tangents[0]]


class Difference(ExtensionOp):
    """x[..., 1:] - x[..., :-1], lowered and linear."""

    family_id = "test-package.difference.v1"

    def lower_to_standard_ops(self, x):
        return [x[..., 1:] - x[..., :-1]]

    def linearize(self, primals, outputs, tangents):
        return apply(self, tangents[0])

    def transpose_rule(self, cotangents, inputs):
        return [-jnp.diff(cotangents[0], prepend=0.0, append=0.0)]


class HostTanh(ExtensionOp):
    """tanh in NumPy only."""

    family_id = "test-package.host_tanh.v1"

    def infer_output_meta(self, inputs):
        return inputs

    def eager_execute(self, x):
        return [np.tanh(x)]


class HostTanhRule(ExtensionAdRule):
    family_id = HostTanh.family_id

    def linearize(self, op, primals, outputs, tangents):
        return [(1 - outputs[0] * outputs[0]) * tangents[0]]


class PlacedTanh(HostTanh):
    """tanh in NumPy only, with a sharding rule."""

    family_id = "test-package.placed_tanh.v1"

    def sharding_rule(self, inputs):
        return ShardingRule("... -> ...")


@dataclass(frozen=True)
class PlacedTanhRule(HostTanhRule):
    family_id = PlacedTanh.family_id


class HostProduct(ExtensionOp):
    """x * y in NumPy only: two inputs, linear in each."""

    family_id = "test-package.host_product.v1"
    input_count = 2

    def infer_output_meta(self, inputs):
        return [inputs[0]]

    def eager_execute(self, x, y):
        return [x * y]


@dataclass(frozen=True)
class HostProductRule(ExtensionAdRule):
    family_id = HostProduct.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x, y), (tx, ty) = primals, tangents
        parts = ([] if tx is None else [*apply(op, tx, y)]) + (
            [] if ty is None else [*apply(op, x, ty)]
        )
        return [sum(parts[1:], parts[0])]

    def transpose_rule(self, op, cotangents, inputs):
        (x, y), ct = inputs, cotangents[0]
        return (
            [*apply(op, ct, y), None] if isinstance(x, LinearInput) else [None, *apply(op, ct, x)]
        )


class SineAndCosine(ExtensionOp):
    """(sin x, cos x): two differentiable outputs."""

    family_id = "test-package.sine_and_cosine.v1"
    output_count = 2

    def lower_to_standard_ops(self, x):
        return (jnp.sin(x), jnp.cos(x))

    def linearize(self, primals, outputs, tangents):
        return (
            outputs[1] * tangents[0],
            -outputs[0] * tangents[0],
        )


class Ranks(ExtensionOp):
    """The rank of every entry along the last axis: only integers."""

    family_id = "test-package.ranks.v1"

    def lower_to_standard_ops(self, x):
        return [jnp.argsort(jnp.argsort(x, -1), -1).astype(jnp.int32)]

    def linearize(self, primals, outputs, tangents):
        return [None]


@dataclass(frozen=True)
class CumulativeProduct(ExtensionOp):
    """Running product along one axis; vmap moves the axis instead of adding a batch level."""

    family_id = "test-package.cumulative_product.v1"
    axis: int = 0

    def lower_to_standard_ops(self, x):
        return [jnp.cumprod(x, self.axis)]

    def batched(self, in_axes):
        (batch,) = in_axes
        return CumulativeProduct(self.axis + (batch <= self.axis)), (batch,)

    def linearize(self, primals, outputs, tangents):
        return [outputs[0] * jnp.cumsum(tangents[0] / primals[0], self.axis)]


@dataclasses.dataclass(frozen=True)
class Softplus(ExtensionOp):
    """log(1 + exp(x)), with a lowering that declines unless `standard`, and a host form."""

    family_id = "test-package.softplus.v1"

    standard: bool = False

    def infer_output_meta(self, inputs):
        return inputs

    def lower_to_standard_ops(self, x):
        return [jnp.logaddexp(x, jnp.zeros_like(x))] if self.standard else None

    def eager_execute(self, x):
        return [np.logaddexp(x, np.zeros_like(x))]

    def linearize(self, primals, outputs, tangents):
        return [jax.nn.sigmoid(primals[0]) * tangents[0]]


RUNTIMES = ExtensionRuntimeSet(Kernel(KernelSine.family_id, "cpu", sine_kernel))
ALL_RUNTIMES = RUNTIMES.merge(
    ExtensionRuntimeSet(
        *(
            Kernel(KernelCosine.family_id, platform, lambda op, x: [jnp.cos(x)])
            for platform in ("cpu", "cuda")
        )
    )
)
RULES = ExtensionRuleSet(
    ScaledSquareRule(),
    HostCumulateRule(),
    BilinearRule(),
    MaxAndIndexRule(),
    HostTanhRule(),
    PlacedTanhRule(),
    HostProductRule(),
)
