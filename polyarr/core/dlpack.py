"""DLPack: zero-copy exchange of memory with other libraries.

NumPy creates and reads the capsules. Devices and bfloat16, which NumPy does not support, are patched into the capsule
afterwards. An ndarray may describe device memory here, since NumPy does not access memory until it computes.
"""

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr.core.current import traced
from polyarr.core.spec import DTYPES, Spec, as_dtype, bfloat16, shown
from polyarr.core.tape import check_unrecorded, hold

CPU = (1, 0)
HOST, CUDA = (1, 3), 2  # device types: CPU and CUDA host memory; CUDA
VERSION = (1, 0)
READ_ONLY, COPIED = 1, 2
UINT, BFLOAT = 1, 4
KINDS = {0: "int", UINT: "uint", 2: "float", BFLOAT: "bfloat", 5: "complex"}
BOOL = (6, 8)
NAMES = {dtype.name for dtype in DTYPES}


class _Tensor(ctypes.Structure):
    """The struct DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """The struct DLManagedTensorVersioned of dlpack.h, which has flags."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


# Own prototypes: those of ctypes.pythonapi are shared with all other libraries.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _versioned(capsule: Any) -> _Versioned | None:
    name = b"dltensor_versioned"
    return _Versioned.from_address(_pointer(capsule, name)) if _is_valid(capsule, name) else None


def _tensor(capsule: Any) -> _Tensor:
    versioned = _versioned(capsule)
    return versioned.tensor if versioned is not None else _Tensor.from_address(_pointer(capsule, b"dltensor"))


def capsule_of(memory: np.ndarray, device: tuple[int, int], max_version: Any, flags: int = 0) -> Any:
    """Return a capsule for memory that an ndarray describes.

    Raises:
        BufferError: A stride is negative. No other library supports this, and PyTorch aborts the process.
    """
    if min(memory.strides, default=0) < 0:
        raise BufferError("__dlpack__: a reversed array cannot be shared")
    narrow = memory.dtype == bfloat16
    made = (memory.view(np.uint16) if narrow else memory).__dlpack__(max_version=max_version)
    tensor = _tensor(made)
    tensor.kind, tensor.number = device
    if narrow:
        tensor.code = BFLOAT
    return _flagged(made, flags)


def _flagged(capsule: Any, flags: int) -> Any:
    """Set flags on a capsule, if its version has them, and return it."""
    if flags and (versioned := _versioned(capsule)) is not None:
        versioned.flags |= flags
    return capsule


def memory_of(x: Any, **asked: Any) -> np.ndarray:
    """Return the memory that x exports, on any device, as an ndarray that keeps it alive.

    Args:
        x: Object with `__dlpack__`.
        **asked: Arguments of `x.__dlpack__`.

    Raises:
        BufferError: x does not export its memory, or has a dtype that NumPy lacks.
    """
    made = _asked(x, max_version=VERSION, **asked)
    tensor = _tensor(made)
    kind = _kind(tensor)
    narrow, tensor.kind = (tensor.code, tensor.bits) == (BFLOAT, 16), CPU[0]
    if narrow:
        tensor.code = UINT
    try:
        memory = np.from_dlpack(_Given(made))
    except (BufferError, RuntimeError) as error:  # the latter before NumPy 2.5
        lacks = f"its dtype is {kind}, which polyarr does not have"
        raise BufferError(str(error) if kind in NAMES else lacks) from None
    return memory.view(bfloat16) if narrow else memory


def _kind(tensor: _Tensor) -> str:
    """Return the name of a dtype, also of one that polyarr lacks."""
    code, bits = tensor.code, tensor.bits
    return "bool" if (code, bits) == BOOL else f"{KINDS.get(code, f'code {code} of DLPack, bits ')}{bits}"


def _asked(x: Any, max_version: Any, **asked: Any) -> Any:
    """Return the capsule of x, which may support DLPack before 1.0 only."""
    try:
        return x.__dlpack__(max_version=max_version, **asked)
    except TypeError:
        pass
    try:
        return x.__dlpack__(**asked)
    except TypeError as error:
        raise BufferError(str(error)) from None


