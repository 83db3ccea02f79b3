"""Summaries of a profile: a row per op and per kernel, and how much of the time is explained."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from polyarr.core.backend import Backend
from polyarr.core.watch import Call
from polyarr.profiling.work import moved, operations

# Parts of a call that run on a device; a decomposition makes inner calls.
LEAVES = ("kernel", "forward", "backward", "group")
Interval = tuple[float, float]
UNITS = "GFLOP/s", "GB/s"
HEADERS = ("calls", "launches", "device ms", "share", "host ms", "MB", "GB/s", "GFLOP/s", "of peak")


class Timed(NamedTuple):
    """A Launch with the call that made it, its start and its end."""

    name: str
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    call: Call | None
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Duration on the device, in seconds."""
        return self.ended - self.began


class Row(NamedTuple):
    """Totals over the calls of one op, or the launches of one kernel.

    Attributes:
        name: Name of the op or kernel.
        device: Name of the backend.
        calls: Number of calls.
        launches: Number of launches: 0 for a view; one per call on a backend that does not report launches.
        seconds: Time on the device.
        host: Seconds within the calls, without inner calls.
        nbytes: Bytes that must be read and written at least; 0 if unknown.
        operations: Floating-point operations of matrix products; 0 if unknown.
    """

    name: str
    device: str
    calls: int
    launches: int
    seconds: float
    host: float
    nbytes: int
    operations: float


def ops(calls: list[Call], launches: list[Timed]) -> list[Row]:
    """Return a row per op that ran a kernel."""
    mine = _by_call(launches)
    return _rows((call for call in calls if call.part in LEAVES), mine, _inner(calls))


def bodies(calls: list[Call], launches: list[Timed]) -> list[Row]:
    """Return a row per op that ran its decomposition, with everything that ran in it."""
    mine = _by_call(launches)
    for call in calls:  # inner ones come first
        if call.outer is not None and id(call) in mine:
            mine[id(call.outer)] = mine[id(call.outer)] + mine[id(call)]
    rows = _rows((call for call in calls if call.part in ("body", "captured")), mine, _inner(calls))
    return [row._replace(nbytes=0, operations=0.0) for row in rows]


def kernels(launches: list[Timed]) -> list[Row]:
    """Return a row per kernel that a device reported, with its work if it was the only launch of its calls."""
    mine, groups = _by_call(launches), defaultdict[tuple[str, str], list[Timed]](list)
    for launch in launches:
        if launch.work:  # otherwise the profiler timed the whole call, which the op's row shows
            groups[launch.name, _device(launch.call)].append(launch)
    rows = []
    for (name, device), group in groups.items():
        moves = [launch.work[0] for launch in group if launch.group is None]
        alone = [launch.call for launch in group if launch.call and len(mine[id(launch.call)]) == 1]
        calls = alone if len(alone) == len(group) and not moves else []
        seconds = sum(launch.seconds for launch in group)
        work = sum(moves) or sum(map(moved, calls)), sum(map(operations, calls))
        rows.append(Row(name, device, 0, len(group), seconds, 0.0, *work))
    return sorted(rows, key=lambda row: -row.seconds)


def _rows(calls: Iterable[Call], launches: dict[int, list[Timed]], inner: dict[int, float]) -> list[Row]:
    groups = defaultdict[tuple[str, str], list[Call]](list)
    for call in calls:
        groups[_title(call), _device(call)].append(call)
    rows = []
    for (name, device), group in groups.items():
        mine = [launch for call in group for launch in launches[id(call)]]
        host = sum(call.ended - call.began - inner[id(call)] for call in group)
        work = sum(map(moved, group)), sum(map(operations, group))
        rows.append(Row(name, device, len(group), len(mine), sum(t.seconds for t in mine), host, *work))
    return sorted(rows, key=lambda row: (-row.seconds, -row.host))


def _title(call: Call) -> str:
    """Return the row name of a call: its op, and the part of the model and the line that a captured call came from.

    Calls in a backward pass have rows of their own. Layers of the same structure, such as the blocks of a model, share.
    """
    step = call.step
    is_gradient = call.within("walk") if step is None else step.is_gradient
    name = f"{call.name} (gradient)" if is_gradient and call.part != "backward" else call.name
    if step is None:
        return name
    module = re.sub(r"(?<![^.])\d+(?![^.])", "*", step.module)
    return ", ".join(part for part in (name, module, PurePath(step.place).name) if part)


def _by_call(launches: list[Timed]) -> dict[int, list[Timed]]:
    found = defaultdict[int, list[Timed]](list)
    for launch in launches:
        if launch.call is not None:
            found[id(launch.call)].append(launch)
    return found


