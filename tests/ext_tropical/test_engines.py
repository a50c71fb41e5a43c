"""Slices on an engine, a worker of which is killed in the middle: nothing is lost or counted twice,
and the bits are those of one process.
"""

import os
import signal

import jax
import numpy as np
import pytest

from ext_tropical import best_assignment

from .test_pieces import CHAIN, SEMIRINGS, planned, tables

NAMES = ("max_plus", "log_sum_exp")


def run_here(plan, name, number, folder):
    """A slice in another process. The first worker of a folder dies before its second slice."""
    if number == 1 and not os.path.exists(f"{folder}/died"):
        open(f"{folder}/died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    operands = tables(SEMIRINGS[name] or name)
    return plan.run(number, *operands, labels=name == "max_plus", keep=f"{folder}/kept")


@pytest.mark.slow
def test_an_engine_loses_a_worker_and_no_slice(tmp_path):
    distributed = pytest.importorskip("distributed")
    plans = {name: planned(SEMIRINGS[name] or name) for name in NAMES}
    tasks = [(n, i) for n, plan in plans.items() for i in range(plan.slices)]
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        parts = client.gather(
            [client.submit(run_here, plans[n], n, i, str(tmp_path), pure=False) for n, i in tasks]
        )
    assert (tmp_path / "died").exists()
    assert len(list((tmp_path / "kept").glob("*.npz"))) == len(tasks)
    for name, plan in plans.items():
        operands = tables(SEMIRINGS[name] or name)
        has_labels = name == "max_plus"
        found = plan.merge(part for part, task in zip(parts, tasks, strict=True) if task[0] == name)
        here = plan.merge(plan.run(i, *operands, labels=has_labels) for i in range(plan.slices))
        jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(here))
        if has_labels:
            want = best_assignment(CHAIN, *operands)
            jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(want))
