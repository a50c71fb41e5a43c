"""python -m tenferro_jax check package.module:Op"""

from __future__ import annotations

import argparse
import json

import numpy as np

from ..conformance import check_extension
from ..extension.rules import NO_RULES
from ..extension.runtimes import NO_RUNTIMES
from .files import FAILED, OK, imported, named_op, random_array, show


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "Check an extension op against the contract; exit code 0 if it conforms, 1 if it does not."
    parser.add_argument(
        "target",
        metavar="package.module:name",
        help="an op, an op class, a factory, or a function without arguments that returns one of them",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="float64[3,4]",
        help="one example input, of random values; once for each input of the op. Default: the op's example_inputs()",
    )
    parser.add_argument("--rules", metavar="package.module:name", help="an ExtensionRuleSet")
    parser.add_argument("--runtimes", metavar="package.module:name", help="an ExtensionRuntimeSet")
    parser.add_argument("--oracle", metavar="package.module:name", help="a NumPy function of the inputs that returns a tuple of outputs")
    parser.add_argument("--tolerance", type=float, help="relative difference of routes that counts as equal; default eps ** 0.75")
    parser.add_argument("--order", type=int, default=2, choices=(1, 2), help="highest order of derivatives; default 2")
    parser.add_argument("--seed", type=_seed, default=0, help="of random inputs and directions; default 0")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=check)


def _seed(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a non-negative int")
    return number


def check(chosen: argparse.Namespace) -> int:
    """Check an op and print the report."""
    op = named_op(chosen.target)
    rng = np.random.default_rng(chosen.seed)
    inputs = tuple(random_array(text, rng) for text in chosen.input)
    report = check_extension(
        op,
        *((inputs,) if inputs else ()),
        rules=NO_RULES if chosen.rules is None else imported(chosen.rules),
        runtimes=NO_RUNTIMES if chosen.runtimes is None else imported(chosen.runtimes),
        oracle=None if chosen.oracle is None else imported(chosen.oracle),
        tolerance=chosen.tolerance,
        order=chosen.order,
        seed=chosen.seed,
    )
    show(json.dumps(report.to_json(), indent=2) if chosen.json else str(report))
    return OK if report.ok else FAILED
