"""What lies at a path, with the statistics of its tensors."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr.contents.kinds import MODEL, reader_of
from polyarr.contents.statistics import Statistics, statistics_of
from polyarr.contents.stored import DAMAGES, Stored
from polyarr.schema import in_one_line
from polyarr.text.files import check_regular


class Tensor(NamedTuple):
    """A tensor in a file; statistics are None where they were not asked for, or where its dtype has none."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    statistics: Statistics | None
    stored: Stored

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        known = self.statistics._asdict() if self.statistics else {}
        found = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        found |= {"size": self.size, "bytes": self.nbytes}
        return _plain(found | known)


@dataclass
class Contents:
    """What lies at a path.

    kind        in words
    files       the names of the files that were read
    settings    the configuration: a run's recipe, a config.json, metadata
    progress    of a run: its step, how many there are to be, its losses
    vocabulary  its size, what a token is called, which ends a text, the first and the last tokens
    """

    path: Path
    kind: str
    files: list[str]
    tensors: list[Tensor]
    settings: Mapping[str, Any]
    progress: Mapping[str, Any]
    vocabulary: Mapping[str, Any]

    @property
    def totals(self) -> dict[str, int]:
        """Of all tensors together; parameters are a model's numbers, without an optimiser's."""
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
        """What JSON can hold."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "files": self.files,
            "totals": self.totals,
            "settings": _plain(self.settings),
            "progress": _plain(self.progress),
            "vocabulary": _plain(self.vocabulary),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def contents_of(
    path: str | Path, *, statistics: bool = True, progress: Callable[[int], Any] | None = None
) -> Contents:
    """What lies at a path: tensors with their statistics, the configuration, how far a run has come, the tokens.

    A path is a run of polyarr's or one of its checkpoints; a Hugging Face folder, or another one of safetensors files;
    a safetensors, npz or npy file; prepared tokens; a tokenizer. Files are read a few megabytes at a time, and nothing
    is ever unpickled.

    statistics  without them, only what files say of their tensors is read
    progress    called with how many more bytes were read

    Errors:  OSError if something cannot be read; ValueError if it is damaged, pickled, or nothing that is known;
             RuntimeError without the library that it needs
    """
    path = Path(path)
    check_regular(path)
    try:
        found = reader_of(path)(path)
        tensors = [_tensor(stored, statistics, progress) for stored in sorted(found.stored, key=_in_order)]
    except (ValueError, OSError, *DAMAGES) as error:
        if isinstance(error, OSError) and error.filename:  # the system's; those of libraries name no file
            raise
        raise ValueError(_placed(path, in_one_line(error) or type(error).__name__)) from error
    names = [str(file.relative_to(path)) if file != path else file.name for file in found.files]
    return Contents(path, found.kind, names, tensors, found.settings, found.progress, found.vocabulary)


def _placed(path: Path, reason: str) -> str:
    """A reason with its path before it, unless it begins with that, or with the file's name."""
    if reason.startswith(str(path)):
        return reason
    return f"{path}{reason.removeprefix(path.name)}" if reason.startswith(f"{path.name} ") else f"{path}: {reason}"


def _in_order(stored: Stored) -> list[Any]:
    """Block 10 after block 2."""
    parts = re.split(r"(\d{1,18})", stored.name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def _tensor(stored: Stored, wanted: bool, progress: Callable[[int], Any] | None) -> Tensor:
    found = None
    if wanted and stored.blocks:
        found = statistics_of(_watched(stored.blocks(), progress or (lambda _: None)))
    return Tensor(*stored[:4], found, stored)


def _watched(blocks: Iterator[np.ndarray], progress: Callable[[int], Any]) -> Iterator[np.ndarray]:
    for block in blocks:
        yield block
        progress(block.nbytes)


def _plain(value: Any) -> Any:
    """A value as JSON has it: no number is infinite there, and none is nan."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
