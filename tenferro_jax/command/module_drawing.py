"""An exported program as a picture: the ops of its main function."""

from __future__ import annotations

from ..graph.drawing import Step, steps_svg
from ..jax_seam import ModuleOp, main_ops

_KINDS = {  # part of a StableHLO op's name -> kind of box; the first that fits
    "custom_call": "other",
    **dict.fromkeys(("input", "output", "constant"), ""),
    "iota": "constant",
    **dict.fromkeys(("dot", "convolution", "cholesky", "triangular", "fft"), "contraction"),
    **dict.fromkeys(("reduce", "select_and_scatter"), "reduction"),
    **dict.fromkeys(("gather", "scatter", "slice", "sort"), "indexing"),
    **dict.fromkeys(("broadcast", "reshape", "transpose", "concatenate", "pad", "reverse", "dimension_size"), "structural"),
    **dict.fromkeys(("while", "if", "case", "call"), "control"),
    **dict.fromkeys(("rng", "all_", "collective", "tuple"), "other"),
}


def module_svg(portable: bytes) -> str:
    """The main function of a portable StableHLO artifact as an SVG document."""
    return steps_svg([_step(op) for op in main_ops(portable)])


def _step(op: ModuleOp) -> Step:
    name = op.name.removeprefix("stablehlo.")
    kind = next((kind or part for part, kind in _KINDS.items() if part in name), "elementwise")
    types = ", ".join(op.types)
    return Step("extension" if op.family_id else kind, op.family_id or op.called or name, [types], f"{name} : {types}", list(op.reads))
