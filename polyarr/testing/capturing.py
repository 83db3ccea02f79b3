"""Compiled functions: a check as those of checks.py, and one of the backend."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import polyarr
from polyarr import ops, tree
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.op import Op
from polyarr.core.spec import FLOATS, as_dtype, float32
from polyarr.testing.checks import check, cotangents_of, meets_unordered, place_of, pulled
from polyarr.testing.compare import CheckFailure, Lacking, bits
from polyarr.testing.state import is_valid, other_params
from polyarr.testing.strategies import Data, Sample

PLACES = (3, 5)  # neither begins at a multiple of 16 bytes, whatever the dtype


@check
def check_captured(op: Op, backend: Backend, sample: Sample) -> None:
    """A compiled call gives the same bits as the op, in value and in gradients, whatever differs from run to run."""
    if backend.unordered and (op in backend.unordered or meets_unordered(op, backend, sample)):
        raise Lacking(f"{backend.name} says that what {op.name} needs adds in no fixed order")
    for template in (sample, *_with_a_number(op, sample)):
        _compare(op, backend, template)
    for twins in itertools.islice(sample.with_twins(), 1):
        _compare_twins(op, backend, twins, sample)
    if backend.replay is not None:  # which may write over what is given away
        _give_away(op, backend, sample, lambda args: ())
        _give_away(op, backend, sample, lambda args: tree.map(_twice, args))


def _compare(op: Op, backend: Backend, sample: Sample) -> None:
    constants = {name: value for name, value in sample.params.items() if name not in op.inputs}
    others = [s.params for s in other_params(sample) if is_valid(op, s) and s.dtypes() <= backend.dtypes]

    def whole(args: tuple, named: dict[str, Any], cotangents: Any) -> Any:
        call = replace(sample, params={**constants, **named})
        first = op(*args, **call.params), pulled(op, args, call, cotangents)
        return *first, [op(*args, **{**params, **named}) for params in others]

    compiled, kept = polyarr.compile(whole), []
    for moment, found, start in _runs(op, sample, backend):
        args, named = found.arrays(backend), {n: v for n, v in found.params.items() if n in op.inputs}
        if start:
            args = tree.map(lambda a: _from(start, a) if isinstance(a, Array) else a, args)  # noqa: B023
        expected = _outcome(lambda: op(*args, **found.params))  # noqa: B023  called at once
        if isinstance(expected, type):
            got = _outcome(lambda: compiled(args, named, None))  # noqa: B023
            if got is not expected:
                raise CheckFailure(f"{place_of(op, backend)}: compiled, {moment}: no {expected.__name__}")
            continue
        due = whole(args, named, cotangents := cotangents_of(expected, sample))
        before, given = bits(due), bits(args)
        got = compiled(args, named, cotangents)
        _compare_bits(op, backend, moment, before, bits(got))
        if bits(args) != given:
            raise CheckFailure(f"{place_of(op, backend)}: compiled, {moment}: an argument was written over")
        kept.append((before, got))
    for before, got in kept:
        _compare_bits(op, backend, "after further runs", before, bits(got))


def _compare_twins(op: Op, backend: Backend, twins: Sample, apart: Sample) -> None:
    """The same bits whether two inputs are one array or not, whichever was captured."""
    for order in ((twins, apart), (apart, twins)):
        compiled = polyarr.compile(lambda args: (op(*args, **apart.params),))
        for found in (*order, *order):
            due = _outcome(lambda: (op(*found.arrays(backend), **found.params),))  # noqa: B023  called at once
            if isinstance(due, type):
                return
            moment = "where two inputs are one array" if found is twins else "where two inputs were one array"
            _compare_bits(op, backend, moment, bits(due), bits(compiled(found.arrays(backend))))


def _give_away(op: Op, backend: Backend, sample: Sample, then: Callable[[tuple], Any]) -> None:
    """The same bits where the op may write over its inputs, unless something else is done with them then."""

    def both(args: tuple) -> tuple:
        return op(*args, **sample.params), then(args)

    compiled, kept, moment = polyarr.compile(both, donate="args"), [], "with arrays that are given away"
    for found in (sample, sample.with_other_numbers(), sample):
        due = _outcome(lambda: both(found.arrays(backend)))  # noqa: B023  called at once
        if isinstance(due, type):
            return
        before, got = bits(due), compiled(found.arrays(backend))
        _compare_bits(op, backend, moment, before, bits(got))
        kept.append((before, got))
    for before, got in kept:
        _compare_bits(op, backend, f"{moment}, after further runs", before, bits(got))


def check_joined(backend: Backend, examples: int) -> None:
    """What a compiled function computes element by element has the bits of its ops, however much is one command."""
    for dtype in (d for d in FLOATS if d in backend.dtypes):
        compiled = {fn: polyarr.compile(fn) for fn in (_joined, _linked)}
        shapes = ((5, 33), (2, 3, 4)) if dtype == float32 else ((5, 33),)
        for shape, layout in itertools.product(shapes, ("plain", "transposed", "stepped", "offset")):
            rows = Sample((Data((*shape[:-1], 1), dtype.name), Data(shape[-1:], dtype.name)))
            args = Sample((Data(shape, dtype.name),)).with_layout(layout).arrays(backend) + rows.arrays(backend)
            for fn, k in itertools.product((_joined, _linked), (1.25, 0.3)):
                if bits(compiled[fn](*args, k)) != bits(fn(*args, k)):
                    place = f"{dtype.name}{list(shape)}, {layout}"
                    raise CheckFailure(f"{backend.name}: compiled ops of {place} have other bits than the ops")


def _joined(x: Array, row: Array, column: Array, k: float) -> list[Array]:
    """Several results; what something waits for that the next waits for; operands of fewer elements; two dtypes."""
    scaled = x * k + x * row
    centred = scaled - ops.max(scaled, axis=-1, keepdims=True)
    chosen = ops.where(centred * column < row, ops.tanh(column) + row * k, scaled)
    total = ops.sum(ops.exp(centred), axis=-1, keepdims=True)
    return [centred, chosen, scaled > x, ops.astype(chosen * k, dtype=float32), ops.exp(centred) / total]


def _linked(x: Array, row: Array, column: Array, k: float) -> list[Array]:
    """Nothing of which reduces, as that may be another kind of command."""
    scaled = x * k + x * row
    return [ops.where(scaled * column < row, ops.tanh(column) + row * k, scaled), scaled > x]


def _runs(op: Op, sample: Sample, backend: Backend) -> Iterator[tuple[str, Sample, int]]:
    """When the compiled call runs, what is new then, and how far into their memory arrays begin.

    The first is the one that is captured. Only a backend's replay may take a place that it has seen for the next one.
    """
    yield "when it is captured", sample, 0
    yield "with other arrays", sample.with_other_numbers(), 0
    inputs, named = tree.map(_other, sample.inputs), {n: v for n, v in sample.params.items() if n in op.inputs}
    if inputs != sample.inputs or named:
        params = {**sample.params, **tree.map(_other, named)}
        yield "with other numbers", replace(sample, inputs=inputs, params=params), 0
    yield "in another layout", sample.with_layout("transposed"), 0
    for start in () if backend.replay is None else PLACES:
        yield "in another place", sample, start
    yield "with the first arrays again", sample, 0


def _twice(leaf: Any) -> Any:
    """The elements of an array two times."""
    return polyarr.concat([polyarr.reshape(leaf, shape=(-1,))] * 2) if isinstance(leaf, Array) else leaf


def _from(start: int, a: Array) -> Array:
    """The same values so many elements into a larger memory."""
    larger = np.concatenate([np.zeros(start, a.dtype), a.numpy().reshape(-1)])
    return polyarr.reshape(from_numpy(larger, a.backend)[start:], shape=a.shape)


def _other(leaf: Any) -> Any:
    """Another Python number; anything else as it is."""
    return leaf + 1 if type(leaf) is int else leaf / 2 + 0.125 if type(leaf) is float else leaf


def _with_a_number(op: Op, sample: Sample) -> Iterator[Sample]:
    """The call with Python numbers in the place of an array, where the op takes either."""
    if op.inputs == ("x", "y") and op.promoted and op not in (ops.matrix_product, ops.matmul):
        yield replace(sample, inputs=(sample.inputs[0], 1.5 if as_dtype(sample.inputs[0].dtype) in FLOATS else 2))


def _outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the type of the error that it raises for its arguments."""
    try:
        return call()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return type(error)


def _compare_bits(op: Op, backend: Backend, moment: str, due: dict[tuple, bytes], got: dict[tuple, bytes]) -> None:
    if due.keys() != got.keys():
        raise CheckFailure(f"{place_of(op, backend)}: compiled, {moment}: {len(got)} results; expected {len(due)}")
    for path, value in due.items():
        if got[path] != value:
            what = ("the result", f"d/d{path[-1]}", "the result with another parameter")[path[0]]
            raise CheckFailure(f"{place_of(op, backend)}: compiled, {moment}: {what} has other bits")
