"""Extension ops for JAX: one function gives every transform and portable export.

These names are what most programs need. The others are public in the package that they belong to:
`tenferro_jax.errors`, `tenferro_jax.extension` and `tenferro_jax.conformance` (for authors of
extensions), `tenferro_jax.extension.routes`, `tenferro_jax.engine`, `tenferro_jax.graph`,
`tenferro_jax.io` and `tenferro_jax.einsum`. `einsum` and `trace` are functions here, so write
`from tenferro_jax.einsum import Plan`.
"""

# First, because older versions of JAX do not have what the others import.
from .version import __version__ as __version__

# isort: split
from .ad import AdContext, grad, jvp, linearize, vjp
from .conformance.examination import check
from .einsum.einsum_plan import plan_einsum
from .engine.engine import Engine, compile_std_to_exec
from .engine.exec_program import ExecProgram
from .errors import TenferroError
from .extension.execution import host_errors
from .extension.function_op import op
from .extension.routes import routes
from .graph.builder import GraphBuilder
from .graph.graph import Graph
from .graph.verify import verify
from .io.export import export
from .io.exported import ExportedProgram, load_exported
from .io.wire import from_wire, load_graph, save_graph, to_wire
from .shapes import TensorMeta
from .tensor.einsum import einsum
from .tensor.evaluation import eval_all
from .tensor.tensor import TracedTensor
from .tracing import lowered, trace

__all__ = [
    "AdContext",
    "Engine",
    "ExecProgram",
    "ExportedProgram",
    "Graph",
    "GraphBuilder",
    "TenferroError",
    "TensorMeta",
    "TracedTensor",
    "check",
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
    "op",
    "plan_einsum",
    "routes",
    "save_graph",
    "to_wire",
    "trace",
    "verify",
    "vjp",
]
