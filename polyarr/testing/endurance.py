"""Checks of many calls and of first calls: leaks, counters that overflow, races. They take minutes.

`check_endurance` and `check_concurrent` have the form of the checks in checks.py, the others that of backend_checks.py.
"""

import contextlib
import gc
import json
import mmap
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polyarr
from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.core.spec import FLOATS, Spec
from polyarr.files import open_regular
from polyarr.testing import state
from polyarr.testing.backend_checks import run_new_process
from polyarr.testing.checks import check, gradients_of
from polyarr.testing.compare import CheckFailure, Lacking, bits
from polyarr.testing.samples import SAMPLES, large
from polyarr.testing.strategies import Data, Sample

CALLS, WARM = 100_000, 20_000  # number of calls, and of those after which memory must no longer grow
EVERY = 2_000  # calls between comparisons of results, at which the backend is synchronized
PER_CALL = 40  # bytes that memory may grow by per call: less than the size of any object
NOISE = 2**20  # bytes by which a process may grow by chance
PROCESS = "the process"
PROCESSES, THREADS = 2, 4
STATM = Path("/proc/self/statm")


class Kernel(NamedTuple):
    """A kernel with the arguments of one call."""

    call: Callable
    args: tuple
    params: dict[str, Any]
    out: Any  # the Spec of its result, or a tuple of them; None for a backward kernel


