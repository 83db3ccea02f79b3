"""Windows of text for training and evaluation, as integers on the host."""

from collections.abc import Iterator

import numpy as np

from polyarr.text import split_text


def check_length(source: str, text: str, context: int) -> None:
    """Raise ValueError unless a text is long enough to train on and to validate with."""
    if not _is_enough(len(text), context):
        least = next(n for n in range(context, 2 * context + 100) if _is_enough(n, context))
        raise ValueError(
            f"{source}: {len(text)} characters; with a context of {context} it must have at least {least}"
        )


def _is_enough(length: int, context: int) -> bool:
    train, validation = split_text("x" * min(length, 2 * context + 100))
    return len(train) > context and len(validation) > 1


def random_windows(tokens: np.ndarray, length: int, count: int, seed: int, draw: int) -> np.ndarray:
    """(count, length + 1) windows at random places: inputs are all but the last column, targets all but the first.

    A pure function of (seed, draw), so that a run that is taken up again sees what it would have seen.
    """
    starts = np.random.default_rng((seed, draw)).integers(0, len(tokens) - length, count)
    return tokens[starts[:, None] + np.arange(length + 1)]


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
        yield tokens[starts[i : i + batch_size, None] + np.arange(length + 1)]
