"""Parameters of the matmul kernels: what they mean, which fit a device, and where the best are looked up and kept."""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.backends.opencl.device import Device, Features
from polyarr.backends.opencl.pocl import UNKNOWN, compiled_floats, processor_name, target_of
from polyarr.backends.opencl.program import STORED
from polyarr.core.errors import BackendError
from polyarr.version import __version__

try:
    from platformdirs import user_config_dir
except ImportError:  # then there is no user file
    user_config_dir = None

WIDE_ACCUMULATORS = ("double", "long", "ulong")
Table = dict[str, dict[str, Any]]  # a device's name -> "4 bytes" or "8 bytes" -> entries, the best first

_writing = threading.Lock()


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
        small = self.WIDE in (2, 4, 8, 16) and 1 <= self.ROWS <= 16 and 1 <= self.VECTORS <= 4 and self.DEPTH >= 1
        if not small or self.X_BLOCK < self.ROWS or self.Y_BLOCK < self.VECTORS * self.WIDE:
            return False
        local = ((self.X_BLOCK + self.Y_BLOCK) * self.DEPTH + 64) * itemsize
        whole = self.X_BLOCK % self.ROWS == 0 and self.Y_BLOCK % (self.VECTORS * self.WIDE) == 0
        return whole and local <= features.local_memory


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
        if not lanes_m or not self.items:
            return False
        local = 2 * self.TILE_K * (self.TILE_M + self.TILE_N + 8) * itemsize
        whole = self.TILE_N % (self.LANES_N * self.ITEM_N) == 0 and self.TILE_M % (lanes_m * self.ITEM_M) == 0
        loads = all(tile * self.TILE_K % (4 * self.items) == 0 for tile in (self.TILE_M, self.TILE_N))
        return whole and loads and self.items <= features.max_work_group and local <= features.local_memory


MatmulParams = CpuMatmul | GpuMatmul
PARAMETERS = {"cpu": CpuMatmul, "gpu": GpuMatmul}


# ---- looking up ------------------------------------------------------------------------------------------------


def lookup(device: Device, dtype: np.dtype) -> tuple[MatmulParams, ...]:
    """The best known parameters for a device: for a GPU largest tiles first, for a CPU the best first.

    The user's file comes before the one of the package; in each, what was measured on this very processor before
    the device's name, its vendor and its kind.

    Errors:  BackendError if no entry fits the device
    """
    itemsize = accumulator_bytes(dtype)
    for table in (_user_table(), _shipped()):
        for name in _names(device):
            found = _fitting(table.get(name, {}).get(f"{itemsize} bytes"), device, itemsize)
            if found:
                return found
    device_name = device.cl_device.name.strip()
    raise BackendError(f"matmul: no parameters fit device {device_name!r}; add some to {user_file()}")


def candidates(device: Device, dtype: np.dtype) -> tuple[CpuMatmul, ...]:
    """The tiles of the package to choose from by measuring, the likeliest first.

    All have the same DEPTH, which decides in what order numbers are added: so results do not depend on the choice.
    """
    itemsize = accumulator_bytes(dtype)
    found = _fitting(_shipped()[kind_of(device)][f"{itemsize} bytes"], device, itemsize)
    return tuple(params for params in found if params.DEPTH == found[0].DEPTH)


def is_known(device: Device, dtype: np.dtype) -> bool:
    """True if the user's file has parameters for the device, measured or by hand."""
    entries = (_user_table().get(name, {}).get(f"{accumulator_bytes(dtype)} bytes") for name in _names(device))
    return any(_fitting(found, device, accumulator_bytes(dtype)) for found in entries)


