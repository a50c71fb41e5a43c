"""What users install: the sdist has all that a build and the tests need; one wheel serves every
Python of a platform, and one without native kernels every platform. What `new` makes installs as it
is, without a network, passes its own tests and the check of the command line, and is found by files
that need it.
"""

import ctypes
import email
import os
import pathlib
import re
import shutil
import tarfile
import tomllib
import zipfile

import pytest

from tenferro_jax.__main__ import main

from .helpers import python
from .house import ROOT

LIBRARY = "ext_tropical/native/kernels.shared"
IGNORED = shutil.ignore_patterns("__pycache__", "*.shared", "*.egg-info")
SHIPPED = ("benchmarks", "docs", "ext_tropical", "tenferro_jax", "tests")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The unpacked sdist of a copy of this tree."""
    folder = tmp_path_factory.mktemp("packaging")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=IGNORED)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder / "tree")
    python("setup.py", "-q", "sdist", "--dist-dir", folder, folder=folder / "tree")
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as members:
        members.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


def wheel(source, folder, **environment):
    """The path of a wheel, its tag and its metadata, and what is in it, unpacked."""
    built = ["build", "--build-base", folder / "b", "--build-lib", folder / "lib"]
    python("setup.py", "-q", *built, "bdist_wheel", "-d", folder, folder=source, **environment)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as members:
        members.extractall(folder / "unpacked")
    (metadata,) = (folder / "unpacked").glob("*.dist-info/METADATA")
    tag = path.name.removesuffix(".whl").split("-", 2)[2]
    return path, tag, email.message_from_string(metadata.read_text()), folder / "unpacked"


@pytest.mark.slow
def test_the_sdist_is_complete(source):
    wanted = {
        path.relative_to(source.parent / "tree")
        for path in (source.parent / "tree").rglob("*")
        if path.is_file() and "tenferro_jax.egg-info" not in path.parts
    }
    assert not wanted - {path.relative_to(source) for path in source.rglob("*")}


@pytest.mark.slow
@pytest.mark.skipif(
    os.name == "nt" or not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no compiler"
)
def test_the_wheel_of_a_platform(source, tmp_path):
    if (ROOT / LIBRARY).exists():  # it need not be compiled again
        (tmp_path / "lib" / LIBRARY).parent.mkdir(parents=True)
        shutil.copy(ROOT / LIBRARY, tmp_path / "lib" / LIBRARY)
    path, tag, metadata, unpacked = wheel(source, tmp_path, PROJECT_URL="https://example.org/p/")
    assert re.fullmatch(r"py3-none-(linux|macosx)_\w+", tag)
    assert path.stat().st_size < 2_500_000
    library = unpacked / LIBRARY
    assert library.stat().st_size < 4_700_000
    assert not re.search(rb"\0_?Py[A-Z_]\w+\0", library.read_bytes())
    assert ctypes.CDLL(str(library)).tropical_instructions
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]) == (
        set(metadata.get_all("Classifier"))
    )
    assert "Repository, https://example.org/p" in metadata.get_all("Project-URL")
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert all(link.startswith(("https://", "#")) for link in links)
    inside = [link.split("/v0.1.0/")[1].split("#")[0] for link in links if "/v0.1.0/" in link]
    assert inside
    assert all((ROOT / path).exists() for path in inside)


@pytest.mark.slow
def test_without_a_compiler_the_wheel_serves_every_platform(source, tmp_path):
    _, tag, metadata, unpacked = wheel(source, tmp_path, CC="false", CXX="false", PROJECT_URL="")
    assert tag == "py3-none-any"
    assert not re.findall(r"\]\((?!https:|#)", metadata.get_payload())
    members = {p.relative_to(unpacked) for p in unpacked.rglob("*") if p.is_file()}
    assert {p.suffix for p in members if p.parts[0] in SHIPPED} == {".py", ".typed", ".txt"}
    assert {p.parts[0] for p in members} == {
        "ext_tropical",
        "tenferro_jax",
        f"tenferro_jax-{metadata['Version']}.dist-info",
    }
    template = "tenferro_jax/command/template"
    assert {p for p in members if p.suffix == ".txt" and p.is_relative_to(template)} == {
        p.relative_to(ROOT) for p in (ROOT / template).rglob("*.txt")
    }
    program = """
