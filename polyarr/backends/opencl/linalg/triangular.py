"""Triangular systems of equations, of no more rows than a panel has."""

from polyarr.backends.opencl.linalg.matrices import Call
from polyarr.backends.opencl.runtime.layout import Buffer

CHUNK = {"cpu": 256, "gpu": 128}  # columns for a work-group


def substitute(
    call: Call, m: Buffer, b: Buffer, *, upward: bool = False, divisor: int = 1, conjugate: bool = False,
    pivots: Buffer | None = None,
) -> None:  # fmt: skip
    """Replace b by the solution of m y = b.

    Args:
        call: The call of the decomposition.
        m: Triangular matrices: lower ones or, if upward, upper ones. The other triangle is not read.
        b: Matrices with contiguous rows, at least as many as m has.
        upward: Whether the last row is solved first.
        divisor: Divides the diagonal of m. 0 for a diagonal of ones, which is not read.
        conjugate: Whether m is conjugated.
        pivots: Rows of b that are exchanged with each other first: j with pivots[:, j].
    """
    columns, exchanges = b.shape[2], pivots or m
    chunks = -(-columns // CHUNK[call.kind])
    memories = m.memory, b.memory, exchanges.memory
    program = call.program("triangular", CHUNK=CHUNK[call.kind], PANEL=call.panel)
    program.substitute(
        *call.per_matrix(chunks), *memories, m.offset, *m.strides, b.offset, *b.strides[:2],
        exchanges.offset, exchanges.strides[0] if pivots else 0, m.shape[1], columns, chunks, int(upward), divisor,
        int(conjugate),
    )  # fmt: skip
