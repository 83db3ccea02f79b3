"""Convolutions on the matrix units of NVIDIA's Hopper: products whose windows are copied as boxes of images.

Nothing is padded, turned or put side by side before: see kernels/images.cl. Float32 is multiplied in parts, as products
are, which lie side by side for each place of an image.
"""

from dataclasses import asdict, fields
from functools import partial
from itertools import product as every
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polyarr.backends.opencl.products.parts import DTYPES, WALKS, Known, Whole, divided_beside
from polyarr.backends.opencl.products.product import Arrays, Epilogue, Operand, Problem, blocks_in
from polyarr.backends.opencl.products.product_check import agree
from polyarr.backends.opencl.products.tensor_map import tensor_map
from polyarr.backends.opencl.products.wgmma import (
    KINDS,
    LEAST_COPIED,
    MOST_ROOM,
    PARTS_COSTS,
    ROWS,
    STEP,
    VARIANT,
    Choice,
    Tile,
    choose,
    launch_of,
    parts_of,
)
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import ALIGNMENT, Buffer, Shape
from polyarr.backends.opencl.runtime.variants import is_sound, is_sound_program
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, float32

PLACES = 64  # of a box at most
NO_GROUP = 2**30  # results of a group, where there is one
LEAST_FILLED = 0.5  # of the places of boxes, that must be there
LEAST_DIVIDED = 900  # as that of products, whose operands are not shared by gradients, nor saved
Pair = tuple[int, int]  # along height and width
Entry = tuple[int, int, int, int]


class Element(NamedTuple):
    """An element of a kernel: how far from a window's place it lies, and its number in the filters."""

    apart: Pair
    number: int


class Layer(NamedTuple):
    """A product of windows: of each with filters, or (sums) of all of them with a gradient.

    images     how many
    channels   of a window's elements, that a group sees
    outputs    of the filters, or of the gradient
    lengths    of the windows' images
    windows    how many along each axis; one is `stride` from the next
    elements   of a window
    filters    how many elements a filter has
    turned     whether filters are read along their other axis, as gradients of inputs do
    start      where the result begins, and how far apart neighbours of a row and rows are there: (start, row, place)
    target     elements of an image of the result
    groups     of the images' channels, and of the outputs
    joined     of how many groups each of these consists, whose filters are zeros beside their own channels
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
        """Outputs of a group."""
        return self.outputs // self.groups

    @property
    def wide(self) -> int:
        """Channels of the images."""
        return self.groups * self.channels


def places_of(lengths: Pair, stride: Pair) -> Pair:
    """Where every image is made of whole strides, how many there are."""
    return lengths[0] // stride[0], lengths[1] // stride[1]


def box_of(layer: Layer) -> tuple[int, int, int]:
    """The height, width and images of a box: so that there are few boxes, of wide rows.

    Sums are of whole boxes, which reach over no edge but that behind the last image.
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


def boxes_of(layer: Layer, box: tuple[int, int, int]) -> list[Entry]:
    """The first width, height and image of each box."""
    (high, wide), (h, w, images) = layer.windows, box
    starts = every(range(0, layer.images, images), range(0, high, h), range(0, wide, w))
    return [(at[2], at[1], at[0], 0) for at in starts]


# ---- the plan ----------------------------------------------------------------------------------------------------


def takes(device: Device, dtype: np.dtype, layers: tuple[Layer, ...], epilogue: Epilogue) -> bool:
    """True for the parts of a result that are computed here rather than by other kernels, if these are sound."""
    return device.plans[_takes](dtype, layers, epilogue)


