"""Text completion: a model with its tokenizer, stop strings, log-probabilities, and the reason why a text ended."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation
from polyarr.capture.compile import Compiled
from polyarr.core.array import read_later
from polyarr.core.spec import shown
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import Sample, limit_to_context, next_token, sample
from polyarr.models.logprobs import Logprobs
from polyarr.models.speculation import can_speculate, speculated, speculative_step
from polyarr.ops.validation import whole
from polyarr.text import Tokenizer
from polyarr.text.sandbox import text_stream

# Compiled programs that are kept, one for each number of rows, capacity of caches and kind of sampling. Without a
# limit, the requests of a server would fill its memory with them.
MAX_PROGRAMS = 32
DRAFTED = 4  # tokens that a draft model drafts at a time


class TokenLogprob(NamedTuple):
    """Token with its log-probability, before any bias, penalty or temperature.

    Attributes:
        token: The token.
        text: Its characters within a text; U+FFFD stands for bytes that are not whole characters.
        logprob: Its log-probability, or None for the first token of a prompt.
        top: The most likely tokens at its position, the most likely first: texts and log-probabilities.
        offset: Number of characters of the new text before it; 0 for a token of a prompt.
    """

    token: int
    text: str
    logprob: float | None
    top: tuple[tuple[str, float], ...]
    offset: int


class Part(NamedTuple):
    """Piece of a text that one more token added, or the prompt before it.

    Attributes:
        row: Index of the prompt.
        text: Characters that became known; may be empty.
        tokens: Number of tokens of the text so far, including one that ended it.
        finish: None while the text goes on; "stop" after a stop string or an end token, "length" after max_new_tokens.
        logprobs: The token, or those of the prompt, with their log-probabilities; () if these were not asked for.
    """

    row: int
    text: str
    tokens: int
    finish: str | None
    logprobs: tuple[TokenLogprob, ...] = ()


class Completion(NamedTuple):
    """Complete text after a prompt.

    Attributes:
        text: The text.
        tokens: Number of its tokens, including one that ended it.
        finish: "stop" after a stop string or an end token, "length" after max_new_tokens.
        logprobs: The tokens with their log-probabilities, those of the prompt first if `echo` is set.
    """

    text: str
    tokens: int
    finish: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Writer:
    """Generator of text from a model and its tokenizer, which reuses compiled steps from one text to the next.

    Args:
        model: A language model. The writer keeps a copy in evaluation mode.
        tokenizer: The tokenizer of the model.
        draft_model: Smaller model with the same tokens, which drafts texts for `model` to check; None: none.

    Raises:
        ValueError: The draft model has fewer tokens than the tokenizer.

    Examples:
        >>> from polyarr.models import GPTModel, Writer
        >>> from polyarr.text import CharTokenizer
        >>> sizes = {"vocab_size": 3, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> writer = Writer(GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False}), CharTokenizer("abc"))
        >>> [completion] = writer.complete(["cab"], max_new_tokens=4)
        >>> completion.tokens, completion.finish
        (4, 'length')
    """

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, draft_model: LanguageModel | None = None
    ) -> None:
        self.model, self.tokenizer, self._step = model.copy().eval(), tokenizer, _with_many(next_token())
        self._speculative_step = _with_many(speculative_step())
        self._size = min(tokenizer.vocab_size, model.config.vocab_size)
        self._draft_model = draft_model and draft_model.copy().eval()
        if draft_model is not None and draft_model.config.vocab_size < self._size:
            size = draft_model.config.vocab_size
            raise ValueError(f"Writer: the draft model has {size:,} tokens; it must have {self._size:,}")
        self._texts: dict[int, str] = {}

    def write(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_new_tokens: int,
        *,
        stop: Sequence[str] = (),
        ends: Collection[int] | None = None,
        seed: int | Sequence[int] | None = None,
        stop_at_context: bool = False,
        logprobs: int | None = None,
        echo: bool = False,
        speculate: int | None = None,
        **sampling: Any,
    ) -> Iterator[Part]:
        """Yield the texts after prompts piece by piece: one Part for each token of each unfinished row.

        Args:
            prompts: Texts, or sequences of tokens. The tokenizer adds its special tokens to texts but not to tokens.
            max_new_tokens: Largest number of tokens after each prompt.
            stop: Strings that end a text; the text ends before them.
            ends: Tokens that end a text; None: all that the tokenizer and the files of the model name.
            seed: Seed of the sampling. Row b has the seed `seed + b`, or the b-th one of a sequence, and is sampled as
                if it were alone. None: numbers are drawn from polyarr.random.
            stop_at_context: Stop when the longest prompt and its text fill the context of the model.
            logprobs: Number of the most likely tokens at each position whose log-probabilities are computed, besides
                those of the sampled tokens; None: none are computed.
            echo: Whether to yield first a Part for each prompt, with no text; with `logprobs` it has the
                log-probabilities of the prompt's tokens, which come from one pass over the prompts.
            speculate: Number of tokens that are drafted, by the draft model or else from the text itself, and checked
                in one pass of the model; 0 for none; None: 4 with a draft model, none without. Texts side by side,
                those beyond the context, those with penalties, and log-probabilities have no drafts.
            **sampling: Parameters of Sampling, such as temperature and top_p.

        Yields:
            A Part for each token of each unfinished row.

        Raises:
            ShapeError: The tokens of a prompt are to have log-probabilities, but do not fit into the model's context.
            TypeError: `prompts` or `stop` is one text instead of a list.
            ValueError: There is no prompt, a prompt is empty or has unknown tokens or characters, a stop string is
                empty, or a parameter is out of range.

        Examples:
            >>> from polyarr.models import GPTModel, Writer
            >>> from polyarr.text import CharTokenizer
            >>> sizes = {"vocab_size": 3, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
            >>> writer = Writer(GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False}), CharTokenizer("abc"))
            >>> [part] = writer.write(["cab"], 0, logprobs=1, echo=True)  # scores the prompt
            >>> [one.text for one in part.logprobs], part.logprobs[0].logprob, part.logprobs[1].logprob < 0
            (['c', 'a', 'b'], None, True)
        """
        encoded = self._checked(prompts, stop, logprobs)
        if speculate is None:
            speculate = DRAFTED if self._draft_model else 0
        if whole("Writer", "speculate", speculate) < 0:
            raise ValueError(f"Writer: speculate is {speculate}; it must not be negative")
        self._renew_steps()
        ends = self.tokenizer.ends if ends is None else ends
        if stop_at_context:
            max_new_tokens = limit_to_context(self.model, max(map(len, encoded)), max_new_tokens)
        rows = [Row(self.tokenizer, tokens, stop, ends, max_new_tokens) for tokens in encoded]
        tokens, padding = _padded(encoded)
        drawn = sample(
            self.model,
            creation.asarray(tokens),
            max_new_tokens,
            padding=creation.asarray(padding) if padding.any() else None,
            seed=seed,
            vocab_size=self._size,
            step=self._step,
            logprobs=None if logprobs is None else max(logprobs, 1),
            echo=echo and logprobs is not None,
            **sampling,
        )  # raises for bad arguments
        if speculate and logprobs is None and can_speculate(self.model, encoded, max_new_tokens, **sampling):
            first = seed if seed is None or isinstance(seed, int) else seed[0]
            how = {"seed": first, "vocab_size": self._size, "step": self._speculative_step, **sampling}
            how["draft_model"] = self._draft_model
            drawn = speculated(self.model, encoded[0], max_new_tokens, speculate, **how)
            return self._parts(rows, encoded, _read_at_once(drawn), logprobs, echo)
        return self._parts(rows, encoded, _read_later(drawn), logprobs, echo)

    def _renew_steps(self) -> None:
        """Forget compiled steps when there are many."""
        if len(self._step.programs()) >= MAX_PROGRAMS:
            self._step = _with_many(next_token())
        if len(self._speculative_step.programs()) >= MAX_PROGRAMS:
            self._speculative_step = _with_many(speculative_step())

    def complete(self, prompts: Sequence[str | Sequence[int]], max_new_tokens: int, **options: Any) -> list[Completion]:
        """Return the complete texts after prompts, one Completion for each.

        Args:
            prompts: As in `write`.
            max_new_tokens: As in `write`.
            **options: The other arguments of `write`.

        Raises:
            ValueError: As in `write`.
        """
        parts = [[Part(row, "", 0, "length")] for row in range(len(prompts))]
        for part in self.write(prompts, max_new_tokens, **options):
            parts[part.row].append(part)
        return [joined(each) for each in parts]

    def _checked(
        self, prompts: Sequence[str | Sequence[int]], stop: Sequence[str], logprobs: int | None
    ) -> list[np.ndarray]:
        """Return the tokens of each prompt, after checking what was given."""
        for name, given in (("prompts", prompts), ("stop", stop)):
            if isinstance(given, str):  # whose characters would be taken one by one
                text = shown(given)
                raise TypeError(f"Writer: {name} is {text}; it must be a list of texts, such as [{text}]")
        if logprobs is not None and whole("Writer", "logprobs", logprobs) < 0:
            raise ValueError(f"Writer: logprobs is {logprobs}; it must not be negative")
        encoded = [self._encoded(prompt) for prompt in prompts]
        if not encoded:
            raise ValueError("Writer: there is no prompt; give at least one")
        if not all(stop):
            raise ValueError("Writer: a stop string is empty; it must have at least one character")
        return encoded

    def _encoded(self, prompt: str | Sequence[int]) -> np.ndarray:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else np.asarray(prompt)
        if tokens.ndim != 1 or not tokens.size:
            raise ValueError("Writer: a prompt is empty; it must have at least one token")
        if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= self._size:
            raise ValueError(f"Writer: a prompt's tokens must be integers from 0 to {self._size - 1}")
        return tokens.astype(np.int32)

    def _parts(
        self,
        rows: "list[Row]",
        prompts: list[np.ndarray],
        drawn: Iterator["_Drawn"],
        top: int | None,
        echo: bool,
    ) -> Iterator[Part]:
        if echo and top is None:
            yield from (Part(i, "", 0, row.finish) for i, row in enumerate(rows))
        for read, found in drawn:
            logprobs = found and [each.numpy() for each in found]
            of_rows = [logprobs and [each[i] for each in logprobs] for i in range(len(rows))]
            if read is None:
                for i, prompt in enumerate(prompts):
                    yield self._prompt_part(i, rows[i], prompt, of_rows[i], top)
                continue
            given = read()[:, 0].tolist()
            going = [i for i, row in enumerate(rows) if row.finish is None]
            texts = Row.decoded([rows[i] for i in going], [given[i] for i in going])
            for i, text in zip(going, texts, strict=True):
                yield self._token_part(i, rows[i], given[i], text, of_rows[i], top)
            if all(row.finish for row in rows):
                return

    def _prompt_part(
        self, index: int, row: "Row", prompt: np.ndarray, logprobs: Sequence[np.ndarray] | None, top: int | None
    ) -> Part:
        """Return the part of a prompt, with the log-probabilities of its tokens after the first, (T - 1, ...)."""
        first, *others = prompt.tolist()
        begin = TokenLogprob(first, self._text(first), None, (), 0)
        scored = () if top is None else self._scored(others, logprobs, top)
        return Part(index, "", 0, row.finish, (begin, *scored))

    def _token_part(
        self,
        index: int,
        row: "Row",
        token: int,
        decoded: str,
        logprobs: Sequence[np.ndarray] | None,
        top: int | None,
        is_last: bool = False,
    ) -> Part:
        """Return the part that a token of a row adds, with its characters and its log-probabilities, (1, ...)."""
        scored = () if top is None else self._scored([token], logprobs, top, row.characters)
        text = row.add(token, decoded, is_last)
        return Part(index, text, row.count, row.finish, scored)

    def _scored(
        self, tokens: list[int], logprobs: Sequence[np.ndarray] | None, top: int, offset: int = 0
    ) -> tuple[TokenLogprob, ...]:
        """Return the last tokens of a row with their log-probabilities, the arrays of a Logprobs for the row."""
        if not tokens or logprobs is None:
            return ()
        chosen, values, likely = (each[-len(tokens) :].tolist() for each in logprobs)
        tops = [
            tuple(zip(map(self._text, some[:top]), theirs[:top], strict=True))
            for some, theirs in zip(likely, values, strict=True)
        ]
        return tuple(
            TokenLogprob(token, self._text(token), own, first, offset)
            for token, own, first in zip(tokens, chosen, tops, strict=True)
        )

    def _text(self, token: int) -> str:
        """Return the characters of a token within a text: those that it adds after itself, so a first blank counts."""
        if token not in self._texts:
            before = self.tokenizer.decode([token])
            self._texts[token] = self.tokenizer.decode([token, token])[len(before) :]
        return self._texts[token]


class _Drawn(NamedTuple):
    """Sample that is read later: a function that returns the tokens (B, 1), None for the prompts, and Logprobs."""

    read: Callable[[], np.ndarray] | None
    logprobs: Logprobs | None


def _read_at_once(drawn: Iterator[Sample]) -> Iterator[_Drawn]:
    return map(_launched, drawn)


def _read_later(drawn: Iterator[Sample]) -> Iterator[_Drawn]:
    """Yield each sample after the next one is launched, so that the device computes while a sample is read.

    The first sample is yielded at once, because the launch of the second compiles the step; and one after which a token
    takes a pass over a whole context, which may not be needed.
    """
    waiting, has_begun = list[_Drawn](), False
    for one in drawn:
        yield from waiting
        waiting = [_launched(one)]
        if not has_begun or one.is_next_whole:
            yield waiting.pop()
        has_begun |= one.token is not None
    yield from waiting


def _launched(one: Sample) -> _Drawn:
    return _Drawn(None if one.token is None else read_later(one.token), one.logprobs)


def joined(parts: Sequence[Part]) -> Completion:
    """Return the text that the parts of one row, at least one, make up."""
    text, logprobs = "".join(part.text for part in parts), tuple(one for part in parts for one in part.logprobs)
    return Completion(text, parts[-1].tokens, parts[-1].finish or "length", logprobs)


def _with_many(step: Compiled) -> Compiled:
    """Return a step with MAX_PROGRAMS signatures, so that polyarr.compile does not warn about their number."""
    step.many = MAX_PROGRAMS
    return step


def _padded(prompts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts padded at their start, (B, T), and the number of padding tokens of each row (B,)."""
    longest = max(map(len, prompts))
    padding = np.array([longest - len(tokens) for tokens in prompts], np.int32)
    rows = [np.concatenate([np.zeros(n, np.int32), tokens]) for n, tokens in zip(padding, prompts, strict=True)]
    return np.stack(rows), padding


