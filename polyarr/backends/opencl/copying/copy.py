"""Copies between memory layouts. They move bits, so every dtype works on every device and nan keeps its payload."""

from collections.abc import Callable

import numpy as np

from polyarr.backends.opencl.elementwise.elementwise import Start, launch
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, collapse, row_pitch, spec_of, swapped, whole_row
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec, complex128

BITS = {size: np.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)} | {16: complex128}
WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "uint4"}
MAX_ROW_GROUPS = 4096  # work-groups of a row copy along the rows
MIN_TILED_LENGTH = 8  # rows and columns from which on a transposed copy uses tiles


def dense(device: Device, buf: Buffer) -> Buffer:
    """Return buf itself if it is contiguous in row-major order from offset 0 on, else a copy that is."""
    return buf if buf.is_dense else duplicate(device, buf)


def download(device: Device, buf: Buffer) -> np.ndarray:
    """Copy buf to the host.

    Raises:
        IndexError: An index was out of range in this thread, or in a thread that contributed to buf.
    """
    device.faults.follow((buf,))
    return device.download(dense(device, buf))


def download_later(device: Device, buf: Buffer) -> Callable[[], np.ndarray]:
    """Return a function that copies buf to the host, without a wait for work that is enqueued after this call.

    The function raises as `download` does.
    """
    device.faults.follow((buf,))
    return device.download_later(dense(device, buf))


def duplicate(device: Device, buf: Buffer, start: Start | None = None) -> Buffer:
    """Return a dense copy of buf."""
    plan = None if start else device.plans[_transposed](buf.shape, buf.strides, buf.dtype.itemsize)
    if plan is not None:
        result = device.empty(Spec(buf.shape, buf.dtype))
        plan.kernel(plan.work, plan.group, buf.memory, buf.offset, result.memory, *plan.numbers)
        return result
    bits = _as_bits(buf)
    return launch(device, Spec(bits.shape, bits.dtype), bits, start=start)._replace(dtype=buf.dtype)


def padded(device: Device, out: Spec, pitch: int) -> Buffer:
    """Return an uninitialized buffer for `out` whose rows lie `pitch` elements apart."""
    return device.empty(Spec((*out.shape[:-1], pitch), out.dtype))._replace(shape=out.shape)


def in_rows(device: Device, buf: Buffer) -> tuple[Buffer, int]:
    """Return buf itself if its rows lie at an aligned pitch, as those of `padded`, else a dense copy; and the pitch."""
    pitch = 0 if buf.offset else row_pitch(buf.shape, buf.strides)
    if pitch and (pitch == buf.shape[-1] or pitch * buf.dtype.itemsize % ALIGNMENT == 0):
        return buf, pitch
    return duplicate(device, buf), buf.shape[-1]


def write(device: Device, target: Buffer, source: Buffer, start: Start | None = None) -> None:
    """Copy source into target, a strided view of the same shape and dtype on memory that no array holds yet."""
    bits = _as_bits(source)
    launch(device, Spec(bits.shape, bits.dtype), bits, target=_as_bits(target), start=start)


def in_whole_rows(device: Device, buf: Buffer) -> Buffer:
    """Return a copy whose rows (or columns, if these are contiguous) begin at multiples of 16 bytes."""
    if buf.strides[-1] != 1 == buf.strides[-2]:
        return swapped(in_whole_rows(device, swapped(buf)))
    copy = padded(device, spec_of(buf), whole_row(buf.shape[-1], buf.dtype.itemsize))
    if buf.ndim == 2 and buf.strides[-1] == 1 and buf.dtype.itemsize == 2:
        plan = device.plans[_rows](buf.shape, buf.strides[0], copy.strides[0])
        plan.kernel(plan.work, plan.group, buf.memory, copy.memory, buf.offset, *plan.numbers)
    else:
        write(device, copy, buf)
    return copy


def _rows(device: Device, shape: tuple[int, int], step: int, out_step: int) -> LaunchPlan:
    (rows, columns), group, each = shape, 256, 4
    pairs = -(-columns // 2)
    kernel = device.build("copy_rows", GROUP=group, EACH=each).copy_rows
    work = -(-pairs // (group * each)) * group, min(rows, MAX_ROW_GROUPS)
    return LaunchPlan(kernel, work, (group, 1), (rows, columns, step, out_step // 2))


def _as_bits(buf: Buffer) -> Buffer:
    return buf._replace(dtype=BITS[buf.dtype.itemsize])


def _transposed(device: Device, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> LaunchPlan | None:
    """Plan the copy of matrices with contiguous columns and at most two batch axes; None for other layouts."""
    if 0 in shape:
        return None
    lengths, (steps,) = collapse(shape, [strides])
    if not 2 <= len(lengths) <= 4 or steps[-2] != 1 or min(lengths[-2:]) < MIN_TILED_LENGTH:
        return None
    outer, inner, rows, columns = (1,) * (4 - len(lengths)) + lengths
    outer_step, inner_step, _, step = (0,) * (4 - len(lengths)) + steps
    geometry = device.geometry
    cut = geometry.tiles(-(-rows // geometry.tile), -(-columns // geometry.tile), outer * inner)
    if cut is None:
        return None
    program = device.build("copy", WORD=WORDS[itemsize], TILE=geometry.tile, GROUP_ROWS=geometry.tile_rows)
    numbers = (inner, rows, columns, outer_step, inner_step, step)
    return LaunchPlan(program.copy_transposed, cut.work, cut.group, numbers)
