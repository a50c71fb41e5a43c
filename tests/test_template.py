"""`new` makes a package that installs as it is, without a network, passes its own tests and the check
of the command line, and is found by files that need it.
"""

import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

from tenferro_jax.__main__ import main

ROOT = pathlib.Path(__file__).parent.parent
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
        ("json", "module json is installed"),
        ("Tenferro-JAX", "module tenferro_jax is installed"),
        ("opt-einsum", "module opt_einsum is installed"),
        *((name, f"given {name!r}; needed letters") for name in ("", "a b", "a.b", "../a", "1a")),
        *((name, f"given {name!r}; needed letters") for name in ("a-", "_a", "é", "class", "a/b")),
    ):
        assert main(["new", name]) == 2
        assert text in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Soft-my_package", "file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_what_new_makes_installs_passes_its_tests_and_is_found_by_files(tmp_path):
    site, environment = tmp_path / "site", os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def python(*arguments, folder=tmp_path, code=0, places=(site, ROOT)):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment | {"PYTHONPATH": os.pathsep.join(map(str, places))},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    assert python("-m", "tenferro_jax", "new", "my-package") == NEXT.format("my-package")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site]
    python("-m", "pip", "install", *options, "./my-package")
    assert [path.name for path in site.glob("*.dist-info")] == ["my_package-0.1.0.dist-info"]
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "my-package")
    assert " passed" in tests
    python(
        "-c",
        "import my_package, numpy as np, tenferro_jax as tj; x = np.zeros(2, np.float32);"
        "tj.save_graph(tj.trace(my_package.soft_plus, x), 'soft.graph')",
    )
    read = (  # by the entry point, in a process that does not import the package
        "import numpy as np, tenferro_jax as tj; x = np.zeros(2, np.float32);"
        "graph = tj.load_graph('soft.graph', trusted=True);"
        "print(tj.jvp(graph).to_jax()(x, x + 1)[1])"
    )
    assert python("-c", read) == "[0.5 0.5]\n"
    python("-c", read, code=1, places=(ROOT,))
    checked = python("-m", "tenferro_jax", "check", "my_package:soft_plus", "--input", "float32[3]")
    assert checked.startswith("my-package.soft_plus.v1")
