"""Which JAX works is said at import; what JAX does not document is on one page; texts of JAX that
are read are still what they were.
"""

import ast
import collections
import pathlib
import re
import tomllib

import jax
import jax.experimental
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import jax_seam, version
from tenferro_jax.errors import Unsupported
from tenferro_jax.extension.routes import equations

from .helpers import ends_in
from .house import ROOT

PAGE = (ROOT / "docs/jax_versions.md").read_text()
VECTOR = np.ones(2, np.float32)
Third = collections.namedtuple("Third", "x")


@pytest.mark.parametrize("jax_version", [*version.TESTED_JAX, "0.11.0", "0.12.0"])
def test_a_tested_jax_is_silent(jax_version):
    version.check_jax(jax_version)  # warnings are errors here


@pytest.mark.parametrize("newer", ["0.12.0.2", "0.12.1.dev20270101+abc", "0.13.0rc1", "1.0"])
def test_a_newer_jax_warns(newer):
    with pytest.warns(version.UntestedJaxWarning, match=f"and this is JAX {re.escape(newer)}: it"):
        version.check_jax(newer)


@pytest.mark.parametrize("older", ["0.9.3", "0.10.1", "0.4.38"])
def test_an_older_jax_is_refused(older):
    ends_in(lambda: version.check_jax(older), Unsupported, f"given JAX {older}; needed JAX 0.10.2")


def test_the_versions_are_those_of_the_installation_and_of_the_page():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = version.TESTED_JAX[0]
    assert f"jax>={oldest}" in project["project"]["dependencies"]
    if jax.__version__ == oldest:
        ours, theirs = (
            {path.name: path.read_bytes() for path in pathlib.Path(folder, "xla/ffi/api").iterdir()}
            for folder in (ROOT / "ext_tropical/native", jax.ffi.include_dir())
        )
        assert ours == theirs
    rows = re.findall(r"^\| ([\d.]+) \| [\d.]+ \| all tests", PAGE, re.MULTILINE)
    assert tuple(rows) == version.TESTED_JAX


def test_the_page_lists_what_jax_does_not_document():
    tree = ast.parse((ROOT / "tenferro_jax/jax_seam.py").read_text())
    roots = {"jax": "jax"}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("jax."):
            roots |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    chains = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    used = {
        chain.replace(root, roots[root], 1)
        for chain in chains
        for root in [chain.partition(".")[0]]
        if root in roots
    }
    inside = {n for n in used if n.startswith(("jax.core.", "jax.extend.", "jax.interpreters."))}
    listed = set(re.findall(r"`([\w.]+)`", PAGE))
    assert len(inside) > 25
    assert not {
        name
        for name in inside
        if not any(f"{name}.".startswith(f"{known}.") for known in listed)
        and not any(known.startswith(f"{name}.") for known in listed)
    }
    assert set(re.findall(r"""params\["(\w+)"\]""", ast.unparse(tree).replace("'", '"'))) <= listed
    readers = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and re.search(r"read from .*(text|error)\b", ast.get_docstring(node) or "")
    }
    assert len(readers) >= 4
    assert readers | {"read_module"} <= listed


# --- texts of JAX ---------------------------------------------------------------------------------


def test_a_class_that_nobody_registered():
    jax.export.register_namedtuple_serialization(Third, serialized_name="tests.jax_versions.t")
    data = jax.export.export(jax.jit(Third))(VECTOR).serialize()
    data = data.replace(b"jax_versions.t", b"jax_versions.u")
    error = ends_in(lambda: jax.export.deserialize(data), Exception).value
    assert jax_seam.refused_for(error) == ("class", 0)


def test_an_operation_without_a_form_for_symbolic_sizes():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), np.dtype("float32"))
    for function in (lambda x: jnp.searchsorted(x, x), lambda x: jnp.linspace(0, 1, x.shape[0])):
        error = ends_in(lambda f=function: jax.eval_shape(f, spec), Exception).value
        assert jax_seam.lacks_symbolic(error)


def test_other_errors_say_nothing_of_this():
    error = ends_in(lambda: jnp.dot(VECTOR, np.ones(3, "f")), TypeError).value
    assert not jax_seam.lacks_symbolic(error)
    assert not jax_seam.lacks_derivative(error)
    assert not jax_seam.says_unsupported(error)
    assert jax_seam.refused_for(error) == ("", 0)


CALLBACKS = {
    "debug.print": lambda x: jax.debug.print("{}", x),
    "debug.callback": lambda x: jax.debug.callback(lambda x: None, x),
    "inspect_array_sharding": lambda x: jax.debug.inspect_array_sharding(x, callback=print),
    "pure_callback": lambda x: jax.pure_callback(np.sin, x, x),
    "io_callback": lambda x: jax.experimental.io_callback(np.sin, x, x),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_primitive_that_calls_python_is_known(name):
    traced = jax.make_jaxpr(jax.jit(CALLBACKS[name]))(VECTOR)
    assert any(map(jax_seam.calls_back, equations(traced)))
    plain = jax.make_jaxpr(jax.jit(lambda x: jax.lax.scan(lambda c, y: (c + y, y), 0.0, x)))(VECTOR)
    assert not any(map(jax_seam.calls_back, equations(plain)))


ORDERED = {
    "print": lambda x: jax.debug.print("{}", x, ordered=True) or x,
    "io": lambda x: jax.experimental.io_callback(np.sin, x, x, ordered=True),
}


@pytest.mark.parametrize("name", ORDERED)
def test_an_effect_with_an_order_is_refused(name):
    f = tj.op(f"test-versions.ordered_{name}.v1")(ORDERED[name])
    for run in (f, jax.jit(f)):
        ends_in(lambda run=run: run(VECTOR), Unsupported, "test-versions.ordered.*ordered=True")
