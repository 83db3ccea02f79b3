"""Convolutions, pools and resizing as functions: with any leading axes, and with the channels first where they are.

polyarr.conv is a function of this file, polyarr.ops.conv the op that it calls, which has the channels last; so it is
with the others. Nothing is copied for a layout where a backend has strides.
"""

import math
from typing import Any

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.spec import told
from polyarr.ops import convolution as convs
from polyarr.ops import pool as pools
from polyarr.ops.shape import permute_dims, reshape
from polyarr.ops.spatial import check_whole
from polyarr.ops.validation import check_array

LAST, FIRST = "channels_last", "channels_first"
WHOLE = ("kernel", "stride", "padding", "output_padding", "dilation", "groups", "shape")  # parameters that are ints


def _check_layout(op: str, layout: str) -> None:
    if not isinstance(layout, str) or layout not in (LAST, FIRST):
        raise ValueError(f"{op}: layout is {told(layout)}; it must be '{LAST}' or '{FIRST}'")


def _moved(x: Array, layout: str, axes: int, back: bool = False) -> Array:
    """x with its channels behind its spatial axes, which are `axes` in number; or before them again."""
    if layout == LAST:
        return x
    lead = len(x.shape) - axes - 1
    spatial = [i + (not back) for i in range(lead, lead + axes)]
    channels = len(x.shape) - 1 if back else lead
    order = (channels, *spatial) if back else (*spatial, channels)
    return permute_dims(x, axes=(*range(lead), *order))


def _called(op: Any, x: Array, axes: int, layout: str, *more: Any, **params: Any) -> Array:
    """What op gives for x with one leading axis and the channels last, in x's layout and with its leading axes."""
    _check_layout(op.name, layout)
    check_array(op.name, "x", x)
    check_whole(op.name, **{name: params[name] for name in WHOLE if name in params})
    if not 1 <= axes <= 3:
        raise ShapeError(f"{op.name}: x is {spec_of(x)}, {axes} spatial axes are named; there may be 1, 2 or 3")
    if len(x.shape) < axes + 1:
        places = "lengths, channels" if layout == LAST else "channels, lengths"
        raise ShapeError(f"{op.name}: x is {spec_of(x)}; it must have {axes + 1} axes or more: (..., {places})")
    x = _moved(x, layout, axes)
    lead = x.shape[: -axes - 1]
    flat = x if len(lead) == 1 else reshape(x, shape=(math.prod(lead), *x.shape[len(lead) :]))
    y = op(flat, *more, **params)
    y = y if len(lead) == 1 else reshape(y, shape=(*lead, *y.shape[1:]))
    return _moved(y, layout, axes, back=True)


def _filters(op: str, weight: Array, layout: str) -> tuple[Array, int]:
    """weight with its channels last, and how many spatial axes it has."""
    _check_layout(op, layout)
    check_array(op, "weight", weight)
    axes = len(weight.shape) - 2
    if not 1 <= axes <= 3:
        raise ShapeError(f"{op}: weight is {spec_of(weight)}; it must have 3, 4 or 5 axes: 1, 2 or 3 spatial ones")
    return _moved(weight, layout, axes), axes


def _spatial(x: Array, per_axis: Any) -> int:
    """How many spatial axes are meant: as many as there are numbers, or for one number all but two."""
    return len(per_axis) if isinstance(per_axis, (tuple, list)) else max(len(getattr(x, "shape", ())) - 2, 1)


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    activation: str | None = None,
    precision: str | None = None,
    layout: str = LAST,
) -> Array:
    """Convolution over the last 1, 2 or 3 axes before the channels: every window times every filter, plus bias.

    What is meant is correlation, as in all networks. padding is "same", "valid", an int, one per axis, or a pair
    (before, after) per axis. With layout "channels_first", the channels of x, weight and the result stand before
    their spatial axes: x, weight and all numbers are then as PyTorch's. precision is matmul's.

    Shapes:  x (..., *lengths, c), weight (n, *k, c / groups), bias (n,) or None -> (..., *windows, n)
    Dtypes:  floating; x and weight promoted, bias may differ -> theirs; 16-bit floats are summed in float32
    Errors:  ShapeError if lengths, groups or parameters do not fit, or a window reaches over more than there is;
             ValueError for an unknown activation or layout
    Grads:   x, weight, bias
    """
    weight, axes = _filters("conv", weight, layout)
    params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _called(convs.conv, x, axes, layout, weight, bias, activation=activation, precision=precision, **params)


