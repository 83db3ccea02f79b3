"""Texts of tokens that come one by one."""

from collections import deque
from collections.abc import Sequence

from polyarr.text.tokenizer import Tokenizer


class TextStream:
    """Text of tokens that come one by one.

    Args:
        tokenizer: The tokenizer.
        after: Tokens before them, whose text is not repeated.

    Examples:
        >>> from polyarr.text import CharTokenizer
        >>> from polyarr.text.streams import TextStream
        >>> stream = TextStream(CharTokenizer("abc"), after=[0])
        >>> stream.add(2), stream.rest()
        ('c', '')
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int]) -> None:
        self._given: deque[int | None] = deque()
        self._parts = tokenizer.stream(iter(self._given.popleft, None), after=after)

    def add(self, token: int) -> str:
        """Add a token, and return the characters that became complete."""
        self._given.append(token)
        return next(self._parts)

    def rest(self) -> str:
        """Return the rest of the text; no more tokens can be added."""
        self._given.append(None)
        return "".join(self._parts)

    @staticmethod
    def add_each(streams: "Sequence[TextStream]", tokens: Sequence[int]) -> list[str]:
        """Add a token to each of several streams of one tokenizer, and return what `add` does for each."""
        return [stream.add(token) for stream, token in zip(streams, tokens, strict=True)]
