"""A tokenizer for a model that came without one: its text is the numbers of tokens."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np


class NumberTokenizer:
    """Token 15 is written 15, and blanks are between tokens.

    Errors:  ValueError unless vocab_size is from 1 to 2^31 - 1
    """

    unit = "tokens"
    end = None  # nobody said which token ends a text
    chat = None

    def __init__(self, vocab_size: int) -> None:
        if type(vocab_size) is not int or not 1 <= vocab_size < 2**31:
            raise ValueError(f"NumberTokenizer: vocab_size is {vocab_size!r}; it must be an int from 1 to 2^31 - 1")
        self.vocab_size = vocab_size

    def encode(self, text: str) -> np.ndarray:
        """(T,) int32

        Errors:  ValueError for a text without numbers, or with anything else
        """
        words = text.split()
        wrong = [word for word in words if not (word.isdecimal() and word.isascii() and self._has(word))]
        if wrong or not words:
            found = f"{wrong[0][:20]!r} is no token" if wrong else "no token is given"
            raise ValueError(f"encode: {found}; texts are numbers from 0 to {self.vocab_size - 1}, with blanks between")
        return np.array(words, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """encode for many texts.

        Errors:  as encode
        """
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The numbers, each after a blank.

        Errors:  ValueError for a number that is no token
        """
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """The parts of decode(tokens), whatever they are after.

        Errors:  as decode
        """
        for token in tokens:
            if not 0 <= int(token) < self.vocab_size:
                raise ValueError(f"decode: {int(token)} is no token; they are 0 to {self.vocab_size - 1}")
            yield f" {int(token)}"

    def token(self, number: int) -> str:
        """A token's number."""
        return str(number)

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        return {"kind": "numbers", "vocab_size": self.vocab_size}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The tokenizer that to_dict described.

        Errors:  ValueError for anything else
        """
        if not isinstance(saved, dict) or saved.keys() != {"kind", "vocab_size"} or saved["kind"] != "numbers":
            raise ValueError("NumberTokenizer: this is not a number tokenizer's dict")
        return cls(saved["vocab_size"])

    def __repr__(self) -> str:
        return f"NumberTokenizer({self.vocab_size} tokens)"

    def _has(self, word: str) -> bool:
        return len(word) <= 10 and int(word) < self.vocab_size
