"""GEMV and skinny GEMM: products with few rows (or columns), bound by the bandwidth of the large operand."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.gemm.dequantize import Quantized, layer_macros
from polyarr.backends.opencl.gemm.product import Arrays, Epilogue, Operand, Plan, Problem, blocks_in
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import STORED, vector_types
from polyarr.backends.opencl.runtime.variants import Variant
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import NARROW, float32

MAX_ROWS_PER_ITEM = 8  # output rows that one work-item of a GPU accumulates in registers
MAX_LOADS_IN_FLIGHT = 4  # vector loads of a column that a work-item issues before it uses any
MIN_LANES, MAX_LANES = 32, 128  # work-items that reduce one column together
MIN_COLUMNS_FOR_FEW_LANES = 2**13  # columns from which on fewer lanes per column suffice
MAX_SKINNY_ROWS = 4  # always skinny up to here; beyond, only if the operand is large and contiguous along k
MAX_TILED_ROWS = 64  # rows up to which a CPU computes tiles without packing an operand
MIN_COLUMNS = 256  # columns from which on all units have some to read
MAX_SERIAL_TERMS = 128  # terms of one running sum
ITEMS = 128  # work-items of a GPU's work-group
ITEMS_ALONG_N = 256  # work-items of a GPU's work-group that splits k of a row-contiguous operand


class LaunchShape(NamedTuple):
    """Split of one product: kernel file, macros, work-group shape and columns per work-group.

    Attributes:
        numbers: Further scalar arguments of the kernel.
        more: Further array arguments behind y, all absent here.
    """

    file: str
    macros: dict[str, Any]
    group: tuple[int, int, int]
    columns: int
    numbers: tuple[int, ...] = ()
    more: tuple[None, ...] = ()


def is_skinny(device: Device, p: Problem) -> bool:
    """Return whether the GEMV kernel is the fastest: few rows (or columns), and more only if read along k."""
    tall = p.n < p.m
    rows, columns, read = (p.n, p.m, p.x) if tall else (p.m, p.n, p.y)
    is_large = read.along_k and columns * p.batch >= MIN_COLUMNS
    return rows <= (device.geometry.gemv_rows if is_large else MAX_SKINNY_ROWS)


def is_compute_bound(dtype: np.dtype, p: Problem) -> bool:
    """Return whether matrix units beat the GEMV kernel: 16-bit operands, enough rows to reuse each load."""
    return dtype in NARROW and min(p.m, p.n) > MAX_SKINNY_ROWS and max(p.m, p.n) * p.batch >= MIN_COLUMNS_FOR_FEW_LANES


def _plan(
    shape_of: Callable[..., LaunchShape], device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool],
    epilogue: Epilogue,
) -> Plan:  # fmt: skip
    """Plan a skinny product; few columns are few rows of the transposed product."""
    tall = p.n < p.m
    out_strides, bias_strides = (p.n, 1), (0, 1)
    if tall:
        p, aligned = transposed(p), (aligned[1], aligned[0])
        out_strides, bias_strides = (1, p.m), (1, 0)
    shape = shape_of(device, dtype, p, aligned)
    program = device.build(shape.file, **epilogue.macros(dtype), **p.macros, **shape.macros)
    work, batch = _work(p, shape), p.batch_strides
    scalars = (p.m, p.n, p.k, *shape.numbers, *out_strides, *bias_strides)

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, bias, _, out, saved = arrays
        if tall:
            x, y, x_start, y_start = y, x, y_start, x_start
        program.matmul(
            work, shape.group, x, y, *shape.more, bias, out, saved, *scalars,
            x_start, p.x.kept, p.x.deep, y_start, p.y.kept, p.y.deep, *batch,
        )  # fmt: skip

    return Plan(launch, None)


def plan_quantized(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, weight: Quantized, epilogue: Epilogue
) -> LaunchPlan:
    """Plan the product of rows of x and a quantized weight on a GPU, followed by bias and activation."""
    n, k, pitch = weight.n, weight.k, weight.k * weight.bits // 8
    p = Problem(1, 1, rows, n, k, Operand(k, 1, 0, 0), Operand(pitch, 1, 0, 0))
    shape = _gpu_shape(device, dtype, p, (True, True), weight)
    macros = {**p.macros, **shape.macros, **layer_macros(dtype, bias, weight, epilogue)}
    program = device.build(shape.file, **macros)
    out_strides, bias_strides, starts_and_strides = (n, 1), (0, 1), (0, k, 1, 0, pitch, 1)
    numbers = None, rows, n, k, *out_strides, *bias_strides, *starts_and_strides, *p.batch_strides
    return LaunchPlan(program.matmul, _work(p, shape), shape.group, numbers)


def _work(p: Problem, shape: LaunchShape) -> tuple[int, int, int]:
    return blocks_in(p.n, shape.columns) * shape.group[0], shape.group[1], p.batch


def transposed(p: Problem) -> Problem:
    """Return the transposed product."""
    return p._replace(m=p.n, n=p.m, x=p.y, y=p.x)


def _cpu_shape(device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool]) -> LaunchShape:
    """Plan work-items that take columns in turn, or a vector of columns at a time."""
    wide, each = (1 if p.y.along_k else 4) * vector_width(device), device.geometry.gemv_columns(p.n, p.y.along_k)
    macros = {"LANES": 1, "ROWS": 1, "WIDE": wide}
    return LaunchShape("gemv", macros, (1, 1, 1), (1 if p.y.along_k else wide) * each, (each,))


def _plan_rows(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | None:
    """Plan a product of a few rows (or columns) of 16- or 32-bit floats on a CPU; None for others."""
    fits = dtype in (float32, *NARROW) and p.im2col is None and p.x.along_k and p.y.along_k and p.batch == 1
    return _plan(_rows_shape, device, dtype, p, aligned, epilogue) if fits and min(p.m, p.n) <= MAX_TILED_ROWS else None


def _rows_shape(device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool]) -> LaunchShape:
    """Plan tiles whose sums fit into the registers of a CPU."""
    wide = vector_width(device)
    rows = min(_power(p.m), 4)
    columns = 4 if rows <= 2 or wide == 16 else 2
    each = blocks_in(device.geometry.gemv_columns(p.n, True), columns) * columns
    return LaunchShape("gemv_rows", {"WIDE": wide, "M": rows, "COLUMNS": columns}, (1, 1, 1), each, (each,))


def _gpu_shape(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], weight: Quantized | None = None
) -> LaunchShape:
    """Plan work-items that share columns, so that enough loads are in flight to saturate the memory bandwidth."""
    vector = _vector(device, dtype, p)
    rows = min(_power(p.m), MAX_ROWS_PER_ITEM if dtype.itemsize < 8 else MAX_SKINNY_ROWS)  # whose sums fit into 32 KB
    share = _split_along_k if p.y.along_k else _split_along_n
    lanes, lines, columns, ahead = share(device, p, vector, rows)
    stored, codes = STORED[dtype][0], dtype if weight is None else weight.codes
    shared_by = lanes * vector if p.y.along_k else lines
    macros = {
        "LANES": lanes, "LINES": lines, "COLUMNS": columns, "M": rows, "AHEAD": ahead, "VECTOR": vector,
        "KEEPS": int(p.k > MAX_SERIAL_TERMS * shared_by), "BITS": 0, "IN_BLOCKS": 0, "SCALE_T": stored,
        "SCALE_LOAD": f"load_{dtype.name}", "BIAS_T": stored, "BIAS_LOAD": f"load_{dtype.name}",
        "Y_T": STORED[codes][0],
        **vector_types(dtype, vector), **vector_types(codes, vector, "Y_"), **_alignment_flags(p, vector, aligned),
    }  # fmt: skip
    span = lines * columns if p.y.along_k else lanes * vector
    return LaunchShape("gemv_gpu", macros, (lanes, lines, 1), span, more=(None,))


def _split_along_k(device: Device, p: Problem, vector: int, rows: int) -> tuple[int, int, int, int]:
    """Choose lanes so that each work-item loads its share of a column at once; with many columns, use fewer lanes."""
    vectors, columns = blocks_in(p.k, vector), 2
    most = MAX_LANES
    if p.n * p.batch >= MIN_COLUMNS_FOR_FEW_LANES:
        columns, most = 4, MIN_LANES
    lanes = max(min(_power(blocks_in(vectors, MAX_LOADS_IN_FLIGHT)), most), rows * columns)
    return lanes, max(1, ITEMS // lanes), columns, max(1, min(MAX_LOADS_IN_FLIGHT, blocks_in(vectors, lanes)))


def _split_along_n(device: Device, p: Problem, vector: int, rows: int) -> tuple[int, int, int, int]:
    """Choose few columns per work-group if there are few, so that all units read."""
    lanes = 32
    while lanes > 4 and blocks_in(p.n, lanes * vector) * p.batch < 2 * device.features.compute_units:
        lanes //= 2
    lines = ITEMS_ALONG_N // lanes
    return lanes, lines, 1, max(1, min(2 * MAX_LOADS_IN_FLIGHT, blocks_in(p.k, lines)))


def _vector(device: Device, dtype: np.dtype, p: Problem) -> int:
    """Return the elements of y per vector load. Only lengths decide, because the order of additions depends on it."""
    length, vector = p.k if p.y.along_k else p.n, device.geometry.vector(dtype.itemsize)
    while length % vector:
        vector //= 2
    return vector


def _alignment_flags(p: Problem, vector: int, aligned: tuple[bool, bool]) -> dict[str, int]:
    """Return the macros that say whether x and y can be read by aligned vectors."""
    x_steps = (p.x.kept if p.m > 1 else 0, p.x.outer, p.x.inner)
    x = p.x.along_k and p.y.along_k and aligned[0] and not any(step % vector for step in x_steps)
    y = (p.y.along_k or p.y.kept == 1) and aligned[1]
    y = y and not any(step % vector for step in (p.y.step, p.y.outer, p.y.inner))
    return {"BY_WORD": int(x or vector == 1), "Y_BY_WORD": int(y or vector == 1)}


def _power(length: int) -> int:
    """Return the smallest power of two that is at least length."""
    return 1 << max(length - 1, 0).bit_length()


FEW_ROWS = Variant("gemv_rows", "up to 64 rows of 16- or 32-bit floats read along k, on CPUs", _plan_rows, "cpu")
VARIANTS = (
    FEW_ROWS,
    Variant("gemv", "up to 4 rows or columns, or operands far apart, on CPUs", partial(_plan, _cpu_shape), "cpu"),
    Variant("gemv", "up to 4 rows or columns, 16 if much is read along k, on GPUs", partial(_plan, _gpu_shape), "gpu"),
)
