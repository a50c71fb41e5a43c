"""Each benchmark runs at toy size, so that none rots; no time is asserted."""

import importlib
import json
import pathlib
import re

import jax
import numpy as np
import pytest

from benchmarks import (
    alignments,
    both_modes,
    chains,
    closures,
    durations,
    first_call,
    gradient_of_matmul,
    log_sum_exp,
    mesh,
    network_peers,
    networks,
    one_line,
    questions,
    sparse_paths,
    sum_product,
    training_step,
    tropical,
    tropical_gpu,
    wide_networks,
)
from benchmarks.__main__ import BENCHMARKS, FOLDER, RESULTS

pytestmark = pytest.mark.slow


def test_questions(capsys):
    (rows,) = questions.main(["grid"], [12], repeats=1).values()
    theirs = {"toulbar2, k=10"} if network_peers.toulbar2() else set()
    assert rows.keys() == {*questions.QUESTIONS, *questions.LOOPS} | theirs
    assert min(low for pair in rows.values() for low in pair) > 0
    told = capsys.readouterr().out
    assert "goal 12" in told
    assert ("toulbar2 is not installed" in told) is not bool(theirs)


def test_sparse_paths(capsys, monkeypatch):
    for name, edges in (("small", sparse_paths.grid(4)), ("large", sparse_paths.streets(101))):
        monkeypatch.setitem(sparse_paths.GRAPHS, name, lambda edges=edges: edges)
    assert [x.nodes for x in sparse_paths.main(["small", "large"], seconds=1e-3)] == [16, 10_201]
    assert "all pairs of 16" in capsys.readouterr().out


def test_chains(capsys):
    """The answers of all ways are compared."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        rows = chains.main(
            [(3, 9)],
            seconds=1e-3,
            of=[(2, 8, 3)],
            masked=[(3, 9)],
            five=[3],
            texts=[(2, 9, 3, 4)],
        )
    # one chain, batches, half of the moves impossible, all moves to states before impossible
    assert [row.question for row in rows] == [*chains.QUESTIONS] * 4
    assert min(low for row in rows for low in row.seconds.values()) > 0
    assert all({"ours", "xla", "scan"} <= row.seconds.keys() for row in rows)
    assert "next eager" in capsys.readouterr().out


def in_both(found):
    return {min(times) for row in found.values() for times in row.values()}


SMALL = {  # what runs at toy size, the times in what it returns, and words that it prints
    alignments: (
        lambda main: (min(x.values()) for x in main([12], repeats=1, symbols=[12])[12].values()),
        "NumPy loop",
    ),
    closures: (
        lambda main: (min(row.values()) for row in main([40], 1e-3)[40, "float64"].values()),
        "SciPy / closure",
    ),
    gradient_of_matmul: (lambda main: main([8], repeats=2), "gradient"),
    training_step: (lambda main: main([4, 5, 3], 8, repeats=2), "optimised HLO equal: True"),
    both_modes: (lambda main: main(1e-3).values(), "and lowering: at most"),
    log_sum_exp: (lambda main: in_both(main(("2 of 3",), ("float32",), 1)), "with gradient"),
    one_line: (
        lambda main: map(min, main("16 of 8 x 8", ("float32",), 1).values()),
        "on one thread",
    ),
}


def test_durations(capsys):
    """The scores of both ways are compared."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        rows = durations.main([(9, 2, 3)], times=50, seconds=1e-3)
    assert all(min(*row.ours.values(), *row.theirs.values()) > 0 for row in rows)
    assert "GiB" in capsys.readouterr().out


def test_wide_networks(capsys):
    rows = wide_networks.main([12], repeats=1)
    assert all(row.proved and min(row.first, row.later) > 0 for row in rows)
    assert rows[0].elimination is not None
    assert "toulbar2" in capsys.readouterr().out


def test_sum_product(capsys):
    rows = sum_product.main(leaves=5, sites=3, rounds=3, vertices=12)
    assert len(rows) == 12
    assert all(min(row.first, row.later, row.peer) > 0 for row in rows)
    assert "opt_einsum" in capsys.readouterr().out


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.__name__)
def test_a_small_benchmark_runs_and_says_what_it_found(module, capsys):
    times, words = SMALL[module]
    with jax.enable_x64(module is not gradient_of_matmul):
        assert min(times(module.main)) > 0
    assert words in capsys.readouterr().out


