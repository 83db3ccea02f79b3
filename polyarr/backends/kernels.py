"""Kernels for any library with the functions of the array API standard, written with these functions only.

They work with immutable arrays, with dtypes that are not NumPy's, and without indexing by arrays.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.errors import MatrixError
from polyarr.core.op import Op
from polyarr.core.spec import (
    COMPLEX,
    DTYPES,
    FLOATS,
    INEXACT,
    INTEGERS,
    NARROW,
    SIGNED,
    Spec,
    complex128,
    float32,
    float64,
    int64,
    uint8,
    uint32,
)
from polyarr.core.spec import bool as bool_

MAX_DIRECT_K = 512  # largest k of a matrix product that is accumulated in the dtype itself
WORD = 0xFFFFFFFF  # mask of the low 32 bits
quiet = np.errstate(all="ignore")  # no warnings on overflow from NumPy and libraries built on it

# Ops with the name and meaning of a function of the standard.
SAME_NAME = (
    ops.negative, ops.abs, ops.sign, ops.floor, ops.ceil, ops.trunc, ops.round, ops.exp, ops.expm1, ops.log, ops.log1p,
    ops.log2, ops.log10, ops.sqrt, ops.square, ops.sin, ops.cos, ops.tan, ops.asin, ops.acos, ops.atan, ops.sinh,
    ops.cosh, ops.tanh, ops.asinh, ops.acosh, ops.atanh, ops.isnan, ops.isinf, ops.isfinite, ops.signbit,
    ops.bitwise_invert, ops.add, ops.subtract, ops.multiply, ops.divide, ops.maximum, ops.minimum, ops.atan2, ops.hypot,
    ops.copysign, ops.logaddexp, ops.equal, ops.not_equal, ops.less, ops.less_equal, ops.greater, ops.greater_equal,
    ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor, ops.bitwise_left_shift, ops.bitwise_right_shift,
)  # fmt: skip


class Library:
    """A namespace of the array API standard, with its dtypes by polyarr's."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        if isinstance(xp.zeros(()).dtype, np.dtype):
            self.native = {dtype: dtype for dtype in DTYPES}
        else:
            self.native = {dtype: getattr(xp, dtype.name) for dtype in DTYPES if hasattr(xp, dtype.name)}
        self.wide = {self.native[dtype]: self.native[float32] for dtype in NARROW if dtype in self.native}
        self.signed = {self.native[dtype] for dtype in SIGNED}
        self.complex = {self.native[dtype] for dtype in COMPLEX if dtype in self.native}
        self.integers = {self.native[dtype] for dtype in INTEGERS if dtype in self.native}

    def __getattr__(self, name: str) -> Any:
        """Return a function of the namespace, and cache it as an attribute."""
        return self.__dict__.setdefault(name, getattr(self.xp, name))

    def cast(self, x: Any, dtype: np.dtype) -> Any:
        """Convert an array or a Python number to a polyarr dtype."""
        return self.xp.asarray(x, dtype=self.native[dtype])

    def sum_dtype(self, dtype: np.dtype) -> Any:
        """Return the library's dtype in which sums and products of a dtype are accumulated."""
        return self.native[complex128 if dtype in COMPLEX else float64 if dtype in FLOATS else dtype]

    def widened(self, x: Any) -> Any:
        """Convert x to the dtype of arithmetic on it: float32 for float16 and bfloat16."""
        return self.xp.asarray(x, dtype=self.wide[x.dtype]) if x.dtype in self.wide else x


