"""TracedTensor: a lazy tensor with operators, methods, derivatives and evaluation."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax.export
import numpy as np

from ..dimensions import SymDim, are_equal
from ..errors import DTypeError, InvalidConfig, ShapeError
from ..extension import NO_RULES, NO_RUNTIMES, Extension, ExtensionOp, ExtensionRuleSet, ExtensionRuntimeSet
from ..extension.rules import not_a_rule_set
from ..extension.runtimes import not_a_runtime_set
from ..graph.graph import Graph
from ..jax_seam import is_symbolic_dim
from ..ops import analytic, arithmetic, conversion, diagonal, indexing, logic, reduction, source, special, structural
from ..ops.contraction import DotGeneral
from ..ops.logic import Direction
from ..ops.op import StdTensorOp
from ..shapes import TensorMeta, canonical_dtype, require_x64, solve_sizes
from . import differentiation
from .broadcasting import broadcast, broadcast_together
from .evaluation import Bindings, Engine, eval_all
from .indexing import indexed
from .operators import matmul, power, quotient, remainder, together
from .promotion import SCALARS, as_dtype, common_dtype, inexact_dtype, number, promoted
from .record import NO_TERMS, Handle, Leaf, Record, Recorder, array_meta, to_graph, walk

Axes = int | Sequence[int] | None
Size = int | str | Any

_SYMBOLS = jax.export.SymbolicScope()
_ARRAYS = (jax.Array, np.ndarray, np.generic)


class TracedTensor(Handle):
    """A lazy tensor: an input, or what an op makes of others. Immutable; nothing runs before `eval`.

    Every op checks dtypes and shapes when it is applied. Tensors that were made independently combine freely. `==` is
    identity, so that tensors can be keys; `compare` and `<` compare elements.

    Attributes:
      meta: dtype and shape; sizes may be symbolic.

    Example:
      >>> import numpy as np
      >>> w = TracedTensor.from_array(np.float32([[1, 2], [3, 4]]), "w")
      >>> x = TracedTensor.input("x", np.float32, ("n", 2))
      >>> y = (x @ w).tanh()
      >>> y
      TracedTensor(Tanh: float32[n,2], 2 nodes on 'x', 'w')
      >>> y.eval(bindings={x: np.zeros((1, 2), np.float32)}).tolist()
      [[0.0, 0.0]]
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy arrays on the left of an operator give way

    # --- making one ---

    @staticmethod
    def input(name: str, dtype: Any, shape: Sequence[Size]) -> TracedTensor:
        """An input to be bound by name.

        Args:
          name: inputs of one name, dtype and shape are one input.
          dtype: any dtype of JAX.
          shape: a size is an integer, a symbolic dimension of jax.export, or text such as "n" or "2*n+1"; one name is one
            size in all tensors.

        Raises:
          ShapeError, DTypeError, X64Error: no size, no dtype, or a 64-bit one while 64-bit types are off.

        Example:
          >>> import numpy as np
          >>> TracedTensor.input("x", np.float32, ("n", 3))
          TracedTensor(input 'x': float32[n,3])
        """
        where = f"input {name!r}"
        if not isinstance(name, str) or not name:
            raise InvalidConfig(where="TracedTensor.input", given=repr(name), needed="a name", fix="Pass a non-empty string first.")
        return _leaf(name, TensorMeta(_dtype(dtype, where), _shape(shape, where)))

    @staticmethod
    def from_array(array: Any, name: str | None = None, *, shape: Sequence[Size] | None = None) -> TracedTensor:
        """An input with an array attached, which is data and no part of the program.

        Args:
          array: an array, a number or a list.
          name: for repr and errors.
          shape: what to declare in place of the array's own shape, as in `input`: a program for symbolic sizes serves
            arrays of any size.

        Raises:
          DTypeError, X64Error: no concrete array, or a 64-bit one while 64-bit types are off.
          PlaceholderRankMismatch, PlaceholderShapeMismatch: the array does not have the declared shape.

        Example:
          >>> TracedTensor.from_array([1.0, 2.0], "w", shape=("n",))
          TracedTensor(input 'w': float32[n], attached)
        """
        where = "TracedTensor.from_array" if name is None else f"input {name!r}"
        held, meta = array_meta(array, where)
        if shape is not None:
            declared = TensorMeta(meta.dtype, _shape(shape, where))
            solve_sizes([declared], [meta], ["graph input an unnamed array" if name is None else f"graph input {name!r}"])
            meta = declared
        return _leaf(name, meta, held)

    @staticmethod
    def constant(array: Any) -> TracedTensor:
        """A concrete array that is part of the program.

        Example:
          >>> TracedTensor.constant(2.0)
          TracedTensor(Constant: float32[], 1 node)
        """
        return RECORDER.constant(array)

    @staticmethod
    def apply(
        op: StdTensorOp | ExtensionOp,
        *tensors: Any,
        rules: ExtensionRuleSet = NO_RULES,
        runtimes: ExtensionRuntimeSet = NO_RUNTIMES,
    ) -> tuple[TracedTensor, ...]:
        """The outputs of any op of the vocabulary, or of an extension.

        Args:
          op: a standard op or an extension op.
          *tensors: tensors, or arrays that become constants; neither promoted nor broadcast.
          rules: AD rules that come with an extension.
          runtimes: kernels and selected routes that come with an extension.

        Raises:
          InvalidConfig: dtypes or shapes that the op refuses.

        Example:
          >>> from tenferro_jax.ops.cumulative import CumSum
          >>> x = TracedTensor.from_array([1.0, 2.0])
          >>> TracedTensor.apply(CumSum(0), x)[0].eval().tolist()
          [1.0, 3.0]
        """
        if type(rules) is not ExtensionRuleSet:
            raise not_a_rule_set(rules, "TracedTensor.apply")
        if type(runtimes) is not ExtensionRuntimeSet:
            raise not_a_runtime_set(runtimes, "TracedTensor.apply")
        return RECORDER.add(Extension.of(op, runtimes) if isinstance(op, ExtensionOp | Extension) else op, *tensors, rules=rules)

    @staticmethod
    def inline(fn: Callable[..., Any], *tensors: Any) -> Any:
        """What a JAX function makes of tensors, recorded in standard ops.

        Raises:
          Unsupported: the function uses a primitive that the vocabulary lacks.

        Example:
          >>> import jax
          >>> TracedTensor.inline(jax.nn.softmax, TracedTensor.from_array([0.0, 0.0])).eval().tolist()
          [0.5, 0.5]
        """
        return RECORDER.inline(fn, *tensors)

    @staticmethod
    def concatenate(tensors: Sequence[Any], axis: int = 0) -> TracedTensor:
        """Tensors of one rank joined along an axis, promoted to one dtype."""
        values = promoted(RECORDER, tensors, "concatenate")
        return RECORDER.add(structural.Concatenate(_axis(axis, values[0].ndim, "concatenate")), *values)[0]

    # --- what it is ---

    @property
    def name(self) -> str | None:
        """The name of an input, else None."""
        return self.source.name if isinstance(self.source, Leaf) else None

    @property
    def array(self) -> Any:
        """The array that is attached to an input, else None."""
        return self.source.array if isinstance(self.source, Leaf) else None

    @property
    def is_concrete_shape(self) -> bool:
        """Whether no size is symbolic."""
        return not any(map(is_symbolic_dim, self.shape))

    @property
    def size(self) -> SymDim:
        """The number of elements, symbolic where a size is."""
        return _product(self.shape)

    @property
    def T(self) -> TracedTensor:
        """The tensor with its axes reversed."""
        return self.transpose()

    def graph(self) -> Graph:
        """The program as a Graph; its arguments are the inputs in the order in which a depth-first walk meets them."""
        return to_graph([self], out_tree=jax.tree.structure(0))[0]

    def __repr__(self) -> str:
        if isinstance(self.source, Leaf):
            name = "array" if self.source.name is None else f"input {self.source.name!r}"
            return f"TracedTensor({name}: {self.meta}{'' if self.source.array is None else ', attached'})"
        behind = [h.source for h in walk([self])]
        leaves = [s for s in behind if isinstance(s, Leaf)]
        count = sum(isinstance(s, Record) and s.op is not None for s in behind)
        names = ", ".join("an array" if s.name is None else repr(s.name) for s in leaves[:4]) + (", ..." if len(leaves) > 4 else "")
        op = self.source.op
        made = "checkpoint" if op is None else getattr(op, "family_id", type(op).__name__)
        return f"TracedTensor({made}: {self.meta}, {count} node{'' if count == 1 else 's'}{f' on {names}' if names else ''})"

    def __len__(self) -> int:
        if not self.shape or is_symbolic_dim(self.shape[0]):
            given = "a scalar" if not self.shape else f"the symbolic size {self.shape[0]}"
            raise InvalidConfig(where="len", given=given, needed="a first axis of known size", fix="Use shape[0], which may be symbolic.")
        return int(self.shape[0])

    def _unknown(self, what: str) -> NoReturn:
        needed = "an array with values"
        raise InvalidConfig(where=what, given=f"the lazy {self!r}", needed=needed, fix="Call eval() first.")

    def __bool__(self) -> bool:
        self._unknown("bool")

    def __int__(self) -> int:
        self._unknown("int")

    def __float__(self) -> float:
        self._unknown("float")

    def __complex__(self) -> complex:
        self._unknown("complex")

    def __iter__(self) -> NoReturn:
        self._unknown("iteration")

    def __contains__(self, value: object) -> bool:
        self._unknown("in")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unknown("conversion to a NumPy array")

    # --- running and differentiating ---

    def eval(self, engine: Engine | None = None, bindings: Bindings = None) -> Any:
        """The array: compile if needed, and run. Arguments and errors as `eval_all`."""
        return eval_all([self], engine, bindings)[0]

    def grad(self, wrt: Any) -> Any:
        """The gradient of a floating scalar, lazy again.

        Args:
          wrt: a tensor that it is computed from, an input or not, or a list of them.

        Returns:
          A tensor like wrt (a list for a list). For a complex wrt it is JAX's: the conjugate of the direction of steepest
          ascent.

        Raises:
          NonScalarGrad: no floating scalar.
          InvalidConfig: it does not depend on a wrt.
          DTypeError: a wrt is neither floating nor complex.
          ADRuleError, Unsupported: something on the way has no derivative.

        Example:
          >>> x = TracedTensor.from_array([1.0, 2.0], "x")
          >>> (x * x * x).reduce_sum().grad(x).eval().tolist()
          [3.0, 12.0]
        """
        return self._required(self.grad_optional(wrt), wrt, "grad")

    def grad_optional(self, wrt: Any) -> Any:
        """As `grad`, with None for a tensor that it does not depend on."""
        differentiation.require_scalar(self)
        return self._vjp(wrt, np.ones((), self.dtype), "grad")

    def vjp(self, wrt: Any, cotangent: Any) -> Any:
        """The cotangents of wrt for a cotangent of the tensor, as jax.vjp has them; arguments and errors as `grad`."""
        return self._required(self.vjp_optional(wrt, cotangent), wrt, "vjp")

    def vjp_optional(self, wrt: Any, cotangent: Any) -> Any:
        """As `vjp`, with None for a tensor that it does not depend on."""
        return self._vjp(wrt, cotangent, "vjp")

    def jvp(self, wrt: Any, tangent: Any) -> TracedTensor:
        """The derivative in a direction: the tangent of the tensor for a tangent of wrt (a list for a list)."""
        moved = self.jvp_optional(wrt, tangent)
        if moved is None:
            raise differentiation.inactive(self, differentiation.tensors_of(wrt, "jvp")[0], "jvp")
        return moved

    def jvp_optional(self, wrt: Any, tangent: Any) -> TracedTensor | None:
        """As `jvp`, None if it depends on no wrt."""
        tangents = tangent if isinstance(wrt, list | tuple) else [tangent]
        return differentiation.jvp(RECORDER, self, differentiation.tensors_of(wrt, "jvp"), tangents, "jvp")

    def _vjp(self, wrt: Any, cotangent: Any, where: str) -> Any:
        found = differentiation.vjp(RECORDER, self, differentiation.tensors_of(wrt, where), cotangent, where)
        return found[0] if isinstance(wrt, Handle) else found

    def _required(self, found: Any, wrt: Any, where: str) -> Any:
        for x, one in zip(differentiation.tensors_of(wrt, where), found if isinstance(found, list) else [found], strict=True):
            if one is None:
                raise differentiation.inactive(self, x, where)
        return found

    def checkpoint(self) -> TracedTensor:
        """The same values; a reverse derivative computes again what lies between the last checkpoints and here.

        Nothing computed on the way is kept from the forward to the backward pass, but the inputs of the segment: its
        backward pass starts from them behind an optimization barrier that waits for the cotangent. Values and
        derivatives are those without; forward derivatives ignore it.

        Example:
          >>> x = TracedTensor.from_array([0.5], "x")
          >>> y = x.sin().exp().checkpoint().reduce_sum()
          >>> sum(type(n.op).__name__ == "Exp" for n in y.grad(x).graph().nodes)
          1
        """
        return TracedTensor(Record(None, (self,), NO_TERMS), 0, self.meta)

    # --- elementwise ---

    def _binary(self, op: StdTensorOp, other: Any, reflected: bool = False) -> Any:
        pair = (other, self) if reflected else (self, other)
        return RECORDER.add(op, *together(RECORDER, pair, type(op).__name__))[0]

    def _arithmetic(self, op: StdTensorOp, logical: StdTensorOp | None, other: Any, reflected: bool = False) -> Any:
        """`op`, and for booleans its counterpart in logic, where there is one."""
        a, b = together(RECORDER, (other, self) if reflected else (self, other), type(op).__name__)
        return RECORDER.add(logical if logical is not None and a.dtype.kind == "b" else op, a, b)[0]

    def _unary(self, op: StdTensorOp) -> TracedTensor:
        return RECORDER.add(op, self)[0]

    def _inexact(self, op: StdTensorOp) -> TracedTensor:
        return RECORDER.add(op, as_dtype(RECORDER, self, inexact_dtype(self.dtype)))[0]

    def _whole(self, op: StdTensorOp) -> TracedTensor:
        return self if self.dtype.kind in "iub" else self._unary(op)

    def add(self, other: Any) -> TracedTensor:
        """Sum; logical or for booleans."""
        return self._arithmetic(arithmetic.Add(), logic.Or(), other)

    def sub(self, other: Any) -> TracedTensor:
        """Difference."""
        return self._binary(arithmetic.Sub(), other)

    def mul(self, other: Any) -> TracedTensor:
        """Product; logical and for booleans."""
        return self._arithmetic(arithmetic.Mul(), logic.And(), other)

    def div(self, other: Any) -> TracedTensor:
        """True quotient: integers are converted to floating numbers first."""
        return quotient(RECORDER, self, other)

    def rem(self, other: Any) -> TracedTensor:
        """Remainder with the sign of the dividend; `%` has the divisor's."""
        return self._binary(arithmetic.Rem(), other)

    def pow(self, exponent: Any) -> TracedTensor:
        """Power; a Python integer keeps the dtype."""
        return power(RECORDER, self, exponent)

    def neg(self) -> TracedTensor:
        """The negative."""
        return self._unary(arithmetic.Neg())

    def compare(self, other: Any, direction: Direction | str) -> TracedTensor:
        """Boolean comparison of elements; direction is "eq", "ne", "lt", "le", "gt", "ge" or a Direction."""
        try:
            chosen = Direction(direction)
        except ValueError as error:
            needed = ", ".join(d.value for d in Direction)
            raise InvalidConfig(where="compare", given=repr(direction), needed=f"one of {needed}") from error
        return self._binary(logic.Compare(chosen), other)

    def maximum(self, other: Any) -> TracedTensor:
        """The larger element; NaN if either is."""
        return self._binary(arithmetic.Maximum(), other)

    def minimum(self, other: Any) -> TracedTensor:
        """The smaller element; NaN if either is."""
        return self._binary(arithmetic.Minimum(), other)

    def select(self, on_true: Any, on_false: Any) -> TracedTensor:
        """on_true where the tensor is true, else on_false; the tensor is boolean."""
        cases = promoted(RECORDER, [on_true, on_false], "select")
        return RECORDER.add(logic.Select(), *broadcast_together(RECORDER, [self, *cases], "select"))[0]

    def clamp(self, lower: Any, upper: Any) -> TracedTensor:
        """The elements limited to lower and upper; the gradient is zero at a bound."""
        return RECORDER.add(logic.Clamp(), *together(RECORDER, (self, lower, upper), "clamp"))[0]

    def conj(self) -> TracedTensor:
        """Complex conjugate; real tensors as they are."""
        return self._unary(conversion.Conj()) if self.dtype.kind == "c" else self

    def real(self) -> TracedTensor:
        """Real part."""
        return self._unary(conversion.Real()) if self.dtype.kind == "c" else self

    def imag(self) -> TracedTensor:
        """Imaginary part; zero for real tensors."""
        return self._unary(conversion.Imag()) if self.dtype.kind == "c" else self * _scalar(0, self.dtype)

    def abs(self) -> TracedTensor:
        """Absolute value; real for complex tensors."""
        return self if self.dtype.kind in "ub" else self._unary(arithmetic.Abs())

    def sign(self) -> TracedTensor:
        """-1, 0 or 1; x / |x| for complex tensors."""
        return self._unary(arithmetic.Sign())

    def floor(self) -> TracedTensor:
        """The largest integer not above; integers as they are."""
        return self._whole(arithmetic.Floor())

    def ceil(self) -> TracedTensor:
        """The smallest integer not below; integers as they are."""
        return self._whole(arithmetic.Ceil())

    def round(self, *, to_even: bool = True) -> TracedTensor:
        """The nearest integer, halves to even or away from zero; integers as they are."""
        return self._whole(arithmetic.Round(to_even))

    def exp(self) -> TracedTensor:
        """e to the element."""
        return self._inexact(analytic.Exp())

    def expm1(self) -> TracedTensor:
        """exp - 1, accurate near zero."""
        return self._inexact(analytic.Expm1())

    def log(self) -> TracedTensor:
        """Natural logarithm."""
        return self._inexact(analytic.Log())

    def log1p(self) -> TracedTensor:
        """log(1 + x), accurate near zero."""
        return self._inexact(analytic.Log1p())

    def sin(self) -> TracedTensor:
        """Sine of radians."""
        return self._inexact(analytic.Sin())

    def cos(self) -> TracedTensor:
        """Cosine of radians."""
        return self._inexact(analytic.Cos())

    def tanh(self) -> TracedTensor:
        """Hyperbolic tangent."""
        return self._inexact(analytic.Tanh())

    def logistic(self) -> TracedTensor:
        """1 / (1 + exp(-x))."""
        return self._inexact(analytic.Logistic())

    def sqrt(self) -> TracedTensor:
        """Square root."""
        return self._inexact(analytic.Sqrt())

    def rsqrt(self) -> TracedTensor:
        """1 / sqrt(x)."""
        return self._inexact(analytic.Rsqrt())

    def erf(self) -> TracedTensor:
        """Error function."""
        return self._inexact(special.Erf())

    def is_finite(self) -> TracedTensor:
        """Whether the element is neither NaN nor infinite."""
        return self._inexact(logic.IsFinite())

    def stop_gradient(self) -> TracedTensor:
        """The same values with a derivative of zero."""
        return self._unary(source.StopGradient())

    def convert(self, dtype: Any) -> TracedTensor:
        """The same numbers in a dtype to which this one promotes.

        Raises:
          DTypeError: the conversion could lose something; `cast` does it anyway.
        """
        wanted = _dtype(dtype, "convert")
        if common_dtype(self.dtype, wanted) != wanted:
            needed = f"a dtype to which {self.dtype} promotes"
            raise DTypeError(where="convert", given=str(wanted), needed=needed, fix="Use cast where the loss is meant.")
        return as_dtype(RECORDER, self, wanted)

    def cast(self, dtype: Any) -> TracedTensor:
        """The numbers in any dtype, by JAX's rules of conversion."""
        return as_dtype(RECORDER, self, _dtype(dtype, "cast"))

    # --- contraction and reduction ---

    def dot_general(
        self, other: Any, lhs_contracting: Sequence[int], rhs_contracting: Sequence[int], lhs_batch: Any = (), rhs_batch: Any = ()
    ) -> TracedTensor:
        """Sum of products over the contracting axes; output axes are batch, own free, other's free."""
        a, b = promoted(RECORDER, [self, other], "dot_general")
        axes = zip((lhs_contracting, rhs_contracting, lhs_batch, rhs_batch), (a, b, a, b), strict=True)
        return RECORDER.add(DotGeneral(*(_axes(tuple(group), x.ndim, "dot_general") for group, x in axes)), a, b)[0]

    def matmul(self, other: Any) -> TracedTensor:
        """Matrix product as NumPy's `@`: vectors are rows or columns, axes before the last two are batches that broadcast."""
        return matmul(RECORDER, self, other)

    def _reduced(self, kind: Any, axes: Axes, *args: Any) -> TracedTensor:
        return RECORDER.add(kind(_axes(axes, self.ndim, kind.__name__), *args), self)[0]

    def reduce_sum(self, axes: Axes = None) -> TracedTensor:
        """Sum over axes, all by default, in the tensor's dtype."""
        return self._reduced(reduction.ReduceSum, axes)

    def reduce_sum_squares(self, axes: Axes = None) -> TracedTensor:
        """Sum of squares over axes."""
        return self._reduced(reduction.ReduceSumSquares, axes)

    def reduce_prod(self, axes: Axes = None) -> TracedTensor:
        """Product over axes."""
        return self._reduced(reduction.ReduceProd, axes)

    def reduce_max(self, axes: Axes = None) -> TracedTensor:
        """Maximum over axes; NaN propagates; the gradient is split among equal maxima."""
        return self._reduced(reduction.ReduceMax, axes)

    def reduce_min(self, axes: Axes = None) -> TracedTensor:
        """Minimum over axes; NaN propagates; the gradient is split among equal minima."""
        return self._reduced(reduction.ReduceMin, axes)

    def reduce_and(self, axes: Axes = None) -> TracedTensor:
        """Whether all are true, of booleans; bitwise and of integers."""
        return self._reduced(reduction.ReduceAnd, axes)

    def reduce_or(self, axes: Axes = None) -> TracedTensor:
        """Whether any is true, of booleans; bitwise or of integers."""
        return self._reduced(reduction.ReduceOr, axes)

    def argmax(self, axis: int, index_dtype: Any = np.int32) -> TracedTensor:
        """Index of the first maximum along an axis."""
        return RECORDER.add(reduction.ArgMax(_axis(axis, self.ndim, "argmax"), _dtype(index_dtype, "argmax")), self)[0]

    def argmin(self, axis: int, index_dtype: Any = np.int32) -> TracedTensor:
        """Index of the first minimum along an axis."""
        return RECORDER.add(reduction.ArgMin(_axis(axis, self.ndim, "argmin"), _dtype(index_dtype, "argmin")), self)[0]

    # --- structure ---

    def reshape(self, *shape: Any) -> TracedTensor:
        """The elements in row-major order under another shape; one size may be -1; sizes as in `input`."""
        sizes = list(shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape)
        if [s for s in sizes if type(s) is int and s < 0] == [-1]:
            at = sizes.index(-1)
            known = _product(_shape([s for s in sizes if type(s) is not int or s >= 0], "reshape"))
            try:
                if type(known) is int and (known == 0 or self.size % known != 0):
                    raise ValueError(f"{self.size} elements and {known}")
                sizes[at] = self.size // known
            except Exception as error:
                needed = "sizes of which the last one follows"
                raise ShapeError(where="reshape", given=f"{self.meta} to {shape}", needed=needed, fix="Name every size.") from error
        wanted = _shape(sizes, "reshape")
        if are_equal(_product(wanted), self.size) is False:
            needed = f"{self.size} elements"
            raise ShapeError(where="reshape", given=f"{self.meta} to {wanted}", needed=needed, fix="Correct the sizes; one may be -1.")
        return self if wanted == self.shape else RECORDER.add(structural.Reshape(wanted), self)[0]

    def transpose(self, *permutation: Any) -> TracedTensor:
        """Output axis i is input axis permutation[i]; without one the axes are reversed."""
        order = permutation[0] if len(permutation) == 1 and isinstance(permutation[0], list | tuple) else permutation
        axes = _axes(tuple(order), self.ndim, "transpose") if order else tuple(reversed(range(self.ndim)))
        return RECORDER.add(structural.Transpose(axes), self)[0]

    def broadcast_in_dim(self, shape: Sequence[Size], dims: Sequence[int]) -> TracedTensor:
        """Axis i becomes axis dims[i] of the shape; other axes, and axes of size 1, repeat."""
        return RECORDER.add(structural.BroadcastInDim(_shape(shape, "broadcast_in_dim"), tuple(dims)), self)[0]

    def broadcast_to(self, shape: Sequence[Size]) -> TracedTensor:
        """Repeated to a shape, aligned at the last axis."""
        return broadcast(RECORDER, self, _shape(shape, "broadcast_to"))

    def slice(self, starts: Sequence[Size], limits: Sequence[Size], strides: Sequence[int] | None = None) -> TracedTensor:
        """Elements start, start + stride, ... below limit, on every axis."""
        steps = (1,) * self.ndim if strides is None else tuple(strides)
        return RECORDER.add(structural.Slice(_shape(starts, "slice"), _shape(limits, "slice"), steps), self)[0]

    def pad(self, low: Sequence[int], high: Sequence[int], interior: Sequence[int] | None = None, value: Any = 0) -> TracedTensor:
        """Surrounded by a value: low and high edges (negative ones crop), and interior gaps."""
        gaps = (0,) * self.ndim if interior is None else tuple(interior)
        fill = value if isinstance(value, TracedTensor) else _scalar(value, self.dtype)
        return RECORDER.add(structural.Pad(tuple(low), tuple(high), gaps), self, fill)[0]

    def reverse(self, axes: Axes = None) -> TracedTensor:
        """The order along axes reversed, along all by default."""
        return self._reduced(structural.Reverse, axes)

    def gather(self, indices: Any, **fields: Any) -> TracedTensor:
        """Slices at start indices; the fields are those of the op Gather."""
        return RECORDER.add(indexing.Gather(**fields), self, indices)[0]

    def scatter(self, indices: Any, updates: Any, **fields: Any) -> TracedTensor:
        """The tensor with updates added at indices; the fields are those of the op Scatter."""
        return RECORDER.add(indexing.Scatter(**fields), self, indices, updates)[0]

    def dynamic_slice(self, starts: Sequence[Any], sizes: Sequence[Size]) -> TracedTensor:
        """A window of fixed sizes at scalar starts, clamped into bounds."""
        return RECORDER.add(indexing.DynamicSlice(_shape(sizes, "dynamic_slice")), self, *_starts(starts))[0]

    def dynamic_update_slice(self, update: Any, starts: Sequence[Any]) -> TracedTensor:
        """The tensor with a window replaced at scalar starts, clamped into bounds."""
        return RECORDER.add(indexing.DynamicUpdateSlice(), self, update, *_starts(starts))[0]

    def tril(self, k: int = 0) -> TracedTensor:
        """Zero above the k-th diagonal of the last two axes."""
        return self._unary(diagonal.Tril(k))

    def triu(self, k: int = 0) -> TracedTensor:
        """Zero below the k-th diagonal of the last two axes."""
        return self._unary(diagonal.Triu(k))

    def extract_diag(self, axis_a: int = 0, axis_b: int = 1) -> TracedTensor:
        """The diagonal of two axes: it stays at axis_a, axis_b is dropped."""
        return self._unary(diagonal.ExtractDiag(*_axes((axis_a, axis_b), self.ndim, "extract_diag")))

    def embed_diag(self, axis_a: int = 0, axis_b: int = 1) -> TracedTensor:
        """Zeros with the tensor on a diagonal: axis_b of the result is new and repeats the size of its axis_a."""
        return self._unary(diagonal.EmbedDiag(*_axes((axis_a, axis_b), self.ndim + 1, "embed_diag")))

    def pad_to_match(self, reference: Any, axis: int) -> TracedTensor:
        """Padded with zeros at the end of an axis up to the size of the reference."""
        return RECORDER.add(diagonal.PadToMatch(_axis(axis, self.ndim, "pad_to_match")), self, reference)[0]

    def shape_of(self, axis: int) -> TracedTensor:
        """The size of an axis as an int32 scalar."""
        return self._unary(source.ShapeOf(_axis(axis, self.ndim, "shape_of")))

    def __getitem__(self, index: Any) -> TracedTensor:
        return indexed(RECORDER, self, index)

    # --- operators ---

    def __add__(self, other: Any) -> Any:
        return self.add(other) if _is_operand(other) else NotImplemented

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return self.mul(other) if _is_operand(other) else NotImplemented

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Any:
        return self.sub(other) if _is_operand(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self._binary(arithmetic.Sub(), other, reflected=True) if _is_operand(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return self.div(other) if _is_operand(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return quotient(RECORDER, other, self) if _is_operand(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return remainder(RECORDER, self, other) if _is_operand(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return remainder(RECORDER, other, self) if _is_operand(other) else NotImplemented

    def __pow__(self, other: Any) -> Any:
        return self.pow(other) if _is_operand(other) else NotImplemented

    def __rpow__(self, other: Any) -> Any:
        return power(RECORDER, other, self) if _is_operand(other) else NotImplemented

    def __matmul__(self, other: Any) -> Any:
        return self.matmul(other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(RECORDER, other, self) if _is_operand(other) else NotImplemented

    def __neg__(self) -> TracedTensor:
        return self.neg()

    def __pos__(self) -> TracedTensor:
        return self

    def __abs__(self) -> TracedTensor:
        return self.abs()

    def __lt__(self, other: Any) -> Any:
        return self.compare(other, Direction.Lt) if _is_operand(other) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return self.compare(other, Direction.Le) if _is_operand(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return self.compare(other, Direction.Gt) if _is_operand(other) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return self.compare(other, Direction.Ge) if _is_operand(other) else NotImplemented

    def __and__(self, other: Any) -> Any:
        return self._binary(logic.And(), other) if _is_operand(other) else NotImplemented

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self._binary(logic.Or(), other) if _is_operand(other) else NotImplemented

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return self._binary(logic.Xor(), other) if _is_operand(other) else NotImplemented

    __rxor__ = __xor__

    def __invert__(self) -> TracedTensor:
        return self._unary(logic.Not())


RECORDER: Recorder[TracedTensor] = Recorder(TracedTensor)
"""The builder whose values are TracedTensors."""


def _leaf(name: str | None, meta: TensorMeta, array: Any = None) -> TracedTensor:
    return TracedTensor(Leaf(name, meta, array), 0, meta)


def _scalar(value: Any, dtype: Any) -> TracedTensor:
    return RECORDER.constant(number(value, dtype, "a lazy tensor") if type(value) in SCALARS else value)


def _is_operand(value: Any) -> bool:
    return isinstance(value, TracedTensor) or type(value) in SCALARS or isinstance(value, _ARRAYS)


def _starts(starts: Sequence[Any]) -> list[TracedTensor]:
    return promoted(RECORDER, [np.int32(s) if type(s) is int else s for s in starts], "starts") if starts else []


def _product(sizes: Sequence[Any]) -> Any:
    return functools.reduce(operator.mul, sizes, 1)


def _dtype(dtype: Any, where: str) -> Any:
    try:
        wanted = jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, type) and dtype in SCALARS else np.dtype(dtype)
    except TypeError as error:
        needed = "a dtype that JAX has"
        raise DTypeError(where=where, given=repr(dtype), needed=needed, fix="Pass numpy.float32 for example.") from error
    meta = TensorMeta(wanted, ())
    require_x64(meta, where)
    if wanted.kind not in "biufcV" or (wanted.kind == "V" and wanted.names is not None):
        raise DTypeError(where=where, given=str(wanted), needed="a dtype that JAX has", fix="Pass numpy.float32 for example.")
    return canonical_dtype(wanted)


def _shape(sizes: Any, where: str) -> tuple[Any, ...]:
    return tuple([_size(size, where) for size in ((sizes,) if isinstance(sizes, int | str) else sizes)])


def _size(size: Any, where: str) -> Any:
    if is_symbolic_dim(size):
        return size
    try:
        if isinstance(size, str):
            (size,) = jax.export.symbolic_shape(size, scope=_SYMBOLS)
            return size
        if isinstance(size, bool) or operator.index(size) < 0:
            raise ValueError("negative or boolean")
        return operator.index(size)
    except (TypeError, ValueError) as error:
        needed = "an integer from 0, a name such as 'n', or a symbolic dimension"
        raise ShapeError(
            where=where, given=f"the size {size!r}", needed=needed, fix=f"Correct it: {str(error).splitlines()[0]}."
        ) from error


def _axes(axes: Axes, rank: int, where: str) -> tuple[int, ...]:
    """Axes counted from 0, each once; None is all."""
    if axes is None:
        return tuple(range(rank))
    chosen = tuple(_axis(axis, rank, where) for axis in ((axes,) if isinstance(axes, int) else axes))
    if len(set(chosen)) < len(chosen):
        raise ShapeError(where=where, given=f"axes {axes}", needed="each axis once", fix="Drop the repeated one.")
    return chosen


def _axis(axis: Any, rank: int, where: str) -> int:
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise ShapeError(where=where, given=f"axis {axis!r}", needed=f"one from {-rank} to {rank - 1}", fix="Count axes from 0.")
    return axis % rank
