"""Functions as ops under code that nobody here wrote: JAX's issues 16049 and 27352, which fail in
plain JAX; nufftax issue 5 with the package itself and with jax-finufft; equinox and optax; and the
memory of attention.
"""

import ctypes
import shutil
import subprocess

import chex
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from jax.experimental import hijax

import tenferro_jax as tj

pytestmark = pytest.mark.slow

SOURCE = r"""
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
using In = ffi::Buffer<ffi::F64>;
using Out = ffi::ResultBuffer<ffi::F64>;
#define ROWS for (size_t i = 0; i < x.element_count(); ++i)
#define AT(b, i) b.typed_data()[i]
#define TO(b, i) b->typed_data()[i]
ffi::Error value(In x, In y, Out a, Out b) {
  ROWS { TO(a, i) = AT(x, i) * AT(y, i); TO(b, i) = AT(y, i) * AT(y, i); }
  return ffi::Error::Success();
}
ffi::Error push(In x, In y, In tx, In ty, Out a, Out b) {
  ROWS {
    TO(a, i) = AT(y, i) * AT(tx, i) + AT(x, i) * AT(ty, i);
    TO(b, i) = 2 * AT(y, i) * AT(ty, i);
  }
  return ffi::Error::Success();
}
ffi::Error pull(In x, In y, In wa, In wb, Out gx, Out gy) {
  ROWS {
    TO(gx, i) = AT(y, i) * AT(wa, i);
    TO(gy, i) = AT(x, i) * AT(wa, i) + 2 * AT(y, i) * AT(wb, i);
  }
  return ffi::Error::Success();
}
#define TWO ffi::Ffi::Bind().Arg<In>().Arg<In>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(Value, value, TWO.Ret<In>().Ret<In>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(Push, push, TWO.Arg<In>().Arg<In>().Ret<In>().Ret<In>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(Pull, pull, TWO.Arg<In>().Arg<In>().Ret<In>().Ret<In>());
"""


def test_attention_keeps_no_more_than_custom_vjp():
    scale = np.float32(0.25)

    def fwd(q, k, v):
        scores = q @ k.T * scale
        log = jax.nn.logsumexp(scores, -1)
        out = jnp.exp(scores - log[:, None]) @ v
        return out, (q, k, v, out, log)

    def bwd(kept, g):
        q, k, v, out, log = kept
        p = jnp.exp(q @ k.T * scale - log[:, None])
        slope = p * (g @ v.T - (g * out).sum(-1, keepdims=True)) * scale
        return slope @ k, slope.T @ q, p.T @ g

    value = lambda q, k, v: fwd(q, k, v)[0]
    ours, peer = tj.op("test-judges.attention.v1")(value), jax.custom_vjp(value)
    ours.defvjp(fwd, bwd), peer.defvjp(fwd, bwd)
    args = np.random.default_rng(0).normal(size=(3, 512, 16)).astype("float32")
    held = [sum(a.nbytes for a in jax.tree.leaves(jax.vjp(f, *args)[1])) for f in (ours, peer)]
    print(f"attention, n = 512: {held[0] / 1024} KiB, jax.custom_vjp {held[1] / 1024} KiB")
    assert held[0] <= 1.1 * held[1]


@pytest.mark.filterwarnings("ignore")
def test_training_with_equinox_and_optax():
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    size = jax.custom_vjp(lambda x: jnp.abs(x))
    size.defvjp(lambda x: (jnp.abs(x), x), lambda x, g: (jnp.sign(x) * g,))
    size = tj.op("test-judges.size.v1")(size)
    model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (64, 2))
    adam = optax.adam(1e-2)
    state, losses = adam.init(eqx.filter(model, eqx.is_array)), []

    @eqx.filter_jit
    def step(model, state):
        loss = lambda model: size(jax.vmap(model)(x)[:, 0] - x.sum(1)).mean()
        value, slope = eqx.filter_value_and_grad(loss)(model)
        change, state = adam.update(slope, state)
        return eqx.apply_updates(model, change), state, value

    with jax.numpy_dtype_promotion("standard"):
        for _ in range(60):
            model, state, value = step(model, state)
            losses.append(float(value))
    assert losses[-1] < losses[0] / 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["nufftax", "jax_finufft"])
