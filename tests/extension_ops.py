"""Extension ops of every kind, written as an outside author would write them, with rules."""

from __future__ import annotations

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

from .helpers import made

ScaledSquare = made(
    "ScaledSquare",
    fields={"factor": float},
    family_id="test-package.scaled_square.v1",
    factor=1.0,
    lower_to_standard_ops=lambda self, x: (jnp.asarray(self.factor, x.dtype) * x * x,),
    __doc__="""factor * x**2, lowered; its rule differs from JAX's derivative by `mark`.""",
)


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


MaxAndIndex = made(
    "MaxAndIndex",
    family_id="test-package.max_and_index.v1",
    output_count=2,
    lower_to_standard_ops=lambda self, x: (jnp.max(x, -1), jnp.argmax(x, -1).astype(jnp.int32)),
    __doc__="""Maximum over the last axis and its index: two outputs, one of them an integer.""",
)


@dataclass(frozen=True)
class MaxAndIndexRule(ExtensionAdRule):
    family_id = MaxAndIndex.family_id

    def linearize(self, op, primals, outputs, tangents):
        def pick(t: Any, index: Any) -> Any:
            return jnp.take_along_axis(t, index[..., None], -1)[..., 0]

        return [pick(tangents[0], outputs[1]), None]


KernelSine = made(
    "KernelSine",
    fields={"offset": float},
    family_id="test-package.kernel_sine.v1",
    offset=0.0,
    lower_to_standard_ops=lambda self, x: [jnp.sin(x)],
    linearize=lambda self, primals, outputs, tangents: [jnp.cos(primals[0]) * tangents[0]],
    __doc__="""sin, with a kernel for cpu that adds `offset`, so that the result shows the route.""",
)


def sine_kernel(op, x):
    """The sine, plus the offset."""
    return [jnp.sin(x) + jnp.asarray(op.offset, x.dtype)]


KernelCosine = made(
    "KernelCosine",
    family_id="test-package.kernel_cosine.v1",
    infer_output_meta=lambda self, inputs: inputs,
    linearize=lambda self, primals, outputs, tangents: [-jnp.sin(primals[0]) * tangents[0]],
    __doc__="""cos, with only kernels.""",
)


Difference = made(
    "Difference",
    family_id="test-package.difference.v1",
    lower_to_standard_ops=lambda self, x: [x[..., 1:] - x[..., :-1]],
    linearize=lambda self, primals, outputs, tangents: apply(self, tangents[0]),
    transpose_rule=lambda self, cotangents, inputs: [
        -jnp.diff(cotangents[0], prepend=0.0, append=0.0)
    ],
    __doc__="""x[..., 1:] - x[..., :-1], lowered and linear.""",
)


HostTanh = made(
    "HostTanh",
    family_id="test-package.host_tanh.v1",
    infer_output_meta=lambda self, inputs: inputs,
    eager_execute=lambda self, x: [np.tanh(x)],
    __doc__="""tanh in NumPy only.""",
)


HostTanhRule = made(
    "HostTanhRule",
    ExtensionAdRule,
    family_id=HostTanh.family_id,
    linearize=lambda self, op, primals, outputs, tangents: [
        (1 - outputs[0] * outputs[0]) * tangents[0]
    ],
)


PlacedTanh = made(
    "PlacedTanh",
    HostTanh,
    family_id="test-package.placed_tanh.v1",
    sharding_rule=lambda self, inputs: ShardingRule("... -> ..."),
    __doc__="""tanh in NumPy only, with a sharding rule.""",
)


@dataclass(frozen=True)
class PlacedTanhRule(HostTanhRule):
    family_id = PlacedTanh.family_id


HostProduct = made(
    "HostProduct",
    family_id="test-package.host_product.v1",
    input_count=2,
    infer_output_meta=lambda self, inputs: [inputs[0]],
    eager_execute=lambda self, x, y: [x * y],
    __doc__="""x * y in NumPy only: two inputs, linear in each.""",
)


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


SineAndCosine = made(
    "SineAndCosine",
    family_id="test-package.sine_and_cosine.v1",
    output_count=2,
    lower_to_standard_ops=lambda self, x: (jnp.sin(x), jnp.cos(x)),
    linearize=lambda self, primals, outputs, tangents: (
        outputs[1] * tangents[0],
        -outputs[0] * tangents[0],
    ),
    __doc__="""(sin x, cos x): two differentiable outputs.""",
)


Ranks = made(
    "Ranks",
    family_id="test-package.ranks.v1",
    lower_to_standard_ops=lambda self, x: [jnp.argsort(jnp.argsort(x, -1), -1).astype(jnp.int32)],
    linearize=lambda self, primals, outputs, tangents: [None],
    __doc__="""The rank of every entry along the last axis: only integers.""",
)


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


Softplus = made(
    "Softplus",
    fields={"standard": bool},
    family_id="test-package.softplus.v1",
    standard=False,
    infer_output_meta=lambda self, inputs: inputs,
    lower_to_standard_ops=lambda self, x: (
        [jnp.logaddexp(x, jnp.zeros_like(x))] if self.standard else None
    ),
    eager_execute=lambda self, x: [np.logaddexp(x, np.zeros_like(x))],
    linearize=lambda self, primals, outputs, tangents: [jax.nn.sigmoid(primals[0]) * tangents[0]],
    __doc__="""log(1 + exp(x)), with a lowering that declines unless `standard`, and a host form.""",
)


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
