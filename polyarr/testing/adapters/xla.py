"""JAX on one of its platforms: polyarr's ops as functions of JAX, gradients by jax.vjp.

Where JAX means something else by a name, the function states the convention in one line.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp

from polyarr.core.errors import BackendError
from polyarr.core.spec import DTYPES, FLOATS, NARROW, float16
from polyarr.testing.adapters import Absent, Framework, absent_if, as_slices


def framework(device: str) -> Framework:
    """Return JAX on the first device of a platform, such as "cpu". Enables float64 in the process.

    Raises:
        BackendError: JAX has no such platform.
    """
    try:
        place = jax.devices(device)[0]
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise BackendError(f"JAX has no platform {device!r}: {reason}") from error
    jax.config.update("jax_enable_x64", True)
    upload = lambda host: jax.device_put(jnp.array(host.copy()), place)  # JAX may read its argument later
    flushed = frozenset(FLOATS) - {float16}  # by XLA; denormal numbers of float16 are normal ones in float32
    functions = {name: on(place, function) for name, function in FUNCTIONS.items()}
    return Framework(functions, vjp, upload, download, f"{place}, JAX {jax.__version__}", frozenset(DTYPES), flushed)


def on(device: Any, function: Callable) -> Callable:
    """Return a function whose constants are made on a device."""

    def run(*args: Any, **params: Any) -> Any:
        with jax.default_device(device):
            found = function(*args, **params)
        return tuple(found) if isinstance(found, list) else found

    return run


def download(array: jax.Array) -> np.ndarray:
    """Return an array as a host array of its dtype."""
    return np.array(array, order="C")


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def vjp(function: Callable[..., list], inputs: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
    """Return the gradients by jax.vjp."""
    pull = jax.vjp(lambda *xs: [y for y in function(*xs) if is_inexact(y)], *inputs)[1]
    return pull([g for g in cotangents if is_inexact(g)])


# ---- elementwise and shapes --------------------------------------------------------------------------------------


def as_arrays(*values: Any) -> list[Any]:
    """Return Python numbers as arrays of the first array's dtype; arrays and None as they are."""
    like = next(v for v in values if isinstance(v, jax.Array))
    return [v if v is None or isinstance(v, jax.Array) else jnp.asarray(v, like.dtype) for v in values]


def of_arrays(function: Callable) -> Callable:
    """Return a function for which Python numbers become arrays of the dtype of the others."""
    return lambda *values: function(*as_arrays(*values))


def wide(x: Any) -> Any:
    return x.astype(jnp.float32) if x.dtype in NARROW else x


def whole(function: Callable) -> Callable:
    """Return a rounding function that returns integers as they are."""
    return lambda x: function(x) if is_inexact(x) else x


def complex_of(x: Any, y: Any) -> Any:
    """Return x + i y; float16 and bfloat16 have complex64."""
    return lax.complex(*jnp.broadcast_arrays(wide(x), wide(y)))


def divided(function: Callable) -> Callable:
    """Return a function that is 0 where an integer is divided by 0, which JAX leaves undefined."""

    def run(x: Any, y: Any) -> Any:
        return function(x, y) if is_inexact(x) else jnp.where(y == 0, 0, function(x, jnp.where(y == 0, 1, y)))

    return run


def clip(x: Any, low: Any, high: Any) -> Any:
    return jnp.clip(*as_arrays(x, low, high))


def pad(x: Any, *, pad_width: Any, mode: str, constant_values: Any) -> Any:
    return jnp.pad(x, pad_width, mode, **{"constant_values": constant_values} if mode == "constant" else {})


def slice_update(x: Any, value: Any, starts: tuple, *, steps: tuple) -> Any:
    shape = value.shape
    at = [start + step * np.arange(n) for start, step, n in zip(starts, steps, shape, strict=True)]
    return x.at[np.ix_(*at)].set(value) if shape else value


def places(indices: Any, n: int) -> Any:
    return jnp.where(indices < 0, indices + n, indices)


def at_axis(x: Any, indices: Any, axis: int) -> tuple[Any, Any]:
    """Return x with its axis first, and the indices in one row."""
    return jnp.moveaxis(x, axis, 0), places(indices, x.shape[axis]).reshape(-1)


def scatter_add(x: Any, indices: Any, updates: Any, *, axis: int) -> Any:
    """Return x with updates added; 16-bit floats are added in float32, where JAX rounds every sum."""
    first, at = at_axis(wide(x), indices, axis)
    rows = wide(updates).reshape((*x.shape[:axis], at.size, *x.shape[axis + 1 :]))
    return jnp.moveaxis(first.at[at].add(jnp.moveaxis(rows, axis, 0)), 0, axis).astype(x.dtype)


# ---- reductions and products --------------------------------------------------------------------------------------


def vector_norm(x: Any, *, axis: Any, keepdims: bool, ord: float) -> Any:
    if axis == ():
        raise Absent
    return jnp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)


# ---- networks ----------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[Any, Callable] = {
    None: lambda y: y, "relu": nn.relu, "silu": nn.silu, "gelu": partial(nn.gelu, approximate=False),
    "gelu_tanh": partial(nn.gelu, approximate=True),
}  # fmt: skip


def linear(x: Any, weight: Any, bias: Any, *, activation: Any) -> Any:
    y = jnp.matmul(x, weight.T)
    return ACTIVATIONS[activation](y if bias is None else y + bias.astype(y.dtype))


