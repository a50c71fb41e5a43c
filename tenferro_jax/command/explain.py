"""python -m tenferro_jax explain FILE, or package.module:Op"""

from __future__ import annotations

import argparse
import functools
import pathlib
from typing import Any

import jax
import numpy as np

from ..dimensions import bind_dim
from ..engine.engine import compile_std_to_exec
from ..errors import InvalidConfig, Unsupported
from ..extension.primitive import apply
from ..extension.routes import current_platform, routes
from ..graph.graph import Graph
from ..io.exported import ExportedProgram
from ..jax_seam import PLATFORMS, is_symbolic_dim
from ..shapes import PyTree, meta_of
from .files import (
    FAILED,
    OK,
    add_file,
    arguments,
    imported,
    inputs,
    named_op,
    random_array,
    read,
    show,
)


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = (
        "How an extension op would run on each platform and why, or whether and at what cost a "
        "file runs on this machine; nothing is run. Exit code 1 if it cannot run here."
    )
    add_file(parser, ", or an op as package.module:Op")
    for option, example, text in (
        ("--input", "float64[3,4]", "shape of an input of an op"),
        ("--size", "n=32", "a symbolic size of a file; 1 where none is given"),
    ):
        parser.add_argument(option, action="append", default=[], metavar=example, help=text)
    text = "an ExtensionRuntimeSet, for an op"
    parser.add_argument("--runtimes", metavar="package.module:name", help=text)
    parser.set_defaults(run=explain)


def explain(chosen: argparse.Namespace) -> int:
    """Print how a target would run."""
    is_file = pathlib.Path(chosen.file).exists()
    if not is_file and ":" not in chosen.file:
        raise InvalidConfig(
            where="explain",
            given=repr(chosen.file),
            needed="an existing file, or package.module:Op",
        )
    ignored = [*chosen.input, *filter(None, [chosen.runtimes])] if is_file else chosen.size
    if ignored:
        raise InvalidConfig(
            where="explain",
            given=f"{' '.join(ignored)} for {chosen.file}",
            needed="--size for a file, --input and --runtimes for an op",
        )
    return _explain_file(read(chosen), _sizes(chosen.size)) if is_file else _explain_op(chosen)


def _explain_op(chosen: argparse.Namespace) -> int:
    op = named_op(chosen.file)
    offered = next(iter(op.example_inputs()), ())
    arrays = [random_array(text, np.random.default_rng(0)) for text in chosen.input]
    if not arrays:
        each = offered if isinstance(offered, list | tuple) else (offered,)
        arrays = [np.asarray(x) for x in each]
    if not arrays:
        raise InvalidConfig(
            where=f"explain {op.family_id}",
            given="no example inputs",
            needed="shapes of its inputs",
            fix="Pass --input for each input.",
        )
    runtimes = None if chosen.runtimes is None else imported(chosen.runtimes)
    function = functools.partial(apply, op, runtimes=runtimes)
    results = map(meta_of, jax.eval_shape(function, *arrays))
    show(f"{op.family_id} {op!r}")
    show(f"  ({', '.join(str(meta_of(x)) for x in arrays)}) -> ({', '.join(map(str, results))})")
    runs = False
    places: list[tuple[str, str | None]] = [("here", None), *((p, p) for p in PLATFORMS)]
    for label, platform in [*places, ("exported", None)]:
        exporting = label == "exported"
        try:
            found = routes(function, *arrays, platform=platform, exporting=exporting)
            text = "; ".join(str(route).removeprefix(f"{op.family_id} ") for route in found)
            runs |= label == "here"
        except Unsupported as error:
            text = str(error)
        show(f"  {label:<10}{text}")
    return OK if runs else FAILED


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not name.isidentifier() or not size.isdecimal() or len(size) > 9:
            raise InvalidConfig(
                where="--size",
                given=repr(text),
                needed="a name and an int of up to 9 digits, such as n=32",
            )
        sizes[name] = int(size)
    return sizes


def _explain_file(found: Graph | ExportedProgram, sizes: dict[str, int]) -> int:
    metas = inputs(found).values()
    symbols = {str(d) for meta in metas for d in meta.shape if is_symbolic_dim(d)}
    symbols = set(filter(str.isidentifier, symbols))
    if unknown := sorted(set(sizes) - symbols):
        raise InvalidConfig(
            where="--size",
            given=", ".join(unknown),
            needed=f"one of {', '.join(sorted(symbols)) or 'none'}",
        )
    bound: dict[str, Any] = dict.fromkeys(symbols, 1) | sizes
    shapes = [tuple(bind_dim(d, bound) for d in meta.shape) for meta in metas]
    structs = map(jax.ShapeDtypeStruct, shapes, (meta.dtype for meta in metas))
    args = arguments(found, list(structs))
    if bound:
        show(f"at {', '.join(f'{name}={size}' for name, size in sorted(bound.items()))}")
    if isinstance(found, ExportedProgram):
        return _explain_program(found, args)
    program = compile_std_to_exec(found.bound_to(*args))
    show(program.explain())
    cost, memory = program.cost(), program.memory()
    _show_estimates(cost.flops, cost.bytes, memory.argument, memory.output, memory.temp)
    return OK


def _explain_program(program: ExportedProgram, args: tuple[PyTree, ...]) -> int:
    show(repr(program))
    for family in program.families:
        show(f"  {family}: standard ops since it was exported; no kernel takes part")
    if (devices := program.exported.nr_devices) > 1:
        show(f"  does not run here: it is for {devices} devices, and a command runs on 1")
        return FAILED
    if current_platform() not in program.platforms:
        show(
            f"  does not run here: it is for {', '.join(program.platforms)}, and JAX runs on "
            f"{jax.default_backend()}"
        )
        return FAILED
    compiled = jax.jit(program.call).lower(*args).compile()
    show(f"  runs here, on {jax.default_backend()}")
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    if isinstance(cost, dict) and memory is not None:
        flops, traffic = (float(cost.get(key, 0.0)) for key in ("flops", "bytes accessed"))
        sizes = [
            getattr(memory, f"{kind}_size_in_bytes") for kind in ("argument", "output", "temp")
        ]
        _show_estimates(flops, traffic, *sizes)
    return OK


def _show_estimates(flops: float, traffic: float, given: int, result: int, scratch: int) -> None:
    show(f"  XLA's estimate: {flops:,.0f} operations, {traffic:,.0f} bytes of traffic")
    show(f"  memory: {given:,} bytes of arguments, {result:,} of results, {scratch:,} of scratch")
