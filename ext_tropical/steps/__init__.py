"""One step of a contraction, of one or two operands, as an extension op.

`layout`
    Every step as batched matrices: which labels are batch, rows, columns or contracted.
`einsum_op`
    `TropicalEinsum`, under a selective semiring: value and winner. `Ties`: how a gradient is shared
    at a tie.
`at_winner`
    Its derivative: entries at the winners, or sums of them, each the transpose of the other.
`log_einsum`, `weighted_sum`
    The step under `log_sum_exp`, and its derivatives: sums weighted by the shares of candidates.
`sum_einsum`
    The step under a semiring of an author that sums.
`evaluate`
    The steps of a plan one after another, each as its own op; for any semiring, symbolic sizes and
    several devices.
`labels`
    `Labels`: what an assignment says of each name, as one array.
`cut`
    Parts of a flat array, cut all at once.
`shared_number`
    What scores have in common, which is taken away before exponentials are summed.
`kernels`
    `selection`: the search in standard ops, which decides ties. `products`, `summed`: sums there.
    `mosaic`: NVIDIA GPUs. For CPUs: `ext_tropical.native`.
"""

from .einsum_op import Outputs, Ties, TropicalEinsum
from .log_einsum import LogEinsum
from .weighted_sum import Place, WeightedSum

__all__ = ["LogEinsum", "Outputs", "Place", "Ties", "TropicalEinsum", "WeightedSum"]
