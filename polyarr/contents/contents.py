"""Contents of a model file or folder, with statistics of its tensors."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr.contents.kinds import MODEL, reader_of
from polyarr.contents.statistics import Statistics, statistics_of
from polyarr.contents.stored import DAMAGES, Stored
from polyarr.files import check_regular
from polyarr.schema import in_one_line


class Tensor(NamedTuple):
    """Tensor in a file.

    Attributes:
        name: Name of the tensor.
        shape: Its shape.
        dtype: Name of its dtype, or the file's name of a dtype that NumPy lacks.
        nbytes: Size in bytes.
        statistics: Statistics of its numbers; None if they were not computed, or the dtype has none.
        stored: Access to its numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    statistics: Statistics | None
    stored: Stored

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold."""
        known = self.statistics._asdict() if self.statistics else {}
        found = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        return _plain({**found, "size": self.size, "bytes": self.nbytes, **known})


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
    settings: Mapping[str, Any]
    progress: Mapping[str, Any]
    vocabulary: Mapping[str, Any]

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
            "settings": _plain(self.settings),
            "progress": _plain(self.progress),
            "vocabulary": _plain(self.vocabulary),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def contents_of(
    path: str | Path, *, statistics: bool = True, progress: Callable[[int], Any] | None = None
) -> Contents:
    """Return the contents of a file or a folder.

    A path may be a run of polyarr or one of its checkpoints; a Hugging Face folder or another one of safetensors files;
    a safetensors, npz or npy file; prepared tokens; or a tokenizer. Files are read a few megabytes at a time, and
    nothing is ever unpickled.

    Args:
        path: The file or folder.
        statistics: Whether to read the tensors' numbers and compute statistics.
        progress: Function that is called with the number of further bytes that were read.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is damaged, pickled, or of an unknown kind.
        RuntimeError: A library that the file needs is missing.
    """
    path = Path(path)
    check_regular(path)
    try:
        found = reader_of(path)(path)
        tensors = [_tensor(stored, statistics, progress) for stored in sorted(found.stored, key=_in_order)]
    except (ValueError, OSError, *DAMAGES) as error:
        if isinstance(error, OSError) and error.filename:  # of the system; errors of libraries name no file
            raise
        raise ValueError(_placed(path, in_one_line(error) or type(error).__name__)) from error
    names = [str(file.relative_to(path)) if file != path else file.name for file in found.files]
    return Contents(path, found.kind, names, tensors, found.settings, found.progress, found.vocabulary)


def _placed(path: Path, reason: str) -> str:
    """Return a reason with its path in front, unless it begins with the path or the file's name."""
    if reason.startswith((f"{path}:", f"{path}{os.sep}")):
        return reason
    return f"{path}{reason.removeprefix(path.name)}" if reason.startswith(f"{path.name} ") else f"{path}: {reason}"


def _in_order(stored: Stored) -> list[Any]:
    """Return a sort key that puts block 10 after block 2."""
    parts = re.split(r"(\d{1,18})", stored.name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def _tensor(stored: Stored, wanted: bool, progress: Callable[[int], Any] | None) -> Tensor:
    found = None
    if wanted and stored.blocks:
        found = statistics_of(_with_progress(stored.blocks(), progress or (lambda _: None)))
    return Tensor(*stored[:4], found, stored)


def _with_progress(blocks: Iterator[np.ndarray], progress: Callable[[int], Any]) -> Iterator[np.ndarray]:
    for block in blocks:
        yield block
        progress(block.nbytes)


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it, with None for nan and infinities."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
