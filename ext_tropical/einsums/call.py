"""tropical_einsum, tropical_einsum_with_argmax and best_assignment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax.errors import InvalidConfig, Unsupported, shortened, typed_call
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.plans.plan import hashable
from tenferro_jax.shapes import as_array, is_plain

from ..arguments import one_dtype
from ..networks.value import is_network, solved_as_network
from ..semirings.registered import as_selective, as_semiring
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import max_plus
from ..steps.einsum_op import Ties
from ..steps.evaluate import (
    Assignment,
    Mode,
    TropicalResult,
    TropicalStep,
    Winners,
    contract,
    evaluate,
    found_of,
)
from ..steps.layout import is_step, matmul_layout
from .devices import Spread, spec_of, spread_over
from .planning import Operand, Optimize, P, T, cached_plan, names_itself, read
from .slice_lengths import byte_count
from .slices import TropicalPlan, whole


def compiled_if_one_step(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of an equation and its operands that runs as one jitted function where the
    equation is one step and the operands are JAX arrays outside all transforms.

    JAX's own cache then finds what was traced for their shapes and dtypes, with all checks.
    """

    @functools.lru_cache(maxsize=1024, typed=True)
    def program(equation: Any, **how: Any) -> Callable[..., T] | None:
        if not is_step(equation) or any(how.get(x) is not None for x in ("memory_limit", "over")):
            return None
        return jax.jit(functools.update_wrapper(functools.partial(fn, equation, **how), fn))

    @functools.wraps(fn)
    def call(*args: P.args, **how: P.kwargs) -> T:
        if len(args) > 1 and all(map(is_plain, args[1:])):
            try:
                if "semiring" in how:  # a name may mean another class than before
                    how["semiring"] = as_semiring(how["semiring"])
                compiled = program(args[0], **how)  # type: ignore[arg-type]
            except (TypeError, InvalidConfig):  # what cannot be hashed or read: `fn` says so
                compiled = None
            if compiled is not None:
                return compiled(*args[1:])
        return fn(*args, **how)

    return call


@names_itself
@compiled_if_one_step
@typed_call
def tropical_einsum(
    equation: str | Operand,
    *operands: Operand,
    semiring: Semiring | str = max_plus,
    ties: str = "first",
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    over: str | tuple[str, ...] | None = None,
) -> jax.Array:
    """Tensor contraction in a semiring: out[o] = plus, over all labels that the output lacks, of
    times of the entries.

    Under max_plus the maximum of sums, under min_plus the minimum of sums, under max_mul the
    maximum of products of entries that are not negative, under min_max the least of largest
    entries, under or_and whether a path exists, under log_sum_exp the soft maximum of sums.

    Args:
      equation: every equation of np.einsum: "ij,jk->ik", "ii->i", "ij,k->k", "i,j",
        "...ij,...jk->...ik"; without "->" the
        labels that appear once, in alphabetical order. Labels are letters of any alphabet. Or
        the interleaved form, in which labels are integers, for instance: tropical_einsum(x, [0, 1],
        y, [1, 2], [0, 2]). A size of 1 broadcasts: an operand that has it for a label that is
        longer elsewhere is treated as if it lacked the label.
      *operands: any number of arrays of one dtype: float64, float32, bfloat16, float16, int32,
        int64, bool, as far as the semiring takes it. 16-bit floats are added and compared in
        float32, and rounded after each step. NumPy and Python data are converted as in
        `jax.numpy`.
      semiring: a semiring or its name; `log_sum_exp` without arguments has temperature 1. Your own
        may select or sum: `SelectiveSemiring`, `Semiring`.
      ties: how the derivative is shared if several candidates of a step are best: "first" (all of
        it to the first) or "split" (equal shares).
      optimize: the order of contractions: an algorithm of opt_einsum ("auto", "optimal", "dp",
        "greedy", ...), or an explicit path; `plan_tropical_einsum` prints it. True means "auto",
        False the order as written.
      memory_limit: the most bytes that may be allocated beside the operands; the einsum then runs
        in slices, one after another, with an exact result. Under vmap it is for each element. A
        derivative also allocates the arrays that it scatters into.
      over: the name of a mesh axis, or a tuple of names, whose devices share the slices: at least
        as many slices as devices, each device within memory_limit, with whole operands and the
        whole result, and one merge at the end. The mesh is that of `jax.set_mesh`, or of the first
        operand with a NamedSharding. Values and winners are equal to those on one device. Sums are
        added device by device, so that their last bits may differ.

    Returns:
      An array with the output's labels, in the operands' dtype. NaN if a candidate of a step is
      NaN; the semiring's zero if a contraction is empty.

    Raises:
      InvalidConfig: the equation cannot be read; or an unknown semiring, algorithm or mesh axis, a
        path that does not fit, or a memory limit that no slices reach.
      InvalidConfig, ShapeError, DTypeError: the operands do not fit, or more than 2**31 - 1 entries
        are contracted in one step.
      ShapeError: a label has two symbolic sizes that may differ.
      ADRuleError: a derivative of your own semiring whose plus does not select.
      Unsupported: an optional package is not installed, a memory limit with symbolic sizes,
        ties="split" in slices, `over` inside a shard_map.

    Gradient: follows the winner, the first of equal candidates (in each step the smallest row-major
    index over the contracted labels in their order of first appearance); any order, forward and
    reverse. Integers and bools have none, and neither have sums in your own semiring. For
    log_sum_exp it gives the marginals.

    Cost: of each step time b m n k, twice that when differentiated, and memory 12 b (m n + k (m +
    n)) bytes (twice that for 64 bits, a third more for 16 bits, 40 instead of 12 for log_sum_exp)
    and 64 KiB beside operands and results, never b m n k. The plan says how many steps there are,
    and how large.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from ext_tropical import tropical_einsum
      >>> a = jnp.array([[0.0, 1.0], [2.0, 0.0]])
      >>> print(tropical_einsum("ij,jk,kl->il", a, a, a))
      [[3. 4.]
       [5. 3.]]
      >>> print(jax.grad(lambda a: tropical_einsum("ij,jk->", a, a))(a))
      [[0. 1.]
       [1. 0.]]
    """
    return _answer(
        equation, operands, as_semiring(semiring), ties, None, optimize, memory_limit, over
    )[0]


