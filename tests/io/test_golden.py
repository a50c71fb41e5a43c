"""Golden files, written once: graph bytes of every version of the format are read forever; what
other versions of JAX exported is read here, or refused with both versions named.
"""

import hashlib
import pathlib
import re
import sys

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import tenferro_jax as tj
from tenferro_jax import load_graph, to_wire
from tenferro_jax.errors import Unsupported
from tenferro_jax.extension import registry
from tenferro_jax.extension.routes import current_platform
from tenferro_jax.ops.vocabulary import VOCABULARY

from .. import golden_graphs
from ..extension_ops import ALL_RUNTIMES
from ..golden.exported import write
from ..helpers import close, ends_in
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


@pytest.mark.few(6)
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
    close(
        *zip(map(golden_graphs.plain, jax.jit(graph)(*given)), wanted, strict=True),
        rtol=1e-7 if exact else 1e-6,
        atol=1e-11,
    )


def test_every_op_and_every_family_is_in_a_golden_file():
    records = [record for path in FILES for record in opened(path.read_bytes())[0]]
    ops, families = (
        {name for kind, name, *_ in records if kind == wanted} for wanted in ("op", "extension")
    )
    assert len(ops) == 155  # a new op needs no new version, and so no new file
    assert ops <= {op.__name__ for op in VOCABULARY}
    ours = {
        x.family_id
        for name, module in [*sys.modules.items()]
        if name.startswith("ext_tropical.")
        for x in vars(module).values()
        if isinstance(x, type) and isinstance(getattr(x, "family_id", None), str)
    }
    assert ours <= registry._factories.keys() <= families


# --- exported programs ----------------------------------------------------------------------------


FOLDER = pathlib.Path(write.__file__).parent
PROGRAMS = sorted(FOLDER.glob("*.bin"))
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
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in PROGRAMS
    } == DIGESTS
    assert {re.search(r"jax([\d.]+?)(?:-|\.bin)", path.name)[1] for path in PROGRAMS} == set(
        WRITERS
    )


@pytest.mark.few(5)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
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
    if current_platform() not in program.manifest.platforms:
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