def _takes(device: Device, dtype: np.dtype, layers: tuple[Layer, ...], epilogue: Epilogue) -> bool:
    if dtype not in KINDS or not is_sound(device, VARIANT):
        return False
    parts, operations, room = parts_of(dtype, epilogue), 0, 0
    for layer in layers:
        outputs = {(True, True): ROWS, (False, False): ALIGNMENT // 2}.get((layer.sums, layer.groups > 1), STEP)
        if layer.channels % STEP or layer.each % outputs:
            return False
        places = layer.images * prod(layer.windows)
        if places < LEAST_FILLED * PLACES * len(boxes_of(layer, box_of(layer))):
            return False
        operations += places * layer.channels * layer.outputs * len(layer.elements)
        room = 4 * parts * layer.images * prod(layer.lengths) * layer.wide
    least = LEAST_COPIED if parts == 1 else LEAST_DIVIDED
    if operations < least**3 or (parts > 1 and room > device.features.global_memory // MOST_ROOM):
        return False
    return all(device.plans[_plan](dtype, layer, epilogue) is not None for layer in layers)


def run(
    device: Device, layer: Layer, out: Buffer, saved: Buffer | None, x: Buffer, y: Buffer, bias: Buffer | None,
    epilogue: Epilogue, names: tuple[str, str], known: Known,
) -> None:  # fmt: skip
    """Write a layer's result, or a part of it. x is images and y filters; or, of sums, the gradient and the images.

    All are dense. names are those of x and y in known, which has operands in parts, and then these: where a call, and
    its gradient, have several products of the same operand, it is divided once.
    """
    launch, sums = device.plans[_plan](out.dtype, layer, epilogue)
    workspace = device.empty(sums) if sums else out
    launch(tuple(buf and buf.memory for buf in (x, y, bias, workspace, out, saved)), names, known)


def _plan(device: Device, dtype: np.dtype, layer: Layer, epilogue: Epilogue) -> Any:
    parts = parts_of(dtype, epilogue)
    p = _problem(layer)
    costs = PARTS_COSTS[parts]
    if layer.groups > 1 and not layer.sums:  # a tile is of one group
        costs = {tile: cost for tile, cost in costs.items() if layer.each % tile.COLUMNS == 0}
    choice = choose(p._replace(k=WALKS[parts] * p.k), device.features.compute_units, costs)
    macros = _macros(dtype, layer, choice, epilogue)
    check = partial(_check, device, dtype, macros, epilogue)
    return _launch(device, dtype, layer, choice, macros) if is_sound_program(device, VARIANT, macros, check) else None


def _problem(layer: Layer) -> Problem:
    """The product's lengths, in whole boxes."""
    boxes, deep = len(boxes_of(layer, box_of(layer))), len(layer.elements) * layer.channels
    m, n, k = (layer.outputs, deep, PLACES * boxes) if layer.sums else (PLACES * boxes, layer.outputs, deep)
    return Problem(1, 1, m, n, k, Operand(k, 1, 0, 0), Operand(k, 1, 0, 0))


def _macros(dtype: np.dtype, layer: Layer, choice: Choice, epilogue: Epilogue) -> dict[str, Any]:
    parts, along = parts_of(dtype, epilogue), int(not layer.sums)
    flags = {"X_ALONG_K": along, "Y_ALONG_K": int(along and not layer.turned), "ALIGNED": 1}
    kind = KINDS[DTYPES.get(parts, dtype)]
    shares = {"SHARES": int(choice.shared > 0), "WALKS": WALKS[parts], "IMAGES": 1 + layer.sums}
    return {**epilogue.macros(dtype), **asdict(choice.tile), "KIND": kind, **flags, **shares}


def _launch(device: Device, dtype: np.dtype, layer: Layer, choice: Choice, macros: dict[str, Any]) -> Any:
    walks, p, box = macros["WALKS"], _problem(layer), box_of(layer)
    parts = next(parts for parts, found in WALKS.items() if found == walks)
    stored = DTYPES.get(parts, dtype)
    kernel = device.build("matmul_wgmma", **macros).matmul_of_images
    maps = device.upload(np.concatenate(_maps(stored, dtype, layer, box, choice.tile, parts))).memory
    entries, first = _entries(layer, box, parts)
    places = device.upload(np.array(entries, np.int32)).memory
    images = _structure(layer, box, first, parts)
    fours = _fours(layer)
    multiply = launch_of(device, kernel, p, choice, walks, p.n, maps, places, images)

    def launch(arrays: Arrays, names: tuple[str, str], known: Known) -> None:
        x, y, *others = arrays
        told = None, None
        if parts > 1:
            left, right = Whole(names[0], x, *fours[0]), Whole(names[1], y, *fours[1])
            found = divided_beside(device, (left, right), parts, known)
            x, y = (each.parts.memory for each in found)
            told = tuple(each.told.memory for each in found)
        multiply((x, y, *others), told, 0, 0)

    return launch, Spec((choice.groups, ROWS, choice.tile.COLUMNS), float32) if choice.shared else None


def _fours(layer: Layer) -> tuple[Pair, Pair]:
    """Of both operands, how many numbers by four there are, and between the parts of one."""
    images = layer.images * prod(layer.lengths) * layer.wide // 4, layer.wide // 4
    if layer.sums:
        return (layer.images * prod(layer.windows) * layer.outputs // 4, layer.outputs // 4), images
    filters = layer.channels * layer.filters * layer.outputs // 4
    return images, (filters, filters)


def _entries(layer: Layer, box: tuple[int, int, int], parts: int) -> tuple[list[Entry], int]:
    """The table of places in kernels/images.cl, and where what is deep begins."""
    boxes = boxes_of(layer, box)
    blocks = [
        (_place(layer, element, parts, channel), (channel, element.number, 0, 0))
        if layer.turned else
        (_place(layer, element, parts, channel), (element.number * layer.channels + channel, 0, 0, 0))
        for element in layer.elements for channel in range(0, layer.channels, STEP)
    ]  # fmt: skip
    if layer.sums:
        return [there for there, _ in blocks] + boxes, len(blocks)
    boxes += [(0, 0, layer.images, 0)] * (len(boxes) % 2)  # behind all images: a tile has two
    return boxes + [entry for block in blocks for entry in block], len(boxes)


def _place(layer: Layer, element: Element, parts: int, channel: int) -> Entry:
    """Where 64 channels of an element are, in the map of the images."""
    (height, row), (width, column) = (divmod(a, s) for a, s in zip(element.apart, layer.stride, strict=True))
    return column * parts * layer.wide + channel, width, row, height


def _maps(
    stored: np.dtype, dtype: np.dtype, layer: Layer, box: tuple[int, int, int], tile: Tile, parts: int
) -> list[np.ndarray]:
    own = (STEP, box[1], 1, box[0], box[2])
    images = _image_map(stored, layer.images, layer.lengths, layer.wide, layer.stride, parts, own)
    if layer.sums:
        x = _image_map(stored, layer.images, layer.windows, layer.outputs, (1, 1), parts, own)
        n = len(layer.elements) * layer.channels
        row = dtype.itemsize * n
        out = tensor_map(dtype, (n, layer.outputs, 1), (row, row * layer.outputs), (128 // dtype.itemsize, 64, 1))
        return [x, images, out, out]
    size, n = stored.itemsize, layer.outputs
    if layer.turned:  # filters (channels, elements, outputs)
        lengths = layer.each, layer.wide, layer.filters, parts
        steps, rows = (size * layer.filters * layer.each, size * layer.each, size * prod(lengths[:3])), STEP
    else:  # filters (outputs, elements, channels)
        deep = layer.filters * layer.channels
        lengths, rows = (deep, n, 1, parts), tile.COLUMNS
        steps = size * deep, size * deep * n, size * deep * n
    y = tensor_map(stored, lengths, steps, (STEP, rows, 1, 1))
    _, row, place = layer.start
    lengths = n, layer.windows[1], layer.windows[0], layer.images
    steps = tuple(dtype.itemsize * step for step in (place, row, layer.target))
    out = tensor_map(dtype, lengths, steps, (128 // dtype.itemsize, box[1], box[0], box[2]))
    return [images, y, out, out]


def _image_map(
    dtype: np.dtype, images: int, lengths: Pair, channels: int, stride: Pair, parts: int, box: Shape
) -> np.ndarray:
    high, wide = places_of(lengths, stride)
    step = stride[1] * parts * channels
    row = wide * step
    steps = tuple(dtype.itemsize * n for n in (step, row, stride[0] * row, high * stride[0] * row))
    return tensor_map(dtype, (step, wide, stride[0], high, images), steps, box)


def _structure(layer: Layer, box: tuple[int, int, int], first: int, parts: int) -> bytes:
    """Images of kernels/images.cl."""
    n, c = layer.outputs, layer.channels
    start, row, place = layer.start
    if layer.sums:
        y_step = (parts * n, 0, 0, 0)
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
        layer.windows[0], layer.images, layer.stride[1] * parts * layer.wide, wide, high, layer.stride[0], *groups, 0,
    )  # fmt: skip
    return np.array(longs, np.int64).tobytes() + np.array(ints, np.int32).tobytes()


# ---- the check of a program --------------------------------------------------------------------------------------


def _check(device: Device, dtype: np.dtype, macros: dict[str, Any], epilogue: Epilogue) -> None:
    """Try a program on small images between canaries, beside NumPy in float64; with an infinity and a nan as well.

    Errors:  BackendError if a result is wrong, or something else was written to
    """
    generator, sums, turned = np.random.default_rng(0), macros["IMAGES"] == 2, not macros["Y_ALONG_K"]
    layer = _checked_layer(sums, turned and not sums)
    n, c, filters = layer.outputs, layer.channels, layer.filters
    shapes = [(layer.images, *layer.lengths, c), (c, filters, n) if layer.turned else (n, filters, c), (n,)]
    shapes = [(layer.images, *layer.windows, n), *shapes[:1], *shapes[2:]] if sums else shapes
    x, y, _ = arrays = [generator.standard_normal(shape).astype(dtype) for shape in shapes]
    _compare(device, macros, epilogue, layer, arrays)
    if dtype == float32 and epilogue.precision == "highest":
        x[0, 2, 3, 5], y[-1, 0, 7] = np.inf, np.nan
        _compare(device, macros, epilogue, layer, arrays)


def _checked_layer(sums: bool, turned: bool) -> Layer:
    """With strides, and elements that lie apart; some of them outside of the images."""
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
        for _ in range(2):  # words that work-groups wait by must be 0 again after the first time
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
    """The windows of images as rows of a matrix."""
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
