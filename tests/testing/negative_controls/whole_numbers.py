"""Faults in integers and sums, on NumPy: conversions through a narrower dtype, narrow accumulators, wraparound."""

import numpy as np

from polyarr import ops
from polyarr.core.backend import count_download
from tests.testing.negative_controls.sizes import spoilt, wrapping
from tests.testing.negative_controls.table import differs, fault, with_kernels


def through(op, dtypes, narrow, name, good="numpy"):
    """Convert arrays of these dtypes, and the result, through a narrower dtype."""

    def narrowed(b):
        if isinstance(b, tuple):
            return tuple(map(narrowed, b))
        return b.astype(narrow).astype(b.dtype) if getattr(b, "dtype", None) in dtypes else b

    def change(kernel):
        def changed(out, *bufs, **params):
            with np.errstate(all="ignore"):
                return kernel(out, *map(narrowed, bufs), **params)

        return changed

    wrapping(good, op, name, {f"numbers-{op.name}": differs()}, change)


SIGNED, UNSIGNED = (np.dtype("int32"), np.dtype("int64")), (np.dtype("uint32"), np.dtype("uint64"))
for _op in (ops.maximum, ops.less, ops.where, ops.concat, ops.max, ops.argsort):
    through(_op, SIGNED[:1], np.float32, f"{_op.name}: int32 goes through float32")
for _op in (ops.argmax, ops.equal, ops.take, ops.slice_update, ops.multiply, ops.remainder, ops.cumulative_sum):
    through(_op, SIGNED[1:], np.float64, f"{_op.name}: int64 goes through float64")
through(ops.matrix_product, SIGNED[1:], np.int32, "matrix_product: int64 goes through int32")


def wrapped_sign(kernel):
    def changed(out, x, y):
        signed = [b.astype("int64") if getattr(b, "dtype", None) == np.uint64 else b for b in (x, y)]
        if out.dtype == np.uint64 and all(isinstance(b, np.ndarray) for b in signed):
            return np.minimum(*signed).astype(np.uint64)
        return kernel(out, x, y)

    return changed


wrapping(
    "numpy",
    ops.minimum,
    "minimum: uint64 is compared as int64",
    {"numbers-minimum": differs(dtype="uint64")},
    wrapped_sign,
)

# ---- Python numbers ----------------------------------------------------------------------------------------------


def of_number(dtype, narrow):
    """Convert a Python number through a narrower dtype if the array has this dtype."""

    def change(kernel):
        def changed(out, *bufs, **params):
            if any(getattr(b, "dtype", None) == dtype for b in bufs):
                with np.errstate(all="ignore"):
                    bufs = [b if isinstance(b, np.ndarray) else narrow(b) for b in bufs]
            return kernel(out, *bufs, **params)

        return changed

    return change


def as_int32(number):
    return int(np.array(number & 2**32 - 1, np.uint32).view(np.int32))


for _op, _dtype, _narrow, _name in (
    (ops.add, "int64", as_int32, "add: a Python number goes through int32"),
    (ops.subtract, "float64", lambda n: float(np.float32(n)), "subtract: a Python number goes through float32"),
    (
        ops.greater,
        "int64",
        lambda n: int(np.float64(n)) if abs(n) < 2**62 else n,
        "greater: a Python number goes through float64",
    ),
    (ops.bitwise_and, "uint64", lambda n: n & 2**63 - 1, "bitwise_and: a Python number loses its highest bit"),
):
    wrapping("numpy", _op, _name, {f"numbers-{_op.name}": differs()}, of_number(_dtype, _narrow))


def narrow_value(kernel):
    def changed(out, value, like, *, shape, dtype):
        small = (
            int(np.float64(value)) if dtype == np.int64 else float(np.float32(value)) if dtype == np.float64 else value
        )
        return kernel(out, small, like, shape=shape, dtype=dtype)

    return changed


def stepped_up(kernel):
    """Add the step repeatedly, in the dtype itself."""

    def changed(out, start, step, like, *, size, dtype):
        if dtype.kind != "f" or not size:
            return kernel(out, start, step, like, size=size, dtype=dtype)
        steps = np.full(size, step, dtype)
        steps[0] = start
        return np.cumsum(steps, dtype=dtype)

    return changed


def whole_in_float(kernel):
    def changed(out, start, step, like, *, size, dtype):
        found = kernel(out, float(start), float(step), like, size=size, dtype=np.dtype("float64"))
        return found.astype(dtype)

    return changed


wrapping("numpy", ops.fill, "fill: a value goes through a narrower number", {"numbers-fill": differs()}, narrow_value)
wrapping("numpy", ops.iota, "iota: one step is added after the other", {"numbers-iota": differs()}, stepped_up)
wrapping("numpy", ops.iota, "iota: whole numbers go through float64", {"numbers-iota": differs()}, whole_in_float)

# ---- conversions -------------------------------------------------------------------------------------------------


def converted(source, target, through):
    """Convert one kind of dtype to another through a third."""

    def change(kernel):
        def changed(out, x, *, dtype):
            if x.dtype.kind == source and dtype.kind == target:
                with np.errstate(all="ignore"):
                    return x.astype(through(x, dtype)).astype(dtype)
            return kernel(out, x, dtype=dtype)

        return changed

    return change


