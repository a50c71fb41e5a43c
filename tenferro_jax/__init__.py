"""Extension ops for JAX: one class gives every transform and portable export. Door 1, for users."""

from .ad import grad, jvp, vjp
from .einsum.notation import Equation, parse_equation
from .engine.engine import CacheStats, Engine, Program
from .errors import (
    ADRuleError,
    ArityError,
    ArtifactError,
    BackendFailure,
    DTypeError,
    Duplicate,
    DuplicateRule,
    EquationError,
    ExtensionLoweringError,
    ExtensionRegistryError,
    InvalidConfig,
    MalformedFamilyId,
    MetaMismatchError,
    NotDifferentiableError,
    PayloadError,
    RegistrationError,
    ShapeError,
    TenferroError,
    UndecidedDimensionError,
    Unsupported,
    X64Error,
)
from .extension.host_errors import host_errors
from .extension.routes import routes
from .extension.runtimes import Route, RouteKind
from .graph.builder import GraphBuilder, Value
from .graph.graph import Graph, Node
from .io.export import ExportedProgram, export, load
from .meta import TensorMeta
from .trace.trace import trace

__all__ = [
    "ADRuleError",
    "ArityError",
    "ArtifactError",
    "BackendFailure",
    "CacheStats",
    "DTypeError",
    "Duplicate",
    "DuplicateRule",
    "Engine",
    "Equation",
    "EquationError",
    "ExportedProgram",
    "ExtensionLoweringError",
    "ExtensionRegistryError",
    "Graph",
    "GraphBuilder",
    "InvalidConfig",
    "MalformedFamilyId",
    "MetaMismatchError",
    "Node",
    "NotDifferentiableError",
    "PayloadError",
    "Program",
    "RegistrationError",
    "Route",
    "RouteKind",
    "ShapeError",
    "TenferroError",
    "TensorMeta",
    "UndecidedDimensionError",
    "Unsupported",
    "Value",
    "X64Error",
    "export",
    "grad",
    "host_errors",
    "jvp",
    "load",
    "parse_equation",
    "routes",
    "trace",
    "vjp",
]
