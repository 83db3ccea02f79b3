"""Ops of neural networks. Each decomposition is value and gradient; a backend may bring a fused kernel with its VJP."""

import math

from polyarr.core.array import spec_of, untracked
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import FLOATS, NARROW, broadcast, check_kind, float32
from polyarr.core.spec import Spec as Spec_
from polyarr.core.spec import bool as bool_
from polyarr.ops.create import fill
from polyarr.ops.elementwise import add, astype, clip, divide, like, multiply, square, subtract, where
from polyarr.ops.functions import erf, exp, log, relu, rsqrt, silu, tanh
from polyarr.ops.index import take, take_along_axis
from polyarr.ops.linalg import matrix_product
from polyarr.ops.logic import bitwise_right_shift, greater_equal, less, not_equal
from polyarr.ops.random import check_random, random_bits
from polyarr.ops.reduce import axis_of, masked_softmax, max, mean, sum
from polyarr.ops.shape import expand_dims, matrix_transpose, reshape, squeeze, tril
from polyarr.ops.validation import number, within


def _canonical_axis(x, *, axis):
    return {"axis": axis_of("softmax", x, axis)}


def _centred(x, axis):
    """Return x less its largest element, through which no gradient passes: a softmax is the same for any shift."""
    return subtract(x, max(untracked(x), axis=axis, keepdims=True))


@composed(canonical=_canonical_axis, floats="x")
def softmax(x, *, axis=-1):
    """Return exp(x) divided by its sum over an axis.

    Args:
        x: Floating-point array of any shape; integers and bools are cast to float32.
        axis: Axis along which the results add up to 1.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        DtypeError: x is complex.
        ShapeError: x lacks the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.softmax(pa.asarray([0.0, 0.0, 1.0]))
        Array([0.21194156, 0.21194156, 0.5761169 ], float32, 'numpy')

    Gradients: x
    """
    check_kind("softmax", "x", spec_of(x), "floating")
    if 0 in x.shape:
        return x
    e = exp(_centred(x, axis))
    return multiply(e, divide(1, sum(e, axis=axis, keepdims=True)))


@composed(canonical=_canonical_axis, floats="x")
def log_softmax(x, *, axis=-1):
    """Return the logarithm of softmax, without overflow.

    Args:
        x: Floating-point array of any shape; integers and bools are cast to float32.
        axis: Axis along which the exponentials of the results add up to 1.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        DtypeError: x is complex.
        ShapeError: x lacks the axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.log_softmax(pa.asarray([0.0, 0.0, 1.0]))
        Array([-1.5514446 , -1.5514446 , -0.55144465], float32, 'numpy')

    Gradients: x
    """
    check_kind("log_softmax", "x", spec_of(x), "floating")
    if 0 in x.shape:
        return x
    centred = _centred(x, axis)
    return subtract(centred, log(sum(exp(centred), axis=axis, keepdims=True)))


def check_norm(op: str, x, eps, **named) -> None:
    """Raise unless eps is a number, x has an axis, and every named array is None or has the shape of the last axis."""
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
    """Normalize the last axis to mean 0 and variance 1, then scale and shift it.

    y = (x - mean) / sqrt(variance + eps) * weight + bias; the variance divides by n.

    Args:
        x: Floating-point array (..., n).
        weight: Floating-point array (n,), or None for 1. Its dtype may differ from x.
        bias: Floating-point array (n,), or None for 0. Its dtype may differ from x.
        eps: Number added to the variance.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: weight or bias is not (n,), or x has no axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.layer_norm(pa.asarray([[1.0, 2.0, 3.0]]))
        Array([[-1.2247356,  0.       ,  1.2247356]], float32, 'numpy')

    Gradients: x, weight, bias

    Source: Ba, Kiros, Hinton 2016, arXiv:1607.06450
    """
    check_norm("layer_norm", x, eps, weight=weight, bias=bias)
    centred = subtract(x, mean(x, axis=-1, keepdims=True))
    variance = mean(square(centred), axis=-1, keepdims=True)
    y = multiply(centred, rsqrt(add(variance, eps)))
    y = y if weight is None else multiply(y, weight)
    return like(y if bias is None else add(y, bias), x)


