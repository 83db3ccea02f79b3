"""Attention without the matrix of scores: tiles, online softmax, and a backward pass that makes the weights again."""

import struct
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer, broadcast, collapse, swapped
from polyarr.backends.opencl.program import Program, types
from polyarr.backends.opencl.random import State, state_of
from polyarr.backends.opencl.reduce import launcher as reduction
from polyarr.backends.opencl.tuning import vector_width
from polyarr.core.spec import Spec, float32, float64
from polyarr.core.spec import bool as bool_

ITEMS_PER_CORE = 4  # work-items that each core of a CPU should get, so that they finish together
LOCAL_MEMORY = 48 * 1024  # bytes that a GPU's work-group may take, if the device has them
ALIGNMENT = 1024  # bytes that a CPU's driver may leave free between arrays
SUM = reduction("sum")
FLAGS = ("DROPOUT", "STATE_ON_DEVICE", "BACKWARD")


class Saved(NamedTuple):
    """What forward keeps: the result, and the logarithm of the sum of the exponentials of each row of scores."""

    out: Buffer
    lse: Buffer


class CpuTile(NamedTuple):
    """The macros of attention_cpu.cl that say how it cuts the scores."""

    BQ: int
    BK: int
    ROWS: int
    LANES: int
    VECTORS: int


class GpuTile(NamedTuple):
    """The macros of attention_gpu.cl that say how it cuts the scores."""

    OWN: int
    STREAM: int
    TX: int
    TY: int


# From the largest on.
CPU_SIDES = (64, 32, 16, 8)
GPU_TILES = tuple(GpuTile(*tile) for tile in ((64, 32, 8, 16), (32, 32, 8, 8), (16, 16, 8, 8), (8, 8, 8, 8)))


def forward(
    device: Device, out: Spec, q: Buffer, k: Buffer, v: Buffer, mask: Buffer | None,
    key: int | Buffer, counter: int | Buffer, *,
    causal: bool, scale: float, dropout_rate: float,
) -> Any:  # fmt: skip
    """The result, whose memory is laid out (..., t, heads, e) so that joining the heads costs nothing, and a Saved.

    NotImplemented if rows are so long that no tile fits into the device's local memory, forward or backward.
    """
    lead, (t, s), lengths = out.shape[:-2], (q.shape[-2], k.shape[-2]), (q.shape[-1], v.shape[-1])
    if not device.plans[_fits](q.dtype.itemsize, t, lengths):
        return NotImplemented
    result = _by_rows(device, out.shape, out.dtype)
    saved = Saved(result, device.empty(Spec(out.shape[:-1], _accumulated(out.dtype))))
    inputs, at, inner = _laid_out(device, lead, (q, k, v, mask), (result,))
    state = state_of(device, key, counter, q)
    numbers = _numbers(inner, t, s, causal, scale, state, dropout_rate)
    program, tile = device.plans[_program](
        q.dtype, mask and mask.dtype, t, lengths, _macros(state, dropout_rate, backward=False)
    )
    work, group = _launch(tile, t, prod(lead))
    program.attention_forward(
        work, group, *_arguments(inputs, at), result.memory, at[4], saved.lse.memory, *numbers
    )
    return result, saved


def backward(
    device: Device, g: Buffer, saved: Saved, q: Buffer, k: Buffer, v: Buffer, mask: Buffer | None,
    key: int | Buffer, counter: int | Buffer, *, wanted: tuple[bool, ...], causal: bool, scale: float,
    dropout_rate: float,
) -> tuple[Buffer | None, ...]:  # fmt: skip
    """The gradients of q, k and v. There is none for a mask."""
    lead, (t, s) = g.shape[:-2], (q.shape[-2], k.shape[-2])
    gradients = tuple(_by_rows(device, (*lead, *x.shape[-2:]), x.dtype) for x in (q, k, v))
    inputs, at, inner = _laid_out(device, lead, (q, k, v, mask, g), (saved.out, *gradients))
    state = state_of(device, key, counter, q)
    numbers = _numbers(inner, t, s, causal, scale, state, dropout_rate)
    program, tile = device.plans[_program](
        q.dtype, mask and mask.dtype, t, (q.shape[-1], v.shape[-1]), _macros(state, dropout_rate, backward=True)
    )
    launch = FAMILIES[device.geometry.kind].backward
    launch(device, program, tile, prod(lead), inputs, at, saved, gradients, wanted, numbers)
    found = zip(gradients, (q, k, v), wanted, strict=False)
    return (*(_unbroadcast(device, dx, x.shape) if want else None for dx, x, want in found), None, None, None)