def make_kernels(xp: Any, erf: Callable | None = None) -> dict[Op, Callable]:
    """Make a table of kernels from the functions of an array API namespace.

    The kernels need only what the standard requires, not even assignment to arrays. Ops whose function `xp` lacks are
    omitted; the group linalg is omitted unless `xp` has all of its functions.

    Args:
        xp: Namespace of the array API standard.
        erf: The error function, elementwise, which the standard lacks; None: `xp.erf` if it exists.

    Returns:
        Op -> kernel, for `Backend.kernels`.

    Examples:
        >>> import numpy as np, polyarr as pa
        >>> from polyarr.backends.kernels import make_kernels
        >>> kernels = make_kernels(np)
        >>> kernels[pa.exp](pa.Spec((2,), pa.float32), np.zeros(2, np.float32))
        array([1., 1.], dtype=float32)
    """
    lib = Library(xp)
    found: dict[Op, Callable] = {op: getattr(xp, op.name) for op in SAME_NAME if hasattr(xp, op.name)}
    found |= {op: functools.partial(fn, lib) for op, fn in ARITHMETIC.items()}
    if erf := erf or getattr(xp, "erf", None):
        found[ops.erf] = erf
    computing: dict[Op, Callable] = {
        **{op: elementwise(lib, fn) for op, fn in found.items()},
        **{op: long_sum(lib, fn) for op, fn in ((ops.sum, xp.sum), (ops.prod, xp.prod))},
        **{op: reduction(lib, fn) for op, fn in ((ops.max, xp.max), (ops.min, xp.min))},
        **{op: reduction(lib, fn) for op, fn in ((ops.argmax, xp.argmax), (ops.argmin, xp.argmin))},
        **{op: functools.partial(fn, lib) for op, fn in COMPUTING.items()},
    }
    if all(hasattr(getattr(xp, "linalg", None), op.name) for op in LINALG):
        computing |= {op: of_matrices(lib, op, *fn) for op, fn in LINALG.items()}
    moving: dict[Op, Callable] = {op: functools.partial(fn, lib) for op, fn in MOVING.items()}
    return {op: quiet(kernel) for op, kernel in computing.items()} | moving


# ---- kernels from functions --------------------------------------------------------------------------------------


def elementwise(lib: Library, fn: Callable) -> Callable:
    """Make a kernel from a function of arrays: numbers take the arrays' dtype, 16-bit floats are widened."""
    asarray, native, wide = lib.asarray, lib.native, lib.wide

    def widened(out: Spec, bufs: tuple, stored: Any) -> Any:
        if out.dtype == bool_:  # comparisons look at the stored values
            bufs = tuple(asarray(b, dtype=stored) for b in bufs)
        return asarray(fn(*[asarray(b, dtype=wide[stored]) for b in bufs]), dtype=native[out.dtype])

    def kernel(out: Spec, *bufs: Any) -> Any:
        for x in bufs:
            if hasattr(x, "dtype"):
                break
        else:
            raise TypeError("an elementwise kernel takes at least one array")
        if x.dtype in wide:
            return widened(out, bufs, x.dtype)
        found = fn(*[b if hasattr(b, "dtype") else asarray(b, dtype=x.dtype) for b in bufs])
        return asarray(found, dtype=native[out.dtype])

    return kernel


def reduction(lib: Library, fn: Callable) -> Callable:
    """Make a kernel from a reduction with the arguments axis and keepdims."""

    def kernel(out: Spec, x: Any, *, axis: Any, keepdims: bool) -> Any:
        if not out.size:
            return lib.zeros(out.shape, dtype=lib.native[out.dtype])
        return lib.cast(fn(lib.widened(x), axis=axis, keepdims=keepdims), out.dtype)

    return kernel


def long_sum(lib: Library, fn: Callable) -> Callable:
    """Make a kernel from sum or prod that accumulates floats in float64, so that long sums lose no digits.

    The array is reduced along the last axis of a matrix, where libraries use pairwise summation.
    """

    def kernel(out: Spec, x: Any, *, axis: tuple, keepdims: bool, dtype: np.dtype) -> Any:
        kept = tuple(i for i in range(x.ndim) if i not in axis)
        shape = (*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axis))
        rows = lib.reshape(lib.permute_dims(lib.cast(x, dtype), (*kept, *axis)), shape, copy=True)
        added = fn(rows, axis=-1, dtype=lib.sum_dtype(dtype))
        return lib.cast(lib.reshape(added, out.shape), out.dtype)

    return kernel


