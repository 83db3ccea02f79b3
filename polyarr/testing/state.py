"""Checks of state that a backend keeps between calls: results, caches and threads.

A result must not change in later calls, a cache key must include all that a program depends on, and threads must not
affect each other. The checks have the form of those in checks.py.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.testing.checks import (
    check,
    compare_with_reference,
    cotangents_of,
    gradients_of,
    label_of,
    uses_unordered_op,
)
from polyarr.testing.compare import CheckFailure, Lacking, bits
from polyarr.testing.samples import SAMPLES, large
from polyarr.testing.strategies import Data, Sample

LATER = 20  # calls after which a result must be unchanged
THREADS, ROUNDS = 4, 2
PAUSE = 1e-4  # seconds for which a thread lets others run before a line
CHOICES = {  # alternative values of parameters
    "approximate": ("none", "tanh"), "reduction": ("mean", "sum", "none"),
    "activation": (None, "relu", "silu", "gelu", "gelu_tanh"), "axis": (None, 0, 1, -1), "scale": (None, 0.3),
    "axes": (None, (1, 0), 1), "dtype": ("bfloat16", "float64", "int32"),
}  # fmt: skip

# Calls of kernels with scratch memory: partial results, sorted keys, statistics of rows, packed operands. They take
# long enough for kernels of several threads to overlap, and a library that computes without Python's lock releases it.
_X, _ROW = Data((61, 1031)), Data((1031,), seed=1)
OVERLAPPING: tuple[tuple[Op, Sample], ...] = (
    *((op, Sample((_X,), {"axis": axis})) for op, axis in ((ops.sum, 0), (ops.sum, 1), (ops.max, None))),
    *((op, Sample((_X,), {"axis": 1})) for op in (ops.argsort, ops.cumulative_sum, ops.var, ops.softmax)),
    (ops.add, Sample((_X, _X)).with_layout("transposed")),
    (ops.matrix_product, Sample((_X, Data((1031, 61), seed=1)))),
    (ops.matrix_product, Sample((Data((3, 5003)), Data((5003, 4), seed=1)))),
    (ops.linear, Sample((Data((67, 131)), Data((35, 131), seed=1), Data((35,), seed=2)), {"activation": "silu"})),
    (ops.layer_norm, Sample((_X, _ROW, Data((1031,), seed=2)), {"eps": 0.1})),
    (ops.rms_norm, Sample((_X, _ROW), {"eps": 0.1})),
    (ops.attention, Sample((*(Data((2, 67, 64), seed=i) for i in range(3)), None, 7, 3), {"causal": True})),
    (ops.cross_entropy, Sample((_X, Data((61,), "int64", "below", limit=1031)))),
    (ops.take, Sample((_X, Data((67,), "int64", "below", limit=61)), {"axis": 0})),
    (ops.scatter_add, Sample((_X, Data((67,), "int64", "below", limit=5), Data((67, 1031), seed=1)), {"axis": 0})),
    (ops.conv, Sample((Data((2, 9, 11, 17)), Data((19, 3, 3, 17), seed=1), Data((19,), seed=2)), {"padding": 1})),
)  # fmt: skip


@check
def check_lasting(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that inputs, result and gradients are unchanged after 20 more calls; a large value after one."""

    def call(of: Sample, args: tuple, with_gradients: bool) -> tuple:
        return op(*args, **of.params), gradients_of(op, args, of) if with_gradients else {}

    large_calls = [(large(op, sample)[0], 1)] if op in backend.kernels else []  # others run as those that have kernels
    for first, later in ((sample, LATER), *large_calls):
        args = first.arrays(backend)
        given = bits(args)
        found = call(first, args, later == LATER)
        before = bits(found)
        calls = "calls" if later > 1 else "call"
        for i in range(later):
            other = first.with_other_numbers(i + 1)
            call(other, other.arrays(backend), later == LATER)
        for path, now in bits(found).items():
            if now != before[path]:
                what = "the result" if path[0] == 0 else f"d/d{path[1]}"
                raise CheckFailure(f"{label_of(op, backend)}: {what} is another one after {later} more {calls}")
        if bits(args) != given:
            raise CheckFailure(f"{label_of(op, backend)}: an input is another one after the call")


