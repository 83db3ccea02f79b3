"""Eigenvalues and singular values on CPUs: Householder reductions to tridiagonal matrices, then divide and conquer.

A square matrix is reduced to a bidiagonal one, which is half of a tridiagonal one of twice the size (Golub and Kahan).

Sources: Dongarra, Sorensen, Hammarling 1989, doi:10.1016/0377-0427(89)90367-1; Golub, Kahan 1965, doi:10.1137/0702016;
Cuppen 1981, doi:10.1007/BF01396757; Gu, Eisenstat 1995, doi:10.1137/S0895479892241287
"""

from polyarr.backends.opencl.gemm.matmul import matmul
from polyarr.backends.opencl.linalg import qr
from polyarr.backends.opencl.linalg.matrices import EPS, INT32, UPPER, Call, block
from polyarr.backends.opencl.runtime.layout import Buffer, reshaped, spec_of
from polyarr.core.spec import Spec, float32, float64, real_of

WIDE = 8  # numbers of a vector
MAX_LEAF = 32  # rows of tridiagonal matrices that the QL method solves
PANEL = 32  # rows that are reduced before a product updates the rest
BITS = {float32: "int", float64: "long"}


def eigh(call: Call, x: Buffer) -> tuple[Buffer, Buffer]:
    """Return the eigenvalues (matrices, 1, n), ascending, and the eigenvectors of Hermitian matrices."""
    n = x.shape[1]
    a, chain = _padded(call, x), _Chain(call, n)
    reflections = call.zeros(n, a.shape[2])
    _reduce(call, "tridiagonalize", n, (a,), (reflections, chain.diagonal, chain.links), chain.size)
    chain.solve()
    vectors = chain.eigenvectors(n, (0, 1), (0, 1))
    _reflect(call, reflections, vectors, 1)
    return _quotients(chain, vectors, x, vectors, 1), vectors


def svd(call: Call, x: Buffer) -> tuple[Buffer, Buffer, Buffer]:
    """Return u, the singular values (matrices, 1, n), descending, and v of matrices (matrices, m, n), m >= n."""
    _, m, n = x.shape
    square, top, of_qr = x, slice(n), None
    if m > n:
        r = call.move(call.empty(m, n), x)
        of_qr = qr.factorize(call, r)
        square = call.move(call.empty(n, n), block(r, top, top), keep=UPPER)
    a, b, chain = _padded(call, square), _padded(call, call.adjoint(square)), _Chain(call, 2 * n)
    of_columns, of_rows = call.zeros(n, a.shape[2]), call.zeros(n, a.shape[2])
    call.device.fill_zero(chain.diagonal)
    _reduce(call, "bidiagonalize", n, (a, b), (of_columns, of_rows, chain.links))
    chain.solve()
    # Even rows of eigenvectors are v, odd ones u. For small singular values they are orthogonal only together.
    v, u = (qr.orthonormal(call, chain.eigenvectors(n, (first, 2), (2 * n - 1, -1))) for first in (0, 1))
    _reflect(call, of_rows, v, 1)
    _reflect(call, of_columns, u, 0)
    if of_qr is not None:
        inner, u = u, call.zeros(m, n)
        call.move(block(u, top, top), inner)
        qr.multiply(call, of_qr, u)
    return u, _quotients(chain, u, x, v, -1), v


