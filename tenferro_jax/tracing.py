"""JAX function -> graph; and a function or a graph with its extensions written out in standard ops,
for programs that know only JAX's primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from . import jax_seam
from .errors import require_kind
from .extension.carrier import Extension
from .extension.execution import forward
from .extension.kernels import NO_RUNTIMES
from .extension.routes import ANY_PLATFORM
from .graph.builder import GraphBuilder
from .graph.graph import Graph, arguments
from .graph.primitives import IN_BOTH_MODES, moving, of_one_mode, pulled, pushed
from .jax_seam import Atom, Aval, Calls, ClosedJaxpr, Eqn, name_of
from .shapes import Arrays, PyTree, as_operand, errors_of_jax, require_x64_leaves, with_zeros


def trace(
    fn: Callable[..., PyTree],
    *specs: PyTree,
    **keyword_specs: PyTree,
) -> Graph:
    """Record a JAX-traceable function as a graph.

    Calls (jit, checkpoint, composite) are inlined, the recomputation of a checkpoint behind an
    OptimizationBarrier; scan, while and cond become control-flow ops with graphs as bodies;
    functions with a custom_jvp or custom_vjp keep their derivative as graphs beside their body;
    extensions are recorded as extensions, and the graph's rule set has all their AD rules. The
    derivative of a graph keeps or recomputes what the compiler chooses; `trace(jax.grad(f))` keeps
    the checkpoints of f. Python scalars lose their weak types.

    Args:
      fn: a function of pytrees of arrays; `functools.partial` fixes other arguments.
      *specs: its arguments as pytrees of arrays or jax.ShapeDtypeStruct; dimensions may be
        symbolic.
      **keyword_specs: keyword arguments; in the graph they are one dict, the last argument.

    Returns:
      The graph; `graph.to_jax()` is a function of the same arguments.

    Raises:
      Unsupported: a primitive that no standard op covers; the text names it and its source line.
      InvalidConfig: not a function, or one of other arguments.
      ShapeError: JAX cannot compare symbolic sizes.
      DTypeError: a 64-bit spec while 64-bit types are off.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> print(trace(lambda x: jnp.tanh(x) + 1, jax.ShapeDtypeStruct((2,), jnp.float32)))
      graph(%0: float32[2]) {
        %1 = Tanh(%0) : float32[2]
        %2 = Constant[value=1.0]() : float32[]
        %3 = BroadcastInDim[shape=(2,), dims=()](%2) : float32[2]
        %4 = Add(%1, %3) : float32[2]
        return %4
      }
    """
    require_kind(
        fn, Callable, "trace", "a function of arrays", "Pass the function first, then its specs."
    )
    leaves, in_tree = jax.tree.flatten(arguments(specs, keyword_specs))
    require_x64_leaves(leaves, "trace")
    builder = GraphBuilder()
    shaped = [
        x if hasattr(x, "dtype") and hasattr(x, "shape") else as_operand(x, "trace") for x in leaves
    ]
    inputs = [builder.input(jax.ShapeDtypeStruct(x.shape, x.dtype)) for x in shaped]

    @functools.wraps(fn, updated=())  # whose name and line are in JAX's errors
    def call(*values: jax.Array) -> PyTree:
        args = list(jax.tree.unflatten(in_tree, values))
        kwargs = args.pop() if keyword_specs else {}
        return fn(*args, **kwargs)

    with errors_of_jax("trace", fn, specs, keyword_specs):
        outputs, out_tree = jax.tree.flatten(builder.inline(call, *inputs))
    return builder.build(outputs, in_tree, out_tree)


P = ParamSpec("P")
T = TypeVar("T")
_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call")
_HIJAX = "call_hi_primitive"
_ANYWHERE = jax_seam.Site(ANY_PLATFORM, exporting=True, partitioned=False)


def lowered(fn: Callable[P, T]) -> Callable[P, T]:
    """The same function with its extensions written out in standard ops: its jaxpr has no primitive
    of an extension.

    Each extension is replaced by its lowering, in a jitted function that is named by the family;
    calls inside jit, scan, cond, while, checkpoint, shard_map and functions with a custom
    derivative are replaced too. Use it for programs that read jaxprs: converters to other formats,
    other interpreters, plain `jax.export`.

    The result is differentiated as plain JAX, without the AD rules of the extensions. Derivatives
    inside `fn` use the rules: `lowered(jax.grad(f))` is the gradient of f by its rules,
    `jax.grad(lowered(f))` is the gradient of the standard ops. The two may differ at ties.

    Args:
      fn: a JAX-traceable function of pytrees of arrays.

    Raises:
      InvalidConfig: not a function.
      Unsupported: in a call, an extension has no lowering.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from ext_tropical import tropical_einsum
      >>> f = lambda a: tropical_einsum("ij,jk->ik", a, a)
      >>> a = jnp.array([[0.0, 1.0], [2.0, 0.0]])
      >>> "tenferro" in str(jax.make_jaxpr(f)(a)), lowered(f)(a).tolist() == f(a).tolist()
      (True, True)
      >>> print([eqn.primitive.name for eqn in jax.make_jaxpr(lowered(f))(a).eqns])
      ['jit']
    """
    require_kind(fn, Callable, "lowered", "a function of arrays")

    @functools.wraps(fn)
    def written_out(*args: P.args, **kwargs: P.kwargs) -> Any:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return fn(*args, **kwargs)  # traced anew in each call

        closed, result = jax.make_jaxpr(call, return_shape=True)(*args, **kwargs)
        leaves = jax.tree.leaves((args, kwargs))
        values = [x if hasattr(x, "dtype") else jnp.asarray(x) for x in leaves]
        return jax.tree.unflatten(jax.tree.structure(result), _Writer().run(closed, values))

    return written_out


def _lowered_graph(self: Graph) -> Graph:
    """The same graph with its extensions written out in standard ops, control-flow bodies included;
    see `lowered`.

    Raises:
      Unsupported: an extension has no lowering.
    """
    return trace(lowered(self.to_jax()), *self.input_specs)


_lowered_graph.__name__ = "lowered"
Graph.lowered = _lowered_graph  # here, because tracing is a higher layer than the graph


class _Writer:
    """Writes out the extensions of one program, and remembers which of its equations
    contain one.
    """

    def __init__(self) -> None:
        self._known: dict[
            int, tuple[Any, bool]
        ] = {}  # by the id of an equation, which stays alive here

    def run(self, closed: ClosedJaxpr, inputs: Sequence[object]) -> list[object]:
        """The outputs of a jaxpr."""
        return jax_seam.run_jaxpr(closed, inputs, self._written)

    def _written(self, eqn: Eqn) -> Callable[..., Any]:
        """An equation as a function of its inputs."""
        if isinstance(eqn.params.get("op"), Extension):
            return _standard(eqn.params["op"].with_runtimes(NO_RUNTIMES))
        name = name_of(eqn)
        if name in _DERIVATIVES:
            return getattr(self, f"_{name}")(eqn)
        if name in IN_BOTH_MODES:
            return lowered(of_one_mode(eqn))
        if not self._calls(eqn):
            return jax_seam.as_function(eqn)
        if name == _HIJAX:
            if jax_seam.calls_of(eqn) is Calls.REVERSE_RULE:
                return self._custom_vjp_call(eqn)
            return self._custom_jvp_call(eqn)
        return jax_seam.with_inner(eqn, self.run)

    def _calls(self, eqn: Eqn) -> bool:
        """Whether an equation is an extension or a function with a derivative, which may call one,
        or has such an equation inside.
        """
        if id(eqn) not in self._known:
            inside = (
                inner
                for closed in _inner_jaxprs(eqn)
                for inner in jax_seam.open_jaxpr(closed)[0].eqns
            )
            own = isinstance(eqn.params.get("op"), Extension)
            own = own or name_of(eqn) in (*_DERIVATIVES, *IN_BOTH_MODES)
            self._known[id(eqn)] = eqn, own or any(map(self._calls, inside))
        return self._known[id(eqn)][1]

    def _called(self, eqn: Eqn) -> Callable[..., Any]:
        """The body of a function with a derivative, under its name."""
        (inner, *_), (name, _) = _inner_jaxprs(eqn), jax_seam.source_of(eqn)

        def body(*xs: jax.Array) -> list[object]:
            return self.run(inner, xs)

        body.__name__ = name
        return body

    def _custom_jvp_call(self, eqn: Eqn) -> Callable[..., Any]:
        fn, call = jax_seam.as_function(eqn), jax.custom_jvp(self._called(eqn))

        @call.defjvp
        def _rule(primals: Arrays, tangents: Arrays) -> Any:
            given = [tangents[i] for i in moving(primals)]
            outs, found = lowered(functools.partial(pushed, fn))(list(primals), given)
            return outs, with_zeros(found, outs)

        return call

    def _custom_vjp_call(self, eqn: Eqn) -> Callable[..., Any]:
        fn, call = jax_seam.as_function(eqn), jax.custom_vjp(self._called(eqn))

        def forward(*xs: jax.Array) -> Any:
            return lowered(lambda *xs: pulled(fn, xs))(*xs)

        def backward(
            pullback: Callable[..., Arrays],
            cotangents: Arrays,
        ) -> tuple[Any, ...]:
            given = [cotangents[i] for i in moving(_avals(eqn.outvars))]
            found = lowered(
                lambda pullback, given: pullback(with_zeros(given, _avals(eqn.outvars)))
            )(pullback, given)
            places = moving(_avals(eqn.invars))
            parts = dict(zip(places, found, strict=True))
            return tuple(parts.get(i) for i in range(len(eqn.invars)))

        call.defvjp(forward, backward)
        return call


def _inner_jaxprs(eqn: Eqn) -> list[ClosedJaxpr]:
    """The jaxprs inside an equation; of a hijax primitive, which may have a derivative of its own,
    that of its expansion.
    """
    if name_of(eqn) != _HIJAX:
        return jax_seam.inner_jaxprs(eqn)
    structs = [jax_seam.struct_of(aval) for aval in _avals(eqn.invars)]
    return [jax.make_jaxpr(jax_seam.expansion(eqn))(*structs)]


def _avals(variables: Sequence[Atom]) -> list[Aval]:
    return [v.aval for v in variables]


@functools.lru_cache(maxsize=1024)
def _standard(carrier: Extension) -> Callable[..., list[jax.Array]]:
    """The lowering of an extension, as a jitted function with the family's name."""

    def run(*arrays: jax.Array) -> list[object]:
        # JAX may treat a result as weakly typed, which a result of an extension never is.
        return [
            jax.lax.convert_element_type(out, out.dtype)
            for out in lowered(functools.partial(forward, carrier, _ANYWHERE))(arrays)
        ]

    run.__name__ = run.__qualname__ = carrier.family_id
    return jax.jit(run)
