"""A graph does not depend on where its function stands: line, file, folder and process."""

import importlib.util
import json
import pathlib
import textwrap
import warnings

import jax
import numpy as np
import pytest

import ext_tropical
import tenferro_jax as tj
from tenferro_jax.engine import Engine
from tenferro_jax.errors import Unsupported

from ..helpers import ends_in, python
from ..house import ROOT
from ..sweep import some
from . import placed
from .calls import call_of, functions

X = np.array([0.3, 1.2, -0.7])
SOURCE = pathlib.Path(placed.__file__).read_text()
OF_JAX = functions()


@pytest.fixture(autouse=True)
def _families():
    ext_tropical.register()


def caller(path, line):
    """A function that calls another one, from this line of a file of this path."""
    source = "\n" * (line - 1) + "def call(fn, *xs): return fn(*xs)"
    names = {}
    exec(compile(source, path, "exec"), names)
    return names["call"]


CALLERS = [caller("/one/file.py", 3), caller("/another/folder/named.py", 70)]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The functions of `placed`, from another file and some lines further down."""
    path = tmp_path_factory.mktemp("elsewhere") / "moved.py"
    path.write_text("\n\n# further down\n" + SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FUNCTIONS


def require_same(one, other):
    """Two graphs are one: equal, with equal bytes, in which no file is named."""
    assert one == other
    assert hash(one) == hash(other)
    content = tj.to_wire(one)
    assert content == tj.to_wire(other)
    assert b".py" not in content
    assert tj.from_wire(content) == one


def require_same_from_both(names):
    """The graphs of these functions of JAX are the same wherever they are called; how many."""
    same = 0
    for name in names:
        fn, arrays = call_of(name, OF_JAX[name])
        try:
            graphs = [
                tj.trace(lambda *xs, call=call: jax.tree.leaves(call(fn, *xs)), *arrays)
                for call in CALLERS
            ]
        except Unsupported:  # tests/trace/test_sweep.py lists them
            continue
        require_same(*graphs)
        same += 1
    return same


SOME = some(sorted(OF_JAX), 30)
WITH_RULES = [f"jax.nn.{name}" for name in ("relu", "relu6", "silu", "softplus", "elu", "gelu")]
WITH_RULES += ["jax.numpy.logaddexp", "jax.scipy.special.xlogy", "jax.scipy.special.logsumexp"]


def plain(names):
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of functions that JAX deprecates
        return require_same_from_both(names)


def test_functions_of_jax_give_one_graph_from_two_files():
    assert plain(WITH_RULES) == len(WITH_RULES)
    assert plain(SOME) > 20


@pytest.mark.slow
def test_every_function_of_jax_gives_one_graph_from_two_files():
    assert plain(sorted(OF_JAX)) > 600


@pytest.mark.few(8)
@pytest.mark.parametrize("name", placed.FUNCTIONS)
def test_functions_of_users_give_one_graph_from_two_files(name, elsewhere):
    here = tj.trace(placed.FUNCTIONS[name], X)
    again = tj.trace(placed.FUNCTIONS[name], X)
    require_same(here, again)
    require_same(here, tj.trace(elsewhere[name], X))


def test_a_graph_from_two_files_is_compiled_once(elsewhere):
    engine = Engine()
    for name in ("nested", "lost in a loop", "scan"):
        for function in (placed.FUNCTIONS[name], elsewhere[name]):
            engine.eval(tj.trace(function, X), X)
    assert (engine.stats().misses, engine.stats().hits) == (3, 3)


def test_the_line_of_a_lost_rule_is_told_where_it_is_known():
    graph = tj.trace(placed.FUNCTIONS["lost twice"], X)
    (lost,) = graph.lost_rules
    assert lost.name == "unreadable"
    line = next(i for i, text in enumerate(SOURCE.split("\n"), 1) if "unreadable(x) + 1" in text)
    assert f"placed.py:{line} (reading JAX primitive 'schur'" in str(lost)
    ends_in(
        lambda: jax.grad(lambda x: graph.to_jax()(x).sum())(X),
        Unsupported,
        rf"tracing inlined: unreadable at .*placed\.py:{line} ",
    )
    read = tj.from_wire(tj.to_wire(graph))
    assert list(map(str, read.lost_rules)) == ["unreadable"]
    ends_in(
        lambda: jax.grad(lambda x: read.to_jax()(x).sum())(X),
        Unsupported,
        "tracing inlined: unreadable; needed",
    )


def test_a_graph_that_is_traced_again_has_lost_the_same_rules():
    for name in ("lost", "lost without a text", "lost in a loop", "lost two"):
        graph = tj.trace(tj.trace(placed.FUNCTIONS[name], X).to_jax(), X)
        assert tj.trace(graph.to_jax(), X) == graph
    assert [rule.name for rule in graph.lost_rules] == ["unreadable", "failing"]


@pytest.mark.slow
def test_bytes_do_not_depend_on_folder_process_and_hash_seed(tmp_path):
    script = """
        import hashlib, json, pathlib, runpy, sys
        import numpy as np
        import tenferro_jax as tj

        functions = runpy.run_path(sys.argv[1])["FUNCTIONS"]
        x = np.array([0.3, 1.2, -0.7], np.float32)
        graphs = {name: tj.to_wire(tj.trace(f, x)) for name, f in functions.items()}
        programs = {
            name: tj.export(f, x).to_bytes()
            for name, f in functions.items()
            if name in ("nested", "scan", "tropical")
        }
        found = [
            {name: hashlib.sha256(content).hexdigest() for name, content in each.items()}
            for each in (graphs, programs)
        ]
        print(json.dumps(found))
        """
    said = []
    for seed, folder in enumerate(("one", "another/below")):
        place = tmp_path / folder
        place.mkdir(parents=True)
        (place / f"file{seed}.py").write_text("\n" * seed + SOURCE)
        said.append(
            python(
                "-c",
                textwrap.dedent(script),
                place / f"file{seed}.py",
                folder=place,
                PYTHONHASHSEED=str(seed),
                PYTHONPATH=str(ROOT),
            )
        )
    one, other = map(json.loads, said)
    assert one == other
    assert len(one[0]) == len(placed.FUNCTIONS)
