"""Write the exported files of the JAX that is here, with what they must give; a file that is there
is never written again.

python -m tests.golden.exported.write [NAME ...]

The files are read by later releases and other versions of JAX for as long as JAX reads them: they
are not regenerated.
"""

import pathlib
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from ext_tropical import tropical_einsum
from tenferro_jax import export

FOLDER = pathlib.Path(__file__).parent
F32 = jnp.float32


def layer(params, x):
    """A max-plus layer on a dict of parameters."""
    return {
        "y": tropical_einsum("bi,io->bo", x, params["w"]) + params["b"][None],
        "best": tropical_einsum("bi,io->bo", x, params["w"]).max(),
    }


def programs(level):
    """Name -> exported program: a pytree with a symbolic size, gradients, a loop, a stable custom
    call, wide numbers, cumulative sums.
    """
    (n,) = jax.export.symbolic_shape("n")
    params = {"w": jax.ShapeDtypeStruct((3, 2), F32), "b": jax.ShapeDtypeStruct((2,), F32)}
    yield (
        "layer",
        export(layer, params, jax.ShapeDtypeStruct((n, 3), F32), vjp_order=1, compatibility=level),
    )
    step = lambda c, x: (c * 0.5 + x, c)
    loop = lambda x: jax.lax.scan(step, jnp.zeros((2,), F32), x)
    yield "loop", export(loop, jax.ShapeDtypeStruct((4, 2), F32), vjp_order=1, compatibility=level)
    yield (
        "cholesky",
        export(
            jnp.linalg.cholesky,
            jax.ShapeDtypeStruct((2, 2), F32),
            platforms=("cpu",),
            compatibility=level,
        ),
    )
    with jax.enable_x64(True):
        spec = jax.ShapeDtypeStruct((2, 2), jnp.float64)
        yield "wide", export(lambda x: (x @ x, x.astype(jnp.int64)), spec, compatibility=level)
    cumulative = lambda x: (jnp.cumsum(x, 0), jnp.cumsum(x, 1), jnp.cumprod(x, 0))
    yield (
        "cumulative",
        export(cumulative, jax.ShapeDtypeStruct((4, 2), F32), vjp_order=1, compatibility=level),
    )


def main(*names):
    """Write those named, or all, of this JAX; refuse to overwrite. WEEK_4 is what an older JAX
    cannot read any more.
    """
    files = [(f"{name}-jax{jax.__version__}.bin", program) for name, program in programs("WEEK_12")]
    files += [
        (f"layer-jax{jax.__version__}-week4.bin", program)
        for name, program in programs("WEEK_4")
        if name == "layer"
    ]
    files = [(name, program) for name, program in files if not names or name.split("-")[0] in names]
    there = [name for name, _ in files if (FOLDER / name).exists()]
    if there:
        sys.exit(
            f"not written: {', '.join(there)} are there, and golden files are never written again"
        )
    for name, program in files:
        print(name, program.save(FOLDER / name), "bytes")


def inputs(name):
    """Arguments of a program by name; judged in tests/io/test_golden.py."""
    rng = np.random.default_rng(7)
    draw = lambda *shape: np.float32(rng.integers(-8, 8, shape)) / 4
    if name == "layer":
        return {"w": draw(3, 2), "b": draw(2)}, draw(5, 3)
    if name in ("loop", "cumulative"):
        return (draw(4, 2),)
    if name == "cholesky":
        return (np.float32([[4, 2], [2, 5]]),)
    return (np.float64([[1, 2], [3, 2**40]]),)


if __name__ == "__main__":
    main(*sys.argv[1:])
