"""The rows of the table of JAX primitives: name -> the ops that record the primitive. The package
`graph` imports this module, which fills the table.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .. import jax_seam
from ..both_modes import replaced
from ..dimensions import SymDim
from ..errors import first_line
from ..jax_seam import ClosedJaxpr, Eqn, Params
from ..ops import (
    analytic,
    arithmetic,
    contraction,
    control,
    conversion,
    indexing,
    linalg,
    logic,
    random,
    reduction,
    sorting,
    source,
    special,
    structural,
    window,
)
from ..ops.op import StdTensorOp
from ..shapes import (
    ArrayFunction,
    Arrays,
    PyTree,
    Shaped,
    TensorMeta,
    is_inexact,
    struct,
    with_zeros,
)
from .builder import ROWS, GraphBuilder, Reader, Row, Value, Values, described, refuse
from .graph import Graph, LostRule, bodies

T = TypeVar("T")
# --- kinds of rows --------------------------------------------------------------------------------


def _op(make: Callable[[Params], StdTensorOp]) -> Row:
    """A primitive that is one standard op, made from the equation's params."""
    return lambda reader, eqn, inputs: _recorded(reader, eqn, make(eqn.params), inputs)


def _recorded(
    reader: Reader,
    eqn: Eqn,
    op: StdTensorOp,
    inputs: Values,
) -> Values:
    """Record an equation as one op; JAX has inferred its outputs already."""
    return reader.builder.add(op, *inputs, metas=[described(v) for v in eqn.outvars])


def _plain(op: StdTensorOp) -> Row:
    return _op(lambda _: op)


def _fields(cls: Any, **found: str | Callable[[Params], object]) -> Row:
    """A primitive whose params, or whose dimension numbers, are the op's fields: by the same name,
    by the given one, or as the given function of the params.
    """

    names = [f.name for f in dataclasses.fields(cls)]

    def make(params: Params) -> StdTensorOp:
        numbers = params.get("dimension_numbers")

        def value(name: str) -> object:
            how = found.get(name, name)
            if not isinstance(how, str):
                return how(params)
            return params[how] if how in params else getattr(numbers, how)

        return cls(**{name: payload(value(name)) for name in names})

    return _op(make)


