"""TracedTensor: a lazy tensor, whose operators and methods are a table of JAX functions."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from ..dimensions import SymDim
from ..engine.engine import Engine
from ..errors import InvalidConfig, counted
from ..extension.contract import ExtensionOp
from ..extension.kernels import ExtensionRuntimeSet
from ..extension.primitive import apply
from ..extension.rules import NO_RULES, ExtensionRuleSet
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph
from ..jax_seam import CONFIG
from ..shapes import Arrays, PyTree, TensorMeta, meta_of, solve_sizes, struct
from ..tracing import trace
from .record import (
    NUMBERS,
    Array,
    Bindings,
    Handle,
    Leaf,
    Record,
    Size,
    as_function,
    concrete,
    declared,
    eval_all,
    is_number,
    tensors_of,
    to_graph,
    walk,
)

ARRAYS = (Handle, jax.Array, np.ndarray, np.generic)
"""A traced argument; all other arguments are passed on unchanged."""

_OPERANDS = (*ARRAYS, *NUMBERS)


@dataclasses.dataclass(frozen=True)
class _Static:
    """An argument that is passed on unchanged, with a key that tells it from every other."""

    key: Hashable
    value: Any = dataclasses.field(compare=False)


# The cache of graphs: tracing a function takes a millisecond, finding its graph microseconds.
@functools.lru_cache(4096)
def _traced(
    fn: Callable[..., PyTree],
    tree: jax.tree_util.PyTreeDef,
    described: tuple[TensorMeta | _Static, ...],
    settings: Hashable,
) -> Graph:
    """The graph of a function of some arguments, under these settings of JAX."""

    def call(*arrays: jax.Array) -> PyTree:
        left = iter(arrays)
        values = [x.value if isinstance(x, _Static) else next(left) for x in described]
        args, kwargs = jax.tree.unflatten(tree, values)
        return fn(*args, **kwargs)

    return trace(call, *(struct(x) for x in described if not isinstance(x, _Static)))


def recorded(
    fn: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: Mapping[str, PyTree],
    keep: bool = False,
) -> Any:
    """The result of a JAX function whose arguments contain tensors and arrays, as lazy tensors.

    Args:
      fn: the function.
      args: of fn; values other than tensors and arrays are passed on unchanged.
      kwargs: likewise.
      keep: whether the graph is kept for other calls of fn; values other than arrays must be
        hashable.
    """
    leaves, tree = jax.tree.flatten((args, dict(kwargs)))
    arrays: list[Any] = [x for x in leaves if isinstance(x, ARRAYS)]
    inputs = [x if isinstance(x, Handle) else TracedTensor.constant(x) for x in arrays]
    metas = iter([x.meta for x in inputs])
    described = tuple(
        [next(metas) if isinstance(x, ARRAYS) else _Static(_key_of(x), x) for x in leaves]
    )
    traced = _traced if keep else _traced.__wrapped__
    graph = traced(fn, tree, described, _settings())
    record = Record(graph, inputs)
    outputs: list[Handle] = []
    for i, value in enumerate(graph.outputs):
        is_input = value < len(inputs)  # then it is that tensor
        outputs.append(inputs[value] if is_input else TracedTensor(record, i, graph.metas[value]))
    return jax.tree.unflatten(graph.out_tree, outputs)


def _key_of(leaf: object) -> Hashable:
    """A key that distinguishes an argument from every other: 1 from True, 0.0 from -0.0.

    Slices are hashable from Python 3.12 on.
    """
    if isinstance(leaf, slice):
        return slice, _key_of(leaf.start), _key_of(leaf.stop), _key_of(leaf.step)
    return type(leaf), repr(leaf) if is_number(leaf) else leaf


def _settings() -> Hashable:
    """The settings of JAX that change the trace of a function."""
    return (
        CONFIG.jax_enable_x64,
        CONFIG.jax_numpy_dtype_promotion,
        CONFIG.jax_numpy_rank_promotion,
        CONFIG.jax_default_matmul_precision,
    )


def method_of(fn: Callable[..., object]) -> Callable[..., TracedTensor]:
    """A method of tensors: the function of the tensor and further arguments."""

    def method(self: TracedTensor, *args: object, **kwargs: object) -> TracedTensor:
        return recorded(fn, (self, *args), kwargs, keep=True)

    method.__doc__ = fn.__doc__ if fn.__module__ == __name__ else f"As `jax.numpy.{fn.__name__}`."
    return method


def operators_of(
    fn: Callable[..., object],
) -> tuple[Callable[..., TracedTensor], Callable[..., TracedTensor]]:
    """An operator of tensors, and its reflection.

    An operand that is neither an array nor a number may define the operator itself.
    """

    def of(order: int) -> Callable[..., TracedTensor]:
        def method(self: TracedTensor, other: object) -> TracedTensor:
            known = isinstance(other, _OPERANDS)
            return recorded(fn, (self, other)[::order], {}, keep=True) if known else NotImplemented

        return method

    return of(1), of(-1)


def reshaped(x: jax.Array, *shape: int | Sequence[int]) -> jax.Array:
    """As `jax.Array.reshape`: sizes one by one or as a tuple, one of them -1."""
    return x.reshape(*shape)


def transposed(x: jax.Array, *axes: int | Sequence[int]) -> jax.Array:
    """As `jax.Array.transpose`: axes one by one or as a tuple; without axes their order is
    reversed.
    """
    return x.transpose(*axes)


if TYPE_CHECKING:
    _Tabled = Any  # the operators and methods of the table at the end
else:
    _Tabled = object


class TracedTensor(Handle, _Tabled):  # type: ignore[misc]
    """A lazy tensor: an input, or the result of a JAX function of other lazy tensors.

    It is immutable, and nothing runs before `eval`. Operators and methods are those of JAX arrays,
    with the rules of `jax.numpy` for dtypes, shapes and indices, which are checked when a tensor is
    made. Tensors that were made independently combine freely. `==` is identity, so tensors can be
    keys; `equal`, `not_equal` and `<` compare elements.

    Attributes:
      meta: dtype and shape; sizes may be symbolic.

    Example:
      >>> import numpy as np
      >>> w = TracedTensor.from_array(np.float32([[1, 2], [3, 4]]), "w")
      >>> x = TracedTensor.input("x", np.float32, ("n", 2))
      >>> y = (x @ w).tanh()
      >>> y
      TracedTensor(float32[n,2], 2 nodes on 'x', 'w')
      >>> y.eval(bindings={x: np.zeros((1, 2), np.float32)}).tolist()
      [[0.0, 0.0]]
    """

    __slots__ = ()
    __array_ufunc__ = (
        None  # an operator with a NumPy array on the left calls the method of the tensor
    )

    # --- making one ---

    @staticmethod
    def input(name: str, dtype: DTypeLike, shape: Sequence[Size]) -> TracedTensor:
        """An input to be bound by name.

        Args:
          name: inputs of one name, dtype and shape are one input.
          dtype: any dtype of JAX.
          shape: a size is an integer, a symbolic dimension of jax.export, or text such as "n" or
            "2*n+1"; equal names mean equal sizes in all tensors.

        Raises:
          ShapeError, DTypeError: an invalid size, or a 64-bit dtype while 64-bit types are off.

        Example:
          >>> import numpy as np
          >>> TracedTensor.input("x", np.float32, ("n", 3))
          TracedTensor(input 'x': float32[n,3])
        """
        if not isinstance(name, str) or not name:
            raise InvalidConfig(where="TracedTensor.input", given=repr(name), needed="a name")
        meta = declared(shape, dtype, f"input {name!r}")
        return TracedTensor(Leaf(name, meta), 0, meta)

    @staticmethod
    def from_array(
        array: ArrayLike,
        name: str | None = None,
        *,
        shape: Sequence[Size] | None = None,
    ) -> TracedTensor:
        """An input with an attached array, which is data and not part of the program.

        Args:
          array: an array, a number or a list.
          name: for repr and errors.
          shape: the declared shape, as in `input`, if it is not that of the array: a program for
            symbolic sizes serves arrays of any size.

        Raises:
          DTypeError: not a concrete array, or a 64-bit one while 64-bit types are off.
          ShapeError: the array has another shape.

        Example:
          >>> TracedTensor.from_array([1.0, 2.0], "w", shape=("n",))
          TracedTensor(input 'w': float32[n], attached)
        """
        where = "TracedTensor.from_array" if name is None else f"input {name!r}"
        held = concrete(array, where)
        if isinstance(held, np.ndarray | np.generic):
            held = np.array(held)
            held.flags.writeable = False
        meta = meta_of(held)
        if shape is not None:
            given, meta = meta, declared(shape, meta.dtype, where)
            solve_sizes([meta], [given], [where])
        return TracedTensor(Leaf(name, meta, held), 0, meta)

    @staticmethod
    def constant(array: ArrayLike) -> TracedTensor:
        """A concrete array that is part of the program.

        Example:
          >>> TracedTensor.constant(2.0)
          TracedTensor(float32[], 1 node)
        """
        builder = GraphBuilder()
        graph = builder.build([builder.constant(concrete(array, "a constant"))])
        return TracedTensor(Record(graph, ()), 0, graph.output_metas[0])

    @staticmethod
    def apply(
        op: ExtensionOp,
        *tensors: Handle | ArrayLike,
        rules: ExtensionRuleSet = NO_RULES,
        runtimes: ExtensionRuntimeSet | None = None,
    ) -> tuple[TracedTensor, ...]:
        """The outputs of an extension.

        Args:
          op: the extension.
          *tensors: tensors, or arrays that become constants; they are not promoted or broadcast.
          rules: AD rules for the extension.
          runtimes: kernels and selected routes, instead of those of the op's class.

        Raises:
          InvalidConfig: dtypes or shapes that the op refuses.
        """
        terms = {"rules": rules, "runtimes": runtimes}
        return recorded(apply, (op, *tensors), terms, keep=True)

    @staticmethod
    def inline(fn: Callable[..., PyTree], *args: PyTree, **kwargs: PyTree) -> Any:
        """The result of a JAX function of tensors, recorded in standard ops.

        Args:
          fn: any function that JAX traces.
          *args: pytrees of tensors and arrays; other leaves are passed on unchanged.
          **kwargs: likewise.

        Returns:
          The function's result, with tensors instead of arrays.

        Raises:
          Unsupported: the function uses a primitive that no standard op covers.

        Example:
          >>> import jax
          >>> x = TracedTensor.from_array([0.0, 0.0])
          >>> TracedTensor.inline(jax.nn.softmax, x, axis=0).eval().tolist()
          [0.5, 0.5]
        """
        return recorded(fn, args, kwargs)

    # --- what it is ---

    @property
    def name(self) -> str | None:
        """The name of an input, else None."""
        return self.source.name if isinstance(self.source, Leaf) else None

    @property
    def array(self) -> Array | None:
        """The array attached to an input, else None."""
        return self.source.array if isinstance(self.source, Leaf) else None

    @property
    def size(self) -> SymDim:
        """The number of elements; symbolic if a size is."""
        return math.prod(self.shape)

    def graph(self) -> Graph:
        """The program as a Graph.

        Its arguments are the inputs, in depth-first order.
        """
        return to_graph([self], out_tree=jax.tree.structure(0))[0]

    def __repr__(self) -> str:
        if isinstance(self.source, Leaf):
            return f"TracedTensor({self.source})"
        sources = dict.fromkeys(x.source for x in walk([self]))
        names = [
            "an array" if s.name is None else repr(s.name) for s in sources if isinstance(s, Leaf)
        ]
        count = sum(len(s.graph.nodes) for s in sources if isinstance(s, Record))
        if len(names) > 4:
            names[4:] = ["..."]
        on = f" on {', '.join(names)}" if names else ""
        return f"TracedTensor({self.meta}, {counted(count, 'node')}{on})"

    def _has_no_value(self, *_: object, **__: object) -> NoReturn:
        raise InvalidConfig(
            where="a lazy tensor",
            given=repr(self),
            needed="an array with values",
            fix="Call eval() first.",
        )

    __bool__ = __int__ = __float__ = __complex__ = __iter__ = __array__ = _has_no_value

    # --- running and differentiating ---

    def eval(self, engine: Engine | None = None, bindings: Bindings = ()) -> jax.Array:
        """Compile if necessary, run, and return the array. Arguments and errors as for
        `eval_all`.
        """
        return eval_all([self], engine, bindings)[0]

    def grad(self, wrt: PyTree) -> Any:
        """The gradient of a floating scalar, as a lazy tensor.

        Args:
          wrt: a tensor, or a list or dict of tensors; inputs or computed tensors.

        Returns:
          As jax.grad: a tensor like wrt (a list for a list), with zeros if nothing depends on
          it. For a complex wrt it is the conjugate of the direction of steepest ascent.

        Raises:
          InvalidConfig: not a floating scalar.
          DTypeError: a wrt is neither floating nor complex.
          ADRuleError, Unsupported: an op has no derivative.

        Example:
          >>> x = TracedTensor.from_array([1.0, 2.0], "x")
          >>> (x * x * x).sum().grad(x).eval().tolist()
          [3.0, 12.0]
        """
        if self.shape != () or not jnp.issubdtype(self.dtype, jnp.floating):
            raise InvalidConfig(
                where="grad",
                given=str(self.meta),
                needed="a floating tensor of shape ()",
                fix="Reduce it first, with sum for example, or use vjp.",
            )
        return self.vjp(wrt, np.ones((), self.dtype))

    def vjp(self, wrt: PyTree, cotangent: Handle | ArrayLike) -> Any:
        """The cotangents of wrt for a cotangent of the tensor, as in jax.vjp.

        Arguments and errors are those of `grad`.
        """
        tensors, tree = tensors_of(wrt, "vjp")
        run, others = as_function(self, tensors)

        def pulled(moving: Arrays, others: Arrays, cotangent: jax.Array) -> PyTree:
            _, pullback = jax.vjp(lambda moving: run(moving, others), moving)
            return jax.tree.unflatten(tree, pullback(cotangent)[0])

        return recorded(pulled, (tensors, others, cotangent), {})

    def jvp(self, wrt: PyTree, tangent: PyTree) -> TracedTensor:
        """The tangent of the tensor for a tangent of wrt (a list for a list), as in jax.jvp."""
        tensors, tree = tensors_of(wrt, "jvp")
        run, others = as_function(self, tensors)

        def pushed(moving: Arrays, others: Arrays, tangents: Arrays) -> jax.Array:
            return jax.jvp(lambda moving: run(moving, others), (moving,), (tangents,))[1]

        return recorded(pushed, (tensors, others, tree.flatten_up_to(tangent)), {})

    # --- the table ---

    reshape = method_of(reshaped)
    transpose = method_of(transposed)
    T = property(method_of(jnp.transpose))
    imag = property(method_of(jnp.imag))
    real = property(method_of(jnp.real))
    __lt__, __gt__ = operators_of(operator.lt)
    __le__, __ge__ = operators_of(operator.le)
    __getitem__ = method_of(operator.getitem)


BINARY = "add sub mul truediv floordiv mod pow matmul and or xor"
"""Operators that have a reflection."""

METHODS = """
abs all any argmax argmin argsort astype broadcast_to ceil clip conj cos cumprod cumsum
diagonal equal exp expm1 floor isfinite log log1p max maximum mean min minimum not_equal
prod ravel round sign sin sort sqrt squeeze std sum swapaxes take tanh tril triu var where
"""
"""Functions of jax.numpy that are methods."""

for _name in BINARY.split():
    _both = operators_of(getattr(operator, f"__{_name}__"))
    setattr(TracedTensor, f"__{_name}__", _both[0])
    setattr(TracedTensor, f"__r{_name}__", _both[1])
for _name in ("neg", "pos", "abs", "invert"):
    setattr(TracedTensor, f"__{_name}__", method_of(getattr(operator, _name)))
for _name in METHODS.split():
    setattr(TracedTensor, _name, method_of(getattr(jnp, _name)))
