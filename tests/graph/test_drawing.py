"""Pictures of graphs: valid, complete, legible, bounded. Placement is judged by the geometry of
what was drawn.
"""

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tenferro_jax as tj
from docs.pictures.draw import mlp_gradient
from tenferro_jax import TensorMeta, trace
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.graph.drawing import _LINE, LOOKS
from tenferro_jax.graph.graph import bodies
from tenferro_jax.graph.placement import place
from tenferro_jax.ops.analytic import Sin
from tenferro_jax.ops.source import Constant

from ..helpers import ends_in

F32 = np.dtype("float32")
NAMESPACE = "{http://www.w3.org/2000/svg}"
SPEC = jax.ShapeDtypeStruct((2,), F32)


def drawn(svg):
    """(tooltip, fill, visible lines) of every box."""
    boxes = []
    for group in ET.fromstring(svg).iter(f"{NAMESPACE}g"):
        title, rect = group.find(f"{NAMESPACE}title"), group.find(f"{NAMESPACE}rect")
        if title is not None:
            boxes.append(
                (title.text, rect.get("fill"), [t.text for t in group.findall(f"{NAMESPACE}text")])
            )
    return boxes


def chain(count):
    builder = GraphBuilder()
    value = builder.input(SPEC)
    for _ in range(count):
        (value,) = builder.add(Sin(), value)
    return builder.build([value])


def test_every_node_input_and_output_is_a_box_with_its_full_text():
    graph = mlp_gradient()
    boxes = drawn(graph.svg())
    tooltips = "\n".join(tooltip for tooltip, _, _ in boxes).splitlines()
    for line in str(graph).splitlines()[1:-2]:
        assert line.strip() in tooltips
    assert next(lines for _, fill, lines in boxes if fill == LOOKS["input"][0]) == [
        "args[0]['b1']",
        "float32[8]",
    ]
    assert sorted(lines[0] for _, fill, lines in boxes if fill == LOOKS["output"][0]) == [
        "return ['b1']",
        "return ['w1']",
        "return ['w2']",
    ]
    ((_, _, lines),) = [box for box in boxes if box[1] == LOOKS["extension"][0]]
    assert lines[0] == "tenferro-ext-tropical.einsum.v1"
    assert "max_plus" in lines[1]
    assert any(
        lines == ["32.0", "float32[]"] for _, fill, lines in boxes if fill == LOOKS["constant"][0]
    )


def test_a_large_graph_is_refused_and_the_error_names_the_other_ways():
    assert len(drawn(chain(60).svg())) == 62
    large = chain(61)
    caught = ends_in(large.svg, InvalidConfig, r"Graph\.svg: given 61 nodes; needed at most 60")
    for way in ("model_explorer(", "dot()", "text()"):
        assert f"graph.{way}" in caught.value.fix
    assert large._repr_svg_() is None  # a notebook falls back to the text


def looped(x, n):
    return jax.lax.cond(n > 0, lambda: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x), lambda: -x)


def test_bodies_are_named_with_their_size():
    texts = [
        line for _, _, lines in drawn(trace(looped, SPEC, np.float32(0)).svg()) for line in lines
    ]
    assert {"Cond", "branches[0]: 1 nodes", "branches[1]: 2 nodes"} <= set(texts)


def test_text_is_escaped():
    nasty = '<script>&"x"</script>'
    graph = trace(lambda tree: {nasty: jnp.sin(tree[nasty])}, {nasty: SPEC})
    assert "<script>" not in graph.svg()
    assert any(nasty in tooltip for tooltip, _, _ in drawn(graph.svg()))


def test_what_xml_cannot_hold_is_escaped():
    key = "\x00\x1b[31m\ufffe\u202e"
    graph = trace(lambda tree: {key: jnp.sin(tree[key])}, {key: SPEC})
    assert any(r"\x00\x1b[31m\ufffe\u202e" in tooltip for tooltip, _, _ in drawn(graph.svg()))


def test_odd_graphs_are_drawn():
    builder = GraphBuilder()
    x = builder.input(TensorMeta(F32, ()))
    (one,) = builder.add(Constant(np.ones(300, F32)))
    for graph in (
        builder.build([]),
        builder.build([x, x]),
        builder.build([one, x, one]),
        builder.build(builder.add(Sin(), one)),
        trace(lambda: ()),
    ):
        ET.fromstring(graph.svg())
        assert graph._repr_svg_() == graph.svg()


