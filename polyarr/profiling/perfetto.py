"""Traces in Chrome's trace format, for ui.perfetto.dev and chrome://tracing."""

from typing import Any

from polyarr.core.array import flatten
from polyarr.core.watch import Call
from polyarr.profiling.summary import Interval, Timed
from polyarr.profiling.work import moved, operations

HOST, FIRST_DEVICE = 1, 2  # "process" ids in the trace: one for the calling threads, one per device


def trace_of(calls: list[Call], launches: list[Timed], blocks: list[Interval]) -> dict[str, Any]:
    """Return the trace as a JSON value; times are microseconds since the first block began."""
    start = min((began for began, _ in blocks), default=0.0)
    threads = {c.thread: i for i, c in enumerate(reversed({c.thread: c for c in calls}.values()), 1)}
    devices = {name: i for i, name in enumerate(dict.fromkeys(map(_device, launches)), FIRST_DEVICE)}
    events = [_named("process_name", "calls of ops", HOST, 0)]
    events += [_named("thread_name", thread.name, HOST, i) for thread, i in threads.items()]
    events += [_named("process_name", f"device of {name}", i, 0) for name, i in devices.items()]
    for call in calls:
        if call.step is not None and call.began == call.ended:  # recorded launches: only the device knows the time
            continue
        span = _span(call.name, call.part or "failed", call.began - start, call.ended - call.began)
        events.append({**span, "pid": HOST, "tid": threads[call.thread], "args": _facts(call)})
    for launch in launches:
        name = launch.call.name if launch.call and launch.call.step else launch.name
        span = _span(name, "device", launch.began - start, launch.seconds)
        events.append({**span, "pid": devices[_device(launch)], "tid": 0, "args": _launched(launch)})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _launched(launch: Timed) -> dict[str, Any]:
    """Return the kernel, how it was launched, and the call that it belongs to, whose work may take several kernels."""
    facts: dict[str, Any] = {"kernel": launch.name, "work": list(launch.work), "group": list(launch.group or ())}
    if launch.call is None:
        return facts
    facts["op"] = launch.call.name
    step = launch.call.step
    if step is not None:
        facts |= {"line": step.line, "module": step.module, "gradient": step.is_gradient}
        if step.part == "group":
            facts["fused"] = [", ".join(filter(None, (s.name, s.module, s.line))) for s in step.op.steps]
    return facts | _facts(launch.call)


def _device(launch: Timed) -> str:
    return launch.call.backend.name if launch.call and launch.call.backend else "copies outside of calls"


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, category: str, began: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": began * 1e6, "dur": max(seconds, 0.0) * 1e6}


def _facts(call: Call) -> dict[str, Any]:
    facts: dict[str, Any] = {"inputs": [str(s) for s in flatten(call.specs)]}
    facts |= {name: str(value) for name, value in call.params.items()}
    if call.error is not None:
        facts["error"] = str(call.error)
    elif call.part not in ("walk", "decomposition", "captured"):
        facts |= {"bytes": moved(call), "operations": operations(call)}
    return facts
