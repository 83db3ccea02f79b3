"""Convolutions of few channels on Hopper's matrix units, whose steps are of 64.

What some rows of a window have lies side by side as one piece of so many numbers, with zeros behind: so images of
pieces have 64 channels, and a window few elements.
"""

from math import prod
from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.convolutions import conv_wgmma
from polyarr.backends.opencl.convolutions.conv_wgmma import STEP, Element, Layer
from polyarr.backends.opencl.convolutions.spatial import Padding, channels, geometry
from polyarr.backends.opencl.copy import dense
from polyarr.backends.opencl.products.parts import (
    FOUR,
    HALVES,
    InParts,
    Known,
    Whole,
    divided_beside,
    known_of,
)
from polyarr.backends.opencl.products.product import Epilogue, blocks_in
from polyarr.backends.opencl.products.wgmma import parts_of
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, reshaped, view
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec

FEW = 8  # channels are not few from here on
MOST_ZEROS = 4  # times as many numbers as a window has, may its pieces have
GROUP, MOST_ROWS = 128, 65535  # of the launch; groups along the second axis
NAMES = "pieces", "filters"


class Cut(NamedTuple):
    """Windows in pieces.

    height, width  of the kernel
    channels       of the images
    rows           of the kernel that are one piece: whole strides
    count          pieces of a window
    apart          rows of pieces from one piece of a window to the next
    """

    height: int
    width: int
    channels: int
    rows: int
    count: int
    apart: int

    @property
    def row(self) -> int:
        """Numbers of a window's row."""
        return self.width * self.channels


