"""Golden files of graph bytes: a graph, and beside it the arrays that go in and those that NumPy
says come out.

A new record, field or family gets a file by one call of `write`, with JAX_ENABLE_X64=1. Files are
never written again: the releases that wrote them are gone.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import to_wire

FOLDER = pathlib.Path(__file__).parent / "golden"


def write(name, graph, inputs=(), wanted=None):
    """Write the files of a graph into the folder of its version; FileExistsError if it is there."""
    content = to_wire(graph)
    folder = FOLDER / f"graph_v{int.from_bytes(content[16:20], 'little')}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.graph"
    with path.open("xb") as file:
        file.write(content)
    if wanted is not None:
        arrays = {f"in_{i:03}": plain(x) for i, x in enumerate(inputs)}
        arrays |= {f"out_{i:03}": plain(x) for i, x in enumerate(wanted)}
        np.savez_compressed(path.with_suffix(".npz"), **arrays)


def plain(array):
    """An array in a dtype that a .npz file keeps: keys as their data."""
    is_key = jax.dtypes.issubdtype(jnp.asarray(array).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)
