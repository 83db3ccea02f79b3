"""Convolutions of sequences, images and volumes: the group conv. Channels are the last axis.

Everything is composed of windows, its transpose sum_windows, and matrix products. conv_product, conv_input_gradient and
conv_weight_gradient are the three sides of one trilinear form: the gradients of each are the other two, so a backend
with kernels for them has gradients of every order.
"""
# pyright takes a parameter for an int by its default of 1, where the rule has made a tuple of it.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import itertools
import math

from polyarr.core.errors import ShapeError
from polyarr.core.op import composed
from polyarr.core.spec import Spec, check_kind, shown
from polyarr.ops.create import fill
from polyarr.ops.elementwise import add, like
from polyarr.ops.joining import stack
from polyarr.ops.linalg import matrix_product
from polyarr.ops.nn import ACTIVATIONS, check_activation
from polyarr.ops.shape import matrix_transpose, permute_dims, reshape, slice, slice_update
from polyarr.ops.spatial import (
    CONV,
    Geometry,
    Lengths,
    geometry,
    images,
    padded,
    paddings,
    per_axis,
    spans,
    unpadded,
)
from polyarr.ops.validation import whole

# ---- windows ---------------------------------------------------------------------------------------------------------


def _window_rule(x, *, kernel, stride, dilation):
    lengths = images("windows", "x", x)
    kernel = per_axis("windows", "kernel", kernel, len(lengths))
    where = geometry("windows", x, lengths, kernel, stride, 0, dilation)
    found = {"kernel": kernel, "stride": where.stride, "dilation": where.dilation}
    return Spec((x.shape[0], *where.out, *kernel, x.shape[-1]), x.dtype), found


