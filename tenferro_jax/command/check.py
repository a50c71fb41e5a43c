"""python -m tenferro_jax check package.module:name"""

from __future__ import annotations

import argparse
import importlib
import re
from typing import Any

import jax
import numpy as np

from .. import testing as conformance
from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from .shared import FAILED, OK, show

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
        help="a function, or one made by tenferro_jax.op; an op, or an op class whose fields have "
        "defaults",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="float64[3,4]",
        help="one argument, an array of random values; once for each input of the op or argument "
        "of the function. Default: the op's example_inputs()",
    )
    parser.set_defaults(run=check)


def _imported(target: str) -> Any:
    """The object of package.module:name; for an op class an op of it."""
    module, _, name = target.partition(":")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found() if isinstance(found, type) and issubclass(found, ExtensionOp) else found
    except (Exception, SystemExit) as error:  # the module is the user's
        raise InvalidConfig(
            where="target",
            given=f"{target!r}: {type(error).__name__}: {error}",
            needed="package.module:name of a module that can be imported here",
        ) from error


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
    rng = np.random.default_rng(0)
    inputs = [_random_array(text, rng) for text in chosen.input]
    report = conformance.check(_imported(chosen.target), *inputs)
    show(str(report))
    return OK if report.ok else FAILED
