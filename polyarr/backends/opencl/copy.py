"""Copies between layouts. They move bits, so that every dtype works on every device and no nan changes."""

import numpy as np

from polyarr.backends.opencl.device import Buffer, Device
from polyarr.backends.opencl.elementwise import COPY, launch
from polyarr.core.spec import Spec

BITS = {size: np.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)}


def dense(device: Device, buf: Buffer) -> Buffer:
    """buf itself if it is row-major without gaps and starts at offset 0, else a copy that is."""
    return buf if buf.is_dense else duplicate(device, buf)


def duplicate(device: Device, buf: Buffer) -> Buffer:
    """A dense copy of buf."""
    bits = _as_bits(buf)
    return launch(device, COPY, Spec(bits.shape, bits.dtype), bits)._replace(dtype=buf.dtype)


def write(device: Device, target: Buffer, source: Buffer) -> None:
    """Copy source into target, a window of the same shape and dtype on other memory that no array holds yet."""
    bits = _as_bits(source)
    launch(device, COPY, Spec(bits.shape, bits.dtype), bits, target=_as_bits(target))


def _as_bits(buf: Buffer) -> Buffer:
    return buf._replace(dtype=BITS[buf.dtype.itemsize])
