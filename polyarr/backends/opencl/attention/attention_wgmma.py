"""Attention on the matrix units of NVIDIA's Hopper: what it takes, its launches, how it is tried.

It takes 16-bit floats, and float32 in parts, see parts.py: three, or two for those who ask for less.
"""

import struct
from collections.abc import Iterator
from functools import partial
from math import log
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.attention import attention_tiled
from polyarr.backends.opencl.attention.attention_parts import (
    ARRAYS,
    COLUMNS,
    Parts,
    batches,
    divide,
    filled,
    make_parts,
    mapped,
    room,
    walks,
)
from polyarr.backends.opencl.attention.attention_reference import attention
from polyarr.backends.opencl.attention.attention_tiled import Call, Problem, layout
from polyarr.backends.opencl.elementwise import EXPRESSIONS, launch
from polyarr.backends.opencl.products.parts import DTYPES as PART_DTYPES
from polyarr.backends.opencl.products.parts import HALVES, THIRDS
from polyarr.backends.opencl.products.product_check import RELATIVE
from polyarr.backends.opencl.products.tensor_map import ALIGNMENT, LARGEST_STEP, WORDS, tensor_map
from polyarr.backends.opencl.products.wgmma import KINDS, MOST_ROOM
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer
from polyarr.backends.opencl.runtime.program import Program
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32
from polyarr.core.spec import bool as bool_

TILE, ITEMS = 64, 128  # rows of a tile, work-items of a group
LONGEST, LONGEST_IN_PARTS = 128, 64  # rows: more would not fit the registers
LEAST_DIVIDED = 2**28  # products of numbers in q k^T from when on dividing float32 into parts takes less than it saves
FEWEST_QUERIES = 16  # below, a tile is mostly empty
COLUMNS_AT_ONCE = 8  # that are stored
DTYPES = bfloat16, float16
PASSES = {False: ("out",), True: ("dq", "dk", "dv")}  # what each gives
ERROR = 2  # how many roundings of the largest result may be missing: weights are rounded, too
ERROR_IN_PARTS = {HALVES: 2.0**-17, THIRDS: 2.0**-19}  # of the largest result

# Work-groups that a multiprocessor holds, and tiles of the others that each holds: by parts, for rows up to 64 or 128.
KERNELS = "FORWARD", "KEYS", "QUERIES"
HELD = {
    (1, 64): ((4, 3, 4), (2, 2, 2)), (1, 128): ((2, 2, 2), (2, 2, 2)),
    (HALVES, 64): ((4, 2, 3), (1, 2, 1)), (THIRDS, 64): ((3, 2, 2), (1, 1, 1)),
}  # fmt: skip


