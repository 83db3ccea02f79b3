"""Layers of convolutions, transposed convolutions and pooling. Channels are the last axis.

The functions polyarr.conv, polyarr.max_pool and so on take the channels before the spatial axes as well.
"""

import math
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.nn.init import Initializer, constant, initial_value, uniform
from polyarr.nn.module import Module
from polyarr.ops.spatial import check_whole, per_axis
from polyarr.ops.validation import whole


class _Convolution(Module):
    """Base class of convolutions: a weight, a bias and the parameters of polyarr.conv."""

    axes = 0
    is_transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: Any = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        activation: str | None = None,
        init: Initializer | None = None,
    ) -> None:
        name = type(self).__name__
        check_whole(name, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)
        kernel = per_axis(name, "kernel_size", kernel_size, self.axes)
        in_channels, out_channels = whole(name, "in_channels", in_channels), whole(name, "out_channels", out_channels)
        if whole(name, "groups", groups) < 1 or in_channels % groups or out_channels % groups:
            given = f"in_channels is {in_channels}, out_channels is {out_channels}, groups is {groups}"
            raise ShapeError(f"{name}: {given}; it must divide both")
        first, last = (in_channels, out_channels) if self.is_transposed else (out_channels, in_channels)
        shape = (first, *kernel, last // groups)
        default = uniform(1 / math.sqrt(max(math.prod(shape[1:]), 1)))
        self.weight = initial_value(name, init or default, *shape)
        self.bias = (constant(0) if init else default)((out_channels,)) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.activation = activation

    @property
    def _where(self) -> dict[str, Any]:
        """Parameters that the op shares with its transpose."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def __call__(self, x: Array) -> Array:
        """Return the output (B, *lengths, out) for x (B, *lengths, in)."""
        return ops.conv(x, self.weight, self.bias, activation=self.activation, **self._where)


class Conv1d(_Convolution):
    """Convolution of sequences (B, T, C), with a weight (out, k, in / groups).

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Length of a window.
        stride: Distance of two windows.
        padding: Zeros around the input: "same", "valid", an int, one per axis, or a pair (before, after) per axis.
        dilation: Distance of two elements of a window.
        groups: Number of groups of channels; it divides both numbers of channels.
        bias: Whether to add a bias.
        activation: None, "relu", "silu", "gelu" or "gelu_tanh".
        init: Initializer of the weight, with a bias of 0. None: both are uniform within 1 / sqrt(elements of a filter).

    Raises:
        ShapeError: kernel_size does not fit, or groups does not divide the channels.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.Conv1d(3, 8, 5, padding="same")(pa.ones((2, 10, 3))).shape
        (2, 10, 8)
    """

    axes = 1


class Conv2d(_Convolution):
    """Convolution of images (B, H, W, C), with a weight (out, kh, kw, in / groups). Arguments as in Conv1d.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.Conv2d(3, 8, 3, stride=2, padding=1)(pa.ones((2, 8, 8, 3))).shape
        (2, 4, 4, 8)
    """

    axes = 2


class Conv3d(_Convolution):
    """Convolution of volumes (B, D, H, W, C), with a weight (out, kd, kh, kw, in / groups). Arguments as in Conv1d.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.Conv3d(1, 2, 3)(pa.ones((1, 4, 4, 4, 1))).shape
        (1, 2, 2, 2, 2)
    """

    axes = 3


class _Transpose(_Convolution):
    """Base class of transposed convolutions: a weight (in, *k, out / groups) and output_padding."""

    is_transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: Any = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        *,
        init: Initializer | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, init=init)
        check_whole(type(self).__name__, output_padding=output_padding)
        self.output_padding = output_padding

    def __call__(self, x: Array) -> Array:
        """Return the output (B, *lengths, out) for x (B, *lengths, in)."""
        return ops.conv_transpose(x, self.weight, self.bias, output_padding=self.output_padding, **self._where)


class ConvTranspose1d(_Transpose):
    """Transposed convolution of sequences (B, T, C), with a weight (in, k, out / groups).

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Length of a filter.
        stride: Distance of the positions of two neighbors in the output.
        padding: Elements cut off around the output; with "same" it is stride times as long as the input.
        output_padding: Further elements at the end of the output.
        groups: Number of groups of channels; it divides both numbers of channels.
        bias: Whether to add a bias.
        dilation: Distance of two elements of a filter.
        init: Initializer of the weight, as in Conv1d.

    Raises:
        ShapeError: kernel_size does not fit, or groups does not divide the channels.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.ConvTranspose1d(3, 8, 4, stride=2, padding=1)(pa.ones((2, 10, 3))).shape
        (2, 20, 8)
    """

    axes = 1


class ConvTranspose2d(_Transpose):
    """Transposed convolution of images (B, H, W, C), with a weight (in, kh, kw, out / groups). See ConvTranspose1d.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.ConvTranspose2d(3, 8, 2, stride=2)(pa.ones((2, 4, 4, 3))).shape
        (2, 8, 8, 8)
    """

    axes = 2


class ConvTranspose3d(_Transpose):
    """Transposed convolution of volumes (B, D, H, W, C), with a weight (in, *k, out / groups). See ConvTranspose1d.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.ConvTranspose3d(1, 2, 2, stride=2)(pa.ones((1, 2, 2, 2, 1))).shape
        (1, 4, 4, 4, 2)
    """

    axes = 3


class MaxPool(Module):
    """Max pooling of sequences, images or volumes, as polyarr.max_pool.

    Args:
        kernel_size: Length of a window, an int or one per spatial axis.
        stride: Distance of two windows, an int or one per spatial axis; None for kernel_size.
        padding: As in Conv1d; less than the length of a window.
        dilation: Distance of two elements of a window.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.MaxPool(2)(pa.ones((1, 8, 8, 3))).shape
        (1, 4, 4, 3)
    """

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> None:
        check_whole("MaxPool", kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, stride, padding, dilation

    def __call__(self, x: Array) -> Array:
        """Return the output (B, *fewer, C) for x (B, *lengths, C)."""
        settings = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return ops.max_pool(x, kernel=self.kernel_size, **settings)


class MeanPool(Module):
    """Mean pooling of sequences, images or volumes, as polyarr.mean_pool.

    Args:
        kernel_size: Length of a window, an int or one per spatial axis.
        stride: Distance of two windows, an int or one per spatial axis; None for kernel_size.
        padding: As in Conv1d; less than the length of a window.
        count_include_pad: Whether the padding counts as zeros.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.MeanPool(2)(pa.ones((1, 8, 8, 3))).shape
        (1, 4, 4, 3)
    """

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True
    ) -> None:
        check_whole("MeanPool", kernel_size=kernel_size, stride=stride, padding=padding)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad

    def __call__(self, x: Array) -> Array:
        """Return the output (B, *fewer, C) for x (B, *lengths, C)."""
        settings = {"stride": self.stride, "padding": self.padding, "count_include_pad": self.count_include_pad}
        return ops.mean_pool(x, kernel=self.kernel_size, **settings)


class AdaptiveMeanPool(Module):
    """Mean pooling to a given shape, whatever the lengths of the input, as polyarr.adaptive_mean_pool.

    Args:
        shape: Numbers of windows, an int or one per spatial axis; None keeps an axis as it is.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn
        >>> nn.AdaptiveMeanPool(1)(pa.ones((1, 7, 5, 3))).shape
        (1, 1, 1, 3)
    """

    def __init__(self, shape: Any) -> None:
        check_whole("AdaptiveMeanPool", shape=shape)
        self.shape = shape

    def __call__(self, x: Array) -> Array:
        """Return the output (B, *shape, C) for x (B, *lengths, C)."""
        return ops.adaptive_mean_pool(x, shape=self.shape)
