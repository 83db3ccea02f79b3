"""Tests beyond the conformance kit: several devices, errors that another process raises, and processes that end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.errors import BackendError, MatrixError


def process_of(device):
    return pa.get_backend(device).handle.process


def test_devices_are_processes():
    assert len({os.getpid(), process_of("workers:0").pid, process_of("workers:1").pid}) == 3
    assert pa.get_backend("workers") is pa.get_backend("workers:0")
    with pytest.raises(BackendError, match="device is 'x'; it must be a number from 0 to"):
        pa.get_backend("workers:x")


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 33), (513, 1025)])
@pytest.mark.parametrize("dtype", ["bool", "int64", "bfloat16", "float32"])
def test_copies_between_devices(shape, dtype):
    x = pa.asarray(np.arange(np.prod(shape)).reshape(shape) % 7, device="workers:0").astype(dtype)
    before = pa.transfers()
    y = pa.flip(x).to("workers:1")
    assert pa.transfers() == before and y.device == "workers:1"
    assert np.array_equal(y.numpy(), np.flip(x.numpy()))
    with pytest.raises(BackendError, match="inputs live on 'workers:0' and 'workers:1'"):
        x + y


def test_gradients_cross_devices():
    x = pa.asarray([1.0, 2.0], device="workers:0")
    g = pa.grad(lambda x: pa.sum(x.to("workers:1") ** 2))(x)
    assert g.device == "workers:0" and g.tolist() == [2.0, 4.0]


def test_errors_cross_the_processes():
    x = pa.zeros((2, 2), device="workers:1")
    y = pa.take(x, pa.asarray([7], device="workers:1"), axis=0) + 1
    for read in (y.numpy, lambda: y.to("workers:0"), lambda: (y * 2).tolist()):
        with pytest.raises(IndexError, match=r"^take: index 7 is out of range for an axis of length 2$"):
            read()
    pa.synchronize("workers:1")  # it has been raised
    with pytest.raises(MatrixError, match=r"^inv: x is float32\[2, 2\]; it must have an inverse$"):
        pa.linalg.inv(x).numpy()
    z = pa.take(x, pa.asarray([-3], device="workers:1"), axis=0)
    with pytest.raises(IndexError):
        pa.synchronize("workers:1")
    pa.synchronize("workers:1")
    del z
    assert x.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_an_unexpected_error_has_one_line():
    worker = pa.get_backend("workers:1").handle
    wrong = worker.run(pa.ops.reshape, pa.Spec((3,), pa.float32), worker.upload(np.zeros(2)), shape=(3,))
    with pytest.raises(BackendError, match=r"^reshape on workers:1: ValueError: [^\n]+$"):
        worker.download(wrong)


def test_memory_is_freed():
    backend = pa.get_backend("workers:1")
    before = backend.memory()["in use"]
    x = pa.ones((1 << 18,), device="workers:1") * 2
    y = x[: 1 << 17]
    assert backend.memory()["in use"] == before + (1 << 20)  # a view has no memory
    del x
    assert backend.memory()["in use"] == before + (1 << 20)
    del y
    assert backend.memory()["in use"] == before


PROGRAM = """
import multiprocessing, os, signal, sys, time
import polyarr as pa

def main():
    x, y = (pa.ones((300, 300), device=f"workers:{i}") for i in (0, 1))
    children = [pa.get_backend(f"workers:{i}").handle.process.pid for i in (0, 1)]
    print(*children, flush=True)
    y = y.to("workers:0").to("workers:1")
    %s

if __name__ == "__main__":
    main()
"""


def ran(tmp_path, body):
    """Run a program that uses two workers; return the numbers of their processes and what it printed."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM % body.strip().replace("\n", "\n    "))
    found = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120)
    first, *lines = found.stdout.splitlines()
    return [int(pid) for pid in first.split()], lines, found


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(pids):
    """Wait a while for processes to end; return whether they have."""
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


ENDED = "the process of workers:1 has ended (exit code -9), and its arrays are lost; start the program anew"
KILLED = """
for _ in range(%d):
    y = y @ y / 300
os.kill(children[1], signal.SIGKILL)
copies = [lambda: x.to("workers:1"), lambda: y.to("workers:0")]
for call in (y.numpy, *copies, lambda: y + 1, lambda: pa.synchronize("workers:1")):
    try:
        call()
    except pa.BackendError as error:
        print(error)
print(float(pa.sum(x)))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
@pytest.mark.parametrize("queued", [0, 2000])
def test_a_killed_worker_is_an_error_and_no_hang(tmp_path, queued):
    pids, lines, found = ran(tmp_path, KILLED % queued)
    assert lines == [ENDED] * 5 + ["90000.0"], found.stderr
    assert ended(pids) and not found.stderr


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a folder of shared memory")
@pytest.mark.parametrize("how", ["pass", "raise SystemExit(3)", "1 / 0", "os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_nothing_is_left_after_the_end(tmp_path, how):
    blocks = {name for name in os.listdir("/dev/shm") if name.startswith("psm_")}
    pids, _, _ = ran(tmp_path, how)
    assert ended(pids)
    assert {name for name in os.listdir("/dev/shm") if name.startswith("psm_")} <= blocks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_forked_child_is_refused(tmp_path):
    body = """
if (child := os.fork()) == 0:
    try:
        x.numpy()
    except pa.BackendError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(float(pa.sum(x)))
"""
    pids, lines, found = ran(tmp_path, body)
    refused = "workers:0 does not survive a fork; start processes with the method spawn"
    assert lines == [refused, "90000.0"], found.stderr
    assert ended(pids)


def test_a_script_without_a_guard_says_so(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("import polyarr as pa\npa.set_backend('workers')\nprint(pa.ones(3))\n")
    found = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120)
    assert "a script that uses workers must do so under: if __name__ == '__main__'" in found.stderr.splitlines()[-1]


def test_an_interrupt_does_not_end_a_worker():
    process = process_of("workers:1")
    os.kill(process.pid, signal.SIGINT)
    assert pa.ones(2, device="workers:1").tolist() == [1.0, 1.0] and process.is_alive()
    assert process in multiprocessing.active_children()
