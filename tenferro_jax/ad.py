"""Derivatives of graphs. JAX differentiates, and the result is traced as a graph.

A leaf is active if its argument is differentiated and its dtype is floating or complex. The tangent
or cotangent of an inactive leaf is None, as argument and as result.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .both_modes import both_modes
from .errors import InvalidConfig, TenferroError, Unsupported
from .extension.rules import ExtensionRuleSet, require_rules
from .graph.graph import Graph, require_graph
from .shapes import PyTree, is_inexact, struct, x64_enabled
from .tracing import trace

Argnums = int | Sequence[int] | None


def grad(
    graph: Graph, argnums: int | Sequence[int] = 0, *, rules: ExtensionRuleSet | None = None
) -> Graph:
    """The gradient of a scalar graph with respect to some of its arguments, as a graph of the same
    arguments.

    Args:
      graph: a graph with one floating output of shape ().
      argnums: which arguments, as in jax.grad.
      rules: AD rules for the extensions, instead of those of the graph.

    Returns:
      A graph that returns the gradient, nested as the argument (a tuple of them for several
      argnums). For a complex argument it is the conjugate of the direction of steepest ascent, as
      in JAX.

    Raises:
      InvalidConfig: the graph has no single floating output of shape (); or not a graph, or
        arguments that do not exist or are not floating or complex.
      ADRuleError: an extension has no rule.
      Unsupported: an op is not differentiable in reverse mode; the text names it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> square = trace(lambda x: (x * x).sum(), jax.ShapeDtypeStruct((3,), jnp.float32))
      >>> grad(square).to_jax()(jnp.arange(3.0)).tolist()
      [0.0, 2.0, 4.0]
    """
    active = _Active(graph, argnums, rules, "grad")
    outputs = graph.output_metas
    if (
        len(outputs) != 1
        or outputs[0].shape != ()
        or not jnp.issubdtype(outputs[0].dtype, jnp.floating)
    ):
        raise InvalidConfig(
            where="grad",
            given=f"outputs {', '.join(map(str, outputs)) or 'none'}",
            needed="one floating output of shape ()",
            fix="Reduce it first, or use vjp.",
        )
    specs = graph.input_specs
    for leaf in jax.tree.leaves([specs[i] for i in active.argnums]):
        if not is_inexact(leaf):
            raise InvalidConfig(
                where="grad",
                given=f"an argument of dtype {leaf.dtype}",
                needed="floating or complex arguments",
                fix="Choose other argnums.",
            )

    def run(*args: PyTree) -> PyTree:
        _, pullback = jax.vjp(lambda *moving: active.of(moving, args)[0], *active.moving_of(args))
        found = active.nested(pullback([jnp.ones((), outputs[0].dtype)]))
        return found[0] if isinstance(argnums, int) else found

    return active.traced(run, *graph.input_specs)


def jvp(graph: Graph, argnums: Argnums = None, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The graph of (arguments..., tangents...) -> (outputs, output tangents).

    Args:
      graph: any graph.
      argnums: the arguments that have tangents; all by default. Integer leaves have the tangent
        None.
      rules: AD rules for the extensions, instead of those of the graph.

    Raises:
      InvalidConfig, ADRuleError, Unsupported: as `grad`, for forward mode.

    Example:
      >>> import jax.numpy as jnp
      >>> square = trace(lambda x: x * x, jnp.float32(0))
      >>> [float(x) for x in jvp(square).to_jax()(jnp.float32(3), jnp.float32(1))]
      [9.0, 6.0]
    """
    active = _Active(graph, argnums, rules, "jvp")
    count = len(graph.input_specs)

    def run(*both: PyTree) -> PyTree:
        args, tangents = both[:count], jax.tree.leaves(both[count:])
        outs, out_tangents, others = jax.jvp(
            both_modes(lambda *m: active.of(m, args)),
            active.moving_of(args),
            tuple(tangents),
            has_aux=True,
        )
        return active.outputs(outs, others), active.outputs(out_tangents, None)

    return active.traced(run, *graph.input_specs, *active.tangent_specs)


