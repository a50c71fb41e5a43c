"""The names that the author of an extension op imports.

The modules in the order of a call:

`function_op`, `authored`, `function_extension`
    What `tenferro_jax.op` returns, what its author wrote, and the class of its ops.
    `function_call`: the fields of such an op. `function_parts`: what it computes, as value or as
    part of a reverse rule. `nesting`: how arrays are nested, as text. `definitions`: what is
    defined again, in a notebook.
`contract`, `rules`, `kernels`
    What an author writes: the methods of an op class, its derivatives, its kernels.
`family`, `registry`
    The family_id, and how a class becomes a family that files find.
`primitive`
    `apply`, and the primitive of JAX that a family is, with its rules.
`carrier`
    An op with its batch levels, as graphs and JAX hold it.
`routes`
    Which way a call takes: a kernel, the host, or the lowering. `execution`: that way.
`sharding`
    How an op splits over devices. `transforms`: of functions, as ops need them.
"""

from typing import TYPE_CHECKING

from ..errors import no_attribute
from .contract import NOT_DIFFERENTIABLE, ExtensionOp, LinearInput, ShardingRule, require_equal
from .kernels import ExtensionRuntimeSet, Kernel
from .primitive import apply
from .registry import ExtensionFactory, extension_op, register_extension
from .routes import Route, RouteKind
from .rules import ExtensionAdRule, ExtensionRuleSet
from .sharding import Shard

__all__ = [
    "NOT_DIFFERENTIABLE",
    "ExtensionAdRule",
    "ExtensionFactory",
    "ExtensionOp",
    "ExtensionRuleSet",
    "ExtensionRuntimeSet",
    "Kernel",
    "LinearInput",
    "Route",
    "RouteKind",
    "Shard",
    "ShardingRule",
    "apply",
    "extension_op",
    "register_extension",
    "require_equal",
]

ROOMS = ("registry", "sharding", "carrier", "family", "rules", "kernels", "routes", "primitive")
"""The modules whose names stood here before."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name, [f"{__name__}.{room}" for room in ROOMS])
