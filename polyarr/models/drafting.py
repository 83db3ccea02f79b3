"""Drafts for a Batch: while it has one text, several tokens of it are checked in one pass of the model."""

from collections.abc import Callable

import numpy as np

from polyarr import creation
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import sampled
from polyarr.models.prompts import Text, set_span
from polyarr.models.speculation import PENALTIES, Drafts, ModelDrafts, row_of, speculative_step
from polyarr.nn import KeyValueCache

_TRIES = 8  # passes over random tokens that must have the bits of passes over each token, for each span


class Drafting:
    """Drafts of the next tokens of one text at a time, and the passes that check them.

    Args:
        count: Number of tokens of a draft, at least 1.
        model: Smaller model of the same tokens, which drafts; None: n-grams of the text do.
    """

    def __init__(self, count: int, model: LanguageModel | None = None) -> None:
        self.count, self._model = count, model and model.copy().eval()
        self._drafter: Drafts | ModelDrafts | None = None
        self._text: Text | None = None
        self._step = speculative_step()
        self._logits = compile(_logits, donate="caches")
        self._choose = compile(_choose, constants="limits")

    def forget(self) -> None:
        """Forget the text: its next tokens come without `add`."""
        self._text = self._drafter = None

    def add(self, text: Text, tokens: list[int]) -> None:
        """Add tokens to a text, if it is the one that is drafted."""
        if text is self._text and self._drafter:
            for token in tokens:
                self._drafter.add(token)

    def next(self, text: Text, units: list[float], length: int, size: int) -> list[int]:
        """Return a draft of the tokens that follow those of a text, or [].

        Args:
            text: The text; one with penalties has no drafts.
            units: The random numbers of its next tokens; [] if they are not sampled.
            length: Largest number of tokens of the text.
            size: Number of tokens to sample from.
        """
        how = text.how
        if PENALTIES & how.numbers.keys():
            return []
        if text is not self._text:
            tokens = [*text.prompt.tolist(), *text.new]
            self._text, self._drafter = text, Drafts(tokens)
            if self._model is not None:
                given = self._step, how.numbers, text.bias, (how.top_k, size)
                self._drafter = ModelDrafts(self._model, tokens, length - len(tokens), *given)
        return self._drafter.next(self.count, units) if self._drafter else []

    def checked(
        self,
        text: Text,
        draft: list[int],
        model: LanguageModel,
        caches: list[KeyValueCache],
        units: list[float],
        size: int,
    ) -> Array:
        """Return the tokens (N, 1) that are sampled after the last token of a text and its draft, without reading them.

        Args:
            text: The text in the first row.
            draft: The draft.
            model: The model of the text.
            caches: Caches whose first row has the first `done` tokens of the text.
            units: Random numbers of the next N tokens, or [].
            size: Number of tokens to sample from.
        """
        logits = self._logits(model, row_of([text.new[-1], *draft]), caches, text.done)
        column, numbers = creation.asarray(np.array(units, np.float32)[:, None]) if units else None, {}
        for name, number in text.how.numbers.items():
            numbers[name] = creation.asarray(np.full((len(draft) + 1, 1), number, np.float32))
        return self._choose(logits, column, numbers, text.bias, (text.how.top_k, size, None))

    def check_equal(
        self,
        model: LanguageModel,
        caches: list[KeyValueCache],
        spans: list[int],
        logits_of: Callable[[int, int], Array],
    ) -> None:
        """Raise ValueError unless a pass over several tokens gives the bits of a pass over each, for all spans.

        Args:
            model: The model of texts.
            caches: Caches whose first row has random keys and values.
            spans: Numbers of positions that queries attend to.
            logits_of: Function of a token and a position that returns the logits (V,) of a step of the batch.
        """
        generator, count = np.random.default_rng(0), self.count + 1
        for span in spans:
            for _ in range(_TRIES if span > count else 0):
                position = int(generator.integers(0, span - count))
                tokens = generator.integers(0, model.config.vocab_size, count).tolist()
                set_span(caches, span)
                found = self._logits(model, row_of(tokens), caches, position).numpy()
                kept = [cache.both[:, 0, :, position : position + count].numpy() for cache in caches]
                wanted = [logits_of(token, position + i).numpy() for i, token in enumerate(tokens)]
                stored = [cache.both[:, 0, :, position : position + count].numpy() for cache in caches]
                pairs = [*zip(found, wanted, strict=True), *zip(kept, stored, strict=True)]
                if any(one.tobytes() != other.tobytes() for one, other in pairs):
                    why = "for which this device computes other bits than for single tokens"
                    raise ValueError(f"Batch: drafts is {self.count}, {why}; it must be smaller, or 0")


def _logits(model: LanguageModel, tokens: Array, caches: list[KeyValueCache], position: int) -> Array:
    """Return the logits (N, V) after each of tokens (1, N) of the first row."""
    return model.head(model.features(tokens, caches, position))[0]


def _choose(
    logits: Array,
    units: Array | None,
    numbers: dict[str, Array],
    bias: Array | None,
    limits: tuple[int | None, int, int | None],
) -> Array:
    """Return the tokens (N, 1) that are sampled from logits (N, V) by random numbers (N, 1)."""
    like = creation.zeros((logits.shape[0], 1), dtype=np.int32)
    return sampled(logits, like, {}, None if units is None else (units, 0), numbers, bias, limits)[0]
