"""The law of what a rule closes over: the results are those of the same rule written out in
jax.numpy, whatever the function, its `fwd`, its `bwd`, its residuals and its other rules hold, under
every transform and for every order.

The judge is a jax.custom_jvp, which has nothing of ours. Its rule is no derivative, so that a rule
that is silently left out gives another number.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import InvalidConfig
from tests.helpers import ends_in

NUMBERS = itertools.count()
WEIGHTS = np.array([1.0, 2.0, 0.5, -1.5])
X = np.array([0.3, 1.2, -0.7, 2.1])
T = np.array([1.0, -0.5, 2.0, 0.25])


# --- what is held, and how a rule uses it ---------------------------------------------------------


class Held(NamedTuple):
    """Something that a user's function may close over.

    Attributes:
      make: it.
      numbers: of it, the four numbers by which a rule multiplies.
    """

    make: Callable[[], Any]
    numbers: Callable[[Any], Any] = lambda held: held


def sharded():
    mesh = jax.make_mesh((2,), ("held",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(WEIGHTS, jax.NamedSharding(mesh, jax.P("held")))


HELD = {
    "numpy": Held(lambda: WEIGHTS),
    "jax": Held(lambda: jnp.asarray(WEIGHTS)),
    "committed": Held(lambda: jax.device_put(WEIGHTS, jax.devices()[0])),
    "sharded": Held(sharded),
    "key": Held(lambda: jax.random.key(3), lambda key: 1 + jax.random.uniform(key, (4,))),
    "raw key": Held(lambda: jax.random.PRNGKey(3), lambda key: 1 + jax.random.uniform(key, (4,))),
    "bools": Held(lambda: jnp.array([True, False, True, True]), lambda m: jnp.where(m, 3.0, 0.5)),
    "indices": Held(lambda: jnp.array([3, 0, 0, 1]), lambda i: jnp.asarray(WEIGHTS)[i]),
    "integers": Held(lambda: jnp.array([2, 1, 3, 1]), lambda n: n.astype(float)),
    "zeros": Held(lambda: jnp.zeros(4), lambda z: z + 1.5),
    "0-d": Held(lambda: jnp.asarray(1.5)),
    "0-d numpy": Held(lambda: np.float64(1.5)),
    "number": Held(lambda: 1.5),
    "dict": Held(  # an integer that an op is given is one of a dtype of its own
        lambda: {"w": [jnp.asarray(WEIGHTS), 2]},
        lambda tree: tree["w"][0] * jnp.asarray(tree["w"][1], float),
    ),
    "traced": Held(lambda: jnp.asarray(WEIGHTS)),
}


def scale(name: str, held: Any, x: Any) -> Any:
    """The numbers by which the slope at x is multiplied, in the shape of x."""
    return jnp.broadcast_to(HELD[name].numbers(held), x.shape)


# --- the same rule, written in all ways -----------------------------------------------------------


class Places(NamedTuple):
    """Where the rule uses what is held, and what the value and the slope are then. What is held may
    also be an argument that is the same in every call.
    """

    value: Callable[..., Any]
    fwd: Callable[..., Any]
    bwd: Callable[..., Any]
    slope: Callable[..., Any]
    is_argument: bool = False


def places(name: str) -> dict[str, Places]:
    use = functools.partial(scale, name)
    plain = lambda held, x: jnp.round(x) + x
    same = lambda held, x: x
    by_point = lambda held, x, g: g * jnp.cos(x)
    by_place = {
        "function": Places(
            value=lambda held, x: jnp.round(x) * use(held, x) + x,
            fwd=same,
            bwd=by_point,
            slope=lambda held, x: jnp.cos(x),
        ),
        "fwd": Places(
            value=plain,
            fwd=lambda held, x: jnp.cos(x) * use(held, x),
            bwd=lambda held, slope, g: slope * g,
            slope=lambda held, x: jnp.cos(x) * use(held, x),
        ),
        "bwd": Places(
            value=plain,
            fwd=same,
            bwd=lambda held, x, g: use(held, x) * jnp.cos(x) * g,
            slope=lambda held, x: jnp.cos(x) * use(held, x),
        ),
        "a choice in bwd": Places(
            value=plain,
            fwd=same,
            bwd=lambda held, x, g: jnp.where(use(held, x) > 1, jnp.cos(x) * g, np.zeros(x.shape)),
            slope=lambda held, x: jnp.where(use(held, x) > 1, jnp.cos(x), 0.0),
        ),
        "residuals": Places(
            value=plain,
            fwd=lambda held, x: (x, held),
            bwd=lambda _, kept, g: use(kept[1], kept[0]) * jnp.cos(kept[0]) * g,
            slope=lambda held, x: jnp.cos(x) * use(held, x),
        ),
    }
    by_place["argument"] = by_place["bwd"]._replace(is_argument=True)
    return by_place


def judge(place: Places, held: Any) -> Callable[..., Any]:
    f = jax.custom_jvp(lambda x: place.value(held, x))
    f.defjvp(lambda p, t: (f(p[0]), place.slope(held, p[0]) * t[0]))
    return f


def with_rule(make: Callable[..., Any], place: Places, held: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function that `make` makes, with its reverse rule, and its arguments after the first."""
    if not place.is_argument:
        f = make(lambda x: place.value(held, x))
        f.defvjp(lambda x: (f(x), place.fwd(held, x)), lambda kept, g: (place.bwd(held, kept, g),))
        return f, ()
    f = make(lambda x, w: place.value(w, x))
    f.defvjp(
        lambda x, w: (f(x, w), (x, w)),
        lambda kept, g: (place.bwd(kept[1], kept[0], g), None),
    )
    return f, (held,)


