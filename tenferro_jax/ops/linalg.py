"""Linear algebra on the last two axes; the axes before are a batch. The CPU has routines only for
32- and 64-bit real parts.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import BackendFailure, ShapeError, Unsupported
from ..shapes import Shaped, TensorMeta
from .op import INEXACT, StdTensorOp, op

linalg = lax.linalg


@op
class Cholesky(
    StdTensorOp,
    function=functools.partial(linalg.cholesky, symmetrize_input=False),
    takes=INEXACT,
):
    """Lower triangular L with L L^H = A, from the lower triangle of A; NaN where A is not positive
    definite.

    C1: square, floating or complex.
    Gradient: of A taken as Hermitian.
    Example: Cholesky().apply(4.0 * np.eye(2)) = 2.0 * np.eye(2)
    """


@op
class Lu(StdTensorOp, function=linalg.lu, takes=INEXACT):
    """P A = L U: both factors in one matrix, int32 row swaps, int32 permutation of the rows.

    C1: floating or complex.
    Gradient: of the factors at a fixed permutation.
    Example: Lu().apply(2.0 * np.eye(2))[0] = 2.0 * np.eye(2)
    """

    output_count = 3


@op
class LuPivotsToPermutation(StdTensorOp, function=linalg.lu_pivots_to_permutation):
    """The permutation of permutation_size rows that results from successive row swaps.

    C1: int32 swaps, at most permutation_size of them.
    Gradient: none.
    Example: LuPivotsToPermutation(2).apply(np.int32([1, 1])) = [1, 0]
    """

    permutation_size: int


@op
class Qr(StdTensorOp, function=linalg.qr, keywords=True, takes=INEXACT):
    """A = Q R with orthonormal columns of Q and upper triangular R; with pivoting A[:, p] = Q R and
    p as third output.

    C1: floating or complex.
    Gradient: for full column rank, not for full_matrices of a tall A.
    Example: abs(Qr().apply(2.0 * np.eye(2))[1]) = 2.0 * np.eye(2)
    """

    full_matrices: bool = False
    pivoting: bool = False

    @property
    def output_count(self) -> int:
        """Two, and the permutation."""
        return 3 if self.pivoting else 2


@op
class HouseholderProduct(StdTensorOp, function=linalg.householder_product, takes=INEXACT):
    """The orthonormal columns of the reflectors of a QR factorisation; the inputs are reflectors,
    scales.

    C1: floating or complex, at least as many rows as columns.
    Gradient: refused.
    Example: HouseholderProduct().apply(np.eye(2), np.zeros(2)) = np.eye(2)
    """

    input_count = 2


@op
class Svd(StdTensorOp, function=linalg.svd, keywords=True, takes=INEXACT):
    """A = U diag(s) V^H, s descending: the outputs are U, s, V^H, or s alone.

    C1: floating or complex.
    Gradient: for distinct singular values; s alone always. Not for full_matrices.
    Example: Svd(compute_uv=False).apply(np.diag([1.0, 2.0])) = [2.0, 1.0]
    """

    full_matrices: bool = False
    compute_uv: bool = True

    @property
    def output_count(self) -> int:
        """Three, or s alone."""
        return 3 if self.compute_uv else 1


@op
class Eigh(
    StdTensorOp,
    function=functools.partial(linalg.eigh, symmetrize_input=False),
    keywords=True,
    takes=INEXACT,
):
    """Eigenvectors (columns) and real eigenvalues, ascending, of a Hermitian matrix read from one
    triangle.

    C1: square, floating or complex.
    Gradient: of A taken as Hermitian, for distinct eigenvalues.
    Example: Eigh().apply(np.diag([1.0, 2.0]))[1] = [1.0, 2.0]
    """

    output_count = 2
    lower: bool = True
    sort_eigenvalues: bool = True


@op
class Eig(StdTensorOp, takes=INEXACT):
    """Complex eigenvalues of a general matrix, then left and right eigenvectors (columns) as asked.
    Not on TPU.

    C1: square, floating or complex.
    Gradient: of the eigenvalues; refused for eigenvectors.
    Example: Eig(False, False).apply(np.diag([1.0, 2.0]))[0] = [1.0, 2.0]
    """

    left: bool = True
    right: bool = True

    @property
    def output_count(self) -> int:
        """The eigenvalues and each kind of vectors."""
        return 1 + self.left + self.right

    def apply(self, a: jax.Array) -> list[jax.Array]:
        return linalg.eig(
            a, compute_left_eigenvectors=self.left, compute_right_eigenvectors=self.right
        )


@op
class TriangularSolve(StdTensorOp, function=linalg.triangular_solve, keywords=True, takes=INEXACT):
    """X with op(A) X = B, or X op(A) = B unless left_side; op transposes, conjugates or both; the
    inputs are A, B.

    C1: A square; equal batch axes; the shared size agrees. C2: floating or complex, one dtype.
    Gradient: linear in B; in A by the derivative of the inverse, within the triangle.
    Example: TriangularSolve().apply(2.0 * np.eye(2), np.ones((2, 1))) = [[0.5], [0.5]]
    """

    input_count = 2
    left_side: bool = True
    lower: bool = True
    transpose_a: bool = False
    conjugate_a: bool = False
    unit_diagonal: bool = False

    def check(self, *operands: Shaped) -> None:
        """C1, the batch axes."""
        a, b = operands
        if len(a.shape) != len(b.shape) or a.shape[:-2] != b.shape[:-2] or a.dtype != b.dtype:
            raise ShapeError(
                where=str(self),
                given=f"A {a.dtype}{list(a.shape)}, B {b.dtype}{list(b.shape)}",
                needed="equal batch axes and one dtype",
                fix="Broadcast or convert one of them.",
            )


@op
class TridiagonalSolve(
    StdTensorOp, function=linalg.tridiagonal_solve, takes=frozenset({"float32", "float64"})
):
    """X with T X = B for the tridiagonal T of three diagonals; the inputs are lower, main, upper
    diagonal, B.

    C1: diagonals of one shape (..., n), B of shape (..., n, k); entries outside T are ignored. C2:
    float32 or float64.
    Gradient: linear in B; in the diagonals by the derivative of the inverse.
    Example: TridiagonalSolve().apply(np.zeros(3), 2.0 * np.ones(3), np.zeros(3), np.ones((3, 1))) =
    [[0.5], [0.5], [0.5]]
    """

    input_count = 4


@op
class Solve(StdTensorOp, takes=INEXACT):
    """X with A X = B by LU factorisation; the inputs are A, B. Infinite or NaN where A is singular.

    C1: A of shape (..., n, n), B of shape (..., n, k). C2: floating or complex, one dtype.
    Gradient: linear in B; in A by the derivative of the inverse.
    Example: Solve().apply(2.0 * np.eye(2), np.ones((2, 1))) = [[0.5], [0.5]]
    """

    input_count = 2

    def apply(self, a: jax.Array, b: jax.Array) -> jax.Array:
        if b.ndim != a.ndim or a.ndim < 2 or a.dtype != b.dtype:
            raise ShapeError(
                where="Solve",
                given=f"A {a.dtype}{list(a.shape)}, B {b.dtype}{list(b.shape)}",
                needed="equal ranks, at least 2, and one dtype",
                fix="Give B a last axis for its columns.",
            )
        return jnp.linalg.solve(a, b)


@op
class ValidateNonsingular(StdTensorOp, takes=INEXACT):
    """A itself, after a check on the host that no matrix is singular (has an exactly zero pivot, or
    is not finite).

    C1: square, floating or complex. C2: run by an Engine: a compiled program cannot raise.
    Gradient: refused.
    Example: ValidateNonsingular().check_on_host(np.eye(2)) = None
    """

    def infer(self, *metas: TensorMeta) -> tuple[TensorMeta, ...]:
        """The input's."""
        Cholesky().infer(*metas)  # the same constraint
        return metas

    def check_on_host(self, a: np.ndarray) -> None:
        """Look at the values.

        Raises:
          BackendFailure: a matrix is singular.
        """
        with np.errstate(all="ignore"):
            _, logarithm = np.linalg.slogdet(a)
        singular = ~np.isfinite(logarithm)
        if singular.any():
            at = f" at batch index {np.argwhere(singular)[0].tolist()}" if a.ndim > 2 else ""
            raise BackendFailure(
                where="ValidateNonsingular",
                given=f"a singular matrix{at}",
                needed="nonsingular matrices",
                fix="Regularise the matrix, or solve in the least-squares sense.",
            )

    def apply(self, a: jax.Array) -> jax.Array:
        raise Unsupported(
            where="ValidateNonsingular",
            given="a call in a compiled program, which cannot raise",
            needed="an Engine, which runs this check on the host",
            fix="Use Engine.eval, or check numpy.linalg.matrix_rank beforehand.",
        )
