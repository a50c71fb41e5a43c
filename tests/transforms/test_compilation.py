"""Eager calls, jit, disable_jit, ahead-of-time compilation, donation, and JAX's own checks; scan,
while, cond and switch; jax.checkpoint with save_families: how often an extension runs.
"""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.measure import canonical_hlo
from ext_tropical import TropicalEinsum, max_plus
from tenferro_jax.errors import ADRuleError
from tenferro_jax.extension import ExtensionOp, ExtensionRuleSet, apply
from tenferro_jax.extension.primitive import save_families
from tenferro_jax.extension.routes import extensions_in
from tenferro_jax.jax_seam import read_module

from ..extension_ops import ScaledSquare
from ..helpers import ends_in
from ..upgrades import is_on
from .matrix import agree, agree_numerically, sweep


@pytest.mark.clause("X8.10")
@sweep("eager")
def test_eager(case):
    agree(case(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X8.10")
@sweep("jit")
def test_jit(case):
    agree(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


def body(x):
    return jax.lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], jnp.tanh(x @ x.T) @ x)[1]


class Body(ExtensionOp):
    family_id = "tests.body.v1"

    def lower_to_standard_ops(self, x):
        return (body(x),)


Body.linearize = lambda self, xs, outs, ts: (jax.jvp(body, (xs[0],), (ts[0],))[1],)


@pytest.mark.clause("X13.8")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
        lambda f: lambda x: jax.vmap(f, in_axes=2, out_axes=2)(jnp.stack([x, 2 * x], 2)),
    ],
    ids=["value", "gradient", "vmap"],
)
def test_the_optimised_program_is_that_of_the_plain_function(transform):
    x = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
    ours, plain = (
        canonical_hlo(jax.jit(transform(f)).lower(x).compile().as_text())
        for f in (lambda x: apply(Body(), x)[0], body)
    )
    assert ours == plain


@sweep("disable_jit")
def test_disable_jit(case):
    with jax.disable_jit():
        agree(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X13.3")
@sweep("ahead of time")
def test_ahead_of_time(case):
    agree(jax.jit(case).lower(*case.inputs).compile()(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X13.3")
@sweep("donation")
def test_donated_inputs_are_overwritten_and_the_results_are_right(case):
    """Every input has an output of its own shape beside the op's: its buffer is reused while the op
    reads it.
    """
    arrays = [jnp.array(x) for x in case.inputs]
    outs, moved = jax.jit(
        lambda *xs: (case(*xs), [x + 1 for x in xs]), donate_argnums=case.argnums
    )(*arrays)
    agree(outs, case.oracle(*case.inputs))
    agree(moved, [x + 1 for x in case.inputs])
    assert all(x.is_deleted() for x in arrays)


def check_value_vmap_and_grad(case):
    """The three in one program."""
    batch = case.batch(2)
    differentiable = case.kind != "integer outputs"

    def program(xs, batch):
        return (
            case(*xs),
            jax.vmap(case)(*batch),
            jax.grad(case.scalar, case.argnums)(*xs) if differentiable else (),
        )

    value, mapped, gradients = jax.jit(program)(case.inputs, batch)
    agree(value, case.oracle(*case.inputs))
    agree(mapped, case.stacked(*batch))
    agree_numerically(gradients, case.gradients(*case.inputs) if differentiable else ())


@sweep("checking_leaks")
def test_no_tracer_leaks(case):
    with jax.checking_leaks():
        check_value_vmap_and_grad(case)


@sweep("enable_checks")
def test_jax_finds_nothing_to_complain_about(case):
    with jax.enable_checks(True):
        check_value_vmap_and_grad(case)


def count(fn, *args):
    return len(list(extensions_in(jax.make_jaxpr(fn)(*args))))


@pytest.mark.clause("X13.3")
@sweep("checkpoint")
def test_grad_of_checkpoint(case):
    got = jax.jit(jax.grad(jax.checkpoint(case.scalar), case.argnums))(*case.inputs)
    agree_numerically(got, case.gradients(*case.inputs))


NAMES_COME_TOO_LATE = pytest.mark.skipif(
    is_on("jax_remat3"),
    reason="JAX then asks the policy before AD rules are applied, in which ops name their results",
)


@NAMES_COME_TOO_LATE
@pytest.mark.clause("X13.6")
@sweep("checkpoint with save_families")
def test_a_saved_family_runs_once_less(case):
    def grad(policy):
        return jax.grad(jax.checkpoint(case.scalar, policy=policy), case.argnums)

    saved, plain = grad(save_families(case.op.family_id)), grad(None)
    agree_numerically(jax.jit(saved)(*case.inputs), case.gradients(*case.inputs))
    assert count(plain, *case.inputs) - count(saved, *case.inputs) == 1


@NAMES_COME_TOO_LATE
@pytest.mark.clause("X13.6", "X10.12")
def test_a_value_that_is_differentiated_by_another_form_is_saved_too():
    """The einsum of values alone is differentiated by the one with winners: that is what
    is saved.
    """

    def call(x):
        return apply(TropicalEinsum(max_plus, "ij,jk->ik"), x, x)[0]

    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def loss(policy):
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(call, policy=policy)(x))))

    saved, plain = loss(save_families(TropicalEinsum.family_id)), loss(None)
    got, want = jax.jit(lambda x: (saved(x), plain(x)))(x)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert (count(saved, x), count(plain, x)) == (1, 2)


