"""The equation parser against NumPy's own reading."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenferro_jax import ArityError, EquationError, ShapeError, parse_equation


@given(st.lists(st.text("abcdA", max_size=4), min_size=1, max_size=3))
def test_implicit_output_is_numpys(terms):
    equation = ",".join(terms)
    parsed = parse_equation(equation)
    shape = np.einsum(equation, *(np.ones([ord(c) % 5 + 1 for c in term]) for term in terms)).shape
    assert tuple(ord(c) % 5 + 1 for c in parsed.output) == shape


def test_spaces_are_ignored():
    assert parse_equation(" i j , jk -> i k ").explicit == "ij,jk->ik"


@given(st.text("ab,->. 1", max_size=8))
def test_any_text_is_read_or_refused_with_a_pointer(text):
    try:
        parsed = parse_equation(text)
    except EquationError as error:
        message = str(error)
    else:
        message = "^"
        assert set(parsed.output) <= set("".join(parsed.inputs))
    assert "^" in message


def test_sizes():
    equation = parse_equation("ij,jk")
    assert dict(equation.sizes([(2, 3), (3, 4)], "here")) == {"i": 2, "j": 3, "k": 4}
    with pytest.raises(ArityError, match="given 1 operands; needed 2"):
        equation.sizes([(2, 3)], "here")
    with pytest.raises(ShapeError, match="of size 4, and of size 3"):
        equation.sizes([(2, 3), (4, 4)], "here")
    with pytest.raises(ShapeError, match="rank 3"):
        equation.sizes([(2, 3, 3), (4, 4)], "here")
