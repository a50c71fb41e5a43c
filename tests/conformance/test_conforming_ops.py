"""Ops that keep the contract: every check passes but for an exact list that does not apply, with its reasons."""

import itertools

import numpy as np
import pytest

import ext_tropical
from ext_tropical import TROPICAL_RULES, Outputs, TropicalEinsum
from tenferro_jax import check_extension

from ..extension_ops import RULES, RUNTIMES, Bilinear, HostCumulate, KernelSine, MaxAndIndex, ScaledSquare
from ..oracles import brute_force
from ..sweep import ALL
from .conforming_ops import RULES as FURTHER_RULES
from .conforming_ops import DeclinesWide, Rows, SquareAndModulus

RNG = np.random.default_rng(3)
MATRIX = RNG.normal(size=(3, 4))

ONE_INPUT = {"inactive_inputs": "one input alone has derivatives"}
NO_HOST_FORM = {"host_form": "the op has no host form"}
NO_PRUNING = {"pruned_outputs": "the op prunes no outputs"}
NO_TRANSPOSE = {"linear_transpose": "no transpose_rule was given"}
HOST_ONLY = dict.fromkeys(("lowering", "explicit_mesh", "exported", "exported_sizes"), "the op has no lowering")

OURS = {
    "ScaledSquare": (ScaledSquare(1.5), (MATRIX,), lambda x: (1.5 * x * x,), ScaledSquare(2.0), ONE_INPUT | NO_HOST_FORM | NO_TRANSPOSE),
    "HostCumulate": (HostCumulate(), (MATRIX,), lambda x: (np.cumsum(x, -1),), HostCumulate(True), ONE_INPUT | HOST_ONLY),
    "Bilinear": (Bilinear(), (MATRIX, RNG.normal(size=(4, 2))), lambda x, w: (x @ w,), ScaledSquare(), NO_HOST_FORM),
    "MaxAndIndex": (
        MaxAndIndex(),
        (MATRIX,),
        lambda x: (x.max(-1), x.argmax(-1)),
        ScaledSquare(),
        ONE_INPUT | NO_HOST_FORM | NO_TRANSPOSE,
    ),
    "KernelSine": (KernelSine(), (MATRIX,), lambda x: (np.sin(x),), KernelSine(1.0), ONE_INPUT | NO_HOST_FORM | NO_TRANSPOSE),
}


def _complex(*shape):
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


NO_RULE = dict.fromkeys(
    (
        *("derivative_metas", "jvp", "linear", "inactive_inputs", "adjoint", "second_order", "vmap_of_grad"),
        *("derivatives_inside", "checked_derivative", "shard_map_derivative"),
    ),
    "no AD rule for the family",
)
FURTHER = {
    "an integer input": (Rows(), (MATRIX, np.array([2, 0])), lambda x, i: (x[i],), ONE_INPUT | NO_HOST_FORM),
    "complex": (SquareAndModulus(), (_complex(3),), lambda z: (z * z, abs(z) ** 2), ONE_INPUT | NO_HOST_FORM | NO_TRANSPOSE),
    "a lowering that declines": (
        DeclinesWide(),
        (MATRIX,),
        lambda x: (2 * x,),
        NO_RULE | NO_TRANSPOSE | dict.fromkeys(("explicit_mesh", "exported", "exported_sizes"), "the op has no lowering"),
    ),
    "a lowering that takes over": (DeclinesWide(), (MATRIX.astype(np.float32),), lambda x: (2 * x,), NO_RULE | NO_TRANSPOSE),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_kinds(name):
    op, inputs, oracle, expected = FURTHER[name]
    report = check_extension(op, inputs, rules=FURTHER_RULES, oracle=oracle)
    assert not_applicable(report) == expected | NO_PRUNING | {"others": "no other ops were given"}


def not_applicable(report):
    assert report.ok, str(report)
    assert sum(f.cases for f in report.findings) > 60
    return {f.check: f.problem for f in report.not_applicable}


@pytest.mark.parametrize("name", OURS)
def test_ops_of_every_kind(name):
    op, inputs, oracle, other, expected = OURS[name]
    report = check_extension(op, inputs, rules=RULES, runtimes=RUNTIMES, oracle=oracle, others=(other,))
    assert not_applicable(report) == expected | NO_PRUNING


EQUATIONS = {"max_plus": "ij,jk->ik", "min_plus": "ij,jk->ki", "max_mul": "ji,kj->ik"}
SHAPES = {"ij,jk->ik": ((2, 3), (3, 4)), "ij,jk->ki": ((2, 3), (3, 4)), "ji,kj->ik": ((3, 2), (4, 3))}
FAMILY = list(itertools.product(EQUATIONS, Outputs))
SAMPLE = FAMILY if ALL else [FAMILY[0], FAMILY[3], FAMILY[4]]


@pytest.mark.parametrize(("semiring", "outputs"), SAMPLE, ids=[f"{s} {o.value}" for s, o in SAMPLE])
def test_the_tropical_family(semiring, outputs):
    equation = EQUATIONS[semiring]
    op = TropicalEinsum(getattr(ext_tropical, semiring), equation, outputs)
    others = [TropicalEinsum(getattr(ext_tropical, s), equation, o) for s, o in FAMILY if (s, o) != (semiring, outputs)]
    inputs = tuple(RNG.normal(size=shape) for shape in SHAPES[equation])

    def oracle(lhs, rhs):
        return brute_force(semiring, equation, lhs, rhs)[: op.output_count]

    report = check_extension(op, inputs, rules=TROPICAL_RULES, oracle=oracle, others=others)
    assert not_applicable(report) == NO_TRANSPOSE
