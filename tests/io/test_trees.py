"""Pytree classes keep their kind in graph bytes and exported programs, under names that the reader
has registered.
"""

import collections
import dataclasses
import typing

import chex
import jax
import jax.export
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import from_wire, to_wire, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import ArtifactError, Duplicate, InvalidConfig, Unsupported
from tenferro_jax.io import register_pytree_name, trees

from ..helpers import ends_in, python
from .graph_bank import LAYERS, NAMES, Layer, Moments, Scaled, families_known, used
from .plain_format import sealed

X = np.arange(3.0)


class Unnamed(typing.NamedTuple):
    value: typing.Any


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setattr(trees, "_classes", dict(trees._classes))
    families_known(monkeypatch)


def test_a_graph_keeps_its_classes():
    back = from_wire(to_wire(trace(used, *LAYERS)))
    wanted = used(*LAYERS)
    chex.assert_trees_all_close(back.to_jax()(*LAYERS), wanted)
    assert jax.tree.structure(back.to_jax()(*LAYERS)) == jax.tree.structure(wanted)


def test_an_exported_program_keeps_them():
    program = tj.export(used, *LAYERS)
    old, new = program.exported, tj.load_exported(program.to_bytes()).exported
    assert (new.in_tree, new.out_tree) == (old.in_tree, old.out_tree)


READER = """
import json, sys, jax, jax.export, numpy as np
from tests.io.graph_bank import Layer, Moments, NAMES, Scaled
if sys.argv[2] == "ours":
    from tenferro_jax import load_exported
    from tenferro_jax.io import register_pytree_name
    for cls, name in NAMES.items():
        register_pytree_name(cls, name)
    call = load_exported(sys.argv[1]).call
else:
    jax.export.register_namedtuple_serialization(Moments, serialized_name=NAMES[Moments])
    for cls in (Layer, Scaled):
        jax.export.register_pytree_node_serialization(
            cls, serialized_name=NAMES[cls], serialize_auxdata=json.dumps, deserialize_auxdata=lambda data: json.loads(data)[1])
    call = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read())).call
x = np.arange(3, dtype=np.float32)
out = call(Layer(x, x, 5), (Scaled(x, 3), x))
print(type(out["out"]).__name__, out["out"].mean.tolist(), out["again"].by)
"""


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["ours", "jax"])
def test_an_exported_program_keeps_them_in_another_process(tmp_path, reader):
    x = X.astype(np.float32)
    path = tmp_path / "classes.bin"
    tj.export(used, Layer(x, x, 5), (Scaled(x, 3), x)).save(path)
    assert python("-c", READER, path, reader, JAX_ENABLE_X64="1") == "Moments [0.0, 1.0, 4.0] 7\n"


def test_a_class_without_a_name_is_not_written_and_the_error_says_what_to_do():
    ends_in(
        lambda: to_wire(trace(Unnamed, X)),
        Unsupported,
        r"to_wire, results.*Unnamed.*register_pytree_name\(Unnamed, "
        r"'tests\.io\.test_trees\.Unnamed'\)",
    )


@pytest.mark.parametrize(
    "static",
    [
        {"a": 1},
        Unnamed,
        jax.export.symbolic_shape("b")[0],
        (np.float64(1),),
        tj.extension.routes.RouteKind.HOST,
        frozenset(),
    ],
    ids=str,
)
def test_static_data_beyond_the_list_is_refused(static):
    needed = (
        "static data of test-package.Layer.*needed None, bool, int, float, complex, str, "
        "bytes, dtype, and tuples of them"
    )
    ends_in(
        lambda: to_wire(trace(lambda layer: layer.weight, Layer(X, X, static))),
        InvalidConfig,
        needed,
    )


F = '["type","float64",[3]]'


def of_tree(tree, values=1, version=2):
    """Bytes of a graph whose one argument is nested as the tree says."""
    ids = ",".join(map(str, range(values)))
    return sealed(
        f"""{F}\n["graph",[{",".join("0" * values)}],["tuple",{tree}]]\n["return",[{ids}],["tuple"{",0" * values}],[],[]]\n""",
        version=version,
    )


LAYER_FIELDS, MOMENTS_FIELDS = '[["weight","bias"],["name"]]', '[["mean","square"],[]]'
LAYER = f'["class","test-package.Layer",{LAYER_FIELDS},["first"],0,null]'


def layer(rest, fields=LAYER_FIELDS):
    return f'["class","test-package.Layer",{fields},{rest}]'


def scaled(static, rest=",0"):
    return f'["class","test-package.Scaled",null,{static}{rest}]'


