"""Convolutions, their transposes, and pools, as layers. Channels are the last axis.

polyarr.conv and its kin are functions that take the channels before the spatial axes as well.
"""

import math
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.errors import ShapeError
from polyarr.nn.init import Initialiser, begun, constant, uniform
from polyarr.nn.module import Module
from polyarr.ops.spatial import check_whole, per_axis
from polyarr.ops.validation import whole


class _Convolution(Module):
    """What all of them hold. Without init, weight and bias are uniform within 1 / sqrt(the filter's elements).

    init draws the weight instead; the bias is then 0.
    """

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
        activation: str | None = None,
        init: Initialiser | None = None,
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
        self.weight = begun(name, init or default, *shape)
        self.bias = (constant(0) if init else default)((out_channels,)) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.activation = activation

    @property
    def _where(self) -> dict[str, Any]:
        """Which elements a window takes."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def __call__(self, x: Array) -> Array:
        """(B, *lengths, in) -> (B, *lengths, out)"""
        return ops.conv(x, self.weight, self.bias, activation=self.activation, **self._where)


class Conv1d(_Convolution):
    """ops.conv of sequences (B, T, C): a weight (out, k, in / groups) and a bias, which begin as PyTorch's.

    padding is "same", "valid", an int, one per axis, or a pair (before, after) per axis.

    Errors:  ShapeError for a kernel that does not fit, or groups that do not divide the channels
    """

    axes = 1


class Conv2d(_Convolution):
    """ops.conv of images (B, H, W, C): a weight (out, kh, kw, in / groups) and a bias, as Conv1d."""

    axes = 2


class Conv3d(_Convolution):
    """ops.conv of volumes (B, D, H, W, C): a weight (out, kd, kh, kw, in / groups) and a bias, as Conv1d."""

    axes = 3


class _Transpose(_Convolution):
    """A weight (in, *k, out / groups), and output_padding beside the settings of a convolution."""

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
        init: Initialiser | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, init=init)
        check_whole(type(self).__name__, output_padding=output_padding)
        self.output_padding = output_padding

    def __call__(self, x: Array) -> Array:
        """(B, *lengths, in) -> (B, *lengths, out)"""
        return ops.conv_transpose(x, self.weight, self.bias, output_padding=self.output_padding, **self._where)


class ConvTranspose1d(_Transpose):
    """ops.conv_transpose of sequences (B, T, C): a weight (in, k, out / groups) and a bias."""

    axes = 1


class ConvTranspose2d(_Transpose):
    """ops.conv_transpose of images (B, H, W, C): a weight (in, kh, kw, out / groups) and a bias."""

    axes = 2


class ConvTranspose3d(_Transpose):
    """ops.conv_transpose of volumes (B, D, H, W, C): a weight (in, kd, kh, kw, out / groups) and a bias."""

    axes = 3


class MaxPool(Module):
    """ops.max_pool as a layer, of sequences, images or volumes; stride is kernel_size unless it is given."""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> None:
        check_whole("MaxPool", kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, stride, padding, dilation

    def __call__(self, x: Array) -> Array:
        """(B, *lengths, C) -> (B, *fewer, C)"""
        settings = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return ops.max_pool(x, kernel=self.kernel_size, **settings)


class MeanPool(Module):
    """ops.mean_pool as a layer, of sequences, images or volumes; stride is kernel_size unless it is given."""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True) -> None:
        check_whole("MeanPool", kernel_size=kernel_size, stride=stride, padding=padding)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad

    def __call__(self, x: Array) -> Array:
        """(B, *lengths, C) -> (B, *fewer, C)"""
        settings = {"stride": self.stride, "padding": self.padding, "count_include_pad": self.count_include_pad}
        return ops.mean_pool(x, kernel=self.kernel_size, **settings)


class AdaptiveMeanPool(Module):
    """ops.adaptive_mean_pool as a layer: to so many places along each spatial axis, whatever there were."""

    def __init__(self, shape: Any) -> None:
        check_whole("AdaptiveMeanPool", shape=shape)
        self.shape = shape

    def __call__(self, x: Array) -> Array:
        """(B, *lengths, C) -> (B, *shape, C)"""
        return ops.adaptive_mean_pool(x, shape=self.shape)
