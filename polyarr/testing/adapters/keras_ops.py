"""Keras on one of its backends: polyarr's ops as functions of keras.ops, gradients by the framework underneath.

Where Keras means something else by a name, the function states the convention in one line. Keras chooses its backend
when it is imported, by the environment variable KERAS_BACKEND.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops as K  # noqa: N812  the customary name

from polyarr.core.errors import BackendError
from polyarr.testing.adapters import Absent, Framework, absent_if

# Name of a Keras backend -> (module of this package, device): the autograd and the tensors that Keras runs on.
UNDERNEATH = {"jax": ("xla", "cpu"), "torch": ("pytorch", "cpu"), "tensorflow": ("tensorflow_eager", "CPU:0")}
# Name of a Keras backend -> the dtypes that it replaces by others: Keras promotes float64 to float32, except on
# TensorFlow, and takes signed integers for PyTorch's unsigned ones; sums of uint8 are uint64.
LACKING = {
    "jax": ("float64", "complex128"), "torch": ("float64", "complex128", "uint8", "uint16", "uint32", "uint64"),
}  # fmt: skip


def framework(backend: str) -> Framework:
    """Return Keras on one of its backends, "jax", "torch" or "tensorflow", on the CPU.

    Raises:
        BackendError: Keras has no such backend with gradients, or was imported with another one in this process.
    """
    if backend not in UNDERNEATH:
        raise BackendError(f"Keras has no backend {backend!r} with gradients; it must be {', '.join(UNDERNEATH)}")
    if (chosen := keras.config.backend()) != backend:
        reason = f"Keras was imported with the backend {chosen!r}; choose {backend!r} in another process"
        raise BackendError(f"adapter 'keras:{backend}': {reason}")
    module, device = UNDERNEATH[backend]
    below = importlib.import_module(f"{__package__}.{module}").framework(device)
    functions = FUNCTIONS | {"slice": below.functions["slice"]}  # keras.ops has no slices with steps
    dtypes = frozenset(dtype for dtype in below.dtypes if dtype.name not in LACKING.get(backend, ()))
    return below._replace(functions=functions, dtypes=dtypes, hardware=f"Keras {keras.__version__} on {below.hardware}")


# ---- elementwise and shapes --------------------------------------------------------------------------------------


def is_float(x: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(x.dtype)


def is_complex(x: Any) -> bool:
    return "complex" in str(x.dtype)


def is_narrow(x: Any) -> bool:
    return keras.backend.standardize_dtype(x.dtype) in ("float16", "bfloat16")


def wide(x: Any) -> Any:
    return K.cast(x, "float32") if is_narrow(x) else x


def whole(function: Callable) -> Callable:
    """Return a rounding function that returns integers as they are; Keras makes them floats."""
    return lambda x: function(x) if is_float(x) or is_complex(x) else x


def divided(function: Callable) -> Callable:
    """Return a function that is 0 where an integer is divided by 0, which Keras leaves to its backend."""

    def run(x: Any, y: Any) -> Any:
        if is_float(x if K.is_tensor(x) else y):
            return function(x, y)
        x, y = as_tensors(x, y)
        stops = (y == 0) | (y == -1) if "uint" not in str(y.dtype) else y == 0
        usual = function(x, K.where(stops, K.ones_like(y), y))
        at_minus_1 = K.zeros_like(usual) if function is K.mod else K.subtract(K.zeros_like(x), x)
        return K.where(stops, K.where(y == 0, K.zeros_like(usual), at_minus_1), usual)

    return run


def floor_divide(x: Any, y: Any) -> Any:
    """Return the floor of the quotient, without a gradient, which Keras leaves to its backend."""
    return K.floor_divide(*(K.stop_gradient(a) for a in as_tensors(x, y)))


def as_tensors(*values: Any) -> list[Any]:
    """Return Python numbers as tensors of the first tensor's dtype; tensors as they are."""
    like = next(v for v in values if K.is_tensor(v))
    return [v if K.is_tensor(v) else K.convert_to_tensor(v, dtype=like.dtype) for v in values]


def of_tensors(function: Callable) -> Callable:
    """Return a function for which Python numbers become tensors of the dtype of the others."""
    return lambda *values: function(*as_tensors(*values))


def sign(x: Any) -> Any:
    """Return the sign, nan for nan, which Keras leaves to its backend."""
    return K.where(K.isnan(x), K.stop_gradient(x), K.sign(x)) if is_float(x) else K.sign(x)


