"""jaxpr -> graph: one table, a JAX primitive's name -> the builder calls that record it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import jax_seam
from ..errors import Unsupported
from ..extension import Extension
from ..ops import analytic, arithmetic, contraction, control, indexing, reduction, structural
from ..ops.arithmetic import Direction

Row = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]  # (builder, equation, inputs) -> outputs


def read_jaxpr(builder: Any, closed: Any, inputs: Sequence[Any], caller: Any = None) -> list[Any]:
    """Record every equation of a jaxpr through the builder; returns the values of its outputs.

    Args:
      builder: a GraphBuilder.
      closed: the jaxpr with its constants.
      inputs: a value for each of its inputs.
      caller: the equation that calls this jaxpr, whose source line is named where an inner equation has none.
    """
    jaxpr, constants = jax_seam.open_jaxpr(closed)
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        value = _literal(atom) if jax_seam.is_literal(atom) else values[atom]
        return value if hasattr(value, "meta") else builder.constant(value)

    for eqn in jaxpr.eqns:
        row = _row(eqn, caller)
        outs = row(builder, eqn, [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _literal(atom: Any) -> np.ndarray:
    return np.asarray(atom.val, atom.aval.dtype)


def _row(eqn: Any, caller: Any) -> Row:
    if isinstance(eqn.params.get("op"), Extension):
        return _extension
    row = ROWS.get(eqn.primitive.name)
    if row is None:
        raise Unsupported(
            where=f"reading JAX primitive {eqn.primitive.name!r} into a graph",
            given=f"{eqn.primitive.name} at {_source(eqn, caller)}",
            needed="a primitive that one of the standard ops covers; docs/spec/ops.md lists them",
            fix="Write this part with those, or keep it outside the graph.",
        )
    return row


_LIBRARIES = tuple(str(pathlib.Path(str(module.__file__)).parent) for module in (jax, jax_seam))


def _source(*eqns: Any) -> str:
    """The user's line that made the first of the equations that has one."""
    for eqn in eqns:
        traceback = None if eqn is None else eqn.source_info.traceback
        for frame in [] if traceback is None else traceback.frames:
            if not frame.file_name.startswith((*_LIBRARIES, "<")):
                return f"{frame.file_name}:{frame.line_num}"
    return "an unknown line"


# --- rows ----------------------------------------------------------------------------------------------------------


def _op(make: Callable[[dict[str, Any]], Any]) -> Row:
    """A primitive that is one standard op, made from the equation's params."""
    return lambda builder, eqn, inputs: builder.add(make(eqn.params), *inputs)


def _plain(op: Any) -> Row:
    return _op(lambda _: op)


