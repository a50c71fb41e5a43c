"""The family_id: `<package>.<op>.v<major>`, the name of an extension's payload schema and
semantics.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..errors import MalformedFamilyId


class FamilyId(NamedTuple):
    """The parts of a family_id."""

    package: str
    op: str
    version: int


def parse_family_id(family_id: object) -> FamilyId:
    """Read a family_id: split at the last dot, then at the first; the op part may itself contain
    dots.

    Raises:
      MalformedFamilyId: the text points at the first wrong character.

    Example:
      >>> parse_family_id("my-package.sort.soft.v3")
      FamilyId(package='my-package', op='sort.soft', version=3)
    """
    if not isinstance(family_id, str):
        raise MalformedFamilyId(family_id, problem="not a string")
    return _parse(family_id)


def family_of(cls: type) -> str:
    """The family_id of an op class or a rule class.

    Raises:
      MalformedFamilyId: it is malformed; if the class has none, the text names the class.
    """
    family_id = getattr(cls, "family_id", None)
    if family_id is None:
        raise MalformedFamilyId(None, problem=f"class {cls.__qualname__} states no family_id")
    parse_family_id(family_id)
    return str(family_id)


@functools.lru_cache(maxsize=1024)
def _parse(family_id: str) -> FamilyId:
    for column, character in enumerate(family_id):
        if not "!" <= character <= "~":
            problem = (
                "a space"
                if character.isspace()
                else "not printable"
                if character.isascii()
                else "not ASCII"
            )
            raise MalformedFamilyId(family_id, column=column, problem=problem)
    prefix, dot, version = family_id.rpartition(".")
    digits = version[1:]
    if not dot or not version.startswith("v") or not digits.isdigit() or len(digits) > 4000:
        raise MalformedFamilyId(
            family_id, column=len(prefix) + len(dot), problem="the last part is not 'v' and digits"
        )
    if digits != "0" and digits.startswith("0"):
        problem = "the version begins with 0"
        raise MalformedFamilyId(family_id, column=len(prefix) + len(dot) + 1, problem=problem)
    package, dot, op = prefix.partition(".")
    if not package:
        raise MalformedFamilyId(family_id, column=0, problem="the package part is empty")
    if not op:
        raise MalformedFamilyId(family_id, column=len(prefix), problem="the op part is empty")
    return FamilyId(package, op, int(digits))