def test_overheads(capsys):
    pytest.importorskip("cotengra")
    overheads = importlib.import_module("benchmarks.overheads")
    with jax.enable_x64(False):
        calls, plans, imports = overheads.main(count=5, operands=20, repeats=1)
    assert {"jax.jit", "Engine.eval", "tropical_einsum 3x3x3"} <= calls.keys()
    assert plans.keys() == {"path", "tree", "grid", "star"}
    times = [calls, imports, *plans.values()]
    assert min(seconds for row in times for seconds in row.values()) > 0
    assert "x jit" in capsys.readouterr().out


def test_first_call(capsys):
    found = first_call.main([8], [40], [3])
    assert min(map(min, [stage for table in found for row in table.values() for stage in row])) > 0
    out = capsys.readouterr().out
    assert "graph/jit" in out
    assert "k = 40: trace" in out


def test_tropical(capsys, tmp_path):
    files = [str(tmp_path / name) for name in ("t.json", "t.png")]
    table = tropical.main(tropical.TOY, repeats=1, json_path=files[0], plot_path=files[1])
    kinds = ["value", "winner", "gradient", "value", "winner", "mod"]
    assert [row["case"]["what"] for row in table] == kinds
    for row in table:
        peer = min(row["seconds"][name] for name in tropical.PEERS if name in row["seconds"])
        assert row["ratios"]["xla"] == peer / row["seconds"]["xla"]
    assert len(json.loads(pathlib.Path(files[0]).read_text())["rows"]) == 6
    assert pathlib.Path(files[1]).stat().st_size > 0
    assert "ratio: native, xla" in capsys.readouterr().out


def test_networks(capsys):
    """The answers are compared with NumPy's; the worst figure of every goal is said."""
    with jax.enable_x64(False):
        found = networks.main(["tree"], [9], repeats=1, exports=["value"])
    assert found.keys() == {("tree", 9, asked) for asked in networks.GOALS}
    out = capsys.readouterr().out
    assert "assignment / value, again: at most 2; worst" in out
    assert "characters (before: -), exporting" in out


def test_a_process_that_answers_different_networks_does_not_grow():
    """Every question to 60 networks of 60 tables leaves next to nothing."""
    with jax.enable_x64(False):
        found = networks.many(60, 60)
    if found[60][0] == 0:
        pytest.skip("only Linux says which memory a process has mapped")
    maps, mib = np.subtract(found[60], found[10])
    assert maps < 50
    assert mib < 50


def test_tropical_gpu(capsys, monkeypatch, tmp_path):
    """Interpreted at toy size; without a card one line says so."""
    table = tropical_gpu.main(
        tropical_gpu.TOY, repeats=1, interpret=True, json_path=str(tmp_path / "t.json")
    )
    assert all("xla" in row["seconds"] for row in table)
    assert "naive jnp" in table[0]["seconds"]  # with a card only of square steps
    assert len(json.loads((tmp_path / "t.json").read_text())["rows"]) == 2
    assert "fixed cost of a call: " in capsys.readouterr().out
    monkeypatch.setattr(tropical_gpu, "cards", list)
    assert tropical_gpu.main(tropical_gpu.cases()) == []
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing was measured: ")


def test_the_page_links_every_file_of_results_once():
    """`make bench` runs all there are but those for GPUs and of `check`."""
    assert {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("check_")} - {
        "__init__",
        "__main__",
        "measure",
        "network_peers",
        "tropical_gpu",
    } == BENCHMARKS.keys()
    linked = re.findall(r"\(results/(\w+)\.txt\)", pathlib.Path(FOLDER, "README.md").read_text())
    written = {path.stem for path in RESULTS.glob("*.txt")}
    assert set(linked) == written
    assert len(linked) == len(written)
    assert written - {"check_power", "tropical_avx2", "tropical_gpu"} == BENCHMARKS.keys()


@pytest.mark.slow
@pytest.mark.cpu
def test_mesh(monkeypatch):
    """At toy size XLA computes all pieces; the collectives are those of any size."""
    some = dict([*mesh.splits(8).items()][::3])
    monkeypatch.setattr(mesh, "splits", lambda devices: some)
    rows = mesh.main(16, tables=20)
    assert len(rows) == 5 * len(some) == 15
    for row in rows:
        if row.question == "value" and row.split != "contracted, left alone":
            assert row.op.collectives == row.product.collectives


@pytest.mark.slow
def test_chains_of_matrices():
    assert [x.count("one by one") for x in network_peers.chains((4,), repeats=1)] == [1] * 5
