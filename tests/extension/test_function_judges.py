"""Functions as ops under code that nobody here wrote: JAX's issue 27352, which fails in plain JAX."""

import ctypes
import shutil
import subprocess

import chex
import jax
import jax.test_util
import numpy as np
import pytest

import tenferro_jax as tj

from ..helpers import ends_in

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
    ends_in(lambda: metric(forward), ValueError, "FFI call")
    ends_in(lambda: metric(reverse), TypeError, "jvp")

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