def _backward_on_cpu(
    device: Device, program: Program, tile: CpuTile, batch: int, inputs: tuple[Buffer, ...], at: tuple[bytes, ...],
    saved: Saved, gradients: tuple[Buffer, ...], wanted: tuple[bool, ...], numbers: tuple[Any, ...],
) -> None:  # fmt: skip
    """One launch, which gives all three; few (batch, head) pairs have their keys divided, and a second adds up dq."""
    (dq, dk, dv), (inner, t, s) = gradients, numbers[:3]
    enough = device.features.compute_units * ITEMS_PER_CORE
    parts = max(1, min(-(-s // tile.BK), -(-enough // max(batch, 1))))
    partial, partial_at = dq, at[6]
    direct = parts == 1 and dq.dtype == _accumulated(dq.dtype)
    if not direct:
        partial = device.empty(Spec((parts, batch, t, dq.shape[-1]), _accumulated(dq.dtype)))
        partial_at = _layout(0, inner * partial.strides[1], *partial.strides[1:3])
    program.attention_backward(
        (batch, parts), (1, 1), *_arguments(inputs, at), saved.out.memory, at[5], inputs[4].memory, at[4],
        saved.lse.memory, partial.memory, partial_at, partial.size // parts, dk.memory, at[7], dv.memory, at[8],
        *numbers,
    )  # fmt: skip
    if not direct:
        program.attention_join((t, batch), (1, 1), partial.memory, parts, dq.memory, at[6], inner, t)


def _backward_on_gpu(
    device: Device, program: Program, tile: GpuTile, batch: int, inputs: tuple[Buffer, ...], at: tuple[bytes, ...],
    saved: Saved, gradients: tuple[Buffer, ...], wanted: tuple[bool, ...], numbers: tuple[Any, ...],
) -> None:  # fmt: skip
    """Three launches: sum(dout out) of each row, dq by blocks of queries, dk and dv by blocks of keys."""
    (dq, dk, dv), (inner, t, s) = gradients, numbers[:3]
    dout, delta = (inputs[4].memory, at[4]), device.empty(Spec(saved.lse.shape, saved.lse.dtype))
    items = tile.TX * tile.TY
    program.attention_delta(
        (-(-t // items) * items, batch), (items, 1), saved.out.memory, at[5], *dout, delta.memory, inner, t
    )
    shared = (*_arguments(inputs, at), *dout, saved.lse.memory, delta.memory)
    if wanted[0]:
        program.attention_backward_q(*_launch(tile, t, batch), *shared, dq.memory, at[6], *numbers)
    if any(wanted[1:3]):
        program.attention_backward_kv(*_launch(tile, s, batch), *shared, dk.memory, at[7], dv.memory, at[8], *numbers)


def _launch(tile: CpuTile | GpuTile, rows: int, batch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Global and local size for one work-group per block of rows."""
    if type(tile) is CpuTile:
        return (-(-rows // tile.BQ), batch), (1, 1)
    items = tile.TX * tile.TY
    return (-(-rows // tile.OWN) * items, batch), (items, 1)


# ---- programs ----------------------------------------------------------------------------------------------------


def _program(
    device: Device, dtype: np.dtype, mask: np.dtype | None, t: int, lengths: tuple[int, int], macros: tuple[int, ...]
) -> tuple[Program, CpuTile | GpuTile]:
    """The kernels for q and v with rows of these lengths, and their tile."""
    flags = dict(zip(FLAGS, macros, strict=True))
    tile = _tile(device, dtype.itemsize, t, lengths, backward=bool(flags["BACKWARD"]))
    names = types(bool_ if mask is None else mask)
    program = device.build(
        f"attention_{device.geometry.kind}", **types(dtype), MASK=0 if mask is None else 1 if mask == bool_ else 2,
        MASK_T=names["T"], MASK_LOAD=names["LOAD"], D=lengths[0], DV=lengths[1], **flags, **tile._asdict(),
    )  # fmt: skip
    return program, tile


def _macros(state: State, dropout_rate: float, *, backward: bool) -> tuple[int, ...]:
    """The values of FLAGS."""
    return int(dropout_rate > 0), int(dropout_rate > 0 and state.on_device), int(backward)


def _fits(device: Device, itemsize: int, t: int, lengths: tuple[int, int]) -> bool:
    """True if there are tiles for both passes."""
    return all(_tile(device, itemsize, t, lengths, backward=backward) for backward in (False, True))


def _tile(device: Device, itemsize: int, t: int, lengths: tuple[int, int], *, backward: bool) -> Any:
    """The tile for t queries and rows of these lengths; None if none fits: some drivers would crash in the kernel."""
    return FAMILIES[device.geometry.kind].tile(device, max(4, itemsize), t, lengths, backward)


def _cpu_tile(device: Device, itemsize: int, t: int, lengths: tuple[int, int], backward: bool) -> CpuTile | None:
    """The largest tile that fits, with the processor's vectors, unless short rows or few queries leave them empty."""
    lanes = max(4, vector_width(device) * 4 // itemsize)
    while lanes > 4 and (lanes >= max(lengths) or (not backward and lanes >= t)):
        lanes //= 2
    for side in CPU_SIDES if t > 128 else CPU_SIDES[1:]:
        wide = min(lanes, side // 2)
        tile = CpuTile(BQ=2 * wide if t <= 2 * wide else side, BK=side, ROWS=4, LANES=wide, VECTORS=2)
        if _cpu_bytes(tile, itemsize, lengths, backward) <= device.features.local_memory:
            return tile
    return None


def _gpu_tile(device: Device, itemsize: int, t: int, lengths: tuple[int, int], backward: bool) -> GpuTile | None:
    """The largest tile whose local memory is there, and of which a single query wastes not too much."""
    room = min(device.features.local_memory, LOCAL_MEMORY)
    fitting = [tile for tile in GPU_TILES if _gpu_bytes(tile, itemsize, lengths, backward) <= room]
    return next((tile for tile in fitting if backward or tile.OWN <= max(16, t)), None)


def _cpu_bytes(tile: CpuTile, itemsize: int, lengths: tuple[int, int], backward: bool) -> int:
    """What the kernels of attention_cpu.cl declare, or a little more."""
    panel, queries, keys = tile.LANES * tile.VECTORS, tile.BQ, tile.BK
    q_width, v_width = (-(-n // panel) * panel for n in lengths)
    if backward:
        rows_of_q, rows_of_v = 2 * queries + 3 * keys, queries + 2 * keys
        return itemsize * (rows_of_q * q_width + rows_of_v * v_width + 2 * queries * keys) + ALIGNMENT
    return itemsize * ((queries + keys) * (q_width + v_width) + queries * keys) + ALIGNMENT


def _gpu_bytes(tile: GpuTile, itemsize: int, lengths: tuple[int, int], backward: bool) -> int:
    """What the kernels of attention_gpu.cl declare, or a little more."""
    q_width, v_width = (-(-n // (4 * tile.TX)) * 4 * tile.TX + 4 for n in lengths)
    scores = tile.OWN * (tile.STREAM + 4)
    if backward:
        return itemsize * ((tile.OWN + tile.STREAM) * (q_width + v_width) + scores + 2 * tile.STREAM)
    shared = max(scores, tile.STREAM * q_width)
    return itemsize * (tile.OWN * q_width + shared + tile.STREAM * v_width + tile.OWN * tile.TX)


class Family(NamedTuple):
    """The kernels for a kind of device: the choice of a tile, and the launches of the backward pass."""

    tile: Callable[..., CpuTile | GpuTile | None]
    backward: Callable[..., None]


FAMILIES = {"cpu": Family(_cpu_tile, _backward_on_cpu), "gpu": Family(_gpu_tile, _backward_on_gpu)}

# ---- layouts -----------------------------------------------------------------------------------------------------


def _by_rows(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
    """An uninitialised (..., heads, rows, n) whose memory is laid out (..., rows, heads, n)."""
    if len(shape) < 3:
        return device.empty(Spec(shape, dtype))
    *outer, heads, rows, length = shape
    return swapped(device.empty(Spec((*outer, rows, heads, length), dtype)), -3, -2)


def _laid_out(
    device: Device, lead: tuple[int, ...], inputs: tuple[Buffer | None, ...], results: tuple[Buffer, ...]
) -> tuple[tuple[Buffer, ...], tuple[bytes, ...], int]:
    """The inputs, broadcast (a mask to all scores), the layouts of all arrays, the length of the inner leading axis."""
    q, k, v, mask, *rest = inputs
    last = [_with_unit_step(device, x) for x in (q, k, v, *rest)]
    found = [broadcast(x, (*lead, *x.shape[-2:])) for x in last]
    found.insert(3, found[0] if mask is None else broadcast(mask, (*lead, q.shape[-2], k.shape[-2])))
    layouts = _steps(lead, tuple([x.strides for x in (*found, *results)]))
    if layouts is None:
        found = [dense(device, x) for x in found]
        layouts = _steps(lead, tuple([x.strides for x in (*found, *results)]))
    steps, inner = layouts
    starts = [struct.pack("q", x.offset) for x in (*found, *results)]
    return tuple(found), tuple([start + step for start, step in zip(starts, steps, strict=True)]), inner


def _with_unit_step(device: Device, x: Buffer) -> Buffer:
    return x if x.strides[-1] == 1 or x.shape[-1] == 1 else dense(device, x)


@lru_cache(maxsize=1024)
def _steps(lead: tuple[int, ...], arrays: tuple[Any, ...]) -> tuple[list[bytes], int] | None:
    """The layouts but for where arrays start, if the leading axes of all join into two, else None."""
    lengths, steps = collapse(lead, [strides[:-2] for strides in arrays])
    if len(lengths) > 2:
        return None
    pairs = [(0, *step) if len(lengths) == 1 else step for step in steps]
    return [struct.pack("3q", *pair, a[-2]) for a, pair in zip(arrays, pairs, strict=True)], lengths[-1]


def _layout(offset: int, outer: int, inner: int, row: int) -> bytes:
    """A long4 for the kernels."""
    return struct.pack("4q", offset, outer, inner, row)


def _arguments(inputs: tuple[Buffer, ...], at: tuple[bytes, ...]) -> tuple[Any, ...]:
    """q, k, v and mask as kernels take them."""
    q, k, v, mask = inputs[:4]
    return q.memory, at[0], k.memory, at[1], v.memory, at[2], mask.memory, at[3], mask.strides[-1]


def _numbers(
    inner: int, t: int, s: int, causal: bool, scale: float, state: State, rate: float
) -> tuple[Any, ...]:
    """What every kernel takes last."""
    return inner, t, s, int(causal), scale, *state.arguments, round(rate * 2**24), 1 / (1 - rate) if rate < 1 else 0.0


def _accumulated(dtype: np.dtype) -> np.dtype:
    return float64 if dtype == float64 else float32


def _unbroadcast(device: Device, dx: Buffer, shape: tuple[int, ...]) -> Buffer:
    """The sum over the axes along which an input of this shape was broadcast."""
    missing = len(dx.shape) - len(shape)
    axes = (*range(missing), *(missing + i for i, n in enumerate(shape) if n == 1 != dx.shape[missing + i]))
    if not axes:
        return dx
    kept = (*(1 for _ in range(missing)), *shape)
    total = SUM(device, Spec(kept, dx.dtype), dx, axis=axes, keepdims=True)
    return total._replace(shape=shape, strides=total.strides[missing:])
