"""Elementwise special functions."""

from __future__ import annotations

from jax import lax

from .op import Binary, StdTensorOp, Unary, op


@op
class Erf(Unary, function=lax.erf):
    """Error function.

    C1: floating.
    Gradient: 2 / sqrt(pi) e**(-x**2) t.
    Example: Erf().apply(0.0) = 0.0
    """


@op
class Erfc(Unary, function=lax.erfc):
    """1 - erf(x), accurate for large x.

    C1: floating.
    Gradient: -2 / sqrt(pi) e**(-x**2) t.
    Example: Erfc().apply(0.0) = 1.0
    """


@op
class ErfInv(Unary, function=lax.erf_inv):
    """Inverse of erf; infinite at -1 and 1.

    C1: floating.
    Gradient: sqrt(pi) / 2 e**(y**2) t.
    Example: ErfInv().apply(0.0) = 0.0
    """


@op
class Lgamma(Unary, function=lax.lgamma):
    """Logarithm of the absolute value of the gamma function.

    C1: floating.
    Gradient: digamma(x) t.
    Example: Lgamma().apply(3.0) = np.log(2.0)
    """


@op
class Digamma(Unary, function=lax.digamma):
    """Derivative of the logarithm of the gamma function.

    C1: floating.
    Gradient: polygamma(1, x) t.
    Example: Digamma().apply(1.0) = -0.5772156649015329
    """


@op
class BesselI0e(Unary, function=lax.bessel_i0e):
    """Modified Bessel function of order 0 times e**-|x|.

    C1: floating.
    Gradient: (i1e(x) - sign(x) i0e(x)) t.
    Example: BesselI0e().apply(0.0) = 1.0
    """


@op
class BesselI1e(Unary, function=lax.bessel_i1e):
    """Modified Bessel function of order 1 times e**-|x|.

    C1: floating.
    Gradient: by the recurrence of i0e and i1e.
    Example: BesselI1e().apply(0.0) = 0.0
    """


@op
class Polygamma(Binary, function=lax.polygamma):
    """Derivative of order n of digamma at x; the inputs are n, x.

    C2: floating; n a non-negative integer.
    Gradient: in x: polygamma(n + 1, x) t; refused in n.
    Example: Polygamma().apply(1.0, 1.0) = np.pi**2 / 6
    """


@op
class Zeta(Binary, function=lax.zeta):
    """Hurwitz zeta function of s, q.

    C2: floating.
    Gradient: refused.
    Example: Zeta().apply(2.0, 1.0) = np.pi**2 / 6
    """


@op
class Igamma(Binary, function=lax.igamma):
    """Regularised lower incomplete gamma function of a, x.

    C2: floating.
    Gradient: in x the density; in a by IgammaGradA.
    Example: Igamma().apply(1.0, 1.0) = 1 - np.exp(-1)
    """


@op
class Igammac(Binary, function=lax.igammac):
    """Regularised upper incomplete gamma function of a, x.

    C2: floating.
    Gradient: minus that of Igamma.
    Example: Igammac().apply(1.0, 1.0) = np.exp(-1)
    """


@op
class IgammaGradA(Binary, function=lax.igamma_grad_a):
    """Derivative of Igamma with respect to a.

    C2: floating.
    Gradient: refused.
    Example: IgammaGradA().apply(1.0, 1.0) = -0.4317
    """


@op
class RandomGammaGrad(Binary, function=lax.random_gamma_grad):
    """Derivative of a gamma(a) sample x with respect to a; the inputs are a, x.

    C2: floating.
    Gradient: forward mode, through the series that computes it.
    Example: RandomGammaGrad().apply(np.float64(1.0), np.float64(1.0)) = 1.1736
    """


@op
class RegularizedIncompleteBeta(StdTensorOp, function=lax.betainc):
    """Regularised incomplete beta function of a, b, x.

    C1: floating, one dtype and shape.
    Gradient: in x the density; refused in a and b.
    Example: RegularizedIncompleteBeta().apply(1.0, 1.0, 0.25) = 0.25
    """

    input_count = 3
