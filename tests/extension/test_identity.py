"""Identity: typed payloads, family ids, carriers, rule sets."""

import dataclasses
import enum

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenferro_jax import GraphBuilder, InvalidConfig, MalformedFamilyId, PayloadError, TensorMeta, trace
from tenferro_jax.extension import (
    Extension,
    ExtensionAdRule,
    ExtensionFactory,
    ExtensionOp,
    ExtensionRuleSet,
    apply,
    extension_op,
    parse_family_id,
)
from tenferro_jax.payload import from_payload_json, payload_json, typed_key

from ..extension_ops import ScaledSquare
from ..sweep import times


@dataclasses.dataclass(frozen=True)
class Holder(ExtensionOp):
    family_id = "test-package.holder.v1"
    value: object = None

    def lower_to_standard_ops(self, builder, x):
        if isinstance(self.value, bool | int | float):
            return [x + jnp.asarray(1.0 if isinstance(self.value, float) else 2.0 if isinstance(self.value, bool) else 3.0, x.dtype)]
        return [x]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


DISTINCT = [
    None, False, True, 0, 1, 0.0, -0.0, 1.0, float("nan"), float("inf"), 0j, 1 + 0j, "", "1", b"1", (), (1,), (1.0,), (True,), ((1,),),
    Color.RED, Color.BLUE, np.dtype("float32"), np.dtype("float64"),
    np.array(1), np.array(1.0), np.array([1]), np.float32(1), np.array([[1]]),
    jax.export.symbolic_shape("n")[0], ScaledSquare(1.0), ScaledSquare(2.0),
]  # fmt: skip


@pytest.mark.clause("X5.6", "X5.8")
def test_distinct_payloads_are_distinct_and_each_equals_itself():
    carriers = [Extension.of(Holder(v)) for v in DISTINCT]
    for i, a in enumerate(carriers):
        for j, b in enumerate(carriers):
            assert (a == b) == (i == j), (a, b)
            assert (hash(a) == hash(b)) == (i == j)
    again = [Extension.of(Holder(np.copy(v) if isinstance(v, np.ndarray) else v)) for v in DISTINCT]
    assert again == carriers


@pytest.mark.clause("X5.6")
def test_equal_looking_payloads_run_their_own_program():
    x = np.zeros(())
    for run in (lambda op: apply(op, x)[0], lambda op: jax.jit(lambda x: apply(op, x)[0])(x)):
        assert [float(run(Holder(v))) for v in (1, 1.0, True)] == [3.0, 1.0, 2.0]


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from(Color),
)
payloads = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


@pytest.mark.clause("X5.6")
@given(payloads, payloads)
@settings(max_examples=times(200))
def test_keys_and_text_tell_the_same_payloads_apart(a, b):
    same = typed_key(a) == typed_key(b)
    assert same == (payload_json(a) == payload_json(b))
    assert typed_key(a) == typed_key(a)
    if same:
        assert hash(typed_key(a)) == hash(typed_key(b))


@dataclasses.dataclass(frozen=True)
class Everything(ExtensionOp):
    family_id = "test-package.everything.v1"
    f: float
    c: complex
    b: bytes
    d: np.dtype
    a: np.ndarray
    t: tuple
    e: Color
    n: None
    i: int
    s: str


@pytest.mark.clause("X5.9")
@given(st.floats(), st.complex_numbers(), st.binary(), st.integers(), st.text(), st.sampled_from(Color))
@settings(max_examples=times(50))
def test_text_round_trip(f, c, b, i, s, e):
    op = Everything(f, c, b, np.dtype("int8"), np.array([[1.5, -0.0]]), (f, (b, None)), e, None, i, s)
    assert Extension.of(from_payload_json(payload_json(op), Everything)) == Extension.of(op)
    assert Extension.of(ExtensionFactory(Everything).decode(payload_json(op))) == Extension.of(op)
    for wrong in ("[]", "{}", '{"f": 1}', payload_json(op).replace('"enum"', '"emun"'), "nonsense"):
        with pytest.raises(PayloadError):
            from_payload_json(wrong, Everything)


@pytest.mark.clause("X5.7")
def test_arrays_are_copied_and_read_only():
    array = np.array([1.0, 2.0])
    op = Holder(array)
    array[0] = 9
    assert op.value.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        op.value[0] = 5


@pytest.mark.clause("X5.5")
@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}, object(), len, jnp.sin, (1, [2])], ids=lambda v: type(v).__name__)
def test_values_outside_the_closed_list_are_refused_at_construction(value):
    with pytest.raises(PayloadError, match=r"test-package\.holder\.v1.*field value.*needed one of: None, bool"):
        Holder(value)


