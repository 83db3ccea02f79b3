"""Faults in values, on NumPy: numbers, dtypes, reductions, products, optimizer steps."""

import functools
import math

import numpy as np

from polyarr import ops
from polyarr.backends.kernels import elementwise, power, quiet, reduction
from polyarr.backends.numpy.table import KERNELS, NUMPY
from polyarr.core.spec import Spec, bfloat16, float32
from polyarr.testing import references
from tests.testing.negative_controls.table import differs, fault, kernels, with_kernels

plant = functools.partial(kernels, "numpy")


def each(fn):
    """Return an elementwise kernel."""
    return quiet(elementwise(NUMPY, fn))


def reducing(fn):
    """Return a kernel made of a reduction with axis and keepdims."""
    return quiet(reduction(NUMPY, fn))


# ---- the values that break kernels ---------------------------------------------------------------------------

plant(
    {"forward-relu": differs(), "special-maximum": r"the result \(float32\) differs at .*, expected nan \("},
    {ops.maximum: each(np.fmax)},
    "maximum swallows nan",
)
plant(
    {"forward-max": r"the result \(float32\) differs at .*, expected nan \("},
    {ops.max: reducing(np.fmax.reduce)},
    "max swallows nan",
)
plant(
    {"forward-negative": r"the result at \[[\d, ]*\] is 0.0, expected -0.0"},
    {ops.negative: each(lambda x: 0 - x)},
    "negative loses the sign of zero",
)
plant(
    {"special-abs": differs(), "forward-abs": differs()},
    {ops.abs: each(lambda x: np.where(np.abs(x) < 1.2e-38, 0, np.abs(x)) if x.dtype.kind == "f" else np.abs(x))},
    "abs flushes denormals",
)
plant(
    {"forward-exp": r"the result \(float32\) differs at .*, expected (inf|0.0|1.0|\S+) \("},
    {ops.exp: each(lambda x: np.exp(np.clip(x, -80, 80)))},
    "exp clamps what it is given",
)
plant(
    {"forward-erf": differs()},
    {ops.erf: each(lambda x: np.tanh(math.sqrt(4 / math.pi) * (x + 0.0895 * x**3)))},
    "erf by an approximation",
)
plant(
    {"forward-round": differs(), "float16-round": differs(dtype="float16")},
    {ops.round: each(lambda x: np.trunc(x + np.copysign(0.5, x)).astype(x.dtype))},
    "round takes halves away from zero",
)


def truncated(x, dtype):
    """Truncate float32 to bfloat16, like a conversion that forgets to round."""
    return (np.asarray(x, "float32").view("uint32") >> 16).astype("uint16").view(dtype)


def astype(out, x, *, dtype):
    with np.errstate(all="ignore"):
        return truncated(x, dtype) if dtype == bfloat16 and x.dtype.kind == "f" else x.astype(dtype)


def cut_product(out, x, y):
    exact = each(np.multiply)(Spec(out.shape, float32), x, y)
    return truncated(exact, bfloat16) if out.dtype == bfloat16 else exact.astype(out.dtype)


plant(
    {"forward-astype": differs(dtype="bfloat16")},
    {ops.astype: astype},
    "astype cuts off instead of rounding",
)
plant(
    {"bfloat16-multiply": differs(dtype="bfloat16")},
    {ops.multiply: cut_product},
    "a product in bfloat16 is cut off instead of rounded",
)
plant(
    {"forward-hypot": r"the result \(float32\) differs at .*: inf, expected"},
    {ops.hypot: each(lambda x, y: np.sqrt(x * x + y * y))},
    "hypot overflows on the way",
)
plant(
    {"forward-where": differs(), "special-where": differs()},
    {ops.where: lambda out, c, x, y: product_of_choices(out, c, np.asarray(x, out.dtype), np.asarray(y, out.dtype))},
    "where multiplies, so that nan comes through",
)


def product_of_choices(out, c, x, y):
    with np.errstate(all="ignore"):
        return (c * x + ~c * y).astype(out.dtype) if out.dtype.kind == "f" else np.where(c, x, y)


# ---- whole numbers -------------------------------------------------------------------------------------------


def saturated(x, y):
    if x.dtype.kind == "f":
        return x + y
    info = np.iinfo(x.dtype)
    exact = np.asarray(x, object) + np.asarray(y, object)
    return np.clip(exact, info.min, info.max).astype(x.dtype)


plant({"int8-add": differs(dtype="int8")}, {ops.add: each(saturated)}, "add saturates")


def through(narrower):
    """Return an addition of integers in floats."""
    return lambda x, y: x + y if x.dtype.kind == "f" else (narrower(x) + narrower(y)).astype(np.int64).astype(x.dtype)


plant({"int32-add": differs(dtype="int32")}, {ops.add: each(through(np.float32))}, "int32 goes through float32")
plant({"int64-add": differs(dtype="int64")}, {ops.add: each(through(np.float64))}, "int64 goes through float64")


