"""Text, bytes and digests of graphs: golden, the same in every process, and equal exactly when the
graphs are; pictures of graphs.
"""

import hashlib
import itertools
import json
import re
import shutil
import subprocess

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import tropical_einsum
from tenferro_jax import TensorMeta, trace
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.graph.graph import bodies
from tenferro_jax.graph.pictures import LOOKS, kind_of
from tenferro_jax.ops import analytic, arithmetic, logic, source, structural
from tenferro_jax.ops.analytic import Sin
from tenferro_jax.ops.vocabulary import VOCABULARY

F64 = np.dtype("float64")
SPEC = jax.ShapeDtypeStruct((2,), F64)


def branching(x, n):
    return jax.lax.cond(n > 0, lambda: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x), lambda: -x)


EXPANDED = """\
graph(%0: float64[2], %1: float64[]) {
  %2 = Constant[value=0.0]() : float64[]
  %3 = Compare[direction=Gt](%1, %2) : bool[]
  %4 = Cond[branches=(graph of 1 nodes, graph of 2 nodes)](%3, %0) : float64[2]
    branches[0]: graph(%0: float64[2]) {
      %1 = Neg(%0) : float64[2]
      return %1
    }
    branches[1]: graph(%0: float64[2]) {
      %1 = Constant[value=0]() : int32[]
      %2, %3 = Scan[body=graph of 5 nodes, length=3, carry_count=2](%1, %0) : int32[], float64[2]
"""


def test_bodies_are_written_out_on_request():
    graph = trace(branching, SPEC, jax.ShapeDtypeStruct((), F64))
    assert graph.text() == str(graph)
    text = graph.text(expand=True)
    assert text.startswith("\n".join(EXPANDED.splitlines()[:8]))
    assert "        body: graph(%0: int" in text
    shallow = [line for line in text.splitlines() if not line.startswith("    ")]
    assert "\n".join(shallow) == str(graph)


def test_the_repr_of_a_large_graph_leaves_its_middle_out():
    builder = GraphBuilder()
    value = builder.input(SPEC)
    for op in itertools.islice(itertools.cycle((analytic.Sin(), arithmetic.Neg())), 1000):
        (value,) = builder.add(op, value)
    graph = builder.build([value])
    lines, shown = str(graph).splitlines(), repr(graph).splitlines()
    assert len(lines) == 1003
    assert shown == [*lines[:21], "  ... 970 more nodes ...", *lines[-12:]]
    short = trace(jnp.sin, SPEC)
    assert repr(short) == str(short)


def test_the_bytes_are_golden():
    graph = trace(lambda x: {"y": -x}, SPEC)
    assert graph.canonical_bytes() == (
        b'[{"class":"tenferro_jax.graph.graph.Graph"},[[{"dtype":"float64"},[2]]],'
        b'[[[{"class":"tenferro_jax.ops.arithmetic.Neg"}],[0],1]],[1],{"tree":"PyTreeDef((*,))"},{"tree":"PyTreeDef({\'y\': *})"},[]]'
    )
    assert graph.digest == hashlib.sha256(graph.canonical_bytes()).hexdigest()


NESTINGS = (
    lambda x: x,
    lambda x: (x,),
    lambda x: [x],
    lambda x: {"a": x},
    lambda x: {"b": x},
    lambda x: (x, None),
)


def test_bytes_are_equal_exactly_when_graphs_are():
    def one(op, *shapes):
        builder = GraphBuilder()
        return builder.build(
            list(builder.add(op, *(builder.input(TensorMeta(F64, shape)) for shape in shapes)))
        )

    (b,) = jax.export.symbolic_shape("b")
    graphs = [
        *(
            one(source.Constant(np.asarray(v)))
            for v in (
                0.0,
                -0.0,
                0,
                False,
                np.float32(0),
                [0.0],
                [[0.0]],
                np.nan,
                np.inf,
                1,
                True,
                1.0,
            )
        ),
        *(
            one(op, (2, 3))
            for op in (
                structural.Transpose((1, 0)),
                structural.Reverse((1, 0)),
                structural.Reshape((3, 2)),
                analytic.Sin(),
            )
        ),
        *(one(logic.Compare(d), (2,), (2,)) for d in logic.Direction),
        one(analytic.Sin(), (2,)),
        one(analytic.Sin(), (b,)),
        one(analytic.IntegerPow(1), (2,)),
        one(source.DimensionValue(b, np.dtype("int32"))),
        *(trace(fn, SPEC) for fn in NESTINGS),
        *(trace(branching, SPEC, jax.ShapeDtypeStruct((), t)) for t in (np.float64, np.float32)),
    ]
    again = [
        trace(lambda x: x, SPEC),
        one(analytic.Sin(), (2,)),
        one(source.Constant(np.asarray(np.nan))),
        one(source.Constant(np.asarray(-np.nan))),
    ]
    equal = 0
    for g, h in itertools.product([*graphs, *again], repeat=2):
        assert (g == h) == (g.canonical_bytes() == h.canonical_bytes()) == (g.digest == h.digest)
        equal += g == h
    assert len(graphs) < equal < len(graphs) + 30


# --- pictures -------------------------------------------------------------------------------------


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