@composed
def rms_norm(x, weight=None, *, eps=1e-6):
    """Divide the last axis by its root mean square, then scale it.

    y = x / sqrt(mean(x^2) + eps) * weight.

    Args:
        x: Floating-point array (..., n).
        weight: Floating-point array (n,), or None for 1. Its dtype may differ from x.
        eps: Number added to the mean square.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ShapeError: weight is not (n,), or x has no axis.

    Examples:
        >>> import polyarr as pa
        >>> pa.rms_norm(pa.asarray([[3.0, 4.0]]))
        Array([[0.8485281, 1.1313708]], float32, 'numpy')

    Gradients: x, weight

    Source: Zhang, Sennrich 2019, arXiv:1910.07467
    """
    check_norm("rms_norm", x, eps, weight=weight)
    y = multiply(x, rsqrt(add(mean(square(x), axis=-1, keepdims=True), eps)))
    return y if weight is None else like(multiply(y, weight), x)


@composed(floats="x")
def gelu(x, *, approximate="none"):
    """Return x times the distribution function of the standard normal distribution at x.

    Args:
        x: Floating-point array of any shape; integers and bools are cast to float32.
        approximate: "none" for the exact function by erf, "tanh" for the approximation by tanh.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        DtypeError: x is complex.
        ValueError: approximate is neither "none" nor "tanh".

    Examples:
        >>> import polyarr as pa
        >>> pa.gelu(pa.asarray([-1.0, 0.0, 1.0]))
        Array([-0.15865526,  0.        ,  0.8413447 ], float32, 'numpy')

    Gradients: x

    Source: Hendrycks, Gimpel 2016, arXiv:1606.08415
    """
    check_kind("gelu", "x", spec_of(x), "floating")
    if approximate == "tanh":
        bounded = clip(x, -10, 10)  # tanh is 1 there; a huge x would have the gradient inf * 0
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
    """Raise ValueError unless activation is one of ACTIVATIONS."""
    if activation not in ACTIVATIONS:
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{op}: activation is {activation!r}; it must be one of {names}; call others on the result")


def check_bias(op, weight, bias):
    """Raise ShapeError unless bias is None or has an element for each row of a weight."""
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"{op}: bias is {spec_of(bias)}, weight is {spec_of(weight)}; bias must be {list(weight.shape[:1])}"
        )


@composed(promote="x weight")
def linear(x, weight, bias=None, *, activation=None, precision=None):
    """Return x times the transpose of weight, plus bias, through an activation.

    Args:
        x: Floating-point array (..., k).
        weight: Floating-point array (n, k), promoted with x.
        bias: Floating-point array (n,), or None. Its dtype may differ.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".
        precision: Of the product, as in matmul.

    Returns:
        Array (..., n) of the promoted dtype of x and weight.

    Raises:
        ShapeError: x.shape[-1] differs from weight.shape[1], or bias is not (n,).
        ValueError: There is no such activation.

    Examples:
        >>> import polyarr as pa
        >>> weight = pa.asarray([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        >>> pa.linear(pa.asarray([[1.0, -1.0]]), weight, activation="relu")
        Array([[1., 0., 0.]], float32, 'numpy')

    Gradients: x, weight, bias
    """
    check_activation("linear", activation)
    for name, a in (("x", x), ("weight", weight), ("bias", bias)):
        if a is not None:
            check_kind("linear", name, spec_of(a), "floating")
    if not x.shape or len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: x is {spec_of(x)}, weight is {spec_of(weight)}; x.shape[-1] must equal weight.shape[1]"
        )
    check_bias("linear", weight, bias)
    rows = reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    product = matrix_product(rows, matrix_transpose(weight), precision=precision)
    y = ACTIVATIONS[activation](product if bias is None else add(product, bias))
    return reshape(like(y, product), shape=(*x.shape[:-1], weight.shape[0]))


