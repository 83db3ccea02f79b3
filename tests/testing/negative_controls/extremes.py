"""Faults at extremes: bands of exponents, single bits, documented special cases, huge calls."""

import warnings

import ml_dtypes
import numpy as np

from polyarr import ops
from polyarr.core.errors import MatrixError
from tests.testing.negative_controls import precisions
from tests.testing.negative_controls.sizes import paired, spoilt, wrapping
from tests.testing.negative_controls.table import AMOUNT, differs, fault

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def replaced(fn):
    """Return a fault with the result fn(result, *inputs)."""
    return lambda found, *bufs: np.copyto(found, fn(found, *bufs), casting="unsafe")


def of(dtype, inputs=1):
    """Return a predicate: the first inputs are arrays of a dtype."""
    return lambda out, *bufs, **params: all(isinstance(b, np.ndarray) and b.dtype == dtype for b in bufs[:inputs])


def swept(op, dtype=r"\w+"):
    return {f"sweep-{op.name}": differs(dtype=dtype)}


# ---- holes in values ---------------------------------------------------------------------------------------------

spoilt(
    ops.exp,
    "exp: wrong in one band of exponents",
    of(np.float32),
    replaced(lambda y, x: np.where((np.abs(x) > 2.0**-9) & (np.abs(x) < 2.0**-8), y * 1.0001, y)),
    swept(ops.exp, "float32"),
)
spoilt(
    ops.maximum,
    "maximum: a nan with its sign bit set is a number",
    of(np.float32, 2),
    replaced(lambda z, x, y: np.where(np.isnan(x) & np.signbit(x), y, z)),
    {"special-maximum": differs(), **swept(ops.maximum)},
)
spoilt(
    ops.sin,
    "sin: coarse beyond 2^17",
    of(np.float32),
    replaced(lambda y, x: np.where(np.abs(x) > 2.0**17, np.sin(np.remainder(x, np.float32(2 * np.pi))), y)),
    swept(ops.sin, "float32"),
)
spoilt(
    ops.sqrt,
    "sqrt: one pattern of float16",
    of(np.float16),
    replaced(lambda y, x: np.where(x.view(np.uint16) == 0x3A77, 0.5, y)),
    swept(ops.sqrt, "float16"),
)
spoilt(
    ops.bitwise_xor,
    "bitwise_xor: one pair of bytes",
    of(np.uint8, 2),
    replaced(lambda z, x, y: np.where((x == 201) & (y == 37), 0, z)),
    swept(ops.bitwise_xor, "uint8"),
)
spoilt(
    ops.matrix_product,
    "matrix_product: rows of zeros are skipped",
    lambda out, x, y: x.ndim == 2 and x.dtype == np.float32,
    replaced(lambda z, x, y: np.where((x == 0).all(-1, keepdims=True), 0, z)),
    {"promised-matrix_product": differs()},
)

# ---- rounding of 16-bit floats -------------------------------------------------------------------------------------


def twice_rounded(y, x):
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        return np.where(np.abs(wide) < 8, np.exp(wide).astype(np.float16).astype(bfloat16), y)


spoilt(
    ops.exp,
    "exp: bfloat16 is rounded to float16 first",
    of(bfloat16),
    replaced(twice_rounded),
    {"bfloat16-exp": differs(dtype="bfloat16"), **swept(ops.exp, "bfloat16")},
)


def halves_up(z, x, y):
    """Round ties of float16 products away from zero."""
    with np.errstate(all="ignore"):
        exact, given = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
        away = np.nextafter(z, np.copysign(np.float16(np.inf), z))
        tie = (exact != given) & (np.abs(exact - given) == np.abs(exact - away.astype(np.float64)))
        return np.where(tie, away, z)


spoilt(
    ops.multiply,
    "multiply: float16 rounds halves away from zero",
    of(np.float16, 2),
    replaced(halves_up),
    swept(ops.multiply, "float16"),
)



def cut_off_behind_vectors(z, x, y):
    """Cut bits off, instead of rounding, behind the last whole vector of eight."""
    with np.errstate(all="ignore"):
        short = (x.astype(np.float32) * y.astype(np.float32)).view(np.uint32) & np.uint32(0xFFFFE000)
        tail = np.arange(z.size) >= z.size // 8 * 8
        return np.where(tail & np.isfinite(z), short.view(np.float32).astype(np.float16), z)


spoilt(
    ops.multiply,
    "multiply: float16 is cut off behind the last vector",
    lambda out, x, y: of(np.float16, 2)(out, x, y) and x.shape == y.shape and x.ndim == 1,
    replaced(cut_off_behind_vectors),
    swept(ops.multiply, "float16"),
)

# ---- quotients and powers ------------------------------------------------------------------------------------------

