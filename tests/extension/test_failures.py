"""Bad input and failing implementations: exact classes, the family_id in the text, nothing lost."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax import (
    ADRuleError,
    ArityError,
    BackendFailure,
    Duplicate,
    ExtensionLoweringError,
    InvalidConfig,
    MalformedFamilyId,
    MetaMismatchError,
    NotDifferentiableError,
    ShapeError,
    Unsupported,
    X64Error,
    host_errors,
)
from tenferro_jax.extension import (
    NO_RUNTIMES,
    NOT_DIFFERENTIABLE,
    ExtensionAdRule,
    ExtensionFactory,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    lookup_extension_factory,
    register_extension,
)
from tenferro_jax.extension import registry as registry_module

from ..extension_ops import RULES, Bilinear, HostCumulate, MaxAndIndex, ScaledSquare

X = np.arange(6.0).reshape(2, 3)


def runners(op, *xs, rules=RULES, runtimes=NO_RUNTIMES):
    """The same call eagerly, jitted, vmapped, in scan, cond and checkpoint."""
    call = lambda *xs: apply(op, *xs, rules=rules, runtimes=runtimes)  # noqa: E731
    batch = [np.stack([x, x]) for x in xs]
    yield "eager", lambda: call(*xs)
    yield "jit", lambda: jax.jit(call)(*xs)
    yield "vmap", lambda: jax.vmap(call)(*batch)
    yield "scan", lambda: jax.lax.scan(lambda c, x: (c, call(*x)), 0, tuple(batch))
    yield "cond", lambda: jax.lax.cond(True, call, lambda *xs: call(*xs), *xs)
    yield "checkpoint", lambda: jax.checkpoint(call)(*xs)


def test_wrong_arity():
    for _, run in runners(Bilinear(), X):
        with pytest.raises(ArityError, match=r"family_id=test-package\.bilinear\.v1.*expected 2 inputs, got 1"):
            run()
    with pytest.raises(ArityError, match="expected 2 inputs, got 3"):
        apply(Bilinear(), X, X, X)


def test_sizes_that_do_not_fit():
    for _, run in runners(Bilinear(), X, X):
        with pytest.raises(ShapeError, match=r"test-package\.bilinear\.v1.*dimensions 3 and 2"):
            run()


def test_64_bit_arrays_while_x64_is_off():
    with jax.enable_x64(False):
        for value in (X, np.arange(3), np.float64(1), np.ones(2, complex)):
            with pytest.raises(X64Error, match=r"test-package\.scaled_square\.v1, input 0.*enable_x64\(True\).*\.astype\(np\."):
                apply(ScaledSquare(), value)
        assert apply(ScaledSquare(2.0), [1.0, 2.0])[0].tolist() == [2.0, 8.0]
        assert apply(ScaledSquare(2.0), 3.0)[0] == 18.0
        assert apply(ScaledSquare(2.0), np.float32(3.0))[0].dtype == np.float32


@pytest.mark.parametrize("kind", ["grad", "jvp", "vjp", "linearize", "hessian", "jacfwd"])
@pytest.mark.parametrize("wrap", ["plain", "jit", "scan", "cond", "while", "checkpoint", "vmap", "shard_map"])
def test_a_missing_rule_is_named_from_inside_every_transform(kind, wrap):
    def f(x):
        return apply(ScaledSquare(), x, rules=ExtensionRuleSet())[0].sum()

    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    wrapped = {
        "plain": f,
        "jit": jax.jit(f),
        "scan": lambda x: jax.lax.scan(lambda c, _: (c + f(x), None), 0.0, None, length=2)[0],
        "cond": lambda x: jax.lax.cond(x.sum() > 0, f, lambda x: x.sum(), x),
        "while": lambda x: jax.lax.fori_loop(0, jnp.int32(2), lambda i, c: c + f(x), 0.0) if kind in ("jvp", "jacfwd") else f(x),
        "checkpoint": jax.checkpoint(f),
        "vmap": lambda x: jax.vmap(f)(x).sum(),
        "shard_map": jax.shard_map(lambda x: jax.lax.psum(f(x), "d"), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P()),
    }[wrap]
    run = {
        "grad": lambda: jax.grad(wrapped)(X),
        "jvp": lambda: jax.jvp(wrapped, (X,), (X,)),
        "vjp": lambda: jax.vjp(wrapped, X),
        "linearize": lambda: jax.linearize(wrapped, X),
        "hessian": lambda: jax.hessian(wrapped)(X),
        "jacfwd": lambda: jax.jacfwd(wrapped)(X),
    }[kind]
    with pytest.raises(ADRuleError, match=r"jvp of extension test-package\.scaled_square\.v1") as error:
        run()
    assert (error.value.family_id, error.value.kind) == ("test-package.scaled_square.v1", "jvp")


def test_a_missing_rule_does_not_matter_where_nothing_is_differentiated():
    def f(x, n):
        return (apply(ScaledSquare(), jax.lax.stop_gradient(x), rules=ExtensionRuleSet())[0] * x).sum() + apply(ScaledSquare(), n)[
            0
        ].sum() * 0.0

    np.testing.assert_allclose(jax.grad(f)(X, np.ones(2)), X * X)


def test_a_missing_transpose_rule():
    class OnlyForward(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return builder.add(op, tangent_in[0])

    rules = ExtensionRuleSet(OnlyForward())
    f = lambda x: apply(HostCumulate(), x, rules=rules)[0].sum()  # noqa: E731
    assert jax.jvp(f, (X,), (X,))[1] == np.cumsum(X, -1).sum()
    with pytest.raises(ADRuleError, match=r"transpose of extension test-package\.host_cumulate\.v1") as error:
        jax.grad(f)(X)
    assert error.value.kind == "transpose"
    with pytest.raises(ADRuleError, match="transpose"):
        jax.linear_transpose(lambda x: apply(HostCumulate(), x)[0], X)(X)


def test_not_differentiable_has_its_own_error():
    class Rule(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return [NOT_DIFFERENTIABLE]

    def f(x):
        return apply(ScaledSquare(), x, rules=ExtensionRuleSet(Rule()))[0].sum()

    for run in (jax.grad(f), jax.grad(lambda x: jax.vmap(f)(x).sum()), jax.jit(jax.grad(f))):
        with pytest.raises(NotDifferentiableError, match=r"NOT_DIFFERENTIABLE for output 0"):
            run(X)


def test_rules_of_a_wrong_shape():
    class Short(ExtensionAdRule):
        family_id = MaxAndIndex.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return [None]

    class Bare(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return tangent_in[0]

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


def test_tangents_and_cotangents_have_the_metas_of_their_primals():
    class Rule(ExtensionAdRule):
        family_id = MaxAndIndex.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return [tangent_in[0][..., 0], primal_out[1]]

    class HostRule(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return builder.add(op, tangent_in[0])

        def transpose_rule(self, op, builder, cotangent_out, inputs, mode, context):
            return [cotangent_out[0][:1]]

    rules = ExtensionRuleSet(Rule(), HostRule())
    for wrap in (lambda f: f, jax.vmap):
        with pytest.raises(MetaMismatchError, match=r"linearize of extension test-package\.max_and_index\.v1, entry 1.*no tangents"):
            jax.jvp(wrap(lambda x: apply(MaxAndIndex(), x, rules=rules)), (X,), (X,))
    with pytest.raises(
        MetaMismatchError, match=r"transpose_rule of extension test-package\.host_cumulate\.v1, entry 0.*float64\[1,3\].*float64\[2,3\]"
    ):
        jax.grad(lambda x: apply(HostCumulate(), x, rules=rules)[0].sum())(X)


@dataclasses.dataclass(frozen=True)
class Wrong(ExtensionOp):
    """Says float64[2,3] and returns something else."""

    family_id = "test-package.wrong.v1"
    how: str

    def infer_output_meta(self, inputs, context):
        return [inputs[0]]

    def outputs(self, x):
        return {"dtype": [x.astype("float32")], "shape": [x[:1]], "count": [x, x], "bare": x}[self.how]


class WrongLowering(Wrong):
    def lower_to_standard_ops(self, builder, x):
        return self.outputs(x)


class WrongKernel(Wrong):
    def lower_to_standard_ops(self, builder, x):
        return [x]


class WrongHost(Wrong):
    def eager_execute(self, x):
        return self.outputs(x)


CLASSES = {"dtype": MetaMismatchError, "shape": MetaMismatchError, "count": ArityError, "bare": InvalidConfig}


@pytest.mark.parametrize("how", CLASSES)
@pytest.mark.parametrize("kind", [WrongLowering, WrongKernel, WrongHost])
def test_what_disagrees_with_infer_output_meta_is_caught(kind, how):
    kernels = [Kernel(Wrong.family_id, "cpu", Wrong.outputs)] if kind is WrongKernel else []
    for name, run in runners(kind(how), X, runtimes=ExtensionRuntimeSet(*kernels)):
        compiled_host = kind is WrongHost and name in ("jit", "scan", "cond")
        with pytest.raises(jax.errors.JaxRuntimeError if compiled_host else CLASSES[how], match=r"test-package\.wrong\.v1"):
            jax.block_until_ready(run())


def test_an_op_that_declines_and_has_nothing_else_is_unsupported():
    @dataclasses.dataclass(frozen=True)
    class Nothing(ExtensionOp):
        family_id = "test-package.nothing.v1"
        decline: bool

        def infer_output_meta(self, inputs, context):
            return [inputs[0]]

    class Declining(Nothing):
        def lower_to_standard_ops(self, builder, x):
            return None

    for op in (Nothing(False), Declining(True)):
        for _, run in runners(op, X):
            with pytest.raises(Unsupported, match=r"test-package\.nothing\.v1.*platform cpu"):
                run()


def test_a_lowering_may_decline_and_the_host_form_runs():
    class Either(HostCumulate):
        family_id = "test-package.either.v1"

        def lower_to_standard_ops(self, builder, x):
            return [builder.inline(lambda x: jnp.cumsum(x, -1), x)] if x.shape[-1] == 2 else None

    for shape in ((2, 2), (2, 3)):
        x = np.arange(float(np.prod(shape))).reshape(shape)
        for name, run in runners(Either(), x):
            got = jax.tree.leaves(run())[-1]
            want = np.cumsum(x, -1)
            np.testing.assert_array_equal(got, want if name not in ("vmap", "scan") else np.stack([want, want]))


def test_a_lowering_that_emits_an_extension_is_refused():
    class Nested(ExtensionOp):
        family_id = "test-package.nested.v1"

        def infer_output_meta(self, inputs, context):
            return inputs

        def lower_to_standard_ops(self, builder, x):
            return builder.add(ScaledSquare(), x)

    class Hidden(Nested):
        family_id = "test-package.hidden.v1"

        def lower_to_standard_ops(self, builder, x):
            return builder.inline(lambda x: apply(ScaledSquare(), x), x)

    for op in (Nested(), Hidden()):
        for _, run in runners(op, X):
            with pytest.raises(InvalidConfig, match=rf"{op.family_id}.*test-package\.scaled_square\.v1"):
                run()


def test_an_authors_lowering_error_keeps_its_class():
    class Refusing(ExtensionOp):
        family_id = "test-package.refusing.v1"

        def infer_output_meta(self, inputs, context):
            return inputs

        def lower_to_standard_ops(self, builder, x):
            raise ExtensionLoweringError("the window must be odd")

    for _, run in runners(Refusing(), X):
        with pytest.raises(ExtensionLoweringError, match="the window must be odd"):
            run()


class Failing(ExtensionOp):
    family_id = "test-package.failing.v1"

    def infer_output_meta(self, inputs, context):
        return inputs

    def eager_execute(self, x):
        raise LookupError("no such table")


def test_a_failing_host_op():
    with pytest.raises(BackendFailure, match=r"test-package\.failing\.v1.*LookupError: 'no such table'|no such table") as error:
        apply(Failing(), X)
    assert isinstance(error.value.__cause__, LookupError)
    jitted = jax.jit(lambda x: apply(Failing(), x)[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"test-package\.failing\.v1"):
        jax.block_until_ready(jitted(X))
    with pytest.raises(BackendFailure, match=r"test-package\.failing\.v1.*no such table"), host_errors():
        jax.block_until_ready(jitted(X))


def test_host_errors_leaves_other_errors_alone():
    with pytest.raises(ZeroDivisionError), host_errors():
        raise ZeroDivisionError
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of paper"), host_errors():
        raise jax.errors.JaxRuntimeError("out of paper")


def test_host_code_gets_read_only_numpy_arrays():
    seen = []

    class Looking(HostCumulate):
        family_id = "test-package.looking.v1"

        def eager_execute(self, x):
            seen.append((type(x), x.flags.writeable))
            return [x]

    mine = np.ones(3)
    apply(Looking(), mine)
    jax.block_until_ready(jax.jit(lambda x: apply(Looking(), x)[0])(mine))
    assert seen == [(np.ndarray, False)] * 2
    mine[0] = 5  # the caller's own array stays writable


def test_inference_that_fails_is_wrapped_with_the_family():
    class Broken(ExtensionOp):
        family_id = "test-package.broken.v1"

        def infer_output_meta(self, inputs, context):
            return [inputs[7]]

    with pytest.raises(InvalidConfig, match=r"infer_output_meta of extension test-package\.broken\.v1.*IndexError") as error:
        apply(Broken(), X)
    assert isinstance(error.value.__cause__, IndexError)

    class Neither(ExtensionOp):
        family_id = "test-package.neither.v1"

    with pytest.raises(InvalidConfig, match="no infer_output_meta and no lowering"):
        apply(Neither(), X)


def test_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})
    factory = ExtensionFactory(ScaledSquare)
    assert lookup_extension_factory(ScaledSquare.family_id) is None
    assert lookup_extension_factory("nonsense") is None
    register_extension(factory)
    assert lookup_extension_factory(ScaledSquare.family_id) is factory
    assert (factory.version, factory.instantiate_default()) == (1, None)
    with pytest.raises(Duplicate, match=r"test-package\.scaled_square\.v1"):
        register_extension(ExtensionFactory(ScaledSquare))

    class Bad(ExtensionOp):
        family_id = "bad"

    with pytest.raises(MalformedFamilyId):
        register_extension(ExtensionFactory(Bad))
    with pytest.raises(InvalidConfig, match="ExtensionFactory"):
        register_extension(ScaledSquare)


def test_one_of_many_threads_registers(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})
    outcomes = []

    def work():
        try:
            register_extension(ExtensionFactory(ScaledSquare))
            outcomes.append("registered")
        except Duplicate:
            outcomes.append("duplicate")

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(outcomes) == ["duplicate"] * 15 + ["registered"]


@pytest.mark.parametrize(
    "returned",
    [["float64"], [("floot", (3,))], [(np.float64, 3)], [(np.float64, (-1,))], [(np.float64, (3.0,))], [None]],
    ids=str,
)
def test_metas_that_are_none(returned):
    class Odd(ExtensionOp):
        family_id = "test-package.odd.v1"

        def infer_output_meta(self, inputs, context):
            return returned

    with pytest.raises(InvalidConfig, match=r"infer_output_meta of extension test-package\.odd\.v1, output 0"):
        apply(Odd(), X)


def test_numbers_where_arrays_are_needed():
    class Number(ExtensionOp):
        family_id = "test-package.number.v1"

        def infer_output_meta(self, inputs, context):
            return inputs

        def lower_to_standard_ops(self, builder, x):
            return (0.0,)

    class Rule(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return (0.0,)

    with pytest.raises(
        InvalidConfig, match=r"lower_to_standard_ops of extension test-package\.number\.v1, entry 0: given 0\.0; needed an array"
    ):
        apply(Number(), X)
    with pytest.raises(InvalidConfig, match=r"linearize of extension test-package\.scaled_square\.v1, entry 0: given 0\.0"):
        jax.grad(lambda x: apply(ScaledSquare(), x, rules=ExtensionRuleSet(Rule()))[0].sum())(X)


@pytest.mark.parametrize(
    ("form", "error"),
    [
        (lambda op: (op, (None,)), InvalidConfig),
        (lambda op: (op, (0, 0)), InvalidConfig),
        (lambda op: (op, (5,)), InvalidConfig),
        (lambda op: (op, (-1,)), InvalidConfig),
        (lambda op: 3, InvalidConfig),
        (lambda op: (HostCumulate(), (0,)), InvalidConfig),
        (lambda op: (op, (1,)), MetaMismatchError),
    ],
)
def test_an_own_batched_form_is_checked(form, error):
    class Formed(Bilinear):
        family_id = "test-package.formed.v1"

        def batched(self, in_axes):
            return form(self)

    with pytest.raises(error, match=r"batched\(\) of extension test-package\.formed\.v1"):
        jax.vmap(lambda x, w: apply(Formed(), x, w), in_axes=(0, None))(np.ones((2, 3, 3)), np.ones((3, 3)))


def test_an_exception_in_a_lowering_is_not_blamed_on_inference():
    class Raising(ExtensionOp):
        family_id = "test-package.raising.v1"

        def lower_to_standard_ops(self, builder, x):
            raise KeyError("table")

    with pytest.raises(
        InvalidConfig, match=r"lower_to_standard_ops, from which metas are inferred, of extension test-package\.raising\.v1.*KeyError"
    ):
        apply(Raising(), X)


def test_64_bit_jax_arrays_made_before_x64_was_switched_off():
    x = jnp.ones(2)
    with jax.enable_x64(False), pytest.raises(X64Error, match=r"test-package\.scaled_square\.v1, input 0"):
        apply(ScaledSquare(), x)
