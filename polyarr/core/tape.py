"""The tape: what is kept of an operation, when it is kept, and what a function reads."""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_created = itertools.count()
# How many transforms there are around what runs; None where there never was one, as in a new thread.
_depth: ContextVar[int | None] = ContextVar("polyarr_recording_depth", default=None)
_once: ContextVar[bool] = ContextVar("polyarr_pulled_once", default=False)
_transforms: set[object] = set()  # those that run now, in any thread
reads: ContextVar["Reads | None"] = ContextVar("polyarr_reads", default=None)


class Node:
    """One recorded operation: where its gradient goes, and how to compute it.

    parents  the nodes of the tracked inputs, with their Specs in `specs`
    pull     (node, g) -> one gradient or None per parent, not yet summed back to the parent's shape; g is a list where
             there are several results
    results  the Specs of the results where there are several: a cotangent that is missing is then zeros, or None where
             None stands for the Spec
    """

    __slots__ = ("number", "parents", "pull", "results", "specs")

    def __init__(
        self,
        parents: Sequence[Any] = (),
        specs: Sequence[Any] = (),
        pull: Callable[..., Any] | None = None,
        results: tuple = (),
    ) -> None:
        self.number, self.parents, self.specs, self.pull = next(_created), parents, specs, pull
        self.results = results


class Result(Node):
    """The node of one of several results, by its index; its only parent is the node of them all."""

    __slots__ = ("index",)

    def __init__(self, node: Node, index: int) -> None:
        super().__init__((node,), (None,))
        self.index = index


def is_recording() -> bool:
    """True inside a gradient transform."""
    return bool(_depth.get())


def records() -> bool:
    """True where what is computed from an array with a node is recorded.

    That is inside a transform, and in a new thread while there is a transform in another: it may have started this one.
    """
    depth = _depth.get()
    return bool(_transforms) if depth is None else depth > 0


@contextmanager
def recording(once: bool = False) -> Iterator[None]:
    """Record what is computed from arrays that have a node; once: it is then pulled right away, and only once."""
    outermost = not _depth.get()
    token, other, own = _depth.set((_depth.get() or 0) + 1), _once.set(once and outermost), object()
    _transforms.add(own)
    try:
        yield
    finally:
        _transforms.discard(own)
        _once.reset(other)
        _depth.reset(token)


def is_pulled_once() -> bool:
    """True where the pull of what is recorded now will not be recorded itself: nobody asks for a higher derivative."""
    return _once.get()


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing."""
    token = _depth.set(0)
    try:
        yield
    finally:
        _depth.reset(token)


class Reads:
    """The arrays that operations took in a block, which may come from anywhere: arguments, closures, globals.

    since   the number of the first node that can be the block's own
    nodes   the nodes from before the block, with the Spec of the array that each belongs to
    arrays  the handles that are still alive, by identity
    before  what a handle stood for before the block rebound it
    """

    def __init__(self) -> None:
        self.since = next(_created)
        self.nodes: dict[Node, Any] = {}
        self._handles: dict[int, weakref.ref] = {}
        self._before: dict[int, tuple[weakref.ref, Any]] = {}

    def hold(self, a: Any) -> None:
        """Take down a handle whose values the block takes along, be it without an operation."""
        self._handles[id(a)] = weakref.ref(a)

    def rebinds(self, a: Any) -> None:
        """Take down what a handle stands for, unless the block has rebound it already."""
        if id(a) not in self._before or self._before[id(a)][0]() is not a:
            alive = {key: (ref, then) for key, (ref, then) in self._before.items() if ref() is not None}
            self._before = {**alive, id(a): (weakref.ref(a), a.snapshot())}

    def before(self, a: Any) -> Any:
        """What a handle stood for before the block rebound it, if it did."""
        ref, then = self._before.get(id(a), (None, None))
        return then if ref is not None and ref() is a else a.snapshot()

    def note(self, a: Any) -> None:
        """Take down an array that an operation takes."""
        self.hold(a)
        if a.node is not None and a.node.number < self.since:
            self.nodes[a.node] = a.spec

    @property
    def arrays(self) -> dict[int, Any]:
        """The handles that are still alive, by identity."""
        found = {key: ref() for key, ref in self._handles.items()}
        return {key: a for key, a in found.items() if a is not None}

    def merge(self, inner: "Reads") -> None:
        """Add what a block inside this one read."""
        self._handles.update(inner._handles)
        self._before = {**inner._before, **self._before}
        self.nodes.update({node: spec for node, spec in inner.nodes.items() if node.number < self.since})


def hold(a: Any) -> None:
    """Tell the block that is read, if there is one, that a handle's values go on without an operation."""
    if (block := reads.get()) is not None:
        block.hold(a)


@contextmanager
def reading() -> Iterator[Reads]:
    """Take down which arrays operations read in this block."""
    outer, own = reads.get(), Reads()
    token = reads.set(own)
    try:
        yield own
    finally:
        reads.reset(token)
        if outer is not None:
            outer.merge(own)
