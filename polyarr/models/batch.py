"""Batch: texts that one model writes side by side, and that come and go between tokens (continuous batching)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.core.spec import float32, int32
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import bias_of, cache_capacity, sampled, uniform_numbers
from polyarr.models.logprobs import Logprobs, prompt_logprobs
from polyarr.models.sampling import Sampling, history_of
from polyarr.nn import KeyValueCache

CHUNK = 256  # tokens of a prompt that are computed between two tokens of the other texts
_PROOFS = 4  # tokens of each row for which a part of the caches must give the bits of the whole
_MAX_KINDS = 32  # kinds of sampling whose compiled programs are kept
# Rows of the inputs of a step: the last token, or -1 if the device has it; its position; the random number, in units of
# _UNIT; the number of the text's kind of sampling.
_INPUTS = ("token", "position", "unit", "kind")
_UNIT = 2.0**-24


class Sampled(NamedTuple):
    """One more token of a text, or the log-probabilities of its prompt.

    Attributes:
        row: The row of the text.
        token: The token; None for a prompt.
        logprobs: Log-probabilities of the token, or of the prompt's tokens after the first one; None if they were not
            asked for.
    """

    row: int
    token: int | None
    logprobs: tuple[np.ndarray, ...] | None


class _Kind(NamedTuple):
    """Kind of sampling: texts of one kind are sampled together."""

    names: tuple[str, ...]
    top_k: int | None
    has_bias: bool
    top: int | None


class _Part(NamedTuple):
    """Part of the caches: the first rows, and the first positions of each."""

    rows: int
    span: int


class _Text:
    """Text in a row: its prompt, its sampling, and how far both have come."""

    def __init__(
        self, prompt: np.ndarray, how: Sampling, seed: int | None, top: int | None, echo: bool, size: int
    ) -> None:
        self.prompt, self.numbers, self.top, self.echo = prompt, how.numbers, top, echo
        self.kind = _Kind(tuple(how.numbers), how.top_k, bool(how.logit_bias), top)
        self.bias = bias_of(how.logit_bias, size)
        self.units: Iterator[float] | None = uniform_numbers(seed) if how.temperature else None
        self.caches: list[KeyValueCache] | None = None  # while the prompt is computed
        self.done = 0  # tokens in the caches
        self.last: int | None = None  # the last sampled token; None while the prompt is computed
        self.is_on_device = False  # whether the device has the last sampled token already

    def draw(self) -> int:
        """Return the next random number of the text, in units of _UNIT; 0 if it needs none."""
        return int(next(self.units) / _UNIT) if self.units else 0

    @property
    def end(self) -> int:
        """Number of the prompt's tokens after the next chunk; a prompt to be scored is one chunk."""
        return len(self.prompt) if self.echo else min(self.done + CHUNK, len(self.prompt))


class _Launched(NamedTuple):
    """Tokens of one kind of sampling that the device computes."""

    texts: dict[int, _Text]
    tokens: Array
    logprobs: Logprobs | None


