"""Exported programs: identity inside, a clean consumer, damage, versions."""

import json
import pickle
from typing import NamedTuple

import chex
import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import tenferro_jax as tj
from ext_tropical import TropicalEinsum, min_plus, tropical_einsum
from tenferro_jax.__main__ import main
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import ExtensionOp, apply
from tenferro_jax.extension import registry as registry_module
from tenferro_jax.extension.registry import ExtensionFactory

from ..extension_ops import ScaledSquare
from ..helpers import each_ends_in, ends_in, equal, python
from ..oracles import brute_force


class Unnamed(NamedTuple):
    x: np.ndarray


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_factories", {})


def program():
    (b,) = jax.export.symbolic_shape("b")
    fn = jax.vmap(lambda x, y: tropical_einsum("ij,jk->ik", x, y, semiring=min_plus))
    return tj.export(
        fn, jax.ShapeDtypeStruct((b, 2, 3), np.float64), jax.ShapeDtypeStruct((b, 3, 2), np.float64)
    )


@pytest.mark.clause("X11.1")
def test_identity_is_kept_and_decodes_to_the_op():
    p = program()
    assert repr(p) == (
        "ExportedProgram((float64[b,2,3], float64[b,3,2]) -> (float64[b,2,2]); platforms cpu, "
        "cuda, tpu; extensions tenferro-ext-tropical.einsum.v1)"
    )
    assert 'call @"tenferro-ext-tropical.einsum.v1"' in p.stablehlo()
    (extension,) = p.extensions
    assert extension["family_id"] == "tenferro-ext-tropical.einsum.v1"
    assert ExtensionFactory(TropicalEinsum).decode(extension["payload"]) == TropicalEinsum(
        min_plus, "aij,ajk->aik"
    )
    scaled = tj.export(jax.vmap(lambda x: apply(ScaledSquare(0.1), x)[0]), np.ones((2, 3)))
    (extension,) = scaled.extensions
    assert ExtensionFactory(ScaledSquare).decode(extension["payload"]) == ScaledSquare(0.1)
    assert json.loads(extension["batching"]) == [[[0], None, None]]


@pytest.mark.slow
@pytest.mark.clause("X13.7")
def test_a_process_with_jax_alone_runs_the_file(tmp_path):
    path = tmp_path / "program.bin"
    assert program().save(path) == path.stat().st_size
    x, y = (
        np.random.default_rng(0).normal(size=(4, 2, 3)),
        np.random.default_rng(1).normal(size=(4, 3, 2)),
    )
    np.savez(tmp_path / "data.npz", x=x, y=y)
    code = """
import sys, jax, jax.export, numpy as np
jax.config.update("jax_enable_x64", True)
data = np.load("data.npz")
program = jax.export.deserialize(bytearray(open("program.bin", "rb").read()))
np.save("out.npy", program.call(data["x"], data["y"]))
assert not [m for m in sys.modules if m.startswith(("tenferro", "ext_tropical"))]
"""
    python("-c", code, folder=tmp_path)
    want = np.stack([brute_force("min_plus", "ij,jk->ik", a, b)[0] for a, b in zip(x, y)])
    equal((np.load(tmp_path / "out.npy"), want), (tj.load_exported(path).call(x, y), want))


class NextScaledSquare(ExtensionOp):
    family_id = "test-package.scaled_square.v2"


@pytest.mark.clause("X5.4", "X11.2")
def test_another_major_version_in_this_process_is_refused_and_both_are_named():
    content = tj.export(lambda x: apply(ScaledSquare(2.0), x)[0], np.ones(2)).to_bytes()
    assert tj.load_exported(content).call(np.ones(2)).tolist() == [2.0, 2.0]
    tj.extension.register_extension(ExtensionFactory(NextScaledSquare))
    ends_in(lambda: tj.load_exported(content), Unsupported, "graph has v1, runtime has v2")
    tj.extension.register_extension(ExtensionFactory(ScaledSquare))
    assert tj.load_exported(content).families == ("test-package.scaled_square.v1",)