# ---- arithmetic that differs between libraries -------------------------------------------------------------------


def floor_divide(lib: Library, x: Any, y: Any) -> Any:
    """Return x // y; with an infinity it is floor(x / y), as the standard asks; x // 0 is 0 for integers."""
    if x.dtype in lib.integers:  # processors trap on x / 0 and on the smallest number / -1
        found = lib.where(y == 0, 0, lib.floor_divide(x, lib.where(traps(lib, y), 1, y)))
        return lib.where(y == -1, -x, found) if x.dtype in lib.signed else found
    return lib.where(lib.isinf(x) | lib.isinf(y), lib.floor(x / y), lib.floor_divide(x, y))


def remainder(lib: Library, x: Any, y: Any) -> Any:
    """Return x modulo y, with the sign of y; 0 for an integer modulo zero."""
    if x.dtype in lib.integers:
        return lib.where(traps(lib, y), 0, lib.remainder(x, lib.where(traps(lib, y), 1, y)))
    found = lib.remainder(x, y)
    return lib.where(found == 0, lib.copysign(found, y), found)


def traps(lib: Library, y: Any) -> Any:
    """Return a mask of the divisors y at which integer division may trap."""
    return (y == 0) | (y == -1) if y.dtype in lib.signed else y == 0


def power(lib: Library, x: Any, y: Any) -> Any:
    """Return x**y; for integers a negative exponent gives 0 unless the base is 1 or -1, where NumPy would raise."""
    if x.dtype in lib.complex:  # its error grows with that of y log x
        return lib.pow(lib.cast(x, complex128), lib.cast(y, complex128))
    if x.dtype not in lib.integers:  # for exponents of 0.5 NumPy uses sqrt, which gives nan for -inf
        return lib.where((x == -math.inf) & (y == 0.5), math.inf, lib.pow(x, y))
    if x.dtype not in lib.signed:
        return lib.pow(x, y)
    reciprocal = lib.where(x == 1, x, lib.where(x == -1, 1 - 2 * (y & 1), 0))
    return lib.where(y < 0, reciprocal, lib.pow(x, lib.where(y < 0, 0, y)))


def matrix_product(lib: Library, x: Any, y: Any) -> Any:
    """Return x @ y; for large k split into blocks that are added in float64, as BLAS adds in the dtype itself."""
    depth = x.shape[-1]
    if depth <= MAX_DIRECT_K or x.dtype in lib.integers:
        return lib.matmul(x, y)
    total, wide = 0.0, lib.native[complex128 if x.dtype in lib.complex else float64]
    for start in range(0, depth, MAX_DIRECT_K):
        part = slice(start, min(start + MAX_DIRECT_K, depth))
        total = total + lib.asarray(lib.matmul(x[..., part], y[..., part, :]), dtype=wide)
    return total


ARITHMETIC: dict[Op, Callable] = {
    ops.floor_divide: floor_divide,
    ops.remainder: remainder,
    ops.pow: power,
    ops.matrix_product: matrix_product,
}


# ---- kernels that need the result's Spec or parameters -----------------------------------------------------------


def nextafter(lib: Library, out: Spec, x: Any, y: Any) -> Any:
    """Return the next number in the dtype itself, without widening."""
    return lib.cast(lib.nextafter(lib.cast(x, out.dtype), lib.cast(y, out.dtype)), out.dtype)


def where(lib: Library, out: Spec, condition: Any, x: Any, y: Any) -> Any:
    """Select elements without widening, as nothing is computed."""
    return lib.where(condition, lib.cast(x, out.dtype), lib.cast(y, out.dtype))


