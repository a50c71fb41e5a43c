"""python -m tenferro_jax check package.module:name"""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .. import conformance
from ..conformance.report import WIDTH
from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from ..extension.function_op import FunctionOp
from ..extension.registry import ExtensionFactory
from ..extension.rules import NO_RULES
from .shared import FAILED, OK, called, imported, resolved, show

_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\]")


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


def _named_op(target: str) -> ExtensionOp:
    """The op that a target stands for: itself, or the default of its factory."""
    found = resolved(target)
    if isinstance(found, FunctionOp):
        found = called(found.op, target)
    if isinstance(found, ExtensionFactory):
        found = called(found.instantiate_default, target) or called(found.op_class, target)
    if not isinstance(found, ExtensionOp):
        raise InvalidConfig(
            where=target,
            given=repr(found),
            needed="an extension op, its class, or a function that returns one",
        )
    return found


def _random_array(text: str, rng: np.random.Generator) -> Any:
    """An array like "float64[3,4]": normal floats, integers and booleans of 0 and 1."""
    found = _ARRAY.fullmatch(text.strip())
    try:
        if found is None:
            raise TypeError("no dtype with sizes in brackets")
        dtype = jax.numpy.dtype(found["dtype"])
        shape = tuple(int(size) for size in found["sizes"].split(",") if size.strip())
        if dtype.kind in "OSUMm":
            raise TypeError("no numeric dtype")
        if dtype.kind in "biu":
            return rng.integers(0, 2, size=shape).astype(dtype)
        made = rng.normal(size=shape)
        return (made + 1j * rng.normal(size=shape) if dtype.kind == "c" else made).astype(dtype)
    except (TypeError, ValueError, MemoryError) as error:
        raise InvalidConfig(
            where="--input",
            given=f"{text!r}: {error}",
            needed="a dtype and sizes, such as float64[3,4] or int32[]",
            fix="Quote it for the shell.",
        ) from error


def check(chosen: argparse.Namespace) -> int:
    """Check an op or a function and print the report."""
    found = imported(chosen.target)
    target = found if _is_function(found, chosen.input) else _named_op(chosen.target)
    rng = np.random.default_rng(0)
    inputs = tuple(_random_array(text, rng) for text in chosen.input)
    report = conformance.check(
        target,
        *inputs,
        rules=NO_RULES if chosen.rules is None else imported(chosen.rules),
        runtimes=None if chosen.runtimes is None else imported(chosen.runtimes),
        oracle=None if chosen.oracle is None else imported(chosen.oracle),
    )
    show(format(report, str(shutil.get_terminal_size((WIDTH, 24)).columns)))
    return OK if report.ok else FAILED
