"""The tape: nodes of recorded operations, when to record, and which arrays a block reads."""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from polyarr.core.errors import GradientError

_created = itertools.count()
# Number of enclosing transforms; None if there was none yet, as in a new thread.
_depth: ContextVar[int | None] = ContextVar("polyarr_recording_depth", default=None)
_once: ContextVar[bool] = ContextVar("polyarr_pulled_once", default=False)
_transforms: set[object] = set()  # running transforms of all threads
# The functions of custom_vjp whose forward is running: inside it they run as they are, so that it may call them.
in_forward: ContextVar[tuple[Callable, ...]] = ContextVar("polyarr_custom_vjp_forward", default=())
reads: ContextVar["Reads | None"] = ContextVar("polyarr_reads", default=None)


class Node:
    """A recorded operation: the inputs that receive its gradient, and how to compute it.

    Attributes:
        number: Position in the order of creation.
        parents: Nodes of the tracked inputs.
        specs: Specs of the tracked inputs.
        pull: (node, g) -> one gradient or None per parent, not yet summed to the parent's shape. With several results,
            g is a list.
        results: Specs of the results if there are several. A missing cotangent is zeros, or None where the entry is
            None.
    """

    __slots__ = ("number", "parents", "pull", "results", "specs")
    number: int
    parents: Sequence[Any]
    specs: Sequence[Any]
    pull: Callable[..., Any] | None
    results: tuple[Any, ...]

    def __init__(
        self,
        parents: Sequence[Any] = (),
        specs: Sequence[Any] = (),
        pull: Callable[..., Any] | None = None,
        results: tuple[Any, ...] = (),
    ) -> None:
        self.number, self.parents, self.specs, self.pull = next(_created), parents, specs, pull
        self.results = results


class Result(Node):
    """Node of one of several results; its only parent is the node of the operation."""

    __slots__ = ("index",)

    def __init__(self, node: Node, index: int) -> None:
        super().__init__((node,), (None,))
        self.index = index


def depth() -> int:
    """Return the number of gradient transforms that run in this context."""
    return _depth.get() or 0


def is_recording() -> bool:
    """Return whether a gradient transform is running in this context."""
    return bool(_depth.get())


def records() -> bool:
    """Return whether operations on arrays with a node are recorded.

    That is the case inside a transform, and in a new thread while another thread runs a transform, which may have
    started this one.
    """
    depth = _depth.get()
    return bool(_transforms) if depth is None else depth > 0


@contextmanager
def recording(once: bool = False) -> Iterator[None]:
    """Record operations on arrays with a node. With `once`, the pull runs immediately and only once."""
    outermost = not _depth.get()
    token, other, own = _depth.set((_depth.get() or 0) + 1), _once.set(once and outermost), object()
    _transforms.add(own)
    try:
        yield
    finally:
        _transforms.discard(own)
        _once.reset(other)
        _depth.reset(token)


def check_unrecorded(call: str, x: Any) -> None:
    """Check that x may be given to another library: that no gradient is recorded for it, which would be lost.

    The forward function of a custom_vjp may give it away, since backward states the gradient.

    Raises:
        GradientError: One is recorded.
    """
    if x.node is not None and is_recording() and not in_forward.get():
        instead = "compute with polyarr or by pa.custom_vjp, or take pa.stop_gradient(x) if none is wanted"
        raise GradientError(f"{call}: the gradient of {x.spec} would be lost; {instead}")


def is_pulled_once() -> bool:
    """Return whether the pull of what is recorded now will not itself be differentiated."""
    return _once.get()


@contextmanager
def paused() -> Iterator[None]:
    """Do not record within this block."""
    token = _depth.set(0)
    try:
        yield
    finally:
        _depth.reset(token)


class Reads:
    """Arrays that the operations of a block read, from arguments, closures or globals.

    Attributes:
        since: Number of the first node that the block can have created.
        nodes: Nodes from before the block -> Spec of their array.
    """

    def __init__(self) -> None:
        self.since = next(_created)
        self.nodes: dict[Node, Any] = {}
        self._handles: dict[int, weakref.ref] = {}
        self._before: dict[int, tuple[weakref.ref, Any]] = {}

    def hold(self, a: Any) -> None:
        """Record a handle whose value leaves the block, even without an operation."""
        self._handles[id(a)] = weakref.ref(a)

    def rebinds(self, a: Any) -> None:
        """Record the current value of a handle before its first rebinding in the block."""
        if id(a) not in self._before or self._before[id(a)][0]() is not a:
            alive = {key: (ref, then) for key, (ref, then) in self._before.items() if ref() is not None}
            self._before = {**alive, id(a): (weakref.ref(a), a.snapshot())}

    def before(self, a: Any) -> Any:
        """Return a snapshot of a handle from before the block rebound it."""
        ref, then = self._before.get(id(a), (None, None))
        return then if ref is not None and ref() is a else a.snapshot()

    @property
    def rebound(self) -> list[Any]:
        """Handles that the block rebound and that are still alive."""
        return [a for ref, _ in self._before.values() if (a := ref()) is not None]

    def note(self, a: Any) -> None:
        """Record an array that an operation reads."""
        self.hold(a)
        if a.node is not None and a.node.number < self.since:
            self.nodes[a.node] = a.spec

    @property
    def arrays(self) -> dict[int, Any]:
        """Handles that are still alive, by id."""
        found = {key: ref() for key, ref in self._handles.items()}
        return {key: a for key, a in found.items() if a is not None}

    def merge(self, inner: "Reads") -> None:
        """Add what an inner block read."""
        self._handles.update(inner._handles)
        self._before = {**inner._before, **self._before}
        self.nodes.update({node: spec for node, spec in inner.nodes.items() if node.number < self.since})


def hold(a: Any) -> None:
    """Record in the current `reading` block, if any, that a handle's value is used without an operation."""
    if (block := reads.get()) is not None:
        block.hold(a)


@contextmanager
def reading() -> Iterator[Reads]:
    """Record which arrays operations read in this block."""
    outer, own = reads.get(), Reads()
    token = reads.set(own)
    try:
        yield own
    finally:
        reads.reset(token)
        if outer is not None:
            outer.merge(own)
