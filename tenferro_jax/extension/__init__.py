"""Door 2, for extension authors: re-exports only."""

from ..dimensions import SymDim
from ..ops.builder import Builder
from ..shapes import TensorMeta, as_array
from .carrier import Extension
from .choice import Route
from .declaration import extension_op
from .family import FamilyId, parse_family_id
from .host_errors import host_errors
from .op import ExtensionOp, ShapeContext
from .primitive import apply, save_families
from .registry import ExtensionFactory, lookup_extension_factory, register_extension
from .rules import (
    NO_RULES,
    NOT_DIFFERENTIABLE,
    ExtensionAdRule,
    ExtensionRuleSet,
    LinearInput,
    LinearMode,
    RuleContext,
)
from .runtimes import NO_RUNTIMES, ExtensionRuntimeSet, Kernel, RouteKind

__all__ = [
    "NOT_DIFFERENTIABLE",
    "NO_RULES",
    "NO_RUNTIMES",
    "Builder",
    "Extension",
    "ExtensionAdRule",
    "ExtensionFactory",
    "ExtensionOp",
    "ExtensionRuleSet",
    "ExtensionRuntimeSet",
    "FamilyId",
    "Kernel",
    "LinearInput",
    "LinearMode",
    "Route",
    "RouteKind",
    "RuleContext",
    "ShapeContext",
    "SymDim",
    "TensorMeta",
    "apply",
    "as_array",
    "extension_op",
    "host_errors",
    "lookup_extension_factory",
    "parse_family_id",
    "register_extension",
    "save_families",
]
