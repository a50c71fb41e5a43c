"""The equation bank under every semiring: values by NumPy on object arrays, winners by putting them
back in.
"""

import itertools
import zlib

import jax
import numpy as np
import pytest

from ext_tropical import (
    log_sum_exp,
    tropical_einsum,
    tropical_einsum_with_argmax,
)

from ..oracles import log_einsum
from ..sweep import ALL
from .bank import OPT_EINSUM, PATTERNS, partitions, patterns, random_cases, sized
from .judges import check_assignment

VALUES = {
    "max_plus": [-2.0, -1.0, 0.0, 1.0, -np.inf],
    "min_plus": [-1.0, 0.0, 1.0, 2.0, np.inf],
    "max_mul": [0.0, 1.0, 2.0, 3.0],
    "min_max": [-1.0, 0.0, 1.0, np.inf, -np.inf],
    "or_and": [False, True],
}
"""Few whole numbers and the zero of each semiring: products are exact, ties and impossible cells
many.
"""


def data(name, case):
    rng = np.random.default_rng(zlib.crc32(f"{name} {case.equation}".encode()))
    return [rng.choice(VALUES[name], shape) for shape in case.shapes]


def check(name, case):
    operands = data(name, case)
    check_assignment(
        name, f"{','.join(case.terms)}->{case.output}", operands, *solve(case, operands, name)
    )


def solve(case, operands, name):
    """Value and coordinates."""

    @jax.jit
    def found(*xs):
        result = tropical_einsum_with_argmax(case.equation, *xs, semiring=name)
        return result.value, result.coordinates()

    return found(*operands)


def chosen(cases, count):
    """So many (semiring, case) with each semiring in turn, ten times as many in the large sweep."""
    picked, count = np.random.default_rng(0).permutation(len(cases)), count * (10 if ALL else 1)
    return [
        (name, cases[picked[i % len(cases)]])
        for i, name in zip(range(count), itertools.cycle(VALUES))
    ]


def named(pairs):
    return {"argvalues": pairs, "ids": [f"{name}:{case.equation}" for name, case in pairs]}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "case"), **named(chosen([sized(equation) for equation in OPT_EINSUM], len(OPT_EINSUM)))
)
def test_the_list_of_opt_einsum(name, case):
    check(name, case)


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "case"), **named(chosen(random_cases(30), 15)))
def test_random_networks(name, case):
    check(name, case)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("name", "case"), **named(chosen([sized(equation) for equation in PATTERNS], 80))
)
def test_every_pattern_of_repeated_labels(name, case):
    check(name, case)


SMOOTH = [sized(equation) for equation in (*OPT_EINSUM, *PATTERNS)]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "case", SMOOTH if ALL else SMOOTH[:69:6] + SMOOTH[69::600], ids=lambda case: case.equation
)
def test_log_sum_exp(case):
    operands = data("max_plus", case)
    want = log_einsum(0.5, case.equation, *operands)
    np.testing.assert_allclose(
        tropical_einsum(case.equation, *operands, semiring=log_sum_exp(0.5)),
        want,
        rtol=1e-12,
        atol=1e-12,
    )


def test_the_bank_holds_every_pattern():
    """Bell(n) ways to label n places; each output is one of the 2**k sets of k labels (Touchard's
    polynomials at 2).
    """
    touchard = [sum(2 ** len(set(places)) for places in partitions(n)) for n in range(7)]
    assert touchard == [1, 2, 6, 22, 94, 454, 2430]
    for operands, most, count in ((1, 3, 31), (2, 3, 3731), (3, 2, 4553)):
        ranks = itertools.product(range(most + 1), repeat=operands)
        assert len(set(patterns(operands, most))) == sum(touchard[sum(x)] for x in ranks) == count
    assert sum(sized(x).output != "".join(sorted(sized(x).output)) for x in PATTERNS) > 500
