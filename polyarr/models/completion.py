"""Text completion: a model with its tokenizer, stop strings, and the reason why a text ended."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation
from polyarr.capture.compile import Compiled
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import limit_to_context, next_token, stream
from polyarr.text import Tokenizer

# Compiled programs that are kept, one for each number of rows, capacity of caches and kind of sampling. Without a
# limit, the requests of a server would fill its memory with them.
MAX_PROGRAMS = 32


class Part(NamedTuple):
    """Piece of a text that one more token added.

    Attributes:
        row: Index of the prompt.
        text: Characters that became known; may be empty.
        tokens: Number of tokens of the text so far, including one that ended it.
        finish: None while the text goes on; "stop" after a stop string or an end token, "length" after max_new_tokens.
    """

    row: int
    text: str
    tokens: int
    finish: str | None


class Completion(NamedTuple):
    """Complete text after a prompt.

    Attributes:
        text: The text.
        tokens: Number of its tokens, including one that ended it.
        finish: "stop" after a stop string or an end token, "length" after max_new_tokens.
    """

    text: str
    tokens: int
    finish: str


class Writer:
    """Generator of text from a model and its tokenizer, which reuses compiled steps from one text to the next.

    Args:
        model: A language model. The writer keeps a copy in evaluation mode.
        tokenizer: The tokenizer of the model.

    Examples:
        >>> from polyarr.models import GPTModel, Writer
        >>> from polyarr.text import CharTokenizer
        >>> sizes = {"vocab_size": 3, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> writer = Writer(GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False}), CharTokenizer("abc"))
        >>> [completion] = writer.complete(["cab"], max_new_tokens=4)
        >>> completion.tokens, completion.finish
        (4, 'length')
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer, self._step = model.copy().eval(), tokenizer, _next_token()
        self._size = min(tokenizer.vocab_size, model.config.vocab_size)

    def write(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_new_tokens: int,
        *,
        stop: Sequence[str] = (),
        ends: Collection[int] | None = None,
        seed: int | Sequence[int] | None = None,
        stop_at_context: bool = False,
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
            **sampling: temperature, top_k, top_p, min_p and repetition_penalty; see Sampling.

        Yields:
            A Part for each token of each unfinished row.

        Raises:
            ValueError: There is no prompt, a prompt is empty or has unknown tokens or characters, a stop string is
                empty, or a parameter is out of range.
        """
        encoded = [self._encoded(prompt) for prompt in prompts]
        if not encoded:
            raise ValueError("Writer: there is no prompt; give at least one")
        if not all(stop):
            raise ValueError("Writer: a stop string is empty; it must have at least one character")
        if len(self._step.programs()) >= MAX_PROGRAMS:
            self._step = _next_token()
        ends = self.tokenizer.ends if ends is None else ends
        if stop_at_context:
            max_new_tokens = limit_to_context(self.model, max(map(len, encoded)), max_new_tokens)
        rows = [_Row(self.tokenizer, tokens, stop, ends, max_new_tokens) for tokens in encoded]
        tokens, padding = _padded(encoded)
        drawn = stream(
            self.model,
            creation.asarray(tokens),
            max_new_tokens,
            padding=creation.asarray(padding) if padding.any() else None,
            seed=seed,
            vocab_size=self._size,
            step=self._step,
            **sampling,
        )
        return _parts(rows, drawn)

    def complete(self, prompts: Sequence[str | Sequence[int]], max_new_tokens: int, **options: Any) -> list[Completion]:
        """Return the complete texts after prompts, one Completion for each.

        Args:
            prompts: As in `write`.
            max_new_tokens: As in `write`.
            **options: The other arguments of `write`.

        Raises:
            ValueError: As in `write`.
        """
        texts, last = [""] * len(prompts), [Part(row, "", 0, "length") for row in range(len(prompts))]
        for part in self.write(prompts, max_new_tokens, **options):
            texts[part.row] += part.text
            last[part.row] = part
        return [Completion(text, end.tokens, end.finish or "length") for text, end in zip(texts, last, strict=True)]

    def _encoded(self, prompt: str | Sequence[int]) -> np.ndarray:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else np.asarray(prompt)
        if tokens.ndim != 1 or not tokens.size:
            raise ValueError("Writer: a prompt is empty; it must have at least one token")
        if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= self._size:
            raise ValueError(f"Writer: a prompt's tokens must be integers from 0 to {self._size - 1}")
        return tokens.astype(np.int32)


def _next_token() -> Compiled:
    """Return a compiled step with MAX_PROGRAMS signatures, so that polyarr.compile does not warn about their number."""
    found = next_token()
    found.many = MAX_PROGRAMS
    return found


def _padded(prompts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts padded at their start, (B, T), and the number of padding tokens of each row (B,)."""
    longest = max(map(len, prompts))
    padding = np.array([longest - len(tokens) for tokens in prompts], np.int32)
    rows = [np.concatenate([np.zeros(n, np.int32), tokens]) for n, tokens in zip(padding, prompts, strict=True)]
    return np.stack(rows), padding


def _parts(rows: "list[_Row]", drawn: Iterator[Any]) -> Iterator[Part]:
    for tokens in drawn:  # (B, 1)
        for i, token in enumerate(tokens.numpy()[:, 0].tolist()):
            if rows[i].finish is None:
                text = rows[i].add(token)
                yield Part(i, text, rows[i].count, rows[i].finish)
        if all(row.finish for row in rows):
            return


class _Row:
    """Text of one row: characters that are known, the possible start of a stop string, and why the text ended."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: np.ndarray, stop: Sequence[str], ends: Collection[int], most: int
    ) -> None:
        self.count, self.finish = 0, None if most else "length"
        self._most, self._ends, self._stops = most, frozenset(ends), Stops(stop)
        self._given: deque[int | None] = deque()
        self._parts = tokenizer.stream(iter(self._given.popleft, None), after=prompt.tolist())

    def add(self, token: int) -> str:
        """Add a token; return the characters that became known."""
        self.count += 1
        is_end = token in self._ends
        text = "" if is_end else self._stops.add(self._decoded(token))
        if is_end or self._stops.is_found:
            self.finish = "stop"
        elif self.count == self._most:
            self.finish = "length"
        if self.finish and not self._stops.is_found:
            self._given.append(None)
            text += self._stops.add("".join(self._parts)) + self._stops.rest()
            self.finish = "stop" if self._stops.is_found else self.finish
        return text

    def _decoded(self, token: int) -> str:
        self._given.append(token)
        return next(self._parts)


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
