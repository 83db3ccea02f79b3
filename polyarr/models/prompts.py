"""Texts of a Batch and their prompts: computed in chunks, short ones side by side, and reused where two begin alike."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import bias_of, uniform_numbers
from polyarr.models.sampling import ROW_MULTIPLE, Sampling
from polyarr.nn import KeyValueCache

CHUNK = 256  # tokens of prompts that are computed between two tokens of the other texts
SHORT = (16, 32, 64, 128)  # tokens to which chunks are filled up that may be computed side by side; a power of two
UNIT = 2.0**-24  # of random numbers
_MAX_PROGRAMS = 32  # compiled programs before a warning that there are many


class Kind(NamedTuple):
    """Kind of sampling: texts of one kind are sampled together, by one program, whose inputs are their settings.

    Attributes:
        names: The names of its scalar inputs.
        ranked: Number of the most likely tokens that are ranked, if there is a top_k; None: all, or none.
        has_bias: Whether there is a logit bias.
        has_mask: Whether each token has a mask.
        top: Number of the most likely tokens whose log-probabilities are computed; None: no log-probabilities.
    """

    names: tuple[str, ...]
    ranked: int | None
    has_bias: bool
    has_mask: bool
    top: int | None

    @classmethod
    def of(cls, how: Sampling, numbers: dict[str, float], has_mask: bool, top: int | None) -> "Kind":
        """Return the kind of a text: counts of tokens are rounded up, so that there are few kinds."""
        ranked = max(ROW_MULTIPLE, _power(int(numbers["top_k"]))) if "top_k" in numbers else None
        return cls(tuple(numbers), ranked, bool(how.logit_bias), has_mask, top and _power(top))


def _power(count: int) -> int:
    """Return the smallest power of two that is at least a count."""
    return 1 << (count - 1).bit_length()


class Text:
    """Text in a row: its prompt, its sampling, and how far both have come."""

    def __init__(
        self,
        prompt: np.ndarray,
        how: Sampling,
        seed: int | None,
        top: int | None,
        echo: bool,
        mask: np.ndarray | None,
        size: int,
    ) -> None:
        self.prompt, self.top, self.echo, self.mask = prompt, top, echo, mask
        self.how, self.new = how, list[int]()  # the sampling, and the tokens after the prompt
        self.numbers = how.inputs(size)
        self.kind = Kind.of(how, self.numbers, mask is not None, top)
        self.bias = bias_of(how.logit_bias, size)
        self.units: Iterator[float] | None = uniform_numbers(seed) if how.temperature else None
        self.done = 0  # tokens in the caches
        self.has_begun = False  # whether the prompt is complete, so that the device has a token of the text
        self.is_behind = False  # whether the device lacks the last token, which a draft had
        self._coming: list[float] = []  # random numbers that were drawn for drafts, and are of the next tokens

    def draw(self) -> int:
        """Return the next random number of the text, in units of UNIT; 0 if it needs none."""
        if self.units is None:
            return 0
        return int((self._coming.pop(0) if self._coming else next(self.units)) / UNIT)

    def peek(self, count: int) -> list[float]:
        """Return the next random numbers of the text; [] if it needs none."""
        self._coming += islice(self.units or (), max(0, count - len(self._coming)))
        return self._coming[:count]

    def take(self, count: int) -> None:
        """Go on to the random numbers after the next ones."""
        self.peek(count)
        del self._coming[:count]

    @property
    def end(self) -> int:
        """Number of the prompt's tokens after the next chunk; a prompt to be scored is one chunk."""
        return len(self.prompt) if self.echo else min(self.done + CHUNK, len(self.prompt))

    @property
    def is_ready(self) -> bool:
        """True if the device may compute the next token: the prompt is complete, and the token's mask is known."""
        return self.has_begun and (self.mask is not None or not self.kind.has_mask)

    def asked(self, logprobs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return log-probabilities as in Logprobs, with as many of the most likely tokens as were asked for."""
        chosen, *likely = logprobs
        return chosen, *(each[..., : self.top] for each in likely)

    def take_bias(self) -> Array | None:
        """Return the number that is added to each logit, (V,), None for zeros; a mask is for one token."""
        if self.mask is None:
            return self.bias
        bias = 0 if self.bias is None else self.bias.numpy()
        mask, self.mask = self.mask, None
        return creation.asarray(np.where(mask, bias, -np.inf).astype(np.float32))


class Pass(NamedTuple):
    """Chunks of prompts that the device computes in one pass of the model.

    Attributes:
        rows: The rows of the texts in the batch, in the order of the pass.
        features: The features of the chunks, (R, T, C), with those of filled up tokens and rows after them.
        counts: Number of tokens of each chunk.
        caches: Caches whose rows have the keys and values of the prompts so far.
        span: Number of positions in which these lie.
    """

    rows: list[int]
    features: Array
    counts: list[int]
    caches: list[KeyValueCache]
    span: int


class Prompts:
    """The prompts of a batch that are not complete, and those whose beginning later ones may reuse.

    A prompt that is one short chunk is always computed in a pass of as many rows as the device computes in about the
    time of one, beside others or filled up rows, so that its bits do not depend on how many prompts wait; and alone if
    the rows of such a pass differ in bits, which is measured at the first one of each size.

    Args:
        model: The model.
        caches: The caches of the batch.
        spans: The numbers of positions that may be attended to; the last is all.
        at_once: Number of tokens that the device computes in about the time of one, see `Backend.rows_at_once`.

    Attributes:
        waiting: The rows whose prompts are not complete, the first to come first.
        reused: Number of tokens of prompts that were copied rather than computed.
        prefixes: By row: the chunks of prompts that are in the caches.
    """

    def __init__(
        self, model: LanguageModel, caches: list[KeyValueCache], spans: Sequence[int], at_once: int = 1
    ) -> None:
        rows = caches[0].both.shape[1]
        self.waiting, self.reused, self.prefixes = list[int](), 0, [np.zeros(0, np.int32)] * rows
        self._model, self._caches, self._spans = model, caches, spans
        limit = min(CHUNK, at_once)
        self._beside = {size: count for size in SHORT if (count := min(limit // size, rows)) > 1}  # rows of a pass
        self._measured: set[int] = set()  # sizes of which all rows have the same bits
        self._alone = model.caches(1, spans[-1])
        self._several = model.caches(max(self._beside.values()), spans[0]) if self._beside else []
        self._chunk, self._copy = compile(_chunk, donate="caches"), compile(_copy, constants="span", donate="own")
        self._chunk.many = self._copy.many = _MAX_PROGRAMS

    def span(self, size: int) -> int:
        """Return the number of positions that are copied, or attended to, for `size` ones."""
        return next(one for one in self._spans if one >= size)

    def passes(self, texts: Sequence[Text | None]) -> Iterator[Pass]:
        """Compute the next chunks of the prompts that came first, up to CHUNK tokens.

        Args:
            texts: The texts of all rows.
        """
        spent = 0
        while self.waiting and (text := texts[self.waiting[0]]) is not None:
            text.done = text.done or self._reuse(text)
            size = self._size(text)
            several = self._count_beside(size) if _is_short(text) else 1
            if spent and spent + size * several > CHUNK:
                break
            spent += size * several
            chosen = ((row, one) for row in self.waiting if (one := texts[row]) and self._is_beside(text, one, several))
            rows, found = zip(*islice(chosen, several), strict=True)
            yield self._computed([*rows], [*found], several, size)

    def _count_beside(self, size: int) -> int:
        """Return the number of rows of a pass of short chunks of this size; 1 if their bits depend on the row."""
        if size in self._beside and size not in self._measured:
            tokens = np.random.default_rng(0).integers(0, self._model.config.vocab_size, size)
            features = self._features(np.tile(tokens, (self._beside[size], 1)), self._several, 0).numpy()
            if any(row.tobytes() != features[0].tobytes() for row in features):
                del self._beside[size]
            self._measured.add(size)
        return self._beside.get(size, 1)

    def _features(self, tokens: np.ndarray, caches: list[KeyValueCache], start: int) -> Array:
        """Return the features (R, T, C) of tokens (R, T) of prompts from a position on."""
        set_span(caches, self.span(start + tokens.shape[1]))
        return self._chunk(self._model, creation.asarray(tokens.astype(np.int32)), caches, start or None)

    def _is_beside(self, first: Text, text: Text, several: int) -> bool:
        """Return whether the next chunk of a text may be computed beside the first one's."""
        return text is first or (several > 1 and _is_short(text) and self._size(text) == self._size(first))

    def _computed(self, rows: list[int], texts: list[Text], several: int, size: int) -> Pass:
        """Compute the next chunk of each text, in a pass of as many rows and tokens."""
        start, counts = texts[0].done, [text.end - text.done for text in texts]
        tokens = np.zeros((several, size), np.int32)  # those after a chunk change nothing before them
        for number, (text, count) in enumerate(zip(texts, counts, strict=True)):
            tokens[number, :count] = text.prompt[start : start + count]
            text.done += count
        caches = self._alone if several == 1 else self._several
        features = self._features(tokens, caches, start)
        for row, text in zip(rows, texts, strict=True):
            if text.done == len(text.prompt):
                self.waiting.remove(row)
                self.prefixes[row] = text.prompt[: 0 if text.echo else _reusable(text)]
        return Pass(rows, features, counts, caches, self.span(start + size))

    def _size(self, text: Text) -> int:
        """Return the number of tokens to which the next chunk of a text is filled up."""
        return min(max(SHORT[0], 1 << (text.end - text.done - 1).bit_length()), self._spans[-1] - text.done)

    def _reuse(self, text: Text) -> int:
        """Copy the chunks with which a prompt and the prompt of a row begin; return the number of their tokens."""
        if not (most := 0 if text.echo else _reusable(text)):
            return 0
        sizes = [_common(text.prompt[:most], prefix) // CHUNK * CHUNK for prefix in self.prefixes]
        if size := max(sizes):
            self._copy(self._alone, self._caches, sizes.index(size), self.span(size))
            self.reused += size
        return size


def _is_short(text: Text) -> bool:
    """Return whether the prompt of a text is one chunk, and is not to be scored."""
    return not text.echo and not text.done and len(text.prompt) <= CHUNK


def _reusable(text: Text) -> int:
    """Return the number of tokens of a prompt that may be copied: whole chunks, but not its last token."""
    return (len(text.prompt) - 1) // CHUNK * CHUNK


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return the number of tokens with which both begin."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


def _chunk(model: LanguageModel, tokens: Array, caches: list[KeyValueCache], position: int | None) -> Array:
    """Return the features (R, T, C) of tokens (R, T) of prompts from a position on."""
    return model.features(tokens, caches, position)


def _copy(own: list[KeyValueCache], caches: list[KeyValueCache], row: int, span: int) -> None:
    """Copy the keys and values of the first `span` positions of a row into the caches of a prompt."""
    for new, cache in zip(own, caches, strict=True):
        new.both.rebind(ops.slice_update(new.both, row_of(cache, row, span), (0,) * 5, steps=(1,) * 5))


def set_span(caches: list[KeyValueCache], span: int) -> None:
    """Let queries attend to the first `span` positions of caches."""
    if caches[0].span != span:
        for cache in caches:
            cache.span = span


def row_of(cache: KeyValueCache, row: int, span: int) -> Array:
    """Return the keys and values of the first `span` positions of a row, (2, 1, H, span, D)."""
    two, _, heads, _, width = cache.both.shape
    return ops.slice(cache.both, (0, row, 0, 0, 0), steps=(1,) * 5, shape=(two, 1, heads, span, width))
