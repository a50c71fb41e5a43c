"""Isotonic regression, from a C++ file to an op: the closest sequence that never decreases.

The kernel in isotonic.cc pools neighbours in one pass. The function computes the same by a formula
of n x n means: in exported files, on other platforms, and where there is no kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from matplotlib.figure import Figure

import tenferro_jax as tj

SOURCE = pathlib.Path(__file__).with_name("isotonic.cc")
CHECKS = ["jvp", "vjp", "second_order", "vmap", "routes", "exported"]
TARGETS = {"float32": "IsotonicF32", "float64": "IsotonicF64"}


@tj.op("my-package.isotonic.v1")
def isotonic(x: Any, *, increasing: bool = True) -> Any:
    """The fit of x, (n,): at i the maximum over j <= i of the minimum over k >= i of the mean of
    x[j], ..., x[k].
    """
    sign = 1 if increasing else -1
    sums, i = jnp.cumsum(jnp.pad(sign * x, (1, 0))), jnp.arange(x.size)
    first, last = i[:, None], i[None, :]
    means = (sums[None, 1:] - sums[:-1, None]) / jnp.maximum(last - first + 1, 1).astype(x.dtype)
    least = jax.lax.cummin(jnp.where(first <= last, means, jnp.inf), 1, reverse=True)
    return sign * jnp.max(jnp.where(first <= last, least, -jnp.inf), 0)


@isotonic.defjvp
def _(primals: Any, fit: Any, tangents: Any, *, increasing: bool) -> Any:
    """Each block of equal fit moves by the mean of its tangents."""
    block = jnp.cumsum(jnp.diff(fit, prepend=fit[:1]) != 0)
    add = lambda values: jnp.zeros_like(fit).at[block].add(values)  # noqa: E731
    return (add(tangents[0]) / add(jnp.ones_like(fit)))[block]


def add_kernel(folder: pathlib.Path) -> None:
    """Compile isotonic.cc into the folder, and make it the op's kernel for the CPU. A package
    compiles when it is installed.
    """
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        raise SystemExit(
            f"No C++ compiler {compiler!r}: install g++ or clang, or name yours in the environment "
            "variable CXX. Without the kernel the op works too, by its function."
        )
    library = folder / "isotonic.so"
    flags = ["-std=c++17", "-O2", "-w", "-shared", "-fPIC", "-I", jax.ffi.include_dir()]
    subprocess.run([compiler, *flags, SOURCE, "-o", library], check=True)
    handlers = ctypes.CDLL(str(library))
    for target in TARGETS.values():
        pointer = jax.ffi.pycapsule(getattr(handlers, target))
        jax.ffi.register_ffi_target(target, pointer, platform="cpu")

    def declines(x: Any, *, increasing: bool) -> str:
        return "" if x.dtype.name in TARGETS else "it is for float32 and float64"

    @isotonic.def_kernel("cpu", declines=declines)
    def pool(x: Any, *, increasing: bool) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call(TARGETS[x.dtype.name], like, vmap_method="broadcast_all")
        return call(x, increasing=increasing)


def noisy(n: int, rows: int = 1) -> np.ndarray:
    """A rising curve with noise: float32 (rows, n)."""
    noise = np.random.default_rng(0).normal(size=(rows, n))
    return (np.log1p(np.linspace(0, 20, n)) + 0.5 * noise).astype(np.float32)


def seconds(fit: Callable[[Any], Any], x: Any) -> float:
    """The least time of a call."""
    return min(timeit.repeat(lambda: jax.block_until_ready(fit(x)), number=1, repeat=5))


def judged(x: np.ndarray) -> tuple[float, float]:
    """The greatest differences from SciPy: of the fits of all rows; and, by central differences of
    SciPy's fit, of the gradient of the sum of squares of one.
    """
    want = [scipy.optimize.isotonic_regression(row).x for row in x]
    fits = jax.jit(jax.vmap(isotonic))(x)
    square = lambda row: (scipy.optimize.isotonic_regression(row).x ** 2).sum()  # noqa: E731
    steps = 1e-6 * np.eye(x.shape[1])
    slopes = [(square(x[0] + step) - square(x[0] - step)) / 2e-6 for step in steps]
    gradient = jax.grad(lambda row: (isotonic(row) ** 2).sum())(x[0])
    return np.abs(fits - np.stack(want)).max(), np.abs(gradient - np.array(slopes)).max()


def draw(path: pathlib.Path, x: np.ndarray) -> None:
    """The points, their fit, and how one fitted value depends on them."""
    above, below = (figure := Figure((6, 4), layout="constrained")).subplots(2, sharex=True)
    above.plot(x, ".", color="grey", label="data")
    above.plot(isotonic(x), color="tab:red", label="isotonic fit")
    above.legend()
    below.stem(jax.grad(lambda x: isotonic(x)[x.size // 2])(x), markerfmt=".", basefmt=" ")
    below.set_title("derivative of the fit in the middle by each point", fontsize="medium")
    figure.savefig(path, dpi=90)


def main() -> None:
    """Compile, compare with SciPy, check, time and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2000, help="of the sequence that is timed")
    parser.add_argument("--picture", type=pathlib.Path, help="the PNG file to write")
    options = parser.parse_args()
    x, long = noisy(60, rows=20), jnp.asarray(noisy(options.size)[0])
    by_function = jax.jit(lambda x: isotonic(x))  # traced before there is a kernel
    times = {"by the function": seconds(by_function, long)}
    with tempfile.TemporaryDirectory() as folder:
        add_kernel(pathlib.Path(folder))
    fits, gradient = judged(x)
    print(f"from SciPy: {fits:.0e} in 20 fits; {gradient:.0e} in a gradient")
    print(tj.routes(isotonic, x[0], platform="cpu")[0])
    report = tj.check(isotonic, x[0, :6], only=CHECKS)  # without `only` all 40, in half a minute
    print(f"check: {', '.join(CHECKS)}: {'passed' if report.ok else report}")
    file = tj.export(isotonic, x[0], vjp_order=1).to_bytes()
    again = tj.load_exported(file).call(x[0])
    print(f"the exported program differs by {jnp.abs(again - isotonic(x[0])).max():.0e}")
    times |= {
        "by the kernel": seconds(jax.jit(isotonic), long),
        "by SciPy": seconds(lambda x: scipy.optimize.isotonic_regression(x).x, np.asarray(long)),
    }
    print(
        f"{options.size} points: "
        + ", ".join(f"{1e3 * taken:.3f} ms {way}" for way, taken in times.items())
    )
    if options.picture:
        draw(options.picture, x[0])


if __name__ == "__main__":
    main()
