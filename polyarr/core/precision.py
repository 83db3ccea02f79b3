"""How exactly products of float32 are computed: a word that each call keeps, and the default where it names none."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

from polyarr.core.spec import float32, told

PRECISIONS = ("highest", "high", "medium")  # each is a lower bound: a kernel may always be more exact

_scope: ContextVar[str | None] = ContextVar("polyarr_matmul_precision", default=None)
_default = PRECISIONS[0]


def get_matmul_precision() -> str:
    """The precision of products that name none: the innermost use_matmul_precision's, else set_matmul_precision's."""
    return _scope.get() or _default


def set_matmul_precision(precision: str) -> None:
    """Have products of float32, in the whole process, be as exact as a word says, where nothing else is said.

    "highest"  float32 arithmetic, as IEEE 754 has it; the default
    "high"     each number as the sum of 16-bit parts, where the device has units for products of those
    "medium"   each number rounded to tf32 or bfloat16 at worst, the sums still in float32

    A precision is a lower bound: a device without such units computes all three alike.

    Errors:  ValueError for another word
    """
    global _default
    _default = _checked("set_matmul_precision", precision)


@contextlib.contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Use a precision, as set_matmul_precision describes them, within a `with` block or a decorated function.

    What is called within keeps it for its gradient, wherever that is pulled. Threads do not disturb each other.

    Errors:  ValueError for another word, on entering
    """
    before = _scope.get()
    _scope.set(_checked("use_matmul_precision", precision))
    try:
        yield
    finally:
        _scope.set(before)


def _checked(name: str, precision: Any) -> str:
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"{name}: precision is {told(precision)}; it must be 'highest', 'high' or 'medium'")
    return precision


def decided(op: str, asked: str | None) -> str:
    """The precision that a call of an op has from now on."""
    return get_matmul_precision() if asked is None else _checked(op, asked)


def products_in(dtype: str, precision: str = PRECISIONS[0]) -> str:
    """What a backend's `peaks` calls the GFLOP/s of large products; of float32 each precision has its own."""
    return f"GFLOP/s in {dtype}" + f" at {precision}" * (dtype == float32.name)


def as_kernel_takes(params: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The parameters for a kernel that tells these words apart: the least exact of them that is exact enough.

    A kernel that tells none apart, and is "highest" without knowing, is not told.
    """
    if not known:
        return {name: value for name, value in params.items() if name != "precision"}
    return {**params, "precision": _enough(params["precision"], tuple(known))}


@cache
def _enough(precision: str, known: tuple[str, ...]) -> str:
    exact = PRECISIONS[: PRECISIONS.index(precision) + 1]
    return next((word for word in reversed(exact) if word in known), PRECISIONS[0])
