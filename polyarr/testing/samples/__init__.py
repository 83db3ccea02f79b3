"""Sample calls and NumPy references of every op: one Entry per op. Gradients need no entry.

`cases` cover all that an op accepts: nan, infinities, denormals, extremes, ties, offsets by 100, every layout. `smooth`
cases avoid points without a derivative, where central differences are meaningless: whole and half numbers for rounding,
0 for abs and relu, ties for maxima and sorting, the ends of a domain for log and acos.
"""

from polyarr.core.op import Op
from polyarr.testing.samples import (
    elementwise,
    fourier,
    images,
    indexing,
    matrices,
    moving,
    norms,
    products,
    reducing,
    special,
)  # fmt: skip
from polyarr.testing.samples.crossed import in_other_dtypes, with_other_values
from polyarr.testing.samples.elementwise import alone
from polyarr.testing.samples.entry import Cases, Entry
from polyarr.testing.samples.huge import huge
from polyarr.testing.samples.large import large
from polyarr.testing.samples.numbers import numbers, takes_numbers
from polyarr.testing.samples.promises import is_promised, promises
from polyarr.testing.samples.sweeps import is_swept, sweeps
from polyarr.testing.strategies import memoized

SAMPLES: dict[Op, Entry] = {}
for _family in (elementwise, moving, indexing, reducing, products, norms, matrices, fourier, images, special):
    for _op, _entry in _family.SAMPLES.items():  # build each strategy once: building takes longer than drawing
        _smooth = _entry.smooth and memoized(_entry.smooth)
        SAMPLES[_op] = _entry._replace(cases=memoized(_entry.cases), smooth=_smooth)

__all__ = [
    "SAMPLES", "Cases", "Entry", "alone", "huge", "in_other_dtypes", "is_promised", "is_swept", "large", "numbers",
    "promises", "sweeps", "takes_numbers", "with_other_values",
]  # fmt: skip
