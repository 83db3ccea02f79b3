"""Large allocations that are cut into pieces."""

import contextlib

import pyopencl as cl

GRANULE = 2 << 20  # bytes; CUDA allocates multiples of it
MAX_BUFFER_BYTES = 448 << 20  # OpenCL accepted 510 MB of CUDA's memory as one buffer; 512 and more end the process


class Chunk:
    """An allocation with its OpenCL buffer and its CUDA address (0 if CUDA does not know it).

    Pieces are cut from it up to `end`.
    """

    def __init__(self, buffer: cl.Buffer, address: int, owner: contextlib.ExitStack) -> None:
        self.buffer, self.address, self.size = buffer, address, buffer.size
        self.end = self.used = 0
        self.close = owner.close
