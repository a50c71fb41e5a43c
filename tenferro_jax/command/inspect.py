"""python -m tenferro_jax inspect FILE"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from ..extension.family import parse_family_id
from ..extension.registry import MissingExtension, installed, lookup_extension_factory
from ..graph.graph import Graph, Node, bodies
from ..graph.printing import leaf_names, op_name
from ..io.container import GRAPH_MAGIC, USUAL_LIMITS, read_file, unpack
from ..io.exported import ExportedProgram, read_program
from ..io.graph_reader import GraphReader
from ..jax_seam import read_module
from ..payload_text import payload_json
from ..shapes import symbol_constraints
from .shared import OK, show


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "What is in a file, as JSON; nothing of it is run."
    parser.add_argument("file", metavar="FILE", help="a graph or an exported program")
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="have installed packages register the extensions of a graph",
    )
    parser.set_defaults(run=inspect)


def inspect(chosen: argparse.Namespace) -> int:
    """Print the content of a file as JSON, in which no text of the file steers a terminal."""
    content = read_file(chosen.file, f"file {chosen.file}", USUAL_LIMITS)
    if content.startswith(GRAPH_MAGIC):
        where = f"graph {chosen.file}"
        parts = unpack(content, USUAL_LIMITS, where)
        reader = GraphReader(parts, USUAL_LIMITS, where, skip_missing=True, trusted=chosen.trusted)
        shown = _of_graph(reader.read(), parts.version)
    else:
        where = f"exported program {chosen.file}"
        shown = _of_program(read_program(content, where, USUAL_LIMITS))
    facts = {
        "file": chosen.file,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    } | shown
    show(json.dumps(facts, indent=2))
    return OK


def _named(tree: jax.tree_util.PyTreeDef, leaves: Iterable[object], root: str) -> dict[str, str]:
    """The leaves of a tree, which are dtypes and shapes, by their paths."""
    return dict(zip(leaf_names(tree, root), map(str, leaves), strict=True))


def _of_graph(graph: Graph, version: int) -> dict[str, Any]:
    ops = [node.op for node in _nodes(graph)]
    missing = [op for op in ops if isinstance(op, MissingExtension)]
    calls = [(op.family_id, op.payload) for op in missing]
    calls += [(op.family_id, payload_json(op.op)) for op in graph.extensions]
    inputs = _named(graph.in_tree, graph.input_metas, "args")
    outputs = _named(graph.out_tree, graph.output_metas, "out")
    families, counts = _families(calls, calls), _counts(map(op_name, ops))
    return _head("graph", inputs, outputs, f"format {version}") | {
        "constraints": list(symbol_constraints(graph.metas)),
        "guards": list(map(str, graph.guards)),
        "extensions": families,
        "ops": counts,
    }


def _head(
    kind: str, inputs: dict[str, str], outputs: dict[str, str], version: str
) -> dict[str, Any]:
    """What both kinds of files have."""
    return {"kind": kind, "inputs": inputs, "outputs": outputs, "version": version}


def _counts(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    return dict(collections.Counter(names).most_common())


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in bodies(node.op):
            yield from _nodes(body)


def _of_program(program: ExportedProgram) -> dict[str, Any]:
    manifest, exported = program.manifest, program.exported
    calls = [(c["family_id"], c["payload"]) for c in itertools.chain(*manifest.extensions)]
    own = calls[: len(program.extensions)]
    promises = dict.fromkeys(manifest.custom_calls, "stable")
    promises |= dict.fromkeys(manifest.unguaranteed, "no promise")
    convention = f"calling convention {exported.calling_convention_version}"
    version = f"JAX {manifest.jax}, {convention}; here is JAX {jax.__version__}"
    counts = _counts(read_module(exported.mlir_module_serialized).ops)
    families = _families(own, calls)
    args, _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    inputs = _named(jax.tree.structure(args), jax.tree.leaves(args), "args")
    outputs = _named(exported.out_tree, exported.out_avals, "out")
    constraints, platforms = list(program.constraints), list(manifest.platforms)
    return _head("exported program", inputs, outputs, version) | {
        "constraints": constraints,
        "platforms": platforms,
        "devices": exported.nr_devices,
        "vjp_order": program.vjp_order,
        "extensions": families,
        "custom_calls": promises,
        "ops": counts,
    }


def _families(own: list[tuple[str, str]], calls: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """For each family: the number of calls, whether it is registered, and the payloads of its own
    calls.
    """
    counts = collections.Counter(family for family, _ in calls)
    told = []
    for family in sorted(counts):
        payloads = dict.fromkeys(payload for name, payload in own if name == family)
        facts = {
            "family_id": family,
            "version": parse_family_id(family).version,
            "calls": counts[family],
            "here": _known(family),
            "payloads": list(payloads),
        }
        told.append(facts)
    return told


def _known(family: str) -> str:
    if lookup_extension_factory(family):
        return "registered"
    return "installed" if installed(family) else "not registered"
