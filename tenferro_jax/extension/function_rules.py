"""What the functions of an author give for inputs of some dtypes and shapes, found by tracing; and
the op "tangent" of a function with a reverse rule: its transpose is `bwd`, and its value is the
transpose of `bwd`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ADRuleError, TenferroError, Unsupported, first_line
from ..jax_seam import lacks_derivative, open_jaxpr
from ..shapes import TensorMeta, is_inexact, meta_of, struct
from .adopted import MISSING_RULE, Functions, shown
from .contract import CANNOT
from .nesting import PyTree, forward_text, held, missing, nesting_text, released
from .routes import equations
from .scope import LOWERING, Method, authored, lowering_at, require_not_traced, run_as

if TYPE_CHECKING:
    from .function_extension import FunctionExtension


def is_float0(x: object) -> bool:
    """Whether this is the tangent of an integer."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def filled(
    primals: Sequence[jax.Array | jax.ShapeDtypeStruct], tangents: Sequence[jax.Array | None]
) -> list[Any]:
    """The tangents, with zeros for those that are missing, as jax.custom_jvp gives them."""

    def zero(x: jax.Array | jax.ShapeDtypeStruct) -> Any:
        return jnp.zeros_like(x) if is_inexact(x) else np.zeros(np.shape(x), jax.dtypes.float0)

    return [zero(x) if t is None else t for x, t in zip(primals, tangents, strict=True)]


def reverse_of(op: FunctionExtension) -> tuple[Callable[..., PyTree], Callable[..., PyTree]]:
    """(fwd, bwd) of an op: the author's, or those of JAX for a function that is derived."""
    function = op.function
    if function.fwd is None:
        body = functools.partial(function.body, **op.payload)
        return lambda *args: jax.vjp(body, *args), lambda pull, cotangents: pull(cotangents)

    def fwd(*args: PyTree) -> PyTree:
        made = function.fwd(*args, **op.payload)
        pair = isinstance(made, tuple | list) and len(made) == 2
        return (made[0], held(made[1])) if pair else made

    def bwd(residuals: PyTree, cotangents: PyTree) -> PyTree:
        return function.bwd(released(residuals), cotangents, **op.payload)

    return fwd, bwd


@contextlib.contextmanager
def deriving(op: FunctionExtension) -> Iterator[None]:
    """Name the function where JAX cannot differentiate it."""
    try:
        yield
    except (TypeError, NotImplementedError, ValueError) as error:
        if op.function.has_rule or isinstance(error, TenferroError) or not lacks_derivative(error):
            raise
        raise ADRuleError(
            op.family_id,
            "jvp",
            place=op.function.place,
            given=f"no rule, {CANNOT} differentiate: {first_line(error)}",
            needed="a rule",
            fix=MISSING_RULE,
        ) from error


@functools.lru_cache(maxsize=4096)
def moves_forward(op: FunctionExtension, metas: tuple[TensorMeta, ...]) -> bool:
    """Whether JAX has forward mode of the function: a jax.custom_vjp or a hijax primitive in it may
    have a reverse rule alone.
    """
    structs = [struct(meta) for meta in metas]
    body = functools.partial(op.function.body, **op.payload)

    def moved(*xs: jax.Array) -> PyTree:
        tangents = [x if is_inexact(x) else None for x in xs]
        return jvp_of(lambda *xs: jax.tree.leaves(body(*op.arguments.unflatten(xs))), xs, tangents)

    try:
        with authored(op, LOWERING):
            traced = jax.make_jaxpr(moved)(*structs)
    except (TypeError, NotImplementedError):
        return False
    except ValueError:  # a callback, which has no reverse mode either
        return True
    return all(eqn.primitive.name != "custom_lin" for eqn in equations(traced))


