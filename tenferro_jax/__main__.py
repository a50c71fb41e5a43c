"""The command line: `tenferro-jax inspect FILE` or `python -m tenferro_jax inspect FILE`, check,
new, doctor.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

import jax

from .command import check, inspect, new
from .command.shared import OK, USAGE, show
from .errors import TenferroError
from .version import __version__


def doctor(_: argparse.Namespace) -> int:
    """Print what JAX says of its environment, and a line of each package that has the entry point
    "tenferro_jax.doctor".
    """
    show(f"tenferro_jax {__version__}")
    show(jax.print_environment_info(return_string=True) or "")
    for point in sorted(importlib.metadata.entry_points(group="tenferro_jax.doctor")):
        show(f"{point.name}: {point.load()()}")
    return OK


def main(arguments: Sequence[str], prog: str = "python -m tenferro_jax") -> int:
    """Run one subcommand; returns the exit code: 0 success, 1 a check failed, 2 the command cannot
    be carried out.

    Args:
      arguments: the command line without the program's name.
      prog: the program's name, for the usage.

    Example:
      >>> main(["check", "no_such_package:Op"])
      2
    """
    parser = argparse.ArgumentParser(prog=prog, description="Extension ops for JAX.")
    parser.add_argument("--version", action="version", version=f"tenferro_jax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    inspect.add(commands.add_parser("inspect", help="what is in a file"))
    check.add(commands.add_parser("check", help="check a function, or an extension op"))
    new.add(commands.add_parser("new", help="make a package with an extension op"))
    commands.add_parser("doctor", help="what is installed here, and what is missing").set_defaults(
        run=doctor
    )
    chosen = parser.parse_args(list(arguments))
    try:
        with jax.enable_x64(True):  # for the caller's inputs; the process keeps its own setting
            return chosen.run(chosen)
    except TenferroError as error:
        problem = str(error)
    except (
        Exception,
        SystemExit,
    ) as error:  # of the target, because exit code 1 is for a failed check
        problem = f"{type(error).__name__}: {error}"
    show(f"error: {' '.join(problem.split())}", sys.stderr)
    return USAGE


def command() -> int:
    """The installed command tenferro-jax; returns its exit code."""
    return main(sys.argv[1:], "tenferro-jax")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
