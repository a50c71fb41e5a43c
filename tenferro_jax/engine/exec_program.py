"""Compiled programs: their instructions, and the steps that run them, which are XLA segments and
host calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, starmap
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import tree_unflatten

from ..dimensions import SymDim
from ..errors import counted
from ..extension.carrier import Extension
from ..extension.execution import read_only, run_host
from ..extension.primitive import apply
from ..extension.routes import Route
from ..graph.graph import Graph
from ..ops.op import StdTensorOp, call
from ..shapes import Arrays, PyTree, TensorMeta, as_operand, struct, x64_enabled


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

    def __init__(
        self,
        name: str,
        instructions: Sequence[Instruction],
        inputs: Sequence[int],
        outputs: Sequence[int],
        metas: Sequence[TensorMeta],
    ):
        """Compiled for slots of these metas."""
        self.instructions = tuple(instructions)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._jitted = jax.jit(_traced(name, self.instructions, self.inputs, self.outputs))
        self.compiled = self._jitted.lower(*(struct(metas[i]) for i in self.inputs)).compile()
        self._call: Callable[..., Any] = self.compiled

    def __call__(self, *arrays: jax.Array) -> Arrays:
        """The output slots' values."""
        try:
            return self._call(*arrays)
        except ValueError:
            if self._call is self._jitted:
                raise
        # The arrays are on another device or mesh than the executable was compiled for: jit
        # compiles for that one.
        self._call = self._jitted
        return self._call(*arrays)


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
            outs = apply(op, *values) if isinstance(op, Extension) else call(op, values)
            slots.update(zip(written, outs, strict=True))
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

    def __call__(self, *arrays: jax.Array) -> Arrays:
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


Step: TypeAlias = Segment | HostStep


class ExecProgram:
    """A compiled graph of concrete shapes: flat instructions in steps, each an XLA segment or a
    host call.

    A graph without host-only ops is one segment. Intermediate values are freed as soon as no step
    needs them. Under a JAX transform (an argument is a tracer) the graph runs instead, so that
    programs can be differentiated and mapped.

    Attributes:
      graph: the compiled graph.
      steps: segments and host steps in order.
      instructions: all instructions in order; inputs are slots 0, 1, ...
      slots: TensorMeta of every slot.
      routes: the route of each extension on one device, control-flow bodies included. If the
        arguments are spread over devices, XLA partitions the program, and the lowering replaces a
        kernel.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> from tenferro_jax import compile_std_to_exec
      >>> program = compile_std_to_exec(trace(lambda x: jnp.tanh(x) @ x, jax.ShapeDtypeStruct((2,
      ...     2), jnp.float32)))
      >>> program(jnp.eye(2))[0, 0].item() == jnp.tanh(1).item()
      True
      >>> program
      ExecProgram(2 instructions, 1 segment): (float32[2,2]) -> (float32[2,2])
    """

    def __init__(self, graph: Graph, steps: Sequence[Step], routes: Sequence[Route]):
        self.graph, self.slots = graph, graph.metas
        self.steps, self.routes = tuple(steps), tuple(routes)
        self._dying = list(map(_dying, self.steps))
        self._x64, self._inputs = x64_enabled(), graph.input_metas
        self._alone = self.segments[0] if len(self.steps) == 1 and self.segments else None

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions in order."""
        return tuple(i for step in self.steps for i in step.instructions)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The steps that are compiled by XLA."""
        return tuple(s for s in self.steps if isinstance(s, Segment))

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
        """Run on arguments of exactly the compiled shapes and dtypes, nested as traced.

        Raises:
          InvalidConfig, ShapeError, DTypeError: the arguments do not fit; nothing was run or
            uploaded.
          BackendFailure: a host step failed.
        """
        arrays, metas, traced = operands(self.graph.leaves(args, kwargs, "ExecProgram"))
        if metas != self._inputs:
            self.graph.bound_metas(list(starmap(TensorMeta, metas)))  # refuses them
        if traced:
            return tree_unflatten(self.graph.out_tree, self.graph(*arrays))
        if self._x64 and not x64_enabled():
            self.graph.require_x64_values()
        return self.run(arrays)

    def run(self, arrays: Arrays) -> Any:
        """Run on flat arrays that are known to fit."""
        if self._alone is not None:
            return tree_unflatten(self.graph.out_tree, self._alone(*arrays))
        slots: dict[int, Any] = dict(enumerate(arrays))
        for step, dying in zip(self.steps, self._dying, strict=True):
            outs = step(*(slots[i] for i in step.inputs))
            for i in dying:
                del slots[i]
            slots.update(zip(step.outputs, outs, strict=True))
        return tree_unflatten(self.graph.out_tree, [slots[i] for i in self.graph.outputs])

    def __repr__(self) -> str:
        hosts = len(self.steps) - len(self.segments)
        parts = [
            counted(len(self.instructions), "instruction"),
            counted(len(self.segments), "segment"),
        ]
        if hosts:
            parts.append(counted(hosts, "host step"))
        ins, outs = (
            ", ".join(map(str, metas))
            for metas in (self.graph.input_metas, self.graph.output_metas)
        )
        return f"ExecProgram({', '.join(parts)}): ({ins}) -> ({outs})"


Metas: TypeAlias = tuple[tuple[Any, tuple[SymDim, ...]], ...]
_TAKEN: dict[tuple[object, ...], Metas] = {}
"""Arguments that need no conversion: type, dtype and shape of all leaves and the width of types ->
dtype and shape of each.
"""


def operands(leaves: list[object]) -> tuple[list[Any], Metas, bool]:
    """The leaves as arrays that JAX takes; dtype and shape of each; whether a JAX transform traces
    one of them.
    """
    kinds = [(type(x), getattr(x, "dtype", None), getattr(x, "shape", None)) for x in leaves]
    call = x64_enabled(), *kinds
    known = _TAKEN.get(call)
    if known is not None:
        return leaves, known, False
    arrays = [as_operand(leaf, f"program input {i}") for i, leaf in enumerate(leaves)]
    metas = tuple([(array.dtype, array.shape) for array in arrays])
    traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
    if not traced and all(array is leaf for array, leaf in zip(arrays, leaves, strict=True)):
        if len(_TAKEN) >= 1024:
            _TAKEN.clear()
        _TAKEN[call] = metas
    return arrays, metas, traced


def _dying(step: Step) -> list[int]:
    """The slots that a step reads and no later one needs, in the order of the step's inputs."""
    last_read: set[int] = set()
    for instruction in step.instructions:
        last_read.update(compress(instruction.inputs, instruction.last_use))
    return [slot for slot in dict.fromkeys(step.inputs) if slot in last_read]
