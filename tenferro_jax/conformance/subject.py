"""The op that is checked: how it is called, its expected outputs, and the exceptions of checks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import ADRuleError, BackendFailure, InvalidConfig, TenferroError
from ..extension.carrier import Extension
from ..extension.contract import ExtensionOp, has_host_form, lowered
from ..extension.execution import host_errors
from ..extension.primitive import apply
from ..extension.routes import current_platform, here, route_of
from ..extension.rules import NO_RULES, ExtensionAdRule, ExtensionRuleSet
from ..extension.runtimes import NO_RUNTIMES, ExtensionRuntimeSet, RouteKind
from ..shapes import PyTree, Shaped, TensorMeta, meta_of
from .examples import Array, Inputs, first_wrong, is_half, read_examples, rows


class Broken(Exception):
    """Raised by a check: a clause does not hold."""

    def __init__(self, clause: str, problem: str, fix: str):
        self.clause, self.problem, self.fix = clause, problem, fix
        super().__init__(f"{clause}: {problem}")


class NotApplicable(Exception):
    """Raised by a check that does not apply to this op."""

    def __init__(self, reason: str, instead: str = "Nothing is to be done."):
        self.reason, self.instead = reason, instead
        super().__init__(reason)


class Claim(NamedTuple):
    """A JAX-traceable function, its arguments, and its expected arrays."""

    what: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    want: Any


ROUNDINGS = 64
"""Units in the last place of the largest entry by which every entry may differ."""

Oracle = Callable[..., Sequence[Any]]


@dataclasses.dataclass(eq=False)
class Subject:
    """An op with all that its checks need; the attributes are the arguments of
    `check`.
    """

    op: ExtensionOp
    given: Sequence[Any]
    rules: ExtensionRuleSet = NO_RULES
    runtimes: ExtensionRuntimeSet = NO_RUNTIMES
    oracle: Oracle | None = None
    tolerance: float | None = None
    others: Sequence[ExtensionOp] = ()
    order: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, right, needed in (
            ("op", isinstance(self.op, ExtensionOp), "an instance of an ExtensionOp subclass"),
            ("rules", isinstance(self.rules, ExtensionRuleSet), "an ExtensionRuleSet"),
            ("runtimes", isinstance(self.runtimes, ExtensionRuntimeSet), "an ExtensionRuntimeSet"),
            (
                "oracle",
                self.oracle is None or callable(self.oracle),
                "a NumPy function of the inputs",
            ),
            (
                "tolerance",
                self.tolerance is None
                or (type(self.tolerance) in (int, float) and 0 <= self.tolerance < math.inf),
                "a finite number from 0",
            ),
            (
                "others",
                isinstance(self.others, Sequence)
                and all(isinstance(o, ExtensionOp) for o in self.others),
                "a sequence of ops",
            ),
            ("order", type(self.order) is int and self.order in (1, 2), "1 or 2"),
            ("seed", type(self.seed) is int and self.seed >= 0, "a non-negative int"),
        ):
            if not right:
                raise InvalidConfig(
                    where="check",
                    given=f"{name}={getattr(self, name)!r}",
                    needed=needed,
                    fix="See the docstring of check.",
                )
        with jax.enable_x64(True):
            self.examples = read_examples(self.op, self.given)
        self.notes: dict[str, None] = {}
        self._expected: dict[Any, tuple[np.ndarray, ...]] = {}
        self._ways: dict[tuple[TensorMeta, ...], dict[str, ExtensionRuntimeSet]] = {}

    @functools.cached_property
    def carrier(self) -> Extension:
        """The op in its carrier, which refuses a malformed family_id or count."""
        return Extension(self.op, (), self.runtimes)

    @property
    def rng(self) -> np.random.Generator:
        """A new generator at each access, so that each check draws the same numbers, whichever
        checks ran before.
        """
        return np.random.default_rng(self.seed)

    def rule(self) -> ExtensionAdRule:
        """The AD rule of the op's family; NotApplicable if there is none."""
        rule = self.rules.rule_of(self.op)
        if rule is None:
            raise NotApplicable(
                "no AD rule for the family",
                "Override linearize, or pass rules=ExtensionRuleSet(...).",
            )
        return rule

    def call(self, *arrays: Array) -> tuple[jax.Array, ...]:
        """The op on arrays, with its rules and runtimes."""
        return apply(self.op, *arrays, rules=self.rules, runtimes=self.runtimes)

    def metas(self, inputs: Sequence[Shaped]) -> tuple[TensorMeta, ...] | None:
        """The result of inference; None if it refuses the inputs with a typed error."""
        try:
            return self.carrier.infer(*map(meta_of, inputs))
        except TenferroError:
            return None

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

    def host_error(self, inputs: Inputs) -> str:
        """The exception of eager_execute as text; "" if it runs or does not exist."""
        if not has_host_form(self.op):
            return ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", RuntimeWarning
                )  # NumPy on values such as the mean of nothing
                self.op.eager_execute(*[x.copy() for x in inputs])
        except Exception as error:
            return _one_line(error)
        return ""

    def rows(self, inputs: Inputs, count: int) -> list[Inputs]:
        """`count` examples like this one: generated from it, or else the author's examples of the
        same metas, in turn.
        """
        made = rows(inputs, count)
        if not any(self.refuses(each) for each in made[1:]):
            return made
        metas = [meta_of(x) for x in inputs]
        own = [
            inputs,
            *(e for e in self.examples if e is not inputs and [meta_of(x) for x in e] == metas),
        ]
        return [own[k % len(own)] for k in range(count)]

    def expected(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The expected outputs: those of the oracle, or else of a plain call."""
        key = tuple((x.dtype, x.shape, x.tobytes()) for x in inputs)
        if key not in self._expected:
            outs = tuple(
                map(
                    np.asarray,
                    self.call(*inputs)
                    if self.oracle is None
                    else self._of_oracle(self.oracle, inputs),
                )
            )
            self._expected[key] = outs
        return self._expected[key]

    def _of_oracle(self, oracle: Oracle, inputs: Inputs) -> Sequence[Any]:
        """The oracle's answer in the dtypes of the op, because NumPy may use another precision; it
        computes 16-bit floats in float32.
        """
        outs = [
            np.asarray(y)
            for y in oracle(*(x.astype(np.float32) if is_half(x.dtype) else x for x in inputs))
        ]
        metas = self.metas(inputs)
        if metas is None or len(metas) != len(outs):
            return outs
        with np.errstate(all="ignore"):
            made = [
                y if np.iscomplexobj(y) else y.astype(m.dtype)
                for y, m in zip(outs, metas, strict=True)
            ]
        for i, (y, new, m) in enumerate(zip(outs, made, metas, strict=True)):
            if np.iscomplexobj(y) and jax.numpy.issubdtype(m.dtype, jax.numpy.complexfloating):
                made[i] = y.astype(m.dtype)
            elif np.iscomplexobj(y) or (
                not jax.numpy.issubdtype(m.dtype, jax.numpy.inexact) and (new != y).any()
            ):
                problem = (
                    f"the oracle's output {i} is {TensorMeta(y.dtype, y.shape)}, whose "
                    f"values {m.dtype} does not hold"
                )
                raise Broken(
                    "X8.10",
                    problem,
                    "Let the oracle and infer_output_meta agree on the kind of number.",
                )
        return made

    def routes(self, inputs: Sequence[Shaped]) -> tuple[RouteKind, ...]:
        """The routes that can run these inputs here."""
        ways = self.ways(inputs).values()
        return tuple(kind for kind in RouteKind if any(kind in alone.routes for alone in ways))

    def ways(self, inputs: Sequence[Shaped]) -> dict[str, ExtensionRuntimeSet]:
        """The routes that can run these inputs here, each kernel by itself: by name, the runtimes
        that leave it alone.
        """
        metas = tuple(map(meta_of, inputs))
        if metas not in self._ways:
            kernels = self.runtimes.kernels(self.op.family_id, current_platform())
            alone = {
                f"kernel {k.title}".rstrip(): ExtensionRuntimeSet(k).only(RouteKind.KERNEL)
                for k in kernels
            }
            for kind in (RouteKind.LOWERING, RouteKind.HOST):
                alone[kind.value] = self.runtimes.only(kind)
            self._ways[metas] = {w: each for w, each in alone.items() if self._runs(each, metas)}
        return self._ways[metas]

    def _runs(self, runtimes: ExtensionRuntimeSet, metas: tuple[TensorMeta, ...]) -> bool:
        try:
            route_of(self.carrier.with_runtimes(runtimes), metas, here())
        # Unsupported, or an exception of the author's lowering; the checks of inference report it
        except Exception:
            return False
        return True

    def difference(self, got: PyTree, want: PyTree) -> str:
        """The difference of two nests of arrays as text; "" if they agree within the tolerance."""
        got, want = jax.tree.leaves(got), jax.tree.leaves(want)
        if len(got) != len(want):
            return f"{len(got)} arrays where {len(want)} were expected"
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            text = _difference(np.asarray(a), np.asarray(b), self.tolerance)
            if text:
                return (f"output {i}: " if len(got) > 1 else "") + text
        return ""

    def hold(self, claims: Sequence[Claim], clause: str, fix: str) -> Iterator[None]:
        """One case a claim."""
        for claim, value in zip(claims, self.results(claims, clause, fix), strict=True):
            self.require_equal(claim.what, value, claim.want, clause, fix)
            yield

    def results(self, claims: Sequence[Claim], clause: str, fix: str) -> list[Any]:
        """The results of the functions, compiled as one program; if that fails, one by one, to find
        the failing one.
        """
        try:
            got = jax.jit(
                lambda all_args: [c.fn(*args) for c, args in zip(claims, all_args, strict=True)]
            )([c.args for c in claims])
            jax.block_until_ready(got)
        except Exception:
            got = []
            for claim in claims:
                with breaking(clause, claim.what, fix):
                    got.append(jax.block_until_ready(jax.jit(claim.fn)(*claim.args)))
        return got

    def require_plain(
        self,
        what: str,
        transform: Callable[[Any], Any],
        args: Sequence[object],
    ) -> None:
        """Let a failure count only if JAX can do it: the lowering as a plain jitted function in the
        same transform, without extensions.
        """
        try:
            transform(jax.jit(lambda *xs: lowered(self.op, xs) or ()))(*args)
        except Exception as error:
            raise NotApplicable(
                f"JAX itself cannot {what} ({_one_line(error)})",
                "Use other functions in the lowering, if you need it.",
            ) from error

    def require_equal(self, what: str, got: PyTree, want: PyTree, clause: str, fix: str) -> None:
        """Refuse a value that is not the expected one."""
        difference = self.difference(got, want)
        if difference:
            raise Broken(clause, f"{what}: {difference}", fix)


@contextlib.contextmanager
def breaking(clause: str, what: str, fix: str) -> Iterator[None]:
    """An exception inside is a breach of this clause, or of the clause to which the exception
    belongs.
    """
    try:
        with host_errors():
            yield
    except (Broken, NotApplicable):
        raise
    except Exception as error:
        raise as_broken(error, clause, what, fix) from error


def as_broken(error: Exception, clause: str, what: str, fix: str) -> Broken:
    """An exception as a broken clause: the clause and the fix are those of the error if it has
    some. The checks themselves judge a missing derivative.
    """
    if isinstance(error, BackendFailure):
        clause, fix = "X8.8", error.fix
    elif isinstance(error, TenferroError) and not isinstance(error, ADRuleError) and error.clause:
        clause, fix = error.clause, error.fix
    return Broken(clause, f"{what}: {_one_line(error, 600)}", fix)


def _one_line(error: Exception, length: int = 200) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:length]}"


def _difference(got: np.ndarray, want: np.ndarray, tolerance: float | None) -> str:
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
        eps = float(jax.numpy.finfo(got.dtype).eps)
        rounding = eps**0.75
        allowed = (
            rounding
            if tolerance is None
            else max(tolerance, rounding)
            if want.dtype.itemsize < 8
            else tolerance
        )
        wide = np.complex128 if np.iscomplexobj(want) else np.float64
        a, b = got.astype(wide), want.astype(wide)
        with np.errstate(all="ignore"):
            size: Any = abs(b)
            scale = np.max(size, where=np.isfinite(size), initial=0.0)
            # After cancellation the rounding of the terms stays: some units in the last place of
            # the largest entry are allowed.
            wrong = ~equal & ~(abs(a - b) <= allowed * size + min(allowed, ROUNDINGS * eps) * scale)
    limit = f"relative tolerance {allowed:.1e}" if allowed else "equality to the last bit"
    text = first_wrong(wrong, got, want, "{} was expected")
    return text and f"{text} beyond {limit}"
