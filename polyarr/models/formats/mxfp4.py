"""Weights of experts in MXFP4, as gpt-oss is published: numbers of 4 bits, with a power of two for each block of 32.

GGUF has the same numbers of a block in another order.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.spec import bfloat16, float16, int8
from polyarr.ops.quantized import QUANTIZED_BLOCK

_BYTES = QUANTIZED_BLOCK // 2  # of a block
_BIAS = 127  # of the exponents
_BLOCKS, _SCALES = "_blocks", "_scales"
# Twice the numbers of E2M1, which has a bit for the sign, two for the exponent and one for the mantissa.
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], int8)
_PAIRS = np.stack([np.tile(_DOUBLED, 16), np.repeat(_DOUBLED, 16)], axis=1)  # (256, 2): a byte's low 4 bits come first
_POWERS = np.ldexp(np.float32(1), np.arange(256) - _BIAS - 1)  # (256,): half of what an exponent stands for
_POWERS[-1] = np.nan


class MXFP4Tensor(NamedTuple):
    """Weights (e, k, n) of experts in MXFP4: each is a number of 4 bits times the power of two of its block.

    Attributes:
        name: Name of the weights, as it would be without quantization.
        blocks: Stored array uint8 (e, n, k / 32, 16): two numbers in a byte.
        scales: Stored array uint8 (e, n, k / 32): exponents plus 127.
    """

    name: str
    blocks: Any
    scales: Any

    @property
    def shape(self) -> list[int]:
        """The shape [e, k, n]: other arrays of such models are stored as (in, out)."""
        e, n, count, _ = self.blocks.shape
        return [e, count * QUANTIZED_BLOCK, n]

    @property
    def dtype(self) -> str:
        """Name of the dtype that has all these numbers, and that the other arrays of such a model have."""
        return "BF16"

    def read(self, dtype: np.dtype | None = None) -> np.ndarray:
        """Return the weights (e, k, n) in a floating-point dtype, rounded once; None: bfloat16, which has them all.

        Raises:
            ValueError: A number is not finite.
        """
        return dequantized(self.name, self.blocks.read(), self.scales.read(), dtype or bfloat16).swapaxes(1, 2)

    @property
    def kind(self) -> str:
        """Type of GGUF whose blocks hold the weights without loss: "Q8_0", or "packed" if float16 lacks a scale."""
        return "Q8_0" if have_float16(self.scales.read()) else "packed"

    def codes(self) -> np.ndarray:
        """Return the codes of a QuantizedLinear, int8 (e, n, k): twice the numbers of 4 bits."""
        e, k, n = self.shape
        return np.take(_PAIRS, self.blocks.read(), axis=0).reshape(e, n, k)

    def scale(self) -> np.ndarray:
        """Return the scales of a QuantizedLinear, float16 (e, n, k / 32)."""
        return float16_scales(self.scales.read())


def dequantized(
    name: str, blocks: np.ndarray, exponents: np.ndarray, dtype: np.dtype, is_gguf: bool = False
) -> np.ndarray:
    """Return the weights (e, n, k) of stored blocks in a floating-point dtype, rounded once.

    Args:
        name: Name of the weights, for errors.
        blocks: uint8 (e, n, k / 32, 16): two numbers in a byte.
        exponents: uint8 (e, n, k / 32): exponents plus 127.
        dtype: The dtype.
        is_gguf: Whether a byte has numbers j and j + 16 of its block, or else 2 j and 2 j + 1.

    Raises:
        ValueError: A number is not finite.
    """
    with np.errstate(over="ignore"):
        table = (_PAIRS * _POWERS[:, None, None]).astype(dtype)  # (256, 256, 2), by exponent and byte
    e, n, count, _ = blocks.shape
    weight = np.empty((e, n, count * QUANTIZED_BLOCK), table.dtype)
    for expert in range(e):  # the indices, of 8 bytes, of one at a time
        at = exponents[expert][..., None].astype(np.uint16) << 8 | blocks[expert]  # (n, k / 32, 16)
        pairs = np.take(table.reshape(-1, 2), at, axis=0)  # (n, k / 32, 16, 2)
        weight[expert] = (pairs.swapaxes(-1, -2) if is_gguf else pairs).reshape(n, -1)
    is_finite = np.all(np.isfinite(table), axis=(1, 2))  # (256,): whether all numbers with an exponent are
    if not is_finite[exponents].all() and not np.isfinite(weight).all():  # the first is quick and usually enough
        raise ValueError(f"{name} holds numbers that are not finite in {weight.dtype}")
    return weight


def have_float16(exponents: np.ndarray) -> bool:
    """Return whether float16 has all scales that stored exponents, uint8 (...), stand for."""
    scale = _POWERS[exponents]
    with np.errstate(over="ignore"):
        return np.array_equal(scale.astype(float16), scale)


def float16_scales(exponents: np.ndarray) -> np.ndarray:
    """Return the scales of a QuantizedLinear, float16 (...), for stored exponents, uint8 (...)."""
    return _POWERS[exponents].astype(float16)


def codes_of_gguf(blocks: np.ndarray) -> np.ndarray:
    """Return the codes of a QuantizedLinear, int8 (..., k), for GGUF's bytes, uint8 (..., k / 2).

    A byte has number j of its block of 32 in the low 4 bits, and number j + 16 in the high ones.
    """
    pairs = _PAIRS[blocks.reshape(*blocks.shape[:-1], -1, _BYTES)]  # (..., k / 32, 16, 2)
    return pairs.swapaxes(-1, -2).reshape(*blocks.shape[:-1], -1)


def with_mxfp4(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors of a folder with an MXFP4Tensor in place of each pair of blocks and scales.

    Raises:
        ValueError: Scales are missing, or shapes or dtypes do not fit.
    """
    found = dict(tensors)
    for name in [name.removesuffix(_BLOCKS) for name in tensors if name.endswith(_BLOCKS)]:
        if name + _SCALES not in found:
            raise ValueError(f"missing {name}{_SCALES}")
        blocks, scales = found.pop(name + _BLOCKS), found.pop(name + _SCALES)
        if len(blocks.shape) != 4 or blocks.shape[3] != _BYTES:
            raise ValueError(f"{name}{_BLOCKS} is {blocks.shape}; it must be [experts, out, in / 32, {_BYTES}]")
        if scales.shape != blocks.shape[:3]:
            due = f"must be {blocks.shape[:3]} beside blocks {blocks.shape}"
            raise ValueError(f"{name}{_SCALES} is {scales.shape} and {due}")
        for last, stored in ((_BLOCKS, blocks), (_SCALES, scales)):
            if stored.dtype != "U8":
                raise ValueError(f"{name}{last} is of {stored.dtype} and must be of U8")
        if name in found:
            raise ValueError(f"{name} is there both with and without quantization; it must be one of them")
        found[name] = MXFP4Tensor(name, blocks, scales)
    return found
