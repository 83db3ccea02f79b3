"""Checks of compiled functions: one of each op, as in checks.py, and one of the backend."""

import functools
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
from polyarr.core.spec import COMPLEX, FLOATS, NARROW, as_dtype, float32, int8, int64, uint16
from polyarr.testing.checks import check, cotangents_of, gradients_of, label_of, uses_unordered_op
from polyarr.testing.compare import CheckFailure, Lacking, bits
from polyarr.testing.state import is_valid, other_params
from polyarr.testing.strategies import Data, Sample

OFFSETS = (3, 5)  # offsets in elements that are no multiples of 16 bytes in any dtype


@check
def check_captured(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that a compiled call gives the op's bits in value and gradients, whatever differs between runs."""
    if backend.unordered and (op in backend.unordered or uses_unordered_op(op, backend, sample)):
        raise Lacking(f"{backend.name} says that what {op.name} needs adds in no fixed order")
    for template in (sample, *_with_a_number(op, sample)):
        _compare(op, backend, template)
    _compare_captured_inputs(op, backend, sample)
    for twins in itertools.islice(sample.with_twins(), 1):
        _compare_twins(op, backend, twins, sample)
    if backend.replay is not None:  # a replay may overwrite donated arrays
        _compare_donated(op, backend, sample, lambda args: ())
        _compare_donated(op, backend, sample, lambda args: tree.map(_twice, args))


def _compare(op: Op, backend: Backend, sample: Sample) -> None:
    constants = {name: value for name, value in sample.params.items() if name not in op.inputs}
    others = [s.params for s in other_params(sample) if is_valid(op, s) and s.is_held(op, backend.dtypes)]

    def whole(args: tuple, named: dict[str, Any], cotangents: Any) -> Any:
        call = replace(sample, params={**constants, **named})
        first = op(*args, **call.params), gradients_of(op, args, call, cotangents)
        return *first, [op(*args, **{**params, **named}) for params in others]

    compiled, kept = polyarr.compile(whole), []
    for moment, found, start in _runs(op, sample, backend):
        args, named = found.arrays(backend), {n: v for n, v in found.params.items() if n in op.inputs}
        if start:
            args = tree.map(lambda a: _at_offset(start, a) if isinstance(a, Array) else a, args)  # noqa: B023
        expected = _outcome(lambda: op(*args, **found.params))  # noqa: B023  called at once
        if isinstance(expected, type):
            got = _outcome(lambda: compiled(args, named, None))  # noqa: B023
            if got is not expected:
                raise CheckFailure(f"{label_of(op, backend)}: compiled, {moment}: no {expected.__name__}")
            continue
        due = whole(args, named, cotangents := cotangents_of(expected, sample))
        before, given = bits(due), bits(args)
        got = compiled(args, named, cotangents)
        _compare_bits(op, backend, moment, before, bits(got))
        if bits(args) != given:
            raise CheckFailure(f"{label_of(op, backend)}: compiled, {moment}: an argument was written over")
        kept.append((before, got))
    for before, got in kept:
        _compare_bits(op, backend, "after further runs", before, bits(got))


def _compare_captured_inputs(op: Op, backend: Backend, sample: Sample) -> None:
    """Check captured inputs that are changed in place and returned, one of them also passed as an argument."""

    def whole(held: tuple, x: Any) -> tuple:
        found = op(*held, **sample.params)
        for a in tree.leaves(held):
            if isinstance(a, Array) and a.shape:
                a[...] = a[::-1]
        return found, held, x

    outcomes = []
    for is_compiled in (False, True):
        held, outcome = sample.arrays(backend), list[Any]()
        first = next((a for a in tree.leaves(held) if isinstance(a, Array)), None)
        call: Callable[..., Any] = functools.partial(whole, held)
        call = polyarr.compile(call, captures=held) if is_compiled else call
        for x in (first, first, None, None):
            outcome.append((_outcome(lambda: bits(call(x))), bits(held)))  # noqa: B023  called at once
        outcomes.append(outcome)
    if outcomes[0] != outcomes[1]:
        raise CheckFailure(f"{label_of(op, backend)}: compiled, with inputs in captures=: another outcome than without")


def _compare_twins(op: Op, backend: Backend, twins: Sample, apart: Sample) -> None:
    """Check that it makes no difference whether two inputs are one array, in either order of capture."""
    for order in ((twins, apart), (apart, twins)):
        compiled = polyarr.compile(lambda args: (op(*args, **apart.params),))
        for found in (*order, *order):
            due = _outcome(lambda: (op(*found.arrays(backend), **found.params),))  # noqa: B023  called at once
            if isinstance(due, type):
                return
            moment = "where two inputs are one array" if found is twins else "where two inputs were one array"
            _compare_bits(op, backend, moment, bits(due), bits(compiled(found.arrays(backend))))


def _compare_donated(op: Op, backend: Backend, sample: Sample, then: Callable[[tuple], Any]) -> None:
    """Check donated inputs, which the op may overwrite unless `then` still uses them."""

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
    args = sample.arrays(backend)
    views = [ops.reshape(a, shape=(-1,)) for a in tree.leaves(args) if isinstance(a, Array)]
    given = bits(views)
    compiled(args)
    if bits(views) != given:
        raise CheckFailure(f"{label_of(op, backend)}: compiled, {moment}: a view of one was written over")
    for before, got in kept:
        _compare_bits(op, backend, f"{moment}, after further runs", before, bits(got))


def check_joined(backend: Backend, examples: int) -> None:
    """Check that fused elementwise ops of a compiled function give the bits of the single ops."""
    for dtype in (d for d in FLOATS if d in backend.dtypes):
        functions: list[Callable[..., Any]] = [_fusible, _fusible_elementwise, _fusible_in_pieces]
        compiled = {fn: polyarr.compile(fn) for fn in functions}
        shapes = ((5, 33), (2, 3, 4)) if dtype == float32 else ((5, 33),)
        for shape, layout in itertools.product(shapes, ("plain", "transposed", "stepped", "offset")):
            rows = Sample((Data((*shape[:-1], 1), dtype.name), Data(shape[-1:], dtype.name)))
            args = Sample((Data(shape, dtype.name),)).with_layout(layout).arrays(backend) + rows.arrays(backend)
            for fn, k in itertools.product(functions, (1.25, 0.3)):
                if bits(compiled[fn](*args, k)) != bits(fn(*args, k)):
                    _refuse_joined(backend, f"{dtype.name}{list(shape)}, {layout}")
    integers = polyarr.compile(_fusible_integers)
    for dtype in (d for d in (int8, uint16, int64) if d in backend.dtypes):
        args = Sample(tuple(Data(s, dtype.name, "edges") for s in ((5, 33), (33,), (5, 1)))).arrays(backend)
        if bits(integers(*args)) != bits(_fusible_integers(*args)):
            _refuse_joined(backend, f"{dtype.name}[5, 33]")
    complexes, parts = [d for d in COMPLEX if d in backend.dtypes], polyarr.compile(_fusible_parts)
    for dtype, layout in itertools.product(complexes, ("plain", "transposed", "stepped", "offset")):
        (z,) = Sample((Data((3, 5, 33), dtype.name),)).with_layout(layout).arrays(backend)
        if bits(parts(z)) != bits(_fusible_parts(z)):
            _refuse_joined(backend, f"{dtype.name}[3, 5, 33], {layout}")
    layers = polyarr.compile(_fusible_layers)
    for dtype in (d for d in (float32, *NARROW) if d in backend.dtypes):
        args = Sample(tuple(Data(shape, dtype.name) for shape in ((5, 33), (33,), (33, 33)))).arrays(backend)
        if bits(layers(*args)) != bits(_fusible_layers(*args)):
            _refuse_joined(backend, f"norms and linear layers of {dtype.name}[5, 33]")


def _refuse_joined(backend: Backend, place: str) -> None:
    raise CheckFailure(f"{backend.name}: compiled ops of {place} have other bits than the ops")


def _fusible(x: Array, row: Array, column: Array, k: float) -> list[Array]:
    """Compute several results with fusible ops: chains, operands of fewer elements, reductions, two dtypes."""
    scaled = x * k + x * row
    centred = scaled - ops.max(scaled, axis=-1, keepdims=True)
    chosen = ops.where(centred * column < row, ops.tanh(column) + row * k, scaled)
    total = ops.sum(ops.exp(centred), axis=-1, keepdims=True)
    results = centred, chosen, scaled > x, ops.astype(chosen * k, dtype=float32), ops.exp(centred) / total
    return [*results, ops.sqrt(total * k) + row]


def _fusible_elementwise(x: Array, row: Array, column: Array, k: float) -> list[Array]:
    """Compute elementwise results, which a backend may run as a separate kernel, and sums of broadcast ones."""
    scaled = x * k + x * row
    wide = [ops.broadcast_to(a, shape=x.shape) * k for a in (row, column)]
    sums = [ops.sum(a, axis=axis) for a in wide for axis in (-1, -2)]  # in the order of the op
    return [ops.where(scaled * column < row, ops.tanh(column) + row * k, scaled), scaled > x, *sums]


def _fusible_in_pieces(x: Array, row: Array, column: Array, k: float) -> list[Array]:
    """Compute on two arrays that are concatenated, and on the halves of the result."""
    both = ops.concat([x * row + column, x * k - row], axis=-1) * k
    first, second = both[..., : x.shape[-1]], both[..., x.shape[-1] :]
    narrow = ops.concat([x[..., :1] * row, x[..., :1] - k], axis=-1)  # pieces of one column
    wide = ops.concat([first - column, ops.astype(second > x, dtype=x.dtype)], axis=-1)
    sums = [ops.sum(half, axis=axis) for half in (first, second) for axis in (-1, -2)]  # in the order of the op
    return [both, ops.tanh(second) * x, wide, narrow * k, *sums]


def _fusible_integers(x: Array, row: Array, column: Array) -> list[Array]:
    """Compute with integers whose sums and products wrap around, and which are then compared, shifted and converted."""
    scaled = x * 3 + row
    chosen = ops.where(scaled < column, scaled * column, x - row)
    return [scaled > x, chosen, ops.bitwise_right_shift(scaled, 1), ops.astype(scaled * scaled, dtype=float32)]


def _fusible_parts(z: Array) -> list[Array]:
    """Compute the parts of complex numbers, and sums of them, whose order must not depend on where a part is from."""
    found = ops.real_part(z * z), ops.imaginary_part(ops.conj(z))
    return [*found, *(ops.sum(part, axis=axis) for part in found for axis in (0, 1, 2, None))]


def _fusible_layers(x: Array, row: Array, weight: Array) -> list[Array]:
    """Compute norms and gated linear layers between residual connections, and their gradients."""

    def block(x: Array, row: Array, weight: Array) -> Array:
        total = x + ops.layer_norm(x, row, row)
        found = ops.rms_norm(total, row)
        return total + ops.silu(ops.linear(found, weight)) * ops.linear(found, weight * 0.5)

    value, pull = polyarr.vjp(block, x, row, weight)
    return [value, *pull(x)]


def _runs(op: Op, sample: Sample, backend: Backend) -> Iterator[tuple[str, Sample, int]]:
    """Yield a description of each run, its call, and the offset of its arrays in memory.

    The first run is the one that is captured. Offsets are tried only on backends with a replay.
    """
    yield "when it is captured", sample, 0
    yield "with other arrays", sample.with_other_numbers(), 0
    inputs, named = tree.map(_other, sample.inputs), {n: v for n, v in sample.params.items() if n in op.inputs}
    if inputs != sample.inputs or named:
        params = {**sample.params, **tree.map(_other, named)}
        yield "with other numbers", replace(sample, inputs=inputs, params=params), 0
    yield "in another layout", sample.with_layout("transposed"), 0
    for start in () if backend.replay is None else OFFSETS:
        yield "in another place", sample, start
    yield "with the first arrays again", sample, 0


def _twice(leaf: Any) -> Any:
    """Return the elements of an array twice; any other leaf unchanged."""
    return polyarr.concat([polyarr.reshape(leaf, shape=(-1,))] * 2) if isinstance(leaf, Array) else leaf


def _at_offset(start: int, a: Array) -> Array:
    """Return the same values as a view that starts `start` elements into a larger buffer."""
    larger = np.concatenate([np.zeros(start, a.dtype), a.numpy().reshape(-1)])
    return polyarr.reshape(from_numpy(larger, a.backend)[start:], shape=a.shape)


def _other(leaf: Any) -> Any:
    """Return another number for a Python number; any other leaf unchanged."""
    return leaf + 1 if type(leaf) is int else leaf / 2 + 0.125 if type(leaf) is float else leaf


def _with_a_number(op: Op, sample: Sample) -> Iterator[Sample]:
    """Yield the call with a Python number instead of an array, if the op accepts either."""
    if op.inputs == ("x", "y") and op.promoted and op not in (ops.matrix_product, ops.matmul):
        yield replace(sample, inputs=(sample.inputs[0], 1.5 if as_dtype(sample.inputs[0].dtype) in FLOATS else 2))


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the type of the exception that it raises for its arguments."""
    try:
        return call()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return type(error)


def _compare_bits(op: Op, backend: Backend, moment: str, due: dict[tuple, bytes], got: dict[tuple, bytes]) -> None:
    if due.keys() != got.keys():
        raise CheckFailure(f"{label_of(op, backend)}: compiled, {moment}: {len(got)} results; expected {len(due)}")
    for path, value in due.items():
        if got[path] != value:
            what = ("the result", f"d/d{path[-1]}", "the result with another parameter")[path[0]]
            raise CheckFailure(f"{label_of(op, backend)}: compiled, {moment}: {what} has other bits")
