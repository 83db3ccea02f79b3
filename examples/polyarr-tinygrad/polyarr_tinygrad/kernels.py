"""The kernels. A buffer is a tinygrad Tensor that has been computed: every kernel ends with realize()."""

from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import numpy as np
from tinygrad import Device, Tensor, dtypes

from polyarr import ops
from polyarr.core.spec import COMPLEX, DTYPES, bfloat16
from polyarr_tinygrad import functions as f

TINYGRAD = {dtype: getattr(dtypes, dtype.name) for dtype in DTYPES if dtype not in COMPLEX}
NUMPY = {found: dtype for dtype, found in TINYGRAD.items()}
THREAD = ThreadPoolExecutor(1, "tinygrad")  # its cache of compiled kernels cannot be used in several threads


def describe():
    return f"tinygrad's device {Device.DEFAULT}"


# ---- moving data ---------------------------------------------------------------------------------------------


def in_thread(fn):
    """Return the function with its calls made by tinygrad's thread."""
    return wraps(fn)(lambda *args, **kwargs: THREAD.submit(fn, *args, **kwargs).result())


def tensor_of(host):
    """Return a NumPy array's copy. Without axes tinygrad would compile it into kernels, as a constant."""
    flat = np.array(host, order="C").reshape(-1)
    flat = Tensor(flat.view(np.uint16)).bitcast(dtypes.bfloat16) if host.dtype == bfloat16 else Tensor(flat)
    return flat.realize().reshape(host.shape)


def array_of(buf):
    if buf.dtype == dtypes.bfloat16:
        return np.array(buf.bitcast(dtypes.uint16).numpy(), order="C").view(bfloat16)
    return np.array(buf.numpy(), order="C")


upload, download = in_thread(tensor_of), in_thread(array_of)


# ---- kernels from functions ----------------------------------------------------------------------------------


def computed(kernel):
    """Return the kernel with its result computed; tinygrad itself would wait until somebody reads it."""
    return in_thread(lambda out, *bufs, **params: kernel(out, *bufs, **params).cast(TINYGRAD[out.dtype]).realize())


def number(value, dtype):
    return tensor_of(np.asarray(value, dtype))


def wide(x):
    """Return x with floating-point numbers in float64, where tinygrad's functions are more exact than float32."""
    return x.cast(dtypes.float64) if dtypes.is_float(x.dtype) else x


def elementwise(fn):
    """Return a kernel made of a function of tensors; Python numbers take the tensors' dtype."""

    def kernel(out, *bufs):
        dtype = next(b.dtype for b in bufs if isinstance(b, Tensor))
        return fn(*(wide(b if isinstance(b, Tensor) else number(b, NUMPY[dtype])) for b in bufs))

    return kernel


def reduction(fn):
    """Return a kernel made of fn(x, axes) for at least one axis."""

    def kernel(out, x, *, axis, keepdims, dtype=None):
        x = wide(x if dtype is None else x.cast(TINYGRAD[dtype]))
        return (fn(x, axis) if axis else x).reshape(out.shape)

    return kernel


# ---- kernels that need the result's Spec or parameters ----------------------------------------------------------


def index_of(reduce):
    """Return a kernel for the first index of what reduce(x, axes) finds."""

    def kernel(out, x, *, axis, keepdims):
        rows = x.reshape(-1) if axis is None else x.transpose(axis, -1)
        found = reduce(rows, -1).unsqueeze(-1)
        hit = (rows == found) | (f.isnan(rows) & f.isnan(found))
        first = hit.where(Tensor.arange(rows.shape[-1], dtype=dtypes.int64), rows.shape[-1]).min(-1)
        return (first if axis is None else first.unsqueeze(-1).transpose(axis, -1)).reshape(out.shape)

    return kernel


def cumulative_sum(out, x, *, axis, dtype):
    return wide(x.cast(TINYGRAD[dtype])).cumsum(axis)


def matrix_product(x, y):
    return x.matmul(y, dtype=x.dtype)


def astype(out, x, *, dtype):
    return x != 0 if dtype.kind == "b" else x


