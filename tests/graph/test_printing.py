"""What graphs look like: their text and their pictures."""

import json
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import tropical_einsum
from tenferro_jax import trace
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.graph.graph import bodies
from tenferro_jax.graph.pictures import LOOKS, kind_of
from tenferro_jax.ops.analytic import Sin
from tenferro_jax.ops.vocabulary import VOCABULARY

F32 = np.dtype("float32")
OF_TWO = jax.ShapeDtypeStruct((2,), F32)
NASTY = '#"\\<b>`x`\n\x00\u202e'


def chain(count):
    builder = GraphBuilder()
    value = builder.input(OF_TWO)
    for _ in range(count):
        (value,) = builder.add(Sin(), value)
    return builder.build([value])


def looped(x, n):
    return jax.lax.cond(n > 0, lambda: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x), lambda: -x)


GRAPHS = {
    "control": trace(looped, OF_TWO, np.float32(0)),
    "extension": trace(lambda x: tropical_einsum("ij,jk->ik", x, x).sum(), np.ones((2, 2), F32)),
    "nasty": trace(lambda tree: {NASTY: jnp.sin(tree[NASTY])}, {NASTY: OF_TWO}),
    "empty": trace(lambda: ()),
    "large": chain(2000),
}
each_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def counts(graph):
    """The boxes, arrows and bodies of a graph."""
    inside = [counts(body) for node in graph.nodes for body in bodies(node.op)]
    boxes = graph.input_count + len(graph.nodes) + len(graph.outputs)
    arrows = sum(len(node.inputs) for node in graph.nodes) + len(graph.outputs)
    return np.array([boxes, arrows, len(inside)]) + sum(inside)


@each_graph
def test_mermaid(graph):
    """Every line is one of the five forms of the language that are used, and an arrow joins two
    boxes that are written above it.
    """
    head, *lines = graph.mermaid().splitlines()
    assert head == "flowchart TD"
    forms = {
        "box": r'(n[\d_]+)\["(?:[\w \n.,\-=>\[\]()\':%]|#\d+;|<br/>)*"\]:::(\w+)',
        "arrow": r"(n[\d_]+) --> (n[\d_]+)",
        "begin": r'subgraph n[\d_]+\["[^"]*"\]',
        "end": r"end",
        "look": r"classDef (\w+) fill:#\w{6},stroke:#\w{6},color:#\w{6}",
    }
    found = {form: [] for form in forms}
    for line in lines:
        (form, match) = next(
            (form, match)
            for form, rule in forms.items()
            if (match := re.fullmatch(rule, line.strip()))
        )
        found[form].append(match.groups())
        if form == "arrow":
            assert set(match.groups()) <= {name for name, _ in found["box"]}
    assert [len(found[form]) for form in ("box", "arrow", "begin")] == list(counts(graph))
    assert len(found["begin"]) == len(found["end"])
    assert {kind for _, kind in found["box"]} == {kind for (kind,) in found["look"]}


KEYS = {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata"}
# The fields of model_explorer.graph_builder that are written.
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}


@each_graph
def test_the_file_for_model_explorer(graph, tmp_path):
    """An edge comes from an output that there is, and a body is a layer of its own."""
    graph.model_explorer(tmp_path / "graph.json")
    found = json.loads((tmp_path / "graph.json").read_text())
    ((name, nodes),) = (each.values() for each in found.pop("graphs"))
    assert (name, found) == ("graph", {"label": "tenferro_jax"})
    edges = [edge for node in nodes for edge in node["incomingEdges"]]
    layers = {node["namespace"] for node in nodes} - {""}
    assert [len(nodes), len(edges), len(layers)] == list(counts(graph))
    assert all(node.keys() == KEYS for node in nodes)
    assert all(edge.keys() == EDGE for edge in edges)
    outputs = {node["id"]: [item["id"] for item in node["outputsMetadata"]] for node in nodes}
    assert len(outputs) == len(nodes)
    assert all(edge["sourceNodeOutputId"] in outputs[edge["sourceNodeId"]] for edge in edges)
    told = [
        pair for node in nodes for of in (node, *node["outputsMetadata"]) for pair in of["attrs"]
    ]
    assert all(list(map(type, pair.values())) == [str, str] for pair in told)
    assert all(pair.keys() == {"key", "value"} for pair in told)


def test_the_repr_of_a_large_graph_leaves_its_middle_out():
    graph, short = chain(1000), chain(30)
    lines, shown = str(graph).splitlines(), repr(graph).splitlines()
    assert len(lines) == 1003
    assert shown == [*lines[:21], "  ... 970 more nodes ...", *lines[-12:]]
    assert repr(short) == str(short)


def test_what_a_box_says():
    control, extension, nasty = (GRAPHS[name] for name in ("control", "extension", "nasty"))
    for label in (
        "Cond, branches[1]",
        "Scan, body",
        "args[0]<br/>float32[2]",
        "Neg<br/>float32[2]",
        "Constant<br/>value=0.0<br/>float32[]",
    ):
        assert f'["{label}"]' in control.mermaid()
    assert (
        "einsum.v1<br/>semiring=max_plus, equation='ij,jk->ik'<br/>float32[2,2]"
        in extension.mermaid()
    )
    assert r"#35;#34;#92;#92;#60;b>#96;x#96;" in nasty.mermaid()
    assert "#92;x00#92;u202e" in nasty.mermaid()


def test_a_notebook_draws_small_graphs_and_writes_large_ones():
    small, large = chain(60), chain(61)
    assert small._repr_mimebundle_() == {
        "text/plain": repr(small),
        "text/vnd.mermaid": small.mermaid(),
    }
    assert large._repr_mimebundle_(include=None) == {"text/plain": repr(large)}


def test_every_op_has_a_look():
    assert {kind_of(object.__new__(op)) for op in VOCABULARY} <= set(LOOKS)
