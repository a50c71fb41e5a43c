"""The only file that imports jax.interpreters and jax.extend; all code for particular JAX versions
is here.

It uses `jax.extend.core.Primitive`, the rule tables of `jax.interpreters.{ad,batching,mlir}`, and
the MLIR bindings of `jax.extend.mlir`. docs/jax_versions.md lists what JAX does not document.
"""

from __future__ import annotations

import collections
import concurrent.futures
import enum
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

import jax
import jax.ad_checkpoint
from jax.experimental import hijax, jet
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    SdyShardingRule,
    custom_partitioning,
)
from jax.extend import core as jexc
from jax.extend import linear_util, source_info_util
from jax.extend.mlir import (
    deserialize_portable_artifact,
    ir,
    passmanager,
    serialize_portable_artifact,
)
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir, partial_eval

from .errors import InvalidConfig, Unsupported

ATTRIBUTE = "tenferro.ext"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

max_dim, min_dim = jax.core.max_dim, jax.core.min_dim
is_symbolic_dim: Callable[[object], bool] = jax.export.is_symbolic_dim  # type: ignore[assignment]
with jax.ensure_compile_time_eval():
    _EAGER = jexc.get_opaque_trace_state()


def is_eager() -> bool:
    """Whether no transform is at work: values are computed, and nothing is differentiated."""
    return bool(jexc.get_opaque_trace_state() == _EAGER)


function_of: Callable[..., Callable[..., list[jax.Array]]] = jexc.jaxpr_as_fun
checkpoint_name: Callable[[jax.Array, str], jax.Array] = jax.ad_checkpoint.checkpoint_name


def scope_constraints(scope: jax.export.SymbolicScope) -> tuple[str, ...]:
    """The constraints of a SymbolicScope in order, read from JAX's text, because no other public
    API gives them.
    """
    return tuple(
        line.strip()
        for listed in str(scope).split(" with constraints:\n", 1)[1:]
        for line in listed.splitlines()
    )


class Assumptions(list[tuple[Any, Any, str]]):
    """Pairs of dimensions that AD rules assume to be equal while a graph is recorded, and where.
    Equal only to itself.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


# --- what is read of JAX's objects, as types ----------------------------------------------------

CONFIG: Any = jax.config
"""JAX's settings, of whose names its types do not tell."""

Function: TypeAlias = Callable[..., Any]
Aval: TypeAlias = jax.core.ShapedArray
LoweringContext: TypeAlias = mlir.LoweringRuleContext
IrValue: TypeAlias = "ir.Value[Any]"
Tangent: TypeAlias = Any
"""An array, or a symbolic zero."""
Axis: TypeAlias = Any
"""What a batching rule is told about the axis of a vmap."""
Params: TypeAlias = dict[str, Any]
"""What an equation is called with: of each primitive something else."""
ClosedJaxpr: TypeAlias = jexc.ClosedJaxpr | jexc.Jaxpr
"""From JAX 0.11 on they are one class."""


class Atom(Protocol):
    """An input or output of an equation or a jaxpr: a variable or a literal."""

    aval: Aval


class Literal(Atom, Protocol):
    """A value among the inputs of an equation or the outputs of a jaxpr."""

    val: Any


class Eqn(Protocol):
    """An equation of a jaxpr."""

    primitive: jexc.Primitive
    effects: Any
    params: Params
    invars: Sequence[Atom]
    outvars: Sequence[Atom]
    ctx: Any
    source_info: Any


class Jaxpr(Protocol):
    """A jaxpr without its constants."""

    constvars: Sequence[Atom]
    invars: Sequence[Atom]
    outvars: Sequence[Atom]
    eqns: Sequence[Eqn]
    debug_info: Any


graph_assumptions = jax.make_user_context(None)
"""`with graph_assumptions(Assumptions()):` marks tracing with symbolic sizes whose jaxpr a graph
builder reads. Part of the key of jit's caches, so that the assumptions of a cached function are
never missed.
"""


Slot = TypeVar("Slot")
"""An array, or what stands for one that is not there."""


# --- primitives -----------------------------------------------------------------------------------


def make_primitive(
    name: str,
    *,
    abstract_eval: Callable[..., list[Aval]],
    impl: Callable[..., list[jax.Array]],
    jvp: Callable[..., object],
    transpose: Callable[..., list[jax.Array | None]],
    batch: Callable[..., object],
    lowering: Function | None = None,
    effects: Callable[..., object] | None = None,
    series: Callable[..., Callable[..., object]] | None = None,
) -> Any:
    """A multi-result primitive with all its rules; each rule also receives the primitive's params
    as keywords. Without `lowering` it is lowered as `impl`; `effects` gives its effects,
    `series` the function whose Taylor series jax.experimental.jet takes.
    """
    p = jexc.Primitive(name)
    p.multiple_results = True
    p.def_effectful_abstract_eval(
        lambda *avals, **params: (
            abstract_eval(*avals, **params),
            effects(**params) if effects else jexc.no_effects,
        )
    )
    p.def_impl(impl)
    ad.primitive_jvps[p] = jvp
    ad.primitive_transposes[p] = transpose
    batching.fancy_primitive_batchers[p] = batch
    # One rule for all platforms, so that an export for several platforms has one call instead of a
    # switch over platforms.
    if series is not None:
        jet.jet_rules[p] = lambda primals, given, **params: jet.jet(
            series(**params), primals, given, factorial_scaled=False
        )
    mlir.register_lowering(p, lowering or mlir.lower_fun(impl, multiple_results=True))
    return p