@functools.lru_cache(maxsize=4096)
def results_of(op: FunctionExtension, stage: str, metas: tuple[TensorMeta, ...]) -> str:
    """How the results are nested for inputs of these dtypes and shapes; "" for one array."""
    structs = [struct(meta) for meta in metas]
    function = op.function
    # The op is inferred again where it is called, so equalities of sizes are noted there.
    if stage:
        with authored(op.changed(stage=stage), LOWERING, lambda *_: None):
            return _forward_results(op, structs)
    if function.infer is not None:
        with authored(op, "infer_output_meta", lambda *_: None):
            results = function.inferred(op, metas)
    else:
        run = functools.partial(function.body, **op.payload)
        with authored(op, LOWERING, lambda *_: None):
            results = jax.eval_shape(
                lambda *xs: function.of_arrays(run(*op.arguments.unflatten(xs)), "the function"),
                *structs,
            )
        if results is None:
            raise function.error(
                "no result",
                "arrays",
                "Return the result. If NumPy code computes it, write def_host and def_infer.",
            )
    text = nesting_text(results, f"results of {function.place}")
    return "" if text == "0" else text


def _forward_results(op: FunctionExtension, structs: Sequence[jax.ShapeDtypeStruct]) -> str:
    """What `fwd` gives for inputs of these dtypes and shapes."""
    function = op.function
    run, _ = reverse_of(op)
    traced, made = jax.make_jaxpr(
        lambda *xs: function.of_arrays(run(*op.arguments.unflatten(xs)), "fwd"), return_shape=True
    )(*structs)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise function.error(f"fwd, which returned {shown(made)}", "(the result, residuals)")
    metas = op.infer_output_meta([meta_of(x) for x in structs])
    have, want = jax.tree.map(meta_of, made[0]), op.results.unflatten(metas)
    if have != want:
        result = op.results.unflatten(map(struct, metas))
        raise function.error(
            f"fwd, which returned the result {shown(made[0])}", f"{shown(result)}, as the function"
        )
    jaxpr, constants = open_jaxpr(traced)
    require_not_traced(op, constants)
    residuals = jaxpr.outvars[len(jax.tree.leaves(made[0])) :]
    inputs = [next((i for i, x in enumerate(jaxpr.invars) if x is v), -1) for v in residuals]
    return forward_text(made[0], made[1], inputs, f"results of fwd of {function.place}")


def jvp_of(
    fn: Callable[..., Sequence[jax.Array]],
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | None],
) -> list[jax.Array | None]:
    """The tangents of plain JAX, for the inputs that have one."""
    moving = [i for i, t in enumerate(tangents) if t is not None]

    def of_moving(*xs: jax.Array) -> tuple[jax.Array, ...]:
        values = list(primals)
        for i, x in zip(moving, xs, strict=True):
            values[i] = x
        return tuple(fn(*values))

    _, made = jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
    return [None if is_float0(t) else t for t in made]


def jvp_by_transposing(
    fn: Callable[..., Sequence[jax.Array]],
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | None],
) -> list[jax.Array | None]:
    """As `jvp_of`; where a part of the function has reverse mode alone, its reverse mode is
    transposed.
    """
    try:
        return jvp_of(fn, primals, tangents)
    except TypeError as error:
        if not lacks_derivative(error):
            raise
    moving = [i for i, t in enumerate(tangents) if t is not None]
    smooth = [is_inexact(x) for x in jax.eval_shape(fn, *primals)]

    def of_moving(*xs: jax.Array) -> list[jax.Array]:
        values = list(primals)
        for i, x in zip(moving, xs, strict=True):
            values[i] = x
        return [x for x, keep in zip(fn(*values), smooth, strict=True) if keep]

    outs, pull = jax.vjp(of_moving, *(primals[i] for i in moving))
    (made,) = jax.linear_transpose(pull, outs)(tuple(tangents[i] for i in moving))
    source = iter(made)
    return [next(source) if keep else None for keep in smooth]


def batchable(
    function: Functions, value: Callable[..., PyTree], payload: dict[str, Any]
) -> Callable[..., PyTree]:
    """`value`, whose vmap is the author's rule if there is one."""
    if function.vmap is None:
        return value
    element: list[PyTree] = []

    def remembered(*xs: PyTree) -> PyTree:
        made = value(*xs)
        element[:] = [jax.tree.map(lambda x: struct(meta_of(x)), made)]
        return made

    def rule(size: int, in_batched: list[PyTree], *args: PyTree) -> tuple[PyTree, PyTree]:
        if element[0] is None:  # the function declines
            return None, None
        with run_as(Method(LOWERING, f"def_vmap of {function.place}")):
            made = function.vmap(size, in_batched, *args, **payload)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise function.error(
                f"def_vmap, which returned {shown(made)}", "(results, which of them are batched)"
            )
        like, outs = element[0], made[0]
        try:
            batched = jax.tree.broadcast(made[1], outs)
            fits = jax.tree.map(
                lambda x, b, s: meta_of(x) == meta_of(s)._replace(shape=(size,) * b + s.shape),
                outs,
                batched,
                like,
            )
        except (ValueError, TypeError):
            fits = False
        if not jax.tree.all(fits):
            batch = jax.tree.map(lambda s: jax.ShapeDtypeStruct((size, *s.shape), s.dtype), like)
            raise function.error(
                f"def_vmap, which returned {shown(outs)}, batched: {made[1]}",
                f"{shown(batch)}, or without the first axis where it says False",
            )
        return outs, batched

    mapped: Any = jax.custom_batching.custom_vmap(remembered)
    mapped.def_vmap(rule)
    return mapped


