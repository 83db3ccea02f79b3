"""The ops of neural networks. Each body is the definition and the gradient; a backend may bring a Fused pair."""

import math

from polyarr.core.array import spec_of
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import FLOATS, NARROW, broadcast, check_kind, float32, int8
from polyarr.core.spec import Spec as Spec_
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import full
from polyarr.ops.elementwise import (
    add,
    astype,
    clip,
    divide,
    erf,
    exp,
    isfinite,
    like,
    log,
    multiply,
    relu,
    rsqrt,
    silu,
    square,
    subtract,
    tanh,
    where,
)
from polyarr.ops.index import take, take_along_axis
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import bitwise_right_shift, equal, greater_equal, less, not_equal
from polyarr.ops.random import random_bits
from polyarr.ops.reduce import axis_of, max, mean, sum
from polyarr.ops.shape import expand_dims, matrix_transpose, reshape, squeeze, tril
from polyarr.ops.validation import number, within


def _canonical_axis(x, *, axis):
    return {"axis": axis_of("softmax", x, axis)}


@composed(canonical=_canonical_axis)
def softmax(x, *, axis=-1):
    """exp(x) divided by its sum over axis.

    Shapes:  any -> the same
    Dtypes:  floating -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    check_kind("softmax", "x", spec_of(x), "floating")
    if 0 in x.shape:
        return x
    e = exp(subtract(x, max(x, axis=axis, keepdims=True)))
    return divide(e, sum(e, axis=axis, keepdims=True))


@composed(canonical=_canonical_axis)
def log_softmax(x, *, axis=-1):
    """x minus the logarithm of the sum of exp(x) over axis.

    Shapes:  any -> the same
    Dtypes:  floating -> the same
    Errors:  ShapeError for an axis that x lacks
    Grads:   x
    """
    check_kind("log_softmax", "x", spec_of(x), "floating")
    if 0 in x.shape:
        return x
    centred = subtract(x, max(x, axis=axis, keepdims=True))
    return subtract(centred, log(sum(exp(centred), axis=axis, keepdims=True)))


def check_norm(op: str, x, eps, **named) -> None:
    """Every named array that is there has x's last axis as its only one; eps is a number, perhaps below 0."""
    number(op, "eps", eps)
    check_kind(op, "x", spec_of(x), "floating")
    if not x.shape:
        raise ShapeError(f"{op}: x is {spec_of(x)}; it must have at least one axis")
    for name, a in named.items():
        if a is not None:
            check_kind(op, name, spec_of(a), "floating")
        if a is not None and a.shape != x.shape[-1:]:
            raise ShapeError(f"{op}: {name} is {spec_of(a)}, x is {spec_of(x)}; {name} must be {list(x.shape[-1:])}")


@composed
def layer_norm(x, weight=None, bias=None, *, eps=1e-5):
    """Normalise the last axis to mean 0 and variance 1, then scale and shift.

    y = (x - mean) / sqrt(var + eps) * weight + bias,  var divides by n.

    Shapes:  x (..., n), weight (n,) or None, bias (n,) or None -> (..., n)
    Dtypes:  floating; weight and bias may differ -> x's
    Errors:  ShapeError if weight or bias is not (n,)
    Grads:   x, weight, bias
    Source:  Ba, Kiros, Hinton 2016, arXiv:1607.06450
    """
    check_norm("layer_norm", x, eps, weight=weight, bias=bias)
    centred = subtract(x, mean(x, axis=-1, keepdims=True))
    variance = mean(square(centred), axis=-1, keepdims=True)
    y = multiply(centred, rsqrt(add(variance, eps)))
    y = y if weight is None else multiply(y, weight)
    return like(y if bias is None else add(y, bias), x)


@composed
def rms_norm(x, weight=None, *, eps=1e-6):
    """Divide the last axis by its root mean square, then scale.

    y = x / sqrt(mean(x^2) + eps) * weight.

    Shapes:  x (..., n), weight (n,) or None -> (..., n)
    Dtypes:  floating; weight may differ -> x's
    Errors:  ShapeError if weight is not (n,)
    Grads:   x, weight
    Source:  Zhang, Sennrich 2019, arXiv:1910.07467
    """
    check_norm("rms_norm", x, eps, weight=weight)
    y = multiply(x, rsqrt(add(mean(square(x), axis=-1, keepdims=True), eps)))
    return y if weight is None else like(multiply(y, weight), x)


