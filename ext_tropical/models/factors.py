"""Variables and tables of scores: how a network is made, read, written and printed."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import jax
from jax.typing import ArrayLike

from tenferro_jax.errors import (
    InvalidConfig,
    ShapeError,
    TenferroError,
    counted,
    shortened,
    typed_call,
)
from tenferro_jax.plans import parse_equation
from tenferro_jax.plans.plan import hashable

from ..arguments import require_concrete
from ..einsums.call import tropical_einsum
from ..einsums.planning import (
    Operand,
    Optimize,
    detail_of,
    ordered,
    plan_tropical_einsum,
    too_large,
)
from ..einsums.slice_lengths import byte_count
from ..einsums.slices import TropicalPlan
from ..semirings.semiring import Semiring
from . import uai
from .variables import (
    Index,
    Scopes,
    Variable,
    chain_path,
    checked,
    distinct,
    equation,
    index,
    names_of,
    pairs_of,
    require_known,
    require_names,
    taken,
)

P = ParamSpec("P")
T = TypeVar("T")


def asked(
    method: Callable[Concatenate[Any, P], T], fix: str = ""
) -> Callable[Concatenate[Any, P], T]:
    """A method of `Network` whose errors all begin with its name; `fix` as in `typed_call`."""
    typed = typed_call(method, fix)

    @functools.wraps(method)
    def call(net: Any, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return typed(net, *args, **options)
        except TenferroError as error:
            # other questions ask for the plan, of which their callers know nothing
            if error.where == "Network.plan" or not error.where.startswith("Network."):
                hidden = (method.__qualname__, "Network.plan", "Network", "log_sum_exp, ")
                detail = detail_of(error.where)
                for place in hidden:
                    detail = detail.removeprefix(place)
                error.put_at(", ".join(filter(None, [f"Network.{method.__name__}", detail])))
            raise

    return call


class Factors:
    """Tables of scores, without the questions of `Network`."""

    scopes: tuple[tuple[Variable, ...], ...]
    tables: tuple[Any, ...]
    memory_limit: int | None
    optimize: Optimize

    @typed_call
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
        where = f"Network {shortened(equation)!r}"
        try:
            terms = parse_equation(equation).inputs
        except InvalidConfig as error:
            error.put_at(where)
            raise
        if len(terms) != len(tables):
            raise InvalidConfig(
                where=where,
                given=counted(len(tables), "table"),
                needed=f"{len(terms)}, one for each term",
            )
        made = self._made(tuple(map(tuple, terms)), tables, memory_limit, optimize)
        vars(self).update(vars(made))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Network, {name}: a network does not change; make another one")

    @classmethod
    def from_factors(
        cls,
        factors: Mapping[Any, Operand] | Iterable[tuple[Any, Operand]],
        *,
        memory_limit: int | None = None,
        optimize: Optimize = "auto",
    ) -> Self:
        """A network of tables by the names of their variables.

        Args:
          factors: a mapping or pairs: of each table its variables and its scores. Names are all
            strings, all integers or all members of an Enum; those of NumPy become Python's. In
            pairs several tables may have the same variables.
          memory_limit: as for the class.
          optimize: as for the class.

        Raises:
          InvalidConfig: names of other or of mixed types, or a name twice in a table.
          ShapeError, DTypeError: as for the class.

        Example:
          >>> from ext_tropical import Network
          >>> net = Network.from_factors({("rain",): [0.0, -1.0], ("rain", "wet"): [[0.0, -3.0],
          ...     [-2.0, 0.0]]})
          >>> net.best().labels.tolist()
          {'rain': 0, 'wet': 0}
        """
        needed = "a mapping from variables to tables, or pairs of them"
        pairs = pairs_of("Network.from_factors", factors, needed)
        scopes = tuple(names_of(names) for names, _ in pairs)
        require_names(distinct(scopes))
        return cls._made(scopes, [table for _, table in pairs], memory_limit, optimize)

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
        if evidence is None:
            return net
        observed = uai.read_evidence(evidence)
        try:
            return net.given(observed)
        except InvalidConfig as error:
            place = f"Network.from_uai, evidence {os.fspath(evidence)}"
            error.put_at(error.where.replace("Network.given", place))
            raise

    @classmethod
    def _made(
        cls,
        scopes: Scopes,
        tables: Sequence[Any],
        memory_limit: int | None,
        optimize: Optimize,
    ) -> Self:
        """A network of tables; all is checked, and options become what JAX can compare."""
        limit = None if memory_limit is None else byte_count("Network", memory_limit)
        options = limit, hashable(optimize)
        return cls.tree_unflatten((scopes, *options), checked(scopes, tables))

    @asked
    def to_uai(self, path: str | os.PathLike[str]) -> None:
        """Write the network in UAI format, MARKOV, entries exp(score). Variables named 0, 1, ... up
        to their number keep their names, others are numbered in their order here.

        Raises:
          ArtifactError: an entry that is infinite, or 0 though its score is finite.
          Unsupported: tables inside a transform.
          OSError: the file cannot be written.

        Example:
          >>> import pathlib, tempfile
          >>> from ext_tropical import Network
          >>> path = pathlib.Path(tempfile.mkdtemp(), "pair.uai")
          >>> Network("ab->", [[0.0, 0.0], [0.0, -float("inf")]]).to_uai(path)
          >>> print(path.read_text().splitlines()[-1])
          1.0 1.0 1.0 0.0
        """
        require_concrete("Network.to_uai", self.tables, "Write the network outside of it.")
        names: list[Any] = list(self.variables)
        if set(names) == set(range(len(names))):
            names.sort()
        number = {name: i for i, name in enumerate(names)}
        scopes = [[*map(number.__getitem__, scope)] for scope in self.scopes]
        uai.write(path, scopes, self.tables)

    @property
    def variables(self) -> dict[Variable, int]:
        """The number of values of each variable, in the order of first appearance."""
        sizes: dict[Variable, int] = {}
        for scope, table in zip(self.scopes, self.tables, strict=True):
            sizes.update(zip(scope, table.shape, strict=True))
        return sizes

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

    @asked
    def plan(self) -> TropicalPlan:
        """The order of contractions that every question takes, and its slices, to print."""
        return self.answered(plan_tropical_einsum)

    def contracted(self, semiring: Semiring, output: Sequence[Variable] = ()) -> jax.Array:
        """The einsum of the tables under a semiring."""
        return self.answered(tropical_einsum, output, semiring=semiring)

    def answered(
        self, ask: Callable[..., T], output: Sequence[Variable] = (), **options: object
    ) -> T:
        """What a function of an einsum says of the tables.

        Raises:
          ShapeError: a result of a step is too large; the text has the variables.
        """
        text, optimize = equation(self.scopes, output), self.optimize if output else self.path
        try:
            return ask(
                text,
                *self.tables,
                optimize=optimize,
                memory_limit=self.memory_limit,
                **options,
            )
        except ShapeError as error:
            raise self._too_wide(text, optimize) or error from None

    def _too_wide(self, text: str, optimize: Optimize) -> ShapeError | None:
        """The error for the einsum of the tables if one of its steps is too large."""
        shapes = tuple(tuple(x.shape) for x in self.tables)
        plan = ordered(text, shapes, hashable(optimize))
        limit = self.memory_limit
        found = too_large(plan, self.tables[0].dtype.itemsize, limit)
        if found is None:
            return None
        number, most = found
        step, variables = plan.steps[number], distinct(self.scopes)
        letters = equation(self.scopes, variables).partition("->")[2]
        name = dict(zip(letters, variables, strict=True))
        names = shortened(", ".join(repr(name[letter]) for letter in step.result))
        within = " within memory_limit" if limit else ""
        return ShapeError(
            where="Network",
            given=f"a step with a result of {step.size} entries, over the {len(step.result)} "
            f"variables {names}",
            needed=f"at most {most} entries{within}",
            fix="Fix some of them with given, one value after another, leave out tables that "
            "connect them, or try another optimize, as 'random-greedy-128'.",
        )

    def like(self, scopes: Sequence[tuple[Variable, ...]], tables: Sequence[ArrayLike]) -> Self:
        """A network of other tables, which are not checked."""
        return self.tree_unflatten((tuple(scopes), self.memory_limit, self.optimize), tables)

    @functools.partial(asked, fix="Write given(rain=1), or given({'rain': 1}).")
    def given(
        self,
        values: Mapping[Any, Index] | Iterable[tuple[Any, Index]] | None = None,
        /,
        **others: Index,
    ) -> Self:
        """The network with evidence, in which some variables have values. It lacks these variables,
        and its scores are those of assignments with these values.

        Args:
          values: the value of each variable, an integer from 0, as a mapping or pairs; inside a
            transform also a traced one. All scores are NaN if a traced value is out of range, or
            a value is beyond a symbolic size.
          **others: the same for variables whose names are identifiers.

        Raises:
          InvalidConfig: an unknown variable, or a value out of range.

        Example:
          >>> from ext_tropical import Network
          >>> net = Network("ab,bc->", [[0.0, 1.0], [2.0, 0.0]], [[0.0, 3.0], [1.0, 0.0]])
          >>> float(net.given(b=1).value()), net.given(b=1).variables
          (2.0, {'a': 2, 'c': 2})
        """
        needed = "a mapping from variables to values, or pairs, and no variable twice"
        pairs = pairs_of("Network.given", () if values is None else values, needed)
        chosen: dict[Variable, Index] = {}
        known = self.variables
        for key, value in (*pairs, *others.items()):
            name = require_known(key, known, "given")
            if name in chosen:
                raise InvalidConfig(
                    where="Network.given", given=f"variable {name!r} twice", needed="it once"
                )
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
        return f"Network({shortened(self.equation)!r}, {counted(len(self.tables), 'table')})"

    def __str__(self) -> str:
        ranks = [len(getattr(x, "shape", ())) for x in self.tables]
        if ranks != [len(scope) for scope in self.scopes]:  # a batch, or a derivative
            return repr(self)
        sizes = self.variables.values()
        if not all(isinstance(size, int) for size in sizes):
            return repr(self)
        try:
            plan = self.plan()
        except ShapeError as error:
            return f"{self.size_told()}\n{error}"
        largest = max((step.size for step in plan.plan.steps), default=1)
        slices = f", in {plan.slices} slices" if plan.slices > 1 else ""
        return (
            f"{self.size_told()}\n"
            f"value, best, log_partition: {plan.cost} candidates{slices}, at most {largest} "
            f"entries in a result\n"
            f"marginals, entropy: {3 * plan.cost} candidates"
        )

    def size_told(self) -> str:
        """How many tables, variables, values and assignments there are, in words."""
        sizes = self.variables.values()
        ends = sorted({min(sizes), max(sizes)}) if sizes else ["no"]
        values = " to ".join(map(str, ends))
        exponent = math.fsum(map(math.log10, sizes))
        tables, variables = counted(len(self.tables), "table"), counted(len(sizes), "variable")
        return f"{tables} of {variables} with {values} values, 10^{exponent:.1f} assignments"

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
