"""tropical_einsum, tropical_einsum_with_argmax and best_assignment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax.errors import InvalidConfig, typed_call
from tenferro_jax.shapes import is_plain

from ..semirings.registered import as_selective, as_semiring
from ..semirings.semiring import Semiring
from ..semirings.shipped import max_plus
from ..steps.evaluate import (
    Assignment,
    TropicalResult,
    Winners,
)
from ..steps.layout import is_step
from .planning import Operand, Optimize, P, T, names_itself
from .ways import checked_call


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
    entries, under or_and whether a path exists, under log_sum_exp the soft maximum of sums, under
    sum_product the sum of products of floats, as jnp.einsum: a plan of few large steps is that of
    XLA; one of more than 16 steps, or of small ones, is one call on CPU, for which nothing is
    compiled, and no step of it overflows if the result does not (`Network.sum_product`).

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
    call = checked_call(
        equation,
        operands,
        as_semiring(semiring),
        winners=None,
        ties=ties,
        optimize=optimize,
        memory_limit=memory_limit,
        over=over,
    )
    return call.answer().value


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
    call = checked_call(
        equation,
        operands,
        selective,
        winners=Winners.STEPS,
        ties=ties,
        optimize=optimize,
        memory_limit=memory_limit,
        over=over,
    )
    found = call.answer()
    return TropicalResult(found.value, found.steps, found.output, selective)


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
      An Assignment (value, labels, feasible). `labels`, a `Labels`, maps each contracted label (in
      the interleaved form as it was written) to an int32 array of the value's shape. `feasible` is
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
    call = checked_call(
        equation,
        operands,
        selective,
        winners=Winners.LABELS,
        ties=ties,
        optimize=optimize,
        memory_limit=memory_limit,
        over=over,
    )
    found = call.answer()
    is_feasible = found.value != jnp.asarray(selective.zero(found.value.dtype))
    labels = found.labels
    if call.written:
        labels = labels.renamed(dict(sorted((call.written[x], x) for x in labels)))
    return Assignment(found.value, labels, is_feasible)
