"""Section 6 of the contract: how many inputs, outputs, tangents and cotangents, and what fields and
methods may return.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.errors import (
    InvalidConfig,
)
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    apply,
)

from ..extension_ops import (
    Bilinear,
    HostCumulate,
    MaxAndIndex,
    ScaledSquare,
)
from ..helpers import each_ends_in, ends_in, equal
from .runners import runners, ways

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.clause("X6.2", "X12.7")
def test_wrong_arity():
    each_ends_in(
        (
            (run for _, run in runners(Bilinear(), X)),
            InvalidConfig,
            r"family_id=test-package\.bilinear\.v1.*expected 2 inputs, got 1",
        ),
        (lambda: apply(Bilinear(), X, X, X), InvalidConfig, "expected 2 inputs, got 3"),
        (
            (run for _, run in ways(lambda x: apply(Bilinear())[0], X)),
            InvalidConfig,
            "expected 2 inputs, got 0",
        ),
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

    ends_in(
        (run for _, run in runners(Odd(), X)),
        InvalidConfig,
        rf"infer_output_meta of extension test-package\.odd\.v1: given {count} "
        rf"entries; needed 1",
    )


NO_DTYPES = (np.dtype(object), np.dtype("U3"), np.dtype("M8[s]"), np.dtype("longdouble"), "floot")


@pytest.mark.clause("X6.3", "X7.1")
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (["float64"], ""),
        ([(np.float64, 3)], ""),
        ([(np.float64, (-1,))], ""),
        ([(np.float64, (3.0,))], ""),
        ([None], ""),
        *(([(dtype, (3,))], "is not a dtype of JAX") for dtype in NO_DTYPES),
    ],
    ids=str,
)
def test_metas_that_are_none(returned, said):
    class Odd(ExtensionOp):
        family_id = "test-package.odd.v1"

        def infer_output_meta(self, inputs):
            return returned

    ends_in(
        lambda: apply(Odd(), X),
        InvalidConfig,
        rf"infer_output_meta of extension test-package\.odd\.v1, output 0.*{said}",
    )


@pytest.mark.clause("X6.5")
def test_rules_of_a_wrong_shape():
    class OneTangent(ExtensionAdRule):
        family_id = MaxAndIndex.family_id

        def linearize(self, op, primals, outputs, tangents):
            return [None]

    class NoCotangent(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def transpose_rule(self, op, cotangents, inputs):
            return []

    linear, transposed = ExtensionRuleSet(OneTangent()), ExtensionRuleSet(NoCotangent())
    transpose = jax.linear_transpose(lambda x: apply(HostCumulate(), x, rules=transposed)[0], X)
    each_ends_in(
        (
            lambda: jax.grad(lambda x: apply(MaxAndIndex(), x, rules=linear)[0].sum())(X),
            InvalidConfig,
            r"linearize of extension test-package\.max_and_index\.v1: given 1 entry; "
            r"needed 2, one for each output",
        ),
        (
            lambda: transpose(X),
            InvalidConfig,
            r"transpose_rule of extension test-package\.host_cumulate\.v1: given 0 "
            r"entries; needed 1, one for each input",
        ),
    )


@dataclasses.dataclass(frozen=True)
class Sections(ExtensionOp):
    """As many inputs as `joined`, stacked, then cut into `parts` outputs; the payload decides both
    counts.
    """

    family_id = "test-package.sections.v1"

    @property
    def input_count(self):
        return self.joined

    @property
    def output_count(self):
        return self.parts

    joined: int
    parts: int

    def lower_to_standard_ops(self, *arrays):
        return tuple(jnp.split(jnp.concatenate(arrays), self.parts))


@pytest.mark.clause("X6.6")
@pytest.mark.parametrize(("joined", "parts"), [(1, 3), (2, 4), (3, 1)])
def test_the_payload_may_decide_the_counts(joined, parts):
    xs = [np.arange(12.0) + 100 * i for i in range(joined)]
    for _, run in ways(lambda *xs: apply(Sections(joined, parts), *xs), *xs):
        equal(*zip(run(), np.split(np.concatenate(xs), parts), strict=True))
    ends_in(
        lambda: apply(Sections(joined, parts), *xs, xs[0]),
        InvalidConfig,
        f"expected {joined} inputs?, got {joined + 1}",
    )


@dataclasses.dataclass(frozen=True)
class Formed(ExtensionOp):
    """x * x; in its other form with a residual, or with something wrong."""

    family_id = "test-package.formed_square.v1"

    @property
    def output_count(self):
        return 2 if self.form == "residual" else 1

    form: str = ""

    def lower_to_standard_ops(self, x):
        return {
            "": (x * x,),
            "residual": (x * x, 2 * x),
            "shape": ((x * x)[None],),
            "dtype": ((x * x).astype("float32"),),
        }[self.form]


@pytest.mark.clause("X10.12")
@pytest.mark.parametrize("form", ["shape", "dtype", "residual", "number", "family"])
def test_the_first_outputs_of_a_differentiable_form_are_those_of_the_op(form):
    class Rule(ExtensionAdRule):
        family_id = Formed.family_id

        def differentiable_form(self, op):
            return {"number": 3, "family": ScaledSquare()}.get(form) or Formed(form)

        def linearize(self, op, primals, outputs, tangents):
            return (outputs[1] * tangents[0], 2 * tangents[0])

    rules = ExtensionRuleSet(Rule())
    call = lambda x: apply(Formed(), x, rules=rules)[0].sum()
    if form == "residual":
        np.testing.assert_array_equal(jax.grad(call)(X), 2 * X)
        return
    needed = (
        "an op of family"
        if form in ("number", "family")
        else r"one whose first outputs are float64\["
    )
    ends_in(
        (lambda: run(X) for run in (jax.grad(call), jax.grad(lambda x: jax.vmap(call)(x).sum()))),
        InvalidConfig,
        rf"differentiable_form of extension test-package\.formed_square\.v1: .*needed {needed}",
    )


@dataclasses.dataclass
class Mutable:
    k: int = 0


@dataclasses.dataclass(frozen=True)
class Payload(ExtensionOp):
    family_id = "test-package.payload_mistakes.v1"
    value: object | Mutable = None


@pytest.mark.clause("X5.5")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Mutable(), "a mutable dataclass Mutable"),
        ((1, Mutable()), "a mutable dataclass Mutable"),
        (jnp.float32, r"numpy\.dtype\('float32'\)"),
        ([1], "a list as a tuple"),
    ],
    ids=str,
)
def test_a_payload_that_is_refused_says_where_and_what_to_do(value, text):
    ends_in(
        lambda: Payload(value),
        InvalidConfig,
        rf"test-package\.payload_mistakes\.v1\), field value.*{text}",
    )


@pytest.mark.clause("X4.1")
def test_a_field_that_only_the_constructor_has_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Init(ExtensionOp):
        family_id = "test-package.init_var.v1"
        k: dataclasses.InitVar[int]

    ends_in(
        lambda: Init(1),
        InvalidConfig,
        r"test-package\.init_var\.v1\): given a field annotated with InitVar",
    )


@pytest.mark.clause("X6.3", "X6.4", "X6.5")
def test_what_is_no_sequence_breaks_a_numbered_clause():
    class Whole(ExtensionOp):
        """Right: each method gives a tuple."""

        family_id = "test-package.whole.v1"

        def lower_to_standard_ops(self, x):
            return (x,)

    class NumberOfMetas(Whole):
        family_id = "test-package.number_of_metas.v1"

        def infer_output_meta(self, metas):
            return 7

    class BareMeta(Whole):
        family_id = "test-package.bare_meta.v1"

        def infer_output_meta(self, metas):
            return metas[0]

    class BareArray(Whole):
        family_id = "test-package.bare_array.v1"

        def lower_to_standard_ops(self, x):
            return x

    class BareTangent(Whole):
        family_id = "test-package.bare_tangent.v1"

        def linearize(self, primals, outputs, tangents):
            return tangents[0]

    for clause, op in (
        ("X6.3", NumberOfMetas()),
        ("X6.3", BareMeta()),
        ("X6.4", BareArray()),
        ("X6.5", BareTangent()),
    ):
        differentiated = lambda: jax.jvp(lambda x: apply(op, x), (X,), (X,))
        refused = ends_in(differentiated, InvalidConfig, "tuple or list|2 entries")
        assert refused.value.clause == clause


def test_what_is_annotated_is_a_field():
    class Undecorated(ExtensionOp):
        family_id = "test-package.undecorated.v1"
        factor: float = 2.0

        def lower_to_standard_ops(self, x):
            return (self.factor * x,)

    refused = r"annotated factor in a class that is no dataclass.*Write @dataclass\(frozen=True\)"
    ends_in(lambda: apply(Undecorated(), X), InvalidConfig, refused)
