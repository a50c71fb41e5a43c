"""The demo: train a classifier with a max-plus layer on scanned digits, export it, run it in a
process that has only JAX.

python -m ext_tropical.demo [--out FOLDER] [--epochs N]
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from ext_tropical import tropical_einsum
from tenferro_jax import ExportedProgram, TenferroError, export, load_exported, routes, trace
from tenferro_jax.engine import Engine

try:
    import matplotlib
    import optax
    from matplotlib import pyplot
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tqdm import tqdm
except ImportError as error:  # the demo extra is optional
    sys.exit(f"The demo needs {error.name}: pip install 'tenferro-jax[demo]'")

WIDTH = 64
GOAL = 0.95
PLATFORMS = ("cpu", "cuda", "tpu")

# The code of the fresh process: it uses JAX and the file, nothing of this project.
CONSUMER = """
import json, sys
import jax, jax.export, numpy as np
program = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
images = np.load(sys.argv[2])
out = {n: np.asarray(program.call(images[:n])).tolist() for n in (1, len(images))}
foreign = [m for m in sys.modules if m.startswith(("tenferro_jax", "ext_tropical"))]
told = {"jax": jax.__version__, "platforms": program.platforms, "foreign": foreign, "out": out}
print(json.dumps(told))
"""


class DemoError(Exception):
    """A step of the demo failed."""


class Digits(NamedTuple):
    """Images in [0, 1], float32 (count, 64), and labels int32 (count,)."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


class History(NamedTuple):
    """Mean training loss and held-out accuracy after each epoch, and the total seconds."""

    loss: list[float]
    accuracy: list[float]
    seconds: float


def digits() -> Digits:
    """The 1,797 scanned digits of scikit-learn, a quarter of them held out."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.astype(np.float32) / 16,
        labels.astype(np.int32),
        test_size=0.25,
        random_state=0,
        stratify=labels,
    )
    train_x, test_x, train_y, test_y = split
    return Digits(train_x, train_y, test_x, test_y)


def initial_params(key: jax.Array) -> dict[str, jax.Array]:
    """Weights of dense -> middle -> dense."""
    keys = jax.random.split(key, 3)
    return {
        "into": jax.random.normal(keys[0], (64, WIDTH)) / 8,
        "into_bias": jnp.zeros(WIDTH),
        "middle": jax.random.normal(keys[1], (WIDTH, WIDTH)) / 8,
        "out": jax.random.normal(keys[2], (WIDTH, 10)) / 8,
        "out_bias": jnp.zeros(10),
    }


def max_plus_layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """y[b, o] = max over i of x[b, i] + w[i, o]."""
    return tropical_einsum("bi,io->bo", x, w)


def linear_layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """y[b, o] = sum over i of x[b, i] * w[i, o], in all bits of float32: by default a GPU may
    multiply with 10 bits, and then scores depend on the batch size.
    """
    return jnp.matmul(x, w, precision="highest")


def predict(
    middle: Callable[[jax.Array, jax.Array], jax.Array],
    params: Mapping[str, jax.Array],
    x: jax.Array,
) -> jax.Array:
    """Class scores (batch, 10) of images (batch, 64)."""
    hidden = linear_layer(x, params["into"]) + params["into_bias"]
    return linear_layer(middle(hidden, params["middle"]), params["out"]) + params["out_bias"]


def train(
    middle: Callable[[jax.Array, jax.Array], jax.Array], data: Digits, epochs: int, name: str
) -> tuple[dict[str, jax.Array], History]:
    """Train with Adam: an epoch with its gradients is traced into a graph, compiled once, and
    called once for each epoch.
    """
    optimizer = optax.adam(3e-3)
    params = initial_params(jax.random.key(0))
    state = optimizer.init(params)
    batch = 128
    count = len(data.train_x) // batch

    def loss(params: Mapping[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(predict(middle, params, x), y).mean()

    def epoch(params: Mapping[str, jax.Array], state: object, key: jax.Array) -> object:
        order = jax.random.permutation(key, len(data.train_x))[: count * batch].reshape(
            count, batch
        )

        def step(carry: tuple[Mapping[str, jax.Array], object], rows: jax.Array) -> Any:
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(
                params, jnp.asarray(data.train_x)[rows], jnp.asarray(data.train_y)[rows]
            )
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, state), losses = jax.lax.scan(step, (params, state), order)
        return params, state, losses.mean(), accuracy(middle, params, data.test_x, data.test_y)

    history = History([], [], 0.0)
    start = time.perf_counter()
    graph = trace(epoch, params, state, jax.random.key(0))
    program = Engine().compile(graph)
    bar = tqdm(range(epochs), desc=f"{name:>8}", unit="epoch", file=sys.stdout, mininterval=0.5)
    for i in bar:
        params, state, value, right = program(params, state, jax.random.key(i + 1))
        history.loss.append(float(value))
        history.accuracy.append(float(right))
        bar.set_postfix(
            loss=f"{history.loss[-1]:.3f}", held_out=f"{history.accuracy[-1]:.1%}", refresh=False
        )
    return params, history._replace(seconds=time.perf_counter() - start)


def accuracy(
    middle: Callable[[jax.Array, jax.Array], jax.Array],
    params: Mapping[str, jax.Array],
    x: jax.typing.ArrayLike,
    y: jax.typing.ArrayLike,
) -> jax.Array:
    """Share of images whose best class is the label."""
    return (predict(middle, params, jnp.asarray(x)).argmax(1) == jnp.asarray(y)).mean()


def export_predictor(
    params: Mapping[str, jax.Array],
    path: pathlib.Path,
) -> tuple[ExportedProgram, int]:
    """Trace and export the trained predictor, any batch size, for all platforms; returns program
    and file size.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    graph = trace(
        functools.partial(predict, max_plus_layer, params),
        jax.ShapeDtypeStruct((batch, 64), jnp.float32),
    )
    print(graph)
    program = export(graph, platforms=PLATFORMS)
    return program, program.save(path)