@composed(indices="indices", widen=False)
def embedding(weight, indices):
    """Return the rows of weight at indices.

    Args:
        weight: Floating-point array (v, c).
        indices: Integer array of any shape.

    Returns:
        Array (*indices.shape, c) of the dtype of weight.

    Raises:
        ShapeError: weight does not have two axes.
        IndexError: An index is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> weight = pa.asarray([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])
        >>> pa.embedding(weight, pa.asarray([2, 0]))
        Array([[2. , 2.5],
               [0. , 0.5]], float32, 'numpy')

    Gradients: weight
    """
    if len(weight.shape) != 2:
        raise ShapeError(f"embedding: weight is {spec_of(weight)}; it must have two axes")
    check_kind("embedding", "indices", spec_of(indices), "integer")
    return take(weight, indices, axis=0)


@composed(numbers="key counter", widen=False)
def dropout(x, key, counter, *, rate):
    """Return x with each element set to 0 with probability rate, and the others divided by 1 - rate.

    Element i is kept if the upper 24 of the 32 random bits i of (key, counter) are at least rate * 2^24.
    polyarr.nn.Dropout draws key and counter.

    Args:
        x: Floating-point array of any shape.
        key: Int, the key of random_bits.
        counter: Int, the counter of random_bits.
        rate: Probability from 0 to 1.

    Returns:
        Array of the shape and dtype of x.

    Raises:
        ValueError: rate is not from 0 to 1.

    Examples:
        >>> import polyarr as pa
        >>> pa.dropout(pa.ones(6), 7, 0, rate=0.5)
        Array([2., 2., 0., 0., 0., 2.], float32, 'numpy')

    Gradients: x

    Source: Srivastava et al. 2014, JMLR 15
    """
    check_kind("dropout", "x", spec_of(x), "floating")
    rate = within("dropout", "rate", rate, 0, 1)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    return where(_kept(x, key, counter, x.shape, rate), multiply(x, scale), 0)


dropout.vjp(
    x=lambda g, key, counter, rate: dropout(g, key, counter, rate=rate),  # with the same random bits
    key=None,
    counter=None,
)


def _kept(like, key, counter, shape, rate: float):
    bits = random_bits(key, counter, like, shape=shape)
    return greater_equal(bitwise_right_shift(bits, 8), round(rate * 2**24))


