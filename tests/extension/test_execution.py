"""Sections 7 and 8 of the contract: inference is the truth, also where sizes are symbols; who computes
an op, what runs and what never does.
"""

import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import TensorMeta, from_wire, host_errors, routes, to_wire, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import (
    DTypeError,
    ExtensionRegistryError,
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
)
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.extension.kernels import NO_RUNTIMES
from tenferro_jax.extension.routes import RouteKind, choose_route, current_platform
from tenferro_jax.jax_seam import Site
from tenferro_jax.tensor import TracedTensor

from ..extension_ops import (
    RULES,
    RUNTIMES,
    Bilinear,
    HostCumulate,
    KernelSine,
    ScaledSquare,
    sine_kernel,
)
from ..helpers import close, each_ends_in, ends_in, equal
from .runners import runners, ways

X = np.arange(6.0).reshape(2, 3)


class Telling(ExtensionOp):
    """x and a number that tells the route: 1 for the kernel, 2 for the lowering, 3 for the host form."""

    family_id = "test-package.telling.v1"

    def infer_output_meta(self, inputs):
        return inputs

    def lower_to_standard_ops(self, x):
        return (x + 2.0,)

    def eager_execute(self, x):
        return (x + 3.0,)


def _kernel(op, x):
    return (x + 1.0,)


LESS = "test-package.telling_less.v1"
KERNEL = ExtensionRuntimeSet(
    Kernel(Telling.family_id, "cpu", _kernel), Kernel(LESS, "cpu", _kernel)
)
NUMBER = {RouteKind.KERNEL: 1.0, RouteKind.LOWERING: 2.0, RouteKind.HOST: 3.0}


@pytest.mark.cpu
def test_a_host_form_gives_back_where_its_first_placed_input_lies():
    op, (first, _, third, *_) = HostCumulate(), jax.devices()
    for x, place, is_committed in (
        (jnp.asarray(X), first, False),
        (jax.device_put(X, third), third, True),
    ):
        (out,) = apply(op, x)
        assert (out.devices(), out.committed) == ({place}, is_committed)


