"""Draw the pictures of the docs and of its notebooks: python -m docs.pictures.draw [FOLDER]."""

import pathlib
import re
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ext_tropical import min_plus, tropical_einsum

from . import calls, examples

HERE = pathlib.Path(__file__).parent
CELL = re.compile(
    r"^```python\n(.*?)^```$(?:\n+```text\n(?:.*?)```$)?(?:\n+!\[[^\n]*\]\(\.\./pictures/(\w+)\.svg\))?",
    re.MULTILINE | re.DOTALL,
)
"""A block of Python, and the picture that follows it or its output."""


def roads() -> Figure:
    """The map of the home page: a road has its length, and the shortest way is thick."""
    lengths = jnp.array([[0.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
    way = jax.grad(lambda w: tropical_einsum("ij,jk->ik", w, w, semiring=min_plus)[0, 1])(lengths)
    places = [(0.0, 0.0), (4.0, 0.0), (1.2, 0.9)]
    figure, axes = plt.subplots(figsize=(5, 1.8))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        taken = bool(way[i, j] or way[j, i])
        (x, y), (u, v) = places[i], places[j]
        axes.plot([x, u], [y, v], color="C3" if taken else "0.6", linewidth=4 if taken else 2)
        axes.text(
            (x + u) / 2,
            (y + v) / 2,
            f"{lengths[i, j]:.0f}",
            ha="center",
            va="center",
            fontsize=12,
            bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": "none", "pad": 0.2},
        )
    for name, (x, y) in enumerate(places):
        axes.plot(x, y, "o", markersize=26, color="C0")
        axes.text(x, y, name, color="white", ha="center", va="center", fontsize=13)
    axes.set(xlim=(-0.4, 4.4), ylim=(-0.35, 1.25))
    axes.set_title("The gradient of the shortest path from 0 to 1 marks its roads", size=10)
    axes.axis("off")
    return figure


def save(name: str, picture: Figure, folder: pathlib.Path = HERE) -> None:
    """Write a picture as SVG; the same picture gives the same file."""
    path = folder / f"{name}.svg"
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        picture.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(picture)


def notebook(page: pathlib.Path) -> Iterator[tuple[str, Figure]]:
    """Run the cells of a page; the pictures that follow them, with their names."""
    space: dict[str, object] = {"__name__": page.stem}
    for body, name in CELL.findall(page.read_text()):
        plt.close("all")
        exec(compile(body, str(page), "exec"), space)
        if name:
            yield name, plt.gcf()


def main(folder: pathlib.Path = HERE) -> None:
    """Draw them all."""
    save("roads", roads(), folder)
    save("call", calls.call(), folder)
    for name, picture in examples.pictures():
        save(name, picture, folder)
    for page in sorted(HERE.parent.glob("notebooks/*.md")):
        for name, picture in notebook(page):
            save(name, picture, folder)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
