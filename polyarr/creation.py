"""Making arrays: from data, or full of numbers."""

import math
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.array import Array, from_numpy, unheld
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.dlpack import Seen, address_of, is_on_host, on_host
from polyarr.core.errors import DtypeError
from polyarr.core.spec import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Spec,
    as_dtype,
    bfloat16,
    check_number,
    check_size,
    described,
    float32,
    int64,
    promote,
    told,
)
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import NATURAL, shape_of, steps_between
from polyarr.ops.validation import check_array, number, stands_for_array, whole


def asarray(obj: Any, *, dtype: Any = None, device: str | Backend | None = None, copy: bool | None = None) -> Array:
    """An array with the values of obj: numbers, nested sequences, a NumPy array, a buffer, or what speaks DLPack.

    Python floats become float32 and Python ints int64; what has a dtype keeps it, also in a list, whose elements are
    promoted to one.

    Errors:  DtypeError for a dtype that polyarr or the backend lacks; OverflowError for a Python int beyond dtype;
             ValueError for ragged sequences, for nan as an integer, and where copy is False and a copy is needed
    """
    if isinstance(obj, Array):
        x = obj if device is None else obj.to(device)
        x = x if dtype is None or as_dtype(dtype) == x.dtype else x.astype(dtype)
        if copy is False and x is not obj:
            raise ValueError(f"asarray: got {obj.spec} on {obj.device!r}; with copy=False neither may change")
        return x.snapshot() if copy and x is obj else x
    if copy is False:
        raise ValueError(f"asarray: got {type(obj).__name__}; a polyarr array owns its memory, so leave copy=False out")
    if hasattr(obj, "__dlpack__") and not isinstance(obj, (np.ndarray, np.generic)):
        obj = _taken_over("asarray", obj)
    return from_numpy(_host(obj, dtype), get_backend(device))


def _taken_over(op: str, x: Any) -> np.ndarray:
    """x, which speaks DLPack, as a NumPy array."""
    try:
        return on_host(x)
    except (BufferError, RuntimeError) as error:  # the second is what some libraries raise
        raise BufferError(
            f"{op}: x is {described(x)}; it must be on the CPU, in a dtype that polyarr has ({error})"
        ) from None


def _host(obj: Any, dtype: Any) -> np.ndarray:
    """obj as a NumPy array of a dtype that polyarr has."""
    found: set[np.dtype] = set()
    plain = _without_arrays(obj, found)
    for odd in (d for d in found if d.kind not in "biufc" and d not in DTYPES):
        raise DtypeError(f"asarray: got {type(obj).__name__} of {odd}; it must hold numbers")
    if any(d.kind == "c" for d in found):
        _joined(found)  # raises: to NumPy a cast may drop the imaginary part
    joined = _joined(found) if dtype is None else as_dtype(dtype)
    try:
        return np.asarray(plain, joined)
    except (OverflowError, ValueError) as error:
        if "inhomogeneous" in str(error):
            raise ValueError(f"asarray: got {described(obj)} of rows of several lengths; they must be alike") from None
        kind = OverflowError if isinstance(error, OverflowError) else ValueError
        raise kind(f"asarray: {joined.name} cannot hold an element: {error}") from None


def _without_arrays(obj: Any, dtypes: set[np.dtype]) -> Any:
    """obj with polyarr's arrays as NumPy's; dtypes gains those of all that it holds."""
    if isinstance(obj, (list, tuple)):
        return [_without_arrays(o, dtypes) for o in obj]
    obj = obj.numpy() if isinstance(obj, Array) else obj
    if type(obj) in NATURAL:
        dtypes.add(NATURAL[type(obj)])
    else:
        host = np.asarray(obj)
        native = host.dtype.newbyteorder("=")  # files hold big-endian numbers; arrays do not
        dtypes.add(float32 if native == np.float64 and not _is_typed(obj) else native)
    return obj


