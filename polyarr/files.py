"""Files that a user names: only regular files, with a limit on their size; opening never blocks.

All such files are opened here, and none is memory-mapped: if another program truncates a file, a read raises an error,
whereas access to a mapping ends the process (decision 0059).
"""

import hashlib
import os
import stat
import threading
import weakref
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def check_regular(path: str | Path) -> os.stat_result:
    """Return the status of a regular file. Devices and pipes have no end, and a resumed run could not read them again.

    Raises:
        OSError: The file does not exist.
        ValueError: It is a device, pipe or socket.
    """
    return _checked(path, os.stat(path))


def open_regular(path: str | Path, most: int | None = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: The file.
        most: Largest size in bytes; None: any.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is not a regular file, or is larger than `most`.
    """
    check_regular(path)  # before opening, which alone may affect a device; checked again afterwards, in case it changed
    file = open(path, "rb", opener=_opened)
    _check_open(path, file, most)
    return file


def read_regular(path: str | Path, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes.

    Raises:
        OSError, ValueError: As `open_regular`.
    """
    with open_regular(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # even if it grows meanwhile


def append_to(path: str | Path) -> BinaryIO:
    """Open a regular file for appending; it is created if it does not exist.

    Raises:
        OSError, ValueError: As `open_regular`.
    """
    if os.path.lexists(path):
        check_regular(path)
    file = open(path, "ab", opener=_opened)
    _check_open(path, file, None)
    return file


class HeldFile:
    """A regular file that stays open and is read in parts, by several threads; closed with its last user.

    Args:
        path: The file, also for errors.
        file: An open file; None: opens `path`.

    Raises:
        OSError, ValueError: As `open_regular`.
    """

    def __init__(self, path: str | Path, file: BufferedReader | None = None) -> None:
        file = open_regular(path) if file is None else file
        weakref.finalize(self, file.close)
        # Unbuffered: a buffer would be refilled for each of many short reads, and hide that the file was truncated.
        self.path, self._file, self._lock = Path(path), cast("FileIO", file.raw), threading.Lock()
        self._state = self._now()

    @property
    def size(self) -> int:
        """Size in bytes when the file was opened."""
        return self._state[0]

    def read(self, start: int, count: int) -> bytearray:
        """Return `count` bytes from byte `start` on.

        Raises:
            OSError, ValueError: As `read_into`.
        """
        found = bytearray(count)
        self.read_into(start, found)
        return found

    def read_into(self, start: int, buffer: Any) -> None:
        """Fill a buffer with the bytes from byte `start` on.

        Raises:
            OSError: The bytes cannot be read.
            ValueError: The file ends before the buffer is full.
        """
        view, done = memoryview(buffer), 0
        try:
            with self._lock:
                self._file.seek(start)
                while done < len(view) and (some := self._file.readinto(view[done:])):
                    done += some
        except OSError as error:  # has no path
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if done < len(view):
            raise ValueError(
                f"{self.path}: it ends at byte {self._now()[0]:,}, and bytes {start:,} to {start + len(view):,} "
                "must be read; another program shortened it"
            )

    def check_unchanged(self, sha256: str | None = None) -> None:
        """Raise ValueError if another program wrote to the file since it was opened, by its size and modification time.

        Args:
            sha256: Digest of the opened contents, if known: a file with a new time and the same digest is unchanged.
        """
        now = self._now()
        if now != self._state and (now[0] != self.size or self.sha256() != sha256):
            raise ValueError(f"{self.path}: another program changed it while it was in use")
        self._state = now

    def sha256(self) -> str:
        """Return the SHA-256 digest of the whole file, as hexadecimal digits."""
        with self._lock:
            self._file.seek(0)
            return hashlib.file_digest(self._file, "sha256").hexdigest()

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | _FLAGS, 0o666)


def _check_open(path: str | Path, file: BinaryIO, most: int | None) -> None:
    """Raise ValueError, and close the file, if it is not a regular one or is too large."""
    try:
        _checked(path, os.fstat(file.fileno()), most)
    except ValueError:
        file.close()
        raise


def _checked(path: str | Path, found: os.stat_result, most: int | None = None) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # for a folder, `open` raises
        raise ValueError(f"{path}: a device, pipe or socket; it must be a regular file")
    if most is not None and found.st_size > most:
        raise ValueError(f"{path}: {found.st_size:,} bytes; at most {most:,} are read")
    return found
