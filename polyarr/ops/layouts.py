"""Convolutions, pooling and resizing as functions: with any leading axes, and with the channels last or first.

polyarr.conv is a function of this file; it calls the op polyarr.ops.conv, which has the channels last. The others are
alike. Another layout costs no copy if the backend has strides.
"""

import math
from typing import Any

from polyarr.core.array import Array, spec_of
from polyarr.core.errors import ShapeError
from polyarr.core.keywords import explained
from polyarr.core.spec import shown
from polyarr.ops import convolution as convs
from polyarr.ops import pool as pools
from polyarr.ops.shape import permute_dims, reshape
from polyarr.ops.spatial import check_whole
from polyarr.ops.validation import check_array

LAST, FIRST = "channels_last", "channels_first"
INT_PARAMETERS = ("kernel", "stride", "padding", "output_padding", "dilation", "groups", "shape")


def _check_layout(op: str, layout: str) -> None:
    if not isinstance(layout, str) or layout not in (LAST, FIRST):
        raise ValueError(f"{op}: layout is {shown(layout)}; it must be '{LAST}' or '{FIRST}'")


def _moved(x: Array, layout: str, axes: int, back: bool = False) -> Array:
    """Return x with its channels moved behind its `axes` spatial axes, or with `back` before them again."""
    if layout == LAST:
        return x
    lead = len(x.shape) - axes - 1
    spatial = [i + (not back) for i in range(lead, lead + axes)]
    channels = len(x.shape) - 1 if back else lead
    order = (channels, *spatial) if back else (*spatial, channels)
    return permute_dims(x, axes=(*range(lead), *order))


def _called(op: Any, x: Array, axes: int, layout: str, *more: Any, **params: Any) -> Array:
    """Call an op, which takes one leading axis and the channels last, for x with any leading axes and in any layout."""
    _check_layout(op.name, layout)
    check_array(op.name, "x", x)
    check_whole(op.name, **{name: params[name] for name in INT_PARAMETERS if name in params})
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
    """Return weight with its channels last, and its number of spatial axes."""
    _check_layout(op, layout)
    check_array(op, "weight", weight)
    axes = len(weight.shape) - 2
    if not 1 <= axes <= 3:
        raise ShapeError(f"{op}: weight is {spec_of(weight)}; it must have 3, 4 or 5 axes: 1, 2 or 3 spatial ones")
    return _moved(weight, layout, axes), axes


def _spatial(x: Array, per_axis: Any) -> int:
    """Return the number of spatial axes meant: as many as there are numbers, or for one number all axes but two."""
    return len(per_axis) if isinstance(per_axis, (tuple, list)) else max(len(getattr(x, "shape", ())) - 2, 1)


@explained
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
    """Return the convolution of x with weight, plus bias, through an activation.

    As in neural networks in general, this is a cross-correlation. weight has 1, 2 or 3 spatial axes, and x as many.

    Args:
        x: Floating-point array (..., *lengths, c), or (..., c, *lengths) with layout "channels_first".
        weight: Floating-point array (n, *kernel, c / groups), or (n, c / groups, *kernel) with layout "channels_first",
            promoted with x.
        bias: Floating-point array (n,), or None. Its dtype may differ.
        stride: Distance of two windows, an int or one per spatial axis.
        padding: Zeros around x: "same", "valid", an int, one per spatial axis, or a pair (before, after) per spatial
            axis.
        dilation: Distance of two elements of a window, an int or one per spatial axis.
        groups: Number of groups of channels; each sees only its own c / groups channels of x.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".
        precision: As in matmul.
        layout: "channels_last", or "channels_first" as in PyTorch: of x, weight and the result.

    Returns:
        Array (..., *number of windows, n), or (..., n, *number of windows), of the promoted dtype. Sums of 16-bit
        floats are kept in float32.

    Raises:
        ShapeError: The lengths, groups or parameters do not fit, or a window is longer than x with its padding.
        ValueError: There is no such activation or layout.

    Examples:
        >>> import polyarr as pa
        >>> image, weight = pa.ones((1, 4, 4, 3)), pa.ones((8, 3, 3, 3))
        >>> pa.conv(image, weight, padding="same", stride=2).shape
        (1, 2, 2, 8)

    Gradients: x, weight, bias
    """
    weight, axes = _filters("conv", weight, layout)
    params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _called(convs.conv, x, axes, layout, weight, bias, activation=activation, precision=precision, **params)


