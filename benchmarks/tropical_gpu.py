"""Hypothesis: on a Hopper card the Pallas kernel searches 8 T candidates a second at n = 8192,
ahead of XLA at every n, 50 us fixed.

Contraction steps in max-plus by the kernel, by the standard lowering and by the fused naive form of
JAX, in one process, in turn, on a card of the Hopper generation or newer. The bound: 132
multiprocessors, 64 maxima a cycle, 1.98 GHz make 16 T a second. The fixed cost is that of a call at
n = 16 less that of adding 1 to its operand. Values and winners are compared with the lowering's.

    python -m benchmarks.tropical_gpu [--cases 1024 tall ...] [--repeats 10] [--interpret] [--json
    tropical_gpu.json]
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import TropicalEinsum, max_plus
from ext_tropical.steps.einsum_op import Outputs, run_gpu
from ext_tropical.steps.kernels.mosaic import backend, cards, problem_of_cards
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from .measure import alternating, header
from .tropical import Case

BOUND = 16e12
"""Candidates a second of an H100 or H200 in float32."""

MOST_MEMORY = 2**34
"""Bytes of temporary arrays above which a form is left out: where XLA does not fuse the naive one,
all candidates are an array.
"""

FORMS = ("pallas", "xla", "naive jnp")


def cases() -> list[Case]:
    """Squares, tall, deep, batched and odd shapes; values and winners."""
    squares = [Case(f"{n}", 1, n, n, n) for n in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)]
    shapes = [
        Case("tall", 1, 65536, 256, 64),
        Case("deep", 1, 128, 65536, 128),
        Case("256 x 128^3", 256, 128, 128, 128),
        Case("3001", 1, 3001, 3001, 3001),
    ]
    others = [
        case._replace(dtype=dtype)
        for dtype in ("int32", "bfloat16")
        for case in squares
        if case.rows in (1024, 4096)
    ]
    return (
        squares
        + shapes
        + others
        + [case._replace(what="winner") for case in squares + shapes if case.rows != 16]
    )


TOY = [Case("8", 1, 8, 8, 8), Case("toy", 2, 5, 20, 9, what="winner")]


def forms(case: Case, interpret: Any = None) -> dict[str, Callable[..., Any]]:
    """The kernel, the standard lowering and the naive form, each of (batch, rows, contracted) and
    (batch, contracted, columns).
    """
    op = TropicalEinsum(
        max_plus,
        "bij,bjk->bik",
        Outputs.VALUE_AND_WINNER if case.what == "winner" else Outputs.VALUE,
    )

    def naive(a: Any, b: Any) -> Any:
        candidates = a[:, :, :, None] + b[:, None]
        return (
            (candidates.max(2), candidates.argmax(2))
            if case.what == "winner"
            else (candidates.max(2),)
        )

    made: dict[str, Callable[..., Any]] = (
        {} if backend().problem else {"pallas": lambda a, b: run_gpu(op, a, b, interpret=interpret)}
    )
    made["xla"] = lambda a, b: apply(op, a, b, runtimes=op.runtimes.only(RouteKind.LOWERING))
    square = case.batch == 1 and case.rows == case.contracted == case.columns
    # XLA of JAX 0.11.2 takes minutes to compile the naive form of other shapes
    return made | ({"naive jnp": naive} if square or cards() == [] else {})


def measured(case: Case, repeats: int, interpret: Any) -> dict[str, float]:
    """Lowest seconds of each form; the kernel's results are the lowering's, or AssertionError."""
    rng = np.random.default_rng(0)
    shapes = (case.batch, case.rows, case.contracted), (case.batch, case.contracted, case.columns)
    a, b = (jnp.asarray(rng.normal(size=shape) * 100).astype(case.dtype) for shape in shapes)
    compiled = {
        name: jax.jit(form).lower(a, b).compile() for name, form in forms(case, interpret).items()
    }
    compiled = {
        name: fn
        for name, fn in compiled.items()
        if fn.memory_analysis().temp_size_in_bytes <= MOST_MEMORY
    }
    if "pallas" in compiled:
        for found, expected in zip(compiled["pallas"](a, b), compiled["xla"](a, b), strict=True):
            np.testing.assert_array_equal(found, expected)
    runs = [lambda fn=fn: fn(a, b) for fn in compiled.values()]
    return {name: low for name, (_, low) in zip(compiled, alternating(runs, repeats), strict=True)}


def fixed_cost(repeats: int, interpret: Any) -> float | None:
    """Seconds of the kernel at n = 16 less those of adding 1; None where there is no kernel."""
    a = jnp.ones((1, 16, 16), jnp.float32)
    form = forms(Case("16", 1, 16, 16, 16), interpret).get("pallas")
    if form is None:
        return None
    search, add = jax.jit(form).lower(a, a).compile(), jax.jit(lambda a: a + 1).lower(a).compile()
    (searched, _), (added, _) = alternating([lambda: search(a, a), lambda: add(a)], repeats)
    return searched - added


def text(case: Case, seconds: dict[str, float]) -> str:
    """A row of the table."""
    cells = [f"{seconds[name] * 1e3:10.3f}" if name in seconds else f"{'-':>10}" for name in FORMS]
    rate = case.operations / seconds.get("pallas", np.inf)
    others = [
        seconds[name] / seconds["pallas"] if {name, "pallas"} <= seconds.keys() else np.nan
        for name in ("xla", "naive jnp")
    ]
    ratios = " ".join(f"{ratio:6.1f}" for ratio in others)
    return (
        f"{case.name:>11} {case.dtype:>8} {case.what:>7} |{' '.join(cells)} | {ratios} | "
        f"{rate / 1e12:7.3f} {rate / BOUND:5.0%}"
    )


def main(
    chosen: list[Case], repeats: int = 10, *, interpret: bool = False, json_path: str | None = None
) -> list[dict[str, Any]]:
    """Print the table; without a card that can run the kernel one line, unless it is interpreted:
    then times mean nothing.
    """
    print(header(__doc__))
    missing = (
        backend().problem
        or problem_of_cards(cards())
        or ("" if cards() else "no CUDA device is here")
    )
    if missing and not interpret:
        print(f"nothing was measured: {missing}")
        return []
    parameters = (
        backend().module.InterpretGPUParams() if interpret and not backend().problem else None
    )
    names = " ".join(f"{name:>10}" for name in FORMS)
    print(
        f"{'case':>11} {'dtype':>8} {'':>7} |{names} ms | xla, naive / pallas | T/s, of "
        f"{BOUND / 1e12:.0f}"
    )
    table = []
    for case in chosen:
        table.append({"case": case._asdict(), "seconds": measured(case, repeats, parameters)})
        print(text(case, table[-1]["seconds"]), flush=True)
    fixed = fixed_cost(repeats, parameters)
    print("fixed cost of a call: " + ("-" if fixed is None else f"{fixed * 1e6:.0f} us"))
    if json_path:
        pathlib.Path(json_path).write_text(
            json.dumps(
                {"machine": header("").split("\n")[1], "rows": table, "fixed": fixed}, indent=1
            )
        )
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", help="names; all by default")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--interpret", action="store_true", help="two toy cases without a card")
    parser.add_argument("--json")
    given = parser.parse_args()
    wanted = (
        TOY if given.interpret else [c for c in cases() if not given.cases or c.name in given.cases]
    )
    main(wanted, given.repeats, interpret=given.interpret, json_path=given.json)
