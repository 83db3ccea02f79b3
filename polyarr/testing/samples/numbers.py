"""Calls with numbers that narrower dtypes, and sums in a single accumulator, cannot represent.

Integers around 2**24, 2**31, 2**53 and 2**63 for every op that accepts integers; Python numbers that float32 or int32
does not hold; conversions over the whole range of an integer; sums that lose digits or overflow a narrow accumulator.
As in large.py, everything else comes from the simplest call that the op's entry draws.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.op import Op
from polyarr.testing.samples.entry import Entry
from polyarr.testing.samples.large import LINE
from polyarr.testing.strategies import Data, Sample

WIDE = ("int32", "int64", "uint32", "uint64")
NUMBERS = {  # by dtype: numbers that a backend must not convert through another dtype
    "int64": (2**40 + 1, -(2**53) - 1), "uint64": (2**63 + 1,), "uint32": (2**24 + 1,), "int32": (2**24 + 1,),
    "float64": (0.1, 2.0**53 - 1), "float32": (16777215.0,),
}  # fmt: skip
# Ops whose results for huge integers are unspecified, or that accept none.
UNFIT = {ops.pow, ops.bitwise_left_shift, ops.bitwise_right_shift, ops.astype}
EXTRA: dict[Op, Callable[[], Iterator[Sample]]] = {}


def numbers(op: Op, entry: Entry, usual: str, template: Sample) -> list[Sample]:
    """Return such calls of an op; none if it cannot fail in this way."""
    found = [] if op in UNFIT else [*_edges(entry, usual, template), *_with_numbers(op, entry, usual, template)]
    return [*found, *(EXTRA[op]() if op in EXTRA else ())]


def takes_numbers(op: Op, entry: Entry) -> bool:
    """Return whether the op has such calls."""
    if op in EXTRA:
        return True
    return op not in UNFIT and (_is_broadcast(op) or any(d in WIDE for d in entry.dtypes))


def _edges(entry: Entry, usual: str, template: Sample) -> Iterator[Sample]:
    for dtype in (d for d in entry.dtypes if d in WIDE):
        yield template.with_dtype(dtype, usual).with_values("edges")


def _is_broadcast(op: Op) -> bool:
    return op.inputs == ("x", "y") and bool(op.promoted) and op not in _PRODUCTS


_PRODUCTS = {ops.matrix_product, ops.matmul, ops.vecdot, ops.outer, ops.tensordot, ops.mse}


def _with_numbers(op: Op, entry: Entry, usual: str, template: Sample) -> Iterator[Sample]:
    if _is_broadcast(op):
        for dtype in (d for d in entry.dtypes if d in NUMBERS):
            x = replace(
                template.inputs[0], dtype=dtype, values="edges" if "int" in dtype else template.inputs[0].values
            )
            for number in NUMBERS[dtype]:
                yield replace(template, inputs=(x, number))
                yield replace(template, inputs=(number, x))


# ---- ops that make or convert numbers ------------------------------------------------------------------------------


def _made() -> Iterator[Sample]:
    for dtype, values in {**NUMBERS, "float64": (0.1,), "uint64": (2**64 - 1, 2**53 + 1)}.items():
        for value in values:
            yield Sample((value,), {"shape": (33,), "dtype": dtype})


def _counted() -> Iterator[Sample]:
    for start, step, dtype in (
        (0.0, 0.1, "float32"), (0.0, 0.1, "float64"), (2.5, -1 / 3, "float32"), (1e6, 0.1, "float32"),
        (2**53 + 1, 2, "int64"), (2**62, 2**40 + 1, "int64"), (-(2**31), 1, "int32"), (2**32 - 1000, 1, "uint32"),
    ):  # fmt: skip
        yield Sample((start, step), {"size": 1000, "dtype": dtype})


def _converted() -> Iterator[Sample]:
    integers = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for source in ("float16", "float32", "float64"):
        for target in integers:
            info = np.iinfo(target)
            limit = int(info.max) * (-1 if info.min else 1)
            yield Sample((Data((65,), source, "spread", seed=3, limit=limit),), {"dtype": target})
    for source in WIDE:
        for target in (*WIDE, "uint8", "float32", "float64"):
            yield Sample((Data((33,), source, "edges"),), {"dtype": target})


EXTRA |= {ops.fill: _made, ops.iota: _counted, ops.astype: _converted}

# ---- sums ----------------------------------------------------------------------------------------------------------


def _summed(**params: Any) -> Callable[[], Iterator[Sample]]:
    def calls() -> Iterator[Sample]:
        yield Sample((Data(LINE, values="tenths"),), {"axis": 0, **params})
        yield Sample((Data((3, *LINE), values="tenths"),), {"axis": 1, **params})
        yield Sample((Data((*LINE, 3), values="tenths"),), {"axis": 0, **params})
        yield Sample((Data((2, 1000), "float16", "offset"),), {"axis": 1, **params})  # elements and mean are near 100

    return calls


def _narrow_sums() -> Iterator[Sample]:
    yield from _summed()()
    for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"):
        yield Sample((Data((1031,), dtype, "edges" if dtype in WIDE else "offset"),), {"axis": 0})
    yield Sample((Data((3, 70001), "int8", "offset"),), {"axis": 1})  # above 2**22: too large for float16 and int16


def _hundreds(*inputs: tuple, dtypes: tuple = ("float16", "bfloat16"), **params: Any) -> Callable[[], Iterator[Sample]]:
    """Return calls with many narrow floats of about 100."""

    def calls() -> Iterator[Sample]:
        for dtype in dtypes:
            yield Sample(tuple(Data(s, dtype, v, seed=i) for i, (s, v) in enumerate(inputs)), params)

    return calls


def _deep() -> Iterator[Sample]:
    x, y = Data((2, *LINE), values="tenths"), Data((*LINE, 3), values="tenths", seed=1)
    yield Sample((x, y))
    yield Sample((replace(x, dtype="float16", shape=(2, 3000)), replace(y, dtype="float16", shape=(3000, 3))))
    yield Sample((Data((3, 300), "int8", "offset"), Data((300, 2), "int8", "offset", seed=1)))


def _tenths_and_hundreds(more: Callable[[], Iterator[Sample]], *tenths: Sample) -> Callable[[], Iterator[Sample]]:
    def calls() -> Iterator[Sample]:
        yield from tenths
        yield from more()

    return calls


_line = Data(LINE, values="tenths")
EXTRA |= {
    ops.sum: _narrow_sums,
    ops.mean: _summed(),
    ops.cumulative_sum: _narrow_sums,
    ops.logsumexp: _summed(),
    ops.var: _hundreds(((2, 1000), "hundreds"), axis=-1),
    ops.std: _hundreds(((2, 1000), "hundreds"), axis=-1),
    ops.vector_norm: _hundreds(((2, 1000), "hundreds"), axis=-1),
    ops.mse: _hundreds(((1031,), "hundreds"), ((1031,), "hundreds")),
    ops.matrix_product: _deep,
    ops.matmul: _deep,
    ops.vecdot: _tenths_and_hundreds(
        _hundreds(((3, 2000), "normal"), ((3, 2000), "normal")), Sample((_line, replace(_line, seed=1)))
    ),
    ops.global_norm: _tenths_and_hundreds(
        lambda: iter(
            [Sample(((Data((1031,), "float16", "hundreds"),),)), Sample(((Data((7,), "bfloat16", "hundreds"),),))]
        ),
        Sample(((_line, Data((3,))),)),
    ),
    ops.softmax: _hundreds(((2, 3000), "normal"), axis=-1),
    ops.log_softmax: _hundreds(((2, 3000), "normal"), axis=-1),
    ops.layer_norm: _hundreds(((3, 1031), "hundreds"), ((1031,), "normal"), ((1031,), "normal"), eps=0.1),
    ops.rms_norm: _hundreds(((3, 1031), "hundreds"), ((1031,), "normal"), eps=0.1),
    ops.gelu: _hundreds(((33,), "hundreds")),
    ops.cross_entropy: lambda: iter(
        [Sample((Data((3000, 3), "float16"), Data((3000,), "int64", "below", limit=3, seed=1)), {"reduction": "mean"})]
    ),
}