@pytest.mark.clause("X5.5")
def test_tracers_are_refused_as_payload():
    with pytest.raises(PayloadError, match=r"Tensors are inputs of the op"):
        jax.jit(lambda x: apply(Holder(x), x)[0])(1.0)


@pytest.mark.clause("X4.1")
def test_hidden_or_mutable_state_is_refused():
    class Plain(ExtensionOp):
        family_id = "test-package.plain.v1"

        def __init__(self, k):
            self.k = k

    with pytest.raises(PayloadError, match="state outside the dataclass fields: k"):
        Extension.of(Plain(3))

    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Mutable", (Holder,), {"__annotations__": {"k": int}, "k": 1}))

    mutable = dataclasses.make_dataclass("Mutable", [("k", int)], bases=(ExtensionOp,), namespace={"family_id": "test-package.mutable.v1"})
    with pytest.raises(PayloadError, match="frozen=True"):
        mutable(1)


@pytest.mark.clause("X4.1")
def test_a_class_without_state_needs_no_decorator():
    class Plain(ExtensionOp):
        family_id = "test-package.plain.v1"

        def lower_to_standard_ops(self, builder, x):
            return [x]

    op = Plain()
    assert Extension.of(op) == Extension.of(Plain())
    for value in (op, Extension.of(op), ExtensionRuleSet()):
        with pytest.raises(AttributeError, match="is immutable; cannot set more"):
            value.more = 1
    assert apply(Plain(), 1.0)[0] == 1.0


@pytest.mark.clause("X4.2")
def test_an_own_eq_is_not_asked():
    @dataclasses.dataclass(frozen=True)
    class Lying(ExtensionOp):
        family_id = "test-package.lying.v1"
        k: int

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def lower_to_standard_ops(self, builder, x):
            return [x * self.k]

    assert Extension.of(Lying(1)) != Extension.of(Lying(2))
    assert [float(apply(Lying(k), 1.0)[0]) for k in (1, 2)] == [1.0, 2.0]


@pytest.mark.clause("X5.8")
def test_two_classes_of_one_family_and_payload_are_different():
    def make(factor):
        @dataclasses.dataclass(frozen=True)
        class Same(ExtensionOp):
            family_id = "test-package.same.v1"

            def lower_to_standard_ops(self, builder, x):
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
        ("a..v1", None),
        ("a.b.v007", ("a", "b", 7)),
    ],
)
def test_family_ids(family_id, parts):
    if parts is None:
        with pytest.raises(MalformedFamilyId):
            parse_family_id(family_id)
    else:
        assert parse_family_id(family_id) == parts


@pytest.mark.clause("X5.1")
@pytest.mark.parametrize(
    ("family_id", "column"),
    [
        ("", 0),
        ("a", 0),
        ("a.b", 2),
        ("a.v1", 1),
        (".b.v1", 0),
        ("a.b.v", 4),
        ("a.b.1", 4),
        ("a.b.v1x", 4),
        ("a.b c.v1", 3),
        ("a.bé.v1", 3),
        ("a.b.v-1", 4),
    ],
)
def test_malformed_family_ids_point_at_the_character(family_id, column):
    with pytest.raises(MalformedFamilyId) as error:
        parse_family_id(family_id)
    assert f"\n  {family_id}\n  {' ' * column}^\n" in str(error.value)


@pytest.mark.clause("X5.1")
def test_an_op_with_a_malformed_or_missing_family_id_is_refused():
    class Bad(ExtensionOp):
        family_id = "no version"

    class None_(ExtensionOp):
        pass

    for op in (Bad(), None_()):
        with pytest.raises(MalformedFamilyId):
            apply(op, 1.0)
    with pytest.raises(InvalidConfig, match="ExtensionOp subclass"):
        apply("op", 1.0)


@pytest.mark.clause("X10.1")
def test_rules_do_not_key_the_executable():
    lowerings = []

    @dataclasses.dataclass(frozen=True)
    class Counted(ExtensionOp):
        family_id = "test-package.counted.v1"

        def infer_output_meta(self, inputs, context):
            return inputs

        def lower_to_standard_ops(self, builder, x):
            lowerings.append(1)
            return [x]

    class Rule(ExtensionAdRule):
        family_id = "test-package.counted.v1"

        def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
            return tangent_in

    for _ in range(5):
        apply(Counted(), np.ones(3), rules=ExtensionRuleSet(Rule()))
    assert len(lowerings) == 1


