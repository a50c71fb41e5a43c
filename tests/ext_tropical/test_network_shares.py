"""Laws of networks of tables under log_sum_exp, on seeded networks judged by NumPy."""

import functools
import math

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import Network, log_sum_exp, plan_tropical_einsum, tropical_einsum
from ext_tropical.network.log_derivatives import NetworkCurvature, NetworkShares
from ext_tropical.network.plan_text import text_of
from ext_tropical.network.value import TropicalNetwork
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from .small_networks import TEMPERATURE, network, reals, shares, soft

SOFT = functools.partial(tropical_einsum, semiring=log_sum_exp(TEMPERATURE))


def test_soft_values_of_16_bits():
    equation, shapes = network(1)
    operands = [x.astype(jnp.bfloat16) for x in reals(shapes, 1)]
    exact = [x.astype(np.float64) for x in operands]
    value, pull = jax.vjp(functools.partial(SOFT, equation), *operands)
    assert value.dtype == jnp.bfloat16
    np.testing.assert_allclose(value.astype(float), soft(equation, *exact), rtol=0.1, atol=0.1)
    for got, share in zip(pull(jnp.ones_like(value)), shares(equation, *exact), strict=True):
        np.testing.assert_allclose(got.astype(float), share, rtol=0.1, atol=0.1)


