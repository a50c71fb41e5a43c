"""Questions to a plan in batches, where some inputs lack the labels of the batch. An output of an
active table has such a label, even where the table itself is constant along it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    LinearInput,
    apply,
    require_equal,
)
from tenferro_jax.shapes import Shaped

from ..arguments import are_numbers
from ..steps.layout import unused_label
from .plan_text import batched_text, without_label
from .question import AxesOfArrays, Question, kernels, run_at_once, run_in_program


class QuestionInLanes(Question):
    """A derivative, of which inputs may lack lanes: labels of batches, along which they are
    constant.

    A family has the field `given`: the labels of each input, where some lack lanes; else empty.
    Where it is not empty, its derivatives are those of the complete form.
    """

    given: Sequence[str] = ()

    @property
    def arrays(self) -> AxesOfArrays:
        complete = self.complete_arrays
        return complete._replace(inputs=self.given) if self.given else complete

    @property
    def complete_arrays(self) -> AxesOfArrays:
        """Those of arrays none of which lacks lanes."""
        return super().arrays

    @property
    def complete_form(self) -> QuestionInLanes:
        """The op whose inputs have all lanes."""
        return dataclasses.replace(self, given=())  # type: ignore[type-var]

    def completed(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs, of which some lack lanes, with all lanes."""
        sizes = self._sizes(inputs)
        wanted = self.complete_arrays.inputs
        return [
            _with_lanes(x, own, term, sizes)
            for x, own, term in zip(inputs, self.given, wanted, strict=True)
        ]

    def in_complete_form(self, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        """The complete form, applied to complete inputs."""
        return tuple(apply(self.complete_form, *self.completed(inputs)))

    def transposed_in_complete_form(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[jax.Array | None]:
        """The cotangents that the complete form gives, summed over the lanes that inputs lack."""
        metas = [x.meta if isinstance(x, LinearInput) else x for x in inputs]
        sizes, wanted = self._sizes(metas), self.complete_arrays.inputs
        complete: list[Any] = []
        for x, own, term in zip(inputs, self.given, wanted, strict=True):
            if isinstance(x, LinearInput):
                shape = tuple([sizes[label] for label in term])
                complete.append(LinearInput(TensorMeta(x.meta.dtype, shape)))
            else:
                complete.append(_with_lanes(x, own, term, sizes))
        bars = self.complete_form.transpose_rule(cotangents, complete)
        found = cast(Sequence[jax.Array | None], bars)
        return [
            None if bar is None else _without_lanes(bar, own, term)
            for bar, own, term in zip(found, self.given, wanted, strict=True)
        ]

    def _sizes(self, inputs: Sequence[Shaped]) -> dict[str, Any]:
        """Of each label."""
        sizes: dict[str, Any] = {}
        for x, term in zip(inputs, self.given, strict=True):
            for label, size in zip(term, x.shape, strict=True):
                require_equal(sizes.setdefault(label, size), size)
        return sizes

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        if not self.given:
            return super().infer_output_meta(inputs)
        sizes = self._sizes(inputs)
        complete = []
        for meta, term in zip(inputs, self.complete_arrays.inputs, strict=True):
            complete.append(TensorMeta(meta.dtype, tuple([sizes[label] for label in term])))
        return self.complete_form.infer_output_meta(complete)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            lane = self._symbolic_lane(inputs)
            return self._mapped(lane, inputs) if lane else super().lower_to_standard_ops(*inputs)
        if not self.given:
            return super().lower_to_standard_ops(*inputs)
        return self.complete_form.lower_to_standard_ops(*self.completed(inputs))

    def _symbolic_lane(self, inputs: Sequence[jax.Array]) -> str | None:
        """A label of a symbolic size, if such are labels of the output, and none has a diagonal."""
        symbolic, output = "", self.network.equation.output
        for term, x in zip(map("".join, self.arrays.inputs), inputs, strict=True):
            for label, size in zip(term, x.shape, strict=True):
                if isinstance(size, int):
                    continue
                if label not in output or term.count(label) > 1:
                    return None
                symbolic = label
        return symbolic

    def _mapped(self, lane: str, inputs: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """The op of an element, mapped along a lane; summed where a cotangent lacks it."""
        own, outputs = self.arrays.inputs, self.complete_arrays.outputs
        given = [term.replace(lane, "") for term in map("".join, own)]
        element = self._complete_or(without_label(self.network, lane), given, -1)
        in_axes = [term.index(lane) if lane in term else None for term in map("".join, own)]
        out_axes = [term.find(lane) for term in map("".join, outputs)]

        def run(*arrays: jax.Array) -> list[jax.Array]:
            return list(element.lower_to_standard_ops(*arrays) or ())

        found = jax.vmap(run, in_axes, [max(axis, 0) for axis in out_axes])(*inputs)
        return [jnp.sum(x, 0) if axis < 0 else x for x, axis in zip(found, out_axes, strict=True)]

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        """All active tables and the value have the new label; `given` tells inputs that lack it."""
        label, plan = unused_label(self.network.terms), self.network
        places: list[int | None] = list(in_axes[: len(plan.terms)])
        for i in self.about:
            places[i] = places[i] or 0
        given = []
        for term, axis in zip(map("".join, self.arrays.inputs), in_axes, strict=True):
            given.append(term if axis is None else term[:axis] + label + term[axis:])
        form = self._complete_or(batched_text(plan, places), given, max(self.lanes, 0) + 1)
        outputs = form.complete_arrays.outputs
        return form, tuple([list(axes).index(label) for axes in outputs])

    def _complete_or(self, plan: str, given: Sequence[str], lanes: int) -> QuestionInLanes:
        """The op of another plan, where some inputs may lack lanes."""
        form = self.of_plan(plan, lanes)
        if list(given) == list(map("".join, form.complete_arrays.inputs)):
            return form
        return dataclasses.replace(form, given=tuple(given))  # type: ignore[type-var]

    def of_plan(self, plan: str, lanes: int) -> QuestionInLanes:
        """The complete op of another plan, with so many lanes, or -1."""
        return dataclasses.replace(self, plan=plan, given=())  # type: ignore[type-var]


def _places(own: str, wanted: Sequence[str]) -> list[int | None]:
    """For each wanted label the axis of an array with labels `own`, or None; a diagonal has a label
    twice in both.
    """
    free = list(enumerate(own))
    found: list[int | None] = []
    for label in wanted:
        axis = next((i for i, known in free if known == label), None)
        free = [(i, known) for i, known in free if i != axis]
        found.append(axis)
    return found


def _with_lanes(x: Any, own: str, wanted: Sequence[str], sizes: Mapping[str, Any]) -> Any:
    """An array of JAX or NumPy with the labels `own` as one with all that are wanted, along which
    it is constant where it lacks them.
    """
    numpy = np if isinstance(x, np.ndarray) else jnp
    places = _places(own, wanted)
    ordered = numpy.transpose(x, [axis for axis in places if axis is not None])
    spread = numpy.expand_dims(ordered, [i for i, axis in enumerate(places) if axis is None])
    return numpy.broadcast_to(spread, tuple([sizes[label] for label in wanted]))


def _without_lanes(x: jax.Array, own: str, wanted: Sequence[str]) -> jax.Array:
    """The transpose of `_with_lanes`."""
    places = _places(own, wanted)
    summed = jnp.sum(x, tuple(i for i, axis in enumerate(places) if axis is None))
    kept = [axis for axis in places if axis is not None]
    return jnp.transpose(summed, sorted(range(len(kept)), key=kept.__getitem__))


def _in_program(op: QuestionInLanes, *inputs: jax.Array) -> tuple[jax.Array, ...]:
    if op.given:
        return run_in_program(op.complete_form, *op.completed(inputs))
    return run_in_program(op, *inputs)


def _at_once(op: QuestionInLanes, *inputs: np.ndarray) -> list[np.ndarray]:
    if op.given:
        return run_at_once(op.complete_form, *op.completed(inputs))
    return run_at_once(op, *inputs)


def kernels_in_lanes(family_id: str) -> ExtensionRuntimeSet:
    """The kernel of a family whose inputs may lack lanes."""
    return kernels(family_id, _in_program, _at_once)
