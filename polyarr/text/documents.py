"""Documents for evaluation: texts and records, each with the tokens that are scored."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyarr.text.records import are_records, encoded_records
from polyarr.text.sources import FIELD, is_json_lines, read_pieces
from polyarr.text.tokenizer import Tokenizer, start_of
from polyarr.text.tokens import unmarked


class Document(NamedTuple):
    """Text or record whose tokens are scored, given those before them.

    Attributes:
        name: The file, with a number for JSON lines.
        tokens: Tokens, (T,) int32.
        is_scored: Which of them are scored, (T,) bool; the first never is.
        bytes: Size of the scored text in UTF-8.
    """

    name: str
    tokens: np.ndarray
    is_scored: np.ndarray
    bytes: int


def read_documents(files: Sequence[Path], tokenizer: Tokenizer, field: str = FIELD) -> Iterator[Document]:
    """Yield the documents of files: each text file, and each text or record of JSON lines.

    The tokens that begin a text, or else the end token, which came before it in training, are before each text and are
    not scored; without these, the first token of a text is not. Of records, the learned tokens are scored.

    Args:
        files: Text files, or JSON lines (.jsonl, .ndjson).
        tokenizer: The tokenizer of the model.
        field: Key of the text in JSON lines.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is empty, not UTF-8 or not JSON lines, has unknown characters, or a record is not valid.
    """
    for path in files:
        if are_records([path], field):
            for number, (marked, _) in enumerate(encoded_records([path], tokenizer), 1):
                tokens, is_learned = unmarked(marked)
                size = len(tokenizer.decode(tokens[is_learned].tolist()).encode())
                yield Document(f"{path}: record {number}", tokens, is_learned, size)
        else:
            for number, pieces in enumerate(_texts(path, field), 1):
                name = f"{path}: text {number}" if is_json_lines(path) else str(path)
                yield _of_text(name, pieces, tokenizer)


def _texts(path: Path, field: str) -> Iterator[list[str]]:
    pieces: list[str] = []
    for piece in read_pieces([path], field):
        if piece is None:
            yield pieces
            pieces = []
        else:
            pieces.append(piece)


def _of_text(name: str, pieces: list[str], tokenizer: Tokenizer) -> Document:
    start = start_of(tokenizer)
    try:
        encoded = tokenizer.encode_batch(pieces, add_special_tokens=False)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    tokens = np.concatenate([np.array(start, np.int32), *encoded])
    is_scored = np.arange(len(tokens)) >= max(len(start), 1)
    size = sum(len(piece.encode()) for piece in pieces)
    return Document(name, tokens, is_scored, size if start else size - len(tokenizer.decode(tokens[:1]).encode()))
