"""One sharded program with extensions, for one process with four devices or two processes with two
each.

python -m tests.transforms.two_processes RANK PORT RESULT.npz
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

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


def results(mesh: jax.sharding.Mesh) -> dict[str, np.ndarray]:
    """Every result of every case, by name."""
    return {
        f"{case.name}, {what}, {i}": x
        for case in SHARED
        for what, xs in program(case, mesh).items()
        for i, x in enumerate(xs)
    }


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
