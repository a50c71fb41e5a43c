"""What authors get wrong in methods that few write: typed errors, or their own exception with a
note.
"""

import dataclasses
import datetime

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax import TensorMeta, export, op, routes
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    require_equal,
)
from tenferro_jax.extension.routes import RouteKind
from tenferro_jax.extension.rules import NO_RULES
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.tensor import TracedTensor

from ..extension_ops import RULES, RUNTIMES, KernelSine, ScaledSquare
from ..helpers import each_ends_in, ends_in, made, throw

X = np.arange(6.0).reshape(2, 3)
P = jax.P


@dataclasses.dataclass(frozen=True)
class Formed(ExtensionOp):
    """x * x; in its other form with a residual, or with something wrong."""

    family_id = "test-package.formed_square.v1"
    form: str = ""

    @property
    def output_count(self):
        return 2 if self.form == "residual" else 1

    def lower_to_standard_ops(self, x):
        def run(x):
            return {
                "": (x * x,),
                "residual": (x * x, 2 * x),
                "shape": ((x * x)[None],),
                "dtype": ((x * x).astype("float32"),),
            }[self.form]

        return run(x)


@pytest.mark.clause("X10.12")
@pytest.mark.parametrize("form", ["shape", "dtype", "residual", "number", "family"])
def test_the_first_outputs_of_a_differentiable_form_are_those_of_the_op(form):
    Rule = made(
        "Rule",
        ExtensionAdRule,
        family_id=Formed.family_id,
        differentiable_form=lambda self, op: (
            {"number": 3, "family": ScaledSquare()}.get(form) or Formed(form)
        ),
        linearize=lambda self, op, primals, outputs, tangents: (
            outputs[1] * tangents[0],
            2 * tangents[0],
        ),
    )

    call = lambda x: apply(Formed(), x, rules=ExtensionRuleSet(Rule()))[0].sum()
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


# Every method but inference raises.
Raising = made(
    "Raising",
    family_id="test-package.raising_everywhere.v1",
    infer_output_meta=lambda self, inputs: inputs,
    lower_to_standard_ops=lambda self, x: throw(ZeroDivisionError("lowering")),
    batched=lambda self, in_axes: throw(ZeroDivisionError("batched")),
)


RaisingRule = made(
    "RaisingRule",
    ExtensionAdRule,
    family_id=ScaledSquare.family_id,
    linearize=lambda self, op, primals, outputs, tangents: throw(ZeroDivisionError("linearize")),
)


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


@pytest.mark.cpu
@pytest.mark.clause("X13.5")
@pytest.mark.clause("X7.1")
@pytest.mark.parametrize(
    "dtype",
    [np.dtype(object), np.dtype("U3"), np.dtype("datetime64[s]"), np.dtype("longdouble")],
    ids=str,
)
def test_dtypes_that_jax_has_not(dtype):
    Odd = made(
        "Odd",
        family_id="test-package.odd.v1",
        infer_output_meta=lambda self, inputs: [(dtype, inputs[0].shape)],
        eager_execute=lambda self, x: [x],
    )

    ends_in(lambda: apply(Odd(), X), InvalidConfig, r"odd\.v1.*is not a dtype of JAX")


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


@pytest.mark.cpu
@pytest.mark.clause("X8.2")
def test_the_route_that_is_told_knows_shardings():
    mesh = jax.make_mesh(
        (2, 2), ("d", "e"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    call = lambda x: apply(KernelSine(offset=1.0), x, runtimes=RUNTIMES)[0]
    inside = lambda axes: jax.shard_map(
        call, mesh=mesh, in_specs=P("d"), out_specs=P("d"), axis_names=axes
    )
    constrained = lambda x: call(
        jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P("d")))
    )
    x = np.linspace(0.0, 1.0, 4)
    spread = jax.device_put(x, jax.NamedSharding(mesh, P("d")))
    for fn, arg, kind in (
        (call, x, RouteKind.KERNEL),
        (call, spread, RouteKind.LOWERING),
        (constrained, x, RouteKind.LOWERING),
        (inside({"d", "e"}), x, RouteKind.KERNEL),
        (inside({"d", "e"}), spread, RouteKind.KERNEL),
        (inside({"d"}), spread, RouteKind.LOWERING),
    ):
        (route,) = routes(fn, arg)
        assert route.kind is kind
        np.testing.assert_allclose(jax.jit(fn)(arg), np.sin(x) + (kind is RouteKind.KERNEL))
    (route,) = routes(lambda _, x: call(x), spread, x)  # jit drops what is not used
    assert route.kind is RouteKind.KERNEL
    np.testing.assert_allclose(jax.jit(lambda _, x: call(x))(spread, x), np.sin(x) + 1)
    for fn in (call, jax.jit(call)):
        with jax.set_mesh(mesh):
            assert [r.kind for r in routes(fn, x)] == [RouteKind.LOWERING]
            np.testing.assert_allclose(fn(x), np.sin(x))


