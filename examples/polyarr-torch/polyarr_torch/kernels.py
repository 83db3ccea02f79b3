"""The kernels. A buffer is a torch.Tensor; Fused kernels use PyTorch's autograd for their gradients."""

from itertools import compress

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  the customary name

from polyarr import ops
from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Fused
from polyarr.core.dlpack import is_on_host
from polyarr.core.spec import DTYPES, bfloat16, uint16, uint32, uint64

TORCH = {dtype: getattr(torch, dtype.name) for dtype in DTYPES}
NARROW = (torch.float16, torch.bfloat16)  # stored in 16 bits, computed in float32
# PyTorch stores these dtypes but has few kernels for them; NumPy computes on the same memory.
UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
UNSIGNED_NUMPY = (uint16, uint32, uint64)
NUMPY = make_kernels(np)


def describe():
    return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"


# ---- moving data ---------------------------------------------------------------------------------------------


def upload(host):
    return share(np.array(host, order="C"))


def download(buf):
    return np.array(to_numpy(buf), order="C")


def share(host):
    """Return a tensor that shares memory with a NumPy array; a copy only for negative strides, which PyTorch lacks."""
    if any(stride < 0 for stride in host.strides) or not host.flags.writeable:
        host = np.array(host, order="C")
    if host.dtype == bfloat16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(host)


def to_numpy(buf):
    """Return a NumPy array that shares memory with a tensor."""
    return buf.view(torch.int16).numpy().view(bfloat16) if buf.dtype == torch.bfloat16 else buf.numpy()


def adopt(x):
    """Return an object with the DLPack protocol as a tensor that shares its memory."""
    if not is_on_host(x):
        raise BufferError("it does not lie on the host")
    return torch.from_dlpack(x)


# ---- kernels from functions ----------------------------------------------------------------------------------


def wide(x):
    return x.float() if x.dtype in NARROW else x


def elementwise(fn):
    """Return a kernel made of a function of tensors; Python numbers take the tensors' dtype."""

    def kernel(out, *bufs):
        dtype = next(b.dtype for b in bufs if isinstance(b, torch.Tensor))
        dtype = torch.float32 if dtype in NARROW else dtype
        tensors = (wide(b) if isinstance(b, torch.Tensor) else torch.scalar_tensor(b, dtype=dtype) for b in bufs)
        return fn(*tensors).to(TORCH[out.dtype])

    return kernel


def reduction(fn):
    """Return a kernel made of fn(x, axes); with no axes nothing is reduced, where PyTorch would reduce all."""

    def kernel(out, x, *, axis, keepdims, dtype=None):
        if out.size == 0:
            return torch.empty(out.shape, dtype=TORCH[out.dtype])
        x = wide(x if dtype is None else x.to(TORCH[dtype]))
        return (fn(x, axis) if axis else x).reshape(out.shape).to(TORCH[out.dtype])

    return kernel


def index_reduction(fn):
    def kernel(out, x, *, axis, keepdims):
        return fn(x, axis).reshape(out.shape) if out.size else torch.empty(out.shape, dtype=torch.int64)

    return kernel


def with_unsigned(op, kernel):
    """Return the kernel, with NumPy's for unsigned integers that PyTorch cannot compute with."""

    def chosen(out, *bufs, **params):
        flat = bufs[0] if bufs and type(bufs[0]) is tuple else bufs
        if out.dtype in UNSIGNED_NUMPY or any(isinstance(b, torch.Tensor) and b.dtype in UNSIGNED for b in flat):
            return share(np.asarray(NUMPY[op](out, *map(_to_numpy, bufs), **params)))
        return kernel(out, *bufs, **params)

    return chosen


def _to_numpy(b):
    if type(b) is tuple:
        return tuple(map(_to_numpy, b))
    return to_numpy(b) if isinstance(b, torch.Tensor) else b


# ---- functions where PyTorch means something else ------------------------------------------------------------


def sign(x):
    return torch.where(x != x, x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)  # nan stays nan


def floor_divide(x, y):
    if x.is_floating_point():
        return torch.floor_divide(x, y)
    found = torch.floor_divide(x, torch.where(stops(y), 1, y))
    return torch.where(y == 0, 0, torch.where(stops(y), -x, found))


