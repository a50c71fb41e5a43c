"""Section 12 of the contract: each failure has its class and names the family, eagerly, in a user's jit
and in an Engine.
"""

import datetime

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import TensorMeta, host_errors, routes, trace
from tenferro_jax.engine import Engine, compile_std_to_exec
from tenferro_jax.errors import (
    BackendFailure,
    DTypeError,
    ExtensionLoweringError,
    InvalidConfig,
    MalformedFamilyId,
    ShapeError,
    Unsupported,
)
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    register_extension,
    require_equal,
)
from tenferro_jax.extension.kernels import NO_RUNTIMES
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.extension.rules import NO_RULES
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.tensor import TracedTensor

from ..extension_ops import (
    RULES,
    RUNTIMES,
    HostCumulate,
    KernelSine,
    ScaledSquare,
)
from ..helpers import each_ends_in, ends_in
from .runners import ways

X = np.arange(6.0).reshape(2, 3)

JIT = jax.errors.JaxRuntimeError


class Same(ExtensionOp):
    """Its output has the metas of its input."""

    def infer_output_meta(self, inputs):
        return [inputs[0]]


def require_failure(call, family_id, kind, *parts, in_jit=None):
    """The call fails each way with exactly this class, and says all parts; `in_jit` where a
    compiled program cannot keep the class.
    """
    for name, run in ways(call, X):
        error = ends_in(run, (kind, in_jit or kind))
        assert type(error.value) is (in_jit if in_jit and name == "jit" else kind), name
        for part in (family_id, *parts):
            assert part in str(error.value), name
        yield name, error.value


CALLS: list = []


class Failing(Same):
    family_id = "test-package.failing.v1"

    def eager_execute(self, x):
        CALLS.append(1)
        raise LookupError("no such table")


@pytest.mark.clause("X8.8", "X12.1", "X12.14")
def test_eager_execute_raises():
    call = lambda x: apply(Failing(), x)[0]
    for name, error in require_failure(
        call, Failing.family_id, BackendFailure, "LookupError", "no such table", in_jit=JIT
    ):
        assert name == "jit" or type(error.__cause__) is LookupError
        assert name == "jit" or len(CALLS) == 1  # not tried again
        CALLS.clear()
    for run in (jax.jit(call), jax.vmap(jax.jit(call)), jax.jit(lambda x: jax.lax.map(call, x))):
        with (
            pytest.raises(
                BackendFailure, match=r"test-package\.failing\.v1.*no such table"
            ) as error,
            host_errors(),
        ):
            jax.block_until_ready(run(X))
        assert type(error.value.__cause__) is JIT


@pytest.mark.clause("X12.14")
def test_a_call_that_fails_after_one_that_did_not():
    """JAX then raises ValueError."""

    class Small(Same):
        family_id = "test-package.small.v1"

        def eager_execute(self, x):
            if x.sum() >= 100:
                raise LookupError("too much")
            return (x,)

    run = jax.jit(lambda x: apply(Small(), x)[0] + apply(Small(), x + 1)[0])
    assert run(X).shape == X.shape
    for _ in range(2):
        with pytest.raises(BackendFailure, match=f"{Small.family_id}.*too much"), host_errors():
            jax.block_until_ready(run(X * 100))


@pytest.mark.cpu
@pytest.mark.clause("X12.2")
def test_a_missing_capability_does_not_fall_back():
    class Particular(Same):
        family_id = "test-package.particular.v1"

        def lower_to_standard_ops(self, x):
            raise AssertionError("another route was tried")

        def eager_execute(self, x):
            raise AssertionError("another route was tried")

    def kernel(op, x):
        raise BackendFailure(
            where=f"kernel of {op.family_id}",
            given="a cpu without AMX",
            needed="AMX",
            fix="Leave the kernel out.",
        )

    runtimes = ExtensionRuntimeSet(Kernel(Particular.family_id, "cpu", kernel))
    call = lambda x: apply(Particular(), x, runtimes=runtimes)[0]
    assert len(list(require_failure(call, Particular.family_id, BackendFailure, "AMX"))) == 3

    class OnHost(Same):
        family_id = "test-package.on_host.v1"

        def eager_execute(self, x):
            raise BackendFailure(
                where=self.family_id, given="no cuTENSOR", needed="cuTENSOR", fix="Install it."
            )

    assert (
        len(
            list(
                require_failure(
                    lambda x: apply(OnHost(), x)[0],
                    OnHost.family_id,
                    BackendFailure,
                    "cuTENSOR",
                    in_jit=JIT,
                )
            )
        )
        == 3
    )
    error = ends_in(lambda: apply(OnHost(), X), BackendFailure)
    assert (error.value.needed, error.value.fix) == ("cuTENSOR", "Install it.")

    class Unnamed(Same):
        family_id = "test-package.unnamed_failure.v1"

        def eager_execute(self, x):
            raise BackendFailure(where="the table", given="none", needed="a table", fix="Make it.")

    for name, error in require_failure(
        lambda x: apply(Unnamed(), x)[0], Unnamed.family_id, BackendFailure, "a table", in_jit=JIT
    ):
        assert name == "jit" or (error.needed, error.fix, error.__cause__.where) == (
            "a table",
            "Make it.",
            "the table",
        )


