"""The closed list of standard ops, and named sets of them. The tests sweep this list."""

from __future__ import annotations

from .analytic import Cos, Exp, Expm1, IntegerPow, Log, Log1p, Logistic, Pow, Rsqrt, Sin, Sqrt, Tanh
from .arithmetic import (
    Abs,
    Add,
    And,
    Clamp,
    Compare,
    Constant,
    Convert,
    DimensionValue,
    Div,
    IsFinite,
    Maximum,
    Minimum,
    Mul,
    Neg,
    Not,
    Or,
    Rem,
    Select,
    Sign,
    StopGradient,
    Sub,
)
from .contraction import DotGeneral
from .control import Cond, CountedLoop, While
from .indexing import DynamicSlice, DynamicUpdateSlice, Gather, Scatter
from .op import StdTensorOp
from .reduction import ArgMax, ArgMin, ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceSum
from .structural import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Reverse, Slice, Transpose

ARITHMETIC: tuple[type[StdTensorOp], ...] = (Add, Sub, Mul, Div, Rem, Neg, Abs, Sign, Maximum, Minimum)
ANALYTIC: tuple[type[StdTensorOp], ...] = (Exp, Log, Expm1, Log1p, Sin, Cos, Tanh, Logistic, Sqrt, Rsqrt, Pow, IntegerPow)
LOGIC: tuple[type[StdTensorOp], ...] = (And, Or, Not, Compare, Select, Clamp, IsFinite)
ELEMENTWISE = (*ARITHMETIC, *ANALYTIC, *LOGIC, Convert, StopGradient)
SOURCES: tuple[type[StdTensorOp], ...] = (Constant, DimensionValue, Iota)
STRUCTURAL: tuple[type[StdTensorOp], ...] = (Transpose, Reshape, BroadcastInDim, Slice, Pad, Reverse, Concatenate)
REDUCTION: tuple[type[StdTensorOp], ...] = (ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceAnd, ReduceOr, ArgMax, ArgMin)
INDEXING: tuple[type[StdTensorOp], ...] = (Gather, Scatter, DynamicSlice, DynamicUpdateSlice)
CONTROL: tuple[type[StdTensorOp], ...] = (CountedLoop, While, Cond)

VOCABULARY = (*ELEMENTWISE, *SOURCES, *STRUCTURAL, DotGeneral, *REDUCTION, *INDEXING, *CONTROL)
"""Every standard op."""
