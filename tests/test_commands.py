"""python -m tenferro_jax inspect, run, explain: what they say of files, and their exit codes."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ET

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ext_tropical
import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax.cli import main
from tenferro_jax.extension import registry

from .extension_ops import HostCumulate
from .io.plain_format import sealed

ROOT = pathlib.Path(__file__).parent.parent
EINSUM = "tenferro-ext-tropical.einsum.v1"
FACTORY = ("--register", "ext_tropical:register")
W = np.float32([[0, 1], [2, 3]])
X = np.arange(6, dtype=np.float32).reshape(3, 2)
B = np.array([0.5, 2], ml_dtypes.bfloat16)


def layer(tree, b):
    y = tropical_einsum("bi,io->bo", tree["x"], jnp.asarray(W))
    return {"y": y, "s": y.sum() + b.astype(jnp.float32)[0]}


Y = (X[:, :, None] + W).max(1)
S = Y.sum() + np.float32(0.5)
WANT = {"out['y']": Y, "out['s']": S}


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_factories", {})
    monkeypatch.setattr(registry, "GROUP", "nobody")  # whatever is installed where the tests run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (n,) = jax.export.symbolic_shape("n")
    graph = tj.trace(
        layer,
        {"x": jax.ShapeDtypeStruct((n, 2), jnp.float32)},
        jax.ShapeDtypeStruct((2,), jnp.bfloat16),
    )
    tj.save_graph(graph, folder / "layer.graph")
    tj.export(graph, vjp_order=1).save(folder / "layer.bin")
    tj.export(lambda x: jnp.sort(x) + 1, np.zeros(3, np.float32), platforms=("tpu",)).save(
        folder / "far.bin"
    )
    damaged = bytearray((folder / "far.bin").read_bytes())
    damaged[-1] ^= 1
    (folder / "damaged.bin").write_bytes(damaged)
    np.save(folder / "x.npy", X)
    np.save(folder / "b.npy", B)
    np.savez(folder / "both.npz", **{"args[0]['x']": X, "args[1]": B, "args[1].dtype": "bfloat16"})
    np.save(folder / "f8.npy", B.astype(ml_dtypes.float8_e5m2))
    tj.export(lambda x: x, B).save(folder / "id.bin")
    (folder / "cut.npz").write_bytes((folder / "both.npz").read_bytes()[:100])
    (n,) = jax.export.symbolic_shape("n", constraints=["n >= 2"])
    tj.save_graph(
        tj.trace(lambda x: x[::2], jax.ShapeDtypeStruct((n,), np.float32)), folder / "half.graph"
    )
    tj.save_graph(tj.trace(jax.random.key, np.int32(0)), folder / "key.graph")
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    return folder


def run(folder, *arguments, monkeypatch):
    monkeypatch.chdir(folder)
    return main(arguments)


@pytest.mark.parametrize(
    ("file", "kind"), [("layer.graph", "graph"), ("layer.bin", "exported program")]
)
def test_inspect_as_json_tells_what_is_in_the_file(file, kind, folder, capsys, monkeypatch):
    assert run(folder, "inspect", file, "--json", monkeypatch=monkeypatch) == 0
    facts = json.loads(capsys.readouterr().out)
    content = (folder / file).read_bytes()
    assert (facts["kind"], facts["bytes"], facts["sha256"]) == (
        kind,
        len(content),
        hashlib.sha256(content).hexdigest(),
    )
    assert facts["inputs"] == {"args[0]['x']": "float32[n,2]", "args[1]": "bfloat16[2]"}
    assert facts["outputs"] == {"out['s']": "float32[]", "out['y']": "float32[n,2]"}
    (family,) = facts["extensions"]
    assert (family["family_id"], family["version"], family["here"]) == (EINSUM, 1, "not registered")
    assert json.loads(family["payloads"][0])["equation"] == "bi,io->bo"
    assert run(folder, "inspect", file, "--json", *FACTORY, monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["extensions"][0]["here"] == "registered"
    if kind == "graph":
        graph = tj.load_graph(folder / file)
        assert sum(facts["ops"].values()) == len(graph.nodes)
        assert facts["ops"][EINSUM] == 1
        assert facts["version"] == "format 1"
    else:
        assert (facts["platforms"], facts["vjp_order"]) == (["cpu", "cuda", "tpu"], 1)
        assert facts["version"].startswith(f"JAX {jax.__version__}")
        text = tj.load_exported(folder / file).stablehlo()
        for op in ("stablehlo.reduce", "stablehlo.add"):  # counted in the text that JAX prints
            assert facts["ops"][op] == text.count(f"= {op}(") + text.count(f"= {op} ") + (
                text.count("applies stablehlo.add") if op.endswith("add") else 0
            )


@pytest.mark.parametrize("file", ["layer.graph", "layer.bin"])
def test_inspect_prints_and_draws(file, folder, capsys, tmp_path, monkeypatch):
    assert (
        run(folder, "inspect", file, "--graph", str(tmp_path / "out.svg"), monkeypatch=monkeypatch)
        == 0
    )
    out = capsys.readouterr().out
    for part in (
        file,
        "args[0]['x']  float32[n,2]",
        "out['y']  float32[n,2]",
        f"{EINSUM}  ",
        "not registered here",
        '"equation":"bi,io->bo"',
    ):
        assert part in out
    names = {
        text.text
        for text in ET.parse(tmp_path / "out.svg").iter("{http://www.w3.org/2000/svg}text")
    }
    assert EINSUM in names


@pytest.mark.parametrize(
    "inputs",
    [
        ("x.npy", "bfloat16:b.npy"),
        ("both.npz",),
        ("args[1]=bfloat16:b.npy", "x.npy"),
        ("args[1]=bfloat16:b.npy", "args[0]['x']=float32:x.npy"),
    ],
)
@pytest.mark.parametrize("file", ["layer.graph", "layer.bin"])
def test_run_writes_what_numpy_gives(file, inputs, folder, capsys, tmp_path, monkeypatch):
    given = [word for path in inputs for word in ("--input", path)]
    assert (
        run(
            folder,
            "run",
            file,
            *given,
            "-o",
            str(tmp_path / "out.npz"),
            *FACTORY,
            monkeypatch=monkeypatch,
        )
        == 0
    )
    done = capsys.readouterr()
    with np.load(tmp_path / "out.npz") as results:
        assert set(results) == set(WANT)
        for name, want in WANT.items():
            np.testing.assert_array_equal(results[name], want)
    assert f"out['s']  float32[] = {S}" in done.out
    assert [
        line.split(":")[0].strip() for line in done.err.splitlines() if not line.startswith("  ")
    ][:3] == ["read", "compile", "run"]


@pytest.mark.parametrize(
    "name", ["bfloat16", "int4", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2"]
)
def test_results_keep_the_names_of_their_dtypes(name, capsys, tmp_path, monkeypatch):
    value = np.array([0, 1, 0.5, 1.5]).astype(getattr(ml_dtypes, name))
    tj.save_graph(
        tj.trace(lambda tree: tree, {"dtype": value, "y": np.float32([2])}), tmp_path / "id.graph"
    )
    np.save(tmp_path / "y.npy", np.float32([2]))
    np.save(tmp_path / "raw.npy", value.view(f"V{value.itemsize}"))
    first = ("--input", f"args[0]['dtype']={name}:raw.npy", "--input", "y.npy", "-o", "first.npz")
    assert run(tmp_path, "run", "id.graph", *first, monkeypatch=monkeypatch) == 0
    with np.load(tmp_path / "first.npz") as results:
        assert str(results["out['dtype'].dtype"]) == name
        np.testing.assert_array_equal(results["out['dtype']"].view(value.dtype), value)
        assert set(results) == {"out['dtype']", "out['dtype'].dtype", "out['y']"}
        np.savez(
            tmp_path / "again.npz",
            **{key.replace("out", "args[0]"): results[key] for key in results},
        )
    assert (
        run(
            tmp_path,
            "run",
            "id.graph",
            "--input",
            "again.npz",
            "-o",
            "second.npz",
            monkeypatch=monkeypatch,
        )
        == 0
    )
    with np.load(tmp_path / "first.npz") as one, np.load(tmp_path / "second.npz") as two:
        assert {key: one[key].tobytes() for key in one} == {key: two[key].tobytes() for key in two}


@pytest.mark.cpu
def test_explain_says_how_a_file_runs_here(folder, capsys, monkeypatch):
    assert run(folder, "explain", "layer.bin", "--size", "n=7", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert out.startswith("at n=7\nExportedProgram(")
    assert "runs here, on cpu" in out
    assert f"memory: {7 * 2 * 4 + 2 * 2:,} bytes of arguments" in out
    assert (
        run(folder, "explain", "layer.graph", "--size", "n=7", *FACTORY, monkeypatch=monkeypatch)
        == 0
    )
    out = capsys.readouterr().out
    assert "1 segment" in out
    assert f"{EINSUM} on cpu: " in out
    assert f"memory: {7 * 2 * 4 + 2 * 2:,} bytes of arguments" in out
    assert run(folder, "explain", "far.bin", monkeypatch=monkeypatch) == 1
    assert "does not run here: it is for tpu, and JAX runs on cpu" in capsys.readouterr().out


@pytest.mark.cpu
def test_explain_says_how_an_op_runs_on_each_platform(capsys):
    ext_tropical.register()
    assert main(["explain", "ext_tropical:TropicalEinsum"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{EINSUM} TropicalEinsum(")
    assert [line.split()[0] for line in lines[2:]] == [
        "here",
        "cpu",
        "cuda",
        "rocm",
        "tpu",
        "exported",
    ]
    assert main(["explain", "tests.extension_ops:HostCumulate", "--input", "float64[3]"]) == 0
    out = capsys.readouterr().out
    assert "here      on cpu: host" in out
    assert "in an export" in next(
        line for line in out.splitlines() if line.startswith("  exported")
    )


def test_explain_takes_example_inputs_that_are_lists(capsys, monkeypatch):
    monkeypatch.setattr(HostCumulate, "example_inputs", lambda self: (([0.5, 2.0],),))
    assert main(["explain", "tests.extension_ops:HostCumulate"]) == 0
    assert "(float64[2]) -> (float64[2])" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nowhere.bin"), "No such file"),
        (("inspect", "x.npy"), "no footer of this format"),
        (("inspect", "damaged.bin"), "trusted=True"),
        (("inspect", "."), "Is a directory"),
        (("run", "layer.graph", "--input", "both.npz"), f"{EINSUM}: not registered"),
        (("run", "layer.graph", "--input", "both.npz"), "--register ext_tropical:register"),
        (("run", "layer.bin", "--input", "x.npy"), "nothing for args[1]"),
        (
            (
                "run",
                "layer.bin",
                "--input",
                "x.npy",
                "--input",
                "bfloat16:b.npy",
                "--input",
                "x.npy",
            ),
            "one more",
        ),
        (
            ("run", "layer.bin", "--input", "z=x.npy", "--input", "both.npz"),
            "given z; needed args[0]['x'] float32[n,2]",
        ),
        (
            ("run", "layer.bin", "--input", "bfloat16:b.npy", "--input", "x.npy"),
            "given bfloat16[2]; needed float32[n,2]",
        ),
        (("run", "layer.bin", "--input", "x.npy", "--input", "b.npy"), "write bfloat16:x.npy"),
        (("run", "layer.bin", "--input", "x.npy", "--input", "int8:b.npy"), "named int8"),
        (("run", "layer.bin", "--input", "float64:x.npy"), "float32, named float64"),
        (("run", "layer.bin", "--input", "x.npy", "--input", "int16:b.npy"), "bfloat16"),
        (("run", "layer.bin", "--input", "bfloat16:both.npz"), "a dtype only for a single .npy"),
        (("run", "layer.bin", "--input", "f8.npy"), "numpy.uint8"),
        (
            ("run", "layer.bin", "--input", "both.npz", "-o", "both.npz"),
            "both.npz, which is an input file",
        ),
        (("run", "id.bin", "--input", "bfloat16:b.npy", "-o", "out.npy"), "out.npy for bfloat16"),
        (("run", "layer.bin", "--input", "objects.npy"), "needed .npy or .npz of numbers"),
        (("run", "layer.bin", "--input", "layer.bin"), "needed .npy or .npz of numbers"),
        (("run", "layer.bin", "--input", "both.npz", "-o", "out.npy"), "out.npy for 2 results"),
        (("run", "layer.bin", "--input", "both.npz", "-o", "out.csv"), "out.csv for 2 results"),
        (("run", "far.bin", "--input", "x.npy"), "needed float32[3]"),
        (("explain", "nowhere.bin"), "an existing file, or package.module:Op"),
        (("explain", "layer.bin", "--size", "m=2"), "given m; needed one of n"),
        (("explain", "layer.bin", "--size", "n=0"), "symbol n: given size 0; needed 1 or more"),
        (
            ("explain", "layer.graph", "--size", "n=0", *FACTORY),
            "symbol n: given size 0; needed 1 or more",
        ),
        (
            ("explain", "layer.bin", "--size", "n"),
            "needed a name and an int of up to 9 digits, such as n=32",
        ),
        (("explain", "half.graph"), "given n = 1; needed n >= 2, a constraint of the symbols"),
        (
            ("run", "layer.bin", "--input", "both.npz", "--input", "args[1]=bfloat16:b.npy"),
            "args[1] twice; needed one array for each input",
        ),
        (("run", "layer.bin", "--input", "both.npz", "-o", "out.npz/"), "out.npz/ for 2 results"),
        (
            ("run", "id.bin", "--input", "bfloat16:b.npy", "-o", "nowhere/out.npz"),
            "needed a file in an existing folder",
        ),
        (("run", "id.bin", "--input", "cut.npz"), "cut.npz: File is not a zip file"),
        (
            ("inspect", "layer.graph", "--graph", "nowhere/out.svg"),
            "--graph: given nowhere/out.svg; needed a file in an existing folder",
        ),
        (
            ("inspect", "layer.graph", "--graph", "x.npy"),
            "--graph: given x.npy; needed a name that ends in .svg",
        ),
        (
            ("inspect", "layer.bin", "--graph", "picture"),
            "--graph: given picture; needed a name that ends in .svg",
        ),
        (
            ("explain", "tests.extension_ops:HostCumulate", "--size", "n=3"),
            "given n=3 for tests.extension_ops:HostCumulate; needed --size for",
        ),
        (
            ("explain", "layer.bin", "--input", "float64[3]"),
            "given float64[3] for layer.bin; needed --size for a file",
        ),
        (
            ("explain", "layer.bin", "--runtimes", "tests.extension_ops:RUNTIMES"),
            "RUNTIMES for layer.bin; needed --size for a file",
        ),
        (("explain", "tests.extension_ops:Bilinear"), "Pass --input for each input"),
        (
            ("inspect", "layer.bin", "--register", "tests.extension_ops:RUNTIMES"),
            "needed an op class, a factory, or a function",
        ),
        (("inspect", "layer.bin", "--register", "nowhere:f"), "No module named 'nowhere'"),
    ],
)
def test_commands_that_cannot_be_carried_out(arguments, message, folder, capsys, monkeypatch):
    assert run(folder, *arguments, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    np.testing.assert_array_equal(np.load(folder / "x.npy"), X)


@pytest.mark.parametrize("alias", ["itself", "./itself", "symbolic", "hard"])
@pytest.mark.parametrize(
    ("source", "itself", "words", "option"),
    [
        ("layer.graph", "f.graph", ("inspect", "{itself}", "--graph", "{alias}"), "--graph"),
        ("layer.bin", "f.bin", ("inspect", "{itself}", "--graph", "{alias}"), "--graph"),
        (
            "layer.bin",
            "n=f.npz",
            ("run", "{itself}", "--input", "both.npz", "-o", "{alias}"),
            "--output",
        ),
        (
            "both.npz",
            "in.npz",
            ("run", "layer.bin", "--input", "{itself}", "-o", "{alias}"),
            "--output",
        ),
        (
            "b.npy",
            "b.npy",
            ("run", "id.bin", "--input", "args[0]=bfloat16:{itself}", "-o", "{alias}"),
            "--output",
        ),
    ],
)
def test_no_command_writes_over_what_it_reads(
    source, itself, words, option, alias, folder, tmp_path, capsys, monkeypatch
):
    for name in {"layer.bin", "id.bin", "both.npz"} - {itself}:
        (tmp_path / name).symlink_to(folder / name)
    content = (folder / source).read_bytes()
    (tmp_path / itself).write_bytes(content)
    ending = pathlib.Path(itself).suffix
    names = {
        "itself": itself,
        "./itself": f"../{tmp_path.name}/{itself}",
        "symbolic": f"link{ending}",
        "hard": f"other{ending}",
    }
    (tmp_path / names["symbolic"]).symlink_to(itself)
    (tmp_path / names["hard"]).hardlink_to(tmp_path / itself)
    monkeypatch.setattr(
        "tenferro_jax.command.run.is_named_by_numpy", lambda dtype: True
    )  # a later refusal would hide this one
    typed = [word.format(itself=itself, alias=names[alias]) for word in words]
    assert run(tmp_path, *typed, monkeypatch=monkeypatch) == 2
    said = f"error: {option}: given {names[alias]}, which is an input file"
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)
    assert (tmp_path / itself).read_bytes() == content
    assert (tmp_path / names[alias]).read_bytes() == content


def test_text_of_a_file_does_not_steer_the_terminal(tmp_path, capsys, monkeypatch):
    payload = "\x1b[2J\u202e\nkind  forged\u2028\x85\r"
    lines = [
        '["type","float32",[2]]',
        json.dumps(["extension", "my-package.gone.v1", payload, [], 1], separators=(",", ":")),
        '["graph",[0],["tuple",0]]',
    ]
    lines += ['["node",0,[0],[0]]', '["return",[1],0,[],[]]', ""]
    (tmp_path / "odd.graph").write_bytes(sealed("\n".join(lines)))
    assert run(tmp_path, "inspect", "odd.graph", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert r"\x1b[2J\u202e\nkind  forged\u2028\x85\r" in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert run(tmp_path, "inspect", "\x1b[2J\u202e", monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_constraints_of_sizes_are_shown(folder, capsys, monkeypatch):
    assert run(folder, "inspect", "half.graph", "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["constraints"] == ["n >= 2"]


def test_a_random_key_comes_out_as_its_data(folder, capsys, monkeypatch):
    np.save(folder / "seven.npy", np.int32(7))
    assert (
        run(
            folder,
            "run",
            "key.graph",
            "--input",
            "seven.npy",
            "-o",
            "key.npy",
            monkeypatch=monkeypatch,
        )
        == 0
    )
    np.testing.assert_array_equal(
        np.load(folder / "key.npy"), jax.random.key_data(jax.random.key(7))
    )


def test_a_damaged_file_is_read_where_it_is_trusted(folder, capsys, monkeypatch):
    assert run(folder, "inspect", "damaged.bin", "--trusted", monkeypatch=monkeypatch) == 0
    assert "JAX unknown" in capsys.readouterr().out


@pytest.mark.slow
def test_as_a_user_types_it(folder):
    """Another process in another directory: a file made here gives the same there."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def typed(*words):
        command = [sys.executable, "-m", "tenferro_jax", *words]
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    done = typed("run", "layer.bin", "--input", "both.npz", "-o", "typed.npz")
    assert (done.returncode, done.stdout) == (
        0,
        f"out['s']  float32[] = {S}\nout['y']  float32[3,2]\n",
    )
    with np.load(folder / "typed.npz") as results:
        np.testing.assert_array_equal(results["out['y']"], Y)
    done = typed("inspect", "damaged.bin")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: exported program damaged.bin: given no footer")


def test_doctor_tells_of_64_bit_types_and_packages(capsys, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "64-bit types: on by JAX_ENABLE_X64" in out
    assert "flatbuffers: " in out
    monkeypatch.delenv("JAX_ENABLE_X64")
    assert main(["doctor"]) == 0
    assert "64-bit types: off by the default" in capsys.readouterr().out
