"""Questions about dtypes and the namespace, as the array API standard asks them."""

from typing import Any

import numpy as np

from polyarr.core.array import Array, spec_of
from polyarr.core.current import get_backend
from polyarr.core.spec import (
    DTYPES,
    FLOATS,
    INTEGERS,
    KINDS,
    SIGNED,
    UNSIGNED,
    Spec,
    as_dtype,
    bfloat16,
    float16,
    float32,
    int64,
    promote,
)
from polyarr.core.spec import bool as bool_

_GROUPS = {
    "bool": (bool_,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": (),
    "numeric": KINDS["real"],
}


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that arrays, dtypes and Python numbers share.

    Errors:  DtypeError where the standard defines none
    """
    known = (Array, Spec, bool, int, float)
    specs = [spec_of(a) if isinstance(a, known) else Spec((), as_dtype(a)) for a in arrays_and_dtypes]
    return promote("result_type", specs)


def can_cast(from_: Any, to: Any, /) -> bool:
    """True if from_ (a dtype or an array) promotes to `to` without loss of range."""
    source, target = as_dtype(getattr(from_, "dtype", from_)), as_dtype(to)
    try:
        return promote("can_cast", [Spec((), source), Spec((), target)]) == target
    except TypeError:
        return False


def isdtype(dtype: Any, kind: Any) -> bool:
    """True if dtype is of a kind: a dtype, one of the standard's names ("real floating"), or a tuple of those.

    Errors:  ValueError for an unknown name; DtypeError if dtype is none
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind not in _GROUPS and kind not in (d.name for d in DTYPES):
        raise ValueError(f"isdtype: kind is {kind!r}; it must be a dtype or one of {', '.join(_GROUPS)}")
    found = dtype if isinstance(dtype, np.dtype) else as_dtype(dtype)
    return found in _GROUPS[kind] if isinstance(kind, str) and kind in _GROUPS else found == as_dtype(kind)


class NamespaceInfo:
    """What the standard's inspection API answers."""

    def capabilities(self) -> dict[str, Any]:
        """What the namespace can do."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The name of the current backend."""
        return get_backend().name

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Any]:
        """The dtypes that Python numbers become."""
        return {"real floating": float32, "complex floating": None, "integral": int64, "indexing": int64}

    def devices(self) -> list[str]:
        """The backends that were started; names of others may be given to set_backend."""
        return [get_backend().name]

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, Any]:
        """The standard's dtypes that a backend holds, by name, of a kind if one is given."""
        held = get_backend(device).dtypes - {float16, bfloat16}  # which the standard does not know
        return {d.name: d for d in DTYPES if d in held and (kind is None or isdtype(d, kind))}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  the standard's name
    """The standard's inspection API."""
    return NamespaceInfo()