def cut_of(weight: Shape, stride: Shape, dilation: Shape) -> Cut | None:
    """How windows of one or two axes are cut; None if that is not worth it."""
    if weight[-1] >= FEW or len(stride) > 2 or set(dilation) != {1} or not prod(weight):
        return None
    (height, width), step, row = _two(weight[1:-1]), _two(stride)[0], weight[-2] * weight[-1]
    most = STEP // row // step * step
    if not most:
        return None
    count = blocks_in(height, most)
    if count * STEP > MOST_ZEROS * height * row:
        return None
    rows = blocks_in(height, count * step) * step
    return Cut(height, width, weight[-1], rows, count, rows // step)


def product(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, epilogue: Epilogue, known: Known, *,
    stride: Shape, padding: Padding, dilation: Shape,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    """Every window with every filter, and what the epilogue saves; None where these are not for it."""
    cut = cut_of(weight.shape, stride, dilation)
    if cut is None:
        return None
    places, n = _two(out.shape[1:-1]), out.shape[-1]
    to = (0, places[1] * n, n), prod(out.shape[1:])
    layer = _layer(cut, x.shape[0], n, places)._replace(start=to[0], target=to[1])
    if not _takes(device, out.dtype, x, layer, epilogue):
        return None
    result, saved = device.empty(out), device.empty(out) if epilogue.save else None
    pieces = _pieces(device, x, cut, layer, stride, padding, parts_of(out.dtype, epilogue), known)
    filters = gathered(device, _image(dense(device, weight)), cut, (cut.count, 1), (cut.rows, 1), (0, 0))
    conv_wgmma.run(device, layer, result, saved, pieces, filters, bias, epilogue, NAMES, known)
    return result, saved


def weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, epilogue: Epilogue, known: Known, *, stride: Shape,
    padding: Padding, dilation: Shape,
) -> Buffer | None:  # fmt: skip
    """The gradient of the weight; None where these are not for it."""
    cut = cut_of(out.shape, stride, dilation)
    if cut is None:
        return None
    layer = _layer(cut, x.shape[0], out.shape[0], _two(g.shape[1:-1]))._replace(sums=True)
    if not _takes(device, out.dtype, x, layer, epilogue):
        return None
    n, row = out.shape[0], cut.rows * cut.row
    result = device.empty(Spec((n, cut.count * STEP), out.dtype))
    pieces = _pieces(device, x, cut, layer, stride, padding, parts_of(out.dtype, epilogue), known)
    conv_wgmma.run(device, layer, result, None, dense(device, g), pieces, None, epilogue, ("g", NAMES[0]), known)
    own = dense(device, view(result, (n, cut.count, row), (cut.count * STEP, STEP, 1), 0))
    found = view(own, (n, prod(out.shape[1:])), (cut.count * row, 1), 0)  # without the rows behind the kernel's last
    return reshaped(dense(device, found), out.shape)


def _layer(cut: Cut, images: int, outputs: int, places: tuple[int, int]) -> Layer:
    elements = tuple(Element((i * cut.apart, 0), i) for i in range(cut.count))
    lengths = places[0] + (cut.count - 1) * cut.apart, places[1]
    return Layer(images, STEP, outputs, lengths, places, (1, 1), elements, cut.count)


def _takes(device: Device, dtype: np.dtype, x: Buffer, layer: Layer, epilogue: Epilogue) -> bool:
    """Not three of bfloat16: "highest" has it that an infinity beside a window is not seen, not even times 0."""
    parts = parts_of(dtype, epilogue)
    fits = parts == 1 or (parts == HALVES and x.shape[-2] * x.shape[-1] % FOUR == 0)
    return fits and conv_wgmma.takes(device, dtype, (layer,), epilogue)


def _pieces(
    device: Device, x: Buffer, cut: Cut, layer: Layer, stride: Shape, padding: Padding, parts: int, known: Known
) -> Buffer:
    """x in pieces; of float32 those of its parts, which known has then."""
    before, _ = zip(*padding, strict=True)
    places = layer.lengths, _two(stride), _two(before, 0)
    if parts == 1:
        return gathered(device, _image(dense(device, x)), cut, *places)
    if NAMES[0] not in known:
        x = dense(device, x)
        whole = Whole("x", x.memory, x.size // FOUR, x.shape[-2] * x.shape[-1] // FOUR)
        (found,) = divided_beside(device, (whole,), parts, known_of(x=x))
        image = found.parts._replace(shape=_image(x).shape)
        known[NAMES[0]] = InParts(gathered(device, image, cut, *places, parts), found.told)
    return known[NAMES[0]].parts


def gathered(
    device: Device, x: Buffer, cut: Cut, places: tuple[int, int], stride: tuple[int, int], before: tuple[int, int],
    parts: int = 1,
) -> Buffer:  # fmt: skip
    """Pieces at so many places of dense images, or of the parts of their rows, which lie side by side."""
    result = device.empty(Spec((x.shape[0], *places, parts * STEP), x.dtype))
    launch, told = device.plans[_plan](x.dtype, x.shape, result.shape, cut, stride, before, parts)
    launch.kernel(launch.work, launch.group, x.memory, result.memory, told)
    return result


def _plan(
    device: Device, dtype: np.dtype, x: Shape, out: Shape, cut: Cut, stride: tuple[int, int], before: tuple[int, int],
    parts: int,
) -> tuple[LaunchPlan, bytes]:  # fmt: skip
    wide, macros = channels(device, dtype, out[-1])
    told = geometry((*x[:-1], out[-1]), out, (1, 1), stride, tuple((pads, 0) for pads in before), (1, 1), wide)
    macros |= {"PIECE": STEP, "ROW": cut.row, "ROWS": cut.rows, "CHANNELS": cut.channels, "PARTS": parts}
    work = blocks_in(out[2] * out[3] // wide, GROUP) * GROUP, min(out[0] * out[1], MOST_ROWS)
    return LaunchPlan(device.build("conv_pieces", **macros, GROUP=GROUP).conv_pieces, work, (GROUP, 1), ()), told


def _image(x: Buffer) -> Buffer:
    """With two axes."""
    return x if x.ndim == 4 else reshaped(x, (x.shape[0], 1, *x.shape[1:]))


def _two(numbers: Shape, missing: int = 1) -> tuple[int, int]:
    return (missing, *numbers)[-2:]  # type: ignore[return-value]
