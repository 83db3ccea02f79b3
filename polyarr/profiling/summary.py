"""What was noted, added up: a row per op and per kernel, and what share of the time is explained."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from polyarr.core.backend import Backend
from polyarr.core.watch import Call
from polyarr.profiling.work import moved, operations

LEAVES = ("kernel", "forward", "backward")  # the parts that a device works at; what a body does are calls of their own
Interval = tuple[float, float]
UNITS = "GFLOP/s", "GB/s"  # of peaks
HEADERS = ("calls", "launches", "device ms", "share", "host ms", "MB", "GB/s", "GFLOP/s", "of peak")


class Timed(NamedTuple):
    """A Launch, the call that made it, and when it ran."""

    name: str
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    call: Call | None
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long the device was at it."""
        return self.ended - self.began


class Row(NamedTuple):
    """What the calls of one op, or the launches of one kernel, took together: seconds, bytes, operations.

    launches    none for a view; one per call on a backend that does not note its launches
    seconds     on the device
    host        seconds within the calls, without those of other ops in them
    nbytes      what must be read and written at least; 0 where that is not known
    operations  of floating-point numbers, in products; 0 where they are not known
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
    """A row for each op that has a kernel."""
    mine = _by_call(launches)
    return _rows((call for call in calls if call.part in LEAVES), mine, _inner(calls))


def bodies(calls: list[Call], launches: list[Timed]) -> list[Row]:
    """A row for each op that ran by its body, with all that happened there."""
    mine = _by_call(launches)
    for call in calls:  # inner ones come first
        if call.outer is not None and id(call) in mine:
            mine[id(call.outer)] = mine[id(call.outer)] + mine[id(call)]
    rows = _rows((call for call in calls if call.part == "body"), mine, _inner(calls))
    return [row._replace(nbytes=0, operations=0.0) for row in rows]


def kernels(launches: list[Timed]) -> list[Row]:
    """A row for each kernel that a device noted. Its work is known if it is all that its calls launched."""
    mine, groups = _by_call(launches), defaultdict[tuple[str, str], list[Timed]](list)
    for launch in launches:
        if launch.work:  # otherwise it was the clock that noted it, and it is all that the op did
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
    """The name of a call's row: what rules of gradients do is kept apart from what the user's program does."""
    return f"{call.name} (gradient)" if call.part != "backward" and call.within("walk") else call.name


def _by_call(launches: list[Timed]) -> dict[int, list[Timed]]:
    found = defaultdict[int, list[Timed]](list)
    for launch in launches:
        if launch.call is not None:
            found[id(launch.call)].append(launch)
    return found


def _inner(calls: list[Call]) -> dict[int, float]:
    """Seconds that were spent in the calls within a call."""
    found = defaultdict[int, float](float)
    for call in calls:
        if call.outer is not None:
            found[id(call.outer)] += call.ended - call.began
    return found


def _device(call: Call | None) -> str:
    return call.backend.name if call is not None and call.backend is not None else ""


# ---- how much of the time is explained -----------------------------------------------------------------------------


def shares(calls: list[Call], launches: list[Timed], blocks: list[Interval]) -> tuple[float, float, float]:
    """Seconds of the blocks; of these, how many some device worked, and how many more were spent in calls of ops."""
    wall = _length(_joined(blocks))
    busy = _clipped([(t.began, t.ended) for t in launches], blocks)
    calling = _clipped([(c.began, c.ended) for c in calls if c.outer is None], blocks)
    computing = _length(busy)
    return wall, computing, _length(_joined([*busy, *calling])) - computing


def _clipped(intervals: list[Interval], blocks: list[Interval]) -> list[Interval]:
    """The parts of intervals that lie within blocks, joined."""
    blocks = _joined(blocks)
    parts = [(max(a, c), min(b, d)) for a, b in _joined(intervals) for c, d in blocks]
    return _joined([(a, b) for a, b in parts if a < b])


def _joined(intervals: list[Interval]) -> list[Interval]:
    """The same moments as intervals that do not overlap, in order."""
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
    """What took how long; with peaks, beside what the devices can do."""
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
    sections = (("op", ops(calls, launches)), ("kernel", kernels(launches)), ("by its body", bodies(calls, launches)))
    for title, rows in sections:
        if rows:
            lines += ["", *_aligned(title, rows, peaks)]
    return "\n".join(lines)


def _introduced(backend: Backend, peaks: Mapping[str, float]) -> str:
    known = [f"{peaks[unit]:,.0f} {unit}" for unit in UNITS if unit in peaks]
    measured = f"; at most {', '.join(known)}" if known else ""
    return f"{backend.name}: {backend.hardware}{measured}"


def _aligned(title: str, rows: list[Row], peaks: dict[str, Mapping[str, float]]) -> list[str]:
    """Names to the left, numbers to the right, without the columns that are empty."""
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
