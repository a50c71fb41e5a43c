"""python -m tenferro_jax: what the commands say of files and ops, and their exit codes; as a user
types them, in another directory and with a package of their own."""

import hashlib
import importlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
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
from tenferro_jax.__main__ import main
from tenferro_jax.extension import registry

from .extension_ops import HostCumulate
from .helpers import ends_in
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

PACKAGE = """
import jax, jax.numpy as jnp, numpy as np
from tenferro_jax.extension import *
from tenferro_jax.extension.registry import ExtensionFactory

class Soft(ExtensionOp):
    family_id = "outside.soft.v1"
    def lower_to_standard_ops(self, x):
        return (jax.nn.softplus(x),)
    def example_inputs(self):
        return [np.linspace(-1.0, 1.0, 4)]

class SoftRule(ExtensionAdRule):
    family_id = Soft.family_id
    def linearize(self, op, primals, outputs, tangents):
        return (jax.nn.sigmoid(primals[0]) * tangents[0],)

class Lazy(SoftRule):
    def linearize(self, op, primals, outputs, tangents):
        return (tangents[0],)

@extension_op(package="outside", name="power", version=1)
class Power(ExtensionOp):
    exponent: int
    def lower_to_standard_ops(self, x):
        return (jax.lax.integer_pow(x, self.exponent),)

register_extension(ExtensionFactory(Power, Power(3)))

@extension_op(package="outside", name="needy", version=1)
class Needy(ExtensionOp):
    exponent: int
    lower_to_standard_ops = Power.lower_to_standard_ops

RULES, WRONG = ExtensionRuleSet(SoftRule()), ExtensionRuleSet(Lazy())
RUNTIMES = ExtensionRuntimeSet(Kernel(Soft.family_id, "cpu", lambda op, x: (jnp.logaddexp(x, 0),)))
def made(): return Soft()
def oracle(x): return (np.logaddexp(x, 0),)
def raises(): raise KeyError("no op")
def leaves(): raise SystemExit(7)

class Unfinished(Soft):
    family_id = "outside.unfinished.v1"
    def example_inputs(self):
        raise SystemExit(7)

class Named(Soft):
    family_id = "outside.named.v1"
    def __repr__(self):
        return "\u65e5\u672c()"
"""


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
    (folder / "outside.py").write_text(PACKAGE)
    (folder / "leaving.py").write_text("raise SystemExit(7)")
    (folder / "importing.py").write_text("import no_such_package")
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Carries out a command in this process, holds its exit code, and gives what it printed."""
    monkeypatch.syspath_prepend(folder)

    def run(*arguments, code=0, folder=folder):
        monkeypatch.chdir(folder)
        try:
            left = main(arguments)
        except SystemExit as error:
            left = error.code
        printed = capsys.readouterr()
        assert left == code, printed
        return printed

    return run


def process(folder, *arguments, **further):
    """The command in another process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tenferro_jax", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])} | further,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def typed(folder, *arguments, **further):
    """The exit code of the command in another process, and what it printed."""
    with process(folder, *arguments, **further) as running:
        printed = running.communicate(timeout=300)
        return running.returncode, *printed


