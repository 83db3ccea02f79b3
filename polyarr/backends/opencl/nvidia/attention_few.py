"""Decode attention on the matrix units of NVIDIA GPUs from Ampere on: few queries, which read their keys once."""

import struct
from functools import partial
from typing import Any

import numpy as np

from polyarr.backends.opencl.attention.attention_reference import attention
from polyarr.backends.opencl.attention.attention_tiled import Call, NewRows, Problem, layout
from polyarr.backends.opencl.nvidia.product_check import RELATIVE, SUMMING
from polyarr.backends.opencl.nvidia.skinny import KINDS
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, is_aligned
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, is_sound_program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32
from polyarr.core.spec import bool as bool_

WARPS = 4
MAX_BATCH = 2**15  # work-groups along an axis, and counters
MAX_SIZE = 2**30  # keys; an int holds more than their number
KEYS, MAX_PARTS = 128, 32  # keys of a part, unless these would be more parts
TEAMS = {64: (4, 2), 128: (2, 1)}  # of a work-group that computes all parts, by length; with more groups than units
ROUNDS = 2  # of a work-group that computes all parts, unless there are enough work-groups
PIECE = 8  # numbers of a 16-byte load
MASK, PLACE = 6, 14  # the arguments that the kernel reads early
ERROR = 2  # in roundings of the largest result; weights are rounded, too


def plan(device: Device, call: Call, out: Buffer, lse: Buffer) -> Buffer | None:
    """Write out and the log-sum-exp of each row; None if these kernels do not accept the call or fail their check."""
    p, new = call.problem, call.new
    if not accepts(p) or not is_sound(device, VARIANT):
        return None
    if new is not None and not (new.place and all(_is_readable(row, p.dtype) for row in new[:2])):
        return None
    teams = _teams(p, device.features.compute_units)
    check = partial(_check, device, p.dtype, p.mask, p.lengths[0], teams)
    if not is_sound_program(device, VARIANT, macros_of(p, teams), check):
        return None
    return _launch(device, call, out, lse, teams)


def accepts(p: Problem) -> bool:
    """Return whether rows of k and v are read by loads of 16 bytes."""
    steps = [step for at in p.layouts[1:3] for step in struct.unpack("3q", at)]
    return (
        p.dtype in KINDS and p.lengths[0] == p.lengths[1] and p.lengths[0] in TEAMS
        and p.is_aligned and p.batch <= MAX_BATCH and p.s <= MAX_SIZE and not any(step % PIECE for step in steps)
    )  # fmt: skip


def _is_readable(row: Buffer, dtype: np.dtype) -> bool:
    """Return whether new rows (B, H, 1, D) are read by loads of 16 bytes."""
    steps = [step for step, length in zip(row.strides[:2], row.shape[:2], strict=True) if length > 1]
    return row.dtype == dtype and row.strides[-1] == 1 and is_aligned(row) and not any(step % PIECE for step in steps)


def _teams(p: Problem, units: int) -> int:
    """Return how many teams compute all parts of a batch entry; 0 if work-groups share the parts."""
    teams = TEAMS[p.lengths[0]][p.batch > units]
    return teams if 2 * p.batch >= units or parts_of(p.s)[1] <= ROUNDS * teams else 0


def macros_of(p: Problem, teams: int) -> dict[str, Any]:
    """Return the macros of a program in which so many teams compute all parts of a batch entry, or with 0 one of them.
    """
    return {**p.macros, "KIND": KINDS[p.dtype], "WARPS": WARPS, "TEAMS": max(teams, 1), "WHOLE": int(teams > 0)}


