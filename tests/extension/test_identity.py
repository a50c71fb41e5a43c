"""Identity: family ids, carriers, rule sets; and op objects as users hold them: equal exactly when class,
types and bits are, in dicts, jit and copies.
"""

import copy
import dataclasses
import functools
import pickle
import struct

import chex
import jax
import jax.export
import numpy as np
import pytest

from tenferro_jax import TensorMeta, trace
from tenferro_jax.errors import InvalidConfig, MalformedFamilyId
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    extension_op,
    register_extension,
)
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.extension.family import parse_family_id
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.payload_text import from_payload_json, payload_json

from ..extension_ops import ScaledSquare
from ..helpers import each_ends_in, ends_in
from .payload_ops import (
    ANYTHING,
    Color,
    Declared,
    Holder,
    Inner,
    Loose,
    Mode,
    Sized,
    lower,
    require_closed,
)

DISTINCT = [
    None, False, True, 0, 1, 0.0, -0.0, 1.0, float("nan"), float("inf"), 0j, 1 + 0j, "", "1", b"1",
    (), (1,), (1.0,), (True,), ((1,),),
    Color.RED, Color.BLUE, Mode.FAST, Loose.ONE,
    np.dtype("float32"), np.dtype("float64"), np.dtype("bfloat16"), np.dtype("int4"),
    np.dtype("bool"),
    (Color.RED, (Mode.SAFE,)), Sized(None, 1), Sized(Color.RED, 1), (Sized(Color.RED, 2),),
    10**5000, -(10**5000),
    np.array(1, "bfloat16"), np.zeros((0, 2)), np.zeros((2, 0)), np.array(1), np.array(1.0),
    np.array([1]), np.float32(1), np.array([[1]]),
    jax.export.symbolic_shape("n")[0], ScaledSquare(1.0), ScaledSquare(2.0),
]  # fmt: skip


@pytest.mark.clause("X5.6")
def test_nan_is_told_apart_by_its_bits():
    assert list(map(payload_json, NANS)) == [
        '{"float":"nan"}',
        *(f'{{"float":"nan(0x{bits:016x})"}}' for bits in PATTERNS[1:]),
    ]
    bits = (
        "0x7ff8000000000000",
        "0x3ff0000000000000",
        "0xFFF8000000000000",
        "0xfff8",
        "",
        "fff8000000000000",
    )
    ends_in(
        (
            lambda: from_payload_json(f'{{"value":{{"float":"{wrong}"}}}}', Holder)
            for wrong in ("-nan", *(f"nan({text})" for text in bits))
        ),
        InvalidConfig,
        "Holder payload",
    )


@pytest.mark.clause("X5.8")
def test_two_classes_of_one_family_and_payload_are_different():
    def make(factor):
        class Same(ExtensionOp):
            family_id = "test-package.same.v1"

            def lower_to_standard_ops(self, x):
                return [x * factor]

        return Same()

    assert [float(apply(op, 1.0)[0]) for op in (make(2.0), make(3.0))] == [2.0, 3.0]


@pytest.mark.clause("X5.1")
@pytest.mark.parametrize(
    ("family_id", "parts"),
    [
        ("a.b.v1", ("a", "b", 1)),
        ("my-crate.fused_dot.v12", ("my-crate", "fused_dot", 12)),
        ("a.b.c.d.v0", ("a", "b.c.d", 0)),
        ("a.b.v0.v10", ("a", "b.v0", 10)),
    ],
)
def test_family_ids(family_id, parts):
    assert parse_family_id(family_id) == parts


MALFORMED = [
    "", "a", "a.b", "a.v1", ".b.v1", "a..v1", "a.b.v", "a.b.1", "a.b.v1x", "a.b c.v1", "a.b\xe9.v1",
    "a.\x00.v1", "a.b\x1b.v1", "\x7fa.b.v1", "a.b.v-1", "a.b.v01", "a.b.v00", "a.b.v007",
    "a.b.v\u0661", "a.b.v1\n",
]  # fmt: skip


@pytest.mark.clause("X5.1")
def test_malformed_family_ids():
    ends_in((lambda: parse_family_id(family_id) for family_id in MALFORMED), MalformedFamilyId)


@pytest.mark.clause("X10.1")
def test_rules_do_not_key_the_executable():
    lowerings = []

    class Counted(ExtensionOp):
        family_id = "test-package.counted.v1"

        def infer_output_meta(self, inputs):
            return inputs

        def lower_to_standard_ops(self, x):
            lowerings.append(1)
            return [x]

    class Rule(ExtensionAdRule):
        family_id = "test-package.counted.v1"

        def linearize(self, op, primals, outputs, tangents):
            return tangents

    for _ in range(5):
        apply(Counted(), np.ones(3), rules=ExtensionRuleSet(Rule()))
    assert len(lowerings) == 1