def luminance(colour):
    def linear(c):
        return c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4

    r, g, b = (linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_can_be_read_on_light_and_on_dark_ground():
    for kind, (fill, _, text) in LOOKS.items():
        assert contrast(fill, text) >= 4.5, kind
    for ground in ("#ffffff", "#1e1e1e", "#000000"):
        assert contrast(_LINE, ground) >= 3.0, ground


@st.composite
def layered(draw):
    count = draw(st.integers(1, 12))
    sizes = draw(
        st.lists(
            st.tuples(st.integers(10, 200), st.integers(10, 90)), min_size=count, max_size=count
        )
    )
    pairs = list(itertools.combinations(range(count), 2))
    return sizes, draw(st.sets(st.sampled_from(pairs), max_size=30)) if pairs else set()


@settings(max_examples=150)
@given(layered())
def test_boxes_do_not_touch_and_arrows_go_down(case):
    sizes, edges = case
    reads = [[a for a, b in sorted(edges) if b == target] for target in range(len(sizes))]
    boxes, routes, width, height = place(sizes, reads)
    spans = [(x - w / 2, x + w / 2, y, y + h) for (x, y), (w, h) in zip(boxes, sizes)]
    for (l1, r1, t1, b1), (l2, r2, t2, b2) in itertools.combinations(spans, 2):
        assert r1 + 5 < l2 or r2 + 5 < l1 or b1 + 5 < t2 or b2 + 5 < t1
    for left, right, top, bottom in spans:
        assert min(left, top, width - right, height - bottom) > -1e-6
    assert set(routes) == edges
    for (source, target), route in routes.items():
        assert all(y1 < y2 + 1e-9 for (_, y1), (_, y2) in itertools.pairwise(route))
        assert route[0] == pytest.approx((boxes[source][0], spans[source][3]))
        assert route[-1] == pytest.approx((boxes[target][0], spans[target][2]))
        for x, y in route[1:-1]:  # a long arrow passes between the boxes of the layers on its way
            assert not any(
                left < x < right and top < y < bottom for left, right, top, bottom in spans
            )


def arrows(graph):
    inside = sum(arrows(body) for node in graph.nodes for body in bodies(node.op))
    return sum(len(node.inputs) for node in graph.nodes) + len(graph.outputs) + inside


def test_the_dot_text_has_every_node_and_body():
    graph = trace(looped, SPEC, np.float32(0))
    text = graph.dot()
    assert text.count(" -> ") == arrows(graph)
    for label in ("Cond, branches[1]", "Scan, body", "args[0]\\nfloat32[2]", "Neg\\nfloat32[2]"):
        assert f'label="{label}"' in text
    assert len(chain(5000).dot().splitlines()) == 3 + 5002 + 5001
    program = shutil.which("dot")
    if program is not None:
        nasty = trace(lambda tree: {'"\\x\n': jnp.sin(tree['"\\x\n'])}, {'"\\x\n': SPEC})
        for made in (graph, nasty, mlp_gradient()):
            subprocess.run(
                [program, "-Tsvg"], input=made.dot().encode(), check=True, capture_output=True
            )


def explored(graph, tmp_path):
    graph.model_explorer(tmp_path / "graph.json")
    return json.loads((tmp_path / "graph.json").read_text())


SCHEMA = {
    "collection": {"label", "graphs"},
    "graph": {"id", "nodes"},
    "node": {
        "id",
        "label",
        "namespace",
        "subgraphIds",
        "attrs",
        "incomingEdges",
        "outputsMetadata",
    },
    "edge": {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"},
    "item": {"id", "attrs"},
    "pair": {"key", "value"},
}
"""The fields of model_explorer.graph_builder that are written."""


@pytest.mark.parametrize(
    "make", [mlp_gradient, lambda: trace(looped, SPEC, np.float32(0)), lambda: chain(2000)]
)
def test_the_file_for_model_explorer_is_a_graph_collection(make, tmp_path):
    graph = make()
    found = explored(graph, tmp_path)
    assert set(found) == SCHEMA["collection"]
    assert len(found["graphs"][0]["nodes"]) == graph.input_count + len(graph.nodes) + len(
        graph.outputs
    )
    ids = [one["id"] for one in found["graphs"]]
    named = [
        place for one in found["graphs"] for node in one["nodes"] for place in node["subgraphIds"]
    ]
    assert sorted(named) == sorted(ids[1:])
    for one in found["graphs"]:
        assert set(one) == SCHEMA["graph"]
        outputs = {
            node["id"]: {item["id"] for item in node["outputsMetadata"]} for node in one["nodes"]
        }
        for node in one["nodes"]:
            assert set(node) == SCHEMA["node"]
            for edge in node["incomingEdges"]:
                assert set(edge) == SCHEMA["edge"]
                assert edge["sourceNodeOutputId"] in outputs[edge["sourceNodeId"]]
            pairs = [
                *node["attrs"],
                *(pair for item in node["outputsMetadata"] for pair in item["attrs"]),
            ]
            assert all(
                set(pair) == SCHEMA["pair"] and set(map(type, pair.values())) == {str}
                for pair in pairs
            )


def test_model_explorer_reads_the_file(tmp_path):
    """By the classes of the package ai-edge-model-explorer, where it is installed."""
    made = pytest.importorskip("model_explorer").graph_builder
    dacite = pytest.importorskip("dacite")
    found = explored(trace(looped, SPEC, np.float32(0)), tmp_path)
    collection = dacite.from_dict(made.GraphCollection, found, config=dacite.Config(strict=True))
    assert [one.id for one in collection.graphs] == [one["id"] for one in found["graphs"]]
    for one, wanted in zip(collection.graphs, found["graphs"]):
        for node, fields in zip(one.nodes, wanted["nodes"]):
            assert fields.items() <= dataclasses.asdict(node).items()


def test_the_picture_of_the_docs_is_of_this_program():
    path = (
        mlp_gradient.__globals__["pathlib"]
        .Path(mlp_gradient.__globals__["__file__"])
        .with_name("mlp_gradient.svg")
    )
    assert any(
        lines[0] == "tenferro-ext-tropical.einsum.v1" for _, _, lines in drawn(path.read_text())
    )
    assert not re.search(r"[^\x20-\x7e\n\u00b7\u2026]", path.read_text())
    assert tj.Graph.svg.__doc__
