"""The op "tangent" of a function with a reverse rule: its transpose is `bwd`, and its value is the
transpose of `bwd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..errors import TenferroError, Unsupported, first_line
from ..jax_seam import lacks_derivative
from ..shapes import TensorMeta, is_inexact, meta_of, struct
from .adopted import PyTree, filled, shown
from .function_results import is_float0, reverse_of
from .nesting import missing
from .scope import lowering_at

if TYPE_CHECKING:
    from .function_extension import FunctionExtension


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