class Nothing(Same):
    family_id = "test-package.nothing.v1"


class Declining(Same):
    family_id = "test-package.declining.v1"

    def lower_to_standard_ops(self, x):
        return None


@pytest.mark.cpu
@pytest.mark.clause("X12.3", "X12.12")
@pytest.mark.parametrize("op", [Nothing(), Declining()], ids=lambda op: type(op).__name__)
def test_no_route_when_called(op):
    assert (
        len(
            list(
                require_failure(
                    lambda x: apply(op, x)[0],
                    op.family_id,
                    Unsupported,
                    "platform cpu",
                    "lower_to_standard_ops",
                )
            )
        )
        == 3
    )
    ends_in(
        (
            lambda: transform(lambda x: apply(op, x)[0])(X)
            for transform in (jax.vmap, jax.checkpoint, lambda f: lambda x: jax.lax.map(f, x))
        ),
        Unsupported,
        op.family_id.replace(".", r"\."),
    )


@pytest.mark.cpu
@pytest.mark.clause("X12.3", "X12.12")
def test_no_route_says_what_is_there_already():
    elsewhere = ExtensionRuntimeSet(
        *(Kernel(op.family_id, "cuda", lambda op, x: (x,)) for op in (Nothing(), Declining()))
    )
    for op, runtimes, given in (
        (Nothing(), NO_RUNTIMES, "platform cpu"),
        (Nothing(), elsewhere, "platform cpu; its kernels are for cuda"),
        (
            Declining(),
            elsewhere,
            "platform cpu; its lowering returned None for float64[2,3]; its kernels are for cuda",
        ),
    ):
        error = ends_in(lambda: apply(op, X, runtimes=runtimes), Unsupported)
        assert error.value.given == given
        assert error.value.fix == "Override lower_to_standard_ops, or eager_execute."
        assert "a kernel for cpu" in error.value.needed


@pytest.mark.clause("X12.4", "X12.12")
@pytest.mark.parametrize("op", [Nothing(), Declining()], ids=lambda op: type(op).__name__)
def test_no_route_when_compiled(op):
    ran = []

    class Before(HostCumulate):
        family_id = "test-package.before.v1"

        def eager_execute(self, x):
            ran.append(1)
            return HostCumulate.eager_execute(self, x)

    f = lambda x: apply(op, apply(Before(), x)[0])[0]
    graph = trace(f, X)
    alone = trace(lambda x: apply(op, x)[0], X)
    for run in (
        lambda: compile_std_to_exec(graph),
        lambda: Engine().compile(graph),
        lambda: jax.jit(f).lower(X),
        lambda: routes(f, X),
        lambda: tj.export(alone),
    ):
        error = ends_in(run, Unsupported)
        assert type(error.value) is Unsupported
        assert op.family_id in str(error.value)
    assert not ran


@pytest.mark.clause("X8.7", "X12.9")
@pytest.mark.parametrize(
    ("returned", "kind", "given"),
    [
        (
            lambda x: np.ma.masked_array(x, x > 1),
            BackendFailure,
            "output 0: given a masked array float64[2,3]; needed a plain NumPy array",
        ),
        (
            lambda x: jax.device_put(x, jax.devices()[-1]),
            BackendFailure,
            "output 0: given a jax.Array float64[2,3], a tensor on a device; needed a NumPy array",
        ),
        (
            lambda x: x.astype(">f8"),
            InvalidConfig,
            "output 0: given float64[2,3] of the dtype '>f8', in the other byte order",
        ),
    ],
)
def test_eager_execute_returns_what_would_be_changed(returned, kind, given):
    op = type(
        "Odd",
        (Same,),
        {"family_id": "test-package.odd_host.v1", "eager_execute": lambda op, x: (returned(x),)},
    )()
    error = ends_in(lambda: apply(op, X), kind)
    assert f"eager_execute of extension {op.family_id}, {given}" in str(error.value)


