"""Derivatives of every op through graphs: finite differences judge, in both modes, to second order,
inside the vocabulary.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import trace
from tenferro_jax.errors import Unsupported
from tenferro_jax.graph.graph import bodies
from tenferro_jax.ops import arithmetic
from tenferro_jax.ops.vocabulary import VOCABULARY

from ..helpers import ends_in
from ..sweep import ALL
from .op_cases import CASES

# No derivative with respect to any input.
NOWHERE = {"Zeta", "IgammaGradA", "HouseholderProduct"}
# Differentiable with respect to these arguments alone.
SOME = {"Polygamma": (1,), "RegularizedIncompleteBeta": (2,), "Clamp": (0,)}
# Differentiable with respect to the inputs, not to the initial scalars that follow.
WITH_INITIAL = {"Reduce", "ReduceWindow"}
FORWARD_ONLY = {"While", "RandomGammaGrad", "ReduceWindow"}
# Derivatives that are not those of the function as it stands: by decree, or of the matrix taken as
# symmetric.
OWN_RULE = {"StopGradient", "ReducePrecision", "CustomJvp", "CustomVjp", "Cholesky"}
NOT_UNIQUE = {"ScatterMul"}
# Second derivatives that finite differences of float64 gradients do not judge well, or that JAX
# refuses; see below.
FIRST_ORDER_ONLY = {"Eig", "Polygamma", "Igamma", "Igammac", "ReduceWindow", "CumLogSumExp"}

# JAX picks the elements at the extrema of windows by 20 bits of a float64 there, and warns.
IN_20_BITS_ON_GPUS = {
    "ReduceWindowMax",
    "ReduceWindowMin",
    "SelectAndScatterAdd",
    "SelectAndGatherAdd",
}


def require_float64(op):
    """Finite differences judge nothing else."""
    if type(op).__name__ in IN_20_BITS_ON_GPUS and jax.default_backend() != "cpu":
        pytest.skip("JAX computes this derivative with 20 of the 52 bits there")


def is_inexact(x):
    return jnp.issubdtype(jnp.asarray(x).dtype, np.inexact)


def everywhere(graph):
    for node in graph.nodes:
        yield type(node.op)
        for body in bodies(node.op):
            yield from everywhere(body)


def moving(op, inputs):
    name = type(op).__name__
    chosen = range(len(inputs) // 2) if name in WITH_INITIAL else SOME.get(name, range(len(inputs)))
    return tuple(i for i in chosen if is_inexact(inputs[i]))


def along(inputs, argnums, tangents, step):
    """The inputs, moved."""
    moved = list(inputs)
    for i, t in zip(argnums, tangents):
        moved[i] = inputs[i] + step * t
    return moved


def direction(rng, x):
    t = rng.normal(size=np.shape(x))
    return t + 1j * rng.normal(size=np.shape(x)) if np.iscomplexobj(x) else t


DIFFERENTIABLE = [
    (op, inputs)
    for op, inputs, _ in CASES
    if type(op).__name__
    not in NOWHERE | NOT_UNIQUE | {"NextAfter"}  # refused by some JAX versions, zero in others
    and moving(op, inputs)
    and any(jnp.issubdtype(m.dtype, np.inexact) for m in trace(op.apply, *inputs).output_metas)
    and op != arithmetic.Round(to_even=False)  # its case is all jumps
    and not (
        type(op).__name__ == "Pow" and inputs[1].dtype == np.int32
    )  # strict promotion refuses JAX's own rule
]
ids = [f"{i} {type(c[0]).__name__}" for i, c in enumerate(DIFFERENTIABLE)]


@pytest.mark.few(28)
@pytest.mark.parametrize(("op", "inputs"), DIFFERENTIABLE, ids=ids)
def test_first_order(op, inputs):
    require_float64(op)
    rng = np.random.default_rng(0)
    name, graph, argnums = type(op).__name__, trace(op.apply, *inputs), moving(op, inputs)
    tangents = [direction(rng, inputs[i]) for i in argnums]
    floating = [jnp.issubdtype(m.dtype, np.inexact) for m in graph.output_metas]
    cotangents = [
        direction(rng, np.empty(m.shape, m.dtype)) if f else None
        for m, f in zip(graph.output_metas, floating)
    ]
    forward = tj.jvp(graph, argnums)
    backward = None
    if name in FORWARD_ONLY:
        ends_in(
            lambda: tj.vjp(graph, argnums),
            Unsupported,
            r"vjp of a graph: given .*needed ops that are differentiable in this mode",
        )
    else:
        backward = tj.vjp(graph, argnums)
    assert {op for derived in (forward, backward) if derived for op in everywhere(derived)} <= set(
        VOCABULARY
    )

    @jax.jit
    def everything(ahead, behind, inputs, tangents, cotangents):
        values = [
            [out for out, f in zip(graph(*moved), floating) if f] for moved in (ahead, behind)
        ]
        pushed = jax.tree.leaves(forward.to_jax()(*inputs, *tangents)[1])
        pulled = (
            jax.tree.leaves(
                backward.to_jax()(*inputs, jax.tree.unflatten(graph.out_tree, cotangents))[1]
            )
            if backward
            else None
        )
        return values, pushed, pulled

    moved = [along(inputs, argnums, tangents, step) for step in (1e-6, -1e-6)]
    values, pushed, pulled = jax.tree.map(
        np.asarray, everything(*moved, inputs, tangents, cotangents)
    )
    for got, want in zip(pushed, [(a - b) / 2e-6 for a, b in zip(*values)], strict=True):
        assert got.dtype == want.dtype
        if name not in OWN_RULE:
            np.testing.assert_allclose(
                got, want, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(want).max())
            )
    if backward and name not in OWN_RULE - {"CustomJvp", "Cholesky"}:
        left = sum(
            (c * d).sum().real for c, d in zip(filter(lambda c: c is not None, cotangents), pushed)
        )
        right = sum((f * t).sum().real for f, t in zip(pulled, tangents))
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


SECOND = [
    c
    for c in DIFFERENTIABLE
    if type(c[0]).__name__ not in FORWARD_ONLY | OWN_RULE | FIRST_ORDER_ONLY
]
SECOND = SECOND if ALL else random.Random(0).sample(SECOND, 40)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("op", "inputs"), SECOND, ids=[f"{i} {type(c[0]).__name__}" for i, c in enumerate(SECOND)]
)
def test_second_order(op, inputs):
    require_float64(op)
    rng = np.random.default_rng(1)
    argnums = moving(op, inputs)

    def scalar(*xs):
        total = 0.0
        for out in jax.tree.leaves(op.apply(*xs)):
            if jnp.issubdtype(out.dtype, np.inexact):
                parts = [jnp.real(out), jnp.imag(out)] if jnp.iscomplexobj(out) else [out]
                total += sum(
                    (p * p * np.cos(np.arange(p.size, dtype=float)).reshape(p.shape)).sum()
                    for p in parts
                )
        return total

    gradient = tj.grad(trace(scalar, *inputs), argnums)
    v = [direction(rng, inputs[i]) for i in argnums]

    def directional(*xs):
        return sum(jnp.real((g * d).sum()) for g, d in zip(gradient.to_jax()(*xs), v))

    second = tj.grad(trace(directional, *inputs), argnums)
    assert set(everywhere(second)) <= set(VOCABULARY)
    t = [direction(rng, inputs[i]) for i in argnums]
    moved = [along(inputs, argnums, t, step) for step in (1e-5, -1e-5)]
    run = jax.jit(
        lambda ahead, behind, xs: (directional(*ahead), directional(*behind), second.to_jax()(*xs))
    )
    ahead, behind, found = jax.tree.map(np.asarray, run(*moved, inputs))
    np.testing.assert_allclose(
        sum(np.real((g * d).sum()) for g, d in zip(found, t)),
        (ahead - behind) / 2e-5,
        rtol=2e-5,
        atol=2e-4,
    )


@pytest.mark.parametrize("name", sorted(NOWHERE | NOT_UNIQUE | WITH_INITIAL | set(SOME)))
def test_what_has_no_derivative_is_refused(name):
    op, inputs = next((op, inputs) for op, inputs, _ in CASES if type(op).__name__ == name)
    graph = trace(op.apply, *inputs)
    argnums = tuple(
        i
        for i in range(len(inputs))
        if is_inexact(inputs[i])
        and i not in SOME.get(name, moving(op, inputs) if name in WITH_INITIAL else ())
    )
    for derive in (tj.jvp, tj.vjp):
        ends_in(
            lambda: derive(graph, argnums),
            Unsupported,
            rf"{derive.__name__} of a graph: given .*docs/spec/ops\.md",
        )


def test_forward_mode_of_a_reverse_rule_is_its_transpose():
    """The value is twice the input, and the rule says -1."""
    op, inputs = next((op, inputs) for op, inputs, _ in CASES if type(op).__name__ == "CustomVjp")
    assert list(map(float, tj.jvp(trace(op.apply, *inputs))(*inputs, 1.0))) == [6, -1]
