"""Tokenizers: text to integers and back."""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

_SHOWN = 5  # characters listed in an error


class CharTokenizer:
    """One token per character, numbered in the order of their code points.

    Errors:  ValueError for an empty or repeated set of characters, or half a surrogate pair
    """

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(characters))
        self._numbers = {character: i for i, character in enumerate(self.characters)}
        if not self.characters or len(self._numbers) != len(self.characters):
            raise ValueError("CharTokenizer: characters must be distinct, and at least one")
        if any("\ud800" <= character <= "\udfff" for character in self.characters):
            raise ValueError("CharTokenizer: a surrogate is no character; no text file can hold it")

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
        unknown = sorted(set(text) - self._numbers.keys())
        if unknown:
            raise ValueError(
                f"encode: not in the vocabulary of {self.vocab_size} characters: {_listed(unknown)}"
            )
        return np.fromiter(map(self._numbers.__getitem__, text), np.int32, len(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of tokens.

        Errors:  ValueError for a number that is no token
        """
        numbers = [int(token) for token in tokens]
        wrong = [n for n in numbers if not 0 <= n < self.vocab_size]
        if wrong:
            raise ValueError(f"decode: {wrong[0]} is no token; they are 0 to {self.vocab_size - 1}")
        return "".join(self.characters[n] for n in numbers)

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        return {"kind": "characters", "characters": self.characters}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The tokenizer that to_dict described.

        Errors:  ValueError for anything else
        """
        is_known = isinstance(saved, dict) and saved.get("kind") == "characters"
        if not is_known or not isinstance(saved.get("characters"), str):
            raise ValueError("CharTokenizer: this is not a character tokenizer's dict")
        return cls(saved["characters"])

    def __repr__(self) -> str:
        return f"CharTokenizer({self.vocab_size} characters)"


def _listed(characters: list[str]) -> str:
    more = f" and {len(characters) - _SHOWN} more" if len(characters) > _SHOWN else ""
    return ", ".join(f"{c!r} (U+{ord(c):04X})" for c in characters[:_SHOWN]) + more
