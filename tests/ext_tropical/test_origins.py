"""The law of origins: a result does not depend on where an operand comes from, nor on what
surrounds the call.

Entries are small integers, so every sum and product is exact, ties are many, and NumPy says what is
right to the bit.
"""

import dataclasses
import functools
import random

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import (
    TropicalEinsum,
    best_assignment,
    closure,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    tropical_einsum,
    tropical_einsum_with_argmax,
    viterbi,
)
from ext_tropical.steps.einsum_op import Outputs, Ties
from ext_tropical.steps.log_einsum import LogEinsum
from tenferro_jax.extension import apply

from ..sweep import ALL

FORMS = {  # rows, contracted, columns: each shape takes another way through the lowering
    "tiny": (1, 2, 3),
    "small": (4, 6, 5),
    "few contracted": (14, 3, 15),
    "matrix and vector": (20, 30, 1),
    "vector and matrix": (1, 30, 20),
    "one block": (24, 12, 40),
    "blocks": (20, 33, 24),
    "tiles": (9, 18, 140),
    "parts": (3, 2048, 3),
    "one operand": (6, 9, 0),
    "one long operand": (3, 400, 0),
}
LOOPS = (
    "one block",
    "blocks",
    "tiles",
    "parts",
)  # the others are one reduction, which compiles in a fifth of the time
SEMIRINGS = (max_plus, min_plus, max_mul, min_max, log_sum_exp(1.0))
DTYPES = ("float32", "float64", "bfloat16", "int32")
PARTS = ("value", "winner", "first", "split")
ROUTES = (
    "door",
    "xla",
)  # with native kernels where they serve; what every platform and exported program runs


@dataclasses.dataclass(frozen=True)
class Case:
    """One program: what is computed, of which operands, and how it is called."""

    form: str
    batch: int
    semiring: object
    dtype: str
    part: str
    route: str
    origin: str
    level: int
    seed: int

    @property
    def makes_sense(self):
        smooth = self.semiring == SEMIRINGS[-1]
        if (self.dtype == "int32" and (self.part in ("first", "split") or smooth)) or (
            smooth and self.part != "value" and self.part != "first"
        ):
            return False
        return not (FORMS[self.form][2] == 0 and self.semiring == max_mul and self.part == "split")

    @property
    def cost(self):
        """Of compiling it, to that of a value by one reduction."""
        return {"value": 1, "winner": 1, "first": 2, "split": 5}[self.part] * (
            4 if self.form in LOOPS else 1
        )

    @property
    def equation(self):
        b = "b" if self.batch else ""
        return f"{b}ij->{b}i" if FORMS[self.form][2] == 0 else f"{b}ij,{b}jk->{b}ik"

    def operands(self):
        rows, contracted, columns = FORMS[self.form]
        batch = (self.batch,) if self.batch else ()
        shapes = [(*batch, rows, contracted)] + ([(*batch, contracted, columns)] if columns else [])
        return [
            np.array(integers(np, shape, self.seed + i), self.dtype)
            for i, shape in enumerate(shapes)
        ]


def integers(xp, shape, seed):
    """-4 to 4 in no order, the same in NumPy and inside a program."""
    count = int(np.prod(shape))
    return ((xp.arange(count, dtype="int32") * 7919 + seed * 31) % 1009 % 9 - 4).reshape(shape)


# --- what is right, in NumPy ----------------------------------------------------------------------


def expected(case):
    """The case's part: value, winner, or the derivative of the sum of the value in the first
    operand.
    """
    lhs, *rest = (x.astype(np.float64) for x in case.operands())
    rhs = rest[0] if rest else None
    candidates = (
        lhs[..., None]
        if rhs is None
        else times(case.semiring, lhs[..., None], rhs[..., None, :, :])
    )  # batch, i, j, k
    axis = -2
    slope = 1.0
    if rhs is not None and case.semiring in (max_mul, min_max):
        x, y = np.broadcast_arrays(lhs[..., None], rhs[..., None, :, :])
        slope = y if case.semiring == max_mul else ~(y > x) * 1.0
    if case.semiring == SEMIRINGS[-1]:
        top = candidates.max(axis, keepdims=True)
        weights = np.exp(candidates - top)
        value = (top + np.log(weights.sum(axis, keepdims=True))).squeeze(axis)
        shares = weights / weights.sum(axis, keepdims=True)
    else:
        minimum = case.semiring in (min_plus, min_max)
        value = candidates.min(axis) if minimum else candidates.max(axis)
        best = candidates == np.expand_dims(value, axis)
        winner = best.argmax(axis)
        if case.part == "winner":
            return winner if rhs is not None else winner[..., 0]
        chosen = np.arange(candidates.shape[axis])[:, None] == np.expand_dims(winner, axis)
        shares = chosen if case.part == "first" else best / best.sum(axis, keepdims=True)
    if case.part == "value":
        return value if rhs is not None else value[..., 0]
    return (shares * slope).sum(-1)


