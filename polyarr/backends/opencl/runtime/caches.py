"""Compiled kernels on disk: one checksummed entry per program, and a separate folder for each process that runs PoCL.

No driver reads a file that polyarr did not check, because PoCL ends the process over a torn or foreign one. Each
process gives PoCL a new folder, into which a program's entry is unpacked before the program is built. What PoCL
compiled becomes an entry once it has run. See docs/decisions/0009-compiled-kernels.md.
"""

import atexit
import contextlib
import hashlib
import importlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import platformdirs

if sys.platform == "win32":  # where the files of a killed process are not removed
    fcntl = resource = None
else:
    import fcntl
    import resource

FORMAT = "2"  # version of the entries
ABANDONED_SECONDS, UNUSED_SECONDS = 86400, 90 * 86400  # of an unfinished file; of an unused entry
MIN_FREE_BYTES = 8 << 20  # bytes that must be free where a driver compiles
TEMPORARY, RUN = ".new-", "polyarr-"  # prefixes of the names of unfinished files and of run folders
LOCK = "lock"  # the file that the process of a run folder keeps locked


def root() -> Path:
    """Return the folder of all compiled kernels; it may be deleted while nothing computes."""
    chosen = os.environ.get("POCL_CACHE_DIR")
    folder = Path(chosen) / "polyarr" if chosen else platformdirs.user_cache_path("polyarr", appauthor=False)
    return folder / "kernels"


def size() -> int:
    """Return the bytes of the files in root, which other processes may change meanwhile."""
    found = 0
    for folder, _, names in os.walk(root()):  # rglob would raise for a folder that another process removes
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(folder, name)).st_size
    return found


def nvidia_folder() -> Path:
    """Return the folder of NVIDIA's own cache of compiled kernels."""
    return Path(os.environ.get("CUDA_CACHE_PATH") or Path("~/.nv/ComputeCache").expanduser())


def is_writable(folder: Path) -> bool:
    """Return whether a file can be created in folder, or in the nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def is_off() -> bool:
    """Return whether POLYARR_NO_CACHE=1 is set."""
    return os.environ.get("POLYARR_NO_CACHE") == "1"


def private(folder: Path) -> Path:
    """Return a folder that only this user may read and write; create it if necessary.

    Raises:
        OSError: It cannot be created, belongs to somebody else, or others could have written to it.
    """
    if not folder.is_absolute():  # the user has no home
        raise OSError(f"{folder} is no absolute path; set HOME or XDG_CACHE_HOME")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is a link; delete it")
    if sys.platform != "win32":
        if found.st_uid != os.geteuid():
            raise OSError(f"{folder} belongs to the user {found.st_uid}, not to {os.geteuid()}; delete it")
        if found.st_mode & 0o022:
            raise OSError(f"{folder} may be written to by other users; delete it")
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    return folder


# ---- entries -----------------------------------------------------------------------------------------------------


class Store:
    """Bytes by name, with checksums, in one folder. Damaged entries and those of other users are treated as missing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, name: str) -> bytes | None:
        """Return what was saved under a name; None if it is missing or damaged."""
        if self._folder is None:
            return None
        path = self._folder / name
        try:
            with path.open("rb") as file:
                if sys.platform != "win32" and os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                found = file.read()
        except OSError:
            return None
        digest, content = found[:32], found[32:]
        if digest != _digest(name, content):
            self.forget(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # marks the entry as used
        return content

    def forget(self, name: str) -> None:
        """Remove an entry."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()

    def save(self, name: str, content: bytes) -> None:
        """Save content, completely or, if there is no space, not at all."""
        if self._folder is None:
            return
        temporary = ""
        try:
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=TEMPORARY)
            with open(handle, "wb") as file:
                file.write(_digest(name, content) + content)
            Path(temporary).replace(self._folder / name)
        except OSError:  # a full disk only costs a compilation in the next process
            if temporary:
                Path(temporary).unlink(missing_ok=True)


def _digest(name: str, content: bytes) -> bytes:
    """Return the checksum of content and name, so that an entry under another name is not valid."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


@lru_cache(maxsize=1)
def trouble() -> str:
    """Return why nothing can be cached; empty if there is no reason."""
    if is_off():
        return "POLYARR_NO_CACHE=1"
    try:
        folder = private(root())
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return str(error)
    return ""


def store_of(identity: str) -> Store:
    """Return the entries of one driver on one device; identity is everything that its binaries depend on."""
    if trouble():
        return Store(None)
    try:
        folder = private(root() / f"{FORMAT}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}")
    except OSError:
        return Store(None)
    _remove_older(folder, TEMPORARY, ABANDONED_SECONDS)
    _remove_older(folder, "", UNUSED_SECONDS)
    return Store(folder)


def _remove_older(folder: Path, prefix: str, seconds: float) -> None:
    """Remove files and folders with this prefix that have not been touched for so many seconds."""
    before = time.time() - seconds
    with contextlib.suppress(OSError), os.scandir(folder) as found:  # glob would take 20 us for each of thousands
        for entry in found:
            with contextlib.suppress(OSError):
                if entry.name.startswith(prefix) and entry.stat().st_mtime < before:
                    shutil.rmtree(entry.path) if entry.is_dir() else Path(entry.path).unlink()


# ---- the folder in which PoCL compiles ---------------------------------------------------------------------------


class RunFolder(NamedTuple):
    """A folder of this process, removed at its end. The lock, if any, shows other processes that this one is alive."""

    path: Path
    lock: IO[bytes] | None
    pid: int

    def remove(self) -> None:
        """Delete the folder, unless this is a forked child."""
        if os.getpid() == self.pid:
            shutil.rmtree(self.path, ignore_errors=True)
            if self.lock:
                self.lock.close()


@lru_cache(maxsize=1)
def run_folder() -> RunFolder | str:
    """Return the folder of this process, beside the entries or among temporary files; or why there is none."""
    parents = [Path(tempfile.gettempdir())]
    if not trouble():
        parents.insert(0, root() / "run")
    reasons = []
    for parent in parents:
        try:
            if parent.parent == root():
                _remove_abandoned(private(parent))
            return _made_in(parent)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror or error}" if str(parent) not in str(error) else str(error))
    return "; ".join(reasons)


