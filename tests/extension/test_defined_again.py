"""Cells of a notebook that run again, modules that are reloaded: what they define takes the place of
what the same module and name defined before. What was made before computes as before, or is refused
where a file would find the new definition.
"""

import copy
import importlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ext_tropical
import tenferro_jax as tj
from tenferro_jax.errors import Duplicate, ExtensionRegistryError, InvalidConfig, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.registry import lookup_extension_factory

from ..helpers import each_ends_in, ends_in, equal

HEAD = """
import dataclasses, typing
import jax, jax.numpy as jnp, numpy as np
import tenferro_jax as tj
from ext_tropical import Semiring, register_semiring, tropical_einsum
from tenferro_jax.extension import ExtensionOp, apply, extension_op, register_extension
from tenferro_jax.io import register_pytree_name
"""

NAMED = """
@tj.op("test-again.ID.v1")
def f(x):
    return FACTOR * x
"""
LAMBDA = """
f = tj.op("test-again.ID.v1")(lambda x: FACTOR * x)
"""
LOCAL = """
def make(factor):
    @tj.op("test-again.ID.v1")
    def inner(x):
        return factor * x
    return inner
f = make(FACTOR)
"""
KERNEL = """
if "f" not in globals():
    f = tj.op("test-again.ID.v1")(lambda x: 7 * x)
@f.def_kernel("cpu")
def by_hand(x):
    return FACTOR * x
"""
LAMBDA_KERNEL = """
if "f" not in globals():
    f = tj.op("test-again.ID.v1")(lambda x: 7 * x)
f.def_kernel("cpu")(lambda x: FACTOR * x)
"""
CLASS = """
@extension_op(package="test-again", name="ID", version=1)
class Scale(ExtensionOp):
    def lower_to_standard_ops(self, x):
        return (FACTOR * x,)
register_extension(Scale)
register_extension(Scale)
f = lambda x, op=Scale(): apply(op, x)[0]
"""
LOCAL_CLASS = """
def define():
    class Scale(ExtensionOp):
        family_id = "test-again.ID.v1"
        def lower_to_standard_ops(self, x):
            return (FACTOR * x,)
    register_extension(Scale)
    return Scale
f = lambda x, op=define()(): apply(op, x)[0]
"""
SEMIRING = """
@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Scaled(Semiring):
    id = "test-again.ID.v1"
    def times(self, x, y):
        return FACTOR * x * y
    def plus(self, x, y):
        return x + y
    def zero(self, dtype):
        return np.zeros((), dtype)
    def one(self, dtype):
        return np.asarray(1 / FACTOR, dtype)
def f(x, semiring=Scaled()):
    return tropical_einsum("ij,jk->ik", x[:, None], jnp.ones_like(x[:1, None]), semiring=semiring)[:, 0]
"""
KINDS = {
    "named": NAMED,
    "lambda": LAMBDA,
    "local": LOCAL,
    "kernel": KERNEL,
    "lambda_kernel": LAMBDA_KERNEL,
    "class": CLASS,
    "local_class": LOCAL_CLASS,
    "semiring": SEMIRING,
}
X = np.float32([1.0, -3.0])


def text(kind, factor, family=None):
    return HEAD + KINDS[kind].replace("FACTOR", str(factor)).replace("ID", family or kind)


class Notebook:
    """Runs cells in one namespace, as a kernel of Jupyter does: each has the name of its content."""

    def __init__(self, name="a_notebook"):
        self.names = {"__name__": name}

    def run(self, cell):
        exec(compile(cell, f"/tmp/ipykernel_1/{hash(cell)}.py", "exec"), self.names)
        return self.names


class Prompt(Notebook):
    """Runs lines as the prompt of Python does."""

    def run(self, cell):
        exec(compile(cell, "<stdin>", "exec"), self.names)
        return self.names


class Script(Notebook):
    """Runs a file again from its beginning."""

    def run(self, cell):
        exec(compile(cell, "/tmp/script.py", "exec"), names := {"__name__": "__main__"})
        return names


class Module:
    """Writes a module and reloads it."""

    def __init__(self, folder):
        self.path, self.module = folder / f"{folder.name}_again.py", None

    def run(self, cell):
        self.path.write_text(cell)
        importlib.invalidate_caches()
        for cached in self.path.parent.glob("__pycache__/*"):
            cached.unlink()
        if self.module is None:
            self.module = importlib.import_module(self.path.stem)
        else:
            importlib.reload(self.module)
        return vars(self.module)


@pytest.fixture(params=[Notebook, Prompt, Script, Module])
def place(request, tmp_path, monkeypatch):
    if request.param is not Module:
        return request.param()
    monkeypatch.syspath_prepend(tmp_path)
    return Module(tmp_path)