def test_conjugate_gradients_over_a_nonuniform_fft(package):
    """nufftax has a custom_vjp, which has no transpose. jax_finufft has primitives around C++, whose
    vmap fails on JAX 0.10.2 and 0.12.0.1: version 1.3.1 uses a name that JAX has removed.
    """
    library = pytest.importorskip(package)
    points = jnp.linspace(-3, 3, 20).astype("float32")

    def transforms(sign):
        if package == "jax_finufft":
            one = lambda y: library.nufft1(8, y, points, eps=1e-6, iflag=sign)
            return one, lambda c: library.nufft2(c, points, eps=1e-6, iflag=sign)
        one = lambda y: library.nufft1d1(points, y, 8, eps=1e-6, isign=sign)
        return one, lambda c: library.nufft1d2(points, c, eps=1e-6, isign=sign)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        ops = {}
        for sign in (1, -1):
            one, two = transforms(sign)
            name = f"{package}_{'plus' if sign > 0 else 'minus'}"
            ops[1, sign] = tj.op(f"test-judges.{name}_one.v1")(one)
            ops[2, sign] = tj.op(f"test-judges.{name}_two.v1")(two)
            ops[1, sign].def_transpose(lambda c, y, sign=sign: (ops[2, sign](c),))
            ops[2, sign].def_transpose(lambda y, c, sign=sign: (ops[1, sign](y),))
            if package == "jax_finufft":  # both take leading axes
                ops[1, sign].def_vmap(lambda size, batched, y, one=one: (one(y), True))
                ops[2, sign].def_vmap(lambda size, batched, c, two=two: (two(c), True))
        forward, adjoint = ops[2, -1], ops[1, 1]
        c = jnp.ones(8, "complex64")
        matrix = np.asarray(jax.vmap(forward)(jnp.eye(8, dtype="complex64"))).T
        waves = np.exp(-1j * np.outer(points, np.arange(-4, 4)))
        np.testing.assert_allclose(matrix, waves, atol=1e-4)
        y = np.asarray(forward(c))
        np.testing.assert_allclose(y, matrix @ c, atol=1e-4)
        (back,) = jax.linear_transpose(forward, c)(jnp.asarray(y))
        np.testing.assert_allclose(back, matrix.T @ y, atol=1e-3)
        np.testing.assert_allclose(jax.jvp(forward, (c,), (2 * c,))[1], 2 * y, atol=1e-4)
        normal = lambda v: adjoint(forward(v)) + v
        solve = lambda b: jax.scipy.sparse.linalg.cg(normal, b, tol=1e-6)[0]
        dense = matrix.conj().T @ matrix + np.eye(8)
        np.testing.assert_allclose(solve(c), np.linalg.solve(dense, c), atol=1e-4)
        both = jax.vmap(solve)(jnp.stack([c, 2 * c]))
        np.testing.assert_allclose(both[1], 2 * solve(c), atol=1e-4)
        slope = jax.grad(lambda b: solve(b).real.sum())(c)
        want = np.linalg.solve(dense.T, np.ones(8))
        np.testing.assert_allclose(slope, want, atol=1e-4)


