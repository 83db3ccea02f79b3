"""Arguments of functions and parameters of ops: conversion to ints and numbers, and the errors for other types."""

import math
import operator
from typing import Any

import numpy as np

from polyarr.core.array import Array, spec_of
from polyarr.core.number import check
from polyarr.core.spec import Spec, check_number, described, may_not_fit, shown

LARGEST = int(np.finfo(np.float64).max)
ARRAY = "it must be a polyarr array (see polyarr.asarray)"


def stands_for_array(value: Any) -> bool:
    """Return whether a value takes over calls of ops, by polyarr_op, and has the shape and dtype of an array."""
    return hasattr(type(value), "polyarr_op") and all(hasattr(value, name) for name in ("shape", "dtype", "ndim"))


def check_array(op: str, name: str, value: Any) -> None:
    """Raise TypeError unless value is an Array, the Spec of one, or stands for one."""
    if type(value) not in (Array, Spec) and not stands_for_array(value):
        raise TypeError(f"{op}: {name} is {described(value)}; {ARRAY}")


def whole(op: str, name: str, value: Any) -> int:
    """Return value as an int, or raise TypeError."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} is {shown(value)}; it must be an int") from None


def wholes(op: str, name: str, value: Any) -> tuple[int, ...]:
    """Return an int, or a tuple, list or range of ints, as a tuple, or raise TypeError."""
    try:
        return tuple(map(operator.index, value if isinstance(value, (tuple, list, range)) else (value,)))
    except TypeError:
        raise TypeError(f"{op}: {name} is {shown(value)}; it must be an int or a tuple of ints") from None


def number(op: str, name: str, value: Any) -> float:
    """Return a Python int or float for a number, or for a value that holds one, such as an array without axes."""
    try:
        found = operator.index(value)
    except TypeError:
        pass
    else:
        if abs(found) > LARGEST:
            raise OverflowError(f"{op}: {name} is an int beyond 10**{len(str(abs(found))) - 1}; no float is as large")
        return found
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except TypeError:
        raise TypeError(f"{op}: {name} is {shown(value)}; it must be a number") from None


def within(op: str, name: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return value as a number; raise TypeError for another type, ValueError unless it is from low to high."""
    found = number(op, name, value)
    if not low <= found <= high:
        due = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{op}: {name} is {found}; it must be {due}")
    return found


def check_fits(op: str, name: str, number: Any, dtype: np.dtype) -> None:
    """Raise OverflowError for a Python number that dtype cannot hold; a compiled function checks this at every run."""
    if may_not_fit(spec_of(number).dtype, dtype):
        check(check_number, op, name, number, dtype)
