"""Eigenvalues and singular values by Jacobi's method, in parallel over pairs of blocks of rows; eigen.py says where.

Singular values: x = Q R, then the rows of R are rotated until they are orthogonal, J R = S V^H. The norms of the rows
are the singular values, and U = Q J^H. A second QR decomposition completes V where singular values are 0.

Sources: Demmel, Veselic 1992, doi:10.1137/0613074; Drmac, Veselic 2008, doi:10.1137/050639193
"""

from polyarr.backends.opencl.gemm.matmul import matmul
from polyarr.backends.opencl.linalg import qr
from polyarr.backends.opencl.linalg.matrices import EPS, INT32, UPPER, Call, block
from polyarr.backends.opencl.runtime.layout import Buffer, spec_of
from polyarr.core.spec import COMPLEX, Spec, complex128, real_of

MAX_HALF = 16  # rows of a block; half of that for complex128, because of the size of local memory
VECTOR = {"cpu": 8, "gpu": 1}  # elements of a vector, if they are real
CHUNK = {"cpu": 256, "gpu": 128}
# Sweeps over all pairs of blocks, and of one pair while it is rotated, at most; it stops when nothing changes.
SWEEPS, SWEEPS_OF_SEVERAL, INNER_SWEEPS = 6, 20, 16


def eigh(call: Call, x: Buffer) -> tuple[Buffer, Buffer]:
    """Return the eigenvalues (matrices, 1, n), ascending, and the eigenvectors of Hermitian matrices."""
    n, w = x.shape[1], _beside_identity(call, x.shape[1])
    half, size = call.move(block(w, slice(n), slice(n)), x), w.shape[1]
    _sweep(call, w, n, hermitian=True)
    # Each rotation rounds the diagonal. The Rayleigh quotients v^H x v of the eigenvectors are ten times as near.
    call.move(half, matmul(call.device, spec_of(x), block(w, slice(n), slice(size, size + n)), x))
    vectors = call.empty(n, n)
    return _arrange(call, w, vectors), vectors


def svd(call: Call, x: Buffer) -> tuple[Buffer, Buffer, Buffer]:
    """Return u, the singular values (matrices, 1, n), descending, and v of matrices (matrices, m, n), m >= n.

    x is overwritten.
    """
    _, m, n = x.shape
    reflections = qr.factorize(call, x)
    w, left, right = _beside_identity(call, n), call.zeros(m, n), call.empty(n, n)
    call.move(block(w, slice(n), slice(n)), block(x, slice(n), slice(n)), keep=UPPER)
    _sweep(call, w, n, hermitian=False)
    values = _arrange(call, w, left, right)
    qr.multiply(call, reflections, left)
    return left, values, qr.orthonormal(call, right)


class _Blocks:
    """How a call divides the rows of n x n matrices.

    Attributes:
        half: Rows of a block.
        pairs: Pairs of blocks.
        size: Rows of all blocks, at least n.
        program: The kernels.
    """

    def __init__(self, call: Call, n: int) -> None:
        self.half, most = 2, MAX_HALF // 2 if call.acc == complex128 else MAX_HALF
        while self.half < most and 2 * self.half < n:
            self.half *= 2
        self.pairs = -(-n // (2 * self.half))
        self.size = 2 * self.half * self.pairs
        self._call, self._group = call, min(call.group, 4 * self.half**2)  # no more than elements of a rotation
        wide = 1 if call.acc in COMPLEX else min(VECTOR[call.kind], 2 * self.half)
        sizes = {"WG": self._group, "HALF": self.half, "WIDE": wide, "CHUNK": CHUNK[call.kind]}
        self.program = call.program("jacobi", EPS=EPS[real_of(call.acc)], **sizes)

    def groups(self, parts: int) -> tuple[tuple[int], tuple[int]]:
        """Return the global and local size of work-groups: `parts` of them for each matrix."""
        return (self._call.count * parts * self._group,), (self._group,)


def _beside_identity(call: Call, n: int) -> Buffer:
    """Return matrices with n x n zeros as left halves and identities as right ones, padded by zeros to blocks."""
    size = _Blocks(call, n).size
    w = call.zeros(size, 2 * size)
    call.set_identity(block(w, slice(n), slice(size, size + n)))
    return w


def _sweep(call: Call, w: Buffer, n: int, *, hermitian: bool) -> None:
    """Rotate the rows of w until the rows of its left halves are orthogonal.

    If hermitian, rotate the columns of the left halves, too, until they are diagonal.
    """
    device, blocks = call.device, _Blocks(call, n)
    pairs, size, program = blocks.pairs, blocks.size, blocks.program
    sweeps, inner = (SWEEPS, INNER_SWEEPS) if pairs == 1 else (SWEEPS_OF_SEVERAL, 1)
    turns = call.empty(pairs, 2 * blocks.half, 2 * blocks.half)
    turned, moved = (device.empty(Spec((call.count, length), INT32)) for length in (pairs, sweeps))
    device.fill_zero(moved)
    matrix, pitch, _ = w.strides
    rotations = w.memory, turns.memory, turned.memory
    for sweep in range(sweeps):
        for step in range(2 * pairs - 1):
            numbers = pairs, step, sweep, sweeps, inner, int(not hermitian)
            program.find_rotations(*blocks.groups(pairs), *rotations, moved.memory, matrix, pitch, n, *numbers)
            sides = ((2 * size, (pitch, 1)), (size, (1, pitch)))[: 1 + hermitian]
            for is_right, (columns, steps) in enumerate(sides):
                chunks = -(-columns // CHUNK[call.kind])
                work = blocks.groups(pairs * chunks)
                program.rotate_pairs(*work, *rotations, matrix, *steps, columns, pairs, step, chunks, is_right)


def _arrange(call: Call, w: Buffer, left: Buffer, right: Buffer | None = None) -> Buffer:
    """Return the products of the halves of each row of w, ascending, and write the right halves as columns of left.

    With right, return the norms of rows of the left halves, descending, and write the normalized rows as its columns.
    """
    n, has_right = left.shape[2], int(right is not None)
    blocks, keys, values = _Blocks(call, n), call.reals(n), call.reals(1, n)
    program, work = blocks.program, blocks.groups(n)
    program.normalize_rows(*work, w.memory, keys.memory, *w.strides[:2], blocks.size, n, has_right)
    program.arrange(
        *work, w.memory, keys.memory, values.memory, left.memory, (right or left).memory, *w.strides[:2], blocks.size,
        left.strides[0], n, has_right,
    )  # fmt: skip
    return values
