"""Convolutions on the matrix units of NVIDIA's Hopper: implicit GEMM through TMA tiles of images.

Nothing is padded, transposed or copied to columns before; see images.cl. Float32 operands are split, as those
of products are, with the terms side by side at each position of an image.
"""

from dataclasses import asdict, fields
from functools import partial
from itertools import product as every
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.gemm.product import Arrays, Epilogue, Operand, Problem, blocks_in, terms_of
from polyarr.backends.opencl.nvidia.product_check import agree
from polyarr.backends.opencl.nvidia.split import DenseOperand, SplitOperands, passes, split_side_by_side
from polyarr.backends.opencl.nvidia.tensor_map import tensor_map
from polyarr.backends.opencl.nvidia.wgmma import (
    KINDS,
    MIN_COPY_SIZE,
    ROWS,
    STEP,
    TERMS_COSTS,
    VARIANT,
    WORKSPACE_FRACTION,
    Choice,
    Tile,
    choose,
    launch_of,
)
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, Shape
from polyarr.backends.opencl.runtime.variants import is_sound, is_sound_program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float32

PLACES = 64  # output positions of a tile, at most
NO_GROUP = 2**30  # stands for the outputs of a group where there are no groups
MIN_FILLED = 0.5  # fraction of the positions of tiles that must exist
MIN_SPLIT_SIZE = 900  # lower than that of products, whose split operands are neither shared by gradients nor saved
Pair = tuple[int, int]  # along height and width
Entry = tuple[int, int, int, int]


class Element(NamedTuple):
    """An element of a kernel: its offset from the output position, and its index in the filters."""

    apart: Pair
    number: int


class Layer(NamedTuple):
    """A product of receptive fields with filters or, if `sums`, their sum weighted by a gradient.

    Attributes:
        images: Number of images.
        channels: Channels of a kernel element that a group sees.
        outputs: Outputs of the filters, or channels of the gradient.
        lengths: Height and width of the images.
        windows: Output positions along each axis, `stride` apart.
        elements: Kernel elements.
        filters: Kernel elements that a stored filter has.
        turned: Whether filters are read along their other axis, as gradients of inputs do.
        start: Offset of the result, and the distances of its rows and of neighbors in a row: (start, row, place).
        target: Elements per image of the result.
        groups: Groups of the images' channels, and of the outputs.
        joined: Groups merged into each of these; filters are zero outside their own channels.
    """

    images: int
    channels: int
    outputs: int
    lengths: Pair
    windows: Pair
    stride: Pair
    elements: tuple[Element, ...]
    filters: int
    sums: bool = False
    turned: bool = False
    start: tuple[int, int, int] = (0, 0, 0)
    target: int = 0
    groups: int = 1
    joined: int = 1

    @property
    def each(self) -> int:
        """The outputs of a group."""
        return self.outputs // self.groups

    @property
    def wide(self) -> int:
        """The channels of the images."""
        return self.groups * self.channels


def places_of(lengths: Pair, stride: Pair) -> Pair:
    """Return the number of strides along each axis; lengths are multiples of the stride."""
    return lengths[0] // stride[0], lengths[1] // stride[1]


