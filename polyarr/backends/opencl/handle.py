"""The stable interface of the OpenCL backend for kernels of other packages."""

from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.commands import Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.driver import OpenCL
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec


class Handle:
    """The `handle` of an OpenCL backend: what kernels of other packages may use.

    Everything else in this package may change from one version to the next. Kernels receive and return Buffers,
    which have memory, shape, dtype, strides and offset (both in elements). `build`, `empty` and `dense` are all that a
    kernel in OpenCL C needs; the other attributes are PyOpenCL's, and with CUDA's driver an error.

    Attributes:
        cl_device: PyOpenCL's device.
        context: Its context, for which programs are built.
        queue: The in-order queue on which everything is enqueued; no waiting is needed.
        lock: Hold it from setting a kernel's first argument until it is enqueued, because threads share the queue.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def build(self, source: str, **macros: Any) -> "Kernels":
        """Return the kernels of a source in OpenCL C 1.2, compiled at the first call, and kept on disk.

        Args:
            source: The source. Parameters of its kernels are pointers to global memory, int, uint, long, ulong, float
                and double.
            macros: Defined before the source. IS_CPU and HAS_FP64 are defined, too, as 0 or 1.

        Returns:
            An object whose attributes are the kernels; see OwnKernel.__call__ for their arguments.

        Raises:
            TypeError: source is not a str.
            BackendError: The source does not compile, has no kernel, or a kernel has another parameter.
        """
        if not isinstance(source, str):
            raise TypeError(f"handle.build: source is {source!r:.80}; it must be a str")
        device = self._device
        return Kernels(device.programs.of_source(source, macros), device.driver.memory)

    def empty(self, spec: Spec) -> Buffer:
        """Return an uninitialized row-major buffer, which is freed when it is dropped.

        Raises:
            DeviceMemoryError: Memory does not suffice.
        """
        return self._device.empty(spec)

    def dense(self, buffer: Buffer) -> Buffer:
        """Return the same elements in row-major order from offset 0 on, as most kernels require."""
        return dense(self._device, buffer)

    def __getattr__(self, name: str) -> Any:
        if name not in ("cl_device", "context", "queue", "lock"):
            raise AttributeError(f"an OpenCL backend's handle has no {name!r}")
        device = self._device
        if type(device.driver) is not OpenCL:
            raise BackendError(
                f"handle.{name}: {device.name} runs on CUDA's driver, whose memory PyOpenCL cannot use; use "
                "handle.build, or set POLYARR_DRIVER=opencl"
            )
        return QueueLock(device) if name == "lock" else getattr(device, name)


class Kernels:
    """The kernels of another package's source, as attributes."""

    def __init__(self, program: Program, memory: type) -> None:
        self._program, self._memory = program, memory

    def __getattr__(self, name: str) -> "OwnKernel":
        return OwnKernel(getattr(self._program, name), self._memory)


class OwnKernel(NamedTuple):
    """A kernel of another package, and the type of the device's memory."""

    kernel: Kernel
    memory: type

    def __call__(self, work: tuple[int, ...], group: tuple[int, ...] | None, *args: Any) -> None:
        """Enqueue the kernel; what is enqueued later runs after it.

        Args:
            work: Global size, along one to three axes; nothing happens if there are no work-items.
            group: Local size, which divides the global one; None for any.
            args: A dense Buffer, or the memory of one, for each pointer; a number for each scalar. The kernel may write
                Buffers from `empty` only.

        Raises:
            BackendError: An argument is missing or of another kind, or the device refuses the sizes.
        """
        name, types = self.kernel.name, self.kernel.arguments or ()
        if len(args) != len(types):
            raise BackendError(f"kernel {name}: {len(args)} arguments are given; it has {len(types)}")
        for what, sizes in (("global", work), ("local", () if group is None else group)):
            if not isinstance(sizes, tuple) or not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
                raise BackendError(f"kernel {name}: the {what} size is {sizes!r:.80}; it must be a tuple of ints")
        if group and (len(group) != len(work) or any(not m or n % m for n, m in zip(work, group, strict=True))):
            raise BackendError(f"kernel {name}: the global size {work} must be a multiple of the local size {group}")
        self.kernel(work, group or None, *map(self._passed, range(len(args)), args, types))

    def _passed(self, i: int, arg: Any, dtype: np.dtype | None) -> Any:
        what = f"kernel {self.kernel.name}: argument {i}"
        if dtype is not None:
            if not fits(arg, dtype):
                raise BackendError(f"{what} is {arg!r:.80}; it must be a number that fits {dtype}")
            return arg
        if isinstance(arg, Buffer):
            if not arg.is_dense:
                raise BackendError(f"{what} is a view; pass handle.dense of it, or its memory, offset and strides")
            return arg.memory
        if not isinstance(arg, self.memory):
            raise BackendError(f"{what} is {arg!r:.80}; it must be a Buffer or the memory of one")
        return arg


def fits(number: Any, dtype: np.dtype) -> bool:
    """Return whether a number can be passed as a dtype."""
    if not isinstance(number, (int | float | np.number) if dtype.kind == "f" else (int | np.integer)):
        return False
    try:
        dtype.type(number)
    except OverflowError:
        return False
    return True


class QueueLock:
    """The lock of a device for kernels of other packages; entering it first waits for pending commands."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, device.lock

    def __enter__(self) -> None:
        with self._lock:
            self._device.commands.settle()
            self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)
