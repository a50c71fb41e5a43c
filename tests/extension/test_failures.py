"""Section 12 of the contract: each failure has its class and names the family, eagerly, in a user's jit and in an Engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import Engine, compile_std_to_exec, host_errors, routes, trace
from tenferro_jax.errors import (
    ADRuleError,
    ArityError,
    BackendFailure,
    Duplicate,
    ExtensionLoweringError,
    InvalidConfig,
    MalformedFamilyId,
    MetaMismatchError,
    Unsupported,
)
from tenferro_jax.extension import ExtensionAdRule, ExtensionOp, ExtensionRuleSet, ExtensionRuntimeSet, Kernel, apply, register_extension
from tenferro_jax.extension import registry as registry_module
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.extension.rules import NO_RULES
from tenferro_jax.extension.runtimes import NO_RUNTIMES

from ..extension_ops import Bilinear, HostCumulate, ScaledSquare
from .runners import ways

X = np.arange(6.0).reshape(2, 3)
JIT = jax.errors.JaxRuntimeError


class Same(ExtensionOp):
    """Its output has the metas of its input."""

    def infer_output_meta(self, inputs):
        return [inputs[0]]


def require_failure(call, family_id, kind, *parts, in_jit=None):
    """The call fails each way with exactly this class, and says all parts; `in_jit` where a compiled program cannot keep the class."""
    for name, run in ways(call, X):
        with pytest.raises((kind, in_jit or kind)) as error:
            run()
        assert type(error.value) is (in_jit if in_jit and name == "jit" else kind), name
        for part in (family_id, *parts):
            assert part in str(error.value), name
        yield name, error.value


class Failing(Same):
    family_id = "test-package.failing.v1"

    def eager_execute(self, x):
        CALLS.append(1)
        raise LookupError("no such table")


CALLS: list = []


@pytest.mark.clause("X8.8", "X12.1", "X12.14")
def test_eager_execute_raises():
    call = lambda x: apply(Failing(), x)[0]  # noqa: E731
    for name, error in require_failure(call, Failing.family_id, BackendFailure, "LookupError", "no such table", in_jit=JIT):
        assert name == "jit" or type(error.__cause__) is LookupError
        assert name == "jit" or len(CALLS) == 1  # not tried again
        CALLS.clear()
    for run in (jax.jit(call), jax.vmap(jax.jit(call)), jax.jit(lambda x: jax.lax.map(call, x))):
        with pytest.raises(BackendFailure, match=r"test-package\.failing\.v1.*no such table") as error, host_errors():
            jax.block_until_ready(run(X))
        assert type(error.value.__cause__) is JIT


@pytest.mark.clause("X12.2")
def test_a_missing_capability_does_not_fall_back():
    class Particular(Same):
        family_id = "test-package.particular.v1"

        def lower_to_standard_ops(self, x):
            raise AssertionError("another route was tried")

        eager_execute = lower_to_standard_ops

    def kernel(op, x):
        raise BackendFailure(where=f"kernel of {op.family_id}", given="a cpu without AMX", needed="AMX", fix="Leave the kernel out.")

    runtimes = ExtensionRuntimeSet(Kernel(Particular.family_id, "cpu", kernel))
    call = lambda x: apply(Particular(), x, runtimes=runtimes)[0]  # noqa: E731
    assert len(list(require_failure(call, Particular.family_id, BackendFailure, "AMX"))) == 3

    class OnHost(Same):
        family_id = "test-package.on_host.v1"

        def eager_execute(self, x):
            raise BackendFailure(where=self.family_id, given="no cuTENSOR", needed="cuTENSOR", fix="Install it.")

    assert len(list(require_failure(lambda x: apply(OnHost(), x)[0], OnHost.family_id, BackendFailure, "cuTENSOR", in_jit=JIT))) == 3
    with pytest.raises(BackendFailure) as error:
        apply(OnHost(), X)
    assert (error.value.needed, error.value.fix) == ("cuTENSOR", "Install it.")

    class Unnamed(Same):
        family_id = "test-package.unnamed_failure.v1"

        def eager_execute(self, x):
            raise BackendFailure(where="the table", given="none", needed="a table", fix="Make it.")

    for name, error in require_failure(lambda x: apply(Unnamed(), x)[0], Unnamed.family_id, BackendFailure, "a table", in_jit=JIT):
        assert name == "jit" or (error.needed, error.fix, error.__cause__.where) == ("a table", "Make it.", "the table")


class Nothing(Same):
    family_id = "test-package.nothing.v1"


class Declining(Same):
    family_id = "test-package.declining.v1"

    def lower_to_standard_ops(self, x):
        return None


@pytest.mark.clause("X12.3", "X12.12")
@pytest.mark.parametrize("op", [Nothing(), Declining()], ids=lambda op: type(op).__name__)
def test_no_route_when_called(op):
    assert len(list(require_failure(lambda x: apply(op, x)[0], op.family_id, Unsupported, "platform cpu", "lower_to_standard_ops"))) == 3
    for transform in (jax.vmap, jax.checkpoint, lambda f: lambda x: jax.lax.map(f, x)):
        with pytest.raises(Unsupported, match=op.family_id.replace(".", r"\.")):
            transform(lambda x: apply(op, x)[0])(X)


@pytest.mark.clause("X12.3", "X12.12")
def test_no_route_says_what_is_there_already():
    elsewhere = ExtensionRuntimeSet(*(Kernel(op.family_id, "cuda", lambda op, x: (x,)) for op in (Nothing(), Declining())))
    for op, runtimes, given, fix in (
        (Nothing(), NO_RUNTIMES, "platform cpu", "Override lower_to_standard_ops, or override eager_execute."),
        (Nothing(), elsewhere, "platform cpu; its kernels are for cuda", "Override lower_to_standard_ops, or override eager_execute."),
        (
            Declining(),
            elsewhere,
            "platform cpu; its lower_to_standard_ops returned None for these inputs; its kernels are for cuda",
            "Lower these inputs too, or override eager_execute.",
        ),
    ):
        with pytest.raises(Unsupported) as error:
            apply(op, X, runtimes=runtimes)
        assert (error.value.given, error.value.fix) == (given, fix)
        assert "a kernel for cpu" in error.value.needed


@pytest.mark.clause("X12.4", "X12.12")
@pytest.mark.parametrize("op", [Nothing(), Declining()], ids=lambda op: type(op).__name__)
def test_no_route_when_compiled(op):
    ran = []

    class Before(HostCumulate):
        family_id = "test-package.before.v1"

        def eager_execute(self, x):
            ran.append(1)
            return super().eager_execute(x)

    f = lambda x: apply(op, apply(Before(), x)[0])[0]  # noqa: E731
    graph = trace(f, X)
    alone = trace(lambda x: apply(op, x)[0], X)
    for run in (
        lambda: compile_std_to_exec(graph),
        lambda: Engine().compile(graph),
        lambda: jax.jit(f).lower(X),
        lambda: routes(f, X),
        lambda: tj.export(alone),
    ):
        with pytest.raises(Unsupported) as error:
            run()
        assert type(error.value) is Unsupported
        assert op.family_id in str(error.value)
    assert not ran


@pytest.mark.clause("X12.5")
def test_differentiated_without_a_rule():
    class OnlyForward(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def linearize(self, op, primals, outputs, tangents):
            return apply(op, tangents[0])

    for kind, op, rules in (("jvp", ScaledSquare(), NO_RULES), ("transpose", HostCumulate(), ExtensionRuleSet(OnlyForward()))):
        f = lambda x, op=op, rules=rules: apply(op, x, rules=rules)[0].sum()  # noqa: E731
        gradients = [
            lambda x, f=f: jax.grad(f)(x),
            lambda x, f=f: tj.grad(trace(f, X)).to_jax()(x),
            lambda x, f=f: jax.vmap(jax.grad(f))(x),
        ]
        for gradient in gradients:
            for _, error in require_failure(gradient, op.family_id, ADRuleError, f"{kind} of extension"):
                assert (error.family_id, error.kind) == (op.family_id, kind)


@pytest.mark.clause("X12.6")
def test_registered_twice(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})
    register_extension(ExtensionFactory(ScaledSquare))
    with pytest.raises(Duplicate, match=r"test-package\.scaled_square\.v1 a second time") as error:
        register_extension(ExtensionFactory(ScaledSquare))
    assert type(error.value) is Duplicate


@pytest.mark.clause("X12.7")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_inputs(count):
    call = lambda x: apply(Bilinear(), *[x] * count)[0]  # noqa: E731
    text = f"expected 2 inputs, got {count}"
    assert len(list(require_failure(call, "family_id=test-package.bilinear.v1", ArityError, text))) == 3


@pytest.mark.clause("X12.8")
@pytest.mark.parametrize("how", ["count", "dtype", "shape"])
@pytest.mark.parametrize("route", ["lower_to_standard_ops", "eager_execute"])
def test_outputs_that_disagree_with_inference(route, how):
    kind = ArityError if how == "count" else MetaMismatchError
    parts = {
        "count": ("given 2 entries; needed 1",),
        "dtype": ("given outputs float32[2,3]; needed float64[2,3]",),
        "shape": ("given outputs float64[1,3]; needed float64[2,3]",),
    }[how]
    outs = lambda op, *xs: {"count": (xs[-1],) * 2, "dtype": (xs[-1].astype("float32"),), "shape": (xs[-1][:1],)}[how]  # noqa: E731
    op = type("Odd", (Same,), {"family_id": "test-package.odd.v1", route: outs})()
    in_jit = JIT if route == "eager_execute" else None
    assert len(list(require_failure(lambda x: apply(op, x)[0], op.family_id, kind, route, *parts, in_jit=in_jit))) == 3


@pytest.mark.clause("X8.7", "X12.9")
def test_eager_execute_returns_a_tensor_on_a_device():
    class OnDevice(Same):
        family_id = "test-package.on_device.v1"

        def eager_execute(self, x):
            return (jax.device_put(x, jax.devices()[1]),)

    call = lambda x: apply(OnDevice(), x)[0]  # noqa: E731
    assert len(list(require_failure(call, OnDevice.family_id, BackendFailure, "NumPy", in_jit=JIT))) == 3


@pytest.mark.clause("X8.7", "X12.9")
@pytest.mark.parametrize(
    ("returned", "kind", "given"),
    [
        (lambda x: np.ma.masked_array(x, x > 1), BackendFailure, "output 0: given a masked array float64[2,3]; needed a plain NumPy array"),
        (lambda x: x.astype(">f8"), MetaMismatchError, "output 0: given float64[2,3] of the dtype '>f8', in the other byte order"),
    ],
)
def test_eager_execute_returns_what_would_be_changed(returned, kind, given):
    op = type("Odd", (Same,), {"family_id": "test-package.odd_host.v1", "eager_execute": lambda op, x: (returned(x),)})()
    with pytest.raises(kind) as error:
        apply(op, X)
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
        with pytest.raises(MalformedFamilyId, match=rf"class .*{name} states no family_id"):
            use()


@pytest.mark.clause("X12.10")
@pytest.mark.parametrize("family_id", ["nonsense", "a.b", "a b.c.v1", "a.b.vv", 7, None], ids=str)
def test_a_malformed_family_id(family_id):
    op = type("Odd", (Same,), {"family_id": family_id, "lower_to_standard_ops": lambda op, x: (x,)})
    for _, error in require_failure(lambda x: apply(op(), x)[0], repr(family_id), MalformedFamilyId, "<package>.<op>.v<major>"):
        assert error.family_id == family_id
    with pytest.raises(MalformedFamilyId):
        register_extension(ExtensionFactory(op))


@pytest.mark.clause("X12.11")
def test_what_cannot_be_lowered():
    class Refusing(Same):
        family_id = "test-package.refusing.v1"

        def lower_to_standard_ops(self, x):
            raise ExtensionLoweringError(f"{self.family_id}: the window must be odd")

    call = lambda x: apply(Refusing(), x)[0]  # noqa: E731
    assert len(list(require_failure(call, Refusing.family_id, ExtensionLoweringError, "the window must be odd"))) == 3
    for transform in (jax.vmap, jax.checkpoint, lambda f: lambda x: jax.lax.map(f, x)):
        with pytest.raises(ExtensionLoweringError, match="the window must be odd"):
            transform(call)(X)


@pytest.mark.clause("X12.13")
@pytest.mark.parametrize("hidden", [False, True])
def test_a_lowering_emits_an_extension(hidden):
    class Nested(Same):
        family_id = "test-package.nested.v1"

        def lower_to_standard_ops(self, x):
            if hidden:
                return apply(ScaledSquare(), jnp.sin(x))
            return apply(ScaledSquare(), x)

    call = lambda x: apply(Nested(), x)[0]  # noqa: E731
    assert len(list(require_failure(call, Nested.family_id, InvalidConfig, ScaledSquare.family_id))) == 3
