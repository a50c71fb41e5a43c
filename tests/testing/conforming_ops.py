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

from ..helpers import made

# Rows of a matrix by number: linear in the matrix, with its own transpose.
Rows = made(
    "Rows",
    family_id="conforming.rows.v1",
    input_count=2,
    lower_to_standard_ops=lambda self, x, i: (x[i],),
)


class RowsRule(ExtensionAdRule):
    family_id = Rows.family_id

    def linearize(self, op, primals, outputs, tangents):
        return apply(op, tangents[0], primals[1])

    def transpose_rule(self, op, cotangents, inputs):
        zeros = jnp.zeros(inputs[0].shape, cotangents[0].dtype)
        return zeros.at[inputs[1]].add(cotangents[0]), None


# z**2 and |z|**2: the second is real, and linear over the reals alone.
SquareAndModulus = made(
    "SquareAndModulus",
    family_id="conforming.square_and_modulus.v1",
    output_count=2,
    lower_to_standard_ops=lambda self, z: (z * z, jnp.real(z * jnp.conj(z))),
)


SquareAndModulusRule = made(
    "SquareAndModulusRule",
    ExtensionAdRule,
    family_id=SquareAndModulus.family_id,
    linearize=lambda self, op, primals, outputs, tangents: jax.jvp(
        lambda z: (z * z, jnp.real(z * jnp.conj(z))), primals, tangents
    )[1],
)


# Twice the input: a lowering for float32, the host for all else.
DeclinesWide = made(
    "DeclinesWide",
    family_id="conforming.declines_wide.v1",
    infer_output_meta=lambda self, inputs: [inputs[0]],
    lower_to_standard_ops=lambda self, x: (x + x,) if x.dtype == np.float32 else None,
    eager_execute=lambda self, x: (x + x,),
)


# A cast to float32.
ToSingle = made(
    "ToSingle",
    family_id="conforming.to_single.v1",
    lower_to_standard_ops=lambda self, x: (x.astype("float32"),),
)


ToSingleRule = made(
    "ToSingleRule",
    ExtensionAdRule,
    family_id=ToSingle.family_id,
    linearize=lambda self, op, primals, outputs, tangents: (tangents[0].astype("float32"),),
)


# The square root, NaN below zero.
Root = made(
    "Root", family_id="conforming.root.v1", lower_to_standard_ops=lambda self, x: (jnp.sqrt(x),)
)


RootRule = made(
    "RootRule",
    ExtensionAdRule,
    family_id=Root.family_id,
    linearize=lambda self, op, primals, outputs, tangents: (
        tangents[0] / (outputs[0] + outputs[0]),
    ),
)


# Rows of a matrix by number, on the host, which raises for numbers out of range.
RowsOnHost = made(
    "RowsOnHost",
    family_id="conforming.rows_on_host.v1",
    input_count=2,
    infer_output_meta=lambda self, inputs: [
        (inputs[0].dtype, (*inputs[1].shape, *inputs[0].shape[1:]))
    ],
    eager_execute=lambda self, x, i: (x[i],),
)


class Entropy(ExtensionOp):
    """Of a distribution: values that do not add up to one are refused."""

    family_id = "conforming.entropy.v1"

    def infer_output_meta(self, inputs):
        return [(inputs[0].dtype, ())]

    def eager_execute(self, p):
        if not abs(p.sum(dtype=np.float64) - 1) < 1e-3:
            raise ValueError(f"probabilities that add up to {p.sum()}")
        return (np.asarray(-(p * np.log(p)).sum(), p.dtype),)


EntropyRule = made(
    "EntropyRule",
    ExtensionAdRule,
    family_id=Entropy.family_id,
    linearize=lambda self, op, primals, outputs, tangents: (
        -((jnp.log(primals[0]) + jnp.ones_like(primals[0])) * tangents[0]).sum(),
    ),
)


# y / x: linear in y alone, and the rule raises where it is asked for the other transpose.
Quotient = made(
    "Quotient",
    family_id="conforming.quotient.v1",
    input_count=2,
    lower_to_standard_ops=lambda self, x, y: (jax.lax.div(y, x),),
)


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


# No outputs.
Nothing = made(
    "Nothing",
    family_id="conforming.nothing.v1",
    output_count=0,
    lower_to_standard_ops=lambda self, x: (),
)


# jax.numpy.linalg.inv: JAX does not place its batches on an explicit mesh.
Inverse = made(
    "Inverse",
    family_id="conforming.inverse.v1",
    lower_to_standard_ops=lambda self, x: (jnp.linalg.inv(x),),
)


# jax.numpy.fft.fft: JAX does not export it for symbolic sizes.
Fourier = made(
    "Fourier",
    family_id="conforming.fourier.v1",
    lower_to_standard_ops=lambda self, x: (jnp.fft.fft(x),),
)


# An input backwards; its rule has a transpose alone.
Backwards = made(
    "Backwards",
    family_id="conforming.backwards.v1",
    lower_to_standard_ops=lambda self, x: (x[::-1],),
)


BackwardsRule = made(
    "BackwardsRule",
    ExtensionAdRule,
    family_id=Backwards.family_id,
    transpose_rule=lambda self, op, cotangents, inputs: apply(op, cotangents[0]),
)


RULES = ExtensionRuleSet(
    EntropyRule(),
    QuotientRule(),
    BackwardsRule(),
    ToSingleRule(),
    RootRule(),
    RowsRule(),
    SquareAndModulusRule(),
)
