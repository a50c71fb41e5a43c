"""Ops and rules that break one clause each, beside twins that keep it: `broken` says which one it
is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.errors import ShapeError
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    ShardingRule,
    apply,
    require_equal,
)
from tenferro_jax.extension.kernels import NO_RUNTIMES
from tenferro_jax.extension.rules import NO_RULES

from ..extension_ops import ScaledSquare
from ..helpers import throw

X = np.array([0.5, -1.25, 2.0])
Y = np.array([1.5, 0.75, -0.5])


@dataclass(frozen=True)
class Defect:
    """A broken op, its twin, the check that must fail for the one and pass for the other, and the
    clause it must name.
    """

    check: str
    clause: str
    make: Callable[[bool], ExtensionOp]
    inputs: tuple[np.ndarray, ...] = (X,)
    rules: Callable[[bool], ExtensionRuleSet] = lambda broken: NO_RULES
    runtimes: Callable[[bool], ExtensionRuntimeSet] = lambda broken: NO_RUNTIMES


class Same(ExtensionOp):
    """One output like the first input."""

    def infer_output_meta(self, inputs):
        return [inputs[0]]


@dataclasses.dataclass(frozen=True)
class Copy(Same):
    """Its input, on the host; what is broken, if something is, is declared beside it."""

    broken: bool = True

    def eager_execute(self, x):
        return (np.array(x),)


# --- inference ------------------------------------------------------------------------------------


class OneMore(Copy):
    """Says that a symbolic size grows by one."""

    family_id = "broken.one_more.v1"

    def infer_output_meta(self, inputs):
        return [
            (
                inputs[0].dtype,
                [n if isinstance(n, int) or not self.broken else n + 1 for n in inputs[0].shape],
            )
        ]


@dataclass(frozen=True)
class AddOrJoin(ExtensionOp):
    """Adds vectors of one size, joins others; or demands one size."""

    broken: bool
    family_id = "broken.add_or_join.v1"
    input_count = 2

    def infer_output_meta(self, inputs):
        x, y = inputs
        if not self.broken:
            require_equal(x.shape[0], y.shape[0])
            return [x]
        return [x if x.shape == y.shape else (x.dtype, (x.shape[0] + y.shape[0],))]

    def eager_execute(self, x, y):
        return (x + y if x.shape == y.shape else np.concatenate([x, y]),)


@dataclass(frozen=True)
class AddEqual(AddOrJoin):
    """Refuses sizes that are not `==`."""

    family_id = "broken.add_equal.v1"

    def infer_output_meta(self, inputs):
        x, y = inputs
        if not self.broken:
            require_equal(x.shape[0], y.shape[0])
        elif x.shape != y.shape:
            raise ShapeError(where=self.family_id, given="two sizes", needed="one", fix="Cut one.")
        return [x]


class IntegerSize(Copy):
    family_id = "broken.integer_size.v1"

    def infer_output_meta(self, inputs):
        return [(inputs[0].dtype, [int(n) if self.broken else n for n in inputs[0].shape])]


@dataclasses.dataclass(frozen=True)
class Narrow(Same):
    """Promises the dtype of its input and computes in float32."""

    family_id = "broken.narrow.v1"
    broken: bool

    def lower_to_standard_ops(self, x):
        return (jnp.cos(x.astype("float32") if self.broken else x),)


@dataclasses.dataclass(frozen=True)
class Inverse(Same):
    """Takes every precision, though NumPy's inverse has no half precision."""

    family_id = "broken.inverse.v1"
    broken: bool

    def eager_execute(self, x):
        return (
            np.linalg.inv(
                x if self.broken else x.astype(np.promote_types(x.dtype, "float32"))
            ).astype(x.dtype),
        )


class TwoPromised(Copy):
    family_id = "broken.two_promised.v1"

    def infer_output_meta(self, inputs):
        return [inputs[0]] * (2 if self.broken else 1)


@dataclass(frozen=True)
class FlatOnly(Same):
    """Promises every rank, and meets the wrong ones with an error of Python's."""

    broken: bool
    family_id = "broken.flat_only.v1"

    def infer_output_meta(self, inputs):
        if not self.broken and inputs[0].ndim != 1:
            raise ShapeError(
                where=self.family_id, given=str(inputs[0]), needed="a vector", fix="Reshape it."
            )
        return [inputs[0]]

    def lower_to_standard_ops(self, x):
        (_,) = x.shape
        return (x + x,)