@pytest.mark.clause("X12.10")
def test_a_class_that_states_no_family_id_is_named():
    class Anonymous(Same):
        pass

    class Rule(ExtensionAdRule):
        pass

    for use, name in (
        (lambda: apply(Anonymous(), X), "Anonymous"),
        (lambda: register_extension(ExtensionFactory(Anonymous)), "Anonymous"),
        (lambda: ExtensionRuleSet(Rule()), "Rule"),
    ):
        ends_in(use, MalformedFamilyId, rf"class .*{name} states no family_id")


@pytest.mark.clause("X12.10")
@pytest.mark.parametrize("family_id", ["nonsense", "a.b", "a b.c.v1", "a.b.vv", 7, None], ids=str)
def test_a_malformed_family_id(family_id):
    op = type("Odd", (Same,), {"family_id": family_id, "lower_to_standard_ops": lambda op, x: (x,)})
    for _, error in require_failure(
        lambda x: apply(op(), x)[0], repr(family_id), MalformedFamilyId, "<package>.<op>.v<major>"
    ):
        assert error.family_id == family_id
    ends_in(lambda: register_extension(ExtensionFactory(op)), MalformedFamilyId)


@pytest.mark.clause("X12.11")
def test_what_cannot_be_lowered():
    class Refusing(Same):
        family_id = "test-package.refusing.v1"

        def lower_to_standard_ops(self, x):
            raise ExtensionLoweringError(f"{self.family_id}: the window must be odd")

    call = lambda x: apply(Refusing(), x)[0]
    assert (
        len(
            list(
                require_failure(
                    call, Refusing.family_id, ExtensionLoweringError, "the window must be odd"
                )
            )
        )
        == 3
    )
    ends_in(
        (
            lambda: transform(call)(X)
            for transform in (jax.vmap, jax.checkpoint, lambda f: lambda x: jax.lax.map(f, x))
        ),
        ExtensionLoweringError,
        "the window must be odd",
    )


class Raising(ExtensionOp):
    """Every method but inference raises."""

    family_id = "test-package.raising_everywhere.v1"

    def infer_output_meta(self, inputs):
        return inputs

    def lower_to_standard_ops(self, x):
        raise ZeroDivisionError("lowering")

    def batched(self, in_axes):
        raise ZeroDivisionError("batched")


class RaisingRule(ExtensionAdRule):
    family_id = ScaledSquare.family_id

    def linearize(self, op, primals, outputs, tangents):
        raise ZeroDivisionError("linearize")


def broken_kernel(op, x):
    raise ZeroDivisionError("kernel")


BROKEN_KERNEL = ExtensionRuntimeSet(Kernel(KernelSine.family_id, "cpu", broken_kernel))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("method", "run"),
    [
        ("lower_to_standard_ops", lambda: apply(Raising(), X)),
        ("batched()", lambda: jax.vmap(lambda x: apply(Raising(), x)[0])(X)),
        (
            "linearize",
            lambda: jax.grad(
                lambda x: apply(ScaledSquare(), x, rules=ExtensionRuleSet(RaisingRule()))[0].sum()
            )(X),
        ),
        ("cpu kernel broken_kernel", lambda: apply(KernelSine(), X, runtimes=BROKEN_KERNEL)),
    ],
)
def test_an_authors_exception_passes_with_a_note(method, run):
    error = ends_in(run, ZeroDivisionError)
    notes = [
        note for note in error.value.__notes__ if note.startswith("in ")
    ]  # JAX adds one of its own
    assert len(notes) == 1
    assert notes[0].startswith(f"in {method} of extension test-package.")


@pytest.mark.parametrize(
    "value",
    [
        np.array("a"),
        np.array(datetime.date(2026, 11, 21), "datetime64[D]"),
        np.zeros(2, [("a", "i4")]),
    ],
)
def test_arrays_that_jax_has_not(value):
    ends_in(lambda: apply(ScaledSquare(), value), DTypeError, r"scaled_square\.v1, input 0")


@pytest.mark.clause("X10.1", "X8.13")
def test_what_is_no_set_is_refused():
    each_ends_in(
        (
            (
                lambda: ExtensionRuleSet(RaisingRule),
                lambda: RULES.merge(None),
                lambda: apply(ScaledSquare(), X, rules=3),
                lambda: apply(ScaledSquare(), X, rules=[RaisingRule()]),
                lambda: TracedTensor.apply(ScaledSquare(), X, rules=3),
                lambda: NO_RULES.with_rule(3),
            ),
            InvalidConfig,
            r"ExtensionRuleSet|ExtensionAdRule",
        ),
        (
            (
                lambda: RUNTIMES.merge(None),
                lambda: apply(ScaledSquare(), X, runtimes=3),
                lambda: TracedTensor.apply(ScaledSquare(), X, runtimes=3),
            ),
            InvalidConfig,
            r"ExtensionRuntimeSet|Kernel",
        ),
    )


