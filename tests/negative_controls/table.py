"""The table of planted faults, and what its entries are made of."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from polyarr.core.backend import Backend

# What the messages of the kit must say. Each begins with the op and the backend; see test_negative_controls.py.
AMOUNT = r"\(off by \S+, allowed \S+; \d+ of \d+ elements differ\)"


def differs(what: str = "the result", dtype: str = r"\w+") -> str:
    """What differs, where and by how much."""
    return rf"{what} \({dtype}\) differs at \[[\d, ]*\]: \S+, expected \S+ {AMOUNT}"


class Fault(NamedTuple):
    """One mistake that someone could make in a backend.

    name    what it is
    good    the backend that it is planted in: "numpy", "pairs" (NumPy with pairs.PAIRS), "telling" (with
            precisions.telling) or "opencl"
    plant   the good backend -> the faulty one
    caught  the cases that must catch it, and what each must say, as a regular expression
    steady  whether it shows every time, so that the snippet in the failure's note shows it again
    within  the context that it needs
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
    """Enter a fault that gives some ops other kernels."""
    FAULTS.append(Fault(name, good, lambda backend: with_kernels(backend, changed), caught))


def with_kernels(backend: Backend, changed: dict) -> Backend:
    """The backend with these kernels in place of its own."""
    return backend._replace(kernels={**backend.kernels, **changed})
