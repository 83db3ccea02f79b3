"""Speculative decoding: several tokens of a text in one pass of its model, drafted from the text itself (n-grams)."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from polyarr import creation
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import Sample, bias_of, cache_capacity, sampled, uniform_numbers
from polyarr.models.sampling import Sampling
from polyarr.nn import KeyValueCache

PENALTIES = {"repetition_penalty", "frequency_penalty", "presence_penalty"}
NGRAMS = (3, 2)  # lengths of the n-grams that are looked up, the longest first


class Drafts:
    """Drafts of the next tokens of a text: those that followed its last n-gram where that occurred before.

    Examples:
        >>> from polyarr.models.speculation import Drafts
        >>> drafts = Drafts([5, 1, 2, 3, 4, 1, 2])
        >>> drafts.next(6)
        [3, 4, 1, 2, 3, 4]
        >>> drafts.add(9)
        >>> drafts.next(3)
        []

    Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding
    """

    def __init__(self, tokens: list[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # where the last n-gram before the end of the text ends
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Add a token to the text."""
        end = len(self._tokens)
        for n in NGRAMS:  # the n-grams that end before this token are followed by something now
            if n <= end:
                self._ends[tuple(self._tokens[end - n :])] = end
        self._tokens.append(token)

    def next(self, count: int) -> list[int]:
        """Return `count` tokens that may come next; [] if the text gives no hint. A draft may go on with its start."""
        for n in NGRAMS:
            if end := self._ends.get(tuple(self._tokens[-n:])):
                period = self._tokens[end:]
                return [period[i % len(period)] for i in range(count)]
        return []


def can_speculate(model: LanguageModel, prompts: Sequence[np.ndarray], count: int, **sampling: Any) -> bool:
    """Return whether texts can be speculated: only one, within the context, without penalties of earlier tokens."""
    is_within = len(prompts) == 1 and len(prompts[0]) + count <= model.config.context_length
    return is_within and not PENALTIES & Sampling(**sampling).numbers.keys()


def speculated(
    model: LanguageModel,
    prompt: np.ndarray,
    max_new_tokens: int,
    drafts: int,
    *,
    seed: int | None = None,
    vocab_size: int | None = None,
    step: Compiled | None = None,
    **sampling: Any,
) -> Iterator[Sample]:
    """Yield the new tokens of one text, as `sample` does, with fewer passes of the model where the text repeats.

    A pass computes the logits after the last token and after each token of a draft. At each position a token is
    sampled as it is without drafts, from the same random number; the tokens up to the first one that differs from the
    draft are the text. So the text is that of `sample`, unless the logits of several positions, which a device may
    round otherwise than those of one, differ in bits that decide between two tokens.

    Args:
        model: A language model in evaluation mode.
        prompt: Tokens, integers of shape (T,).
        max_new_tokens: Number of tokens to sample. With the prompt they fit into the context of the model.
        drafts: Number of tokens of a draft, at least 1.
        seed: Seed of the sampling; None: numbers are drawn from polyarr.random.
        vocab_size: Sample only tokens below it; None: all.
        step: Compiled function from `speculative_step`, to share it among texts; None: a new one.
        **sampling: Parameters of Sampling, without penalties.

    Yields:
        Samples with an array (1, 1), without log-probabilities.
    """
    how, step = Sampling(**sampling), step or speculative_step()
    size = min(vocab_size or model.config.vocab_size, model.config.vocab_size)
    limits, bias = (how.top_k, size), bias_of(how.logit_bias, size)
    units = uniform_numbers(seed) if how.temperature else None
    ready: list[float] = []  # random numbers of the next tokens
    text, length, end = Drafts(prompt.tolist()), len(prompt), len(prompt) + max_new_tokens
    caches = model.caches(1, cache_capacity(model, length, max_new_tokens))
    new, position = prompt.astype(np.int32).tolist(), None
    while length < end:
        if position is not None:
            # A draft must not go beyond the caches. All have one length, so that there is one program for them.
            new = [new[-1], *(text.next(drafts) if position + drafts + 1 <= caches[0].size else [])]
        count = 1 if position is None else len(new)
        ready += islice(units, max(0, count - len(ready))) if units else []
        column = creation.asarray(np.array(ready[:count], np.float32)[:, None]) if units else None
        tokens, where = creation.asarray(np.array([new], np.int32)), (caches, position)
        run = _chosen if position is None else step  # eagerly for the prompt: lengths differ
        found = run(model, tokens, *where, column, how.numbers, bias, limits).numpy().tolist()
        accepted = 1
        while accepted < count and new[accepted] == found[accepted - 1]:
            accepted += 1
        position = length if position is None else position + accepted
        ready, new = ready[accepted:], found[: min(accepted, end - length)]
        length += len(new)
        for token in new:
            text.add(token)
            yield Sample(creation.asarray(np.array([[token]], np.int32)), None)


def speculative_step() -> Compiled:
    """Return a compiled function that samples a token after each of several positions."""
    return compile(_chosen, constants="limits", donate="caches")


def _chosen(
    model: LanguageModel,
    tokens: Array,
    caches: list[KeyValueCache],
    position: int | None,
    units: Array | None,
    numbers: dict[str, float],
    bias: Array | None,
    limits: tuple[int | None, int],
) -> Array:
    """Return the tokens sampled after each of tokens (1, T), or, without a position, after the last one.

    `units` are the uniform numbers (N, 1) for the N tokens (N,); other arguments are as in `next_token`.
    """
    x = model.features(tokens, caches, position)[0]  # (T, C)
    x = x[-1:] if position is None else x
    logits = model.head(x[None])[0]  # (N, V)
    draw = None if units is None else (units, 0)
    return sampled(logits, tokens[0, -x.shape[0] :][:, None], {}, draw, numbers, bias, (*limits, None))[0][:, 0]