@explained
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
    """Return the transposed convolution of x with weight, plus bias.

    For every element of x, its filter is added to the result at its position. Along each spatial axis the result has
    length (length - 1) * stride - padding + dilation * (kernel - 1) + 1 + output_padding.

    Args:
        x: Floating-point array (..., *lengths, c), or (..., c, *lengths) with layout "channels_first".
        weight: Floating-point array (c, *kernel, n / groups), or (c, n / groups, *kernel) with layout "channels_first",
            promoted with x.
        bias: Floating-point array (n,), or None. Its dtype may differ.
        stride: Distance of the positions of two neighbors, an int or one per spatial axis.
        padding: Elements cut off around the result, as in conv; with "same" the result is stride times as long as x.
        output_padding: Further elements at the end, an int or one per spatial axis.
        dilation: Distance of two elements of a filter, an int or one per spatial axis.
        groups: Number of groups of channels.
        precision: As in matmul.
        layout: "channels_last", or "channels_first" as in PyTorch: of x, weight and the result.

    Returns:
        Array (..., *lengths, n), or (..., n, *lengths), of the promoted dtype. Sums of 16-bit floats are kept in
        float32.

    Raises:
        ShapeError: The lengths, groups or parameters do not fit, or the result would be empty.
        ValueError: There is no such layout.

    Examples:
        >>> import polyarr as pa
        >>> image, weight = pa.ones((1, 4, 4, 3)), pa.ones((3, 2, 2, 8))
        >>> pa.conv_transpose(image, weight, stride=2).shape
        (1, 8, 8, 8)

    Gradients: x, weight, bias
    """
    weight, axes = _filters("conv_transpose", weight, layout)
    params = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    return _called(convs.conv_transpose, x, axes, layout, weight, bias, groups=groups, precision=precision, **params)


@explained
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
    """Return the largest element of every window; nan if there is a nan. The padding does not count.

    Args:
        x: Floating-point array (..., *lengths, c), or (..., c, *lengths) with layout "channels_first".
        kernel: Lengths of a window, one per spatial axis. An int counts for all axes but the first and the channels.
        stride: Distance of two windows, an int or one per spatial axis; None for kernel.
        padding: As in conv; less than the length of a window.
        dilation: Distance of two elements of a window, an int or one per spatial axis.
        ceil_mode: Whether elements left over at the end get a window of their own.
        layout: "channels_last" or "channels_first".

    Returns:
        Array (..., *number of windows, c), or (..., c, *number of windows), of the dtype of x.

    Raises:
        ShapeError: A window is longer than x with its padding, or not longer than the padding.
        ValueError: There is no such layout.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.reshape(pa.asarray([1.0, 5.0, 2.0, 3.0]), (1, 4, 1))
        >>> pa.max_pool(x, 2).flatten()
        Array([5., 3.], float32, 'numpy')

    Gradients: x; the first of equal largest elements has the gradient
    """
    params = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    return _called(pools.max_pool, x, _spatial(x, kernel), layout, kernel=kernel, **params)


