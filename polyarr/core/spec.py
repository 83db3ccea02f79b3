"""Shapes and dtypes, without data: the vocabulary that every layer shares."""

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
bfloat16 = np.dtype(ml_dtypes.bfloat16)

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (float16, bfloat16, float32, float64)
NARROW = (float16, bfloat16)  # stored as such; what is computed is computed in float32 and rounded once
DTYPES = (bool, *INTEGERS, *FLOATS)

# The kinds that an op may ask for, and how an error names them.
KINDS = {
    "any": DTYPES,
    "real": INTEGERS + FLOATS,
    "floating": FLOATS,
    "signed": SIGNED + FLOATS,
    "integer": INTEGERS,
    "bool": (bool,),
    "integer or bool": (bool, *INTEGERS),
}

Number = builtins.bool | int | float
_MOST_BYTES = 2**63 - 1


class Spec:
    """What an array is before it holds numbers: a shape and a dtype.

    A Python number has shape () and the Python type (bool, int or float) as its dtype: it is weak, it
    takes the dtype of the arrays it meets.
    """

    __slots__ = ("_hash", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self._hash = hash((shape, dtype))

    ndim = property(lambda self: len(self.shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_number(self) -> builtins.bool:
        """True for a Python number, which has no dtype of its own."""
        return isinstance(self.dtype, type)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> builtins.bool:
        return self is other or (type(other) is Spec and self.shape == other.shape and self.dtype == other.dtype)

    def __str__(self) -> str:
        return (
            f"{dtype_name(self.dtype)}{list(self.shape)}" if not self.is_number else f"a Python {self.dtype.__name__}"
        )

    __repr__ = __str__


def described(value: Any) -> str:
    """What was given: an array by its Spec; of anything else the kind, a list, a numpy.ndarray."""
    kind = type(value)
    spec = getattr(value, "spec", value)
    if type(spec) is Spec:
        return str(spec)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return "None" if value is None else f"a {home}{kind.__qualname__}"


def told(value: Any) -> str:
    """What was given, as it was written where that is short."""
    written = repr(value) if isinstance(value, (str, int, float, complex, tuple, list, np.dtype)) else ""
    return written if written and "\n" not in written and len(written) < 60 else described(value)


@cache  # NumPy takes longer to say it than all else that a Spec says
def dtype_name(dtype: np.dtype | type) -> str:
    """The dtype's name as the standard spells it."""
    return dtype.__name__ if isinstance(dtype, type) else dtype.name


def as_dtype(dtype: object) -> np.dtype:
    """The polyarr dtype that dtype names: a dtype object, a NumPy scalar type, a Python type or a name.

    Errors:  DtypeError if polyarr has no such dtype
    """
    python = {builtins.bool: bool, int: int64, float: float32}
    if isinstance(dtype, type) and dtype in python:
        return python[dtype]
    try:
        found = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError):  # the second for a tuple or list that is no structure either
        found = None
    if dtype is None or found is None or found not in DTYPES:  # to NumPy, None is equal to float64
        raise DtypeError(f"no dtype {told(dtype)}; polyarr has {', '.join(d.name for d in DTYPES)}")
    return found


def promote(op: str, specs: Sequence[Spec]) -> np.dtype:
    """The dtype that arrays of these specs share, by the array API standard's table.

    Errors:  DtypeError where the standard defines none (mixed kinds, int64 with uint64), and for a Python
             number of a higher kind than the arrays
    """
    arrays: list[np.dtype] = [s.dtype for s in specs if not s.is_number]
    if not arrays:
        raise DtypeError(f"{op}: got only Python numbers; at least one input must be an array")
    dtype = arrays[0]
    for other in arrays[1:]:
        if other != dtype:
            dtype = _promote_pair(op, dtype, other, specs)
    for spec in specs:
        if spec.is_number and not _number_fits(spec.dtype, dtype):
            raise DtypeError(f"{op}: cannot combine {_listed(specs)}; cast the array with astype")
    return dtype


def _promote_pair(op: str, a: np.dtype, b: np.dtype, specs: Sequence[Spec]) -> np.dtype:
    if a in FLOATS and b in FLOATS:
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.itemsize > b.itemsize else b
    if a in INTEGERS and b in INTEGERS:
        found = np.promote_types(a, b)
        if found in INTEGERS:
            return found
    raise DtypeError(f"{op}: cannot promote {_listed(specs)}; cast one of them with astype")


def _number_fits(number: type, dtype: np.dtype) -> builtins.bool:
    if number is builtins.bool:
        return dtype == bool
    return dtype in FLOATS or (number is int and dtype in INTEGERS)


def may_not_fit(number: type, dtype: np.dtype) -> builtins.bool:
    """True if some Python numbers of a type are beyond what dtype holds: then check_number must see each of them."""
    return dtype != bool and (number is int or (number is float and dtype in INTEGERS))


def check_number(op: str, name: str, value: Number, dtype: np.dtype) -> None:
    """Raise OverflowError for a Python number that dtype cannot hold: nothing wraps around in silence."""
    low, high = _LIMITS.get(dtype, (-math.inf, math.inf))
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
    """Raise ShapeError for a result that no memory could ever hold, whose size not even a number of the host's says."""
    if math.prod(n for n in out.shape if n) * np.dtype(out.dtype).itemsize > _MOST_BYTES:
        raise ShapeError(f"{op}: the result would be {out}; an array has at most 2**63 - 1 bytes")


def check_kind(op: str, name: str, spec: Spec, kind: str) -> None:
    """Raise DtypeError unless spec's dtype is of the kind (a key of KINDS), TypeError for None or a list."""
    if type(spec) is not Spec:
        given = "None" if spec is None else "a list"
        raise TypeError(f"{op}: {name} is {given}; it must be an array or a Python number")
    if not spec.is_number and spec.dtype not in KINDS[kind]:
        required = {"real": "real-valued", "any": "an array", "floating": "floating-point"}.get(kind, kind)
        raise DtypeError(f"{op}: {name} is {spec}; its dtype must be {required}")


def broadcast(op: str, *specs: Spec) -> tuple[int, ...]:
    """The shape that specs broadcast to.

    Errors:  ShapeError if two lengths differ and neither is 1
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
