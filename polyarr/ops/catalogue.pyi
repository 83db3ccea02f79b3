# Written by `make stubs` out of the ops, which are the place for changes.
"""Every op, as type checkers see it."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from polyarr.core.array import Array
from polyarr.core.op import Op

DType = np.dtype[Any] | type | str
P = ParamSpec("P")
R = TypeVar("R", covariant=True)

class _Op(Op, Generic[P, R]):
    def __call__(self, *args: P.args, **params: P.kwargs) -> R: ...

def _op(face: Callable[P, R]) -> _Op[P, R]: ...

@_op
def full(value: float, like: Array | None = None, *, shape: int | Sequence[int], dtype: DType) -> Array: ...

@_op
def arange(start: float, step: float, like: Array | None = None, *, size: int, dtype: DType) -> Array: ...

@_op
def equal(x: Array | float, y: Array | float) -> Array: ...

@_op
def less(x: Array | float, y: Array | float) -> Array: ...

@_op
def less_equal(x: Array | float, y: Array | float) -> Array: ...

@_op
def not_equal(x: Array | float, y: Array | float) -> Array: ...

@_op
def greater(x: Array | float, y: Array | float) -> Array: ...

@_op
def greater_equal(x: Array | float, y: Array | float) -> Array: ...

@_op
def isnan(x: Array) -> Array: ...

@_op
def bitwise_and(x: Array | float, y: Array | float) -> Array: ...

@_op
def bitwise_or(x: Array | float, y: Array | float) -> Array: ...

@_op
def bitwise_xor(x: Array | float, y: Array | float) -> Array: ...

@_op
def bitwise_invert(x: Array) -> Array: ...

@_op
def bitwise_left_shift(x: Array | float, y: Array | float) -> Array: ...

@_op
def bitwise_right_shift(x: Array | float, y: Array | float) -> Array: ...

@_op
def logical_and(x: Array | float, y: Array | float) -> Array: ...

@_op
def logical_or(x: Array | float, y: Array | float) -> Array: ...

@_op
def logical_xor(x: Array | float, y: Array | float) -> Array: ...

@_op
def logical_not(x: Array) -> Array: ...

@_op
def add(x: Array | float, y: Array | float) -> Array: ...

@_op
def subtract(x: Array | float, y: Array | float) -> Array: ...

@_op
def multiply(x: Array | float, y: Array | float) -> Array: ...

@_op
def divide(x: Array | float, y: Array | float) -> Array: ...

@_op
def floor_divide(x: Array | float, y: Array | float) -> Array: ...

@_op
def remainder(x: Array | float, y: Array | float) -> Array: ...

@_op
def maximum(x: Array | float, y: Array | float) -> Array: ...

@_op
def minimum(x: Array | float, y: Array | float) -> Array: ...

@_op
def negative(x: Array) -> Array: ...

@_op
def positive(x: Array) -> Array: ...

@_op
def abs(x: Array) -> Array: ...

@_op
def sign(x: Array) -> Array: ...

@_op
def square(x: Array) -> Array: ...

@_op
def reciprocal(x: Array) -> Array: ...

@_op
def floor(x: Array) -> Array: ...

@_op
def ceil(x: Array) -> Array: ...

@_op
def trunc(x: Array) -> Array: ...

@_op
def round(x: Array) -> Array: ...

@_op
def real(x: Array) -> Array: ...

@_op
def conj(x: Array) -> Array: ...

@_op
def imag(x: Array) -> Array: ...

@_op
def isinf(x: Array) -> Array: ...

@_op
def isfinite(x: Array) -> Array: ...

@_op
def signbit(x: Array) -> Array: ...

@_op
def copysign(x: Array | float, y: Array | float) -> Array: ...

@_op
def nextafter(x: Array | float, y: Array | float) -> Array: ...

@_op
def clip(x: Array | float, min: Array | float | None = None, max: Array | float | None = None) -> Array: ...

@_op
def where(condition: Array, x: Array | float, y: Array | float) -> Array: ...

@_op
def astype(x: Array, dtype: DType) -> Array: ...

@_op
def astype_all(arrays: Sequence[Array], dtype: DType) -> tuple[Array, ...]: ...

@_op
def reshape(x: Array, shape: int | Sequence[int]) -> Array: ...

@_op
def permute_dims(x: Array, axes: Sequence[int]) -> Array: ...

@_op
def broadcast_to(x: Array, shape: int | Sequence[int]) -> Array: ...

@_op
def slice(x: Array, starts: Sequence[Array | int], steps: Sequence[int], shape: int | Sequence[int]) -> Array: ...

@_op
def slice_update(x: Array, value: Array, starts: Sequence[Array | int], steps: Sequence[int]) -> Array: ...

@_op
def expand_dims(x: Array, axis: int = 0) -> Array: ...

@_op
def squeeze(x: Array, axis: int | Sequence[int] | None = None) -> Array: ...

@_op
def matrix_transpose(x: Array) -> Array: ...

@_op
def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int]) -> Array: ...

@_op
def flip(x: Array, axis: int | Sequence[int] | None = None) -> Array: ...

@_op
def tril(x: Array, k: int = 0) -> Array: ...

@_op
def triu(x: Array, k: int = 0) -> Array: ...

@_op
def concat(arrays: Sequence[Array], axis: int = 0) -> Array: ...

@_op
def stack(arrays: Sequence[Array], axis: int = 0) -> Array: ...

@_op
def unstack(x: Array, axis: int = 0) -> tuple[Array, ...]: ...

@_op
def split(x: Array, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Array, ...]: ...

@_op
def pad(x: Array, pad_width: int | Sequence[int] | Sequence[Sequence[int]], constant_values: float = 0) -> Array: ...

@_op
def roll(x: Array, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array: ...

@_op
def tile(x: Array, repetitions: int | Sequence[int]) -> Array: ...

@_op
def repeat(x: Array, repeats: int, axis: int | None = None) -> Array: ...

@_op
def pow(x: Array | float, y: Array | float) -> Array: ...

@_op
def exp(x: Array) -> Array: ...

@_op
def expm1(x: Array) -> Array: ...

@_op
def log(x: Array) -> Array: ...

@_op
def log1p(x: Array) -> Array: ...

@_op
def log2(x: Array) -> Array: ...

@_op
def log10(x: Array) -> Array: ...

@_op
def sqrt(x: Array) -> Array: ...

@_op
def rsqrt(x: Array) -> Array: ...

@_op
def sin(x: Array) -> Array: ...

@_op
def cos(x: Array) -> Array: ...

@_op
def tan(x: Array) -> Array: ...

@_op
def asin(x: Array) -> Array: ...

@_op
def acos(x: Array) -> Array: ...

@_op
def atan(x: Array) -> Array: ...

@_op
def atan2(x: Array | float, y: Array | float) -> Array: ...

@_op
def sinh(x: Array) -> Array: ...

@_op
def cosh(x: Array) -> Array: ...

@_op
def tanh(x: Array) -> Array: ...

@_op
def asinh(x: Array) -> Array: ...

@_op
def acosh(x: Array) -> Array: ...

@_op
def atanh(x: Array) -> Array: ...

@_op
def erf(x: Array) -> Array: ...

@_op
def hypot(x: Array | float, y: Array | float) -> Array: ...

@_op
def logaddexp(x: Array | float, y: Array | float) -> Array: ...

@_op
def sigmoid(x: Array) -> Array: ...

@_op
def relu(x: Array) -> Array: ...

@_op
def silu(x: Array) -> Array: ...

@_op
def sum(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False, dtype: DType | None = None) -> Array: ...

@_op
def prod(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False, dtype: DType | None = None) -> Array: ...

@_op
def max(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

@_op
def min(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

@_op
def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array: ...

@_op
def argmin(x: Array, axis: int | None = None, keepdims: bool = False) -> Array: ...

@_op
def cumulative_sum(x: Array, axis: int | None = None, dtype: DType | None = None) -> Array: ...

@_op
def any(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

@_op
def all(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

@_op
def mean(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

@_op
def var(x: Array, axis: int | Sequence[int] | None = None, correction: float = 0.0, keepdims: bool = False) -> Array: ...

@_op
def std(x: Array, axis: int | Sequence[int] | None = None, correction: float = 0.0, keepdims: bool = False) -> Array: ...

@_op
def logsumexp(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

@_op
def matrix_product(x: Array, y: Array, precision: str | None = None) -> Array: ...

@_op
def matmul(x: Array, y: Array, precision: str | None = None) -> Array: ...

@_op
def vecdot(x: Array, y: Array, axis: int = -1) -> Array: ...

@_op
def outer(x: Array, y: Array) -> Array: ...

@_op
def tensordot(x: Array, y: Array, axes: int | Sequence[Sequence[int]] = 2, precision: str | None = None) -> Array: ...

@_op
def vector_norm(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: float = 2.0) -> Array: ...

@_op
def take(x: Array, indices: Array, axis: int = 0) -> Array: ...

@_op
def scatter(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array: ...

@_op
def scatter_add(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array: ...

@_op
def take_along_axis(x: Array, indices: Array, axis: int = -1) -> Array: ...

@_op
def scatter_add_along_axis(x: Array, indices: Array, updates: Array, axis: int = -1) -> Array: ...

@_op
def argsort(x: Array, axis: int = -1, descending: bool = False, stable: bool = True) -> Array: ...

@_op
def sort(x: Array, axis: int = -1, descending: bool = False, stable: bool = True) -> Array: ...

@_op
def argtopk(x: Array, k: int, axis: int = -1) -> Array: ...

@_op
def topk(x: Array, k: int, axis: int = -1) -> tuple[Array, Array]: ...

@_op
def random_bits(key: Array | int, counter: Array | int, like: Array | None = None, *, shape: int | Sequence[int]) -> Array: ...

@_op
def softmax(x: Array, axis: int = -1) -> Array: ...

@_op
def log_softmax(x: Array, axis: int = -1) -> Array: ...

@_op
def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05) -> Array: ...

@_op
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-06) -> Array: ...

@_op
def gelu(x: Array, approximate: str = 'none') -> Array: ...

@_op
def linear(x: Array, weight: Array, bias: Array | None = None, activation: str | None = None, precision: str | None = None) -> Array: ...

@_op
def int8_linear(x: Array, weight: Array, scale: Array | float, bias: Array | None = None, activation: str | None = None) -> Array: ...

@_op
def embedding(weight: Array, indices: Array) -> Array: ...

@_op
def dropout(x: Array, key: Array | int, counter: Array | int, rate: float) -> Array: ...

@_op
def cross_entropy(logits: Array, targets: Array, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = 'mean') -> Array: ...

@_op
def mse(x: Array | float, y: Array | float) -> Array: ...

@_op
def attention(q: Array, k: Array, v: Array, mask: Array | None = None, key: Array | int = 0, counter: Array | int = 0, causal: bool = False, scale: float | None = None, dropout_rate: float = 0.0, precision: str | None = None) -> Array: ...

@_op
def windows(x: Array, kernel: int | Sequence[int], stride: int | Sequence[int] = 1, dilation: int | Sequence[int] = 1) -> Array: ...

@_op
def sum_windows(x: Array, shape: int | Sequence[int], stride: int | Sequence[int] = 1, dilation: int | Sequence[int] = 1) -> Array: ...

@_op
def conv_product(x: Array, weight: Array, stride: int | Sequence[int] = 1, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, precision: str | None = None) -> Array: ...

@_op
def conv_input_gradient(g: Array, weight: Array, shape: int | Sequence[int], stride: int | Sequence[int] = 1, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, precision: str | None = None) -> Array: ...

@_op
def conv_weight_gradient(g: Array, x: Array, shape: int | Sequence[int], stride: int | Sequence[int] = 1, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, precision: str | None = None) -> Array: ...

@_op
def conv(x: Array, weight: Array, bias: Array | None = None, stride: int | Sequence[int] = 1, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, activation: str | None = None, precision: str | None = None) -> Array: ...

@_op
def conv_transpose(x: Array, weight: Array, bias: Array | None = None, stride: int | Sequence[int] = 1, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, output_padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, precision: str | None = None) -> Array: ...

@_op
def cholesky(x: Array) -> Array: ...

@_op
def eigh(x: Array) -> tuple[Array, Array]: ...

@_op
def qr(x: Array) -> tuple[Array, Array]: ...

@_op
def svd(x: Array) -> tuple[Array, Array, Array]: ...

@_op
def slogdet(x: Array) -> tuple[Array, Array]: ...

@_op
def solve(x: Array, b: Array) -> Array: ...

@_op
def inv(x: Array) -> Array: ...

@_op
def det(x: Array) -> Array: ...

@_op
def eigvalsh(x: Array) -> Array: ...

@_op
def svdvals(x: Array) -> Array: ...

@_op
def pinv(x: Array, rtol: Array | float) -> Array: ...

@_op
def cross_entropy_and_gradient(g: Array, logits: Array, targets: Array, ignore_index: int = -100, label_smoothing: float = 0.0) -> tuple[Array, Array]: ...

@_op
def linear_cross_entropy(x: Array, weight: Array, targets: Array, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = 'mean', rows_at_once: int | None = None, precision: str | None = None) -> Array: ...

@_op
def batch_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05, activation: str | None = None) -> tuple[Array, Array, Array]: ...

@_op
def batch_norm_inference(x: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05) -> Array: ...

@_op
def group_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, groups: int, eps: float = 1e-05) -> Array: ...

@_op
def instance_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05) -> Array: ...

@_op
def global_norm(arrays: Sequence[Array]) -> Array: ...

@_op
def sgd(params: Sequence[Array], grads: Sequence[Array], velocity: Sequence[Array], lr: Array | float, scale: Array | float = 1.0, *, momentum: float, weight_decay: Sequence[float], nesterov: bool) -> tuple[tuple[Array, ...], ...]: ...

@_op
def adamw(params: Sequence[Array], grads: Sequence[Array], m: Sequence[Array], v: Sequence[Array], lr: Array | float, step: Array | float, scale: Array | float = 1.0, *, beta1: float, beta2: float, eps: float, weight_decay: Sequence[float], decoupled: bool) -> tuple[tuple[Array, ...], ...]: ...

@_op
def max_pool(x: Array, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False) -> Array: ...

@_op
def mean_pool(x: Array, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: float | None = None) -> Array: ...

@_op
def adaptive_mean_pool(x: Array, shape: int | Sequence[int | None]) -> Array: ...

@_op
def interpolate(x: Array, shape: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None, mode: str = 'nearest', align_corners: bool = False) -> Array: ...

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "attention",
    "batch_norm",
    "batch_norm_inference",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_to",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "cross_entropy",
    "divide",
    "dropout",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "flip",
    "floor",
    "floor_divide",
    "gelu",
    "global_norm",
    "greater",
    "greater_equal",
    "group_norm",
    "hypot",
    "imag",
    "instance_norm",
    "int8_linear",
    "isfinite",
    "isinf",
    "isnan",
    "layer_norm",
    "less",
    "less_equal",
    "linear",
    "linear_cross_entropy",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moveaxis",
    "mse",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "outer",
    "pad",
    "permute_dims",
    "positive",
    "pow",
    "prod",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "rms_norm",
    "roll",
    "round",
    "rsqrt",
    "scatter",
    "scatter_add",
    "scatter_add_along_axis",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "topk",
    "tril",
    "triu",
    "trunc",
    "unstack",
    "var",
    "vecdot",
]