@pytest.mark.clause("X4.4")
def test_an_equal_extension_on_the_same_inputs_is_one_node():
    builder = GraphBuilder()
    x, y = (builder.input(TensorMeta(np.dtype("float64"), (3,))) for _ in range(2))
    first = [builder.add(Holder(v), x)[0] for v in DISTINCT]
    for _ in range(20):
        again = [
            builder.add(Holder(np.copy(v) if isinstance(v, np.ndarray) else v), x)[0]
            for v in DISTINCT
        ]
        assert [a.index for a in again] == [f.index for f in first]
    graph = builder.build([*first, *[builder.add(Holder(v), y)[0] for v in DISTINCT]])
    assert len(graph.nodes) == 2 * len(DISTINCT)
    for call in (lambda x: apply(Holder(0.5), x)[0], jax.vmap(lambda x: apply(Holder(0.5), x)[0])):
        graph = trace(lambda x, call=call: sum((call(x) for _ in range(1000)), x * 0.0), np.ones(3))
        assert sum(isinstance(node.op, Extension) for node in graph.nodes) == 1


@pytest.mark.clause("X5.2")
@pytest.mark.parametrize(
    ("package", "name", "version", "error"),
    [
        ("a.b", "c", 1, MalformedFamilyId),
        ("", "c", 1, MalformedFamilyId),
        ("a", "", 1, MalformedFamilyId),
        ("a", "c d", 1, MalformedFamilyId),
        ("a", "c", -1, MalformedFamilyId),
        ("a", "c", True, MalformedFamilyId),
        ("a", "c", "1", MalformedFamilyId),
        ("a", "c", 1.0, MalformedFamilyId),
    ],
)
def test_the_decorator_refuses_parts_that_read_otherwise(package, name, version, error):
    ends_in(lambda: extension_op(package=package, name=name, version=version), error)


@pytest.mark.clause("X5.2")
def test_the_decorator_refuses_other_classes():
    declare = extension_op(package="test-package", name="declared", version=1)
    each_ends_in(
        (
            (
                lambda: declare(cls)
                for cls in (
                    int,
                    Holder(1),
                    type("Other", (ExtensionOp,), {"family_id": "test-package.other.v1"}),
                )
            ),
            InvalidConfig,
            r"extension_op, test-package\.declared\.v1",
        ),
        (
            lambda: declare(
                dataclasses.dataclass(
                    type("Mutable", (ExtensionOp,), {"__annotations__": {"k": int}})
                )
            ),
            InvalidConfig,
            "not frozen",
        ),
    )
    frozen = dataclasses.dataclass(frozen=True)(
        type("Frozen", (ExtensionOp,), {"__annotations__": {"k": int}})
    )
    assert declare(frozen) is frozen
    assert frozen(1).family_id == "test-package.declared.v1"


@pytest.mark.clause("X5.3")
def test_a_family_id_that_depends_on_the_payload_is_refused():
    class Computed(Holder):
        @property
        def family_id(self):
            return f"test-package.computed_{self.value}.v1"

    @dataclasses.dataclass(frozen=True)
    class Field(ExtensionOp):
        family_id: str = "test-package.field.v1"

        def lower_to_standard_ops(self, x):
            return [x]

    ends_in(
        (lambda: apply(op, 1.0) for op in (Computed(1), Field("test-package.other.v1"))),
        MalformedFamilyId,
    )
    assert len({Holder(v).family_id for v in DISTINCT}) == 1


@pytest.mark.clause("X5.8")
def test_families_and_batch_levels_tell_carriers_apart():
    other = type("Other", (Holder,), {"family_id": "test-package.other.v1"})
    assert Extension.of(Holder(1)) != Extension.of(other(1))
    mapped = [
        trace(jax.vmap(lambda x: apply(Holder(1), x)[0], axis), np.ones((2, 2))).nodes[0].op
        for axis in (0, 1, 0)
    ]
    assert mapped[0] == mapped[2] != mapped[1]
    assert hash(mapped[0]) == hash(mapped[2])
    assert Extension.of(Holder(1)) not in mapped


class Times(ExtensionOp):
    """k x; its parts by methods of its own, as a base for others."""

    k = 1.0

    def factor(self):
        return self.k

    def lower_to_standard_ops(self, x):
        return (self.factor() * x,)


HAND, DECLARED = "test-package.times.v1", "test-package.times_declared.v1"


BASES = {
    HAND: dataclasses.dataclass(frozen=True)(
        type("ByHand", (Times,), {"family_id": HAND, "__annotations__": {"k": float}})
    ),
    DECLARED: extension_op(package="test-package", name="times_declared", version=1)(
        type("Declared", (Times,), {"__annotations__": {"k": float}})
    ),
}


