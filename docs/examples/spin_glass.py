"""Ground states of +-J spin glasses on square lattices: one min-plus einsum with a 2 x 2 operand
for each bond.

The energy is its value, the spins are its best assignment, and its gradient by the couplings tells
the unsatisfied bonds.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol

from ext_tropical import best_assignment, min_plus, tropical_einsum


def square_lattice(rows: int, columns: int) -> np.ndarray:
    """The bonds between neighbours, open boundaries: int (bonds, 2) of sites, which are numbered
    row by row.
    """
    site = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([site[:, :-1].ravel(), site[:, 1:].ravel()], 1)
    down = np.stack([site[:-1].ravel(), site[1:].ravel()], 1)
    return np.concatenate([across, down])


def random_couplings(bonds: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """+1 and -1 with equal chance: float32 (samples, bonds)."""
    return np.random.default_rng(seed).choice(
        np.asarray([-1, 1], np.float32), (samples, len(bonds))
    )


def network(bonds: np.ndarray, couplings: Any) -> list[Any]:
    """The arguments of an einsum to a scalar. The label of a site is 0 for up, 1 for down; a bond
    has its energies -J s t.
    """
    product_of_spins = jnp.asarray([[1, -1], [-1, 1]], couplings.dtype)
    terms = [get_symbol(s) + get_symbol(t) for s, t in bonds.tolist()]
    return [",".join(terms) + "->", *(-coupling * product_of_spins for coupling in couplings)]


def ground_state(bonds: np.ndarray, couplings: Any) -> tuple[Any, Any]:
    """The least energy and spins +-1, int32 (sites,), that have it. Couplings are (bonds,);
    jax.vmap solves many samples.
    """
    best = best_assignment(*network(bonds, couplings), semiring=min_plus)
    sites = [best.labels[get_symbol(site)] for site in range(len(best.labels))]
    return best.value, 1 - 2 * jnp.stack(sites)


def unsatisfied(bonds: np.ndarray, couplings: Any) -> Any:
    """Boolean (bonds,): the bonds that cost energy in a ground state. The gradient of the least
    energy by J is -s t.
    """
    least_energy = lambda couplings: tropical_einsum(*network(bonds, couplings), semiring=min_plus)  # noqa: E731
    return couplings * jax.grad(least_energy)(couplings) > 0


def picture(rows: int, columns: int, spins: np.ndarray, costly: np.ndarray) -> str:
    """Spins as + and -, the bonds that cost energy as x."""
    canvas = np.full((2 * rows - 1, 2 * columns - 1), " ")
    canvas[::2, ::2] = np.where(spins.reshape(rows, columns) > 0, "+", "-")
    split = rows * (columns - 1)
    canvas[::2, 1::2] = np.where(costly[:split].reshape(rows, columns - 1), "x", " ")
    canvas[1::2, ::2] = np.where(costly[split:].reshape(rows - 1, columns), "x", " ")
    return "\n".join("  " + "".join(line).rstrip() for line in canvas)


def main() -> None:
    """Mean energies of many samples at a time, and one ground state as a picture."""
    for size in (6, 4):
        bonds = square_lattice(size, size)
        couplings = random_couplings(bonds, samples=100, seed=0)
        energies, spins = jax.vmap(lambda sample, bonds=bonds: ground_state(bonds, sample))(
            couplings
        )
        print(
            f"{size} x {size}: the ground states of 100 samples have "
            f"{energies.mean() / size**2:.4f} energy a spin"
        )
    costly = unsatisfied(bonds, couplings[0])
    print(
        f"One of {size} x {size}, energy {energies[0]:.0f}; {costly.sum()} of {len(bonds)} bonds "
        f"are unsatisfied (x):"
    )
    print(picture(size, size, np.asarray(spins[0]), np.asarray(costly)))


if __name__ == "__main__":
    main()
