"""The native route: equal to the definition for every instruction set, chosen where it should be,
absent without a compiler.
"""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_tropical import (
    TropicalEinsum,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    or_and,
    tropical_einsum,
)
from ext_tropical.native import library
from ext_tropical.native.library import Native, native
from ext_tropical.steps.einsum_op import Outputs, run_native
from tenferro_jax import routes
from tenferro_jax.extension.routes import RouteKind

from ..helpers import equal, passes
from ..oracles import brute_force
from ..sweep import in_turn, times
from .test_semirings import MinLength

pytestmark = pytest.mark.cpu
BUILT = pytest.mark.skipif(bool(native().problem), reason=str(native()))
SEMIRINGS = (max_plus, min_plus, max_mul, min_max)
EVERY = jax.jit(
    lambda op, *xs: [run_native(op, *xs, instructions=name) for name in native().instructions],
    static_argnums=0,
)


def entries(rng, shape, dtype, special):
    if dtype == np.int32:
        return rng.choice(
            [-3, -2, -1, 0, 1, 2, 3, *((-(2**31), 2**31 - 1) if special else ())], shape
        ).astype(dtype)
    return rng.choice(
        [-3, -2, -1, 0, 1, 2, 3, *((np.nan, np.inf, -np.inf) if special else ())], shape
    ).astype(dtype)


def check(op, *operands):
    want = brute_force(op.algebra.name, op.layout.equation.explicit, *operands)
    for found in EVERY(op, *operands):
        equal(*zip(found, want, strict=True))


@pytest.mark.few(1)
@BUILT
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32], ids=lambda t: t.__name__)
@pytest.mark.parametrize("semiring", SEMIRINGS, ids=repr)
def test_every_kernel_is_the_definition(semiring, dtype):
    """Ties, NaN, infinities and absorbing integers; sizes around those of vectors, blocks, groups
    and packed panels.
    """
    rng = np.random.default_rng(0)
    op = TropicalEinsum(semiring, "bij,bjk->bik", Outputs.VALUE_AND_WINNER)
    for b, m, k, n in (
        (1, 1, 1, 1),
        (2, 5, 31, 3),
        (1, 8, 32, 48),
        (3, 7, 33, 49),
        (1, 48, 129, 8),
        (1, 300, 20, 17),
        (1, 3, 257, 500),
        (2, 4, 1100, 9),
        (1, 1, 300, 40),
        (1, 70, 2, 130),
        (3, 6, 21, 23),
        (2, 1, 70, 77),
        (2, 77, 70, 1),
        (1, 1, 9, 1100),
        (1, 1300, 300, 1),
    ):
        for special in (False, True):
            check(op, *(entries(rng, shape, dtype, special) for shape in ((b, m, k), (b, k, n))))


@pytest.mark.few(2)
@BUILT
@pytest.mark.parametrize("semiring", [min_plus, max_mul, max_plus], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_rare_nan_and_infinities(semiring, dtype):
    """Of operands and of opposite infinities, in one cell and apart, in either order."""
    rng = np.random.default_rng(4)
    op = TropicalEinsum(semiring, "ij,jk->ik", Outputs.VALUE_AND_WINNER)
    a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((90, 400), (400, 130)))
    for x in (a, b):
        for value, count in ((np.nan, 20), (np.inf, 9), (-np.inf, 9), (0.0, 30)):
            x.flat[rng.integers(0, x.size, count)] = value
    assert 0.1 < np.isnan(brute_force(semiring.name, op.equation, a, b)[0]).mean() < 0.9
    check(op, a, b)


@pytest.mark.few(2)
@BUILT
@pytest.mark.parametrize("density", [0.03, 0.5, 0.0005])
def test_bits_are_the_definition(density):
    """Around bytes, groups of bytes, panels, vectors; operands in both orders, and in no order."""
    rng = np.random.default_rng(5)
    for equation, sizes in (
        ("ij,jk->ik", (9, 4100, 131)),
        ("ji,kj->ik", (20, 63, 13)),
        ("jib,jbk->bik", (40, 129, 33, 3)),
        ("jaib,bajk->ik", (5, 70, 60, 2, 3)),
    ):
        op = TropicalEinsum(or_and, equation, Outputs.VALUE_AND_WINNER)
        size = dict(zip("ijkba", sizes))
        terms = op.layout.equation.inputs
        check(op, *(rng.random([size[label] for label in term]) < density for term in terms))


@pytest.mark.few(1)
@BUILT
@pytest.mark.parametrize(
    ("semiring", "equation"),
    in_turn(
        SEMIRINGS,
        [
            "jabi,ikjd->bakd",
            "aijc,jick->ak",
            "ij,jk->ik",
            "ji,jk->ik",
            "ij,kj->ki",
            "ijb,jkb->bik",
            "bij,jbk->kib",
            "bij,bj->ib",
            "jbi,bj->bi",
            "jib,bj->bi",
            "bj,bkj->bk",
            "bij,bkj->bik",
        ],
        1,
    ),
    ids=str,
)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 12), min_size=8, max_size=8),
    special=st.booleans(),
)
@settings(max_examples=times(4))
def test_operands_are_read_where_they_lie(semiring, equation, seed, sizes, special):
    rng, size = np.random.default_rng(seed), dict(zip("abcdijk", sizes))
    op = TropicalEinsum(semiring, equation, Outputs.VALUE_AND_WINNER)
    check(
        op,
        *(
            entries(rng, [size[label] for label in term], np.float32, special)
            for term in op.layout.equation.inputs
        ),
    )