class Plan(NamedTuple):
    """Kernels, and the maps of arrays without their addresses; walks says which leading axes the arrays have."""

    program: Program
    plans: Any
    maps: Any
    walks: int

    def forward(self, device: Device, call: Call, out: Buffer) -> Buffer:
        """Write out; the logarithms to base 2 of the rows' sums, in rows of whole tiles."""
        p, program, parts = call.problem, self.program, make_parts(device, call)
        lse = device.empty(Spec((p.batch, _padded(p.t)), float32))
        program.attention_maps((ITEMS,), (ITEMS,), *self._addressed(call, parts))
        divide(device, call, self.walks, parts)
        results = out.memory, call.at[4], lse.memory
        shared = self._shared(call, parts)
        program.attention_forward(_work(p, p.t), (ITEMS,), *shared, *results, p.batch, *call.numbers)
        return lse

    def backward(
        self, device: Device, call: Call, out: Buffer, lse: Buffer, gradients: tuple[Buffer, ...],
        wanted: tuple[bool, ...],
    ) -> None:  # fmt: skip
        """Write the gradients of q, k and v, as far as they are wanted."""
        p, at, program, (dq, dk, dv) = call.problem, call.at, self.program, gradients
        delta, parts = device.empty(Spec(lse.shape, float32)), make_parts(device, call)
        given = call.inputs[4].memory, at[4], out.memory, at[5], delta.memory, p.batch, p.inner, p.t
        items = -(-lse.size * 8 // ITEMS) * ITEMS
        program.attention_delta((items,), (ITEMS,), *self._addressed(call, parts), *given)
        divide(device, call, self.walks, parts)
        shared = *self._shared(call, parts), lse.memory, delta.memory
        if any(wanted[1:3]):
            results = dk.memory, at[7], dv.memory, at[8]
            program.attention_backward_kv(_work(p, p.s), (ITEMS,), *shared, *results, p.batch, *call.numbers)
        if wanted[0]:
            program.attention_backward_q(_work(p, p.t), (ITEMS,), *shared, dq.memory, at[6], p.batch, *call.numbers)

    def _addressed(self, call: Call, parts: Parts | None) -> Iterator[Any]:
        yield from (self.plans, self.maps, parts and parts.peaks)
        for behind in self._behind_maps(call, parts):
            yield from behind

    def _behind_maps(self, call: Call, parts: Parts | None) -> list[tuple[Any, int]]:
        found = [(x.memory, x.offset) for x in mapped(call)] if parts is None else [(x, 0) for x in parts.arrays]
        return filled(found)

    def _shared(self, call: Call, parts: Parts | None) -> tuple[Any, ...]:
        mask, behind = call.inputs[3], (memory for memory, _ in self._behind_maps(call, parts))
        return *behind, self.maps, self.walks, parts and parts.peaks, mask.memory, call.at[3], mask.strides[-1]


def _work(p: Problem, rows: int) -> tuple[int]:
    return (_padded(rows) // TILE * p.batch * ITEMS,)


def _padded(rows: int) -> int:
    return -(-rows // TILE) * TILE


def for_others(device: Device, p: Problem, lse: Buffer) -> Buffer:
    """The natural logarithms of the rows' sums, as other kernels have them."""
    return launch(device, Spec((p.batch, p.t), float32), lse._replace(shape=(p.batch, p.t)), log(2),
                  expression=EXPRESSIONS["multiply"])  # fmt: skip


# ---- the plan ----------------------------------------------------------------------------------------------------


def takes(p: Problem) -> bool:
    """True if boxes of all arrays can be copied: all but the last axis have steps of whole 16 bytes."""
    size, (length, value_length) = p.dtype.itemsize, p.lengths
    steps = [step for packed in p.layouts for step in struct.unpack("3q", packed)]
    return (
        (p.dtype in DTYPES or p.parts > 1) and length == value_length and length % COLUMNS_AT_ONCE == 0
        and 0 < length <= (LONGEST if p.parts == 1 else LONGEST_IN_PARTS)
        and p.t >= FEWEST_QUERIES and p.s > 0 and p.batch > 0 and p.is_aligned and p.scale_is_positive
        and all(step >= 0 and step * size % ALIGNMENT == 0 and step * size < LARGEST_STEP for step in steps)
        and all(steps[2::3])
    )  # fmt: skip


def plan(device: Device, p: Problem) -> Plan | None:
    """How to run it; None if it is not for these kernels, or they do not compute rightly here."""
    if not is_sound(device, VARIANT) or not takes(p):
        return None
    if p.parts > 1 and p.batch * p.t * p.s * p.lengths[0] < LEAST_DIVIDED:
        return None
    if p.parts > 1 and room(p) > device.features.global_memory // MOST_ROOM:
        return None
    macros = _macros(p)
    sound = is_sound_program(device, VARIANT, macros, partial(_check, device, p))
    return _planned(device, p) if sound else None


def _macros(p: Problem) -> dict[str, Any]:
    held = zip(("GROUPS", "STAGES"), HELD[p.parts, 64 if p.lengths[0] <= 64 else 128], strict=True)
    counts = {f"{what}_{kernel}": n for what, found in held for kernel, n in zip(KERNELS, found, strict=True)}
    return {**p.macros, "KIND": KINDS[_stored(p)], "COLUMNS": TILE, "PARTS": p.parts, **counts}


def _stored(p: Problem) -> np.dtype:
    """What matrix units are given."""
    return p.dtype if p.parts == 1 else PART_DTYPES[p.parts]


def _planned(device: Device, p: Problem) -> Plan:
    steps = [struct.unpack("3q", packed) for packed in p.layouts]
    plans = [_map(p, *found) for found in zip(steps, batches(p), strict=True)]
    program = device.build(VARIANT.stem, **_macros(p))
    return Plan(program, device.upload(np.concatenate(filled(plans))).memory, device.plans[_maps](), walks(p))


def _map(p: Problem, steps: tuple[int, int, int], found: tuple[tuple[int, int], int]) -> np.ndarray:
    """Boxes of 64 rows and columns, of the array or of its parts. An axis along which nothing moves has length 1."""
    (outer, inner, row), (batch, rows) = steps, found
    columns = p.lengths[0]
    if p.parts > 1:
        columns = row = p.parts * COLUMNS
        inner, outer = rows * row, batch[0] * rows * row
    strides = (2 * row, 2 * inner or ALIGNMENT, 2 * outer or ALIGNMENT)
    return tensor_map(_stored(p), (columns, rows, *batch), strides, (TILE, TILE, 1, 1))


def _maps(device: Device) -> Any:
    """Where kernels write the maps with addresses."""
    return device.empty_words(2 * ARRAYS * WORDS)


# ---- the check of a program, and the trial -----------------------------------------------------------------------

LENGTHS = 131, 203  # of the check: t, s
BATCH, SCALE = 3, 0.125


def _check(device: Device, p: Problem) -> None:
    """Run a program on small odd arrays between canaries, and compare.

    Errors:  BackendError if a result is wrong, or something else was written to
    """
    arrays = _arrays(p)
    device.plans[_maps]()  # which are kept, and not between canaries
    for causal in (0, 1):
        if p.dropout:  # which numbers it draws the portable kernels know
            expected = _run(device, _small(p, float32), arrays, causal, None)
        else:
            expected = _expected(p, arrays, causal)
        with device.guarded():
            found = _run(device, _small(p, p.dtype), arrays, causal, partial(_planned, device))
        for name, ours, theirs in zip(PASSES[p.is_backward], found, expected, strict=True):
            relative = ERROR_IN_PARTS[p.parts] if p.parts > 1 else ERROR * RELATIVE[p.dtype]
            error, most = np.abs(ours.astype(float) - theirs).max(), relative * np.abs(theirs).max()
            if not error <= most:  # a nan is wrong, too
                raise BackendError(f"attention's {name} is wrong by {error:.1e}, causal {causal}; at most {most:.1e}")


def _small(p: Problem, dtype: np.dtype) -> Problem:
    t, s = LENGTHS
    pitch = _pitch(p)
    layouts = tuple(struct.pack("3q", 0, rows * pitch, pitch) for rows in (t, s, s, t))[: len(p.layouts)]
    return p._replace(dtype=dtype, batch=BATCH, inner=BATCH, t=t, s=s, layouts=layouts, state_on_device=False)


def _pitch(p: Problem) -> int:
    return p.lengths[0] + ALIGNMENT // 2


def _arrays(p: Problem) -> list[np.ndarray | None]:
    """q, k, v and dout in the dtype, with nan behind each row, which nobody may read; the mask comes fourth."""
    generator, length, (t, s) = np.random.default_rng(0), p.lengths[0], LENGTHS
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


def _expected(p: Problem, arrays: list[np.ndarray | None], causal: int) -> list[np.ndarray]:
    """The results of a pass without dropout, in float64."""
    q, k, v, dout = (arrays[i][..., : p.lengths[0]] for i in (0, 1, 2, 4))
    found = attention(q, k, v, dout, arrays[3], bool(causal), SCALE)
    return [getattr(found, name) for name in PASSES[p.is_backward]]


def _run(device: Device, p: Problem, arrays: list[np.ndarray | None], causal: int, planned: Any) -> list[np.ndarray]:
    """The results of a pass, by these kernels or by the portable ones, where planned is None."""
    length, (t, s) = p.lengths[0], LENGTHS
    bufs = [None if a is None else device.upload(a if i == 3 else a.astype(p.dtype)) for i, a in enumerate(arrays)]
    q, k, v, mask, dout = [b if i == 3 else b._replace(shape=(*b.shape[:2], length)) for i, b in enumerate(bufs)]
    out = device.empty(Spec((BATCH, t, length), p.dtype))
    gradients = [device.empty(Spec((BATCH, rows, length), p.dtype)) for rows in (t, s, s)]
    at = [layout(0, 0, *x.strides[:2]) for x in (q, k, v, dout, out, *gradients)]
    mask_at = layout(0, 0, 0, s)
    numbers = BATCH, t, s, causal, SCALE, 5, 7, q.memory, q.memory, 2**22, 4 / 3 if p.dropout else 1.0
    forward_p = p._replace(layouts=p.layouts[:3])
    call = Call(forward_p, (q, k, v, mask or q), (*at[:3], mask_at, at[4]), numbers)
    family = planned(forward_p) if planned else attention_tiled
    lse = family.forward(device, call, out)
    if not p.is_backward:
        return [device.download(out)]
    call = Call(p, (q, k, v, mask or q, dout), (*at[:3], mask_at, *at[3:]), numbers)
    family = planned(p) if planned else attention_tiled
    family.backward(device, call, out, lse, tuple(gradients), (True, True, True))
    return [device.download(g) for g in gradients]


def _trial(device: Device) -> None:
    """Both passes in both dtypes, with short and long rows, masks and dropout.

    Errors:  BackendError if one does not build or computes wrongly
    """
    cases = (
        (bfloat16, 64, None, False, 1), (float16, 128, bool_, True, 1), (bfloat16, 40, float32, False, 1),
        (float32, 64, None, False, HALVES), (float32, 40, bool_, True, HALVES), (float32, 64, bool_, True, THIRDS),
    )  # fmt: skip
    for dtype, length, mask, dropout, parts in cases:
        for arrays in (3, 4):
            flags = True, True, dropout, False, parts
            _check(device, Problem(dtype, mask, 1, 1, *LENGTHS, (length, length), (b"",) * arrays, *flags))


VARIANT = Variant("wgmma-attention", "attention_wgmma", lambda features: features.architecture == 90, plan, _trial,
                  tells_precision=True)  # fmt: skip
