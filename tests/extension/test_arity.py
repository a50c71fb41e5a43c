"""Section 6 of the contract: how many inputs, outputs, tangents and cotangents."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.errors import ArityError, InvalidConfig
from tenferro_jax.extension import ExtensionAdRule, ExtensionOp, ExtensionRuleSet, apply

from ..extension_ops import Bilinear, HostCumulate, MaxAndIndex, ScaledSquare
from .runners import runners, ways

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.clause("X6.2")
def test_wrong_arity():
    for _, run in runners(Bilinear(), X):
        with pytest.raises(ArityError, match=r"family_id=test-package\.bilinear\.v1.*expected 2 inputs, got 1"):
            run()
    with pytest.raises(ArityError, match="expected 2 inputs, got 3"):
        apply(Bilinear(), X, X, X)


@pytest.mark.clause("X6.1")
@pytest.mark.parametrize("count", [-1, 1.0, True, "1", None], ids=repr)
@pytest.mark.parametrize("member", ["input_count", "output_count"])
def test_counts_are_non_negative_integers(member, count):
    odd = type("Odd", (ExtensionOp,), {"family_id": "test-package.odd.v1", member: count, "lower_to_standard_ops": lambda op, x: (x,)})
    with pytest.raises(InvalidConfig, match=rf"extension test-package\.odd\.v1: given {member}={count!r}"):
        apply(odd(), X)


@pytest.mark.clause("X6.1")
def test_a_count_may_be_zero():
    class Numbers(ExtensionOp):
        family_id = "test-package.numbers.v1"
        input_count = 0

        def lower_to_standard_ops(self):
            return (jnp.arange(3.0),)

    class Sink(ExtensionOp):
        family_id = "test-package.sink.v1"
        output_count = 0

        def infer_output_meta(self, inputs):
            return []

        def lower_to_standard_ops(self, x):
            return ()

    for _, run in ways(lambda x: apply(Numbers())[0] + x, np.ones(3)):
        np.testing.assert_array_equal(run(), [1.0, 2.0, 3.0])
    for _, run in ways(lambda x: apply(Sink(), x), X):
        assert run() == ()


@pytest.mark.clause("X6.3")
@pytest.mark.parametrize("count", [0, 2])
def test_inference_gives_one_entry_an_output(count):
    class Odd(ExtensionOp):
        family_id = "test-package.odd.v1"

        def infer_output_meta(self, inputs):
            return [inputs[0]] * count

        def lower_to_standard_ops(self, x):
            return (x,)

    for _, run in runners(Odd(), X):
        with pytest.raises(
            ArityError, match=rf"infer_output_meta of extension, family_id=test-package\.odd\.v1: given {count} entries; needed 1"
        ):
            run()


@pytest.mark.clause("X6.3")
@pytest.mark.parametrize(
    "returned",
    [["float64"], [("floot", (3,))], [(np.float64, 3)], [(np.float64, (-1,))], [(np.float64, (3.0,))], [None]],
    ids=str,
)
def test_metas_that_are_none(returned):
    class Odd(ExtensionOp):
        family_id = "test-package.odd.v1"

        def infer_output_meta(self, inputs):
            return returned

    with pytest.raises(InvalidConfig, match=r"infer_output_meta of extension test-package\.odd\.v1, output 0"):
        apply(Odd(), X)


@pytest.mark.clause("X6.5")
def test_rules_of_a_wrong_shape():
    class Short(ExtensionAdRule):
        family_id = MaxAndIndex.family_id

        def linearize(self, op, primals, outputs, tangents):
            return [None]

    class Bare(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, primals, outputs, tangents):
            return tangents[0]

    rules = ExtensionRuleSet(Short(), Bare())
    with pytest.raises(
        ArityError,
        match=r"linearize of extension, family_id=test-package\.max_and_index\.v1: given 1 entries; needed 2, one for each output",
    ):
        jax.grad(lambda x: apply(MaxAndIndex(), x, rules=rules)[0].sum())(X)
    with pytest.raises(InvalidConfig, match=r"linearize of extension test-package\.scaled_square\.v1.*tuple or list"):
        jax.grad(lambda x: apply(ScaledSquare(), x, rules=rules)[0].sum())(X)
    with pytest.raises(InvalidConfig, match="ExtensionRuleSet"):
        apply(ScaledSquare(), X, rules=[Bare()])


@pytest.mark.clause("X6.5")
def test_a_transpose_rule_gives_one_entry_an_input():
    class Short(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def transpose_rule(self, op, cotangents, inputs):
            return []

    transpose = jax.linear_transpose(lambda x: apply(HostCumulate(), x, rules=ExtensionRuleSet(Short()))[0], X)
    with pytest.raises(
        ArityError,
        match=r"transpose_rule of extension, family_id=test-package\.host_cumulate\.v1: given 0 entries; needed 1, one for each input",
    ):
        transpose(X)


@dataclasses.dataclass(frozen=True)
class Sections(ExtensionOp):
    """As many inputs as `joined`, stacked, then cut into `parts` outputs; the payload decides both counts."""

    family_id = "test-package.sections.v1"
    joined: int
    parts: int

    input_count = property(lambda op: op.joined)
    output_count = property(lambda op: op.parts)

    def lower_to_standard_ops(self, *arrays):
        return tuple(jnp.split(jnp.concatenate(arrays), self.parts))


@pytest.mark.clause("X6.6")
@pytest.mark.parametrize(("joined", "parts"), [(1, 3), (2, 4), (3, 1)])
def test_the_payload_may_decide_the_counts(joined, parts):
    xs = [np.arange(12.0) + 100 * i for i in range(joined)]
    for _, run in ways(lambda *xs: apply(Sections(joined, parts), *xs), *xs):
        for got, want in zip(run(), np.split(np.concatenate(xs), parts), strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(ArityError, match=f"expected {joined} inputs, got {joined + 1}"):
        apply(Sections(joined, parts), *xs, xs[0])
