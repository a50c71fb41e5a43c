"""Einsum equations and the order of contractions.

`notation`
    `Equation`: the labels of an einsum, parsed from text.
`plan`
    `plan_einsum`: an equation and sizes to a `Plan`, without arrays.
`interpreter`
    A plan run step by step, by whoever knows how a step is computed.
"""

from .notation import Equation, parse_equation
from .plan import Plan, Step

__all__ = ["Equation", "Plan", "Step", "parse_equation"]
