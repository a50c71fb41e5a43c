"""What `package.module:name` on the command line names: an op, a factory, a rule set."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..errors import InvalidConfig
from ..extension import ExtensionFactory, ExtensionOp, lookup_extension_factory, register_extension

_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\]")


def imported(target: str) -> Any:
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


def named_op(target: str) -> ExtensionOp:
    """The op that a target names: itself, its class's or factory's default, or what a function returns."""
    found = imported(target)
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
    """What a function of the user makes."""
    try:
        return make()
    except (Exception, SystemExit) as error:  # the function is the user's
        raise InvalidConfig(
            where=target,
            given=f"{type(error).__name__}: {error}",
            needed="something that makes an op without arguments",
            fix="Give the payload fields defaults, offer instantiate_default in a registered factory, or name an op made beforehand.",
        ) from error


def random_array(text: str, rng: np.random.Generator) -> Any:
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


def register(target: str) -> None:
    """Make families known: of an op class or a factory, or of a function that registers them.

    Raises:
      InvalidConfig: the target names nothing of the kind, or fails.
    """
    found = imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionFactory):
        found = _called(found, target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        found = ExtensionFactory(found)
    if isinstance(found, ExtensionFactory):
        if lookup_extension_factory(found.family_id) is None:
            register_extension(found)
    elif callable(found):
        _called(found, target)
    else:
        needed = "an op class, a factory, or a function without arguments that registers some"
        raise InvalidConfig(where="--register", given=f"{target!r}: {found!r}", needed=needed)
