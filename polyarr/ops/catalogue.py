"""The public ops, which are functions of polyarr.

Type checkers read catalogue.pyi instead, which `make stubs` writes.
"""
# fmt: off

from polyarr.ops.elementwise import (
    abs, add, ceil, clip, conj, copysign, divide, floor, floor_divide, imag, isfinite, isinf, maximum, minimum,
    multiply, negative, nextafter, positive, real, reciprocal, remainder, round, sign, signbit, square, subtract, trunc,
)
from polyarr.ops.functions import (
    acos, acosh, asin, asinh, atan, atan2, atanh, cos, cosh, erf, exp, expm1, hypot, log, log10, log1p, log2, logaddexp,
    pow, relu, rsqrt, sigmoid, silu, sin, sinh, sqrt, tan, tanh,
)
from polyarr.ops.grouped import grouped_linear, quantized_grouped_linear
from polyarr.ops.head import linear_cross_entropy
from polyarr.ops.index import argsort, scatter, scatter_add, scatter_add_along_axis, sort, take, take_along_axis, topk
from polyarr.ops.joining import pad, roll, split, stack, tile, unstack
from polyarr.ops.linalg import matmul, outer, tensordot, vecdot
from polyarr.ops.logic import (
    bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor, equal, greater,
    greater_equal, isnan, less, less_equal, logical_and, logical_not, logical_or, logical_xor, not_equal,
)
from polyarr.ops.nn import (
    attention, cross_entropy, dropout, embedding, gelu, layer_norm, linear, log_softmax, mse, rms_norm, softmax,
)
from polyarr.ops.norms import batch_norm, batch_norm_inference, group_norm, instance_norm
from polyarr.ops.optim import global_norm
from polyarr.ops.quantized import quantized_linear
from polyarr.ops.reduce import all, any, argmax, argmin, logsumexp, max, mean, min, prod, std, sum, var
from polyarr.ops.shape import (
    broadcast_to, expand_dims, flip, matrix_transpose, moveaxis, permute_dims, squeeze, tril, triu,
)

__all__ = [name for name in dir() if name[0].isalpha()]  # neither dunders nor what pytest adds, beginning with @
