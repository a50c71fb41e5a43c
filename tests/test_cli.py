"""python -m tenferro_jax, as a user types it: another directory, a package of their own."""

import importlib
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import jax
import pytest

import ext_tropical
import tenferro_jax
from tenferro_jax.cli import main
from tenferro_jax.extension import registry

from .helpers import ends_in

ROOT = pathlib.Path(__file__).parent.parent
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "outside.py").write_text(PACKAGE)
    (folder / "leaving.py").write_text("raise SystemExit(7)")
    (folder / "importing.py").write_text("import no_such_package")
    return folder


def typed(folder, *arguments, **further):
    path = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-m", "tenferro_jax", *arguments]
    environment = os.environ | {"PYTHONPATH": path} | further
    return subprocess.run(
        command,
        cwd=folder.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Carries out a command in this process."""

    def run(*arguments):
        monkeypatch.syspath_prepend(folder)
        try:
            code = main(arguments)
        except SystemExit as left:
            code = left.code
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@pytest.mark.slow
def test_an_op_that_conforms(run):
    options = (
        "--rules",
        "outside:RULES",
        "--runtimes",
        "outside:RUNTIMES",
        "--oracle",
        "outside:oracle",
    )
    done = run("check", "outside:Soft", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("outside.soft.v1 Soft()\n")
    assert "L3  second_order         X10.14                  2  passed" in done.stdout


def test_a_class_with_a_registered_factory(run):
    done = run("check", "outside:Power", "--input", "float32[3]")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("outside.power.v1 Power(exponent=3)\n")


def test_an_op_that_does_not(run):
    done = run("check", "outside:made", "--rules", "outside:WRONG", "--input", "float64[2,3]")
    assert (done.returncode, done.stderr) == (1, "")
    assert re.findall("FAILED .*: clause (.*)", done.stdout) == ["X10.6"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
def test_commands_that_cannot_be_carried_out(arguments, message, folder, capsys, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_class_stands_for_the_default_op_of_its_family(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_factories", {})
    ext_tropical.register()
    arguments = ("check", "ext_tropical:TropicalEinsum", "--input", "float64[2,3]")
    assert main(arguments) == 2  # one input of two: the op was found
    assert "needed 2, one for each input" in capsys.readouterr().err


def test_a_wrong_command_line(run):
    done = run("chekc")
    assert done.returncode == 2
    assert "usage: python -m tenferro_jax" in done.stderr
    assert "Traceback" not in run("check", "nowhere:Soft").stderr


@pytest.mark.slow
def test_a_terminal_that_writes_ascii_alone(folder):
    done = typed(folder, "explain", "outside:Named", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("outside.named.v1 ??()\n")


@pytest.mark.slow
def test_a_reader_that_leaves(folder):
    """The pipe is closed before the report comes; the exit code still tells what the
    check found.
    """
    command = [sys.executable, "-m", "tenferro_jax", "check", "outside:Soft"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with subprocess.Popen(
        command, cwd=folder.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdout.close()
        assert (running.stderr.read(), running.wait(300)) == (b"", 0)


def test_the_version_and_the_console_script(capsys, monkeypatch):
    """One source, without metadata of an installation: a checkout on the path says it too."""
    monkeypatch.setattr("importlib.metadata.Distribution.from_name", None)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, name = project["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    version = getattr(importlib.import_module(module), name)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert tenferro_jax.__version__ == ext_tropical.__version__ == version
    assert project["project"]["dynamic"] == ["version"]
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text()
    module, _, name = project["project"]["scripts"]["tenferro-jax"].partition(":")
    command = getattr(importlib.import_module(module), name)
    monkeypatch.setattr("sys.argv", ["/somewhere/tenferro-jax", "--version"])
    ends_in(command, SystemExit, r"^0$")
    assert capsys.readouterr().out == f"tenferro_jax {version}\n"
    monkeypatch.setattr("sys.argv", ["/somewhere/tenferro-jax", "chekc"])
    ends_in(command, SystemExit, r"^2$")
    assert "usage: tenferro-jax" in capsys.readouterr().err


def test_doctor(run):
    done = run("doctor")
    assert done.returncode == 0
    first, devices, *packages = done.stdout.splitlines()
    assert first.endswith(f"JAX {jax.__version__}")
    assert devices.startswith("devices: ")
    assert any(line.startswith("ext_tropical: native kernels: ") for line in packages)
