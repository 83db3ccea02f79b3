"""The parameters of a convolution, and the phases of its gradient with respect to x."""

from math import gcd
from typing import Any, NamedTuple

from polyarr.backends.opencl.runtime.layout import Shape

Padding = tuple[tuple[int, int], ...]


class ConvParams(NamedTuple):
    """Stride, padding and dilation of a convolution, and its channel groups."""

    stride: Shape
    padding: Padding
    dilation: Shape
    groups: int

    @property
    def of_axes(self) -> dict[str, Any]:
        """The parameters without the groups."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    @property
    def unpadded(self) -> "ConvParams":
        """The parameters for an x that is padded already."""
        return self._replace(padding=((0, 0),) * len(self.padding))

    def is_pointwise(self, weight: Shape) -> bool:
        """Return whether the kernel has one element, without padding or groups (1 x 1 convolution)."""
        return self.groups == 1 and all(n == 1 for n in weight[1:-1]) and not any(map(any, self.padding))

    def is_depthwise(self, weight: Shape) -> bool:
        """Return whether every channel has one filter of its own."""
        return weight[0] == self.groups > weight[-1] == 1


class Phase(NamedTuple):
    """The positions first, first + stride, ... of an axis of x, `positions` in number, and the outputs that read them.

    Position j is kernel element tap + u * each of output start + j - u * apart, for u < taps.
    """

    first: int
    positions: int
    start: int
    tap: int
    each: int
    taps: int
    apart: int

    @property
    def least(self) -> int:
        """The first output position that is read; it need not exist."""
        return self.start - (self.taps - 1) * self.apart if self.taps else 0

    @property
    def most(self) -> int:
        """The last output position that is read; it need not exist."""
        return self.start + self.positions - 1 if self.taps else 0


EACH_POSITION = Phase(0, 0, 0, 0, 1, 1, 1)


def _phases(length: int, kernel: int, stride: int, before: int, dilation: int) -> list[Phase]:
    """Return the phases of an axis, where output o reads kernel element k at o * stride - before + k * dilation."""
    common = gcd(stride, dilation)
    each, found = stride // common, []
    for first in range(min(stride, length)):
        at, count = first + before, -(-(length - first) // stride)
        tap = next((k for k in range(min(kernel, each)) if (at - k * dilation) % stride == 0), None)
        if tap is None:
            found.append(Phase(first, count, 0, 0, each, 0, dilation // common))
        else:
            start, taps = (at - tap * dilation) // stride, -(-(kernel - tap) // each)
            found.append(Phase(first, count, start, tap, each, taps, dilation // common))
    return found


def phases_of(lengths: Shape, kernel: Shape, params: ConvParams) -> list[list[Phase]]:
    """Return the phases of each axis of x, whose lengths are given."""
    numbers = zip(lengths, kernel, params.stride, params.padding, params.dilation, strict=True)
    return [_phases(length, n, step, pads[0], apart) for length, n, step, pads, apart in numbers]
