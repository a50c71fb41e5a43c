"""Graph bytes: what is written is read back equal, byte for byte, in any process; what cannot be
written or read is refused in words.
"""

import dataclasses
import functools
import json
import resource
import signal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import from_wire, load_graph, save_graph, to_wire, trace
from tenferro_jax.engine import Engine, compile_std_to_exec
from tenferro_jax.errors import (
    ADRuleError,
    ArtifactError,
    DTypeError,
    InvalidConfig,
    MalformedFamilyId,
    ShapeError,
    Unsupported,
)
from tenferro_jax.extension import ExtensionOp, apply
from tenferro_jax.extension import registry as registry_module
from tenferro_jax.extension.kernels import NO_RUNTIMES
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.graph.verify import verify
from tenferro_jax.io import Limits
from tenferro_jax.ops.random import RandomWrap
from tenferro_jax.ops.vocabulary import VOCABULARY
from tenferro_jax.payload_text import payload_json

from ..cases import CASES as EXTENSION_CASES
from ..cases import ids
from ..extension_ops import ALL_RUNTIMES, RULES, KernelSine, ScaledSquare
from ..helpers import each_ends_in, ends_in, equal
from .graph_bank import (
    DTYPES,
    FEATURES,
    SINGLE,
    Pair,
    all_bits,
    applied,
    constants,
    families_known,
    feature,
    nested,
)
from .plain_format import opened, resealed, sealed


@pytest.fixture(autouse=True)
def _families(monkeypatch):
    families_known(monkeypatch)


def round_trip(graph):
    """The graph from its bytes, after what every round trip must keep was compared."""
    content = to_wire(graph)
    back = from_wire(content)
    assert to_wire(back) == content
    assert str(back) == str(graph)
    names = [rule.name for rule in graph.lost_rules]
    assert [str(rule) for rule in back.lost_rules] == names
    if not graph.is_symbolic:  # symbols of two calls are never equal
        back, graph = (each.with_runtimes(NO_RUNTIMES) for each in (back, graph))
        assert back == graph
    assert verify(back) is back
    return back


def test_every_op_goes_there_and_back():
    assert {type(op) for op, _ in SINGLE} == set(VOCABULARY)
    for op, inputs in SINGLE:
        round_trip(applied((op, inputs)))


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_goes_there_and_back(name):
    round_trip(feature(name))


@pytest.mark.few(5)
@pytest.mark.parametrize("case", EXTENSION_CASES, ids=ids(EXTENSION_CASES))
@pytest.mark.clause("X11.1")
def test_every_kind_of_extension_goes_there_and_back(case):
    round_trip(trace(case, *case.inputs))
    round_trip(trace(jax.vmap(case), *case.batch(2)))


@pytest.mark.parametrize("name", DTYPES)
def test_constants_keep_every_bit(name):
    array = all_bits(name)
    for a in (array, array[:0], array[:1].reshape(()), array.reshape(1, -1, 1)):
        graph = round_trip(constants(a))
        (node,) = graph.nodes
        assert (node.op.value.dtype, node.op.value.shape, node.op.value.tobytes()) == (
            a.dtype,
            a.shape,
            a.tobytes(),
        )
        records, tensors = opened(to_wire(graph))
        assert tensors == [(name, a.shape, a.tobytes())]
        assert ["type", name, list(a.shape)] in records


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_constants_too(generator):
    key = jax.random.key(7, impl=generator)
    graph = round_trip(trace(lambda x, key=key: x + jax.random.normal(key, (3,)), np.ones(3)))
    assert RandomWrap(generator) in {node.op for node in graph.nodes}
    np.testing.assert_array_equal(graph(np.ones(3))[0], 1 + jax.random.normal(key, (3,)))
    assert round_trip(trace(lambda k: k, key)).input_metas[0].dtype == key.dtype