def clip(x: Any, low: Any, high: Any) -> Any:
    """Return x clamped; Keras requires both limits."""
    if low is None or high is None:
        raise Absent
    return K.clip(x, *as_tensors(x, low, high)[1:])


def imaginary(x: Any) -> Any:
    """Return the imaginary part; of real numbers, Keras leaves it to its backend."""
    return K.imag(x) if is_complex(x) else K.zeros_like(x)


def complex_of(x: Any, y: Any) -> Any:
    """Return x + i y; float16 and bfloat16 have complex64."""
    x, y = (wide(a) for a in as_tensors(x, y))
    shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    return K.view_as_complex(K.stack([K.broadcast_to(x, shape), K.broadcast_to(y, shape)], axis=-1))


def slice_update(x: Any, value: Any, starts: tuple, *, steps: tuple) -> Any:
    if any(step != 1 for step in steps) or not x.ndim:
        raise Absent
    return K.slice_update(x, starts, value)


def moved(function: Callable) -> Callable:
    """Return a function along an axis from one along the last axis."""
    return lambda x, *, axis, **params: K.moveaxis(function(K.moveaxis(x, axis, -1), **params), -1, axis)


def pad(x: Any, *, pad_width: Any, mode: str, constant_values: Any) -> Any:
    """Return x padded; one pair for all axes, which Keras takes on JAX, it does not take on its other backends."""
    if mode != "constant":
        raise Absent
    widths = np.broadcast_to(pad_width, (x.ndim, 2)).tolist()
    return K.pad(x, widths, constant_values=constant_values) if x.ndim else x


def places(indices: Any, n: int) -> Any:
    """Return indices from 0 on: Keras leaves negative ones to its backend."""
    return K.where(indices < 0, indices + n, indices)


def take(x: Any, indices: Any, *, axis: int) -> Any:
    return K.take(x, places(indices, x.shape[axis]), axis=axis)


def take_along_axis(x: Any, indices: Any, *, axis: int) -> Any:
    return K.take_along_axis(x, places(indices, x.shape[axis]), axis=axis)


def scatter_add(x: Any, indices: Any, updates: Any, *, axis: int) -> Any:
    """Return x with updates added; 16-bit floats are added in float32, where Keras leaves it to its backend."""
    at = K.reshape(places(indices, x.shape[axis]), (-1, 1))
    rows = K.reshape(wide(updates), (*x.shape[:axis], at.shape[0], *x.shape[axis + 1 :]))
    first = K.moveaxis(wide(x), axis, 0)
    added = first + K.scatter(at, K.moveaxis(rows, axis, 0), tuple(first.shape))
    return K.cast(K.moveaxis(added, 0, axis), x.dtype)


def indices_of(found: Any) -> Any:
    """Return indices as int64; Keras's are int32."""
    return K.cast(found, "int64")


def fill(value: Any, like: Any, *, shape: tuple, dtype: np.dtype) -> Any:
    return K.full(shape, value, dtype=dtype.name)


def sort(x: Any, *, axis: int, descending: bool, stable: bool) -> Any:
    if descending:
        raise Absent
    return K.sort(x, axis=axis)


def argsort(x: Any, *, axis: int, descending: bool, stable: bool) -> Any:
    if descending:
        raise Absent
    return indices_of(K.argsort(x, axis=axis))


def topk(x: Any, *, k: int, axis: int) -> Any:
    values, indices = K.top_k(K.moveaxis(x, axis, -1), k)
    return K.moveaxis(values, -1, axis), indices_of(K.moveaxis(indices, -1, axis))


def argtopk(x: Any, *, k: int, axis: int) -> Any:
    return topk(x, k=k, axis=axis)[1]


# ---- reductions and products -------------------------------------------------------------------------------------


def reduction(function: Callable) -> Callable:
    """Return a reduction; Keras's sum has no dtype, its variance no correction."""

    def run(x: Any, *, axis: Any, keepdims: bool, dtype: Any = None, correction: float = 0) -> Any:
        if correction:
            raise Absent
        return function(x if dtype is None else K.cast(x, dtype.name), axis=axis, keepdims=keepdims)

    return run


def index_reduction(function: Callable) -> Callable:
    return lambda x, *, axis, keepdims: indices_of(function(x, axis=axis, keepdims=keepdims))