def payload(value: object) -> Any:
    """A param as a payload leaf: sequences as tuples, NumPy integers as int, scalar types as
    dtypes, precisions by their names.
    """
    if isinstance(value, list | tuple):
        return tuple(map(payload, value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, jax.lax.Precision | jax.lax.DotAlgorithmPreset):
        return value.name
    if isinstance(value, jax.lax.GatherScatterMode):
        return _BOUNDS[value]
    return np.dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value


_BOUNDS = {o.mode: o for o in indexing.OutOfBounds}


def _broadcast(builder: GraphBuilder, value: Value, shape: Sequence[SymDim]) -> Value:
    """A value of rank 0, or with axes of size 1, broadcast to the full shape."""
    if value.shape == tuple(shape):
        return value
    op = structural.BroadcastInDim(tuple(shape), tuple(range(value.ndim)))
    return builder.add(op, value, metas=[TensorMeta(value.dtype, op.shape)])[0]


def _elementwise(op: StdTensorOp) -> Row:
    """A primitive of several operands; operands that lax broadcasts itself (rank 0, axes of size 1)
    are broadcast explicitly.
    """

    def row(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
        shape = eqn.outvars[0].aval.shape
        return _recorded(reader, eqn, op, [_broadcast(reader.builder, v, shape) for v in inputs])

    return row


def _expanded(fn: Callable[..., PyTree]) -> Row:
    """A primitive that becomes several ops: a lax function of (params, *arrays) that is read
    instead.
    """
    return lambda reader, eqn, inputs: reader.builder.inline(
        lambda *xs: jax.tree.leaves(fn(eqn.params, *xs)), *inputs
    )


# --- calls ----------------------------------------------------------------------------------------


def _same(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    return inputs


def _inlined(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    """A primitive that only calls a jaxpr."""
    return reader.read(jax_seam.inner_jaxprs(eqn)[0], inputs, eqn)


def _recomputed(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    """A part under jax.checkpoint. As in JAX, the recomputation waits for the backward pass;
    otherwise its nodes would be merged with those of the forward pass.
    """
    if eqn.params.get("differentiated") and eqn.params["prevent_cse"]:
        inputs = reader.builder.add(source.OptimizationBarrier(), *inputs)
    return _inlined(reader, eqn, inputs)


def _expanded_primitive(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    """A hijax primitive, read as its expansion. If it can have a derivative of its own, the loss of
    this derivative is noted.
    """
    if any(is_inexact(v.aval) for v in eqn.outvars) and not reader.is_derivative_free:
        name, _ = jax_seam.source_of(eqn)
        reader.builder.lose_rules([LostRule(name, f"at {reader.source(eqn)}")])
    return reader.builder.inline(jax_seam.expansion(eqn), *inputs)


def _custom(extract: Callable[..., tuple[Graph, ...]], cls: Callable[..., StdTensorOp]) -> Row:
    """A function with a custom derivative. If its rule cannot be read, the function is inlined and
    the loss is noted.
    """

    def make(
        reader: Reader,
        eqn: Eqn,
        inner: ClosedJaxpr,
        name: str,
        inputs: Values,
    ) -> StdTensorOp | str:
        try:
            if reader.rule_depth == 0:
                raise refuse(
                    eqn.primitive.name,
                    "a higher derivative",
                    "the first to the third order",
                    "Trace the derivative of the function.",
                )
            fixed = _fixed(reader, eqn, inputs)
            rules = extract(reader, jax_seam.as_function(eqn), inputs, fixed)
        except Exception as error:  # any exception of an author's rule when it is traced separately
            return first_line(error)
        return cls(name, reader.sub_graph(inner, derivative_free=True), *rules)

    def row(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
        inner = jax_seam.inner_jaxprs(eqn)[0]
        if reader.is_derivative_free:
            return reader.read(inner, inputs, eqn)
        metas = tuple(v.meta for v in inputs)
        name = jax_seam.open_jaxpr(inner)[0].debug_info.func_name
        op = control.known_custom(name, metas, [described(v) for v in eqn.outvars])
        name = name.split(jax_seam.MARK)[0]
        if op is None:
            op = reader.once((eqn, metas), lambda: make(reader, eqn, inner, name, inputs))
        if isinstance(op, str):  # the reason why the rule is lost
            reader.builder.lose_rules([LostRule(name, f"at {reader.source(eqn)} ({op})")])
            return reader.read(inner, inputs, eqn)
        for graph in bodies(op):
            reader.builder.rules = reader.builder.rules.united(graph.rules)
        return reader.builder.add(op, *inputs)

    return row


def _refused_custom_lin(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    given = "the forward-mode derivative of a custom_vjp function"
    fix = "Differentiate tenferro_jax.both_modes(f) in place of f."
    raise refuse("custom_lin", given, "reverse mode, or a custom_jvp", fix)


IN_BOTH_MODES = ("both_modes_call", "both_modes_tangent")


def of_one_mode(eqn: Eqn) -> ArrayFunction:
    """The call of a jax.custom_vjp that `both_modes` found, with its author's rules alone; or its
    tangents.
    """
    p = eqn.params
    fn: ArrayFunction = p["rule"].pushed if "rule" in p else p["call"].fn
    return fn


def _in_both_modes(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    return reader.builder.inline(of_one_mode(eqn), *inputs)


def moving(values: Sequence[Shaped]) -> list[int]:
    """Which of the values have tangents."""
    return [i for i, x in enumerate(values) if is_inexact(x)]


def pushed(
    fn: ArrayFunction,
    primals: Arrays,
    given: Arrays,
) -> tuple[Arrays, list[jax.Array]]:
    """(outputs, the tangents of those that have one) of a function, for the tangents of those of
    its inputs that have one.
    """
    places = moving(primals)
    outs, found = jax.jvp(_of_parts(fn, primals, places), [primals[i] for i in places], list(given))
    return outs, [found[i] for i in moving(outs)]


def pulled(fn: ArrayFunction, xs: Arrays, fixed: Collection[int] = ()) -> tuple[Any, Any]:
    """(outputs, the function of their cotangents), for the inputs that have tangents and are not
    fixed.
    """
    places = [i for i in moving(xs) if i not in fixed]
    return jax.vjp(_of_parts(fn, xs, places), *(xs[i] for i in places))


def _of_parts(fn: Callable[..., T], xs: Arrays, places: Sequence[int]) -> Callable[..., T]:
    return lambda *parts: fn(*replaced(xs, places, parts))


def _fixed(reader: Reader, eqn: Eqn, inputs: Values) -> set[int]:
    """The inputs that are constants over which a function closes: JAX has no cotangent of them."""
    closed_over = range(jax_seam.closed_over(eqn))
    return {
        i for i in closed_over if isinstance(reader.builder.maker(inputs[i])[0], source.Constant)
    }


def _jvp_rule(
    reader: Reader,
    fn: ArrayFunction,
    inputs: Values,
    fixed: Collection[int],
) -> tuple[Graph]:
    """(the graph of primals and tangents -> outputs and output tangents,) of a custom_jvp
    function.
    """
    metas = [v.meta for v in inputs]

    def run(*both: jax.Array) -> list[jax.Array]:
        outs, tangents = pushed(fn, both[: len(metas)], both[len(metas) :])
        return [*outs, *tangents]

    return (reader.rule_graph(run, [*metas, *filter(is_inexact, metas)]),)


def _vjp_rule(
    reader: Reader,
    fn: ArrayFunction,
    inputs: Values,
    fixed: Collection[int],
) -> tuple[Graph, Graph]:
    """(the graph of arguments -> outputs and residuals, the graph of residuals and cotangents ->
    cotangents).
    """
    found: dict[str, Any] = {}

    def forward(*xs: jax.Array) -> list[jax.Array]:
        outs, pullback = pulled(fn, xs, fixed)
        residuals, found["tree"] = jax.tree.flatten(pullback)
        found["outs"] = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outs]
        return [*outs, *residuals]

    forward_graph = reader.rule_graph(forward, [v.meta for v in inputs])
    count = len(found["outs"])
    metas, residuals = forward_graph.output_metas[:count], forward_graph.output_metas[count:]

    def backward(*both: jax.Array) -> list[jax.Array]:
        given = with_zeros(both[len(residuals) :], found["outs"])
        made = iter(jax.tree.unflatten(found["tree"], both[: len(residuals)])(given))
        wanted = moving(inputs)
        return [_zeros(inputs[i]) if i in fixed else next(made) for i in wanted]

    taken = filter(is_inexact, metas)
    return forward_graph, reader.rule_graph(backward, [*residuals, *taken])


def _zeros(like: Shaped) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype)


# --- control flow ---------------------------------------------------------------------------------


def _scan(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    p = eqn.params
    constants, carried, _ = jax_seam.scan_counts(eqn)
    op = control.Scan(
        reader.sub_graph(p["jaxpr"]),
        payload(p["length"]),
        constants,
        carried,
        p["reverse"],
        p["unroll"],
    )
    return reader.builder.add(op, *inputs)


def _while(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    p = eqn.params
    tested, used = p["cond_nconsts"], p["body_nconsts"]
    predicate = jax_seam.open_jaxpr(p["cond_jaxpr"])[0].outvars[0].aval
    if predicate.shape != ():
        run = functools.partial(_while_any, p, predicate.ndim)
        closed = jax.make_jaxpr(run)(*(struct(v.meta) for v in inputs))
        return reader.read(closed, inputs, eqn)
    op = control.While(
        reader.sub_graph(p["cond_jaxpr"]), reader.sub_graph(p["body_jaxpr"]), tested, used
    )
    return reader.builder.add(op, *inputs)


def _while_any(p: Params, ndim: int, *xs: jax.Array) -> list[jax.Array]:
    """A loop under vmap, where each element has its own predicate: it goes on while any of them
    holds, and changes only these elements.
    """
    tested, used = p["cond_nconsts"], p["body_nconsts"]
    holds, step = (jax_seam.function_of(p[name]) for name in ("cond_jaxpr", "body_jaxpr"))

    def go_on(carry: Arrays) -> jax.Array:
        return holds(*xs[:tested], *carry)[0].any()

    def advanced(carry: Arrays) -> list[jax.Array]:
        (moves,) = holds(*xs[:tested], *carry)
        changed = []
        for new, old in zip(step(*xs[tested : tested + used], *carry), carry, strict=True):
            moves_here = jax.lax.broadcast_in_dim(moves, old.shape, tuple(range(ndim)))
            changed.append(jax.lax.select(moves_here, new, old))
        return changed

    return jax.lax.while_loop(go_on, advanced, list(xs[tested + used :]))


def _platform_index(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    """The index of a `cond` that chooses by platform. It is not needed: outside Pallas kernels
    JAX's own ones have only one branch.
    """
    named = [name for names in eqn.params["platforms"] for name in names or () if name != "mosaic"]
    if named:
        given = (
            f"lax.platform_dependent with a branch for {', '.join(named)} at {reader.source(eqn)}"
        )
        fix = "Keep it outside the graph, or call it in the lowering of an extension op."
        raise refuse("platform_index", given, "the same computation on every platform", fix)
    return (reader.builder.constant(np.int32(0)),)


def _cond(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    platforms = eqn.params.get("branches_platforms")
    if platforms is not None:
        return reader.read(eqn.params["branches"][platforms.index(None)], inputs[1:], eqn)
    branches = tuple(reader.sub_graph(branch) for branch in eqn.params["branches"])
    return reader.builder.add(
        control.Cond(branches), _plain_index(reader.builder, inputs[0], len(branches)), *inputs[1:]
    )


def _plain_index(builder: GraphBuilder, index: Value, count: int) -> Value:
    """The index of a cond before lax.cond converted it from a boolean or lax.switch clamped it,
    because the op does this itself.
    """
    op, made_from = builder.maker(index)
    if isinstance(op, conversion.Convert) and made_from[0].dtype == np.dtype(bool) and count == 2:
        return made_from[0]
    if isinstance(op, logic.Clamp):
        bounds = [builder.maker(v)[0] for v in made_from[1:]]
        if bounds == [source.Constant(np.int32(0)), source.Constant(np.int32(count - 1))]:
            return made_from[0]
    return index


def _linear_solve(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    counts, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    matvec, solve = reader.sub_graph(jaxprs.matvec), reader.sub_graph(jaxprs.solve)
    transpose_solve = None
    if jaxprs.transpose_solve is not None:
        transpose_solve = reader.sub_graph(jaxprs.transpose_solve)
    op = control.LinearSolve(
        matvec,
        solve,
        transpose_solve,
        constant_counts=(counts.matvec, counts.solve, counts.transpose_solve),
        symmetric=jaxprs.vecmat is jaxprs.matvec,
    )
    # Without the constants of vecmat, which is the transpose of matvec.
    used = [*inputs[: counts.matvec], *inputs[counts.matvec + counts.vecmat :]]
    return reader.builder.add(op, *used)


def _select_n(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    which, *cases = inputs
    builder, chosen = reader.builder, cases[-1]
    if which.dtype == np.dtype(bool):
        chosen = cases[0]
        for case in cases[1:]:
            predicate = _broadcast(builder, which, case.shape)
            (chosen,) = _recorded(reader, eqn, logic.Select(), [predicate, case, chosen])
        return (chosen,)
    for i in reversed(range(len(cases) - 1)):  # int32: a switch under vmap
        (number,) = builder.add(
            structural.BroadcastInDim(which.shape, ()), builder.constant(np.asarray(i, which.dtype))
        )
        (here,) = builder.add(logic.Compare(logic.Direction.Le), which, number)
        (chosen,) = builder.add(
            logic.Select(), _broadcast(builder, here, chosen.shape), cases[i], chosen
        )
    return (chosen,)


# --- structural and elementwise -------------------------------------------------------------------


def _clamp(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    low, x, high = inputs
    return _recorded(reader, eqn, logic.Clamp(), [x, low, high])


def _split(p: Params, x: jax.Array) -> list[jax.Array]:
    ends = itertools.accumulate(p["sizes"])
    return [
        jax.lax.slice_in_dim(x, end - size, end, axis=p["axis"])
        for size, end in zip(p["sizes"], ends, strict=True)
    ]


def _slice(p: Params) -> StdTensorOp:
    starts = payload(p["start_indices"])
    return structural.Slice(
        starts, payload(p["limit_indices"]), payload(p["strides"]) or (1,) * len(starts)
    )


def _pad(p: Params) -> StdTensorOp:
    config = payload(p["padding_config"])
    return structural.Pad(*(zip(*config, strict=True) if config else ((), (), ())))


def _reshape(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    order = payload(eqn.params["dimensions"])
    if order is not None:
        inputs = reader.builder.add(structural.Transpose(order), *inputs)
    return _reshape_to_output(reader, eqn, inputs)


def _reshape_to_output(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    return _recorded(reader, eqn, structural.Reshape(tuple(eqn.outvars[0].aval.shape)), inputs)


def _conj(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    (x,) = inputs
    dtype = np.dtype(eqn.outvars[0].aval.dtype)
    if x.dtype != dtype:  # lax.conj makes a real input complex
        (x,) = reader.builder.add(conversion.Convert(dtype), x)
    return _recorded(reader, eqn, conversion.Conj(), [x])


def _dimension(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    op = source.DimensionValue(eqn.params["dim"], np.dtype(eqn.outvars[0].aval.dtype))
    return _recorded(reader, eqn, op, inputs)


def _empty(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    """Memory that the other branch of a differentiated cond never reads; here zeros, because a
    graph has no undefined values.
    """
    aval = eqn.outvars[0].aval
    zero = reader.builder.constant(np.zeros((), aval.dtype))
    return (_broadcast(reader.builder, zero, aval.shape),)


def _tile(p: Params, x: jax.Array) -> jax.Array:
    sizes = [part for size, times in zip(x.shape, p["reps"], strict=True) for part in (times, size)]
    wide = jax.lax.broadcast_in_dim(x, sizes, [2 * axis + 1 for axis in range(x.ndim)])
    return jax.lax.reshape(
        wide, [size * times for size, times in zip(x.shape, p["reps"], strict=True)]
    )


def _stack(p: Params, *xs: jax.Array) -> jax.Array:
    return jax.lax.concatenate([jax.lax.expand_dims(x, [p["axis"]]) for x in xs], p["axis"])


def _unstack(p: Params, x: jax.Array) -> list[jax.Array]:
    axis = p["axis"]
    return [jax.lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _polynomial(p: Params, x: jax.Array, *coefficients: jax.Array) -> jax.Array:
    total = jax.numpy.broadcast_to(coefficients[-1], x.shape)
    for c in reversed(coefficients[:-1]):
        total = total * x + jax.numpy.broadcast_to(c, x.shape)
    return total


def _counter(p: Params) -> tuple[jax.Array, jax.Array]:
    """Two uint32 arrays: the high and the low half of the row-major position."""
    size = int(np.prod(p["shape"], dtype=np.uint64))
    if size > 2**32:
        raise refuse(
            "iota_2x32_shape",
            f"shape {p['shape']}",
            "at most 2**32 elements",
            "Draw several smaller arrays.",
        )
    low = jax.lax.reshape(jax.lax.iota(np.uint32, size), p["shape"])
    return jax.lax.full_like(low, 0), low


# --- contraction, windows, indexing, linear algebra, random ---------------------------------------


def _dot_general(p: Params) -> StdTensorOp:
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = payload(p["dimension_numbers"])
    return contraction.DotGeneral(
        lhs_contracting,
        rhs_contracting,
        lhs_batch,
        rhs_batch,
        payload(p["precision"]),
        payload(p["preferred_element_type"]),
    )


def _scatter_update(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    if eqn.params["update_jaxpr"] is not None:
        raise refuse(
            "scatter",
            "a scatter with another function",
            "one of add, subtract, multiply, min, max, set",
            "Use those.",
        )
    return _fields(indexing.ScatterUpdate, out_of_bounds="mode")(reader, eqn, inputs)


_WINDOW: dict[str, Any] = {"sizes": "window_dimensions", "strides": "window_strides"}
_CHOSEN = _WINDOW | {"of_maximum": lambda p: p["select_prim"].name == "ge"}


def _reduce_window(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    body = reader.sub_graph(jax_seam.closed(eqn.params["jaxpr"], eqn.params["consts"]))
    return _fields(window.ReduceWindow, body=lambda _: body, **_WINDOW)(reader, eqn, inputs)


def _reduce(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    return reader.builder.add(
        reduction.Reduce(reader.sub_graph(eqn.params["jaxpr"]), payload(eqn.params["dimensions"])),
        *inputs,
    )


def _approx_top_k(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    axis = payload(eqn.params["reduction_dimension"]) % inputs[0].ndim
    row = _fields(
        sorting.ApproxTopK,
        axis=lambda _: axis,
        recall_target=lambda p: float(p["recall_target"]),
        largest="is_max_k",
        input_size_override="reduction_input_size_override",
        aggregate="aggregate_to_topk",
    )
    return row(reader, eqn, inputs)


def _svd(reader: Reader, eqn: Eqn, inputs: Values) -> Values:
    outs = reader.builder.add(
        linalg.Svd(eqn.params["full_matrices"], eqn.params["compute_uv"]), *inputs
    )
    return (outs[1], outs[0], outs[2]) if len(outs) == 3 else outs  # the primitive puts s first


def _generator(cls: Callable[..., StdTensorOp]) -> Row:
    return _op(lambda p: cls(p["impl"].name))


ROWS |= {
    # ops without fields that take the operands as they are
    **{
        name: _plain(cls())
        for name, cls in {
            "add_any": arithmetic.Add,
            "neg": arithmetic.Neg,
            "abs": arithmetic.Abs,
            "sign": arithmetic.Sign,
            "floor": arithmetic.Floor,
            "ceil": arithmetic.Ceil,
            "not": logic.Not,
            "population_count": logic.PopulationCount,
            "clz": logic.CountLeadingZeros,
            "is_finite": logic.IsFinite,
            "log2": analytic.Log2,
            "asin": analytic.Asin,
            "acos": analytic.Acos,
            "atan": analytic.Atan,
            "sinh": analytic.Sinh,
            "cosh": analytic.Cosh,
            "asinh": analytic.Asinh,
            "acosh": analytic.Acosh,
            "atanh": analytic.Atanh,
            "one_minus_square": analytic.OneMinusSquare,
            "erf": special.Erf,
            "erfc": special.Erfc,
            "erf_inv": special.ErfInv,
            "lgamma": special.Lgamma,
            "digamma": special.Digamma,
            "bessel_i0e": special.BesselI0e,
            "bessel_i1e": special.BesselI1e,
            "real": conversion.Real,
            "imag": conversion.Imag,
            "stop_gradient": source.StopGradient,
            "optimization_barrier": source.OptimizationBarrier,
            "dynamic_update_slice": indexing.DynamicUpdateSlice,
            "cholesky": linalg.Cholesky,
            "lu": linalg.Lu,
            "householder_product": linalg.HouseholderProduct,
            "tridiagonal_solve": linalg.TridiagonalSolve,
            "random_unwrap": random.RandomUnwrap,
        }.items()
    },
    # ops without fields whose operands get one shape
    **{
        name: _elementwise(cls())
        for name, cls in {
            "add": arithmetic.Add,
            "sub": arithmetic.Sub,
            "mul": arithmetic.Mul,
            "div": arithmetic.Div,
            "rem": arithmetic.Rem,
            "max": arithmetic.Maximum,
            "min": arithmetic.Minimum,
            "nextafter": arithmetic.NextAfter,
            "and": logic.And,
            "or": logic.Or,
            "xor": logic.Xor,
            "shift_left": logic.ShiftLeft,
            "shift_right_arithmetic": logic.ShiftRightArithmetic,
            "shift_right_logical": logic.ShiftRightLogical,
            "atan2": analytic.Atan2,
            "pow": analytic.Pow,
            "polygamma": special.Polygamma,
            "zeta": special.Zeta,
            "igamma": special.Igamma,
            "igammac": special.Igammac,
            "igamma_grad_a": special.IgammaGradA,
            "random_gamma_grad": special.RandomGammaGrad,
            "regularized_incomplete_beta": special.RegularizedIncompleteBeta,
            "complex": conversion.Complex,
            "random_fold_in": random.RandomFoldIn,
        }.items()
    },
    # ops whose fields have the names of the params
    **{
        name: _fields(cls)
        for name, cls in {
            "reduce_precision": conversion.ReducePrecision,
            "transpose": structural.Transpose,
            "reduce_sum": reduction.ReduceSum,
            "reduce_prod": reduction.ReduceProd,
            "reduce_max": reduction.ReduceMax,
            "reduce_min": reduction.ReduceMin,
            "reduce_and": reduction.ReduceAnd,
            "reduce_or": reduction.ReduceOr,
            "reduce_xor": reduction.ReduceXor,
            "cumsum": reduction.CumSum,
            "cumprod": reduction.CumProd,
            "cummax": reduction.CumMax,
            "cummin": reduction.CumMin,
            "cumlogsumexp": reduction.CumLogSumExp,
            "top_k": sorting.TopK,  # stable, also where that was not asked for
            "lu_pivots_to_permutation": linalg.LuPivotsToPermutation,
            "qr": linalg.Qr,
            "eigh": linalg.Eigh,
            "triangular_solve": linalg.TriangularSolve,
            "random_bits": random.RandomBits,
            "random_split": random.RandomSplit,
            "random_gamma": random.RandomGamma,
        }.items()
    },
    # elementwise
    "round": _op(
        lambda p: arithmetic.Round(p["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN)
    ),
    **{d.value: _elementwise(logic.Compare(d)) for d in logic.Direction},
    **{
        f"{name}_to": _elementwise(logic.Compare(logic.Direction(f"{name}_to")))
        for name in ("eq", "lt", "le")
    },
    "select_n": _select_n,
    "clamp": _clamp,
    **{
        name: _fields(cls, accuracy=lambda p: p.get("accuracy"))
        for name, cls in {
            "exp": analytic.Exp,
            "exp2": analytic.Exp2,
            "expm1": analytic.Expm1,
            "log": analytic.Log,
            "log1p": analytic.Log1p,
            "sqrt": analytic.Sqrt,
            "rsqrt": analytic.Rsqrt,
            "cbrt": analytic.Cbrt,
            "logistic": analytic.Logistic,
            "sin": analytic.Sin,
            "cos": analytic.Cos,
            "tan": analytic.Tan,
            "tanh": analytic.Tanh,
        }.items()
    },
    "integer_pow": _fields(analytic.IntegerPow, exponent="y"),
    "square": lambda reader, eqn, inputs: _recorded(
        reader, eqn, arithmetic.Mul(), [*inputs, *inputs]
    ),
    "polynomial": _expanded(_polynomial),
    "convert_element_type": _op(lambda p: conversion.Convert(np.dtype(p["new_dtype"]))),
    "bitcast_convert_type": _op(lambda p: conversion.BitcastConvert(np.dtype(p["new_dtype"]))),
    "conj": _conj,
    # sources, gradient, compiler
    "iota": _fields(source.Iota, axis="dimension"),
    "iota_2x32_shape": _expanded(_counter),
    "dim_as_value": _dimension,
    **dict.fromkeys(("empty", "empty2"), _empty),
    # structural
    "reshape": _reshape,
    "squeeze": _reshape_to_output,
    "expand_dims": _reshape_to_output,
    "broadcast_in_dim": _fields(structural.BroadcastInDim, dims="broadcast_dimensions"),
    "slice": _op(_slice),
    "split": _expanded(_split),
    "pad": _op(_pad),
    "rev": _fields(structural.Reverse, axes="dimensions"),
    "concatenate": _fields(structural.Concatenate, axis="dimension"),
    "tile": _expanded(_tile),
    "stack": _expanded(_stack),
    "unstack": _expanded(_unstack),
    # contraction
    "dot_general": _op(_dot_general),
    "conv_general_dilated": _fields(
        contraction.Convolution,
        strides="window_strides",
        accumulation_dtype="preferred_element_type",
    ),
    "fft": _op(
        lambda p: contraction.Fft(jax.lax.FftType(p["fft_type"]).name, payload(p["fft_lengths"]))
    ),
    # reduction
    "reduce": _reduce,
    "argmax": _op(lambda p: reduction.ArgMax(payload(p["axes"][0]), np.dtype(p["index_dtype"]))),
    "argmin": _op(lambda p: reduction.ArgMin(payload(p["axes"][0]), np.dtype(p["index_dtype"]))),
    "reduce_window_sum": _fields(window.ReduceWindowSum, **_WINDOW),
    "reduce_window_max": _fields(window.ReduceWindowMax, **_WINDOW),
    "reduce_window_min": _fields(window.ReduceWindowMin, **_WINDOW),
    "reduce_window": _reduce_window,
    "select_and_scatter_add": _fields(window.SelectAndScatterAdd, **_CHOSEN),
    "select_and_gather_add": _fields(window.SelectAndGatherAdd, **_CHOSEN),
    # sorting and indexing
    "sort": _fields(sorting.Sort, axis="dimension"),
    "approx_top_k": _approx_top_k,
    "gather": _fields(indexing.Gather, out_of_bounds="mode"),
    **{
        f"scatter-{name}": _fields(cls, out_of_bounds="mode")
        for name, cls in {
            "add": indexing.Scatter,
            "sub": indexing.ScatterSub,
            "mul": indexing.ScatterMul,
            "min": indexing.ScatterMin,
            "max": indexing.ScatterMax,
        }.items()
    },
    "scatter": _scatter_update,
    "dynamic_slice": _fields(indexing.DynamicSlice, sizes="slice_sizes"),
    # linear algebra
    "svd": _svd,
    "eig": _fields(
        linalg.Eig, left="compute_left_eigenvectors", right="compute_right_eigenvectors"
    ),
    # random bits
    "random_seed": _generator(random.RandomSeed),
    "random_wrap": _generator(random.RandomWrap),
    "random_clone": _same,
    "rng_bit_generator": _op(
        lambda p: random.RngBitGenerator(
            payload(p["shape"]), np.dtype(p["dtype"]), jax.lax.RandomAlgorithm(p["algorithm"]).name
        )
    ),
    # control flow, calls, and primitives that do nothing to values
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "platform_index": _platform_index,
    "debug_print": lambda reader, eqn, inputs: (),  # a graph has no effects
    "custom_linear_solve": _linear_solve,
    "call_hi_primitive": _expanded_primitive,
    "custom_jvp_call": _custom(_jvp_rule, control.CustomJvp),
    **dict.fromkeys(("custom_lin", "call_hi_primitive_linearized"), _refused_custom_lin),
    **dict.fromkeys(IN_BOTH_MODES, _in_both_modes),
    "custom_vjp_call": _custom(_vjp_rule, control.CustomVjp),
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "remat_opt", "composite"),
        _inlined,
    ),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), _recomputed),
    **dict.fromkeys(("name", "copy", "copy_p", "device_put"), _same),
}