def astype(lib: Library, out: Spec, x: Any, *, dtype: np.dtype) -> Any:
    """Convert with the library; a float outside an integer's range gives an undefined value."""
    return lib.cast(x, dtype)


def cumulative_sum(lib: Library, out: Spec, x: Any, *, axis: int, dtype: np.dtype) -> Any:
    """Return the cumulative sum, with floats accumulated in float64."""
    added = lib.sum_dtype(dtype)
    return lib.cast(lib.cumulative_sum(lib.asarray(x, dtype=added), axis=axis, dtype=added), dtype)


def fill(lib: Library, out: Spec, value: Any, like: Any, *, shape: tuple, dtype: np.dtype) -> Any:
    """Return an array filled with a value."""
    return lib.full(shape, value, dtype=lib.native[dtype])


def iota(lib: Library, out: Spec, start: float, step: float, like: Any, *, size: int, dtype: np.dtype) -> Any:
    """Return start + step * i, computed in float64 for floats, and modulo 2**64 for integers."""
    if dtype in INEXACT:
        return lib.cast(lib.arange(size, dtype=lib.native[float64]) * float(step) + float(start), dtype)
    return lib.cast(lib.arange(size, dtype=lib.native[int64]) * signed(int(step)) + signed(int(start)), dtype)


def signed(number: int) -> int:
    """Return the signed 64-bit integer with the same low 64 bits."""
    return (int(number) + 2**63) % 2**64 - 2**63


# ---- strided slices ----------------------------------------------------------------------------------------------