def tensor(x, out):
    return x if isinstance(x, Tensor) else number(x, out.dtype)


def nextafter(out, x, y):
    return f.nextafter(tensor(x, out), tensor(y, out))


def where(out, condition, x, y):
    return condition.where(tensor(x, out), tensor(y, out))


def fill(out, value, like, *, shape, dtype):
    return tensor(value, out).expand(shape).contiguous()


def iota(out, start, step, like, *, size, dtype):
    exact = np.dtype("i8" if dtype.kind in "iub" else "f8")
    return Tensor.arange(size, dtype=TINYGRAD[exact]) * number(step, exact) + number(start, exact)


def random_bits(out, key, counter, like, *, shape):
    """Return Philox4x32-10: four words from each block's number and `counter`, in ten rounds with a changing key."""
    low = 2**32 - 1
    key, counter = (number(v & 2**64 - 1, np.uint64) for v in (key, counter))
    block = Tensor.arange(-(-out.size // 4), dtype=dtypes.uint64)
    a, b, c, d = block & low, block >> 32, counter & low, counter >> 32
    for i in range(10):
        k0, k1 = (key + i * 0x9E3779B9) & low, ((key >> 32) + i * 0xBB67AE85) & low
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (right >> 32) ^ b ^ k0, right & low
        c, d = (left >> 32) ^ d ^ k1, left & low
    words = [word.expand(block.shape) for word in (a, b, c, d)]
    return Tensor.stack(*words, dim=-1).reshape(-1)[: out.size].reshape(shape)


# ---- windows, indices, order ---------------------------------------------------------------------------------


def slice_(out, x, starts, *, steps, shape):
    return x[tuple(map(window, starts, steps, shape))]


def window(start, step, n):
    """Return a Python slice. One that runs back to the first element ends at None, because -1 would mean the last."""
    end = start + n * step
    return slice(start, end if end >= 0 else None, step) if n else slice(0, 0)


def slice_update(out, x, value, starts, *, steps):
    """Return x where no element of value lies; each element of x looks up its own in value, axis by axis."""
    if not value.numel():
        return x
    inside = Tensor.ones(x.shape, dtype=dtypes.bool)
    for axis, (start, step) in enumerate(zip(starts, steps, strict=True)):
        distance = (Tensor.arange(x.shape[axis]) - start) * (1 if step > 0 else -1)
        index = distance // abs(step)
        hit = (distance >= 0) & (distance % abs(step) == 0) & (index < value.shape[axis])
        value = index_axis(value, axis, hit.where(index, 0))
        inside = inside & hit.reshape((-1, *(1,) * (x.ndim - axis - 1)))
    return inside.where(value, x)


def index_axis(x, axis, indices):
    return x[(*(slice(None),) * axis, indices)]


def normalized(indices, n):
    """Return the indices with one axis, from 0 to n - 1."""
    flat = indices.reshape(-1).cast(dtypes.int64)
    found = (flat < 0).where(flat + n, flat)
    if found.numel() and ((found < 0) | (found >= n)).any().item():
        raise IndexError(f"an index is out of range: the axis has {n} elements")
    return found


def take(out, x, indices, *, axis):
    return index_axis(x, axis, normalized(indices, x.shape[axis])).reshape(out.shape)


def scatter(out, x, indices, updates, *, axis):
    """Return x with updates assigned; the last one for an index wins."""
    if not updates.numel():
        return x
    hits = one_hot(indices, x.shape[axis])
    last = hits.where(Tensor.arange(hits.shape[1]), -1).max(1)
    new = index_axis(rows(x, updates, axis), axis, last.maximum(0))
    return (last >= 0).reshape((-1, *(1,) * (x.ndim - axis - 1))).where(new, x)


def scatter_add(out, x, indices, updates, *, axis):
    if not updates.numel():
        return x
    hits = one_hot(indices, x.shape[axis])
    hits = hits.reshape((*hits.shape, *(1,) * (x.ndim - axis - 1)))
    return wide(x) + hits.where(wide(rows(x, updates, axis)).unsqueeze(axis), 0).sum(axis + 1)


def one_hot(indices, n):
    """Return where index j is position i, as a bool tensor (n, number of indices)."""
    return Tensor.arange(n, dtype=dtypes.int64).unsqueeze(1) == normalized(indices, n)


def rows(x, updates, axis):
    """Return updates with the axes of the indices merged into one."""
    return updates.reshape((*x.shape[:axis], -1, *x.shape[axis + 1 :]))


def argsort(out, x, *, axis, descending, stable):
    """Return the inverse of each element's rank: the number of elements that come before it."""
    row = x.transpose(axis, -1)
    a, b = row.unsqueeze(-1), row.unsqueeze(-2)  # is b before a?
    if dtypes.is_float(x.dtype):
        above = lambda p, q: (p > q) | (f.isnan(p) & ~f.isnan(q))
    else:
        above = lambda p, q: p > q
    before, after = (above(b, a), above(a, b)) if descending else (above(a, b), above(b, a))
    index = Tensor.arange(row.shape[-1], dtype=dtypes.int64)
    rank = (before | (~after & (index < index.unsqueeze(-1)))).sum(-1, dtype=dtypes.int64).contiguous()
    order = (rank.unsqueeze(-2) == index.unsqueeze(-1)).where(index, 0).sum(-1)
    return order.transpose(axis, -1)


# ---- the table -----------------------------------------------------------------------------------------------

_FUNCTIONS = {
    ops.add: Tensor.add, ops.subtract: Tensor.sub, ops.multiply: Tensor.mul, ops.divide: Tensor.div,
    ops.floor_divide: f.floor_divide, ops.remainder: f.remainder, ops.pow: f.power, ops.maximum: f.maximum,
    ops.minimum: f.minimum, ops.negative: Tensor.neg, ops.abs: f.absolute, ops.sign: f.sign, ops.floor: Tensor.floor,
    ops.round: f.round_, ops.exp: Tensor.exp, ops.expm1: f.expm1, ops.log: f.log, ops.log1p: f.log1p,
    ops.sqrt: Tensor.sqrt, ops.sin: Tensor.sin, ops.cos: f.cos, ops.atan2: f.atan2, ops.tanh: f.tanh, ops.erf: f.erf,
    ops.equal: Tensor.eq, ops.less: Tensor.__lt__, ops.less_equal: f.less_equal, ops.signbit: f.signbit,
    ops.bitwise_and: Tensor.bitwise_and, ops.bitwise_or: Tensor.bitwise_or, ops.bitwise_xor: Tensor.bitwise_xor,
    ops.bitwise_invert: Tensor.bitwise_not, ops.bitwise_left_shift: f.left_shift,
    ops.bitwise_right_shift: f.right_shift, ops.matrix_product: matrix_product,
}  # fmt: skip
_KERNELS = {
    **{op: elementwise(fn) for op, fn in _FUNCTIONS.items()},
    ops.sum: reduction(lambda x, axes: x.sum(axes, dtype=x.dtype)),
    ops.prod: reduction(lambda x, axes: x.prod(axes, dtype=x.dtype)),
    ops.max: reduction(f.largest), ops.min: reduction(f.smallest),
    ops.argmax: index_of(f.largest), ops.argmin: index_of(f.smallest), ops.cumulative_sum: cumulative_sum,
    ops.reshape: lambda out, x, *, shape: x.reshape(shape),
    ops.permute_dims: lambda out, x, *, axes: x.permute(axes),
    ops.broadcast_to: lambda out, x, *, shape: x.expand(shape),
    ops.concat: lambda out, arrays, *, axis: Tensor.cat(*arrays, dim=axis),
    ops.astype: astype, ops.fill: fill, ops.iota: iota, ops.where: where, ops.nextafter: nextafter,
    ops.slice: slice_, ops.slice_update: slice_update, ops.take: take, ops.scatter: scatter,
    ops.scatter_add: scatter_add, ops.argsort: argsort, ops.random_bits: random_bits,
}  # fmt: skip
KERNELS = {op: computed(kernel) for op, kernel in _KERNELS.items()}
