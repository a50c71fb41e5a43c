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
FACTORY = ("--register", "ext_tropical:register")
W = np.float32([[0, 1], [2, 3]])


def layer(tree, b):
    y = tropical_einsum("bi,io->bo", tree["x"], jnp.asarray(W))
    return {"y": y, "s": y.sum() + b.astype(jnp.float32)[0]}


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


@pytest.mark.parametrize("file", ["layer.graph", "layer.bin"])
def test_inspect_prints(file, run):
    out = run("inspect", file).out
    for part in (
        file,
        "args[0]['x']  float32[n,2]",
        "out['y']  float32[n,2]",
        f"{EINSUM}  ",
        "not registered here",
        '"equation":"bi,io->bo"',
    ):
        assert part in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "nowhere.bin"), "No such file"),
        (("inspect", "x.npy"), "no footer of this format"),
        (("inspect", "damaged.bin"), "no footer of this format"),
        (("inspect", "."), "Is a directory"),
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
    assert r"\x1b[2J\u202e\nkind  forged\u2028\x85\r" in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert run("inspect", "\x1b[2J\u202e", code=2).err.rstrip("\n").isprintable()


def test_constraints_of_sizes_are_shown(run):
    assert json.loads(run("inspect", "half.graph", "--json").out)["constraints"] == ["n >= 2"]


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
