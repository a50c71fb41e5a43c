"""The lists of checks: of extension ops, and of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import declared as declarations
from . import derivatives, precisions
from . import maps as batches
from . import values_agree as agreement
from .examples import Inputs
from .report import Finding, NotedCases


class Check(NamedTuple):
    """One line of the report.

    Attributes:
      law: the law of the check; of functions in words.
      run: a generator over (subject, example) that yields once for each case; it yields a note if
        it left something out.
      clauses: the clauses of the contract that it checks, the main one first; none for functions.
      after: names of checks that must pass first, because otherwise this one adds nothing.
      advice: what to do if it fails, where the failure does not say it.
    """

    law: str
    run: Callable[[Any, Inputs], NotedCases]
    clauses: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    advice: str = ""

    @property
    def name(self) -> str:
        """Name of the check."""
        return self.run.__name__.removesuffix("_of_function")

    @property
    def main_clause(self) -> str:
        """The main one of its clauses; "" for functions."""
        return self.clauses[0] if self.clauses else ""

    def finding(self, **found: Any) -> Finding:
        """A finding of this check; without a verdict, that it does not apply."""
        return Finding(self.law, self.name, self.clauses, **found)


NAMED = ("family_id",)
RUNS = (*NAMED, "host_form", "value")

PRIMAL = "Let fwd, the jvp rule and differentiable_form compute what a call does."
REVERSE = "Correct the reverse rule: bwd of a custom_vjp, or the jvp rule, which JAX transposes."
LINEARLY = (
    "Let the cotangent enter the reverse rule linearly: multiply it, do not clip, round or square "
    "it."
)

CHECKS = (
    Check("L1", declarations.meta, ("X7.1", "X6.3", "X6.4", "X8.7"), NAMED),
    Check("L1", declarations.symbolic_sizes, ("X7.2", "X7.3", "X7.4"), NAMED),
    Check("L2", declarations.family_id, ("X5.1", "X5.3")),
    Check("L2", declarations.identity, ("X5.6", "X5.8", "X4.2"), NAMED),
    Check("L2", declarations.immutable, ("X4.1",), RUNS),
    Check("L3", derivatives.primal, ("X10.12",), RUNS, advice=PRIMAL),
    Check("L3", derivatives.jvp, ("X10.6", "X10.8", "X6.5"), RUNS),
    Check("L3", derivatives.linear, ("X10.6", "X10.3", "X10.4"), RUNS),
    Check("L3", derivatives.inactive_slots, ("X10.4",), RUNS),
    Check("L3", derivatives.linear_in_cotangent, ("X10.7",), RUNS, advice=LINEARLY),
    Check("L3", derivatives.vjp, ("X10.7", "X10.3"), (*RUNS, "jvp")),
    Check("L3", derivatives.linear_transpose, ("X10.11",), RUNS),
    Check("L3", precisions.precisions, ("X10.6", "X10.7"), (*RUNS, "jvp", "vjp")),
    Check("L3", derivatives.second_order, ("X10.14",), (*RUNS, "jvp", "vjp")),
    Check("L4", batches.vmap, ("X13.1", "X13.2"), RUNS),
    Check("L4", batches.vmap_of_grad, ("X13.1",), (*RUNS, "vjp", "vmap")),
    Check("L5", agreement.host_form, ("X8.7", "X8.8", "X4.3"), NAMED),
    Check("L5", agreement.value, ("X8.1", "X4.3"), NAMED),
    Check("L5", agreement.routes, ("X8.10", "X8.3"), RUNS),
    Check("L5", batches.shard_map, ("X13.4",), (*RUNS, "vmap")),
    Check("L5", batches.shard_map_derivative, ("X13.4",), (*RUNS, "vjp", "shard_map")),
    Check("L5", batches.explicit_mesh, ("X13.5",), (*RUNS, "vmap")),
    Check("L5", batches.sharding_rule, ("X13.10", "X13.9"), RUNS),
    Check("L5", agreement.exported, ("X13.7", "X11.1"), (*RUNS, "routes")),
    Check("L5", agreement.exported_sizes, ("X13.7",), (*RUNS, "routes", "symbolic_sizes")),
    Check("L6", declarations.payload_text, ("X5.9",), NAMED),
    Check("L6", declarations.wrong_inputs, ("X7.6", "X7.1"), RUNS),
)

PURPOSE = (
    " If it differs on purpose (clipped, scaled, straight-through), leave this check out by only=."
)
ALONE = "Use only what JAX can do in the function, or give a rule of its own."
FORWARD = "Correct the jvp rule: of a jax.custom_jvp, or of what the function calls."
MAPS = "Correct the rule of jax.custom_batching or of the call; without one vmap maps the function."

FUNCTION_CHECKS = (
    Check(
        "values",
        agreement.value_of_function,
        advice="Compute from the arguments alone, random numbers from a key: Python state is read "
        "while it traces, once.",
    ),
    Check(
        "derivatives",
        derivatives.primal,
        after=("value",),
        advice=PRIMAL,
    ),
    Check("derivatives", derivatives.jvp, after=("value",), advice=FORWARD + PURPOSE),
    Check("derivatives", derivatives.linear, after=("value",), advice=FORWARD + PURPOSE),
    Check(
        "derivatives",
        derivatives.linear_in_cotangent,
        after=("value",),
        advice=LINEARLY + PURPOSE,
    ),
    Check("derivatives", derivatives.vjp, after=("value",), advice=REVERSE + PURPOSE),
    Check(
        "derivatives",
        derivatives.second_order,
        after=("value", "vjp", "linear_in_cotangent"),
        advice="Compute the rule from its arguments and residuals by differentiable functions, "
        "without stop_gradient; or pass order=1 and say so in the docstring.",
    ),
    Check(
        "precision",
        precisions.precisions,
        after=("value",),
        advice="Compute in the dtype of the arguments, or in a wider one; do not round in between.",
    ),
    Check("vmap", batches.vmap, after=("value",), advice=MAPS),
    Check("vmap", batches.vmap_of_grad, after=("value", "vjp", "vmap"), advice=MAPS),
    Check("export", agreement.exported_of_function, after=("value",), advice=ALONE),
)
