"""Most probable explanation and marginals of Bayesian networks in UAI format, given evidence.

One einsum of the log tables: under max-plus its best assignment explains, under log-sum-exp its
gradient holds all marginals.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import uai

from ext_tropical import best_assignment, log_sum_exp, tropical_einsum

DATA = pathlib.Path(__file__).parent / "data"


class ImpossibleEvidenceError(ValueError):
    """The evidence has probability 0."""


class Model(NamedTuple):
    """A network and its words: for each variable, by name, the names of its values."""

    network: uai.Network
    values: dict[str, list[str]]


def read(name: str) -> Model:
    """The network `data/name.uai` with the names in `data/name.json`."""
    return Model(uai.read(DATA / f"{name}.uai"), json.loads((DATA / f"{name}.json").read_text()))


def log_weights(network: uai.Network, evidence: Mapping[int, int]) -> list[np.ndarray]:
    """For each variable the logs of the weights of its values: 0, and -inf for what the evidence
    excludes.
    """
    values = [np.arange(size) for size in network.sizes]
    return [
        np.where(np.isin(v, evidence.get(variable, v)), 0.0, -np.inf)
        for variable, v in enumerate(values)
    ]


def product(network: uai.Network, weights: list[Any]) -> list[Any]:
    """The arguments of an einsum to a scalar: the log tables with their variables as labels, and
    the log weights.
    """
    with np.errstate(divide="ignore"):
        tables = [np.log(table) for table in network.tables]
    scopes = [*map(list, network.scopes), *([variable] for variable in range(len(weights)))]
    return [*itertools.chain.from_iterable(zip([*tables, *weights], scopes, strict=True)), []]


def explanation(network: uai.Network, evidence: Mapping[int, int]) -> tuple[float, list[int]]:
    """The greatest log probability of a joint state that has the evidence, and the state: a value
    for each variable.
    """
    best = best_assignment(*product(network, log_weights(network, evidence)))
    if not best.feasible:
        raise ImpossibleEvidenceError(f"{dict(evidence)} has probability 0")
    return float(best.value), [int(best.labels[variable]) for variable in range(len(network.sizes))]


def marginals(network: uai.Network, evidence: Mapping[int, int]) -> tuple[float, list[np.ndarray]]:
    """The log probability of the evidence, and for each variable the probabilities of its values
    given the evidence.

    The derivative of the log of a sum of products by the log weight of a value is the share of the
    products with that value.
    """
    log_sum = jax.value_and_grad(
        lambda weights: tropical_einsum(*product(network, weights), semiring=log_sum_exp())
    )
    value, shares = log_sum(log_weights(network, evidence))
    if value == -np.inf:
        raise ImpossibleEvidenceError(f"{dict(evidence)} has probability 0")
    return float(value), [np.asarray(share) for share in shares]


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
    log_evidence, shares = marginals(model.network, given)
    log_best, state = explanation(model.network, given)
    print(
        f"{name}, {len(model.values)} variables, given "
        f"{', '.join(f'{k} {v}' for k, v in evidence.items())}"
    )
    print(
        f"  probability of the evidence {np.exp(log_evidence):.6g}, of the best explanation given "
        f"it {np.exp(log_best - log_evidence):.4f}:"
    )
    chosen = [
        f"{variable} {model.values[variable][value]}"
        for variable, value in zip(model.values, state, strict=True)
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
