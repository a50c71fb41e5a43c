"""Network: a graphical model, and what can be asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from opt_einsum import get_symbol

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import apply

from ..arguments import are_numbers, require_key, require_shape, require_size, widened, work_dtype
from ..einsums.call import best_assignment
from ..networks.bound import NetworkBound
from ..networks.value import solved_as_network
from ..semirings.shipped import LogSumExp, max_plus
from ..steps.evaluate import Assignment, Mode
from ..steps.labels import Labels
from ..steps.weighted_sum import work_of
from .answers import best_ways, plan_of_one_op, samples, shares
from .bounds import Bounds, bounds_of
from .chain_form import chain_form
from .counts import counted, counted_by
from .factor_sums import Products
from .factors import asked
from .optimum import TOO_WIDE, best_if_wide, is_eliminable, told_of_search
from .relative import from_best, without_shared
from .toulbar2 import best_by_toulbar2, require_toulbar2
from .variables import (
    Variable,
    as_floats,
    by_variable,
    distinct,
    groups,
    holders,
    is_finite,
    require_finite,
    require_known,
    summed_to,
)


def _zero_where_impossible(table: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    """Scores, and 0 in place of -inf."""
    if isinstance(table, np.ndarray):
        return np.where(table == -np.inf, table.dtype.type(0), table)
    return jnp.where(table == -jnp.inf, 0, table)


@jax.tree_util.register_pytree_with_keys_class
class Network(Products):
    """A graphical model: variables with finitely many values, and tables of scores over some of
    them. The score of an assignment, a value for each variable, is the sum of the entries that it
    selects; its probability at temperature T is proportional to exp(score / T).

    A pytree: the tables are leaves, all else is static. Every method works on concrete tables and
    inside jit, vmap and grad; under vmap tables, or the values of `given`, have one more axis.

    If the tables form a chain of 16 variables or more, are concrete and have one size, a `Chain`
    answers all questions but those for the k best and for counts.

    Args:
      equation: the labels of the tables, as for einsum, with no labels in the output: "ab,bc->".
      *tables: for each term an array of scores, one dtype for all: floats, of which 16 bits are
        added in float32 (32-bit integers for `value` and `best`). -inf is impossible. Log
        probabilities are scores.
      memory_limit: as for `tropical_einsum`, for all questions.
      optimize: as for `tropical_einsum`, for all questions.

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
      >>> net.best().labels.tolist()
      {'a': 1, 'b': 1, 'c': 1}
      >>> print(net.marginals()["c"].round(2))
      [0.47 0.53]
      >>> print(net.given(c=0).best().value)
      2.0
    """

    @asked
    def sum_out(self, *names: Variable, temperature: float = 1.0) -> Network:
        """The network of the other variables whose scores are T log of the sum of exp(score / T)
        over the values of these: marginalised. Its `best` is the marginal MAP assignment. Numbers
        that the scores share are tables by themselves.

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
        summed = frozenset(require_known(name, self.variables, "sum_out") for name in names)
        scopes: list[tuple[Variable, ...]] = []
        tables: list[Any] = []
        semiring, dtype = self._semiring(temperature), self.tables[0].dtype
        for group in groups(self.scopes, summed):
            parts = [self.scopes[i] for i in group]
            rest = [x for x in distinct(parts) if x not in summed]
            scopes.append(tuple(rest))
            if scopes[-1:] == parts:
                tables.append(self.tables[group[0]])
                continue
            own, shared = without_shared([self.tables[i] for i in group])
            tables.append(self.like(parts, own).contracted(semiring, rest).astype(dtype))
            # A table by itself, so that a large number costs the others no digits.
            scopes.append(())
            tables.append(shared.astype(dtype))
        return self._made(tuple(scopes), tables, self.memory_limit, self.optimize)

    def __str__(self) -> str:
        told = told_of_search(self)
        if not told:
            return super().__str__()
        if is_eliminable(self):
            return f"{super().__str__()}\n{told}"
        return f"{self.size_told()}\n{told}\nother questions: {TOO_WIDE}"

    @asked
    def value(self, *, solver: str = "auto", seconds: float | None = None) -> jax.Array:
        """The best score, a scalar; -inf if all assignments are impossible.

        Args:
          solver: as for `best`.
          seconds: as for `best`.

        Gradient: in each table 1 at the entries that the first best assignment selects.

        Example:
          >>> float(Network("ab,b->", [[0.0, 1.0], [2.0, 0.0]], [0.0, 0.5]).value())
          2.0
        """
        if solver != "auto" or seconds is not None:
            require_toulbar2("Network.value", solver, seconds)
            return best_by_toulbar2(self, seconds).value
        if form := chain_form(self):
            return form.chain().best().score
        wide = best_if_wide(self)
        return self.contracted(max_plus) if wide is None else wide.value

    @asked
    def best(
        self, k: int | None = None, *, solver: str = "auto", seconds: float | None = None
    ) -> Assignment:
        """The best score with an assignment that has it, the first by the plan; or the k best.

        Args:
          k: how many distinct assignments, by falling score; all if there are fewer.
          solver: "auto" is elimination, and a search with bounds where that is too wide. "toulbar2"
            is a search by the package pytoulbar2 where bounds leave something to decide; inside
            transforms it is a host op. Bounds prove what `Bounds.proved` says; toulbar2 that no
            assignment is better by more than N e, of N tables whose largest differences add up to
            1e14 e at least. So it is exact for integers and decimals of fewer digits. Without k.
          seconds: the time after which toulbar2 ends. If nothing is proved then, it is an error.

        Returns:
          An Assignment: value, labels (`Labels`: int32 for each variable), feasible (False if all
          assignments are impossible, when labels mean nothing). With k each has an axis of k, or of
          the number of all assignments, if that is less; value -inf, labels -1 and feasible False
          where fewer are possible. If the value is NaN, labels and feasible mean nothing.

        Raises:
          InvalidConfig: k below 1, or 2**31 labels and more.
          DTypeError: k and tables of integers.
          Unsupported: k and a symbolic size, in `jax.export`.
          ShapeError: too wide for elimination, and not proved by the search, or by toulbar2 in
            time; the text has both ends.
          InvalidConfig: an unknown solver; k with toulbar2; seconds without it.
          Unsupported: toulbar2 that is not installed, or without the native library.
          InvalidConfig, DTypeError: too wide for elimination, or toulbar2, and NaN or inf among the
            scores, or integers that do not hold the best one.

        Gradient: of the values, as `value`.

        Cost: that of elimination. Of concrete tables in the memory of the host for which it
        compares a million candidates and more, and without `memory_limit` and `optimize`, a search
        with bounds comes first, of at most some seconds: then equally good assignments are not told
        apart by the plan. For k the results of all steps are kept (of a
        slice), and for each assignment one cell of each step is looked through.

        Source: L. Huang and D. Chiang, Better k-best parsing (2005).

        Example:
          >>> net = Network("ab,b->", [[0.0, 1.0], [2.0, 0.0]], [0.0, 0.5])
          >>> net.best().labels.tolist()
          {'a': 1, 'b': 0}
          >>> print(net.best(k=3).value, net.best(k=3).labels["b"])
          [2.  1.5 0.5] [0 1 1]
        """
        if solver != "auto" or seconds is not None:
            require_toulbar2("Network.best", solver, seconds, k)
            return best_by_toulbar2(self, seconds)
        if k is None:
            if (form := chain_form(self)) and (path := form.best()):
                return path._replace(labels=path.labels.renamed(self._own_names()))
            if (wide := best_if_wide(self)) is not None:
                return wide
            found = self.answered(best_assignment)
            return found._replace(labels=self._named(found.labels))
        dtype, k = self.floating("best"), require_size("Network.best, k", k, 1)
        sizes = self.variables.values()
        if are_numbers(self.tables):
            k = min(k, math.prod(sizes))
        if k * max(1, len(sizes)) >= 2**31:
            raise InvalidConfig(
                where="Network.best, k", given=str(k), needed="fewer labels than int32 counts"
            )
        if sizes:
            value, labels = best_ways(self.plan(), list(map(widened, self.tables)), k)
        else:  # one assignment, of nothing
            value, labels = self.value()[None], Labels((), jnp.zeros((1, 0), jnp.int32))
        value = value.astype(dtype)
        return Assignment(value, self._named(labels), value > -jnp.inf)

    @asked
    def bounds(
        self,
        *,
        sweeps: int = 1000,
        seconds: float | None = None,
        progress: Callable[[float, float, int], object] | None = None,
    ) -> Bounds:
        """An interval that has the best score, with an assignment that has the lower end and
        messages that prove the upper one, of concrete tables. It needs no more memory than the
        tables, however the variables are connected.

        Args:
          sweeps: the most that are taken. They end before if the interval is closed, or if they
            gain nothing.
          seconds: the time after which no more sweeps are begun; it is looked at after 16 of them,
            then after 32 and more.
          progress: called from time to time with the lower bound, the upper one and the number of
            sweeps.

        Returns:
          `ext_tropical.models.Bounds`.

        Raises:
          InvalidConfig: NaN or inf among the scores, or sums beyond float64; sweeps below 1.
          DTypeError, ShapeError: tables of other numbers, or of a batch.
          Unsupported: tables inside a transform, or no native library.

        Gradient: none.

        Cost: a sweep passes twice over all entries: 1 ms for 5,000 entries, of which a grid of
        50 x 50 variables has four times as many.

        Precision: float64. The upper bound has an allowance for rounding.

        Source: V. Kolmogorov, A new look at reweighted message passing (2015).

        Example:
          >>> import numpy as np
          >>> rng, names = np.random.default_rng(1), [(i, j) for i in range(30) for j in range(30)]
          >>> tables = [((f"x{i},{j}", f"x{i + a},{j + 1 - a}"), rng.normal(size=(2, 2)))
          ...     for i, j in names for a in (0, 1) if max(i + a, j + 1 - a) < 30]
          >>> net = Network.from_factors(tables)  # by elimination 2**30 entries
          >>> bounds = net.bounds()
          >>> bounds.gap < 0.02 * bounds.lower
          True
        """
        return bounds_of(self, sweeps, seconds, progress)

    @asked
    def upper_bound(self, sweeps: int = 30) -> jax.Array:
        """A number that no assignment's score exceeds, up to rounding, a scalar: the linear
        relaxation after so many sweeps over the variables, there and back. Unlike `bounds` it has a
        gradient and works inside all transforms. It needs no more memory than the tables, however
        the variables are connected; -inf if the sweeps found that nothing is possible.

        Args:
          sweeps: how many are taken. None is left out, so that all routes have one answer.

        Raises:
          InvalidConfig: sweeps below 1.
          DTypeError: tables of integers.

        Gradient: that of the answer after these sweeps. Its entries sum to 1 in each table, and may
          be below 0; at the least bound they are a solution of the relaxation, and 1 at the best
          assignment if it is tight. 0 where the bound is not finite. It keeps an int32 for each
          message of each half sweep. The second derivative is 0.

        Cost: twice the entries of all tables, for each variable of a table, a sweep; with the
          gradient twice that. A batch of `vmap` is one call on CPU, over its threads.

        Precision: NaN if a score is NaN or inf.

        Source: V. Kolmogorov, A new look at reweighted message passing (2015).

        Example:
          >>> net = Network("ab,bc,ca->", *3 * [np.array([[0.0, 1.0], [1.0, 0.0]])])
          >>> print(net.upper_bound(), net.value())
          3.0 2.0
          >>> print(jax.grad(Network.upper_bound)(net).tables[0])
          [[0.  0.5]
           [0.5 0. ]]
        """
        dtype = self.floating("upper_bound")
        sweeps = require_size("Network.upper_bound, sweeps", sweeps, 1)
        op = NetworkBound(self.equation.removesuffix("->"), sweeps)
        (found,) = apply(op, *map(widened, self.tables))
        return found.astype(dtype)

    @asked
    def all_best(
        self, limit: int = 10_000, *, within: float = 0.0
    ) -> Iterator[dict[Variable, int]]:
        """Every assignment with the best score, one after another, of concrete tables.

        Args:
          limit: the most that are listed.
          within: as for `count`: also those whose score is at most so much below the best, which
            come by falling score.

        Raises:
          InvalidConfig: there are more; the text has their exact number. Or as `count`.
          DTypeError, Unsupported: as `count`.

        Example:
          >>> for assignment in Network("ab->", [[0.0, 1.0], [1.0, 0.0]]).all_best():
          ...     print(assignment)
          {'a': 0, 'b': 1}
          {'a': 1, 'b': 0}
        """
        limit = require_size("Network.all_best, limit", limit)
        number = counted(self, within, self._ranked, "all_best")
        if number > limit:
            raise InvalidConfig(
                where="Network.all_best",
                given=f"{number} best assignments",
                needed=f"at most {limit}, the limit",
                fix="Raise the limit, or ask for best(k).",
            )
        rows = self._ranked(number).labels.tolist() if number else {}
        return ({name: row[i] for name, row in rows.items()} for i in range(number))

    @asked
    def count(self, within: float | None = None) -> int:
        """The exact number of possible assignments (score above -inf), of concrete tables.

        Args:
          within: only those whose score is at most so much below the best; 0 for the best ones.
            Scores are rounded as in `best`: some that differ count as equal, and some that are
            equal do not, as 0.1 + 0.2 and 0.3. A gap such as 1e-9 counts these too. Sums of
            integers are exact.

        Raises:
          InvalidConfig: a gap below 0, NaN or inf among the scores, or more than a million
            assignments within a gap above 0.
          DTypeError: integers whose sums may reach 2**53.
          Unsupported: tables inside a transform.

        Cost: as `value` in NumPy while the number is below 2**62; beyond that some 100 times as
        much for Python's integers. For a gap above 0 as `best` of that many.

        Example:
          >>> no_neighbours = np.array([[0.0, 0.0], [0.0, -np.inf]])  # independent sets of a path
          >>> Network("ab,bc->", no_neighbours, no_neighbours).count()
          5
        """
        return counted(self, within, self._ranked)

    @asked
    def count_by(self, sizes: Mapping[Variable, Sequence[int]]) -> dict[int, int]:
        """The exact number of possible assignments for each sum of integers, of concrete tables.

        Args:
          sizes: for some variables an integer of at least 0 for each value.

        Returns:
          {sum: how many assignments}, by increasing sums, without those that none has.

        Raises:
          InvalidConfig: an unknown variable, other numbers, NaN or inf among the scores, or sums
            so large that integers of 2**27 bits do not hold their numbers.
          Unsupported: tables inside a transform.

        Cost: as `count` beyond 2**62, with integers of as many bits as the largest sum times the
        bits of `count`: seconds for hundreds of variables.

        Source: L. Kronecker's substitution, which holds a polynomial in one integer.

        Example:
          >>> no_neighbours = np.array([[0.0, 0.0], [0.0, -np.inf]])
          >>> net = Network("ab,bc->", no_neighbours, no_neighbours)
          >>> net.count_by(dict.fromkeys("abc", (0, 1)))  # 3 sets of one node, 1 of two
          {0: 1, 1: 3, 2: 1}
        """
        return counted_by(self, sizes)

    @asked
    def log_partition(self, *, temperature: float = 1.0) -> jax.Array:
        """log of the sum over all assignments of exp(score / T), a scalar: of log probabilities at
        T = 1 the log of the probability of what is given.

        Gradient: of each table, 1 / T times the probabilities of its entries.

        Example:
          >>> float(Network("ab->", [[0.0, 0.0], [0.0, 0.0]]).log_partition())  # log 4
          1.3862943649291992
        """
        semiring, form = self._semiring(temperature), chain_form(self)
        if form and is_finite(found := form.chain(temperature).log_partition()):
            return found
        if plan := plan_of_one_op(self, semiring):
            found = widened(solved_as_network(plan, self.tables, Mode(semiring))[0])
        else:
            tables, shared = without_shared(self.tables)
            found = self.like(self.scopes, tables).contracted(semiring) + shared
        return (found / semiring.temperature).astype(self.tables[0].dtype)

    @asked
    def marginals(self, *, temperature: float = 1.0) -> dict[Variable, jax.Array]:
        """For each variable the probabilities of its values, (values,) in the tables' dtype.

        Raises:
          InvalidConfig: all assignments are impossible, or a score is NaN or inf; inside a
            transform the result is NaN.
          DTypeError: tables of integers.

        Precision: large scores that all likely assignments share cost no digits, because scores
        are taken from those of a best assignment. Outside transforms this is done where scores may
        add up to more than 512 T; smaller ones cost a probability in float32 at most 3e-5 of
        itself. Differences within a table below its size times the rounding of the dtype are lost.

        Gradient: any order, forward and reverse.

        Cost: that of a best assignment, from whose entries scores are taken, and of the gradient of
        `log_partition`. Inside jit both together take five to eight times the gradient alone, for
        batches of tables of 4 and of 30 values. A batch of `vmap` is one call on CPU for each.

        Example:
          >>> print(Network("ab->", [[0.0, 0.0], [0.0, -float("inf")]]).marginals()["a"].round(4))
          [0.6667 0.3333]
        """
        dtype, semiring = self.floating("marginals"), self._semiring(temperature)
        if form := chain_form(self, semiring.temperature):
            posterior = form.chain(temperature).marginals()
            if is_finite(posterior.log_partition):
                return form.named(np.asarray(posterior.states)[::-1])
        # Those of the entries of the smallest table that has the variable: by the plan of all
        # questions, which a table of its own for each variable would change.
        net, score = from_best(self, semiring.temperature)
        require_finite("marginals", score)
        held = holders(self.scopes, self.tables)
        active = sorted(set(held.values()))
        of = dict(zip(active, shares(net, active, temperature), strict=True))
        values = [
            summed_to(name, self.scopes[held[name]], of[held[name]]).astype(dtype)
            for name in self.variables
        ]
        if isinstance(score, jax.core.Tracer):
            values = [jnp.where(jnp.isfinite(score), x, jnp.nan) for x in values]
        return by_variable(self.variables, jax.device_put(values))

    @asked
    def entropy(self, *, temperature: float = 1.0) -> jax.Array:
        """The entropy of the distribution of assignments in nats, a scalar.

        Second derivatives go step by step: the Hessian for seven tables takes half a minute to
        compile.

        Raises:
          InvalidConfig, DTypeError: as `marginals`.

        Gradient: any order, forward and reverse.

        Example:
          >>> float(Network("ab->", [[0.0, 0.0], [0.0, 0.0]]).entropy())  # log 4
          1.3862943649291992
        """
        dtype, semiring = self.floating("entropy"), self._semiring(temperature)
        form = chain_form(self, semiring.temperature)
        if form and (entropy := form.entropy(temperature)) is not None:
            return entropy
        net, score = from_best(self, semiring.temperature)
        require_finite("entropy", score)
        # The mean score is the derivative in the direction of the scores.
        scores = list(map(_zero_where_impossible, net.tables))

        def log_z(tables: Sequence[ArrayLike]) -> jax.Array:
            found = self.like(self.scopes, tables).contracted(semiring)
            return found / semiring.temperature

        value, mean = jax.jvp(log_z, (list(net.tables),), (scores,))
        entropy = value - mean
        rounding = jax.lax.stop_gradient(jnp.minimum(entropy, 0))
        entropy = jnp.where(jnp.isfinite(score), entropy - rounding, jnp.nan)
        return entropy.astype(dtype)

    @asked
    def sample(
        self, key: jax.Array, shape: Sequence[int] = (), *, temperature: float = 1.0
    ) -> Labels:
        """Independent assignments, drawn with probabilities proportional to exp(score / T), exactly
        but for rounding.

        Args:
          key: of `jax.random`; equal keys give equal samples by one route.
          shape: of the samples.

        Returns:
          Labels: for each variable int32 of the shape; -1 inside a transform if all assignments
          are impossible.

        Raises:
          InvalidConfig: all assignments are impossible, a score is NaN or inf, or a shape or
            temperature is out of range.
          DTypeError: tables of integers.
          Unsupported: a symbolic size, in `jax.export`.

        Gradient: none.

        Cost: that of `log_partition`, and for each sample all candidates of one cell of each step.

        Example:
          >>> import jax
          >>> drawn = Network("a->", [0.0, 1.0]).sample(jax.random.key(0), (10_000,))
          >>> print(drawn["a"].mean().round(1))  # 1 / (1 + exp(-1)) = 0.731
          0.7
        """
        self.floating("sample")
        semiring = self._semiring(temperature)
        require_key("Network.sample", key)
        shape = require_shape("Network.sample, shape", shape)
        if math.prod(shape) * len(self.variables) >= 2**31:
            raise InvalidConfig(
                where="Network.sample, shape",
                given=str(shape),
                needed="fewer labels than int32 counts",
            )
        if not self.variables:
            require_finite("sample", self.log_partition(temperature=temperature))
        if 0 in shape or not self.variables:
            names = tuple(self.variables)
            return Labels(names, jnp.zeros((*shape, len(names)), jnp.int32))
        if form := chain_form(self, semiring.temperature):
            drawn = form.chain(temperature).sample(key, shape)
            if is_finite(drawn) and drawn.min() >= 0:
                states = np.asarray(drawn)[..., ::-1]  # from first to last
                return Labels(form.order, jax.device_put(states)).renamed(self._own_names())
        net, score = from_best(self, semiring.temperature)
        require_finite("sample", score)
        return self._named(samples(self.plan(), net.tables, key, shape, temperature))

    def _semiring(self, temperature: float) -> LogSumExp:
        """That of a temperature; refuses one beyond the floats of the computation."""
        semiring, dtype = LogSumExp(temperature), work_dtype(self.tables[0].dtype)
        if jnp.issubdtype(dtype, jnp.floating):
            work_of("temperature", semiring, [TensorMeta(dtype, ())])
        return semiring

    def _own_names(self) -> dict[Variable, Variable]:
        """The order of the variables, for the labels of a chain."""
        return {name: name for name in self.variables}

    def _named(self, labels: Labels) -> Labels:
        """The labels of letters, for each variable."""
        return labels.renamed({name: get_symbol(i) for i, name in enumerate(self.variables)})

    def _ranked(self, k: int) -> Assignment:
        """As `best(k)`, of integers too: their sums are exact in float64."""
        if jnp.issubdtype(self.tables[0].dtype, jnp.floating):
            return self.best(k)
        with jax.enable_x64(True):
            tables = [as_floats(np.asarray(x)) for x in self.tables]
            return self.like(self.scopes, tables).best(k)
