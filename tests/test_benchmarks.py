"""Each benchmark runs at toy size, so that none rots; no time is asserted."""

import json

import jax
import pytest

from benchmarks import (
    call_overhead,
    compile_time,
    donation,
    eval_all,
    extension_in_jit,
    gradient_of_matmul,
    graph_building,
    graph_passes,
    growth,
    training_step,
    tropical,
    tropical_gpu,
)


def test_gradient_of_matmul(capsys):
    with jax.enable_x64(False):
        ratios = gradient_of_matmul.main([8], repeats=2)
    assert len(ratios) == 1
    assert "gradient" in capsys.readouterr().out


def test_call_overhead(capsys):
    with jax.enable_x64(False):
        rows = call_overhead.main(calls=5)
    assert set(rows) > {"jax.jit"}
    assert all(v > 0 for v in rows.values())
    assert "x jit" in capsys.readouterr().out


@pytest.mark.clause("X13.8", "X10.1")
def test_extension_in_jit(capsys):
    """Times are not asserted; that the optimised programs are equal, and that equal payloads share a trace, is."""
    with jax.enable_x64(False):
        found, (primitives, first, second) = extension_in_jit.main(8, repeats=2, count=20)
    assert all(equal for equal, _ in found.values())
    assert len(found) == 12
    assert (primitives, first, second) == (1, 20, 0)
    assert "optimised HLO equal" in capsys.readouterr().out


def test_training_step(capsys):
    equal, ratio = training_step.main([4, 5, 3], 8, repeats=2)
    assert equal
    assert ratio > 0
    assert "optimised HLO equal: True" in capsys.readouterr().out


def test_compile_time(capsys):
    ((ours, theirs),) = compile_time.main([8])
    assert min(ours, theirs) > 0
    assert "graph/jit" in capsys.readouterr().out


def test_graph_passes(capsys):
    ratios = graph_passes.main(16, repeats=2)
    assert set(ratios) == set(graph_passes.CASES)
    out = capsys.readouterr().out
    assert all(f"{name} |" in out for name in ratios)


def test_donation(capsys):
    ratios = donation.main(8, repeats=2)
    assert set(ratios) == set(donation.CASES)
    assert "donated/kept" in capsys.readouterr().out


def test_graph_building(capsys):
    results = graph_building.main([20], repeats=1)
    assert set(results) == {("op and shape repeat", 20), ("ever new", 20)}
    assert all(v > 0 for v in results.values())
    assert "us a node" in capsys.readouterr().out


def test_eval_all(capsys):
    apart, together, agree = eval_all.main([5, 4, 3], 6, repeats=2)
    assert agree
    assert min(apart, together) > 0
    assert "separate/together" in capsys.readouterr().out


def test_tropical(capsys, tmp_path):
    table = tropical.main(tropical.TOY, repeats=1, json_path=str(tmp_path / "t.json"), plot_path=str(tmp_path / "t.png"))
    assert [row["case"]["what"] for row in table] == ["value", "winner", "gradient"]
    assert all({"xla", "naive jnp"} <= row["seconds"].keys() for row in table)
    assert len(json.loads((tmp_path / "t.json").read_text())["rows"]) == 3
    assert (tmp_path / "t.png").stat().st_size > 0
    assert "winner" in capsys.readouterr().out
    assert len({case.name for case in tropical.cases()}) >= 15


def test_growth(capsys, tmp_path):
    fitted = growth.main(doublings=2, repeats=1, plot_path=str(tmp_path / "g.png"))
    assert {"contracted, xla", "operands"} <= fitted.keys()
    assert (tmp_path / "g.png").stat().st_size > 0
    assert "memory" in capsys.readouterr().out


def test_tropical_gpu(capsys, monkeypatch, tmp_path):
    """Interpreted at toy size; without a card one line says so."""
    table = tropical_gpu.main(tropical_gpu.TOY, repeats=1, interpret=True, json_path=str(tmp_path / "t.json"))
    assert all({"xla", "naive jnp"} <= row["seconds"].keys() for row in table)
    assert len(json.loads((tmp_path / "t.json").read_text())["rows"]) == 2
    assert "fixed cost of a call: " in capsys.readouterr().out
    monkeypatch.setattr(tropical_gpu, "cards", list)
    assert tropical_gpu.main(tropical_gpu.cases()) == []
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing was measured: ")
