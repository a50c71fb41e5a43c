"""The equation parser against NumPy's own reading."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opt_einsum import get_symbol

from tenferro_jax.einsum import parse_equation, parse_interleaved
from tenferro_jax.einsum.notation import axis_label, equation_for
from tenferro_jax.errors import ArityError, EquationError, ShapeError

from ..helpers import each_ends_in, ends_in


@given(st.lists(st.text("abcdA", max_size=4), min_size=1, max_size=3))
def test_implicit_output_is_numpys(terms):
    equation = ",".join(terms)
    parsed = parse_equation(equation)
    shape = np.einsum(equation, *(np.ones([ord(c) % 5 + 1 for c in term]) for term in terms)).shape
    assert tuple(ord(c) % 5 + 1 for c in parsed.output) == shape


def test_every_symbol_of_opt_einsum_is_a_label_up_to_surrogates():
    symbols = [get_symbol(i) for i in (*range(55_156), *range(55_296, 60_000), 1_046_527)]
    assert len(set(symbols)) == len(symbols)
    parsed = parse_equation(",".join(symbols))
    assert parsed.inputs == tuple(symbols)
    assert parsed.output == "".join(sorted(symbols))


@pytest.mark.parametrize("character", "0_;\t\n\x00\x7f\x85\xa0\xb2\ud800" + axis_label(10) + "\U0010ffff")
def test_what_is_no_label(character):
    ends_in(lambda: parse_equation(f"i{character}->i"), EquationError, "character 1: given the character")


def test_axes_of_an_ellipsis_have_labels_that_nobody_writes():
    labels = {axis_label(i) for i in range(64)}
    assert len(labels) == 64
    assert labels.isdisjoint(get_symbol(i) for i in range(60_000))
    many = "".join(get_symbol(i + 52) for i in range(64))
    assert len(set(equation_for(f"...{many}->...", (128,)).inputs[0])) == 128


@given(st.lists(st.lists(st.integers(0, 51), max_size=4), min_size=1, max_size=3), st.booleans())
def test_the_interleaved_form_is_numpys(terms, explicit):
    ones = [np.ones([label % 5 + 1 for label in term]) for term in terms]
    output = [sorted({label for term in terms for label in term}, reverse=True)] if explicit else []
    arguments = [part for pair in zip(ones, terms, strict=True) for part in pair] + output
    equation, operands = parse_interleaved(arguments)
    assert all(given is kept for given, kept in zip(ones, operands, strict=True))
    assert np.einsum(equation, *operands).shape == np.einsum(*arguments).shape


@pytest.mark.parametrize("arguments", [[], [1], [1, 2], [1, "ab"], [1, [0.5]], [1, [0, -1]], [1, [0], [None]]])
def test_what_is_no_interleaved_form(arguments):
    ends_in(lambda: parse_interleaved(arguments), EquationError, "Pass the equation first")


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
    each_ends_in(
        (lambda: equation.sizes([(2, 3)], "here"), ArityError, "given 1 operands; needed 2"),
        (lambda: equation.sizes([(2, 3), (4, 4)], "here"), ShapeError, "of size 4, and of size 3"),
        (lambda: equation.sizes([(2, 3, 3), (4, 4)], "here"), ShapeError, "rank 3"),
    )
