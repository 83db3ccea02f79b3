"""Convolutions of few channels (as of RGB images) on Hopper's matrix units, whose steps are of 64 channels.

Several kernel rows of a receptive field are packed side by side into one piece of 64 numbers, padded by zeros. An image
of pieces has 64 channels, and a receptive field few elements.
"""

from math import prod
from typing import NamedTuple

import numpy as np

from polyarr.backends.opencl.convolution.conv_params import ConvParams
from polyarr.backends.opencl.convolution.spatial import Padding, channels, geometry
from polyarr.backends.opencl.copying.copy import dense
from polyarr.backends.opencl.gemm.product import Epilogue, blocks_in, terms_of
from polyarr.backends.opencl.nvidia import conv_wgmma
from polyarr.backends.opencl.nvidia.conv_wgmma import STEP, Element, Layer
from polyarr.backends.opencl.nvidia.split import FOUR, DenseOperand, SplitOperand, SplitOperands, split_side_by_side
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Buffer, Shape, reshaped, view
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.core.spec import Spec

FEW_CHANNELS = 8  # fewer channels than this are few
MAX_PADDING = 4  # pieces may have this many times the numbers of a receptive field
GROUP, MAX_ROWS = 128, 65535  # of the launch; work-groups along the second axis
NAMES = "pieces", "filters"


class Cut(NamedTuple):
    """Packing of receptive fields into pieces.

    Attributes:
        height, width: The kernel's lengths.
        channels: Channels of the images.
        rows: Kernel rows in one piece, a multiple of the stride.
        pieces: Pieces of a receptive field.
        apart: Rows of pieces from one piece of a receptive field to the next.
    """

    height: int
    width: int
    channels: int
    rows: int
    pieces: int
    apart: int

    @property
    def row(self) -> int:
        """The numbers in a kernel row."""
        return self.width * self.channels


