"""NVIDIA's CUDA driver as the driver of a device: it owns memory, and launches the PTX of the OpenCL compiler.

It has the methods of the class OpenCL in runtime/driver.py. Other CUDA libraries share its memory without copies, and
recorded launches become CUDA graphs.
"""

import ctypes
import os
import re
import struct
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from ctypes import byref, c_float, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cached_property, lru_cache, partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.nvidia.cuda import Cuda, CudaError
from polyarr.backends.opencl.runtime.compiled import SILENT, NvidiaCompiler, programs_of
from polyarr.backends.opencl.runtime.quirks import NVIDIA
from polyarr.backends.opencl.runtime.source import STRUCTURE
from polyarr.core.errors import BackendError

ALIGNMENT, ADDRESS_BYTES = 512, 8  # of memory, in bytes; of an address
FREE_GROUP = 128  # work-items of a group, if that is free
MAX_SIZES = 4096  # numbers of bytes whose size in the pool is remembered
# Registers that only OpenCL sets: offsets of groups and work-items (0 here), and the number of groups.
COUNTS = {f"%envreg{6 + i}": f"%nctaid.{axis}" for i, axis in enumerate("xyz")}
REGISTERS = {f"%envreg{i}": "0" for i in range(6)} | COUNTS
REGISTER = re.compile(r"%envreg\d+")
ENTRY = re.compile(r"\.entry (\w+)")
MOVE = re.compile(r"mov\.[bu]32\s+(%\w+), %envreg(\d);")
TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
ADDRESS_SIZE = re.compile(r"^\.address_size \d+$", re.MULTILINE)
HOPPER = 90  # the first architecture with programmatic dependent launch, whose instructions these are
AWAIT_BEFORE, ALLOW_NEXT = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
SLICE = "slice_of_launch"  # the variable in which a launch in slices finds its place
MAX_GROUPS = 65535  # of a launch along the second and third axis
CODES = {"i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f", "f8": "d"}  # of struct, by a dtype's kind and size
PACK: dict[np.dtype | None, Callable[..., bytes]]
PACK = {np.dtype(name): struct.Struct(f"<{code}").pack for name, code in CODES.items()}


# ---- memory ------------------------------------------------------------------------------------------------------


class Memory:
    """Memory of the device, as an array holds it: from an address on.

    Attributes:
        owner: What it keeps alive, such as the memory of which it is a part.
        is_lent: Whether another library may use it after its array is gone.
    """

    __slots__ = ("_back", "int_ptr", "is_lent", "owner", "size")

    def __init__(self, address: int, size: int, back: Any = None, owner: Any = None) -> None:
        self.int_ptr, self.size, self._back, self.owner, self.is_lent = address, size, back, owner, False

    def __del__(self) -> None:
        if self._back is not None:
            self._back.append((self.int_ptr, self.size, self.is_lent))  # in any thread, so nothing else is done here


