"""Calls of elementwise ops over the whole range of each dtype: one input over a sweep, two inputs over pairs.

16-bit inputs cover every bit pattern, pairs of 8-bit inputs every pair. Two wider inputs meet at similar magnitudes, at
random ones, and in every pair of the values at which functions have special cases.
"""

from collections.abc import Callable, Iterator

import numpy as np

from polyarr import ops
from polyarr.core.op import Op
from polyarr.core.spec import COMPLEX, DTYPES, NARROW, as_dtype
from polyarr.testing.samples import elementwise, special
from polyarr.testing.samples.entry import Entry
from polyarr.testing.strategies import Data, Sample
from polyarr.testing.sweeps import WIDE_COUNT, corners

Swept = Callable[[str], Iterator[Sample]]
SWEEPS: dict[Op, Swept] = {}
SHUFFLED = (11, 12)  # seeds of permuted sweeps
TAIL = 15  # elements behind the last whole vector


def sweeps(op: Op, entry: Entry) -> Iterator[Sample]:
    """Yield the calls of an op in each of its dtypes."""
    for dtype in (d for d in entry.dtypes if as_dtype(d) not in COMPLEX):  # libraries differ for infinities
        yield from SWEEPS[op](dtype)


def is_swept(op: Op) -> bool:
    """Return whether the op has such calls."""
    return op in SWEEPS


def _length(dtype: str) -> int:
    """Return the number of values to try: all of a dtype of up to 16 bits, and a few more, as the tail of a vector."""
    bits = 8 * as_dtype(dtype).itemsize
    return 2 if dtype == "bool" else 2**bits if bits == 8 else 2**16 + TAIL if bits == 16 else 2 * WIDE_COUNT + TAIL


def _line(dtype: str, seed: int = 0, values: str = "sweep", limit: int = 0, length: int = 0) -> Data:
    return Data((length or _length(dtype),), dtype, values, seed=seed, limit=limit)


def _pair(dtype: str, seed: int = 0) -> Data:
    return _line(dtype, seed, "quiet sweep")


def _of_one(dtype: str) -> Iterator[Sample]:
    yield Sample((_line(dtype),))


def _paired(dtype: str) -> Iterator[Sample]:
    """Yield every pair of 8-bit values; wider ones at similar and at random magnitudes, and every pair of corners."""
    n = _length(dtype)
    if n <= 256:
        yield Sample(_every_pair(dtype, "sweep", n))
        return
    yield Sample((_pair(dtype, SHUFFLED[0]), _pair(dtype, SHUFFLED[1])))
    if "float" in dtype:
        yield from (Sample((_pair(dtype), _pair(dtype, turn))) for turn in (1, 4))
    yield _cornered(dtype)


def _cornered(dtype: str) -> Sample:
    return Sample(_every_pair(dtype, "corners", len(corners(as_dtype(dtype)))))


def _every_pair(dtype: str, values: str, n: int) -> tuple[Data, Data]:
    """Return two lines with every pair of the first n values side by side: one begins again after n, one after n + 1.

    They are not broadcast, so that compiled programs are those of other cases of the dtype.
    """
    length = n * (n + 1)
    return _line(dtype, 0, values, n, length), _line(dtype, 0, values, n + 1, length)


def _divided(dtype: str) -> Iterator[Sample]:
    """Yield integers; and floats whose quotients are exact, or large and far from whole numbers."""
    if "int" in dtype:
        yield from _paired(dtype)
    else:
        yield Sample((Data((1, 2049), dtype, "ramp"), Data((32, 1), dtype, "few")))
        largest = -(2**14 if as_dtype(dtype) in NARROW else 2**20)  # of both signs
        yield Sample((Data((1, 2049), dtype, "spread", limit=largest), Data((32, 1), dtype, "few")))


def _raised(dtype: str) -> Iterator[Sample]:
    """Yield every base with small exponents, and bases around 1 with large ones."""
    if "int" in dtype:
        yield Sample((Data((1, min(_length(dtype), WIDE_COUNT)), dtype, "sweep"), Data((7, 1), dtype, "ramp")))
        return
    yield Sample((Data((1, _length(dtype)), dtype, "sweep"), Data((32, 1), dtype, "few")))
    yield Sample((_line(dtype, values="near one", length=4096), _line(dtype, 1, "wide", length=4096)))
    yield _cornered(dtype)


def _shifted(dtype: str) -> Iterator[Sample]:
    bits = np.iinfo(dtype).bits - (dtype[0] == "i")
    yield Sample((Data((_length(dtype), 1), dtype, "sweep"), Data((1, bits), dtype, "ramp")))


def _chosen(dtype: str) -> Iterator[Sample]:
    n = _length(dtype)
    yield Sample((Data((n,), "bool", "sweep"), _line(dtype), _line(dtype, SHUFFLED[0])))


def _clipped(dtype: str) -> Iterator[Sample]:
    low, high = (1, 100) if dtype[0] == "u" else (-3, 100)
    yield Sample((_line(dtype), low, high))
    yield Sample((_line(dtype), None, _line(dtype, SHUFFLED[0])))


def _converted(dtype: str) -> Iterator[Sample]:
    """Yield conversions into every dtype for which each of the values is defined."""
    for target in (d.name for d in DTYPES):
        if not ("float" in dtype and "int" in target) and not ("complex" in dtype and "complex" not in target):
            yield Sample((_line(dtype),), {"dtype": target})


for _op in elementwise.SAMPLES:
    SWEEPS[_op] = _of_one if len(_op.inputs) == 1 else _paired
SWEEPS.update({
    ops.floor_divide: _divided,
    ops.remainder: _divided,
    ops.pow: _raised,
    ops.bitwise_left_shift: _shifted,
    ops.bitwise_right_shift: _shifted,
    ops.where: _chosen,
    ops.clip: _clipped,
    ops.astype: _converted,
    ops.gelu: _of_one,
    **dict.fromkeys(special.SWEPT, _of_one),
})
del SWEEPS[ops.astype_all]  # it runs as astype, which has sweeps
