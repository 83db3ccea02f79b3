"""Tiled attention in portable OpenCL C: its tiles, programs and launches, for CPUs and GPUs."""

import struct
from math import log2
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.rows.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program, types
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.tuning.tuned import best
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import Spec, float32
from polyarr.core.spec import bool as bool_

ITEMS_PER_CORE = 4  # work-items per core of a CPU, so that cores finish together
LOCAL_MEMORY = 48 * 1024  # bytes of local memory that a GPU's work-group may take
ALIGNMENT = 1024  # bytes that a CPU's driver may leave free between arrays


class Problem(NamedTuple):
    """Everything about a call of attention, except its arrays, on which programs and launches depend."""

    dtype: np.dtype
    mask: np.dtype | None
    batch: int
    inner: int
    t: int
    s: int
    lengths: tuple[int, int]  # of rows of q and k, and of rows of v
    layouts: tuple[bytes, ...]  # of q, k, v and, in the backward pass, dout: strides outer, inner, row, packed as "3q"
    is_aligned: bool  # whether their first elements lie at multiples of 16 bytes
    causal: bool
    scale_is_positive: bool
    dropout: bool
    state_on_device: bool
    terms: int  # terms into which matrix units' operands are split
    group: int = 1  # heads of q, along the inner axis, that share a head of k and v

    @property
    def is_backward(self) -> bool:
        """Return whether there is a dout."""
        return len(self.layouts) > 3

    @property
    def macros(self) -> dict[str, Any]:
        """The macros that the kernels of all families share."""
        mask = types(bool_ if self.mask is None else self.mask)
        flags = {"DROPOUT": self.dropout, "STATE_ON_DEVICE": self.state_on_device, "BACKWARD": self.is_backward}
        return {
            **types(self.dtype), "MASK": 0 if self.mask is None else 1 if self.mask == bool_ else 2,
            "MASK_T": mask["T"], "MASK_LOAD": mask["LOAD"], "D": self.lengths[0],
            **{name: int(flag) for name, flag in flags.items()},
        }  # fmt: skip


class NewRows(NamedTuple):
    """Rows (B, H, 1, D) that are to be stored in k and v, and their position: a number, and an int32 (1,) if needed."""

    k: Buffer
    v: Buffer
    position: int
    place: Buffer | None


