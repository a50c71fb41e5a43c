"""Functions and graphs as portable StableHLO programs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

import jax

from .. import jax_seam
from ..dimensions import Guard, SymDim, bind_dim, undecided
from ..errors import InvalidConfig, TenferroError, Unsupported, first_line, require_kind
from ..graph.graph import Graph
from ..jax_seam import is_symbolic_dim
from ..shapes import PyTree, as_operand, errors_of_jax, require_x64_leaves
from .container import described
from .exported import ExportedProgram, orders, with_derivatives


def export(
    fn: Callable[..., PyTree] | Graph,
    *specs: PyTree,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    vjp_order: int = 0,
    compatibility: str | None = "WEEK_12",
    custom_calls: Sequence[str] = (),
) -> ExportedProgram:
    """Lower a function or a graph to a portable program.

    Extensions are lowered to standard ops; each stays one named call that carries its family_id and
    payload.

    Args:
      fn: a JAX-traceable function, or a Graph. Sizes that are equal by a guard of the graph are one
        symbol in the program, which refuses arguments where they differ.
      *specs: the arguments as pytrees of arrays or jax.ShapeDtypeStruct; dimensions may be
        symbolic; none for a graph.
      platforms: platforms of the program; none of them needs to be present.
      vjp_order: how many times the program can be differentiated in reverse mode: 0 never, 1 for
        gradients, 2 for gradients of gradients. Each order adds a program.
      compatibility: the StableHLO requirement ("WEEK_4", "WEEK_12") for which the program is
        rewritten, so that an older JAX can read it; source locations, which name files of this
        machine, are then dropped. None keeps the level of this JAX.
      custom_calls: targets of custom calls to allow although JAX does not keep them stable; the
        reader must have them.

    Raises:
      Unsupported: an extension has no lowering (kernels and host code are not portable); JAX does
        not keep a custom call stable, the text names the op; the function has no derivative of this
        order.
      ADRuleError: an extension has no rule for the derivative.
      ShapeError: an extension needs two symbolic dimensions to be equal, the text names the
        constraint to add; or JAX cannot compare symbolic sizes.
      InvalidConfig: specs for other arguments than the function takes.
      DTypeError: a 64-bit spec while 64-bit types are off; or a spec that is not an array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import export
      >>> (b,) = jax.export.symbolic_shape("b")
      >>> program = export(lambda x: x.sum(1), jax.ShapeDtypeStruct((b, 3), jnp.float32))
      >>> program.call(jnp.ones((2, 3))).tolist()
      [3.0, 3.0]
    """
    require_kind(fn, Callable, "export", "a function or a Graph", "Pass one first, then its specs.")
    guards: tuple[Guard, ...] = ()
    if isinstance(fn, Graph):
        if specs:
            raise InvalidConfig(
                where="export",
                given="a graph and specs",
                needed="only a graph, because a graph has its specs",
            )
        graph, guards = unified(fn), fn.guards
        specs, fn = graph.input_specs, graph.to_jax()
    _require_options(platforms, vjp_order, custom_calls)
    require_x64_leaves(specs, "export")
    for leaf in jax.tree.leaves(specs):
        if not hasattr(leaf, "dtype"):
            as_operand(leaf, "export")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(target) for target in custom_calls]

    def rewritten(portable: bytes) -> bytes:
        try:
            return (
                portable
                if compatibility is None
                else jax_seam.rewrite_portable(portable, compatibility)
            )
        except Exception as error:  # any exception of JAX's serialiser
            raise Unsupported(
                where=f"export with compatibility={compatibility!r}",
                given=f"a program that this JAX cannot write for such readers: {first_line(error)}",
                needed="operations that these readers know",
                fix="Pass a later level, or compatibility=None for the newest level of this JAX.",
            ) from error

    lowered, jitted = None, jax.jit(_with_hash(fn))
    try:
        to_program = jax.export.export(jitted, platforms=tuple(platforms), disabled_checks=allowed)
        with errors_of_jax("export", fn, specs, {}):
            lowered = to_program(*specs)
        exported = with_derivatives(lowered, vjp_order, rewritten)
    except TenferroError:
        raise
    except NotImplementedError as error:  # JAX's error for host callbacks
        raise _unwritable(error, first_line(error)) from error
    except Exception as error:
        if found := jax_seam.unguaranteed_calls(error):
            raise _unguaranteed(found) from error
        if lowered is not None:
            raise Unsupported(
                where=f"export with vjp_order={vjp_order}",
                given=first_line(error),
                needed="a function that reverse mode can differentiate to this order",
                fix="Leave vjp_order out, or give the function a rule (jax.custom_vjp).",
            ) from error
        if len(platforms) > 1 and (callback := _callback(jitted, specs, platforms[:1])):
            raise _unwritable(error, callback) from error
        if not guards:
            raise
        # JAX: a symbol that a guard replaced is still in a constraint
        raise undecided(
            guards[0].lhs,
            guards[0].rhs,
            f"export, of symbols with guards {', '.join(map(str, guards))}",
        ) from error
    modules = [jax_seam.read_module(program.mlir_module_serialized) for program in orders(exported)]
    return ExportedProgram(
        exported, described(exported, modules, jax.__version__), modules[0].constraints
    )


def _require_options(platforms: Sequence[str], vjp_order: int, custom_calls: Sequence[str]) -> None:
    jax_seam.require_platforms(platforms, "export")
    if type(vjp_order) is not int or vjp_order < 0:
        raise InvalidConfig(
            where="export",
            given=f"vjp_order={vjp_order!r}",
            needed="a non-negative int",
            fix="Pass 1 for gradients.",
        )
    if isinstance(custom_calls, str) or not all(
        isinstance(target, str) and target for target in custom_calls
    ):
        raise InvalidConfig(
            where="export", given=f"custom_calls={custom_calls!r}", needed="a tuple of names"
        )


def _unwritable(error: Exception, given: str) -> Unsupported:
    lacking = jax_seam.refused_for(error)[0] == "routine"  # a routine that only some platforms have
    return Unsupported(
        where="export",
        given=given,
        needed="operations that JAX can write into a file for these platforms",
        fix="Export only for platforms that have this operation."
        if lacking
        else "Remove host callbacks and jax.debug.print.",
    )


def _with_hash(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The function, or one that calls it: jax.jit asks for a hash, which a module of equinox that
    holds arrays has not.
    """
    try:
        hash(fn)
    except TypeError:
        return lambda *args: fn(*args)
    return fn