LARGE = {  # plans of one large step; operands and result have orders of their own
    "matrices": ("bm,bn->mn", (50, 40), (50, 60)),
    "turned": ("mb,nb->nm", (40, 50), (60, 50)),
    "batched": ("kmb,bkn->nkm", (3, 33, 20), (20, 3, 17)),
    "two contracted": ("bcm,cbn->mn", (8, 9, 20), (9, 8, 30)),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", LARGE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_soft_values_and_shares_of_large_steps(form, dtype):
    """Entries so far apart that products of exponentials underflow are counted in full."""
    equation, *shapes = LARGE[form]
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    for x in tables:
        x.flat[rng.choice(x.size, x.size // 10)] = -np.inf
        x.flat[rng.choice(x.size, 5)] = 500
    op = TropicalNetwork(log_sum_exp(TEMPERATURE), f"{equation}|0,1:{equation.split('->')[1]}")
    error = 40 * np.finfo(dtype).eps
    exact = [x.astype(np.float64) for x in tables]
    with np.errstate(under="ignore"):
        want, slopes = soft(equation, *exact), shares(equation, *exact)
    tables = [jnp.asarray(x) for x in tables]
    value, pull = jax.vjp(lambda *xs: apply(op, *xs)[0], *tables)
    np.testing.assert_allclose(value, want, rtol=error)
    cotangents = pull(jnp.ones_like(value))
    for got, slope in zip(cotangents, slopes, strict=True):
        np.testing.assert_allclose(got, slope, rtol=2000 * error, atol=error)
    along = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
    _, moved = jax.jvp(lambda *xs: apply(op, *xs)[0], tables, along)
    total = sum((x * np.asarray(y)).sum() for x, y in zip(slopes, along, strict=True))
    np.testing.assert_allclose(np.asarray(moved).sum(dtype=float), total, rtol=2000 * error)


PLAN = "ab,bc,c->a|1,2:b|0,3:a"


@pytest.mark.parametrize("route", [RouteKind.KERNEL, RouteKind.LOWERING])
def test_a_curvature_is_the_second_derivative_of_all_candidates(route):
    """By JAX's own derivatives of one sum over all candidates; entries of -inf have no share."""
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (3, 4), (4,)]
    tables, along, others = (
        [jnp.asarray(rng.normal(size=shape)) for shape in shapes] for _ in range(3)
    )
    tables[1] = tables[1].at[1, 2].set(-50.0)
    cotangent = jnp.asarray(rng.normal(size=2))

    def dense(x, y, z):
        scores = (x[:, :, None] + y[None] + z[None, None]) / TEMPERATURE
        return TEMPERATURE * jax.scipy.special.logsumexp(scores, axis=(1, 2))

    for active in ((0, 1, 2), (2,)):

        def some(*moved, active=active):
            every = list(tables)
            for i, x in zip(active, moved, strict=True):
                every[i] = x
            return dense(*every)

        def pulled(*moved, some=some):
            return jax.vjp(some, *moved)[1](cotangent)

        def pushed(*moved, some=some, active=active):
            return jax.jvp(some, moved, tuple(others[i] for i in active))[1]

        at, t, u = (tuple(x[i] for i in active) for x in (tables, along, others))
        run = functools.partial(apply, runtimes=NetworkCurvature.runtimes.only(route))
        close = functools.partial(chex.assert_trees_all_close, rtol=1e-12, atol=1e-13)
        given = {1: tables[1].at[1, 2].set(-jnp.inf)} if 1 not in active else {}
        every = [given.get(i, x) for i, x in enumerate(tables)]
        op = NetworkCurvature(TEMPERATURE, PLAN, active, True)
        close(run(op, *every, cotangent, *t), jax.jvp(pulled, at, t)[1])
        op = NetworkCurvature(TEMPERATURE, PLAN, active)
        close(run(op, *every, *u, *t)[0], jax.jvp(pushed, at, t)[1])


def test_gradients_of_marginals_and_entropy_are_calls_of_the_library():
    """No step is an op of its own."""
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(19, 3, 3))
    names = {(i, i + 1): x for i, x in enumerate(scores)}
    net = Network.from_factors(names)

    def question(net):
        return net.entropy() + (net.marginals()[4] * jnp.arange(3.0)).sum()

    families = {route.family_id.split(".")[1] for route in routes(jax.grad(question), net)}
    assert "einsum" not in families
    assert "log_einsum" not in families
    assert "network_curvature" in families


def test_soft_rows_of_large_steps_that_are_no_numbers():
    """A row of -inf is -inf and has no share, one with NaN or inf is that; the others are as they
    are without them.
    """
    op = TropicalNetwork(log_sum_exp(), "bm,bn->mn|0,1:mn")
    clean = np.random.default_rng(0).normal(size=(2, 40, 40)).astype(np.float32)
    odd = clean.copy()
    odd[0, :, 1], odd[0, 3, 2], odd[0, 5, 3] = -np.inf, np.nan, np.inf

    def solved(a, b):
        value, pull = jax.vjp(lambda *xs: apply(op, *xs)[0], *map(jnp.asarray, (a, b)))
        return value, *pull(jnp.ones_like(value).at[1:4].set(0).at[1].set(np.inf))

    value, of_rows, _ = map(np.asarray, solved(*odd))
    want = solved(*clean)
    others = np.r_[0, 4:40]
    for row, expected in ((1, -np.inf), (2, np.nan), (3, np.inf)):
        np.testing.assert_array_equal(value[row], np.full(40, expected, np.float32))
    np.testing.assert_array_equal(value[others], np.asarray(want[0])[others])
    np.testing.assert_allclose(of_rows[:, others], np.asarray(want[1])[:, others], rtol=1e-5)
    assert (of_rows[:, 1] == 0).all()


CHAINS = {  # equation, shapes
    "chain": ("a,ab,b,bc,c,cd->", [(5,), (5, 6), (6,), (6, 7), (7,), (7, 4)]),
    "diagonal": ("aab,bc,c->", [(3, 3, 4), (4, 5), (5,)]),
    "matrices": ("ab,bc,cd->", [(30, 20), (20, 25), (25, 30)]),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("route", [RouteKind.KERNEL, RouteKind.LOWERING])
@pytest.mark.parametrize("name", CHAINS)
def test_shares_sum_to_1_and_bends_to_0_whatever_is_added_to_all_scores(name, route, dtype):
    """Within 4 eps a step: reverse, forward, and how the shares move along such a shift."""
    equation, shapes = CHAINS[name]
    text = text_of(plan_tropical_einsum(equation, *shapes, semiring=log_sum_exp()).plan)
    error, every = 4 * np.finfo(dtype).eps * text.count("|"), tuple(range(len(shapes)))
    run = functools.partial(apply, runtimes=NetworkShares.runtimes.only(route))
    bend = functools.partial(apply, runtimes=NetworkCurvature.runtimes.only(route))
    one, close = jnp.ones((), dtype), functools.partial(np.testing.assert_allclose, rtol=0)
    for shift in (0, 1e2, 1e4, 1e5, 1e6):
        tables = [jnp.asarray(x + shift / len(shapes), dtype) for x in reals(shapes, 3)]
        ones = list(map(jnp.ones_like, tables))
        found = run(NetworkShares(TEMPERATURE, text, every, True), *tables, one)
        for x in found:
            close(math.fsum(np.asarray(x, float).flat), 1, atol=error)
        (moved,) = run(NetworkShares(TEMPERATURE, text, every[:1]), *tables, ones[0])
        close(moved, 1, atol=error)
        bends = bend(NetworkCurvature(TEMPERATURE, text, every, True), *tables, one, *ones)
        for x, share in zip(bends, found, strict=True):
            close(x, 0, atol=error * len(shapes) / TEMPERATURE * float(share.max()))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shares_of_slices_and_of_a_batch_whatever_is_added_to_all_scores(dtype):
    equation, shapes = "ij,jk,kl->", [(60, 80), (80, 70), (70, 60)]
    sliced = functools.partial(
        tropical_einsum, equation, semiring=log_sum_exp(TEMPERATURE), memory_limit=150_000
    )
    small = functools.partial(tropical_einsum, "ij,jk,k->i", semiring=log_sum_exp(TEMPERATURE))
    shares, batch = jax.jit(jax.grad(sliced)), jax.jit(jax.vmap(jax.jacrev(small)))
    error = 4 * np.finfo(dtype).eps
    for shift in (0, 1e2, 1e5, 1e6):
        tables = [jnp.asarray(x + shift, dtype) for x in reals(shapes, 4)]
        total = math.fsum(np.asarray(shares(*tables), float).flat)
        np.testing.assert_allclose(total, 1, rtol=0, atol=2 * error)
        many = [jnp.asarray(x + shift, dtype) for x in reals([(3, 2, 4), (3, 4, 5), (3, 5)], 5)]
        rows = np.asarray(batch(*many), float).sum((2, 3))
        np.testing.assert_allclose(rows, 1, rtol=0, atol=2 * error)


@pytest.mark.slow
def test_posteriors_of_a_long_chain_are_as_good_as_those_of_a_plain_scan():
    """In float32, by those of a scan in float64."""
    length, states = 5000, 50
    rng = np.random.default_rng(0)
    start, *steps = np.log(rng.dirichlet(np.ones(states), 1 + states))
    seen = rng.normal(size=(length, states)) * 2 - 3
    names = list(map(opt_einsum.get_symbol, range(length)))
    terms = [names[0], *names, *map("".join, itertools.pairwise(names))]
    tables = [np.asarray(x, np.float32) for x in (start, steps, seen)]

    def posteriors(start, steps, seen):
        def turn(before, own):
            return jax.nn.logsumexp(before[:, None] + steps, 0) + own, None

        def total(seen):
            return jax.nn.logsumexp(jax.lax.scan(turn, start + seen[0], seen[1:])[0])

        return jax.jit(jax.grad(total))(seen)

    with jax.enable_x64(True):
        want = posteriors(*(jnp.asarray(x, float) for x in tables))
    plain = posteriors(*tables)
    net = Network(f"{','.join(terms)}->", tables[0], *tables[2], *[tables[1]] * (length - 1))
    marginals = net.marginals()
    ours = np.stack([marginals[name] for name in names])
    found = [np.asarray(x, float) for x in (ours, plain)]
    missed = [(abs(x.sum(1) - 1).max(), abs(x - np.asarray(want)).max()) for x in found]
    assert all(a <= 2 * b for a, b in zip(*missed, strict=True))
