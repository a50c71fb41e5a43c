"""What the author wrote for the op of a function; and functions that have rules already
(jax.custom_vjp, jax.custom_jvp, jitted functions, functools.partial) in the form that an op takes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
from jax.tree_util import PyTreeDef

from ..errors import InvalidConfig
from ..shapes import TensorMeta, struct

if TYPE_CHECKING:
    from .function_extension import FunctionExtension

PyTree: TypeAlias = Any


class Adopted(NamedTuple):
    """A function with the rules it has; all are called with arrays by position and the payload by
    keyword.
    """

    source: Any
    signature: inspect.Signature
    body: Callable[..., PyTree]
    jvp: Callable[..., PyTree] | None = None
    fwd: Callable[..., PyTree] | None = None
    bwd: Callable[..., PyTree] | None = None


def adopted(function: Any, family_id: str) -> Adopted:
    """The function of an op, from anything that JAX calls a function.

    Raises:
      InvalidConfig: a class, a bound method, a partial with positional arguments, or rules that
        take symbolic zeros.
    """
    if inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
        return Adopted(function, inspect.signature(function, eval_str=True), function)
    fixed: dict[str, Any] = {}
    given = function
    while isinstance(function, functools.partial) and not function.args:
        fixed, function = function.keywords | fixed, function.func
    source = inspect.unwrap(function)
    custom = isinstance(function, jax.custom_vjp | jax.custom_jvp)
    if not inspect.isfunction(source) or (custom and function.symbolic_zeros):
        raise InvalidConfig(
            where=f"op, extension {family_id}",
            given=f"{given!r:.100}",
            needed="a function, a jitted function, a functools.partial with keywords, or a "
            "jax.custom_vjp or jax.custom_jvp without symbolic zeros",
            fix="Write a function that calls it.",
        )
    parameters = inspect.signature(source, eval_str=True).parameters
    names = list(parameters)
    static = [names[i] for i in function.nondiff_argnums] if custom else []
    payload = [
        name
        for name, p in parameters.items()
        if p.kind is p.KEYWORD_ONLY
        or name in static
        or (not custom and (name in fixed or p.default is not p.empty))
    ]
    if unknown := [name for name in fixed if name not in payload]:
        raise InvalidConfig(
            where=f"op, extension {family_id}",
            given=f"a partial with {', '.join(unknown)}",
            needed=f"keywords among {', '.join(payload) or 'none'}",
            fix="Pass arrays by position, in the call.",
        )

    def placed(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """`fn` with its arguments in their places again."""

        def run(*arrays: PyTree, **values: Any) -> PyTree:
            rest = iter(arrays)
            keywords = {n: values[n] for n in payload if parameters[n].kind is p_keyword}
            placed = [values[n] if n in payload else next(rest) for n in names if n not in keywords]
            return fn(*placed, *rest, **keywords)

        return run

    p_keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [p for name, p in parameters.items() if name not in payload]
        + [
            p.replace(
                kind=p_keyword,
                annotation=Any if p.annotation is p.empty else p.annotation,
                default=fixed.get(name, p.default),
            )
            for name, p in parameters.items()
            if name in payload
        ]
    )
    made = Adopted(source, signature, placed(function.fun if custom else function))
    if isinstance(function, jax.custom_vjp) and function.fwd is not None:
        rule: Any = function.bwd
        return made._replace(
            fwd=placed(function.fwd),
            bwd=lambda residuals, cotangents, **values: rule(
                *(values[name] for name in static), residuals, cotangents
            ),
        )
    if isinstance(function, jax.custom_jvp) and function.jvp is not None:
        forward: Any = function.jvp
        return made._replace(
            jvp=lambda primals, outputs, tangents, **values: forward(
                *(values[name] for name in static), primals, tangents
            )[1]
        )
    return made


@dataclasses.dataclass(eq=False)
class Functions:
    """What the author wrote for an op.

    Attributes:
      body: the function.
      place: its name and line and the family, for errors.
      arity: the number of arguments by position, -1 if any.
      payload: annotation and default of each keyword.
    """

    body: Callable[..., PyTree]
    place: str
    arity: int
    payload: dict[str, tuple[Any, Any]]
    derive: bool
    jvp: Callable[..., PyTree] | None = None
    symbolic_zeros: bool = False
    fwd: Any = None
    bwd: Any = None
    transpose: Callable[..., PyTree] | None = None
    host: Any = None
    infer: Callable[..., PyTree] | None = None

    def __post_init__(self) -> None:
        self.plain: Any = jax.tree.structure((0,) * self.arity)

    def error(self, given: str, needed: str, fix: str = "") -> InvalidConfig:
        """A refusal that names the function and the line where it was made."""
        return InvalidConfig(where=self.place, given=given, needed=needed, fix=fix)

    def flat(self, nesting: PyTreeDef, tree: PyTree, what: str) -> list[Any]:
        """The entries of a tree that has this nesting; None may stand for an array."""
        try:
            found = list(nesting.flatten_up_to(tree))
            if jax.tree_util.all_leaves([x for x in found if x is not None]):
                return found
        except (ValueError, TypeError):
            pass
        raise self.error(f"{what} with the nesting {jax.tree.structure(tree)}", f"{nesting}")

    def running(self, stage: str) -> Callable[..., PyTree]:
        """The author's function of a stage."""
        run: Callable[..., PyTree] = self.fwd if stage else self.body
        return run

    def inferred(self, op: FunctionExtension, metas: Sequence[TensorMeta]) -> PyTree:
        """What `def_infer` returns for these inputs."""
        assert self.infer is not None
        return self.infer(*op.arguments.unflatten([struct(m) for m in metas]), **op.payload)
