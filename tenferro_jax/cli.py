"""The command line: `python -m tenferro_jax check package.module:Op`, `python -m tenferro_jax doctor`."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import jax
import numpy as np

from .conformance import check_extension
from .errors import InvalidConfig, TenferroError
from .extension import NO_RULES, NO_RUNTIMES, ExtensionFactory, ExtensionOp, lookup_extension_factory

OK, FAILED, USAGE = 0, 1, 2
_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\]")


def main(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns the exit code: 0 all is well, 1 a check failed, 2 the command cannot be carried out.

    Args:
      arguments: the command line without the program's name.

    Example:
      >>> main(["check", "no_such_package:Op"])
      2
    """
    parser = argparse.ArgumentParser(prog="python -m tenferro_jax", description="Extension ops for JAX.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_check(commands.add_parser("check", help="check an extension op against the contract"))
    commands.add_parser("doctor", help="what is installed here, and what is missing").set_defaults(run=_doctor)
    chosen = parser.parse_args(list(arguments))
    try:
        with jax.enable_x64(True):  # for the caller's inputs; the process keeps its own setting
            return chosen.run(chosen)
    except TenferroError as error:
        return _refused(str(error))
    except (Exception, SystemExit) as error:  # whatever the target did: exit code 1 says that a check failed, and nothing else
        return _refused(f"{type(error).__name__}: {error}")


def _refused(problem: str) -> int:
    _show(f"error: {' '.join(problem.split())}", sys.stderr)
    return USAGE


def _show(text: str, stream: TextIO) -> None:
    """Print, whatever the terminal can write; quietly where nobody reads on."""
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # else the interpreter complains once more when it ends
            os.dup2(nowhere.fileno(), stream.fileno())


def _add_check(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(run=_check)


def _doctor(chosen: argparse.Namespace) -> int:
    """One line a fact; packages of extensions add theirs by the entry point group "tenferro_jax.doctor"."""
    del chosen
    _show(
        f"Python {platform.python_version()}, tenferro_jax {importlib.metadata.version('tenferro-jax')}, JAX {jax.__version__}", sys.stdout
    )
    _show(f"devices: {', '.join(str(device) for device in jax.devices())}", sys.stdout)
    for point in sorted(importlib.metadata.entry_points(group="tenferro_jax.doctor"), key=lambda point: point.name):
        _show(f"{point.name}: {point.load()()}", sys.stdout)
    return OK


def _seed(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not an int from 0")
    return number


def _check(chosen: argparse.Namespace) -> int:
    op = _op(chosen.target)
    rng = np.random.default_rng(chosen.seed)
    inputs = tuple(_random(text, rng) for text in chosen.input)
    report = check_extension(
        op,
        *((inputs,) if inputs else ()),
        rules=NO_RULES if chosen.rules is None else _imported(chosen.rules),
        runtimes=NO_RUNTIMES if chosen.runtimes is None else _imported(chosen.runtimes),
        oracle=None if chosen.oracle is None else _imported(chosen.oracle),
        tolerance=chosen.tolerance,
        order=chosen.order,
        seed=chosen.seed,
    )
    _show(json.dumps(report.to_json(), indent=2) if chosen.json else str(report), sys.stdout)
    return OK if report.ok else FAILED


def _imported(target: str) -> Any:
    """What package.module:name names."""
    module, colon, name = target.partition(":")
    needed = "package.module:name, of a module that can be imported from here"
    if not colon or not module or not name:
        raise InvalidConfig(where="target", given=repr(target), needed=needed, fix="Write a colon between module and name.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module is the user's
        given, fix = f"{target!r}: {type(error).__name__}: {error}", _advice(module, error)
        raise InvalidConfig(where="target", given=given, needed=needed, fix=fix) from error
    return found


def _advice(module: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return "Install the package, or run from the folder that holds it."
    return "Correct the name." if module in sys.modules else "Mend the module: importing it raises this."


def _op(target: str) -> ExtensionOp:
    """The op that a target names: itself, its class's or factory's default, or what a function returns."""
    found = _imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        factory = lookup_extension_factory(getattr(found, "family_id", ""))
        default = _called(factory.instantiate_default, target) if factory is not None else None
        found = default if default is not None else _called(found, target)
    elif not isinstance(found, ExtensionOp) and callable(found):
        found = _called(found, target)
    if isinstance(found, ExtensionFactory):
        found = _called(found.instantiate_default, target)
    if not isinstance(found, ExtensionOp):
        raise InvalidConfig(
            where=target, given=repr(found), needed="an extension op", fix="Name an op, its class, or a function that returns one."
        )
    return found


def _called(make: Callable[[], Any], target: str) -> Any:
    try:
        return make()
    except (Exception, SystemExit) as error:  # the function is the user's
        raise InvalidConfig(
            where=target,
            given=f"{type(error).__name__}: {error}",
            needed="something that makes an op without arguments",
            fix="Give the payload fields defaults, offer instantiate_default in a registered factory, or name an op made beforehand.",
        ) from error


def _random(text: str, rng: np.random.Generator) -> Any:
    """An array like "float64[3,4]": normal floats, integers and booleans of 0 and 1."""
    found = _ARRAY.fullmatch(text.strip())
    try:
        if found is None:
            raise TypeError("no dtype with sizes in brackets")
        dtype = jax.numpy.dtype(found["dtype"])
        shape = tuple(int(size) for size in found["sizes"].split(",") if size.strip())
        if dtype.kind in "OSUMm":
            raise TypeError("no numeric dtype")
        return _drawn(dtype, shape, rng)
    except (TypeError, ValueError, MemoryError) as error:
        raise InvalidConfig(
            where="--input",
            given=f"{text!r}: {error}",
            needed="a dtype and sizes, such as float64[3,4] or int32[]",
            fix="Quote it for the shell.",
        ) from error


def _drawn(dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if dtype.kind in "biu":
        return rng.integers(0, 2, size=shape).astype(dtype)
    made = rng.normal(size=shape)
    return (made + 1j * rng.normal(size=shape) if dtype.kind == "c" else made).astype(dtype)