def _same(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return inputs


def _extension(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return builder.add(eqn.params["op"], *inputs, rules=eqn.params["rules"])


def _inlined(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """A primitive that only calls a jaxpr."""
    (inner,) = jax_seam.inner_jaxprs(eqn)[:1]
    return read_jaxpr(builder, inner, inputs, caller=eqn)


def _custom_rule(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """A function with a derivative of its own: its body is inlined, the loss of the derivative is noted."""
    builder.lose_rules([f"{eqn.primitive.name} at {_source(eqn)}"])
    return _inlined(builder, eqn, inputs)


def _body(builder: Any, closed: Any) -> Any:
    sub = builder.fresh()
    jaxpr, _ = jax_seam.open_jaxpr(closed)
    graph = sub.build(read_jaxpr(sub, closed, [sub.input(v.aval) for v in jaxpr.invars]))
    builder.absorb(graph)
    return graph


def _scan(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    constants, carried, scanned = jax_seam.scan_counts(eqn)
    if scanned or len(eqn.outvars) != carried:
        raise Unsupported(
            where="reading JAX primitive 'scan' into a graph",
            given=f"a scan over {scanned} arrays that stacks {len(eqn.outvars) - carried} results at {_source(eqn)}",
            needed="a counted loop: a scan that only carries values, as jax.lax.fori_loop makes",
            fix="Keep it outside the graph. The reverse-mode derivative of a loop is such a scan: use jax.grad(graph.to_jax()).",
        )
    body = _body(builder, eqn.params["jaxpr"])
    return builder.add(control.CountedLoop(body, eqn.params["length"], constants), *inputs)


def _while(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    p = eqn.params
    predicate, _ = jax_seam.open_jaxpr(p["cond_jaxpr"])
    if predicate.outvars[0].aval.shape != ():
        raise Unsupported(
            where="reading JAX primitive 'while' into a graph",
            given=f"a while_loop under vmap whose predicate differs along the batch, at {_source(eqn)}",
            needed="one predicate for the whole loop",
            fix="Trace the loop for one element, or keep it outside the graph.",
        )
    op = control.While(_body(builder, p["cond_jaxpr"]), _body(builder, p["body_jaxpr"]), p["cond_nconsts"], p["body_nconsts"])
    return builder.add(op, *inputs)


def _cond(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    branches = tuple(_body(builder, branch) for branch in eqn.params["branches"])
    index = inputs[0]
    if index.dtype == np.dtype(bool):
        (index,) = builder.add(arithmetic.Convert(np.dtype("int32")), index)
    return builder.add(control.Cond(branches), index, *inputs[1:])


def _select_n(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    which, *cases = inputs
    if which.dtype == np.dtype("int32") and len(cases) == 2:  # a cond under vmap
        zero = builder.add(structural.BroadcastInDim(which.shape, ()), builder.constant(np.int32(0)))[0]
        (which,) = builder.add(arithmetic.Compare(Direction.Ne), which, zero)
    if which.dtype != np.dtype(bool) or len(cases) != 2:
        raise Unsupported(
            where="reading JAX primitive 'select_n' into a graph",
            given=f"{len(cases)} cases chosen by {which.dtype} at {_source(eqn)}",
            needed="two cases chosen by a boolean",
            fix="Use jax.numpy.where.",
        )
    return builder.add(arithmetic.Select(), _broadcast(builder, which, cases[0].shape), cases[1], cases[0])


def _clamp(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    low, x, high = inputs
    return builder.add(arithmetic.Clamp(), x, low, high)


def _broadcast(builder: Any, value: Any, shape: Sequence[Any]) -> Any:
    """A value whose rank is 0, or whose axes of size 1 repeat, in the full shape."""
    if value.shape == tuple(shape):
        return value
    return builder.add(structural.BroadcastInDim(tuple(shape), tuple(range(value.ndim))), value)[0]


def _elementwise(op: Any) -> Row:
    """A binary primitive; what lax broadcasts by itself (rank 0, axes of size 1) is broadcast here."""

    def row(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        return builder.add(op, *(_broadcast(builder, v, eqn.outvars[0].aval.shape) for v in inputs))

    return row


def _square(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return builder.add(arithmetic.Mul(), inputs[0], inputs[0])


def _split(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    shape, axis, start, parts = inputs[0].shape, eqn.params["axis"], 0, []
    for size in eqn.params["sizes"]:
        starts, limits = [0] * len(shape), list(shape)
        starts[axis], limits[axis] = start, start + size
        parts += builder.add(structural.Slice(tuple(starts), tuple(limits), (1,) * len(shape)), inputs[0])
        start += size
    return parts


def _slice(p: dict[str, Any]) -> Any:
    starts = tuple(p["start_indices"])
    return structural.Slice(starts, tuple(p["limit_indices"]), tuple(p["strides"] or (1,) * len(starts)))


def _pad(p: dict[str, Any]) -> Any:
    low, high, interior = zip(*p["padding_config"], strict=True) if p["padding_config"] else ((), (), ())
    return structural.Pad(low, high, interior)


def _reshape(p: dict[str, Any]) -> Any:
    if p.get("dimensions") is not None:
        raise Unsupported(where="reshape", given="a permuting reshape", needed="row-major order", fix="Transpose first.")
    return structural.Reshape(tuple(p["new_sizes"]))


def _reshape_to_output(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return builder.add(structural.Reshape(tuple(eqn.outvars[0].aval.shape)), *inputs)


def _precision(p: Any) -> Any:
    if p is None:
        return None
    if isinstance(p, tuple) and all(isinstance(x, jax.lax.Precision) for x in p):
        return tuple(x.name for x in p)
    raise Unsupported(where="dot_general", given=f"precision {p}", needed="lax.Precision values", fix="Use jax.lax.Precision.")


def _dot_general(p: dict[str, Any]) -> Any:
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = p["dimension_numbers"]
    accumulation = p["preferred_element_type"]
    return contraction.DotGeneral(
        tuple(lhs_contracting),
        tuple(rhs_contracting),
        tuple(lhs_batch),
        tuple(rhs_batch),
        _precision(p["precision"]),
        None if accumulation is None else np.dtype(accumulation),
    )


_BOUNDS = {o.mode: o for o in indexing.OutOfBounds}


def _gather(p: dict[str, Any]) -> Any:
    n = p["dimension_numbers"]
    return indexing.Gather(
        tuple(n.offset_dims),
        tuple(n.collapsed_slice_dims),
        tuple(n.start_index_map),
        tuple(p["slice_sizes"]),
        tuple(n.operand_batching_dims),
        tuple(n.start_indices_batching_dims),
        _BOUNDS[p["mode"]],
    )


def _scatter(p: dict[str, Any]) -> Any:
    n = p["dimension_numbers"]
    return indexing.Scatter(
        tuple(n.update_window_dims),
        tuple(n.inserted_window_dims),
        tuple(n.scatter_dims_to_operand_dims),
        tuple(n.operand_batching_dims),
        tuple(n.scatter_indices_batching_dims),
        _BOUNDS[p["mode"]],
    )


def _dimension(builder: Any, eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    return builder.add(arithmetic.DimensionValue(eqn.params["dim"], np.dtype(eqn.outvars[0].aval.dtype)))


ROWS: dict[str, Row] = {
    # elementwise
    "add": _elementwise(arithmetic.Add()),
    "add_any": _plain(arithmetic.Add()),
    "sub": _elementwise(arithmetic.Sub()),
    "mul": _elementwise(arithmetic.Mul()),
    "div": _elementwise(arithmetic.Div()),
    "rem": _elementwise(arithmetic.Rem()),
    "max": _elementwise(arithmetic.Maximum()),
    "min": _elementwise(arithmetic.Minimum()),
    "and": _elementwise(arithmetic.And()),
    "or": _elementwise(arithmetic.Or()),
    "pow": _elementwise(analytic.Pow()),
    **{d.value: _elementwise(arithmetic.Compare(d)) for d in Direction},
    "not": _plain(arithmetic.Not()),
    "neg": _plain(arithmetic.Neg()),
    "abs": _plain(arithmetic.Abs()),
    "sign": _plain(arithmetic.Sign()),
    "exp": _plain(analytic.Exp()),
    "log": _plain(analytic.Log()),
    "expm1": _plain(analytic.Expm1()),
    "log1p": _plain(analytic.Log1p()),
    "sin": _plain(analytic.Sin()),
    "cos": _plain(analytic.Cos()),
    "tanh": _plain(analytic.Tanh()),
    "is_finite": _plain(arithmetic.IsFinite()),
    "stop_gradient": _plain(arithmetic.StopGradient()),
    "logistic": _plain(analytic.Logistic()),
    "sqrt": _plain(analytic.Sqrt()),
    "rsqrt": _plain(analytic.Rsqrt()),
    "integer_pow": _op(lambda p: analytic.IntegerPow(p["y"])),
    "square": _square,
    "select_n": _select_n,
    "clamp": _clamp,
    "convert_element_type": _op(lambda p: arithmetic.Convert(np.dtype(p["new_dtype"]))),
    # structural
    "transpose": _op(lambda p: structural.Transpose(tuple(p["permutation"]))),
    "reshape": _op(_reshape),
    "squeeze": _reshape_to_output,
    "expand_dims": _reshape_to_output,
    "broadcast_in_dim": _op(lambda p: structural.BroadcastInDim(tuple(p["shape"]), tuple(p["broadcast_dimensions"]))),
    "slice": _op(_slice),
    "split": _split,
    "pad": _op(_pad),
    "rev": _op(lambda p: structural.Reverse(tuple(p["dimensions"]))),
    "concatenate": _op(lambda p: structural.Concatenate(p["dimension"])),
    "iota": _op(lambda p: structural.Iota(np.dtype(p["dtype"]), tuple(p["shape"]), p["dimension"])),
    "dim_as_value": _dimension,
    # contraction and reduction
    "dot_general": _op(_dot_general),
    "reduce_sum": _op(lambda p: reduction.ReduceSum(tuple(p["axes"]))),
    "reduce_prod": _op(lambda p: reduction.ReduceProd(tuple(p["axes"]))),
    "reduce_max": _op(lambda p: reduction.ReduceMax(tuple(p["axes"]))),
    "reduce_min": _op(lambda p: reduction.ReduceMin(tuple(p["axes"]))),
    "reduce_and": _op(lambda p: reduction.ReduceAnd(tuple(p["axes"]))),
    "reduce_or": _op(lambda p: reduction.ReduceOr(tuple(p["axes"]))),
    "argmax": _op(lambda p: reduction.ArgMax(p["axes"][0], np.dtype(p["index_dtype"]))),
    "argmin": _op(lambda p: reduction.ArgMin(p["axes"][0], np.dtype(p["index_dtype"]))),
    # indexing
    "gather": _op(_gather),
    "scatter-add": _op(_scatter),
    "dynamic_slice": _op(lambda p: indexing.DynamicSlice(tuple(p["slice_sizes"]))),
    "dynamic_update_slice": _plain(indexing.DynamicUpdateSlice()),
    # control flow, calls, and primitives that do nothing to values
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"), _inlined),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), _custom_rule),
    **dict.fromkeys(("name", "copy", "copy_p", "optimization_barrier"), _same),
}
