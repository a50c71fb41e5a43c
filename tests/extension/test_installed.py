"""Families of installed packages: found by entry points where the reader trusts the bytes, and not
a module imported where it does not.
"""

import importlib
import importlib.metadata
import json
import pathlib
import sys
import tomllib

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.cli import main
from tenferro_jax.errors import Unsupported
from tenferro_jax.extension import apply, lookup_extension_factory
from tenferro_jax.extension import registry as registry_module
from tenferro_jax.extension.family import parse_family_id

from ..extension_ops import ScaledSquare
from ..helpers import ends_in

ROOT = pathlib.Path(__file__).parents[2]
FAMILY = ScaledSquare.family_id
X = np.arange(3.0)
PUBLISHER = """
from tenferro_jax.extension import lookup_extension_factory, register_extension
from tests.extension_ops import RULES, ScaledSquare

def register():
    if lookup_extension_factory(ScaledSquare.family_id) is None:
        register_extension(ScaledSquare)
    return RULES

def leaves(): raise SystemExit(7)
def other(): return 7
def silent(): pass
"""


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts two distributions on the path: one that publishes the family, by the function that is
    named, and a bystander.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def put(function="register"):
        points = {
            "test-package": f"publisher_of_squares:{function}",
            "bystander": "bystander_of_squares:register",
        }
        for package, point in points.items():
            info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text(
                f"[tenferro_jax.extensions]\n{package} = {point}\n"
            )
        (tmp_path / "publisher_of_squares.py").write_text(PUBLISHER)
        (tmp_path / "bystander_of_squares.py").write_text("raise RuntimeError('nobody asked')")
        for module in list(sys.modules):
            if module.endswith("_of_squares"):
                del sys.modules[module]
        importlib.invalidate_caches()

    return put


def imported():
    return {name for name in sys.modules if name.endswith("_of_squares")}


def loop(x):
    return jax.lax.fori_loop(0, 2, lambda i, x: apply(ScaledSquare(0.5), x)[0], x).sum()


@pytest.fixture
def path(tmp_path):
    tj.save_graph(tj.trace(loop, X), tmp_path / "squares.graph")
    return tmp_path / "squares.graph"


@pytest.mark.clause("X9.7")
def test_a_trusted_file_finds_its_families_and_their_rules(install, path):
    install()
    ends_in(
        lambda: tj.load_graph(path),
        Unsupported,
        rf"{FAMILY}: not registered.*--register ext_tropical:register",
    )
    tj.load_graph(path, skip_missing_extensions=True)
    assert imported() == set()
    for _ in range(2):  # registered already, the rules come all the same
        graph = tj.load_graph(path, trusted=True)
        assert imported() == {"publisher_of_squares"}
        np.testing.assert_array_equal(graph.to_jax()(X), np.sum(X**4 / 8))
        np.testing.assert_array_equal(tj.jvp(graph).to_jax()(X, np.ones(3))[1], np.sum(X**3 / 2))
        assert tj.from_wire(path.read_bytes(), trusted=True) == graph
    assert not len(tj.load_graph(path).rules)


@pytest.mark.clause("X9.7")
def test_a_package_without_rules_and_nobody_at_all(install, path):
    ends_in(lambda: tj.load_graph(path, trusted=True), Unsupported, "not registered")
    install("silent")
    ends_in(lambda: tj.load_graph(path, trusted=True), Unsupported, "not registered")
    assert tj.load_graph(path, trusted=True, skip_missing_extensions=True).nodes


@pytest.mark.parametrize(
    ("function", "given"),
    [("leaves", "SystemExit: 7"), ("other", "given 7"), ("gone", "AttributeError")],
)
@pytest.mark.clause("X9.7")
def test_a_package_that_fails_is_named(function, given, install, path):
    install(function)
    ends_in(
        lambda: tj.load_graph(path, trusted=True),
        Unsupported,
        rf"entry point test-package = publisher_of_squares:{function} in .*{given}",
    )


@pytest.mark.clause("X9.7")
def test_the_command_line_finds_them_and_inspects_without(install, path, tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    command = ("run", str(path), "--input", str(tmp_path / "x.npy"))
    assert main(command) == 2
    assert "--register ext_tropical:register" in capsys.readouterr().err

    def here(*options):
        assert main(["inspect", str(path), "--json", *options]) == 0
        (family,) = json.loads(capsys.readouterr().out)["extensions"]
        return family["here"]

    assert here() == "not registered"
    install()
    assert here() == "installed"
    assert imported() == set()
    assert main(command) == 0
    assert capsys.readouterr().out == f"out  float64[] = {np.sum(X**4 / 8)}\n"
    assert here() == "registered"
    registry_module._factories.clear()
    assert main(["explain", str(path)]) == 0
    capsys.readouterr()
    registry_module._factories.clear()
    assert here("--trusted") == "registered"
    assert imported() == {"publisher_of_squares"}


@pytest.mark.parametrize("project", [".", "templates/extension_package"])
def test_the_entry_points_of_this_project(project, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "templates/extension_package/src")
    declared = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]["tenferro_jax.extensions"]
    for name, value in declared.items():
        register = importlib.metadata.EntryPoint(name, value, "tenferro_jax.extensions").load()
        rules = register()
        assert rules is register()
        known = set(registry_module._factories)
        assert known
        assert {parse_family_id(family).package for family in known} == {name}
        assert {rule.family_id for rule in rules or ()} <= known
        assert lookup_extension_factory(next(iter(known))) is not None
