"""Folders of prepared tokens, which are written as a whole or not at all, and read from disk on demand.

The content of a folder is what its manifest.json names. The manifest is replaced last, and each preparation draws an id
for the names of its other files, so the old manifest finds its own files until the new one is there.
"""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.atomic import alone_in, write_whole, written_whole
from polyarr.files import HeldFile, read_regular
from polyarr.schema import in_one_line, parsed_json
from polyarr.text.corpus import (
    VALIDATION,
    Corpus,
    Counted,
    CountedRecords,
    counted,
    dtype_for,
    first_held_out,
    naming_file,
    validation_start,
)
from polyarr.text.sources import FIELD
from polyarr.text.tokenizer import MAX_TOKENIZER, Tokenizer, load_tokenizer
from polyarr.text.tokens import RECORDS, TokenFile
from polyarr.version import __version__

FORMAT = "1"
MANIFEST = "manifest.json"
SCHEMA = Path(__file__).with_name("manifest.schema.json")
CHECKED = 2**28  # bytes of tokens up to which each opening verifies the checksum, in 0.2 s on one core
_MAX_MANIFEST = 2**20  # bytes
_NAMED = 20  # source files that a manifest names
_OURS = (MANIFEST, "tokens-*.bin", "tokenizer-*.json", ".tokens-*.tmp", ".tokenizer-*.tmp", f".{MANIFEST}.*.tmp")


def is_prepared(path: Path) -> bool:
    """Return whether a path is a folder of prepared tokens.

    Args:
        path: A path, which need not exist.

    Examples:
        >>> from pathlib import Path
        >>> from polyarr.text import is_prepared
        >>> is_prepared(Path("no-such-folder"))
        False
    """
    return os.path.lexists(path / MANIFEST)