@pytest.mark.clause("X11.3")
def test_the_ops_of_a_program_are_read_back_by_their_factories():
    content = tj.export(
        lambda x: apply(ScaledSquare(0.5), apply(ScaledSquare(2.0), x)[0])[0], np.ones(2)
    ).to_bytes()
    program = tj.load_exported(content)  # needs no factory
    assert program.call(np.ones(2)).tolist() == [2.0, 2.0]
    ends_in(program.ops, Unsupported, r"test-package\.scaled_square\.v1: not registered")
    tj.extension.register_extension(ExtensionFactory(ScaledSquare))
    assert program.ops() == (ScaledSquare(2.0), ScaledSquare(0.5))


@pytest.mark.parametrize("platforms", ["cpu", (), ("foo",), ("gpu",), ("cpu", "cpu")], ids=str)
def test_unknown_platforms(platforms):
    ends_in(
        lambda: tj.export(jnp.sin, np.ones(2), platforms=platforms),
        InvalidConfig,
        "needed a tuple of different platforms among cpu, cuda, rocm, tpu",
    )


def test_other_wrong_arguments():
    each_ends_in(
        (
            lambda: tj.export(jnp.sin, np.ones(2), compatibility="FOO"),
            Unsupported,
            "compatibility='FOO'.* newest level",
        ),
        (
            lambda: tj.export(tj.trace(jnp.sin, np.ones(2)), np.ones(2)),
            InvalidConfig,
            "a graph and specs",
        ),
        (lambda: tj.routes(jnp.sin, np.ones(2), platform="gpu"), InvalidConfig, "routes"),
        (lambda: tj.load_exported(None), InvalidConfig, "a path or bytes"),
    )
    narrow = tj.export(lambda i: i * 2, jax.ShapeDtypeStruct((), np.int32))
    with jax.enable_x64(False), pytest.raises(DTypeError, match="while 64-bit types are off"):
        narrow.call(np.int64(2**40))


def test_an_exported_program_says_what_is_wrong_with_its_arguments():
    (n,) = jax.export.symbolic_shape("n")
    program = tj.export(
        lambda x, y: x.sum(0) + y["b"],
        jax.ShapeDtypeStruct((n, 3), np.float64),
        {"b": jax.ShapeDtypeStruct((3,), np.float64)},
    )
    x, b = np.ones((2, 3)), np.ones(3)
    np.testing.assert_array_equal(program.call(x, {"b": b}), np.full(3, 3.0))
    for args, kind, text in [
        ((x,), InvalidConfig, r": given arguments PyTreeDef\(\(\(\*,\), {}\)\); needed PyTreeDef"),
        (
            (x, {"b": b}, x),
            InvalidConfig,
            r": given arguments PyTreeDef\(\(\(\*, {'b': \*}, \*\), {}\)\); needed PyTreeDef",
        ),
        ((x, {"b": np.ones(4)}), ShapeError, r", input 1, axis 0 \(declared 3\): given size 4"),
        ((b, {"b": b}), ShapeError, r", input 0: given float64\[3\]; needed float64\[n,3\]"),
        (
            (x.astype(np.float32), {"b": b}),
            DTypeError,
            r", input 0: given float32\[2,3\]; needed float64\[n,3\]",
        ),
    ]:
        ends_in(lambda: program.call(*args), kind, f"exported program{text}")
    ends_in(lambda: tj.export(None), InvalidConfig, "given None; needed a function or a Graph")


FFI = "no_such_target"


def foreign(x):
    return jax.ffi.ffi_call(FFI, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


class Foreign(ExtensionOp):
    family_id = "test-package.foreign.v1"

    def lower_to_standard_ops(self, x):
        return (foreign(x),)


def test_custom_calls_that_jax_does_not_keep_are_refused_by_name():
    for fn, op in (
        (lambda x: foreign(x) + 1, "ffi_call"),
        (lambda x: apply(Foreign(), x)[0], r"test-package\.foreign\.v1.*ffi_call"),
    ):
        ends_in(
            lambda: tj.export(fn, np.ones(2)),
            Unsupported,
            f"does not keep stable: 'no_such_target' of "
            f".*{op}.*custom_calls=\\('no_such_target',\\)",
        )
        program = tj.export(fn, np.ones(2), custom_calls=(FFI,))
        assert program.manifest.custom_calls == program.manifest.unguaranteed == (FFI,)
        loaded = tj.load_exported(program.to_bytes())
        assert loaded.manifest == program.manifest
        ends_in(lambda: loaded.call(np.ones(2)), jax.errors.JaxRuntimeError, FFI)
    backward = jax.custom_vjp(jnp.sin)
    backward.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (foreign(g),))
    assert tj.export(backward, np.ones(2)).manifest.custom_calls == ()
    ends_in(lambda: tj.export(backward, np.ones(2), vjp_order=1), Unsupported, FFI)