def parts_of(s: int) -> tuple[int, int]:
    """Return the keys of a part, and the number of parts. Neither depends on the batch, so nor do the bits of a result.
    """
    keys = KEYS * -(-s // (KEYS * MAX_PARTS))
    return keys, -(-s // keys)


def _launch(device: Device, call: Call, out: Buffer, lse: Buffer, teams: int) -> Buffer:
    p, (keys, parts) = call.problem, parts_of(call.problem.s)
    macros, groups, pieces, ended = macros_of(p, teams), 1, None, None
    if not teams:
        groups, ended = parts, device.plans[_counters]()
        pieces = device.empty(Spec((p.batch, parts, p.t, p.lengths[0] + 2), float32)).memory
    kernel, warps = device.build(VARIANT.stem, **macros).attention_few, macros["TEAMS"] * WARPS
    kernel.uses_early = (PLACE,) if p.mask is None else (MASK, PLACE)
    place = call.new and call.new.place and call.new.place.memory
    kernel(
        (groups * 32, p.batch * warps), (32, warps), *call.arguments, *call.new_arguments[:-1], place, pieces, ended,
        out.memory, call.at[4], lse.memory, p.inner, p.group, p.t, p.s, keys, parts,
        call.numbers[4],
    )  # fmt: skip
    return lse


def _counters(device: Device) -> Any:
    """Allocate the counters of ended work-groups; they are 0 between kernels, which run in order."""
    return device.empty_words(MAX_BATCH)


def _check(device: Device, dtype: np.dtype, mask: np.dtype | None, length: int, teams: int) -> None:
    """Run a program on small odd arrays between canaries, and compare with NumPy.

    Raises:
        BackendError: A result is wrong, or memory outside the results was written.
    """
    generator, (batch, t), scale, position = np.random.default_rng(0), (3, 5), 0.125, KEYS + 5
    s = (teams + 1) * KEYS + 13  # in two rounds
    device.plans[_counters]()  # it is kept, so it must not lie between canaries
    stored = []
    for rows in (t, s, s):  # rows are padded with nan that the kernel may not read
        x = np.full((batch, rows, length + PIECE), np.nan, dtype)
        x[:, :, :length] = generator.standard_normal((batch, rows, length))
        stored.append(x)
    q, k, v = (x[:, :, :length].copy() for x in stored)
    for x in stored[1:]:
        x[:, position, :length] = np.nan  # until the kernel stores it
    noise = generator.standard_normal((t, s))
    seen = None if mask is None else noise > 0 if mask == bool_ else np.where(noise > -1, noise, -np.inf).astype(mask)
    expected = attention(q, k, v, np.zeros_like(q), seen, False, scale)
    with device.guarded():
        bufs = [device.upload(x) for x in stored]
        out, lse = device.empty(Spec((batch, t, length), dtype)), device.empty(Spec((batch, t), float32))
        at = [layout(0, 0, *x.strides[:2]) for x in (*bufs, out)]
        given = bufs[0] if seen is None else device.upload(seen)
        layouts = tuple([each[8:] for each in at[:3]])
        p = Problem(dtype, mask, batch, batch, t, s, (length, length), layouts, True, False, True, False, False, 1)
        numbers = batch, t, s, 0, scale, 0, 0, given.memory, given.memory, 0, 1.0, 1
        call = Call(p, (*bufs, given), (*at[:3], layout(0, 0, 0, s), at[3]), numbers)
        new_k, new_v = (device.upload(x[:, position].reshape(1, batch, 1, length)) for x in (k, v))
        place = device.upload(np.array([position], np.int32))
        results = []
        for new in (NewRows(new_k, new_v, position, place), None):  # counters must be 0 again after the first launch
            _launch(device, call._replace(new=new), out, lse, teams)
            results.append((device.download(out).astype(float), device.download(lse)))
        caches = [device.download(x)[:, :, :length] for x in bufs[1:]]
    if not all(np.array_equal(x, y) for x, y in zip(caches, (k, v), strict=True)):
        raise BackendError("new rows are not stored")
    for found in results:
        for ours, theirs, relative in zip(found, expected[:2], (RELATIVE[dtype], SUMMING), strict=True):
            error, most = np.abs(ours - theirs).max(), ERROR * relative * np.abs(theirs).max()
            if not error <= most:  # a nan is wrong, too
                raise BackendError(f"the result is wrong by {error:.1e}; at most {most:.1e}")


def _trial(device: Device) -> None:
    """Check programs of both dtypes and lengths, with all kinds of masks.

    Raises:
        BackendError: A program does not build or computes a wrong result.
    """
    for dtype, mask, length in ((bfloat16, bool_, 64), (float16, None, 128), (bfloat16, float32, 128)):
        for teams in (0, *TEAMS[length]):
            _check(device, dtype, mask, length, teams)


VARIANT = Variant(
    "few-queries", "float16 and bfloat16, up to 8 queries, rows of 64 or 128, on NVIDIA GPUs from Ampere on", plan,
    may_suit=lambda features: features.architecture >= 80, stem="attention_few", trial=_trial,
)  # fmt: skip
