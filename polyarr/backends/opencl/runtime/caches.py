"""Compiled kernels on disk: one checked entry per program, and a folder of its own for each process that runs PoCL.

No driver reads a file that polyarr did not check: PoCL ends the process over a torn or foreign one. It gets a folder of
its own in each process, into which a program's entry is unpacked before the program is built. What it compiled becomes
an entry once it has run. See docs/decisions/0009-compiled-kernels.md.
"""

import atexit
import contextlib
import hashlib
import importlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import platformdirs

try:
    import fcntl
    import resource
except ImportError:  # on Windows, where what a killed process leaves stays there
    fcntl = resource = None  # type: ignore[assignment]

FORMAT = "2"  # of the entries
ABANDONED, UNUSED = 86400, 90 * 86400  # seconds: nobody takes a day to write a file; what no process needed goes
ROOM = 8 << 20  # bytes that must be free where a driver compiles
TEMPORARY, RUN = ".new-", "polyarr-"  # how the names of what is being written, and of run folders, begin
LOCK = "lock"  # the file that the process of a run folder holds


def root() -> Path:
    """The folder of everything that polyarr keeps of compiled kernels; it may be deleted while nobody computes."""
    chosen = os.environ.get("POCL_CACHE_DIR")
    folder = Path(chosen) / "polyarr" if chosen else platformdirs.user_cache_path("polyarr", appauthor=False)
    return folder / "kernels"


def size() -> int:
    """The bytes of the files in root. Other processes add and remove files and folders meanwhile."""
    found = 0
    for folder, _, names in os.walk(root()):  # not rglob, which raises for a folder that is gone when it gets there
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(folder, name)).st_size
    return found


def nvidia_folder() -> Path:
    """Where NVIDIA's driver keeps what it compiled."""
    return Path(os.environ.get("CUDA_CACHE_PATH") or Path("~/.nv/ComputeCache").expanduser())


def is_writable(folder: Path) -> bool:
    """True if a file can be made in folder, or in the nearest of its parents that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def is_off() -> bool:
    """True with POLYARR_NO_CACHE=1."""
    return os.environ.get("POLYARR_NO_CACHE") == "1"


def private(folder: Path) -> Path:
    """A folder that this user alone may read and write, made if need be.

    Errors:  OSError if it cannot be made, belongs to somebody else, or others could have written to it
    """
    if not folder.is_absolute():  # the user has no home
        raise OSError(f"{folder} is no absolute path; set HOME or XDG_CACHE_HOME")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is a link; delete it")
    if os.name == "posix":
        if found.st_uid != os.geteuid():
            raise OSError(f"{folder} belongs to the user {found.st_uid}, not to {os.geteuid()}; delete it")
        if found.st_mode & 0o022:
            raise OSError(f"{folder} may be written to by other users; delete it")
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    return folder


# ---- entries -----------------------------------------------------------------------------------------------------


class Store:
    """Bytes by name, each with its checksum, in one folder. What is damaged, or somebody else's, is not there."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, name: str) -> bytes | None:
        """What was saved under a name; None if that is not there, and whole."""
        if self._folder is None:
            return None
        path = self._folder / name
        try:
            with path.open("rb") as file:
                if os.name == "posix" and os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                found = file.read()
        except OSError:
            return None
        digest, content = found[:32], found[32:]
        if digest != _digest(name, content):
            self.forget(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it is of use, and stays
        return content

    def forget(self, name: str) -> None:
        """Remove what is of no use after all."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()

    def save(self, name: str, content: bytes) -> None:
        """Keep content, whole or, where there is no room, not at all."""
        if self._folder is None:
            return
        temporary = ""
        try:
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=TEMPORARY)
            with open(handle, "wb") as file:
                file.write(_digest(name, content) + content)
            Path(temporary).replace(self._folder / name)
        except OSError:  # a full disk costs a compilation in the next process, and nothing in this one
            if temporary:
                Path(temporary).unlink(missing_ok=True)


def _digest(name: str, content: bytes) -> bytes:
    """Of the name, too: an entry in another's place is no entry."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


@lru_cache(maxsize=1)
def trouble() -> str:
    """Why nothing is kept; empty if there is no reason."""
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
    """The entries of one driver on one device, of which identity is everything that its binaries depend on."""
    if trouble():
        return Store(None)
    try:
        folder = private(root() / f"{FORMAT}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}")
    except OSError:
        return Store(None)
    _remove_older(folder, TEMPORARY, ABANDONED)
    _remove_older(folder, "", UNUSED)
    return Store(folder)


def _remove_older(folder: Path, prefix: str, seconds: float) -> None:
    """Remove the files and folders whose names begin so that nobody touched for so long."""
    before = time.time() - seconds
    with contextlib.suppress(OSError), os.scandir(folder) as found:  # not glob, which takes 20 us for each of thousands
        for entry in found:
            with contextlib.suppress(OSError):
                if entry.name.startswith(prefix) and entry.stat().st_mtime < before:
                    shutil.rmtree(entry.path) if entry.is_dir() else Path(entry.path).unlink()


# ---- the folder in which PoCL compiles ---------------------------------------------------------------------------


class RunFolder(NamedTuple):
    """A folder of this process, removed when it ends. The lock tells the next process whether this one still lives."""

    path: Path
    lock: IO[bytes]
    pid: int

    def remove(self) -> None:
        """Delete it, unless this is a forked child."""
        if os.getpid() == self.pid:
            shutil.rmtree(self.path, ignore_errors=True)
            self.lock.close()


@lru_cache(maxsize=1)
def run_folder() -> RunFolder | str:
    """The folder of this process, or why there is none. Beside the entries, or where temporary files go."""
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
        file = (made / LOCK).open("wb")
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX)
        made.rename(path)  # only now, with its lock, does it look like a run folder to others
        folder = RunFolder(path, file, os.getpid())
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    atexit.register(folder.remove)
    return folder