@explained
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
    """Return the mean of every window, or its sum divided by divisor.

    Args:
        x: Floating-point array (..., *lengths, c), or (..., c, *lengths) with layout "channels_first".
        kernel: Lengths of a window, one per spatial axis. An int counts for all axes but the first and the channels.
        stride: Distance of two windows, an int or one per spatial axis; None for kernel.
        padding: As in conv; less than the length of a window.
        ceil_mode: Whether elements left over at the end get a window of their own.
        count_include_pad: Whether the padding counts as zeros; what ceil_mode reaches beyond the padding does not
            count.
        divisor: Number to divide the sums by; None for the number of elements that count.
        layout: "channels_last" or "channels_first".

    Returns:
        Array (..., *number of windows, c), or (..., c, *number of windows), of the dtype of x.

    Raises:
        ShapeError: A window is longer than x with its padding, or not longer than the padding.
        ValueError: divisor is 0, or there is no such layout.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.reshape(pa.asarray([1.0, 5.0, 2.0, 3.0]), (1, 4, 1))
        >>> pa.mean_pool(x, 2).flatten()
        Array([3. , 2.5], float32, 'numpy')

    Gradients: x
    """
    params = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode, "divisor": divisor}
    counted = {"count_include_pad": count_include_pad}
    return _called(pools.mean_pool, x, _spatial(x, kernel), layout, kernel=kernel, **params, **counted)


@explained
def adaptive_mean_pool(x: Array, shape: Any, *, layout: str = LAST) -> Array:
    """Return the means of a given number of windows, of lengths as equal as possible.

    Window i of m over n elements reaches from floor(i n / m) to ceil((i + 1) n / m).

    Args:
        x: Floating-point array (..., *lengths, c), or (..., c, *lengths) with layout "channels_first".
        shape: Numbers of windows, one per spatial axis; None keeps an axis as it is. An int counts for all axes but the
            first and the channels.
        layout: "channels_last" or "channels_first".

    Returns:
        Array (..., *shape, c), or (..., c, *shape), of the dtype of x.

    Raises:
        ShapeError: A length is below 1.
        ValueError: There is no such layout.

    Examples:
        >>> import polyarr as pa
        >>> pa.adaptive_mean_pool(pa.ones((2, 7, 5, 3)), 1).shape
        (2, 1, 1, 3)

    Gradients: x
    """
    return _called(pools.adaptive_mean_pool, x, _spatial(x, shape), layout, shape=shape)


@explained
def interpolate(
    x: Array,
    shape: Any = None,
    *,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    layout: str = LAST,
) -> Array:
    """Return x resized along its spatial axes.

    Point i of m over n elements lies at floor(i n / m) with mode "nearest". With "linear" it lies between two elements,
    at (i + 1/2) n / m - 1/2, or with align_corners at i (n - 1) / (m - 1), and "cubic" weighs four elements around the
    same point (Keys's cubic convolution). If scale is given, it stands for m / n.

    Args:
        x: Floating-point array (..., *lengths, c), or (..., c, *lengths) with layout "channels_first".
        shape: Lengths m of the result, one per spatial axis; None if scale is given. An int counts for all axes but the
            first and the channels.
        scale: Factors of the lengths, likewise; None if shape is given.
        mode: "nearest", "linear" or "cubic"; "bilinear", "trilinear" and "bicubic" are other names of the last two.
        align_corners: Whether the first and last points are those of x; not for "nearest".
        layout: "channels_last" or "channels_first".

    Returns:
        Array (..., *shape, c), or (..., c, *shape), of the dtype of x.

    Raises:
        ShapeError: A length is below 1.
        ValueError: There is no such mode or layout, or not exactly one of shape and scale is given.

    Examples:
        >>> import polyarr as pa
        >>> x = pa.reshape(pa.asarray([1.0, 2.0]), (1, 2, 1))
        >>> pa.interpolate(x, 4, mode="linear").flatten()
        Array([1.  , 1.25, 1.75, 2.  ], float32, 'numpy')

    Gradients: x
    """
    params = {"shape": shape, "scale": scale, "mode": mode, "align_corners": align_corners}
    return _called(pools.interpolate, x, _spatial(x, scale if shape is None else shape), layout, **params)
