"""polyarr's ops on arrays and matrices as functions of PyTorch.

Where PyTorch means something else by a name, the function states the convention in one line.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the customary name

from polyarr.core.spec import DTYPES
from polyarr.testing.adapters import Absent, absent_if

TORCH = {dtype: getattr(torch, dtype.name) for dtype in DTYPES}
NARROW = (torch.float16, torch.bfloat16)


# ---- elementwise -------------------------------------------------------------------------------------------


def as_tensors(*values: Any) -> list[Any]:
    """Return Python numbers as tensors of the first tensor's dtype; tensors and None as they are."""
    like = next(v for v in values if isinstance(v, Tensor))
    kept = lambda v: v is None or isinstance(v, Tensor)
    return [v if kept(v) else torch.tensor(v, dtype=like.dtype, device=like.device) for v in values]


def of_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function for which Python numbers become tensors, since PyTorch's does not take them."""
    return lambda *values: function(*as_tensors(*values))


def sign(x: Tensor) -> Tensor:
    """Return the sign; PyTorch's is 0 for nan, and for complex numbers it is sgn."""
    return torch.sgn(x) if x.is_complex() else torch.where(x != x, x.detach(), torch.sign(x))


def stops(y: Tensor) -> Tensor:
    """Return where PyTorch raises or the processor traps: a division by 0, and by -1 of the smallest integer."""
    return (y == 0) | (y == -1) if y.dtype.is_signed else y == 0


def floor_divide(x: Tensor, y: Tensor) -> Tensor:
    """Return the floor of the quotient; PyTorch has no gradient of it, and an error for an integer divided by 0."""
    if x.is_floating_point():
        return torch.floor_divide(x.detach(), y.detach())
    found = torch.floor_divide(x, torch.where(stops(y), 1, y))
    return torch.where(y == 0, 0, torch.where(stops(y), -x, found))


