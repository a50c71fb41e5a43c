"""Bad input to the tropical einsum: typed, with family_id or the character."""

import jax
import numpy as np
import pytest

from ext_tropical import TropicalEinsum, max_plus, tropical_einsum, tropical_einsum_with_argmax
from ext_tropical.einsum_op import TropicalEinsumFactory
from tenferro_jax import DTypeError, EquationError, PayloadError, ShapeError, X64Error
from tenferro_jax.payload import payload_json

A, B = np.ones((2, 3)), np.ones((3, 4))


@pytest.mark.parametrize("call", [tropical_einsum, tropical_einsum_with_argmax])
@pytest.mark.parametrize(
    ("equation", "column", "text"),
    [
        ("ij,jk->i1", 8, "the character '1'"),
        ("ij;jk->ik", 2, "the character ';'"),
        ("...ij,jk->ik", 0, "an ellipsis"),
        ("ij,jk-ik", 5, "'-' without '>'"),
        ("ij,jk>ik", 5, "'>' without '-'"),
        ("ij,jk->ik->", 9, "a second '->'"),
        ("ij,jk->i,k", 8, "a comma in the output"),
        ("ij,jk->iz", 8, "output label 'z', which no operand has"),
        ("ij,jk->ii", 8, "output label 'i' twice"),
        ("ij->i", 0, "1 operands"),
        ("ij,jk,kl->il", 0, "3 operands"),
        ("ii,ik->ik", 0, "label 'i' twice in operand 0"),
        ("ij,jkk->ik", 4, "label 'k' twice in operand 1"),
        ("ij,jk->k", 0, "label 'i' in operand 0 alone"),
        ("ij,jkl->ik", 5, "label 'l' in operand 1 alone"),
    ],
)
def test_equations_point_at_the_character(call, equation, column, text):
    with pytest.raises(EquationError) as error:
        call(equation, A, B)
    assert text in str(error.value)
    assert f"\n  {equation}\n  {' ' * column}^\n" in str(error.value)


def test_equation_of_another_type():
    with pytest.raises(EquationError, match="needed a string"):
        tropical_einsum(A, A, B)


def test_shapes_and_dtypes():
    with pytest.raises(
        ShapeError, match=r"tenferro-ext-tropical\.einsum\.v1 'ij,jk->ik', operand 1, axis 0: given label 'j' of size 2, and of size 3"
    ):
        tropical_einsum("ij,jk->ik", A, A)
    with pytest.raises(ShapeError, match=r"operand 0: given shape \(2, 3\) of rank 2; needed rank 3"):
        tropical_einsum("bij,jk->bik", A, B)
    with pytest.raises(DTypeError, match=r"tenferro-ext-tropical\.einsum\.v1.*float64 and float32.*one dtype"):
        tropical_einsum("ij,jk->ik", A, B.astype(np.float32))
    for dtype in (np.complex128, np.uint8, bool, np.int16):
        with pytest.raises(DTypeError, match=rf"given dtype {np.dtype(dtype).name}; needed one of float64"):
            tropical_einsum("ij,jk->ik", A.astype(dtype), B.astype(dtype))
    with jax.enable_x64(False), pytest.raises(X64Error, match=r"tenferro-ext-tropical\.einsum\.v1, input 0.*enable_x64\(True\)"):
        tropical_einsum("ij,jk->ik", A, B)


def test_payload():
    with pytest.raises(PayloadError, match="field semiring: given 'max_plus'; needed one of max_plus, min_plus, max_mul"):
        tropical_einsum("ij,jk->ik", A, B, semiring="max_plus")
    with pytest.raises(PayloadError, match="needed None or 'float32'"):
        tropical_einsum("ij,jk->ik", A, B, accumulate="float64")
    op = TropicalEinsum(max_plus, "ij,jk->ik")
    assert TropicalEinsumFactory().decode(payload_json(op)) == op
    assert TropicalEinsumFactory().instantiate_default() == op
    assert (TropicalEinsumFactory().family_id, TropicalEinsumFactory().version) == (op.family_id, 1)
    with pytest.raises(PayloadError, match="field semiring: given else"):
        TropicalEinsumFactory().decode(payload_json(op).replace("tenferro-ext-tropical.max_plus.v1", "someone.else.v1"))


@pytest.mark.parametrize(
    "operand", [None, "a", object(), [[1.0], [1.0, 2.0]], np.ma.masked_array([1.0]), np.array([1.0], ">f8")], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("call", [tropical_einsum, tropical_einsum_with_argmax])
def test_what_is_no_array(call, operand):
    with pytest.raises(DTypeError, match=r"tenferro-ext-tropical\.einsum\.v1, input 0"):
        call("i,i->", operand, np.ones(1))


def test_lists_are_arrays():
    result = tropical_einsum_with_argmax("ij,jk->ik", [[0.0, 1.0]], [[2.0], [3.0]])
    assert (result.value.item(), result.coordinates()["j"].item()) == (4.0, 1)


def test_accumulate_is_for_sixteen_bits():
    for dtype in (np.int32, np.float64):
        with pytest.raises(DTypeError, match="accumulate='float32' with"):
            tropical_einsum("ij,jk->ik", A.astype(dtype), B.astype(dtype), accumulate="float32")
    assert tropical_einsum("ij,jk->ik", A.astype(np.float32), B.astype(np.float32), accumulate="float32").dtype == np.float32
    with pytest.raises(PayloadError, match="member of Outputs"):
        TropicalEinsum(max_plus, "ij,jk->ik", "value")
