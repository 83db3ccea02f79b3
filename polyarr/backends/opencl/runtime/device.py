"""One OpenCL device: its context, queue, memory pool and features; upload, download, empty."""

import atexit
import ctypes
import gc
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.runtime.commands import Commands
from polyarr.backends.opencl.runtime.driver import ERRORS, OpenCL
from polyarr.backends.opencl.runtime.faults import Faults
from polyarr.backends.opencl.runtime.geometry import geometry_of
from polyarr.backends.opencl.runtime.layout import Buffer, row_major
from polyarr.backends.opencl.runtime.plans import Plans
from polyarr.backends.opencl.runtime.pocl import name_the_processor
from polyarr.backends.opencl.runtime.program import Program, ProgramCache
from polyarr.backends.opencl.runtime.quirks import NVIDIA, RUSTICL
from polyarr.backends.opencl.runtime.vendor import vendor
from polyarr.core.backend import count_download, count_upload
from polyarr.core.errors import BackendError, DeviceMemoryError, DtypeError
from polyarr.core.spec import Spec, float64, real_of

MAX_UPLOAD_BYTES = 1 << 26  # bytes of host copies in flight from which on an upload waits
FINISHED = cl.command_execution_status.COMPLETE
FORKED = "this process was forked after OpenCL had started; start processes with the method 'spawn' or 'forkserver'"
CANARY = 0xFF  # nan in every floating-point dtype


class Features(NamedTuple):
    """The features that a device reports.

    Attributes:
        is_cpu: Whether it gets the kernels for CPUs: few and long work-items.
        subnormals: Whether it computes with subnormal float32 numbers.
        ends_loops: Whether the loops of a work-item end after 65,535 iterations in all, as on Mesa's llvmpipe.
    """

    is_cpu: bool
    fp64: bool
    local_memory: int
    max_work_group: int
    compute_units: int
    global_memory: int
    max_allocation: int
    nvidia: bool
    architecture: int
    subnormals: bool
    ends_loops: bool


def features_of(device: cl.Device) -> Features:
    """Return a device's features; a feature whose query fails is missing."""
    return Features(
        is_cpu=_kernels_for(device) == "cpu",
        fp64="cl_khr_fp64" in device.extensions.split(),
        local_memory=device.local_mem_size,
        max_work_group=device.max_work_group_size,
        compute_units=device.max_compute_units,
        global_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        nvidia=NVIDIA in device.platform.name,
        architecture=_architecture(device),
        subnormals=bool(device.single_fp_config & cl.device_fp_config.DENORM),
        ends_loops=_ends_loops(device),
    )


def _ends_loops(device: cl.Device) -> bool:
    return bool(device.type & cl.device_type.CPU) and device.platform.name == RUSTICL


def _kernels_for(device: cl.Device) -> str:
    """Return the kind of kernels for a device: POLYARR_KERNELS, cpu or gpu, or else by the device's type.

    Raises:
        BackendError: POLYARR_KERNELS is neither.
    """
    is_cpu = bool(device.type & cl.device_type.CPU) and not _ends_loops(device)  # GPU kernels have short work-items
    wanted = os.environ.get("POLYARR_KERNELS") or ("cpu" if is_cpu else "gpu")
    if wanted not in ("cpu", "gpu"):
        raise BackendError(f"POLYARR_KERNELS is {wanted!r}; it must be cpu or gpu")
    return wanted


def _architecture(device: cl.Device) -> int:
    """Return NVIDIA's compute capability times 10, such as 90; 0 on other devices."""
    try:
        return 10 * device.compute_capability_major_nv + device.compute_capability_minor_nv
    except (cl.Error, AttributeError):
        return 0


def _at_exit(device: "weakref.ref[Device]") -> None:
    alive = device()
    if alive is not None:
        alive.end()


def allocation_of(device: "Device", out: Spec) -> tuple[int, tuple[int, ...]]:
    """Return the bytes and the strides of a row-major array; see Device.empty."""
    if (dtype := real_of(out.dtype)) == float64 and not device.features.fp64:
        name, narrower = device.cl_device.name.strip(), "float32" if out.dtype == dtype else "complex64"
        raise DtypeError(f"device {name!r} has no {out.dtype.name}; use {narrower}")
    return max(out.size, 1) * out.dtype.itemsize, row_major(out.shape)