@names_itself
@compiled_if_one_step
@typed_call
def tropical_einsum_with_argmax(
    equation: str | Operand,
    *operands: Operand,
    semiring: Semiring | str = max_plus,
    ties: str = "first",
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    over: str | tuple[str, ...] | None = None,
) -> TropicalResult:
    """`tropical_einsum` with the winners of every step.

    Args, Raises, Gradient, Cost: as `tropical_einsum`; the winners have no gradient. The semiring
    must be selective.

    Returns:
      A TropicalResult: value, and for each contraction step the int32 winners. In slices: one step
        for each contracted label.

    Example:
      >>> import jax.numpy as jnp
      >>> from ext_tropical import min_plus, tropical_einsum_with_argmax
      >>> w = jnp.array([[0.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
      >>> result = tropical_einsum_with_argmax("ij,jk->ik", w, w, semiring=min_plus)
      >>> float(result.value[0, 1]), int(result.coordinates()["j"][0, 1])
      (3.0, 2)
    """
    selective = as_selective(semiring, "tropical_einsum_with_argmax")
    found = _answer(
        equation, operands, selective, ties, Winners.STEPS, optimize, memory_limit, over
    )
    return TropicalResult(*found, selective)


@names_itself
@compiled_if_one_step
@typed_call
def best_assignment(
    equation: str | Operand,
    *operands: Operand,
    semiring: Semiring | str = max_plus,
    ties: str = "first",
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    over: str | tuple[str, ...] | None = None,
) -> Assignment:
    """The best value, and for every output entry one assignment of the contracted labels that
    attains it.

    Args, Raises, Gradient, Cost: as `tropical_einsum_with_argmax`, and one gather of the output's
    size for each step.

    Returns:
      An Assignment (value, labels, feasible). `labels` maps each contracted label (in the
      interleaved form as it was written) to an int32 array of the value's shape. `feasible` is
      False where the value is the semiring's zero: no assignment counts.

    Example:
      >>> import jax.numpy as jnp
      >>> from ext_tropical import best_assignment
      >>> a, b = jnp.array([[0.0, 5.0], [1.0, 2.0]]), jnp.array([[4.0, 0.0], [1.0, 1.0]])
      >>> best = best_assignment("ij,jk->", a, b)
      >>> float(best.value), {label: int(i) for label,
      ...     i in best.labels.items()}, bool(best.feasible)
      (6.0, {'i': 0, 'j': 1, 'k': 0}, True)
    """
    selective = as_selective(semiring, "best_assignment")
    value, labels, _ = _answer(
        equation, operands, selective, ties, Winners.LABELS, optimize, memory_limit, over
    )
    return Assignment(value, labels, value != jnp.asarray(selective.zero(value.dtype)))