@composed(infer=_window_rule, widen=False, group=CONV)
def windows(x, *, kernel, stride=1, dilation=1):
    """Return every sliding window of x (unfold): element j of window i is x at i * stride + j * dilation.

    The result is a view if the backend has strides.

    Args:
        x: Array (b, *lengths, c) of any dtype, with 1 to 3 spatial axes.
        kernel: Lengths of a window, an int or one per spatial axis.
        stride: Distance of two windows, an int or one per spatial axis.
        dilation: Distance of two elements of a window, an int or one per spatial axis.

    Returns:
        Array (b, *number of windows, *kernel, c) of the dtype of x.

    Raises:
        ShapeError: A window is longer than x.

    Gradients: x
    """
    b, c = x.shape[0], x.shape[-1]
    out = tuple((n - r) // s + 1 for n, r, s in zip(x.shape[1:-1], spans(kernel, dilation), stride, strict=True))
    parts = [slice(x, starts=starts, steps=(1, *stride, 1), shape=(b, *out, c)) for starts in _starts(kernel, dilation)]
    return reshape(stack(parts, axis=1 + len(kernel)), shape=(b, *out, *kernel, c))


def _starts(kernel, dilation):
    """Yield where each element of the first window lies."""
    for place in itertools.product(*map(range, kernel)):
        yield (0, *(j * d for j, d in zip(place, dilation, strict=True)), 0)


def _sum_rule(x, *, shape, stride, dilation):
    check_kind("sum_windows", "x", x, "real")
    axes = (x.ndim - 2) // 2
    if x.ndim not in (4, 6, 8):
        raise ShapeError(f"sum_windows: x is {x}; it must have 4, 6 or 8 axes: batch, windows, kernel, channels")
    shape = per_axis("sum_windows", "shape", shape, axes, least=0)
    kernel = x.shape[1 + axes : -1]
    whole_x = Spec((x.shape[0], *shape, x.shape[-1]), x.dtype)
    where = geometry("sum_windows", whole_x, shape, kernel, stride, 0, dilation)
    if where.out != x.shape[1 : 1 + axes]:
        raise ShapeError(f"sum_windows: x is {x}, shape is {list(shape)}, which has {list(where.out)} such windows")
    return whole_x, {"shape": shape, "stride": where.stride, "dilation": where.dilation}


@composed(infer=_sum_rule, group=CONV)
def sum_windows(x, *, shape, stride=1, dilation=1):
    """Return zeros with every window added at its position (fold): the transpose of windows.

    Args:
        x: Integer or floating-point array (b, *number of windows, *kernel, c).
        shape: Lengths of the spatial axes of the result.
        stride: Distance of two windows, an int or one per spatial axis.
        dilation: Distance of two elements of a window, an int or one per spatial axis.

    Returns:
        Array (b, *shape, c) of the dtype of x.

    Raises:
        ShapeError: An array of this shape has another number of windows.

    Gradients: x
    """
    axes = len(shape)
    b, c, out, kernel = x.shape[0], x.shape[-1], x.shape[1 : 1 + axes], x.shape[1 + axes : -1]
    flat = reshape(x, shape=(b, *out, math.prod(kernel), c))
    total, steps = fill(0, x, shape=(b, *shape, c), dtype=x.dtype), (1, *stride, 1)
    ones, window = (1,) * (axes + 3), (b, *out, c)
    for i, starts in enumerate(_starts(kernel, dilation)):
        part = slice(flat, starts=(*(0,) * (axes + 1), i, 0), steps=ones, shape=(b, *out, 1, c))
        there = slice(total, starts=starts, steps=steps, shape=window)
        total = slice_update(total, add(there, reshape(part, shape=window)), starts=starts, steps=steps)
    return total


windows.vjp(
    x=lambda g, x_spec, stride, dilation: sum_windows(g, shape=x_spec.shape[1:-1], stride=stride, dilation=dilation)
)
sum_windows.vjp(
    x=lambda g, x_spec, shape, stride, dilation: windows(
        g, kernel=x_spec.shape[1 + len(shape) : -1], stride=stride, dilation=dilation
    )
)


# ---- the product, and its two gradients ------------------------------------------------------------------------------


def _checked(x: Spec, weight: Spec, shape, kernel, *, stride, padding, dilation, groups) -> tuple[Geometry, int]:
    """Return the geometry of the windows on x (b, *shape, c), and groups; or raise ShapeError."""
    for name, a in (("x", x), ("weight", weight)):
        check_kind("conv", name, a, "floating")
    groups = whole("conv", "groups", groups)
    if min(kernel) < 1:
        raise ShapeError(f"conv: weight is {weight}; its kernel must have at least one element")
    if groups < 1 or x.shape[-1] != weight.shape[-1] * groups or weight.shape[0] % groups:
        given = f"x is {x}, weight is {weight}, groups is {groups}"
        required = "weight.shape[-1] * groups must equal x.shape[-1], and groups divide weight.shape[0]"
        raise ShapeError(f"conv: {given}; {required}{_channels_first(x, weight.shape[-1] * groups)}")
    return geometry("conv", x, shape, kernel, stride, padding, dilation), groups


def _channels_first(x: Spec, channels: int) -> str:
    """Return the end of an error message for images whose channels are on axis 1, or ""."""
    return "; channels are last: write polyarr.moveaxis(x, 1, -1)" if x.shape[1] == channels else ""


def _spatial_lengths(op: str, x: Spec, weight: Spec) -> Lengths:
    """Return the lengths of the spatial axes of x, of which weight must have as many."""
    if not x.is_number and x.ndim in (weight.ndim - 1, weight.ndim + 1):
        batch = "; of one example write x[None]" if x.ndim < weight.ndim else ""
        required = "both must have as many axes, batch first and channels last"
        raise ShapeError(f"{op}: x is {x}, weight is {weight}; {required}{batch}")
    lengths = images(op, "x", x)
    images(op, "weight", weight, len(lengths))
    return lengths


def _params(x: Spec, weight: Spec, **given) -> dict:
    """Return the parameters of a convolution, per axis."""
    lengths = _spatial_lengths("conv", x, weight)
    where, groups = _checked(x, weight, lengths, weight.shape[1:-1], **given)
    return {**where.params, "groups": groups, "out": where.out}


def _product_rule(x, weight, *, precision, **given):
    found = _params(x, weight, **given)
    return Spec((x.shape[0], *found.pop("out"), weight.shape[0]), x.dtype), found


def _columns(x, kernel, *, stride, padding, dilation, groups):
    """Return all windows of x (im2col) as one matrix per group: (groups, b * windows, k * c / groups)."""
    found = windows(padded(x, padding), kernel=kernel, stride=stride, dilation=dilation)
    rows, places, c = math.prod(found.shape[: 1 + len(kernel)]), math.prod(kernel), x.shape[-1] // groups
    apart = permute_dims(reshape(found, shape=(rows, places, groups, c)), axes=(2, 0, 1, 3))
    return reshape(apart, shape=(groups, rows, places * c)), found.shape[: 1 + len(kernel)]


def _rows(y, groups):
    """Return y (b, *windows, n) as matrices (groups, b * windows, n / groups)."""
    apart = reshape(y, shape=(math.prod(y.shape[:-1]), groups, y.shape[-1] // groups))
    return permute_dims(apart, axes=(1, 0, 2))


def _matrices(weight, groups):
    """Return weight (n, *k, c / groups) as matrices (groups, n / groups, k * c / groups)."""
    return reshape(weight, shape=(groups, weight.shape[0] // groups, math.prod(weight.shape[1:])))


@composed(promote="x weight", infer=_product_rule, group=CONV)
def conv_product(x, weight, *, stride=1, padding=0, dilation=1, groups=1, precision=None):
    """Return the sum of products of every window of x with every filter; conv runs this op.

    Args:
        x: Floating-point array (b, *lengths, c).
        weight: Floating-point array (n, *kernel, c / groups), promoted with x.
        stride: As in conv.
        padding: As in conv.
        dilation: As in conv.
        groups: As in conv.
        precision: As in matmul.

    Returns:
        Array (b, *number of windows, n) of the promoted dtype; sums of 16-bit floats are kept in float32.

    Raises:
        ShapeError: As in conv.

    Gradients: x, weight
    """
    where = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    columns, out = _columns(x, weight.shape[1:-1], **where)
    y = matrix_product(columns, matrix_transpose(_matrices(weight, groups)), precision=precision)
    return reshape(permute_dims(y, axes=(1, 0, 2)), shape=(*out, weight.shape[0]))


def _input_rule(g, weight, *, shape, precision, **given):
    axes = len(images("conv", "g", g))
    images("conv", "weight", weight, axes)
    shape = per_axis("conv", "shape", shape, axes, least=0)
    x = Spec((g.shape[0], *shape, weight.shape[-1] * whole("conv", "groups", given["groups"])), g.dtype)
    found = _params(x, weight, **given)
    _check_gradient(g, Spec((g.shape[0], *found.pop("out"), weight.shape[0]), g.dtype))
    return x, {**found, "shape": shape}


def _check_gradient(g: Spec, out: Spec) -> None:
    if g.shape != out.shape:
        raise ShapeError(f"conv: g is {g}; it must be as the result, which is {out}")


@composed(promote="g weight", infer=_input_rule, group=CONV)
def conv_input_gradient(g, weight, *, shape, stride=1, padding=0, dilation=1, groups=1, precision=None):
    """Return the gradient of conv_product with respect to its x; conv_transpose runs this op.

    Args:
        g: Floating-point array (b, *number of windows, n), the cotangent.
        weight: Floating-point array (n, *kernel, c / groups), promoted with g.
        shape: Lengths of the spatial axes of x.
        stride: As in conv.
        padding: As in conv.
        dilation: As in conv.
        groups: As in conv.
        precision: As in matmul.

    Returns:
        Array (b, *shape, c) of the promoted dtype; sums of 16-bit floats are kept in float32.

    Raises:
        ShapeError: As in conv, or an x of this shape has another number of windows than g.

    Gradients: g, weight
    """
    b, kernel, c = g.shape[0], weight.shape[1:-1], weight.shape[-1]
    columns = matrix_product(_rows(g, groups), _matrices(weight, groups), precision=precision)
    places = math.prod(kernel)
    apart = reshape(columns, shape=(groups, math.prod(g.shape[:-1]), places, c))
    found = reshape(permute_dims(apart, axes=(1, 2, 0, 3)), shape=(b, *g.shape[1:-1], *kernel, groups * c))
    around = tuple(m + sum(p) for m, p in zip(shape, padding, strict=True))
    return unpadded(sum_windows(found, shape=around, stride=stride, dilation=dilation), padding)


def _weight_rule(g, x, *, shape, precision, **given):
    axes = len(images("conv", "x", x))
    images("conv", "g", g, axes)
    shape, groups = per_axis("conv", "shape", shape, axes), whole("conv", "groups", given["groups"])
    weight = Spec((g.shape[-1], *shape, x.shape[-1] // max(groups, 1)), x.dtype)
    found = _params(x, weight, **given)
    _check_gradient(g, Spec((x.shape[0], *found.pop("out"), g.shape[-1]), x.dtype))
    return weight, {**found, "shape": shape}


@composed(promote="g x", infer=_weight_rule, group=CONV)
def conv_weight_gradient(g, x, *, shape, stride=1, padding=0, dilation=1, groups=1, precision=None):
    """Return the gradient of conv_product with respect to its weight.

    Args:
        g: Floating-point array (b, *number of windows, n), the cotangent.
        x: Floating-point array (b, *lengths, c), promoted with g.
        shape: Lengths of the kernel.
        stride: As in conv.
        padding: As in conv.
        dilation: As in conv.
        groups: As in conv.
        precision: As in matmul.

    Returns:
        Array (n, *shape, c / groups) of the promoted dtype; sums of 16-bit floats are kept in float32.

    Raises:
        ShapeError: As in conv, or x has another number of windows than g.

    Gradients: g, x
    """
    columns, _ = _columns(x, shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    found = matrix_product(matrix_transpose(_rows(g, groups)), columns, precision=precision)
    return reshape(found, shape=(g.shape[-1], *shape, x.shape[-1] // groups))


def _lengths(spec: Spec) -> tuple[int, ...]:
    return spec.shape[1:-1]


conv_product.vjp(
    x=lambda g, weight, x_spec, stride, padding, dilation, groups, precision: conv_input_gradient(
        g, weight, shape=_lengths(x_spec), **_where(stride, padding, dilation, groups, precision)
    ),
    weight=lambda g, x, weight_spec, stride, padding, dilation, groups, precision: conv_weight_gradient(
        g, x, shape=_lengths(weight_spec), **_where(stride, padding, dilation, groups, precision)
    ),
)
conv_input_gradient.vjp(
    g=lambda h, weight, stride, padding, dilation, groups, precision: conv_product(
        h, weight, **_where(stride, padding, dilation, groups, precision)
    ),
    weight=lambda h, g, weight_spec, stride, padding, dilation, groups, precision: conv_weight_gradient(
        g, h, shape=_lengths(weight_spec), **_where(stride, padding, dilation, groups, precision)
    ),
)
conv_weight_gradient.vjp(
    g=lambda h, x, stride, padding, dilation, groups, precision: conv_product(
        x, h, **_where(stride, padding, dilation, groups, precision)
    ),
    x=lambda h, g, x_spec, stride, padding, dilation, groups, precision: conv_input_gradient(
        g, h, shape=_lengths(x_spec), **_where(stride, padding, dilation, groups, precision)
    ),
)


def _where(stride, padding, dilation, groups, precision) -> dict:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "precision": precision}


# ---- convolution and its transpose -----------------------------------------------------------------------------------


def _check_bias(op: str, bias: Spec | None, n: int) -> None:
    if bias is not None:
        check_kind(op, "bias", bias, "floating")
        if bias.shape != (n,):
            raise ShapeError(f"{op}: bias is {bias}; it must be [{n}]")


def _conv_rule(x, weight, bias, *, activation, precision, **given):
    check_activation("conv", activation)
    out, found = _product_rule(x, weight, precision=precision, **given)
    _check_bias("conv", bias, weight.shape[0])
    return out, found


@composed(promote="x weight", infer=_conv_rule, group=CONV)
def conv(x, weight, bias=None, *, stride=1, padding=0, dilation=1, groups=1, activation=None, precision=None):
    """Return the convolution of x with weight, plus bias, through an activation. The channels are the last axis.

    As in neural networks in general, this is a cross-correlation. The function polyarr.conv calls this op, and takes
    other layouts and leading axes.

    Args:
        x: Floating-point array (b, *lengths, c), with 1 to 3 spatial axes.
        weight: Floating-point array (n, *kernel, c / groups), promoted with x.
        bias: Floating-point array (n,), or None. Its dtype may differ.
        stride: Distance of two windows, an int or one per spatial axis.
        padding: Zeros around x: "same", "valid", an int, one per spatial axis, or a pair (before, after) per spatial
            axis.
        dilation: Distance of two elements of a window, an int or one per spatial axis.
        groups: Number of groups of channels; each sees only its own c / groups channels of x.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".
        precision: As in matmul.

    Returns:
        Array (b, *number of windows, n) of the promoted dtype; sums of 16-bit floats are kept in float32.

    Raises:
        ShapeError: The lengths, groups or parameters do not fit, or a window is longer than x with its padding.
        ValueError: There is no such activation.

    Gradients: x, weight, bias
    """
    y = conv_product(x, weight, **_where(stride, padding, dilation, groups, precision))
    return like(ACTIVATIONS[activation](y if bias is None else add(y, bias)), y)


def _transpose_rule(x, weight, bias, *, stride, padding, output_padding, dilation, groups, precision):
    op = "conv_transpose"
    lengths = _spatial_lengths(op, x, weight)
    groups = whole(op, "groups", groups)
    if groups < 1 or weight.shape[0] != x.shape[-1] or x.shape[-1] % groups:
        given = f"x is {x}, weight is {weight}, groups is {groups}"
        required = "weight.shape[0] must equal x.shape[-1], which groups must divide"
        raise ShapeError(f"{op}: {given}; {required}{_channels_first(x, weight.shape[0])}")
    _check_bias(op, bias, weight.shape[-1] * groups)
    steps, pairs, gaps, more = _transposed(op, lengths, weight.shape[1:-1], stride, padding, output_padding, dilation)
    out = _output_lengths(lengths, weight.shape[1:-1], steps, pairs, gaps, more)
    if 0 in (*lengths, *weight.shape[1:-1]) or min(out) < 1:
        given = f"x is {x}, weight is {weight}, stride is {list(steps)}, padding is {shown(padding)}"
        raise ShapeError(f"{op}: {given}; x and the result, {list(out)}, must have elements along each axis")
    found = {"stride": steps, "padding": pairs, "output_padding": more, "dilation": gaps, "groups": groups}
    return Spec((x.shape[0], *out, weight.shape[-1] * groups), x.dtype), found


def _transposed(op: str, lengths, kernel, stride, padding, output_padding, dilation):
    """Return stride, padding, dilation and output_padding per axis; "same": the result is stride times as long as x."""
    n = len(lengths)
    steps, gaps = per_axis(op, "stride", stride, n), per_axis(op, "dilation", dilation, n)
    more, reach = per_axis(op, "output_padding", output_padding, n, least=0), spans(kernel, gaps)
    if any(m >= max(s, d) for m, s, d in zip(more, steps, gaps, strict=True)):
        given = f"output_padding is {list(more)}, stride is {list(steps)}, dilation is {list(gaps)}"
        raise ShapeError(f"{op}: {given}; output_padding must be below stride or dilation")
    pairs = paddings(op, padding, tuple(m * s for m, s in zip(lengths, steps, strict=True)), reach, steps)
    if padding == "same":
        more = tuple(m + max(s - r, 0) for m, s, r in zip(more, steps, reach, strict=True))
    return steps, pairs, gaps, more


def _output_lengths(lengths, kernel, stride, padding, dilation, output_padding):
    """Return the lengths of the result of conv_transpose."""
    each = zip(lengths, spans(kernel, dilation), stride, padding, output_padding, strict=True)
    return tuple((n - 1) * s + r - sum(p) + m for n, r, s, p, m in each)


@composed(promote="x weight", infer=_transpose_rule, group=CONV)
def conv_transpose(
    x, weight, bias=None, *, stride=1, padding=0, output_padding=0, dilation=1, groups=1, precision=None
):
    """Return the transposed convolution of x with weight, plus bias. The channels are the last axis.

    The function polyarr.conv_transpose, which says how long the result is, calls this op, and takes other layouts and
    leading axes.

    Args:
        x: Floating-point array (b, *lengths, c), with 1 to 3 spatial axes.
        weight: Floating-point array (c, *kernel, n / groups), promoted with x.
        bias: Floating-point array (n,), or None. Its dtype may differ.
        stride: Distance of the positions of two neighbors, an int or one per spatial axis.
        padding: Elements cut off around the result, as in conv; with "same" the result is stride times as long as x.
        output_padding: Further elements at the end, an int or one per spatial axis.
        dilation: Distance of two elements of a filter, an int or one per spatial axis.
        groups: Number of groups of channels.
        precision: As in matmul.

    Returns:
        Array (b, *lengths, n) of the promoted dtype; sums of 16-bit floats are kept in float32.

    Raises:
        ShapeError: The lengths, groups or parameters do not fit, or the result would be empty.

    Gradients: x, weight, bias
    """
    out = _output_lengths(x.shape[1:-1], weight.shape[1:-1], stride, padding, dilation, output_padding)
    # With output_padding of a stride or more, x does not reach the end: shrink the padding there, or append zeros.
    over = [max(m - s + 1, 0) for m, s in zip(output_padding, stride, strict=True)]
    cut = [min(o, after) for o, (_, after) in zip(over, padding, strict=True)]
    kept = tuple((before, after - o) for (before, after), o in zip(padding, cut, strict=True))
    rest = tuple((0, o - c) for o, c in zip(over, cut, strict=True))
    shape = tuple(n - zeros for n, (_, zeros) in zip(out, rest, strict=True))
    y = conv_input_gradient(x, weight, shape=shape, **_where(stride, kept, dilation, groups, precision))
    y = padded(y, rest)
    return y if bias is None else like(add(y, bias), y)
