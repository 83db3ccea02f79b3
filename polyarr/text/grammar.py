"""Grammars of texts by the library llguidance: which tokens a text may go on with.

This module runs in a worker process: a grammar comes from a client, and may take any time or memory.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from polyarr.extras import extra
from polyarr.schema import in_one_line
from polyarr.text.characters import CharTokenizer
from polyarr.text.subword import SubwordTokenizer, of_byte_level
from polyarr.text.tokenizer import Tokenizer

_COMPILED = 16  # compiled grammars that are kept
# JSON as json.dumps writes it. Free white space would let a model write blanks until its text is full.
_STYLE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_SPELLED = ("Metaspace", "ByteFallback", "Replace")  # decoders of tokens whose blanks are U+2581 and bytes <0x0A>
_PLAIN = ("Fuse", "Sequence", "Strip")  # decoders that keep the characters of a token within a text


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the part of a grammar that is JSON of a schema, without line ends.

    Args:
        schema: The JSON schema.

    Examples:
        >>> from polyarr.text.grammar import json_rule
        >>> json_rule({"type": "integer"}).startswith('%json {"type": "integer"')
        True
    """
    return f"%json {json.dumps({**schema, **_STYLE})}"


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes that each token adds to a text; a missing token adds none.

    Args:
        tokenizer: The tokenizer.

    Raises:
        ValueError: The tokenizer is of a kind whose tokens have no bytes of their own.

    Examples:
        >>> from polyarr.text import CharTokenizer
        >>> from polyarr.text.grammar import token_bytes
        >>> token_bytes(CharTokenizer("aé"))
        [b'a', b'\\xc3\\xa9']
    """
    texts = [tokenizer.token(number) for number in range(tokenizer.vocab_size)]
    if isinstance(tokenizer, CharTokenizer):
        return [text.encode() for text in texts]
    control, decoders = dict[int, str](), {"none"}
    if isinstance(tokenizer, SubwordTokenizer):
        control, decoders = tokenizer.control, _decoders(tokenizer)
    if "ByteLevel" in decoders:
        found = [of_byte_level(text) for text in texts]
    elif decoders <= {*_SPELLED, *_PLAIN}:
        found = [_of_spelled(text) for text in texts]
    else:
        raise ValueError("its tokenizer is neither byte-level, like SentencePiece's, nor of characters")
    for number, text in control.items():
        found[number] = text.encode()
    return found


def _decoders(tokenizer: SubwordTokenizer) -> set[str]:
    decoder: dict[str, Any] = json.loads(tokenizer.to_json())["decoder"] or {"type": "Fuse"}
    return {decoder["type"], *(one["type"] for one in decoder.get("decoders", ()))}


def _of_spelled(text: str) -> bytes:
    byte = re.fullmatch("<0x([0-9A-F]{2})>", text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("\u2581", " ").encode()


class Vocabulary:
    """A tokenizer as llguidance takes one.

    Args:
        tokenizer: The tokenizer. One without a token that ends texts gets one after its last token.
    """

    is_tokenizer_wrapper, bos_token_id = True, None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.tokens = tokenizer, token_bytes(tokenizer)
        self.ends = [*tokenizer.ends] or [len(self.tokens)]
        self.tokens += [] if tokenizer.ends else [b""]
        self.eos_token_id = self.ends[0]
        self.special_token_ids = sorted({*self.ends, *getattr(tokenizer, "control", ())})
        self._numbers = {text: number for number, text in enumerate(self.tokens) if text}
        self._longest = max(map(len, self._numbers))

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text within another; the longest ones where the tokenizer would change the text."""
        data = text.encode()
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False).tolist()
        except ValueError:
            found = []
        return found if b"".join(self.tokens[number] for number in found) == data else self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        found = []
        while data:
            size = next(n for n in range(self._longest, 0, -1) if data[:n] in self._numbers)
            found.append(self._numbers[data[:size]])
            data = data[size:]
        return found


class Grammars:
    """Grammars of one tokenizer's texts.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._open: dict[int, Any] = {}
        self._library, self._refused, self._vocabulary = extra("llguidance", "serve"), "", None
        self._limits = self._library.LLParserLimits(verbose_errors=False)
        self._compiled = lru_cache(_COMPILED)(self._compile)
        try:
            vocabulary = Vocabulary(tokenizer)
            self._vocabulary = self._library.LLTokenizer(vocabulary, eos_token=vocabulary.ends)
        except ValueError as error:
            self._refused = str(error)

    def check(self, grammar: str) -> None:
        """Raise ValueError unless a text can follow a grammar."""
        if self._refused:
            raise ValueError(self._refused)
        found = self._next(self._compiled(grammar).deep_copy())
        if "error" in found:
            raise ValueError(found["error"])

    def open(self, key: int, grammar: str, tokens: Sequence[int]) -> None:
        """Begin a text of a grammar, which has some tokens already."""
        self._open[key] = self._compiled(grammar).deep_copy()
        self._open[key].consume_tokens(list(tokens))

    def masks(self, texts: Sequence[tuple[int, Sequence[int]]], closed: Sequence[int]) -> list[dict[str, Any] | None]:
        """Return the tokens that may follow each text after more tokens; the texts `closed` are dropped.

        Each is a dict with a "mask", one bit per token, in base64; or an "error"; or neither, where nothing may follow.
        It is None for a text that is not open.
        """
        for key in closed:
            self._open.pop(key, None)
        return [self._after(self._open[key], tokens) if key in self._open else None for key, tokens in texts]

    def _after(self, matcher: Any, tokens: Sequence[int]) -> dict[str, Any]:
        matcher.consume_tokens(list(tokens))
        return self._next(matcher)

    def _next(self, matcher: Any) -> dict[str, Any]:
        mask = b"" if matcher.is_stopped() else matcher.compute_bitmask()
        if matcher.is_error():
            return {"error": _reason(matcher.get_error())}
        return {"mask": base64.b64encode(mask).decode()} if not matcher.is_stopped() else {}

    def _compile(self, grammar: str) -> Any:
        matcher = self._library.LLMatcher(self._vocabulary, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(_reason(matcher.get_error()))
        return matcher


def _reason(error: str) -> str:
    """Return the reason of an error of the library, without the grammar and the place in it."""
    if error.startswith("panic"):
        return "the tokenizer has no tokens for a text that it requires"
    text = re.split(r"\n\s+\d+ \| |\n<", error)[0]
    return in_one_line(re.sub(r'^at \d+\(\d+\): |failed to compile JSON schema: |failed to parse "%json": ', "", text))
