"""Contents of a model file or folder, with statistics of its tensors."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.contents.kinds import Contents, reader_of
from polyarr.contents.statistics import statistics_of
from polyarr.contents.stored import DAMAGES, Tensor
from polyarr.files import check_regular
from polyarr.schema import in_one_line


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
        tensors = sorted(found.tensors, key=_in_order)
        if statistics:
            tensors = [_with_statistics(tensor, progress or (lambda _: None)) for tensor in tensors]
    except (ValueError, OSError, *DAMAGES) as error:
        if isinstance(error, OSError) and error.filename:  # of the system; errors of libraries name no file
            raise
        raise ValueError(_placed(path, in_one_line(error) or type(error).__name__)) from error
    return replace(found, path=path, tensors=tensors)


def _placed(path: Path, reason: str) -> str:
    """Return a reason with its path in front, unless it begins with the path or the file's name."""
    if reason.startswith((f"{path}:", f"{path}{os.sep}")):
        return reason
    return f"{path}{reason.removeprefix(path.name)}" if reason.startswith(f"{path.name} ") else f"{path}: {reason}"


def _in_order(tensor: Tensor) -> list[Any]:
    """Return a sort key that puts block 10 after block 2."""
    parts = re.split(r"(\d{1,18})", tensor.name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def _with_statistics(tensor: Tensor, progress: Callable[[int], Any]) -> Tensor:
    if tensor.blocks is None:
        return tensor
    return tensor._replace(statistics=statistics_of(_with_progress(tensor.blocks(), progress)))


def _with_progress(blocks: Iterator[np.ndarray], progress: Callable[[int], Any]) -> Iterator[np.ndarray]:
    for block in blocks:
        yield block
        progress(block.nbytes)
