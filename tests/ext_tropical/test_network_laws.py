"""Laws of networks of tables, on seeded networks judged by NumPy."""

import dataclasses
import functools
import math

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ext_tropical import (
    Network,
    best_assignment,
    log_sum_exp,
    plan_tropical_einsum,
    sum_product,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from ext_tropical.networks.log_derivatives import NetworkCurvature, NetworkShares, with_others
from ext_tropical.networks.plan_text import text_of
from ext_tropical.networks.value import TropicalNetwork
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..sweep import in_turn
from ..sweep import times as cases
from .small_networks import (
    TEMPERATURE,
    brute,
    check,
    entries,
    network,
    reals,
    scattered,
    shares,
    soft,
    tables,
)


def solved(name, equation, operands, weights, **options):
    """The best assignment, and the gradient of the weighted sum of all cells: one program."""

    @jax.jit
    def solve(*xs):
        best = best_assignment(equation, *xs, semiring=name, **options)
        result = tropical_einsum_with_argmax(equation, *xs, semiring=name, **options)
        return best, result.coordinates(), jax.grad(total, tuple(range(len(xs))))(*xs)

    def total(*xs):
        return (weights * tropical_einsum(equation, *xs, semiring=name, **options)).sum()

    return solve(*operands)


def weights_of(equation, operands):
    shape = brute("max_plus", equation, *operands).shape
    return np.random.default_rng(1).integers(1, 9, shape).astype(float)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "seed"), in_turn(["max_plus", "min_plus", "max_mul", "min_max"], range(cases(4)), 2)
)
def test_values_first_winners_and_gradients(name, seed):
    """The gradient of an entry is what the assignments that use it are worth to the entry."""
    equation, shapes = network(seed)
    operands = tables(name, shapes, seed)
    if name == "min_max":  # one bottleneck: all entries differ
        numbers = iter(np.random.default_rng(seed).permutation(sum(map(np.size, operands))))
        operands = [np.fromiter(numbers, float, x.size).reshape(x.shape) for x in operands]
    weights = weights_of(equation, operands)
    best, coordinates, gradients = solved(name, equation, operands, weights)
    places = check(name, equation, operands, best)
    chex.assert_trees_all_equal(coordinates, best.labels)
    inputs, _ = equation.split("->")
    used = entries(inputs, operands, places)
    amounts = [weights] * len(used)
    if name == "max_mul":
        amounts = [
            weights * functools.reduce(np.multiply, used[:i] + used[i + 1 :], 1.0)
            for i in range(len(used))
        ]
    if name == "min_max":
        amounts = [weights * (x == np.asarray(best.value)) for x in used]
    want = scattered(inputs, operands, places, amounts)
    chex.assert_trees_all_close(list(gradients), want, rtol=1e-12)


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_of_nothing_and_of_one(size):
    shapes = {"a": 2, "b": size, "c": 2, "d": 2}
    equation = "ab,bc,cd,ad->a"
    operands = [np.ones([shapes[k] for k in term]) for term in equation[:-3].split(",")]
    best, _, gradients = solved("max_plus", equation, operands, np.ones(2))
    if size:
        check("max_plus", equation, operands, best)
    else:
        assert best.value.tolist() == [-np.inf] * 2
        assert not best.feasible.any()
        assert {tuple(index.tolist()) for index in best.labels.values()} == {(-1, -1)}
        assert not any(np.asarray(x).any() for x in gradients)


# --- under log_sum_exp ----------------------------------------------------------------------------

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


PLAN = "ab,bc,c->a|1,2:b|0,3:a"


@pytest.mark.parametrize(
    ("route", "active"),
    [
        (RouteKind.KERNEL, (0, 1, 2)),
        (RouteKind.LOWERING, (2,)),
        pytest.param(RouteKind.LOWERING, (0, 1, 2), marks=pytest.mark.slow),
    ],
)
def test_a_curvature_is_the_second_derivative_of_all_candidates(route, active):
    """By JAX's own derivatives of one sum over all candidates; entries of -inf have no share."""
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (3, 4), (4,)]
    tables, along, others = ([rng.normal(size=shape) for shape in shapes] for _ in range(3))
    cotangent = rng.normal(size=2)
    tables[1][1, 2] = -50.0
    t, u = ([x[i] for i in active] for x in (along, others))
    run = functools.partial(apply, runtimes=NetworkCurvature.runtimes.only(route))

    def dense(*moved):
        x, y, z = with_others(tables, active, moved)
        scores = (x[:, :, None] + y[None] + z[None, None]) / TEMPERATURE
        return TEMPERATURE * jax.scipy.special.logsumexp(scores, axis=(1, 2))

    @jax.jit
    def both():
        at = [jnp.asarray(tables[i]) for i in active]
        pulled = jax.jvp(lambda *x: jax.vjp(dense, *x)[1](cotangent), at, t)[1]
        pushed = jax.jvp(lambda *x: jax.jvp(dense, x, tuple(u))[1], at, t)[1]
        every = [*tables]
        if 1 not in active:
            every[1] = np.where(tables[1] == -50, -np.inf, tables[1])
        turned = NetworkCurvature(TEMPERATURE, PLAN, active, True)
        found = run(turned, *every, cotangent, *t)
        return (
            list(found),
            *run(dataclasses.replace(turned, is_transposed=False), *every, *u, *t),
        ), (list(pulled), pushed)

    chex.assert_trees_all_close(*both(), rtol=1e-12, atol=1e-13)