def vjp(graph: Graph, argnums: Argnums = None, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The graph of (arguments..., output cotangents) -> (outputs, argument cotangents).

    Args:
      graph: any graph; the cotangents are one argument, nested as the output, None for an integer
        output.
      argnums: the arguments that get cotangents; all by default. Integer leaves get None.
      rules: AD rules for the extensions, instead of those of the graph.

    Raises:
      InvalidConfig, ADRuleError, Unsupported: as `grad`.

    Example:
      >>> import jax.numpy as jnp
      >>> product = trace(lambda x, y: x * y, jnp.float32(0), jnp.float32(0))
      >>> value, (to_x, to_y) = vjp(product).to_jax()(jnp.float32(3), jnp.float32(5),
      ...     jnp.float32(1))
      >>> float(value), float(to_x), float(to_y)
      (15.0, 5.0, 3.0)
    """
    active = _Active(graph, argnums, rules, "vjp")

    def run(*both: PyTree) -> PyTree:
        args, cotangents = both[:-1], jax.tree.leaves(both[-1])
        outs, pullback, others = jax.vjp(
            lambda *m: active.of(m, args), *active.moving_of(args), has_aux=True
        )
        return active.outputs(outs, others), active.nested(pullback(cotangents))

    return active.traced(
        run,
        *graph.input_specs,
        active.outputs([struct(graph.metas[graph.outputs[i]]) for i in active.floating], None),
    )


def linearize(
    graph: Graph, argnums: Argnums = None, *, rules: ExtensionRuleSet | None = None
) -> tuple[Graph, Graph]:
    """`jvp` in two parts: one that needs only the arguments, and one that is linear in the
    tangents.

    Args:
      graph: any graph.
      argnums: the arguments that have tangents; all by default.
      rules: AD rules for the extensions, instead of those of the graph.

    Returns:
      The graph of (arguments...) -> (outputs, residuals) and the graph of (residuals, tangents...)
      -> output tangents; residuals are a tuple.

    Raises:
      InvalidConfig, ADRuleError, Unsupported: as `jvp`.

    Example:
      >>> import jax.numpy as jnp
      >>> first, second = linearize(trace(jnp.sin, jnp.float32(0)))
      >>> value, residuals = first.to_jax()(jnp.float32(0))
      >>> float(second.to_jax()(residuals, jnp.float32(5)))
      5.0
    """
    active = _Active(graph, argnums, rules, "linearize")
    trees: list[Any] = []

    def first(*args: PyTree) -> PyTree:
        outs, push, others = jax.linearize(
            both_modes(lambda *m: active.of(m, args)), *active.moving_of(args), has_aux=True
        )
        residuals, tree = jax.tree.flatten(push)
        trees.append(tree)
        return active.outputs(outs, others), tuple(residuals)

    def second(residuals: tuple[PyTree, ...], *tangents: PyTree) -> PyTree:
        return active.outputs(
            jax.tree.unflatten(trees[-1], residuals)(*jax.tree.leaves(tangents)), None
        )

    primal = active.traced(first, *graph.input_specs)
    return primal, active.traced(second, primal.output_specs[1], *active.tangent_specs)


class AdContext:
    """Derivatives with one rule set, kept in a bounded cache: equal requests are traced once.
    `cache_info()` and `cache_clear()` are those of functools.lru_cache.

    Args:
      rules: AD rules of the extensions, instead of those of the graphs; None: each graph's own
        rules.
      capacity: how many derivatives are kept; the least recently used one is dropped first.

    Example:
      >>> import jax.numpy as jnp
      >>> context, square = AdContext(), trace(lambda x: x * x, jnp.float32(0))
      >>> context.grad(square) == context.grad(square), context.cache_info().hits
      (True, 1)
    """

    def __init__(self, rules: ExtensionRuleSet | None = None, capacity: int = 128):
        require_rules(rules, "AdContext")

        def derived(
            transform: Callable[..., Any], graph: Graph, argnums: Argnums, x64: bool, own: object
        ) -> Any:
            return transform(graph, argnums, rules=rules)

        self._derived = functools.lru_cache(capacity, typed=True)(derived)  # False is no argnums
        self.cache_info, self.cache_clear = self._derived.cache_info, self._derived.cache_clear

    def _of(self, transform: Callable[..., Any], graph: Graph, argnums: Argnums) -> Any:
        require_graph(graph, f"AdContext.{transform.__name__}")
        given = tuple(argnums) if isinstance(argnums, list) else argnums
        # Equal graphs may have other rules, and 64-bit types may be off now.
        return self._derived(transform, graph, given, x64_enabled(), graph.rules)

    def grad(self, graph: Graph, argnums: int | Sequence[int] = 0) -> Graph:
        """As `grad`."""
        return self._of(grad, graph, argnums)

    def jvp(self, graph: Graph, argnums: Argnums = None) -> Graph:
        """As `jvp`."""
        return self._of(jvp, graph, argnums)

    def vjp(self, graph: Graph, argnums: Argnums = None) -> Graph:
        """As `vjp`."""
        return self._of(vjp, graph, argnums)

    def linearize(self, graph: Graph, argnums: Argnums = None) -> tuple[Graph, Graph]:
        """As `linearize`."""
        return self._of(linearize, graph, argnums)


class _Active:
    """A graph whose active leaves are separated from the others."""

    def __init__(self, graph: Graph, argnums: Argnums, rules: ExtensionRuleSet | None, where: str):
        require_graph(graph, f"{where} of a graph")
        require_rules(rules, where)
        self.graph = graph if rules is None else graph.with_rules(rules)
        self.where = where
        self.argnums = _require_argnums(argnums, len(graph.input_specs), where)
        ends = list(
            itertools.accumulate(
                (len(jax.tree.leaves(spec)) for spec in graph.input_specs), initial=0
            )
        )
        self.positions = list(itertools.starmap(range, itertools.pairwise(ends)))
        self.moving = [
            i for n in self.argnums for i in self.positions[n] if is_inexact(graph.metas[i])
        ]
        self.floating = [i for i, meta in enumerate(graph.output_metas) if is_inexact(meta)]

    @property
    def tangent_specs(self) -> tuple[Any, ...]:
        """The type of the tangent of each differentiated argument."""
        return self.nested([struct(self.graph.metas[i]) for i in self.moving])

    def moving_of(self, args: PyTree) -> tuple[Any, ...]:
        """The active leaves of the arguments."""
        leaves = jax.tree.leaves(args)
        return tuple(leaves[i] for i in self.moving)

    def of(self, moving: Sequence[object], args: PyTree) -> tuple[list[Any], list[Any]]:
        """(floating outputs, other outputs) with the active leaves replaced."""
        leaves = jax.tree.leaves(args)
        for i, value in zip(self.moving, moving, strict=True):
            leaves[i] = value
        outs = self.graph(*leaves)
        others = [
            out
            for out, meta in zip(outs, self.graph.output_metas, strict=True)
            if not is_inexact(meta)
        ]
        return [outs[i] for i in self.floating], others

    def outputs(self, floating: Sequence[object], others: Sequence[object] | None) -> Any:
        """Outputs in the nesting of the graph; None for the others if `others` is None."""
        floating_left, others_left = iter(floating), iter(others or ())
        flat = [
            next(floating_left) if is_inexact(meta) else next(others_left, None)
            for meta in self.graph.output_metas
        ]
        return jax.tree.unflatten(self.graph.out_tree, flat)

    def nested(self, moving: Sequence[object]) -> tuple[Any, ...]:
        """A value for each active leaf, nested as the differentiated arguments; None at inactive
        leaves.
        """
        found = dict(zip(self.moving, moving, strict=True))
        specs = self.graph.input_specs
        made = []
        for n in self.argnums:
            leaves = [found.get(i) for i in self.positions[n]]
            made.append(jax.tree.unflatten(jax.tree.structure(specs[n]), leaves))
        return tuple(made)

    def traced(self, run: Callable[..., PyTree], *specs: PyTree) -> Graph:
        """The derivative as a graph. It keeps all guards, even if the ops that assumed them are
        gone.
        """
        try:
            return trace(run, *specs)
        except TenferroError:
            raise
        except (
            NotImplementedError,
            TypeError,
            ValueError,
        ) as error:  # exceptions of JAX's own rules
            symbols = (
                "Where it is about two symbols for one size, use one symbol. "
                if self.graph.guards
                else ""
            )
            raise Unsupported(
                where=f"{self.where} of a graph",
                given=str(error).splitlines()[0],
                needed="ops that are differentiable in this mode; docs/spec/ops.md says for each",
                fix=symbols
                + "Stop the gradient before that op, choose other argnums, or another mode.",
            ) from error


def _require_argnums(argnums: object, count: int, where: str) -> tuple[int, ...]:
    """argnums as a tuple of positions from 0."""
    given: Any = range(count) if argnums is None and where != "grad" else argnums
    several = isinstance(given, Sequence) and not isinstance(given, str)
    chosen = tuple(given) if several else (given,)
    chosen = tuple(i + count if type(i) is int and -count <= i < 0 else i for i in chosen)
    if (
        not all(type(i) is int and 0 <= i < count for i in chosen)
        or len(set(chosen)) < len(chosen)
        or (not chosen and given is argnums)
    ):
        raise InvalidConfig(
            where=where,
            given=f"argnums={argnums!r}",
            needed=f"one or more of {list(range(count))}, each once",
        )
    return chosen