@pytest.mark.cpu
def test_a_result_of_another_rank_lies_beside_an_argument_on_a_mesh():
    """Its PartitionSpec has an entry for each axis of the argument."""
    total = tj.op("test-package.column_sums.v1")(lambda x: None)
    total.def_infer(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
    total.def_host(lambda x: x.sum(0))
    for count in (1, 8):
        kinds, some = (jax.sharding.AxisType.Auto,), jax.devices()[:count]
        mesh = jax.make_mesh((count,), ("d",), axis_types=kinds, devices=some)
        x = jax.device_put(np.ones((2, 3)), jax.NamedSharding(mesh, jax.P(None, None)))
        out = total(x)
        np.testing.assert_array_equal(out, [2, 2, 2])
        assert out.sharding.device_set == set(mesh.devices.flat)
        value = tropical_einsum("ab,bc,cd->", *[x[:2, :2]] * 3)  # a kernel that compiles nothing
        assert (float(value), value.sharding.device_set) == (3.0, out.sharding.device_set)


@pytest.mark.clause("X4.3")
def test_calls_are_merged_repeated_and_dropped():
    ran = []

    class Counting(HostCumulate):
        family_id = "test-package.counting.v1"

        def eager_execute(self, x):
            ran.append(1)
            return (x,)

    call = lambda x: apply(Counting(), x)[0]
    for f, times in ((lambda x: call(x) + call(x), 1), (lambda x: (call(x), x)[1] + 1.0, 0)):
        ran.clear()
        jax.block_until_ready(Engine().eval(trace(f, X), X))
        assert len(ran) == times
    ran.clear()
    jax.block_until_ready(jax.jit(lambda x: (call(x), x)[1] + 1.0)(X))
    assert ran == []


@pytest.mark.cpu
@pytest.mark.clause("X8.1")
@pytest.mark.parametrize(
    ("left_out", "runtimes", "kind"),
    [
        ((), KERNEL, RouteKind.KERNEL),
        ((), NO_RUNTIMES, RouteKind.LOWERING),
        (("lower_to_standard_ops",), KERNEL, RouteKind.KERNEL),
        (("lower_to_standard_ops",), NO_RUNTIMES, RouteKind.HOST),
        (("lower_to_standard_ops", "eager_execute"), KERNEL, RouteKind.KERNEL),
        (("lower_to_standard_ops", "eager_execute"), NO_RUNTIMES, None),
    ],
)
def test_the_first_route_that_exists_runs(left_out, runtimes, kind):
    op = type(
        "Less",
        (Telling,),
        {"family_id": LESS} | {name: getattr(ExtensionOp, name) for name in left_out},
    )()
    call = lambda x: apply(op, x, runtimes=runtimes)[0]
    for _, run in (
        *ways(call, X),
        ("vmap", lambda: jax.vmap(call)(X)),
        ("scan", lambda: jax.lax.scan(lambda c, x: (c, call(x)), 0, X)[1]),
    ):
        if kind is None:
            ends_in(run, Unsupported, r"test-package\.telling_less\.v1")
        else:
            np.testing.assert_array_equal(run(), X + NUMBER[kind])
            assert [r.kind for r in routes(call, X)] == [kind]


@pytest.mark.cpu
@pytest.mark.clause("X8.3")
@pytest.mark.parametrize("kind", RouteKind)
def test_routes_can_be_selected(kind):
    called = []

    noting = lambda kind, run: lambda op, x: called.append(kind) or run(op, x)

    class Noting(Telling):
        family_id = "test-package.noting.v1"
        lower_to_standard_ops = noting(RouteKind.LOWERING, Telling.lower_to_standard_ops)
        eager_execute = noting(RouteKind.HOST, Telling.eager_execute)

    kernel = Kernel(Noting.family_id, "cpu", noting(RouteKind.KERNEL, _kernel))
    all_of_them = ExtensionRuntimeSet(kernel)
    runtimes = all_of_them.only(kind)
    call = lambda x: apply(Noting(), x, runtimes=runtimes)[0]
    graph = trace(lambda x: apply(Noting(), x, runtimes=all_of_them)[0], X)
    runs = [run for _, run in ways(call, X)]
    runs += [
        lambda: graph.with_runtimes(runtimes).to_jax()(X),
        lambda: Engine(runtimes=runtimes).eval(graph, X),
    ]
    equal(*((run(), X + NUMBER[kind]) for run in runs))
    assert set(called) == {kind}
    assert [r.kind for r in routes(call, X)] == [kind]


@pytest.mark.clause("X8.5", "X12.13")
def test_a_lowering_that_emits_an_extension_is_refused():
    class Nested(ExtensionOp):
        family_id = "test-package.nested.v1"

        def infer_output_meta(self, inputs):
            return inputs

        def lower_to_standard_ops(self, x):
            return apply(ScaledSquare(), x)

    ends_in(
        (run for _, run in runners(Nested(), X)),
        InvalidConfig,
        rf"{Nested.family_id}.*test-package\.scaled_square\.v1",
    )


@pytest.mark.clause("X8.6")
@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_a_lowering_may_decline_and_the_host_form_runs(shape):
    class Either(HostCumulate):
        family_id = "test-package.either.v1"

        def lower_to_standard_ops(self, x):
            return [jnp.cumsum(x, -1)] if x.shape[-1] == 2 else None

    x = np.arange(float(np.prod(shape))).reshape(shape)
    for name, run in runners(Either(), x):
        got = jax.tree.leaves(run())[-1]
        want = np.cumsum(x, -1)
        np.testing.assert_array_equal(
            got, want if name not in ("vmap", "scan") else np.stack([want, want])
        )


@pytest.mark.clause("X8.7")
@pytest.mark.parametrize("change", [lambda f: f, jax.jit, jax.vmap])
def test_nan_is_found_where_it_is_made(change):
    log = tj.op("test-execution.log.v1")(lambda x: jnp.log(x))
    with jax.debug_nans(True):
        ends_in(lambda: change(log)(-jnp.ones(2)), FloatingPointError, "encountered in log")


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


@pytest.mark.clause("X8.8")
def test_host_errors_leaves_other_errors_alone():
    with pytest.raises(ZeroDivisionError), host_errors():
        raise ZeroDivisionError
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of paper"), host_errors():
        raise jax.errors.JaxRuntimeError("out of paper")


@pytest.mark.clause("X8.12")
def test_no_pass_looks_inside_an_extension():
    lowered = []

    class Opaque(Telling):
        """0 x + 0: what a pass could fold."""

        family_id = "test-package.opaque.v1"

        def lower_to_standard_ops(self, x):
            lowered.append(1)
            return (0.0 * x + 0.0,)

    graph = trace(lambda x: apply(Opaque(), apply(Opaque(), x)[0])[0] * 1.0, X)
    assert graph == trace(graph.to_jax(), X)
    assert not lowered  # recorded, printed, compared and traced again without a look inside
    program = Engine().compile(graph)
    assert [i.op for i in program.instructions if isinstance(i.op, Extension)] == [
        Extension.of(Opaque())
    ] * 2
    assert lowered
    np.testing.assert_array_equal(program(X), 0.0 * X)


@pytest.mark.cpu
@pytest.mark.clause("X8.13", "X5.8")
def test_kernels_travel_with_the_call_and_key_what_runs():
    with_kernel, without = (
        lambda x, r=r: apply(Telling(), x, runtimes=r)[0] for r in (KERNEL, NO_RUNTIMES)
    )
    for _ in range(2):
        equal(
            (with_kernel(X), X + 1.0),
            (without(X), X + 2.0),
            (jax.jit(lambda x: with_kernel(x) * without(x))(X), (X + 1.0) * (X + 2.0)),
        )
    assert trace(with_kernel, X) != trace(without, X)
    assert trace(with_kernel, X) == trace(with_kernel, X)
    engine = Engine()
    equal(
        (engine.eval(trace(with_kernel, X), X), X + 1.0),
        (engine.eval(trace(without, X), X), X + 2.0),
        (jax.vmap(with_kernel)(X), X + 1.0),
    )


class Wrong(ExtensionOp):
    """Says float64[2,3] and returns something else."""

    def infer_output_meta(self, inputs):
        return [inputs[0]]


def returned(how, x):
    return {"dtype": [x.astype("float32")], "shape": [x[:1]], "count": [x, x], "bare": x}[how]


GIVEN = {
    "dtype": r"given outputs float32\[(2,)?2,3\]; needed float64\[(2,)?2,3\]",
    "shape": r"given outputs float64\[(2,)?1,3\]; needed float64\[(2,)?2,3\]",
    "count": "given 2 entries; needed 1",
    "bare": "needed a tuple or list",
}


@pytest.mark.cpu
@pytest.mark.clause("X6.4", "X7.1", "X12.8")
@pytest.mark.parametrize("how", GIVEN)
@pytest.mark.parametrize("kind", RouteKind)
def test_what_disagrees_with_infer_output_meta_is_caught(kind, how):
    members = {
        RouteKind.KERNEL: {},
        RouteKind.LOWERING: {"lower_to_standard_ops": lambda op, x: returned(how, x)},
        RouteKind.HOST: {"eager_execute": lambda op, x: returned(how, x)},
    }[kind]
    op = type("WrongOp", (Wrong,), {"family_id": "test-package.wrong.v1", **members})()
    kernel = Kernel(op.family_id, "cpu", lambda op, x: returned(how, x))
    runtimes = ExtensionRuntimeSet(kernel) if kind is RouteKind.KERNEL else NO_RUNTIMES
    text = rf"test-package\.wrong\.v1.*{GIVEN[how]}"
    for name, run in runners(op, X, runtimes=runtimes):
        compiled_host = kind is RouteKind.HOST and name in ("jit", "scan", "cond")
        ends_in(
            lambda: jax.block_until_ready(run()),
            jax.errors.JaxRuntimeError if compiled_host else InvalidConfig,
            text,
        )
    ends_in(
        lambda: Engine().eval(trace(lambda x: apply(op, x, runtimes=runtimes)[0], X), X),
        InvalidConfig,
        text,
    )


@pytest.mark.clause("X6.4")
def test_numbers_where_arrays_are_needed():
    class Number(ExtensionOp):
        family_id = "test-package.number.v1"

        def infer_output_meta(self, inputs):
            return inputs

        def lower_to_standard_ops(self, x):
            return (0.0,)

    class TangentOfNoArray(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, primals, outputs, tangents):
            return (0.0,)

    rules = ExtensionRuleSet(TangentOfNoArray())
    each_ends_in(
        (
            lambda: apply(Number(), X),
            InvalidConfig,
            r"lower_to_standard_ops of extension test-package\.number\.v1, entry 0: given 0\.0; "
            r"needed an array",
        ),
        (
            lambda: jax.grad(lambda x: apply(ScaledSquare(), x, rules=rules)[0].sum())(X),
            InvalidConfig,
            r"linearize of extension test-package\.scaled_square\.v1, entry 0: given 0\.0",
        ),
    )


@pytest.mark.few(7)
@pytest.mark.clause("X13.2")
@pytest.mark.parametrize(
    ("form", "needed"),
    [
        (lambda op: (op, (None,)), "an op of family"),
        (lambda op: (op, (0, 0)), "an op of family"),
        (lambda op: (op, (5,)), "an op of family"),
        (lambda op: (op, (-1,)), "an op of family"),
        (lambda op: 3, "an op of family"),
        (lambda op: (HostCumulate(), (0,)), "an op of family"),
        (lambda op: (op, (1,)), "the outputs of the vmap of the op"),
    ],
)
def test_an_own_batched_form_is_checked(form, needed):
    class Formed(Bilinear):
        family_id = "test-package.formed.v1"

        def batched(self, in_axes):
            return form(self)

    ends_in(
        lambda: jax.vmap(lambda x, w: apply(Formed(), x, w), in_axes=(0, None))(
            np.ones((2, 3, 3)), np.ones((3, 3))
        ),
        InvalidConfig,
        rf"(?s)batched\(\) of extension test-package\.formed\.v1: .*needed .*{needed}",
    )


F64 = np.dtype("float64")
B, C = jax.export.symbolic_shape("b, c")


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, F64)


