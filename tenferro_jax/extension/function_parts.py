"""The four parts of a function that an op may be, and what each computes.

- "": the value. Its tangents are those of the author's rule, or of JAX, and JAX transposes them.
- "forward": with a reverse rule, the value in a call that is differentiated. Its further outputs
  are those residuals of `fwd` that are no inputs.
- "forward, differentiated": the same in a second derivative. The value keeps its rule, and the
  residuals have the tangents of `fwd`.
- "tangent": the tangents of "forward", from residuals and tangents. Its transpose is `bwd`, and its
  value, which forward mode needs, is the transpose of `bwd`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..both_modes import both_modes, needs_both_modes, replaced
from ..errors import ADRuleError, Unsupported
from ..jax_seam import Aval, only_needed, open_jaxpr, struct_beside, struct_of
from ..linear import NotTransposed, linear_transpose, transpose_of_bwd
from ..shapes import Arrays, TensorMeta, is_inexact, meta_of, struct
from .authored import filled, is_float0, jvp_of
from .contract import (
    LOWERING,
    Can,
    LinearInput,
    LinearInputs,
    MapsOver,
    Tangents,
    in_method,
    require_not_traced,
)
from .definitions import kept
from .function_call import FunctionCall, named_in_errors
from .nesting import PyTree, forward_of, forward_text, missing, nesting_text, treedef_of
from .primitive import apply

NOT_LINEAR = "a derivative by an argument in which it is not linear"

WITH_VALUE = jax.Array | np.ndarray | np.generic

VALUE, FORWARD, FORWARD_AGAIN, TANGENT = "", "forward", "forward, differentiated", "tangent"


class Part:
    """What an op of a function computes. Each method is that of the op, which comes first.

    Attributes:
      abilities: what the op can do; None: what the author wrote a method for.
      lowering: what errors call the code that it runs; "" is the function itself.
    """

    abilities: frozenset[Can] | None = None
    lowering: str = ""

    def results(self, op: FunctionCall) -> PyTreeDef:
        """The nesting of the results."""
        return treedef_of(op.out_tree or "0")

    def metas(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> list[TensorMeta]:
        """Dtype and shape of each result, of a part that can infer them without its lowering."""
        raise NotImplementedError

    def lower(self, op: FunctionCall, inputs: Arrays) -> Arrays | None:
        """The results in standard ops; None if the author's function returns None."""
        raise NotImplementedError

    def form_for(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> FunctionCall:
        """The op that runs in place of this one where it is differentiated."""
        return op

    def linearize(
        self,
        op: FunctionCall,
        primals: Arrays,
        outputs: Arrays,
        tangents: Tangents,
    ) -> Sequence[Any]:
        """The tangents of the results."""
        raise NotImplementedError

    def mapped_tangents(
        self, op: FunctionCall, map_: MapsOver, *values: Any
    ) -> list[jax.Array | None] | None:
        """The tangents of the mapped op; None where those of an element are mapped."""
        return None

    def transpose(
        self,
        op: FunctionCall,
        cotangents: Tangents,
        inputs: LinearInputs,
    ) -> Sequence[Any]:
        """The cotangents of the inputs in which the op is linear."""
        raise op.missing_rule("transpose")

    def run_on_host(self, op: FunctionCall, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results as NumPy arrays."""
        raise Unsupported(
            where=f"the derivative of {op.function.place} on the host",
            given="a function of NumPy for the value alone",
            needed="the route lowering",
        )


class ValuePart(Part):
    """The value of the function."""

    def metas(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> list[TensorMeta]:
        """Those of `def_infer`."""
        return [meta_of(x) for x in jax.tree.leaves(inferred(op, inputs))]

    def lower(self, op: FunctionCall, inputs: Arrays) -> Arrays | None:
        """The author's function."""
        results = op.function.body(*op.arguments.unflatten(inputs), **op.payload)
        if results is None:
            return None
        made = op.function.flat(self.results(op), results, "the results")
        return [x if hasattr(x, "dtype") else jnp.asarray(x) for x in made]

    def form_for(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> FunctionCall:
        """With a reverse rule the part "forward"."""
        if op.function.fwd is None:
            return op
        with named_in_errors(op):
            results = forward_results_of(op, tuple(inputs))
        return dataclasses.replace(op, stage=FORWARD, out_tree=results)

    def linearize(
        self,
        op: FunctionCall,
        primals: Arrays,
        outputs: Arrays,
        tangents: Tangents,
    ) -> Sequence[Any]:
        """By the rule that the author wrote, or by JAX."""
        if op.function.jvp is not None:
            return self._by_jvp(op, primals, outputs, tangents)
        if op.function.transpose is not None:
            return self._linear(op, primals, tangents)
        return self.mapped_tangents(op, lambda fn: fn, primals, tangents) or ()

    def _by_jvp(
        self,
        op: FunctionCall,
        primals: Arrays,
        outputs: Arrays,
        tangents: Tangents,
    ) -> list[Any]:
        """The tangents by the rule of `defjvp`."""
        function = op.function
        if not function.symbolic_zeros:
            tangents = filled(primals, tangents)
        results = self.results(op)
        made = by_rule(
            op,
            "jvp",
            op.arguments.unflatten(primals),
            results.unflatten(outputs),
            op.arguments.unflatten(tangents),
        )
        if made is None:
            raise function.error("defjvp, which returned None", "tangents", "Return the zeros.")
        fix = "Return the tangents alone, nested as the result."
        made = function.flat(results, made, "defjvp, which returned", fix)
        return [None if is_float0(t) else t for t in made]

    def _linear(
        self,
        op: FunctionCall,
        primals: Arrays,
        tangents: Tangents,
    ) -> Tangents:
        """The op itself of the tangents of the arguments in which it is linear."""
        numbers = op.arguments.unflatten(range(len(primals)))
        linear = jax.tree.leaves([numbers[i] for i in op.function.linear_in(len(numbers))])
        if any(t is not None for i, t in enumerate(tangents) if i not in linear):
            raise ADRuleError(
                op.family_id,
                "jvp",
                place=op.function.place,
                given=NOT_LINEAR,
                needed="a rule",
                fix="Write @f.defjvp, which may call the function.",
            )
        full = filled(primals, tangents)
        # integers are no part of the linear map
        given = [
            t if i in linear and not is_float0(t) else x
            for i, (x, t) in enumerate(zip(primals, full, strict=True))
        ]
        return [x if is_inexact(x) else None for x in apply(op, *given)]

    def mapped_tangents(
        self, op: FunctionCall, map_: MapsOver, *values: Any
    ) -> list[jax.Array | None] | None:
        """Where JAX differentiates the function; a mapped derivative of a cond has no transpose."""
        if op.function.jvp or op.function.transpose:
            return None
        with named_in_errors(op):
            return jvp_of(both_modes(map_(functools.partial(leaves_of, op))), *values)

    def transpose(
        self,
        op: FunctionCall,
        cotangents: Tangents,
        inputs: LinearInputs,
    ) -> Sequence[Any]:
        """By `def_transpose`, or by JAX."""
        function = op.function
        args = op.arguments.unflatten(inputs)
        metas = op.infer_output_meta(list(map(meta_of, inputs)))
        full = filled([struct(meta) for meta in metas], cotangents)
        if function.transpose is None:
            return transposed_by_jax(op, full, inputs)
        made = by_rule(op, "transpose", self.results(op).unflatten(full), *args)
        wanted = [x.meta if isinstance(x, LinearInput) else None for x in inputs]
        found = function.cotangents(made, args, "def_transpose")
        return function.cast(found, wanted, "def_transpose")

    def run_on_host(self, op: FunctionCall, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The function of `def_host`."""
        results = op.function.host(*op.arguments.unflatten(arrays), **op.payload)
        if results is None:
            raise op.function.error("def_host, which returned None", "NumPy arrays")
        made = op.function.flat(self.results(op), results, "def_host, which returned")
        return [np.asanyarray(x) for x in made]  # a masked array stays one, and is refused


class ForwardPart(Part):
    """The value, and those residuals of `fwd` that are no inputs."""

    abilities = frozenset({Can.LOWER, Can.LINEARIZE})
    lowering = "fwd"

    def results(self, op: FunctionCall) -> PyTreeDef:
        """The value, and a list of residuals."""
        forward = forward_of(op.out_tree)
        value = forward.results.unflatten([0] * forward.results.num_leaves)
        return jax.tree.structure((value, [0] * len(forward.kept)))

    def lower(self, op: FunctionCall, inputs: Arrays) -> list[jax.Array]:
        """What `fwd` returns."""
        forward = forward_of(op.out_tree)
        fwd, _ = op.reverse
        results, residuals = fwd(*op.arguments.unflatten(inputs))
        made = op.function.flat(forward.results, results, "fwd, which returned the results")
        leaves = jax.tree.leaves(residuals)
        return [*made, *(jnp.asarray(leaves[j]) for j in forward.kept)]

    def form_for(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> FunctionCall:
        """A "forward" is differentiated in a second derivative alone."""
        return dataclasses.replace(op, stage=FORWARD_AGAIN)

    def linearize(
        self,
        op: FunctionCall,
        primals: Arrays,
        outputs: Arrays,
        tangents: Tangents,
    ) -> list[Any]:
        """The tangents of the value are the op "tangent" on the residuals."""
        forward = forward_of(op.out_tree)
        values = outputs[: forward.results.num_leaves]
        kept_residuals = iter(outputs[len(values) :])
        residuals = forward.residuals.unflatten(
            [next(kept_residuals) if i < 0 else primals[i] for i in forward.inputs]
        )
        results = forward.results.unflatten(values)
        given = op.arguments.unflatten(tangents)
        where = f"residuals of {op.function.place}"
        tangent = dataclasses.replace(
            op,
            stage=TANGENT,
            in_tree=nesting_text((residuals, given), where, any_class=True),
            out_tree=nesting_text(results, where),
            # Of what has no derivative the shape counts: no payload has the dtype of a random key.
            result_metas=tuple(
                (np.dtype(x.dtype if is_inexact(x) else bool), tuple(x.shape)) for x in values
            ),
        )
        pushed = iter(apply(tangent, *jax.tree.leaves((residuals, given))))
        moved = [next(pushed) if is_inexact(x) else None for x in values]
        # a first derivative does not ask for the tangents of residuals
        return [*moved, *[None] * len(forward.kept)]


class ForwardAgainPart(ForwardPart):
    """The same in a second derivative: residuals have the tangents of `fwd`."""

    def form_for(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> FunctionCall:
        """The op itself."""
        return op

    def linearize(
        self,
        op: FunctionCall,
        primals: Arrays,
        outputs: Arrays,
        tangents: Tangents,
    ) -> list[Any]:
        """The tangents of the residuals are those that JAX finds in `fwd`."""
        count = forward_of(op.out_tree).results.num_leaves

        def run(*xs: jax.Array) -> list[jax.Array]:
            return self.lower(op, xs)[count:]

        # a call that is not needed may be one of the author's custom_vjp
        residuals = jvp_of(both_modes(only_needed(run, *primals)), primals, tangents)
        return [*super().linearize(op, primals, outputs, tangents)[:count], *residuals]


class TangentPart(Part):
    """The tangents of the results, from residuals and the tangents of the arguments. It knows the
    results by `result_metas` alone, and gives tangents of those that are inexact.
    """

    abilities = frozenset({Can.INFER, Can.LOWER, Can.LINEARIZE, Can.TRANSPOSE})
    lowering = "the transpose of bwd"

    def results(self, op: FunctionCall) -> PyTreeDef:
        """A list of the tangents."""
        return jax.tree.structure([0] * len(self.metas(op, ())))

    def metas(self, op: FunctionCall, inputs: Sequence[TensorMeta]) -> list[TensorMeta]:
        """Those of the results that have tangents."""
        return [meta for meta in op.metas if is_inexact(meta)]

    def lower(self, op: FunctionCall, inputs: Arrays) -> list[jax.Array]:
        """The transpose of `bwd`, which is linear in cotangents."""
        residuals, tangents = op.arguments.unflatten(inputs)
        given = jax.tree.leaves(tangents)
        known = [*jax.tree.leaves(residuals), *given]
        like = [struct_beside(struct(meta), known) for meta in self.metas(op, ())]

        def pull(*cotangents: jax.Array) -> list[jax.Array]:
            made = self._pulled(op, residuals, tangents, cotangents)
            return [jnp.zeros_like(t) if c is None else c for t, c in zip(given, made, strict=True)]

        fix = "Use reverse mode, or write @f.defjvp in place of f.defvjp."
        return transpose_of_bwd(both_modes(pull), like, given, op.function.place, fix)

    def linearize(
        self,
        op: FunctionCall,
        primals: Arrays,
        outputs: Arrays,
        tangents: Tangents,
    ) -> Sequence[Any]:
        """By JAX."""
        return jvp_of(op.lower_to_standard_ops, primals, tangents)

    def transpose(
        self,
        op: FunctionCall,
        cotangents: Tangents,
        inputs: LinearInputs,
    ) -> Sequence[Any]:
        """What `bwd` gives."""
        residuals, tangents = op.arguments.unflatten(inputs)
        known = jax.tree.leaves(residuals)
        if any(isinstance(x, LinearInput) for x in known):
            raise ADRuleError(
                op.family_id,
                "transpose",
                place=op.function.place,
                given="a transpose by a residual of fwd",
                needed="a derivative by arguments",
                fix="",
            )
        return [None] * len(known) + self._pulled(op, residuals, tangents, cotangents)

    def _pulled(
        self,
        op: FunctionCall,
        residuals: PyTree,
        tangents: PyTree,
        given: Tangents,
    ) -> list[jax.Array | None]:
        """What `bwd` gives for each tangent; None for zero."""
        metas = op.metas
        source = iter(given)
        cotangents = [next(source) if is_inexact(meta) else None for meta in metas]
        full = filled([struct(meta) for meta in metas], cotangents)
        made = by_rule(op, "bwd", residuals, treedef_of(op.out_tree).unflatten(full))
        found = op.function.cotangents(made, tangents, "bwd")
        wanted = jax.tree.leaves(tangents, is_leaf=missing)
        moving = [c for c, t in zip(found, wanted, strict=True) if t is not None]
        return op.function.cast(moving, [meta_of(t) for t in wanted if t is not None], "bwd")


PARTS: dict[str, Part] = {
    VALUE: ValuePart(),
    FORWARD: ForwardPart(),
    FORWARD_AGAIN: ForwardAgainPart(),
    TANGENT: TangentPart(),
}
"""The parts by `stage`, a field of the op that files hold."""


# --- what the parts have in common ----------------------------------------------------------------


def leaves_of(op: FunctionCall, *arrays: jax.Array) -> list[jax.Array]:
    """The arrays of the function's results, from those of its arguments."""
    return jax.tree.leaves(op.function.body(*op.arguments.unflatten(arrays), **op.payload))


def inferred(op: FunctionCall, inputs: Iterable[TensorMeta]) -> PyTree:
    """What `def_infer` returns for these inputs."""
    made = op.function.infer(*op.arguments.unflatten(map(struct, inputs)), **op.payload)
    if made is None or not all(hasattr(x, "shape") for x in jax.tree.leaves(made)):
        raise op.function.error(
            f"def_infer, which returned {made!r:.200}",
            "a jax.ShapeDtypeStruct for each array of the result",
        )
    return made


def by_rule(op: FunctionCall, name: str, *args: PyTree) -> PyTree:
    """What a rule of the author gives. It is run in both modes where it calls something that has a
    reverse rule alone, because the derivative of the rule may be asked for.
    """
    rule = op.rule(name)
    leaves, tree = jax.tree.flatten(args)
    # the tangent of an integer and an input in which the op is linear have no value
    has_value = [isinstance(x, WITH_VALUE) and not is_float0(x) for x in leaves]
    traced = tuple(jax.typeof(x) if a else None for x, a in zip(leaves, has_value, strict=True))
    others = tuple(x if isinstance(x, LinearInput) else None for x in leaves)
    if calls_reverse_rule_of(op, name, tree, traced, others):
        rule = both_modes(rule)
    return rule(*args)


def transposed_by_jax(
    op: FunctionCall,
    cotangents: Arrays,
    inputs: LinearInputs,
) -> list[jax.Array | None]:
    """The cotangents of a function without a rule for them: JAX transposes it, if it is linear in
    these inputs.
    """
    places = [i for i, x in enumerate(inputs) if isinstance(x, LinearInput)]

    def run(*moved: jax.Array) -> list[jax.Array]:
        values: list[Any] = list(inputs)
        for i, x in zip(places, moved, strict=True):
            values[i] = x
        return leaves_of(op, *values)

    try:
        known = [x for x in inputs if not isinstance(x, LinearInput)]
        like = [struct_beside(struct(meta_of(inputs[i])), [*known, *cotangents]) for i in places]
        found = dict(zip(places, linear_transpose(run, like, cotangents), strict=True))
    except NotTransposed as error:
        raise op.missing_rule("transpose") from error
    return [found.get(i) for i in range(len(inputs))]


@kept(4096)
def forward_results_of(op: FunctionCall, metas: tuple[TensorMeta, ...]) -> str:
    """What `fwd` gives for inputs of these dtypes and shapes."""
    function = op.function
    run, _ = op.reverse
    with in_method(dataclasses.replace(op, stage=FORWARD), LOWERING, lambda *_: None):
        traced, (result, residuals) = jax.make_jaxpr(
            lambda *xs: function.of_arrays(run(*op.arguments.unflatten(xs)), "fwd"),
            return_shape=True,
        )(*map(struct, metas))
        jaxpr, constants = open_jaxpr(traced)
        require_not_traced(op, constants)
    # A residual that is an input is not kept a second time.
    residual_vars = jaxpr.outvars[len(jax.tree.leaves(result)) :]
    inputs = [next((i for i, x in enumerate(jaxpr.invars) if x is v), -1) for v in residual_vars]
    return forward_text(result, residuals, inputs, f"results of fwd of {function.place}")


@kept(4096)
def calls_reverse_rule_of(
    op: FunctionCall,
    name: str,
    tree: PyTreeDef,
    avals: tuple[Aval | None, ...],
    others: tuple[LinearInput | None, ...],
) -> bool:
    """Whether a rule of the author calls something that has a reverse rule alone, where it gets
    arrays like these and inputs in which the op is linear.
    """
    arrays = [i for i, aval in enumerate(avals) if aval is not None]
    structs = [struct_of(aval) for aval in avals if aval is not None]

    def run(*values: jax.Array) -> list[jax.Array]:
        made = op.rule(name)(*tree.unflatten(replaced(others, arrays, values)))
        return [x for x in jax.tree.leaves(made) if hasattr(x, "dtype") and not is_float0(x)]

    traced = jax.make_jaxpr(run)(*structs)
    require_not_traced(op, open_jaxpr(traced)[1])
    return needs_both_modes(traced)
