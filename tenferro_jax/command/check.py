"""python -m tenferro_jax check package.module:name"""

from __future__ import annotations

import argparse
import inspect
import shutil
from collections.abc import Sequence

import numpy as np

from .. import conformance
from ..conformance.report import WIDTH
from ..extension.contract import ExtensionOp
from ..extension.function_op import FunctionOp
from ..extension.rules import NO_RULES
from .files import FAILED, OK, imported, named_op, random_array, show


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = (
        "Check an extension op against the contract, or the derivatives, precision, vmap, jit and "
        "export of any function; exit code 0 if no check fails, 1 if one does."
    )
    parser.add_argument(
        "target",
        metavar="package.module:name",
        help="a function, or one made by tenferro_jax.op; an op, an op class, a factory, or a "
        "function without arguments that returns one of them",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="float64[3,4]",
        help="one argument, an array of random values; once for each input of the op or argument "
        "of the function. Default: the op's example_inputs()",
    )
    parser.add_argument("--rules", metavar="package.module:name", help="an ExtensionRuleSet")
    parser.add_argument("--runtimes", metavar="package.module:name", help="an ExtensionRuntimeSet")
    parser.add_argument(
        "--oracle",
        metavar="package.module:name",
        help="a NumPy function of the inputs that returns the output, or a tuple of outputs",
    )
    parser.set_defaults(run=check)


def _is_function(found: object, inputs: Sequence[str]) -> bool:
    """Whether it is checked as it is: a function of arrays that are given, or one made by
    tenferro_jax.op.
    """
    if isinstance(found, FunctionOp):
        return True
    if not inputs or not callable(found) or isinstance(found, type | ExtensionOp):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # a function without a signature
        return True
    return any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


def check(chosen: argparse.Namespace) -> int:
    """Check an op or a function and print the report."""
    found = imported(chosen.target)
    target = found if _is_function(found, chosen.input) else named_op(chosen.target)
    rng = np.random.default_rng(0)
    inputs = tuple(random_array(text, rng) for text in chosen.input)
    report = conformance.check(
        target,
        *inputs,
        rules=NO_RULES if chosen.rules is None else imported(chosen.rules),
        runtimes=None if chosen.runtimes is None else imported(chosen.runtimes),
        oracle=None if chosen.oracle is None else imported(chosen.oracle),
    )
    show(format(report, str(shutil.get_terminal_size((WIDTH, 24)).columns)))
    return OK if report.ok else FAILED