@pytest.mark.clause("X4.5")
def test_inference_is_derived_from_a_lowering():
    class Flat(ExtensionOp):
        family_id = "test-package.flat.v1"

        def lower_to_standard_ops(self, x):
            return (x.reshape(-1).astype(jnp.float32),)

    graph = trace(lambda x: apply(Flat(), x)[0], spec(B, 3))
    assert graph.output_metas == (TensorMeta(np.dtype("float32"), (3 * B,)),)
    np.testing.assert_array_equal(graph.to_jax()(X), X.ravel())


@pytest.mark.clause("X7.1")
def test_a_lowering_is_compared_at_symbolic_sizes_too():
    class OneMore(ExtensionOp):
        family_id = "test-package.one_more.v1"

        def infer_output_meta(self, inputs):
            return [(inputs[0].dtype, (inputs[0].shape[0] + 1,))]

        def lower_to_standard_ops(self, x):
            return (x,)

    ends_in(
        lambda: tj.export(lambda x: apply(OneMore(), x)[0], spec(B)),
        InvalidConfig,
        r"test-package\.one_more\.v1: given outputs float64\[b\]; needed float64\[b \+ 1\]",
    )


@pytest.mark.clause("X7.2")
@pytest.mark.parametrize(("b", "c"), [(1, 1), (2, 3), (4, 2)])
def test_dimension_arithmetic_goes_through_and_is_bound(b, c):
    class Outer(ExtensionOp):
        family_id = "test-package.outer.v1"
        input_count = 2

        def infer_output_meta(self, inputs):
            return [(F64, (inputs[0].shape[0] * inputs[1].shape[0], inputs[0].shape[0] + 1))]

        def eager_execute(self, x, y):
            return (np.outer(np.outer(x, y), np.ones(len(x) + 1)),)

    graph = trace(lambda x, y: apply(Outer(), x, y)[0], spec(B), spec(C))
    assert graph.output_metas == (TensorMeta(F64, (B * C, B + 1)),)
    x, y = np.arange(float(b)), np.arange(float(c)) + 1
    np.testing.assert_array_equal(
        Engine().eval(graph, x, y), np.outer(np.outer(x, y), np.ones(b + 1))
    )


