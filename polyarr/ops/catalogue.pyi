# Written by `make stubs` out of the ops, which are the place for changes.
"""The public ops, as type checkers see them."""
# fmt: off

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

class _Unary(Op):
    def __call__(self, x: Array) -> Array: ...

class _Binary(Op):
    def __call__(self, x: Array | float, y: Array | float) -> Array: ...

class _Reduction(Op):
    def __call__(self, x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array: ...

abs: _Unary
acos: _Unary
acosh: _Unary
add: _Binary
all: _Reduction
any: _Reduction
@_op
def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array: ...
@_op
def argmin(x: Array, axis: int | None = None, keepdims: bool = False) -> Array: ...
@_op
def argsort(x: Array, axis: int = -1, descending: bool = False, stable: bool = True) -> Array: ...
asin: _Unary
asinh: _Unary
atan: _Unary
atan2: _Binary
atanh: _Unary
@_op
def attention(q: Array, k: Array, v: Array, mask: Array | None = None, key: Array | int = 0, counter: Array | int = 0, causal: bool = False, scale: float | None = None, dropout_rate: float = 0.0, precision: str | None = None) -> Array: ...
@_op
def batch_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05, activation: str | None = None) -> tuple[Array, Array, Array]: ...
@_op
def batch_norm_inference(x: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05) -> Array: ...
bitwise_and: _Binary
bitwise_invert: _Unary
bitwise_left_shift: _Binary
bitwise_or: _Binary
bitwise_right_shift: _Binary
bitwise_xor: _Binary
@_op
def broadcast_to(x: Array, shape: int | Sequence[int]) -> Array: ...
ceil: _Unary
@_op
def clip(x: Array | float, min: Array | float | None = None, max: Array | float | None = None) -> Array: ...
conj: _Unary
copysign: _Binary
cos: _Unary
cosh: _Unary
@_op
def cross_entropy(logits: Array, targets: Array, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = 'mean') -> Array: ...
divide: _Binary
@_op
def dropout(x: Array, key: Array | int, counter: Array | int, rate: float) -> Array: ...
@_op
def embedding(weight: Array, indices: Array) -> Array: ...
equal: _Binary
erf: _Unary
exp: _Unary
@_op
def expand_dims(x: Array, axis: int | Sequence[int] = 0) -> Array: ...
expm1: _Unary
@_op
def flip(x: Array, axis: int | Sequence[int] | None = None) -> Array: ...
floor: _Unary
floor_divide: _Binary
@_op
def gelu(x: Array, approximate: str = 'none') -> Array: ...
@_op
def global_norm(arrays: Sequence[Array]) -> Array: ...
greater: _Binary
greater_equal: _Binary
@_op
def group_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, groups: int, eps: float = 1e-05) -> Array: ...
@_op
def grouped_linear(x: Array, weight: Array, groups: Array) -> Array: ...
hypot: _Binary
imag: _Unary
@_op
def instance_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05) -> Array: ...
isfinite: _Unary
isinf: _Unary
isnan: _Unary
@_op
def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-05) -> Array: ...
less: _Binary
less_equal: _Binary
@_op
def linear(x: Array, weight: Array, bias: Array | None = None, activation: str | None = None, precision: str | None = None) -> Array: ...
@_op
def linear_cross_entropy(x: Array, weight: Array, targets: Array, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = 'mean', rows_at_once: int | None = None, precision: str | None = None) -> Array: ...
log: _Unary
log10: _Unary
log1p: _Unary
log2: _Unary
@_op
def log_softmax(x: Array, axis: int = -1) -> Array: ...
logaddexp: _Binary
logical_and: _Binary
logical_not: _Unary
logical_or: _Binary
logical_xor: _Binary
logsumexp: _Reduction
@_op
def matmul(x: Array, y: Array, precision: str | None = None) -> Array: ...
matrix_transpose: _Unary
max: _Reduction
maximum: _Binary
mean: _Reduction
min: _Reduction
minimum: _Binary
@_op
def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int]) -> Array: ...
mse: _Binary
multiply: _Binary
negative: _Unary
nextafter: _Binary
not_equal: _Binary
@_op
def outer(x: Array, y: Array) -> Array: ...
@_op
def pad(x: Array, pad_width: int | Sequence[int] | Sequence[Sequence[int]], mode: str = 'constant', constant_values: float = 0) -> Array: ...
@_op
def permute_dims(x: Array, axes: Sequence[int]) -> Array: ...
positive: _Unary
pow: _Binary
@_op
def prod(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False, dtype: DType | None = None) -> Array: ...
@_op
def quantized_grouped_linear(x: Array, codes: Array, scale: Array | float, groups: Array) -> Array: ...
@_op
def quantized_linear(x: Array, codes: Array, scale: Array | float, bias: Array | None = None, activation: str | None = None) -> Array: ...
real: _Unary
reciprocal: _Unary
relu: _Unary
remainder: _Binary
@_op
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-06) -> Array: ...
@_op
def roll(x: Array, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array: ...
round: _Unary
rsqrt: _Unary
@_op
def scatter(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array: ...
@_op
def scatter_add(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array: ...
@_op
def scatter_add_along_axis(x: Array, indices: Array, updates: Array, axis: int = -1) -> Array: ...
sigmoid: _Unary
sign: _Unary
signbit: _Unary
silu: _Unary
sin: _Unary
sinh: _Unary
@_op
def softmax(x: Array, axis: int = -1) -> Array: ...
@_op
def sort(x: Array, axis: int = -1, descending: bool = False, stable: bool = True) -> Array: ...
@_op
def split(x: Array, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Array, ...]: ...
sqrt: _Unary
square: _Unary
@_op
def squeeze(x: Array, axis: int | Sequence[int] | None = None) -> Array: ...
@_op
def stack(arrays: Sequence[Array], axis: int = 0) -> Array: ...
@_op
def std(x: Array, axis: int | Sequence[int] | None = None, correction: float = 0.0, keepdims: bool = False) -> Array: ...
subtract: _Binary
@_op
def sum(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False, dtype: DType | None = None) -> Array: ...
@_op
def take(x: Array, indices: Array, axis: int = 0) -> Array: ...
@_op
def take_along_axis(x: Array, indices: Array, axis: int = -1) -> Array: ...
tan: _Unary
tanh: _Unary
@_op
def tensordot(x: Array, y: Array, axes: int | Sequence[Sequence[int]] = 2, precision: str | None = None) -> Array: ...
@_op
def tile(x: Array, repetitions: int | Sequence[int]) -> Array: ...
@_op
def topk(x: Array, k: int, axis: int = -1) -> tuple[Array, Array]: ...
@_op
def tril(x: Array, k: int = 0) -> Array: ...
@_op
def triu(x: Array, k: int = 0) -> Array: ...
trunc: _Unary
@_op
def unstack(x: Array, axis: int = 0) -> tuple[Array, ...]: ...
@_op
def var(x: Array, axis: int | Sequence[int] | None = None, correction: float = 0.0, keepdims: bool = False) -> Array: ...
@_op
def vecdot(x: Array, y: Array, axis: int = -1) -> Array: ...
__all__ = [
"abs", "acos", "acosh", "add", "all", "any", "argmax", "argmin", "argsort", "asin", "asinh", "atan", "atan2", "atanh",
"attention", "batch_norm", "batch_norm_inference", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
"bitwise_or", "bitwise_right_shift", "bitwise_xor", "broadcast_to", "ceil", "clip", "conj", "copysign", "cos", "cosh",
"cross_entropy", "divide", "dropout", "embedding", "equal", "erf", "exp", "expand_dims", "expm1", "flip", "floor",
"floor_divide", "gelu", "global_norm", "greater", "greater_equal", "group_norm", "grouped_linear", "hypot", "imag",
"instance_norm", "isfinite", "isinf", "isnan", "layer_norm", "less", "less_equal", "linear", "linear_cross_entropy",
"log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or",
"logical_xor", "logsumexp", "matmul", "matrix_transpose", "max", "maximum", "mean", "min", "minimum", "moveaxis",
"mse", "multiply", "negative", "nextafter", "not_equal", "outer", "pad", "permute_dims", "positive", "pow", "prod",
"quantized_grouped_linear", "quantized_linear", "real", "reciprocal", "relu", "remainder", "rms_norm", "roll",
"round", "rsqrt", "scatter", "scatter_add", "scatter_add_along_axis", "sigmoid", "sign", "signbit", "silu", "sin",
"sinh", "softmax", "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "take",
"take_along_axis", "tan", "tanh", "tensordot", "tile", "topk", "tril", "triu", "trunc", "unstack", "var", "vecdot"
]
