"""Ordinary sums of products: values and derivatives of any order, whatever the route, the batch,
the range of the numbers and the origin of the arrays.
"""

import fractions
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest

import ext_tropical
from ext_tropical import Network, sum_product, tropical_einsum
from ext_tropical.networks.plan_text import text_of
from ext_tropical.networks.sums import NetworkSum, NetworkSumDerivative
from tenferro_jax import plan_einsum
from tenferro_jax.errors import DTypeError, InvalidConfig, Unsupported
from tenferro_jax.extension import apply

EQUATION = "abc,bd,cde,ef,fa,x,g->dg"
SIZES = dict(zip("abcdefgx", [2, 3, 2, 4, 3, 2, 2, 3], strict=True))


def tables_of(equation, sizes, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    terms = equation.split("->")[0].split(",")
    return [rng.normal(size=[sizes[x] for x in term]).astype(dtype) / 2 for term in terms]


def summed(*tables):
    return tropical_einsum(EQUATION, *tables, semiring=sum_product)


def judge(*tables):
    """opt_einsum's own path, with jnp's products and JAX's derivatives."""
    return opt_einsum.contract(EQUATION, *map(jnp.asarray, tables), backend="jax")


def equal(found, wanted, tolerance=1e-12):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        scale = 1 + np.abs(np.asarray(y)).max(initial=0)
        np.testing.assert_allclose(np.asarray(x) / scale, np.asarray(y) / scale, atol=tolerance)


def gradient(run):
    arguments = tuple(range(len(EQUATION.split(","))))
    return jax.grad(lambda *tables: jnp.sin(run(*tables)).sum(), arguments)


def along(run, seed=1):
    tangents = tuple(tables_of(EQUATION, SIZES, seed))
    return lambda *tables: jax.jvp(run, tables, tangents)[1]


def squares_of(run):
    return gradient(lambda *tables: sum((x**2).sum() for x in run(*tables)))


ORDERS = {
    "value": lambda run: run,
    "gradient": gradient,
    "tangent": along,
    "second tangent": lambda run: along(along(run, 1), 2),
    "third tangent": lambda run: along(along(along(run, 1), 2), 3),
    "gradient of a tangent": lambda run: gradient(along(run)),
    "tangent of a gradient": lambda run: along(gradient(run)),
    "gradient of a gradient": lambda run: squares_of(gradient(run)),
    "third gradient": lambda run: squares_of(squares_of(gradient(run))),
    "Hessian": lambda run: jax.hessian(run, argnums=(0, 2)),
    "Jacobian": jax.jacrev,
}


@pytest.mark.parametrize(
    ("order", "compiles"),
    [*((order, False) for order in ORDERS), ("gradient", True), ("gradient of a gradient", True)],
)
def test_derivatives_of_any_order(order, compiles):
    tables = tables_of(EQUATION, SIZES)
    run = ORDERS[order](summed)
    found = (jax.jit(run) if compiles else run)(*tables)
    equal(found, ORDERS[order](judge)(*tables), 1e-9)


@pytest.mark.parametrize(
    "axes",
    [(0,) * 7, (None, 0, None, 1, 0, None, 0), (2, *[None] * 6), (None,) * 6 + (0,)],
    ids=str,
)
@pytest.mark.parametrize("inside", ["value", "gradient", "tangent of a gradient"])
def test_a_batch_is_its_elements(inside, axes):
    rng = np.random.default_rng(2)
    tables = [
        x if axis is None else np.moveaxis(rng.normal(size=(3, *x.shape)) / 2, 0, axis)
        for x, axis in zip(tables_of(EQUATION, SIZES), axes, strict=True)
    ]
    one = ORDERS[inside]
    run, wanted = (jax.vmap(one(f), in_axes=axes) for f in (summed, judge))
    equal(run(*tables), wanted(*tables))
    equal(jax.jit(run)(*tables), wanted(*tables))
    if inside == "value":
        equal(gradient(run)(*tables), gradient(wanted)(*tables))
        twice = [None] * 6 + [0]
        more = [*tables[:6], np.stack([tables[6]] * 2)]
        run, wanted = (jax.vmap(f, in_axes=twice) for f in (run, wanted))
        equal(gradient(run)(*more), gradient(wanted)(*more))
    if inside == "gradient":
        equal(squares_of(run)(*tables), squares_of(wanted)(*tables), 1e-9)


@pytest.mark.parametrize("count", [7, 8, 9, 200])
def test_an_infinite_entry_of_the_last_element(count):
    """Its gradient by a table that all elements share: memory of more elements has no part in it."""
    batch = np.ones((count, 2, 3))
    batch[-1, 1, 2] = np.inf
    shared, ones = np.ones((3, 2)), np.ones(2)

    def one(x, shared):
        return tropical_einsum("ij,jk,k->", x, shared, ones, semiring=sum_product)

    def total(shared):
        return jax.vmap(one, (0, None))(batch, shared).sum()

    found = np.asarray(jax.grad(total)(shared))
    np.testing.assert_array_equal(found, [[2 * count] * 2, [2 * count] * 2, [np.inf] * 2])


def test_lanes_have_bits_of_their_own():
    """An element of a batch has the same bits whichever place it has, and however many there are."""
    tables = tables_of(EQUATION, SIZES)
    batch = np.random.default_rng(3).normal(size=(37, *tables[2].shape))
    op = NetworkSum(text_of(plan_einsum(EQUATION, [x.shape for x in tables])))

    def run(x):
        return apply(op, *tables[:2], x, *tables[3:])[0]

    whole = np.asarray(jax.vmap(run)(batch))
    np.testing.assert_array_equal(whole[5:], jax.vmap(run)(batch[5:]))
    np.testing.assert_array_equal(whole[36:], jax.vmap(run)(batch[36:]))


def test_sizes_around_those_of_lanes_and_vectors():
    """Values with one and two labels, of sizes from 1 to 40, in both float dtypes."""
    rng = np.random.default_rng(8)
    equations = ["ab,bc,cd->ad", "ab,bc,cd->da", "ab,b,bc->ca", "ab,ab,ab->ba", ",,ae->ea"]
    equations += ["a,b,c->cba", "sab,sbc,scd->sad", "sab,sb,sc->s", "abc,bcd,ad->dba"]
    for equation, most, dtype in itertools.product(equations, (4, 7, 7, 40), "fd"):
        terms, output = equation.split("->")
        sizes = {x: int(rng.integers(1, most + 1)) for x in set(terms) - {","}}
        shapes = [[sizes[x] for x in term] for term in terms.split(",")]
        tables = [rng.normal(size=shape).astype(dtype) for shape in shapes]
        tolerance = 1e-4 if dtype == "f" else 1e-11
        op = NetworkSum(text_of(plan_einsum(equation, shapes)))
        found = apply(op, *tables)[0]
        equal(found, np.einsum(equation, *[x.astype(float) for x in tables]), tolerance)
        bar = rng.normal(size=found.shape).astype(dtype)
        exponents, active = np.zeros(bar.shape, np.int32), tuple(range(len(tables)))
        slopes = apply(NetworkSumDerivative(op.plan, active, 0, True), *tables, exponents, bar)
        for i, slope in enumerate(slopes):
            others = [*terms.split(",")[:i], *terms.split(",")[i + 1 :], output]
            ones = np.ones(shapes[i])  # a label that no other has
            arrays = [*tables[:i], *tables[i + 1 :], bar, ones]
            transposed = f"{','.join([*others, terms.split(',')[i]])}->{terms.split(',')[i]}"
            equal(slope, np.einsum(transposed, *[x.astype(float) for x in arrays]), tolerance)


def test_it_is_a_linear_function_of_one_table():
    tables = [jnp.asarray(x) for x in tables_of(EQUATION, SIZES)]
    bar = jnp.ones((4, 2))
    for i in (0, 5):

        def run(x, f, i=i):
            return f(*tables[:i], x, *tables[i + 1 :])

        transposed = (
            jax.linear_transpose(functools.partial(run, f=f), tables[i]) for f in (summed, judge)
        )
        equal(*(f(bar) for f in transposed))


# --- generated networks ---------------------------------------------------------------------------


def generated(seed):
    """Terms with diagonals, tables of no label, labels of the value, zeros and wide exponents."""
    rng = np.random.default_rng(seed)
    labels = "abcdefgh"[: rng.integers(2, 8)]
    sizes = {x: int(rng.integers(1, 4)) for x in labels}
    terms = []
    for _ in range(rng.integers(2, 8)):
        rank = rng.integers(0, 4)
        with_diagonals = rng.random() < 0.2
        terms.append("".join(rng.choice(list(labels), min(rank, len(labels)), with_diagonals)))
    known = sorted(set("".join(terms)))
    output = "".join(rng.permutation(known)[: rng.integers(0, 3)])
    tables = []
    for term in terms:
        shape = [sizes[x] for x in term]
        x = rng.normal(size=shape) * 2.0 ** rng.integers(-40, 40)
        tables.append(np.where(rng.random(shape) < 0.2, 0, x))
    return f"{','.join(terms)}->{output}", tables


def exact(equation, tables):
    """NumPy's einsum of fractions."""
    rational = np.frompyfunc(fractions.Fraction, 1, 1)
    arrays = [np.asarray(rational(x), object) for x in tables]
    return np.asarray(np.einsum(equation, *arrays, optimize=False), object)


def magnitudes(equation, tables):
    """The sums of magnitudes, by which rounding is measured."""
    return exact(equation, list(map(np.abs, tables)))


def check_generated(seed, lowers):
    equation, tables = generated(seed)
    if len(tables) < 2 or not equation.split("->")[0].replace(",", ""):
        return 0
    wanted, scale = exact(equation, tables), magnitudes(equation, tables)
    op = NetworkSum(text_of(plan_einsum(equation, [x.shape for x in tables])), is_scaled=True)
    found = [apply(op, *tables)]
    if lowers:
        found.append(op.lower_to_standard_ops(*map(jnp.asarray, tables)))
    for x, e in found:
        x, e = np.asarray(x), np.asarray(e)
        assert np.all((x == 0) | ((np.abs(x) >= 0.5) & (np.abs(x) < 1)))
        for index in np.ndindex(x.shape):
            found = fractions.Fraction(float(x[index])) * fractions.Fraction(2) ** int(e[index])
            assert abs(found - wanted[index]) <= scale[index] * fractions.Fraction(1, 2**46)
    return 1


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_generated_networks_are_exact_up_to_rounding(part):
    count, lowered = (100, 8) if part == 0 else (5000, 150)
    checked = [check_generated(10_000 * part + i, i < lowered) for i in range(count)]
    assert sum(checked) > 0.8 * count


def check_derivatives(seed):
    """Each derivative against finite differences along the tangents: the value is linear in each
    table, so that differences are exact up to rounding. One of them, in turn, by both routes: a
    loop in standard ops compiles for a second.
    """
    equation, tables = generated(seed)
    tables = [x / max(np.abs(x).max(initial=0), 1e-300) for x in tables]
    if len(tables) < 3 or not equation.split("->")[0].replace(",", ""):
        return 0
    rng, text = (
        np.random.default_rng(seed),
        text_of(plan_einsum(equation, [x.shape for x in tables])),
    )
    active = tuple(sorted(rng.choice(len(tables), 2, replace=False).tolist()))
    along = [[rng.normal(size=tables[i].shape) for i in active] for _ in range(2)]
    shape = np.einsum(equation, *tables).shape
    exponents = rng.integers(-3, 4, shape).astype(np.int32)

    def value(*steps):
        moved = list(tables)
        for step, each in zip(steps, along, strict=False):
            for i, t in zip(active, each, strict=True):
                moved[i] = moved[i] + step * t
        return np.einsum(equation, *moved) * 2.0**-exponents

    second = (value(1, 1) - value(1, -1) - value(-1, 1) + value(-1, -1)) / 4
    turn = seed % 4
    for order, wanted in ((1, None), (2, second)):
        op = NetworkSumDerivative(text, active, order)
        inputs = [*tables, exponents, *itertools.chain(*along[:order])]
        (found,) = apply(op, *inputs)
        if turn == order - 1:
            equal(found, op.lower_to_standard_ops(*map(jnp.asarray, inputs)))
        if wanted is not None:
            equal(found, wanted, 1e-10)
    bar = rng.normal(size=shape)
    for order in (0, 1):
        op = NetworkSumDerivative(text, active, order, is_transposed=True)
        inputs = [*tables, exponents, bar, *itertools.chain(*along[:order])]
        found = apply(op, *inputs)
        if turn == order + 2:
            equal(found, op.lower_to_standard_ops(*map(jnp.asarray, inputs)))
        # The transpose: of any tangents t the product with them is the derivative along t too.
        last = NetworkSumDerivative(text, active, order + 1)
        (moved,) = apply(last, *tables, exponents, *itertools.chain(*along[: order + 1]))
        products = sum((x * t).sum() for x, t in zip(found, along[order], strict=True))
        equal(products, (bar * moved).sum(), 1e-10)
    return 1


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_generated_derivatives(part):
    count, checked = (4 if part == 0 else 200), 0
    for i in range(count):
        checked += check_derivatives(20_000 * part + i)
        if i % 20 == 19:  # compiled loops are many mappings, of which a process has 65,530
            jax.clear_caches()
    assert checked > 0.5 * count


# --- the range of numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_intermediate_overflows_or_vanishes(dtype):
    """Forty matrices whose product is near 1, of which each is beyond the square root of the range."""
    rng, count = np.random.default_rng(4), 40
    far = 30 if dtype == np.float32 else 250
    exponents = [far if i < count / 2 else -far for i in range(count)]
    tables = [(rng.normal(size=(3, 3)) * 10.0**e).astype(dtype) for e in exponents]
    labels = [opt_einsum.get_symbol(i) for i in range(count + 1)]
    terms = [labels[i] + labels[i + 1] for i in range(count)]
    net = Network(f"{','.join(terms)}->", *tables)
    exactly = functools.reduce(
        lambda x, y: x.dot(y),
        [np.frompyfunc(fractions.Fraction, 1, 1)(x.astype(float)) for x in tables],
    ).sum()
    scale = functools.reduce(
        lambda x, y: x.dot(y),
        [np.frompyfunc(fractions.Fraction, 1, 1)(np.abs(x).astype(float)) for x in tables],
    ).sum()
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    found = net.slog_sum_product()
    relative = float(exactly / scale)
    log = math.log(abs(relative)) + math.log(scale.numerator) - math.log(scale.denominator)
    assert found.sign == math.copysign(1, relative)
    assert abs(found.logabs - log) < tolerance / abs(relative)
    assert abs(float(net.sum_product()) - float(exactly)) < tolerance * float(scale)
    by_tables = jax.grad(lambda net: net.slog_sum_product().logabs)(net).tables
    for x, bar in zip(tables, by_tables, strict=True):  # the value is linear in each
        assert abs((x.astype(float) * np.asarray(bar, float)).sum() - 1) < tolerance / abs(relative)


def test_a_likelihood_below_the_range_has_a_log_and_its_gradient():
    rng, tables = np.random.default_rng(5), []
    for i in range(60):
        tables.append(
            ((f"x{i}", f"x{i + 1}"), rng.dirichlet(np.ones(4), 4).astype(np.float32) / 40)
        )
    net = Network.from_factors(tables)
    found = net.slog_sum_product()
    scores = Network.from_factors([(names, np.log(x)) for names, x in tables])
    assert float(net.sum_product()) == 0
    np.testing.assert_allclose(found.logabs, scores.log_partition(), rtol=1e-6)
    grad = jax.grad(lambda net: net.slog_sum_product().logabs)(net)
    by_scores = jax.grad(Network.log_partition)(scores)
    for x, bar, share in zip(net.tables, grad.tables, by_scores.tables, strict=True):
        np.testing.assert_allclose(x * bar, share, atol=1e-5)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_are_as_in_numpy(number):
    tables = tables_of("ab,bc,cd->ad", dict.fromkeys("abcd", 2), dtype=np.float32)
    tables[1][0, 1] = number
    with np.errstate(invalid="ignore"):
        wanted = np.einsum("ab,bc,cd->ad", *tables)
    for run in (lambda f: f, jax.jit):
        found = run(lambda *x: tropical_einsum("ab,bc,cd->ad", *x, semiring=sum_product))(*tables)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_and_two_tables_overflow_no_earlier_than_three(dtype):
    most = np.finfo(dtype).max / 2
    for equation, tables, wanted in (
        ("ab,b->", [np.full((2, 2), most), [1, -0.5]], most),
        ("a,a->", [np.full(4, most), [1, 1, -1, -0.5]], most / 2),
        ("ab->", [np.full((2, 2), [most, -most])], 0.0),
        ("a,->", [np.full(4, most), 0.125], most / 2),
    ):
        arrays = [np.asarray(x, dtype) for x in tables]
        for run in (Network.sum_product, jax.jit(Network.sum_product)):
            found = run(Network(equation, *arrays))
            assert found.dtype == dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_small_entries_beside_large_ones_are_kept():
    """Of float32 tables sums are in float64, where steps are small: 44 decades in one table."""
    far = 1e22
    tables = [[[far, 1 / far]], np.eye(2), [[0], [far]]]
    net = Network("ab,bc,cd->", *[np.asarray(x, np.float32) for x in tables])
    for run in (Network.sum_product, jax.jit(Network.sum_product)):
        np.testing.assert_allclose(run(net), 1, rtol=1e-6)
        slope = jax.grad(run)(net).tables[1]
        np.testing.assert_allclose(slope, [[0, np.inf], [0, 1]], rtol=1e-6)


# --- what users hold ------------------------------------------------------------------------------


def test_weights_may_be_closed_over_and_differentiated_elsewhere():
    tables = [jnp.asarray(x) for x in tables_of(EQUATION, SIZES, dtype=np.float32)]
    closed = jax.grad(lambda x: summed(x, *tables[1:]).sum())(tables[0])
    given = jax.grad(lambda *x: summed(*x).sum())(*tables)
    np.testing.assert_array_equal(closed, given)
    np.testing.assert_allclose(
        jax.jit(jax.grad(lambda x: summed(x, *tables[1:]).sum()))(tables[0]), given, rtol=1e-6
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_are_widened(dtype):
    tables = [jnp.asarray(x, dtype) for x in tables_of(EQUATION, SIZES)]
    found = summed(*tables)
    assert found.dtype == dtype
    wide = judge(*(x.astype(jnp.float32) for x in tables))
    np.testing.assert_array_equal(found, wide.astype(dtype))


def test_slices_have_derivatives():
    equation, sizes = "ab,bc,cd,de->ae", dict.fromkeys("abcde", 64)
    tables = tables_of(equation, sizes)

    def run(**how):
        return jax.value_and_grad(
            lambda *x: jnp.sin(tropical_einsum(equation, *x, semiring=sum_product, **how)).sum(),
            (0, 1, 2, 3),
        )(*tables)

    equal(run(memory_limit=160_000), run())


def test_one_and_two_operands_are_products_of_xla():
    a, b = tables_of("ij,jk->", dict.fromkeys("ijk", 3), dtype=np.float32)
    np.testing.assert_allclose(
        tropical_einsum("ij,jk->ik", a, b, semiring="sum_product"), a @ b, rtol=1e-6
    )
    np.testing.assert_allclose(tropical_einsum("ii->i", a, semiring=sum_product), np.diag(a))
    assert float(Network("->", jnp.float32(-3.0)).slog_sum_product().sign) == -1


def test_an_export_runs_with_a_symbolic_batch():
    tables = [
        jnp.asarray(x) for x in tables_of("ab,bc,ca->", dict.fromkeys("abc", 3), dtype=np.float32)
    ]

    @jax.jit
    def run(batch):
        def one(x):
            return tropical_einsum("ab,bc,ca->", x, *tables[1:], semiring=sum_product)

        return jax.vmap(jax.value_and_grad(one))(batch)

    (size,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(run)(jax.ShapeDtypeStruct((size, 3, 3), jnp.float32))
    again = jax.export.deserialize(exported.serialize())
    batch = np.random.default_rng(0).normal(size=(5, 3, 3)).astype(np.float32)
    for x, y in zip(jax.tree.leaves(again.call(batch)), jax.tree.leaves(run(batch)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)


def test_refusals_say_what_to_do():
    whole = np.ones((2, 2), np.int32)
    with pytest.raises(DTypeError, match="sum_product"):
        tropical_einsum("ab,bc,ca->", whole, whole, whole, semiring=sum_product)
    with pytest.raises(DTypeError):
        tropical_einsum("ab,bc,ca->", *[np.ones((2, 2), complex)] * 3, semiring=sum_product)
    with pytest.raises(InvalidConfig, match="no winners"):
        ext_tropical.best_assignment("ab,bc->", *[np.ones((2, 2))] * 2, semiring=sum_product)
    net = Network("ab,bc,cd->", *[np.ones((60, 60))] * 3, memory_limit=100_000)
    with pytest.raises(Unsupported, match="memory_limit"):
        net.slog_sum_product()