@pytest.mark.clause("X7.2", "X7.6")
def test_a_symbol_taken_for_a_number_is_told_with_the_authors_error():
    class Counting(ExtensionOp):
        family_id = "test-package.counting.v1"

        def infer_output_meta(self, inputs):
            return [(inputs[0].dtype, (int(inputs[0].shape[0]),))]

        def lower_to_standard_ops(self, x):
            return (x,)

    assert apply(Counting(), np.ones(2))[0].shape == (2,)
    error = ends_in(
        lambda: trace(lambda x: apply(Counting(), x)[0], spec(B)),
        InvalidConfig,
        r"(?s)infer_output_meta of extension test-package\.counting\.v1.*works for symbolic shapes",
    )
    assert error.value.__cause__ is not None


@pytest.mark.clause("X7.3")
def test_sizes_that_do_not_fit():
    ends_in(
        (run for _, run in runners(Bilinear(), X, X)),
        ShapeError,
        r"test-package\.bilinear\.v1.*dimensions 3 and 2",
    )


@pytest.mark.clause("X7.3")
def test_require_equal_tells_apart_what_equality_cannot():
    assert (B == C) is False
    call = lambda x, w: apply(Bilinear(), x, w)[0]
    assert trace(call, spec(2, B), spec(B, 2)).guards == ()
    assert [str(g) for g in trace(call, spec(2, B), spec(C, 2)).guards] == ["b == c"]
    ends_in(lambda: trace(call, spec(2, B), spec(B + 1, 2)), ShapeError, r"dimensions b and b \+ 1")