def vector_norm(x: Any, *, axis: Any, keepdims: bool, ord: float) -> Any:
    """Return the norm over one axis; over more, Keras's is the norm of a matrix."""
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if len(axes) != 1:
        raise Absent
    return K.norm(x, ord=ord, axis=axes[0], keepdims=keepdims)


# ---- networks ----------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[Any, Callable] = {
    None: lambda y: y, "relu": K.relu, "silu": K.silu, "gelu": partial(K.gelu, approximate=False),
    "gelu_tanh": partial(K.gelu, approximate=True),
}  # fmt: skip


def like_x(x: Any, *others: Any) -> list[Any]:
    """Return tensors in the dtype of x; Keras's functions promote them."""
    return [o if o is None else K.cast(o, x.dtype) for o in others]


def linear(x: Any, weight: Any, bias: Any, *, activation: Any) -> Any:
    y = K.matmul(x, K.transpose(weight))
    return ACTIVATIONS[activation](y if bias is None else y + like_x(y, bias)[0])


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    return K.layer_normalization(x, *like_x(x, weight, bias), axis=-1, epsilon=eps)


def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    return K.rms_normalization(x, like_x(x, weight)[0], axis=-1, epsilon=eps)


def batch_norm(x: Any, weight: Any, bias: Any, *, eps: float, activation: Any) -> tuple[Any, Any, Any]:
    mean, variance = K.moments(wide(x), axes=tuple(range(x.ndim - 1)))
    y = batch_norm_inference(x, mean, variance, weight, bias, eps=eps)
    return ACTIVATIONS[activation](y), mean, variance


