"""Text, bytes and digests of graphs: golden, the same in every process, and equal exactly when the
graphs are.
"""

import hashlib
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta, trace
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops import analytic, arithmetic, logic, source, structural

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