def of_custom_vjp(door: Callable[..., Any]) -> Callable[..., Any]:
    """What a door makes of a jax.custom_vjp, as a function of the first argument."""

    def make(place: Places, held: Any) -> Callable[..., Any]:
        f, others = with_rule(jax.custom_vjp, place, held)
        opened = door(f)
        return lambda x: opened(x, *others)

    return make


def op(function: Any) -> Any:
    return tj.op(f"tests.closed-over.v{next(NUMBERS)}")(function)


def op_of_vjp(place: Places, held: Any) -> Callable[..., Any]:
    f, others = with_rule(op, place, held)
    return lambda x: f(x, *others)


def op_of_jvp(place: Places, held: Any) -> Callable[..., Any]:
    if place.is_argument:
        f = op(lambda x, w: place.value(w, x))
        f.defjvp(lambda primals, outputs, t: place.slope(primals[1], primals[0]) * t[0])
        return lambda x: f(x, held)
    f = op(lambda x: place.value(held, x))
    f.defjvp(lambda primals, outputs, tangents: place.slope(held, primals[0]) * tangents[0])
    return f


DOORS = {
    "both_modes": of_custom_vjp(tj.both_modes),
    "differentiate": of_custom_vjp(functools.partial(tj.both_modes, opaque="differentiate")),
    "op of a custom_vjp": of_custom_vjp(op),
    "op with defvjp": op_of_vjp,
    "op with defjvp": op_of_jvp,
}


# --- where it is called, and what is asked --------------------------------------------------------


def in_shard_map(f):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("d", None)
    mapped = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    return lambda x: mapped(jnp.stack([x, x / 2]))


def scanned(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c) / 3, f(c)), x, length=2)[1]


def unrolled(f):
    return lambda x: jnp.stack([f(x), f(f(x) / 3)])


def chosen(f):
    return lambda x: jax.lax.cond(x[0] > 0, f, jnp.sin, x)


def mapped(f):
    return lambda x: jax.vmap(f)(jnp.stack([x, x / 2, -x]))


WAYS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "scan": scanned,
    "cond": chosen,
    "vmap": mapped,
    "vmap of cond": lambda f: mapped(chosen(f)),
    "shard_map": in_shard_map,
}
# JAX 0.10.2 leaves the rule of a jax.custom_jvp in a scan out of second derivatives.
JUDGED = WAYS | {"scan": unrolled}

# In jit, scan and cond JAX has no derivative of a rule that closes over a value of a trace outside.
WITH_TRACED = ("plain", "vmap", "vmap of cond", "shard_map")


def pushed(f):
    return lambda x: jax.jvp(f, (x,), (jnp.asarray(T),))[1]


def summed(f):
    return lambda x: jnp.sin(f(x)).sum()


ASKED = {
    "value": lambda f: f,
    "jvp": pushed,
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.asarray(T)),
    "grad": lambda f: jax.grad(summed(f)),
    "jacfwd": jax.jacfwd,
    "hessian": lambda f: jax.hessian(summed(f)),
    "jvp of grad": lambda f: pushed(jax.grad(summed(f))),
    "grad of jvp": lambda f: jax.grad(lambda x: pushed(f)(x).sum()),
    "jacfwd twice": lambda f: jax.jacfwd(jax.jacfwd(summed(f))),
}


def results(makers, held, way, asked, compiled):
    """What each function gives, by its name, all in one program if `compiled`."""
    given = HELD[held].make()

    def all_of(x, weights):
        value = weights if held == "traced" else given
        found = {}
        for name, (make, ways) in makers.items():
            found[name] = ASKED[asked](ways[way](make(value)))(x)
        return found

    run = jax.jit(all_of) if compiled else all_of
    return run(jnp.asarray(X), jnp.asarray(WEIGHTS))


