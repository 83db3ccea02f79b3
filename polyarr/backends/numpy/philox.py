"""Philox4x32-10 on NumPy: the definition of polyarr's random bits, written out."""

from typing import Any

import numpy as np

from polyarr.core.spec import Spec

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = np.uint64(0xFFFFFFFF)


def philox(counter: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Four words per block out of four counter words (uint64 arrays below 2^32) and two key words."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b, c, d = (
            (right >> np.uint64(32)) ^ b ^ np.uint64(k0),
            right & LOW,
            (left >> np.uint64(32)) ^ d ^ np.uint64(k1),
            left & LOW,
        )
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return [a, b, c, d]


def random_bits(out: Spec, key: int, counter: int, like: Any, *, shape: tuple[int, ...], xp: Any) -> np.ndarray:
    """The bits that ops.random_bits defines."""
    block = xp.arange((out.size + 3) // 4, dtype=np.uint64)
    words = [block & LOW, block >> np.uint64(32)]
    words += [xp.full_like(block, counter & 0xFFFFFFFF), xp.full_like(block, counter >> 32 & 0xFFFFFFFF)]
    found = philox(words, (key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF))
    return xp.stack(found, axis=-1).reshape(-1)[: out.size].astype(np.uint32).reshape(shape)
