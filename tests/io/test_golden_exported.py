"""Files that other versions of JAX wrote: read here, or refused with both versions named."""

import hashlib
import pathlib
import re

import chex
import jax
import jax.export
import numpy as np
import pytest
from jax.test_util import check_grads

import tenferro_jax as tj
from tenferro_jax.errors import Unsupported
from tenferro_jax.extension.routes import current_platform

from ..golden.exported import write
from ..helpers import ends_in

FOLDER = pathlib.Path(write.__file__).parent
FILES = sorted(FOLDER.glob("*.bin"))
WRITERS = ("0.10.2", "0.11.2", "0.12.0.1")
# The newest JAX that was seen to read every file; a later one may have had enough of them.
LAST_READER_OF_ALL = (0, 12, 0, 1)
DIGESTS = {
    "cholesky-jax0.10.2.bin": "abc43f5476993125",
    "cholesky-jax0.11.2.bin": "8a69a2dde89bc9aa",
    "cholesky-jax0.12.0.1.bin": "5746d4aa5dda9c5f",
    "cumulative-jax0.10.2.bin": "e0138bcd77b8d843",
    "cumulative-jax0.11.2.bin": "e11606e7ca570928",
    "cumulative-jax0.12.0.1.bin": "3beb705d0fa3ddb4",
    "layer-jax0.10.2-week4.bin": "3c207c5f30949b64",
    "layer-jax0.10.2.bin": "47a50a5459f226df",
    "layer-jax0.11.2-week4.bin": "263482f59b63bf88",
    "layer-jax0.11.2.bin": "50c5a80b9a9215c5",
    "layer-jax0.12.0.1-week4.bin": "f3633c4bbeed68ca",
    "layer-jax0.12.0.1.bin": "81f14fa1b9228ca1",
    "loop-jax0.10.2.bin": "6f2f11ac520cb5da",
    "loop-jax0.11.2.bin": "b7ebc803ab22046c",
    "loop-jax0.12.0.1.bin": "cd06171d22c25372",
    "wide-jax0.10.2.bin": "6c3a21e4559b05b2",
    "wide-jax0.11.2.bin": "2b6c2ba2f2114a82",
    "wide-jax0.12.0.1.bin": "bb8f7345e36c587e",
}


def tropical(x, w):
    return (x[:, :, None] + w[None]).max(1)


def judge(name, args):
    """What a program gives, by NumPy."""
    if name == "layer":
        params, x = args
        y = tropical(x, params["w"])
        return {"y": y + params["b"], "best": y.max()}
    if name == "loop":
        carry, seen = np.zeros(2, np.float32), []
        for row in args[0]:
            seen.append(carry)
            carry = carry * np.float32(0.5) + row
        return carry, np.stack(seen)
    if name == "cholesky":
        return np.linalg.cholesky(args[0])
    if name == "cumulative":
        return np.cumsum(args[0], 0), np.cumsum(args[0], 1), np.cumprod(args[0], 0)
    return args[0] @ args[0], args[0].astype(np.int64)


def test_golden_files_are_those_that_were_written():
    assert {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in FILES
    } == DIGESTS
    assert {re.search(r"jax([\d.]+?)(?:-|\.bin)", path.name)[1] for path in FILES} == set(WRITERS)


@pytest.mark.few(5)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_runs_as_when_it_was_written_or_names_both_versions(path):
    name, writer, week4 = re.fullmatch(r"(\w+)-jax([\d.]+?)(-week4)?\.bin", path.name).groups()
    here, there = (tuple(map(int, version.split("."))) for version in (jax.__version__, writer))
    refused = refusal(path)
    if week4 and here < (0, 11) <= there:
        assert refused is not None
    elif here <= LAST_READER_OF_ALL:
        assert refused is None, refused
    if refused is not None:
        assert f"JAX {writer} wrote" in str(refused)
        assert f"JAX {jax.__version__}, the one in this process" in str(refused)
        return
    program = tj.load_exported(path)
    args = write.inputs(name)
    if current_platform() not in program.platforms:
        ends_in(lambda: program.call(*args), Unsupported, "exported for platforms .*is used on")
        return
    want, got = judge(name, args), program.call(*args)
    chex.assert_trees_all_equal_shapes_and_dtypes(got, want)
    chex.assert_trees_all_close(got, want, rtol=1e-6)
    assert program.manifest.jax == writer
    assert (name == "layer") == (program.families == ("tenferro-ext-tropical.einsum.v1",))
    if program.vjp_order:  # at other numbers, of which no two are equal
        given = jax.tree.map(
            lambda a: np.random.default_rng(1).normal(size=a.shape).astype(a.dtype), args
        )
        check_grads(program.call, given, 1, ["rev"], atol=1e-2, rtol=1e-2)
    jax.export.deserialize(bytearray(path.read_bytes())).call(*args)


def refusal(path):
    """What the loader says of a file that it cannot read, or None."""
    try:
        tj.load_exported(path)
    except Unsupported as error:
        return error
    return None


@pytest.mark.slow
def test_the_writer_refuses_to_overwrite(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FOLDER", tmp_path)
    write.main()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before) == 6
    ends_in(write.main, SystemExit, "golden files are never written again")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