@dataclasses.dataclass(frozen=True)
class Inner:
    array: np.ndarray


@pytest.mark.clause("X5.7")
def test_arrays_inside_tuples_and_dataclasses_are_copied_too():
    array = np.ones(2)
    op = Holder(((array,), Inner(array)))
    before = Extension.of(op).typed_key
    array[:] = 7
    assert op.value[0][0].tolist() == op.value[1].array.tolist() == [1.0, 1.0]
    assert Extension(op).typed_key == before
    with pytest.raises(PayloadError, match="dtype=object"):
        Holder(np.array([object()]))
    with pytest.raises(PayloadError):
        Holder(jax.random.key(0))


@pytest.mark.clause("X4.4")
def test_an_equal_extension_on_the_same_inputs_is_one_node():
    builder = GraphBuilder()
    x, y = (builder.input(TensorMeta(np.dtype("float64"), (3,))) for _ in range(2))
    first = [builder.add(Holder(v), x)[0] for v in DISTINCT]
    for _ in range(20):
        again = [builder.add(Holder(np.copy(v) if isinstance(v, np.ndarray) else v), x)[0] for v in DISTINCT]
        assert [a.index for a in again] == [f.index for f in first]
    other = [builder.add(Holder(v), y)[0] for v in DISTINCT]
    graph = builder.build([*first, *other])
    assert len(graph.nodes) == 2 * len(DISTINCT)
    for call in (lambda x: apply(Holder(0.5), x)[0], jax.vmap(lambda x: apply(Holder(0.5), x)[0])):
        graph = trace(lambda x, call=call: sum((call(x) for _ in range(1000)), x * 0.0), np.ones(3))
        assert sum(isinstance(node.op, Extension) for node in graph.nodes) == 1


@pytest.mark.clause("X5.2")
def test_the_decorator_declares_family_and_payload():
    @extension_op(package="test-package", name="declared.twice", version=2)
    class Declared(ExtensionOp):
        k: int

        def lower_to_standard_ops(self, builder, x):
            return [x * self.k]

    assert parse_family_id(Declared.family_id) == ("test-package", "declared.twice", 2)
    assert Extension.of(Declared(3)) == Extension.of(Declared(3)) != Extension.of(Declared(4))
    assert float(apply(Declared(3), 2.0)[0]) == 6.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        Declared(3).k = 4


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
    with pytest.raises(error):
        extension_op(package=package, name=name, version=version)


@pytest.mark.clause("X5.2")
def test_the_decorator_refuses_other_classes():
    declare = extension_op(package="test-package", name="declared", version=1)
    for cls in (int, Holder(1), type("Other", (ExtensionOp,), {"family_id": "test-package.other.v1"})):
        with pytest.raises(InvalidConfig, match=r"extension_op, test-package\.declared\.v1"):
            declare(cls)
    with pytest.raises(InvalidConfig, match="not frozen"):
        declare(dataclasses.dataclass(type("Mutable", (ExtensionOp,), {"__annotations__": {"k": int}})))
    frozen = dataclasses.dataclass(frozen=True)(type("Frozen", (ExtensionOp,), {"__annotations__": {"k": int}}))
    assert declare(frozen) is frozen
    assert frozen(1).family_id == "test-package.declared.v1"


@pytest.mark.clause("X5.3")
def test_a_family_id_that_depends_on_the_payload_is_refused():
    class Computed(Holder):
        family_id = property(lambda op: f"test-package.computed_{op.value}.v1")

    @dataclasses.dataclass(frozen=True)
    class Field(ExtensionOp):
        family_id: str = "test-package.field.v1"

        def lower_to_standard_ops(self, builder, x):
            return [x]

    for op in (Computed(1), Field("test-package.other.v1")):
        with pytest.raises(MalformedFamilyId):
            apply(op, 1.0)
    assert len({Holder(v).family_id for v in DISTINCT}) == 1


@pytest.mark.clause("X5.8")
def test_families_and_batch_levels_tell_carriers_apart():
    other = type("Other", (Holder,), {"family_id": "test-package.other.v1"})
    assert Extension.of(Holder(1)) != Extension.of(other(1))
    mapped = [trace(jax.vmap(lambda x: apply(Holder(1), x)[0], axis), np.ones((2, 2))).nodes[0].op for axis in (0, 1, 0)]
    assert mapped[0] == mapped[2] != mapped[1]
    assert hash(mapped[0]) == hash(mapped[2])
    assert Extension.of(Holder(1)) not in mapped
