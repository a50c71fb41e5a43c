"""What the author of a function op wrote: the function, also one that has rules already
(jax.custom_vjp, jax.custom_jvp, jitted functions), its signature, its rules, and
what they may return.
"""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..errors import InvalidConfig
from ..shapes import TensorMeta, is_inexact
from .contract import Can, ShardingRule
from .nesting import PyTree, missing

KEYWORD = inspect.Parameter.KEYWORD_ONLY

# What each function of an author takes before the payload: "*" stands for the arrays.
TAKES = {
    "defjvp": ("primals", "outputs", "tangents"),
    "fwd": ("*",),
    "bwd": ("residuals", "cotangents"),
    "def_transpose": ("cotangents", "*"),
    "def_host": ("*",),
    "def_infer": ("*",),
}
AS_IN_JAX = {
    "defjvp": "Unlike a rule of jax.custom_jvp it gets the outputs, and returns the tangents alone."
}
MISSING_RULE = "Write @f.defjvp, f.defvjp(fwd, bwd) or @f.def_transpose."


class _Shown(NamedTuple):
    text: str

    def __repr__(self) -> str:
        return self.text


def shown(tree: PyTree) -> str:
    """A tree for an error: dtypes and shapes in place of arrays and of traced values."""
    brief = jax.tree.map(
        lambda x: _Shown(str(TensorMeta(x.dtype, x.shape))) if hasattr(x, "dtype") else x, tree
    )
    return f"{brief!r:.200}"


# --- functions as they are ------------------------------------------------------------------------

WITH_RULES: tuple[Any, ...] = jax.custom_vjp, jax.custom_jvp


class Adopted(NamedTuple):
    """A function with the rules it has; all are called with arrays by position and the payload by
    keyword. `order` has the names of what the given function takes by position, `defaults` the
    values of arrays that a call may leave out.
    """

    source: Any
    signature: inspect.Signature
    body: Callable[..., PyTree]
    jvp: Callable[..., PyTree] | None = None
    fwd: Any = None
    bwd: Any = None
    order: tuple[str, ...] = ()
    defaults: Mapping[str, PyTree] = MappingProxyType({})


