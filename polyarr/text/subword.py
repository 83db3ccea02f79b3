"""Subword tokenizers by the library `tokenizers`, as a tokenizer.json describes them; first of all byte-level BPE."""

import copy
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, Self

import numpy as np

from polyarr.extras import extra
from polyarr.schema import in_one_line
from polyarr.text.characters import refuse_unknown
from polyarr.text.chat import ChatTemplate
from polyarr.text.panics import is_panic, without_panics
from polyarr.text.special import SpecialTokens

END = "<|endoftext|>"
# Usual end-of-text tokens, for files that do not name theirs.
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")
_UNUSED_CHARACTER = "\U0010fffd"  # a private-use character that no vocabulary has
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"  # stands for bytes that are not UTF-8, or not yet complete
BYTES = 256
_MAX_VOCAB_SIZE = 2**31 - 1  # the largest vocab_size of a GPTConfig


class SubwordTokenizer:
    """Tokenizer that a tokenizer.json describes.

    Settings that would make encoding random or lose text are switched off: dropout, truncation and padding. A text that
    spells a special token, such as <|endoftext|>, becomes that token.

    Args:
        description: Content of a tokenizer.json.
        end: Text of the token after the end of a text. None: the eos_token or the first eos of `special`, or the first
            of the usual ones, such as <|endoftext|>, that is in the vocabulary.
        chat: Chat template of the model, or None.
        special: Special tokens that the files of the model name; None: none.

    Attributes:
        control: Texts of the special tokens, by number.

    Raises:
        ValueError: The description is damaged.
        RuntimeError: The library tokenizers is missing.
    """

    unit = "tokens"

    def __init__(
        self,
        description: str,
        end: str | None = None,
        chat: ChatTemplate | None = None,
        special: SpecialTokens | None = None,
    ) -> None:
        self.chat, self.special = chat, special or SpecialTokens()
        self._library = extra("tokenizers")
        with without_panics():
            self._tokenizer = tokenizer = _call_library(self._library.Tokenizer.from_str, description)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None) is not None:
            tokenizer.model.dropout = None
        self._numbers = _call_library(lambda: tokenizer.get_vocab(with_added_tokens=True))
        self.vocab_size = max(self._numbers.values(), default=-1) + 1
        if not 1 <= self.vocab_size <= _MAX_VOCAB_SIZE:
            raise ValueError("not a tokenizer.json with a vocabulary")
        self._set_end(self._usual_end() if end is None else end)
        self._unknown = _unknown_token(json.loads(self._json)["model"], self._numbers)
        added = _call_library(tokenizer.get_added_tokens_decoder).items()
        self.control = {number: token.content for number, token in added if token.special and token.content}
        self._known: set[str] = set()

    @property
    def _json(self) -> str:
        return self._tokenizer.to_str()

    @cached_property
    def _drops_unknown(self) -> bool:
        """Return whether the library drops unknown characters; computed when a text is first encoded."""
        return self._unknown is None and self._has_no_token(_UNUSED_CHARACTER)

    @property
    def begin(self) -> tuple[int, ...]:
        """Tokens that the post-processor puts before a text; computed on first use, by encoding a text."""
        return self._begin

    @cached_property  # in which pyright does not see the property that Tokenizer has
    def _begin(self) -> tuple[int, ...]:
        added = _call_library(self._tokenizer.num_special_tokens_to_add, False)
        for text in ("a", "1", *self._numbers) if added else ():
            plain = [] if self._has_no_token(text) else self._plain(text)
            if plain:
                whole = _call_library(self._tokenizer.encode, text).ids
                return tuple(whole[: next(n for n in range(len(whole)) if whole[n : n + len(plain)] == plain)])
        return ()

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a generated text: `end`, and those that the files of its model name."""
        first = () if self.end is None else (self.end,)
        return first + tuple(n for n in self.special.eos if n < self.vocab_size and n != self.end)

    def with_special(self, special: SpecialTokens) -> Self:
        """Return the tokenizer with further special tokens, those of another file."""
        found = copy.copy(self)
        found.special = self.special.union(special)
        return found

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """Return the tokens of a text, (T,) int32.

        Args:
            text: The text.
            add_special_tokens: Whether to add the tokens that the tokenizer.json puts around a text, such as <s>. A
                chat template writes these itself, so its text is encoded without them.

        Raises:
            ValueError: The text has characters that are not in the vocabulary; the error names them.
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
        """Return the tokens of many texts, computed on all cores; errors are those of `encode`."""
        with without_panics():
            for text in texts:
                refuse_unknown(_SURROGATES.findall(text), self)
                if self._drops_unknown:
                    refuse_unknown(self._dropped_characters(text), self)
            found = _call_library(self._tokenizer.encode_batch_fast, list(texts), add_special_tokens=add_special_tokens)
        tokens = [np.array(encoding.ids, np.int64) for encoding in found]
        for numbers in tokens:
            if numbers.size and numbers.max() >= self.vocab_size:  # a post-processor may add any number
                beyond = f"tokenizer.json adds token {numbers.max()} to a text; there are {self.vocab_size}"
                raise ValueError(f"encode: {beyond}")
        tokens = [numbers.astype(np.int32) for numbers in tokens]
        if self._unknown is not None:
            for text, numbers in zip(texts, tokens, strict=True):
                if (numbers == self._unknown).any():  # no post-processor adds this token, so it comes from the text
                    refuse_unknown(self._unknown_characters(text), self)
        return tokens

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text, (T,) int32, without special tokens around it, and their characters (T, 2).

        Token t stands for the characters from offsets[t, 0] to before offsets[t, 1]; several may share a character.

        Raises:
            ValueError: As in `encode`.
        """
        tokens = self.encode(text, add_special_tokens=False)
        found = _call_library(self._tokenizer.encode, text, add_special_tokens=False)
        return tokens, np.array(found.offsets, np.int64).reshape(-1, 2)

    def encode_marked(self, text: str, mark: str) -> np.ndarray:
        """Return the tokens of a text without its marks, (T,) int32; no token spans a mark.

        Raises:
            ValueError: The tokenizer has no tokens that end at a mark.
        """
        found = _call_library(self._tokenizer.encode, text, add_special_tokens=False)
        pieces = [(number, text[slice(*at)]) for number, at in zip(found.ids, found.offsets, strict=True)]
        if any(mark in piece and piece.strip(mark) for _, piece in pieces):
            raise ValueError("a control token is spelled out, which this tokenizer cannot encode as text")
        return np.array([number for number, piece in pieces if mark not in piece], np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of a sequence of tokens; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: A number is not a token.
        """
        numbers = self._checked(tokens)
        return _call_library(self._tokenizer.decode, list(numbers), skip_special_tokens=False)

    @cached_property
    def bytes_of(self) -> Mapping[int, bytes] | None:
        """The bytes of each token, if the text of tokens is their bytes and no more, as in GPT-2's files; else None."""
        if not isinstance(self._tokenizer.decoder, self._library.decoders.ByteLevel):
            return None
        return {number: of_byte_level(self.token(number)) for number in self._numbers.values()}

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the text of tokens in pieces, one for each token, and at the end the rest, if there is one.

        A piece may be empty, if its characters are not complete yet. All pieces together are the text of `decode`;
        bytes that are not UTF-8 become U+FFFD.

        Args:
            tokens: The tokens.
            after: Tokens before them, whose text is not repeated.

        Raises:
            ValueError: A number is not a token.
        """
        if self.bytes_of is not None:
            yield from self._stream_bytes(self.bytes_of, tokens, after)
            return
        window = list(after)  # tokens since the last but one complete character; the next piece depends on them
        text = self.decode(window)
        given, whole = len(text) - self._in_doubt(window, text), len(window)
        for number in self._checked(tokens):
            window.append(number)
            if self._is_byte(number):  # a run of bytes is decoded at its end: if one is not UTF-8, all are U+FFFD
                yield ""
                continue
            text = self.decode(window)
            certain = len(text) - text.endswith(_REPLACEMENT)  # a last U+FFFD may be an incomplete character
            yield text[given:certain]
            given = max(given, certain)
            if certain == len(text):
                window, whole = window[whole:], len(window) - whole
                given = len(self.decode(window))
        if rest := self.decode(window)[given:]:
            yield rest

    def _stream_bytes(
        self, bytes_of: Mapping[int, bytes], tokens: Iterable[int], after: Sequence[int]
    ) -> Iterator[str]:
        decoder = getincrementaldecoder("utf-8")("replace")
        for number in self._checked(after):
            decoder.decode(bytes_of.get(number, b""))
        for number in self._checked(tokens):
            yield decoder.decode(bytes_of.get(number, b""))
        if rest := decoder.decode(b"", final=True):
            yield rest

    def _in_doubt(self, tokens: Sequence[int], text: str) -> int:
        """Return the number of characters at the end of a text that are bytes which later ones may complete."""
        count = next((n for n, token in enumerate(reversed(tokens)) if not self._is_byte(token)), len(tokens))
        return max(count, 1) if text.endswith(_REPLACEMENT * max(count, 1)) else 0

    def _is_byte(self, number: int) -> bool:
        """Return whether a token is one byte, as tokenizers with byte fallback write them: <0x0A>."""
        token = self.token(number)
        return len(token) == 6 and token.startswith("<0x") and token.endswith(">")

    def token(self, number: int) -> str:
        """Return the text of a token in the vocabulary."""
        return self._tokenizer.id_to_token(number) or ""

    def number(self, token: str) -> int | None:
        """Return the number of the token with this text, or None if there is none."""
        return self._numbers.get(token)

    def to_json(self) -> str:
        """Return the content of a tokenizer.json, for other programs."""
        return self._tokenizer.to_str(pretty=True)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `from_dict` takes."""
        chat = {"chat": self.chat.to_dict()} if self.chat else {}
        special = {"special": found} if (found := self.special.to_dict()) else {}
        return {"kind": "tokenizer.json", "json": self._json, "end": self._end, **chat, **special}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """Return the tokenizer that `to_dict` described.

        Raises:
            ValueError: `saved` is anything else.
        """
        text, end, keys = saved.get("json"), saved.get("end"), saved.keys() - {"chat", "special"}
        if keys != {"kind", "json", "end"} or not isinstance(text, str) or not isinstance(end, str | None):
            raise ValueError("SubwordTokenizer: this is not a subword tokenizer's dict")
        chat = ChatTemplate.from_dict(saved["chat"]) if "chat" in saved else None
        made = cls(text, end, chat, SpecialTokens.from_dict(saved.get("special", {})))
        made._set_end(end)  # None means that the saved tokenizer has no end token, not the usual one
        if made._end != end:
            raise ValueError(f"SubwordTokenizer: {end!r}, which is to end a text, is not in the vocabulary")
        return made

    def __repr__(self) -> str:
        return f"SubwordTokenizer({self.vocab_size} tokens)"

    def _set_end(self, end: str | None) -> None:
        """Set the end token to the one with this text, if it is in the vocabulary."""
        self._end = end if end in self._numbers else None
        self.end = None if self._end is None else self._numbers[self._end]

    def _usual_end(self) -> str | None:
        """Return the text of the end token that the model's files name, or else of a usual one, or None."""
        named = [self.special.names.get("eos_token", ""), *map(self.token, self.special.eos[:1])]
        return next((name for name in (*named, *_ENDS) if name in self._numbers), None)

    def _plain(self, text: str) -> list[int]:
        return _call_library(self._tokenizer.encode, text, add_special_tokens=False).ids

    def _has_no_token(self, text: str) -> bool:
        """Return whether the library drops a text silently, or lacks a token for unknown words."""
        try:
            return not self._plain(text)
        except ValueError as error:
            if "Missing [UNK]" not in str(error):
                raise
            return True

    def _checked(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            number = int(token)
            if not 0 <= number < self.vocab_size:
                raise ValueError(f"decode: {number} is no token; they are 0 to {self.vocab_size - 1}")
            yield number

    def _dropped_characters(self, text: str) -> set[str]:
        """Return the characters of a text that the library would drop silently."""
        new = set(text) - self._known
        lost = {c for c in new if not c.isspace() and self._has_no_token(c)}
        self._known |= new - lost
        return lost

    def _unknown_characters(self, text: str) -> str:
        """Return the characters of the pieces that became the token for unknown ones."""
        found = _call_library(self._tokenizer.encode, text, add_special_tokens=False)
        pieces = zip(found.ids, found.offsets, strict=True)
        return "".join(text[slice(*at)] for number, at in pieces if number == self._unknown)


def train_bpe(texts: Iterable[str], size: int) -> SubwordTokenizer:
    """Train a byte-level BPE tokenizer, which can encode any text.

    The vocabulary has the 256 bytes and <|endoftext|>. It stays below `size` if the texts have too few pairs of tokens
    that occur at least twice.

    Args:
        texts: The texts.
        size: Largest number of tokens, at least 257.

    Raises:
        TypeError: `texts` is one text instead of several.
        ValueError: `size` is out of range.
        RuntimeError: The library tokenizers is missing.

    Examples:
        >>> from polyarr.text import train_bpe
        >>> tokenizer = train_bpe(["to be or not to be"], size=260)
        >>> tokenizer.vocab_size, tokenizer.decode(tokenizer.encode("to be"))
        (260, 'to be')
    """
    if not BYTES < size <= _MAX_VOCAB_SIZE:
        raise ValueError(f"train_bpe: size is {size}; it must be at least {BYTES + 1}, for the bytes and {END}")
    if isinstance(texts, str):  # each character would be a text, which has no pairs
        raise TypeError("train_bpe: texts is one text; it must be a list of texts, or another iterable")
    library = extra("tokenizers")
    tokenizer = _byte_level(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokenizer(tokenizer.to_str())


def byte_tokenizer() -> SubwordTokenizer:
    """Return the tokenizer with one token for each byte of UTF-8, and <|endoftext|>.

    Raises:
        RuntimeError: The library tokenizers is missing.

    Examples:
        >>> from polyarr.text import byte_tokenizer
        >>> byte_tokenizer().vocab_size
        257
    """
    return train_bpe((), BYTES + 1)


def from_vocab_and_merges(
    vocabulary: str, merges: str, chat: ChatTemplate | None = None, special: SpecialTokens | None = None
) -> SubwordTokenizer:
    """Return the tokenizer of GPT-2's vocab.json and merges.txt, given as texts.

    Raises:
        ValueError: A file is damaged.
    """
    try:
        numbers = json.loads(vocabulary)
    except RecursionError as error:
        raise ValueError("vocab.json is nested too deeply") from error
    lines = [line.rstrip("\n") for line in merges.split("\n")]
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong:
        raise ValueError(f"a line of merges.txt is {in_one_line(' '.join(wrong))!r}; it must be two tokens and a blank")
    if not isinstance(numbers, dict) or not all(type(n) is int and 0 <= n < _MAX_VOCAB_SIZE for n in numbers.values()):
        raise ValueError("vocab.json must be an object of tokens and their numbers")
    tokenizer = _byte_level(_call_library(extra("tokenizers").models.BPE, vocab=numbers, merges=pairs))
    end = special.names.get("eos_token", END) if special else END
    tokenizer.add_special_tokens([end] if end in numbers else [])
    return SubwordTokenizer(tokenizer.to_str(), None, chat, special)


def _byte_level(model: Any) -> Any:
    """Return a library tokenizer with GPT-2's pre-tokenizer: texts as bytes, cut before blanks."""
    library = extra("tokenizers")
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _byte_characters() -> Iterator[str]:
    """Yield the characters that stand for the bytes 0 to 255 in vocabularies of bytes, as GPT-2's."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(0x100)
    return (chr(byte if byte in visible else next(others)) for byte in range(BYTES))


_BYTE_OF = {character: n for n, character in enumerate(_byte_characters())}


def of_byte_level(token: str) -> bytes:
    """Return the bytes of a token of such a vocabulary; an added token is text."""
    return bytes(map(_BYTE_OF.__getitem__, token)) if _BYTE_OF.keys() >= set(token) else token.encode()


def _unknown_token(model: dict[str, Any], numbers: dict[str, int]) -> int | None:
    """Return the number of the token for unknown pieces, or None if there is none."""
    if model.get("byte_fallback"):
        return None
    name = model.get("unk_token")
    return numbers.get(name) if isinstance(name, str) else model.get("unk_id")


def _call_library(work: Any, *args: Any, **settings: Any) -> Any:
    """Return the result of a library call, with its errors, plain Exceptions and panics, raised as ValueError."""
    try:
        return work(*args, **settings)
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        raise ValueError(f"no tokenizer.json, or a damaged one: {in_one_line(error)}") from error
