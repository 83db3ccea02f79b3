"""Precision of float32 matrix products: a parameter of each call, and the default for calls that give none."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

from polyarr.core.spec import float32, shown

PRECISIONS = ("highest", "high", "medium")  # lower bounds: a kernel may be more precise

_scope: ContextVar[str | None] = ContextVar("polyarr_matmul_precision", default=None)
_default = PRECISIONS[0]


def get_matmul_precision() -> str:
    """Return the default precision of float32 matrix products.

    Returns:
        "highest", "high" or "medium": that of the innermost `use_matmul_precision`, else that of
        `set_matmul_precision`.

    Examples:
        >>> import polyarr as pa
        >>> pa.get_matmul_precision()
        'highest'
    """
    return _scope.get() or _default


def set_matmul_precision(precision: str) -> None:
    """Set the default precision of float32 matrix products for the whole process.

    A precision is a lower bound: a device without the hardware for a lower one computes at a higher one.

    Args:
        precision: One of
            "highest": IEEE 754 float32 arithmetic; the initial default.
            "high": Each operand is the sum of two bfloat16 terms at worst, multiplied on matrix units.
            "medium": Operands rounded to tf32 or bfloat16 at worst, accumulated in float32.

    Raises:
        ValueError: `precision` is none of these.
    """
    global _default
    _default = _checked("set_matmul_precision", precision)


@contextlib.contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Set the default precision of float32 matrix products within a `with` block or a decorated function.

    The gradient of a call has the precision of the call, wherever it is computed. The setting is local to the thread.

    Args:
        precision: "highest", "high" or "medium"; see `set_matmul_precision`.

    Raises:
        ValueError: `precision` is none of these; raised on entering the block.

    Examples:
        >>> import polyarr as pa
        >>> with pa.use_matmul_precision("medium"):
        ...     pa.get_matmul_precision()
        'medium'
    """
    before = _scope.get()
    _scope.set(_checked("use_matmul_precision", precision))
    try:
        yield
    finally:
        _scope.set(before)


def _checked(name: str, precision: Any) -> str:
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"{name}: precision is {shown(precision)}; it must be 'highest', 'high' or 'medium'")
    return precision


def decided(op: str, asked: str | None) -> str:
    """Return the precision of a call of an op: the requested one, or the default for None."""
    return get_matmul_precision() if asked is None else _checked(op, asked)


def products_in(dtype: str, precision: str = PRECISIONS[0]) -> str:
    """Return the key in `Backend.peaks` for matrix products of a dtype; float32 has one per precision."""
    return f"GFLOP/s in {dtype}" + f" at {precision}" * (dtype == float32.name)


def as_kernel_takes(params: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return the parameters for a kernel, with the least precise of its `known` precisions that satisfies the call.

    A kernel that distinguishes no precisions computes at "highest" and does not receive the parameter.
    """
    if not known:
        return {name: value for name, value in params.items() if name != "precision"}
    return {**params, "precision": _enough(params["precision"], tuple(known))}


@cache
def _enough(precision: str, known: tuple[str, ...]) -> str:
    exact = PRECISIONS[: PRECISIONS.index(precision) + 1]
    return next((word for word in reversed(exact) if word in known), PRECISIONS[0])
