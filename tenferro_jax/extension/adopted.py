"""What the author wrote for the op of a function; and functions that have rules already
(jax.custom_vjp, jax.custom_jvp, jitted functions, functools.partial) in the form that an op takes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef

from ..errors import InvalidConfig
from ..shapes import TensorMeta, struct
from .nesting import PyTree, missing, structure_of

if TYPE_CHECKING:
    from .function_extension import FunctionExtension

MISSING_RULE = "Write @f.defjvp, f.defvjp(fwd, bwd) or @f.def_transpose."


ARRAYS = "arrays"
"""Stands for the parameters by position of the function."""

GIVEN = {
    "jvp": ("defjvp", "primals, outputs, tangents"),
    "fwd": ("fwd of defvjp", ARRAYS),
    "bwd": ("bwd of defvjp", "residuals, cotangents"),
    "transpose": ("def_transpose", f"cotangents, {ARRAYS}"),
    "vmap": ("def_vmap", f"axis_size, in_batched, {ARRAYS}"),
    "host": ("def_host", ARRAYS),
    "infer": ("def_infer", ARRAYS),
    "kernel": ("a kernel", ARRAYS),
    "declines": ("declines", ARRAYS),
    "on_device": ("on_device", f"shard, {ARRAYS}"),
}
"""What errors call a function that an author gives beside the body, and its parameters."""


class _Shown(NamedTuple):
    text: str

    def __repr__(self) -> str:
        return self.text


def shown(tree: PyTree) -> str:
    """A tree for an error: dtypes and shapes in place of arrays and of traced values."""

    def brief(x: Any) -> Any:
        return _Shown(str(TensorMeta(x.dtype, x.shape))) if hasattr(x, "dtype") else x

    return f"{jax.tree.map(brief, tree)!r:.200}"


WITH_RULES: tuple[Any, ...] = jax.custom_vjp, jax.custom_jvp


class Adopted(NamedTuple):
    """A function with the rules it has; all are called with arrays by position and the payload by
    keyword. `order` has the names of what the given function takes by position.
    """

    source: Any
    signature: inspect.Signature
    body: Callable[..., PyTree]
    jvp: Callable[..., PyTree] | None = None
    fwd: Callable[..., PyTree] | None = None
    bwd: Callable[..., PyTree] | None = None
    order: tuple[str, ...] = ()


def adopted(function: Any, family_id: str) -> Adopted:
    """The function of an op, from anything that JAX calls a function.

    Raises:
      InvalidConfig: a class, a bound method, a partial with positional arguments, or rules that
        take symbolic zeros.
    """
    if inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
        return Adopted(function, _signature(function, family_id), function)
    fixed: dict[str, Any] = {}
    given = function
    while isinstance(function, functools.partial) and not function.args:
        fixed, function = function.keywords | fixed, function.func
    function = with_rules(function) or function
    source = inspect.unwrap(function)
    custom = isinstance(function, WITH_RULES)
    if not inspect.isfunction(source) or (custom and function.symbolic_zeros):
        raise InvalidConfig(
            where=f"op, extension {family_id}",
            given=f"{given!r:.100}",
            needed="a function, a jitted function, a functools.partial with keywords, or a "
            "jax.custom_vjp or jax.custom_jvp without symbolic zeros",
            fix="Write a function that calls it.",
        )
    if custom and not (getattr(function, "fwd", None) or getattr(function, "jvp", None)):
        raise InvalidConfig(
            where=f"op, extension {family_id}",
            given=f"a {type(function).__name__} without a rule",
            needed="one with its rule",
            fix="Call its defvjp or defjvp before op.",
        )
    parameters = _signature(source, family_id).parameters
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
    made = Adopted(
        source,
        signature,
        placed(function.fun if custom else function),
        order=tuple(name for name in names if parameters[name].kind is not p_keyword),
    )
    if isinstance(function, jax.custom_vjp):
        first: Any = function.fwd
        rule: Any = function.bwd
        return made._replace(
            fwd=placed(first),
            bwd=lambda residuals, cotangents, **values: rule(
                *(values[name] for name in static), residuals, cotangents
            ),
        )
    if isinstance(function, jax.custom_jvp):
        forward: Any = function.jvp
        return made._replace(
            jvp=lambda primals, outputs, tangents, **values: forward(
                *(values[name] for name in static), primals, tangents
            )[1]
        )
    return made


def with_rules(function: Any) -> Any:
    """The jax.custom_vjp or jax.custom_jvp that was jitted, since jax.jit keeps its rule; None if
    there is none.
    """
    while function is not None and not isinstance(function, WITH_RULES):
        function = None if inspect.isfunction(function) else getattr(function, "__wrapped__", None)
    return function


def _signature(function: Callable[..., PyTree], family_id: str) -> inspect.Signature:
    """The signature with its annotations evaluated, which text in a local scope cannot be."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError as error:
        raise InvalidConfig(
            where=f"op, extension {family_id}",
            given=f"an annotation of {function.__name__} that cannot be read: {error}",
            needed="annotations of names in the module",
            fix="Define the class outside the function.",
        ) from error