def _is_typed(obj: Any) -> bool:
    """True for what says itself what its elements are: arrays, NumPy's scalars, tables' columns, buffers."""
    if hasattr(obj, "dtype") or hasattr(obj, "__array__"):
        return True
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def _joined(dtypes: set[np.dtype]) -> np.dtype:
    """The dtype for elements of several: floats go before integers, integers before bool."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise DtypeError(f"asarray: got {dtype}; polyarr has {', '.join(d.name for d in DTYPES)}")
    for kind in (FLOATS, INTEGERS):
        if same := [Spec((), d) for d in sorted(dtypes, key=str) if d in kind]:
            return promote("asarray", same)
    return bool_ if dtypes else float32


def from_dlpack(x: Any, *, device: str | Backend | None = None, copy: bool | None = None) -> Array:
    """An array with the values of x, which speaks DLPack.

    A copy, if x lies on the host. With copy=False, or on a GPU, the backend may share the memory; then nobody is to
    write to it any more.

    Errors:  BufferError if x cannot be had on the backend, or where copy is False and a copy is needed
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: x is {described(x)}; it must speak DLPack (see polyarr.asarray)")
    try:
        if isinstance(x, Array):
            return asarray(x, device=device, copy=copy)
        if copy is not False and is_on_host(x):
            return asarray(x if isinstance(x, np.ndarray) else _taken_over("from_dlpack", x), device=device)
        return _adopted(x, get_backend(device), copy)
    except ValueError as error:
        raise BufferError(f"from_dlpack: {error}") from None


def _adopted(x: Any, backend: Backend, copy: bool | None) -> Array:
    """What the backend makes of x without the host; a copy through the host where it cannot, and may copy."""
    seen = Seen(x, copy or None)
    try:
        if backend.dlpack is None:
            raise BufferError(f"backend {backend.name!r} shares no memory")
        buf = backend.dlpack.adopt(seen)
    except BufferError as error:
        if copy is False:
            raise BufferError(f"from_dlpack: x is {described(x)}; {error}") from None
        return asarray(_taken_over("from_dlpack", x), device=backend)
    if seen.spec.dtype not in backend.dtypes:
        raise DtypeError(unheld("from_dlpack", seen.spec.dtype, backend))
    if copy is False and seen.spec.size and address_of(backend.dlpack.export(buf)) != seen.address:
        raise BufferError(f"from_dlpack: x is {seen.spec}; backend {backend.name!r} cannot take it without a copy")
    return Array(backend, buf, seen.spec)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: str | Backend | None = None) -> Array:
    """An array of the given shape that holds fill_value everywhere, a number or an array that broadcasts to shape.

    Errors:  ShapeError for a negative length, or a value that does not broadcast; OverflowError for one beyond dtype
    """
    shape = shape_of("full", shape)
    if stands_for_array(fill_value):
        value = fill_value if dtype is None else ops.astype(fill_value, dtype=dtype)
        return ops.broadcast_to(value, shape=shape)
    if type(fill_value) not in NATURAL:
        value = asarray(fill_value, dtype=dtype, device=device)
        return ops.broadcast_to(value, shape=shape)
    dtype = NATURAL[type(fill_value)] if dtype is None else dtype
    with use_backend(get_backend(device)):
        return ops.full(fill_value, shape=shape, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = float32, device: str | Backend | None = None) -> Array:
    """An array of zeros."""
    return full(shape_of("zeros", shape), 0, dtype=float32 if dtype is None else dtype, device=device)


def ones(shape: Any, *, dtype: Any = float32, device: str | Backend | None = None) -> Array:
    """An array of ones."""
    return full(shape_of("ones", shape), 1, dtype=float32 if dtype is None else dtype, device=device)