@check
def check_caches(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that calls of one shape that differ in a parameter, a number, a dtype or strides are not confused."""
    for other in _variants(op, backend, sample):
        compare_with_reference(op, backend, replace(other, g="transposed"))
    compare_with_reference(op, backend, sample)


def _variants(op: Op, backend: Backend, sample: Sample) -> Iterator[Sample]:
    """Yield calls with the sample's shapes that each differ from it in one respect."""
    changed = [*other_params(sample)]
    found = [sample, *changed, *_other_numbers(op, sample), *_other_dtypes(op, sample)]
    found += [other.with_layout("transposed") for other in changed]
    found += [sample.with_layout(layout) for layout in ("transposed", "offset")]
    for other in found:
        if is_valid(op, other) and other.is_held(op, backend.dtypes):
            yield other


def is_valid(op: Op, sample: Sample) -> bool:
    """Return whether the op accepts the sample's inputs and parameters."""
    try:
        op(*sample.specs(), **sample.params)
    except (TypeError, ValueError, IndexError):  # polyarr's own exceptions are subclasses
        return False
    return True


def _other_dtypes(op: Op, sample: Sample) -> Iterator[Sample]:
    """Yield the call in a wider dtype, in a narrower one, and in integers."""
    usual, known = SAMPLES[op].usual, SAMPLES[op].dtypes
    wide = {"float64", "int32"} - ({"int32"} if op is ops.pow else set())  # negative integer powers are undefined
    yield from (sample.with_dtype(d, usual) for d in known if d in wide - {usual})
    if "float16" in known:  # float16 cannot distinguish 100 from 100.01
        yield sample.with_values("normal", only="offset").with_dtype("float16", usual)


def other_params(sample: Sample) -> Iterator[Sample]:
    """Yield the call with another value for one parameter at a time."""
    for name, value in sample.params.items():
        for other in CHOICES.get(name, _others(value)):
            if other != value:
                yield replace(sample, params={**sample.params, name: other})


def _others(value: Any) -> tuple:
    """Return other values of the same kind."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, tuple) and value and all(isinstance(v, float) for v in value):
        return (tuple(v / 2 + 0.125 + i / 8 for i, v in enumerate(value)),)
    if isinstance(value, float):
        return (value / 2 + 0.125,)
    return (value + 1,) if isinstance(value, int) else ()


def _other_numbers(op: Op, sample: Sample) -> Iterator[Sample]:
    """Yield the call with other Python numbers and, for binary ops, with two different numbers instead of an array."""
    for i, value in enumerate(sample.inputs):
        for other in _others(value):
            yield replace(sample, inputs=(*sample.inputs[:i], other, *sample.inputs[i + 1 :]))
    if op.inputs == ("x", "y") and op.promoted and op not in (ops.matrix_product, ops.matmul):
        for number in (2, 1):
            yield replace(sample, inputs=(sample.inputs[0], number))


@check
def check_threads(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that computations in other threads make no difference."""
    if backend.unordered and uses_unordered_op(op, backend, sample):
        raise Lacking(f"{backend.name} says that what {op.name} needs adds in no fixed order")
    calls = [_prepare(op, backend, sample, i) for i in range(THREADS)]
    for _ in range(ROUNDS):
        _compare_at_once(backend, calls)


def check_overlaps(backend: Backend, examples: int) -> None:
    """Check that kernels which need scratch memory give the same bits while threads call the same and other kernels."""
    with use_backend(backend):
        known = [c for c in OVERLAPPING if not (backend.unordered and uses_unordered_op(c[0], backend, c[1]))]
        calls = [[_prepare(op, backend, sample, i) for op, sample in known] for i in range(THREADS)]
    for apart in (0, len(known) // THREADS):  # threads call the same op, then others
        for i in range(len(known)):
            _compare_at_once(backend, [own[(i + thread * apart) % len(known)] for thread, own in enumerate(calls)])


class _Call(NamedTuple):
    """A call that is ready: its inputs are on the backend, since no kernel runs while they are copied there."""

    op: Op
    run: Callable[[], tuple]  # returns value and gradients
    due: dict[tuple, bytes]  # what it returns alone


def _prepare(op: Op, backend: Backend, sample: Sample, thread: int) -> _Call:
    """Return the call with the numbers of a thread, and its key and counter of random bits."""
    mine = sample.with_other_numbers(thread)
    named = zip(op.inputs, mine.inputs, strict=False)  # the last ones may be left out
    mine = replace(mine, inputs=tuple([a ^ thread if name in ("key", "counter") else a for name, a in named]))
    args = mine.arrays(backend)
    cotangents = cotangents_of(op(*args, **mine.params), mine, 8 + thread)

    def run() -> tuple:
        return op(*args, **mine.params), gradients_of(op, args, mine, cotangents)

    return _Call(op, run, bits(run()))


def _compare_at_once(backend: Backend, calls: list[_Call]) -> None:
    """Make each of the calls in a thread of its own, all at once, and compare with what it returns alone."""
    start = threading.Barrier(len(calls))

    def work(call: _Call) -> dict[tuple, bytes]:
        start.wait()
        with use_backend(backend), _yielding():
            found = call.run()
        return bits(found)

    with _taking_turns_quickly(), ThreadPoolExecutor(len(calls)) as pool:
        for call, found in zip(calls, pool.map(work, calls), strict=True):
            for path, value in call.due.items():
                if found[path] != value:
                    what = "the result" if path[0] == 0 else f"d/d{path[1]}"
                    label = label_of(call.op, backend)
                    raise CheckFailure(f"{label}: {what} has other bits while other threads compute")


@contextmanager
def _taking_turns_quickly() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _yielding() -> Iterator[None]:
    """Let other threads run before each line of the backend's Python code, the first time that the line is reached.

    Otherwise a thread seldom loses Python's lock between the lines that write to memory and those that read it.
    """
    seen = set[tuple[int, int]]()

    def at_call(frame: FrameType, event: str, arg: Any) -> Callable | None:
        name = frame.f_globals.get("__name__", "")
        return None if name.startswith("polyarr.") and not name.startswith("polyarr.backends.") else at_line

    def at_line(frame: FrameType, event: str, arg: Any) -> Callable:
        place = id(frame.f_code), frame.f_lineno
        if event == "line" and place not in seen:
            seen.add(place)
            time.sleep(PAUSE)
        return at_line

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
