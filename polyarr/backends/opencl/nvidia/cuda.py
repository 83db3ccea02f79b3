"""Memory shared by OpenCL and CUDA on NVIDIA devices, so that CUDA libraries can use arrays without a copy.

The CUDA driver, which comes with OpenCL's, allocates memory and exports a file descriptor, from which OpenCL makes a
buffer. The driver is called through ctypes; nothing else of CUDA is needed.
"""

import contextlib
import ctypes
import os
from collections import defaultdict, deque
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from typing import Any, NamedTuple

import pyopencl as cl

from polyarr.backends.opencl.runtime.chunk import GRANULE, MAX_BUFFER_BYTES, Chunk
from polyarr.backends.opencl.runtime.quirks import NVIDIA
from polyarr.core.errors import BackendError
from polyarr.settings import is_on

LEGACY = 1  # the default stream, which synchronizes with all others
DEVICE, DESCRIPTOR, READ_WRITE, ALONE = 1, 1, 3, 1  # constants of cuda.h
EXTERNAL_MEMORY = 0x2060  # CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR
CHUNK_BYTES = 64 << 20  # bytes that are allocated at once and cut into pieces


class CudaError(BackendError):
    """The CUDA driver reported an error."""


class _Location(ctypes.Structure):
    _fields_ = (("kind", c_int), ("number", c_int))


