"""python -m tenferro_jax inspect FILE"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from ..errors import InvalidConfig
from ..extension import Extension, lookup_extension_factory
from ..extension.family import parse_family_id
from ..extension.installed import is_installed
from ..extension.missing import MissingExtension
from ..graph.graph import Graph, Node, bodies
from ..graph.printing import plain
from ..io.container import HEADER_BYTES, declared
from ..io.program import ExportedProgram
from ..io.replacing import replace_file
from ..jax_seam import read_module
from ..meta import symbol_constraints
from ..payload_text import payload_json
from .files import add_file, digest, inputs, outputs, read, require_folder, require_unread
from .module_drawing import module_svg
from .screen import OK, show


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "What is in a file; nothing of it is run."
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--graph", metavar="out.svg", help="draw it into an SVG file")
    parser.set_defaults(run=inspect)


def inspect(chosen: argparse.Namespace) -> int:
    """Print what a file holds."""
    if chosen.graph:
        require_unread("--graph", chosen.graph, chosen.file)
        require_folder("--graph", chosen.graph)
        if not chosen.graph.endswith(".svg"):
            raise InvalidConfig(where="--graph", given=chosen.graph, needed="a name that ends in .svg: the picture is an SVG file")
    found = read(chosen, skip_missing_extensions=True)
    facts = {
        "file": chosen.file,
        "bytes": pathlib.Path(chosen.file).stat().st_size,
        "sha256": digest(chosen.file),
        "inputs": {name: str(value) for name, value in inputs(found).items()},
        "outputs": {name: str(value) for name, value in outputs(found).items()},
        "constraints": list(symbol_constraints(found.metas) if isinstance(found, Graph) else found.constraints),
        **(_of_graph(found, chosen.file) if isinstance(found, Graph) else _of_program(found)),
    }
    if chosen.graph:
        drawn = found.svg() if isinstance(found, Graph) else module_svg(found.exported.mlir_module_serialized)
        replace_file(chosen.graph, drawn.encode())
    show(json.dumps(facts, indent=2) if chosen.json else _page(facts))
    return OK


def _of_graph(graph: Graph, path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        version, _ = declared(file.read(HEADER_BYTES), path)
    ops = collections.Counter(_names(graph))
    calls = [(node.op.family_id, node.op.payload) for node in _nodes(graph) if isinstance(node.op, MissingExtension)]
    calls += [(extension.family_id, payload_json(extension.op)) for extension in graph.extensions]
    return {
        "kind": "graph",
        "version": f"format {version}",
        "guards": list(map(str, graph.guards)),
        "extensions": _families(calls, calls),
        "ops": dict(ops.most_common()),
    }


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in bodies(node.op):
            yield from _nodes(body)


def _names(graph: Graph) -> Iterator[str]:
    for node in _nodes(graph):
        yield node.op.family_id if isinstance(node.op, Extension | MissingExtension) else type(node.op).__name__


def _of_program(program: ExportedProgram) -> dict[str, Any]:
    manifest = program.manifest
    calls = [[(call["family_id"], call["payload"]) for call in calls] for calls in manifest.extensions]
    return {
        "kind": "exported program",
        "version": f"JAX {manifest.jax}, calling convention {program.exported.calling_convention_version}; here is JAX {jax.__version__}",
        "platforms": list(program.platforms),
        "devices": program.exported.nr_devices,
        "vjp_order": program.vjp_order,
        "extensions": _families(calls[0], list(itertools.chain(*calls))),
        "custom_calls": {target: "stable" if target not in manifest.unguaranteed else "no promise" for target in manifest.custom_calls},
        "ops": dict(collections.Counter(read_module(program.exported.mlir_module_serialized).ops).most_common()),
    }


def _families(own: list[tuple[str, str]], calls: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Each family with the number of its calls, whether it is known here, and the payloads of the program's own calls."""
    counts = collections.Counter(family for family, _ in calls)
    return [
        {
            "family_id": family,
            "version": parse_family_id(family).version,
            "calls": counts[family],
            "here": "registered" if lookup_extension_factory(family) else "installed" if is_installed(family) else "not registered",
            "payloads": list(dict.fromkeys(payload for name, payload in own if name == family)),
        }
        for family in sorted(counts)
    ]


def _page(facts: dict[str, Any]) -> str:
    lines = [f"{plain(facts['file'])}: {facts['kind']}, {facts['bytes']:,} bytes"]

    def line(name: str, *texts: str) -> None:
        lines.extend(f"  {label:<14}{plain(text)}" for label, text in zip([name, *[""] * len(texts)], texts or ("none",), strict=False))

    line("sha256", facts["sha256"])
    line("version", facts["version"])
    line("inputs", *(f"{name}  {text}" for name, text in facts["inputs"].items()))
    line("outputs", *(f"{name}  {text}" for name, text in facts["outputs"].items()))
    line("constraints", *facts["constraints"])
    if facts["kind"] == "graph":
        line("guards", *facts["guards"])
    else:
        line("platforms", ", ".join(facts["platforms"]))
        line("devices", str(facts["devices"]))
        line("gradients", f"of order {facts['vjp_order']}" if facts["vjp_order"] else "none")
        line("custom calls", *(f"{target}  {promise}" for target, promise in facts["custom_calls"].items()))
    for family in facts["extensions"]:
        count = f"{family['calls']} call{'s' * (family['calls'] != 1)}"
        line("extension", f"{family['family_id']}  {count}, {family['here']} here", *family["payloads"])
    line("ops", *(f"{count:>6} {name}" for name, count in facts["ops"].items()))
    return "\n".join(lines)
