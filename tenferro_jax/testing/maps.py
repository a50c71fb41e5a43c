"""L4: vmap equals the stack of the op on each element. L5: the same over devices."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from ..both_modes import replaced
from ..extension.contract import Can
from ..extension.kernels import RouteKind
from ..extension.sharding import split_of
from ..shapes import ArrayFunction, meta_of
from .examples import Array, Arrays, Inputs
from .finite_differences import Smooth, pulled, smooth
from .functions import Axes, Claim, Subject
from .ops_given import OpSubject
from .report import Cases, NotApplicable, NotedCases, breaking

Call: TypeAlias = Callable[..., Any]

ONE_DEVICE = "Keep lowerings free of what only works on one device; rules too."


def choices(subject: Subject, inputs: Inputs) -> list[Axes]:
    """Every position of the batch axis in every subset of inputs; if these are many, each position
    alone, all in front, and a sample.
    """
    options: list[Axes] = [(None, *range(x.ndim + 1)) for x in inputs]
    # Of an op without its own batched() JAX moves the axes.
    sampled = 8 if subject.own_batching else 2
    found: Iterable[Axes] = itertools.product(*options)
    if math.prod(map(len, options)) > 2 * sampled:
        found = _some(options, sampled, subject.rng)
    unmapped = (None,) * len(inputs)
    return [axes for axes in dict.fromkeys(found) if axes != unmapped]


def _some(options: Sequence[Axes], sampled: int, rng: np.random.Generator) -> Iterator[Axes]:
    """Each position of each input alone, all inputs mapped in front, and a sample."""
    count = len(options)
    for i, places in enumerate(options):
        yield from (alone(i, axis, count) for axis in places)
    yield (0,) * count
    for _ in range(sampled):
        yield tuple(places[rng.integers(len(places))] for places in options)


def alone(i: int, axis: int | None, count: int) -> Axes:
    """Input i mapped along an axis, the others shared."""
    return (*(None,) * i, axis, *(None,) * (count - i - 1))


def joined(
    elements: Sequence[Inputs], axes: Axes, join: Callable[..., np.ndarray] = np.stack
) -> Inputs:
    """Elements stacked, or joined by another function, along these axes; an input without an axis
    is that of the first element.
    """
    made = []
    for axis, arrays in zip(axes, zip(*elements, strict=True), strict=True):
        made.append(arrays[0] if axis is None else join(arrays, axis))
    return tuple(made)


def separate(elements: Sequence[Inputs], axes: Axes) -> list[Inputs]:
    """The elements, of which `joined` makes its arrays: what has no axis is that of the first."""
    shared = [i for i, axis in enumerate(axes) if axis is None]
    of_first = [elements[0][i] for i in shared]
    return [tuple(replaced(element, shared, of_first)) for element in elements]


def columns(rows: Iterable[Arrays], axis: int = 0) -> tuple[np.ndarray, ...]:
    """The arrays of several rows, stacked over the rows."""
    return tuple(np.stack(column, axis) for column in zip(*rows, strict=True))


class Mapped(NamedTuple):
    """A transform that maps a function over a batch.

    Attributes:
      what: in words.
      axes: of the inputs over which the function is mapped.
      of: the transform of a function.
      out: the axis over which its outputs are stacked.
    """

    what: str
    axes: Axes
    of: Callable[[Call], Call]
    out: int = 0


def _elements(subject: Subject, inputs: Inputs, count: int) -> list[Inputs]:
    if not inputs:
        raise NotApplicable("the op has no inputs")
    return subject.rows(inputs, count)


def _values(
    subject: Subject,
    elements: Sequence[Inputs],
    cases: Iterable[Mapped],
    plain: Call | None = None,
) -> list[Claim]:
    """The outputs of a mapped op are those of each element. `plain` is the op in plain JAX, where
    JAX may refuse the transform.
    """
    claims = []
    for what, axes, mapped, out in cases:
        args, each = joined(elements, axes), separate(elements, axes)
        want = columns(map(subject.expected, each), out)
        own = mapped(plain) if plain else None
        claims.append(Claim(what, mapped(subject.call), args, want, plain=own))
    return claims


def _derivatives(
    view: Smooth,
    elements: Sequence[Inputs],
    cases: Iterable[Mapped],
    plain: Call | None = None,
    *,
    by_vmap: bool,
) -> list[Claim]:
    """The derivatives of a mapped op are those of each element, summed for the inputs that they
    share; and those of each element by vmap of the derivative.
    """
    w = view.cotangents(view.subject.rng)

    claims = []
    for what, axes, mapped, _ in cases:
        args, each = joined(elements, axes), separate(elements, axes)
        wants = columns(view._replace(inputs=e).derivatives(w, reverse=True)[0][3] for e in each)
        summed = [
            want.sum(0) if axes[i] is None else want
            for i, want in zip(view.active, wants, strict=True)
        ]
        forms = [mapped(view.subject.call), *([mapped(plain)] if plain else [])]
        given = columns([w] * len(elements))
        backs = [functools.partial(_pulled, view, form, given) for form in forms]
        claims.append(Claim(f"vjp of {what}", backs[0], args, summed, *backs[1:]))
        if by_vmap:
            name = f"vmap of vjp {view.subject.axes_text(axes)}"
            back = functools.partial(_pulled, view, view.subject.call, w)
            claims.append(Claim(name, jax.vmap(back, axes), args, wants))
    return claims


def _pulled(
    view: Smooth, call: ArrayFunction, cotangents: Arrays, *xs: Array
) -> Sequence[jax.Array]:
    """The derivative of a function of all inputs by those that are active."""
    f = view.function(view.active, xs, call)
    return pulled(f, cotangents)(*(xs[i] for i in view.active))


def vmap(subject: Subject, inputs: Inputs) -> Cases:
    """Maps every axis of every input, also mixed over the inputs; outputs are stacked as first and
    as last axis.
    """
    elements = _elements(subject, inputs, 3)
    cases = []
    for axes, out in zip(choices(subject, inputs), itertools.cycle((0, -1)), strict=False):
        of = functools.partial(jax.vmap, in_axes=axes, out_axes=out)
        cases.append(Mapped(f"vmap {subject.axes_text(axes)}, out_axes={out}", axes, of, out))
    yield from subject.hold(_values(subject, elements, cases), *_fix(subject))


def vmap_of_grad(subject: Subject, inputs: Inputs) -> Cases:
    """Compares the derivative of each element with vmap of the derivative and the derivative of
    vmap, which sums over unmapped inputs.
    """
    view = smooth(subject, inputs)
    count = len(inputs)
    each = (alone(n, 0, count) for n in range(count))
    cases = []
    for axes in dict.fromkeys([(0,) * count, *each]):
        of = functools.partial(jax.vmap, in_axes=axes)
        cases.append(Mapped(f"vmap {subject.axes_text(axes)}", axes, of))
    yield from subject.hold(
        _derivatives(view, subject.rows(view.inputs, 2), cases, by_vmap=True),
        "X13.1",
        "Let the rule work under vmap: it is mapped as it stands.",
        view.terms(view.cotangents(subject.rng)),
    )


def _fix(subject: Subject) -> tuple[str, str]:
    if subject.own_batching:
        return "X13.2", "Correct batched(in_axes), or leave it out: vmap then maps the lowering."
    return (
        "X13.1",
        "Write the lowering in functions that vmap can map, or give a form of your own by "
        "batched(); of a function by jax.custom_batching.",
    )


def _mesh(
    kind: jax.sharding.AxisType = jax.sharding.AxisType.Auto, most: int = 2
) -> jax.sharding.Mesh:
    """So many devices, if there are: for a batch more than two add no new case."""
    devices = jax.devices()[:most]
    return jax.make_mesh((len(devices),), ("d",), axis_types=(kind,), devices=devices)


def _shard_maps(mesh: jax.sharding.Mesh, count: int) -> list[Mapped]:
    """shard_map with all inputs spread over the mesh, checked and unchecked, and with input 0
    alone.
    """
    cases: list[tuple[Axes, bool]] = [((0,) * count, True), ((0,) * count, False)]
    if count > 1:
        cases.append((alone(0, 0, count), True))

    def spread(axes: Axes, checked: bool, call: Call) -> Call:
        batch = jax.P("d")
        specs = tuple(jax.P() if axis is None else batch for axis in axes)
        of = jax.vmap(call, axes)
        return jax.shard_map(of, mesh=mesh, in_specs=specs, out_specs=batch, check_vma=checked)

    return [
        Mapped(
            f"shard_map of axes {axes}, check_vma={checked}",
            axes,
            functools.partial(spread, axes, checked),
        )
        for axes, checked in cases
    ]


def shard_map(subject: OpSubject, inputs: Inputs) -> Cases:
    """shard_map with one element on each device, checked and unchecked; and with one input spread
    and the others replicated.
    """
    cases = _shard_maps(_mesh(), len(inputs))
    elements = _elements(subject, inputs, _mesh().size)
    claims = _values(subject, elements, cases, subject.in_plain_jax())
    yield from subject.hold(claims, "X13.4", ONE_DEVICE)


def shard_map_derivative(subject: OpSubject, inputs: Inputs) -> Cases:
    """The derivative through shard_map is that of each element, summed for replicated inputs."""
    view = smooth(subject, inputs)
    cases = _shard_maps(_mesh(), len(inputs))
    rows, plain = subject.rows(view.inputs, _mesh().size), subject.in_plain_jax()
    claims = _derivatives(view, rows, cases, plain, by_vmap=False)
    yield from subject.hold(claims, "X13.4", ONE_DEVICE)


def _placed(
    arrays: Sequence[np.ndarray], mesh: jax.sharding.Mesh, places: Sequence[jax.P]
) -> tuple[jax.Array, ...]:
    return tuple(
        jax.device_put(x, jax.NamedSharding(mesh, place))
        for x, place in zip(arrays, places, strict=True)
    )


def sharding_rule(subject: OpSubject, inputs: Inputs) -> NotedCases:
    """Splits each factor of the op's sharding rule over up to eight devices: the outputs are those
    of one device.
    """
    fix = "Correct sharding_rule, or name the factor in whole."
    with breaking("X13.9", "sharding_rule", fix):
        split = split_of(subject.carrier, [meta_of(x) for x in inputs])
    if split is None:
        raise NotApplicable("no sharding rule", "Override sharding_rule, if the op can be split.")
    mesh = _mesh(most=8)
    if mesh.size == 1:
        several = "Start Python with XLA_FLAGS=--xla_force_host_platform_device_count=8."
        raise NotApplicable("there is one device", several)
    elements = subject.rows(inputs, mesh.size)
    for factor in split.sizes:
        at = [term.index(factor) if factor in term else None for term in split.inputs]
        if factor in split.kept or at == [None] * len(at):
            continue
        longer = joined(elements, tuple(at), np.concatenate)
        if subject.metas(longer) is None:
            yield f"not split over {factor!r}, because the op refuses {mesh.size} times its size"
            continue
        places = [jax.P(*(None,) * axis, "d") if axis is not None else jax.P() for axis in at]
        placed = _placed(longer, mesh, places)
        claim = Claim(f"{factor} split", subject.call, placed, subject.expected(longer))
        yield from subject.hold([claim], "X13.10", fix)


def explicit_mesh(subject: OpSubject, inputs: Inputs) -> Cases:
    """Runs on a mesh with explicit axes, which needs the output shardings: with a batch spread over
    it, and with replicated inputs.
    """
    stated = subject.op.can(Can.SHARD)
    lowered = RouteKind.LOWERING in subject.routes(inputs)
    if not lowered and not stated:
        raise NotApplicable(
            "the op has no lowering", "Override lower_to_standard_ops or sharding_rule."
        )
    mesh, plain = _mesh(jax.sharding.AxisType.Explicit), subject.in_plain_jax()
    plain = None if stated or plain is None else jax.jit(plain)
    whole = _placed(inputs, mesh, [jax.P()] * len(inputs))
    place, want = "replicated inputs on an explicit mesh", subject.expected(inputs)
    claims = [Claim(place, subject.call, whole, want, plain=plain)]
    if lowered:
        elements = _elements(subject, inputs, mesh.size)
        args = _placed(columns(elements), mesh, [jax.P("d")] * len(inputs))
        wants = columns(map(subject.expected, elements))
        call, own = jax.vmap(subject.call), jax.vmap(plain) if plain else None
        claims.append(Claim("vmap on an explicit mesh", call, args, wants, plain=own))
    fix = "Correct sharding_rule, or leave it out to use the sharding of the lowering."
    with jax.set_mesh(mesh):
        yield from subject.hold(claims, "X13.5", fix)
