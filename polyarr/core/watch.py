"""Watching what runs. While somebody does, methods of Op and Pair are replaced; while nobody does, nothing asks."""

import contextlib
import threading
import time
from collections.abc import Callable, Container, Iterator
from typing import Any

from polyarr.core.array import Array, flatten, spec_of
from polyarr.core.backend import Backend, Fused, Launch
from polyarr.core.current import get_backend, wait
from polyarr.core.op import Op
from polyarr.core.record import Pair


class Call:
    """One call of an op, or of the backward half of a pair, while somebody watches.

    part    what computes it: "kernel", "forward" or "backward" of a pair, "body", "walk" for a gradient's way back; ""
            as long as nothing was found that can
    outer   the call within which it was made, in the same thread
    began, ended, in seconds of time.perf_counter
    """

    __slots__ = ("backend", "began", "ended", "error", "op", "out", "outer", "params", "part", "specs", "thread")

    def __init__(self, op: Any, specs: tuple, params: dict[str, Any], backend: Backend | None, part: str = "") -> None:
        self.op, self.specs, self.params, self.backend, self.part = op, specs, params, backend, part
        self.out: Any = None
        self.error: BaseException | None = None
        self.outer: Call | None = innermost()
        self.thread = threading.current_thread()
        self.began = self.ended = time.perf_counter()

    @property
    def name(self) -> str:
        """The op's name, and which half of a pair it is if it is the second."""
        return f"{self.op.name} backward" if self.part == "backward" else self.op.name

    @property
    def depth(self) -> int:
        """How many calls it is made within."""
        return 0 if self.outer is None else self.outer.depth + 1

    def within(self, part: str) -> bool:
        """True inside of a call of which such a part runs."""
        return self.outer is not None and (self.outer.part == part or self.outer.within(part))


class Watcher:
    """Somebody who watches. Is called in the thread that computes, and must not compute.

    What `ended` raises is raised by the call.
    """

    needs_launches = False  # True: devices are asked to note what they do and when, which slows them down

    def begun(self, call: Call) -> None:
        """It was found what computes the call. Twice, if a pair declines and the op's body takes over."""

    def launched(self, launch: Launch, call: Call | None) -> None:
        """A device was given something to do, within a call or outside of any, as an upload is."""

    def ended(self, call: Call, value: Any) -> None:
        """The call is over; value is None if it has an error."""


_present: tuple[Watcher, ...] = ()  # who watches in two blocks, one within the other, is here twice
_watchers: tuple[Watcher, ...] = ()  # and here once
_lock = threading.RLock()
_here = threading.local()
_notes: dict[int, tuple[Any, Any, Container[int]]] = {}  # by id of Backend.noting: itself, its context, own kernels