@composed
def gelu(x, *, approximate="none"):
    """x times the normal distribution function of x: by erf ("none") or by the tanh formula ("tanh").

    Shapes:  any -> the same
    Dtypes:  floating -> the same
    Errors:  ValueError for another form
    Grads:   x
    Source:  Hendrycks, Gimpel 2016, arXiv:1606.08415
    """
    check_kind("gelu", "x", spec_of(x), "floating")
    if approximate == "tanh":
        bounded = clip(x, -10, 10)  # there tanh is 1 in every dtype; of a huge x the gradient would be inf * 0
        inner = multiply(multiply(bounded, add(multiply(square(bounded), 0.044715), 1)), math.sqrt(2 / math.pi))
        return multiply(multiply(x, 0.5), add(tanh(inner), 1))
    if approximate == "none":
        return multiply(multiply(x, 0.5), add(erf(multiply(x, math.sqrt(0.5))), 1))
    raise ValueError(f"gelu: approximate is {approximate!r}; it must be 'none' or 'tanh'")


ACTIVATIONS = {
    None: lambda x: x,
    "relu": relu,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


def check_activation(op: str, activation) -> None:
    """ValueError unless it is one of ACTIVATIONS."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"{op}: activation is {activation!r}; it must be one of {', '.join(map(repr, ACTIVATIONS))}")


def _check_bias(op, weight, bias):
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"{op}: bias is {spec_of(bias)}, weight is {spec_of(weight)}; bias must be {list(weight.shape[:1])}"
        )


@composed(promote="x weight")
def linear(x, weight, bias=None, *, activation=None, precision=None):
    """x times the transpose of weight, plus bias, through an activation; precision is matmul's.

    Shapes:  x (..., k), weight (n, k), bias (n,) or None -> (..., n)
    Dtypes:  floating; x and weight promoted, bias may differ -> theirs
    Errors:  ShapeError if the lengths do not fit, ValueError for an unknown activation
    Grads:   x, weight, bias
    """
    check_activation("linear", activation)
    for name, a in (("x", x), ("weight", weight), ("bias", bias)):
        if a is not None:
            check_kind("linear", name, spec_of(a), "floating")
    if not x.shape or len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: x is {spec_of(x)}, weight is {spec_of(weight)}; x.shape[-1] must equal weight.shape[1]"
        )
    _check_bias("linear", weight, bias)
    rows = reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    product = matrix_product(rows, matrix_transpose(weight), precision=precision)
    y = ACTIVATIONS[activation](product if bias is None else add(product, bias))
    return reshape(like(y, product), shape=(*x.shape[:-1], weight.shape[0]))


@composed()
def int8_linear(x, weight, scale, bias=None, *, activation=None):
    """A linear layer of bytes: linear with the rows of weight multiplied by scale.

    y = activation(x weight^T * scale + bias).

    Shapes:  x (..., k), weight (n, k), scale (n,), bias (n,) or None -> (..., n)
    Dtypes:  x, scale and bias floating, weight int8 -> x's
    Errors:  ShapeError if the lengths do not fit, ValueError for an unknown activation
    Grads:   x, scale, bias
    Source:  Dettmers, Lewis, Belkada, Zettlemoyer 2022, arXiv:2208.07339, of which this is the quantised weight
    """
    check_activation("int8_linear", activation)
    for name, a in (("x", x), ("scale", scale), ("bias", bias)):
        if a is not None:
            check_kind("int8_linear", name, spec_of(a), "floating")
    if weight.dtype != int8:
        raise DtypeError(f"int8_linear: weight is {spec_of(weight)}; its dtype must be int8")
    if not x.shape or len(weight.shape) != 2 or x.shape[-1] != weight.shape[1] or scale.shape != weight.shape[:1]:
        given = f"x is {spec_of(x)}, weight is {spec_of(weight)}, scale is {spec_of(scale)}"
        raise ShapeError(f"int8_linear: {given}; they must be [..., k], [n, k] and [n]")
    _check_bias("int8_linear", weight, bias)
    rows = reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    product = matrix_product(rows, matrix_transpose(astype(weight, dtype=rows.dtype)))
    y = multiply(product, scale)
    y = ACTIVATIONS[activation](y if bias is None else add(y, bias))
    return reshape(like(y, product), shape=(*x.shape[:-1], weight.shape[0]))


@composed(indices="indices", widen=False)
def embedding(weight, indices):
    """The rows of weight at indices.

    Shapes:  weight (v, c), indices any -> (*indices.shape, c)
    Dtypes:  weight floating, indices integer -> weight's
    Errors:  ShapeError unless weight has two axes; IndexError, at the next read, for an index out of range
    Grads:   weight
    """
    if len(weight.shape) != 2:
        raise ShapeError(f"embedding: weight is {spec_of(weight)}; it must have two axes")
    return take(weight, indices, axis=0)


@composed(numbers="key counter", widen=False)
def dropout(x, key, counter, *, rate):
    """x with each element set to 0 with probability rate, and the others divided by 1 - rate.

    Element i is kept if the upper 24 of the 32 random bits i of (key, counter) are at least rate * 2^24.

    Shapes:  any -> the same
    Dtypes:  floating -> the same
    Errors:  ValueError unless 0 <= rate <= 1
    Grads:   x
    Source:  Srivastava et al. 2014, JMLR 15
    """
    check_kind("dropout", "x", spec_of(x), "floating")
    rate = within("dropout", "rate", rate, 0, 1)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    return where(_kept(x, key, counter, x.shape, rate), multiply(x, scale), 0)


dropout.vjp(
    x=lambda g, key, counter, rate: dropout(g, key, counter, rate=rate),  # under the same mask
    key=None,
    counter=None,
)


def _kept(like, key, counter, shape, rate: float):
    bits = random_bits(key, counter, like, shape=shape)
    return greater_equal(bitwise_right_shift(bits, 8), round(rate * 2**24))


@composed(indices="targets")
def cross_entropy(logits, targets, *, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    """The negative log-probability of the target class under softmax(logits).

    With label smoothing s: (1 - s) times that, plus s times the mean over all classes. Targets equal to ignore_index
    count nothing; the mean is over the others (nan if there are none).

    Shapes:  logits (..., v), targets (...) -> (), or (...) with reduction "none"
    Dtypes:  logits floating, targets integer -> logits', but float32 for float16 and bfloat16
    Errors:  ShapeError if targets is not logits' leading shape, or without classes; ValueError for another
             reduction, or a label_smoothing that is not from 0 to 1; IndexError, at the next read, for a target that
             is no class
    Grads:   logits
    """
    check_kind("cross_entropy", "logits", spec_of(logits), "floating")
    check_kind("cross_entropy", "targets", spec_of(targets), "integer")
    if not logits.shape or not logits.shape[-1]:
        raise ShapeError(f"cross_entropy: logits is {spec_of(logits)}; it must have at least one class")
    if targets.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy: targets is {spec_of(targets)}, logits is {spec_of(logits)}; "
            f"targets must be {list(logits.shape[:-1])}"
        )
    label_smoothing = within("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
    check_reduction("cross_entropy", reduction)
    logits, counted, classes = _wide(logits), not_equal(targets, ignore_index), logits.shape[-1]
    # Whatever an ignored row holds, a nan say, neither its loss nor its gradient comes from it.
    logp = log_softmax(where(expand_dims(counted, axis=-1), logits, 0), axis=-1)
    target = where(less(targets, 0), classes, targets)  # a class is never counted from the end
    at = expand_dims(where(counted, target, 0), axis=-1)
    loss = multiply(squeeze(take_along_axis(logp, at, axis=-1), axis=-1), label_smoothing - 1)
    if label_smoothing:
        loss = subtract(loss, multiply(mean(logp, axis=-1), label_smoothing))
    return reduced(where(counted, loss, 0), targets, ignore_index, reduction)[0]


def check_reduction(op: str, reduction) -> None:
    """Raise ValueError for what is no reduction of losses."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")


