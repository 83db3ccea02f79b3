"""Products of few rows, or of few columns: they are bound by reading the other operand."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.products.int8_scaling import macros_of
from polyarr.backends.opencl.products.product import Arrays, Epilogue, Operand, Plan, Problem, blocks_in
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import STORED, vector_types
from polyarr.backends.opencl.tuning.tuning import vector_width
from polyarr.core.spec import NARROW, int8

MOST_ROWS = 8  # that a GPU's work-items make of what they read
MOST_AHEAD = 4  # vectors of a column that a GPU's work-item asks for at once
FEW_LANES, MOST_LANES = 32, 128  # work-items that share a column
MANY_COLUMNS = 2**14  # from when on there are enough of them
WIDE_ROWS = 4  # of any product; and of so many columns, that a GPU makes as fast as it reads
LEAST_COLUMNS = 256  # from when on all units have some to read
MOST_TERMS = 128  # that are added one by one
ITEMS = 128  # of a GPU's group
DEEP_ITEMS = 256  # the same where they share a column's terms and lie along a row


class Cut(NamedTuple):
    """How a product is shared: the kernel's file and macros, its work-items and columns of a group.

    numbers: further ones | more: arrays behind y, of which there are none here
    """

    file: str
    macros: dict[str, Any]
    group: tuple[int, int, int]
    columns: int
    numbers: tuple[int, ...] = ()
    more: tuple[None, ...] = ()


def takes(device: Device, p: Problem) -> bool:
    """True if rows, or columns, are few: more than four only where there is much to read, and along k."""
    tall = p.n < p.m
    rows, columns, read = (p.n, p.m, p.x) if tall else (p.m, p.n, p.y)
    many = read.along_k and columns * p.batch >= LEAST_COLUMNS
    return rows <= (FAMILIES[device.geometry.kind].most_rows if many else WIDE_ROWS)


def is_for_matrix_units(dtype: np.dtype, p: Problem) -> bool:
    """True if memory no longer is what a product of 16-bit numbers waits for: units that multiply tiles are faster."""
    return dtype in NARROW and min(p.m, p.n) > WIDE_ROWS and max(p.m, p.n) * p.batch >= MANY_COLUMNS


def plan(device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue) -> Plan:
    """Few columns are few rows of the product of the transposes."""
    tall = p.n < p.m
    out_strides, bias_strides = (p.n, 1), (0, 1)
    if tall:
        p, aligned = transposed(p), aligned[::-1]
        out_strides, bias_strides = (1, p.m), (1, 0)
    cut = FAMILIES[device.geometry.kind].cut(device, dtype, p, aligned)
    program = device.build(cut.file, **epilogue.macros(dtype), **p.macros, **cut.macros)
    work, batch = _work(p, cut), _batch(p)
    scalars = (p.m, p.n, p.k, *cut.numbers, *out_strides, *bias_strides)

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        x, y, bias, _, out, saved = arrays
        if tall:
            x, y, x_start, y_start = y, x, y_start, x_start
        program.matmul(
            work, cut.group, x, y, *cut.more, bias, out, saved, *scalars,
            x_start, p.x.kept, p.x.deep, y_start, p.y.kept, p.y.deep, *batch,
        )  # fmt: skip

    return Plan(launch, None)


def plan_of_bytes(
    device: Device, dtype: np.dtype, bias: np.dtype, rows: int, n: int, depth: int, epilogue: Epilogue
) -> LaunchPlan:
    """On a GPU, rows of x times a weight of bytes, n x depth; scale and bias follow it, then the result."""
    p = Problem(1, 1, rows, n, depth, Operand(depth, 1, 0, 0), Operand(depth, 1, 0, 0))
    cut = _gpu_cut(device, dtype, p, (True, True), int8)
    program = device.build(cut.file, **p.macros, **{**cut.macros, **macros_of(dtype, bias, epilogue), "SCALES": 1})
    out_strides, bias_strides, starts_and_strides = (n, 1), (0, 1), (0, depth, 1) * 2
    numbers = None, rows, n, depth, *out_strides, *bias_strides, *starts_and_strides, *_batch(p)
    return LaunchPlan(program.matmul, _work(p, cut), cut.group, numbers)


def _work(p: Problem, cut: Cut) -> tuple[int, int, int]:
    return blocks_in(p.n, cut.columns) * cut.group[0], cut.group[1], p.batch


def _batch(p: Problem) -> tuple[int, ...]:
    return p.inner, p.x.outer, p.x.inner, p.y.outer, p.y.inner


def transposed(p: Problem) -> Problem:
    """The transposed product."""
    return p._replace(m=p.n, n=p.m, x=p.y, y=p.x)


def _cpu_cut(device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool]) -> Cut:
    """A work-item takes columns one after the other, or as many as vectors hold."""
    wide, each = (1 if p.y.along_k else 4) * vector_width(device), device.geometry.thin_columns(p.n, p.y.along_k)
    macros = {"LANES": 1, "ROWS": 1, "WIDE": wide}
    return Cut("matmul_thin", macros, (1, 1, 1), (1 if p.y.along_k else wide) * each, (each,))


def _gpu_cut(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], weight: np.dtype | None = None
) -> Cut:
    """Work-items share columns, so that all of them together read as much at once as memory can give."""
    vector = _vector(device, dtype, p)
    rows = min(_power(p.m), MOST_ROWS if dtype.itemsize < 8 else WIDE_ROWS)  # whose sums fit into 32 KB
    share = _gpu_along_k if p.y.along_k else _gpu_along_n
    lanes, lines, columns, ahead = share(device, p, vector, rows)
    stored, weight = STORED[dtype][0], weight or dtype
    shared_by = lanes * vector if p.y.along_k else lines
    macros = {
        "LANES": lanes, "LINES": lines, "COLUMNS": columns, "M": rows, "AHEAD": ahead, "VECTOR": vector,
        "KEEPS": int(p.k > MOST_TERMS * shared_by), "SCALES": 0, "BIAS_T": stored, "BIAS_LOAD": f"load_{dtype.name}",
        "Y_T": STORED[weight][0], **vector_types(dtype, vector), **vector_types(weight, vector, "Y_"),
        **_by_word(p, vector, aligned),
    }  # fmt: skip
    span = lines * columns if p.y.along_k else lanes * vector
    return Cut("matmul_thin_gpu", macros, (lanes, lines, 1), span, more=(None,))


def _gpu_along_k(device: Device, p: Problem, vector: int, rows: int) -> tuple[int, int, int, int]:
    """Work-items that ask once for all that they need, unless there are so many columns that others work meanwhile."""
    vectors, columns = blocks_in(p.k, vector), 2
    most = MOST_LANES
    if p.n * p.batch >= MANY_COLUMNS:
        columns, most = 4, FEW_LANES
    lanes = max(min(_power(blocks_in(vectors, MOST_AHEAD)), most), rows * columns)
    return lanes, max(1, ITEMS // lanes), columns, max(1, min(MOST_AHEAD, blocks_in(vectors, lanes)))


def _gpu_along_n(device: Device, p: Problem, vector: int, rows: int) -> tuple[int, int, int, int]:
    """Few columns to a group where there are few, so that all units read."""
    lanes = 32
    while lanes > 4 and blocks_in(p.n, lanes * vector) * p.batch < 2 * device.features.compute_units:
        lanes //= 2
    lines = DEEP_ITEMS // lanes
    return lanes, lines, 1, max(1, min(2 * MOST_AHEAD, blocks_in(p.k, lines)))


def _vector(device: Device, dtype: np.dtype, p: Problem) -> int:
    """Elements of y that a work-item takes side by side. Lengths alone decide, as the order of sums does with it."""
    length, vector = p.k if p.y.along_k else p.n, device.geometry.vector(dtype.itemsize)
    while length % vector:
        vector //= 2
    return vector


def _by_word(p: Problem, vector: int, aligned: tuple[bool, bool]) -> dict[str, int]:
    """Whether x and y have so many elements side by side, from a multiple of as many on."""
    x_steps = (p.x.kept if p.m > 1 else 0, p.x.outer, p.x.inner)
    x = p.x.along_k and p.y.along_k and aligned[0] and not any(step % vector for step in x_steps)
    y = (p.y.along_k or p.y.kept == 1) and aligned[1]
    y = y and not any(step % vector for step in (p.y.step, p.y.outer, p.y.inner))
    return {"BY_WORD": int(x or vector == 1), "Y_BY_WORD": int(y or vector == 1)}


def _power(length: int) -> int:
    """The power of two that is as large, or the next."""
    return 1 << max(length - 1, 0).bit_length()


class Family(NamedTuple):
    """For a kind of device: rows up to which a product is thin, and how it is cut."""

    most_rows: int
    cut: Callable[[Device, np.dtype, Problem, tuple[bool, bool]], Cut]


FAMILIES = {"cpu": Family(4, _cpu_cut), "gpu": Family(16, _gpu_cut)}
