"""Exported programs: identity inside, a clean consumer, damage, versions."""

import json
import subprocess
import sys
from dataclasses import dataclass

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import TropicalEinsum, TropicalEinsumFactory, min_plus, tropical_einsum
from tenferro_jax.extension import ExtensionFactory, ExtensionOp, apply
from tenferro_jax.extension import registry as registry_module

from ..extension_ops import ScaledSquare
from ..oracles import brute_force


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})


def program():
    (b,) = jax.export.symbolic_shape("b")
    fn = jax.vmap(lambda x, y: tropical_einsum("ij,jk->ik", x, y, semiring=min_plus))
    return tj.export(fn, jax.ShapeDtypeStruct((b, 2, 3), np.float64), jax.ShapeDtypeStruct((b, 3, 2), np.float64))


@pytest.mark.clause("X11.1")
def test_identity_is_kept_and_decodes_to_the_op():
    p = program()
    (extension,) = p.extensions
    assert extension["family_id"] == "tenferro-ext-tropical.einsum.v1"
    assert TropicalEinsumFactory().decode(extension["payload"]) == TropicalEinsum(min_plus, "aij,ajk->aik")
    scaled = tj.export(jax.vmap(lambda x: apply(ScaledSquare(0.1), x)[0]), np.ones((2, 3)))
    (extension,) = scaled.extensions
    assert ExtensionFactory(ScaledSquare).decode(extension["payload"]) == ScaledSquare(0.1)
    assert json.loads(extension["batching"]) == [[[0], None, None]]


def test_no_source_path_of_this_machine_is_inside(tmp_path):
    assert b"site-packages" not in program().to_bytes()
    assert b".py" not in program().to_bytes()


