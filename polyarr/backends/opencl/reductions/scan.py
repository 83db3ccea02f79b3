"""Prefix sums (inclusive scan) along an axis."""

from math import prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.elementwise.elementwise import astype
from polyarr.backends.opencl.reductions import reduce
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, of_parts, row_major, with_parts
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.core.spec import COMPLEX, FLOATS, Spec, float32, float64, real_of

SUM = reduce.launcher("sum")


def cumulative_sum(device: Device, out: Spec, x: Buffer, *, axis: int, dtype: np.dtype) -> Buffer:
    """Return the sum of the elements up to and including each one, along axis."""
    if out.dtype in COMPLEX:
        return _of_parts(device, out, x, axis)
    x, result = dense(device, x), device.empty(out)
    outer, length, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    if not out.size:
        return result
    sums = sum_dtype(device, out.dtype)
    group = device.geometry.scan_group
    vector = device.geometry.vector(max(x.dtype.itemsize, out.dtype.itemsize))
    lanes = device.geometry.scan_lanes(length, vector) if inner == 1 else group
    program = device.plans[_program](x.dtype, out.dtype, sums, vector, lanes)
    part_length = _part_length(device, outer, length, inner)
    parts = -(-length // part_length)
    starts = result if parts == 1 else _part_sums(device, x, sums, (outer, parts - 1, part_length, inner), length)
    if group > 1 and inner == 1:
        arrays = x.memory, result.memory, starts.memory
        sets = group // lanes
        program.scan_rows(
            (-(-outer // sets) * lanes, parts * sets), (lanes, sets), *arrays, outer, length, part_length
        )  # fmt: skip
        return result
    if inner == 1:
        rows, _, each = device.geometry.items(outer, least=-(-device.geometry.scan_part(1) // length))
        numbers = (outer, length, part_length, each)
        program.scan_spans((*rows, parts), (1, 1), x.memory, result.memory, starts.memory, *numbers)
        return result
    work = (-(-inner // (group * device.geometry.scan_columns)) * group, outer, parts)
    program.scan_columns(
        work, (group, 1, 1), x.memory, result.memory, starts.memory, inner, length, part_length
    )  # fmt: skip
    return result


def _of_parts(device: Device, out: Spec, x: Buffer, axis: int) -> Buffer:
    """Return the cumulative sum of complex numbers, whose two parts are the last axis of a real array."""
    if x.dtype != out.dtype:
        x = astype(device, Spec(x.shape, out.dtype), x, dtype=out.dtype)
    parts, real = with_parts(dense(device, x)), real_of(out.dtype)
    return of_parts(cumulative_sum(device, Spec(parts.shape, real), parts, axis=axis, dtype=real))


def sum_dtype(device: Device, dtype: np.dtype) -> np.dtype:
    """Return the dtype that long sums are computed in: float64 for float32 and narrower, if the device has it."""
    acc = types(dtype)["ACC"]
    if acc == "float":
        return float64 if device.features.fp64 else float32
    return SCALARS[acc]


def _part_length(device: Device, outer: int, length: int, inner: int) -> int:
    """Return the length that one work-item (or group) scans: all of it, unless that leaves too few work-items."""
    geometry = device.geometry
    items = outer * (geometry.scan_group if inner == 1 else -(-inner // geometry.scan_columns))
    wanted, least = geometry.scan_items(inner), geometry.scan_part(inner)
    if items >= wanted:
        return length
    return -(-max(-(-length // -(-wanted // items)), least) // geometry.scan_step) * geometry.scan_step


def _part_sums(device: Device, x: Buffer, dtype: np.dtype, shape: tuple[int, ...], length: int) -> Buffer:
    """Return the sums of the parts, (outer, parts, inner); the rest of the length is not read."""
    outer, parts, _, inner = shape
    steps = row_major(shape)
    view = x._replace(shape=shape, strides=(length * inner, *steps[1:]))
    return SUM(device, Spec((outer, parts, inner), dtype), view, axis=(2,))


def _program(device: Device, dtype: np.dtype, out: np.dtype, sums: np.dtype, vector: int, lanes: int) -> Any:
    written = {f"OUT_{name}": macro for name, macro in types(out).items() if name in ("T", "ACC")}
    compensated = int(sums in FLOATS and types(out)["ACC"] == types(sums)["ACC"])
    return device.build(
        "scan", **types(dtype) | {"STORE": types(out)["STORE"]}, **written, A=types(sums)["ACC"],
        COMPENSATED=compensated, WG=device.geometry.scan_group, COLUMNS=device.geometry.scan_columns,
        LANES=lanes, VECTORS_PER_LANE=device.geometry.scan_turns, VECTOR=vector, **vector_types(dtype, vector),
        **vector_types(out, vector, "OUT_"),
    )  # fmt: skip
