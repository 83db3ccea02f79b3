"""Elementwise ops that decide and do not compute: comparisons, bits and logic.

They broadcast and promote as those of elementwise.py do.
"""

from polyarr.core.spec import bool as bool_
from polyarr.ops.create import array_like
from polyarr.ops.declare import elementwise

# ---- comparisons: no gradient ----------------------------------------------------------------------


@elementwise("any", bool_, widen=False)
def equal(x, y):
    """Return whether x equals y, element by element. nan equals nothing.

    >>> pa.equal(pa.asarray([1, 2, 3]), 2)
    Array([False,  True, False], bool, 'numpy')
    """


@elementwise("real or bool", bool_, widen=False)
def less(x, y):
    """Return whether x is less than y, element by element.

    >>> pa.less(pa.asarray([1, 2, 3]), 2)
    Array([ True, False, False], bool, 'numpy')
    """


@elementwise("real or bool", bool_, widen=False)
def less_equal(x, y):
    """Return whether x is less than or equal to y, element by element; false where either is nan.

    >>> pa.less_equal(pa.asarray([1, 2, 3]), 2)
    Array([ True,  True, False], bool, 'numpy')
    """


@elementwise("any", bool_, primitive=False, widen=False)
def not_equal(x, y):
    """Return whether x differs from y, element by element. nan differs from everything.

    >>> pa.not_equal(pa.asarray([1, 2, 3]), 2)
    Array([ True, False,  True], bool, 'numpy')
    """
    return bitwise_invert(equal(x, y))


@elementwise("real or bool", bool_, primitive=False, widen=False)
def greater(x, y):
    """Return whether x is greater than y, element by element.

    >>> pa.greater(pa.asarray([1, 2, 3]), 2)
    Array([False, False,  True], bool, 'numpy')
    """
    return less(y, x)


@elementwise("real or bool", bool_, primitive=False, widen=False)
def greater_equal(x, y):
    """Return whether x is greater than or equal to y, element by element; false where either is nan.

    >>> pa.greater_equal(pa.asarray([1, 2, 3]), 2)
    Array([False,  True,  True], bool, 'numpy')
    """
    return less_equal(y, x)


@elementwise("numeric", bool_, primitive=False, widen=False)
def isnan(x):
    """Return whether x is nan, element by element.

    >>> pa.isnan(pa.asarray([1.0, pa.nan]))
    Array([False,  True], bool, 'numpy')
    """
    return not_equal(x, x)


equal.vjp(x=None, y=None)
less.vjp(x=None, y=None)
less_equal.vjp(x=None, y=None)
not_equal.vjp(x=None, y=None)
greater.vjp(x=None, y=None)
greater_equal.vjp(x=None, y=None)
isnan.vjp(x=None)


# ---- bits and logic: no gradient -------------------------------------------------------------------------------


@elementwise("integer or bool")
def bitwise_and(x, y):
    """Return x & y, bit by bit.

    >>> pa.bitwise_and(pa.asarray([5, 6]), 3)
    Array([1, 2], int64, 'numpy')
    """


@elementwise("integer or bool")
def bitwise_or(x, y):
    """Return x | y, bit by bit.

    >>> pa.bitwise_or(pa.asarray([5, 6]), 3)
    Array([7, 7], int64, 'numpy')
    """


@elementwise("integer or bool")
def bitwise_xor(x, y):
    """Return x ^ y, bit by bit.

    >>> pa.bitwise_xor(pa.asarray([5, 6]), 3)
    Array([6, 5], int64, 'numpy')
    """


@elementwise("integer or bool")
def bitwise_invert(x):
    """Return ~x, bit by bit; of bool, the logical negation.

    >>> pa.bitwise_invert(pa.asarray([0, 5]))
    Array([-1, -6], int64, 'numpy')
    """


@elementwise("integer")
def bitwise_left_shift(x, y):
    """Return x * 2**y, modulo the range of the dtype.

    >>> pa.bitwise_left_shift(pa.asarray([1, 3]), 2)
    Array([ 4, 12], int64, 'numpy')
    """


@elementwise("integer")
def bitwise_right_shift(x, y):
    """Return floor(x / 2**y).

    >>> pa.bitwise_right_shift(pa.asarray([8, -3]), 1)
    Array([ 4, -2], int64, 'numpy')
    """


@elementwise("any", bool_, primitive=False, widen=False)
def logical_and(x, y):
    """Return whether both x and y are true, element by element. Numbers are true if they are not 0.

    >>> pa.logical_and(pa.asarray([True, True]), pa.asarray([True, False]))
    Array([ True, False], bool, 'numpy')
    """
    return bitwise_and(_is_true(x, y), _is_true(y, x))


@elementwise("any", bool_, primitive=False, widen=False)
def logical_or(x, y):
    """Return whether x or y is true, element by element. Numbers are true if they are not 0.

    >>> pa.logical_or(pa.asarray([False, True]), pa.asarray([False, False]))
    Array([False,  True], bool, 'numpy')
    """
    return bitwise_or(_is_true(x, y), _is_true(y, x))


@elementwise("any", bool_, primitive=False, widen=False)
def logical_xor(x, y):
    """Return whether exactly one of x and y is true, element by element. Numbers are true if they are not 0.

    >>> pa.logical_xor(pa.asarray([True, True]), pa.asarray([True, False]))
    Array([False,  True], bool, 'numpy')
    """
    return bitwise_xor(_is_true(x, y), _is_true(y, x))


@elementwise("any", bool_, primitive=False, widen=False)
def logical_not(x):
    """Return whether x is false, element by element. Numbers are false if they are 0.

    >>> pa.logical_not(pa.asarray([True, False]))
    Array([False,  True], bool, 'numpy')
    """
    return bitwise_invert(_is_true(x, x))


def _is_true(x, other):
    x = array_like(x, other)
    return x if x.dtype == bool_ else not_equal(x, 0)


for _op in (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bitwise_left_shift,
    bitwise_right_shift,
    logical_and,
    logical_or,
    logical_xor,
):
    _op.vjp(x=None, y=None)
for _op in (bitwise_invert, logical_not):
    _op.vjp(x=None)