@pytest.mark.parametrize(
    ("file", "kind"), [("layer.graph", "graph"), ("layer.bin", "exported program")]
)
def test_inspect_as_json_tells_what_is_in_the_file(file, kind, folder, run):
    facts = json.loads(run("inspect", file, "--json").out)
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
    registered = json.loads(run("inspect", file, "--json", *FACTORY).out)
    assert registered["extensions"][0]["here"] == "registered"
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
def test_inspect_prints_and_draws(file, tmp_path, run):
    out = run("inspect", file, "--graph", str(tmp_path / "out.svg")).out
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
def test_run_writes_what_numpy_gives(file, inputs, tmp_path, run):
    given = [word for path in inputs for word in ("--input", path)]
    done = run("run", file, *given, "-o", str(tmp_path / "out.npz"), *FACTORY)
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
def test_results_keep_the_names_of_their_dtypes(name, tmp_path, run):
    value = np.array([0, 1, 0.5, 1.5]).astype(getattr(ml_dtypes, name))
    tj.save_graph(
        tj.trace(lambda tree: tree, {"dtype": value, "y": np.float32([2])}), tmp_path / "id.graph"
    )
    np.save(tmp_path / "y.npy", np.float32([2]))
    np.save(tmp_path / "raw.npy", value.view(f"V{value.itemsize}"))
    first = ("--input", f"args[0]['dtype']={name}:raw.npy", "--input", "y.npy", "-o", "first.npz")
    run("run", "id.graph", *first, folder=tmp_path)
    with np.load(tmp_path / "first.npz") as results:
        assert str(results["out['dtype'].dtype"]) == name
        np.testing.assert_array_equal(results["out['dtype']"].view(value.dtype), value)
        assert set(results) == {"out['dtype']", "out['dtype'].dtype", "out['y']"}
        np.savez(
            tmp_path / "again.npz",
            **{key.replace("out", "args[0]"): results[key] for key in results},
        )
    run("run", "id.graph", "--input", "again.npz", "-o", "second.npz", folder=tmp_path)
    with np.load(tmp_path / "first.npz") as one, np.load(tmp_path / "second.npz") as two:
        assert {key: one[key].tobytes() for key in one} == {key: two[key].tobytes() for key in two}


@pytest.mark.cpu
def test_explain_says_how_a_file_runs_here(run):
    out = run("explain", "layer.bin", "--size", "n=7").out
    assert out.startswith("at n=7\nExportedProgram(")
    assert "runs here, on cpu" in out
    memory = f"memory: {7 * 2 * 4 + 2 * 2:,} bytes of arguments"
    assert memory in out
    out = run("explain", "layer.graph", "--size", "n=7", *FACTORY).out
    assert all(part in out for part in ("1 segment", f"{EINSUM} on cpu: ", memory))
    out = run("explain", "far.bin", code=1).out
    assert "does not run here: it is for tpu, and JAX runs on cpu" in out


@pytest.mark.cpu
def test_explain_says_how_an_op_runs_on_each_platform(run):
    ext_tropical.register()
    lines = run("explain", "ext_tropical:TropicalEinsum").out.splitlines()
    assert lines[0].startswith(f"{EINSUM} TropicalEinsum(")
    places = ["here", "cpu", "cuda", "rocm", "tpu", "exported"]
    assert [line.split()[0] for line in lines[2:]] == places
    out = run("explain", "tests.extension_ops:HostCumulate", "--input", "float64[3]").out
    assert "here      on cpu: host" in out
    assert re.search("^  exported.*in an export", out, re.MULTILINE)


def test_explain_takes_example_inputs_that_are_lists(run, monkeypatch):
    monkeypatch.setattr(HostCumulate, "example_inputs", lambda self: (([0.5, 2.0],),))
    out = run("explain", "tests.extension_ops:HostCumulate").out
    assert "(float64[2]) -> (float64[2])" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nowhere.bin"), "No such file"),
        (("inspect", "x.npy"), "no footer of this format"),
        (("inspect", "damaged.bin"), "pass --trusted for plain bytes"),
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
        (("check", "outside"), "needed package.module:name"),
        (("check", "outside:Hard"), "module 'outside' has no attribute 'Hard'"),
        (("check", "nowhere:Soft"), "No module named 'nowhere'"),
        (("check", "outside:RULES"), "needed an extension op"),
        (("check", "tests.extension_ops:Bilinear"), "no example inputs"),
        (
            ("check", "tests.extension_ops:Bilinear", "--input", "float64[3"),
            "needed a dtype and sizes, such as float64[3,4]",
        ),
        (
            ("check", "tests.extension_ops:Bilinear", "--input", "float63[3]"),
            "needed a dtype and sizes, such as float64[3,4]",
        ),
        (
            ("check", "tests.extension_ops:Bilinear", "--input", "float64[3,4]"),
            "needed 2, one for each input",
        ),
        (
            ("check", "tests.extension_ops:Bilinear", "--rules", "tests.extension_ops:RUNTIMES"),
            "needed an ExtensionRuleSet",
        ),
        (
            ("check", "outside:Needy"),
            "needed a class or function that makes an op without arguments",
        ),
        (
            ("check", "tests.extension_ops:sine_kernel"),
            "a class or function that makes an op without arguments",
        ),
        (("check", "outside:raises"), "KeyError: 'no op'"),
        (("check", "outside:leaves"), "SystemExit: 7"),
        (
            ("check", "leaving:Op"),
            "SystemExit: 7; needed package.module:name of a module that can be imported here",
        ),
        (("check", "importing:Op"), "No module named 'no_such_package'"),
        (("check", "outside:Unfinished"), "SystemExit: 7"),
        (
            ("check", "outside:Soft", "--input", "float64[9000000000000000]"),
            "needed a dtype and sizes",
        ),
    ],
)
def test_commands_that_cannot_be_carried_out(arguments, message, folder, run):
    *before, error = run(*arguments, code=2).err.splitlines()
    assert not before or arguments[0] == "run"  # which tells its steps
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
    source, itself, words, option, alias, folder, tmp_path, run, monkeypatch
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
    command = [word.format(itself=itself, alias=names[alias]) for word in words]
    said = f"error: {option}: given {names[alias]}, which is an input file"
    assert run(*command, code=2, folder=tmp_path).err.splitlines()[-1].startswith(said)
    assert (tmp_path / itself).read_bytes() == content
    assert (tmp_path / names[alias]).read_bytes() == content