@BUILT
def test_what_is_served_and_why_not():
    def route(*operands, equation="ij,jk->ik", semiring=max_plus, exporting=False):
        return routes(
            lambda *xs: tropical_einsum(equation, *xs, semiring=semiring),
            *operands,
            platform="cpu",
            exporting=exporting,
        )[0]

    x = np.zeros((64, 64), np.float32)
    for semiring in SEMIRINGS:
        for dtype in ("float32", "float64", "int32", "float16", "bfloat16"):
            assert (
                route(
                    x.astype(jnp.dtype(dtype)), x.astype(jnp.dtype(dtype)), semiring=semiring
                ).kind
                is RouteKind.KERNEL
            )
    for served in (
        route(x, x[0], equation="ij,j->i"),
        route(x[0], x, equation="j,jk->k"),
        route(x[:12, :9], x[:9, :12]),
    ):
        assert served.kind is RouteKind.KERNEL
    for taken, reason in (
        (
            route(x, x, semiring=MinLength()),
            "it lacks min_length(unit=1.0)",
        ),
        (
            route(x.astype(np.int64), x.astype(np.int64)),
            "it computes in float64, float32, int32, bool",
        ),
        (route(x > 0, x[:, :1] > 0, semiring=or_and), "one reduction does it"),
        (route(x[:, :4], x[:4]), "one reduction does it"),
        (route(x[:8, :8], x[:8, :8]), "one reduction does it"),
        (route(x, equation="ij->j"), "one reduction does it"),
        (route(x[:0], x), "nothing to search"),
        (route(x, x, exporting=True), "not portable"),
    ):
        assert taken.kind is RouteKind.LOWERING
        assert reason in taken.reason


@BUILT
def test_arrays_of_every_kind():
    """Views with strides, in Fortran order, at odd addresses, without entries."""
    whole = np.random.default_rng(1).normal(size=(100, 130)).astype(np.float32)
    odd = np.frombuffer(b"-" + whole[:64, :64].tobytes(), np.float32, offset=1).reshape(64, 64)
    assert not odd.flags.aligned
    for lhs, rhs in (
        (whole[::2, ::2], whole[10:75, ::-1]),
        (np.asfortranarray(whole), whole.T),
        (odd, odd.T),
        (whole[:0], whole.T),
    ):
        want = brute_force("max_plus", "ij,jk->ik", lhs, rhs)
        np.testing.assert_array_equal(tropical_einsum("ij,jk->ik", lhs, rhs), want[0])


@BUILT
def test_on_a_mesh_it_runs_on_each_device():
    mesh = jax.make_mesh(
        (4,), ("x",), devices=jax.devices()[:4], axis_types=(jax.sharding.AxisType.Auto,)
    )
    rng = np.random.default_rng(3)
    a, b = (
        rng.normal(size=(64, 33)).astype(np.float32),
        rng.normal(size=(33, 40)).astype(np.float32),
    )
    f = lambda a, b: tropical_einsum("ij,jk->ik", a, b)
    split = jax.device_put(a, jax.NamedSharding(mesh, jax.P("x")))
    assert [r.kind for r in routes(f, split, b)] == [RouteKind.KERNEL]
    assert library.target("einsum") in jax.jit(f).lower(split, b).compile().as_text()
    mapped = jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P("x"))
    )
    assert [r.kind for r in routes(mapped, split, b)] == [RouteKind.KERNEL]
    equal((mapped(split, b), f(a, b)), (jax.jit(f)(split, b), f(a, b)))
    gradient = jax.grad(lambda a: mapped(a, b).sum())(split)
    np.testing.assert_array_equal(gradient, jax.grad(lambda a: f(a, b).sum())(a))


@BUILT
def test_malformed_calls_are_refused_by_the_handler():
    x = jnp.zeros((4, 4), jnp.float32)

    def call(result=(1, 4, 4), dtype=jnp.float32, **changed):
        attributes = {
            "algebra": np.int64(0),
            "instructions": "",
            "sizes": np.array([1, 4, 4, 4]),
            "lhs": np.array([0, 1, 4]),
            "rhs": np.array([0, 4, 1]),
        }
        fn = jax.ffi.ffi_call(library.target("einsum"), [jax.ShapeDtypeStruct(result, dtype)])
        return jax.block_until_ready(jax.jit(lambda x: fn(x, x, **(attributes | changed)))(x))

    call()
    for text, changed in {
        "strides that leave": {"lhs": np.array([0, 1, 5])},
        "malformed attributes": {"algebra": np.int64(5)},
        "einsum: malformed attributes": {"algebra": np.int64(3)},
        "malformed result": {"result": (1, 4, 3)},
        "tropical einsum: malformed result": {"dtype": jnp.int32},
        "contracted entries": {"sizes": np.array([1, 0, 4, 4])},
    }.items():
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            call(**changed)


@pytest.mark.slow
@BUILT
def test_the_route_conforms():
    """Second derivatives are those of gathers, not of the kernel."""
    rng = np.random.default_rng(0)
    op = TropicalEinsum(max_plus, "ij,jk->ik", Outputs.VALUE_AND_WINNER)
    passes(op, rng.normal(size=(24, 20)), rng.normal(size=(20, 22)), order=1)


def test_with_a_compiler_the_library_is_there():
    """So that a build that fails is no row of skipped tests: install again (pip install -e .) and
    read what the compiler says.
    """
    if os.name != "nt" and any(map(shutil.which, ("c++", "g++", "clang++"))):
        assert native().problem == ""


def test_a_library_that_cannot_be_loaded_is_told(tmp_path, monkeypatch):
    (tmp_path / library.FILE).write_text("no library")
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    found = native.__wrapped__()
    assert found.instructions == ()
    assert str(found).startswith("native kernels: absent (kernels.shared cannot be used: ")
    assert str(Native(("baseline", "AVX2"), "")) == "native kernels: AVX2"
