"""Lazy tensors: operations are recorded, and an engine runs them.

`tensor`
    `TracedTensor`: its operators and methods are a table of JAX functions.
`record`
    What a lazy tensor is made of; `eval_all`.
`einsum_call`
    `einsum` of arrays or of lazy tensors.
"""

from .record import eval_all
from .tensor import TracedTensor

__all__ = ["TracedTensor", "eval_all"]