def _padded(call: Call, x: Buffer) -> Buffer:
    """Return copies of square matrices with zeros beside and below, so that vectors divide their rows."""
    n = x.shape[1]
    pitch = -(-n // WIDE) * WIDE
    found = call.zeros(pitch, pitch)
    call.move(block(found, slice(n), slice(n)), x)
    return found


def _reduce(
    call: Call, kernel: str, n: int, matrices: tuple[Buffer, ...], results: tuple[Buffer, ...], *numbers: int
) -> None:
    """Reduce n x n matrices and, as the second of `matrices`, their adjoints, by a kernel of tridiagonal_reduce.cl."""
    pitch = matrices[0].shape[2]
    program = call.program("tridiagonal_reduce", PANEL=PANEL, WIDE=WIDE)
    left, right, lines = call.empty(2 * PANEL, pitch), call.empty(2 * PANEL, pitch), call.empty(2, pitch)
    memories = [a.memory for a in (*matrices, left, right, *results, lines)]
    for first in range(0, n, PANEL):
        last = min(first + PANEL, n)
        getattr(program, kernel)(*call.per_matrix(), *memories, n, pitch, first, last, *numbers)
        known, rest = slice(2 * (last - first)), slice(last, n)
        sides = block(left, known, rest), block(right, known, rest)
        for a, (x, y) in zip(matrices, (sides, sides[::-1]), strict=False):
            call.subtract_product(block(a, rest, rest), call.adjoint(x), y)


def _reflect(call: Call, reflections: Buffer, c: Buffer, first: int) -> None:
    """Apply reflections to matrices c; their conjugate vectors are rows, and row j begins in column first + j."""
    n = c.shape[1]
    vectors = call.adjoint(block(reflections, slice(n - first), slice(first, n)))
    qr.multiply(call, vectors, block(c, slice(first, n), slice(n)))


def _quotients(chain: "_Chain", u: Buffer, x: Buffer, v: Buffer, by: int) -> Buffer:
    """Return u^H x v of each pair of columns, ascending if by is 1, descending and not negative if it is -1.

    The reductions round the eigenvalues. These Rayleigh quotients are nearer, but their order may differ where two are
    nearly equal, so they are sorted.
    """
    (_, m, n), call = u.shape, chain.call
    p, found, values = matmul(call.device, spec_of(u), x, v), call.reals(n), call.reals(1, n)
    memories = [a.memory for a in (u, p, v, found)]
    chain.program.find_quotients(*call.per_matrix(-(-n // WIDE)), *memories, m, n, int(by < 0))
    arrays = found.memory, chain.order.memory, values.memory
    chain.program.sort(*call.per_matrix(), *arrays, n, n, 0 if by > 0 else n - 1, by)
    return values


class _Chain:
    """A Hermitian tridiagonal matrix for each matrix of a call, and its eigenvectors.

    Attributes:
        diagonal: The diagonal (matrices, size), of which padding is not set.
        links: The elements below it (matrices, rows); the last is not used.
        order: Workspace: numbers of eigenvalues (matrices, size), the lowest first.
        program: The kernels.
    """

    def __init__(self, call: Call, rows: int) -> None:
        self.call, self.rows, self._leaves, self._leaf = call, rows, 1, rows
        while self._leaf > MAX_LEAF:
            self._leaves *= 2
            self._leaf = -(-rows // self._leaves)
        self.size, self.real = self._leaf * self._leaves, real_of(call.acc)
        self.diagonal, self.links, self.order = call.reals(self.size), call.empty(rows), self._integers(1)
        macros = {"BITS": BITS[self.real], "EPS": EPS[self.real], "WIDE": WIDE, "LEAF": MAX_LEAF}
        self.program = call.program("tridiagonal_solve", **macros)

    def _integers(self, parts: int) -> Buffer:
        return self.call.device.empty(Spec((self.call.count, self.size, parts), INT32))

    def solve(self) -> None:
        """Find the eigenvalues and eigenvectors."""
        call, program, size = self.call, self.program, self.size
        self._phases, values, bounds = call.empty(self.rows), call.reals(size).memory, call.reals().memory
        below, vectors = call.reals(size).memory, call.reals(size, self._leaf)
        chain = self.diagonal.memory, below
        program.scale_chain(
            *call.per_matrix(), self.links.memory, self._phases.memory, *chain, bounds, self.rows, size
        )  # fmt: skip
        leaves = call.per_matrix(self._leaves)
        program.solve_leaves(*leaves, *chain, bounds, values, vectors.memory, self._leaf, self._leaves)
        poles, weights, offsets, turns = (call.reals(size, parts).memory for parts in (1, 1, 1, 2))
        columns, nearest, turned, counts = (self._integers(parts).memory for parts in (1, 1, 2, 2))
        rows, order = self._leaf, self.order.memory
        while rows < size:
            half, rows = rows, 2 * rows
            blocks, combined = size // rows, call.reals(size, rows)
            program.deflate(
                *call.per_matrix(blocks), below, bounds, values, vectors.memory, poles, weights, columns, order, turns,
                turned, counts, rows, blocks,
            )  # fmt: skip
            work, equation = call.per_matrix(blocks * -(-rows // WIDE)), (poles, weights, offsets, nearest, counts)
            program.find_roots(*work, *equation, rows)
            program.find_weights(*work, *equation, rows)
            program.find_vectors(*work, *equation, columns, turns, turned, values, combined.memory, rows)
            halves = call.count * 2 * blocks
            sides = reshaped(vectors, (halves, half, half)), reshaped(combined, (halves, half, rows))
            vectors = reshaped(matmul(call.device, spec_of(sides[1]), *sides), combined.shape)
        self._vectors = vectors
        program.sort(*call.per_matrix(), values, order, values, size, 0, 0, 0)

    def eigenvectors(self, n: int, rows: tuple[int, int], columns: tuple[int, int]) -> Buffer:
        """Return n rows of n eigenvectors (matrices, n, n).

        Args:
            n: The number of rows and of columns.
            rows: The first row, and the step to the next.
            columns: The first column, in the order of the eigenvalues, and the step to the next.
        """
        found = self.call.empty(n, n)
        arrays = self._vectors.memory, self._phases.memory, self.order.memory, found.memory
        self.program.collect(*self.call.per_matrix(n), *arrays, n, self.size, self.rows, *rows, *columns)
        return found