@pytest.mark.clause("X7.6")
def test_inference_that_fails_is_wrapped_with_the_family():
    class Broken(ExtensionOp):
        family_id = "test-package.broken.v1"

        def infer_output_meta(self, inputs):
            return [inputs[7]]

    class Neither(ExtensionOp):
        family_id = "test-package.neither.v1"

    class Raising(ExtensionOp):
        family_id = "test-package.raising.v1"

        def lower_to_standard_ops(self, x):
            raise KeyError("table")

    each_ends_in(
        (lambda: apply(Neither(), X), InvalidConfig, "no infer_output_meta and no lowering"),
        (
            lambda: apply(Raising(), X),  # not blamed on inference
            InvalidConfig,
            r"lower_to_standard_ops, from which metas are inferred, of extension "
            r"test-package\.raising\.v1.*KeyError",
        ),
    )
    error = ends_in(
        lambda: apply(Broken(), X),
        InvalidConfig,
        r"infer_output_meta of extension test-package\.broken\.v1.*IndexError",
    )
    assert isinstance(error.value.__cause__, IndexError)


@pytest.mark.clause("X7.7")
def test_64_bit_arrays_while_x64_is_off():
    made_before = jnp.ones(2)
    with jax.enable_x64(False):
        ends_in(
            (
                lambda: apply(ScaledSquare(), value)
                for value in (X, np.arange(3), np.float64(1), np.ones(2, complex), made_before)
            ),
            DTypeError,
            r"test-package\.scaled_square\.v1, input 0.*enable_x64\(True\).*\.astype\(np\.",
        )
        assert apply(ScaledSquare(2.0), [1.0, 2.0])[0].tolist() == [2.0, 8.0]
        assert apply(ScaledSquare(2.0), 3.0)[0] == 18.0
        assert apply(ScaledSquare(2.0), np.float32(3.0))[0].dtype == np.float32


# --- which route an extension takes, and why ------------------------------------------------------


ONES = np.ones((2, 3))
HERE = current_platform()
METAS = (TensorMeta(ONES.dtype, ONES.shape),)


@pytest.mark.clause("X8.1", "X8.4")
@pytest.mark.parametrize(
    ("op", "site", "kind", "reason"),
    [
        (KernelSine(), Site("cpu", False, False), RouteKind.KERNEL, "a kernel for cpu"),
        (KernelSine(), Site("cuda", False, False), RouteKind.LOWERING, "standard ops"),
        (KernelSine(), Site("cpu", True, False), RouteKind.LOWERING, "its kernel is not portable"),
        (KernelSine(), Site("cpu", False, True), RouteKind.LOWERING, "use jax.shard_map"),
        (ScaledSquare(), Site("tpu", True, True), RouteKind.LOWERING, "standard ops"),
        (HostCumulate(), Site("cpu", False, False), RouteKind.HOST, "eager_execute"),
        (
            HostCumulate(),
            Site("cpu", True, False),
            None,
            "in an export; needed a lowering to standard ops: kernels and host code are not portable",
        ),
    ],
)
def test_choice(op, site, kind, reason):
    if kind is None:
        ends_in(lambda: choose_route(Extension.of(op, RUNTIMES), site, METAS), Unsupported, reason)
    else:
        route = choose_route(Extension.of(op, RUNTIMES), site, METAS)
        assert route.kind is kind
        assert reason in route.reason
        assert str(route).startswith(f"{op.family_id} on {site.platform}: {kind.value}")


@pytest.mark.cpu
@pytest.mark.clause("X8.2")
def test_routes_of_a_function_in_program_order():
    def f(x):
        y = apply(KernelSine(), x, rules=RULES, runtimes=RUNTIMES)[0]
        return jax.lax.cond(
            y.sum() > 0, lambda y: apply(ScaledSquare(), y, rules=RULES)[0], lambda y: y, y
        ).sum()

    assert [r.family_id for r in routes(f, ONES)] == [KernelSine.family_id, ScaledSquare.family_id]
    assert [r.kind for r in routes(f, ONES, platform="cpu")] == [
        RouteKind.KERNEL,
        RouteKind.LOWERING,
    ]
    assert [r.kind for r in routes(f, ONES, platform="tpu")] == [RouteKind.LOWERING] * 2
    assert next(r.kind for r in routes(jax.grad(f), ONES)) is RouteKind.KERNEL
    assert [r.kind for r in routes(jax.jit(f), ONES, exporting=True)] == [RouteKind.LOWERING] * 2


@pytest.mark.clause("X8.2")
def test_routes_of_functions_with_rules_of_their_own():
    squared = jax.custom_vjp(lambda x: apply(ScaledSquare(), x, rules=RULES)[0])
    squared.defvjp(
        lambda x: (squared(x), x), lambda x, c: (apply(KernelSine(), c, rules=RULES)[0],)
    )
    call = lambda x: jax.nn.relu(squared(jax.nn.softplus(x))).sum()
    assert [route.family_id for route in routes(call, ONES)] == [ScaledSquare.family_id]
    assert [route.family_id for route in routes(jax.grad(call), ONES)] == [
        ScaledSquare.family_id,
        KernelSine.family_id,
    ]


