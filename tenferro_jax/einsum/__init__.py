"""Einsum equations and contraction plans. Re-exports only."""

from .einsum_plan import Plan, Step
from .notation import Equation, parse_equation

__all__ = ["Equation", "Plan", "Step", "parse_equation"]