import numpy as np, ext_tropical, tenferro_jax
from ext_tropical.native.library import doctor
x = np.ones((64, 64), np.float32)
print(ext_tropical.__file__, doctor(), tenferro_jax.routes(lambda x: ext_tropical.tropical_einsum("ij,jk->ik", x, x), x)[0], sep="\\n")
print(ext_tropical.tropical_einsum("ij,jk->ik", x, x).max())
"""
    printed = python("-c", program, folder=unpacked, XLA_FLAGS="", PYTHONPATH="")
    where, line, route, value = printed.splitlines()
    assert pathlib.Path(where).is_relative_to(unpacked)
    assert line == "native kernels: absent (not built; install with a C++17 compiler at hand)"
    assert "its kernel declines: not built" in route
    assert value == "2.0"


# --- a package that `new` makes -------------------------------------------------------------------


NEXT = "made {0}; next:\n  cd {0} && pip install -e '.[test]'\n  pytest\n"


def test_new_makes_a_package_and_changes_nothing_that_exists(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "Soft-my_package"]) == 0
    assert capsys.readouterr().out == NEXT.format("Soft-my_package")
    folder = tmp_path / "Soft-my_package"
    texts = {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert set(texts) == {
        ".github/workflows/test.yml",
        "README.md",
        "pyproject.toml",
        "src/soft_my_package/__init__.py",
        "tests/test_soft_my_package.py",
    }
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["name"] == "Soft-my_package"
    assert project["entry-points"] == {
        "tenferro_jax.extensions": {"Soft-my_package": "soft_my_package"}
    }
    assert '@tj.op("Soft-my_package.soft_plus.v1")' in texts["src/soft_my_package/__init__.py"]
    assert "from soft_my_package import" in texts["tests/test_soft_my_package.py"]
    (tmp_path / "file").write_text("mine")
    for name, text in (
        ("Soft-my_package", "given Soft-my_package, which exists; needed a new folder"),
        ("file", "given file, which exists"),
        *((name, f"given {name!r}; needed letters") for name in ("", "a b", "a.b", "../a", "1a")),
        *((name, f"given {name!r}; needed letters") for name in ("a-", "_a", "é", "class", "a/b")),
    ):
        assert main(["new", name]) == 2
        assert text in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Soft-my_package", "file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_what_new_makes_installs_passes_its_tests_and_is_found_by_files(tmp_path):
    site = tmp_path / "site"

    def run(*arguments, folder=tmp_path, code=0, places=(site, ROOT)):
        places = os.pathsep.join(map(str, places))
        environment = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": places}
        return python(*arguments, folder=folder, code=code, **environment)

    assert run("-m", "tenferro_jax", "new", "my-package") == NEXT.format("my-package")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site]
    run("-m", "pip", "install", *options, "./my-package")
    assert [path.name for path in site.glob("*.dist-info")] == ["my_package-0.1.0.dist-info"]
    tests = run("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "my-package")
    assert " passed" in tests
    run(
        "-c",
        "import my_package, numpy as np, tenferro_jax as tj; x = np.zeros(2, np.float32);"
        "tj.save_graph(tj.trace(my_package.soft_plus, x), 'soft.graph')",
    )
    read = (  # by the entry point, in a process that does not import the package
        "import numpy as np, tenferro_jax as tj; x = np.zeros(2, np.float32);"
        "graph = tj.load_graph('soft.graph', trusted=True);"
        "print(tj.jvp(graph).to_jax()(x, x + 1)[1])"
    )
    assert run("-c", read) == "[0.5 0.5]\n"
    run("-c", read, code=1, places=(ROOT,))
    checked = run("-m", "tenferro_jax", "check", "my_package:soft_plus", "--input", "float32[3]")
    assert checked.startswith("my-package.soft_plus.v1")