def wide_alone(op, x):
    """What a kernel may decline: elements with fewer than three columns."""
    return "" if x.shape[-1] >= 3 else f"{x.shape[-1]} columns are few"


FAMILY = KernelSine.family_id


def shifted(op, x):
    return [x * 0 + 7]


SEVERAL = [
    Kernel(FAMILY, "cpu", shifted, lambda op, x: "seven is busy", "seven"),
    Kernel(FAMILY, "cpu", lambda op, x: [x * 0 + 8], lambda op, x: wide_alone(op, x), "eight"),
    Kernel(FAMILY, "cpu", lambda op, x: [x * 0 + 9], name="nine"),
]
MAY_DECLINE = ExtensionRuntimeSet(Kernel(FAMILY, HERE, shifted, lambda op, x: wide_alone(op, x)))


@pytest.mark.cpu
@pytest.mark.clause("X8.1", "X8.2", "X8.11")
def test_the_first_kernel_that_accepts_a_call_runs_and_the_route_says_why():
    call = lambda x: apply(KernelSine(), x, runtimes=ExtensionRuntimeSet(*SEVERAL))[0]
    for columns, name in ((3, "eight"), (2, "nine")):
        x = np.ones((4, columns))
        (route,) = routes(call, x)
        assert (route.kind, route.kernel) == (RouteKind.KERNEL, name)
        mapped = lambda x: jax.vmap(call, in_axes=2)(x[..., None])  # asked of one element
        for run in (call, jax.jit(call), mapped):
            np.testing.assert_array_equal(run(x), {"eight": 8.0, "nine": 9.0}[name])
    assert str(route) == (
        f"{FAMILY} on cpu: kernel nine (a kernel for cpu is there; kernel seven declines: seven is "
        "busy; kernel eight declines: 2 columns are few)"
    )


def endless(op, x):
    """Seven, after much work."""
    return [x * 0 + 7 + 0 * jax.lax.fori_loop(0, 20_000, lambda i, x: jax.numpy.sin(x), x)]


@pytest.mark.cpu
@pytest.mark.clause("X8.14")
def test_a_route_is_chosen_by_time_only_if_asked():
    runtimes = ExtensionRuntimeSet(Kernel(FAMILY, "cpu", endless), *SEVERAL)
    call = lambda x: apply(KernelSine(), x, runtimes=runtimes)[0]
    before = jax.jit(call)
    equal(*((fn(ONES), 7.0) for fn in (call, before)))
    (route,) = routes(call, ONES, tune=True)
    names = re.findall(r"(\w+) [\d.e+-]+ ms", route.reason)
    assert names == ["endless", "eight", "nine", "lowering"]
    assert route.kernel != "endless"
    value = {"eight": 8.0, "nine": 9.0, "": float(np.sin(1.0))}
    close(*((fn(ONES), value[route.kernel]) for fn in (call, jax.jit(lambda x: call(x)))))
    np.testing.assert_array_equal(before(ONES), 7.0)  # it is compiled already
    np.testing.assert_array_equal(call(np.ones((5, 3))), 7.0)  # other sizes were not timed
    assert routes(call, ONES, tune=True) == routes(call, ONES) == [route]  # nothing is timed twice
    assert routes(call, ONES, exporting=True)[0].kind is RouteKind.LOWERING
    (n,) = jax.export.symbolic_shape("n")
    symbolic = jax.ShapeDtypeStruct((n, 3), ONES.dtype)
    refused = InvalidConfig
    each_ends_in(
        (
            lambda: routes(call, ONES, tune=True, exporting=True),
            refused,
            "for an export; needed the",
        ),
        (lambda: routes(call, ONES, tune=True, platform="tpu"), refused, "on tpu; needed the"),
        (lambda: routes(call, symbolic, tune=True), refused, r"kernel_sine.* float64\[n,3\]"),
    )


