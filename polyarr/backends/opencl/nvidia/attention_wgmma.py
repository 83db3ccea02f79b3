"""Attention on the matrix units of NVIDIA's Hopper (wgmma): which problems, its launches, and its checks.

The operands are 16-bit floats, or float32 split into bfloat16 terms (see split.py): three, or two if the caller accepts
lower precision.
"""

import struct
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.attention.attention_reference import attention, survivors
from polyarr.backends.opencl.attention.attention_tiled import Call, Problem, layout
from polyarr.backends.opencl.nvidia.attention_split import (
    ARRAYS,
    COLUMNS,
    batches,
    padded,
    split,
    split_bytes,
    tensors,
    walks,
)
from polyarr.backends.opencl.nvidia.product_check import RELATIVE
from polyarr.backends.opencl.nvidia.tensor_map import ALIGNMENT, LARGEST_STEP, WORDS, tensor_map
from polyarr.backends.opencl.nvidia.wgmma import KINDS, WORKSPACE_FRACTION
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32
from polyarr.core.spec import bool as bool_

TILE, ITEMS = 64, 128  # rows of a tile, work-items of a work-group
FORWARD_ITEMS = ITEMS + 32  # with the warp that loads
MAX_ROW, MAX_SPLIT_ROW = 128, 64  # longest rows whose sums fit into registers
MIN_SPLIT_SIZE = 2**28  # multiply-adds of q k^T from which on splitting float32 pays off
MIN_QUERIES = 16  # with fewer, a tile is mostly empty
COLUMNS_AT_ONCE = 8  # stored by one instruction
MAPS = 1  # the argument that the kernels write before they wait for the one before them
DTYPES = bfloat16, float16
PASSES = {False: ("out",), True: ("dq", "dk", "dv")}  # the results of each pass
ERROR = 2  # in roundings of the largest result; weights are rounded, too
SPLIT_ERROR = {2: 2.0**-14, 3: 2.0**-19}  # by the number of terms, relative to the largest result

LONG = 2048  # keys from which on slots of 16-bit tiles of 64 columns hold two


class Occupancy(NamedTuple):
    """How a multiprocessor is used.

    Attributes:
        groups: Work-groups per multiprocessor: forward, and backward for keys and for queries.
        stages: Pairs of tiles in flight, backward for keys and for queries.
        slots: Parts of the forward kernel's ring, of keys and values by turns.
        wide: Tiles of a slot.
    """

    groups: tuple[int, int, int]
    stages: tuple[int, int]
    slots: int
    wide: int = 1


# By terms and row length (up to 64 or 128).
OCCUPANCY = {
    (1, 64): Occupancy((4, 3, 4), (2, 2), slots=5), (1, 128): Occupancy((2, 2, 2), (2, 2), slots=3, wide=2),
    (2, 64): Occupancy((3, 2, 3), (2, 1), slots=2), (3, 64): Occupancy((3, 2, 2), (1, 1), slots=2),
}  # fmt: skip
OF_MANY_KEYS = OCCUPANCY[1, 64]._replace(groups=(3, 3, 4), slots=4, wide=2)


