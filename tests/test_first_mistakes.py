"""First mistakes of newcomers with ops, graphs, files and einsum: the whole text of each error. The
texts of `ext_tropical` are in tests/ext_tropical/test_first_mistakes.py.
"""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.engine import Engine
from tenferro_jax.extension import ExtensionOp, Kernel, apply, extension_op, register_extension
from tenferro_jax.io import register_pytree_name

from .helpers import throw

X = np.float32([0.5, 2.0])


def soft(x):
    return jnp.logaddexp(x, 0)


def scaled(x, *, t: float):
    return x / t


def times(a, b):
    return a * b


def nothing(x):
    return None


def with_default(x, t=2.0):
    return x / t


def untyped(x, *, t):
    return x / t


def op(function=soft):
    """The function as an op; a call defines it again, without rules."""
    return tj.op(f"my-package.{function.__name__}.v1")(function)


def ruled(function=soft, **rules):
    """The op with a rule or kernel of each name, set by a call with these arguments."""
    made = op(function)
    for name, given in rules.items():
        getattr(made, name)(*(given if isinstance(given, tuple) else (given,)))
    return made


def gradient(f):
    return jax.grad(lambda x: f(x).sum())(X)


class Double(ExtensionOp):
    family_id = "my-package.double.v1"

    def lower_to_standard_ops(self, x):
        return (2 * x,)


def double(**members):
    return type("Double", (ExtensionOp,), {"family_id": "my-package.double.v1", **members})()


def transposed_by_value(f):
    f.def_transpose(lambda g, a, b: (None, g * b), argnums=1)
    return jax.grad(lambda b: f(X, b).sum())(X)


def transposed_by_one(f):
    f.def_transpose(lambda g, a, b: (g * a,), argnums=1)
    return jax.grad(lambda b: f(X, b).sum())(X)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Param:
    """A parameter that is a pytree of one array, as those of Flax."""

    value: Any


graph = functools.cache(lambda: tj.trace(lambda x: (x * x).sum(), X))
program = functools.cache(lambda: tj.export(lambda x: 2 * x, X))

LIST = (
    "None, bool, int, float, complex, str, bytes, enum member, dtype, tuple, symbolic dimension, "
    "array, frozen dataclass"
)
FAMILY = (
    "needed '<package>.<op>.v<major>', printable ASCII without spaces, no zeros before the "
    "version, for example 'my-package.soft_sort.v1'."
)
GRAPH = "needed a Graph. Make one with tenferro_jax.trace(fn, *specs)."
PLATFORMS = "needed a tuple of different platforms among cpu, cuda, rocm, tpu."
ALONE = "needed a tuple or list with one entry for each output. Return (value,) for a single value."
OF_DOUBLE = "extension my-package.double.v1"

