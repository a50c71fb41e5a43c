"""python -m tenferro_jax inspect FILE"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from ..errors import InvalidConfig
from ..extension.family import parse_family_id
from ..extension.registry import MissingExtension, is_installed, lookup_extension_factory
from ..graph.drawing import Box, program_svg
from ..graph.graph import Graph, Node, bodies
from ..graph.printing import op_name, plain
from ..io.container import HEADER_BYTES, declared, replace_file
from ..io.exported import ExportedProgram
from ..jax_seam import ModuleOp, main_ops, read_module
from ..payload_text import payload_json
from ..shapes import symbol_constraints
from .files import OK, add_file, inputs, outputs, read, require_writable, show

_KINDS = {  # part of a StableHLO op's name -> kind of box; the first that fits
    "custom_call": "other",
    **dict.fromkeys(("input", "output", "constant"), ""),
    "iota": "constant",
    **dict.fromkeys(("dot", "convolution", "cholesky", "triangular", "fft"), "contraction"),
    **dict.fromkeys(("reduce", "select_and_scatter"), "reduction"),
    **dict.fromkeys(("gather", "scatter", "slice", "sort"), "indexing"),
    **dict.fromkeys(
        ("broadcast", "reshape", "transpose", "concatenate", "pad", "reverse", "dimension_size"),
        "structural",
    ),
    **dict.fromkeys(("while", "if", "case", "call"), "control"),
    **dict.fromkeys(("rng", "all_", "collective", "tuple"), "other"),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "What is in a file; nothing of it is run."
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--graph", metavar="out.svg", help="draw it into an SVG file")
    parser.set_defaults(run=inspect)


def inspect(chosen: argparse.Namespace) -> int:
    """Print the content of a file."""
    if chosen.graph:
        require_writable("--graph", chosen.graph, chosen.file)
        if not chosen.graph.endswith(".svg"):
            raise InvalidConfig(
                where="--graph",
                given=chosen.graph,
                needed="a name that ends in .svg, because the picture is an SVG file",
            )
    found = read(chosen, skip_missing=True)
    content = pathlib.Path(chosen.file).read_bytes()
    facts = {
        "file": chosen.file,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "inputs": {name: str(value) for name, value in inputs(found).items()},
        "outputs": {name: str(value) for name, value in outputs(found).items()},
    }
    facts |= _of_graph(found, content) if isinstance(found, Graph) else _of_program(found)
    if chosen.graph:
        drawn = (
            found.svg()
            if isinstance(found, Graph)
            else program_svg(map(_box, main_ops(found.exported.mlir_module_serialized)))
        )
        replace_file(chosen.graph, drawn.encode())
    show(json.dumps(facts, indent=2) if chosen.json else _page(facts))
    return OK


def _of_graph(graph: Graph, content: bytes) -> dict[str, Any]:
    version, _ = declared(content[:HEADER_BYTES], "graph")
    ops = [node.op for node in _nodes(graph)]
    missing = [op for op in ops if isinstance(op, MissingExtension)]
    calls = [(op.family_id, op.payload) for op in missing]
    calls += [(op.family_id, payload_json(op.op)) for op in graph.extensions]
    return {
        "kind": "graph",
        "version": f"format {version}",
        "constraints": list(symbol_constraints(graph.metas)),
        "guards": list(map(str, graph.guards)),
        "extensions": _families(calls, calls),
        "ops": dict(collections.Counter(map(op_name, ops)).most_common()),
    }


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in bodies(node.op):
            yield from _nodes(body)


def _of_program(program: ExportedProgram) -> dict[str, Any]:
    manifest, exported = program.manifest, program.exported
    calls = [[(c["family_id"], c["payload"]) for c in calls] for calls in manifest.extensions]
    promises = dict.fromkeys(manifest.custom_calls, "stable")
    convention = f"calling convention {exported.calling_convention_version}"
    ops = read_module(exported.mlir_module_serialized).ops
    return {
        "kind": "exported program",
        "version": f"JAX {manifest.jax}, {convention}; here is JAX {jax.__version__}",
        "constraints": list(program.constraints),
        "platforms": list(program.platforms),
        "devices": exported.nr_devices,
        "vjp_order": program.vjp_order,
        "extensions": _families(calls[0], list(itertools.chain(*calls))),
        "custom_calls": promises | dict.fromkeys(manifest.unguaranteed, "no promise"),
        "ops": dict(collections.Counter(ops).most_common()),
    }


def _families(own: list[tuple[str, str]], calls: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """For each family: the number of calls, whether it is registered, and the payloads of its own
    calls.
    """
    counts = collections.Counter(family for family, _ in calls)
    return [
        {
            "family_id": family,
            "version": parse_family_id(family).version,
            "calls": counts[family],
            "here": _known(family),
            "payloads": list(dict.fromkeys(payload for name, payload in own if name == family)),
        }
        for family in sorted(counts)
    ]


def _known(family: str) -> str:
    if lookup_extension_factory(family):
        return "registered"
    return "installed" if is_installed(family) else "not registered"


def _page(facts: dict[str, Any]) -> str:
    lines = []
    for fact, value in facts.items():
        if fact == "extensions":
            texts = [
                text
                for family in value
                for text in (
                    f"{family['family_id']}  calls {family['calls']}, {family['here']} here",
                    *family["payloads"],
                )
            ]
        elif isinstance(value, dict):
            texts = [f"{name}  {text}" for name, text in value.items()]
        else:
            texts = [str(text) for text in (value if isinstance(value, list) else [value])]
        labels = [fact, *[""] * len(texts)]
        rows = zip(labels, texts or ["none"], strict=False)
        lines += [f"{label:<13} {plain(text)}" for label, text in rows]
    return "\n".join(lines)


def _box(op: ModuleOp) -> Box:
    name = op.name.removeprefix("stablehlo.")
    kind = next((kind or part for part, kind in _KINDS.items() if part in name), "elementwise")
    kind, label = "extension" if op.family_id else kind, op.family_id or op.called or name
    types = ", ".join(op.types)
    return Box(kind, [label, types], f"{name} : {types}", list(op.reads))
