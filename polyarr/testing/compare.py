"""Comparison of results with expected values, and the exceptions that report the outcome of a check."""

from itertools import zip_longest
from typing import Any

import numpy as np

from polyarr import tree
from polyarr.core.array import Array
from polyarr.core.spec import COMPLEX, FLOATS, INEXACT, NARROW
from polyarr.creation import finfo
from polyarr.testing.tolerance import GRADIENT_FLOOR, allowed, largest, rounded, ties

__tracebackhide__ = True  # from pytest: a failure is shown at the line of the test
NOISE = 1e-12  # by which equal calls may differ, relative to the largest value: sums in no fixed order; or 16 eps
LARGE = 4096  # elements above which a failure reports where differences begin


class CheckFailure(AssertionError):  # noqa: N818  the outcome of a check rather than an error
    """The exception that a check raises if its condition does not hold.

    The message has one line: the op and the backend, what differs, at which index, the value found, the value expected
    and the tolerance. A note on the exception has the Python code that repeats the check.

    Examples:
        >>> from polyarr import ops
        >>> from polyarr.testing import CheckFailure, Data, Sample, checks
        >>> try:
        ...     checks.check_forward(ops.exp, "numpy", Sample((Data((3,)),)))
        ... except CheckFailure as failure:
        ...     print(failure)
    """


class Lacking(Exception):  # noqa: N818  a skip rather than an error
    """The exception that a check raises if the backend declares that it lacks what the check needs: a skip."""


class NotOffered(Lacking):
    """The exception that a check raises if the backend lacks the op's whole group, which is allowed."""


def values(where: str, result: Any, what: str = "the result") -> list[np.ndarray]:
    """Return every array of a result on the host, after checking its shape and dtype against its Spec.

    Raises:
        CheckFailure: A shape or a dtype differs.
    """
    return [_value(where, leaf, what) for leaf in tree.leaves(result)]


def _value(where: str, array: Array, what: str) -> np.ndarray:
    host = array.numpy()
    if (host.shape, host.dtype) != (array.shape, array.dtype):
        given = f"{host.dtype.name}{list(host.shape)}"
        raise CheckFailure(f"{where}: {what} came as {given}; it must be {array.spec}")
    if host.dtype == np.bool_ and host.size and (most := int(host.view(np.uint8).max())) > 1:
        raise CheckFailure(f"{where}: {what} holds true as the byte {most}; it must be 1")
    return host


def bits(result: Any) -> dict[tuple, bytes]:
    """Return the bytes of every array in a tree, by path, for bitwise comparison."""
    hosts = {path: leaf.numpy() if type(leaf) is Array else leaf for path, leaf in tree.items(result)}
    return {path: h.tobytes() for path, h in hosts.items() if isinstance(h, np.ndarray)}


def gradients_agree(where: str, got: dict, expected: dict, whose: str = "", dtype: np.dtype | None = None) -> None:
    """Compare gradients by name, relative to the largest value of each.

    Args:
        where: Begins the message, such as "exp on opencl".
        got: Gradients found.
        expected: Gradients expected.
        whose: Begins the names of the gradients in the message.
        dtype: Dtype whose tolerance applies if it is coarser than a gradient's own; None: the gradient's own.

    Raises:
        CheckFailure: A gradient differs, is missing or is unexpected.
    """
    if got.keys() != expected.keys():
        raise CheckFailure(f"{where}: {whose}gradients for {[*got]}, expected for {[*expected]}")
    for name, e in expected.items():
        close(where, f"{whose}d/d{name}", got[name], e, "gradient", max(GRADIENT_FLOOR, largest(e)), dtype)


def same_again(where: str, first: list[np.ndarray], second: list[np.ndarray]) -> None:
    """Check that two calls with the same arguments gave the same results; otherwise no slope means anything.

    Raises:
        CheckFailure: The shapes or the values differ.
    """
    shapes = [[list(host.shape) for host in hosts] for hosts in (first, second)]
    found = [(shape, again) for shape, again in zip_longest(*shapes) if shape != again]
    for a, b in [] if found else zip(first, second, strict=True):
        noise = max(NOISE, 16 * float(finfo(a.dtype).eps)) if a.dtype in FLOATS else NOISE
        with np.errstate(invalid="ignore"):
            wide = a.astype(np.complex128)
            apart = np.abs(wide - b.astype(np.complex128))
        if a.size and apart.max() > noise * (1 + np.abs(wide).max()):
            at = np.unravel_index(np.argmax(apart), a.shape)
            found.append((a[at], b[at]))
    if found:
        raise CheckFailure(
            f"{where}: two calls with the same arguments gave {found[0][0]} and {found[0][1]}; they must give the "
            "same, so draw with polyarr.random and keep nothing from call to call"
        )


def same_count(where: str, got: list, expected: list) -> None:
    """Check that there are as many results as expected.

    Raises:
        CheckFailure: The numbers differ.
    """
    if len(got) != len(expected):
        raise CheckFailure(f"{where}: {len(got)} results, expected {len(expected)}")