def remainder(x, y):
    if x.is_floating_point():
        found = torch.remainder(x, y)
        return torch.where(found == 0, torch.copysign(found, y), found)
    return torch.where(stops(y), 0, torch.remainder(x, torch.where(stops(y), 1, y)))


def stops(y):
    """Return where a processor traps: x / 0, and the smallest integer / -1."""
    return (y == 0) | (y == -1) if y.dtype.is_signed else y == 0


def product(x, axes):
    """Return the product over all axes at once in float64: along a single axis some parts may be 0, others infinite."""
    kept = [i for i in range(x.ndim) if i not in axes]
    rows = x.permute(*kept, *axes).flatten(len(kept))
    return torch.prod(rows.double() if x.is_floating_point() else rows, -1)


def nextafter(out, x, y):
    return torch.nextafter(_tensor(x, out), _tensor(y, out))


def where(out, condition, x, y):
    return torch.where(condition, _tensor(x, out), _tensor(y, out))


def fill(out, value, like, *, shape, dtype):
    return torch.full(shape, value, dtype=TORCH[dtype])


def iota(out, start, step, like, *, size, dtype):
    exact = torch.int64 if dtype.kind in "iub" else torch.float64
    return (torch.arange(size, dtype=exact) * step + start).to(TORCH[dtype])


def _tensor(x, out):
    return x if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=TORCH[out.dtype])


# ---- windows, indices, order ---------------------------------------------------------------------------------


def window(starts, steps, shape):
    """Return the slices of a strided slice with positive steps, and the axes to be flipped afterwards."""
    slices, flipped = [], []
    for axis, (start, step, n) in enumerate(zip(starts, steps, shape, strict=True)):
        end = start + (n - 1) * step
        slices.append(slice(min(start, end), max(start, end) + 1, abs(step)) if n else slice(0, 0))
        flipped += [axis] * (step < 0)
    return tuple(slices), flipped


def slice_(out, x, starts, *, steps, shape):
    slices, flipped = window(starts, steps, shape)
    return x[slices].flip(flipped) if flipped else x[slices]


def slice_update(out, x, value, starts, *, steps):
    slices, flipped = window(starts, steps, value.shape)
    new = x.clone(memory_format=torch.contiguous_format)
    new[slices] = value.flip(flipped) if flipped else value
    return new


def take(out, x, indices, *, axis):
    return x.index_select(axis, places(indices, x.shape[axis])).reshape(out.shape)


def places(indices, n):
    """Return the indices as one row, from 0 to n - 1."""
    flat = indices.reshape(-1).long()
    found = torch.where(flat < 0, flat + n, flat)
    if ((found < 0) | (found >= n)).any():
        raise IndexError(f"an index is out of range: the axis has {n} elements")
    return found


def scatter(out, x, indices, updates, *, axis):
    """Return a copy of x with updates assigned; the last one for an index wins."""
    n, at = x.shape[axis], places(indices, x.shape[axis])
    last = torch.full((n,), -1).scatter_reduce(0, at, torch.arange(len(at)), "amax")
    chosen = torch.nonzero(last >= 0).reshape(-1)
    return x.index_copy(axis, chosen, _rows(x, updates, axis, len(at)).index_select(axis, last[chosen]))


def scatter_add(out, x, indices, updates, *, axis):
    at = places(indices, x.shape[axis])
    return wide(x).index_add(axis, at, wide(_rows(x, updates, axis, len(at)))).to(x.dtype)


def _rows(x, updates, axis, count):
    """Return updates with the axes of the indices merged into one."""
    return updates.reshape((*x.shape[:axis], count, *x.shape[axis + 1 :]))


def argsort(out, x, *, axis, descending, stable):
    return torch.sort(x, dim=axis, descending=descending, stable=True).indices


# ---- pairs ---------------------------------------------------------------------------------------------------


