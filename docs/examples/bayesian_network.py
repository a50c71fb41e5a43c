"""Most probable explanation and marginals of Bayesian networks in UAI format, given evidence."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from ext_tropical import Network

DATA = pathlib.Path(__file__).parent / "data"


class Model(NamedTuple):
    """A network and its words: for each variable, by name, the names of its values."""

    network: Network
    values: dict[str, list[str]]


def read(name: str) -> Model:
    """The network `data/name.uai` with the names in `data/name.json`."""
    values = json.loads((DATA / f"{name}.json").read_text())
    return Model(Network.from_uai(DATA / f"{name}.uai"), values)


def by_number(model: Model, evidence: Mapping[str, str]) -> dict[int, int]:
    """Evidence in names as evidence in numbers."""
    variables = list(model.values)
    return {
        variables.index(name): model.values[name].index(value) for name, value in evidence.items()
    }


def report(name: str, evidence: Mapping[str, str], asked: list[str]) -> None:
    """Print what the network concludes: the probability of the evidence, the best explanation, some
    marginals.
    """
    model = read(name)
    given = by_number(model, evidence)
    network = model.network.given(given)
    log_evidence, shares = float(network.log_partition()), network.marginals()
    best = network.best()
    log_best, state = float(best.value), given | best.labels.tolist()
    print(
        f"{name}, {len(model.values)} variables, given "
        f"{', '.join(f'{k} {v}' for k, v in evidence.items())}"
    )
    print(
        f"  probability of the evidence {np.exp(log_evidence):.6g}, of the best explanation given "
        f"it {np.exp(log_best - log_evidence):.4f}:"
    )
    chosen = [
        f"{variable} {model.values[variable][state[number]]}"
        for number, variable in enumerate(model.values)
    ]
    for start in range(0, len(chosen), 5):
        print("    " + ", ".join(chosen[start : start + 5]))
    for variable in asked:
        share = shares[list(model.values).index(variable)]
        print(
            f"  {variable:>12}: "
            + ", ".join(
                f"{value} {p:.4f}" for value, p in zip(model.values[variable], share, strict=True)
            )
        )


def main() -> None:
    """A patient of the chest clinic, and an alarm in the operating theatre."""
    with jax.enable_x64(True):
        report("asia", {"asia": "yes", "xray": "yes", "dysp": "yes"}, ["tub", "lung", "bronc"])
        diagnoses = [
            "HYPOVOLEMIA",
            "LVFAILURE",
            "ANAPHYLAXIS",
            "INSUFFANESTH",
            "PULMEMBOLUS",
            "INTUBATION",
            "KINKEDTUBE",
            "DISCONNECT",
        ]
        report(
            "alarm",
            {"BP": "LOW", "HRBP": "HIGH", "CVP": "HIGH", "PRESS": "HIGH", "EXPCO2": "LOW"},
            diagnoses,
        )


if __name__ == "__main__":
    main()
