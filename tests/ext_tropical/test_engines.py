"""Slices on engines: processes, Dask and Ray, a worker of which is killed in the middle. Nothing is
lost or counted twice, and the bits are those of one process.
"""

import concurrent.futures
import multiprocessing
import os
import pathlib
import signal

import jax
import numpy as np
import pytest

from ext_tropical import best_assignment
from ext_tropical.network.pieces import load_plan

from .test_pieces import CHAIN, SEMIRINGS, planned, tables

ROOT = pathlib.Path(__file__).parents[2]


NAMES = ("max_plus", "log_sum_exp")


def run_here(data, name, number, folder):
    """A slice in another process. The first worker of a folder dies before its second slice."""
    if number == 1 and not os.path.exists(f"{folder}/died"):
        open(f"{folder}/died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    operands = tables(SEMIRINGS[name] or name)
    return load_plan(data).run(number, *operands, labels=name == "max_plus", keep=f"{folder}/kept")


def by_futures(tasks):
    """The pool breaks with its worker: the rest is submitted again."""
    kept, spawn = {}, multiprocessing.get_context("spawn")
    for attempt in range(2):
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
            runs = {pool.submit(run_here, *task): task for task in tasks if task not in kept}
            for run in concurrent.futures.as_completed(runs):
                if run.exception() is None:
                    kept[runs[run]] = run.result()
                else:
                    assert attempt == 0
    return [kept[task] for task in tasks]


def by_dask(tasks):
    """Dask starts another worker, and runs its tasks again."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        return client.gather([client.submit(run_here, *task, pure=False) for task in tasks])


def by_ray(tasks):
    """Ray starts another worker, and runs its task again."""
    ray = pytest.importorskip("ray")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        run = ray.remote(run_here)
        return ray.get([run.remote(*task) for task in tasks])
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray starts its processes so
@pytest.mark.parametrize("engine", [by_futures, by_dask, by_ray], ids=lambda by: by.__name__)
def test_an_engine_loses_a_worker_and_no_slice(engine, tmp_path):
    plans = {name: planned(SEMIRINGS[name] or name) for name in NAMES}
    tasks = [
        (plan.to_bytes(), name, i, str(tmp_path))
        for name, plan in plans.items()
        for i in range(plan.slices)
    ]
    parts = engine(tasks)
    assert (tmp_path / "died").exists()
    assert len(list((tmp_path / "kept").glob("*.npz"))) == len(tasks)
    for name, plan in plans.items():
        operands = tables(SEMIRINGS[name] or name)
        has_labels = name == "max_plus"
        found = plan.merge(part for part, task in zip(parts, tasks, strict=True) if task[1] == name)
        here = plan.merge(plan.run(i, *operands, labels=has_labels) for i in range(plan.slices))
        jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(here))
        if has_labels:
            want = best_assignment(CHAIN, *operands)
            jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(want))
