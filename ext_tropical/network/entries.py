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
from . import walk
from .question import LABELS, Axes, Question, Shaped, factor_of, filled, kernels, split_along


@extension_op(package="tenferro-ext-tropical", name="network_entries", version=1)
class NetworkEntries(Question):
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
    def number(self) -> int:
        """See `Question`."""
        return 2 + (not self.is_sum) + 2 * self.is_transposed

    @property
    def network(self) -> Plan:
        """The labels, as a plan without steps."""
        terms = tuple(self.terms.split(","))
        return Plan(Equation(self.terms, terms, self.output), terms, self.sizes, ())

    def planned(self, inputs: Sequence[Shaped]) -> Plan:
        """The same: the sizes are known."""
        return self.network

    @property
    def chosen(self) -> Sequence[int]:
        """All tables."""
        return range(len(self.network.terms))

    @property
    def arrays(self) -> tuple[Sequence[Axes], Sequence[Axes]]:
        """The labels and the tables, and their entries; or transposed."""
        entries = [*self.output] if self.is_sum else ["tables", *self.output]
        ends = self.network.terms, [entries]
        given, outs = ends[::-1] if self.is_transposed else ends
        return [[LABELS, *self.output], *given], outs

    def extents(self, inputs: Sequence[TensorMeta]) -> dict[str, int]:
        """The number of tables."""
        return {"tables": len(self.network.terms)}

    def shapes(self, side: Sequence[Axes]) -> list[tuple[int, ...]]:
        """The shapes of arrays that are no labels."""
        sizes = {**dict(self.sizes), **self.extents(())}
        return [tuple(sizes[x] for x in axes) for axes in side]

    def dtype(self, inputs: Sequence[TensorMeta]) -> np.dtype:
        """That of the tables."""
        labels, *given = inputs
        if (
            labels.dtype != np.int32
            or len({m.dtype for m in given}) != 1
            or not jnp.issubdtype(given[0].dtype, jnp.floating)
        ):
            raise DTypeError(
                where=self.family_id,
                given=", ".join(map(str, inputs)),
                needed="int32 labels, and one floating dtype for all else",
            )
        return given[0].dtype

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return split_along(self.output, *self.arrays, self._on_device)

    def _on_device(self, shard: Shard, labels: jax.Array, *given: jax.Array) -> Sequence[jax.Array]:
        own = dict(zip(self.output, labels.shape[1:], strict=True))
        sizes = tuple((label, own.get(label, size)) for label, size in self.sizes)
        outs = apply(dataclasses.replace(self, sizes=sizes), labels, *given)
        if not self.is_transposed:
            return outs
        # Labels of the value that no table has: a device adds its part of the rows.
        gone = [factor_of(label) for label in self.output if label not in self.terms]
        return [shard.merged("sum", x, gone) for x in outs]

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        labels, *given = inputs
        if self.is_transposed:
            rows = jnp.broadcast_to(given[0], (len(plan.terms), *labels.shape[1:]))
            return walk.add_entries(plan, labels, rows)
        found = walk.entries(plan, labels, given)
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
        like = [jax.ShapeDtypeStruct(x, some.dtype) for x in self.shapes(self.arrays[1])]
        labels: Any = inputs[0]
        found = apply(swapped, labels, *filled(like, cotangents))
        return [
            x if isinstance(y, LinearInput) else None
            for x, y in zip((None, *found), inputs, strict=True)
        ]

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Labels in range, and normal numbers."""
        rng = np.random.default_rng(0)
        (shape,) = self.shapes([self.output])
        sizes = [n for label, n in sorted(self.sizes) if label not in self.output]
        labels = np.array([rng.integers(0, n, shape) for n in sizes], np.int32)
        given = self.shapes(self.arrays[0][1:])
        return [[labels.reshape(-1, *shape), *(rng.normal(size=shape) for shape in given)]]


NetworkEntries.runtimes = kernels(NetworkEntries.family_id)
