"""Global alignment of the two chains of human haemoglobin."""

from __future__ import annotations

import numpy as np
from Bio.Align import substitution_matrices
from jax.typing import ArrayLike

from ext_tropical import align

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


def columns(scores: ArrayLike, gap: float) -> np.ndarray:
    """The columns of a best alignment, (count, 2): a residue of each sequence; -1 is a gap."""
    path = np.asarray(align(scores, gap=-gap).path)
    return path[path.max(1) >= 0]


def lines(first: str, second: str, path: np.ndarray) -> tuple[str, str, str]:
    """Three lines of equal length: the first sequence, | where both have the same residue, the
    second; - is a gap.
    """
    top, bottom = (
        "".join((text + "-")[i] for i in path[:, k]) for k, text in enumerate((first, second))
    )
    return top, "".join("|" if a == b else " " for a, b in zip(top, bottom, strict=True)), bottom


def main() -> None:
    """Score, identities and the alignment."""
    scores = pair_scores(ALPHA, BETA)
    rows = lines(ALPHA, BETA, columns(scores, GAP))
    print(
        f"score {align(scores, gap=-GAP).score:.0f} (BLOSUM62, {GAP:.0f} for a gap); "
        f"{rows[1].count('|')} identical residues in {len(rows[0])} columns"
    )
    for start in range(0, len(rows[0]), 60):
        print()
        for row in rows:
            print("  " + row[start : start + 60].rstrip())


if __name__ == "__main__":
    main()