@pytest.mark.clause("X13.7")
def test_a_callback_in_a_lowering_cannot_be_exported():
    Calling = made(
        "Calling",
        family_id="test-package.calling.v1",
        lower_to_standard_ops=lambda self, x: [
            jax.pure_callback(
                np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
            )
        ],
    )

    ends_in(
        lambda: export(lambda x: apply(Calling(), x)[0], jax.ShapeDtypeStruct((2,), jnp.float64)),
        Unsupported,
        r"export: given .*callback",
    )


def test_the_constraint_that_is_named_is_one_that_jax_takes():
    class Even(ScaledSquare):
        family_id = "test-package.even.v1"

        def infer_output_meta(self, inputs):
            require_equal(0, inputs[0].shape[0] % 2)
            return inputs

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


@dataclasses.dataclass
class Mutable:
    k: int = 0


Payload = made(
    "Payload",
    fields={"value": object | Mutable},
    family_id="test-package.payload_mistakes.v1",
    value=None,
)


@pytest.mark.clause("X5.5")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Mutable(), "a mutable dataclass Mutable"),
        ((1, Mutable()), "a mutable dataclass Mutable"),
        (jnp.float32, r"pass jax\.numpy\.dtype\('float32'\)"),
        (np.int8, r"pass jax\.numpy\.dtype\('int8'\)"),
        (int, "Pass a value, or an enum member"),
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
    Init = made(
        "Init", fields={"k": dataclasses.InitVar[int]}, family_id="test-package.init_var.v1"
    )

    ends_in(
        lambda: Init(1),
        InvalidConfig,
        r"test-package\.init_var\.v1\): given a field annotated with InitVar",
    )


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


@pytest.mark.clause("X6.3")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "returned",
    [
        lambda meta: meta,
        lambda meta: (meta.dtype, meta.shape),
        lambda meta: ("float64", meta.shape),
    ],
)
def test_a_bare_meta_is_named(count, returned):
    infer = lambda op, inputs: returned(inputs[0])
    op = type(
        "Bare",
        (ExtensionOp,),
        {"family_id": "test-package.bare.v1", "output_count": count, "infer_output_meta": infer},
    )
    ends_in(
        lambda: apply(op(), X),
        InvalidConfig,
        r"infer_output_meta of extension test-package\.bare\.v1: given float64\[2,3\], one output "
        r"that is not in a list",
    )


WEIGHED = "test-package.weighed.v1"


@pytest.mark.parametrize("infers", [False, True], ids=["derived", "written"])
@pytest.mark.parametrize(
    "transform",
    [jax.grad, jax.jit, lambda f: jax.jit(jax.grad(f)), lambda f: lambda w: jax.vmap(f)(w[None])],
    ids=["grad", "jit", "jit of grad", "vmap"],
)
def test_a_lowering_that_closes_over_a_traced_value_is_refused(transform, infers):
    """Its derivative by that value was zero, without a word."""

    def f(w):
        inference = {"infer_output_meta": lambda self, metas: metas} if infers else {}
        Weighed = made(
            "Weighed",
            family_id=WEIGHED,
            lower_to_standard_ops=lambda self, x: (x * w,),
            linearize=lambda self, primals, outputs, tangents: (tangents[0] * w,),
            **inference,
        )
        return apply(Weighed(), X)[0].sum()

    ends_in(lambda: transform(f)(jnp.float64(2)), InvalidConfig, f"{WEIGHED}: .*closes over")
    assert f(2.0) == 2 * X.sum()


