"""Checks of state that a backend keeps between calls: results, caches and threads.

A result must not change in later calls, a cache key must include all that a program depends on, and threads must not
affect each other. The checks have the form of those in checks.py.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.testing.checks import check, compare_with_reference, gradients_of, label_of, uses_unordered_op
from polyarr.testing.compare import CheckFailure, Lacking, bits
from polyarr.testing.samples import SAMPLES, large
from polyarr.testing.strategies import Sample

LATER = 20  # calls after which a result must be unchanged
THREADS, ROUNDS = 4, 2
CHOICES = {  # alternative values of parameters
    "approximate": ("none", "tanh"), "reduction": ("mean", "sum", "none"),
    "activation": (None, "relu", "silu", "gelu", "gelu_tanh"), "axis": (None, 0, 1, -1), "scale": (None, 0.3),
    "axes": (None, (1, 0), 1), "dtype": ("bfloat16", "float64", "int32"),
}  # fmt: skip


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
        if other.dtypes() <= backend.dtypes and is_valid(op, other):
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
    each = [sample.with_other_numbers(i) for i in range(THREADS)]

    def work(mine: Sample) -> dict[tuple, bytes]:
        with use_backend(backend):
            args = mine.arrays(backend)
            return bits((op(*args, **mine.params), gradients_of(op, args, mine)))

    alone = [work(mine) for mine in each]
    with _taking_turns_quickly(), ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(work, each * ROUNDS))
    for i, found in enumerate(together):
        for path, value in alone[i % THREADS].items():
            if found[path] != value:
                what = "the result" if path[0] == 0 else f"d/d{path[1]}"
                raise CheckFailure(f"{label_of(op, backend)}: {what} has other bits while other threads compute")


@contextmanager
def _taking_turns_quickly() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