def tma_tile_of(layer: Layer) -> tuple[int, int, int]:
    """Return the height, width and images of a tile that covers the output in few tiles, of wide rows.

    For sums, tiles must not cross an edge, except behind the last image.
    """
    (high, wide), most = layer.windows, PLACES

    def count(box: tuple[int, int, int]) -> int:
        return prod(blocks_in(n, each) for n, each in zip((high, wide, layer.images), box, strict=True))

    if layer.sums:
        powers = [2**i for i in range(7)]
        found = [(h, w, most // (h * w)) for h, w in every(powers, powers) if h * w <= most]
        found = [box for box in found if high % box[0] == wide % box[1] == 0]
    else:
        found = [
            (h, w, max(1, min(layer.images, most // (h * w))))
            for h, w in every(range(1, min(high, most) + 1), range(1, min(wide, most) + 1)) if h * w <= most
        ]  # fmt: skip
    return min(found, key=lambda box: (count(box), -box[1], -box[0]))


def tma_tiles_of(layer: Layer, box: tuple[int, int, int]) -> list[Entry]:
    """Return the first column, row and image of each tile."""
    (high, wide), (h, w, images) = layer.windows, box
    starts = every(range(0, layer.images, images), range(0, high, h), range(0, wide, w))
    return [(at[2], at[1], at[0], 0) for at in starts]


# ---- the plan ----------------------------------------------------------------------------------------------------


def accepts(device: Device, dtype: np.dtype, layers: tuple[Layer, ...], epilogue: Epilogue) -> bool:
    """Return whether these kernels are the fastest for all parts of a result, and passed their check."""
    return device.plans[_accepts](dtype, layers, epilogue)


def _accepts(device: Device, dtype: np.dtype, layers: tuple[Layer, ...], epilogue: Epilogue) -> bool:
    if dtype not in KINDS or not is_sound(device, VARIANT):
        return False
    terms, operations, bytes_needed = terms_of(dtype, epilogue.precision), 0, 0
    for layer in layers:
        outputs = {(True, True): ROWS, (False, False): ALIGNMENT // 2}.get((layer.sums, layer.groups > 1), STEP)
        if layer.channels % STEP or layer.each % outputs:
            return False
        places = layer.images * prod(layer.windows)
        if places < MIN_FILLED * PLACES * len(tma_tiles_of(layer, tma_tile_of(layer))):
            return False
        operations += places * layer.channels * layer.outputs * len(layer.elements)
        bytes_needed = max(bytes_needed, 4 * terms * layer.images * prod(layer.lengths) * layer.wide)
    least = MIN_COPY_SIZE if terms == 1 else MIN_SPLIT_SIZE
    if operations < least**3 or (terms > 1 and bytes_needed > device.features.global_memory // WORKSPACE_FRACTION):
        return False
    return all(device.plans[_plan](dtype, layer, epilogue) is not None for layer in layers)


def run(
    device: Device, layer: Layer, out: Buffer, saved: Buffer | None, x: Buffer, y: Buffer, bias: Buffer | None,
    epilogue: Epilogue, names: tuple[str, str], known: SplitOperands,
) -> None:  # fmt: skip
    """Write a layer's result, or a part of it. x is images and y filters; for sums, the gradient and the images.

    All are dense. `names` are the keys of x and y in `known`, which holds split operands and receives these: an operand
    of several products, of a call or of its gradient, is split once.
    """
    launch, sums = device.plans[_plan](out.dtype, layer, epilogue)
    workspace = device.empty(sums) if sums else out
    launch(tuple(buf and buf.memory for buf in (x, y, bias, workspace, out, saved)), names, known)


def _plan(device: Device, dtype: np.dtype, layer: Layer, epilogue: Epilogue) -> Any:
    terms = terms_of(dtype, epilogue.precision)
    p = _problem(layer)
    costs = TERMS_COSTS[terms]
    if layer.groups > 1 and not layer.sums:  # a tile is of one group
        costs = {tile: cost for tile, cost in costs.items() if layer.each % tile.COLUMNS == 0}
    choice = choose(p._replace(k=passes(terms) * p.k), device.features.compute_units, costs)
    macros = _macros(dtype, layer, choice, epilogue)
    check = partial(_check, device, dtype, macros, epilogue)
    return _launch(device, dtype, layer, choice, macros) if is_sound_program(device, VARIANT, macros, check) else None


def _problem(layer: Layer) -> Problem:
    """Return the product's lengths, in whole tiles."""
    boxes, deep = len(tma_tiles_of(layer, tma_tile_of(layer))), len(layer.elements) * layer.channels
    m, n, k = (layer.outputs, deep, PLACES * boxes) if layer.sums else (PLACES * boxes, layer.outputs, deep)
    return Problem(1, 1, m, n, k, Operand(k, 1, 0, 0), Operand(k, 1, 0, 0))


def _macros(dtype: np.dtype, layer: Layer, choice: Choice, epilogue: Epilogue) -> dict[str, Any]:
    terms, along = terms_of(dtype, epilogue.precision), int(not layer.sums)
    flags = {"X_ALONG_K": along, "Y_ALONG_K": int(along and not layer.turned), "ALIGNED": 1}
    shares = {"SHARES": int(choice.shared > 0), "TERMS": terms, "IMAGES": 1 + layer.sums}
    return {**epilogue.macros(dtype), **asdict(choice.tile), "KIND": KINDS[dtype], **flags, **shares}


def _launch(device: Device, dtype: np.dtype, layer: Layer, choice: Choice, macros: dict[str, Any]) -> Any:
    terms, p, box = macros["TERMS"], _problem(layer), tma_tile_of(layer)
    stored = bfloat16 if terms > 1 else dtype
    kernel = device.build("matmul_wgmma", **macros).matmul_of_images
    maps = device.upload(np.concatenate(_maps(stored, dtype, layer, box, choice.tile, terms))).memory
    entries, first = _entries(layer, box, terms)
    places = device.upload(np.array(entries, np.int32)).memory
    images = _structure(layer, box, first, terms)
    fours = _fours(layer)
    multiply = launch_of(device, kernel, p, choice, terms, p.n, maps, places, images)

    def launch(arrays: Arrays, names: tuple[str, str], known: SplitOperands) -> None:
        x, y, *others = arrays
        special = None, None
        if terms > 1:
            left, right = DenseOperand(names[0], x, *fours[0]), DenseOperand(names[1], y, *fours[1])
            found = split_side_by_side(device, (left, right), terms, known)
            x, y = (each.terms.memory for each in found)
            special = tuple(each.flag.memory for each in found)
        multiply((x, y, *others), special, 0, 0)

    return launch, Spec((choice.groups, ROWS, choice.tile.COLUMNS), float32) if choice.shared else None


def _fours(layer: Layer) -> tuple[Pair, Pair]:
    """Return, for both operands, their elements and the distance between split terms, in units of 4."""
    images = layer.images * prod(layer.lengths) * layer.wide // 4, layer.wide // 4
    if layer.sums:
        return (layer.images * prod(layer.windows) * layer.outputs // 4, layer.outputs // 4), images
    filters = layer.channels * layer.filters * layer.outputs // 4
    return images, (filters, filters)


def _entries(layer: Layer, box: tuple[int, int, int], terms: int) -> tuple[list[Entry], int]:
    """Return the table of images.cl, and the index at which the entries along k begin."""
    boxes = tma_tiles_of(layer, box)
    blocks = [
        (_place(layer, element, terms, channel), (channel, element.number, 0, 0))
        if layer.turned else
        (_place(layer, element, terms, channel), (element.number * layer.channels + channel, 0, 0, 0))
        for element in layer.elements for channel in range(0, layer.channels, STEP)
    ]  # fmt: skip
    if layer.sums:
        return [there for there, _ in blocks] + boxes, len(blocks)
    boxes += [(0, 0, layer.images, 0)] * (len(boxes) % 2)  # beyond all images: a GEMM tile consists of two
    return boxes + [entry for block in blocks for entry in block], len(boxes)


def _place(layer: Layer, element: Element, terms: int, channel: int) -> Entry:
    """Return the coordinates of 64 channels of a kernel element in the tensor map of the images."""
    (height, row), (width, column) = (divmod(a, s) for a, s in zip(element.apart, layer.stride, strict=True))
    return column * terms * layer.wide + channel, width, row, height


def _maps(
    stored: np.dtype, dtype: np.dtype, layer: Layer, box: tuple[int, int, int], tile: Tile, terms: int
) -> list[np.ndarray]:
    own = (STEP, box[1], 1, box[0], box[2])
    images = _image_map(stored, layer.images, layer.lengths, layer.wide, layer.stride, terms, own)
    if layer.sums:
        x = _image_map(stored, layer.images, layer.windows, layer.outputs, (1, 1), terms, own)
        n = len(layer.elements) * layer.channels
        row = dtype.itemsize * n
        out = tensor_map(dtype, (n, layer.outputs, 1), (row, row * layer.outputs), (128 // dtype.itemsize, 64, 1))
        return [x, images, out, out]
    size, n = stored.itemsize, layer.outputs
    if layer.turned:  # filters (channels, elements, outputs)
        lengths = layer.each, layer.wide, layer.filters, terms
        steps, rows = (size * layer.filters * layer.each, size * layer.each, size * prod(lengths[:3])), STEP
    else:  # filters (outputs, elements, channels)
        deep = layer.filters * layer.channels
        lengths, rows = (deep, n, 1, terms), tile.COLUMNS
        steps = size * deep, size * deep * n, size * deep * n
    y = tensor_map(stored, lengths, steps, (STEP, rows, 1, 1))
    _, row, place = layer.start
    lengths = n, layer.windows[1], layer.windows[0], layer.images
    apart = tuple(dtype.itemsize * step for step in (place, row, layer.target))
    out = tensor_map(dtype, lengths, apart, (128 // dtype.itemsize, box[1], box[0], box[2]))
    return [images, y, out, out]


def _image_map(
    dtype: np.dtype, images: int, lengths: Pair, channels: int, stride: Pair, terms: int, box: Shape
) -> np.ndarray:
    high, wide = places_of(lengths, stride)
    step = stride[1] * terms * channels
    row = wide * step
    steps = tuple(dtype.itemsize * n for n in (step, row, stride[0] * row, high * stride[0] * row))
    return tensor_map(dtype, (step, wide, stride[0], high, images), steps, box)


def _structure(layer: Layer, box: tuple[int, int, int], first: int, terms: int) -> bytes:
    """Return the struct Images of images.cl."""
    n, c = layer.outputs, layer.channels
    start, row, place = layer.start
    if layer.sums:
        y_step = (terms * n, 0, 0, 0)
        apart = n, layer.wide
    elif layer.turned:
        y_step = 1, layer.filters * layer.each, layer.each, layer.wide * layer.filters * layer.each
        apart = layer.wide, 0
    else:
        y_step = layer.filters * c, 1, 0, n * layer.filters * c
        apart = layer.wide, 0
    longs = (start, place, row, layer.target, *y_step)
    high, wide = places_of(layer.lengths, layer.stride)
    one, joined = layer.groups * layer.joined == 1, layer.joined
    groups = (NO_GROUP, c, NO_GROUP, c) if one else (layer.each, c, layer.each // joined, c // joined)
    ints = (
        first, first if layer.sums else 0, 128 * prod(box), *apart, box[1], box[0], box[2], layer.windows[1],
        layer.windows[0], layer.images, layer.stride[1] * terms * layer.wide, wide, high, layer.stride[0], *groups, 0,
    )  # fmt: skip
    return np.array(longs, np.int64).tobytes() + np.array(ints, np.int32).tobytes()


# ---- the check of a program --------------------------------------------------------------------------------------


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Run a program on small images between canaries, and compare with NumPy; also with an infinity and a nan.

    Raises:
        BackendError: A result is wrong, or memory outside the result was written.
    """
    generator, sums, turned = np.random.default_rng(0), macros["IMAGES"] == 2, not macros["Y_ALONG_K"]
    layer = _checked_layer(sums, turned and not sums)
    n, c, filters = layer.outputs, layer.channels, layer.filters
    shapes = [(layer.images, *layer.lengths, c), (c, filters, n) if layer.turned else (n, filters, c), (n,)]
    shapes = [(layer.images, *layer.windows, n), *shapes[:1], *shapes[2:]] if sums else shapes
    x, y, _ = arrays = [generator.standard_normal(shape).astype(dtype) for shape in shapes]
    _compare(device, macros, epilogue, layer, arrays)
    if dtype == float32:
        x[0, 2, 3, 5], y[-1, 0, 7] = np.inf, np.nan
        _compare(device, macros, epilogue, layer, arrays)


def _checked_layer(sums: bool, turned: bool) -> Layer:
    """Return a layer with strides and dilation, some of whose elements lie outside the images."""
    stride, windows = ((1, 1), (9, 10)) if turned else ((1, 2), (8, 6))
    apart = [(a, b) for a in (-1, 1) for b in (-1, 0, 1)]
    elements = tuple(Element(each, 1 + number) for number, each in enumerate(apart)) if not sums else tuple(
        Element(each, number) for number, each in enumerate(apart)
    )
    start, target = (8, 12 * 264, 264), 40000
    return Layer(
        11, 128, 256 if sums else 264, (9, 12), windows, stride, elements, 6 if sums else 8, sums, turned,
        (0, 0, 0) if sums else start, 0 if sums else target,
    )  # fmt: skip


def _compare(
    device: Device, macros: dict[str, Any], epilogue: Epilogue, layer: Layer, arrays: list[np.ndarray]
) -> None:
    x, y, bias = arrays
    p, dtype = _problem(layer), x.dtype
    tile = Tile(*(macros[field.name] for field in fields(Tile)))
    tiles = blocks_in(p.m, ROWS) * blocks_in(p.n, tile.COLUMNS)
    choice = Choice(tile, tiles if macros["SHARES"] else 0, min(device.features.compute_units, tiles + 3), 2)
    out = np.zeros((p.m, p.n) if layer.sums else layer.images * layer.target, dtype)
    with device.guarded():
        launch, sums = _launch(device, dtype, layer, choice, macros)
        results = [device.upload(out) for _ in range(1 + epilogue.save)]
        workspace = device.empty(sums) if sums else results[0]
        given = [device.upload(a).memory for a in (x, y, bias)]
        given += [workspace.memory, results[0].memory, results[1].memory if epilogue.save else None]
        for _ in range(2):  # the counters of work-groups must be 0 again after the first launch
            launch(tuple(given), ("x", "y"), {})
        found = [device.download(result) for result in results]
    windows = _windows(layer, y if layer.sums else x)
    n = layer.outputs
    if layer.sums:
        agree(x.reshape(-1, n).T, windows, bias, epilogue, found[0], None)
        return
    numbers = [element.number for element in layer.elements]
    filters = y[:, numbers].transpose(1, 0, 2) if layer.turned else y[:, numbers].transpose(1, 2, 0)
    size, (start, row, place) = dtype.itemsize, layer.start
    steps = [size * step for step in (layer.target, row, place, 1)]
    written = []
    for result in found:
        own = np.lib.stride_tricks.as_strided(result[start:], (layer.images, *layer.windows, n), steps)
        written.append(own.reshape(-1, n).copy())
        own[...] = 0
        if result.any():
            raise BackendError("something else was written")
    agree(windows, filters.reshape(-1, n), bias, epilogue, written[0], written[1] if epilogue.save else None)


def _windows(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Return the receptive fields of images as rows of a matrix (im2col)."""
    most = max(abs(a) for element in layer.elements for a in element.apart) + max(layer.windows) * max(layer.stride)
    whole = np.pad(x, ((0, 0), (most, most), (most, most), (0, 0)))
    parts = []
    for element in layer.elements:
        rows, columns = (
            slice(most + a, most + a + n * s, s)
            for a, n, s in zip(element.apart, layer.windows, layer.stride, strict=True)
        )
        parts.append(whole[:, rows, columns])
    return np.stack(parts, 3).reshape(-1, len(parts) * layer.channels)
