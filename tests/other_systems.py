"""Programs that other systems compile and run: python -m tests.other_systems iree (or onnx) prints
name -> difference from JAX.

IREE takes what `export` writes, jax2onnx what `lowered` gives. In a process of their own, because
both change what they meet.
"""

import importlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import tenferro_jax as tj
from ext_tropical import (
    best_assignment,
    closure,
    tropical_einsum,
    tropical_einsum_with_argmax,
    viterbi,
)


def product(a, b, **options):
    return tropical_einsum("ij,jk->ik", a, b, **options)


def predict(params, x):
    return product(jnp.tanh(x @ params["dense"]), params["tropical"])


def step(params, x, y):
    value, gradient = jax.value_and_grad(lambda p: ((predict(p, x) - y) ** 2).mean())(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def slope(a, b):
    return jax.grad(lambda a: (product(a, b) ** 2).sum())(a)


def programs():
    """name -> (function, arguments)."""
    rng = np.random.default_rng(0)

    def table(*shape):
        return rng.normal(size=shape).astype(np.float32)

    pair, long = (table(5, 7), table(7, 6)), (table(5, 40), table(40, 6))
    ring = [table(5, 5) for _ in range(3)]
    params = {"dense": table(4, 6), "tropical": table(6, 3)}
    return {
        "product": (product, pair),
        "product of 64 x 64": (product, (table(64, 64), table(64, 64))),
        "min_plus": (lambda a, b: product(a, b, semiring="min_plus"), pair),
        "min_max": (lambda a, b: product(a, b, semiring="min_max"), pair),
        "max_mul": (lambda a, b: product(a, b, semiring="max_mul"), tuple(map(abs, pair))),
        "log_sum_exp": (lambda a, b: product(a, b, semiring="log_sum_exp"), pair),
        "batched": (
            lambda a, b: tropical_einsum("bij,bjk->bik", a, b),
            (table(3, 5, 7), table(3, 7, 6)),
        ),
        "reduction": (lambda a: tropical_einsum("ij->i", a), (long[0],)),
        "network": (lambda *tables: tropical_einsum("ij,jk,ki->", *tables), ring),
        "winners": (lambda a, b: tropical_einsum_with_argmax("ij,jk->ik", a, b).winner, long),
        "gradient": (jax.grad(lambda a, b: product(a, b).sum(), argnums=(0, 1)), long),
        "second derivative": (jax.grad(lambda a, b: (slope(a, b) ** 2).sum()), long),
        "assignment": (lambda *tables: best_assignment("ij,jk,ki->", *tables).labels, ring),
        "closure": (lambda w: closure(w).value, (abs(table(6, 6)),)),
        "closure, gradient": (jax.grad(lambda w: closure(w).value.sum()), (abs(table(6, 6)),)),
        "viterbi": (lambda *tables: viterbi(*tables).states, (table(4), table(4, 4), table(9, 4))),
        "predictor": (predict, (params, table(8, 4))),
        "training step": (step, (params, table(8, 4), table(8, 3))),
    }


LOOP = "TracerArrayConversionError"
REDUCTION = "reduce currently supports reducer primitives"
# For each system the programs that it does not run, and a part of what it says.
FAILURES = {
    "iree": {
        "training step": "linalg.yield",
    },
    "onnx": {
        "log_sum_exp": LOOP,
        "network": LOOP,
        "winners": REDUCTION,
        "gradient": REDUCTION,
        "second derivative": REDUCTION,
        "assignment": LOOP,
        "closure": "platform_index",
        "closure, gradient": "platform_index",
        "training step": REDUCTION,
    },
}


def with_iree(f, args):
    """The outputs, flat, of the exported program compiled by IREE for this processor."""
    compiler, runtime = (
        importlib.import_module("iree.compiler"),
        importlib.import_module("iree.runtime"),
    )
    options = {
        "input_type": "stablehlo",
        "target_backends": ["llvm-cpu"],
        "extra_args": ["--iree-llvmcpu-target-cpu=host"],
    }
    module = compiler.tools.compile_str(
        tj.export(f, *args, platforms=("cpu",)).stablehlo(), **options
    )
    outs = runtime.load_vm_flatbuffer(module, driver="local-task").main(*jax.tree.leaves(args))
    return list(outs) if isinstance(outs, tuple | list) else [outs]


def with_onnx(f, args):
    """The outputs, flat, of the function written out, converted by jax2onnx, run by onnxruntime."""
    jax2onnx, onnxruntime = (
        importlib.import_module("jax2onnx"),
        importlib.import_module("onnxruntime"),
    )
    leaves, tree = jax.tree.flatten(args)
    flat = tj.lowered(lambda *xs: tuple(jax.tree.leaves(f(*jax.tree.unflatten(tree, xs)))))
    model = jax2onnx.to_onnx(flat, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {given.name: x for given, x in zip(session.get_inputs(), leaves)})


def main(system, *names):
    run = {"iree": with_iree, "onnx": with_onnx}[system]
    for name, (f, args) in programs().items():
        if names and name not in names:
            continue
        want = jax.tree.leaves(
            jax.jit(f)(*args)
        )  # first: jax2onnx traces with functions of its own, which jit would keep
        try:
            got = run(f, args)
            found = max(
                float(np.max(np.abs(np.asarray(w) - np.asarray(g)), initial=0))
                for w, g in zip(want, got, strict=True)
            )
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
