"""einsum of arrays and of lazy tensors: NumPy's einsum and jax.numpy's derivatives are
the judges.
"""

import itertools
import re

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from opt_einsum import get_symbol

import tenferro_jax as tj
from tenferro_jax import einsum
from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.ops.contraction import DotGeneral, precision_names
from tenferro_jax.tensor import TracedTensor, eval_all

from ..helpers import each_ends_in, ends_in
from ..oracles import SIZES_OF_ONE

ENGINE = Engine(capacity=256)
HAND = [
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("iii->i", [(3, 3, 3)]),
    ("iii->", [(3, 3, 3)]),
    ("iijj->ji", [(3, 3, 2, 2)]),
    ("ijij", [(3, 2, 3, 2)]),
    ("i,j->ij", [(3,), (2,)]),
    ("i,j->ji", [(3,), (2,)]),
    ("i,j,k", [(3,), (2,), (4,)]),
    ("i,i->i", [(3,), (3,)]),
    ("i,i,i->", [(3,), (3,), (3,)]),
    (",->", [(), ()]),
    ("", [()]),
    (",i,->i", [(), (3,), ()]),
    ("ij->", [(3, 2)]),
    ("ij->ji", [(3, 2)]),
    ("ba", [(3, 2)]),
    (" i j , jk -> k i ", [(3, 2), (2, 4)]),
    ("ij,kl->", [(3, 2), (4, 5)]),
    ("ij,ik->kij", [(3, 2), (3, 4)]),
    ("bij,bjk->kbi", [(2, 3, 2), (2, 2, 4)]),
    ("ii,ij,jj->i", [(3, 3), (3, 2), (2, 2)]),
    ("ab,bc,cd,de->ea", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("ij,jk->ik", [(0, 3), (3, 2)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
    ("iz,zz->i", [(2, 3), (3, 3)]),
    ("aB,Bc->ac", [(2, 3), (3, 4)]),
    ("...", [(2, 3)]),
    ("...->...", [()]),
    ("i...->...", [(2, 3, 4)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 2)]),
    ("...i,i...->...", [(2, 3), (3, 1)]),
    ("...,...", [(1, 3), (4, 1)]),
    ("...a,...a->...", [(1, 3), (3,)]),
    ("a...b,b...->...a", [(2, 4, 1, 3), (3, 5)]),
    ("...i,j->...", [(2, 2), (3,)]),
    *SIZES_OF_ONE,
]


def integers(shapes, dtype=np.float64):
    rng = np.random.default_rng(len(shapes))
    return [rng.integers(-3, 4, size=shape).astype(dtype) for shape in shapes]


def both(cases, **how):
    """einsum of every (equation, operands): of arrays in one compiled program, and of lazy tensors
    in one.
    """

    def of(every):
        return [einsum(equation, *xs, **how) for (equation, _), xs in zip(cases, every)]

    operands = [xs for _, xs in cases]
    lazy = [list(map(TracedTensor.from_array, xs)) for xs in operands]
    return zip(jax.jit(of)(operands), eval_all(of(lazy), ENGINE))


@pytest.mark.parametrize("optimize", ["auto", False])
def test_hand_list_for_arrays_and_for_lazy_tensors(optimize):
    cases = [(equation, integers(shapes)) for equation, shapes in HAND]
    for (equation, xs), found in zip(cases, both(cases, optimize=optimize)):
        want = np.einsum(equation, *xs)
        for got in found:
            assert got.shape == want.shape, equation
            np.testing.assert_array_equal(got, want, err_msg=equation)


EQUATIONS = ["ij->i", "ii->i", "ij,jk->ik", "i,j->ij", "ij,ij->i", "ij,jk,kl->il", "ij->ji"]


def of_table(x):
    """The equations with a table for terms of two labels, and its first row for those of one."""
    return [
        (e, [x if len(term) == 2 else x[0] for term in e.split("->")[0].split(",")])
        for e in EQUATIONS
    ]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "complex128", "bool"])
def test_dtypes_and_of_booleans_the_sum_is_or_and_the_product_and(dtype):
    cases = of_table(integers([(3, 3)], dtype)[0])
    for (equation, xs), found in zip(cases, both(cases)):
        for got in found:
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, np.einsum(equation, *xs), err_msg=equation)


@pytest.mark.parametrize(
    "dtypes", [("int8", "int32"), ("bool", "int16"), ("float16", "float32")], ids=str
)
def test_preferred_element_type_is_what_sums_are_made_in(dtypes):
    """Sums that int8 wraps and float16 rounds: NumPy computes them in the wide dtype.

    On an H100 XLA of 0.11.2 doubles small products of int8 in int32, those of jnp.einsum too.
    """
    if dtypes == ("int8", "int32") and jax.default_backend() != "cpu":
        pytest.skip("XLA's own products of int8 are wrong there")
    cases = of_table(np.full((3, 3), 101).astype(dtypes[0]))
    for (equation, xs), found in zip(cases, both(cases, preferred_element_type=dtypes[1])):
        want = np.einsum(equation, *xs, dtype=dtypes[1])
        for got in found:
            assert got.dtype == dtypes[1]
            np.testing.assert_array_equal(got, want, err_msg=equation)


