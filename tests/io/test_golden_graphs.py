"""Graph bytes of every version of the format are read forever: files that were written once, with
inputs and NumPy's results.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax import from_wire, load_graph, to_wire
from tenferro_jax.errors import Unsupported
from tenferro_jax.ops.vocabulary import ROOMS, VOCABULARY

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
    content = path.read_bytes()
    assert to_wire(load_graph(path)) == content
    records, _ = opened(content)
    assert (
        sum(kind == "graph" for kind, *_ in records)
        == sum(kind == "return" for kind, *_ in records)
        > 0
    )


def leaves(path):
    arrays = np.load(path.with_suffix(".npz"))
    return (
        [arrays[name] for name in sorted(arrays) if name.startswith(kind)]
        for kind in ("in_", "out_")
    )


def as_declared(array, meta):
    """The array, or the keys that it is the data of."""
    return (
        jax.random.wrap_key_data(jnp.asarray(array))
        if jax.dtypes.issubdtype(meta.dtype, jax.dtypes.prng_key)
        else array
    )


@pytest.mark.parametrize("path", some(NUMBERS, 12), ids=name_of)
def test_a_golden_file_computes_what_numpy_said(path):
    graph = load_graph(path).with_runtimes(ALL_RUNTIMES)
    inputs, wanted = leaves(path)
    for got, want in zip(
        jax.jit(graph)(*map(as_declared, inputs, graph.input_metas)), wanted, strict=True
    ):
        got = (
            jax.random.key_data(got)
            if jax.dtypes.issubdtype(got.dtype, jax.dtypes.prng_key)
            else got
        )
        # on a GPU JAX computes derivatives of windowed maxima in 32 bits, with a warning
        exact = "window" not in path.stem or jax.default_backend() == "cpu"
        np.testing.assert_allclose(got, want, rtol=1e-7 if exact else 1e-6, atol=1e-11)


def test_every_op_and_every_family_is_in_a_golden_file_of_every_version():
    for folder in golden_graphs.FOLDER.iterdir():
        ops = {
            node
            for path in folder.glob("*.graph")
            for kind, node, *_ in opened(path.read_bytes())[0]
            if kind == "op"
        }
        families = {
            name
            for path in folder.glob("*.graph")
            for kind, name, *_ in opened(path.read_bytes())[0]
            if kind == "extension"
        }
        if folder.name == "graph_v1":
            assert len(ops) == 155  # a new op needs no new version, and so no new file
            assert ops <= {op.__name__ for op in VOCABULARY}
            assert {name for name, *_ in golden_graphs.families()} <= families
    assert len(ROOMS) < len(NUMBERS)


def test_what_derivatives_a_file_lost_it_goes_on_refusing():
    graph = load_graph(golden_graphs.FOLDER / "graph_v1/with_lost_derivative.graph")
    ends_in(
        lambda: jax.grad(lambda x: graph(x)[0].sum())(np.ones(2)),
        Unsupported,
        r"square at model\.py:3",
    )


def test_golden_files_are_never_written_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(golden_graphs, "FOLDER", tmp_path)
    monkeypatch.setattr(
        golden_graphs, "items", lambda: [("one", from_wire(FILES[0].read_bytes()), (), None)]
    )
    (tmp_path / "graph_v1").mkdir()
    path = pathlib.Path(tmp_path / "graph_v1/one.graph")
    path.write_bytes(b"old")
    golden_graphs.main(1)
    assert path.read_bytes() == b"old"
    assert "kept" in capsys.readouterr().out
    path.unlink()
    golden_graphs.main(1)
    assert path.read_bytes() == FILES[0].read_bytes()