@pytest.mark.cpu
@pytest.mark.clause("X8.13", "X10.9")
def test_a_call_without_runtimes_uses_the_kernels_of_the_class():
    class Published(Traced):
        family_id = "test-package.published.v1"

    Published.runtimes = ExtensionRuntimeSet(Kernel(Published.family_id, "cpu", shifted))
    lowering = Published.runtimes.only(RouteKind.LOWERING)
    register_extension(Published)
    call = lambda x: apply(Published(), x)[0]
    graph = trace(call, ONES)
    assert "Runtime" not in str(graph)
    back = from_wire(to_wire(graph))
    assert back == graph
    lazy = TracedTensor.apply(Published(), TracedTensor.from_array(ONES))[0]
    for got in (call(ONES), jax.vmap(jax.jit(call))(ONES), back.to_jax()(ONES), lazy.eval()):
        np.testing.assert_array_equal(got, 7.0)
    for got in (
        apply(Published(), ONES, runtimes=lowering)[0],
        Engine(runtimes=lowering).eval(graph, ONES),
        back.with_runtimes(lowering).to_jax()(ONES),
    ):
        np.testing.assert_allclose(got, np.sin(1.0))

    class Rule(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, primals, outputs, tangents):
            return [apply(Published(), primals[0])[0] * tangents[0]]

    rules = ExtensionRuleSet(Rule())
    slope = lambda x, **given: jax.grad(
        lambda x: apply(ScaledSquare(), x, rules=rules, **given)[0].sum()
    )(x)
    np.testing.assert_array_equal(slope(ONES), 7.0)
    np.testing.assert_allclose(slope(ONES, runtimes=lowering), np.sin(1.0))
    Published.runtimes = [Kernel(Published.family_id, "cpu", shifted)]
    ends_in(lambda: call(ONES), InvalidConfig, "published.* ExtensionRuntimeSet")


@pytest.mark.clause("X8.13")
def test_runtime_sets_compare_by_content_and_refuse_a_second_kernel_of_one_name():
    runtimes, again = (ExtensionRuntimeSet(Kernel(FAMILY, "cpu", sine_kernel)) for _ in range(2))
    more = runtimes.merge(ExtensionRuntimeSet(Kernel(FAMILY, "tpu", shifted)))
    over = more.merge(ExtensionRuntimeSet(*SEVERAL))  # those merged later replace the others
    assert (runtimes, hash(runtimes)) == (again, hash(again))
    assert runtimes != ExtensionRuntimeSet(Kernel(FAMILY, "cpu", shifted))
    assert ExtensionRuntimeSet(*SEVERAL) != ExtensionRuntimeSet(*SEVERAL[::-1])
    assert list(map(len, (runtimes, more, over))) == [1, 2, 4]
    assert [k.run for k in runtimes.kernels(FAMILY, "cpu")] == [sine_kernel]
    assert runtimes.kernels(FAMILY, "tpu") == ()
    assert list(over.kernels(FAMILY, "cpu")) == SEVERAL
    assert over.kernels(FAMILY, "tpu") == more.kernels(FAMILY, "tpu")
    assert (repr(runtimes), repr(over)) == (
        f"ExtensionRuntimeSet({FAMILY} on cpu)",
        f"ExtensionRuntimeSet({FAMILY} on cpu (seven, eight, nine), {FAMILY} on tpu)",
    )
    ends_in(
        (
            lambda: ExtensionRuntimeSet(*SEVERAL, SEVERAL[0]),
            lambda: ExtensionRuntimeSet(*(Kernel(FAMILY, "cpu", lambda op, x: [x]),) * 2),
        ),
        ExtensionRegistryError,
        rf"second kernel (seven|without a name) for family_id {FAMILY} on cpu",
    )
    assert runtimes == again  # nothing was changed
    ends_in(lambda: setattr(runtimes, "routes", frozenset()), AttributeError)


@pytest.mark.clause("X8.13")
@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (
            Kernel(FAMILY, "gpu", shifted),
            InvalidConfig,
            r"Kernel of extension .*platforms=\('gpu',\); needed .* cuda",
        ),
        (Kernel("nonsense", "cpu", shifted), MalformedFamilyId, "nonsense"),
        (Kernel(FAMILY, "cpu", 3), InvalidConfig, "a Kernel"),
        (Kernel(FAMILY, "cpu", shifted, name=3), InvalidConfig, "a Kernel"),
        (Kernel(FAMILY, "cpu", shifted, 3), InvalidConfig, "of functions"),
        (Kernel(FAMILY, "cpu", shifted, eager=3), InvalidConfig, "a Kernel"),
        (Kernel(FAMILY, "cuda", shifted, eager=shifted), InvalidConfig, "eager only on cpu"),
        (shifted, InvalidConfig, "a Kernel"),
    ],
)
def test_bad_kernels_are_refused(kernel, error, text):
    ends_in(lambda: ExtensionRuntimeSet(kernel), error, text)


class Traced(KernelSine):
    """Tells its routes apart by value: kernel 7, lowering sine, host -1."""

    family_id = "test-package.traced.v1"

    def eager_execute(self, x):
        return [np.full_like(x, -1)]


SEVEN = ExtensionRuntimeSet(Kernel(Traced.family_id, "cpu", shifted))