def test_rules_stay_behind_and_can_be_added_again():
    x = np.array([[0.0, 3.0], [1.0, 2.0]])
    squared = trace(lambda x: apply(ScaledSquare(), x, rules=RULES)[0].sum(), x)
    back = round_trip(squared)
    ends_in(lambda: tj.grad(back), ADRuleError)
    assert tj.grad(back.with_rules(RULES)) == tj.grad(squared)


def test_a_lost_derivative_stays_refused():
    back = round_trip(feature("lost derivative"))
    ends_in(lambda: tj.grad(back), Unsupported, "schur_at_heart")


def test_symbols_constraints_and_guards_hold_after_reading():
    back = round_trip(feature("symbolic"))
    x = np.arange(40.0).reshape(10, 4)
    equal(*zip(back.to_jax()(x), (x[4:], np.ones((5, 13)), np.float64(10)), strict=True))
    (b, c) = back.input_metas[0].shape
    assert (b >= 8, b % 2, c <= 4 * b) == (True, 0, True)
    guarded = round_trip(feature("guarded"))
    assert guarded.to_jax()(np.ones(3), np.ones(3)) == 6
    ends_in(lambda: guarded.to_jax()(np.ones(3), np.ones(4)), ShapeError, "b == c")
    payload = round_trip(feature("symbols in a payload"))
    (node,) = payload.nodes
    assert node.op.op.value[0] == 2 * payload.input_metas[0].shape[0]


def test_equal_graphs_have_equal_bytes():
    assert to_wire(feature("symbolic")) == to_wire(FEATURES["symbolic"]())
    many = [feature(name) for name in FEATURES] + [applied(single) for single in SINGLE]
    many += [constants(np.asarray(v)) for v in (0.0, -0.0, 0, False, [0.0], np.nan, 1, True, 1.0)]
    contents = [to_wire(graph) for graph in many]
    for i, a in enumerate(many):
        for j in range(i):
            assert (contents[i] == contents[j]) == (a == many[j])


def test_runtimes_stay_behind():
    x = np.ones(2)
    graph = trace(lambda x: apply(KernelSine(), x, runtimes=ALL_RUNTIMES)[0], x)
    assert round_trip(graph) == trace(lambda x: apply(KernelSine(), x)[0], x) != graph
    two = trace(
        lambda x: apply(KernelSine(), x, runtimes=ALL_RUNTIMES)[0] + apply(KernelSine(), x)[0], x
    )
    ends_in(lambda: to_wire(two), InvalidConfig, "with two runtime sets")


ONCE = """["tensor","float32",[]]
["op","Constant",{"value":{"tensor":0}}]
["type","float32",[]]
["op","Constant",{"value":{"tensor":0}}]
["op","Add",{}]
["graph",[],["tuple"]]
["node",0,[],[0]]
["node",2,[0,0],[0]]
["return",[1],0,[],[]]
"""
TWICE = ONCE.replace(
    '["node",2,[0,0],[0]]\n["return",[1]', '["node",1,[],[0]]\n["node",2,[0,1],[0]]\n["return",[2]'
)


def test_a_forger_who_writes_a_constant_twice_is_told_so():
    read = lambda text: from_wire(sealed(text, np.float32(2).tobytes()))
    each_ends_in(
        (
            lambda: read(ONCE),
            ArtifactError,
            "line 4: given .*Constant.* where a writer writes .*Add",
        ),
        (lambda: read(TWICE), InvalidConfig, r"node 1, Constant\[value=2\.0\] repeats node 0"),
    )


def test_files(tmp_path):
    path = tmp_path / "a.graph"
    graph = feature("pytrees")
    assert save_graph(graph, path) == path.stat().st_size == len(to_wire(graph))
    assert load_graph(path) == load_graph(str(path)) == graph
    ends_in(lambda: load_graph(tmp_path / "b.graph"), FileNotFoundError)
    path.write_bytes(path.read_bytes()[:-1])
    ends_in(lambda: load_graph(path), ArtifactError, r"a\.graph: given \d+ bytes of \d+")
    path.write_bytes(b"")
    each_ends_in(
        (lambda: load_graph(path), ArtifactError, r"a\.graph: given 0 bytes"),
        (lambda: load_graph("/dev/zero"), ArtifactError),
        (
            lambda: (save_graph(graph, path), load_graph(path, limits=Limits(file_bytes=100))),
            ArtifactError,
            r"file_bytes; needed at most 100.*Limits\(file_bytes=\.\.\.\)",
        ),
    )


