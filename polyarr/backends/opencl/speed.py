"""What a device can do at most, and how near to it a CPU comes in a matrix product."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.matmul import one_block, tiles
from polyarr.backends.opencl.measure import TIMED, checked_run, peak_rate, rate_of
from polyarr.backends.opencl.pocl import processor_name, target_of
from polyarr.backends.opencl.tuning import CpuMatmul, vector_width
from polyarr.core.spec import Spec, float32

COPIED, COPIES = 2**28, 5  # bytes that a copy moves, more than caches hold, and how often
FAR = 0.5  # of the peak: a product that does not reach it has the wrong tile, or the machine is busy


class Speed(NamedTuple):
    """GFLOP/s in float32 on one core: of a product with this tile, and at most."""

    product: float
    peak: float
    tile: CpuMatmul
    processor: str
    target: str
    floats: int

    def __str__(self) -> str:
        tile = f"{self.tile.ROWS} rows of {self.tile.VECTORS} x {self.tile.WIDE}, depth {self.tile.DEPTH}"
        target = f"compiled for {self.target}" if self.target else "compiled as the driver chooses"
        return (
            f"{self.product:.0f} GFLOP/s on one core, {self.product / self.peak:.0%} of its peak of {self.peak:.0f} "
            f"({self.processor}, {target}, {self.floats} floats in a register, tile {tile})"
        )


def speed_of(device: Device) -> Speed:
    """Time one product on a CPU."""
    tile = device.plans[tiles](float32, "NN", 1, TIMED, TIMED, TIMED)[0]
    with device.lock:
        run, peak = checked_run(device, float32, tile, one_block), peak_rate(device, float32)
        rate = rate_of(device, run) if run else 0.0
    return Speed(rate, peak, tile, processor_name(), target_of(device.cl_device), vector_width(device))


class Measured(Mapping):
    """Rates by their unit, each of which is measured when it is first asked for."""

    def __init__(self, how: dict[str, Callable[[], float]]) -> None:
        self._how, self._found = how, dict[str, float]()

    def __getitem__(self, unit: str) -> float:
        if unit not in self._found:
            self._found[unit] = self._how[unit]()
        return self._found[unit]

    def __iter__(self) -> Iterator[str]:
        return iter(self._how)

    def __len__(self) -> int:
        return len(self._how)


def peaks_of(device: Device) -> Measured:
    """What a device can do at most: on a CPU multiply-adds in float32 on all cores; bytes copied."""
    arithmetic = {"GFLOP/s": partial(_arithmetic, device)} if device.geometry.is_measured else {}
    return Measured({**arithmetic, "GB/s": partial(_copying, device)})


def _arithmetic(device: Device) -> float:
    with device.lock:
        return peak_rate(device, float32) * device.features.compute_units


def _copying(device: Device) -> float:
    with device.lock:
        words = device.empty(Spec((min(COPIED, device.features.max_allocation // 4) // 4,), float32))
        copied, size = device.empty(Spec(words.shape, float32)), words.size * 4
        device.fill_zero(words)
        times = []
        for _ in range(COPIES):
            device.commands.finish()
            began = time.perf_counter()
            device.commands.copy((size,), None, copied.memory, words.memory)
            device.commands.finish()
            times.append(time.perf_counter() - began)
    return 2e-9 * size / min(times)


def diagnose(device: Device) -> list[tuple[str, str]]:
    """One line for `polyarr doctor`; none where the peak cannot be measured."""
    if not device.geometry.is_measured:
        return []
    speed = speed_of(device)
    if not speed.product:
        return [("error", f"{device.name}: a float32 product comes out wrong with {speed.tile}")]
    text = f"{device.name}: a float32 product runs at {speed}"
    if speed.product >= FAR * speed.peak:
        return [("ok", text)]
    remedy = f"far below it: if the machine is idle, look for a better tile with: polyarr tune --device {device.name}"
    return [("warning", f"{text}; {remedy}")]

