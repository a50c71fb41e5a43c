"""Network: a graphical model, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from opt_einsum import get_symbol

from tenferro_jax.errors import DTypeError

from ..algebra.semiring import Semiring
from ..algebra.shipped import LogSumExp, max_plus
from ..network.steps import Assignment
from ..network.tropical_einsum import best_assignment, tropical_einsum
from .factors import Factors
from .samples import samples
from .variables import (
    Variable,
    distinct,
    equation,
    groups,
    impossible,
    nan_if_impossible,
    require_known,
    require_size,
)


@jax.tree_util.register_pytree_with_keys_class
class Network(Factors):
    """A graphical model: variables with finitely many values, and tables of scores over some of
    them. The score of an assignment, a value for each variable, is the sum of the entries that it
    selects; its probability at temperature T is proportional to exp(score / T).

    A pytree: the tables are leaves, all else is static. Every method works on concrete tables and
    inside jit, vmap and grad; under vmap tables, or the values of `given`, have one more axis.

    Args:
      equation: the labels of the tables, as for einsum, with no labels in the output: "ab,bc->".
      *tables: for each term an array of scores, one dtype for all: float32 or float64 (32-bit
        integers for `value` and `best`). -inf is impossible. Log probabilities are scores.
      memory_limit, optimize: as for `tropical_einsum`, for all questions.

    Attributes:
      scopes: the variables of each table.
      tables: the arrays.
      memory_limit, optimize: as given.

    Raises:
      InvalidConfig: an equation with an output, a label twice in a term, or more or fewer tables
        than terms.
      ShapeError: tables that do not fit their labels, or give a variable two sizes, or none.
      DTypeError: not arrays.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import Network
      >>> likes_equal = np.array([[1.0, 0.0], [0.0, 1.0]])
      >>> net = Network("ab,bc,a->", likes_equal, likes_equal, np.array([0.0, 0.5]))
      >>> {name: int(i) for name, i in net.best().labels.items()}
      {'a': 1, 'b': 1, 'c': 1}
      >>> print(net.marginals()["c"].round(3))
      [0.448 0.552]
      >>> print(net.given(c=0).best().value)
      2.0
    """

    def sum_out(self, *names: Variable, temperature: float = 1.0) -> Network:
        """The network of the other variables whose scores are T log of the sum of exp(score / T)
        over the values of these: marginalised. Its `best` is the marginal MAP assignment.

        Cost: these variables are summed before all others, each connected group of them into one
        table over its neighbours; `print` of the result shows how large these are.

        Raises:
          InvalidConfig: an unknown variable, or another temperature.
          DTypeError: tables of integers.

        Example:
          >>> net = Network("ab,b->", [[0.0, 1.0], [1.0, 0.5]], [0.0, 0.1])
          >>> net.best().labels["a"], net.sum_out("b").best().labels["a"]
          (Array(0, dtype=int32), Array(1, dtype=int32))
        """
        for name in names:
            require_known(name, self.variables, "sum_out")
        scopes, tables = [], []
        semiring = LogSumExp(temperature)
        for group in groups(self.scopes, set(names)):
            parts = [self.scopes[i] for i in group]
            rest = [x for x in distinct(parts) if x not in names]
            scopes.append(tuple(rest))
            tables.append(
                self.tables[group[0]]
                if scopes[-1:] == parts
                else tropical_einsum(
                    equation(parts, rest),
                    *(self.tables[i] for i in group),
                    semiring=semiring,
                    optimize=self.optimize,
                    memory_limit=self.memory_limit,
                )
            )
        return self._made(tuple(scopes), tables, self.memory_limit, self.optimize)

    def value(self) -> jax.Array:
        """The best score, a scalar; -inf if all assignments are impossible.

        Gradient: in each table 1 at the entries that the first best assignment selects.

        Example:
          >>> float(Network("ab,b->", [[0.0, 1.0], [2.0, 0.0]], [0.0, 0.5]).value())
          2.0
        """
        return self._contracted(max_plus)

    def best(self) -> Assignment:
        """The best score with an assignment that has it, the first by the plan.

        Returns:
          An Assignment: value, labels {variable: int32}, feasible (False if all assignments are
          impossible).

        Gradient: of the value, as `value`.

        Example:
          >>> Network("a->", [0.0, 2.0]).best().labels
          {'a': Array(1, dtype=int32)}
        """
        found = best_assignment(
            self.equation, *self.tables, optimize=self.optimize, memory_limit=self.memory_limit
        )
        return found._replace(
            labels={name: found.labels[get_symbol(i)] for i, name in enumerate(self.variables)}
        )

    def log_partition(self, *, temperature: float = 1.0) -> jax.Array:
        """log of the sum over all assignments of exp(score / T), a scalar: of log probabilities at
        T = 1 the log of the probability of what is given.

        Gradient: of each table, 1 / T times the probabilities of its entries.

        Example:
          >>> float(Network("ab->", [[0.0, 0.0], [0.0, 0.0]]).log_partition())  # log 4
          1.3862943649291992
        """
        return self._contracted(LogSumExp(temperature)) / temperature

    def marginals(self, *, temperature: float = 1.0) -> dict[Variable, jax.Array]:
        """For each variable the probabilities of its values, (values,) in the tables' dtype.

        Raises:
          InvalidConfig: all assignments are impossible; inside a transform the result is NaN.
          DTypeError: tables of integers.

        Gradient: any order, forward and reverse.

        Example:
          >>> print(Network("ab->", [[0.0, 0.0], [0.0, -float("inf")]]).marginals()["a"].round(4))
          [0.6667 0.3333]
        """
        # The derivative by a table of zeros for each variable.
        sizes, dtype = self.variables, self._floating("marginals")
        zeros = [jnp.zeros(size, dtype) for size in sizes.values()]

        def total(zeros: Sequence[jax.Array]) -> jax.Array:
            scopes = (*self.scopes, *((name,) for name in sizes))
            net = self._like(scopes, (*self.tables, *zeros))
            return temperature * net.log_partition(temperature=temperature)

        value, shares = jax.value_and_grad(total)(zeros)
        nan = nan_if_impossible("marginals", value)
        return dict(zip(sizes, shares if nan is None else [x + nan for x in shares], strict=True))

    def entropy(self, *, temperature: float = 1.0) -> jax.Array:
        """The entropy of the distribution of assignments in nats, a scalar.

        Raises:
          InvalidConfig, DTypeError: as `marginals`.

        Gradient: any order, forward and reverse.

        Example:
          >>> float(Network("ab->", [[0.0, 0.0], [0.0, 0.0]]).entropy())  # log 4
          1.3862943649291992
        """
        self._floating("entropy")
        # The mean score is the derivative in the direction of the scores.
        scores = [jnp.where(x == -jnp.inf, 0, x) for x in self.tables]

        def log_z(tables: Sequence[Any]) -> jax.Array:
            return self._like(self.scopes, tables).log_partition(temperature=temperature)

        value, mean = jax.jvp(log_z, (self.tables,), (tuple(scores),))
        nan = nan_if_impossible("entropy", value)
        return value - mean if nan is None else value - mean + nan

    def sample(
        self, key: jax.Array, shape: Sequence[int] = (), *, temperature: float = 1.0
    ) -> dict[Variable, jax.Array]:
        """Independent assignments, drawn with probabilities proportional to exp(score / T), exactly
        but for rounding.

        Args:
          key: of `jax.random`; equal keys give equal samples by one route.
          shape: of the samples.

        Returns:
          {variable: int32 of the shape}; -1 inside a transform if all assignments are impossible.

        Raises:
          InvalidConfig: all assignments are impossible, or a shape or temperature out of range.
          DTypeError: tables of integers.

        Gradient: none.

        Cost: that of `log_partition`, and for each sample all candidates of one cell of each step.

        Example:
          >>> import jax
          >>> drawn = Network("a->", [0.0, 1.0]).sample(jax.random.key(0), (10_000,))
          >>> print(drawn["a"].mean().round(1))  # 1 / (1 + exp(-1)) = 0.731
          0.7
        """
        self._floating("sample")
        shape = tuple(require_size("Network.sample, shape", size) for size in shape)
        found = samples(self.plan(), self.tables, key, shape, temperature)
        for labels in list(found.values())[:1]:
            if not isinstance(labels, jax.core.Tracer) and labels.size and labels.min() < 0:
                raise impossible("sample")
        return {name: found[get_symbol(i)] for i, name in enumerate(self.variables)}

    def _floating(self, question: str) -> Any:
        """The dtype of the tables; refuses integers."""
        dtypes = {x.dtype for x in self.tables}
        if not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
            raise DTypeError(
                where=f"Network.{question}",
                given=f"tables of {', '.join(sorted(map(str, dtypes)))}",
                needed="tables of one floating dtype",
            )
        return dtypes.pop()

    def _like(self, scopes: Sequence[tuple[Variable, ...]], tables: Sequence[Any]) -> Network:
        """A network of other tables."""
        return self.tree_unflatten((tuple(scopes), self.memory_limit, self.optimize), tables)

    def _contracted(self, semiring: Semiring) -> jax.Array:
        return tropical_einsum(
            self.equation,
            *self.tables,
            semiring=semiring,
            optimize=self.optimize,
            memory_limit=self.memory_limit,
        )
