"""An extension op as the subject of checks, with its rules, kernels and host form."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ADRuleError, TenferroError, Unsupported
from ..extension.authored import MISSING_RULE
from ..extension.carrier import Extension
from ..extension.contract import Can, ExtensionOp, lowered
from ..extension.function_call import NO_RULE
from ..extension.function_extension import FunctionExtension
from ..extension.function_parts import NOT_LINEAR
from ..extension.kernels import NO_RUNTIMES, ExtensionRuntimeSet, RouteKind
from ..extension.primitive import apply
from ..extension.routes import current_platform, here, route_of
from ..extension.rules import NO_RULES, AnyRule, ExtensionRuleSet, is_stated
from ..linear import FORWARD_MODE
from ..shapes import Shaped, TensorMeta, meta_of
from .examples import Array, Arrays, Inputs, cast, in_32_bits, is_half, read_examples
from .finite_differences import DECLARED
from .functions import Oracle, Subject
from .numpy_arrays import all_wide, coarsest
from .plain import plain_form
from .report import Broken, NotApplicable, failure, one_line, unsupported


@dataclasses.dataclass(eq=False, kw_only=True)
class OpSubject(Subject):
    """An op at its examples."""

    op: ExtensionOp
    given: Sequence[Any]
    rules: ExtensionRuleSet = NO_RULES
    runtimes: ExtensionRuntimeSet = NO_RUNTIMES

    def __post_init__(self) -> None:
        super().__post_init__()
        are_runtimes = isinstance(self.runtimes, ExtensionRuntimeSet)
        op_class = "an instance of an ExtensionOp subclass"
        self.require("op", isinstance(self.op, ExtensionOp), op_class)
        self.require("rules", isinstance(self.rules, ExtensionRuleSet), "an ExtensionRuleSet")
        self.require("runtimes", are_runtimes, "an ExtensionRuntimeSet")
        with jax.enable_x64(True):
            self.examples = read_examples(self.op, self.given)
        if self.tied_to_the_setting(self.examples[0]) and self.tied:
            self.x64, self.wide = False, "float32"
            self.examples = tuple(map(in_32_bits, self.examples))
        self.is_taken(self._lowers)
        if isinstance(self.op, FunctionExtension):
            wide = self.op.function.infer is None and all_wide(self.examples[0])
            self.given_wide = self.users_x64 and wide
            at = cast(self.examples[0], self.wide)
            with self.precision(), contextlib.suppress(Exception):  # the checks tell
                traced = jax.make_jaxpr(lambda *xs: lowered(self.op, xs) or ())(*at)
                self.grain = coarsest(traced, self.wide)
        self.name, self.text = self.op.family_id, repr(self.op)
        self.own_batching = type(self.op).batched is not ExtensionOp.batched
        self._ways: dict[tuple[TensorMeta, ...], dict[str, ExtensionRuntimeSet]] = {}

    def _lowers(self) -> bool:
        """Whether JAX compiles a call; only where a mesh is set it is asked."""
        if jax.sharding.get_abstract_mesh().empty:
            return True
        with self.precision():
            return failure(jax.jit(self.call).lower, *self.examples[0]) is None

    @functools.cached_property
    def carrier(self) -> Extension:
        """The op in its carrier, which refuses a malformed family_id or count."""
        return Extension(self.op, (), self.runtimes)

    @property
    def derived(self) -> bool:
        """Whether it is a function that JAX differentiates, without a rule."""
        op = self.op
        return isinstance(op, FunctionExtension) and op.function.derives

    def rule(self) -> AnyRule:
        """The AD rule of the op's family; NotApplicable if there is none."""
        rule = self.rules.rule_of(self.op)
        if rule is None:
            own = "Override linearize, or pass rules=ExtensionRuleSet(...)."
            missing = MISSING_RULE if isinstance(self.op, FunctionExtension) else own
            raise NotApplicable("no AD rule for the family", missing)
        return rule

    def call(self, *arrays: Array) -> tuple[jax.Array, ...]:
        """The op on arrays, with its rules and runtimes."""
        return apply(self.op, *arrays, rules=self.rules, runtimes=self.runtimes)

    def metas(self, inputs: Sequence[Shaped]) -> tuple[TensorMeta, ...] | None:
        """The result of inference; None if it refuses the inputs with a typed error."""
        try:
            return self.carrier.infer(*map(meta_of, inputs))
        except TenferroError:
            return None

    def host_error(self, inputs: Inputs) -> str:
        """The exception of eager_execute as text; "" if it runs or does not exist."""
        if not self.op.can(Can.RUN_ON_HOST):
            return ""
        with warnings.catch_warnings():
            # NumPy on values such as the mean of nothing
            warnings.simplefilter("ignore", RuntimeWarning)
            error = failure(self.op.eager_execute, *(x.copy() for x in inputs))
        return one_line(error) if error else ""

    def of_oracle(self, oracle: Oracle, inputs: Arrays) -> Sequence[Any]:
        """The oracle's answer in the dtypes of the op, because NumPy may use another precision; it
        computes 16-bit floats in float32. It may be one array, or nested as the function's.
        """
        taken = [x.astype(np.float32) if is_half(x.dtype) else x for x in inputs]
        leaves = jax.tree.leaves(oracle(*taken))
        if any(isinstance(y, np.ma.MaskedArray) for y in leaves):
            fix = "Return y.filled(value): of a masked entry there is no value to compare with."
            raise Broken("X8.10", "the oracle returns a masked array", fix)
        outs = list(map(np.asarray, leaves))
        metas = self.metas(inputs)
        if metas is None or len(metas) != len(outs):
            return outs
        fitted = []
        for i, (y, (dtype, _)) in enumerate(zip(outs, metas, strict=True)):
            narrows = np.iscomplexobj(y) and not jnp.issubdtype(dtype, jnp.complexfloating)
            with np.errstate(all="ignore"):
                fitted.append(y.real.astype(dtype) if narrows else y.astype(dtype))
            if narrows or (not jnp.issubdtype(dtype, jnp.inexact) and (fitted[i] != y).any()):
                problem = f"the oracle's output {i} is {TensorMeta(y.dtype, y.shape)}, whose values"
                fix = "Let the oracle and infer_output_meta agree on the kind of number."
                raise Broken("X8.10", f"{problem} {dtype} does not hold", fix)
        return fitted

    def routes(self, inputs: Sequence[Shaped]) -> tuple[RouteKind, ...]:
        """The routes that can run these inputs here."""
        found = frozenset[RouteKind]().union(*(way.routes for way in self.ways(inputs).values()))
        return tuple(kind for kind in RouteKind if kind in found)

    def ways(self, inputs: Sequence[Shaped]) -> dict[str, ExtensionRuntimeSet]:
        """The routes that can run these inputs here, each kernel by itself: by name, the runtimes
        that leave it alone.
        """
        metas = tuple(map(meta_of, inputs))
        if metas not in self._ways:
            kernels = self.runtimes.kernels(self.op.family_id, current_platform())
            alone = {
                f"kernel {k.title}".rstrip(): ExtensionRuntimeSet(k).only(RouteKind.KERNEL)
                for k in kernels
            }
            for kind in (RouteKind.LOWERING, RouteKind.HOST):
                alone[kind.value] = self.runtimes.only(kind)
            # Unsupported, or an exception of the author's lowering: the checks of inference tell.
            self._ways[metas] = {
                name: each
                for name, each in alone.items()
                if not failure(route_of, self.carrier.with_runtimes(each), metas, here())
            }
        return self._ways[metas]

    def in_plain_jax(self) -> Callable[..., tuple[jax.Array, ...]] | None:
        """The lowering as a function of plain JAX, with the rule of the op."""
        if not self.op.can(Can.LOWER):
            return None
        return plain_form(self.op, self.rules.rule_of(self.op))

    def require_plain(
        self,
        what: str,
        transform: Callable[[Any], Any],
        args: Sequence[object],
    ) -> None:
        """Let a failure count only if JAX can do it: the lowering as a plain jitted function in the
        same transform, without extensions.
        """
        try:
            transform(jax.jit(lambda *xs: lowered(self.op, xs) or ()))(*args)
        except Exception as error:
            raise NotApplicable(
                f"JAX itself cannot {what} ({one_line(error)})",
                "Use other functions in the lowering, if you need it.",
            ) from error

    def judged(self, *arrays: Array) -> Arrays:
        """The outputs of the lowering: a kernel that is wrong is no mistake of the rule."""
        if RouteKind.LOWERING not in self.routes(arrays):
            return self.call(*arrays)
        alone = self.runtimes.only(RouteKind.LOWERING)
        return apply(self.op, *arrays, rules=self.rules, runtimes=alone)

    def require_derivatives(self, *, linearized: bool) -> None:
        """Raise NotApplicable if there is no rule, or none that linearizes."""
        if not is_stated(self.rule(), self.op, Can.LINEARIZE) and linearized:
            raise NotApplicable(
                "the rule has transpose_rule alone",
                "Override linearize, if the op is to be differentiated.",
            )

    def excuse(self, error: BaseException) -> str:
        """That the rule declares NOT_DIFFERENTIABLE; why forward mode is refused, if JAX cannot
        transpose the op's reverse rule; or what JAX lacks, if it differentiates the function.
        """
        if isinstance(error, ADRuleError) and error.clause == DECLARED:
            return "the rule declares NOT_DIFFERENTIABLE"
        if isinstance(error, Unsupported) and error.needed == FORWARD_MODE:
            return f"{error.where.partition(',')[0]}: {error.given}"
        if isinstance(error, ADRuleError) and error.given.startswith((NO_RULE, NOT_LINEAR)):
            return error.given
        return one_line(error) if self.derived and unsupported(error) else ""
