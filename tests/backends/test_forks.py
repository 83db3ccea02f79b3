"""Forked children: OpenCL raises an error, other backends work, and the children exit."""

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
START = """
import multiprocessing, os, sys, threading, time
import polyarr as pa
from polyarr import plugins

def in_child(use):
    pid = os.fork()
    if not pid:
        try:
            print(use(), flush=True)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def lines_of(program: str) -> list[str]:
    """Return a process's output; it must exit with code 0."""
    found = subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_each_use_in_the_child_says_so():
    """New ops, older arrays and the backend itself, while a queue is busy and a thread holds the device."""
    pytest.importorskip("pyopencl")
    uses = (
        "x + 1", "x.numpy()", "x.to('numpy')", "repr(x)", "pa.ones(3)", "pa.asarray([1.0] * 300_000)",
        "pa.get_backend('opencl')", "pa.set_backend('opencl')", "x.backend.memory()", "x.backend.synchronize()",
        "pa.grad(lambda w: pa.sum(w * w))(x)",
    )  # fmt: skip
    program = "pa.set_backend('opencl'); x = pa.ones((64, 64)); y = x @ x; y.numpy()\n"
    program += "held = threading.Event()\n"
    program += "def hold():\n    with backend_lock, plugins.starting._lock: held.set(); time.sleep(3600)\n"
    program += "from polyarr.backends.opencl.devices import select\nbackend_lock = select().lock\n"
    program += "threading.Thread(target=hold, daemon=True).start(); held.wait()\n"
    program += "".join(f"in_child(lambda: {use})\n" for use in uses)
    program += "os._exit(0)\n"  # the device's lock is held for ever
    lines = lines_of(program)
    assert len(lines) == len(uses)
    for use, line in zip(uses, lines, strict=True):
        assert line.startswith("BackendError: "), use
        assert "this process was forked after OpenCL had started; start processes with" in line, use


def test_numpy_works_in_the_child():
    lines = lines_of(
        "from polyarr.plugins import diagnosis\n"
        "running = [row.name for row in diagnosis.status(start=True) if row.state == 'running']\n"
        "with pa.use_backend(running[-1]): pa.ones(2)\n"
        "in_child(lambda: pa.ones(3, device='numpy').tolist() if pa.set_backend('numpy') else 0)\n"
    )
    assert lines == ["[1.0, 1.0, 1.0]"]


def test_processes_of_multiprocessing_end():
    """With the start method fork; the error returns to the parent, which continues."""
    pytest.importorskip("pyopencl")
    lines = lines_of(
        "pa.set_backend('opencl'); x = pa.ones(3); y = x + 1\n"
        "def task(_): return float(pa.sum(y))\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    try: pool.map(task, [0])\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "print(float(pa.sum(y)))\n"
    )
    assert lines == ["BackendError", "6.0"]


def test_a_fork_after_the_import_alone_works():
    pytest.importorskip("pyopencl")
    program = "in_child(lambda: pa.set_backend('opencl') and float(pa.sum(pa.ones(3))))\n"
    program += "pa.set_backend('opencl'); print(float(pa.sum(pa.ones(4))))\n"
    assert lines_of(program) == ["3.0", "4.0"]
