"""The class of the ops of a function: an ExtensionOp that asks its part."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from ..shapes import TensorMeta, struct
from .contract import (
    LOWERING,
    Can,
    ExtensionOp,
    LinearInputs,
    MapsOver,
    ShardingRule,
    Tangents,
    in_method,
)
from .definitions import kept
from .function_call import FunctionCall
from .function_parts import PARTS, VALUE, inferred
from .nesting import nesting_text
from .sharding import Shard


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FunctionExtension(FunctionCall):
    """The op of a function, or of a part of it: see `function_parts`."""

    @property
    def results(self) -> PyTreeDef:
        """The nesting of the results."""
        return PARTS[self.stage].results(self)

    @property
    def output_count(self) -> int:
        """Arrays in the results; of the part "tangent" those that have tangents."""
        return int(self.results.num_leaves)

    @property
    def takes_zeros(self) -> bool:
        """Whether the author's rule gets zeros for missing tangents."""
        function = self.function
        return self.stage == VALUE and function.jvp is not None and not function.symbolic_zeros

    def can(self, what: Can) -> bool:
        """Whether the author gave it for this part."""
        abilities = PARTS[self.stage].abilities
        return self.function.can(what) if abilities is None else what in abilities

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        """Those of the author's function for these inputs."""
        if self.can(Can.INFER):
            return PARTS[self.stage].metas(self, inputs)
        return super().infer_output_meta(inputs)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        """The author's function of the arrays in their nesting."""
        return PARTS[self.stage].lower(self, inputs)

    def eager_execute(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        """The function of `def_host`."""
        return PARTS[self.stage].run_on_host(self, arrays)

    def form_for(self, inputs: Sequence[TensorMeta]) -> ExtensionOp:
        """With a reverse rule the part "forward", whose residuals follow from the inputs."""
        return PARTS[self.stage].form_for(self, inputs)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Tangents,
    ) -> Sequence[Any]:
        """The tangents by the rule that the author gave."""
        return PARTS[self.stage].linearize(self, primals, outputs, tangents)

    def mapped_tangents(self, map_: MapsOver, *values: Any) -> list[jax.Array | None] | None:
        """Where JAX differentiates the function."""
        return PARTS[self.stage].mapped_tangents(self, map_, *values)

    def transpose_rule(
        self,
        cotangents: Tangents,
        inputs: LinearInputs,
    ) -> Sequence[Any]:
        """The cotangents by `bwd` or by the rule of `def_transpose`."""
        return PARTS[self.stage].transpose(self, cotangents, inputs)

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

    def place_of(self, method: str = "") -> str:
        """The rule that the author wrote for a method, with the name and line of the function."""
        function = self.function
        derived = "forward mode" if function.has_rule else "no rule"
        names = {
            "linearize": "defjvp" if function.jvp else derived,
            "transpose_rule": "def_transpose" if self.stage == VALUE else "bwd",
            "infer_output_meta": "def_infer" if function.infer else "the function",
            "eager_execute": "def_host",
            "differentiable_form": "fwd",
            "sharding_rule": "def_sharding",
        }
        what = names.get(method, method)
        if method.startswith(LOWERING):
            what = PARTS[self.stage].lowering
        return f"{what} of {function.place}" if what else function.place


@kept(4096)
def results_of(op: FunctionExtension, metas: tuple[TensorMeta, ...]) -> str:
    """How the results are nested for inputs of these dtypes and shapes; "" for one array."""
    function = op.function
    # The op is inferred again where it is called, so equalities of sizes are noted there.
    if function.infer is not None:
        with in_method(op, "infer_output_meta", lambda *_: None):
            results = inferred(op, metas)
    else:
        with in_method(op, LOWERING, lambda *_: None):

            @functools.wraps(function.source)  # whose name and line are in JAX's errors
            def of_arrays(*xs: jax.Array) -> Any:
                made = function.body(*op.arguments.unflatten(xs), **op.payload)
                return function.of_arrays(made, "the function")

            results = jax.eval_shape(of_arrays, *map(struct, metas))
        if results is None:
            raise function.error(
                "no result",
                "arrays",
                "Return the result. If NumPy code computes it, write def_host and def_infer.",
            )
    text = nesting_text(results, f"results of {function.place}")
    return "" if text == "0" else text
