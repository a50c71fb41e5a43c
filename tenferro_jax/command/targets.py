"""What `package.module:name` on the command line names: an op, a factory, a rule set."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..errors import InvalidConfig
from ..extension.op import ExtensionOp
from ..extension.registry import ExtensionFactory, lookup_extension_factory, register_extension

_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\]")


def imported(target: str) -> Any:
    """What package.module:name names."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module is the user's
        given = f"{target!r}: {type(error).__name__}: {error}"
        needed = "package.module:name, of a module that can be imported from here"
        raise InvalidConfig(where="target", given=given, needed=needed) from error
    return found


def named_op(target: str) -> ExtensionOp:
    """The op that a target names: itself, its class's or factory's default, or a function's result."""
    found = imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        factory = lookup_extension_factory(getattr(found, "family_id", ""))
        factory = factory or ExtensionFactory(found)
        found = _called(factory.instantiate_default, target) or _called(found, target)
    elif callable(found):
        found = _called(found, target)
    if isinstance(found, ExtensionFactory):
        found = _called(found.instantiate_default, target)
    if not isinstance(found, ExtensionOp):
        needed = "an extension op, its class, or a function that returns one"
        raise InvalidConfig(where=target, given=repr(found), needed=needed)
    return found


def register(target: str) -> None:
    """Make families known: of an op class or a factory, or of a function that registers them.

    Raises:
      InvalidConfig: the target names nothing of the kind, or fails.
    """
    found = imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        found = ExtensionFactory(found)
    elif callable(found):
        found = _called(found, target)
        if not isinstance(found, ExtensionFactory):
            return  # the function has registered what it wants
    if not isinstance(found, ExtensionFactory):
        given = f"{target!r}: {found!r}"
        needed = "an op class, a factory, or a function without arguments that registers some"
        raise InvalidConfig(where="--register", given=given, needed=needed)
    if lookup_extension_factory(found.family_id) is None:
        register_extension(found)


def _called(make: Callable[[], Any], target: str) -> Any:
    """What a function of the user makes."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise InvalidConfig(
            where=target,
            given=f"{type(error).__name__}: {error}",
            needed="something that makes an op without arguments",
            fix="Give the payload fields defaults, or name an op that was made beforehand.",
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
        if dtype.kind in "biu":
            return rng.integers(0, 2, size=shape).astype(dtype)
        made = rng.normal(size=shape)
        return (made + 1j * rng.normal(size=shape) if dtype.kind == "c" else made).astype(dtype)
    except (TypeError, ValueError, MemoryError) as error:
        needed = "a dtype and sizes, such as float64[3,4] or int32[]"
        given, fix = f"{text!r}: {error}", "Quote it for the shell."
        raise InvalidConfig(where="--input", given=given, needed=needed, fix=fix) from error
