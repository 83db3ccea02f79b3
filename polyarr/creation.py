"""Creation of arrays: from data, from other libraries, and filled with numbers. Limits of dtypes."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from polyarr import ops
from polyarr.core.array import Array, from_numpy, unheld
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.dlpack import Seen, Shared, address_of, is_on_host, on_host
from polyarr.core.errors import DtypeError, NestingError, ShapeError
from polyarr.core.keywords import explained
from polyarr.core.number import Number
from polyarr.core.spec import (
    COMPLEX,
    DTYPES,
    Spec,
    as_dtype,
    check_number,
    check_size,
    complex64,
    complex128,
    described,
    float32,
    float64,
    int64,
    may_not_fit,
    promote,
    real_of,
    shown,
)
from polyarr.ops.create import NATURAL, shape_of, steps_between
from polyarr.ops.validation import check_array, number, stands_for_array, whole

__all__ = [
    "FloatInfo", "arange", "asarray", "e", "empty", "eye", "finfo", "from_dlpack", "full", "iinfo", "inf", "linspace",
    "meshgrid", "nan", "newaxis", "ones", "pi", "zeros",
]  # fmt: skip


@explained
def asarray(obj: Any, dtype: Any = None, *, device: str | Backend | None = None, copy: bool | None = None) -> Array:
    """Return an array with the values of obj.

    Python floats become float32 and Python ints int64. An element that has a dtype keeps it, also in a list, whose
    elements are promoted to one dtype. Arrays in a list are stacked as by `stack`, with their gradients.

    Args:
        obj: Number, nested sequence, NumPy array, buffer, or object that supports DLPack.
        dtype: Dtype of the result; None for that of the values.
        device: Backend of the result, or its name; None for the current backend, or that of obj.
        copy: True to copy an Array, False to fail if a copy is needed, None to copy only if needed. With False the
            memory of a buffer or of another library's array is shared; then it must not be written to any more.

    Returns:
        Array of the shape of obj.

    Raises:
        DtypeError: polyarr or the backend lacks the dtype.
        OverflowError: A Python int is out of the range of dtype.
        ValueError: A sequence is ragged, nan is to be an integer, or copy is False and a copy is needed.
        NestingError: A list contains itself.

    Examples:
        >>> import polyarr as pa
        >>> pa.asarray([[1, 2], [3, 4]], dtype="float32")
        Array([[1., 2.],
               [3., 4.]], float32, 'numpy')
    """
    if isinstance(obj, Array):
        x = obj if device is None else obj.to(device)
        x = x if dtype is None or as_dtype(dtype) == x.dtype else x.astype(dtype)
        if copy is False and x is not obj:
            given = f"x is {obj.spec} on {obj.device!r}"
            raise ValueError(f"asarray: {given}; another dtype or device takes a copy, leave copy=False out")
        return x.snapshot() if copy and x is obj else x
    if copy is False:
        return _shared(obj, dtype, get_backend(device))
    if isinstance(obj, Number):
        return full((), obj, dtype, device=device)
    if hasattr(obj, "__dlpack__") and not isinstance(obj, (np.ndarray, np.generic)):
        obj = _taken_over("asarray", obj)
    return _array(obj, dtype, get_backend(device))


def _shared(obj: Any, dtype: Any, backend: Backend) -> Array:
    """Return an array that shares the memory of a buffer or of another library's array; ValueError if it cannot."""
    try:
        if not hasattr(obj, "__dlpack__"):
            if isinstance(obj, np.generic) or not _is_typed(obj):
                raise BufferError("it has no memory to share")
            obj = np.asarray(obj, copy=False)
        found = _adopted("asarray", obj, backend, False)
        if dtype is not None and as_dtype(dtype) != found.dtype:
            raise BufferError(f"its dtype is {found.dtype.name}, not {as_dtype(dtype).name}")
    except (BufferError, ValueError) as error:
        why = str(error).partition("\n")[0].removeprefix(f"asarray: x is {described(obj)}; ")
        raise ValueError(f"asarray: got {described(obj)}, which needs a copy ({why}); leave copy=False out") from None
    return found


def _taken_over(op: str, x: Any) -> np.ndarray:
    """Return x, which supports DLPack, as a NumPy array."""
    try:
        return on_host(x)
    except (BufferError, RuntimeError) as error:  # some libraries raise RuntimeError
        raise BufferError(f"{op}: x is {described(x)}, whose values cannot be read: {error}") from None


