"""Linear layers with quantized weights: codes of 8 or 4 bits, with a scale per row or per block."""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import check_kind, int8, uint8
from polyarr.ops.elementwise import add, astype, like, multiply, subtract
from polyarr.ops.joining import concat
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import bitwise_and, bitwise_right_shift
from polyarr.ops.nn import ACTIVATIONS, check_activation, check_bias
from polyarr.ops.shape import matrix_transpose, reshape

QUANTIZED_BLOCK = 32  # codes along k that share a scale, as in GGUF's Q8_0 and Q4_0
_OFFSET_OF_4_BITS = 8  # a stored 4-bit code is this much larger than the number that it stands for


@composed()
def quantized_linear(x, codes, scale, bias=None, *, activation=None):
    """Return a linear layer with a quantized weight: activation(x weight^T + bias).

    The weight (n, k) is codes * scale, with one scale for each row or for each block of 32 codes along k. Codes of 4
    bits are stored in pairs, in the order of GGUF's Q4_0: of each block of 32 codes, byte j has code j in its low 4
    bits and code j + 16 in its high 4 bits, both plus 8.

    Args:
        x: Floating-point array (..., k).
        codes: int8 array (n, k), or uint8 array (n, k / 2) of codes of 4 bits.
        scale: Floating-point array (n,), or (n, k / 32), of finite numbers.
        bias: Floating-point array (n,), or None.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".

    Returns:
        Array (..., n) of the dtype of x.

    Raises:
        DtypeError: codes is neither int8 nor uint8, or another input is not floating-point.
        ShapeError: The shapes do not fit; or there are blocks or codes of 4 bits, and k is not a multiple of 32.
        ValueError: There is no such activation.

    Examples:
        >>> import polyarr as pa
        >>> codes, scale = pa.asarray([[100, -50]], dtype="int8"), pa.asarray([0.5])
        >>> pa.quantized_linear(pa.asarray([[1.0, 1.0]]), codes, scale)
        Array([[25.]], float32, 'numpy')

    Gradients: x, scale, bias

    Source: Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339 (only the quantized weights)
    """
    check_activation("quantized_linear", activation)
    for name, a in (("x", x), ("scale", scale), ("bias", bias)):
        if a is not None:
            check_kind("quantized_linear", name, spec_of(a), "floating")
    check_codes("quantized_linear", x, codes, scale)
    check_bias("quantized_linear", codes, bias)
    rows = reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    has_blocks = len(scale.shape) == 2
    weight = dequantized(codes, scale, rows.dtype) if has_blocks else unpacked(codes, rows.dtype)
    product = matrix_product(rows, matrix_transpose(weight))
    y = product if has_blocks else multiply(product, scale)
    y = ACTIVATIONS[activation](y if bias is None else add(y, bias))
    return reshape(like(y, product), shape=(*x.shape[:-1], codes.shape[0]))


def dequantized(codes, scale, dtype):
    """Return the weight (..., n, k) in a floating-point dtype, for the codes and the scale of quantized_linear."""
    shape = quantized_shape(codes)
    *rows, k = shape
    blocks = (*rows, k // QUANTIZED_BLOCK, QUANTIZED_BLOCK) if len(scale.shape) == len(shape) else (*rows, 1, k)
    factors = reshape(astype(scale, dtype=dtype), shape=(*blocks[:-1], 1))
    return reshape(multiply(reshape(unpacked(codes, dtype), shape=blocks), factors), shape=shape)


def unpacked(codes, dtype):
    """Return the numbers (..., n, k) that codes stand for, in a floating-point dtype."""
    if codes.dtype == int8:
        return astype(codes, dtype=dtype)
    *rows, k = shape = quantized_shape(codes)
    pairs = reshape(codes, shape=(*rows, k // QUANTIZED_BLOCK, QUANTIZED_BLOCK // 2))
    stored = concat([bitwise_and(pairs, 15), bitwise_right_shift(pairs, 4)], axis=-1)  # (..., n, k / 32, 32)
    return reshape(subtract(astype(stored, dtype=dtype), _OFFSET_OF_4_BITS), shape=shape)


def quantized_shape(codes):
    """Return the shape (..., n, k) of the weight that codes are for."""
    *rows, k = codes.shape
    return *rows, 2 * k if codes.dtype == uint8 else k


def check_codes(name, x, codes, scale, groups=()):
    """Raise an error unless codes and scale are of the dtypes and shapes that x needs.

    Args:
        name: Name of the op.
        x: Array (..., k).
        codes: Array (*groups, n, k) or (*groups, n, k / 2).
        scale: Array (*groups, n) or (*groups, n, k / 32).
        groups: Names of leading axes.
    """
    if codes.dtype not in (int8, uint8):
        raise DtypeError(f"{name}: codes is {spec_of(codes)}; its dtype must be int8 or uint8")
    given = f"{name}: x is {spec_of(x)}, codes is {spec_of(codes)}, scale is {spec_of(scale)}"
    *rows, k = quantized_shape(codes) if len(codes.shape) == len(groups) + 2 else (-1, -1)
    if x.shape[-1:] != (k,) or scale.shape not in ((*rows,), (*rows, k // QUANTIZED_BLOCK)):
        n = ", ".join((*groups, "n"))
        due = f"[{n}, k / 2]" if codes.dtype == uint8 else f"[{n}, k]"
        raise ShapeError(f"{given}; they must be [..., k], {due} and [{n}] or [{n}, k / {QUANTIZED_BLOCK}]")
    if k % QUANTIZED_BLOCK and (codes.dtype == uint8 or len(scale.shape) == len(codes.shape)):
        raise ShapeError(f"{given}; k must be a multiple of {QUANTIZED_BLOCK} for blocks and for codes of 4 bits")
