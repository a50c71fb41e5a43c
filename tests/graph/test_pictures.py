"""Pictures of graphs as text: complete, of any size, and as each language wants it."""

import json
import re
import shutil
import subprocess

import jax
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
SPEC = jax.ShapeDtypeStruct((2,), F32)
NASTY = '#"\\<b>`x`\n\x00\u202e'


def chain(count):
    builder = GraphBuilder()
    value = builder.input(SPEC)
    for _ in range(count):
        (value,) = builder.add(Sin(), value)
    return builder.build([value])


def looped(x, n):
    return jax.lax.cond(n > 0, lambda: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x), lambda: -x)


GRAPHS = {
    "control": trace(looped, SPEC, np.float32(0)),
    "extension": trace(lambda x: tropical_einsum("ij,jk->ik", x, x).sum(), np.ones((2, 2), F32)),
    "nasty": trace(lambda tree: {NASTY: jnp.sin(tree[NASTY])}, {NASTY: SPEC}),
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


@each_graph
def test_dot(graph):
    text = graph.dot()
    assert [text.count(" [label="), text.count(" -> "), text.count("subgraph ")] == list(
        counts(graph)
    )
    program = shutil.which("dot")
    if program is not None:
        subprocess.run([program, "-Tplain"], input=text.encode(), check=True, capture_output=True)


def test_what_a_box_says():
    control, extension, nasty = (GRAPHS[name] for name in ("control", "extension", "nasty"))
    for label in ("Cond, branches[1]", "Scan, body", "args[0]\\nfloat32[2]", "Neg\\nfloat32[2]"):
        assert f'label="{label}"' in control.dot()
    assert "Constant<br/>value=0.0<br/>float32[]" in control.mermaid()
    assert (
        "einsum.v1<br/>semiring=max_plus, equation='ij,jk->ik'<br/>float32[2,2]"
        in extension.mermaid()
    )
    for line in str(extension).splitlines()[1:-2]:
        assert f'tooltip="{line.strip()}"' in extension.dot()
    assert r"#35;#34;#92;#92;#60;b>#96;x#96;" in nasty.mermaid()
    assert r"\\x00\\u202e" in nasty.dot()


def test_a_notebook_draws_small_graphs_and_writes_large_ones():
    small, large = chain(60), chain(61)
    assert small._repr_mimebundle_() == {
        "text/plain": repr(small),
        "text/vnd.mermaid": small.mermaid(),
    }
    assert large._repr_mimebundle_(include=None) == {"text/plain": repr(large)}


def test_every_op_has_a_look():
    assert {kind_of(object.__new__(op)) for op in VOCABULARY} <= set(LOOKS)


def explored(graph, tmp_path):
    graph.model_explorer(tmp_path / "graph.json")
    return json.loads((tmp_path / "graph.json").read_text())


NODE = {"id", "label", "namespace", "subgraphIds", "attrs", "incomingEdges", "outputsMetadata"}
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
"""The fields of model_explorer.graph_builder that are written."""


@each_graph
def test_the_file_for_model_explorer(graph, tmp_path):
    """A collection of graphs, one for each body; an edge comes from an output that there is."""
    found = explored(graph, tmp_path)
    graphs = {one["id"]: one["nodes"] for one in found["graphs"]}
    nodes = [node for nodes in graphs.values() for node in nodes]
    edges = [edge for node in nodes for edge in node["incomingEdges"]]
    assert found.keys() == {"label", "graphs"}
    assert all(node.keys() == NODE for node in nodes)
    assert all(edge.keys() == EDGE for edge in edges)
    assert [len(nodes), len(edges), len(graphs) - 1] == list(counts(graph))
    assert sorted(place for node in nodes for place in node["subgraphIds"]) == sorted(
        graphs.keys() - {"main"}
    )
    for nodes in graphs.values():
        outputs = {node["id"]: [item["id"] for item in node["outputsMetadata"]] for node in nodes}
        for node in nodes:
            for edge in node["incomingEdges"]:
                assert edge["sourceNodeOutputId"] in outputs[edge["sourceNodeId"]]
            pairs = [
                *node["attrs"],
                *(p for item in node["outputsMetadata"] for p in item["attrs"]),
            ]
            assert all(pair.keys() == {"key", "value"} for pair in pairs)
            assert all(set(map(type, pair.values())) == {str} for pair in pairs)
