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
from .errors import TenferroError, no_attribute
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

ROOMS = ("errors", "extension", "engine", "tensor", "graph", "ad", "io", "einsum", "conformance")
"""The packages and modules whose names stand here in the source documents and before."""

if TYPE_CHECKING:
    from .conformance.examination import check
else:  # a checker of types would take every name

    def __getattr__(name: str) -> object:
        """`check`, imported at its first use, because most programs do not need it."""
        if name == "check":
            return importlib.import_module("tenferro_jax.conformance").check
        raise no_attribute(__name__, name, [f"{__name__}.{room}" for room in ROOMS])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
