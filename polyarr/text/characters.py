"""A tokenizer that has one token for each character."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from polyarr.text.special import SpecialTokens

_MAX_LISTED = 5  # characters that an error lists


class CharTokenizer:
    """Tokenizer with one token per character, in the order of their code points.

    Args:
        characters: The vocabulary: distinct characters, at least one.

    Raises:
        ValueError: `characters` is empty, repeats a character, or has a surrogate.

    Examples:
        >>> from polyarr.text import CharTokenizer
        >>> tokenizer = CharTokenizer("abc")
        >>> tokenizer.encode("cab").tolist()
        [2, 0, 1]
        >>> tokenizer.decode([2, 0, 1])
        'cab'
    """

    unit = "characters"
    begin = ()
    end = None
    special = SpecialTokens()
    chat = None

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted("".join(characters)))
        if not self.characters or len(set(self.characters)) != len(self.characters):
            raise ValueError("CharTokenizer: characters must be distinct, and at least one")
        if any("\ud800" <= character <= "\udfff" for character in self.characters):
            raise ValueError("CharTokenizer: a surrogate is no character; no text file can hold it")
        self._numbers = np.full(sys.maxunicode + 1, -1, np.int32)
        self._numbers[_points(self.characters)] = np.arange(len(self.characters))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the tokenizer of all characters in a text.

        Raises:
            ValueError: The text is empty.
        """
        return cls(set(text))

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.characters)

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a generated text; usually there are none."""
        return () if self.end is None else (self.end,)

    def with_special(self, special: SpecialTokens) -> Self:
        """Return the tokenizer itself: it has no special tokens."""
        return self

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """Return the tokens of a text, (T,) int32; there are no special tokens to add.

        Raises:
            ValueError: The text has characters that are not in the vocabulary; the error names them.
        """
        numbers = self._numbers[_points(text)]
        if numbers.size and numbers.min() < 0:
            refuse_unknown(set(text) - set(self.characters), self)
        return numbers

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
        """Return the tokens of many texts; errors are those of `encode`."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text, (T,) int32, and the position of each and of the next, (T, 2)."""
        tokens = self.encode(text)
        at = np.arange(len(tokens))
        return tokens, np.stack([at, at + 1], axis=1)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of a sequence of tokens.

        Raises:
            ValueError: A number is not a token.
        """
        numbers = [int(token) for token in tokens]
        wrong = [n for n in numbers if not 0 <= n < self.vocab_size]
        if wrong:
            raise ValueError(f"decode: {wrong[0]} is no token; they are 0 to {self.vocab_size - 1}")
        return "".join(self.characters[n] for n in numbers)

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Return an iterator over the characters of decode(tokens); `after` has no effect.

        Raises:
            ValueError: A number is not a token.
        """
        return (self.decode([token]) for token in tokens)

    def token(self, number: int) -> str:
        """Return the character of a token."""
        return self.characters[number]

    def to_json(self) -> str:
        """Return the content of a tokenizer.json, in which every character is a word, for other programs."""
        numbers = {character: number for number, character in enumerate(self.characters)}
        return json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
                "post_processor": None,
                "decoder": {"type": "Fuse"},
                "model": {"type": "WordLevel", "vocab": numbers, "unk_token": "<unk>"},
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `from_dict` takes."""
        return {"kind": "characters", "characters": self.characters}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """Return the tokenizer that `to_dict` described.

        Raises:
            ValueError: `saved` is anything else.
        """
        is_known = isinstance(saved, dict) and saved.keys() == {"kind", "characters"}
        if not is_known or saved["kind"] != "characters" or not isinstance(saved["characters"], str):
            raise ValueError("CharTokenizer: this is not a character tokenizer's dict")
        return cls(saved["characters"])

    def __repr__(self) -> str:
        return f"CharTokenizer({self.vocab_size} characters)"


class UnknownCharacterError(ValueError):
    """A text has characters that are not in a tokenizer's vocabulary.

    Attributes:
        characters: The characters.
    """

    characters: list[str]


def refuse_unknown(characters: Iterable[str], tokenizer: Any) -> None:
    """Raise UnknownCharacterError if there are any characters, all of them missing from a tokenizer's vocabulary."""
    unknown = sorted(set(characters))
    if unknown:
        more = f" and {len(unknown) - _MAX_LISTED} more" if len(unknown) > _MAX_LISTED else ""
        listed = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in unknown[:_MAX_LISTED])
        size = f"{tokenizer.vocab_size} {tokenizer.unit}"
        error = UnknownCharacterError(f"encode: not in the vocabulary of {size}: {listed}{more}")
        error.characters = unknown
        raise error


def _points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
