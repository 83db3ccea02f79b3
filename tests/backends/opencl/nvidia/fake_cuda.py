"""A fake CUDA driver that uses host memory."""

import ctypes
from contextlib import ExitStack, nullcontext
from importlib import import_module
from typing import Any

import numpy as np


class FakeCuda:
    """A replacement of cuda.Cuda that allocates on the host."""

    number, place = 0, "0000:00:00.0"

    def __init__(self, context: Any) -> None:
        self._context, self.log, self.chunks, self.alone = context, [], [], {}

    def allocate(self, nbytes: int) -> Any:
        cl, cuda = import_module("pyopencl"), import_module("polyarr.backends.opencl.nvidia.cuda")
        host = np.zeros(nbytes + 4096, np.uint8)
        start = -host.ctypes.data % 4096
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        buffer = cl.Buffer(self._context, flags, hostbuf=host[start : start + nbytes])
        undo = ExitStack()
        undo.callback(self.log.append, "closed")
        self.chunks.append(host)
        return cuda.Chunk(buffer, host.ctypes.data + start, undo)

    def current(self) -> Any:
        return nullcontext()

    def stream(self) -> int:
        return 7

    def wait(self) -> None:
        self.log.append("wait")

    def wait_for(self, stream: int) -> None:
        self.log.append(f"wait for {stream}")

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.log.append(f"copy {nbytes}")
        ctypes.memmove(target, source, nbytes)

    def move(self, address: int, host: int, nbytes: int, stream: int, from_host: bool) -> None:
        self.log.append(f"move {nbytes} {'from' if from_host else 'to'} the host")
        ctypes.memmove(*((address, host) if from_host else (host, address)), nbytes)

    def allocate_alone(self, nbytes: int) -> int:
        chunk = self.allocate(nbytes)
        self.alone[chunk.address] = chunk
        return chunk.address

    def free(self, address: int) -> None:
        del self.alone[address]
