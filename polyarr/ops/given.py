"""What functions that are no Op say of an argument that is no array; an Op says it by itself."""

from typing import Any

import numpy as np

from polyarr.core.array import Array, spec_of
from polyarr.core.spec import Spec, check_number, may_not_fit

ARRAY = "it must be a polyarr array (see polyarr.asarray)"


def described(value: Any) -> str:
    """What was given: an array by its Spec; of anything else the kind, a list, a numpy.ndarray."""
    kind = type(value)
    if kind in (Array, Spec):
        return str(spec_of(value))
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return "None" if value is None else f"a {home}{kind.__qualname__}"


def check_array(op: str, name: str, value: Any) -> None:
    """Raise TypeError unless value is an Array, or the Spec of one."""
    if type(value) not in (Array, Spec):
        raise TypeError(f"{op}: {name} is {described(value)}; {ARRAY}")


def check_fits(op: str, name: str, number: Any, dtype: np.dtype) -> None:
    """Raise OverflowError for a Python number that dtype cannot hold."""
    if may_not_fit(type(number), dtype):
        check_number(op, name, number, dtype)