@pytest.mark.parametrize("kind", ["graph", "program"])
def test_a_file_is_replaced_whole_or_not_at_all(kind, tmp_path):
    path = tmp_path / "a.file"
    save = {"graph": save_graph, "program": lambda graph, path: tj.export(graph).save(path)}[kind]
    save(trace(jnp.sin, np.ones(2)), path)
    before = path.read_bytes()
    large = trace(lambda x: x + np.arange(20000.0), np.ones(20000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # as a full disk
    try:
        ends_in(lambda: save(large, path), OSError, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.file"]
    (tmp_path / "link").symlink_to(path)
    assert save(large, tmp_path / "link") == path.stat().st_size > len(before)
    assert (tmp_path / "link").is_symlink()
    ends_in(lambda: save(large, tmp_path), IsADirectoryError)


def test_each_reader_names_the_other(tmp_path):
    graph = trace(jnp.sin, np.ones(2))
    save_graph(graph, tmp_path / "a.graph")
    tj.export(graph).save(tmp_path / "a.bin")
    each_ends_in(
        (
            lambda: load_graph(tmp_path / "a.bin"),
            ArtifactError,
            "Read an exported program with load_exported",
        ),
        (
            lambda: tj.load_exported(tmp_path / "a.graph"),
            ArtifactError,
            r"given a graph; .*Read it with load_graph",
        ),
    )


@pytest.mark.parametrize("wrong", [None, {}, 3])
def test_what_is_no_path_and_no_limits_is_refused(wrong, tmp_path):
    each_ends_in(
        (lambda: load_graph(wrong), InvalidConfig, r"load_graph: given .*needed a path"),
        (lambda: load_graph(tmp_path, limits=wrong), InvalidConfig, "load_graph: given limits="),
        (
            lambda: from_wire(to_wire(trace(jnp.sin, np.ones(2))), limits=wrong),
            InvalidConfig,
            "from_wire: given limits=",
        ),
    )


SPARE = {
    "bool": (1, 2),
    "int4": (0x0F, 0x7F),
    "uint4": (0x0A, 0xFA),
    "int2": (3, 0xFF),
    "uint2": (2, 6),
    "float4_e2m1fn": (9, 0x19),
}


@pytest.mark.parametrize("name", SPARE)
def test_elements_have_one_spelling(name):
    clean, odd = (np.array([0, byte], np.uint8).view(np.dtype(name)) for byte in SPARE[name])
    graph = constants(odd)
    assert graph == constants(clean)
    content = to_wire(graph)
    assert content == to_wire(constants(clean))
    assert content[-2:] == clean.tobytes()
    np.testing.assert_array_equal(
        from_wire(content)()[0].astype(np.float32), clean.astype(np.float32)
    )
    ends_in(
        lambda: from_wire(resealed(content[:-2] + odd.tobytes())),
        ArtifactError,
        f"bytes that no {name} has",
    )
    assert payload_json((odd,)) == payload_json((clean,))


@pytest.mark.parametrize(
    ("constraints", "size", "message"),
    [
        ((), lambda b, c: 2**63 * b, r"9223372036854775808 .*at most 2\*\*63 - 1 is allowed"),
        ((), lambda b, c: b**100, "power 100 .* powers, up to 99"),
        (
            (),
            lambda b, c: sum((1000 * c**i * b for i in range(1, 99)), b),
            "at most 1000 are allowed",
        ),
        ([f"b + {i}*c >= {i * i}" for i in range(2, 70)], lambda b, c: b, "at most 64 are allowed"),
    ],
    ids=["number", "power", "characters", "constraints"],
)
def test_symbols_that_no_reader_takes_are_not_written(constraints, size, message):
    b, c = jax.export.symbolic_shape("b, c", constraints=constraints)
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((b, c), (size(b, c),))]
    ends_in(lambda: to_wire(trace(lambda x, y: y, *specs)), Unsupported, message)


# --- extensions that this process does not know ---------------------------------------------------


def gone(monkeypatch, *known):
    monkeypatch.setattr(registry_module, "_factories", {})
    for cls in known:
        tj.extension.register_extension(ExtensionFactory(cls))


class LaterSquare(ExtensionOp):
    family_id = "test-package.scaled_square.v2"


class EarlierSquare(ExtensionOp):
    family_id = "test-package.scaled_square.v0"


def squared(x):
    return jnp.sin(jax.vmap(lambda x: apply(ScaledSquare(1.5), x)[0], axis_name="i")(x)).sum()


@pytest.mark.clause("X11.3")
def test_an_unknown_family_is_named(monkeypatch):
    content = to_wire(trace(squared, np.ones((2, 3))))
    gone(monkeypatch)
    ends_in(
        lambda: from_wire(content),
        Unsupported,
        r"extension: given test-package\.scaled_square\.v1: not registered",
    )


@pytest.mark.clause("X11.2")
@pytest.mark.parametrize(("cls", "version"), [(LaterSquare, "v2"), (EarlierSquare, "v0")])
@pytest.mark.parametrize("skip", [False, True])
def test_another_version_is_refused_and_both_are_named(monkeypatch, cls, version, skip):
    content = to_wire(trace(squared, np.ones((2, 3))))
    gone(monkeypatch, cls)
    ends_in(
        lambda: from_wire(content, skip_missing_extensions=skip),
        Unsupported,
        f"version mismatch, graph has v1, runtime has {version}",
    )


@pytest.mark.clause("X11.6")
def test_a_placeholder_keeps_all_and_does_nothing(monkeypatch):
    x = np.ones((2, 3))
    graph = trace(squared, x)
    content = to_wire(graph)
    gone(monkeypatch)
    back = from_wire(content, skip_missing_extensions=True)
    assert to_wire(back) == content
    assert from_wire(content, skip_missing_extensions=True) == back != graph
    assert hash(back) == hash(from_wire(content, skip_missing_extensions=True))
    assert "test-package.scaled_square.v1" in str(back)
    assert "test-package.scaled_square.v1" in back.mermaid()
    assert back.output_metas == graph.output_metas
    missing = next(node.op for node in back.nodes if type(node.op).__name__ == "MissingExtension")
    runs = [
        lambda: back.to_jax()(x),
        lambda: jax.jit(back.to_jax())(x),
        lambda: jax.eval_shape(back.to_jax(), x),
        lambda: compile_std_to_exec(back),
        lambda: Engine().eval(back, x),
        lambda: tj.grad(back),
        lambda: tj.jvp(back),
        lambda: tj.export(back),
        lambda: trace(back.to_jax(), x),
        lambda: missing.infer(back.input_metas[0]),
    ]
    ends_in(runs, Unsupported, r"test-package\.scaled_square\.v1: not registered")
    gone(monkeypatch, ScaledSquare)
    assert from_wire(to_wire(back)) == graph
    assert from_wire(content, skip_missing_extensions=True) == graph


@pytest.mark.parametrize(
    "looped",
    [
        lambda body, x: jax.lax.fori_loop(0, 3, lambda i, x: body(x), x),
        lambda body, x: jax.lax.while_loop(lambda x: x.sum() < 9, body, x),
        lambda body, x: jax.lax.cond(x.sum() < 9, body, jnp.sin, x),
    ],
)
def test_a_placeholder_in_a_body_and_with_symbols(monkeypatch, looped):
    b = jax.export.symbolic_shape("b")[0]
    body = lambda x: apply(ScaledSquare(0.5), x)[0]
    content = to_wire(
        trace(functools.partial(looped, body), jax.ShapeDtypeStruct((b,), np.float64))
    )
    gone(monkeypatch)
    back = from_wire(content, skip_missing_extensions=True)
    assert to_wire(back) == content
    ends_in(lambda: back.to_jax()(np.ones(3)), Unsupported, "not registered")


RECORDS = '["type","float64",[2]]\n["extension",{},{},[],1]\n["graph",[0],["tuple",0]]\n["node",0,[0],[0]]\n["return",[1],0,[],[]]\n'


def with_extension(family_id, payload="{}"):
    return sealed(RECORDS.replace("{},{}", f"{json.dumps(family_id)},{json.dumps(payload)}"))


@pytest.mark.clause("X11.4")
@pytest.mark.parametrize(
    "family_id",
    [
        "",
        "a",
        "a.b",
        "a.b.v",
        "a.b.1",
        "a b.c.v1",
        "test-package.sc\u0430led_square.v1",
        "test-package.scaled_square.v\uff11",
        "a.b.v1\n",
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_a_malformed_family_id_is_refused_before_any_lookup(monkeypatch, family_id, skip):
    monkeypatch.setattr(
        registry_module, "_factories", None
    )  # to look into it is an AttributeError or TypeError
    ends_in(
        lambda: from_wire(with_extension(family_id), skip_missing_extensions=skip),
        MalformedFamilyId,
    )


@pytest.mark.clause("X11.5")
def test_a_batch_level_over_an_axis_that_is_not_there_names_its_node():
    content = to_wire(trace(jax.vmap(lambda x: apply(ScaledSquare(2.0), x)), np.ones((2, 3))))
    records, _ = opened(content)
    assert [record[3] for record in records if record[0] == "extension"] == [[[[0], None, None]]]
    forged = [
        [*record[:3], [[[5], None, None]], *record[4:]] if record[0] == "extension" else record
        for record in records
    ]
    ends_in(
        lambda: from_wire(sealed(written(forged))),
        InvalidConfig,
        r"node 0, .*axis 5 of float64\[2,3\]",
    )


def test_payloads_are_validated_by_their_family():
    good = '{"factor":{"float":"0x1.8000000000000p+0"}}'
    family = ScaledSquare.family_id
    assert from_wire(with_extension(family, good)).nodes[0].op.op == ScaledSquare(1.5)
    odd = [
        "", "{}", "[]", "null", '{"factor":1.5}', '{"factor":{"float":"1.5"}}',
        '{"factor":{"float":"0x1.8p+0"}}', '{"factor":"x"}',
        ' {"factor":{"float":"0x1.8000000000000p+0"}}', good[:-1] + ',"more":1}',
        good.replace('{"float', '{"complex'), good.upper(),
        '{"factor":{"float":"0x1.0000000000000p+0"},"factor":{"float":"0x1.8000000000000p+0"}}',
        '{"factor":NaN}', "[" * 100_000,
    ]  # fmt: skip
    ends_in(
        (lambda: from_wire(with_extension(family, payload)) for payload in odd),
        InvalidConfig,
        "ScaledSquare payload",
    )


@pytest.mark.parametrize(
    ("decode", "problem"),
    [
        (lambda self, payload: 3, "given 3 from the factory"),
        (lambda self, payload: LaterSquare(), "LaterSquare"),
        (lambda self, payload: [][0], "IndexError"),
    ],
)
def test_a_factory_that_decodes_by_hand_is_checked(monkeypatch, decode, problem):
    content = with_extension(ScaledSquare.family_id, "2")
    ByHand = type("ByHand", (ExtensionFactory,), {"decode": decode})
    monkeypatch.setattr(registry_module, "_factories", {})
    tj.extension.register_extension(ByHand(ScaledSquare))
    ends_in(lambda: from_wire(content), InvalidConfig, problem)


# --- what cannot be written, limits ---------------------------------------------------------------


def written(records):
    return "".join(
        json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n" for record in records
    )


def test_a_field_of_another_kind_is_refused_where_it_is_read():
    """One text, which no other field takes, instead of each field of each op."""
    taken = ("kind", "name", "generator", "algorithm", "precision")
    for op, inputs in {type(op): (op, inputs) for op, inputs in SINGLE}.values():
        records, tensors = opened(to_wire(applied((op, inputs))))
        rest = b"".join(
            bytes(data) + bytes(-len(data) % 64) * (i + 1 < len(tensors))
            for i, (_, _, data) in enumerate(tensors)
        )
        for field in dataclasses.fields(op):
            wrong = {"bytes": ""} if field.name in taken else "false"
            forged = [
                ["op", name, fields[0] | {field.name: wrong}]
                if (kind, name) == ("op", type(op).__name__)
                else [kind, name, *fields]
                for kind, name, *fields in records
            ]
            ends_in(
                lambda: from_wire(sealed(written(forged), rest)),
                (InvalidConfig, ArtifactError),
                rf"{type(op).__name__} with {field.name}=.* which needs {field.name} of type",
            )


def test_what_has_no_bytes_is_refused():
    x = np.ones(2)
    b, c = jax.export.symbolic_shape("b")[0], jax.export.symbolic_shape("c")[0]
    spec = [jax.ShapeDtypeStruct((d,), np.float64) for d in (b, c)]
    mapped = jax.vmap(lambda x: apply(ScaledSquare(1.5), x)[0], axis_name=("i", 1))
    each_ends_in(
        (
            lambda: to_wire(trace(lambda x: Pair(x, x), x)),
            Unsupported,
            r"results: given a pytree node of type .*Pair",
        ),
        (
            lambda: to_wire(trace(lambda x, y: (jnp.sin(x), jnp.sin(y)), *spec)),
            Unsupported,
            "another scope",
        ),
        (
            lambda: to_wire(trace(mapped, np.ones((2, 3)))),
            Unsupported,
            r"to_wire: given a batch level of test-package\.scaled_square\.v1 with the axis names",
        ),
    )
    for wrong in (3, jnp.sin, None):
        each_ends_in(
            (lambda: to_wire(wrong), InvalidConfig, "needed a Graph"),
            (lambda: from_wire(wrong), InvalidConfig, "needed bytes"),
        )
    assert from_wire(memoryview(to_wire(trace(jnp.sin, x)))) == from_wire(
        bytearray(to_wire(trace(jnp.sin, x)))
    )


def test_64_bit_values_need_64_bit_types():
    content = to_wire(trace(jnp.sin, np.ones(2)))
    with jax.enable_x64(False), pytest.raises(DTypeError, match=r"line 1: .*enable_x64\(True\)"):
        from_wire(content)


LIMITED = {
    "file_bytes": lambda n: applied(*[SINGLE[0]] * n),
    "text_bytes": lambda n: trace(lambda x: [x] * n, np.ones(2)),
    "nodes": lambda n: trace(lambda x: sum((x * i for i in range(2, n + 2)), x), np.ones(2)),
    "nesting": nested,
}


@pytest.mark.parametrize("name", LIMITED)
def test_each_limit_binds_and_can_be_raised(name):
    assert set(LIMITED) == {field.name for field in dataclasses.fields(Limits)}
    content = to_wire(LIMITED[name](30))
    least = 1
    error = ends_in(lambda: from_wire(content, limits=Limits(**{name: least})), ArtifactError)
    assert f"Limits({name}=...)" in error.value.fix
    while True:  # the error says what is needed
        try:
            graph = from_wire(content, limits=Limits(**{name: least}))
            break
        except ArtifactError as error:
            needed = int(error.given.split(" for ")[0])
            assert needed > least
            least = needed
    assert to_wire(graph) == content
    ends_in(
        lambda: from_wire(content, limits=Limits(**{name: least - 1})),
        ArtifactError,
        f"for {name}; needed at most {least - 1}",
    )
