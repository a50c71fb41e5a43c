"""Models of chains and every sequence of states, which judge them."""

import itertools

import jax
import jax.export
import numpy as np

# --- chains with lengths, bands, final scores and transitions of single steps ---------------------

STATES, TIMES = 3, 4


FORMS = list(itertools.product([0, 2], [1, TIMES - 1]))  # band, R


def chains(seed, count, band, steps, dtype="float64", kind="forbidden"):
    """A batch: initial, transition, emission, lengths, final."""
    rng = np.random.default_rng([seed, band, steps])
    shapes = (STATES,), (steps, band or STATES, STATES), (TIMES, STATES), (STATES,)
    arrays = [rng.normal(size=(count, *shape)).astype(dtype) for shape in shapes]
    for x in arrays:
        if kind != "numbers":
            x[rng.random(x.shape) < 0.15] = -np.inf
        if kind in ("ties", "infinite"):
            x[np.isfinite(x)] = rng.integers(-2, 3, np.isfinite(x).sum())
        if kind == "infinite":
            x[rng.random(x.shape) < 0.03] = np.inf
            x[rng.random(x.shape) < 0.01] = np.nan
    initial, transition, emission, final = arrays
    return initial, transition, emission, rng.integers(1, TIMES + 1, count), final


def kept(semiring, arrays):
    """Arrays of max_plus as those of another semiring: their zero forbids, and ties stay ties."""
    turned = {"max_plus": np.positive, "max_mul": np.exp2}.get(semiring, np.negative)
    return [turned(x) if x.dtype.kind == "f" else x for x in arrays]


def symbolic(ask, *shapes):
    scope = jax.export.SymbolicScope()
    sizes = [jax.export.symbolic_shape(x, scope=scope) for x in shapes or ("2", "2, 2", "t, 2")]
    specs = [jax.ShapeDtypeStruct(x, np.float64) for x in sizes]
    return jax.export.export(jax.jit(ask))(*specs)
