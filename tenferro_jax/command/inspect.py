"""python -m tenferro_jax inspect FILE"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
from typing import Any

import jax

from ..extension import lookup_extension_factory
from ..io.program import ExportedProgram
from ..jax_seam import orders, read_module
from .files import add_file, digest, inputs, outputs, read
from .screen import OK, show


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "What is in a file; nothing of it is run."
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--stablehlo", metavar="OUT", help="write the StableHLO module as text")
    parser.set_defaults(run=inspect)


def inspect(chosen: argparse.Namespace) -> int:
    """Print what a file holds."""
    program = read(chosen)
    facts = _facts(chosen.file, program)
    if chosen.stablehlo:
        pathlib.Path(chosen.stablehlo).write_text(program.stablehlo())
    show(json.dumps(facts, indent=2) if chosen.json else _page(facts))
    return OK


def _facts(path: str, program: ExportedProgram) -> dict[str, Any]:
    exported, manifest = program.exported, program.manifest
    calls = collections.Counter(call["family_id"] for calls in manifest.extensions for call in calls)
    payloads: dict[str, list[str]] = {family: [] for family in sorted(calls)}
    for call in program.extensions:
        if call["payload"] not in payloads[call["family_id"]]:
            payloads[call["family_id"]].append(call["payload"])
    ops = collections.Counter(read_module(exported.mlir_module_serialized).ops)
    return {
        "file": path,
        "kind": "exported program",
        "bytes": pathlib.Path(path).stat().st_size,
        "sha256": digest(path),
        "written_by": f"JAX {manifest.jax}",
        "read_by": f"JAX {jax.__version__}",
        "calling_convention": exported.calling_convention_version,
        "platforms": list(program.platforms),
        "inputs": {name: str(aval) for name, aval in inputs(program).items()},
        "outputs": {name: str(aval) for name, aval in outputs(program).items()},
        "vjp_order": program.vjp_order,
        "programs": len(orders(exported)),
        "extensions": [
            {"family_id": family, "calls": calls[family], "here": _registered(family), "payloads": payloads[family]} for family in payloads
        ],
        "custom_calls": {target: target not in manifest.unguaranteed for target in manifest.custom_calls},
        "ops": dict(ops.most_common()),
    }


def _registered(family: str) -> str:
    return "registered" if lookup_extension_factory(family) else "not registered"


def _page(facts: dict[str, Any]) -> str:
    lines = [f"{facts['file']}: {facts['kind']}, {facts['bytes']:,} bytes"]

    def line(name: str, *texts: str) -> None:
        for label, text in zip([name] + [""] * len(texts), texts or ("none",), strict=False):
            lines.append(f"  {label:<14}{text}")

    line("sha256", facts["sha256"])
    line("written by", f"{facts['written_by']}, calling convention {facts['calling_convention']}; read by {facts['read_by']}")
    line("platforms", ", ".join(facts["platforms"]))
    line("inputs", *(f"{name}  {text}" for name, text in facts["inputs"].items()))
    line("outputs", *(f"{name}  {text}" for name, text in facts["outputs"].items()))
    line("gradients", f"of order {facts['vjp_order']}" if facts["vjp_order"] else "none")
    found = [f"{e['family_id']}  {e['calls']} call{'s' * (e['calls'] != 1)}, {e['here']} here" for e in facts["extensions"]]
    line("extensions", *found)
    line("custom calls", *(f"{name}{'' if kept else '  (JAX promises nothing for it)'}" for name, kept in facts["custom_calls"].items()))
    line("ops", *(f"{count:>6} {name}" for name, count in facts["ops"].items()))
    return "\n".join(lines)
