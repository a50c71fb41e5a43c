"""Pictures of graphs: valid, complete, legible, bounded. Placement is judged by the geometry of what was drawn."""

import itertools
import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tenferro_jax as tj
from docs.pictures.draw import mlp_gradient
from tenferro_jax import GraphBuilder, InvalidConfig, TensorMeta, trace
from tenferro_jax.graph.drawing import _LINE, _LOOKS
from tenferro_jax.graph.layout import Arrow, place
from tenferro_jax.ops.analytic import Sin
from tenferro_jax.ops.arithmetic import Add
from tenferro_jax.ops.source import Constant

F32 = np.dtype("float32")
NAMESPACE = "{http://www.w3.org/2000/svg}"
SPEC = jax.ShapeDtypeStruct((2,), F32)


def drawn(svg):
    """(tooltip, fill, visible lines) of every box."""
    boxes = []
    for group in ET.fromstring(svg).iter(f"{NAMESPACE}g"):
        title, rect = group.find(f"{NAMESPACE}title"), group.find(f"{NAMESPACE}rect")
        if title is not None:
            boxes.append((title.text, rect.get("fill"), [t.text for t in group.findall(f"{NAMESPACE}text")]))
    return boxes


def random_graph(count, seed=0):
    builder, rng = GraphBuilder(), np.random.default_rng(seed)
    values = [builder.input(TensorMeta(F32, (3,))) for _ in range(3)]
    while len(values) < count + 3:
        values.append(builder.add(Add(), values[-1], values[rng.integers(max(0, len(values) - 40), len(values))])[0])
    return builder.build([values[-1]])


def test_every_node_input_and_output_is_a_box_with_its_full_text():
    graph = mlp_gradient()
    boxes = drawn(graph.svg())
    tooltips = "\n".join(tooltip for tooltip, _, _ in boxes).splitlines()
    for line in str(graph).splitlines()[1:-2]:
        assert line.strip() in tooltips
    assert next(lines for _, fill, lines in boxes if fill == _LOOKS["input"].fill) == ["[0]['b1']", "float32[8]"]
    assert sorted(lines[0] for _, fill, lines in boxes if fill == _LOOKS["output"].fill) == [
        "return ['b1']",
        "return ['w1']",
        "return ['w2']",
    ]
    ((_, _, lines),) = [box for box in boxes if box[1] == _LOOKS["extension"].fill]
    assert lines[0] == "tenferro-ext-tropical.einsum.v1"
    assert "max_plus" in lines[1]
    assert any(lines == ["32.0", "float32[]"] for _, fill, lines in boxes if fill == _LOOKS["constant"].fill)


@pytest.mark.parametrize("count", [30, 81, 500, 10_000])
def test_a_large_graph_folds_and_says_so(count):
    graph = random_graph(count)
    svg = graph.svg(limit=40)
    boxes = drawn(svg)
    folded = sum(int(lines[0].removesuffix(" ops").replace(",", "")) for _, fill, lines in boxes if fill == _LOOKS["folded"].fill)
    single = sum(fill == _LOOKS["elementwise"].fill for _, fill, _ in boxes)
    assert folded + single == len(graph.nodes) == count
    assert f"{count:,} nodes" + (f", {folded:,} of them folded" if folded else "") in svg
    assert bool(folded) == (count > 40)
    assert len(boxes) <= 90


def test_a_chain_is_one_box():
    builder = GraphBuilder()
    value = builder.input(SPEC)
    for _ in range(12):
        (value,) = builder.add(Sin(), value)
    _, (tooltip, _, lines), _ = drawn(builder.build([value]).svg(limit=5))
    assert lines == ["12 ops", "12 Sin", "float32[2]"]
    assert len(tooltip.splitlines()) == 12


def test_bodies_are_drawn_inside_or_named():
    graph = trace(lambda x, n: jax.lax.cond(n > 0, lambda: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x), lambda: -x), SPEC, np.float32(0))
    tree = ET.fromstring(graph.svg())
    texts = [t.text for t in tree.iter(f"{NAMESPACE}text")]
    assert {"Cond", "branches[0]", "branches[1]", "Scan", "body", "Neg", "Mul"} <= set(texts)

    def long(x):
        for _ in range(30):
            x = jnp.sin(x)
        return x

    looped = trace(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: long(x), x), SPEC)
    (lines,) = [lines for _, _, lines in drawn(looped.svg()) if lines[0] == "Scan"]
    assert "body: 33 nodes" in lines or "body: 32 nodes" in lines or "body: 31 nodes" in lines


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
        ET.fromstring(graph.svg(limit=0))
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
    for kind, look in _LOOKS.items():
        assert contrast(look.fill, look.text) >= 4.5, kind
    for ground in ("#ffffff", "#1e1e1e", "#000000"):
        assert contrast(_LINE, ground) >= 3.0, ground


@st.composite
def layered(draw):
    count = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.tuples(st.integers(10, 200), st.integers(10, 90)), min_size=count, max_size=count))
    pairs = list(itertools.combinations(range(count), 2))
    return sizes, draw(st.sets(st.sampled_from(pairs), max_size=30)) if pairs else set()


@settings(max_examples=150)
@given(layered())
def test_boxes_do_not_touch_and_arrows_go_down(case):
    sizes, edges = case
    arrows = [Arrow(a, b, 0.0, 0.0) for a, b in sorted(edges)]
    boxes, routes, width, height = place(sizes, arrows)
    spans = [(x - w / 2, x + w / 2, y, y + h) for (x, y), (w, h) in zip(boxes, sizes)]
    for (l1, r1, t1, b1), (l2, r2, t2, b2) in itertools.combinations(spans, 2):
        assert r1 + 5 < l2 or r2 + 5 < l1 or b1 + 5 < t2 or b2 + 5 < t1
    assert all(left > -1e-6 and right < width + 1e-6 and top > -1e-6 and bottom < height + 1e-6 for left, right, top, bottom in spans)
    for route, arrow in zip(routes, arrows):
        assert all(y1 < y2 + 1e-9 for (_, y1), (_, y2) in itertools.pairwise(route))
        assert route[0] == pytest.approx((boxes[arrow.source][0], spans[arrow.source][3]))
        assert route[-1] == pytest.approx((boxes[arrow.target][0], spans[arrow.target][2]))
        for x, y in route[1:-1]:  # a long arrow passes between the boxes of the layers on its way
            assert not any(left < x < right and top < y < bottom for left, right, top, bottom in spans)


def test_the_picture_of_the_docs_is_of_this_program():
    path = mlp_gradient.__globals__["pathlib"].Path(mlp_gradient.__globals__["__file__"]).with_name("mlp_gradient.svg")
    assert any(lines[0] == "tenferro-ext-tropical.einsum.v1" for _, _, lines in drawn(path.read_text()))
    assert not re.search(r"[^\x20-\x7e\n\u00b7\u2026]", path.read_text())
    assert tj.Graph.svg.__doc__


@pytest.mark.parametrize("limit", ["a", -1, 2.0, True])
def test_a_limit_is_an_integer(limit):
    with pytest.raises(InvalidConfig, match=r"Graph\.svg: given limit="):
        trace(lambda x: x + 1, np.ones(2)).svg(limit=limit)
