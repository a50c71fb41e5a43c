"""python -m tenferro_jax: what the commands say of files and ops, and their exit codes; as a user
types them, in another directory and with a package of their own."""

import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import ext_tropical
import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax.__main__ import main
from tenferro_jax.extension import registry

from .helpers import ends_in
from .house import ROOT
from .io.plain_format import sealed

EINSUM = "tenferro-ext-tropical.einsum.v1"
W = np.float32([[0, 1], [2, 3]])


def layer(tree, b):
    y = tropical_einsum("bi,io->bo", tree["x"], jnp.asarray(W))
    return {"y": y, "s": y.sum() + b.astype(jnp.float32)[0]}


PACKAGE = """
import jax, jax.numpy as jnp, numpy as np
from tenferro_jax.extension import *

class Soft(ExtensionOp):
    family_id = "outside.soft.v1"
    def lower_to_standard_ops(self, x):
        return (jax.nn.softplus(x),)
    def linearize(self, primals, outputs, tangents):
        return (jax.nn.sigmoid(primals[0]) * tangents[0],)
    def example_inputs(self):
        return [np.linspace(-1.0, 1.0, 4)]

class Lazy(Soft):
    family_id = "outside.lazy.v1"
    def linearize(self, primals, outputs, tangents):
        return (tangents[0],)

@extension_op(package="outside", name="needy", version=1)
class Needy(ExtensionOp):
    exponent: int

class Unfinished(Soft):
    family_id = "outside.unfinished.v1"
    def example_inputs(self):
        raise SystemExit(7)

class Named(Soft):
    family_id = "outside.named.v1"
    def __repr__(self):
        return "\u65e5\u672c()"

number = 3
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
    np.save(folder / "x.npy", np.zeros(2))
    (n,) = jax.export.symbolic_shape("n", constraints=["n >= 2"])
    tj.save_graph(
        tj.trace(lambda x: x[::2], jax.ShapeDtypeStruct((n,), np.float32)), folder / "half.graph"
    )
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


def typed(folder, *arguments, **further):
    """The exit code of the command in another process, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tenferro_jax", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])} | further,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("file", "kind"), [("layer.graph", "graph"), ("layer.bin", "exported program")]
)
def test_inspect_tells_what_is_in_the_file(file, kind, folder, run):
    facts = json.loads(run("inspect", file).out)
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
    ext_tropical.register()
    assert json.loads(run("inspect", file).out)["extensions"][0]["here"] == "registered"
    if kind == "graph":
        assert sum(facts["ops"].values()) == len(tj.load_graph(folder / file).nodes)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nowhere.bin"), "No such file"),
        (("inspect", "x.npy"), "no footer of this format"),
        (("inspect", "damaged.bin"), "no footer of this format"),
        (("inspect", "."), "Is a directory"),
        (("check", "outside"), "needed package.module:name"),
        (("check", "outside:Hard"), "module 'outside' has no attribute 'Hard'"),
        (("check", "nowhere:Soft"), "No module named 'nowhere'"),
        (("check", "outside:number"), "needed a function, or an instance"),
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
        (("check", "outside:Needy"), "TypeError: "),
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
    (error,) = run(*arguments, code=2).err.splitlines()
    assert error.startswith("error: ")
    assert message in error


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
    assert json.loads(out)["extensions"][0]["payloads"] == [payload]
    assert all(line.isprintable() for line in out.split("\n"))
    assert run("inspect", "\x1b[2J\u202e", code=2).err.rstrip("\n").isprintable()


def test_constraints_of_sizes_are_shown(run):
    assert json.loads(run("inspect", "half.graph").out)["constraints"] == ["n >= 2"]


@pytest.mark.slow
def test_as_a_user_types_it_on_a_terminal_of_ascii(folder):
    """Another process in another directory."""
    code, out, error = typed(folder, "check", "outside:Named", PYTHONIOENCODING="ascii")
    assert (code, error) == (0, "")
    assert out.startswith("outside.named.v1 ??()\n")
    code, out, error = typed(folder, "inspect", "damaged.bin")
    assert (code, out) == (2, "")
    assert error.startswith("error: exported program damaged.bin: given no footer")


@pytest.mark.slow
def test_a_function_that_is_no_op(run):
    out, error = run("check", "jax.numpy:square", "--input", "float32[3]")
    assert error == ""
    assert out.startswith("jax.numpy.square\n")
    assert "11 checks: 11 passed" in out


def test_an_op_that_does_not(run):
    out, error = run("check", "outside:Lazy", "--input", "float64[2,3]", code=1)
    assert error == ""
    assert re.findall("FAILED .*: clause (.*)", out) == ["X10.6"]


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


def test_doctor(run):
    out = run("doctor").out
    assert out.startswith(f"tenferro_jax {tj.__version__}\njax:    {jax.__version__}\n")
    assert ("\next_tropical: native kernels: " in out) is bool(
        importlib.metadata.entry_points(group="tenferro_jax.doctor")
    )
