"""Tokenizers by the library `tokenizers`: what a tokenizer.json says, byte-level BPE first of all."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from polyarr.extras import extra
from polyarr.schema import in_one_line
from polyarr.text.characters import refuse_unknown
from polyarr.text.chat import ChatTemplate

END = "<|endoftext|>"
# What ends a text in the vocabularies that are about, where nobody says.
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")
_STRANGE = "\U0010fffd"  # a private character, which no vocabulary has
_SURROGATES = re.compile("[\ud800-\udfff]")
BYTES = 256
_LARGEST = 2**31 - 1  # as GPTConfig has it


class SubwordTokenizer:
    """The tokenizer that the text of a tokenizer.json describes.

    What makes encoding depend on chance or lose text is left out: dropout, truncation, padding. A text that spells
    a special token, such as <|endoftext|>, has that token.

    end   how the token after the end of a text is written; None: the first of those usual ones that there is
    chat  how its model is to be given conversations

    Errors:  ValueError if it describes none; RuntimeError without the library tokenizers
    """

    unit = "tokens"

    def __init__(self, description: str, end: str | None = None, chat: ChatTemplate | None = None) -> None:
        self.chat = chat
        self._library = extra("tokenizers")
        self._tokenizer = tokenizer = _made(self._library.Tokenizer.from_str, description)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None) is not None:
            tokenizer.model.dropout = None
        self._numbers = _made(lambda: tokenizer.get_vocab(with_added_tokens=True))
        self.vocab_size = max(self._numbers.values(), default=-1) + 1
        if not 1 <= self.vocab_size <= _LARGEST:
            raise ValueError("not a tokenizer.json with a vocabulary")
        ends = _ENDS if end is None else (end,)
        self._end = next((name for name in ends if name in self._numbers), None)
        self.end = None if self._end is None else self._numbers[self._end]
        self._unknown = _unknown_token(json.loads(self._json)["model"], self._numbers)
        self._drops = self._unknown is None and not len(_made(self._plain, _STRANGE))
        self._known: set[str] = set()

    @property
    def _json(self) -> str:
        return self._tokenizer.to_str()

    def encode(self, text: str) -> np.ndarray:
        """(T,) int32

        Errors:  ValueError naming the characters that are not in the vocabulary
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """encode for many texts, on all cores.

        Errors:  as encode
        """
        for text in texts:
            refuse_unknown(_SURROGATES.findall(text), self)
            if self._drops:
                refuse_unknown(self._dropped(text), self)
        found = _made(self._tokenizer.encode_batch_fast, list(texts), add_special_tokens=False)
        tokens = [np.array(encoding.ids, np.int32) for encoding in found]
        if self._unknown is not None:
            for text, numbers in zip(texts, tokens, strict=True):
                if (numbers == self._unknown).any():
                    refuse_unknown(self._missed(text), self)
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of tokens; bytes that are no UTF-8 are U+FFFD.

        Errors:  ValueError for a number that is no token
        """
        numbers = self._checked(tokens)
        return _made(self._tokenizer.decode, list(numbers), skip_special_tokens=False)

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """The parts of the text of tokens, each as soon as its characters are whole: one for each token, which may be
        empty, and at the end what is left.

        after  the tokens before them, whose text is not given again

        Errors:  as decode
        """
        before = self.decode(after)
        decoder = self._library.decoders.DecodeStream(ids=list(after), skip_special_tokens=False)
        seen, length = list(after), len(before)
        for number in self._checked(tokens):
            seen.append(number)
            part = _made(decoder.step, self._tokenizer, number) or ""
            length += len(part)
            yield part
        rest = self.decode(seen)[length:]
        if rest:
            yield rest

    def token(self, number: int) -> str:
        """How a token is written in the vocabulary."""
        return self._tokenizer.id_to_token(number) or ""

    def number(self, token: str) -> int | None:
        """The number of a token that is written so; None if there is none."""
        return self._numbers.get(token)

    def to_json(self) -> str:
        """The text of a tokenizer.json, for any program that reads these."""
        return self._tokenizer.to_str(pretty=True)

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        chat = {"chat": self.chat.to_dict()} if self.chat else {}
        return {"kind": "tokenizer.json", "json": self._json, "end": self._end, **chat}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The tokenizer that to_dict described.

        Errors:  ValueError for anything else
        """
        text, end, keys = saved.get("json"), saved.get("end"), saved.keys() - {"chat"}
        if keys != {"kind", "json", "end"} or not isinstance(text, str) or not isinstance(end, str | None):
            raise ValueError("SubwordTokenizer: this is not a subword tokenizer's dict")
        made = cls(text, end, ChatTemplate.from_dict(saved["chat"]) if "chat" in saved else None)
        if made._end != end:
            raise ValueError(f"SubwordTokenizer: {end!r}, which is to end a text, is not in the vocabulary")
        return made

    def __repr__(self) -> str:
        return f"SubwordTokenizer({self.vocab_size} tokens)"

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _checked(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            number = int(token)
            if not 0 <= number < self.vocab_size:
                raise ValueError(f"decode: {number} is no token; they are 0 to {self.vocab_size - 1}")
            yield number

    def _dropped(self, text: str) -> set[str]:
        """The characters that the library would leave out without a word."""
        new = set(text) - self._known
        lost = {c for c in new if not c.isspace() and not len(_made(self._plain, c))}
        self._known |= new - lost
        return lost

    def _missed(self, text: str) -> str:
        """The characters of the pieces that became the token for unknown ones."""
        found = _made(self._tokenizer.encode, text, add_special_tokens=False)
        pieces = zip(found.ids, found.offsets, strict=True)
        return "".join(text[slice(*at)] for number, at in pieces if number == self._unknown)


def train_bpe(texts: Iterable[str], size: int) -> SubwordTokenizer:
    """A byte-level BPE tokenizer of at most `size` tokens, learned from texts; so it can write any text.

    The bytes are 256 tokens, <|endoftext|> is one. There are fewer if the texts have not so many
    pairs that occur twice.

    Errors:  ValueError for a size below 257; RuntimeError without the library tokenizers
    """
    if not BYTES < size <= _LARGEST:
        raise ValueError(f"train_bpe: size is {size}; it must be at least {BYTES + 1}, for the bytes and {END}")
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
    """A token for each byte of UTF-8, and <|endoftext|>.

    Errors:  RuntimeError without the library tokenizers
    """
    return train_bpe((), BYTES + 1)


def merged(
    vocabulary: str, merges: str, end: str | None = None, chat: ChatTemplate | None = None
) -> SubwordTokenizer:
    """The tokenizer of GPT-2's two files, given as texts.

    Errors:  ValueError if one is damaged
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
    if not isinstance(numbers, dict) or not all(type(n) is int and 0 <= n < _LARGEST for n in numbers.values()):
        raise ValueError("vocab.json must be an object of tokens and their numbers")
    tokenizer = _byte_level(_made(extra("tokenizers").models.BPE, vocab=numbers, merges=pairs))
    tokenizer.add_special_tokens([name for name in {end or END} if name in numbers])
    return SubwordTokenizer(tokenizer.to_str(), end, chat)


def _byte_level(model: Any) -> Any:
    """GPT-2's way to words: any text as bytes, cut before blanks."""
    library = extra("tokenizers")
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _unknown_token(model: dict[str, Any], numbers: dict[str, int]) -> int | None:
    """The number that the library puts for what it does not know, if there is one."""
    if model.get("byte_fallback"):
        return None
    name = model.get("unk_token")
    return numbers.get(name) if isinstance(name, str) else model.get("unk_id")


def _made(work: Any, *args: Any, **settings: Any) -> Any:
    """What the library makes; it raises plain Exceptions, and where its own checks fail, no Exception even."""
    try:
        return work(*args, **settings)
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"no tokenizer.json, or a damaged one: {in_one_line(error)}") from error
