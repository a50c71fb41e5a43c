"""Control flow. Bodies are graphs; this module only requires that a body can be called on
arrays.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from ..jax_seam import MARK
from ..shapes import Shaped, with_zeros
from .fields import Body, Size
from .op import OfBody, StdTensorOp, op

Arrays = tuple[jax.Array, ...]


@op
class Scan(OfBody):
    """Run `body(*constants, *carry, *slices) -> (*carry, *results)` length times, on slices of the
    scanned inputs' first axes.

    The inputs are constant_count constants, carry_count initial carries, then the scanned arrays;
    the outputs are the last carries, then the results stacked along a new first axis.

    C1: the body's carries keep dtype and shape. C2: scanned arrays have first axes of the length.
    C3: length and unroll not negative.
    Gradient: forward and reverse, through the body.
    Example: Scan(graph(lambda k, x: k * x), 3, 1, 1).apply(2.0, 1.0) = [8.0]
    """

    body: Body
    length: Size
    constant_count: int = 0
    carry_count: int = 0
    reverse: bool = False
    unroll: int = 1

    def apply(self, *inputs: jax.Array) -> Arrays:
        end = self.constant_count + self.carry_count
        constants, carry, scanned = (
            inputs[: self.constant_count],
            inputs[self.constant_count : end],
            inputs[end:],
        )

        def step(carry: Arrays, slices: Arrays) -> tuple[Arrays, Arrays]:
            outs = tuple(self.body(*constants, *carry, *slices))
            return outs[: self.carry_count], outs[self.carry_count :]

        carry, stacked = lax.scan(
            step,
            tuple(carry),
            tuple(scanned),
            length=None if scanned else self.length,
            reverse=self.reverse,
            unroll=self.unroll,
        )
        return (*carry, *stacked)


@op
class While(OfBody):
    """While `condition(*condition_constants, *carry)`, carry = `body(*body_constants, *carry)`.

    C1: the body's carries keep dtype and shape. C2: the condition gives one boolean of shape ().
    Gradient: forward mode through the body; reverse mode is refused.
    Example: While(graph(lambda x: x < 100.0), graph(lambda x: x * 2.0)).apply(3.0) = [192.0]
    """

    condition: Body
    body: Body
    condition_constant_count: int = 0
    body_constant_count: int = 0

    def apply(self, *inputs: jax.Array) -> Arrays:
        split = self.condition_constant_count
        end = split + self.body_constant_count
        tested, used, carry = inputs[:split], inputs[split:end], inputs[end:]

        def goes_on(carry: Iterable[jax.Array]) -> jax.Array:
            return self.condition(*tested, *carry)[0]

        def step(carry: Iterable[jax.Array]) -> Arrays:
            return tuple(self.body(*used, *carry))

        return tuple(lax.while_loop(goes_on, step, tuple(carry)))


@op
class Cond(StdTensorOp):
    """Run one of several graphs on the operands. The first input chooses it: an int32 index,
    clamped into range, or a boolean.

    C1: an int32 index of shape (); or a boolean one for two branches, False for the first.
    C2: every branch has outputs of the same dtypes and shapes.
    Gradient: forward and reverse, through the branch that ran.
    Example: Cond((graph(lambda x: -x), graph(lambda x: x * 2.0))).apply(np.int32(1), 3.0) = [6.0]
    """

    input_count = None
    branches: tuple[Body, ...]

    @property
    def output_count(self) -> int:
        """One output for each output of a branch."""
        return len(self.branches[0].outputs)

    def apply(self, index: jax.Array, *operands: jax.Array) -> Arrays:
        branches = [lambda *xs, b=b: tuple(b(*xs)) for b in self.branches]
        if jax.dtypes.result_type(index) == np.dtype(bool):
            return tuple(lax.cond(index, branches[1], branches[0], *operands))
        return tuple(lax.switch(index, branches, *operands))


@op
class LinearSolve(StdTensorOp):
    """x with matvec(x) = b, computed by the graph `solve`; differentiated by the implicit function
    theorem, not through `solve`.

    `constant_counts` are the numbers of constants of matvec, solve and transpose_solve, which come
    first and in this order; b follows. A graph takes its constants, then the vector.

    C1: matvec, solve and transpose_solve keep dtypes and shapes of b. C2: matvec is linear.
    Gradient: forward; reverse if transpose_solve is given.
    Example: LinearSolve(graph(lambda x: 2.0 * x), graph(lambda b: b / 2.0), None, (0, 0,
    0)).apply(3.0) = [1.5]
    """

    input_count = None
    matvec: Body
    solve: Body
    transpose_solve: Body | None
    constant_counts: tuple[int, int, int]
    symmetric: bool = False

    @property
    def output_count(self) -> int:
        """One output for each array of b."""
        return len(self.matvec.outputs)

    def apply(self, *inputs: jax.Array) -> Arrays:
        first, second, _ = self.constant_counts
        of_matvec, of_solve = inputs[:first], inputs[first : first + second]
        end = sum(self.constant_counts)
        of_transpose, b = inputs[first + second : end], tuple(inputs[end:])
        transposed, transpose_solve = None, self.transpose_solve

        def matvec(x: Arrays) -> Arrays:
            return tuple(self.matvec(*of_matvec, *x))

        def solve(_: object, x: Arrays) -> Arrays:
            return tuple(self.solve(*of_solve, *x))

        if transpose_solve is not None:

            def transposed(_: object, x: Arrays) -> Arrays:
                return tuple(transpose_solve(*of_transpose, *x))

        return tuple(
            lax.custom_linear_solve(matvec, b, solve, transposed, symmetric=self.symmetric)
        )


class _Custom(OfBody):
    def _named_body(self) -> Any:
        """The body with its author's name, and a mark by which `known_custom` finds the
        op again.
        """
        s: Any = self
        mark = vars(s).get("_mark") or f"{s.name}{MARK}{next(_NUMBERS)}"
        object.__setattr__(s, "_mark", mark)
        _MARKED[mark] = s

        def body(*xs: jax.Array) -> Arrays:
            return tuple(s.body(*xs))

        body.__name__ = body.__qualname__ = mark
        return body


_NUMBERS = itertools.count()
_MARKED: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def known_custom(name: str, inputs: Sequence[Shaped], outputs: Sequence[Shaped]) -> Any:
    """The op whose call JAX recorded under this name, with inputs and outputs of these metas; None
    for other functions.

    Its rules need not be traced again. The name stays where JAX makes another function of the call:
    vmap, which adds an axis, and dead-code elimination, which drops outputs. Who replaces the body
    or the rules gives the function the name of its author, without the mark (`source_of`).
    """
    op = _MARKED.get(name)
    if op is None:
        return None
    body = op.body
    same = tuple(inputs) == body.input_metas and tuple(outputs) == body.output_metas
    return op if same else None


@op
class CustomJvp(_Custom):
    """`body(*xs)`, differentiated by a rule of its author:
    `jvp(*xs, *tangents) -> (*outputs, *output tangents)`.

    Tangents are of the inexact inputs and outputs only.

    C1: the first outputs of jvp are those of body.
    Gradient: forward and reverse, by the rule.
    Example: CustomJvp("half", graph(lambda x: x / 2.0), graph(lambda x, t: (x / 2.0, 7.0 *
    t))).apply(3.0) = [1.5]
    """

    name: str
    body: Body
    jvp: Body

    def apply(self, *inputs: jax.Array) -> Arrays:
        count = len(self.body.outputs)

        run = jax.custom_jvp(self._named_body())

        @run.defjvp
        def _rule(primals: Arrays, tangents: Arrays) -> tuple[Arrays, tuple[object, ...]]:
            results = self.jvp(
                *primals, *(t for x, t in zip(primals, tangents, strict=True) if _inexact(x))
            )
            return results[:count], tuple(with_zeros(results[count:], results[:count]))

        return run(*inputs)


@op
class CustomVjp(_Custom):
    """`body(*xs)`, differentiated in reverse by its author's
    `forward(*xs) -> (*outputs, *residuals)` and `backward`.

    The latter computes cotangents of the inexact inputs from residuals and the cotangents of the
    inexact outputs.

    C1: the first outputs of forward are those of body.
    Gradient: reverse mode by the rule; forward mode by the transpose of backward.
    Example: CustomVjp("half", graph(lambda x: x / 2.0), graph(lambda x: x / 2.0), graph(lambda c:
    7.0 * c)).apply(3.0) = [1.5]
    """

    name: str
    body: Body
    forward: Body
    backward: Body

    def apply(self, *inputs: jax.Array) -> Arrays:
        count = len(self.body.outputs)
        moving = [_inexact(x) for x in inputs]

        run = jax.custom_vjp(self._named_body())

        def forward(*xs: jax.Array) -> tuple[Arrays, Arrays]:
            results = self.forward(*xs)
            return results[:count], results[count:]

        def backward(residuals: Arrays, cotangents: Arrays) -> tuple[object, ...]:
            back = iter(
                self.backward(*residuals, *(c for c in cotangents if c.dtype != jax.dtypes.float0))
            )
            return tuple(next(back) if m else None for m in moving)

        run.defvjp(forward, backward)
        return run(*inputs)


def _inexact(x: jax.Array) -> bool:
    return bool(jax.dtypes.issubdtype(jax.dtypes.result_type(x), np.inexact))