# --- identity -------------------------------------------------------------------------------------


class ByPayload(Copy):
    """Each op has another family; or all have that of the class."""

    @property
    def family_id(self):
        return f"broken.by_payload_{len(repr(self))}.v1"


class ByClass(Copy):
    family_id = "broken.by_class.v1"


_looks, _lowerings = itertools.count(), itertools.count()


class Varying(Copy):
    family_id = "broken.varying.v1"

    @property
    def output_count(self):
        return 1 + (next(_looks) % 2 if self.broken else 0)


@dataclass(frozen=True)
class Remembering(Same):
    """Keeps its last result on itself."""

    broken: bool
    family_id = "broken.remembering.v1"

    def eager_execute(self, x):
        out = np.tanh(x)
        if self.broken:
            object.__setattr__(self, "last", out)
        return (out,)


@dataclass(frozen=True)
class OwnKey(Same):
    """Says that every two of it are equal."""

    broken: bool
    factor: float = 2.0
    family_id = "broken.own_key.v1"

    @property
    def typed_key(self):
        return OwnKey if self.broken else super().typed_key

    def eager_execute(self, x):
        return (x * np.asarray(self.factor, x.dtype),)


@dataclass(frozen=True)
class Growing(Copy):
    """Changes its payload whenever it is made."""

    width: int = 1
    family_id = "broken.growing.v1"

    def __post_init__(self):
        object.__setattr__(self, "width", self.width + 1)
        super().__post_init__()


# --- execution ------------------------------------------------------------------------------------


# sin, and the mistakes that its host form may have.
SINES = {
    "": lambda x: (np.sin(x),),
    "random": lambda x: (np.sin(x) + np.random.default_rng().random(),),
    "writes": lambda x: (np.sin(x, out=x),),
    "writes by force": lambda x: (x.setflags(write=True), np.sin(x, out=x))[1:],
    "device": lambda x: (jnp.sin(x),),
    "raises": lambda x: throw(RuntimeError("no licence")),
    "three": lambda x: (np.sin(x),) * 3,
}


@dataclasses.dataclass(frozen=True)
class HostSine(Same):
    family_id = "broken.host_sine.v1"
    mistake: str = ""

    def eager_execute(self, x):
        return SINES[self.mistake](x)


@dataclasses.dataclass(frozen=True)
class Nested(Same):
    """Lowers to another extension."""

    family_id = "broken.nested.v1"
    broken: bool

    def lower_to_standard_ops(self, x):
        return apply(ScaledSquare(), x) if self.broken else (x * x,)


@dataclasses.dataclass(frozen=True)
class Counting(Same):
    """Every lowering has another constant."""

    family_id = "broken.counting.v1"
    broken: bool

    def lower_to_standard_ops(self, x):
        return (x + jnp.asarray(next(_lowerings) if self.broken else 1, x.dtype),)


@dataclass(frozen=True)
class Unrolled(ExtensionOp):
    """A sum by a Python loop over the size: right for every size, but for one that is not known."""

    broken: bool
    family_id = "broken.unrolled.v1"

    def infer_output_meta(self, inputs):
        if not inputs[0].shape:
            raise ShapeError(
                where=self.family_id,
                given="a scalar",
                needed="an axis to sum over",
                fix="Give it one.",
            )
        return [(inputs[0].dtype, inputs[0].shape[1:])]

    def lower_to_standard_ops(self, x):
        if self.broken:
            return (sum((x[i] for i in range(x.shape[0])), jnp.zeros(x.shape[1:], x.dtype)),)
        return (x.sum(0, dtype=x.dtype),)


@dataclasses.dataclass(frozen=True)
class SumOver(ExtensionOp):
    """The sum over one axis; its batched form may forget where the batch axis is."""

    family_id = "broken.sum_over.v1"
    broken: bool
    axis: int = 0

    def lower_to_standard_ops(self, x):
        return (x.sum(self.axis, dtype=x.dtype),)

    def batched(self, in_axes):
        return (
            dataclasses.replace(
                self, axis=1 if self.broken else self.axis + (in_axes[0] <= self.axis)
            ),
            (0,),
        )


