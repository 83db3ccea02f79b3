"""Files that are replaced atomically, and folders in which one process works at a time."""

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from polyarr.files import open_regular

if sys.platform == "win32":  # where a folder cannot be opened
    fcntl = None
else:
    import fcntl

_NEW = 60.0  # seconds in which a temporary file may not be held yet
_MAX_NAME = 50  # characters of a file's name in that of its temporary file; at most 200 of the usual 255 bytes


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically: a crash at any moment leaves the old file or the new one.

    Args:
        path: File to replace.
        data: New contents.

    Raises:
        OSError: The file cannot be written; with its path.
    """
    with written_whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def written_whole(path: Path, first: Callable[[], None] | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` atomically at the end of the block unless it raises.

    If `path` is a symbolic link, the file that it names is replaced, as if that were opened to be written. Temporary
    files of the same file that processes left which were killed are removed.

    Raises:
        OSError: The file cannot be written, or is a pipe or a device, which are not replaced.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device; name a file", str(path))
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = _temporary(target)
    _remove_left_overs(target)
    try:
        with temporary.open("wb") as file:
            _hold(file)
            _keep_mode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if first:
            first()
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:  # that of a full disk has no path, other errors that of the temporary file
        if error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _keep_mode(path: Path, temporary: Path) -> None:
    """Give a file the permissions of the one that it will replace, so that a private file stays private."""
    if path.exists():
        with contextlib.suppress(PermissionError):  # a file system without permissions
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))


def _temporary(path: Path) -> Path:
    """Return a name beside a file that no other writer of the file has: another thread, or a process elsewhere.

    It has the beginning of the file's name only, so that a file may have the longest name of a file system.
    """
    return path.with_name(f".{path.name[:_MAX_NAME]}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def _hold(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return False if another process holds it, or the file system has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return fcntl is not None


def _remove_left_overs(path: Path) -> None:
    """Remove the temporary files of a file that no process holds, and whose last change is not that of a new one."""
    ours = re.compile(rf"{re.escape(f'.{path.name[:_MAX_NAME]}')}\.\d+-[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):
        for other in [each for each in path.parent.iterdir() if ours.fullmatch(each.name)]:
            with other.open("rb") as file:
                if time.time() - other.stat().st_mtime > _NEW and _hold(file):
                    other.unlink()


def share(path: Path, other: Path) -> None:
    """Replace `other` atomically by a hard link to a file, or by a copy if the file system has no hard links."""
    temporary = _temporary(other)
    try:
        os.link(path, temporary)
        temporary.replace(other)
        sync_folder(other.parent)
    except OSError:
        with open_regular(path) as file, written_whole(other) as copy:
            shutil.copyfileobj(file, copy)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk: without it, a replaced file may reappear after a crash.

    Does nothing on Windows.
    """
    if fcntl is None:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path, work: str | None) -> Iterator[None]:
    """Lock a folder against other processes that do the same kind of work; each would remove the files of the other.

    The lock ends with the process, however it ends. A file system without locks is not locked.

    Args:
        folder: The folder.
        work: Name of the work in the error; None: wait until no other process works in the folder.

    Raises:
        OSError: Another process works in the folder.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if work else 0))
        except BlockingIOError:
            reason = f"another {work} writes here; wait until it ends, or give another folder"
            raise OSError(errno.EBUSY, reason, str(folder)) from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
