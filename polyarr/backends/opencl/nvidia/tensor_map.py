"""Tensor maps (TMA descriptors): 128 bytes by which NVIDIA's Hopper copies tiles, encoded without the vendor's library.

The layout was learned by comparison with cuTensorMapEncodeTiled. Tiles arrive in rows of 128 bytes whose 16-byte pieces
are permuted (128-byte swizzle); elements outside the tensor arrive as zeros.
"""

import numpy as np

from polyarr.backends.opencl.gemm.product import Copies, Problem
from polyarr.backends.opencl.runtime.layout import ALIGNMENT
from polyarr.core.spec import bfloat16, float16, float32

WORDS = 16  # of 64 bits; the first is the tensor's address
CODES = {float16: 6, float32: 7, bfloat16: 10}
PLAIN = 0x46000  # zero fill, 128-byte swizzle, 128-byte L2 promotion
END = 0x400
LARGEST_STEP = 2**36  # bytes


def tensor_map(
    dtype: np.dtype, lengths: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...], address: int = 0
) -> np.ndarray:
    """Return the descriptor of a tensor of 2 to 5 axes, the contiguous axis first; steps of the others in bytes.

    Steps and the address are multiples of ALIGNMENT, and rows of a box 128 bytes. The address may be filled in later.
    """
    words = [0] * WORDS
    words[0] = address
    words[1] = PLAIN | CODES[dtype] << 7 | (len(lengths) - 1) << 4
    for axis, step in enumerate(steps, 1):
        words[1 + axis // 2] |= step // ALIGNMENT << 32 * (axis % 2)
    for axis, length in enumerate(lengths):
        words[4 + axis // 2] |= (length - 1) << 32 * (axis % 2)
    words[6] |= (box[0] - 1) << 56
    for axis, length in enumerate(box[1:]):
        words[7] |= (length - 1) << 8 * axis
    words[8], words[9] = int(np.prod(box)) * dtype.itemsize, END
    return np.array(words, np.uint64)


def to_copy(p: Problem, aligned: tuple[bool, bool]) -> Copies:
    """Return which operands cannot be read 16 bytes at a time: all strides but one must be multiples of 16 bytes."""
    return Copies(*(
        not each or op.step <= 0
        or any(s < 0 or s % (ALIGNMENT // 2) or 2 * s >= LARGEST_STEP for s in (op.step, op.outer, op.inner))
        for op, each in zip((p.x, p.y), aligned, strict=True)
    ))  # fmt: skip
