"""Calls with numbers that narrower dtypes, and sums in a single accumulator, cannot represent.

Integers around 2**24, 2**31, 2**53 and 2**63 for every op that accepts integers; Python numbers that float32 or int32
does not hold; arrays without axes; conversions over the whole range of an integer, and of fractions of both signs; sums
that lose digits or overflow a narrow accumulator. As in large.py, everything else comes from the simplest call that the
op's entry draws.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from polyarr import ops
from polyarr.core.op import Op
from polyarr.core.spec import INEXACT
from polyarr.testing.samples import elementwise
from polyarr.testing.samples.entry import Entry
from polyarr.testing.samples.large import LINE
from polyarr.testing.strategies import Data, Sample

WIDE = ("int32", "int64", "uint32", "uint64")
NUMBERS = {  # by dtype: numbers that a backend must not convert through another dtype
    "int64": (2**40 + 1, -(2**53) - 1), "uint64": (2**63 + 1,), "uint32": (2**24 + 1,), "int32": (2**24 + 1,),
    "float64": (0.1, 2.0**53 - 1), "float32": (16777215.0,),
}  # fmt: skip
ZEROS = 0.0, -0.0  # equal, and therefore one key of a cache
# Ops whose results for huge integers are unspecified, or that accept none.
UNFIT = {ops.pow, ops.bitwise_left_shift, ops.bitwise_right_shift, ops.astype}
EXTRA: dict[Op, list[Sample]] = {}


def numbers(op: Op, entry: Entry, usual: str, template: Sample) -> list[Sample]:
    """Return such calls of an op; none if it cannot fail in this way."""
    found = [] if op in UNFIT else [*_edges(entry, usual, template), *_with_numbers(op, entry, usual, template)]
    if op in elementwise.SAMPLES:
        found.append(replace(template, inputs=template.mapped(lambda d: replace(d, shape=()))))
    return [*found, *EXTRA.get(op, ())]


def takes_numbers(op: Op, entry: Entry) -> bool:
    """Return whether the op has such calls."""
    if op in EXTRA:
        return True
    return op not in UNFIT and (_is_broadcast(op) or any(d in WIDE for d in entry.dtypes))


def _edges(entry: Entry, usual: str, template: Sample) -> Iterator[Sample]:
    for dtype in (d for d in entry.dtypes if d in WIDE):
        yield template.with_dtype(dtype, usual).with_values("edges")


_PLACES = {ops.where: ((1, 2), (2, 1)), ops.clip: ((0, 1), (0, 2))}  # of an array and of a number beside it


def _is_broadcast(op: Op) -> bool:
    return op.inputs == ("x", "y") and bool(op.promoted) and op not in _PRODUCTS


_PRODUCTS = {ops.matrix_product, ops.matmul, ops.vecdot, ops.outer, ops.tensordot, ops.mse}


def _with_numbers(op: Op, entry: Entry, usual: str, template: Sample) -> Iterator[Sample]:
    for place, beside in _PLACES.get(op, ((0, 1), (1, 0)) if _is_broadcast(op) else ()):
        for dtype in (d for d in entry.dtypes if d in NUMBERS):
            x = next(a for a in template.inputs if isinstance(a, Data) and a.dtype == usual)
            x = replace(x, dtype=dtype, values="edges" if "int" in dtype else x.values)
            zeros = ZEROS if entry.signed_zeros and dtype == usual else ()
            for number in (*NUMBERS[dtype], *zeros):
                inputs = [None if op is ops.clip else a for a in template.inputs]
                inputs[place], inputs[beside] = x, number
                yield replace(template, inputs=tuple(inputs))


# ---- ops that make or convert numbers ------------------------------------------------------------------------------

EXTRA[ops.fill] = [
    Sample((value,), {"shape": (33,), "dtype": dtype})
    for dtype, values in {**NUMBERS, "float64": (0.1, *ZEROS), "uint64": (2**64 - 1, 2**53 + 1)}.items()
    for value in values
]
EXTRA[ops.iota] = [
    *(Sample((0.5, 1), {"size": 3001, "dtype": d.name}) for d in INEXACT),
    *(Sample((100, -3), {"size": 67, "dtype": dtype}) for dtype in ("int8", "int16")),
    *(Sample((1, 3), {"size": 67, "dtype": dtype}) for dtype in ("uint8", "uint16")),
    *(Sample((start, step), {"size": 1000, "dtype": dtype}) for start, step, dtype in (
        (0.0, 0.1, "float32"), (0.0, 0.1, "float64"), (2.5, -1 / 3, "float32"), (1e6, 0.1, "float32"),
        (2**53 + 1, 2, "int64"), (2**62, 2**40 + 1, "int64"), (-(2**31), 1, "int32"), (2**32 - 1000, 1, "uint32"),
        (2**62, 2**40 + 1, "uint64"),
    )),
]  # fmt: skip


def _all_of(target: str, source: str) -> Data:
    """Return floats over the whole range of an integer dtype."""
    info = np.iinfo(target)
    return Data((65,), source, "spread", seed=3, limit=int(info.max) * (-1 if info.min else 1))


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EXTRA[ops.astype] = [
    *(
        Sample((_all_of(target, source),), {"dtype": target})
        for source in ("float16", "float32", "float64") for target in _INTEGERS
    ),
    *(
        Sample((Data((65,), source, "edges"),), {"dtype": target})
        for source in WIDE for target in (*WIDE, "uint8", "float32", "float64")
    ),
    *(
        Sample((Data((33,), source, "unit"),), {"dtype": target})  # fractions of both signs become 0
        for source in ("float16", "float32", "float64") for target in _INTEGERS
    ),
]  # fmt: skip

# ---- sums ----------------------------------------------------------------------------------------------------------


def _hundreds(*inputs: tuple, **params: Any) -> list[Sample]:
    """Return calls with many narrow floats of about 100."""
    return [
        Sample(tuple(Data(s, dtype, v, seed=i) for i, (s, v) in enumerate(inputs)), params)
        for dtype in ("float16", "bfloat16")
    ]


_SUMS = [
    *(Sample((Data(s, values="tenths"),), {"axis": a}) for s, a in ((LINE, 0), ((3, *LINE), 1), ((*LINE, 3), 0))),
    Sample((Data((2, 1000), "float16", "offset"),), {"axis": 1}),  # elements and mean are near 100
]
_NARROW_SUMS = [
    *_SUMS,
    *(
        Sample((Data((1031,), dtype, "edges" if dtype in WIDE else "offset"),), {"axis": 0})
        for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32")
    ),
    Sample((Data((3, 70001), "int8", "offset"),), {"axis": 1}),  # above 2**22: too large for float16 and int16
]
_IN_DTYPES = [  # sums in another dtype than the default
    Sample((Data((5, 37), source, "positive"),), {"axis": 1, "dtype": dtype})
    for source, dtype in (
        ("float16", "float32"), ("bfloat16", "float64"), ("float32", "float64"), ("int8", "int32"), ("bool", "int32"),
        ("uint8", "float32"), ("int32", "float64"), ("float32", "complex64"),
    )
]  # fmt: skip
_x, _y = Data((2, *LINE), values="tenths"), Data((*LINE, 3), values="tenths", seed=1)
_DEEP = [
    Sample((_x, _y)),
    Sample((replace(_x, dtype="float16", shape=(2, 3000)), replace(_y, dtype="float16", shape=(3000, 3)))),
    Sample((Data((3, 300), "int8", "offset"), Data((300, 2), "int8", "offset", seed=1))),
]
_line = Data(LINE, values="tenths")
_targets = Data((3000,), "int64", "below", limit=3, seed=1)
EXTRA |= {
    ops.sum: [*_NARROW_SUMS, *_IN_DTYPES, Sample((Data((9, 110_003), "uint16", "edges"),), {"axis": 1})],
    ops.prod: [replace(sample, inputs=(replace(sample.inputs[0], shape=(5, 4)),)) for sample in _IN_DTYPES],
    ops.mean: _SUMS,
    ops.cumulative_sum: [*_NARROW_SUMS, *_IN_DTYPES],
    ops.logsumexp: _SUMS,
    ops.var: _hundreds(((2, 1000), "hundreds"), axis=-1),
    ops.std: _hundreds(((2, 1000), "hundreds"), axis=-1),
    ops.vector_norm: _hundreds(((2, 1000), "hundreds"), axis=-1),
    ops.mse: _hundreds(((1031,), "hundreds"), ((1031,), "hundreds")),
    ops.matrix_product: _DEEP,
    ops.matmul: _DEEP,
    ops.vecdot: [Sample((_line, replace(_line, seed=1))), *_hundreds(((3, 2000), "normal"), ((3, 2000), "normal"))],
    ops.global_norm: [
        Sample(((_line, Data((3,))),)), Sample(((Data((1031,), "float16", "hundreds"),),)),
        Sample(((Data((7,), "bfloat16", "hundreds"),),)),
    ],
    ops.softmax: _hundreds(((2, 3000), "normal"), axis=-1),
    ops.log_softmax: _hundreds(((2, 3000), "normal"), axis=-1),
    ops.layer_norm: _hundreds(((3, 1031), "hundreds"), ((1031,), "normal"), ((1031,), "normal"), eps=0.1),
    ops.rms_norm: _hundreds(((3, 1031), "hundreds"), ((1031,), "normal"), eps=0.1),
    ops.gelu: _hundreds(((33,), "hundreds")),
    ops.cross_entropy: [Sample((Data((3000, 3), "float16"), _targets), {"reduction": "mean"})],
}  # fmt: skip