@pytest.mark.few(16)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_defined_again_takes_the_place(kind, place):
    family = f"{kind}_{type(place).__name__}"
    first = place.run(text(kind, 2, family))["f"]
    equal((first(X), 2 * X), (jax.jit(first)(X), 2 * X))
    for factor in (2, 3):  # the same, then edited
        again = place.run(text(kind, factor, family))["f"]
        equal((again(X), factor * X), (jax.jit(lambda x: again(x))(X), factor * X))
    if "kernel" not in kind:  # a kernel is added to the function that is there
        equal((first(X), 2 * X), (jax.jit(lambda x: first(x) + again(x))(X), 5 * X))


@pytest.mark.parametrize("kind", ["lambda", "local", "local_class"])
def test_one_file_defines_an_id_once(kind, tmp_path, monkeypatch):
    """Two definitions without a name in their module, on lines of one file; `make(2)`, `make(3)`."""
    monkeypatch.syspath_prepend(tmp_path)
    body = text(kind, 2, f"twice_{kind}")
    second = text(kind, 3, f"twice_{kind}").replace(HEAD, "")
    ends_in(lambda: Module(tmp_path).run(body + second), Duplicate, "needed a family_id of its own")


def test_a_function_that_makes_two_ops_of_one_id_is_refused():
    made = Notebook().run(text("local", 2, "made"))["make"]
    made(2)
    ends_in(lambda: made(3), Duplicate, "Make what differs a keyword-only parameter")


def test_two_kernels_without_names_in_one_file_are_refused():
    f = tj.op("test-again.two_kernels.v1")(lambda x: x)
    f.def_kernel("cpu")(lambda x: x + 0)
    ends_in(lambda: f.def_kernel("cpu")(lambda x: 1 * x), ExtensionRegistryError, "a second kernel")


PYTREE = """
class Pair(typing.NamedTuple):
    first: object
    second: object
register_pytree_name(Pair, "test-again.ID")
"""
DATACLASS = """
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    first: object
    second: object
register_pytree_name(Pair, "test-again.ID")
"""


# A kernel claims no id: it is added to the function that is there.
CLAIMS = [kind for kind in KINDS if "kernel" not in kind]


@pytest.mark.parametrize("kind", [*CLAIMS, "pytree"])
def test_two_modules_that_claim_one_id_are_refused(kind):
    body = HEAD + PYTREE.replace("ID", "claimed") if kind == "pytree" else text(kind, 2, "claimed")
    body = body.replace("claimed", f"claimed_{kind}")
    Notebook("one_package").run(body)
    ends_in(lambda: Notebook("another_package").run(body), Duplicate, "one_package|Pair")
    Notebook("one_package").run(body)


@pytest.mark.parametrize("kind", ["named", "lambda", "class", "semiring"])
def test_a_graph_keeps_the_definition_it_was_made_of(kind):
    notebook, family = Notebook(), f"kept_{kind}"
    f = notebook.run(text(kind, 2, family))["f"]
    graph = tj.trace(f, X)
    content = tj.to_wire(graph)
    notebook.run("# another line\n" + text(kind, 2, family))
    assert tj.to_wire(graph) == content
    notebook.run(text(kind, 3, family))
    equal((graph.to_jax()(X), 2 * X))
    ends_in(lambda: tj.to_wire(graph), (Unsupported, InvalidConfig), "before it was edited")
    ext_tropical.register()
    equal((tj.from_wire(content).to_jax()(X), 3 * X))  # the file names the family alone


def test_pickles_and_copies_of_what_was_edited():
    notebook = Notebook(__name__)
    f = notebook.run(text("named", 2, "pickled"))["f"]
    op = f.op()
    assert pickle.loads(pickle.dumps(f)) is f
    assert pickle.loads(pickle.dumps(op)) == op
    again = notebook.run("\n\n" + text("named", 2, "pickled"))["f"]
    assert pickle.loads(pickle.dumps(f)) is again
    notebook.run(text("named", 3, "pickled"))
    for old in (f, op):
        assert copy.copy(old) is copy.deepcopy(old) is old
        ends_in(lambda: pickle.dumps(old), Unsupported, "before it was edited and defined again")


def test_a_semiring_by_name_is_the_newest_one():
    """Also where JAX keeps what was compiled for the name."""
    notebook = Notebook()
    for factor in (2, 4):
        f = notebook.run(text("semiring", factor, "by_name"))["f"]
        equal((f(jnp.asarray(X), "test-again.by_name.v1"), factor * X))


def test_a_key_of_an_edited_semiring_is_not_pickled():
    notebook = Notebook()
    f = notebook.run(text("semiring", 2, "key"))["f"]
    (carrier,) = tj.trace(f, X).extensions
    key = carrier.op.semiring
    assert pickle.loads(pickle.dumps(key)) == key
    notebook.run(text("semiring", 4, "key"))
    ends_in(lambda: pickle.dumps(key), InvalidConfig, "Scaled as it was before it was edited")


