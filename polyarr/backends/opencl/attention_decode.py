"""Attention of one query, as when a token is generated: on GPUs work-groups share its keys."""

from polyarr.backends.opencl.attention_tiled import Call, Problem, accumulated
from polyarr.backends.opencl.device import Device
from polyarr.backends.opencl.layout import Buffer
from polyarr.backends.opencl.program import Program
from polyarr.core.spec import Spec

ITEMS, LANES = 128, 16  # work-items of a group, and of those that take a row together
MOST_KEYS, FEWEST_KEYS = 256, 64  # of a work-group
GROUPS_PER_UNIT = 4  # from when on more work-groups gain nothing
LONGEST = 512  # row: a lane holds its share of one in registers


def takes(device: Device, p: Problem) -> bool:
    """True if there is one query, and a GPU that it would leave idle."""
    fits = 0 < p.s and 0 < p.batch and max(p.lengths) <= LONGEST
    return device.geometry.kind == "gpu" and p.t == 1 and fits and not p.dropout


def forward(device: Device, call: Call, out: Buffer) -> Buffer:
    """Write out; the logarithm of the sum of the exponentials of each row of scores."""
    p, at, numbers = call.problem, call.at, call.numbers
    program, keys = device.plans[_program](p)
    parts, sums = -(-p.s // keys), accumulated(p.dtype)
    lse, pieces = device.empty(Spec((p.batch, 1), sums)), device.empty(Spec((p.batch, parts, p.lengths[1] + 2), sums))
    scale = numbers[4]
    group = ITEMS, 1
    program.attention_decode((parts * ITEMS, p.batch), group, *call.arguments, pieces.memory, p.inner, p.s, scale)
    program.attention_join((ITEMS, p.batch), group, pieces.memory, parts, out.memory, at[4], lse.memory, p.inner)
    return lse


def _program(device: Device, p: Problem) -> tuple[Program, int]:
    """The kernels, and how many keys a work-group takes: few where there are few batches."""
    keys = MOST_KEYS
    while keys > FEWEST_KEYS and -(-p.s // keys) * p.batch < GROUPS_PER_UNIT * device.features.compute_units:
        keys //= 2
    return device.build("attention_decode", **p.macros, DV=p.lengths[1], KEYS=keys, WG=ITEMS, LANES=LANES), keys