def test_custom_calls_that_jax_keeps_are_listed():
    program = tj.export(jnp.linalg.cholesky, np.eye(2), platforms=("cpu",))
    assert program.manifest.custom_calls == ("lapack_dpotrf_ffi",)
    assert program.manifest.unguaranteed == ()


def nested(tree, x):
    """A function of a pytree with every kind of node that JAX writes by itself."""
    a, (b, none), c = tree["a"], tree["b"], tree["list"]
    assert none is None
    y = tropical_einsum("ij,jk->ik", x * a, jnp.tanh(b)) + c[0][None]
    return {"y": [y, None], "loss": ((y**3).sum(),)}


def tree():
    rng = np.random.default_rng(3)
    return {
        "a": rng.normal(size=(1, 3)),
        "b": (rng.normal(size=(3, 2)), None),
        "list": [rng.normal(size=2)],
    }


@pytest.mark.cpu
def test_gradients_of_a_file_are_those_of_the_function():
    (n,) = jax.export.symbolic_shape("n")
    spec = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree())
    program = tj.export(
        nested, spec, jax.ShapeDtypeStruct((n, 3), np.float64), platforms=("cpu",), vjp_order=2
    )
    content = program.to_bytes()
    assert b".py" not in content  # no path of this machine
    loaded = tj.load_exported(content)
    assert loaded.vjp_order == program.vjp_order == 2
    assert loaded.families == ("tenferro-ext-tropical.einsum.v1",)
    of_file = lambda t, x: loaded.call(t, x)["loss"][0]
    of_function = lambda t, x: nested(t, x)["loss"][0]
    first = [jax.grad(f, (0, 1)) for f in (of_file, of_function)]
    second = [jax.grad(lambda t, x, g=g: jnp.sum(g(t, x)[1] ** 2)) for g in first]
    for size, orders in ((1, 1), (4, 3)):
        x = np.random.default_rng(size).normal(size=(size, 3))
        pairs = ((loaded.call, nested), first, second)[:orders]
        got, want = jax.jit(lambda t, x: [[f(t, x) for f in side] for side in zip(*pairs)])(
            tree(), x
        )
        chex.assert_trees_all_close(got, want, rtol=1e-9, atol=1e-9)
    third = jax.grad(lambda t: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(second[0](t, x))))
    ends_in(
        lambda: jax.eval_shape(third, tree()),
        Unsupported,
        r"without a derivative of this order.*higher vjp_order",
    )


def test_gradients_that_cannot_be_exported():
    each_ends_in(
        (
            lambda: tj.export(
                lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: c * 2, x),
                np.float64(1),
                vjp_order=1,
            ),
            Unsupported,
            "export with vjp_order=1: given Reverse-mode differentiation does not work",
        ),
        (
            lambda: tj.export(
                lambda x: apply(Foreign(), x)[0], np.ones(2), custom_calls=(FFI,), vjp_order=1
            ),
            ADRuleError,
            r"test-package\.foreign\.v1",
        ),
        (
            (
                lambda: tj.export(jnp.sin, np.ones(2), vjp_order=order)
                for order in (-1, True, 1.0, "1")
            ),
            InvalidConfig,
            "vjp_order",
        ),
        (
            lambda: tj.export(jnp.sin, np.ones(2), custom_calls="ALL"),
            InvalidConfig,
            "custom_calls='ALL'",
        ),
        (lambda: tj.export(jnp.sin, "two"), DTypeError, "export: given 'two'"),
    )


