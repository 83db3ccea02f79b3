"""One entry per op: what it is called with, and what NumPy gives for it in float64. Gradients need no entry.

`cases` cover everything an op takes: nan, infinities, denormals, extremes, ties, offsets by 100, every layout.
`smooth` ones stay away from points without a derivative, where central differences mean nothing: whole and half
numbers for rounding, 0 for abs and relu, ties for maxima and orders, the ends of a domain for log and acos.
"""

from polyarr.core.op import Op
from polyarr.testing.samples import elementwise, images, indexing, matrices, moving, norms, products, reducing
from polyarr.testing.samples.elementwise import alone
from polyarr.testing.samples.entry import Cases, Entry
from polyarr.testing.samples.large import large
from polyarr.testing.samples.numbers import numbers, takes_numbers
from polyarr.testing.strategies import remembered

SAMPLES: dict[Op, Entry] = {}
for _family in (elementwise, moving, indexing, reducing, products, norms, matrices, images):
    for _op, _entry in _family.SAMPLES.items():  # a strategy is built once: building is most of drawing
        _smooth = _entry.smooth and remembered(_entry.smooth)
        SAMPLES[_op] = _entry._replace(cases=remembered(_entry.cases), smooth=_smooth)

__all__ = ["SAMPLES", "Cases", "Entry", "alone", "large", "numbers", "takes_numbers"]