def halves(xs, k):
    """The inputs scaled by a traced number: what makes each turn of a loop another call."""
    return [x * (1 + k / 2) for x in xs]


@pytest.mark.clause("X13.3")
@sweep("scan")
def test_scan(case):
    batch = case.batch(3)
    _, got = jax.lax.scan(lambda carry, xs: (carry, case(*xs)), 0, tuple(map(jnp.asarray, batch)))
    agree(got, case.stacked(*batch))


@pytest.mark.clause("X13.3")
@sweep("grad of scan")
def test_grad_of_scan(case):
    def loop(*xs):
        start = jax.tree.map(jnp.zeros_like, jax.eval_shape(case.scalar, *xs))
        return jax.lax.scan(
            lambda total, k: (total + case.scalar(*halves(xs, k)), None),
            start,
            jnp.array([0.0, 1.0]),
        )[0]

    want = [
        g + 1.5 * h
        for g, h in zip(case.gradients(*case.inputs), case.gradients(*halves(case.inputs, 1)))
    ]
    agree_numerically(jax.jit(jax.grad(loop, case.argnums))(*case.inputs), want)


def looped(case):
    """The sum of the outputs over turns 0 and 1 of a loop whose end is not known when it
    is traced.
    """

    def loop(count, *xs):
        def body(state):
            k, sums = state
            return k + 1, [s + out for s, out in zip(sums, case(*halves(xs, k)))]

        start = jax.tree.map(jnp.zeros_like, list(jax.eval_shape(case, *xs)))
        return jax.lax.while_loop(lambda state: state[0] < count, body, (0.0, start))[1]

    return loop


@pytest.mark.clause("X13.3")
@sweep("while")
def test_while(case):
    want = [a + b for a, b in zip(case.oracle(*case.inputs), case.oracle(*halves(case.inputs, 1)))]
    agree(jax.jit(looped(case))(2.0, *case.inputs), want)


@pytest.mark.clause("X13.3")
@sweep("jvp of while")
def test_jvp_of_while(case):
    def ends(sign):
        moved = [x + sign * 1e-6 * np.cos(x) for x in case.inputs]
        return [a + b for a, b in zip(case.oracle(*moved), case.oracle(*halves(moved, 1)))]

    _, got = jax.jvp(
        lambda *xs: looped(case)(2.0, *xs), case.inputs, tuple(np.cos(x) for x in case.inputs)
    )
    for g, ahead, behind in zip(got, ends(1), ends(-1)):
        if ahead.dtype.kind == "f":
            agree_numerically([g], [(ahead - behind) / 2e-6])
        else:
            assert g.dtype == jax.dtypes.float0


