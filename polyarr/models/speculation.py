"""Speculative decoding: several tokens of a text in one pass of its model, drafted from it or by a small model."""

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Any

import numpy as np

from polyarr import creation, ops
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

    def next(self, count: int, units: Sequence[float] = ()) -> list[int]:
        """Return `count` tokens that may come next; [] if the text gives no hint. A draft may go on with its start.

        Args:
            count: Number of tokens.
            units: Uniform random numbers from which the next tokens will be sampled; () if they are not sampled.
        """
        for n in NGRAMS:
            if end := self._ends.get(tuple(self._tokens[-n:])):
                period = self._tokens[end:]
                return [period[i % len(period)] for i in range(count)]
        return []


class ModelDrafts:
    """Drafts of the next tokens of a text by a smaller model, sampled from the random numbers of the text's own tokens.

    Args:
        model: The smaller language model, in evaluation mode.
        tokens: The text so far, at least one token.
        count: Largest number of tokens that will be added to it.
        step: Compiled function from `speculative_step`.
        numbers: Parameters of the sampling, as in Sampling.numbers.
        bias: Numbers (V,) that are added to logits, or None.
        limits: top_k, and the number of tokens to sample from.

    Source: Leviathan, Kalman, Matias 2022, arXiv:2211.17192 (shared random numbers in place of rejection sampling)
    """

    def __init__(
        self,
        model: LanguageModel,
        tokens: list[int],
        count: int,
        step: Compiled[..., Any],
        numbers: dict[str, float],
        bias: Array | None,
        limits: tuple[int | None, int],
    ) -> None:
        self._model, self._text, self._prompt = model, list(tokens), list(tokens)
        self._step, self._sampling = step, (numbers, bias, limits)
        self._caches = model.caches(1, cache_capacity(model, len(tokens), count))

    def add(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)

    def next(self, count: int, units: Sequence[float] = ()) -> list[int]:
        """Return `count` tokens that may come next; [] beyond the context of the model, or before a token was added."""
        end = len(self._text)
        if end + count > self._caches[0].size or end == len(self._prompt):
            return []
        if self._prompt:
            self._model.features(row_of(self._prompt), self._caches, None)  # eagerly: lengths differ
            self._prompt = []
        # The last token but one is computed again: the caches lack it if the whole last draft was right.
        tokens, position, column = row_of(self._text[-2:]), end - 2, [0.0, *units[:1]]
        found = []
        for i in range(count):
            given = creation.asarray(np.array(column, np.float32)[:, None]) if units else None
            token = self._step(self._model, tokens, self._caches, position, given, *self._sampling)[-1:]
            found.append(token)
            tokens, position, column = token[None], end + i, list(units[i + 1 : i + 2])
        return ops.concat(found, axis=0).numpy().tolist()


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
    step: Compiled[..., Any] | None = None,
    draft_model: LanguageModel | None = None,
    **sampling: Any,
) -> Iterator[Sample]:
    """Yield the new tokens of one text, as `sample` does, with fewer passes of the model where drafts are right.

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
        draft_model: Smaller model of the same tokens, in evaluation mode, which drafts; None: n-grams of the text do.
        **sampling: Parameters of Sampling, without penalties.

    Yields:
        Samples with an array (1, 1), without log-probabilities.
    """
    how, step = Sampling(**sampling), step or speculative_step()
    size = min(vocab_size or model.config.vocab_size, model.config.vocab_size)
    limits, bias = (how.top_k, size), bias_of(how.logit_bias, size)
    units = uniform_numbers(seed) if how.temperature else None
    ready: list[float] = []  # random numbers of the next tokens
    length, end = len(prompt), len(prompt) + max_new_tokens
    text: Drafts | ModelDrafts = Drafts(prompt.tolist())
    if draft_model is not None:
        text = ModelDrafts(draft_model, prompt.tolist(), max_new_tokens, step, how.numbers, bias, limits)
    caches = model.caches(1, cache_capacity(model, length, max_new_tokens))
    new, position = prompt.astype(np.int32).tolist(), None
    while length < end:
        if position is not None:
            ready += islice(units, max(0, drafts - len(ready))) if units else []
            # A draft must not go beyond the caches. All have one length, so that there is one program for them.
            new = [new[-1], *(text.next(drafts, ready) if position + drafts + 1 <= caches[0].size else [])]
        count = 1 if position is None else len(new)
        ready += islice(units, max(0, count - len(ready))) if units else []
        column = creation.asarray(np.array(ready[:count], np.float32)[:, None]) if units else None
        tokens, where = row_of(new), (caches, position)
        run = _chosen if position is None else step  # eagerly for the prompt: lengths differ
        found = run(model, tokens, *where, column, how.numbers, bias, limits).numpy().tolist()
        new = accepted(new[1:count], found)
        position = length if position is None else position + len(new)
        ready, new = ready[len(new) :], new[: end - length]
        length += len(new)
        for token in new:
            text.add(token)
            yield Sample(creation.asarray(np.array([[token]], np.int32)), None)


def accepted(draft: Sequence[int], found: list[int]) -> list[int]:
    """Return the new tokens of a text: those sampled up to the first one that differs from the draft."""
    right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(draft, found, strict=False)))
    return found[: right + 1]


def row_of(tokens: list[int]) -> Array:
    """Return tokens as an array (1, T)."""
    return creation.asarray(np.array([tokens], np.int32))


def speculative_step() -> Compiled[..., Any]:
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