@dataclass(frozen=True)
class Scaled(ExtensionOp):
    """x times sin(y) of one shape; its batched form is wrong for one choice of batch axes."""

    wrong: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    family_id = "broken.scaled.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, y):
        if self.axes:
            x, y = (jnp.moveaxis(a, axis, 0) for a, axis in zip((x, y), self.axes, strict=True))
        factor = 2 if self.axes and self.axes == self.wrong else 1
        return (jnp.asarray(factor, x.dtype) * x * jnp.sin(y),)

    def batched(self, in_axes):
        if self.axes or None in in_axes:
            return None
        return dataclasses.replace(self, axes=in_axes), (0,)


@dataclass(frozen=True)
class OnHost(Same):
    """1.5 x by a lowering and on the host, where one kind of input may be got wrong."""

    wrong: str
    family_id = "broken.on_host.v1"

    def lower_to_standard_ops(self, x):
        return (x * jnp.asarray(1.5, x.dtype),)

    def eager_execute(self, x):
        wrong = {
            "float32": x.dtype == np.float32,
            "size 1": 1 in x.shape,
            "odd sizes": x.ndim == 1 and x.size % 2 == 1,
        }.get(self.wrong, False)
        if self.wrong == "order" and not x.flags.c_contiguous:
            x = np.ndarray(x.shape, x.dtype, x.tobytes("A"))
        if self.wrong == "small":
            x = np.where(abs(x) < 1e-10, 0, x).astype(x.dtype)
        factor = 1.01 if wrong else 1.0001 if self.wrong == "fourth digit" else 1
        return ((x * 1.5 * factor).astype(x.dtype),)


@dataclasses.dataclass(frozen=True)
class Placed(Same):
    """exp in NumPy only; without a rule nobody can place it on a mesh with explicit axes."""

    family_id = "broken.placed.v1"
    broken: bool

    def eager_execute(self, x):
        return (np.exp(x),)

    def sharding_rule(self, inputs):
        return None if self.broken else ShardingRule("... -> ...")


# --- sharding rules -------------------------------------------------------------------------------


def first_of_devices(shard, x):
    """The first row of a column that has its greatest entry, among the rows of all devices."""
    own = shard.merged("max", x.max(0), "i")
    here = jnp.where(
        x.max(0) == own, jnp.argmax(x, 0).astype(jnp.int32) + shard.start("i"), 1 << 30
    )
    return (shard.merged("min", here, "i"),)


def own_index(shard, x):
    return (shard.merged("min", jnp.argmax(x, 0).astype(jnp.int32), "i"),)


def with_neighbour(shard, x):
    """Right on two devices."""
    own, count = x.sum(0), shard.whole("i") // x.shape[0]
    if count == 1:
        return (own,)
    (axis,) = shard.axes["i"]
    return (own + jax.lax.ppermute(own, axis, [(k, (k + 1) % count) for k in range(count)]),)


# Of each function the rule, and one that is wrong.
SPLITS = {
    "softmax": (
        lambda x: jax.nn.softmax(x, 0),
        ShardingRule("i j -> i j", whole=("i",)),
        ShardingRule("i j -> i j"),
    ),
    "sum": (
        lambda x: x.sum(0),
        ShardingRule("i j -> j", "sum"),
        ShardingRule("i j -> j", "max"),
    ),
    "sum of many": (
        lambda x: x.sum(0),
        ShardingRule("i j -> j", "sum"),
        ShardingRule("i j -> j", on_device=with_neighbour),
    ),
    "max": (
        lambda x: x.max(0),
        ShardingRule("i j -> j", "max"),
        ShardingRule("i j -> j", "sum"),
    ),
    "winner": (
        lambda x: jnp.argmax(x, 0).astype(jnp.int32),
        ShardingRule("i j -> j", on_device=first_of_devices),
        ShardingRule("i j -> j", on_device=own_index),
    ),
    "products": (
        lambda x: x.T @ x,
        ShardingRule("i j -> j k", "sum", whole=("j", "k")),
        ShardingRule("i j -> j k", "max", whole=("j", "k")),
    ),
    "transposed": (lambda x: x.T, ShardingRule("i j -> j i"), ShardingRule("i j -> i j")),
}


@dataclasses.dataclass(frozen=True)
class Split(ExtensionOp):
    """A function of SPLITS with its right or wrong rule."""

    family_id = "broken.split.v1"
    broken: bool
    kind: str

    def lower_to_standard_ops(self, x):
        return (SPLITS[self.kind][0](x),)

    def sharding_rule(self, inputs):
        return SPLITS[self.kind][1 + self.broken]


