"""Every public function on meshes with automatic and with explicit axes, beside the same call on
one device.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ext_tropical import (
    Network,
    align,
    best_assignment,
    closure,
    log_sum_exp,
    matrix_power,
    tropical_dot_general,
    tropical_einsum,
    tropical_einsum_with_argmax,
    tropical_reduce_sum,
    viterbi,
)

pytestmark = pytest.mark.cpu
P = jax.P
CHAIN, LOOP = "ij,jk,kl->il", "ij,jk,kl,li->i"
SLICED = 80_000
"""Bytes of working memory, for which a chain of matrices of 64 x 64 is sliced."""
_rng = np.random.default_rng(0)


def table(*shape):
    """Few distinct numbers, so that many candidates are equal."""
    return _rng.integers(0, 9, shape).astype(np.float32)


SMALL = [table(8, 8) for _ in range(3)]
LARGE = [table(64, 64) for _ in range(4)]


def walks(costs):
    found = closure(costs + 1)
    return found.value, found.converged, found.on_cycle, found.predecessors()


def winners(*tables):
    found = tropical_einsum_with_argmax(CHAIN, *tables)
    return found.value, found.winner, found.coordinates(), found.feasible


def decoded(k, *tables):
    found = viterbi(*tables, k=k)
    return found.score, found.states, found.feasible


def aligned(*scores, **how):
    found = align(*scores, **how)
    return found.score, found.path


def asked(question, *tables, **how):
    return question(Network("ab,bc,cd->", *tables, **how))


QUESTIONS = {
    "value": Network.value,
    "best": Network.best,
    "the 3 best": lambda net: net.best(k=3),
    "log_partition": Network.log_partition,
    "marginals": Network.marginals,
    "entropy": Network.entropy,
    "given": lambda net: net.given(a=1, d=2).best(),
    "sum_out": lambda net: net.sum_out("b").best(),
    "sample": lambda net: net.sample(jax.random.key(0), (5,)),
}
HIDDEN = [table(8), table(8, 8), table(16, 8)]
PAIRS = [table(8, 16)]
FUNCTIONS = {
    "closure": (walks, SMALL[:1]),
    "matrix_power": (lambda a: matrix_power(a, 5), SMALL[:1]),
    "one step": (functools.partial(tropical_einsum, "ij,jk->ik"), SMALL[:2]),
    "small plan": (functools.partial(tropical_einsum, CHAIN), SMALL),
    "large plan": (functools.partial(tropical_einsum, LOOP), LARGE),
    "log_sum_exp": (functools.partial(tropical_einsum, LOOP, semiring=log_sum_exp()), LARGE),
    "equal shares": (functools.partial(tropical_einsum, CHAIN, ties="split"), SMALL),
    "slices": (functools.partial(tropical_einsum, "ij,jk,kl->l", memory_limit=SLICED), LARGE[:3]),
    "best of slices": (
        functools.partial(best_assignment, "ij,jk,kl->l", memory_limit=SLICED + 20_000),
        LARGE[:3],
    ),
    "diagonal": (functools.partial(tropical_einsum, "ii->i"), SMALL[:1]),
    "diagonals": (functools.partial(tropical_einsum, "iij,jk->ik"), [table(8, 8, 8), SMALL[0]]),
    "outer product": (functools.partial(tropical_einsum, "i,j"), [table(8), table(8)]),
    "best of a step": (functools.partial(best_assignment, "ij,jk->ik"), SMALL[:2]),
    "best of a plan": (functools.partial(best_assignment, LOOP), LARGE),
    "winners": (winners, SMALL),
    "viterbi": (functools.partial(decoded, None), HIDDEN),
    "viterbi, 3 best": (functools.partial(decoded, 3), HIDDEN),
    "align": (functools.partial(aligned, gap=-1.0), PAIRS),
    "align, local": (functools.partial(aligned, gap=-1.0, gap_open=-2.0, mode="local"), PAIRS),
    "align, soft": (functools.partial(aligned, gap=-1.0, semiring="log_sum_exp"), PAIRS),
    "align, lengths": (functools.partial(aligned, lengths=(5, 7), semiring="min_plus"), PAIRS),
    "dot_general": (tropical_dot_general, SMALL[:2]),
    "reduce_sum": (functools.partial(tropical_reduce_sum, axis=0), SMALL[:1]),
    **{
        f"{kind}, {name}": (functools.partial(asked, question, **how), tables)
        for kind, tables, how in (
            ("small network", SMALL, {}),
            ("large network", LARGE[:3], {}),
            ("network in slices", LARGE[:3], {"memory_limit": SLICED + 20_000}),
        )
        for name, question in QUESTIONS.items()
    },
}


def mesh(kind):
    return jax.make_mesh((8,), ("d",), axis_types=(kind,))


FIRST = P("d")


def placed(on, arrays, spec=FIRST):
    return [jax.device_put(x, jax.NamedSharding(on, spec)) for x in arrays]


def near(got, want):
    for pair in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(*pair, rtol=2e-5, atol=2e-5)


@pytest.mark.few(16)
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_one_device(name, kind):
    """Outside jit without a mesh that is set, and inside with one."""
    fn, arrays = FUNCTIONS[name]
    given, want = placed(mesh(kind), arrays), fn(*arrays)
    near(fn(*given), want)
    with jax.set_mesh(mesh(kind)):
        near(jax.jit(fn)(*given), want)


def test_the_default_mesh_of_jax():
    costs = SMALL[0] + 1
    on = jax.make_mesh((8,), ("d",))
    for spec in (P("d"), P(None, "d"), P()):
        (given,) = placed(on, [costs], spec)
        found, want = closure(given), closure(costs)
        near(found, want)
        np.testing.assert_array_equal(found.walk(0, 5), want.walk(0, 5))
        assert found.value.sharding.is_equivalent_to(given.sharding, 2)


def test_a_label_of_the_result_stays_split():
    given = placed(mesh(AxisType.Explicit), LARGE[:3])
    out = jax.jit(functools.partial(tropical_einsum, CHAIN))(*given)
    assert out.sharding.spec == P("d", None)


DIFFERENTIATED = ["closure", "large plan", "slices", "viterbi, 3 best", "align", "small plan"]


@pytest.mark.few(3)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_and_batches(name, mapped):
    fn, arrays = FUNCTIONS[name]

    def loss(*xs):
        return (jax.tree.leaves(fn(*xs))[0] ** 2).sum()

    run = jax.jit(jax.vmap(jax.grad(loss)) if mapped else jax.grad(loss))
    if mapped:
        arrays = [np.stack([x] * 8) for x in arrays]
    want = run(*arrays)
    with jax.set_mesh(mesh(AxisType.Explicit)):
        near(run(*placed(mesh(AxisType.Explicit), arrays)), want)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [P("d"), P(None, "d")])
@pytest.mark.parametrize("number", [2, 1, 0])
def test_the_gradient_by_one_table_of_a_network(number, spec, kind):
    """The labels of the result that this table lacks are split, so that its entries get parts from
    all devices. Judged by differences of NumPy's maximum: entries are of one kind, so that no
    candidates are equal.
    """
    arrays = [np.random.default_rng(i).normal(size=(8, 8)) for i in range(3)]

    def in_numpy(x):
        a, b, c = (x if i == number else y for i, y in enumerate(arrays))
        sums = a[:, :, None, None] + b[None, :, :, None] + c[None, None]
        return (sums.max((1, 2)) ** 2).sum()

    want = np.zeros((8, 8))
    for at in np.ndindex(8, 8):
        step = np.zeros((8, 8))
        step[at] = 1e-6
        want[at] = (in_numpy(arrays[number] + step) - in_numpy(arrays[number] - step)) / 2e-6

    def loss(*xs):
        return (tropical_einsum(CHAIN, *xs) ** 2).sum()

    got = jax.jit(jax.grad(loss, number))(*placed(mesh(kind), map(jnp.asarray, arrays), spec))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("semiring", ["max_plus", "log_sum_exp"])
def test_slices_over_devices(semiring, kind):
    fn = functools.partial(tropical_einsum, "ij,jk->ik", semiring=semiring)

    def slopes(fn, *xs):
        return jax.grad(lambda *xs: (fn(*xs) ** 2).sum(), (0, 1))(*xs)

    given, over = placed(mesh(kind), SMALL[:2]), functools.partial(fn, over="d")
    with jax.set_mesh(mesh(kind)):
        near(over(*given), fn(*SMALL[:2]))
        near(slopes(over, *given), slopes(fn, *SMALL[:2]))