def adopted(function: Any, family_id: str) -> Adopted:
    """The function of an op, from anything that JAX calls a function.

    Raises:
      InvalidConfig: a class, a bound method, a functools.partial, or rules that take symbolic
        zeros.
    """

    def refusal(given: str, needed: str, fix: str) -> InvalidConfig:
        where = f"op, extension {family_id}"
        return InvalidConfig(where=where, given=given, needed=needed, fix=fix)

    def read(source: Callable[..., PyTree]) -> inspect.Signature:
        try:
            return inspect.signature(source, eval_str=True)
        except NameError as error:
            raise refusal(
                f"an annotation of {source.__name__} that cannot be read: {error}",
                "annotations of names in the module",
                "Define the class outside the function.",
            ) from error

    if inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
        return Adopted(function, read(function), function)
    given = function
    # jax.jit keeps the rule of what it wraps; under it is the function that has it.
    wrapped = function
    while wrapped is not None and not isinstance(wrapped, WITH_RULES):
        wrapped = None if inspect.isfunction(wrapped) else getattr(wrapped, "__wrapped__", None)
    custom, function = wrapped is not None, wrapped or function
    source = inspect.unwrap(function)
    if not inspect.isfunction(source) or (custom and function.symbolic_zeros):
        raise refusal(
            f"{given!r:.100}",
            "a function, a jitted function, or a jax.custom_vjp or jax.custom_jvp without "
            "symbolic zeros",
            "Write a function that calls it.",
        )
    if custom and not (getattr(function, "fwd", None) or getattr(function, "jvp", None)):
        raise refusal(
            f"a {type(function).__name__} without a rule",
            "one with its rule",
            "Call its defvjp or defjvp before op.",
        )
    # JAX itself says by nondiff_argnums what is no array; of a function without rules, what has a
    # value already is none.
    parameters = read(source).parameters
    names = list(parameters)
    static = [names[i] for i in function.nondiff_argnums] if custom else []
    payload = [
        name
        for name, p in parameters.items()
        if p.kind is KEYWORD or name in static or (not custom and p.default is not p.empty)
    ]

    def placed(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """`fn` with its arguments in their places again."""

        def run(*arrays: PyTree, **values: Any) -> PyTree:
            rest = iter(arrays)
            keywords = {n: values[n] for n in payload if parameters[n].kind is KEYWORD}
            placed = [values[n] if n in payload else next(rest) for n in names if n not in keywords]
            return fn(*placed, *rest, **keywords)

        return run

    def as_array(p: inspect.Parameter) -> inspect.Parameter:
        return p.replace(default=p.empty)

    def as_payload(name: str, p: inspect.Parameter) -> inspect.Parameter:
        hint = Any if p.annotation is p.empty else p.annotation
        return p.replace(kind=KEYWORD, annotation=hint)

    arrays = [p for name, p in parameters.items() if name not in payload]
    defaults = {p.name: p.default for p in arrays if p.default is not p.empty}
    keywords = [as_payload(name, p) for name, p in parameters.items() if name in payload]
    made = Adopted(
        source,
        inspect.Signature([*map(as_array, arrays), *keywords]),
        placed(function.fun if custom else function),
        order=tuple(name for name in names if parameters[name].kind is not KEYWORD),
        defaults=defaults,
    )
    if not custom:
        return made

    def ruled(rule: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """A rule of JAX, which takes what is no array first."""
        return lambda *xs, **values: rule(*(values[name] for name in static), *xs)

    if isinstance(function, jax.custom_vjp):
        rules: Any = (function.fwd, function.bwd)
        return made._replace(fwd=placed(rules[0]), bwd=ruled(rules[1]))
    forward = ruled(function.jvp)
    return made._replace(
        jvp=lambda primals, outputs, tangents, **values: forward(primals, tangents, **values)[1]
    )


# --- what was written for an op -------------------------------------------------------------------


class Authored:
    """What the author wrote for an op; the checks of what it returns name the function and the line
    where it was made.

    Attributes:
      source: the function as it was written.
      body: what runs.
      family_id: of its ops.
      place: its name and line and the family, for errors.
      arity: the number of arguments by position, -1 if any.
      payload: annotation and default of each keyword.
      plain: the nesting of arguments of which each is one array.
    """

    symbolic_zeros: bool = False
    transpose: Any = None
    argnums: tuple[int, ...] | None = None
    host: Any = None
    infer: Any = None
    sharding: ShardingRule | None = None

    def __init__(self, function: Adopted, family_id: str, derive: bool | None):
        code, name = function.source.__code__, function.source.__name__
        at = f"{pathlib.Path(code.co_filename).name}:{code.co_firstlineno}"
        self.family_id, self.place = family_id, f"{name} ({at}), extension {family_id}"
        self.__signature__, self.order = function.signature, function.order
        self.defaults = function.defaults
        self.source, self.body, self.derive = function.source, function.body, derive
        self.jvp, self.fwd, self.bwd = function.jvp, function.fwd, function.bwd
        self.arity, self.payload = self._read_signature()
        self.plain: Any = jax.tree.structure((0,) * self.arity)

    def error(self, given: str, needed: str, fix: str = "") -> InvalidConfig:
        """A refusal that names the function and the line where it was made."""
        return InvalidConfig(where=self.place, given=given, needed=needed, fix=fix)

    def _read_signature(self) -> tuple[int, dict[str, tuple[Any, Any]]]:
        """Arity and payload."""
        arity, payload = 0, {}
        for name, p in self.__signature__.parameters.items():
            if p.kind is KEYWORD:
                if p.annotation is p.empty:
                    raise self.error(
                        f"the keyword-only parameter {p} without an annotation",
                        "the type of each keyword, because its value is a part of the op",
                        f"Write its type, such as {name}: float. Arrays go by position.",
                    )
                payload[name] = (p.annotation, p.default)
            elif p.kind is p.VAR_POSITIONAL:
                arity = -1
            elif p.kind is p.VAR_KEYWORD or p.default is not p.empty:
                raise self.error(
                    f"the parameter {p}",
                    "arrays by position, and the payload by keyword-only parameters with "
                    "annotations",
                    "Name each keyword, with an annotation."
                    if p.kind is p.VAR_KEYWORD
                    else "Leave its default out, or write it after a * with an annotation.",
                )
            else:
                arity += 1
        return arity, payload

    def require(self, what: str, function: object, before: Sequence[str] = ()) -> None:
        """Refuse what is no function of the arrays, or of `before`, where "*" stands for the
        arrays; and of the payload by keyword.
        """
        if not callable(function):
            raise self.error(f"{function!r:.100} as {what}", "a function")
        arrays = [p.name for p in self.__signature__.parameters.values() if p.kind is not KEYWORD]
        names = [name for part in before or "*" for name in (arrays if part == "*" else [part])]
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):  # of a builtin
            return
        if self.arity < 0 and names != list(before):  # any number of arrays
            return
        try:
            signature.bind(*names, **dict.fromkeys(self.payload))
        except TypeError as error:
            keywords = ["*", *self.payload] if self.payload else []
            raise self.error(
                f"{what}, a function of {signature}",
                f"a function of ({', '.join([*names, *keywords])})",
                AS_IN_JAX.get(what, ""),
            ) from error

    def split(
        self, args: tuple[PyTree, ...], payload: dict[str, Any]
    ) -> tuple[tuple[PyTree, ...], dict[str, Any]]:
        """The arrays and the payload of a call that gives all by position, as the function took it
        before it was published: a `fwd` may call it by the same name. Arrays that a jax.custom_vjp
        has defaults for may be left out, or named.
        """
        if self.defaults:
            args, payload = self._with_defaults(args, payload)
        if not self.arity < len(args) <= len(self.order):
            return args, payload
        named = dict(zip(self.order, args))
        held = {name: value for name, value in named.items() if name in self.payload}
        if twice := held.keys() & payload.keys():
            raise self.error(
                f"{', '.join(sorted(twice))} by position and by keyword", "one of both"
            )
        return tuple(x for name, x in named.items() if name not in held), payload | held

    def _with_defaults(
        self, args: tuple[PyTree, ...], payload: dict[str, Any]
    ) -> tuple[tuple[PyTree, ...], dict[str, Any]]:
        """A call with the arrays that it leaves out or names, in their places."""
        names = [name for name in self.order if name not in self.payload]
        named = {name: value for name, value in payload.items() if name in self.defaults}
        others = {name: value for name, value in payload.items() if name not in named}
        if twice := named.keys() & set(names[: len(args)]):
            raise self.error(
                f"{', '.join(sorted(twice))} by position and by keyword", "one of both"
            )
        missing = names[len(args) :]
        values = {**self.defaults, **named}
        if len(args) > len(names) or not values.keys() >= set(missing):
            return args, payload
        return (*args, *(values[name] for name in missing)), others

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

    def can(self, what: Can) -> bool:
        """Whether the author gave it."""
        match what:
            case Can.LOWER:
                return True
            case Can.LINEARIZE:
                return self.derives or self.has_rule
            case Can.TRANSPOSE:
                return self.transpose is not None
            case Can.INFER:
                return self.infer is not None
            case Can.RUN_ON_HOST:
                return self.host is not None
            case Can.SHARD:
                return self.sharding is not None

    @property
    def rules(self) -> tuple[Any, ...]:
        """The functions that may not close over traced values."""
        return self.body, self.jvp, self.fwd, self.bwd, self.transpose

    def flat(self, nesting: PyTreeDef, tree: PyTree, what: str, fix: str = "") -> list[Any]:
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
            fix,
        )

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
            nesting: Any = jax.tree.structure(arg, is_leaf=missing)
            full = nesting.unflatten([0] * nesting.num_leaves)
            try:
                full = jax.tree.broadcast(cotangent, full, is_leaf=missing)
            except ValueError:
                full = cotangent
            found += self.flat(nesting, full, f"{what}, which returned for argument {i}")
        return found

    def cast(
        self, found: Sequence[Any], wanted: Sequence[TensorMeta | None], what: str
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
                raise self.error(f"{what}, which returned {shown(c)} as cotangent {i}", f"{meta}")
            made.append(c if c.dtype == meta.dtype else c.astype(meta.dtype))
        return made

    def linear_in(self, count: int) -> tuple[int, ...]:
        """The arguments in which the function is linear together."""
        argnums = tuple(range(count)) if self.argnums is None else self.argnums
        if not all(isinstance(i, int) and -count <= i < count for i in argnums):
            raise self.error(f"argnums={argnums} of def_transpose", f"numbers of {count} arguments")
        return tuple(i % count for i in argnums)

    def of_arrays(self, made: PyTree, what: str) -> PyTree:
        """A tree of arrays and numbers; nothing else can be traced."""
        for x in jax.tree.leaves(made):
            if not hasattr(x, "dtype") and not isinstance(x, int | float | complex):
                raise self.error(f"{what}, which returned {x!r:.100}", "arrays")
        return made


# --- tangents with holes --------------------------------------------------------------------------


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


def jvp_of(
    fn: Callable[..., PyTree],
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | None],
) -> list[jax.Array | None]:
    """The tangents of plain JAX, for the inputs that have one: in the list that JAX takes None
    stands for the others, which is no leaf.
    """

    def run(moved: Sequence[jax.Array | None]) -> tuple[jax.Array, ...]:
        return tuple(fn(*(x if m is None else m for x, m in zip(primals, moved, strict=True))))

    inputs = [None if t is None else x for x, t in zip(primals, tangents, strict=True)]
    _, made = jax.jvp(run, (inputs,), (list(tangents),))
    return [None if is_float0(t) else t for t in made]
