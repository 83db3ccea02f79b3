"""Matrix products: selects kernel, tiles and work-groups. Transposed operands are read without a copy."""

from collections.abc import Callable
from dataclasses import asdict
from math import log2
from typing import Any

import numpy as np

from polyarr.backends.opencl.copying.copy import dense, duplicate, in_whole_rows, padded
from polyarr.backends.opencl.copying.shape import concat
from polyarr.backends.opencl.elementwise import elementwise
from polyarr.backends.opencl.gemm import gemv
from polyarr.backends.opencl.gemm.product import (
    PLAIN,
    Arrays,
    Copies,
    Epilogue,
    Im2col,
    Operand,
    Plan,
    Problem,
    blocks_in,
    kernel_of,
    problem_of,
)
from polyarr.backends.opencl.reductions.reduce import launcher as reduction
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import (
    Buffer,
    Shape,
    broadcast,
    is_aligned,
    of_parts,
    pieces,
    reshaped,
    spec_of,
    swapped,
    view,
    with_parts,
)
from polyarr.backends.opencl.runtime.program import STORED
from polyarr.backends.opencl.runtime.source import SCALARS
from polyarr.backends.opencl.runtime.variants import Variant, choose
from polyarr.backends.opencl.tuning.tuned import best
from polyarr.backends.opencl.tuning.tuning import CpuMatmul, GpuMatmul, MatmulParams, lookup
from polyarr.core.spec import Spec, float32, float64, real_of

GROUPS_PER_UNIT = 2  # work-groups per compute unit that keep a GPU busy
MIN_SLICE_K = 256  # elements of k that are worth a work-group of their own
MIN_UTILIZATION = 0.9  # share of busy units from which on each tile gets exactly one work-group
MAX_SUM_LENGTH = 2**13  # length of k up to which a kernel's sums stay accurate; a longer k is split
MAX_K_PARTS = 2**14
MAX_UNPACKED_XT = 2**14  # elements of x^T that a CPU reads in place as fast as packed
MIN_PACKED_STRIDE = 1024  # elements (a page) between rows of x, and columns, from which on a CPU packs x
MAX_LOCAL_PANELS = 2**19 - 2**14  # bytes of local memory for a CPU's packed panels: most of the L2 cache
MIN_WORK_PER_THREAD = 2**20  # multiply-adds that are worth waking another thread
MIN_COLUMNS = 48  # columns whose multiply-adds take as long as reading a row of x
MIN_WORK_PER_SHARE = 2**18  # multiply-adds that are worth a share of their own
TURNS = 8  # shares per thread
SHARE_COUNTS = sorted(2**power * odd for power in range(12) for odd in (1, 3))  # candidates along an axis
PACKING_COST = {False: 12, True: 20}  # cost of packing an element, in multiply-adds, by whether it lies along k
READING_COST = {False: 2, True: 6}  # likewise to read an element of x in place, by whether rows are far apart
SUM = reduction("sum")
TIMES_I = "times_i(x)"

NO_WORK = Plan(lambda arrays, x_start, y_start: None, None)


def matmul(device: Device, out: Spec, x: Buffer, y: Buffer, *, precision: str = "highest") -> Buffer:
    """Return the matrix product over the last two axes; leading axes broadcast.

    A vector is a row on the left, a column on the right.
    """
    epilogue = PLAIN if precision == PLAIN.precision else PLAIN._replace(precision=precision)
    multiplied = _complex_product if out.dtype.kind == "c" else product
    if x.ndim > 1 and y.ndim > 1:
        return multiplied(device, out, x, y, None, epilogue)[0]
    shape = (*out.shape, 1) if y.ndim == 1 else out.shape
    shape = (*shape[:-1], 1, shape[-1]) if x.ndim == 1 else shape
    x = broadcast(x, (1, *x.shape)) if x.ndim == 1 else x
    y = swapped(broadcast(y, (1, *y.shape))) if y.ndim == 1 else y
    return reshaped(multiplied(device, Spec(shape, out.dtype), x, y, None, epilogue)[0], out.shape)


