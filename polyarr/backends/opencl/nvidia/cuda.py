"""NVIDIA's CUDA driver, called through ctypes; nothing else of CUDA is needed."""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from polyarr.backends.opencl.runtime.driver import DriverError

DEFAULT_STREAM = 1  # the legacy default stream, which synchronizes with all others
ALONE = 1  # flag of cuda.h: a stream that synchronizes with no other
ANOTHER_CONTEXT = (201, 400)  # status of a call in a thread whose CUDA context is another, or none
LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class CudaError(DriverError):
    """The CUDA driver reported an error."""


class Current:
    """Block of code in which a CUDA context is current. It may be entered again, and by several threads at once."""

    def __init__(self, cuda: "Cuda", context: c_void_p) -> None:
        self._cuda, self._context, self._left = cuda, context, byref(c_void_p())

    def __enter__(self) -> None:
        self._cuda("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        self._cuda("cuCtxPopCurrent_v2", self._left)


class Cuda:
    """The CUDA driver, for a device of OpenCL.

    Attributes:
        place: Where the device is: its PCI bus id.
        number: The device's number in CUDA.
    """

    def __init__(self, device: Any) -> None:
        try:
            self.driver = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(f"CUDA's driver does not load: {error}") from error
        if not hasattr(self.driver, "cuFuncGetParamInfo"):
            raise CudaError("CUDA's driver is older than 12.4")
        self._context, number = c_void_p(), c_int()
        self.place = f"{device.pci_domain_id_nv:04x}:{device.pci_bus_id_nv:02x}:{device.pci_slot_id_nv:02x}.0"
        self("cuInit", 0)
        self("cuDeviceGetByPCIBusId", byref(number), self.place.encode())
        self("cuDevicePrimaryCtxRetain", byref(self._context), number)
        self._current = Current(self, self._context)
        self.number = number.value

    def __call__(self, name: str, *args: Any) -> None:
        """Call a function of the driver.

        Raises:
            CudaError: It fails.
        """
        call = getattr(self.driver, name)
        status = call(*args)
        if status in ANOTHER_CONTEXT:  # of another library in this thread, or this is a new thread
            self.driver.cuCtxSetCurrent(self._context)
            status = call(*args)
        if status:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, byref(text))
            raise CudaError(f"CUDA: {name}: {(text.value or b'').decode() or status}")

    def current(self) -> "Current":
        """Return a context in which the CUDA context that libraries use is current."""
        return self._current

    def wait(self) -> None:
        """Wait until all work on the device has finished."""
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

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory.

        Raises:
            CudaError: There is not enough memory.
        """
        address = c_uint64()
        with self.current():
            self("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        return address.value

    def free(self, address: int) -> None:
        """Free memory, after all work that uses it."""
        with self.current():
            self("cuMemFree_v2", c_uint64(address))

    def module(self, ptx: str) -> c_void_p:
        """Return the module of a program in PTX."""
        made = c_void_p()
        with self.current():
            self("cuModuleLoadData", byref(made), ptx.encode())
        return made

    def function(self, module: c_void_p, name: str) -> c_void_p:
        """Return a kernel of a module."""
        found = c_void_p()
        self("cuModuleGetFunction", byref(found), module, name.encode())
        return found

    def address(self, module: c_void_p, name: str) -> int:
        """Return the address of a variable of a module."""
        found, size = c_uint64(), c_size_t()
        self("cuModuleGetGlobal_v2", byref(found), byref(size), module, name.encode())
        return found.value

    def parameters(self, function: c_void_p) -> list[tuple[int, int]]:
        """Return the offset and the size in bytes of each parameter of a kernel."""
        found, offset, size = list[tuple[int, int]](), c_size_t(), c_size_t()
        while not self.driver.cuFuncGetParamInfo(function, c_size_t(len(found)), byref(offset), byref(size)):
            found.append((offset.value, size.value))
        return found
