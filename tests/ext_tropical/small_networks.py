"""Seeded networks of tables, and what NumPy says of them: values and shares by all assignments at
once, first winners by the steps of the plan.
"""

import functools
import itertools

import chex
import jax.numpy as jnp
import numpy as np
import opt_einsum

from ext_tropical import plan_tropical_einsum

from ..oracles import candidates, spread

# times, the first best candidate (the first NaN, if there is one), zero.
RULES = {
    "max_plus": (np.add, np.argmax, -np.inf),
    "min_plus": (np.add, np.argmin, np.inf),
    "max_mul": (np.multiply, np.argmax, 0),
    "min_max": (np.maximum, np.argmin, np.inf),
    "or_and": (np.logical_and, np.argmax, False),
}

TEMPERATURE = 0.7


# --- networks -------------------------------------------------------------------------------------


def network(seed):
    """An equation and the shapes of its tables: a grid of 3 x 3, or 8 tables of one to three of
    7 labels, some of them with a diagonal, a size of 1 that repeats, parts without connection, and
    up to two labels in the output.
    """
    rng = np.random.default_rng(seed)
    if seed % 3 == 0:
        return grid(3, 3, "ai"[: seed % 2 + 1])
    sizes = dict(zip("abcdefg", map(int, rng.integers(2, 4, 7)), strict=True))
    terms = ["".join(rng.choice(list(sizes), rng.integers(1, 4), False)) for _ in range(8)]
    if seed % 3 == 1:
        terms[0] += terms[0][0]
    output = "".join(rng.choice(sorted(set("".join(terms))), seed % 4 % 3, replace=False))
    shapes = [[sizes[label] for label in term] for term in terms]
    if seed % 3 == 2:
        shapes[1][0] = 1
    return f"{','.join(terms)}->{output}", shapes


def grid(width, height, output=""):
    """A table for every variable and for every pair of neighbours, all two-valued."""
    name = np.array([opt_einsum.get_symbol(i) for i in range(width * height)])
    name = name.reshape(height, width)
    edges = [*zip(name[:, :-1].flat, name[:, 1:].flat), *zip(name[:-1].flat, name[1:].flat)]
    terms = [*name.flat, *map("".join, edges)]
    return f"{','.join(terms)}->{output}", [[2] * len(term) for term in terms]


