"""How long a way is: the functions of this project that the first call of eight doors enters.

`python -m tests.ways` prints them by file. It must be a process of its own, because what was called
before is remembered.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from types import CodeType, FrameType

import jax
import jax.numpy as jnp
import numpy as np

import ext_tropical as tropical
import tenferro_jax as tj

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = tuple(f"{ROOT / package}/" for package in ("tenferro_jax", "ext_tropical"))

X = jnp.arange(3.0)


def entered(call: Callable[[], object]) -> set[CodeType]:
    """The named functions of this project that a call enters."""
    found: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(FOLDERS) and code.co_name[0] != "<":
            found.add(code)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@tj.op("tests.ways_soft.v1")
def soft(x, y, *, t: float):
    return jnp.log(jnp.exp(x / t) + jnp.exp(y / t)) * t


def gradient_of_an_op() -> Callable[[], object]:
    soft(X, X, t=0.5)  # who differentiates a function has called it
    return lambda: jax.jit(jax.grad(lambda x: soft(x, x, t=0.5).sum()))(X)


def gradient_by_a_reverse_rule() -> Callable[[], object]:
    @tj.op("tests.ways_cube.v1")
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
    return lambda: jax.jit(jax.grad(lambda x: cube(x).sum()))(X)


def of_three(function: Callable[..., object]) -> Callable[[], object]:
    """A tropical function of three small matrices."""
    shapes = ((4, 5), (5, 6), (6, 4))
    matrices = [np.random.default_rng(i).normal(size=s).astype("f") for i, s in enumerate(shapes)]
    return lambda: function("ij,jk,kl->il", *matrices)


def grid() -> tropical.Network:
    """16 variables of 3 values, 24 tables."""
    normal = np.random.default_rng(0).normal
    right = {(f"v{i}{j}", f"v{i + 1}{j}"): None for i in range(3) for j in range(4)}
    down = {(f"v{i}{j}", f"v{i}{j + 1}"): None for i in range(4) for j in range(3)}
    tables = {names: normal(size=(3, 3)).astype("f") for names in right | down}
    return tropical.Network.from_factors(tables)


def loading() -> Callable[[], object]:
    path = pathlib.Path(tempfile.mkdtemp()) / "graph.tenferro"
    tj.save_graph(tj.trace(lambda x: soft(jnp.tanh(x), x, t=0.5).sum(), X), path)
    return lambda: tj.load_graph(path)


def chain() -> Callable[[], object]:
    emission = np.random.default_rng(0).normal(size=(20, 4)).astype("f")
    return tropical.Chain(jnp.zeros(4), jnp.zeros((4, 4)), emission).best


# What is called, and the function that makes the call.
WAYS: dict[str, Callable[[], Callable[[], object]]] = {
    "an op under jit(grad)": gradient_of_an_op,
    "an op with defvjp under jit(grad)": gradient_by_a_reverse_rule,
    "tropical_einsum of three": lambda: of_three(tropical.tropical_einsum),
    "tropical_einsum_with_argmax of three": lambda: of_three(tropical.tropical_einsum_with_argmax),
    "Network.best": lambda: grid().best,
    "Network.marginals": lambda: grid().marginals,
    "load_graph": loading,
    "Chain.best": chain,
}


def lengths() -> dict[str, int]:
    """How many functions each first call enters, one after the other in this process."""
    return {name: len(entered(make())) for name, make in WAYS.items()}


if __name__ == "__main__":
    if "--json" in sys.argv:
        print(json.dumps(lengths()))
        sys.exit()
    for name, make in WAYS.items():
        found = entered(make())
        files = collections.Counter(code.co_filename.removeprefix(f"{ROOT}/") for code in found)
        print(f"{name}: {len(found)} functions in {len(files)} files")
        for file, count in files.most_common():
            print(f"  {count:4} {file}")
