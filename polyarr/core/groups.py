"""Groups of ops, such as linalg, that a backend implements completely or not at all."""

from polyarr.core.backend import Backend
from polyarr.core.op import OPS, Op

OFFERED, IN_PART, NOT_OFFERED = "offered", "in part", "not offered"


def groups() -> list[str]:
    """Return the names of all groups."""
    return sorted({op.group for op in OPS if op.group})


def lacking(backend: Backend, group: str) -> list[Op]:
    """Return the primitives of a group for which a backend has no kernel."""
    return [op for op in _primitives(group) if op not in backend.kernels]


def offer(backend: Backend, group: str) -> str:
    """Return whether a backend implements a group: OFFERED, NOT_OFFERED, or IN_PART, which is a defect.

    A group without primitives, such as conv, is always offered.
    """
    lacks = len(lacking(backend, group))
    return OFFERED if not lacks else NOT_OFFERED if lacks == len(_primitives(group)) else IN_PART


def _primitives(group: str) -> list[Op]:
    return [op for op in OPS if op.group == group and op.decomposition is None]
