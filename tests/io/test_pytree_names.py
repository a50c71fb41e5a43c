"""Pytree classes keep their kind in graph bytes and exported programs, under names that the reader has registered."""

import collections
import os
import pathlib
import subprocess
import sys
import typing

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tenferro_jax as tj
from tenferro_jax import from_wire, register_pytree_name, to_wire, trace
from tenferro_jax.errors import ArtifactError, Duplicate, InvalidConfig, PayloadError, Unsupported
from tenferro_jax.io import pytree_names

from .graph_bank import LAYERS, NAMES, Layer, Moments, Scaled, register_families, used
from .plain_format import sealed

X = np.arange(3.0)


class Unnamed(typing.NamedTuple):
    value: typing.Any


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setattr(pytree_names, "_names", dict(pytree_names._names))
    monkeypatch.setattr(pytree_names, "_classes", dict(pytree_names._classes))
    register_families()


def test_a_graph_keeps_its_classes():
    graph = trace(used, *LAYERS)
    content = to_wire(graph)
    back = from_wire(content)
    assert back == graph
    assert to_wire(back) == content
    out = back.to_jax()(*LAYERS)
    assert jax.tree.structure(out) == jax.tree.structure(used(*LAYERS))
    assert (type(out["out"]), type(out["again"]), out["again"].by) == (Moments, Scaled, 7)
    np.testing.assert_array_equal(out["out"].mean, X * X)


def test_only_files_with_classes_are_of_version_2():
    assert int.from_bytes(to_wire(trace(used, *LAYERS))[16:20], "little") == 2
    assert int.from_bytes(to_wire(trace(lambda x: {"class": [x, (x, None)]}, X))[16:20], "little") == 1


def test_the_state_of_an_optimiser_goes_to_a_file_and_on(tmp_path):
    optimiser = optax.adam(0.1)

    def step(params, state):
        updates, state = optimiser.update(jax.grad(lambda p: (p**2).sum())(params), state)
        return optax.apply_updates(params, updates), state

    state = optimiser.init(jnp.asarray(X))
    for cls in (optax.ScaleByAdamState, optax.EmptyState):
        register_pytree_name(cls, f"optax.{cls.__name__}")
    path = tmp_path / "step.graph"
    with jax.numpy_dtype_promotion("standard"):  # which optax relies on
        tj.save_graph(trace(step, jnp.asarray(X), state), path)
    back = tj.load_graph(path).to_jax()
    wanted, got = (jnp.asarray(X), state), (jnp.asarray(X), state)
    for _ in range(3):
        with jax.numpy_dtype_promotion("standard"):
            wanted = step(*wanted)
        got = back(*got)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), wanted, got)
    assert jax.tree.structure(wanted) == jax.tree.structure(got)


READER = """
import json, sys, jax, jax.export, numpy as np
from tests.io.graph_bank import Layer, Moments, NAMES, Scaled
if sys.argv[2] == "ours":
    from tenferro_jax import load_exported, register_pytree_name
    for cls, name in NAMES.items():
        register_pytree_name(cls, name)
    call = load_exported(sys.argv[1]).call
else:
    jax.export.register_namedtuple_serialization(Moments, serialized_name=NAMES[Moments])
    for cls in (Layer, Scaled):
        jax.export.register_pytree_node_serialization(
            cls, serialized_name=NAMES[cls], serialize_auxdata=json.dumps, deserialize_auxdata=json.loads)
    call = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read())).call
x = np.arange(3, dtype=np.float32)
out = call(Layer(x, x, 5), (Scaled(x, 3), x))
print(type(out["out"]).__name__, out["out"].mean.tolist(), out["again"].by)
"""


@pytest.mark.parametrize("reader", ["ours", "jax"])
def test_an_exported_program_keeps_them_in_another_process(tmp_path, reader):
    x = X.astype(np.float32)
    path = tmp_path / "classes.bin"
    tj.export(used, Layer(x, x, 5), (Scaled(x, 3), x)).save(path)
    root = pathlib.Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-c", READER, path, reader],
        cwd=root,
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.stdout == "Moments [0.0, 1.0, 4.0] 7\n", child.stderr


def test_a_class_without_a_name_is_not_written_and_the_error_says_what_to_do():
    with pytest.raises(
        Unsupported, match=r"to_wire, results.*Unnamed.*register_pytree_name\(Unnamed, 'tests\.io\.test_pytree_names\.Unnamed'\)"
    ):
        to_wire(trace(Unnamed, X))


