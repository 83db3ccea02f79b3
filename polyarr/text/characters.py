"""A tokenizer whose tokens are characters."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

_SHOWN = 5  # characters listed in an error


class CharTokenizer:
    """One token per character, numbered in the order of their code points.

    Errors:  ValueError for an empty or repeated set of characters, or half a surrogate pair
    """

    unit = "characters"
    end = None  # a text of characters has none to end with
    chat = None

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(characters))
        if not self.characters or len(set(self.characters)) != len(self.characters):
            raise ValueError("CharTokenizer: characters must be distinct, and at least one")
        if any("\ud800" <= character <= "\udfff" for character in self.characters):
            raise ValueError("CharTokenizer: a surrogate is no character; no text file can hold it")
        self._numbers = np.full(sys.maxunicode + 1, -1, np.int32)
        self._numbers[_points(self.characters)] = np.arange(len(self.characters))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The tokenizer of all characters in a text.

        Errors:  ValueError for an empty text
        """
        return cls(set(text))

    vocab_size = property(lambda self: len(self.characters), doc="How many tokens there are.")

    def encode(self, text: str) -> np.ndarray:
        """(T,) int32

        Errors:  ValueError naming the characters that are not in the vocabulary
        """
        numbers = self._numbers[_points(text)]
        if numbers.size and numbers.min() < 0:
            refuse_unknown(set(text) - set(self.characters), self)
        return numbers

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """encode for many texts.

        Errors:  as encode
        """
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of tokens.

        Errors:  ValueError for a number that is no token
        """
        numbers = [int(token) for token in tokens]
        wrong = [n for n in numbers if not 0 <= n < self.vocab_size]
        if wrong:
            raise ValueError(f"decode: {wrong[0]} is no token; they are 0 to {self.vocab_size - 1}")
        return "".join(self.characters[n] for n in numbers)

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """The characters of decode(tokens) one by one, whatever they are after.

        Errors:  as decode
        """
        return (self.decode([token]) for token in tokens)

    def token(self, number: int) -> str:
        """A token's character."""
        return self.characters[number]

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        return {"kind": "characters", "characters": self.characters}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The tokenizer that to_dict described.

        Errors:  ValueError for anything else
        """
        is_known = isinstance(saved, dict) and saved.keys() == {"kind", "characters"}
        if not is_known or saved["kind"] != "characters" or not isinstance(saved["characters"], str):
            raise ValueError("CharTokenizer: this is not a character tokenizer's dict")
        return cls(saved["characters"])

    def __repr__(self) -> str:
        return f"CharTokenizer({self.vocab_size} characters)"


def refuse_unknown(characters: Iterable[str], tokenizer: Any) -> None:
    """Raise ValueError if there are characters, which a tokenizer's vocabulary lacks."""
    unknown = sorted(set(characters))
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        listed = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in unknown[:_SHOWN])
        raise ValueError(
            f"encode: not in the vocabulary of {tokenizer.vocab_size} {tokenizer.unit}: {listed}{more}"
        )


def _points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
