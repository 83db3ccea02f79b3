"""The protocol of tokenizers, and loading tokenizers of all kinds."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from polyarr.files import read_regular
from polyarr.saving.gguf_file import is_gguf
from polyarr.schema import loaded_json
from polyarr.text.characters import CharTokenizer
from polyarr.text.chat import ChatTemplate
from polyarr.text.gguf import load_gguf_tokenizer
from polyarr.text.numbers import NumberTokenizer
from polyarr.text.special import SpecialTokens, read_settings, special_tokens_of
from polyarr.text.subword import SubwordTokenizer, from_vocab_and_merges

MAX_TOKENIZER = 2**27  # bytes of a file
_KINDS: dict[str, type[CharTokenizer] | type[NumberTokenizer] | type[SubwordTokenizer]]
_KINDS = {"characters": CharTokenizer, "numbers": NumberTokenizer, "tokenizer.json": SubwordTokenizer}
_FILE, _CONFIG, _VOCABULARY, _MERGES = "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"
_SENTENCEPIECE = "tokenizer.model"
_CHAT = "chat_template.jinja"


class Tokenizer(Protocol):
    """Protocol of tokenizers, which turn text to integers and back.

    A tokenizer is saved with the model that was trained on its tokens.

    Attributes:
        vocab_size: Number of tokens; tokens are below it.
        unit: Name of tokens in messages: "characters" or "tokens".
        begin: Tokens that `encode` puts before a text, such as <s>; () if there are none.
        end: The token after the end of a text, or None.
        special: Special tokens that the files of the model name.
        chat: Chat template of the model, or None.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def unit(self) -> str: ...

    @property
    def begin(self) -> tuple[int, ...]: ...

    @property
    def end(self) -> int | None: ...

    @property
    def special(self) -> SpecialTokens: ...

    @property
    def chat(self) -> ChatTemplate | None: ...

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a generated text, `end` first."""
        ...

    def with_special(self, special: SpecialTokens) -> Self:
        """Return the tokenizer with further special tokens, those of another file."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """Return the tokens of a text, (T,) int32.

        Args:
            text: The text.
            add_special_tokens: Whether to add the tokens that belong around a text, such as <s> before it.

        Raises:
            ValueError: The text has characters that are not in the vocabulary; the error names them.
        """
        ...

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
        """Return the tokens of many texts; errors are those of `encode`."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text, (T,) int32, without special tokens around it, and their characters (T, 2).

        Token t stands for the characters from offsets[t, 0] to before offsets[t, 1]; several may share a character.

        Raises:
            ValueError: As in `encode`.
        """
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens.

        Raises:
            ValueError: A number is not a token.
        """
        ...

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the text of tokens in pieces, one for each token, and at the end the rest, if there is one.

        A character may take several tokens; then a piece is empty until the character is complete.

        Args:
            tokens: The tokens.
            after: Tokens before them, whose text is not repeated.

        Raises:
            ValueError: A number is not a token.
        """
        ...

    def token(self, number: int) -> str:
        """Return the text of a token, for lists of tokens."""
        ...

    def to_json(self) -> str:
        """Return the content of a tokenizer.json, for other programs.

        Raises:
            ValueError: A tokenizer.json cannot describe this tokenizer.
        """
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `tokenizer_from_dict` takes."""
        ...


def tokenizer_from_dict(saved: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that its method `to_dict` described.

    Args:
        saved: The dict.

    Raises:
        ValueError: `saved` is anything else.
        RuntimeError: The library that the tokenizer needs is missing.

    Examples:
        >>> from polyarr.text import CharTokenizer, tokenizer_from_dict
        >>> tokenizer_from_dict(CharTokenizer("abc").to_dict())
        CharTokenizer(3 characters)
    """
    kind = saved.get("kind") if isinstance(saved, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"tokenizer_from_dict: its kind must be one of {', '.join(_KINDS)}")
    return _KINDS[kind].from_dict(saved)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a file or a folder.

    A file may be a tokenizer.json, GPT-2's vocab.json or merges.txt, a GGUF file, or the JSON of `to_dict`. A folder
    has a tokenizer.json, or GPT-2's two files. From the folder of a Hugging Face tokenizer, tokenizer_config.json names
    the end token, chat_template.jinja is the chat template, and generation_config.json and config.json name further end
    tokens.

    Args:
        path: The file or the folder.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is damaged, or is not a tokenizer.
        RuntimeError: The library tokenizers, or gguf for a GGUF file, is missing.
    """
    path = Path(path)
    if is_gguf(path):
        return load_gguf_tokenizer(path)
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and not has_tokenizer(path):
        raise FileNotFoundError(f"{path}: no {_FILE} is here, nor {_VOCABULARY} and {_MERGES}{_of_sentencepiece(path)}")
    if path.is_dir() and os.path.lexists(path / _FILE):
        path /= _FILE
    try:
        special, chat = _settings(folder)
        if path.is_dir() or path.name in (_FILE, _VOCABULARY, _MERGES):  # other files may lie beside any config.json
            special = special.union(special_tokens_of(folder))
        if path.is_dir() or path.name in (_VOCABULARY, _MERGES):
            return from_vocab_and_merges(_text(folder / _VOCABULARY), _text(folder / _MERGES), chat, special)
        return _loaded(_text(path), chat, special)
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(f"{path}: ") else f"{path}: {error}") from error


def start_of(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that begin a text without a prompt: the tokenizer's `begin`, else its `end`, else [].

    Args:
        tokenizer: The tokenizer.

    Examples:
        >>> from polyarr.text import CharTokenizer, start_of
        >>> start_of(CharTokenizer("abc"))
        []
    """
    return list(tokenizer.begin) or ([] if tokenizer.end is None else [tokenizer.end])


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a file of a tokenizer, which may be damaged, or a broken link."""
    return any(os.path.lexists(folder / name) for name in (_FILE, _VOCABULARY, _MERGES))


def _of_sentencepiece(folder: Path) -> str:
    """Return a hint for an error if a folder has a SentencePiece tokenizer only, else ""."""
    if not (folder / _SENTENCEPIECE).exists():
        return ""
    return (
        f"; {_SENTENCEPIECE}, which is SentencePiece's, is not read: in Python, transformers.AutoTokenizer."
        f"from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r}) writes a {_FILE}"
    )


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers give the same tokens for every text.

    Chat templates and the special tokens that the files of a model name are ignored.

    Args:
        one: A tokenizer.
        other: Another tokenizer.

    Examples:
        >>> from polyarr.text import CharTokenizer, same_tokens
        >>> same_tokens(CharTokenizer("abc"), CharTokenizer("cba"))
        True
    """
    no_matter = {"chat": None, "special": None}
    return {**one.to_dict(), **no_matter} == {**other.to_dict(), **no_matter}


def _loaded(text: str, chat: ChatTemplate | None, special: SpecialTokens) -> Tokenizer:
    if '"kind"' not in text[:20]:
        return SubwordTokenizer(text, chat=chat, special=special)
    return tokenizer_from_dict(loaded_json(text))


def _text(path: Path) -> str:
    return read_regular(path, MAX_TOKENIZER).decode()


def _settings(folder: Path) -> tuple[SpecialTokens, ChatTemplate | None]:
    """Return the special tokens and the chat template that the files beside a tokenizer name."""
    config = read_settings(folder / _CONFIG)
    chat = _text(folder / _CHAT) if os.path.lexists(folder / _CHAT) else None
    return SpecialTokens.of(config), ChatTemplate.of(chat, config)
