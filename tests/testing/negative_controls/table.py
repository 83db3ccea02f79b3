"""The table of planted faults."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from polyarr.core.backend import Backend

# Patterns of the kit's messages. Each message begins with the op and the backend; see test_negative_controls.py.
AMOUNT = r"\(off by \S+, allowed \S+; \d+ of \d+ elements differ[^)]*\)"


def differs(what: str = "the result", dtype: str = r"\w+") -> str:
    """Return the pattern of a message that says what differs, where and by how much."""
    return rf"{what} \({dtype}\) differs at \[[\d, ]*\]: \S+, expected \S+ {AMOUNT}"


class Fault(NamedTuple):
    """One mistake that an author of a backend could make.

    Attributes:
        name: Name of the fault.
        good: Backend that it is planted in: "numpy", "fused" (NumPy with fused_kernels.FUSED), "telling" (with
            precisions.telling), "reporting" (with the memory report and launches of fields) or "opencl".
        plant: Maps the good backend to the faulty one.
        caught: Cases that must catch it, with a regular expression for each message.
        steady: Whether it fails every time, so that the snippet in the failure's note reproduces it.
        within: Context manager that it needs.
    """

    name: str
    good: str
    plant: Callable[[Backend], Backend]
    caught: dict[str, str]
    steady: bool = True
    within: Callable[[], AbstractContextManager] = nullcontext


FAULTS: list[Fault] = []


def fault(good: str, caught: dict[str, str], **more: Any) -> Callable:
    """Enter the decorated function, which plants a fault, into the table."""

    def enter(plant: Callable[[Backend], Backend]) -> Callable[[Backend], Backend]:
        FAULTS.append(Fault(plant.__name__.replace("_", " "), good, plant, caught, **more))
        return plant

    return enter


def kernels(good: str, caught: dict[str, str], changed: dict, name: str) -> None:
    """Enter a fault that replaces the kernels of some ops."""
    FAULTS.append(Fault(name, good, lambda backend: with_kernels(backend, changed), caught))


def with_kernels(backend: Backend, changed: dict) -> Backend:
    """Return the backend with these kernels instead of its own."""
    return backend._replace(kernels={**backend.kernels, **changed})
