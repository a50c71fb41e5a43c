"""Section 6 of the contract: how many inputs, outputs, tangents and cotangents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import ExtensionAdRule, ExtensionOp, ExtensionRuleSet, apply

from ..extension_ops import Bilinear, HostCumulate, MaxAndIndex, ScaledSquare
from ..helpers import each_ends_in, ends_in, made
from .runners import runners, ways

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.clause("X6.2")
def test_wrong_arity():
    each_ends_in(
        (
            (run for _, run in runners(Bilinear(), X)),
            InvalidConfig,
            r"family_id=test-package\.bilinear\.v1.*expected 2 inputs, got 1",
        ),
        (lambda: apply(Bilinear(), X, X, X), InvalidConfig, "expected 2 inputs, got 3"),
    )


@pytest.mark.clause("X6.1")
@pytest.mark.parametrize("count", [-1, 1.0, True, "1", None], ids=repr)
@pytest.mark.parametrize("member", ["input_count", "output_count"])
def test_counts_are_non_negative_integers(member, count):
    odd = type(
        "Odd",
        (ExtensionOp,),
        {
            "family_id": "test-package.odd.v1",
            member: count,
            "lower_to_standard_ops": lambda op, x: (x,),
        },
    )
    ends_in(
        lambda: apply(odd(), X),
        InvalidConfig,
        rf"extension test-package\.odd\.v1: given {member}={count!r}",
    )


@pytest.mark.clause("X6.1")
def test_a_count_may_be_zero():
    Numbers = made(
        "Numbers",
        family_id="test-package.numbers.v1",
        input_count=0,
        lower_to_standard_ops=lambda self: (jnp.arange(3.0),),
    )

    Sink = made(
        "Sink",
        family_id="test-package.sink.v1",
        output_count=0,
        infer_output_meta=lambda self, inputs: [],
        lower_to_standard_ops=lambda self, x: (),
    )

    for _, run in ways(lambda x: apply(Numbers())[0] + x, np.ones(3)):
        np.testing.assert_array_equal(run(), [1.0, 2.0, 3.0])
    for _, run in ways(lambda x: apply(Sink(), x), X):
        assert run() == ()


@pytest.mark.clause("X6.3")
@pytest.mark.parametrize("count", [0, 2])
def test_inference_gives_one_entry_an_output(count):
    Odd = made(
        "Odd",
        family_id="test-package.odd.v1",
        infer_output_meta=lambda self, inputs: [inputs[0]] * count,
        lower_to_standard_ops=lambda self, x: (x,),
    )

    ends_in(
        (run for _, run in runners(Odd(), X)),
        InvalidConfig,
        rf"infer_output_meta of extension test-package\.odd\.v1: given {count} "
        rf"entries; needed 1",
    )


@pytest.mark.clause("X6.3")
@pytest.mark.parametrize(
    "returned",
    [
        ["float64"],
        [("floot", (3,))],
        [(np.float64, 3)],
        [(np.float64, (-1,))],
        [(np.float64, (3.0,))],
        [None],
    ],
    ids=str,
)
def test_metas_that_are_none(returned):
    Odd = made(
        "Odd", family_id="test-package.odd.v1", infer_output_meta=lambda self, inputs: returned
    )

    ends_in(
        lambda: apply(Odd(), X),
        InvalidConfig,
        r"infer_output_meta of extension test-package\.odd\.v1, output 0",
    )


@pytest.mark.clause("X6.5")
def test_rules_of_a_wrong_shape():
    Short = made(
        "Short",
        ExtensionAdRule,
        family_id=MaxAndIndex.family_id,
        linearize=lambda self, op, primals, outputs, tangents: [None],
    )

    Bare = made(
        "Bare",
        ExtensionAdRule,
        family_id=ScaledSquare.family_id,
        linearize=lambda self, op, primals, outputs, tangents: tangents[0],
    )

    rules = ExtensionRuleSet(Short(), Bare())
    each_ends_in(
        (
            lambda: jax.grad(lambda x: apply(MaxAndIndex(), x, rules=rules)[0].sum())(X),
            InvalidConfig,
            r"linearize of extension test-package\.max_and_index\.v1: given 1 entry; "
            r"needed 2, one for each output",
        ),
        (
            lambda: jax.grad(lambda x: apply(ScaledSquare(), x, rules=rules)[0].sum())(X),
            InvalidConfig,
            r"linearize of extension test-package\.scaled_square\.v1.*tuple or list",
        ),
        (lambda: apply(ScaledSquare(), X, rules=[Bare()]), InvalidConfig, "ExtensionRuleSet"),
    )


@pytest.mark.clause("X6.5")
def test_a_transpose_rule_gives_one_entry_an_input():
    Short = made(
        "Short",
        ExtensionAdRule,
        family_id=HostCumulate.family_id,
        transpose_rule=lambda self, op, cotangents, inputs: [],
    )

    transpose = jax.linear_transpose(
        lambda x: apply(HostCumulate(), x, rules=ExtensionRuleSet(Short()))[0], X
    )
    ends_in(
        lambda: transpose(X),
        InvalidConfig,
        r"transpose_rule of extension test-package\.host_cumulate\.v1: given 0 "
        r"entries; needed 1, one for each input",
    )


# As many inputs as `joined`, stacked, then cut into `parts` outputs; the payload decides both
# counts.
Sections = made(
    "Sections",
    fields={"joined": int, "parts": int},
    family_id="test-package.sections.v1",
    input_count=property(lambda op: op.joined),
    output_count=property(lambda op: op.parts),
    lower_to_standard_ops=lambda self, *arrays: tuple(
        jnp.split(jnp.concatenate(arrays), self.parts)
    ),
)


@pytest.mark.clause("X6.6")
@pytest.mark.parametrize(("joined", "parts"), [(1, 3), (2, 4), (3, 1)])
def test_the_payload_may_decide_the_counts(joined, parts):
    xs = [np.arange(12.0) + 100 * i for i in range(joined)]
    for _, run in ways(lambda *xs: apply(Sections(joined, parts), *xs), *xs):
        for got, want in zip(run(), np.split(np.concatenate(xs), parts), strict=True):
            np.testing.assert_array_equal(got, want)
    ends_in(
        lambda: apply(Sections(joined, parts), *xs, xs[0]),
        InvalidConfig,
        f"expected {joined} inputs?, got {joined + 1}",
    )
