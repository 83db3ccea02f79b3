"""Tokens in memory or in files, of texts or of records, of which batches are read on demand."""

from bisect import bisect_left, insort
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


# Bits that a token of a record has besides its number.
LEARNED, FIRST = np.uint32(1 << 31), np.uint32(1 << 30)
RECORDS = np.dtype("<u4")  # dtype of these tokens
IGNORED = -100  # target that no loss is computed for, the default ignore_index of the losses
_SCANNED = 2**22  # tokens that are scanned at once


def unmarked(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (T,) int32 of tokens with the bits FIRST and LEARNED, and which are learned, (T,) bool."""
    return (tokens & ~(LEARNED | FIRST)).astype(np.int32), (tokens & LEARNED) > 0


class Records:
    """Records for training, such as conversations: their tokens, and which of them are learned.

    A batch has one record in each row, from the left, so no attention mask is needed: in causal attention, nothing
    attends to the padding after a record. PackedRecords have several in a row.

    Args:
        tokens: Tokens of all records, as uint32 with the bits FIRST and LEARNED.
        starts: Positions at which the records begin, (R,).
        ends: Positions after their last tokens, (R,).
        learned_at: Positions of the first learned token of each, (R,).
        left_out: Number of records that `fitting` left out.
    """

    def __init__(
        self,
        tokens: "np.ndarray | TokenFile",
        starts: np.ndarray,
        ends: np.ndarray,
        learned_at: np.ndarray,
        left_out: int = 0,
    ) -> None:
        self._tokens, self.starts, self._ends, self._learned_at = tokens, starts, ends, learned_at
        self.left_out = left_out

    @classmethod
    def of(cls, tokens: "np.ndarray | TokenFile") -> Self:
        """Return the records of tokens with the bits FIRST and LEARNED; they are found by a scan."""
        starts, learned, before = [], [], False
        for at in range(0, len(tokens), _SCANNED):
            some = tokens[at : at + _SCANNED]
            marks = np.concatenate([[before], (some & LEARNED) > 0])
            starts.append(at + np.flatnonzero(some & FIRST))
            learned.append(at + np.flatnonzero(marks[1:] & ~marks[:-1]))  # where learned tokens begin
            before = bool(marks[-1])
        begun, at_learned = np.concatenate(starts), np.append(np.concatenate(learned), len(tokens))
        return cls(
            tokens, begun, np.append(begun[1:], len(tokens)), at_learned[np.searchsorted(at_learned, begun)]
        )

    def __len__(self) -> int:
        return len(self.starts)

    def fitting(self, length: int) -> "Records":
        """Return the records that have a learned token among their first length + 1; the others teach nothing."""
        fits = self._learned_at < np.minimum(self._ends, self.starts + length + 1)
        starts, ends, learned_at = (positions[fits] for positions in (self.starts, self._ends, self._learned_at))
        return Records(self._tokens, starts, ends, learned_at, self.left_out + int((~fits).sum()))

    def truncated(self, length: int) -> tuple[int, int]:
        """Return the number of records with more than length + 1 tokens, and the number of tokens beyond these."""
        beyond = self._ends - self.starts - (length + 1)
        return int((beyond > 0).sum()), int(beyond[beyond > 0].sum())

    def record(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a record, (T,) int32, and which of them are learned, (T,) bool."""
        return unmarked(self._tokens[int(self.starts[number]) : int(self._ends[number])])

    def rows(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Return inputs and targets of records, (N, 2, length) int32, cut after length + 1 tokens.

        Targets are the inputs that are shifted by one token; those that are not learned, and padding, are IGNORED.
        """
        found = np.zeros((len(numbers), 2, length), np.int32)
        found[:, 1] = IGNORED
        for row, number in zip(found, numbers.tolist(), strict=True):
            self._put(row, number, 0, length)
        return found

    def _put(self, row: np.ndarray, number: int, at: int, length: int) -> int:
        """Write the inputs and targets of a record into a row (2, length) from a position on; return where it ends."""
        tokens, is_learned = (part[: length + 1] for part in self.record(number))
        end = at + len(tokens) - 1
        row[0, at:end], row[1, at:end] = tokens[:-1], np.where(is_learned[1:], tokens[1:], IGNORED)
        return end

    def check_unchanged(self) -> None:
        """Raise ValueError if another program wrote to the file of the tokens since it was opened."""
        if isinstance(self._tokens, TokenFile):
            self._tokens.check_unchanged()


class PackedRecords(Records):
    """Records of which several share a row of a batch; none attends to another, and positions begin anew in each.

    Rows are filled by the rule best-fit decreasing: each record, the longest first, goes to the row with the least
    sufficient space. A record of more than length + 1 tokens is cut after these, as in other Records.

    Args:
        records: The records.
        length: Number of inputs of a row.
    """

    def __init__(self, records: Records, length: int) -> None:
        super().__init__(records._tokens, records.starts, records._ends, records._learned_at, records.left_out)
        self.length = length
        self._rows = _best_fit(np.minimum(self._ends - self.starts - 1, length), length)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def rows(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Return rows of records, (N, 3, length) int32: inputs, targets, and where the record of each input begins.

        Inputs and targets are those of Records.

        Raises:
            ValueError: The length is not the one that the records were packed for.
        """
        if length != self.length:
            raise ValueError(f"PackedRecords: the rows have {self.length} inputs; {length} are asked for")
        found = np.zeros((len(numbers), 3, length), np.int32)
        found[:, 1] = IGNORED
        for row, number in zip(found, numbers.tolist(), strict=True):
            at = 0
            for record in self._rows[number]:
                end = self._put(row[:2], record, at, length)
                row[2, at:end] = at
                at = end
            row[2, at:] = at
        return found


def _best_fit(sizes: np.ndarray, length: int) -> list[list[int]]:
    """Return the numbers of the records of each row, for records of these sizes, of which each fits into a row."""
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # what rows have left, with their numbers, ascending
    for number in np.argsort(-sizes, kind="stable").tolist():
        size, at = int(sizes[number]), bisect_left(spaces, (int(sizes[number]), 0))
        if at == len(spaces):
            rows.append([])
            space, row = length, len(rows) - 1
        else:
            space, row = spaces.pop(at)
        rows[row].append(number)
        if space > size:
            insort(spaces, (space - size, row))
    return rows


Tokens = np.ndarray | TokenFile | Records


def windows_of(tokens: Tokens, starts: np.ndarray, length: int) -> np.ndarray:
    """Return windows of tokens in memory or in a file, (N, length) int32, that begin at the positions `starts` (N,).

    Of Records, `starts` are their numbers, and the result is that of `rows`: (N, 2, length - 1), or (N, 3, length - 1)
    if they are packed.

    Raises:
        ValueError: The file was shortened, or holds a number that is not a token.
        OSError: The file cannot be read.
    """
    if isinstance(tokens, Records):
        return tokens.rows(starts, length - 1)
    if isinstance(tokens, TokenFile):
        return tokens.windows(starts, length)
    return tokens[starts[:, None] + np.arange(length)].astype(np.int32)
