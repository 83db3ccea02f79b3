"""Files as they are read here: whole, and never what has no end."""

import os
import stat
from pathlib import Path


def check_regular(path: str | Path) -> os.stat_result:
    """What the system says of a file. Devices and pipes have no end, and could not be read again by a resumed run.

    Errors:  OSError if it cannot be read; ValueError if it is none
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # open says what a folder is
        raise ValueError(f"{path}: a device, pipe or socket; it must be a regular file")
    return found


def read_regular(path: str | Path, most: int) -> bytes:
    """The bytes of a file.

    Errors:  as check_regular; ValueError if there are more than `most`
    """
    size = check_regular(path).st_size
    if size > most:
        raise ValueError(f"{path}: {size:,} bytes; at most {most:,} are read")
    with open(path, "rb") as file:
        return file.read(size)  # not `most`: so many bytes are taken first