def cut_of(weight: Shape, stride: Shape, dilation: Shape) -> Cut | None:
    """Return how receptive fields of one or two axes are packed; None if packing is not worth it."""
    if weight[-1] >= FEW_CHANNELS or len(stride) > 2 or set(dilation) != {1} or not prod(weight):
        return None
    (height, width), step, row = _two(weight[1:-1]), _two(stride)[0], weight[-2] * weight[-1]
    most = STEP // row // step * step
    if not most:
        return None
    count = blocks_in(height, most)
    if count * STEP > MAX_PADDING * height * row:
        return None
    rows = blocks_in(height, count * step) * step
    return Cut(height, width, weight[-1], rows, count, rows // step)


def product(
    device: Device, out: Spec, x: Buffer, weight: Buffer, bias: Buffer | None, epilogue: Epilogue,
    known: SplitOperands, *, stride: Shape, padding: Padding, dilation: Shape,
) -> tuple[Buffer, Buffer | None] | None:  # fmt: skip
    """Return the convolution, and the activation's input if the epilogue saves it; None if it is not for these kernels.
    """
    cut = cut_of(weight.shape, stride, dilation)
    if cut is None:
        return None
    positions, n = _two(out.shape[1:-1]), out.shape[-1]
    to = (0, positions[1] * n, n), prod(out.shape[1:])
    layer = _layer(cut, x.shape[0], n, positions)._replace(start=to[0], target=to[1])
    if not _accepts(device, out.dtype, x, layer, epilogue):
        return None
    result, saved = device.empty(out), device.empty(out) if epilogue.save else None
    pieces = _pieces(device, x, cut, layer, stride, padding, terms_of(out.dtype, epilogue.precision), known)
    filters = gathered(device, _image(dense(device, weight)), cut, (cut.pieces, 1), (cut.rows, 1), (0, 0))
    conv_wgmma.run(device, layer, result, saved, pieces, filters, bias, epilogue, NAMES, known)
    return result, saved


def weight_gradient(
    device: Device, out: Spec, g: Buffer, x: Buffer, epilogue: Epilogue, known: SplitOperands, *, stride: Shape,
    padding: Padding, dilation: Shape,
) -> Buffer | None:  # fmt: skip
    """Return the gradient of the weight; None if it is not for these kernels."""
    cut = cut_of(out.shape, stride, dilation)
    if cut is None:
        return None
    layer = _layer(cut, x.shape[0], out.shape[0], _two(g.shape[1:-1]))._replace(sums=True)
    if not _accepts(device, out.dtype, x, layer, epilogue):
        return None
    n, row = out.shape[0], cut.rows * cut.row
    result = device.empty(Spec((n, cut.pieces * STEP), out.dtype))
    pieces = _pieces(device, x, cut, layer, stride, padding, terms_of(out.dtype, epilogue.precision), known)
    conv_wgmma.run(device, layer, result, None, dense(device, g), pieces, None, epilogue, ("g", NAMES[0]), known)
    own = dense(device, view(result, (n, cut.pieces, row), (cut.pieces * STEP, STEP, 1), 0))
    found = view(own, (n, prod(out.shape[1:])), (cut.pieces * row, 1), 0)  # without the rows behind the kernel's last
    return reshaped(dense(device, found), out.shape)


def _layer(cut: Cut, images: int, outputs: int, positions: tuple[int, int]) -> Layer:
    elements = tuple(Element((i * cut.apart, 0), i) for i in range(cut.pieces))
    lengths = positions[0] + (cut.pieces - 1) * cut.apart, positions[1]
    return Layer(images, STEP, outputs, lengths, positions, (1, 1), elements, cut.pieces)


def _accepts(device: Device, dtype: np.dtype, x: Buffer, layer: Layer, epilogue: Epilogue) -> bool:
    """Return whether these kernels accept a layer. "highest" is excluded: padding times an infinity is nan."""
    terms = terms_of(dtype, epilogue.precision)
    fits = terms == 1 or (terms == 2 and x.shape[-2] * x.shape[-1] % FOUR == 0)
    return fits and conv_wgmma.accepts(device, dtype, (layer,), epilogue)


def _pieces(
    device: Device, x: Buffer, cut: Cut, layer: Layer, stride: Shape, padding: Padding, terms: int, known: SplitOperands
) -> Buffer:
    """Return x packed into pieces; with split precision, its packed terms, which are added to known."""
    before, _ = zip(*padding, strict=True)
    positions = layer.lengths, _two(stride), _two(before, 0)
    if terms == 1:
        return gathered(device, _image(dense(device, x)), cut, *positions)
    if NAMES[0] not in known:
        x = dense(device, x)
        whole = DenseOperand("x", x.memory, x.size // FOUR, x.shape[-2] * x.shape[-1] // FOUR)
        (found,) = split_side_by_side(device, (whole,), terms, {})
        image = found.terms._replace(shape=_image(x).shape)
        known[NAMES[0]] = SplitOperand(gathered(device, image, cut, *positions, terms), found.flag)
    return known[NAMES[0]].terms


def gathered(
    device: Device, x: Buffer, cut: Cut, positions: tuple[int, int], stride: tuple[int, int], before: tuple[int, int],
    terms: int = 1,
) -> Buffer:  # fmt: skip
    """Return the pieces at these positions of dense images, or of split terms that lie side by side in their rows."""
    result = device.empty(Spec((x.shape[0], *positions, terms * STEP), x.dtype))
    launch, packed = device.plans[_plan](x.dtype, x.shape, result.shape, cut, stride, before, terms)
    launch.kernel(launch.work, launch.group, x.memory, result.memory, packed)
    return result


def _plan(
    device: Device, dtype: np.dtype, x: Shape, out: Shape, cut: Cut, stride: tuple[int, int], before: tuple[int, int],
    terms: int,
) -> tuple[LaunchPlan, bytes]:  # fmt: skip
    wide, macros = channels(device, dtype, out[-1])
    conv = ConvParams(stride, tuple((pads, 0) for pads in before), (1, 1), 1)
    packed = geometry((*x[:-1], out[-1]), out, (1, 1), conv, wide)
    macros |= {"PIECE": STEP, "ROW": cut.row, "ROWS": cut.rows, "CHANNELS": cut.channels, "TERMS": terms}
    work = blocks_in(out[2] * out[3] // wide, GROUP) * GROUP, min(out[0] * out[1], MAX_ROWS)
    return LaunchPlan(device.build("conv_pieces", **macros, GROUP=GROUP).conv_pieces, work, (GROUP, 1), ()), packed


def _image(x: Buffer) -> Buffer:
    """Return x with two image axes."""
    return x if x.ndim == 4 else reshaped(x, (x.shape[0], 1, *x.shape[1:]))


def _two(numbers: Shape, missing: int = 1) -> tuple[int, int]:
    return (missing, *numbers)[-2:]  # type: ignore[return-value]
