"""Parameters of the matmul kernels: what they mean, which fit a device, and where the best are looked up."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.backends.opencl.device import Device, Features
from polyarr.backends.opencl.program import STORED
from polyarr.core.errors import BackendError

try:
    from platformdirs import user_config_dir
except ImportError:  # then there is no user file
    user_config_dir = None

WIDE_ACCUMULATORS = ("double", "long", "ulong")


@dataclass(frozen=True)
class CpuMatmul:
    """The macros of kernels/matmul_cpu.cl: a tile of ROWS x VECTORS vectors, lengths of packed blocks."""

    WIDE: int
    ROWS: int
    VECTORS: int
    DEPTH: int
    X_BLOCK: int
    Y_BLOCK: int

    def fits(self, features: Features, itemsize: int) -> bool:
        """True if packed blocks are whole panels that the device's local memory holds."""
        local = ((self.X_BLOCK + self.Y_BLOCK) * self.DEPTH + 64) * itemsize
        whole = self.X_BLOCK % self.ROWS == 0 and self.Y_BLOCK % (self.VECTORS * self.WIDE) == 0
        return whole and 1 <= self.VECTORS <= 4 and local <= features.local_memory


@dataclass(frozen=True)
class GpuMatmul:
    """The macros of kernels/matmul_gpu.cl: a work-group's tile, a work-item's share, and their order."""

    TILE_M: int
    TILE_N: int
    TILE_K: int
    ITEM_M: int
    ITEM_N: int
    LANES_N: int
    RASTER: int

    @property
    def items(self) -> int:
        """Work-items in a work-group."""
        return self.TILE_M // self.ITEM_M * (self.TILE_N // self.ITEM_N)

    def fits(self, features: Features, itemsize: int) -> bool:
        """True if the shares are whole and the device has the work-group size and the local memory."""
        lanes_m = 32 // self.LANES_N
        local = 2 * self.TILE_K * (self.TILE_M + self.TILE_N + 8) * itemsize
        whole = self.TILE_N % (self.LANES_N * self.ITEM_N) == 0 and self.TILE_M % (lanes_m * self.ITEM_M) == 0
        loads = all(tile * self.TILE_K % (4 * self.items) == 0 for tile in (self.TILE_M, self.TILE_N))
        return whole and loads and self.items <= features.max_work_group and local <= features.local_memory


MatmulParams = CpuMatmul | GpuMatmul


def space(device: Device, dtype: np.dtype) -> Iterator[MatmulParams]:
    """Every combination of parameters that is worth a try on the device."""
    itemsize = _accumulator_bytes(dtype)
    if device.is_cpu:
        wide = vector_width(device) * 4 // itemsize
        shapes = product((wide,), (4, 6, 8, 12), (1, 2, 3), (128, 192, 256), (96, 192), (192, 384))
        found: Iterator[MatmulParams] = (CpuMatmul(*shape) for shape in shapes)
    else:
        tiles = ((32, 32), (64, 32), (64, 64), (128, 64), (128, 128), (256, 128))
        items = ((4, 4), (8, 4), (8, 8), (16, 8))
        shapes = product(tiles, (8, 16, 32), items, (4, 8, 16), (4, 8))
        found = (GpuMatmul(*tile, deep, *item, lanes, raster) for tile, deep, item, lanes, raster in shapes)
    return (params for params in found if params.fits(device.features, itemsize))


@lru_cache
def lookup(device: Device, dtype: np.dtype) -> tuple[MatmulParams, ...]:
    """The best known parameters for a device, largest tiles first.

    The user's file comes before the one of the package; in each, the device's name before its vendor and that
    before its kind.

    Errors:  BackendError if no entry fits the device
    """
    itemsize = _accumulator_bytes(dtype)
    kind = CpuMatmul if device.is_cpu else GpuMatmul
    for table in _tables():
        for name in _names(device):
            entries = table.get(name, {}).get(f"{itemsize} bytes", [])
            params = (kind(**entry) for entry in entries)
            found = tuple(p for p in params if p.fits(device.features, itemsize))
            if found:
                return found
    device_name = device.cl_device.name.strip()
    raise BackendError(f"matmul: no parameters fit device {device_name!r}; add some to {user_file()}")


def user_file() -> Path | None:
    """Where a user may keep parameters of their own, or None without platformdirs."""
    return Path(user_config_dir("polyarr"), "tuned.json") if user_config_dir else None


@lru_cache
def vector_width(device: Device) -> int:
    """How many floats a vector register of a CPU holds."""
    return 16 if device.cl_device.native_vector_width_float >= 16 else 8


def _names(device: Device) -> tuple[str, ...]:
    kind = f"cpu with {vector_width(device)} floats" if device.is_cpu else "gpu"
    return device.cl_device.name.strip(), device.cl_device.vendor.strip(), kind


def _accumulator_bytes(dtype: np.dtype) -> int:
    return 8 if STORED[dtype][1] in WIDE_ACCUMULATORS else 4


@cache
def _tables() -> tuple[dict[str, Any], ...]:
    shipped = files(__package__) / "tuned.json"
    user = user_file()
    sources = ([user] if user and user.exists() else []) + [shipped]
    return tuple(json.loads(source.read_text())["matmul"] for source in sources)
