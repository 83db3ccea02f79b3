"""Array: a handle on a buffer of one backend; and what is done to arrays, or to whatever an op takes, as a whole."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarr.core import dlpack
from polyarr.core.backend import Backend, count_download, count_upload
from polyarr.core.current import get_backend
from polyarr.core.errors import DtypeError
from polyarr.core.number import FloatNumber, IntNumber
from polyarr.core.spec import DTYPES, NARROW, Spec, float32, int64, uint64
from polyarr.core.tape import Node, hold, reads, records

if TYPE_CHECKING:  # the operators and the other methods, which polyarr.ops gives to Array
    from polyarr.core.methods import Methods
else:
    Methods = object

NUMBERS: dict[type, Spec] = {kind: Spec((), kind) for kind in (bool, int, float)}  # of Python numbers, by their type
NUMBERS |= {IntNumber: NUMBERS[int], FloatNumber: NUMBERS[float]}


class Array(Methods):
    """An n-dimensional array on one backend: a handle on a buffer that never changes.

    `x[i] = v` and `x += y` give the handle a new buffer; other handles on the old one do not see it.
    """

    __slots__ = ("__weakref__", "backend", "buf", "node", "spec")
    __array_ufunc__ = None  # so that NumPy leaves `ndarray + Array` to us
    __dlpack__, __dlpack_device__ = dlpack.exported, dlpack.device_of

    def __init__(self, backend: Backend, buf: Any, spec: Spec, node: Node | None = None) -> None:
        self.backend, self.buf, self.spec, self.node = backend, buf, spec, node

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.spec.size

    @property
    def device(self) -> str:
        """The name of the backend that holds the array."""
        return self.backend.name

    def numpy(self) -> np.ndarray:
        """A copy on the host. Waits for the backend."""
        hold(self)
        host = self.backend.download(self.buf)
        count_download(host.nbytes)
        return host

    def to(self, backend: str | Backend) -> "Array":
        """The same values on another backend; a gradient comes back the same way.

        Between backends of one home nothing is copied. Others are asked for a transfer of their own, then for DLPack;
        otherwise the values go through the host.
        """
        target, source = get_backend(backend), self.backend
        if target is source:
            return self
        moved = _moved(self, target)
        if (read := reads.get()) is not None:
            read.note(self)
        if self.node is not None and records():
            moved.node = Node((self.node,), (self.spec,), lambda node, g: [g.to(source)])
        return moved

    def untracked(self) -> "Array":
        """The same values, unknown to the tape."""
        hold(self)
        return Array(self.backend, self.buf, self.spec)

    def snapshot(self) -> "Array":
        """A second handle, which keeps today's buffer when this one is rebound."""
        hold(self)
        return Array(self.backend, self.buf, self.spec, self.node)

    def rebind(self, other: "Array") -> None:
        """Let this handle stand for other's values."""
        if (read := reads.get()) is not None:
            read.rebinds(self)
        self.backend, self.buf, self.spec, self.node = other.backend, other.buf, other.spec, other.node

    def __reduce__(self) -> tuple:
        return _restored, (self.numpy(), self.backend.name)


def _restored(host: np.ndarray, backend: str) -> Array:
    return from_numpy(host, get_backend(backend))


def _moved(a: Array, target: Backend) -> Array:
    source = a.backend
    if source.meets(target):
        return Array(target, a.buf, a.spec)
    found = NotImplemented
    if a.spec.dtype in target.dtypes:
        if source.transfer is not None:
            found = source.transfer(a.buf, target)
        if found is NotImplemented and source.dlpack and target.dlpack:
            with contextlib.suppress(BufferError):  # another device, say
                found = target.dlpack.adopt(source.dlpack.export(a.buf))
    return from_numpy(a.numpy(), target) if found is NotImplemented else Array(target, found, a.spec)


def from_numpy(host: np.ndarray, backend: Backend) -> Array:
    """An Array on backend with a copy of host's values.

    Errors:  DtypeError if the backend cannot hold the dtype
    """
    if host.dtype not in backend.dtypes:
        raise DtypeError(unheld("asarray", host.dtype, backend))
    count_upload(host.nbytes)
    return Array(backend, backend.upload(host), Spec(host.shape, host.dtype))


