"""The template of an extension package installs as it is, without a network, and passes its own
tests and the check of the command line.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.slow
def test_the_template_installs_and_passes_its_tests(tmp_path):
    package, site = tmp_path / "package", tmp_path / "site"
    shutil.copytree(ROOT / "templates/extension_package", package)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        site,
        package,
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (site, ROOT))),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    subprocess.run(install, cwd=tmp_path, env=environment, check=True, timeout=300)
    assert [path.name for path in site.glob("*.dist-info")] == ["my_extension-0.1.0.dist-info"]
    shutil.rmtree(package / "src")  # what is tested is what was installed
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        tests,
        cwd=package,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    code = (
        "import my_extension, numpy as np, tenferro_jax as tj; x = np.zeros(2, np.float32); "
        "np.save('x.npy', x); "
    )
    code += "tj.save_graph(tj.trace(my_extension.soft_plus, x), 'soft.graph')"
    subprocess.run(
        [sys.executable, "-c", code], cwd=package, env=environment, check=True, timeout=300
    )
    run = ["run", "soft.graph", "--input", "x.npy"]  # by the entry point, unregistered
    code = (
        f"from tenferro_jax.cli import main; print(main({run}), main(['check', "
        f"'my_extension:SoftPlus']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("out  float32[2]\nmy-extension.soft_plus.v1"), (
        done.stdout + done.stderr
    )
    assert done.stdout.endswith("\n0 0\n"), done.stdout
