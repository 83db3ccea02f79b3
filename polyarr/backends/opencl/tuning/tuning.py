"""Parameters of the matmul kernels: their meaning, which fit a device, the search space, and the shipped values."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from polyarr.backends.opencl.runtime.device import Device, Features
from polyarr.backends.opencl.runtime.pocl import UNKNOWN, compiled_floats
from polyarr.backends.opencl.runtime.program import STORED
from polyarr.core.errors import BackendError

WIDE_ACCUMULATORS = ("double", "long", "ulong")
LINE, OVERRUN = 16, 8  # elements: alignment of panels, and by how many a packed panel may be read beyond its end
MAX_PACKED_BYTES = 2**26  # bytes
Table = dict[str, dict[str, Any]]  # a device's name -> "4 bytes" or "8 bytes" -> parameters, the best first


def _rounded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


@dataclass(frozen=True)
class CpuMatmul:
    """The macros of matmul_cpu.cl: a tile of ROWS x VECTORS vectors, lengths of packed blocks."""

    WIDE: int
    ROWS: int
    VECTORS: int
    DEPTH: int
    X_BLOCK: int
    Y_BLOCK: int

    def fits(self, features: Features, itemsize: int) -> bool:
        """Return whether packed blocks are whole panels that some cache may hold."""
        small = self.WIDE in (2, 4, 8, 16) and 1 <= self.ROWS <= 16 and 1 <= self.VECTORS <= 4 and self.DEPTH >= 1
        if not small or self.X_BLOCK < self.ROWS or self.Y_BLOCK < self.VECTORS * self.WIDE:
            return False
        whole = self.X_BLOCK % self.ROWS == 0 and self.Y_BLOCK % (self.VECTORS * self.WIDE) == 0
        return whole and (self.X_BLOCK + self.Y_BLOCK) * self.DEPTH * itemsize <= MAX_PACKED_BYTES

    def packed_elements(self, rows: int, columns: int, depth: int) -> tuple[int, int]:
        """Return the elements of the packed blocks of x and y, for this many rows and columns per work-group."""
        x = min(self.X_BLOCK, _rounded(rows, self.ROWS))
        y = min(self.Y_BLOCK, _rounded(columns, self.VECTORS * self.WIDE))
        x_packed, y_packed = (_rounded(length * min(self.DEPTH, depth) + OVERRUN, LINE) for length in (x, y))
        return x_packed, y_packed


@dataclass(frozen=True)
class GpuMatmul:
    """The macros of matmul_gpu.cl: a work-group's tile, a work-item's share, and their order."""

    TILE_M: int
    TILE_N: int
    TILE_K: int
    ITEM_M: int
    ITEM_N: int
    LANES_N: int
    RASTER: int

    @property
    def items(self) -> int:
        """The work-items in a work-group."""
        return self.TILE_M // self.ITEM_M * (self.TILE_N // self.ITEM_N)

    def fits(self, features: Features, itemsize: int) -> bool:
        """Return whether shares divide evenly and the device has the work-group size and the local memory."""
        lanes_m = 32 // self.LANES_N
        if not lanes_m or not self.items:
            return False
        local = 2 * self.TILE_K * (self.TILE_M + self.TILE_N + 8) * itemsize
        whole = self.TILE_N % (self.LANES_N * self.ITEM_N) == 0 and self.TILE_M % (lanes_m * self.ITEM_M) == 0
        loads = all(tile * self.TILE_K % (4 * self.items) == 0 for tile in (self.TILE_M, self.TILE_N))
        return whole and loads and self.items <= features.max_work_group and local <= features.local_memory


MatmulParams = CpuMatmul | GpuMatmul
PARAMETERS: dict[str, type[CpuMatmul] | type[GpuMatmul]] = {"cpu": CpuMatmul, "gpu": GpuMatmul}


def lookup(device: Device, dtype: np.dtype) -> tuple[MatmulParams, ...]:
    """Return the shipped parameters for a device: for a GPU the largest tiles first, for a CPU the likeliest.

    Those of the device come before its vendor's, and these before its kind's.

    Raises:
        BackendError: None fit the device.
    """
    size = f"{accumulator_bytes(dtype)} bytes"
    for name in (device.cl_device.name.strip(), device.cl_device.vendor.strip(), kind_of(device)):
        found = _fitting(_shipped().get(name, {}).get(size), device, dtype)
        if found:
            return found
    raise BackendError(f"matmul: no parameters fit device {device.cl_device.name.strip()!r}")


def space(device: Device, dtype: np.dtype) -> Iterator[MatmulParams]:
    """Yield the candidates: the shipped ones first, the others in a reproducible order."""
    known = lookup(device, dtype)
    found: list[MatmulParams] = list(SPACES[PARAMETERS[device.geometry.kind]](device, dtype))
    random.Random(0).shuffle(found)  # so that runs that end early still sample the whole space
    # A CPU's DEPTH decides the order of additions: it stays fixed, so that results do not depend on the choice.
    depth = {getattr(known[0], "DEPTH", None)}
    yield from dict.fromkeys(tile for tile in (*known, *found) if getattr(tile, "DEPTH", None) in depth)


def _cpu_space(device: Device, dtype: np.dtype) -> Iterator[CpuMatmul]:
    """Yield every tile that fits a CPU's registers and keeps them busy."""
    itemsize, depth = accumulator_bytes(dtype), cast("CpuMatmul", lookup(device, dtype)[0]).DEPTH
    register = vector_width(device) * 4 // itemsize
    registers = 32 if vector_width(device) == 16 else 16
    widths = (width for width in (register // 2, register, 2 * register) if 2 <= width <= 16)
    for wide, rows, vectors, x, y in product(widths, (4, 6, 8, 12, 14), (1, 2, 3, 4), (96, 192), (512, 1024)):
        x, y = x // rows * rows, y // (wide * vectors) * wide * vectors
        each = max(1, wide // register)  # registers per vector
        params = CpuMatmul(wide, rows, vectors, depth, x, y)
        busy = 8 <= rows * vectors * each and (rows + 1) * vectors * each < registers
        if busy and params.fits(device.features, itemsize):
            yield params


def _gpu_space(device: Device, dtype: np.dtype) -> Iterator[GpuMatmul]:
    """Yield every tile of one to eight warps whose sums a work-item can hold in registers."""
    itemsize = accumulator_bytes(dtype)
    sides, shares = (32, 64, 128), (4, 8)
    for m, n, k, item_m, item_n, lanes in product(sides, sides, (8, 16, 32), shares, shares, (4, 8)):
        params = GpuMatmul(m, n, k, item_m, item_n, lanes, 8)
        if 32 <= params.items <= 256 and params.fits(device.features, itemsize):
            yield params


Space = Callable[[Device, np.dtype], Iterator[MatmulParams]]
SPACES: dict[type, Space] = {CpuMatmul: _cpu_space, GpuMatmul: _gpu_space}


def vector_width(device: Device) -> int:
    """Return the floats in a vector register of a CPU, as the compiler says, or else the device."""
    floats = compiled_floats(device.cl_device)
    return floats if floats > UNKNOWN else min(16, max(4, device.cl_device.native_vector_width_float))


def kind_of(device: Device) -> str:
    """Return the key of the shipped parameters for a kind of device."""
    kind = device.geometry.kind
    return f"{kind} with {vector_width(device)} floats" if PARAMETERS[kind] is CpuMatmul else kind


def accumulator_bytes(dtype: np.dtype) -> int:
    """Return the size of the dtype in which sums are accumulated."""
    return 8 if STORED[dtype][1] in WIDE_ACCUMULATORS else 4


def parameters_of(device: Device, dtype: np.dtype, entry: Any) -> MatmulParams | None:
    """Return parameters from JSON; None if they are invalid or do not fit the device."""
    kind = PARAMETERS[device.geometry.kind]
    if not isinstance(entry, dict) or set(entry) != set(kind.__dataclass_fields__):
        return None
    if not all(type(v) is int and v > 0 for v in entry.values()):
        return None
    params = kind(**entry)
    return params if params.fits(device.features, accumulator_bytes(dtype)) else None


def _fitting(entries: list[Any] | None, device: Device, dtype: np.dtype) -> tuple[MatmulParams, ...]:
    found = (parameters_of(device, dtype, entry) for entry in entries or [])
    return tuple(params for params in found if params)


@cache
def _shipped() -> Table:
    return json.loads(Path(__file__).with_name("tuned.json").read_text(encoding="utf-8"))["matmul"]
