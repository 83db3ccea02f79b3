"""Token files: windows of tokens are read from disk on demand."""

from typing import Any, Self

import numpy as np

from polyarr.files import HeldFile


class TokenFile:
    """Tokens in a file, or in a part of one; `tokens[a:b]` reads some of them into a NumPy array.

    Args:
        file: The file.
        dtype: Dtype of the tokens, uint16 or uint32.
        vocab_size: All tokens must be below it, which is checked when they are read.
        sha256: Digest of the whole file, if it is known.
        bounds: Positions (first, stop) of the part; None: the whole file.
    """

    def __init__(
        self,
        file: HeldFile,
        dtype: np.dtype,
        vocab_size: int,
        sha256: str | None = None,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        self.dtype, self.vocab_size, self._file, self._sha256 = np.dtype(dtype), vocab_size, file, sha256
        self._first, self._end = bounds or (0, file.size // self.dtype.itemsize)

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self._read([range(len(self))[index]], 1)[0, 0]
        first, stop, step = index.indices(len(self))
        if step != 1:
            raise IndexError(f"TokenFile: the step is {step}; it must be 1")
        return self._read([first], max(stop - first, 0))[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def part(self, first: int, stop: int) -> Self:
        """Return the tokens from position `first` to before `stop`, without reading them."""
        bounds = self._first + first, self._first + stop
        return type(self)(self._file, self.dtype, self.vocab_size, self._sha256, bounds)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return windows of tokens, (N, length) int32, that begin at the positions `starts` (N,).

        Raises:
            ValueError: The file was shortened, or holds a number that is not a token; the error names the file.
            OSError: The file cannot be read.
        """
        return self._read(starts.tolist(), length).astype(np.int32)

    def check_unchanged(self) -> None:
        """Raise ValueError if another program wrote to the file since it was opened."""
        self._file.check_unchanged(self._sha256)

    def _read(self, starts: list[int], count: int) -> np.ndarray:
        found = np.empty((len(starts), count), self.dtype)
        data, size = found.reshape(-1).view(np.uint8).data, count * self.dtype.itemsize
        for i, start in enumerate(starts):
            self._file.read_into((self._first + start) * self.dtype.itemsize, data[i * size : (i + 1) * size])
        if found.size and found.max() >= self.vocab_size:
            raise ValueError(
                f"{self._file.path}: it has a token {found.max()}, and its tokenizer {self.vocab_size:,} tokens; "
                "prepare it again"
            )
        return found


Tokens = np.ndarray | TokenFile


def windows_of(tokens: Tokens, starts: np.ndarray, length: int) -> np.ndarray:
    """Return windows of tokens in memory or in a file, (N, length) int32, that begin at the positions `starts` (N,).

    Raises:
        ValueError: The file was shortened, or holds a number that is not a token.
        OSError: The file cannot be read.
    """
    if isinstance(tokens, TokenFile):
        return tokens.windows(starts, length)
    return tokens[starts[:, None] + np.arange(length)].astype(np.int32)