def _answer(
    equation: str | Operand,
    operands: Sequence[Operand],
    semiring: Semiring,
    ties: str,
    winners: Winners | None,
    optimize: Optimize,
    memory_limit: int | None,
    over: str | tuple[str, ...] | None,
) -> tuple[jax.Array, Any, str]:
    """Of checked arguments the value, the winners that are wanted, and the labels of the value."""
    equation, operands, written = read("tropical_einsum", equation, operands)
    where = f"tropical_einsum {shortened(equation)!r}"
    if ties not in ("first", "split", *Ties):
        raise InvalidConfig(
            where=f"{where}, ties",
            given=repr(ties),
            needed="'first' or 'split'",
        )
    if Ties(ties) is Ties.SPLIT and not isinstance(semiring, SelectiveSemiring):
        raise InvalidConfig(
            where=f"{where}, ties",
            given=f"'split' under {semiring!r}",
            needed="a selective semiring, because others have no ties",
            fix="Leave ties out.",
        )
    for i, x in enumerate(operands):
        if isinstance(x, Semiring):
            raise InvalidConfig(
                where=f"{where}, operand {i}",
                given=repr(x),
                needed="an array",
                fix=f"Write semiring={x!r}.",
            )
    arrays = [as_array(x, f"{where}, operand {i}") for i, x in enumerate(operands)]
    if arrays:  # if there are none, the plan gives the number that it needs
        one_dtype(where, semiring, [x.dtype for x in arrays], operands)
    mode, memory_limit = Mode(semiring, Ties(ties), winners), byte_count(where, memory_limit)
    spread = spread_over(where, over, arrays)
    value, found, output = _solve(equation, arrays, mode, hashable(optimize), memory_limit, spread)
    if winners is Winners.LABELS:
        found = dict(sorted((written.get(label, label), index) for label, index in found.items()))
    return value, found, output


def _solve(
    equation: str,
    operands: Sequence[Any],
    mode: Mode,
    optimize: Optimize,
    memory_limit: int | None,
    spread: Spread | None,
) -> tuple[jax.Array, Any, str]:
    """(value, the winners that the mode asks for, labels of the value)."""
    shapes = tuple(tuple(x.shape) for x in operands)
    if (
        memory_limit is None
        and spread is None
        and optimize == "auto"
        and is_step(equation)
        and not any(1 in shape for shape in shapes)  # such a label may be longer elsewhere
    ):
        layout = matmul_layout(equation).equation
        if len(layout.inputs) != len(operands):
            layout.sizes(shapes, "tropical_einsum")
        value, steps = contract(operands, layout.inputs, layout.output, mode)
        return value, found_of(mode, value, steps, layout.output), layout.output
    dtype = operands[0].dtype if operands else jnp.dtype("float32")
    devices = spread.devices if spread else 1
    plan = cached_plan(
        equation, shapes, dtype, optimize, memory_limit, mode.semiring, devices, devices
    )
    if plan.slices == 1:
        # A network of concrete arrays runs at once, without a program to compile.
        if is_network(plan.plan, operands, mode):
            return (*solved_as_network(plan.plan, operands, mode), plan.output)
        return (*_program(plan, mode)(*operands), plan.output)
    if mode.ties is Ties.SPLIT:
        raise Unsupported(
            where="tropical_einsum",
            given="ties='split' in slices",
            needed="all slices at once, because the winners are counted",
            fix="Leave out memory_limit and over, or ties.",
        )
    value, at = _program(plan, mode, spread)(*operands)
    if mode.winners is not Winners.STEPS:
        return value, at, plan.output
    sizes = dict(plan.whole)
    found = (TropicalStep(c, (sizes[c],), plan.output, index) for c, index in at.items())
    return value, tuple(found), plan.output


@functools.lru_cache(maxsize=1024)
def _program(plan: TropicalPlan, mode: Mode, spread: Spread | None = None) -> Any:
    """The einsum as a function of arrays, compiled once for each dtype."""

    def run(*operands: jax.Array) -> Any:
        if plan.slices == 1:
            return evaluate(plan.plan, operands, mode)
        return whole(plan, mode, spread, operands)

    run.__name__ = run.__qualname__ = "tropical_einsum"
    if spread is None:
        run = on_automatic_axes(run, functools.partial(spec_of, plan.plan))
    return (
        jax.jit(run) if plan.memory is not None else run
    )  # symbolic sizes are traced in the caller's scope
