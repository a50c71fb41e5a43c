"""Section 12 of the contract: each failure has its class and names the family, eagerly, in a user's
jit and in an Engine.
"""

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import host_errors, routes, trace
from tenferro_jax.engine import Engine, compile_std_to_exec
from tenferro_jax.errors import (
    BackendFailure,
    ExtensionLoweringError,
    InvalidConfig,
    MalformedFamilyId,
    Unsupported,
)
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    register_extension,
)
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.extension.runtimes import NO_RUNTIMES

from ..extension_ops import Bilinear, HostCumulate
from ..helpers import ends_in, made, throw
from .runners import ways

X = np.arange(6.0).reshape(2, 3)
JIT = jax.errors.JaxRuntimeError


# Its output has the metas of its input.
Same = made("Same", infer_output_meta=lambda self, inputs: [inputs[0]])


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


class Failing(Same):
    family_id = "test-package.failing.v1"

    def eager_execute(self, x):
        CALLS.append(1)
        raise LookupError("no such table")


CALLS: list = []


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

    def small(self, x):
        return (x,) if x.sum() < 100 else throw(LookupError("too much"))

    family_id = "test-package.small.v1"
    Small = made("Small", Same, family_id=family_id, eager_execute=small)
    run = jax.jit(lambda x: apply(Small(), x)[0] + apply(Small(), x + 1)[0])
    assert run(X).shape == X.shape
    for _ in range(2):
        with pytest.raises(BackendFailure, match=f"{family_id}.*too much"), host_errors():
            jax.block_until_ready(run(X * 100))


@pytest.mark.cpu
@pytest.mark.clause("X12.2")
def test_a_missing_capability_does_not_fall_back():
    Particular = made(
        "Particular",
        Same,
        family_id="test-package.particular.v1",
        lower_to_standard_ops=lambda self, x: throw(AssertionError("another route was tried")),
        eager_execute=lambda self, x: throw(AssertionError("another route was tried")),
    )

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

    OnHost = made(
        "OnHost",
        Same,
        family_id="test-package.on_host.v1",
        eager_execute=lambda self, x: throw(
            BackendFailure(
                where=self.family_id, given="no cuTENSOR", needed="cuTENSOR", fix="Install it."
            )
        ),
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

    Unnamed = made(
        "Unnamed",
        Same,
        family_id="test-package.unnamed_failure.v1",
        eager_execute=lambda self, x: throw(
            BackendFailure(where="the table", given="none", needed="a table", fix="Make it.")
        ),
    )

    for name, error in require_failure(
        lambda x: apply(Unnamed(), x)[0], Unnamed.family_id, BackendFailure, "a table", in_jit=JIT
    ):
        assert name == "jit" or (error.needed, error.fix, error.__cause__.where) == (
            "a table",
            "Make it.",
            "the table",
        )


Nothing = made("Nothing", Same, family_id="test-package.nothing.v1")


Declining = made(
    "Declining",
    Same,
    family_id="test-package.declining.v1",
    lower_to_standard_ops=lambda self, x: None,
)


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
    for op, runtimes, given, fix in (
        (
            Nothing(),
            NO_RUNTIMES,
            "platform cpu",
            "Override lower_to_standard_ops, or override eager_execute.",
        ),
        (
            Nothing(),
            elsewhere,
            "platform cpu; its kernels are for cuda",
            "Override lower_to_standard_ops, or override eager_execute.",
        ),
        (
            Declining(),
            elsewhere,
            "platform cpu; its lower_to_standard_ops returned None for these inputs; its kernels "
            "are for cuda",
            "Lower these inputs too, or override eager_execute.",
        ),
    ):
        error = ends_in(lambda: apply(op, X, runtimes=runtimes), Unsupported)
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


@pytest.mark.clause("X12.7")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_inputs(count):
    call = lambda x: apply(Bilinear(), *[x] * count)[0]
    text = f"expected 2 inputs, got {count}"
    assert (
        len(list(require_failure(call, "family_id=test-package.bilinear.v1", InvalidConfig, text)))
        == 3
    )


@pytest.mark.cpu
@pytest.mark.clause("X8.7", "X12.9")
def test_eager_execute_returns_a_tensor_on_a_device():
    OnDevice = made(
        "OnDevice",
        Same,
        family_id="test-package.on_device.v1",
        eager_execute=lambda self, x: (jax.device_put(x, jax.devices()[1]),),
    )

    call = lambda x: apply(OnDevice(), x)[0]
    assert (
        len(list(require_failure(call, OnDevice.family_id, BackendFailure, "NumPy", in_jit=JIT)))
        == 3
    )


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
    Anonymous = made("Anonymous", Same)

    Rule = made("Rule", ExtensionAdRule)

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
    Refusing = made(
        "Refusing",
        Same,
        family_id="test-package.refusing.v1",
        lower_to_standard_ops=lambda self, x: throw(
            ExtensionLoweringError(f"{self.family_id}: the window must be odd")
        ),
    )

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
