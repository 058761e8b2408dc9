"""Linear algebra by the array API standard: factorisations, inverses, norms. LAPACK computes them, through NumPy.

Knows nothing of graphs: all of it can be traced. Stacks of matrices have leading axes.
"""

from tritium.backends.reference.linalg import LinAlgError
from tritium.functions import tensordot, vecdot
from tritium.linalg.factorisations import (
    EighResult,
    QRResult,
    SlogdetResult,
    SVDResult,
    cholesky,
    det,
    eigh,
    eigvalsh,
    inv,
    matrix_power,
    matrix_rank,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
)
from tritium.linalg.products import cross, diagonal, matrix_norm, outer, trace, vector_norm
from tritium.ops import matmul, matrix_transpose

__all__ = [
    "EighResult", "LinAlgError", "QRResult", "SVDResult", "SlogdetResult", "cholesky", "cross", "det", "diagonal", "eigh",
    "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip
