"""Observers of running ops.

Methods of Op and FusedPull are replaced by observed versions while an observer is registered, so calls cost nothing
extra otherwise.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Container, Iterator
from typing import Any

from polyarr.core.array import Array, flatten, spec_of
from polyarr.core.backend import Backend, Fused, Launch
from polyarr.core.current import capturing, get_backend, wait
from polyarr.core.op import Op
from polyarr.core.program import Step
from polyarr.core.record import FusedPull
from polyarr.core.tape import records


class Call:
    """One observed call of an op, or of the backward function of a Fused kernel.

    Attributes:
        op: The op.
        specs: Specs of the inputs.
        params: Parameters.
        backend: Backend that computes; None if unknown.
        part: What computes: "kernel"; "forward" or "backward" of a Fused kernel; "decomposition"; "walk"
            for a backward pass over the tape; "captured" for a captured function, and "group" for a fused step of one;
            "" until it is known.
        step: The step of a captured function that the call runs; None for all other calls.
        is_tracked: Whether the gradient of an input is recorded; False where that is unknown.
        out: Spec of the result.
        error: Exception that the call raised, or None.
        outer: The enclosing call in the same thread, or None.
        thread: Thread of the call.
        began: Start, in seconds of time.perf_counter.
        ended: End, in seconds of time.perf_counter.
    """

    __slots__ = (
        "backend", "began", "ended", "error", "is_tracked", "op", "out", "outer", "params", "part", "specs", "step",
        "thread",
    )  # fmt: skip

    def __init__(self, op: Any, specs: tuple, params: dict[str, Any], backend: Backend | None, part: str = "") -> None:
        self.op, self.specs, self.params, self.backend, self.part = op, specs, params, backend, part
        self.out: Any = None
        self.is_tracked = False
        self.error: BaseException | None = None
        self.step: Step | None = None
        self.outer: Call | None = innermost()
        self.thread = threading.current_thread()
        self.began = self.ended = time.perf_counter()

    @property
    def name(self) -> str:
        """Name of the op, with "backward" for the backward function."""
        return f"{self.op.name} backward" if self.part == "backward" else self.op.name

    @property
    def depth(self) -> int:
        """Number of enclosing calls."""
        return 0 if self.outer is None else self.outer.depth + 1

    def within(self, part: str) -> bool:
        """Return whether an enclosing call has this part."""
        return self.outer is not None and (self.outer.part == part or self.outer.within(part))


class Observer:
    """Observer of calls and launches: subclass it and register it with `observing`.

    Its methods run in the thread that computes, and must not compute. An exception of `ended` is raised by the call.

    Attributes:
        needs_launches: Whether `launched` is needed. Backends then report launches with times, which slows them down.
        takes_programs: Whether captured functions run as they do unobserved, and not one op after the other.
    """

    needs_launches = takes_programs = False

    def begun(self, call: Call) -> None:
        """Report what computes a call; called again if a Fused kernel declines and the decomposition runs."""

    def launched(self, launch: Launch, call: Call | None) -> None:
        """Report work submitted to a device, within a call or, such as an upload, outside of any."""

    def ended(self, call: Call, value: Any) -> None:
        """Report the end of a call; value is None if it raised."""

    def captured(self, name: str, backend: Backend, event: str) -> None:
        """Report that a compiled function is captured, and why, or that a captured program runs."""


_registered: tuple[Observer, ...] = ()  # once per active `observing` block
_observers: tuple[Observer, ...] = ()  # the same without duplicates
_lock = threading.RLock()
_here = threading.local()
_launch_reports: dict[int, tuple[Any, Any, Container[int]]] = {}  # by id of Backend.observing: it, context, kernels


def innermost() -> Call | None:
    """Return the call that runs in this thread, or None."""
    return getattr(_here, "call", None)


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Register an observer for all threads within this block."""
    _change(lambda registered: [*registered, observer])
    try:
        yield
    finally:
        _change(lambda registered: _without(observer, registered))


def is_observing(observer: Observer) -> bool:
    """Return whether an observer is registered."""
    return any(w is observer for w in _observers)


def _without(observer: Observer, registered: tuple[Observer, ...]) -> list[Observer]:
    """Return the observers with one registration of `observer` removed."""
    last = max(i for i, w in enumerate(registered) if w is observer)
    return [w for i, w in enumerate(registered) if i != last]


def _change(change: Callable[[tuple[Observer, ...]], list[Observer]]) -> None:
    global _registered, _observers
    with _lock:
        _registered = tuple(change(_registered))
        _observers = tuple(dict.fromkeys(_registered))
        for owner, name, plain, observed in REPLACED:
            setattr(owner, name, observed if _observers else plain)
        if not any(w.needs_launches for w in _observers):
            while _launch_reports:
                _launch_reports.popitem()[1][1].__exit__(None, None, None)


@contextlib.contextmanager
def calling(call: Call) -> Iterator[Callable[[Any], Any]]:
    """Run a block as a call; yields a function that records the call's value and returns it."""
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
        for observer in _observers:
            observer.ended(call, value)


def report_begin(call: Call, part: str, out: Any) -> None:
    """Report to all observers what computes a call."""
    call.part, call.out = part, out
    for observer in _observers:
        observer.begun(call)


def report_launch(launch: Launch) -> None:
    """Report a launch to all observers."""
    for observer in _observers:
        observer.launched(launch, innermost())


def report_capture(name: str, backend: Backend, event: str) -> None:
    """Report to all observers that a compiled function is captured, and why, or that a captured program runs."""
    for observer in _observers:
        observer.captured(name, backend, event)


def takes_programs(backend: Backend) -> bool:
    """Return whether captured functions may run whole: all observers allow it, and the backend reports its launches."""
    return all(w.takes_programs for w in _observers) and reported_kernels(backend) is not None


# ---- launches of kernels -------------------------------------------------------------------------------------------


def reported_kernels(backend: Backend) -> Container[int] | None:
    """Ask a backend to report its launches, and return the ids of the kernels it does so for; None if it cannot."""
    if backend.observing is None:
        return None
    with _lock:
        key = id(backend.observing)
        if key not in _launch_reports:
            context = backend.observing(report_launch)
            _launch_reports[key] = backend.observing, context, context.__enter__()
        return _launch_reports[key][2]


def with_launches(kernel_function: Callable, call: Call, backend: Backend, run: Callable | None = None) -> Callable:
    """Return a kernel, or a function of a Fused kernel, wrapped so that its launches are reported.

    If the backend does not report them, the duration of the call is reported as one launch. `run` is called in place of
    `kernel_function`, if given.
    """
    run = run or kernel_function
    if capturing.get() is not None:  # traced: nothing computes
        return run
    if not any(w.needs_launches for w in _observers) or id(kernel_function) in (reported_kernels(backend) or ()):
        return run

    def timed(*args: Any, **params: Any) -> Any:
        wait(backend)
        began = time.perf_counter()
        found = run(*args, **params)
        wait(backend)
        ended = time.perf_counter()
        if found is not NotImplemented:
            report_launch(Launch(call.name, (), None, lambda: (began, ended)))
        return found

    return timed


# ---- observed versions of the methods ------------------------------------------------------------------------------

_PLAIN_RUN, _PLAIN_RUN_KERNEL, _PLAIN_RUN_DECOMPOSITION = Op._run, Op._run_kernel, Op.run_decomposition
_PLAIN_RUN_CUSTOM_VJP, _PLAIN_PULL = Op.run_custom_vjp, FusedPull.__call__


def _run(self: Op, args: tuple, specs: tuple, backend: Backend | None, tracked: bool, params: dict[str, Any]) -> Any:
    call = Call(self, specs, params, backend or get_backend())
    call.is_tracked = tracked and records()
    with calling(call) as found:
        return found(_PLAIN_RUN(self, args, specs, backend, tracked, params))


def _run_kernel(
    self: Op, kernel: Any, backend: Backend, args: tuple, plan: Any, tracked: bool, params: dict[str, Any]
) -> Any:
    call = innermost()
    if call is not None and kernel is not None:
        is_pair = type(kernel) is Fused
        report_begin(call, "forward" if is_pair else "kernel", plan.out)
        if is_pair:
            kernel = kernel._replace(forward=with_launches(kernel.forward, call, backend))
        else:
            kernel = with_launches(kernel, call, backend)
    return _PLAIN_RUN_KERNEL(self, kernel, backend, args, plan, tracked, params)


def _run_decomposition(self: Op, plan: Any, args: tuple, params: dict[str, Any]) -> Any:
    call = innermost()
    if call is not None and call.op is self and call.part in ("", "forward"):
        report_begin(call, "decomposition", plan.out)
        return _PLAIN_RUN_DECOMPOSITION(self, plan, args, params)
    # The decomposition of a Fused kernel is differentiated without a call of the op.
    call = Call(self, tuple(map(spec_of, args)), params, _backend_of(args))
    with calling(call) as found:
        report_begin(call, "decomposition", plan.out)
        return found(_PLAIN_RUN_DECOMPOSITION(self, plan, args, params))


def _run_custom_vjp(self: Op, plan: Any, args: tuple, params: dict[str, Any]) -> Any:
    if (call := innermost()) is not None:
        report_begin(call, "decomposition", plan.out)
    return _PLAIN_RUN_CUSTOM_VJP(self, plan, args, params)


def _pull(self: FusedPull, node: Any, g: Any) -> Any:
    call = Call(self.op, (self.plan.out, *map(spec_of, self.args)), self.params, self.backend, "backward")
    with calling(call) as found:
        report_begin(call, "backward", node.specs)
        return found(with_launches(self.fused.backward, call, self.backend, _PLAIN_PULL)(self, node, g))


def _backend_of(args: tuple) -> Backend:
    return next((a.backend for a in flatten(args) if type(a) is Array), None) or get_backend()


# (owner, name, plain function, observed function)
REPLACED: list[tuple[Any, str, Any, Any]] = [
    (Op, "_run", _PLAIN_RUN, _run),
    (Op, "_run_kernel", _PLAIN_RUN_KERNEL, _run_kernel),
    (Op, "run_decomposition", _PLAIN_RUN_DECOMPOSITION, _run_decomposition),
    (Op, "run_custom_vjp", _PLAIN_RUN_CUSTOM_VJP, _run_custom_vjp),
    (FusedPull, "__call__", _PLAIN_PULL, _pull),
]


def replace_while_observed(owner: Any, name: str, observed: Callable) -> Any:
    """Replace a method or function by `observed` while an observer is registered; return the plain one."""
    plain = getattr(owner, name)
    with _lock:
        REPLACED.append((owner, name, plain, observed))
        if _observers:
            setattr(owner, name, observed)
    return plain
