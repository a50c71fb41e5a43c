# ruff: noqa: B023, D103, E731, PLC0415
"""`both_modes` gives forward mode to functions of public packages that call a jax.custom_vjp.

`python benchmarks/check_both_modes.py` prints the table of docs/guides/both_modes.md for the
packages that are installed; with words, the functions whose names have one of them. Judges are
central differences: of the value, and of its gradient for the second derivative. Whether forward
mode is that of the rule follows from <jvp, w> = <v, vjp>.
"""

import contextlib
import importlib.metadata
import io
import re
import signal
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import both_modes

CASES = {}


def case(package, name):
    """Adds a function that returns (the function, its array)."""
    return lambda make: CASES.setdefault((package, name), make)


X = np.array([0.3, 0.7, 1.1])


def _matrix(x):
    return jnp.diag(x) + 0.1 * jnp.outer(x, x**2)


@case("jax", "experimental.ode.odeint")
def _():
    from jax.experimental.ode import odeint

    return lambda x: odeint(lambda y, t: -y * jnp.cos(t) * x, x, jnp.array([0.0, 1.0]))[-1], X


@case("optax", "scale_gradient")
def _():
    import optax

    return lambda x: optax.scale_gradient(jnp.sin(x), 0.5), X


@case("jax_md", "rigid_body.quaternion_rotate")
def _():
    from jax_md import rigid_body

    return lambda x: rigid_body._quaternion_rotate(
        jnp.append(x, 0.4) / jnp.linalg.norm(jnp.append(x, 0.4)), jnp.cos(x)
    ), X


@case("ott-jax", "costs.RegTICost.h_legendre")
def _():
    from ott.geometry import costs, regularizers

    cost = costs.RegTICost(regularizers.L1())
    return lambda x: cost.h_legendre(3 * x), X


@case("ott-jax", "math.matrix_square_root.sqrtm")
def _():
    from ott.math import matrix_square_root

    return lambda x: matrix_square_root.sqrtm(jnp.diag(x) + 0.1 * jnp.outer(x, x), 3)[0], X


@case("ott-jax", "math.matrix_square_root.sqrtm_only")
def _():
    from ott.math import matrix_square_root

    return lambda x: matrix_square_root.sqrtm_only(jnp.diag(x) + 0.1 * jnp.outer(x, x), 3), X


@case("ott-jax", "linear.solve, implicit")
def _():
    from ott.geometry import pointcloud
    from ott.solvers import linear

    y = np.array([[0.1], [0.9], [1.4]])
    return (
        lambda x: (
            linear.solve(
                pointcloud.PointCloud(x[:, None], y, epsilon=0.5), threshold=1e-11
            ).reg_ot_cost
        ),
        X,
    )


@case("ott-jax", "linear.solve, unrolled")
def _():
    from ott.geometry import pointcloud
    from ott.solvers import linear

    y = np.array([[0.1], [0.9], [1.4]])
    return (
        lambda x: (
            linear.solve(
                pointcloud.PointCloud(x[:, None], y, epsilon=0.5), implicit_diff=None
            ).reg_ot_cost
        ),
        X,
    )


@case("spyx", "axn.tanh")
def _():
    from spyx import axn

    return lambda x: axn.tanh()(x - 0.5) * x, X


@case("spyx", "experimental.compress.packed_spike_dense")
def _():
    from spyx.experimental.compress import packed_spike_dense

    return lambda x: packed_spike_dense(jnp.array([[1.0, 0.0, 1.0]]), jnp.outer(x, jnp.sin(x))), X


@case("flax", "linen.fp8_ops.in_qdq")
def _():
    from flax.linen import fp8_ops

    return lambda x: fp8_ops.in_qdq(
        jnp.float32, jnp.float8_e4m3fn, jnp.sin(x).astype(jnp.float32), jnp.ones((1,)), jnp.zeros(4)
    ), X


def _qp(solve):
    return lambda x: solve(
        jnp.diag(x), jnp.sin(x), jnp.ones((1, 3)), jnp.ones(1), -jnp.eye(3), jnp.zeros(3),
        solver_tol=1e-12, target_kappa=1e-3,
    ), X  # fmt: skip


@case("qpax", "explicit.solve_qp_primal")
def _():
    from qpax.explicit import diff_qp

    return _qp(diff_qp.solve_qp_primal)


