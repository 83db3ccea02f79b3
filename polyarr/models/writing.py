"""Text after prompts: a model and its tokenizer, stop strings, and why a text ended."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation
from polyarr.capture.compile import Compiled
from polyarr.models.decoder import LanguageModel
from polyarr.models.generation import next_token, stream
from polyarr.text import Tokenizer

# How many captures, each for a number of rows, a length of caches and a kind of sampling, are kept for the next texts.
# A server is asked for ever other ones, which would fill its memory.
KINDS = 32


class Part(NamedTuple):
    """What one more token brought.

    row     which of the prompts it is for
    text    what is known of the text beyond what was; may be empty
    tokens  how many tokens the text has by now, with the one that ended it
    finish  None while it goes on; "stop" at a stop string or a token that ends texts, "length" after all tokens
    """

    row: int
    text: str
    tokens: int
    finish: str | None


class Completion(NamedTuple):
    """A whole text after a prompt; the fields are those of its parts."""

    text: str
    tokens: int
    finish: str


class Writer:
    """A model and its tokenizer, for any number of texts: what one of them captured serves the next."""

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
        **sampling: Any,
    ) -> Iterator[Part]:
        """The texts after prompts, which are texts or tokens, part by part: one for each unfinished row and token.

        stop      strings that end a text, of which they are no part
        ends      tokens that do so; None: the tokenizer's own, if it has one
        seed      the same one draws the same text: row b by seed + b, or by the b-th of several, as if it were alone
        sampling  temperature, top_k, top_p, min_p, repetition_penalty, as Sampling has them

        Errors:  ValueError for no prompt, an empty one, one with tokens or characters that are unknown, an
                 empty stop string or a parameter out of range
        """
        encoded = [self._encoded(prompt) for prompt in prompts]
        if not encoded:
            raise ValueError("Writer: there is no prompt; give at least one")
        if not all(stop):
            raise ValueError("Writer: a stop string is empty; it must have at least one character")
        if len(self._step.programs()) >= KINDS:
            self._step = _next_token()
        if ends is None:
            ends = () if self.tokenizer.end is None else (self.tokenizer.end,)
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
        """The whole texts of `write`, which takes the same options; one for each prompt."""
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
    """What draws a token, for texts of many kinds: nobody is warned that there are so many."""
    found = next_token()
    found.many = KINDS
    return found


def _padded(prompts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts (B, T) that end together, and how many of each row's first tokens are none (B,)."""
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
    """The text of one row: what of it is known, what may be a stop string's beginning, and why it ended."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: np.ndarray, stop: Sequence[str], ends: Collection[int], most: int
    ) -> None:
        self.count, self.finish = 0, None if most else "length"
        self._most, self._ends, self._stops = most, frozenset(ends), Stops(stop)
        self._given: deque[int | None] = deque()
        self._parts = tokenizer.stream(iter(self._given.popleft, None), after=prompt.tolist())

    def add(self, token: int) -> str:
        """What becomes known of the text by one more token."""
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
    """Cuts a text that comes in parts before the first stop string, and holds back what may be the beginning of one.

    The first is the one that ends first, so it is the same whatever the parts are; of two, the longer one.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.is_found = False
        self._strings, self._held = strings, ""
        self._longest = max(map(len, strings), default=1) - 1  # of what may be held back

    def add(self, text: str) -> str:
        """What is certain of the text by one more part, beyond what was."""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if ends:
            self.is_found, self._held = True, ""
            return text[: min(ends)[1]]
        kept = next((n for n in range(min(len(text), self._longest), 0, -1) if self._may_begin(text[-n:])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """What was held back, after the last part."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._strings)
