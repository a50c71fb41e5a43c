"""Which route an extension takes, and why: kernels in their order, eager functions, choice by time."""

import functools
import pickle
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax import TensorMeta, from_wire, routes, to_wire, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import (
    ExtensionRegistryError,
    InvalidConfig,
    MalformedFamilyId,
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
from tenferro_jax.extension.routes import RouteKind, choose_route, current_platform
from tenferro_jax.jax_seam import Site
from tenferro_jax.tensor import TracedTensor

from ..extension_ops import (
    RULES,
    RUNTIMES,
    HostCumulate,
    KernelSine,
    ScaledSquare,
    sine_kernel,
)
from ..helpers import close, each_ends_in, ends_in, equal

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
        assert pickle.loads(pickle.dumps(route)) == route  # though a kernel may have no name
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


@pytest.mark.cpu
@pytest.mark.clause("X8.2")
def test_the_route_that_is_told_knows_shardings():
    mesh = jax.make_mesh(
        (2, 2), ("d", "e"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    call = lambda x: apply(KernelSine(offset=1.0), x, runtimes=RUNTIMES)[0]
    inside = lambda axes: jax.shard_map(
        call, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"), axis_names=axes
    )
    constrained = lambda x: call(
        jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("d")))
    )
    x = np.linspace(0.0, 1.0, 4)
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("d")))
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