FORWARD_MODE = "a rule for forward mode"
"""What an error needs where a reverse rule alone is there."""


def pushed(op: FunctionExtension, residuals: PyTree, tangents: PyTree) -> list[jax.Array]:
    """The tangents of the results: the transpose of `bwd`, which is linear in cotangents."""
    given = jax.tree.leaves(tangents)
    like = [struct(meta) for meta in op.metas if is_inexact(meta)]

    def pull(*cotangents: jax.Array) -> list[jax.Array]:
        made = pulled(op, residuals, tangents, cotangents)
        return [jnp.zeros_like(t) if c is None else c for t, c in zip(given, made, strict=True)]

    jax.eval_shape(pull, *like)  # the author's own errors arrive as they are
    try:
        with lowering_at(None):  # kernels have no transpose
            return list(jax.linear_transpose(pull, *like)(given))
    except (NotImplementedError, ValueError, AssertionError, TypeError) as error:
        raise Unsupported(
            where=f"forward mode of {op.function.place}",
            given=f"bwd, which JAX cannot transpose: {type(error).__name__}: {first_line(error)}",
            needed=FORWARD_MODE,
            fix="Use reverse mode, or write @f.defjvp in place of f.defvjp.",
        ) from error


def pulled(
    op: FunctionExtension, residuals: PyTree, tangents: PyTree, given: Sequence[jax.Array | None]
) -> list[jax.Array | None]:
    """What `bwd` gives for each tangent; None for zero."""
    source = iter(given)
    cotangents = [next(source) if is_inexact(meta) else None for meta in op.metas]
    full = filled([struct(meta) for meta in op.metas], cotangents)
    try:
        made = reverse_of(op)[1](residuals, op.results.unflatten(full))
    except (NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, TenferroError) or not lacks_derivative(error):
            raise
        raise Unsupported(
            where=f"a derivative of bwd of {op.function.place}",
            given=f"bwd, which JAX cannot differentiate: {first_line(error)}",
            needed="a bwd that has derivatives",
            fix="Let bwd call functions published by tenferro_jax.op that have rules.",
        ) from error
    found = op.function.cotangents(made, tangents, "bwd")
    wanted = jax.tree.leaves(tangents, is_leaf=missing)
    moving = [c for c, t in zip(found, wanted, strict=True) if t is not None]
    return cast(op, moving, [meta_of(t) for t in wanted if t is not None], "bwd")


def cast(
    op: FunctionExtension, found: Sequence[Any], wanted: Sequence[TensorMeta | None], what: str
) -> list[jax.Array | None]:
    """Cotangents in the dtypes of their arguments; jax.custom_vjp takes other dtypes too."""
    made: list[jax.Array | None] = []
    for i, (c, meta) in enumerate(zip(found, wanted, strict=True)):
        if c is None or meta is None or is_float0(c):
            made.append(None)
            continue
        c = jnp.asarray(c) if isinstance(c, int | float | complex) else c
        kind = jnp.complexfloating
        narrow = isinstance(c, jax.Array) and jnp.issubdtype(c.dtype, kind)
        narrow = narrow and not jnp.issubdtype(meta.dtype, kind)
        if narrow or tuple(getattr(c, "shape", "?")) != tuple(meta.shape):
            raise op.function.error(
                f"{what}, which returned {shown(c)} as cotangent {i}", f"{meta}"
            )
        made.append(c if c.dtype == meta.dtype else c.astype(meta.dtype))
    return made