def pair(fn):
    """Return Fused kernels made of a function that PyTorch can differentiate."""

    def forward(out, *bufs, **params):
        inputs = tuple(
            b.detach().requires_grad_(b.is_floating_point()) if isinstance(b, torch.Tensor) else b for b in bufs
        )
        with torch.enable_grad():
            y = fn(*inputs, **params).to(TORCH[out.dtype])
        return y.detach(), (y, inputs)

    def backward(g, saved, *bufs, wanted, **params):
        y, inputs = saved
        grads = iter(torch.autograd.grad(y, list(compress(inputs, wanted)), g, retain_graph=True))
        return tuple(next(grads) if want else None for want in wanted)

    return Fused(forward, backward)


def layer_norm(x, weight, bias, *, eps):
    x = x - x.mean(-1, keepdim=True)  # PyTorch's own gradient loses digits of numbers far from 0
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def softmax(x, *, axis):
    return torch.softmax(wide(x), axis)


def log_softmax(x, *, axis):
    return torch.log_softmax(wide(x), axis)


def linear(x, weight, bias, *, activation):
    one_dtype = bias is None or bias.dtype == x.dtype
    y = F.linear(x, weight, bias) if one_dtype else F.linear(wide(x), wide(weight), bias)
    return y if activation is None else ACTIVATIONS[activation](y)


ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
}


# ---- the table -----------------------------------------------------------------------------------------------

_FUNCTIONS = {
    ops.add: torch.add, ops.subtract: torch.subtract, ops.multiply: torch.multiply, ops.divide: torch.divide,
    ops.floor_divide: floor_divide, ops.remainder: remainder, ops.pow: torch.pow, ops.maximum: torch.maximum,
    ops.minimum: torch.minimum, ops.negative: torch.negative, ops.abs: torch.abs, ops.sign: sign,
    ops.floor: torch.floor, ops.round: torch.round, ops.exp: torch.exp, ops.expm1: torch.expm1, ops.log: torch.log,
    ops.log1p: torch.log1p, ops.sqrt: torch.sqrt, ops.sin: torch.sin, ops.cos: torch.cos, ops.atan2: torch.atan2,
    ops.tanh: torch.tanh, ops.erf: torch.erf, ops.equal: torch.eq, ops.less: torch.lt, ops.less_equal: torch.le,
    ops.bitwise_and: torch.bitwise_and, ops.bitwise_or: torch.bitwise_or, ops.bitwise_xor: torch.bitwise_xor,
    ops.bitwise_invert: torch.bitwise_not, ops.bitwise_left_shift: torch.bitwise_left_shift,
    ops.bitwise_right_shift: torch.bitwise_right_shift, ops.matrix_product: torch.matmul, ops.signbit: torch.signbit,
}  # fmt: skip
_PRIMITIVES = {
    **{op: elementwise(fn) for op, fn in _FUNCTIONS.items()},
    ops.sum: reduction(torch.sum), ops.prod: reduction(product),
    ops.max: reduction(torch.amax), ops.min: reduction(torch.amin),
    ops.argmax: index_reduction(torch.argmax), ops.argmin: index_reduction(torch.argmin),
    ops.cumulative_sum: lambda out, x, *, axis, dtype: wide(x.to(TORCH[dtype])).cumsum(axis).to(TORCH[dtype]),
    ops.reshape: lambda out, x, *, shape: x.reshape(shape),
    ops.permute_dims: lambda out, x, *, axes: x.permute(axes),
    ops.broadcast_to: lambda out, x, *, shape: x.expand(shape),
    ops.astype: lambda out, x, *, dtype: x.to(TORCH[dtype]),
    ops.concat: lambda out, arrays, *, axis: torch.cat(arrays, axis),
    ops.fill: fill, ops.iota: iota, ops.where: where, ops.nextafter: nextafter, ops.slice: slice_,
    ops.slice_update: slice_update, ops.take: take, ops.scatter: scatter, ops.scatter_add: scatter_add,
    ops.argsort: argsort, ops.random_bits: None,
}  # fmt: skip
KERNELS = {
    **{op: with_unsigned(op, kernel) for op, kernel in _PRIMITIVES.items()},
    **{op: pair(fn) for op, fn in {
        ops.layer_norm: layer_norm, ops.softmax: softmax, ops.log_softmax: log_softmax, ops.linear: linear,
        ops.gelu: F.gelu,
    }.items()},
}  # fmt: skip