def _array(obj: Any, dtype: Any, backend: Backend) -> Array:
    """Return obj as a new array; lists that hold arrays are stacked by ops, which have a gradient."""
    if type(obj) is np.ndarray and dtype is None and obj.dtype in DTYPES:
        return from_numpy(obj, backend)
    found: set[np.dtype] = set()
    try:
        holds_arrays = _examine(obj, found)
    except RecursionError:
        deep = f"asarray: got {described(obj)} that contains itself, or is nested too deeply"
        raise NestingError(f"{deep}; an array has at most 64 axes") from None
    for odd in (d for d in found if d.kind not in "biufc" and d not in DTYPES):
        raise DtypeError(f"asarray: got {type(obj).__name__} of {odd}; it must hold numbers")
    if dtype is not None and as_dtype(dtype) not in COMPLEX and any(d.kind == "c" for d in found):
        raise DtypeError(f"asarray: got complex numbers; {as_dtype(dtype).name} has no imaginary part")
    joined = _joined(found) if dtype is None else as_dtype(dtype)
    try:
        return _stacked(obj, joined, backend) if holds_arrays else from_numpy(np.asarray(obj, joined), backend)
    except (OverflowError, ValueError) as error:
        if "inhomogeneous" in str(error) or isinstance(error, ShapeError):
            raise ValueError(f"asarray: got {described(obj)} of rows of several lengths; they must be alike") from None
        kind = OverflowError if isinstance(error, OverflowError) else ValueError
        raise kind(f"asarray: {joined.name} cannot hold an element: {error}") from None


def _stacked(obj: Any, dtype: np.dtype, backend: Backend) -> Array:
    if isinstance(obj, (list, tuple)) and len(obj):
        return ops.stack([_stacked(o, dtype, backend) for o in obj])
    if isinstance(obj, (Array, Number)):
        return asarray(obj, dtype=dtype, device=backend)
    return from_numpy(np.asarray(obj, dtype), backend)


def _examine(obj: Any, dtypes: set[np.dtype]) -> bool:
    """Add the dtypes of all elements to `dtypes`, and return whether obj holds arrays or scalar inputs of polyarr."""
    if isinstance(obj, (list, tuple)):
        return any([_examine(o, dtypes) for o in obj])  # a list: a generator would end at the first array
    if type(obj) in NATURAL:
        dtypes.add(NATURAL[type(obj)])
        return isinstance(obj, Number)
    if isinstance(obj, Array):
        dtypes.add(obj.dtype)
        return True
    host = np.asarray(obj)
    native = host.dtype.newbyteorder("=")  # files hold big-endian numbers; arrays do not
    dtypes.add({float64: float32, complex128: complex64}.get(native, native) if not _is_typed(obj) else native)
    return False


def _is_typed(obj: Any) -> bool:
    """Return whether obj has a dtype for its elements: an array, a NumPy scalar, a table's column, or a buffer."""
    if hasattr(obj, "dtype") or hasattr(obj, "__array__"):
        return True
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def _joined(dtypes: set[np.dtype]) -> np.dtype:
    """Return the dtype for elements of several dtypes: floats win over integers, integers over bool."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise DtypeError(f"asarray: got {dtype}; polyarr has {', '.join(d.name for d in DTYPES)}")
    return promote("asarray", [Spec((), d) for d in sorted(dtypes, key=str)]) if dtypes else float32


def from_dlpack(x: Any, *, device: str | Backend | None = None, copy: bool | None = None) -> Array:
    """Return an array with the values of an object that supports DLPack.

    If x is on the host, the result is a copy. With copy=False, or on a GPU, the backend may share the memory with x;
    then x must not be written to any more.

    Args:
        x: Array of any library, with a `__dlpack__` method.
        device: Backend of the result, or its name; None for the current backend, or that of x if x is an Array.
        copy: True to copy, False to fail if a copy is needed, None to copy only if needed.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        BufferError: The backend cannot take x, or copy is False and a copy is needed.
        TypeError: x does not support DLPack.

    Examples:
        >>> import numpy as np
        >>> import polyarr as pa
        >>> pa.from_dlpack(np.arange(3, dtype="float32"))
        Array([0., 1., 2.], float32, 'numpy')
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: x is {described(x)}; it must speak DLPack (see polyarr.asarray)")
    try:
        if isinstance(x, Array):
            return asarray(x, device=device, copy=copy)
        if copy is not False and is_on_host(x):
            return asarray(x if isinstance(x, np.ndarray) else _taken_over("from_dlpack", x), device=device)
        return _adopted("from_dlpack", x, get_backend(device), copy)
    except ValueError as error:
        raise BufferError(f"from_dlpack: {str(error).removeprefix('asarray: ')}") from None


