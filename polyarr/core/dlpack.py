"""DLPack: memory that libraries share.

NumPy makes the capsules and takes them apart; what it has no word for, other devices and bfloat16, is put in its place
afterwards. An ndarray stands for memory on a device, too: NumPy does not look at memory before it computes.
"""

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr.core.spec import Spec, as_dtype, bfloat16
from polyarr.core.tape import hold

CPU = (1, 0)
HOST, CUDA = (1, 3), 2  # the kinds of devices: the host, with its memory that CUDA knows, and NVIDIA's
VERSION = (1, 0)
READ_ONLY, COPIED = 1, 2
UINT, BFLOAT = 1, 4
KINDS = {0: "int", UINT: "uint", 2: "float", BFLOAT: "bfloat", 5: "complex"}
BOOL = (6, 8)


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h, in which flags are told."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


# prototypes of our own: those of ctypes.pythonapi are everybody's
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
    """A capsule of memory that an ndarray stands for.

    Errors:  BufferError for negative strides, which no other library takes: PyTorch ends the process over them
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
    """The capsule with flags, where it can tell them."""
    if flags and (versioned := _versioned(capsule)) is not None:
        versioned.flags |= flags
    return capsule


def memory_of(x: Any, **asked: Any) -> np.ndarray:
    """The memory that x shares, wherever it lies; the ndarray keeps it. asked is what x.__dlpack__ is asked for.

    Errors:  BufferError if x does not share it, or has elements that NumPy has no dtype for
    """
    made = _asked(x, max_version=VERSION, **asked)
    tensor = _tensor(made)
    narrow, tensor.kind = (tensor.code, tensor.bits) == (BFLOAT, 16), CPU[0]
    if narrow:
        tensor.code = UINT
    try:
        memory = np.from_dlpack(_Given(made))
    except RuntimeError as error:
        raise BufferError(str(error)) from None
    return memory.view(bfloat16) if narrow else memory


def _asked(x: Any, max_version: Any, **asked: Any) -> Any:
    """The capsule of x, which may know only what DLPack was before 1.0."""
    try:
        return x.__dlpack__(max_version=max_version, **asked)
    except TypeError:
        pass
    try:
        return x.__dlpack__(**asked)
    except TypeError as error:
        raise BufferError(str(error)) from None


class _Given:
    """A capsule that was made already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def is_on_host(x: Any) -> bool:
    """True if the memory that x shares is the host's."""
    return x.__dlpack_device__()[0] in HOST


def on_host(x: Any) -> np.ndarray:
    """The memory that x shares, on the host; or a copy, if x lies elsewhere and makes one.

    Errors:  BufferError if it does not
    """
    if is_on_host(x):
        return memory_of(x)
    try:
        return memory_of(x, dl_device=CPU)
    except BufferError as error:
        device = tuple(map(int, x.__dlpack_device__()))
        raise BufferError(f"it lies on device {device}, and does not come to the host: {error}") from None


class Shared:
    """Memory that is shared with whoever asks, where it lies.

    memory  (stream, copy) -> an ndarray that stands for the memory and keeps it, and on which the stream may work; with
            copy that of a copy
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
    """Where the memory is that x shares."""
    seen = Seen(x)
    memory_of(seen)
    return seen.address


class Seen:
    """What speaks DLPack, and what it said: the Spec, and where the memory is. copy is what to ask for besides."""

    def __init__(self, x: Any, copy: bool | None = None) -> None:
        self._x, self._asked = x, {} if copy is None else {"copy": copy}
        self.address = 0
        self._kind, self._shape = "", ()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        made = self._x.__dlpack__(**{**asked, **self._asked})
        tensor = _tensor(made)
        code, bits = tensor.code, tensor.bits
        self._kind = "bool" if (code, bits) == BOOL else f"{KINDS.get(code, f'code {code} of DLPack, ')}{bits}"
        self._shape = tuple(tensor.shape[: tensor.ndim])
        self.address = (tensor.data or 0) + tensor.byte_offset
        return made

    @property
    def spec(self) -> Spec:
        """Its shape and dtype. DtypeError if polyarr has no such dtype."""
        return Spec(self._shape, as_dtype(self._kind))


# ---- polyarr's arrays --------------------------------------------------------------------------------------------


def _shared(x: Any) -> Any:
    """What shares the memory of an Array; None where its backend does not."""
    with contextlib.suppress(BufferError):
        return x.backend.dlpack and x.backend.dlpack.export(x.buf)
    return None


def device_of(x: Any) -> tuple[int, int]:
    """The device on which an Array is shared: where it lies, or the host, to which it is copied."""
    shared = _shared(x)
    return CPU if shared is None else tuple(shared.__dlpack_device__())


def exported(
    x: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """A DLPack capsule of an Array: of its memory on a GPU, of a copy on the host.

    With copy=False memory on the host is shared, too; with copy=True none is. Whoever shares memory must not write to
    it. From DLPack 1.0 on he is told so, but not everybody listens: so what costs little to copy is copied.

    Errors:  BufferError if it cannot be had on dl_device, or not without a copy
    """
    shared, here = _shared(x), device_of(x)
    there = here if dl_device is None else tuple(dl_device)
    if shared is not None and there == here and (copy is False or here[0] not in HOST):
        hold(x)
        asked = {"stream": stream, "max_version": max_version, "copy": copy}
        made = shared.__dlpack__(**{name: value for name, value in asked.items() if value is not None})
        return made if copy else _flagged(made, READ_ONLY)
    if copy is False or there != CPU:
        way = "can be copied to the host, device (1, 0)" if copy is not False else "cannot be shared without a copy"
        raise BufferError(f"__dlpack__: {x.spec} on {x.device!r} {way}")
    return capsule_of(x.numpy(), CPU, max_version, COPIED)