def forward_slices(starts: tuple, steps: tuple, shape: tuple) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return slices with positive steps, as some libraries lack negative ones, and the axes to flip afterwards."""
    ends = [start + (count - 1) * step for start, step, count in zip(starts, steps, shape, strict=True)]
    slices = tuple(
        slice(min(start, end), max(start, end) + 1, abs(step)) if count else slice(0, 0)
        for start, end, step, count in zip(starts, ends, steps, shape, strict=True)
    )
    return slices, tuple(axis for axis, step in enumerate(steps) if step < 0)


def slice_(lib: Library, out: Spec, x: Any, starts: tuple, *, steps: tuple, shape: tuple) -> Any:
    """Return a strided slice: a view if the library has views."""
    slices, flipped = forward_slices(starts, steps, shape)
    return lib.flip(x[slices], axis=flipped) if flipped else x[slices]


def slice_update(lib: Library, out: Spec, x: Any, value: Any, starts: tuple, *, steps: tuple) -> Any:
    """Return x with value in the strided slice, by looking up an element of value for each index of an axis."""
    if 0 in value.shape:
        return x
    hit = None
    for axis, (start, step, n, count) in enumerate(zip(starts, steps, x.shape, value.shape, strict=True)):
        if count == n and step == 1:
            continue
        number = lib.arange(n, dtype=lib.native[int64]) - start
        found = lib.floor_divide(number, lib.full_like(number, step))
        inside = (found * step == number) & (found >= 0) & (found < count)
        value = lib.take(value, lib.where(inside, found, 0), axis=axis)
        inside = along_axis(lib, inside, x, axis)
        hit = inside if hit is None else hit & inside
    return value if hit is None else lib.where(hit, value, x)


# ---- indices and order -------------------------------------------------------------------------------------------


def normalized_indices(lib: Library, op: str, indices: Any, n: int) -> Any:
    """Return flat indices from 0 to n - 1; IndexError for an index out of range."""
    flat = lib.reshape(indices, (-1,))
    if flat.shape == (0,):
        return flat
    low = int(lib.min(flat))
    for index in (low, int(lib.max(flat))):
        if not -n <= index < n:
            raise IndexError(f"{op}: index {index} is out of range for an axis of length {n}")
    return lib.where(flat < 0, flat + n, flat) if low < 0 else flat


def take(lib: Library, out: Spec, x: Any, indices: Any, *, axis: int) -> Any:
    """Return the elements at the indices."""
    at = normalized_indices(lib, "take", indices, x.shape[axis])
    if not out.size:
        return lib.zeros(out.shape, dtype=lib.native[out.dtype])
    return lib.reshape(lib.take(x, at, axis=axis), out.shape)


def scatter(lib: Library, out: Spec, x: Any, indices: Any, updates: Any, *, axis: int) -> Any:
    """Return x with the last of the updates for each index."""
    at = normalized_indices(lib, "scatter", indices, x.shape[axis])
    if not out.size or at.shape == (0,):
        return x
    order, ends, counts = group_by_index(lib, at, x.shape[axis])
    last = lib.take(order, lib.where(counts > 0, ends - 1, 0), axis=0)
    found = lib.take(with_flat_indices(lib, updates, at, x, axis), last, axis=axis)
    return lib.where(along_axis(lib, counts > 0, x, axis), found, x)


def scatter_add(lib: Library, out: Spec, x: Any, indices: Any, updates: Any, *, axis: int) -> Any:
    """Return x with the updates added: sorted by index, then reduced by a segmented scan with doubling steps.

    Floats are accumulated in float64.
    """
    at = normalized_indices(lib, "scatter_add", indices, x.shape[axis])
    if not out.size or at.shape == (0,):
        return x
    order, ends, counts = group_by_index(lib, at, x.shape[axis])
    exact = lib.sum_dtype(out.dtype)
    total = lib.asarray(lib.take(with_flat_indices(lib, updates, at, x, axis), order, axis=axis), dtype=exact)
    place, step, longest = lib.take(at, order, axis=0), 1, int(lib.max(counts))
    lead = (slice(None),) * axis
    while step < longest:  # total[i] is the sum of up to `step` updates that end at i, all for one index
        before, after = total[(*lead, slice(None, -step), ...)], total[(*lead, slice(step, None), ...)]
        same = along_axis(lib, place[step:] == place[:-step], x, axis)
        added = lib.where(same, after + before, after)
        total = lib.concat([total[(*lead, slice(None, step), ...)], added], axis=axis)
        step *= 2
    found = lib.take(total, lib.where(counts > 0, ends - 1, 0), axis=axis)
    return lib.where(along_axis(lib, counts > 0, x, axis), lib.cast(lib.asarray(x, dtype=exact) + found, out.dtype), x)


def group_by_index(lib: Library, at: Any, n: int) -> tuple[Any, Any, Any]:
    """Return the order that sorts `at`, and for each index from 0 to n - 1 the end of its run and its count."""
    order = lib.argsort(at, axis=0, stable=True)
    ordered, numbers = lib.take(at, order, axis=0), lib.arange(n, dtype=at.dtype)
    ends = lib.searchsorted(ordered, numbers, side="right")
    return order, ends, ends - lib.searchsorted(ordered, numbers, side="left")


def with_flat_indices(lib: Library, updates: Any, at: Any, x: Any, axis: int) -> Any:
    """Return the updates with the axes of the indices merged into one."""
    return lib.reshape(updates, (*x.shape[:axis], at.shape[0], *x.shape[axis + 1 :]))


def along_axis(lib: Library, row: Any, x: Any, axis: int) -> Any:
    """Return a 1-d array in the shape that broadcasts along an axis of x."""
    return lib.reshape(row, (-1,) + (1,) * (x.ndim - axis - 1))


def argsort(lib: Library, out: Spec, x: Any, *, axis: int, descending: bool, stable: bool) -> Any:
    """Return a stable order; descending is the ascending order of the flipped array, read backwards."""
    x = lib.cast(x, uint8) if x.dtype == lib.native[bool_] else lib.widened(x)  # the standard sorts no bools
    if not descending:
        return lib.argsort(x, axis=axis, stable=True)
    order = lib.argsort(lib.flip(x, axis=axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - lib.flip(order, axis=axis)


# ---- random bits -------------------------------------------------------------------------------------------------

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: list, key: tuple[int, int]) -> list:
    """Return four words per block of Philox4x32-10, from four counter words and two key words in int64 arrays.

    The int64 products are correct modulo 2**64, so no unsigned dtype is needed.
    """
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (right >> 32 & WORD) ^ b ^ k0, right & WORD, (left >> 32 & WORD) ^ d ^ k1, left & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return [a, b, c, d]


def random_bits(lib: Library, out: Spec, key: int, counter: int, like: Any, *, shape: tuple[int, ...]) -> Any:
    """Return the bits that ops.random_bits defines."""
    block = lib.arange((out.size + 3) // 4, dtype=lib.native[int64])
    words = [block & WORD, block >> 32]
    words += [lib.full_like(block, counter & WORD), lib.full_like(block, counter >> 32 & WORD)]
    found = lib.stack(philox(words, (key & WORD, key >> 32 & WORD)), axis=-1)
    return lib.cast(lib.reshape(lib.reshape(found, (-1,))[: out.size], shape), uint32)


# ---- the group linalg ----------------------------------------------------------------------------------------------


def of_matrices(
    lib: Library, op: Op, fn: Callable, required: str = "", lacks: Callable | None = None,
    empty: tuple[float, ...] = (0.0,) * 3,
) -> Callable:  # fmt: skip
    """Make a kernel from a function of matrices; raise MatrixError where the library raises an error.

    Args:
        lib: The library.
        op: The op, for errors.
        fn: (lib, x, *more) -> array or tuple of arrays.
        required: Condition on x for a result to exist; "" if every finite x has one.
        lacks: (lib, x) -> whether some x does not meet it. Called if results are not finite, because a library may
            return nan instead of raising an error. None: some x never meets it then.
        empty: Results for matrices without elements.
    """
    raised = getattr(lib.linalg, "LinAlgError", np.linalg.LinAlgError)
    named = {native: dtype for dtype, native in lib.native.items()}

    def parts(outs: tuple, x: Any, more: tuple) -> Any:
        if 0 in x.shape or not outs[0].size:
            return [lib.full(o.shape, empty[i], dtype=lib.native[o.dtype]) for i, o in enumerate(outs)]
        given = f"{op.name}: x is {Spec(tuple(x.shape), named[x.dtype])}"
        if not are_finite(lib, x):
            raise MatrixError(f"{given} and holds nan or infinity; it must be finite")
        x = lib.widened(x)
        try:
            found = fn(lib, x, *[lib.widened(a) for a in more])
        except raised as error:
            raise MatrixError(f"{given}; it must {required or 'be of moderate size'}") from error
        found = found if isinstance(found, tuple) else (found,)
        if required and not are_finite(lib, *found) and (lacks is None or lacks(lib, x)):
            raise MatrixError(f"{given}; it must {required}")
        return [lib.cast(a, o.dtype) for a, o in zip(found, outs, strict=True)]

    def kernel(out: Any, x: Any, *more: Any) -> Any:
        return tuple(parts(out, x, more)) if type(out) is tuple else parts((out,), x, more)[0]

    return kernel


def are_finite(lib: Library, *arrays: Any) -> bool:
    """Return whether the arrays hold no nan or infinity. Waits for them."""
    return all(bool(lib.all(lib.isfinite(lib.widened(a)))) for a in arrays)


def is_singular(lib: Library, x: Any) -> bool:
    """Return whether a matrix has the determinant 0. Waits for it."""
    return bool(lib.any(lib.linalg.slogdet(x)[0] == 0))


def adjoint(lib: Library, x: Any) -> Any:
    """Return the conjugate transpose of x."""
    return conjugate(lib, lib.matrix_transpose(x))


def conjugate(lib: Library, x: Any) -> Any:
    """Return the complex conjugate of x; a real x itself."""
    return lib.conj(x) if x.dtype in lib.complex else x


def hermitian(lib: Library, x: Any) -> Any:
    """Return the Hermitian part of x; x + x^H may overflow."""
    other = adjoint(lib, x)
    return lib.where(x == other, x, x * 0.5 + other * 0.5)


def phases(lib: Library, x: Any) -> Any:
    """Return x / |x|, and 1 where x is 0: the signs of real numbers."""
    return lib.where(x == 0, lib.ones_like(x), lib.sign(x))


def column_phases(lib: Library, x: Any) -> Any:
    """Return the phase of each column's element of largest magnitude."""
    largest = lib.argmax(lib.abs(x), axis=-2, keepdims=True)
    is_largest = lib.reshape(lib.arange(x.shape[-2]), (-1, 1)) == largest
    return phases(lib, lib.sum(lib.where(is_largest, x, lib.zeros_like(x)), axis=-2, keepdims=True))