class Refusal:
    """A lock that raises whenever it is acquired."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __enter__(self) -> None:
        raise BackendError(self._message)

    def __exit__(self, *_: object) -> None:
        """Never runs, as the lock is never acquired."""


class _Guarded(NamedTuple):
    """An allocation of `own` bytes from byte `start` of a larger one; all other bytes are canaries."""

    memory: cl.Buffer
    start: int
    own: int


class Device:
    """A device, for the life of the process.

    Work is enqueued in order on one queue, so a buffer may be dropped as soon as the kernel that reads it is enqueued:
    the next user of its memory comes later in the queue.

    Attributes:
        computes: Whether what launchers enqueue is computed: see planning.py.
    """

    computes = True

    def __init__(self, cl_device: cl.Device, name: str) -> None:
        name_the_processor(cl_device)
        self.cl_device, self.name = cl_device, name
        self.features, self.vendor = features_of(cl_device), vendor()
        self.geometry, self.plans = geometry_of(self.features), Plans(self)
        self.deterministic = os.environ.get("POLYARR_DETERMINISTIC") != "0"
        self.context = cl.Context([cl_device])
        self.driver = self.vendor.driver(self.context, cl_device) or OpenCL(self.context, cl_device)
        self.features = self.features._replace(max_allocation=self.driver.largest)
        self.commands = Commands(self.driver)
        self.queue, self.lock = self.commands.queue, self.commands.lock
        self.pool = self.driver.pool
        self.part_alignment = max(64, cl_device.mem_base_addr_align // 8)  # where a part of an allocation may begin
        self.lendings = 0  # number of times that memory of the pool was lent to other libraries
        self._peak = 0  # the most bytes that were in use
        self._guards: list[_Guarded] | None = None  # the allocations of a guarded block
        self._scratch: tuple[int, Any] = (0, None)  # its size in bytes
        known = {"IS_CPU": int(self.features.is_cpu), "HAS_FP64": int(self.features.fp64)}
        self.programs = ProgramCache(cl_device, self.commands, known | self.vendor.macros(self.features))
        self.faults = Faults(self)
        self.replays = weakref.WeakSet[Any]()  # replays that remember handles of memory that they do not hold
        atexit.register(_at_exit, weakref.ref(self))
        # (event, bytes): the event keeps its host array alive, and waits when it is dropped
        self._uploads: deque[tuple[Any, int]] = deque()

    def end(self) -> None:
        """Finish at the end of the process."""
        with suppress(BackendError, *ERRORS), self.lock:  # a device that was lost cannot save anything
            self.commands.finish()
            self.programs.compiler.keep_all()
        self.faults.report_unread()

    def abandon(self) -> None:
        """Disable the device in a forked child: whatever would reach the driver raises, and nothing is freed.

        The driver's threads do not exist in the child, so the driver would wait for them forever.
        """
        self.lock = self.commands.lock = Refusal(f"{self.name}: {FORKED}")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # destructors call the driver, too

    # ---- programs --------------------------------------------------------------------------------------------

    def build(self, stem: str, **defines: Any) -> Program:
        """Return the program of <stem>.cl with these macros, built once."""
        return self.programs.get(stem, defines)

    @property
    def is_guarded(self) -> bool:
        """Return whether this is a guarded block."""
        return self._guards is not None

    # ---- memory ----------------------------------------------------------------------------------------------

    def empty(self, out: Spec) -> Buffer:
        """Return an uninitialized row-major buffer.

        Raises:
            DeviceMemoryError: There is not enough memory.
            DtypeError: The device lacks the dtype.
        """
        return self.fresh(out, *self.plans[allocation_of](out))

    def fresh(self, out: Spec, nbytes: int, strides: tuple[int, ...]) -> Buffer:
        """Return an uninitialized buffer with the bytes and strides of allocation_of."""
        fields = self._allocate(nbytes), out.shape, out.dtype, strides, 0, self.faults.mine().origin
        return tuple.__new__(Buffer, fields)  # as Buffer(*fields), but more than twice as fast

    def fresh_all(self, outs: Sequence[Spec], rooms: Sequence[tuple[int, tuple[int, ...]]]) -> list[Buffer]:
        """Return several uninitialized buffers, faster than by fresh."""
        memories = self.allocate([nbytes for nbytes, _ in rooms])
        origin, new = self.faults.mine().origin, tuple.__new__
        return [
            new(Buffer, (memory, out.shape, out.dtype, room[1], 0, origin))
            for memory, out, room in zip(memories, outs, rooms, strict=True)
        ]

    def _allocate(self, nbytes: int) -> Any:
        own, nbytes = nbytes, (nbytes + 63) & ~63  # so that a kernel may read whole vectors at the end
        pool = self.pool
        with self.lock:
            if self._guards is not None:
                return self._between_canaries(self._guards, own, nbytes)
            memory = None
            # PoCL allocates more than the device has, until the system ends the process.
            if pool.managed_bytes + nbytes <= self.features.global_memory:
                try:
                    memory = pool.allocate(nbytes)
                except ERRORS:
                    memory = None
            if memory is None:
                memory = self._from_driver(nbytes)
            elif (active := pool.active_bytes) > self._peak:
                self._peak = active
            if self.commands.recording is not None:
                self.commands.recording.allocated(memory, nbytes)
            return memory

    def allocate(self, sizes: Sequence[int]) -> list[Any]:
        """Return memory of these sizes in bytes.

        Raises:
            DeviceMemoryError: There is not enough memory.
        """
        pool, rounded = self.pool, [(nbytes + 63) & ~63 for nbytes in sizes]
        with self.lock:
            if self._guards is None and pool.managed_bytes + sum(rounded) <= self.features.global_memory:
                with suppress(*ERRORS):
                    found = [pool.allocate(nbytes) for nbytes in rounded]
                    self._peak = max(self._peak, pool.active_bytes)
                    if self.commands.recording is not None:
                        for memory, nbytes in zip(found, rounded, strict=True):
                            self.commands.recording.allocated(memory, nbytes)
                    return found
            return [self._allocate(nbytes) for nbytes in sizes]

    def part(self, memory: Any, start: int, nbytes: int) -> Any:
        """Return nbytes of allocated memory from start on, a multiple of part_alignment."""
        return self.driver.part(memory, start, nbytes)

    def _from_driver(self, nbytes: int) -> Any:
        """Allocate from the driver, after the pool's unused memory was given back to it."""
        self.trim()
        if nbytes > self.features.max_allocation or self.pool.active_bytes + nbytes > self.features.global_memory:
            raise DeviceMemoryError(self._out_of_memory(nbytes))
        try:
            return self.driver.allocate(nbytes)  # not through the pool, which rounds up
        except ERRORS as error:
            raise DeviceMemoryError(self._out_of_memory(nbytes)) from error

    def scratch(self, nbytes: int) -> Any:
        """Return workspace of at least nbytes for one kernel; the next kernel in the queue may get the same memory.

        Raises:
            DeviceMemoryError: There is not enough memory.
        """
        if self._guards is not None or self.commands.recording is not None:  # they track allocations
            return self._allocate(nbytes)
        size, memory = self._scratch
        if size < nbytes:
            try:
                memory = self.driver.allocate(nbytes)  # not an array's, so not from the pool
            except ERRORS as error:
                raise DeviceMemoryError(self._out_of_memory(nbytes)) from error
            self.commands.finish_plain()
            self._scratch = nbytes, memory
        return memory

    def trim(self) -> None:
        """Collect garbage, and give unused memory back to the driver."""
        gc.collect()
        self.give_back()

    def give_back(self) -> None:
        """Give unused memory back to the driver."""
        with self.lock:
            self.commands.finish()
            for replay in self.replays:
                replay.forget()
            self.pool.free_held()
            self._scratch = 0, None

    def memory(self) -> dict[str, int]:
        """Return bytes in use by arrays, now and at most, bytes held by the pool, and the device's limits."""
        with self.lock:
            return {
                "in use": self.pool.active_bytes,
                "peak": self._peak,
                "held": self.pool.managed_bytes,
                "limit": self.features.global_memory,
                "largest allocation": self.features.max_allocation,
            }

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Context whose allocations do not count for the peak, and go back to the driver."""
        with self.lock:
            before = self._peak
            try:
                yield
            finally:
                self._peak = before
                self.trim()

    def _out_of_memory(self, nbytes: int) -> str:
        unique = {id(o.memory): o for o in gc.get_objects() if type(o) is Buffer}
        largest = sorted(unique.values(), key=lambda b: b.size * b.dtype.itemsize, reverse=True)[:3]
        holders = ", ".join(f"{b.dtype.name}{list(b.shape)}" for b in largest) or "none"
        device, features = self.cl_device.name.strip(), self.features
        return (
            f"device {device!r}: no room for {nbytes:,} bytes; {self.pool.active_bytes:,} in use of "
            f"{features.global_memory:,}, at most {features.max_allocation:,} at once; largest holders: {holders}"
        )

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Context whose allocations start as 0xff bytes between canaries, for tests of kernels.

        Raises:
            BackendError: (at the end) A kernel wrote outside its memory.
        """
        with self.lock:
            around = self._guards  # guarded blocks may be nested
            guards = self._guards = list[_Guarded]()
            try:
                yield
                for guarded in guards:
                    self._check_canaries(guarded)
            finally:
                self._guards = around

    def _between_canaries(self, guards: list[_Guarded], own: int, nbytes: int) -> Any:
        margin = max(256, self.part_alignment)
        whole = self.driver.allocate(margin + nbytes + margin)
        self.commands.transfer((whole.size,), None, whole, np.full(whole.size, CANARY, np.uint8))
        guards.append(_Guarded(whole, margin, own))
        return self.part(whole, margin, nbytes)

    def _check_canaries(self, guarded: _Guarded) -> None:
        host = np.empty(guarded.memory.size, np.uint8)
        self.commands.transfer((host.nbytes,), None, host, guarded.memory)
        host[guarded.start : guarded.start + guarded.own] = CANARY
        broken = np.flatnonzero(host != CANARY) - guarded.start
        if broken.size:
            raise BackendError(
                f"device {self.cl_device.name.strip()!r}: a kernel wrote to byte {broken[0]} of {guarded.own} bytes "
                f"of memory ({broken.size} bytes in all), with {self.commands.last_kernel} the last to be enqueued"
            )

    # ---- moving data -----------------------------------------------------------------------------------------

    def fill_zero(self, buf: Buffer) -> None:
        """Set a dense buffer to zero."""
        nbytes = -(-buf.size * buf.dtype.itemsize // 4) * 4  # rounded up to whole words
        self.commands.fill((nbytes,), None, buf.memory)

    def upload(self, host: np.ndarray) -> Buffer:
        """Return a copy of host on the device. Waits only if many bytes are in flight already."""
        with self.lock:
            while self._uploads and self._uploads[0][0].command_execution_status == FINISHED:
                self._uploads.popleft()
            waits = sum([nbytes for _, nbytes in self._uploads], host.nbytes) > MAX_UPLOAD_BYTES
        host = np.array(host, order="C", copy=None if waits else True)
        buf = self.empty(Spec(host.shape, host.dtype))
        command = self.commands.transfer if waits else self.commands.upload
        event = command((host.nbytes,), None, buf.memory, host.reshape(-1).view(np.uint8))
        if event is not None and not waits and self.driver.keeps_host:
            with self.lock:  # another thread may iterate over them
                self._uploads.append((event, host.nbytes))
        return buf

    def download(self, buf: Buffer) -> np.ndarray:
        """Return a copy of a dense buffer on the host. Waits for the queue, and reports faults of kernels.

        Raises:
            IndexError: An earlier op was given an index out of range.
        """
        host = np.empty(buf.shape, buf.dtype)
        with self.lock:
            if host.size:
                target = host.view(np.uint8) if host.ndim else host
                self.commands.transfer((host.nbytes,), None, target, buf.memory)
                self.programs.compiler.keep()
            self.faults.check()
        return host

    def download_later(self, buf: Buffer) -> Callable[[], np.ndarray]:
        """Return a function that downloads a dense buffer, without a wait for work that is enqueued after this call."""
        event = self.commands.mark().event

        def read() -> np.ndarray:
            host = np.empty(buf.shape, buf.dtype)
            if self.commands.is_timed or self.programs.compiler.unsaved:
                return self.download(buf)
            self.commands.wait(event)
            with self.lock, self.commands.apart():
                is_fine = self.faults.are_none_so_far()
                if is_fine and host.size:
                    target = host.view(np.uint8) if host.ndim else host
                    self.commands.transfer((host.nbytes,), None, target, buf.memory)
            return host if is_fine else self.download(buf)

        return read

    def read(self, buf: Buffer) -> np.ndarray:
        """Return a download within an op, counted as a transfer."""
        count_download(buf.size * buf.dtype.itemsize)
        return self.download(buf)

    def write(self, host: np.ndarray) -> Buffer:
        """Return an upload within an op, counted as a transfer."""
        count_upload(host.nbytes)
        return self.upload(host)

    def synchronize(self) -> None:
        """Wait until everything that was enqueued has finished."""
        with self.lock:
            self.commands.finish()
            self.programs.compiler.keep()
            self.faults.check()

    # ---- the words in which kernels note faults ----------------------------------------------------------------

    def empty_words(self, count: int) -> Any:
        """Allocate count int32, all 0."""
        memory = self._allocate(4 * count)
        self.write_words(memory, np.zeros(count, np.int32))
        return memory

    def write_words(self, memory: Any, words: np.ndarray) -> None:
        """Set memory to these int32."""
        self.commands.transfer((words.nbytes,), None, memory, words)

    def read_words(self, memory: Any, count: int) -> np.ndarray:
        """Return the first count int32 of memory. Waits for the queue."""
        words = np.empty(count, np.int32)
        self.commands.transfer((words.nbytes,), None, words, memory)
        return words
