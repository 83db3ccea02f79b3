"""The files of a run: their names, and who may write them."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where nobody keeps two trainings out of one folder
    fcntl = None  # type: ignore[assignment]

CHECKPOINTS = ("best", "last")
CURVE = "loss.png"
RUN_FILES = (*(f"{name}.safetensors" for name in CHECKPOINTS), CURVE)


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
