"""Which route an extension takes, and why."""

import jax
import numpy as np
import pytest

from tenferro_jax import RouteKind, Unsupported, routes
from tenferro_jax.extension import apply
from tenferro_jax.extension.op import Extension
from tenferro_jax.extension.runtimes import choose_route
from tenferro_jax.jax_seam import Site

from ..extension_ops import RULES, HostCumulate, KernelSine, ScaledSquare

X = np.ones((2, 3))


@pytest.mark.parametrize(
    ("op", "site", "kind", "reason"),
    [
        (KernelSine(), Site("cpu", False, False), RouteKind.KERNEL, "a kernel for cpu"),
        (KernelSine(), Site("cuda", False, False), RouteKind.LOWERING, "standard ops"),
        (KernelSine(), Site("cpu", True, False), RouteKind.LOWERING, "its kernel is not portable"),
        (KernelSine(), Site("cpu", False, True), RouteKind.LOWERING, "use jax.shard_map"),
        (ScaledSquare(), Site("tpu", True, True), RouteKind.LOWERING, "standard ops"),
        (HostCumulate(), Site("cpu", False, False), RouteKind.HOST, "eager_execute"),
        (HostCumulate(), Site("cpu", True, False), None, "in an export"),
    ],
)
def test_choice(op, site, kind, reason):
    if kind is None:
        with pytest.raises(Unsupported, match=reason):
            choose_route(op, site)
    else:
        route = choose_route(op, site)
        assert route.kind is kind
        assert reason in route.reason
        assert str(route).startswith(f"{op.family_id} on {site.platform}: {kind.value}")


def test_routes_of_a_function_in_program_order():
    def f(x):
        y = apply(KernelSine(), x, rules=RULES)[0]
        return jax.lax.cond(y.sum() > 0, lambda y: apply(ScaledSquare(), y, rules=RULES)[0], lambda y: y, y).sum()

    assert [r.family_id for r in routes(f, X)] == [KernelSine.family_id, ScaledSquare.family_id]
    assert [r.kind for r in routes(f, X, platform="cpu")] == [RouteKind.KERNEL, RouteKind.LOWERING]
    assert [r.kind for r in routes(f, X, platform="tpu")] == [RouteKind.LOWERING] * 2
    assert next(r.kind for r in routes(jax.grad(f), X)) is RouteKind.KERNEL
    assert [r.kind for r in routes(jax.jit(f), X, exporting=True)] == [RouteKind.LOWERING] * 2


def test_the_route_that_is_told_is_the_route_that_runs():
    call = lambda x: apply(KernelSine(offset=1.0), x)[0]  # noqa: E731
    (route,) = routes(call, X)
    assert route.kind is RouteKind.KERNEL
    np.testing.assert_allclose(call(X), np.sin(X) + 1)
    np.testing.assert_allclose(jax.jit(call)(X), np.sin(X) + 1)
    np.testing.assert_allclose(jax.vmap(call)(X), np.sin(X) + 1)
    assert Extension.of(KernelSine(offset=1.0)) == Extension.of(KernelSine(offset=1.0))