def space(device: Device, dtype: np.dtype) -> Iterator[CpuMatmul]:
    """Every tile that a CPU's registers hold and that keeps them busy, with the DEPTH of the candidates."""
    itemsize, depth = accumulator_bytes(dtype), candidates(device, dtype)[0].DEPTH
    register = vector_width(device) * 4 // itemsize
    registers = 32 if vector_width(device) == 16 else 16
    widths = (width for width in (register // 2, register, 2 * register) if 2 <= width <= 16)
    for wide, rows, vectors, x, y in product(widths, (4, 6, 8, 12, 14), (1, 2, 3, 4), (96, 192), (384, 768)):
        x, y = x // rows * rows, y * 4 // itemsize
        each = max(1, wide // register)  # registers for a vector
        params = CpuMatmul(wide, rows, vectors, depth, x, y)
        busy = 8 <= rows * vectors * each and (rows + 1) * vectors * each < registers
        if busy and params.fits(device.features, itemsize):
            yield params


def vector_width(device: Device) -> int:
    """How many floats a vector register of a CPU holds: as the compiler says, or else the device."""
    floats = compiled_floats(device.cl_device)
    return floats if floats > UNKNOWN else min(16, max(4, device.cl_device.native_vector_width_float))


def _names(device: Device) -> tuple[str, ...]:
    return identity(device), device.cl_device.name.strip(), device.cl_device.vendor.strip(), kind_of(device)


def identity(device: Device) -> str:
    """All that a measurement is good for: this polyarr, this processor, this driver and its target."""
    driver = f"{device.cl_device.name.strip()}, driver {device.cl_device.driver_version.strip()}"
    target = target_of(device.cl_device) or "its own choice"
    return f"{processor_name()}; {driver}, target {target}; {kind_of(device)}; polyarr {__version__}"


def kind_of(device: Device) -> str:
    """What the package has parameters for."""
    kind = device.geometry.kind
    return f"{kind} with {vector_width(device)} floats" if PARAMETERS[kind] is CpuMatmul else kind


def accumulator_bytes(dtype: np.dtype) -> int:
    """The size of what sums are kept in."""
    return 8 if STORED[dtype][1] in WIDE_ACCUMULATORS else 4


def _fitting(entries: Any, device: Device, itemsize: int) -> tuple[Any, ...]:
    """Those entries that are parameters and fit the device."""
    kind = PARAMETERS[device.geometry.kind]
    names = set(kind.__dataclass_fields__)
    good = (
        kind(**entry)
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and set(entry) == names and all(type(v) is int and v > 0 for v in entry.values())
    )
    return tuple(params for params in good if params.fits(device.features, itemsize))


# ---- files -----------------------------------------------------------------------------------------------------


def user_file() -> Path | None:
    """Where measured parameters are kept, and a user may add some; None without platformdirs."""
    return Path(user_config_dir("polyarr"), "tuned.json") if user_config_dir else None


def read_user_file() -> Table:
    """The user's table; empty if there is no file.

    Errors:  ValueError if the file is no such table; OSError if it cannot be read
    """
    file = user_file()
    if file is None or not file.exists():
        return {}
    try:
        whole = json.loads(file.read_text())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    table = whole.get("matmul") if isinstance(whole, dict) else None
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise ValueError('it must be {"matmul": {name: {"4 bytes": [parameters, ...]}}}')
    return table


def remember(device: Device, dtype: np.dtype, params: CpuMatmul, facts: dict[str, Any]) -> None:
    """Keep the parameters for this processor and driver, in this process and, if it can be written, in the user's file.

    A file that cannot be read is left as it is. Of two processes that write at once one is lost, and measured again.
    """
    with _writing:
        table = _user_table()
        size = f"{accumulator_bytes(dtype)} bytes"
        entry = {**table.get(identity(device), {}), size: [asdict(params)], f"{size} measured": facts}
        with contextlib.suppress(OSError, ValueError):
            _write({**read_user_file(), identity(device): entry})
        table[identity(device)] = entry
        device.plans.pop(lookup, None)


def _write(table: Table) -> None:
    file = user_file()
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=file.name, delete=False) as new:
        try:
            json.dump({"matmul": table}, new, indent=1)
            new.close()
            os.replace(new.name, file)
        except BaseException:
            Path(new.name).unlink(missing_ok=True)
            raise


@cache
def _user_table() -> Table:
    try:
        return read_user_file()
    except (OSError, ValueError):  # `polyarr doctor` says so
        return {}


@cache
def _shipped() -> Table:
    return json.loads((files(__package__) / "tuned.json").read_text())["matmul"]
