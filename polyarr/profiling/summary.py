"""Summaries of a profile: a row per op and per kernel, and how much of the time is explained."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from polyarr.core.backend import Backend
from polyarr.core.watch import Call
from polyarr.profiling.work import moved, operations

# Parts of a call that run on a device; a decomposition makes inner calls.
LEAVES = ("kernel", "forward", "backward", "group")
Interval = tuple[float, float]
UNITS = "GFLOP/s", "GB/s"
INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer in a list, in a dotted path
MAX_FUSED_NAMES = 3  # names of fused ops in a row of the table, if there are more than five
_FUSED = re.compile(r"\w+(?:\+\w+){5,}")
HEADERS = ("calls", "launches", "device ms", "share", "host ms", "MB", "GB/s", "GFLOP/s", "of peak", "kernels")


class Timed(NamedTuple):
    """A Launch with the call that made it, its start and end on the device, and when the host had queued it."""

    name: str
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    call: Call | None
    began: float
    ended: float
    queued: float = math.inf  # unknown

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
        kernels: (name, seconds) of each kernel that the calls launched, longest first.
    """

    name: str
    device: str
    calls: int
    launches: int
    seconds: float
    host: float
    nbytes: int
    operations: float
    kernels: tuple[tuple[str, float], ...] = ()


def ops(calls: list[Call], launches: list[Timed]) -> list[Row]:
    """Return a row per op that ran a kernel, and per kind of launch that no op made: together all launches."""
    rows = _rows((call for call in calls if call.part in LEAVES), _by_call(launches), _inner(calls))
    others = [launch for launch in launches if launch.call is None or launch.call.part not in LEAVES]
    return sorted(rows + kernels(others), key=lambda row: (-row.seconds, -row.host))


def decompositions(calls: list[Call], launches: list[Timed]) -> list[Row]:
    """Return a row per op that ran its decomposition, with everything that ran in it."""
    mine = defaultdict[int, list[Timed]](list)
    for launch in launches:
        call = launch.call
        while call is not None:
            mine[id(call)].append(launch)
            call = call.outer
    rows = _rows((call for call in calls if call.part in ("decomposition", "captured")), mine, _inner(calls))
    return [row._replace(nbytes=0, operations=0.0, kernels=()) for row in rows]


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
    rows = []
    for name, group in _groups(calls, launches):
        mine = [launch for call in group for launch in launches[id(call)]]
        host = sum(call.ended - call.began - inner[id(call)] for call in group)
        work = sum(map(moved, group)), sum(map(operations, group))
        seconds = sum(launch.seconds for launch in mine)
        rows.append(Row(name, _device(group[0]), len(group), len(mine), seconds, host, *work, _kernels(mine)))
    return sorted(rows, key=lambda row: (-row.seconds, -row.host))


def _groups(calls: Iterable[Call], launches: dict[int, list[Timed]]) -> Iterator[tuple[str, list[Call]]]:
    """Yield (name, calls) of each row.

    Layers in the same place of a list, such as the blocks of a model, share a row if their shapes and kernels are the
    same: "blocks.*.att", else "blocks.0.att" and "blocks.1-3.att".
    """
    titles = defaultdict[tuple[str, ...], dict[str, list[Call]]](lambda: defaultdict(list))
    for call in calls:
        module = call.step.module if call.step else ""
        titles[*_title(call), _device(call)][module].append(call)
    for (op, line, *_), layers in titles.items():
        alike = defaultdict[frozenset, list[str]](list)
        for module, made in layers.items():
            kind = {(c.specs, c.out, *(launch.name for launch in launches[id(c)])) for c in made if len(layers) > 1}
            alike[frozenset(kind)].append(module)
        for modules in alike.values():
            path = _span(modules) if len(alike) > 1 else INDEX.sub("*", modules[0])
            yield ", ".join(filter(None, (op, path, line))), [call for module in modules for call in layers[module]]


def _kernels(launches: list[Timed]) -> tuple[tuple[str, float], ...]:
    found = defaultdict[str, float](float)
    for launch in launches:
        if launch.work:
            found[launch.name] += launch.seconds
    return tuple(sorted(found.items(), key=lambda kernel: -kernel[1]))


def _title(call: Call) -> tuple[str, str, str]:
    """Return what the calls of a row have in common: the op, and the line and place that a captured call came from.

    Calls in a backward pass have rows of their own.
    """
    step = call.step
    is_gradient = call.within("walk") if step is None else step.is_gradient
    name = f"{call.name} (gradient)" if is_gradient and call.part != "backward" else call.name
    return (name, "", "") if step is None else (name, PurePath(step.line).name, INDEX.sub("*", step.module))


def _span(modules: list[str]) -> str:
    """Return one dotted path for several that differ in numbers only: "layers.1-3.norm"."""
    numbers = iter([_numbers(found) for found in zip(*map(INDEX.findall, modules), strict=True)])
    return INDEX.sub(lambda _: next(numbers), modules[0])


def _numbers(found: Iterable[str]) -> str:
    """Return "1-3" for consecutive numbers, else "1,3"."""
    numbers = sorted({*map(int, found)})
    is_range = 1 < len(numbers) == numbers[-1] - numbers[0] + 1
    return f"{numbers[0]}-{numbers[-1]}" if is_range else ",".join(map(str, numbers))


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