@case("qpax", "implicit.solve_qp_primal")
def _():
    from qpax.implicit import diff_qp

    return _qp(diff_qp.solve_qp_primal)


@case("jaxopt", "GradientDescent, implicit")
def _():
    import jaxopt

    return (
        lambda x: (
            jaxopt.GradientDescent(
                lambda w, x: ((w - jnp.sin(x)) ** 2 * x).sum() + (w**4).sum() / 4,
                maxiter=500,
                tol=1e-10,
            )
            .run(jnp.zeros(3), x)
            .params
        ),
        X,
    )


@case("jaxopt", "FixedPointIteration")
def _():
    import jaxopt

    return (
        lambda x: (
            jaxopt.FixedPointIteration(lambda w, x: jnp.sin(w * x / 2) + x, maxiter=500, tol=1e-12)
            .run(jnp.zeros(3), x)
            .params
        ),
        X,
    )


@case("jaxopt", "LBFGS, implicit")
def _():
    import jaxopt

    return (
        lambda x: (
            jaxopt.LBFGS(
                lambda w, x: ((w - jnp.sin(x)) ** 2 * x).sum() + (w**4).sum() / 4,
                maxiter=100,
                tol=1e-10,
            )
            .run(jnp.zeros(3), x)
            .params
        ),
        X,
    )


def _ode(x, **kwargs):
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -y * jnp.sin(t) * args)
    return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, x, args=x, **kwargs).ys[-1]


@case("diffrax", "diffeqsolve, default adjoint")
def _():
    return _ode, X


@case("diffrax", "diffeqsolve, BacksolveAdjoint")
def _():
    import diffrax

    return lambda x: _ode(x, adjoint=diffrax.BacksolveAdjoint()), X


@case("equinox", "internal.while_loop, checkpointed")
def _():
    import equinox.internal as eqxi

    return lambda x: eqxi.while_loop(
        lambda c: c[0] < 3,
        lambda c: (c[0] + 1, jnp.sin(c[1]) + x),
        (0, x),
        max_steps=8,
        kind="checkpointed",
    )[1], X


@case("equinox", "debug.backward_nan")
def _():
    import equinox as eqx

    return lambda x: eqx.debug.backward_nan(jnp.sin(x), terminate=False), X


@case("optimistix", "fixed_point, RecursiveCheckpointAdjoint")
def _():
    import optimistix as optx

    return lambda x: optx.fixed_point(
        lambda w, x: jnp.sin(w * x / 2) + x,
        optx.FixedPointIteration(rtol=1e-10, atol=1e-12),
        jnp.zeros(3), args=x, adjoint=optx.RecursiveCheckpointAdjoint(),
    ).value, X  # fmt: skip


@case("keras", "quantizers.fake_quant_with_min_max_vars")
def _():
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    return lambda x: keras.quantizers.fake_quant_with_min_max_vars(jnp.sin(x), 0.0, 0.8), X


@case("pennylane", "QNode, parameter-shift")
def _():
    import pennylane as qml

    device = qml.device("default.qubit", wires=1)

    @qml.qnode(device, interface="jax", diff_method="parameter-shift")
    def circuit(x):
        qml.RX(x[0], wires=0)
        qml.RY(x[1], wires=0)
        return qml.expval(qml.PauliZ(0))

    return lambda x: circuit(x) * x[2], X


@case("brainstate", "nn.Embedding(scale_grad_by_freq=True)")
def _():
    from brainstate.nn import _embedding

    lookup = _embedding._embedding_lookup_fn(None, True)
    return lambda x: lookup(x[:, None] * jnp.ones((3, 2)), jnp.array([0, 2, 2])), X


@case("matfree", "decomp.tridiag_sym")
def _():
    from matfree import decomp

    def f(x):
        run = decomp.tridiag_sym(2, reortho="full", materialize=True)
        made = run(lambda v, x: (jnp.diag(x) + 0.1 * jnp.outer(x, x)) @ v, jnp.ones(3), x)
        return made.J_small

    return f, X


@case("matfree", "decomp.hessenberg")
def _():
    from matfree import decomp

    def f(x):
        run = decomp.hessenberg(2, reortho="full")
        return run(lambda v, x: _matrix(x) @ v, jnp.ones(3), x).J_small

    return f, X