def truncating(x, y):
    return np.trunc(x / y) if x.dtype.kind == "f" else np.trunc(x.astype(np.float64) / y).astype(x.dtype)


plant(
    {"forward-floor_divide": differs(), "int32-floor_divide": differs(dtype="int32")},
    {ops.floor_divide: each(truncating)},
    "floor_divide truncates",
)
plant(
    {"forward-remainder": differs(), "int16-remainder": differs(dtype="int16")},
    {ops.remainder: each(np.fmod)},
    "remainder has the sign of x",
)
plant(
    {"uint32-bitwise_right_shift": differs(dtype="uint32")},
    {
        ops.bitwise_right_shift: each(
            lambda x, y: (x.view(f"i{x.itemsize}") >> y.astype(f"i{x.itemsize}")).view(x.dtype)
        )
    },
    "a shift of unsigned numbers copies their sign",
)

# ---- dtypes and shapes ---------------------------------------------------------------------------------------


def rounded(fn):
    """Return fn in float32 for any input dtype."""
    return each(lambda x: fn(x.astype(np.float32)))


plant({"float64-exp": differs(dtype="float64")}, {ops.exp: rounded(np.exp)}, "float64 is computed in float32")


def narrowed(out, x):
    with np.errstate(all="ignore"):
        return np.exp(x).astype(np.float32)


plant(
    {"float64-exp": r"the result came as float32\[[\d, ]*\]; it must be float64\["},
    {ops.exp: narrowed},
    "float32 comes where float64 is promised",
)
plant(
    {"forward-equal": r"the result came as uint8\[[\d, ]*\]; it must be bool\["},
    {ops.equal: lambda out, x, y: np.equal(x, y).astype(np.uint8)},
    "a comparison gives numbers",
)
plant(
    {"forward-argmax": r"the result came as int32\[[\d, ]*\]; it must be int64\["},
    {
        ops.argmax: lambda out, x, *, axis, keepdims: reducing(np.argmax)(out, x, axis=axis, keepdims=keepdims).astype(
            "i4"
        )
    },
    "indices have the wrong dtype",
)
plant(
    {"forward-sum": r"the result came as float32\[[\d, ]*\]; it must be float32\["},
    {ops.sum: lambda out, x, *, axis, keepdims, dtype: np.asarray(np.sum(x, axis=axis, dtype=dtype))},
    "keepdims is ignored",
)


def summed_as_it_is(out, x, *, axis, keepdims, dtype):
    """Accumulate sequentially in the dtype of x."""
    axes = tuple(range(x.ndim)) if axis is None else axis
    with np.errstate(all="ignore"):
        lines = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *(n for i, n in enumerate(x.shape) if i not in axes))
        total = np.zeros(lines.shape[1:], x.dtype)
        for line in lines:
            total = np.add(total, line, dtype=x.dtype)
        return total.astype(out.dtype).reshape(out.shape)


plant(
    {"float16-sum": differs(dtype="float16"), "int8-sum": differs(dtype="int64")},
    {ops.sum: summed_as_it_is},
    "sums are kept in the dtype of what is summed",
)


def product_in_narrow(out, x, y):
    with np.errstate(all="ignore"):
        found = np.zeros(out.shape, out.dtype)
        for k in range(x.shape[-1]):
            found = found + x[..., :, k, None] * y[..., None, k, :]
        return found.astype(out.dtype)


plant(
    {"float16-matrix_product": differs(dtype="float16")},
    {ops.matrix_product: product_in_narrow},
    "float16 products are added up in float16",
)

# ---- what is left out ----------------------------------------------------------------------------------------


