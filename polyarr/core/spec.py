"""Spec: shape and dtype without data; dtypes, promotion, broadcasting and their checks."""

import builtins
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from polyarr.core.errors import DtypeError, ShapeError

bool = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")
bfloat16 = np.dtype(ml_dtypes.bfloat16)

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (float16, bfloat16, float32, float64)
COMPLEX = (complex64, complex128)
INEXACT = FLOATS + COMPLEX  # dtypes that carry a gradient
NARROW = (float16, bfloat16)  # storage types: computed in float32 and rounded once
DTYPES = (bool, *INTEGERS, *INEXACT)

# The kinds of dtypes that an op may require, by the name that errors use.
KINDS = {
    "any": DTYPES,
    "numeric": INTEGERS + INEXACT,
    "real": INTEGERS + FLOATS,
    "real or bool": (bool, *INTEGERS, *FLOATS),
    "inexact": INEXACT,
    "floating": FLOATS,
    "complex": COMPLEX,
    "signed": SIGNED + FLOATS,
    "integer": INTEGERS,
    "bool": (bool,),
    "integer or bool": (bool, *INTEGERS),
}

Number = builtins.bool | int | float | complex
_MAX_BYTES = 2**63 - 1


class Spec:
    """Shape and dtype of an array, without its values.

    A Python number has shape () and the Python type (bool, int, float or complex) as its dtype: it is weakly typed and
    takes the dtype of the arrays that it is combined with. Ops called with Specs return the Spec of the result and
    compute nothing.

    Attributes:
        shape: Length of each axis.
        dtype: NumPy dtype, or a Python type for a Python number.

    Examples:
        >>> import polyarr as pa
        >>> pa.matmul(pa.Spec((2, 3), pa.float32), pa.Spec((3, 4), pa.float32))
        float32[2, 4]
    """

    __slots__ = ("_hash", "dtype", "shape")
    shape: tuple[int, ...]
    dtype: Any

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self._hash = hash((shape, dtype))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_number(self) -> builtins.bool:
        """Return whether this is the Spec of a Python number, which has no dtype of its own."""
        return isinstance(self.dtype, type)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.shape, self.dtype)  # computes the hash anew: that of a dtype differs between processes

    def __eq__(self, other: object) -> builtins.bool:
        return self is other or (type(other) is Spec and self.shape == other.shape and self.dtype == other.dtype)

    def __str__(self) -> str:
        return (
            f"{dtype_name(self.dtype)}{list(self.shape)}" if not self.is_number else f"a Python {self.dtype.__name__}"
        )

    __repr__ = __str__


def described(value: Any) -> str:
    """Describe a value for an error: an array by its Spec, anything else by its type."""
    kind = type(value)
    spec = getattr(value, "spec", value)
    if type(spec) is Spec:
        return str(spec)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return "None" if value is None else f"a {home}{kind.__qualname__}"


def shown(value: Any) -> str:
    """Show a value for an error: its repr if that is short, else its description."""
    try:
        written = repr(value) if isinstance(value, (str, int, float, complex, tuple, list, np.dtype)) else ""
    except RecursionError:
        written = ""
    return written if written and "\n" not in written and len(written) < 60 else described(value)


@cache  # dtype.name is slow in NumPy
def dtype_name(dtype: np.dtype | type) -> str:
    """Return the dtype's name as the array API standard spells it."""
    return dtype.__name__ if isinstance(dtype, type) else dtype.name


def as_dtype(dtype: object) -> np.dtype:
    """Return the polyarr dtype for a dtype object, a NumPy scalar type, a Python type or a name.

    Raises:
        DtypeError: polyarr has no such dtype.
    """
    python = {builtins.bool: bool, int: int64, float: float32, complex: complex64}
    if isinstance(dtype, type) and dtype in python:
        return python[dtype]
    try:
        found = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, RecursionError):  # ValueError, RecursionError: tuples and lists that are no dtype
        found = None
    if dtype is None or found is None or found not in DTYPES:  # NumPy takes None for float64
        shape = " (a shape is one argument, as (3, 4))" if type(dtype) is int else ""
        raise DtypeError(f"no dtype {shown(dtype)}{shape}; polyarr has {', '.join(d.name for d in DTYPES)}")
    return found


def promote(op: str, specs: Sequence[Spec]) -> np.dtype:
    """Return the dtype that arrays with these Specs are promoted to, by the array API standard's table.

    Where the standard defines nothing, as JAX and PyTorch do: arrays of a lower kind do not count (bool, integers,
    then floats and complex numbers), and a Python number of a higher kind than the arrays is int64, float32 or
    complex64.

    Raises:
        DtypeError: No integer dtype holds the values of both (int64 with uint64).
    """
    arrays: list[np.dtype] = [s.dtype for s in specs if not s.is_number]
    if not arrays:
        raise DtypeError(f"{op}: got only Python numbers; at least one input must be an array, by polyarr.asarray")
    highest = max(map(_rank, arrays))
    dtype, *others = [d for d in arrays if _rank(d) == highest]
    for other in others:
        if other != dtype:
            dtype = _promote_pair(op, dtype, other, specs)
    for number in [s.dtype for s in specs if s.is_number]:
        if _rank(as_dtype(number)) > _rank(dtype):
            dtype = as_dtype(number)
    return complex_of(dtype) if any(s.dtype is complex for s in specs) else dtype