def attention(
    q: Any, k: Any, v: Any, mask: Any, key: Any, counter: Any, *, causal: bool, scale: Any, dropout_rate: float
) -> Any:
    """Return attention for arrays (b, h, t, d); JAX's heads are the third axis, its causal mask begins with key 0."""
    t, s = q.shape[-2], k.shape[-2]
    alike = q.ndim == k.ndim == v.ndim == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2]
    if dropout_rate or not alike or q.shape[-1] != v.shape[-1] or (causal and t != s) or 0 in (*q.shape, s):
        raise Absent
    masks = {}
    if mask is not None:
        masks["mask" if mask.dtype == bool else "bias"] = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    turned = (jnp.swapaxes(a, 1, 2) for a in (q, k, v))
    return jnp.swapaxes(nn.dot_product_attention(*turned, **masks, scale=scale, is_causal=causal), 1, 2)


# ---- images ------------------------------------------------------------------------------------------------------


def conv(
    x: Any, weight: Any, bias: Any, *, stride: Any, padding: Any, dilation: Any, groups: int, activation: Any
) -> Any:
    axes = "123"[: x.ndim - 2]
    numbers = (f"N{axes}C", f"O{axes}I", f"N{axes}C")
    y = lax.conv_general_dilated(
        x, weight, stride, padding, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
    )
    return ACTIVATIONS[activation](y if bias is None else y + bias.astype(y.dtype))



# ---- matrices and Fourier transforms -------------------------------------------------------------------------------


def of_matrices(function: Callable) -> Callable:
    """Return a function of matrices, which JAX does not have for 16-bit floats."""
    return absent_if(lambda x: x.dtype in NARROW, function)


def dft(x: Any, *, axis: tuple[int, ...], inverse: bool, scale: float) -> Any:
    return scale * (jnp.fft.ifftn(x, axes=axis, norm="forward") if inverse else jnp.fft.fftn(x, axes=axis))


def dft_of_real(x: Any, *, axis: int, inverse: bool, scale: float) -> Any:
    found = scale * jnp.fft.rfft(wide(x), axis=axis)
    return jnp.conj(found) if inverse else found


def dft_to_real(x: Any, *, n: int, axis: int, inverse: bool, scale: float) -> Any:
    return scale * jnp.fft.irfft(x if inverse else jnp.conj(x), n, axis=axis, norm="forward")


# ---- the table ---------------------------------------------------------------------------------------------------

# Functions with the name and the parameters of the op.
SAME = """positive negative abs sign square real conj imag reciprocal exp expm1 log log1p log2 log10 sqrt sin cos tan
asin acos atan sinh cosh tanh asinh acosh atanh isnan isinf isfinite signbit bitwise_invert logical_not reshape
permute_dims broadcast_to expand_dims squeeze matrix_transpose flip moveaxis unstack split roll repeat tril triu concat
stack take take_along_axis sort argsort sum prod max min argmax argmin any all mean var std cumulative_sum matmul outer
vecdot tensordot""".split()
SAME_OF_ARRAYS = """add subtract multiply divide maximum minimum atan2 hypot logaddexp copysign equal not_equal less
less_equal greater greater_equal bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor nextafter
bitwise_left_shift bitwise_right_shift""".split()
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in SAME},
    **{name: of_arrays(getattr(jnp, name)) for name in SAME_OF_ARRAYS},
    **{name: whole(getattr(jnp, name)) for name in ("floor", "ceil", "trunc", "round")},
    "rsqrt": lax.rsqrt, "erf": jax.scipy.special.erf, "sigmoid": nn.sigmoid, "relu": nn.relu, "silu": nn.silu,
    "real_part": jnp.real, "imaginary_part": jnp.imag, "complex": of_arrays(complex_of),
    "floor_divide": of_arrays(divided(jnp.floor_divide)), "remainder": of_arrays(divided(jnp.remainder)),
    "pow": jnp.power, "where": lambda condition, x, y: jnp.where(condition, *as_arrays(x, y)), "clip": clip,
    "astype": lambda x, *, dtype: x.astype(dtype),
    "slice": lambda x, starts, *, steps, shape: x[as_slices(starts, steps, shape)], "slice_update": slice_update,
    "pad": pad, "tile": lambda x, *, repetitions: jnp.tile(x, repetitions), "scatter_add": scatter_add,
    "logsumexp": nn.logsumexp, "vector_norm": vector_norm, "matrix_product": jnp.matmul, "linear": linear,
    "softmax": nn.softmax, "log_softmax": nn.log_softmax,
    "gelu": lambda x, *, approximate: nn.gelu(x, approximate=approximate == "tanh"), "attention": attention,
    "embedding": lambda weight, indices: weight[indices], "conv": conv,
    "cholesky": of_matrices(jnp.linalg.cholesky), "svdvals": of_matrices(jnp.linalg.svdvals),
    "eigvalsh": of_matrices(jnp.linalg.eigvalsh), "det": of_matrices(jnp.linalg.det),
    "inv": of_matrices(jnp.linalg.inv), "slogdet": of_matrices(lambda x: tuple(jnp.linalg.slogdet(x))),
    "pinv": of_matrices(lambda x, rtol: jnp.linalg.pinv(x, rtol=rtol)),
    "solve": of_matrices(lambda x, b: jnp.linalg.solve(x, b)), "dft": dft, "dft_of_real": dft_of_real,
    "dft_to_real": dft_to_real,
}  # fmt: skip
