"""Typed payloads: which values a field may hold, and how they are read back from text."""

import dataclasses
from typing import Literal, Optional

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuleSet,
    apply,
)
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.payload_text import from_payload_json, payload_json

from ..extension_ops import ScaledSquare
from ..helpers import each_ends_in, ends_in
from .payload_ops import Color, Declared, Holder, Inner, Mode, Sized, require_closed


@dataclasses.dataclass(frozen=True)
class Annotated(ExtensionOp):
    family_id = "test-package.annotated.v1"
    many: tuple[Color, ...] = ()
    optional: Color | None = None
    older: Optional[Color] = None  # noqa: UP045
    parts: tuple[Sized, ...] = ()
    mixed: tuple[Sized, Color] | tuple[()] = ()
    either: Inner | Sized | float = 0.0
    text: "tuple[tuple[str, Mode | None], ...]" = ()
    sole: Mode = Mode.FAST
    literal: Literal[Color.RED, 3] = 3
    part: Sized = Sized(None, 1)  # noqa: RUF009 - Sized is frozen
    computed: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "computed", len(self.many))
        super().__post_init__()


@pytest.mark.clause("X5.9")
@pytest.mark.parametrize(
    "fields",
    [
        {"many": (Color.RED, Color.BLUE)},
        {"optional": Color.RED, "older": Color.BLUE},
        {"parts": (Sized(Color.RED, 3), Sized(None, 4)), "mixed": (Sized(None, 1), Color.BLUE)},
        {"either": Inner(np.arange(3.0))},
        {"either": Sized(Color.BLUE, 5)},
        {"text": (("a", Mode.SAFE), ("b", None))},
        {"sole": Mode.SAFE},
        {"literal": Color.RED},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_annotations_name_is_read_back(fields):
    text = payload_json(Annotated(**fields))
    back = from_payload_json(text, Annotated)
    assert Extension.of(back) == Extension.of(Annotated(**fields)) != Extension.of(Annotated())
    assert payload_json(back) == text


@pytest.mark.clause("X5.9")
def test_a_class_that_the_annotation_decides_is_not_named_in_text():
    assert from_payload_json('{"base":{"k":1}}', Rebuilding) == Rebuilding(Base(1))
    assert payload_json(Rebuilding(Base(1))) == '{"base":{"k":1}}'
    assert '"part":{"color":null,"double":2,"size":1}' in payload_json(Annotated())
    assert '"sole":{"enum":"FAST"}' in payload_json(Annotated())


@pytest.mark.clause("X5.9")
def test_a_computed_field_is_not_taken_from_text():
    text = payload_json(Annotated(part=Sized(None, 21)))
    assert from_payload_json(text, Annotated).part.double == 42
    for wrong in (
        text.replace('"double":42', '"double":43'),
        text.replace('"computed":0', '"computed":1'),
    ):
        assert wrong != text
        ends_in(lambda: from_payload_json(wrong, Annotated), InvalidConfig, "payload_json writes")


@pytest.mark.clause("X5.9")
def test_symbolic_dimensions_are_read_into_one_scope():
    n, m = jax.export.symbolic_shape("n, m")
    back = from_payload_json(payload_json(Holder((n, n + m))), Holder)
    assert (
        back.value[1] - back.value[0]
        == jax.export.symbolic_shape("m", scope=back.value[0].scope)[0]
    )


@dataclasses.dataclass(frozen=True)
class Base:
    k: int


class Derived(Base):
    pass


@dataclasses.dataclass(frozen=True)
class Silent(ExtensionOp):
    family_id = "test-package.silent.v1"
    base: Base


@dataclasses.dataclass(frozen=True)
class Rebuilding(ExtensionOp):
    family_id = "test-package.rebuilding.v1"
    base: Base

    def __post_init__(self):
        object.__setattr__(self, "base", Derived(self.base.k))
        super().__post_init__()


@pytest.mark.clause("X5.10")
def test_a_class_that_the_annotation_does_not_name_is_refused_at_construction():
    @dataclasses.dataclass(frozen=True)
    class Unnamed(ExtensionOp):
        family_id = "test-package.unnamed.v1"
        value: object = None

    each_ends_in(
        (
            (
                lambda: Unnamed(value)
                for value in (
                    Color.RED,
                    Sized(None, 1),
                    ScaledSquare(1.0),
                    (1, (Color.RED,)),
                    ExtensionRuleSet(),
                )
            ),
            InvalidConfig,
            r"test-package\.unnamed\.v1\), field value",
        ),
        (lambda: Silent(Derived(1)), InvalidConfig, "Annotate the field with Derived"),
    )
    op = Rebuilding(Base(1))
    assert Extension.of(from_payload_json(payload_json(op), Rebuilding)) == Extension.of(op)
    assert type(op.base) is Derived


@pytest.mark.clause("X5.10")
def test_values_are_of_the_kind_that_the_annotation_names():
    n = jax.export.symbolic_shape("n")[0]
    for hint, taken, refused in (
        (int, (1, n, np.int8(1)), (True, 1.0, "1", None, (1,), np.dtype("int8"))),
        (float, (1.0, 1, np.float32(1)), (True, "1", None, ((),), 1j)),
        (bool, (True,), (1, 0.0, "")),
        (str | None, ("", None), (b"", 0, False)),
        (tuple[int, ...], ((), (1,)), (1, None)),
        (np.dtype, (np.dtype("int8"),), ("int8", None)),
        (np.ndarray, (np.ones(2), jnp.ones(2)), (1.0, (1.0,))),
        (Color, (Color.RED,), (1, None, "RED", (Color.RED,), Mode.FAST)),
        (Base, (Base(1),), (None, {"k": 1}, (Base(1),))),
        (Base | int, (Base(1), 1), (True,)),
    ):

        @dataclasses.dataclass(frozen=True)
        class Op(ExtensionOp):
            family_id = "a.b.v1"
            k: hint

        for value in taken:
            text = payload_json(Op(value))
            assert payload_json(from_payload_json(text, Op)) == text
        ends_in(
            (lambda: Op(value) for value in refused), InvalidConfig, r"a\.b\.v1\), field k: given"
        )


class Tagged(np.float64):
    """A scalar with state."""


@pytest.mark.clause("X5.5")
@pytest.mark.parametrize(
    "value",
    [
        np.dtype(">i4"), np.dtype([("a", "i4")]), np.dtype("U3"), np.dtype("M8[s]"),
        np.dtype("m8[s]"), np.dtype("V4"), np.dtype("O"),
        np.dtype(np.longdouble), np.dtype(np.clongdouble), np.ones(2, ">i4"), np.zeros(2, [("a",
        "i4")]), np.array(["a"]),
        np.array([b"a"]), np.array(["2000"], "M8[s]"), np.array([1], "m8[s]"), np.ones(2,
        np.longdouble), np.longdouble(1),
        np.str_("a"), np.datetime64("2000"), np.ma.masked_array([1, 2], [True, False]),
        np.ones(2).view(np.recarray),
        Tagged(1.0), type("Float", (float,), {})(1.0),
    ],
    ids=lambda v: f"{type(v).__name__} {getattr(v, 'dtype', v)}"[:40],
)  # fmt: skip
def test_arrays_and_dtypes_that_their_name_does_not_tell_are_refused(value):
    ends_in(
        (lambda: Holder(held) for held in (value, (value,))),
        InvalidConfig,
        r"test-package\.holder\.v1.*field value",
    )


@pytest.mark.clause("X5.5")
def test_values_outside_the_closed_list_are_refused_at_construction():
    ends_in(
        (
            lambda: Holder(value)
            for value in ([1], {"a": 1}, {1}, object(), len, jnp.sin, (1, [2]), jax.random.key(0))
        ),
        InvalidConfig,
        r"(?s)test-package\.holder\.v1.*field value.*needed one of: None, bool",
    )


@pytest.mark.clause("X5.7")
def test_arrays_are_copied_and_read_only():
    array = np.array([1.0, 2.0])
    op = Holder(array)
    array[0] = 9
    assert op.value.tolist() == [1.0, 2.0]
    for held in (
        op.value,
        Holder(jnp.ones(3)).value,
        Holder((Inner(array),)).value[0].array,
        Holder(((array,), 1)).value[0][0],
        Holder(np.asfortranarray(np.eye(3))).value,
    ):
        assert type(held) is np.ndarray
        require_closed(held)
    table = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert Holder(table).value.tolist() == table.tolist()


@pytest.mark.clause("X5.7")
def test_an_array_that_a_nested_dataclass_computes_is_read_only():
    @dataclasses.dataclass(frozen=True)
    class Table:
        n: int
        powers: np.ndarray = dataclasses.field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "powers", np.arange(self.n) ** 2)

    @dataclasses.dataclass(frozen=True)
    class Op(ExtensionOp):
        family_id = "a.b.v1"
        table: Table

    held = Op(Table(4))
    assert held.table.powers.tolist() == [0, 1, 4, 9]
    assert not held.table.powers.flags.writeable
    assert Extension.of(from_payload_json(payload_json(held), Op)) == Extension.of(held)


def check_or_not(self):
    """An author's check, which does not call super()."""
    if isinstance(self.value, str):
        object.__setattr__(self, "value", self.value.upper())


def super_and_check(self):
    super(Holder, self).__post_init__()
    check_or_not(self)


def hash_and_check(self):
    hash(self)
    check_or_not(self)


POST_INITS = {
    "its own": lambda f: ((Holder,), {"__post_init__": f}),
    "a mixin's": lambda f: ((type("Mixin", (), {"__post_init__": f}), Holder), {}),
}


@pytest.mark.clause("X5.5", "X5.7")
@pytest.mark.parametrize("slots", [False, True], ids=["", "slots"])
@pytest.mark.parametrize("where", POST_INITS)
@pytest.mark.parametrize("check", [check_or_not, super_and_check, hash_and_check])
def test_an_op_is_closed_after_its_post_init_whatever_that_calls(check, where, slots):
    bases, body = POST_INITS[where](check)
    cls = dataclasses.dataclass(frozen=True, slots=slots)(
        type("Checked", bases, {"family_id": "test-package.checked.v1", **body})
    )
    array = np.arange(3.0)
    op = cls(array)
    array[0] = 7
    assert op.value.tolist() == [0.0, 1.0, 2.0]
    require_closed(op.value)
    ends_in(lambda: cls([1]), InvalidConfig, r"test-package\.checked\.v1.*field value")
    assert cls("a") == cls("A") != cls("b")
    assert hash(cls("a")) == hash(cls("A"))
    assert from_payload_json(payload_json(cls("a")), cls).value == "A"


@pytest.mark.clause("X5.5")
def test_tracers_are_refused_as_payload():
    ends_in(
        lambda: jax.jit(lambda x: apply(Holder(x), x)[0])(1.0),
        InvalidConfig,
        r"Make it an input of the op",
    )


@pytest.mark.clause("X4.1")
def test_hidden_or_mutable_state_is_refused():
    class Plain(ExtensionOp):
        family_id = "test-package.plain.v1"

        def __init__(self, k):
            self.k = k

    each_ends_in(
        (lambda: Extension.of(Plain(3)), InvalidConfig, "state outside the dataclass fields: k"),
        (
            lambda: dataclasses.dataclass(
                type("Mutable", (Holder,), {"__annotations__": {"k": int}, "k": 1})
            ),
            TypeError,
            "non-frozen",
        ),
    )

    for base in (ExtensionOp, ScaledSquare):
        slotted = type(
            "Slotted", (base,), {"__slots__": ("hidden",), "family_id": "test-package.slotted.v1"}
        )
        ends_in(
            lambda: Extension.of(slotted()),
            InvalidConfig,
            "state outside the dataclass fields: hidden",
        )

    mutable = dataclasses.make_dataclass(
        "Mutable",
        [("k", int)],
        bases=(ExtensionOp,),
        namespace={"family_id": "test-package.mutable.v1"},
    )
    ends_in(lambda: mutable(1), InvalidConfig, "frozen=True")


@pytest.mark.clause("X4.1")
def test_a_class_without_state_needs_no_decorator():
    class Plain(ExtensionOp):
        family_id = "test-package.plain.v1"

        def lower_to_standard_ops(self, x):
            return [x]

    op = Plain()
    assert Extension.of(op) == Extension.of(Plain())
    ends_in(
        (lambda: setattr(value, "more", 1) for value in (op, Extension.of(op), ExtensionRuleSet())),
        AttributeError,
        "is immutable; cannot set more",
    )
    assert apply(Plain(), 1.0)[0] == 1.0


@pytest.mark.parametrize("number", [np.float32(1.5), np.int8(3), np.bool_(True), jnp.bfloat16(2)])
def test_a_number_of_numpy_is_an_array_without_axes(number):
    """It would be one when read back, and an op must not depend on where it comes from."""
    held = Declared(number).v
    assert type(held) is np.ndarray
    assert (held.dtype, held.shape) == (number.dtype, ())
    assert (
        Declared(number)
        == Declared(np.array(number))
        == from_payload_json(payload_json(Declared(number)), Declared)
    )
