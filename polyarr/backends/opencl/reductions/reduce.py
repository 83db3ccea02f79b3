"""Reductions over any axes: sum, prod, max, min, argmax, argmin."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.copying.shape import reshape
from polyarr.backends.opencl.elementwise.elementwise import astype
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, collapse, is_aligned, permuted, row_major
from polyarr.backends.opencl.runtime.program import types, vector_types
from polyarr.core.spec import COMPLEX, FLOATS, INEXACT, NARROW, Spec, complex128, float32, float64, int64

# By op: the binary reduction, and the initial value, which may use `first`, the first element.
JOINS = {
    "sum": ("ADD", "0"),
    "prod": ("MULTIPLY", "1"),
    "max": ("LARGEST", "first"),
    "min": ("LEAST", "first"),
}
COMPLEX_JOINS = {"sum": ("ADD", "(A)(0, 0)"), "prod": ("MULTIPLY_COMPLEX", "(A)(1, 0)")}
EMPTY = {"max": "-INFINITY", "min": "INFINITY"}  # initial values for floats, neutral even without a first element

COLUMN_VECTORS, MAX_COLUMN_BYTES = 16, 64  # GPUs: vectors of a row that a group reads; accumulators of a work-item
COLUMN_GROUPS, MIN_COLUMN_ROWS = 16, 32  # GPUs: desired groups per unit; rows of a work-item that are worth a part
MAX_ONE_PASS_ARG = 1 << 18  # elements of a row up to which argmax by one work-group beats two passes by several


class Window(NamedTuple):
    """A strided view of an array as outer x length x inner, of which the length is reduced."""

    outer: int
    length: int
    inner: int
    outer_stride: int
    stride: int
    inner_stride: int


class Plan(NamedTuple):
    """Launch parameters of one reduction."""

    kernel: Any
    work: Any
    group: Any
    arguments: tuple[int, ...]
    partial: Spec | None  # Spec of the partial results, if the length is split into parts


def launcher(name: str) -> Any:
    """Return the launcher(device, out, x, *, axis, keepdims) of sum, prod, max or min."""
    return partial(_reduce, name)


def _reduce(
    name: str, device: Device, out: Spec, x: Buffer, *, axis: tuple[int, ...], keepdims: bool = False, dtype: Any = None
) -> Buffer:
    if out.dtype.kind == "c" and x.dtype != out.dtype:
        x = astype(device, Spec(x.shape, out.dtype), x, dtype=out.dtype)
    window = _window(x.shape, x.strides, axis)
    if window is None:  # too many axes that cannot be merged: reduce the rows of a copy
        x, window = _in_rows(device, x, axis)
    return _launch(device, name, out, x, window)


def _launch(device: Device, name: str, out: Spec, x: Buffer, window: Window) -> Buffer:
    plan = device.plans[_plan](name, out, x.dtype, window, is_aligned(x))
    result = device.empty(out if plan.partial is None else plan.partial)
    plan.kernel(plan.work, plan.group, x.memory, x.offset, result.memory, *plan.arguments)
    return result if plan.partial is None else _join_parts(device, name, out, result)


def _join_parts(device: Device, name: str, out: Spec, partial: Buffer) -> Buffer:
    parts, outputs = partial.shape
    return _launch(device, name, out, partial, Window(1, parts, outputs, 0, outputs, 1))


def _find(name: str, device: Device, out: Spec, x: Buffer, *, axis: int | None, keepdims: bool = False) -> Buffer:
    """Return the index of the first maximum ("max") or minimum ("min"); nan counts as either."""
    if axis is None:
        x, axis = reshape(device, Spec((x.size,), x.dtype), x, shape=(x.size,)), 0
    window = _window(x.shape, x.strides, (axis,))
    if window is None:
        x, window = _in_rows(device, x, (axis,))
    once = device.plans[_arg_plan](name, out, x.dtype, window)
    if once is not None:
        result = device.empty(out)
        once.kernel(once.work, once.group, x.memory, x.offset, result.memory, *once.arguments)
        return result
    wanted = _launch(device, name, Spec((window.outer * window.inner,), x.dtype), x, window)
    plan = device.plans[_plan](name, out, x.dtype, window, False, find=True)
    result = device.empty(out if plan.partial is None else plan.partial)
    plan.kernel(plan.work, plan.group, x.memory, x.offset, wanted.memory, result.memory, *plan.arguments)
    return result if plan.partial is None else _join_parts(device, "min", out, result)


argmax, argmin = partial(_find, "max"), partial(_find, "min")


@lru_cache(maxsize=4096)
def _window(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]) -> Window | None:
    """Return the array as a Window; None if it has too many axes, even after merging contiguous ones."""
    kept = [a for a in range(len(shape)) if a not in axes]
    (length, *more), ((stride, *_),) = _joined(shape, strides, sorted(axes))
    lengths, (steps,) = _joined(shape, strides, kept)
    if more or len(lengths) > 2:
        return None
    if len(lengths) == 1:  # one kept axis: columns if it is contiguous, else rows
        lengths, steps = (1, *lengths), (0, *steps)
    return Window(lengths[0], length, lengths[1], steps[0], stride, steps[1])


def _joined(shape: tuple[int, ...], strides: tuple[int, ...], axes: list[int]) -> Any:
    return collapse(tuple(shape[a] for a in axes), [tuple(strides[a] for a in axes)])


def _in_rows(device: Device, x: Buffer, axes: tuple[int, ...]) -> tuple[Buffer, Window]:
    """Return a dense copy with the reduced axes last, and its Window."""
    order = [a for a in range(x.ndim) if a not in axes] + sorted(axes)
    rows = tuple(range(x.ndim - len(axes), x.ndim))
    copy = dense(device, permuted(x, order))
    strides = row_major(copy.shape)  # an array without elements may have any strides
    return copy, _window(copy.shape, strides, rows)  # type: ignore[return-value]


def _plan(
    device: Device, name: str, out: Spec, dtype: np.dtype, window: Window, starts_aligned: bool, *, find: bool = False
) -> Plan:
    """Plan a reduction; starts_aligned says whether x begins at a vector. With find, it finds indices of elements."""
    outputs = window.outer * window.inner
    by_columns = _is_by_columns(window)
    if by_columns and not find and _has_vectors(device):
        return _columns_plan(device, name, out, dtype, window, starts_aligned)
    parts, part_length = _parts(device, window, by_columns)
    accumulator = _accumulator(device, name, dtype, dtype if find else out.dtype)
    result = out if parts == 1 else Spec((parts, outputs), int64 if find else accumulator)
    partial = None if parts == 1 else result
    if not find and _has_contiguous_rows(device, window):
        return _vectors_plan(device, name, (dtype, accumulator, result.dtype), window, parts, part_length, partial)
    geometry, lanes = device.geometry, device.geometry.lanes(part_length)
    program = _build(device, name, dtype, accumulator, result.dtype, window.stride, lanes, find=find)
    if by_columns:
        group = (min(geometry.columns, geometry.reduction_group), geometry.column_rows, 1)
        work = (-(-window.inner // geometry.columns) * group[0], window.outer * group[1], parts)
        arguments = (window.inner, window.length, window.outer_stride, window.stride, part_length)
        return Plan(program.find_columns if find else program.reduce_columns, work, group, arguments, partial)
    kernel = program.find_rows if find else program.reduce_rows
    return _rows_plan(device, kernel, window, lanes, parts, part_length, partial)


def _rows_plan(
    device: Device, kernel: Any, window: Window, lanes: int, parts: int, part_length: int, partial: Spec | None
) -> Plan:
    rows = window.outer * window.inner
    per_item, group = device.geometry.rows_per_item(rows, window.length), device.geometry.reduction_group
    work = (-(-rows // (per_item * group // lanes)) * group, parts)
    arguments = (rows, window.inner, window.length, window.outer_stride, window.inner_stride, window.stride)
    return Plan(kernel, work, (group, 1), (*arguments, part_length, per_item), partial)


def _is_by_columns(window: Window) -> bool:
    return window.inner_stride == 1 and window.inner > 1 and (window.stride != 1 or window.length == 1)


def is_by_rows(device: Device, x: Spec, axes: tuple[int, ...]) -> bool:
    """Return whether every row of a dense array like x is contiguous and reduced in one part."""
    window = _window(x.shape, row_major(x.shape), axes)
    if window is None or window.stride != 1 or window.length < 2 or _is_by_columns(window):
        return False
    return _parts(device, window, False)[0] == 1


def _has_contiguous_rows(device: Device, window: Window) -> bool:
    """Return whether rows are contiguous, on a device whose work-items load vectors."""
    return _has_vectors(device) and window.stride == 1 and not _is_by_columns(window)


def _has_vectors(device: Device) -> bool:
    """Return whether a device's work-items load vectors."""
    return device.geometry.vector(1) > 1


