"""A function as an extension op: `tenferro_jax.op`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef

from ..errors import DTypeError, DuplicateRule, MalformedFamilyId, counted
from ..jax_seam import require_platforms
from ..shapes import TensorMeta, as_array, is_plain, meta_of, struct
from .authored import TAKES, Adopted, Authored, adopted
from .carrier import Extension
from .contract import ShardingRule, closed_over, require_not_traced, running
from .definitions import HOLDERS, Definition, forget
from .family import parse_family_id
from .function_call import op_class_of
from .function_extension import FunctionExtension, results_of
from .function_parts import VALUE
from .kernels import ExtensionRuntimeSet, Kernel
from .nesting import PyTree, nesting_text
from .primitive import apply
from .registry import register_function, require_current

WRITTEN_AS = {
    "jvp": "defjvp",
    "transpose": "def_transpose",
    "host": "def_host",
    "infer": "def_infer",
}
"""The names by which an author sets what is held under other ones."""

TAKEN = {*dir(FunctionExtension), "family_id", "function", "self"}
"""Names of members of every op, which no payload may have."""


class FunctionOp(Authored):
    """A function that is an extension op: what `tenferro_jax.op` returns. Call it as the function.

    Attributes:
      op: the class of its ops; `f.op(t=0.5)` is the op that a call with `t=0.5` runs, and
        `f.op.runtimes` has the kernels.
    """

    __name__: str
    op: type[FunctionExtension]

    def __init__(self, function: Adopted, family_id: str, derive: bool | None):
        super().__init__(function, family_id, derive)
        if taken := TAKEN & self.payload.keys():
            raise self.error(
                f"payload {', '.join(taken)}, the name of a member of every op", "another name"
            )
        source = function.source
        functools.update_wrapper(self, source, updated=())
        self.known: dict[tuple[Any, ...] | None, FunctionExtension] = {}
        HOLDERS.add(self)
        self.kernels: dict[tuple[str, str], tuple[Kernel, Definition]] = {}
        fields = {
            "__module__": source.__module__,
            "__qualname__": f"{source.__qualname__}.op",
            "__doc__": f"The op of {source.__name__}.",
            "__annotations__": {name: hint for name, (hint, _) in self.payload.items()},
            "family_id": family_id,
            "function": self,
        }
        for name, (_, default) in self.payload.items():
            if default is inspect.Parameter.empty:
                continue
            if type(default).__hash__ is None:  # dataclasses takes arrays in no other way
                given = functools.partial(lambda held: held, default)
                default = dataclasses.field(default_factory=given)
            fields[name] = default
        made = type(source.__name__, (FunctionExtension,), fields)
        made_frozen = dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
        self.op = made_frozen(made)
        register_function(self.op, source, self.place)

    def __call__(self, *args: PyTree, **payload: Any) -> PyTree:
        """The function of the arrays, under any JAX transform."""
        op, arrays = self.bound(*self.split(args, payload))
        method = running.get()
        if method is not None and method.assume is not None:
            # JAX may know the outputs already, and then would not ask for equalities again.
            Extension.of(op).infer(*map(meta_of, arrays), assume=method.assume)
        outs = apply(op, *arrays)
        return op.results.unflatten(outs) if op.out_tree else outs[0]

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
        self.symbolic_zeros = symbolic_zeros
        return rule

    def defvjp(self, fwd: Callable[..., PyTree], bwd: Callable[..., PyTree]) -> None:
        """Set a reverse rule, with residuals, as in jax.custom_vjp. Forward mode is its transpose.

        In a second derivative the value keeps its rule, and the residuals are differentiated as JAX
        differentiates `fwd`.

        Args:
          fwd: function(*arrays, *, payload) -> (the result, residuals). Residuals are arrays in any
            pytree, numbers and texts; in tuples, lists and dicts where a graph is written.
          bwd: function(residuals, cotangents, *, payload) -> a tuple with a cotangent, or None for
            zero, for each argument; linear in `cotangents`.
        """
        self._set_rule(fwd=fwd, bwd=bwd)

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
        if argnums is None and self.arity != 1:
            raise self.error(
                "def_transpose without argnums",
                "the arguments in which the function is linear together",
                "Use functools.partial(f.def_transpose, argnums=1) as the decorator.",
            )
        self._set_rule(transpose=rule)
        if argnums is not None:
            self.argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
            if self.arity >= 0:
                self.linear_in(self.arity)  # refuses numbers out of range
        return rule

    def def_sharding(
        self,
        factors: str,
        *,
        merge: str = "",
        whole: tuple[str, ...] = (),
        on_device: Callable[..., PyTree] | None = None,
    ) -> None:
        """Set how the function may be split over devices, as a
        `tenferro_jax.extension.ShardingRule`: `f.def_sharding("i k, k j -> i j", merge="sum")`,
        with a term for each array of the arguments and of the results.

        Args:
          factors: as in `ShardingRule`.
          merge: as in `ShardingRule`.
          whole: as in `ShardingRule`.
          on_device: function(shard, *pieces, *, payload) -> the results of a device's pieces. It
            may call the function on the pieces.
        """
        if not isinstance(factors, str):
            raise self.error(
                f"{factors!r:.100} as factors of def_sharding", 'text such as "i k, k j -> i j"'
            )
        self._set(sharding=ShardingRule(factors, merge, whole, on_device))

    def _set_rule(self, **rules: Callable[..., PyTree]) -> None:
        """Set a rule of one kind; a second kind is refused."""
        kinds = {"derive": self.derive or None, "defjvp": self.jvp}
        kinds |= {"defvjp": self.fwd, "def_transpose": self.transpose}
        name = "defvjp" if "fwd" in rules else WRITTEN_AS[next(iter(rules))]
        for kind, held in kinds.items():
            if held is not None and kind != name:
                raise DuplicateRule(
                    where=self.place,
                    given=f"{name} after {kind}",
                    needed="one rule",
                    fix="Run the definition of the function again, which has no rule yet."
                    if kind != "derive"
                    else "",
                )
        self._set(**rules)

    def _set(self, **given: Any) -> Callable[..., PyTree]:
        for name, value in given.items():
            if not isinstance(value, ShardingRule):
                what = WRITTEN_AS.get(name, name)
                self.require(what, value, TAKES[what])
        vars(self).update(given)
        forget()
        kept: Callable[..., PyTree] = next(iter(given.values()))
        return kept

    def def_kernel(
        self, platform: str, *, declines: Callable[..., str] | None = None, name: str = ""
    ) -> Callable[[Callable[..., PyTree]], Callable[..., PyTree]]:
        """Add a kernel for a platform, function(*arrays, *, payload) -> the result, which computes
        the value in place of the function. Several are tried in the order in which they were added.
        It returns a decorator.

        Args:
          platform: "cpu", "cuda", "rocm" or "tpu".
          declines: function(*structs, *, payload) -> why the kernel does not compute this call, or
            "". None: it computes every call.
          name: a short name for `routes`; by default that of the decorated function.
        """

        if not isinstance(platform, str):
            raise self.error(
                f"def_kernel({platform!r:.100})",
                "the name of a platform",
                'Write @f.def_kernel("cpu") above the kernel.',
            )
        require_platforms((platform,), f"def_kernel of {self.place}")
        if declines is not None:
            self.require("declines", declines)

        def add(kernel: Callable[..., PyTree]) -> Callable[..., PyTree]:
            self.require("kernel", kernel)

            def run(op: FunctionExtension, *arrays: jax.Array) -> list[Any]:
                results = kernel(*op.arguments.unflatten(arrays), **op.payload)
                return self.flat(op.results, results, f"{platform} kernel, which returned")

            def why_not(op: FunctionExtension, *metas: TensorMeta) -> str:
                if op.stage != VALUE:
                    return "it computes values alone"
                if declines is None:
                    return ""
                return declines(*op.arguments.unflatten([struct(m) for m in metas]), **op.payload)

            run.__name__ = getattr(kernel, "__name__", "_")
            made = Kernel(self.op.family_id, platform, run=run, declines=why_not, name=name)
            self._add(made, Definition.of(kernel))
            return kernel

        return add

    def _add(self, kernel: Kernel, definition: Definition) -> None:
        """Add a kernel, in the place of the one that `definition` is again."""
        place = kernel.platform, kernel.title
        earlier, known = self.kernels.get(place, (None, definition))
        kernels = list(self.op.runtimes)
        if earlier in kernels and definition.is_again(known):
            kernels[kernels.index(earlier)] = kernel
        else:
            kernels.append(kernel)
        self.op.runtimes = ExtensionRuntimeSet(*kernels)
        self.kernels[place] = kernel, definition
        self.known.clear()

    def def_host(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Set function(*arrays, *, payload) -> the result, of NumPy arrays, which runs where no
        kernel and no lowering does: let the decorated function return None then, and set
        `def_infer`. It decorates the function.
        """
        return self._set(host=function)

    def def_infer(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Set function(*structs, *, payload) -> the jax.ShapeDtypeStructs of the results, from
        those of the arguments. It is needed only where the decorated function returns None. It
        decorates the function.
        """
        return self._set(infer=function)

    def bound(
        self, args: tuple[PyTree, ...], payload: dict[str, Any]
    ) -> tuple[FunctionExtension, list[jax.Array]]:
        """The op that a call with these arguments runs, and its arrays.

        Raises:
          InvalidConfig: the arguments do not fit the function; the text names it and its line.
        """
        leaves, nesting = jax.tree.flatten(args)
        key = _key(leaves, nesting, payload)
        if key in self.known:
            return self.known[key], leaves
        known = [*self.payload, *self.defaults]
        if wrong := payload.keys() - set(known):
            raise self.error(
                f"the keyword {', '.join(sorted(wrong))}",
                f"one of {', '.join(known)}" if known else "no keyword",
                "Pass arrays by position.",
            )
        if traced := [n for n, x in payload.items() if isinstance(x, jax.core.Tracer)]:
            raise self.error(
                f"a traced value as {', '.join(traced)}",
                "fixed values as keywords, which are a part of the op; arrays go by position",
                f"Publish a function that takes it by position: op(id)(lambda x, {traced[0]}: "
                f"f(x, {traced[0]})). Under jax.jit static_argnames keeps an argument a value.",
            )
        if self.arity >= 0 and len(args) != self.arity:
            raise self.error(
                f"{counted(len(args), 'argument')} by position",
                f"{self.arity}, each an array or a pytree",
                f"Pass {', '.join(self.payload)} by keyword."
                if len(args) > self.arity and self.payload
                else "",
            )
        if absent := [
            name
            for name, (_, default) in self.payload.items()
            if name not in payload and default is inspect.Parameter.empty
        ]:
            raise self.error(f"no {', '.join(absent)}", "a value by keyword")
        given = [as_array(x, f"{self.place}, array {i}") for i, x in enumerate(leaves)]
        arrays = [
            self._number(leaf, x, given, leaves) if _is_weak(leaf) else x
            for x, leaf in zip(given, leaves, strict=True)
        ]
        plain = nesting == self.plain
        in_tree = "" if plain else nesting_text(args, f"arguments of {self.place}")
        op = self.op(in_tree=in_tree, **payload)
        for function in self.rules:
            require_not_traced(op, closed_over(function))
        out_tree = results_of(op, tuple(map(meta_of, arrays)))
        op = dataclasses.replace(op, out_tree=out_tree) if out_tree else op
        # What a closure holds may change, so that the next call must be checked again.
        if key and not any(getattr(function, "__closure__", None) for function in self.rules):
            if len(self.known) > 1000:
                self.known.clear()
            self.known[key] = op
        return op, arrays

    def _number(
        self,
        number: complex | jax.Array,
        array: jax.Array,
        arrays: Sequence[jax.Array],
        leaves: Sequence[object],
    ) -> jax.Array:
        """A Python number, or an array of weak type, in the dtype that it takes in jax.numpy beside
        arrays of its kind.
        """
        kind = jnp.integer if jnp.issubdtype(array.dtype, jnp.integer) else jnp.inexact
        others = [
            x.dtype
            for x, leaf in zip(arrays, leaves, strict=True)
            if not _is_weak(leaf) and jnp.issubdtype(x.dtype, kind)
        ]
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(array, *others) if others else array.dtype
        if isinstance(number, jax.Array) and dtype == array.dtype:
            return array
        if isinstance(number, jax.Array) and (number.ndim or isinstance(number, jax.core.Tracer)):
            return jax.lax.convert_element_type(number, dtype)
        value = number.item() if isinstance(number, jax.Array) else number
        try:
            return jnp.asarray(value, dtype)
        except OverflowError as error:
            raise DTypeError(
                where=self.place,
                given=f"{value} beside arrays of {dtype}",
                needed="a number that fits",
                fix="Convert it to an array of the dtype that is meant.",
            ) from error

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        require_current(self.op, f"pickle of {self!r}")
        return _unpickled, (self.__module__, self.op.family_id)

    def __repr__(self) -> str:
        return f"<op {self.op.family_id}: {self.__name__}{self.__signature__}>"


def _is_weak(leaf: object) -> bool:
    return type(leaf) in (int, float, complex) or (
        isinstance(leaf, jax.Array) and jax.typeof(leaf).weak_type
    )


def _key(
    leaves: Sequence[Any], nesting: PyTreeDef, payload: dict[str, Any]
) -> tuple[Any, ...] | None:
    """What the op of a call on concrete arrays depends on; None for other calls."""
    parts: list[Any] = [nesting]
    for x in leaves:
        if not is_plain(x) or getattr(x, "weak_type", False):
            return None
        parts += (x.dtype, x.shape)
    for name, value in payload.items():
        kind = type(value)
        if kind not in (bool, int, float, str, NoneType):
            return None
        parts += (name, kind, value.hex() if kind is float else value)
    return tuple(parts)


def _unpickled(module: str, family_id: str) -> FunctionOp:
    """The function of a family that `module` publishes."""
    return op_class_of(module, family_id).function


def op(
    family_id: str, *, derive: bool | None = None
) -> Callable[[Callable[..., PyTree]], FunctionOp]:
    """Publish a function as an extension op, under the family_id `<package>.<op>.v<major>`.

    Parameters by position are arrays, or tuples, lists and dicts of arrays; keyword-only
    parameters with annotations are the payload. The function is plain JAX. It then has every
    transform, identity in graphs and exported programs, and the checks of `check`. JAX
    differentiates it, unless it has a rule.

    An op is for publishing. To use a function that calls a jax.custom_vjp in both modes,
    `both_modes` needs no family_id.

    A jax.custom_vjp or jax.custom_jvp, without symbolic zeros, and a jitted function are taken as
    they are, with their rules: `soft = op("my-package.soft.v1")(soft)`. Their `nondiff_argnums`,
    and of functions without rules parameters with a default, are payload then, which is passed by
    keyword, or by position as before. The `static_argnums` of a jitted function are not known:
    publish the function that it was made of. Give the op the same name, so that `fwd` calls the op:
    then derivatives have any order.

    A second derivative applies the rule again. Where `fwd` computes the result without calling the
    function, jax.custom_vjp differentiates `fwd` instead, which gives another number if the rule is
    not the derivative on purpose, as in straight-through, clipped or reversed gradients.

    Args:
      family_id: raise its version on any change of payload, rule or numerics. A second function
        under the same family_id is refused, except one of the same name in its module, as in a
        cell of a notebook that ran again: it takes the place of the first.
      derive: whether JAX differentiates the function. None: it does if there is no rule and
        no `def_host` or `def_infer`. True: it does, and a rule is refused. False: it does not, and
        derivatives need a rule. Where the function calls a jax.custom_vjp or a hijax primitive that
        has a reverse rule alone, forward mode is the transpose of that rule, as in `both_modes`.

    Returns:
      A decorator. What it returns is called as the function, and has `defjvp`, `defvjp`,
      `def_transpose`, `def_sharding`, `def_kernel`, `def_host` and `def_infer` to add
      rules and implementations.

    Raises:
      MalformedFamilyId: not a family_id.
      InvalidConfig: a keyword-only parameter has no annotation, a parameter by position has a
        default, or a call passes payload by position; the text names the function and its line.
      Duplicate: another function or class has the family_id.
      DuplicateRule: later, if a second kind of rule is set.
      ADRuleError: later, if it is differentiated, has no rule and JAX cannot differentiate it, as
        where a callback, `def_host` or a kernel alone computes it.

    What the function closes over must not change: calls outside jit keep the program that they
    traced, and a transform traces the function again. Pass an array that changes as an argument.

    Cost: a call on concrete arrays takes some 20 us more than a call of an equal jitted function;
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
    if callable(family_id):
        raise MalformedFamilyId(family_id, problem='op takes the id: @op("my-package.soft.v1")')
    parse_family_id(family_id)

    def publish(function: Callable[..., PyTree]) -> FunctionOp:
        return FunctionOp(adopted(function, family_id), family_id, derive)

    return publish
