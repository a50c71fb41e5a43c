"""TracedTensor: a lazy tensor, whose operators and methods are a table of JAX functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from ..dimensions import SymDim
from ..engine.engine import Engine
from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from ..extension.primitive import apply
from ..extension.rules import NO_RULES, ExtensionRuleSet
from ..extension.runtimes import NO_RUNTIMES, ExtensionRuntimeSet
from ..graph.graph import Graph
from ..shapes import PyTree, meta_of, solve_sizes
from .as_function import Arrays, as_function, require_scalar, tensors_of
from .evaluation import Bindings, eval_all
from .record import (
    ARRAYS,
    NUMBERS,
    Array,
    Handle,
    Leaf,
    Record,
    Size,
    concrete,
    constant,
    declared,
    recorded,
    to_graph,
    walk,
)

_OPERANDS = (*ARRAYS, *NUMBERS)


def _method(fn: Callable[..., object]) -> Callable[..., TracedTensor]:
    """A row of the table: the function of the tensor and further arguments."""

    def method(self: TracedTensor, *args: object, **kwargs: object) -> TracedTensor:
        return recorded(TracedTensor, fn, (self, *args), kwargs, keep=True)

    method.__doc__ = fn.__doc__ if fn.__module__ == __name__ else f"As `jax.numpy.{fn.__name__}`."
    return method


def _operators(
    fn: Callable[..., object],
) -> tuple[Callable[..., TracedTensor], Callable[..., TracedTensor]]:
    """A row of the table: an operator and its reflection.

    An operand that is neither an array nor a number may define the operator itself.
    """

    def of(order: int) -> Callable[..., TracedTensor]:
        def method(self: TracedTensor, other: object) -> TracedTensor:
            known = isinstance(other, _OPERANDS)
            return (
                recorded(TracedTensor, fn, (self, other)[::order], {}, keep=True)
                if known
                else NotImplemented
            )

        return method

    return of(1), of(-1)


def _reshape(x: jax.Array, *shape: int | Sequence[int]) -> jax.Array:
    """As `jax.Array.reshape`: sizes one by one or as a tuple, one of them -1."""
    return x.reshape(*shape)


def _transpose(x: jax.Array, *axes: int | Sequence[int]) -> jax.Array:
    """As `jax.Array.transpose`: axes one by one or as a tuple; without axes their order is
    reversed.
    """
    return x.transpose(*axes)


class TracedTensor(Handle):
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
        return constant(TracedTensor, array)

    @staticmethod
    def apply(
        op: ExtensionOp,
        *tensors: Handle | ArrayLike,
        rules: ExtensionRuleSet = NO_RULES,
        runtimes: ExtensionRuntimeSet = NO_RUNTIMES,
    ) -> tuple[TracedTensor, ...]:
        """The outputs of an extension.

        Args:
          op: the extension.
          *tensors: tensors, or arrays that become constants; they are not promoted or broadcast.
          rules: AD rules for the extension.
          runtimes: kernels and selected routes for the extension.

        Raises:
          InvalidConfig: dtypes or shapes that the op refuses.
        """
        terms = {"rules": rules, "runtimes": runtimes}
        return recorded(TracedTensor, apply, (op, *tensors), terms, keep=True)

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
        return recorded(TracedTensor, fn, args, kwargs)

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
        count = sum(
            len(s.graph.nodes) for s in sources if isinstance(s, Record) and s.graph is not None
        )
        named = ", ".join(names[:4] + ["..."] * (len(names) > 4))
        nodes = f"{count} node{'' if count == 1 else 's'}{' on ' if names else ''}{named}"
        return f"TracedTensor({self.meta}, {nodes})"

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
        require_scalar(self)
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

        return recorded(TracedTensor, pulled, (tensors, others, cotangent), {})

    def jvp(self, wrt: PyTree, tangent: PyTree) -> TracedTensor:
        """The tangent of the tensor for a tangent of wrt (a list for a list), as in jax.jvp."""
        tensors, tree = tensors_of(wrt, "jvp")
        run, others = as_function(self, tensors)

        def pushed(moving: Arrays, others: Arrays, tangents: Arrays) -> jax.Array:
            return jax.jvp(lambda moving: run(moving, others), (moving,), (tangents,))[1]

        return recorded(TracedTensor, pushed, (tensors, others, tree.flatten_up_to(tangent)), {})

    def checkpoint(self) -> TracedTensor:
        """The same values; a reverse derivative recomputes them instead of keeping intermediate
        values.

        The part between the last checkpoints and this tensor is under `jax.checkpoint`: of this
        segment only the inputs are kept from the forward to the backward pass.

        Example:
          >>> x = TracedTensor.from_array([0.5], "x")
          >>> y = x.sin().exp().checkpoint().sum()
          >>> [type(n.op).__name__ for n in y.grad(x).graph().nodes].count("OptimizationBarrier")
          1
        """
        return TracedTensor(Record(None, (self,)), 0, self.meta)

    # --- the table ---

    __add__, __radd__ = _operators(operator.add)
    __sub__, __rsub__ = _operators(operator.sub)
    __mul__, __rmul__ = _operators(operator.mul)
    __truediv__, __rtruediv__ = _operators(operator.truediv)
    __floordiv__, __rfloordiv__ = _operators(operator.floordiv)
    __mod__, __rmod__ = _operators(operator.mod)
    __pow__, __rpow__ = _operators(operator.pow)
    __matmul__, __rmatmul__ = _operators(operator.matmul)
    __and__, __rand__ = _operators(operator.and_)
    __or__, __ror__ = _operators(operator.or_)
    __xor__, __rxor__ = _operators(operator.xor)
    __lt__, __gt__ = _operators(operator.lt)
    __le__, __ge__ = _operators(operator.le)
    __neg__ = _method(operator.neg)
    __pos__ = _method(operator.pos)
    __abs__ = _method(operator.abs)
    __invert__ = _method(operator.invert)
    __getitem__ = _method(operator.getitem)

    abs = _method(jnp.abs)
    all = _method(jnp.all)
    any = _method(jnp.any)
    argmax = _method(jnp.argmax)
    argmin = _method(jnp.argmin)
    argsort = _method(jnp.argsort)
    astype = _method(jnp.astype)
    broadcast_to = _method(jnp.broadcast_to)
    ceil = _method(jnp.ceil)
    clip = _method(jnp.clip)
    conj = _method(jnp.conj)
    cos = _method(jnp.cos)
    cumprod = _method(jnp.cumprod)
    cumsum = _method(jnp.cumsum)
    diagonal = _method(jnp.diagonal)
    equal = _method(jnp.equal)
    exp = _method(jnp.exp)
    expm1 = _method(jnp.expm1)
    floor = _method(jnp.floor)
    isfinite = _method(jnp.isfinite)
    log = _method(jnp.log)
    log1p = _method(jnp.log1p)
    max = _method(jnp.max)
    maximum = _method(jnp.maximum)
    mean = _method(jnp.mean)
    min = _method(jnp.min)
    minimum = _method(jnp.minimum)
    not_equal = _method(jnp.not_equal)
    prod = _method(jnp.prod)
    ravel = _method(jnp.ravel)
    reshape = _method(_reshape)
    round = _method(jnp.round)
    sign = _method(jnp.sign)
    sin = _method(jnp.sin)
    sort = _method(jnp.sort)
    sqrt = _method(jnp.sqrt)
    squeeze = _method(jnp.squeeze)
    std = _method(jnp.std)
    sum = _method(jnp.sum)
    swapaxes = _method(jnp.swapaxes)
    take = _method(jnp.take)
    tanh = _method(jnp.tanh)
    transpose = _method(_transpose)
    tril = _method(jnp.tril)
    triu = _method(jnp.triu)
    var = _method(jnp.var)
    where = _method(jnp.where)
    T = property(_method(jnp.transpose))
    imag = property(_method(jnp.imag))
    real = property(_method(jnp.real))