def empty(shape: Any, *, dtype: Any = float32, device: str | Backend | None = None) -> Array:
    """An array for which no values are promised. It holds zeros."""
    return zeros(shape_of("empty", shape), dtype=dtype, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: str | Backend | None = None,
) -> Array:
    """start, start + step, ... up to but not including stop; with one argument, 0, 1, ... below it.

    Errors:  TypeError for what is no number; ValueError for nan, or a step of 0; OverflowError if an element is beyond
             dtype, or there is no end of them
    """
    start, stop = (0, start) if stop is None else (start, stop)
    start, stop, step = (number("arange", name, v) for name, v in (("start", start), ("stop", stop), ("step", step)))
    if step == 0:
        raise ValueError("arange: step is 0; it must not be")
    natural = int64 if all(isinstance(v, int) for v in (start, stop, step)) else float32
    size, dtype = steps_between(start, stop, step), natural if dtype is None else as_dtype(dtype)
    for end in (start, start + (size - 1) * step) if size else ():
        check_number("arange", "an element", end, dtype)
    with use_backend(get_backend(device)):
        return ops.arange(start, step, size=size, dtype=dtype)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: str | Backend | None = None,
    endpoint: bool = True,
) -> Array:
    """num numbers at equal distances from start to stop, the last of which endpoint=False leaves out.

    Errors:  TypeError for what is no number; ShapeError for a negative num; OverflowError if an element is beyond dtype
    """
    start, stop = float(number("linspace", "start", start)), float(number("linspace", "stop", stop))
    dtype = as_dtype(float32 if dtype is None else dtype)
    (num,) = shape_of("linspace", whole("linspace", "num", num), "num")
    check_size("linspace", Spec((num,), dtype))
    with np.errstate(all="ignore"):  # what is not finite, or spans more than a float holds, is inf and nan
        found = np.linspace(start, stop, num, endpoint=endpoint)
    for end in (found[0], found[-1]) if num and dtype in INTEGERS else ():
        check_number("linspace", "an element", float(end), dtype)
    return asarray(found, dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = float32, device: str | Backend | None = None
) -> Array:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    n_rows, n_cols = shape_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    k = whole("eye", "k", k)
    k = max(-n_rows, min(k, n_cols))  # beyond these the matrix is all zeros, and k may be too large for int64
    rows = ops.reshape(arange(k, n_rows + k, device=device), shape=(n_rows, 1))
    return ops.equal(rows, arange(n_cols, device=device)).astype(float32 if dtype is None else dtype)


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """One array per one-dimensional input, each spread over the grid that all of them span."""
    if not isinstance(indexing, str) or indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is {told(indexing)}; it must be 'xy' or 'ij'")
    for a in arrays:
        check_array("meshgrid", "an input", a)
    n = len(arrays)
    place = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shapes = [tuple(-1 if j == place[i] else 1 for j in range(n)) for i in range(n)]
    return ops.broadcast_arrays(*(ops.reshape(a, shape=s) for a, s in zip(arrays, shapes, strict=True)))


class FloatInfo:
    """What finfo tells about a floating-point dtype."""

    def __init__(self, dtype: np.dtype) -> None:
        bits = {bfloat16: (2.0**-7, 3.3895313892515355e38, 2.0**-126)}
        info = None if dtype in bits else np.finfo(dtype)
        self.eps, self.max, self.smallest_normal = bits.get(dtype) or (
            float(info.eps),
            float(info.max),
            float(info.smallest_normal),
        )  # type: ignore[union-attr]
        self.min, self.bits, self.dtype = -self.max, dtype.itemsize * 8, dtype


def finfo(dtype: Any) -> FloatInfo:
    """The machine limits of a floating-point dtype, or of an array's.

    Errors:  DtypeError unless it is floating-point
    """
    found = as_dtype(getattr(dtype, "dtype", dtype))
    if found.kind not in "fV":
        raise DtypeError(f"finfo: {found.name} is not floating-point")
    return FloatInfo(found)


def iinfo(dtype: Any) -> np.iinfo:
    """The machine limits of an integer dtype, or of an array's.

    Errors:  DtypeError unless it is an integer dtype
    """
    found = as_dtype(getattr(dtype, "dtype", dtype))
    if found.kind not in "iu":
        raise DtypeError(f"iinfo: {found.name} is not an integer dtype")
    return np.iinfo(found)


e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None