def unheld(op: str, dtype: np.dtype, backend: Backend) -> str:
    """What to say where a backend cannot hold a dtype."""
    held = ", ".join(d.name for d in DTYPES if d in backend.dtypes)
    return f"{op}: {dtype.name} on {backend.name!r} ({backend.hardware}); it holds {held}"


# ---- an argument of an op: an array, a number, None, or a tuple of them ------------------------------------------


def spec_of(a: Any) -> Any:
    """The Spec of an op's argument; None and tuples are passed through."""
    if type(a) is Array:
        return a.spec
    if type(a) is Spec or a is None:
        return a
    if type(a) is tuple:
        return tuple(map(spec_of, a))
    return NUMBERS[type(a)] if type(a) in NUMBERS else Spec(a.shape, a.dtype)  # the last takes over calls


def listed(members: tuple, backend: Backend | None) -> tuple[tuple, Backend | None, bool] | None:
    """Of a list of arrays on one backend, or of numbers: the Specs, the backend, and if the tape knows one of them.

    None for any other list, and where backend is given and is another one.
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
    """The members of a tuple, and of the tuples in it."""
    for a in args:
        if type(a) is tuple:
            yield from flatten(a)
        else:
            yield a


def cast_spec(spec: Any, dtype: np.dtype | None) -> Any:
    """What `cast` makes of arrays with these Specs."""
    if dtype is None or spec is None:
        return spec
    if type(spec) is tuple:
        return tuple(cast_spec(s, dtype) for s in spec)
    return spec if spec.is_number else Spec(spec.shape, dtype)


def cast(a: Any, dtype: np.dtype | None) -> Any:
    """Arrays as dtype; None: as they are."""
    if dtype is None:
        return a
    if type(a) is tuple:
        return tuple(cast(member, dtype) for member in a)
    if type(a) is not Array or a.spec.dtype == dtype:
        return a
    return _as_position(a) if a.spec.dtype == uint64 and dtype == int64 else a.astype(dtype)


def _as_position(a: Array) -> Array:
    """uint64 indices as int64; one beyond int64 becomes the smallest number, which no axis has."""
    index = a.astype(int64)
    sign = index >> 63
    return (index & ~sign) | (sign << 63)


def widened(a: Any) -> Any:
    """Narrow floats as float32; a list member by member, anything else as it is."""
    if type(a) is tuple:
        return tuple(map(widened, a))
    return a.astype(float32) if type(a) is Array and a.spec.dtype in NARROW else a


def rounded(value: Any, out: Any) -> Any:
    """What was computed wide, in the dtype that is due; with a handle of its own."""
    if value is None or type(out) is not Spec:
        return None if value is None else tuple(map(rounded, value, out))
    return value.astype(out.dtype) if value.spec.dtype != out.dtype else value.snapshot()


def buffer(a: Any) -> Any:
    """What a kernel gets."""
    if type(a) is Array:
        return a.buf
    return tuple([m.buf if type(m) is Array else buffer(m) for m in a]) if type(a) is tuple else a


def arrays(backend: Backend, buf: Any, out: Any) -> Any:
    """What a kernel gave, as Arrays of the Specs `out`."""
    if type(out) is Spec:
        return Array(backend, buf, out)
    return tuple(
        [Array(backend, b, o) if type(o) is Spec else arrays(backend, b, o) for b, o in zip(buf, out, strict=True)]
    )


def number_of(a: Any) -> Any:
    """An array without axes as a Python number, read from its backend; numbers as they are; of a list every member."""
    if type(a) is Array:
        return a.numpy()[()].item()
    return tuple(map(number_of, a)) if type(a) is tuple else a


def untracked(a: Any) -> Any:
    """The same, unknown to the tape."""
    if type(a) is Array:
        return a.untracked() if a.node is not None else a
    return tuple(map(untracked, a)) if type(a) is tuple else a


def snapshot(a: Any) -> Any:
    """A handle of its own, which nobody else rebinds, on what an operation took; of a list for every member."""
    if type(a) is Array:
        return Array(a.backend, a.buf, a.spec, a.node)
    return tuple(map(snapshot, a)) if type(a) is tuple else a
