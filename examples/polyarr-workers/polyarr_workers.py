"""The polyarr backend "workers": every device is a process of its own, which computes with NumPy.

A buffer is a number: the process that computed a value keeps it under this number. `Worker` is the user's side of a
process, `serve` the other one. Commands are queued, and only calls that read a value wait. A kernel that fails stores
the error in place of its result, and kernels that read this result store the same error. A download raises it;
`synchronize` raises an error that no download has raised.
"""

import contextlib
import itertools
import math
import multiprocessing
import os
import signal
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from polyarr.backends.kernels import make_kernels
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError, DeviceMemoryError, MatrixError
from polyarr.core.spec import Spec
from polyarr.plugins import DeviceInfo, hookimpl
from polyarr.plugins.starting import forget

DEVICES = max(2, os.cpu_count() or 1)
KERNELS = make_kernels(np, np.vectorize(math.erf, "d"))
NAME = "polyarr worker"


# ---- in the process of a device ----------------------------------------------------------------------------------


UNREAD = -1  # number of the last error that the other process has not been sent


class Ref(int):
    """Number of a value, as an argument of a command: unlike other ints it is looked up."""


def serve(pipe: Connection, device: str) -> None:
    """Run commands until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that the user started
    values: dict[int, np.ndarray | Exception] = {}
    pipe.send(None)
    with contextlib.suppress(EOFError, ConnectionError):  # the other process has ended
        while True:
            freed, command, *arguments = pipe.recv()
            for number in freed:
                values.pop(number, None)
            command(pipe, values, device, *arguments)


def store(pipe, values, device, number, spec):
    host = np.empty(spec.shape, spec.dtype)
    if host.nbytes:
        pipe.recv_bytes_into(raw(host))
    values[number] = host


def compute(pipe, values, device, numbers, op, out, arguments, params):
    try:
        found = KERNELS[op](out, *resolved(arguments, values), **params)
    except Exception as error:
        found = values[UNREAD] = one_line(error, f"{op.name} on {device}").with_traceback(None)  # it keeps arguments
    found = found if isinstance(found, tuple) else (found,) * len(numbers)
    values.update(zip(numbers, found, strict=True))


def resolved(argument, values):
    """Return an argument with the values of its numbers; raise the error that is stored as one."""
    if isinstance(argument, tuple):
        return tuple(resolved(each, values) for each in argument)
    value = values[argument] if isinstance(argument, Ref) else argument
    if isinstance(value, Exception):
        raise value
    return value


def one_line(error, place):
    """Return an error as it is sent: of a class that the caller knows, and with one line."""
    if isinstance(error, (IndexError, MatrixError, BackendError)):  # also one that was passed on
        return error
    kind = DeviceMemoryError if isinstance(error, MemoryError) else BackendError
    return kind(" ".join(f"{place}: {type(error).__name__}: {error}".split()))


def read(pipe, values, device, number):
    """Send a value: None and its bytes, or the error that is stored in its place."""
    value = values[number]
    answer(pipe, values, value)
    if isinstance(value, np.ndarray) and value.nbytes:
        pipe.send_bytes(raw(np.ascontiguousarray(value)))


def answer(pipe, values, value):
    """Send the error that is stored as a value, or None."""
    if isinstance(value, Exception):
        values.pop(UNREAD, None)
    pipe.send(value if isinstance(value, Exception) else None)


def export(pipe, values, device, number, name):
    """Copy a value to shared memory."""
    value = values[number]
    if isinstance(value, np.ndarray):
        with mapped(name) as block:
            np.ndarray(value.shape, value.dtype, block.buf)[...] = value
    answer(pipe, values, value)


def adopt(pipe, values, device, number, spec, name):
    """Store a copy of shared memory."""
    with mapped(name) as block:
        values[number] = np.ndarray(spec.shape, spec.dtype, block.buf).copy()
    pipe.send(None)


def wait(pipe, values, device):
    pipe.send(values.pop(UNREAD, None))


def report(pipe, values, device):
    """Send the number of bytes of all values; views of one array count once."""
    owners = [v if v.base is None else v.base for v in values.values() if isinstance(v, np.ndarray)]
    pipe.send(sum({id(owner): owner.nbytes for owner in owners}.values()))


def raw(host):
    """Return the bytes of a C-contiguous array, of any dtype, as a memoryview."""
    return memoryview(host.reshape(-1).view(np.uint8))


@contextlib.contextmanager
def mapped(name, nbytes=0):
    """Map a block of shared memory; with a size, create it first and remove it at the end."""
    block = SharedMemory(name, create=bool(nbytes), size=nbytes)
    try:
        yield block
    finally:
        block.close()
        if nbytes:
            block.unlink()


# ---- in the user's process ---------------------------------------------------------------------------------------


class Buffer:
    """A value in the process of a worker, freed there when nothing refers to the buffer any more."""

    __slots__ = ("number", "spec", "worker")

    def __init__(self, worker, spec):
        self.worker, self.spec, self.number = worker, spec, Ref(next(worker.numbers))

    def __del__(self):
        self.worker.freed.append(self.number)  # takes no lock: this may run anywhere, even within `submit`


class Worker:
    """A device. One thread sends its commands and receives the answers, so that no interrupted call mixes them up."""

    def __init__(self, device):
        self.name, self.lost = f"workers:{device}", ""
        self.numbers, self.freed = itertools.count(), deque()
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, self.name), name=NAME, daemon=True)
        self.process.start()
        theirs.close()  # the process has the only other end, so its death is the end of the file
        self.thread = ThreadPoolExecutor(1, f"{NAME} {device}")
        try:
            self.answered(self.submit(self.pipe.recv))
        except BackendError as error:
            hint = "a script that uses workers must do so under: if __name__ == '__main__'"
            code = self.process.exitcode
            raise BackendError(f"the process of {self.name} ended as it started (exit code {code}); {hint}") from error

    def submit(self, call, *arguments) -> Future:
        """Queue a call for the thread that owns the pipe."""
        if self.lost:
            raise BackendError(self.lost)
        return self.thread.submit(self.guarded, call, *arguments)

    def guarded(self, call, *arguments):
        try:
            return call(*arguments)
        except (EOFError, OSError) as error:
            self.process.join(1)
            ended = f"the process of {self.name} has ended (exit code {self.process.exitcode}), and its arrays are lost"
            self.lost = f"{ended}; start the program anew"
            raise BackendError(self.lost) from error

    def answered(self, future):
        """Wait for an answer; raise it if it is an error."""
        found = future.result()
        if isinstance(found, Exception):
            raise found
        return found

    def send(self, command, *arguments):
        freed = [self.freed.popleft() for _ in range(len(self.freed))]
        self.pipe.send((freed, command, *arguments))

    def ask(self, command, *arguments):
        self.send(command, *arguments)
        return self.pipe.recv()

    # ---- the fields of Backend ----

    def run(self, op, out, *arguments, **params):
        specs = out if isinstance(out, tuple) else (out,)
        found = tuple(Buffer(self, spec) for spec in specs)
        # The thread gets the buffers, not their numbers: none of them is freed before the command is sent.
        self.submit(self.send_compute, found, op, out, arguments, params)
        return found if isinstance(out, tuple) else found[0]

    def send_compute(self, found, op, out, arguments, params):
        self.send(compute, numbers(found), op, out, numbers(arguments), params)

    def upload(self, host):
        buf = Buffer(self, Spec(host.shape, host.dtype))
        self.submit(self.send_array, buf, np.array(host, order="C"))  # a copy, for it is sent later
        return buf

    def send_array(self, buf, host):
        self.send(store, buf.number, buf.spec)
        if host.nbytes:
            self.pipe.send_bytes(raw(host))

    def download(self, buf):
        return self.answered(self.submit(self.receive_array, buf))

    def receive_array(self, buf):
        if error := self.ask(read, buf.number):
            return error
        host = np.empty(buf.spec.shape, buf.spec.dtype)
        if host.nbytes:
            self.pipe.recv_bytes_into(raw(host))
        return host

    def transfer(self, buf, target):
        """Copy a buffer to another worker through shared memory, which belongs to this process."""
        other = target.handle
        if not isinstance(other, Worker):
            return NotImplemented
        found = Buffer(other, buf.spec)
        with mapped(None, max(1, buf.spec.size * buf.spec.dtype.itemsize)) as block:
            self.answered(self.submit(self.ask, export, buf.number, block.name))
            other.answered(other.submit(other.ask, adopt, found.number, found.spec, block.name))
        return found

    def synchronize(self):
        self.answered(self.submit(self.ask, wait))

    def memory(self):
        return {"in use": self.answered(self.submit(self.ask, report))}


def numbers(argument):
    """Return the arguments of a kernel with numbers in place of buffers."""
    if isinstance(argument, tuple):
        return tuple([numbers(each) for each in argument])
    return argument.number if isinstance(argument, Buffer) else argument


@cache
def backend_of(device: int) -> Backend:
    """Return the backend of a device; the first call starts its process."""
    worker = Worker(device)
    running.append(
        Backend(
            worker.name,
            {op: partial(worker.run, op) for op in KERNELS},
            worker.upload,
            worker.download,
            worker.synchronize,
            hardware=f"NumPy in process {worker.process.pid}",
            memory=worker.memory,
            handle=worker,
            transfer=worker.transfer,
        )
    )
    return running[-1]


running: list[Backend] = []


def start(device: str = "0") -> Backend:
    """Return the backend of a device, by its number."""
    if device not in map(str, range(DEVICES)):
        raise BackendError(f"device is {device!r}; it must be a number from 0 to {DEVICES - 1}")
    return backend_of(int(device))


def _after_fork_in_child() -> None:
    """Give up the workers in a forked child: the thread that talks to them is the parent's only."""
    for backend in running:
        backend.handle.lost = f"{backend.name} does not survive a fork; start processes with the method spawn"
    forget(*running)
    running.clear()
    backend_of.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@hookimpl
def polyarr_backends(register):
    register("workers", start, summary="NumPy in processes, one per device", api=2)


@hookimpl
def polyarr_devices():
    return [DeviceInfo("workers", i, "NumPy in a process", chosen=i == 0) for i in range(DEVICES)]