@composed(indices="targets")
def cross_entropy(logits, targets, *, ignore_index=-100, label_smoothing=0.0, reduction="mean"):
    """Return the negative log-probability of the target classes under softmax(logits).

    Args:
        logits: Floating-point array (..., v): a score for each of v classes.
        targets: Integer array (...): the classes, from 0 to v - 1.
        ignore_index: Target whose rows have loss 0 and do not count in the mean.
        label_smoothing: Weight s from 0 to 1: the loss is (1 - s) times the loss of the target plus s times the mean
            over all classes.
        reduction: "mean", "sum", or "none" for a loss per row.

    Returns:
        Array (), or (...) with reduction "none", of the dtype of logits, but float32 for float16 and bfloat16. The mean
        of no rows is nan.

    Raises:
        ShapeError: targets is not shaped like logits without its last axis, or there are no classes.
        ValueError: There is no such reduction, or label_smoothing is not from 0 to 1.
        IndexError: A target is out of range; raised at the next read of a result.

    Examples:
        >>> import polyarr as pa
        >>> logits = pa.asarray([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
        >>> pa.cross_entropy(logits, pa.asarray([0, 1]))
        Array(0.16723382, float32, 'numpy')

    Gradients: logits
    """
    check_kind("cross_entropy", "logits", spec_of(logits), "floating")
    if spec_of(targets).shape == logits.shape and spec_of(targets).dtype in FLOATS:
        instead = "of probabilities write -pa.mean(pa.sum(targets * pa.log_softmax(logits, axis=-1), axis=-1))"
        raise DtypeError(f"cross_entropy: targets is {spec_of(targets)}; its dtype must be integer; {instead}")
    check_kind("cross_entropy", "targets", spec_of(targets), "integer")
    if not logits.shape or not logits.shape[-1]:
        raise ShapeError(f"cross_entropy: logits is {spec_of(logits)}; it must have at least one class")
    if targets.shape != logits.shape[:-1]:
        is_moved = len(targets.shape) > 1 and targets.shape == (logits.shape[0], *logits.shape[2:])
        instead = "; of classes on axis 1 write polyarr.moveaxis(logits, 1, -1)" * is_moved
        given = f"cross_entropy: targets is {spec_of(targets)}, logits is {spec_of(logits)}"
        raise ShapeError(f"{given}; targets must be {list(logits.shape[:-1])}{instead}")
    label_smoothing = within("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
    check_reduction("cross_entropy", reduction)
    logits, counted, classes = _wide(logits), not_equal(targets, ignore_index), logits.shape[-1]
    # Replace ignored rows, so that a nan in them reaches neither loss nor gradient.
    logp = log_softmax(where(expand_dims(counted, axis=-1), logits, 0), axis=-1)
    target = where(less(targets, 0), classes, targets)  # negative targets are out of range, not counted from the end
    at = expand_dims(where(counted, target, 0), axis=-1)
    loss = multiply(squeeze(take_along_axis(logp, at, axis=-1), axis=-1), label_smoothing - 1)
    if label_smoothing:
        loss = subtract(loss, multiply(mean(logp, axis=-1), label_smoothing))
    return reduced(where(counted, loss, 0), targets, ignore_index, reduction)[0]


def check_reduction(op: str, reduction) -> None:
    """Raise ValueError unless reduction is "mean", "sum" or "none"."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")


def reduced(losses, targets, ignore_index, reduction):
    """Return the reduced losses and the number that their sum was divided by, or None."""
    if reduction != "mean":
        return sum(losses) if reduction == "sum" else losses, None
    count = sum(astype(not_equal(targets, ignore_index), dtype=losses.dtype))
    return divide(sum(losses), count), count


@composed(promote="x y")
def mse(x, y):
    """Return the mean squared difference of x and y.

    Args:
        x: Floating-point array.
        y: Floating-point array of the shape of x, promoted with x. Either may be a number or an array without axes.

    Returns:
        Array () of the promoted dtype, but float32 for float16 and bfloat16.

    Raises:
        ShapeError: x and y have different shapes: (n, 1) and (n,) would broadcast to (n, n).

    Examples:
        >>> import polyarr as pa
        >>> pa.mse(pa.asarray([1.0, 2.0]), pa.asarray([1.0, 4.0]))
        Array(2., float32, 'numpy')

    Gradients: x, y
    """
    given = spec_of(x), spec_of(y)
    if given[0].shape != given[1].shape and all(spec.shape for spec in given):
        raise ShapeError(f"mse: x is {given[0]}, y is {given[1]}; both must have the same shape, or one no axes")
    return mean(square(_wide(subtract(x, y))))


def _wide(x):
    """Return x with 16-bit floats as float32: a loss of few digits says little."""
    return astype(x, dtype=float32) if x.dtype in NARROW else x


def _canonical_attention(q, k, v, mask, key, counter, *, causal, scale, dropout_rate, precision):
    _check_attention(q, k, v, mask)
    check_random("attention", key, counter)
    scale = 1 / math.sqrt(q.shape[-1] or 1) if scale is None else float(number("attention", "scale", scale))
    return {"scale": scale}


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
        raise ShapeError(f"{listed}; the axes before the last two must broadcast{_repeated(q, k)}") from None
    if mask is not None:
        scores = Spec_((*lead, q.shape[-2], k.shape[-2]), bool_)
        lengths = list(zip(reversed(mask.shape), reversed(scores.shape), strict=False))
        fits = len(lengths) == mask.ndim and all(n in (1, m) for n, m in lengths)
        if mask.is_number or mask.dtype not in (bool_, *FLOATS) or not fits:
            of_keys = len(lead) == 2 and mask.shape == (lead[0], k.shape[-2])
            raise ShapeError(
                f"attention: mask is {mask}; it must be bool or floating and broadcast to {list(scores.shape)}"
                + "; of a mask of keys (batch, keys) write mask[:, None, None, :]" * of_keys
            )


def _repeated(q: Spec_, k: Spec_) -> str:
    """Return the end of an error message on how to attend with fewer heads of keys than of queries, or ""."""
    heads, kv = (a.shape[-3] if a.ndim > 2 else 1 for a in (q, k))
    if kv < 2 or heads <= kv or heads % kv:
        return ""
    return f"; for {kv} heads of keys, give pa.repeat(k, {heads // kv}, axis=-3), and v likewise"


@composed(promote="q k v", numbers="key counter", canonical=_canonical_attention)
def attention(q, k, v, mask=None, key=0, counter=0, *, causal=False, scale=None, dropout_rate=0.0, precision=None):
    """Return scaled dot-product attention: softmax(q k^T * scale + mask) v.

    A query that may attend to no key gives zeros. Masked keys and values must be finite, too: their weight is 0, and 0
    times nan or infinity may be nan.

    Args:
        q: Floating-point array (..., t, d): queries.
        k: Floating-point array (..., s, d): keys.
        v: Floating-point array (..., s, e): values. The leading axes of q, k and v broadcast;
            `repeat` fewer heads of keys and values along their axis, or use n_kv_heads of nn.MultiHeadAttention.
        mask: Array that broadcasts to (..., t, s): bool, true where a query may attend to a key, or floating-point
            numbers that are added to the scores; None for no mask. Of a padding mask (batch, s), true for what is no
            padding, give mask[:, None, None, :].
        key: Int, the key of the random bits of dropout.
        counter: Int, the counter of the random bits of dropout.
        causal: Whether query i attends only to keys up to i + (s - t), so that the last query attends to all.
        scale: Factor of the scores; None for 1 / sqrt(d).
        dropout_rate: Probability with which an attention weight is set to 0.
        precision: Of the two products, as in matmul.

    Returns:
        Array (..., t, e) of the promoted dtype.

    Raises:
        ShapeError: The shapes do not fit, or mask is neither bool nor floating-point.

    Examples:
        >>> import polyarr as pa
        >>> q, v = pa.zeros((2, 4)), pa.asarray([[1.0], [3.0]])
        >>> pa.attention(q, q, v, causal=True)
        Array([[1.],
               [2.]], float32, 'numpy')

    Gradients: q, k, v, mask (if floating-point)

    Source: Vaswani et al. 2017, arXiv:1706.03762
    """
    scores = multiply(matrix_product(q, matrix_transpose(k), precision=precision), scale)
    if mask is not None and mask.dtype != bool_:
        scores = add(scores, astype(mask, dtype=scores.dtype))
    if mask is not None and mask.dtype == bool_:
        scores = where(mask, scores, -math.inf)
    if causal:
        t, s = scores.shape[-2:]
        seen = tril(fill(True, scores, shape=(t, s), dtype=bool_), k=s - t)
        scores = where(seen, scores, -math.inf)
    weights = masked_softmax(scores, -1) if scores.shape[-1] else scores
    if dropout_rate:
        weights = dropout(weights, key, counter, rate=dropout_rate)
    return matrix_product(weights, v, precision=precision)
