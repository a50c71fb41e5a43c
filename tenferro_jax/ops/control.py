"""Control flow. Bodies are graphs; this floor only asks that a body can be called on arrays."""

from __future__ import annotations

from typing import Any

from jax import lax

from .op import StdTensorOp, op


class _Carrying(StdTensorOp):
    input_count = None

    @property
    def output_count(self) -> int:
        """One output for each output of the body."""
        return len(self.body.outputs)  # type: ignore[attr-defined]


@op
class CountedLoop(_Carrying):
    """Run `body(*constants, *carry) -> carry` trip_count times; the first `constant_count` inputs are the constants."""

    body: Any
    trip_count: Any
    constant_count: int = 0

    def apply(self, *inputs: Any) -> tuple[Any, ...]:
        constants, carry = inputs[: self.constant_count], inputs[self.constant_count :]

        def step(carry: Any, _: Any) -> tuple[Any, None]:
            return tuple(self.body(*constants, *carry)), None

        if isinstance(self.trip_count, int):  # a scan counts by itself: nothing is added that was not in the graph
            return lax.scan(step, tuple(carry), None, length=self.trip_count)[0]
        return lax.fori_loop(0, self.trip_count, lambda _, carry: step(carry, None)[0], tuple(carry))


@op
class While(_Carrying):
    """While `condition(*condition_constants, *carry)`, carry = `body(*body_constants, *carry)`. Forward mode only."""

    condition: Any
    body: Any
    condition_constant_count: int = 0
    body_constant_count: int = 0

    def apply(self, *inputs: Any) -> tuple[Any, ...]:
        split = self.condition_constant_count
        end = split + self.body_constant_count
        tested, used, carry = inputs[:split], inputs[split:end], inputs[end:]
        return tuple(lax.while_loop(lambda c: self.condition(*tested, *c)[0], lambda c: tuple(self.body(*used, *c)), tuple(carry)))


@op
class Cond(StdTensorOp):
    """Run one of several graphs on the operands, chosen by an int32 index (the first input), clamped into range."""

    input_count = None
    branches: tuple[Any, ...]

    @property
    def output_count(self) -> int:
        """One output for each output of a branch."""
        return len(self.branches[0].outputs)

    def apply(self, index: Any, *operands: Any) -> tuple[Any, ...]:
        return tuple(lax.switch(index, [lambda *xs, b=b: tuple(b(*xs)) for b in self.branches], *operands))