class Batch:
    """Texts that one model writes side by side; each may begin and end at any token of the others.

    A step computes one more token of each text. The device computes the tokens of the next step while the caller uses
    those of this one. Prompts are computed in chunks, one chunk a step, so that a long one does not hold up the others.

    The tokens of a text, to the bit, do not depend on which other texts there are. So a step computes fewer than all
    rows, and reads fewer than all positions of the caches, only where the device gives the bits that all of them give,
    which is measured at the beginning.

    Args:
        model: A language model. The batch keeps a copy in evaluation mode.
        rows: Number of texts at a time.
        length: Largest number of tokens of a prompt and its text; None for the model's context.
        vocab_size: Sample only tokens below it; None: all.

    Examples:
        >>> import numpy as np
        >>> from polyarr.models import Batch, GPTModel, Sampling
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> batch = Batch(GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False}), rows=2)
        >>> row = batch.add(np.array([1, 2, 3]), Sampling(temperature=0))
        >>> [one.row == row for _ in range(2) for one in batch.step()]
        [True, True]
        >>> batch.remove(row)
    """

    def __init__(
        self, model: LanguageModel, rows: int, length: int | None = None, vocab_size: int | None = None
    ) -> None:
        self._model = model.copy().eval()
        own = self._model.config
        self.length = min(length or own.context_length, own.context_length)
        self._size = min(vocab_size or own.vocab_size, own.vocab_size)
        self._texts: list[_Text | None] = [None] * rows
        self._begin: list[int] = []  # rows whose prompts are not complete, the first to come first
        self._caches = self._model.caches(rows, cache_capacity(self._model, self.length, 0))
        self._state: dict[_Kind, _State] = {}
        self._last = creation.zeros((rows, 1), dtype=int32)  # the last token of each row
        self._launched: list[_Launched] = []
        self._logits = compile(_logits, constants="count", donate="caches")
        self._put = compile(_put, donate="caches")
        self._choose = compile(_choose, constants="limits", donate="history")
        self._put.many = self._choose.many = self._logits.many = _MAX_KINDS
        self._parts = self._equal_parts()

    @property
    def free(self) -> int:
        """Number of rows without a text."""
        return self._texts.count(None)

    def add(
        self,
        prompt: np.ndarray,
        how: Sampling,
        seed: int | None = None,
        logprobs: int | None = None,
        echo: bool = False,
    ) -> int:
        """Begin a text and return its row.

        Args:
            prompt: Tokens, integers of shape (T,), at least one and at most `length`.
            how: The parameters of the sampling.
            seed: Seed of the sampling; None: numbers are drawn from polyarr.random.
            logprobs: Number of the most likely tokens whose log-probabilities are computed, at least 1; None: none.
            echo: Whether the first result is of the prompt, with its log-probabilities.

        Raises:
            ValueError: There is no free row, or the prompt is empty or too long.
        """
        if not self.free:
            raise ValueError(f"Batch: all {len(self._texts)} rows have a text; remove one first")
        if not 0 < len(prompt) <= self.length:
            raise ValueError(f"Batch: the prompt has {len(prompt)} tokens; it must have 1 to {self.length}")
        row = self._texts.index(None)
        self._texts[row] = _Text(np.asarray(prompt, np.int32), how, seed, logprobs, echo, self._size)
        self._begin.append(row)
        return row

    def remove(self, row: int) -> None:
        """End the text of a row."""
        self._texts[row] = None
        if row in self._begin:
            self._begin.remove(row)

    def step(self) -> list[Sampled]:
        """Compute one chunk of a prompt, if there is one to compute, and one more token of each other text.

        A text whose prompt is complete gets its first token in the same step. If there are other texts, its second
        token comes two steps later. A text may have as many tokens as fit into `length` beside its prompt; after that,
        it must be removed.

        Returns:
            The results by row; [] if there are no texts, or no prompt is complete.

        Raises:
            ValueError: A text is as long as `length` allows.
        """
        now = self._launched or self._launch()
        self._launched = self._launch(now)
        begun = self._begun()  # before the device is waited for
        return sorted([*self._results(now), *begun], key=lambda one: (one.row, one.token is not None))

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def _begun(self) -> list[Sampled]:
        """Compute one chunk of the prompt that came first, and its first token after the last chunk."""
        if not self._begin or (text := self._texts[row := self._begin[0]]) is None:
            return []
        model, start, end = self._model, text.done, text.end
        if text.caches is None:
            text.caches = model.caches(1, cache_capacity(model, len(text.prompt), 0))
        tokens = creation.asarray(text.prompt[None, start:end])  # (1, T)
        features = model.features(tokens, text.caches, start or None)  # (1, T, C), eagerly: lengths differ
        text.done = end
        found = []
        if text.echo:
            scored = prompt_logprobs(model, features, tokens, text.top or 1, self._size) if text.top else None
            found.append(Sampled(row, None, scored and _row_of(scored, 0)))
        if end == len(text.prompt):
            self._put(self._caches, text.caches, row)
            self._begin.remove(row)
            text.caches = None
            found.append(self._first(row, text, model.head(features[:, -1:])[:, 0]))
        return found

    def _first(self, row: int, text: _Text, logits: Array) -> Sampled:
        """Return the first token of a text for logits (1, V), and put the text into the state of its kind."""
        prompt = creation.asarray(text.prompt[None])
        history = history_of(prompt, None, self._size, text.numbers)
        units = creation.asarray(np.array([[text.draw()]], np.int32)).astype(float32) * _UNIT
        numbers = {name: creation.asarray(np.array([[v]], np.float32)) for name, v in text.numbers.items()}
        limits = text.kind.top_k, self._size, text.kind.top
        bias = None if text.bias is None else text.bias[None]
        like = ops.astype(ops.zeros_like(logits[:, :1]), dtype=int32)
        token, history, logprobs = sampled(logits, like, history, (units, 0), numbers, bias, limits)
        if text.kind not in self._state:
            if len(self._state) >= _MAX_KINDS:
                self._forget()
            self._state[text.kind] = _State(len(self._texts), self._size, history, bias)
        self._state[text.kind].put(row, text.numbers, history, bias)
        text.last = int(token.numpy()[0, 0])
        return Sampled(row, text.last, logprobs and _row_of(logprobs, 0))

    def _forget(self) -> None:
        """Forget kinds of sampling that no text has."""
        used = Counter(text.kind for text in self._texts if text is not None)
        self._state = {kind: state for kind, state in self._state.items() if used[kind]}
        self._choose = compile(_choose, constants="limits", donate="history")
        self._choose.many = _MAX_KINDS

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def _equal_parts(self) -> list["_Part"]:
        """Return the parts of the caches that give the bits of the whole, by what they cost; the last is the whole.

        They are measured with random tokens in all rows, after random keys and values. How attention splits its work
        may depend on rows and positions together, so each pair is measured.
        """
        for number, cache in enumerate(self._caches):
            noise = ops.random_bits(number, 0, cache.both, shape=cache.both.shape)
            cache.both.rebind(ops.astype(ops.astype(noise >> 8, dtype=float32) * 2.0**-23 - 1, dtype=cache.both.dtype))
        rows, size = len(self._texts), self._caches[0].size
        counts = [2**power for power in range(rows.bit_length()) if 2**power < rows]
        spans = [CHUNK * 2**power for power in range(size.bit_length()) if CHUNK * 2**power < size]
        counts = [*filter(lambda count: self._is_equal(_Part(count, size)), counts), rows]
        spans = [*filter(lambda span: self._is_equal(_Part(rows, span)), spans), size]
        pairs = [_Part(count, span) for span in spans for count in counts]
        return [pair for pair in pairs if pair.rows == rows or pair.span == size or self._is_equal(pair)]

    def _is_equal(self, part: "_Part") -> bool:
        """Return whether a part of the caches gives the bits of the whole, for several tokens of each row."""
        rows, generator = len(self._texts), np.random.default_rng(0)
        whole = _Part(rows, self._caches[0].size)
        for _ in range(_PROOFS):
            inputs = np.zeros((len(_INPUTS), rows), np.int32)
            inputs[_INPUTS.index("token")] = generator.integers(0, self._size, rows)
            inputs[_INPUTS.index("position")] = generator.integers(0, min(part.span, self.length), rows)
            wanted, found = (self._part_logits(one, creation.asarray(inputs)).numpy() for one in (whole, part))
            if found[: part.rows].tobytes() != wanted[: part.rows].tobytes():
                return False
        return True

    def _part_logits(self, part: "_Part", inputs: Array) -> Array:
        """Return the logits (B, V) that a part of the caches gives, with zeros for the other rows."""
        if self._caches[0].span != part.span:
            for cache in self._caches:
                cache.span = part.span
        return self._logits(self._model, self._last, inputs, self._caches, part.rows)

    def _launch(self, before: Sequence[_Launched] = ()) -> list[_Launched]:
        """Begin to compute one more token of each text, after those that are being computed already."""
        texts = {row: text for row, text in enumerate(self._texts) if text is not None and text.last is not None}
        full = {row for row, text in texts.items() if text.done >= self.length}
        if lost := full - {row for one in before for row in one.texts}:
            raise ValueError(f"Batch: the text of row {min(lost)} has {self.length} tokens, which is all it may have")
        if not (texts := {row: text for row, text in texts.items() if row not in full}):
            return []
        kinds = sorted({text.kind for text in texts.values()}, key=repr)
        given = self._inputs(texts, kinds)
        furthest = given[_INPUTS.index("position")].max()
        part = next(one for one in self._parts if one.rows > max(texts) and one.span > furthest)
        inputs, found = creation.asarray(given), []
        logits = self._part_logits(part, inputs)  # (B, V)
        for number, kind in enumerate(kinds):
            state, limits = self._state[kind], (kind.top_k, self._size, kind.top)
            self._last, state.history, logprobs = self._choose(
                logits, self._last, inputs, number, state.history, state.inputs(), state.bias, limits
            )
            own = {row: text for row, text in texts.items() if text.kind == kind}
            found.append(_Launched(own, self._last, logprobs))
        return found

    def _inputs(self, texts: dict[int, _Text], kinds: list[_Kind]) -> np.ndarray:
        """Return the inputs of a step, int32 of shape (4, B); each text then has one more token in the caches."""
        inputs = np.zeros((len(_INPUTS), len(self._texts)), np.int32)
        inputs[_INPUTS.index("kind")] = -1
        for row, text in texts.items():
            token = -1 if text.is_on_device else text.last
            inputs[:, row] = token, text.done, text.draw(), kinds.index(text.kind)
            text.is_on_device = True
            text.done += 1
        return inputs

    def _results(self, launched: list[_Launched]) -> Iterator[Sampled]:
        """Yield the tokens that were computed, of the texts that are still there."""
        for texts, tokens, logprobs in launched:
            drawn, scored = tokens.numpy()[:, 0].tolist(), logprobs and [each.numpy() for each in logprobs]
            for row, text in texts.items():
                if self._texts[row] is text:
                    text.last = drawn[row]
                    yield Sampled(row, drawn[row], scored and tuple(each[row] for each in scored))


