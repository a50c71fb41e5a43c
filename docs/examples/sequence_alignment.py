"""Global alignment of the two chains of human haemoglobin: one max-plus vector-matrix product for
each residue, in a scan.

The gradient of the score by the matrix of pair scores is 1 at the aligned pairs: the alignment
itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from Bio.Align import substitution_matrices

from ext_tropical import tropical_einsum

# UniProt P69905 (HBA_HUMAN) and P68871 (HBB_HUMAN).
ALPHA = (
    "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSHGSAQVKGHGKKVADALTNAVAHVDDMPNALSALSDLHAHKLRVDPVNFKLLSHCLLVTLAAHL"
    "PAEFTPAVHASLDKFLASVSTVLTSKYR"
)
BETA = (
    "MVHLTPEEKSAVTALWGKVNVDEVGGEALGRLLVVYPWTQRFFESFGDLSTPDAVMGNPKVKAHGKKVLGAFSDGLAHLDNLKGTFATLSELHCDKLHVDPENFRLLGNVLVCV"
    "LAHHFGKEFTPPVQAAYQKVVAGVANALAHKYH"
)
GAP = 8.0


def pair_scores(first: str, second: str) -> np.ndarray:
    """BLOSUM62 (S. and J. G. Henikoff, 1992) for all pairs of residues: float32 (len(first),
    len(second)).
    """
    blosum62 = substitution_matrices.load("BLOSUM62")
    return np.asarray([[blosum62[a][b] for b in second] for a in first], np.float32)


def score(scores: Any, gap: Any) -> Any:
    """The best score of a global alignment: the sum over aligned pairs, less `gap` for each residue
    that is left alone.

    Row i holds the best scores of the first i residues against the first 0, 1, ... of the second.
    Its max-plus product with `step` aligns residue i with the next one or leaves it alone; that
    with `skip` leaves any number of the second alone.
    """
    columns = scores.shape[1] + 1
    k, j = jnp.indices((columns, columns))
    skip = jnp.where(k <= j, (k - j).astype(scores.dtype) * gap, -jnp.inf)

    def next_row(row: Any, pairs: Any) -> tuple[Any, None]:
        aligned = jnp.pad(pairs, (1, 0))
        step = jnp.where(k == j, -gap, jnp.where(k + 1 == j, aligned, -jnp.inf))
        return tropical_einsum("k,kj->j", tropical_einsum("k,kj->j", row, step), skip), None

    return jax.lax.scan(next_row, skip[0], scores)[0][-1]


gradient = jax.jit(jax.grad(score))


def aligned_pairs(scores: Any, gap: Any) -> list[tuple[int, int]]:
    """The aligned pairs of a best alignment, in order."""
    return [(int(i), int(j)) for i, j in np.argwhere(gradient(scores, gap))]


def lines(first: str, second: str, pairs: list[tuple[int, int]]) -> tuple[str, str, str]:
    """Three lines of equal length: the first sequence, | where both have the same residue, the
    second; - is a gap.
    """
    columns: list[tuple[str, str]] = []
    i = j = 0
    for next_i, next_j in [*pairs, (len(first), len(second))]:
        columns += [(a, "-") for a in first[i:next_i]] + [("-", b) for b in second[j:next_j]]
        columns += zip(first[next_i : next_i + 1], second[next_j : next_j + 1])
        i, j = next_i + 1, next_j + 1
    return (
        "".join(a for a, _ in columns),
        "".join("|" if a == b else " " for a, b in columns),
        "".join(b for _, b in columns),
    )


def main() -> None:
    """Score, identities and the alignment."""
    scores = pair_scores(ALPHA, BETA)
    rows = lines(ALPHA, BETA, aligned_pairs(scores, GAP))
    print(
        f"score {score(scores, GAP):.0f} (BLOSUM62, {GAP:.0f} for a gap); {rows[1].count('|')} "
        f"identical residues in {len(rows[0])} columns"
    )
    for start in range(0, len(rows[0]), 60):
        print()
        for row in rows:
            print("  " + row[start : start + 60].rstrip())


if __name__ == "__main__":
    main()
