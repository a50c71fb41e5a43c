"""The demo: train a classifier with a max-plus layer on scanned digits, export it, run the file in
a process that has only JAX.

python docs/demo.py [--out FOLDER]
"""

import argparse
import functools
import pathlib
import subprocess
import sys
import time

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from ext_tropical import tropical_einsum
from tenferro_jax import Engine, export, load_exported, routes, trace

try:
    import matplotlib
    import optax
    from matplotlib import pyplot
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(f"The demo needs {error.name}: pip install 'tenferro-jax[demo]'")

WIDTH, BATCH, EPOCHS, GOAL = 64, 128, 60, 0.95

CONSUMER = """
import sys, jax, jax.export, numpy as np
program = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
images, scores = (np.load(path) for path in sys.argv[2:])
for count in (1, len(images)):
    np.testing.assert_allclose(program.call(images[:count]), scores[:count], rtol=1e-5, atol=1e-4)
assert not [name for name in sys.modules if name.startswith(("tenferro_jax", "ext_tropical"))]
print(f"a fresh process with JAX {jax.__version__} alone predicts the same at batch sizes 1 and 32")
"""
"""The code of the fresh process: it uses JAX and the files, nothing of this project."""


def digits():
    """The 1,797 scanned digits of scikit-learn in [0, 1], a quarter of them held out."""
    images, labels = load_digits(return_X_y=True)
    images, labels = images.astype(np.float32) / 16, labels.astype(np.int32)
    return train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)


def initial_params(key):
    """Weights of dense -> middle -> dense."""
    keys = jax.random.split(key, 3)
    return {
        "into": jax.random.normal(keys[0], (64, WIDTH)) / 8,
        "into_bias": jnp.zeros(WIDTH),
        "middle": jax.random.normal(keys[1], (WIDTH, WIDTH)) / 8,
        "out": jax.random.normal(keys[2], (WIDTH, 10)) / 8,
        "out_bias": jnp.zeros(10),
    }


# In all bits of float32: by default a GPU multiplies with 10, and scores depend on the batch size.
linear_layer = functools.partial(jnp.matmul, precision="highest")


def max_plus_layer(x, w):
    """y[b, o] = max over i of x[b, i] + w[i, o]."""
    return tropical_einsum("bi,io->bo", x, w)


LAYERS = {"max-plus": max_plus_layer, "linear": linear_layer}


def predict(middle, params, x):
    """Class scores (batch, 10) of images (batch, 64)."""
    hidden = linear_layer(x, params["into"]) + params["into_bias"]
    return linear_layer(middle(hidden, params["middle"]), params["out"]) + params["out_bias"]


def train(middle, train_x, test_x, train_y, test_y):
    """The trained parameters, and for each epoch the mean loss and the held-out accuracy. An epoch
    with its gradients is traced into a graph and compiled once.
    """
    optimizer, params = optax.adam(3e-3), initial_params(jax.random.key(0))
    count = len(train_x) // BATCH * BATCH

    def loss(params, x, y):
        scores = predict(middle, params, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    def epoch(params, state, key):
        def step(carry, rows):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(
                params, jnp.asarray(train_x)[rows], jnp.asarray(train_y)[rows]
            )
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        order = jax.random.permutation(key, len(train_x))[:count].reshape(-1, BATCH)
        (params, state), losses = jax.lax.scan(step, (params, state), order)
        right = predict(middle, params, jnp.asarray(test_x)).argmax(1) == jnp.asarray(test_y)
        return params, state, losses.mean(), right.mean()

    state, history = optimizer.init(params), []
    program = Engine().compile(trace(epoch, params, state, jax.random.key(0)))
    for i in range(EPOCHS):
        params, state, *figures = program(params, state, jax.random.key(i + 1))
        history.append(tuple(map(float, figures)))
    return params, history


def draw(path, histories, images, predicted, labels):
    """One picture: loss, held-out accuracy, and images with predictions, wrong ones in red."""
    figure = pyplot.figure(figsize=(11, 5.5), layout="constrained")
    grid = figure.add_gridspec(3, 8)
    for place, title in enumerate(("training loss", "held-out accuracy")):
        axes = figure.add_subplot(grid[:2, 4 * place : 4 * place + 4])
        for name, history in histories.items():
            axes.plot([figures[place] for figures in history], label=f"{name} middle layer")
        axes.set(xlabel="epoch", title=title, yscale="linear" if place else "log")
        axes.grid(alpha=0.3)
        axes.legend()
    wrong = np.flatnonzero(predicted != labels)[:2]
    shown = [*np.flatnonzero(predicted == labels)[: 8 - len(wrong)], *wrong]
    for column, i in enumerate(shown):
        axes = figure.add_subplot(grid[2, column])
        axes.imshow(images[i].reshape(8, 8), cmap="gray_r")
        axes.set_title(str(predicted[i]), color="red" if i in wrong else "black")
        axes.set_axis_off()
    figure.suptitle("dense, max-plus, dense on handwritten digits (red: a wrong prediction)")
    figure.savefig(path, dpi=110)


def main():
    """All steps; a failed one ends the process with an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo_out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    data = _, test_x, _, test_y = digits()
    print(f"{len(data[0])} images to train on, {len(test_x)} held out; JAX {jax.__version__}")
    trained, seconds = {}, {}
    for name, layer in LAYERS.items():
        start = time.perf_counter()
        trained[name] = train(layer, *data)
        seconds[name] = time.perf_counter() - start
    print("middle layer  held-out right  training loss  seconds")
    for name, (_, history) in trained.items():
        loss, right = history[-1]
        print(f"{name:>12}  {right:>14.1%}  {loss:>13.4f}  {seconds[name]:>7.1f}")
    params, history = trained["max-plus"]
    if history[-1][1] < GOAL:
        sys.exit(f"the demo failed: {GOAL:.0%} of the held-out images should be right")

    classify = functools.partial(predict, max_plus_layer, params)
    (batch,) = jax.export.symbolic_shape("batch")
    graph = trace(classify, jax.ShapeDtypeStruct((batch, 64), jnp.float32))
    path = out / "digits.tenferro"
    size = export(graph, platforms=("cpu", "cuda", "tpu")).save(path)
    print(graph, *map(str, routes(classify, test_x)), sep="\n")
    program = load_exported(path)
    print(
        f"exported {path}: {size:,} bytes for {', '.join(program.manifest.platforms)}; extension "
        f"families {', '.join(program.families)}"
    )
    scores = np.asarray(classify(test_x))
    files = [out / "images.npy", out / "scores.npy"]
    for file, array in zip(files, (test_x, scores), strict=True):
        np.save(file, array[:32])
    paths = [str(file.resolve()) for file in (path, *files)]
    subprocess.run([sys.executable, "-c", CONSUMER, *paths], cwd=out, timeout=120, check=True)
    for file in files:
        file.unlink()
    histories = {name: history for name, (_, history) in trained.items()}
    draw(out / "digits.png", histories, test_x, scores.argmax(1), test_y)
    print(f"picture {out / 'digits.png'}")


if __name__ == "__main__":
    main()
