"""The files of a run, each of which is written whole or not at all."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where nobody keeps two trainings out of one folder
    fcntl = None  # type: ignore[assignment]

CHECKPOINTS = ("best", "last")
CURVE = "loss.png"
RUN_FILES = (*(f"{name}.safetensors" for name in CHECKPOINTS), CURVE)


def write_whole(path: Path, data: bytes, first: Callable[[], None] | None = None) -> None:
    """Put data in a path's place. A crash at any moment leaves the old file or the new one.

    first  called when the new file is whole and on the disk, before it takes the place

    Errors:  OSError with the path
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if first:
            first()
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:  # of a full disk names no file, other errors the temporary one
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: without it, a file that was replaced may come back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other trainings out of a folder: each would remove the checkpoints of the other.

    The system drops the lock when the process ends, however that happens; a disk that knows no locks has none.

    Errors:  OSError if another one trains there
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = "another training writes here; wait until it ends, or give another folder"
            raise OSError(errno.EBUSY, reason, str(folder)) from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for name in RUN_FILES:
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)
