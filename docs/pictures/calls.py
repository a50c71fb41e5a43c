"""The picture of what happens in a call of an op."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STEPS = (
    ("soft(x, t=0.5)", "function_op", "keywords become payload"),
    ("op", "contract", "a frozen value: equal ops are one op"),
    ("carrier", "carrier", "the op and its vmap levels"),
    ("primitive", "primitive", "one for each family; JAX calls its rules"),
    ("route", "routes", "the first way that is there and fits"),
)
"""What a call is, the module that makes it, and a word about it; from above."""

WAYS = (
    ("kernel", "of this platform"),
    ("lowering", "standard ops, by XLA"),
    ("host form", "NumPy arrays"),
)
RULES = ("shapes", "jvp, transpose", "vmap", "sharding", "lowering")
"""What JAX asks a primitive."""


def box(axes: Axes, x: float, y: float, name: str, below: str, color: str, width: float) -> None:
    """A box around (x, y) with a name and a word below it."""
    patch = plt.Rectangle((x - width / 2, y - 0.36), width, 0.72, facecolor=color, edgecolor="0.4")
    axes.add_patch(patch)
    axes.text(x, y + 0.08, name, ha="center", va="bottom", weight="bold")
    axes.text(x, y + 0.02, below, ha="center", va="top", size=8, color="0.3")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow between two points."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.4"})


def call() -> Figure:
    """A call from the function to what runs."""
    figure, axes = plt.subplots(figsize=(7.5, 5.6))
    for i, (name, module, word) in enumerate(STEPS):
        box(axes, 0, -i, name, f"extension/{module}.py", "#e8eef7", 2.2)
        axes.text(-1.3, -i, word, ha="right", va="center", size=9)
        if i:
            arrow(axes, (0, 0.64 - i), (0, 0.36 - i))
    for i, rule in enumerate(RULES):
        y = -2.1 - 0.42 * i
        axes.text(1.9, y, rule, va="center", size=9)
        axes.plot([1.1, 1.8], [-3, y], color="0.7", linewidth=1)
    axes.text(1.9, -1.7, "what JAX asks it", va="center", size=9, style="italic", color="0.3")
    for i, (name, word) in enumerate(WAYS):
        x = 2.1 * (i - 1)
        box(axes, x, -5.3, name, word, "#f7eee0", 1.9)
        arrow(axes, (x / 4, -4.36), (x, -4.94))
    axes.set(xlim=(-4.6, 3.8), ylim=(-5.8, 0.5))
    axes.axis("off")
    return figure