def _splits(kind):
    table = np.random.default_rng(0).normal(size=(3, 3))
    clause = "X13.9" if kind == "transposed" else "X13.10"  # it does not fit other sizes
    return Defect("sharding_rule", clause, functools.partial(Split, kind=kind), (table,))


# --- rules ----------------------------------------------------------------------------------------


class Cube(Same):
    family_id = "broken.cube.v1"

    def lower_to_standard_ops(self, x):
        return (x * x * x,)


@dataclass(frozen=True)
class CubeRule(ExtensionAdRule):
    """3 x**2 t, once with a mistake."""

    mistake: str = ""
    family_id = Cube.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x,), (t,) = primals, tangents
        slope = jnp.asarray(3, x.dtype) * x * x
        right = slope * t
        wrong_here = self.mistake == x.dtype.name or (
            self.mistake == "even sizes" and x.shape[-1] % 2 == 0
        )
        mistakes = {
            "0.05 %": right * jnp.asarray(1.0005, x.dtype),
            "0.001 %": right * jnp.asarray(1 + 1e-5, x.dtype),
            "quadratic": right * t,
            "affine": right + jnp.asarray(1e-3, x.dtype),
            "frozen": jax.lax.stop_gradient(slope) * t,
            "meta": right[None],
        }
        out = -right if wrong_here else mistakes.get(self.mistake, right)
        return (out, out) if self.mistake == "two" else (out,)


class Mean(Same):
    """Subtracts the mean: linear, on the host."""

    family_id = "broken.mean.v1"

    def eager_execute(self, x):
        return (x - x.mean(-1, keepdims=True, dtype=x.dtype),)


@dataclass(frozen=True)
class MeanRule(ExtensionAdRule):
    """The op is its own derivative and its own adjoint, once but for some inputs."""

    mistake: str = ""
    family_id = Mean.family_id

    def linearize(self, op, primals, outputs, tangents):
        return apply(op, tangents[0])

    def transpose_rule(self, op, cotangents, inputs):
        (out,) = apply(op, cotangents[0])
        size, dtype = inputs[0].shape[-1], inputs[0].dtype
        wrong = {"twice": True, "even sizes": size % 2 == 0, "float32": dtype == "float32"}.get(
            self.mistake, False
        )
        return (out + out if wrong else out,)


class Product(ExtensionOp):
    family_id = "broken.product.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, y):
        return (jax.lax.mul(x, y),)


@dataclass(frozen=True)
class ProductRule(ExtensionAdRule):
    """The product rule, once with a mistake where one input has no tangent."""

    mistake: str = ""
    family_id = Product.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x, y), (tx, ty) = primals, tangents
        if self.mistake == "zeros":
            tx, ty = (jnp.zeros(x.shape, "float32") if t is None else t for t in (tx, ty))
        if self.mistake == "zeros like":
            tx, ty = (jnp.zeros_like(x) if t is None else t for t in (tx, ty))
        if self.mistake == "silent" and (tx is None or ty is None):
            return (None,)
        parts = ([] if tx is None else [(tx, y)]) + ([] if ty is None else [(x, ty)])
        return (sum(a * b for a, b in parts),)


class SineAndProduct(ExtensionOp):
    """sin x, and x y: the first has no derivative by y."""

    family_id = "broken.sine_and_product.v1"
    input_count = 2
    output_count = 2

    def lower_to_standard_ops(self, x, y):
        return (jnp.sin(x), x * y)


@dataclass(frozen=True)
class SineAndProductRule(ExtensionAdRule):
    broken: bool
    family_id = SineAndProduct.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x, y), (tx, ty) = primals, tangents
        terms = ([] if tx is None else [tx * y]) + ([] if ty is None else [x * ty])
        sine = jnp.cos(x) * tx if tx is not None else jnp.zeros_like(x) if self.broken else None
        return sine, sum(terms[1:], terms[0])


class Weighted(ExtensionOp):
    """x + 2 y, linear in each input and in both."""

    family_id = "broken.weighted.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, y):
        return (x + y + y,)


@dataclass(frozen=True)
class WeightedRule(ExtensionAdRule):
    """Its transpose, once with a mistake where y alone is active, which linearize itself never asks
    for.
    """

    broken: bool
    family_id = Weighted.family_id

    def linearize(self, op, primals, outputs, tangents):
        tx, ty = tangents
        if tx is None:
            return (ty + ty,)
        return (tx,) if ty is None else apply(op, tx, ty)

    def transpose_rule(self, op, cotangents, inputs):
        (c,) = cotangents
        active = [isinstance(x, LinearInput) for x in inputs]
        forgets = self.broken and not active[0]
        return tuple(
            v if m else None for v, m in zip((c, c if forgets else c + c), active, strict=True)
        )