def _adopted(op: str, x: Any, backend: Backend, copy: bool | None) -> Array:
    """Return x taken over by the backend without the host, or else, if a copy is allowed, copied through the host."""
    # NumPy exports no bfloat16.
    seen = Seen(Shared(lambda stream, copy: x) if isinstance(x, np.ndarray) else x, copy or None)
    try:
        if backend.dlpack is None:
            raise BufferError(f"backend {backend.name!r} shares no memory")
        buf = backend.dlpack.adopt(seen)
    except BufferError as error:
        if copy is False:
            raise BufferError(f"{op}: x is {described(x)}; {str(error).removeprefix('__dlpack__: ')}") from None
        return asarray(_taken_over(op, x), device=backend)
    if seen.spec.dtype not in backend.dtypes:
        raise DtypeError(unheld(op, seen.spec.dtype, backend))
    if copy is False and seen.spec.size and address_of(backend.dlpack.export(buf)) != seen.address:
        raise BufferError(f"{op}: x is {seen.spec}; backend {backend.name!r} cannot take it without a copy")
    return Array(backend, buf, seen.spec)


@explained
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: str | Backend | None = None) -> Array:
    """Return an array that holds one value everywhere.

    Args:
        shape: Int or tuple of ints.
        fill_value: Number, or array that broadcasts to shape.
        dtype: Dtype of the result; None for that of the value: bool, int64 or float32 for a Python number.
        device: Backend of the result, or its name; None for the current backend, or that of a value that is an Array.

    Returns:
        Array of that shape.

    Raises:
        ShapeError: A length is negative, or the value does not broadcast.
        OverflowError: The value is out of the range of dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.full((2, 2), 7)
        Array([[7, 7],
               [7, 7]], int64, 'numpy')
    """
    shape = shape_of("full", shape)
    if stands_for_array(fill_value):
        value = fill_value if dtype is None else ops.astype(fill_value, dtype=dtype)
        value = value if device is None else value.to(device)
        return ops.broadcast_to(value, shape=shape)
    if type(fill_value) not in NATURAL:
        value = asarray(fill_value, dtype=dtype, device=device)
        return ops.broadcast_to(value, shape=shape)
    dtype = NATURAL[type(fill_value)] if dtype is None else as_dtype(dtype)
    check_size("full", Spec(shape, dtype))
    if may_not_fit(type(fill_value), dtype):
        check_number("full", "fill_value", fill_value, dtype)
    with use_backend(get_backend(device)):
        return ops.fill(fill_value, shape=shape, dtype=dtype)


@explained
def zeros(shape: Any, dtype: Any = float32, *, device: str | Backend | None = None) -> Array:
    """Return an array of zeros.

    Args:
        shape: Int or tuple of ints.
        dtype: Dtype of the result.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array of that shape and dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.zeros(3)
        Array([0., 0., 0.], float32, 'numpy')
    """
    return full(shape_of("zeros", shape), 0, dtype=float32 if dtype is None else dtype, device=device)


@explained
def ones(shape: Any, dtype: Any = float32, *, device: str | Backend | None = None) -> Array:
    """Return an array of ones.

    Args:
        shape: Int or tuple of ints.
        dtype: Dtype of the result.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array of that shape and dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.ones((2, 2), dtype="int32")
        Array([[1, 1],
               [1, 1]], int32, 'numpy')
    """
    return full(shape_of("ones", shape), 1, dtype=float32 if dtype is None else dtype, device=device)


@explained
def empty(shape: Any, dtype: Any = float32, *, device: str | Backend | None = None) -> Array:
    """Return an array whose values are not specified; it holds zeros.

    Args:
        shape: Int or tuple of ints.
        dtype: Dtype of the result.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array of that shape and dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.empty((2, 3)).shape
        (2, 3)
    """
    return zeros(shape_of("empty", shape), dtype=dtype, device=device)