DERIVATIVES = {
    "gradient": lambda f: jax.grad(f, argnums=(0, 1, 2)),
    "Hessian": lambda f: jax.hessian(f, argnums=(0, 2)),
    "tangent of a gradient": lambda f: lambda *x: jax.jvp(jax.grad(f, argnums=(1, 2)), x, x)[1],
}


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, 1), (None, 2, None)], ids=str)
@pytest.mark.parametrize(
    "derivative",
    [
        "gradient",
        pytest.param("Hessian", marks=pytest.mark.slow),
        pytest.param("tangent of a gradient", marks=pytest.mark.slow),
    ],
)
def test_a_batch_of_log_derivatives_is_one_call(derivative, axes):
    """Also where tables lack the batch; the judge is one sum over all assignments."""
    rng = np.random.default_rng(1)
    tables = []
    for shape, axis in zip([(2, 3), (3, 4), (4,)], axes, strict=True):
        element = rng.normal(size=shape)
        batch = rng.normal(size=(5, *shape))
        tables.append(element if axis is None else np.moveaxis(batch, 0, axis))

    def value(x, y, z):
        return Network("ab,bc,c->", x, y, z).log_partition(temperature=TEMPERATURE)

    def dense(x, y, z):
        scores = x[:, :, None] + y[None] + z[None, None]
        return jax.scipy.special.logsumexp(scores / TEMPERATURE)

    derive = DERIVATIVES[derivative]
    run, wanted = (jax.vmap(derive(f), in_axes=axes) for f in (value, dense))
    program = str(jax.make_jaxpr(run)(*tables))
    assert "network_shares.v2" in program
    assert "vmap[" not in program  # an op that JAX maps over the elements
    for call in (run, jax.jit(run)):
        chex.assert_trees_all_close(call(*tables), wanted(*tables), rtol=1e-11, atol=1e-12)

    def squares(f):
        return lambda *x: sum((y**2).sum() for y in jax.tree.leaves(f(*x)))

    found, judged = (jax.grad(squares(f), argnums=(0, 1, 2))(*tables) for f in (run, wanted))
    chex.assert_trees_all_close(found, judged, rtol=1e-10, atol=1e-11)


def ring(x):
    """A network of four tables, of which one lacks the batch."""
    return Network("ab,bc,cd,da->", x, np.eye(2, dtype=np.float32) / 2, x, x)


def log_partition_of_ring(x):
    return ring(x).log_partition()


def marginals_of_ring(x):
    return list(ring(x).marginals().values())


def entropy_of_ring(x):
    return ring(x).entropy()


def sum_of_ring(x):
    return ring(x).sum_product()


OF_BATCHES = {
    "gradient": jax.grad(log_partition_of_ring),
    "Hessian": jax.hessian(log_partition_of_ring),
    "marginals": marginals_of_ring,
    "gradient of the entropy": jax.grad(entropy_of_ring),
    "Hessian of a sum": jax.hessian(sum_of_ring),
}
SECOND = ("Hessian", "gradient of the entropy", "Hessian of a sum")