def _complex_product(
    device: Device, out: Spec, x: Buffer, y: Buffer, bias: None, epilogue: Epilogue
) -> tuple[Buffer, None]:
    """Return the product of complex matrices, as one of real ones that are twice as long along k and n.

    The parts of x and of the result alternate along the rows, as they do in memory. Each row of y is followed by i
    times that row.
    """
    (k, n), real, lead = y.shape[-2:], real_of(out.dtype), y.shape[:-2]
    x = with_parts(x if x.strides[-1] == 1 else duplicate(device, x))
    x = view(x, (*x.shape[:-2], 2 * k), (*x.strides[:-2], 1), x.offset)
    rows = device.empty(Spec((*lead, k, 2, n), out.dtype))
    for part, expression in enumerate((elementwise.COPY, TIMES_I)):
        target = view(rows, y.shape, (*rows.strides[:-2], 1), part * n)
        elementwise.launch(device, spec_of(y), y, expression=expression, target=target)
    y = reshaped(with_parts(rows), (*lead, 2 * k, 2 * n))
    result, _ = product(device, Spec((*out.shape[:-1], 2 * n), real), x, y, bias, epilogue)
    return of_parts(reshaped(result, (*out.shape, 2))), None


def product(
    device: Device, out: Spec, x: Buffer, y: Buffer, bias: Buffer | None = None, epilogue: Epilogue = PLAIN
) -> tuple[Buffer, Buffer | None]:
    """Return activation(x @ y + bias), and the activation's input if the epilogue saves it, else None.

    bias is dense. Rows of the result are padded if the epilogue allows it.
    """
    if x.shape[-1] >= 2 * MAX_SUM_LENGTH and epilogue._replace(pads=False) == PLAIN and out.dtype in (float32, float64):
        room = (x.size + y.size) // (4 * max(out.size, 1))  # a quarter of the size of x and y may go to partial results
        parts = min(x.shape[-1] // device.geometry.product_part, MAX_K_PARTS, room)
        if parts > 1:
            return _split_k(device, out, x, y, parts), None
    return _product(device, out, x, y, bias, epilogue)


def _split_k(device: Device, out: Spec, x: Buffer, y: Buffer, parts: int) -> Buffer:
    """Split a long k, multiply the parts and the remainder, and add up the partial products with the kernel of sum."""
    depth, lead = x.shape[-1], len(out.shape) - 2
    length = depth // parts
    products = []
    for first, count, each in ((0, parts, length), (parts * length, 1, depth - parts * length)):
        left, right = (pieces(_with_batch(a, lead), axis, first, count, each) for a, axis in ((x, -1), (y, -2)))
        products.append(_product(device, Spec((count, *out.shape), out.dtype), left, right, None, PLAIN)[0])
    stacked = concat(device, Spec((parts + 1, *out.shape), out.dtype), tuple(products), axis=0)
    return SUM(device, out, stacked, axis=(0,))


def _with_batch(matrices: Buffer, lead: int) -> Buffer:
    """Return matrices broadcast to `lead` leading axes."""
    return broadcast(matrices, (1,) * (lead + 2 - matrices.ndim) + matrices.shape)


def _product(
    device: Device, out: Spec, x: Buffer, y: Buffer, bias: Buffer | None, epilogue: Epilogue
) -> tuple[Buffer, Buffer | None]:
    plan = _find_plan(device, out, x, y, epilogue) if out.size else NO_WORK
    if plan is None:
        return _product(device, out, *_readable(device, out, x, y), bias, epilogue)
    if isinstance(plan, Copies):
        x, y = (in_whole_rows(device, buf) if copy else buf for buf, copy in ((x, plan.x), (y, plan.y)))
        return _product(device, out, x, y, bias, epilogue)
    return run(device, out, plan, x, y, bias, epilogue)


def run(
    device: Device, out: Spec, plan: Plan, x: Buffer, y: Buffer, bias: Buffer | None, epilogue: Epilogue
) -> tuple[Buffer, Buffer | None]:
    """Launch a plan; return the result, and the activation's input if the epilogue saves it."""
    result = padded(device, out, plan.pitch) if plan.pitch else device.empty(out)
    saved = device.empty(out) if epilogue.save else None
    sums = device.empty(plan.sums) if plan.sums else result
    arrays = tuple(buf and buf.memory for buf in (x, y, bias, sums, result, saved))
    plan.launch(arrays, x.offset, y.offset)
    return result, saved


def _find_plan(device: Device, out: Spec, x: Buffer, y: Buffer, epilogue: Epilogue) -> Plan | Copies | None:
    aligned = is_aligned(x), is_aligned(y)  # an aligned operand is read 16 bytes at a time
    return device.plans[_plan](out, x.shape, x.strides, y.shape, y.strides, aligned, epilogue)


def _readable(device: Device, out: Spec, x: Buffer, y: Buffer) -> tuple[Buffer, Buffer]:
    """Return copies of operands that no kernel reads: contiguous along one axis, or else without broadcasting."""
    if 1 in x.strides[-2:] and 1 in y.strides[-2:]:
        return _repeated(device, out, x), _repeated(device, out, y)
    x, y = (buf if 1 in buf.strides[-2:] else dense(device, buf) for buf in (x, y))
    return x, y


def _repeated(device: Device, out: Spec, buf: Buffer) -> Buffer:
    """Return a dense copy that repeats what broadcasting would repeat."""
    return dense(device, broadcast(buf, out.shape[:-2] + buf.shape[-2:]))


# ---- the plan ----------------------------------------------------------------------------------------------


def _plan(
    device: Device, out: Spec, x_shape: Shape, x_strides: Shape, y_shape: Shape, y_strides: Shape,
    aligned: tuple[bool, bool], epilogue: Epilogue,
) -> Plan | Copies | None:  # fmt: skip
    """Plan a product; None if an operand must be copied first."""
    problem = problem_of(out.shape, x_shape, x_strides, y_shape, y_strides)
    if problem is None:
        return None
    too_far = max(problem.x.step, problem.y.step) > device.geometry.largest_step
    is_contiguous = 1 in (problem.x.kept, problem.x.deep) and 1 in (problem.y.kept, problem.y.deep)
    if not (gemv.is_skinny(device, problem) or too_far):
        return plan_of(device, out.dtype, problem, aligned, epilogue) if is_contiguous else None
    is_compute_bound = is_contiguous and not too_far and gemv.is_compute_bound(out.dtype, problem)
    vendor = device.vendor.gemv + (device.vendor.gemm if is_compute_bound else ())
    variants = (*vendor, *gemv.VARIANTS)
    return choose(device, "gemm", variants, out.dtype, problem, aligned, epilogue)


def plan_of(
    device: Device, dtype: np.dtype, problem: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan | Copies:
    """Plan a product whose operands are each contiguous along one axis."""
    variants = *device.vendor.gemv, *device.vendor.gemm, gemv.FEW_ROWS, *TILED
    return choose(device, "gemm", variants, dtype, problem, aligned, epilogue)


def _cpu_plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan:
    """Plan one work-group per core; the work-groups take shares of rows and columns until none are left."""
    params = device.plans[tiles](dtype, _layout(p), p.batch, p.m, p.n, p.k)[0]
    workers = workers_for(p, device.features.compute_units)
    launch = _cpu_launch(device, dtype, p, epilogue, params, shares(params, p, workers), workers)
    stored, accumulator = STORED[dtype]
    return Plan(launch, None if stored == accumulator else Spec((p.batch, p.m, p.n), SCALARS[accumulator]))


def one_block(
    device: Device, dtype: np.dtype, params: CpuMatmul, lengths: tuple[int, int, int]
) -> Callable[[Arrays], None]:
    """Return a launcher of the product (m, k) @ (k, n) of row-major matrices on one core, for measurements."""
    m, n, k = lengths
    problem = Problem(1, 1, m, n, k, Operand(k, 1, 0, 0), Operand(1, n, 0, 0))
    launch = _cpu_launch(device, dtype, problem, PLAIN, params, (m, n), 1)
    return lambda arrays: launch(arrays, 0, 0)


def _cpu_launch(
    device: Device, dtype: np.dtype, p: Problem, epilogue: Epilogue, params: CpuMatmul, share: tuple[int, int],
    workers: int,
) -> Callable[[Arrays, int, int], None]:  # fmt: skip
    """Return the launcher of a product with this tile. `share` is the rows and columns that a worker takes at a time.
    """
    stored, accumulator = STORED[dtype]
    same, (rows, columns) = stored == accumulator, share
    finish, direct = not same or epilogue != PLAIN, same and _in_place(p, columns)
    count, itemsize = blocks_in(p.m, rows) * blocks_in(p.n, columns) * p.batch, SCALARS[accumulator].itemsize
    workers = min(workers, count)
    x_packed, y_packed = params.packed_elements(params.ROWS if direct else rows, columns, p.k)
    # Scratch memory that a thread used last is in its caches; a work-group's own buffer may come from another core.
    most = min(device.features.local_memory, MAX_LOCAL_PANELS) // itemsize
    local = most if x_packed + y_packed <= most else 0
    in_floats = int(accumulator == "float")
    flags = {"FLOAT_SUMS": in_floats, "FINISH": int(finish), "DIRECT": int(direct), "LOCAL_ROOM": local}
    program = device.build("matmul_cpu", **epilogue.macros(dtype), **flags, **p.macros, **asdict(params))
    kernel, im2col = kernel_of(program, p)
    panels = 0 if local else workers * (x_packed + y_packed) * itemsize  # bytes
    dealing = device.plans[_share_counters](), count, max(1, count // (TURNS * workers))
    scalars, batch = (p.m, p.n, p.k, rows, columns, x_packed + y_packed, y_packed), p.batch_strides

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        memory, steps = device.scratch(panels) if panels else None, (x_start, p.x.step, y_start, p.y.step)
        kernel((workers,), (1,), *arrays, memory, *dealing, *scalars, *steps, *batch, *im2col)

    return launch


def _share_counters(device: Device) -> Any:
    """Allocate the counters by which work-groups share a product; they are 0 between kernels, which run in order."""
    return device.empty_words(2)


def _in_place(p: Problem, columns: int) -> bool:
    """Return whether a CPU reads x in place as fast as packed: its rows are close together, or columns are few."""
    if p.im2col and not p.of_y:
        return True
    return columns < MIN_PACKED_STRIDE or p.x.step < MIN_PACKED_STRIDE if p.x.along_k else p.m * p.k <= MAX_UNPACKED_XT


def workers_for(p: Problem, cores: int) -> int:
    """Return the number of work-groups that a product keeps busy."""
    return max(1, min(cores, p.batch * p.m * max(p.n, MIN_COLUMNS) * p.k // MIN_WORK_PER_THREAD))


def shares(params: CpuMatmul, p: Problem, workers: int) -> tuple[int, int]:
    """Return the rows and columns of a worker's share: large enough to amortize packing, small enough to balance."""
    if workers == 1 or p.batch >= TURNS * workers:
        return p.m, p.n
    most = max(1, min(TURNS * workers, p.batch * p.m * p.n * p.k // MIN_WORK_PER_SHARE) // p.batch)
    cuts = [parts for parts in SHARE_COUNTS if parts <= most]
    return min(
        (
            (_rounded_share(p.m, high, params.ROWS), _rounded_share(p.n, wide, params.WIDE))
            for high in cuts
            for wide in cuts
            if high * wide <= most
        ),
        key=lambda share: _cpu_time(params, p, share[0], share[1], workers),
    )


def _cpu_time(params: CpuMatmul, p: Problem, rows: int, columns: int, workers: int) -> float:
    """Estimate the time of a product in multiply-adds.

    Seven eighths of the time all cores work on it; for the rest, one core is also busy with something else.
    """
    count = blocks_in(p.m, rows) * blocks_in(p.n, columns) * p.batch
    rows, columns = min(rows, p.m), min(columns, p.n)
    turns = blocks_in(count, workers)
    disturbed = next(t for t in range(turns, 2 * turns + 1) if (workers - 1) * t + t // 2 >= count)
    width = params.VECTORS * params.WIDE
    spare = -columns % width / 2  # columns missing from a tile take half of their time
    reading = READING_COST[p.x.step >= MIN_PACKED_STRIDE] if _in_place(p, columns) else PACKING_COST[p.x.along_k]
    return (7 * turns + disturbed) * (rows * (columns + spare) + PACKING_COST[p.y.along_k] * columns + reading * rows)


def _rounded_share(length: int, parts: int, multiple: int) -> int:
    """Return a part of length, rounded up to a multiple."""
    return blocks_in(blocks_in(length, parts), multiple) * multiple


def _gpu_plan(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue
) -> Plan:
    """Plan one tile per work-group, or work-groups that share tiles if tiles are few or do not divide evenly."""
    found = device.plans[tiles](dtype, _layout(p), p.batch, p.m, p.n, p.k)
    params, groups = gpu_tiles(found, p, device.features.compute_units)
    return _gpu_launch(device, dtype, p, aligned, epilogue, params, groups)


def _gpu_launch(
    device: Device, dtype: np.dtype, p: Problem, aligned: tuple[bool, bool], epilogue: Epilogue, params: GpuMatmul,
    groups: int,
) -> Plan:  # fmt: skip
    tiles = _gpu_tiles(params, p)
    shared = groups != tiles
    widths = {
        "X_VECTOR": _vector(dtype, p.x, p.m, p.k, aligned[0], None if p.of_y else p.im2col),
        "Y_VECTOR": _vector(dtype, p.y, p.n, p.k, aligned[1], p.im2col if p.of_y else None),
        "OUT_VECTOR": 4 if dtype == float32 and p.n % 4 == 0 else 1,
    }
    flags = {"FLOAT32": int(dtype == float32), "SPLIT": int(shared), **p.macros, **widths}
    program = device.build("matmul_gpu", **epilogue.macros(dtype), **flags, **asdict(params))
    kernel, im2col = kernel_of(program, p)
    work, join_work, group = (groups * params.items,), (tiles * params.items, params.ITEM_M // 4), (params.items,)
    scalars, batch = (p.m, p.n, p.k, tiles), p.batch_strides

    def launch(arrays: Arrays, x_start: int, y_start: int) -> None:
        kernel(work, group, *arrays, *scalars, x_start, p.x.step, y_start, p.y.step, *batch, *im2col)
        if shared:
            program.matmul_join(join_work, (*group, 1), *arrays[2:], *scalars, groups)

    accumulator = SCALARS[STORED[dtype][1]]
    return Plan(launch, Spec((2 * groups, params.TILE_M, params.TILE_N), accumulator) if shared else None)


def gpu_tiles(candidates: tuple[GpuMatmul, ...], p: Problem, units: int) -> tuple[GpuMatmul, int]:
    """Return the largest tiles that keep all units busy, and the work-groups: one per tile unless they share tiles."""
    slots = GROUPS_PER_UNIT * units
    for params in candidates:
        tiles, steps = _gpu_tiles(params, p), blocks_in(p.k, params.TILE_K)
        if tiles >= MIN_UTILIZATION * blocks_in(tiles, units) * units:
            return params, tiles
        if tiles * steps * params.TILE_K >= slots * MIN_SLICE_K:
            return params, slots
    tiles = _gpu_tiles(candidates[-1], p)
    return candidates[-1], max(tiles, min(slots, tiles * p.k // MIN_SLICE_K))


def _gpu_tiles(params: GpuMatmul, p: Problem) -> int:
    return blocks_in(p.m, params.TILE_M) * blocks_in(p.n, params.TILE_N) * p.batch


def _vector(
    dtype: np.dtype, operand: Operand, length: int, k: int, aligned: bool, im2col: Im2col | None
) -> int:
    """Return 4 if the contiguous rows of the operand can be read as vectors of 4, else 1."""
    steps: tuple[int, ...] = operand.outer, operand.inner
    if im2col is None:
        steps += (k if operand.along_k else length, operand.step)
    even = not any(step % 4 for step in steps) and (im2col is None or im2col.has_runs_of(4, operand.along_k))
    return 4 if dtype == float32 and aligned and even else 1


TILED = (
    Variant("tiled", "products on CPUs: packed panels, a tile in registers", _cpu_plan, "cpu"),
    Variant("tiled", "products on GPUs: a tile per work-group, or shared by several", _gpu_plan, "gpu"),
)


# ---- which tiles -------------------------------------------------------------------------------------------

FORMS = {(True, False): "NN", (True, True): "NT", (False, False): "TN", (False, True): "TT"}  # by (x, y) along k
MAX_TUNED_LENGTH = 256  # rows, columns and depth from which on a CPU's best tile no longer depends on them


def tiles(
    device: Device, dtype: np.dtype, form: str, batch: int, m: int, n: int, k: int
) -> tuple[MatmulParams, ...]:
    """Return the best known parameters: the measured ones for products like this one, else those of the package."""
    found = best(device, "matmul", dtype, shape_class(device, form, m, n, k)) if batch == 1 else None
    return (found,) if found else device.plans[lookup](dtype)


def _layout(p: Problem) -> str:
    return FORMS[p.x.along_k, p.y.along_k]


def shape_class(device: Device, form: str, *lengths: int) -> str:
    """Return the key of tuned parameters: lengths rounded to powers of two; packed operands share one layout."""
    near = [2 ** round(log2(max(length, 1))) for length in lengths]
    if device.geometry.packs:
        form, near = "any", [min(length, MAX_TUNED_LENGTH) for length in near]
    return f"{form} {' x '.join(map(str, near))}"
