"""A tokenizer for a model that came without one: its texts are the numbers of tokens."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from polyarr.text.special import SpecialTokens


class NumberTokenizer:
    """Tokenizer whose texts are the numbers of tokens, separated by blanks.

    Args:
        vocab_size: Number of tokens, from 1 to 2^31 - 1.
        special: Special tokens, whose eos tokens end a generated text; None: there are none.

    Raises:
        ValueError: `vocab_size` is out of range.

    Examples:
        >>> from polyarr.text import NumberTokenizer
        >>> NumberTokenizer(100).encode("15 7").tolist()
        [15, 7]
    """

    unit = "tokens"
    begin = ()
    end = None
    chat = None

    def __init__(self, vocab_size: int, special: SpecialTokens | None = None) -> None:
        if type(vocab_size) is not int or not 1 <= vocab_size < 2**31:
            raise ValueError(f"NumberTokenizer: vocab_size is {vocab_size!r}; it must be an int from 1 to 2^31 - 1")
        self.vocab_size, self.special = vocab_size, special or SpecialTokens()

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a generated text."""
        return tuple(number for number in self.special.eos if number < self.vocab_size)

    def with_special(self, special: SpecialTokens) -> Self:
        """Return the tokenizer with further special tokens, those of another file."""
        return type(self)(self.vocab_size, self.special.union(special))

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """Return the tokens of a text, (T,) int32; no special tokens are added.

        Raises:
            ValueError: The text has no numbers, or anything else than tokens.
        """
        words = text.split()
        wrong = [word for word in words if not (word.isdecimal() and word.isascii() and self._has(word))]
        if wrong or not words:
            found = f"{wrong[0][:20]!r} is no token" if wrong else "no token is given"
            raise ValueError(f"encode: {found}; texts are numbers from 0 to {self.vocab_size - 1}, with blanks between")
        return np.array(words, np.int32)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
        """Return the tokens of many texts; errors are those of `encode`."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text, (T,) int32, and the positions of their first and after their last digit."""
        return self.encode(text), np.array([word.span() for word in re.finditer(r"\S+", text)])

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the numbers of tokens, each after a blank.

        Raises:
            ValueError: A number is not a token.
        """
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the number of each token, after a blank; `after` has no effect.

        Raises:
            ValueError: A number is not a token.
        """
        for token in tokens:
            if not 0 <= int(token) < self.vocab_size:
                raise ValueError(f"decode: {int(token)} is no token; they are 0 to {self.vocab_size - 1}")
            yield f" {int(token)}"

    def token(self, number: int) -> str:
        """Return the number of a token as text."""
        return str(number)

    def to_json(self) -> str:
        """Raise ValueError: a tokenizer.json cannot describe texts of numbers."""
        raise ValueError("NumberTokenizer: a tokenizer.json has no form for texts of numbers")

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `from_dict` takes."""
        special = {"special": found} if (found := self.special.to_dict()) else {}
        return {"kind": "numbers", "vocab_size": self.vocab_size, **special}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """Return the tokenizer that `to_dict` described.

        Raises:
            ValueError: `saved` is anything else.
        """
        keys = saved.keys() - {"special"} if isinstance(saved, dict) else ()
        if keys != {"kind", "vocab_size"} or saved["kind"] != "numbers":
            raise ValueError("NumberTokenizer: this is not a number tokenizer's dict")
        return cls(saved["vocab_size"], SpecialTokens.from_dict(saved.get("special", {})))

    def __repr__(self) -> str:
        return f"NumberTokenizer({self.vocab_size} tokens)"

    def _has(self, word: str) -> bool:
        return len(word) <= 10 and int(word) < self.vocab_size
