"""python -m tenferro_jax explain FILE, or package.module:Op, or a family_id"""

from __future__ import annotations

import argparse
import pathlib
import re
from typing import Any

import jax
import numpy as np

from ..engine.compiler import compile_std_to_exec
from ..errors import DuplicateBinding, InvalidConfig, Unsupported
from ..extension import NO_RUNTIMES, ExtensionOp, apply, lookup_extension_factory
from ..extension.installed import register_installed
from ..extension.registry import require_extension_factory
from ..extension.routes import routes
from ..graph.graph import Graph
from ..io.program import ExportedProgram
from ..jax_seam import PLATFORMS
from ..meta import bind_dim, is_symbolic_dim, meta_of
from .files import TRUSTED, add_register, arguments, inputs, read, register_all
from .naming import imported, named_op, random_array
from .screen import FAILED, OK, show

_FAMILY = re.compile(r"[^/\\]+\.v\d+")


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = (
        "How an extension op would run on each platform and why, or whether and at what cost a file runs on this machine; "
        "nothing is run. Exit code 1 if it cannot run here."
    )
    parser.add_argument("file", metavar="TARGET", help="FILE, package.module:Op, or the family_id of a registered op")
    parser.add_argument("--trusted", action="store_true", help=TRUSTED)
    add_register(parser)
    parser.add_argument("--input", action="append", default=[], metavar="float64[3,4]", help="shape of an input of an op")
    parser.add_argument("--runtimes", metavar="package.module:name", help="an ExtensionRuntimeSet, for an op")
    parser.add_argument("--size", action="append", default=[], metavar="n=32", help="a symbolic size of a file; 1 where none is given")
    parser.set_defaults(run=explain)


def explain(chosen: argparse.Namespace) -> int:
    """Print how a target would run."""
    is_file = pathlib.Path(chosen.file).exists()
    _require_none_ignored(chosen, is_file=is_file)
    if is_file:
        return _explain_file(read(chosen), _sizes(chosen.size))
    register_all(chosen)
    return _explain_op(_op(chosen.file), chosen)


def _require_none_ignored(chosen: argparse.Namespace, *, is_file: bool) -> None:
    """Refuse options that say nothing of the target."""
    others = {"--input": chosen.input, "--runtimes": chosen.runtimes} if is_file else {"--size": chosen.size}
    for option, given in others.items():
        if given:
            needed = "an op: a file has inputs of its own" if is_file else "a file: the sizes of an op are those of its --input"
            text = given if isinstance(given, str) else " ".join(given)
            raise InvalidConfig(where=option, given=f"{text} for {chosen.file}", needed=needed, fix="Leave the option out.")


def _op(target: str) -> ExtensionOp:
    if ":" in target:
        return named_op(target)
    if _FAMILY.fullmatch(target) is None:
        needed = "a file that is there, package.module:Op, or a family_id such as my-package.soft_sort.v1"
        raise InvalidConfig(where="explain", given=repr(target), needed=needed)
    register_installed(target)
    op = require_extension_factory(target).instantiate_default()
    if op is None:
        fix = "Name an op instead, as package.module:name."
        raise Unsupported(where=f"extension {target}", given="a factory without a default op", needed="an op to explain", fix=fix)
    return op


def _explain_op(op: ExtensionOp, chosen: argparse.Namespace) -> int:
    offered = next(iter(op.example_inputs()), ())
    arrays = [random_array(text, np.random.default_rng(0)) for text in chosen.input] or (
        list(offered) if isinstance(offered, list | tuple) else [offered]
    )
    if not arrays:
        raise InvalidConfig(
            where=f"explain {op.family_id}", given="no example inputs", needed="shapes of its inputs", fix="Pass --input for each input."
        )
    runtimes = NO_RUNTIMES if chosen.runtimes is None else imported(chosen.runtimes)
    function = lambda *xs: apply(op, *xs, runtimes=runtimes)  # noqa: E731
    known = "registered" if lookup_extension_factory(op.family_id) else "not registered, which only reading files needs"
    show(f"{op.family_id} {op!r}")
    show(f"  {known}")
    show(f"  ({', '.join(str(meta_of(x)) for x in arrays)}) -> ({', '.join(map(str, map(meta_of, jax.eval_shape(function, *arrays))))})")
    runs = False
    for label, platform, exporting in [("here", None, False), *((p, p, False) for p in PLATFORMS), ("exported", None, True)]:
        try:
            found = [
                str(route).removeprefix(f"{op.family_id} ") for route in routes(function, *arrays, platform=platform, exporting=exporting)
            ]
            runs |= label == "here"
        except Unsupported as error:
            found = [str(error)]
        show(f"  {label:<10}{'; '.join(found)}")
    return OK if runs else FAILED


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not name.isidentifier() or not size.isdecimal() or len(size) > 9:
            needed = "a name and an int of up to 9 digits, such as n=32"
            raise InvalidConfig(where="--size", given=repr(text), needed=needed)
        if name in sizes:
            raise DuplicateBinding(where="--size", given=f"{name} twice", needed="one size each", fix="Leave one out.")
        sizes[name] = int(size)
    return sizes


def _explain_file(found: Graph | ExportedProgram, sizes: dict[str, int]) -> int:
    declared = inputs(found)
    symbols = {str(d) for value in declared.values() for d in value.shape if is_symbolic_dim(d) and str(d).isidentifier()}
    if unknown := sorted(set(sizes) - symbols):
        raise InvalidConfig(where="--size", given=", ".join(unknown), needed=f"one of {', '.join(sorted(symbols)) or 'none'}")
    bound: dict[str, Any] = dict.fromkeys(symbols, 1) | sizes
    structs = [jax.ShapeDtypeStruct(tuple(bind_dim(d, bound) for d in value.shape), value.dtype) for value in declared.values()]
    args = arguments(found, structs)
    if bound:
        show(f"at {', '.join(f'{name}={size}' for name, size in sorted(bound.items()))}")
    return _explain_graph(found, args) if isinstance(found, Graph) else _explain_program(found, args)


def _explain_graph(graph: Graph, args: tuple[Any, ...]) -> int:
    program = compile_std_to_exec(graph.bound_to(*args))
    show(program.explain())
    cost, memory = program.cost(), program.memory()
    _show_estimates(cost.flops, cost.bytes, memory.argument, memory.output, memory.temp)
    return OK


def _explain_program(program: ExportedProgram, args: tuple[Any, ...]) -> int:
    show(repr(program))
    for family in program.families:
        show(f"  {family}: standard ops since it was exported; no kernel takes part, and no factory is needed")
    if (devices := program.exported.nr_devices) > 1:
        show(f"  does not run here: it is for {devices} devices, and a command runs on 1")
        return FAILED
    try:
        compiled = jax.jit(program.call).lower(*args).compile()
    except ValueError as error:
        if "was exported for platforms" not in str(error):
            raise
        show(f"  does not run here: it is for {', '.join(program.platforms)}, and JAX runs on {jax.default_backend()}")
        return FAILED
    show(f"  runs here, on {jax.default_backend()}")
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    if isinstance(cost, dict) and memory is not None:
        flops, traffic = (float(cost.get(key, 0.0)) for key in ("flops", "bytes accessed"))
        _show_estimates(flops, traffic, memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes)
    return OK


def _show_estimates(flops: float, traffic: float, given: int, result: int, scratch: int) -> None:
    show(f"  XLA's estimate: {flops:,.0f} operations, {traffic:,.0f} bytes of traffic")
    show(f"  memory: {given:,} bytes of arguments, {result:,} of results, {scratch:,} of scratch")
