"""Linear layer with a quantized weight, and how weights are rounded: int8 rows, and GGUF's Q8_0 and Q4_0."""

import math
from collections.abc import Callable
from typing import Any

from polyarr import ops
from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import float16, float32, float64, int8, uint8
from polyarr.nn.experts import with_bias_of_groups
from polyarr.nn.module import Module
from polyarr.ops.quantized import QUANTIZED_BLOCK, dequantized, quantized_shape
from polyarr.ops.validation import check_array

_LARGEST = 127


class QuantizedLinear(Module):
    """Linear layer with a quantized weight: act(x @ weight.T + bias), where weight is codes * scale.

    The codes and scales are frozen, and `astype` does not convert them. With a leading axis, `groups`, they are those
    of several layers, of which each row of the input chooses one, as in GroupedLinear.

    Args:
        codes: int8 array (out, in), or uint8 array (out, in / 2) of codes of 4 bits; see quantized_linear.
        scale: Floating-point array (out,), or (out, in / 32).
        bias: Floating-point array (out,), with groups (groups, out), or None.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh"; None for layers with groups.

    Attributes:
        dtype: Dtype of `weight`, float32.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> layer = nn.QuantizedLinear.of(pa.asarray([[127.0, -50.0]]), "int8")
        >>> layer(pa.asarray([[1.0, 1.0]]))
        Array([[77.]], float32, 'numpy')
        >>> layer.codes.dtype, layer.scale.shape
        (dtype('int8'), (1,))

    Source: Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339 (only the quantized weights)
    """

    frozen = True
    is_state = True

    def __init__(self, codes: Array, scale: Array, bias: Array | None = None, activation: str | None = None) -> None:
        self.codes, self.scale, self.bias = codes, scale, bias
        self.activation, self.dtype = activation, "float32"

    @classmethod
    def of(
        cls, weight: Array, kind: str = "int8", bias: Array | None = None, activation: str | None = None
    ) -> "QuantizedLinear":
        """Return the layer for a weight, rounded.

        Args:
            weight: Floating-point array (out, in), or (groups, out, in).
            kind: "int8", with a scale per row, the largest magnitude divided by 127; or "q8_0" or "q4_0", which have
                the bits of GGUF's types: blocks of 32 along a row, with a float16 scale each.
            bias: Floating-point array (out,), or (groups, out), or None.
            activation: As in QuantizedLinear.

        Raises:
            TypeError: weight is not an array.
            ValueError: There is no such kind.
            ShapeError: A row does not consist of whole blocks.
        """
        check_array("QuantizedLinear", "weight", weight)
        check_kind_of_weights("QuantizedLinear", kind)
        if kind != "int8" and (len(weight.shape) < 2 or weight.shape[-1] % QUANTIZED_BLOCK):
            given = f"QuantizedLinear: weight is {spec_of(weight)}"
            raise ShapeError(f"{given}; for {kind!r} its rows must be multiples of {QUANTIZED_BLOCK} long")
        wide = weight if weight.dtype == float64 and kind == "int8" else ops.astype(weight, dtype=float32)
        rows = weight.shape[:-1]
        codes, scale = _ROUNDED[kind](ops.reshape(wide, shape=(math.prod(rows), weight.shape[-1])))
        codes = ops.reshape(codes, shape=(*rows, codes.shape[1]))
        return cls(codes, ops.reshape(scale, shape=(*rows, *scale.shape[1:])), bias, activation)

    def __call__(self, x: Array, groups: Array | None = None) -> Array:
        """Return the output (..., out) for an input x (..., in), and for the layer of each row, integers (...)."""
        if groups is not None:
            return self.before_activation(x, groups)
        return ops.quantized_linear(x, self.codes, self.scale, self.bias, activation=self.activation)

    def before_activation(self, x: Array, groups: Array | None = None) -> Array:
        """Return the output (..., out) for an input x (..., in), without the activation."""
        if groups is not None:
            y = ops.quantized_grouped_linear(x, self.codes, self.scale, groups)
            return with_bias_of_groups(y, self.bias, groups)
        return ops.quantized_linear(x, self.codes, self.scale, self.bias)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (out, in) of the weight, or (groups, out, in)."""
        return quantized_shape(self.codes)

    def _more_parameters(self) -> int:
        return math.prod(self.shape) - self.codes.size - self.scale.size

    @property
    def has_blocks(self) -> bool:
        """True if each block of 32 codes has its own scale, as in GGUF's types, and False if each row has."""
        return len(self.scale.shape) == len(self.codes.shape)

    @property
    def weight(self) -> Array:
        """The weight, of the layer's shape, that the codes stand for, in the layer's dtype."""
        return ops.astype(self.exact_weight, dtype=self.dtype)

    @property
    def exact_weight(self) -> Array:
        """The weight before it is rounded to the layer's dtype: in float64 if the scales are, else in float32."""
        return dequantized(self.codes, self.scale, float64 if self.scale.dtype == float64 else float32)


def check_kind_of_weights(name: str, kind: Any) -> None:
    """Raise ValueError unless kind is one that QuantizedLinear has."""
    if kind not in KINDS:
        raise ValueError(f"{name}: kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}")


def _int8_rows(weight: Array) -> tuple[Array, Array]:
    """Return codes and scales of rows."""
    scale = ops.max(ops.abs(weight), axis=1) / _LARGEST  # (out,); nan for a row with a nan
    scale = ops.where(scale == 0, 1.0, scale)
    return ops.astype(ops.round(weight / scale[:, None]), dtype=int8), scale


def _q8_0(weight: Array) -> tuple[Array, Array]:
    """Return codes and scales as in GGUF's Q8_0: halves are rounded away from 0."""
    blocks = _blocks(weight)
    scale = ops.max(ops.abs(blocks), axis=2) / _LARGEST
    scaled = blocks * _reciprocal(scale)
    codes = ops.sign(scaled) * ops.floor(ops.abs(scaled) + 0.5)
    return ops.astype(ops.reshape(codes, shape=weight.shape), dtype=int8), ops.astype(scale, dtype=float16)


def _q4_0(weight: Array) -> tuple[Array, Array]:
    """Return codes and scales as in GGUF's Q4_0: the largest magnitude of a block becomes -8."""
    blocks = _blocks(weight)
    largest = ops.argmax(ops.abs(blocks), axis=2, keepdims=True)
    scale = ops.take_along_axis(blocks, largest, axis=2)[:, :, 0] / -8
    codes = ops.clip(ops.trunc(blocks * _reciprocal(scale) + 8.5), 0, 15)
    low, high = ops.split(ops.astype(codes, dtype=uint8), indices_or_sections=2, axis=2)
    pairs = low + high * 16
    rows = ops.reshape(pairs, shape=(weight.shape[0], weight.shape[1] // 2))
    return rows, ops.astype(scale, dtype=float16)


def _blocks(weight: Array) -> Array:
    return ops.reshape(weight, shape=(weight.shape[0], weight.shape[1] // QUANTIZED_BLOCK, QUANTIZED_BLOCK))


def _reciprocal(scale: Array) -> Array:
    """Return 1 / scale (..., 1), or 0 where the scale is 0."""
    return ops.where(scale == 0, 0.0, 1.0 / scale)[:, :, None]


_ROUNDED: dict[str, Callable[[Array], tuple[Array, Array]]] = {"int8": _int8_rows, "q8_0": _q8_0, "q4_0": _q4_0}
KINDS = tuple(_ROUNDED)
