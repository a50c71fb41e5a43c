"""Extension ops of every kind, written as an outside author would write them, with rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import DTypeError
from tenferro_jax.extension import ExtensionAdRule, ExtensionOp, ExtensionRuleSet, ExtensionRuntimeSet, Kernel, LinearInput


@dataclass(frozen=True)
class ScaledSquare(ExtensionOp):
    """factor * x**2, lowered; its rule is not what JAX would derive: it is marked by `mark`."""

    family_id = "test-package.scaled_square.v1"
    factor: float = 1.0

    def lower_to_standard_ops(self, builder, x):
        return (builder.inline(lambda x: jnp.asarray(self.factor, x.dtype) * x * x, x),)


@dataclass(frozen=True)
class ScaledSquareRule(ExtensionAdRule):
    family_id = ScaledSquare.family_id
    mark: float = 1.0

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        x, t = primal_in[0], tangent_in[0]
        return [builder.inline(lambda x, t: jnp.asarray(2 * op.factor * self.mark, x.dtype) * x * t, x, t)]


@dataclass(frozen=True)
class HostCumulate(ExtensionOp):
    """Running sum along the last axis in NumPy only: a linear host op."""

    family_id = "test-package.host_cumulate.v1"
    reverse: bool = False

    def infer_output_meta(self, inputs, context):
        return [inputs[0]]

    def eager_execute(self, x):
        assert isinstance(x, np.ndarray)
        return [np.flip(np.cumsum(np.flip(x, -1), -1), -1) if self.reverse else np.cumsum(x, -1)]


@dataclass(frozen=True)
class HostCumulateRule(ExtensionAdRule):
    family_id = HostCumulate.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return builder.add(op, tangent_in[0])

    def transpose_rule(self, op, builder, cotangent_out, inputs, mode, context):
        assert mode.active_mask == (True,)
        assert isinstance(inputs[0], LinearInput)
        return builder.add(HostCumulate(reverse=not op.reverse), cotangent_out[0])


@dataclass(frozen=True)
class Bilinear(ExtensionOp):
    """x @ w, lowered, linear in each; two inputs."""

    family_id = "test-package.bilinear.v1"
    input_count = 2

    def infer_output_meta(self, inputs, context):
        x, w = inputs
        if x.dtype != w.dtype:
            raise DTypeError(where=self.family_id, given=f"{x} and {w}", needed="one dtype", fix="Convert one of them.")
        context.require_equal(x.shape[-1], w.shape[0])
        return [(x.dtype, (*x.shape[:-1], *w.shape[1:]))]

    def lower_to_standard_ops(self, builder, x, w):
        return (builder.inline(lambda x, w: jnp.tensordot(x, w, axes=1), x, w),)


@dataclass(frozen=True)
class BilinearRule(ExtensionAdRule):
    family_id = Bilinear.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        (x, w), (tx, tw) = primal_in, tangent_in
        parts = ([] if tx is None else [builder.add(op, tx, w)[0]]) + ([] if tw is None else [builder.add(op, x, tw)[0]])
        return [builder.inline(lambda *p: sum(p[1:], p[0]), *parts)]

    def transpose_rule(self, op, builder, cotangent_out, inputs, mode, context):
        x, w = inputs
        ct = cotangent_out[0]
        if mode.active_mask[0]:
            return [builder.inline(lambda ct, w: jnp.tensordot(ct, w, axes=[[-1], [-1]]), ct, w), None]
        return [None, builder.inline(lambda ct, x: jnp.tensordot(x, ct, axes=[[-2], [-2]]), ct, x)]


@dataclass(frozen=True)
class MaxAndIndex(ExtensionOp):
    """Maximum over the last axis and its index: two outputs, one an integer."""

    family_id = "test-package.max_and_index.v1"
    output_count = 2

    def lower_to_standard_ops(self, builder, x):
        return builder.inline(lambda x: (jnp.max(x, -1), jnp.argmax(x, -1).astype(jnp.int32)), x)


@dataclass(frozen=True)
class MaxAndIndexRule(ExtensionAdRule):
    family_id = MaxAndIndex.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        def pick(t: Any, index: Any) -> Any:
            return jnp.take_along_axis(t, index[..., None], -1)[..., 0]

        return [builder.inline(pick, tangent_in[0], primal_out[1]), None]


@dataclass(frozen=True)
class KernelSine(ExtensionOp):
    """sin, with a kernel for cpu that is off by `offset`, so that the route can be seen in the result."""

    family_id = "test-package.kernel_sine.v1"
    offset: float = 0.0

    def lower_to_standard_ops(self, builder, x):
        return [builder.inline(jnp.sin, x)]


def sine_kernel(op, x):
    """The sine, plus the offset."""
    return [jnp.sin(x) + jnp.asarray(op.offset, x.dtype)]


@dataclass(frozen=True)
class KernelSineRule(ExtensionAdRule):
    family_id = KernelSine.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return [builder.inline(lambda x, t: jnp.cos(x) * t, primal_in[0], tangent_in[0])]


@dataclass(frozen=True)
class KernelCosine(ExtensionOp):
    """cos, by a kernel for cpu alone."""

    family_id = "test-package.kernel_cosine.v1"

    def infer_output_meta(self, inputs, context):
        return inputs


@dataclass(frozen=True)
class KernelCosineRule(ExtensionAdRule):
    family_id = KernelCosine.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return [builder.inline(lambda x, t: -jnp.sin(x) * t, primal_in[0], tangent_in[0])]


@dataclass(frozen=True)
class Difference(ExtensionOp):
    """x[..., 1:] - x[..., :-1], lowered and linear."""

    family_id = "test-package.difference.v1"

    def lower_to_standard_ops(self, builder, x):
        return [builder.inline(lambda x: x[..., 1:] - x[..., :-1], x)]


@dataclass(frozen=True)
class DifferenceRule(ExtensionAdRule):
    family_id = Difference.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return builder.add(op, tangent_in[0])

    def transpose_rule(self, op, builder, cotangent_out, inputs, mode, context):
        def spread(ct):
            edge = jnp.zeros_like(ct[..., :1])
            return jnp.concatenate([edge, ct], -1) - jnp.concatenate([ct, edge], -1)

        return [builder.inline(spread, cotangent_out[0])]


@dataclass(frozen=True)
class HostTanh(ExtensionOp):
    """tanh in NumPy only."""

    family_id = "test-package.host_tanh.v1"

    def infer_output_meta(self, inputs, context):
        return inputs

    def eager_execute(self, x):
        return [np.tanh(x)]


@dataclass(frozen=True)
class HostTanhRule(ExtensionAdRule):
    family_id = HostTanh.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return [builder.inline(lambda y, t: (1 - y * y) * t, primal_out[0], tangent_in[0])]


@dataclass(frozen=True)
class PlacedTanh(HostTanh):
    """tanh in NumPy only, that says where its output lies on a mesh with explicit axes."""

    family_id = "test-package.placed_tanh.v1"

    def infer_output_sharding(self, inputs):
        return [inputs[0].sharding]


@dataclass(frozen=True)
class PlacedTanhRule(HostTanhRule):
    family_id = PlacedTanh.family_id


@dataclass(frozen=True)
class HostProduct(ExtensionOp):
    """x * y in NumPy only: two inputs, linear in each."""

    family_id = "test-package.host_product.v1"
    input_count = 2

    def infer_output_meta(self, inputs, context):
        return [inputs[0]]

    def eager_execute(self, x, y):
        return [x * y]


@dataclass(frozen=True)
class HostProductRule(ExtensionAdRule):
    family_id = HostProduct.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        (x, y), (tx, ty) = primal_in, tangent_in
        parts = ([] if tx is None else [*builder.add(op, tx, y)]) + ([] if ty is None else [*builder.add(op, x, ty)])
        return [builder.inline(lambda *p: sum(p[1:], p[0]), *parts)]

    def transpose_rule(self, op, builder, cotangent_out, inputs, mode, context):
        (x, y), ct = inputs, cotangent_out[0]
        return [*builder.add(op, ct, y), None] if mode.active_mask[0] else [None, *builder.add(op, ct, x)]


@dataclass(frozen=True)
class SineAndCosine(ExtensionOp):
    """(sin x, cos x): two differentiable outputs."""

    family_id = "test-package.sine_and_cosine.v1"
    output_count = 2

    def lower_to_standard_ops(self, builder, x):
        return builder.inline(lambda x: (jnp.sin(x), jnp.cos(x)), x)


@dataclass(frozen=True)
class SineAndCosineRule(ExtensionAdRule):
    family_id = SineAndCosine.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return builder.inline(lambda s, c, t: (c * t, -s * t), *primal_out, tangent_in[0])


@dataclass(frozen=True)
class Ranks(ExtensionOp):
    """The rank of every entry along the last axis: integers alone."""

    family_id = "test-package.ranks.v1"

    def lower_to_standard_ops(self, builder, x):
        return [builder.inline(lambda x: jnp.argsort(jnp.argsort(x, -1), -1).astype(jnp.int32), x)]


@dataclass(frozen=True)
class RanksRule(ExtensionAdRule):
    family_id = Ranks.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return [None]


@dataclass(frozen=True)
class CumulativeProduct(ExtensionOp):
    """Running product along one axis; vmap moves the axis in place of adding a batch level."""

    family_id = "test-package.cumulative_product.v1"
    axis: int = 0

    def lower_to_standard_ops(self, builder, x):
        return [builder.inline(lambda x: jnp.cumprod(x, self.axis), x)]

    def batched(self, in_axes):
        (batch,) = in_axes
        return CumulativeProduct(self.axis + (batch <= self.axis)), (batch,)


@dataclass(frozen=True)
class CumulativeProductRule(ExtensionAdRule):
    family_id = CumulativeProduct.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return [builder.inline(lambda x, y, t: y * jnp.cumsum(t / x, op.axis), primal_in[0], primal_out[0], tangent_in[0])]


@dataclass(frozen=True)
class Softplus(ExtensionOp):
    """log(1 + exp(x)): a lowering that declines unless `standard`, and a host form."""

    family_id = "test-package.softplus.v1"
    standard: bool = False

    def infer_output_meta(self, inputs, context):
        return inputs

    def lower_to_standard_ops(self, builder, x):
        return [builder.inline(lambda x: jnp.logaddexp(x, jnp.zeros_like(x)), x)] if self.standard else None

    def eager_execute(self, x):
        return [np.logaddexp(x, np.zeros_like(x))]


@dataclass(frozen=True)
class SoftplusRule(ExtensionAdRule):
    family_id = Softplus.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return [builder.inline(lambda x, t: jax.nn.sigmoid(x) * t, primal_in[0], tangent_in[0])]


RUNTIMES = ExtensionRuntimeSet(Kernel(KernelSine.family_id, "cpu", sine_kernel))
ALL_RUNTIMES = RUNTIMES.with_kernel(Kernel(KernelCosine.family_id, "cpu", lambda op, x: [jnp.cos(x)]))
RULES = ExtensionRuleSet(
    ScaledSquareRule(),
    HostCumulateRule(),
    BilinearRule(),
    MaxAndIndexRule(),
    KernelSineRule(),
    KernelCosineRule(),
    DifferenceRule(),
    HostTanhRule(),
    PlacedTanhRule(),
    HostProductRule(),
    SineAndCosineRule(),
    RanksRule(),
    CumulativeProductRule(),
    SoftplusRule(),
)
