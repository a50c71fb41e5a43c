"""Independent answers. NumPy only; nothing of ours is imported."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Algebra:
    """A semiring of NumPy's scalars and arrays."""

    times: Callable[[Any, Any], Any]
    better: Callable[[Any, Any], bool]
    zero: Any


ALGEBRAS = {
    "max_plus": Algebra(np.add, np.greater, -np.inf),
    "min_plus": Algebra(np.add, np.less, np.inf),
    "max_mul": Algebra(np.multiply, np.greater, 0.0),
    "min_max": Algebra(np.maximum, np.less, np.inf),
    "or_and": Algebra(np.logical_and, np.greater, False),
}


def scalar_class(algebra: Algebra) -> type:
    """A scalar whose + and * are those of the algebra, for np.einsum on object arrays."""

    class Scalar:
        def __init__(self, value: Any):
            self.value = value

        def __add__(self, other: Any) -> Any:
            return self if not algebra.better(other.value, self.value) else other

        def __radd__(self, other: Any) -> Any:  # NumPy starts its sums from the integer 0
            return self

        def __mul__(self, other: Any) -> Any:
            return Scalar(algebra.times(self.value, other.value))

    return Scalar


def object_einsum(name: str, equation: str, *operands: np.ndarray) -> np.ndarray:
    """np.einsum over scalars of the algebra: every equation, finite values."""
    scalar = scalar_class(ALGEBRAS[name])
    wrapped = [np.vectorize(scalar, otypes=[object])(x) for x in operands]
    result = np.einsum(equation, *wrapped, optimize=False)
    return np.vectorize(lambda s: s.value, otypes=[operands[0].dtype])(result)


def log_einsum(temperature: float, equation: str, *operands: np.ndarray) -> np.ndarray:
    """T log of the sum of exp(. / T) of every candidate: small entries only."""
    with np.errstate(divide="ignore"):
        return temperature * np.log(
            np.einsum(equation, *(np.exp(x / temperature) for x in operands), optimize=False)
        )


def spread(x, term, labels, xp=np):
    """x with an axis for each of the labels, of size 1 where the term lacks it; diagonals of
    repeated ones.
    """
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            axes = term.index(label), term.rindex(label)
            x = xp.diagonal(x, axis1=axes[0], axis2=axes[1])
            term = "".join(other for i, other in enumerate(term) if i not in axes) + label
    x = xp.transpose(x, [term.index(label) for label in labels if label in term])
    return xp.expand_dims(x, [i for i, label in enumerate(labels) if label not in term])


def candidates(times, equation, operands, xp=np):
    """The product of every assignment: the axes of the output, and one of all contracted labels."""
    inputs, output = equation.split("->")
    gone = "".join(label for label in dict.fromkeys(inputs) if label not in output + ",")
    every = [
        spread(x, term, output + gone, xp)
        for x, term in zip(operands, inputs.split(","), strict=True)
    ]
    product = functools.reduce(times, every)
    shape = np.broadcast_shapes(*(x.shape for x in every))
    return xp.broadcast_to(product, shape).reshape(*shape[: len(output)], -1)


@np.errstate(all="ignore")
def brute_force(
    name: str, equation: str, lhs: np.ndarray, rhs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Value and first winner, one contracted entry after the other; with the rule of NaN, and with
    integers whose extreme value absorbs as infinity does.
    """
    algebra, zero = ALGEBRAS[name], ALGEBRAS[name].zero
    terms, output = equation.split("->")
    gone = "".join(c for c in dict.fromkeys(terms) if c not in output + ",")
    pairs = zip((lhs, rhs), terms.split(","), strict=True)
    lhs, rhs = np.broadcast_arrays(*(spread(x, term, gone + output) for x, term in pairs))
    if lhs.dtype.kind == "i":
        zero = {-np.inf: np.iinfo(lhs.dtype).min, np.inf: np.iinfo(lhs.dtype).max}.get(zero, zero)
    value = np.full(lhs.shape[len(gone) :], zero, lhs.dtype)
    winner = np.full(value.shape, -1, np.int32)
    for k, at in enumerate(np.ndindex(lhs.shape[: len(gone)])):
        candidate = algebra.times(lhs[at], rhs[at])
        if lhs.dtype.kind == "i":
            candidate = np.where((lhs[at] == zero) | (rhs[at] == zero), zero, candidate)
        wins = (candidate != candidate) | algebra.better(candidate, value)
        wins = (k == 0) | ((value == value) & wins)
        value, winner = np.where(wins, candidate, value), np.where(wins, np.int32(k), winner)
    return value, winner


SIZES_OF_ONE = [  # the calls in NumPy's own tests that repeat a size of 1, and a few more
    ("ijk,kl,jl", [(1, 5, 4), (4, 6), (5, 6)]),
    ("ijk,kl,jl,i->i", [(1, 5, 4), (4, 6), (5, 6), (10,)]),
    ("abjk,kl,jl,ab->ab", [(1, 1, 5, 4), (4, 6), (5, 6), (7, 7)]),
    ("ij,ij->j", [(10, 2), (1, 2)]),
    ("i, i", [(2,), (1,)]),
    ("...ij,...jk->...ik", [(1, 5), (1, 5)]),
    ("ijp,ipq,ikq->ijk", [(3, 1, 1), (3, 1, 3), (1, 3, 3)]),
    ("jhcabhijaci,dfijejgh->fgje", [(1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1), (3, 1, 3, 1, 1, 1, 1, 2)]),
    ("baegffahgc,hdggeff->dhg", [(2, 1, 4, 1, 1, 1, 1, 2, 1, 1), (1, 1, 1, 1, 4, 1, 1)]),
    ("cehgbaifff,fhhdegih->cdghbi", [(1,) * 10, (2, 1, 1, 2, 4, 1, 1, 1)]),
    ("gah,cdbcghefg->ef", [(2, 3, 1), (1, 3, 1, 1, 1, 2, 1, 4, 1)]),
    ("cacc,bcb->", [(1, 1, 1, 1), (1, 4, 1)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    ("bij,bjk->bik", [(1, 2, 3), (4, 3, 2)]),
    ("ij,ij->ij", [(3, 1), (1, 2)]),
    ("i,i->", [(1,), (0,)]),
]


def central_difference(
    fn: Callable[..., Any], arrays: list[np.ndarray], i: int, step: float = 1e-6
) -> np.ndarray:
    """The gradient of a scalar function with respect to array i, entry by entry."""
    out = np.zeros_like(arrays[i])
    for at in np.ndindex(arrays[i].shape):
        ends = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[i][at] += sign * step
            ends.append(float(fn(*moved)))
        out[at] = (ends[0] - ends[1]) / (2 * step)
    return out