# ---- where the time of the blocks went -----------------------------------------------------------------------------


class Account(NamedTuple):
    """Seconds of the profiled blocks: `wall` is the sum of all other fields.

    Attributes:
        wall: Duration of the blocks.
        busy: A device was computing or copying.
        gaps: No device was, though the next launch was queued: the latency of a launch on the device.
        calling: No launch was queued, and the host was in a call of an op or of a captured function.
        elsewhere: The rest: Python between the calls, or waiting for something else.
    """

    wall: float
    busy: float
    gaps: float
    calling: float
    elsewhere: float


def account_of(calls: list[Call], launches: list[Timed], blocks: list[Interval]) -> Account:
    """Return where the time of the blocks went."""
    busy = _clipped([(t.began, t.ended) for t in launches], blocks)
    gaps = _gaps(busy, launches)
    calling = [(c.began, c.ended) for c in calls if c.outer is None]
    # Each is what it adds to those before it.
    added = [_length(_clipped(found, blocks)) for found in (busy, busy + gaps, busy + gaps + calling, blocks)]
    return Account(added[-1], added[0], *(after - before for before, after in pairwise(added)))


def _gaps(busy: list[Interval], launches: list[Timed]) -> list[Interval]:
    """Return the intervals in which nothing ran and the next launch was queued, given those in which something ran."""
    queued = dict[float, float]()
    for launch in launches:
        queued[launch.began] = min(launch.queued, queued.get(launch.began, math.inf))
    ends = [-math.inf, *(ended for _, ended in busy)]
    gaps = [(max(before, queued.get(began, math.inf)), began) for before, (began, _) in zip(ends, busy, strict=False)]
    return [(began, ended) for began, ended in gaps if began < ended]


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
    devices = {_device(c): c.backend for c in calls if c.backend is not None}
    peaks = {name: backend.peaks() if measure_peaks else {} for name, backend in devices.items()}
    lines = _accounted(account_of(calls, launches, blocks), sum(launch.seconds for launch in launches))
    lines += [_introduced(backend, peaks[name]) for name, backend in devices.items()]
    whole = decompositions(calls, launches)
    sections = (("op", ops(calls, launches)), ("kernel", kernels(launches)), ("as a whole", whole))
    for title, rows in sections:
        if rows:
            lines += ["", *_aligned(title, rows, peaks)]
    return "\n".join(lines)


def _accounted(account: Account, seconds: float) -> list[str]:
    """Format where the time went. The launches are summed one by one: if they overlap, the sum is above the wall time.
    """
    wall = account.wall
    parts = {
        "kernels and copies": seconds,
        "gaps between them": account.gaps,
        "host, in calls of ops": account.calling,
        "host, elsewhere": account.elsewhere,
    }
    rows = [*parts.items(), ("sum", sum(parts.values())), ("wall time", wall)]
    cells: list[tuple[str, ...]] = [("time", "ms", "share")]
    cells += [(name, f"{part * 1e3:,.2f}", _percent(part, wall)) for name, part in rows]
    return [*_columns(cells), ""]


def _introduced(backend: Backend, peaks: Mapping[str, float]) -> str:
    known = [f"{peaks[unit]:,.0f} {unit}" for unit in UNITS if unit in peaks]
    measured = f"; at most {', '.join(known)}" if known else ""
    return f"{backend.name}: {backend.hardware}{measured}"


def _aligned(title: str, rows: list[Row], peaks: dict[str, Mapping[str, float]]) -> list[str]:
    """Format rows as a table with names on the left, numbers on the right, and no empty columns."""
    total, several = sum(row.seconds for row in rows), len({row.device for row in rows if row.device}) > 1
    cells: list[tuple[str, ...]] = [(title, *HEADERS)]
    for row in rows:
        name = _FUSED.sub(_shortened, row.name)
        titled = f"{name} ({row.device})" if several and row.device else name
        cells.append((titled, *_cells(row, total, peaks.get(row.device, {}))))
    return _columns(cells)


def _shortened(names: re.Match) -> str:
    """Return the first names of many fused ops, and how many more there are."""
    ops = names[0].split("+")
    return f"{'+'.join(ops[:MAX_FUSED_NAMES])}+{len(ops) - MAX_FUSED_NAMES} more"


def _columns(cells: list[tuple[str, ...]]) -> list[str]:
    """Format cells, the first line of which are headers: text to the left, numbers to the right."""
    kept = [column for column in zip(*cells, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    is_text = [i == 0 or column[0] == HEADERS[-1] for i, column in enumerate(kept)]
    return [
        "  ".join(
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(line, widths, is_text, strict=True)
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
        f"{row.host * 1e3:,.2f}" if row.host else "",
        f"{row.nbytes * 1e-6:,.1f}" if row.nbytes else "",
        *(f"{rates[unit]:,.1f}" if rates.get(unit) else "" for unit in ("GB/s", "GFLOP/s")),
        f"{reached:.0%}" if reached else "",
        ", ".join(_share_of(name, part, row) for name, part in row.kernels),
    )


def _share_of(kernel: str, seconds: float, row: Row) -> str:
    return kernel if len(row.kernels) == 1 or not row.seconds else f"{kernel} {seconds / row.seconds:.0%}"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""