def has_strangers(folder: Path) -> bool:
    """Return whether a folder exists and holds files that `prepare` did not write."""
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
    """Tokenize text files into a folder, which `open_prepared` reads.

    The folder is created, or its tokens are replaced once all new ones are written.

    Args:
        files: Text files, or JSON lines (.jsonl, .ndjson) with one text or one record per line, as in Corpus.of_files.
        folder: The folder.
        tokenizer: The tokenizer; None: one token per character, which takes a second pass over the files.
        validation: Share of the tokens or the records, at the end, for validation; between 0 and 1.
        field: Key of the text in JSON lines.
        progress: Function that is called with the number of further bytes of text that were read.

    Returns:
        The manifest of the folder.

    Raises:
        OSError: A file cannot be read, the folder cannot be written to, or another process writes to it.
        ValueError: A file is empty, not UTF-8 or not JSON lines with this field, has unknown characters, a record is
            not valid, there are too few tokens, or `validation` is out of range.
    """
    if not 0 < validation < 1:
        raise ValueError(f"prepare: validation is {validation}; it must be between 0 and 1")
    source = counted(files, tokenizer, field, progress)
    was_there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex[:16]
    try:
        with naming_file([] if isinstance(source, CountedRecords) else files, field), alone_in(folder, "preparation"):
            manifest = _written(folder, name, source, validation)
            manifest["sources"] = {"files": len(files), "first": [str(path) for path in files[:_NAMED]]}
            write_whole(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
            for path in (found for pattern in _OURS for found in folder.glob(pattern)):
                if path.name != MANIFEST and name not in path.name:
                    path.unlink()
    except BaseException:
        for path in folder.glob(f"token*-{name}.*"):
            path.unlink()
        with contextlib.suppress(OSError):
            if not was_there:
                folder.rmdir()
        raise
    return manifest


def _written(folder: Path, name: str, source: Counted, validation: float) -> dict[str, Any]:
    """Write the tokens and the tokenizer, and return the manifest."""
    tokens, described = folder / f"tokens-{name}.bin", folder / f"tokenizer-{name}.json"
    tokenizer, of_records = source.tokenizer, isinstance(source, CountedRecords)
    checksum, count, dtype = hashlib.sha256(), 0, RECORDS if of_records else dtype_for(tokenizer)
    with written_whole(tokens) as file:
        for part in source:
            count += len(part)
            checksum.update(part.data)
            file.write(part.data)
    written = TokenFile(HeldFile(tokens), dtype, 2**32 if of_records else tokenizer.vocab_size)
    if of_records:
        first = first_held_out(written, validation)
    else:
        first = validation_start(written, validation, tokenizer.end)
    if not 0 < first < count - 1:
        raise ValueError(f"prepare: {count} {tokenizer.unit}; there must be some to train on and some to validate with")
    text = json.dumps(tokenizer.to_dict()).encode()
    write_whole(described, text)
    further = (*(() if of_records else tokenizer.begin), *([] if validation == VALIDATION else [validation]))
    return {
        "format": FORMAT,
        "polyarr": __version__,
        "tokens": {"file": tokens.name, "dtype": dtype.name, "count": count, "sha256": checksum.hexdigest()},
        "tokenizer": {
            "file": described.name,
            "vocab_size": tokenizer.vocab_size,
            "sha256": hashlib.sha256(text).hexdigest(),
        },
        **({"records": True} if of_records else {}),
        "texts": source.texts,
        "bytes": source.bytes,
        "digest": source.digest(*further),
        "validation": {"part": validation, "first": first},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder of prepared tokens.

    Raises:
        OSError: It cannot be read.
        ValueError: It is damaged, or of another format.
    """
    if folder.exists() and not os.path.lexists(folder / MANIFEST):
        what = "" if folder.is_dir() else "a file; give the folder that was prepared: "
        raise FileNotFoundError(f"{folder}: {what}no prepared tokens are here ({MANIFEST} is missing)")
    try:
        text = read_regular(folder / MANIFEST, _MAX_MANIFEST)
        return parsed_json(text, SCHEMA)
    except ValueError as error:
        raise ValueError(f"{folder}: no prepared tokens, or damaged ones: {in_one_line(error)}") from error


def open_prepared(folder: Path, *, check: bool = False) -> Corpus:
    """Open a folder of prepared tokens as a corpus, whose tokens are read from disk on demand.

    Args:
        folder: The folder that `prepare` wrote.
        check: Verify the checksum of all tokens; otherwise it is verified only if they have up to 2^28 bytes.

    Raises:
        OSError: The manifest cannot be read.
        ValueError: A file is damaged, missing, shortened or changed, or the texts lack the special tokens that the
            tokenizer puts before them.
        RuntimeError: The library that the tokenizer needs is missing.
    """
    manifest = read_manifest(folder)
    said, first, of_records = manifest["tokens"], manifest["validation"]["first"], manifest.get("records", False)
    try:
        tokens = HeldFile(folder / said["file"])
        name, size = tokens.path.name, tokens.size
        if size != said["count"] * np.dtype(said["dtype"]).itemsize:
            raise ValueError(f"{name} has {size:,} bytes, which are not its {said['count']:,} tokens")
        if (check or size <= CHECKED) and tokens.sha256() != said["sha256"]:
            raise ValueError(f"{name} does not hold the tokens that were written: its checksum is another")
        tokenizer = _tokenizer(folder, manifest["tokenizer"])
        dtype = RECORDS if of_records else dtype_for(tokenizer)
        if dtype.name != said["dtype"] or not first < said["count"] - 1:
            raise ValueError(f"{MANIFEST} does not agree with itself")
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"{folder}: damaged; prepare it again: {in_one_line(error)}") from error
    if of_records:
        found = TokenFile(tokens, dtype, 2**32, said["sha256"])
        return Corpus.parted(tokenizer, found, manifest["digest"], first, are_records=True)
    found, begin = TokenFile(tokens, dtype, tokenizer.vocab_size, said["sha256"]), tokenizer.begin
    if tuple(found[: len(begin)].tolist()) != begin:  # an earlier polyarr wrote it
        names = "".join(map(tokenizer.token, begin))
        raise ValueError(f"{folder}: its texts lack {names}, which its tokenizer puts before each; prepare it again")
    return Corpus.parted(tokenizer, found, manifest["digest"], first)


def _tokenizer(folder: Path, said: dict[str, Any]) -> Tokenizer:
    path = folder / said["file"]
    found = hashlib.sha256(read_regular(path, MAX_TOKENIZER)).hexdigest()
    if found != said["sha256"]:
        raise ValueError(f"{path.name} is not the tokenizer of these tokens")
    tokenizer = load_tokenizer(path)
    if tokenizer.vocab_size != said["vocab_size"]:
        raise ValueError(f"{path.name} has {tokenizer.vocab_size} tokens; {MANIFEST} says {said['vocab_size']}")
    return tokenizer
