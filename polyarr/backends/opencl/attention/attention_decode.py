"""Attention of one query, as when a token is generated. On GPUs work-groups share its keys."""

import struct

from polyarr.backends.opencl.attention.attention_tiled import Call, Problem, accumulated
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program, vector_types
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import NARROW, Spec

ITEMS, LANES = 128, (8, 16)  # work-items of a GPU's group, and of those that take a row together
MOST_KEYS, FEWEST_KEYS = 256, 64  # of a GPU's group
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


def _on_gpu(device: Device, call: Call, out: Buffer, lse: Buffer) -> None:
    """Groups that take some of the keys each, and one for each query that joins what they found."""
    p, scale, group = call.problem, call.numbers[4], (ITEMS, 1)
    program, found = device.plans[_gpu_program](p)
    pieces, parts = device.empty(found), found.shape[1]
    program.attention_decode((parts * ITEMS, p.batch), group, *call.arguments, pieces.memory, p.inner, p.s, scale)
    results = out.memory, call.at[4], lse.memory
    program.attention_join((ITEMS, p.batch), group, pieces.memory, parts, *results, p.inner)


def _gpu_program(device: Device, p: Problem) -> tuple[Program, Spec]:
    """The kernels, and the Spec of what they find, from which follows how many keys a work-group takes."""
    keys = MOST_KEYS  # few where there are few batches
    while keys > FEWEST_KEYS and -(-p.s // keys) * p.batch < GROUPS_PER_UNIT * device.features.compute_units:
        keys //= 2
    vector = device.geometry.vector(p.dtype.itemsize)
    steps = *p.lengths, *(step for at in p.layouts for step in struct.unpack("3q", at))
    if not p.is_aligned or any(step % vector for step in steps):
        vector = 1
    lanes = next((n for n in LANES if n * vector >= max(p.lengths)), LANES[-1])
    sizes = {"DV": p.lengths[1], "KEYS": keys, "WG": ITEMS, "LANES": lanes, "VECTOR": vector}
    program = device.build("attention_decode_gpu", **p.macros, **sizes, **vector_types(p.dtype, vector))
    return program, Spec((p.batch, -(-p.s // keys), p.lengths[1] + 2), accumulated(p.dtype))


FAMILIES = {"cpu": _on_cpu, "gpu": _on_gpu}