@pytest.mark.parametrize("body", [PYTREE, DATACLASS], ids=["namedtuple", "dataclass"])
def test_a_pytree_class_that_is_defined_again(body):
    notebook, name = Notebook(), f"Pair{len(body)}"
    body = HEAD + body.replace("ID", name)

    def results(pair):
        return type(pair)(pair.first.sum(), pair.second + 1)

    old = notebook.run(body)["Pair"]
    program = tj.export(results, old(X, X), vjp_order=1)
    content, graph = program.to_bytes(), tj.trace(results, old(X, X))
    wire = tj.to_wire(graph)
    new = notebook.run(body)["Pair"]
    assert new is not old
    for found in (
        tj.load_exported(content).call(new(X, X)),
        tj.load_exported(tj.export(results, new(X, X)).to_bytes()).call(new(X, X)),
        tj.from_wire(wire).to_jax()(new(X, X)),
    ):
        assert type(found) is new
        equal((found.first, X.sum()), (found.second, X + 1))
    assert (program.to_bytes(), tj.to_wire(graph)) == (content, wire)  # made before
    if body.count("NamedTuple"):  # of a dataclass JAX compares the static data alone
        ends_in(lambda: program.call(new(X, X)), InvalidConfig, "was defined again")
    notebook.run(body.replace("second", "last"))
    each_ends_in(
        (lambda: program.to_bytes(), Unsupported, "second.*before the class was defined again"),
        (lambda: tj.load_exported(content), Unsupported, "second.*needed.*last"),
        (lambda: tj.from_wire(wire), Unsupported, "second.*needed.*last"),
    )


def test_a_factory_that_is_defined_again():
    """Of a class that decodes by hand; a factory of another class is refused."""
    cell = (
        text("class", 2, "by_hand")
        + """
from tenferro_jax.extension.registry import ExtensionFactory
class Decoder(ExtensionFactory):
    def decode(self, payload):
        return Scale()
class Other(Decoder):
    pass
"""
    )
    notebook = Notebook()
    names = notebook.run(cell.replace("register_extension(Scale)\n", ""))
    register = "register_extension(Decoder(Scale))"
    for _ in range(2):
        notebook.run(register)
        notebook.run(cell.replace("register_extension(Scale)\n", "") + register)
    factory = lookup_extension_factory("test-again.by_hand.v1")
    assert type(factory) is names["Decoder"]
    assert factory.op_class is names["Scale"]
    ends_in(lambda: notebook.run("register_extension(Other(Scale))"), Duplicate, "by_hand")


def test_a_rule_that_is_set_again_replaces_the_earlier_one():
    notebook = Notebook()
    f = notebook.run(text("named", 2, "ruled"))["f"]
    for slope in (5.0, 6.0):
        rule = f"f.defjvp(lambda primals, out, tangents: {slope} * tangents[0])"
        notebook.run(rule)
        run = lambda x: f(x).sum()
        equal((jax.grad(run)(X), np.full(2, slope)), (jax.jit(jax.grad(run))(X), np.full(2, slope)))


def test_an_object_whose_class_was_exchanged_is_of_the_new_class():
    """As autoreload of IPython does, which hands the new class to objects that are there."""
    notebook = Notebook()
    old = notebook.run(text("class", 2, "exchanged"))["Scale"]()
    equal((apply(old, X)[0], 2 * X))
    new = notebook.run(text("class", 3, "exchanged"))["Scale"]
    object.__setattr__(old, "__class__", new)
    equal((apply(old, X)[0], 3 * X), (jax.jit(lambda x: apply(old, x)[0])(X), 3 * X))
    assert old == new()


def test_an_op_that_calls_one_that_is_defined_again_calls_the_new_one():
    """In its value as in its gradient."""
    space = {"__name__": "a_notebook"}
    inner = '@tj.op("test-again.inner.v1")\ndef inner(x):\n    return FACTOR * x\n'
    outer = '@tj.op("test-again.outer.v1")\ndef outer(x):\n    return inner(x) + 1\n'
    exec(HEAD + inner.replace("FACTOR", "2"), space)
    exec(HEAD + outer, space)
    x = np.array([1.0, 2.0])
    equal((space["outer"](x), 2 * x + 1))
    exec(HEAD + inner.replace("FACTOR", "20"), space)
    value, slope = jax.value_and_grad(lambda x: space["outer"](x).sum())(x)
    assert value == (20 * x + 1).sum()
    equal((space["outer"](x), 20 * x + 1), (slope, [20.0, 20.0]))
