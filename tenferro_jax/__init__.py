"""Extension ops for JAX: one function gives every transform and portable export.

These names are what most programs need. The others are public in the package that they belong to:
`tenferro_jax.errors`, `tenferro_jax.extension` and `tenferro_jax.conformance` (for authors of
extensions), `tenferro_jax.extension.routes`, `tenferro_jax.engine`, `tenferro_jax.graph`,
`tenferro_jax.tensor`, `tenferro_jax.ad`, `tenferro_jax.io` and `tenferro_jax.einsum`. `einsum` and
`trace` are functions here, so write `from tenferro_jax.einsum import Plan`.
"""

# First, because older versions of JAX do not have what the others import.
from .version import __version__ as __version__

# isort: split
from typing import TYPE_CHECKING

from .ad import grad, jvp, linearize, vjp
from .both_modes import both_modes
from .einsum.einsum_plan import plan_einsum
from .errors import TenferroError, answers
from .extension.execution import host_errors
from .extension.function_op import op
from .extension.routes import routes
from .graph.graph import Graph
from .graph.verify import verify
from .io.export import export
from .io.exported import ExportedProgram, load_exported
from .io.wire import from_wire, load_graph, save_graph, to_wire
from .shapes import TensorMeta
from .tensor.einsum import einsum
from .tracing import lowered, trace

__all__ = [
    "ExportedProgram",
    "Graph",
    "TenferroError",
    "TensorMeta",
    "both_modes",
    "check",
    "einsum",
    "export",
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
    "routes",
    "save_graph",
    "to_wire",
    "trace",
    "verify",
    "vjp",
]

if TYPE_CHECKING:
    from .conformance.examination import check
else:  # a checker of types would take every name
    __getattr__ = answers(
        __name__,
        {
            "tenferro_jax.errors.": "ADRuleError ArtifactError BackendFailure ConformanceError "
            "DTypeError Duplicate DuplicateRule ExtensionLoweringError ExtensionRegistryError "
            "InvalidConfig MalformedFamilyId RegistrationError ShapeError Unsupported",
            "tenferro_jax.errors.ADRuleError": "NotDifferentiableError",
            "tenferro_jax.errors.ArtifactError": "LimitExceeded",
            "tenferro_jax.errors.DTypeError": "PlaceholderDtypeMismatch X64Error",
            "tenferro_jax.errors.ExtensionRegistryError": "DuplicateKernel",
            "tenferro_jax.errors.InvalidConfig": "ArityError BindingError DuplicateBinding "
            "EquationError MalformedGraph MetaMismatchError NonScalarGrad PayloadError "
            "UnboundPlaceholder UnexpectedBinding",
            "tenferro_jax.errors.ShapeError": "PlaceholderRankMismatch PlaceholderShapeMismatch "
            "ShapeConstraintViolation UndecidedDimensionError",
            "tenferro_jax.errors.Unsupported": "Limitation",
            "tenferro_jax.ad.": "AdContext",
            "tenferro_jax.conformance.": "ConformanceReport",
            "tenferro_jax.einsum.": "Equation Plan Step parse_equation",
            "tenferro_jax.engine.": "Engine ExecProgram compile_std_to_exec",
            "tenferro_jax.extension.routes.": "Route RouteKind",
            "tenferro_jax.graph.": "GraphBuilder Guard Node Value",
            "tenferro_jax.io.": "Limits register_pytree_name",
            "tenferro_jax.io.Limits": "ExportedLimits",
            "tenferro_jax.engine.ExecProgram": "Cost Memory Program",
            "tenferro_jax.tensor.": "TracedTensor eval_all",
            "tenferro_jax.check": "check_extension",
            "tenferro_jax.load_exported": "load",
        },
        check="tenferro_jax.conformance",  # which programs do not need
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