def innermost() -> Call | None:
    """The call that runs in this thread."""
    return getattr(_here, "call", None)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Have somebody watch all threads in this block."""
    _change(lambda present: [*present, watcher])
    try:
        yield
    finally:
        _change(lambda present: _without(watcher, present))


def is_watching(watcher: Watcher) -> bool:
    """True if somebody watches now."""
    return any(w is watcher for w in _watchers)


def _without(watcher: Watcher, present: tuple[Watcher, ...]) -> list[Watcher]:
    """With one less of it."""
    last = max(i for i, w in enumerate(present) if w is watcher)
    return [w for i, w in enumerate(present) if i != last]


def _change(change: Callable[[tuple[Watcher, ...]], list[Watcher]]) -> None:
    global _present, _watchers
    with _lock:
        _present = tuple(change(_present))
        _watchers = tuple(dict.fromkeys(_present))
        for owner, name, plain, watched in STAND_INS:
            setattr(owner, name, watched if _watchers else plain)
        if not any(w.needs_launches for w in _watchers):
            while _notes:
                _notes.popitem()[1][1].__exit__(None, None, None)


@contextlib.contextmanager
def calling(call: Call) -> Iterator[Callable[[Any], Any]]:
    """The block in which a call runs. Gives what is to be told its value, and hands that back."""
    value = None

    def found(given: Any) -> Any:
        nonlocal value
        value = given
        return given

    _here.call = call
    try:
        yield found
    except BaseException as error:
        call.error = error
        raise
    finally:
        _here.call, call.ended = call.outer, time.perf_counter()
        for watcher in _watchers:
            watcher.ended(call, value)


def begin(call: Call, part: str, out: Any) -> None:
    """Tell everybody who watches what computes a call."""
    call.part, call.out = part, out
    for watcher in _watchers:
        watcher.begun(call)


def note(launch: Launch) -> None:
    """Tell everybody who watches what a device was given to do."""
    for watcher in _watchers:
        watcher.launched(launch, innermost())


# ---- what a kernel does to its device ------------------------------------------------------------------------------


def _notes_itself(half: Callable, backend: Backend) -> bool:
    """True if the backend notes by itself, from now on at the latest, what a kernel has the device do."""
    if backend.noting is None:
        return False
    with _lock:
        key = id(backend.noting)
        if key not in _notes:
            context = backend.noting(note)
            _notes[key] = backend.noting, context, context.__enter__()
        return id(half) in _notes[key][2]


def seen(half: Callable, call: Call, backend: Backend, run: Callable | None = None) -> Callable:
    """A kernel, or half of a pair, such that what it does is noted: if not by the backend, then by the clock.

    run is what is to be called for it, if it is not to be called itself.
    """
    run = run or half
    if not any(w.needs_launches for w in _watchers) or _notes_itself(half, backend):
        return run

    def timed(*args: Any, **params: Any) -> Any:
        wait(backend)
        began = time.perf_counter()
        found = run(*args, **params)
        wait(backend)
        ended = time.perf_counter()
        if found is not NotImplemented:
            note(Launch(call.name, (), None, lambda: (began, ended)))
        return found

    return timed


# ---- what stands in for the methods --------------------------------------------------------------------------------

_PLAIN_RUN, _PLAIN_RUN_KERNEL, _PLAIN_RUN_BODY, _PLAIN_PULL = Op._run, Op._run_kernel, Op.run_body, Pair.__call__
_PLAIN_RUN_OWN_PAIR = Op.run_own_pair


def _run(self: Op, args: tuple, specs: tuple, backend: Backend | None, tracked: bool, params: dict[str, Any]) -> Any:
    with calling(Call(self, specs, params, backend or get_backend())) as found:
        return found(_PLAIN_RUN(self, args, specs, backend, tracked, params))


def _run_kernel(
    self: Op, kernel: Any, backend: Backend, args: tuple, plan: Any, tracked: bool, params: dict[str, Any]
) -> Any:
    call = innermost()
    if call is not None and kernel is not None:
        is_pair = type(kernel) is Fused
        begin(call, "forward" if is_pair else "kernel", plan.out)
        if is_pair:
            kernel = kernel._replace(forward=seen(kernel.forward, call, backend))
        else:
            kernel = seen(kernel, call, backend)
    return _PLAIN_RUN_KERNEL(self, kernel, backend, args, plan, tracked, params)


def _run_body(self: Op, plan: Any, args: tuple, params: dict[str, Any]) -> Any:
    call = innermost()
    if call is not None and call.op is self and call.part in ("", "forward"):
        begin(call, "body", plan.out)
        return _PLAIN_RUN_BODY(self, plan, args, params)
    # Where a pair is differentiated, its body runs without a call of the op.
    call = Call(self, tuple(map(spec_of, args)), params, _backend_of(args))
    with calling(call) as found:
        begin(call, "body", plan.out)
        return found(_PLAIN_RUN_BODY(self, plan, args, params))


def _run_own_pair(self: Op, plan: Any, args: tuple, params: dict[str, Any]) -> Any:
    if (call := innermost()) is not None:
        begin(call, "body", plan.out)
    return _PLAIN_RUN_OWN_PAIR(self, plan, args, params)


def _pull(self: Pair, node: Any, g: Any) -> Any:
    call = Call(self.op, (self.plan.out, *map(spec_of, self.args)), self.params, self.backend, "backward")
    with calling(call) as found:
        begin(call, "backward", node.specs)
        return found(seen(self.fused.backward, call, self.backend, _PLAIN_PULL)(self, node, g))


def _backend_of(args: tuple) -> Backend:
    return next((a.backend for a in flatten(args) if type(a) is Array), None) or get_backend()


# (whose, name, the method, what stands in for it while somebody watches)
STAND_INS: list[tuple[Any, str, Any, Any]] = [
    (Op, "_run", _PLAIN_RUN, _run),
    (Op, "_run_kernel", _PLAIN_RUN_KERNEL, _run_kernel),
    (Op, "run_body", _PLAIN_RUN_BODY, _run_body),
    (Op, "run_own_pair", _PLAIN_RUN_OWN_PAIR, _run_own_pair),
    (Pair, "__call__", _PLAIN_PULL, _pull),
]


def stand_in(owner: Any, name: str, watched: Callable) -> Any:
    """Have something else than a method or function be called while somebody watches. Gives the plain one."""
    plain = getattr(owner, name)
    with _lock:
        STAND_INS.append((owner, name, plain, watched))
        if _watchers:
            setattr(owner, name, watched)
    return plain
