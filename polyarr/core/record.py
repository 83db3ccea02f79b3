"""The tape: what is kept of an operation, and when."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_created = itertools.count()
_depth: ContextVar[int] = ContextVar("polyarr_recording_depth", default=0)


class Node:
    """One recorded operation: where its gradient goes, and how to compute it.

    parents  the nodes of the tracked inputs, with their Specs in `specs`
    pull     (node, g) -> one gradient or None per parent, not yet summed back to the parent's shape
    """

    __slots__ = ("number", "parents", "pull", "specs")

    def __init__(self, parents: tuple = (), specs: tuple = (), pull: Callable[..., Any] | None = None) -> None:
        self.number, self.parents, self.specs, self.pull = next(_created), parents, specs, pull


def is_recording() -> bool:
    """True inside a gradient transform."""
    return _depth.get() > 0


@contextmanager
def recording() -> Iterator[None]:
    """Record what is computed from arrays that have a node."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing."""
    token = _depth.set(0)
    try:
        yield
    finally:
        _depth.reset(token)
