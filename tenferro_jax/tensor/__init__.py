"""Lazy tensors: operations are recorded, and an engine runs them. Re-exports only."""

from .record import eval_all
from .tensor import TracedTensor

__all__ = ["TracedTensor", "eval_all"]
