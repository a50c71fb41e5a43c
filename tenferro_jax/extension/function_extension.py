"""The op of a function: how arrays are nested in its arguments and results, and its derivatives.

The fields beside the payload say how arrays are nested, and for which derivative an op stands:

- Without a reverse rule: the op itself. `linearize` calls the author's rule, or JAX, and JAX
  transposes what it gives.
- With one, a call that is differentiated runs as "forward", whose further outputs are those
  residuals of `fwd` that are no inputs. Its tangents are the op "tangent" of residuals and
  tangents. The transpose of that is `bwd`; its value is the transpose of `bwd`, for forward mode.
- In a second derivative it runs as "forward, differentiated": the value keeps its rule, and the
  residuals have the tangents of `fwd`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from ..both_modes import both_modes, needs_both_modes, replaced
from ..errors import ADRuleError, TenferroError, Unsupported, first_line
from ..jax_seam import Aval, lacks_derivative, only_needed, open_jaxpr, struct_beside, struct_of
from ..linear import NotTransposed, linear_transpose, transpose_of_bwd
from ..shapes import TensorMeta, is_inexact, meta_of, struct
from .authored import MISSING_RULE, Authored, filled, is_float0, jvp_of, shown
from .contract import (
    LOWERING,
    ExtensionOp,
    LinearInput,
    MapsOver,
    ShardingRule,
    in_method,
    require_not_traced,
)
from .definitions import kept
from .nesting import (
    PyTree,
    forward_of,
    forward_text,
    has_classes,
    held,
    missing,
    nesting_text,
    released,
    treedef_of,
)
from .primitive import apply
from .registry import require_current, require_extension_factory
from .sharding import Shard

NO_RULE = "no rule, with code that JAX cannot differentiate"
NOT_LINEAR = "a derivative by an argument in which it is not linear"

FORWARD, FORWARD_AGAIN, TANGENT = "forward", "forward, differentiated", "tangent"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FunctionExtension(ExtensionOp):
    """The op of a function: its payload, how arrays are nested, and what the op stands for.

    `in_tree` is "" if every argument is one array, `out_tree` if the result is one. The op
    "tangent" knows the results only by `result_metas`.
    """

    function: ClassVar[Authored]
    is_part = True
    advice = "Return arrays from the function, or write @f.def_host."
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

    @property
    def _body(self) -> Callable[..., PyTree]:
        """The function of the arguments alone."""
        return functools.partial(self.function.body, **self.payload)

    @property
    def reverse(self) -> tuple[Callable[..., PyTree], Callable[..., PyTree]]:
        """(fwd, bwd) of the author."""
        function = self.function

        def fwd(*args: PyTree) -> PyTree:
            made = function.fwd(*args, **self.payload)
            if not isinstance(made, tuple | list) or len(made) != 2:
                raise function.error(
                    f"fwd, which returned {shown(made)}", "(the result, residuals)"
                )
            return made[0], held(made[1])

        def bwd(residuals: PyTree, cotangents: PyTree) -> PyTree:
            return function.bwd(released(residuals), cotangents, **self.payload)

        return fwd, bwd

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        """Those of the author's function for these inputs."""
        if self.stage == TANGENT:
            return [meta for meta in self.metas if is_inexact(meta)]
        if not self.stage and self.function.infer is not None:
            return [meta_of(x) for x in jax.tree.leaves(self._inferred(inputs))]
        return super().infer_output_meta(inputs)

    def _inferred(self, inputs: Sequence[TensorMeta]) -> PyTree:
        """What `def_infer` returns for these inputs."""
        made = self.function.infer(*self.arguments.unflatten(map(struct, inputs)), **self.payload)
        if made is None or not all(hasattr(x, "shape") for x in jax.tree.leaves(made)):
            raise self.function.error(
                f"def_infer, which returned {made!r:.200}",
                "a jax.ShapeDtypeStruct for each array of the result",
            )
        return made

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        """The author's function of the arrays in their nesting."""
        args = self.arguments.unflatten(inputs)
        if self.stage == TANGENT:
            return self._pushed(*args)
        if self.stage:  # the results of fwd, and those residuals that are no inputs
            forward = forward_of(self.out_tree)
            results, residuals = self.reverse[0](*args)
            made = self.function.flat(forward.results, results, "fwd, which returned the results")
            leaves = jax.tree.leaves(residuals)
            return [*made, *(jnp.asarray(leaves[j]) for j in forward.kept)]
        results = self._body(*args)
        if results is None:
            return None
        made = self.function.flat(self.results, results, "the results")
        return [x if hasattr(x, "dtype") else jnp.asarray(x) for x in made]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule | None:
        """That of `def_sharding`, whose `on_device` takes and returns nests with the payload."""
        rule = self.function.sharding
        if rule is None or rule.on_device is None:
            return rule
        own = rule.on_device

        def on_device(shard: Shard, *pieces: jax.Array) -> list[Any]:
            made = own(shard, *self.arguments.unflatten(pieces), **self.payload)
            return self.function.flat(self.results, made, "on_device, which returned")

        return dataclasses.replace(rule, on_device=on_device)

    def __reduce__(self) -> Any:
        require_current(type(self), f"pickle of {self!r}")
        rebuild, (_, state) = super().__reduce__()
        return _unpickled, (rebuild, type(self).__module__, self.family_id, state)

    def payload_text(self) -> str:
        """The payload as text; residuals of a pytree class have none that others can read."""
        if any(has_classes(json.loads(text or "0")) for text in (self.in_tree, self.out_tree)):
            raise Unsupported(
                where=f"writing a derivative of {self.function.place}",
                given="residuals in a pytree class, which another process does not know",
                needed="residuals in tuples, lists and dicts with text as keys",
                fix="Let the fwd of f.defvjp return them so.",
            )
        return super().payload_text()

    def place_of(self, method: str = "") -> str:
        """The rule that the author wrote for a method, with the name and line of the function."""
        derived = "forward mode" if self.function.has_rule else "no rule"
        names = {
            "linearize": "defjvp" if self.function.jvp else derived,
            "transpose_rule": "bwd" if self.stage else "def_transpose",
            "infer_output_meta": "def_infer" if self.function.infer else "the function",
            "eager_execute": "def_host",
            "differentiable_form": "fwd",
            "sharding_rule": "def_sharding",
        }
        what = names.get(method, method)
        if method.startswith(LOWERING):
            what = {"": "", TANGENT: "the transpose of bwd"}.get(self.stage, "fwd")
        return f"{what} of {self.function.place}" if what else self.function.place

    def missing_rule(self, kind: str) -> ADRuleError:
        """The error that names the function."""
        place = self.function.place
        return ADRuleError(self.family_id, kind, place=place, needed="a rule", fix=MISSING_RULE)

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.payload.items()]
        stage = f" {self.stage}" if self.stage else ""
        return f"{type(self).__name__}({', '.join(fields)}){stage}"

    # --- derivatives ---

    def form_for(self, inputs: Sequence[TensorMeta]) -> FunctionExtension:
        """With a reverse rule the op "forward", whose residuals follow from the inputs."""
        if self.stage == FORWARD:  # a "forward" is differentiated in a second derivative alone
            return dataclasses.replace(self, stage=FORWARD_AGAIN)
        if self.stage or self.function.fwd is None:
            return self
        with self._deriving():
            return dataclasses.replace(
                self, stage=FORWARD, out_tree=forward_results_of(self, tuple(inputs))
            )

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """The tangents by the rule that the author gave."""
        function = self.function
        if self.stage == TANGENT:
            return jvp_of(self.lower_to_standard_ops, primals, tangents)
        if self.stage:
            return self._forward_tangents(primals, outputs, tangents)
        if function.jvp is not None:
            if not function.symbolic_zeros:
                tangents = filled(primals, tangents)
            made = self._by_rule(
                "jvp",
                self.arguments.unflatten(primals),
                self.results.unflatten(outputs),
                self.arguments.unflatten(tangents),
            )
            if made is None:
                raise function.error("defjvp, which returned None", "tangents", "Return the zeros.")
            fix = "Return the tangents alone, nested as the result."
            made = function.flat(self.results, made, "defjvp, which returned", fix)
            return [None if is_float0(t) else t for t in made]
        if function.transpose is not None:
            return self._linear(primals, tangents)
        return self.mapped_tangents(lambda fn: fn, primals, tangents) or ()

    def mapped_tangents(self, map_: MapsOver, *values: Any) -> list[jax.Array | None] | None:
        """Where JAX differentiates the function; a mapped derivative of a cond has no transpose."""
        if self.stage or self.function.jvp or self.function.transpose:
            return None
        with self._deriving():
            return jvp_of(both_modes(map_(self._leaves)), *values)

    def _leaves(self, *arrays: jax.Array) -> list[jax.Array]:
        """The arrays of the results, from those of the arguments."""
        return jax.tree.leaves(self._body(*self.arguments.unflatten(arrays)))

    @contextlib.contextmanager
    def _deriving(self) -> Iterator[None]:
        """Name the function where JAX cannot differentiate it."""
        try:
            yield
        except (TypeError, NotImplementedError, ValueError) as error:
            own = self.function.has_rule or isinstance(error, TenferroError)
            if own or not lacks_derivative(error):
                raise
            raise ADRuleError(
                self.family_id,
                "jvp",
                place=self.function.place,
                given=f"{NO_RULE}: {first_line(error)}",
                needed="a rule",
                fix=MISSING_RULE,
            ) from error

    def _by_rule(self, name: str, *args: PyTree) -> PyTree:
        """What a rule of the author gives. It is run in both modes where it calls something that
        has a reverse rule alone, because the derivative of the rule may be asked for.
        """
        rule = self.rule(name)
        leaves, tree = jax.tree.flatten(args)
        traced = tuple(jax.typeof(x) if _is_traced(x) else None for x in leaves)
        others = tuple(x if isinstance(x, LinearInput) else None for x in leaves)
        if calls_reverse_rule_of(self, name, tree, traced, others):
            rule = both_modes(rule)
        return rule(*args)

    def rule(self, name: str) -> Callable[..., PyTree]:
        """A rule of the author for derivatives, of arrays alone: "jvp", "bwd" or "transpose"."""
        if name == "bwd":
            return self.reverse[1]
        return functools.partial(getattr(self.function, name), **self.payload)

    def _linear(
        self, primals: Sequence[jax.Array], tangents: Sequence[jax.Array | None]
    ) -> Sequence[jax.Array | None]:
        """The op itself of the tangents of the arguments in which it is linear."""
        numbers = self.arguments.unflatten(range(len(primals)))
        linear = jax.tree.leaves([numbers[i] for i in self.function.linear_in(len(numbers))])
        if any(t is not None for i, t in enumerate(tangents) if i not in linear):
            raise ADRuleError(
                self.family_id,
                "jvp",
                place=self.function.place,
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
        return [x if is_inexact(x) else None for x in apply(self, *given)]

    def _forward_tangents(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """Of the op "forward": the op "tangent" on the residuals."""
        forward = forward_of(self.out_tree)
        values = outputs[: forward.results.num_leaves]
        kept = iter(outputs[len(values) :])  # residuals that are inputs are no outputs
        residuals = forward.residuals.unflatten(
            [next(kept) if i < 0 else primals[i] for i in forward.inputs]
        )
        results = forward.results.unflatten(values)
        given = self.arguments.unflatten(tangents)
        where = f"residuals of {self.function.place}"
        op = dataclasses.replace(
            self,
            stage=TANGENT,
            in_tree=nesting_text((residuals, given), where, any_class=True),
            out_tree=nesting_text(results, where),
            # Of what has no derivative the shape counts: no payload has the dtype of a random key.
            result_metas=tuple(
                (np.dtype(x.dtype if is_inexact(x) else bool), tuple(x.shape)) for x in values
            ),
        )
        pushed = iter(apply(op, *jax.tree.leaves((residuals, given))))
        moved = [next(pushed) if is_inexact(x) else None for x in values]
        others: list[Any] = [None] * len(forward.kept)
        if self.stage == FORWARD_AGAIN:

            def run(*xs: jax.Array) -> list[jax.Array]:
                return list(self.lower_to_standard_ops(*xs) or ())[len(values) :]

            # a call that is not needed may be one of the author's custom_vjp
            others = jvp_of(both_modes(only_needed(run, *primals)), primals, tangents)
        return [*moved, *others]

    def _pushed(self, residuals: PyTree, tangents: PyTree) -> list[jax.Array]:
        """The tangents of the results: the transpose of `bwd`, which is linear in cotangents."""
        given = jax.tree.leaves(tangents)
        known = [*jax.tree.leaves(residuals), *given]
        like = [struct_beside(struct(meta), known) for meta in self.metas if is_inexact(meta)]

        def pull(*cotangents: jax.Array) -> list[jax.Array]:
            made = self._pulled(residuals, tangents, cotangents)
            return [jnp.zeros_like(t) if c is None else c for t, c in zip(given, made, strict=True)]

        fix = "Use reverse mode, or write @f.defjvp in place of f.defvjp."
        return transpose_of_bwd(both_modes(pull), like, given, self.function.place, fix)

    def _pulled(
        self, residuals: PyTree, tangents: PyTree, given: Sequence[jax.Array | None]
    ) -> list[jax.Array | None]:
        """What `bwd` gives for each tangent; None for zero."""
        source = iter(given)
        cotangents = [next(source) if is_inexact(meta) else None for meta in self.metas]
        full = filled([struct(meta) for meta in self.metas], cotangents)
        made = self._by_rule("bwd", residuals, self.results.unflatten(full))
        found = self.function.cotangents(made, tangents, "bwd")
        wanted = jax.tree.leaves(tangents, is_leaf=missing)
        moving = [c for c, t in zip(found, wanted, strict=True) if t is not None]
        return self.function.cast(moving, [meta_of(t) for t in wanted if t is not None], "bwd")

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
                raise ADRuleError(
                    self.family_id,
                    "transpose",
                    place=function.place,
                    given="a transpose by a residual of fwd",
                    needed="a derivative by arguments",
                    fix="",
                )
            return [None] * len(known) + self._pulled(residuals, tangents, cotangents)
        if self.stage:
            raise self.missing_rule("transpose")
        args = self.arguments.unflatten(inputs)
        metas = self.infer_output_meta(list(map(meta_of, inputs)))
        full = filled([struct(meta) for meta in metas], cotangents)
        if function.transpose is None:
            return self._turned(full, inputs)
        made = self._by_rule("transpose", self.results.unflatten(full), *args)
        wanted = [x.meta if isinstance(x, LinearInput) else None for x in inputs]
        found = function.cotangents(made, args, "def_transpose")
        return function.cast(found, wanted, "def_transpose")

    def _turned(
        self, cotangents: Sequence[jax.Array], inputs: Sequence[jax.Array | LinearInput]
    ) -> list[jax.Array | None]:
        """The cotangents of a function without a rule for them: JAX transposes it, if it is linear
        in these inputs.
        """
        places = [i for i, x in enumerate(inputs) if isinstance(x, LinearInput)]

        def run(*moved: jax.Array) -> list[jax.Array]:
            values: list[Any] = list(inputs)
            for i, x in zip(places, moved, strict=True):
                values[i] = x
            return self._leaves(*values)

        try:
            known = [x for x in inputs if not isinstance(x, LinearInput)]
            like = [
                struct_beside(struct(meta_of(inputs[i])), [*known, *cotangents]) for i in places
            ]
            found = dict(zip(places, linear_transpose(run, like, cotangents), strict=True))
        except NotTransposed as error:
            raise self.missing_rule("transpose") from error
        return [found.get(i) for i in range(len(inputs))]

    def eager_execute(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        """The function of `def_host`."""
        if self.stage:
            raise Unsupported(
                where=f"the derivative of {self.function.place} on the host",
                given="a function of NumPy for the value alone",
                needed="the route lowering",
            )
        results = self.function.host(*self.arguments.unflatten(arrays), **self.payload)
        if results is None:
            raise self.function.error("def_host, which returned None", "NumPy arrays")
        made = self.function.flat(self.results, results, "def_host, which returned")
        return [np.asanyarray(x) for x in made]  # a masked array stays one, and is refused

    def has_own(self, method: str) -> bool:
        """What the author gave for the stage of this op."""
        function, tangent = self.function, self.stage == TANGENT
        given = {
            "infer_output_meta": tangent or (function.infer is not None and not self.stage),
            "eager_execute": function.host is not None and not self.stage,
            "linearize": function.derives or function.has_rule,
            "sharding_rule": function.sharding is not None and not self.stage,
            "transpose_rule": tangent or (function.transpose is not None and not self.stage),
        }
        return given[method] if method in given else super().has_own(method)


@kept(4096)
def results_of(op: FunctionExtension, metas: tuple[TensorMeta, ...]) -> str:
    """How the results are nested for inputs of these dtypes and shapes; "" for one array."""
    function = op.function
    # The op is inferred again where it is called, so equalities of sizes are noted there.
    if function.infer is not None:
        with in_method(op, "infer_output_meta", lambda *_: None):
            results = op._inferred(metas)
    else:
        with in_method(op, LOWERING, lambda *_: None):
            results = jax.eval_shape(
                functools.wraps(function.source)(  # whose name and line are in JAX's errors
                    lambda *xs: function.of_arrays(
                        op._body(*op.arguments.unflatten(xs)), "the function"
                    )
                ),
                *map(struct, metas),
            )
        if results is None:
            raise function.error(
                "no result",
                "arrays",
                "Return the result. If NumPy code computes it, write def_host and def_infer.",
            )
    text = nesting_text(results, f"results of {function.place}")
    return "" if text == "0" else text


@kept(4096)
def forward_results_of(op: FunctionExtension, metas: tuple[TensorMeta, ...]) -> str:
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
    kept = jaxpr.outvars[len(jax.tree.leaves(result)) :]
    inputs = [next((i for i, x in enumerate(jaxpr.invars) if x is v), -1) for v in kept]
    return forward_text(result, residuals, inputs, f"results of fwd of {function.place}")


@kept(4096)
def calls_reverse_rule_of(
    op: FunctionExtension,
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


def _is_traced(leaf: object) -> bool:
    """Whether a leaf among the arguments of a rule is an array with a value: neither the tangent of
    an integer nor an input in which the op is linear.
    """
    return isinstance(leaf, jax.Array | np.ndarray | np.generic) and not is_float0(leaf)


def op_class_of(module: str, family_id: str) -> Any:
    """The class of a family that `module` publishes: it need not have a name there."""
    importlib.import_module(module)
    return require_extension_factory(family_id).op_class


def _unpickled(rebuild: Callable[..., Any], module: str, family_id: str, state: Any) -> Any:
    """The op of a family that `module` publishes."""
    return rebuild(op_class_of(module, family_id), state)