def times(semiring, x, y):
    return {max_mul: np.multiply, min_max: np.maximum}.get(semiring, np.add)(x, y)


# --- what is called -------------------------------------------------------------------------------


def solve(case, *operands):
    """The case's part, as a user would write it."""
    outputs = Outputs.VALUE_AND_WINNER if case.part == "winner" else Outputs.VALUE
    ties = Ties.SPLIT if case.part == "split" else Ties.FIRST

    def value(*operands):
        smooth = case.semiring == SEMIRINGS[-1]
        if case.route == "door":
            return tropical_einsum(
                case.equation,
                *operands,
                semiring=case.semiring,
                **({} if smooth else {"ties": ties.value}),
            )
        op = (
            LogEinsum(1.0, case.equation)
            if smooth
            else TropicalEinsum(case.semiring, case.equation, outputs, ties)
        )
        if smooth:
            operands = [x.astype("float32") if x.dtype == jnp.bfloat16 else x for x in operands]
        return apply(op, *operands)[0]

    if case.part == "winner":
        if case.route == "door":
            return tropical_einsum_with_argmax(
                case.equation, *operands, semiring=case.semiring
            ).winner
        return apply(TropicalEinsum(case.semiring, case.equation, outputs), *operands)[1]
    if case.part == "value":
        return value(*operands)
    return jax.grad(lambda first, *rest: value(first, *rest).astype("float32").sum())(
        operands[0], *operands[1:]
    )


# --- where operands come from ---------------------------------------------------------------------

keep = jax.jit(
    lambda x: jnp.maximum(x, jnp.asarray(-9, x.dtype))
)  # leaves every entry as it is, by arithmetic
double = jax.jit(lambda x: x + x)


def nested(x):
    return jax.jit(lambda x: jnp.moveaxis(jax.jit(lambda x: keep(keep(x)))(x), 0, -1))(
        jnp.asarray(np.moveaxis(x, -1, 0))
    )


# Constants that went through jitted functions, transposes, reshapes and casts. Each gives back the
# array that it was given.
MADE = {
    "swapped": lambda x: jnp.swapaxes(keep(np.swapaxes(x, -1, -2)), -1, -2),
    "reshaped": lambda x: jnp.reshape(keep(jnp.asarray(x.reshape(-1))), x.shape),
    "cast": lambda x: jax.jit(lambda x, dtype: x.astype(dtype), static_argnums=1)(
        jnp.asarray(x.astype(np.int8)), x.dtype
    ),
    "halved": lambda x: double(jnp.asarray(x.astype(np.float32) / 2)).astype(x.dtype),
    "picked": lambda x: jnp.stack([jnp.asarray(-x), jnp.asarray(x)])[keep(np.int32(1))],
    "turned": lambda x: jnp.flip(keep(jnp.asarray(np.flip(x, -1).copy())), -1),
    "nested": nested,
}


def any_made(case):
    return random.Random(case.seed).choice(list(MADE.values()))


def with_constants(case, make):
    """A function of the first operand alone: the others are made of constants inside it; of an only
    operand, that one is.
    """
    first, *rest = case.operands()
    if rest:
        return (lambda x: solve(case, x, *(make(y) for y in rest))), first
    return (
        lambda x: solve(case, jnp.where(x > 0, make(first), jnp.asarray(0, first.dtype)))
    ), np.float32(1)


def among_constants(surround, make, case, jit):
    """What `surround` makes of a function with constants and of the type of its argument."""
    fn, x = with_constants(case, make or any_made(case))
    return jit(surround(fn, jax.ShapeDtypeStruct(np.shape(x), x.dtype)))(x)


def eager(case, jit):
    return solve(case, *map(jnp.asarray, case.operands()))


def all_constant(case, jit):
    return jit(lambda: solve(case, *map(any_made(case), case.operands())))()


def made_inside(case, jit):
    arrays = case.operands()
    return jit(
        lambda: solve(
            case,
            *(integers(jnp, x.shape, case.seed + i).astype(x.dtype) for i, x in enumerate(arrays)),
        )
    )()


def carried(case, jit):
    """The operands are a loop's carry: first a loop that leaves them as they are, then the turn of
    a scan.
    """
    arrays = tuple(map(jnp.asarray, case.operands()))

    def program():
        state = jax.lax.fori_loop(0, 3, lambda _, state: tuple(keep(x) for x in state), arrays)
        return jax.lax.scan(lambda state, _: (state, solve(case, *state)), state, jnp.arange(2))[1][
            1
        ]

    return jit(program)()


def closed_over(fn, spec):
    return fn