def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    precision: str | None = None,
    layout: str = LAST,
) -> Array:
    """The transpose of conv with this weight, plus bias: for every element of x, its filter is added up at its place.

    padding is cut off around the result; output_padding are further elements after it. With "same" the result is
    stride times as long as x. layout and precision are conv's.

    Shapes:  x (..., *lengths, c), weight (c, *k, n / groups), bias (n,) or None -> (..., *lengths, n), for each axis
             (length - 1) * stride - padding + dilation * (k - 1) + 1 + output_padding
    Dtypes:  floating; x and weight promoted, bias may differ -> theirs; 16-bit floats are summed in float32
    Errors:  ShapeError if lengths, groups or parameters do not fit, or nothing is left; ValueError for another layout
    Grads:   x, weight, bias
    """
    weight, axes = _filters("conv_transpose", weight, layout)
    params = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    return _called(convs.conv_transpose, x, axes, layout, weight, bias, groups=groups, precision=precision, **params)


def max_pool(
    x: Array,
    kernel: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = LAST,
) -> Array:
    """The largest element of every window, a nan if there is one; of the padding none counts.

    A kernel of n lengths is for as many axes before the channels; an int is for all but the first and the channels.
    stride is the kernel unless it is given. With ceil_mode, there is a window more where elements are left over. The
    gradient goes to the first of the largest elements. padding and layout are conv's.

    Shapes:  x (..., *lengths, c), kernel (*k) -> (..., *windows, c)
    Dtypes:  floating -> the same
    Errors:  ShapeError if a window reaches over more than there is, or padding over as much as a window; ValueError
             for another layout
    Grads:   x
    """
    params = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    return _called(pools.max_pool, x, _spatial(x, kernel), layout, kernel=kernel, **params)


def mean_pool(
    x: Array,
    kernel: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: float | None = None,
    layout: str = LAST,
) -> Array:
    """The mean of every window; or its sum divided by a divisor.

    A kernel of n lengths is for as many axes before the channels; an int is for all but the first and the channels.
    stride is the kernel unless it is given. With ceil_mode, there is a window more where elements are left over. The
    padding counts as zeros, or without count_include_pad not at all; what ceil_mode takes beyond it does not count.

    Shapes:  x (..., *lengths, c), kernel (*k) -> (..., *windows, c)
    Dtypes:  floating -> the same
    Errors:  ShapeError if a window reaches over more than there is, or padding over as much as a window; ValueError
             if divisor is 0, and for another layout
    Grads:   x
    """
    params = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode, "divisor": divisor}
    counted = {"count_include_pad": count_include_pad}
    return _called(pools.mean_pool, x, _spatial(x, kernel), layout, kernel=kernel, **params, **counted)


def adaptive_mean_pool(x: Array, shape: Any, *, layout: str = LAST) -> Array:
    """The means of as many windows as shape says, as equal as can be; None keeps an axis as it is.

    A shape of n lengths is for as many axes before the channels; an int is for all but the first and the channels.
    Window i of m over n elements goes from i n / m, rounded down, to (i + 1) n / m, rounded up.

    Shapes:  x (..., *lengths, c), shape (*m) -> (..., *m, c)
    Dtypes:  floating -> the same
    Errors:  ShapeError for a length below 1; ValueError for another layout
    Grads:   x
    """
    return _called(pools.adaptive_mean_pool, x, _spatial(x, shape), layout, shape=shape)


def interpolate(
    x: Array,
    shape: Any = None,
    *,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    layout: str = LAST,
) -> Array:
    """x at other points of its spatial axes: as many as shape says, or scale times as many.

    A shape or scale of n numbers is for as many axes before the channels; one number for all but the first and the
    channels. Point i of m over n elements lies at i n / m, rounded down, with mode "nearest". With "linear", of which
    "bilinear" and "trilinear" are names, it lies at (i + 1/2) n / m - 1/2 between two elements, or with align_corners
    at i (n - 1) / (m - 1). Given a scale, it stands for m / n.

    Shapes:  x (..., *lengths, c), shape (*m) -> (..., *m, c)
    Dtypes:  floating -> the same
    Errors:  ShapeError for a length below 1; ValueError for another mode or layout, and unless shape or scale is given
    Grads:   x
    """
    params = {"shape": shape, "scale": scale, "mode": mode, "align_corners": align_corners}
    return _called(pools.interpolate, x, _spatial(x, scale if shape is None else shape), layout, **params)
