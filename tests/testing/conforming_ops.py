"""Ops of kinds that the others lack: an integer input, complex numbers that are not holomorphic, a
lowering that declines.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    LinearInput,
    apply,
)


class Rows(ExtensionOp):
    """Rows of a matrix by number: linear in the matrix, with its own transpose."""

    family_id = "conforming.rows.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, i):
        return (x[i],)


class RowsRule(ExtensionAdRule):
    family_id = Rows.family_id

    def linearize(self, op, primals, outputs, tangents):
        return apply(op, tangents[0], primals[1])

    def transpose_rule(self, op, cotangents, inputs):
        zeros = jnp.zeros(inputs[0].shape, cotangents[0].dtype)
        return zeros.at[inputs[1]].add(cotangents[0]), None


class SquareAndModulus(ExtensionOp):
    """z**2 and |z|**2: the second is real, and linear over the reals alone."""

    family_id = "conforming.square_and_modulus.v1"
    output_count = 2

    def lower_to_standard_ops(self, z):
        return (z * z, jnp.real(z * jnp.conj(z)))


class SquareAndModulusRule(ExtensionAdRule):
    family_id = SquareAndModulus.family_id

    def linearize(self, op, primals, outputs, tangents):
        return jax.jvp(lambda z: (z * z, jnp.real(z * jnp.conj(z))), primals, tangents)[1]


class DeclinesWide(ExtensionOp):
    """Twice the input: a lowering for float32, the host for all else."""

    family_id = "conforming.declines_wide.v1"

    def infer_output_meta(self, inputs):
        return [inputs[0]]

    def lower_to_standard_ops(self, x):
        return (x + x,) if x.dtype == np.float32 else None

    def eager_execute(self, x):
        return (x + x,)


class ToSingle(ExtensionOp):
    """A cast to float32."""

    family_id = "conforming.to_single.v1"

    def lower_to_standard_ops(self, x):
        return (x.astype("float32"),)


class ToSingleRule(ExtensionAdRule):
    family_id = ToSingle.family_id

    def linearize(self, op, primals, outputs, tangents):
        return (tangents[0].astype("float32"),)


class Root(ExtensionOp):
    """The square root, NaN below zero."""

    family_id = "conforming.root.v1"

    def lower_to_standard_ops(self, x):
        return (jnp.sqrt(x),)


class RootRule(ExtensionAdRule):
    family_id = Root.family_id

    def linearize(self, op, primals, outputs, tangents):
        return (tangents[0] / (outputs[0] + outputs[0]),)


class RowsOnHost(ExtensionOp):
    """Rows of a matrix by number, on the host, which raises for numbers out of range."""

    family_id = "conforming.rows_on_host.v1"
    input_count = 2

    def infer_output_meta(self, inputs):
        return [(inputs[0].dtype, (*inputs[1].shape, *inputs[0].shape[1:]))]

    def eager_execute(self, x, i):
        return (x[i],)


class Entropy(ExtensionOp):
    """Of a distribution: values that do not add up to one are refused."""

    family_id = "conforming.entropy.v1"

    def infer_output_meta(self, inputs):
        return [(inputs[0].dtype, ())]

    def eager_execute(self, p):
        if not abs(p.sum(dtype=np.float64) - 1) < 1e-3:
            raise ValueError(f"probabilities that add up to {p.sum()}")
        return (np.asarray(-(p * np.log(p)).sum(), p.dtype),)


class EntropyRule(ExtensionAdRule):
    family_id = Entropy.family_id

    def linearize(self, op, primals, outputs, tangents):
        return (-((jnp.log(primals[0]) + jnp.ones_like(primals[0])) * tangents[0]).sum(),)


class Quotient(ExtensionOp):
    """y / x: linear in y alone, and the rule raises where it is asked for the other transpose."""

    family_id = "conforming.quotient.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, y):
        return (jax.lax.div(y, x),)


class QuotientRule(ExtensionAdRule):
    family_id = Quotient.family_id

    def linearize(self, op, primals, outputs, tangents):
        x, (tx, ty) = primals[0], tangents
        terms = [] if ty is None else [apply(op, x, ty)[0]]
        if tx is not None:
            terms.append(-outputs[0] * tx / x)
        return (sum(terms[1:], terms[0]),)

    def transpose_rule(self, op, cotangents, inputs):
        if isinstance(inputs[0], LinearInput):
            raise NotImplementedError("not linear in the divisor")
        return (None, apply(op, inputs[0], cotangents[0])[0])


class Nothing(ExtensionOp):
    """No outputs."""

    family_id = "conforming.nothing.v1"
    output_count = 0

    def lower_to_standard_ops(self, x):
        return ()


class Inverse(ExtensionOp):
    """jax.numpy.linalg.inv: JAX does not place its batches on an explicit mesh."""

    family_id = "conforming.inverse.v1"

    def lower_to_standard_ops(self, x):
        return (jnp.linalg.inv(x),)


class Fourier(ExtensionOp):
    """jax.numpy.fft.fft: JAX does not export it for symbolic sizes."""

    family_id = "conforming.fourier.v1"

    def lower_to_standard_ops(self, x):
        return (jnp.fft.fft(x),)


class Backwards(ExtensionOp):
    """An input backwards; its rule has a transpose alone."""

    family_id = "conforming.backwards.v1"

    def lower_to_standard_ops(self, x):
        return (x[::-1],)


class BackwardsRule(ExtensionAdRule):
    family_id = Backwards.family_id

    def transpose_rule(self, op, cotangents, inputs):
        return apply(op, cotangents[0])


RULES = ExtensionRuleSet(
    EntropyRule(),
    QuotientRule(),
    BackwardsRule(),
    ToSingleRule(),
    RootRule(),
    RowsRule(),
    SquareAndModulusRule(),
)
