"""One sharded program with extensions, for one process with four devices or two processes with two
each.

python -m tests.transforms.two_processes RANK PORT RESULT.npz
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from ext_tropical import (
    best_assignment,
    closure,
    log_sum_exp,
    tropical_einsum,
    tropical_einsum_with_argmax,
)

from ..cases import CASES, Case

P = jax.P
DEVICES = 4
SHARED = tuple(
    case for case in CASES if case.name in ("scaled square", "bilinear", "max_plus bij,bjk->kbi")
)


def program(case: Case, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Value and gradients under NamedSharding, and inside shard_map with the last input replicated;
    all results replicated.
    """
    split, everywhere = jax.NamedSharding(mesh, P("d")), jax.NamedSharding(mesh, P())

    def place(x: np.ndarray, sharding: jax.NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def run(fn: Any, *args: Any) -> Any:
        return jax.tree.map(np.asarray, jax.jit(fn, out_shardings=everywhere)(*args))

    batch = [place(b, split) for b in case.batch(DEVICES)]
    values = jax.vmap(case)
    grads = jax.vmap(jax.grad(case.scalar, case.argnums))

    last, first = place(case.inputs[-1], everywhere), batch[:-1]
    specs = (*(P("d") for _ in first), P())

    def total(*xs: Any) -> Any:
        return jax.lax.psum(
            jax.vmap(case.scalar, in_axes=(*(0 for _ in first), None), axis_size=1)(*xs).sum(), "d"
        )

    summed = jax.grad(jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P()), case.argnums)
    return {
        "values": run(values, *batch),
        "gradients": run(grads, *batch),
        "values in shard_map": run(
            jax.shard_map(values, mesh=mesh, in_specs=P("d"), out_specs=P("d")), *batch
        ),
        "gradients of the sum over shard_map": run(summed, *first, last),
    }


def steps(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Values, winners, derivatives and uses of tropical steps whose rows, or contracted labels, are
    split.
    """
    x, y = np.random.default_rng(0).uniform(0, 9, (2, 16, 16))
    everywhere = jax.NamedSharding(mesh, P())

    def best(x: jax.Array, y: jax.Array) -> jax.Array:
        return tropical_einsum("ij,jk->ik", x, y)

    def soft(x: jax.Array, y: jax.Array) -> jax.Array:
        return tropical_einsum("ij,jk->ik", x, y, semiring=log_sum_exp(0.5))

    asked = {
        "winners": lambda x, y: tropical_einsum_with_argmax("ij,jk->ik", x, y),
        "gradient": jax.grad(lambda x, y: (best(x, y) * y).sum(), (0, 1)),
        "soft": jax.value_and_grad(lambda x, y: (soft(x, y) * y).sum(), (0, 1)),
        "closure": lambda x, y: closure(x, semiring="min_plus").value,
        "assignment": lambda x, y: best_assignment("ab,bc,ca->", x, y, x),
    }
    found = {}
    for name, specs in {"rows": (P("d"), P()), "contracted": (P(None, "d"), P("d"))}.items():
        given = [
            jax.make_array_from_callback(a.shape, jax.NamedSharding(mesh, s), lambda at, a=a: a[at])
            for a, s in zip((x, y), specs, strict=True)
        ]
        for what, fn in asked.items():
            made = jax.jit(fn, out_shardings=everywhere)(*given)
            found |= {
                f"{name}, {what}, {i}": np.asarray(leaf)
                for i, leaf in enumerate(jax.tree.leaves(made))
            }
    return found


def slices(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Slices that the devices of all processes share, of whole operands and of split ones."""
    x, y = np.random.default_rng(1).integers(0, 9, (2, 16, 16)).astype(float)
    how: dict[str, Any] = {"memory_limit": 80_000, "over": "d"}
    soft = log_sum_exp(0.5)

    def total(run: Any, **more: Any) -> Any:
        return jax.value_and_grad(lambda x, y: (run("ab,bc->ac", x, y, **how, **more) * y).sum(), 1)

    asked = {
        "assignment": lambda x, y: tuple(best_assignment("ab,bc,ca->", x, y, x, **how)),
        "gradient": total(tropical_einsum),
        "soft": total(tropical_einsum, semiring=soft),
    }
    found = {}
    for name, spec in {"whole": P(), "rows": P("d")}.items():
        sharding = jax.NamedSharding(mesh, spec)
        given = [
            jax.make_array_from_callback(a.shape, sharding, lambda i, a=a: a[i]) for a in (x, y)
        ]
        with jax.set_mesh(mesh):
            for what, fn in asked.items():
                made = jax.jit(fn, out_shardings=jax.NamedSharding(mesh, P()))(*given)
                found |= {
                    f"slices, {name}, {what}, {i}": np.asarray(leaf)
                    for i, leaf in enumerate(jax.tree.leaves(made))
                }
    alone = best_assignment("ab,bc,ca->", *given, given[0], **how)
    return found | {"slices, not jitted": np.asarray(alone.value)}


def results(mesh: jax.sharding.Mesh) -> dict[str, np.ndarray]:
    """Every result of every case, by name."""
    return (
        steps(mesh)
        | slices(mesh)
        | {
            f"{case.name}, {what}, {i}": x
            for case in SHARED
            for what, xs in program(case, mesh).items()
            for i, x in enumerate(xs)
        }
    )


def main() -> None:
    """One of the two processes."""
    rank, port, path = sys.argv[1:]
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=2, process_id=int(rank), initialization_timeout=50
    )
    assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, DEVICES, 2)
    np.savez(
        path, **results(jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)))
    )
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