def test_a_narrower_preferred_element_type_is_that_of_the_result_and_rounds_once():
    x = np.array([[1.5, 2.25], [0, 0.75]], np.float32)
    for dtype in (np.int32, jnp.bfloat16, np.int8, bool):
        got = einsum("ij,jk,kl->il", x, x, x, preferred_element_type=dtype)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, np.einsum("ij,jk,kl->il", x, x, x).astype(dtype))

    def narrow():
        with jax.enable_x64(False):
            einsum("ij->i", x, preferred_element_type=np.float64)

    each_ends_in(
        (
            lambda: einsum("ij->i", x * 1j, preferred_element_type=np.float32),
            DTypeError,
            "given float32 for complex64 operands; needed a complex dtype",
        ),
        (
            lambda: einsum("ij->i", x, preferred_element_type="wide"),
            DTypeError,
            "preferred_element_type: given 'wide'; needed a dtype",
        ),
        (narrow, DTypeError, r"preferred_element_type: given float64 while .* or float32"),
    )


PRECISIONS = [
    None,
    "high",
    "float32",
    jax.lax.Precision.HIGHEST,
    ("default", "highest"),
    "BF16_BF16_F32",
    jax.lax.DotAlgorithmPreset.F32_F32_F32,
]


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_precision_is_that_of_jax_numpy(precision):
    def found(f):
        return re.findall(
            "precision=(.*)",
            str(jax.make_jaxpr(lambda x: f("ij,jk->ik", x, x, precision=precision))(x)),
        )

    x = np.ones((2, 2), np.float32)
    assert found(einsum) == found(jnp.einsum)
    lazy = TracedTensor.input("x", np.float32, (2, 2))
    (node,) = einsum("ij,jk->ik", lazy, lazy, precision=precision).graph().nodes
    assert node.op.precision == precision_names(precision)


def test_mixed_dtypes_promote_alike_for_arrays_and_tensors():
    a, b, c = np.float32([[1, 2]]), np.int32([3, 4]), jnp.asarray([2, 0.5], jnp.bfloat16)
    pairs = [("ij,j", (a, b)), ("j,ij", (b, a)), ("j,j", (b, c)), ("j,j", (c, b)), ("ij,j", (a, c))]
    for (equation, xs), found in zip(pairs, both(pairs)):
        with jax.numpy_dtype_promotion("standard"):
            want = jnp.einsum(equation, *xs)
        for got in found:
            np.testing.assert_array_equal(got, want, strict=True)
    assert einsum("i,->i", np.float32([1, 2]), 0.5).dtype == np.float32