@case("matfree", "lstsq.lsmr")
def _():
    from matfree import lstsq

    def f(x):
        solve = lstsq.lsmr(atol=1e-12, btol=1e-12, maxiter=50)
        return solve(lambda v, x: v @ _matrix(x), jnp.sin(x), x)[0]

    return f, X


@case("fmmax", "eig.eig")
def _():
    from fmmax import eig

    return lambda x: jnp.abs(eig.eig(_matrix(x).astype(jnp.complex128))[0]).sum(), X


def _tensorcircuit(name):
    from tensorcircuit.backends import jax_ops

    return getattr(jax_ops, name)


@case("tensorcircuit-ng", "backend qr")
def _():
    return lambda x: _tensorcircuit("adaware_qr")(_matrix(x))[1], X


@case("tensorcircuit-ng", "backend eigh")
def _():
    return lambda x: _tensorcircuit("adaware_eigh")(_matrix(x) + _matrix(x).T)[0], X


@case("pennylane", "math.fidelity")
def _():
    from pennylane import math

    def state(x):
        return (
            jnp.eye(2)
            + x[0] * jnp.array([[0, 1], [1, 0]])
            + 0.3 * x[1] * jnp.diag(jnp.array([1, -1]))
        ) / 2

    return lambda x: math.fidelity(state(x) + 0j, state(x[::-1] / 2) + 0j), X


@case("aqtp", "jax.v2 dot_general, int8")
def _():
    from aqt.jax.v2 import config

    product = config.dot_general_make(8, 8)
    axes = (((1,), (0,)), ((), ()))
    return lambda x: product(_matrix(x).astype(jnp.float32), jnp.ones((3, 2), jnp.float32), axes), X


@case("qwix", "dot_general_qt, int8")
def _():
    from qwix._src.core import dot_general_qt as qt

    config = qt.DotGeneralQtConfig(lhs_qtype=jnp.int8, rhs_qtype=jnp.int8)
    axes = (((1,), (0,)), ((), ()))
    return lambda x: qt.dot_general_qt(
        _matrix(x).astype(jnp.float32), jnp.ones((3, 2), jnp.float32), axes, config
    ), X


@case("optimistix", "least_squares, RecursiveCheckpointAdjoint")
def _():
    import optimistix as optx

    return lambda x: optx.least_squares(
        lambda w, x: w**3 + w - jnp.sin(x),
        optx.LevenbergMarquardt(rtol=1e-10, atol=1e-12),
        jnp.zeros(3), args=x, adjoint=optx.RecursiveCheckpointAdjoint(),
    ).value, X  # fmt: skip


@case("diffrax", "diffeqsolve to an event")
def _():
    return lambda x: _ode(x, saveat=__import__("diffrax").SaveAt(ts=jnp.array([0.5, 1.0]))), X


@case("jax_md", "rigid_body, energy of bonds")
def _():
    from jax_md import rigid_body

    def f(x):
        q = rigid_body.Quaternion(jnp.append(x, 0.4) / jnp.linalg.norm(jnp.append(x, 0.4)))
        return rigid_body.quaternion_rotate(q, jnp.cos(x) ** 2)

    return f, X


@case("ott-jax", "soft_sort.ranks")
def _():
    from ott.tools import soft_sort

    return lambda x: soft_sort.ranks(x, epsilon=0.5), X


@case("ott-jax", "gaussian Bures distance")
def _():
    from ott.geometry import costs

    a = lambda m: jnp.concatenate([jnp.ones(3), m.reshape(-1)])
    return lambda x: costs.Bures(3)(
        a(_matrix(x) + _matrix(x).T + jnp.eye(3)), a(jnp.eye(3) + jnp.outer(x, x))
    ), X


@case("jaxopt", "ProjectedGradient on a simplex")
def _():
    import jaxopt

    return (
        lambda x: (
            jaxopt.ProjectedGradient(
                lambda w, x: ((w - jnp.sin(x)) ** 2).sum(),
                jaxopt.projection.projection_simplex,
                maxiter=300,
                tol=1e-10,
            )
            .run(jnp.ones(3) / 3, 1.0, x)
            .params
        ),
        X,
    )