@dataclass(frozen=True)
class Tangent(ExtensionOp):
    """tan x; kept for the rule, with its square beside it, which may be computed with a mistake."""

    keeps: str = ""
    family_id = "broken.tangent.v1"

    @property
    def output_count(self):
        return 2 if self.keeps else 1

    def lower_to_standard_ops(self, x):
        y = jnp.tan(x)
        first = y + jnp.asarray(0.25, x.dtype) if self.keeps == "another" else y
        return (first, y * y)[: self.output_count]


@dataclasses.dataclass(frozen=True)
class TangentRule(ExtensionAdRule):
    family_id = Tangent.family_id
    broken: bool

    def differentiable_form(self, op):
        return Tangent("another" if self.broken else "square")

    def linearize(self, op, primals, outputs, tangents):
        return (
            jax.jvp(jnp.tan, primals, tangents)[1],
            None,
        )


def _rule(made):
    return lambda broken: ExtensionRuleSet(made(broken))


def _host(mistake):
    return lambda broken: HostSine(mistake if broken else "")


def _scaled(*wrong):
    return lambda broken: Scaled(wrong if broken else ())


def _growing(broken):
    return Growing() if broken else ByClass()


def _mistaken(op, rule, **further):
    """What a defect has whose op is right and whose rule has a mistake, which is still to be said."""
    return lambda mistake: {
        "make": lambda broken: op(),
        "rules": _rule(lambda broken: rule(mistake if broken else "")),
        **further,
    }


_cube, _mean = _mistaken(Cube, CubeRule), _mistaken(Mean, MeanRule)
_product = _mistaken(Product, ProductRule, inputs=(X, Y))


def _on_host(wrong: str) -> Callable[[bool], ExtensionOp]:
    return lambda broken: OnHost(wrong if broken else "")


def _kernel_defect(wrong: Callable[..., Any]) -> Defect:
    def runtimes(broken: bool) -> ExtensionRuntimeSet:
        run = wrong if broken else lambda op, x: (x * x,)
        return ExtensionRuntimeSet(Kernel(ScaledSquare.family_id, "cpu", run))

    return Defect("routes", "X8.10", lambda broken: ScaledSquare(), runtimes=runtimes)


def inexact_kernel(op, x):
    return (x * x * jnp.asarray(1.001, x.dtype),)


def small_kernel(op, x):
    """Right but for vectors of one element."""
    return (x * x * jnp.asarray(2 if x.shape == (1,) else 1, x.dtype),)


MATRIX = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.5]])