def parameters(
    signature: inspect.Signature, place: str, taken: Container[str]
) -> tuple[int, dict[str, tuple[Any, Any]]]:
    """The number of arguments, -1 if any, and annotation and default of each keyword, none of which
    may be among `taken`.
    """
    arity, payload = 0, {}
    needed = "arrays by position, and the payload by keyword-only parameters with annotations"
    for name, p in signature.parameters.items():
        if p.kind is p.KEYWORD_ONLY and name in taken:
            raise InvalidConfig(
                where=place,
                given=f"payload {name}, the name of a member of every op",
                needed="another name",
            )
        if p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty:
            payload[name] = (p.annotation, p.default)
        elif p.kind is p.VAR_POSITIONAL:
            arity = -1
        elif p.kind is p.KEYWORD_ONLY:
            known = isinstance(p.default, bool | int | float | str)
            hint = type(p.default).__name__ if known else "float"
            raise InvalidConfig(
                where=place,
                given=f"the keyword-only parameter {p} without an annotation",
                needed="the type of each keyword, because its value is a part of the op",
                fix=f"Write {name}: {hint}, or another type that it has. Arrays go by position.",
            )
        elif p.kind is p.VAR_KEYWORD or p.default is not p.empty:
            raise InvalidConfig(
                where=place,
                given=f"the parameter {p}",
                needed=needed,
                fix="Name each keyword, with an annotation."
                if p.kind is p.VAR_KEYWORD
                else "Leave its default out, or write it after a * with an annotation; of a "
                "jax.custom_vjp, name it in nondiff_argnums.",
            )
        else:
            arity += 1
    return arity, payload


