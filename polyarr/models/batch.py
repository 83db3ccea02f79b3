"""Batch: texts that one model writes side by side, and that come and go between tokens (continuous batching)."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array, read_later
from polyarr.core.spec import float32, int32
from polyarr.models.decoder import LanguageModel
from polyarr.models.drafting import Drafting, accepted, set_span
from polyarr.models.generation import bias_of, cache_capacity, sampled, uniform_numbers
from polyarr.models.logprobs import Logprobs, prompt_logprobs
from polyarr.models.sampling import Sampling, history_of
from polyarr.nn import KeyValueCache

CHUNK = 256  # tokens of prompts that are computed between two tokens of the other texts
_LEAST = 16  # tokens of the shortest chunk that is computed; chunks are filled up to a power of two
# Steps for which a part of the caches must give the bits of the whole: as many as give _PROOFS logits, within limits.
_PROOFS, _LEAST_STEPS, _MOST_STEPS = 2**16, 4, 32
_MAX_KINDS = 32  # kinds of sampling whose compiled programs are kept
# Rows of the inputs of a step: the position of the last token; the random number, in units of _UNIT; the number of the
# text's kind of sampling.
_INPUTS = ("position", "unit", "kind")
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
    has_mask: bool
    top: int | None


class _Part(NamedTuple):
    """Part of the caches: the first rows, and the first positions of each."""

    rows: int
    span: int


class _Text:
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
        self.prompt, self.numbers, self.top, self.echo, self.mask = prompt, how.numbers, top, echo, mask
        self.how, self.new = how, list[int]()  # the sampling, and the tokens after the prompt
        self.kind = _Kind(tuple(how.numbers), how.top_k, bool(how.logit_bias), mask is not None, top)
        self.bias = bias_of(how.logit_bias, size)
        self.units: Iterator[float] | None = uniform_numbers(seed) if how.temperature else None
        self.done = 0  # tokens in the caches
        self.has_begun = False  # whether the prompt is complete, so that the device has a token of the text
        self.is_behind = False  # whether the device lacks the last token, which a draft had
        self._coming: list[float] = []  # random numbers that were drawn for drafts, and are of the next tokens

    def draw(self) -> int:
        """Return the next random number of the text, in units of _UNIT; 0 if it needs none."""
        return int(self.take(1)[0] / _UNIT) if self.units else 0

    def peek(self, count: int) -> list[float]:
        """Return the next random numbers of the text; [] if it needs none."""
        self._coming += islice(self.units or (), max(0, count - len(self._coming)))
        return self._coming[:count]

    def take(self, count: int) -> list[float]:
        """Return the next random numbers of the text, and go on to those after them."""
        found = self.peek(count)
        self._coming = self._coming[count:]
        return found

    @property
    def end(self) -> int:
        """Number of the prompt's tokens after the next chunk; a prompt to be scored is one chunk."""
        return len(self.prompt) if self.echo else min(self.done + CHUNK, len(self.prompt))

    @property
    def is_ready(self) -> bool:
        """True if the device may compute the next token: the prompt is complete, and the token's mask is known."""
        return self.has_begun and (self.mask is not None or not self.kind.has_mask)

    def take_bias(self) -> Array | None:
        """Return the number that is added to each logit, (V,), None for zeros; a mask is for one token."""
        if self.mask is None:
            return self.bias
        bias = 0 if self.bias is None else self.bias.numpy()
        mask, self.mask = self.mask, None
        return creation.asarray(np.where(mask, bias, -np.inf).astype(np.float32))


class _Launched(NamedTuple):
    """Results of some rows that the device computes: tokens, or the log-probabilities of a prompt."""

    texts: dict[int, _Text]
    tokens: Callable[[], np.ndarray] | None
    logprobs: Logprobs | None
    is_alone: bool = False  # whether the arrays have one row, not one for each row of the batch
    draft: Sequence[int] = ()  # the draft, if the arrays have a row for each token after it


