"""Windows of tokens for training and evaluation, as integers on the host."""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from polyarr.text import Corpus

AHEAD = 2  # steps whose windows are there before they are asked for
_ROUNDS = 6
T = TypeVar("T")


def check_length(source: str, corpus: Corpus, context: int) -> None:
    """Raise ValueError unless a corpus is long enough to train on and to validate with."""
    train, validation = len(corpus.train), len(corpus.validation)
    if train <= context or validation < 2:
        raise ValueError(
            f"{source}: {train} {corpus.tokenizer.unit} to train on and {validation} to validate with; "
            f"with a context of {context} there must be at least {context + 1} and 2"
        )


def shuffled_windows(tokens: np.ndarray, length: int, count: int, seed: int, draw: int) -> np.ndarray:
    """(count, length + 1) int32 windows: inputs are all but the last column, targets all but the first.

    The tokens are cut into windows side by side, and these are shuffled: each is drawn once before the tokens are cut
    elsewhere and shuffled again. A pure function of (seed, draw) that keeps no list of windows: a run that is taken up
    again sees what it would have seen, at once and however large the corpus. Several processes draw together what one
    would draw alone if process r of n takes the draws r, n + r, 2n + r and so on.
    """
    windows = max((len(tokens) - 1) // length - 1, 1)  # one less than there may be, so that cuts have room to move
    room = len(tokens) - 1 - windows * length
    numbers = np.arange(draw * count, (draw + 1) * count)
    starts = np.empty(count, np.int64)
    for epoch in np.unique(numbers // windows):
        now = numbers // windows == epoch
        *keys, shift = np.random.default_rng((seed, int(epoch))).integers(2**63, size=_ROUNDS + 1, dtype=np.uint64)
        starts[now] = _shuffled(numbers[now] % windows, windows, keys) * length + int(shift) % (room + 1)
    return tokens[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def _shuffled(numbers: np.ndarray, count: int, keys: list[np.uint64]) -> np.ndarray:
    """Where a permutation of range(count), which the keys choose, puts numbers.

    A Feistel network permutes the numbers of so many bits; what falls out of the range is permuted until it is inside.
    """
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    low = (np.uint64(1) << half) - np.uint64(1)
    found, outside = numbers.astype(np.uint64), np.ones(len(numbers), bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & low
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & low)
        found[outside] = left << half | right
        outside = found >= count
    return found.astype(np.int64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """64 bits each of which depends on all: the end of SplitMix64 (Steele, Lea, Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@contextlib.contextmanager
def prefetched(make: Callable[[int], T], first: int) -> Iterator[Callable[[], T]]:
    """Gives a function that returns make(first), then make(first + 1) and so on, which a thread makes beforehand.

    The thread ends with the block, at the latest when it has made what it is making; what it raises is raised there.
    """
    pool = ThreadPoolExecutor(1, "polyarr-windows")
    steps = itertools.count(first)
    made = deque(pool.submit(make, next(steps)) for _ in range(AHEAD))

    def following() -> T:
        made.append(pool.submit(make, next(steps)))
        return made.popleft().result()

    try:
        yield following
    finally:
        pool.shutdown(cancel_futures=True)


def evaluation_windows(
    tokens: np.ndarray, length: int, batch_size: int, limit: int | None = None
) -> Iterator[np.ndarray]:
    """Batches (B, length + 1) of windows that do not overlap, all of them or `limit` at equal distances.

    A text shorter than that gives one shorter window.
    """
    length = min(length, len(tokens) - 1)
    starts = np.arange(0, len(tokens) - length, length)
    if limit is not None and limit < len(starts):
        starts = starts[np.linspace(0, len(starts) - 1, limit).round().astype(np.int64)]
    for i in range(0, len(starts), batch_size):
        yield tokens[starts[i : i + batch_size, None] + np.arange(length + 1)].astype(np.int32)