def close(
    where: str,
    what: str,
    got: np.ndarray,
    expected: np.ndarray,
    kind: str,
    magnitude: Any,
    dtype: np.dtype | None = None,
    flushes: bool = False,
) -> None:
    """Compare `got` with `expected`, which may have a wider dtype, within the tolerance of a class of ops and a dtype.

    Args:
        where: Begins the message, such as "exp on opencl".
        what: Name of the value in the message, such as "the result".
        got: Value found.
        expected: Value expected.
        kind: Class of ops, a row of tolerance.TABLE.
        magnitude: Magnitude that the tolerance is relative to.
        dtype: Dtype of the computation, which counts if it is coarser than got's own.
        flushes: Whether 0 may replace numbers below the smallest normal one.

    Raises:
        CheckFailure: An element, or the shape, differs.
    """
    if got.shape != expected.shape:
        raise CheckFailure(f"{where}: {what} has shape {list(got.shape)}, expected {list(expected.shape)}")
    if got.dtype not in INEXACT:
        bad, bound = got != expected, np.zeros(got.shape)
    elif got.dtype in COMPLEX:
        with np.errstate(all="ignore"):
            wide = "power" if kind in ("arithmetic", "function") else kind
            bound = allowed(wide, got.dtype, np.abs(expected), magnitude)
            same = _alike(np.real(got), np.real(expected)) & _alike(np.imag(got), np.imag(expected))
            bad = ~(same | (np.abs(got - expected) <= bound))
    else:
        coarser = max(got.dtype, dtype or got.dtype, key=lambda d: finfo(d).eps)
        with np.errstate(invalid="ignore"):
            expected = np.asarray(expected, np.float64)
        bad, bound = _apart(got, expected, kind, magnitude, coarser)
        if flushes:
            with np.errstate(invalid="ignore"):  # signaling nans
                bad &= (got != 0) | (np.abs(expected) > float(finfo(got.dtype).smallest_normal))
    if bad.any():
        at = np.unravel_index(np.argmax(bad), bad.shape)
        raise CheckFailure(
            f"{where}: {what} ({got.dtype.name}) differs at {list(map(int, at))}: {got[at]}, expected {expected[at]} "
            f"(off by {_distance(got[at], expected[at])}, allowed {bound[at]:.3g}; "
            f"{int(bad.sum())} of {bad.size} elements differ{_from_where(bad)})"
        )


def _alike(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return (got == expected) | (np.isnan(got) & np.isnan(expected))


def _from_where(bad: np.ndarray) -> str:
    """Return, for a large array, from which element on all differ or up to which one none does; else ""."""
    first = int(np.argmax(bad))
    if bad.size < LARGE or not first:
        return ""
    is_rest = bad.reshape(-1)[first:].all()
    return f", all from element {first:,} on" if is_rest else f", none before element {first:,}"


def _distance(got: Any, expected: Any) -> str:
    with np.errstate(all="ignore"):
        return f"{abs(np.complex128(got) - np.complex128(expected)):.3g}"


def _apart(
    got: np.ndarray, expected: np.ndarray, kind: str, magnitude: Any, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of the elements that differ by more than is allowed, and the allowed differences."""
    with np.errstate(all="ignore"):
        nearest = rounded(expected, got.dtype).astype(np.float64)
        found = got.astype(np.float64)
        bound = allowed(kind, dtype, np.where(np.isfinite(nearest), nearest, 0.0), magnitude)
        same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
        near = np.abs(found - expected) <= bound
        if kind == "arithmetic" and got.dtype in NARROW:  # exact results have only one correct rounding
            near &= ~ties(expected, got.dtype)
        # At the overflow threshold, the largest number and infinity are neighbors.
        edge = np.isfinite(expected) & (np.isinf(found) != np.isinf(nearest)) & (np.sign(found) == np.sign(nearest))
        limit = float(finfo(got.dtype).max)
        near |= edge & (np.abs(np.clip(found, -limit, limit) - np.clip(expected, -limit, limit)) <= 1e-5 * limit)
    return ~(same | near), bound


def same_zeros(where: str, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Check that zeros have the expected sign.

    Raises:
        CheckFailure: The sign of a zero differs.
    """
    if got.dtype in FLOATS:
        with np.errstate(invalid="ignore"):  # of a signaling nan
            zeros = (got == 0) & (expected == 0)
            bad = zeros & (np.signbit(got.astype(np.float64)) != np.signbit(expected))
        if bad.any():
            at = np.unravel_index(np.argmax(bad), bad.shape)
            raise CheckFailure(f"{where}: {what} at {list(map(int, at))} is {got[at]}, expected {expected[at]}")


def direction_at(host: Any) -> np.ndarray:
    """Return a random direction for a central difference at a host array; a complex one for complex numbers."""
    found = np.random.default_rng(3).standard_normal(np.shape(host))
    return found * (1 + 0.7j) if np.iscomplexobj(host) else found