class Pool:
    """A pool of memory. The caller holds the device's lock."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # addresses by size
        self._fitting: dict[int, tuple[int, list[int]]] = {}  # by bytes asked for: the size, and its free addresses
        self._lent: list[tuple[int, int]] = []  # freed, but another library may still use it
        self._back: deque[tuple[int, int, bool]] = deque()
        self._active = self.managed_bytes = 0

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of at least this many bytes."""
        if self._back:
            self._gather()
        size, free = self._fitting.get(nbytes) or self._size_for(nbytes)
        if not free and self._lent:
            self._settle()
        if free:
            address = free.pop()
        else:
            address = self._cuda.allocate(size)
            self.managed_bytes += size
        self._active += size
        return Memory(address, size, self._back)

    def _size_for(self, nbytes: int) -> tuple[int, list[int]]:
        """Return the size of memory for so many bytes, one of few, and the free addresses of that size."""
        step = max(ALIGNMENT, 1 << max(nbytes.bit_length() - 4, 0))  # wastes at most an eighth
        size = -(-nbytes // step) * step
        if len(self._fitting) >= MAX_SIZES:
            self._fitting.clear()
        self._fitting[nbytes] = found = size, self._free[size]
        return found

    def free_held(self) -> None:
        """Free all unused memory. Nothing is enqueued that uses it."""
        self._gather()
        self._settle()
        for size, addresses in self._free.items():
            for address in addresses:
                self._cuda.free(address)
            self.managed_bytes -= size * len(addresses)
            addresses.clear()

    @property
    def active_bytes(self) -> int:
        """Bytes in use by arrays."""
        if self._back:
            self._gather()
        return self._active

    def _gather(self) -> None:
        """Take back the memory of freed arrays."""
        while self._back:
            address, size, is_lent = self._back.popleft()
            self._active -= size
            if is_lent:
                self._lent.append((address, size))
            else:
                self._free[size].append(address)

    def _settle(self) -> None:
        """Wait for other libraries, and make available what they used."""
        if self._lent:
            self._cuda.wait()
            for address, size in self._lent:
                self._free[size].append(address)
            self._lent.clear()


class Outside:
    """In place of the pool: for memory outside of it. The device may still compute with what is freed."""

    def __init__(self, cuda: Cuda, is_own: bool) -> None:
        self._cuda, self._is_own = cuda, is_own

    def append(self, freed: tuple[int, int, bool]) -> None:
        """Take back memory: wait, and free it if it is not another library's."""
        with suppress(CudaError):  # the device was lost
            self._cuda.wait()
            if self._is_own:
                self._cuda.free(freed[0])


# ---- streams and events ------------------------------------------------------------------------------------------


class Stream:
    """A stream as a queue of OpenCL's. `base` is an event from which the times of its commands count, if it has times.
    """

    def __init__(self, cuda: Cuda, device: cl.Device, has_times: bool = False) -> None:
        self._cuda, self.device, self.handle = cuda, device, c_void_p(cuda.stream())
        self.base: c_void_p | None = None
        if has_times:
            self.base = self.event()
            self.finish()

    def finish(self) -> None:
        """Wait until everything enqueued has finished."""
        self._cuda.wait_for(self.handle.value or 0)

    def flush(self) -> None:
        """Do nothing: what is enqueued begins at once."""

    def event(self) -> c_void_p:
        """Return an event behind everything enqueued so far."""
        made = c_void_p()
        with self._cuda.current():
            self._cuda("cuEventCreate", byref(made), 0)
            self._cuda("cuEventRecord", made, self.handle)
        return made

    def timed(self, enqueue: Callable[[], Any]) -> "Event | None":
        """Enqueue something, and return its times if this stream has them."""
        if self.base is None:
            enqueue()
            return None
        start = self.event()
        enqueue()
        return Event(self._cuda, self.base, start, self.event())

    def __del__(self) -> None:
        if self.base is not None:
            with suppress(CudaError):  # the device was lost
                self._cuda("cuStreamDestroy_v2", self.handle)


class Times(NamedTuple):
    """The times of a command in nanoseconds."""

    start: float
    end: float


class Event:
    """The times of a command, as those of an event of OpenCL's."""

    def __init__(self, cuda: Cuda, base: c_void_p, start: c_void_p, end: c_void_p) -> None:
        self._cuda, self._base, self._start, self._end = cuda, base, start, end

    def wait(self) -> None:
        """Wait until the command has finished."""
        self._cuda("cuEventSynchronize", self._end)

    @property
    def profile(self) -> Times:
        """When the command started and ended."""
        return Times(self._since_base(self._start), self._since_base(self._end))

    def _since_base(self, event: c_void_p) -> float:
        milliseconds = c_float()
        self._cuda("cuEventElapsedTime", byref(milliseconds), self._base, event)
        return milliseconds.value * 1e6

    def __del__(self) -> None:
        with suppress(CudaError):  # the device was lost
            for event in (self._start, self._end):
                self._cuda("cuEventDestroy_v2", event)


# ---- programs ----------------------------------------------------------------------------------------------------


class Module:
    """A built program.

    Attributes:
        handle: CUDA's module.
        names: The names of its kernels.
        may_begin_early: Whether the code of its kernels waits for the kernel before them.
    """

    def __init__(self, cuda: Cuda, text: str, log: str = "") -> None:
        self._cuda, self._text, self._log = cuda, zlib.compress(text.encode()), log
        self.handle, self.names = cuda.module(ptx_that_waits(ptx_for_cuda(text))), ENTRY.findall(text)
        self.may_begin_early = is_for_hopper(text)

    def get_build_info(self, device: Any, what: Any) -> str:
        """Return the compiler's log, as a program of OpenCL's does."""
        return self._log

    @cached_property
    def in_slices(self) -> tuple[c_void_p, int]:
        """The module for launches in slices, and the address of the nine int32 in which a launch finds its place."""
        handle = self._cuda.module(ptx_in_slices(zlib.decompress(self._text).decode()))
        return handle, self._cuda.address(handle, SLICE)


class CudaCompiler(NvidiaCompiler):
    """NVIDIA's OpenCL compiler, whose PTX the CUDA driver loads. It is saved, as OpenCL takes 15 ms from its cache."""

    def __init__(self, context: cl.Context, device: cl.Device, cuda: Cuda) -> None:
        super().__init__(context)
        self._device, self._cuda, self._store = device, cuda, programs_of(device)

    def build(self, name: str, source: str, options: list[str]) -> Module:
        """Return the built program."""
        log, text = "", self._saved(name)
        if text is None:
            program = self.built(source, options)
            log, text = str(program.get_build_info(self._device, cl.program_build_info.LOG)), self.ptx(program)
            if SILENT in options:
                self._store.save(name, zlib.compress(text.encode()))
        return Module(self._cuda, self.lifted(text, source), log)

    def is_slow(self, name: str) -> bool:
        """Return whether a program is not saved."""
        return self._store.load(name) is None

    def _saved(self, name: str) -> str | None:
        content = self._store.load(name)
        with suppress(zlib.error, UnicodeError):
            return None if content is None else zlib.decompress(content).decode()
        return None


def ptx_for_cuda(text: str) -> str:
    """Return PTX with OpenCL's registers replaced by those that CUDA sets.

    Raises:
        CudaError: It reads registers that have no counterpart.
    """
    unknown = {*REGISTER.findall(text)} - REGISTERS.keys()
    if unknown:
        raise CudaError(f"CUDA: the PTX reads {', '.join(sorted(unknown))}")
    return REGISTER.sub(lambda found: REGISTERS[found[0]], text)


def is_for_hopper(text: str) -> bool:
    """Return whether PTX is for an architecture with programmatic dependent launch."""
    found = TARGET.search(text)
    return found is not None and int(found[1]) >= HOPPER


def ptx_that_waits(text: str) -> str:
    """Return PTX whose kernels first wait for the kernel before them; those that wait somewhere stay as they are.

    Then a graph may begin a kernel as soon as the work-groups of the one before it have begun.
    """
    if not is_for_hopper(text):
        return text
    first, *kernels = text.split(".entry ")
    begin = f"{{\n{AWAIT_BEFORE}\n{ALLOW_NEXT}"
    return ".entry ".join([first, *(each if AWAIT_BEFORE in each else each.replace("{", begin, 1) for each in kernels)])


def ptx_in_slices(text: str) -> str:
    """Return PTX that reads its place in the whole launch from memory, instead of registers of OpenCL's.

    These are the first group along each axis, its first work-item, and the number of groups.
    """
    text = MOVE.sub(lambda found: f"ld.global.u32 {found[1]}, [{SLICE}+{4 * int(found[2])}];", text)
    return ADDRESS_SIZE.sub(rf"\g<0>\n.visible .global .align 4 .u32 {SLICE}[9];", text, count=1)


class Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of cuda.h, in its first version."""

    _fields_ = (
        ("function", c_void_p), ("groups", c_uint * 3), ("items", c_uint * 3), ("room", c_uint),
        ("arguments", c_void_p), ("more", c_void_p),
    )  # fmt: skip


class Kernel:
    """A kernel, and the arguments of its next launch.

    Attributes:
        version: A number that changes with the arguments.
        may_begin_early: See Module.
    """

    def __init__(self, cuda: Cuda, module: Module, name: str) -> None:
        self._cuda, self._launch, self._module, self._name = cuda, cuda.driver.cuLaunchKernel, module, name
        self.function, self.may_begin_early = cuda.function(module.handle, name), module.may_begin_early
        self._layout = cuda.parameters(self.function)
        end = sum(self._layout[-1]) if self._layout else 0
        self._bytes: Any = (c_ubyte * max(end, 1))()
        start = ctypes.addressof(self._bytes)
        self.arguments = (c_void_p * len(self._layout))(*[start + offset for offset, _ in self._layout])
        self._types: tuple[Any, ...] | None = None
        self._packed: Any = None  # a Struct, once the types are known
        self.version = 0

    def set_scalar_arg_dtypes(self, types: tuple[Any, ...] | None) -> None:
        """Note the types of the arguments, as kernels of PyOpenCL's do."""
        if types is None:
            return
        code, end = "<", 0
        for dtype, (offset, size) in zip(types, self._layout, strict=True):
            kind = "Q" if dtype is None else CODES.get(f"{dtype.kind}{size}", f"{size}s")
            code, end = f"{code}{offset - end}x{kind}", offset + size
        self._types, self._packed = types, struct.Struct(code)

    def __call__(self, stream: Stream, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> Any:
        """Launch the kernel, and return its times if the stream has them."""
        values = [a.int_ptr if type(a) is Memory else 0 if a is None else a for a in args]
        try:
            self._packed.pack_into(self._bytes, 0, *values)
        except (struct.error, TypeError, AttributeError, OverflowError):  # types are unknown, or to be converted
            for i, arg in enumerate(args):
                self.set_number(i, arg, self._types[i] if self._types else None)
        return self.launch(stream, work, group)

    def launch(self, stream: Stream, work: tuple[int, ...], group: tuple[int, ...] | None) -> Any:
        """Launch the kernel with its current arguments, and return its times if the stream has them."""
        sizes = _sizes(work, group)
        given = self.function, *sizes, 0, stream.handle, self.arguments, None
        if stream.base is None and not self._launch(*given):  # as below, but faster
            return None
        if max(sizes[1:3]) > MAX_GROUPS:
            return stream.timed(lambda: self._launch_in_slices(stream, sizes))
        return stream.timed(lambda: self._cuda("cuLaunchKernel", *given))

    def _launch_in_slices(self, stream: Stream, sizes: tuple[int, ...]) -> None:
        """Launch the kernel in slices of as many groups as CUDA allows."""
        (x, y, z), items = sizes[:3], sizes[3:]
        module, address = self._module.in_slices
        function = self._cuda.function(module, self._name)
        for first_z in range(0, z, MAX_GROUPS):
            for first_y in range(0, y, MAX_GROUPS):
                first = 0, first_y * items[1], first_z * items[2]
                place = (c_uint * 9)(0, first_y, first_z, *first, x, y, z)
                self._cuda("cuMemcpyHtoDAsync_v2", c_uint64(address), place, c_size_t(36), stream.handle)
                groups = x, min(y - first_y, MAX_GROUPS), min(z - first_z, MAX_GROUPS)
                self._cuda("cuLaunchKernel", function, *groups, *items, 0, stream.handle, self.arguments, None)

    def set_arg(self, i: int, value: Any) -> None:
        """Set an argument: memory or None, or a scalar of NumPy's or bytes of the right size."""
        if type(value) is Memory or value is None:
            self._put(i, struct.pack("<Q", value.int_ptr if value else 0))
        else:
            self._put(i, value if type(value) is bytes else np.asarray(value).tobytes())

    def set_number(self, i: int, value: Any, dtype: np.dtype | None) -> None:
        """Set an argument, a scalar converted to a dtype."""
        if type(value) is bytes:
            return self._put(i, value)
        try:
            return self._put(i, PACK[dtype](value))
        except (KeyError, struct.error, TypeError, OverflowError):  # it is to be converted
            pass
        if dtype is not None and dtype != STRUCTURE:
            with np.errstate(all="ignore"):  # too large a number is infinite, as in OpenCL
                value = np.asarray(value).astype(dtype)
        self.set_arg(i, value)

    def _put(self, i: int, value: bytes) -> None:
        offset, size = self._layout[i]
        if len(value) != size:
            raise CudaError(f"CUDA: argument {i} has {len(value)} bytes; the kernel takes {size}")
        self._bytes[offset : offset + size] = value
        self.version += 1

    def addresses(self, which: Iterable[int] | None = None) -> set[int]:
        """Return the addresses of memory that are among some arguments, or among all; other numbers may be, too."""
        places = self._layout if which is None else [self._layout[i] for i in which]
        found = {int.from_bytes(self._bytes[at : at + size], "little") for at, size in places if size == ADDRESS_BYTES}
        return found - {0}

    def node(self, work: tuple[int, ...], group: tuple[int, ...] | None) -> Node:
        """Return its launch as a node of a graph."""
        groups = _sizes(work, group)
        return Node(self.function, groups[:3], groups[3:], 0, ctypes.addressof(self.arguments), None)


@lru_cache(maxsize=8192)
def _sizes(work: tuple[int, ...], group: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the number of groups and the size of a group, along three axes each; the size is free if group is None."""
    group = group or (gcd(work[0], FREE_GROUP), 1, 1)[: len(work)]
    counts = [n // each for n, each in zip(work, group, strict=True)]
    if any(n % each for n, each in zip(work, group, strict=True)):
        raise CudaError(f"CUDA: {work} work-items; they must be a multiple of a group of {group}")
    return *(*counts, 1, 1)[:3], *(*group, 1, 1)[:3]


# ---- the driver --------------------------------------------------------------------------------------------------


class CudaDriver:
    """The driver of a device; see the class OpenCL in runtime/driver.py."""

    memory, keeps_host = Memory, False

    def __init__(self, context: cl.Context, device: cl.Device, cuda: Cuda) -> None:
        self._context, self._device, self.cuda = context, device, cuda
        self.queue, self.pool = Stream(cuda, device), Pool(cuda)
        self.largest = device.global_mem_size

    def timing_queue(self) -> Stream:
        """Return a new stream whose commands have times."""
        return Stream(self.cuda, self._device, has_times=True)

    def queue_apart(self) -> Stream:
        """Return a new stream, which waits for no other."""
        return Stream(self.cuda, self._device)

    def mark(self, queue: Stream) -> Event:
        """Return the event that everything enqueued so far has finished."""
        now = queue.event()
        return Event(self.cuda, now, queue.event(), now)

    def allocate(self, nbytes: int) -> Memory:
        """Allocate outside of the pool."""
        return Memory(self.cuda.allocate(nbytes), nbytes, Outside(self.cuda, is_own=True))

    def part(self, memory: Memory, start: int, nbytes: int) -> Memory:
        """Return a part of memory, from byte start on."""
        found = Memory(memory.int_ptr + start, nbytes, owner=memory)
        found.is_lent = memory.is_lent
        return found

    def adopted(self, address: int, nbytes: int, owner: Any) -> Memory:
        """Return memory of another library, which `owner` keeps alive."""
        found = Memory(address, nbytes, Outside(self.cuda, is_own=False), owner)
        found.is_lent = True
        return found

    def held(self, memory: Memory, owner: Any) -> Memory:
        """Return the same memory as another object, which keeps an object alive."""
        return Memory(memory.int_ptr, memory.size, owner=(memory, owner))

    def is_lent(self, memory: Memory) -> bool:
        """Return whether another library may use memory, though no array here refers to it."""
        return memory.is_lent

    def is_foreign(self, memory: Any) -> bool:
        """Return whether memory is not CUDA's. On which of CUDA's devices it lies, an address does not say."""
        return type(memory) is not Memory

    # ---- commands --------------------------------------------------------------------------------------------

    def upload(self, queue: Stream, work: Any, group: Any, target: Memory, source: np.ndarray) -> Event | None:
        """Enqueue a copy from pageable memory of the host, whose bytes are read at once."""
        given = c_uint64(target.int_ptr), c_void_p(source.ctypes.data), c_size_t(source.nbytes), queue.handle
        return queue.timed(lambda: self.cuda("cuMemcpyHtoDAsync_v2", *given))

    def transfer(self, queue: Stream, work: Any, group: Any, target: Any, source: Any) -> Event | None:
        """Copy from or to the host, and wait."""
        if isinstance(source, np.ndarray):
            found = self.upload(queue, work, group, target, source)
        else:
            given = c_void_p(target.ctypes.data), c_uint64(source.int_ptr), c_size_t(target.nbytes), queue.handle
            found = queue.timed(lambda: self.cuda("cuMemcpyDtoHAsync_v2", *given))
        queue.finish()
        return found

    def copy(self, queue: Stream, work: Any, group: Any, target: Memory, source: Memory) -> Event | None:
        """Enqueue a copy within the device."""
        given = c_uint64(target.int_ptr), c_uint64(source.int_ptr), c_size_t(work[0]), queue.handle
        return queue.timed(lambda: self.cuda("cuMemcpyDtoDAsync_v2", *given))

    def fill(self, queue: Stream, work: Any, group: Any, target: Memory) -> Event | None:
        """Enqueue a fill with zeros."""
        given = c_uint64(target.int_ptr), c_ubyte(0), c_size_t(work[0]), queue.handle
        return queue.timed(lambda: self.cuda("cuMemsetD8Async", *given))

    # ---- kernels ---------------------------------------------------------------------------------------------

    def compiler(self) -> CudaCompiler:
        """Return the compiler."""
        return CudaCompiler(self._context, self._device, self.cuda)

    def kernels(self, program: Module) -> dict[str, Kernel]:
        """Return the kernels of a program by name."""
        return {name: self.kernel(program, name) for name in program.names}

    def kernel(self, program: Module, name: str) -> Kernel:
        """Return a kernel of a program as a new object with arguments of its own."""
        return Kernel(self.cuda, program, name)

    def again(self, kernel: Kernel, work: Any, group: Any) -> Callable[[], Any]:
        """Return a function that launches a kernel with its current arguments; it returns an error code."""
        sizes = _sizes(work, group)
        if max(sizes[1:3]) > MAX_GROUPS:
            return partial(kernel.launch, self.queue, work, group)
        given = *sizes, 0, self.queue.handle, kernel.arguments, None
        return partial(self.cuda.driver.cuLaunchKernel, kernel.function, *given)

    def relaunch(self, queue: Stream, kernel: Kernel, work: Any, group: Any) -> Event | None:
        """Launch a kernel with its current arguments."""
        return kernel.launch(queue, work, group)

    @staticmethod
    def set_number(kernel: Kernel, i: int, dtype: np.dtype | None, value: Any) -> None:
        """Set an argument, a scalar converted to its type."""
        kernel.set_number(i, value, dtype)


def driver_of(context: cl.Context, device: cl.Device) -> CudaDriver | None:
    """Return CUDA's driver for a device; None if it is not NVIDIA's, or OpenCL's is wanted or has to serve.

    Raises:
        BackendError: POLYARR_DRIVER is neither cuda nor opencl, or cuda and does not work.
    """
    wanted = os.environ.get("POLYARR_DRIVER", "")
    if wanted not in ("", "cuda", "opencl"):
        raise BackendError(f"POLYARR_DRIVER is {wanted!r}; it must be cuda or opencl")
    if NVIDIA not in device.platform.name or wanted == "opencl":
        return None
    try:
        return CudaDriver(context, device, Cuda(device))
    except CudaError as error:
        if wanted:
            raise BackendError(f"POLYARR_DRIVER is {wanted!r}: {error}") from None
        return None


def diagnose(device: Any) -> list[tuple[str, str]]:
    """Return lines of `polyarr doctor`: which driver a device of NVIDIA's has, and why."""
    if not device.features.nvidia:
        return []
    if type(device.driver) is CudaDriver:
        return [("ok", f"{device.name}: CUDA's driver owns the memory and launches kernels")]
    try:
        Cuda(device.cl_device)
    except CudaError as error:
        return [("warning", f"{device.name}: OpenCL's driver launches kernels, without CUDA graphs: {error}")]
    return [("ok", f"{device.name}: OpenCL's driver launches kernels, as POLYARR_DRIVER says")]
