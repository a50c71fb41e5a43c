"""Runtime sets: kernels by family and platform, and the selected routes, as explicit values."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from ..errors import ExtensionRegistryError, InvalidConfig, require_kind
from ..identity import Sealed
from ..jax_seam import require_platforms
from .family import parse_family_id


class RouteKind(enum.Enum):
    """The three routes of an extension."""

    KERNEL = "kernel"
    LOWERING = "lowering"
    HOST = "host"


class Kernel(NamedTuple):
    """An implementation of one family for one platform.

    A family may have several for a platform, with different names; the first that accepts a call
    runs.

    Attributes:
      family_id: the family.
      platform: "cpu", "cuda", "rocm" or "tpu".
      run: function(op, *arrays) -> a sequence of outputs, JAX-traceable: jax.ffi, Pallas, or plain
        JAX. Kernels are compared by the identity of this function, so make it only once.
      declines: function(op, *metas) -> why the kernel declines this call, or "" if it does not. If
        the op is mapped, the metas are those of one element. None: the kernel accepts every call.
      name: a short name, which `routes` prints; by default that of the function.
      eager: function(op, *arrays) -> the outputs, NumPy arrays in and out: what `run` computes, for
        calls outside jit, where compiling would cost more than the call. Only for "cpu".
    """

    family_id: str
    platform: str
    run: Callable[..., Any]
    declines: Callable[..., str] | None = None
    name: str = ""
    eager: Callable[..., Any] | None = None

    @property
    def title(self) -> str:
        """The name, or else that of the function; "" if the function is a lambda or called _."""
        own = getattr(self.run, "__name__", type(self.run).__name__)
        return self.name or ("" if own in ("_", "<lambda>") else own)

    def __repr__(self) -> str:
        return f"Kernel({', '.join(map(str, (self.family_id, self.platform, self.title)))})"


class ExtensionRuntimeSet(Sealed):
    """An immutable set of kernels, with the routes that may be taken.

    The attribute `runtimes` of an op class holds that of its family. A call that is given another,
    `apply(op, *arrays, runtimes=...)`, uses that instead. It is part of the key of an executable.

    Args:
      *kernels: `Kernel` values; those for one family and platform are tried in this order.

    Raises:
      ExtensionRegistryError: two kernels of one name for one family and platform.
      MalformedFamilyId, InvalidConfig: a malformed family_id, an unknown platform, a kernel that
        cannot be called.

    Example:
      >>> import jax.numpy as jnp
      >>> runtimes = ExtensionRuntimeSet(Kernel("docs-example.sine.v1", "cpu", lambda op,
      ...     x: (jnp.sin(x),)))
      >>> runtimes.kernels("docs-example.sine.v1", "cuda")
      ()
      >>> runtimes.only(RouteKind.LOWERING)
      ExtensionRuntimeSet(docs-example.sine.v1 on cpu; only lowering)
    """

    routes: frozenset[RouteKind]
    _by_place: dict[tuple[str, str], tuple[Kernel, ...]]

    def __init__(self, *kernels: Kernel, _routes: Iterable[RouteKind] = RouteKind):
        by_place: dict[tuple[str, str], tuple[Kernel, ...]] = {}
        for kernel in kernels:
            place = _place(kernel)
            others = by_place.get(place, ())
            if kernel.title in [other.title for other in others]:
                raise ExtensionRegistryError(
                    where="ExtensionRuntimeSet",
                    given=f"a second kernel {kernel.title or 'without a name'} for family_id "
                    f"{kernel.family_id} on {kernel.platform}",
                    needed="another name for each kernel of a family and platform",
                    fix='Pass name="..." with the kernel.',
                )
            by_place[place] = (*others, kernel)
        object.__setattr__(self, "_by_place", by_place)
        object.__setattr__(self, "routes", frozenset(_routes))

    def _seal(self) -> None:
        places = tuple(sorted(self._by_place))
        self._set_key(
            (
                ExtensionRuntimeSet,
                places,
                tuple(tuple(k[2:] for k in self._by_place[place]) for place in places),
                self.routes,
            )
        )

    def kernels(self, family_id: str, platform: str) -> tuple[Kernel, ...]:
        """The kernels for a family on a platform, in the order in which they are tried."""
        return self._by_place.get((family_id, platform), ())

    def merge(self, other: ExtensionRuntimeSet) -> ExtensionRuntimeSet:
        """A new set with the kernels of both and the routes selected in both. For a family and
        platform in both, the kernels of `other` replace those of this set.
        """
        require_runtimes(other, "ExtensionRuntimeSet.merge", ExtensionRuntimeSet)
        kept = [k for k in self if not other.kernels(k.family_id, k.platform)]
        return ExtensionRuntimeSet(*kept, *other, _routes=self.routes & other.routes)

    def only(self, *routes: RouteKind) -> ExtensionRuntimeSet:
        """The same kernels, with only these routes: a route that is not selected never runs.

        Raises:
          InvalidConfig: no route is given, or a value that is not a RouteKind.
        """
        if not routes or not all(isinstance(route, RouteKind) for route in routes):
            raise InvalidConfig(
                where="ExtensionRuntimeSet.only",
                given=repr(routes),
                needed=f"one or more of {', '.join(map(str, RouteKind))}",
            )
        return ExtensionRuntimeSet(*self, _routes=routes)

    def __iter__(self) -> Iterator[Kernel]:
        return itertools.chain.from_iterable(self._by_place.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_place.values()))

    def __repr__(self) -> str:
        kernels = ", ".join(
            " on ".join(place)
            + (f" ({', '.join(k.title for k in several)})" if several[1:] else "")
            for place, several in sorted(self._by_place.items())
        )
        chosen = [route.value for route in RouteKind if route in self.routes]
        only = "" if len(chosen) == len(RouteKind) else f"only {', '.join(chosen)}"
        return f"ExtensionRuntimeSet({'; '.join(filter(None, [kernels, only]))})"


def _place(kernel: Kernel) -> tuple[str, str]:
    """(family_id, platform) of a kernel, checked."""
    functions = (
        ()
        if not isinstance(kernel, Kernel)
        else (kernel.run, *(f for f in (kernel.declines, kernel.eager) if f is not None))
    )
    if (
        not functions
        or not all(callable(f) and isinstance(f, Hashable) for f in functions)
        or not isinstance(kernel.name, str)
    ):
        raise InvalidConfig(
            where="ExtensionRuntimeSet",
            given=repr(kernel),
            needed="a Kernel(family_id, platform, run, declines, name, eager) of functions and a "
            "text",
            fix="Wrap each function in a Kernel; declines, name and eager may be left out.",
        )
    parse_family_id(kernel.family_id)
    require_platforms((kernel.platform,), f"Kernel of extension {kernel.family_id}")
    if kernel.eager is not None and kernel.platform != "cpu":
        raise InvalidConfig(
            where=f"Kernel of extension {kernel.family_id}",
            given=f"eager on {kernel.platform}",
            needed="eager only on cpu, because it computes with NumPy arrays",
            fix="Leave eager out.",
        )
    return kernel.family_id, kernel.platform


NO_RUNTIMES: Final = ExtensionRuntimeSet()
"""No kernels, every route."""


def require_runtimes(runtimes: object, where: str, kind: Any = ExtensionRuntimeSet | None) -> None:
    """Refuse a value that is neither None nor an ExtensionRuntimeSet."""
    fix = "Wrap the kernels: ExtensionRuntimeSet(Kernel(...), ...)."
    require_kind(runtimes, kind, where, "an ExtensionRuntimeSet", fix, "runtimes")