def _arg_plan(device: Device, name: str, out: Spec, dtype: np.dtype, window: Window) -> Plan | None:
    """Plan argmax or argmin in one pass; None if two passes are needed or faster."""
    parts = _parts(device, window, False)[0]
    if not _has_contiguous_rows(device, window) or (parts > 1 and window.length > MAX_ONE_PASS_ARG):
        return None
    return _vectors_plan(device, name, (dtype, dtype, out.dtype), window, 1, window.length, None, find=True)


def _vectors_plan(
    device: Device, name: str, dtypes: tuple[np.dtype, ...], window: Window, parts: int, part_length: int,
    partial: Spec | None, *, find: bool = False,
) -> Plan:  # fmt: skip
    """Plan rows of reduce_gpu.cl; dtypes are those of x, the accumulator and the result."""
    group, vector, lanes = team_of(device, dtypes[0], part_length)
    before = {} if dtypes[0] in COMPLEX else {"BEFORE": "<" if name == "min" else ">"}
    program = _build_gpu(device, name, dtypes, vector, WG=group, LANES=lanes, COLUMNS=0, BY_VECTORS=0, **before)
    rows = window.outer * window.inner
    work = (-(-rows // (group // lanes)) * group, parts)
    arguments = (rows, window.inner, window.length, window.outer_stride, window.inner_stride, part_length)
    return Plan(program.arg_rows if find else program.reduce_rows, work, (group, 1), arguments, partial)


def _columns_plan(
    device: Device, name: str, out: Spec, dtype: np.dtype, window: Window, starts_aligned: bool
) -> Plan:
    """Plan columns of reduce_gpu.cl."""
    geometry, accumulator = device.geometry, _accumulator(device, name, dtype, out.dtype)
    vector = max(1, min(geometry.vector(dtype.itemsize), MAX_COLUMN_BYTES // accumulator.itemsize))
    if not starts_aligned or window.outer_stride % vector or window.stride % vector:
        vector = 1
    each, group = -(-window.inner // vector), geometry.reduction_group
    lanes = min(COLUMN_VECTORS, 1 << (each - 1).bit_length())  # a power of two
    while group // lanes > max(1, window.length // 2):
        lanes *= 2
    depth, groups = group // lanes, -(-window.outer * each // lanes)
    wanted = -(-COLUMN_GROUPS * geometry.units // max(groups, 1))
    parts, part_length = _split(window.length, min(wanted, window.length // (MIN_COLUMN_ROWS * depth)))
    partial = None if parts == 1 else Spec((parts, window.outer * window.inner), accumulator)
    dtypes = dtype, accumulator, out.dtype if partial is None else accumulator
    by_vectors = int(dtypes[0] == dtypes[2] and window.inner % vector == 0)
    program = _build_gpu(device, name, dtypes, vector, WG=group, LANES=lanes, COLUMNS=1, BY_VECTORS=by_vectors)
    work = groups * lanes, depth * parts
    arguments = (window.outer, window.inner, window.length, window.outer_stride, window.stride, part_length)
    return Plan(program.reduce_columns, work, (lanes, depth), arguments, partial)


def _build_gpu(device: Device, name: str, dtypes: tuple[np.dtype, ...], vector: int, **macros: Any) -> Any:
    stored, accumulator, written = _types(*dtypes)
    join, start = _join(name, dtypes[0])
    start = EMPTY.get(name, start) if dtypes[0] in FLOATS else start
    return device.build(
        "reduce_gpu",
        **{key: stored[key] for key in ("T", "ACC", "LOAD")}, VECTOR=vector,
        **vector_types(dtypes[0], vector) | {"DTYPE": stored["LOAD"].removeprefix("load_")},
        A=accumulator["ACC"], OUT_T=written["T"], STORE=written["STORE"], JOIN=join, START=start, **macros,
    )  # fmt: skip


def team_of(device: Device, dtype: np.dtype, length: int) -> tuple[int, int, int]:
    """Return how teams.cl reduces rows of this length: work-items per group, elements per vector, lanes per row."""
    vector = device.geometry.vector(dtype.itemsize)
    group, lanes = device.geometry.team(-(-length // vector), device.features.max_work_group)
    return group, vector, lanes


def _build(
    device: Device, name: str, dtype: np.dtype, accumulator: np.dtype, result: np.dtype, stride: int, lanes: int,
    *, find: bool,
) -> Any:  # fmt: skip
    (join, start), geometry = _join(name, dtype), device.geometry
    stored, sums, written = _types(dtype, accumulator, result)
    return device.build(
        "reduce",
        T=stored["T"], LOAD=stored["LOAD"], A=sums["ACC"], OUT_T=written["T"], STORE=written["STORE"],
        JOIN=join, START=start, FIND=int(find), STRIDE=1 if stride == 1 else "stride",
        VECTORS=int(geometry.has_vectors and stride == 1 and stored["T"] == sums["ACC"] and dtype not in COMPLEX),
        WG=geometry.reduction_group, LANES=lanes, PARTIALS=geometry.partials, COLUMNS=geometry.columns,
    )  # fmt: skip


def _join(name: str, dtype: np.dtype) -> tuple[str, str]:
    """Return the binary reduction of a dtype, and its initial value."""
    return COMPLEX_JOINS[name] if dtype in COMPLEX else JOINS[name]


def _types(dtype: np.dtype, accumulator: np.dtype, result: np.dtype) -> tuple[dict[str, str], ...]:
    """Return the macros of the dtypes; vectors do not convert implicitly, so complex64 is loaded as its accumulator."""
    wide = {"ACC": "double2", "LOAD": "load_complex64_wide", "STORE": "store_complex64_wide"}
    found = map(types, (dtype, accumulator, result))
    if accumulator != complex128:
        return tuple(found)
    return tuple({**macros, **wide} if macros["T"] == "float2" else macros for macros in found)


def _accumulator(device: Device, name: str, dtype: np.dtype, out: np.dtype) -> np.dtype:
    """Return the dtype of accumulators: float32 for 16-bit floats, the dtype of the result for integers.

    Products of floats use float64 if the device has it, because every factor adds a rounding error.
    """
    wide = out if name in ("sum", "prod") else dtype
    if name == "prod" and wide in INEXACT and device.features.fp64:
        return complex128 if wide in COMPLEX else float64
    return float32 if wide in NARROW else wide


def _parts(device: Device, window: Window, by_columns: bool) -> tuple[int, int]:
    """Return the number of parts to split the length into, to occupy the device, and their length."""
    geometry = device.geometry
    columns = geometry.column_share(window.inner) if by_columns else 1
    items, wanted = -(-max(window.outer * window.inner, 1) // columns), geometry.parts_per_unit * geometry.units
    return _split(window.length, min(-(-wanted // items), window.length // max(1, geometry.part // columns)))


def _split(length: int, wanted: int) -> tuple[int, int]:
    """Return about so many parts, at least one, and their length."""
    part_length = max(1, -(-length // max(1, wanted)))
    return max(1, -(-length // part_length)), part_length