spoilt(
    ops.remainder,
    "remainder: x - floor(x / y) * y, rounded at each step",
    of(np.float32, 2),
    replaced(lambda z, x, y: np.where(y == 0, z, x - np.floor(x / np.where(y == 0, 1, y)) * y)),
    {"large-remainder": differs()},
)
spoilt(
    ops.remainder,
    "remainder: a quotient past 2^15 is cut to 16 bits",
    of(np.float32, 2),
    replaced(lambda z, x, y: np.where(np.abs(x) >= 2**15 * np.abs(y), z + 65536 * y, z)),
    swept(ops.remainder, "float32"),
)
spoilt(
    ops.pow,
    "pow: exponents past 2^16 are even",
    of(np.float32, 2),
    replaced(lambda z, x, y: np.where((x < 0) & (y > 2**16) & (y < 2**24), np.abs(z), z)),
    swept(ops.pow, "float32"),
)

# ---- what is documented ----------------------------------------------------------------------------------------------

spoilt(
    ops.sum,
    "sum: over two separate axes, the axes that stay are exchanged",
    lambda out, x, *, axis, keepdims, **p: len(axis) == 2 and axis[1] == axis[0] + 2 and x.ndim == 4 and not keepdims,
    lambda y, x: np.copyto(y, y.T.reshape(y.shape)),
    {"promised-sum": differs()},
)


def refusing_nothing(kernel):
    def quiet(out, *bufs, **params):
        try:
            return kernel(out, *bufs, **params)
        except MatrixError:
            return np.full(out.shape, np.nan, out.dtype)

    return quiet


for _op in (ops.solve, ops.cholesky):
    wrapping(
        "numpy", _op, f"{_op.name}: no MatrixError", {f"refused-{_op.name}": "gave .*; expected a MatrixError"},
        refusing_nothing,
    )  # fmt: skip


def another_decomposition(name, op, what, change):
    """Enter a fault in the results of a decomposition: change(results, x)."""

    def changed(kernel):
        return lambda out, x: tuple(np.asarray(a, o.dtype) for a, o in zip(change(kernel(out, x), x), out, strict=True))

    wrapping("numpy", op, name, {f"matrices-{op.name}": rf"{what} \(float\d+\) differs at .*{AMOUNT}"}, changed)


another_decomposition(
    "svd: no columns for singular values of 0", ops.svd, r"u\^H u",
    lambda found, x: (np.where(found[1][..., None, :] < 1e-6, 0, found[0]), *found[1:]),
)  # fmt: skip
another_decomposition(
    "slogdet: of a singular matrix a small number", ops.slogdet, "the (sign|logarithm)",
    lambda found, x: (np.where(found[0] == 0, 1, found[0]), np.where(np.isneginf(found[1]), -50, found[1])),
)  # fmt: skip


@fault("numpy", {"special-divide": "divide on numpy: warns: RuntimeWarning: divided by zero"})
def a_kernel_warns(backend):
    kernel = backend.kernels[ops.divide]

    def warning(out, x, y):
        if np.size(y) and (np.asarray(y) == 0).any():
            warnings.warn("divided by zero", RuntimeWarning, stacklevel=2)
        return kernel(out, x, y)

    return backend._replace(kernels={**backend.kernels, ops.divide: warning})


paired(
    ops.cross_entropy,
    "cross_entropy: the mean of no loss is 0",
    lambda logits, targets, **p: p["reduction"] == "mean" and (targets == p["ignore_index"]).all(),
    {"promised-cross_entropy": differs()},
    lambda y, *b: y.fill(0),
)

paired(
    ops.softmax,
    "softmax: the maximum is subtracted only if it is positive",
    lambda x, **p: x.dtype == np.float32 and x.size > 0 and x.max() < -104,
    {"promised-softmax": differs()},
    lambda y, *b: y.fill(np.nan),
)
paired(
    ops.linear,
    "linear: relu passes the gradient at 0",
    lambda x, w, b, *, activation, **p: activation == "relu" and b is None,
    {"promised-linear": differs("d/dx")},
    backward=lambda d, g, x, w, b: d[0].__iadd__((g * (x @ w.T == 0)) @ w),
)
paired(
    ops.attention,
    "attention: scores overflow in float16",
    lambda q, k, *b, **p: q.dtype == np.float16
    and np.abs(q.astype("f") @ k.astype("f").swapaxes(-1, -2)).max(initial=0) > 65504,
    {"promised-attention": differs()},
    lambda y, *b: y.fill(np.nan),
)
wrapping(
    "fused",
    ops.dropout,
    "dropout: bits that are just enough are too few",
    {"promised-dropout": differs()},
    lambda fused: fused._replace(
        forward=lambda *b, rate: fused.forward(*b, rate=min(rate + 2**-24, 1.0)),
        backward=lambda *b, wanted, rate: fused.backward(*b, wanted=wanted, rate=min(rate + 2**-24, 1.0)),
    ),
)

# ---- order -------------------------------------------------------------------------------------------------------


