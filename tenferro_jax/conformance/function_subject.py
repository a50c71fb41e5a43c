"""Any function as the subject of checks: its arrays as inputs, everything else as it was given."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..shapes import PyTree, Shaped, TensorMeta, is_inexact, is_key, meta_of, struct
from .breaches import NotApplicable, failure, one_line, unsupported
from .examples import Array, cast
from .held import all_wide, coarsest
from .smooth import MOST_SUBSETS
from .subject import Axes, Subject

JITTED: Any = type(jax.jit(len))
NOT_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


@dataclasses.dataclass(eq=False, kw_only=True)
class FunctionSubject(Subject):
    """A function at one example. Its inputs are the arrays of numbers among the leaves of the
    function, which may be a pytree such as an equinox module, and of its arguments.
    """

    fn: Callable[..., PyTree]
    args: Sequence[PyTree]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.values_in_each_precision, self.roundings = True, math.inf
        fn = self.fn
        while isinstance(fn, functools.partial):
            fn = fn.func
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.name = f"{getattr(fn, '__module__', None) or type(fn).__module__}.{name}"
        found, self.tree = jax.tree_util.tree_flatten_with_path((self.fn, tuple(self.args)))
        self.paths, self.leaves = [path for path, _ in found], [leaf for _, leaf in found]
        self.keyed = any(map(_is_random_key, self.leaves))
        self.first: list[np.ndarray] | None = None
        with contextlib.suppress(Exception):  # the checks tell what it raises
            self.first = self.plain()
        self.compiled = jax.jit(lambda *arrays: self.call(*arrays))
        arrays = [i for i, leaf in enumerate(self.leaves) if _is_array(leaf)]
        floats = [i for i in arrays if is_inexact(self.leaves[i])]
        choices = [(True, "float64", arrays), (True, "float64", floats), (False, "float32", arrays)]
        users = [choice for choice in choices if choice[0] == self.users_x64]
        self._settle(*users[0])
        self.given_wide = self.users_x64 and all_wide(self.leaves[i] for i in arrays)
        if self.tied_to_the_setting(self.examples[0]):
            choices = users
        self._settle(*choices[0])
        self.untraced = self._error()
        for choice in choices[1:]:
            if self._error() is not None:
                self._settle(*choice)
        if self._error() is None:
            self.untraced, self.grain = None, self._coarsest()

    def _settle(self, x64: bool, wide: str, moving: Sequence[int]) -> None:
        self.x64, self.wide, self.moving = x64, wide, moving
        self.examples = (cast(tuple(np.asarray(self.leaves[i]) for i in moving), wide),)

    def _error(self) -> Exception | None:
        with self.precision():
            return failure(self.compiled.lower, *self.examples[0])

    @property
    def source(self) -> object:
        """The function that was given, or the one that a partial holds."""
        return self.fn.func if isinstance(self.fn, functools.partial) else self.fn

    def call(self, *arrays: Array) -> tuple[jax.Array, ...]:
        """The function, not compiled: its arrays of numbers."""
        leaves = list(self.leaves)
        for i, array in zip(self.moving, arrays, strict=True):
            leaves[i] = jnp.asarray(array)
        fn, args = jax.tree.unflatten(self.tree, leaves)
        return tuple(_arrays(fn(*args)))

    def plain(self, *, anew: bool = False) -> list[np.ndarray]:
        """The values of a call with the arguments as they were given, with the user's settings;
        `anew`: without the programs that a jitted function has compiled.
        """
        fn: Any = self.fn
        if anew and isinstance(fn, JITTED):
            fn = fn.__wrapped__
        with jax.enable_x64(self.users_x64):
            return [np.asarray(y) for y in _arrays(fn(*self.args))]

    def require_derivatives(self, *, linearized: bool) -> None:
        """Raise NotApplicable if the function cannot be traced."""
        if self.untraced is not None:
            raise NotApplicable("JAX cannot trace the function: see value")

    def values(self, *arrays: Array) -> Sequence[Array]:
        """The values of the compiled function."""
        return self.compiled(*arrays)

    def metas(self, inputs: Sequence[Shaped]) -> tuple[TensorMeta, ...] | None:
        """Dtypes and shapes of the outputs; None if the function does not take the inputs."""
        try:
            return tuple(
                map(meta_of, jax.eval_shape(self.compiled, *(struct(meta_of(x)) for x in inputs)))
            )
        except Exception:  # of whatever class
            return None

    def _coarsest(self) -> float:
        """The eps of the coarsest floating arithmetic, float32 at most, for wide inputs."""
        with self.precision():
            traced = self.compiled.trace(*self.examples[0]).jaxpr
        return coarsest(traced, self.wide)

    def taken(self, modes: Sequence[Any], *args: PyTree) -> list[Any]:
        """Those of several derivatives that JAX has of the function."""
        reasons = [self.limit(failure(jax.jit(mode).lower, *args)) for mode in modes]
        if all(reasons):
            raise NotApplicable(f"no second derivative: {reasons[0]}")
        return [mode for mode, reason in zip(modes, reasons, strict=True) if not reason]

    def excuse(self, error: BaseException) -> str:
        """What JAX or a library does not do with the function; "" if the error is a fault."""
        if isinstance(error, NOT_TRACED):
            return f"JAX cannot trace it: {one_line(error)}"
        return one_line(error) if unsupported(error) else ""

    def names(self, mask: Sequence[int]) -> str:
        """The inputs of a mask in words: "argument 0 and argument 1['w']"."""
        if len(mask) > MOST_SUBSETS:
            return f"{len(mask)} arrays together"
        found = []
        for i in mask:
            (of, *path) = self.paths[self.moving[i]]
            text = jax.tree_util.keystr(tuple(path[of.idx :]))
            found.append(f"argument {path[0].idx}{text}" if of.idx else f"the function's {text}")
        return " and ".join(found)

    def axes_text(self, axes: Axes) -> str:
        """The mapped axes in words."""
        mapped = [f"axis {a} of {self.names((i,))}" for i, a in enumerate(axes) if a is not None]
        return f"over {' and '.join(mapped)}"


def _is_random_key(leaf: Any) -> bool:
    """A key, or the two numbers of jax.random.PRNGKey."""
    return isinstance(leaf, jax.Array) and (
        is_key(leaf.dtype) or (leaf.dtype == np.uint32 and leaf.shape[-1:] == (2,))
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array) and any(
        jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.number, jnp.bool_)
    )


def _arrays(outputs: PyTree) -> Iterator[jax.Array]:
    """The arrays of numbers among outputs; of keys their data."""
    for y in jax.tree.leaves(outputs):
        if isinstance(y, jax.Array) and is_key(y.dtype):
            yield jax.random.key_data(y)
        elif isinstance(y, bool | int | float | complex | np.ndarray | np.generic | jax.Array):
            yield jnp.asarray(y)