for _source, _target, _through, _name in (
    ("f", "i", lambda x, d: "int32", "astype: floats become whole numbers by way of int32"),
    ("f", "u", lambda x, d: "int64" if d == np.uint64 else d, "astype: floats become uint64 by way of int64"),
    ("i", "f", lambda x, d: "float32", "astype: whole numbers become float64 by way of float32"),
    ("i", "i", lambda x, d: "float64", "astype: whole numbers become others by way of float64"),
):
    wrapping("numpy", ops.astype, _name, {"numbers-astype": differs()}, converted(_source, _target, _through))



def rounded_down(kernel):
    """Round floats down, not toward 0, before they become unsigned."""

    def changed(out, x, *, dtype):
        found = kernel(out, x, dtype=dtype)
        return np.where((x < 0) & (x > -1), np.iinfo(dtype).max, found) if x.dtype.kind + dtype.kind == "fu" else found

    return changed


wrapping("numpy", ops.astype, "astype: fractions below 0 are rounded down", {"numbers-astype": differs()}, rounded_down)
spoilt(
    ops.where,
    "where: without axes, the condition is taken for its inverse",
    lambda out, c, x, y: np.ndim(c) == np.ndim(x) == 0,
    lambda z, c, x, y: np.copyto(z, y if c else x),
    {"numbers-where": differs()},
)

# ---- sums --------------------------------------------------------------------------------------------------------


def one_after_the_other(kernel):
    """Sum float32 sequentially in a float32 accumulator."""

    def changed(out, x, *, axis, keepdims, dtype):
        if x.dtype != np.float32 or out.dtype != np.float32 or len(axis or ()) != 1:
            return kernel(out, x, axis=axis, keepdims=keepdims, dtype=dtype)
        with np.errstate(all="ignore"):
            running = np.cumsum(x, axis=axis[0], dtype=np.float32)
            last = np.take(running, [-1], axis=axis[0]) if x.shape[axis[0]] else np.zeros(0, np.float32)
        return (
            last.reshape(out.shape)
            if last.size == out.size
            else kernel(out, x, axis=axis, keepdims=keepdims, dtype=dtype)
        )

    return changed


def narrow_total(total):
    """Sum integers in a narrower accumulator."""

    def change(kernel):
        def changed(out, x, *, axis, keepdims, dtype):
            found = kernel(out, x, axis=axis, keepdims=keepdims, dtype=dtype)
            return found.astype(total(x)).astype(out.dtype) if x.dtype.kind in "biu" else found

        return changed

    return change


def running_in_int32(kernel):
    def changed(out, x, *, axis, dtype):
        found = kernel(out, x, axis=axis, dtype=dtype)
        return found.astype("int32").astype(out.dtype) if out.dtype == np.int64 else found

    return changed


def added_in_float32(kernel):
    """Add the k products sequentially in a float32 accumulator."""

    def changed(out, x, y):
        if out.dtype != np.float32 or x.shape[-1] < 10000:
            return kernel(out, x, y)
        return np.cumsum(x[:, :, None] * y[None], axis=1, dtype=np.float32)[:, -1]

    return changed


TOTAL = {"numbers-sum": differs()}
wrapping("numpy", ops.sum, "sum: one number after the other", {**TOTAL, "numbers-mean": differs()}, one_after_the_other)
wrapping("numpy", ops.sum, "sum: of whole numbers in int32", TOTAL, narrow_total(lambda x: "int32"))
wrapping(
    "numpy",
    ops.sum,
    "sum: of bytes in float32",
    TOTAL,
    narrow_total(lambda x: "float16" if x.dtype.itemsize == 1 else x.dtype),
)
wrapping(
    "numpy",
    ops.cumulative_sum,
    "cumulative_sum: of whole numbers in int32",
    {"numbers-cumulative_sum": differs()},
    running_in_int32,
)
wrapping(
    "numpy",
    ops.matrix_product,
    "matrix_product: one product after the other",
    {"numbers-matrix_product": differs()},
    added_in_float32,
)

# ---- numbers in arrays -------------------------------------------------------------------------------------------

HELD = differs("with its numbers in arrays, the result")


@fault("numpy", {"held-random_bits": HELD})
def a_number_is_read_from_where_its_memory_begins(backend):
    def read(number):
        return number if isinstance(number, int) else (number if number.base is None else number.base).item(0)

    def kernel(out, key, counter, like, *, shape):
        return backend.kernels[ops.random_bits](out, read(key), read(counter), like, shape=shape)

    changed = with_kernels(backend, {ops.random_bits: kernel})
    return changed._replace(reads={ops.random_bits: ("key", "counter")})


@fault("numpy", {"held-slice": r"starts \(3,\) gave \[.*\]; expected an IndexError"})
def a_start_out_of_range_counts_as_the_next_one(backend):
    def kernel(out, x, starts, *, steps, shape):
        reach = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
        lowest, highest = [max(0, -r) for r in reach], [n - 1 - max(0, r) for n, r in zip(x.shape, reach, strict=True)]
        return backend.kernels[ops.slice](out, x, tuple(np.clip(starts, lowest, highest)), steps=steps, shape=shape)

    return with_kernels(backend, {ops.slice: kernel})._replace(reads={ops.slice: ("starts",)})


@fault("numpy", {"held-slice_update": r"with its numbers in arrays, 1 of them came to the host"})
def a_start_is_read_by_the_host(backend):
    def kernel(out, x, value, starts, *, steps):
        numbers = []
        for start in starts:
            if not isinstance(start, int):
                count_download(start.nbytes)
            numbers.append(int(start))
        return backend.kernels[ops.slice_update](out, x, value, tuple(numbers), steps=steps)

    return with_kernels(backend, {ops.slice_update: kernel})._replace(reads={ops.slice_update: ("starts",)})
