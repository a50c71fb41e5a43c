"""Section 8 of the contract: who computes an op, what runs and what never does, and what results are
refused.
"""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import host_errors, routes, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import (
    DTypeError,
    InvalidConfig,
    Unsupported,
)
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
)
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.extension.kernels import NO_RUNTIMES
from tenferro_jax.extension.routes import RouteKind

from ..extension_ops import (
    Bilinear,
    HostCumulate,
    ScaledSquare,
)
from ..helpers import each_ends_in, ends_in, equal
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


@pytest.mark.clause("X13.2")
def test_an_empty_batch_asks_for_no_own_form():
    class Formed(Bilinear):
        family_id = "test-package.formed_of_none.v1"

        def batched(self, in_axes):
            raise AssertionError("a form may refuse a size of 0")

    run = jax.vmap(lambda x, w: apply(Formed(), x, w), in_axes=(0, None))
    for call in (run, jax.jit(run)):
        assert jnp.shape(call(np.ones((0, 3, 3)), np.ones((3, 3)))[0]) == (0, 3, 3)


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
