"""Holding a result against what is expected: what a failure is, and what it says."""

from typing import Any

import numpy as np

from polyarr import tree
from polyarr.core.array import Array
from polyarr.core.spec import FLOATS
from polyarr.creation import finfo
from polyarr.testing.tolerance import GRADIENT_FLOOR, allowed, largest


class CheckFailure(AssertionError):  # noqa: N818  a verdict, not a mishap
    """A check that did not hold."""


class Lacking(Exception):  # noqa: N818  no error: a skip
    """The backend says that it lacks what a check needs."""


class NotOffered(Lacking):
    """The backend lacks the group of ops that a check is about, as it may."""


def values(where: str, result: Any, what: str = "the result") -> list[np.ndarray]:
    """Every array of a result on the host, each with the shape and the dtype that it claims to have.

    Errors:  CheckFailure
    """
    return [_value(where, leaf, what) for leaf in tree.leaves(result)]


def _value(where: str, array: Array, what: str) -> np.ndarray:
    host = array.numpy()
    if (host.shape, host.dtype) != (array.shape, array.dtype):
        given = f"{host.dtype.name}{list(host.shape)}"
        raise CheckFailure(f"{where}: {what} came as {given}; it must be {array.spec}")
    return host


def bits(result: Any) -> dict[tuple, bytes]:
    """Every array as bytes, by path: what may not differ at all."""
    hosts = {path: leaf.numpy() if type(leaf) is Array else leaf for path, leaf in tree.items(result)}
    return {path: h.tobytes() for path, h in hosts.items() if isinstance(h, np.ndarray)}


def gradients_agree(where: str, got: dict, expected: dict, whose: str = "", dtype: np.dtype | None = None) -> None:
    """Gradients by name agree, relative to the largest value of each, as far as dtype (None: their own) can tell.

    Errors:  CheckFailure
    """
    if got.keys() != expected.keys():
        raise CheckFailure(f"{where}: {whose}gradients for {[*got]}, expected for {[*expected]}")
    for name, e in expected.items():
        close(where, f"{whose}d/d{name}", got[name], e, "gradient", max(GRADIENT_FLOOR, largest(e)), dtype)


def same_count(where: str, got: list, expected: list) -> None:
    """As many results as expected.

    Errors:  CheckFailure
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
    """got agrees with expected, which may be of a wider dtype, within the tolerance of its class and dtype.

    dtype    that of the calculation, which counts where it is coarser than got's own
    flushes  whether 0 may stand for what is below the smallest normal number

    Errors:  CheckFailure
    """
    if got.shape != expected.shape:
        raise CheckFailure(f"{where}: {what} has shape {list(got.shape)}, expected {list(expected.shape)}")
    if got.dtype not in FLOATS:
        bad, bound = got != expected, np.zeros(got.shape)
    else:
        coarser = max(got.dtype, dtype or got.dtype, key=lambda d: finfo(d).eps)
        expected = np.asarray(expected, np.float64)
        bad, bound = _apart(got, expected, kind, magnitude, coarser)
        if flushes:
            bad &= (got != 0) | (np.abs(expected) > float(finfo(got.dtype).smallest_normal))
    if bad.any():
        at = np.unravel_index(np.argmax(bad), bad.shape)
        raise CheckFailure(
            f"{where}: {what} ({got.dtype.name}) differs at {list(map(int, at))}: {got[at]}, expected {expected[at]} "
            f"(off by {_distance(got[at], expected[at])}, allowed {bound[at]:.3g}; "
            f"{int(bad.sum())} of {bad.size} elements differ)"
        )


def _distance(got: Any, expected: Any) -> str:
    with np.errstate(all="ignore"):
        return f"{abs(np.float64(got) - np.float64(expected)):.3g}"


def _apart(
    got: np.ndarray, expected: np.ndarray, kind: str, magnitude: Any, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Where got and expected differ by more than is allowed, and what is allowed."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype).astype(np.float64)
        found = got.astype(np.float64)
        bound = allowed(kind, dtype, np.where(np.isfinite(rounded), rounded, 0.0), magnitude)
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        near = np.abs(found - expected) <= bound
        # On the edge of overflow, the largest number and infinity are neighbours.
        edge = np.isfinite(expected) & (np.isinf(found) != np.isinf(rounded)) & (np.sign(found) == np.sign(rounded))
        limit = float(finfo(got.dtype).max)
        near |= edge & (np.abs(np.clip(found, -limit, limit) - np.clip(expected, -limit, limit)) <= 1e-5 * limit)
    return ~(same | near), bound


def same_zeros(where: str, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Zeros have the sign that is expected.

    Errors:  CheckFailure
    """
    if got.dtype in FLOATS:
        zeros = (got == 0) & (expected == 0)
        bad = zeros & (np.signbit(got.astype(np.float64)) != np.signbit(expected))
        if bad.any():
            at = np.unravel_index(np.argmax(bad), bad.shape)
            raise CheckFailure(f"{where}: {what} at {list(map(int, at))} is {got[at]}, expected {expected[at]}")