class Batch:
    """Texts that one model writes side by side; each may begin and end at any token of the others.

    A step computes one more token of each text. The device computes the tokens of the next step while the caller uses
    those of this one. Prompts are computed in chunks, so that a long one does not hold up the others. Whole chunks with
    which the prompt of a row begins, too, are copied from its caches, also after its text has ended (prefix reuse).

    The tokens of a text, to the bit, do not depend on which other texts there are. So a step computes fewer than all
    rows, and reads fewer than all positions of the caches, only where the device gives the bits that all of them give,
    which is measured at the beginning.

    Args:
        model: A language model. The batch keeps a copy in evaluation mode.
        rows: Number of texts at a time.
        length: Largest number of tokens of a prompt and its text; None for the model's context.
        vocab_size: Sample only tokens below it; None: all.
        drafts: Number of tokens that are drafted and checked in one pass while there is only one text, in the first
            row, without penalties, log-probabilities or masks; 0 for none. The tokens stay the same, to the bit.
        draft_model: Smaller model of the same tokens, which drafts; None: n-grams of the text do.

    Raises:
        ValueError: The device computes several tokens to other bits than single ones.

    Attributes:
        reused: Number of tokens of prompts that were copied rather than computed.

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
        self,
        model: LanguageModel,
        rows: int,
        length: int | None = None,
        vocab_size: int | None = None,
        drafts: int = 0,
        draft_model: LanguageModel | None = None,
    ) -> None:
        self._model = model.copy().eval()
        own = self._model.config
        self.length = min(length or own.context_length, own.context_length)
        self._size = min(vocab_size or own.vocab_size, own.vocab_size)
        self._texts: list[_Text | None] = [None] * rows
        self.reused, self._prefixes = 0, [np.zeros(0, np.int32)] * rows  # chunks of prompts that are in the caches
        self._begin: list[int] = []  # rows whose prompts are not complete, the first to come first
        size = cache_capacity(self._model, self.length, 0)
        self._spans = [*(CHUNK * 2**power for power in range(size.bit_length()) if CHUNK * 2**power < size), size]
        self._caches = self._model.caches(rows, size)
        self._own = self._model.caches(1, size)  # of the prompt that is being computed
        self._state: dict[_Kind, _State] = {}
        self._last = creation.zeros((rows, 1), dtype=int32)  # the last token of each row
        self._launched: list[_Launched] = []
        self._logits = compile(_logits, constants="count", donate="caches")
        self._chunk = compile(_chunk, donate="caches")
        self._put = compile(_put, constants="span", donate="caches")
        self._copy = compile(_copy, constants="span", donate="own")
        self._choose, self._first = _samplers()
        self._put.many = self._copy.many = self._logits.many = self._chunk.many = _MAX_KINDS
        self._parts = self._equal_parts()
        self._held: list[Sampled] = []  # tokens of a right draft, which come one at a time
        self._drafting = Drafting(drafts, draft_model) if drafts else None
        if self._drafting:
            self._drafting.check_equal(self._model, self._caches, self._spans, self._logits_of_first)

    @property
    def free(self) -> int:
        """Number of rows without a text."""
        return self._texts.count(None)

    @property
    def beginning(self) -> int:
        """Number of texts whose prompts are not complete."""
        return len(self._begin)

    def add(
        self,
        prompt: np.ndarray,
        how: Sampling,
        seed: int | None = None,
        logprobs: int | None = None,
        echo: bool = False,
        mask: np.ndarray | None = None,
    ) -> int:
        """Begin a text and return its row.

        Args:
            prompt: Tokens, integers of shape (T,), at least one and at most `length`.
            how: The parameters of the sampling.
            seed: Seed of the sampling; None: numbers are drawn from polyarr.random.
            logprobs: Number of the most likely tokens whose log-probabilities are computed, at least 1; None: none.
            echo: Whether the first result is of the prompt, with its log-probabilities.
            mask: The tokens that the first one may be, bool (V,), at least one; then each later token waits for
                `restrict`. None: all tokens, always.

        Raises:
            ValueError: There is no free row, or the prompt is empty or too long.
        """
        if not self.free:
            raise ValueError(f"Batch: all {len(self._texts)} rows have a text; remove one first")
        if not 0 < len(prompt) <= self.length:
            raise ValueError(f"Batch: the prompt has {len(prompt)} tokens; it must have 1 to {self.length}")
        row = self._texts.index(None)
        self._texts[row] = _Text(np.asarray(prompt, np.int32), how, seed, logprobs, echo, mask, self._size)
        self._begin.append(row)
        return row

    def restrict(self, row: int, mask: np.ndarray) -> None:
        """Set which tokens the next token of a text may be.

        Args:
            row: The row of the text, which began with a mask.
            mask: The tokens, bool (V,), at least one.
        """
        if (text := self._texts[row]) is not None:
            text.mask = mask

    def remove(self, row: int) -> None:
        """End the text of a row."""
        self._texts[row] = None
        self._held = [one for one in self._held if one.row != row]
        if row in self._begin:
            self._begin.remove(row)

    def forget(self) -> None:
        """Forget the prompts whose texts have ended, whose caches later texts would reuse."""
        for row, text in enumerate(self._texts):
            if text is None:
                self._prefixes[row] = np.zeros(0, np.int32)

    def step(self) -> list[Sampled]:
        """Compute up to CHUNK tokens of prompts, and one more token of each text whose prompt is complete.

        Where other texts are being written, the first tokens of a text come a step later, and a text with masks has a
        token at every second step. A text may have as many tokens as fit into `length` beside its prompt; after that,
        it must be removed.

        Returns:
            The results by row; [] if there are no texts, or no prompt is complete.

        Raises:
            ValueError: A text is as long as `length` allows.
        """
        if self._held:
            return [self._held.pop(0)]
        now = self._launched or self._begun() or self._launch()
        found = self._results(now) if self._drafting else None  # which the next draft follows
        self._launched = self._launch(now) + self._begun()  # the device goes on while this step is read
        found = self._results(now) if found is None else found
        return sorted(found, key=lambda one: (one.row, one.token is not None))

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def _begun(self) -> list[_Launched]:
        """Compute the next chunks of the prompts that came first, and the first tokens of those that are complete."""
        found, spent = [], 0
        while self._begin and (text := self._texts[row := self._begin[0]]) is not None:
            text.done = text.done or self._reuse(text)
            start, count = text.done, text.end - text.done
            size = min(max(_LEAST, 1 << (count - 1).bit_length()), self._own[0].size - start)
            if spent and spent + size > CHUNK:
                break
            spent += size
            tokens = np.zeros((1, size), np.int32)  # those after the chunk change nothing before them
            tokens[0, :count] = text.prompt[start : text.end]
            span = self._span(start + size)
            set_span(self._own, span)
            features = self._chunk(self._model, creation.asarray(tokens), self._own, start or None)  # (1, T, C)
            text.done += count
            if text.echo:
                found.append(_Launched({row: text}, None, self._scored(text, features[:, :count]), is_alone=True))
            if text.done == len(text.prompt):
                self._begin.remove(row)
                self._put(self._caches, self._own, row, span)
                self._prefixes[row] = text.prompt[: 0 if text.echo else _reusable(text)]
                found.append(self._first_token(row, text, features, count - 1))
        return found

    def _reuse(self, text: _Text) -> int:
        """Copy the chunks with which a prompt and the prompt of a row begin; return the number of their tokens."""
        if not (most := 0 if text.echo else _reusable(text)):
            return 0
        sizes = [_common(text.prompt[:most], prefix) // CHUNK * CHUNK for prefix in self._prefixes]
        if size := max(sizes):
            self._copy(self._own, self._caches, sizes.index(size), self._span(size))
            self.reused += size
        return size

    def _span(self, size: int) -> int:
        """Return the number of positions that are copied, or attended to, for `size` ones."""
        return next(one for one in self._spans if one >= size)

    def _scored(self, text: _Text, features: Array) -> Logprobs | None:
        """Return the log-probabilities of the tokens of a prompt, from its features (1, T, C)."""
        tokens = creation.asarray(text.prompt[None])
        return prompt_logprobs(self._model, features, tokens, text.top or 1, self._size) if text.top else None

    def _first_token(self, row: int, text: _Text, features: Array, at: int) -> _Launched:
        """Compute the first token of a text from features (1, T, C), and put the text into the state of its kind."""
        history = history_of(creation.asarray(text.prompt[None]), None, self._size, text.numbers)
        bias = None if (found := text.take_bias()) is None else found[None]
        limits = text.kind.top_k, self._size, text.kind.top
        token, history, logprobs = self._first(
            self._model, features, at, text.draw() * _UNIT, history, text.numbers, bias, limits
        )
        if text.kind not in self._state:
            if len(self._state) >= _MAX_KINDS:
                self._forget()
            self._state[text.kind] = _State(len(self._texts), self._size, history, bias)
        self._state[text.kind].put(row, text.numbers, history, bias)
        self._last, text.has_begun = _with_row(self._last, token, row), True
        return _Launched({row: text}, read_later(token), logprobs, is_alone=True)

    def _forget(self) -> None:
        """Forget kinds of sampling that no text has."""
        used = Counter(text.kind for text in self._texts if text is not None)
        self._state = {kind: state for kind, state in self._state.items() if used[kind]}
        self._choose, self._first = _samplers()

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def _equal_parts(self) -> list["_Part"]:
        """Return the parts of the caches that give the bits of the whole, by what they cost; the last is the whole.

        They are measured with random tokens in all rows, after random keys and values. How attention splits its work
        may depend on rows and positions together, so each pair is measured.
        """
        for number, cache in enumerate(self._caches):
            noise = ops.random_bits(number, 0, cache.both, shape=cache.both.shape)
            cache.both.rebind(ops.astype(ops.astype(noise >> 8, dtype=float32) * 2.0**-23 - 1, dtype=cache.both.dtype))
        rows, (*spans, size) = len(self._texts), self._spans
        counts = [2**power for power in range(rows.bit_length()) if 2**power < rows]
        counts = [*filter(lambda count: self._is_equal(_Part(count, size)), counts), rows]
        spans = [*filter(lambda span: self._is_equal(_Part(rows, span)), spans), size]
        pairs = [_Part(count, span) for span in spans for count in counts]
        return [pair for pair in pairs if pair.rows == rows or pair.span == size or self._is_equal(pair)]

    def _is_equal(self, part: "_Part") -> bool:
        """Return whether a part of the caches gives the bits of the whole, for several tokens of each row."""
        rows, generator = len(self._texts), np.random.default_rng(0)
        whole = _Part(rows, self._caches[0].size)
        steps = min(max(_LEAST_STEPS, _PROOFS // (part.rows * self._size)), _MOST_STEPS)
        for _ in range(steps):
            self._last = creation.asarray(generator.integers(0, self._size, (rows, 1)).astype(np.int32))
            inputs = np.zeros((len(_INPUTS), rows), np.int32)
            inputs[_INPUTS.index("position")] = generator.integers(0, min(part.span, self.length), rows)
            wanted, found = (self._part_logits(one, creation.asarray(inputs)).numpy() for one in (whole, part))
            if found[: part.rows].tobytes() != wanted[: part.rows].tobytes():
                return False
        return True

    def _part_logits(self, part: "_Part", inputs: Array) -> Array:
        """Return the logits (B, V) that a part of the caches gives, with zeros for the other rows."""
        set_span(self._caches, part.span)
        return self._logits(self._model, self._last, inputs, self._caches, part.rows)

    def _logits_of_first(self, token: int, position: int) -> Array:
        """Return the logits (V,) after a token of the first row at a position."""
        rows = len(self._texts)
        self._last = creation.asarray(np.full((rows, 1), token, np.int32))
        inputs = np.zeros((len(_INPUTS), rows), np.int32)
        inputs[_INPUTS.index("position")] = position
        return self._part_logits(self._parts[-1], creation.asarray(inputs))[0]

    def _launch(self, before: Sequence[_Launched] = ()) -> list[_Launched]:
        """Begin to compute one more token of each text, after those that are being computed already."""
        if self._drafting and (drafted := self._drafted(self._drafting)):
            return [drafted]
        texts = {row: text for row, text in enumerate(self._texts) if text is not None and text.is_ready}
        full = {row for row, text in texts.items() if text.done >= self.length}
        if lost := full - {row for one in before for row in one.texts}:
            raise ValueError(f"Batch: the text of row {min(lost)} has {self.length} tokens, which is all it may have")
        if not (texts := {row: text for row, text in texts.items() if row not in full}):
            return []
        kinds = sorted({text.kind for text in texts.values()}, key=repr)
        for row, text in texts.items():
            if text.is_behind:
                self._last = _with_row(self._last, creation.asarray(np.array([text.new[-1:]], np.int32)), row)
                text.is_behind = False
        given = self._inputs(texts, kinds)
        furthest = max(text.done for text in texts.values()) - 1
        part = next(one for one in self._parts if one.rows > max(texts) and one.span > furthest)
        inputs, found = creation.asarray(given), []
        logits = self._part_logits(part, inputs)  # (B, V)
        for number, kind in enumerate(kinds):
            own = {row: text for row, text in texts.items() if text.kind == kind}
            state, limits = self._state[kind], (kind.top_k, self._size, kind.top)
            if kind.has_mask:
                state.bias = self._masked_biases(own)
            self._last, state.history, logprobs = self._choose(
                logits, self._last, inputs, number, state.history, state.inputs(), state.bias, limits
            )
            found.append(_Launched(own, read_later(self._last), logprobs))
        return found

    def _drafted(self, drafting: Drafting) -> _Launched | None:
        """Begin to check a draft of the next tokens; None without a draft."""
        text, count = self._texts[0], drafting.count + 1
        if text is None or not text.has_begun or self.free < len(self._texts) - 1:
            drafting.forget()
            return None
        if text.top is not None or text.kind.has_mask or text.done + count > self.length:
            return None
        units = text.peek(count)
        if not (draft := drafting.next(text, units[:-1], self.length, self._size)):
            return None
        set_span(self._caches, self._span(text.done + count))
        found = drafting.checked(text, draft, self._model, self._caches, units, self._size)
        text.is_behind = True
        return _Launched({0: text}, read_later(found), None, is_alone=True, draft=draft)

    def _inputs(self, texts: dict[int, _Text], kinds: list[_Kind]) -> np.ndarray:
        """Return the inputs of a step, int32 of shape (3, B); each text then has one more token in the caches."""
        # Each row gets a key and a value: one that waits for its mask where those of its next token will be, one
        # without a text after the chunks that may be reused.
        last, inputs = self._spans[-1] - 1, []
        for row, (text, prefix) in enumerate(zip(self._texts, self._prefixes, strict=True)):
            position = min(text.done if text is not None and text.has_begun else len(prefix), last)
            if text is None or row not in texts:
                inputs.append((position, 0, -1))
            else:
                inputs.append((position, text.draw(), kinds.index(text.kind)))
                text.done += 1
        return np.array(inputs, np.int32).T

    def _masked_biases(self, texts: dict[int, _Text]) -> Array:
        """Return the masked biases (B, V) of these texts, with zeros for the other rows."""
        zero = ops.fill(0, self._last, shape=(self._size,), dtype=float32)
        biases = {row: text.take_bias() for row, text in texts.items()}
        return ops.stack([zero if (own := biases.get(row)) is None else own for row in range(len(self._texts))])

    def _results(self, launched: list[_Launched]) -> list[Sampled]:
        """Return what was computed for the texts that are still there."""
        results = []
        for texts, tokens, logprobs, is_alone, draft in launched:
            drawn: list[int] = [] if tokens is None else tokens()[:, 0].tolist()
            scored = logprobs and [each.numpy() for each in logprobs]
            for row, text in texts.items():
                if self._texts[row] is text:
                    at = 0 if is_alone else row
                    new = accepted(draft, drawn) if draft else drawn[at : at + 1]
                    if draft:
                        text.take(len(new))
                        text.done += len(new)
                    if drawn and self._drafting:
                        text.new += new
                        self._drafting.add(text, new)
                    found = tuple(each[at] for each in scored) if scored else None
                    results.append(Sampled(row, new[0] if new else None, found))
                    self._held += [Sampled(row, token, None) for token in new[1:]]
        return results


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
        if bias is not None and self.bias is not None:
            self.bias = _with_row(self.bias, bias, row)

    def inputs(self) -> dict[str, Array]:
        """Return the numbers, float32 of shape (B, 1)."""
        if not self._inputs:
            self._inputs = {name: creation.asarray(values.copy()) for name, values in self._numbers.items()}
        return self._inputs


def _with_row(x: Array, new: Array, row: int) -> Array:
    return ops.slice_update(x, new, (row, 0), steps=(1, 1))


def _reusable(text: _Text) -> int:
    """Return the number of tokens of a prompt that may be copied: whole chunks, but not its last token."""
    return (len(text.prompt) - 1) // CHUNK * CHUNK


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return the number of tokens with which both begin."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


def _samplers() -> tuple[Compiled, Compiled]:
    """Return compiled functions that sample the next tokens of all rows, and the first one of a text."""
    found = compile(_choose, constants="limits", donate="history"), compile(_first, constants="limits")
    for one in found:
        one.many = _MAX_KINDS
    return found


def _chunk(model: LanguageModel, tokens: Array, caches: list[KeyValueCache], position: int | None) -> Array:
    """Return the features (1, T, C) of tokens (1, T) of a prompt from a position on."""
    return model.features(tokens, caches, position)


def _first(
    model: LanguageModel,
    features: Array,
    at: int,
    unit: float,
    history: dict[str, Array],
    numbers: dict[str, float],
    bias: Array | None,
    limits: tuple[int | None, int, int | None],
) -> tuple[Array, dict[str, Array], Logprobs | None]:
    """Return the token (1, 1) after the prompt whose last features are at a position, and as `_choose`."""
    last = ops.slice(features, (0, at, 0), steps=(1, 1, 1), shape=(1, 1, features.shape[2]))
    logits = model.head(last)[:, 0]  # (1, V)
    like = ops.fill(0, logits, shape=(1, 1), dtype=int32)
    units = ops.fill(unit, logits, shape=(1, 1), dtype=float32)
    return sampled(logits, like, history, (units, 0), numbers, bias, limits)


def _logits(model: LanguageModel, last: Array, inputs: Array, caches: list[KeyValueCache], count: int) -> Array:
    """Return the logits (B, V) of the next token in the first `count` rows, and zeros, for inputs of a step (3, B)."""
    rows, positions = inputs.shape[1], inputs[_INPUTS.index("position")][:count]
    logits = model.next_token_logits(last[:count], caches, positions)  # (count, V)
    if count == rows:
        return logits
    return ops.concat([logits, ops.fill(0, logits, shape=(rows - count, logits.shape[1]), dtype=logits.dtype)])


def _put(caches: list[KeyValueCache], own: list[KeyValueCache], row: int, span: int) -> None:
    """Copy the keys and values of the first `span` positions of a prompt into a row."""
    for cache, new in zip(caches, own, strict=True):
        both = new.both[:, :, :, :span]
        cache.both.rebind(ops.slice_update(cache.both, both, (0, row, 0, 0, 0), steps=(1, 1, 1, 1, 1)))


def _copy(own: list[KeyValueCache], caches: list[KeyValueCache], row: int, span: int) -> None:
    """Copy the keys and values of the first `span` positions of a row into the caches of a prompt."""
    for new, cache in zip(own, caches, strict=True):
        two, _, heads, _, width = cache.both.shape
        both = ops.slice(cache.both, (0, row, 0, 0, 0), steps=(1,) * 5, shape=(two, 1, heads, span, width))
        new.both.rebind(ops.slice_update(new.both, both, (0,) * 5, steps=(1,) * 5))


def _choose(
    logits: Array, last: Array, inputs: Array, number: int, history: dict[str, Array], numbers: dict[str, Any],
    bias: Array | None, limits: tuple[int | None, int, int | None],
) -> tuple[Array, dict[str, Array], Logprobs | None]:  # fmt: skip
    """Return the last tokens (B, 1), the histories after them and their log-probabilities, for logits (B, V).

    Rows of another kind of sampling than the given number keep their last token and history.
    """
    is_own = inputs[_INPUTS.index("kind")][:, None] == number  # (B, 1)
    units = ops.astype(inputs[_INPUTS.index("unit")], dtype=float32)[:, None] * _UNIT
    tokens, after, logprobs = sampled(logits, last, history, (units, 0), numbers, bias, limits)
    history = {name: ops.where(is_own, seen, history[name]) for name, seen in after.items()}
    return ops.where(is_own, tokens, last), history, logprobs
