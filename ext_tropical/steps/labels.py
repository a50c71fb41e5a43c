"""Labels of an assignment, by name, as one array."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.errors import ShapeError
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.io import register_pytree_name
from tenferro_jax.shapes import is_traced

from ..native.library import is_on_host
from .cut import cut_all


@jax.tree_util.register_pytree_with_keys_class
class Labels(Mapping[Any, jax.Array]):
    """For each name an index, int32, as a mapping: one array, and a pytree of that one leaf.

    What is asked for by name is cut from the array. That takes 50 us outside jit; in a program XLA
    compiles a function for each, some ms. For all of them ask `items()`, which cuts them at once,
    `tolist()` or `array`. `dict(labels.items())` is a dict.

    Axes in front of the names are those of every index, also those that a transform adds there. A
    transform that puts an axis behind them, as vmap with out_axes=-1 does, takes the names' place.

    Args:
      names: of the labels, in the order of the mapping.
      array: int32 (..., names).

    Raises:
      ShapeError: of a name, where the last axis is not as long as the names.

    Example:
      >>> labels = Labels(("a", "b"), jnp.array([[0, 3], [1, 2]]))
      >>> print(labels["b"], labels.tolist())
      [3 2] {'a': [0, 1], 'b': [3, 2]}
    """

    def __init__(self, names: Sequence[Hashable], array: jax.Array):
        self.names, self.array = tuple(names), array
        self._places = {name: place for place, name in enumerate(self.names)}

    @classmethod
    def joined(cls, labels: Mapping[str, jax.Array], shape: Sequence[int]) -> Labels:
        """Of arrays of one shape."""
        if not labels:
            return cls((), jnp.zeros((*shape, 0), jnp.int32))
        return cls(tuple(labels), jnp.stack([*labels.values()], -1))

    @classmethod
    def of_rows(cls, names: Sequence[Hashable], rows: jax.Array) -> Labels:
        """Of an array (names, ...), as ops have it."""
        if rows.ndim == 1:
            return cls(names, rows)
        if is_on_host(rows):  # nothing is compiled
            return cls(names, jax.device_put(np.moveaxis(np.asarray(rows), 0, -1)))
        return cls(names, jnp.moveaxis(rows, 0, -1))

    def __getitem__(self, name: Hashable) -> jax.Array:
        place = self._places[name]
        self._require_names()
        if is_on_host(self.array):  # nothing is compiled
            return jax.device_put(np.asarray(self.array)[..., place])
        return lax.index_in_dim(self.array, place, -1, keepdims=False)

    def items(self) -> ItemsView[Any, jax.Array]:
        """Names and indices, which are cut all at once."""
        return self._cut().items()

    def values(self) -> ValuesView[jax.Array]:
        """The indices, which are cut all at once."""
        return self._cut().values()

    def _cut(self) -> dict[Any, jax.Array]:
        self._require_names()
        array, places = self.array, range(len(self.names))
        if is_on_host(array):
            each = jax.device_put(list(np.moveaxis(np.asarray(array), -1, 0)))
        elif array.ndim == 1:
            each = on_automatic_axes(cut_all)(array, places, [()] * len(places))
        else:
            each = [lax.index_in_dim(array, place, -1, keepdims=False) for place in places]
        return dict(zip(self.names, each, strict=True))

    def _require_names(self) -> None:
        """Refuse an array whose last axis is not that of the names."""
        shape = self.array.shape
        if shape[-1:] != (len(self.names),):
            raise ShapeError(
                where="Labels",
                given=f"an array of shape {shape} for {len(self.names)} names",
                needed="the names on the last axis",
                fix="Change axes in front of it alone: x[0], not x[..., 0]; out_axes=0 of vmap.",
            )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def renamed(self, names: Mapping[Any, Hashable]) -> Labels:
        """Under other names and in their order, of which each says its name here."""
        places = [self._places[old] for old in names.values()]
        if places == [*range(len(self.names))]:
            array = self.array
        elif is_on_host(self.array):  # nothing is compiled
            array = jax.device_put(np.asarray(self.array)[..., places])
        else:
            array = jnp.take(self.array, np.array(places, np.int32), axis=-1)
        return Labels(tuple(names), array)

    def tolist(self) -> dict[Any, Any]:
        """For each name its index as an integer, or as nested lists."""
        self._require_names()
        rows = np.moveaxis(np.asarray(self.array), -1, 0)
        return dict(zip(self.names, rows.tolist(), strict=True))

    def __repr__(self) -> str:
        array = self.array
        is_concrete = isinstance(array, np.ndarray | jax.Array) and not is_traced(array)
        if is_concrete and array.size <= 100 and array.shape[-1:] == (len(self.names),):
            return f"Labels({self.tolist()})"
        return f"Labels({', '.join(map(repr, self.names))}: {array!r})"

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any]], tuple[Hashable, ...]]:
        """The array, and the names."""
        return ((jax.tree_util.GetAttrKey("array"), self.array),), self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[Hashable, ...], arrays: Sequence[jax.Array]) -> Labels:
        """The mapping again."""
        return cls(names, *arrays)


register_pytree_name(Labels, "ext_tropical.Labels")

NO_LABELS = Labels((), np.zeros(0, np.int32))  # type: ignore[arg-type]