@pytest.mark.clause("X13.7")
def test_a_process_with_jax_alone_runs_the_file(tmp_path):
    path = tmp_path / "program.bin"
    assert program().save(path) == path.stat().st_size
    x, y = np.random.default_rng(0).normal(size=(4, 2, 3)), np.random.default_rng(1).normal(size=(4, 3, 2))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    code = """
import sys, jax, jax.export, numpy as np
jax.config.update("jax_enable_x64", True)
data = np.load("data.npz")
program = jax.export.deserialize(bytearray(open("program.bin", "rb").read()))
np.save("out.npy", program.call(data["x"], data["y"]))
assert not [m for m in sys.modules if m.startswith(("tenferro", "ext_tropical"))]
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    want = np.stack([brute_force("min_plus", "ij,jk->ik", a, b)[0] for a, b in zip(x, y)])
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), want)
    np.testing.assert_array_equal(tj.load_exported(path).call(x, y), want)


def test_damage_is_a_typed_error():
    content = program().to_bytes()
    for length in [0, 1, 10, len(content) // 2, *range(len(content) - 60, len(content))]:
        with pytest.raises(tj.ArtifactError):
            tj.load_exported(content[:length])
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(content), 300):
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.integers(8)
        with pytest.raises(tj.ArtifactError):
            tj.load_exported(bytes(flipped))
    with pytest.raises(tj.ArtifactError, match="no footer"):
        tj.load_exported(bytes(1000))


@dataclass(frozen=True)
class NextScaledSquare(ExtensionOp):
    family_id = "test-package.scaled_square.v2"


@pytest.mark.clause("X5.4", "X11.2")
def test_another_major_version_in_this_process_is_refused_and_both_are_named():
    content = tj.export(lambda x: apply(ScaledSquare(2.0), x)[0], np.ones(2)).to_bytes()
    assert tj.load_exported(content).call(np.ones(2)).tolist() == [2.0, 2.0]
    tj.extension.register_extension(ExtensionFactory(NextScaledSquare))
    with pytest.raises(tj.Unsupported, match="graph has v1, runtime has v2"):
        tj.load_exported(content)
    tj.extension.register_extension(ExtensionFactory(ScaledSquare))
    assert tj.load_exported(content).families == ("test-package.scaled_square.v1",)


@pytest.mark.clause("X11.3")
def test_the_ops_of_a_program_are_read_back_by_their_factories():
    content = tj.export(lambda x: apply(ScaledSquare(0.5), apply(ScaledSquare(2.0), x)[0])[0], np.ones(2)).to_bytes()
    program = tj.load_exported(content)  # needs no factory
    assert program.call(np.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(tj.Unsupported, match=r"test-package\.scaled_square\.v1: not registered"):
        program.ops()
    tj.extension.register_extension(ExtensionFactory(ScaledSquare))
    assert program.ops() == (ScaledSquare(2.0), ScaledSquare(0.5))


def test_repr_says_what_it_is():
    assert repr(program()) == (
        "ExportedProgram((float64[b,2,3], float64[b,3,2]) -> (float64[b,2,2]); platforms cpu, cuda, tpu; "
        "extensions tenferro-ext-tropical.einsum.v1)"
    )


def test_graph_and_function_export_alike():
    x = np.linspace(0, 1, 4)
    fn = lambda x: {"y": jnp.tanh(x)}  # noqa: E731
    for p in (tj.export(fn, x), tj.export(tj.trace(fn, x))):
        np.testing.assert_allclose(p.call(x)["y"], np.tanh(x), rtol=1e-14)
        assert p.families == ()


def test_every_byte_after_the_program_is_covered_by_the_digest():
    content = tj.export(jnp.sin, np.ones(2)).to_bytes()
    start = content.index(b'{"body_bytes"')
    for position in range(start, len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 0x80
        with pytest.raises(tj.ArtifactError):
            tj.load_exported(flipped)
    assert tj.load_exported(memoryview(content)).call(np.ones(2)).shape == (2,)


@pytest.mark.parametrize("platforms", ["cpu", (), ("foo",), ("gpu",), ("cpu", "cpu")], ids=str)
def test_unknown_platforms(platforms):
    with pytest.raises(tj.InvalidConfig, match="needed a tuple, each once, of cpu, cuda, rocm, tpu"):
        tj.export(jnp.sin, np.ones(2), platforms=platforms)


def test_other_wrong_arguments():
    with pytest.raises(tj.InvalidConfig, match="WEEK_12"):
        tj.export(jnp.sin, np.ones(2), compatibility="FOO")
    with pytest.raises(tj.ArityError, match="a graph and specs"):
        tj.export(tj.trace(jnp.sin, np.ones(2)), np.ones(2))
    with pytest.raises(tj.InvalidConfig, match="routes"):
        tj.routes(jnp.sin, np.ones(2), platform="gpu")
    with pytest.raises(tj.InvalidConfig, match="a path or bytes"):
        tj.load_exported(None)
    narrow = tj.export(lambda i: i * 2, jax.ShapeDtypeStruct((), np.int32))
    with jax.enable_x64(False), pytest.raises(tj.X64Error):
        narrow.call(np.int64(2**40))


def test_an_exported_program_says_what_is_wrong_with_its_arguments():
    (n,) = jax.export.symbolic_shape("n")
    program = tj.export(
        lambda x, y: x.sum(0) + y["b"], jax.ShapeDtypeStruct((n, 3), np.float64), {"b": jax.ShapeDtypeStruct((3,), np.float64)}
    )
    x, b = np.ones((2, 3)), np.ones(3)
    np.testing.assert_array_equal(program.call(x, {"b": b}), np.full(3, 3.0))
    for args, kind in [
        ((x,), tj.UnboundPlaceholder),
        ((x, {"b": b}, x), tj.UnexpectedBinding),
        ((x, {"b": np.ones(4)}), tj.PlaceholderShapeMismatch),
        ((b, {"b": b}), tj.PlaceholderRankMismatch),
        ((x.astype(np.float32), {"b": b}), tj.PlaceholderDtypeMismatch),
    ]:
        with pytest.raises(kind, match="exported program"):
            program.call(*args)
    with pytest.raises(tj.InvalidConfig, match="given None; needed a function or a Graph"):
        tj.export(None)
