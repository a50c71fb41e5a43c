"""Declare a class as an op family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, dataclass_transform

from ..errors import InvalidConfig, MalformedFamilyId
from .contract import DECLARING, ExtensionOp, require_own_family
from .family import parse_family_id

Op = TypeVar("Op", bound=ExtensionOp)


@dataclass_transform(frozen_default=True)
def extension_op(*, package: str, name: str, version: int) -> Callable[[type[Op]], type[Op]]:
    """Declare a class as the op family `<package>.<name>.v<version>`.

    The class becomes a frozen dataclass: its annotated fields are the payload.

    Args:
      package: the name of the distribution that publishes the op, without a dot.
      name: the op's name in that package.
      version: the major version, from 0. Raise it on any change of payload, inference, rule or
        numerics.

    Raises:
      MalformedFamilyId: the parts do not make a family_id, or the family_id would be read as other
        parts.
      InvalidConfig: the class is not an ExtensionOp, has another family_id, is a dataclass that is
        not frozen, or has the family_id of a base class and overrides part of it.

    Example:
      >>> @extension_op(package="docs-example", name="shift", version=1)
      ... class Shift(ExtensionOp):
      ...     by: float
      ...     def lower_to_standard_ops(self, x):
      ...         return (x + self.by,)
      >>> Shift.family_id, Shift(2.0)
      ('docs-example.shift.v1', Shift(by=2.0))
    """
    family_id = f"{package}.{name}.v{version}"
    if tuple(parse_family_id(family_id)) != (package, name, version) or isinstance(version, bool):
        raise MalformedFamilyId(
            family_id,
            problem=f"it does not read back as package={package!r}, name={name!r}, "
            f"version={version!r}",
        )

    def declare(cls: type[Op]) -> type[Op]:
        DECLARING.discard(declare)
        if not (isinstance(cls, type) and issubclass(cls, ExtensionOp)):
            raise _refusal(
                family_id,
                repr(cls),
                "a subclass of ExtensionOp",
                "Derive it from tenferro_jax.extension.ExtensionOp.",
            )
        stated = vars(cls).get("family_id", family_id)
        if stated != family_id:
            raise _refusal(
                family_id,
                f"family_id = {stated!r} in the class",
                "one family_id",
                "Leave the line out.",
            )
        cls.family_id = family_id
        require_own_family(cls)
        if "__dataclass_params__" not in vars(cls):
            return dataclasses.dataclass(frozen=True)(cls)
        if not vars(cls)["__dataclass_params__"].frozen:
            raise _refusal(
                family_id, "a dataclass that is not frozen", "frozen=True", "Leave @dataclass out."
            )
        return cls

    DECLARING.add(declare)
    return declare


def _refusal(family_id: str, given: str, needed: str, fix: str) -> InvalidConfig:
    return InvalidConfig(where=f"extension_op, {family_id}", given=given, needed=needed, fix=fix)
