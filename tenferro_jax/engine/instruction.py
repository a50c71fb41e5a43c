"""The instructions of a compiled program, and the two kinds of step that run them: XLA segments and
host calls.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import TenferroError
from ..extension.carrier import Extension
from ..extension.execution import read_only, run_host
from ..extension.primitive import apply
from ..graph.printing import op_name
from ..ops.op import StdTensorOp, call
from ..shapes import TensorMeta, struct


class Instruction(NamedTuple):
    """One op of a program.

    Attributes:
      op: a standard op or the carrier of an extension.
      inputs: slots read.
      outputs: slots written.
      metas: dtype and shape of each output.
      last_use: for each input, whether no later instruction reads this slot and it is not an
        output.
    """

    op: StdTensorOp
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    metas: tuple[TensorMeta, ...]
    last_use: tuple[bool, ...]


class Segment:
    """A run of instructions that XLA compiles as one function of the slots it reads.

    Attributes:
      instructions: in order.
      inputs: slots read from outside.
      outputs: slots that later steps or the caller need.
      compiled: the ahead-of-time compiled function.
    """

    compiled: Any

    def __init__(
        self,
        name: str,
        instructions: Sequence[Instruction],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ):
        self.instructions, self.inputs, self.outputs = (
            tuple(instructions),
            tuple(inputs),
            tuple(outputs),
        )
        self._jitted = jax.jit(_traced(name, self.instructions, self.inputs, self.outputs))
        self._call: Callable[..., Any] = self._jitted

    def lower(self, metas: Sequence[TensorMeta]) -> jax.stages.Lowered:
        """Lowered for inputs of these metas."""
        return self._jitted.lower(*map(struct, metas))

    def finish(self, lowered: jax.stages.Lowered) -> None:
        """Compile; from now on calls run the result."""
        self.compiled = self._call = lowered.compile()

    def __call__(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """The output slots' values."""
        try:
            return self._call(*arrays)
        except TenferroError:
            raise
        except ValueError:
            if self._call is self._jitted:
                raise
        # The arrays are on another device or mesh than the executable was compiled for: jit
        # compiles for that one.
        self._call = self._jitted
        return self._call(*arrays)

    def kinds(self) -> str:
        """The number of instructions of each kind, most frequent first."""
        count = collections.Counter(op_name(i.op) for i in self.instructions)
        return (
            ", ".join(
                f"{n} {kind}"
                for kind, n in sorted(count.items(), key=lambda pair: (-pair[1], pair[0]))
            )
            or "nothing but copies"
        )


def _traced(
    name: str,
    instructions: Sequence[Instruction],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Callable[..., list[jax.Array]]:
    """The segment as a function of arrays that JAX can trace."""

    def run(*arrays: jax.Array) -> list[jax.Array]:
        slots = dict(zip(inputs, arrays, strict=True))
        for op, read, written, _, _ in instructions:
            values = [slots[i] for i in read]
            slots.update(
                zip(
                    written,
                    apply(op, *values) if isinstance(op, Extension) else call(op, values),
                    strict=True,
                )
            )
        return [slots[i] for i in outputs]

    run.__name__ = run.__qualname__ = name
    return run


class HostStep:
    """One instruction that runs on the host: a host-only extension, or a standard op that checks
    its inputs there.
    """

    def __init__(self, instruction: Instruction):
        self.instructions = (instruction,)
        self.inputs, self.outputs = instruction.inputs, instruction.outputs

    def __call__(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """The output slots' values, as jax arrays.

        Raises:
          BackendFailure: the author's code or the check failed; an author's exception is the cause.
          InvalidConfig: other outputs than inferred.
        """
        op: Any = self.instructions[0].op
        if isinstance(op, Extension):
            return run_host(op, arrays)
        op.check_on_host(*(read_only(a) for a in arrays))
        return [jnp.asarray(a) for a in arrays]

    def kinds(self) -> str:
        """The op."""
        return op_name(self.instructions[0].op)
