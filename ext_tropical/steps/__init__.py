"""One step of a contraction, of one or two operands, as an extension op.

`layout`
    Every step as batched matrices: which labels are batch, rows, columns or contracted.
`einsum_op`
    `TropicalEinsum`, under a selective semiring: value and winner. Here a tie is decided.
`at_winner`
    Its derivative: entries at the winners, or sums of them, each the transpose of the other.
`log_einsum`, `weighted_sum`
    The step under `log_sum_exp`, and its derivatives: sums weighted by the shares of candidates.
`sum_einsum`
    The step under a semiring of an author that sums.
`evaluate`
    The steps of a plan one after another, each as its own op; for any semiring, symbolic sizes and
    several devices.
`shared_number`
    What scores have in common, which is taken away before exponentials are summed.
`kernels`
    Loops in standard ops (`selection`, `products`, `summed`) and on GPUs (`mosaic`); those for CPUs
    are in `ext_tropical.native`.
"""

from .einsum_op import Outputs, Ties, TropicalEinsum
from .log_einsum import LogEinsum
from .weighted_sum import Place, WeightedSum

__all__ = ["LogEinsum", "Outputs", "Place", "Ties", "TropicalEinsum", "WeightedSum"]
