"""Faults in the precisions of products, in weights wider than their inputs, and in losses wider than logits."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from polyarr import ops
from polyarr.backends.numpy.table import KERNELS
from polyarr.core.backend import Backend, Fused
from tests.testing.negative_controls.fused_kernels import FUSED
from tests.testing.negative_controls.table import differs, fault, with_kernels

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]

# ---- products of float32 that are less exact, correct and not ---------------------------------------------------


def scaled(x: np.ndarray) -> np.ndarray:
    """Return the power of two that scales the largest number of x to between 2**14 and 2**15."""
    top = np.abs(x).max(initial=0)
    return np.float32(2.0 ** (14 - np.floor(np.log2(top)))) if top else np.float32(1)


def of_float16_terms(x: np.ndarray, y: np.ndarray, scale: Callable) -> np.ndarray:
    """Return the product of both operands scaled and split into two float16 terms."""

    def terms(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        high = x.astype(np.float16).astype(np.float32)
        return high, ((x - high) * 2**11).astype(np.float16).astype(np.float32) / 2**11

    s, t = scale(x), scale(y)
    with np.errstate(all="ignore"):
        (a, b), (c, d) = terms(x * s), terms(y * t)
        return (a @ c + a @ d + b @ c) / s / t


def short(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def of_short(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the product with precision "medium"."""
    return short(x) @ short(y)


def of_terms(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the product with precision "high": two bfloat16 terms per operand, without low @ low."""
    a, c = short(x), short(y)
    return a @ c + a @ short(y - c) + short(x - a) @ c


def telling(
    backend: Backend, high: Product = of_terms, medium: Product = of_short, dtypes: tuple = (np.float32,)
) -> Backend:
    """Return a backend whose matrix product distinguishes the three precisions."""
    plain, less = KERNELS[ops.matrix_product], {"high": high, "medium": medium}

    def product(out: Any, x: Any, y: Any, *, precision: str) -> Any:
        if out.dtype not in dtypes or precision == "highest":
            return plain(out, x, y)
        return less[precision](x.astype(np.float32), y.astype(np.float32)).astype(out.dtype)

    return with_kernels(backend, {ops.matrix_product: product})._replace(precisions={ops.matrix_product: (*less,)})


def told(word: str = r"\w+") -> dict[str, str]:
    place = rf"matrix_product on numpy with precision '{word}': "
    return {"backend-precisions": place + differs(r"(the result|d/d[xy])", "float32")}


@fault("telling", told("high"))
def high_has_float16_terms_without_a_scale(backend: Backend) -> Backend:
    return telling(backend, high=lambda x, y: of_float16_terms(x, y, scale=lambda a: np.float32(1)))


@fault("telling", told("high"))
def high_has_one_scale_for_all_rows(backend: Backend) -> Backend:
    return telling(backend, high=lambda x, y: of_float16_terms(x, y, scale=scaled))


@fault("telling", told("high"))
def high_lacks_the_low_term_of_x(backend: Backend) -> Backend:
    return telling(backend, high=lambda x, y: of_terms(short(x), y))


@fault("telling", told("medium"))
def medium_cuts_bits_off(backend: Backend) -> Backend:
    def cut(x: np.ndarray) -> np.ndarray:
        return (np.ascontiguousarray(x).view(np.uint32) & 0xFFFC0000).view(np.float32)

    return telling(backend, medium=lambda x, y: cut(x) @ cut(y))


@fault("telling", {"backend-precisions": "matrix_product on numpy: " + differs(dtype="float64")})
def a_precision_counts_for_float64(backend: Backend) -> Backend:
    return telling(backend, dtypes=(np.float32, np.float64))


# ---- dtypes that differ -----------------------------------------------------------------------------------------


def misread(x: np.ndarray, weight: Any) -> Any:
    """Return the first bytes of weight, reinterpreted in x's dtype."""
    return weight if weight is None or weight.dtype == x.dtype else weight.view(x.dtype)[: len(weight)]


def reading(fused: Fused, first: int) -> Fused:
    """Return Fused kernels whose forward reinterprets every input from `first` on in x's dtype."""

    def forward(out: Any, x: Any, *others: Any, **params: Any) -> Any:
        weights = [misread(x, a) if i >= first else a for i, a in enumerate(others, 1)]
        return fused.forward(out, x, *weights, **params)

    return fused._replace(forward=forward)


@fault("fused", {"bfloat16-layer_norm": differs(dtype="bfloat16"), "float16-rms_norm": differs(dtype="float16")})
def a_norm_takes_every_weight_for_one_of_its_dtype(backend: Backend) -> Backend:
    return with_kernels(backend, {op: reading(FUSED[op], 1) for op in (ops.layer_norm, ops.rms_norm)})


@fault("fused", {"bfloat16-linear": differs(dtype="bfloat16")})
def a_linear_layer_takes_every_bias_for_one_of_its_dtype(backend: Backend) -> Backend:
    return with_kernels(backend, {ops.linear: reading(FUSED[ops.linear], 2)})


@fault("fused", {"bfloat16-cross_entropy": differs(dtype="float32"), "float16-cross_entropy": differs(dtype="float32")})
def a_loss_is_rounded_to_the_dtype_of_the_logits(backend: Backend) -> Backend:
    fused = FUSED[ops.cross_entropy]

    def forward(out: Any, logits: Any, *others: Any, **params: Any) -> Any:
        loss, saved = fused.forward(out, logits, *others, **params)
        return loss.astype(logits.dtype).astype(out.dtype), saved

    return with_kernels(backend, {ops.cross_entropy: fused._replace(forward=forward)})


@fault("numpy", {"bfloat16-layer_norm": r"the result came as float32\[.*\]; it must be bfloat16\["})
def a_norm_has_the_dtype_of_its_weight(backend: Backend) -> Backend:
    fused = FUSED[ops.layer_norm]

    def forward(out: Any, x: Any, weight: Any, bias: Any, **params: Any) -> Any:
        y, saved = fused.forward(out, x, weight, bias, **params)
        return (y if weight is None else y.astype(np.promote_types(x.dtype, weight.dtype))), saved

    return with_kernels(backend, {ops.layer_norm: fused._replace(forward=forward)})
