"""Decode attention: few queries, such as those that share keys in grouped-query attention.

On GPUs, work-groups share the keys (split-KV) if there are many.
"""

import struct
from typing import Any, NamedTuple

from polyarr.backends.opencl.attention.attention_tiled import LOCAL_MEMORY, Call, Problem
from polyarr.backends.opencl.rows.rows import wide
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program, vector_types
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import NARROW, Spec

ITEMS, LANES = 256, (8, 16)  # work-items of a GPU's work-group, and of those that share a row
MAX_ITEMS, AHEAD = 1024, 4  # work-items of a group that takes all keys; rows that a work-item loads at once
MIN_WHOLE_KEYS, MAX_WHOLE_KEYS = 64, 256  # keys that one work-group takes; with more, several are faster
MAX_KEYS, MIN_KEYS = 256, 128  # keys of a work-group, where several share them
GROUPS_PER_UNIT = 4  # beyond this, more work-groups gain nothing
BLOCK = 64  # keys that a CPU takes at a time
MAX_ROW = 512  # longest row: a lane holds its share in registers
MAX_QUERIES = 8  # of a batch entry; each reads the keys, from cache after the first


def accepts(p: Problem) -> bool:
    """Return whether there are so few queries that tiles would be almost empty, and these kernels accept them."""
    is_short = p.t == 1 or (1 < p.t <= MAX_QUERIES and not p.causal)
    return is_short and 0 < p.s and 0 < p.batch and max(p.lengths) <= MAX_ROW and not p.dropout


def can_store(device: Device) -> bool:
    """Return whether there are kernels for a device that store new rows, although they may decline some calls."""
    return device.geometry.kind == "cpu" or reads_places(device)


def reads_places(device: Device) -> bool:
    """Return whether those kernels read a position from memory.

    Then a replay sets it once, not in the launches of all layers.
    """
    return any(variant.may_suit(device.features) for variant in device.vendor.few_queries)


def forward(device: Device, call: Call, out: Buffer) -> Any:
    """Write out, and return the log-sum-exp of each row of scores; None if there are new rows that no kernel stores."""
    lse = device.empty(Spec((call.problem.batch, call.problem.t), wide(call.problem.dtype)))
    return choose(device, "decode attention", (*device.vendor.few_queries, *KERNELS), call, out, lse)


def _on_cpu(device: Device, call: Call, out: Buffer, lse: Buffer) -> Buffer | None:
    """Launch one work-item per query; None if several would have to store one row."""
    p, scale = call.problem, call.numbers[4]
    if call.new is not None and p.t > 1:
        return None
    results = out.memory, call.at[4], lse.memory
    program, numbers = device.plans[_cpu_program](p), (p.inner, p.group, p.t, p.s, scale)
    program.attention_decode((p.batch * p.t,), (1,), *call.arguments, *call.new_arguments, *results, *numbers)
    return lse


def _cpu_program(device: Device, p: Problem) -> Program:
    lanes = vector_width(device) * 4 // max(4, p.dtype.itemsize)
    sizes = {"DV": p.lengths[1], "BLOCK": BLOCK, "LANES": lanes, "NARROW": int(p.dtype in NARROW)}
    return device.build("attention_decode_cpu", **p.macros, **sizes)


class GpuCut(NamedTuple):
    """The kernels, the work-items of a work-group, and the work-groups per query."""

    program: Program
    items: int
    parts: int


def _on_gpu(device: Device, call: Call, out: Buffer, lse: Buffer) -> Buffer | None:
    """Launch one work-group per query; or several that take some of the keys each, and one that joins their results.

    Returns None if rows are to be stored.
    """
    if call.new is not None:
        return None
    p, scale = call.problem, call.numbers[4]
    program, items, parts = device.plans[_gpu_cut](p)
    results, pieces = (out.memory, call.at[4], lse.memory), None
    if parts > 1:
        pieces = device.empty(Spec((p.batch * p.t, parts, p.lengths[1] + 2), wide(p.dtype))).memory
    numbers = p.inner, p.group, p.t, p.s, scale
    program.attention_decode((parts * items, p.batch * p.t), (items, 1), *call.arguments, pieces, *results, *numbers)
    if parts > 1:
        program.attention_join((items, p.batch * p.t), (items, 1), pieces, parts, *results, p.inner, p.t)
    return lse


def _gpu_cut(device: Device, p: Problem) -> GpuCut:
    vector = device.geometry.vector(p.dtype.itemsize)
    steps = *p.lengths, *(step for at in p.layouts[1:3] for step in struct.unpack("3q", at))  # of k and v
    if not p.is_aligned or any(step % vector for step in steps):
        vector = 1
    lanes = next((n for n in LANES if n * vector >= max(p.lengths)), LANES[-1])
    keys, items = _keys_per_group(device, p), ITEMS
    if p.s <= MAX_WHOLE_KEYS:
        keys = max(1 << (p.s - 1).bit_length(), MIN_WHOLE_KEYS)
        items = min(keys * lanes // AHEAD, MAX_ITEMS, device.features.max_work_group)
        available = min(device.features.local_memory, LOCAL_MEMORY)
        while items > MIN_WHOLE_KEYS and _gpu_bytes(p, keys, items, lanes) > available:
            items //= 2
    parts = -(-p.s // keys)
    sizes = {
        "DV": p.lengths[1], "KEYS": keys, "WHOLE": int(parts == 1), "WG": items, "LANES": lanes, "AHEAD": AHEAD,
        "PARTS": 1 << (parts - 1).bit_length(),
        "VECTOR": vector,
    }  # fmt: skip
    program = device.build("attention_decode_gpu", **p.macros, **sizes, **vector_types(p.dtype, vector))
    return GpuCut(program, items, parts)


def _keys_per_group(device: Device, p: Problem) -> int:
    """Return the keys per work-group where several share them: fewer if batches are few."""
    keys = MAX_KEYS
    while keys > MIN_KEYS and -(-p.s // keys) * p.batch * p.t < GROUPS_PER_UNIT * device.features.compute_units:
        keys //= 2
    return keys


def _gpu_bytes(p: Problem, keys: int, items: int, lanes: int) -> int:
    """Return the bytes of local memory that the kernel needs."""
    rows = items // lanes
    numbers = max(AHEAD * rows * (lanes + 1), rows * p.lengths[1]) + keys + items + rows
    return numbers * wide(p.dtype).itemsize


KERNELS = (
    Variant("decode", "a work-item per query, on CPUs", _on_cpu, "cpu"),
    Variant("decode", "a work-group per query, or several that share the keys, on GPUs", _on_gpu, "gpu"),
)