@pytest.mark.parametrize(
    ("static", "error", "text"),
    [
        ({"a": 1}, PayloadError, "static data of test-package.Layer"),
        (Unnamed, PayloadError, "static data of test-package.Layer"),
        (jax.export.symbolic_shape("b")[0], Unsupported, "without arrays, graphs and symbolic dimensions"),
        ((np.float64(1),), Unsupported, "without arrays"),
    ],
)
def test_static_data_beyond_the_closed_list_is_refused(static, error, text):
    with pytest.raises(error, match=text):
        to_wire(trace(lambda layer: layer.weight, Layer(X, X, static)))


F = '["type","float64",[3]]'


def of_tree(tree, values=1, version=2):
    """Bytes of a graph whose one argument is nested as the tree says."""
    ids = ",".join(map(str, range(values)))
    return sealed(
        f"""{F}\n["graph",[{",".join("0" * values)}],["tuple",{tree}]]\n["return",[{ids}],["tuple"{",0" * values}],[],[]]\n""",
        version=version,
    )


LAYER = '["class","test-package.Layer",["first"],0,null]'
HOSTILE = {
    "no children": ('["class","test-package.Layer",["first"]]', 0, ArtifactError, "0 children for test-package.Layer, which has 2"),
    "too many children": ('["class","test-package.Layer",["first"],0,0,0]', 3, ArtifactError, "3 children"),
    "static data of another form": ('["class","test-package.Layer",null,0,0]', 2, ArtifactError, "TypeError"),
    "no static data": ('["class","test-package.Layer",[],0,0]', 2, ArtifactError, "bad_cast"),
    "too much static data": ('["class","test-package.Layer",["a","b"],0,0]', 2, ArtifactError, "where a writer writes"),
    "a namedtuple of one": ('["class","test-package.Moments",null,0]', 1, ArtifactError, "missing 1 required"),
    "what its author refuses": ('["class","test-package.Scaled","x",0]', 1, ArtifactError, "scaled by 'x'"),
    "an array": ('["class","test-package.Scaled",{"tensor":0},0]', 1, ArtifactError, "an array, a graph or a dimension"),
    "an array in the text": ('["class","test-package.Scaled",{"array":["bool",[],"AA=="]},0]', 1, ArtifactError, "an array in the text"),
    "a dimension": ('["class","test-package.Scaled",{"dimension":"b"},0]', 1, ArtifactError, "an array, a graph or a dimension"),
    "no name": ('["class",7,null,0]', 1, ArtifactError, "where a tree is needed"),
    "a class of Python's": ('["class","tuple",null,0]', 1, Unsupported, "'tuple': not registered"),
    "a stranger": ('["class","test-package.Lay\\u0435r",[],0]', 1, Unsupported, "not registered"),
    "an unknown name": ('["class","test-package.Other",null,0]', 1, Unsupported, "'test-package.Other': not registered"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_classes_that_nobody_wrote_are_refused_in_words(case):
    tree, values, error, text = HOSTILE[case]
    with pytest.raises(error, match=text):
        from_wire(of_tree(tree, values))


def test_a_file_has_the_least_version_that_can_say_it():
    assert to_wire(from_wire(of_tree(LAYER))) == of_tree(LAYER)
    for tree, version in ((LAYER, 1), ("0", 2)):
        with pytest.raises(ArtifactError, match=f"version {version} where a writer writes {3 - version}"):
            from_wire(of_tree(tree, version=version))
    with pytest.raises(Unsupported, match="format version 3; needed version 1 to 2"):
        from_wire(of_tree("0", version=3))


def test_a_name_is_of_one_class_and_a_class_has_one_name():
    register_pytree_name(Moments, NAMES[Moments])
    for cls, name in ((Moments, "test-package.Other"), (Unnamed, NAMES[Moments])):
        with pytest.raises(Duplicate, match="one name a class, one class a name"):
            register_pytree_name(cls, name)


@pytest.mark.parametrize("cls", [tuple, dict, list, type(None), int, object, 3, Moments(1, 2)])
def test_only_pytree_classes_have_names(cls):
    with pytest.raises(InvalidConfig, match=r"a namedtuple, or a class that jax\.tree_util knows"):
        register_pytree_name(cls, "test-package.Any")


@pytest.mark.parametrize("name", ["", "a b", "M\u043ements", "a" * 201, b"a", None, "a\n", ".a"])
def test_names_are_plain(name):
    with pytest.raises(InvalidConfig, match="1 to 200 letters"):
        register_pytree_name(Unnamed, name)


def test_an_ordered_dict_may_have_a_name(monkeypatch):
    register_pytree_name(collections.OrderedDict, "collections.OrderedDict")
    graph = trace(lambda d: d["b"], collections.OrderedDict(b=X, a=X))
    assert from_wire(to_wire(graph)) == graph