def _rank(dtype: np.dtype) -> int:
    return 2 if dtype in INEXACT else int(dtype in INTEGERS)


def complex_of(dtype: np.dtype) -> np.dtype:
    """Return the complex dtype whose parts hold the values of a floating-point dtype; a complex dtype unchanged."""
    return dtype if dtype in COMPLEX else complex128 if dtype == float64 else complex64


def real_of(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the parts of a complex dtype; any other dtype unchanged."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def _promote_pair(op: str, a: np.dtype, b: np.dtype, specs: Sequence[Spec]) -> np.dtype:
    if a in FLOATS and b in FLOATS:
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.itemsize > b.itemsize else b
    if a in INEXACT and b in INEXACT:
        return complex128 if float64 in (real_of(a), real_of(b)) else complex64
    if a in INTEGERS and b in INTEGERS:
        found = np.promote_types(a, b)
        if found in INTEGERS:
            return found
    raise DtypeError(f"{op}: cannot promote {_listed(specs)}; cast one of them with astype")


def may_not_fit(number: type, dtype: np.dtype) -> builtins.bool:
    """Return whether some Python numbers of a type are out of range for dtype, so that check_number must run."""
    if number is complex:
        return dtype not in COMPLEX
    return dtype != bool and (number is int or (number is float and dtype in INTEGERS))


def check_number(op: str, name: str, value: Number, dtype: np.dtype) -> None:
    """Raise OverflowError for a number out of the range of dtype, DtypeError for a complex one that it cannot hold."""
    low, high = _LIMITS.get(real_of(dtype), (-math.inf, math.inf))
    if isinstance(value, complex):
        raise DtypeError(f"{op}: {name} is {value}; {dtype.name} has no imaginary part")
    if not low <= value <= high:
        given = (
            value if isinstance(value, float) or value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
        )
        raise OverflowError(f"{op}: {name} is {given}; {dtype.name} holds {low} to {high}, so choose a wider dtype")


_LIMITS: dict[np.dtype, tuple[Any, Any]] = {d: (int(np.iinfo(d).min), int(np.iinfo(d).max)) for d in INTEGERS}
_LIMITS.update(dict.fromkeys(FLOATS, (-float(np.finfo(float64).max), float(np.finfo(float64).max))))


def _listed(specs: Sequence[Spec]) -> str:
    return " and ".join(map(str, specs))


def check_size(op: str, out: Spec) -> None:
    """Raise ShapeError for a result of 2**63 bytes or more."""
    if math.prod(n for n in out.shape if n) * np.dtype(out.dtype).itemsize > _MAX_BYTES:
        raise ShapeError(f"{op}: the result would be {out}; an array has at most 2**63 - 1 bytes")


def check_kind(op: str, name: str, spec: Spec, kind: str) -> None:
    """Raise DtypeError unless spec's dtype is of a kind (a key of KINDS); TypeError for None or a list."""
    if type(spec) is not Spec:
        given = "None" if spec is None else "a list"
        raise TypeError(f"{op}: {name} is {given}; it must be an array or a Python number")
    if not spec.is_number and spec.dtype not in KINDS[kind]:
        required, is_float = _REQUIRED.get(kind, kind), kind in ("inexact", "floating")
        cast = f", so write {name}.astype(polyarr.float32)" if is_float and spec.dtype.kind in "biu" else ""
        raise DtypeError(f"{op}: {name} is {spec}; its dtype must be {required}{cast}")


_REQUIRED = {
    "any": "an array", "numeric": "numeric, not bool", "real": "real-valued, not bool",
    "real or bool": "real-valued", "inexact": "floating-point or complex",
    "floating": "floating-point",
}  # fmt: skip


def broadcast(op: str, *specs: Spec) -> tuple[int, ...]:
    """Return the shape that specs broadcast to.

    Raises:
        ShapeError: Two lengths of one axis differ and neither is 1.
    """
    ndim = max(len(s.shape) for s in specs)
    shape = [1] * ndim
    for spec in specs:
        lead = ndim - len(spec.shape)
        for i, length in enumerate(spec.shape):
            if length != 1:
                if shape[lead + i] not in (1, length):
                    arrays = [s for s in specs if not s.is_number]
                    raise ShapeError(f"{op}: cannot broadcast " + " with ".join(map(str, arrays)))
                shape[lead + i] = length
    return tuple(shape)
