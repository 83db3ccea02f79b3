"""Readers for each kind of model file and folder."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.contents.stored import Tensor, blocks_of, of_npy, of_npz, of_safetensors, plain
from polyarr.files import open_regular
from polyarr.models.folders import CONFIG, INDEX, PICKLED, hint_of_others, read_index, read_json
from polyarr.text import Tokenizer, is_prepared, load_tokenizer, open_prepared, tokenizer_from_dict
from polyarr.text.prepared import MANIFEST, read_manifest
from polyarr.text.tokenizer import has_tokenizer
from polyarr.training.checkpoint import read_info
from polyarr.training.files import checkpoints, newest, path_of

MODEL = "model."  # prefix of the names of a model's arrays in a checkpoint
_MAX_LISTED = 10  # tokens that are listed at either end of a vocabulary


@dataclass
class Contents:
    """Contents of a model file or folder.

    Attributes:
        path: The file or folder.
        kind: Description of its kind.
        files: Names of the files that were read.
        tensors: The tensors, by name.
        settings: Configuration: the recipe of a run, a config.json, or metadata.
        progress: For a run: its step, the number of steps, and losses.
        vocabulary: For a tokenizer: its size, the name of tokens, the end token, and the first and last tokens.
    """

    path: Path
    kind: str
    files: list[str]
    tensors: list[Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Totals of all tensors; "parameters" counts a model's numbers without the optimizer's."""
        known = [t.statistics for t in self.tensors if t.statistics]
        weights = [t for t in self.tensors if t.name.startswith(MODEL)] if self.progress else self.tensors
        return {
            "tensors": len(self.tensors),
            "size": sum(t.size for t in self.tensors),
            "parameters": sum(t.size for t in weights),
            "bytes": sum(t.nbytes for t in self.tensors),
            "nan": sum(s.nan for s in known),
            "inf": sum(s.inf for s in known),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "files": self.files,
            "totals": self.totals,
            "settings": plain(self.settings),
            "progress": plain(self.progress),
            "vocabulary": plain(self.vocabulary),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def reader_of(path: Path) -> Callable[[Path], Contents]:
    """Return the reader for a path.

    Raises:
        ValueError: The file is pickled or of an unknown kind.
    """
    return _reader_of_folder(path) if path.is_dir() else _reader_of_file(path)


def _reader_of_folder(folder: Path) -> Callable[[Path], Contents]:
    if checkpoints(folder):
        return _run
    if is_prepared(folder):
        return _prepared
    if os.path.lexists(folder / INDEX) or any(folder.glob("*.safetensors")):
        return _weights
    if has_tokenizer(folder):
        return _tokenizer
    hint = hint_of_others(folder)
    raise ValueError(f"neither a checkpoint nor safetensors, prepared tokens or a tokenizer is here{hint}")


def _reader_of_file(path: Path) -> Callable[[Path], Contents]:
    if path.suffix in PICKLED:
        raise ValueError("pickled, which is never read, for it could run anything; save it as safetensors")
    with open_regular(path) as file:
        head = file.read(10)
    if head.startswith(b"\x93NUMPY"):
        return lambda path: Contents(path, "npy file", [path.name], of_npy(path))
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return lambda path: Contents(path, "npz file", [path.name], of_npz(path))
    # safetensors begins with the length of its header in 8 bytes, of which the first may equal a brace.
    if head[5:9] == b"\0\0\0{" or path.suffix == ".safetensors":
        return _safetensors
    if head[:1] == b"{" or path.suffix == ".json":
        return _tokenizer
    raise ValueError("neither safetensors, npz, npy nor a tokenizer.json")


def _safetensors(path: Path) -> Contents:
    stored, metadata = of_safetensors(path)
    if {"info", "checksum"} <= metadata.keys():
        return _checkpoint("polyarr checkpoint", path, stored)
    return Contents(path, "safetensors file", [path.name], stored, metadata)


def _checkpoint(kind: str, path: Path, stored: list[Tensor]) -> Contents:
    info = read_info(path)
    shown = ("preset", "data", "seed", "recipe", "versions")
    progress = {"step": info["step"], "steps": info["recipe"]["steps"], "seconds": info["seconds"]}
    if info["history"]:
        last, best = info["history"][-1], min(row["val"] for row in info["history"])
        progress |= {"train_loss": last["train"], "val_loss": last["val"], "best_val_loss": best}
    words = _vocabulary(tokenizer_from_dict(info["tokenizer"]))
    return Contents(path, kind, [path.name], stored, {name: info[name] for name in shown}, progress, words)


def _tokenizer(path: Path) -> Contents:
    return Contents(path, "tokenizer", [path.name], [], vocabulary=_vocabulary(load_tokenizer(path)))


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    size = tokenizer.vocab_size
    numbers = range(size) if size <= 2 * _MAX_LISTED else [*range(_MAX_LISTED), *range(size - _MAX_LISTED, size)]
    tokens = [{"number": number, "token": tokenizer.token(number)} for number in numbers]
    return {"size": size, "unit": tokenizer.unit, "end": tokenizer.end, "tokens": tokens}


def _run(folder: Path) -> Contents:
    path = path_of(folder, newest(folder))
    return _checkpoint("polyarr run", path, of_safetensors(path)[0])


def _weights(folder: Path) -> Contents:
    """Read a Hugging Face folder, or another one of safetensors files."""
    files = _shards(folder) if os.path.lexists(folder / INDEX) else sorted(folder.glob("*.safetensors"))
    stored = [tensor for file in files for tensor in of_safetensors(file)[0]]
    config = folder / CONFIG
    settings = read_json(config) if os.path.lexists(config) else {}
    words = _vocabulary(load_tokenizer(folder)) if has_tokenizer(folder) else {}
    kind = "Hugging Face folder" if settings else "folder of safetensors files"
    return Contents(folder, kind, [file.name for file in files], stored, settings, vocabulary=words)


def _shards(folder: Path) -> list[Path]:
    names = sorted(set(read_index(folder).values()))
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing, which {INDEX} names")
    return [folder / name for name in names]


def _prepared(folder: Path) -> Contents:
    corpus, manifest = open_prepared(folder), read_manifest(folder)
    tokens, dtype = manifest["tokens"], np.dtype(manifest["tokens"]["dtype"])
    blocks = partial(blocks_of, partial(open_regular, folder / tokens["file"]), 0, tokens["count"], dtype)
    stored = Tensor("tokens", (tokens["count"],), dtype.name, tokens["count"] * dtype.itemsize, blocks)
    shown = {key: value for key, value in manifest.items() if key not in ("tokens", "tokenizer")}
    words = _vocabulary(corpus.tokenizer)
    return Contents(folder, "prepared tokens", [MANIFEST, tokens["file"]], [stored], shown, vocabulary=words)