class _State:
    """Inputs of one kind of sampling for all rows: numbers, penalties' history and bias."""

    def __init__(self, rows: int, size: int, history: dict[str, Array], bias: Array | None) -> None:
        self._rows, self._numbers, self._inputs = rows, dict[str, np.ndarray](), dict[str, Array]()
        self.history = {name: ops.fill(0, seen, shape=(rows, size), dtype=seen.dtype) for name, seen in history.items()}
        self.bias = None if bias is None else ops.fill(0, bias, shape=(rows, size), dtype=bias.dtype)

    def put(self, row: int, numbers: dict[str, float], history: dict[str, Array], bias: Array | None) -> None:
        """Set the inputs of a row."""
        for name, value in numbers.items():
            held = self._numbers.setdefault(name, np.ones((self._rows, 1), np.float32))
            held[row] = value
        self._inputs = {}
        for name, seen in history.items():
            self.history[name] = _with_row(self.history[name], seen, row)
        if bias is not None:
            self.bias = _with_row(self.bias, bias, row)

    def inputs(self) -> dict[str, Array]:
        """Return the numbers, float32 of shape (B, 1)."""
        if not self._inputs:
            self._inputs = {name: creation.asarray(values.copy()) for name, values in self._numbers.items()}
        return self._inputs


def _with_row(x: Array, new: Array, row: int) -> Array:
    return ops.slice_update(x, new, (row, 0), steps=(1, 1))


