"""The geometry of receptive fields, as spatial.cl takes it, and the sizes of launches over images."""

from math import gcd, prod
from typing import Any

import numpy as np

from polyarr.backends.opencl.convolution.conv_params import ConvParams, Padding
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.layout import Shape
from polyarr.backends.opencl.runtime.plans import LaunchPlan
from polyarr.backends.opencl.runtime.program import types, vector_types

AXES = 3
MIN_ELEMENTS = 1024  # elements that are worth a work-item
MAX_CHANNELS = 32  # channels per work-item where compilers vectorize the loop over them


def geometry(
    x: Shape, out: Shape, kernel: Shape, conv: ConvParams, wide: int, counted: Padding | None = None
) -> bytes:
    """Return the struct Geometry of spatial.cl for x (images, *lengths, channels) and the positions of out."""
    stride, padding, dilation, _ = conv
    before, counts = tuple(pads[0] for pads in padding), counted or padding
    every = tuple(step // gcd(step, apart) for step, apart in zip(stride, dilation, strict=True))
    axes = [_three(x[1:-1], 1), _three(out[1:-1], 1), _three(kernel, 1), _three(stride, 1), _three(before, 0)]
    axes += [_three(dilation, 1), _three(every, 1), *(_three(tuple(p[i] for p in counts), 0) for i in (0, 1))]
    images_and_blocks, unused = np.array((x[0], x[-1] // wide), np.int64), bytes(4)
    return images_and_blocks.tobytes() + np.array(axes, np.int32).tobytes() + unused


def _three(numbers: Shape, missing: int) -> Shape:
    return (missing,) * (AXES - len(numbers)) + tuple(numbers)


def channels(device: Device, dtype: np.dtype, count: int) -> tuple[int, dict[str, Any]]:
    """Return the number of channels per work-item, and the macros of spatial.cl."""
    moved = device.geometry.vector(dtype.itemsize)
    if moved > 1:
        wide = moved if count % moved == 0 else 1
    else:
        wide = max(n for n in range(1, MAX_CHANNELS + 1) if count % n == 0)
    words = vector_types(dtype, wide) if moved > 1 else {}
    vector = {"VECTOR": wide} if moved > 1 else {}
    return wide, {**types(dtype), **words, **vector, "WIDE": wide, "MOVES_WORDS": int(moved > 1)}


def plan(device: Device, kernel: Any, shape: Shape, wide: int, taps: int) -> LaunchPlan:
    """Plan a kernel over each position of an array; its scalar argument is the number of positions per work-item."""
    work, group, each = device.geometry.items(prod(shape) // wide, max(1, MIN_ELEMENTS // (wide * taps)))
    return LaunchPlan(kernel, work, group, (each,))
