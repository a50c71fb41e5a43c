"""One call has one name for its place in all its errors: the function and the equation that the
user wrote.
"""

import inspect
import pickle
import re

import numpy as np
import pytest

from ext_tropical import (
    best_assignment,
    plan_tropical_einsum,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from tenferro_jax.errors import InvalidConfig, TenferroError

from ..helpers import ends_in

A, B = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
CALLS = {
    "tropical_einsum": tropical_einsum,
    "tropical_einsum_with_argmax": tropical_einsum_with_argmax,
    "best_assignment": best_assignment,
    "plan_tropical_einsum": plan_tropical_einsum,
}
OPERANDS = {  # equation, operands
    "ij,jk->ik": [
        (A,),
        (A, B, B),
        (A, A),
        (A[0], B),
        (A[None], B),
        (A, "a text"),
        (A, None),
        (A, "max_plus"),
        (A, B.astype(np.float64).astype(complex)),
        (A, B.astype("int32")),
        (A.astype("int8"), B.astype("int8")),
        (),
    ],
    "ij,jk,kl->il": [(A, B), (A, B, A), (A, B, B.T.astype("int32")), (A, B, [[1.0], [2.0, 3.0]])],
    "ii,ij->j": [(A, A)],
    "...ij,...jk->...ik": [(A, B[0]), (A[0], B)],
    "ij,jk->i1": [(A, B)],
    "ij;jk": [(A, B)],
    "ij,jk->iz": [(A, B)],
    "ij,jk->ik->": [(A, B)],
    "..ij,jk": [(A, B)],
    "ij->ij,": [(A,)],
    "i,i->" + 60 * " ": [(A[0], B[:2, 0])],
}
OPTIONS = [
    {"semiring": "no_such"},
    {"semiring": 3},
    {"ties": "second"},
    {"ties": "split", "semiring": "log_sum_exp"},
    {"accumulate": "float64"},
    {"optimize": "no_such"},
    {"optimize": 3},
    {"optimize": [(0, 7)]},
    {"optimize": [{}]},
    {"memory_limit": -1},
    {"memory_limit": "much"},
    {"memory_limit": 1},
    {"over": "no_axis"},
    {"over": 3},
    {"progress": "yes"},
    {"slices": 0},
    {"dtype": "no_dtype"},
]


# A plan needs no dtypes that fit.
NO_MISTAKE = {("ij,jk->ik", 8), ("ij,jk->ik", 9), ("ij,jk->ik", 10), ("ij,jk,kl->il", 2)}


def bad_calls():
    for name, call in CALLS.items():
        taken = inspect.signature(call).parameters
        for equation, groups in OPERANDS.items():
            for i, operands in enumerate(groups):
                if name != "plan_tropical_einsum" or (equation, i) not in NO_MISTAKE:
                    yield pytest.param(name, equation, operands, {}, id=f"{name} {equation} {i}")
        for options in OPTIONS:
            if not options.keys() <= taken.keys():
                continue
            for equation, operands in (("ij,jk->ik", (A, B)), ("ij,jk,kl->il", (A, B, B.T))):
                yield pytest.param(name, equation, operands, options, id=f"{name} {options}")


@pytest.mark.parametrize(("name", "equation", "operands", "options"), list(bad_calls()))
def test_every_error_begins_with_the_call(name, equation, operands, options):
    call = CALLS[name]
    error = ends_in(lambda: call(equation, *operands, **options), TenferroError).value
    written = equation if len(equation) <= 80 else f"{equation[:40]}...{equation[-22:]}"
    place = f"{call.__name__} {written!r}"
    assert error.where == place or error.where.startswith(f"{place}, "), error.where
    assert str(error).startswith(f"{error.where}: given {error.given}")
    rest = error.where[len(place) :]
    assert not re.search(r"einsum|tenferro|assignment|equation", rest), error.where


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "arguments", [(A, [0, 1], A, [1, 2], [0, 2]), (A, [0, -1]), (A, 3), (A, A, B)]
)
def test_interleaved_calls_have_the_name_alone(name, arguments):
    call = CALLS[name]
    with pytest.raises(TenferroError) as error:
        call(*arguments)
    assert re.match(rf"{call.__name__}(, (labels|operand) .*)?$", error.value.where)


def test_plans_speak_the_labels_that_were_written():
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.integers(0, 9, shape).astype(np.float32) for shape in ((8, 64), (64, 64), (64, 9))
    )
    written = (a, [3, 7], b, [7, 20], c, [20, 4], [3, 4])
    plan = plan_tropical_einsum(*written, slices=4)
    assert plan.slices > 1
    for text in (str(plan), str(pickle.loads(pickle.dumps(plan)))):
        assert "order 3 7,7 20,20 4->3 4" in text
        assert re.search(r" of (7|20)\b", text)
        assert not re.search(r"\b[abcd]{1,2}(,|->)|of [abcd]\b", text)
    assert "'3 7,7 20,20 4->3 4'" in repr(plan)
    with pytest.raises(InvalidConfig, match=r"^run of a plan of '3 7,7 20,20 4->3 4'"):
        plan.run(0, a)
    parts = [plan.run(i, a, b, c, labels=True) for i in range(plan.slices)]
    found = plan.merge(parts)
    best = (a[:, :, None, None] + b[None, :, :, None] + c[None, None, :, :]).max((1, 2))
    np.testing.assert_array_equal(found.value, best)
    wanted = best_assignment(*written).labels
    assert found.labels.keys() == wanted.keys() == {7, 20}
    for label, index in wanted.items():
        np.testing.assert_array_equal(found.labels[label], index)


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        (("ij,jk->ik", A, B), "ij,jk->ik"),
        ((A, [0, 1], B, [1, 2]), "0 1,1 2->0 2"),
        ((A, [11, 1], B, [1, 10], [10, 11]), "11 1,1 10->10 11"),
        ((A, [0, 1], []), "0 1->"),
        ((A, [0, 1], B, [1, 2], B, [1, 2], []), "0 1,1 2,1 2->"),
    ],
)
def test_the_order_of_a_plan(arguments, order):
    assert str(plan_tropical_einsum(*arguments)).splitlines()[-2].endswith(f"order {order}")