def reduced(losses, targets, ignore_index, reduction):
    """The losses as reduction says, and what their sum was divided by, if it was."""
    if reduction != "mean":
        return sum(losses) if reduction == "sum" else losses, None
    count = sum(astype(not_equal(targets, ignore_index), dtype=losses.dtype))
    return divide(sum(losses), count), count


@composed(promote="x y")
def mse(x, y):
    """The mean square difference.

    Shapes:  x and y broadcast -> ()
    Dtypes:  floating, promoted; float16 and bfloat16 -> float32
    Errors:  ShapeError if they do not broadcast
    Grads:   x, y
    """
    return mean(square(_wide(subtract(x, y))))


def _wide(x):
    """x, narrow floats as float32: a loss is not for storing, and of few digits it says little."""
    return astype(x, dtype=float32) if x.dtype in NARROW else x


def _canonical_attention(q, k, v, mask, key, counter, *, causal, scale, dropout_rate, precision):
    _check_attention(q, k, v, mask)
    scale = 1 / math.sqrt(q.shape[-1] or 1) if scale is None else float(number("attention", "scale", scale))
    return {"scale": scale, "causal": bool(causal)}


def _check_attention(q: Spec_, k: Spec_, v: Spec_, mask: Spec_ | None) -> None:
    for name, a in (("q", q), ("k", k), ("v", v)):
        check_kind("attention", name, a, "floating")
        if a.ndim < 2:
            raise ShapeError(f"attention: {name} is {a}; it must have at least two axes")
    listed = f"attention: q is {q}, k is {k}, v is {v}"
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"{listed}; q and k must agree on the last axis, k and v on the one before")
    try:
        lead = broadcast("attention", *(Spec_(a.shape[:-2], bool_) for a in (q, k, v)))
    except ShapeError:
        raise ShapeError(f"{listed}; the axes before the last two must broadcast") from None
    if mask is not None:
        scores = Spec_((*lead, q.shape[-2], k.shape[-2]), bool_)
        fits = broadcast("attention", scores, Spec_(mask.shape, bool_)) == scores.shape
        if mask.is_number or mask.dtype not in (bool_, *FLOATS) or not fits:
            raise ShapeError(
                f"attention: mask is {mask}; it must be bool or floating and broadcast to {list(scores.shape)}"
            )


