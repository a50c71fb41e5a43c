"""The floors of the house: imports go downward only, JAX internals are named in one file, outsiders
use the doors.
"""

import ast
import functools
import graphlib
import pathlib
import re

import pytest

from tests import house

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = {
    "version": 0,
    "errors": 0,
    "jax_seam": 0,
    "dimensions": 0,
    "shapes": 0,
    "payload_leaves": 0,
    "identity": 0,
    "payload_text": 0,
    "linear": 0,
    "both_modes": 1,
    "ops": 1,
    "extension": 2,
    "graph": 3,
    "plans": 3,
    "tracing": 4,
    "ad": 5,
    "engine": 6,
    "io": 7,
    "tensor": 7,
    "testing": 8,
    "__init__": 9,
    "command": 9,
    "conformance": 9,
    "einsum": 4,
    "__main__": 10,
}
TROPICAL_FLOORS = {
    "semirings": 1,
    "arguments": 2,
    "tangents": 2,
    "native": 3,
    "steps": 4,
    "networks": 5,
    "einsums": 6,
    "graphs": 7,
    "sequences": 7,
    "models": 8,
    "families": 9,
    "__init__": 10,
    "algebra": 10,
    "uses": 10,
}
DOORS = {
    "tenferro_jax",
    "tenferro_jax.errors",
    "tenferro_jax.extension",
    "tenferro_jax.extension.definitions",
    "tenferro_jax.extension.family",
    "tenferro_jax.extension.registry",
    "tenferro_jax.extension.sharding",
    "tenferro_jax.extension.transforms",
    "tenferro_jax.io",
    "tenferro_jax.plans",
    "tenferro_jax.plans.interpreter",
    "tenferro_jax.plans.plan",
    "tenferro_jax.shapes",
}
INTERNALS = ("jax._src", "jax.interpreters", "jax.extend", "jaxlib")
LONGEST = 600
LONGER = {"tenferro_jax/graph/primitives.py", "tenferro_jax/jax_seam.py"}
"""Files that may be longer: a table, and all contact with JAX internals."""
OPTIONAL = {"pytest"}
SLOW = {"jax.experimental"}
"""Of Pallas, whose import takes as long as that of tenferro_jax."""


@functools.cache
def imports(path, running=False):
    """(module, whether at top level) of every import of a file.

    Relative ones are made absolute, `from . import x` is x.
    `running`: without the imports under `if TYPE_CHECKING`, which only annotations need.
    """
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    tree = house.parsed(path)
    conditions = [n for n in ast.walk(tree) if isinstance(n, ast.If)]
    typing = [n for n in conditions if ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = {node for condition in typing for node in ast.walk(condition)} if running else ()
    found = []
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.col_offset == 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [module] if node.module else [f"{module}.{alias.name}" for alias in node.names]
            found += [(name, node.col_offset == 0) for name in names]
    return found


def files(package):
    return sorted((ROOT / package).rglob("*.py"))


def dotted(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_imports_go_downward():
    wrong = [
        (dotted(path), module)
        for path in files("tenferro_jax")
        for module, _ in imports(path)
        if module.startswith("tenferro_jax")
        and room(module) != room(dotted(path))
        and (FLOORS[room(module)], FLOORS[room(dotted(path))]) != (0, 0)
        and FLOORS[room(module)] >= FLOORS[room(dotted(path))]
    ]
    assert not wrong


def test_the_tropical_package_has_floors_of_its_own():
    rooms = {
        path: path.relative_to(ROOT / "ext_tropical").parts[0].removesuffix(".py")
        for path in files("ext_tropical")
    }
    wrong = [
        (dotted(path), module)
        for path, here in rooms.items()
        for module, _ in imports(path)
        if module.startswith("ext_tropical")
        and room(module) != here
        and TROPICAL_FLOORS[room(module)] >= TROPICAL_FLOORS[here]
    ]
    assert not wrong
    assert set(rooms.values()) == set(TROPICAL_FLOORS)


def test_no_cycle_between_modules():
    """Also of types: two modules that need each other's types are one idea, or a type has its place
    in a third one.
    """
    graph = {}
    for package in ("tenferro_jax", "ext_tropical"):
        known = {dotted(path) for path in files(package)}
        for path in files(package):
            named = {m for m, _ in imports(path)}
            graph[dotted(path)] = (named & known) - {package}
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(graph) > 40


def test_every_room_has_a_floor():
    assert {room(dotted(path)) for path in files("tenferro_jax")} == set(FLOORS)


def test_the_map_for_contributors_names_every_room_and_its_floor():
    page = (ROOT / "docs/contributing.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)\.(\w+)` \| .+ \|$", page, re.MULTILINE)
    for package, floors in (("tenferro_jax", FLOORS), ("ext_tropical", TROPICAL_FLOORS)):
        assert sorted((name, int(floor)) for floor, p, name in rows if p == package) == sorted(
            floors.items()
        )
    named = re.findall(r"`([\w/]+(?:/|\.py|\.md))`", page) + re.findall(
        r"`((?:tests|tenferro_jax|ext_tropical)/\w+)`", page
    )
    assert not [path for path in named if not (ROOT / path).exists()]


def test_jax_internals_are_named_in_the_seam_alone():
    named = {
        path.name
        for package in ("tenferro_jax", "ext_tropical")
        for path in files(package)
        for module, _ in imports(path)
        if module.startswith(INTERNALS)
        or (path.name != "jax_seam.py" and "jax._src" in path.read_text())
    }
    assert named == {"jax_seam.py"}
    assert not [
        m for m, _ in imports(ROOT / "tenferro_jax/jax_seam.py") if m.startswith("jax._src")
    ]


def test_the_tropical_package_uses_the_doors_alone():
    used = {
        module
        for path in files("ext_tropical")
        for module, _ in imports(path)
        if module.split(".")[0] == "tenferro_jax"
    }
    assert used == DOORS


def test_no_import_inside_a_function_but_for_what_is_optional_or_slow():
    hidden = [
        (dotted(path), module)
        for package in ("tenferro_jax", "ext_tropical")
        for path in files(package)
        for module, top in imports(path, running=True)
        if not top and module.split(".")[0] not in OPTIONAL and module not in SLOW
    ]
    assert not hidden


@pytest.mark.parametrize("what", house.BUDGETS)
def test_the_house_is_within_its_budgets(what):
    assert house.figures().keys() == house.BUDGETS.keys()
    assert house.figures()[what] <= house.BUDGETS[what]


@pytest.mark.slow
def test_first_calls_enter_no_more_functions():
    found = house.lengths_of_ways()
    assert found.keys() == house.WAYS.keys()
    assert not {what: count for what, count in found.items() if count > house.WAYS[what]}


def test_no_file_is_too_long():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in house.sources(*house.PACKAGES)
    }
    assert {path for path, length in lengths.items() if length > LONGEST} == LONGER