def test_jax_16049_a_hessian_of_a_custom_vjp():
    """JAX issue 16049, "Cannot compute Hessian of `custom_vjp`"."""

    @jax.custom_vjp
    def f(x, y):
        return jnp.sin(x) * y

    def f_fwd(x, y):
        return f(x, y), (jnp.cos(x), jnp.sin(x), y)

    def f_bwd(res, g):
        cos_x, sin_x, y = res
        return cos_x * g * y, sin_x * g

    f.defvjp(f_fwd, f_bwd)
    with pytest.raises(TypeError, match="jvp"):
        jax.hessian(f)(1.0, 2.0)
    op = tj.op("test-judges.jax_16049.v1")(f)
    both = (0, 1)
    for run in (lambda f: f, jax.jit):
        chex.assert_trees_all_close(run(jax.hessian(op))(1.0, 2.0), -2 * np.sin(1.0), rtol=1e-12)
        chex.assert_trees_all_close(
            run(jax.hessian(op, both))(1.0, 2.0),
            ((-2 * np.sin(1.0), np.cos(1.0)), (np.cos(1.0), 0.0)),
            rtol=1e-12,
        )
    chex.assert_trees_all_close(jax.jvp(op, (1.0, 2.0), (0.5, 3.0))[1], np.cos(1) + 3 * np.sin(1))
    jax.test_util.check_grads(op, (1.0, 2.0), 3, ["fwd", "rev"])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Calls of three C++ functions: the model, its Jacobian and the adjoint of the Jacobian."""
    compiler = shutil.which("c++")
    if compiler is None or jax.default_backend() != "cpu":
        pytest.skip("needs a C++ compiler, and the CPU as JAX's platform")
    file = tmp_path_factory.mktemp("ffi") / "model.cc"
    file.write_text(SOURCE)
    flags = ["-std=c++17", "-O0", "-w", "-shared", "-fPIC", "-I", jax.ffi.include_dir()]
    subprocess.run([compiler, *flags, file, "-o", file.with_suffix(".so")], check=True)
    library = ctypes.CDLL(str(file.with_suffix(".so")))

    def call(name):
        target = f"judges_{name.lower()}"
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(library[name]), platform="cpu")
        like = lambda x: [jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2
        return lambda x, *rest: tuple(
            jax.ffi.ffi_call(target, like(x), vmap_method="sequential")(x, *rest)
        )

    return [call(name) for name in ("Value", "Push", "Pull")]


def test_jax_27352_jacobian_and_adjoint_by_ffi(compiled):
    """JAX issue 27352, "FFI Custom JVP + VJP Support": metrics J^T N J of a model whose J and J^T
    are both foreign code. The model is (x y, y y), which JAXbind, named there, tests.
    """
    value, push, pull = compiled
    x, y, tx, ty, na, nb = np.random.default_rng(0).normal(size=(6, 4))

    def metric(f):
        _, (a, b) = jax.jvp(f, (x, y), (tx, ty))
        return jax.vjp(f, x, y)[1]((na * a, nb * b))

    forward = jax.custom_jvp(value)
    forward.defjvp(lambda primals, tangents: (forward(*primals), push(*primals, *tangents)))
    reverse = jax.custom_vjp(value)
    reverse.defvjp(lambda x, y: (reverse(x, y), (x, y)), lambda kept, w: pull(*kept, *w))
    with pytest.raises(ValueError, match="FFI call"):
        metric(forward)
    with pytest.raises(TypeError, match="jvp"):
        metric(reverse)

    def published(name, kernel):
        op = tj.op(f"test-judges.{name}.v1")(lambda *xs: None)
        op.def_infer(lambda x, *rest: (x, x))
        op.def_kernel("cpu")(kernel)
        return op

    model = published("jax_27352", value)
    jacobian, adjoint = published("jax_27352_push", push), published("jax_27352_pull", pull)
    for one, other in ((jacobian, adjoint), (adjoint, jacobian)):
        one.def_transpose(
            lambda w, x, y, *_, other=other: (None, None, *other(x, y, *w)), argnums=(2, 3)
        )
    model.defjvp(lambda primals, out, tangents: jacobian(*primals, *tangents))
    a, b = na * (y * tx + x * ty), nb * 2 * y * ty
    expected = (y * a, x * a + 2 * y * b)
    for run in (metric, jax.jit(metric, static_argnums=0)):
        chex.assert_trees_all_close(run(model), expected, rtol=1e-12)
    jax.test_util.check_grads(model, (x, y), 1, ["fwd", "rev"])
    rows, columns = jax.jacrev(model, (0, 1))(x, y), jax.jacfwd(model, (0, 1))(x, y)
    chex.assert_trees_all_close(rows, columns, rtol=1e-12)
    chex.assert_trees_all_close(rows[0], (np.diag(y), np.diag(x)), rtol=1e-12)
    compiled_text = jax.jit(lambda t: jax.jvp(model, (x, y), (t, ty))[1]).lower(tx).as_text()
    assert "judges_push" in compiled_text  # the foreign Jacobian, nothing derived


class WithOp(getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive):
    """A hijax primitive whose body and rule are those of a function op."""

    def __init__(self, f, of):
        self.in_avals, self.out_aval, self.params, self.f = (of,), of, {}, f
        super().__init__()

    def expand(self, x):
        return self.f(x)

    def vjp_fwd(self, nonzero, x):
        return self(x), x

    def vjp_bwd_retval(self, x, g):
        return jax.vjp(self.f, x)[1](g)


def test_the_way_back_to_custom_vjp_and_hijax():
    """Who expects a jax.custom_vjp or a hijax primitive gets one that calls the op."""
    f = tj.op("test-judges.way_back.v1")(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (3 * jnp.cos(x) * g,))  # 3: the rule is used
    x = np.float32([0.3, -1.2])
    wrapped = jax.custom_vjp(f)
    wrapped.defvjp(lambda x: (f(x), x), lambda x, g: jax.vjp(f, x)[1](g))
    for g in (wrapped, WithOp(f, jax.typeof(x))):
        np.testing.assert_allclose(jax.jit(g)(x), np.sin(x), rtol=1e-6)
        slope = jax.jit(jax.grad(lambda x, g=g: g(x).sum()))(x)
        np.testing.assert_allclose(slope, 3 * np.cos(x), rtol=1e-6)
