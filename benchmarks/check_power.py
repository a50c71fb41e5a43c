"""Which of 40 seeded faults `tenferro_jax.check` finds, beside other checks, and whether it raises
false alarms on public functions.

python -m benchmarks.check_power [faults] [functions]
"""

import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.test_util
import numpy as np

import tenferro_jax as tj

from .check_faults import ARGUMENTS, FAULTS, Fault
from .check_functions import functions


def by_check(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether `tenferro_jax.check` passes."""
    return tj.check(f, *args).ok


def by_check_grads(order: int) -> Callable[..., bool]:
    """Whether jax.test_util.check_grads passes, in each mode that the function has."""

    def passes(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        modes = ["rev"] if isinstance(f, jax.custom_vjp) else ["fwd", "rev"]
        try:
            jax.test_util.check_grads(f, args, order, modes)
        except AssertionError:
            return False
        except Exception:  # it cannot judge such a function
            return True
        return True

    return passes


def by_gradcheck(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether what torch.autograd.gradcheck and gradgradcheck compare agrees, with their
    tolerances: the Jacobian with central differences, in float64, the same at a second call, and
    mapped over a batch of cotangents; and the same for the first derivative.
    """
    try:
        first = _gradcheck(f, args)
        w = jax.tree.map(lambda y: 0.5 * jnp.ones_like(y), f(*args))
        return first and _gradcheck(lambda *xs: jax.vjp(f, *xs)[1](w), args)
    except Exception:  # it cannot judge such a function
        return True


def _gradcheck(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    flat, unravel = jax.flatten_util.ravel_pytree(args)

    def run(x: jax.Array) -> jax.Array:
        outs = jax.tree.leaves(f(*unravel(x)))
        return jnp.concatenate(
            [jnp.ravel(p) for y in outs for p in ([y.real, y.imag] if y.dtype.kind == "c" else [y])]
        )

    if jnp.iscomplexobj(flat):
        parts, real = flat, jnp.concatenate([flat.real, flat.imag])
        half = parts.size
        plain = run
        run = lambda x: plain(x[:half] + 1j * x[half:])  # noqa: E731
        flat = real
    step = 1e-6 * np.eye(flat.size)
    numeric = np.stack([(run(flat + d) - run(flat - d)) / 2e-6 for d in step], -1)
    out, pull = jax.vjp(run, flat)
    eye = jnp.eye(out.size)
    alone = np.stack([pull(w)[0] for w in eye])
    again = np.stack([jax.vjp(run, flat)[1](w)[0] for w in eye])
    batched = np.asarray(jax.vmap(pull)(eye)[0])
    close = [np.allclose(got, numeric, rtol=1e-3, atol=1e-5) for got in (alone, batched)]
    return all(close) and np.array_equal(alone, again)


PEERS = {
    "check": by_check,
    "check_grads, order 1": by_check_grads(1),
    "check_grads, order 2": by_check_grads(2),
    "as torch gradcheck": by_gradcheck,
}


def judged(fault: Fault) -> tuple[dict[str, bool], list[str], float]:
    """Who finds a fault, which checks of ours fail, and the seconds that ours took."""
    args = ARGUMENTS[fault.function]
    start = time.perf_counter()
    report = tj.check(fault.made, *args)
    seconds = time.perf_counter() - start
    found = {"check": not report.ok}
    with jax.enable_x64(True):
        for name, passes in list(PEERS.items())[1:]:
            found[name] = not passes(fault.made, tuple(map(jnp.asarray, args)))
    return found, [f.check for f in report.failures], seconds


def table_of_faults() -> int:
    """Print a row for each fault; the number that `check` misses."""
    names = list(PEERS)
    counts = dict.fromkeys(names, 0)
    print(f"| function | mistake | {' | '.join(names)} | failing checks |")
    print("|---" * (len(names) + 3) + "|")
    for fault in FAULTS:
        found, failing, _ = judged(fault)
        for name in names:
            counts[name] += found[name]
        cells = " | ".join("found" if found[n] else "-" for n in names)
        text = f"| {fault.function.__name__} | {fault.mistake} | {cells} | {', '.join(failing)} |"
        print(text, flush=True)
    print(f"| found of {len(FAULTS)} | | {' | '.join(str(counts[n]) for n in names)} | |")
    return len(FAULTS) - counts["check"]


def table_of_functions(only: str = "") -> int:
    """Print the public functions with a failing check; their number."""
    missing: list[str] = []
    alarms, times = [], []
    for name, fn, args in functions(missing):
        if not re.search(only, name):
            continue
        start = time.perf_counter()
        report = tj.check(fn, *args)
        times.append((time.perf_counter() - start, name))
        if not report.ok:
            alarms.append(name)
            print(report, flush=True)
        elif only:
            print(report)
    times.sort()
    middle, slowest = times[len(times) // 2][0], times[-1]
    print(
        f"{len(times)} functions, {len(alarms)} with a failing check: "
        f"{', '.join(alarms) or 'none'}; seconds: median {middle:.1f}, "
        f"most {slowest[0]:.1f} ({slowest[1]})"
    )
    print("left out:", "; ".join(missing) or "nothing")
    return len(alarms)


def main(words: list[str]) -> int:
    """Print both tables, or one."""
    warnings.simplefilter("ignore")
    both = not words
    missed = table_of_faults() if both or "faults" in words else 0
    alarms = table_of_functions() if both or "functions" in words else 0
    return missed > 4 or alarms > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
