"""Folders of prepared tokens: written once, as a whole or not at all, and read from the disk where they are needed.

A folder is what its manifest.json says, which is replaced last; each preparation draws an id for the names of its other
files, so that the manifest before finds its own until the new one is there.
"""

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.saving import alone_in, write_whole, written_whole
from polyarr.schema import in_one_line, parsed_json
from polyarr.text.corpus import VALIDATION, Corpus, Counted, beginning, characters_of, dtype_for, encoded, mapped
from polyarr.text.files import read_regular
from polyarr.text.sources import FIELD, read_pieces
from polyarr.text.tokenizer import MAX_TOKENIZER, Tokenizer, load_tokenizer
from polyarr.version import __version__

FORMAT = "1"
MANIFEST = "manifest.json"
SCHEMA = Path(__file__).with_name("manifest.schema.json")
CHECKED = 2**28  # bytes of tokens that are looked at whenever they are opened: 0.2 s of a core
_MAX_MANIFEST = 2**20  # bytes
_NAMED = 20  # files that a manifest names
_OURS = (MANIFEST, "tokens-*.bin", "tokenizer-*.json", ".tokens-*.tmp", ".tokenizer-*.tmp", f".{MANIFEST}.*.tmp")


def is_prepared(path: Path) -> bool:
    """Whether a path is a folder of prepared tokens."""
    return (path / MANIFEST).is_file()


def has_strangers(folder: Path) -> bool:
    """Whether a folder, if it is there, holds anything that no preparation left."""
    return folder.is_dir() and any(not any(map(path.match, _OURS)) for path in folder.iterdir())


def prepare(
    files: Sequence[Path],
    folder: Path,
    tokenizer: Tokenizer | None = None,
    *,
    validation: float = VALIDATION,
    field: str = FIELD,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """Write the tokens of texts in files into a folder, which is made, or whose tokens are replaced: its manifest.

    Without a tokenizer, tokens are the characters of the texts, which are read twice then.

    validation  which part of the tokens, the last ones, is for validation
    progress    called with how many more bytes of text are done

    Errors:  as read_pieces and encode; ValueError for too few tokens, or a part that is none; OSError if the
             folder cannot be written to, or another process writes to it
    """
    if not 0 < validation < 1:
        raise ValueError(f"prepare: validation is {validation}; it must be between 0 and 1")
    tokenizer = tokenizer or characters_of(read_pieces(files, field))
    was_there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex[:16]
    try:
        with alone_in(folder, "preparation"):
            manifest = _written(folder, name, Counted(read_pieces(files, field), progress), tokenizer, validation)
            manifest["sources"] = {"files": len(files), "first": [str(path) for path in files[:_NAMED]]}
            write_whole(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
            for path in (found for pattern in _OURS for found in folder.glob(pattern)):
                if path.name != MANIFEST and name not in path.name:
                    path.unlink()
    except BaseException:
        for path in folder.glob(f"token*-{name}.*"):
            path.unlink()
        with contextlib.suppress(OSError):
            was_there or folder.rmdir()
        raise
    return manifest


def _written(folder: Path, name: str, counted: Counted, tokenizer: Tokenizer, validation: float) -> dict[str, Any]:
    """Write the tokens and the tokenizer; what a manifest says of them."""
    tokens, described = folder / f"tokens-{name}.bin", folder / f"tokenizer-{name}.json"
    checksum, count, dtype = hashlib.sha256(), 0, dtype_for(tokenizer)
    with written_whole(tokens) as file:
        for part in encoded(counted, tokenizer):
            count += len(part)
            checksum.update(part.data)
            file.write(part.data)
    first = beginning(mapped(tokens, dtype), validation, tokenizer.end)
    if not 0 < first < count - 1:
        raise ValueError(f"prepare: {count} {tokenizer.unit}; there must be some to train on and some to validate with")
    text = json.dumps(tokenizer.to_dict()).encode()
    write_whole(described, text)
    usual = validation == VALIDATION
    return {
        "format": FORMAT,
        "polyarr": __version__,
        "tokens": {"file": tokens.name, "dtype": dtype.name, "count": count, "sha256": checksum.hexdigest()},
        "tokenizer": {
            "file": described.name,
            "vocab_size": tokenizer.vocab_size,
            "sha256": hashlib.sha256(text).hexdigest(),
        },
        "texts": counted.texts,
        "bytes": counted.bytes,
        "digest": counted.digest() if usual else counted.digest(validation),
        "validation": {"part": validation, "first": first},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """What is said of a folder's tokens.

    Errors:  OSError if it cannot be read; ValueError if it is damaged, or of another format
    """
    try:
        text = read_regular(folder / MANIFEST, _MAX_MANIFEST)
        return parsed_json(text, SCHEMA)
    except ValueError as error:
        raise ValueError(f"{folder}: no prepared tokens, or damaged ones: {in_one_line(error)}") from error


def open_prepared(folder: Path, *, check: bool = False) -> Corpus:
    """The tokens of a folder, which stay on the disk until they are asked for.

    check  read them once, however many there are, to see whether they are those that were written; without it, up to
           CHECKED bytes of them are

    Errors:  as read_manifest; ValueError if a file is missing, cut, replaced or changed; RuntimeError without the
             library that the tokenizer needs
    """
    manifest = read_manifest(folder)
    tokens, said, first = folder / manifest["tokens"]["file"], manifest["tokens"], manifest["validation"]["first"]
    try:
        size = tokens.stat().st_size
        if size != said["count"] * np.dtype(said["dtype"]).itemsize:
            raise ValueError(f"{tokens.name} has {size:,} bytes, which are not its {said['count']:,} tokens")
        if (check or size <= CHECKED) and _digest(tokens) != said["sha256"]:
            raise ValueError(f"{tokens.name} does not hold the tokens that were written: its checksum is another")
        tokenizer = _tokenizer(folder, manifest["tokenizer"])
        if dtype_for(tokenizer).name != said["dtype"] or not first < said["count"] - 1:
            raise ValueError(f"{MANIFEST} does not agree with itself")
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"{folder}: damaged; prepare it again: {in_one_line(error)}") from error
    found = mapped(tokens, dtype_for(tokenizer))
    return Corpus(tokenizer, found[:first], found[first:], manifest["digest"])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tokenizer(folder: Path, said: dict[str, Any]) -> Tokenizer:
    path = folder / said["file"]
    found = hashlib.sha256(read_regular(path, MAX_TOKENIZER)).hexdigest()
    if found != said["sha256"]:
        raise ValueError(f"{path.name} is not the tokenizer of these tokens")
    tokenizer = load_tokenizer(path)
    if tokenizer.vocab_size != said["vocab_size"]:
        raise ValueError(f"{path.name} has {tokenizer.vocab_size} tokens; {MANIFEST} says {said['vocab_size']}")
    return tokenizer