@dataclasses.dataclass(eq=False)
class Functions:
    """What the author wrote for an op.

    Attributes:
      body: the function.
      family_id: of its ops.
      place: its name and line and the family, for errors.
      arity: the number of arguments by position, -1 if any.
      payload: annotation and default of each keyword.
      owner: what `tenferro_jax.op` returned.
    """

    body: Callable[..., PyTree]
    family_id: str
    place: str
    arity: int
    payload: dict[str, tuple[Any, Any]]
    derive: bool | None
    jvp: Callable[..., PyTree] | None = None
    symbolic_zeros: bool = False
    fwd: Any = None
    bwd: Any = None
    transpose: Callable[..., PyTree] | None = None
    host: Any = None
    infer: Any = None
    vmap: Any = None
    sharding: Any = None
    owner: Any = None
    argnums: tuple[int, ...] | None = None
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.plain: Any = jax.tree.structure((0,) * self.arity)

    def error(self, given: str, needed: str, fix: str = "") -> InvalidConfig:
        """A refusal that names the function and the line where it was made."""
        return InvalidConfig(where=self.place, given=given, needed=needed, fix=fix)

    def require(self, name: str, function: object) -> None:
        """Refuse what is no function, or cannot be called as an entry of GIVEN says."""
        what, text = GIVEN[name]
        taken = self.owner.__signature__.parameters.values()
        arrays = [str(p.replace(annotation=p.empty)) for p in taken if p.name not in self.payload]
        words = [w for word in text.split(", ") for w in (arrays if word == ARRAYS else [word])]
        fixed = [word for word in words if not word.startswith("*")]
        star = ["*"] if self.payload and fixed == words else []
        needed = f"function({', '.join([*words, *star, *self.payload])})"
        if not callable(function):
            raise self.error(f"{function!r:.100} as {what}", needed)
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):  # C code has none
            return
        for count in [0] if fixed == words else range(9):
            try:
                signature.bind(*fixed, *[0] * count, **self.payload)
                return
            except TypeError as error:
                problem = error
        raise self.error(f"{what} with the parameters {signature}: {problem}", needed)

    def split(
        self, args: tuple[PyTree, ...], payload: dict[str, Any]
    ) -> tuple[tuple[PyTree, ...], dict[str, Any]]:
        """The arrays and the payload of a call that gives all by position, as the function took it
        before it was published: a `fwd` may call it by the same name.
        """
        if not self.arity < len(args) <= len(self.order):
            return args, payload
        named = dict(zip(self.order, args))
        held = {name: value for name, value in named.items() if name in self.payload}
        if twice := held.keys() & payload.keys():
            raise self.error(
                f"{', '.join(sorted(twice))} by position and by keyword", "one of both"
            )
        return tuple(x for name, x in named.items() if name not in held), payload | held

    def flat(self, nesting: PyTreeDef, tree: PyTree, what: str) -> list[Any]:
        """The entries of a tree that has this nesting; None may stand for an array."""
        try:
            found = list(nesting.flatten_up_to(tree))
            if jax.tree_util.all_leaves([x for x in found if x is not None]):
                return found
        except (ValueError, TypeError):
            pass
        raise self.error(
            f"{what} {shown(tree)}",
            f"{nesting.unflatten([_Shown('an array')] * nesting.num_leaves)}",
        )

    @property
    def has_rule(self) -> bool:
        """Whether the author gave a rule for derivatives."""
        return any(rule is not None for rule in (self.jvp, self.fwd, self.transpose))

    @property
    def derives(self) -> bool:
        """Whether JAX differentiates the body: unless the author gave a rule, says no, or gave what
        a body that returns None needs.
        """
        if self.derive is None:
            return not self.has_rule and self.host is None and self.infer is None
        return self.derive

    @property
    def rules(self) -> tuple[Any, ...]:
        """The functions that may not close over traced values."""
        return self.body, self.jvp, self.fwd, self.bwd, self.transpose, self.vmap

    def cotangents(self, made: PyTree, args: Sequence[PyTree], what: str) -> list[Any]:
        """The entries of `made`, a tuple with a cotangent or None for each argument, or for parts
        of it, as in jax.custom_vjp: one for each array of `args`, where None stands for an array.
        """
        if not isinstance(made, tuple | list) or len(made) != len(args):
            raise self.error(
                f"{what}, which returned {shown(made)}",
                f"a tuple of {len(args)}, a cotangent or None for each argument",
            )
        found: list[Any] = []
        for i, (arg, cotangent) in enumerate(zip(args, made, strict=True)):
            nesting = structure_of(arg)
            full = nesting.unflatten([0] * nesting.num_leaves)
            try:
                full = jax.tree.broadcast(cotangent, full, is_leaf=missing)
            except ValueError:
                full = cotangent
            found += self.flat(nesting, full, f"{what}, which returned for argument {i}")
        return found

    def linear_in(self, count: int) -> tuple[int, ...]:
        """The arguments in which the function is linear together."""
        argnums = tuple(range(count)) if self.argnums is None else self.argnums
        if not all(isinstance(i, int) and -count <= i < count for i in argnums):
            raise self.error(f"argnums={argnums} of def_transpose", f"numbers of {count} arguments")
        return tuple(i % count for i in argnums)

    def inferred(self, op: FunctionExtension, metas: Sequence[TensorMeta]) -> PyTree:
        """What `def_infer` returns for these inputs."""
        made = self.infer(*op.arguments.unflatten([struct(m) for m in metas]), **op.payload)
        if made is None or not all(hasattr(x, "shape") for x in jax.tree.leaves(made)):
            raise self.error(
                f"def_infer, which returned {made!r:.200}",
                "a jax.ShapeDtypeStruct for each array of the result",
            )
        return made

    def of_arrays(self, made: PyTree, what: str) -> PyTree:
        """A tree of arrays and numbers; nothing else can be traced."""
        for x in jax.tree.leaves(made):
            if not hasattr(x, "dtype") and not isinstance(x, int | float | complex):
                raise self.error(f"{what}, which returned {x!r:.100}", "arrays")
        return made
