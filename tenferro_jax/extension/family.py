"""The family_id: `<package>.<op>.v<major>`, the name of an extension's payload schema and
semantics.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import MalformedFamilyId

_FORM = re.compile(r"([!-\-/-~]+)\.([!-~]+)\.v(0|[1-9][0-9]{0,3999})")
"""Printable ASCII without spaces, and without a dot in the package."""


class FamilyId(NamedTuple):
    """The parts of a family_id."""

    package: str
    op: str
    version: int


def parse_family_id(family_id: object) -> FamilyId:
    """Read a family_id: split at the last dot, then at the first; the op part may itself contain
    dots.

    Raises:
      MalformedFamilyId: it is none.

    Example:
      >>> parse_family_id("my-package.sort.soft.v3")
      FamilyId(package='my-package', op='sort.soft', version=3)
    """
    found = _FORM.fullmatch(family_id) if isinstance(family_id, str) else None
    if found is None:
        raise MalformedFamilyId(family_id)
    package, op, version = found.groups()
    return FamilyId(package, op, int(version))


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
