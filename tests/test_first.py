"""The story from one class to a gradient and a portable file, first and fast."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import tenferro_jax as tj
from ext_tropical import tropical_einsum

from .extension_ops import RULES, ScaledSquare
from .oracles import brute_force


def test_one_class_gives_every_transform():
    def f(x):
        return tj.extension.apply(ScaledSquare(3.0), x, rules=RULES)[0]

    x = jnp.array([1.0, 2.0])
    assert f(x).tolist() == jax.jit(f)(x).tolist() == [3.0, 12.0]
    assert jax.vmap(jax.grad(f))(x).tolist() == [6.0, 12.0]
    assert jax.hessian(lambda x: f(x).sum())(x).tolist() == [[6.0, 0.0], [0.0, 6.0]]


def test_train_trace_export_and_load(tmp_path):
    rng = np.random.default_rng(0)
    x, target, w = rng.normal(size=(8, 4)), rng.normal(size=(8, 3)), rng.normal(size=(4, 3))

    @jax.jit
    def step(w):
        loss, g = jax.value_and_grad(lambda w: ((tropical_einsum("bi,io->bo", x, w) - target) ** 2).mean())(w)
        return w - 0.3 * g, loss

    losses = []
    for _ in range(200):
        w, loss = step(w)
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]

    (b,) = jax.export.symbolic_shape("b")
    graph = tj.trace(lambda x: tropical_einsum("bi,io->bo", x, w), jax.ShapeDtypeStruct((b, 4), jnp.float64))
    assert "tenferro-ext-tropical.einsum.v1" in str(graph)
    program = tj.export(graph, platforms=("cpu", "cuda", "tpu"))
    path = tmp_path / "predictor.bin"
    program.save(path)
    loaded = tj.load_exported(path)
    assert loaded.families == ("tenferro-ext-tropical.einsum.v1",)
    assert loaded.platforms == ("cpu", "cuda", "tpu")
    for size in (1, 8):
        want = brute_force("max_plus", "bi,io->bo", x[:size], np.asarray(w))[0]
        np.testing.assert_array_equal(loaded.call(x[:size]), want)
        np.testing.assert_array_equal(graph.to_jax()(x[:size]), want)