class _Flags(ctypes.Structure):
    _fields_ = (("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = (("pinned", c_int), ("handle", c_int), ("location", _Location), ("windows", c_void_p), ("flags", _Flags))


class _Access(ctypes.Structure):
    """CUmemAccessDesc of cuda.h."""

    _fields_ = (("location", _Location), ("rights", c_int))


class Cuda:
    """The CUDA driver, for the device of an OpenCL context."""

    def __init__(self, context: cl.Context) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise BackendError(f"CUDA's driver does not load: {error}") from error
        self._loader = ctypes.CDLL(cl._cl.__file__)  # the OpenCL loader, for functions that PyOpenCL does not expose
        self._loader.clCreateBufferWithProperties.restype = c_void_p
        self._opencl, self._context, number = context, c_void_p(), c_int()
        device = context.devices[0]
        self.place = f"{device.pci_domain_id_nv:04x}:{device.pci_bus_id_nv:02x}:{device.pci_slot_id_nv:02x}.0"
        self("cuInit", 0)
        self("cuDeviceGetByPCIBusId", byref(number), self.place.encode())
        self("cuDevicePrimaryCtxRetain", byref(self._context), number)
        self.number = number.value

    def __call__(self, name: str, *args: Any) -> None:
        """Call a function of the driver, and raise CudaError if it fails."""
        if status := getattr(self._driver, name)(*args):
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, byref(text))
            raise CudaError(f"CUDA: {name}: {(text.value or b'').decode() or status}")

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Context in which the CUDA context that libraries use is current."""
        self("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self("cuCtxPopCurrent_v2", byref(c_void_p()))

    def wait(self) -> None:
        """Wait until all CUDA work on the device has finished."""
        with self.current():
            self("cuCtxSynchronize")

    def wait_for(self, stream: int) -> None:
        """Wait until a stream's work has finished."""
        with self.current():
            self("cuStreamSynchronize", c_void_p(stream))

    def stream(self) -> int:
        """Return a new stream that synchronizes with no other."""
        made = c_void_p()
        with self.current():
            self("cuStreamCreate", byref(made), ALONE)
        return made.value or 0

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between device addresses, on a stream."""
        with self.current():
            self("cuMemcpyDtoDAsync_v2", c_uint64(target), c_uint64(source), c_size_t(nbytes), c_void_p(stream))

    def move(self, address: int, host: int, nbytes: int, stream: int, from_host: bool) -> None:
        """Copy from the host without waiting, or to the host and wait, after a stream's work."""
        device, name = c_uint64(address), "cuMemcpyHtoDAsync_v2" if from_host else "cuMemcpyDtoHAsync_v2"
        pair = (device, c_void_p(host)) if from_host else (c_void_p(host), device)
        with self.current():
            self(name, *pair, c_size_t(nbytes), c_void_p(stream))
            if not from_host:
                self("cuStreamSynchronize", c_void_p(stream))

    def allocate(self, nbytes: int) -> Chunk:
        """Allocate memory that both drivers know.

        Raises:
            CudaError: There is not enough memory.
        """
        size, none = c_size_t(nbytes), c_uint64(0)
        handle, address, descriptor = c_uint64(), c_uint64(), c_int()
        here = _Location(DEVICE, self.number)
        wanted, access = _Properties(1, DESCRIPTOR, here, None, _Flags()), _Access(here, READ_WRITE)
        with contextlib.ExitStack() as undo:
            self("cuMemCreate", byref(handle), size, byref(wanted), none)
            undo.callback(self, "cuMemRelease", handle)
            self("cuMemExportToShareableHandle", byref(descriptor), handle, DESCRIPTOR, none)
            self("cuMemAddressReserve", byref(address), size, c_size_t(0), none, none)
            undo.callback(self, "cuMemAddressFree", address, size)
            self("cuMemMap", address, size, c_size_t(0), handle, none)
            undo.callback(self, "cuMemUnmap", address, size)
            self("cuMemSetAccess", address, size, byref(access), c_size_t(1))
            buffer = self._imported(descriptor.value, nbytes)
            undo.callback(buffer.release)
            return Chunk(buffer, address.value, undo.pop_all())

    def allocate_alone(self, nbytes: int) -> int:
        """Return the address of memory that only CUDA knows.

        Raises:
            CudaError: There is not enough memory.
        """
        address = c_uint64()
        with self.current():
            self("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        return address.value

    def free(self, address: int) -> None:
        """Free memory of allocate_alone, after all work that uses it."""
        with self.current():
            self("cuMemFree_v2", c_uint64(address))

    def _imported(self, descriptor: int, nbytes: int) -> cl.Buffer:
        status, properties = c_int(), (c_uint64 * 3)(EXTERNAL_MEMORY, descriptor, 0)
        made = self._loader.clCreateBufferWithProperties(
            c_void_p(self._opencl.int_ptr), properties, c_uint64(cl.mem_flags.READ_WRITE), c_size_t(nbytes), None,
            byref(status),
        )  # fmt: skip
        if status.value or not made:
            os.close(descriptor)  # on success, OpenCL owns it
            raise CudaError(f"OpenCL takes no memory of CUDA's: error {status.value}")
        return cl.Buffer.from_int_ptr(made, retain=False)


class Piece:
    """A part of a chunk, for one array at a time. `lent`: CUDA may still use it when the array is gone."""

    __slots__ = ("address", "buffer", "chunk", "lent", "size")

    def __init__(self, chunk: Chunk, start: int, size: int) -> None:
        self.chunk, self.size, self.address, self.lent = chunk, size, chunk.address + start, False
        self.buffer = chunk.buffer.get_sub_region(start, size)  # ten times as slow as everything else here


class Held:
    """The `cuda` attribute of an array's memory: when it is freed, its piece returns to the pool."""

    __slots__ = ("_back", "piece")

    def __init__(self, piece: Piece, back: deque) -> None:
        self.piece, self._back = piece, back

    def __del__(self) -> None:
        self._back.append(self.piece)  # in any thread, so nothing else is done here


class Alone(NamedTuple):
    """Memory that only CUDA knows."""

    address: int
    size: int


class Adopted(NamedTuple):
    """The `cuda` attribute of memory that came back from another library, whose owner keeps it alive."""

    piece: Piece | Alone
    owner: Any


def is_lent(memory: Any) -> bool:
    """Return whether CUDA may still use memory for another library, though no array here refers to it."""
    held = getattr(memory, "cuda", None)
    return held is not None and (type(held) is not Held or held.piece.lent)


class SharedPool:
    """A memory pool like PyOpenCL's, of memory shared with CUDA; larger allocations come from `plain`.

    The caller holds the device's lock.
    """

    def __init__(self, cuda: Cuda, plain: Any, alignment: int) -> None:
        self.cuda, self._plain, self._alignment = cuda, plain, max(512, alignment)
        self._chunks: list[Chunk] = []
        self._free: defaultdict[int, list[Piece]] = defaultdict(list)
        self._lent: defaultdict[int, list[Piece]] = defaultdict(list)
        self._back: deque[Piece] = deque()
        self._twins: dict[int, Alone] = {}  # by the handle of the OpenCL buffer that they stand for
        self._active = 0

    def allocate(self, nbytes: int) -> Any:
        """Return a buffer of at least this many bytes."""
        size = self._rounded(nbytes)
        if size > MAX_BUFFER_BYTES:
            return self._plain.allocate(nbytes)
        self._gather()
        if not self._free[size] and self._lent[size]:
            self._settle()
        try:
            piece = self._free[size].pop() if self._free[size] else self._cut(size)
        except CudaError:  # no memory, or too many open files
            return self._plain.allocate(nbytes)
        piece.chunk.used += 1
        self._active += size
        return _buffer(piece, Held(piece, self._back))

    def allocate_for_run(self, nbytes: int) -> Any:
        """Return a buffer for a replay's intermediate values.

        A buffer that is too large to be shared has a twin: an OpenCL run uses the one, a CUDA graph the other.
        """
        memory = self.allocate(nbytes)
        if hasattr(memory, "cuda"):
            return memory
        twin = self._twins.get(memory.int_ptr)
        if twin is None or twin.size != nbytes:
            try:
                self._untwin(memory.int_ptr)
                twin = self._twins[memory.int_ptr] = Alone(self.cuda.allocate_alone(nbytes), nbytes)
            except CudaError:  # not enough memory
                return memory
        both = cl.Buffer.from_int_ptr(memory.int_ptr, retain=True)
        both.cuda = Adopted(twin, memory)
        return both

    def _untwin(self, handle: int) -> None:
        twin = self._twins.pop(handle, None)
        if twin is not None:
            self.cuda.free(twin.address)

    def adopt(self, start: int, end: int, owner: Any) -> Any:
        """Return a buffer of memory between two addresses, which owner keeps alive; None if it is not the pool's."""
        for chunk in self._chunks:
            if chunk.address <= start and end <= chunk.address + chunk.size:
                first = (start - chunk.address) // self._alignment * self._alignment
                size = min(-(-(end - chunk.address) // 64) * 64, chunk.size) - first  # whole vectors, as elsewhere
                piece = Piece(chunk, first, size)
                return _buffer(piece, Adopted(piece, owner))
        return None

    def part(self, memory: Any, start: int, nbytes: int) -> Any:
        """Return a part of a buffer, from a multiple of the alignment on; it does not keep the buffer alive."""
        piece = memory.cuda.piece if hasattr(memory, "cuda") else None
        if type(piece) is Piece:
            inner = Piece(piece.chunk, piece.address - piece.chunk.address + start, nbytes)
            return _buffer(inner, Adopted(inner, None))
        found = cl.Buffer.from_int_ptr(memory.int_ptr, retain=True).get_sub_region(start, nbytes)
        if piece is not None:
            found.cuda = Adopted(Alone(piece.address + start, nbytes), None)
        return found

    def free_held(self) -> None:
        """Free all unused memory."""
        self._gather()
        self._settle()
        unused = [chunk for chunk in self._chunks if not chunk.used]
        self._chunks = [chunk for chunk in self._chunks if chunk.used]
        for pieces in self._free.values():
            pieces[:] = [piece for piece in pieces if piece.chunk.used]
        for chunk in unused:
            chunk.close()
        for handle in [*self._twins]:
            self._untwin(handle)
        self._plain.free_held()

    @property
    def active_bytes(self) -> int:
        """Bytes in use by arrays."""
        self._gather()
        return self._active + self._plain.active_bytes

    @property
    def managed_bytes(self) -> int:
        """Bytes allocated from the drivers."""
        own = sum(piece.size for piece in (*self._chunks, *self._twins.values()))
        return own + self._plain.managed_bytes

    def _rounded(self, nbytes: int) -> int:
        """Round a size up to one of few sizes, so that pieces can be reused; this wastes at most an eighth."""
        step = max(self._alignment, 1 << max(nbytes.bit_length() - 4, 0))
        return -(-nbytes // step) * step

    def _cut(self, size: int) -> Piece:
        for chunk in self._chunks:
            if chunk.end + size <= chunk.size:
                break
        else:
            chunk = self.cuda.allocate(CHUNK_BYTES if 2 * size <= CHUNK_BYTES else -(-size // GRANULE) * GRANULE)
            self._chunks.append(chunk)
        chunk.end += size
        return Piece(chunk, chunk.end - size, size)

    def _gather(self) -> None:
        """Take back the pieces of freed arrays."""
        while self._back:
            piece = self._back.popleft()
            piece.chunk.used -= 1
            self._active -= piece.size
            (self._lent if piece.lent else self._free)[piece.size].append(piece)

    def _settle(self) -> None:
        """Wait for CUDA, which may still read lent pieces, and make these available."""
        if any(self._lent.values()):
            self.cuda.wait()
            for size, pieces in self._lent.items():
                for piece in pieces:
                    piece.lent = False
                self._free[size] += pieces
            self._lent.clear()


def _buffer(piece: Piece, holder: Any) -> Any:
    """Return the piece's memory as a new object, which lives as long as its array."""
    memory = cl.Buffer.from_int_ptr(piece.buffer.int_ptr, retain=True)
    memory.cuda = holder
    return memory


def pool_of(context: cl.Context, plain: Any) -> Any:
    """Return the pool for a context: `plain`, unless POLYARR_CUDA_MEMORY is set and the device is NVIDIA's."""
    device = context.devices[0]
    if not is_on("POLYARR_CUDA_MEMORY") or NVIDIA not in device.platform.name:
        return plain
    return SharedPool(Cuda(context), plain, device.mem_base_addr_align // 8)