DEFECTS: dict[str, Defect] = {
    "a wrong shape for a symbolic size": Defect("symbolic_sizes", "X7.2", OneMore),
    "a branch on == of sizes": Defect("symbolic_sizes", "X7.3", AddOrJoin, (X, Y)),
    "a refusal by == of sizes": Defect("symbolic_sizes", "X7.3", AddEqual, (X, Y)),
    "int() of a size": Defect("symbolic_sizes", "X7.2", IntegerSize),
    "a silent change of dtype": Defect("meta", "X7.1", Narrow),
    "a dtype promised and not computed": Defect(
        "meta", "X7.1", Inverse, (np.array([[2.0, 0.5], [0.25, 1.0]]),)
    ),
    "a promise of two outputs": Defect("meta", "X6.3", TwoPromised),
    "three outputs from the host": Defect("meta", "X6.4", _host("three")),
    "a rank promised and refused by Python": Defect("wrong_inputs", "X7.1", FlatOnly),
    "a family_id of the payload": Defect(
        "family_id", "X5.3", lambda broken: ByPayload() if broken else ByClass()
    ),
    "an output count that varies": Defect("meta", "X4.3", Varying),
    "hidden state": Defect("immutable", "X4.1", Remembering),
    "a typed_key of its own": Defect("identity", "X5.6", OwnKey),
    "a payload that changes when it is made": Defect("identity", "X5.8", _growing),
    "a payload that is read as another": Defect("payload_text", "X5.9", _growing),
    "an impure host form": Defect("host_form", "X4.3", _host("random")),
    "a host form that writes its input": Defect("host_form", "X8.7", _host("writes")),
    "a host form that writes its input by force": Defect(
        "host_form", "X8.7", _host("writes by force")
    ),
    "a host form that returns an array on a device": Defect("host_form", "X8.7", _host("device")),
    "a host form that raises": Defect("host_form", "X8.8", _host("raises")),
    "an impure lowering": Defect("value", "X4.3", Counting),
    "a lowering that emits an extension": Defect("meta", "X8.5", Nested),
    "a host form that disagrees with the lowering": Defect(
        "routes", "X8.10", _on_host("fourth digit")
    ),
    "a kernel that disagrees with the lowering": _kernel_defect(inexact_kernel),
    "a lowering that needs to know sizes": Defect(
        "exported_sizes", "X13.7", Unrolled, (np.arange(12.0).reshape(4, 3),)
    ),
    "no output sharding": Defect("explicit_mesh", "X13.5", Placed),
    **{f"a wrong sharding rule of {kind}": _splits(kind) for kind in SPLITS},
    "a batched form that ignores the axis": Defect("vmap", "X13.2", SumOver),
    "a batched form wrong for a middle axis": Defect(
        "vmap", "X13.2", _scaled(1, 1), (MATRIX, MATRIX)
    ),
    "a batched form wrong for mixed axes": Defect("vmap", "X13.2", _scaled(0, 1), (X, Y)),
    "a host form wrong for another dtype": Defect("routes", "X8.10", _on_host("float32")),
    "a host form wrong for size 1": Defect("routes", "X8.10", _on_host("size 1")),
    "a host form wrong for odd sizes": Defect(
        "routes", "X8.10", _on_host("odd sizes"), (np.array([0.5, -1.25]),)
    ),
    "a host form that loses small entries": Defect(
        "routes", "X8.10", _on_host("small"), (np.array([1.0, 1e-13]),)
    ),
    "a host form that reads memory in order": Defect(
        "host_form", "X8.10", _on_host("order"), (MATRIX,)
    ),
    "a kernel wrong for size 1": _kernel_defect(small_kernel),
    "a jvp off by 0.05 %": Defect("jvp", "X10.6", **_cube("0.05 %")),
    "a linearize that is quadratic": Defect("linear", "X10.6", **_cube("quadratic")),
    "a linearize that is affine": Defect("linear", "X10.6", **_cube("affine")),
    "a wrong second derivative": Defect("second_order", "X10.14", **_cube("frozen")),
    "tangents of another shape": Defect("jvp", "X10.8", **_cube("meta")),
    "tangents too many": Defect("jvp", "X6.5", **_cube("two")),
    "a transpose off by a factor of 2": Defect("vjp", "X10.7", **_mean("twice")),
    "a transpose that is wrong at even sizes": Defect("vjp", "X10.7", **_mean("even sizes")),
    "a transpose that is wrong in float32": Defect("precisions", "X10.7", **_mean("float32")),
    "a transpose that is wrong where one input alone is linear": Defect(
        "linear_transpose", "X10.11", lambda broken: Weighted(), (X, Y), _rule(WeightedRule)
    ),
    "a jvp off by 0.001 %": Defect("jvp", "X10.6", **_cube("0.001 %")),
    "a jvp that is wrong at even sizes": Defect("jvp", "X10.6", **_cube("even sizes")),
    "a jvp that is wrong in float32": Defect("precisions", "X10.6", **_cube("float32")),
    "a jvp that is wrong in bfloat16": Defect("precisions", "X10.6", **_cube("bfloat16")),
    "a differentiable form with another value": Defect(
        "primal", "X10.12", lambda broken: Tangent(), rules=_rule(TangentRule)
    ),
    "zeros multiplied for an inactive input": Defect(
        "inactive_slots", "X10.4", **_product("zeros like")
    ),
    "zeros for an output that no tangent reaches": Defect(
        "inactive_slots",
        "X10.4",
        lambda broken: SineAndProduct(),
        (X, Y),
        _rule(SineAndProductRule),
    ),
    "zeros of another dtype for an inactive input": Defect(
        "inactive_slots", "X10.4", **_product("zeros")
    ),
    "an inactive input that silences the other": Defect("linear", "X10.3", **_product("silent")),
}


def arguments(defect: Defect, broken: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What check takes for the broken op or for its twin."""
    keywords = {
        "rules": defect.rules(broken),
        "runtimes": defect.runtimes(broken),
    }
    return (defect.make(broken), defect.inputs), keywords
