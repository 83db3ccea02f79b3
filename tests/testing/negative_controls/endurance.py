"""Faults that need many calls, large arrays in several threads, or the first call; on NumPy."""

import contextlib
import itertools
import mmap
import time
from unittest import mock

import numpy as np

from polyarr import ops
from polyarr.core.current import get_backend
from polyarr.testing import cases, checks, endurance
from tests.testing.negative_controls.side_effects import changing, installed
from tests.testing.negative_controls.table import fault

SIZE = 1 << 16  # bytes


@contextlib.contextmanager
def fewer():
    """Reduce the number of calls: these faults are coarse."""
    with mock.patch.multiple(endurance, CALLS=1000, WARM=200, EVERY=100):
        yield


def grows(name, what="the process"):
    return {f"endurance-{name}": rf"{name} on numpy: {what} grows by \d+ bytes with every call, by \d+ in all"}


def leaking(key):
    """Wrap a kernel: it keeps memory for each key(*bufs) that it sees, except None."""

    def change(kernel):
        seen = {}

        def changed(out, *bufs, **params):
            found = key(*bufs)
            if found is not None and found not in seen:
                seen[found] = mmap.mmap(-1, SIZE)  # new pages, not memory that the process has but does not use
                seen[found].write(b"1" * SIZE)
            return kernel(out, *bufs, **params)

        return changed

    return change


@fault("numpy", grows("exp"), within=fewer)
def every_tenth_call_keeps_memory(backend):
    counter = itertools.count()
    return changing(ops.exp, leaking(lambda x: next(counter) // 10))(backend)


@fault("numpy", {"backend-calls": r"numpy: the process grows by \d+ bytes with every call"}, within=fewer)
def a_cache_knows_every_number(backend):
    return changing(ops.multiply, leaking(lambda x, y: y if type(y) is float else None))(backend)


@fault(
    "numpy",
    {"endurance-tanh": r"tanh on numpy: call \d+ computes other bits than the first one did"},
    steady=False,
    within=fewer,
)
def a_counter_overflows(backend):
    counter = itertools.count()

    def change(kernel):
        return lambda out, x: kernel(out, x) * (1 if next(counter) < 500 else 2)

    return changing(ops.tanh, change)(backend)


@fault("numpy", grows("random_bits"), steady=False, within=fewer)
def a_cache_knows_every_key(backend):
    return changing(ops.random_bits, leaking(lambda key, *rest: key // 10))(backend)


@fault("reporting", {"backend-calls": r"numpy: memory in use grows by \d+ bytes with every call"}, within=fewer)
def results_are_kept(backend):
    kept = []

    def change(kernel):
        return lambda out, x: (kernel(out, x), kept.append(kernel(out, x)))[0]

    return changing(ops.exp, change)(backend)


# ---- threads -----------------------------------------------------------------------------------------------------

CROWDED = {"concurrent-exp": "exp on numpy: (the result|d/dx) has other bits while other threads compute"}


@fault("numpy", CROWDED)
def threads_share_scratch_memory_of_large_calls(backend):
    scratch = {}

    def change(kernel):
        def changed(out, x):
            found = kernel(out, x)
            if found.size < 1 << 16:
                return found
            shared = scratch.setdefault(out.dtype, np.empty_like(found))
            shared[...] = found
            time.sleep(0.02)  # the others get their turn
            return shared.copy()

        return changed

    return changing(ops.exp, change)(backend)


RACING = """
import time
import numpy as np
from polyarr import ops
from polyarr.backends.numpy import start as sound
from polyarr.plugins import hookimpl

table = []

def tanh(out, x, plain=sound().kernels[ops.tanh]):
    if not table:  # the first thread fills it, and the others find it half filled
        table.append(0.0)
        time.sleep(0.05)
        table.append(1.0)
    return (plain(out, x) * np.float32(table[-1])).astype(out.dtype)

def start():
    backend = sound()
    return backend._replace(name="racing", kernels={**backend.kernels, ops.tanh: tanh})

@hookimpl
def polyarr_backends(register):
    register("racing", start, api=2)
"""


@contextlib.contextmanager
def racing():
    """Install the backend racing, and check only a few of its ops."""
    few = {op: sample for op, sample in cases.first_examples(checks.reference()).items() if op in (ops.exp, ops.tanh)}
    with installed("racing", RACING), mock.patch.object(cases, "first_examples", lambda backend: few):
        with mock.patch.object(endurance, "PROCESSES", 1):
            yield


@fault(
    "numpy",
    {"backend-first-calls": "racing: tanh, called first by 4 threads at once, gives other bits"},
    within=racing,
)
def the_first_calls_share_a_table_that_is_not_ready(backend):
    return get_backend("racing")