@pytest.mark.cpu
@pytest.mark.few(6)
@sweep("grad of while")
def test_grad_of_while(case):
    jax.grad(lambda *xs: looped(case)(2.0, *xs)[0].sum(), case.argnums)(*case.inputs)


@pytest.mark.clause("X13.3")
@sweep("cond")
def test_cond(case):
    branch = jax.jit(
        lambda flag, *xs: jax.lax.cond(flag, case, lambda *xs: case(*halves(xs, 1)), *xs)
    )
    agree(branch(True, *case.inputs), case.oracle(*case.inputs))
    agree(branch(False, *case.inputs), case.oracle(*halves(case.inputs, 1)))


@pytest.mark.clause("X13.3")
@sweep("switch")
def test_switch(case):
    branches = [lambda *xs, k=k: case(*halves(xs, k)) for k in range(3)]
    chosen = jax.jit(lambda k, *xs: jax.lax.switch(k, branches, *xs))
    for k in range(3):
        agree(chosen(k, *case.inputs), case.oracle(*halves(case.inputs, k)))


@pytest.mark.clause("X13.3")
@sweep("grad of cond, of switch")
def test_grad_of_cond_and_switch(case):
    branches = [lambda *xs, k=k: case.scalar(*halves(xs, k)) for k in range(2)]
    grad = jax.jit(
        jax.grad(lambda *xs_k: jax.lax.switch(xs_k[-1], branches, *xs_k[:-1]), case.argnums)
    )
    for k in range(2):
        want = [(1 + k / 2) * g for g in case.gradients(*halves(case.inputs, k))]
        agree_numerically(grad(*case.inputs, k), want)
        cond = jax.grad(lambda *xs: jax.lax.cond(xs[-1], *branches, *xs[:-1]), case.argnums)
        if k == 0:
            agree_numerically(cond(*case.inputs, True), want)


# --- exports --------------------------------------------------------------------------------------


def reread(exported, **how):
    """The exported program as another process would get it."""
    return jax.export.deserialize(bytearray(exported.serialize(**how)))


@pytest.mark.clause("X13.7")
@sweep("export")
def test_static_sizes(case):
    back = reread(jax.export.export(jax.jit(case))(*case.inputs))
    agree(back.call(*case.inputs), case.oracle(*case.inputs))
    (tag,) = read_module(back.mlir_module_serialized).extensions
    assert tag["family_id"] == case.op.family_id


def check_symbolic_batch(case, platforms):
    (b,) = jax.export.symbolic_shape("b")
    specs = [jax.ShapeDtypeStruct((b, *x.shape), x.dtype) for x in case.inputs]
    back = reread(jax.export.export(jax.jit(jax.vmap(case)), platforms=platforms)(*specs))
    for size in (1, 3):
        batch = case.batch(size)
        agree(back.call(*batch), case.stacked(*batch))
    (tag,) = read_module(back.mlir_module_serialized).extensions
    assert tag["family_id"] == case.op.family_id


@pytest.mark.cpu
@pytest.mark.clause("X13.7")
@sweep("export with symbolic sizes")
def test_symbolic_batch(case):
    check_symbolic_batch(case, ("cpu",))


@pytest.mark.clause("X13.7")
@sweep("export for several platforms")
def test_symbolic_batch_for_several_platforms(case):
    check_symbolic_batch(case, ("cpu", "cuda", "tpu"))


@pytest.mark.clause("X13.7")
@sweep("export with vjp_order=1")
def test_exported_derivative(case):
    back = reread(jax.export.export(jax.jit(case.scalar))(*case.inputs), vjp_order=1)
    agree_numerically(jax.grad(back.call, case.argnums)(*case.inputs), case.gradients(*case.inputs))


@pytest.mark.clause("X10.2")
def test_exporting_a_derivative_without_a_rule_names_the_family():
    exported = jax.export.export(
        jax.jit(lambda x: apply(ScaledSquare(), x, rules=ExtensionRuleSet())[0])
    )(jnp.ones(3))
    ends_in(
        lambda: exported.serialize(vjp_order=1),
        ADRuleError,
        r"jvp.*test-package\.scaled_square\.v1",
    )
