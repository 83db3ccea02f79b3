"""Queries about dtypes and the namespace, as in the array API standard."""

from typing import Any

import numpy as np

from polyarr.core.array import Array, spec_of
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.spec import (
    COMPLEX,
    DTYPES,
    FLOATS,
    INEXACT,
    INTEGERS,
    KINDS,
    SIGNED,
    UNSIGNED,
    Spec,
    as_dtype,
    bfloat16,
    complex64,
    float16,
    float32,
    int64,
    promote,
)
from polyarr.core.spec import bool as bool_
from polyarr.plugins import diagnosis

__all__ = ["NamespaceInfo", "__array_namespace_info__", "can_cast", "isdtype", "result_type"]

_GROUPS = {
    "bool": (bool_,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": COMPLEX,
    "numeric": KINDS["numeric"],
}


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the dtype that arrays, dtypes and Python numbers promote to.

    Args:
        *arrays_and_dtypes: Arrays, dtypes, their names, or Python numbers.

    Returns:
        numpy.dtype.

    Raises:
        DtypeError: The standard defines no common dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.result_type("int8", "int32")
        dtype('int32')
    """
    known = (Array, Spec, bool, int, float, complex)
    specs = [spec_of(a) if isinstance(a, known) else Spec((), as_dtype(a)) for a in arrays_and_dtypes]
    return promote("result_type", specs)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether a dtype promotes to another of its kind, or a float to complex, without loss of range.

    Args:
        from_: Dtype, its name, or an array.
        to: Dtype or its name.

    Returns:
        bool.

    Examples:
        >>> import polyarr as pa
        >>> pa.can_cast("int8", "int32"), pa.can_cast("float64", "float32")
        (True, False)
    """
    source, target = as_dtype(getattr(from_, "dtype", from_)), as_dtype(to)
    if source != target and not any({source, target} <= {*kind} for kind in (INTEGERS, INEXACT)):
        return False
    try:
        return promote("can_cast", [Spec((), source), Spec((), target)]) == target
    except TypeError:
        return False


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind.

    Args:
        dtype: Dtype.
        kind: Dtype, its name, a name of the standard such as "real floating" or "integral", or a tuple of these.

    Returns:
        bool.

    Raises:
        ValueError: There is no such kind.
        DtypeError: dtype is not a dtype.

    Examples:
        >>> import polyarr as pa
        >>> pa.isdtype(pa.float16, "real floating")
        True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind not in _GROUPS and kind not in (d.name for d in DTYPES):
        raise ValueError(f"isdtype: kind is {kind!r}; it must be a dtype or one of {', '.join(_GROUPS)}")
    found = dtype if isinstance(dtype, np.dtype) else as_dtype(dtype)
    return found in _GROUPS[kind] if isinstance(kind, str) and kind in _GROUPS else found == as_dtype(kind)


class NamespaceInfo:
    """Answers of the inspection API of the array API standard.

    Examples:
        >>> import polyarr as pa
        >>> info = pa.__array_namespace_info__()
        >>> info.dtypes(kind="real floating", device="numpy")
        {'float32': dtype('float32'), 'float64': dtype('float64')}
    """

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities of the namespace. Arrays of more axes than NumPy's cannot be read."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the name of the current backend."""
        return get_backend().name

    def default_dtypes(self, *, device: str | Backend | None = None) -> dict[str, Any]:
        """Return the dtypes that Python numbers become.

        Args:
            device: Backend or its name; None for the current backend. All backends have the same default dtypes.

        Returns:
            Dict of dtypes by kind.

        Raises:
            BackendError: There is no such backend.
        """
        get_backend(device)
        return {"real floating": float32, "complex floating": complex64, "integral": int64, "indexing": int64}

    def devices(self) -> tuple[str, ...]:
        """Return the names of all devices that can hold arrays, that of the current backend first.

        Starts every installed backend; backends and devices that do not work are left out.

        Returns:
            Tuple of names such as "numpy" and "opencl:0".
        """
        started = [row.backend.name for row in diagnosis.status(start=True) if row.backend is not None]
        listed = [f"{row.backend}:{row.index}" for row in diagnosis.devices() if not row.problem]
        return tuple(dict.fromkeys([get_backend().name, *started, *listed]))

    def dtypes(self, *, device: str | Backend | None = None, kind: Any = None) -> dict[str, Any]:
        """Return the dtypes of the standard that a backend has.

        Args:
            device: Backend or its name; None for the current backend.
            kind: Kind of dtypes as in `isdtype`, or a tuple of kinds; None for all.

        Returns:
            Dict of dtypes by name.

        Raises:
            BackendError: There is no such backend.
            ValueError: There is no such kind.
        """
        held = get_backend(device).dtypes - {float16, bfloat16}  # the standard does not have these
        return {d.name: d for d in DTYPES if d in held and (kind is None or isdtype(d, kind))}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  the standard's name
    """Return the inspection API of the array API standard."""
    return NamespaceInfo()