class Plan(NamedTuple):
    """Kernels, and the tensor maps without addresses.

    Attributes:
        program: The compiled kernels.
        plans: The tensor maps without addresses, on the device.
        maps: Places of the work-groups' tensor maps, of which each launch takes the next.
        walks: Bits that say which leading axes the arrays have.
        units: The device's multiprocessors.
    """

    program: Program
    plans: Any
    maps: Iterator[Any]
    walks: int
    units: int

    def forward(self, device: Device, call: Call, out: Buffer) -> Buffer:
        """Write out, and return the base-2 log-sum-exp of each row, in rows of whole tiles."""
        p, program, terms = call.problem, self.program, split(device, call, self.walks)
        lse = device.empty(Spec((p.batch, _padded(p.t)), float32))
        results = out.memory, call.at[4], lse.memory
        shared = self._shared(call, terms)
        work = self._work(p, p.t, 0, FORWARD_ITEMS)
        program.attention_forward(work, (FORWARD_ITEMS,), *shared, *results, p.batch, *call.numbers)
        return lse

    def backward(
        self, device: Device, call: Call, out: Buffer, lse: Buffer, gradients: tuple[Buffer, ...],
        wanted: tuple[bool, ...],
    ) -> None:  # fmt: skip
        """Write the gradients of q, k and v, as far as they are wanted."""
        p, at, program, (dq, dk, dv) = call.problem, call.at, self.program, gradients
        delta, terms = device.empty(Spec(lse.shape, float32)), split(device, call, self.walks)
        inputs = call.inputs[4].memory, at[4], out.memory, at[5], delta.memory, p.batch, p.inner, p.t
        items = -(-lse.size * 8 // ITEMS) * ITEMS
        program.attention_delta((items,), (ITEMS,), *inputs)
        shared = *self._shared(call, terms), lse.memory, delta.memory
        if any(wanted[1:3]):
            both = dk.memory, at[7], dv.memory, at[8]
            program.attention_backward_kv(self._work(p, p.s, 1), (ITEMS,), *shared, *both, p.batch, *call.numbers)
        if wanted[0]:
            results = dq.memory, at[6]
            program.attention_backward_q(self._work(p, p.t, 2), (ITEMS,), *shared, *results, p.batch, *call.numbers)

    def _shared(self, call: Call, terms: list[Any]) -> Iterator[Any]:
        """Yield the arguments with which all kernels but attention_delta begin."""
        mask = call.inputs[3]
        yield from (self.plans, next(self.maps))
        for operand in padded([(x, 0) for x in terms]) if terms else [(x.memory, x.offset) for x in tensors(call)]:
            yield from operand
        yield from (self.walks, mask.memory, call.at[3], mask.strides[-1])

    def _work(self, p: Problem, rows: int, kernel: int, items: int = ITEMS) -> tuple[int]:
        """Return the work-items of a kernel: as many work-groups as the device holds, or as there are blocks."""
        return (min(_padded(rows) // TILE * p.batch, self.units * _occupancy(p).groups[kernel]) * items,)


def _padded(rows: int) -> int:
    return -(-rows // TILE) * TILE


# ---- the plan ----------------------------------------------------------------------------------------------------


def accepts(p: Problem) -> bool:
    """Return whether TMA can copy tiles of all arrays: all axes but the last have strides of whole 16 bytes."""
    size, (length, value_length) = p.dtype.itemsize, p.lengths
    steps = [step for packed in p.layouts for step in struct.unpack("3q", packed)]
    return (
        (p.dtype in DTYPES or p.terms > 1) and length == value_length and length % COLUMNS_AT_ONCE == 0
        and 0 < length <= (MAX_ROW if p.terms == 1 else MAX_SPLIT_ROW)
        and p.t >= MIN_QUERIES and p.s > 0 and p.batch > 0 and p.is_aligned and p.scale_is_positive
        and all(step >= 0 and step * size % ALIGNMENT == 0 and step * size < LARGEST_STEP for step in steps)
        and all(steps[2::3])
    )  # fmt: skip


def plan(device: Device, p: Problem) -> Plan | None:
    """Plan a problem; None if these kernels do not accept it or fail their check on this device."""
    if not is_sound(device, VARIANT) or not accepts(p):
        return None
    if p.terms > 1 and p.batch * p.t * p.s * p.lengths[0] < MIN_SPLIT_SIZE:
        return None
    if p.terms > 1 and split_bytes(p) > device.features.global_memory // WORKSPACE_FRACTION:
        return None
    macros = _macros(p)
    sound = is_sound_program(device, VARIANT, macros, partial(_check, device, p))
    return _planned(device, p) if sound else None


def _macros(p: Problem) -> dict[str, Any]:
    held = _occupancy(p)
    counts: dict[str, Any] = dict(zip(("GROUPS_FORWARD", "GROUPS_KEYS", "GROUPS_QUERIES"), held.groups, strict=True))
    counts |= {"STAGES_KEYS": held.stages[0], "STAGES_QUERIES": held.stages[1], "SLOTS": held.slots, "WIDE": held.wide}
    return {**p.macros, "KIND": KINDS[_stored(p)], "COLUMNS": TILE, "TERMS": p.terms, **counts}


def _occupancy(p: Problem) -> Occupancy:
    found = OCCUPANCY[p.terms, 64 if p.lengths[0] <= 64 else 128]
    return OF_MANY_KEYS if found is OCCUPANCY[1, 64] and p.s >= LONG and not p.is_backward else found


def _stored(p: Problem) -> np.dtype:
    """Return the dtype of the matrix units' operands."""
    return p.dtype if p.terms == 1 else bfloat16


def _planned(device: Device, p: Problem, units: int | None = None) -> Plan:
    """Plan for the work-groups of so many multiprocessors, or else of all: the fewer, the more blocks has each."""
    steps = [struct.unpack("3q", packed) for packed in p.layouts]
    plans = [_map(p, *found) for found in zip(steps, batches(p), strict=True)]
    program = device.build(VARIANT.stem, **_macros(p))
    for name in program.kernels.keys() - {"attention_delta"}:
        program.kernels[name].uses_early = (MAPS,)
    plans_there = device.upload(np.concatenate(padded(plans))).memory
    return Plan(program, plans_there, device.plans[_maps](), walks(p), units or device.features.compute_units)


def _map(p: Problem, steps: tuple[int, int, int], found: tuple[tuple[int, int], int]) -> np.ndarray:
    """Return the tensor map of an array, or of its split terms, in tiles of 64 x 64; a broadcast axis has length 1."""
    (outer, inner, row), (batch, rows) = steps, found
    columns = p.lengths[0]
    if p.terms > 1:
        columns = row = p.terms * COLUMNS
        inner, outer = rows * row, batch[0] * rows * row
    strides = (2 * row, 2 * inner or ALIGNMENT, 2 * outer or ALIGNMENT)
    return tensor_map(_stored(p), (columns, rows, *batch), strides, (TILE, TILE, 1, 1))


def _maps(device: Device) -> Iterator[Any]:
    """Allocate two places where work-groups complete the tensor maps with addresses."""
    groups = max(max(held.groups) for held in OCCUPANCY.values()) * device.features.compute_units
    return cycle([device.empty_words(2 * ARRAYS * WORDS * groups) for _ in range(2)])


# ---- the check of a program, and the trial -----------------------------------------------------------------------

LENGTHS = 131, 203  # t and s of the check; s is longer by LONG for the kernel of many keys
BATCH, SCALE = 3, 0.125
STATE, RATE = (5, 7), 0.25  # key and counter of the random numbers, and the rate of dropout


def _check(device: Device, p: Problem) -> None:
    """Run a program on small odd arrays between canaries, and compare with NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the results was written.
    """
    arrays = _arrays(p)
    device.plans[_maps]()  # it is kept, so it must not lie between canaries
    for causal in (0, 1):
        expected = _expected(p, arrays, causal)
        with device.guarded():
            found = _run(device, _small(p), arrays, causal)
        for name, ours, theirs in zip(PASSES[p.is_backward], found, expected, strict=True):
            relative = SPLIT_ERROR[p.terms] if p.terms > 1 else ERROR * RELATIVE[p.dtype]
            error, most = np.abs(ours.astype(float) - theirs).max(), relative * np.abs(theirs).max()
            if not error <= most:  # a nan is wrong, too
                raise BackendError(f"attention's {name} is wrong by {error:.1e}, causal {causal}; at most {most:.1e}")


def _lengths(p: Problem) -> tuple[int, int]:
    t, s = LENGTHS
    return t, s + LONG if _occupancy(p) is OF_MANY_KEYS else s


def _small(p: Problem) -> Problem:
    t, s = _lengths(p)
    pitch = _pitch(p)
    layouts = tuple(struct.pack("3q", 0, rows * pitch, pitch) for rows in (t, s, s, t))[: len(p.layouts)]
    return p._replace(batch=BATCH, inner=BATCH, t=t, s=s, layouts=layouts, group=1)


def _pitch(p: Problem) -> int:
    return p.lengths[0] + ALIGNMENT // 2


def _arrays(p: Problem) -> list[np.ndarray | None]:
    """Return q, k, v, mask and dout; rows are padded with nan that no kernel may read."""
    generator, length, (t, s) = np.random.default_rng(0), p.lengths[0], _lengths(p)
    stored = []
    for rows in (t, s, s, t):
        x = np.full((BATCH, rows, _pitch(p)), np.nan, p.dtype)
        x[:, :, :length] = generator.standard_normal((BATCH, rows, length))
        stored.append(x)
    mask = None
    if p.mask is not None:
        noise = generator.standard_normal((t, s))
        mask = noise > 0 if p.mask == bool_ else noise.astype(p.mask)
    return [*stored[:3], mask, stored[3]]


def _expected(p: Problem, arrays: list[Any], causal: int) -> list[np.ndarray]:
    """Return the results of a pass, in float64."""
    q, k, v, dout = (arrays[i][..., : p.lengths[0]] for i in (0, 1, 2, 4))
    kept = survivors((BATCH, *_lengths(p)), *STATE, RATE) / (1 - RATE) if p.dropout else 1.0
    found = attention(q, k, v, dout, arrays[3], bool(causal), SCALE, kept)
    return [getattr(found, name) for name in PASSES[p.is_backward]]


def _run(device: Device, p: Problem, arrays: list[Any], causal: int) -> list[np.ndarray]:
    """Return the results of a pass by these kernels."""
    length, (t, s) = p.lengths[0], _lengths(p)
    bufs: list[Any] = [None if a is None else device.upload(a) for a in arrays]
    q, k, v, mask, dout = [b if i == 3 else b._replace(shape=(*b.shape[:2], length)) for i, b in enumerate(bufs)]
    out = device.empty(Spec((BATCH, t, length), p.dtype))
    gradients = [device.empty(Spec((BATCH, rows, length), p.dtype)) for rows in (t, s, s)]
    at = [layout(0, 0, *x.strides[:2]) for x in (q, k, v, dout, out, *gradients)]
    mask_at = layout(0, 0, 0, s)
    words = [device.upload(np.array([word], np.uint64)).memory for word in STATE]
    state = (0, 0, *words) if p.state_on_device else (*STATE, *words)
    numbers = BATCH, t, s, causal, SCALE, *state, round(RATE * 2**24), 1 / (1 - RATE) if p.dropout else 1.0, 1
    forward_p = p._replace(layouts=p.layouts[:3])
    call = Call(forward_p, (q, k, v, mask or q), (*at[:3], mask_at, at[4]), numbers)
    lse = _planned(device, forward_p, units=1).forward(device, call, out)
    if not p.is_backward:
        return [device.download(out)]
    call = Call(p, (q, k, v, mask or q, dout), (*at[:3], mask_at, *at[3:]), numbers)
    _planned(device, p, units=1).backward(device, call, out, lse, tuple(gradients), (True, True, True))
    return [device.download(g) for g in gradients]


def _trial(device: Device) -> None:
    """Check both passes in all dtypes, with short and long rows, masks and dropout.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    cases = (
        (bfloat16, 64, None, False, 1, 0), (float16, 128, bool_, True, 1, 0), (bfloat16, 40, float32, False, 1, 0),
        (bfloat16, 64, None, False, 1, LONG), (float32, 64, None, False, 2, 0), (float32, 40, bool_, True, 2, 0),
        (float32, 64, bool_, True, 3, 0),
    )  # fmt: skip
    for dtype, length, mask, dropout, terms, more in cases:
        for arrays in (3, 4):
            layouts, lengths = (b"",) * arrays, (length, length)
            t, s = LENGTHS
            p = Problem(dtype, mask, 1, 1, t, s + more, lengths, layouts, True, False, True, dropout, False, terms)
            _check(device, p)


VARIANT = Variant(
    "wgmma-attention", "at least 16 queries, rows of up to 128 (float32: 64), on Hopper", plan,
    may_suit=lambda features: features.architecture == 90, stem="attention_wgmma", trial=_trial, tells_precision=True,
)  # fmt: skip
