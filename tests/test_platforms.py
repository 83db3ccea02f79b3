"""The package without what only POSIX or Linux has, as on Windows and macOS."""

import json
import subprocess
import sys

import pytest

from tests.helpers.root import ROOT

POSIX_MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty")
POSIX_NAMES = (
    "os.O_CLOEXEC", "os.O_NOCTTY", "os.O_NONBLOCK", "os.fork", "os.getegid", "os.geteuid", "os.getuid", "os.killpg",
    "os.statvfs", "os.sysconf", "signal.ITIMER_PROF", "signal.ITIMER_REAL", "signal.SIGALRM", "signal.SIGHUP",
    "signal.SIGPROF", "signal.pthread_kill", "signal.setitimer", "socket.AF_UNIX",
)  # fmt: skip
LINUX_NAMES = ("os.ST_NOEXEC", "os.sched_getaffinity")
ABSENT = {"darwin": ((), LINUX_NAMES), "win32": (POSIX_MODULES, (*POSIX_NAMES, *LINUX_NAMES))}

# Loads all modules twice. The first time is for the modules of others, which need what is then removed. Frameworks that
# the kit checks may be missing.
PROGRAM = """
import importlib, json, os, pkgutil, shutil, sys, tempfile
from pathlib import Path
from types import SimpleNamespace

platform, modules, names = json.loads(sys.argv[1])

def load_all():
    import polyarr
    for found in pkgutil.walk_packages(polyarr.__path__, "polyarr."):
        if found.name.rpartition(".")[2] != "__main__":
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if error.name not in ("jax", "keras", "tensorflow", "torch"):
                    raise
    return sorted(name for name in sys.modules if name.partition(".")[0] == "polyarr")

for name in load_all():
    del sys.modules[name]
sys.platform = platform
sys.modules |= dict.fromkeys(modules)
for module, _, name in (name.partition(".") for name in names):
    delattr(sys.modules[module], name)
if platform == "win32":
    system_open = os.open

    def open_file(path, flags, *rest, **named):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return system_open(path, flags, *rest, **named)

    os.open = open_file
    shutil.disk_usage = lambda folder: SimpleNamespace(free=2**30)  # calls os.statvfs here
assert len(load_all()) > 200

import polyarr as pa
from polyarr import atomic
from polyarr.backends.opencl.runtime import caches
from polyarr.cli import main
from polyarr.text.chat import ChatTemplate
from polyarr.text.sandbox import Sandbox

folder = Path(tempfile.mkdtemp())
pa.save(folder / "tree", {"x": pa.arange(3)})
assert pa.load(folder / "tree")["x"].tolist() == [0, 1, 2]
atomic.share(folder / "tree", folder / "link")
with atomic.alone_in(folder, "run"):
    (folder / "é").write_text("é", encoding="utf-8")
store = caches.store_of("a driver")
store.save("name", b"content")
assert store.load("name") == b"content"
assert caches.run_folder().path.is_dir() and caches.lacks(folder) == ""

template = Sandbox("chat template", ChatTemplate("{{ messages[0].content }}").to_dict())
assert template.ask("render", [{"role": "user", "content": "hello"}], "") == ["hello", "", ""]
template.close()

(folder / "text").write_text("the quick brown fox jumps over the lazy dog\\n" * 60, encoding="utf-8")
sizes = ("model.n_layers=1", "model.n_heads=1", "model.emb_dim=8", "model.context_length=8", "batch_size=2")
small = [word for size in sizes for word in ("--set", size)]
args = ["train", "--data", str(folder / "text"), "--out", str(folder / "run"), "--steps", "2", "--backend", "numpy"]
sys.exit(main([*args, *small]))
"""


def on(platform: str, program: str = PROGRAM) -> subprocess.CompletedProcess:
    given = json.dumps([platform, *ABSENT[platform]])
    return subprocess.run([sys.executable, "-P", "-c", program, given], cwd=ROOT, text=True, capture_output=True)


@pytest.mark.parametrize("platform", ABSENT)
def test_works_without_what_other_systems_lack(platform):
    done = on(platform)
    assert done.returncode == 0, done.stderr
