"""Running sums along an axis."""

from functools import lru_cache
from typing import Any

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Buffer, Device
from polyarr.backends.opencl.program import types
from polyarr.core.spec import Spec

GPU_GROUP = 256
CPU_COLUMNS = 64


def cumulative_sum(device: Device, out: Spec, x: Buffer, *, axis: int, dtype: np.dtype) -> Buffer:
    """Sums of the elements up to and including each one."""
    x, result = dense(device, x), device.empty(out)
    outer, length, inner = (
        int(np.prod(s, dtype=np.int64)) for s in (x.shape[:axis], x.shape[axis], x.shape[axis + 1 :])
    )
    program = _program(device, x.dtype, out.dtype)
    if device.is_cpu:
        work, group = (-(-inner // CPU_COLUMNS), outer if length else 0), (1, 1)
        program.scan_columns(work, group, x.memory, result.memory, inner, length)
    elif inner == 1:
        program.scan_rows(outer * GPU_GROUP if length else 0, GPU_GROUP, x.memory, result.memory, length)
    else:
        work = (-(-inner // GPU_GROUP) * GPU_GROUP, outer if length else 0)
        program.scan_columns(work, (GPU_GROUP, 1), x.memory, result.memory, inner, length)
    return result


@lru_cache(maxsize=256)
def _program(device: Device, dtype: np.dtype, out: np.dtype) -> Any:
    stored, written = types(dtype), types(out)
    wg, columns = (1, CPU_COLUMNS) if device.is_cpu else (GPU_GROUP, 1)
    read = {"T": stored["T"], "LOAD": stored["LOAD"]}
    write = {"OUT_T": written["T"], "A": written["ACC"], "STORE": written["STORE"]}
    return device.build("scan", **read, **write, WG=wg, COLUMNS=columns)
