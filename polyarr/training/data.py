"""Windows of tokens for training and evaluation, as integers on the host."""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from polyarr.text import Corpus
from polyarr.text.tokens import IGNORED, Records, Tokens, windows_of

PREFETCHED_STEPS = 2  # number of steps whose windows are prefetched
_ROUNDS = 6
T = TypeVar("T")


def check_length(source: str, corpus: Corpus, length: int) -> None:
    """Raise ValueError unless a corpus is long enough for training and validation.

    Args:
        source: Name of the corpus in the error.
        corpus: The corpus.
        length: Length of the training windows, in tokens.

    Raises:
        ValueError: There are too few tokens.

    Examples:
        >>> from polyarr.text import Corpus
        >>> from polyarr.training import check_length
        >>> check_length("rhyme", Corpus.of_text("to be or not to be"), 8)
    """
    if isinstance(corpus.train, Records):
        try:
            corpus.fitting(length)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        return
    train, validation = len(corpus.train), len(corpus.validation)
    if train <= length or validation < 2:
        raise ValueError(
            f"{source}: {train} {corpus.tokenizer.unit} to train on and {validation} to validate with; "
            f"with windows of {length} there must be at least {length + 1} and 2"
        )


def shuffled_windows(tokens: Tokens, length: int, count: int, seed: int, draw: int) -> np.ndarray:
    """Return random windows of a text, (count, length + 1) int32: inputs with targets that are shifted by one token.

    The tokens are cut into adjacent windows, which are shuffled. When each window was drawn once, the tokens are cut at
    other positions and shuffled again. The result is a pure function of (seed, draw) that stores no list of windows, so
    a resumed run continues with the windows that it would have drawn, at once and for a corpus of any size. Process r
    of n draws r, n + r, 2n + r and so on; then n processes together draw the windows that one process would draw.

    Args:
        tokens: The tokens. Of Records, each is a window, which is padded to the length or cut.
        length: Number of inputs per window.
        count: Number of windows.
        seed: Seed of the shuffling.
        draw: Number of the draw, from 0.

    Returns:
        Windows (count, length + 1): inputs are all but the last column, targets all but the first. Of Records, inputs
        and targets (count, 2, length); of PackedRecords, also where the records begin (count, 3, length).

    Examples:
        >>> import numpy as np
        >>> from polyarr.training import shuffled_windows
        >>> shuffled_windows(np.arange(100), length=4, count=2, seed=0, draw=0).shape
        (2, 5)
    """
    if isinstance(tokens, Records):
        windows, distance, room = len(tokens), 1, 0
    else:
        windows = max((len(tokens) - 1) // length - 1, 1)  # one less than would fit, so that the cuts can shift
        distance, room = length, len(tokens) - 1 - windows * length
    first, end = draw * count, (draw + 1) * count
    starts = np.empty(count, np.int64)
    for epoch in range(first // windows, -(-end // windows)):
        now = np.arange(max(first, epoch * windows), min(end, (epoch + 1) * windows))
        *keys, shift = np.random.default_rng((seed, epoch)).integers(2**63, size=_ROUNDS + 1, dtype=np.uint64)
        places = _shuffled(now % windows, windows, keys) * distance + int(shift) % (room + 1)
        starts[now[0] - first : now[-1] + 1 - first] = places
    return windows_of(tokens, starts, length + 1)


def _shuffled(numbers: np.ndarray, count: int, keys: list[np.uint64]) -> np.ndarray:
    """Return where a permutation of range(count), chosen by the keys, puts the numbers.

    A Feistel network permutes all numbers of a number of bits; a result outside the range is permuted again until it is
    inside.
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
    """Return 64 bits that each depend on all bits: the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@contextlib.contextmanager
def prefetched(make: Callable[[int], T], first: int) -> Iterator[Callable[[], T]]:
    """Yield a function that returns make(first), then make(first + 1) and so on, which a thread computes ahead.

    The thread ends with the block, once its current call of `make` has ended. Errors of `make` are raised by the
    function.
    """
    pool = ThreadPoolExecutor(1, "polyarr-windows")
    steps = itertools.count(first)
    made = deque(pool.submit(make, next(steps)) for _ in range(PREFETCHED_STEPS))

    def next_result() -> T:
        made.append(pool.submit(make, next(steps)))
        return made.popleft().result()

    try:
        yield next_result
    finally:
        pool.shutdown(cancel_futures=True)


def evaluation_windows(
    tokens: Tokens, length: int, batch_size: int, limit: int | None = None
) -> Iterator[np.ndarray]:
    """Yield batches of windows that do not overlap, (B, length + 1) int32: all of them, or `limit` at equal distances.

    Args:
        tokens: The tokens. If there are fewer than length + 1, they are one shorter window. Of Records, each is a
            window, and the batches are inputs and targets (B, 2, length).
        length: Number of inputs per window.
        batch_size: Largest number of windows per batch.
        limit: Number of windows in total; None: all.

    Examples:
        >>> import numpy as np
        >>> from polyarr.training import evaluation_windows
        >>> [windows.shape for windows in evaluation_windows(np.arange(100), length=10, batch_size=4)]
        [(4, 11), (4, 11), (1, 11)]
    """
    if isinstance(tokens, Records):
        starts = np.arange(len(tokens))
    else:
        length = min(length, len(tokens) - 1)
        starts = np.arange(0, len(tokens) - length, length)
    if limit is not None and limit < len(starts):
        starts = starts[np.linspace(0, len(starts) - 1, limit).round().astype(np.int64)]
    for i in range(0, len(starts), batch_size):
        yield windows_of(tokens, starts[i : i + batch_size], length + 1)


def predicted(windows: np.ndarray) -> int:
    """Return the number of tokens of a batch that are predicted: all but the first of each window, or the learned."""
    return windows[:, 1:].size if windows.ndim == 2 else int((windows[:, 1] != IGNORED).sum())
