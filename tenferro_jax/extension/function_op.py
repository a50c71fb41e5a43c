"""A function as an extension op: `tenferro_jax.op`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import DTypeError, DuplicateRule, InvalidConfig
from ..jax_seam import require_platforms
from ..shapes import TensorMeta, as_array, meta_of, struct
from .adopted import Adopted, Functions, PyTree, adopted
from .family import parse_family_id
from .function_extension import (
    FunctionExtension,
    results_of,
)
from .nesting import nesting_text
from .primitive import apply
from .registry import register_function
from .runtimes import ExtensionRuntimeSet, Kernel
from .scope import LOWERING, closed_over, require_not_traced, running

RESERVED = ("family_id", "function", "self")
"""Names of members of every op, beside the attributes of FunctionExtension."""


class FunctionOp:
    """A function that is an extension op: what `tenferro_jax.op` returns. Call it as the function.

    Attributes:
      op: the class of its ops; `f.op(t=0.5)` is the op that a call with `t=0.5` runs, and
        `f.op.runtimes` has the kernels.
    """

    __name__: str
    op: type[FunctionExtension]

    def __init__(self, function: Adopted, family_id: str, derive: bool):
        source, signature = function.source, function.signature
        functools.update_wrapper(self, source)
        code = source.__code__
        at = f"{pathlib.Path(code.co_filename).name}:{code.co_firstlineno}"
        place = f"{source.__name__} ({at}), extension {family_id}"
        arity, payload = _parameters(signature, place)
        self.__signature__ = signature
        self.functions = Functions(
            function.body,
            family_id,
            place,
            arity,
            payload,
            derive,
            function.jvp,
            fwd=function.fwd,
            bwd=function.bwd,
        )
        fields = {
            "__module__": source.__module__,
            "__qualname__": f"{source.__qualname__}.op",
            "__doc__": f"The op of {source.__name__}.",
            "__annotations__": {name: hint for name, (hint, _) in payload.items()},
            "family_id": family_id,
            "function": self.functions,
        }
        empty = inspect.Parameter.empty
        fields |= {name: value for name, (_, value) in payload.items() if value is not empty}
        made = type(source.__name__, (FunctionExtension,), fields)
        self.op = dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(made)
        register_function(self.op, source, place)

    def __call__(self, *args: PyTree, **payload: Any) -> PyTree:
        """The function of the arrays, under any JAX transform."""
        method = running.get()
        if method is not None and method.name.startswith(LOWERING):
            return self.functions.inlined(*args, **payload)  # a part of another op
        op, arrays = self.bound(*args, **payload)
        outs = apply(op, *arrays)
        return op.results.unflatten(outs) if op.out_tree else outs[0]

    def bound(self, *args: PyTree, **payload: Any) -> tuple[FunctionExtension, list[jax.Array]]:
        """The op that a call with these arguments runs, and its arrays.

        Raises:
          InvalidConfig: the arguments do not fit the function; the text names it and its line.
        """
        authored = self.functions
        if wrong := payload.keys() - authored.payload.keys():
            raise authored.error(
                f"the keyword {', '.join(sorted(wrong))}", f"one of {self._keywords()}"
            )
        if authored.arity >= 0 and len(args) != authored.arity:
            raise authored.error(
                f"{len(args)} arguments by position",
                f"{authored.arity}, each an array or a pytree",
                f"Pass {self._keywords()} by keyword." if len(args) > authored.arity else "",
            )
        if absent := [
            name
            for name, (_, default) in authored.payload.items()
            if name not in payload and default is inspect.Parameter.empty
        ]:
            raise authored.error(f"no {', '.join(absent)}", "a value by keyword")
        leaves, nesting = jax.tree.flatten(args)
        given = [as_array(x, f"{authored.place}, array {i}") for i, x in enumerate(leaves)]
        arrays = [
            self._number(leaf, x, given, leaves) if type(leaf) in (int, float, complex) else x
            for x, leaf in zip(given, leaves, strict=True)
        ]
        plain = nesting == authored.plain
        in_tree = "" if plain else nesting_text(args, f"arguments of {authored.place}")
        op = self.op(in_tree=in_tree, **payload)
        require_not_traced(op, closed_over(authored.body))
        out_tree = results_of(op, "", tuple(map(meta_of, arrays)))
        return op.changed(out_tree=out_tree) if out_tree else op, arrays

    def _number(
        self, number: complex, array: Any, arrays: Sequence[Any], leaves: Sequence[Any]
    ) -> Any:
        """A Python number in the dtype that it takes beside arrays of its kind in jax.numpy."""
        kind = jnp.integer if isinstance(number, int) else jnp.inexact
        others = [
            x.dtype
            for x, leaf in zip(arrays, leaves, strict=True)
            if type(leaf) not in (int, float, complex) and jnp.issubdtype(x.dtype, kind)
        ]
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*others) if others else array.dtype
        if isinstance(number, complex) and not jnp.issubdtype(dtype, jnp.complexfloating):
            return array
        try:
            return jnp.asarray(number, dtype)
        except OverflowError as error:
            raise DTypeError(
                where=self.functions.place,
                given=f"{number} beside arrays of {dtype}",
                needed="a number that fits",
                fix="Convert it to an array of the dtype that is meant.",
            ) from error

    def _keywords(self) -> str:
        return ", ".join(self.functions.payload) or "no keyword"

    def defjvp(
        self, rule: Callable[..., PyTree], *, symbolic_zeros: bool = False
    ) -> Callable[..., PyTree]:
        """Set the rule for forward mode; reverse mode is its transpose. It decorates the rule.

        Args:
          rule: function(primals, outputs, tangents, *, payload) -> the tangents of the results, in
            their nesting, linear in `tangents`. `primals` and `tangents` are tuples with an entry
            for each argument. None in a result means zero.
          symbolic_zeros: whether a missing tangent is None; else it is an array of zeros, as in
            jax.custom_jvp.
        """
        self._set_rule(jvp=rule)
        self.functions.symbolic_zeros = symbolic_zeros
        return rule

    def defvjp(self, fwd: Callable[..., PyTree], bwd: Callable[..., PyTree]) -> None:
        """Set a reverse rule, with residuals, as in jax.custom_vjp. Forward mode is its transpose.

        Args:
          fwd: function(*arrays, *, payload) -> (the result, residuals).
          bwd: function(residuals, cotangents, *, payload) -> a tuple with a cotangent, or None for
            zero, for each argument; linear in `cotangents`.
        """
        self._set_rule(fwd=fwd, bwd=bwd)
        results_of.cache_clear()

    def def_transpose(
        self, rule: Callable[..., PyTree], *, argnums: int | Sequence[int] | None = None
    ) -> Callable[..., PyTree]:
        """Declare that the function is linear in an argument, or in several together, with its
        transpose. It decorates the rule.

        Args:
          rule: function(cotangents, *arrays, *, payload) -> a tuple with a cotangent, or None for
            zero, for each argument. An array whose cotangent is wanted is a
            `tenferro_jax.extension.LinearInput`, with dtype and shape.
          argnums: the arguments in which the function is linear together while the others are
            fixed; needed if there are several. For a matrix and a vector, 1 says linear in the
            vector; a derivative by the matrix is then refused.
        """
        authored = self.functions
        if argnums is None and authored.arity != 1:
            raise authored.error(
                "def_transpose without argnums",
                "the arguments in which the function is linear together",
                "Use functools.partial(f.def_transpose, argnums=1) as the decorator.",
            )
        self._set_rule(transpose=rule)
        if argnums is not None:
            authored.argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        return rule

    def _set_rule(self, **rules: Callable[..., PyTree]) -> None:
        """Set a rule of one kind; a second kind is refused."""
        authored = self.functions
        kinds = {"derive": authored.derive or None, "defjvp": authored.jvp}
        kinds |= {"defvjp": authored.fwd, "def_transpose": authored.transpose}
        name = {"jvp": "defjvp", "fwd": "defvjp", "transpose": "def_transpose"}[next(iter(rules))]
        for kind, held in kinds.items():
            if held is not None and kind != name:
                raise DuplicateRule(
                    where=authored.place,
                    given=f"{name} after {kind}",
                    needed="one rule",
                )
        self._set(**rules)

    def _set(self, **given: Callable[..., PyTree]) -> None:
        for name, value in given.items():
            if not callable(value):
                raise self.functions.error(f"{value!r:.100} as {name}", "a function")
        vars(self.functions).update(given)

    def def_kernel(
        self, platform: str, *, declines: Callable[..., str] | None = None, name: str = ""
    ) -> Callable[[Callable[..., PyTree]], Callable[..., PyTree]]:
        """Add a kernel for a platform, which computes the value in place of the function. Several
        are tried in the order in which they were added. It returns a decorator.

        Args:
          platform: "cpu", "cuda", "rocm" or "tpu".
          declines: function(*structs, *, payload) -> why the kernel does not compute this call, or
            "". None: it computes every call.
          name: a short name for `routes`; by default that of the decorated function.
        """

        require_platforms((platform,), f"def_kernel of {self.functions.place}")

        def add(kernel: Callable[..., PyTree]) -> Callable[..., PyTree]:
            if not callable(kernel):
                raise self.functions.error(f"{kernel!r:.100} as a kernel", "a function")

            def run(op: FunctionExtension, *arrays: jax.Array) -> list[Any]:
                results = kernel(*op.arguments.unflatten(arrays), **op.payload)
                return self.functions.flat(
                    op.results, results, f"the result of the {platform} kernel"
                )

            def why_not(op: FunctionExtension, *metas: TensorMeta) -> str:
                if op.stage or declines is None:
                    return "it computes values alone" if op.stage else ""
                return declines(*op.arguments.unflatten([struct(m) for m in metas]), **op.payload)

            run.__name__ = getattr(kernel, "__name__", "_")
            made = Kernel(self.op.family_id, platform, run, why_not, name)
            self.op.runtimes = ExtensionRuntimeSet(*self.op.runtimes, made)
            return kernel

        return add

    def def_host(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Set a function of NumPy arrays, which runs where no kernel and no lowering does: let the
        decorated function return None then, and set `def_infer`. It decorates the function.
        """
        self._set(host=function)
        return function

    def def_infer(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Set the function of jax.ShapeDtypeStructs that returns those of the results. It is needed
        only where the decorated function returns None. It decorates the function.
        """
        self._set(infer=function)
        results_of.cache_clear()
        return function

    def __repr__(self) -> str:
        return f"<op {self.op.family_id}: {self.__name__}{self.__signature__}>"


def _parameters(signature: inspect.Signature, place: str) -> tuple[int, dict[str, tuple[Any, Any]]]:
    """The number of arguments, -1 if any, and annotation and default of each keyword."""
    arity, payload = 0, {}
    needed = "arrays by position, and the payload by keyword-only parameters with annotations"
    for name, p in signature.parameters.items():
        if p.kind is p.KEYWORD_ONLY and (hasattr(FunctionExtension, name) or name in RESERVED):
            raise InvalidConfig(
                where=place,
                given=f"payload {name}, the name of a member of every op",
                needed="another name",
            )
        if p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty:
            payload[name] = (p.annotation, p.default)
        elif p.kind is p.VAR_POSITIONAL:
            arity = -1
        elif p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) or p.default is not p.empty:
            raise InvalidConfig(where=place, given=f"the parameter {p}", needed=needed)
        else:
            arity += 1
    return arity, payload


def op(family_id: str, *, derive: bool = False) -> Callable[[Callable[..., PyTree]], FunctionOp]:
    """Publish a function as an extension op, under the family_id `<package>.<op>.v<major>`.

    Parameters by position are arrays, or tuples, lists and dicts of arrays; keyword-only
    parameters with annotations are the payload. The function is plain JAX. It then has every
    transform, identity in graphs and exported programs, and the checks of `check`.

    A jax.custom_vjp or jax.custom_jvp, a jitted function and a functools.partial of one are taken
    as they are, with their rules: `soft = op("my-package.soft.v1")(soft)`. Their `nondiff_argnums`,
    keywords, and of functions without rules parameters with a default, are payload then, which is
    passed by keyword.

    Args:
      family_id: raise its version on any change of payload, rule or numerics. A second function
        under the same family_id is refused, except one of the same name in its module (a cell of
        a notebook that ran again).
      derive: whether JAX differentiates the function, in place of a rule.

    Returns:
      A decorator. What it returns is called as the function, and has `defjvp`, `defvjp`,
      `def_transpose`, `def_kernel`, `def_host` and `def_infer` to add rules and implementations.

    Raises:
      MalformedFamilyId: not a family_id.
      InvalidConfig: a keyword-only parameter has no annotation, a parameter by position has a
        default, or a call passes payload by position; the text names the function and its line.
      Duplicate: another function or class has the family_id.
      DuplicateRule: later, if a second kind of rule is set.
      ADRuleError: later, if the function is differentiated and has no rule.

    Cost: a call on concrete arrays takes some 80 us more than a call of an equal jitted function;
      nothing at run time inside jit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import tenferro_jax as tj
      >>> @tj.op("docs-example.soft.v1")
      ... def soft(x, *, t: float):
      ...     return t * jnp.logaddexp(x / t, 0.0)
      >>> @soft.defjvp
      ... def _(primals, outputs, tangents, *, t):
      ...     return jax.nn.sigmoid(primals[0] / t) * tangents[0]
      >>> print(jax.grad(soft)(0.0, t=0.5), jax.vmap(jax.hessian(lambda x: soft(x, t=1.0)))(
      ...     jnp.zeros(2)))
      0.5 [0.25 0.25]
    """
    parse_family_id(family_id)

    def publish(function: Callable[..., PyTree]) -> FunctionOp:
        return FunctionOp(adopted(function, family_id), family_id, derive)

    return publish