def _inner(calls: list[Call]) -> dict[int, float]:
    """Return, by id of a call, the seconds spent in its inner calls."""
    found = defaultdict[int, float](float)
    for call in calls:
        if call.outer is not None:
            found[id(call.outer)] += call.ended - call.began
    return found


def _device(call: Call | None) -> str:
    return call.backend.name if call is not None and call.backend is not None else ""


# ---- how much of the time is explained -----------------------------------------------------------------------------


def shares(calls: list[Call], launches: list[Timed], blocks: list[Interval]) -> tuple[float, float, float]:
    """Return the seconds of the blocks, those in which a device was busy, and the further ones within calls of ops."""
    wall = _length(_joined(blocks))
    busy = _clipped([(t.began, t.ended) for t in launches], blocks)
    calling = _clipped([(c.began, c.ended) for c in calls if c.outer is None], blocks)
    computing = _length(busy)
    return wall, computing, _length(_joined([*busy, *calling])) - computing


def _clipped(intervals: list[Interval], blocks: list[Interval]) -> list[Interval]:
    """Return the parts of the intervals within the blocks, merged."""
    blocks = _joined(blocks)
    parts = [(max(a, c), min(b, d)) for a, b in _joined(intervals) for c, d in blocks]
    return _joined([(a, b) for a, b in parts if a < b])


def _joined(intervals: list[Interval]) -> list[Interval]:
    """Merge overlapping intervals, in order."""
    joined: list[Interval] = []
    for began, ended in sorted(intervals):
        if joined and began <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], ended)
        else:
            joined.append((began, ended))
    return joined


def _length(intervals: list[Interval]) -> float:
    return sum(ended - began for began, ended in intervals)


# ---- as text -------------------------------------------------------------------------------------------------------


def table_of(calls: list[Call], launches: list[Timed], blocks: list[Interval], measure_peaks: bool) -> str:
    """Return the profile as text; with `measure_peaks`, also the share of the devices' peak rates."""
    if not blocks:
        return "nothing is profiled yet: with pa.profile() as p: ..., then print(p)"
    wall, computing, calling = shares(calls, launches, blocks)
    devices = {_device(c): c.backend for c in calls if c.backend is not None}
    peaks = {name: backend.peaks() if measure_peaks else {} for name, backend in devices.items()}
    lines = [
        f"{wall * 1e3:,.1f} ms: {_percent(computing, wall)} a device computing, {_percent(calling, wall)} more in "
        f"calls of ops, {_percent(wall - computing - calling, wall)} elsewhere"
    ]
    lines += [_introduced(backend, peaks[name]) for name, backend in devices.items()]
    sections = (("op", ops(calls, launches)), ("kernel", kernels(launches)), ("as a whole", bodies(calls, launches)))
    for title, rows in sections:
        if rows:
            lines += ["", *_aligned(title, rows, peaks)]
    return "\n".join(lines)


def _introduced(backend: Backend, peaks: Mapping[str, float]) -> str:
    known = [f"{peaks[unit]:,.0f} {unit}" for unit in UNITS if unit in peaks]
    measured = f"; at most {', '.join(known)}" if known else ""
    return f"{backend.name}: {backend.hardware}{measured}"


def _aligned(title: str, rows: list[Row], peaks: dict[str, Mapping[str, float]]) -> list[str]:
    """Format rows as a table with names on the left, numbers on the right, and no empty columns."""
    total, several = sum(row.seconds for row in rows), len({row.device for row in rows if row.device}) > 1
    cells = [(title, *HEADERS)]
    cells += [
        (f"{r.name} ({r.device})" if several and r.device else r.name, *_cells(r, total, peaks.get(r.device, {})))
        for r in rows
    ]
    kept = [column for column in zip(*cells, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    return [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in zip(*kept, strict=True)
    ]


def _cells(row: Row, total: float, peaks: Mapping[str, float]) -> tuple[str, ...]:
    work = {"GB/s": row.nbytes, "GFLOP/s": row.operations}
    rates = {unit: amount / row.seconds * 1e-9 for unit, amount in work.items() if row.seconds}
    reached = max((rate / peaks[unit] for unit, rate in rates.items() if peaks.get(unit)), default=0.0)
    return (
        f"{row.calls:,}" if row.calls else "",
        f"{row.launches:,}" if row.launches else "",
        f"{row.seconds * 1e3:,.2f}" if row.launches else "",
        _percent(row.seconds, total) if row.launches else "",
        f"{row.host * 1e3:,.2f}" if row.calls else "",
        f"{row.nbytes * 1e-6:,.1f}" if row.nbytes else "",
        *(f"{rates[unit]:,.1f}" if rates.get(unit) else "" for unit in ("GB/s", "GFLOP/s")),
        f"{reached:.0%}" if reached else "",
    )


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""