def test_text_of_a_file_does_not_steer_the_terminal(tmp_path, run):
    payload = "\x1b[2J\u202e\nkind  forged\u2028\x85\r"
    lines = [
        '["type","float32",[2]]',
        json.dumps(["extension", "my-package.gone.v1", payload, [], 1], separators=(",", ":")),
        '["graph",[0],["tuple",0]]',
    ]
    lines += ['["node",0,[0],[0]]', '["return",[1],0,[],[]]', ""]
    (tmp_path / "odd.graph").write_bytes(sealed("\n".join(lines)))
    out = run("inspect", "odd.graph", folder=tmp_path).out
    assert r"\x1b[2J\u202e\nkind  forged\u2028\x85\r" in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert run("inspect", "\x1b[2J\u202e", code=2).err.rstrip("\n").isprintable()


def test_constraints_of_sizes_are_shown(run):
    assert json.loads(run("inspect", "half.graph", "--json").out)["constraints"] == ["n >= 2"]


def test_a_random_key_comes_out_as_its_data(folder, run):
    np.save(folder / "seven.npy", np.int32(7))
    run("run", "key.graph", "--input", "seven.npy", "-o", "key.npy")
    np.testing.assert_array_equal(
        np.load(folder / "key.npy"), jax.random.key_data(jax.random.key(7))
    )


def test_a_damaged_file_is_read_where_it_is_trusted(run):
    assert "JAX unknown" in run("inspect", "damaged.bin", "--trusted").out


@pytest.mark.slow
def test_as_a_user_types_it(folder):
    """Another process in another directory: a file made here gives the same there."""
    code, out, _ = typed(folder, "run", "layer.bin", "--input", "both.npz", "-o", "typed.npz")
    assert (code, out) == (0, f"out['s']  float32[] = {S}\nout['y']  float32[3,2]\n")
    with np.load(folder / "typed.npz") as results:
        np.testing.assert_array_equal(results["out['y']"], Y)
    code, out, error = typed(folder, "inspect", "damaged.bin")
    assert (code, out) == (2, "")
    assert error.startswith("error: exported program damaged.bin: given no footer")


@pytest.mark.slow
def test_a_terminal_that_writes_ascii_alone(folder):
    code, out, error = typed(folder, "explain", "outside:Named", PYTHONIOENCODING="ascii")
    assert (code, error) == (0, "")
    assert out.startswith("outside.named.v1 ??()\n")


@pytest.mark.slow
def test_a_reader_that_leaves(folder):
    """The pipe is closed before the report comes; the exit code still tells what the check
    found.
    """
    with process(folder, "check", "outside:Soft") as running:
        running.stdout.close()
        assert (running.stderr.read(), running.wait(300)) == ("", 0)


