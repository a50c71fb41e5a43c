"""What is checked: how it is called, its expected outputs, and what is no fault of it.
A function is here, an op in op_subject.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidConfig
from ..jax_seam import x64_elsewhere
from ..shapes import (
    PyTree,
    Shaped,
    TensorMeta,
    as_array,
    is_inexact,
    is_key,
    meta_of,
    struct,
    x64_enabled,
)
from .examples import Array, Arrays, Inputs, cast, first_wrong, in_double, is_number, largest, rows
from .numpy_arrays import HELD, all_wide, coarsest, holds_numpy
from .report import Broken, Cases, NotApplicable, breaking, causes, failure, one_line, unsupported

NO_MESH = jax.sharding.Mesh(np.empty((), object), ())

# How many inputs are named one by one, and how many are differentiated alone.
MOST_NAMED, MOST_ALONE = 4, 8


class Claim(NamedTuple):
    """A JAX-traceable function, its arguments, and its expected arrays; and the same function of
    plain JAX, if there is one.
    """

    what: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    want: Any
    plain: Callable[..., Any] | None = None


class Refused(NamedTuple):
    """In place of the result of a claim that JAX itself does not run."""

    reason: str


def in_terms_of(inputs: PyTree) -> float:
    """A size of terms beside which outputs may be rounding, as in x - x.mean(): an eighth of the
    largest input, whose rounding counts 16 times.
    """
    return max((largest(x) for x in jax.tree.leaves(inputs) if is_inexact(x)), default=0.0) / 8


Oracle = Callable[..., Sequence[Any]]

Axes = tuple[int | None, ...]
"""The axis over which each input is mapped; None for an input that is shared."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Subject(abc.ABC):
    """What is checked, with all that its checks need; the attributes are the arguments of `check`.

    Attributes:
      name: of the op or function.
      text: the op with its payload; "" for a function.
      examples: the inputs, each example a tuple of arrays.
      notes: what the running check left out.
      partly: the inputs that the running check compared, where there are others.
      wide: the precision in which derivatives are compared with finite differences.
      x64: whether the checks run with 64-bit types on.
      grain: eps of the coarsest arithmetic inside, for inputs in the wide precision.
      own_batching: whether it has a rule of its own for vmap.
      keyed: whether a random key is among the arguments.
      users_x64: whether 64-bit types were on when the check began.
      given_wide: whether 64-bit types were on, and all floating inputs were given in float64.
      needs_mesh: whether it runs only under the mesh that was set when the check began.
      tied: what is left out because programs hold NumPy arrays, see `tied_to_the_setting`; or "".
    """

    oracle: Oracle | None = None
    tolerance: float | None = None
    order: int = 2
    seed: int = 0

    name: str = dataclasses.field(default="", init=False)
    text: str = dataclasses.field(default="", init=False)
    examples: tuple[Inputs, ...] = dataclasses.field(default=(), init=False)
    notes: dict[str, None] = dataclasses.field(default_factory=dict, init=False)
    partly: dict[str, None] = dataclasses.field(default_factory=dict, init=False)
    wide: str = dataclasses.field(default="float64", init=False)
    x64: bool = dataclasses.field(default=True, init=False)
    grain: float = dataclasses.field(default=2.0**-52, init=False)
    own_batching: bool = dataclasses.field(default=False, init=False)
    keyed: bool = dataclasses.field(default=False, init=False)
    users_x64: bool = dataclasses.field(default_factory=x64_enabled, init=False)
    given_wide: bool = dataclasses.field(default=False, init=False)
    needs_mesh: bool = dataclasses.field(default=False, init=False)
    tied: str = dataclasses.field(default="", init=False)

    def __post_init__(self) -> None:
        self._results: dict[Any, tuple[np.ndarray, ...]] = {}
        self.missing: dict[Any, str] = {}  # what Smooth.missing has found
        self.programs: dict[Any, Callable[..., Any]] = {}
        limit = self.tolerance
        is_limit = limit is None or (type(limit) in (int, float) and 0 <= limit < math.inf)
        self.require("oracle", callable(self.oracle or len), "a NumPy function of the inputs")
        self.require("tolerance", is_limit, "a finite number from 0")
        self.require("order", type(self.order) is int and self.order in (1, 2), "1 or 2")
        self.require("seed", type(self.seed) is int and self.seed >= 0, "a non-negative int")

    def require(self, name: str, right: bool, needed: str) -> None:
        """Refuse an argument of `check` that is not right."""
        if not right:
            raise InvalidConfig(
                where="check",
                given=f"{name}={getattr(self, name)!r}",
                needed=needed,
                fix="See the docstring of check.",
            )

    @abc.abstractmethod
    def call(self, *arrays: Array) -> tuple[jax.Array, ...]:
        """The op or function on arrays, which may be traced."""

    def tied_to_the_setting(self, inputs: Inputs) -> bool:
        """Whether programs hold NumPy arrays: then all checks run in the user's setting of 64-bit
        types, because JAX would confuse programs of both settings, here and after the check.
        """
        with jax.enable_x64(self.users_x64):
            held = holds_numpy(self.call, inputs)
        if held and not self.users_x64:
            self.tied = HELD
        return held

    def is_taken(self, test: Callable[[], bool]) -> bool:
        """A test, whether JAX takes the subject: without the mesh that is set, or else under it."""
        if test():
            return True
        if jax.sharding.get_abstract_mesh().empty:
            return False
        self.needs_mesh = True
        self.needs_mesh = test()
        return self.needs_mesh

    @abc.abstractmethod
    def metas(self, inputs: Sequence[Shaped]) -> tuple[TensorMeta, ...] | None:
        """Dtypes and shapes of the outputs; None if these inputs are refused."""

    def values(self, *arrays: Array) -> Arrays:
        """The expected outputs."""
        return self.call(*arrays)

    def judged(self, *arrays: Array) -> Arrays:
        """The outputs of which a derivative is the derivative."""
        return self.values(*arrays)

    def require_derivatives(self, *, linearized: bool) -> None:  # noqa: B027
        """Raise NotApplicable if there is no rule."""

    @abc.abstractmethod
    def excuse(self, error: BaseException) -> str:
        """Why it cannot do what it need not do; "" if the error is a fault."""

    def limit(self, error: BaseException | None) -> str:
        """The excuse in an error or in a cause of it."""
        return next(filter(None, map(self.excuse, causes(error))), "")

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """The setting in which the checks run. That of 64-bit types is set for the whole process,
        because JAX runs some host callbacks in other threads, which narrow their arguments
        otherwise. The mesh of `jax.set_mesh` is there only for what needs it.
        """
        before = x64_elsewhere()
        jax.config.update("jax_enable_x64", self.x64)
        try:
            with jax.enable_x64(self.x64), contextlib.ExitStack() as scopes:
                if not self.needs_mesh:
                    scopes.enter_context(jax.set_mesh(NO_MESH))
                yield
        finally:
            jax.config.update("jax_enable_x64", before)

    def host_error(self, inputs: Inputs) -> str:
        """Why the values of these inputs are refused; "" if they are not."""
        return ""

    def axes_text(self, axes: Axes) -> str:
        """The mapped axes in words."""
        mapped = [f"axis {a} of {self.names((i,))}" for i, a in enumerate(axes) if a is not None]
        return f"over {' and '.join(mapped)}"

    def each(self, mask: Sequence[int]) -> str:
        """Each input of a mask in words, however many there are."""
        return ", ".join(self.names((i,)) for i in mask)

    def names(self, mask: Sequence[int]) -> str:
        """The inputs of a mask, in words."""
        return ("input " if len(mask) == 1 else "inputs ") + ", ".join(map(str, mask))

    @property
    def rng(self) -> np.random.Generator:
        """A new generator at each access, so that each check draws the same numbers, whichever
        checks ran before.
        """
        return np.random.default_rng(self.seed)

    def accepted(self, candidates: Iterable[Inputs]) -> list[Inputs]:
        """Those of the generated inputs that inference and the host form accept."""
        return [
            inputs
            for inputs in candidates
            if self.metas(inputs) is not None and not self.refuses(inputs)
        ]

    def refuses(self, inputs: Inputs) -> bool:
        """Whether the host form raises for the values of generated inputs, which it may do; the
        report notes it.
        """
        error = self.host_error(inputs)
        if error:
            note = f"not applicable there: the op refuses values made from the example ({error})"
            self.notes.update({note: None})
        return bool(error)

    def rows(self, inputs: Inputs, count: int) -> list[Inputs]:
        """`count` examples like this one: generated from it, or else the author's examples of the
        same metas, in turn.
        """
        made = rows(inputs, count)
        if not any(self.refuses(each) for each in made[1:]):
            return made
        own, metas = [inputs], list(map(meta_of, inputs))
        for example in self.examples:
            if example is not inputs and list(map(meta_of, example)) == metas:
                own.append(example)
        return [own[k % len(own)] for k in range(count)]

    def expected(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The expected outputs."""
        key = tuple((x.dtype, x.shape, x.tobytes()) for x in inputs)
        if key not in self._results:
            self._results[key] = tuple(map(np.asarray, self.values(*inputs)))
        return self._results[key]

    def difference(self, got: PyTree, want: PyTree, terms: float = 0.0) -> str:
        """The difference of two nests of arrays as text; "" if they agree within the tolerance.
        `terms` is the size of the terms beside which an entry may be rounding.
        """
        got, want = jax.tree.leaves(got), jax.tree.leaves(want)
        if len(got) != len(want):
            return f"{len(got)} arrays where {len(want)} were expected"
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            text = self._difference(np.asarray(a), np.asarray(b), terms)
            if text:
                return (f"output {i}: " if len(got) > 1 else "") + text
        return ""

    def _difference(self, got: np.ndarray, want: np.ndarray, terms: float) -> str:
        tolerance = self.tolerance
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return (
                f"{TensorMeta(got.dtype, got.shape)} where {TensorMeta(want.dtype, want.shape)} "
                f"was expected"
            )
        if not got.size:
            return ""
        equal = (got == want) | ((got != got) & (want != want))
        if not jax.numpy.issubdtype(got.dtype, jax.numpy.inexact) or tolerance == 0:
            wrong, allowed = ~equal, 0.0
        else:
            eps = max(self.grain, float(jax.numpy.finfo(got.dtype).eps))
            rounding = eps**0.75
            allowed = (
                rounding
                if tolerance is None
                else max(tolerance, rounding)
                if want.dtype.itemsize < 8
                else tolerance
            )
            # After cancellation the rounding of the terms stays: of an op some units in the last
            # place of the largest entry are allowed.
            most = min(allowed, 64 * eps) if self.text else allowed
            a, b = in_double(got), in_double(want)
            with np.errstate(all="ignore"):
                rest = most * largest(b) + 16 * eps * terms
                wrong = ~equal & ~(abs(a - b) <= allowed * abs(b) + rest)
        limit = f"relative tolerance {allowed:.1e}" if allowed else "equality to the last bit"
        text = first_wrong(wrong, got, want, "{} was expected")
        return text and f"{text} beyond {limit}"

    def hold(self, claims: Sequence[Claim], clause: str, fix: str, terms: float = 0.0) -> Cases:
        """One case a claim. Where the size of terms is not given, it is that of the arguments."""
        results = self.results(claims, clause, fix)
        refused = [value.reason for value in results if isinstance(value, Refused)]
        if refused and len(refused) == len(claims):
            raise NotApplicable(refused[0], "Use other functions, if you need it.")
        self.notes.update(dict.fromkeys(refused))
        for claim, value in zip(claims, results, strict=True):
            if not isinstance(value, Refused):
                size = terms or in_terms_of(claim.args)
                self.require_equal(claim.what, value, claim.want, clause, fix, size)
                yield

    def results(self, claims: Sequence[Claim], clause: str, fix: str) -> list[Any]:
        """The results of the functions, compiled as one program; if that fails, one by one, to find
        the failing one. Where plain JAX fails too, what it says.
        """
        try:
            got = jax.jit(
                lambda all_args: [c.fn(*args) for c, args in zip(claims, all_args, strict=True)]
            )([c.args for c in claims])
            jax.block_until_ready(got)
        except Exception:
            got = []
            for claim in claims:
                try:
                    with breaking(clause, claim.what, fix):
                        got.append(jax.block_until_ready(jax.jit(claim.fn)(*claim.args)))
                except Broken:
                    error = claim.plain and failure(jax.jit(claim.plain), *claim.args)
                    if not error:
                        raise
                    text = f"JAX itself cannot run {claim.what} ({one_line(error)})"
                    got.append(Refused(text))
        return got

    def require_equal(
        self,
        what: str,
        got: PyTree,
        want: PyTree,
        clause: str,
        fix: str,
        terms: float = 0.0,
    ) -> None:
        """Refuse a value that is not the expected one."""
        difference = self.difference(got, want, terms)
        if difference:
            raise Broken(clause, f"{what}: {difference}", fix)


JITTED: Any = type(jax.jit(len))
NOT_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


@dataclasses.dataclass(eq=False, kw_only=True)
class FunctionSubject(Subject):
    """A function at one example. Its inputs are the arrays of numbers among the leaves of the
    function, which may be a pytree such as an equinox module, and of its arguments.
    """

    fn: Callable[..., PyTree]
    args: Sequence[PyTree]

    def __post_init__(self) -> None:
        super().__post_init__()
        fn = self.fn
        while isinstance(fn, functools.partial):
            fn = fn.func
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.name = f"{getattr(fn, '__module__', None) or type(fn).__module__}.{name}"
        found, self.tree = jax.tree_util.tree_flatten_with_path((self.fn, tuple(self.args)))
        self.paths, self.leaves = [path for path, _ in found], [leaf for _, leaf in found]
        with jax.enable_x64(True):
            for path, leaf in found:
                if _is_array(leaf):
                    as_array(leaf, f"check of {self.name}, {_name_of(path)}")
        self.keyed = any(map(_is_random_key, self.leaves))
        self.first: list[np.ndarray] | None = None
        with contextlib.suppress(Exception):  # the checks tell what it raises
            self.first = self.plain()
        self.compiled = jax.jit(lambda *arrays: self.call(*arrays))
        arrays = [i for i, leaf in enumerate(self.leaves) if _is_array(leaf)]
        floats = [i for i in arrays if is_inexact(self.leaves[i])]
        choices = [(True, "float64", arrays), (True, "float64", floats), (False, "float32", arrays)]
        users = [choice for choice in choices if choice[0] == self.users_x64]
        self._settle(*users[0])
        self.given_wide = self.users_x64 and all_wide(self.leaves[i] for i in arrays)
        if self.tied_to_the_setting(self.examples[0]):
            choices = users
        self.untraced: Exception | None = None
        if self.is_taken(functools.partial(self._takes, choices)):
            with self.precision():
                self.grain = coarsest(self.compiled.trace(*self.examples[0]).jaxpr, self.wide)

    def _settle(self, x64: bool, wide: str, moving: Sequence[int]) -> None:
        self.x64, self.wide, self.moving = x64, wide, moving
        self.examples = (cast(tuple(np.asarray(self.leaves[i]) for i in moving), wide),)

    def _takes(self, choices: Sequence[tuple[bool, str, Sequence[int]]]) -> bool:
        """Whether JAX traces the function in one of these settings, the first of which is settled;
        if not, why it does not in the first.
        """
        errors = []
        for choice in choices:
            self._settle(*choice)
            errors.append(self._error())
            if errors[-1] is None:
                self.untraced = None
                return True
        self.untraced = errors[0]
        return False

    def _error(self) -> Exception | None:
        with self.precision():
            return failure(self.compiled.lower, *self.examples[0])

    def call(self, *arrays: Array) -> tuple[jax.Array, ...]:
        """The function, not compiled: its arrays of numbers."""
        leaves = list(self.leaves)
        for i, array in zip(self.moving, arrays, strict=True):
            leaves[i] = jnp.asarray(array)
        fn, args = jax.tree.unflatten(self.tree, leaves)
        return tuple(_arrays(fn(*args)))

    def plain(self, *, anew: bool = False) -> list[np.ndarray]:
        """The values of a call with the arguments as they were given, with the user's settings;
        `anew`: without the programs that a jitted function has compiled.
        """
        fn = self.fn
        if anew and isinstance(fn, JITTED):
            fn = fn.__wrapped__
        with jax.enable_x64(self.users_x64):
            return [np.asarray(y) for y in _arrays(fn(*self.args))]

    def require_derivatives(self, *, linearized: bool) -> None:
        """Raise NotApplicable if the function cannot be traced."""
        if self.untraced is not None:
            raise NotApplicable("JAX cannot trace the function: see value")

    def values(self, *arrays: Array) -> Arrays:
        """The values of the compiled function."""
        return self.compiled(*arrays)

    def metas(self, inputs: Sequence[Shaped]) -> tuple[TensorMeta, ...] | None:
        """Dtypes and shapes of the outputs; None if the function does not take the inputs."""
        try:
            return tuple(
                map(meta_of, jax.eval_shape(self.compiled, *(struct(meta_of(x)) for x in inputs)))
            )
        except Exception:  # of whatever class
            return None

    def excuse(self, error: BaseException) -> str:
        """What JAX or a library does not do with the function; "" if the error is a fault."""
        if isinstance(error, NOT_TRACED):
            return f"JAX cannot trace it: {one_line(error)}"
        return one_line(error) if unsupported(error) else ""

    def names(self, mask: Sequence[int]) -> str:
        """The inputs of a mask in words: "argument 0 and argument 1['w']"."""
        if len(mask) > MOST_NAMED:
            return f"{len(mask)} arrays together"
        return " and ".join(_name_of(self.paths[self.moving[i]]) for i in mask)


def _name_of(path: tuple[Any, ...]) -> str:
    """A leaf of the function and its arguments in words."""
    (of, *inner) = path
    text = jax.tree_util.keystr(tuple(inner[of.idx :]))
    return f"argument {inner[0].idx}{text}" if of.idx else f"the function's {text}"


def _is_random_key(leaf: object) -> bool:
    """A key, or the two numbers of jax.random.PRNGKey."""
    if not isinstance(leaf, jax.Array):
        return False
    return is_key(leaf.dtype) or (leaf.dtype == np.uint32 and leaf.shape[-1:] == (2,))


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array) and is_number(leaf.dtype)


def _arrays(outputs: PyTree) -> Iterator[jax.Array]:
    """The arrays of numbers among outputs; of keys their data."""
    for y in jax.tree.leaves(outputs):
        if isinstance(y, jax.Array) and is_key(y.dtype):
            yield jax.random.key_data(y)
        elif isinstance(y, bool | int | float | complex | np.ndarray | np.generic | jax.Array):
            yield jnp.asarray(y)
