"""Convolutions, pooling and resizing as plain loops in float64: the references of the conv ops.

Nothing is shared with the ops: no padding is materialized, and window positions are computed again, element by element.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from polyarr.testing.references import ACTIVATIONS

Index = tuple[int, ...]
Place = tuple[int | slice | np.ndarray, ...]


def each(value: Any, axes: int) -> tuple[Any, ...]:
    """Return one number per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes


def pairs(padding: Any, lengths: Index, kernel: Index, stride: Index, dilation: Index) -> tuple[tuple[int, int], ...]:
    """Return (before, after) per axis, as in PyTorch and, for "same" with a stride, in TensorFlow."""
    if padding == "valid":
        return ((0, 0),) * len(lengths)
    if padding == "same":
        found = []
        for n, k, s, d in zip(lengths, kernel, stride, dilation, strict=True):
            missing = max(0, (math.ceil(n / s) - 1) * s + d * (k - 1) + 1 - n)
            found.append((missing // 2, missing - missing // 2))
        return tuple(found)
    return tuple((p[0], p[1]) if isinstance(p, (tuple, list)) else (p, p) for p in each(padding, len(lengths)))


class Windows:
    """Positions of the sliding windows over x (b, *lengths, c)."""

    def __init__(self, lengths: Index, kernel: Index, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> None:
        axes = len(lengths)
        self.lengths, self.kernel = lengths, kernel
        self.stride, self.dilation = each(stride, axes), each(dilation, axes)
        self.padding = pairs(padding, lengths, kernel, self.stride, self.dilation)
        self.out = tuple(self._count(i) for i in range(axes))

    def _count(self, axis: int) -> int:
        last = self.lengths[axis] + sum(self.padding[axis]) - self.dilation[axis] * (self.kernel[axis] - 1) - 1
        return last // self.stride[axis] + 1

    def positions(self) -> Iterator[tuple[tuple, Index, tuple]]:
        """Yield for each kernel element: the windows in which it is inside x, its index, and its positions on x."""
        for j in itertools.product(*map(range, self.kernel)):
            found = [self._along(axis, element) for axis, element in enumerate(j)]
            yield np.ix_(*(i for i, _ in found)), j, np.ix_(*(at for _, at in found))

    def _along(self, axis: int, element: int) -> tuple[list[int], list[int]]:
        first = element * self.dilation[axis] - self.padding[axis][0]
        positions = [(i, i * self.stride[axis] + first) for i in range(self.out[axis])]
        inside = [(i, at) for i, at in positions if 0 <= at < self.lengths[axis]]
        return [i for i, _ in inside], [at for _, at in inside]


def _all(place: Place) -> tuple:
    return (slice(None), *place)


def windows(x: np.ndarray, *, kernel: Any, **where: Any) -> np.ndarray:
    """Return every sliding window of x."""
    kernel = each(kernel, x.ndim - 2)
    found = Windows(x.shape[1:-1], kernel, **where)
    out = np.zeros((x.shape[0], *found.out, *kernel, x.shape[-1]), x.dtype)
    for i, j, at in found.positions():
        out[_all((*i, *j))] = x[_all(at)]
    return out


def sum_windows(x: np.ndarray, *, shape: Any, **where: Any) -> np.ndarray:
    """Return the windows added at their positions (fold)."""
    axes = (x.ndim - 2) // 2
    shape = each(shape, axes)
    out = np.zeros((x.shape[0], *shape, x.shape[-1]), x.dtype)
    for i, j, at in Windows(shape, x.shape[1 + axes : -1], **where).positions():
        out[_all(at)] += x[_all((*i, *j))]
    return out


def _in_groups(a: np.ndarray, groups: int) -> np.ndarray:
    """Reshape (..., channels) to (groups, rows, channels of a group)."""
    return a.reshape(math.prod(a.shape[:-1]), groups, a.shape[-1] // groups).swapaxes(0, 1)


def _ungrouped(a: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Reshape (groups, rows, channels of a group) to (..., channels), with like's leading axes."""
    return a.swapaxes(0, 1).reshape(*like.shape[:-1], a.shape[0] * a.shape[2])


def _filters(weight: np.ndarray, j: Index, groups: int) -> np.ndarray:
    """Return element j of all filters, as (groups, filters of a group, channels of a group)."""
    found = weight[_all(j)]
    return found.reshape(groups, len(found) // groups, found.shape[1])


def conv_product(x: np.ndarray, weight: np.ndarray, *, groups: int = 1, precision: Any = None, **where: Any) -> Any:
    """Return the convolution of x with every filter."""
    found = Windows(x.shape[1:-1], weight.shape[1:-1], **where)
    out = np.zeros((x.shape[0], *found.out, weight.shape[0]))
    for i, j, at in found.positions():
        part = x[_all(at)]
        out[_all(i)] += _ungrouped(_in_groups(part, groups) @ _filters(weight, j, groups).swapaxes(1, 2), part)
    return out


def conv_input_gradient(
    g: np.ndarray, weight: np.ndarray, *, shape: Any, groups: int = 1, precision: Any = None, **where: Any
) -> np.ndarray:
    """Return the gradient of a convolution with respect to its input: every filter times g, added at its windows."""
    shape = each(shape, g.ndim - 2)
    out = np.zeros((g.shape[0], *shape, weight.shape[-1] * groups))
    for i, j, at in Windows(shape, weight.shape[1:-1], **where).positions():
        part = g[_all(i)]
        out[_all(at)] += _ungrouped(_in_groups(part, groups) @ _filters(weight, j, groups), part)
    return out


def conv_weight_gradient(
    g: np.ndarray, x: np.ndarray, *, shape: Any, groups: int = 1, precision: Any = None, **where: Any
) -> np.ndarray:
    """Return the gradient of a convolution with respect to its weight: g times the elements of each window."""
    shape, n, c = each(shape, x.ndim - 2), g.shape[-1], x.shape[-1]
    out = np.zeros((n, *shape, c // groups))
    for i, j, at in Windows(x.shape[1:-1], shape, **where).positions():
        product = _in_groups(g[_all(i)], groups).swapaxes(1, 2) @ _in_groups(x[_all(at)], groups)
        out[_all(j)] += product.reshape(n, c // groups)
    return out


def conv(x: Any, weight: Any, bias: Any = None, *, activation: str | None = None, **params: Any) -> np.ndarray:
    """Return the convolution plus bias, after the activation."""
    return ACTIVATIONS[activation](conv_product(x, weight, **params) + (0 if bias is None else bias))


def conv_transpose(
    x: Any, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    dilation: Any = 1, groups: int = 1, precision: Any = None,
) -> np.ndarray:  # fmt: skip
    """Return every element of x times its filter, added in an array that holds all windows, without the padding."""
    axes, kernel, lengths = x.ndim - 2, weight.shape[1:-1], x.shape[1:-1]
    stride, dilation, more = each(stride, axes), each(dilation, axes), each(output_padding, axes)
    around = pairs(padding, tuple(n * s for n, s in zip(lengths, stride, strict=True)), kernel, stride, dilation)
    room = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(lengths, stride, kernel, dilation, strict=True)]
    if padding == "same":
        lacking = (n * s - r for n, s, r in zip(lengths, stride, room, strict=True))
        more = tuple(m + max(missing, 0) for m, missing in zip(more, lacking, strict=True))
    out = np.zeros((x.shape[0], *(r + m for r, m in zip(room, more, strict=True)), weight.shape[-1] * groups))
    for j in itertools.product(*map(range, kernel)):
        each_axis = zip(lengths, j, stride, dilation, strict=True)
        at = np.ix_(*([i * s + b * d for i in range(m)] for m, b, s, d in each_axis))
        out[_all(at)] += _ungrouped(_in_groups(x, groups) @ _filters(weight, j, groups), x)
    out = out[_all(tuple(slice(lo, m - hi) for m, (lo, hi) in zip(out.shape[1:-1], around, strict=True)))]
    return out if bias is None else out + bias


def _pooled(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Iterator[tuple]:
    """Yield for each pooling window its index, its positions on x, and its size including padding."""
    lengths, axes = x.shape[1:-1], x.ndim - 2
    kernel, gaps = each(kernel, axes), each(dilation, axes)
    steps = kernel if stride is None else each(stride, axes)
    around = pairs(padding, lengths, kernel, steps, gaps)
    ranges = []
    for n, k, s, d, (lo, hi) in zip(lengths, kernel, steps, gaps, around, strict=True):
        starts = [a for a in range(-lo, n + hi, s) if a + d * (k - 1) < n + hi]
        if ceil_mode and starts[-1] + d * (k - 1) + 1 < n + hi and starts[-1] + s < n:
            starts.append(starts[-1] + s)
        whole = [[a + d * j for j in range(k)] for a in starts]
        ranges.append([([p for p in w if 0 <= p < n], sum(p < n + hi for p in w)) for w in whole])
    for i in itertools.product(*(range(len(r)) for r in ranges)):
        chosen = [r[a] for r, a in zip(ranges, i, strict=True)]
        yield i, np.ix_(*(positions for positions, _ in chosen)), math.prod(count for _, count in chosen)


def _filled(x: np.ndarray, found: dict[Index, np.ndarray]) -> np.ndarray:
    """Return the results of all windows in one array."""
    out = np.zeros((x.shape[0], *(n + 1 for n in max(found)), x.shape[-1]))
    for i, value in found.items():
        out[_all(i)] = value
    return out


def max_pool(
    x: Any, *, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> np.ndarray:
    """Return the maximum of every window."""
    over = tuple(range(1, x.ndim - 1))
    pool = _pooled(x, kernel, stride, padding, dilation, ceil_mode)
    return _filled(x, {i: x[_all(at)].max(axis=over, initial=-np.inf) for i, at, _ in pool})


def mean_pool(
    x: Any, *, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor: float | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the mean of every window."""
    over, found = tuple(range(1, x.ndim - 1)), {}
    for i, at, with_padding in _pooled(x, kernel, stride, padding, 1, ceil_mode):
        count = with_padding if count_include_pad else math.prod(a.size for a in at)
        found[i] = x[_all(at)].sum(axis=over) / (count if divisor is None else divisor)
    return _filled(x, found)


def adaptive_mean_pool(x: Any, *, shape: Any) -> np.ndarray:
    """Return the means of as many windows as `shape` asks for."""
    lengths = x.shape[1:-1]
    counts = [n if m is None else m for m, n in zip(each(shape, len(lengths)), lengths, strict=True)]
    found = {}
    for i in itertools.product(*map(range, counts)):
        at: list[slice] = [slice(a * n // m, -(-(a + 1) * n // m)) for a, m, n in zip(i, counts, lengths, strict=True)]
        found[i] = x[_all(tuple(at))].mean(axis=tuple(range(1, x.ndim - 1)))
    return _filled(x, found)


def _cubic_weights(n: int, m: int, step: float, align_corners: bool) -> np.ndarray:
    """Return the weights (m, n) of Keys's cubic convolution with a = -3/4."""
    weights = np.zeros((m, n))
    for i in range(m):
        point = i * (n - 1) / max(m - 1, 1) if align_corners else (i + 0.5) * step - 0.5
        for j in range(math.floor(point) - 2, math.floor(point) + 4):
            d = abs(point - j)
            inner, outer = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            weights[i, min(max(j, 0), n - 1)] += inner if d <= 1 else outer if d < 2 else 0
    return weights


def interpolate(
    x: Any, *, shape: Any = None, scale: Any = None, mode: str = "nearest", align_corners: bool = False
) -> np.ndarray:
    """Return x resampled at other points, one axis after the other."""
    axes = x.ndim - 2
    for axis in range(1, axes + 1):
        n, by = x.shape[axis], None if scale is None else each(scale, axes)[axis - 1]
        m = math.floor(n * by) if by else each(shape, axes)[axis - 1]
        step = 1 / by if by else n / m
        if mode == "nearest":
            x = np.take(x, [min(math.floor(i * step + 1e-9), n - 1) for i in range(m)], axis)
            continue
        if mode in ("cubic", "bicubic"):
            x = np.tensordot(_cubic_weights(n, m, step, align_corners), x, (1, axis))
            x = np.moveaxis(x, 0, axis)
            continue
        points = [i * (n - 1) / max(m - 1, 1) if align_corners else max((i + 0.5) * step - 0.5, 0) for i in range(m)]
        below = [min(math.floor(p + 1e-9), n - 1) for p in points]
        share = np.reshape([max(p - b, 0) for p, b in zip(points, below, strict=True)], (-1, *(1,) * (axes + 1 - axis)))
        above = [min(b + 1, n - 1) for b in below]
        x = np.take(x, below, axis) * (1 - share) + np.take(x, above, axis) * share
    return x
