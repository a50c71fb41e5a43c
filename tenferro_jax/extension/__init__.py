"""Door 2, for extension authors: re-exports only."""

from ..meta import SymDim, TensorMeta
from ..ops.builder import Builder
from .family import FamilyId, parse_family_id
from .host_errors import host_errors
from .op import Extension, ExtensionOp, ShapeContext
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
from .runtimes import Route, RouteKind

__all__ = [
    "NOT_DIFFERENTIABLE",
    "NO_RULES",
    "Builder",
    "Extension",
    "ExtensionAdRule",
    "ExtensionFactory",
    "ExtensionOp",
    "ExtensionRuleSet",
    "FamilyId",
    "LinearInput",
    "LinearMode",
    "Route",
    "RouteKind",
    "RuleContext",
    "ShapeContext",
    "SymDim",
    "TensorMeta",
    "apply",
    "host_errors",
    "lookup_extension_factory",
    "parse_family_id",
    "register_extension",
    "save_families",
]
