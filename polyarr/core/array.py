"""Array: a handle on a buffer of one backend; and helpers for op arguments (arrays, numbers, None, tuples of them)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyarr.core import dlpack
from polyarr.core.backend import Backend, count_download, count_upload
from polyarr.core.current import current_level, get_backend, traced
from polyarr.core.errors import DtypeError
from polyarr.core.number import FloatNumber, IntNumber
from polyarr.core.program import KEPT, release
from polyarr.core.spec import DTYPES, NARROW, Spec, float32, int64, uint64
from polyarr.core.tape import Node, check_unrecorded, hold, reads, records

if TYPE_CHECKING:  # declares the operators and methods that polyarr.ops adds to Array
    from polyarr.core.methods import Methods
else:
    Methods = object

NUMBERS: dict[type, Spec] = {kind: Spec((), kind) for kind in (bool, int, float, complex)}
NUMBERS |= {IntNumber: NUMBERS[int], FloatNumber: NUMBERS[float]}


class Array(Methods):
    """An n-dimensional array on one backend: a handle on a buffer that never changes.

    `x[i] = v` and `x += y` give the handle a new buffer; other handles on the old buffer do not change. Create arrays
    with `polyarr.asarray`, `polyarr.zeros` and the other creation functions, not with this constructor.

    Attributes:
        backend: Backend that holds the buffer.
        buf: Buffer, in the backend's own type.
        spec: Shape and dtype.
        node: Node of the tape that computed the array; None if no gradient is recorded.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> x.shape, x.dtype, x.device
        ((2, 2), dtype('float32'), 'numpy')
        >>> x @ x + 1
        Array([[ 8., 11.],
               [16., 23.]], float32, 'numpy')
    """

    __slots__ = ("__weakref__", "backend", "buf", "node", "spec")
    backend: Backend
    buf: Any
    spec: Spec
    node: Node | None
    __dlpack__: ClassVar[Callable[..., Any]] = dlpack.exported
    __dlpack_device__: ClassVar[Callable[..., tuple[int, int]]] = dlpack.device_of

    def __init__(self, backend: Backend, buf: Any, spec: Spec, node: Node | None = None) -> None:
        self.backend, self.buf, self.spec, self.node = backend, buf, spec, node

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    @property
    def device(self) -> str:
        """Name of the backend that holds the array."""
        return self.backend.name

    def numpy(self) -> np.ndarray:
        """Return a copy of the values as a NumPy array. Waits for the backend.

        Returns:
            C-contiguous numpy.ndarray of the same shape and dtype.

        Raises:
            GradientError: The gradient of the array is being recorded, and would be lost; write
                `polyarr.stop_gradient(x).numpy()` if it is not wanted.
            CaptureError: The array is one of a function that is being captured by `polyarr.compile`.
        """
        check_unrecorded("numpy", self)
        return values_of(self)

    def to(self, backend: str | Backend) -> "Array":
        """Return the array on another backend. The gradient travels back the same way.

        Backends with the same memory (`Backend.home`) share the buffer. Otherwise the source's `transfer` is tried,
        then DLPack, then a copy through the host.

        Args:
            backend: Name of a backend, or a Backend.

        Returns:
            Array with the same values on `backend`; the array itself if it is there already.

        Raises:
            BackendError: As `get_backend`.
            DtypeError: The backend does not support the dtype.
        """
        target, a = get_backend(backend), traced(self)
        source = a.backend
        if target is source:
            return self
        moved = _moved(a, target)
        if (read := reads.get()) is not None:
            read.note(self)
        if a.node is not None and records():
            moved.node = Node((a.node,), (self.spec,), lambda node, g: [g.to(source)])
        return moved

    def untracked(self) -> "Array":
        """Return a new handle on the values without a tape node."""
        hold(self)
        a = traced(self)
        return Array(a.backend, a.buf, a.spec)

    def snapshot(self) -> "Array":
        """Return a second handle, which keeps the current buffer if this one is rebound."""
        hold(self)
        a = traced(self)
        return Array(a.backend, a.buf, a.spec, a.node)

    def rebind(self, other: "Array") -> None:
        """Make this handle refer to the buffer, Spec and node of another one."""
        if (read := reads.get()) is not None:
            read.rebinds(self)
        other = traced(other)
        if (level := current_level()) is not None:
            other = level.rebound(self, other)
        self.backend, self.buf, self.spec, self.node = other.backend, other.buf, other.spec, other.node
        if KEPT:
            release([self])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (values_of(self), self.backend.name)


def _restored(host: np.ndarray, backend: str) -> Array:
    return from_numpy(host, get_backend(backend))


def _moved(a: Array, target: Backend) -> Array:
    source = a.backend
    if (level := current_level()) is not None:
        return level.moved(a, target)
    if source.meets(target):
        return Array(target, a.buf, a.spec)
    found = NotImplemented
    if a.spec.dtype in target.dtypes:
        if source.transfer is not None:
            found = source.transfer(a.buf, target)
        if found is NotImplemented and source.dlpack and target.dlpack:
            with contextlib.suppress(BufferError):  # for example from another device
                found = target.dlpack.adopt(source.dlpack.export(a.buf))
    return from_numpy(values_of(a), target) if found is NotImplemented else Array(target, found, a.spec)


def values_of(x: Array) -> np.ndarray:
    """Return a copy of the values as a NumPy array, as `x.numpy()` does, also while the gradient of x is recorded."""
    hold(x)
    a = traced(x)
    host = a.backend.download(a.buf)
    count_download(host.nbytes)
    return host


def read_later(x: Array) -> Callable[[], np.ndarray]:
    """Return a function that returns what `values_of(x)` would return now, without a wait for work enqueued later.

    So a loop can enqueue its next step before it reads the results of this one.
    """
    hold(x)
    a = traced(x)
    if a.backend.download_later is None:
        host = values_of(x)
        return lambda: host
    found = a.backend.download_later(a.buf)

    def read() -> np.ndarray:
        host = found()
        count_download(host.nbytes)
        return host

    return read


def from_numpy(host: np.ndarray, backend: Backend) -> Array:
    """Return an Array on a backend with a copy of a NumPy array; during a capture it is a constant of the program.

    Raises:
        DtypeError: The backend does not support the dtype.
    """
    backend = get_backend(backend)
    if host.dtype not in backend.dtypes:
        raise DtypeError(unheld("asarray", host.dtype, backend))
    count_upload(host.nbytes)
    return Array(backend, backend.upload(host), Spec(host.shape, host.dtype))


def unheld(op: str, dtype: np.dtype, backend: Backend) -> str:
    """Return the error message for a dtype that a backend does not support."""
    held = ", ".join(d.name for d in DTYPES if d in backend.dtypes)
    return f"{op}: {dtype.name} on {backend.name!r} ({backend.hardware}); it holds {held}"


# ---- an argument of an op: an array, a number, None, or a tuple of them ------------------------------------------


def spec_of(a: Any) -> Any:
    """Return the Spec of an op argument; None and Specs are returned as they are, tuples by member."""
    if type(a) is Array:
        return a.spec
    if type(a) is Spec or a is None:
        return a
    if type(a) is tuple:
        return tuple(map(spec_of, a))
    return NUMBERS[type(a)] if type(a) in NUMBERS else Spec(a.shape, a.dtype)  # an object with `polyarr_op`


def specs_of_list(members: tuple, backend: Backend | None) -> tuple[tuple, Backend | None, bool] | None:
    """Return (Specs, backend, whether any member is tracked) of a list of arrays on one backend, or of numbers.

    Returns None for any other list, and if a member is on another backend than `backend`.
    """
    specs, tracked = [], False
    for m in members:
        if type(m) is Array:
            if m.backend is not backend:
                if backend is not None:
                    return None
                backend = m.backend
            if m.node is not None:
                tracked = True
            specs.append(m.spec)
        elif type(m) in NUMBERS:
            specs.append(NUMBERS[type(m)])
        else:
            return None
    return tuple(specs), backend, tracked


def flatten(args: Any) -> Iterator[Any]:
    """Yield the members of a tuple and of the tuples nested in it."""
    for a in args:
        if type(a) is tuple:
            yield from flatten(a)
        else:
            yield a


def cast_spec(spec: Any, dtype: np.dtype | None) -> Any:
    """Return the Spec that `cast` produces for arrays with this Spec."""
    if dtype is None or spec is None:
        return spec
    if type(spec) is tuple:
        return tuple(cast_spec(s, dtype) for s in spec)
    return spec if spec.is_number else Spec(spec.shape, dtype)


def cast(a: Any, dtype: np.dtype | None) -> Any:
    """Cast arrays to dtype; return numbers, and anything if dtype is None, unchanged."""
    if dtype is None:
        return a
    if type(a) is tuple:
        return tuple(cast(member, dtype) for member in a)
    if type(a) is not Array or a.spec.dtype == dtype:
        return a
    return _as_position(a) if a.spec.dtype == uint64 and dtype == int64 else a.astype(dtype)


def _as_position(a: Array) -> Array:
    """Cast uint64 indices to int64; values beyond int64 become its minimum, which is out of range for any axis."""
    index = a.astype(int64)
    sign = index >> 63
    return (index & ~sign) | (sign << 63)


def widened(a: Any) -> Any:
    """Cast float16 and bfloat16 arrays to float32, in tuples too; return anything else unchanged."""
    if type(a) is tuple:
        return tuple(map(widened, a))
    return a.astype(float32) if type(a) is Array and a.spec.dtype in NARROW else a


def rounded(value: Any, out: Any) -> Any:
    """Cast values that were computed in float32 to the dtypes of `out`, as new handles."""
    if value is None or type(out) is not Spec:
        return None if value is None else tuple(map(rounded, value, out))
    return value.astype(out.dtype) if value.spec.dtype != out.dtype else value.snapshot()


def buffer(a: Any) -> Any:
    """Return the buffer of an array, as a kernel receives it; numbers unchanged, tuples by member."""
    if type(a) is Array:
        return a.buf
    return tuple([m.buf if type(m) is Array else buffer(m) for m in a]) if type(a) is tuple else a


def arrays(backend: Backend, buf: Any, out: Any) -> Any:
    """Wrap the buffers that a kernel returned as Arrays with the Specs `out`."""
    if type(out) is Spec:
        return Array(backend, buf, out)
    return tuple(
        [Array(backend, b, o) if type(o) is Spec else arrays(backend, b, o) for b, o in zip(buf, out, strict=True)]
    )


def number_of(a: Any) -> Any:
    """Return the value of a 0-d array as a Python number, read from its backend; numbers unchanged."""
    if type(a) is Array:
        return values_of(a)[()].item()
    return tuple(map(number_of, a)) if type(a) is tuple else a


def untracked(a: Any) -> Any:
    """Return an argument with arrays that have no tape node."""
    if type(a) is Array:
        return a.untracked() if a.node is not None else a
    return tuple(map(untracked, a)) if type(a) is tuple else a


def snapshot(a: Any) -> Any:
    """Return an argument with its own handles on the arrays, unaffected if the caller rebinds his."""
    if type(a) is Array:
        return Array(a.backend, a.buf, a.spec, a.node)
    return tuple(map(snapshot, a)) if type(a) is tuple else a
