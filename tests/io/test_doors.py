"""Every door that reads a file has the same limits, and takes pipes: the functions that load, and
the command that inspects.
"""

import contextlib
import json
import os
import threading
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.__main__ import main
from tenferro_jax.command import inspect
from tenferro_jax.errors import ArtifactError
from tenferro_jax.io import Limits

from ..helpers import ends_in

SMALL = Limits(file_bytes=5000)
X = np.ones(3, np.float32)
GRAPH = tj.to_wire(tj.trace(jnp.tanh, X))
PROGRAM = tj.export(jnp.tanh, X).to_bytes()


@pytest.fixture
def few_bytes(monkeypatch):
    """The command with other limits, so that a test needs no large file."""
    monkeypatch.setattr(inspect, "USUAL_LIMITS", SMALL)


def command(capsys, *arguments):
    """The code, output and errors of a command."""
    code = main([*map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def piped(tmp_path, content):
    """A pipe into which a thread writes, until nobody reads it."""
    path = tmp_path / f"pipe{len(os.listdir(tmp_path))}"
    os.mkfifo(path)

    def write():
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(content)

    threading.Thread(target=write, daemon=True).start()
    return path


def test_a_pipe_is_read_to_its_end(tmp_path, capsys):
    many = tj.trace(lambda x: x + np.arange(300_000.0), np.zeros(300_000))
    assert tj.load_graph(piped(tmp_path, tj.to_wire(many))) == many
    assert tj.load_graph(piped(tmp_path, GRAPH)) == tj.trace(jnp.tanh, X)
    program = tj.load_exported(piped(tmp_path, PROGRAM))
    np.testing.assert_allclose(program.call(X), np.tanh(X), rtol=1e-6)
    for content, kind in ((GRAPH, "graph"), (PROGRAM, "exported program")):
        code, out, _ = command(capsys, "inspect", piped(tmp_path, content))
        facts = json.loads(out)
        assert (code, facts["kind"], facts["bytes"]) == (0, kind, len(content))


@pytest.mark.parametrize("endless", ["/dev/zero", "a pipe", "a large file"])
def test_no_door_reads_more_than_the_limits(endless, tmp_path, capsys, few_bytes):
    def place():
        if endless == "a pipe":
            return piped(tmp_path, bytes(10**6))
        if endless == "a large file":
            with open(tmp_path / "large", "wb") as file:
                file.truncate(3 * 2**30)
            return tmp_path / "large"
        return endless

    tracemalloc.start()
    try:
        for load in (tj.load_graph, tj.load_exported):
            ends_in(
                lambda load=load: load(place(), limits=SMALL), ArtifactError, "file_bytes; needed"
            )
        code, out, error = command(capsys, "inspect", place())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (code, out) == (2, "")
    assert "for file_bytes; needed at most 5000" in error
    assert most < 20 * 2**20


def test_bytes_are_measured_before_they_are_copied():
    content = np.zeros(10**8, np.uint8)
    tracemalloc.start()
    try:
        for load in (tj.from_wire, tj.load_exported):
            ends_in(
                lambda load=load: load(memoryview(content), limits=SMALL),
                ArtifactError,
                "100000000 for file_bytes; needed at most 5000",
            )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10**7