def lacks(folder: Path) -> str:
    """What a folder lacks for compiling in it; empty if nothing."""
    if resource is None:
        return "" if shutil.disk_usage(folder).free >= ROOM else "no space left"
    try:
        found = os.statvfs(folder)
    except OSError as error:  # somebody deleted it
        return f"{error.strerror}"
    if found.f_bavail * found.f_frsize < ROOM:
        return f"less than {ROOM >> 20} MB are free"
    if found.f_flag & os.ST_NOEXEC:
        return "nothing may be executed there"
    return _file_limit()


def _file_limit() -> str:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return f"files may have {limit} bytes at most (ulimit -f)" if 0 <= limit < ROOM else ""


def _remove_abandoned(parent: Path) -> None:
    """The run folders of processes that were killed: nobody holds their lock."""
    _remove_older(parent, TEMPORARY, ABANDONED)
    for path in parent.glob(f"{RUN}*") if fcntl else ():
        with contextlib.suppress(OSError), (path / LOCK).open("rb") as file:  # an error: it lives, or was just removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


# ---- what drivers and PyOpenCL are told ---------------------------------------------------------------------------

_THREADS = {"POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"}  # by which PoCL is told how many, before 4.0 and since
_sharing = 1  # processes of this host that compute side by side


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables for a block, in which whoever reads them is loaded; processes started later do not see them."""
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
    """Has PoCL, which reads it when it is loaded, compile in the folder of this process."""
    folder = run_folder()
    # Without a folder PoCL must have none either, rather than one of its own choice: then it offers no device.
    told = {"POCL_CACHE_DIR": os.devnull if isinstance(folder, str) else str(folder.path)}
    if _sharing > 1 and not _THREADS & os.environ.keys():
        every, own = os.cpu_count() or 1, len(_cores())
        threads = own if 0 < own < every else every // _sharing  # fewer than every core are ours alone
        return told | dict.fromkeys(_THREADS, str(max(1, threads)))
    return told | ({"POCL_AFFINITY": "1"} if _has_every_core() else {})


def share_cores(count: int) -> None:
    """As many processes compute side by side on this host: PoCL's threads, if it starts later, are as many fewer."""
    global _sharing
    _sharing = count


def _has_every_core() -> bool:
    """True if each of PoCL's threads may have a core of its own, the one of its number.

    Otherwise two of them are woken on one core now and then, and share it until the system looks again, milliseconds
    later: products take twice as long. A process with fewer cores, or fewer threads, has others beside it.
    """
    given = {"POCL_AFFINITY", *_THREADS} & os.environ.keys()
    return not given and _cores() == set(range(os.cpu_count() or 0))


def _cores() -> set[int]:
    """The cores that this process may use, where the system says."""
    return set(getattr(os, "sched_getaffinity", lambda pid: ())(0))


def import_pyopencl() -> None:
    """Import PyOpenCL without its own cache, from which it would execute whatever lies there."""
    with environment(PYOPENCL_NO_CACHE="1"):
        importlib.import_module("pyopencl")
