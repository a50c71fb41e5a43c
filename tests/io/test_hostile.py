"""Bytes of unknown origin are refused in words or are what a writer writes; none ends the process,
hangs it or takes its memory.
"""

import json
import os
import pathlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import from_wire, to_wire
from tenferro_jax.errors import ArtifactError
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.io import Limits
from tenferro_jax.ops.analytic import Sin
from tenferro_jax.shapes import TensorMeta

from ..helpers import ends_in
from .graph_bank import families_known
from .hostile import GOLDEN, doubling, ended, small
from .test_wire import constants

ROOT = pathlib.Path(__file__).parents[2]
GOOD = {
    "constraints: unused, used",
    "op: long exponent",
    """retur: '["return",[1],0,[["a","b"]],[]]'""",
    "graphs in graphs",
    "tensor",
}
"""Odd, and yet what a writer writes."""


def ends(suite):
    """(case, how it ended) of every case of a suite, read in a process of its own."""
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.io.hostile", suite]
    child = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    lines = child.stdout.splitlines()
    assert child.returncode == 0, (
        f"ended by {child.returncode} in the case {lines[-1:]}\n{child.stderr[-2000:]}"
    )
    assert lines.pop() == '"done"'
    decoder = json.JSONDecoder()
    for line in lines:
        case, place = decoder.raw_decode(line)
        yield case, json.loads(line[place:])


def read_of(found):
    """The cases that were read, of (case, how it ended); all others ended in words."""
    assert len(found) > 200
    assert len({case for case, _ in found}) == len(found)
    kinds = {
        name
        for name, value in vars(tj.errors).items()
        if isinstance(value, type) and issubclass(value, tj.TenferroError)
    }
    read = {case for case, end in found if end == "read"}
    assert [(case, end) for case, end in found if end != "read" and end not in kinds] == []
    return read


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["hostile", "forged"])
def test_every_case_is_refused_in_words_or_is_what_a_writer_writes(suite):
    read = read_of(list(ends(suite)))
    if suite == "hostile":  # the digest of a forged file fits: it may be another graph
        assert read == GOOD


def test_every_length_and_every_bit_of_a_file():
    content = min((path.read_bytes() for path in GOLDEN), key=len)
    for length in range(len(content)):
        ends_in(lambda: from_wire(content[:length]), ArtifactError)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        ends_in(lambda: from_wire(flipped), ArtifactError)


def test_small_files_are_refused_in_words_or_are_what_a_writer_writes(monkeypatch):
    """In this process, so without limits of memory and time."""
    families_known(monkeypatch)
    cases = [(name, content) for name, content in small() if len(content) < 20_000]
    assert read_of([(name, ended(name, content)) for name, content in cases]) == GOOD


def test_the_nodes_of_a_body_count_each_time_it_is_used():
    content = doubling(3)  # 2 * (1 + 2 * (1 + 2 * (1 + 1))) nodes
    assert to_wire(from_wire(content, limits=Limits(nodes=22))) == content
    ends_in(lambda: from_wire(content, limits=Limits(nodes=21)), ArtifactError, "22 for nodes")


def peak(content):
    """The most memory that reading takes beside the bytes themselves."""
    from_wire(content)  # what is made once
    tracemalloc.start()
    graph = from_wire(content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert to_wire(graph) == content
    return most


def test_reading_tensors_takes_no_more_than_four_times_their_bytes():
    rng = np.random.default_rng(0)
    one = to_wire(constants(rng.normal(size=2_000_000)))
    builder = GraphBuilder()
    many = to_wire(builder.build([builder.constant(rng.normal(size=100_000)) for _ in range(20)]))
    for content in (one, many):
        assert len(content) > 15_000_000
        assert peak(content) < 3 * len(content) + 2_000_000  # and the bytes themselves: four times


@pytest.mark.slow
def test_reading_nodes_takes_a_few_kilobytes_each():
    builder = GraphBuilder()
    value = builder.input(TensorMeta(np.dtype("float64"), (3,)))
    for _ in range(5_000):
        (value,) = builder.add(Sin(), value)
    content = to_wire(builder.build([value]))
    assert peak(content) < 3 * len(content) + 5_000 * 1024 + 2_000_000