@pytest.mark.slow
def test_derivatives_of_both_orders_and_modes():
    equations = [
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("iij,jk->k", [(3, 3, 2), (2, 4)]),
        ("...i,...i", [(2, 3), (3,)]),
    ]
    for equation, shapes in [*equations, ("ij,ik->j", [(1, 2), (3, 4)])]:
        xs = integers(shapes)
        both = [lambda *xs, f=f: jnp.sin(f(equation, *xs)).sum() for f in (einsum, jnp.einsum)]
        every = tuple(range(len(xs)))
        ours, theirs = jax.jit(
            lambda *xs: [(jax.grad(f, every)(*xs), jax.hessian(f)(*xs)) for f in both]
        )(*xs)
        chex.assert_trees_all_close(ours, theirs, rtol=1e-10, atol=1e-12)
        tensors = [TracedTensor.from_array(x) for x in xs]
        lazy = eval_all(einsum(equation, *tensors).sin().sum().grad(tensors), ENGINE)
        chex.assert_trees_all_close(tuple(lazy), theirs[0], rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_more_labels_than_letters_of_the_alphabet():
    xs = [x / np.linalg.norm(x) for x in integers([(2, 2)] * 60)]
    labels = [get_symbol(i) for i in range(61)]
    equation = ",".join(map("".join, itertools.pairwise(labels))) + f"->{labels[0]}{labels[-1]}"
    np.testing.assert_allclose(
        einsum(equation, *xs, optimize="greedy"), np.linalg.multi_dot(xs), rtol=1e-12
    )
    np.testing.assert_array_equal(
        einsum("\u03b1\u3042,\u3042A", *xs[:2]), np.einsum("ij,jk->ki", *xs[:2])
    )


def test_symbolic_sizes():
    (n,) = jax.export.symbolic_shape("n")
    spec = [jax.ShapeDtypeStruct(s, np.float64) for s in ((n, 3), (3, n))]
    graph = tj.trace(lambda a, b: einsum("ij,ji->i", a, b), *spec)
    a, b = integers([(4, 3), (3, 4)])
    np.testing.assert_array_equal(ENGINE.eval(graph, a, b), np.einsum("ij,ji->i", a, b))
    repeated = tj.trace(lambda a: einsum("ij,ik->k", a, np.ones((1, 1))), spec[0])
    np.testing.assert_array_equal(ENGINE.eval(repeated, a), [a.sum()])
    x = TracedTensor.input("x", np.float64, ("n", "n"))
    np.testing.assert_array_equal(
        einsum("ii->i", x).eval(ENGINE, {x: a[:, [0, 1, 2, 2]]}), np.diagonal(a[:, [0, 1, 2, 2]])
    )
    ends_in(
        lambda: einsum(
            "i,i->",
            TracedTensor.input("a", np.float64, ("n",)),
            TracedTensor.input("b", np.float64, ("m",)),
        ),
        ShapeError,
        "n and m",
    )


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,jk,kl->li"])
def test_a_chain_is_dot_products_without_transposes(equation):
    a, b, c = (
        TracedTensor.input(name, np.float32, shape)
        for name, shape in [("a", (2, 3)), ("b", (3, 4)), ("c", (4, 5))]
    )
    graph = einsum(equation, a, b, c).graph()
    assert [type(node.op) for node in graph.nodes] == [DotGeneral, DotGeneral]


ONES = np.ones((2, 3))
WRONG = {
    "ij->k": ([ONES], InvalidConfig, "output label 'k' that no operand has"),
    "ij,jk->ii": ([ONES, ONES], InvalidConfig, "output label 'i' twice"),
    "ij,jk": (
        [ONES, ONES],
        ShapeError,
        "operand 1, axis 0: .*'j' of size 2, and of size 3 before, in operand 0",
    ),
    "ii": ([ONES], ShapeError, "'i' of size 3"),
    "ij,j": ([ONES], InvalidConfig, "1 operand; needed 2"),
    "...,...": ([ONES], InvalidConfig, "1 operand; needed 2"),
    "i": ([ONES], ShapeError, "rank 2; needed rank 1|shape"),
    "...ijk": ([ONES], ShapeError, "at least rank 3"),
    "i1": ([ONES], InvalidConfig, "the character '1' in 'i1'"),
    "i..j": ([ONES], InvalidConfig, r"the character '\.' in 'i\.\.j'"),
    "i-j": ([ONES], InvalidConfig, "the character '-'"),
    "i>j": ([ONES], InvalidConfig, "the character '>'"),
    "ij->i->j": ([ONES], InvalidConfig, "the character '-'"),
    "ij->i,j": ([ONES], InvalidConfig, "the character ','"),
    "...i...": ([ONES], InvalidConfig, r"the character '\.'"),
    "...i->i": ([ONES], InvalidConfig, "ellipsis in the operands but not in the output"),
    "...a,...b": ([np.ones((2, 3)), np.ones((3, 3))], ShapeError, "of size 3, and of size 2"),
    "ii->": ([np.ones((1, 3))], ShapeError, "'i' of size 3, and of size 1 before"),
}


@pytest.mark.parametrize("equation", WRONG)
def test_wrong_equations(equation):
    operands, kind, text = WRONG[equation]
    each_ends_in(
        (lambda: einsum(equation, *operands), kind, f"(?s){text}"),
        (lambda: einsum(equation, *map(TracedTensor.from_array, operands)), kind, f"(?s){text}"),
    )


def test_what_is_no_equation_or_operand():
    each_ends_in(
        (
            (lambda: einsum("ij,jk->ik", ONES, ONES.T, optimize=x) for x in (None, 3, [(0, 5)])),
            InvalidConfig,
            r"einsum, optimize: .*needed tuples of positions.*name of an algorithm, True or False",
        ),
        (
            (
                lambda: einsum("ij,jk->ik", ONES, ONES.T, precision=x)
                for x in (3, "x", ("high",), ("x", "y"))
            ),
            InvalidConfig,
            r"precision: given .*; needed a lax\.Precision or its name",
        ),
        (lambda: einsum(ONES, ONES), InvalidConfig, "Pass the equation first"),
        (lambda: einsum("ij", "text"), DTypeError, "operand 0"),
        (lambda: einsum("ij"), InvalidConfig, "given 0 operands; needed 1"),
    )


def test_python_numbers_are_weak_and_never_wrap():
    ends_in(
        (
            lambda: einsum(",i->i", 300, operand)
            for operand in (jnp.ones(2, jnp.int8), TracedTensor.from_array(np.ones(2, np.int8)))
        ),
        DTypeError,
        "the number 300",
    )
    np.testing.assert_array_equal(
        einsum(",i->i", 2**40, jnp.ones(2, jnp.float32)), np.full(2, 2.0**40, np.float32)
    )