@case("jaxopt", "AndersonAcceleration")
def _():
    import jaxopt

    return (
        lambda x: (
            jaxopt.AndersonAcceleration(lambda w, x: jnp.sin(w * x / 2) + x, maxiter=100, tol=1e-12)
            .run(jnp.zeros(3), x)
            .params
        ),
        X,
    )


@case("jaxopt", "EqualityConstrainedQP")
def _():
    import jaxopt

    return (
        lambda x: (
            jaxopt.EqualityConstrainedQP()
            .run(params_obj=(jnp.diag(x), jnp.sin(x)), params_eq=(jnp.ones((1, 3)), jnp.ones(1)))
            .params.primal
        ),
        X,
    )


def judged(f, x):
    """(before, forward mode, second derivative, reverse mode is the same) of a function."""
    x = jnp.asarray(x)
    keys = np.random.default_rng(0)
    v = jnp.asarray(keys.normal(size=x.shape), x.dtype)
    w = jnp.asarray(keys.normal(size=np.shape(f(x))))

    def loss(f):
        return lambda x: (f(x) * w.astype(f(x).dtype)).sum()

    def difference(fn):
        h = 1e-4 if np.asarray(f(x)).dtype == np.float64 else 1e-2
        return (fn(x + h * v) - fn(x - h * v)) / (2 * h)

    def close(a, b):
        near = 1e-5 if np.asarray(f(x)).dtype == np.float64 else 3e-2
        return bool(np.allclose(a, b, rtol=near, atol=near))

    def outcome(fn):
        try:
            return fn(), ""
        except Exception as error:
            return None, short(error)

    _, before = outcome(lambda: jax.jvp(f, (x,), (v,)))
    gradient = jax.grad(loss(f))(x)
    compiled, uncompiled = outcome(lambda: jax.jit(jax.grad(loss(f)))(x))
    right = close(gradient @ v, difference(loss(f)))
    refused = ""
    for opaque in ("refuse", "differentiate"):
        g = both_modes(f, opaque=opaque)
        again = jax.grad(loss(g))
        same = (
            bool(np.allclose(again(x), gradient)) and "to rounding, eager"
            if uncompiled
            else bool(np.array_equal(jax.jit(again)(x), compiled, equal_nan=True)) and "to the bit"
        )
        made, refusal = outcome(lambda: jax.jvp(loss(g), (x,), (v,))[1])
        if made is None:
            refused = refused or refusal
            continue
        derivative = difference(loss(f))
        if close(made, gradient @ v):
            said = "right" if right else "of the rule, which is not the derivative"
        else:
            said = (
                "right"
                if close(made, derivative)
                else f"WRONG: {made}, by differences {derivative}"
            )
        twice, stopped = outcome(lambda: jax.jvp(jax.grad(loss(g)), (x,), (v,))[1])
        if twice is not None:
            wanted = difference(jax.grad(loss(f)))
            stopped = "right" if close(twice, wanted) else f"{twice}, by differences {wanted}"
            own, _ = outcome(lambda: jax.jacrev(jax.grad(loss(f)))(x) @ v)
            if stopped != "right" and own is not None and close(twice, own):
                stopped = "as jax.grad twice, which is not the derivative"
        return before, refused and cause(refused), said, stopped, same
    return before, cause(refused), refusal, "-", same


def cause(refusal):
    """What stopped the transpose, in few words."""
    found = re.search(r"cannot transpose: (.*?)(; needed|$)", refusal)
    return found[1][:90] if found else refusal[:90]


def short(error):
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]


def main(names):
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    print(
        f"JAX {jax.__version__}: package, version, function, before, refused for, forward, second, "
        "reverse"
    )
    for (package, name), make in CASES.items():
        if names and not any(n in f"{package} {name}" for n in names):
            continue
        try:
            version = importlib.metadata.version(package)
            signal.alarm(100)
            with contextlib.redirect_stdout(io.StringIO()):
                before, *found = judged(*make())
        except Exception as error:
            print(f"{package} {name}: not run, {short(error)}", flush=True)
            continue
        before = "custom_vjp refuses jvp" if "custom_vjp" in before else before
        print("|", " | ".join([package, version, name, before, *map(str, found)]), "|", flush=True)


def late(*_):
    raise TimeoutError("100 s")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, late)
    main(sys.argv[1:])
