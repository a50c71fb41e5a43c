"""Runtime sets: kernels by family and platform, and the selected routes, as explicit values."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
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

    Attributes:
      family_id: the family.
      platform: "cpu", "cuda", "rocm" or "tpu".
      run: function(op, *arrays) -> a sequence of outputs, JAX-traceable: jax.ffi, Pallas, or plain
        JAX. Kernels are compared by the identity of this function, so make it only once.
      declines: function(op, *metas) -> why the kernel declines this call, or "" if it does not. If
        the op is mapped, the metas are those of one element. None: the kernel accepts every call.
    """

    family_id: str
    platform: str
    run: Callable[..., Any]
    declines: Callable[..., str] | None = None

    def __repr__(self) -> str:
        return f"Kernel({self.family_id}, {self.platform}, {_name(self.run)})"


class ExtensionRuntimeSet(Sealed):
    """An immutable set of kernels, at most one for a family and platform, with the routes that may
    be taken.

    It is passed with a call, `apply(op, *arrays, runtimes=...)`, and is part of the key of an
    executable.

    Args:
      *kernels: `Kernel` values.

    Raises:
      ExtensionRegistryError: two kernels for one family and platform.
      MalformedFamilyId, InvalidConfig: a malformed family_id, an unknown platform, a kernel that
        cannot be called.

    Example:
      >>> import jax.numpy as jnp
      >>> runtimes = ExtensionRuntimeSet(Kernel("docs-example.sine.v1", "cpu", lambda op,
      ...     x: (jnp.sin(x),)))
      >>> runtimes.lookup_kernel("docs-example.sine.v1", "cuda") is None
      True
      >>> runtimes.only(RouteKind.LOWERING)
      ExtensionRuntimeSet(docs-example.sine.v1 on cpu; only lowering)
    """

    routes: frozenset[RouteKind]
    _by_place: dict[tuple[str, str], Kernel]

    def __init__(self, *kernels: Kernel):
        self._hold(kernels, frozenset(RouteKind))

    def _hold(self, kernels: tuple[Kernel, ...], routes: frozenset[RouteKind]) -> None:
        by_place: dict[tuple[str, str], Kernel] = {}
        for kernel in kernels:
            place = _place(kernel)
            if place in by_place:
                raise ExtensionRegistryError(
                    where="ExtensionRuntimeSet",
                    given=f"a second kernel for family_id {kernel.family_id} on {kernel.platform}",
                    needed="at most one for a family and platform",
                )
            by_place[place] = kernel
        object.__setattr__(self, "_by_place", by_place)
        object.__setattr__(self, "routes", routes)
        self._seal()

    def _seal(self) -> None:
        places = tuple(sorted(self._by_place))
        self._set_key(
            (
                ExtensionRuntimeSet,
                places,
                tuple(self._by_place[place][2:] for place in places),
                self.routes,
            )
        )

    def _with(self, kernels: Iterator[Kernel], routes: frozenset[RouteKind]) -> ExtensionRuntimeSet:
        made = object.__new__(ExtensionRuntimeSet)
        made._hold(tuple(kernels), routes)
        return made

    def lookup_kernel(self, family_id: str, platform: str) -> Kernel | None:
        """The kernel for a family on a platform, or None."""
        return self._by_place.get((family_id, platform))

    def merge(self, other: ExtensionRuntimeSet) -> ExtensionRuntimeSet:
        """A new set with the kernels of both and the routes selected in both; it is an error if
        they share a family and platform.
        """
        require_runtimes(other, "ExtensionRuntimeSet.merge", ExtensionRuntimeSet)
        return self._with(iter((*self, *other)), self.routes & other.routes)

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
        return self._with(iter(self), frozenset(routes))

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self._by_place.values())

    def __len__(self) -> int:
        return len(self._by_place)

    def __repr__(self) -> str:
        kernels = ", ".join(
            f"{family_id} on {platform}" for family_id, platform in sorted(self._by_place)
        )
        chosen = [route.value for route in RouteKind if route in self.routes]
        only = "" if len(chosen) == len(RouteKind) else f"only {', '.join(chosen)}"
        return f"ExtensionRuntimeSet({'; '.join(filter(None, [kernels, only]))})"


def _place(kernel: Kernel) -> tuple[str, str]:
    """(family_id, platform) of a kernel, checked."""
    functions = (
        ()
        if not isinstance(kernel, Kernel)
        else (kernel.run, *(f for f in (kernel.declines,) if f is not None))
    )
    if not functions or not all(callable(f) and isinstance(f, Hashable) for f in functions):
        raise InvalidConfig(
            where="ExtensionRuntimeSet",
            given=repr(kernel),
            needed="a Kernel(family_id, platform, run, declines) of functions",
            fix="Wrap each function in a Kernel; declines may be left out.",
        )
    parse_family_id(kernel.family_id)
    require_platforms((kernel.platform,), f"Kernel of extension {kernel.family_id}")
    return kernel.family_id, kernel.platform


def _name(run: object) -> str:
    return getattr(run, "__qualname__", type(run).__name__)


NO_RUNTIMES: Final = ExtensionRuntimeSet()
"""No kernels, every route."""


def require_runtimes(runtimes: object, where: str, kind: Any = ExtensionRuntimeSet | None) -> None:
    """Refuse a value that is neither None nor an ExtensionRuntimeSet."""
    fix = "Wrap the kernels: ExtensionRuntimeSet(Kernel(...), ...)."
    require_kind(runtimes, kind, where, "an ExtensionRuntimeSet", fix, "runtimes")
