"""Variables and tables of scores: how a network is made, read, written and printed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
from jax.typing import ArrayLike

from tenferro_jax.einsum import parse_equation
from tenferro_jax.errors import InvalidConfig, shortened

from ..algebra.semiring import Semiring
from ..network.tropical_einsum import tropical_einsum
from ..network.tropical_plan import Operand, Optimize, plan_tropical_einsum
from ..network.tropical_slices import TropicalPlan
from . import uai
from .variables import (
    Index,
    Scopes,
    Variable,
    chain_path,
    checked,
    equation,
    index,
    require_known,
    require_names,
    taken,
)


class Factors:
    """Tables of scores, without the questions of `Network`."""

    scopes: tuple[tuple[Variable, ...], ...]
    tables: tuple[Any, ...]
    memory_limit: int | None
    optimize: Optimize

    def __init__(
        self,
        equation: str,
        *tables: Operand,
        memory_limit: int | None = None,
        optimize: Optimize = "auto",
    ) -> None:
        if not isinstance(equation, str) or not equation.replace(" ", "").endswith("->"):
            raise InvalidConfig(
                where="Network, equation",
                given=repr(equation),
                needed='the labels of the tables and no output, such as "ab,bc->"',
                fix="Leave out the labels behind the arrow: a network sums or searches over all.",
            )
        terms = parse_equation(equation).inputs
        if len(terms) != len(tables):
            raise InvalidConfig(
                where=f"Network {shortened(equation)!r}",
                given=f"{len(tables)} tables",
                needed=f"{len(terms)}, one for each term",
            )
        made = self._made(tuple(map(tuple, terms)), tables, memory_limit, optimize)
        vars(self).update(vars(made))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Network, {name}: a network does not change; make another one")

    @classmethod
    def from_factors(
        cls,
        factors: Mapping[tuple[Variable, ...], Operand],
        *,
        memory_limit: int | None = None,
        optimize: Optimize = "auto",
    ) -> Self:
        """A network of tables by the names of their variables.

        Args:
          factors: for each table its variables, all strings or all integers, and its scores.
          memory_limit: as for the class.
          optimize: as for the class.

        Raises:
          InvalidConfig: names of other or of mixed types, or a name twice in a table.
          ShapeError, DTypeError: as for the class.

        Example:
          >>> from ext_tropical import Network
          >>> net = Network.from_factors({("rain",): [0.0, -1.0], ("rain", "wet"): [[0.0, -3.0],
          ...     [-2.0, 0.0]]})
          >>> {name: int(i) for name, i in net.best().labels.items()}
          {'rain': 0, 'wet': 0}
        """
        if not isinstance(factors, Mapping):
            raise InvalidConfig(
                where="Network.from_factors",
                given=type(factors).__name__,
                needed="a mapping from variables to tables",
            )
        scopes = tuple((s,) if isinstance(s, str | int) else tuple(s) for s in factors)
        require_names([name for scope in scopes for name in scope])
        return cls._made(scopes, list(factors.values()), memory_limit, optimize)

    @classmethod
    def from_uai(
        cls,
        model: str | os.PathLike[str],
        evidence: str | os.PathLike[str] | None = None,
        *,
        memory_limit: int | None = None,
        optimize: Optimize = "auto",
    ) -> Self:
        """The network in a file in UAI format (BAYES or MARKOV). Scores are natural logarithms of
        its entries; variables are numbers from 0.

        Args:
          model: the path of the model.
          evidence: the path of evidence, which is `given`.
          memory_limit: as for the class.
          optimize: as for the class.

        Raises:
          ArtifactError: the text is no model or no evidence; the error says line and column.
          InvalidConfig: evidence that the model has not.
          OSError: a file cannot be read.

        Source: https://uaicompetition.github.io/uci-2022/file-formats/.

        Example:
          >>> import pathlib, tempfile
          >>> from ext_tropical import Network
          >>> path = pathlib.Path(tempfile.mkdtemp(), "coin.uai")
          >>> _ = path.write_text("MARKOV 1  2  1  1 0  2 0.25 0.75")
          >>> print(Network.from_uai(path).marginals()[0].round(4))
          [0.25 0.75]
        """
        net = cls._made(*uai.read(model), memory_limit, optimize)
        return net if evidence is None else net.given(uai.read_evidence(evidence))

    @classmethod
    def _made(cls, scopes: Scopes, tables: Sequence[Any], *options: object) -> Self:
        """A network of tables, which are checked."""
        return cls.tree_unflatten((scopes, *options), checked(scopes, tables))

    def to_uai(self, path: str | os.PathLike[str]) -> None:
        """Write the network in UAI format, MARKOV, entries exp(score). Variables named 0, 1, ... up
        to their number keep their names, others are numbered in their order here.

        Raises:
          ArtifactError: an entry that is infinite, or 0 though its score is finite.
          jax.errors.TracerArrayConversionError: tables inside a transform.
          OSError: the file cannot be written.

        Example:
          >>> import pathlib, tempfile
          >>> from ext_tropical import Network
          >>> path = pathlib.Path(tempfile.mkdtemp(), "pair.uai")
          >>> Network("ab->", [[0.0, 0.0], [0.0, -float("inf")]]).to_uai(path)
          >>> print(path.read_text().splitlines()[-1])
          1.0 1.0 1.0 0.0
        """
        names: list[Any] = list(self.variables)
        if set(names) == set(range(len(names))):
            names.sort()
        number = {name: i for i, name in enumerate(names)}
        uai.write(path, [[number[name] for name in scope] for scope in self.scopes], self.tables)

    @property
    def variables(self) -> dict[Variable, int]:
        """The number of values of each variable, in the order of first appearance."""
        return {
            name: size
            for scope, table in zip(self.scopes, self.tables, strict=True)
            for name, size in zip(scope, table.shape, strict=True)
        }

    @property
    def equation(self) -> str:
        """The einsum of the tables, a letter for each variable in the order of `variables`."""
        return equation(self.scopes, ())

    @property
    def path(self) -> Optimize:
        """How contractions are ordered: `optimize`, or for a chain from its last variable to its
        first, which is the cheapest order.
        """
        return (self.optimize == "auto" and chain_path(self.scopes)) or self.optimize

    def plan(self) -> TropicalPlan:
        """The order of contractions that every question takes, and its slices, to print."""
        return plan_tropical_einsum(
            self.equation, *self.tables, optimize=self.path, memory_limit=self.memory_limit
        )

    def contracted(self, semiring: Semiring, output: Sequence[Variable] = ()) -> jax.Array:
        """The einsum of the tables under a semiring."""
        return tropical_einsum(
            equation(self.scopes, output),
            *self.tables,
            semiring=semiring,
            optimize=self.optimize if output else self.path,
            memory_limit=self.memory_limit,
        )

    def like(self, scopes: Sequence[tuple[Variable, ...]], tables: Sequence[ArrayLike]) -> Self:
        """A network of other tables, which are not checked."""
        return self.tree_unflatten((tuple(scopes), self.memory_limit, self.optimize), tables)

    def given(self, values: Mapping[Variable, Index] | None = None, /, **others: Index) -> Self:
        """The network in which some variables have values: it lacks these variables, and its
        scores are those of assignments with these values.

        Args:
          values: the value of each variable, an integer from 0; inside a transform also a traced
            one. All scores are NaN if a traced value is out of range, or a value is beyond a
            symbolic size.
          **others: the same for variables whose names are identifiers.

        Raises:
          InvalidConfig: an unknown variable, or a value out of range.

        Example:
          >>> from ext_tropical import Network
          >>> net = Network("ab,bc->", [[0.0, 1.0], [2.0, 0.0]], [[0.0, 3.0], [1.0, 0.0]])
          >>> float(net.given(b=1).value()), net.given(b=1).variables
          (2.0, {'a': 2, 'c': 2})
        """
        if not isinstance(values, Mapping | None) or not others.keys().isdisjoint(values or ()):
            raise InvalidConfig(
                where="Network.given",
                given=repr(values),
                needed="a mapping from variables to values, and no variable twice",
            )
        chosen: dict[Variable, Index] = {**dict(values or {}), **dict(others.items())}
        known = self.variables
        for name, value in chosen.items():
            require_known(name, known, "given")
            chosen[name] = index(name, value, known[name])
        scopes, tables = [], []
        for scope, table in zip(self.scopes, self.tables, strict=True):
            for name in [name for name in scope if name in chosen]:
                table = taken(table, chosen[name], scope.index(name))
                scope = tuple(x for x in scope if x != name)
            scopes.append(scope)
            tables.append(table)
        return self._made(tuple(scopes), tables, self.memory_limit, self.optimize)

    def __repr__(self) -> str:
        return f"Network({shortened(self.equation)!r}, {len(self.tables)} tables)"

    def __str__(self) -> str:
        ranks = [len(getattr(x, "shape", ())) for x in self.tables]
        if ranks != [len(scope) for scope in self.scopes] or not all(
            isinstance(size, int) for size in self.variables.values()
        ):  # a batch, a derivative, or a symbolic size
            return repr(self)
        sizes, plan = self.variables.values(), self.plan()
        values = " to ".join(
            map(str, sorted({*sizes} & {min(sizes, default=0), max(sizes, default=0)}))
        )
        largest = max((step.size for step in plan.plan.steps), default=1)
        slices = f", in {plan.slices} slices" if plan.slices > 1 else ""
        return (
            f"{len(self.tables)} tables of {len(sizes)} variables with {values or 'no'} values, "
            f"10^{math.fsum(map(math.log10, sizes)):.1f} assignments\n"
            f"value, best, log_partition: {plan.cost} candidates{slices}, at most {largest} "
            f"entries in a result\n"
            f"marginals, entropy: {3 * plan.cost} candidates"
        )

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """The tables, and the rest as static data."""
        keys = map(jax.tree_util.SequenceKey, range(len(self.tables)))
        static = (self.scopes, self.memory_limit, self.optimize)
        return tuple(zip(keys, self.tables, strict=True)), static

    @classmethod
    def tree_unflatten(cls, static: Any, tables: Sequence[Any]) -> Self:
        """A network of whatever takes the place of the tables."""
        net = cls.__new__(cls)
        vars(net).update(
            scopes=static[0], tables=tuple(tables), memory_limit=static[1], optimize=static[2]
        )
        return net