def unstable(kernel):
    """Exchange equal neighbors in the order of long rows of integers."""

    def changed(out, x, *, axis, descending, stable):
        at = kernel(out, x, axis=axis, descending=descending, stable=stable)
        if x.dtype.kind != "i" or axis != x.ndim - 1 or x.shape[axis] <= 1024:
            return at
        pairs = np.array(at[..., : x.shape[axis] // 2 * 2]).reshape(*x.shape[:-1], -1, 2)
        left, right = (np.take_along_axis(x, pairs[..., i], axis) for i in (0, 1))
        pairs = np.where((left == right)[..., None], pairs[..., ::-1], pairs)
        return np.concatenate([pairs.reshape(*x.shape[:-1], -1), at[..., x.shape[axis] // 2 * 2 :]], axis)

    return changed


wrapping(
    "numpy", ops.argsort, "argsort: equal elements change places", {"promised-argsort": differs()}, unstable
)
wrapping(
    "numpy",
    ops.argtopk,
    "argtopk: a nan of float16 is the smallest",
    {"promised-argtopk": differs()},
    lambda kernel: lambda out, x, **p: kernel(
        out, np.where(np.isnan(x), -np.inf, x).astype(x.dtype) if x.dtype == np.float16 else x, **p
    ),
)

def first_of_many(kernel):
    """Of more than 1,024 updates, let the first for an index count."""

    def changed(out, x, at, updates, *, axis):
        many = at.ndim == 1 and at.size > 1024 and axis == 0
        return kernel(out, x, at[::-1], updates[::-1], axis=axis) if many else kernel(out, x, at, updates, axis=axis)

    return changed


wrapping(
    "numpy", ops.scatter, "scatter: of many updates the first counts", {"promised-scatter": differs()}, first_of_many
)

# ---- batches of products that are less exact -----------------------------------------------------------------------


OF_A_BATCH = r"with precision 'high': of a batch, (the result|d/d[xy])"


@fault("telling", {"backend-precisions": differs(OF_A_BATCH, "float32")})
def high_splits_the_first_matrix_of_a_batch_only(backend):
    def high(x, y):
        found = precisions.of_terms(x, y)
        if x.ndim > 2:
            found[1:] = precisions.short(x[1:]) @ (y[1:] if y.ndim > 2 else y)
        return found

    return precisions.telling(backend, high=high)


# ---- huge calls, and large ones that are not normal float32: these take their time ---------------------------------


def huge(op, what="the result"):
    return {f"huge-{op.name}": differs(what)}


spoilt(
    ops.tanh,
    "tanh: wrong past 2^20 elements",
    lambda out, x: out.size > 2**20,
    lambda y, x: y.reshape(-1)[2**20 :].fill(0),
    huge(ops.tanh),
)
spoilt(
    ops.subtract,
    "subtract: a row is not repeated past row 65,535",
    lambda out, x, y: len(out.shape) == 2 and out.shape[0] > 65535 and np.shape(y) != out.shape,
    lambda z, x, y: z[65535:].fill(1),
    huge(ops.subtract),
)
spoilt(
    ops.matrix_product,
    "matrix_product: past k of 4,096, the last partial tile is lost",
    lambda out, x, y: x.shape[-1] > 4096 and x.shape[-1] % 32 > 0,
    lambda z, x, y: z.__isub__(x[..., -(x.shape[-1] % 32) :] @ y[..., -(x.shape[-1] % 32) :, :]),
    huge(ops.matrix_product),
)
spoilt(
    ops.matrix_product,
    "matrix_product: of a batch, the first 1,024",
    lambda out, x, y: len(out.shape) == 3 and out.shape[0] > 1024,
    lambda z, x, y: z[1024:].fill(0),
    huge(ops.matrix_product),
)
paired(
    ops.attention,
    "attention: keys past the 1,024th count less",
    lambda q, k, *r, **p: k.shape[-2] > 1024,
    huge(ops.attention),
    lambda y, *r: y.__imul__(0.99),
)
spoilt(
    ops.max,
    "max: large calls drop nan",
    lambda out, x, **p: x.dtype == np.float32 and x.size > 2**16,
    lambda y, x: np.copyto(y, np.where(np.isnan(y), 0, y)),
    {"crossed-max": differs()},
)
spoilt(
    ops.add,
    "add: large calls of float16 lose a bit",
    lambda out, x, y: out.dtype == np.float16 and out.size > 2**16,
    lambda z, x, y: z.view(np.uint16).__iand__(0xFFFE),
    {"crossed-add": differs(dtype="float16")},
)


def one_pass(y, x, weight, bias):
    """Compute the variance as the mean square minus the square of the mean."""
    mean = x.mean(-1, keepdims=True)
    variance = np.maximum((x * x).mean(-1, keepdims=True) - mean * mean, 0)
    np.copyto(y, (x - mean) / np.sqrt(variance + np.float32(0.1)) * weight + bias)


paired(
    ops.layer_norm,
    "layer_norm: long rows have their variance in one pass",
    lambda x, w, b, **p: x.dtype == np.float32 and x.shape[-1] > 1024 and p["eps"] == 0.1 and b is not None,
    {"crossed-layer_norm": differs()},
    one_pass,
)
