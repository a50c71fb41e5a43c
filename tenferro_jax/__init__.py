"""Extension ops for JAX: one function gives every transform and portable export.

- Ops and rules: `op`, `both_modes`, `routes`, `host_errors`; `check` tries them.
- Graphs: `trace`, `lowered`, `Graph`, `verify`, `GraphBuilder`, `TensorMeta`, `SymDim`; their
  derivatives `grad`, `jvp`, `linearize`, `vjp`, `AdContext`.
- Files: `export`, `ExportedProgram`, `load_exported`; `save_graph`, `load_graph`, `to_wire`,
  `from_wire`.
- Einsum: `einsum`, `plan_einsum`.
- Ops that are classes: `ExtensionOp`, `extension_op`, `register_extension`, `ExtensionFactory`,
  `apply`, `ExtensionAdRule`, `ExtensionRuleSet`, `ExtensionRuntimeSet`; the standard ops derive
  from `StdTensorOp`.
- Engines and lazy tensors: `Engine`, `ExecProgram`, `compile_std_to_exec`, `TracedTensor`,
  `eval_all`.
- Errors: `TenferroError` and its classes.

What fewer programs need is public in `tenferro_jax.extension` (for authors of ops),
`tenferro_jax.testing`, `tenferro_jax.graph`, `tenferro_jax.io`, `tenferro_jax.plans` and
`tenferro_jax.errors`.
"""

# First, because older versions of JAX do not have what the others import.
from .version import __version__ as __version__

# isort: split
import importlib
from typing import TYPE_CHECKING

from . import einsum as _  # noqa: F401  # imported later, it would hide the function
from .ad import AdContext, grad, jvp, linearize, vjp
from .both_modes import both_modes
from .dimensions import SymDim
from .engine.engine import Engine, compile_std_to_exec
from .engine.exec_program import ExecProgram
from .errors import (
    ADRuleError,
    ArtifactError,
    BackendFailure,
    ConformanceError,
    DTypeError,
    Duplicate,
    DuplicateRule,
    ExtensionLoweringError,
    ExtensionRegistryError,
    InvalidConfig,
    MalformedFamilyId,
    RegistrationError,
    ShapeError,
    TenferroError,
    Unsupported,
    no_attribute,
)
from .extension.contract import ExtensionOp
from .extension.execution import host_errors
from .extension.function_op import op
from .extension.kernels import ExtensionRuntimeSet
from .extension.primitive import apply
from .extension.registry import ExtensionFactory, extension_op, register_extension
from .extension.routes import routes
from .extension.rules import ExtensionAdRule, ExtensionRuleSet
from .graph.builder import GraphBuilder
from .graph.graph import Graph
from .graph.verify import verify
from .io.export import export
from .io.exported import ExportedProgram, load_exported
from .io.wire import from_wire, load_graph, save_graph, to_wire
from .ops.op import StdTensorOp
from .plans.plan import plan_einsum
from .shapes import TensorMeta
from .tensor.einsum_call import einsum
from .tensor.record import eval_all
from .tensor.tensor import TracedTensor
from .tracing import lowered, trace

__all__ = [
    "ADRuleError",
    "AdContext",
    "ArtifactError",
    "BackendFailure",
    "ConformanceError",
    "DTypeError",
    "Duplicate",
    "DuplicateRule",
    "Engine",
    "ExecProgram",
    "ExportedProgram",
    "ExtensionAdRule",
    "ExtensionFactory",
    "ExtensionLoweringError",
    "ExtensionOp",
    "ExtensionRegistryError",
    "ExtensionRuleSet",
    "ExtensionRuntimeSet",
    "Graph",
    "GraphBuilder",
    "InvalidConfig",
    "MalformedFamilyId",
    "RegistrationError",
    "ShapeError",
    "StdTensorOp",
    "SymDim",
    "TenferroError",
    "TensorMeta",
    "TracedTensor",
    "Unsupported",
    "apply",
    "both_modes",
    "check",
    "compile_std_to_exec",
    "einsum",
    "eval_all",
    "export",
    "extension_op",
    "from_wire",
    "grad",
    "host_errors",
    "jvp",
    "linearize",
    "load_exported",
    "load_graph",
    "lowered",
    "op",
    "plan_einsum",
    "register_extension",
    "routes",
    "save_graph",
    "to_wire",
    "trace",
    "verify",
    "vjp",
]

ROOMS = ("extension", "graph", "io", "plans", "testing")
"""The packages whose public names are not all here."""

if TYPE_CHECKING:
    from .testing.checking import check
else:  # a checker of types would take every name

    def __getattr__(name: str) -> object:
        """`check`, imported at its first use, because most programs do not need it."""
        if name == "check":
            return importlib.import_module("tenferro_jax.testing").check
        raise no_attribute(__name__, name, [f"{__name__}.{room}" for room in ROOMS])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