def at_once(op, x):
    """8, from NumPy to NumPy."""
    assert isinstance(x, np.ndarray)
    assert not x.flags.writeable
    return [np.full_like(x, 8)]


@pytest.mark.clause("X8.15")
def test_an_eager_function_runs_outside_jit_only():
    op, x = Traced(), jnp.ones(2)
    runtimes = ExtensionRuntimeSet(Kernel(Traced.family_id, "cpu", shifted, eager=at_once))
    run = functools.partial(apply, op, runtimes=runtimes)
    assert run(x)[0].tolist() == [8, 8]
    assert run(np.ones(2, np.float32))[0].tolist() == [8, 8]
    assert jax.jit(run)(x)[0].tolist() == [7, 7]
    assert jax.jit(lambda: run(x))()[0].tolist() == [7, 7]  # closed over, yet compiled
    assert jax.vmap(run)(x)[0].tolist() == [7, 7]
    assert apply(op, x, runtimes=runtimes.only(RouteKind.LOWERING))[0].tolist() != [8, 8]
    declining = Kernel(Traced.family_id, "cpu", shifted, lambda op, x: "no", eager=at_once)
    assert apply(op, x, runtimes=ExtensionRuntimeSet(declining))[0].tolist() != [8, 8]


@pytest.mark.clause("X8.15")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda op, x: [x[:1]],
        lambda op, x: [x, x],
        lambda op, x: x,
        lambda op, x: (2.0,),
        lambda op, x: [x.astype(np.float32)],
    ],
)
def test_the_outputs_of_an_eager_function_are_checked(wrong):
    kernel = Kernel(Traced.family_id, "cpu", shifted, eager=wrong)
    ends_in(
        lambda: apply(Traced(), jnp.ones(2), runtimes=ExtensionRuntimeSet(kernel)),
        InvalidConfig,
        r"cpu kernel shifted of extension test-package\.traced",
    )


@pytest.mark.clause("X8.3")
def test_what_is_not_selected_never_runs():
    for only in ((RouteKind.KERNEL,), (RouteKind.HOST,), (RouteKind.KERNEL, RouteKind.HOST)):
        ends_in(
            lambda: apply(ScaledSquare(), ONES, runtimes=SEVEN.only(*only)),
            Unsupported,
            r"scaled_square.*only " + ", ".join(kind.value for kind in only),
        )
    each_ends_in(
        (
            lambda: jax.export.export(
                jax.jit(lambda x: apply(Traced(), x, runtimes=SEVEN.only(RouteKind.KERNEL))[0])
            )(ONES),
            Unsupported,
            "in an export",
        ),
        (
            lambda: apply(
                KernelSine(), np.ones((2, 2)), runtimes=MAY_DECLINE.only(RouteKind.KERNEL)
            ),
            Unsupported,
            "its kernel declines: 2 columns are few",
        ),
        (SEVEN.only, InvalidConfig, "RouteKind"),
        (lambda: SEVEN.only("host"), InvalidConfig, "RouteKind"),
        (
            lambda: apply(Traced(), ONES, runtimes=[Kernel(FAMILY, "cpu", shifted)]),
            InvalidConfig,
            "ExtensionRuntimeSet",
        ),
        (lambda: Engine(runtimes=[]), InvalidConfig, "ExtensionRuntimeSet"),
    )


@pytest.mark.cpu
def test_a_route_taken_on_a_mesh_is_not_remembered_elsewhere():
    class KernelOrHost(KernelSine):
        family_id = "test-package.kernel_or_host.v1"
        lower_to_standard_ops = ExtensionOp.lower_to_standard_ops

        def infer_output_meta(self, inputs):
            return inputs

        def eager_execute(self, x):
            return [np.full_like(x, -1)]

    runtimes = ExtensionRuntimeSet(Kernel(KernelOrHost.family_id, "cpu", shifted))
    call = lambda x: apply(KernelOrHost(), x, runtimes=runtimes)[0]
    mesh = jax.make_mesh(
        (2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    for _ in range(2):
        with jax.set_mesh(mesh):
            np.testing.assert_array_equal(call(ONES), -1.0)
        np.testing.assert_array_equal(call(ONES), 7.0)


def test_a_host_op_of_ever_new_sizes_is_never_traced(monkeypatch):
    class Fresh(HostCumulate):
        family_id = "test-package.fresh_host.v1"  # met by no other test, so nothing of it is cached

    monkeypatch.setattr(jax, "jit", lambda *args, **kwargs: pytest.fail("traced"))
    for size in range(1, 20):
        np.testing.assert_array_equal(apply(Fresh(), np.ones(size))[0], np.arange(1.0, size + 1))