@check
def check_endurance(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that 100,000 calls of the op's kernels leak no memory, and the last ones compute what the first did."""
    if op not in backend.kernels:
        raise Lacking(f"{op.name} runs as other ops, which are checked by themselves")
    found = _kernels(op, backend, sample)
    _repeat(f"{op.name} on {backend.name}", backend, lambda i: [_result(op, backend, k, i) for k in found])


def _kernels(op: Op, backend: Backend, sample: Sample) -> list[Kernel]:
    """Return the calls that the op and its gradient make of the op's own kernels, forward and backward."""
    noted: list[Kernel] = []

    def watched(call: Callable, takes_out: bool) -> Callable:
        def run(*args: Any, **params: Any) -> Any:
            found = call(*args, **params)
            if found is not NotImplemented:
                noted.append(Kernel(call, args, params, args[0] if takes_out else None))
            return found

        return run

    kernel = backend.kernels[op]
    if isinstance(kernel, Fused):
        halves = watched(kernel.forward, True), watched(kernel.backward, False)
        changed: Any = kernel._replace(forward=halves[0], backward=halves[1])
    else:
        changed = watched(kernel, True)
    with use_backend(backend._replace(kernels={**backend.kernels, op: changed})) as observing:
        args = sample.arrays(observing)
        op(*args, **sample.params)
        gradients_of(op, args, sample)
        found = noted[:2]
        if op.inputs == ("x", "y") and op.promoted and args[0].dtype in FLOATS:
            with contextlib.suppress(TypeError, ValueError):  # the op accepts no number
                op(args[0], 1.5)
                found.append(noted[-1])
    return found


def _result(op: Op, backend: Backend, kernel: Kernel, i: int) -> Callable[[], bytes]:
    """Call a kernel and return a function that downloads the result.

    Numbers and random keys are new in every call, except in every EVERY-th one.
    """
    args = kernel.args
    if i % EVERY:
        args = tuple(a + i * 1e-9 if type(a) is float else a for a in args)
    if i % EVERY and "key" in op.inputs:
        place = op.inputs.index("key") - len(op.inputs)
        args = (*args[:place], i, *args[len(args) + place + 1 :]) if type(args[place]) is int else args
    found = kernel.call(*args, **kernel.params)
    if isinstance(kernel.out, (Spec, tuple)):
        found = found[0] if type(found) is tuple and type(kernel.out) is Spec else found
    return lambda: b"".join(backend.download(b).tobytes() for b in _buffers(found))


def _buffers(found: Any) -> list:
    if type(found) is tuple:
        return [b for member in found for b in _buffers(member)]
    return [] if found is None else [found]


def check_calls(backend: Backend, examples: int) -> None:
    """Check that 10,000 steps of several ops and a gradient leak no memory, and compute what the first one did."""
    x, w = (Data(shape, seed=i).array(backend) for i, shape in enumerate(((4, 8), (6, 8))))

    def loss(x: Array, k: float) -> Array:
        return ops.sum(ops.softmax(ops.linear(x * k, w)) + ops.exp(x[:, :6]) * polyarr.random.uniform((4, 6)))

    def call(i: int) -> list[Callable[[], bytes]]:
        other = i if i % EVERY else 0  # new numbers in every call, except where results are compared
        with use_backend(backend), polyarr.random.restored((other, 0)):
            value, slope = polyarr.value_and_grad(loss)(x, 1.0 + other * 1e-6)
        return [partial(lambda a: a.numpy().tobytes(), a) for a in (value, slope)]

    _repeat(backend.name, backend, call, 10)  # about 20 kernels each


def _repeat(place: str, backend: Backend, call: Callable[[int], list[Callable[[], bytes]]], share: int = 1) -> None:
    calls = CALLS // share
    warm, due = calls * WARM // CALLS, [read() for read in call(0)]
    before: dict[str, int] = {}
    for i in range(1, calls + 1):
        found = call(i)
        if i % EVERY == 0:
            if [read() for read in found] != due:
                raise CheckFailure(f"{place}: call {i} computes other bits than the first one did")
            backend.synchronize()
        del found
        if i == warm:
            before = _memory(backend)
    if not before:
        raise Lacking(f"{backend.name} does not report its memory, and that of the process cannot be read here")
    for what, after in _memory(backend).items():
        each = (after - before[what]) / (calls - warm)
        if each > PER_CALL and (what != PROCESS or after - before[what] > NOISE):
            raise CheckFailure(
                f"{place}: {what} grows by {each:.0f} bytes with every call, by {after - before[what]} in all"
            )


def _memory(backend: Backend) -> dict[str, int]:
    """Return the bytes held by the process and by the backend, as far as they can be measured."""
    gc.collect()
    backend.synchronize()
    found = {"memory in use": backend.memory()["in use"]} if backend.memory() else {}
    with contextlib.suppress(OSError):
        with open_regular(STATM) as file:
            found[PROCESS] = int(file.read().split()[1]) * mmap.PAGESIZE
    return found


# ---- threads -----------------------------------------------------------------------------------------------------


@check
def check_concurrent(op: Op, backend: Backend, template: Sample) -> None:
    """Check that computations in other threads make no difference to large calls."""
    for sample in large(op, template)[:1]:
        state.check_threads(op, backend, sample)


FIRST = """
import json, sys
from polyarr import get_backend, ops
from polyarr.testing import Data, Sample, endurance
name, turn, calls = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
print(json.dumps(endurance.call_in_threads(get_backend(name), turn, {op: eval(call) for op, call in calls.items()})))
"""


def first_calls(backend: Backend, examples: Mapping[Op, Sample]) -> None:
    """Check that in a new process an op's first call gives the same bits even if four threads make it at once.

    `examples` has a call of each op.
    """
    calls = {op.name: sample.flushed(backend.flushes) for op, sample in examples.items()}
    due = {name: _outcome(backend, name, sample) for name, sample in calls.items()}
    given = json.dumps({name: repr(sample) for name, sample in calls.items()})
    for turn in range(PROCESSES):
        for name, found in run_new_process(backend, FIRST, str(turn), given=given).items():
            for outcome in found:
                if outcome != due[name]:
                    what = outcome if outcome.startswith("error: ") else "other bits than one thread does later"
                    raise CheckFailure(
                        f"{backend.name}: {name}, called first by {THREADS} threads at once, gives {what}"
                    )


def call_in_threads(backend: Backend, turn: int, calls: dict[str, Sample]) -> dict[str, list[str]]:
    """Return what each thread gets for each op.

    In turn 0 all threads call the same op at once, in later turns each thread another op.
    """
    barrier, found = threading.Barrier(THREADS), {name: [""] * THREADS for name in calls}
    names = list(calls)
    sys.setswitchinterval(1e-5)

    def work(thread: int) -> None:
        shift = turn * thread * len(names) // THREADS
        for name in names[shift:] + names[:shift]:
            barrier.wait()
            found[name][thread] = _outcome(backend, name, calls[name])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    return found


def _outcome(backend: Backend, name: str, sample: Sample) -> str:
    """Return the bits of an op and its gradients, or the exception that it raises, as text."""
    op = next(op for op in SAMPLES if op.name == name)
    try:
        with use_backend(backend):
            args = sample.arrays(backend)
            found = bits((op(*args, **sample.params), gradients_of(op, args, sample)))
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"
    return " ".join(value.hex() for value in found.values())