PARTS = {
    "lower_to_standard_ops": lambda self, x: (-x,),
    "infer_output_meta": lambda self, inputs: inputs,
    "eager_execute": lambda self, x: (-x,),
    "batched": lambda self, in_axes: None,
    "sharding_rule": lambda self, inputs: None,
    "output_count": 2,
    "factor": lambda self: -self.k,
    "__post_init__": lambda self: object.__setattr__(self, "k", -self.k),
    "__getattr__": lambda self, name: -1.0,
    "__getattribute__": lambda self, name: (
        -1.0 if name == "k" else object.__getattribute__(self, name)
    ),
}


@pytest.mark.clause("X5.12")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family_id", BASES)
def test_another_op_under_the_family_of_its_base_is_refused(family_id, part):
    base, body = BASES[family_id], {part: PARTS[part]}
    parts = parse_family_id(family_id)
    declare = extension_op(package=parts.package, name=parts.op, version=parts.version)
    classes = [
        type("Minus", (base,), body),
        type("Minus", (type("Mixin", (), body), base), {}),
        type("Minus", (type("Between", (base,), {}),), body),
        type("Minus", (base,), {"family_id": family_id, **body}),
    ]
    ends_in(
        [
            lambda: declare(classes[0]),
            *(lambda cls=cls: register_extension(cls) for cls in classes),
            *(lambda cls=cls: apply(cls(), 1.0) for cls in classes if part != "__getattr__"),
        ],
        InvalidConfig,
        rf"class .*Minus: given family_id {family_id}, .*its base {base.__name__}, with "
        rf"another {part};",
    )


@pytest.mark.clause("X5.12")
@pytest.mark.parametrize("base", [*BASES.values()], ids=[*BASES])
def test_a_class_below_an_op_may_be_another_family_or_the_same_op(base):
    @extension_op(package="test-package", name="minus", version=1)
    class Minus(base):
        def factor(self):
            return -self.k

    @dataclasses.dataclass(frozen=True, slots=True)
    class Further(Minus):
        family_id = "test-package.further.v1"
        more: int = 0

        def factor(self):
            return self.more

    @dataclasses.dataclass(frozen=True)
    class More(base):
        more: int = 0

    ends_in(lambda: apply(More(1.0), 1.0), InvalidConfig, "with another more; needed a family_id")

    class Same(base):
        """The same op, with something to help."""

        def doubled(self):
            return type(self)(2 * self.k)

        def example_inputs(self):
            return [(np.ones(3),)]

    for op, value in (
        (Minus(2.0), -2.0),
        (Further(2.0, 5), 5.0),
        (Same(2.0), 2.0),
        (Same(2.0).doubled(), 4.0),
    ):
        assert apply(op, np.float64(1.0))[0] == value


@dataclasses.dataclass(frozen=True)
class ByHand(ExtensionOp):
    family_id = "test-package.holder_by_hand.v1"
    lower_to_standard_ops = lower
    v: ANYTHING = None


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


CLASSES = (Declared, ByHand, Slotted, Uncompared, Opinionated)


def same_again(value):
    """An equal value that shares nothing; of a symbolic size itself, whose copy has another scope."""
    return value if jax.export.is_symbolic_dim(value) else pickle.loads(pickle.dumps(value))


PATTERNS = (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0x7FF0000000000001)


NANS = struct.unpack("<4d", struct.pack("<4Q", *PATTERNS))


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
            assert (a == b, a != b) == (i == j, i != j), (a, b)
    assert [places[op] for op in again] == [*range(len(ops))]
    assert list(map(hash, ops)) == list(map(hash, again))
    texts = list(map(payload_json, ops))
    assert len(set(texts)) == len(ops)
    assert texts == list(map(payload_json, again))


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
            require_closed(held)
            ends_in(lambda: setattr(copied, "v", 1), AttributeError)


@dataclasses.dataclass(frozen=True)
class Rule(ExtensionAdRule):
    family_id = ScaledSquare.family_id
    factor: float = 1.0


def test_sets_and_rules_are_copied_as_equal_values():
    rules = ExtensionRuleSet(Rule(-0.0))
    runtimes = ExtensionRuntimeSet(Kernel(ScaledSquare.family_id, "cpu", lower))
    for value in (rules, runtimes, Rule(2.0), Extension(ScaledSquare(), (), runtimes)):
        for copied in (f(value) for f in COPIES):
            assert (copied, hash(copied), repr(copied)) == (value, hash(value), repr(value))
    assert rules != ExtensionRuleSet(Rule(0.0))
