"""Attention of one query, as when a token is generated. On GPUs work-groups share its keys where there are many."""

import struct
from typing import NamedTuple

from polyarr.backends.opencl.attention.attention_tiled import LOCAL_MEMORY, Call, Problem, accumulated
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program, vector_types
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import NARROW, Spec

ITEMS, LANES = 256, (8, 16)  # work-items of a GPU's group, and of those that take a row together
MOST_ITEMS, AHEAD = 1024, 4  # of a group that takes all keys; rows that work-items ask for at once
LEAST_WHOLE, MOST_WHOLE = 64, 256  # keys that one group takes: more are read sooner by several
MOST_KEYS, FEWEST_KEYS = 256, 128  # of a GPU's group that takes some
GROUPS_PER_UNIT = 4  # from when on more work-groups gain nothing
BLOCK = 64  # keys that a CPU takes at a time
LONGEST = 512  # row: a lane holds its share of one in registers


def takes(p: Problem) -> bool:
    """True if there is one query: tiles would be almost empty."""
    return p.t == 1 and 0 < p.s and 0 < p.batch and max(p.lengths) <= LONGEST and not p.dropout


def forward(device: Device, call: Call, out: Buffer) -> Buffer:
    """Write out; the logarithm of the sum of the exponentials of each row of scores."""
    lse = device.empty(Spec((call.problem.batch, 1), accumulated(call.problem.dtype)))
    FAMILIES[device.geometry.kind](device, call, out, lse)
    return lse


def _on_cpu(device: Device, call: Call, out: Buffer, lse: Buffer) -> None:
    """A work-item for each query."""
    p, scale = call.problem, call.numbers[4]
    results = out.memory, call.at[4], lse.memory
    program = device.plans[_cpu_program](p)
    program.attention_decode((p.batch,), (1,), *call.arguments, *results, p.inner, p.s, scale)


def _cpu_program(device: Device, p: Problem) -> Program:
    lanes = vector_width(device) * 4 // max(4, p.dtype.itemsize)
    sizes = {"DV": p.lengths[1], "BLOCK": BLOCK, "LANES": lanes, "NARROW": int(p.dtype in NARROW)}
    return device.build("attention_decode_cpu", **p.macros, **sizes)


class GpuCut(NamedTuple):
    """The kernels, the work-items of a group, and how many groups there are for a query."""

    program: Program
    items: int
    parts: int


def _on_gpu(device: Device, call: Call, out: Buffer, lse: Buffer) -> None:
    """A group for each query; or groups that take some of the keys each, and one that joins what they found."""
    p, scale = call.problem, call.numbers[4]
    program, items, parts = device.plans[_gpu_cut](p)
    results, pieces = (out.memory, call.at[4], lse.memory), None
    if parts > 1:
        pieces = device.empty(Spec((p.batch, parts, p.lengths[1] + 2), accumulated(p.dtype))).memory
    numbers = p.inner, p.s, scale
    program.attention_decode((parts * items, p.batch), (items, 1), *call.arguments, pieces, *results, *numbers)
    if parts > 1:
        program.attention_join((items, p.batch), (items, 1), pieces, parts, *results, p.inner)


def _gpu_cut(device: Device, p: Problem) -> GpuCut:
    vector = device.geometry.vector(p.dtype.itemsize)
    steps = *p.lengths, *(step for at in p.layouts[1:3] for step in struct.unpack("3q", at))  # of k and v
    if not p.is_aligned or any(step % vector for step in steps):
        vector = 1
    lanes = next((n for n in LANES if n * vector >= max(p.lengths)), LANES[-1])
    keys, items = _some_keys(device, p), ITEMS
    if p.s <= MOST_WHOLE:
        keys = max(1 << (p.s - 1).bit_length(), LEAST_WHOLE)
        items = min(keys * lanes // AHEAD, MOST_ITEMS, device.features.max_work_group)
        room = min(device.features.local_memory, LOCAL_MEMORY)
        while items > LEAST_WHOLE and _gpu_bytes(p, keys, items, lanes) > room:
            items //= 2
    parts = -(-p.s // keys)
    sizes = {
        "DV": p.lengths[1], "KEYS": keys, "WHOLE": int(parts == 1), "WG": items, "LANES": lanes, "AHEAD": AHEAD,
        "PARTS": 1 << (parts - 1).bit_length(),
        "VECTOR": vector,
    }  # fmt: skip
    program = device.build("attention_decode_gpu", **p.macros, **sizes, **vector_types(p.dtype, vector))
    return GpuCut(program, items, parts)


def _some_keys(device: Device, p: Problem) -> int:
    """Keys of a group where groups share them: few where there are few batches."""
    keys = MOST_KEYS
    while keys > FEWEST_KEYS and -(-p.s // keys) * p.batch < GROUPS_PER_UNIT * device.features.compute_units:
        keys //= 2
    return keys


def _gpu_bytes(p: Problem, keys: int, items: int, lanes: int) -> int:
    """Of local memory."""
    teams = items // lanes
    numbers = max(AHEAD * teams * (lanes + 1), teams * p.lengths[1]) + keys + items + teams
    return numbers * accumulated(p.dtype).itemsize


FAMILIES = {"cpu": _on_cpu, "gpu": _on_gpu}