class Row:
    """Text of one row: characters that are known, the possible start of a stop string, and why the text ended.

    Attributes:
        count: Number of tokens so far.
        characters: Number of characters so far, including those that are not yet known to belong to the text.
        finish: As in Part.
        most: Largest number of tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: np.ndarray, stop: Sequence[str], ends: Collection[int], most: int
    ) -> None:
        self.count, self.characters, self.finish = 0, 0, None if most else "length"
        self.most, self._ends, self._stops = most, frozenset(ends), Stops(stop)
        self._stream = text_stream(tokenizer, after=prompt.tolist())

    @staticmethod
    def decoded(rows: "Sequence[Row]", tokens: Sequence[int]) -> list[str]:
        """Return the characters that a token adds to each row, whose tokenizer is the same; "" for tokens that end."""
        texts = [""] * len(rows)
        going = [i for i, row in enumerate(rows) if tokens[i] not in row._ends]
        if going:
            streams = [rows[i]._stream for i in going]
            found = streams[0].add_each(streams, [tokens[i] for i in going])
            for i, text in zip(going, found, strict=True):
                texts[i] = text
        return texts

    def add(self, token: int, decoded: str, is_last: bool = False) -> str:
        """Add a token with the characters that it adds; return the characters that became known.

        Args:
            token: The token.
            decoded: Its characters.
            is_last: True if nothing may follow it.
        """
        self.count += 1
        self.characters += len(decoded)
        is_end = token in self._ends
        text = "" if is_end else self._stops.add(decoded)
        if is_end or is_last or self._stops.is_found:
            self.finish = "stop"
        elif self.count == self.most:
            self.finish = "length"
        if self.finish and not self._stops.is_found:
            text += self._stops.add(self._stream.rest()) + self._stops.rest()
            self.finish = "stop" if self._stops.is_found else self.finish
        return text


class Stops:
    """Filter that ends a text, which comes in pieces, before its first stop string.

    It holds back characters that may be the start of a stop string. The first stop string is the one that ends first,
    which does not depend on the pieces; of two that end together, it is the longer one.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.is_found = False
        self._strings, self._held = strings, ""
        self._longest = max(map(len, strings), default=1) - 1  # characters that may be held back

    def add(self, text: str) -> str:
        """Add a piece; return the characters that certainly belong to the text."""
        if not self._strings:
            return text
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if ends:
            self.is_found, self._held = True, ""
            return text[: min(ends)[1]]
        kept = next((n for n in range(min(len(text), self._longest), 0, -1) if self._may_begin(text[-n:])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return the characters that are still held back, after the last piece."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._strings)
