"""Bytes of unknown origin are refused in words or are what a writer writes; none ends the process,
hangs it or takes its memory.
"""

import dataclasses
import json
import sys
import tracemalloc

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import from_wire, to_wire
from tenferro_jax.errors import ArtifactError, InvalidConfig, Unsupported
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.io import Limits

from ..helpers import each_ends_in, ends_in, python
from ..house import ROOT
from . import hostile_exported
from .graph_bank import families_known
from .hostile import GOLDEN, doubling, ended, small
from .test_wire import constants

# Odd, and yet what a writer writes.
GOOD = {
    "type: large product",
    "type: rank",
    "graph: " + repr(('["graph",[0],["tuple",' + '["tuple",' * 70)[:70]),
    "constraints: unused, used",
    "op: long exponent",
    """retur: '["return",[1],0,[["a","b"]],[]]'""",
    "graphs in graphs",
    "tensor",
}


def ends(suite):
    """(case, how it ended) of every case of a suite, read in a process of its own."""
    lines = python("-W", "error", "-m", "tests.io.hostile", suite, JAX_ENABLE_X64="1").splitlines()
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


def test_small_files_are_refused_in_words_or_are_what_a_writer_writes(monkeypatch):
    """In this process, so without limits of memory and time."""
    families_known(monkeypatch)
    cases = [(name, content) for name, content in small().items() if len(content) < 20_000]
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


# --- exported programs ----------------------------------------------------------------------------


SMALL = tj.export(jnp.sin, np.zeros(2, np.float32), platforms=("cpu",)).to_bytes()
SMALLEST = min((path.read_bytes() for path in GOLDEN), key=len)
LARGER = (ROOT / "tests/golden/exported/layer-jax0.10.2.bin").read_bytes()


def refused(content):
    ends_in(lambda: tj.load_exported(content), ArtifactError)
    return True


@pytest.mark.parametrize(
    ("read", "content"),
    [(from_wire, SMALLEST), (tj.load_exported, SMALL)],
    ids=["graph", "program"],
)
def test_every_length_and_every_bit(read, content):
    wrong = [content[:length] for length in range(len(content))]
    wrong += [content[start:] for start in range(1, len(content))]
    wrong += [content + bytes(more) for more in (1, 8, 16, 64)]
    ends_in((lambda: read(other) for other in wrong), ArtifactError)
    flipped = bytearray(content)
    for bit in range(8 * len(content)):
        flipped[bit // 8] ^= 1 << bit % 8
        ends_in(lambda: read(bytes(flipped)), ArtifactError)
        flipped[bit // 8] ^= 1 << bit % 8


def test_the_footer_of_another_program():
    body, other = (
        jax.export.export(jax.jit(f))(np.zeros(2, np.float32)).serialize()
        for f in (jnp.sin, jnp.cos)
    )
    assert refused(bytes(other) + SMALL[len(body) :])


@pytest.fixture(scope="module")
def outcomes():
    return dict(ends("exported"))


@pytest.mark.slow
def test_files_made_to_harm(outcomes):
    assert outcomes["honest"] == "ok"
    assert outcomes.keys() == hostile_exported.cases().keys()
    assert len(outcomes) > 130
    harmless = {name for name in outcomes if "(harmless)" in name}
    assert {outcomes[name] for name in harmless} == {"ok"}
    others = outcomes.keys() - harmless - {"honest"}
    known = ("ArtifactError", "ArtifactError: limits", "Unsupported", "MalformedFamilyId")
    assert not {name: outcomes[name] for name in others if outcomes[name] not in known}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("format 2", "Unsupported"),
        ("length 9223372036854775808", "ArtifactError: limits"),
        ("payload of 32 MB", "ArtifactError: limits"),
        ("an extension that is not there", "ArtifactError"),
        ("a derivative that is not there", "ArtifactError"),
        ("body empty", "Unsupported"),
    ],
)
def test_each_is_refused_for_its_own_reason(outcomes, name, error):
    assert outcomes[name] == error


def test_limits_are_checked_before_reading(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2**40)  # no memory holds it
    each_ends_in(
        (
            lambda: tj.load_exported(path),
            ArtifactError,
            r"file_bytes; needed at most 2147483648.*limits=Limits\(file_bytes",
        ),
        (
            lambda: tj.load_exported(SMALL, limits=tj.io.Limits(file_bytes=len(SMALL) - 1)),
            ArtifactError,
            "file_bytes",
        ),
    )
    assert tj.load_exported(SMALL, limits=tj.io.Limits(file_bytes=len(SMALL))).families == ()
    each_ends_in(
        (
            lambda: tj.load_exported(SMALL, limits=tj.io.Limits(text_bytes=10)),
            ArtifactError,
            "text_bytes",
        ),
        (lambda: tj.load_exported(LARGER, limits=10), InvalidConfig, "needed Limits"),
    )


MEMORY = """
import pathlib, re, sys
import tenferro_jax as tj
small, large = sys.argv[1:]
status = pathlib.Path("/proc/self/status")  # getrusage tells of the parent process too
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1])
tj.load_exported(small)
before = peak()
tj.load_exported(large)
print((peak() - before - 2**20) / pathlib.Path(large).stat().st_size)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_memory_while_reading_is_at_most_four_times_the_file_and_a_megabyte(tmp_path):
    weights = np.random.default_rng(0).normal(size=(2048, 4096)).astype(np.float32)
    tj.export(lambda x: x @ weights, np.zeros((1, 2048), np.float32), platforms=("cpu",)).save(
        tmp_path / "large"
    )
    (tmp_path / "small").write_bytes(SMALL)
    printed = python("-c", MEMORY, tmp_path / "small", tmp_path / "large")
    assert (tmp_path / "large").stat().st_size > 2**25
    assert 1 < float(printed) <= 4


def test_content_without_a_footer():
    assert refused(bytes(jax.export.export(jax.jit(jnp.sin))(np.zeros(2)).serialize()))


def test_a_calling_convention_of_another_time_names_both_versions():
    program = tj.export(jnp.sin, np.zeros(2, np.float32))
    for convention in (1, 99):
        exported = dataclasses.replace(program.exported, calling_convention_version=convention)
        manifest = dataclasses.replace(program.manifest, jax="9.8.7")
        content = dataclasses.replace(program, exported=exported, manifest=manifest).to_bytes()
        ends_in(
            lambda: tj.load_exported(content),
            Unsupported,
            f"JAX 9.8.7 wrote .*calling convention {convention}.*JAX {jax.__version__}, the one "
            f"in this process",
        )
