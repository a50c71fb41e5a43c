"""What users install: the sdist has all that a build and the tests need; one wheel serves every
Python of a platform, and one without native kernels every platform.
"""

import ctypes
import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LIBRARY = "ext_tropical/step/native/kernels.shared"
IGNORED = shutil.ignore_patterns("__pycache__", "*.shared", "*.egg-info")
SHIPPED = ("benchmarks", "docs", "ext_tropical", "tenferro_jax", "tests")


def setup(folder, *command, **environment):
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The unpacked sdist of a copy of this tree."""
    folder = tmp_path_factory.mktemp("packaging")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=IGNORED)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder / "tree")
    setup(folder / "tree", "sdist", "--dist-dir", folder)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as members:
        members.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


def wheel(source, folder, **environment):
    """The path of a wheel, its tag and its metadata, and what is in it, unpacked."""
    built = ["build", "--build-base", folder / "b", "--build-lib", folder / "lib"]
    setup(source, *built, "bdist_wheel", "-d", folder, **environment)
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
    assert path.stat().st_size < 2_000_000
    library = unpacked / LIBRARY
    assert library.stat().st_size < 3_500_000
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
from ext_tropical.step.native.library import doctor
x = np.ones((64, 64), np.float32)
print(ext_tropical.__file__, doctor(), tenferro_jax.routes(lambda x: ext_tropical.tropical_einsum("ij,jk->ik", x, x), x)[0], sep="\\n")
print(ext_tropical.tropical_einsum("ij,jk->ik", x, x).max())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=unpacked,
        env=os.environ | {"XLA_FLAGS": "", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    where, line, route, value = done.stdout.splitlines()
    assert pathlib.Path(where).is_relative_to(unpacked)
    assert line == "native kernels: absent (not built; install with a C++17 compiler at hand)"
    assert "its kernel declines: not built" in route
    assert value == "2.0"
