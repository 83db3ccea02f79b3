"""Measurements of one core: its peak rate, and the time of a run. For `polyarr doctor` and benchmarks."""

import time
from collections.abc import Callable

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.program import STORED
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec

REPEATS = 8  # runs of a tile
PEAK_ROUNDS, SUMS = 1_000_000, 10  # iterations; independent vector sums: two per cycle for a latency of five cycles


def peak_rate(device: Device, dtype: np.dtype) -> float:
    """Return the GFLOP/s of one core with nothing but multiply-adds in registers."""
    wide = vector_width(device) * 4 // dtype.itemsize
    kernel = device.build("measure", T=STORED[dtype][0], WIDE=wide, SUMS=SUMS).peak
    out = device.empty(Spec((1,), dtype))
    scalars = PEAK_ROUNDS, 0.5, 1.0
    seconds = best_time(device, lambda: kernel((1,), (1,), out.memory, *scalars))
    return 2e-9 * PEAK_ROUNDS * SUMS * wide / seconds


def best_time(device: Device, run: Callable[[], None]) -> float:
    """Return the seconds of the fastest of some runs on one core.

    The smaller of wall-clock and CPU time is taken, since neither can be less than the run took.
    """
    times = []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        run()
        device.commands.finish()
        times.append(min(time.perf_counter() - wall, time.process_time() - processor))
    return min(times)
