"""The op of a function: how arrays are nested in its arguments and results, and its derivatives.

The fields beside the payload say how arrays are nested, and for which derivative an op stands: with
a reverse rule of `defvjp` the op "forward" has the residuals as further outputs, and the op
"tangent" is the linear map whose transpose is `bwd`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..errors import ADRuleError, InvalidConfig, Unsupported, first_line
from ..jax_seam import only_needed
from ..shapes import TensorMeta, is_inexact, meta_of, struct
from .adopted import Functions, PyTree
from .contract import ExtensionOp, LinearInput
from .primitive import apply
from .registry import require_extension_factory

FORWARD, FORWARD_AGAIN, TANGENT = "forward", "forward, differentiated", "tangent"
STRUCTURE = ("in_tree", "out_tree", "stage", "result_metas", "function")
"""Names of the fields of every op of a function, which no payload may have."""


def _nesting(tree: PyTree, where: str) -> Any:
    """A pytree as JSON: 0 for an array, null, ["tuple", ...], ["list", ...],
    ["dict", keys, ...].
    """
    if tree is None or jax.tree_util.all_leaves([tree]):
        return None if tree is None else 0
    if type(tree) in (tuple, list):
        return [type(tree).__name__, *(_nesting(x, where) for x in tree)]
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return ["dict", sorted(tree), *(_nesting(tree[key], where) for key in sorted(tree))]
    raise InvalidConfig(
        where=where,
        given=f"a {type(tree).__qualname__} among the arrays",
        needed="arrays, or tuples, lists and dicts with text as keys of them",
        fix="Pass the arrays of the object, and make the object of the results.",
    )


def _blank(nesting: Any) -> PyTree:
    if not isinstance(nesting, list):
        return nesting
    kind, *parts = nesting
    if kind == "dict":
        return dict(zip(parts[0], map(_blank, parts[1:]), strict=True))
    return {"tuple": tuple, "list": list}[kind](map(_blank, parts))


@functools.lru_cache(maxsize=4096)
def _treedef(text: str) -> PyTreeDef:
    return jax.tree.structure(_blank(json.loads(text)))


def nesting_text(tree: PyTree, where: str) -> str:
    """How arrays are nested in a tree, as JSON text."""
    return json.dumps(_nesting(tree, where), separators=(",", ":"))


def _missing(x: object) -> bool:
    return x is None


def _structure(tree: PyTree) -> Any:
    """The nesting of a tree, in which None stands for an array."""
    return jax.tree.structure(tree, is_leaf=_missing)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FunctionExtension(ExtensionOp):
    """The op of a function: its payload, how arrays are nested, and what the op stands for.

    `in_tree` is "" if every argument is one array, `out_tree` if the result is one. The op
    "tangent" knows the results only by `result_metas`.
    """

    function: ClassVar[Functions]
    missing_rule = (
        "Write @f.defjvp, f.defvjp(fwd, bwd) or @f.def_transpose, or pass derive=True to "
        "tenferro_jax.op, so that JAX differentiates the function."
    )
    in_tree: str = ""
    out_tree: str = ""
    stage: str = ""
    result_metas: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...] = ()

    @property
    def arguments(self) -> PyTreeDef:
        """The nesting of the arguments."""
        return _treedef(self.in_tree) if self.in_tree else self.function.plain

    @property
    def results(self) -> PyTreeDef:
        """The nesting of the results."""
        return _treedef(self.out_tree or "0")

    @property
    def input_count(self) -> int:
        """Arrays in the arguments."""
        return int(self.arguments.num_leaves)

    @property
    def output_count(self) -> int:
        """Arrays in the results; of the op "tangent" those that have tangents."""
        if self.stage == TANGENT:
            return sum(map(is_inexact, self.metas))
        return int(self.results.num_leaves)

    @property
    def takes_zeros(self) -> bool:
        """Whether the author's rule gets zeros for missing tangents."""
        function = self.function
        return not self.stage and function.jvp is not None and not function.symbolic_zeros

    @property
    def metas(self) -> list[TensorMeta]:
        """Of the results whose tangents the op "tangent" gives."""
        return [TensorMeta(*meta) for meta in self.result_metas]

    @property
    def payload(self) -> dict[str, Any]:
        """The keyword-only arguments of the function."""
        return {name: getattr(self, name) for name in self.function.payload}

    def changed(self, **fields: Any) -> FunctionExtension:
        """The op with another nesting or stage."""
        return dataclasses.replace(self, **fields)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        """Those of the author's function for these inputs."""
        if self.stage == TANGENT:
            return [meta for meta in self.metas if is_inexact(meta)]
        if not self.stage and self.function.infer is not None:
            structs = jax.tree.leaves(self.function.inferred(self, inputs))
            return [meta_of(x) for x in structs]
        return super().infer_output_meta(inputs)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        """The author's function of the arrays in their nesting."""
        args = self.arguments.unflatten(inputs)
        if self.stage == TANGENT:
            return self.pushed(*args)
        results = self.function.running(self.stage)(*args, **self.payload)
        if results is None and not self.stage:
            return None
        return self.function.flat(self.results, results, "result")

    def __reduce__(self) -> Any:
        rebuild, (_, state) = super().__reduce__()
        return _unpickled, (rebuild, type(self).__module__, self.family_id, state)

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.payload.items()]
        stage = f" {self.stage}" if self.stage else ""
        return f"{type(self).__name__}({', '.join(fields)}){stage}"

    # --- derivatives ---

    def form_for(self, inputs: Sequence[TensorMeta]) -> FunctionExtension:
        """With a reverse rule the op "forward", whose residuals follow from the inputs."""
        if self.stage == FORWARD:
            return self.changed(stage=FORWARD_AGAIN)
        if self.stage or self.function.fwd is None:
            return self
        return self.changed(stage=FORWARD, out_tree=results_of(self, FORWARD, tuple(inputs)))

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """The tangents by the rule that the author gave."""
        function = self.function
        if self.stage == TANGENT:
            return _jvp(lambda *xs: self.pushed(*self.arguments.unflatten(xs)), primals, tangents)
        if self.stage:
            return self._forward_tangents(primals, outputs, tangents)
        if function.jvp is not None:
            if not function.symbolic_zeros:
                tangents = _filled(primals, tangents)
            made = function.jvp(
                self.arguments.unflatten(primals),
                self.results.unflatten(outputs),
                self.arguments.unflatten(tangents),
                **self.payload,
            )
            made = function.flat(self.results, made, "the tangent")
            return [None if _is_float0(t) else t for t in made]
        if function.transpose is not None:
            full = _filled(primals, tangents)
            # dtypes without tangents are no part of the linear map
            return apply(
                self, *(x if _is_float0(t) else t for x, t in zip(primals, full, strict=True))
            )
        body = functools.partial(function.body, **self.payload)
        return _jvp(
            lambda *xs: jax.tree.leaves(body(*self.arguments.unflatten(xs))), primals, tangents
        )

    def _forward_tangents(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """Of the op "forward": the op "tangent" on the residuals."""
        results, residuals = self.results.unflatten(outputs)
        values = jax.tree.leaves(results)
        given = self.arguments.unflatten(tangents)
        where = f"residuals of {self.function.place}"
        op = self.changed(
            stage=TANGENT,
            in_tree=nesting_text((residuals, given), where),
            out_tree=nesting_text(results, where),
            result_metas=tuple((np.dtype(x.dtype), tuple(x.shape)) for x in values),
        )
        pushed = iter(apply(op, *jax.tree.leaves((residuals, given))))
        moved = [next(pushed) if is_inexact(x) else None for x in values]
        others: list[Any] = [None] * (len(outputs) - len(values))
        if self.stage == FORWARD_AGAIN:
            fwd = functools.partial(self.function.fwd, **self.payload)
            # a fwd that calls its custom_vjp has a derivative without that call alone
            run = only_needed(
                lambda *xs: jax.tree.leaves(fwd(*self.arguments.unflatten(xs))[1]), *primals
            )
            others = _jvp(run, primals, tangents)
        return [*moved, *others]

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        """The cotangents by `bwd` or by the rule of `def_transpose`."""
        function = self.function
        if self.stage == TANGENT:
            residuals, tangents = self.arguments.unflatten(inputs)
            known = jax.tree.leaves(residuals)
            if any(isinstance(x, LinearInput) for x in known):
                raise ADRuleError(self.family_id, "transpose", given="a residual of fwd as unknown")
            return [None] * len(known) + self.pulled(residuals, tangents, cotangents)
        if function.transpose is None or self.stage:
            raise ADRuleError(self.family_id, "transpose", fix=self.missing_rule)
        args = self.arguments.unflatten(inputs)
        made = function.transpose(self.results.unflatten(cotangents), *args, **self.payload)
        if not isinstance(made, tuple | list) or len(made) != len(args):
            raise function.error(
                f"the transpose, which returned {made!r:.100}",
                f"a tuple of {len(args)}, a cotangent or None for each argument",
            )
        found: list[Any] = []
        for arg, cotangent in zip(args, made, strict=True):
            nesting = _structure(arg)
            found += (
                [None] * nesting.num_leaves
                if cotangent is None
                else function.flat(nesting, cotangent, "a cotangent")
            )
        return found

    def eager_execute(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        """The function of `def_host`."""
        if self.stage:
            raise Unsupported(
                where=f"the derivative of {self.function.place} on the host",
                given="a function of NumPy for the value alone",
                needed="the route lowering",
            )
        results = self.function.host(*self.arguments.unflatten(arrays), **self.payload)
        return [
            np.asarray(x) for x in self.function.flat(self.results, results, "the host's result")
        ]

    def has_own(self, method: str) -> bool:
        """What the author gave for the stage of this op."""
        function, tangent = self.function, self.stage == TANGENT
        given = {
            "infer_output_meta": tangent or (function.infer is not None and not self.stage),
            "eager_execute": function.host is not None and not self.stage,
            "linearize": function.derive
            or any(rule is not None for rule in (function.jvp, function.fwd, function.transpose)),
            "transpose_rule": tangent or (function.transpose is not None and not self.stage),
        }
        return given[method] if method in given else super().has_own(method)

    def pushed(self, residuals: PyTree, tangents: PyTree) -> list[jax.Array]:
        """The tangents of the results: the transpose of `bwd`, which is linear in cotangents."""
        given = jax.tree.leaves(tangents)
        like = [struct(meta) for meta in self.metas if is_inexact(meta)]

        def pull(*cotangents: jax.Array) -> list[jax.Array]:
            made = self.pulled(residuals, tangents, cotangents)
            return [jnp.zeros_like(t) if c is None else c for t, c in zip(given, made, strict=True)]

        try:
            return list(jax.linear_transpose(pull, *like)(given))
        except (NotImplementedError, ValueError, AssertionError, TypeError) as error:
            raise Unsupported(
                where=f"forward mode of {self.function.place}",
                given=f"bwd, which JAX cannot transpose: {type(error).__name__}: "
                f"{first_line(error)}",
                needed="a rule for forward mode",
                fix="Use reverse mode, or write @f.defjvp in place of f.defvjp.",
            ) from error

    def pulled(
        self, residuals: PyTree, tangents: PyTree, given: Sequence[jax.Array | None]
    ) -> list[jax.Array | None]:
        """What `bwd` gives for each tangent; None for zero."""
        source = iter(given)
        cotangents = [next(source) if is_inexact(meta) else None for meta in self.metas]
        full = _filled([struct(meta) for meta in self.metas], cotangents)
        function = self.function
        made = function.bwd(residuals, self.results.unflatten(full), **self.payload)
        if not isinstance(made, tuple | list) or len(made) != len(tangents):
            raise function.error(
                f"bwd, which returned {made!r:.100}",
                f"a tuple of {len(tangents)}, a cotangent or None for each argument",
            )
        found: list[Any] = []
        for tangent, cotangent in zip(tangents, made, strict=True):
            nesting = _structure(tangent)
            entries = (
                [None] * nesting.num_leaves
                if cotangent is None
                else function.flat(nesting, cotangent, "a cotangent of bwd")
            )
            wanted = jax.tree.leaves(tangent, is_leaf=_missing)
            found += [c for c, t in zip(entries, wanted, strict=True) if t is not None]
        return [None if _is_float0(c) else c for c in found]


def _unpickled(rebuild: Callable[..., Any], module: str, family_id: str, state: Any) -> Any:
    """The op of a family that `module` registers: its class need not have a name there."""
    importlib.import_module(module)
    return rebuild(require_extension_factory(family_id).op_class, state)


def _is_float0(x: object) -> bool:
    return getattr(x, "dtype", None) == jax.dtypes.float0


@functools.lru_cache(maxsize=4096)
def results_of(op: FunctionExtension, stage: str, metas: tuple[TensorMeta, ...]) -> str:
    """How the results are nested for inputs of these dtypes and shapes; "" for one array."""
    structs = [struct(meta) for meta in metas]
    function = op.function
    if not stage and function.infer is not None:
        results = function.inferred(op, metas)
    else:
        run = functools.partial(function.running(stage), **op.payload)
        results = jax.eval_shape(lambda *xs: run(*op.arguments.unflatten(xs)), *structs)
    if stage and not (isinstance(results, tuple) and len(results) == 2):
        raise function.error(f"fwd, which returned {results!r:.100}", "(the result, residuals)")
    text = nesting_text(results, f"results of {function.place}")
    return "" if text == "0" else text


def _filled(
    primals: Sequence[jax.Array | jax.ShapeDtypeStruct], tangents: Sequence[jax.Array | None]
) -> list[Any]:
    """The tangents, with zeros for those that are missing, as jax.custom_jvp gives them."""

    def zero(x: jax.Array | jax.ShapeDtypeStruct) -> Any:
        return jnp.zeros_like(x) if is_inexact(x) else np.zeros(np.shape(x), jax.dtypes.float0)

    return [zero(x) if t is None else t for x, t in zip(primals, tangents, strict=True)]


def _jvp(
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
    return [None if _is_float0(t) else t for t in made]
