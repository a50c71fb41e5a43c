"""Ops of payloads of every kind."""

import dataclasses
import enum

import numpy as np

from tenferro_jax.extension import (
    ExtensionOp,
    extension_op,
)

from ..extension_ops import ScaledSquare
from ..helpers import each_ends_in


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Mode(enum.Flag):
    FAST = 1
    SAFE = 2


class Loose(enum.IntFlag):
    ONE = 1


@dataclasses.dataclass(frozen=True)
class Inner:
    array: np.ndarray


@dataclasses.dataclass(frozen=True)
class Sized:
    color: Color | None
    size: int
    double: int = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "double", 2 * self.size)


@dataclasses.dataclass(frozen=True)
class Holder(ExtensionOp):
    family_id = "test-package.holder.v1"
    value: object | Color | Mode | Loose | Inner | Sized | ScaledSquare = None

    def lower_to_standard_ops(self, x):
        return [x]


def require_closed(array):
    each_ends_in(
        (lambda: array.__setitem__(0, 5), ValueError, "read-only"),
        (lambda: array.setflags(write=True), ValueError, "WRITEABLE"),
    )


ANYTHING = object | Color | Mode | Loose | Inner | Sized | ScaledSquare


def lower(self, x):
    return (x / self.v if isinstance(self.v, float) else x,)


@extension_op(package="test-package", name="declared_holder", version=1)
class Declared(ExtensionOp):
    v: ANYTHING = None
    lower_to_standard_ops = lower