@pytest.mark.parametrize(
    "question",
    ["gradient", "marginals", *(pytest.param(x, marks=pytest.mark.slow) for x in SECOND)],
)
def test_derivatives_of_a_symbolic_batch_are_exported(question):
    run = jax.jit(jax.vmap(OF_BATCHES[question]))
    (size,) = jax.export.symbolic_shape("n")
    program = jax.export.export(run)(jax.ShapeDtypeStruct((size, 2, 2), jnp.float32))
    batch = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    batch[0, 0, 1] = -np.inf
    chex.assert_trees_all_close(program.call(batch), run(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("semiring", [log_sum_exp(0.5), sum_product], ids=repr)
def test_a_symbolic_label_of_the_output_is_exported(semiring):
    """Tables with and without the label have gradients."""
    rng = np.random.default_rng(0)
    shapes = [(3, 2), (2, 3), (3, 2)]
    tables = [rng.normal(size=shape).astype(np.float32) for shape in shapes]

    def squares(*tables):
        found = tropical_einsum("na,ab,bc,nc->n", *tables, tables[0], semiring=semiring)
        return (found**2).sum()

    run = jax.jit(jax.grad(squares, argnums=(0, 1, 2)))
    (size,) = jax.export.symbolic_shape("n")
    metas = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in tables]
    metas[0] = jax.ShapeDtypeStruct((size, 2), np.float32)
    program = jax.export.export(run)(*metas)
    chex.assert_trees_all_close(program.call(*tables), run(*tables), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiles", [False, True])
def test_an_empty_batch_has_empty_answers(compiles):
    empty = np.zeros((0, 2, 2), np.float32)
    questions = [
        OF_BATCHES["gradient"],
        marginals_of_ring,
        log_partition_of_ring,
        lambda x: ring(x).slog_sum_product(),
        lambda x: ring(x).best().value,
    ]
    for question in questions:
        run = jax.vmap(question)
        one = jax.eval_shape(question, jax.ShapeDtypeStruct((2, 2), np.float32))
        shapes = jax.tree.map(lambda x: (0, *x.shape), one)
        found = (jax.jit(run) if compiles else run)(empty)
        assert jax.tree.map(jnp.shape, found) == shapes


def test_gradients_of_marginals_and_entropy_are_calls_of_the_library():
    """No step is an op of its own."""
    scores = np.random.default_rng(5).normal(size=(19, 3, 3))
    net = Network.from_factors({(i, i + 1): x for i, x in enumerate(scores)})

    def question(net):
        return net.entropy() + (net.marginals()[4] * jnp.arange(3.0)).sum()

    families = {route.family_id.split(".")[1] for route in routes(jax.grad(question), net)}
    assert "einsum" not in families
    assert "log_einsum" not in families
    assert "network_curvature" in families


TABLES = 12
"""So many that results come far from 1."""

WIDE = [0.0, -1.0, -60.0, -70.0, -140.0, -147.0, -200.0, -263.0, -277.0, -np.inf]
"""Scores around those whose exponentials, and products of these, float64 no longer has."""


def check_wide_scores(seed):
    """The log partition, its gradient and a batch of it, by all assignments."""
    rng = np.random.default_rng(seed)
    terms = ["".join(rng.choice(list("ab"), rng.integers(1, 3), False)) for _ in range(TABLES)]
    tables = [rng.choice(WIDE, [3] * len(term)) + rng.normal() for term in terms]
    order = [tuple(sorted(rng.choice(n, 2, False).tolist())) for n in range(TABLES, 1, -1)]
    if seed % 2:  # the first table leaves one assignment, and comes last
        terms[0], tables[0] = "ab", np.full((3, 3), -np.inf)
        tables[0][tuple(rng.integers(0, 3, 2))] = 0
        tables[1:] = [np.maximum(x, -277) for x in tables[1:]]
        rest = range(TABLES - 1, 1, -1)
        order = [tuple(sorted((1 + rng.choice(n, 2, False)).tolist())) for n in rest] + [(0, 1)]
    known = "".join(sorted(set("".join(terms))))
    sums = np.zeros([3] * len(known))
    for term, x in zip(terms, tables, strict=True):
        index = np.ix_(*[range(3)] * len(known))
        sums = sums + x[tuple(index[known.index(label)] for label in term)]
    wanted = scipy.special.logsumexp(sums)
    shares = np.exp(sums - wanted) if wanted > -np.inf else np.zeros_like(sums)

    def score(*tables):
        return Network(f"{','.join(terms)}->", *tables, optimize=order).log_partition()

    value, slopes = jax.value_and_grad(score, tuple(range(TABLES)))(*map(jnp.asarray, tables))
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    for term, slope in zip(terms, slopes, strict=True):
        kept = "".join(label for label in known if label in term)
        inner = tuple(i for i, label in enumerate(known) if label not in term)
        share = np.transpose(shares.sum(inner), [kept.index(label) for label in term])
        np.testing.assert_allclose(slope, share, atol=1e-12)
    batch = [np.stack([x, x - 800.0, np.zeros_like(x)]) for x in tables]
    found = jax.vmap(score)(*batch)
    zero = len(known) * np.log(3)
    np.testing.assert_allclose(found, [wanted, wanted - 800.0 * TABLES, zero], rtol=1e-12)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_wide_score_is_lost(part):
    """A sum of exponentials is certified, or taken another way."""
    for i in range(60 if part == 0 else 1500):
        check_wide_scores(10_000 * part + i)


def test_scores_below_a_result_that_is_far_from_one():
    """Two results near 2**-200, each of whose least entries is above 2**-400 of that."""
    first, second = np.array([0, -140.0, -263.0]), np.array([-140.0, 0, -147.0])
    last = np.array([-np.inf, -np.inf, 0])
    path = [(0, 1), (0, 1), (1, 2), (0, 1)]
    net = Network("a,a,a,a,a->", first, second, first, second, last, optimize=path)
    assert float(net.log_partition()) == -820


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
    # Finite scores are summed another way, so the last bits differ.
    np.testing.assert_allclose(value[others], np.asarray(want[0])[others], rtol=3e-7)
    np.testing.assert_allclose(of_rows[:, others], np.asarray(want[1])[:, others], rtol=1e-5)
    assert (of_rows[:, 1] == 0).all()


CHAINS = {  # equation, shapes
    "chain": ("a,ab,b,bc,c,cd->", [(5,), (5, 6), (6,), (6, 7), (7,), (7, 4)]),
    "diagonal": ("aab,bc,c->", [(3, 3, 4), (4, 5), (5,)]),
    "matrices": ("ab,bc,cd->", [(30, 20), (20, 25), (25, 30)]),
}


@pytest.mark.few(1)
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
