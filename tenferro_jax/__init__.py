"""Extension ops for JAX: one class gives every transform and portable export. Door 1, for users."""

from .ad import AdContext, grad, jvp, linearize, vjp
from .bounded_cache import CacheStats
from .conformance.examination import check_extension
from .conformance.report import ConformanceReport
from .dimensions import Guard
from .einsum.einsum_plan import Plan, Step, plan_einsum
from .einsum.notation import Equation, parse_equation, parse_interleaved
from .engine.engine import Engine, compile_std_to_exec
from .engine.exec_program import Cost, ExecProgram, Memory, Progress
from .errors import (
    ADRuleError,
    ArityError,
    ArtifactError,
    BackendFailure,
    BindingError,
    ConformanceError,
    DTypeError,
    Duplicate,
    DuplicateBinding,
    DuplicateKernel,
    DuplicateRule,
    EquationError,
    ExtensionLoweringError,
    ExtensionRegistryError,
    InvalidConfig,
    LimitExceeded,
    MalformedFamilyId,
    MalformedGraph,
    MetaMismatchError,
    NonScalarGrad,
    NotDifferentiableError,
    PayloadError,
    PlaceholderDtypeMismatch,
    PlaceholderRankMismatch,
    PlaceholderShapeMismatch,
    RegistrationError,
    ShapeConstraintViolation,
    ShapeError,
    TenferroError,
    UnboundPlaceholder,
    UndecidedDimensionError,
    UnexpectedBinding,
    Unsupported,
    X64Error,
)
from .extension.execution import host_errors
from .extension.routes import Route, routes
from .extension.runtimes import RouteKind
from .graph.builder import GraphBuilder, Value
from .graph.graph import Graph, Node
from .graph.verify import verify
from .io.container import Limits
from .io.export import export
from .io.exported import ExportedProgram, load_exported
from .io.trees import register_pytree_name
from .io.wire import from_wire, load_graph, save_graph, to_wire
from .ops.vocabulary import Limitation
from .shapes import TensorMeta
from .tensor.einsum import einsum
from .tensor.evaluation import eval_all
from .tensor.tensor import TracedTensor
from .trace.lowered import lowered
from .trace.trace import trace
from .version import __version__ as __version__

__all__ = [
    "ADRuleError",
    "AdContext",
    "ArityError",
    "ArtifactError",
    "BackendFailure",
    "BindingError",
    "CacheStats",
    "ConformanceError",
    "ConformanceReport",
    "Cost",
    "DTypeError",
    "Duplicate",
    "DuplicateBinding",
    "DuplicateKernel",
    "DuplicateRule",
    "Engine",
    "Equation",
    "EquationError",
    "ExecProgram",
    "ExportedProgram",
    "ExtensionLoweringError",
    "ExtensionRegistryError",
    "Graph",
    "GraphBuilder",
    "Guard",
    "InvalidConfig",
    "LimitExceeded",
    "Limitation",
    "Limits",
    "MalformedFamilyId",
    "MalformedGraph",
    "Memory",
    "MetaMismatchError",
    "Node",
    "NonScalarGrad",
    "NotDifferentiableError",
    "PayloadError",
    "PlaceholderDtypeMismatch",
    "PlaceholderRankMismatch",
    "PlaceholderShapeMismatch",
    "Plan",
    "Progress",
    "RegistrationError",
    "Route",
    "RouteKind",
    "ShapeConstraintViolation",
    "ShapeError",
    "Step",
    "TenferroError",
    "TensorMeta",
    "TracedTensor",
    "UnboundPlaceholder",
    "UndecidedDimensionError",
    "UnexpectedBinding",
    "Unsupported",
    "Value",
    "X64Error",
    "check_extension",
    "compile_std_to_exec",
    "einsum",
    "eval_all",
    "export",
    "from_wire",
    "grad",
    "host_errors",
    "jvp",
    "linearize",
    "load_exported",
    "load_graph",
    "lowered",
    "parse_equation",
    "parse_interleaved",
    "plan_einsum",
    "register_pytree_name",
    "routes",
    "save_graph",
    "to_wire",
    "trace",
    "verify",
    "vjp",
]
