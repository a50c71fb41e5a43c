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
import importlib
from typing import TYPE_CHECKING

from .ad import grad, jvp, linearize, vjp
from .both_modes import both_modes
from .einsum.einsum_plan import plan_einsum
from .errors import TenferroError
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

ROOMS = {
    "ad": ("AdContext",),
    "engine": ("Engine", "ExecProgram", "compile_std_to_exec"),
    "errors": (
        *("ADRuleError", "ArtifactError", "BackendFailure", "ConformanceError", "DTypeError"),
        *("InvalidConfig", "RegistrationError", "ShapeError", "Unsupported"),
    ),
    "graph": ("GraphBuilder",),
    "tensor": ("TracedTensor", "eval_all"),
}
"""Names that the source documents have at the door, and where they are."""

if TYPE_CHECKING:
    from .conformance.examination import check
else:  # a checker of types would take every name

    def __getattr__(name: str) -> object:
        """`check`, imported at its first use, because most programs do not need it."""
        if name == "check":
            return importlib.import_module("tenferro_jax.conformance").check
        places = (f"; use {__name__}.{at}.{name}" for at, names in ROOMS.items() if name in names)
        text = f"module {__name__!r} has no attribute {name!r}{next(places, '')}"
        raise AttributeError(text, name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