@composed(promote="q k v", numbers="key counter", canonical=_canonical_attention)
def attention(q, k, v, mask=None, key=0, counter=0, *, causal=False, scale=None, dropout_rate=0.0, precision=None):
    """Scaled dot-product attention: softmax(q k^T * scale) v, over the positions that may be seen.

    mask: True where a query may see a key, or numbers that are added to the scores. causal: query i sees keys up to
    i + (s - t), so that the last query sees all. A query that may see nothing gives zeros. With dropout_rate, the
    weights go through dropout with (key, counter). scale defaults to 1 / sqrt(d); precision is matmul's.

    Shapes:  q (..., t, d), k (..., s, d), v (..., s, e), mask broadcastable to (..., t, s) -> (..., t, e)
    Dtypes:  floating, promoted
    Errors:  ShapeError if the shapes do not fit
    Grads:   q, k, v, mask (if floating)
    Source:  Vaswani et al. 2017, arXiv:1706.03762
    """
    scores = multiply(matrix_product(q, matrix_transpose(k), precision=precision), scale)
    if mask is not None and mask.dtype != bool_:
        scores = add(scores, astype(mask, dtype=scores.dtype))
    if mask is not None and mask.dtype == bool_:
        scores = where(mask, scores, -math.inf)
    if causal:
        t, s = scores.shape[-2:]
        seen = tril(full(True, scores, shape=(t, s), dtype=bool_), k=s - t)
        scores = where(seen, scores, -math.inf)
    weights = _masked_softmax(scores)
    if dropout_rate:
        weights = dropout(weights, key, counter, rate=dropout_rate)
    return matrix_product(weights, v, precision=precision)


def _masked_softmax(scores):
    """Softmax over the last axis, and zeros where every score is -inf."""
    if scores.shape[-1] == 0:
        return scores
    top = max(scores, axis=-1, keepdims=True)
    e = exp(subtract(scores, where(isfinite(top), top, 0)))
    total = sum(e, axis=-1, keepdims=True)
    return divide(e, where(equal(total, 0), 1, total))
