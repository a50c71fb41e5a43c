"""Extensions inside scan, while, cond and switch: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .matrix import agree, agree_numerically, sweep


def halves(xs, k):
    """The inputs scaled by a traced number: what makes each turn of a loop another call."""
    return [x * (1 + k / 2) for x in xs]


@pytest.mark.clause("X13.3")
@sweep("scan")
def test_scan(case):
    batch = case.batch(3)
    _, got = jax.lax.scan(lambda carry, xs: (carry, case(*xs)), 0, tuple(map(jnp.asarray, batch)))
    agree(got, case.stacked(*batch))


@pytest.mark.clause("X13.3")
@sweep("grad of scan")
def test_grad_of_scan(case):
    def loop(*xs):
        start = jax.tree.map(jnp.zeros_like, jax.eval_shape(case.scalar, *xs))
        return jax.lax.scan(
            lambda total, k: (total + case.scalar(*halves(xs, k)), None),
            start,
            jnp.array([0.0, 1.0]),
        )[0]

    want = [
        g + 1.5 * h
        for g, h in zip(case.gradients(*case.inputs), case.gradients(*halves(case.inputs, 1)))
    ]
    agree_numerically(jax.jit(jax.grad(loop, case.argnums))(*case.inputs), want)


def looped(case):
    """The sum of the outputs over turns 0 and 1 of a loop whose end is not known when it
    is traced.
    """

    def loop(count, *xs):
        def body(state):
            k, sums = state
            return k + 1, [s + out for s, out in zip(sums, case(*halves(xs, k)))]

        start = jax.tree.map(jnp.zeros_like, list(jax.eval_shape(case, *xs)))
        return jax.lax.while_loop(lambda state: state[0] < count, body, (0.0, start))[1]

    return loop


@pytest.mark.clause("X13.3")
@sweep("while")
def test_while(case):
    want = [a + b for a, b in zip(case.oracle(*case.inputs), case.oracle(*halves(case.inputs, 1)))]
    agree(jax.jit(looped(case))(2.0, *case.inputs), want)


@pytest.mark.clause("X13.3")
@sweep("jvp of while")
def test_jvp_of_while(case):
    def ends(sign):
        moved = [x + sign * 1e-6 * np.cos(x) for x in case.inputs]
        return [a + b for a, b in zip(case.oracle(*moved), case.oracle(*halves(moved, 1)))]

    _, got = jax.jvp(
        lambda *xs: looped(case)(2.0, *xs), case.inputs, tuple(np.cos(x) for x in case.inputs)
    )
    for g, ahead, behind in zip(got, ends(1), ends(-1)):
        if ahead.dtype.kind == "f":
            agree_numerically([g], [(ahead - behind) / 2e-6])
        else:
            assert g.dtype == jax.dtypes.float0


@pytest.mark.cpu
@pytest.mark.few(6)
@sweep("grad of while")
def test_grad_of_while(case):
    jax.grad(lambda *xs: looped(case)(2.0, *xs)[0].sum(), case.argnums)(*case.inputs)


@pytest.mark.clause("X13.3")
@sweep("cond")
def test_cond(case):
    branch = jax.jit(
        lambda flag, *xs: jax.lax.cond(flag, case, lambda *xs: case(*halves(xs, 1)), *xs)
    )
    agree(branch(True, *case.inputs), case.oracle(*case.inputs))
    agree(branch(False, *case.inputs), case.oracle(*halves(case.inputs, 1)))


@pytest.mark.clause("X13.3")
@sweep("switch")
def test_switch(case):
    branches = [lambda *xs, k=k: case(*halves(xs, k)) for k in range(3)]
    chosen = jax.jit(lambda k, *xs: jax.lax.switch(k, branches, *xs))
    for k in range(3):
        agree(chosen(k, *case.inputs), case.oracle(*halves(case.inputs, k)))


@sweep("vmap of cond")
def test_vmap_of_cond(case):
    """A batch of flags makes JAX run both branches and select."""
    batch = case.batch(2)
    fn = jax.vmap(lambda flag, *xs: jax.lax.cond(flag, case, lambda *xs: case(*halves(xs, 1)), *xs))
    by_element = [np.stack([b[0], 1.5 * b[1]]) for b in batch]
    agree(jax.jit(fn)(np.array([True, False]), *batch), case.stacked(*by_element))


@pytest.mark.clause("X13.3")
@sweep("grad of cond, of switch")
def test_grad_of_cond_and_switch(case):
    branches = [lambda *xs, k=k: case.scalar(*halves(xs, k)) for k in range(2)]
    grad = jax.jit(
        jax.grad(lambda *xs_k: jax.lax.switch(xs_k[-1], branches, *xs_k[:-1]), case.argnums)
    )
    for k in range(2):
        want = [(1 + k / 2) * g for g in case.gradients(*halves(case.inputs, k))]
        agree_numerically(grad(*case.inputs, k), want)
        cond = jax.grad(lambda *xs: jax.lax.cond(xs[-1], *branches, *xs[:-1]), case.argnums)
        if k == 0:
            agree_numerically(cond(*case.inputs, True), want)
