"""NumPy and Python data as operands of the functions of arrays: what jax.numpy.asarray makes of
them, for every such function.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ext_tropical as et
import tenferro_jax as tj
from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError
from tenferro_jax.extension import apply
from tenferro_jax.shapes import as_array
from tenferro_jax.tensor import TracedTensor

from .helpers import ends_in

SQUARE = [[0, 3, 1], [2, 0, 5], [1, 1, 0]]
ROW = [1, 0, 2]
ROADS = et.EdgeGraph([0, 1, 2], [1, 2, 0], 3)
FUNCTIONS = {
    "tropical_einsum": (lambda a, b: et.tropical_einsum("ij,jk->ik", a, b), SQUARE, SQUARE),
    "tropical_einsum of three": (
        lambda a, b: et.tropical_einsum("ij,jk,k->i", a, a, b),
        SQUARE,
        ROW,
    ),
    "tropical_einsum_with_argmax": (
        lambda a, b: et.tropical_einsum_with_argmax("ij,j->i", a, b),
        SQUARE,
        ROW,
    ),
    "best_assignment": (lambda a, b: et.best_assignment("ij,j->", a, b), SQUARE, ROW),
    "closure": (et.closure, SQUARE),
    "viterbi": (et.viterbi, ROW, SQUARE, SQUARE),
    "align": (et.align, SQUARE),
    "align_symbols": (lambda s: et.align_symbols([0, 1], [1, 0, 0], s, gap=-1), SQUARE),
    "tropical_dot_general": (et.tropical_dot_general, SQUARE, ROW),
    "min_plus_dot_general": (et.min_plus_dot_general, SQUARE, SQUARE),
    "tropical_reduce_sum": (lambda a: et.tropical_reduce_sum(a, 0), SQUARE),
    "shortest_paths": (lambda w: et.shortest_paths(ROADS, w, 0).distances, ROW),
    "k_shortest_paths": (lambda w: et.k_shortest_paths(ROADS, w, 0, 2, 2), ROW),
    "count_shortest_paths": (
        lambda w: np.array(et.count_shortest_paths(ROADS, w, 0, [1, 2])),
        ROW,
    ),
    "segment_max": (lambda a: et.segment_max(a, [0, 1, 0], 2).value, ROW),
    "segment_min": (lambda a: et.segment_min(a, [0, 1, 0], 2).value, ROW),
    "einsum": (lambda a, b: tj.einsum("ij,jk->ik", a, b), SQUARE, SQUARE),
    "einsum of lazy tensors": (
        lambda a: tj.einsum("ij,j->i", a, TracedTensor.from_array(np.int32(ROW))).eval(),
        SQUARE,
    ),
}
NO_OPERANDS = {"plan_tropical_einsum", "register", "register_semiring", "broken_laws"}
FLOATS_ALONE = {"ctc_loss"}
PYTHON = (
    "float64",
    "int64",
    "complex128",
    "bool",
)  # a list of Python's own numbers says no other dtype
ORIGINS = {
    "NumPy array": lambda x, dtype: np.array(x, dtype),
    "JAX array": lambda x, dtype: jnp.asarray(np.array(x, dtype)),
    "list": lambda x, dtype: np.array(x, dtype).tolist(),
    "list of NumPy": lambda x, dtype: list(np.array(x, dtype)),
}


def test_no_function_of_arrays_is_missing_here():
    functions = {name for name, _ in inspect.getmembers(et, inspect.isfunction)}
    assert functions & set(et.__all__) - NO_OPERANDS - FLOATS_ALONE <= set(FUNCTIONS)


EVERY = [
    (name, dtype, x64)
    for name in FUNCTIONS
    for dtype in ("float64", "int64")
    for x64 in (False, True)
]
EVERY += [
    ("einsum", dtype, x64)
    for dtype in ("complex128", "uint64", "int8", "float16")
    for x64 in (False, True)
]
QUICK = {
    case
    for case in EVERY
    if case[0] in ("tropical_einsum", "einsum") or case[1:] == ("float64", False)
}


@pytest.mark.parametrize(
    ("name", "dtype", "x64"),
    [pytest.param(*c, marks=[] if c in QUICK else pytest.mark.slow) for c in EVERY],
)
def test_data_is_taken_as_jax_numpy_takes_it(name, dtype, x64):
    call, *data = FUNCTIONS[name]
    with jax.enable_x64(x64):
        for origin, make in ORIGINS.items():
            if origin == "list" and dtype not in PYTHON:
                continue
            given = [make(x, dtype) for x in data]
            got, want = (
                jax.tree.leaves(call(*xs)) for xs in (given, [jnp.asarray(x) for x in given])
            )
            for g, w in zip(got, want, strict=True):
                assert g.dtype == w.dtype
                np.testing.assert_array_equal(g, w, err_msg=f"{name} of {dtype} as {origin}")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_that_32_bits_do_not_hold_are_refused(name):
    call, *data = FUNCTIONS[name]
    with jax.enable_x64(False):
        for make in (ORIGINS["NumPy array"], ORIGINS["list"], ORIGINS["list of NumPy"]):
            given = [make(np.array(x) + 2**31, "int64") for x in data]
            ends_in(
                lambda: call(*given),
                DTypeError,
                "while 64-bit types are off",
            )


@pytest.mark.parametrize(
    ("integers", "dtype", "fits"),
    [
        ([2**31 - 1, -(2**31)], "int64", True),
        ([2**31], "int64", False),
        ([-(2**31) - 1], "int64", False),
        ([2**32 - 1], "uint64", True),
        ([2**32], "uint64", False),
        ([], "int64", True),
    ],
)
def test_integers_narrow_where_every_one_fits(integers, dtype, fits):
    given = np.array(integers, dtype)
    with jax.enable_x64(False):
        if fits:
            assert as_array(given, "here").dtype.itemsize == 4
            np.testing.assert_array_equal(as_array(given, "here"), given)
            return
        ends_in(
            (
                lambda: as_array(form, "here")
                for form in (given, list(given), [given], memoryview(given))
            ),
            DTypeError,
            "while 64-bit types are off",
        )


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "integers",
    [
        [2**63],
        [-1, 2**63],
        [-(2**63) - 1],
        [-(2**63), 2**63],
        2**70,
        [[2**70], [1]],
        [np.uint64(2**63), 2**64],
    ],
)
def test_integers_that_64_bits_do_not_hold_are_told_so(integers, x64):
    with jax.enable_x64(x64):
        ends_in(lambda: jnp.asarray(integers), OverflowError)
        for take in (as_array, lambda x, where: et.tropical_einsum("i->", jax.tree.leaves(x))):
            ends_in(lambda: take(integers, "here"), DTypeError, "needed integers of 64 bits")


@pytest.mark.parametrize("x64", [False, True])
def test_the_integer_beside_numpy_data_is_what_is_refused(x64):
    with (
        jax.enable_x64(x64),
        pytest.raises(
            DTypeError, match=r"300 out of bounds for int8; needed .*NumPy data among them"
        ) as error,
    ):
        as_array([np.int8(1), 300], "here")
    assert type(error.value) is DTypeError


def test_ops_stay_strict():
    with jax.enable_x64(False):
        spec = jax.ShapeDtypeStruct((2,), np.float32)
        graph, program, lazy = (
            tj.trace(jnp.sin, spec),
            tj.export(jnp.sin, spec),
            TracedTensor.from_array(np.ones(2, np.float32)),
        )
        calls = [
            lambda x: apply(et.TropicalEinsum("max_plus", "i->"), x),
            lambda x: tj.trace(lambda x: x, x),
            graph.to_jax(),
            program.call,
        ]
        calls += [
            lambda x: tj.export(jnp.sin, x),
            TracedTensor.from_array,
            lambda x: lazy @ x,
            lambda x: Engine().eval(graph, x),
        ]
        for call in calls:
            for dtype in ("float64", "int64"):
                ends_in(
                    lambda: call(np.ones(2, dtype)),
                    DTypeError,
                    f"a {dtype} array while 64-bit types are off",
                )
