"""The linear op of the derivatives of a network in a selective semiring: the entries at an
assignment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Equation, Plan
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import LinearInput, ShardingRule, apply, extension_op
from tenferro_jax.extension.sharding import Shard

from ..algebra.semiring import Semiring
from ..algebra.shipped import max_plus
from . import assignments
from .native_network import NativeOp, Question, kernels
from .plan_text import (
    Steps,
    are_numbers,
    factor_of,
    integers,
    same_shapes,
    split_along,
)


def filled(like: Sequence[Any], given: Sequence[jax.Array | None]) -> list[jax.Array]:
    """The given arrays, and zeros like others where there is none."""
    return [
        jnp.zeros(x.shape, x.dtype) if t is None else t for x, t in zip(like, given, strict=True)
    ]


@extension_op(package="tenferro-ext-tropical", name="network_entries", version=1)
class NetworkEntries(NativeOp):
    """The entries of tables at an assignment of labels, or their sum; or the transpose of that.

    Inputs are the labels, int32 (contracted labels in sorted order, *shape of the value), then the
    tables; outputs an array (tables, *shape), or their sum (*shape). Transposed, inputs are the
    labels and such an array, outputs the tables, to whose entries it is added.

    Attributes:
      terms: the labels of the tables, with a comma between.
      output: the labels of the value.
      sizes: (label, size) of every label of the network.
      is_sum: whether the entries of all tables are added.
      is_transposed: whether this is the transpose.
    """

    terms: str
    output: str
    sizes: tuple[tuple[str, int], ...]
    is_sum: bool = False
    is_transposed: bool = False

    def __post_init__(self) -> None:
        known = dict(self.sizes)
        unknown = sorted(set(self.terms.replace(",", "") + self.output) - set(known))
        if unknown or len(set(self.output)) < len(self.output) or len(known) < len(self.sizes):
            raise InvalidConfig(
                where=self.family_id,
                given=f"terms {self.terms!r}, output {self.output!r}, sizes {self.sizes!r}",
                needed="one size for each label, and no label twice in the output",
            )
        if not all(type(size) is int and size > 0 for size in known.values()):
            raise InvalidConfig(
                where=f"{self.family_id}, field sizes",
                given=repr(self.sizes),
                needed="positive integers",
            )

    @property
    def algebra(self) -> Semiring:
        """The semiring whose loops add the entries: any."""
        return max_plus

    @property
    def contracted(self) -> str:
        """The labels that the output lacks, sorted."""
        return "".join(sorted(set(dict(self.sizes)) - set(self.output)))

    @property
    def tables(self) -> Plan:
        """The labels as a plan without steps."""
        terms = tuple(self.split)
        return Plan(Equation(self.terms, terms, self.output), terms, self.sizes, ())

    @property
    def split(self) -> list[str]:
        """The labels of each table."""
        return self.terms.split(",")

    def shape(self, labels: str) -> tuple[int, ...]:
        """The sizes of labels."""
        known = dict(self.sizes)
        return tuple(known[label] for label in labels)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tables."""
        known = dict(self.sizes)
        return [tuple(known[label] for label in term) for term in self.split]

    @property
    def input_count(self) -> int:
        """The labels, and the tables or an array."""
        return 2 if self.is_transposed else 1 + len(self.split)

    @property
    def output_count(self) -> int:
        """1, or one for each table."""
        return len(self.split) if self.is_transposed else 1

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of the entries."""
        return (() if self.is_sum else (len(self.split),)) + self.shape(self.output)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        labels, *given = inputs
        tables = self.shapes
        wanted = [self.rows] if self.is_transposed else tables
        at = (len(self.contracted), *self.shape(self.output))
        if (
            labels.dtype != np.int32
            or len({m.dtype for m in given}) != 1
            or not (jnp.issubdtype(given[0].dtype, jnp.floating))
        ):
            raise DTypeError(
                where=self.family_id,
                given=", ".join(map(str, inputs)),
                needed="int32 labels, and one floating dtype for all else",
            )
        same_shapes(f"extension {self.family_id}", inputs, [at, *wanted])
        outs = tables if self.is_transposed else [self.rows]
        return [TensorMeta(given[0].dtype, shape) for shape in outs]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        rows = [*self.output] if self.is_sum else ["tables", *self.output]
        ends = [rows], self.split
        outs, given = ends[self.is_transposed], ends[not self.is_transposed]
        terms = [["labels", *self.output], *given]
        return split_along(self.output, terms, outs, self._on_device)

    def _on_device(self, shard: Shard, labels: jax.Array, *given: jax.Array) -> Sequence[jax.Array]:
        own = dict(zip(self.output, labels.shape[1:], strict=True))
        sizes = tuple((label, own.get(label, size)) for label, size in self.sizes)
        outs = apply(dataclasses.replace(self, sizes=sizes), labels, *given)
        if not self.is_transposed:
            return outs
        # Labels of the value that no table has: a device adds its part of the rows.
        gone = [factor_of(label) for label in self.output if label not in self.terms]
        return [shard.merged("sum", x, gone) for x in outs]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        labels, *given = inputs
        if self.is_transposed:
            (rows,) = given
            rows = jnp.broadcast_to(rows, (len(self.split), *self.shape(self.output)))
            return assignments.add_entries(self.tables, labels, rows, range(len(self.split)))
        found = assignments.entries(self.tables, labels, given, range(len(self.split)))
        return (jnp.sum(found, 0) if self.is_sum else found,)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        return apply(self, primals[0], *filled(primals[1:], tangents[1:]))

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        swapped = dataclasses.replace(self, is_transposed=not self.is_transposed)
        some: Any = next(c for c in cotangents if c is not None)
        shapes = self.shapes if self.is_transposed else [self.rows]
        like = [jax.ShapeDtypeStruct(shape, some.dtype) for shape in shapes]
        labels: Any = inputs[0]
        found = apply(swapped, labels, *filled(like, cotangents))
        return [
            x if isinstance(y, LinearInput) else None
            for x, y in zip((None, *found), inputs, strict=True)
        ]

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the native library is asked for these inputs."""
        steps = Steps(tuple(self.split), self.output, ())
        number = 2 + (not self.is_sum) + 2 * self.is_transposed
        active = range(len(self.split))
        return Question(number, integers(dict(self.sizes), steps, self.contracted, active))

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Labels in range, and normal numbers."""
        rng = np.random.default_rng(0)
        labels = [rng.integers(0, n, self.shape(self.output)) for n in self.shape(self.contracted)]
        at = np.array(labels, np.int32).reshape(-1, *self.shape(self.output))
        shapes = [self.rows] if self.is_transposed else self.shapes
        return [[at, *(rng.normal(size=shape) for shape in shapes)]]


NetworkEntries.runtimes = kernels(NetworkEntries.family_id)
