"""Measurements of one core: its peak rate, and the rate of a GEMM tile. For `polyarr doctor` and benchmarks."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.program import STORED
from polyarr.backends.opencl.tuning.tuning import CpuMatmul, vector_width
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, float64

REPEATS = 8  # runs of a tile
TIMED = 384  # rows, columns and depth of the timed product: several packed blocks
ODD = (45, 131, 300)  # rows, columns and depth of the checked product: not multiples of a tile
PEAK_ROUNDS, SUMS = 1_000_000, 10  # iterations; independent vector sums: two per cycle for a latency of five cycles

Run = Callable[[], None]
Launcher = Callable[[tuple[Any, ...]], None]  # takes the memory of x, y, bias, sums, out and saved
Block = Callable[[Device, np.dtype, CpuMatmul, tuple[int, int, int]], Launcher]  # of a product (m, k) @ (k, n)


def checked_run(device: Device, dtype: np.dtype, tile: CpuMatmul, block: Block) -> Run | None:
    """Return a product on one core, to be timed; None if the tile does not build or computes wrong results."""
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
    """Return the GFLOP/s of a checked_run."""
    return 2e-9 * TIMED**3 / best_time(device, run)


def _is_right(device: Device, dtype: np.dtype, tile: CpuMatmul, block: Block) -> bool:
    """Return whether a product of odd lengths matches NumPy's, and the row after its result is untouched."""
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
    """Return the GFLOP/s of one core with nothing but multiply-adds in registers."""
    wide = vector_width(device) * 4 // dtype.itemsize
    kernel = device.build("measure", T=STORED[dtype][0], WIDE=wide, SUMS=SUMS).peak
    out = device.empty(Spec((1,), dtype))
    scalars = PEAK_ROUNDS, 0.5, 1.0
    seconds = best_time(device, lambda: kernel((1,), (1,), out.memory, *scalars))
    return 2e-9 * PEAK_ROUNDS * SUMS * wide / seconds


def best_time(device: Device, run: Run) -> float:
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
