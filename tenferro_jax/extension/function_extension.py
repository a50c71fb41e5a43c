"""The op of a function: how arrays are nested in its arguments and results, and its derivatives.

The fields beside the payload say how arrays are nested, and for which derivative an op stands: with
a reverse rule of `defvjp` the op "forward" has the residuals as further outputs, and the op
"tangent" is the linear map whose transpose is `bwd`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..errors import ADRuleError, Unsupported, first_line
from ..jax_seam import only_needed, open_jaxpr
from ..shapes import TensorMeta, is_inexact, meta_of, struct
from .adopted import MISSING_RULE, Functions, PyTree, filled
from .contract import ExtensionOp, LinearInput
from .nesting import forward_of, forward_text, missing, nesting_text, structure_of, treedef_of
from .primitive import apply
from .registry import require_extension_factory

FORWARD, FORWARD_AGAIN, TANGENT = "forward", "forward, differentiated", "tangent"
STRUCTURE = ("in_tree", "out_tree", "stage", "result_metas", "function")
"""Names of the fields of every op of a function, which no payload may have."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FunctionExtension(ExtensionOp):
    """The op of a function: its payload, how arrays are nested, and what the op stands for.

    `in_tree` is "" if every argument is one array, `out_tree` if the result is one. The op
    "tangent" knows the results only by `result_metas`.
    """

    function: ClassVar[Functions]
    missing_rule = MISSING_RULE
    in_tree: str = ""
    out_tree: str = ""
    stage: str = ""
    result_metas: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...] = ()

    @property
    def arguments(self) -> PyTreeDef:
        """The nesting of the arguments."""
        return treedef_of(self.in_tree) if self.in_tree else self.function.plain

    @property
    def results(self) -> PyTreeDef:
        """The nesting of the results."""
        if self.stage in (FORWARD, FORWARD_AGAIN):
            forward = forward_of(self.out_tree)
            return jax.tree.structure(
                (
                    forward.results.unflatten([0] * forward.results.num_leaves),
                    [0] * len(forward.kept),
                )
            )
        return treedef_of(self.out_tree or "0")

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
        run = self.function.fwd if self.stage else self.function.body
        results = run(*args, **self.payload)
        if self.stage:
            return self._with_residuals(results)
        return None if results is None else self.function.flat(self.results, results, "result")

    def _with_residuals(self, made: PyTree) -> list[jax.Array]:
        """The results of `fwd`, and those residuals that are no inputs."""
        forward, function = forward_of(self.out_tree), self.function
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise function.error(f"fwd, which returned {made!r:.100}", "(the result, residuals)")
        residuals = function.flat(forward.residuals, made[1], "residuals")
        results = function.flat(forward.results, made[0], "result")
        return [*results, *(jnp.asarray(residuals[j]) for j in forward.kept)]

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
                tangents = filled(primals, tangents)
            made = function.jvp(
                self.arguments.unflatten(primals),
                self.results.unflatten(outputs),
                self.arguments.unflatten(tangents),
                **self.payload,
            )
            made = function.flat(self.results, made, "the tangent")
            return [None if _is_float0(t) else t for t in made]
        if function.transpose is not None:
            return self._linear(primals, tangents)
        body = functools.partial(function.body, **self.payload)
        return _jvp(
            lambda *xs: jax.tree.leaves(body(*self.arguments.unflatten(xs))), primals, tangents
        )

    def _linear(
        self, primals: Sequence[jax.Array], tangents: Sequence[jax.Array | None]
    ) -> Sequence[jax.Array]:
        """The op itself of the tangents of the arguments in which it is linear."""
        numbers = self.arguments.unflatten(range(len(primals)))
        linear = jax.tree.leaves([numbers[i] for i in self.function.linear_in(len(numbers))])
        if any(t is not None for i, t in enumerate(tangents) if i not in linear):
            raise ADRuleError(
                self.family_id,
                "jvp",
                given=f"a derivative by an argument of {self.function.place} in which it is not "
                "linear",
                fix="Write @f.defjvp, which may call the function.",
            )
        full = filled(primals, tangents)
        # integers are no part of the linear map
        return apply(
            self,
            *(
                t if i in linear and not _is_float0(t) else x
                for i, (x, t) in enumerate(zip(primals, full, strict=True))
            ),
        )

    def _forward_tangents(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """Of the op "forward": the op "tangent" on the residuals."""
        forward = forward_of(self.out_tree)
        values = outputs[: forward.results.num_leaves]
        kept = iter(outputs[len(values) :])
        residuals = forward.residuals.unflatten(
            [next(kept) if i < 0 else primals[i] for i in forward.inputs]
        )
        results = forward.results.unflatten(values)
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
        others: list[Any] = [None] * len(forward.kept)
        if self.stage == FORWARD_AGAIN:
            fwd = functools.partial(self.function.fwd, **self.payload)

            def run(*xs: jax.Array) -> list[jax.Array]:
                return self._with_residuals(fwd(*self.arguments.unflatten(xs)))[len(values) :]

            # a fwd that calls its custom_vjp has a derivative without that call alone
            others = _jvp(only_needed(run, *primals), primals, tangents)
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
        metas = self.infer_output_meta(list(map(meta_of, inputs)))
        full = filled([struct(meta) for meta in metas], cotangents)
        made = function.transpose(self.results.unflatten(full), *args, **self.payload)
        if not isinstance(made, tuple | list) or len(made) != len(args):
            raise function.error(
                f"the transpose, which returned {made!r:.100}",
                f"a tuple of {len(args)}, a cotangent or None for each argument",
            )
        found: list[Any] = []
        for arg, cotangent in zip(args, made, strict=True):
            nesting = structure_of(arg)
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
        full = filled([struct(meta) for meta in self.metas], cotangents)
        function = self.function
        made = function.bwd(residuals, self.results.unflatten(full), **self.payload)
        if not isinstance(made, tuple | list) or len(made) != len(tangents):
            raise function.error(
                f"bwd, which returned {made!r:.100}",
                f"a tuple of {len(tangents)}, a cotangent or None for each argument",
            )
        found: list[Any] = []
        for tangent, cotangent in zip(tangents, made, strict=True):
            nesting = structure_of(tangent)
            entries = (
                [None] * nesting.num_leaves
                if cotangent is None
                else function.flat(nesting, cotangent, "a cotangent of bwd")
            )
            wanted = jax.tree.leaves(tangent, is_leaf=missing)
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
    if stage:
        return _forward_results(op, structs)
    if function.infer is not None:
        results = function.inferred(op, metas)
    else:
        run = functools.partial(function.body, **op.payload)
        results = jax.eval_shape(lambda *xs: run(*op.arguments.unflatten(xs)), *structs)
    text = nesting_text(results, f"results of {function.place}")
    return "" if text == "0" else text


def _forward_results(op: FunctionExtension, structs: Sequence[jax.ShapeDtypeStruct]) -> str:
    """What `fwd` gives for inputs of these dtypes and shapes."""
    function = op.function
    run = functools.partial(function.fwd, **op.payload)
    traced, made = jax.make_jaxpr(lambda *xs: run(*op.arguments.unflatten(xs)), return_shape=True)(
        *structs
    )
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise function.error(f"fwd, which returned {made!r:.100}", "(the result, residuals)")
    jaxpr, _ = open_jaxpr(traced)
    residuals = jaxpr.outvars[len(jax.tree.leaves(made[0])) :]
    inputs = [next((i for i, x in enumerate(jaxpr.invars) if x is v), -1) for v in residuals]
    return forward_text(made[0], made[1], inputs, f"residuals of {function.place}")


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