@explained
def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: str | Backend | None = None,
) -> Array:
    """Return the numbers start, start + step, ... up to but not including stop; with one argument, 0, 1, ... below it.

    Args:
        start: First number, or with one argument the end.
        stop: End, which is not included.
        step: Difference of neighbors, not 0.
        dtype: Dtype of the result; None for int64 if all numbers are ints, else float32.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array with one axis.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is nan, or step is 0.
        OverflowError: An element is out of the range of dtype, or there are infinitely many.

    Examples:
        >>> import polyarr as pa
        >>> pa.arange(2, 10, 3)
        Array([2, 5, 8], int64, 'numpy')
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
        return ops.iota(start, step, size=size, dtype=dtype)


@explained
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
    """Return numbers at equal distances from start to stop.

    Args:
        start: First number.
        stop: Last number.
        num: How many numbers.
        dtype: Dtype of the result; None for float32.
        device: Backend of the result, or its name; None for the current backend.
        endpoint: Whether stop is the last number; otherwise it would be the one after the last.

    Returns:
        Array (num,).

    Raises:
        TypeError: start or stop is not a number.
        ShapeError: num is negative.
        OverflowError: An element is out of the range of dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.linspace(0, 1, 5)
        Array([0.  , 0.25, 0.5 , 0.75, 1.  ], float32, 'numpy')
    """
    is_complex = any(isinstance(end, complex) for end in (start, stop))
    start, stop = (
        end if isinstance(end, complex) else float(number("linspace", name, end))
        for name, end in (("start", start), ("stop", stop))
    )
    dtype = as_dtype((complex64 if is_complex else float32) if dtype is None else dtype)
    (num,) = shape_of("linspace", whole("linspace", "num", num), "num")
    check_size("linspace", Spec((num,), dtype))
    with np.errstate(all="ignore"):  # numbers that are not finite, or overflow, give inf and nan
        found = np.linspace(start, stop, num, endpoint=endpoint)
    for end in (found[0], found[-1]) if num and may_not_fit(type(found[0].item()), dtype) else ():
        check_number("linspace", "an element", end.item(), dtype)
    return asarray(found, dtype=dtype, device=device)


@explained
def eye(
    n_rows: int, n_cols: int | None = None, /, k: int = 0, dtype: Any = float32, *, device: str | Backend | None = None
) -> Array:
    """Return a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        n_rows: Number of rows.
        n_cols: Number of columns; None for n_rows.
        k: Diagonal: 0 is the main one, positive numbers are above it, negative ones below.
        dtype: Dtype of the result.
        device: Backend of the result, or its name; None for the current backend.

    Returns:
        Array (n_rows, n_cols).

    Examples:
        >>> import polyarr as pa
        >>> pa.eye(2)
        Array([[1., 0.],
               [0., 1.]], float32, 'numpy')
    """
    n_rows, n_cols = shape_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    k = whole("eye", "k", k)
    k = max(-n_rows, min(k, n_cols))  # clamp: k may be too large for int64
    rows = ops.reshape(arange(k, n_rows + k, device=device), shape=(n_rows, 1))
    return ops.equal(rows, arange(n_cols, device=device)).astype(float32 if dtype is None else dtype)


@explained
def meshgrid(*arrays: Array, indexing: str = "xy") -> tuple[Array, ...]:
    """Return the coordinates of the grid that one-dimensional arrays span.

    Args:
        *arrays: Arrays with one axis each.
        indexing: "xy" for a grid whose first two axes are swapped, as in plots; "ij" for the order of the arrays.

    Returns:
        Tuple with an array for each input, all of the shape of the grid.

    Raises:
        ValueError: There is no such indexing.

    Examples:
        >>> import polyarr as pa
        >>> x, y = pa.meshgrid(pa.asarray([1, 2, 3]), pa.asarray([10, 20]))
        >>> x
        Array([[1, 2, 3],
               [1, 2, 3]], int64, 'numpy')
    """
    if not isinstance(indexing, str) or indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is {shown(indexing)}; it must be 'xy' or 'ij'")
    for a in arrays:
        check_array("meshgrid", "an input", a)
    n = len(arrays)
    place = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shapes = [tuple(-1 if j == place[i] else 1 for j in range(n)) for i in range(n)]
    return ops.broadcast_arrays(*(ops.reshape(a, shape=s) for a, s in zip(arrays, shapes, strict=True)))


class FloatInfo:
    """Machine limits of a floating-point dtype, as finfo returns them.

    Attributes:
        eps: Difference between 1 and the next larger number.
        max: Largest finite number.
        min: Smallest finite number, -max.
        smallest_normal: Smallest positive number with full precision.
        bits: Number of bits.
        dtype: The dtype.
    """

    def __init__(self, dtype: np.dtype) -> None:
        info = ml_dtypes.finfo(dtype)
        self.eps, self.max, self.smallest_normal = map(float, (info.eps, info.max, info.smallest_normal))
        self.min, self.bits, self.dtype = -self.max, dtype.itemsize * 8, dtype


def finfo(dtype: Any) -> FloatInfo:
    """Return the machine limits of a floating-point dtype; of a complex dtype, those of its parts.

    Args:
        dtype: Dtype, its name, or an array.

    Returns:
        FloatInfo with eps, max, min, smallest_normal, bits and dtype.

    Raises:
        DtypeError: The dtype is neither floating-point nor complex.

    Examples:
        >>> import polyarr as pa
        >>> pa.finfo("float16").max
        65504.0
    """
    found = real_of(as_dtype(getattr(dtype, "dtype", dtype)))
    if found.kind not in "fV":
        raise DtypeError(f"finfo: {found.name} is neither floating-point nor complex")
    return FloatInfo(found)


def iinfo(dtype: Any) -> np.iinfo:
    """Return the machine limits of an integer dtype.

    Args:
        dtype: Dtype, its name, or an array.

    Returns:
        numpy.iinfo with max, min, bits and dtype.

    Raises:
        DtypeError: The dtype is not an integer dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.iinfo("int8").max
        127
    """
    found = as_dtype(getattr(dtype, "dtype", dtype))
    if found.kind not in "iu":
        raise DtypeError(f"iinfo: {found.name} is not an integer dtype")
    return np.iinfo(found)


e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None