SURROUNDINGS = {
    "constant": (closed_over, jnp.asarray),
    **{name: (closed_over, make) for name, make in MADE.items()},
    "a branch": (lambda fn, _: lambda x: jax.lax.cond(x.ravel()[0] > 0, fn, fn, x), jnp.asarray),
    "vmap": (
        lambda fn, _: lambda x: jax.vmap(fn, out_axes=-1)(jnp.stack([x, x]))[..., 1],
        MADE["swapped"],
    ),
    "checkpoint": (lambda fn, _: jax.checkpoint(fn), MADE["reshaped"]),
    "jax.export": (
        lambda fn, spec: (
            jax.export.deserialize(jax.export.export(jax.jit(fn))(spec).serialize()).call
        ),
        None,
    ),
    "tj.export": (lambda fn, spec: tj.load_exported(tj.export(fn, spec).to_bytes()).call, None),
    "graph": (lambda fn, spec: tj.trace(fn, spec).to_jax(), None),
}
ORIGINS = {
    "argument": lambda case, jit: jit(functools.partial(solve, case))(*case.operands()),
    "eager": eager,
    "all constant": all_constant,
    "made inside": made_inside,
    "carried": carried,
    **{name: functools.partial(among_constants, *how) for name, how in SURROUNDINGS.items()},
}


# Every factor of a case but the seed.
AXES = {
    "form": tuple(FORMS),
    "batch": (0, 1, 2, 3),
    "semiring": SEMIRINGS,
    "dtype": DTYPES,
    "part": PARTS,
    "route": ROUTES,
    "origin": tuple(ORIGINS),
    "level": (0, -1),
}


@functools.cache
def cases(count, seed):
    """A seeded choice, quick ones more often."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        drawn = {name: rng.choice(values) for name, values in AXES.items()}
        case = Case(**drawn, seed=rng.randrange(99))
        if case.makes_sense and rng.random() < 1 / case.cost:
            found.append(case)
    return found


# How many cases are one program, which is quicker to compile than so many.
TOGETHER = 10


def wrong_of(cases):
    """What is wrong with the results of these cases: several of one level are compiled together."""
    found = [
        text for case in cases if case.origin == "eager" if (text := wrong(case, eager(case, None)))
    ]
    for level in (0, -1):
        options = (
            {} if level < 0 else {"compiler_options": {"xla_backend_optimization_level": level}}
        )
        left = [case for case in cases if case.level == level and case.origin != "eager"]
        for group in (left[i : i + TOGETHER] for i in range(0, len(left), TOGETHER)):
            calls = [
                ORIGINS[case.origin](case, lambda f: lambda *args: (f, args)) for case in group
            ]
            functions, arguments = zip(*calls, strict=True)
            run = jax.jit(
                lambda arguments, fs=functions: [
                    f(*args) for f, args in zip(fs, arguments, strict=True)
                ],
                **options,
            )
            found += [
                text
                for case, got in zip(group, run(arguments), strict=True)
                if (text := wrong(case, got))
            ]
    return found


def wrong(case, got):
    """What is wrong with a case's result, or ""."""
    got, want = np.asarray(got).astype(np.float64), expected(case)
    if got.shape != np.shape(want):
        return f"{case}: shape {got.shape}, not {np.shape(want)}"
    # Sums of shares are rounded in their own order; all else is exact.
    tolerance = 2e-2 if case.dtype == "bfloat16" else 1e-5
    exact = case.part in ("value", "winner") and case.semiring != SEMIRINGS[-1]
    right = (
        np.array_equal(got, want)
        if exact
        else np.allclose(got, want, rtol=tolerance, atol=tolerance)
    )
    return (
        ""
        if right
        else f"{case}: {np.sum(got != want)} of {got.size} entries differ, as "
        f"{got[got != want][:3]} from {want[got != want][:3]}"
    )


def test_a_sample_of_origins():
    assert not wrong_of(cases(len(ORIGINS) // 2, 1))


TABLES = [
    integers(np, shape, i).astype(np.float32)
    for i, shape in enumerate(((3, 4), (4, 5), (5, 3), (3, 3)))
]

USES = {
    "best_assignment": lambda a, b, c, d: (
        dict((r := best_assignment("ij,jk,ki,ii->", a, b, c, d)).labels) | {"value": r.value}
    ),
    "gradient of a network": lambda a, b, c, d: jax.grad(
        lambda a: tropical_einsum("ij,jk,ki,ii->", a, b, c, d)
    )(a),
    "closure": lambda a, b, c, d: ((r := closure(jnp.abs(d))).value, r.predecessors()),
    "viterbi": lambda a, b, c, d: viterbi(a[:, 0], d, jnp.swapaxes(b[:3], 0, 1)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("use", USES)
def test_what_is_made_of_steps(use):
    """Whole computations over constants that went through everything in MADE, as over the arrays
    themselves.
    """
    want = USES[use](*map(jnp.asarray, TABLES))
    makes = list(MADE.values())
    for turn in range(len(makes) if ALL else 2):
        got = jax.jit(
            lambda turn=turn: USES[use](
                *(makes[(turn + i) % len(makes)](x) for i, x in enumerate(TABLES))
            )
        )()
        chex.assert_trees_all_equal(got, want)


CASES = functools.partial(cases, 2000 if ALL else 400, 0)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_origins(part):
    assert not wrong_of(CASES()[part::4])