class _Given:
    """Exporter of an existing capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def is_on_host(x: Any) -> bool:
    """Return whether the memory that x exports is host memory."""
    return x.__dlpack_device__()[0] in HOST


def on_host(x: Any) -> np.ndarray:
    """Return the memory that x exports on the host; a copy if x is on another device.

    Raises:
        BufferError: x can do neither.
    """
    if is_on_host(x):
        return memory_of(x)
    try:
        return memory_of(x, dl_device=CPU)
    except BufferError as error:
        device = tuple(map(int, x.__dlpack_device__()))
        raise BufferError(f"it lies on device {device}: {error}") from None


def view_of(x: Any) -> np.ndarray:
    """Return the values of an Array, which must not be written to: its own memory if that is the host's, or a copy."""
    x = x.untracked()
    try:
        return memory_of(x, copy=False) if is_on_host(x) else x.numpy()
    except BufferError:
        return x.numpy()


class Shared:
    """Exporter of memory in place.

    Attributes:
        memory: (stream, copy) -> ndarray that describes the memory, or a copy of it, keeps it alive, and may be used on
            the stream.
    """

    def __init__(self, memory: Callable[[Any, bool], np.ndarray], device: tuple[int, int] = CPU) -> None:
        self._memory, self._device = memory, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if dl_device not in (None, self._device):
            raise BufferError(f"__dlpack__: x lies on device {self._device}, not on {dl_device}")
        return capsule_of(self._memory(stream, bool(copy)), self._device, max_version, COPIED if copy else 0)


def address_of(x: Any) -> int:
    """Return the address of the memory that x exports."""
    seen = Seen(x)
    memory_of(seen)
    return seen.address


class Seen:
    """Exporter that forwards to another one and records the Spec and address of what was exported.

    Args:
        x: Object with `__dlpack__`.
        copy: Value of the argument `copy` to pass on; None: not passed.
    """

    def __init__(self, x: Any, copy: bool | None = None) -> None:
        self._x, self._asked = x, {} if copy is None else {"copy": copy}
        self.address = 0
        self._kind, self._shape = "", ()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        made = self._x.__dlpack__(**{**asked, **self._asked})
        tensor = _tensor(made)
        self._kind = _kind(tensor)
        self._shape = tuple(tensor.shape[: tensor.ndim])
        self.address = (tensor.data or 0) + tensor.byte_offset
        return made

    @property
    def spec(self) -> Spec:
        """Spec of what was exported; DtypeError if polyarr has no such dtype."""
        return Spec(self._shape, as_dtype(self._kind))


def _shared(x: Any) -> Any:
    """Return the exporter of an Array's memory; None if its backend does not share it."""
    x = traced(x)
    with contextlib.suppress(BufferError):
        return x.backend.dlpack and x.backend.dlpack.export(x.buf)
    return None


def device_of(x: Any) -> tuple[int, int]:
    """Return the DLPack device on which an Array is exported; the host if it is copied there."""
    shared = _shared(x)
    return CPU if shared is None else tuple(shared.__dlpack_device__())


def exported(
    x: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """Return a DLPack capsule of an Array: of its memory on a GPU, of a copy on the host.

    With copy=False host memory is shared too; with copy=True nothing is shared. A consumer must not write to shared
    memory. Consumers before DLPack 1.0 do not learn that it is read-only: on the host they get copies only, which are
    cheap there.

    Raises:
        GradientError: The gradient of the array is being recorded, and would be lost.
        BufferError: The array cannot be exported on `dl_device` or for `stream`, or not without a copy.
    """
    check_unrecorded("__dlpack__", x)
    shared, here = _shared(x), device_of(x)
    there = here if dl_device is None else dl_device
    if there == CPU and stream not in (None, -1):
        raise BufferError(f"__dlpack__: stream is {shown(stream)}; the host has no streams, leave it out")
    if shared is not None and there == here and (copy is False or here[0] not in HOST):
        hold(x)
        asked = {"stream": stream, "max_version": max_version, "copy": copy}
        made = shared.__dlpack__(**{name: value for name, value in asked.items() if value is not None})
        if here[0] in HOST and copy is False and _versioned(made) is None:
            given = f"max_version is {max_version}, which has no flag for read-only memory"
            raise BufferError(f"__dlpack__: {given}; it must be {VERSION} or higher without a copy")
        return made if copy else _flagged(made, READ_ONLY)
    if copy is False or there != CPU:
        if there not in (here, CPU):
            at = f"dl_device is {shown(dl_device)}; {x.spec} on {x.device!r}"
            raise BufferError(f"__dlpack__: {at} can be copied to the host, device {CPU}")
        raise BufferError(f"__dlpack__: {x.spec} on {x.device!r} cannot be shared without a copy")
    return capsule_of(x.numpy(), CPU, max_version, COPIED)