def test_a_traced_value_in_a_helper_of_the_lowering_is_refused_where_metas_are_derived():
    def f(w):
        times = lambda x: x * w
        Weighed = made(
            "Weighed", family_id=WEIGHED, lower_to_standard_ops=lambda self, x: (times(x),)
        )
        return apply(Weighed(), X)[0].sum()

    ends_in(lambda: jax.jit(jax.grad(f))(2.0), InvalidConfig, f"{WEIGHED}: .*closes over")


def test_a_lowering_may_close_over_anything_else():
    """Also over what is no pytree, such as a dict whose keys have no order."""
    scale, unordered = np.float64(3), {1: 2.0, "a": 3.0}
    Weighed = made(
        "Weighed",
        family_id=WEIGHED,
        lower_to_standard_ops=lambda self, x: (x * scale * unordered[1],),
    )
    assert np.array_equal(apply(Weighed(), X)[0], 6 * X)


def test_weights_in_a_nest_are_refused_too():
    def f(weights):
        Weighed = made(
            "Weighed",
            family_id=WEIGHED,
            infer_output_meta=lambda self, metas: metas,
            lower_to_standard_ops=lambda self, x: (x * weights["w"],),
            linearize=lambda self, p, o, t: (t[0],),
        )
        return apply(Weighed(), X)[0].sum()

    ends_in(lambda: jax.jit(jax.grad(f))({"w": 2.0}), InvalidConfig, f"{WEIGHED}: .*closes over")


@pytest.mark.clause("X12.12")
def test_a_lowering_that_declines_is_no_missing_lowering():
    Declining = made(
        "Declining",
        family_id="test-package.declining.v1",
        lower_to_standard_ops=lambda self, x: None,
    )
    ends_in(lambda: apply(Declining(), X), Unsupported, "lower_to_standard_ops returned None")


@pytest.mark.clause("X6.3", "X6.4", "X6.5")
def test_what_is_no_sequence_breaks_a_numbered_clause():
    one = lambda self, x: (x,)
    for clause, members in (
        ("X6.3", {"infer_output_meta": lambda self, metas: 7, "lower_to_standard_ops": one}),
        ("X6.3", {"infer_output_meta": lambda self, m: m[0], "lower_to_standard_ops": one}),
        ("X6.4", {"lower_to_standard_ops": lambda self, x: x}),
        ("X6.5", {"lower_to_standard_ops": one, "linearize": lambda self, p, o, t: t[0]}),
    ):
        op = made("Bare", family_id="test-package.bare_result.v1", **members)()
        call = lambda x: apply(op, x)
        if "linearize" in members:
            call = lambda x: jax.jvp(lambda x: apply(op, x), (x,), (x,))
        refused = ends_in(lambda: call(X), InvalidConfig)
        assert refused.value.clause == clause


def test_what_is_annotated_is_a_field():
    class Undecorated(ExtensionOp):
        family_id = "test-package.undecorated.v1"
        factor: float = 2.0

        def lower_to_standard_ops(self, x):
            return (self.factor * x,)

    refused = r"annotated factor in a class that is no dataclass.*Write @dataclass\(frozen=True\)"
    ends_in(lambda: apply(Undecorated(), X), InvalidConfig, refused)


def test_calls_that_name_nothing_are_refused():
    given = jax.custom_vjp(lambda x: x)
    each_ends_in(
        (lambda: routes(3, X), InvalidConfig, "routes: given 3; needed a function"),
        (lambda: op("test-mistakes.bare.v1")(given), InvalidConfig, "custom_vjp without a rule"),
        (
            lambda: op("test-mistakes.kernel.v1")(jnp.sin).def_kernel("gpu"),
            InvalidConfig,
            r"write cuda \(NVIDIA\) or rocm",
        ),
        (
            lambda: GraphBuilder().input(TensorMeta("floaty", (2,))),
            InvalidConfig,
            "given TensorMeta.dtype='floaty'",
        ),
    )