# --- symbolic zeros -------------------------------------------------------------------------------


def none_if_zero(x: object) -> Any:
    """None for JAX's symbolic zero; other values unchanged."""
    return None if type(x) is ad.Zero else x


def zero_tangent(primal: jax.Array) -> Any:
    """The symbolic zero tangent of a primal value (float0 for integers)."""
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def tangent_meta(primal: jax.Array) -> tuple[Any, tuple[Any, ...]] | None:
    """(dtype, shape) of the tangents of a primal value; None for integers, which have none."""
    aval = jax.typeof(primal).to_tangent_aval()
    return None if aval.dtype == jax.dtypes.float0 else (aval.dtype, tuple(aval.shape))


def zero_cotangent(linear_input: ad.UndefinedPrimal) -> Any:
    """The symbolic zero cotangent of a linear input."""
    return ad.Zero(linear_input.aval.to_ct_aval())


def zero_like(output: jax.Array) -> Any:
    """The symbolic zero cotangent of a value, which pullbacks take in its place."""
    return ad.Zero(jax.typeof(output).to_tangent_aval().to_ct_aval())


is_linear_input: Callable[[object], bool] = ad.is_undefined_primal
full_tangent: Callable[[Any], Any] = ad.instantiate_zeros


# --- avals and meshes -----------------------------------------------------------------------------


def output_avals(
    metas: Sequence[tuple[jax.typing.DTypeLike, tuple[int, ...]]],
    avals: Sequence[Aval],
    shardings: Callable[[list[jax.ShapeDtypeStruct]], list[jax.NamedSharding]],
) -> list[Aval]:
    """Output avals that carry mesh and varying axes, which shard_map and explicit meshes need.

    Args:
      metas: dtype and shape of each output.
      avals: the input avals.
      shardings: called on an explicit mesh: input structs -> output shardings.
    """
    mesh = next((a.sharding.mesh for a in avals if not a.sharding.mesh.empty), None)
    if mesh is None:
        return [jax.core.ShapedArray(shape, dtype) for dtype, shape in metas]
    varying = frozenset().union(*(a.manual_axis_type.varying for a in avals))
    manual = jax.sharding.ManualAxisType(varying=varying)
    if any(t == jax.sharding.AxisType.Explicit for a in avals for t in a.sharding.mesh.axis_types):
        structs = [
            jax.ShapeDtypeStruct(
                a.shape, a.dtype, sharding=a.sharding, manual_axis_type=a.manual_axis_type
            )
            for a in avals
        ]
        places = shardings(structs)
    else:
        places = [jax.NamedSharding(mesh, jax.P(*[None] * len(shape))) for _, shape in metas]
    return [
        jax.core.ShapedArray(s, d, sharding=place, manual_axis_type=manual)
        for (d, s), place in zip(metas, places, strict=True)
    ]


