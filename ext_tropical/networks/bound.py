"""An upper bound of the best score of a network as an extension op: the linear relaxation after a
number of sweeps, with its derivative; and the linear op by which this is applied.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    ShardingRule,
    apply,
    extension_op,
    require_equal,
)
from tenferro_jax.plans import Equation
from tenferro_jax.shapes import Shaped

from ..arguments import are_numbers
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..steps.cut import cut_all
from ..tangents import filled
from .bound_sweeps import bounded
from .bound_turns import turns_of
from .loops import joined
from .question import at_linear, split_along

ENTRIES = "entries"
"""The axis of the entries of all tables."""

Sizes = tuple[tuple[str, int], ...]
"""Of each label, in the order of sweeps."""


def _sizes(terms: str, shapes: tuple[tuple[int, ...], ...], where: str) -> Sizes:
    """The size of each label, in the order of first appearance.

    Raises:
      ShapeError: the shapes do not fit the labels, or a size is 0.
    """
    equation = Equation(terms, tuple(terms.split(",")), "")
    sizes = equation.sizes(shapes, where, require_equal)
    for label, size in sizes.items():
        if isinstance(size, int) and size == 0:
            raise ShapeError(
                where=f"{where}, label {label!r}", given="size 0", needed="at least one value"
            )
    return tuple(sizes.items())


_known_sizes = functools.lru_cache(maxsize=256)(_sizes)


@dataclasses.dataclass(frozen=True)
class OfTables(ExtensionOp):
    """An op of the tables of a network.

    Attributes:
      terms: the labels of the tables, with a comma between, no label twice in one.
    """

    terms: str

    call: ClassVar[str]

    def __post_init__(self) -> None:
        if any(len(set(term)) < len(term) for term in self.scopes):
            raise InvalidConfig(
                where=f"{self.family_id}, field terms",
                given=repr(self.terms),
                needed="no label twice in a term",
            )

    @property
    def scopes(self) -> tuple[str, ...]:
        """The labels of each table."""
        return tuple(self.terms.split(","))

    @property
    def number(self) -> int:
        """What the native call takes beside the network."""
        raise NotImplementedError

    def sizes_of(self, inputs: Sequence[Shaped]) -> Sizes:
        """Of each label."""
        raise NotImplementedError


@extension_op(package="tenferro-ext-tropical", name="network_bound", version=1)
class NetworkBound(OfTables):
    """An upper bound of the greatest value of a network without output labels under max_plus, after
    so many sweeps over its labels, forward and back, in the order of their first appearance.

    Inputs are the tables, float32 or float64. The outputs are the bound, a scalar, NaN if an entry
    is NaN or inf; and its derivative by all entries, one table after another, 0 where the bound is
    not finite.

    Attributes:
      terms: the labels of the tables, with a comma between, no label twice in one.
      sweeps: how many.
      with_shares: whether the derivative is an output.
    """

    terms: str
    sweeps: int
    with_shares: bool = False

    call = "network_bound"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.sweeps) is not int or self.sweeps < 1:
            raise InvalidConfig(
                where=f"{self.family_id}, field sweeps",
                given=repr(self.sweeps),
                needed="a positive integer",
            )

    @property
    def input_count(self) -> int:
        """The tables."""
        return len(self.scopes)

    @property
    def output_count(self) -> int:
        """The bound, and its derivative."""
        return 2 if self.with_shares else 1

    @property
    def number(self) -> int:
        """The sweeps."""
        return self.sweeps

    def sizes_of(self, inputs: Sequence[Shaped]) -> Sizes:
        """From the shapes of the tables."""
        # An equality of symbolic sizes is a guard of each call.
        find = _known_sizes if are_numbers(inputs) else _sizes
        return find(self.terms, tuple(tuple(x.shape) for x in inputs), self.place_of())

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtypes = {m.dtype for m in inputs}
        if len(dtypes) > 1 or not jnp.issubdtype(inputs[0].dtype, jnp.floating):
            raise DTypeError(
                where=self.place_of(),
                given=", ".join(sorted(map(str, dtypes))),
                needed="one floating dtype for all tables",
            )
        self.sizes_of(inputs)
        bound = TensorMeta(inputs[0].dtype, ())
        if not self.with_shares:
            return [bound]
        return [bound, TensorMeta(bound.dtype, (sum(math.prod(m.shape) for m in inputs),))]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None  # the loops count entries
        turns, entries = turns_of(self.scopes, self.sizes_of(inputs)), joined(inputs)
        return bounded(turns, entries, self.sweeps, self.with_shares)

    def differentiable_form(self) -> ExtensionOp:
        """This op with the derivative."""
        return dataclasses.replace(self, with_shares=True)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of the tangents by their shares; the shares are constant."""
        dot = TablesDot(self.terms, self.sizes_of(primals))
        return (*apply(dot, outputs[1], *filled(primals, tangents)), None)

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        shares = [[ENTRIES]] if self.with_shares else []
        return split_along((), self.scopes, ["", *shares])

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Normal numbers, of 2, 3, 4, ... for the labels in their order."""
        labels = dict.fromkeys("".join(self.scopes))
        sizes = dict(zip(labels, itertools.count(2), strict=False))
        rng = np.random.default_rng(0)
        shapes = [tuple(map(sizes.__getitem__, term)) for term in self.scopes]
        return [[rng.normal(size=shape) for shape in shapes]]


@extension_op(package="tenferro-ext-tropical", name="tables_dot", version=1)
class TablesDot(OfTables):
    """The sum of the products of all entries of tables with those of a flat array; or the transpose
    of that.

    Inputs are the flat array, with the entries of one table after another, and the tables; the
    output is a scalar. Transposed, inputs are the flat array and a scalar, by which it is
    multiplied, and outputs are the tables.

    Attributes:
      terms: the labels of the tables, with a comma between, no label twice in one.
      sizes: (label, size) of every label.
      is_transposed: whether this is the transpose.
    """

    terms: str
    sizes: Sizes
    is_transposed: bool = False

    call = "tables_dot"

    @property
    def tables(self) -> list[tuple[int, ...]]:
        """The shapes of the tables."""
        sizes = dict(self.sizes)
        return [tuple(map(sizes.__getitem__, term)) for term in self.scopes]

    @property
    def starts(self) -> list[int]:
        """Where each table begins in the flat array; its length."""
        return list(itertools.accumulate(map(math.prod, self.tables), initial=0))

    @property
    def input_count(self) -> int:
        """The flat array, and the tables or a scalar."""
        return 2 if self.is_transposed else 1 + len(self.scopes)

    @property
    def output_count(self) -> int:
        """A scalar, or the tables."""
        return len(self.scopes) if self.is_transposed else 1

    @property
    def number(self) -> int:
        """Which of the two forms."""
        return int(self.is_transposed)

    def sizes_of(self, inputs: Sequence[Shaped]) -> Sizes:
        """Those of the payload."""
        return self.sizes

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        flat, tables = (self.starts[-1],), self.tables
        shapes = [flat, ()] if self.is_transposed else [flat, *tables]
        dtype, ranks = inputs[0].dtype, list(map(len, shapes))
        if [len(m.shape) for m in inputs] != ranks or {m.dtype for m in inputs} != {dtype}:
            raise ShapeError(
                where=self.place_of(),
                given=", ".join(map(str, inputs)),
                needed=f"one dtype, and the shapes {shapes}",
            )
        for meta, shape in zip(inputs, shapes, strict=True):
            for size, wanted in zip(meta.shape, shape, strict=True):
                require_equal(size, wanted)
        return [TensorMeta(dtype, shape) for shape in (tables if self.is_transposed else [()])]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        flat, *given = inputs
        if not self.is_transposed:
            return (jnp.vdot(flat, joined(given)),)
        return cut_all(flat * given[0], self.starts[:-1], self.tables)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The product with each of the two moved."""
        (flat, *given), (moved_flat, *moved) = primals, tangents
        terms = []
        if moved_flat is not None:
            terms.append(apply(self, moved_flat, *given))
        if any(x is not None for x in moved):
            terms.append(apply(self, flat, *filled(given, moved)))
        return [functools.reduce(jnp.add, each) for each in zip(*terms, strict=True)]

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[jax.Array | None]:
        """The other form; of the flat array the entries by which it is multiplied."""
        flat, *given = inputs
        dtype = next(c.dtype for c in cotangents if c is not None)
        shapes = self.tables if self.is_transposed else [()]
        like = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        found = filled(like, cotangents)
        if isinstance(flat, LinearInput):
            known = cast(list[jax.Array], given)
            tables, (scalar,) = (found, known) if self.is_transposed else (known, found)
            return [scalar * joined(tables), *[None] * len(given)]
        other = dataclasses.replace(self, is_transposed=not self.is_transposed)
        return at_linear([None, *apply(other, flat, *found)], inputs)

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        if self.is_transposed:
            return split_along((), [[ENTRIES], ""], self.scopes)
        return split_along((), [[ENTRIES], *self.scopes], [""])

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Normal numbers."""
        rng = np.random.default_rng(0)
        given = [()] if self.is_transposed else self.tables
        return [
            [rng.normal(size=self.starts[-1]), *(np.asarray(rng.normal(size=x)) for x in given)]
        ]


# --- the native CPU kernel ------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _graph(scopes: tuple[str, ...], sizes: Sizes) -> np.ndarray:
    """A network as the native library reads it: see bounds.h."""
    number = {label: i for i, (label, _) in enumerate(sizes)}
    found = [len(sizes), len(scopes), *(size for _, size in sizes)]
    for term in scopes:
        found += [len(term), *map(number.__getitem__, term)]
    return np.array(found, np.int64)


def _declines(op: OfTables, *metas: TensorMeta) -> str:
    """Why XLA computes an op, or "" if the library does."""
    return unserved(metas, metas[0].dtype, ("float32", "float64")) or native().problem


def _run(op: OfTables, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    graph, number = _graph(op.scopes, op.sizes_of(arrays)), np.int64(op.number)
    outputs = outputs_of(op, arrays)
    return in_program(op.call, outputs, arrays, "expand_dims", graph=graph, number=number)


def _eager(op: OfTables, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    graph, dtype = _graph(op.scopes, op.sizes_of(arrays)), TYPES[outs[0].dtype.name]
    now(op.call, dtype, graph, graph.size, op.number, given, outs, len(outs))
    return outs


for family in (NetworkBound, TablesDot):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", run=_run, declines=_declines, name="native", eager=_eager)
    )
