"""What a processor really does: its peak, the speed of a tile on one core, and by these the choice between tiles.

Nothing is measured at import, and on each processor and driver only once: see docs/decisions/0010-measured-tiles.md.
"""

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.caches import is_writable
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.program import STORED
from polyarr.backends.opencl.tuning import CpuMatmul, candidates, is_known, lookup, remember, user_file, vector_width
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, float32, float64

SIZEABLE = 2 * 512**3  # operations of a product that is worth a measurement
NEAR_PEAK = 0.8  # of the peak: a tile that reaches it is taken without a look at others
SECONDS = 5.0  # after which no other tile is compiled
BETTER = 1.1  # times as fast as the likeliest tile must be what takes its place: less is noise, or another in x^T @ y
ROUNDS, REPEATS = 4, 8  # how often tiles take turns, and how often one runs in its turn
TIMED = 384  # rows, columns and depth of the product that is timed: several packed blocks
ODD = (45, 131, 300)  # rows, columns and depth of the one that is checked: no multiple of a tile
PEAK_ROUNDS, SUMS = 1_000_000, 10  # of a peak, and vectors that it adds to in turn: two per cycle for five cycles

Run = Callable[[], None]
Launcher = Callable[[tuple[Any, ...]], None]  # runs on the memory of x, y, bias, sums, out, saved
Block = Callable[[Device, np.dtype, CpuMatmul, tuple[int, int, int]], Launcher]  # a product (m, n, k) on one core


def best_tile(device: Device, dtype: np.dtype, operations: int, block: Block) -> CpuMatmul:
    """The tile for a product of so many operations; at the first sizeable one, it is chosen by measuring."""
    if operations >= SIZEABLE and dtype in (float32, float64):
        device.plans[_settle](dtype, block)
    return device.plans[lookup](dtype)[0]


def _settle(device: Device, dtype: np.dtype, block: Block) -> None:
    """Measure, unless that was done before, is not wanted, or could not be kept for the next process."""
    unwanted = os.environ.get("POLYARR_TUNE") == "0" or os.environ.get("POLYARR_NO_CACHE") == "1"
    file = user_file()
    if unwanted or file is None or not is_writable(file.parent):
        return
    with device.lock:
        if not is_known(device, dtype):
            choose(device, dtype, candidates(device, dtype), block)


def choose(device: Device, dtype: np.dtype, tiles: Iterable[CpuMatmul], block: Block) -> None:
    """Remember the fastest tile of those up to the first that comes near the peak, or that a few seconds allow."""
    began, peak = time.monotonic(), peak_rate(device, dtype)
    runs: dict[CpuMatmul, Run] = {}
    for tile in tiles:
        run = checked_run(device, dtype, tile, block)
        if run:
            runs[tile] = run
            if rate_of(device, run) >= NEAR_PEAK * peak:
                break
        if time.monotonic() - began > SECONDS:
            break
    rates: dict[CpuMatmul, list[float]] = {tile: [] for tile in runs}
    for _ in range(ROUNDS):
        for tile, run in runs.items():
            rates[tile].append(rate_of(device, run))
    if rates:
        best = fastest(rates)
        keep(device, dtype, best, max(rates[best]), peak)


def fastest(rates: dict[CpuMatmul, list[float]]) -> CpuMatmul:
    """The likeliest tile, which comes first, unless others are faster in every round: then the best of them."""
    likeliest = next(iter(rates.values()))
    ahead = {t: max(r) for t, r in rates.items() if all(a > BETTER * b for a, b in zip(r, likeliest, strict=True))}
    return max(ahead, key=ahead.__getitem__) if ahead else next(iter(rates))


def keep(device: Device, dtype: np.dtype, tile: CpuMatmul, rate: float, peak: float) -> None:
    """Remember a tile with what was measured."""
    facts = {"GFLOP/s": round(rate, 1), "peak": round(peak, 1), "date": time.strftime("%Y-%m-%d")}
    remember(device, dtype, tile, facts)


def checked_run(device: Device, dtype: np.dtype, tile: CpuMatmul, block: Block) -> Run | None:
    """What multiplies matrices on one core, to be timed; None if the tile does not build or its results are wrong."""
    try:
        if not _is_right(device, dtype, tile, block):
            return None
    except BackendError:
        return None
    host = np.random.default_rng(0).uniform(-1, 1, (TIMED, TIMED)).astype(dtype)
    x, y, out = device.upload(host), device.upload(host), device.empty(Spec(host.shape, dtype))
    launch = block(device, dtype, tile, (TIMED, TIMED, TIMED))
    return partial(launch, (x.memory, y.memory, None, out.memory, out.memory, None))


def rate_of(device: Device, run: Run) -> float:
    """GFLOP/s of what is timed."""
    return 2e-9 * TIMED**3 / best_time(device, run)


def _is_right(device: Device, dtype: np.dtype, tile: CpuMatmul, block: Block) -> bool:
    """True if an odd product is NumPy's, and the row after its result is untouched."""
    m, n, k = ODD
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-1, 1, (m, k)).astype(dtype), generator.uniform(-1, 1, (k, n)).astype(dtype)
    left, right = device.upload(x), device.upload(y)
    out = device.upload(np.full((m + 1, n), np.nan, dtype))
    launch = block(device, dtype, tile, ODD)
    launch((left.memory, right.memory, None, out.memory, out.memory, None))
    found = device.download(out)
    close = np.allclose(found[:m], x.astype(float64) @ y.astype(float64), rtol=0, atol=k * np.finfo(dtype).eps)
    return bool(close and np.isnan(found[m]).all())


def peak_rate(device: Device, dtype: np.dtype) -> float:
    """GFLOP/s that one core reaches with nothing but multiply-adds in registers."""
    wide = vector_width(device) * 4 // dtype.itemsize
    kernel = device.build("measure", T=STORED[dtype][0], WIDE=wide, SUMS=SUMS).peak
    out = device.empty(Spec((1,), dtype))
    scalars = PEAK_ROUNDS, 0.5, 1.0
    seconds = best_time(device, lambda: kernel((1,), (1,), out.memory, *scalars))
    return 2e-9 * PEAK_ROUNDS * SUMS * wide / seconds


def best_time(device: Device, run: Run) -> float:
    """Seconds of the fastest of some runs on one core, as undisturbed by other work on the machine as can be.

    Neither the clock nor the processor's time of this process can be less than what the run took.
    """
    times = []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        run()
        device.commands.finish()
        times.append(min(time.perf_counter() - wall, time.process_time() - processor))
    return min(times)