def remainder(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder, 0 for an integer divided by 0, where PyTorch raises an error."""
    if x.is_floating_point():
        return torch.remainder(x, y)
    return torch.where(stops(y), 0, torch.remainder(x, torch.where(stops(y), 1, y)))


def clip(x: Tensor, low: Any, high: Any) -> Tensor:
    """Return x clamped; PyTorch takes tensors or numbers as limits, not one of each."""
    if low is None and high is None:
        return x.clone()
    limits = as_tensors(x, low, high)[1:] if isinstance(low, Tensor) or isinstance(high, Tensor) else (low, high)
    return torch.clamp(x, *limits)


def imaginary(x: Tensor) -> Tensor:
    return torch.imag(x) if x.is_complex() else torch.zeros_like(x)


def complex_of(x: Any, y: Any) -> Tensor:
    """Return x + i y; float16 and bfloat16 have complex64, where PyTorch has ComplexHalf."""
    x, y = torch.broadcast_tensors(*as_tensors(x, y))
    return torch.complex(wide(x), wide(y))


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in NARROW else x


# ---- shapes ------------------------------------------------------------------------------------------------


def fill(device: torch.device, value: Any, like: Any, *, shape: tuple, dtype: np.dtype) -> Tensor:
    return torch.full(shape, value, dtype=TORCH[dtype], device=device)


def iota(device: torch.device, start: Any, step: Any, like: Any, *, size: int, dtype: np.dtype) -> Tensor:
    exact = torch.int64 if dtype.kind in "iub" else torch.float64
    return (torch.arange(size, dtype=exact, device=device) * step + start).to(TORCH[dtype])


def slices_of(starts: tuple, steps: tuple, shape: tuple) -> tuple[tuple[slice, ...], list[int]]:
    """Return the slices with positive steps, and the axes to be flipped: PyTorch has no negative steps."""
    slices, flipped = [], []
    for axis, (start, step, n) in enumerate(zip(starts, steps, shape, strict=True)):
        end = start + (n - 1) * step
        slices.append(slice(min(start, end), max(start, end) + 1, abs(step)) if n else slice(0, 0))
        flipped += [axis] * (step < 0)
    return tuple(slices), flipped


def slice_(x: Tensor, starts: tuple, *, steps: tuple, shape: tuple) -> Tensor:
    slices, flipped = slices_of(starts, steps, shape)
    return x[slices].flip(flipped) if flipped else x[slices]


def slice_update(x: Tensor, value: Any, starts: tuple, *, steps: tuple) -> Tensor:
    slices, flipped = slices_of(starts, steps, value.shape)
    new = x.clone(memory_format=torch.contiguous_format)
    new[slices] = value.flip(flipped) if flipped else value
    return new


def squeeze(x: Tensor, *, axis: Any) -> Tensor:
    return torch.squeeze(x, axis) if axis is not None else torch.squeeze(x)


def expand_dims(x: Tensor, *, axis: Any) -> Tensor:
    axes = axis if isinstance(axis, tuple) else (axis,)
    for at in sorted(i % (x.ndim + len(axes)) for i in axes):
        x = torch.unsqueeze(x, at)
    return x


def pad(x: Tensor, *, pad_width: Any, mode: str, constant_values: Any) -> Tensor:
    """Return x padded; PyTorch continues the last axes of some numbers of axes only."""
    if mode != "constant":
        raise Absent
    widths = np.broadcast_to(pad_width, (x.ndim, 2))[::-1].reshape(-1).tolist()
    return F.pad(x, widths, value=constant_values) if x.ndim else x.clone()


def roll(x: Tensor, *, shift: Any, axis: Any) -> Tensor:
    return torch.roll(x, shift, axis)


def flip(x: Tensor, *, axis: Any) -> Tensor:
    return torch.flip(x, tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,))


def split(x: Tensor, *, indices_or_sections: Any, axis: int) -> tuple:
    return torch.tensor_split(x, indices_or_sections, axis)


def places(indices: Tensor, n: int) -> Tensor:
    """Return indices as int64 from 0 on: most of PyTorch's functions take no negative ones."""
    return torch.where(indices < 0, indices + n, indices).long()


def take(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return torch.index_select(x, axis, places(indices, x.shape[axis]).reshape(-1)).reshape(shape)


def scatter_add(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    rows = updates.reshape((*x.shape[:axis], indices.numel(), *x.shape[axis + 1 :]))
    return torch.index_add(x, axis, places(indices, x.shape[axis]).reshape(-1), rows)


def take_along_axis(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return torch.take_along_dim(x, places(indices, x.shape[axis]), axis)


def scatter_add_along_axis(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    shape = [n if i == axis % x.ndim else m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True))]
    at = places(indices, x.shape[axis]).expand(shape)
    return torch.scatter_add(x, axis, at, updates.expand(shape))


def sort(x: Tensor, *, axis: int, descending: bool, stable: bool) -> Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=stable).values


def argsort(x: Tensor, *, axis: int, descending: bool, stable: bool) -> Tensor:
    return torch.argsort(x, dim=axis, descending=descending, stable=True)


# ---- reductions --------------------------------------------------------------------------------------------


def reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a reduction over axes: with no axes it reduces nothing, where PyTorch's reduces all."""

    def run(x: Tensor, *, axis: Any, keepdims: bool, dtype: Any = None, **more: Any) -> Tensor:
        more |= {} if dtype is None else {"dtype": TORCH[dtype]}
        axis = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        x, axis, keepdims = (x, axis, keepdims) if axis else (x[..., None], (-1,), False)
        return function(x, dim=axis, keepdim=keepdims, **more)

    return run


def product(x: Tensor, *, dim: tuple, keepdim: bool, **more: Any) -> Tensor:
    """Return the product; PyTorch's reduces one axis."""
    if len(dim) == 1:
        return torch.prod(x, dim[0], keepdim, **more)
    found = torch.prod(x.movedim(dim, tuple(range(-len(dim), 0))).flatten(-len(dim)), -1, **more)
    return found.reshape([1 if i in dim else n for i, n in enumerate(x.shape)]) if keepdim else found


def index_reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a search for an index, which PyTorch does not have for bools."""
    found = absent_if(lambda x: x.dtype == torch.bool, function)
    return lambda x, *, axis, keepdims: found(x, axis, keepdims)


def cumulative_sum(x: Tensor, *, axis: int, dtype: np.dtype) -> Tensor:
    return torch.cumsum(x, axis, dtype=TORCH[dtype])


def vector_norm(x: Tensor, *, axis: Any, keepdims: bool, ord: float) -> Tensor:
    if axis == ():
        raise Absent
    return torch.linalg.vector_norm(x, ord, axis, keepdims)


# ---- products ----------------------------------------------------------------------------------------------


def tensordot(x: Tensor, y: Tensor, *, axes: Any) -> Tensor:
    pairs = axes if isinstance(axes, int) else [[a] if isinstance(a, int) else list(a) for a in axes]
    return torch.tensordot(x, y, pairs)


# ---- matrices and Fourier transforms -----------------------------------------------------------------------


def of_matrices(function: Callable) -> Callable:
    """Return a function of matrices, which PyTorch does not have for 16-bit floats."""
    return absent_if(lambda x: x.dtype in NARROW, function)


def hermitian(function: Callable) -> Callable:
    """Return a function of the Hermitian part of x; PyTorch's reads the lower triangle alone."""
    return lambda x: function((x + x.mH) / 2)


def vecdot(x: Tensor, y: Tensor, *, axis: int) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        raise Absent
    return torch.linalg.vecdot(x, y, dim=axis)


def solve(x: Tensor, b: Tensor) -> Tensor:
    if b.ndim == x.ndim - 1 and b.ndim > 1 and b.shape == x.shape[:-1]:
        raise Absent  # PyTorch takes b for vectors
    return torch.linalg.solve(x, b[:, None])[..., 0] if b.ndim == 1 else torch.linalg.solve(x, b)


def dft(x: Tensor, *, axis: tuple[int, ...], inverse: bool, scale: float) -> Tensor:
    return scale * (torch.fft.ifftn(x, dim=axis, norm="forward") if inverse else torch.fft.fftn(x, dim=axis))


def dft_of_real(x: Tensor, *, axis: int, inverse: bool, scale: float) -> Tensor:
    found = scale * torch.fft.rfft(wide(x), dim=axis)
    return torch.conj(found) if inverse else found


def dft_to_real(x: Tensor, *, n: int, axis: int, inverse: bool, scale: float) -> Tensor:
    return scale * torch.fft.irfft(x if inverse else torch.conj(x), n, dim=axis, norm="forward")


# ---- the table ---------------------------------------------------------------------------------------------

SAME = """positive abs square floor ceil trunc round real conj reciprocal exp expm1 log log1p log2 log10 sqrt rsqrt sin
cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid relu isnan isinf isfinite signbit negative
logical_not""".split()
SAME_OF_TENSORS = """add subtract multiply divide maximum minimum atan2 hypot logaddexp copysign not_equal less
less_equal greater greater_equal bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor nextafter
bitwise_left_shift bitwise_right_shift""".split()
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in SAME},
    **{name: of_tensors(getattr(torch, name)) for name in SAME_OF_TENSORS},
    "sign": sign, "silu": F.silu, "imag": imaginary, "real_part": torch.real, "imaginary_part": torch.imag,
    "bitwise_invert": torch.bitwise_not, "complex": complex_of, "equal": of_tensors(torch.eq),
    "floor_divide": of_tensors(floor_divide), "remainder": of_tensors(remainder), "pow": torch.pow,
    "where": lambda condition, x, y: torch.where(condition, *as_tensors(x, y)), "clip": clip,
    "astype": lambda x, *, dtype: x.to(TORCH[dtype]), "reshape": lambda x, *, shape: torch.reshape(x, shape),
    "permute_dims": lambda x, *, axes: torch.permute(x, axes),
    "broadcast_to": lambda x, *, shape: torch.broadcast_to(x, shape), "slice": slice_,
    "slice_update": slice_update, "expand_dims": expand_dims, "squeeze": squeeze,
    "matrix_transpose": lambda x: x.mT, "flip": flip, "split": split, "pad": pad, "roll": roll,
    "moveaxis": lambda x, *, source, destination: torch.moveaxis(x, source, destination),
    "unstack": lambda x, *, axis: torch.unbind(x, axis),
    "tile": lambda x, *, repetitions: torch.tile(x, repetitions),
    "repeat": lambda x, *, repeats, axis: torch.repeat_interleave(x, repeats, axis),
    "tril": lambda x, *, k: torch.tril(x, k), "triu": lambda x, *, k: torch.triu(x, k),
    "concat": lambda arrays, *, axis: torch.cat(arrays, axis),
    "stack": lambda arrays, *, axis: torch.stack(arrays, axis), "take": take, "scatter_add": scatter_add,
    "take_along_axis": take_along_axis, "scatter_add_along_axis": scatter_add_along_axis, "sort": sort,
    "argsort": argsort, "sum": reduction(torch.sum), "prod": reduction(product), "max": reduction(torch.amax),
    "min": reduction(torch.amin), "argmax": index_reduction(torch.argmax),
    "argmin": index_reduction(torch.argmin), "any": reduction(torch.any), "all": reduction(torch.all),
    "logsumexp": reduction(torch.logsumexp), "mean": reduction(torch.mean), "var": reduction(torch.var),
    "std": reduction(torch.std), "cumulative_sum": cumulative_sum, "vector_norm": vector_norm,
    "matrix_product": torch.matmul, "matmul": torch.matmul, "outer": torch.outer, "vecdot": vecdot,
    "tensordot": tensordot, "cholesky": of_matrices(hermitian(torch.linalg.cholesky)),
    "svdvals": of_matrices(torch.linalg.svdvals), "eigvalsh": of_matrices(hermitian(torch.linalg.eigvalsh)),
    "det": of_matrices(torch.linalg.det), "inv": of_matrices(torch.linalg.inv), "solve": of_matrices(solve),
    "slogdet": of_matrices(lambda x: tuple(torch.linalg.slogdet(x))),
    "pinv": of_matrices(lambda x, rtol: torch.linalg.pinv(x, rtol=rtol)), "dft": dft,
    "dft_of_real": dft_of_real, "dft_to_real": dft_to_real,
}  # fmt: skip