@pytest.mark.slow
def test_an_op_that_conforms(run):
    names = {"--rules": "RULES", "--runtimes": "RUNTIMES", "--oracle": "oracle"}
    options = [word for name, value in names.items() for word in (name, f"outside:{value}")]
    out, error = run("check", "outside:Soft", *options)
    assert error == ""
    assert out.startswith("outside.soft.v1 Soft()\n")
    assert "L3  second_order         X10.14                  2  passed" in out


def test_a_class_with_a_registered_factory(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "outside", raising=False)  # which registers it
    out, error = run("check", "outside:Power", "--input", "float32[3]")
    assert error == ""
    assert out.startswith("outside.power.v1 Power(exponent=3)\n")


@pytest.mark.slow
def test_a_function_that_is_no_op(run):
    out, error = run("check", "jax.numpy:square", "--input", "float32[3]")
    assert error == ""
    assert out.startswith("jax.numpy.square\n")
    assert "12 checks: 12 passed" in out


def test_an_op_that_does_not(run):
    words = ("check", "outside:made", "--rules", "outside:WRONG", "--input", "float64[2,3]")
    out, error = run(*words, code=1)
    assert error == ""
    assert re.findall("FAILED .*: clause (.*)", out) == ["X10.6"]


def test_a_class_stands_for_the_default_op_of_its_family(run):
    ext_tropical.register()
    error = run("check", "ext_tropical:TropicalEinsum", "--input", "float64[2,3]", code=2).err
    assert "needed 2, one for each input" in error  # one input of two: the op was found


def test_a_report_fits_the_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out, _ = run("check", "jax.numpy:square", "--input", "float32[3]")
    assert max(map(len, out.splitlines())) <= 40
    assert "values value: passed" in out


def test_an_interrupted_command_says_so_in_a_line(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tenferro_jax.conformance.check", interrupted)
    assert run("check", "jax.numpy:square", "--input", "float32[3]", code=130) == (
        "",
        "interrupted\n",
    )


@pytest.mark.parametrize("file", ["layer.graph", "layer.bin"])
def test_the_precision_that_numpy_writes_by_default_is_refused_with_a_remedy(file, tmp_path, run):
    np.save(tmp_path / "wide.npy", X.astype(np.float64))
    given = [f"args[0]['x']={tmp_path / 'wide.npy'}", "bfloat16:b.npy"]
    options = [word for text in given for word in ("--input", text)]
    error = run("run", file, "--register", "ext_tropical:register", *options, code=2).err
    assert "given float64[3,2]; needed float32[n,2]" in error
    assert "numpy.save(path, x.astype('float32'))" in error


def test_a_wrong_command_line(run):
    assert "usage: python -m tenferro_jax" in run("chekc", code=2).err


def test_the_version_and_the_console_script(capsys, monkeypatch):
    """One source, without metadata of an installation: a checkout on the path says it too."""
    monkeypatch.setattr("importlib.metadata.Distribution.from_name", None)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, name = project["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    version = getattr(importlib.import_module(module), name)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert tj.__version__ == ext_tropical.__version__ == version
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    module, _, name = project["project"]["scripts"]["tenferro-jax"].partition(":")
    command = getattr(importlib.import_module(module), name)
    monkeypatch.setattr("sys.argv", ["/somewhere/tenferro-jax", "--version"])
    ends_in(command, SystemExit, r"^0$")
    assert capsys.readouterr().out == f"tenferro_jax {version}\n"
    monkeypatch.setattr("sys.argv", ["/somewhere/tenferro-jax", "chekc"])
    ends_in(command, SystemExit, r"^2$")
    assert "usage: tenferro-jax" in capsys.readouterr().err


def test_doctor(run, monkeypatch):
    try:
        importlib.metadata.distribution("tenferro-jax")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("packages name what doctor asks as they are installed; this checkout is not")
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    out = run("doctor").out
    first, devices, *packages = out.splitlines()
    assert first.endswith(f"JAX {jax.__version__}")
    assert devices.startswith("devices: ")
    assert any(line.startswith("ext_tropical: native kernels: ") for line in packages)
    assert "64-bit types: on by JAX_ENABLE_X64" in out
    assert "flatbuffers: " in out
    monkeypatch.delenv("JAX_ENABLE_X64")
    assert "64-bit types: off by the default" in run("doctor").out
