"""Suppression of the panic messages that the library `tokenizers` prints to standard error when its own checks fail."""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

_lock = threading.Lock()
_held: list[tuple[int, IO[bytes]]] = []  # a copy of standard error's descriptor, and the file in its place
_depth = 0  # number of open blocks, in all threads
_is_panic = False


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
    """Hold back standard error in the block and write it afterwards, or drop it if the library panics.

    Its PanicException states in one line what the dropped text is about.
    """
    global _depth, _is_panic
    with _lock:
        if _depth == 0:
            _is_panic = False
            _hold()
        _depth += 1
    try:
        yield
    except BaseException as error:
        _is_panic = _is_panic or is_panic(error) or is_panic(error.__cause__)
        raise
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _release()


def is_panic(error: BaseException | None) -> bool:
    """Return whether an error is a panic of the library, which is a BaseException but not an Exception."""
    return type(error).__name__ == "PanicException"


def _hold() -> None:
    with contextlib.suppress(OSError):  # there may be no standard error, or no space for a file
        file = tempfile.TemporaryFile()
        _held.append((os.dup(2), file))
        os.dup2(file.fileno(), 2)


def _release() -> None:
    if not _held:
        return
    stderr, file = _held.pop()
    os.dup2(stderr, 2)
    os.close(stderr)
    with file:
        file.seek(0)
        if not _is_panic:
            with contextlib.suppress(OSError), open(2, "wb", closefd=False) as out:
                out.write(file.read())