def _callback(jitted: jax.stages.Wrapped, specs: Sequence[PyTree], platforms: Sequence[str]) -> str:
    """JAX's error for a host callback: for several platforms it has no clear one."""
    try:
        jax.export.export(jitted, platforms=platforms)(*specs)
    except Exception as error:  # of others the first one is shown
        return first_line(error) if isinstance(error, NotImplementedError) else ""
    return ""


def _unguaranteed(found: Sequence[tuple[str, str]]) -> Unsupported:
    """The error of custom calls (target, op) that JAX does not keep stable."""
    targets = tuple(sorted({target for target, _ in found}))
    ops = ", ".join(
        dict.fromkeys(f"{target!r}" + (f" of {op}" if op else "") for target, op in found)
    )
    return Unsupported(
        where="export",
        given=f"custom calls that JAX does not keep stable: {ops}",
        needed="standard ops, and custom calls that JAX keeps stable",
        fix=f"Use standard ops, or pass custom_calls={targets} if every reader has them.",
    )


def unified(graph: Graph) -> Graph:
    """A graph with its guards made true: if one side of a guard is a symbol, the other side
    replaces it.

    Other undecided equalities, such as of two products of symbols, stay guards.
    """
    while True:
        symbols = {
            str(d): d
            for m in graph.input_metas
            for d in m.shape
            if is_symbolic_dim(d) and str(d).isidentifier()
        }
        found = next(filter(None, (_solved(guard, symbols) for guard in graph.guards)), None)
        if found is None:
            return graph
        graph = graph.map_leaves(functools.partial(bind_dim, sizes=symbols | found))


def _solved(guard: Guard, symbols: Mapping[str, SymDim]) -> dict[str, SymDim] | None:
    """A symbol of the guard with the size that the guard gives it, or None."""
    for symbol, size in ((guard.lhs, guard.rhs), (guard.rhs, guard.lhs)):
        if str(symbol) in symbols and not re.search(rf"\b{symbol}\b", str(size)):
            return {str(symbol): size}
    return None