def eigh(lib: Library, x: Any) -> tuple:
    """Return the library's eigenvectors, with the phases of ops.eigh."""
    w, v = lib.linalg.eigh(hermitian(lib, x))
    return w, v * conjugate(lib, column_phases(lib, v))


def qr(lib: Library, x: Any) -> tuple:
    """Return the library's factors, with a nonnegative diagonal of R."""
    q, r = lib.linalg.qr(x)
    turns = phases(lib, lib.linalg.diagonal(r))[..., None, :]
    r = r * adjoint(lib, turns)
    return q * turns, lib.where(lib.tril(lib.ones_like(r), k=-1) != 0, lib.zeros_like(r), r)  # 0 below, not -0


def svd(lib: Library, x: Any) -> tuple:
    """Return the library's factors, with the phases of ops.svd."""
    u, s, vh = lib.linalg.svd(x, full_matrices=False)
    turns = column_phases(lib, u)
    return u * conjugate(lib, turns), s, vh * lib.matrix_transpose(turns)


LINALG: dict[Op, tuple] = {  # op -> arguments of of_matrices from `fn` on
    ops.cholesky: (lambda lib, x: lib.linalg.cholesky(hermitian(lib, x)), "be positive definite"),
    ops.eigh: (eigh,),
    ops.qr: (qr,),
    ops.svd: (svd,),
    ops.slogdet: (lambda lib, x: lib.linalg.slogdet(x), "", None, (1.0, 0.0)),
    ops.solve: (lambda lib, x, b: lib.linalg.solve(x, b), "have an inverse", is_singular),
    ops.inv: (lambda lib, x: lib.linalg.inv(x), "have an inverse", is_singular),
    ops.det: (lambda lib, x: lib.linalg.det(x), "", None, (1.0,)),
    ops.eigvalsh: (lambda lib, x: lib.linalg.eigvalsh(hermitian(lib, x)),),
    ops.svdvals: (lambda lib, x: lib.linalg.svdvals(x),),
}

# ---- the rest of the table ---------------------------------------------------------------------------------------

COMPUTING: dict[Op, Callable] = {
    ops.nextafter: nextafter, ops.astype: astype, ops.cumulative_sum: cumulative_sum, ops.iota: iota,
    ops.scatter_add: scatter_add, ops.random_bits: random_bits,
}  # fmt: skip
MOVING: dict[Op, Callable] = {
    ops.fill: fill, ops.where: where, ops.slice: slice_, ops.slice_update: slice_update, ops.take: take,
    ops.scatter: scatter, ops.argsort: argsort,
    ops.reshape: lambda lib, out, x, *, shape: lib.reshape(x, shape),
    ops.permute_dims: lambda lib, out, x, *, axes: lib.permute_dims(x, axes),
    ops.broadcast_to: lambda lib, out, x, *, shape: lib.broadcast_to(x, shape),
    ops.concat: lambda lib, out, arrays, *, axis: lib.concat(arrays, axis=axis),
}  # fmt: skip
