"""Shared by the commands: exit codes, output, and `package.module:name` targets."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from ..extension.registry import ExtensionFactory, lookup_extension_factory
from ..graph.printing import plain

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def show(text: str, stream: TextIO | None = None) -> None:
    """Print text that the terminal can show, without control characters; quiet if the reader has
    closed the pipe.
    """
    stream, text = stream or sys.stdout, plain(text, kept="\n\t")
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        # Otherwise the interpreter reports an error when it ends.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def imported(target: str) -> Any:
    """The object of package.module:name."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module is the user's
        raise InvalidConfig(
            where="target",
            given=f"{target!r}: {type(error).__name__}: {error}",
            needed="package.module:name of a module that can be imported here",
        ) from error
    return found


def resolved(target: str) -> object:
    """What a target stands for: an op class for its factory, a function for its result."""
    found = imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        family_id = getattr(found, "family_id", "")
        return lookup_extension_factory(family_id) or ExtensionFactory(found)
    return called(found, target) if callable(found) else found


def called(make: Callable[[], object], target: str) -> object:
    """The result of a user's function."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise InvalidConfig(
            where=target,
            given=f"{type(error).__name__}: {error}",
            needed="a class or function that makes an op without arguments",
            fix="Give the payload fields defaults, or name an op object.",
        ) from error
