"""A plan as users hold it: printed, written, and run slice by slice in any order and place."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from tenferro_jax.einsum.interpreter import without_repeated_axes
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported, shortened
from tenferro_jax.shapes import as_array

from ..algebra import methods
from ..algebra.semiring import SelectiveSemiring, Semiring, SemiringKey
from ..algebra.shipped import max_plus
from .eager import names_itself
from .kept_parts import SlicePart, path_of, read_by, read_part, write_part
from .plan_text import planned, steps_of
from .slice_loop import beginning, finished, merged, piece
from .steps import Assignment, Mode, Winners
from .tropical_plan import Operand, Optimize, TropicalSlices, cut, plan_of

VERSION = 1
"""Of the text of a plan."""


FIELDS = {
    "version": int,
    "equation": str,
    "steps": str,
    "labels": str,
    "sizes": list,
    "lengths": list,
    "dtype": str,
    "semiring": str,
    "parameters": list,
}
"""What the text of a plan holds: sizes and lengths are those of the labels, in their order."""


@dataclasses.dataclass(frozen=True, repr=False)
class TropicalPlan(TropicalSlices):
    """The steps of an einsum, run for one slice after another; or slice by slice, in any order, by
    `run` and `merge`.

    Attributes:
      plan: the steps of one slice; its sizes are those of a slice.
      whole: (label, size) of every label.
      memory: what the steps allocate; None with symbolic sizes.
      dtype: of the operands.
      semiring: the algebra.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import plan_tropical_einsum, tropical_einsum
      >>> from ext_tropical.network.pieces import load_plan
      >>> a = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
      >>> plan = plan_tropical_einsum("ij,jk,ki->", a, a, a, memory_limit=1_000_000)
      >>> sent = plan.to_bytes()
      >>> parts = [load_plan(sent).run(i, a, a, a) for i in reversed(range(plan.slices))]
      >>> found = plan.merge(parts)
      >>> plan.slices, bool(found.value == tropical_einsum("ij,jk,ki->", a, a, a))
      (16, True)
    """

    def run(
        self,
        number: int,
        *operands: ArrayLike,
        labels: bool = False,
        keep: str | os.PathLike[str] | None = None,
    ) -> SlicePart:
        """The result of one slice, which depends on nothing but the arguments.

        Args:
          number: of the slice, from 0 to `slices` - 1.
          *operands: concrete arrays with the shapes and the dtype of the plan, whole.
          labels: whether to find the contracted labels of a best assignment too.
          keep: a folder for finished slices, which several workers may share. A slice that is there
            is read instead of run, if it is of this plan and of the same entries: its file has
            their digest in its name. A damaged file is written anew. If the disk is full, the part
            is returned with a RuntimeWarning.

        Raises:
          InvalidConfig: no such slice; labels under a semiring that does not select; or a folder
            that cannot be made.
          ShapeError, DTypeError: other operands than those of the plan.
          Unsupported: operands inside a transform, or a plan with symbolic sizes.

        Cost: one slice, and some 0.6 ms to start it; a compilation for each plan in a process.
        """
        mode = self._mode(labels)
        self._require_number(number, "run")
        with jax.ensure_compile_time_eval():  # also where JAX traces something else
            arrays = self._arrays(operands)
            path = None
            if keep is not None:
                how = (self.to_bytes(), str(labels).encode())
                path = path_of(keep, number, how, read_by(self, number, arrays))
                kept = read_part(path, number, self.dtype)
                with contextlib.suppress(InvalidConfig):  # damaged
                    if kept is not None:
                        self._require_part(kept, mode)
                        return kept
            value, found = _piece(self._sliced, mode)(arrays, jnp.int32(number))
        at = {label: np.asarray(index) for label, index in found.items()} if labels else {}
        part = SlicePart(int(number), np.asarray(value), at)
        if path is not None:
            write_part(path, part)
        return part

    def merge(self, parts: Iterable[SlicePart]) -> Assignment:
        """The result of all slices, which are taken in the order of their numbers, whatever the
        order in which they come: equal parts give equal bits.

        Args:
          parts: each slice once, as an iterable; those that come before their turn are held.

        Returns:
          An Assignment: value, labels (none if the parts have none) and feasible.

        Raises:
          InvalidConfig: a slice is missing or there twice, or a part has another dtype or shape
            than the plan says, or is no part; the text gives its number.
        """
        if not isinstance(parts, Iterable):
            raise self._wrong("merge", f"{parts!r:.100}", "an iterable of SliceParts")
        waiting: dict[int, SlicePart] = {}
        mode, found, turn = self._mode(False), None, 0
        for part in parts:
            if not isinstance(part, SlicePart) or not isinstance(part.labels, Mapping):
                raise self._wrong("merge", f"{part!r:.100}", "a SlicePart, as run returns it")
            self._require_number(part.number, "merge")
            if part.number in waiting or part.number < turn:
                raise self._wrong("merge", f"slice {part.number} twice", "each slice once")
            if found is None:
                mode = self._mode(bool(part.labels))
                found = beginning(self, mode, self.dtype)
            self._require_part(part, mode)
            waiting[part.number] = part
            while turn in waiting:
                ready = waiting.pop(turn)
                step = _merging(self._sliced, mode)
                found = step(jnp.int32(turn), (ready.value, dict(ready.labels)), found)
                turn += 1
        if turn < self.slices or found is None:
            held = [*range(turn), *waiting]
            gone = sorted(set(range(min(self.slices, turn + len(waiting) + 5))) - set(held))[:5]
            raise self._wrong(
                "merge",
                f"{len(held)} of {self.slices} slices: {', '.join(map(str, gone))} missing",
                "all slices",
            )
        value, labels = finished(mode, found, self.dtype)
        names = self.plan.equation.integers
        at: Any = {names.get(label, label): index for label, index in labels.items()}
        zero = methods.filled(self.semiring.zero(self.dtype), value.shape)
        counts = value != zero
        return Assignment(value, at, counts.any(0) if self.semiring.components else counts)

    def to_bytes(self) -> bytes:
        """The plan as UTF-8 text for `load_plan`, in this or another process: JSON, no pickle.

        Raises:
          Unsupported: symbolic sizes, size 0, or a plan that contracts nothing.
        """
        missing = "" if self.plan.steps else "no step"
        if self.memory is None or 0 in dict(self.whole).values():
            missing = "symbolic sizes" if self.memory is None else "size 0"
        if missing:
            raise Unsupported(
                where=self._where("to_bytes"),
                given=missing,
                needed="steps with concrete sizes of at least 1",
            )
        sizes, lengths = dict(self.whole), dict(self.plan.sizes)
        key = SemiringKey.of(self.semiring)
        held = {
            "version": VERSION,
            "equation": self.plan.equation.text,
            "steps": steps_of(self.plan).text,
            "labels": "".join(sizes),
            "sizes": [*sizes.values()],
            "lengths": [lengths[label] for label in sizes],
            "dtype": self.dtype.name,
            "semiring": key.id,
            "parameters": key.fields,
        }
        return json.dumps(held).encode()

    @functools.cached_property
    def _sliced(self) -> TropicalSlices:
        """Without methods, as the caches of programs know it."""
        return TropicalSlices(self.plan, self.whole, self.memory, self.dtype, self.semiring)

    def _mode(self, labels: bool) -> Mode:
        if labels and not isinstance(self.semiring, SelectiveSemiring):
            raise self._wrong(
                "run", f"labels=True under {self.semiring!r}", "a semiring that selects"
            )
        return Mode(self.semiring, winners=Winners.LABELS if labels else None)

    def _where(self, method: str) -> str:
        return f"{method} of a plan of {shortened(self.plan.equation.text)!r}"

    def _wrong(self, method: str, given: str, needed: str) -> InvalidConfig:
        return InvalidConfig(where=self._where(method), given=given, needed=needed)

    def _require_number(self, number: object, method: str) -> None:
        is_int = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_int or not 0 <= int(number) < self.slices:  # type: ignore[call-overload]
            raise self._wrong(method, f"slice {number!r}", f"a number from 0 to {self.slices - 1}")

    def _require_part(self, part: SlicePart, mode: Mode) -> None:
        lengths = dict(self.plan.sizes)
        shape = tuple(lengths[label] for label in self.output)
        contracted = sorted(lengths.keys() - set(self.output)) if mode.winners else []
        if sorted(part.labels) != contracted:
            raise self._wrong(
                "merge",
                f"slice {part.number} with labels {', '.join(sorted(part.labels)) or 'none'}",
                f"as in the first part: {', '.join(contracted) or 'none'}",
            )
        int32 = np.dtype("int32")
        for x, dtype in [(part.value, self.dtype), *((x, int32) for x in part.labels.values())]:
            if not isinstance(x, np.ndarray) or (x.dtype, x.shape) != (dtype, shape):
                have = f"{getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}"
                raise self._wrong(
                    "merge",
                    f"slice {part.number} of {have}",
                    f"a NumPy array {dtype}{list(shape)}",
                )

    def _arrays(self, operands: tuple[ArrayLike, ...]) -> list[jax.Array]:
        where, sizes = self._where("run"), dict(self.whole)
        if self.memory is None:
            raise Unsupported(where=where, given="symbolic sizes", needed="concrete sizes")
        if len(operands) != len(self.plan.terms):
            raise self._wrong(
                "run", f"{len(operands)} operands", f"{len(self.plan.terms)} operands"
            )
        arrays = [as_array(x, f"{where}, operand {i}") for i, x in enumerate(operands)]
        for i, (x, term) in enumerate(zip(arrays, self.plan.terms, strict=True)):
            shape = tuple(sizes[label] for label in term)
            if isinstance(x, jax.core.Tracer):
                raise Unsupported(
                    where=f"{where}, operand {i}",
                    given="an operand inside a transform",
                    needed="a concrete array",
                    fix="Call tropical_einsum with memory_limit there.",
                )
            if [n for n in x.shape if n != 1] != [n for n in shape if n != 1]:
                raise ShapeError(
                    where=f"{where}, operand {i}", given=f"shape {x.shape}", needed=f"{shape}"
                )
            if x.dtype != self.dtype:
                raise DTypeError(
                    where=f"{where}, operand {i}", given=str(x.dtype), needed=str(self.dtype)
                )
        return without_repeated_axes(arrays, self.plan.terms, sizes)


@functools.lru_cache(maxsize=64)
def _piece(plan: TropicalSlices, mode: Mode) -> Any:
    return jax.jit(functools.partial(piece, plan, mode))


@functools.lru_cache(maxsize=64)
def _merging(plan: TropicalSlices, mode: Mode) -> Any:
    return jax.jit(functools.partial(merged, plan, mode), donate_argnums=2)


def load_plan(data: bytes) -> TropicalPlan:
    """The plan of these bytes. Nothing in them is run; semirings of authors must be registered.

    Raises:
      InvalidConfig: not the text of `TropicalPlan.to_bytes`, or a plan that cannot run.
      Unsupported: the text is of another version.

    Example:
      >>> from ext_tropical import plan_tropical_einsum
      >>> from ext_tropical.network.pieces import load_plan
      >>> load_plan(plan_tropical_einsum("ij,jk->ik", (2, 3), (3, 4)).to_bytes())
      TropicalPlan('ij,jk->ik', 1 steps, 1 slices, peak 66040)
    """
    try:
        held = json.loads(bytes(data).decode())
        if not isinstance(held, dict) or type(held.get("version")) is not int:
            raise ValueError("it has no version")
        if held["version"] == VERSION:
            return _loaded(held)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(
            where="load_plan",
            given=f"{data!r:.100}: {type(error).__name__}: {error}",
            needed="what TropicalPlan.to_bytes returned",
        ) from error
    raise Unsupported(
        where="load_plan",
        given=f"a plan of version {held['version']}",
        needed=f"version {VERSION}",
        fix="Plan again with this release.",
    )


def _loaded(held: dict[str, Any]) -> TropicalPlan:
    """The plan of a text that was read; ValueError if it is none."""
    if {name: type(value) for name, value in held.items()} != FIELDS:
        raise ValueError(f"the fields are {', '.join(held)}")
    labels, numbers = held["labels"], (held["sizes"], held["lengths"])
    if any(type(n) is not int or n < 1 for each in numbers for n in each):
        raise ValueError("a size or length is no positive integer")
    if len(set(labels)) < len(labels) or any(len(each) != len(labels) for each in numbers):
        raise ValueError("there is not one size and length for each label")
    sizes, lengths = (dict(zip(labels, each, strict=True)) for each in numbers)
    if any(n % lengths[label] for label, n in sizes.items()):
        raise ValueError("a length does not divide its size")
    terms = held["steps"].partition("->")[0].split(",")
    if set("".join(terms)) != set(labels):
        raise ValueError("the labels are not those of the steps")
    shapes = tuple(tuple(sizes[label] for label in term) for term in terms)
    plan = planned(held["steps"], shapes, "load_plan")
    equation = dataclasses.replace(plan.equation, text=held["equation"])
    plan = dataclasses.replace(plan, equation=equation)
    algebra = SemiringKey(held["semiring"], tuple(held["parameters"])).semiring
    dtype = held["dtype"]
    if dtype not in algebra.dtypes:
        raise ValueError(f"{algebra!r} does not take {dtype}")
    plan = cut(plan, sizes, jnp.dtype(dtype), algebra).plan
    return TropicalPlan(**vars_of(cut(plan, lengths, jnp.dtype(dtype), algebra)))


def vars_of(plan: TropicalSlices) -> dict[str, Any]:
    """The fields of a plan."""
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}


@names_itself
def plan_tropical_einsum(
    equation: str | Operand,
    *operands: Operand,
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    semiring: Semiring | str = max_plus,
    dtype: DTypeLike | None = None,
    slices: int = 1,
) -> TropicalPlan:
    """Plan an einsum: the order of its contractions and its slices.

    Args:
      equation: as for `tropical_einsum`.
      *operands: arrays or shapes.
      optimize: as for `tropical_einsum`.
      memory_limit: bytes; slices are chosen so that `peak` is at most that.
      semiring: a semiring or its name. For a selective one the memory of winners counts, because a
        derivative needs them.
      dtype: of the operands, 32 bits wide while 64-bit types are off; by default that of the first
        array, or float32.
      slices: how many there are at least, such as the number of workers, if the labels have so many
        entries.

    Returns:
      A TropicalPlan, to print and compare, and to run slice by slice.

    Raises:
      InvalidConfig, ShapeError: the equation cannot be read or does not fit.
      DTypeError: not a dtype.
      InvalidConfig: an unknown algorithm or semiring, a path that does not fit, or a memory limit
        that no slices reach; the text gives the least possible limit.
      Unsupported: a memory limit with symbolic sizes, or cotengra if it is not installed.

    Example:
      >>> print(plan_tropical_einsum("ij,jk,kl->il", (64, 512), (512, 512), (512, 64),
      ...     memory_limit=1_000_000))
      step  operands  equation   multiplications  entries
         3  0, 1      ij,jk->ik          1048576     8192
         4  2, 3      kl,ik->il           524288     4096
      1572864 multiplications, at most 8192 entries at once, order ij,jk,kl->il
      16 slices one after another (4 of j x 4 of k), 25165824 multiplications in all
      at most 819200 bytes at once beside the operands
    """
    plan = plan_of(
        equation,
        *operands,
        optimize=optimize,
        memory_limit=memory_limit,
        semiring=semiring,
        dtype=dtype,
        slices=slices,
    )
    return TropicalPlan(**vars_of(plan))
