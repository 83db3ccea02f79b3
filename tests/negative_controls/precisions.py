"""Mistakes with dtypes that differ: weights wider than the array beside them, losses wider than what they are of."""

from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.backend import Backend, Fused
from tests.negative_controls.pairs import PAIRS
from tests.negative_controls.table import differs, fault, with_kernels


def misread(x: np.ndarray, weight: Any) -> Any:
    """The first bytes of weight, as if they were of x's dtype."""
    return weight if weight is None or weight.dtype == x.dtype else weight.view(x.dtype)[: len(weight)]


def reading(pair: Fused, first: int) -> Fused:
    """The pair, whose forward half takes every input from `first` on for one of x's dtype."""

    def forward(out: Any, x: Any, *others: Any, **params: Any) -> Any:
        weights = [misread(x, a) if i >= first else a for i, a in enumerate(others, 1)]
        return pair.forward(out, x, *weights, **params)

    return pair._replace(forward=forward)


@fault("pairs", {"bfloat16-layer_norm": differs(dtype="bfloat16"), "float16-rms_norm": differs(dtype="float16")})
def a_norm_takes_every_weight_for_one_of_its_dtype(backend: Backend) -> Backend:
    return with_kernels(backend, {op: reading(PAIRS[op], 1) for op in (ops.layer_norm, ops.rms_norm)})


@fault("pairs", {"bfloat16-linear": differs(dtype="bfloat16")})
def a_linear_layer_takes_every_bias_for_one_of_its_dtype(backend: Backend) -> Backend:
    return with_kernels(backend, {ops.linear: reading(PAIRS[ops.linear], 2)})


@fault("pairs", {"bfloat16-cross_entropy": differs(dtype="float32"), "float16-cross_entropy": differs(dtype="float32")})
def a_loss_is_rounded_to_the_dtype_of_the_logits(backend: Backend) -> Backend:
    pair = PAIRS[ops.cross_entropy]

    def forward(out: Any, logits: Any, *others: Any, **params: Any) -> Any:
        loss, saved = pair.forward(out, logits, *others, **params)
        return loss.astype(logits.dtype).astype(out.dtype), saved

    return with_kernels(backend, {ops.cross_entropy: pair._replace(forward=forward)})


@fault("numpy", {"bfloat16-layer_norm": r"the result came as float32\[.*\]; it must be bfloat16\["})
def a_norm_has_the_dtype_of_its_weight(backend: Backend) -> Backend:
    pair = PAIRS[ops.layer_norm]

    def forward(out: Any, x: Any, weight: Any, bias: Any, **params: Any) -> Any:
        y, saved = pair.forward(out, x, weight, bias, **params)
        return (y if weight is None else y.astype(np.promote_types(x.dtype, weight.dtype))), saved

    return with_kernels(backend, {ops.layer_norm: pair._replace(forward=forward)})