def _made_in(parent: Path) -> RunFolder:
    if lacking := lacks(parent):
        raise OSError(lacking)
    made = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
    path = parent / made.name.replace(TEMPORARY, RUN, 1)
    try:
        file = (made / LOCK).open("wb") if fcntl else None  # Windows renames no folder with an open file
        if fcntl and file:
            fcntl.flock(file, fcntl.LOCK_EX)
        made.rename(path)  # only now, with its lock, do others take it for a run folder
        folder = RunFolder(path, file, os.getpid())
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    atexit.register(folder.remove)
    return folder


def lacks(folder: Path) -> str:
    """Return what a folder lacks for compiling in it; empty if nothing."""
    if resource is None:
        return "" if shutil.disk_usage(folder).free >= MIN_FREE_BYTES else "no space left"
    try:
        found = os.statvfs(folder)
    except OSError as error:  # another process deleted it
        return f"{error.strerror}"
    if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
        return f"less than {MIN_FREE_BYTES >> 20} MB are free"
    if found.f_flag & getattr(os, "ST_NOEXEC", 0):  # macOS does not say
        return "nothing may be executed there"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return f"files may have {limit} bytes at most (ulimit -f)" if 0 <= limit < MIN_FREE_BYTES else ""


def _remove_abandoned(parent: Path) -> None:
    """Remove the run folders of processes that were killed, whose locks are free."""
    _remove_older(parent, TEMPORARY, ABANDONED_SECONDS)
    for path in parent.glob(f"{RUN}*") if fcntl else ():
        with contextlib.suppress(OSError), (path / LOCK).open("rb") as file:  # error: in use, or just removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


# ---- the environment of drivers and PyOpenCL -------------------------------------------------------------------------

_THREADS = {"POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"}  # thread counts of PoCL before 4.0, and since
_sharing = 1  # processes of this host that compute side by side


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables within a block, for libraries that are loaded there; later processes do not see them.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def for_pocl() -> dict[str, str]:
    """Return the environment with which PoCL, when it is loaded, compiles in the folder of this process."""
    folder = run_folder()
    # Without a run folder PoCL must not choose one of its own: with this one, it offers no device.
    variables = {"POCL_CACHE_DIR": os.devnull if isinstance(folder, str) else str(folder.path)}
    if _sharing > 1 and not _THREADS & os.environ.keys():
        every, own = os.cpu_count() or 1, len(_cores())
        threads = own if 0 < own < every else every // _sharing  # some cores belong to other processes
        return variables | dict.fromkeys(_THREADS, str(max(1, threads)))
    return variables | ({"POCL_AFFINITY": "1"} if _has_every_core() else {})


def share_cores(count: int) -> None:
    """Announce that `count` processes compute side by side on this host; PoCL, if loaded later, starts fewer threads.
    """
    global _sharing
    _sharing = count


def _has_every_core() -> bool:
    """Return whether each of PoCL's threads may be pinned to the core of its number.

    Unpinned, two threads are now and then woken on one core, and share it for milliseconds until the system moves one:
    products then take twice as long. A process with fewer cores or threads shares the machine with others.
    """
    given = {"POCL_AFFINITY", *_THREADS} & os.environ.keys()
    return not given and _cores() == set(range(os.cpu_count() or 0))


def _cores() -> set[int]:
    """Return the cores that this process may use; empty if the system does not say."""
    return set(getattr(os, "sched_getaffinity", lambda pid: ())(0))


def import_pyopencl() -> None:
    """Import PyOpenCL without its own cache, from which it would execute unchecked files.

    It writes a Python function that sets arguments for each kernel object, and each launch of a replay has an object.
    They are written once per kernel instead: the name of one takes longer the more there are, 1 ms among thousands.
    """
    with environment(PYOPENCL_NO_CACHE="1"):
        importlib.import_module("pyopencl")
    invoker, name = importlib.import_module("pyopencl.invoker"), "_generate_enqueue_and_set_args_module"
    write = getattr(invoker, name, None)
    if write is not None and not hasattr(write, "cache_info"):
        setattr(invoker, name, lru_cache(maxsize=None)(write))