def tables(name, shapes, seed, dtype="float64"):
    """Tables whose products are exact in 16 bits, with many ties, some of them of zeros."""
    rng = np.random.default_rng(seed)
    numbers = [rng.integers(-3, 4, shape) for shape in shapes]
    if name == "or_and":
        return [x > -2 for x in numbers]
    if name == "max_mul":
        numbers = [2.0 ** (x // 2) if dtype != "int32" else x // 2 + 2 for x in numbers]
    floats = [x.astype(jnp.dtype(dtype)) for x in numbers]
    if dtype == "int32":
        return floats
    zero = jnp.dtype(dtype).type(RULES[name][2])
    return [np.where(rng.random(x.shape) < 0.1, zero, x) for x in floats]


def reals(shapes, seed):
    return [*map(functools.partial(np.random.default_rng(seed).normal, 0, 1), shapes)]


def factors(seed, variables=6, whole=False):
    """Tables by the names of their variables, half as many again, of none to three variables with
    two or three values, float64; a tenth of the entries or more impossible. Scores are normal, or
    whole numbers with many ties.
    """
    rng = np.random.default_rng(seed)
    names = "uvwxyzabcdefghijklmnopqrst"[:variables]
    sizes = dict(zip(names, map(int, rng.integers(2, 4, variables)), strict=True))
    ends = [0, *itertools.accumulate(itertools.islice(itertools.cycle((2, 1, 3)), variables))]
    scopes = {tuple(names[i:j]) for i, j in itertools.pairwise(ends) if i < variables}
    while len(scopes) < 3 * variables // 2:
        scopes.add(tuple(rng.choice(list(sizes), rng.integers(0, 4), replace=False).tolist()))
    tables = {}
    for scope in sorted(scopes):
        shape = [sizes[x] for x in scope]
        scores = rng.integers(-2, 3, shape).astype(float) if whole else rng.normal(size=shape)
        tables[scope] = np.where(rng.random(shape) < 0.1 * len(scope), -np.inf, scores)
    return tables


# --- judges ---------------------------------------------------------------------------------------


def brute(name, equation, *operands):
    """The best of all assignments."""
    times, first, _ = RULES[name]
    every = candidates(times, equation, operands)
    return np.take_along_axis(every, first(every, -1)[..., None], -1)[..., 0]


def soft(equation, *operands):
    """T log of the sum of exp(. / T) of all assignments, in NumPy."""
    every = candidates(np.add, equation, operands) / TEMPERATURE
    most = every.max(-1)
    return TEMPERATURE * (np.log(np.exp(every - most[..., None]).sum(-1)) + most)


def shares(equation, *operands):
    """The gradient of the sum of `soft`: for each entry the share of the assignments that use
    it.
    """
    joint = list(dict.fromkeys(equation.replace(",", "").replace("->", "")))
    inputs, output = equation.split("->")
    every = candidates(np.add, f"{inputs}->{''.join(joint)}", operands)[..., 0]
    share = np.exp((every - spread(soft(equation, *operands), output, joint)) / TEMPERATURE)
    places = dict(zip(joint, np.indices(share.shape), strict=True))
    return scattered(inputs, operands, places, [share] * len(operands))


def scattered(inputs, operands, places, amounts):
    """Zeros like the operands, with amounts added at the places of their labels."""
    found = [np.zeros(np.shape(x)) for x in operands]
    for count, term, amount in zip(found, inputs.split(","), amounts, strict=True):
        place = tuple(
            np.minimum(places[label], size - 1)
            for label, size in zip(term, count.shape, strict=True)
        )
        np.add.at(count, place, amount)
    return found


def entries(inputs, operands, places):
    """The entry of each operand at the places of its labels."""
    return [
        np.asarray(x)[tuple(np.minimum(places[k], n - 1) for k, n in zip(t, x.shape, strict=True))]
        for x, t in zip(operands, inputs.split(","), strict=True)
    ]


def stepwise(name, equation, operands, optimize="auto"):
    """Value, and the labels of the first winner of each step, read from the last step back."""
    times, first, _ = RULES[name]
    plan = plan_tropical_einsum(equation, *operands, optimize=optimize, semiring=name).plan
    sizes, trail = dict(plan.sizes), []
    values = [
        np.reshape(x, [sizes[label] for label in term])
        for x, term in zip(operands, plan.terms, strict=True)
    ]
    for step in plan.steps:
        every = candidates(times, step.equation, [values[i] for i in step.operands])
        winner = first(every, -1)
        values.append(np.take_along_axis(every, winner[..., None], -1)[..., 0])
        trail.append((step, winner))
    value = spread(values[-1], plan.steps[-1].result, plan.equation.output)
    places = dict(zip(plan.equation.output, np.indices(value.shape), strict=True))
    for step, winner in reversed(trail):
        gone = [k for k in dict.fromkeys("".join(step.terms)) if k not in step.result]
        index = winner[tuple(places[label] for label in step.result)]
        found = np.unravel_index(index, [sizes[label] for label in gone]) if gone else ()
        places |= zip(gone, found, strict=True)
    return value, {k: np.broadcast_to(index, value.shape) for k, index in places.items()}


def check(name, equation, operands, best):
    """The value is the best of all assignments, the labels attain it, and are the first winners."""
    inputs, output = equation.split("->")
    times, _, zero = RULES[name]
    exact = [
        x.astype(np.float64) if x.dtype not in (bool, np.int32) else x
        for x in map(np.asarray, operands)
    ]
    value = np.asarray(best.value).astype(exact[0].dtype)
    assert best.value.dtype == operands[0].dtype
    np.testing.assert_array_equal(value, brute(name, equation, *exact))
    want, places = stepwise(name, equation, exact)
    np.testing.assert_array_equal(value, want)
    assert set(best.labels) == set(inputs) - set(output) - {","}
    chex.assert_trees_all_equal(
        {k: np.asarray(v) for k, v in best.labels.items()},
        {k: places[k] for k in best.labels},
    )
    np.testing.assert_array_equal(functools.reduce(times, entries(inputs, exact, places)), value)
    if exact[0].dtype != np.int32:
        np.testing.assert_array_equal(best.feasible, value != zero)
    return places


def all_scores(tables):
    """(variables, the score of each assignment) of tables by the names of their variables."""
    names = list(dict.fromkeys(itertools.chain(*tables)))
    sizes = {x: n for scope, t in tables.items() for x, n in zip(scope, t.shape, strict=True)}
    total = np.zeros([sizes[x] for x in names])
    for scope, table in tables.items():
        total += spread(table, scope, names)
    return names, total


def probabilities(scores, temperature):
    weights = np.exp((scores - scores.max()) / temperature)
    return weights / weights.sum()


def log_sum(scores, axes=None, temperature=1.0):
    with np.errstate(divide="ignore"):
        return temperature * np.log(np.exp(scores / temperature).sum(axes))