def whole_tiles(out, x, *, axis, keepdims, dtype):
    """Omit the last partial tile of 32 along the last axis."""
    axes = range(x.ndim) if axis is None else axis
    if x.ndim and x.ndim - 1 in axes and x.shape[-1] > 32:
        x = x[..., : x.shape[-1] // 32 * 32]
    return KERNELS[ops.sum](out, x, axis=axis, keepdims=keepdims, dtype=dtype)


plant(
    {"forward-sum": differs(), "forward-mean": differs()}, {ops.sum: whole_tiles}, "the last partial tile is not summed"
)


def first_tiles(out, x):
    found = np.zeros(out.shape, out.dtype)
    flat, size = found.reshape(-1), out.size if out.size < 32 else out.size // 32 * 32
    flat[:size] = each(np.exp)(out, x).reshape(-1)[:size]
    return found


plant({"forward-exp": differs()}, {ops.exp: first_tiles}, "the last partial tile is not written")


def product_short_of(length):
    def product(x, y):
        return np.matmul(x[..., :-1], y[..., :-1, :]) if x.shape[-1] == length else np.matmul(x, y)

    return each(product)


plant(
    {"forward-matrix_product": differs()},
    {ops.matrix_product: product_short_of(33)},
    "the last of 33 products is not added",
)

# ---- steps of optimisers -------------------------------------------------------------------------------------


def adamw(corrected=True, coupled=False):
    def kernel(out, params, grads, m, v, lr, step, scale, *, beta1, beta2, eps, weight_decay, decoupled):
        lists = ([np.array(NUMPY.widened(a)) for a in group] for group in (params, grads, m, v))
        with np.errstate(all="ignore"):
            found = references.adamw(
                *lists, lr, step if corrected else 10**6, scale, beta1=beta1, beta2=beta2, eps=eps,
                weight_decay=weight_decay, decoupled=decoupled and not coupled,
            )  # fmt: skip
        n = len(params)
        groups = [found[i * n : i * n + n] for i in range(3)]
        return tuple(
            tuple(np.asarray(a).astype(s.dtype) for a, s in zip(group, specs, strict=True))
            for group, specs in zip(groups, out, strict=True)
        )

    return {ops.adamw: kernel}


STEP = {
    "forward-adamw": differs(r"result \d"),
    "backend-training": r"the loss at step [12] is \S+, expected \S+ \(off by",
}
plant(STEP, adamw(corrected=False), "AdamW corrects no bias")
plant(STEP, adamw(coupled=True), "AdamW adds the decay to the gradient")

# ---- derivatives of the second order --------------------------------------------------------------------------

plant(
    {"second-order-sin": differs(r"the second derivative's d/dx"), "backward-cos": differs(r"d/dx")},
    {ops.sin: each(lambda x: np.sin(x) + np.float32(1e-3))},
    "sin is a little off, which second derivatives show",
)
plant(
    {"backend-transforms": differs(r"transforms on numpy: d/dvjp\[0\]"), "forward-tanh": differs()},
    {ops.tanh: each(lambda x: np.tanh(x) * x.dtype.type(1.001))},
    "tanh is a little off, which every transform shows",
)
plant(
    {"forward-pow": differs()},
    {ops.pow: each(lambda x, y: power(NUMPY, np.abs(x), y))},
    "pow takes the base for positive",
)


def in_a_hurry(x, y):
    """Return the remainder by a shortcut for blocks of ordinary quotients, which gives nan for infinite divisors."""
    found = np.remainder(x, y)
    for first in range(0, found.size, 256):
        at = slice(first, first + 256)
        if (np.abs(x[at]) < 2**28 * np.abs(y[at])).all():
            found[at] = x[at] - np.floor(x[at] / y[at]) * y[at]
    return found


@fault("numpy", {"alone-remainder": differs()})
def a_stretch_of_usual_quotients_is_multiplied_out(backend):
    plain = backend.kernels[ops.remainder]

    def kernel(out, x, y):
        if all(isinstance(a, np.ndarray) and a.shape == out.shape == (a.size,) for a in (x, y)):
            with np.errstate(all="ignore"):
                return in_a_hurry(x, y).astype(out.dtype)
        return plain(out, x, y)

    return with_kernels(backend, {ops.remainder: kernel})


# ---- a linear layer with a quantized weight ------------------------------------------------------------------


def quantized(x=lambda x: x, codes=lambda c: c, scale=lambda s: s, bias=lambda bias, scale: bias):
    """Return quantized_linear of changed inputs; float16 and bfloat16 are computed in float32."""

    def kernel(out, given, held, factor, added, *, activation):
        wide = [a if a is None or a.dtype.itemsize > 2 else a.astype(np.float32) for a in (given, factor, added)]
        added = None if added is None else bias(wide[2], wide[1])
        with np.errstate(all="ignore"):
            found = references.quantized_linear(x(wide[0]), codes(held), scale(wide[1]), added, activation=activation)
        return np.asarray(found, out.dtype)

    return kernel


def without_sign(codes):
    """Return int8 codes as absolute values."""
    return np.abs(codes) if codes.dtype == np.int8 else codes


def without_the_last(codes):
    """Return codes with 0 for the last byte of each row."""
    return np.where(np.arange(codes.shape[1]) + 1 < codes.shape[1], codes, 0).astype(codes.dtype)


def with_swapped_bits(codes):
    """Return packed codes with the two codes of each byte exchanged."""
    return codes if codes.dtype == np.int8 else codes >> 4 | codes << 4


def of_the_first_block(scale):
    """Return scales of blocks that are all those of the first block."""
    return scale if scale.ndim == 1 else np.broadcast_to(scale[:, :1], scale.shape)


for _name, _changed in (
    ("quantized_linear scales the bias, too", {"bias": lambda bias, scale: bias * scale.reshape(len(bias), -1)[:, 0]}),
    ("quantized_linear reads codes without their sign", {"codes": without_sign}),
    ("quantized_linear leaves out the last codes of a row", {"codes": without_the_last}),
    ("quantized_linear swaps the codes of a byte", {"codes": with_swapped_bits}),
    ("quantized_linear has one scale for all blocks", {"scale": of_the_first_block}),
    ("quantized_linear multiplies in 16 bits", {"x": lambda x: x.astype(np.float16).astype(x.dtype)}),
):
    plant({"forward-quantized_linear": differs()}, {ops.quantized_linear: quantized(**_changed)}, _name)
