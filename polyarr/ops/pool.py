"""Pooling and resizing of sequences, images and volumes. Channels are the last axis."""
# pyright takes a parameter for an int by its default of 1, where the rule has made a tuple of it.
# pyright: reportArgumentType=false

import math
from fractions import Fraction

from polyarr.core.array import spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import Spec, check_kind, int64, shown
from polyarr.ops.convolution import windows
from polyarr.ops.create import fill, iota
from polyarr.ops.elementwise import add, astype, divide, floor_divide, maximum, minimum, multiply, subtract, where
from polyarr.ops.index import take
from polyarr.ops.joining import repeat
from polyarr.ops.logic import equal, less
from polyarr.ops.reduce import argmax, mean, sum
from polyarr.ops.reduce import max as largest
from polyarr.ops.shape import expand_dims, reshape, slice
from polyarr.ops.spatial import CONV, geometry, images, padded, per_axis, spans
from polyarr.ops.validation import number

MODES = {
    "nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "cubic": "cubic",
    "bicubic": "cubic",
}  # fmt: skip
_SLOPE = -0.75  # of the cubic's weights at distance 1, as in PyTorch and OpenCV
_FINEST = 10**6  # largest denominator of the fraction that a scale is taken for: 17/10 for 1.7

# ---- pools -----------------------------------------------------------------------------------------------------------


def _pool_rule(op: str, x, kernel, stride, padding, dilation, ceil_mode):
    check_kind(op, "x", x, "floating")
    lengths = images(op, "x", x)
    kernel = per_axis(op, "kernel", kernel, len(lengths))
    where_ = geometry(op, x, lengths, kernel, kernel if stride is None else stride, padding, dilation, ceil=ceil_mode)
    reach = spans(kernel, where_.dilation)
    if 0 in lengths or any(max(p) >= r for p, r in zip(where_.padding, reach, strict=True)):
        given = f"x is {x}, a window reaches over {list(reach)}, padding is {shown(padding)}"
        raise ShapeError(f"{op}: {given}; x must have elements along each axis, and every window some of them")
    found = {**where_.params, "kernel": kernel, "ceil_mode": bool(ceil_mode)}
    return Spec((x.shape[0], *where_.out, x.shape[-1]), x.dtype), found


def _extended_padding(x, kernel, *, stride, padding, dilation=None, ceil_mode):
    """Return padding, extended by what windows of ceil_mode reach beyond it."""
    if not ceil_mode:
        return padding
    lengths = x.shape[1:-1]
    where_ = geometry("pool", spec_of(x), lengths, kernel, stride, padding, dilation or 1, ceil=True)
    each = zip(where_.out, stride, spans(kernel, where_.dilation), lengths, padding, strict=True)
    return tuple((before, max(after, (m - 1) * s + r - n - before)) for m, s, r, n, (before, after) in each)


def _max_rule(x, *, kernel, stride, padding, dilation, ceil_mode):
    return _pool_rule("max_pool", x, kernel, stride, padding, dilation, ceil_mode)