def batch_norm_inference(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    """Return x normalized; 16-bit floats in float32, as Keras's layer does."""
    more = [o if o is None else wide(o) for o in (bias, weight)]
    y = K.batch_normalization(wide(x), wide(mean), wide(variance), -1, *more, epsilon=eps)
    return K.cast(y, x.dtype)


def cross_entropy(logits: Any, targets: Any, *, reduction: str, ignore_index: int, label_smoothing: float) -> Any:
    """Return the loss, float32 for 16-bit logits; Keras has no ignored targets, so their loss is set to 0 here."""
    if label_smoothing:
        raise Absent
    used = targets != ignore_index
    classes = K.where(used, targets, K.zeros_like(targets))
    loss = K.sparse_categorical_crossentropy(classes, wide(logits), from_logits=True)
    loss = K.where(used, loss, K.zeros_like(loss))
    if reduction == "none":
        return loss
    return K.sum(loss) if reduction == "sum" else K.sum(loss) / K.cast(K.sum(K.cast(used, "int32")), loss.dtype)


def attention(
    q: Any, k: Any, v: Any, mask: Any, key: Any, counter: Any, *, causal: bool, scale: Any, dropout_rate: float
) -> Any:
    """Return attention, with heads as axis 1 and the others where Keras has them.

    A causal mask ends with the last key, where Keras's begins with the first; a query that sees no key gives 0, where
    Keras averages the values.
    """
    t, s = q.shape[-2], k.shape[-2]
    if dropout_rate or 0 in (*q.shape, *k.shape, *v.shape) or q.shape[-1] != v.shape[-1]:  # one width of heads
        raise Absent
    lead = np.broadcast_shapes(*(tuple(a.shape[:-2]) for a in (q, k, v)))
    heads = lambda a: K.reshape(K.broadcast_to(a, (*lead, *a.shape[-2:])), (1, -1, *a.shape[-2:]))
    more: dict[str, Any] = {"is_causal": causal and t == s and mask is None}
    seen = K.convert_to_tensor(np.tri(t, s, s - t if causal else s, dtype=bool))
    if causal and mask is not None and "bool" not in str(mask.dtype):  # a bias beside a mask
        raise Absent
    if mask is not None and "bool" in str(mask.dtype):
        seen = K.logical_and(mask, seen)
    elif mask is not None:
        more["bias"] = heads(K.broadcast_to(K.cast(mask, q.dtype), (*lead, t, s)))
    seen = heads(K.broadcast_to(seen, (*lead, t, s)))
    if not more["is_causal"] and "bias" not in more and (causal or mask is not None):
        more["mask"] = seen
    turned = (K.swapaxes(heads(a), 1, 2) for a in (q, k, v))
    y = K.swapaxes(K.dot_product_attention(*turned, **more, scale=scale), 1, 2)
    y = K.where(K.any(seen, axis=-1, keepdims=True), y, K.zeros_like(y))
    return K.reshape(y, (*lead, t, v.shape[-1]))


# ---- images ------------------------------------------------------------------------------------------------------


def nonempty(x: Any) -> Any:
    """Return x; raise Absent if it is empty: Keras leaves empty images to its backend, and PyTorch refuses them."""
    if 0 in x.shape:
        raise Absent
    return x


def padded(x: Any, padding: tuple) -> Any:
    return K.pad(x, ((0, 0), *padding, (0, 0))) if any(n for pair in padding for n in pair) else x


def conv(
    x: Any, weight: Any, bias: Any, *, stride: Any, padding: Any, dilation: Any, groups: int, activation: Any
) -> Any:
    """Return the convolution; Keras's channels of the output are the last axis of the weight."""
    if max(stride) > 1 and max(dilation) > 1:
        raise Absent
    kernel = K.moveaxis(nonempty(weight), 0, -1)
    y = K.conv(padded(x, padding), kernel, stride, "valid", "channels_last", dilation)
    return ACTIVATIONS[activation](y if bias is None else y + like_x(y, bias)[0])


def conv_transpose(
    x: Any, weight: Any, bias: Any, *, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: int
) -> Any:
    """Return the transposed convolution: all of it, with the padding cut off; Keras has no groups."""
    is_short = any(k < s for k, s in zip(weight.shape[1:-1], stride, strict=True))
    if groups > 1 or any(output_padding) or max(dilation) > 1 or is_short:
        raise Absent
    y = K.conv_transpose(nonempty(x), K.moveaxis(nonempty(weight), 0, -1), stride, "valid", None, "channels_last")
    inside = (slice(before, n - after) for n, (before, after) in zip(y.shape[1:-1], padding, strict=True))
    y = y[(slice(None), *inside)]
    return y if bias is None else y + like_x(y, bias)[0]


def max_pool(x: Any, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    if any(n for pair in padding for n in pair) or max(dilation) > 1 or ceil_mode:
        raise Absent
    return K.max_pool(nonempty(x), kernel, stride, "valid", "channels_last")


def mean_pool(
    x: Any, *, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: Any
) -> Any:
    if ceil_mode or divisor is not None or (not count_include_pad and any(n for pair in padding for n in pair)):
        raise Absent
    return K.average_pool(padded(nonempty(x), padding), kernel, stride, "valid", "channels_last")


def adaptive_mean_pool(x: Any, *, shape: tuple) -> Any:
    return K.adaptive_average_pool(nonempty(x), shape, "channels_last")


def interpolate(x: Any, *, shape: Any, scale: Any, mode: str, align_corners: bool) -> Any:
    """Return images resized; of Keras's modes, only bilinear means the same."""
    if x.ndim != 4 or scale or mode != "linear" or align_corners:
        raise Absent
    return K.cast(K.image.resize(nonempty(x), shape, "bilinear", data_format="channels_last"), x.dtype)


# ---- matrices and Fourier transforms -----------------------------------------------------------------------------


def of_matrices(function: Callable) -> Callable:
    """Return a function of real matrices, which Keras does not have for 16-bit floats."""
    return absent_if(lambda x: is_narrow(x) or is_complex(x), function)


def hermitian(function: Callable) -> Callable:
    """Return a function of the symmetric part of x; which triangle Keras reads depends on its backend."""
    return of_matrices(lambda x: function((x + K.swapaxes(x, -1, -2)) / 2))


def parts(x: Any) -> tuple:
    return (K.real(x), K.imag(x)) if is_complex(x) else (x, K.zeros_like(x))


def dft(x: Any, *, axis: tuple[int, ...], inverse: bool, scale: float) -> Any:
    if inverse or len(axis) != 1:  # Keras has them for the last two axes only
        raise Absent
    transform = moved(lambda x: complex_of(*(scale * part for part in K.fft(parts(x)))))
    return transform(x, axis=axis[0])


def dft_of_real(x: Any, *, inverse: bool, scale: float) -> Any:
    real, imaginary = K.rfft(wide(x))
    return complex_of(scale * real, -scale * imaginary if inverse else scale * imaginary)


def dft_to_real(x: Any, *, n: int, inverse: bool, scale: float) -> Any:
    real, imaginary = parts(x)
    return scale * n * K.irfft((real, imaginary if inverse else -imaginary), fft_length=n)


# ---- the table ---------------------------------------------------------------------------------------------------

# Functions with the name and the parameters of the op.
SAME = """negative abs square reciprocal exp expm1 log log1p log2 log10 sqrt rsqrt sin cos tan sinh cosh tanh erf
sigmoid relu silu isnan isinf isfinite signbit logical_not real broadcast_to expand_dims squeeze flip moveaxis roll
repeat tril triu stack matmul outer tensordot softmax log_softmax""".split()
SAME_OF_TWO = """add subtract multiply divide maximum minimum hypot logaddexp equal not_equal less less_equal greater
greater_equal bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor nextafter bitwise_left_shift
bitwise_right_shift""".split()
OTHER_NAMES = {
    "asin": K.arcsin, "acos": K.arccos, "atan": K.arctan, "asinh": K.arcsinh, "acosh": K.arccosh, "atanh": K.arctanh,
    "bitwise_invert": K.bitwise_invert, "conj": K.conj, "imag": imaginary, "real_part": K.real,
    "imaginary_part": K.imag,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(K, name) for name in SAME}, **OTHER_NAMES,
    **{name: of_tensors(getattr(K, name)) for name in SAME_OF_TWO},
    **{name: whole(getattr(K, name)) for name in ("floor", "ceil", "trunc", "round")},
    "atan2": of_tensors(K.arctan2), "pow": of_tensors(K.power), "complex": complex_of,
    "floor_divide": divided(floor_divide), "remainder": divided(K.mod), "clip": clip, "sign": sign,
    "where": lambda condition, x, y: K.where(condition, *as_tensors(x, y)),
    "astype": lambda x, *, dtype: K.cast(x, dtype.name), "reshape": lambda x, *, shape: K.reshape(x, shape),
    "permute_dims": lambda x, *, axes: K.transpose(x, axes),
    "slice_update": slice_update, "matrix_transpose": lambda x: K.swapaxes(x, -1, -2),
    "unstack": lambda x, *, axis: tuple(K.unstack(x, axis=axis)),
    "split": lambda x, *, indices_or_sections, axis: tuple(K.split(x, indices_or_sections, axis)),
    "pad": pad, "tile": lambda x, *, repetitions: K.tile(x, repetitions),
    "concat": lambda arrays, *, axis: K.concatenate(arrays, axis), "take": take, "take_along_axis": take_along_axis,
    "scatter_add": scatter_add, "sort": sort, "argsort": argsort, "topk": topk, "argtopk": argtopk, "fill": fill,
    **{name: reduction(getattr(K, name)) for name in (
        "sum", "prod", "max", "min", "any", "all", "mean", "var", "std", "logsumexp",
    )},
    "argmax": index_reduction(K.argmax), "argmin": index_reduction(K.argmin), "vector_norm": vector_norm,
    "cumulative_sum": lambda x, *, axis, dtype: K.cumsum(x, axis=axis, dtype=dtype.name),
    "matrix_product": K.matmul, "linear": linear,
    "gelu": lambda x, *, approximate: K.gelu(x, approximate=approximate == "tanh"), "layer_norm": layer_norm,
    "rms_norm": rms_norm, "batch_norm": batch_norm, "batch_norm_inference": batch_norm_inference,
    "cross_entropy": cross_entropy, "attention": attention,
    "embedding": lambda weight, indices: take(weight, indices, axis=0), "conv": conv,
    "conv_transpose": conv_transpose, "max_pool": max_pool, "mean_pool": mean_pool,
    "adaptive_mean_pool": adaptive_mean_pool, "interpolate": interpolate, "cholesky": hermitian(K.cholesky),
    "svdvals": of_matrices(lambda x: K.svd(x, compute_uv=False)), "eigvalsh": hermitian(lambda x: K.eigh(x)[0]),
    "det": of_matrices(K.det), "inv": of_matrices(K.inv), "solve": of_matrices(K.solve),
    "slogdet": of_matrices(lambda x: tuple(K.slogdet(x))), "pinv": of_matrices(lambda x, rtol: K.pinv(x, rcond=rtol)),
    "dft": dft, "dft_of_real": moved(dft_of_real), "dft_to_real": moved(dft_to_real),
}  # fmt: skip