HOSTILE = {
    "no children": (layer('["first"]'), 0, Unsupported, "0 children and the static data"),
    "too many children": (layer('["first"],0,0,0'), 3, Unsupported, "3 children"),
    "no static data": (layer("null,0,0"), 2, Unsupported, "2 children and the static data"),
    "too much static data": (
        layer('["a","b"],0,0'),
        2,
        Unsupported,
        "2 children and the static data",
    ),
    "static data of another form": (layer('"a",0,0'), 2, Unsupported, "the static data 'a'"),
    "a number as static data": (layer("1,0,0"), 2, Unsupported, "the static data 1;"),
    "static data of a namedtuple": (
        f'["class","test-package.Moments",{MOMENTS_FIELDS},[],0,0]',
        2,
        Unsupported,
        "the static data",
    ),
    "other fields": (
        layer('["first"],0,0', '[["bias","weight"],["name"]]'),
        2,
        Unsupported,
        "fields .*bias.*needed .*weight",
    ),
    "fewer fields": (layer('["first"],0', '[["weight"],["name"]]'), 1, Unsupported, "fields "),
    "no fields": (layer('["first"],0,0', "null"), 2, Unsupported, "fields None"),
    "fields of a class without": (
        '["class","test-package.Scaled",[["value"],[]],3,0]',
        1,
        Unsupported,
        "needed None",
    ),
    "a namedtuple of one": (
        f'["class","test-package.Moments",{MOMENTS_FIELDS},null,0]',
        1,
        Unsupported,
        "1 children",
    ),
    "what its author refuses": (scaled('"x"'), 1, ArtifactError, "scaled by 'x'"),
    "an array": (scaled('{"tensor":0}'), 1, ArtifactError, "tensor"),
    "an array in the text": (
        scaled('{"array":["bool",[],"AA=="]}'),
        1,
        ArtifactError,
        "array",
    ),
    "a dimension": (
        scaled('{"dimension":"b"}'),
        1,
        ArtifactError,
        "dimension",
    ),
    "too few children for its author": (scaled("3", ""), 0, ArtifactError, "missing 1 required"),
    "no name": ('["class",7,null,null,0]', 1, ArtifactError, "instead of a tree"),
    "nothing": ('["class"]', 0, ArtifactError, "instead of a tree"),
    "a class of Python's": (
        '["class","tuple",null,null,0]',
        1,
        Unsupported,
        "'tuple': not registered",
    ),
    "a stranger": (
        '["class","test-package.Lay\\u0435r",null,[],0]',
        1,
        Unsupported,
        "not registered",
    ),
    "an unknown name": (
        '["class","test-package.Other",null,null,0]',
        1,
        Unsupported,
        "'test-package.Other': not registered",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_classes_that_nobody_wrote_are_refused_in_words(case):
    tree, values, error, text = HOSTILE[case]
    ends_in(lambda: from_wire(of_tree(tree, values)), error, text)


def test_a_file_has_the_least_version_that_can_say_it():
    assert to_wire(from_wire(of_tree(LAYER))) == of_tree(LAYER)
    for tree, version in ((LAYER, 1), ("0", 2)):
        ends_in(
            lambda: from_wire(of_tree(tree, version=version)),
            ArtifactError,
            f"version {version}' where a writer writes b'version {3 - version}",
        )
    ends_in(
        lambda: from_wire(of_tree("0", version=3)),
        Unsupported,
        "format version 3; needed version 1 to 2",
    )


def test_a_name_is_of_one_class_and_a_class_has_one_name():
    register_pytree_name(Moments, NAMES[Moments])
    ends_in(
        (
            lambda: register_pytree_name(cls, name)
            for cls, name in ((Moments, "test-package.Other"), (Unnamed, NAMES[Moments]))
        ),
        Duplicate,
        "one name for each class, and one class for each name",
    )


NO_CLASSES = (tuple, dict, list, type(None), int, object, 3, Moments(1, 2))


@pytest.mark.parametrize(
    ("cls", "name", "text"),
    [
        *((cls, "test-package.Any", r"or a class that jax\.tree_util knows") for cls in NO_CLASSES),
        *((Unnamed, name, "text as its name") for name in ("", b"a", None)),
    ],
)
def test_pytree_classes_alone_have_names_and_these_are_text(cls, name, text):
    ends_in(lambda: register_pytree_name(cls, name), InvalidConfig, text)


def test_an_ordered_dict_may_have_a_name():
    register_pytree_name(collections.OrderedDict, "collections.OrderedDict")
    graph = trace(lambda d: d["b"], collections.OrderedDict(b=X, a=X))
    assert from_wire(to_wire(graph)) == graph


def classes_of(name, *fields, order=None):
    """A namedtuple and a dataclass with these fields, the last of the dataclass static."""
    made = dataclasses.make_dataclass(
        name, [*fields, ("n", int, dataclasses.field(default=3, metadata={"static": True}))]
    )
    return typing.NamedTuple(
        name, [(field, object) for field in fields]
    ), jax.tree_util.register_dataclass(made)


@pytest.mark.parametrize(
    ("old", "new"),
    list(zip(classes_of("M", "mean", "var"), classes_of("M", "var", "mean"), strict=True)),
)
def test_fields_in_another_order_are_not_taken_for_each_other(monkeypatch, old, new):
    with monkeypatch.context() as patch:
        patch.setattr(trees, "_classes", {})
        register_pytree_name(old, f"test-package.{old.__mro__[1].__name__}.M")
        content = to_wire(trace(lambda x, old=old: old(x, 2 * x), X))
        patch.setattr(trees, "_classes", {f"test-package.{old.__mro__[1].__name__}.M": new})
        ends_in(
            lambda: from_wire(content),
            Unsupported,
            r"fields \[\['mean', 'var'\].*needed \[\['var', 'mean'\]",
        )


OTHER_FIELDS = """
import sys
from tests.io.test_trees import classes_of
from tenferro_jax import load_exported
from tenferro_jax.io import register_pytree_name
from tenferro_jax.errors import Unsupported
for kind, cls in zip(("namedtuple", "dataclass"), classes_of("M", "var", "mean")):
    register_pytree_name(cls, f"test-package.other.{kind}")
    try:
        load_exported(f"{sys.argv[1]}/{kind}")
    except Unsupported as error:
        print(error)
"""


@pytest.mark.slow
def test_nor_are_they_in_exported_programs(tmp_path):
    """In a process of its own, since JAX keeps a name for good."""
    for kind, cls in zip(("namedtuple", "dataclass"), classes_of("M", "mean", "var"), strict=True):
        register_pytree_name(cls, f"test-package.other.{kind}")
        tj.export(lambda x, cls=cls: cls(x, 2 * x), X).save(tmp_path / kind)
    printed = python("-c", OTHER_FIELDS, tmp_path, JAX_ENABLE_X64="1")
    for kind, line in zip(("namedtuple", "dataclass"), printed.splitlines(), strict=True):
        assert line.startswith(
            f"pytree class test-package.other.{kind}: given fields [['mean', 'var'], ["
        )
        assert "needed [['var', 'mean'], [" in line


def test_a_name_that_jax_has_for_another_class_is_refused():
    class Ours(typing.NamedTuple):
        value: typing.Any

    jax.export.register_namedtuple_serialization(Unnamed, serialized_name="test-package.jax")
    ends_in(lambda: register_pytree_name(Ours, "test-package.jax"), Duplicate, "a name of its own")
    register_pytree_name(
        Unnamed, "test-package.ours"
    )  # known to JAX under another name, which stays
    assert isinstance(from_wire(to_wire(trace(Unnamed, X))).to_jax()(X), Unnamed)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), (1, 1 + 0j)], ids=str
)
def test_graphs_differ_where_static_data_does(one, other):
    first, second = (trace(lambda x, s=s: Layer(x, x, s), X) for s in (one, other))
    assert first != second
    assert to_wire(first) != to_wire(second)
    engine = Engine()
    assert [repr(engine.eval(graph, X).name) for graph in (first, second)] == [
        repr(one),
        repr(other),
    ]


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Own:
    """A dataclass that flattens itself, with fewer children where there is nothing."""

    x: typing.Any
    y: typing.Any = None
    n: int = 3

    def tree_flatten(self):
        return ((self.x,), (self.n, "noy")) if self.y is None else ((self.x, self.y), (self.n, "y"))

    @classmethod
    def tree_unflatten(cls, static, children):
        return cls(*children, n=static[0])


@pytest.mark.parametrize("value", [Own(X), Own(X, 2 * X, 4)])
def test_a_dataclass_that_flattens_itself_is_written_as_it_does(value):
    register_pytree_name(Own, "test-package.Own")
    graph = trace(lambda own: Own(own.x + 1, own.y, own.n), value)
    back = from_wire(to_wire(graph))
    assert back == graph
    assert b'"test-package.Own",null,[' in to_wire(graph)
    assert jax.tree.structure(back.to_jax()(value)) == jax.tree.structure(value)


def test_a_program_with_other_static_data_than_the_class_has_is_refused():
    short = dataclasses.make_dataclass(
        "Short", ["a", ("n", int, dataclasses.field(default=3, metadata={"static": True}))]
    )
    cls = jax.tree_util.register_dataclass(short)
    register_pytree_name(cls, "test-package.Short")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_static_json", lambda static, name: [])
        content = tj.export(lambda s: s.a, cls(X)).to_bytes()
    ends_in(lambda: tj.load_exported(content), Unsupported, r"1 children and the static data \(\)")