def vary_together(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Inside shard_map: cast every array to the union of the varying axes; the cast's transpose is
    the psum.
    """
    kinds = [getattr(jax.typeof(a), "manual_axis_type", None) for a in arrays]
    union = frozenset().union(*(k.varying for k in kinds if k is not None))
    if not union:
        return list(arrays)
    cast = []
    for array, kind in zip(arrays, kinds, strict=True):
        more = tuple(union - kind.varying) if kind is not None else ()
        cast.append(jax.lax.pcast(array, more, to="varying") if more else array)
    return cast


def vary_as(array: jax.Array, aval: Aval) -> jax.Array:
    """Inside shard_map: an array that varies at least over the mesh axes of an aval, as the tangent
    of a value with this aval must. A rule may return a constant.
    """
    wanted = getattr(aval, "manual_axis_type", None)
    kind = getattr(jax.typeof(array), "manual_axis_type", None)
    if wanted is None or kind is None or wanted.varying <= kind.varying:
        return array
    return jax.lax.pcast(array, tuple(wanted.varying - kind.varying), to="varying")


def batch_place(axis: Axis) -> Any:
    """The mesh axis (or axes) of a vmap's batch axis; None inside a shard_map that has split it
    already.
    """
    name = axis.spmd_name or axis.explicit_mesh_axis
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return None if set(manual) & set(name if isinstance(name, tuple) else (name,)) else name


def mapped(fn: Callable[..., object], axis: Axis, dims: Sequence[Any]) -> Function:
    """`fn` under the vmap whose batching rule was given `axis`, with the batch first in results."""
    return jax.vmap(
        fn,
        in_axes=dims,
        axis_size=axis.size,
        axis_name=axis.name,
        spmd_axis_name=axis.spmd_name or axis.explicit_mesh_axis,
    )


def mapped_aval(aval: Aval, axis: Axis) -> Aval:
    """The aval of a value with the axis of a vmap first."""
    made: Any = jexc.unmapped_aval(axis.size, 0, aval, axis.explicit_mesh_axis)
    return made


def _automatic(mesh: Any) -> Any:
    """The scope in which the explicit axes of a mesh are automatic."""
    kinds = dict.fromkeys(mesh.explicit_axes, jax.sharding.AxisType.Auto)
    return jax.sharding.use_abstract_mesh(mesh.update_axis_types(kinds))


def run_on_automatic_axes(
    fn: Callable[..., list[Slot]],
    operands: tuple[object, ...],
    places: Callable[[list[Slot]], Sequence[jax.NamedSharding | jax.P | None]],
) -> list[Slot]:
    """fn(*operands) with the explicit axes of the operands' mesh made automatic, so that every op
    is defined.

    Args:
      fn: returns a list; entries that are not arrays (None for a zero) stay unchanged.
      operands: a tuple of pytrees.
      places: of the list, the sharding of each array on the explicit axes, or its spec; without a
        mesh, where an operand had none, the array is on all devices.
    """
    arrays = [x for x in jax.tree.leaves(operands) if isinstance(x, jax.Array)]
    mesh = next(
        (t.sharding.mesh for t in map(jax.typeof, arrays) if not t.sharding.mesh.empty), None
    )
    if mesh is None or not mesh.explicit_axes:
        return fn(*operands)
    with _automatic(mesh):
        moved = jax.tree.map(
            lambda x: jax.sharding.reshard(x, jax.P()) if isinstance(x, jax.Array) else x, operands
        )
        outs = fn(*moved)

    def placed(x: Slot, place: jax.NamedSharding | jax.P | None) -> Slot:
        if not isinstance(x, jax.Array):
            return x
        if not isinstance(place, jax.NamedSharding) or place.mesh.empty:
            place = jax.NamedSharding(mesh, place if isinstance(place, jax.P) else jax.P())
        return jax.sharding.reshard(x, place)

    return [placed(x, place) for x, place in zip(outs, places(outs), strict=True)]


# --- lowering -------------------------------------------------------------------------------------


def require_platforms(platforms: Sequence[str], where: str) -> None:
    """Refuse an empty, repeated or unknown choice of platforms."""
    if (
        isinstance(platforms, str)
        or not platforms
        or len(set(platforms)) < len(platforms)
        or not set(platforms) <= set(PLATFORMS)
    ):
        raise InvalidConfig(
            where=where,
            given=f"platforms={platforms!r}",
            needed=f"a tuple of different platforms among {', '.join(PLATFORMS)}",
            fix="For GPUs write cuda (NVIDIA) or rocm (AMD)."
            if "gpu" in platforms
            else f"Write ({platforms!r},)."
            if platforms in PLATFORMS
            else "",
        )


class Site(NamedTuple):
    """The site of a lowering."""

    platform: str
    exporting: bool
    partitioned: bool  # several devices, and not every mesh axis manual
    splits: bool = False  # partitioned, and JAX can split an op by a rule there


def site_of(ctx: LoweringContext) -> Site:
    """Read the lowering site from a lowering rule's context."""
    module = ctx.module_context
    axes: Any = module.axis_context
    manual, splits = getattr(axes, "manual_axes", None), False
    if manual is not None:
        partitioned = set(manual) != set(axes.mesh.axis_names)
    else:
        partitioned = getattr(axes, "num_devices", 1) not in (None, 1)
        knows_mesh = getattr(axes, "abstract_mesh", None) is not None
        splits = partitioned and knows_mesh and x64_enabled() == x64_elsewhere()
    platform = module.platforms[0] if len(module.platforms) == 1 else "default"
    exporting = module.lowering_parameters.for_export
    return Site(platform, exporting, partitioned, splits and not exporting)


def x64_elsewhere() -> bool:
    """Whether 64-bit types are on in other threads, where `with jax.enable_x64(...)` does not hold.
    XLA's partitioner asks for the programs of devices in a thread of its own.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return bool(thread.submit(x64_enabled).result())


def x64_enabled() -> bool:
    """Whether 64-bit types are on in this thread."""
    return bool(CONFIG.jax_enable_x64)


def lower_as_call(
    ctx: LoweringContext,
    args: Sequence[IrValue],
    name: str,
    fn: Callable[..., Iterable[jax.Array]],
    attributes: Callable[[], Mapping[str, str]],
) -> Any:
    """Lower `fn` to one func.call of a function called `name`, with a `tenferro.ext` attribute.

    The call survives jax.export with symbolic dimensions and several platforms; XLA inlines it.
    `attributes` is called after `fn` was traced.
    """

    def named(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        with jax.named_scope(name):  # the name of the op in profiles and errors
            return tuple(fn(*arrays))

    named.__name__ = named.__qualname__ = name
    called = jax.jit(named, inline=False)
    # Inside, mesh types are dropped, so that an author's loops need not know the mesh axes over
    # which their carries vary; new arrays have none either.
    avals: Sequence[Any] = ctx.avals_in
    plain = ctx.replace(avals_in=[jax.core.ShapedArray(a.shape, a.dtype) for a in avals])
    run = mlir.lower_fun(lambda *arrays: called(*arrays), multiple_results=True)
    try:
        with _automatic(jax.sharding.get_abstract_mesh()):
            outs = run(plain, *args)
    except KeyError as error:  # JAX has no token for it
        if not type(error.args[0]).__name__.startswith("Ordered"):
            raise
        raise Unsupported(
            where=f"extension {name}",
            given="an effect with ordered=True",
            needed="effects in any order, because JAX may run, merge, repeat or drop a call",
        ) from error
    flat, _ = mlir.ir_tree_registry.flatten(outs)
    owner = getattr(flat[0], "owner", None) if flat else None
    if owner is not None and owner.name == "func.call":
        owner.attributes[ATTRIBUTE] = ir.DictAttr.get(
            {k: ir.StringAttr.get(v) for k, v in attributes().items()}
        )
    return outs


def split_call(
    whole: Callable[..., tuple[jax.Array, ...]],
    inputs: Sequence[Sequence[str]],
    outputs: Sequence[Sequence[str]],
    factors: Mapping[str, str],
    axes_of: Callable[..., Mapping[str, tuple[str, ...]]],
    pieces: Callable[[Mapping[str, tuple[str, ...]]], Callable[..., Sequence[jax.Array]]],
) -> Callable[..., tuple[jax.Array, ...]]:
    """`whole` as one call that XLA's partitioner splits. It has no derivative and no vmap, so it is
    for lowerings alone.

    Args:
      whole: the function of whole arrays; it closes over no array.
      inputs: for each input the factor of each axis.
      outputs: for each output.
      factors: the kind of each factor: "pass", "reduction", or "whole".
      axes_of: (mesh shape, specs of the inputs, specs of the outputs) -> the mesh axes of each
        factor.
      pieces: axes -> the function of a device's pieces.
    """
    short = {factor: f"f{i}" for i, factor in enumerate(factors)}

    def mappings(terms: Sequence[Sequence[str]]) -> tuple[ArrayMapping, ...]:
        return tuple(ArrayMapping(*map(short.__getitem__, term)) for term in terms)

    def named(kind: str) -> tuple[str, ...]:
        return tuple(short[factor] for factor, its in factors.items() if its == kind)

    def partition(mesh: Any, args: Sequence[Any], outs: Sequence[Any]) -> Any:
        given, made = [x.sharding.spec for x in args], [x.sharding.spec for x in outs]
        axes = axes_of(dict(mesh.shape), given, made)

        def places(terms: Sequence[Sequence[str]]) -> tuple[jax.NamedSharding, ...]:
            specs = (jax.P(*map(axes.get, term)) for term in terms)
            return tuple(jax.NamedSharding(mesh, spec) for spec in specs)

        fn = pieces(axes)

        def on_device(*xs: jax.Array) -> tuple[jax.Array, ...]:
            nowhere = jax.sharding.AbstractMesh((), ())
            # One place in the source for all that a device computes: with many, a pass of XLA in
            # JAX 0.12.0.1, propagate-call-metadata, does not end for some small loops.
            here = source_info_util.current()
            one_place = source_info_util.user_context(here.traceback)
            with (
                jax.default_matmul_precision(precision),
                jax.sharding.use_abstract_mesh(nowhere),
                one_place,
            ):
                return tuple(fn(*xs))

        return mesh, on_device, places(outputs), places(inputs)

    precision = CONFIG.jax_default_matmul_precision
    call = custom_partitioning(whole)
    sharding_rule = SdyShardingRule(
        mappings(inputs),
        mappings(outputs),
        reduction_factors=named("reduction"),
        need_replication_factors=named("whole"),
    )
    call.def_partition(partition=partition, sharding_rule=sharding_rule)
    return call


@functools.cache
def splittable() -> ClosedJaxpr | None:
    """A param of equations that `split_call` lowers: a jaxpr with a call for the partitioner. JAX
    tells the lowering of a program the mesh only if it finds such a call in the program or in a
    param. None on one device, where nothing is split.
    """
    if jax.device_count() == 1:
        return None
    none: dict[str, tuple[str, ...]] = {}
    call = split_call(lambda x: (x,), [()], [()], {}, lambda *_: none, lambda _: lambda x: (x,))
    return jax.make_jaxpr(call)(jax.ShapeDtypeStruct((), bool))


# --- exported modules -----------------------------------------------------------------------------


_CONSTRAINT = re.compile(
    r"the symbolic shape constraint (.*?)\. Expected "
)  # in the message of a shape assertion


class Module(NamedTuple):
    """The content of a StableHLO module.

    Attributes:
      extensions: the `tenferro.ext` attributes of every call, in order.
      custom_calls: the targets of custom calls, sorted, each once.
      ops: the number of uses of each op, by name.
      constraints: constraints of the sizes of its inputs, beside being 1 or more, such as "b <= c".
    """

    extensions: tuple[dict[str, str], ...]
    custom_calls: tuple[str, ...]
    ops: dict[str, int]
    constraints: tuple[str, ...]


def read_module(portable: bytes) -> Module:
    """The content of a portable StableHLO artifact; raises the exceptions of JAX's parser."""
    extensions: list[dict[str, str]] = []
    targets: set[str] = set()
    ops: collections.Counter[str] = collections.Counter()
    constraints: dict[str, None] = {}  # read back, the scope of the symbols has none
    with mlir.make_ir_context() as context:
        module = deserialize_portable_artifact(
            portable, context
        )  # keeps the module alive while its parts are read
        for op in _operations(module.operation):
            ops[op.name] += 1
            if ATTRIBUTE in op.attributes:
                tags = ir.DictAttr(op.attributes[ATTRIBUTE])
                extensions.append(
                    {tags[i].name: ir.StringAttr(tags[i].attr).value for i in range(len(tags))}
                )
            if op.name == "stablehlo.custom_call":
                targets.add(ir.StringAttr(op.attributes["call_target_name"]).value)
                if "error_message" in op.attributes:
                    said = _CONSTRAINT.search(ir.StringAttr(op.attributes["error_message"]).value)
                    constraints.update({said[1]: None} if said else {})
    return Module(tuple(extensions), tuple(sorted(targets)), dict(ops), tuple(constraints))


def text_of(portable: bytes) -> str:
    """A portable artifact as text, which parsers of plain StableHLO read if the program is for one
    device: JAX writes into calls of LAPACK how they may be split, in the dialect of Shardy.
    """
    with mlir.make_ir_context() as context:
        module = deserialize_portable_artifact(portable, context)
        ops = list(_operations(module.operation))
        if not any(op.name == "sdy.mesh" for op in ops):
            for op in ops:
                for name in [name for name in op.attributes if name.startswith("sdy.")]:
                    del op.attributes[name]
        return str(module.operation.get_asm(enable_debug_info=True))


def _operations(op: ir.Operation) -> Iterator[ir.Operation]:
    """An operation and those inside it, in their order."""
    yield op
    for region in op.regions:
        for block in region:
            for child in block:
                yield from _operations(child.operation)


def rewrite_portable(portable: bytes, requirement: str) -> bytes:
    """A portable StableHLO artifact without source locations, for older consumers (requirement
    "WEEK_12").

    It is written as "mixed", as JAX does: meshes and shard_map bodies stay in their own dialect,
    and composites may have regions (cumsum for GPUs, from JAX 0.11 on).
    """
    level = getattr(stablehlo.StablehloCompatibilityRequirement, requirement)
    target = stablehlo.get_version_from_compatibility_requirement(level)
    with mlir.make_ir_context() as context:
        module = deserialize_portable_artifact(portable, context)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        return bytes(serialize_portable_artifact(mlir.module_to_bytecode(module), target, True))


def unguaranteed_calls(error: Exception) -> list[tuple[str, str]]:
    """(target, op) of each custom call that JAX's export refused as unstable, read from its error,
    because JAX's list is not public.
    """
    return [(quoted or plain, op) for quoted, plain, op in _REFUSED.findall(str(error))]


def refused_for(error: Exception) -> tuple[str, int]:
    """Why jax.export refuses, read from its error text: a key of `_SAID` or "", and the numbers of
    devices in the text.
    """
    why = next((why for why, words in _SAID.items() if re.search(words, str(error))), "")
    devices = re.search(_SAID["devices"], str(error))
    return why, int(devices[1]) if devices else 0


def lacks_derivative(error: Exception) -> bool:
    """Whether JAX says that something has no derivative or transpose, read from its error text."""
    return bool(re.search("JVP|jvp|ifferentia|ranspos", str(error)))


_SAID = {
    "sizes": "polymorphic shapes specification|Error refining shapes",
    "devices": r"(?:in a context with|device assignment) (\d+)",
    "platforms": "was exported for platforms",
    "class": "unregistered type",
    "name": "for serialized_name",
    "routine": "not found for platform",
    "vmap": "Batching rule for 'call_exported'",
    "forward": "apply forward-mode autodiff",
}
_REFUSED = re.compile(
    r'^%?.*stablehlo\.custom_call @(?:"([^"]+)"|([\w.$-]+)).* at loc\((?:"([^"]*)")?', re.MULTILINE
)


_UNSUPPORTED = re.compile(
    r"do(es)? not support (JVP|differentiation|reverse)|cannot be (differentiated|transposed)|"
    r"[Rr]everse-mode differentiation does not work|forward-mode (autodiff|differentiation) \(jvp\)"
    r"|(Differentiation|Transpose|Batching|MLIR translation) rule|[Nn]ot implemented|[Uu]nsupported"
    r"|[Nn]ot supported|does not accept dtype|manual axis types do not match"
)


def says_unsupported(error: BaseException) -> bool:
    """Whether JAX or a library says that it lacks a transform or a dtype, read from the text."""
    return isinstance(error, NotImplementedError) or bool(_UNSUPPORTED.search(str(error)))


def lacks_symbolic(error: BaseException) -> bool:
    """Whether JAX says that an operation has no form for symbolic sizes, read from the text. Links
    are left out: that to the page on shape polymorphism is in other errors too.
    """
    text = re.sub(r"https?://\S+", "", str(error))
    return bool(re.search("[Pp]olymorphi|non-constant", text))


def failed_inside(error: Exception) -> bool:
    """Whether compiled code failed, as its host callback did. JAX raises JaxRuntimeError, and where
    a jitted function is called again ValueError, which is read from its text.
    """
    again = type(error) is ValueError and str(error).startswith("INTERNAL: ")
    return again or isinstance(error, jax.errors.JaxRuntimeError)


# --- jaxprs ---------------------------------------------------------------------------------------


def open_jaxpr(closed: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    """(jaxpr, constants) of a ClosedJaxpr or a Jaxpr; from JAX 0.11 they are one class."""
    inner: Any = closed
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


def closed(jaxpr: ClosedJaxpr, constants: Sequence[object]) -> ClosedJaxpr:
    """A jaxpr together with its constants."""
    inner: Any = open_jaxpr(jaxpr)[0]
    return jexc.ClosedJaxpr(inner, list(constants)) if constants else jaxpr


def jaxpr_of(flat: Function, avals: Sequence[Aval]) -> ClosedJaxpr:
    """That of a function of arrays with these avals, which returns a list. jax.make_jaxpr takes
    twice as long where a function is small.
    """
    info = jax.api_util.debug_info("both_modes", flat, tuple(avals), {})
    made = linear_util.wrap_init(flat, debug_info=info)
    jaxpr, _, constants = partial_eval.trace_to_jaxpr_dynamic(made, list(avals))
    return jexc.ClosedJaxpr(jaxpr, constants)


def as_function(eqn: Eqn) -> Function:
    """The function that an equation calls; calling it again also applies derivative rules."""
    params = eqn.primitive.get_bind_params(eqn.params)
    return lambda *xs: eqn.primitive.bind(*xs, **params)


def run_jaxpr(
    jaxpr: ClosedJaxpr,
    inputs: Sequence[object],
    called: Callable[[Eqn], Function],
) -> list[Any]:
    """The outputs of a jaxpr for values or tracers, with `called(eqn)` as the function of each
    equation's inputs.
    """
    inner, constants = open_jaxpr(jaxpr)
    values: dict[Any, Any] = dict(
        zip((*inner.constvars, *inner.invars), (*constants, *inputs), strict=True)
    )

    def value_of(atom: Atom) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    for eqn in inner.eqns:
        with eqn.ctx.manager:  # the settings under which it was traced
            outs = called(eqn)(*map(value_of, eqn.invars))
        values.update(
            zip(eqn.outvars, outs if eqn.primitive.multiple_results else [outs], strict=True)
        )
    return list(map(value_of, inner.outvars))


@functools.cache
def _makes_refs() -> Any:
    """The effect of a program that makes a ref by `jax.new_ref`, and keeps it to itself."""
    (effect,) = jax.make_jaxpr(lambda: jax.new_ref(0.0)[...])().effects
    return effect


def _zeros(aval: Aval) -> jax.Array:
    """Zeros that vary over the axes of a shard_map over which this does."""
    zeros = jax.numpy.zeros(aval.shape, aval.dtype)
    varying = tuple(aval.manual_axis_type.varying)
    return jax.lax.pcast(zeros, varying, to="varying") if varying else zeros


def without_refs(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The same with values in place of the refs that it makes, which is how JAX lowers it. Itself
    if it makes none, or in a place where JAX has no such form, as in a custom rule.

    JAX can transpose a write to a ref only if it has linearized the `new_ref` together with it;
    the derivative rule of a primitive, and jax.linear_transpose, see the write alone.
    """
    effects = getattr(jaxpr, "effects", ())
    avals = [v.aval for v in open_jaxpr(jaxpr)[0].outvars]
    has_key = any(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended) for aval in avals)
    if not effects or set(effects) != {_makes_refs()} or has_key:
        return jaxpr
    from jax.experimental import pallas  # noqa: PLC0415  # it takes long to import

    def written(refs: tuple[Sequence[jax.Ref], Sequence[jax.Ref]]) -> None:
        given, made = refs
        values = run_jaxpr(jaxpr, [ref[...] for ref in given], as_function)
        for ref, value in zip(made, values, strict=True):
            ref[...] = value

    def values_of(*inputs: jax.Array) -> list[Any]:
        empty = list(map(_zeros, avals))
        traced = jax.make_jaxpr(pallas.run_state(written))((inputs, empty))
        # The implementation of run_state has values in place of all refs.
        run = run_jaxpr(
            traced,
            [*inputs, *empty],
            lambda eqn: functools.partial(eqn.primitive.impl, **eqn.params),
        )
        return run[len(inputs) :]

    try:
        return jax.make_jaxpr(values_of)(*(v.aval for v in open_jaxpr(jaxpr)[0].invars))
    except NotImplementedError:
        return jaxpr


def only_needed(fn: Function, *args: jax.Array) -> Function:
    """`fn` for arguments like these, without the equations that its results do not need."""
    jaxpr, constants = open_jaxpr(jax.make_jaxpr(fn)(*args))
    kept = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)  # type: ignore[arg-type]
    return lambda *xs: jax.core.eval_jaxpr(kept[0], constants, *xs)


def recomputed(
    fn: Function,
    policy: Callable[..., bool] | None = None,
    prevent_cse: bool | tuple[bool, ...] = True,
) -> Function:
    """jax.checkpoint of a function that may be linear. With the flag jax_remat3 JAX 0.12 has no
    transpose of one: the primitive is bound that jax.checkpoint has without the flag.
    """
    convert = getattr(partial_eval, "convert_constvars_jaxpr", None)  # from JAX 0.12 on
    if convert is None or not jax.config.values.get("jax_remat3"):
        return jax.checkpoint(fn, policy=policy, prevent_cse=prevent_cse)

    def run(*args: object) -> Any:
        leaves, tree = jax.tree.flatten(args)
        traced, shapes = jax.make_jaxpr(
            lambda *xs: fn(*jax.tree.unflatten(tree, xs)), return_shape=True
        )(*leaves)
        inner, constants = open_jaxpr(traced)
        prevented = prevent_cse
        if isinstance(prevented, tuple):
            prevented = (False,) * len(constants) + prevented
        outs = jexc.primitives.remat_p.bind(
            *constants,
            *leaves,
            jaxpr=convert(inner),
            policy=policy,
            prevent_cse=prevented,
            differentiated=False,
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return run


def with_inner(
    eqn: Eqn,
    run: Callable[[ClosedJaxpr, Sequence[object]], list[object]],
    known: MutableMapping[ClosedJaxpr, ClosedJaxpr] | None = None,
) -> Function:
    """The function that an equation calls, with `run(jaxpr, values)` instead of each jaxpr among
    its params; `known` keeps those that were traced so.
    """
    if eqn.primitive.name == "shard_map":
        of_mesh = {
            name: eqn.params[name] for name in ("mesh", "in_specs", "out_specs", "check_vma")
        }
        axes = set(eqn.params["newly_manual_axes"])
        return jax.shard_map(
            lambda *xs: tuple(run(eqn.params["jaxpr"], xs)), axis_names=axes, **of_mesh
        )
    anew = _written_anew(eqn)
    if anew is not None:
        body = _body_written_anew(eqn, anew)
        prevent_cse = getattr(anew, "prevent_cse", True)  # JAX 0.10 has no choice there
        return recomputed(lambda *xs: run(body, xs), anew.policy, prevent_cse)

    def changed(value: Any) -> Any:
        if isinstance(value, tuple | list):
            items = [changed(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if not (hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")):
            return value
        if known is not None and value in known:
            return known[value]
        made: Any = jax.make_jaxpr(lambda *xs: run(value, xs))(
            *(struct_of(v.aval) for v in open_jaxpr(value)[0].invars)
        )
        made = made if hasattr(value, "consts") else open_jaxpr(made)[0]
        if known is not None:
            known[value] = made
        return made

    params = eqn.primitive.get_bind_params(
        eqn.params | {name: changed(value) for name, value in eqn.params.items()}
    )
    return lambda *xs: eqn.primitive.bind(*xs, **params)


def struct_of(aval: Aval) -> jax.ShapeDtypeStruct:
    """The argument of make_jaxpr for an input of this aval."""
    if aval.sharding.mesh.empty:
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    places = {"sharding": aval.sharding, "manual_axis_type": aval.manual_axis_type}
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, **places)


def struct_beside(struct: jax.ShapeDtypeStruct, arrays: Sequence[jax.Array]) -> Any:
    """The same argument of make_jaxpr, varying over all mesh axes over which these arrays vary."""
    kinds = [getattr(jax.typeof(x), "manual_axis_type", None) for x in arrays]
    union = frozenset().union(*(kind.varying for kind in kinds if kind is not None))
    if not union:
        return struct
    meshes = (jax.typeof(x).sharding.mesh for x in arrays)
    mesh = next(mesh for mesh in meshes if not mesh.empty)
    places = {
        "sharding": jax.NamedSharding(mesh, jax.P(*[None] * len(struct.shape))),
        "manual_axis_type": jax.sharding.ManualAxisType(varying=union),
    }
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, **places)


def expansion(eqn: Eqn) -> Function:
    """The expansion of an equation of a hijax primitive into ordinary primitives."""
    primitive = eqn.params["_prim"]
    return lambda *xs: jax.tree.leaves(primitive.expand(*primitive.in_tree.unflatten(xs)))


_HIJAX = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # JAX 0.10

_WRITTEN_ANEW = {
    "CustomJVPTraced": "custom_jvp_call",
    "CustomVJPTraced": "custom_vjp_call",
    "RematTraced": "checkpoint",
    "CheckpointName": "name",
    "CheckpointNameFwd": "name",
}
"""The hijax primitives of the flags jax_custom_jvp3, jax_custom_vjp3 and jax_remat3, and what the
primitive is called without the flag.
"""


def _written_anew(eqn: Eqn) -> Any:
    """The hijax primitive of an equation if it is one of `_WRITTEN_ANEW`; None otherwise."""
    if eqn.primitive.name != "call_hi_primitive":
        return None
    primitive = eqn.params["_prim"]
    known = type(primitive).__name__ in _WRITTEN_ANEW
    return primitive if known and type(primitive).__module__.startswith("jax.") else None


def name_of(eqn: Eqn) -> str:
    """The name of an equation's primitive, the same with and without JAX's flags for new custom
    rules and checkpoints.
    """
    primitive = _written_anew(eqn)
    return eqn.primitive.name if primitive is None else _WRITTEN_ANEW[type(primitive).__name__]


def _body_written_anew(eqn: Eqn, primitive: Any) -> ClosedJaxpr:
    """The jaxpr that a hijax primitive of `_WRITTEN_ANEW` calls, of the inputs of its equation."""
    held = getattr(primitive, "traced", primitive)
    inner = getattr(held, "jaxpr", None)
    if inner is not None and len(open_jaxpr(inner)[0].invars) == len(eqn.invars):
        return inner
    return jax.make_jaxpr(expansion(eqn))(*(struct_of(v.aval) for v in eqn.invars))


def one_by_one(eqn: Eqn) -> Function:
    """The function of an equation that moves several arrays, with a call for each array."""

    def run(*xs: jax.Array) -> list[Any]:
        moved = []
        for i, x in enumerate(xs):
            own = {name: each[i : i + 1] for name, each in eqn.params.items()}
            moved += eqn.primitive.bind(x, **own)
        return moved

    return run


class Calls(enum.Enum):
    """What an equation calls, where forward mode or a transpose needs something else."""

    NOTHING_SPECIAL = enum.auto()
    REVERSE_RULE = enum.auto()
    """A jax.custom_vjp, or a hijax primitive without forward mode."""
    FORWARD_RULE = enum.auto()
    """A jax.custom_jvp, whose rule may call a function of others that has a reverse rule alone."""
    SEVERAL_MOVES = enum.auto()
    """It puts several arrays on devices. Where one of them is linear JAX has no transpose, because
    it takes all for linear."""
    NEW_CHECKPOINT = enum.auto()
    """A checkpoint with the flag jax_remat3, which JAX cannot transpose."""


def calls_of(eqn: Eqn) -> Calls:
    """What an equation calls."""
    name = name_of(eqn)
    if name == "custom_vjp_call":
        return Calls.REVERSE_RULE
    if name == "custom_jvp_call":
        return Calls.NOTHING_SPECIAL if _is_of_jax_numpy(eqn) else Calls.FORWARD_RULE
    if name == "device_put" and len(eqn.invars) > 1:
        return Calls.SEVERAL_MOVES
    if eqn.primitive.name != "call_hi_primitive":  # another one calls its tangents
        return Calls.NOTHING_SPECIAL
    primitive: Any = eqn.params["_prim"]
    while hasattr(primitive, "prim"):  # under vmap
        primitive = primitive.prim
    if type(primitive).jvp is _HIJAX.jvp or "CustomVJP" in type(primitive).__name__:
        return Calls.REVERSE_RULE
    return Calls.NEW_CHECKPOINT if name == "checkpoint" else Calls.NOTHING_SPECIAL


def _is_of_jax_numpy(eqn: Eqn) -> bool:
    """Whether a jax.custom_jvp is one of jax.nn and jax.numpy: their rules call no function of
    others.
    """
    parts = source_of(eqn)[1].parts
    return {"jax", "_src"} <= {*parts} and bool({"nn", "numpy", "scipy"} & {*parts})


def closed_over(eqn: Eqn) -> int:
    """How many of the inputs of a call with a custom derivative are values that its function closes
    over. They are the first.
    """
    primitive = _written_anew(eqn)
    if hasattr(primitive, "drop_fwd_consts"):  # with the flag jax_custom_vjp3, from JAX 0.12
        return len(jax.tree.leaves(primitive.in_avals[:2]))
    return int(eqn.params.get("num_consts", 0))


def forward_rule(eqn: Eqn, places: Sequence[int]) -> Jaxpr | None:
    """The jaxpr of `fwd` of a call of a jax.custom_vjp if its arguments at these places move; None
    where JAX does not keep it.
    """
    fwd, consts = eqn.params.get("fwd_jaxpr_thunk"), closed_over(eqn)
    if fwd is None or any(i < consts for i in places):
        return None
    found: Jaxpr = fwd.call_wrapped(*(i in places for i in range(consts, len(eqn.invars))))[0]
    return found


MARK = "#"
"""What follows it in the name of a function is no part of the author's name."""


def source_of(eqn: Eqn) -> tuple[str, pathlib.PurePath]:
    """The author's name of the function that an equation calls by its custom rule, and the file
    with the line in which it is written.
    """
    primitive = eqn.params.get("_prim")
    held = eqn.params.get("call_jaxpr", getattr(primitive, "traced", None))
    if held is None:
        return type(primitive).__name__, pathlib.PurePath(type(primitive).__module__)
    inner = open_jaxpr(held.jaxpr if hasattr(held, "jaxpr") else held)[0]
    name, _, at = inner.debug_info.func_src_info.partition(" at ")
    return name.split(MARK)[0], pathlib.PurePath(at)


def is_literal(atom: object) -> TypeGuard[Literal]:
    """Whether an equation's input is a literal."""
    return isinstance(atom, jexc.Literal)


def inner_jaxprs(eqn: Eqn) -> list[ClosedJaxpr]:
    """The jaxprs among an equation's params."""
    anew = _written_anew(eqn)
    if anew is not None:
        return [_body_written_anew(eqn, anew)]
    found = []
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns") or hasattr(getattr(item, "jaxpr", None), "eqns"):
                found.append(item)
    return found


def calls_back(eqn: Eqn) -> bool:
    """Whether an equation calls Python code on the host."""
    return bool(re.search("callback|debug|inspect", eqn.primitive.name))


def spreads(value: Any) -> bool:
    """Whether an array, a ShapeDtypeStruct, a sharding, a mesh or an equation shows that a program
    is for several devices.
    """
    if hasattr(value, "primitive"):
        return any(
            spreads(x) for p in value.params.values() for x in (p if isinstance(p, tuple) else (p,))
        )
    if isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return value.size > 1
    sharding = (
        value if isinstance(value, jax.sharding.Sharding) else getattr(value, "sharding", None)
    )
    return isinstance(sharding, jax.sharding.Sharding) and sharding.num_devices > 1


def manual_inside(eqn: Eqn) -> bool | None:
    """For a shard_map equation: whether all mesh axes are manual inside; None for other
    equations.
    """
    if eqn.primitive.name != "shard_map":
        return None
    mesh = eqn.params["mesh"]
    return set(mesh.axis_names) <= {
        *eqn.params["newly_manual_axes"],
        *getattr(mesh, "manual_axes", ()),
    }


def scan_counts(eqn: Eqn) -> tuple[int, int, int]:
    """(constants, carried values, scanned arrays) of a scan equation.

    The params for this differ between JAX versions; in all of them a scanned or stacked array has
    one axis more outside the body than inside.
    """
    body, _ = open_jaxpr(eqn.params["jaxpr"])

    def same_rank(outer: Sequence[Atom], inner: Sequence[Atom]) -> int:
        return sum(
            len(a.aval.shape) == len(b.aval.shape) for a, b in zip(outer, inner, strict=True)
        )

    carried = same_rank(eqn.outvars, body.outvars)
    scanned = len(eqn.invars) - same_rank(eqn.invars, body.invars)
    return len(eqn.invars) - carried - scanned, carried, scanned


# --- functions that only newer versions have ------------------------------------------------------


def comparison(name: str) -> Function:
    """The lax function of a comparison: "lt" and the like, and "lt_to" for the total order, which
    exists only as a primitive.
    """
    primitive: Any = getattr(jexc.primitives, f"{name}_p", None)
    return getattr(jax.lax, name) if hasattr(jax.lax, name) else lambda x, y: primitive.bind(x, y)