def _row_of(logprobs: Logprobs, row: int) -> tuple[np.ndarray, ...]:
    return tuple(each.numpy()[row] for each in logprobs)


def _logits(model: LanguageModel, last: Array, inputs: Array, caches: list[KeyValueCache], count: int) -> Array:
    """Return the logits (B, V) of the next token in the first `count` rows, and zeros, for inputs of a step (4, B)."""
    rows, given = inputs.shape[1], inputs[_INPUTS.index("token")][:count]
    tokens = ops.where(given < 0, last[:count, 0], given)[:, None]
    logits = model.next_token_logits(tokens, caches, inputs[_INPUTS.index("position")][:count])  # (count, V)
    if count == rows:
        return logits
    return ops.concat([logits, ops.fill(0, logits, shape=(rows - count, logits.shape[1]), dtype=logits.dtype)])


def _put(caches: list[KeyValueCache], own: list[KeyValueCache], row: int) -> None:
    """Copy the keys and values of a prompt into a row."""
    for cache, new in zip(caches, own, strict=True):
        cache.both.rebind(ops.slice_update(cache.both, new.both, (0, row, 0, 0, 0), steps=(1, 1, 1, 1, 1)))


def _choose(
    logits: Array,
    last: Array,
    inputs: Array,
    number: int,
    history: dict[str, Array],
    numbers: dict[str, Any],
    bias: Array | None,
    limits: tuple[int | None, int, int | None],
) -> tuple[Array, dict[str, Array], Logprobs | None]:
    """Return the last tokens (B, 1), the histories after them and their log-probabilities, for logits (B, V).

    Rows of another kind of sampling than the given number keep their last token.
    """
    units = ops.astype(inputs[_INPUTS.index("unit")], dtype=float32)[:, None] * _UNIT
    tokens, history, logprobs = sampled(logits, last, history, (units, 0), numbers, bias, limits)
    return ops.where(inputs[_INPUTS.index("kind")][:, None] == number, tokens, last), history, logprobs
