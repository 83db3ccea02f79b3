"""global_norm: the square root of the sum of squares of many arrays, in few launches."""

from collections.abc import Sequence

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program, types
from polyarr.core.spec import Spec

MAX_ARRAYS = 16  # arrays per launch: global_norm.cl has as many sets of arguments
BLOCK = 8192  # elements per partial sum


def global_norm(device: Device, out: Spec, arrays: tuple[Buffer, ...]) -> Buffer:
    """Return the square root of the sum of the squares of all elements, a 0-d array."""
    by_dtype: dict[np.dtype, list[Buffer]] = {}
    for array in arrays:
        if array.size:
            by_dtype.setdefault(array.dtype, []).append(dense(device, array))
    count = sum(_blocks(a) for same in by_dtype.values() for a in same)
    partials, result, first = device.empty(Spec((count,), out.dtype)), device.empty(out), 0
    for same in by_dtype.values():
        for i in range(0, len(same), MAX_ARRAYS):
            first += _launch(device, partials, first, same[i : i + MAX_ARRAYS])
    program, lanes = device.plans[_program](out.dtype, out.dtype)
    program.global_norm_root((lanes, 1), (lanes, 1), partials.memory, result.memory, count)
    return result


def _launch(device: Device, partials: Buffer, first: int, arrays: Sequence[Buffer]) -> int:
    """Enqueue the partial sums of the blocks of these arrays; return how many there are."""
    program, lanes = device.plans[_program](arrays[0].dtype, partials.dtype)
    args = [arg for a in arrays for arg in (a.memory, a.size)]
    args += [arrays[0].memory, 0] * (MAX_ARRAYS - len(arrays))  # unused argument slots
    count = sum(map(_blocks, arrays))
    program.global_norm_partials((lanes * count, 1), (lanes, 1), partials.memory, first, *args)
    return count


def _blocks(array: Buffer) -> int:
    return -(-array.size // BLOCK)


def _program(device: Device, dtype: np.dtype, summed: np.dtype) -> tuple[Program, int]:
    lanes = device.geometry.norm
    macros = types(dtype) | {"ACC": types(summed)["ACC"]}
    return device.build("global_norm", **macros, **lanes, ROWS=1, BLOCK=BLOCK), lanes["LANES"]