@composed(infer=_max_rule, group=CONV)
def max_pool(x, *, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    """Return the largest element of every window; nan if there is a nan. The padding does not count.

    The function polyarr.max_pool calls this op, and takes other layouts and leading axes.

    Args:
        x: Floating-point array (b, *lengths, c), with 1 to 3 spatial axes.
        kernel: Lengths of a window, an int or one per spatial axis.
        stride: Distance of two windows, an int or one per spatial axis; None for kernel.
        padding: As in conv; less than the length of a window.
        dilation: Distance of two elements of a window, an int or one per spatial axis.
        ceil_mode: Whether elements left over at the end get a window of their own.

    Returns:
        Array (b, *number of windows, c) of the dtype of x.

    Raises:
        ShapeError: A window is longer than x with its padding, or not longer than the padding.

    Gradients: x; the first of equal largest elements has the gradient
    """
    more = _extended_padding(x, kernel, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode)
    found = windows(padded(x, more, -math.inf), kernel=kernel, stride=stride, dilation=dilation)
    b, *out, c = found.shape[: 1 + len(kernel)] + found.shape[-1:]
    each = reshape(found, shape=(b, *out, math.prod(kernel), c))
    first = argmax(each, axis=-2, keepdims=True)
    if any(map(any, more)):  # if all elements are -inf, choose the first of x, not of the padding
        ones = padded(fill(1, x, shape=(1, *x.shape[1:-1], 1), dtype=x.dtype), more)
        inside = windows(ones, kernel=kernel, stride=stride, dilation=dilation)
        real = argmax(reshape(inside, shape=(1, *out, math.prod(kernel), 1)), axis=-2, keepdims=True)
        first = where(equal(largest(each, axis=-2, keepdims=True), -math.inf), real, first)
    places = reshape(iota(0, 1, x, size=math.prod(kernel), dtype=int64), shape=(-1, 1))
    # A mask instead of a gather: its gradient needs no scatter.
    return sum(where(equal(places, first), each, 0), axis=-2)


def _mean_rule(x, *, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    out, found = _pool_rule("mean_pool", x, kernel, stride, padding, 1, ceil_mode)
    found.pop("dilation")
    divisor = None if divisor is None else number("mean_pool", "divisor", divisor)
    if divisor == 0:
        raise ValueError("mean_pool: divisor is 0; it must be another number, or None")
    return out, {**found, "count_include_pad": bool(count_include_pad), "divisor": divisor}


@composed(infer=_mean_rule, group=CONV)
def mean_pool(x, *, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor=None):
    """Return the mean of every window, or its sum divided by divisor.

    The function polyarr.mean_pool calls this op, and takes other layouts and leading axes.

    Args:
        x: Floating-point array (b, *lengths, c), with 1 to 3 spatial axes.
        kernel: Lengths of a window, an int or one per spatial axis.
        stride: Distance of two windows, an int or one per spatial axis; None for kernel.
        padding: As in conv; less than the length of a window.
        ceil_mode: Whether elements left over at the end get a window of their own.
        count_include_pad: Whether the padding counts as zeros; what ceil_mode reaches beyond the padding does not
            count.
        divisor: Number to divide the sums by; None for the number of elements that count.

    Returns:
        Array (b, *number of windows, c) of the dtype of x.

    Raises:
        ShapeError: A window is longer than x with its padding, or not longer than the padding.
        ValueError: divisor is 0.

    Gradients: x
    """
    more = _extended_padding(x, kernel, stride=stride, padding=padding, ceil_mode=ceil_mode)
    axes = tuple(range(1 + len(kernel), 1 + 2 * len(kernel)))
    total = sum(windows(padded(x, more), kernel=kernel, stride=stride), axis=axes)
    counted = padding if count_include_pad else ((0, 0),) * len(kernel)
    if divisor is not None or more == counted:
        return divide(total, math.prod(kernel) if divisor is None else divisor)
    lengths = tuple(n + before + after for n, (before, after) in zip(x.shape[1:-1], counted, strict=True))
    ones = fill(1, x, shape=(1, *lengths, 1), dtype=x.dtype)
    rest = tuple((a - c, b - d) for (a, b), (c, d) in zip(more, counted, strict=True))
    return divide(total, sum(windows(padded(ones, rest), kernel=kernel, stride=stride), axis=axes))


def _adaptive_rule(x, *, shape):
    op = "adaptive_mean_pool"
    check_kind(op, "x", x, "floating")
    lengths = images(op, "x", x)
    shape = per_axis(op, "shape", shape, len(lengths), left=lengths)
    if 0 in lengths:
        raise ShapeError(f"{op}: x is {x}; it must have elements along each axis")
    return Spec((x.shape[0], *shape, x.shape[-1]), x.dtype), {"shape": shape}


@composed(infer=_adaptive_rule, group=CONV)
def adaptive_mean_pool(x, *, shape):
    """Return the means of a given number of windows, of lengths as equal as possible.

    Window i of m over n elements reaches from floor(i n / m) to ceil((i + 1) n / m). The function
    polyarr.adaptive_mean_pool calls this op, and takes other layouts and leading axes.

    Args:
        x: Floating-point array (b, *lengths, c), with 1 to 3 spatial axes.
        shape: Numbers of windows, an int or one per spatial axis; None keeps an axis as it is.

    Returns:
        Array (b, *shape, c) of the dtype of x.

    Raises:
        ShapeError: A length is below 1.

    Gradients: x
    """
    for axis, m in enumerate(shape, 1):
        if m != x.shape[axis]:
            x = _means(x, axis, m)
    return x


def _means(x, axis: int, m: int):
    n = x.shape[axis]
    if n % m == 0:
        return mean(reshape(x, shape=(*x.shape[:axis], m, n // m, *x.shape[axis + 1 :])), axis=axis + 1)
    longest = n // m + (1 if math.gcd(n, m) == n % m else 2)  # some windows start and end within an element of x
    first = multiply(iota(0, 1, x, size=m, dtype=int64), n)
    start, end = floor_divide(first, m), floor_divide(add(first, n + m - 1), m)
    place = add(expand_dims(start, axis=-1), iota(0, 1, x, size=longest, dtype=int64))
    inside = _along(less(place, expand_dims(end, axis=-1)), x, axis)
    parts = take(x, minimum(place, n - 1), axis=axis)
    total = sum(where(inside, parts, 0), axis=axis + 1)
    return divide(total, _along(astype(subtract(end, start), dtype=x.dtype), x, axis))


def _along(a, x, axis: int):
    """Return a, which has the axes of x up to `axis` and maybe more, with axes of length 1 for the other axes of x."""
    return reshape(a, shape=(*a.shape, *(1,) * (len(x.shape) - axis - 1)))


def _resize_rule(x, *, shape, scale, mode, align_corners):
    op = "interpolate"
    check_kind(op, "x", x, "floating")
    lengths = images(op, "x", x)
    if mode not in MODES:
        raise ValueError(f"{op}: mode is {shown(mode)}; it must be one of {', '.join(map(repr, MODES))}")
    if (shape is None) == (scale is None):
        raise ValueError(f"{op}: shape is {shown(shape)}, scale is {shown(scale)}; one of them must be given")
    if align_corners and MODES[mode] == "nearest":
        raise ValueError(f"{op}: mode is 'nearest' and align_corners is True; it must be False, or the mode another")
    if scale is not None:
        given, axes = shown(scale), len(lengths)
        scale = tuple(number(op, "scale", s) for s in (scale if isinstance(scale, (tuple, list)) else (scale,) * axes))
        if len(scale) != axes or any(not 0 < s < math.inf for s in scale):
            raise ValueError(f"{op}: scale is {given}; it must be a number above 0, or {axes} of them")
        shape = tuple(math.floor(n * s) for n, s in zip(lengths, scale, strict=True))
        if 0 in shape and 0 not in lengths:
            raise ShapeError(f"{op}: x is {x}, scale is {given}; it must leave elements along each axis")
    shape = per_axis(op, "shape", shape, len(lengths))
    if 0 in lengths:
        raise ShapeError(f"{op}: x is {x}; it must have elements along each axis")
    found = {"shape": shape, "scale": scale, "mode": MODES[mode], "align_corners": bool(align_corners)}
    return Spec((x.shape[0], *shape, x.shape[-1]), x.dtype), found


@composed(infer=_resize_rule, group=CONV)
def interpolate(x, *, shape=None, scale=None, mode="nearest", align_corners=False):
    """Return x resized along its spatial axes.

    The function polyarr.interpolate, which says where the points lie, calls this op, and takes other layouts and
    leading axes.

    Args:
        x: Floating-point array (b, *lengths, c), with 1 to 3 spatial axes.
        shape: Lengths m of the result, an int or one per spatial axis; None if scale is given.
        scale: Factors of the lengths, a number or one per spatial axis; None if shape is given.
        mode: "nearest", "linear" or "cubic"; "bilinear", "trilinear" and "bicubic" are other names of the last two.
        align_corners: Whether the first and last points are those of x; not for "nearest".

    Returns:
        Array (b, *shape, c) of the dtype of x.

    Raises:
        ShapeError: A length is below 1.
        ValueError: There is no such mode, or not exactly one of shape and scale is given.

    Gradients: x
    """
    for axis, m in enumerate(shape, 1):
        n = x.shape[axis]
        step = Fraction(n, m) if scale is None else 1 / Fraction(scale[axis - 1]).limit_denominator(_FINEST)
        if mode == "nearest":
            x = _nearest(x, axis, m, step)
        else:
            corners = Fraction(n - 1, max(m - 1, 1)), Fraction(0)
            step, first = corners if align_corners else (step, (step - 1) / 2)
            if step != 1 or first != 0 or m != n:
                x = (_cubic if mode == "cubic" else _between)(x, axis, m, step, first)
    return x


def _points(x, m: int, step: Fraction, first: Fraction):
    """Return the positions first + i * step as numerators and their common denominator `unit`."""
    unit = step.denominator * first.denominator
    start, by = first * unit, step * unit
    return add(multiply(iota(0, 1, x, size=m, dtype=int64), int(by)), int(start)), unit


def _nearest(x, axis: int, m: int, step: Fraction):
    n = x.shape[axis]
    if step == 1 and m == n:
        return x
    if step.numerator == 1 and m == n * step.denominator:
        return repeat(x, repeats=step.denominator, axis=axis)
    if step.denominator == 1 and (m - 1) * int(step) < n:
        steps = tuple(int(step) if i == axis else 1 for i in range(len(x.shape)))
        return slice(x, starts=(0,) * len(x.shape), steps=steps, shape=(*x.shape[:axis], m, *x.shape[axis + 1 :]))
    places, unit = _points(x, m, step, Fraction(0))
    return take(x, minimum(floor_divide(places, unit), n - 1), axis=axis)


def _between(x, axis: int, m: int, step: Fraction, first: Fraction):
    n = x.shape[axis]
    places, unit = _points(x, m, step, first)
    places = maximum(places, 0)
    below = floor_divide(places, unit)
    beyond = subtract(places, multiply(below, unit))
    low, high = (take(x, minimum(add(below, i), n - 1), axis=axis) for i in (0, 1))
    # Compute both weights as quotients: 1 - weight would lose the digits of a small one.
    shares = (_along(divide(astype(part, dtype=x.dtype), unit), x, axis) for part in (subtract(unit, beyond), beyond))
    return add(*map(multiply, (low, high), shares))


def _cubic(x, axis: int, m: int, step: Fraction, first: Fraction):
    """Weigh four elements around each point; beyond its ends, x goes on with the first and the last one."""
    n = x.shape[axis]
    places, unit = _points(x, m, step, first)
    below = floor_divide(places, unit)
    beyond = subtract(places, multiply(below, unit))
    total = None
    for i in (-1, 0, 1, 2):
        far = divide(astype(subtract(i * unit, beyond) if i > 0 else subtract(beyond, i * unit), dtype=x.dtype), unit)
        part = multiply(take(x, maximum(minimum(add(below, i), n - 1), 0), axis=axis), _along(_weight(far, i), x, axis))
        total = part if total is None else add(total, part)
    return total


def _weight(far, i: int):
    """Return the weight of the element i places from the one below the point, for its distance `far` from the point."""
    if i in (0, 1):  # far is at most 1
        return add(multiply(multiply(subtract(multiply(far, _SLOPE + 2), _SLOPE + 3), far), far), 1)
    near = subtract(far, 2)
    return multiply(multiply(multiply(near, near), subtract(far, 1)), _SLOPE)
