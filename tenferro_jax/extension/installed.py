"""The families that installed packages publish: their entry points in the group "tenferro_jax.extensions"."""

from __future__ import annotations

import importlib.metadata

from ..errors import Unsupported
from .family import parse_family_id
from .rules import NO_RULES, ExtensionRuleSet

GROUP = "tenferro_jax.extensions"


def is_installed(family_id: str) -> bool:
    """Whether an installed package publishes the family; nothing of it is imported."""
    return bool(_points(family_id))


def register_installed(family_id: str) -> ExtensionRuleSet:
    """Have the installed package that publishes a family register it.

    An entry point has the name of the package that family_ids begin with, and names a function without arguments that
    registers the families of the package, however often it is called, and returns their AD rules or None. No other package
    is imported.

    Returns:
      The AD rules of the package; none where no installed package publishes the family.

    Raises:
      MalformedFamilyId: the family_id cannot be read.
      Unsupported: the function fails, or returns something else.
    """
    rules = NO_RULES
    for point in _points(family_id):
        cause: BaseException | None = None
        try:
            found = point.load()()
            if found is None or isinstance(found, ExtensionRuleSet):
                rules = rules.united(found or NO_RULES)
                continue
            given = repr(found)
        except (Exception, SystemExit) as error:  # of another package
            given, cause = f"{type(error).__name__}: {error}", error
        raise Unsupported(
            where=f"entry point {point.name} = {point.value} in {GROUP}",
            given=given,
            needed=f"a function that registers the families of {point.name} and returns an ExtensionRuleSet or None",
            fix=f"Install another release of {point.name}.",
        ) from cause
    return rules


def _points(family_id: str) -> list[importlib.metadata.EntryPoint]:
    return list(importlib.metadata.entry_points(group=GROUP, name=parse_family_id(family_id).package))