@pytest.mark.few(8)
@pytest.mark.cpu
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("held", [name for name in HELD if name != "traced"])
def test_a_rule_gives_the_same_whatever_it_closes_over(held, way, asked, compiled):
    """30 cases: six places of what is held, and five doors."""
    makers = {}
    for name, place in places(held).items():
        makers[name, "judge"] = functools.partial(judge, place), JUDGED
        for door, make in DOORS.items():
            makers[name, door] = functools.partial(make, place), WAYS
    if (held, way, compiled) == ("committed", "shard_map", False):
        judges = {key: made for key, made in makers.items() if key[1] == "judge"}
        refusal = "incompatible devices"
        ends_in(lambda: results(judges, held, way, asked, compiled), ValueError, refusal)
        return
    found = results(makers, held, way, asked, compiled)
    for name, door in makers:
        np.testing.assert_allclose(
            found[name, door], found[name, "judge"], rtol=1e-9, atol=1e-9, err_msg=f"{name}, {door}"
        )


@pytest.mark.cpu
@pytest.mark.few(8)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("way", WITH_TRACED)
@pytest.mark.parametrize("name", [n for n, p in places("traced").items() if not p.is_argument])
def test_a_traced_value_may_be_closed_over_where_it_is_no_part_of_an_op(name, way, asked):
    """An op outlives the trace that made it, so there a traced value is refused."""
    place = places("traced")[name]
    makers = {"judge": (functools.partial(judge, place), JUDGED)}
    for door in ("both_modes", "differentiate"):
        makers[door] = functools.partial(DOORS[door], place), WAYS
    found = results(makers, "traced", way, asked, compiled=True)
    for door in makers:
        np.testing.assert_allclose(found[door], found["judge"], rtol=1e-9, err_msg=door)
    if asked == "value":
        return
    for door in ("op of a custom_vjp", "op with defvjp", "op with defjvp"):
        alone = {door: (functools.partial(DOORS[door], place), WAYS)}
        ends_in(
            lambda alone=alone: results(alone, "traced", way, asked, compiled=True),
            InvalidConfig,
            "code that closes over a traced value",
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("held", [name for name in HELD if name != "traced"])
def test_a_transpose_and_a_check_see_what_is_closed_over(held):
    given = HELD[held].make()
    f = op(lambda x: scale(held, given, x) * x)
    f.def_transpose(lambda g, x: (scale(held, given, g) * g,))
    wanted = scale(held, given, jnp.asarray(X))
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: f(x).sum()))(X), wanted)
    np.testing.assert_allclose(jax.jvp(f, (jnp.asarray(X),), (jnp.asarray(T),))[1], wanted * T)
    assert tj.check(f, X).ok
    place = places(held)["bwd"]._replace(value=lambda _, x: jnp.sin(x) * scale(held, given, x))
    for door in ("op of a custom_vjp", "both_modes"):
        assert tj.check(DOORS[door](place, given), X).ok


@pytest.mark.few(8)
@pytest.mark.parametrize("name", places("numpy"))
@pytest.mark.parametrize("held", [name for name in HELD if name != "traced"])
def test_a_graph_keeps_a_rule_that_closes_over_arrays(held, name):
    place, given = places(held)[name], HELD[held].make()
    f = of_custom_vjp(lambda f: f)(place, given)
    for run in (f, jax.jit(f), jax.checkpoint(f)):
        graph = tj.trace(lambda x, run=run: jnp.sin(run(x)).sum(), X)
        wanted = jax.grad(lambda x: jnp.sin(judge(place, given)(x)).sum())(jnp.asarray(X))
        np.testing.assert_allclose(tj.grad(graph).to_jax()(X), wanted, rtol=1e-12)


@pytest.mark.parametrize("held", ["numpy", "jax", "committed", "number"])
def test_a_function_on_the_host_may_close_over_arrays(held):
    given = HELD[held].make()
    f = op(lambda x: None)
    f.def_infer(lambda x: x)
    f.def_host(lambda x: np.asarray(given) * x)
    f.def_transpose(lambda g, x: (jnp.asarray(given) * g,))
    for run in (f, jax.jit(f), lambda x: jax.vmap(f)(x[None])[0]):
        np.testing.assert_array_equal(run(jnp.asarray(X)), np.asarray(given) * X)
    slope = jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(jnp.asarray(X))
    np.testing.assert_allclose(slope, 2 * np.asarray(given) ** 2 * X)


@pytest.mark.cpu
@pytest.mark.parametrize("held", ["numpy", "jax", "0-d", "number"])
def test_the_function_of_a_device_may_close_over_arrays(held):
    given = HELD[held].make()
    kept = given if np.ndim(given) == 0 else given[0]
    f = op(lambda x: kept * x)
    f.def_sharding("i -> i", on_device=lambda shard, x: kept * x)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(X, jax.NamedSharding(mesh, jax.P("d")))
    np.testing.assert_array_equal(jax.jit(f)(x), np.asarray(kept) * X)
