"""Hypothesis: inside jit an extension costs nothing, and 1,000 payloads of a family make one
primitive and one trace each.

python -m benchmarks.extension_in_jit
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax import TensorMeta
from tenferro_jax.extension import ExtensionOp, apply, extension_op

from .measure import alternating, canonical_hlo, header

BODIES: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: jnp.sin(x) * x + jnp.exp(-x),
    "matmul": lambda x: jnp.tanh(x @ x.T) @ x,
    "reduction": lambda x: x - jax.nn.logsumexp(x, axis=-1, keepdims=True),
    "loop": lambda x: jax.lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)[1],
}
"""What the extension lowers to, and what the plain function does."""


@extension_op(package="benchmarks", name="body", version=1)
class Body(ExtensionOp):
    """One of BODIES."""

    name: str

    def lower_to_standard_ops(self, *inputs: Any) -> Sequence[Any]:
        """The body."""
        return (BODIES[self.name](*inputs),)

    def linearize(
        self, primals: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any]
    ) -> Sequence[Any]:
        """The derivative of the body, as JAX has it."""
        return (jax.jvp(BODIES[self.name], (primals[0],), (tangents[0],))[1],)


LOWERINGS: list[float] = []


@extension_op(package="benchmarks", name="scale", version=1)
class Scale(ExtensionOp):
    """factor * x; notes each time its lowering is traced."""

    factor: float

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        """As the input."""
        return inputs

    def lower_to_standard_ops(self, *inputs: Any) -> Sequence[Any]:
        """The product."""
        LOWERINGS.append(self.factor)
        (x,) = inputs
        return (jnp.asarray(self.factor, x.dtype) * x,)


def programs(size: int, repeats: int) -> dict[str, tuple[bool, float]]:
    """Whether the optimised programs are equal, and the ratio of the lowest times, for each body
    and transform.
    """
    x = jnp.linspace(-1.0, 1.0, size * size).reshape(size, size)
    found = {}
    for name, body in BODIES.items():

        def extension(x: Any, name: str = name) -> Any:
            return apply(Body(name), x)[0]

        transforms: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
            "value": lambda f: f,
            "gradient": lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
            "vmap": lambda f: jax.vmap(f, in_axes=2, out_axes=2),
        }
        for kind, transform in transforms.items():
            operand = jnp.stack([x, 2 * x], axis=2) if kind == "vmap" else x
            ours, plain = (
                jax.jit(transform(f)).lower(operand).compile() for f in (extension, body)
            )
            equal = canonical_hlo(ours.as_text()) == canonical_hlo(plain.as_text())
            (_, low), (_, peer) = alternating(
                [lambda c=ours, o=operand: c(o), lambda c=plain, o=operand: c(o)], repeats
            )
            found[f"{name}, {kind}"] = equal, low / peer
    return found


def payloads(count: int) -> tuple[int, int, int]:
    """(primitives of the family, lowerings traced in a first round, in a second round with equal
    new ops).
    """
    x = jnp.ones(3)
    eqns = [
        eqn
        for k in range(count)
        for eqn in jax.make_jaxpr(lambda x, k=k: apply(Scale(float(k)), x))(x).eqns
    ]
    rounds = []
    for _ in range(2):
        LOWERINGS.clear()
        start = time.perf_counter()
        for k in range(count):
            out = apply(Scale(float(k)), x)
        jax.block_until_ready(out)
        rounds.append((len(LOWERINGS), (time.perf_counter() - start) / count))
    (first, slow), (second, fast) = rounds
    primitives = len({id(eqn.primitive) for eqn in eqns})
    print(
        f"{count} payloads: {primitives} primitive; first calls {slow * 1e3:.2f} ms each, {first} "
        f"lowerings;",
        end=" ",
    )
    print(f"equal new ops {fast * 1e6:.1f} us each, {second} lowerings")
    return primitives, first, second


def main(
    size: int = 256, repeats: int = 30, count: int = 1000
) -> tuple[dict[str, tuple[bool, float]], tuple[int, int, int]]:
    """Print both; returns what they found."""
    print(header(__doc__))
    found = programs(size, repeats)
    print(f"{'body':>24} | optimised HLO equal | lowest time / plain function, {size} x {size}")
    for name, (equal, ratio) in found.items():
        print(f"{name:>24} | {equal!s:>19} | {ratio:.2f}")
    return found, payloads(count)


if __name__ == "__main__":
    main()