def test_a_platform_that_is_not_here():
    program = tj.export(jnp.sin, np.ones(2), platforms=("tpu",))
    ends_in(
        lambda: tj.load_exported(program.to_bytes()).call(np.ones(2)),
        Unsupported,
        r"exported for platforms.*tpu.*needed one of its platforms",
    )


@pytest.mark.cpu
@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_a_program_for_two_devices(kind, tmp_path, capsys):
    mesh = jax.make_mesh((2,), ("d",), (kind,), devices=jax.devices()[:2])
    place = jax.NamedSharding(mesh, jax.P("d"))
    made = tj.export(
        lambda x: jnp.sin(x).sum(),
        jax.ShapeDtypeStruct((4,), np.float64, sharding=place),
        vjp_order=1,
    )
    assert "; platforms cpu, cuda, tpu; 2 devices; extensions none" in repr(made)
    made.save(tmp_path / "two.bin")
    loaded = tj.load_exported(tmp_path / "two.bin")
    x = np.arange(4.0)
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(
            loaded.call(jax.device_put(x, place)), np.sin(x).sum(), rtol=1e-14
        )
    ends_in(
        (lambda: call(x) for call in (loaded.call, jax.grad(loaded.call))),
        Unsupported,
        "given a call on 1 device; needed 2 devices, the number that it was exported for",
    )
    assert main(["inspect", str(tmp_path / "two.bin")]) == 0
    assert json.loads(capsys.readouterr().out)["devices"] == 2


def test_a_pickled_program_is_its_bytes():
    made = tj.export(lambda x: x**2, np.ones(()), vjp_order=1)
    back = pickle.loads(pickle.dumps(made))
    assert back.to_bytes() == made.to_bytes()
    assert (float(back.call(3.0)), float(jax.grad(back.call)(3.0))) == (9.0, 6.0)
    ends_in(
        lambda: pickle.dumps(tj.export(lambda x: Unnamed(x), np.ones(2))),
        Unsupported,
        "unregistered type.*Unnamed.*register_pytree_name",
    )


def with_print(x):
    jax.debug.print("{}", x)
    return x


HOST_CODE = {
    "print": with_print,
    "print in an op": tj.op("test-export.with-print.v1")(with_print),
    "pure": lambda x: jax.pure_callback(np.sin, x, x),
    "io": lambda x: io_callback(np.sin, x, x),
}


@pytest.mark.cpu
@pytest.mark.parametrize("platforms", [("cpu",), ("tpu",), ("cpu", "cuda", "tpu")])
def test_what_cannot_be_written_for_these_platforms_says_what_to_change(platforms):
    for fn in HOST_CODE.values() if platforms[0] == "cpu" else ():
        error = ends_in(
            lambda: tj.export(fn, jnp.zeros(2), platforms=platforms),
            Unsupported,
            "needed operations that JAX can write",
        )
        assert error.value.fix == "Remove host callbacks and jax.debug.print."
    if "tpu" in platforms:
        error = ends_in(
            lambda: tj.export(lambda x: jnp.linalg.eig(x)[0], jnp.eye(2), platforms=platforms),
            Unsupported,
            "'eig' not found for platform",
        )
        assert error.value.fix == "Export only for platforms that have this operation."


def test_an_error_of_the_function_itself_is_shown():
    def mistaken(x):
        jax.debug.print("{}", x)
        raise TypeError("the author's own")

    ends_in(lambda: tj.export(mistaken, jnp.zeros(2)), TypeError, "the author's own")


def test_a_program_that_older_readers_cannot_have():
    narrow = lambda x: x.astype(jnp.float8_e3m4)
    ends_in(
        lambda: tj.export(narrow, np.ones(2), compatibility="MAX"),
        Unsupported,
        r"compatibility='MAX': given .* such readers.*compatibility=None",
    )
    assert tj.export(narrow, np.ones(2)).call(np.ones(2)).dtype == jnp.float8_e3m4


def test_a_module_without_a_hash_is_exported():
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    x = jnp.arange(3.0, dtype=model.layers[0].weight.dtype)
    np.testing.assert_allclose(tj.export(model, x).call(x), model(x), rtol=1e-6)
