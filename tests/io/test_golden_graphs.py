"""Graph bytes of every version of the format are read forever: files that were written once, with
inputs and NumPy's results.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax import from_wire, load_graph, to_wire
from tenferro_jax.errors import Unsupported
from tenferro_jax.extension import registry
from tenferro_jax.ops.vocabulary import VOCABULARY

from .. import golden_graphs
from ..extension_ops import ALL_RUNTIMES
from ..helpers import ends_in
from ..sweep import some
from .graph_bank import families_known
from .plain_format import opened

FILES = sorted(golden_graphs.FOLDER.rglob("*.graph"))
NUMBERS = [path for path in FILES if path.with_suffix(".npz").exists()]


@pytest.fixture(autouse=True)
def _families(monkeypatch):
    families_known(monkeypatch)


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_golden_file_is_read_and_written_again_to_the_byte(path):
    assert to_wire(load_graph(path)) == path.read_bytes()


@pytest.mark.parametrize("path", some(NUMBERS, 12), ids=name_of)
def test_a_golden_file_computes_what_numpy_said(path):
    graph = load_graph(path).with_runtimes(ALL_RUNTIMES)
    arrays = np.load(path.with_suffix(".npz"))
    inputs, wanted = (
        [arrays[name] for name in sorted(arrays) if name.startswith(kind)]
        for kind in ("in_", "out_")
    )
    is_key = [jax.dtypes.issubdtype(m.dtype, jax.dtypes.prng_key) for m in graph.input_metas]
    given = [
        jax.random.wrap_key_data(jnp.asarray(x)) if key else x
        for x, key in zip(inputs, is_key, strict=True)
    ]
    # On a GPU JAX computes derivatives of windowed maxima in 32 bits, with a warning.
    exact = "window" not in path.stem or jax.default_backend() == "cpu"
    for got, want in zip(map(golden_graphs.plain, jax.jit(graph)(*given)), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-7 if exact else 1e-6, atol=1e-11)


def test_every_op_and_every_family_is_in_a_golden_file():
    records = [record for path in FILES for record in opened(path.read_bytes())[0]]
    ops, families = (
        {name for kind, name, *_ in records if kind == wanted} for wanted in ("op", "extension")
    )
    assert len(ops) == 155  # a new op needs no new version, and so no new file
    assert ops <= {op.__name__ for op in VOCABULARY}
    assert registry._factories.keys() <= families


def test_what_derivatives_a_file_lost_it_goes_on_refusing():
    graph = load_graph(golden_graphs.FOLDER / "graph_v1/with_lost_derivative.graph")
    ends_in(
        lambda: jax.grad(lambda x: graph(x)[0].sum())(np.ones(2)),
        Unsupported,
        r"square at model\.py:3",
    )


def test_golden_files_are_never_written_again(monkeypatch, tmp_path):
    monkeypatch.setattr(golden_graphs, "FOLDER", tmp_path)
    graph = from_wire(FILES[0].read_bytes())
    golden_graphs.write("one", graph)
    path = tmp_path / "graph_v1/one.graph"
    assert path.read_bytes() == FILES[0].read_bytes()
    path.write_bytes(b"old")
    ends_in(lambda: golden_graphs.write("one", graph), FileExistsError)
    assert path.read_bytes() == b"old"
