"""Op objects as users hold them: equal exactly when class, types and bits are; in dicts, jit and
copies.
"""

import copy
import dataclasses
import functools
import pickle
import struct

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    extension_op,
)
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.payload_text import from_payload_json, payload_json

from ..extension_ops import ScaledSquare
from ..helpers import made
from ..sweep import times
from .test_identity import DISTINCT, Color, Inner, Loose, Mode, Sized

ANYTHING = object | Color | Mode | Loose | Inner | Sized | ScaledSquare


def lower(self, x):
    return (x / self.v if isinstance(self.v, float) else x,)


@extension_op(package="test-package", name="declared_holder", version=1)
class Declared(ExtensionOp):
    v: ANYTHING = None
    lower_to_standard_ops = lower


ByHand = made(
    "ByHand",
    fields={"v": ANYTHING},
    family_id="test-package.holder_by_hand.v1",
    v=None,
    lower_to_standard_ops=lower,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted(ExtensionOp):
    family_id = "test-package.slotted_holder.v1"
    v: ANYTHING = None
    lower_to_standard_ops = lower


@dataclasses.dataclass(frozen=True, eq=False)
class Uncompared(ExtensionOp):
    family_id = "test-package.uncompared_holder.v1"
    v: ANYTHING = dataclasses.field(default=None, compare=False)
    lower_to_standard_ops = lower


class Lying:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


@dataclasses.dataclass(frozen=True)
class Opinionated(Lying, ExtensionOp):
    family_id = "test-package.opinionated_holder.v1"
    v: ANYTHING = None
    lower_to_standard_ops = lower
    __eq__, __hash__ = Lying.__eq__, Lying.__hash__


@dataclasses.dataclass(frozen=True)
class Below(ByHand):
    family_id = "test-package.holder_below.v1"
    w: int = 0


class Undecorated(Declared):
    """The same fields under the same family, in a class of its own."""


CLASSES = (Declared, ByHand, Slotted, Uncompared, Opinionated, Below, Undecorated)


def are_same(a, b):
    """Whether two payload values have one type and one set of bits, told without the library."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return are_same((a.real, a.imag), (b.real, b.imag))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(are_same, a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if dataclasses.is_dataclass(a):
        return all(are_same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


def same_again(value):
    """An equal value that shares nothing that Python lets us copy."""
    if isinstance(value, tuple):
        return tuple(map(same_again, value))
    if isinstance(value, float):
        return struct.unpack("<d", struct.pack("<d", value))[0]
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    return (
        dataclasses.replace(value, array=np.array(value.array))
        if isinstance(value, Inner)
        else value
    )


NANS = struct.unpack(
    "<4d",
    struct.pack(
        "<4Q", 0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0x7FF0000000000001
    ),
)
HARD = (
    *DISTINCT, *NANS[1:], *(complex(nan, 0.0) for nan in NANS), complex(0.0, -0.0), (NANS[0],),
    (NANS[1], 0.0), (np.ones(2),),
    *(np.array([nan, 1.0]) for nan in NANS), np.array([0.0]), np.array([-0.0]), *(np.ones(2,
    dtype) for dtype in ("float32", "int8")),
    np.ones(2, "bool"), Inner(np.ones(2)), Inner(np.ones((2, 1))), Inner(np.array([NANS[1]])),
    (np.zeros(2),),
)  # fmt: skip


@pytest.mark.clause("X4.2", "X5.6", "X5.11")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_ops_are_equal_exactly_when_types_and_bits_are(cls):
    ops, again = [cls(v) for v in HARD], [cls(same_again(v)) for v in HARD]
    places = {op: i for i, op in enumerate(ops)}
    assert len(places) == len(ops)
    for i, a in enumerate(ops):
        for j, b in enumerate(again):
            assert (a == b) == are_same(a.v, b.v) == (i == j), (a, b)
            assert (a != b) == (i != j)
    assert [places[op] for op in again] == [*range(len(ops))]
    assert list(map(hash, ops)) == list(map(hash, again))


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(allow_nan=True) | st.sampled_from(NANS),
    st.complex_numbers(),
    st.text(max_size=1),
    st.binary(max_size=1),
    st.sampled_from([*Color, *Mode, np.dtype("int8"), np.dtype("bool")]),
    st.builds(
        lambda x, dtype: np.array([x]).astype(dtype),
        st.integers(0, 2),
        st.sampled_from(["int8", "bool", "float32", "bfloat16"]),
    ),
    st.builds(lambda x: Inner(np.array(x)), st.sampled_from(NANS)),
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=4)


@pytest.mark.clause("X5.6", "X5.11")
@given(values, values, st.sampled_from(CLASSES), st.sampled_from(CLASSES))
@example(NANS[2], NANS[2], ByHand, ByHand)
@settings(max_examples=times(300))
def test_generated_ops_are_equal_exactly_when_types_and_bits_are(v, w, one, other):
    a, b = one(v), other(w)
    same = one is other and are_same(a.v, b.v)
    assert (a == b) == (b == a) == ({a: 1}.get(b) == 1) == same
    assert a == one(same_again(v))
    assert one is not other or same == (payload_json(a) == payload_json(b))
    for cls in (one, other):
        assert from_payload_json(payload_json(cls(v)), cls) == cls(v)


@pytest.mark.clause("X5.11")
@pytest.mark.parametrize("cls", [Declared, ByHand])
def test_ops_are_static_arguments_of_jit(cls):
    @functools.partial(jax.jit, static_argnums=0)
    @chex.assert_max_traces(7)
    def scaled(op, x):
        return apply(op, x)[0]

    with np.errstate(divide="ignore"):
        for v in (0.0, -0.0, 1, 2.0, True, NANS[0], np.ones(2)):
            for _ in range(2):
                expected = np.float64(1.0) / v if type(v) is float else 1.0
                np.testing.assert_array_equal(scaled(cls(same_again(v)), 1.0), expected)


COPIES = [
    copy.copy,
    copy.deepcopy,
    *(
        lambda op, p=p: pickle.loads(pickle.dumps(op, p))
        for p in range(2, pickle.HIGHEST_PROTOCOL + 1)
    ),
]


@pytest.mark.clause("X5.7", "X5.11")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_copy_is_equal_and_as_closed(cls):
    for v in HARD:
        if jax.export.is_symbolic_dim(v):  # pickled, JAX gives it a scope of its own
            continue
        op = cls(v)
        assert from_payload_json(payload_json(op), cls) == op
        for whole in (op, Extension.of(op)):
            assert b"_hash" not in pickle.dumps(
                whole
            )  # Python hashes text with another seed in each process
            for copied in (f(whole) for f in COPIES):
                assert type(copied) is type(whole)
                assert (copied, hash(copied)) == (whole, hash(whole))
    table = np.arange(3.0)
    for v in (table, (1, (table,)), Inner(table)):
        for copied in (f(cls(v)) for f in COPIES):
            held = (
                copied.v[1][0]
                if isinstance(copied.v, tuple)
                else getattr(copied.v, "array", copied.v)
            )
            with pytest.raises(ValueError, match="read-only"):
                held[0] = 7
            with pytest.raises(ValueError, match="WRITEABLE"):
                held.flags.writeable = True
            with pytest.raises(AttributeError):
                copied.v = 1


Rule = made(
    "Rule", ExtensionAdRule, fields={"factor": float}, family_id=ScaledSquare.family_id, factor=1.0
)


def test_sets_and_rules_are_copied_as_equal_values():
    rules = ExtensionRuleSet(Rule(-0.0))
    runtimes = ExtensionRuntimeSet(Kernel(ScaledSquare.family_id, "cpu", lower))
    for value in (rules, runtimes, Rule(2.0), Extension(ScaledSquare(), (), runtimes)):
        for copied in (f(value) for f in COPIES):
            assert (copied, hash(copied), repr(copied)) == (value, hash(value), repr(value))
    assert rules != ExtensionRuleSet(Rule(0.0))


def test_a_number_of_numpy_is_an_array_without_axes():
    """It would be one when read back, and an op must not depend on where it comes from."""
    for number in (np.float32(1.5), np.int8(3), np.bool_(True), jnp.bfloat16(2)):
        held = Declared(number).v
        assert type(held) is np.ndarray
        assert (held.dtype, held.shape) == (number.dtype, ())
        assert (
            Declared(number)
            == Declared(np.array(number))
            == from_payload_json(payload_json(Declared(number)), Declared)
        )