# The name of a mistake, the call, and the text, where SOFT and the like stand for what an op is
# called in errors: its name, file, line and family.
MISTAKES = [
    # op
    (
        "an id without a version",
        lambda: tj.op("soft"),
        f"family_id: given 'soft'; {FAMILY}",
    ),
    (
        "op as a bare decorator",
        lambda: tj.op(jnp.sin),
        "family_id: given <PjitFunction of <function sin at 0x...>>: op takes the id: "
        f'@op("my-package.soft.v1"); {FAMILY}',
    ),
    (
        "a parameter with a default",
        lambda: op(with_default),
        "WITH_DEFAULT: given the parameter t=2.0; needed arrays by position, and the payload by "
        "keyword-only parameters with annotations. Leave its default out, or write it after a * "
        "with an annotation.",
    ),
    (
        "a keyword without an annotation",
        lambda: op(untyped),
        "UNTYPED: given the keyword-only parameter t without an annotation; needed the type of "
        "each keyword, because its value is a part of the op. Write its type, such as t: float. "
        "Arrays go by position.",
    ),
    (
        "a number in place of a function",
        lambda: tj.op("my-package.part.v1")(3),
        "op, extension my-package.part.v1: given 3; needed a function, a jitted function, or a "
        "jax.custom_vjp or jax.custom_jvp without symbolic zeros. Write a function that calls it.",
    ),
    (
        "payload by position",
        lambda: op(scaled)(X, 2.0),
        "SCALED: given 2 arguments by position; needed 1, each an array or a pytree. Pass t by "
        "keyword.",
    ),
    ("no payload", lambda: op(scaled)(X), "SCALED: given no t; needed a value by keyword."),
    (
        "an unknown keyword",
        lambda: op(scaled)(X, s=2.0),
        "SCALED: given the keyword s; needed one of t. Pass arrays by position.",
    ),
    (
        "payload of another type",
        lambda: op(scaled)(X, t="2"),
        "scaled payload (family_id my-package.scaled.v1), field t: given '2' of type str; needed a "
        "value of its annotation, float. Pass such a value, or widen the annotation, because text "
        "is read back by it.",
    ),
    (
        "a traced value as payload",
        lambda: jax.jit(lambda t: op(scaled)(X, t=t))(np.float32(2)),
        "SCALED: given a traced value as t; needed fixed values as keywords, which are a part of the op; arrays go by position. "
        "Publish a function that takes it by position: op(id)(lambda x, t: f(x, t)). Under jax.jit "
        "static_argnames keeps an argument a value.",
    ),
    (
        "an array by keyword",
        lambda: op()(x=X),
        "SOFT: given the keyword x; needed no keyword. Pass arrays by position.",
    ),
    (
        "text as an array",
        lambda: op()("a"),
        "SOFT, array 0: given 'a'; needed an array, a number or a list of numbers. Convert with "
        "jax.numpy.asarray first.",
    ),
    (
        "a parameter in place of its array",
        lambda: op()(Param(X)),
        "arguments of SOFT: given a Param among the arrays; needed arrays, or tuples, lists and "
        "dicts with text as keys of them. Pass the arrays of the object, such as w[...] of a "
        "flax.nnx.Param, and make the object of the results.",
    ),
    (
        "a function that returns nothing",
        lambda: op(nothing)(X),
        "NOTHING: given no result; needed arrays. Return the result. If NumPy code computes it, "
        "write def_host and def_infer.",
    ),
    # defjvp, defvjp, def_transpose
    (
        "defjvp in the form of jax.custom_jvp",
        lambda: ruled(defjvp=lambda primals, tangents: tangents[0]),
        "SOFT: given defjvp, a function of (primals, tangents); needed a function of (primals, "
        "outputs, tangents). Unlike a rule of jax.custom_jvp it gets the outputs, and returns the "
        "tangents alone.",
    ),
    (
        "defjvp without the payload",
        lambda: ruled(scaled, defjvp=lambda primals, outputs, tangents: tangents[0]),
        "SCALED: given defjvp, a function of (primals, outputs, tangents); needed a function of "
        "(primals, outputs, tangents, *, t). Unlike a rule of jax.custom_jvp it gets the outputs, "
        "and returns the tangents alone.",
    ),
    (
        "defjvp that returns the result too",
        lambda: gradient(ruled(defjvp=lambda primals, outputs, tangents: (outputs, tangents[0]))),
        "SOFT: given defjvp, which returned (float32[2], float32[2]); needed an array. Return the "
        "tangents alone, nested as the result.",
    ),
    (
        "defjvp that returns nothing",
        lambda: gradient(ruled(defjvp=lambda primals, outputs, tangents: None)),
        "SOFT: given defjvp, which returned None; needed tangents. Return the zeros.",
    ),
    (
        "defjvp of another shape",
        lambda: gradient(ruled(defjvp=lambda primals, outputs, tangents: tangents[0].sum())),
        "defjvp of SOFT, entry 0: given float32[]; needed float32[2], as its primal.",
    ),
    (
        "a value as a rule",
        lambda: ruled(defjvp=3),
        "SOFT: given 3 as defjvp; needed a function.",
    ),
    (
        "two kinds of rules",
        lambda: ruled(defjvp=lambda p, o, t: t[0], defvjp=(lambda x: (x, x), lambda r, g: (g,))),
        "SOFT: given defvjp after defjvp; needed one rule. Run the definition of the function "
        "again, which has no rule yet.",
    ),
    (
        "fwd without residuals",
        lambda: gradient(ruled(defvjp=(lambda x: x, lambda r, g: (g,)))),
        "SOFT: given fwd, which returned float32[2]; needed (the result, residuals).",
    ),
    (
        "bwd that takes residuals one by one",
        lambda: ruled(defvjp=(lambda x: (x, (x, x)), lambda x, y, g: (g,))),
        "SOFT: given bwd, a function of (x, y, g); needed a function of (residuals, cotangents).",
    ),
    (
        "bwd that returns no tuple",
        lambda: gradient(ruled(defvjp=(lambda x: (x, x), lambda r, g: g))),
        "SOFT: given bwd, which returned float32[2]; needed a tuple of 1, a cotangent or None for "
        "each argument.",
    ),
    (
        "bwd of another shape",
        lambda: gradient(ruled(defvjp=(lambda x: (x, x), lambda r, g: (g.sum(),)))),
        "SOFT: given bwd, which returned float32[] as cotangent 0; needed float32[2].",
    ),
    (
        "def_transpose of several arguments",
        lambda: op(times).def_transpose(lambda g, a, b: (None, g)),
        "TIMES: given def_transpose without argnums; needed the arguments in which the function is "
        "linear together. Use functools.partial(f.def_transpose, argnums=1) as the decorator.",
    ),
    (
        "def_transpose of the cotangents alone",
        lambda: ruled(def_transpose=lambda g: (g,)),
        "SOFT: given def_transpose, a function of (g); needed a function of (cotangents, x).",
    ),
    (
        "def_transpose without a None for the other argument",
        lambda: transposed_by_one(op(times)),
        "TIMES: given def_transpose, which returned (float32[2],); needed a tuple of 2, a cotangent "
        "or None for each argument.",
    ),
    (
        "def_transpose that computes with the linear argument",
        lambda: transposed_by_value(op(times)),
        "def_transpose of TIMES: given a computation with the value of an argument float32[2]; "
        "needed the other arguments and the cotangents: in this one the op is linear, and it has "
        "dtype and shape alone. Leave it out of argnums of def_transpose if the op is not linear "
        "in it.",
    ),
    # kernels and host functions
    (
        "def_kernel as a bare decorator",
        lambda: op().def_kernel(np.sin),
        "SOFT: given def_kernel(<ufunc 'sin'>); needed the name of a platform. Write "
        '@f.def_kernel("cpu") above the kernel.',
    ),
    (
        "a kernel for gpu",
        lambda: op().def_kernel("gpu"),
        f"def_kernel of SOFT: given platforms=('gpu',); {PLATFORMS} For GPUs write cuda (NVIDIA) "
        "or rocm (AMD).",
    ),
    (
        "a kernel of another shape",
        lambda: (f := op()).def_kernel("cpu")(lambda x: x.sum()) and f(X),
        "cpu kernel of SOFT: given outputs float32[]; needed float32[2], as the function says.",
    ),
    (
        "declines that returns a bool",
        lambda: (f := op()).def_kernel("cpu", declines=lambda x: True)(lambda x: x) and f(X),
        "cpu kernel, declines of SOFT: given True; needed text: the reason why the kernel declines "
        'the call, or "" if it does not.',
    ),
    (
        "def_host that returns nothing",
        lambda: ruled(nothing, def_host=lambda x: None, def_infer=lambda x: x)(X),
        "NOTHING: given def_host, which returned None; needed NumPy arrays.",
    ),
    (
        "def_host of another dtype",
        lambda: ruled(nothing, def_host=np.float64, def_infer=lambda x: x)(X),
        "def_host of NOTHING: given outputs float64[2]; needed float32[2], as def_infer says.",
    ),
    (
        "def_host that raises",
        lambda: ruled(nothing, def_host=lambda x: throw(AssertionError()), def_infer=lambda x: x)(
            X
        ),
        "def_host of NOTHING: given AssertionError; needed a run without an exception. The cause "
        "is the author's exception.",
    ),
    (
        "the gradient of a host function",
        lambda: gradient(ruled(nothing, def_host=np.sin, def_infer=lambda x: x)),
        "jvp of NOTHING: given no jvp rule for family_id my-package.nothing.v1; needed a rule. "
        "Write @f.defjvp, f.defvjp(fwd, bwd) or @f.def_transpose.",
    ),
    (
        "def_infer that returns a shape",
        lambda: ruled(nothing, def_host=np.sin, def_infer=lambda x: x.shape)(X),
        "NOTHING: given def_infer, which returned (2,); needed a jax.ShapeDtypeStruct for each "
        "array of the result.",
    ),
    # classes of ops
    (
        "apply of a class",
        lambda: apply(Double, X),
        "apply: given the class Double; needed an op, which is an object of a class that derives "
        "from ExtensionOp. Make one: apply(Double(...), ...).",
    ),
    (
        "a lowering that returns an array",
        lambda: apply(double(lower_to_standard_ops=lambda self, x: x), X),
        f"lower_to_standard_ops of {OF_DOUBLE}: given float32[2] alone; {ALONE}",
    ),
    (
        "one meta without a list",
        lambda: apply(
            double(eager_execute=lambda self, x: (x,), infer_output_meta=lambda self, i: i[0]), X
        ),
        f"infer_output_meta of {OF_DOUBLE}: given float32[2] alone; {ALONE}",
    ),
    (
        "a pair without a list",
        lambda: apply(
            double(
                eager_execute=lambda self, x: (x,),
                infer_output_meta=lambda self, i: (i[0].dtype, i[0].shape),
            ),
            X,
        ),
        f"infer_output_meta of {OF_DOUBLE}: given a pair (dtype, shape) alone; {ALONE}",
    ),
    (
        "inference that asserts",
        lambda: apply(
            double(
                eager_execute=lambda self, x: (x,),
                infer_output_meta=lambda self, i: throw(AssertionError()),
            ),
            X,
        ),
        f"infer_output_meta of {OF_DOUBLE}: given float32[2]: AssertionError; needed inputs that "
        "the op accepts, and inference that works for symbolic shapes. The cause is the error of "
        "the op's inference.",
    ),
    (
        "a class without a base",
        lambda: extension_op(package="my-package", name="double", version=1)(int),
        "extension_op, my-package.double.v1: given <class 'int'>; needed a subclass of "
        "ExtensionOp. Derive it from tenferro_jax.extension.ExtensionOp.",
    ),
    (
        "the gradient of a class without a rule",
        lambda: gradient(lambda x: apply(Double(), x)[0]),
        f"jvp of {OF_DOUBLE}: given no jvp rule for family_id my-package.double.v1; needed "
        "linearize in the op's class, or an ExtensionAdRule for its family. Write the rule, pass "
        "rules=ExtensionRuleSet(...) to apply, or stop the gradient of the inputs with "
        "jax.lax.stop_gradient.",
    ),
    (
        "kernels in a list",
        lambda: apply(Double(), X, runtimes=[Kernel("a.b.v1", "cpu", soft)]),
        f"{OF_DOUBLE}: given runtimes=[Kernel(a.b.v1, cpu, soft)]; needed an ExtensionRuntimeSet. "
        "Wrap the kernels: ExtensionRuntimeSet(Kernel(...), ...).",
    ),
    (
        "an op in place of its class",
        lambda: register_extension(Double()),
        "registration: given Double(); needed an ExtensionOp subclass.",
    ),
    # both_modes, check, routes
    (
        "both_modes of a result",
        lambda: tj.both_modes(3.0),
        "both_modes: given 3.0; needed a function.",
    ),
    (
        "check of a result",
        lambda: tj.check(3.0),
        "check: given 3.0; needed a function, or an instance of an ExtensionOp subclass.",
    ),
    (
        "check without inputs",
        lambda: tj.check(op()),
        "check of my-package.soft.v1: given no example inputs; needed at least one array for each "
        "input. Pass them after the op, or override example_inputs; choose sizes that differ, and "
        "values away from ties and kinks.",
    ),
    (
        "routes of a result",
        lambda: tj.routes(3.0),
        "routes: given 3.0; needed a function of arrays. Pass the function first.",
    ),
    # graphs
    (
        "trace of a result",
        lambda: tj.trace(3.0, X),
        "trace: given 3.0; needed a function of arrays. Pass the function first, then its specs.",
    ),
    (
        "a graph of arrays of another size",
        lambda: graph()(np.zeros(3, np.float32)),
        "graph input args[0], axis 0 (declared 2): given size 3 in float32[3]; needed size 2.",
    ),
    (
        "a graph of arrays of another dtype",
        lambda: graph()(np.zeros(2, np.int32)),
        "graph input args[0]: given int32[2]; needed float32[2].",
    ),
    (
        "a graph of too many arrays",
        lambda: graph()(X, X),
        "Graph: given 2 inputs; needed 1: args[0].",
    ),
    (
        "tj.grad of a function",
        lambda: tj.grad(soft),
        f"grad of a graph: given <function soft at 0x...>; {GRAPH}",
    ),
    (
        "tj.grad of a vector",
        lambda: tj.grad(tj.trace(soft, X)),
        "grad: given outputs float32[2]; needed one floating output of shape (). Reduce it first, "
        "or use vjp.",
    ),
    (
        "an engine with a function",
        lambda: Engine().eval(soft, X),
        f"Engine.eval: given <function soft at 0x...>; {GRAPH}",
    ),
    # files
    (
        "export for one platform as text",
        lambda: tj.export(soft, X, platforms="cpu"),
        f"export: given platforms='cpu'; {PLATFORMS} Write ('cpu',).",
    ),
    (
        "a program with arrays of another size",
        lambda: program().call(np.zeros(3, np.float32)),
        "exported program, input 0, axis 0 (declared 2): given size 3 in float32[3]; needed size 2.",
    ),
    (
        "the gradient of a program",
        lambda: gradient(program().call),
        "gradient of an exported program: given a program without a derivative of this order; "
        "needed a program exported with a higher vjp_order. Export with vjp_order=1 for gradients, "
        "2 for gradients of gradients.",
    ),
    (
        "load_exported of a graph",
        lambda: tj.load_exported(tj.to_wire(graph())),
        "exported program: given a graph; needed bytes as a writer wrote them: write or copy them "
        "again. Read it with load_graph or from_wire.",
    ),
    (
        "from_wire of a path",
        lambda: tj.from_wire("a.graph"),
        "from_wire: given 'a.graph'; needed bytes. Read a file with load_graph.",
    ),
    (
        "a function in place of a graph",
        lambda: tj.to_wire(soft),
        f"to_wire: given <function soft at 0x...>; {GRAPH}",
    ),
    (
        "the name before the class",
        lambda: register_pytree_name("my-package.Pair", tuple),
        "register_pytree_name: given 'my-package.Pair' and <class 'tuple'>; needed a namedtuple or "
        "a class that jax.tree_util knows, and text as its name. Call "
        "jax.tree_util.register_dataclass or register_pytree_node first.",
    ),
    # einsum
    (
        "einsum without an equation",
        lambda: tj.einsum(1.0, X),
        "einsum: given 1.0; needed text such as 'ij,jk->ik'. Pass the equation first.",
    ),
    (
        "operands in a list",
        lambda: tj.einsum("i,i->", [X, X]),
        "einsum 'i,i->': given 1 operand; needed 2, one for each comma-separated term.",
    ),
    (
        "einsum of another rank",
        lambda: tj.einsum("ij->i", X),
        "einsum 'ij->i', operand 0: given shape (2,) of rank 1; needed rank 2 for labels 'ij'.",
    ),
    (
        "einsum of sizes that differ",
        lambda: tj.einsum("i,i->", X, np.zeros(3, np.float32)),
        "einsum 'i,i->', operand 1, axis 0: given label 'i' of size 3, and of size 2 before, in "
        "operand 0; needed one size for each label.",
    ),
    (
        "an output label that no operand has",
        lambda: tj.einsum("i->j", X),
        "einsum 'i->j': given output label 'j' that no operand has; needed terms of letters "
        "separated by commas, and optionally '->' with each output label once, as in "
        "'bij,bjk->bik'.",
    ),
]


def place_of(function):
    """What errors call an op of this file."""
    name, line = function.__name__, function.__code__.co_firstlineno
    return f"{name} (test_first_mistakes.py:{line}), extension my-package.{name}.v1"


@pytest.mark.parametrize(
    ("call", "text"), [row[1:] for row in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_first_mistake_is_told_in_the_words_of_its_author(call, text):
    for function in (soft, scaled, times, nothing, with_default, untyped):
        text = text.replace(function.__name__.upper(), place_of(function))
    with pytest.raises(tj.TenferroError) as error:
        call()
    found = error.value
    assert (re.sub(r" at 0x\w+", " at 0x...", str(found))) == text
    assert all((found.where, found.given, found.needed))
