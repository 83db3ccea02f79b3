"""What a tokenizer is, and where those of all kinds are loaded from."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polyarr.schema import in_one_line
from polyarr.text.characters import CharTokenizer
from polyarr.text.chat import ChatTemplate, written
from polyarr.text.files import read_regular
from polyarr.text.numbers import NumberTokenizer
from polyarr.text.subword import SubwordTokenizer, merged

MAX_TOKENIZER = 2**27  # bytes of a file
_KINDS: dict[Any, type] = {"characters": CharTokenizer, "numbers": NumberTokenizer, "tokenizer.json": SubwordTokenizer}
_FILE, _CONFIG, _VOCABULARY, _MERGES = "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"
_CHAT = "chat_template.jinja"


class Tokenizer(Protocol):
    """Text to integers and back; a value that is saved with the model that knows its numbers.

    vocab_size  how many numbers there are: tokens are below it
    unit        what tokens are called: "characters" or "tokens"
    end         the token after the end of a text, or None
    chat        how its model is to be given conversations, or None
    """

    vocab_size: int
    unit: str
    end: int | None
    chat: ChatTemplate | None

    def encode(self, text: str) -> np.ndarray:
        """(T,) int32; ValueError naming the characters that the vocabulary lacks."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """encode for many texts."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; ValueError for a number that is none."""

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """The parts of the text of tokens that follow others: one for each, and at the end what is left.

        A character may be of several tokens; then a part is empty until it is known.
        """

    def token(self, number: int) -> str:
        """How a token is written where tokens are listed."""

    def to_dict(self) -> dict[str, Any]:
        """What tokenizer_from_dict takes, and JSON can hold."""


def tokenizer_from_dict(saved: dict[str, Any]) -> Tokenizer:
    """The tokenizer that to_dict described.

    Errors:  ValueError for anything else; RuntimeError without the library that it needs
    """
    kind = saved.get("kind") if isinstance(saved, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"tokenizer_from_dict: its kind must be one of {', '.join(_KINDS)}")
    return _KINDS[kind].from_dict(saved)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a file: a tokenizer.json, or what to_dict gives as JSON; or of a folder.

    In a folder it is tokenizer.json, or GPT-2's vocab.json and merges.txt, either of which may be given as well; its
    tokenizer_config.json says which token ends a text, and with chat_template.jinja how conversations are written.

    Errors:  OSError if it cannot be read; ValueError if it is damaged or none; RuntimeError without the library
             tokenizers
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and (path / _FILE).is_file():
        path /= _FILE
    try:
        if path.is_dir() or path.name in (_VOCABULARY, _MERGES):
            return merged(_text(folder / _VOCABULARY), _text(folder / _MERGES), *_settings(folder))
        return _loaded(_text(path), *_settings(folder))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether texts are the same tokens to both; how conversations are written as texts does not matter."""
    mine, theirs = one.to_dict(), other.to_dict()
    return {**mine, "chat": None} == {**theirs, "chat": None}


def _loaded(text: str, end: str | None, chat: ChatTemplate | None) -> Tokenizer:
    if '"kind"' not in text[:20]:
        return SubwordTokenizer(text, end, chat)
    try:
        return tokenizer_from_dict(json.loads(text))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def _text(path: Path) -> str:
    return read_regular(path, MAX_TOKENIZER).decode()


def _settings(folder: Path) -> tuple[str | None, ChatTemplate | None]:
    """The token that ends a text, and the chat template, as the files beside a tokenizer have them."""
    try:
        config = json.loads(_text(folder / _CONFIG))
    except FileNotFoundError:
        config = {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_CONFIG} beside it is damaged: {in_one_line(error)}") from error
    config = config if isinstance(config, dict) else {}
    chat = _text(folder / _CHAT) if (folder / _CHAT).is_file() else None
    return written(config.get("eos_token")), ChatTemplate.of(chat, config)