class Call(NamedTuple):
    """One pass: q, k, v, mask and, in the backward pass, dout, all broadcast, with the kernels' other arguments.

    Attributes:
        at: The layouts of the inputs, then of out and, in the backward pass, of the gradients of q, k and v.
        numbers: The last arguments of every kernel: inner, t, s, causal, scale, STATE, threshold, kept, group.
        new: Rows that are to be stored in k and v first; None for none.
    """

    problem: Problem
    inputs: tuple[Buffer, ...]
    at: tuple[bytes, ...]
    numbers: tuple[Any, ...]
    new: NewRows | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments for q, k, v and mask."""
        q, k, v, mask = self.inputs[:4]
        at = self.at
        return q.memory, at[0], k.memory, at[1], v.memory, at[2], mask.memory, at[3], mask.strides[-1]

    @property
    def new_arguments(self) -> tuple[Any, ...]:
        """The arguments for new rows, of kernels that can store some."""
        if self.new is None:
            return NO_ROWS
        k, v, position, _ = self.new
        at = [layout(row.offset, row.strides[0], row.strides[1], 0) for row in (k, v)]
        return k.memory, at[0], v.memory, at[1], k.shape[1], position


class CpuTile(NamedTuple):
    """The macros of attention_cpu.cl for how scores are tiled."""

    BQ: int
    BK: int
    ROWS: int
    LANES: int
    VECTORS: int


class GpuTile(NamedTuple):
    """The macros of attention_gpu.cl for how scores are tiled."""

    OWN: int
    STREAM: int
    TX: int
    TY: int


# Largest first.
CPU_SIDES = (64, 32, 16, 8)
GPU_TILES = tuple(GpuTile(*tile) for tile in ((64, 32, 8, 16), (32, 32, 8, 8), (16, 16, 8, 8), (8, 8, 8, 8)))


def forward(device: Device, call: Call, out: Buffer) -> Buffer:
    """Write out, and return the log-sum-exp of each row of scores."""
    p = call.problem
    program, tile = device.plans[_program](p)
    lse = device.empty(Spec((p.batch, p.t), wide(p.dtype)))
    work, group = _launch(tile, p.t, p.batch)
    program.attention_forward(work, group, *call.arguments, out.memory, call.at[4], lse.memory, *call.numbers)
    return lse


def backward(
    device: Device, call: Call, out: Buffer, lse: Buffer, gradients: tuple[Buffer, ...], wanted: tuple[bool, ...]
) -> None:
    """Write the gradients of q, k and v, as far as they are wanted."""
    choose(device, "attention backward", BACKWARD, call, out, lse, gradients, wanted)


def _backward_on_cpu(
    device: Device, call: Call, out: Buffer, lse: Buffer, gradients: tuple[Buffer, ...], wanted: tuple[bool, ...]
) -> tuple[Buffer, ...]:
    """Launch one kernel for all three gradients; if batches are few, keys are split, and a second one adds up dq."""
    (dq, dk, dv), p, at = gradients, call.problem, call.at
    program, tile = device.plans[_program](p)
    enough = device.features.compute_units * ITEMS_PER_CORE
    parts = max(1, min(-(-p.s // tile.BK), -(-enough // max(p.batch, 1))))
    partial, partial_at = dq, at[6]
    direct = parts == 1 and dq.dtype == wide(dq.dtype)
    if not direct:
        partial = device.empty(Spec((parts, p.batch, p.t, dq.shape[-1]), wide(dq.dtype)))
        partial_at = layout(0, p.inner * partial.strides[1], *partial.strides[1:3])
    program.attention_backward(
        (p.batch, parts), (1, 1), *call.arguments, out.memory, at[5], call.inputs[4].memory, at[4], lse.memory,
        partial.memory, partial_at, partial.size // parts, dk.memory, at[7], dv.memory, at[8], *call.numbers,
    )  # fmt: skip
    if not direct:
        joined = partial.memory, parts, dq.memory, at[6], p.inner, p.t
        program.attention_join((p.t, p.batch), (1, 1), *joined)
    return gradients


def _backward_on_gpu(
    device: Device, call: Call, out: Buffer, lse: Buffer, gradients: tuple[Buffer, ...], wanted: tuple[bool, ...]
) -> tuple[Buffer, ...]:
    """Launch three kernels: sum(dout out) per row, dq by blocks of queries, dk and dv by blocks of keys."""
    (dq, dk, dv), p, at = gradients, call.problem, call.at
    program, tile = device.plans[_program](p)
    dout, delta = (call.inputs[4].memory, at[4]), device.empty(Spec(lse.shape, lse.dtype))
    items = tile.TX * tile.TY
    work = -(-p.t // items) * items, p.batch
    program.attention_delta(work, (items, 1), out.memory, at[5], *dout, delta.memory, p.inner, p.t)
    shared, results = (*call.arguments, *dout, lse.memory, delta.memory), (dk.memory, at[7], dv.memory, at[8])
    if wanted[0]:
        program.attention_backward_q(*_launch(tile, p.t, p.batch), *shared, dq.memory, at[6], *call.numbers)
    if any(wanted[1:3]):
        program.attention_backward_kv(*_launch(tile, p.s, p.batch), *shared, *results, *call.numbers)
    return gradients


def _launch(tile: CpuTile | GpuTile, rows: int, batch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the global and the local size for one work-group per block of rows."""
    if isinstance(tile, CpuTile):
        return (-(-rows // tile.BQ), batch), (1, 1)
    items = tile.TX * tile.TY
    return (-(-rows // tile.OWN) * items, batch), (items, 1)


def _program(device: Device, p: Problem) -> tuple[Program, CpuTile | GpuTile]:
    """Return the kernels and their tile."""
    (tile,) = device.plans[tiles](p.dtype, p.t, p.s, p.lengths, p.is_backward)
    macros = {**p.macros, "DV": p.lengths[1], **tile._asdict()}
    if type(tile) is GpuTile:
        macros["VECTOR"] = int(_in_fours(p))
    return device.build(f"attention_{device.geometry.kind}", **macros), tile


def tiles(
    device: Device, dtype: np.dtype, t: int, s: int, lengths: tuple[int, int], backward: bool
) -> tuple[CpuTile | GpuTile]:
    """Return the best known tile: the measured one for attention like this, else the largest that fits."""
    found = best(device, "attention", dtype, shape_class(t, s, lengths, backward))
    return (found or _tile(device, dtype.itemsize, t, lengths, backward=backward),)


def shape_class(t: int, s: int, lengths: tuple[int, int], backward: bool) -> str:
    """Return the key of tuned parameters: queries and keys rounded to powers of two, and row lengths."""
    near = [2 ** round(log2(max(length, 1))) for length in (t, s)]
    return f"{'backward' if backward else 'forward'} {' x '.join(map(str, (*near, *dict.fromkeys(lengths))))}"


def _in_fours(p: Problem) -> bool:
    """Return whether rows are float32 and consist of aligned groups of 4."""
    steps = [step for packed in p.layouts for step in struct.unpack("3q", packed)]
    return p.dtype == float32 and p.is_aligned and not any(n % 4 for n in (*p.lengths, *steps))


def fits(device: Device, itemsize: int, t: int, lengths: tuple[int, int]) -> bool:
    """Return whether there are tiles for both passes."""
    return all(_tile(device, itemsize, t, lengths, backward=backward) for backward in (False, True))


def _tile(device: Device, itemsize: int, t: int, lengths: tuple[int, int], *, backward: bool) -> Any:
    """Return the tile for t queries and these row lengths; None if none fits, where some drivers would crash."""
    return choose(device, "attention tile", TILES, max(4, itemsize), t, lengths, backward)


def _cpu_tile(device: Device, itemsize: int, t: int, lengths: tuple[int, int], backward: bool) -> CpuTile | None:
    """Return the largest tile that fits, with full vectors unless short rows or few queries would leave them empty."""
    lanes = max(4, vector_width(device) * 4 // itemsize)
    rows = 8 if vector_width(device) == 16 and not backward else 4  # accumulators for 32 or for 16 registers
    while lanes > 4 and (lanes >= max(lengths) or (not backward and lanes >= t)):
        lanes //= 2
    for side in CPU_SIDES if t > 128 else CPU_SIDES[1:]:
        own = min(lanes, side // 2)
        tile = CpuTile(BQ=2 * own if t <= 2 * own else side, BK=side, ROWS=rows, LANES=own, VECTORS=2)
        if cpu_bytes(tile, itemsize, lengths, backward) <= device.features.local_memory:
            return tile
    return None


def _gpu_tile(device: Device, itemsize: int, t: int, lengths: tuple[int, int], backward: bool) -> GpuTile | None:
    """Return the largest tile that fits into local memory and that few queries do not leave mostly empty."""
    room = min(device.features.local_memory, LOCAL_MEMORY)
    fitting = [tile for tile in GPU_TILES if gpu_bytes(tile, itemsize, lengths, backward) <= room]
    return next((tile for tile in fitting if backward or tile.OWN <= max(16, t)), None)


def cpu_bytes(tile: CpuTile, itemsize: int, lengths: tuple[int, int], backward: bool) -> int:
    """Return an upper bound of the local memory that the kernels of attention_cpu.cl declare."""
    panel, queries, keys = tile.LANES * tile.VECTORS, tile.BQ, tile.BK
    q_width, v_width = (-(-n // panel) * panel for n in lengths)
    if backward:
        rows_of_q, rows_of_v = 2 * queries + 3 * keys, queries + 2 * keys
        return itemsize * (rows_of_q * q_width + rows_of_v * v_width + 2 * queries * keys) + ALIGNMENT
    return itemsize * ((queries + keys) * (q_width + v_width) + queries * keys) + ALIGNMENT


def gpu_bytes(tile: GpuTile, itemsize: int, lengths: tuple[int, int], backward: bool) -> int:
    """Return an upper bound of the local memory that the kernels of attention_gpu.cl declare."""
    q_width, v_width = (-(-n // (4 * tile.TX)) * 4 * tile.TX + 4 for n in lengths)
    scores = tile.OWN * (tile.STREAM + 4)
    if backward:
        return itemsize * ((tile.OWN + tile.STREAM) * (q_width + v_width) + scores + 2 * tile.STREAM)
    shared = max(scores, tile.STREAM * q_width)
    return itemsize * (tile.OWN * q_width + shared + tile.STREAM * v_width + tile.OWN * tile.TX)


TILES = (
    Variant("cpu tiles", "whole tiles in local memory, on CPUs", _cpu_tile, "cpu"),
    Variant("gpu tiles", "work-items that share a tile, on GPUs", _gpu_tile, "gpu"),
)
BACKWARD = (
    Variant("one pass", "one kernel, keys split if batches are few, on CPUs", _backward_on_cpu, "cpu"),
    Variant("two passes", "dq by blocks of queries, dk and dv by blocks of keys, on GPUs", _backward_on_gpu, "gpu"),
)


def layout(offset: int, outer: int, inner: int, row: int) -> bytes:
    """Return a long4 for the kernels."""
    return struct.pack("4q", offset, outer, inner, row)


NO_ROWS = None, layout(0, 0, 0, 0), None, layout(0, 0, 0, 0), 1, -1  # the arguments where there are no new rows
