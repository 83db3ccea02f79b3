"""Peak rates of a device, and how near to its peak a CPU comes in a matrix product."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.gemm.matmul import matmul, one_block, tiles
from polyarr.backends.opencl.gemm.matmul_tuning import TUNABLE
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import swapped
from polyarr.backends.opencl.runtime.pocl import processor_name, target_of
from polyarr.backends.opencl.runtime.source import source_of
from polyarr.backends.opencl.runtime.variants import kept_on
from polyarr.backends.opencl.tuning.measure import best_time, peak_rate
from polyarr.backends.opencl.tuning.tuned import check
from polyarr.backends.opencl.tuning.tuning import CpuMatmul, vector_width
from polyarr.core.errors import BackendError
from polyarr.core.precision import PRECISIONS, as_kernel_takes, products_in
from polyarr.core.spec import Spec, bfloat16, float16, float32
from polyarr.core.tuning import Work

TIMED = 384  # rows, columns and depth of the product on one core: several packed blocks
COPY_BYTES, COPIES = 2**28, 5  # bytes that a copy moves, more than fit into caches, and the number of copies
PRODUCT_DTYPES = float32, bfloat16, float16
SIDES = 2048, 4096, 8192  # sides of the timed products
MATRICES_IN_MEMORY, MAX_SECONDS = 32, 2e-3  # of a size; of a product, beyond which none is larger
ROUNDS, CALLS = 5, 3
ENTRY = "peaks"  # name of the entry in the driver's store
MIN_PEAK_FRACTION = 0.5  # fraction of the peak: a slower product has a bad tile, or the machine is busy


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
    """Time one product on a CPU; its rate is 0 if the tile does not build or computes wrong results."""
    work = Work(TUNABLE.op, float32.name, (TIMED,) * 3, "NN")
    tile = device.plans[tiles](float32, work.form, 1, *work.shape)[0]
    with device.lock:
        peak, rate = peak_rate(device, float32), 0.0
        with suppress(BackendError):
            check(device, TUNABLE, work, tile)
            rate = rate_of(device, tile)
    return Speed(rate, peak, tile, processor_name(), target_of(device.cl_device), vector_width(device))


def rate_of(device: Device, tile: CpuMatmul) -> float:
    """Return the GFLOP/s of a product on one core."""
    host = np.random.default_rng(0).uniform(-1, 1, (TIMED, TIMED)).astype(float32)
    x, y, out = device.upload(host), device.upload(host), device.empty(Spec(host.shape, float32))
    launch = one_block(device, float32, tile, (TIMED, TIMED, TIMED))
    memories = x.memory, y.memory, None, out.memory, out.memory, None
    return 2e-9 * TIMED**3 / best_time(device, lambda: launch(memories))


class Measured(Mapping):
    """Rates by unit, each measured when it is first read."""

    def __init__(self, how: Mapping[str, Callable[[], float]]) -> None:
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
    """Return a device's peak rates: on a CPU float32 multiply-adds of all cores, on a GPU products; and bytes copied.
    """
    copying = {"GB/s": partial(_copying, device)}
    if device.geometry.is_measured:
        return Measured({"GFLOP/s": partial(_arithmetic, device), **copying})
    ways = [(dtype, word) for dtype in PRODUCT_DTYPES for word in (PRECISIONS if dtype == float32 else PRECISIONS[:1])]
    return Measured({products_in(dtype.name, word): partial(remembered, device, dtype, word) for dtype, word in ways}
                    | copying)  # fmt: skip


def remembered(device: Device, dtype: np.dtype, precision: str) -> float:
    """Return the GFLOP/s of products, measured once per driver and version of the kernels.

    It is 0 if there is not enough memory to measure it.
    """
    stems = [f"matmul_{device.geometry.kind}", *(variant.stem for variant in device.vendor.gemm)]
    text = "\n".join(map(source_of, dict.fromkeys(stems)))
    name = f"{products_in(dtype.name, precision)} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    store = kept_on(device, ENTRY)
    try:
        known = dict(json.loads(store.load(ENTRY) or b"{}"))
    except ValueError:
        known = {}
    if name not in known:
        try:
            known[name] = round(product_rate(device, dtype, precision), 1)
        except BackendError:
            return 0.0
        store.save(ENTRY, json.dumps(known).encode())
    return known[name]


def product_rate(device: Device, dtype: np.dtype, precision: str = PRECISIONS[0]) -> float:
    """Return the GFLOP/s of the fastest of some large products, by whichever kernels accept them.

    Products grow until one takes a while, as small ones lose time at the edges.

    Raises:
        BackendError: There is not enough memory.
    """
    best, generator = 0.0, np.random.default_rng(0)
    block = generator.standard_normal((64, 1024), np.float32).astype(dtype)
    precision_argument = as_kernel_takes({"precision": precision}, ("high",))
    with device.unnoted():
        for side in SIDES:
            if MATRICES_IN_MEMORY * side**2 * dtype.itemsize > device.features.global_memory:
                break
            host = np.resize(block, (side, side))  # random numbers, since zeros take less power
            x, y, out = device.upload(host), swapped(device.upload(host)), Spec((side, side), dtype)
            matmul(device, out, x, y, **precision_argument)
            device.synchronize()
            took = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                for _ in range(CALLS):
                    matmul(device, out, x, y, **precision_argument)
                device.synchronize()
                took.append((time.perf_counter() - began) / CALLS)
            best = max(best, 2e-9 * side**3 / min(took))
            if min(took) > MAX_SECONDS:
                break
    return best


def _arithmetic(device: Device) -> float:
    with device.lock:
        return peak_rate(device, float32) * device.features.compute_units


def _copying(device: Device) -> float:
    with device.lock:
        words = device.empty(Spec((min(COPY_BYTES, device.features.max_allocation // 4) // 4,), float32))
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
    """Return a line for `polyarr doctor`; none if the peak cannot be measured."""
    if not device.geometry.is_measured:
        return []
    speed = speed_of(device)
    if not speed.product:
        return [("error", f"{device.name}: a float32 product comes out wrong with {speed.tile}")]
    text = f"{device.name}: a float32 product runs at {speed}"
    if speed.product >= MIN_PEAK_FRACTION * speed.peak:
        return [("ok", text)]
    remedy = f"far below it: if the machine is idle, look for a better tile with: polyarr tune --device {device.name}"
    return [("warning", f"{text}; {remedy}")]