def check_in_fresh_process(
    path: pathlib.Path, images: np.ndarray, scores: np.ndarray
) -> dict[str, Any]:
    """Load the file in a new Python process without this project and compare its scores at two
    batch sizes.
    """
    data = path.with_suffix(".images.npy")
    np.save(data, images)
    command = [sys.executable, "-c", CONSUMER, str(path.resolve()), str(data.resolve())]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=path.parent
    )
    data.unlink()
    if done.returncode:
        raise DemoError(f"the fresh process failed:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result["foreign"]:
        raise DemoError(f"the fresh process imported {result['foreign']}")
    for size, out in result["out"].items():
        want = scores[: int(size)]
        if (np.argmax(out, 1) != want.argmax(1)).any() or not np.allclose(
            out, want, rtol=1e-5, atol=1e-4
        ):
            raise DemoError(f"the fresh process predicts otherwise at batch size {size}")
    result["largest_difference"] = max(
        float(np.abs(np.asarray(out) - scores[: int(n)]).max()) for n, out in result["out"].items()
    )
    return result


def draw(
    path: pathlib.Path, data: Digits, scores: np.ndarray, histories: dict[str, History]
) -> None:
    """One picture: loss, held-out accuracy, and images with their predicted labels, wrong ones in
    red.
    """
    figure = pyplot.figure(figsize=(11, 5.5), layout="constrained")
    grid = figure.add_gridspec(3, 8)
    for column, (field, title) in enumerate(
        [("loss", "training loss"), ("accuracy", "held-out accuracy")]
    ):
        axes = figure.add_subplot(grid[:2, 4 * column : 4 * column + 4])
        for name, history in histories.items():
            axes.plot(
                range(1, len(history.loss) + 1),
                getattr(history, field),
                label=f"{name} middle layer",
            )
        axes.set(xlabel="epoch", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
        if field == "loss":
            axes.set_yscale("log")
        else:
            axes.axhline(GOAL, color="gray", linestyle=":")
    predicted = scores.argmax(1)
    wrong = np.flatnonzero(predicted != data.test_y)[:2]
    shown = [*np.flatnonzero(predicted == data.test_y)[: 8 - len(wrong)], *wrong]
    for column, i in enumerate(shown):
        axes = figure.add_subplot(grid[2, column])
        axes.imshow(data.test_x[i].reshape(8, 8), cmap="gray_r")
        axes.set_title(
            f"{predicted[i]}", color="black" if predicted[i] == data.test_y[i] else "red"
        )
        axes.set_xticks([])
        axes.set_yticks([])
    figure.suptitle(
        "dense, max-plus, dense on handwritten digits (labels: prediction, red where wrong)"
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run(out: pathlib.Path, epochs: int) -> None:
    """All steps; raises DemoError if one fails."""
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    data = digits()
    print(
        f"{len(data.train_x)} images to train on, {len(data.test_x)} held out; JAX "
        f"{jax.__version__} on {jax.default_backend()}"
    )
    layers = {"max-plus": max_plus_layer, "linear": linear_layer}
    trained = {name: train(layer, data, epochs, name) for name, layer in layers.items()}

    print("middle layer  held-out right  training loss  seconds")
    for name, (_, history) in trained.items():
        print(
            f"{name:>12}  {history.accuracy[-1]:>14.1%}  {history.loss[-1]:>13.4f}  "
            f"{history.seconds:>7.1f}"
        )
    params, history = trained["max-plus"]
    if history.accuracy[-1] < GOAL:
        raise DemoError(
            f"{history.accuracy[-1]:.1%} of the held-out images are right, {GOAL:.0%} are needed"
        )

    path = out / "digits.tenferro"
    program, size = export_predictor(params, path)
    loss = lambda params, x: predict(max_plus_layer, params, x).sum()  # noqa: E731
    print(
        "routes in training:",
        *dict.fromkeys(map(str, routes(jax.grad(loss), params, data.test_x))),
        sep="\n  ",
    )
    print(
        "routes in the exported program:",
        *map(str, routes(loss, params, data.test_x, platform="cuda", exporting=True)),
        sep="\n  ",
    )
    if load_exported(path).families != program.families:
        raise DemoError("the file names other extension families than the program")
    print(
        f"exported {path}: {size:,} bytes for {', '.join(program.platforms)}; extension families "
        f"{', '.join(program.families)}"
    )

    images = data.test_x[:32]
    scores = np.asarray(predict(max_plus_layer, params, jnp.asarray(data.test_x)))
    seen = check_in_fresh_process(path, images, scores[:32])
    print(
        f"a fresh process with JAX {seen['jax']} alone predicts the same at batch sizes "
        f"{' and '.join(seen['out'])}: "
        f"{np.argmax(seen['out']['32'], 1)[:10].tolist()} ... (largest score difference "
        f"{seen['largest_difference']:.1e})"
    )

    picture = out / "digits.png"
    draw(picture, data, scores, {name: history for name, (_, history) in trained.items()})
    print(f"picture {picture}\ndone in {time.perf_counter() - start:.1f} s on {platform.machine()}")


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        prog="python -m ext_tropical.demo", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("demo_out"),
        help="folder for the exported program and the picture",
    )
    parser.add_argument("--epochs", type=int, default=60, help="passes over the training images")
    arguments = parser.parse_args()
    matplotlib.use("Agg")
    try:
        run(arguments.out, arguments.epochs)
    except (
        DemoError,
        TenferroError,
        OSError,
        ImportError,
        jax.errors.JaxRuntimeError,
        subprocess.SubprocessError,
    ) as error:
        sys.exit(f"demo failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
