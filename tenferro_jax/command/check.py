"""python -m tenferro_jax check package.module:Op"""

from __future__ import annotations

import argparse

import numpy as np

from .. import conformance
from ..extension.function_op import FunctionOp
from ..extension.rules import NO_RULES
from .files import FAILED, OK, imported, named_op, random_array, show


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = (
        "Check an extension op against the contract; exit code 0 if it conforms, 1 if it does not."
    )
    parser.add_argument(
        "target",
        metavar="package.module:name",
        help="an op, an op class, a factory, a function made by tenferro_jax.op, or a function "
        "without arguments that returns one of them",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="float64[3,4]",
        help="one example input, of random values; once for each input of the op. Default: the "
        "op's example_inputs()",
    )
    parser.add_argument("--rules", metavar="package.module:name", help="an ExtensionRuleSet")
    parser.add_argument("--runtimes", metavar="package.module:name", help="an ExtensionRuntimeSet")
    parser.add_argument(
        "--oracle",
        metavar="package.module:name",
        help="a NumPy function of the inputs that returns a tuple of outputs",
    )
    parser.set_defaults(run=check)


def check(chosen: argparse.Namespace) -> int:
    """Check an op and print the report."""
    found = imported(chosen.target)
    op = found if isinstance(found, FunctionOp) else named_op(chosen.target)
    rng = np.random.default_rng(0)
    inputs = tuple(random_array(text, rng) for text in chosen.input)
    report = conformance.check(
        op,
        *inputs,
        rules=NO_RULES if chosen.rules is None else imported(chosen.rules),
        runtimes=None if chosen.runtimes is None else imported(chosen.runtimes),
        oracle=None if chosen.oracle is None else imported(chosen.oracle),
    )
    show(str(report))
    return OK if report.ok else FAILED