@pytest.mark.cpu
def test_a_lazy_tensor_takes_runtimes():
    (y,) = TracedTensor.apply(KernelSine(offset=1.0), TracedTensor.from_array(X), runtimes=RUNTIMES)
    np.testing.assert_allclose(y.eval(), np.sin(X) + 1)


def test_the_constraint_that_is_named_is_one_that_jax_takes():
    class Even(ScaledSquare):
        family_id = "test-package.even.v1"

        def infer_output_meta(self, inputs):
            return require_equal(0, inputs[0].shape[0] % 2) or inputs

    (n,) = jax.export.symbolic_shape("n")
    ends_in(
        lambda: jax.export.export(jax.jit(lambda x: apply(Even(), x)[0]))(
            jax.ShapeDtypeStruct((n,), jnp.float64)
        ),
        ShapeError,
        r"constraints=\('mod\(n, 2\) == 0',\)",
    )
    (n,) = jax.export.symbolic_shape("n", constraints=("mod(n, 2) == 0",))
    exported = jax.export.export(jax.jit(lambda x: apply(Even(), x)[0]))(
        jax.ShapeDtypeStruct((n,), jnp.float64)
    )
    assert exported.call(np.ones(4)).shape == (4,)


@pytest.mark.cpu
@pytest.mark.clause("X8.11")
@pytest.mark.parametrize("why", [True, None, ["no"]], ids=str)
def test_a_kernel_declines_in_words(why):
    runtimes = ExtensionRuntimeSet(
        Kernel(KernelSine.family_id, "cpu", broken_kernel, lambda op, x: why)
    )
    ends_in(
        lambda: apply(KernelSine(), X, runtimes=runtimes),
        InvalidConfig,
        r"cpu kernel broken_kernel, declines of extension test-package\.kernel_sine\.v1: given .*needed text",
    )


WEIGHED = "test-package.weighed.v1"


@pytest.mark.parametrize(
    "transform",
    [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: lambda w: jax.vmap(f)(w[None])],
    ids=["grad", "jit of grad", "vmap"],
)
@pytest.mark.parametrize("how", ["derived", "written", "nested", "in a helper"])
def test_a_lowering_that_closes_over_a_traced_value_is_refused(transform, how):
    """Its derivative by that value was zero, without a word."""

    def f(w):
        nest, helper = {"w": w}, lambda x: x * w

        class Weighed(ExtensionOp):
            family_id = WEIGHED

            def lower_to_standard_ops(self, x):
                if how == "nested":
                    return (x * nest["w"],)
                if how == "in a helper":
                    return (helper(x),)
                return (x * w,)

            def linearize(self, primals, outputs, tangents):
                return (tangents[0] * w,)

        class Inferred(Weighed):
            family_id = "test-package.inferred_weighed.v1"

            def infer_output_meta(self, metas):
                return metas

        op = Weighed if how in ("derived", "in a helper") else Inferred
        return apply(op(), X)[0].sum()

    ends_in(
        lambda: transform(f)(jnp.float64(2)),
        InvalidConfig,
        r"test-package\.(inferred_)?weighed\.v1: .*closes over",
    )
    assert f(2.0) == 2 * X.sum()


def test_a_lowering_may_close_over_anything_else():
    """Also over what is no pytree, such as a dict whose keys have no order."""
    scale, unordered = np.float64(3), {1: 2.0, "a": 3.0}

    class Weighed(ExtensionOp):
        family_id = WEIGHED

        def lower_to_standard_ops(self, x):
            return (x * scale * unordered[1],)

    assert np.array_equal(apply(Weighed(), X)[0], 6 * X)


def test_calls_that_name_nothing_are_refused():
    given = jax.custom_vjp(lambda x: x)
    each_ends_in(
        (lambda: routes(3, X), InvalidConfig, "routes: given 3; needed a function"),
        (lambda: tj.op("test-mistakes.bare.v1")(given), InvalidConfig, "custom_vjp without a rule"),
        (
            lambda: tj.op("test-mistakes.kernel.v1")(jnp.sin).def_kernel("gpu"),
            InvalidConfig,
            r"write cuda \(NVIDIA\) or rocm",
        ),
        (
            lambda: GraphBuilder().input(TensorMeta("floaty", (2,))),
            InvalidConfig,
            "given TensorMeta.dtype='floaty'",
        ),
    )
